/* check_moe.c: the experts of every kernel family against sums in double, and the invariant order over world sizes.
 *
 * Bound: a sum of K products in f32 strays by at most (4 sqrt(K) + 16) u of the sum of |products| (check_linear.c). act and the parts of an expert may be rounded to
 * the activations' type, once each. A router's logit that is off by d changes a weight by at most a factor of e^(2 d), twice where the weights are normed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/gpu/context.h"
#include "gpu/harness.h"

static const double u = 0x1p-24;

struct moe_case {
	int rows, hidden, experts, top_k, inner, shared;
	bool norm_topk, ties, accumulate, wide_y; /* wide_y: y f32 */
	int leaves;                               /* of rank 1 of 3; 0: no split */
	int pad;                                  /* of x and y */
};

struct operands {
	struct moe_weights w;
	void *router, *gate_up, *down, *shared_gate_up, *shared_down; /* host rows */
	struct tensor x;
	void *x_host, *scratch;
};

static struct linear_weight put(struct gpu_check *c, void *host, int n, int k, int count, size_t *step)
{
	struct linear_weight w = {.dtype = c->dtype, .n = n, .k = k};
	*step = (size_t)n * (size_t)k * dtype_bytes(c->dtype);
	w.data = gpu_put(c, host, (size_t)count * *step);
	return w;
}

static struct operands make(struct gpu_check *c, const struct moe_case *s)
{
	struct operands o = {.w = {.experts = s->experts}};
	const int outputs = s->experts + (s->shared > 0);
	const size_t cells = (size_t)s->inner * (size_t)s->hidden, line = (size_t)s->hidden * dtype_bytes(c->dtype);
	size_t ignored;
	o.router = gpu_filled(c, c->dtype, (size_t)outputs * (size_t)s->hidden, 11);
	for (int e = 1; s->ties && e < s->experts; e += 2) memcpy((char *)o.router + (size_t)e * line, (char *)o.router + (size_t)(e - 1) * line, line);
	o.gate_up = gpu_filled(c, c->dtype, 2 * cells * (size_t)s->experts, 12);
	o.down = gpu_filled(c, c->dtype, cells * (size_t)s->experts, 13);
	o.w.router = put(c, o.router, outputs, s->hidden, 1, &ignored);
	o.w.gate_up = put(c, o.gate_up, 2 * s->inner, s->hidden, s->experts, &o.w.gate_up_bytes);
	o.w.down = put(c, o.down, s->hidden, s->inner, s->experts, &o.w.down_bytes);
	if (s->shared) {
		o.shared_gate_up = gpu_filled(c, c->dtype, 2 * (size_t)s->shared * (size_t)s->hidden, 14);
		o.shared_down = gpu_filled(c, c->dtype, (size_t)s->shared * (size_t)s->hidden, 15);
		o.w.shared_gate_up = put(c, o.shared_gate_up, 2 * s->shared, s->hidden, 1, &ignored);
		o.w.shared_down = put(c, o.shared_down, s->hidden, s->shared, 1, &ignored);
	}
	o.x = gpu_input(c, c->dtype, TENSOR_REPLICATED, s->rows, s->hidden, s->hidden + s->pad, 1, &o.x_host);
	const struct moe_shape shape = {.rows = s->rows, .dtype = c->dtype, .hidden = s->hidden, .experts = s->experts, .top_k = s->top_k, .inner = s->inner,
	                                .shared_inner = s->shared, .leaves = 1};
	o.scratch = gpu_room(c, c->ops->moe_scratch_bytes(c->device, &shape));
	return o;
}

/* ---- one row in double */

struct value {
	double d, error;
};

static struct value dot(const struct gpu_check *c, const void *x, size_t x_at, const void *w, size_t w_at, int k)
{
	struct value v = {0, 0};
	double size = 0;
	for (int i = 0; i < k; i++) {
		double p = element(x, c->dtype, x_at + (size_t)i) * element(w, c->dtype, w_at + (size_t)i);
		v.d += p;
		size += fabs(p);
	}
	v.error = (4 * sqrt((double)k) + 16) * u * size + k * gpu_tiny(DTYPE_F32);
	return v;
}

