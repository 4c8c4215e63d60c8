/* attention_decode.cu: attention of sequences with one row, any device and type: flash-decoding with plain f32 arithmetic.
 *
 * Block (split, kv head * slices + slice, seq), THREADS threads: one split's keys for up to HEADS query heads of one KV head, so that
 * a key is read once for all of them (a group larger than HEADS is cut into slices). Eight lanes form a worker; worker w takes the keys w, w +
 * workers, … of the split, KEYS at once, lane i of it the chunks i, i + 8, … of 16 bytes of a key. Each worker keeps a running maximum, sum and
 * vector; they are merged by shuffles within the wave and through shared memory across waves.
 *
 * Alignment: 16 bytes of q rows and of the cache (head sizes are multiples of 16). Shared memory: HEADS * D * (1 + waves) floats and some.
 * The bound aimed for is the read rate of memory.
 */
#include "device/gpu/attention_device.h"

#define THREADS 128
#define LANES 8 /* of a worker */
#define WAVES (THREADS / GPU_WARP)
#define WORKERS (THREADS / LANES)

/* What one worker holds: ELEMENTS = head_dim / 8, rounded up to the instance. */
template <typename T, int ELEMENTS, int HEADS> struct worker {
	float max[HEADS], sum[HEADS], acc[HEADS][ELEMENTS];
};

/* This lane's part of a key or value row; chunks behind the head's end are zero. */
template <typename T, int ELEMENTS> GPU_TEMPLATE void load_row(const T *row, int head_dim, float *out)
{
	constexpr int count = gpu_lanes<T>::count;
	const int lane = (int)threadIdx.x % LANES;
	GPU_UNROLL for (int c = 0; c < ELEMENTS / count; c++) {
		const int d = (c * LANES + lane) * count;
		gpu_vec16 raw = {};
		if (d < head_dim) raw = gpu_load16_stream(row + d);
		gpu_widen16<T>(raw, out + c * count);
	}
}

/* q . k of one head, the same in all lanes of the worker. `query` is this head's in shared memory, scaled. */
template <typename T, int ELEMENTS> GPU_TEMPLATE float dot_row(const float *query, const float *key)
{
	constexpr int count = gpu_lanes<T>::count;
	const int lane = (int)threadIdx.x % LANES;
	float sum = 0;
	GPU_UNROLL for (int c = 0; c < ELEMENTS / count; c++)
		GPU_UNROLL for (int i = 0; i < count; i++) sum = gpu_fma(query[(c * LANES + lane) * count + i], key[c * count + i], sum);
	GPU_UNROLL for (int mask = LANES / 2; mask > 0; mask /= 2) sum += gpu_shfl_xor(sum, mask);
	return sum;
}

/* Keys [begin, end) of the split into this worker's state. All lanes of a wave make the same number of rounds. */
template <typename T, int ELEMENTS, int HEADS>
GPU_TEMPLATE void attend(const attention_params &p, int seq, int kv_head, const attention_range &range, const float *query, worker<T, ELEMENTS, HEADS> &w)
{
	const int32_t *table = p.block_table + (int64_t)seq * p.max_blocks;
	const int64_t values = (int64_t)p.kv_heads * p.block_tokens * p.head_dim;
	const int me = (int)threadIdx.x / LANES, last = range.end - 1;
	for (int base = range.begin; base < range.end; base += WORKERS) {
		const int key = base + me;
		const bool seen = key >= range.first && key <= last;
		const int at = seen ? key : last; /* a key that exists */
		const T *row = (const T *)p.kv + attention_kv_offset(p, table[at / p.block_tokens], kv_head, at % p.block_tokens);
		float k[ELEMENTS], v[ELEMENTS];
		load_row<T, ELEMENTS>(row, p.head_dim, k);
		load_row<T, ELEMENTS>(row + values, p.head_dim, v);
		GPU_UNROLL for (int h = 0; h < HEADS; h++) {
			const float score = attention_capped(p, dot_row<T, ELEMENTS>(query + h * LANES * ELEMENTS, k));
			if (!seen) continue;
			const float top = fmaxf(w.max[h], score);
			const float keep = w.max[h] == ATTENTION_NONE ? 0.0f : exp2f(w.max[h] - top), weight = exp2f(score - top);
			w.sum[h] = gpu_fma(w.sum[h], keep, weight);
			w.max[h] = top;
			GPU_UNROLL for (int i = 0; i < ELEMENTS; i++) w.acc[h][i] = gpu_fma(weight, v[i], w.acc[h][i] * keep);
		}
	}
}

