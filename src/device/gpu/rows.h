/* rows.h: what the row-wise kernels share: packs of neighbouring elements, checks of arguments, dispatch over element types. */
#ifndef TANDEM_DEVICE_GPU_ROWS_H
#define TANDEM_DEVICE_GPU_ROWS_H

#include "device/gpu/gpu.h"

/* N neighbouring elements, loaded and stored in pieces of up to 16 bytes; aligned to their size, at most 16. */
template <typename T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) gpu_pack {
	T x[N];
};
template <int N, typename T> GPU_TEMPLATE void gpu_load(const T *p, float *out)
{
	const gpu_pack<T, N> pack = *(const gpu_pack<T, N> *)p;
	GPU_UNROLL for (int i = 0; i < N; i++) out[i] = gpu_widen(pack.x[i]);
}
template <int N, typename T> GPU_TEMPLATE void gpu_store(T *p, const float *in)
{
	gpu_pack<T, N> pack;
	GPU_UNROLL for (int i = 0; i < N; i++) pack.x[i] = gpu_narrow<T>(in[i]);
	*(gpu_pack<T, N> *)p = pack;
}

/* ---- launchers */

/* True if rows of `t` can be read in packs of `bytes`: first element and row stride are multiples of it. */
static inline bool gpu_rows_aligned(const struct tensor *t, size_t bytes)
{
	return (uintptr_t)t->data % bytes == 0 && (size_t)t->row_stride * dtype_bytes(t->dtype) % bytes == 0;
}

static inline NODISCARD enum status gpu_expect(const struct tensor *t, enum tensor_dist dist, int rows, int64_t cols, const char *what,
                                               struct error *err)
{
	TRY(tensor_expect(t, dist, what, err));
	if (!dtype_is_plain(t->dtype)) return FAIL(err, UNSUPPORTED, "%s: activations of type %s; F32, F16 and BF16 are supported", what, dtype_name(t->dtype));
	if (t->rows != rows || t->cols != cols)
		return FAIL(err, BAD_INPUT, "%s: tensor is [%d,%d], expected [%d,%lld]", what, t->rows, t->cols, rows, (long long)cols);
	if (rows < 0 || cols < 0 || t->row_stride < cols || (!t->data && rows > 0 && cols > 0))
		return FAIL(err, BAD_INPUT, "%s: tensor [%d,%d] with row stride %lld%s is malformed", what, t->rows, t->cols, (long long)t->row_stride,
		            t->data ? "" : " and no data");
	return STATUS_OK;
}

/* Runs the statement, which returns, with T the element type that `type` names. */
#define GPU_BY_DTYPE(type, T, what, err, ...)                                                      \
	switch (type) {                                                                               \
	case DTYPE_F32: {                                                                             \
		typedef float T;                                                                          \
		__VA_ARGS__;                                                                              \
	}                                                                                             \
	case DTYPE_F16: {                                                                             \
		typedef f16 T;                                                                            \
		__VA_ARGS__;                                                                              \
	}                                                                                             \
	case DTYPE_BF16: {                                                                            \
		typedef bf16 T;                                                                           \
		__VA_ARGS__;                                                                              \
	}                                                                                             \
	default: return FAIL(err, UNSUPPORTED, "%s: elements of type %s", what, dtype_name(type));    \
	}

static inline unsigned gpu_blocks(int64_t items, int per_block)
{
	return (unsigned)((items + per_block - 1) / per_block);
}
static inline int gpu_round_up(int n, int unit)
{
	return (n + unit - 1) / unit * unit;
}

#endif
