/* trial_reference.c: the output in double precision at the sampled places, from the inputs that the device was given (trial.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "prescreen/trial_parts.h"

#define SAMPLE_ROWS 16 /* where not all are */
#define MOE_ROWS 2     /* each takes all matrices of its experts */

/* ---- where to look */

int64_t *trial_choose(int64_t n, int64_t *want, uint64_t stream, struct error *err)
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
	if (p->op == PROBLEM_MOE) return (int64_t)p->moe.top_k * p->moe.inner;    /* and all of a row what the experts make of it */
	if (p->op == PROBLEM_GDN) return 4 * (int64_t)p->gdn.k_dim;
	return p->linear.use == LINEAR_USE_MLP_IN ? 2 * (int64_t)p->linear.k : p->linear.k;
}

/* A head's values come together: rope mixes a pair of them, attention's share their scores. */
static int unit_of(const struct trial *t)
{
	const struct result_problem *p = t->problem;
	if (p->op == PROBLEM_ATTENTION) return p->attention.head_dim;
	if (p->op == PROBLEM_GDN) return p->gdn.v_dim;
	return p->op == PROBLEM_LINEAR && p->linear.use == LINEAR_USE_ATTENTION_IN ? t->bench->config->head_dim : 1;
}

static int most_rows(const struct trial *t)
{
	return t->problem->op == PROBLEM_MOE ? MOE_ROWS : SAMPLE_ROWS;
}

/* The places of region 0, and room for their values. */
static enum status choose_samples(struct trial *t, struct error *err)
{
	const struct trial_region *r = &t->region[0];
	struct trial_samples *s = &t->samples;
	const int64_t unit = unit_of(t), all = (r->cols + r->more) / unit;
	int64_t rows = r->rows, units = all, most = TRIAL_REFERENCE_PRODUCTS / products(t);
	if (rows * units * unit > most || (t->problem->op == PROBLEM_MOE && rows > MOE_ROWS)) {
		if (most > TRIAL_SAMPLES) most = TRIAL_SAMPLES;
		rows = rows < most_rows(t) ? rows : most_rows(t);
		units = most / rows / unit;
		if (units < 2) units = 2;
	}
	s->row = trial_choose(r->rows, &rows, 11, err);
	int64_t *heads = s->row ? trial_choose(all, &units, 12, err) : NULL;
	if (heads) s->col = mem_zalloc((size_t)(units * unit), sizeof *s->col, "prescreen: samples", err);
	for (int64_t i = 0; heads && s->col && i < units * unit; i++) {
		const int64_t col = heads[i / unit] * unit + i % unit;
		s->col[i] = col < r->cols ? col : r->more_at + col - r->cols;
	}
	free(heads);
	if (!s->col) return STATUS_NO_MEMORY;
	s->rows = (int)rows;
	s->cols = (int)(units * unit);
	s->reference = mem_zalloc((size_t)rows * (size_t)s->cols, sizeof *s->reference, "prescreen: reference", err);
	return s->reference ? STATUS_OK : STATUS_NO_MEMORY;
}

/* ---- linears */

static void widen(float *out, const void *data, enum dtype dtype, int n)
{
	uint16_t half;
	if (dtype == DTYPE_F32) memcpy(out, data, (size_t)n * sizeof *out);
	for (int i = 0; dtype == DTYPE_BF16 && i < n; i++) memcpy(&half, (const char *)data + 2 * (size_t)i, 2), out[i] = bf16_to_f32(half);
	for (int i = 0; dtype == DTYPE_F16 && i < n; i++) memcpy(&half, (const char *)data + 2 * (size_t)i, 2), out[i] = f16_to_f32(half);
}

enum status trial_weight_row(struct source *source, const struct source_tensor *tensor, struct source_scratch *scratch, int64_t row, int cols, float *out,
                             struct error *err)
{
	const void *data;
	size_t stride;
	TRY(source_read(source, tensor, row, 1, 0, cols, scratch, &data, &stride, err));
	widen(out, data, tensor->dtype, cols);
	return STATUS_OK;
}

double trial_dot(const float *a, const float *b, int from, int to)
{
	double sum[4] = {0};
	int i = from;
	for (; i + 4 <= to; i += 4)
		for (int j = 0; j < 4; j++) sum[j] += (double)a[i + j] * (double)b[i + j];
	for (; i < to; i++) sum[0] += (double)a[i] * (double)b[i];
	return sum[0] + sum[1] + (sum[2] + sum[3]);
}

const float *trial_input_row(const struct trial *t, int64_t row, int cols, float *scratch)
{
	const float *x = t->x + (size_t)row * (size_t)cols;
	if (!t->norm) return x;
	double scale = 1 / sqrt(trial_dot(x, x, 0, cols) / cols + (double)t->bench->config->rms_eps);
	for (int i = 0; i < cols; i++) scratch[i] = (float)(x[i] * scale * t->norm[i]);
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
	return trial_dot(x, w, from, to) + (key->use == LINEAR_USE_ACCUMULATE ? TRIAL_START : 0);
}

static double activated(double x, bool gelu)
{
	return x / (1 + exp(-(gelu ? 1.5957691216057308 * (x + 0.044715 * x * x * x) : x)));
}

/* The sampled values whose weights `w` are of column `c` (and w2 of its partner). */
static void linear_column(struct trial *t, int c, const float *w, const float *w2, float *scratch)
{
	const struct linear_key *key = &t->problem->linear;
	struct trial_samples *s = &t->samples;
	for (int r = 0; r < s->rows; r++) {
		const float *x = trial_input_row(t, s->row[r] % key->m, key->k, scratch);
		double value = plain_value(t, s->row[r], x, w);
		if (key->use == LINEAR_USE_MLP_IN) value = activated(value, t->bench->config->gelu) * trial_dot(x, w2, 0, key->k);
		s->reference[(size_t)r * (size_t)s->cols + (size_t)c] = value;
	}
}

static enum status linear_reference(struct trial *t, struct error *err)
{
	const struct linear_key *key = &t->problem->linear;
	struct trial_weights *from = t->weights;
	float *memory = mem_zalloc(3 * (size_t)key->k, sizeof *memory, "prescreen: reference", err);
	if (!memory) return STATUS_NO_MEMORY;
	enum status st = STATUS_OK;
	float *w = memory, *w2 = w + key->k, *scratch = w2 + key->k;
	for (int c = 0; c < t->samples.cols && st == STATUS_OK; c++) {
		const int64_t n = t->samples.col[c];
		st = trial_weight_row(from->source, &from->tensor, &from->scratch, n, key->k, w, err);
		if (st == STATUS_OK && key->use == LINEAR_USE_MLP_IN) st = trial_weight_row(from->source, &from->tensor, &from->scratch, n + key->n / 2, key->k, w2, err);
		if (st == STATUS_OK) linear_column(t, c, w, w2, scratch);
	}
	free(memory);
	return st;
}

enum status trial_make_reference(struct trial *t, struct error *err)
{
	TRY(choose_samples(t, err));
	switch (t->problem->op) {
	case PROBLEM_ATTENTION: return trial_attention_reference(t, err);
	case PROBLEM_MOE: return trial_moe_reference(t, err);
	case PROBLEM_GDN: return trial_gdn_reference(t, err);
	case PROBLEM_LINEAR:
	case PROBLEM_OP_COUNT: break;
	}
	return t->problem->linear.use == LINEAR_USE_ATTENTION_IN ? trial_qkv_reference(t, err) : linear_reference(t, err);
}
