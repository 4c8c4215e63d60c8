/* trial_moe.c: the experts of a layer as one op: weights, rows that choose experts with room to the others, and the sum in double.
 *
 * Which experts a row chooses must not hang on a rounding: a candidate that adds the router's products in another order would choose others, and be called wrong.
 * So the router's row e is 1 at input e and 0 elsewhere, and a row of the input has 1/2 to 1 at the experts that it is to choose, something negative at
 * all others. Inputs choose other experts each, so that what they read goes around in memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "prescreen/trial_parts.h"

#define WEIGHT_SEED 1
#define MAX_INPUTS 64
#define ALIGN ((size_t)256)

/* ---- weights */

/* One matrix of several experts: `tensor` has them all, rows one behind the other. */
static enum status fill(struct trial_experts *x, const struct linear_weight *w, const struct source_tensor *tensor, int64_t first, struct error *err)
{
	const struct bench *b = x->bench;
	struct source_recipe recipe;
	if (b->ops->linear_random && source_recipe(x->source, tensor, &recipe)) {
		const struct random_region region = {.seed = recipe.seed, .stream = recipe.stream, .row = first, .rows = w->n, .cols = w->k, .offset = recipe.offset,
		                                     .scale = recipe.scale, .dtype = w->dtype};
		return b->ops->linear_random(b->stream, w, 0, &region, err);
	}
	const void *data;
	size_t stride;
	TRY(source_read(x->source, tensor, first, w->n, 0, w->k, &x->scratch, &data, &stride, err));
	TRY(b->ops->linear_put(b->stream, w, 0, w->n, data, stride, err));
	return b->ops->stream_sync(b->stream, clock_deadline_ms((uint64_t)b->timeout_ms), NULL, err);
}

static enum status fill_experts(struct trial_experts *x, struct linear_weight w, size_t step, const struct source_tensor *tensor, struct error *err)
{
	for (int e = 0; e < x->key.experts; e++) {
		TRY(fill(x, &w, tensor, (int64_t)e * w.n, err));
		w.data = (char *)w.data + step;
	}
	return STATUS_OK;
}

/* Row e: 1 at input e. The shared expert's gate, the last row, reads the input behind those of the experts. */
static enum status fill_router(struct trial_experts *x, struct error *err)
{
	const struct bench *b = x->bench;
	const struct linear_weight *w = &x->op.router;
	const size_t size = dtype_bytes(w->dtype), row = (size_t)w->k * size;
	char *host = mem_zalloc((size_t)w->n, row, "prescreen: router", err);
	if (!host) return STATUS_NO_MEMORY;
	for (int e = 0; e < w->n; e++) {
		const float one = 1;
		const uint16_t half = trial_half(one, w->dtype);
		memcpy(host + (size_t)e * row + (size_t)(e % w->k) * size, w->dtype == DTYPE_F32 ? (const void *)&one : (const void *)&half, size);
	}
	enum status st = b->ops->linear_put(b->stream, w, 0, w->n, host, row, err);
	if (st == STATUS_OK) st = b->ops->stream_sync(b->stream, clock_deadline_ms((uint64_t)b->timeout_ms), NULL, err);
	free(host);
	return st;
}

static enum status find(struct trial_experts *x, const char *name, int64_t rows, int cols, struct source_tensor *out, struct error *err)
{
	return rows && cols ? source_find(x->source, name, 2, rows, cols, out, err) : STATUS_OK;
}

static enum status find_all(struct trial_experts *x, struct error *err)
{
	const struct moe_key *k = &x->key;
	TRY(find(x, "prescreen.gate_up", (int64_t)k->experts * 2 * k->inner, k->hidden, &x->gate_up, err));
	TRY(find(x, "prescreen.down", (int64_t)k->experts * k->hidden, k->inner, &x->down, err));
	TRY(find(x, "prescreen.shared_gate_up", 2 * (int64_t)k->shared_inner, k->hidden, &x->shared_gate_up, err));
	return find(x, "prescreen.shared_down", k->hidden, k->shared_inner, &x->shared_down, err);
}

