/* check_qkv.c: rope, kv_write, and attention_in and mlp_in, which are made of those and a linear. u is 2^-24, U the unit of the type. */
#include <math.h>
#include <string.h>

#include "device/gpu/context.h"
#include "device/gpu/qkv.h"
#include "gpu/harness.h"

static const double u = 0x1.01p-24;
static const enum fill tame[] = {FILL_RANDOM, FILL_ZERO, FILL_DENORMAL, FILL_SPECIAL};
enum { TAME = sizeof tame / sizeof *tame };

static double rounded(enum dtype dtype, double value)
{
	char place[4];
	set_element(place, dtype, 0, value);
	return element(place, dtype, 0);
}

/* cos and sin of made-up angles: [rows][rotary]. */
static float *angles(struct gpu_check *c, int rows, int rotary)
{
	float *out = gpu_host(c, (size_t)rows * (size_t)rotary * 4 + 4);
	int half = rotary / 2;
	for (int t = 0; t < rows; t++)
		for (int i = 0; i < half; i++) {
			double angle = (t + 3) * pow(10000, -(double)i / (half + 1));
			out[t * rotary + i] = (float)cos(angle);
			out[t * rotary + half + i] = (float)sin(angle);
		}
	return out;
}

/* Rotates x[dim] in place; size[i] becomes the magnitudes that went into x[i]. */
static void rotate(double *x, double *size, const float *cos_sin, int dim, int rotary)
{
	int half = rotary / 2;
	for (int i = 0; i < dim; i++) size[i] = fabs(x[i]);
	for (int i = 0; i < half; i++) {
		double a = x[i], b = x[i + half], co = (double)cos_sin[i], si = (double)cos_sin[half + i];
		x[i] = a * co - b * si;
		x[i + half] = b * co + a * si;
		size[i] = fabs(a * co) + fabs(b * si);
		size[i + half] = fabs(b * co) + fabs(a * si);
	}
}

/* --- rope: one product, one fused step: 3 u of the magnitudes, and U of the result */

static void rope_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int heads, int dim, int rotary)
{
	gpu_case(c, dtype, fill, "T=%d heads=%d D=%d rotary=%d", rows, heads, dim, rotary);
	int cols = heads * dim, stride = cols + 8;
	void *host;
	struct tensor x = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, stride, 1, &host);
	float *cs = angles(c, rows, rotary);
	double *want = gpu_host(c, (size_t)(rows * cols) * 8), *size = gpu_host(c, (size_t)(rows * cols) * 8);
	for (int t = 0; t < rows; t++) {
		for (int i = 0; i < cols; i++) want[t * cols + i] = element(host, dtype, (size_t)(t * stride + i));
		for (int h = 0; h < heads; h++) rotate(want + t * cols + h * dim, size + t * cols + h * dim, cs + t * rotary, dim, rotary);
	}
	GPU_RUN(c, rope, {.x = x, .heads = heads, .head_dim = dim, .rotary_dim = rotary, .cos_sin = gpu_put(c, cs, (size_t)(rows * rotary) * 4 + 4)});
	gpu_compare(c, "x", &x, want, size, 3 * u + gpu_unit(dtype), gpu_tiny(dtype));
	gpu_case_end(c);
}

void gpu_check_rope(struct gpu_check *c)
{
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(dtype)
		{
			rope_case(c, tame[f], dtype, 1, 1, 8, 2);
			rope_case(c, tame[f], dtype, 3, 4, 64, 64);
			rope_case(c, tame[f], dtype, 5, 2, 80, 32);
			rope_case(c, tame[f], dtype, 2, 3, 96, 70);
			rope_case(c, tame[f], dtype, c->quick ? 3 : 65, 8, 128, 128);
			rope_case(c, tame[f], dtype, 2, 3, 256, 64);
		}
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_SHARDED, 2, 16, 16);
	GPU_REFUSED(c, rope, BAD_INPUT, {.x = x, .heads = 2, .head_dim = 8, .rotary_dim = 7});
	GPU_REFUSED(c, rope, BAD_INPUT, {.x = x, .heads = 2, .head_dim = 8, .rotary_dim = 10});
	GPU_REFUSED(c, rope, BAD_INPUT, {.x = x, .heads = 3, .head_dim = 8, .rotary_dim = 8});
	gpu_case_end(c);
}

