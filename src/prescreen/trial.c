#include "prescreen/trial.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "prescreen/problems.h"

#define WEIGHT_SEED 1
#define WEIGHT_CHUNK_ROWS 256
#define START 0x1p-10f /* what an output that is added to holds before */
#define VALUE_STEPS 256 /* inputs are (r - 128) / 128 */

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

enum status trial_weights_open(struct trial_weights *out, struct bench *bench, enum dtype dtype, int n, int k, struct error *err)
{
	const struct device_ops *ops = bench->ops;
	*out = (struct trial_weights){.bench = bench, .n = n, .k = k, .dtype = dtype};
	size_t bytes = ops->linear_bytes(dtype, n, k), copies = bench->rotate_bytes ? bench->rotate_bytes / bytes + 2 : 1;
	if (copies > TRIAL_MAX_COPIES) copies = TRIAL_MAX_COPIES;
	enum status st;
	TRY_GOTO(source_open_random(&out->source, WEIGHT_SEED, dtype, err), fail);
	TRY_GOTO(source_find(out->source, "prescreen.weight", 2, n, k, &out->tensor, err), fail);
	while (out->copies < (int)copies) {
		struct linear_weight *w = &out->copy[out->copies];
		*w = (struct linear_weight){.dtype = dtype, .n = n, .k = k};
		TRY_GOTO(ops->alloc(bench->device, bytes, MEM_SHARDED, "prescreen: weights", &w->data, err), fail);
		if (out->copies++ == 0) TRY_GOTO(make_first(out, err), fail);
		else TRY_GOTO(ops->linear_copy_rows(bench->stream, w, &out->copy[0], 0, n, err), fail);
	}
	TRY_GOTO(ops->stream_sync(bench->stream, clock_deadline_ms((uint64_t)bench->timeout_ms), NULL, err), fail);
	return STATUS_OK;
fail:
	trial_weights_close(out);
	return st;
}

void trial_weights_close(struct trial_weights *w)
{
	if (!w->bench) return;
	for (int i = 0; i < w->copies; i++) w->bench->ops->free(w->bench->device, w->copy[i].data);
	source_close(&w->source);
	source_scratch_fini(&w->scratch);
	*w = (struct trial_weights){0};
}

/* ---- memory */

static enum status take(struct trial *t, size_t bytes, const char *what, void **out, struct error *err)
{
	assert(t->allocations < TRIAL_ALLOCATIONS);
	TRY(t->bench->ops->alloc(t->bench->device, bytes ? bytes : 1, MEM_WORKSPACE, what, out, err));
	t->allocation[t->allocations++] = *out;
	return STATUS_OK;
}

enum status trial_sync(struct trial *t, struct error *err)
{
	return t->bench->ops->stream_sync(t->bench->stream, clock_deadline_ms((uint64_t)t->bench->timeout_ms), NULL, err);
}

static enum status send(struct trial *t, void *to, const void *from, size_t bytes, struct error *err)
{
	TRY(t->bench->ops->copy(t->bench->stream, to, from, bytes, COPY_TO_DEVICE, err));
	return trial_sync(t, err);
}

static enum status put(struct trial *t, const void *from, size_t bytes, const char *what, void **out, struct error *err)
{
	TRY(take(t, bytes, what, out, err));
	return send(t, *out, from, bytes, err);
}

/* Exact for the inputs' values: zero, or normal in every type. */
static uint16_t to_half(float value, enum dtype dtype)
{
	uint32_t bits = f32_to_bits(value);
	if (dtype == DTYPE_BF16) return bf16_from_f32(value);
	return (uint16_t)(value == 0 ? 0 : (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - 0x38000000u) >> 13);
}

static float value_at(uint64_t stream, uint64_t index)
{
	return (float)((int)(rng_u64(WEIGHT_SEED, stream, index) % VALUE_STEPS) - VALUE_STEPS / 2) / (VALUE_STEPS / 2);
}

