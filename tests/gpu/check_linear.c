/* check_linear.c: y = x W^T of every kernel family against sums in double, and of the invariant mode against the CPU's bits.
 *
 * Bound: a sum of K products in f32, in any order, strays from the exact one by a walk of at most K steps: (4 sqrt(K) + 16) u of the sum of
 * |products|, which a single missing product of the largest K here would still break; then one rounding to y's type. u is 2^-24.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device/gpu/context.h"
#include "device/gpu/skinny.h"
#include "device/gpu/wide.h"
#include "gpu/harness.h"

static const double u = 0x1p-24;

struct linear_case {
	int rows, n, k;
	int x_pad, y_pad; /* elements between rows */
	enum dtype y;     /* DTYPE_F32, or that of x */
	bool bias, accumulate;
	int leaves; /* of the rank; 0: no split */
};

/* x w, and the sum of its products' magnitudes, in as many parts as let a compiler use its vectors. */
static void exact(const double *x, const double *w, int k, double *want, double *scale)
{
	enum { PARTS = 8 };
	double sum[PARTS] = {0}, size[PARTS] = {0};
	int i = 0;
	for (; i + PARTS <= k; i += PARTS)
		for (int j = 0; j < PARTS; j++) {
			const double p = x[i + j] * w[i + j];
			sum[j] += p;
			size[j] += fabs(p);
		}
	for (; i < k; i++) {
		sum[0] += x[i] * w[i];
		size[0] += fabs(x[i] * w[i]);
	}
	*want = *scale = 0;
	for (int j = 0; j < PARTS; j++) *want += sum[j], *scale += size[j];
}

/* Columns [at, at + cols) of `rows` rows of `stride` elements. */
static double *widened(struct gpu_check *c, const void *from, enum dtype dtype, int rows, size_t stride, int at, int cols)
{
	double *out = gpu_host(c, (size_t)rows * (size_t)cols * sizeof *out);
	for (int r = 0; r < rows; r++)
		for (int i = 0; i < cols; i++) out[(size_t)r * (size_t)cols + (size_t)i] = element(from, dtype, (size_t)r * stride + (size_t)(at + i));
	return out;
}

/* A split as rank 1 of 3 has it: its leaves are no complete subtree, so there may be several spans. */
static struct sum_split split_of(int leaves)
{
	struct sum_split split = {.tree_leaves = 3 * leaves, .first = leaves, .leaves = leaves};
	split.spans = sumtree_spans(split.tree_leaves, leaves, 2 * leaves, split.span);
	return split;
}

struct operands {
	struct tensor x, y;
	struct linear_weight w;
	void *x_host, *w_host, *y_host;
	float *bias_host;
	const float *bias;
	struct sum_split split;
};

static void make_operands(struct gpu_check *c, const struct linear_case *s, struct operands *o)
{
	enum tensor_dist y_dist = s->accumulate ? TENSOR_REPLICATED : s->leaves ? TENSOR_PARTIAL : TENSOR_SHARDED;
	*o = (struct operands){0};
	o->x = gpu_input(c, c->dtype, s->leaves ? TENSOR_SHARDED : TENSOR_REPLICATED, s->rows, s->k, s->k + s->x_pad, 1, &o->x_host);
	o->w = gpu_weight(c, c->dtype, s->n, s->k, 2, &o->w_host);
	if (s->leaves) o->split = split_of(s->leaves);
	if (s->accumulate) {
		o->y = gpu_input(c, s->y, y_dist, s->rows, s->n, s->n + s->y_pad, 3, &o->y_host);
	} else {
		int slots = s->leaves ? o->split.spans : 1;
		o->y = gpu_output(c, s->y, y_dist, s->rows * slots, s->n, s->n + s->y_pad);
		o->y.rows = s->rows;
		o->y.slots = slots;
		o->y.slot_stride = (int64_t)s->rows * o->y.row_stride;
	}
	if (s->bias) {
		const void *bias = gpu_filled(c, c->dtype, (size_t)s->n, 4); /* a checkpoint has it in the type of the weights */
		o->bias_host = gpu_host(c, (size_t)s->n * sizeof(float));
		for (size_t i = 0; i < (size_t)s->n; i++) o->bias_host[i] = (float)element(bias, c->dtype, i);
		o->bias = gpu_put(c, o->bias_host, (size_t)s->n * sizeof(float));
	}
}

