/* trial_gdn.c: the gated delta net as one op, over a state that the op itself has made from earlier rows, and the recurrence in double.
 *
 * The layout of a state is the back end's own; so sequences begin with HISTORY rows that run once, before anything is measured, from no state at all. The measured
 * call reads the state behind them and writes another slot: it may be repeated. What it overwrites, its inputs, is put back before each checked run.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prescreen/trial_parts.h"

#define HISTORY TRIAL_GDN_HISTORY

/* All rows of a sequence, those of its history first: what the reference reads. Sequences have different values. */
struct trial_gdn {
	float *qkvz, *ba;            /* [seqs][HISTORY + each] rows */
	float *conv, *a_log, *dt_bias, *norm;
	int seqs, each, channels, cols;
};

void trial_gdn_fini(struct trial *t)
{
	struct trial_gdn *g = t->gdn_input;
	if (!g) return;
	free(g->qkvz);
	free(g->ba);
	free(g->conv);
	free(g->a_log);
	free(g->dt_bias);
	free(g->norm);
	free(g);
	t->gdn_input = NULL;
}

static enum status make_input(struct trial *t, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	struct trial_gdn *g = t->gdn_input = mem_zalloc(1, sizeof *g, "prescreen: delta net", err);
	if (!g) return STATUS_NO_MEMORY;
	g->seqs = p->prefill ? 1 : p->rows;
	g->each = p->prefill ? p->rows : 1;
	g->channels = 2 * p->k_heads * p->k_dim + p->v_heads * p->v_dim;
	g->cols = g->channels + p->v_heads * p->v_dim;
	const size_t rows = (size_t)g->seqs * (size_t)(HISTORY + g->each), heads = (size_t)p->v_heads;
	g->qkvz = trial_make_values(rows * (size_t)g->cols, 31, "prescreen: qkvz", err);
	g->ba = trial_make_values(rows * 2 * heads, 32, "prescreen: ba", err);
	g->conv = trial_make_values((size_t)p->conv_kernel * (size_t)g->channels, 33, "prescreen: convolution", err);
	g->a_log = trial_make_values(heads, 34, "prescreen: decay", err);
	g->dt_bias = trial_make_values(heads, 35, "prescreen: decay", err);
	g->norm = trial_make_norm((size_t)p->v_dim, 36, "prescreen: norm", err);
	return g->qkvz && g->ba && g->conv && g->a_log && g->dt_bias && g->norm ? STATUS_OK : STATUS_NO_MEMORY;
}

/* Rows [from, from + each) of every sequence, one sequence behind the other, on the device. */
static enum status put_part(struct trial *t, const float *all, int cols, int from, int each, void **out, struct error *err)
{
	const struct trial_gdn *g = t->gdn_input;
	const size_t part = (size_t)each * (size_t)cols, whole = (size_t)(HISTORY + g->each) * (size_t)cols;
	float *host = mem_zalloc((size_t)g->seqs * part, sizeof *host, "prescreen: delta net", err);
	if (!host) return STATUS_NO_MEMORY;
	for (int s = 0; s < g->seqs; s++) memcpy(host + (size_t)s * part, all + (size_t)s * whole + (size_t)from * (size_t)cols, part * sizeof *host);
	enum status st = trial_put_values(t, host, (size_t)g->seqs * part, t->activation, "prescreen: delta net", out, err);
	free(host);
	return st;
}

/* Rows of every sequence from slot to slot: the slots of sequence s are 1 + 2 s and the next; slot 0 is the sink. read < 0: there is no state yet. */
static enum status put_rows(struct trial *t, int each, int read, int write, struct step_rows *out, struct error *err)
{
	const int seqs = t->gdn_input->seqs;
	int32_t *host = mem_zalloc((size_t)seqs * 3 + 1, sizeof *host, "prescreen: rows", err);
	void *device;
	if (!host) return STATUS_NO_MEMORY;
	for (int s = 0; s < seqs; s++) {
		host[s] = s * each;
		host[seqs + 1 + s] = read < 0 ? -1 : 1 + 2 * s + read;
		host[2 * seqs + 1 + s] = 1 + 2 * s + write;
	}
	host[seqs] = seqs * each;
	enum status st = trial_put(t, host, ((size_t)seqs * 3 + 1) * sizeof *host, "prescreen: rows", &device, err);
	free(host);
	if (st != STATUS_OK) return st;
	const int32_t *at = device;
	*out = (struct step_rows){.rows = seqs * each, .seqs = seqs, .row_start = at, .state_read = at + seqs + 1, .state_write = at + 2 * seqs + 1, .max_seq_rows = each,
	                          .single_seqs = each == 1 ? seqs : 0};
	return STATUS_OK;
}

static enum status put_floats(struct trial *t, const float *values, size_t n, const float **out, struct error *err)
{
	void *device;
	TRY(trial_put(t, values, n * sizeof *values, "prescreen: delta net", &device, err));
	*out = device;
	return STATUS_OK;
}