/* n values as `dtype`, on the device. */
static enum status put_values(struct trial *t, const float *values, size_t n, enum dtype dtype, const char *what, void **out, struct error *err)
{
	if (dtype == DTYPE_F32) return put(t, values, n * sizeof *values, what, out, err);
	uint16_t *half = mem_zalloc(n, sizeof *half, what, err);
	if (!half) return STATUS_NO_MEMORY;
	for (size_t i = 0; i < n; i++) half[i] = to_half(values[i], dtype);
	enum status st = put(t, half, n * sizeof *half, what, out, err);
	free(half);
	return st;
}

static float *make_values(size_t n, uint64_t stream, const char *what, struct error *err)
{
	float *values = mem_zalloc(n, sizeof *values, what, err);
	for (size_t i = 0; values && i < n; i++) values[i] = value_at(stream, i);
	return values;
}

/* ---- output regions */

static size_t span_bytes(const struct trial_region *r)
{
	return r->bytes + 2 * TRIAL_GUARD_BYTES;
}

static void fill_poison(const struct trial *t, const struct trial_region *r, char *to)
{
	memset(to, 0xff, span_bytes(r));
	float *at = (float *)(void *)(to + TRIAL_GUARD_BYTES);
	if (t->problem->op == PROBLEM_LINEAR && t->problem->linear.use == LINEAR_USE_ACCUMULATE)
		for (size_t i = 0; i < r->bytes / sizeof *at; i++) at[i] = START;
}

static enum status add_region(struct trial *t, struct trial_region region, const char *what, void **out, struct error *err)
{
	void *memory;
	TRY(take(t, span_bytes(&region), what, &memory, err));
	assert(t->regions < TRIAL_REGIONS);
	region.device = memory;
	t->region[t->regions++] = region;
	t->host_bytes += span_bytes(&region);
	*out = region.device + TRIAL_GUARD_BYTES;
	return STATUS_OK;
}

static enum status make_poison(struct trial *t, struct error *err)
{
	t->host = mem_zalloc(1, t->host_bytes, "prescreen: output", err);
	if (!t->host) return STATUS_NO_MEMORY;
	t->baseline = NULL;
	char *at = t->host;
	for (int i = 0; i < t->regions; at += span_bytes(&t->region[i++])) fill_poison(t, &t->region[i], at);
	return put(t, t->host, t->host_bytes, "prescreen: poison", &t->poison, err);
}

enum status trial_poison(struct trial *t, struct error *err)
{
	const char *at = t->poison;
	for (int i = 0; i < t->regions; at += span_bytes(&t->region[i++]))
		TRY(t->bench->ops->copy(t->bench->stream, t->region[i].device, at, span_bytes(&t->region[i]), COPY_ON_DEVICE, err));
	return STATUS_OK;
}

enum status trial_fetch(struct trial *t, struct error *err)
{
	char *at = t->host;
	for (int i = 0; i < t->regions; at += span_bytes(&t->region[i++]))
		TRY(t->bench->ops->copy(t->bench->stream, at, t->region[i].device, span_bytes(&t->region[i]), COPY_TO_HOST, err));
	return trial_sync(t, err);
}

enum status trial_keep_baseline(struct trial *t, struct error *err)
{
	if (!t->baseline) t->baseline = mem_zalloc(1, t->host_bytes, "prescreen: output of the baseline", err);
	if (!t->baseline) return STATUS_NO_MEMORY;
	memcpy(t->baseline, t->host, t->host_bytes);
	return STATUS_OK;
}

/* ---- rows of a step */

struct row_shape {
	int seqs, each; /* rows of a sequence */
	int context;    /* keys of a sequence */
	int block_tokens;
};

static void fill_rows(const struct row_shape *s, int blocks, int32_t *position, int32_t *slot, int32_t *start, int32_t *length, int32_t *table)
{
	for (int q = 0; q < s->seqs; q++) {
		start[q] = q * s->each;
		length[q] = s->context;
		for (int b = 0; b < blocks; b++) table[q * blocks + b] = 1 + q * blocks + b; /* block 0 is the sink */
		for (int i = 0; i < s->each; i++) {
			int p = s->context - s->each + i;
			position[q * s->each + i] = p;
			slot[q * s->each + i] = table[q * blocks + p / s->block_tokens] * s->block_tokens + p % s->block_tokens;
		}
	}
	start[s->seqs] = s->seqs * s->each;
}

