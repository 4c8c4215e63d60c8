/* check_moe.c: experts: routing with ties and NaN, rows that share experts or not, shared experts, any split; the whole op row by row against the same
 * arithmetic written plainly, and that against double precision. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "device/cpu/exp.h"

struct moe_case {
	enum dtype dtype;
	int rows, hidden, experts, top_k, inner, shared; /* shared: inner size of the shared expert, 0: none */
	bool norm_topk, ties;                            /* ties: pairs of experts have equal rows in the router */
	int tree_leaves, first, leaves;
};

/* Rows as in a checkpoint: router [E (+ 1)][H]; gate_up [E][2I][H], then [2Is][H]; down [E][H][I], then [H][Is]. */
struct moe_model {
	struct moe_weights w;
	struct guarded router, gate_up, down, router_rows, gate_up_rows, down_rows;
};

static struct guarded put_all(struct check *c, struct linear_weight *first, size_t *bytes, int experts, struct linear_weight *shared, const struct guarded *rows)
{
	const struct runner *v = &c->variant[0];
	struct error err = {0};
	*bytes = v->device->vt->linear_bytes(first->dtype, first->n, first->k);
	struct guarded g = guarded_alloc(*bytes * (size_t)experts + (shared ? v->device->vt->linear_bytes(shared->dtype, shared->n, shared->k) : 0));
	memset(g.data, 0, g.bytes);
	size_t line = dtype_size(first->dtype, (size_t)first->k), at = 0;
	for (int e = 0; e < experts; e++, at += line * (size_t)first->n) {
		struct linear_weight w = *first;
		w.data = (char *)g.data + (size_t)e * *bytes;
		expect_ok(c, v, v->device->vt->linear_put(v->stream, &w, 0, w.n, (char *)rows->data + at, line, &err), &err);
	}
	first->data = g.data;
	if (!shared) return g;
	shared->data = (char *)g.data + (size_t)experts * *bytes;
	expect_ok(c, v, v->device->vt->linear_put(v->stream, shared, 0, shared->n, (char *)rows->data + at, dtype_size(shared->dtype, (size_t)shared->k), &err), &err);
	return g;
}

static struct moe_model model_make(struct check *c, const struct moe_case *mc, enum fill fill)
{
	enum dtype dtype = mc->dtype;
	struct moe_model m = {.w = {.experts = mc->experts,
	                            .router = {.dtype = DTYPE_F32, .n = mc->experts + (mc->shared > 0), .k = mc->hidden},
	                            .gate_up = {.dtype = dtype, .n = 2 * mc->inner, .k = mc->hidden},
	                            .down = {.dtype = dtype, .n = mc->hidden, .k = mc->inner}}};
	if (mc->shared) {
		m.w.shared_gate_up = (struct linear_weight){.dtype = dtype, .n = 2 * mc->shared, .k = mc->hidden};
		m.w.shared_down = (struct linear_weight){.dtype = dtype, .n = mc->hidden, .k = mc->shared};
	}
	size_t routed = (size_t)mc->experts * (size_t)mc->inner * (size_t)mc->hidden, shared = (size_t)mc->shared * (size_t)mc->hidden;
	m.router_rows = guarded_alloc((size_t)m.w.router.n * (size_t)mc->hidden * 4);
	m.gate_up_rows = guarded_alloc(2 * (routed + shared) * dtype_bytes(dtype));
	m.down_rows = guarded_alloc((routed + shared) * dtype_bytes(dtype));
	fill_with(m.router_rows.data, DTYPE_F32, m.router_rows.bytes / 4, fill, c->seed, 11);
	fill_with(m.gate_up_rows.data, dtype, 2 * (routed + shared), fill, c->seed, 12);
	fill_with(m.down_rows.data, dtype, routed + shared, fill, c->seed, 13);
	for (int e = 1; mc->ties && e < mc->experts; e += 2)
		memcpy((float *)m.router_rows.data + (size_t)e * (size_t)mc->hidden, (float *)m.router_rows.data + (size_t)(e - 1) * (size_t)mc->hidden, (size_t)mc->hidden * 4);
	size_t ignored;
	m.router = put_all(c, &m.w.router, &ignored, 1, NULL, &m.router_rows);
	m.gate_up = put_all(c, &m.w.gate_up, &m.w.gate_up_bytes, mc->experts, mc->shared ? &m.w.shared_gate_up : NULL, &m.gate_up_rows);
	m.down = put_all(c, &m.w.down, &m.w.down_bytes, mc->experts, mc->shared ? &m.w.shared_down : NULL, &m.down_rows);
	return m;
}

