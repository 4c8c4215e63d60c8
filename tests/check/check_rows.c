/* check_rows.c: the row-wise ops: embed, rms_norm, head_norm, rope, swiglu, tree_sum, gather_rows, and their speed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sumtree.h"
#include "check/check.h"

/* A view of [rows, cols] inside guarded memory with a row stride of its own; between rows lies what the fill put there. */
static struct tensor view_of(struct guarded *g, enum tensor_dist dist, int rows, int cols, int stride)
{
	struct tensor t = tensor_view(g->data, DTYPE_F32, dist, rows, cols);
	t.row_stride = stride;
	return t;
}

static struct guarded floats(size_t n)
{
	return guarded_alloc(n * 4);
}

static struct guarded filled(struct check *c, size_t n, uint64_t stream)
{
	struct guarded g = floats(n);
	fill_with(g.data, DTYPE_F32, n, c->fill, c->seed, stream);
	return g;
}

static size_t strided(int rows, int cols, int stride)
{
	return (size_t)(rows - 1) * (size_t)stride + (size_t)cols;
}

/* --- embed and gather_rows: exact copies */

static void embed_case(struct check *c, enum dtype dtype, int rows, int n, int k)
{
	case_begin(c, FILL_SPECIAL, "T=%d V=%d H=%d %s", rows, n, k, dtype_name(dtype));
	struct test_weight w = test_weight_make(c, dtype, n, k, 1);
	struct guarded out = floats(strided(rows, k, k + 2)), token = guarded_alloc((size_t)rows * 4);
	float *want = malloc(out.bytes), *one = malloc((size_t)k * 4);
	memset(want, 0xff, out.bytes);
	for (int t = 0; t < rows; t++) {
		int id = t * 7919 % n;
		((int32_t *)token.data)[t] = id;
		for (int i = 0; i < k; i++) want[(size_t)t * (size_t)(k + 2) + (size_t)i] = (float)element(w.source.data, dtype, (size_t)id * (size_t)k + (size_t)i);
	}
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		struct embed_args args = {.table = &w.w, .token = token.data, .out = view_of(&out, TENSOR_REPLICATED, rows, k, k + 2)};
		expect_ok(c, v, OP(v->stream, embed, &args, &err), &err);
		compare_bits(c, v, "out", out.data, want, out.bytes / 4);
		args.scale = 3.3f;
		expect_ok(c, v, OP(v->stream, embed, &args, &err), &err);
		for (int j = 0; j < k; j++) one[j] = want[j] * args.scale;
		compare_bits(c, v, "scaled", out.data, one, (size_t)k);
		expect_intact(c, v, &out, "out");
	}
	/* From some rows of the table: the others' tokens and the second slot are the zeros that change nothing. */
	const int granule = c->variant[0].device->vt->linear_granule, first = n / 3 / granule * granule, part = n - first < 2 * granule ? n - first : 2 * granule;
	struct guarded slots = floats(2 * strided(rows, k, k));
	float *sums = malloc(slots.bytes);
	for (size_t j = 0; j < 2 * (size_t)rows * (size_t)k; j++) sums[j] = -0.0f;
	for (int t = 0; t < rows; t++) {
		const int id = ((int32_t *)token.data)[t];
		if (id >= first && id < first + part) memcpy(sums + (size_t)t * (size_t)k, want + (size_t)t * (size_t)(k + 2), (size_t)k * 4);
	}
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&slots);
		struct linear_weight some = linear_view(v->device->vt, &w.w, first, part);
		struct embed_args args = {.table = &some, .begin = first, .token = token.data, .out = view_of(&slots, TENSOR_PARTIAL, rows, k, k)};
		args.out.slots = 2;
		expect_ok(c, v, OP(v->stream, embed, &args, &err), &err);
		compare_bits(c, v, "partial", slots.data, sums, slots.bytes / 4);
		expect_intact(c, v, &slots, "partial");
	}
	guarded_free(&slots), free(sums);
	/* The panels through linear_copy_rows, in two cuts, are the same panels. */
	const struct runner *v = &c->variant[c->variants - 1];
	struct error err = {0};
	struct guarded panels = guarded_alloc(w.panels.bytes);
	memset(panels.data, 0, panels.bytes);
	struct linear_weight copy = w.w;
	copy.data = panels.data;
	int cut = n / 2;
	expect_ok(c, v, v->device->vt->linear_copy_rows(v->stream, &copy, &w.w, 0, cut, &err), &err);
	expect_ok(c, v, v->device->vt->linear_copy_rows(v->stream, &copy, &w.w, cut, n - cut, &err), &err);
	if (memcmp(panels.data, w.panels.data, panels.bytes)) case_fail(c, v, "linear_copy_rows differs");
	for (int i = 0; i < k; i++) want[i] = (float)element(w.source.data, dtype, (size_t)i);
	if (dtype_is_plain(dtype)) {
		expect_ok(c, v, v->device->vt->vector_put(v->stream, one, w.source.data, dtype, k, &err), &err);
		compare_bits(c, v, "vector_put", one, want, (size_t)k);
	}
	case_end(c);
	test_weight_free(&w);
	guarded_free(&out), guarded_free(&token), guarded_free(&panels);
	free(want), free(one);
}