static enum status put_angles(struct trial *t, int rows, const int32_t *position, struct error *err)
{
	int rotary = t->bench->config->rotary_dim, half = rotary / 2;
	void *device;
	t->cos_sin = mem_zalloc((size_t)rows * (size_t)rotary + 1, sizeof *t->cos_sin, "prescreen: angles", err);
	if (!t->cos_sin) return STATUS_NO_MEMORY;
	for (int r = 0; r < rows; r++)
		for (int i = 0; i < half; i++) {
			double angle = position[r] * pow(10000, -(double)i / half);
			t->cos_sin[(size_t)r * (size_t)rotary + (size_t)i] = (float)cos(angle);
			t->cos_sin[(size_t)r * (size_t)rotary + (size_t)(half + i)] = (float)sin(angle);
		}
	TRY(put(t, t->cos_sin, (size_t)rows * (size_t)rotary * sizeof *t->cos_sin, "prescreen: angles", &device, err));
	t->rows.cos_sin = device;
	return STATUS_OK;
}

static enum status put_rows(struct trial *t, const struct row_shape *s, struct error *err)
{
	int rows = s->seqs * s->each, blocks = (s->context + s->block_tokens - 1) / s->block_tokens;
	size_t count = (size_t)rows * 2 + (size_t)s->seqs * 2 + 1 + (size_t)s->seqs * (size_t)blocks;
	void *device;
	int32_t *host = mem_zalloc(count, sizeof *host, "prescreen: rows", err);
	if (!host) return STATUS_NO_MEMORY;
	int32_t *slot = host + rows, *start = slot + rows, *length = start + s->seqs + 1, *table = length + s->seqs;
	fill_rows(s, blocks, host, slot, start, length, table);
	enum status st;
	TRY_GOTO(put(t, host, count * sizeof *host, "prescreen: rows", &device, err), end);
	const int32_t *at = device;
	t->rows = (struct step_rows){.rows = rows, .seqs = s->seqs, .position = at, .kv_slot = at + rows, .row_start = at + 2 * rows, .kv_len = at + 2 * rows + s->seqs + 1,
	                             .block_table = at + 2 * rows + 2 * s->seqs + 1, .max_blocks = blocks, .max_kv_len = s->context, .max_seq_rows = s->each};
	t->cache.layout.blocks = 1 + s->seqs * blocks;
	if (t->bench->config->rotary_dim > 0) TRY_GOTO(put_angles(t, rows, host, err), end);
end:
	free(host);
	return st;
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
	t->x = make_values(m * k, 1, "prescreen: input", err);
	if (!t->x) return STATUS_NO_MEMORY;
	TRY(put_values(t, t->x, m * k, t->activation, "prescreen: input", &t->device_x, err));
	struct trial_region y_region = {.bytes = (size_t)slots * m * (size_t)key->n * dtype_bytes(dtype), .dtype = dtype, .rows = slots * key->m, .cols = key->n, .stride = key->n};
	return add_region(t, y_region, "prescreen: output", &y, err);
}

/* The residual stream and its norm, which the fused ops make. */
static enum status open_normed(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	size_t m = (size_t)key->m, k = (size_t)key->k;
	t->x = make_values(m * k, 1, "prescreen: input", err);
	t->norm = make_values(k, 2, "prescreen: norm", err);
	if (!t->x || !t->norm) return STATUS_NO_MEMORY;
	for (size_t i = 0; i < k; i++) t->norm[i] = 1 + t->norm[i] / 8;
	TRY(put(t, t->x, m * k * sizeof(float), "prescreen: input", &t->device_x, err));
	TRY(put(t, t->norm, k * sizeof(float), "prescreen: norm", &t->device_norm, err));
	return take(t, m * k * dtype_bytes(t->activation), "prescreen: norm of the input", &t->device_h, err);
}