/* The op without its rows' tensors. */
static enum status make_args(struct trial *t, struct gdn_cache *cache, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const struct trial_gdn *g = t->gdn_input;
	t->gdn = (struct gdn_args){.eps = t->bench->config->rms_eps, .cache = cache};
	TRY(put_floats(t, g->conv, (size_t)p->conv_kernel * (size_t)g->channels, &t->gdn.conv, err));
	TRY(put_floats(t, g->a_log, (size_t)p->v_heads, &t->gdn.a_log, err));
	TRY(put_floats(t, g->dt_bias, (size_t)p->v_heads, &t->gdn.dt_bias, err));
	TRY(put_floats(t, g->norm, (size_t)p->v_dim, &t->gdn.norm, err));
	return STATUS_OK;
}

/* qkvz and ba of rows [from, from + each) of every sequence. */
static enum status put_tensors(struct trial *t, int from, int each, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const struct trial_gdn *g = t->gdn_input;
	void *qkvz, *ba;
	TRY(put_part(t, g->qkvz, g->cols, from, each, &qkvz, err));
	TRY(put_part(t, g->ba, 2 * p->v_heads, from, each, &ba, err));
	t->gdn.qkvz = tensor_view(qkvz, t->activation, TENSOR_SHARDED, g->seqs * each, g->cols);
	t->gdn.ba = tensor_view(ba, t->activation, TENSOR_SHARDED, g->seqs * each, 2 * p->v_heads);
	return STATUS_OK;
}

static enum status run_history(struct trial *t, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const int rows = t->gdn_input->seqs * HISTORY, cols = p->v_heads * p->v_dim;
	struct step_rows steps;
	void *out;
	TRY(put_tensors(t, 0, HISTORY, err));
	TRY(put_rows(t, HISTORY, -1, 0, &steps, err));
	TRY(trial_take(t, (size_t)rows * (size_t)cols * dtype_bytes(t->activation), "prescreen: history", &out, err));
	t->gdn.rows = &steps;
	t->gdn.out = tensor_view(out, t->activation, TENSOR_SHARDED, rows, cols);
	TRY(OP(t->bench->stream, gdn, &t->gdn, err));
	return trial_sync(t, err);
}

enum status trial_open_gdn(struct trial *t, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const int cols = p->v_heads * p->v_dim;
	void *out;
	TRY(make_input(t, err));
	t->gdn_cache.layout = (struct gdn_layout){.layers = 1, .slots = 1 + 2 * t->gdn_input->seqs, .k_heads = p->k_heads, .v_heads = p->v_heads, .k_dim = p->k_dim, .v_dim = p->v_dim,
	                                          .conv_kernel = p->conv_kernel, .dtype = t->activation};
	TRY(trial_take(t, gdn_cache_bytes(&t->gdn_cache.layout), "prescreen: states", &t->gdn_cache.data, err));
	TRY(make_args(t, &t->gdn_cache, err));
	TRY(run_history(t, err));
	TRY(put_tensors(t, HISTORY, t->gdn_input->each, err));
	TRY(put_rows(t, t->gdn_input->each, 0, 1, &t->rows, err));
	/* One piece of memory for both inputs, so that one copy puts them back. */
	const size_t size = dtype_bytes(t->activation), first = (size_t)p->rows * (size_t)t->gdn_input->cols * size, second = (size_t)p->rows * 2 * (size_t)p->v_heads * size;
	const size_t second_at = (first + 255) / 256 * 256;
	t->spoilt_bytes = second_at + second;
	TRY(trial_take(t, t->spoilt_bytes, "prescreen: qkvz and ba", &t->pristine, err));
	TRY(trial_take(t, t->spoilt_bytes, "prescreen: qkvz and ba", &t->spoilt, err));
	TRY(t->bench->ops->copy(t->bench->stream, t->pristine, t->gdn.qkvz.data, first, COPY_ON_DEVICE, err));
	TRY(t->bench->ops->copy(t->bench->stream, (char *)t->pristine + second_at, t->gdn.ba.data, second, COPY_ON_DEVICE, err));
	TRY(t->bench->ops->copy(t->bench->stream, t->spoilt, t->pristine, t->spoilt_bytes, COPY_ON_DEVICE, err));
	TRY(trial_sync(t, err));
	t->gdn.qkvz.data = t->spoilt;
	t->gdn.ba.data = (char *)t->spoilt + second_at;
	const struct trial_region region = {.bytes = (size_t)p->rows * (size_t)cols * size, .dtype = t->activation, .rows = p->rows, .cols = cols, .stride = cols};
	TRY(trial_add_region(t, region, "prescreen: output", &out, err));
	t->gdn.rows = NULL; /* set where it is issued: a trial may be moved */
	return STATUS_OK;
}

enum status trial_issue_gdn(struct trial *t, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	struct gdn_args args = t->gdn;
	args.rows = &t->rows;
	args.cache = &t->gdn_cache;
	args.out = tensor_view(trial_output(t), t->activation, TENSOR_SHARDED, p->rows, p->v_heads * p->v_dim);
	return OP(t->bench->stream, gdn, &args, err);
}

/* ---- reference */

/* One head while it walks through the rows of its sequence. */
struct walk {
	double *s;          /* [v_dim][k_dim] */
	double *q, *k, *v;  /* of the row */
};

