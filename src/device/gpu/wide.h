/* wide.h: the tensor-core kernel for many rows of x (gemm_wide_cuda.cu). Valid C17 and C++17.
 *
 * Builds without that file have inline answers that say no.
 */
#ifndef TANDEM_DEVICE_GPU_WIDE_H
#define TANDEM_DEVICE_GPU_WIDE_H

#include "device/gpu/linear.h"

/* How the work is cut. */
struct wide_shape {
	int blocks; /* of a cluster, which share rows of W: 1 or 2 */
};

#ifdef __cplusplus
extern "C" {
#endif
#ifdef GPU_CUDA
/* Whether there is such a cut. */
bool wide_has(const struct wide_shape *shape);
bool wide_can(const struct gpu_context *context, const struct fused_problem *problem);
/* blocks 0: another family is faster. */
struct wide_shape wide_default(const struct gpu_context *context, const struct fused_problem *problem);
/* UNSUPPORTED where the shape cannot compute the problem. */
enum status wide_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct wide_shape *shape, struct error *err);
#else
static inline bool wide_has(const struct wide_shape *shape)
{
	(void)shape;
	return false;
}
static inline bool wide_can(const struct gpu_context *context, const struct fused_problem *problem)
{
	(void)context, (void)problem;
	return false;
}
static inline struct wide_shape wide_default(const struct gpu_context *context, const struct fused_problem *problem)
{
	(void)context, (void)problem;
	struct wide_shape none = {0};
	return none;
}
static inline enum status wide_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct wide_shape *shape, struct error *err)
{
	(void)context, (void)problem, (void)shape;
	return FAIL(err, UNSUPPORTED, "wide gemm: no tensor-core kernel in this build");
}
#endif
#ifdef __cplusplus
}
#endif

#endif
