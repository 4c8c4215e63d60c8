#include "prescreen/trial_parts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#define WEIGHT_SEED 1
#define WEIGHT_CHUNK_ROWS 256
#define COPY_ALIGN ((size_t)256)
#define POISON_CHUNK ((size_t)1 << 20)

/* Inputs are a table of VALUE_TABLE values (r - 128) / 128, over and over: a prime, so that rows differ whatever their length. */
#define VALUE_STEPS 256
#define VALUE_TABLE 65521

/* ---- weights */

static enum status make_first(struct trial_weights *w, struct error *err)
{
	struct bench *b = w->bench;
	struct source_recipe recipe;
	if (b->ops->linear_random && source_recipe(w->source, &w->tensor, &recipe)) {
		struct random_region region = {.seed = recipe.seed, .stream = recipe.stream, .rows = w->n, .cols = w->k, .offset = recipe.offset, .scale = recipe.scale, .dtype = w->dtype};
		TRY(b->ops->linear_random(b->stream, &w->copy[0], 0, &region, err));
		return b->ops->stream_sync(b->stream, clock_deadline_ms((uint64_t)b->timeout_ms), NULL, err);
	}
	for (int64_t row = 0; row < w->n; row += WEIGHT_CHUNK_ROWS) {
		int64_t rows = w->n - row < WEIGHT_CHUNK_ROWS ? w->n - row : WEIGHT_CHUNK_ROWS;
		const void *data;
		size_t stride;
		TRY(source_read(w->source, &w->tensor, row, rows, 0, w->k, &w->scratch, &data, &stride, err));
		TRY(b->ops->linear_put(b->stream, &w->copy[0], (int)row, (int)rows, data, stride, err));
		TRY(b->ops->stream_sync(b->stream, clock_deadline_ms((uint64_t)b->timeout_ms), NULL, err));
	}
	return STATUS_OK;
}

static uint64_t deadline(const struct bench *b)
{
	return clock_deadline_ms((uint64_t)b->timeout_ms);
}

/* Where the host's memory is the device's. `times`: as much again is taken elsewhere on the host. */
static enum status check_room(const struct bench *b, size_t bytes, int times, const char *what, struct error *err)
{
	return b->ops->one_memory ? device_room(b->device, (double)bytes * times, what, "fewer --rows or --contexts, or a larger --tp", err) : STATUS_OK;
}

enum status trial_weights_open(struct trial_weights *out, struct bench *bench, enum dtype dtype, int n, int k, struct error *err)
{
	const struct device_ops *ops = bench->ops;
	*out = (struct trial_weights){.bench = bench, .n = n, .k = k, .dtype = dtype};
	size_t bytes = ops->linear_bytes(dtype, n, k), step = size_round_up(bytes, COPY_ALIGN);
	size_t copies = bench->rotate_bytes ? bench->rotate_bytes / bytes + 2 : 1;
	if (copies > TRIAL_MAX_COPIES) copies = TRIAL_MAX_COPIES;
	enum status st;
	TRY_GOTO(check_room(bench, copies * step, 1, "prescreen: weights", err), fail);
	TRY_GOTO(source_open_random(&out->source, WEIGHT_SEED, dtype, err), fail);
	TRY_GOTO(source_find(out->source, "prescreen.weight", 2, n, k, &out->tensor, err), fail);
	TRY_GOTO(ops->alloc(bench->device, copies * step, MEM_SHARDED, "prescreen: weights", &out->memory, err), fail);
	for (; out->copies < (int)copies; out->copies++) {
		struct linear_weight *w = &out->copy[out->copies];
		*w = (struct linear_weight){.data = (char *)out->memory + (size_t)out->copies * step, .dtype = dtype, .n = n, .k = k};
		if (out->copies == 0) TRY_GOTO(make_first(out, err), fail);
		else TRY_GOTO(ops->linear_copy_rows(bench->stream, w, &out->copy[0], 0, n, err), fail);
	}
	TRY_GOTO(ops->stream_sync(bench->stream, deadline(bench), NULL, err), fail);
	return STATUS_OK;
fail:
	trial_weights_close(out);
	return st;
}

void trial_weights_close(struct trial_weights *w)
{
	if (!w->bench) return;
	w->bench->ops->free(w->bench->device, w->memory);
	source_close(&w->source);
	source_scratch_fini(&w->scratch);
	*w = (struct trial_weights){0};
}

/* ---- memory */

