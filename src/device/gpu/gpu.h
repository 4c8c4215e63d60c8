/* gpu.h: what every kernel source (.cu) includes: neutral device names, element types, wave and block reductions. C++17, C style.
 *
 * Rules of all kernels here.
 *   - The first thing that a kernel does before it reads or writes anything but weights is gpu_wait_previous(): launches overlap.
 *     gpu_start_next() is called once, as early as helps; it promises nothing about this kernel's results. As old as weights are a step's arrays
 *     (struct step_rows) and the keys of earlier steps: a step begins with a copy, and copies do not overlap with kernels.
 *     What the kernel before the last one wrote may be read as well if the last one calls gpu_start_next() behind its own gpu_wait_previous(), by loads that
 *     pass the first-level cache (moe_decode.cu does).
 *     Every path through a kernel waits, or leaves it to other blocks that surely do: who waits for this kernel counts on all before it.
 *   - The wave is GPU_WARP lanes wide, 32 or 64; nothing may assume which. All lanes of a wave take part in a shuffle.
 *   - Shared memory comes from GPU_SHARED or GPU_DYNAMIC_SHARED and is uninitialised.
 *   - Sums are in f32. Element types are float, bf16, f16 (below); a kernel over them is a template over T.
 *   - What only one vendor can compile (inline PTX, tensor cores) lies in a file of its own, FILE_cuda.cu, that the other builds leave out.
 */
#ifndef TANDEM_DEVICE_GPU_GPU_H
#define TANDEM_DEVICE_GPU_GPU_H

#include "base/dtype.h"
#include "device/gpu/context.h"
#include "device/gpu/runtime.h"
#include "device/ops.h"

struct bf16 {
	uint16_t bits;
};
struct f16 {
	uint16_t bits;
};

GPU_DEVICE float gpu_bits_to_f32(uint32_t bits)
{
	union {
		uint32_t u;
		float f;
	} v;
	v.u = bits;
	return v.f;
}
GPU_DEVICE uint32_t gpu_f32_to_bits(float value)
{
	union {
		float f;
		uint32_t u;
	} v;
	v.f = value;
	return v.u;
}
/* base/rng.h's rng_mix. */
GPU_DEVICE uint64_t gpu_mix64(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}
GPU_DEVICE float gpu_widen(float v)
{
	return v;
}
GPU_DEVICE float gpu_widen(bf16 v)
{
	return gpu_bits_to_f32((uint32_t)v.bits << 16);
}
GPU_DEVICE float gpu_widen(f16 v)
{
	return gpu_f16_to_f32(v.bits);
}
/* Rounds to nearest even. */
template <typename T> GPU_TEMPLATE T gpu_narrow(float v);
template <> GPU_TEMPLATE float gpu_narrow<float>(float v)
{
	return v;
}
template <> GPU_TEMPLATE bf16 gpu_narrow<bf16>(float v)
{
	bf16 r;
	r.bits = gpu_f32_to_bf16(v);
	return r;
}
template <> GPU_TEMPLATE f16 gpu_narrow<f16>(float v)
{
	f16 r;
	r.bits = gpu_f32_to_f16(v);
	return r;
}

/* tanh by one power of 2. The error is one of absolute value, a few units of 1: what is capped or multiplied by 1 + tanh wants no more. */
GPU_DEVICE float gpu_tanh(float x)
{
	return 1.0f - 2.0f / (exp2f(x * 2.88539008f) + 1.0f);
}

/* g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) */
GPU_DEVICE float gpu_gelu(float g)
{
	return g / (1.0f + expf(-1.59576912f * gpu_fma(0.044715f * g, g * g, g)));
}

/* Elements of T in 16 bytes. */
template <typename T> struct gpu_lanes {
	static constexpr int count = 16 / (int)sizeof(T);
};
/* 16 bytes of T widened into out[count]. */
template <typename T> GPU_TEMPLATE void gpu_widen16(gpu_vec16 v, float *out);
template <> GPU_TEMPLATE void gpu_widen16<float>(gpu_vec16 v, float *out)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) out[i] = gpu_bits_to_f32(v.x[i]);
}
template <> GPU_TEMPLATE void gpu_widen16<bf16>(gpu_vec16 v, float *out)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) {
		out[2 * i] = gpu_bits_to_f32(v.x[i] << 16);
		out[2 * i + 1] = gpu_bits_to_f32(v.x[i] & 0xffff0000u);
	}
}
template <> GPU_TEMPLATE void gpu_widen16<f16>(gpu_vec16 v, float *out)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) {
		out[2 * i] = gpu_f16_to_f32((uint16_t)(v.x[i] & 0xffff));
		out[2 * i + 1] = gpu_f16_to_f32((uint16_t)(v.x[i] >> 16));
	}
}

/* Sum and maximum over the wave; every lane gets the same bits (a butterfly of the same tree for every lane). */
GPU_DEVICE float gpu_warp_sum(float v)
{
	GPU_UNROLL for (int mask = GPU_WARP / 2; mask > 0; mask /= 2) v += gpu_shfl_xor(v, mask);
	return v;
}
GPU_DEVICE float gpu_warp_max(float v)
{
	GPU_UNROLL for (int mask = GPU_WARP / 2; mask > 0; mask /= 2) v = fmaxf(v, gpu_shfl_xor(v, mask));
	return v;
}

/* Over the block (one dimension, whole waves, at most 1024 threads); every thread gets the result. `scratch`: GPU_SHARED float [32]; may be used again
 * for the next reduction at once. */
GPU_DEVICE float gpu_block_sum(float v, float *scratch)
{
	const int lane = (int)threadIdx.x % GPU_WARP, wave = (int)threadIdx.x / GPU_WARP, waves = (int)blockDim.x / GPU_WARP;
	v = gpu_warp_sum(v);
	if (waves == 1) return v;
	gpu_sync();
	if (lane == 0) scratch[wave] = v;
	gpu_sync();
	float total = 0;
	for (int w = 0; w < waves; w++) total += scratch[w];
	return total;
}

#endif
