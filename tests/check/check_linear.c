/* check_linear.c: linears of every row count around the tile heights, with and without a split, and their speed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sumtree.h"
#include "check/check.h"

struct linear_case {
	enum dtype dtype;
	int rows, n, k;
	bool bias;
	int tree_leaves, first, leaves; /* tree_leaves 0: no split */
};

/* Bound of one element: each of the k fused steps, each merge and the bias rounds once: |error| <= (k + merges + 1) u sum|x w| (1 + small),
 * u = 2^-24, and half a subnormal step each where results are that small. */
static void oracle(const struct linear_case *lc, const struct sum_split *split, const float *x, int x_stride, const struct test_weight *w,
                   const float *bias, int slot, double *want, double *bound)
{
	int k0 = 0, k1 = lc->k;
	if (split) {
		k0 = (split->span[slot].lo - split->first) * (lc->k / split->leaves);
		k1 = (split->span[slot].hi - split->first) * (lc->k / split->leaves);
	}
	for (int r = 0; r < lc->rows; r++)
		for (int j = 0; j < lc->n; j++) {
			double sum = bias ? (double)bias[j] : 0, magnitude = fabs(sum);
			for (int k = k0; k < k1; k++) {
				double term = (double)x[(size_t)r * (size_t)x_stride + (size_t)k] * element(w->source.data, lc->dtype, (size_t)j * (size_t)lc->k + (size_t)k);
				sum += term;
				magnitude += fabs(term);
			}
			want[(size_t)r * (size_t)lc->n + (size_t)j] = sum;
			bound[(size_t)r * (size_t)lc->n + (size_t)j] = (lc->k + 16) * (0x1.01p-24 * magnitude + 0x1p-150);
		}
}

/* A library adds in an order of its own: as near as two orders can be, and nothing written between rows. */
static void compare_library(struct check *c, const struct runner *o, const struct linear_args *args, const float *y, const float *first)
{
	const struct tensor *t = &args->y;
	double diff = 0, all = 0;
	for (int s = 0; s < t->slots; s++)
		for (int r = 0; r < t->rows; r++)
			for (int64_t i = 0; i < t->row_stride && s * t->slot_stride + r * t->row_stride + i < (int64_t)t->slots * t->slot_stride; i++) {
				int64_t at = s * t->slot_stride + r * t->row_stride + i;
				if (i >= t->cols && memcmp(&y[at], &first[at], 4)) case_fail(c, o, "oneDNN wrote behind row %d of slot %d", r, s);
				if (i >= t->cols) continue;
				diff += ((double)y[at] - (double)first[at]) * ((double)y[at] - (double)first[at]);
				all += (double)first[at] * (double)first[at];
			}
	if (!(diff <= all * 1e-10)) case_fail(c, o, "oneDNN is off by %.3g, relative", sqrt(diff / all));
}

/* Every variant by name: taken when asked for, and the same bits; one that cannot compute the problem is an error and never another in silence. */
static void run_variants(struct check *c, const struct runner *o, const struct linear_case *lc, struct linear_args *args, struct guarded *y, const float *first)
{
	const struct device_ops *vt = o->device->vt;
	struct variant list[32], ran;
	struct linear_preference prefer = {.key = {.use = lc->tree_leaves ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN, .dtype = lc->dtype, .n = lc->n, .k = lc->k, .m = lc->rows},
	                                   .m_low = lc->rows, .m_high = lc->rows};
	int count = vt->linear_variants(o->stream, &prefer.key, list, 32), leaf_k = lc->tree_leaves ? lc->k / lc->leaves : lc->k;
	if (count < 4 || count == 32 || strcmp(list[0].kernel, "default")) case_fail(c, o, "%d variants, the first '%s'", count, list[0].kernel);
	for (int i = 0; i < count; i++) {
		struct error err = {0};
		prefer.variant = list[i];
		guarded_poison(y);
		expect_ok(c, o, vt->linear_prefer(o->stream, &prefer, 1, &err), &err);
		enum status st = OP(o->stream, linear, args, &err);
		bool straight = !dtype_is_plain(lc->dtype) && i && !strstr(list[i].mode, "widened");
		if (straight && leaf_k % 32) {
			if (st != STATUS_BAD_INPUT) case_fail(c, o, "'%s' with leaves of %d inputs: status %d", list[i].mode, leaf_k, (int)st);
			continue;
		}
		expect_ok(c, o, st, &err);
		if (list[i].invariant) compare_bits(c, o, list[i].mode, y->data, first, y->bytes / 4);
		else compare_library(c, o, args, y->data, first);
		vt->linear_ran(o->stream, &ran);
		if (list[i].invariant != (strcmp(list[i].kernel, "onednn") != 0) || (i && (strcmp(ran.kernel, list[i].kernel) || strcmp(ran.mode, list[i].mode))))
			case_fail(c, o, "asked for '%s' '%s', ran '%s' '%s'", list[i].kernel, list[i].mode, ran.kernel, ran.mode);
	}
	struct error err = {0};
	prefer.variant = (struct variant){.kernel = "panels", .mode = "avx512, 3 panels, whole k"};
	if (vt->linear_prefer(o->stream, &prefer, 1, &err) != STATUS_BAD_INPUT) case_fail(c, o, "a variant that does not exist was accepted");
	expect_ok(c, o, vt->linear_prefer(o->stream, NULL, 0, &err), &err);
}