enum status trial_take(struct trial *t, size_t bytes, const char *what, void **out, struct error *err)
{
	assert(t->allocations < TRIAL_ALLOCATIONS);
	TRY(check_room(t->bench, bytes, 2, what, err));
	TRY(t->bench->ops->alloc(t->bench->device, bytes ? bytes : 1, MEM_WORKSPACE, what, out, err));
	t->allocation[t->allocations++] = *out;
	return STATUS_OK;
}

enum status trial_sync(struct trial *t, struct error *err)
{
	return t->bench->ops->stream_sync(t->bench->stream, deadline(t->bench), NULL, err);
}

enum status trial_send(struct trial *t, void *to, const void *from, size_t bytes, struct error *err)
{
	TRY(t->bench->ops->copy(t->bench->stream, to, from, bytes, COPY_TO_DEVICE, err));
	return trial_sync(t, err);
}

enum status trial_put(struct trial *t, const void *from, size_t bytes, const char *what, void **out, struct error *err)
{
	TRY(trial_take(t, bytes, what, out, err));
	return trial_send(t, *out, from, bytes, err);
}

/* ---- values */

/* Zero, or normal in every type. */
uint16_t trial_half(float value, enum dtype dtype)
{
	uint32_t bits = f32_to_bits(value);
	if (dtype == DTYPE_BF16) return bf16_from_f32(value);
	return (uint16_t)(value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - 0x38000000u) >> 13);
}

static float value_at(uint64_t stream, size_t index)
{
	return (float)((int)(rng_u64(WEIGHT_SEED, stream, index % VALUE_TABLE) % VALUE_STEPS) - VALUE_STEPS / 2) / (VALUE_STEPS / 2);
}

void trial_values(float *out, size_t from, size_t n, uint64_t stream)
{
	const size_t first = n < VALUE_TABLE ? n : VALUE_TABLE;
	for (size_t i = 0; i < first; i++) out[i] = value_at(stream, from + i);
	for (size_t have = first; have < n;) { /* have: a multiple of the table */
		const size_t more = n - have < have ? n - have : have;
		memcpy(out + have, out, more * sizeof *out);
		have += more;
	}
}

float *trial_make_values(size_t n, uint64_t stream, const char *what, struct error *err)
{
	float *values = mem_zalloc(n, sizeof *values, what, err);
	if (values) trial_values(values, 0, n, stream);
	return values;
}

float *trial_make_norm(size_t n, uint64_t stream, const char *what, struct error *err)
{
	float *norm = trial_make_values(n, stream, what, err);
	for (size_t i = 0; norm && i < n; i++) norm[i] = 1 + norm[i] / 8;
	return norm;
}

void trial_pack(void *out, const float *values, size_t n, enum dtype dtype)
{
	uint16_t *half = out;
	if (dtype == DTYPE_F32) memcpy(out, values, n * sizeof *values);
	for (size_t i = 0; dtype != DTYPE_F32 && i < n; i++) half[i] = trial_half(values[i], dtype);
}

enum status trial_put_values(struct trial *t, const float *values, size_t n, enum dtype dtype, const char *what, void **out, struct error *err)
{
	if (dtype == DTYPE_F32) return trial_put(t, values, n * sizeof *values, what, out, err);
	TRY(trial_take(t, n * dtype_bytes(dtype), what, out, err));
	void *packed = mem_zalloc(n, dtype_bytes(dtype), what, err);
	if (!packed) return STATUS_NO_MEMORY;
	trial_pack(packed, values, n, dtype);
	enum status st = trial_send(t, *out, packed, n * dtype_bytes(dtype), err);
	free(packed);
	return st;
}

/* ---- output regions */

static size_t span_bytes(const struct trial_region *r)
{
	return r->bytes + 2 * TRIAL_GUARD_BYTES;
}

static bool is_added_to(const struct trial *t)
{
	const struct result_problem *p = t->problem;
	return (p->op == PROBLEM_LINEAR && p->linear.use == LINEAR_USE_ACCUMULATE) || (p->op == PROBLEM_MOE && p->moe.use == LINEAR_USE_ACCUMULATE);
}

/* What a value holds that nobody has written. */
static uint32_t unwritten_bits(const struct trial *t, const struct trial_region *r)
{
	if (r->dtype != DTYPE_F32) return 0xffff;
	return is_added_to(t) ? f32_to_bits(TRIAL_START) : 0xffffffffu;
}

