/* ops.c: the row-wise ops: argument checks, and rows (or columns) shared among the team. The arithmetic is in the kernels. */
#include <string.h>

#include "device/cpu/cpu.h"
#include "device/cpu/quant.h"

/* Work below this many elements is done by the caller alone: waking others costs about as much. */
#define SERIAL_ELEMENTS 16384

enum status cpu_expect_f32(const struct tensor *t, const char *what, struct error *err)
{
	if (t->dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "%s: activations of type %s; the cpu back end computes in F32", what, dtype_name(t->dtype));
	if (t->rows < 0 || t->cols < 0 || t->row_stride < t->cols || (!t->data && t->rows > 0 && t->cols > 0))
		return FAIL(err, BAD_INPUT, "%s: tensor [%d,%d] with row stride %lld%s is malformed", what, t->rows, t->cols,
		            (long long)t->row_stride, t->data ? "" : " and no data");
	return STATUS_OK;
}

static enum status expect_shape(const struct tensor *t, int rows, int64_t cols, const char *what, struct error *err)
{
	TRY(cpu_expect_f32(t, what, err));
	if (t->rows == rows && t->cols == cols) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: tensor is [%d,%d], expected [%d,%lld]", what, t->rows, t->cols, rows, (long long)cols);
}

/* Rows per chunk so that a chunk is worth a claim; all rows in one chunk when the whole is small. */
static int rows_per_chunk(int rows, int64_t cols)
{
	if (cols < 1) cols = 1;
	if (rows * cols < SERIAL_ELEMENTS) return rows;
	int64_t per = SERIAL_ELEMENTS / 2 / cols;
	int64_t least = (rows + TEAM_MAX_CHUNKS - 1) / TEAM_MAX_CHUNKS;
	return (int)(per < least ? least : per);
}

struct row_job {
	const void *args;
	const struct cpu_kernels *kernels;
	int rows, per_chunk;
};

/* Calls fn for chunks of rows; a chunk's rows are given by chunk_begin and chunk_end. */
static void run_rows(struct stream *stream, const void *args, int rows, int64_t cols, team_fn *fn)
{
	if (rows <= 0) return;
	struct row_job job = {.args = args, .kernels = cpu_kernels(stream), .rows = rows, .per_chunk = rows_per_chunk(rows, cols)};
	team_run(cpu_team(stream), (rows + job.per_chunk - 1) / job.per_chunk, fn, &job);
}

static int chunk_begin(const struct row_job *job, int chunk)
{
	return chunk * job->per_chunk;
}

static int chunk_end(const struct row_job *job, int chunk)
{
	int64_t end = ((int64_t)chunk + 1) * job->per_chunk;
	return end < job->rows ? (int)end : job->rows;
}

/* One row out of the panels: element i of output n is [n / PANEL][i][panel_slot(n % PANEL)], but for block types (quant.h). */
static void widen_row(float *out, const struct linear_weight *w, int n)
{
	if (!dtype_is_plain(w->dtype)) {
		const char *panel = (const char *)w->data + cpu_linear_bytes(w->dtype, n / PANEL * PANEL, w->k);
		for (int i = 0; i < w->k; i++) out[i] = quant_element(w->dtype, panel, i, n % PANEL);
		return;
	}
	size_t base = (size_t)(n / PANEL) * (size_t)w->k * PANEL + (size_t)panel_slot(w->dtype, n % PANEL);
	if (w->dtype == DTYPE_F32) {
		const float *p = (const float *)w->data + base;
		for (int i = 0; i < w->k; i++) out[i] = p[(size_t)i * PANEL];
		return;
	}
	const uint16_t *p = (const uint16_t *)w->data + base;
	if (w->dtype == DTYPE_BF16)
		for (int i = 0; i < w->k; i++) out[i] = bf16_to_f32(p[(size_t)i * PANEL]);
	else
		for (int i = 0; i < w->k; i++) out[i] = f16_to_f32(p[(size_t)i * PANEL]);
}

static void embed_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct embed_args *args = job->args;
	const int cols = args->out.cols;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++) {
		const int64_t row = (int64_t)args->token[t] - args->begin;
		const bool here = row >= 0 && row < args->table->n;
		if (here) widen_row(cpu_row(&args->out, t), args->table, (int)row);
		for (int i = 0; i < cols && here && args->scale != 0.0f; i++) cpu_row(&args->out, t)[i] *= args->scale;
		for (int s = here; s < args->out.slots; s++)
			for (int i = 0; i < cols; i++) cpu_row(&args->out, t)[s * args->out.slot_stride + i] = -0.0f;
	}
}

enum status cpu_embed(struct stream *stream, const struct embed_args *args, struct error *err)
{
	if (args->out.dist != TENSOR_PARTIAL) TRY(tensor_expect(&args->out, TENSOR_REPLICATED, "embed out", err));
	TRY(expect_shape(&args->out, args->out.rows, args->table->k, "embed out", err));
	run_rows(stream, args, args->out.rows, (int64_t)args->table->k * 4, embed_chunk); /* a cache line an element */
	return STATUS_OK;
}

