/* linear_device.h: what linears with an ending do with their sums; for the kernels of gemv_decode.cu and gemm_skinny_cuda.cu. */
#ifndef TANDEM_DEVICE_GPU_LINEAR_DEVICE_H
#define TANDEM_DEVICE_GPU_LINEAR_DEVICE_H

#include "device/gpu/gpu.h"
#include "device/gpu/linear.h"

/* One output, or pair of outputs: where it goes, and what its ending reads from memory, made while the sums are on their way. */
struct ending_item {
	void *out; /* NULL: there is no such output */
	float bias, bias_pair, before; /* before: y, where it is added to */
	float cosine, sine;
	bool rotate;
};

/* Where dimension (row % head_dim) of a head goes, `head` counted through q, k and v. */
template <typename T> GPU_TEMPLATE T *rope_target(const fused_problem &p, int token, int row, int head, int dimension)
{
	const linear_rope &r = p.rope;
	const int kv = head - r.q_heads, is_v = kv >= r.kv_heads;
	if (kv < 0) return (T *)p.gemm.y + token * p.gemm.y_stride + row;
	const int slot = r.kv_slot[token], block = slot / r.block_tokens;
	const int64_t at = ((int64_t)block * 2 + is_v) * r.kv_heads + (is_v ? kv - r.kv_heads : kv);
	return (T *)r.cache + (at * r.block_tokens + slot - block * r.block_tokens) * r.head_dim + dimension;
}

/* row, row_pair: of W. */
template <typename T> GPU_TEMPLATE ending_item fetch_ending(const fused_problem &p, int token, int row, int row_pair)
{
	ending_item item = {NULL, 0, 0, 0, 0, 0, false};
	if (token >= p.gemm.m || row >= p.gemm.n) return item;
	const int64_t at = token * p.gemm.y_stride + row;
	item.out = p.gemm.y_type == DTYPE_F32 ? (void *)((float *)p.gemm.y + at) : (void *)((T *)p.gemm.y + at);
	if (p.gemm.bias) item.bias = p.gemm.bias[row], item.bias_pair = p.gemm.bias[row_pair];
	if (p.gemm.accumulate) item.before = *(const float *)item.out;
	if (p.ending != LINEAR_ROPE) return item;
	const int head = row / p.rope.head_dim, dimension = row - head * p.rope.head_dim;
	const float *angles = p.rope.cos_sin + token * p.rope.head_dim + dimension;
	item.rotate = head < p.rope.q_heads + p.rope.kv_heads;
	item.cosine = angles[0], item.sine = angles[p.rope.head_dim / 2];
	item.out = rope_target<T>(p, token, row, head, dimension);
	return item;
}

/* a: the sum of the only, or first, output; b: that of its pair, where the ending takes pairs. */
template <typename T> GPU_TEMPLATE void finish_ending(const fused_problem &p, const ending_item &item, float a, float b)
{
	a += item.bias, b += item.bias_pair;
	if (p.ending == LINEAR_ROPE) {
		const float lo = a, hi = b;
		if (item.rotate) a = gpu_fma(lo, item.cosine, -gpu_mul(hi, item.sine)), b = gpu_fma(hi, item.cosine, gpu_mul(lo, item.sine));
		((T *)item.out)[0] = gpu_narrow<T>(a);
		((T *)item.out)[p.rope.head_dim / 2] = gpu_narrow<T>(b);
		return;
	}
	if (p.ending == LINEAR_SWIGLU) a = (p.gelu ? gpu_gelu(a) : a / (1.0f + expf(-a))) * b;
	if (p.gemm.y_type == DTYPE_F32) *(float *)item.out = p.gemm.accumulate ? item.before + a : a;
	else *(T *)item.out = gpu_narrow<T>(a);
}

#endif