/* The chosen experts' weights; 0 of the others. weight[experts]: the shared one's. */
static void route(const struct gpu_check *c, const struct moe_case *s, const struct operands *o, size_t x_at, struct value *weight)
{
	const int experts = s->experts;
	double max = -INFINITY, sum = 0, chosen = 0, worst = 0;
	struct value *logit = malloc((size_t)experts * sizeof *logit);
	for (int e = 0; e < experts; e++) {
		logit[e] = dot(c, o->x_host, x_at, o->router, (size_t)e * (size_t)s->hidden, s->hidden);
		max = fmax(max, logit[e].d);
		worst = fmax(worst, logit[e].error);
	}
	for (int e = 0; e < experts; e++) sum += exp(logit[e].d - max);
	for (int e = 0; e < experts; e++) {
		int rank = 0;
		for (int other = 0; other < experts; other++) rank += logit[other].d > logit[e].d || (logit[other].d == logit[e].d && other < e);
		weight[e] = (struct value){rank < s->top_k ? exp(logit[e].d - max) / sum : 0, 0};
		chosen += weight[e].d;
	}
	for (int e = 0; e < experts; e++) {
		if (s->norm_topk) weight[e].d /= chosen;
		weight[e].error = weight[e].d * (expm1(4 * worst) + (experts + s->top_k + 16) * u);
	}
	free(logit);
	if (!s->shared) return;
	struct value gate = dot(c, o->x_host, x_at, o->router, (size_t)experts * (size_t)s->hidden, s->hidden);
	weight[experts] = (struct value){1 / (1 + exp(-gate.d)), gate.error + 8 * u};
}

/* want and bound gain what one expert gives to a row, inner columns [k0, k0 + k). */
static void add_expert(const struct gpu_check *c, const struct moe_case *s, const struct operands *o, int e, size_t x_at, struct value weight, int k0, int k, double *want,
                       double *bound)
{
	const bool shared = e == s->experts;
	const int inner = shared ? s->shared : s->inner;
	const void *gate_up = shared ? o->shared_gate_up : o->gate_up, *down = shared ? o->shared_down : o->down;
	const size_t at = shared ? 0 : (size_t)e * (size_t)inner * (size_t)s->hidden, hidden = (size_t)s->hidden;
	const double unit = gpu_unit(c->dtype);
	struct value *act = malloc((size_t)inner * sizeof *act);
	for (int i = k0; i < k0 + k; i++) {
		struct value g = dot(c, o->x_host, x_at, gate_up, 2 * at + (size_t)i * hidden, s->hidden);
		struct value up = dot(c, o->x_host, x_at, gate_up, 2 * at + (size_t)(inner + i) * hidden, s->hidden);
		/* gate and up rows are rounded by themselves where the shared expert goes by way of ordinary linears */
		g.error += unit * fabs(g.d), up.error += unit * fabs(up.d);
		double silu = g.d / (1 + exp(-g.d));
		act[i].d = silu * up.d;
		act[i].error = 1.1 * g.error * (fabs(up.d) + up.error) + fabs(silu) * up.error + (2 * unit + 8 * u) * fabs(act[i].d) + gpu_tiny(c->dtype);
	}
	for (int j = 0; j < s->hidden; j++) {
		double part = 0, size = 0, error = 0;
		for (int i = k0; i < k0 + k; i++) {
			double w = element(down, c->dtype, at + (size_t)j * (size_t)inner + (size_t)i);
			part += act[i].d * w;
			size += fabs(act[i].d * w);
			error += act[i].error * fabs(w);
		}
		want[j] += weight.d * part;
		bound[j] += weight.d * (error + (4 * sqrt((double)k) + 16) * u * size + 2 * unit * fabs(part) + gpu_tiny(c->dtype)) + weight.error * (size + error) +
		            16 * u * weight.d * size;
	}
	free(act);
}

