/* gemm_emu.h: the emulated device has no matrix library: the names that library.c is written in, and nothing to load. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_GEMM_EMU_H
#define TANDEM_DEVICE_GPU_VENDOR_GEMM_EMU_H

#include <stddef.h>
#include <stdint.h>

#define GEMM_LIBRARY_NAMES NULL
#define GEMM_SYMBOL(name) "none" name

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

#endif
