/* attention_prefill_cuda.cu: attention of sequences with several rows on tensor cores (mma.sync), 16-bit types, any head size.
 *
 * Block (query head, tile), 4 waves: 64 rows of one sequence against its keys, 64 (above DIM 192: 32) at a time, online softmax (FlashAttention-2). Tiles are numbered from
 * the last, since later rows see more and long work should begin first. Wave w holds rows 16 w .. + 15: S [16][keys] and O [16][DIM] as C fragments; S
 * becomes the A side of the second product in registers. Keys and values come by asynchronous copies, two buffers each: the next keys are on their
 * way during the softmax, the next values during the next scores.
 *
 * Shared memory, T: keys [2][64 or 32][DIM + 8], values likewise; the padding makes ldmatrix free of bank conflicts. Queries pass through the second
 * buffer of keys into registers; above DIM 128 they have [64][DIM + 8] of their own and are read for each product. DIM is head_dim rounded
 * up; the columns behind the head's end are zeros, and so are keys that no row of the tile sees (not read: stale memory may hold NaN).
 *
 * The bound aimed for is what mma.sync reaches, about 60 % of the tensor cores' rate.
 */
#include "device/gpu/attention_device.h"
#include "device/gpu/tensor_cuda.h"

#define THREADS 128
#define ROWS 64

template <int DIM> struct tile_layout {
	static constexpr int keys = DIM > 192 ? 32 : 64; /* a step's: registers hold their scores */
	static constexpr int stride = DIM + 8;
	static constexpr int buffer = keys * stride; /* elements */
	static constexpr bool query_apart = DIM > 128;
	static constexpr size_t bytes = (size_t)(4 * buffer + (query_apart ? ROWS * stride : 0)) * 2;
};

/* What the block is at. */
struct tile_job {
	const int32_t *table;
	int kv_head, first, end; /* keys that some row sees */
	int64_t behind;          /* from a key to its value */
};

/* Keys (offset 0) or values [base, base + tile_layout::keys) to shared memory. */
template <typename T, int DIM> GPU_TEMPLATE void copy_keys(const attention_params &p, const tile_job &job, int64_t offset, int base, T *to)
{
	constexpr int pieces = DIM / 8, each = tile_layout<DIM>::keys * pieces / THREADS;
	GPU_UNROLL for (int i = 0; i < each; i++) {
		const int at = (int)threadIdx.x + i * THREADS, row = at / pieces, d = at % pieces * 8, key = base + row;
		const bool valid = key >= job.first && key < job.end && d < p.head_dim;
		const T *from = (const T *)p.kv;
		if (valid) {
			const int block = p.block_shift >= 0 ? key >> p.block_shift : key / p.block_tokens;
			from += attention_kv_offset(p, job.table[block], job.kv_head, key - block * p.block_tokens) + offset + d;
		}
		tensor_copy16(tensor_shared_address(to + row * tile_layout<DIM>::stride + d), from, valid);
	}
}

template <typename T, int DIM> GPU_TEMPLATE void copy_queries(const attention_params &p, const attention_rows &tile, int head, T *to)
{
	constexpr int pieces = DIM / 8, each = ROWS * pieces / THREADS;
	const T *q = (const T *)p.q + (int64_t)tile.row * p.q_stride + (int64_t)head * p.head_dim;
	GPU_UNROLL for (int i = 0; i < each; i++) {
		const int at = (int)threadIdx.x + i * THREADS, row = at / pieces, d = at % pieces * 8;
		const bool valid = row < tile.rows && d < p.head_dim;
		tensor_copy16(tensor_shared_address(to + row * tile_layout<DIM>::stride + d), valid ? q + row * p.q_stride + d : q, valid);
	}
}

/* A fragment of the wave's 16 queries, contraction columns [16 step, + 16). */
template <int DIM> GPU_TEMPLATE void load_query(uint32_t *a, uint32_t queries, int step)
{
	const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * 16 + lane % 16;
	tensor_load4(a, queries + (uint32_t)(row * tile_layout<DIM>::stride + step * 16 + lane / 16 * 8) * 2);
}

/* score = Q K^T: [16][keys] of the wave. */
template <typename T, int DIM> GPU_TEMPLATE void score_keys(float (*score)[4], const uint32_t (*query)[4], uint32_t queries, uint32_t keys)
{
	constexpr int count = tile_layout<DIM>::keys;
	const int lane = (int)threadIdx.x % 32;
	const uint32_t from = keys + (uint32_t)((lane / 16 * 8 + lane % 8) * tile_layout<DIM>::stride + lane / 8 % 2 * 8) * 2;
	GPU_UNROLL for (int n = 0; n < count / 8; n++) GPU_UNROLL for (int i = 0; i < 4; i++) score[n][i] = 0;
	GPU_UNROLL for (int step = 0; step < DIM / 16; step++) {
		uint32_t own[4];
		if (tile_layout<DIM>::query_apart) load_query<DIM>(own, queries, step);
		const uint32_t *a = tile_layout<DIM>::query_apart ? own : query[step];
		GPU_UNROLL for (int n = 0; n < count / 16; n++) {
			uint32_t b[4];
			tensor_load4(b, from + (uint32_t)(n * 16 * tile_layout<DIM>::stride + step * 16) * 2);
			tensor_mma<T>(score[2 * n], a, b[0], b[1]);
			tensor_mma<T>(score[2 * n + 1], a, b[2], b[3]);
		}
	}
}

