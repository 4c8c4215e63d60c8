/* ranks.cu: a small collective of several devices: what the seeded scheduler is tried on. */
#include "device/gpu/gpu.h"
#include "gpu/emu/kernels.h"

/* Block b sums elements b, b + blocks, … . A flag is set by thread 0 after the block's barrier and a fence. */
GPU_KERNEL(64) sum_kernel(ranks_view v)
{
	GPU_SHARED(uint32_t, stop, 1);
	const int b = (int)blockIdx.x, t = (int)threadIdx.x, step = v.blocks * (int)blockDim.x;
	gpu_wait_previous();
	for (int r = 0; r < v.ranks; r++)
		for (int i = b * (int)blockDim.x + t; i < v.count; i += step) v.inbox[r][v.rank * v.count + i] = v.own[i];
	gpu_sync();
	if (t == 0) {
		stop[0] = 0;
		gpu_fence_system();
		for (int r = 0; r < v.ranks; r++) gpu_store_release(&v.flags[r][v.rank * v.blocks + b], v.generation);
		for (int r = 0; r < v.ranks && !v.forgets_to_wait; r++)
			while ((int)(gpu_load_acquire(&v.flags[v.rank][r * v.blocks + b]) - v.generation) < 0 && !stop[0]) {
				gpu_spin_pause();
				if (gpu_load_volatile(v.abort)) stop[0] = 1;
			}
	}
	gpu_sync();
	if (stop[0]) {
		gpu_atomic_add(v.gave_up, 1u);
		return;
	}
	for (int i = b * (int)blockDim.x + t; i < v.count; i += step) {
		float sum = 0;
		for (int r = 0; r < v.ranks; r++) sum += v.inbox[v.rank][r * v.count + i];
		v.sum[i] = sum;
	}
}

extern "C" gpu_error ranks_sum(struct ranks_view view, gpu_stream stream)
{
	return GPU_LAUNCH(sum_kernel, (unsigned)view.blocks, 64, 0, stream, view);
}
