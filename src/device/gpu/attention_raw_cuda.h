/* attention_raw_cuda.h: what attention_in leaves to decode_tensor (struct attention_raw): norms of heads, rotation, the new key's and value's way into the cache. */
#ifndef TANDEM_DEVICE_GPU_ATTENTION_RAW_CUDA_H
#define TANDEM_DEVICE_GPU_ATTENTION_RAW_CUDA_H

#include "device/gpu/attention_device.h"
#include "device/gpu/rows.h"
#include "device/gpu/tensor_cuda.h"

template <typename T> GPU_TEMPLATE void pack_piece(gpu_vec16 &piece, const float *v)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) piece.x[i] = tensor_pack<T>(v[2 * i], v[2 * i + 1]);
}

/* Pieces j and j + HALF of a lane are pairs: cosines and sines of 32 j + 8 c ... of them. */
template <typename T, int HALF> GPU_TEMPLATE void rotate_pieces(gpu_vec16 *piece, const float *angles, int c)
{
	GPU_UNROLL for (int j = 0; j < HALF; j++) {
		float lo[8], hi[8], cosine[8], sine[8];
		gpu_load<8>(angles + 32 * j + 8 * c, cosine);
		gpu_load<8>(angles + 32 * (HALF + j) + 8 * c, sine);
		gpu_widen16<T>(piece[j], lo);
		gpu_widen16<T>(piece[j + HALF], hi);
		GPU_UNROLL for (int e = 0; e < 8; e++) {
			const float turned = gpu_fma(hi[e], cosine[e], gpu_mul(lo[e], sine[e]));
			lo[e] = gpu_fma(lo[e], cosine[e], -gpu_mul(hi[e], sine[e]));
			hi[e] = turned;
		}
		pack_piece<T>(piece[j], lo);
		pack_piece<T>(piece[j + HALF], hi);
	}
}

/* Norm and rotation of a head's row; lane (g, c) holds the pieces c, c + 4, ... of row g. Rounded where a pass of its own would leave it. */
template <typename T, int DIM> GPU_TEMPLATE void make_head(gpu_vec16 *piece, const attention_raw &raw, const float *norm, int row)
{
	const int c = (int)threadIdx.x % 4;
	const float *angles = raw.cos_sin + (int64_t)row * 2 * raw.half;
	float v[8], w[8], sum = 0;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		gpu_widen16<T>(piece[j], v);
		GPU_UNROLL for (int e = 0; e < 8; e++) sum = gpu_fma(v[e], v[e], sum);
	}
	sum += gpu_shfl_xor(sum, 1);
	sum += gpu_shfl_xor(sum, 2);
	const float r = 1.0f / sqrtf(sum / (float)DIM + raw.eps);
	GPU_UNROLL for (int j = 0; norm && j < DIM / 32; j++) {
		gpu_load<8>(norm + 32 * j + 8 * c, w);
		gpu_widen16<T>(piece[j], v);
		GPU_UNROLL for (int e = 0; e < 8; e++) v[e] = v[e] * r * w[e];
		pack_piece<T>(piece[j], v);
	}
	if (raw.half == 32) rotate_pieces<T, 1>(piece, angles, c);
	if (raw.half == 64) rotate_pieces<T, DIM >= 128 ? 2 : 1>(piece, angles, c);
	if (raw.half == 128) rotate_pieces<T, DIM >= 256 ? 4 : 1>(piece, angles, c);
}

/* The row's own key, made of what its linear gave, and its value: to where kv_slot says, if `store`, and to shared memory: fresh, pieces of the key and behind them of
 * the value. Lane: U neighbouring columns of the key. */
template <typename T, int DIM> GPU_TEMPLATE void make_fresh(gpu_vec16 *fresh, const attention_params &p, int row, int kv_head, bool store)
{
	constexpr int U = DIM / 32;
	const attention_raw &raw = p.raw;
	const int lane = (int)threadIdx.x % 32, i = lane * U, slot = raw.kv_slot[row], block = slot / p.block_tokens;
	const bool turns = i < 2 * raw.half, low = i < raw.half;
	const int64_t at = (int64_t)row * p.q_stride + kv_head * DIM;
	const float *angles = raw.cos_sin + (int64_t)row * 2 * raw.half + (low ? i : i - raw.half);
	T *to = (T *)p.kv + attention_kv_offset(p, block, kv_head, slot - block * p.block_tokens), *key = (T *)fresh + i;
	float v[U], w[U], sum = 0;
	gpu_load<U>((const T *)raw.k + at + i, v);
	GPU_UNROLL for (int e = 0; e < U; e++) sum = gpu_fma(v[e], v[e], sum);
	const float r = 1.0f / sqrtf(gpu_warp_sum(sum) / (float)DIM + raw.eps);
	if (raw.k_norm) {
		gpu_load<U>(raw.k_norm + i, w);
		GPU_UNROLL for (int e = 0; e < U; e++) v[e] = gpu_widen(gpu_narrow<T>(v[e] * r * w[e]));
	}
	GPU_UNROLL for (int e = 0; e < U; e++) {
		const float other = gpu_shfl(v[e], (low ? lane + raw.half / U : lane - raw.half / U) & 31);
		if (!turns) continue;
		const float turned = gpu_mul(other, angles[raw.half + e]);
		v[e] = gpu_fma(v[e], angles[e], low ? -turned : turned);
	}
	gpu_store<U>(key, v);
	if (store) gpu_store<U>(to + i, v);
	if (lane < DIM / 8) {
		const gpu_vec16 value = gpu_load16_stream((const T *)raw.v + at + lane * 8);
		fresh[DIM / 8 + lane] = value;
		if (store) *(gpu_vec16 *)(to + (int64_t)p.kv_heads * p.block_tokens * DIM + lane * 8) = value;
	}
	__syncwarp();
}

#endif
