/* argmax.cu: the best token of each row of logits. */
#include "device/gpu/rows.h"

#define ARGMAX_THREADS 256
#define ARGMAX_PACK 4
#define ARGMAX_FLIGHT 4      /* packs of a thread on their way at a time */
#define ARGMAX_MAX_BLOCKS 64 /* of one row */
#define NO_INDEX 0x7fffffff

/* Order: NaN (index -1) beats all, then the larger value, then the smaller index. */
GPU_DEVICE best_token better(best_token a, best_token b)
{
	if (a.index < 0 || b.index < 0) return a.index < 0 ? a : b;
	if (a.value != b.value) return a.value > b.value ? a : b;
	return a.index < b.index ? a : b;
}

GPU_DEVICE best_token of_column(float value, int index)
{
	best_token t;
	t.value = value;
	t.index = value != value ? -1 : index;
	return t;
}

/* Over the block; the result is thread 0's. */
GPU_DEVICE best_token block_best(best_token best, best_token *scratch)
{
	GPU_UNROLL for (int mask = GPU_WARP / 2; mask > 0; mask /= 2) {
		best_token other;
		other.value = gpu_shfl_xor(best.value, mask);
		other.index = gpu_shfl_xor(best.index, mask);
		best = better(best, other);
	}
	const int wave = (int)threadIdx.x / GPU_WARP;
	gpu_sync();
	if (threadIdx.x % GPU_WARP == 0) scratch[wave] = best;
	gpu_sync();
	for (int w = 0; w < ARGMAX_THREADS / GPU_WARP; w++) best = better(best, scratch[w]);
	return best;
}

/* Block (b, r): every gridDim.x-th piece of 1024 columns of row r; its best goes to partial[r][b], and the last block of the row, which
 * the row's counter tells and which sets it back to 0, takes the best of those. Packs of 4 where rows are aligned to 16 bytes (N = 4), else
 * single columns; n at most 2^30, so that no index overflows. Shared: 260 bytes. Bound: 4 n bytes a row; few rows are two round trips and
 * the counter's. */
template <int N> GPU_KERNEL(ARGMAX_THREADS)
argmax_kernel(const float *logits, int64_t stride, int n, int begin, best_token *partial, uint32_t *counters, best_token *out)
{
	GPU_SHARED(best_token, scratch, 32);
	GPU_SHARED(uint32_t, last, 1);
	gpu_wait_previous();
	gpu_start_next();
	const int row = (int)blockIdx.y, blocks = (int)gridDim.x;
	best_token best;
	best.value = -INFINITY;
	best.index = NO_INDEX;
	logits += row * stride;
	const int step = blocks * ARGMAX_THREADS * N;
	for (int at = ((int)blockIdx.x * ARGMAX_THREADS + (int)threadIdx.x) * N; at < n; at += ARGMAX_FLIGHT * step) {
		float v[ARGMAX_FLIGHT][N];
		GPU_UNROLL for (int f = 0; f < ARGMAX_FLIGHT; f++)
			if (at + f * step < n) gpu_load<N>(logits + at + f * step, v[f]);
		GPU_UNROLL for (int f = 0; f < ARGMAX_FLIGHT; f++)
			if (at + f * step < n)
				GPU_UNROLL for (int i = 0; i < N; i++) best = better(best, of_column(v[f][i], begin + at + f * step + i));
	}
	best = block_best(best, scratch);
	if (blocks > 1) {
		if (threadIdx.x == 0) {
			partial[row * blocks + (int)blockIdx.x] = best;
			gpu_fence_device();
			last[0] = gpu_atomic_add(&counters[row], 1u) == (uint32_t)blocks - 1;
		}
		gpu_sync();
		if (!last[0]) return;
		gpu_fence_device();
		best.value = -INFINITY;
		best.index = NO_INDEX;
		if ((int)threadIdx.x < blocks) {
			const uint32_t *p = (const uint32_t *)&partial[row * blocks + (int)threadIdx.x];
			best.value = gpu_bits_to_f32(gpu_load_volatile(p));
			best.index = (int32_t)gpu_load_volatile(p + 1);
		}
		best = block_best(best, scratch);
		if (threadIdx.x == 0) counters[row] = 0;
	}
	if (threadIdx.x == 0) out[row] = best;
}

enum status gpu_argmax(struct stream *stream, const struct argmax_args *args, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const struct tensor *x = &args->logits;
	TRY(gpu_expect(x, x->dist, x->rows, x->cols, "argmax logits", err));
	if (x->dtype != DTYPE_F32 || x->dist == TENSOR_PARTIAL)
		return FAIL(err, BAD_INPUT, "argmax: %s logits of %s; F32 and no partial are wanted", tensor_dist_name(x->dist), dtype_name(x->dtype));
	if (x->cols > 1 << 30) return FAIL(err, UNSUPPORTED, "argmax: rows of %d; at most 2^30 columns are supported", x->cols);
	if (x->rows == 0) return STATUS_OK;
	const bool packs = x->cols % ARGMAX_PACK == 0 && gpu_rows_aligned(x, 16);
	int blocks = (int)gpu_blocks(x->cols, ARGMAX_THREADS * ARGMAX_PACK * 2); /* two packs a thread at least */
	const int fill = context->props.multiprocessors * 8 / x->rows; /* all resident at once */
	if (blocks > fill) blocks = fill;
	if (blocks > ARGMAX_MAX_BLOCKS) blocks = ARGMAX_MAX_BLOCKS;
	if (blocks < 1) blocks = 1;
	if (x->rows > GPU_COUNTERS || (size_t)x->rows * (size_t)blocks * sizeof(struct best_token) > context->workspace_bytes)
		return FAIL(err, NO_ROOM, "argmax: %d rows; at most %d, and a workspace of %d tokens each", x->rows, GPU_COUNTERS, blocks);
	const dim3 grid((unsigned)blocks, (unsigned)x->rows), block(ARGMAX_THREADS);
	struct best_token *partial = (struct best_token *)context->workspace;
	gpu_error code = packs ? GPU_LAUNCH(argmax_kernel<ARGMAX_PACK>, grid, block, 0, context->stream, (const float *)x->data, x->row_stride, x->cols,
	                                    args->begin, partial, context->counters, args->out)
	                       : GPU_LAUNCH(argmax_kernel<1>, grid, block, 0, context->stream, (const float *)x->data, x->row_stride, x->cols, args->begin,
	                                    partial, context->counters, args->out);
	return gpu_check(code, "argmax", err);
}