enum status trial_add_region(struct trial *t, struct trial_region region, const char *what, void **out, struct error *err)
{
	void *memory;
	TRY(trial_take(t, span_bytes(&region), what, &memory, err));
	assert(t->regions < TRIAL_REGIONS);
	region.device = memory;
	t->region[t->regions++] = region;
	t->region_bytes += span_bytes(&region);
	*out = region.device + TRIAL_GUARD_BYTES;
	return STATUS_OK;
}

/* `bytes` of what the first `have` of them hold, over and over. */
static enum status repeat(struct trial *t, char *at, size_t have, size_t bytes, struct error *err)
{
	while (have < bytes) {
		const size_t more = bytes - have < have ? bytes - have : have;
		TRY(t->bench->ops->copy(t->bench->stream, at + have, at, more, COPY_ON_DEVICE, err));
		have += more;
	}
	return trial_sync(t, err);
}

static enum status make_poison(struct trial *t, struct error *err)
{
	const size_t chunk = t->region_bytes < POISON_CHUNK ? t->region_bytes : POISON_CHUNK;
	float *host = mem_zalloc(1, chunk + sizeof *host, "prescreen: poison", err);
	if (!host) return STATUS_NO_MEMORY;
	memset(host, 0xff, chunk);
	enum status st;
	TRY_GOTO(trial_take(t, t->region_bytes, "prescreen: poison", &t->poison, err), end);
	TRY_GOTO(trial_send(t, t->poison, host, chunk, err), end);
	TRY_GOTO(repeat(t, t->poison, chunk, t->region_bytes, err), end);
	if (is_added_to(t)) {
		const size_t bytes = t->region[0].bytes, first = bytes < chunk ? bytes : chunk / sizeof *host * sizeof *host;
		for (size_t i = 0; i < first / sizeof *host; i++) host[i] = TRIAL_START;
		TRY_GOTO(trial_send(t, (char *)t->poison + TRIAL_GUARD_BYTES, host, first, err), end);
		TRY_GOTO(repeat(t, (char *)t->poison + TRIAL_GUARD_BYTES, first, bytes, err), end);
	}
end:
	free(host);
	return st;
}

enum status trial_poison(struct trial *t, struct error *err)
{
	const struct device_ops *ops = t->bench->ops;
	const char *at = t->poison;
	if (t->spoilt) TRY(ops->copy(t->bench->stream, t->spoilt, t->pristine, t->spoilt_bytes, COPY_ON_DEVICE, err));
	for (int i = 0; i < t->regions; at += span_bytes(&t->region[i++]))
		TRY(ops->copy(t->bench->stream, t->region[i].device, at, span_bytes(&t->region[i]), COPY_ON_DEVICE, err));
	return STATUS_OK;
}

enum status trial_keep_baseline(struct trial *t, struct error *err)
{
	for (int i = 0; i < t->regions; i++) {
		struct trial_region *r = &t->region[i];
		void *memory = r->baseline;
		if (!memory) TRY(trial_take(t, r->bytes, "prescreen: baseline", &memory, err));
		r->baseline = memory;
		TRY(t->bench->ops->copy(t->bench->stream, r->baseline, r->device + TRIAL_GUARD_BYTES, r->bytes, COPY_ON_DEVICE, err));
	}
	return trial_sync(t, err);
}

/* Columns [from, from + cols) of a region. */
static enum status look_at(struct trial *t, const struct trial_region *r, int64_t from, int64_t cols, const char *baseline, struct compare_result *out, struct error *err)
{
	const size_t at = (size_t)from * dtype_bytes(r->dtype);
	struct compare_args args = {.dtype = r->dtype, .a = r->device + TRIAL_GUARD_BYTES + at, .b = baseline ? baseline + at : NULL, .rows = r->rows, .cols = cols,
	                                  .stride = r->stride, .unwritten = unwritten_bits(t, r), .sparse = r->sparse, .deadline_ns = deadline(t->bench)};
	TRY(t->bench->ops->compare(t->bench->stream, &args, out, err));
	/* What is added may be too small to show, once in millions of values: so few are compared like the others, which tells them from values left out. */
	if (!is_added_to(t) || !out->unwritten || out->unwritten > out->values >> 20) return STATUS_OK;
	args.unwritten = 0xffffffffu;
	return t->bench->ops->compare(t->bench->stream, &args, out, err);
}

