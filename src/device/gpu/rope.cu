/* rope.cu: rotation of heads, keys and values into the cache, and all of that with the head norms in one pass over a row. */
#include "device/gpu/qkv.h"
#include "device/gpu/rows.h"

/* Where a row's keys go; values lie kv_heads * block_tokens * dim further on. Layout: [layer][block][k|v][kv_head][block_tokens][D]. */
struct cache_place {
	void *data; /* of the layer */
	int kv_heads, block_tokens, dim;
};

static cache_place place_of(const struct kv_cache *cache, int layer)
{
	const struct kv_layout *l = &cache->layout;
	cache_place p = {NULL, l->kv_heads, l->block_tokens, l->head_dim};
	p.data = (char *)cache->data + (size_t)layer * (size_t)l->blocks * 2 * (size_t)l->kv_heads * (size_t)l->block_tokens * (size_t)l->head_dim *
	                                   dtype_bytes(l->dtype);
	return p;
}

/* Element 0 of key (which 0) or value (which 1) of `head` in `slot`. */
template <typename T> GPU_TEMPLATE T *cache_row(cache_place p, int32_t slot, int which, int head)
{
	const int block = slot / p.block_tokens, offset = slot % p.block_tokens;
	return (T *)p.data + ((((int64_t)block * 2 + which) * p.kv_heads + head) * p.block_tokens + offset) * p.dim;
}

static enum status expect_cache(const struct kv_cache *cache, int layer, enum dtype dtype, int kv_heads, int head_dim, const char *what,
                                struct error *err)
{
	const struct kv_layout *l = &cache->layout;
	if (l->dtype != dtype || l->kv_heads != kv_heads || l->head_dim != head_dim || !cache->data || layer < 0 || layer >= l->layers || l->block_tokens < 1)
		return FAIL(err, BAD_INPUT, "%s: rows of %d heads of %d, %s, for layer %d of a cache of %d layers, %d heads of %d, %s, blocks of %d", what,
		            kv_heads, head_dim, dtype_name(dtype), layer, l->layers, l->kv_heads, l->head_dim, dtype_name(l->dtype), l->block_tokens);
	return STATUS_OK;
}

#define ROPE_THREADS 256

/* Thread: one pair (i, i + rotary / 2) of one head of one row; any shape and alignment. Bound: the bytes of the rotated columns, twice. */
template <typename T> GPU_KERNEL(ROPE_THREADS) rope_kernel(T *x, int64_t stride, int rows, int heads, int dim, int half, const float *cos_sin)
{
	gpu_wait_previous();
	gpu_start_next();
	const int64_t at = (int64_t)blockIdx.x * ROPE_THREADS + (int)threadIdx.x, per_row = (int64_t)heads * half;
	if (at >= rows * per_row) return;
	const int64_t row = at / per_row;
	const int head = (int)(at % per_row) / half, i = (int)(at % per_row) % half;
	const float c = cos_sin[row * 2 * half + i], s = cos_sin[row * 2 * half + half + i];
	x += row * stride + head * dim + i;
	const float a = gpu_widen(x[0]), b = gpu_widen(x[half]);
	x[0] = gpu_narrow<T>(gpu_fma(a, c, -gpu_mul(b, s)));
	x[half] = gpu_narrow<T>(gpu_fma(b, c, gpu_mul(a, s)));
}

template <typename T> static enum status rope_launch(struct stream *stream, const struct rope_args *a, struct error *err)
{
	const int half = a->rotary_dim / 2;
	const dim3 grid(gpu_blocks((int64_t)a->x.rows * a->heads * half, ROPE_THREADS));
	return gpu_check(GPU_LAUNCH(rope_kernel<T>, grid, dim3(ROPE_THREADS), 0, gpu_context(stream)->stream, (T *)a->x.data, a->x.row_stride, a->x.rows,
	                            a->heads, a->head_dim, half, a->cos_sin),
	                 "rope", err);
}

static enum status expect_rotary(int rotary, int dim, struct error *err)
{
	if (rotary >= 0 && rotary <= dim && rotary % 2 == 0) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "rope: %d rotary dimensions of a head of %d; an even number up to it is wanted", rotary, dim);
}

enum status gpu_rope(struct stream *stream, const struct rope_args *args, struct error *err)
{
	TRY(gpu_expect(&args->x, TENSOR_SHARDED, args->x.rows, (int64_t)args->heads * args->head_dim, "rope x", err));
	TRY(expect_rotary(args->rotary_dim, args->head_dim, err));
	if (args->x.rows == 0 || args->heads == 0 || args->rotary_dim == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->x.dtype, T, "rope x", err, return rope_launch<T>(stream, args, err))
}

#define KV_WRITE_THREADS 256

