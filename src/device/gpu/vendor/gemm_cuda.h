/* gemm_cuda.h: cuBLASLt under neutral names, for library.c alone. Types and values only; the functions are looked up at run time. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_GEMM_CUDA_H
#define TANDEM_DEVICE_GPU_VENDOR_GEMM_CUDA_H

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <cublasLt.h>
#pragma GCC diagnostic pop

#define GEMM_LIBRARY_NAMES "libcublasLt.so.13", "libcublasLt.so.12"
#define GEMM_SYMBOL(name) "cublasLt" name

typedef cublasStatus_t gemm_status;
typedef cublasLtHandle_t gemm_handle;
typedef cublasLtMatmulDesc_t gemm_operation;
typedef cublasLtMatrixLayout_t gemm_layout;
typedef cublasLtMatmulPreference_t gemm_preference;
typedef cublasLtMatmulAlgo_t gemm_vendor_algo;
typedef cublasLtMatmulHeuristicResult_t gemm_candidate;
typedef cublasComputeType_t gemm_compute;
typedef cudaDataType_t gemm_type;
typedef cublasOperation_t gemm_transpose;
typedef cublasLtMatmulDescAttributes_t gemm_operation_attribute;
typedef cublasLtMatrixLayoutAttribute_t gemm_layout_attribute;
typedef cublasLtMatmulPreferenceAttributes_t gemm_preference_attribute;

#define GEMM_SUCCESS CUBLAS_STATUS_SUCCESS
#define GEMM_COMPUTE_F32 CUBLAS_COMPUTE_32F
#define GEMM_F32 CUDA_R_32F
#define GEMM_F16 CUDA_R_16F
#define GEMM_BF16 CUDA_R_16BF
#define GEMM_TRANSPOSED CUBLAS_OP_T
#define GEMM_PLAIN CUBLAS_OP_N
#define GEMM_OPERATION_TRANSA CUBLASLT_MATMUL_DESC_TRANSA
#define GEMM_OPERATION_TRANSB CUBLASLT_MATMUL_DESC_TRANSB
#define GEMM_LAYOUT_TYPE CUBLASLT_MATRIX_LAYOUT_TYPE
#define GEMM_LAYOUT_ROWS CUBLASLT_MATRIX_LAYOUT_ROWS
#define GEMM_LAYOUT_COLS CUBLASLT_MATRIX_LAYOUT_COLS
#define GEMM_LAYOUT_LD CUBLASLT_MATRIX_LAYOUT_LD
#define GEMM_PREFERENCE_WORKSPACE CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

/* What algorithms may do beside: X(attribute, type, value). Parts of a sum over K meet in f32, not in the type of the result. */
#define GEMM_PREFERENCE_LIST(X) X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)

/* Alignment of A, B, C and D that algorithms may count on: X(attribute). */
#define GEMM_ALIGNMENT_LIST(X)                   \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)

#endif