static void model_free(struct moe_model *m)
{
	guarded_free(&m->router), guarded_free(&m->gate_up), guarded_free(&m->down);
	guarded_free(&m->router_rows), guarded_free(&m->gate_up_rows), guarded_free(&m->down_rows);
}

/* ---- one row, plainly: bits as docs/NUMERICS.md has them, and beside each value its double and how far the float may be from it */

struct value {
	float f;
	double d, error;
};

static struct value chain(const float *x, const struct guarded *w, enum dtype dtype, size_t at, int k)
{
	struct value v = {0};
	double magnitude = 0;
	for (int i = 0; i < k; i++) {
		double e = element(w->data, dtype, at + (size_t)i);
		v.f = fmaf(x[i], (float)e, v.f);
		v.d += (double)x[i] * e;
		magnitude += fabs((double)x[i] * e);
	}
	v.error = (k + 1) * (0x1.01p-24 * magnitude + 0x1p-150);
	return v;
}

/* Chosen experts, ascending, and their weights; the shared expert's gate behind them. Returns how many take part. */
static int route(const struct moe_case *mc, const struct moe_model *m, const float *x, int *expert, struct value *weight)
{
	int experts = mc->experts, n = 0;
	float p[512], max, lane[16] = {0}, sum = 0;
	double d[512] = {0}, d_max, d_sum = 0, chosen_sum = 0, worst = 0;
	for (int e = 0; e < experts; e++) {
		struct value logit = chain(x, &m->router_rows, DTYPE_F32, (size_t)e * (size_t)mc->hidden, mc->hidden);
		p[e] = logit.f, d[e] = logit.d;
		if (logit.error > worst) worst = logit.error;
	}
	max = p[0], d_max = d[0];
	for (int e = 1; e < experts; e++) max = p[e] > max ? p[e] : max, d_max = d[e] > d_max ? d[e] : d_max;
	for (int e = 0; e < experts; e++) {
		p[e] = exp_f32(p[e] - max);
		lane[e % 16] = lane[e % 16] + p[e];
		d_sum += exp(d[e] - d_max);
	}
	for (int width = 8; width > 0; width /= 2)
		for (int i = 0; i < width; i++) lane[i] = lane[i] + lane[i + width];
	int order[MOE_MAX_TOP_K];
	float left[512];
	for (int e = 0; e < experts; e++) left[e] = p[e] = p[e] / lane[0], d[e] = exp(d[e] - d_max) / d_sum;
	for (int i = 0; i < mc->top_k; i++) {
		int best = -1;
		for (int e = 0; e < experts; e++) {
			bool taken = false;
			for (int j = 0; j < i; j++) taken |= order[j] == e;
			if (!taken && (best < 0 || left[e] > left[best])) best = e;
		}
		order[i] = best;
		sum = sum + p[best];
		chosen_sum += d[best];
	}
	/* An error of the logits by a factor of e^(2 worst), exp and sums by some ulp. */
	double relative = expm1(4 * worst) + (experts / 16 + mc->top_k + 24) * 0x1p-23;
	for (int e = 0; e < experts; e++)
		for (int i = 0; i < mc->top_k; i++)
			if (order[i] == e) {
				struct value v = {mc->norm_topk ? p[e] / sum : p[e], mc->norm_topk ? d[e] / chosen_sum : d[e], 0};
				v.error = relative * v.d;
				weight[n] = v;
				expert[n++] = e;
			}
	if (!mc->shared) return n;
	struct value gate = chain(x, &m->router_rows, DTYPE_F32, (size_t)experts * (size_t)mc->hidden, mc->hidden);
	weight[n] = (struct value){1.0f / (1.0f + exp_f32(-gate.f)), 1 / (1 + exp(-gate.d)), 0};
	weight[n].error = gate.error + 8 * 0x1p-24;
	expert[n++] = experts;
	return n;
}