/* --- the cache: [layer][block][k|v][kv_head][block_tokens][D], poisoned, so that what nobody wrote is NaN */

struct cache {
	struct kv_cache cache;
	struct tensor view; /* [everything / D][D] */
	double *want, *size;
	int32_t *slot; /* host, [rows] */
	const int32_t *slot_device;
};

static struct cache cache_make(struct gpu_check *c, int rows, int kv_heads, int dim, int block_tokens)
{
	struct cache k = {.cache.layout = {.layers = 2, .blocks = rows / block_tokens + 3, .block_tokens = block_tokens, .kv_heads = kv_heads, .head_dim = dim, .dtype = c->dtype}};
	size_t bytes = c->ops->kv_bytes(&k.cache.layout), count = bytes / dtype_bytes(c->dtype);
	k.cache.data = gpu_room(c, bytes);
	k.view = tensor_view(k.cache.data, c->dtype, TENSOR_SHARDED, (int)(count / (size_t)dim), dim);
	k.want = gpu_host(c, count * 8);
	k.size = gpu_host(c, count * 8);
	for (size_t i = 0; i < count; i++) k.want[i] = NAN;
	k.slot = gpu_host(c, (size_t)rows * 4);
	int slots = k.cache.layout.blocks * block_tokens;
	int step = slots % 7 ? 7 : slots % 11 ? 11 : 1; /* coprime with slots: no two rows meet */
	for (int t = 0; t < rows; t++) k.slot[t] = (int32_t)((int64_t)(t + 1) * step % slots);
	k.slot_device = gpu_put(c, k.slot, (size_t)rows * 4);
	return k;
}

static size_t cache_at(const struct cache *k, int layer, int row, int which, int head)
{
	const struct kv_layout *l = &k->cache.layout;
	size_t block = (size_t)(k->slot[row] / l->block_tokens), offset = (size_t)(k->slot[row] % l->block_tokens);
	return (((((size_t)layer * (size_t)l->blocks + block) * 2 + (size_t)which) * (size_t)l->kv_heads + (size_t)head) * (size_t)l->block_tokens + offset) *
	       (size_t)l->head_dim;
}

static void kv_write_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int kv_heads, int dim, int block_tokens)
{
	gpu_case(c, dtype, fill, "T=%d heads=%d D=%d blocks of %d", rows, kv_heads, dim, block_tokens);
	struct cache k = cache_make(c, rows, kv_heads, dim, block_tokens);
	void *host[2];
	int cols = kv_heads * dim;
	struct tensor keys = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, cols + 3, 1, &host[0]);
	struct tensor values = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, cols + 16, 2, &host[1]);
	for (int which = 0; which < 2; which++)
		for (int t = 0; t < rows; t++)
			for (int h = 0; h < kv_heads; h++)
				for (int i = 0; i < dim; i++)
					k.want[cache_at(&k, 1, t, which, h) + (size_t)i] = element(host[which], dtype, (size_t)(t * (cols + (which ? 16 : 3)) + h * dim + i));
	GPU_RUN(c, kv_write, {.k = keys, .v = values, .cache = &k.cache, .layer = 1, .kv_slot = k.slot_device});
	gpu_compare(c, "cache", &k.view, k.want, NULL, 0, 0);
	GPU_REFUSED(c, kv_write, BAD_INPUT, {.k = keys, .v = values, .cache = &k.cache, .layer = 2, .kv_slot = k.slot_device});
	gpu_case_end(c);
}

void gpu_check_kv_write(struct gpu_check *c)
{
	GPU_EACH_FILL(fill)
	GPU_EACH_DTYPE(dtype)
	{
		kv_write_case(c, fill, dtype, 1, 1, 8, 16);
		kv_write_case(c, fill, dtype, 5, 2, 80, 16);
		kv_write_case(c, fill, dtype, c->quick ? 3 : 70, 4, 128, 64);
	}
}

/* --- attention_in. `norm` and the linear leave rounded values in qkv, a head norm another; each rounding may fall the other way where the sums
 * before it differ in their last bits. So the bound is a few U of what went in, and of it what each sum may be off. */

struct in_case {
	int rows, q_heads, kv_heads, dim, rotary, hidden, block_tokens;
	bool norms, bias, done;
};

