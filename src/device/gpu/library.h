/* library.h: the vendor's matrix library (cuBLASLt, hipBLASLt), loaded at run time so that the program starts without it.
 *
 * One gemm_library for each stream: it holds the handle, descriptors that are re-used, and a fixed table of the algorithms chosen so far, so that no
 * call after the first of a shape asks the library's heuristics, and none allocates device memory (the workspace is the stream's). Owner: the
 * rank worker. A first use while a graph is recorded is fine: choosing touches no stream.
 */
#ifndef TANDEM_DEVICE_GPU_LIBRARY_H
#define TANDEM_DEVICE_GPU_LIBRARY_H

#include "base/log.h"
#include "device/gpu/linear.h"

#define GEMM_ALGO_BYTES 64
#define GEMM_MAX_CANDIDATES 16

/* What the library calls an algorithm: bytes that mean something to the same version of the same library only. */
struct gemm_algo {
	_Alignas(8) unsigned char bytes[GEMM_ALGO_BYTES];
	size_t workspace_bytes;
};

/* *out is NULL, and the status OK, where this machine has no such library; the log says what was looked for. */
enum status gemm_library_create(struct gemm_library **out, const struct log *log, struct error *err);
void gemm_library_destroy(struct gemm_library **library);
/* Name and version of what was loaded: "libcublasLt.so.13 130100". */
const char *gemm_library_name(const struct gemm_library *library);

/* The library's own candidates, best guess first. Returns their number, 0 if it has none for this problem. */
int gemm_library_candidates(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem,
                            struct gemm_algo *out, int max);
/* One GEMM. algo NULL: the first candidate, remembered. bias must have been added to y before (accumulate) or be absent.
 * *done false: the library has no algorithm for this problem, and nothing was launched. */
enum status gemm_library_run(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem, bool accumulate,
                             const struct gemm_algo *algo, bool *done, struct error *err);

#endif