/* weight * swiglu of one expert: [inner]. */
static void activate(const struct moe_case *mc, const struct moe_model *m, const float *x, int expert, struct value weight, struct value *act)
{
	int inner = expert == mc->experts ? mc->shared : mc->inner;
	size_t base = (size_t)expert * 2 * (size_t)mc->inner * (size_t)mc->hidden;
	for (int i = 0; i < inner; i++) {
		struct value g = chain(x, &m->gate_up_rows, mc->dtype, base + (size_t)i * (size_t)mc->hidden, mc->hidden);
		struct value u = chain(x, &m->gate_up_rows, mc->dtype, base + (size_t)(inner + i) * (size_t)mc->hidden, mc->hidden);
		float product = g.f / (1.0f + exp_f32(-g.f)) * u.f;
		double silu = g.d / (1 + exp(-g.d));
		act[i].f = product * weight.f;
		act[i].d = silu * u.d * weight.d;
		act[i].error = fabs(weight.d) * (1.1 * g.error * (fabs(u.d) + u.error) + fabs(silu) * u.error) + weight.error * fabs(silu * u.d) + 10 * 0x1p-24 * fabs(act[i].d) + 0x1p-126;
	}
}

/* Span `s` of a row. */
static void plain_row(const struct moe_case *mc, const struct moe_model *m, const struct sum_split *split, int s, const float *x, float *bits, double *want,
                      double *bound)
{
	int expert[MOE_MAX_TOP_K + 1], leaves = split->leaves, most = mc->inner > mc->shared ? mc->inner : mc->shared;
	struct value weight[MOE_MAX_TOP_K + 1], *act = malloc((size_t)(mc->top_k + 1) * (size_t)most * sizeof *act);
	uint8_t merges[SUMTREE_MAX_LEAVES];
	int n = route(mc, m, x, expert, weight), lo = split->span[s].lo - split->first, hi = split->span[s].hi - split->first;
	for (int i = 0; i < n; i++) activate(mc, m, x, expert[i], weight[i], act + (size_t)i * (size_t)most);
	sumtree_leaf_program(split->tree_leaves, split->span[s], merges);
	for (int j = 0; j < mc->hidden; j++) {
		float stack[SUMTREE_MAX_DEPTH];
		int depth = 0;
		double magnitude = 0;
		want[j] = bound[j] = 0;
		for (int leaf = lo; leaf < hi; leaf++) {
			float sum = 0;
			for (int i = 0; i < n; i++) {
				int inner = expert[i] == mc->experts ? mc->shared : mc->inner, leaf_k = inner / leaves;
				size_t at = (size_t)expert[i] * (size_t)mc->inner * (size_t)mc->hidden + (size_t)j * (size_t)inner;
				for (int k = leaf * leaf_k; k < (leaf + 1) * leaf_k; k++) {
					struct value a = act[(size_t)i * (size_t)most + (size_t)k];
					double e = element(m->down_rows.data, mc->dtype, at + (size_t)k);
					sum = fmaf(a.f, (float)e, sum);
					want[j] += a.d * e;
					bound[j] += a.error * fabs(e);
					magnitude += (fabs(a.d) + a.error) * fabs(e);
				}
			}
			stack[depth++] = sum;
			for (int k = merges[leaf - lo]; k > 0; k--, depth--) stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
		}
		bits[j] = stack[0];
		bound[j] += (n * most + 16) * (0x1.01p-24 * magnitude + 0x1p-150);
	}
	free(act);
}