/* qkv of all rows, [rows][(q + 2 kv) dim] in doubles, through the same roundings as the ops. */
static double *linear_oracle(struct gpu_check *c, const double *h, const void *weight, const float *bias, int rows, int n, int k)
{
	double *out = gpu_host(c, (size_t)(rows * n) * 8);
	for (int t = 0; t < rows; t++)
		for (int j = 0; j < n; j++) {
			double sum = bias ? (double)bias[j] : 0;
			for (int i = 0; i < k; i++) sum += h[t * k + i] * element(weight, c->dtype, (size_t)(j * k + i));
			out[t * n + j] = rounded(c->dtype, sum);
		}
	return out;
}

static double *norm_rows(struct gpu_check *c, const float *x, const float *weight, int rows, int n, double eps)
{
	double *out = gpu_host(c, (size_t)(rows * n) * 8);
	for (int t = 0; t < rows; t++) {
		double sum = 0;
		for (int i = 0; i < n; i++) sum += (double)x[t * n + i] * (double)x[t * n + i];
		for (int i = 0; i < n; i++) out[t * n + i] = rounded(c->dtype, (double)x[t * n + i] / sqrt(sum / n + eps) * (double)weight[i]);
	}
	return out;
}

/* One head of q or k: norm, rotation. Values whose neighbours in the head are of their size: the bound is of the head's largest. */
static void head_oracle(struct gpu_check *c, double *x, double *size, const float *norm, const float *cos_sin, int dim, int rotary, double eps)
{
	double sum = 0, most = 0;
	for (int i = 0; i < dim; i++) sum += x[i] * x[i];
	for (int i = 0; norm && i < dim; i++) x[i] = rounded(c->dtype, x[i] / sqrt(sum / dim + eps) * (double)norm[i]);
	rotate(x, size, cos_sin, dim, rotary);
	for (int i = 0; i < dim; i++) most = fmax(most, size[i]);
	for (int i = 0; i < dim; i++) size[i] = most;
}

/* Norm weights around 1, as models have them. */
static float *norm_weight(struct gpu_check *c, int n, uint64_t stream)
{
	float *w = gpu_filled(c, DTYPE_F32, (size_t)n, stream);
	for (int i = 0; i < n; i++) w[i] = 1 + 0.3f * w[i];
	return w;
}

/* What is wanted of the heads of `qkv` (doubles, changed in place) in q columns and cache. */
static void heads_oracle(struct gpu_check *c, const struct in_case *ic, double *qkv, double *size, struct cache *k, const float *q_norm, const float *k_norm,
                         const float *cs, double eps)
{
	int cols = (ic->q_heads + 2 * ic->kv_heads) * ic->dim;
	for (int t = 0; t < ic->rows; t++)
		for (int h = 0; h < ic->q_heads + 2 * ic->kv_heads; h++) {
			double *x = qkv + t * cols + h * ic->dim, *s = size + t * cols + h * ic->dim;
			bool is_q = h < ic->q_heads, is_v = h >= ic->q_heads + ic->kv_heads;
			head_oracle(c, x, s, is_v ? NULL : is_q ? q_norm : k_norm, cs + t * ic->rotary, ic->dim, is_v ? 0 : ic->rotary, eps);
			if (is_q) continue;
			size_t to = cache_at(k, 1, t, is_v, (h - ic->q_heads) % ic->kv_heads);
			memcpy(k->want + to, x, (size_t)ic->dim * 8);
			memcpy(k->size + to, s, (size_t)ic->dim * 8);
		}
}

/* The q columns of dense doubles. */
static double *q_columns(struct gpu_check *c, const double *qkv, int rows, int cols, int q_cols)
{
	double *out = gpu_host(c, (size_t)(rows * q_cols) * 8);
	for (int t = 0; t < rows; t++) memcpy(out + t * q_cols, qkv + t * cols, (size_t)q_cols * 8);
	return out;
}