/* Inner columns of a span, as parts of `leaves`. */
static void expect(struct gpu_check *c, const struct moe_case *s, const struct operands *o, int lo, int hi, int leaves, const float *before, double *want, double *bound)
{
	const size_t hidden = (size_t)s->hidden;
	struct value *weight = malloc(((size_t)s->experts + 1) * sizeof *weight);
	for (int t = 0; t < s->rows; t++) {
		const size_t x_at = (size_t)t * (size_t)o->x.row_stride;
		double *w = want + (size_t)t * hidden, *b = bound + (size_t)t * hidden;
		route(c, s, o, x_at, weight);
		for (int j = 0; j < s->hidden; j++) w[j] = before ? (double)before[(size_t)t * (hidden + (size_t)s->pad) + (size_t)j] : 0, b[j] = 0;
		for (int e = 0; e < s->experts + (s->shared > 0); e++) {
			const int inner = e == s->experts ? s->shared : s->inner;
			if (weight[e].d > 0) add_expert(c, s, o, e, x_at, weight[e], lo * (inner / leaves), (hi - lo) * (inner / leaves), w, b);
		}
		for (int j = 0; j < s->hidden; j++) b[j] += 2 * gpu_unit(s->accumulate || s->wide_y ? DTYPE_F32 : c->dtype) * fabs(w[j]) + 4 * u * fabs(w[j]);
	}
	free(weight);
}

static void moe_case(struct gpu_check *c, enum dtype dtype, struct moe_case s)
{
	const enum dtype y_type = s.accumulate || s.wide_y ? DTYPE_F32 : dtype;
	gpu_case(c, dtype, FILL_RANDOM, "T=%d H=%d %d of %d x %d shared %d%s%s%s y %s leaves %d pad %d", s.rows, s.hidden, s.top_k, s.experts, s.inner, s.shared,
	         s.norm_topk ? " norm" : "", s.ties ? " ties" : "", s.accumulate ? " +=" : "", dtype_name(y_type), s.leaves, s.pad);
	struct operands o = make(c, &s);
	struct sum_split split = {.tree_leaves = 3 * s.leaves, .first = s.leaves, .leaves = s.leaves};
	if (s.leaves) split.spans = sumtree_spans(split.tree_leaves, s.leaves, 2 * s.leaves, split.span);
	const int slots = s.leaves ? split.spans : 1;
	const size_t cells = (size_t)s.rows * (size_t)s.hidden;
	void *before = NULL;
	struct tensor y;
	if (s.accumulate) {
		y = gpu_input(c, y_type, TENSOR_REPLICATED, s.rows, s.hidden, s.hidden + s.pad, 3, &before);
	} else {
		y = gpu_output(c, y_type, TENSOR_PARTIAL, s.rows * slots, s.hidden, s.hidden + s.pad);
		y.rows = s.rows, y.slots = slots, y.slot_stride = (int64_t)s.rows * y.row_stride;
	}
	GPU_RUN(c, moe, {.in = {.h = o.x, .done = true}, .weights = &o.w, .top_k = s.top_k, .norm_topk = s.norm_topk, .split = s.leaves ? &split : NULL, .y = y,
	                 .accumulate = s.accumulate, .scratch = o.scratch});
	double *want = gpu_host(c, cells * sizeof *want), *bound = gpu_host(c, cells * sizeof *bound);
	for (int i = 0; i < slots; i++) {
		struct tensor part = y;
		part.data = (char *)y.data + (size_t)i * (size_t)y.slot_stride * dtype_bytes(y_type), part.slots = 1;
		if (s.leaves) expect(c, &s, &o, split.span[i].lo - s.leaves, split.span[i].hi - s.leaves, s.leaves, before, want, bound);
		else expect(c, &s, &o, 0, 1, 1, before, want, bound);
		gpu_compare(c, "y", &part, want, bound, 1, gpu_tiny(y_type));
	}
	gpu_case_end(c);
}

/* ---- the invariant order: the sum over ranks has the same bits at every world size, and for every batch */

