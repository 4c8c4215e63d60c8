/* skinny.h: the tensor-core kernel for 1 to 64 rows of x (gemm_skinny_cuda.cu). Valid C17 and C++17.
 *
 * Builds without that file have inline answers that say no.
 */
#ifndef TANDEM_DEVICE_GPU_SKINNY_H
#define TANDEM_DEVICE_GPU_SKINNY_H

#include "device/gpu/linear.h"

/* How the work is cut. */
struct skinny_shape {
	int rows;   /* of W in a tile: 16, 32, 64, 128 */
	int splits; /* blocks of a cluster that share K: 1, 2, 4 */
	int blocks; /* at most; 0: one for each multiprocessor */
	int stages; /* of the ring; 0: as many as fit */
	bool early; /* the next kernel is let in at once, not when the last copy has been asked for */
};

#ifdef __cplusplus
extern "C" {
#endif
#ifdef GPU_CUDA
bool skinny_can(const struct gpu_context *context, const struct fused_problem *problem);
/* rows 0: another family is faster. */
struct skinny_shape skinny_default(const struct gpu_context *context, const struct fused_problem *problem);
/* UNSUPPORTED where the shape cannot compute the problem. */
enum status skinny_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct skinny_shape *shape, struct error *err);
#else
static inline bool skinny_can(const struct gpu_context *context, const struct fused_problem *problem)
{
	(void)context, (void)problem;
	return false;
}
static inline struct skinny_shape skinny_default(const struct gpu_context *context, const struct fused_problem *problem)
{
	(void)context, (void)problem;
	struct skinny_shape none = {0, 0, 0, 0, false};
	return none;
}
static inline enum status skinny_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct skinny_shape *shape,
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