/* acc += P V. weight: P as A fragments, [keys / 16][4]. */
template <typename T, int DIM> GPU_TEMPLATE void add_values(float (*acc)[4], const uint32_t (*weight)[4], uint32_t values)
{
	const int lane = (int)threadIdx.x % 32;
	const uint32_t from = values + (uint32_t)(lane % 16 * tile_layout<DIM>::stride + lane / 16 * 8) * 2;
	GPU_UNROLL for (int step = 0; step < tile_layout<DIM>::keys / 16; step++)
		GPU_UNROLL for (int n = 0; n < DIM / 16; n++) {
			uint32_t b[4];
			tensor_load4_transposed(b, from + (uint32_t)(step * 16 * tile_layout<DIM>::stride + n * 16) * 2);
			tensor_mma<T>(acc[2 * n], weight[step], b[0], b[1]);
			tensor_mma<T>(acc[2 * n + 1], weight[step], b[2], b[3]);
		}
}

/* Rows g and g + 8 of the wave. */
struct row_state {
	int position[2];
	float max[2], sum[2]; /* sum: this lane's share */
};

/* -inf where a row does not see a key of [base, base + count). */
template <int count> GPU_TEMPLATE void mask_scores(float (*score)[4], const row_state &s, int base, int window)
{
	const int c = (int)threadIdx.x % 4;
	GPU_UNROLL for (int n = 0; n < count / 8; n++)
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			const int key = base + n * 8 + 2 * c + i % 2, at = s.position[i / 2];
			if (key > at || (window > 0 && key <= at - window)) score[n][i] = ATTENTION_NONE;
		}
}

/* Scores into the tanh of them, behind which p.scale_log2 comes. */
template <int count> GPU_TEMPLATE void cap_scores(float (*score)[4], float cap_scale)
{
	GPU_UNROLL for (int n = 0; n < count / 8; n++)
		GPU_UNROLL for (int i = 0; i < 4; i++) score[n][i] = tensor_tanh(score[n][i] * cap_scale);
}

/* Scores into weights as A fragments; acc is rescaled. */
template <typename T, int DIM> GPU_TEMPLATE void weigh(row_state &s, float (*score)[4], float (*acc)[4], float scale, uint32_t (*weight)[4])
{
	constexpr int count = tile_layout<DIM>::keys;
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		float top = s.max[r];
		GPU_UNROLL for (int n = 0; n < count / 8; n++) top = fmaxf(top, fmaxf(score[n][2 * r], score[n][2 * r + 1]));
		top = fmaxf(top, gpu_shfl_xor(top, 1));
		top = fmaxf(top, gpu_shfl_xor(top, 2));
		const float minus = top == ATTENTION_NONE ? 0.0f : -top * scale; /* nothing seen yet: all weights are 0 */
		const float keep = tensor_exp2(gpu_fma(s.max[r], scale, minus));
		float sum = 0;
		GPU_UNROLL for (int n = 0; n < count / 8; n++)
			GPU_UNROLL for (int i = 2 * r; i < 2 * r + 2; i++) {
				score[n][i] = tensor_exp2(gpu_fma(score[n][i], scale, minus));
				sum += score[n][i];
			}
		s.max[r] = top;
		s.sum[r] = gpu_fma(s.sum[r], keep, sum);
		GPU_UNROLL for (int n = 0; n < DIM / 8; n++) acc[n][2 * r] *= keep, acc[n][2 * r + 1] *= keep;
	}
	GPU_UNROLL for (int step = 0; step < count / 16; step++)
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			const float *from = &score[2 * step + i / 2][i % 2 * 2];
			weight[step][i] = tensor_pack<T>(from[0], from[1]);
		}
}

template <typename T, int DIM>
GPU_TEMPLATE void put_rows(const attention_params &p, const attention_rows &tile, int head, row_state &s, const float (*acc)[4])
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		s.sum[r] += gpu_shfl_xor(s.sum[r], 1);
		s.sum[r] += gpu_shfl_xor(s.sum[r], 2);
		const int row = (int)threadIdx.x / 32 * 16 + g + r * 8;
		if (row >= tile.rows) continue;
		const float inverse = 1.0f / s.sum[r];
		T *out = (T *)p.out + (int64_t)(tile.row + row) * p.out_stride + (int64_t)head * p.head_dim;
		GPU_UNROLL for (int n = 0; n < DIM / 8; n++)
			if (n * 8 < p.head_dim) *(uint32_t *)(out + n * 8 + 2 * c) = tensor_pack<T>(acc[n][2 * r] * inverse, acc[n][2 * r + 1] * inverse);
	}
}