static void cut(struct gpu_check *c, const struct operands *o, const struct moe_case *s, int rank, int world, struct operands *out)
{
	const size_t unit = dtype_bytes(c->dtype), hidden = (size_t)s->hidden, inner = (size_t)s->inner, local = inner / (size_t)world;
	char *gate_up = gpu_host(c, (size_t)s->experts * 2 * local * hidden * unit), *down = gpu_host(c, (size_t)s->experts * local * hidden * unit);
	for (size_t row = 0; row < (size_t)s->experts * 2; row++)
		memcpy(gate_up + row * local * hidden * unit, (char *)o->gate_up + (row * inner + (size_t)rank * local) * hidden * unit, local * hidden * unit);
	for (size_t row = 0; row < (size_t)s->experts * hidden; row++)
		memcpy(down + row * local * unit, (char *)o->down + (row * inner + (size_t)rank * local) * unit, local * unit);
	*out = *o;
	out->w.gate_up = put(c, gate_up, 2 * (int)local, s->hidden, s->experts, &out->w.gate_up_bytes);
	out->w.down = put(c, down, s->hidden, (int)local, s->experts, &out->w.down_bytes);
}

static void run_world(struct gpu_check *c, const struct operands *o, const struct moe_case *s, int world, float *sum)
{
	const size_t cells = (size_t)s->rows * (size_t)s->hidden;
	struct sum_span items[SUMTREE_MAX_LEAVES];
	uint8_t merges[SUMTREE_MAX_LEAVES];
	float *parts = gpu_host(c, cells * (size_t)s->leaves * sizeof *parts), *stack[SUMTREE_MAX_DEPTH];
	int count = 0, depth = 0;
	for (int r = 0; r < world; r++) {
		struct operands local;
		struct sum_split split = {.tree_leaves = s->leaves, .first = r * s->leaves / world, .leaves = s->leaves / world};
		split.spans = sumtree_spans(s->leaves, split.first, split.first + split.leaves, split.span);
		cut(c, o, s, r, world, &local);
		struct tensor y = gpu_output(c, DTYPE_F32, TENSOR_PARTIAL, s->rows * split.spans, s->hidden, s->hidden);
		y.rows = s->rows, y.slots = split.spans, y.slot_stride = (int64_t)cells;
		GPU_RUN(c, moe, {.in = {.h = o->x, .done = true}, .weights = &local.w, .top_k = s->top_k, .norm_topk = s->norm_topk, .split = &split, .y = y, .scratch = o->scratch});
		gpu_get(c, parts + (size_t)count * cells, y.data, (size_t)split.spans * cells * sizeof *parts);
		for (int i = 0; i < split.spans; i++) items[count++] = split.span[i];
	}
	sumtree_program(s->leaves, (struct sum_span){0, (int16_t)s->leaves}, items, count, merges);
	for (int i = 0; i < count; i++) {
		stack[depth++] = parts + (size_t)i * cells;
		for (int m = merges[i]; m > 0; m--, depth--)
			for (size_t k = 0; k < cells; k++) stack[depth - 2][k] = stack[depth - 2][k] + stack[depth - 1][k];
	}
	memcpy(sum, stack[0], cells * sizeof *sum);
}

static void invariant_case(struct gpu_check *c, enum dtype dtype, struct moe_case s)
{
	gpu_case(c, dtype, FILL_RANDOM, "invariant T=%d H=%d %d of %d x %d, %d leaves", s.rows, s.hidden, s.top_k, s.experts, s.inner, s.leaves);
	struct operands o = make(c, &s);
	struct stream *stream = NULL, *other = c->stream;
	const size_t cells = (size_t)s.rows * (size_t)s.hidden;
	float *one = gpu_host(c, cells * sizeof *one), *many = gpu_host(c, cells * sizeof *many);
	double *want = gpu_host(c, cells * sizeof *want), *bound = gpu_host(c, cells * sizeof *bound);
	gpu_ok(c, c->ops->stream_create(c->device, &(struct stream_options){.max_rows = s.rows, .max_k = s.hidden, .max_n = s.hidden, .invariant = true}, &stream, &c->err));
	gpu_sync_stream(c);
	c->stream = stream;
	run_world(c, &o, &s, 1, one);
	for (int world = 2; world <= s.leaves; world++) {
		if (s.leaves % world) continue;
		run_world(c, &o, &s, world, many);
		c->compared += (long)cells;
		if (memcmp(one, many, cells * sizeof *one)) gpu_fail(c, "the sum over %d ranks has other bits than that of one", world);
	}
	struct tensor y = gpu_output(c, DTYPE_F32, TENSOR_REPLICATED, s.rows, s.hidden, s.hidden);
	gpu_ok(c, c->ops->copy(c->stream, y.data, one, cells * sizeof *one, COPY_TO_DEVICE, &c->err));
	gpu_sync_stream(c);
	s.wide_y = true;
	expect(c, &s, &o, 0, 1, 1, NULL, want, bound);
	gpu_compare(c, "y", &y, want, bound, 1, gpu_tiny(DTYPE_F32));
	c->stream = other;
	c->ops->stream_destroy(stream);
	gpu_case_end(c);
}