/* Slot `slot` of y: inputs [k0, k0 + k). */
static void compare_slot(struct gpu_check *c, const struct linear_case *s, const struct operands *o, int slot, int k0, int k)
{
	size_t cells = (size_t)s->rows * (size_t)s->n;
	double *want = gpu_host(c, cells * sizeof *want), *bound = gpu_host(c, cells * sizeof *bound);
	const double *x = widened(c, o->x_host, c->dtype, s->rows, (size_t)o->x.row_stride, k0, k), *w = widened(c, o->w_host, c->dtype, s->n, (size_t)s->k, k0, k);
	for (int t = 0; t < s->rows; t++)
		for (int i = 0; i < s->n; i++) {
			size_t cell = (size_t)t * (size_t)s->n + (size_t)i;
			exact(x + (size_t)t * (size_t)k, w + (size_t)i * (size_t)k, k, &want[cell], &bound[cell]);
			double extra = o->bias ? (double)o->bias_host[i] : 0;
			if (s->accumulate) extra += element(o->y_host, s->y, (size_t)t * (size_t)o->y.row_stride + (size_t)i);
			want[cell] += extra;
			bound[cell] = (4 * sqrt((double)k) + 16) * u * (bound[cell] + fabs(extra)) + 2 * gpu_unit(s->y) * fabs(want[cell]);
			if (c->variant && o->bias) bound[cell] += gpu_unit(s->y) * (fabs(want[cell]) + fabs(extra)); /* a library may round the product before it adds */
			if (isnan(bound[cell]) || isinf(bound[cell])) bound[cell] = 0; /* want is not finite: compared as such */
		}
	struct tensor part = o->y;
	part.data = (char *)part.data + (size_t)slot * (size_t)o->y.slot_stride * dtype_bytes(s->y);
	part.slots = 1;
	gpu_compare(c, "y", &part, want, bound, 1, k * gpu_tiny(DTYPE_F32) + gpu_tiny(s->y));
}

static void linear_case(struct gpu_check *c, enum dtype dtype, enum fill fill, struct linear_case s)
{
	if (s.accumulate) s.y = DTYPE_F32;
	gpu_case(c, dtype, fill, "T=%d n=%d k=%d pads %d %d y %s%s%s leaves %d %s %s", s.rows, s.n, s.k, s.x_pad, s.y_pad, dtype_name(s.y), s.bias ? " bias" : "",
	         s.accumulate ? " +=" : "", s.leaves, c->variant ? c->variant->kernel : "", c->variant ? c->variant->mode : "");
	struct operands o;
	make_operands(c, &s, &o);
	const struct linear_args args = {.x = o.x, .weight = &o.w, .bias = o.bias, .split = s.leaves ? &o.split : NULL, .y = o.y, .accumulate = s.accumulate};
	gpu_variant_begin(c);
	const bool ran = gpu_variant_end(c, OP(c->stream, linear, &args, &c->err));
	if (!ran) {
		/* it said that it cannot */
	} else if (!s.leaves || s.accumulate) {
		compare_slot(c, &s, &o, 0, 0, s.k);
	} else {
		int leaf = s.k / s.leaves;
		for (int i = 0; i < o.split.spans; i++)
			compare_slot(c, &s, &o, i, (o.split.span[i].lo - s.leaves) * leaf, (o.split.span[i].hi - o.split.span[i].lo) * leaf);
	}
	gpu_case_end(c);
}

/* --- every variant that the back end lists, by name */

struct variant_case {
	enum dtype dtype;
	struct linear_case s;
};
static void linear_variant(struct gpu_check *c, const void *arg)
{
	const struct variant_case *v = arg;
	linear_case(c, v->dtype, FILL_RANDOM, v->s);
}

static void each_variant(struct gpu_check *c, enum dtype dtype, enum linear_use use, struct linear_case s)
{
	const struct variant_case v = {dtype, s};
	gpu_each_variant(c, &(struct linear_key){use, dtype, s.n, s.k, s.rows}, linear_variant, &v);
}