/* Thread: one element of a key and of the value beside it; any alignment. Bound: four times the bytes of the keys. */
template <typename T> GPU_KERNEL(KV_WRITE_THREADS)
kv_write_kernel(const T *k, int64_t k_stride, const T *v, int64_t v_stride, int rows, const int32_t *kv_slot, cache_place cache)
{
	gpu_wait_previous();
	gpu_start_next();
	const int64_t at = (int64_t)blockIdx.x * KV_WRITE_THREADS + (int)threadIdx.x;
	const int cols = cache.kv_heads * cache.dim;
	if (at >= (int64_t)rows * cols) return;
	const int64_t row = at / cols;
	const int col = (int)(at % cols), head = col / cache.dim, i = col % cache.dim;
	const int32_t slot = kv_slot[row];
	cache_row<T>(cache, slot, 0, head)[i] = k[row * k_stride + col];
	cache_row<T>(cache, slot, 1, head)[i] = v[row * v_stride + col];
}

template <typename T> static enum status kv_write_launch(struct stream *stream, const struct kv_write_args *a, struct error *err)
{
	const dim3 grid(gpu_blocks((int64_t)a->k.rows * a->k.cols, KV_WRITE_THREADS));
	return gpu_check(GPU_LAUNCH(kv_write_kernel<T>, grid, dim3(KV_WRITE_THREADS), 0, gpu_context(stream)->stream, (const T *)a->k.data, a->k.row_stride,
	                            (const T *)a->v.data, a->v.row_stride, a->k.rows, a->kv_slot, place_of(a->cache, a->layer)),
	                 "kv_write", err);
}

enum status gpu_kv_write(struct stream *stream, const struct kv_write_args *args, struct error *err)
{
	const struct kv_layout *l = &args->cache->layout;
	TRY(gpu_expect(&args->k, TENSOR_SHARDED, args->k.rows, (int64_t)l->kv_heads * l->head_dim, "kv_write k", err));
	TRY(gpu_expect(&args->v, TENSOR_SHARDED, args->k.rows, (int64_t)l->kv_heads * l->head_dim, "kv_write v", err));
	TRY(expect_cache(args->cache, args->layer, args->k.dtype, l->kv_heads, l->head_dim, "kv_write", err));
	if (args->v.dtype != args->k.dtype)
		return FAIL(err, BAD_INPUT, "kv_write: keys of %s and values of %s", dtype_name(args->k.dtype), dtype_name(args->v.dtype));
	if (args->k.rows == 0 || args->k.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->k.dtype, T, "kv_write k", err, return kv_write_launch<T>(stream, args, err))
}

/* ---- the fused pass */

#define QKV_WAVES 4

struct qkv_params {
	void *qkv;
	int64_t stride;
	int rows, q_heads, kv_heads, dim, half;
	const float *q_norm, *k_norm;
	float eps;
	const float *cos_sin;
	const int32_t *kv_slot;
	cache_place cache;
};

/* Wave: one head (of q, k or v) of one row; lane: U neighbouring columns, in registers throughout, so that the partner of a column, half the
 * rotary width away, is the same place of another lane. dim and half are multiples of U, dim at most U waves wide; rows aligned to U
 * elements, cache heads too by dim. Norm weights, cos and sin come in packs where they are aligned by construction (16 bytes a pack
 * of 4). No shared memory. Bound: the bytes of qkv read and written once; a few rows are one launch and two round trips. */