static double silu(double x)
{
	return x / (1 + exp(-x));
}

/* silu of the causal convolution at row `row` of a sequence, channels [first, first + n). */
static void convolve(const struct trial *t, const float *rows, int row, int first, int n, double *out)
{
	const struct trial_gdn *g = t->gdn_input;
	const int taps = t->problem->gdn.conv_kernel;
	for (int c = 0; c < n; c++) {
		double sum = 0;
		for (int i = 0; i < taps; i++) {
			const int at = row - (taps - 1) + i;
			if (at >= 0) sum += (double)g->conv[(size_t)i * (size_t)g->channels + (size_t)(first + c)] * (double)rows[(size_t)at * (size_t)g->cols + (size_t)(first + c)];
		}
		out[c] = silu(sum);
	}
}

static void normalise(double *x, int n, double factor)
{
	double sum = 0;
	for (int i = 0; i < n; i++) sum += x[i] * x[i];
	for (int i = 0; i < n; i++) x[i] *= factor / sqrt(sum + (double)GDN_L2_EPS);
}

/* One row: the state, and the head's outputs. */
static void step(const struct trial *t, const float *rows, const float *ba, int row, int head, const struct walk *w, double *out)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const struct trial_gdn *g = t->gdn_input;
	const int key_head = head / (p->v_heads / p->k_heads), keys = p->k_heads * p->k_dim;
	convolve(t, rows, row, key_head * p->k_dim, p->k_dim, w->q);
	convolve(t, rows, row, keys + key_head * p->k_dim, p->k_dim, w->k);
	convolve(t, rows, row, 2 * keys + head * p->v_dim, p->v_dim, w->v);
	normalise(w->q, p->k_dim, 1 / sqrt(p->k_dim));
	normalise(w->k, p->k_dim, 1);
	const double b = ba[(size_t)row * 2 * (size_t)p->v_heads + (size_t)head], a = ba[(size_t)row * 2 * (size_t)p->v_heads + (size_t)(p->v_heads + head)];
	const double beta = 1 / (1 + exp(-b)), decay = exp(-exp((double)g->a_log[head]) * log1p(exp(a + (double)g->dt_bias[head])));
	double squares = 0;
	for (int i = 0; i < p->v_dim; i++) {
		double *s = w->s + (size_t)i * (size_t)p->k_dim, seen = 0, o = 0;
		for (int j = 0; j < p->k_dim; j++) seen += (s[j] *= decay) * w->k[j];
		const double e = beta * (w->v[i] - seen);
		for (int j = 0; j < p->k_dim; j++) o += (s[j] += w->k[j] * e) * w->q[j];
		out[i] = o;
		squares += o * o;
	}
	for (int i = 0; i < p->v_dim; i++) {
		const double z = rows[(size_t)row * (size_t)g->cols + (size_t)(g->channels + head * p->v_dim + i)];
		out[i] *= (double)g->norm[i] / sqrt(squares / p->v_dim + (double)t->bench->config->rms_eps) * silu(z);
	}
}

/* The sampled rows of sequence `seq`, columns [at, at + v_dim) of the samples, which are one head. */
static void walk_sequence(struct trial *t, int seq, int at, const struct walk *w, double *out)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const struct trial_gdn *g = t->gdn_input;
	const int all = HISTORY + g->each, head = (int)(t->samples.col[at] / p->v_dim);
	const float *rows = g->qkvz + (size_t)seq * (size_t)all * (size_t)g->cols, *ba = g->ba + (size_t)seq * (size_t)all * 2 * (size_t)p->v_heads;
	int next = 0; /* of the samples */
	memset(w->s, 0, (size_t)p->k_dim * (size_t)p->v_dim * sizeof *w->s);
	while (next < t->samples.rows && t->samples.row[next] < (int64_t)seq * g->each) next++;
	for (int row = 0; row < all && next < t->samples.rows; row++) {
		step(t, rows, ba, row, head, w, out);
		if (row < HISTORY || t->samples.row[next] != (int64_t)seq * g->each + row - HISTORY) continue;
		memcpy(t->samples.reference + (size_t)next * (size_t)t->samples.cols + (size_t)at, out, (size_t)p->v_dim * sizeof *out);
		next++;
	}
}

enum status trial_gdn_reference(struct trial *t, struct error *err)
{
	const struct gdn_problem *p = &t->problem->gdn;
	const size_t k = (size_t)p->k_dim, v = (size_t)p->v_dim;
	double *memory = mem_zalloc(k * v + 2 * k + 2 * v, sizeof *memory, "prescreen: reference", err);
	if (!memory) return STATUS_NO_MEMORY;
	const struct walk w = {.s = memory, .q = memory + k * v, .k = memory + k * v + k, .v = memory + k * v + 2 * k};
	for (int at = 0; at < t->samples.cols; at += p->v_dim)
		for (int seq = 0; seq < t->gdn_input->seqs; seq++) walk_sequence(t, seq, at, &w, memory + k * v + 2 * k + v);
	free(memory);
	return STATUS_OK;
}