static void rms_norm_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct rms_norm_args *args = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++)
		job->kernels->rms_norm(cpu_row(&args->out, t), cpu_row(&args->x, t), args->weight, args->x.cols, args->eps);
}

enum status cpu_rms_norm(struct stream *stream, const struct rms_norm_args *args, struct error *err)
{
	TRY(tensor_expect(&args->x, TENSOR_REPLICATED, "rms_norm x", err));
	TRY(tensor_expect(&args->out, TENSOR_REPLICATED, "rms_norm out", err));
	TRY(cpu_expect_f32(&args->x, "rms_norm x", err));
	TRY(expect_shape(&args->out, args->x.rows, args->x.cols, "rms_norm out", err));
	run_rows(stream, args, args->x.rows, args->x.cols, rms_norm_chunk);
	return STATUS_OK;
}

static void head_norm_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct head_norm_args *args = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++)
		for (int h = 0; h < args->heads; h++) {
			float *x = cpu_row(&args->x, t) + (size_t)h * args->head_dim;
			job->kernels->rms_norm(x, x, args->weight, args->head_dim, args->eps);
		}
}

enum status cpu_head_norm(struct stream *stream, const struct head_norm_args *args, struct error *err)
{
	TRY(tensor_expect(&args->x, TENSOR_SHARDED, "head_norm x", err));
	TRY(expect_shape(&args->x, args->x.rows, (int64_t)args->heads * args->head_dim, "head_norm x", err));
	run_rows(stream, args, args->x.rows, args->x.cols, head_norm_chunk);
	return STATUS_OK;
}

static void rope_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct rope_args *args = job->args;
	int half = args->rotary_dim / 2;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++) {
		const float *cosine = args->cos_sin + (size_t)t * args->rotary_dim;
		for (int h = 0; h < args->heads; h++)
			job->kernels->rope(cpu_row(&args->x, t) + (size_t)h * args->head_dim, cosine, cosine + half, half);
	}
}

enum status cpu_rope(struct stream *stream, const struct rope_args *args, struct error *err)
{
	TRY(tensor_expect(&args->x, TENSOR_SHARDED, "rope x", err));
	TRY(expect_shape(&args->x, args->x.rows, (int64_t)args->heads * args->head_dim, "rope x", err));
	if (args->rotary_dim < 0 || args->rotary_dim > args->head_dim || args->rotary_dim % 2)
		return FAIL(err, BAD_INPUT, "rope: %d rotary dimensions of a head of %d; an even number up to it is wanted", args->rotary_dim,
		            args->head_dim);
	run_rows(stream, args, args->x.rows, args->x.cols, rope_chunk);
	return STATUS_OK;
}

/* swiglu and geglu: out = fn(gate) * up. */
struct gated {
	struct tensor x, out;
	void (*fn)(float *out, const float *gate, const float *up, int n);
};

static void gated_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct gated *g = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++) {
		const float *gate = cpu_row(&g->x, t);
		g->fn(cpu_row(&g->out, t), gate, gate + g->out.cols, g->out.cols);
	}
}

static enum status run_gated(struct stream *stream, const struct gated *g, const char *x, const char *out, struct error *err)
{
	TRY(tensor_expect(&g->x, TENSOR_SHARDED, x, err));
	TRY(tensor_expect(&g->out, TENSOR_SHARDED, out, err));
	TRY(cpu_expect_f32(&g->out, out, err));
	TRY(expect_shape(&g->x, g->out.rows, (int64_t)g->out.cols * 2, x, err));
	run_rows(stream, g, g->x.rows, g->x.cols * 2, gated_chunk);
	return STATUS_OK;
}

enum status cpu_swiglu(struct stream *stream, const struct swiglu_args *args, struct error *err)
{
	return run_gated(stream, &(struct gated){args->x, args->out, cpu_kernels(stream)->swiglu}, "swiglu x", "swiglu out", err);
}

enum status cpu_geglu(struct stream *stream, const struct geglu_args *args, struct error *err)
{
	return run_gated(stream, &(struct gated){args->x, args->out, cpu_kernels(stream)->geglu}, "geglu x", "geglu out", err);
}

static void norm_add_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct norm_add_args *args = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++) {
		float *x = cpu_row(&args->x, t), *y = cpu_row(&args->y, t);
		job->kernels->rms_norm(y, y, args->weight, args->y.cols, args->eps);
		for (int i = 0; i < args->y.cols; i++) x[i] = x[i] + y[i];
		if (args->next) job->kernels->rms_norm(cpu_row(&args->h, t), x, args->next, args->y.cols, args->eps);
	}
}