void check_embed(struct check *c)
{
	for (enum dtype dtype = DTYPE_PLAIN_COUNT; dtype < DTYPE_COUNT; dtype++) {
		embed_case(c, dtype, 1, 1, dtype_block(dtype));
		embed_case(c, dtype, 33, 100, 512);
	}
	for (enum dtype dtype = 0; dtype < DTYPE_PLAIN_COUNT; dtype++) {
		embed_case(c, dtype, 1, 1, 1);
		embed_case(c, dtype, 5, 33, 48);
		embed_case(c, dtype, 70, 100, 65);
		embed_case(c, dtype, 33, 500, 512);
	}
}

static void gather_case(struct check *c, int rows, int from, int cols)
{
	case_begin(c, FILL_SPECIAL, "%d of %d rows of %d", rows, from, cols);
	struct guarded x = filled(c, strided(from, cols, cols + 1), 1), out = floats(strided(rows, cols, cols + 3)), row = guarded_alloc((size_t)rows * 4);
	float *want = malloc(out.bytes);
	memset(want, 0xff, out.bytes);
	for (int i = 0; i < rows; i++) {
		int r = (i * 31 + 5) % from;
		((int32_t *)row.data)[i] = r;
		memcpy(want + (size_t)i * (size_t)(cols + 3), (float *)x.data + (size_t)r * (size_t)(cols + 1), (size_t)cols * 4);
	}
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		struct gather_rows_args args = {.x = view_of(&x, TENSOR_REPLICATED, from, cols, cols + 1), .row = row.data,
		                                .out = view_of(&out, TENSOR_REPLICATED, rows, cols, cols + 3)};
		expect_ok(c, v, OP(v->stream, gather_rows, &args, &err), &err);
		compare_bits(c, v, "out", out.data, want, out.bytes / 4);
		expect_intact(c, v, &out, "out");
	}
	case_end(c);
	guarded_free(&x), guarded_free(&out), guarded_free(&row);
	free(want);
}

void check_gather_rows(struct check *c)
{
	gather_case(c, 1, 1, 1);
	gather_case(c, 3, 9, 17);
	gather_case(c, 64, 512, 2048);
}

/* --- norms. Bound: the sum of squares has only positive terms, at most n/16 + 5 roundings of each; then mean, +eps, sqrt, 1/x, two
 * products, half of the first ones' relative error: (n/32 + 8) u |result|. */

static void norm_oracle(const float *x, const float *weight, int n, double eps, double *want, double *bound)
{
	double sum = 0;
	for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
	double r = 1 / sqrt(sum / n + eps);
	for (int i = 0; i < n; i++) {
		want[i] = (double)x[i] * r * (double)weight[i];
		bound[i] = (n / 32.0 + 8) * 0x1.01p-24 * fabs(want[i]) + 0x1p-148 * (1 + fabs((double)weight[i])); /* x*r may be subnormal */
	}
}

