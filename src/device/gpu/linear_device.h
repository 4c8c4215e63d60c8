/* linear_device.h: what linears with an ending do with their sums; for the kernels of gemv_decode.cu and gemm_skinny_cuda.cu. */
#ifndef TANDEM_DEVICE_GPU_LINEAR_DEVICE_H
#define TANDEM_DEVICE_GPU_LINEAR_DEVICE_H

#include "device/gpu/gpu.h"
#include "device/gpu/linear.h"

/* One output, or pair of outputs, and what its ending reads from memory: fetched before the sums are there. */
struct ending_item {
	int token, row; /* row of W: of the only, or the first, output */
	bool inside;
	float bias, bias_pair, before; /* before: y, where it is added to */
	float cosine, sine;
	int slot;
};

GPU_DEVICE ending_item fetch_ending(const fused_problem &p, int token, int row, int row_pair)
{
	ending_item item = {token, row, token < p.gemm.m && row < p.gemm.n, 0, 0, 0, 0, 0, 0};
	if (!item.inside) return item;
	if (p.gemm.bias) item.bias = p.gemm.bias[row], item.bias_pair = p.gemm.bias[row_pair];
	if (p.gemm.accumulate) item.before = ((const float *)p.gemm.y)[token * p.gemm.y_stride + row];
	if (p.ending == LINEAR_ROPE) {
		const float *angles = p.rope.cos_sin + token * p.rope.head_dim + row % p.rope.head_dim;
		item.cosine = angles[0], item.sine = angles[p.rope.head_dim / 2], item.slot = p.rope.kv_slot[token];
	}
	return item;
}

template <typename T> GPU_TEMPLATE void store_ending(const gemm_problem &p, const ending_item &item, float v)
{
	const int64_t at = item.token * p.y_stride + item.row;
	if (p.y_type != DTYPE_F32) ((T *)p.y)[at] = gpu_narrow<T>(v);
	else ((float *)p.y)[at] = p.accumulate ? item.before + v : v;
}

/* The pair (lo, hi) of dimensions (i, i + head_dim/2) of one head: rotated if it is q or k, stored where it belongs. */
template <typename T> GPU_TEMPLATE void rope_ending(const fused_problem &p, const ending_item &item, float lo, float hi)
{
	const linear_rope &r = p.rope;
	const int half = r.head_dim / 2, head = item.row / r.head_dim, i = item.row % r.head_dim, kv = head - r.q_heads;
	T *out = (T *)p.gemm.y + item.token * p.gemm.y_stride + item.row;
	if (kv >= 0) {
		const int is_v = kv >= r.kv_heads;
		const int64_t at = ((int64_t)(item.slot / r.block_tokens) * 2 + is_v) * r.kv_heads + (is_v ? kv - r.kv_heads : kv);
		out = (T *)r.cache + (at * r.block_tokens + item.slot % r.block_tokens) * r.head_dim + i;
	}
	float a = lo, b = hi;
	if (kv < r.kv_heads) a = gpu_fma(lo, item.cosine, -gpu_mul(hi, item.sine)), b = gpu_fma(hi, item.cosine, gpu_mul(lo, item.sine));
	out[0] = gpu_narrow<T>(a);
	out[half] = gpu_narrow<T>(b);
}

/* a: the sum of item.row; b: that of its pair, where the ending takes pairs. */
template <typename T> GPU_TEMPLATE void finish_ending(const fused_problem &p, const ending_item &item, float a, float b)
{
	a += item.bias, b += item.bias_pair;
	if (p.ending == LINEAR_STORE) store_ending<T>(p.gemm, item, a);
	else if (p.ending == LINEAR_SWIGLU) store_ending<T>(p.gemm, item, a / (1.0f + expf(-a)) * b);
	else rope_ending<T>(p, item, a, b);
}

#endif