/* gpu_qkv alone on given rows: its bound is tighter than that of the whole. */
static void qkv_case(struct gpu_check *c, enum dtype dtype, const struct in_case *ic)
{
	gpu_case(c, dtype, FILL_RANDOM, "qkv rows: T=%d heads %d+2x%d D=%d rotary=%d%s", ic->rows, ic->q_heads, ic->kv_heads, ic->dim, ic->rotary, ic->norms ? " norms" : "");
	int cols = (ic->q_heads + 2 * ic->kv_heads) * ic->dim, q_cols = ic->q_heads * ic->dim, stride = cols + 8;
	void *host;
	struct tensor qkv = gpu_input(c, dtype, TENSOR_SHARDED, ic->rows, cols, stride, 1, &host);
	float *q_norm = norm_weight(c, ic->dim, 2), *k_norm = norm_weight(c, ic->dim, 3), *cs = angles(c, ic->rows, ic->rotary);
	struct cache k = cache_make(c, ic->rows, ic->kv_heads, ic->dim, ic->block_tokens);
	double *want = gpu_host(c, (size_t)(ic->rows * cols) * 8), *size = gpu_host(c, (size_t)(ic->rows * cols) * 8);
	for (int t = 0; t < ic->rows; t++)
		for (int i = 0; i < cols; i++) want[t * cols + i] = element(host, dtype, (size_t)(t * stride + i));
	heads_oracle(c, ic, want, size, &k, ic->norms ? q_norm : NULL, ic->norms ? k_norm : NULL, cs, 1e-6);
	struct gpu_qkv_args args = {
		.qkv = qkv, .q_heads = ic->q_heads, .kv_heads = ic->kv_heads, .head_dim = ic->dim, .rotary_dim = ic->rotary, .eps = 1e-6f,
		.q_norm = ic->norms ? gpu_put(c, q_norm, (size_t)ic->dim * 4) : NULL, .k_norm = ic->norms ? gpu_put(c, k_norm, (size_t)ic->dim * 4) : NULL,
		.cos_sin = gpu_put(c, cs, (size_t)(ic->rows * ic->rotary) * 4 + 4), .kv_slot = k.slot_device, .cache = &k.cache, .layer = 1,
	};
	if (gpu_qkv_fits(gpu_context(c->stream), &args)) {
		gpu_ok(c, gpu_qkv(c->stream, &args, &c->err));
		double rel = ic->norms ? 3 * gpu_unit(dtype) + 64 * u : gpu_unit(dtype) + 3 * u;
		struct tensor q = tensor_columns(&qkv, 0, q_cols);
		q.row_stride = cols + 8;
		/* k and v columns behind q are not defined afterwards, so only q's elements are looked at */
		char *got = gpu_host(c, (size_t)((ic->rows - 1) * stride + q_cols) * dtype_bytes(dtype));
		gpu_get(c, got, q.data, (size_t)((ic->rows - 1) * stride + q_cols) * dtype_bytes(dtype));
		struct tensor dense = gpu_output(c, dtype, TENSOR_SHARDED, ic->rows, q_cols, q_cols);
		for (int t = 0; t < ic->rows; t++)
			gpu_ok(c, c->ops->copy(c->stream, (char *)dense.data + (size_t)(t * q_cols) * dtype_bytes(dtype), got + (size_t)(t * stride) * dtype_bytes(dtype),
			                       (size_t)q_cols * dtype_bytes(dtype), COPY_TO_DEVICE, &c->err));
		gpu_compare(c, "q", &dense, q_columns(c, want, ic->rows, cols, q_cols), q_columns(c, size, ic->rows, cols, q_cols), rel, gpu_tiny(dtype));
		gpu_compare(c, "cache", &k.view, k.want, k.size, rel, gpu_tiny(dtype));
	}
	gpu_case_end(c);
}