static void rms_norm_case(struct check *c, enum fill fill, int rows, int n)
{
	case_begin(c, fill, "T=%d H=%d", rows, n);
	int stride = n + 4;
	struct guarded x = filled(c, strided(rows, n, stride), 1), weight = filled(c, (size_t)n, 2), out = floats(strided(rows, n, n + 9));
	float *first = malloc(out.bytes), eps = 1e-6f;
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		struct rms_norm_args args = {.x = view_of(&x, TENSOR_REPLICATED, rows, n, stride), .weight = weight.data, .eps = eps,
		                             .out = view_of(&out, TENSOR_REPLICATED, rows, n, n + 9)};
		expect_ok(c, v, OP(v->stream, rms_norm, &args, &err), &err);
		expect_intact(c, v, &out, "out");
		if (!i) memcpy(first, out.data, out.bytes), reference_bits(c, first, out.bytes / 4);
		else compare_bits(c, v, "out", out.data, first, out.bytes / 4);
		/* in place gives the same */
		struct guarded same = filled(c, strided(rows, n, n + 9), 7);
		for (int t = 0; t < rows; t++) memcpy((float *)same.data + (size_t)t * (size_t)(n + 9), (float *)x.data + (size_t)t * (size_t)stride, (size_t)n * 4);
		args.x = args.out = view_of(&same, TENSOR_REPLICATED, rows, n, n + 9);
		expect_ok(c, v, OP(v->stream, rms_norm, &args, &err), &err);
		for (int t = 0; t < rows; t++)
			compare_bits(c, v, "in place", (float *)same.data + (size_t)t * (size_t)(n + 9), first + (size_t)t * (size_t)(n + 9), (size_t)n);
		guarded_free(&same);
	}
	if (fill == FILL_RANDOM || fill == FILL_ZERO || fill == FILL_DENORMAL) {
		double *want = malloc((size_t)n * 8), *bound = malloc((size_t)n * 8);
		for (int t = 0; t < rows; t++) {
			norm_oracle((float *)x.data + (size_t)t * (size_t)stride, weight.data, n, (double)eps, want, bound);
			compare_bound(c, "out", first + (size_t)t * (size_t)(n + 9), want, bound, (size_t)n);
		}
		free(want), free(bound);
	}
	case_end(c);
	guarded_free(&x), guarded_free(&weight), guarded_free(&out);
	free(first);
}

void check_rms_norm(struct check *c)
{
	static const int sizes[][2] = {{1, 1}, {1, 15}, {2, 16}, {3, 17}, {1, 2048}, {7, 100}, {40, 1536}};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (enum fill fill = 0; fill < FILL_COUNT; fill++) rms_norm_case(c, fill, sizes[i][0], sizes[i][1]);
}

/* An op that changes x in place: runs all variants on copies and leaves the reference's result in `first`. */
typedef enum status in_place_fn(struct check *c, const struct runner *v, struct tensor x, void *context, struct error *err);

static float *run_in_place(struct check *c, const struct guarded *x, struct tensor view, in_place_fn *fn, void *context)
{
	float *first = malloc(x->bytes);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		struct guarded copy = guarded_alloc(x->bytes);
		memcpy(copy.data, x->data, x->bytes);
		view.data = copy.data;
		expect_ok(c, v, fn(c, v, view, context, &err), &err);
		expect_intact(c, v, &copy, "x");
		if (!i) memcpy(first, copy.data, copy.bytes), reference_bits(c, first, copy.bytes / 4);
		else compare_bits(c, v, "x", copy.data, first, copy.bytes / 4);
		guarded_free(&copy);
	}
	return first;
}

static enum status head_norm_call(struct check *c, const struct runner *v, struct tensor x, void *context, struct error *err)
{
	(void)c;
	struct head_norm_args *args = context;
	args->x = x;
	return OP(v->stream, head_norm, args, err);
}

static void head_norm_case(struct check *c, enum fill fill, int rows, int heads, int dim)
{
	case_begin(c, fill, "T=%d heads=%d D=%d", rows, heads, dim);
	int cols = heads * dim, stride = cols + 16;
	struct guarded x = filled(c, strided(rows, cols, stride), 1), weight = filled(c, (size_t)dim, 2);
	struct head_norm_args args = {.heads = heads, .head_dim = dim, .weight = weight.data, .eps = 1e-5f};
	float *first = run_in_place(c, &x, view_of(&x, TENSOR_SHARDED, rows, cols, stride), head_norm_call, &args);
	double want[256], bound[256];
	for (int t = 0; fill == FILL_RANDOM && t < rows; t++)
		for (int h = 0; h < heads; h++) {
			size_t at = (size_t)t * (size_t)stride + (size_t)(h * dim);
			norm_oracle((float *)x.data + at, weight.data, dim, 1e-5, want, bound);
			compare_bound(c, "x", first + at, want, bound, (size_t)dim);
		}
	case_end(c);
	guarded_free(&x), guarded_free(&weight);
	free(first);
}