static void run_case(struct check *c, const struct linear_case *lc, enum fill fill)
{
	case_begin(c, fill, "M=%d N=%d K=%d %s%s leaves %d+%d of %d", lc->rows, lc->n, lc->k, dtype_name(lc->dtype), lc->bias ? " bias" : "", lc->first,
	           lc->leaves, lc->tree_leaves);
	struct sum_split split = {.tree_leaves = lc->tree_leaves, .first = lc->first, .leaves = lc->leaves};
	if (lc->tree_leaves) split.spans = sumtree_spans(lc->tree_leaves, lc->first, lc->first + lc->leaves, split.span);
	int slots = lc->tree_leaves ? split.spans : 1, x_stride = lc->k + 3, y_stride = lc->n + 5;
	size_t slot_stride = (size_t)lc->rows * (size_t)y_stride + 7, y_floats = (size_t)slots * slot_stride;
	struct guarded x = guarded_alloc(((size_t)(lc->rows - 1) * (size_t)x_stride + (size_t)lc->k) * 4), bias = guarded_alloc((size_t)lc->n * 4);
	struct guarded y = guarded_alloc(y_floats * 4);
	float *first = malloc(y_floats * 4);
	fill_with(x.data, DTYPE_F32, x.bytes / 4, fill, c->seed, 1);
	fill_with(bias.data, DTYPE_F32, (size_t)lc->n, fill, c->seed, 2);
	struct test_weight w = test_weight_make(c, lc->dtype, lc->n, lc->k, 3);
	struct linear_args args = {
		.x = {.data = x.data, .dtype = DTYPE_F32, .dist = lc->tree_leaves ? TENSOR_SHARDED : TENSOR_REPLICATED, .slots = 1, .rows = lc->rows, .cols = lc->k, .row_stride = x_stride},
		.weight = &w.w,
		.bias = lc->bias ? bias.data : NULL,
		.split = lc->tree_leaves ? &split : NULL,
		.y = {.data = y.data, .dtype = DTYPE_F32, .dist = lc->tree_leaves ? TENSOR_PARTIAL : TENSOR_SHARDED, .slots = slots, .rows = lc->rows,
	              .cols = lc->n, .row_stride = y_stride, .slot_stride = (int64_t)slot_stride},
	};
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&y); /* what lies between rows must stay poison: the whole buffer is compared */
		expect_ok(c, v, OP(v->stream, linear, &args, &err), &err);
		expect_intact(c, v, &y, "y");
		if (i == 0) memcpy(first, y.data, y.bytes);
		if (i == 0 && lc->dtype < DTYPE_PLAIN_COUNT) reference_bits(c, first, y_floats); /* block types: what gguf.sh compares */
		if (i > 0) compare_bits(c, v, "y", y.data, first, y_floats);
		if (fill == FILL_RANDOM && i > 0 && i + 1 >= c->variants - 1) run_variants(c, v, lc, &args, &y, first);
	}
	if (fill == FILL_RANDOM || fill == FILL_ZERO || fill == FILL_DENORMAL) {
		size_t n = (size_t)lc->rows * (size_t)lc->n;
		double *want = malloc(n * 8), *bound = malloc(n * 8);
		float *got = malloc(n * 4);
		for (int s = 0; s < slots; s++) {
			oracle(lc, args.split, x.data, x_stride, &w, args.bias, s, want, bound);
			for (int r = 0; r < lc->rows; r++) memcpy(got + (size_t)r * (size_t)lc->n, first + (size_t)s * slot_stride + (size_t)r * (size_t)y_stride, (size_t)lc->n * 4);
			compare_bound(c, "y", got, want, bound, n);
		}
		free(want), free(bound), free(got);
	}
	case_end(c);
	test_weight_free(&w);
	guarded_free(&x), guarded_free(&bias), guarded_free(&y);
	free(first);
}

