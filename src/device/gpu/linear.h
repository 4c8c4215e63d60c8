/* linear.h: what the kernels of one linear see, between linear.c (checks, choice) and the families of kernels. Valid C17 and C++17.
 *
 * Families: tile (any shape; one ascending fma chain per output, so its order depends on K alone), gemv (few rows, 16-byte loads), skinny
 * (1 to 64 rows, tensor cores; CUDA only), and the vendor's library (library.h). Each says by X_can what it takes; X_launch asserts it.
 */
#ifndef TANDEM_DEVICE_GPU_LINEAR_H
#define TANDEM_DEVICE_GPU_LINEAR_H

#include "device/gpu/context.h"
#include "device/ops.h"

#define GEMV_MAX_ROWS 16
#define SKINNY_MAX_ROWS 64

/* y[m][n] = x[m][k] W[n][k]^T (+ bias), or y += that. Strides in elements. x and w are of `type`, y of `type` or f32; y is f32 where it accumulates. */
struct gemm_problem {
	const void *x, *w;
	const float *bias; /* [n] or NULL */
	void *y;
	enum dtype type, y_type;
	int m, n, k;
	int64_t x_stride, w_stride, y_stride;
	bool accumulate;
};

/* The leaves of one span, added in tree order: `leaves` equal parts of k (base/sumtree.h). */
struct gemm_leaves {
	int leaves;
	uint8_t merges[SUMTREE_MAX_LEAVES];
};

#ifdef __cplusplus
extern "C" {
#endif

/* By the family that suits the problem; m >= 1, n >= 1. */
enum status gemm_run(const struct gpu_context *context, const struct gemm_problem *problem, struct error *err);

/* ---- gemv.cu */

/* Ways to cut a gemv, for those who time them: STRIDED: a block of `threads` sums `rows` outputs, strided over K; WAVE: each wave sums `rows` outputs by
 * itself, `threads` in a block; LLMM1: as STRIDED, but every thread has exactly one 16-byte chunk of K, so that threads follow from K (one token row only). */
enum gemv_family { GEMV_STRIDED, GEMV_WAVE, GEMV_LLMM1 };
struct gemv_shape {
	enum gemv_family family;
	int rows;    /* STRIDED: 1, 2, 4; WAVE: 1, 2, 4; LLMM1: 2, 4, 8, 16 */
	int threads; /* ignored by LLMM1 */
};

bool gemv_can(const struct gpu_context *context, const struct gemm_problem *problem);
struct gemv_shape gemv_default(const struct gpu_context *context, const struct gemm_problem *problem);
/* UNSUPPORTED, with the limit that it breaks, where the shape cannot compute the problem; nothing is launched then. */
enum status gemv_check(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemv_shape *shape, struct error *err);
enum status gemv_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemv_shape *shape, struct error *err);

/* ---- gemm_tile.cu */

/* leaves NULL: one chain over k. */
enum status tile_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemm_leaves *leaves, struct error *err);
/* y[m][n] = bias, or += bias where the problem accumulates: for a library that has no f32 bias. */
enum status bias_fill_launch(const struct gpu_context *context, const struct gemm_problem *problem, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
