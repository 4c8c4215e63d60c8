#include "device/gpu/peak.h"

#include "device/gpu/gpu.h"

#define PEAK_THREADS 512
#define PEAK_BLOCKS_PER_MULTIPROCESSOR 4
#define PEAK_UNROLL 4

/* Thread: every (gridDim * 512)th piece of 16 bytes, four in flight. */
GPU_KERNEL(PEAK_THREADS) peak_read_kernel(const gpu_vec16 *data, size_t pieces, uint32_t *out)
{
	gpu_wait_previous();
	const size_t step = (size_t)gridDim.x * PEAK_THREADS;
	size_t at = (size_t)blockIdx.x * PEAK_THREADS + threadIdx.x;
	uint32_t sum = 0;
	for (; at + (PEAK_UNROLL - 1) * step < pieces; at += PEAK_UNROLL * step) {
		gpu_vec16 v[PEAK_UNROLL];
		GPU_UNROLL for (int i = 0; i < PEAK_UNROLL; i++) v[i] = gpu_load16_stream(data + at + i * step);
		GPU_UNROLL for (int i = 0; i < PEAK_UNROLL; i++) sum ^= v[i].x[0] ^ v[i].x[1] ^ v[i].x[2] ^ v[i].x[3];
	}
	for (; at < pieces; at += step) {
		const gpu_vec16 v = gpu_load16_stream(data + at);
		sum ^= v.x[0] ^ v.x[1] ^ v.x[2] ^ v.x[3];
	}
	if (sum == 0x5eed1e55) gpu_atomic_add(out, sum); /* keeps the loads */
}

enum status gpu_peak_read(struct stream *stream, const void *data, size_t bytes, uint32_t *out, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const unsigned blocks = (unsigned)(context->props.multiprocessors * PEAK_BLOCKS_PER_MULTIPROCESSOR);
	return gpu_check(GPU_LAUNCH(peak_read_kernel, dim3(blocks), dim3(PEAK_THREADS), 0, context->stream, (const gpu_vec16 *)data, bytes / 16, out),
	                 "peak read", err);
}