/* One rank's outputs are the sum over ranks' outputs, whatever the number of ranks: the spans of P ranks finished along the tree equal those of
 * one rank, bit for bit. */
static void run_world(struct check *c, int tree_leaves, int leaf_k, int rows, int n)
{
	int k = tree_leaves * leaf_k;
	case_begin(c, FILL_RANDOM, "every world size of %d leaves, M=%d N=%d K=%d", tree_leaves, rows, n, k);
	const struct runner *v = &c->variant[c->variants - 1];
	struct test_weight whole = test_weight_make(c, DTYPE_BF16, n, k, 3);
	size_t y_floats = (size_t)rows * (size_t)n;
	float *x = malloc((size_t)rows * (size_t)k * 4), *first = malloc(y_floats * 4), *out = malloc(y_floats * 4);
	float *y = malloc(y_floats * 4 * TREE_SUM_MAX_SOURCES);
	fill_with(x, DTYPE_F32, (size_t)rows * (size_t)k, FILL_RANDOM, c->seed, 1);
	for (int world = 1; world <= tree_leaves; world++) {
		if (tree_leaves % world) continue;
		struct tree_sum_args sum = {.row_end = rows, .out = tensor_view(out, DTYPE_F32, TENSOR_REPLICATED, rows, n)};
		struct sum_span items[TREE_SUM_MAX_SOURCES];
		int local_k = k / world, leaves = tree_leaves / world;
		struct error err = {0};
		for (int r = 0; r < world; r++) {
			struct sum_split split = {.tree_leaves = tree_leaves, .first = r * leaves, .leaves = leaves};
			split.spans = sumtree_spans(tree_leaves, split.first, split.first + leaves, split.span);
			struct test_weight w = {.w = {.dtype = DTYPE_BF16, .n = n, .k = local_k}};
			w.panels = guarded_alloc(v->device->vt->linear_bytes(DTYPE_BF16, n, local_k));
			w.w.data = w.panels.data;
			memset(w.w.data, 0, w.panels.bytes);
			expect_ok(c, v, v->device->vt->linear_put(v->stream, &w.w, 0, n, (char *)whole.source.data + (size_t)r * (size_t)local_k * 2, (size_t)k * 2, &err), &err);
			struct tensor xt = tensor_view(x, DTYPE_F32, TENSOR_SHARDED, rows, k);
			struct linear_args args = {.x = tensor_columns(&xt, r * local_k, local_k), .weight = &w.w, .split = &split,
			                           .y = tensor_view(y + (size_t)sum.sources * y_floats, DTYPE_F32, TENSOR_PARTIAL, rows, n)};
			args.y.slots = split.spans;
			expect_ok(c, v, OP(v->stream, linear, &args, &err), &err);
			for (int s = 0; s < split.spans; s++) {
				items[sum.sources] = split.span[s];
				sum.source[sum.sources] = y + (size_t)sum.sources * y_floats;
				sum.sources++;
			}
			guarded_free(&w.panels);
		}
		sumtree_program(tree_leaves, (struct sum_span){0, (int16_t)tree_leaves}, items, sum.sources, sum.merges);
		expect_ok(c, v, OP(v->stream, tree_sum, &sum, &err), &err);
		if (world == 1) memcpy(first, out, y_floats * 4);
		else compare_bits(c, v, "sum over ranks", out, first, y_floats);
	}
	case_end(c);
	test_weight_free(&whole);
	free(x), free(first), free(out), free(y);
}

/* The batch does not matter: M rows at once equal each row alone. */
static void run_batch(struct check *c, int rows, int n, int k)
{
	case_begin(c, FILL_RANDOM, "%d rows at once against one by one, N=%d K=%d", rows, n, k);
	struct test_weight w = test_weight_make(c, DTYPE_BF16, n, k, 3);
	float *x = malloc((size_t)rows * (size_t)k * 4), *together = malloc((size_t)rows * (size_t)n * 4), *alone = malloc((size_t)n * 4);
	fill_with(x, DTYPE_F32, (size_t)rows * (size_t)k, FILL_RANDOM, c->seed, 1);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		struct linear_args args = {.x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, k), .weight = &w.w,
		                           .y = tensor_view(together, DTYPE_F32, TENSOR_REPLICATED, rows, n)};
		expect_ok(c, v, OP(v->stream, linear, &args, &err), &err);
		for (int r = 0; r < rows; r += rows / 5 + 1) {
			args.x = tensor_view(x + (size_t)r * (size_t)k, DTYPE_F32, TENSOR_REPLICATED, 1, k);
			args.y = tensor_view(alone, DTYPE_F32, TENSOR_REPLICATED, 1, n);
			expect_ok(c, v, OP(v->stream, linear, &args, &err), &err);
			compare_bits(c, v, "row", together + (size_t)r * (size_t)n, alone, (size_t)n);
		}
	}
	case_end(c);
	test_weight_free(&w);
	free(x), free(together), free(alone);
}