enum status cpu_norm_add(struct stream *stream, const struct norm_add_args *args, struct error *err)
{
	TRY(tensor_expect(&args->x, TENSOR_REPLICATED, "norm_add x", err));
	TRY(tensor_expect(&args->y, TENSOR_REPLICATED, "norm_add y", err));
	TRY(cpu_expect_f32(&args->y, "norm_add y", err));
	TRY(expect_shape(&args->x, args->y.rows, args->y.cols, "norm_add x", err));
	if (args->next) {
		TRY(tensor_expect(&args->h, TENSOR_REPLICATED, "norm_add h", err));
		TRY(expect_shape(&args->h, args->y.rows, args->y.cols, "norm_add h", err));
	}
	run_rows(stream, args, args->y.rows, (int64_t)args->y.cols * 2, norm_add_chunk);
	return STATUS_OK;
}

static void softcap_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct softcap_args *args = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++) job->kernels->softcap(cpu_row(&args->x, t), args->cap, args->x.cols);
}

enum status cpu_softcap(struct stream *stream, const struct softcap_args *args, struct error *err)
{
	TRY(cpu_expect_f32(&args->x, "softcap x", err));
	if (!(args->cap > 0)) return FAIL(err, BAD_INPUT, "softcap: a cap of %g; one above 0 is wanted", (double)args->cap);
	run_rows(stream, args, args->x.rows, (int64_t)args->x.cols * 4, softcap_chunk);
	return STATUS_OK;
}

static void gate_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct gate_args *args = job->args;
	for (int t = chunk_begin(job, chunk); t < chunk_end(job, chunk); t++)
		job->kernels->gate(cpu_row(&args->x, t), cpu_row(&args->gate, t), args->x.cols);
}

enum status cpu_gate(struct stream *stream, const struct gate_args *args, struct error *err)
{
	TRY(tensor_expect(&args->x, TENSOR_SHARDED, "gate x", err));
	TRY(tensor_expect(&args->gate, TENSOR_SHARDED, "gate gate", err));
	TRY(cpu_expect_f32(&args->x, "gate x", err));
	TRY(expect_shape(&args->gate, args->x.rows, args->x.cols, "gate gate", err));
	run_rows(stream, args, args->x.rows, (int64_t)args->x.cols * 2, gate_chunk);
	return STATUS_OK;
}

static void tree_sum_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct tree_sum_args *args = job->args;
	int cols = args->out.cols;
	struct tree_args row = {.source = (const float *const *)args->source, .merges = args->merges, .sources = args->sources, .bias = args->bias,
	                        .n = cols};
	for (int i = chunk_begin(job, chunk); i < chunk_end(job, chunk); i++) {
		int t = args->row_begin + i;
		row.offset = (size_t)t * (size_t)cols;
		row.residual = args->residual.data ? cpu_row(&args->residual, t) : NULL;
		row.out = cpu_row(&args->out, t);
		job->kernels->tree_sum(&row);
	}
}

enum status cpu_tree_sum(struct stream *stream, const struct tree_sum_args *args, struct error *err)
{
	int depth; /* the kernels have room for any that passes */
	TRY(tensor_expect(&args->out, TENSOR_REPLICATED, "tree_sum out", err));
	TRY(cpu_expect_f32(&args->out, "tree_sum out", err));
	TRY(ops_check_program(args, &depth, err));
	if (args->source_dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "tree_sum: sources of type %s; the cpu back end sums F32", dtype_name(args->source_dtype));
	if (args->residual.data) {
		TRY(tensor_expect(&args->residual, TENSOR_REPLICATED, "tree_sum residual", err));
		TRY(expect_shape(&args->residual, args->out.rows, args->out.cols, "tree_sum residual", err));
	}
	if (args->row_begin < 0 || args->row_end > args->out.rows)
		return FAIL(err, BAD_INPUT, "tree_sum: rows [%d,%d) of %d", args->row_begin, args->row_end, args->out.rows);
	run_rows(stream, args, args->row_end - args->row_begin, (int64_t)args->out.cols * args->sources, tree_sum_chunk);
	return STATUS_OK;
}

static void gather_rows_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct row_job *job = context;
	const struct gather_rows_args *args = job->args;
	size_t unit = dtype_bytes(args->x.dtype);
	for (int i = chunk_begin(job, chunk); i < chunk_end(job, chunk); i++)
		memcpy((char *)args->out.data + (size_t)i * (size_t)args->out.row_stride * unit,
		       (const char *)args->x.data + (size_t)args->row[i] * (size_t)args->x.row_stride * unit, (size_t)args->out.cols * unit);
}

enum status cpu_gather_rows(struct stream *stream, const struct gather_rows_args *args, struct error *err)
{
	TRY(tensor_expect(&args->out, args->x.dist, "gather_rows out", err));
	if (args->x.dist == TENSOR_PARTIAL || args->x.dtype != args->out.dtype || args->x.cols != args->out.cols)
		return FAIL(err, BAD_INPUT, "gather_rows: from %s %s rows of %d to %s rows of %d; equal types and widths, no partial, are wanted",
		            tensor_dist_name(args->x.dist), dtype_name(args->x.dtype), args->x.cols, dtype_name(args->out.dtype), args->out.cols);
	run_rows(stream, args, args->out.rows, args->out.cols, gather_rows_chunk);
	return STATUS_OK;
}