static void check_variants(struct gpu_check *c, enum dtype dtype)
{
	for (int rows = 1; rows <= 65; rows = c->quick ? rows * 8 + 1 : rows * 2 + 1) {
		each_variant(c, dtype, LINEAR_USE_PLAIN, (struct linear_case){.rows = rows, .n = 72, .k = 192, .y = dtype, .bias = rows > 2});
		each_variant(c, dtype, LINEAR_USE_PLAIN, (struct linear_case){.rows = rows, .n = 40, .k = 256, .y = DTYPE_F32});
		each_variant(c, dtype, LINEAR_USE_ACCUMULATE, (struct linear_case){.rows = rows, .n = 64, .k = 320, .accumulate = true, .bias = rows == 1});
	}
	each_variant(c, dtype, LINEAR_USE_PARTIAL, (struct linear_case){.rows = 3, .n = 64, .k = 256, .y = dtype, .leaves = 1});
	/* what a tensor-parallel degree makes illegal is listed, and refused with the numbers */
	each_variant(c, dtype, LINEAR_USE_PLAIN, (struct linear_case){.rows = 1, .n = 8, .k = dtype == DTYPE_F32 ? 4352 : 8704, .y = dtype});
	if (c->refused < 4) gpu_fail(c, "%d variants refused; at least the four of gemv_llmm1 are wanted", c->refused);
}

/* The next op's way, or "". */
static const char *way_of(struct gpu_check *c, const struct operands *o, int rows, char text[VARIANT_MODE_BYTES + VARIANT_KERNEL_BYTES])
{
	struct tensor x = o->x, y = o->y;
	struct variant ran;
	x.rows = y.rows = rows;
	GPU_RUN(c, linear, {.x = x, .weight = &o->w, .y = y});
	c->ops->linear_ran(c->stream, &ran);
	snprintf(text, VARIANT_MODE_BYTES + VARIANT_KERNEL_BYTES, "%s %s", ran.kernel, ran.mode);
	return text;
}

static void expect_way(struct gpu_check *c, const struct operands *o, int rows, const char *want)
{
	char text[VARIANT_MODE_BYTES + VARIANT_KERNEL_BYTES];
	if (strcmp(way_of(c, o, rows, text), want)) gpu_fail(c, "%d rows: '%s' ran; '%s' is wanted", rows, text, want);
}

static void check_preferences(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "preferences");
	struct operands o;
	const struct linear_case s = {.rows = 4, .n = 64, .k = 256, .y = DTYPE_BF16};
	make_operands(c, &s, &o);
	const struct linear_key key = {LINEAR_USE_PLAIN, DTYPE_BF16, 64, 256, 0}, other = {LINEAR_USE_PLAIN, DTYPE_BF16, 64, 512, 0},
	                        fused = {LINEAR_USE_MLP_IN, DTYPE_BF16, 64, 256, 0};
	const struct linear_preference good[] = {{key, 2, 3, {.kernel = "gemv_wave", .mode = "1 rows, 128 threads"}}, {other, 1, 9, {.kernel = "tile"}},
	                                         {key, 1, 1, {.kernel = "gemv_strided", .mode = "4 rows, 256 threads"}}, {key, 4, 4, {.kernel = "tile"}}};
	const struct linear_preference bad[] = {
		{key, 1, 1, {.kernel = "gemv"}},
		{key, 1, 1, {.kernel = "gemv_strided", .mode = "4 rows"}},
		{key, 1, 1, {.kernel = "gemv_strided", .mode = "04 rows, 256 threads"}},
		{key, 1, 1, {.kernel = "gemv_strided", .mode = "4 rows, 256 threads, apart"}},
		{key, 1, 1, {.kernel = "tile", .mode = "fast"}},
		{key, 99, 99, {.kernel = "wide", .mode = "3 blocks"}},
		{fused, 1, 1, {.kernel = "tile"}},
		{fused, 1, 1, {.kernel = "tile", .mode = "norm inside"}},
		{key, 2, 1, {.kernel = "tile"}},
		{{LINEAR_USE_PLAIN, DTYPE_Q8_0, 64, 256, 0}, 1, 1, {.kernel = "tile"}},
		{key, 1, 1, {.kernel = "cublasLt", .mode = "algo"}},
		{key, 1, 1, {.kernel = "cublasLt", .mode = "algo 9999 tile 3"}},
	};
	char before[VARIANT_MODE_BYTES + VARIANT_KERNEL_BYTES], after[VARIANT_MODE_BYTES + VARIANT_KERNEL_BYTES];
	way_of(c, &o, 1, before);
	gpu_ok(c, c->ops->linear_prefer(c->stream, good, 4, &c->err));
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) gpu_refused(c, STATUS_BAD_INPUT, c->ops->linear_prefer(c->stream, &bad[i], 1, &c->err));
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->linear_prefer(c->stream, (struct linear_preference[]){good[0], {key, 3, 4, {.kernel = "tile"}}}, 2, &c->err));
	expect_way(c, &o, 1, "gemv_strided 4 rows, 256 threads"); /* what was refused has changed nothing */
	expect_way(c, &o, 2, "gemv_wave 1 rows, 128 threads");
	expect_way(c, &o, 3, "gemv_wave 1 rows, 128 threads");
	expect_way(c, &o, 4, "tile ");
	compare_slot(c, &s, &o, 0, 0, s.k);
	gpu_ok(c, c->ops->linear_prefer(c->stream, NULL, 0, &c->err));
	if (strcmp(before, way_of(c, &o, 1, after))) gpu_fail(c, "'%s' runs without preferences, '%s' did before", after, before);
	gpu_case_end(c);
}

