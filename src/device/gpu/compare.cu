/* compare.cu: two matrices value by value, for measuring.
 *
 * Thread: every (gridDim * THREADS)th value in the order of rows; loads of neighbouring threads lie together. Each keeps counts and sums of its own (sums in
 * f64, since a matrix may have 10^8 values), which the block's first thread adds up in the order of threads: so the same matrices give the same bits.
 * Shared memory: THREADS * 56 bytes. Any type, stride and alignment. Bound: the read rate of memory; nothing waits for it.
 */
#include "device/gpu/compare.h"
#include "device/gpu/gpu.h"

#define THREADS 256

GPU_DEVICE uint32_t bits_of(float v)
{
	return gpu_f32_to_bits(v);
}
GPU_DEVICE uint32_t bits_of(bf16 v)
{
	return v.bits;
}
GPU_DEVICE uint32_t bits_of(f16 v)
{
	return v.bits;
}

template <typename T> GPU_TEMPLATE void look_at(compare_part &part, T a, T b, uint32_t unwritten, bool sparse)
{
	const bool is_written = bits_of(a) != unwritten, same = bits_of(a) == bits_of(b);
	if (sparse && bits_of(b) == unwritten) {
		part.outside += is_written;
		return;
	}
	part.values++;
	part.different += !same;
	part.unwritten += !is_written;
	if (!is_written) return;
	const float reference = gpu_widen(b), difference = fabsf(gpu_widen(a) - reference);
	part.nans += difference != difference;
	part.diff2 += (double)difference * (double)difference;
	part.ref2 += (double)reference * (double)reference;
	part.most_diff = fmaxf(part.most_diff, difference);
	part.most = fmaxf(part.most, fabsf(reference));
}

GPU_DEVICE void add_part(compare_part &sum, const compare_part &part)
{
	sum.diff2 += part.diff2, sum.ref2 += part.ref2, sum.hash += part.hash;
	sum.most_diff = fmaxf(sum.most_diff, part.most_diff), sum.most = fmaxf(sum.most, part.most);
	sum.values += part.values, sum.unwritten += part.unwritten, sum.outside += part.outside;
	sum.different += part.different, sum.nans += part.nans;
}

template <typename T>
GPU_KERNEL(THREADS)
compare_kernel(const T *a, const T *b, int64_t rows, int64_t cols, int64_t stride, uint32_t unwritten, bool sparse, compare_part *out)
{
	GPU_SHARED(compare_part, parts, THREADS);
	compare_part mine = {};
	gpu_wait_previous();
	gpu_start_next();
	const int64_t values = rows * cols, step = (int64_t)gridDim.x * THREADS;
	for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < values; i += step) {
		const int64_t row = i / cols, at = row * stride + (i - row * cols);
		const T value = a[at];
		mine.hash += gpu_mix64((uint64_t)i << 32 | bits_of(value));
		look_at<T>(mine, value, b ? b[at] : value, unwritten, sparse);
	}
	parts[threadIdx.x] = mine;
	gpu_sync();
	if (threadIdx.x) return;
	for (int t = 1; t < THREADS; t++) add_part(mine, parts[t]);
	out[blockIdx.x] = mine;
}

/* ---- launcher */

template <typename T> static gpu_error launch(const struct gpu_context *context, const struct compare_args *c, compare_part *parts, unsigned blocks)
{
	return GPU_LAUNCH((compare_kernel<T>), dim3(blocks), dim3(THREADS), 0, context->stream, (const T *)c->a, (const T *)c->b, c->rows, c->cols, c->stride,
	                  c->unwritten, c->sparse, parts);
}

enum status compare_launch(const struct gpu_context *context, const struct compare_args *args, struct compare_part *parts, unsigned blocks, struct error *err)
{
	const gpu_error code = args->dtype == DTYPE_BF16  ? launch<bf16>(context, args, parts, blocks)
	                       : args->dtype == DTYPE_F16 ? launch<f16>(context, args, parts, blocks)
	                                                  : launch<float>(context, args, parts, blocks);
	return gpu_check(code, "compare", err);
}
