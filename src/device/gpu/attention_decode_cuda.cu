/* attention_decode_cuda.cu: attention of sequences with one row on tensor cores, 16-bit types: flash-decoding without shared memory for the keys.
 *
 * Block (split, kv head * slices + slice, seq), WARPS waves: one split's keys for up to 8 query heads of one KV head. A wave takes every WARPS-th group
 * of 16 keys (which lie together in memory) straight into registers as the A side of m16n8k16 products; the query heads are the B side's 8
 * columns (with lane = 4 g + c):
 *   S^T[key][head] = K Q^T: contraction over d in an order of our own, so that lane (g, c) holds the 16-byte pieces c, c + 4, … of keys g, g + 8;
 *   O^T[d][head] += V^T P^T: lane (g, c) holds the pieces g, g + 8, … of keys 2c, 2c+1, 2c+8, 2c+9; a byte permutation pairs neighbouring keys.
 *     Row g of product (h, t) is d = 64 h + 8 g + t, row g + 8 is d = 64 h + 8 g + t + 4.
 * All loads are 16 bytes, full sectors; those of the wave's next group are in flight while this one is computed. Waves keep maximum, sum and
 * vector of their own, merged through shared memory at the end: WARPS * 8 * (DIM + 1) floats.
 *
 * DIM is head_dim rounded up to 64, 128 or 256; pieces behind the head's end are zeros. Weights P are rounded to T. A wave has 8 KB (DIM 128) in flight;
 * with 16 waves on a multiprocessor that is the read rate of memory, the bound aimed for; short contexts are bound by latencies.
 */
#include "device/gpu/attention_device.h"
#include "device/gpu/tensor_cuda.h"

#define WARPS 4
#define THREADS (WARPS * 32)
#define HEADS 8

template <int DIM> struct key_regs {
	gpu_vec16 low[DIM / 32], high[DIM / 32]; /* keys g, g + 8 */
};
template <int DIM> struct value_regs {
	gpu_vec16 key[4][DIM / 64]; /* keys 2c, 2c+1, 2c+8, 2c+9 */
};

/* 16 bytes of a row of T at d, zeros behind the head's end. */
template <typename T, int DIM, bool EXACT> GPU_TEMPLATE gpu_vec16 load_piece(const T *row, int d, int head_dim)
{
	if (EXACT || d < head_dim) return gpu_load16_stream(row + d);
	return gpu_vec16{};
}

template <typename T, int DIM, bool EXACT> GPU_TEMPLATE void load_keys(key_regs<DIM> &k, const T *group, int head_dim)
{
	const int dim = EXACT ? DIM : head_dim;
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		k.low[j] = load_piece<T, DIM, EXACT>(group + g * dim, j * 32 + c * 8, dim);
		k.high[j] = load_piece<T, DIM, EXACT>(group + (g + 8) * dim, j * 32 + c * 8, dim);
	}
}

template <typename T, int DIM, bool EXACT> GPU_TEMPLATE void load_values(value_regs<DIM> &v, const T *group, int head_dim)
{
	const int dim = EXACT ? DIM : head_dim;
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 4; i++)
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			v.key[i][h] = load_piece<T, DIM, EXACT>(group + (2 * c + i % 2 + i / 2 * 8) * dim, h * 64 + g * 8, dim);
}

/* For a group of which only the keys [first, end) count: the others score -inf, and their values become zeros, since a weight of 0 does not
 * silence the NaN that stale memory may hold. */
template <int DIM> GPU_TEMPLATE void cut_group(float *score, value_regs<DIM> &v, int first, int end)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 4; i++) {
		const int scored = g + i / 2 * 8, valued = 2 * c + i % 2 + i / 2 * 8;
		if (scored < first || scored >= end) score[i] = ATTENTION_NONE;
		if (valued < first || valued >= end) GPU_UNROLL for (int h = 0; h < DIM / 64; h++) v.key[i][h] = gpu_vec16{};
	}
}