static void attention_in_case(struct gpu_check *c, enum dtype dtype, const struct in_case *ic)
{
	gpu_case(c, dtype, FILL_RANDOM, "T=%d H=%d heads %d+2x%d D=%d rotary=%d%s%s%s %s %s", ic->rows, ic->hidden, ic->q_heads, ic->kv_heads, ic->dim, ic->rotary,
	         ic->norms ? " norms" : "", ic->bias ? " bias" : "", ic->done ? " h given" : "", c->variant ? c->variant->kernel : "", c->variant ? c->variant->mode : "");
	int rows = ic->rows, n = (ic->q_heads + 2 * ic->kv_heads) * ic->dim, q_cols = ic->q_heads * ic->dim;
	void *x_host, *w_host;
	struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, rows, ic->hidden, ic->hidden, 1, &x_host);
	struct tensor h = gpu_output(c, dtype, TENSOR_REPLICATED, rows, ic->hidden, ic->hidden), qkv = gpu_output(c, dtype, TENSOR_SHARDED, rows, n, n);
	float *norm = norm_weight(c, ic->hidden, 2), *q_norm = norm_weight(c, ic->dim, 3), *k_norm = norm_weight(c, ic->dim, 4);
	float *bias = gpu_filled(c, DTYPE_F32, (size_t)n, 5), *cs = angles(c, rows, ic->rotary);
	struct linear_weight w = gpu_weight(c, dtype, n, ic->hidden, 6, &w_host);
	struct cache k = cache_make(c, rows, ic->kv_heads, ic->dim, ic->block_tokens);
	double *h_want = norm_rows(c, x_host, norm, rows, ic->hidden, 1e-5), *size = gpu_host(c, (size_t)(rows * n) * 8);
	double *want = linear_oracle(c, h_want, w_host, ic->bias ? bias : NULL, rows, n, ic->hidden);
	heads_oracle(c, ic, want, size, &k, ic->norms ? q_norm : NULL, ic->norms ? k_norm : NULL, cs, 1e-5);
	if (ic->done) {
		char *given = gpu_host(c, (size_t)(rows * ic->hidden) * dtype_bytes(dtype));
		for (int i = 0; i < rows * ic->hidden; i++) set_element(given, dtype, (size_t)i, h_want[i]);
		h.data = gpu_put(c, given, (size_t)(rows * ic->hidden) * dtype_bytes(dtype));
	}
	const struct step_rows step = {.rows = rows, .cos_sin = gpu_put(c, cs, (size_t)(rows * ic->rotary) * 4 + 4), .kv_slot = k.slot_device};
	const struct attention_in_args args = {.in = {.x = x, .weight = gpu_put(c, norm, (size_t)ic->hidden * 4), .eps = 1e-5f, .h = h, .done = ic->done}, .weight = &w,
	                                       .bias = ic->bias ? gpu_put(c, bias, (size_t)n * 4) : NULL, .q_norm = ic->norms ? gpu_put(c, q_norm, (size_t)ic->dim * 4) : NULL,
	                                       .k_norm = ic->norms ? gpu_put(c, k_norm, (size_t)ic->dim * 4) : NULL, .q_heads = ic->q_heads, .kv_heads = ic->kv_heads,
	                                       .head_dim = ic->dim, .rotary_dim = ic->rotary, .rows = &step, .cache = &k.cache, .layer = 1, .qkv = qkv};
	gpu_variant_begin(c);
	const bool ran = gpu_variant_end(c, OP(c->stream, attention_in, &args, &c->err));
	if (!ran) return gpu_case_end(c);
	/* q in the first columns of qkv */
	size_t unit = dtype_bytes(dtype);
	struct tensor dense = gpu_output(c, dtype, TENSOR_SHARDED, rows, q_cols, q_cols);
	for (int t = 0; t < rows; t++)
		gpu_ok(c, c->ops->copy(c->stream, (char *)dense.data + (size_t)(t * q_cols) * unit, (char *)qkv.data + (size_t)(t * n) * unit, (size_t)q_cols * unit,
		                       COPY_ON_DEVICE, &c->err));
	double rel = 4 * gpu_unit(dtype) + (ic->hidden + 64) * u; /* a rounding of h falls the other way: less than one U of the sum each */
	gpu_compare(c, "q", &dense, q_columns(c, want, rows, n, q_cols), q_columns(c, size, rows, n, q_cols), rel, gpu_tiny(dtype));
	gpu_compare(c, "cache", &k.view, k.want, k.size, rel, gpu_tiny(dtype));
	gpu_case_end(c);
}

struct typed_in_case {
	enum dtype dtype;
	struct in_case ic;
};
static void attention_in_variant(struct gpu_check *c, const void *arg)
{
	const struct typed_in_case *t = arg;
	attention_in_case(c, t->dtype, &t->ic);
}

/* Where the heads have norms of their own, no one kernel computes it, and those that should are refused. */
static void check_attention_in_variants(struct gpu_check *c, enum dtype dtype)
{
	for (int rows = 1; rows <= 9; rows += c->quick ? 7 : 2)
		for (int norms = 0; norms <= 1; norms++) {
			const struct typed_in_case t = {dtype, {rows, 4, 2, 64, 64, 128, 64, norms == 1, rows > 1, rows == 3}};
			gpu_each_variant(c, &(struct linear_key){LINEAR_USE_ATTENTION_IN, dtype, 8 * 64, 128, rows}, attention_in_variant, &t);
			if (norms && rows == 1 && !c->refused) gpu_fail(c, "gemv_decode was not refused where heads have norms");
		}
}