static enum status open_mlp(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	void *out;
	TRY(open_normed(t, err));
	TRY(take(t, (size_t)key->m * (size_t)key->n * dtype_bytes(t->activation), "prescreen: gate and up", &t->device_gate_up, err));
	struct trial_region region = {.bytes = (size_t)key->m * (size_t)(key->n / 2) * dtype_bytes(t->activation), .dtype = t->activation, .rows = key->m,
	                              .cols = key->n / 2, .stride = key->n / 2};
	return add_region(t, region, "prescreen: output", &out, err);
}

static enum status open_cache(struct trial *t, int kv_heads, int head_dim, int block_tokens, const struct row_shape *s, struct error *err)
{
	t->cache.layout = (struct kv_layout){.layers = 1, .block_tokens = block_tokens, .kv_heads = kv_heads, .head_dim = head_dim, .dtype = t->activation};
	return put_rows(t, s, err);
}

static enum status open_qkv(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	const struct model_config *c = t->bench->config;
	int heads = key->n / c->head_dim, group = c->q_heads / c->kv_heads, world = t->problem->places ? t->problem->place[0].world_size : 1;
	int q = c->q_heads / world, kv = (heads - q) / 2, tokens = device_kv_block_tokens(t->bench->ops);
	bool prefill = key->m > DECODE_MAX_ROWS;
	void *out;
	if (q < 1 || kv < 1 || q + 2 * kv != heads || group < 1)
		return FAIL(err, BAD_INPUT, "attention_in of %d rows of weights: %d heads of %d, %d of them queries", key->n, heads, c->head_dim, q);
	struct row_shape s = {.seqs = prefill ? 1 : key->m, .each = prefill ? key->m : 1, .context = prefill ? key->m : tokens / 2, .block_tokens = tokens};
	TRY(open_normed(t, err));
	TRY(open_cache(t, kv, c->head_dim, tokens, &s, err));
	struct trial_region region = {.bytes = (size_t)key->m * (size_t)key->n * dtype_bytes(t->activation), .dtype = t->activation, .rows = key->m,
	                              .cols = (int64_t)q * c->head_dim, .stride = key->n};
	TRY(add_region(t, region, "prescreen: queries", &out, err));
	size_t bytes = t->bench->ops->kv_bytes(&t->cache.layout);
	int64_t elements = (int64_t)(bytes / dtype_bytes(t->activation));
	return add_region(t, (struct trial_region){.bytes = bytes, .dtype = t->activation, .rows = 1, .cols = elements, .stride = elements, .sparse = true},
	                  "prescreen: cache", &t->cache.data, err);
}

/* Keys and values of the cache: the same for every sequence, so that they are few. t->x: queries, t->norm: keys, then values, [context][kv_heads * D] each. */
static enum status fill_cache(struct trial *t, const struct row_shape *s, struct error *err)
{
	const struct attention_problem *a = &t->problem->attention;
	size_t cols = (size_t)a->kv_heads * (size_t)a->head_dim, n = (size_t)a->context * cols;
	void *keys, *values;
	int32_t *slot = mem_zalloc((size_t)a->context, sizeof *slot, "prescreen: slots", err);
	void *device_slot;
	if (!slot) return STATUS_NO_MEMORY;
	enum status st;
	t->norm = make_values(2 * n, 3, "prescreen: keys and values", err);
	if (!t->norm) st = STATUS_NO_MEMORY;
	else st = put_values(t, t->norm, n, t->activation, "prescreen: keys", &keys, err);
	if (st == STATUS_OK) st = put_values(t, t->norm + n, n, t->activation, "prescreen: values", &values, err);
	if (st == STATUS_OK) st = take(t, (size_t)a->context * sizeof *slot, "prescreen: slots", &device_slot, err);
	int blocks = (a->context + s->block_tokens - 1) / s->block_tokens, step = a->context < a->rows || a->context <= 512 ? a->context : 512;
	for (int q = 0; st == STATUS_OK && q < s->seqs; q++) {
		for (int p = 0; p < a->context; p++) slot[p] = (1 + q * blocks) * s->block_tokens + p;
		st = send(t, device_slot, slot, (size_t)a->context * sizeof *slot, err);
		for (int p = 0; st == STATUS_OK && p < a->context; p += step) {
			int rows = a->context - p < step ? a->context - p : step;
			size_t at = (size_t)p * cols * dtype_bytes(t->activation);
			struct kv_write_args args = {.k = tensor_view((char *)keys + at, t->activation, TENSOR_SHARDED, rows, (int)cols), .cache = &t->cache,
			                             .v = tensor_view((char *)values + at, t->activation, TENSOR_SHARDED, rows, (int)cols),
			                             .kv_slot = (const int32_t *)device_slot + p};
			st = OP(t->bench->stream, kv_write, &args, err);
		}
		if (st == STATUS_OK) st = trial_sync(t, err);
	}
	free(slot);
	return st;
}

