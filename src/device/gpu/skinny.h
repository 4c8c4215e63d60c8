/* skinny.h: the tensor-core kernel for 1 to 64 rows of x (gemm_skinny_cuda.cu), with what a decode step puts before and behind a linear. Valid C17 and C++17.
 *
 * Builds without that file have inline answers that say no.
 */
#ifndef TANDEM_DEVICE_GPU_SKINNY_H
#define TANDEM_DEVICE_GPU_SKINNY_H

#include "device/gpu/linear.h"

enum skinny_ending {
	SKINNY_STORE,  /* y = sums (+ bias), or y += */
	SKINNY_SWIGLU, /* W: gate rows, then as many up rows; y [m][n/2] = silu(gate) * up */
	SKINNY_ROPE    /* W: q, k and v rows of whole heads; q rotated to y, k rotated and v to the cache */
};

/* Where ROPE puts heads. The cache is that of one layer: [block][k|v][kv_head][block_tokens][head_dim]. */
struct skinny_rope {
	int q_heads, kv_heads, head_dim; /* all of a head is rotated */
	const float *cos_sin;            /* [m][head_dim] */
	const int32_t *kv_slot;          /* [m] */
	void *cache;
	int block_tokens;
};

/* x = rms_norm of f32 rows, made by every block for itself. */
struct skinny_norm {
	const float *x; /* [m][k]; NULL: problem.x holds the input */
	int64_t stride;
	const float *weight;
	float eps;
};

struct skinny_problem {
	struct gemm_problem gemm; /* n: rows of W */
	enum skinny_ending ending;
	struct skinny_rope rope;
	struct skinny_norm norm;
};

/* How the work is cut. */
struct skinny_shape {
	int rows;   /* of W in a tile: 16, 32, 64, 128 */
	int splits; /* blocks of a cluster that share K: 1, 2, 4 */
	int blocks; /* at most; 0: one for each multiprocessor */
	int stages; /* of the ring; 0: as many as a block may have beside another of its kind */
	bool early; /* the next kernel is let in at once, not when the last copy has been asked for */
};

#ifdef __cplusplus
extern "C" {
#endif
#ifdef GPU_CUDA
bool skinny_can(const struct gpu_context *context, const struct skinny_problem *problem);
/* rows 0: another family is faster. */
struct skinny_shape skinny_default(const struct gpu_context *context, const struct skinny_problem *problem);
/* UNSUPPORTED where the shape cannot compute the problem. */
enum status skinny_launch(const struct gpu_context *context, const struct skinny_problem *problem, const struct skinny_shape *shape, struct error *err);
#else
static inline bool skinny_can(const struct gpu_context *context, const struct skinny_problem *problem)
{
	(void)context, (void)problem;
	return false;
}
static inline struct skinny_shape skinny_default(const struct gpu_context *context, const struct skinny_problem *problem)
{
	(void)context, (void)problem;
	struct skinny_shape none = {0, 0, 0, 0, false};
	return none;
}
static inline enum status skinny_launch(const struct gpu_context *context, const struct skinny_problem *problem, const struct skinny_shape *shape,
                                        struct error *err)
{
	(void)context, (void)problem, (void)shape;
	return FAIL(err, UNSUPPORTED, "skinny gemm: no tensor-core kernel in this build");
}
#endif
#ifdef __cplusplus
}
#endif

#endif
