/* rope.cu: rotation of heads, keys and values into the cache, and all of that with the head norms in one pass over a row. */
#include "device/gpu/qkv.h"
#include "device/gpu/rows.h"

/* Where a row's keys go; values lie kv_heads * block_tokens * dim further on. */
struct cache_place {
	void *data; /* of the layer */
	int kv_heads, block_tokens, dim;
};

static cache_place place_of(const struct kv_cache *cache, int layer)
{
	const struct kv_layout *l = &cache->layout;
	return {(char *)cache->data + (size_t)layer * gpu_kv_layer_bytes(l), l->kv_heads, l->block_tokens, l->head_dim};
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

/* Wave: HEADS neighbouring heads (of q, k or v) of one row, so that cos and sin are read once for them; lane: U neighbouring columns of each, in
 * registers throughout, so that the partner of a column, half the rotary width away, is the same place of another lane. dim and half are
 * multiples of U, dim at most U waves wide; rows aligned to U elements, cache heads too by dim; norm weights, cos and sin to U floats, at
 * most 16 bytes. No shared memory. Bound: the bytes of qkv read and written once; a few rows are one launch and two round trips. */
template <typename T, int U, int HEADS> GPU_KERNEL(QKV_WAVES * GPU_WARP) qkv_kernel(qkv_params a)
{
	const int lane = (int)threadIdx.x % GPU_WARP, heads = a.q_heads + 2 * a.kv_heads, i = lane * U;
	const int per_row = (heads + HEADS - 1) / HEADS;
	const int64_t at = (int64_t)blockIdx.x * QKV_WAVES + (int)threadIdx.x / GPU_WARP;
	if (at >= (int64_t)a.rows * per_row) { /* whole waves */
		gpu_wait_previous();
		return;
	}
	const int64_t row = at / per_row;
	const int first = (int)(at % per_row) * HEADS;
	const bool active = i < a.dim, turns = i < 2 * a.half, low = i < a.half;
	gpu_wait_previous();
	gpu_start_next();
	T *x = (T *)a.qkv + row * a.stride + (int64_t)first * a.dim + i;
	float v[HEADS][U], c[U], s[U];
	GPU_UNROLL for (int h = 0; h < HEADS; h++)
	{
		GPU_UNROLL for (int j = 0; j < U; j++) v[h][j] = 0;
		if (active && first + h < heads) gpu_load<U>(x + h * a.dim, v[h]);
	}
	GPU_UNROLL for (int j = 0; j < U; j++) c[j] = 1, s[j] = 0;
	if (turns && active) {
		gpu_load<U>(a.cos_sin + row * 2 * a.half + (low ? i : i - a.half), c);
		gpu_load<U>(a.cos_sin + row * 2 * a.half + a.half + (low ? i : i - a.half), s);
	}
	const int32_t slot = first + HEADS > a.q_heads ? a.kv_slot[row] : 0;
	const int away = a.half / U, partner = (low ? lane + away : lane - away) & (GPU_WARP - 1);
	GPU_UNROLL for (int h = 0; h < HEADS; h++)
	{
		const int head = first + h;
		if (head >= heads) break;
		const bool is_q = head < a.q_heads, is_v = head >= a.q_heads + a.kv_heads;
		const float *norm = is_v ? NULL : is_q ? a.q_norm : a.k_norm;
		if (norm) {
			float w[U], sum = 0;
			GPU_UNROLL for (int j = 0; j < U; j++) w[j] = 0;
			if (active) gpu_load<U>(norm + i, w);
			GPU_UNROLL for (int j = 0; j < U; j++) sum = gpu_fma(v[h][j], v[h][j], sum);
			const float r = 1.0f / sqrtf(gpu_warp_sum(sum) / (float)a.dim + a.eps);
			/* rounded as a pass of its own would leave it */
			GPU_UNROLL for (int j = 0; j < U; j++) v[h][j] = gpu_widen(gpu_narrow<T>(v[h][j] * r * w[j]));
		}
		if (!is_v) {
			GPU_UNROLL for (int j = 0; j < U; j++) {
				const float other = gpu_shfl(v[h][j], partner), turned = gpu_mul(other, s[j]);
				if (turns) v[h][j] = gpu_fma(v[h][j], c[j], low ? -turned : turned);
			}
		}
		T *out = is_q ? x + h * a.dim : cache_row<T>(a.cache, slot, is_v, head - a.q_heads - (is_v ? a.kv_heads : 0)) + i;
		if (active) gpu_store<U>(out, v[h]);
	}
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

/* Few rows: a wave a head, for the sake of latency. Many: four, so that each lane has several loads in flight. */
#define QKV_MANY_HEADS 4

template <typename T, int U> static gpu_error qkv_start(const struct gpu_context *context, const struct qkv_params *p)
{
	const int heads = p->q_heads + 2 * p->kv_heads;
	const dim3 block(QKV_WAVES * GPU_WARP);
	if ((int64_t)p->rows * heads < (int64_t)context->props.multiprocessors * 64)
		return GPU_LAUNCH((qkv_kernel<T, U, 1>), dim3(gpu_blocks((int64_t)p->rows * heads, QKV_WAVES)), block, 0, context->stream, *p);
	const int64_t waves = (int64_t)p->rows * ((heads + QKV_MANY_HEADS - 1) / QKV_MANY_HEADS);
	return GPU_LAUNCH((qkv_kernel<T, U, QKV_MANY_HEADS>), dim3(gpu_blocks(waves, QKV_WAVES)), block, 0, context->stream, *p);
}

template <typename T> static enum status qkv_launch(struct stream *stream, const struct gpu_qkv_args *a, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const struct qkv_params p = {a->qkv.data, a->qkv.row_stride, a->qkv.rows, a->q_heads, a->kv_heads, a->head_dim, a->rotary_dim / 2,
	                             a->q_norm, a->k_norm, a->eps, a->cos_sin, a->kv_slot, place_of(a->cache, a->layer)};
	gpu_error code;
	switch (qkv_columns(context, a->head_dim)) {
	case 1: code = qkv_start<T, 1>(context, &p); break;
	case 2: code = qkv_start<T, 2>(context, &p); break;
	case 4: code = qkv_start<T, 4>(context, &p); break;
	default: code = qkv_start<T, 8>(context, &p); break;
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