enum status trial_look(struct trial *t, int region, bool baseline, struct compare_result *out, struct error *err)
{
	const struct trial_region *r = &t->region[region];
	struct compare_result more;
	TRY(look_at(t, r, 0, r->cols, baseline ? r->baseline : NULL, out, err));
	if (!r->more) return STATUS_OK;
	TRY(look_at(t, r, r->more_at, r->more, baseline ? r->baseline : NULL, &more, err));
	out->values += more.values, out->unwritten += more.unwritten, out->outside += more.outside, out->different += more.different;
	out->diff2 += more.diff2, out->ref2 += more.ref2;
	out->hash = rng_mix(out->hash) + more.hash;
	if (!(more.most_diff <= out->most_diff)) out->most_diff = more.most_diff; /* NaN stays, whichever has it */
	if (more.most > out->most) out->most = more.most;
	return STATUS_OK;
}

/* ---- each op */

static enum status open_plain(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	size_t m = (size_t)key->m, k = (size_t)key->k;
	void *y;
	bool logits = t->problem->places && strcmp(t->problem->place[0].family, "lm_head") == 0;
	int slots = 1;
	if (key->use == LINEAR_USE_PARTIAL) {
		problem_split(&t->split, t->bench->config, t->problem->places ? t->problem->place[0].world_size : 1);
		slots = t->split.spans;
	}
	enum dtype dtype = logits || key->use == LINEAR_USE_ACCUMULATE ? DTYPE_F32 : t->activation;
	t->x = trial_make_values(m * k, 1, "prescreen: input", err);
	if (!t->x) return STATUS_NO_MEMORY;
	TRY(trial_put_values(t, t->x, m * k, t->activation, "prescreen: input", &t->device_x, err));
	struct trial_region y_region = {.bytes = (size_t)slots * m * (size_t)key->n * dtype_bytes(dtype), .dtype = dtype, .rows = slots * key->m, .cols = key->n, .stride = key->n};
	return trial_add_region(t, y_region, "prescreen: output", &y, err);
}

/* The residual stream and its norm, which the fused ops make. */
static enum status open_normed(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	size_t m = (size_t)key->m, k = (size_t)key->k;
	t->x = trial_make_values(m * k, 1, "prescreen: input", err);
	t->norm = trial_make_norm(k, 2, "prescreen: norm", err);
	if (!t->x || !t->norm) return STATUS_NO_MEMORY;
	TRY(trial_put(t, t->x, m * k * sizeof(float), "prescreen: input", &t->device_x, err));
	TRY(trial_put(t, t->norm, k * sizeof(float), "prescreen: norm", &t->device_norm, err));
	return trial_take(t, m * k * dtype_bytes(t->activation), "prescreen: norm of the input", &t->device_h, err);
}

static enum status open_mlp(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	void *out;
	TRY(open_normed(t, err));
	TRY(trial_take(t, (size_t)key->m * (size_t)key->n * dtype_bytes(t->activation), "prescreen: gate and up", &t->device_gate_up, err));
	struct trial_region region = {.bytes = (size_t)key->m * (size_t)(key->n / 2) * dtype_bytes(t->activation), .dtype = t->activation, .rows = key->m,
	                              .cols = key->n / 2, .stride = key->n / 2};
	return trial_add_region(t, region, "prescreen: output", &out, err);
}

/* A norm of the step's rows. Only where steps are recorded, and of few rows: a prefill's linears are too long to care. */
static enum status open_between(struct trial *t, struct error *err)
{
	const struct device_ops *ops = t->bench->ops;
	const int rows = t->problem->linear.m, cols = t->bench->config->hidden_size;
	void *x, *weight;
	if (t->problem->op != PROBLEM_LINEAR || rows > DECODE_MAX_ROWS || !ops->graph_begin || !ops->ops.rms_norm) return STATUS_OK;
	TRY(trial_take(t, (size_t)rows * (size_t)cols * sizeof(float), "prescreen: rows between", &x, err));
	TRY(trial_take(t, (size_t)cols * sizeof(float), "prescreen: weights between", &weight, err));
	const struct tensor tensor = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, cols);
	t->between = (struct rms_norm_args){.x = tensor, .weight = weight, .eps = t->bench->config->rms_eps, .out = tensor};
	return STATUS_OK;
}

enum status trial_issue_between(struct trial *t, struct error *err)
{
	return t->between.x.data ? OP(t->bench->stream, rms_norm, &t->between, err) : STATUS_OK;
}

static enum status open_kind(struct trial *t, struct error *err)
{
	switch (t->problem->op) {
	case PROBLEM_ATTENTION: return trial_open_attention(t, err);
	case PROBLEM_MOE: return trial_open_moe(t, err);
	case PROBLEM_GDN: return trial_open_gdn(t, err);
	case PROBLEM_LINEAR:
	case PROBLEM_OP_COUNT: break;
	}
	if (t->problem->linear.use == LINEAR_USE_MLP_IN) return open_mlp(t, err);
	if (t->problem->linear.use != LINEAR_USE_ATTENTION_IN) return open_plain(t, err);
	TRY(open_normed(t, err));
	return trial_open_qkv(t, err);
}

