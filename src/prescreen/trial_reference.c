/* trial_reference.c: the output in double precision at the sampled places, from the inputs that the device was given (trial.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "prescreen/trial.h"

/* ---- where to look */

/* `want` of 0..n-1, ascending: both ends, and one somewhere in each of the stretches between. */
static int64_t *choose(int64_t n, int64_t *want, uint64_t stream, struct error *err)
{
	if (*want > n) *want = n;
	int64_t *list = mem_zalloc((size_t)*want, sizeof *list, "prescreen: samples", err);
	for (int64_t i = 0; list && i < *want; i++) {
		int64_t from = i * n / *want, to = (i + 1) * n / *want;
		list[i] = i == 0 ? 0 : i + 1 == *want ? n - 1 : from + (int64_t)(rng_u64(1, stream, (uint64_t)i) % (uint64_t)(to - from));
	}
	return list;
}

/* Products that one value of region 0 takes. */
static int64_t products(const struct trial *t)
{
	const struct result_problem *p = t->problem;
	if (p->op == PROBLEM_ATTENTION) return 2 * (int64_t)p->attention.context; /* all values of a head share their scores */
	return p->linear.use == LINEAR_USE_MLP_IN || p->linear.use == LINEAR_USE_ATTENTION_IN ? 2 * (int64_t)p->linear.k : p->linear.k;
}

/* A head's values come together: rope mixes a pair of them, attention's share their scores. */
static int unit_of(const struct trial *t)
{
	if (t->problem->op == PROBLEM_ATTENTION) return t->problem->attention.head_dim;
	return t->problem->linear.use == LINEAR_USE_ATTENTION_IN ? t->bench->config->head_dim : 1;
}

static enum status choose_samples(struct trial *t, struct error *err)
{
	const struct trial_region *r = &t->region[0];
	int64_t unit = unit_of(t), rows = r->rows, units = r->cols / unit, most = TRIAL_REFERENCE_PRODUCTS / products(t);
	if (rows * r->cols > most) {
		if (most > TRIAL_SAMPLES) most = TRIAL_SAMPLES;
		rows = rows < 16 ? rows : 16;
		units = most / rows / unit;
		if (units < 2) units = 2;
	}
	t->sample_row = choose(r->rows, &rows, 11, err);
	int64_t *heads = t->sample_row ? choose(r->cols / unit, &units, 12, err) : NULL;
	if (heads) t->sample_col = mem_zalloc((size_t)(units * unit), sizeof *t->sample_col, "prescreen: samples", err);
	for (int64_t i = 0; heads && t->sample_col && i < units * unit; i++) t->sample_col[i] = heads[i / unit] * unit + i % unit;
	free(heads);
	if (!t->sample_col) return STATUS_NO_MEMORY;
	t->sample_rows = (int)rows;
	t->sample_cols = (int)(units * unit);
	t->reference = mem_zalloc((size_t)rows * (size_t)t->sample_cols, sizeof *t->reference, "prescreen: reference", err);
	return t->reference ? STATUS_OK : STATUS_NO_MEMORY;
}

/* ---- linears */

/* Row n of the weights, widened. */
static enum status weight_row(struct trial *t, int64_t n, float *out, struct error *err)
{
	struct trial_weights *w = t->weights;
	const void *data;
	size_t stride;
	TRY(source_read(w->source, &w->tensor, n, 1, 0, w->k, &w->scratch, &data, &stride, err));
	for (int i = 0; i < w->k; i++) {
		uint16_t half;
		if (w->dtype == DTYPE_F32) {
			memcpy(&out[i], (const char *)data + 4 * (size_t)i, 4);
			continue;
		}
		memcpy(&half, (const char *)data + 2 * (size_t)i, 2);
		out[i] = w->dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
	}
	return STATUS_OK;
}

static double dot(const float *a, const float *b, int from, int to)
{
	double sum[4] = {0};
	int i = from;
	for (; i + 4 <= to; i += 4)
		for (int j = 0; j < 4; j++) sum[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < to; i++) sum[0] += (double)a[i] * (double)b[i];
	return sum[0] + sum[1] + (sum[2] + sum[3]);
}

/* x of the product in row `row` of the op: the input, or its norm. */
static const float *input_row(const struct trial *t, int64_t row, float *scratch)
{
	const struct linear_key *key = &t->problem->linear;
	const float *x = t->x + (size_t)row * (size_t)key->k;
	if (!t->norm) return x;
	double scale = 1 / sqrt(dot(x, x, 0, key->k) / key->k + (double)t->bench->config->rms_eps);
	for (int i = 0; i < key->k; i++) scratch[i] = (float)(x[i] * scale * t->norm[i]);
	return scratch;
}

