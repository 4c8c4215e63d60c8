/* xccl_add.cu: the residual add behind the collective library's all-reduce. */
#include "comm/gpu/p2p_device.h"
#include "comm/gpu/xccl.h"

/* Thread t of the grid has the vectors t, t + threads, ... of 16 bytes of the sum, V elements; rows of the sum are aligned to 16 bytes, x may be
 * anything. Bound: memory, sum once and x twice. */
template <typename T> GPU_KERNEL(256) add_kernel(GPU_PARAMETER p2p_sum s)
{
	constexpr int V = gpu_lanes<T>::count;
	gpu_start_next();
	gpu_wait_previous();
	const int row_vectors = (s.cols + V - 1) / V, vectors = s.rows * row_vectors;
	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < vectors; i += (int)(gridDim.x * blockDim.x)) {
		const p2p_vector at = p2p_find<T>(s, i, row_vectors);
		float sum[V];
		gpu_widen16<T>(((const gpu_vec16 *)s.partial[0])[at.place], sum);
		p2p_update_x<V>(s, at.row, at.c, sum);
	}
}

template <typename T> static gpu_error launch_add(const p2p_sum &sum, gpu_stream stream)
{
	const int each = gpu_lanes<T>::count;
	const long long blocks = ((long long)sum.rows * ((sum.cols + each - 1) / each) + 255) / 256;
	return GPU_LAUNCH(add_kernel<T>, dim3(blocks < 2048 ? (unsigned)blocks : 2048), dim3(256), 0, stream, sum);
}

gpu_error xccl_launch_add(const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream)
{
	if (dtype == DTYPE_F32) return launch_add<float>(*sum, stream);
	return dtype == DTYPE_BF16 ? launch_add<bf16>(*sum, stream) : launch_add<f16>(*sum, stream);
}
