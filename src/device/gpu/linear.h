/* linear.h: what the kernels of one linear see, between linear.c (checks, choice) and the families of kernels. Valid C17 and C++17.
 *
 * Families: tile (any shape; one ascending fma chain per output, so its order depends on K alone), gemv (few rows, 16-byte loads), decode (one row,
 * fused), skinny (1 to 32 rows, fused, tensor cores; CUDA only), wide (many rows, SwiGLU fused, tensor cores; CUDA only), and the vendor's library (library.h). Each says by
 * X_can what it takes; X_launch asserts it.
 */
#ifndef TANDEM_DEVICE_GPU_LINEAR_H
#define TANDEM_DEVICE_GPU_LINEAR_H

#include "device/gpu/context.h"
#include "device/ops.h"

#define GEMV_MAX_ROWS 16
#define SKINNY_MAX_ROWS 32

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

/* ---- what a decode step puts before and behind a linear, for kernels that do it in one */

enum linear_ending {
	LINEAR_STORE,  /* y = sums (+ bias), or y += */
	LINEAR_SWIGLU, /* W: gate rows, then as many up rows; y [m][n/2] = silu(gate) * up */
	LINEAR_ROPE    /* W: q, k and v rows of whole heads; q rotated to y, k rotated and v to the cache */
};

/* Where ROPE puts heads. The cache is that of one layer: [block][k|v][kv_head][block_tokens][head_dim]. */
struct linear_rope {
	int q_heads, kv_heads, head_dim; /* all of a head is rotated */
	const float *cos_sin;            /* [m][head_dim] */
	const int32_t *kv_slot;          /* [m] */
	void *cache;
	int block_tokens;
};

/* x = rms_norm of f32 rows, made by every block for itself. */
struct linear_norm {
	const float *x; /* [m][k]; NULL: problem.x holds the input */
	int64_t stride;
	const float *weight;
	float eps;
};

struct fused_problem {
	struct gemm_problem gemm; /* n: rows of W */
	enum linear_ending ending;
	bool gelu; /* SWIGLU: with gelu, in its tanh form, for silu */
	struct linear_rope rope;
	struct linear_norm norm;
};

#ifdef __cplusplus
extern "C" {
#endif

struct way_preference; /* ways.h */

/* Of span i; split NULL: one leaf, all of it. */
struct gemm_leaves gemm_leaves_of(const struct sum_split *split, int i);
/* BAD_INPUT, naming `what`, for a span that is empty or not within the rank's leaves. */
enum status gemm_spans_check(const struct sum_split *split, const char *what, struct error *err);

/* By the preferred way, or, where that is NULL, by the family that suits the problem; m >= 1, n >= 1. */
enum status gemm_run(const struct gpu_context *context, const struct gemm_problem *problem, const struct way_preference *preferred, struct error *err);
/* As gpu_linear, whose preferences do not matter: for a linear between a norm and an ending. */
enum status linear_run(struct stream *stream, const struct linear_args *args, const struct way_preference *preferred, struct error *err);

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
enum status gemv_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemv_shape *shape, struct error *err);

/* ---- gemv_decode.cu: one row of x, with what stands before and behind; K as long as shared memory holds it. */

bool decode_can(const struct gpu_context *context, const struct fused_problem *problem);
enum status decode_launch(const struct gpu_context *context, const struct fused_problem *problem, struct error *err);

/* ---- gemm_tile.cu */

/* leaves NULL: one chain over k. */
enum status tile_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemm_leaves *leaves, struct error *err);
/* y[m][n] = bias, or += bias where the problem accumulates: for a library that has no f32 bias. */
enum status bias_fill_launch(const struct gpu_context *context, const struct gemm_problem *problem, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