/* Where each matrix lies in one allocation; returns its size. */
static size_t lay_out(struct trial_experts *x)
{
	const struct device_ops *ops = x->bench->ops;
	const struct moe_key *k = &x->key;
	struct moe_weights *w = &x->op;
	const int shared = k->shared_inner > 0;
	w->experts = k->experts;
	w->router = (struct linear_weight){.dtype = k->dtype, .n = k->experts + shared, .k = k->hidden};
	w->gate_up = (struct linear_weight){.dtype = k->dtype, .n = 2 * k->inner, .k = k->hidden};
	w->down = (struct linear_weight){.dtype = k->dtype, .n = k->hidden, .k = k->inner};
	w->gate_up_bytes = size_round_up(ops->linear_bytes(k->dtype, w->gate_up.n, w->gate_up.k), ALIGN);
	w->down_bytes = size_round_up(ops->linear_bytes(k->dtype, w->down.n, w->down.k), ALIGN);
	if (shared) w->shared_gate_up = (struct linear_weight){.dtype = k->dtype, .n = 2 * k->shared_inner, .k = k->hidden};
	if (shared) w->shared_down = (struct linear_weight){.dtype = k->dtype, .n = k->hidden, .k = k->shared_inner};
	struct linear_weight *each[] = {&w->router, &w->shared_gate_up, &w->shared_down, &w->gate_up, &w->down};
	size_t at = 0;
	for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
		if (!each[i]->n) continue;
		each[i]->data = (char *)x->memory + at; /* of no memory yet: an offset */
		const size_t many = each[i] == &w->gate_up ? w->gate_up_bytes * (size_t)k->experts : each[i] == &w->down ? w->down_bytes * (size_t)k->experts : 0;
		at += many ? many : size_round_up(ops->linear_bytes(k->dtype, each[i]->n, each[i]->k), ALIGN);
	}
	return at;
}

enum status trial_experts_open(struct trial_experts *out, struct bench *bench, const struct moe_key *key, struct error *err)
{
	*out = (struct trial_experts){.bench = bench, .key = *key};
	enum status st;
	if (key->experts + 1 > key->hidden)
		return FAIL(err, UNSUPPORTED, "prescreen: %d experts of %d inputs; more inputs than experts are wanted", key->experts, key->hidden);
	TRY_GOTO(source_open_random(&out->source, WEIGHT_SEED, key->dtype, err), fail);
	TRY_GOTO(find_all(out, err), fail);
	TRY_GOTO(bench->ops->alloc(bench->device, lay_out(out), MEM_SHARDED, "prescreen: experts", &out->memory, err), fail);
	(void)lay_out(out);
	TRY_GOTO(fill_router(out, err), fail);
	TRY_GOTO(fill_experts(out, out->op.gate_up, out->op.gate_up_bytes, &out->gate_up, err), fail);
	TRY_GOTO(fill_experts(out, out->op.down, out->op.down_bytes, &out->down, err), fail);
	if (key->shared_inner) TRY_GOTO(fill(out, &out->op.shared_gate_up, &out->shared_gate_up, 0, err), fail);
	if (key->shared_inner) TRY_GOTO(fill(out, &out->op.shared_down, &out->shared_down, 0, err), fail);
	TRY_GOTO(bench->ops->stream_sync(bench->stream, clock_deadline_ms((uint64_t)bench->timeout_ms), NULL, err), fail);
	return STATUS_OK;
fail:
	trial_experts_close(out);
	return st;
}

void trial_experts_close(struct trial_experts *x)
{
	if (!x->bench) return;
	x->bench->ops->free(x->bench->device, x->memory);
	source_close(&x->source);
	source_scratch_fini(&x->scratch);
	*x = (struct trial_experts){0};
}

/* ---- rows */

/* The nth of the experts that a row of an input chooses: one in `step` from a place of its own, the step prime to their number. */
static int chosen_expert(const struct moe_key *k, int64_t row, int input, int nth)
{
	const uint64_t draw = rng_u64(WEIGHT_SEED, 21 + (uint64_t)input, (uint64_t)row);
	int step = 1 + (int)((draw >> 32) % (uint64_t)k->experts), a = step, b = k->experts;
	while (b) {
		const int rest = a % b;
		a = b, b = rest;
	}
	if (a != 1) step = 1;
	return (int)((draw % (uint64_t)k->experts + (uint64_t)nth * (uint64_t)step) % (uint64_t)k->experts);
}

static void fill_input(const struct moe_key *k, float *x, int input)
{
	for (int64_t row = 0; row < k->m; row++) {
		float *at = x + (size_t)row * (size_t)k->hidden;
		for (int e = 0; e < k->experts; e++) at[e] = -(float)(1 + (row + e) % 64) / 128;
		for (int i = 0; i < k->top_k; i++) at[chosen_expert(k, row, input, i)] = 0.5f + 0.5f * (float)(i + 1) / (float)k->top_k;
	}
}

/* So many inputs that the experts that they choose are more than the cache holds. */
static int count_inputs(const struct trial *t)
{
	const struct moe_key *k = &t->problem->moe;
	const struct moe_weights *w = &t->experts->op;
	const size_t pairs = (size_t)k->m * (size_t)k->top_k, read = (pairs < (size_t)k->experts ? pairs : (size_t)k->experts) * (w->gate_up_bytes + w->down_bytes);
	const size_t inputs = t->bench->rotate_bytes ? t->bench->rotate_bytes / read + 1 : 1;
	return inputs > MAX_INPUTS ? MAX_INPUTS : (int)inputs;
}