/* The norm made by the op against the norm made before it: h within an ulp of its type, y of inputs that close. */
static void norm_case(struct gpu_check *c, enum dtype dtype, struct moe_case s)
{
	gpu_case(c, dtype, FILL_RANDOM, "norm T=%d H=%d %d of %d x %d", s.rows, s.hidden, s.top_k, s.experts, s.inner);
	struct operands o = make(c, &s);
	const int pad = s.hidden + 4;
	struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, s.rows, s.hidden, pad, 21, NULL);
	const float *weight = gpu_put(c, gpu_filled(c, DTYPE_F32, (size_t)s.hidden, 22), (size_t)s.hidden * sizeof(float));
	struct tensor h = gpu_output(c, dtype, TENSOR_REPLICATED, s.rows, s.hidden, s.hidden + 8), first = gpu_output(c, dtype, TENSOR_REPLICATED, s.rows, s.hidden, s.hidden + 8);
	struct tensor y = gpu_output(c, DTYPE_F32, TENSOR_PARTIAL, s.rows, s.hidden, s.hidden), want = gpu_output(c, DTYPE_F32, TENSOR_PARTIAL, s.rows, s.hidden, s.hidden);
	struct sum_split split = {.tree_leaves = 1, .leaves = 1, .spans = 1, .span = {{0, 1}}};
	GPU_RUN(c, rms_norm, {.x = x, .weight = weight, .eps = 1e-5f, .out = first});
	GPU_RUN(c, moe, {.in = {.h = first, .done = true}, .weights = &o.w, .top_k = s.top_k, .split = &split, .y = want, .scratch = o.scratch});
	GPU_RUN(c, moe, {.in = {.x = x, .weight = weight, .eps = 1e-5f, .h = h}, .weights = &o.w, .top_k = s.top_k, .split = &split, .y = y, .scratch = o.scratch});
	const size_t cells = (size_t)s.rows * (size_t)s.hidden;
	double *values = gpu_host(c, cells * sizeof *values), *scale = gpu_host(c, cells * sizeof *scale);
	float *host = gpu_host(c, cells * sizeof *host), largest = 0;
	gpu_get(c, host, want.data, cells * sizeof *host);
	for (size_t i = 0; i < cells; i++) largest = fmaxf(largest, fabsf(host[i]));
	for (size_t i = 0; i < cells; i++) values[i] = host[i], scale[i] = largest;
	gpu_compare(c, "y", &y, values, scale, dtype == DTYPE_F32 ? 1e-5 : 0.02, 0);
	char *rows = gpu_host(c, (size_t)s.rows * (size_t)(s.hidden + 8) * dtype_bytes(dtype));
	gpu_get(c, rows, first.data, ((size_t)(s.rows - 1) * (size_t)(s.hidden + 8) + (size_t)s.hidden) * dtype_bytes(dtype));
	for (int t = 0; t < s.rows; t++)
		for (int i = 0; i < s.hidden; i++) values[(size_t)t * (size_t)s.hidden + (size_t)i] = element(rows, dtype, (size_t)t * (size_t)(s.hidden + 8) + (size_t)i);
	gpu_compare(c, "h", &h, values, NULL, 2 * gpu_unit(dtype) + 4e-7, gpu_tiny(dtype));
	gpu_case_end(c);
}

