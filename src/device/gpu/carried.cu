/* carried.cu: the halves of a carried sum as kernels of their own; carried_device.h says what they do. Thread t of the grid has packet t, counted through all
 * rows. Blocks do not wait for blocks of their own launch, so there may be more than run at once. Bound: latency of one store over the link. */
#include "device/gpu/carried_device.h"

#define CARRIED_THREADS 256

template <typename T> GPU_KERNEL(CARRIED_THREADS) carried_send_kernel(GPU_PARAMETER carried_sum s, const T *partial, int64_t stride)
{
	GPU_SHARED(uint32_t, shared, 3);
	gpu_start_next();
	gpu_wait_previous();
	if (threadIdx.x == 0) carried_take_send(s.view, shared);
	gpu_sync();
	const p2p_use use = p2p_taken(s.view, shared);
	if (!use.number) return;
	if (blockIdx.x == 0) carried_announce(s.view, shared);
	const int row_items = s.cols / CARRIED_GROUP * carried<T>::group, item = (int)(blockIdx.x * blockDim.x + threadIdx.x), at = item % row_items;
	if (item >= s.rows * row_items) return;
	const int words = carried_count<T>(at) / p2p_word<T>::elements;
	const uint32_t *from = (const uint32_t *)(partial + item / row_items * stride + carried_column<T>(at));
	uint32_t data[PACKET_WORDS] = {};
	GPU_UNROLL for (int i = 0; i < PACKET_WORDS; i++)
		if (i < words) data[i] = from[i];
	carried_put(s.view, use, item, data);
}

template <typename T>
GPU_KERNEL(CARRIED_THREADS) carried_receive_kernel(GPU_PARAMETER carried_sum s, const float *x, int64_t x_stride, float *out, int64_t out_stride)
{
	constexpr int E = carried<T>::elements;
	GPU_SHARED(uint32_t, shared, 2);
	if (threadIdx.x == 0) carried_take_receive(s.view, shared);
	gpu_sync();
	gpu_start_next();
	const p2p_use use = p2p_taken(s.view, shared);
	const int row_items = s.cols / CARRIED_GROUP * carried<T>::group, items = s.rows * row_items, item = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	const int row = item / row_items, at = item % row_items;
	float before[E] = {}, bias[E] = {}, sum[1][E];
	packet_words own[1];
	bool alive = use.number != 0;
	carried_get<1>(s.view, use, s.view.rank, item, 0, items, own, &alive);
	carried_add<T, 1>(s.view, use, item, 0, items, own, &alive, sum);
	if (alive && item < items) {
		carried_load_residual<T>(x + row * x_stride, at, before);
		if (s.bias) carried_load<T>(s.bias, at, bias);
		GPU_UNROLL for (int i = 0; i < E; i++)
			if (i < carried_count<T>(at)) out[row * out_stride + carried_column<T>(at) + i] = gpu_add(before[i], s.bias ? gpu_add(sum[0][i], bias[i]) : sum[0][i]);
	}
	gpu_wait_previous();
	if (alive && blockIdx.x == 0 && threadIdx.x < GPU_WARP) carried_end(s.view);
}

/* Fewer than P2P_TICKETS for any row that a model has. */
static unsigned carried_blocks(const struct carried_sum *s)
{
	const int items = s->rows * (s->cols / CARRIED_GROUP) * carried_group_packets(s->dtype);
	return (unsigned)((items + CARRIED_THREADS - 1) / CARRIED_THREADS);
}

enum status carried_send(const struct gpu_context *context, const struct carried_sum *sum, const void *partial, int64_t stride, struct error *err)
{
	const dim3 grid(carried_blocks(sum)), block(CARRIED_THREADS);
#define SEND(T) GPU_LAUNCH((carried_send_kernel<T>), grid, block, 0, context->stream, *sum, (const T *)partial, stride)
	gpu_error code = sum->dtype == DTYPE_F32 ? SEND(float) : sum->dtype == DTYPE_F16 ? SEND(f16) : SEND(bf16);
#undef SEND
	return gpu_check(code, "launch of carried_send", err);
}

enum status carried_receive(const struct gpu_context *context, const struct carried_sum *sum, const struct tensor *x, const struct tensor *out, struct error *err)
{
	const dim3 grid(carried_blocks(sum)), block(CARRIED_THREADS);
#define RECEIVE(T) \
	GPU_LAUNCH((carried_receive_kernel<T>), grid, block, 0, context->stream, *sum, (const float *)x->data, x->row_stride, (float *)out->data, out->row_stride)
	gpu_error code = sum->dtype == DTYPE_F32 ? RECEIVE(float) : sum->dtype == DTYPE_F16 ? RECEIVE(f16) : RECEIVE(bf16);
#undef RECEIVE
	return gpu_check(code, "launch of carried_receive", err);
}

gpu_error carried_preload(enum dtype dtype)
{
#define LOAD(T, code) ((code) == GPU_OK ? gpu_preload((carried_receive_kernel<T>)) : (code))
	if (dtype == DTYPE_F32) return LOAD(float, gpu_preload((carried_send_kernel<float>)));
	return dtype == DTYPE_F16 ? LOAD(f16, gpu_preload((carried_send_kernel<f16>))) : LOAD(bf16, gpu_preload((carried_send_kernel<bf16>)));
#undef LOAD
}