/* The inputs, as the op is given them: the residual stream, or its norm where the op does not make that. The first stays in t->x. */
static enum status put_inputs(struct trial *t, struct error *err)
{
	const struct moe_key *k = &t->problem->moe;
	const enum dtype dtype = t->bench->ops->moe_norms ? DTYPE_F32 : t->activation;
	const size_t n = (size_t)k->m * (size_t)k->hidden, bytes = n * dtype_bytes(dtype);
	TRY(trial_take(t, (size_t)t->inputs * bytes, "prescreen: input", &t->device_x, err));
	void *host = mem_zalloc(1, bytes, "prescreen: input", err);
	if (!host) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	for (int i = t->inputs - 1; i >= 0 && st == STATUS_OK; i--) {
		fill_input(k, t->x, i);
		trial_pack(host, t->x, n, dtype);
		st = trial_send(t, (char *)t->device_x + (size_t)i * bytes, host, bytes, err);
	}
	free(host);
	return st;
}

enum status trial_open_moe(struct trial *t, struct error *err)
{
	const struct moe_key *k = &t->problem->moe;
	const struct device_ops *ops = t->bench->ops;
	const size_t m = (size_t)k->m, hidden = (size_t)k->hidden;
	const int world = t->problem->places ? t->problem->place[0].world_size : 1;
	int slots = 1;
	void *y;
	problem_split(&t->split, t->bench->config, world);
	if (k->use == LINEAR_USE_PARTIAL) slots = t->split.spans;
	const struct moe_shape shape = {.rows = k->m, .dtype = t->activation, .hidden = k->hidden, .experts = k->experts, .top_k = k->top_k, .inner = k->inner,
	                                .shared_inner = k->shared_inner, .leaves = t->split.leaves};
	t->inputs = count_inputs(t);
	t->x = trial_make_values(m * hidden, 1, "prescreen: input", err);
	t->norm = ops->moe_norms ? trial_make_norm(hidden, 2, "prescreen: norm", err) : NULL;
	if (!t->x || (ops->moe_norms && !t->norm)) return STATUS_NO_MEMORY;
	for (int e = 0; t->norm && e <= k->experts; e++) t->norm[e] = 1; /* the router's inputs keep their order */
	if (t->norm) TRY(trial_put(t, t->norm, hidden * sizeof *t->norm, "prescreen: norm", &t->device_norm, err));
	TRY(put_inputs(t, err));
	TRY(trial_take(t, m * hidden * dtype_bytes(t->activation), "prescreen: norm of the input", &t->device_h, err));
	TRY(trial_take(t, ops->moe_scratch_bytes(t->bench->device, &shape), "prescreen: expert rows", &t->device_scratch, err));
	const enum dtype dtype = k->use == LINEAR_USE_ACCUMULATE ? DTYPE_F32 : t->activation;
	const struct trial_region region = {.bytes = (size_t)slots * m * hidden * dtype_bytes(dtype), .dtype = dtype, .rows = (int64_t)slots * k->m, .cols = k->hidden,
	                                    .stride = k->hidden};
	return trial_add_region(t, region, "prescreen: output", &y, err);
}

enum status trial_issue_moe(struct trial *t, int copy, struct error *err)
{
	const struct moe_key *k = &t->problem->moe;
	const bool norms = t->bench->ops->moe_norms;
	const size_t at = (size_t)(copy % t->inputs) * (size_t)k->m * (size_t)k->hidden * (norms ? sizeof(float) : dtype_bytes(t->activation));
	struct moe_args args = {.weights = &t->experts->op, .top_k = k->top_k, .norm_topk = t->bench->config->moe.norm_topk, .scratch = t->device_scratch,
	                        .y = tensor_view(trial_output(t), t->region[0].dtype, TENSOR_REPLICATED, k->m, k->hidden), .accumulate = k->use == LINEAR_USE_ACCUMULATE};
	args.in = trial_norm_input(t, k->m, k->hidden);
	if (norms) args.in.x.data = (char *)t->device_x + at;
	else args.in.h.data = (char *)t->device_x + at, args.in.done = true;
	if (k->use == LINEAR_USE_PARTIAL) {
		args.split = &t->split;
		args.y.dist = TENSOR_PARTIAL;
		args.y.slots = t->split.spans;
	}
	return OP(t->bench->stream, moe, &args, err);
}

/* ---- reference */

/* A span of the sum: columns of every expert's down projection, and of the shared one's. */
struct moe_columns {
	int from, to, shared_from, shared_to;
};