/* Merges the workers of a wave; afterwards every worker of it holds the wave's state. */
template <typename T, int ELEMENTS, int HEADS> GPU_TEMPLATE void merge_wave(worker<T, ELEMENTS, HEADS> &w)
{
	GPU_UNROLL for (int h = 0; h < HEADS; h++)
		GPU_UNROLL for (int mask = LANES; mask < GPU_WARP; mask *= 2) {
			const float max = gpu_shfl_xor(w.max[h], mask), sum = gpu_shfl_xor(w.sum[h], mask);
			float mine, theirs;
			attention_merge(w.max[h], w.sum[h], max, sum, &mine, &theirs);
			GPU_UNROLL for (int i = 0; i < ELEMENTS; i++) w.acc[h][i] = w.acc[h][i] * mine + gpu_shfl_xor(w.acc[h][i], mask) * theirs;
		}
}

/* The block's result for each (head, d): to `out` if this is the row's only split, else to the workspace. acc: [wave][HEADS][D'],
 * stats: [wave][HEADS][2], in shared memory. */
template <typename T, int ELEMENTS, int HEADS>
GPU_TEMPLATE void finish(const attention_params &p, int seq, int row, int first_head, int heads, bool only, const float *acc, const float *stats)
{
	constexpr int width = LANES * ELEMENTS;
	const int split = (int)blockIdx.x;
	for (int i = (int)threadIdx.x; i < heads * width; i += THREADS) {
		const int h = i / width, d = i % width;
		if (d >= p.head_dim) continue;
		float max = stats[2 * h], sum = stats[2 * h + 1], value = acc[i];
		for (int wave = 1; wave < WAVES; wave++) {
			float mine, theirs;
			const float *other = stats + (wave * HEADS + h) * 2;
			attention_merge(max, sum, other[0], other[1], &mine, &theirs);
			value = value * mine + acc[wave * HEADS * width + i] * theirs;
		}
		const int head = first_head + h;
		if (only) {
			((T *)p.out)[(int64_t)row * p.out_stride + (int64_t)head * p.head_dim + d] = gpu_narrow<T>(value / sum);
			continue;
		}
		const int64_t slot = ((int64_t)seq * p.q_heads + head) * p.splits + split;
		p.partial[slot * p.head_dim + d] = value;
		if (d == 0) p.partial_stats[slot * 2] = max, p.partial_stats[slot * 2 + 1] = sum;
	}
}