static enum status open_attention(struct trial *t, struct error *err)
{
	const struct attention_problem *a = &t->problem->attention;
	struct row_shape s = {.seqs = a->prefill ? 1 : a->rows, .each = a->prefill ? a->rows : 1, .context = a->context, .block_tokens = a->block_tokens};
	size_t n = (size_t)a->rows * (size_t)a->q_heads * (size_t)a->head_dim;
	void *out;
	TRY(open_cache(t, a->kv_heads, a->head_dim, a->block_tokens, &s, err));
	TRY(take(t, t->bench->ops->kv_bytes(&t->cache.layout), "prescreen: cache", &t->cache.data, err));
	TRY(fill_cache(t, &s, err));
	t->x = make_values(n, 1, "prescreen: queries", err);
	if (!t->x) return STATUS_NO_MEMORY;
	TRY(put_values(t, t->x, n, t->activation, "prescreen: queries", &t->device_x, err));
	struct trial_region region = {.bytes = n * dtype_bytes(t->activation), .dtype = t->activation, .rows = a->rows, .cols = (int64_t)a->q_heads * a->head_dim,
	                              .stride = (int64_t)a->q_heads * a->head_dim};
	return add_region(t, region, "prescreen: output", &out, err);
}

/* A norm of the step's rows. Only where steps are recorded, and of few rows: a prefill's linears are too long to care. */
static enum status open_between(struct trial *t, struct error *err)
{
	const struct device_ops *ops = t->bench->ops;
	const int rows = t->problem->linear.m, cols = t->bench->config->hidden_size;
	void *x, *weight;
	if (t->problem->op != PROBLEM_LINEAR || rows > DECODE_MAX_ROWS || !ops->graph_begin || !ops->ops.rms_norm) return STATUS_OK;
	TRY(take(t, (size_t)rows * (size_t)cols * sizeof(float), "prescreen: rows between", &x, err));
	TRY(take(t, (size_t)cols * sizeof(float), "prescreen: weights between", &weight, err));
	const struct tensor tensor = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, cols);
	t->between = (struct rms_norm_args){.x = tensor, .weight = weight, .eps = t->bench->config->rms_eps, .out = tensor};
	return STATUS_OK;
}

enum status trial_issue_between(struct trial *t, struct error *err)
{
	return t->between.x.data ? OP(t->bench->stream, rms_norm, &t->between, err) : STATUS_OK;
}

enum status trial_open_unchecked(struct trial *out, struct bench *bench, struct trial_weights *weights, const struct result_problem *problem, struct error *err)
{
	enum status st;
	*out = (struct trial){.bench = bench, .weights = weights, .problem = problem};
	out->activation = device_activation(bench->ops, bench->config->dtype);
	if (problem->op == PROBLEM_ATTENTION) st = open_attention(out, err);
	else if (problem->linear.use == LINEAR_USE_MLP_IN) st = open_mlp(out, err);
	else if (problem->linear.use == LINEAR_USE_ATTENTION_IN) st = open_qkv(out, err);
	else st = open_plain(out, err);
	if (st != STATUS_OK) trial_close(out);
	return st;
}