/* score[4] = S^T of 16 keys and 8 heads in the layout of C. */
template <typename T, int DIM> GPU_TEMPLATE void score_keys(float *score, const key_regs<DIM> &k, const gpu_vec16 *query)
{
	const int lane = (int)threadIdx.x % 32;
	GPU_UNROLL for (int i = 0; i < 4; i++) score[i] = 0;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		const gpu_vec16 q = query[j * 32 + lane];
		GPU_UNROLL for (int half = 0; half < 4; half += 2) {
			const uint32_t a[4] = {k.low[j].x[half], k.high[j].x[half], k.low[j].x[half + 1], k.high[j].x[half + 1]};
			tensor_mma<T>(score, a, q.x[half], q.x[half + 1]);
		}
	}
}

/* acc[DIM / 64][4][4] += V^T P^T. */
template <typename T, int DIM> GPU_TEMPLATE void add_values(float (*acc)[4][4], const value_regs<DIM> &v, uint32_t p0, uint32_t p1)
{
	GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
		GPU_UNROLL for (int t = 0; t < 4; t++) {
			const uint32_t order = t % 2 ? 0x7632 : 0x5410; /* element t of both keys */
			const uint32_t a[4] = {__byte_perm(v.key[0][h].x[t / 2], v.key[1][h].x[t / 2], order),
			                       __byte_perm(v.key[0][h].x[t / 2 + 2], v.key[1][h].x[t / 2 + 2], order),
			                       __byte_perm(v.key[2][h].x[t / 2], v.key[3][h].x[t / 2], order),
			                       __byte_perm(v.key[2][h].x[t / 2 + 2], v.key[3][h].x[t / 2 + 2], order)};
			tensor_mma<T>(acc[h][t], a, p0, p1);
		}
}

/* What a wave has so far of heads 2c and 2c + 1: maximum of scores * scale, this lane's share of the sum, O^T. */
template <int DIM> struct wave_state {
	float max[2], sum[2], acc[DIM / 64][4][4];
};

/* Scores into weights, packed as the B side of the second product; acc is rescaled. */
template <typename T, int DIM> GPU_TEMPLATE void weigh(wave_state<DIM> &s, float *score, float scale, uint32_t *p)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) score[i] *= scale;
	GPU_UNROLL for (int i = 0; i < 2; i++) {
		float top = fmaxf(score[i], score[i + 2]);
		GPU_UNROLL for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, gpu_shfl_xor(top, mask));
		top = fmaxf(top, s.max[i]);
		const float keep = tensor_exp2(s.max[i] - top); /* a group has a key that counts: top is finite */
		s.max[i] = top;
		score[i] = tensor_exp2(score[i] - top);
		score[i + 2] = tensor_exp2(score[i + 2] - top);
		s.sum[i] = s.sum[i] * keep + (score[i] + score[i + 2]);
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			GPU_UNROLL for (int t = 0; t < 4; t++) s.acc[h][t][i] *= keep, s.acc[h][t][i + 2] *= keep;
	}
	p[0] = tensor_transpose(tensor_pack<T>(score[0], score[1]));
	p[1] = tensor_transpose(tensor_pack<T>(score[2], score[3]));
}

/* Where a group of keys lies. */
struct group_place {
	int block, token;
};
GPU_DEVICE group_place find_group(const attention_params &p, const int32_t *table, int key)
{
	const int index = p.block_shift >= 0 ? key >> p.block_shift : key / p.block_tokens;
	return {table[index], key - index * p.block_tokens};
}