static void refusals(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "moe refusals");
	const struct moe_case s = {.rows = 2, .hidden = 32, .experts = 4, .top_k = 2, .inner = 16, .shared = 16};
	struct operands o = make(c, &s);
	struct tensor y = gpu_output(c, DTYPE_F32, TENSOR_REPLICATED, 2, 32, 32), partial = y;
	partial.dist = TENSOR_PARTIAL;
	struct moe_weights no_gate = o.w, wide = o.w;
	no_gate.router.n = 4;
	wide.down.dtype = DTYPE_F32;
	GPU_REFUSED(c, moe, UNSUPPORTED, {.in = {.h = o.x, .done = true}, .weights = &o.w, .top_k = 5, .y = y, .accumulate = true, .scratch = o.scratch});
	GPU_REFUSED(c, moe, UNSUPPORTED, {.in = {.h = o.x, .done = true}, .weights = &o.w, .top_k = 2, .y = y, .scratch = o.scratch});
	GPU_REFUSED(c, moe, BAD_INPUT, {.in = {.h = o.x, .done = true}, .weights = &o.w, .top_k = 2, .y = partial, .accumulate = true, .scratch = o.scratch});
	GPU_REFUSED(c, moe, BAD_INPUT, {.in = {.h = o.x, .done = true}, .weights = &no_gate, .top_k = 2, .y = y, .accumulate = true, .scratch = o.scratch});
	GPU_REFUSED(c, moe, UNSUPPORTED, {.in = {.h = o.x, .done = true}, .weights = &wide, .top_k = 2, .y = y, .accumulate = true, .scratch = o.scratch});
	gpu_case_end(c);
}

void gpu_check_moe(struct gpu_check *c)
{
	GPU_EACH_DTYPE(dtype) {
		moe_case(c, dtype, (struct moe_case){.rows = 1, .hidden = 128, .experts = 16, .top_k = 4, .inner = 40, .accumulate = true, .norm_topk = true});
		moe_case(c, dtype, (struct moe_case){.rows = 2, .hidden = 64, .experts = 5, .top_k = 5, .inner = 24, .shared = 56, .leaves = 1, .ties = true, .pad = 8});
		moe_case(c, dtype, (struct moe_case){.rows = 4, .hidden = 264, .experts = 300, .top_k = 10, .inner = 16, .shared = 16, .accumulate = true, .ties = true});
		moe_case(c, dtype, (struct moe_case){.rows = 3, .hidden = 96, .experts = 6, .top_k = 2, .inner = 56, .shared = 28, .leaves = 7, .wide_y = true});
		moe_case(c, dtype, (struct moe_case){.rows = 3, .hidden = 33, .experts = 7, .top_k = 3, .inner = 5, .shared = 3, .accumulate = true, .pad = 1});
		moe_case(c, dtype, (struct moe_case){.rows = 7, .hidden = 72, .experts = 9, .top_k = 2, .inner = 48, .leaves = 3, .norm_topk = true});
		moe_case(c, dtype, (struct moe_case){.rows = 70, .hidden = 64, .experts = 3, .top_k = 2, .inner = 72, .shared = 40, .leaves = 1, .norm_topk = true, .pad = 8});
		moe_case(c, dtype, (struct moe_case){.rows = 40, .hidden = 136, .experts = 4, .top_k = 2, .inner = 88, .leaves = 1, .wide_y = true, .ties = true});
		norm_case(c, dtype, (struct moe_case){.rows = 2, .hidden = 264, .experts = 12, .top_k = 3, .inner = 40});
		norm_case(c, dtype, (struct moe_case){.rows = 1, .hidden = 4096, .experts = 6, .top_k = 2, .inner = 8});
		norm_case(c, dtype, (struct moe_case){.rows = 9, .hidden = 72, .experts = 5, .top_k = 2, .inner = 16});
		if (!c->quick) {
			moe_case(c, dtype, (struct moe_case){.rows = 24, .hidden = 512, .experts = 64, .top_k = 8, .inner = 192, .shared = 128, .accumulate = true});
			moe_case(c, dtype, (struct moe_case){.rows = 160, .hidden = 320, .experts = 4, .top_k = 3, .inner = 200, .leaves = 1, .norm_topk = true});
			moe_case(c, dtype, (struct moe_case){.rows = 600, .hidden = 256, .experts = 8, .top_k = 4, .inner = 136, .accumulate = true, .pad = 8});
		}
		invariant_case(c, dtype, (struct moe_case){.rows = 3, .hidden = 40, .experts = 8, .top_k = 3, .inner = 48, .leaves = 6, .norm_topk = true});
		invariant_case(c, dtype, (struct moe_case){.rows = 21, .hidden = 72, .experts = 4, .top_k = 2, .inner = 24, .leaves = 8});
	}
	refusals(c);
}

