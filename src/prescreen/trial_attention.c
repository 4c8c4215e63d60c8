/* trial_attention.c: rows of a step over a cache, attention, and attention_in with what it leaves in the cache.
 *
 * How a back end lays out a block of keys is its own business. Where key and value of a sampled row are is learnt from kv_write, the plain op: it is given the
 * rows' and columns' numbers, digit by digit, and the cache is read back.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prescreen/trial_parts.h"

#define DIGITS 3   /* of a place's number, in base */
#define BASE 128   /* 1 to 128 are exact in every type */
#define CACHE_ROWS 16 /* that are sampled at most */

/* ---- rows of a step */

struct row_shape {
	int seqs, each; /* rows of a sequence */
	int context;    /* keys of a sequence */
	int block_tokens;
	bool ragged;    /* sequences of different lengths, up to `context` */
};

static void fill_rows(const struct row_shape *s, int blocks, int32_t *position, int32_t *slot, int32_t *start, int32_t *table)
{
	for (int q = 0; q < s->seqs; q++) {
		start[q] = q * s->each;
		const int length = s->ragged ? s->context - q % (s->context / 2) : s->context;
		for (int b = 0; b < blocks; b++) table[q * blocks + b] = 1 + q * blocks + b; /* block 0 is the sink */
		for (int i = 0; i < s->each; i++) {
			int p = length - s->each + i;
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
	TRY(trial_put(t, t->cos_sin, (size_t)rows * (size_t)rotary * sizeof *t->cos_sin, "prescreen: angles", &device, err));
	t->rows.cos_sin = device;
	return STATUS_OK;
}

static enum status put_rows(struct trial *t, const struct row_shape *s, struct error *err)
{
	int rows = s->seqs * s->each, blocks = (s->context + s->block_tokens - 1) / s->block_tokens;
	size_t count = (size_t)rows * 2 + (size_t)s->seqs + 1 + (size_t)s->seqs * (size_t)blocks;
	void *device;
	int32_t *host = mem_zalloc(count, sizeof *host, "prescreen: rows", err);
	if (!host) return STATUS_NO_MEMORY;
	int32_t *slot = host + rows, *start = slot + rows, *table = start + s->seqs + 1;
	fill_rows(s, blocks, host, slot, start, table);
	enum status st;
	TRY_GOTO(trial_put(t, host, count * sizeof *host, "prescreen: rows", &device, err), end);
	const int32_t *at = device;
	t->rows = (struct step_rows){.rows = rows, .seqs = s->seqs, .position = at, .kv_slot = at + rows, .row_start = at + 2 * rows,
	                             .block_table = at + 2 * rows + s->seqs + 1, .max_blocks = blocks, .max_kv_len = s->context, .max_seq_rows = s->each};
	t->cache.layout.blocks = 1 + s->seqs * blocks;
	if (t->bench->config->rotary_dim > 0) TRY_GOTO(put_angles(t, rows, host, err), end);
end:
	free(host);
	return st;
}

static enum status open_cache(struct trial *t, int kv_heads, int head_dim, int block_tokens, const struct row_shape *s, struct error *err)
{
	t->cache.layout = (struct kv_layout){.layers = 1, .block_tokens = block_tokens, .kv_heads = kv_heads, .head_dim = head_dim, .dtype = t->activation};
	return put_rows(t, s, err);
}

/* ---- attention */

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
	t->norm = trial_make_values(2 * n, 3, "prescreen: keys and values", err);
	if (!t->norm) st = STATUS_NO_MEMORY;
	else st = trial_put_values(t, t->norm, n, t->activation, "prescreen: keys", &keys, err);
	if (st == STATUS_OK) st = trial_put_values(t, t->norm + n, n, t->activation, "prescreen: values", &values, err);
	if (st == STATUS_OK) st = trial_take(t, (size_t)a->context * sizeof *slot, "prescreen: slots", &device_slot, err);
	int blocks = (a->context + s->block_tokens - 1) / s->block_tokens, step = a->context < a->rows || a->context <= 512 ? a->context : 512;
	for (int q = 0; st == STATUS_OK && q < s->seqs; q++) {
		for (int p = 0; p < a->context; p++) slot[p] = (1 + q * blocks) * s->block_tokens + p;
		st = trial_send(t, device_slot, slot, (size_t)a->context * sizeof *slot, err);
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

enum status trial_open_attention(struct trial *t, struct error *err)
{
	const struct attention_problem *a = &t->problem->attention;
	struct row_shape s = {.seqs = a->prefill ? 1 : a->rows, .each = a->prefill ? a->rows : 1, .context = a->context, .block_tokens = a->block_tokens};
	size_t n = (size_t)a->rows * (size_t)a->q_heads * (size_t)a->head_dim;
	void *out;
	TRY(open_cache(t, a->kv_heads, a->head_dim, a->block_tokens, &s, err));
	TRY(trial_take(t, t->bench->ops->kv_bytes(&t->cache.layout), "prescreen: cache", &t->cache.data, err));
	TRY(fill_cache(t, &s, err));
	t->x = trial_make_values(n, 1, "prescreen: queries", err);
	if (!t->x) return STATUS_NO_MEMORY;
	TRY(trial_put_values(t, t->x, n, t->activation, "prescreen: queries", &t->device_x, err));
	struct trial_region region = {.bytes = n * dtype_bytes(t->activation), .dtype = t->activation, .rows = a->rows, .cols = (int64_t)a->q_heads * a->head_dim,
	                              .stride = (int64_t)a->q_heads * a->head_dim};
	return trial_add_region(t, region, "prescreen: output", &out, err);
}

enum status trial_issue_attention(struct trial *t, struct error *err)
{
	const struct attention_problem *a = &t->problem->attention;
	const struct attention_args args = {.q = tensor_view(t->device_x, t->activation, TENSOR_SHARDED, a->rows, a->q_heads * a->head_dim),
	                                    .out = tensor_view(trial_output(t), t->activation, TENSOR_SHARDED, a->rows, a->q_heads * a->head_dim), .q_heads = a->q_heads,
	                                    .cache = &t->cache, .rows = &t->rows, .scale = 1 / sqrtf((float)a->head_dim), .softcap = (float)a->softcap};
	return OP(t->bench->stream, attention, &args, err);
}

/* One head of one row: `score` has room for the context. */
static void attention_head(struct trial *t, int r, int c, double *score)
{
	const struct attention_problem *a = &t->problem->attention;
	int64_t row = t->samples.row[r], head = t->samples.col[c] / a->head_dim, kv = head / (a->q_heads / a->kv_heads);
	int keys = a->prefill ? (int)row + 1 : a->context;
	size_t cols = (size_t)a->kv_heads * (size_t)a->head_dim;
	const float *q = t->x + (size_t)row * (size_t)a->q_heads * (size_t)a->head_dim + (size_t)t->samples.col[c];
	const float *k = t->norm + (size_t)kv * (size_t)a->head_dim, *v = k + (size_t)a->context * cols;
	double most = -INFINITY, sum = 0, *out = t->samples.reference + (size_t)r * (size_t)t->samples.cols + (size_t)c;
	for (int p = 0; p < keys; p++) {
		score[p] = trial_dot(q, k + (size_t)p * cols, 0, a->head_dim) / sqrt(a->head_dim);
		if (a->softcap > 0) score[p] = a->softcap * tanh(score[p] / a->softcap);
		if (score[p] > most) most = score[p];
	}
	for (int d = 0; d < a->head_dim; d++) out[d] = 0;
	for (int p = 0; p < keys; p++) {
		double weight = exp(score[p] - most);
		sum += weight;
		for (int d = 0; d < a->head_dim; d++) out[d] += weight * (double)v[(size_t)p * cols + (size_t)d];
	}
	for (int d = 0; d < a->head_dim; d++) out[d] /= sum;
}

enum status trial_attention_reference(struct trial *t, struct error *err)
{
	double *score = mem_zalloc((size_t)t->problem->attention.context, sizeof *score, "prescreen: scores", err);
	if (!score) return STATUS_NO_MEMORY;
	for (int r = 0; r < t->samples.rows; r++)
		for (int c = 0; c < t->samples.cols; c += t->problem->attention.head_dim) attention_head(t, r, c, score);
	free(score);
	return STATUS_OK;
}

/* ---- attention_in */

/* Heads of an attention_in problem: columns are queries, keys, values, gates. */
struct qkv_heads {
	int q, kv, gates, dim;
};

static struct qkv_heads heads_of(const struct trial *t)
{
	const struct model_config *c = t->bench->config;
	const int world = t->problem->places ? t->problem->place[0].world_size : 1, all = t->problem->linear.n / c->head_dim;
	struct qkv_heads h = {.q = c->q_heads / world, .dim = c->head_dim};
	h.gates = c->attn_output_gate ? h.q : 0;
	h.kv = (all - h.q - h.gates) / 2;
	return h;
}

static enum status put_head_norms(struct trial *t, int head_dim, struct error *err)
{
	if (!t->bench->config->qk_norm) return STATUS_OK;
	const size_t bytes = (size_t)head_dim * sizeof(float);
	t->q_norm = trial_make_norm((size_t)head_dim, 4, "prescreen: norm of queries", err);
	t->k_norm = trial_make_norm((size_t)head_dim, 5, "prescreen: norm of keys", err);
	if (!t->q_norm || !t->k_norm) return STATUS_NO_MEMORY;
	TRY(trial_put(t, t->q_norm, bytes, "prescreen: norm of queries", &t->device_q_norm, err));
	return trial_put(t, t->k_norm, bytes, "prescreen: norm of keys", &t->device_k_norm, err);
}

/* Behind open_normed. */
enum status trial_open_qkv(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	const struct qkv_heads h = heads_of(t);
	const int tokens = device_kv_block_tokens(t->bench->ops);
	const bool prefill = key->m > DECODE_MAX_ROWS;
	void *out;
	if (h.q < 1 || h.kv < 1 || (h.q + h.gates + 2 * h.kv) * h.dim != key->n)
		return FAIL(err, BAD_INPUT, "attention_in of %d rows of weights: %d heads of %d wanted for queries, %d for gates, and as many for keys as for values", key->n, h.q, h.dim,
		            h.gates);
	const struct row_shape s = {.seqs = prefill ? 1 : key->m, .each = prefill ? key->m : 1, .context = prefill ? key->m : tokens / 2, .block_tokens = tokens,
	                            .ragged = !prefill};
	TRY(put_head_norms(t, h.dim, err));
	TRY(open_cache(t, h.kv, h.dim, tokens, &s, err));
	const struct trial_region region = {.bytes = (size_t)key->m * (size_t)key->n * dtype_bytes(t->activation), .dtype = t->activation, .rows = key->m,
	                                    .cols = (int64_t)h.q * h.dim, .stride = key->n, .more_at = (int64_t)(h.q + 2 * h.kv) * h.dim, .more = (int64_t)h.gates * h.dim};
	TRY(trial_add_region(t, region, "prescreen: queries", &out, err));
	const size_t bytes = t->bench->ops->kv_bytes(&t->cache.layout);
	const int64_t elements = (int64_t)(bytes / dtype_bytes(t->activation));
	return trial_add_region(t, (struct trial_region){.bytes = bytes, .dtype = t->activation, .rows = 1, .cols = elements, .stride = elements, .sparse = true},
	                        "prescreen: cache", &t->cache.data, err);
}

enum status trial_issue_qkv(struct trial *t, const struct linear_weight *w, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	const struct qkv_heads h = heads_of(t);
	const struct attention_in_args args = {.in = trial_norm_input(t, key->m, key->k), .weight = w, .q_norm = t->device_q_norm, .k_norm = t->device_k_norm, .q_heads = h.q,
	                                       .kv_heads = h.kv, .head_dim = h.dim, .rotary_dim = t->bench->config->rotary_dim, .rows = &t->rows, .cache = &t->cache,
	                                       .qkv = tensor_view(trial_output(t), t->activation, TENSOR_SHARDED, key->m, key->n)};
	return OP(t->bench->stream, attention_in, &args, err);
}

/* ---- where keys and values are */

/* What kv_write is given for digit `digit` of the numbers of all places: keys positive, values negative. */
static enum status write_digit(struct trial *t, int digit, int rows, int cols, const int32_t *slot, void *k, void *v, float *host, struct error *err)
{
	const size_t n = (size_t)rows * (size_t)cols, bytes = dtype_bytes(t->activation);
	char *packed = mem_zalloc(n, bytes, "prescreen: places", err);
	if (!packed) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	for (int value = 0; value < 2 && st == STATUS_OK; value++) {
		for (size_t i = 0; i < n; i++) {
			const int part = (int)(i / (digit == 0 ? 1 : digit == 1 ? BASE : BASE * BASE)) % BASE + 1;
			host[i] = (float)(value ? -part : part);
		}
		trial_pack(packed, host, n, t->activation);
		st = trial_send(t, value ? v : k, packed, n * bytes, err);
	}
	free(packed);
	if (st != STATUS_OK) return st;
	const struct kv_write_args args = {.k = tensor_view(k, t->activation, TENSOR_SHARDED, rows, cols), .v = tensor_view(v, t->activation, TENSOR_SHARDED, rows, cols),
	                                   .cache = &t->cache, .kv_slot = slot};
	TRY(trial_poison(t, err));
	return OP(t->bench->stream, kv_write, &args, err);
}

/* number[2][elements]: of the place that each element is, keys then values; adds one digit of it. What was not written stays -1. */
static void add_digit(const struct trial_region *r, const char *cache, int digit, int32_t *number)
{
	for (int64_t i = 0; i < r->cols; i++) {
		const float value = dtype_load(r->dtype, cache + (size_t)i * dtype_bytes(r->dtype));
		if (isnan(value)) continue;
		if (digit == 0) number[i] = 0;
		const int part = (int)fabsf(value) - 1;
		number[i] |= (digit == 0 ? part : digit == 1 ? part * BASE : part * BASE * BASE) | (value < 0 ? 1 << 30 : 0);
	}
}

/* place[2][rows][cols of the cache's samples]. */
static enum status read_places(const struct trial *t, const int32_t *number, int cols, struct error *err)
{
	const struct trial_samples *s = &t->cached;
	int64_t found = 0;
	for (int64_t i = 0; i < t->region[1].cols; i++) {
		if (number[i] < 0) continue;
		const int value = number[i] >> 30 & 1, row = (number[i] & ((1 << 30) - 1)) / cols, col = (number[i] & ((1 << 30) - 1)) % cols;
		for (int c = 0; row < s->rows && c < s->cols / 2; c++)
			if (s->col[c] == col) s->place[row * s->cols + value * (s->cols / 2) + c] = i, found++;
	}
	if (found == (int64_t)s->rows * s->cols) return STATUS_OK;
	return FAIL(err, DEVICE_FAULT, "prescreen: kv_write put %lld of %lld keys and values into the cache; the op is broken", (long long)found, (long long)s->rows * s->cols);
}

static enum status find_places(struct trial *t, const int32_t *slots, int cols, struct error *err)
{
	const struct trial_region *r = &t->region[1];
	const int rows = t->cached.rows;
	const size_t n = (size_t)rows * (size_t)cols;
	void *k, *v, *slot;
	TRY(trial_take(t, n * dtype_bytes(t->activation), "prescreen: keys", &k, err));
	TRY(trial_take(t, n * dtype_bytes(t->activation), "prescreen: values", &v, err));
	TRY(trial_put(t, slots, (size_t)rows * sizeof *slots, "prescreen: slots", &slot, err));
	int32_t *number = mem_zalloc((size_t)r->cols, sizeof *number, "prescreen: places", err);
	float *host = number ? mem_zalloc(n, sizeof *host, "prescreen: places", err) : NULL;
	char *cache = host ? mem_zalloc(1, r->bytes, "prescreen: cache", err) : NULL;
	enum status st = cache ? STATUS_OK : STATUS_NO_MEMORY;
	for (int64_t i = 0; st == STATUS_OK && i < r->cols; i++) number[i] = -1;
	for (int digit = 0; st == STATUS_OK && digit < DIGITS; digit++) {
		st = write_digit(t, digit, rows, cols, slot, k, v, host, err);
		if (st == STATUS_OK) st = t->bench->ops->copy(t->bench->stream, cache, r->device + TRIAL_GUARD_BYTES, r->bytes, COPY_TO_HOST, err);
		if (st == STATUS_OK) st = trial_sync(t, err);
		if (st == STATUS_OK) add_digit(r, cache, digit, number);
	}
	if (st == STATUS_OK) st = read_places(t, number, cols, err);
	free(number);
	free(host);
	free(cache);
	return st;
}

/* Samples of keys and of values: the first and the last head, or every one where there are few values. cols: of keys, then of values. */
static enum status choose_cached(struct trial *t, const struct qkv_heads *h, struct error *err)
{
	struct trial_samples *s = &t->cached;
	int64_t rows = t->problem->linear.m < CACHE_ROWS ? t->problem->linear.m : CACHE_ROWS, heads = TRIAL_SAMPLES / rows / h->dim;
	if (heads < 2) heads = 2;
	s->row = trial_choose(t->problem->linear.m, &rows, 13, err);
	int64_t *head = s->row ? trial_choose(h->kv, &heads, 14, err) : NULL;
	const int64_t cols = 2 * heads * h->dim;
	if (head) s->col = mem_zalloc((size_t)cols, sizeof *s->col, "prescreen: samples", err);
	if (s->col) s->place = mem_zalloc((size_t)(rows * cols), sizeof *s->place, "prescreen: samples", err);
	if (s->place) s->reference = mem_zalloc((size_t)(rows * cols), sizeof *s->reference, "prescreen: reference", err);
	for (int64_t i = 0; s->reference && i < cols; i++) s->col[i] = head[i % (cols / 2) / h->dim] * h->dim + i % h->dim;
	free(head);
	if (!s->reference) return STATUS_NO_MEMORY;
	s->rows = (int)rows;
	s->cols = (int)cols;
	return STATUS_OK;
}

/* ---- reference of attention_in */

enum head_kind { HEAD_QUERY, HEAD_KEY, HEAD_VALUE, HEAD_GATE };

/* y of one head and token, the linear's, as the cache or the next op is to have it. */
static void finish_head(const struct trial *t, enum head_kind kind, int64_t token, int dim, double *y)
{
	const struct model_config *c = t->bench->config;
	const int half = c->rotary_dim / 2;
	const float *weight = kind == HEAD_QUERY ? t->q_norm : kind == HEAD_KEY ? t->k_norm : NULL;
	if (kind != HEAD_QUERY && kind != HEAD_KEY) return;
	if (weight) {
		double sum = 0;
		for (int d = 0; d < dim; d++) sum += y[d] * y[d];
		for (int d = 0; d < dim; d++) y[d] *= weight[d] / sqrt(sum / dim + (double)c->rms_eps);
	}
	const float *angle = t->cos_sin + (size_t)token * (size_t)c->rotary_dim;
	for (int d = 0; d < half; d++) {
		const double low = y[d], high = y[d + half];
		y[d] = low * angle[d] - high * angle[half + d];
		y[d + half] = high * angle[d] + low * angle[half + d];
	}
}

/* All sampled rows of the head whose weights begin at row `first`, into columns [at, at + dim) of the samples. */
static enum status reference_head(struct trial *t, enum head_kind kind, int64_t first, int dim, struct trial_samples *s, int at, float *memory, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	struct trial_weights *w = t->weights;
	float *scratch = memory + (size_t)dim * (size_t)key->k;
	for (int d = 0; d < dim; d++) TRY(trial_weight_row(w->source, &w->tensor, &w->scratch, first + d, key->k, memory + (size_t)d * (size_t)key->k, err));
	for (int r = 0; r < s->rows; r++) {
		const float *x = trial_input_row(t, s->row[r], key->k, scratch);
		double *y = s->reference + (size_t)r * (size_t)s->cols + at;
		for (int d = 0; d < dim; d++) y[d] = trial_dot(x, memory + (size_t)d * (size_t)key->k, 0, key->k);
		finish_head(t, kind, s->row[r], dim, y);
	}
	return STATUS_OK;
}

static enum status reference_heads(struct trial *t, const struct qkv_heads *h, float *memory, struct error *err)
{
	for (int c = 0; c < t->samples.cols; c += h->dim) {
		const enum head_kind kind = t->samples.col[c] < (int64_t)h->q * h->dim ? HEAD_QUERY : HEAD_GATE;
		TRY(reference_head(t, kind, t->samples.col[c], h->dim, &t->samples, c, memory, err));
	}
	for (int c = 0; c < t->cached.cols; c += h->dim) {
		const bool value = c >= t->cached.cols / 2;
		const int64_t first = (int64_t)(h->q + (value ? h->kv : 0)) * h->dim + t->cached.col[c];
		TRY(reference_head(t, value ? HEAD_VALUE : HEAD_KEY, first, h->dim, &t->cached, c, memory, err));
	}
	return STATUS_OK;
}

/* Slots of the sampled rows, as fill_rows has given them. */
static enum status slots_of(const struct trial *t, int32_t *slots, struct error *err)
{
	int32_t *all = mem_zalloc((size_t)t->rows.rows, sizeof *all, "prescreen: slots", err);
	if (!all) return STATUS_NO_MEMORY;
	enum status st = t->bench->ops->copy(t->bench->stream, all, t->rows.kv_slot, (size_t)t->rows.rows * sizeof *all, COPY_TO_HOST, err);
	if (st == STATUS_OK) st = trial_sync((struct trial *)t, err);
	for (int r = 0; st == STATUS_OK && r < t->cached.rows; r++) slots[r] = all[t->cached.row[r]];
	free(all);
	return st;
}

enum status trial_qkv_reference(struct trial *t, struct error *err)
{
	const struct qkv_heads h = heads_of(t);
	int32_t slots[CACHE_ROWS];
	TRY(choose_cached(t, &h, err));
	TRY(slots_of(t, slots, err));
	TRY(find_places(t, slots, h.kv * h.dim, err));
	float *memory = mem_zalloc(((size_t)h.dim + 1) * (size_t)t->problem->linear.k, sizeof *memory, "prescreen: reference", err);
	if (!memory) return STATUS_NO_MEMORY;
	enum status st = reference_heads(t, &h, memory, err);
	free(memory);
	return st;
}
