/* random.cu: made-up weights, the same bits as src/model/random.c gives (which says what they are), made where they are needed. */
#include "device/gpu/random.h"

#include "device/gpu/gpu.h"

#define RANDOM_THREADS 256
#define RANDOM_MAX_BLOCKS 65536

GPU_DEVICE uint64_t row_key(uint64_t seed, uint64_t stream, uint64_t row)
{
	const uint64_t golden = 0x9e3779b97f4a7c15u;
	return gpu_mix64(gpu_mix64(gpu_mix64(seed + golden) ^ (stream + golden)) + row * golden);
}

GPU_DEVICE uint32_t mix32(uint32_t x)
{
	x = (x ^ x >> 16) * 0x7feb352du;
	x = (x ^ x >> 15) * 0x846ca68bu;
	return x ^ x >> 16;
}

/* Block: rows blockIdx.x, + gridDim.x, …; thread: columns threadIdx.x, + 256, …, one store each, so that any width and alignment will
 * do. Bound: the bytes written; at 16 bits a store it reaches a good part of that, which is 20 ms for 16 GB. */
template <typename T> GPU_KERNEL(RANDOM_THREADS) random_kernel(T *out, random_region a)
{
	gpu_wait_previous();
	gpu_start_next();
	for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
		const uint64_t key = row_key(a.seed, a.stream, (uint64_t)(a.row + i));
		for (int64_t j = threadIdx.x; j < a.cols; j += RANDOM_THREADS) {
			const int64_t col = a.col + j;
			const uint32_t two = mix32((uint32_t)key + (uint32_t)(col / 2) * 0x9e3779b9u) ^ (uint32_t)(key >> 32);
			const int16_t v = (int16_t)(col & 1 ? two >> 16 : two & 0xffff);
			out[i * a.cols + j] = gpu_narrow<T>(gpu_add(a.offset, gpu_mul((float)v + 0.5f, a.scale)));
		}
	}
}

template <typename T> static enum status random_launch(const struct gpu_context *context, void *out, const struct random_region *a, struct error *err)
{
	const unsigned blocks = (unsigned)(a->rows < RANDOM_MAX_BLOCKS ? a->rows : RANDOM_MAX_BLOCKS);
	return gpu_check(GPU_LAUNCH(random_kernel<T>, dim3(blocks), dim3(RANDOM_THREADS), 0, context->stream, (T *)out, *a), "random weights", err);
}

enum status gpu_random_rows(struct stream *stream, void *out, const struct random_region *region, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	if (region->rows <= 0 || region->cols <= 0) return STATUS_OK;
	switch (region->dtype) {
	case DTYPE_F32: return random_launch<float>(context, out, region, err);
	case DTYPE_F16: return random_launch<f16>(context, out, region, err);
	case DTYPE_BF16: return random_launch<bf16>(context, out, region, err);
	default: return FAIL(err, UNSUPPORTED, "random weights of type %s", dtype_name(region->dtype));
	}
}