static struct moe_shape shape_of(const struct moe_case *mc)
{
	return (struct moe_shape){.rows = mc->rows, .hidden = mc->hidden, .experts = mc->experts, .top_k = mc->top_k, .inner = mc->inner, .shared_inner = mc->shared,
	                          .leaves = mc->leaves};
}

static void run_case(struct check *c, const struct moe_case *mc, enum fill fill)
{
	case_begin(c, fill, "T=%d H=%d %d of %d x %d shared %d %s%s%s leaves %d+%d of %d", mc->rows, mc->hidden, mc->top_k, mc->experts, mc->inner, mc->shared,
	           dtype_name(mc->dtype), mc->norm_topk ? " norm" : "", mc->ties ? " ties" : "", mc->first, mc->leaves, mc->tree_leaves);
	struct sum_split split = {.tree_leaves = mc->tree_leaves, .first = mc->first, .leaves = mc->leaves};
	split.spans = sumtree_spans(mc->tree_leaves, mc->first, mc->first + mc->leaves, split.span);
	struct moe_model m = model_make(c, mc, fill);
	int x_stride = mc->hidden + 3, y_stride = mc->hidden + 5;
	size_t slot = (size_t)mc->rows * (size_t)y_stride + 7, floats = (size_t)split.spans * slot, hidden = (size_t)mc->hidden;
	struct guarded x = guarded_alloc(((size_t)(mc->rows - 1) * (size_t)x_stride + hidden) * 4), y = guarded_alloc(floats * 4);
	float *want = malloc(floats * 4);
	double *exact = malloc(hidden * 8), *bound = malloc(hidden * 8);
	fill_with(x.data, DTYPE_F32, x.bytes / 4, fill, c->seed, 1);
	memset(want, 0xff, floats * 4);
	for (int s = 0; s < split.spans; s++)
		for (int r = 0; r < mc->rows; r++) {
			float *row = want + (size_t)s * slot + (size_t)r * (size_t)y_stride;
			plain_row(mc, &m, &split, s, (float *)x.data + (size_t)r * (size_t)x_stride, row, exact, bound);
			if (fill == FILL_RANDOM || fill == FILL_ZERO) compare_bound(c, "y", row, exact, bound, hidden);
		}
	reference_bits(c, want, floats);
	struct moe_args args = {.in = {.h = tensor_view(x.data, DTYPE_F32, TENSOR_REPLICATED, mc->rows, mc->hidden), .done = true}, .weights = &m.w, .top_k = mc->top_k,
	                        .norm_topk = mc->norm_topk, .split = &split, .y = tensor_view(y.data, DTYPE_F32, TENSOR_PARTIAL, mc->rows, mc->hidden)};
	args.in.h.row_stride = x_stride, args.y.row_stride = y_stride, args.y.slots = split.spans, args.y.slot_stride = (int64_t)slot;
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		struct moe_shape shape = shape_of(mc);
		struct guarded scratch = guarded_alloc(v->device->vt->moe_scratch_bytes(v->device, &shape));
		guarded_poison(&y), guarded_poison(&scratch);
		args.scratch = scratch.data;
		expect_ok(c, v, OP(v->stream, moe, &args, &err), &err);
		expect_intact(c, v, &y, "y"), expect_intact(c, v, &scratch, "scratch");
		compare_bits(c, v, "y", y.data, want, floats);
		guarded_free(&scratch);
	}
	case_end(c);
	model_free(&m);
	guarded_free(&x), guarded_free(&y);
	free(want), free(exact), free(bound);
}