void check_linear(struct check *c)
{
	static const struct linear_case cases[] = {
		{DTYPE_BF16, 1, 1, 1, .bias = true},
		{DTYPE_BF16, 1, 33, 65, .bias = true},
		{DTYPE_F16, 1, 31, 64, .bias = false},
		{DTYPE_F32, 1, 64, 7, .bias = true},
		{DTYPE_BF16, 2, 95, 129, .bias = false},
		{DTYPE_BF16, 3, 32, 300, .bias = true},
		{DTYPE_F16, 4, 40, 257, .bias = false},
		{DTYPE_F32, 5, 65, 130, .bias = false},
		{DTYPE_BF16, 13, 33, 128, .bias = false},
		{DTYPE_BF16, 14, 64, 127, .bias = false},
		{DTYPE_BF16, 15, 63, 129, .bias = true},
		{DTYPE_F16, 28, 65, 300, .bias = true},
		{DTYPE_F32, 29, 130, 400, .bias = false},
		{DTYPE_BF16, 113, 40, 257, .bias = false},
		{DTYPE_BF16, 1, 64, 512, .tree_leaves = 8, .first = 0, .leaves = 8},
		{DTYPE_BF16, 1, 33, 96, .tree_leaves = 6, .first = 3, .leaves = 3},
		{DTYPE_BF16, 7, 70, 24, .tree_leaves = 24, .first = 0, .leaves = 24},
		{DTYPE_F16, 17, 33, 840, .tree_leaves = 24, .first = 5, .leaves = 7},
		{DTYPE_F32, 40, 33, 600, .tree_leaves = 12, .first = 4, .leaves = 4},
		{DTYPE_BF16, 130, 33, 840, .tree_leaves = 8, .first = 2, .leaves = 4},
		{DTYPE_BF16, 1, 20, 840, .tree_leaves = 840, .first = 0, .leaves = 840},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (enum fill fill = 0; fill < FILL_COUNT; fill++) run_case(c, &cases[i], fill);
	/* Block types: with and without scratch, leaves of whole groups and of others. */
	for (enum dtype dtype = DTYPE_PLAIN_COUNT; dtype < DTYPE_COUNT; dtype++) {
		int block = dtype_block(dtype);
		for (enum fill fill = 0; fill < FILL_COUNT; fill++) run_case(c, &(struct linear_case){dtype, 1, 33, block, .bias = true}, fill);
		for (int rows = 2; rows <= 17; rows++) run_case(c, &(struct linear_case){dtype, rows, 64, 512, .bias = false}, FILL_RANDOM);
		run_case(c, &(struct linear_case){dtype, 3, 70, 768, .tree_leaves = 6, .first = 3, .leaves = 3}, FILL_RANDOM);
		run_case(c, &(struct linear_case){dtype, 1, 33, 768, .tree_leaves = 7 * 3, .first = 0, .leaves = 16}, FILL_EXTREME);
		run_case(c, &(struct linear_case){dtype, 17, 33, 768, .tree_leaves = 30, .first = 6, .leaves = 24}, FILL_RANDOM);
		run_case(c, &(struct linear_case){dtype, 115, 40, 1280, .bias = true}, FILL_SPECIAL);
	}
	for (int rows = 6; rows <= 30; rows += 3) run_case(c, &(struct linear_case){DTYPE_BF16, rows, 96, 160, .bias = false}, FILL_RANDOM);
	run_world(c, 8, 16, 1, 40);
	run_world(c, 24, 12, 3, 33);
	run_world(c, 12, 36, 20, 33);
	run_batch(c, 16, 100, 200);
	run_batch(c, 61, 64, 300);
	if (c->quick) return;
	run_case(c, &(struct linear_case){DTYPE_BF16, 1, 2048, 2048, .bias = false}, FILL_RANDOM);
	run_case(c, &(struct linear_case){DTYPE_BF16, 130, 512, 1408, .tree_leaves = 8, .first = 0, .leaves = 8}, FILL_RANDOM);
	run_batch(c, 512, 160, 704);
}

/* --- bench ------------------------------------------------------------------------------------------------------------ */

/* Copies of one weight, larger together than any cache, used in turn. */
struct linear_bench {
	const struct runner *v;
	struct linear_args args;
	struct linear_weight *weights;
	int count, next;
};

static void bench_step(void *context)
{
	struct linear_bench *b = context;
	struct error err = {0};
	b->args.weight = &b->weights[b->next++ % b->count];
	if (OP(b->v->stream, linear, &b->args, &err) != STATUS_OK) printf("bench: %s\n", err.text);
}

static void bench_shape(struct check *c, enum dtype dtype, int rows, int n, int k, int leaves)
{
	const struct runner *v = &c->variant[0];
	const struct device_ops *vt = v->device->vt;
	size_t bytes = vt->linear_bytes(dtype, n, k);
	struct linear_bench b = {.v = v, .count = (int)(400000000 / bytes) + 1};
	struct error err = {0};
	void *x, *y;
	b.weights = calloc((size_t)b.count, sizeof *b.weights);
	for (int i = 0; i < b.count; i++) {
		b.weights[i] = (struct linear_weight){.dtype = dtype, .n = n, .k = k};
		if (vt->alloc(v->device, bytes, MEM_SHARDED, "bench", &b.weights[i].data, &err) != STATUS_OK) return;
		memset(b.weights[i].data, 0x3c, bytes);
	}
	(void)!vt->alloc(v->device, (size_t)rows * (size_t)k * 4, MEM_WORKSPACE, "bench", &x, &err);
	(void)!vt->alloc(v->device, (size_t)rows * (size_t)n * 4, MEM_WORKSPACE, "bench", &y, &err);
	fill_with(x, DTYPE_F32, (size_t)rows * (size_t)k, FILL_RANDOM, 1, 1);
	struct sum_split split = {.tree_leaves = leaves, .leaves = leaves, .spans = 1, .span = {{0, (int16_t)leaves}}};
	b.args = (struct linear_args){.x = tensor_view(x, DTYPE_F32, leaves ? TENSOR_SHARDED : TENSOR_REPLICATED, rows, k),
	                              .y = tensor_view(y, DTYPE_F32, leaves ? TENSOR_PARTIAL : TENSOR_SHARDED, rows, n),
	                              .split = leaves ? &split : NULL};
	struct bench_timer t = bench_run(bench_step, &b);
	double gb = (double)bytes * 1e-9, gflop = 2.0 * rows * n * k * 1e-9;
	printf("linear %s M=%-4d N=%-5d K=%-5d leaves %d: %8.1f us median (%8.1f best), %5.1f GB/s = %3.0f %% of read, %6.1f GFLOP/s = %3.0f %% of fma (best %3.0f %% %3.0f %%)\n",
	       dtype_name(dtype), rows, n, k, leaves, t.median_s * 1e6, t.best_s * 1e6, gb / t.median_s, 100 * gb / t.median_s / c->read_gbps, gflop / t.median_s,
	       100 * gflop / t.median_s / c->fma_gflops, 100 * gb / t.best_s / c->read_gbps, 100 * gflop / t.best_s / c->fma_gflops);
	fflush(stdout);
	for (int i = 0; i < b.count; i++) vt->free(v->device, b.weights[i].data);
	vt->free(v->device, x), vt->free(v->device, y);
	free(b.weights);
}

void bench_linear(struct check *c)
{
	static const int rows[] = {1, 2, 3, 4, 6, 8, 12, 14, 15, 16, 17, 24, 32, 64, 128, 512};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench_shape(c, DTYPE_BF16, rows[i], 5632, 2048, 0);
	bench_shape(c, DTYPE_BF16, 1, 2048, 2048, 0);
	bench_shape(c, DTYPE_BF16, 1, 512, 2048, 0);
	bench_shape(c, DTYPE_BF16, 1, 2048, 5632, 8);
	bench_shape(c, DTYPE_BF16, 1, 2048, 704, 2);
	bench_shape(c, DTYPE_BF16, 512, 2048, 2048, 0);
	bench_shape(c, DTYPE_BF16, 512, 2048, 5632, 8);
	bench_shape(c, DTYPE_F16, 1, 5632, 2048, 0);
	bench_shape(c, DTYPE_F16, 512, 5632, 2048, 0);
	for (enum dtype dtype = DTYPE_PLAIN_COUNT; dtype < DTYPE_COUNT; dtype++) {
		static const int few[] = {1, 4, 8, 12, 16, 32, 512};
		for (size_t i = 0; i < sizeof few / sizeof *few; i++) bench_shape(c, dtype, few[i], 5632, 2048, 0);
	}
	bench_shape(c, DTYPE_F32, 1, 5632, 2048, 0);
	bench_shape(c, DTYPE_F32, 512, 5632, 2048, 0);
}
