/* gemm_hip.h: hipBLASLt under neutral names, for library.c alone. Its interface is stable, but distributions ship the runtime without its headers:
 * what library.c needs of hipblaslt.h stands here. Compiled, never run by us. The emulated device, which has no matrix library, takes the same names with
 * nothing to load. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_GEMM_HIP_H
#define TANDEM_DEVICE_GPU_VENDOR_GEMM_HIP_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef GPU_EMU
#define GEMM_LIBRARY_NAMES NULL
#define GEMM_SYMBOL(name) "none" name
#define GEMM_VARIANT "none"
/* As in gemm_cuda.h. */
#define GEMM_WHOLE_SUM_ROWS 128
#define GEMM_WHOLE_SUM_OUTPUTS 2048
#else
#define GEMM_LIBRARY_NAMES "libhipblaslt.so.1", "libhipblaslt.so.0"
#define GEMM_SYMBOL(name) "hipblasLt" name
#define GEMM_VARIANT "hipblasLt"
/* As in gemm_cuda.h; not measured, so never. */
#define GEMM_WHOLE_SUM_ROWS 0
#define GEMM_WHOLE_SUM_OUTPUTS 0
#endif

typedef int gemm_status;
typedef void *gemm_handle;
typedef void *gemm_operation;
typedef void *gemm_layout;
typedef void *gemm_preference;
typedef int gemm_compute;
typedef int gemm_type;
typedef int gemm_transpose;
typedef int gemm_operation_attribute;
typedef int gemm_layout_attribute;
typedef int gemm_preference_attribute;
typedef struct {
	uint8_t data[16];
	size_t max_workspace_bytes;
} gemm_vendor_algo;
typedef struct {
	gemm_vendor_algo algo;
	size_t workspaceSize;
	gemm_status state;
	float wavesCount;
	int reserved[4];
} gemm_candidate;

#define GEMM_SUCCESS 0
#define GEMM_COMPUTE_F32 2
#define GEMM_F32 0
#define GEMM_F16 2
#define GEMM_BF16 14
#define GEMM_TRANSPOSED 112
#define GEMM_PLAIN 111
#define GEMM_OPERATION_TRANSA 0
#define GEMM_OPERATION_TRANSB 1
#define GEMM_LAYOUT_TYPE 2
#define GEMM_LAYOUT_ROWS 4
#define GEMM_LAYOUT_COLS 5
#define GEMM_LAYOUT_LD 6
#define GEMM_PREFERENCE_WORKSPACE 1
#define GEMM_PREFERENCE_LIST(X)
#define GEMM_ALIGNMENT_LIST(X)

/* What tells one algorithm from another: hipBLASLt numbers them, and the number lies in front. */
#define GEMM_ALGO_LIST(X) X(0, int32_t, "index")
#define GEMM_ALGO_SPLIT (-1) /* no attribute that cuts K */
#define GEMM_SPLIT_REDUCTION 0
#define GEMM_ALGO_FUNCTION_LIST(X)
struct gemm_algo_functions {
	char none;
};

static inline gemm_status gemm_algo_make(const struct gemm_algo_functions *f, gemm_handle handle, gemm_type in, gemm_type out, const int64_t *values,
                                         gemm_vendor_algo *algo)
{
	const int32_t index = (int32_t)values[0];
	(void)f, (void)handle, (void)in, (void)out;
	memset(algo, 0, sizeof *algo);
	memcpy(algo->data, &index, sizeof index);
	algo->max_workspace_bytes = (size_t)32 << 20;
	return GEMM_SUCCESS;
}
static inline void gemm_algo_values(const struct gemm_algo_functions *f, const gemm_vendor_algo *algo, int64_t *values)
{
	int32_t index;
	(void)f;
	memcpy(&index, algo->data, sizeof index);
	values[0] = index;
}
/* The library has no such question in C: the product itself says. */
static inline gemm_status gemm_algo_legal(const struct gemm_algo_functions *f, gemm_handle handle, gemm_operation operation, gemm_layout w, gemm_layout x,
                                          gemm_layout y, const gemm_vendor_algo *algo, size_t *workspace)
{
	(void)f, (void)handle, (void)operation, (void)w, (void)x, (void)y, (void)algo;
	*workspace = 0;
	return GEMM_SUCCESS;
}

/* 0: it does not say. `function`: GEMM_SYMBOL("GetVersion"). */
static inline long gemm_version(void *function, gemm_handle handle)
{
	gemm_status (*get)(gemm_handle, int *);
	int version = 0;
	*(void **)&get = function;
	return get(handle, &version) == GEMM_SUCCESS ? version : 0;
}

#endif