static struct moe_columns columns_of(const struct trial *t, int64_t row)
{
	const struct moe_key *k = &t->problem->moe;
	struct moe_columns c = {0, k->inner, 0, k->shared_inner};
	if (k->use != LINEAR_USE_PARTIAL) return c;
	const struct sum_span *span = &t->split.span[row / k->m];
	const int lo = span->lo - t->split.first, hi = span->hi - t->split.first, leaf = k->inner / t->split.leaves, shared = k->shared_inner / t->split.leaves;
	return (struct moe_columns){lo * leaf, hi * leaf, lo * shared, hi * shared};
}

/* What one expert adds to a row: gate and up rows from `up_first` on of `up`, down rows from `down_first` on, inner columns [from, to). */
struct expert_part {
	double weight;
	const struct source_tensor *up, *down;
	int64_t up_first, down_first;
	int inner, from, to;
};

/* w: room for a row of any matrix; act: for `inner` values. */
static enum status add_expert(struct trial *t, int row, const float *x, const struct expert_part *part, float *w, float *act, struct error *err)
{
	struct trial_experts *e = t->experts;
	const int hidden = t->problem->moe.hidden;
	double *out = t->samples.reference + (size_t)row * (size_t)t->samples.cols;
	for (int i = part->from; i < part->to; i++) {
		TRY(trial_weight_row(e->source, part->up, &e->scratch, part->up_first + i, hidden, w, err));
		const double gate = trial_dot(x, w, 0, hidden);
		TRY(trial_weight_row(e->source, part->up, &e->scratch, part->up_first + part->inner + i, hidden, w, err));
		act[i] = (float)(gate / (1 + exp(-gate)) * trial_dot(x, w, 0, hidden));
	}
	for (int c = 0; c < t->samples.cols; c++) {
		TRY(trial_weight_row(e->source, part->down, &e->scratch, part->down_first + t->samples.col[c], part->inner, w, err));
		out[c] += part->weight * trial_dot(act, w, part->from, part->to);
	}
	return STATUS_OK;
}

/* Softmax over all experts' logits, which are the first inputs; p of those that the row chooses. */
static void weigh(const struct trial *t, int64_t token, const float *x, double *p)
{
	const struct moe_key *k = &t->problem->moe;
	double all = 0, taken = 0;
	for (int e = 0; e < k->experts; e++) all += exp((double)x[e]);
	for (int i = 0; i < k->top_k; i++) taken += p[i] = exp((double)x[chosen_expert(k, token, 0, i)]) / all;
	for (int i = 0; i < k->top_k && t->bench->config->moe.norm_topk; i++) p[i] /= taken;
}

static enum status moe_row(struct trial *t, int row, float *memory, struct error *err)
{
	const struct moe_key *k = &t->problem->moe;
	const struct trial_experts *e = t->experts;
	const int64_t token = t->samples.row[row] % k->m;
	const struct moe_columns c = columns_of(t, t->samples.row[row]);
	double p[MOE_MAX_TOP_K];
	const float *x = trial_input_row(t, token, k->hidden, memory);
	const int widest = k->hidden > k->inner ? k->hidden : k->inner;
	float *w = memory + k->hidden, *act = w + (widest > k->shared_inner ? widest : k->shared_inner);
	weigh(t, token, x, p);
	if (k->use == LINEAR_USE_ACCUMULATE)
		for (int i = 0; i < t->samples.cols; i++) t->samples.reference[(size_t)row * (size_t)t->samples.cols + (size_t)i] = TRIAL_START;
	for (int i = 0; i < k->top_k; i++) {
		const int64_t expert = chosen_expert(k, token, 0, i);
		const struct expert_part part = {p[i], &e->gate_up, &e->down, expert * 2 * k->inner, expert * k->hidden, k->inner, c.from, c.to};
		TRY(add_expert(t, row, x, &part, w, act, err));
	}
	if (!k->shared_inner) return STATUS_OK;
	const struct expert_part shared = {1 / (1 + exp(-(double)x[k->experts])), &e->shared_gate_up, &e->shared_down, 0, 0, k->shared_inner, c.shared_from, c.shared_to};
	return add_expert(t, row, x, &shared, w, act, err);
}

enum status trial_moe_reference(struct trial *t, struct error *err)
{
	const struct moe_key *k = &t->problem->moe;
	float *memory = mem_zalloc((size_t)k->hidden * 2 + 2 * (size_t)k->inner + 2 * (size_t)k->shared_inner, sizeof *memory, "prescreen: reference", err);
	if (!memory) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	for (int r = 0; r < t->samples.rows && st == STATUS_OK; r++) st = moe_row(t, r, memory, err);
	free(memory);
	return st;
}