template <typename T, int U> GPU_KERNEL(QKV_WAVES * GPU_WARP) qkv_kernel(qkv_params a)
{
	const int lane = (int)threadIdx.x % GPU_WARP, heads = a.q_heads + 2 * a.kv_heads, i = lane * U;
	const int64_t at = (int64_t)blockIdx.x * QKV_WAVES + (int)threadIdx.x / GPU_WARP;
	const bool valid = at < (int64_t)a.rows * heads;
	const int64_t row = valid ? at / heads : 0;
	const int head = valid ? (int)(at % heads) : 0;
	const bool active = valid && i < a.dim, is_q = head < a.q_heads, is_v = head >= a.q_heads + a.kv_heads;
	const float *norm = is_v ? NULL : is_q ? a.q_norm : a.k_norm;
	float w[U], v[U];
	GPU_UNROLL for (int j = 0; j < U; j++) w[j] = v[j] = 0;
	if (norm && active) gpu_load<U>(norm + i, w);
	gpu_wait_previous();
	gpu_start_next();
	T *x = (T *)a.qkv + row * a.stride + (int64_t)head * a.dim + i;
	const bool turns = !is_v && i < 2 * a.half;
	const int angle = i < a.half ? i : i - a.half;
	float c[U], s[U];
	GPU_UNROLL for (int j = 0; j < U; j++) c[j] = s[j] = 0;
	if (active) gpu_load<U>(x, v);
	if (active && turns) {
		gpu_load<U>(a.cos_sin + row * 2 * a.half + angle, c);
		gpu_load<U>(a.cos_sin + row * 2 * a.half + a.half + angle, s);
	}
	const int32_t slot = is_q || !valid ? 0 : a.kv_slot[row];
	if (norm) {
		float sum = 0;
		GPU_UNROLL for (int j = 0; j < U; j++) sum = gpu_fma(v[j], v[j], sum);
		const float r = 1.0f / sqrtf(gpu_warp_sum(sum) / (float)a.dim + a.eps);
		/* rounded as a pass of its own would leave it */
		GPU_UNROLL for (int j = 0; j < U; j++) v[j] = gpu_widen(gpu_narrow<T>(v[j] * r * w[j]));
	}
	const int away = a.half / U, partner = i < a.half ? lane + away : lane - away;
	GPU_UNROLL for (int j = 0; j < U; j++) {
		const float other = gpu_shfl(v[j], partner & (GPU_WARP - 1)), turned = gpu_mul(other, s[j]);
		if (turns) v[j] = gpu_fma(v[j], c[j], i < a.half ? -turned : turned);
	}
	if (!active) return;
	T *out = is_q ? x : cache_row<T>(a.cache, slot, is_v, head - a.q_heads - (is_v ? a.kv_heads : 0)) + i;
	gpu_store<U>(out, v);
}

/* Columns of a lane: the smallest power of two with which a wave holds a head. */
static int qkv_columns(const struct gpu_context *context, int dim)
{
	int u = 1;
	while (u * context->props.warp < dim) u *= 2;
	return u;
}

bool gpu_qkv_fits(const struct gpu_context *context, const struct gpu_qkv_args *a)
{
	const int u = qkv_columns(context, a->head_dim), half = a->rotary_dim / 2;
	const size_t pack = (size_t)u * dtype_bytes(a->qkv.dtype), floats = (size_t)u * sizeof(float) < 16 ? (size_t)u * sizeof(float) : 16;
	return u <= 8 && a->head_dim % u == 0 && half % u == 0 && gpu_rows_aligned(&a->qkv, pack < 16 ? pack : 16) && (uintptr_t)a->q_norm % floats == 0 &&
	       (uintptr_t)a->k_norm % floats == 0 && (uintptr_t)a->cos_sin % floats == 0 && (uintptr_t)a->cache->data % (pack < 16 ? pack : 16) == 0;
}

template <typename T> static enum status qkv_launch(struct stream *stream, const struct gpu_qkv_args *a, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const struct qkv_params p = {a->qkv.data, a->qkv.row_stride, a->qkv.rows, a->q_heads, a->kv_heads, a->head_dim, a->rotary_dim / 2,
	                             a->q_norm, a->k_norm, a->eps, a->cos_sin, a->kv_slot, place_of(a->cache, a->layer)};
	const dim3 grid(gpu_blocks((int64_t)a->qkv.rows * (a->q_heads + 2 * a->kv_heads), QKV_WAVES)), block(QKV_WAVES * GPU_WARP);
	gpu_error code;
	switch (qkv_columns(context, a->head_dim)) {
	case 1: code = GPU_LAUNCH((qkv_kernel<T, 1>), grid, block, 0, context->stream, p); break;
	case 2: code = GPU_LAUNCH((qkv_kernel<T, 2>), grid, block, 0, context->stream, p); break;
	case 4: code = GPU_LAUNCH((qkv_kernel<T, 4>), grid, block, 0, context->stream, p); break;
	default: code = GPU_LAUNCH((qkv_kernel<T, 8>), grid, block, 0, context->stream, p); break;
	}
	return gpu_check(code, "qkv rows", err);
}

enum status gpu_qkv(struct stream *stream, const struct gpu_qkv_args *args, struct error *err)
{
	const int64_t cols = (int64_t)(args->q_heads + 2 * args->kv_heads) * args->head_dim;
	TRY(gpu_expect(&args->qkv, TENSOR_SHARDED, args->qkv.rows, cols, "qkv rows", err));
	TRY(expect_rotary(args->rotary_dim, args->head_dim, err));
	TRY(expect_cache(args->cache, args->layer, args->qkv.dtype, args->kv_heads, args->head_dim, "qkv rows", err));
	if (!gpu_qkv_fits(gpu_context(stream), args))
		return FAIL(err, UNSUPPORTED, "qkv rows: heads of %d, %d of them rotary, or their alignment", args->head_dim, args->rotary_dim);
	if (args->qkv.rows == 0 || cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->qkv.dtype, T, "qkv rows", err, return qkv_launch<T>(stream, args, err))
}