template <typename T, int ELEMENTS, int HEADS> GPU_KERNEL(THREADS) attention_decode_kernel(const attention_params p)
{
	constexpr int width = LANES * ELEMENTS;
	GPU_SHARED(float, query, HEADS * width);
	GPU_SHARED(float, acc, WAVES *HEADS *width);
	GPU_SHARED(float, stats, WAVES *HEADS * 2);
	GPU_SHARED(float, scale, HEADS *(ATTENTION_MAX_SPLITS + 1));
	GPU_SHARED(int, flag, 1);
	const int slices = (p.group + HEADS - 1) / HEADS, seq = (int)blockIdx.z;
	const int kv_head = (int)blockIdx.y / slices, slice = (int)blockIdx.y % slices;
	const int first_head = kv_head * p.group + slice * HEADS;
	const int heads = p.group - slice * HEADS < HEADS ? p.group - slice * HEADS : HEADS;
	gpu_wait_previous();
	gpu_start_next();
	const int row = p.dense ? seq : p.row_start[seq];
	if (!p.dense && p.row_start[seq + 1] - row != 1) return;
	const attention_range range = attention_split(p, p.position[row], (int)blockIdx.x, p.splits, 4 * WORKERS);
	if ((int)blockIdx.x >= range.active) return;

	const float first_scale = attention_first_scale(p);
	for (int i = (int)threadIdx.x; i < HEADS * width; i += THREADS) {
		const int h = i / width, d = i % width;
		const T *q = (const T *)p.q + (int64_t)row * p.q_stride + (int64_t)(first_head + h) * p.head_dim;
		query[i] = h < heads && d < p.head_dim ? gpu_widen(q[d]) * first_scale : 0.0f;
	}
	gpu_sync();
	worker<T, ELEMENTS, HEADS> w;
	GPU_UNROLL for (int h = 0; h < HEADS; h++) {
		w.max[h] = ATTENTION_NONE, w.sum[h] = 0;
		GPU_UNROLL for (int i = 0; i < ELEMENTS; i++) w.acc[h][i] = 0;
	}
	attend<T, ELEMENTS, HEADS>(p, seq, kv_head, range, query, w);
	merge_wave<T, ELEMENTS, HEADS>(w);

	constexpr int count = gpu_lanes<T>::count;
	const int lane = (int)threadIdx.x % GPU_WARP, wave = (int)threadIdx.x / GPU_WARP;
	if (lane < LANES)
		GPU_UNROLL for (int h = 0; h < HEADS; h++) {
			float *to = acc + (wave * HEADS + h) * width;
			GPU_UNROLL for (int i = 0; i < ELEMENTS; i++) to[(i / count * LANES + lane) * count + i % count] = w.acc[h][i];
			if (lane == 0) stats[(wave * HEADS + h) * 2] = w.max[h], stats[(wave * HEADS + h) * 2 + 1] = w.sum[h];
		}
	gpu_sync();
	finish<T, ELEMENTS, HEADS>(p, seq, row, first_head, heads, range.active == 1, acc, stats);
	if (range.active == 1) return;
	if (attention_last_block(&p.counters[(int64_t)seq * gridDim.y + blockIdx.y], range.active, flag))
		attention_combine<T, 4>(p, seq, row, first_head, heads, range.active, scale);
}

/* ---- launcher */

template <typename T, int ELEMENTS, int HEADS> static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p)
{
	const unsigned slices = (unsigned)((p->group + HEADS - 1) / HEADS);
	return GPU_LAUNCH((attention_decode_kernel<T, ELEMENTS, HEADS>), dim3((unsigned)p->splits, (unsigned)p->kv_heads * slices, (unsigned)p->seqs),
	                  dim3(THREADS), 0, ctx->stream, *p);
}

template <typename T, int ELEMENTS> static gpu_error launch_heads(const struct gpu_context *ctx, const attention_params *p)
{
	return p->group == 1 ? launch_instance<T, ELEMENTS, 1>(ctx, p) : launch_instance<T, ELEMENTS, ATTENTION_SLICE>(ctx, p);
}

template <typename T> static gpu_error launch_type(const struct gpu_context *ctx, const attention_params *p)
{
	if (p->head_dim <= 64) return launch_heads<T, 8>(ctx, p);
	if (p->head_dim <= 128) return launch_heads<T, 16>(ctx, p);
	return launch_heads<T, 32>(ctx, p);
}

static bool can_decode(const attention_params *p, enum dtype dtype)
{
	return dtype_is_plain(dtype) && p->head_dim % 16 == 0 && p->head_dim <= 256;
}

static enum status launch_decode(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	const gpu_error code = dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p) : dtype == DTYPE_F16 ? launch_type<f16>(ctx, p) : launch_type<float>(ctx, p);
	return gpu_check(code, "attention_decode", err);
}

GPU_HOST_TABLE(const struct attention_kernel attention_decode = {"decode", can_decode, launch_decode, true};)
