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
/* Few rows and enough outputs: algorithms that want no workspace are preferred. */
#define GEMM_WHOLE_SUM_ROWS 128 /* at most */
#define GEMM_WHOLE_SUM_OUTPUTS 2048 /* at least */

/* What tells one algorithm from another, the id first: X(attribute, type, name). A value of 0 is what the library takes by itself. */
#define GEMM_VARIANT "cublasLt"
#define GEMM_ALGO_LIST(X)                                        \
	X(CUBLASLT_ALGO_CONFIG_ID, int32_t, "algo")                   \
	X(CUBLASLT_ALGO_CONFIG_TILE_ID, uint32_t, "tile")             \
	X(CUBLASLT_ALGO_CONFIG_STAGES_ID, uint32_t, "stages")         \
	X(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, int32_t, "split")          \
	X(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, uint32_t, "reduction") \
	X(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, uint32_t, "swizzle")    \
	X(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, uint32_t, "custom")     \
	X(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, uint16_t, "inner")     \
	X(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, uint16_t, "cluster")
#define GEMM_ALGO_SPLIT 3 /* which of them cuts K; the next says how the parts meet */
#define GEMM_SPLIT_REDUCTION CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

#define GEMM_ALGO_FUNCTION_LIST(X)                                                                                                           \
	X(init, "MatmulAlgoInit", (gemm_handle, gemm_compute, gemm_type, gemm_type, gemm_type, gemm_type, gemm_type, int, gemm_vendor_algo *))   \
	X(set, "MatmulAlgoConfigSetAttribute", (gemm_vendor_algo *, cublasLtMatmulAlgoConfigAttributes_t, const void *, size_t))                 \
	X(get, "MatmulAlgoConfigGetAttribute", (const gemm_vendor_algo *, cublasLtMatmulAlgoConfigAttributes_t, void *, size_t, size_t *))       \
	X(check, "MatmulAlgoCheck",                                                                                                              \
	  (gemm_handle, gemm_operation, gemm_layout, gemm_layout, gemm_layout, gemm_layout, const gemm_vendor_algo *, gemm_candidate *))
struct gemm_algo_functions {
#define X(field, symbol, parameters) gemm_status(*field) parameters;
	GEMM_ALGO_FUNCTION_LIST(X)
#undef X
};

/* The algorithm of these values, in the order of the list, for inputs of type `in` and results of type `out`. */
static inline gemm_status gemm_algo_make(const struct gemm_algo_functions *f, gemm_handle handle, gemm_type in, gemm_type out, const int64_t *values,
                                         gemm_vendor_algo *algo)
{
	gemm_status code = f->init(handle, GEMM_COMPUTE_F32, GEMM_F32, in, in, out, out, (int)values[0], algo);
	const int64_t *value = values;
#define X(attribute, type, name)                                                                                                   \
	{                                                                                                                              \
		const type set = (type)*value++;                                                                                           \
		if (code == GEMM_SUCCESS && attribute != CUBLASLT_ALGO_CONFIG_ID) code = f->set(algo, attribute, &set, sizeof set);         \
	}
	GEMM_ALGO_LIST(X)
#undef X
	return code;
}
static inline void gemm_algo_values(const struct gemm_algo_functions *f, const gemm_vendor_algo *algo, int64_t *values)
{
#define X(attribute, type, name)                                                            \
	{                                                                                       \
		type got = 0;                                                                       \
		size_t size = 0;                                                                    \
		(void)f->get(algo, attribute, &got, sizeof got, &size);                             \
		*values++ = (int64_t)got;                                                           \
	}
	GEMM_ALGO_LIST(X)
#undef X
}
static inline gemm_status gemm_algo_legal(const struct gemm_algo_functions *f, gemm_handle handle, gemm_operation operation, gemm_layout w, gemm_layout x,
                                          gemm_layout y, const gemm_vendor_algo *algo, size_t *workspace)
{
	gemm_candidate result = {.workspaceSize = 0};
	gemm_status code = f->check(handle, operation, w, x, y, y, algo, &result);
	*workspace = result.workspaceSize;
	return code != GEMM_SUCCESS ? code : result.state;
}

/* 0: it does not say. `function`: GEMM_SYMBOL("GetVersion"). */
static inline long gemm_version(void *function, gemm_handle handle)
{
	(void)handle;
	size_t (*get)(void);
	*(void **)&get = function;
	return (long)get();
}

/* Alignment of A, B, C and D that algorithms may count on: X(attribute). */
#define GEMM_ALIGNMENT_LIST(X)                   \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)

#endif