/* The wave's groups of the split. */
template <typename T, int DIM, bool EXACT>
GPU_TEMPLATE void attend(const attention_params &p, int seq, int kv_head, const attention_range &range, const gpu_vec16 *query, wave_state<DIM> &s)
{
	constexpr int step = WARPS * ATTENTION_GROUP;
	constexpr bool early = DIM <= 128; /* registers for values that are not needed yet */
	const int32_t *table = p.block_table + (int64_t)seq * p.max_blocks;
	const int64_t values = (int64_t)p.kv_heads * p.block_tokens * p.head_dim;
	int key = range.begin + (int)threadIdx.x / 32 * ATTENTION_GROUP;
	if (key + ATTENTION_GROUP <= range.first) key += (range.first - key) / step * step; /* invariant mode begins splits before the window */
	if (key + ATTENTION_GROUP <= range.first) key += step;
	if (key >= range.end) return;
	key_regs<DIM> k;
	value_regs<DIM> v;
	group_place place = find_group(p, table, key);
	const T *group = (const T *)p.kv + attention_kv_offset(p, place.block, kv_head, place.token);
	load_keys<T, DIM, EXACT>(k, group, p.head_dim);
	if (early) load_values<T, DIM, EXACT>(v, group + values, p.head_dim);
	if (key + step < range.end) place = find_group(p, table, key + step);
	while (true) {
		const int next = key + step;
		const bool more = next < range.end;
		const T *next_group = (const T *)p.kv + attention_kv_offset(p, place.block, kv_head, place.token);
		if (next + step < range.end) place = find_group(p, table, next + step); /* a turn ahead of its use */
		float score[4];
		uint32_t weight[2];
		score_keys<T, DIM>(score, k, query);
		if (early && more) load_keys<T, DIM, EXACT>(k, next_group, p.head_dim);
		if (!early) load_values<T, DIM, EXACT>(v, group + values, p.head_dim);
		if (key < range.first || key + ATTENTION_GROUP > range.end) cut_group<DIM>(score, v, range.first - key, range.end - key);
		weigh<T, DIM>(s, score, p.scale_log2, weight);
		add_values<T, DIM>(s.acc, v, weight[0], weight[1]);
		if (!more) break;
		if (early) load_values<T, DIM, EXACT>(v, next_group + values, p.head_dim);
		else load_keys<T, DIM, EXACT>(k, next_group, p.head_dim);
		key = next, group = next_group;
	}
}

/* The wave's state to shared memory: acc [HEADS][DIM + 1], stats [HEADS][2]. */
template <int DIM> GPU_TEMPLATE void put_wave(wave_state<DIM> &s, float *acc, float *stats)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 2; i++) {
		GPU_UNROLL for (int mask = 4; mask < 32; mask *= 2) s.sum[i] += gpu_shfl_xor(s.sum[i], mask);
		if (g == 0) stats[(2 * c + i) * 2] = s.max[i], stats[(2 * c + i) * 2 + 1] = s.sum[i];
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			GPU_UNROLL for (int t = 0; t < 4; t++) {
				acc[(2 * c + i) * (DIM + 1) + h * 64 + g * 8 + t] = s.acc[h][t][i];
				acc[(2 * c + i) * (DIM + 1) + h * 64 + g * 8 + t + 4] = s.acc[h][t][i + 2];
			}
	}
}

/* Sum of the waves' results for each (head, d): to `out` if the row has only this split, else to the workspace. */
template <typename T, int DIM>
GPU_TEMPLATE void finish(const attention_params &p, int seq, int row, int first_head, int heads, bool only, const float *acc, const float *stats)
{
	for (int i = (int)threadIdx.x; i < heads * DIM; i += THREADS) {
		const int h = i / DIM, d = i % DIM;
		if (d >= p.head_dim) continue;
		float max = ATTENTION_NONE, sum = 0, value = 0;
		GPU_UNROLL for (int w = 0; w < WARPS; w++) max = fmaxf(max, stats[(w * HEADS + h) * 2]);
		GPU_UNROLL for (int w = 0; w < WARPS; w++) {
			const float factor = tensor_exp2(stats[(w * HEADS + h) * 2] - max);
			sum += stats[(w * HEADS + h) * 2 + 1] * factor;
			value += acc[(w * HEADS + h) * (DIM + 1) + d] * factor;
		}
		const int head = first_head + h;
		if (only) {
			((T *)p.out)[(int64_t)row * p.out_stride + (int64_t)head * p.head_dim + d] = gpu_narrow<T>(value / sum);
			continue;
		}
		const int64_t slot = ((int64_t)seq * p.q_heads + head) * p.splits + blockIdx.x;
		p.partial[slot * p.head_dim + d] = value;
		if (d == 0) p.partial_stats[slot * 2] = max, p.partial_stats[slot * 2 + 1] = sum;
	}
}