void gpu_check_attention_in(struct gpu_check *c)
{
	static const struct in_case cases[] = {
		{1, 1, 1, 8, 8, 7, 16, false, false, false},     {1, 4, 2, 64, 64, 64, 64, false, false, false}, {3, 2, 1, 128, 128, 96, 16, true, true, false},
		{2, 3, 1, 80, 32, 40, 16, true, false, true},    {2, 2, 2, 96, 70, 33, 16, true, true, false},   {5, 2, 1, 256, 64, 128, 32, false, true, true},
		{4, 5, 1, 128, 64, 256, 64, true, false, false}, {17, 4, 2, 64, 64, 128, 16, false, true, false},
	};
	static const struct in_case large = {16, 8, 2, 128, 128, 1024, 64, true, false, false};
	GPU_EACH_DTYPE(dtype)
	{
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			qkv_case(c, dtype, &cases[i]);
			attention_in_case(c, dtype, &cases[i]);
		}
		if (!c->quick) attention_in_case(c, dtype, &large);
		check_attention_in_variants(c, dtype);
		/* so many heads that a wave takes several, and the last wave of a row fewer */
		int rows = gpu_context(c->stream)->props.multiprocessors * 64 / 7 + 3;
		qkv_case(c, dtype, &(struct in_case){rows, 5, 1, 64, 64, 0, 64, true, false, false});
		qkv_case(c, dtype, &(struct in_case){rows, 5, 1, 64, 32, 0, 64, false, false, false});
	}
}

/* --- gdn_in: both linears, one behind the other in memory and not; a rounding of h may fall the other way, and then that of the result */

static void gdn_in_case(struct gpu_check *c, enum dtype dtype, int rows, int hidden, int n, int ba_n, bool adjacent, bool done)
{
	gpu_case(c, dtype, FILL_RANDOM, "T=%d H=%d N=%d+%d%s%s", rows, hidden, n, ba_n, adjacent ? "" : " apart", done ? " h given" : "");
	const int all = n + ba_n, stride = (all + 7) / 8 * 8;
	const size_t line = dtype_size(dtype, (size_t)hidden);
	void *x_host, *w_host;
	struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, rows, hidden, hidden, 1, &x_host);
	struct tensor h = gpu_output(c, dtype, TENSOR_REPLICATED, rows, hidden, hidden), out = gpu_output(c, dtype, TENSOR_SHARDED, rows, all, stride);
	float *norm = norm_weight(c, hidden, 2);
	struct linear_weight w = gpu_weight(c, dtype, all, hidden, 6, &w_host), qkvz = linear_view(c->ops, &w, 0, n), ba = linear_view(c->ops, &w, n, ba_n);
	if (!adjacent) ba.data = gpu_put(c, (char *)w_host + (size_t)n * line, (size_t)ba_n * line);
	double *h_want = norm_rows(c, x_host, norm, rows, hidden, 1e-6), *want = linear_oracle(c, h_want, w_host, NULL, rows, all, hidden);
	double *size = gpu_host(c, (size_t)(rows * all) * 8);
	for (int i = 0; i < rows * all; i++) size[i] = 1 + fabs(want[i]);
	if (done) {
		char *given = gpu_host(c, (size_t)rows * line);
		for (int i = 0; i < rows * hidden; i++) set_element(given, dtype, (size_t)i, h_want[i]);
		h.data = gpu_put(c, given, (size_t)rows * line);
	}
	GPU_RUN(c, gdn_in, {.in = {.x = x, .weight = gpu_put(c, norm, (size_t)hidden * 4), .eps = 1e-6f, .h = h, .done = done}, .qkvz = &qkvz, .ba = &ba, .out = out});
	gpu_compare(c, "out", &out, want, size, 3 * gpu_unit(dtype) + (hidden + 64) * u, gpu_tiny(dtype));
	gpu_case_end(c);
}