static void refuse(struct check *c, const char *what, enum status want, void (*spoil)(struct moe_args *, struct moe_weights *))
{
	struct moe_case mc = {DTYPE_BF16, 2, 16, 4, 2, 8, 8, true, false, 2, 0, 2};
	case_begin(c, FILL_RANDOM, "refused: %s", what);
	const struct runner *v = &c->variant[0];
	struct sum_split split = {.tree_leaves = 2, .leaves = 2, .spans = 1, .span = {{0, 2}}};
	struct moe_model m = model_make(c, &mc, FILL_RANDOM);
	struct moe_shape shape = shape_of(&mc);
	float x[32] = {0}, y[32];
	void *scratch = malloc(v->device->vt->moe_scratch_bytes(v->device, &shape));
	struct moe_args args = {.in = {.h = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, 2, 16), .done = true}, .weights = &m.w, .top_k = 2, .split = &split,
	                        .y = tensor_view(y, DTYPE_F32, TENSOR_PARTIAL, 2, 16), .scratch = scratch};
	struct error err = {0};
	spoil(&args, &m.w);
	enum status st = OP(v->stream, moe, &args, &err);
	if (st != want) case_fail(c, v, "%s instead of %s: %s", status_name(st), status_name(want), err.text);
	case_end(c);
	free(scratch);
	model_free(&m);
}

static void too_many(struct moe_args *a, struct moe_weights *w) { (void)w, a->top_k = 5; }
static void summed(struct moe_args *a, struct moe_weights *w) { (void)w, a->y.dist = TENSOR_REPLICATED; }
static void sharded(struct moe_args *a, struct moe_weights *w) { (void)w, a->in.h.dist = TENSOR_SHARDED; }
static void no_gate(struct moe_args *a, struct moe_weights *w) { (void)a, w->router.n = 4; }
static void mixed(struct moe_args *a, struct moe_weights *w) { (void)a, w->down.dtype = DTYPE_F16; }
static void narrow(struct moe_args *a, struct moe_weights *w) { (void)a, w->gate_up.n = 8; }
static void without_split(struct moe_args *a, struct moe_weights *w) { (void)w, a->split = NULL; }

void check_moe(struct check *c)
{
	static const struct moe_case cases[] = {
		/* type, T, H, E, k, I, Is, norm, ties, tree leaves, first, leaves */
		{DTYPE_F32, 1, 1, 1, 1, 1, 0, false, false, 1, 0, 1},
		{DTYPE_BF16, 1, 33, 5, 2, 17, 0, true, false, 1, 0, 1},
		{DTYPE_BF16, 1, 64, 16, 4, 32, 24, false, false, 8, 0, 8},
		{DTYPE_F16, 2, 40, 8, 8, 16, 0, true, false, 8, 4, 4},
		{DTYPE_BF16, 3, 70, 8, 3, 28, 49, true, true, 24, 5, 7},
		{DTYPE_BF16, 13, 96, 4, 2, 40, 0, false, true, 4, 1, 2},
		{DTYPE_F32, 29, 65, 6, 3, 36, 12, true, false, 12, 4, 4},
		{DTYPE_BF16, 130, 48, 3, 2, 24, 8, true, false, 8, 0, 8},
		{DTYPE_F16, 60, 300, 33, 5, 8, 0, false, false, 2, 1, 1},
		{DTYPE_BF16, 17, 32, 2, 1, 840, 0, true, false, 840, 0, 840},
		{DTYPE_BF16, 7, 31, 130, 64, 4, 4, true, true, 4, 0, 4},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		for (enum fill fill = 0; fill < FILL_COUNT; fill++) run_case(c, &cases[i], fill);
	refuse(c, "more experts than there are", STATUS_BAD_INPUT, too_many);
	refuse(c, "a sum that is not partial", STATUS_BAD_INPUT, summed);
	refuse(c, "x sharded", STATUS_BAD_INPUT, sharded);
	refuse(c, "a router without the shared gate", STATUS_BAD_INPUT, no_gate);
	refuse(c, "two types", STATUS_UNSUPPORTED, mixed);
	refuse(c, "half of gate and up", STATUS_BAD_INPUT, narrow);
	refuse(c, "no split", STATUS_UNSUPPORTED, without_split);
}
