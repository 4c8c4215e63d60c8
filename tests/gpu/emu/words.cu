/* words.cu: kernels that write down what the device words give. */
#include "device/gpu/gpu.h"
#include "gpu/emu/kernels.h"

GPU_KERNEL(1024) index_kernel(uint32_t *out)
{
	const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	uint32_t *o = out + (size_t)(block * blockDim.x * blockDim.y * blockDim.z + thread) * 10;
	o[0] = threadIdx.x, o[1] = threadIdx.y, o[2] = threadIdx.z;
	o[3] = blockIdx.x, o[4] = blockIdx.y, o[5] = blockIdx.z;
	o[6] = blockDim.x, o[7] = blockDim.y, o[8] = gridDim.x, o[9] = gridDim.y;
}

extern "C" gpu_error words_index(uint32_t *out, unsigned grid[3], unsigned block[3], gpu_stream stream)
{
	return GPU_LAUNCH(index_kernel, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), 0, stream, out);
}

GPU_KERNEL(1024) waves_kernel(uint32_t *out)
{
	const uint32_t t = threadIdx.x;
	uint32_t *o = out + (size_t)t * 8;
	o[0] = gpu_shfl_xor(t, 1);
	o[1] = gpu_shfl_xor(t, GPU_WARP / 2);
	o[2] = gpu_shfl_down(t, 1);
	o[3] = gpu_shfl_down(t, GPU_WARP - 1);
	o[4] = gpu_shfl(t, 2);
	const unsigned long long odd = gpu_ballot(t % 2 == 1);
	o[5] = (uint32_t)odd, o[6] = (uint32_t)(odd >> 32);
	o[7] = (uint32_t)(gpu_shfl_xor((uint64_t)t << 32, 1) >> 32);
}

extern "C" gpu_error words_waves(uint32_t *out, int threads, gpu_stream stream)
{
	return GPU_LAUNCH(waves_kernel, 1, (unsigned)threads, 0, stream, out);
}

GPU_KERNEL(96) atomics_kernel(uint32_t *sums)
{
	const uint32_t n = blockIdx.x * blockDim.x + threadIdx.x;
	gpu_atomic_add(&sums[0], n);
	gpu_atomic_add((int *)&sums[1], -(int)n);
	gpu_atomic_add((float *)&sums[2], 0.5f);
	gpu_atomic_max(&sums[3], n);
	gpu_atomic_max((int *)&sums[4], -(int)n - 5);
	gpu_atomic_add((unsigned long long *)&sums[6], 1ull << 31);
}

extern "C" gpu_error words_atomics(uint32_t *sums, gpu_stream stream)
{
	return GPU_LAUNCH(atomics_kernel, 4, 96, 0, stream, sums);
}

GPU_KERNEL(256) convert_kernel(const float *in, uint16_t *out, float *back, uint16_t *bf, int n)
{
	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < n; i += (int)(gridDim.x * blockDim.x)) {
		out[i] = gpu_f32_to_f16(in[i]);
		back[i] = gpu_f16_to_f32(out[i]);
		bf[i] = gpu_f32_to_bf16(in[i]);
	}
}

extern "C" gpu_error words_convert(const float *in, uint16_t *out, float *back, uint16_t *bf, int n, gpu_stream stream)
{
	return GPU_LAUNCH(convert_kernel, 8, 256, 0, stream, in, out, back, bf, n);
}

GPU_KERNEL(64) arguments_kernel(words_large large, uint32_t *out)
{
	if (threadIdx.x < 60) out[threadIdx.x] = large.value[threadIdx.x];
}

extern "C" gpu_error words_arguments(struct words_large large, uint32_t *out, gpu_stream stream)
{
	return GPU_LAUNCH(arguments_kernel, 1, 64, 0, stream, large, out);
}

GPU_KERNEL(64) add_kernel(float *x, float v, int n)
{
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) x[i] += v;
}

extern "C" gpu_error words_add(float *x, float v, int n, gpu_stream stream)
{
	return GPU_LAUNCH(add_kernel, 1, 64, 0, stream, x, v, n);
}

GPU_KERNEL(32) dynamic_kernel(uint32_t *out, size_t shared)
{
	GPU_DYNAMIC_SHARED(bytes);
	uint32_t *words = (uint32_t *)bytes;
	if (threadIdx.x == 0) {
		words[shared / 4 - 1] = 17;
		out[0] = words[shared / 4 - 1];
	}
}

extern "C" gpu_error words_dynamic(uint32_t *out, size_t shared, bool allow, gpu_stream stream)
{
	if (allow) {
		const gpu_error code = gpu_allow_shared(dynamic_kernel, shared);
		if (code != GPU_OK) return code;
	}
	return GPU_LAUNCH(dynamic_kernel, 1, 32, shared, stream, out, shared);
}

GPU_KERNEL(1024) sized_kernel(uint32_t *out)
{
	if (threadIdx.x + threadIdx.y + threadIdx.z + blockIdx.x + blockIdx.y + blockIdx.z == 0) out[0] = 1;
}

extern "C" gpu_error words_sized(uint32_t *out, unsigned grid[3], unsigned block[3], gpu_stream stream)
{
	return GPU_LAUNCH(sized_kernel, dim3(grid[0], grid[1], grid[2]), dim3(block[0], block[1], block[2]), 0, stream, out);
}

GPU_KERNEL(64) barrier_kernel(uint32_t *count, uint32_t *out)
{
	gpu_sync();
	if (threadIdx.x == 0) {
		gpu_atomic_add(count, 1u);
		while (gpu_load_acquire(count) < gridDim.x) gpu_spin_pause();
		out[blockIdx.x] = gpu_load_volatile(count);
	}
	gpu_sync();
}

extern "C" gpu_error words_grid_barrier(uint32_t *count, uint32_t *out, int blocks, gpu_stream stream)
{
	return GPU_LAUNCH(barrier_kernel, (unsigned)blocks, 64, 0, stream, count, out);
}