/* Sampled row r, column c of a plain product. A row beyond m is of a later slot of a partial sum: its part of K. */
static double plain_value(const struct trial *t, int64_t row, const float *x, const float *w)
{
	const struct linear_key *key = &t->problem->linear;
	int from = 0, to = key->k;
	if (key->use == LINEAR_USE_PARTIAL) {
		const struct sum_span *span = &t->split.span[row / key->m];
		int leaf = key->k / t->split.leaves;
		from = (span->lo - t->split.first) * leaf;
		to = (span->hi - t->split.first) * leaf;
	}
	return dot(x, w, from, to) + (key->use == LINEAR_USE_ACCUMULATE ? 0x1p-10 : 0);
}

static double activated(double x, bool gelu)
{
	return x / (1 + exp(-(gelu ? 1.5957691216057308 * (x + 0.044715 * x * x * x) : x)));
}

/* The sampled values whose weights `w` are of column `c` (and w2 of its partner). */
static void linear_column(struct trial *t, int c, const float *w, const float *w2, float *scratch)
{
	const struct linear_key *key = &t->problem->linear;
	const struct model_config *config = t->bench->config;
	int64_t column = t->sample_col[c];
	int d = (int)(column % config->head_dim), half = config->rotary_dim / 2;
	for (int r = 0; r < t->sample_rows; r++) {
		int64_t row = t->sample_row[r], token = row % key->m;
		const float *x = input_row(t, token, scratch);
		double value = plain_value(t, row, x, w);
		if (key->use == LINEAR_USE_MLP_IN) value = activated(value, config->gelu) * dot(x, w2, 0, key->k);
		if (key->use == LINEAR_USE_ATTENTION_IN && d < 2 * half) {
			const float *angle = t->cos_sin + (size_t)token * (size_t)config->rotary_dim;
			double cosine = angle[d % half], sine = angle[half + d % half], other = dot(x, w2, 0, key->k);
			value = value * cosine + (d < half ? -other : other) * sine;
		}
		t->reference[(size_t)r * (size_t)t->sample_cols + (size_t)c] = value;
	}
}

static enum status linear_reference(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	int half = t->bench->config->rotary_dim / 2;
	float *memory = mem_zalloc(3 * (size_t)key->k, sizeof *memory, "prescreen: reference", err);
	if (!memory) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	float *w = memory, *w2 = w + key->k, *scratch = w2 + key->k;
	for (int c = 0; c < t->sample_cols && st == STATUS_OK; c++) {
		int64_t n = t->sample_col[c], d = n % t->bench->config->head_dim;
		st = weight_row(t, n, w, err);
		if (st == STATUS_OK && key->use == LINEAR_USE_MLP_IN) st = weight_row(t, n + key->n / 2, w2, err);
		if (st == STATUS_OK && key->use == LINEAR_USE_ATTENTION_IN && d < 2 * half) st = weight_row(t, d < half ? n + half : n - half, w2, err);
		if (st == STATUS_OK) linear_column(t, c, w, w2, scratch);
	}
	free(memory);
	return st;
}

/* ---- attention */

/* One head of one row: `score` has room for the context. */
static void attention_head(struct trial *t, int r, int c, double *score)
{
	const struct attention_problem *a = &t->problem->attention;
	int64_t row = t->sample_row[r], head = t->sample_col[c] / a->head_dim, kv = head / (a->q_heads / a->kv_heads);
	int keys = a->prefill ? (int)row + 1 : a->context;
	size_t cols = (size_t)a->kv_heads * (size_t)a->head_dim;
	const float *q = t->x + (size_t)row * (size_t)a->q_heads * (size_t)a->head_dim + (size_t)t->sample_col[c];
	const float *k = t->norm + (size_t)kv * (size_t)a->head_dim, *v = k + (size_t)a->context * cols;
	double most = -INFINITY, sum = 0, *out = t->reference + (size_t)r * (size_t)t->sample_cols + (size_t)c;
	for (int p = 0; p < keys; p++) {
		score[p] = dot(q, k + (size_t)p * cols, 0, a->head_dim) / sqrt(a->head_dim);
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

static enum status attention_reference(struct trial *t, struct error *err)
{
	double *score = mem_zalloc((size_t)t->problem->attention.context, sizeof *score, "prescreen: scores", err);
	if (!score) return STATUS_NO_MEMORY;
	for (int r = 0; r < t->sample_rows; r++)
		for (int c = 0; c < t->sample_cols; c += t->problem->attention.head_dim) attention_head(t, r, c, score);
	free(score);
	return STATUS_OK;
}

enum status trial_make_reference(struct trial *t, struct error *err)
{
	TRY(choose_samples(t, err));
	return t->problem->op == PROBLEM_ATTENTION ? attention_reference(t, err) : linear_reference(t, err);
}