/* ---- measuring: Qwen3-30B-A3B's layer, a step of T rows on one of P ranks */

struct bench {
	struct operands o;
	struct moe_case s;
	struct tensor y;
	char *x;
	int choices;
};

static void bench_one(struct gpu_check *c, void *context, int i)
{
	struct bench *b = context;
	struct tensor x = b->o.x;
	x.data = b->x + (size_t)(i % b->choices) * (size_t)b->s.rows * (size_t)b->s.hidden * 2;
	GPU_RUN(c, moe, {.in = {.h = x, .done = true}, .weights = &b->o.w, .top_k = b->s.top_k, .norm_topk = true, .y = b->y, .accumulate = true, .scratch = b->o.scratch});
}

static void bench_rows(struct gpu_check *c, int rows, int world)
{
	struct bench b = {.s = {.rows = rows, .hidden = 2048, .experts = 128, .top_k = 8, .inner = 768 / world}, .choices = rows > 256 ? 1 : 16};
	struct moe_weights *w = &b.o.w;
	const size_t hidden = 2048, inner = (size_t)b.s.inner;
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "T=%d H=2048 8 of 128 x %d", rows, b.s.inner);
	*w = (struct moe_weights){.experts = 128, .gate_up_bytes = 4 * inner * hidden, .down_bytes = 2 * inner * hidden};
	w->router = (struct linear_weight){.data = gpu_random_room(c, DTYPE_BF16, 128 * hidden, 0.05f), .dtype = DTYPE_BF16, .n = 128, .k = 2048};
	w->gate_up = (struct linear_weight){.data = gpu_random_room(c, DTYPE_BF16, 256 * inner * hidden, 0.02f), .dtype = DTYPE_BF16, .n = 2 * b.s.inner, .k = 2048};
	w->down = (struct linear_weight){.data = gpu_random_room(c, DTYPE_BF16, 128 * inner * hidden, 0.02f), .dtype = DTYPE_BF16, .n = 2048, .k = b.s.inner};
	b.x = gpu_random_room(c, DTYPE_BF16, (size_t)b.choices * (size_t)rows * hidden, 1);
	b.o.x = tensor_view(b.x, DTYPE_BF16, TENSOR_REPLICATED, rows, 2048);
	b.y = tensor_view(gpu_random_room(c, DTYPE_F32, (size_t)rows * hidden, 1), DTYPE_F32, TENSOR_REPLICATED, rows, 2048);
	const struct moe_shape shape = {.rows = rows, .dtype = DTYPE_BF16, .hidden = 2048, .experts = 128, .top_k = 8, .inner = b.s.inner, .leaves = 1};
	b.o.scratch = gpu_room(c, c->ops->moe_scratch_bytes(c->device, &shape));
	double seconds = gpu_bench(c, bench_one, &b, rows > 256 ? 4 : 32);
	const double distinct = 128 * (1 - pow(1 - 8.0 / 128, rows)); /* if all experts are as likely */
	gpu_bench_report(c, seconds, (distinct * 3 * (double)inner + 128) * (double)hidden * 2, rows * 8.0 * 6 * (double)inner * (double)hidden);
	gpu_case_end(c);
}

void gpu_bench_moe(struct gpu_check *c)
{
	static const int rows[] = {1, 2, 4, 8, 16, 64, 512, 8192};
	for (int world = 1; world <= 2; world++)
		for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) bench_rows(c, rows[i], world);
}
