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
#define GEMM_MAX_CANDIDATES 32
#define GEMM_ALGO_NAME_BYTES 88

/* What the library calls an algorithm: bytes that mean something to the same version of the same library only. */
struct gemm_algo {
	_Alignas(8) unsigned char bytes[GEMM_ALGO_BYTES];
	size_t workspace_bytes;
};

/* *out is NULL, and the status OK, where this machine has no such library; the log says what was looked for. */
enum status gemm_library_create(struct gemm_library **out, const struct log *log, struct error *err);
void gemm_library_destroy(struct gemm_library **library);
/* What is loaded on this machine, with its version: "cublasLt 130100"; "" where it is not here. Opens the library if nobody has. Any thread. */
void gemm_library_version(char *text, size_t bytes);

/* What variants of this library are called: "cublasLt". */
extern const char gemm_library_variant[];
/* An algorithm by its attributes: "algo 66 tile 599 stages 36 split 1 cluster 2"; those that are 0 are left out. Means something to the same version of the
 * same library only. */
void gemm_algo_name(const struct gemm_library *library, const struct gemm_algo *algo, char text[GEMM_ALGO_NAME_BYTES]);
/* The algorithm of this name for operands of these types. BAD_INPUT: the name is no such name, or the library has no such algorithm. */
enum status gemm_algo_named(struct gemm_library *library, const char *name, enum dtype type, enum dtype y_type, struct gemm_algo *out, struct error *err);
/* UNSUPPORTED: the library says that it cannot compute this, or the stream's workspace is too small for it. Fills algo->workspace_bytes. */
enum status gemm_algo_check(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem, struct gemm_algo *algo,
                            struct error *err);

/* Problems whose rows lie between two of these, the upper one included, are given one algorithm: the next one above `rows`. */
int gemm_library_rows_after(int rows);

/* What gemm_library_run takes by itself, then the library's own candidates, best guess first, and up to 64 rows the first two with K cut in other ways.
 * Returns their number, 0 if it has none for this problem. */
int gemm_library_candidates(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem,
                            struct gemm_algo *out, int max);
/* One GEMM. algo NULL: the library's first choice, for few rows one without workspace, remembered. bias must have been added to y before (accumulate) or be absent.
 * *used: the algorithm. *done false: the library has no algorithm for this problem, and nothing was launched. */
enum status gemm_library_run(struct gemm_library *library, const struct gpu_context *context, const struct gemm_problem *problem, bool accumulate,
                             const struct gemm_algo *algo, struct gemm_algo *used, bool *done, struct error *err);

#endif