/* --- each family by itself, with every way to cut the work that it has */

static struct gemm_problem problem_of(const struct linear_case *s, const struct operands *o, enum dtype dtype)
{
	return (struct gemm_problem){.x = o->x.data, .w = o->w.data, .bias = o->bias, .y = o->y.data, .type = dtype, .y_type = s->y, .m = s->rows, .n = s->n, .k = s->k,
	                             .x_stride = o->x.row_stride, .w_stride = s->k, .y_stride = o->y.row_stride, .accumulate = s->accumulate};
}

static const char *const family_names[] = {[GEMV_STRIDED] = "strided", [GEMV_WAVE] = "wave", [GEMV_LLMM1] = "llmm1"};

static void gemv_case(struct gpu_check *c, enum dtype dtype, struct gemv_shape shape, struct linear_case s)
{
	gpu_case(c, dtype, FILL_RANDOM, "gemv %s rows %d threads %d T=%d n=%d k=%d", family_names[shape.family], shape.rows, shape.threads, s.rows, s.n, s.k);
	struct operands o;
	make_operands(c, &s, &o);
	struct gemm_problem p = problem_of(&s, &o, dtype);
	gpu_ok(c, gemv_launch(gpu_context(c->stream), &p, &shape, &c->err));
	compare_slot(c, &s, &o, 0, 0, s.k);
	gpu_case_end(c);
}

static void check_gemv(struct gpu_check *c, enum dtype dtype)
{
	const int n = 37, k = c->quick ? 520 : 4104;
	for (int rows = 1; rows <= 16; rows *= 2) {
		const struct linear_case one = {.rows = 1, .n = n, .k = k, .y = DTYPE_F32, .bias = true};
		if (rows > 1) gemv_case(c, dtype, (struct gemv_shape){GEMV_LLMM1, rows, 0}, dtype == DTYPE_F32 ? (struct linear_case){.rows = 1, .n = n, .k = 516, .y = DTYPE_F32} : one);
		if (rows > 4) continue;
		for (int threads = 64; threads <= (c->quick ? 128 : 1024); threads *= 2) gemv_case(c, dtype, (struct gemv_shape){GEMV_STRIDED, rows, threads}, one);
		for (int threads = 64; threads <= 256; threads *= 4) gemv_case(c, dtype, (struct gemv_shape){GEMV_WAVE, rows, threads}, one);
	}
	for (int rows = 2; rows <= 16; rows += 5) gemv_case(c, dtype, (struct gemv_shape){GEMV_WAVE, 1, 256}, (struct linear_case){.rows = rows, .n = n, .k = k, .y = dtype, .x_pad = 1});
}

