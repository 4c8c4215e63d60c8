/* moe_grouped.h: the experts' products on tensor cores (moe_grouped_cuda.cu). Valid C17 and C++17. Builds without that file have inline answers that say no. */
#ifndef TANDEM_DEVICE_GPU_MOE_GROUPED_H
#define TANDEM_DEVICE_GPU_MOE_GROUPED_H

#include "device/gpu/moe.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef GPU_CUDA
bool moe_grouped_can(const struct gpu_context *context, const struct moe_problem *p);
/* As moe_tile_up and moe_tile_down; tile_rows: 16, 32, 64 or 128. A span's columns are whole pieces of 16 bytes. */
enum status moe_grouped_up(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err);
enum status moe_grouped_down(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, const struct moe_span *span, struct error *err);
#else
static inline bool moe_grouped_can(const struct gpu_context *context, const struct moe_problem *p)
{
	(void)context, (void)p;
	return false;
}
static inline enum status moe_grouped_up(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err)
{
	(void)context, (void)p, (void)tile_rows;
	return FAIL(err, UNSUPPORTED, "grouped gemm: no tensor-core kernel in this build");
}
static inline enum status moe_grouped_down(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, const struct moe_span *span,
                                           struct error *err)
{
	(void)context, (void)p, (void)tile_rows, (void)span;
	return FAIL(err, UNSUPPORTED, "grouped gemm: no tensor-core kernel in this build");
}
#endif
#ifdef __cplusplus
}
#endif

#endif