void gpu_check_gdn_in(struct gpu_check *c)
{
	GPU_EACH_DTYPE(dtype)
	{
		gdn_in_case(c, dtype, 1, 128, 96, 6, true, false);
		gdn_in_case(c, dtype, 1, 128, 96, 12, false, false);
		gdn_in_case(c, dtype, 1, 64, 64, 2, true, true);
		gdn_in_case(c, dtype, 3, 70, 33, 4, true, false);
		gdn_in_case(c, dtype, 17, 192, 80, 8, true, false);
		gdn_in_case(c, dtype, 40, 128, 64, 4, false, true);
		if (!c->quick) gdn_in_case(c, dtype, 1, 1024, 2048, 24, true, false);
	}
}

/* --- mlp_in: rounding of gate and up moves the result by U of gate and of up (the slopes of silu and gelu are at most 1.13), then U of its own */

static void mlp_in_case(struct gpu_check *c, enum dtype dtype, int rows, int hidden, int inner, bool bias_given, bool done, bool gelu)
{
	gpu_case(c, dtype, FILL_RANDOM, "T=%d H=%d I=%d%s%s%s %s %s", rows, hidden, inner, bias_given ? " bias" : "", done ? " h given" : "", gelu ? " gelu" : "",
	         c->variant ? c->variant->kernel : "", c->variant ? c->variant->mode : "");
	int n = 2 * inner;
	void *x_host, *w_host;
	struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, rows, hidden, hidden, 1, &x_host);
	struct tensor h = gpu_output(c, dtype, TENSOR_REPLICATED, rows, hidden, hidden), gate_up = gpu_output(c, dtype, TENSOR_SHARDED, rows, n, n);
	struct tensor out = gpu_output(c, dtype, TENSOR_SHARDED, rows, inner, inner);
	float *norm = norm_weight(c, hidden, 2), *bias = gpu_filled(c, DTYPE_F32, (size_t)n, 5);
	struct linear_weight w = gpu_weight(c, dtype, n, hidden, 6, &w_host);
	double *h_want = norm_rows(c, x_host, norm, rows, hidden, 1e-5), *y = linear_oracle(c, h_want, w_host, bias_given ? bias : NULL, rows, n, hidden);
	double *want = gpu_host(c, (size_t)(rows * inner) * 8), *size = gpu_host(c, (size_t)(rows * inner) * 8);
	for (int t = 0; t < rows; t++)
		for (int i = 0; i < inner; i++) {
			double g = y[t * n + i], up = y[t * n + inner + i];
			want[t * inner + i] = g / (1 + exp(-(gelu ? 1.5957691216057308 * (g + 0.044715 * g * g * g) : g))) * up;
			size[t * inner + i] = (1 + fabs(g)) * (1 + fabs(up));
		}
	if (done) {
		char *given = gpu_host(c, (size_t)(rows * hidden) * dtype_bytes(dtype));
		for (int i = 0; i < rows * hidden; i++) set_element(given, dtype, (size_t)i, h_want[i]);
		h.data = gpu_put(c, given, (size_t)(rows * hidden) * dtype_bytes(dtype));
	}
	const struct mlp_in_args args = {.in = {.x = x, .weight = gpu_put(c, norm, (size_t)hidden * 4), .eps = 1e-5f, .h = h, .done = done}, .weight = &w,
	                                 .bias = bias_given ? gpu_put(c, bias, (size_t)n * 4) : NULL, .gelu = gelu, .gate_up = gate_up, .out = out};
	gpu_variant_begin(c);
	if (gpu_variant_end(c, OP(c->stream, mlp_in, &args, &c->err)))
		gpu_compare(c, "out", &out, want, size, 4 * gpu_unit(dtype) + (hidden + 64) * u, gpu_tiny(dtype));
	gpu_case_end(c);
}

struct mlp_variant {
	enum dtype dtype;
	int rows;
};
static void mlp_in_variant(struct gpu_check *c, const void *arg)
{
	const struct mlp_variant *v = arg;
	mlp_in_case(c, v->dtype, v->rows, 128, 80, v->rows > 1, v->rows == 3, v->rows % 4 == 1);
}