/* A tensor-parallel degree makes this kernel illegal: it must be refused, not launched. */
static void check_gemv_limits(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "gemv refusals");
	struct operands o;
	const struct linear_case s = {.rows = 1, .n = 8, .k = 8704, .y = DTYPE_BF16}, two = {.rows = 2, .n = 8, .k = 64, .y = DTYPE_BF16};
	const struct gpu_context *context = gpu_context(c->stream);
	make_operands(c, &s, &o);
	struct gemm_problem p = problem_of(&s, &o, DTYPE_BF16), rows = problem_of(&two, &o, DTYPE_BF16), odd = p;
	odd.w = (const char *)odd.w + 2;
	gpu_refused(c, STATUS_UNSUPPORTED, gemv_launch(context, &p, &(struct gemv_shape){GEMV_LLMM1, 4, 0}, &c->err));
	gpu_refused(c, STATUS_UNSUPPORTED, gemv_launch(context, &p, &(struct gemv_shape){GEMV_LLMM1, 3, 0}, &c->err));
	gpu_refused(c, STATUS_UNSUPPORTED, gemv_launch(context, &p, &(struct gemv_shape){GEMV_STRIDED, 2, 65}, &c->err));
	gpu_refused(c, STATUS_UNSUPPORTED, gemv_launch(context, &rows, &(struct gemv_shape){GEMV_STRIDED, 2, 128}, &c->err));
	gpu_refused(c, STATUS_UNSUPPORTED, gemv_launch(context, &odd, &(struct gemv_shape){GEMV_WAVE, 1, 256}, &c->err));
	gpu_case_end(c);
}

#define AGAIN 12
/* Launched again and again, the kernel must give the same bits: its order of summation does not depend on how its blocks meet. */
static void skinny_case(struct gpu_check *c, enum dtype dtype, struct skinny_shape shape, struct linear_case s)
{
	gpu_case(c, dtype, FILL_RANDOM, "skinny rows %d stages %d T=%d n=%d k=%d", shape.rows, shape.stages, s.rows, s.n, s.k);
	struct operands o;
	make_operands(c, &s, &o);
	struct fused_problem p = {.gemm = problem_of(&s, &o, dtype)};
	const size_t line = (size_t)s.n * dtype_bytes(s.y), stride = (size_t)o.y.row_stride * dtype_bytes(s.y);
	char *first = gpu_host(c, (size_t)s.rows * line);
	enum status st = skinny_can(gpu_context(c->stream), &p) ? skinny_launch(gpu_context(c->stream), &p, &shape, &c->err) : STATUS_UNSUPPORTED;
	if (st == STATUS_UNSUPPORTED) { /* no kernel of this cut */
		c->err = (struct error){0};
	} else {
		gpu_ok(c, st);
		compare_slot(c, &s, &o, 0, 0, s.k);
		for (int r = 0; r < s.rows; r++) gpu_get(c, first + (size_t)r * line, (const char *)o.y.data + (size_t)r * stride, line);
		struct tensor again[AGAIN];
		for (int i = 0; i < AGAIN; i++) again[i] = gpu_output(c, s.y, TENSOR_SHARDED, s.rows, s.n, s.n + s.y_pad);
		struct gemm_problem between = p.gemm;
		for (int i = 0; i < AGAIN; i++) { /* one behind the other: each starts while the one before, of its kind or of another, still runs */
			p.gemm.y = again[i].data;
			if (i % 2) gpu_ok(c, tile_launch(gpu_context(c->stream), &between, NULL, &c->err));
			gpu_ok(c, skinny_launch(gpu_context(c->stream), &p, &shape, &c->err));
		}
		for (int i = 0; i < AGAIN; i++) gpu_compare_exact(c, "y again", &again[i], first);
	}
	gpu_case_end(c);
}

static void check_skinny(struct gpu_check *c, enum dtype dtype)
{
	static const int rows[] = {1, 3, 8, 9, 16, 17, 32};
	if (dtype == DTYPE_F32 || c->quick) return;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
		for (int tile = 16; tile <= 32; tile *= 2)
			for (int stages = 0; stages <= 3; stages++) {
				if (stages == 1) continue; /* a ring has two at least */
				skinny_case(c, dtype, (struct skinny_shape){tile, stages}, (struct linear_case){.rows = rows[i], .n = 520, .k = 2112, .y = dtype, .bias = true});
				skinny_case(c, dtype, (struct skinny_shape){tile, stages}, (struct linear_case){.rows = rows[i], .n = 5000, .k = 1024, .y = DTYPE_F32, .y_pad = 8, .x_pad = 16});
			}
}