enum status trial_open(struct trial *out, struct bench *bench, struct trial_weights *weights, const struct result_problem *problem, struct error *err)
{
	enum status st;
	TRY(trial_open_unchecked(out, bench, weights, problem, err));
	TRY_GOTO(open_between(out, err), fail);
	TRY_GOTO(make_poison(out, err), fail);
	TRY_GOTO(trial_make_reference(out, err), fail);
	return STATUS_OK;
fail:
	trial_close(out);
	return st;
}

void trial_close(struct trial *t)
{
	if (!t->bench) return;
	for (int i = 0; i < t->allocations; i++) t->bench->ops->free(t->bench->device, t->allocation[i]);
	free(t->x);
	free(t->norm);
	free(t->cos_sin);
	free(t->host);
	free(t->baseline);
	free(t->sample_row);
	free(t->sample_col);
	free(t->reference);
	*t = (struct trial){0};
}

static void *output(const struct trial *t)
{
	return t->region[0].device + TRIAL_GUARD_BYTES;
}

static enum status issue_plain(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	enum linear_use use = key->use;
	struct linear_args args = {.x = tensor_view(t->device_x, t->activation, use == LINEAR_USE_PLAIN ? TENSOR_REPLICATED : TENSOR_SHARDED, key->m, key->k), .weight = w,
	                           .y = tensor_view(output(t), t->region[0].dtype, TENSOR_SHARDED, key->m, key->n), .accumulate = use == LINEAR_USE_ACCUMULATE};
	if (use == LINEAR_USE_ACCUMULATE) args.y.dist = TENSOR_REPLICATED;
	if (use == LINEAR_USE_PARTIAL) {
		args.split = &t->split;
		args.y.dist = TENSOR_PARTIAL;
		args.y.slots = t->split.spans;
	}
	return OP(t->bench->stream, linear, &args, err);
}

static struct norm_input norm_of(const struct trial *t)
{
	const struct linear_key *key = &t->problem->linear;
	return (struct norm_input){.x = tensor_view(t->device_x, DTYPE_F32, TENSOR_REPLICATED, key->m, key->k), .weight = t->device_norm,
	                           .eps = t->bench->config->rms_eps, .h = tensor_view(t->device_h, t->activation, TENSOR_REPLICATED, key->m, key->k)};
}

static enum status issue_qkv(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	const struct model_config *c = t->bench->config;
	struct attention_in_args args = {.in = norm_of(t), .weight = w, .q_heads = (int)(t->region[0].cols / c->head_dim), .kv_heads = t->cache.layout.kv_heads,
	                                 .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .rows = &t->rows, .cache = &t->cache,
	                                 .qkv = tensor_view(output(t), t->activation, TENSOR_SHARDED, key->m, key->n)};
	return OP(t->bench->stream, attention_in, &args, err);
}

static enum status issue_mlp(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	struct mlp_in_args args = {.in = norm_of(t), .weight = w, .gelu = t->bench->config->gelu, .gate_up = tensor_view(t->device_gate_up, t->activation, TENSOR_SHARDED, key->m, key->n),
	                           .out = tensor_view(output(t), t->activation, TENSOR_SHARDED, key->m, key->n / 2)};
	return OP(t->bench->stream, mlp_in, &args, err);
}

enum status trial_issue(struct trial *t, int copy, struct error *err)
{
	if (t->problem->op == PROBLEM_ATTENTION) {
		const struct attention_problem *a = &t->problem->attention;
		struct attention_args args = {.q = tensor_view(t->device_x, t->activation, TENSOR_SHARDED, a->rows, a->q_heads * a->head_dim),
		                              .out = tensor_view(output(t), t->activation, TENSOR_SHARDED, a->rows, a->q_heads * a->head_dim), .q_heads = a->q_heads,
		                              .cache = &t->cache, .rows = &t->rows, .scale = 1 / sqrtf((float)a->head_dim)};
		return OP(t->bench->stream, attention, &args, err);
	}
	const struct linear_weight *w = &t->weights->copy[copy % t->weights->copies];
	if (t->problem->linear.use == LINEAR_USE_MLP_IN) return issue_mlp(t, w, err);
	if (t->problem->linear.use == LINEAR_USE_ATTENTION_IN) return issue_qkv(t, w, err);
	return issue_plain(t, w, err);
}