enum status trial_open_unchecked(struct trial *out, struct bench *bench, struct trial_weights *weights, struct trial_experts *experts,
                                 const struct result_problem *problem, struct error *err)
{
	*out = (struct trial){.bench = bench, .weights = weights, .experts = experts, .problem = problem, .inputs = 1};
	out->activation = device_activation(bench->ops, bench->config->dtype);
	enum status st = open_kind(out, err);
	if (st != STATUS_OK) trial_close(out);
	return st;
}

enum status trial_open(struct trial *out, struct bench *bench, struct trial_weights *weights, struct trial_experts *experts, const struct result_problem *problem,
                       struct error *err)
{
	enum status st;
	TRY(trial_open_unchecked(out, bench, weights, experts, problem, err));
	TRY_GOTO(open_between(out, err), fail);
	TRY_GOTO(make_poison(out, err), fail);
	TRY_GOTO(trial_make_reference(out, err), fail);
	return STATUS_OK;
fail:
	trial_close(out);
	return st;
}

static void samples_fini(struct trial_samples *s)
{
	free(s->row);
	free(s->col);
	free(s->place);
	free(s->reference);
}

void trial_close(struct trial *t)
{
	if (!t->bench) return;
	for (int i = 0; i < t->allocations; i++) t->bench->ops->free(t->bench->device, t->allocation[i]);
	free(t->x);
	free(t->norm);
	free(t->q_norm);
	free(t->k_norm);
	free(t->cos_sin);
	trial_gdn_fini(t);
	samples_fini(&t->samples);
	samples_fini(&t->cached);
	*t = (struct trial){0};
}

static enum status issue_plain(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	enum linear_use use = key->use;
	struct linear_args args = {.x = tensor_view(t->device_x, t->activation, use == LINEAR_USE_PLAIN ? TENSOR_REPLICATED : TENSOR_SHARDED, key->m, key->k), .weight = w,
	                           .y = tensor_view(trial_output(t), t->region[0].dtype, TENSOR_SHARDED, key->m, key->n), .accumulate = use == LINEAR_USE_ACCUMULATE};
	if (use == LINEAR_USE_ACCUMULATE) args.y.dist = TENSOR_REPLICATED;
	if (use == LINEAR_USE_PARTIAL) {
		args.split = &t->split;
		args.y.dist = TENSOR_PARTIAL;
		args.y.slots = t->split.spans;
	}
	return OP(t->bench->stream, linear, &args, err);
}

struct norm_input trial_norm_input(const struct trial *t, int rows, int cols)
{
	return (struct norm_input){.x = tensor_view(t->device_x, DTYPE_F32, TENSOR_REPLICATED, rows, cols), .weight = t->device_norm, .eps = t->bench->config->rms_eps,
	                           .h = tensor_view(t->device_h, t->activation, TENSOR_REPLICATED, rows, cols)};
}

static enum status issue_mlp(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	struct mlp_in_args args = {.in = trial_norm_input(t, key->m, key->k), .weight = w, .gelu = t->bench->config->gelu,
	                           .gate_up = tensor_view(t->device_gate_up, t->activation, TENSOR_SHARDED, key->m, key->n),
	                           .out = tensor_view(trial_output(t), t->activation, TENSOR_SHARDED, key->m, key->n / 2)};
	return OP(t->bench->stream, mlp_in, &args, err);
}

int trial_copies(const struct trial *t)
{
	return t->weights ? t->weights->copies : t->inputs;
}

enum status trial_issue(struct trial *t, int copy, struct error *err)
{
	switch (t->problem->op) {
	case PROBLEM_ATTENTION: return trial_issue_attention(t, err);
	case PROBLEM_MOE: return trial_issue_moe(t, copy, err);
	case PROBLEM_GDN: return trial_issue_gdn(t, err);
	case PROBLEM_LINEAR:
	case PROBLEM_OP_COUNT: break;
	}
	const struct linear_weight *w = &t->weights->copy[copy % t->weights->copies];
	if (t->problem->linear.use == LINEAR_USE_MLP_IN) return issue_mlp(t, w, err);
	if (t->problem->linear.use == LINEAR_USE_ATTENTION_IN) return trial_issue_qkv(t, w, err);
	return issue_plain(t, w, err);
}