/* As skinny_case, for many rows, on so few multiprocessors that each warpgroup has several tiles. */
static void wide_case(struct gpu_check *c, enum dtype dtype, struct wide_shape shape, struct linear_case s)
{
	struct gpu_context few = *gpu_context(c->stream);
	gpu_case(c, dtype, FILL_RANDOM, "wide blocks %d T=%d n=%d k=%d%s", shape.blocks, s.rows, s.n, s.k, s.accumulate ? " +=" : "");
	struct operands o;
	make_operands(c, &s, &o);
	struct fused_problem p = {.gemm = problem_of(&s, &o, dtype)};
	few.props.multiprocessors = 2;
	if (wide_can(&few, &p)) {
		const size_t line = (size_t)s.n * dtype_bytes(s.y), stride = (size_t)o.y.row_stride * dtype_bytes(s.y);
		char *first = gpu_host(c, (size_t)s.rows * line);
		gpu_ok(c, wide_launch(&few, &p, &shape, &c->err));
		compare_slot(c, &s, &o, 0, 0, s.k);
		for (int r = 0; r < s.rows; r++) gpu_get(c, first + (size_t)r * line, (const char *)o.y.data + (size_t)r * stride, line);
		struct tensor again[AGAIN];
		for (int i = 0; i < AGAIN && !s.accumulate; i++) {
			again[i] = gpu_output(c, s.y, TENSOR_SHARDED, s.rows, s.n, s.n + s.y_pad);
			p.gemm.y = again[i].data;
			gpu_ok(c, wide_launch(&few, &p, &shape, &c->err));
		}
		for (int i = 0; i < AGAIN && !s.accumulate; i++) gpu_compare_exact(c, "y again", &again[i], first);
	}
	gpu_case_end(c);
}

/* Stores write whole 16 bytes: columns that end within them are refused. */
static void wide_refuses(struct gpu_check *c, enum dtype dtype)
{
	gpu_case(c, dtype, FILL_RANDOM, "wide, ragged columns");
	const struct linear_case s = {.rows = 3, .n = 33, .k = 8, .y = DTYPE_F32, .y_pad = 3};
	struct operands o;
	make_operands(c, &s, &o);
	const struct fused_problem p = {.gemm = problem_of(&s, &o, dtype)};
	gpu_refused(c, STATUS_UNSUPPORTED, wide_launch(gpu_context(c->stream), &p, &(struct wide_shape){1}, &c->err));
	gpu_case_end(c);
}

static void check_wide(struct gpu_check *c, enum dtype dtype)
{
	if (dtype == DTYPE_F32 || c->quick) return;
	wide_refuses(c, dtype);
	for (int blocks = 1; blocks <= 2; blocks++) {
		const struct wide_shape shape = {blocks};
		wide_case(c, dtype, shape, (struct linear_case){.rows = 1, .n = 36, .k = 8, .y = DTYPE_F32});
		wide_case(c, dtype, shape, (struct linear_case){.rows = 129, .n = 520, .k = 72, .y = dtype, .bias = true, .y_pad = 16, .x_pad = 8});
		wide_case(c, dtype, shape, (struct linear_case){.rows = 260, .n = 140, .k = 456, .accumulate = true, .y = DTYPE_F32, .y_pad = 4, .bias = true});
	}
}

/* --- the invariant mode: the bits of the CPU, whose definition is one chain for each leaf */

/* Preferences are of no use to it. */
static void prefer_another(struct gpu_check *c, struct stream *stream, enum dtype dtype, int n, int k, bool partial)
{
	const struct linear_preference wave = {{partial ? LINEAR_USE_PARTIAL : LINEAR_USE_PLAIN, dtype, n, k, 0}, 1, 16,
	                                       {.kernel = "gemv_wave", .mode = "1 rows, 128 threads"}};
	struct variant list[4];
	gpu_ok(c, c->ops->linear_prefer(stream, &wave, 1, &c->err));
	const int count = c->ops->linear_variants(stream, &(struct linear_key){wave.key.use, dtype, n, k, 1}, list, 4);
	for (int i = 0; i < count; i++)
		if (!list[i].invariant) gpu_fail(c, "%s '%s' is listed for an invariant stream", list[i].kernel, list[i].mode);
}