template <typename T, int DIM> __global__ void __launch_bounds__(THREADS, DIM <= 64 ? 3 : DIM <= 128 ? 2 : 1) attention_prefill_kernel(const attention_params p)
{
	using layout = tile_layout<DIM>;
	constexpr int count = layout::keys;
	GPU_DYNAMIC_SHARED(dynamic);
	T *keys = (T *)dynamic, *values = keys + 2 * layout::buffer, *queries = layout::query_apart ? values + 2 * layout::buffer : keys + layout::buffer;
	const int head = (int)blockIdx.x, wave = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4;
	gpu_wait_previous();
	gpu_start_next();
	const attention_rows tile = attention_find_tile(p, (int)(gridDim.y - 1 - blockIdx.y), ROWS);
	if (tile.rows == 0) return;

	row_state s = {{0, 0}, {ATTENTION_NONE, ATTENTION_NONE}, {0, 0}};
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		const int row = wave * 16 + g + r * 8; /* rows behind the tile's end repeat its last */
		s.position[r] = p.position[tile.row + (row < tile.rows ? row : tile.rows - 1)];
	}
	const int low = p.position[tile.row], high = p.position[tile.row + tile.rows - 1];
	tile_job job = {p.block_table + (int64_t)tile.seq * p.max_blocks, head / p.group, 0, high + 1, (int64_t)p.kv_heads * p.block_tokens * p.head_dim};
	if (p.window > 0 && low >= p.window) job.first = low - p.window + 1;
	int base = job.first / count * count;

	copy_queries<T, DIM>(p, tile, head, queries);
	tensor_copy_commit();
	copy_keys<T, DIM>(p, job, 0, base, keys);
	tensor_copy_commit();
	copy_keys<T, DIM>(p, job, job.behind, base, values);
	tensor_copy_commit();
	tensor_copy_wait<2>();
	gpu_sync();
	uint32_t query[layout::query_apart ? 1 : DIM / 16][4];
	if (!layout::query_apart)
		GPU_UNROLL for (int step = 0; step < DIM / 16; step++) load_query<DIM>(query[layout::query_apart ? 0 : step], tensor_shared_address(queries), step);

	float acc[DIM / 8][4] = {};
	for (int turn = 0; base < job.end; base += count, turn ^= 1) {
		float score[count / 8][4];
		uint32_t weight[count / 16][4];
		tensor_copy_wait<1>();
		gpu_sync(); /* keys are here; nobody reads the other buffer of keys */
		if (base + count < job.end) copy_keys<T, DIM>(p, job, 0, base + count, keys + (turn ^ 1) * layout::buffer);
		tensor_copy_commit();
		score_keys<T, DIM>(score, query, tensor_shared_address(queries), tensor_shared_address(keys + turn * layout::buffer));
		if (p.cap_scale > 0) cap_scores<layout::keys>(score, p.cap_scale);
		if (base + count > low + 1 || (p.window > 0 && base <= high - p.window)) mask_scores<layout::keys>(score, s, base, p.window);
		weigh<T, DIM>(s, score, acc, p.scale_log2, weight);
		tensor_copy_wait<1>();
		gpu_sync();
		if (base + count < job.end) copy_keys<T, DIM>(p, job, job.behind, base + count, values + (turn ^ 1) * layout::buffer);
		tensor_copy_commit();
		add_values<T, DIM>(acc, weight, tensor_shared_address(values + turn * layout::buffer));
	}
	put_rows<T, DIM>(p, tile, head, s, acc);
}

/* ---- launcher */

template <typename T, int DIM> static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p)
{
	const unsigned tiles = attention_most_tiles(p, ROWS);
	const gpu_error code = gpu_allow_shared((attention_prefill_kernel<T, DIM>), tile_layout<DIM>::bytes);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((attention_prefill_kernel<T, DIM>), dim3((unsigned)p->q_heads, tiles), dim3(THREADS), tile_layout<DIM>::bytes, ctx->stream, *p);
}

template <typename T> static gpu_error launch_type(const struct gpu_context *ctx, const attention_params *p)
{
	if (p->head_dim <= 64) return launch_instance<T, 64>(ctx, p);
	if (p->head_dim <= 96) return launch_instance<T, 96>(ctx, p);
	if (p->head_dim <= 128) return launch_instance<T, 128>(ctx, p);
	if (p->head_dim <= 192) return launch_instance<T, 192>(ctx, p);
	return launch_instance<T, 256>(ctx, p);
}

static bool can_prefill(const attention_params *p, enum dtype dtype)
{
	return (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 8 == 0 && p->head_dim <= 256;
}

static enum status launch_prefill(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	return gpu_check(dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p) : launch_type<f16>(ctx, p), "attention_prefill", err);
}

extern "C" const struct attention_kernel attention_prefill_tensor = {"prefill_tensor", can_prefill, launch_prefill, false};