void check_head_norm(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		head_norm_case(c, fill, 1, 1, 8);
		head_norm_case(c, fill, 3, 5, 40);
		head_norm_case(c, fill, 33, 16, 128);
		head_norm_case(c, fill, 2, 2, 256);
	}
}

/* --- rope. Bound: one product and one fused step: u |b s| + u |result| <= 2 u (|a c| + |b s|). */

static enum status rope_call(struct check *c, const struct runner *v, struct tensor x, void *context, struct error *err)
{
	(void)c;
	struct rope_args *args = context;
	args->x = x;
	return OP(v->stream, rope, args, err);
}

static void rope_case(struct check *c, enum fill fill, int rows, int heads, int dim, int rotary)
{
	case_begin(c, fill, "T=%d heads=%d D=%d rotary=%d", rows, heads, dim, rotary);
	int cols = heads * dim, stride = cols + 8, half = rotary / 2;
	struct guarded x = filled(c, strided(rows, cols, stride), 1), cs = filled(c, (size_t)rows * (size_t)rotary, 2);
	struct rope_args args = {.heads = heads, .head_dim = dim, .rotary_dim = rotary, .cos_sin = cs.data};
	float *first = run_in_place(c, &x, view_of(&x, TENSOR_SHARDED, rows, cols, stride), rope_call, &args);
	double want[256], bound[256];
	for (int t = 0; fill == FILL_RANDOM && t < rows; t++)
		for (int h = 0; h < heads; h++) {
			const float *in = (float *)x.data + (size_t)t * (size_t)stride + (size_t)(h * dim), *cosine = (float *)cs.data + (size_t)t * (size_t)rotary;
			for (int i = 0; i < dim; i++) want[i] = (double)in[i], bound[i] = 0;
			for (int i = 0; i < half; i++) {
				double a = (double)in[i], b = (double)in[i + half], co = (double)cosine[i], si = (double)cosine[i + half];
				want[i] = a * co - b * si;
				want[i + half] = b * co + a * si;
				bound[i] = 2 * 0x1p-24 * (fabs(a * co) + fabs(b * si)) * 1.01 + 0x1p-149;
				bound[i + half] = 2 * 0x1p-24 * (fabs(b * co) + fabs(a * si)) * 1.01 + 0x1p-149;
			}
			compare_bound(c, "x", first + (size_t)t * (size_t)stride + (size_t)(h * dim), want, bound, (size_t)dim);
		}
	case_end(c);
	guarded_free(&x), guarded_free(&cs);
	free(first);
}

void check_rope(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		rope_case(c, fill, 1, 1, 8, 2);
		rope_case(c, fill, 3, 4, 64, 64);
		rope_case(c, fill, 5, 2, 80, 32);
		rope_case(c, fill, 2, 3, 96, 70);
		rope_case(c, fill, 65, 8, 128, 128);
	}
}

/* --- swiglu. Bound: exp 1.1 ulp (2.2 u), 1 + e, the quotient and the product one u each: 6 u |result|; where exp(-g) overflows or the
 * result is subnormal, an absolute 2^-126 |u|. */

