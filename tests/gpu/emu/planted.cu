/* planted.cu: kernels with one fault each, which can be turned off. out[i] = x[i] + x[neighbour in the block] is what all of them compute. */
#include "device/gpu/gpu.h"
#include "gpu/emu/kernels.h"

#define THREADS 128
#define N 1000

struct planted_args {
	const float *x, *host;
	float *out;
	bool bug;
};

GPU_DEVICE int neighbour(int t)
{
	return (t + 1) % THREADS;
}

/* One thread in each block is the one that goes wrong. */
GPU_DEVICE bool odd_one(const planted_args &a)
{
	return a.bug && threadIdx.x == 37;
}

/* The common shape: through shared memory with the barriers that it needs. */
GPU_KERNEL(THREADS) plain_kernel(planted_args a, enum planted which)
{
	GPU_SHARED(float, before, 16);
	GPU_SHARED(float, tile, THREADS);
	GPU_SHARED(uint32_t, votes, 1);
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	const bool odd = odd_one(a);
	float *const loose = tile; /* a pointer, of which the compiler knows no bounds */
	if (t < 16) before[t] = 0;
	if (t == 0) votes[0] = 0;
	if (!(which == PLANTED_UNWRITTEN_SHARED && odd)) tile[t] = a.x[i];
	if (which == PLANTED_SHARED_WRITE_BEYOND && odd) loose[t + THREADS - 37] = 1;
	if (which == PLANTED_TWO_WRITERS && odd) tile[t + 1] = 1;
	if (!(which == PLANTED_NO_BARRIER && a.bug)) gpu_sync();
	if (which == PLANTED_PLAIN_BESIDE_ATOMIC && odd) votes[0] = 7;
	else if (which == PLANTED_PLAIN_BESIDE_ATOMIC) gpu_atomic_add(&votes[0], 1u);
	float other = tile[neighbour(t)];
	if (which == PLANTED_SHARED_READ_BEYOND && odd) other += loose[t + THREADS - 30] + before[0];
	if (which == PLANTED_NO_SECOND_BARRIER) {
		if (!a.bug) gpu_sync();
		tile[t] = -1;
		gpu_sync();
	}
	a.out[i] = a.x[i] + other;
}

/* The second block finds what the first one left: the same place, written by other threads than its own. */
GPU_KERNEL(THREADS) left_kernel(planted_args a)
{
	GPU_SHARED(float, tile, THREADS);
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	if (!a.bug || blockIdx.x == 0) tile[t] = a.x[i];
	gpu_sync();
	a.out[i] = a.x[i] + tile[neighbour(t)];
}

GPU_KERNEL(THREADS) dynamic_kernel(planted_args a)
{
	GPU_DYNAMIC_SHARED(bytes);
	float *tile = (float *)bytes;
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	tile[t] = a.x[i];
	gpu_sync();
	a.out[i] = a.x[i] + tile[odd_one(a) ? THREADS : neighbour(t)];
}

GPU_KERNEL(THREADS) large_kernel(planted_args a)
{
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	GPU_SHARED(float, tile, 9000);
	tile[t] = a.x[i];
	if (a.bug) {
		GPU_SHARED(float, more, 60000);
		more[t] = tile[t];
	}
	gpu_sync();
	a.out[i] = a.x[i] + tile[neighbour(t)];
}

GPU_KERNEL(THREADS) global_kernel(planted_args a, enum planted which)
{
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	const bool odd = odd_one(a);
	float v = a.x[i] + a.x[i - t + neighbour(t)];
	if (which == PLANTED_GLOBAL_READ_BEYOND && odd) v += a.x[N];
	if (which == PLANTED_GLOBAL_WRITE_BEYOND && odd) ((float *)a.x)[N + 3] = v;
	if (which == PLANTED_GLOBAL_BEFORE && odd) v += a.x[-1];
	if (which == PLANTED_GLOBAL_STREAM_BEYOND && odd) v += gpu_bits_to_f32(gpu_load16_stream(a.x + N).x[0]);
	if (which == PLANTED_MISALIGNED && odd) v += gpu_bits_to_f32(gpu_load16_stream(a.x + 1).x[0]);
	if (which == PLANTED_HOST_MEMORY && odd) v += a.host[0];
	a.out[i] = v;
}

/* Lanes give their values to the next lane through shared memory. The neighbour of a wave's last lane comes from global memory. */
GPU_KERNEL(THREADS) wave_kernel(planted_args a)
{
	GPU_SHARED(float, tile, THREADS);
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	tile[t] = a.x[i];
	if (!a.bug) gpu_warp_sync();
	const bool last = t % GPU_WARP == GPU_WARP - 1;
	a.out[i] = a.x[i] + (last ? a.x[i - t + neighbour(t)] : tile[t + 1]);
}