template <typename T, int DIM, bool EXACT> __global__ void __launch_bounds__(THREADS, DIM > 128 ? 2 : 3) attention_decode_tensor_kernel(const attention_params p)
{
	GPU_SHARED(float, acc, WARPS *HEADS *(DIM + 1));
	GPU_SHARED(float, stats, WARPS *HEADS * 2);
	GPU_SHARED(gpu_vec16, query, DIM);
	GPU_SHARED(int, flag, 1);
	const int slices = (p.group + HEADS - 1) / HEADS, seq = (int)blockIdx.z;
	const int kv_head = (int)blockIdx.y / slices, slice = (int)blockIdx.y % slices;
	const int first_head = kv_head * p.group + slice * HEADS;
	const int heads = p.group - slice * HEADS < HEADS ? p.group - slice * HEADS : HEADS;
	const int lane = (int)threadIdx.x % 32, wave = (int)threadIdx.x / 32;
	gpu_wait_previous();
	gpu_start_next();
	const int row = p.dense ? seq : p.row_start[seq];
	if (!p.dense && p.row_start[seq + 1] - row != 1) return;
	const attention_range range = attention_split(p, p.position[row], (int)blockIdx.x, WARPS * ATTENTION_GROUP);
	if ((int)blockIdx.x >= range.active) return;

	const T *q = (const T *)p.q + (int64_t)row * p.q_stride + (int64_t)(first_head + lane / 4) * p.head_dim;
	for (int j = wave; j < DIM / 32; j += WARPS) {
		gpu_vec16 piece = {};
		if (lane / 4 < heads) piece = load_piece<T, DIM, EXACT>(q, j * 32 + lane % 4 * 8, p.head_dim);
		query[j * 32 + lane] = piece;
	}
	gpu_sync();
	wave_state<DIM> s = {};
	s.max[0] = s.max[1] = ATTENTION_NONE;
	attend<T, DIM, EXACT>(p, seq, kv_head, range, query, s);
	put_wave<DIM>(s, acc + wave * HEADS * (DIM + 1), stats + wave * HEADS * 2);
	gpu_sync();
	finish<T, DIM>(p, seq, row, first_head, heads, range.active == 1, acc, stats);
	if (range.active == 1) return;
	if (attention_last_block(&p.counters[(int64_t)seq * gridDim.y + blockIdx.y], range.active, flag))
		attention_combine<T, 8>(p, seq, row, first_head, heads, range.active, acc);
}

/* ---- launcher */

template <typename T, int DIM, bool EXACT> static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p)
{
	const unsigned slices = (unsigned)((p->group + HEADS - 1) / HEADS);
	return GPU_LAUNCH((attention_decode_tensor_kernel<T, DIM, EXACT>), dim3((unsigned)p->splits, (unsigned)p->kv_heads * slices, (unsigned)p->seqs),
	                  dim3(THREADS), 0, ctx->stream, *p);
}

template <typename T> static gpu_error launch_type(const struct gpu_context *ctx, const attention_params *p)
{
	switch (p->head_dim) {
	case 64: return launch_instance<T, 64, true>(ctx, p);
	case 128: return launch_instance<T, 128, true>(ctx, p);
	case 256: return launch_instance<T, 256, true>(ctx, p);
	}
	if (p->head_dim < 64) return launch_instance<T, 64, false>(ctx, p);
	if (p->head_dim < 128) return launch_instance<T, 128, false>(ctx, p);
	return launch_instance<T, 256, false>(ctx, p);
}

static bool can_decode(const attention_params *p, enum dtype dtype)
{
	return (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 8 == 0 && p->head_dim <= 256;
}

static enum status launch_decode(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	return gpu_check(dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p) : launch_type<f16>(ctx, p), "attention_decode_tensor", err);
}

extern "C" const struct attention_kernel attention_decode_tensor = {"decode_tensor", can_decode, launch_decode};
