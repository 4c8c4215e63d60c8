/* gdn_chunk_cuda.h: what the kernels of the chunked gated delta net share: gdn_chunk_cuda.cu and gdn_scan_cuda.cu.
 *
 * Tiles are f16 images of shared memory as warpgroup products want it: [64 columns][rows] with 128-byte swizzle; but values lie as the scan's registers want
 * them: [half][wave][group of 16 rows][lane][8], the 8 being the A fragment of 16 of v's columns and 16 rows.
 * Rates of a chunk and head: [4][64] beta, beta e^G, e^G / sqrt(128), e^(G_last - G), then e^G_last. Rows behind a short chunk's end are zeros, beta too.
 */
#ifndef TANDEM_DEVICE_GPU_GDN_CHUNK_CUDA_H
#define TANDEM_DEVICE_GPU_GDN_CHUNK_CUDA_H

#include "device/gpu/gdn_chunk.h"
#include "device/gpu/rows.h"
#include "device/gpu/wide_cuda.h"

#define DIM GDN_CHUNK_DIM
#define CHUNK GDN_CHUNK
#define PANEL (CHUNK * 128)  /* bytes of a tile's 64 columns */
#define TILE (CHUNK * DIM)   /* elements */
#define SQUARE (CHUNK * CHUNK)
#define LOG2_E 1.44269504f
#define SCALE 0.08838834764831845f /* 1 / sqrt(DIM) */
#define VALUE_BITS 9         /* |v| of a tile is brought below 2^9: R and U are up to 64 times as large */

struct gdn_chunk_params {
	const void *qkvz, *ba;
	void *out;
	int64_t stride, ba_stride, out_stride;
	const float *conv, *a_log, *dt_bias, *norm;
	float eps;
	char *state; /* of this layer, in slot 0 */
	int64_t slot_bytes, inputs_at;
	const int32_t *row_start, *read, *write;
	int seqs, k_heads, v_heads, taps;
	f16 *keys, *queries, *values, *inverse, *pairs;
	float *rates, *peaks;
	bool fresh; /* this step wrote the states that are read */
};

GPU_DEVICE int gdn_first_place(const gdn_chunk_params &p, int seq)
{
	return p.row_start[seq] / CHUNK + seq;
}

/* x / (1 + e^-x), to 2^-21 of it. */
GPU_DEVICE float gdn_silu(float x)
{
	float r;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + tensor_exp2(-LOG2_E * x)));
	return x * r;
}

GPU_DEVICE float gdn_power(int exponent)
{
	return gpu_bits_to_f32((uint32_t)(exponent + 127) << 23);
}
/* The least e >= 0 such that x 2^-e < 2^bits. */
GPU_DEVICE int gdn_excess(float x, int bits)
{
	const int exponent = (int)(__float_as_uint(x) >> 23) - 127 + 1 - bits;
	return exponent > 0 ? exponent : 0;
}

#ifdef __cplusplus
extern "C" {
#endif
/* The scan of all sequences with a chunk or more; p: inputs and pairs are on their way. */
gpu_error gdn_scan_launch(const struct gpu_context *context, const struct gdn_chunk_params *p, enum dtype dtype);
#ifdef __cplusplus
}
#endif

#endif