void gpu_check_mlp_in(struct gpu_check *c)
{
	GPU_EACH_DTYPE(dtype)
	{
		for (int rows = 1; rows <= 33; rows += c->quick ? 16 : 2)
			gpu_each_variant(c, &(struct linear_key){LINEAR_USE_MLP_IN, dtype, 160, 128, rows}, mlp_in_variant, &(struct mlp_variant){dtype, rows});
		for (int rows = 140; rows <= 300 && !c->quick; rows += 129) /* ragged tiles of many rows, with silu and gelu */
			gpu_each_variant(c, &(struct linear_key){LINEAR_USE_MLP_IN, dtype, 160, 128, rows}, mlp_in_variant, &(struct mlp_variant){dtype, rows});
		mlp_in_case(c, dtype, 1, 7, 5, false, false, false);
		mlp_in_case(c, dtype, 1, 64, 48, true, false, true);
		mlp_in_case(c, dtype, 3, 128, 64, false, true, false);
		mlp_in_case(c, dtype, 3, 128, 64, false, true, true);
		mlp_in_case(c, dtype, 17, 96, 33, true, false, true);
		if (!c->quick) mlp_in_case(c, dtype, 1, 1024, 1536, false, false, true);
		if (!c->quick) mlp_in_case(c, dtype, 16, 512, 1024, false, false, false);
	}
}

/* --- bench: the pass over q, k and v of Llama-3.1-8B (one rank and one of two) and of Qwen3-32B */

struct qkv_bench {
	struct gpu_qkv_args args;
	char *rows;
	size_t bytes;
	int n;
};

static void qkv_once(struct gpu_check *c, void *context, int i)
{
	struct qkv_bench *b = context;
	struct gpu_qkv_args args = b->args;
	args.qkv.data = b->rows + (size_t)(i % b->n) * b->bytes;
	args.layer = i % args.cache->layout.layers;
	gpu_ok(c, gpu_qkv(c->stream, &args, &c->err));
}

void gpu_bench_attention_in(struct gpu_check *c)
{
	static const struct in_case cases[] = {{1, 32, 8, 128, 128, 0, 64, false, false, false},   {16, 32, 8, 128, 128, 0, 64, false, false, false},
	                                       {64, 16, 4, 128, 128, 0, 64, false, false, false},  {1, 64, 8, 128, 128, 0, 64, true, false, false},
	                                       {8192, 32, 8, 128, 128, 0, 64, false, false, false}, {8192, 64, 8, 128, 128, 0, 64, true, false, false}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct in_case *ic = &cases[i];
		int cols = (ic->q_heads + 2 * ic->kv_heads) * ic->dim;
		gpu_case(c, DTYPE_BF16, FILL_RANDOM, "qkv rows T=%d heads %d+2x%d D=%d%s", ic->rows, ic->q_heads, ic->kv_heads, ic->dim, ic->norms ? " norms" : "");
		struct cache k = {.cache.layout = {.layers = 8, .blocks = ic->rows / 64 + 2, .block_tokens = 64, .kv_heads = ic->kv_heads, .head_dim = ic->dim, .dtype = DTYPE_BF16}};
		k.cache.data = gpu_random_room(c, DTYPE_BF16, c->ops->kv_bytes(&k.cache.layout) / 2, 1);
		int32_t *slot = gpu_host(c, (size_t)ic->rows * 4);
		for (int t = 0; t < ic->rows; t++) slot[t] = t + 64;
		struct qkv_bench b = {.bytes = (size_t)(ic->rows * cols) * 2};
		b.n = gpu_bench_rotation(c, b.bytes);
		b.rows = gpu_random_room(c, DTYPE_BF16, (size_t)b.n * b.bytes / 2, 1);
		float *weight = gpu_random_room(c, DTYPE_F32, 256, 1);
		b.args = (struct gpu_qkv_args){.qkv = tensor_view(NULL, DTYPE_BF16, TENSOR_SHARDED, ic->rows, cols), .q_heads = ic->q_heads, .kv_heads = ic->kv_heads,
		                               .head_dim = ic->dim, .rotary_dim = ic->rotary, .q_norm = ic->norms ? weight : NULL, .k_norm = ic->norms ? weight : NULL,
		                               .eps = 1e-6f, .cos_sin = gpu_random_room(c, DTYPE_F32, (size_t)(ic->rows * ic->rotary), 0.7f),
		                               .kv_slot = gpu_put(c, slot, (size_t)ic->rows * 4), .cache = &k.cache};
		gpu_bench_report(c, gpu_bench(c, qkv_once, &b, ic->rows > 512 ? 20 : 200), 4.0 * ic->rows * cols, 0);
		gpu_case_end(c);
	}
}