static void invariant_case(struct gpu_check *c, enum dtype dtype, int rows, int n, int k, int leaves)
{
	gpu_case(c, dtype, FILL_RANDOM, "invariant T=%d n=%d k=%d leaves %d", rows, n, k, leaves);
	struct linear_case s = {.rows = rows, .n = n, .k = k, .y = DTYPE_F32, .leaves = leaves};
	struct operands o;
	struct stream *stream = NULL, *other = c->stream;
	make_operands(c, &s, &o);
	gpu_ok(c, c->ops->stream_create(c->device, &(struct stream_options){.max_rows = rows, .max_k = k, .max_n = n, .invariant = true}, &stream, &c->err));
	prefer_another(c, stream, dtype, n, k, leaves > 0);
	gpu_sync_stream(c);
	c->stream = stream;
	GPU_RUN(c, linear, {.x = o.x, .weight = &o.w, .split = leaves ? &o.split : NULL, .y = o.y});
	gpu_sync_stream(c);
	c->stream = other;
	c->ops->stream_destroy(stream);

	float *x = gpu_host(c, (size_t)rows * (size_t)k * sizeof *x), *y = gpu_host(c, (size_t)o.y.slots * (size_t)rows * (size_t)n * sizeof *y);
	for (size_t i = 0; i < (size_t)rows * (size_t)k; i++) x[i] = (float)element(o.x_host, dtype, i);
	struct linear_weight w = {.dtype = dtype, .n = n, .k = k};
	gpu_ok(c, c->reference_ops->alloc(c->reference, c->reference_ops->linear_bytes(dtype, n, k), MEM_WORKSPACE, "reference weight", &w.data, &c->err));
	gpu_ok(c, c->reference_ops->linear_put(c->reference_stream, &w, 0, n, o.w_host, (size_t)k * dtype_bytes(dtype), &c->err));
	struct tensor y_cpu = tensor_view(y, DTYPE_F32, o.y.dist, rows, n);
	y_cpu.slots = o.y.slots;
	gpu_ok(c, OP(c->reference_stream, linear,
	             &((struct linear_args){.x = tensor_view(x, DTYPE_F32, o.x.dist, rows, k), .weight = &w, .split = leaves ? &o.split : NULL, .y = y_cpu}), &c->err));
	c->reference_ops->free(c->reference, w.data);
	for (int i = 0; i < o.y.slots; i++) {
		struct tensor part = o.y;
		part.data = (float *)part.data + i * o.y.slot_stride;
		part.slots = 1;
		gpu_compare_exact(c, "y", &part, y + (size_t)i * (size_t)rows * (size_t)n);
	}
	gpu_case_end(c);
}

/* --- */

static void check_refusals(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "refusals");
	struct linear_case s = {.rows = 2, .n = 16, .k = 32, .y = DTYPE_BF16};
	struct operands o;
	make_operands(c, &s, &o);
	struct linear_weight quantised = o.w;
	quantised.dtype = DTYPE_Q8_0;
	struct tensor narrow = o.x, partial = o.y, f16 = o.y;
	narrow.cols = 31;
	partial.dist = TENSOR_PARTIAL;
	f16.dtype = DTYPE_F16;
	GPU_REFUSED(c, linear, UNSUPPORTED, {.x = o.x, .weight = &quantised, .y = o.y});
	GPU_REFUSED(c, linear, UNSUPPORTED, {.x = o.x, .weight = &o.w, .y = f16});
	GPU_REFUSED(c, linear, UNSUPPORTED, {.x = o.x, .weight = &o.w, .y = o.y, .accumulate = true});
	GPU_REFUSED(c, linear, BAD_INPUT, {.x = narrow, .weight = &o.w, .y = o.y});
	GPU_REFUSED(c, linear, BAD_INPUT, {.x = o.x, .weight = &o.w, .y = partial});
	gpu_case_end(c);
}

static void check_shapes(struct gpu_check *c, enum dtype dtype)
{
	static const int small[][3] = {{1, 1, 1}, {1, 3, 7}, {2, 5, 8}, {1, 33, 64}, {3, 33, 64}, {5, 64, 72}, {4, 40, 128}, {8, 17, 520}, {16, 24, 264}, {17, 17, 40}, {33, 65, 64}, {65, 10, 24}};
	static const int large[][3] = {{1, 1000, 8704}, {1, 4096, 4096}, {2, 777, 8704}, {16, 300, 14336}, {33, 130, 8704}, {64, 200, 14336}, {65, 130, 4096}, {100, 300, 2048}};
	const enum fill fills[] = {FILL_RANDOM, FILL_SPECIAL, FILL_DENORMAL};
	for (size_t i = 0; i < sizeof small / sizeof *small; i++)
		for (size_t f = 0; f < sizeof fills / sizeof *fills; f++) {
			const int *d = small[i];
			linear_case(c, dtype, fills[f], (struct linear_case){.rows = d[0], .n = d[1], .k = d[2], .y = dtype});
			linear_case(c, dtype, fills[f], (struct linear_case){.rows = d[0], .n = d[1], .k = d[2], .y = DTYPE_F32, .x_pad = 8, .y_pad = 3, .bias = true});
		}
	for (int rows = 1; rows <= (c->quick ? 3 : 17); rows++) {
		linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = rows, .n = 47, .k = 192, .y = dtype, .x_pad = rows % 3, .bias = rows % 2});
		linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = rows, .n = 64, .k = 320, .x_pad = 16, .y_pad = 4, .accumulate = true, .bias = rows % 2 == 0});
	}
	for (size_t i = 0; !c->quick && i < sizeof large / sizeof *large; i++) {
		const int *d = large[i];
		linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = d[0], .n = d[1], .k = d[2], .y = dtype});
		linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = d[0], .n = d[1], .k = d[2], .y_pad = 1, .accumulate = true, .bias = i % 2});
	}
}

