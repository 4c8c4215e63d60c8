/* sdpa.h: cuDNN's graph interface under neutral names, for attention_cudnn.c alone. Types and values only, our own declarations: the library is looked up at
 * run time, and nothing of it is needed to build. Values are those of its 9th major version, which promises to keep them. Where the library can be is
 * GPU_ATTENTION_LIBRARY of the vendor's header; NULL where there is none. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_SDPA_H
#define TANDEM_DEVICE_GPU_VENDOR_SDPA_H

#include <stddef.h>
#include <stdint.h>

#include "device/gpu/runtime.h"

#define SDPA_VARIANT "cudnn"
#define SDPA_SYMBOL(name) "cudnn" name

typedef int sdpa_status;
typedef void *sdpa_handle;
typedef void *sdpa_descriptor;
#define SDPA_SUCCESS 0
#define SDPA_VERSION_FIRST 91002L /* heads above 128 over pages, and without known faults of 9.10.0 and 9.10.1 */

enum sdpa_data { SDPA_FLOAT = 0, SDPA_HALF = 2, SDPA_INT32 = 4, SDPA_BFLOAT16 = 9, SDPA_BOOLEAN = 11 };

/* What an attribute's elements are. */
enum sdpa_type {
	SDPA_TYPE_HANDLE = 0,
	SDPA_TYPE_DATA = 1,
	SDPA_TYPE_BOOLEAN = 2,
	SDPA_TYPE_INT64 = 3,
	SDPA_TYPE_POINTER = 6,
	SDPA_TYPE_HEURISTIC = 8,
	SDPA_TYPE_POINTWISE = 14,
	SDPA_TYPE_DESCRIPTOR = 15,
	SDPA_TYPE_REDUCTION = 18
};

enum sdpa_kind {
	SDPA_POINTWISE = 0,
	SDPA_CONFIG = 3,
	SDPA_HEURISTIC = 4,
	SDPA_PLAN = 5,
	SDPA_POINTWISE_OP = 13,
	SDPA_GRAPH = 15,
	SDPA_PACK = 16,
	SDPA_TENSOR = 17,
	SDPA_MATMUL = 18,
	SDPA_MATMUL_OP = 19,
	SDPA_REDUCTION = 21,
	SDPA_REDUCTION_OP = 22,
	SDPA_PAGES_OP = 35
};

enum sdpa_pointwise {
	SDPA_ADD = 0,
	SDPA_MUL = 1,
	SDPA_DIV = 6,
	SDPA_SUB = 9,
	SDPA_EXP = 13,
	SDPA_LOG = 15,
	SDPA_GE = 303,
	SDPA_INDEX = 501,
	SDPA_SELECT = 601
};
enum sdpa_reduction { SDPA_REDUCE_ADD = 0, SDPA_REDUCE_MAX = 3 };
enum sdpa_heuristic { SDPA_HEURISTIC_A = 3 };

enum sdpa_attribute {
	SDPA_POINTWISE_MODE = 0,
	SDPA_POINTWISE_PRECISION = 1,
	SDPA_POINTWISE_AXIS = 9,
	SDPA_HEURISTIC_MODE = 200,
	SDPA_HEURISTIC_GRAPH = 201,
	SDPA_HEURISTIC_RESULTS = 202,
	SDPA_PLAN_HANDLE = 400,
	SDPA_PLAN_CONFIG = 401,
	SDPA_PLAN_WORKSPACE = 402,
	SDPA_POINTWISE_OP_WHAT = 750,
	SDPA_POINTWISE_OP_X = 751,
	SDPA_POINTWISE_OP_B = 752,
	SDPA_POINTWISE_OP_Y = 753,
	SDPA_POINTWISE_OP_T = 758,
	SDPA_GRAPH_HANDLE = 800,
	SDPA_GRAPH_OPS = 801,
	SDPA_TENSOR_ALIGNMENT = 900,
	SDPA_TENSOR_DATA = 901,
	SDPA_TENSOR_DIMENSIONS = 902,
	SDPA_TENSOR_STRIDES = 903,
	SDPA_TENSOR_ID = 906,
	SDPA_TENSOR_VIRTUAL = 907,
	SDPA_TENSOR_BY_VALUE = 908,
	SDPA_TENSOR_START = 913,
	SDPA_PACK_IDS = 1000,
	SDPA_PACK_POINTERS = 1001,
	SDPA_PACK_WORKSPACE = 1003,
	SDPA_MATMUL_PRECISION = 1500,
	SDPA_MATMUL_OP_A = 1520,
	SDPA_MATMUL_OP_B = 1521,
	SDPA_MATMUL_OP_C = 1522,
	SDPA_MATMUL_OP_WHAT = 1523,
	SDPA_MATMUL_OP_M = 1525,
	SDPA_MATMUL_OP_N = 1526,
	SDPA_MATMUL_OP_K = 1527,
	SDPA_REDUCTION_MODE = 1600,
	SDPA_REDUCTION_PRECISION = 1601,
	SDPA_REDUCTION_OP_X = 1610,
	SDPA_REDUCTION_OP_Y = 1611,
	SDPA_REDUCTION_OP_WHAT = 1612,
	SDPA_PAGES_OP_CONTAINER = 1950,
	SDPA_PAGES_OP_Y = 1951,
	SDPA_PAGES_OP_LENGTH = 1952,
	SDPA_PAGES_OP_TABLE = 1953
};

/* What is looked up: X(field, symbol without the prefix, result, parameters). */
#define SDPA_FUNCTION_LIST(X)                                                                                              \
	X(version, "GetVersion", size_t, (void))                                                                               \
	X(last_error, "GetLastErrorString", void, (char *, size_t))                                                            \
	X(create, "Create", sdpa_status, (sdpa_handle *))                                                                      \
	X(destroy, "Destroy", sdpa_status, (sdpa_handle))                                                                      \
	X(set_stream, "SetStream", sdpa_status, (sdpa_handle, gpu_stream))                                                     \
	X(descriptor_create, "BackendCreateDescriptor", sdpa_status, (int, sdpa_descriptor *))                                 \
	X(descriptor_destroy, "BackendDestroyDescriptor", sdpa_status, (sdpa_descriptor))                                      \
	X(descriptor_finish, "BackendFinalize", sdpa_status, (sdpa_descriptor))                                                \
	X(set, "BackendSetAttribute", sdpa_status, (sdpa_descriptor, int, int, int64_t, const void *))                         \
	X(get, "BackendGetAttribute", sdpa_status, (sdpa_descriptor, int, int, int64_t, int64_t *, void *))                    \
	X(execute, "BackendExecute", sdpa_status, (sdpa_handle, sdpa_descriptor, sdpa_descriptor))

#endif