static void swiglu_case(struct check *c, enum fill fill, int rows, int n, float scale)
{
	case_begin(c, fill, "T=%d I=%d scale %g", rows, n, (double)scale);
	int stride = 2 * n + 3;
	struct guarded x = filled(c, strided(rows, 2 * n, stride), 1), out = floats(strided(rows, n, n + 2));
	for (size_t i = 0; i < x.bytes / 4; i++) ((float *)x.data)[i] *= scale;
	float *first = malloc(out.bytes);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		struct swiglu_args args = {.x = view_of(&x, TENSOR_SHARDED, rows, 2 * n, stride), .out = view_of(&out, TENSOR_SHARDED, rows, n, n + 2)};
		expect_ok(c, v, OP(v->stream, swiglu, &args, &err), &err);
		expect_intact(c, v, &out, "out");
		if (!i) memcpy(first, out.data, out.bytes), reference_bits(c, first, out.bytes / 4);
		else compare_bits(c, v, "out", out.data, first, out.bytes / 4);
	}
	double *want = malloc((size_t)n * 8), *bound = malloc((size_t)n * 8);
	for (int t = 0; (fill == FILL_RANDOM || fill == FILL_ZERO) && t < rows; t++) {
		const float *gate = (float *)x.data + (size_t)t * (size_t)stride;
		for (int i = 0; i < n; i++) {
			double g = (double)gate[i], u = (double)gate[n + i];
			want[i] = g / (1 + exp(-g)) * u;
			bound[i] = 6 * 0x1.01p-24 * fabs(want[i]) + 0x1p-126 * (fabs(u) + 1) * 100;
		}
		compare_bound(c, "out", first + (size_t)t * (size_t)(n + 2), want, bound, (size_t)n);
	}
	case_end(c);
	guarded_free(&x), guarded_free(&out);
	free(first), free(want), free(bound);
}

void check_swiglu(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		swiglu_case(c, fill, 1, 1, 1);
		swiglu_case(c, fill, 3, 17, 10);
		swiglu_case(c, fill, 2, 1000, 100);
		swiglu_case(c, fill, 40, 704, 8);
	}
}

/* --- tree_sum. Bound: every element passes at most depth + 2 additions: (24 + 2) u sum of magnitudes. */

struct tree_case {
	int sources, rows, cols, begin, end;
	bool residual, bias;
};

static void tree_sum_case(struct check *c, enum fill fill, const struct tree_case *tc)
{
	case_begin(c, fill, "%d sources T=%d H=%d rows %d..%d%s%s", tc->sources, tc->rows, tc->cols, tc->begin, tc->end, tc->residual ? " residual" : "",
	           tc->bias ? " bias" : "");
	size_t dense = (size_t)tc->rows * (size_t)tc->cols;
	int stride = tc->cols + 5;
	struct guarded source = filled(c, dense * (size_t)tc->sources, 1), bias = filled(c, (size_t)tc->cols, 2);
	struct guarded residual = filled(c, strided(tc->rows, tc->cols, stride), 3), out = floats(strided(tc->rows, tc->cols, stride));
	struct tree_sum_args args = {.sources = tc->sources, .row_begin = tc->begin, .row_end = tc->end, .bias = tc->bias ? bias.data : NULL};
	for (int s = 0; s < tc->sources; s++) args.source[s] = (float *)source.data + (size_t)s * dense;
	sumtree_leaf_program(tc->sources, (struct sum_span){0, (int16_t)tc->sources}, args.merges);
	if (tc->residual) args.residual = view_of(&residual, TENSOR_REPLICATED, tc->rows, tc->cols, stride);
	args.out = view_of(&out, TENSOR_REPLICATED, tc->rows, tc->cols, stride);
	float *first = malloc(out.bytes);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		expect_ok(c, v, OP(v->stream, tree_sum, &args, &err), &err);
		expect_intact(c, v, &out, "out");
		if (!i) memcpy(first, out.data, out.bytes), reference_bits(c, first, out.bytes / 4);
		else compare_bits(c, v, "out", out.data, first, out.bytes / 4);
	}
	for (int t = 0; t < tc->rows; t++)
		for (int i = 0; i < tc->cols; i++) {
			size_t at = (size_t)t * (size_t)stride + (size_t)i;
			double sum = 0, size = 0;
			if (t < tc->begin || t >= tc->end) { /* other ranks' rows stay as they were */
				if (f32_to_bits(first[at]) != 0xffffffffu) case_fail(c, NULL, "row %d was written", t);
				continue;
			}
			for (int s = 0; s < tc->sources; s++) sum += (double)((const float *)args.source[s])[(size_t)t * (size_t)tc->cols + (size_t)i];
			for (int s = 0; s < tc->sources; s++) size += fabs((double)((const float *)args.source[s])[(size_t)t * (size_t)tc->cols + (size_t)i]);
			if (tc->bias) sum += (double)((float *)bias.data)[i], size += fabs((double)((float *)bias.data)[i]);
			if (tc->residual) sum += (double)((float *)residual.data)[at], size += fabs((double)((float *)residual.data)[at]);
			double bound = 26 * 0x1.01p-24 * size;
			if (fill == FILL_RANDOM || fill == FILL_ZERO || fill == FILL_DENORMAL) compare_bound(c, "out", &first[at], &sum, &bound, 1);
		}
	case_end(c);
	guarded_free(&source), guarded_free(&bias), guarded_free(&residual), guarded_free(&out);
	free(first);
}