GPU_KERNEL(THREADS) divergent_kernel(planted_args a, enum planted which)
{
	const int t = (int)threadIdx.x, i = (int)blockIdx.x * THREADS + t;
	const bool odd = odd_one(a);
	if (which == PLANTED_BARRIER_LEFT && odd) return;
	if (which == PLANTED_OTHER_BARRIER && odd) gpu_sync();
	else if (!(which == PLANTED_BARRIER_MISSED && odd)) gpu_sync();
	if (which == PLANTED_SHUFFLE_LEFT && odd) return;
	float v = a.x[i];
	if (which == PLANTED_OTHER_SHUFFLE && odd) v = gpu_shfl_down(v, 1);
	else if (!(which == PLANTED_SHUFFLE_MISSED && odd)) v = gpu_shfl_xor(v, 1);
	gpu_sync();
	(void)v;
	a.out[i] = a.x[i] + a.x[i - t + neighbour(t)];
}

extern "C" gpu_error planted_launch(enum planted which, bool bug, const float *x, float *out, const float *host, gpu_stream stream)
{
	const planted_args a = {x, host, out, bug};
	switch (which) {
	case PLANTED_LEFT_FROM_LAST_BLOCK: return GPU_LAUNCH(left_kernel, 2, THREADS, 0, stream, a);
	case PLANTED_DYNAMIC_BEYOND: return GPU_LAUNCH(dynamic_kernel, 2, THREADS, THREADS * sizeof(float), stream, a);
	case PLANTED_SHARED_TOO_LARGE: return GPU_LAUNCH(large_kernel, 2, THREADS, 0, stream, a);
	case PLANTED_NO_WAVE_BARRIER: return GPU_LAUNCH(wave_kernel, 2, THREADS, 0, stream, a);
	case PLANTED_GLOBAL_READ_BEYOND: case PLANTED_GLOBAL_WRITE_BEYOND: case PLANTED_GLOBAL_BEFORE: case PLANTED_GLOBAL_STREAM_BEYOND:
	case PLANTED_MISALIGNED: case PLANTED_HOST_MEMORY: return GPU_LAUNCH(global_kernel, 2, THREADS, 0, stream, a, which);
	case PLANTED_BARRIER_MISSED: case PLANTED_BARRIER_LEFT: case PLANTED_OTHER_BARRIER: case PLANTED_SHUFFLE_MISSED: case PLANTED_SHUFFLE_LEFT:
	case PLANTED_OTHER_SHUFFLE: return GPU_LAUNCH(divergent_kernel, 2, THREADS, 0, stream, a, which);
	default: return GPU_LAUNCH(plain_kernel, 2, THREADS, 0, stream, a, which);
	}
}

/* ---- 32 taken for the width */

GPU_KERNEL(THREADS) half_wave_kernel(const float *x, float *out)
{
	GPU_SHARED(float, part, THREADS / 32);
	const int t = (int)threadIdx.x;
	float v = gpu_warp_sum(x[blockIdx.x * THREADS + threadIdx.x]);
	if (t % GPU_WARP == 0) part[t / GPU_WARP] = v;
	gpu_sync();
	if (t < 32) {
		v = t < THREADS / GPU_WARP ? part[t] : 0;
		for (int mask = 16; mask > 0; mask /= 2) v += gpu_shfl_xor(v, mask);
		if (t == 0) out[blockIdx.x] = v;
	}
}

GPU_KERNEL(THREADS) wrong_sum_kernel(const float *x, float *out)
{
	GPU_SHARED(float, part, THREADS / 32);
	const int t = (int)threadIdx.x;
	float v = x[blockIdx.x * THREADS + threadIdx.x];
	for (int mask = 16; mask > 0; mask /= 2) v += gpu_shfl_xor(v, mask);
	if (t % GPU_WARP == 0) part[t / GPU_WARP] = v;
	gpu_sync();
	v = 0;
	for (int w = 0; w < THREADS / GPU_WARP; w++) v += part[w];
	if (t == 0) out[blockIdx.x] = v;
}

extern "C" gpu_error width_half_wave(const float *x, float *out, gpu_stream stream)
{
	return GPU_LAUNCH(half_wave_kernel, 2, THREADS, 0, stream, x, out);
}
extern "C" gpu_error width_wrong_sum(const float *x, float *out, gpu_stream stream)
{
	return GPU_LAUNCH(wrong_sum_kernel, 2, THREADS, 0, stream, x, out);
}

/* ---- order */

GPU_KERNEL(2 * GPU_WARP) waves_kernel(uint32_t *flag, uint32_t *out)
{
	if (threadIdx.x == 0) *flag = 1;
	if (threadIdx.x == GPU_WARP) *out = *flag;
}

GPU_KERNEL(32) blocks_kernel(uint32_t *count, uint32_t *out)
{
	if (threadIdx.x == 0 && gpu_atomic_add(count, 1u) == 0) *out = blockIdx.x;
}

extern "C" gpu_error order_of_waves(uint32_t *flag, uint32_t *out, gpu_stream stream)
{
	return GPU_LAUNCH(waves_kernel, 1, 2 * GPU_WARP, 0, stream, flag, out);
}
extern "C" gpu_error order_of_blocks(uint32_t *count, uint32_t *out, int blocks, gpu_stream stream)
{
	return GPU_LAUNCH(blocks_kernel, (unsigned)blocks, 32, 0, stream, count, out);
}