void gpu_check_linear(struct gpu_check *c)
{
	GPU_EACH_DTYPE(dtype)
	{
		check_shapes(c, dtype);
		check_variants(c, dtype);
		check_gemv(c, dtype);
		check_skinny(c, dtype);
		check_wide(c, dtype);
		for (int rows = 1; rows <= 65; rows += c->quick ? 63 : 8) {
			linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = rows, .n = 40, .k = 240, .y = DTYPE_F32, .leaves = 5});
			linear_case(c, dtype, FILL_RANDOM, (struct linear_case){.rows = rows, .n = 33, .k = 128, .y = dtype, .leaves = 4, .y_pad = 7});
		}
		invariant_case(c, dtype, 1, 70, 130, 0);
		invariant_case(c, dtype, 3, 65, 120, 5);
		invariant_case(c, dtype, 18, 20, 96, 4);
		if (!c->quick) invariant_case(c, dtype, 33, 1000, 2100, 7);
	}
	check_gemv_limits(c);
	check_preferences(c);
	check_refusals(c);
}

/* --- measuring: 32 layers' worth of each linear of Llama-3.1-8B and Qwen3-32B, at one and two ranks, weights never in the cache */

struct bench {
	struct linear_args args;
	struct linear_weight weight[64];
	int rotation;
};

static void bench_call(struct gpu_check *c, void *context, int i)
{
	struct bench *b = context;
	b->args.weight = &b->weight[i % b->rotation];
	gpu_ok(c, OP(c->stream, linear, &b->args, &c->err));
}

static void bench_shape(struct gpu_check *c, int rows, int n, int k, bool accumulate)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "T=%d n=%d k=%d%s", rows, n, k, accumulate ? " +=" : "");
	struct bench b = {.rotation = gpu_bench_rotation(c, (size_t)n * (size_t)k * 2)};
	for (int i = 0; i < b.rotation; i++)
		b.weight[i] = (struct linear_weight){.data = gpu_random_room(c, DTYPE_BF16, (size_t)n * (size_t)k, 0.02f), .dtype = DTYPE_BF16, .n = n, .k = k};
	enum dtype y = accumulate ? DTYPE_F32 : DTYPE_BF16;
	b.args.x = tensor_view(gpu_random_room(c, DTYPE_BF16, (size_t)rows * (size_t)k, 1), DTYPE_BF16, TENSOR_REPLICATED, rows, k);
	b.args.y = tensor_view(gpu_random_room(c, y, (size_t)rows * (size_t)n, 1), y, TENSOR_REPLICATED, rows, n);
	b.args.accumulate = accumulate;
	double seconds = gpu_bench(c, bench_call, &b, rows > 64 ? 8 : 32);
	gpu_bench_report(c, seconds, (double)n * k * 2 + (double)rows * (k + n) * 2, 2.0 * rows * n * k);
	gpu_case_end(c);
}

void gpu_bench_linear(struct gpu_check *c)
{
	static const int shapes[][3] = {{6144, 4096, 0},  {4096, 4096, 1}, {28672, 4096, 0}, {4096, 14336, 1}, {128256, 4096, 0}, {3072, 4096, 0}, {4096, 2048, 0},
	                                {14336, 4096, 0}, {4096, 7168, 0}, {10240, 5120, 0}, {5120, 8192, 1},  {51200, 5120, 0},  {5120, 25600, 1}};
	static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 512};
	for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
		for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) bench_shape(c, rows[r], shapes[i][0], shapes[i][1], shapes[i][2]);
}