void check_tree_sum(struct check *c)
{
	static const struct tree_case cases[] = {
		{1, 1, 1, 0, 1, false, false}, {2, 3, 17, 0, 3, true, false}, {3, 5, 100, 1, 4, true, true}, {7, 2, 33, 0, 2, false, true},
		{8, 40, 512, 10, 30, true, false}, {24, 2, 65, 0, 1, true, true}, {128, 1, 48, 0, 1, true, false}, {4, 3, 31, 2, 2, false, false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (enum fill fill = 0; fill < FILL_COUNT; fill++) tree_sum_case(c, fill, &cases[i]);
}

/* --- bench: bytes moved against the read peak; at these sizes the rows mostly stay in cache */

struct rows_bench {
	const struct runner *v;
	enum { ROWS_NORM, ROWS_SWIGLU, ROWS_ROPE, ROWS_TREE } op;
	struct rms_norm_args norm;
	struct swiglu_args swiglu;
	struct rope_args rope;
	struct tree_sum_args tree;
};

static void rows_step(void *context)
{
	struct rows_bench *b = context;
	struct error err = {0};
	enum status st = STATUS_OK;
	switch (b->op) {
	case ROWS_NORM: st = OP(b->v->stream, rms_norm, &b->norm, &err); break;
	case ROWS_SWIGLU: st = OP(b->v->stream, swiglu, &b->swiglu, &err); break;
	case ROWS_ROPE: st = OP(b->v->stream, rope, &b->rope, &err); break;
	case ROWS_TREE: st = OP(b->v->stream, tree_sum, &b->tree, &err); break;
	}
	if (st != STATUS_OK) printf("bench: %s\n", err.text);
}

static void bench_rows_of(struct check *c, int rows)
{
	enum { H = 2048, I = 5632, HEADS = 32, D = 64 };
	size_t most = (size_t)rows * 2 * I;
	float *x = calloc(most, 4), *y = calloc(most, 4), *w = calloc(H, 4), *cs = calloc((size_t)rows * D, 4), *parts = calloc((size_t)rows * H * 2, 4);
	fill_with(x, DTYPE_F32, most, FILL_RANDOM, 1, 1);
	struct rows_bench b = {
		.v = &c->variant[0],
		.norm = {.x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, H), .weight = w, .eps = 1e-6f, .out = tensor_view(y, DTYPE_F32, TENSOR_REPLICATED, rows, H)},
		.swiglu = {.x = tensor_view(x, DTYPE_F32, TENSOR_SHARDED, rows, 2 * I), .out = tensor_view(y, DTYPE_F32, TENSOR_SHARDED, rows, I)},
		.rope = {.x = tensor_view(y, DTYPE_F32, TENSOR_SHARDED, rows, HEADS * D), .heads = HEADS, .head_dim = D, .rotary_dim = D, .cos_sin = cs},
		.tree = {.sources = 2, .source = {parts, parts + (size_t)rows * H}, .merges = {0, 1}, .row_end = rows,
	                 .residual = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, H), .out = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, H)},
	};
	static const char *const names[] = {"rms_norm H=2048", "swiglu I=5632", "rope 32x64", "tree_sum 2 x 2048"};
	static const double per_row[] = {2 * H, 3 * I, 2 * HEADS * D, 4 * H};
	for (int op = ROWS_NORM; op <= ROWS_TREE; op++) {
		b.op = op;
		struct bench_timer t = bench_run(rows_step, &b);
		printf("%-18s T=%-4d %8.2f us, %6.1f GB/s\n", names[op], rows, t.median_s * 1e6, per_row[op] * rows * 4e-9 / t.median_s);
	}
	free(x), free(y), free(w), free(cs), free(parts);
}

void bench_rows(struct check *c)
{
	bench_rows_of(c, 1);
	bench_rows_of(c, 16);
	bench_rows_of(c, 512);
}
