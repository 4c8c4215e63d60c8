/* gdn.c: the gated delta net. Argument checks, and who computes what: rows (rates), a sequence's channels of one
 * key head (convolution, in place, the last row first so that its inputs are still there), a sequence's value head (delta rule, norm). A unit
 * goes through its sequence's rows one by one, so how many come in a step does not show in any bit.
 */
#include <math.h>
#include <string.h>

#include "device/cpu/cpu.h"

#define SERIAL_ELEMENTS 16384 /* fewer: by the caller alone */

struct gdn_job {
	const struct gdn_args *args;
	const struct cpu_kernels *kernels;
	int k_cols, v_cols;  /* of q and of k, of v */
	int per_k_head;      /* value heads of a key head */
	int units, per_chunk;
};

static void run_units(struct stream *stream, struct gdn_job *job, int units, int64_t work, team_fn *fn)
{
	job->units = units;
	job->per_chunk = work < SERIAL_ELEMENTS ? units : (units + TEAM_MAX_CHUNKS - 1) / TEAM_MAX_CHUNKS;
	if (units > 0) team_run(cpu_team(stream), (units + job->per_chunk - 1) / job->per_chunk, fn, job);
}

static int chunk_end(const struct gdn_job *job, int chunk)
{
	int64_t end = ((int64_t)chunk + 1) * job->per_chunk;
	return end < job->units ? (int)end : job->units;
}

static void rates_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct gdn_job *job = context;
	const struct gdn_args *args = job->args;
	int heads = args->cache->layout.v_heads;
	for (int t = chunk * job->per_chunk; t < chunk_end(job, chunk); t++) {
		float *b = cpu_row(&args->ba, t);
		job->kernels->rates(b, b + heads, args->a_log, args->dt_bias, heads);
	}
}

/* The inputs before the step's rows, [conv_kernel - 1][channels]; NULL: there are none yet. */
static const float *inputs_before(const struct gdn_args *args, int seq)
{
	const int slot = args->rows->state_read[seq];
	return slot < 0 ? NULL : (const float *)((const char *)gdn_state(args->cache, args->layer, slot) + gdn_s_bytes(&args->cache->layout));
}

/* Columns [col, col + n) of the last conv_kernel - 1 inputs. */
static void keep_inputs(const struct gdn_args *args, int seq, int col, int n)
{
	const int kept = args->cache->layout.conv_kernel - 1, first = args->rows->row_start[seq], rows = args->rows->row_start[seq + 1] - first;
	const int64_t channels = gdn_channels(&args->cache->layout);
	const float *before = inputs_before(args, seq);
	float *out = (float *)((char *)gdn_state(args->cache, args->layer, args->rows->state_write[seq]) + gdn_s_bytes(&args->cache->layout));
	for (int i = 0; i < kept; i++) {
		int t = rows - kept + i; /* below 0: of an earlier step */
		float *to = out + i * channels + col;
		if (t >= 0) memcpy(to, cpu_row(&args->qkvz, first + t) + col, (size_t)n * sizeof *to);
		else if (before) memmove(to, before + (t + kept) * channels + col, (size_t)n * sizeof *to);
		else memset(to, 0, (size_t)n * sizeof *to);
	}
}

static void convolve(const struct gdn_job *job, int seq, int col, int n)
{
	const struct gdn_args *args = job->args;
	const int taps = args->cache->layout.conv_kernel, first = args->rows->row_start[seq];
	const int64_t channels = gdn_channels(&args->cache->layout);
	const float *before = inputs_before(args, seq);
	keep_inputs(args, seq, col, n);
	for (int t = args->rows->row_start[seq + 1] - first - 1; t >= 0; t--) {
		const float *in[GDN_MAX_TAPS];
		for (int tap = 0; tap < taps; tap++) {
			int at = t - (taps - 1) + tap;
			in[tap] = at >= 0 ? cpu_row(&args->qkvz, first + at) + col : before ? before + (at + taps - 1) * channels + col : NULL;
		}
		job->kernels->conv(cpu_row(&args->qkvz, first + t) + col, in, args->conv + col, taps, channels, n);
	}
}

/* Unit: a sequence and a key head. */
static void conv_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct gdn_job *job = context;
	const struct gdn_args *args = job->args;
	const struct gdn_layout *l = &args->cache->layout;
	const float scale = 1.0f / sqrtf((float)l->k_dim);
	for (int unit = chunk * job->per_chunk; unit < chunk_end(job, chunk); unit++) {
		int seq = unit / l->k_heads, head = unit % l->k_heads, values = job->per_k_head * l->v_dim;
		convolve(job, seq, head * l->k_dim, l->k_dim);
		convolve(job, seq, job->k_cols + head * l->k_dim, l->k_dim);
		convolve(job, seq, 2 * job->k_cols + head * values, values);
		for (int t = args->rows->row_start[seq]; t < args->rows->row_start[seq + 1]; t++) {
			float *q = cpu_row(&args->qkvz, t) + head * l->k_dim;
			job->kernels->l2_norm(q, l->k_dim, GDN_L2_EPS, scale);
			job->kernels->l2_norm(q + job->k_cols, l->k_dim, GDN_L2_EPS, 1.0f);
		}
	}
}

/* Unit: a sequence and a value head. */
static void delta_chunk(void *context, int chunk, int member)
{
	(void)member;
	const struct gdn_job *job = context;
	const struct gdn_args *args = job->args;
	const struct gdn_layout *l = &args->cache->layout;
	const size_t matrix = (size_t)l->k_dim * (size_t)l->v_dim;
	for (int unit = chunk * job->per_chunk; unit < chunk_end(job, chunk); unit++) {
		const int seq = unit / l->v_heads, head = unit % l->v_heads, k_head = head / job->per_k_head;
		const int first = args->rows->row_start[seq], end = args->rows->row_start[seq + 1], read = args->rows->state_read[seq];
		if (first == end) continue;
		float *row = cpu_row(&args->qkvz, first), *b = cpu_row(&args->ba, first);
		float *s = (float *)gdn_state(args->cache, args->layer, args->rows->state_write[seq]) + (size_t)head * matrix;
		struct delta_args d = {.rows = end - first, .k_dim = l->k_dim, .v_dim = l->v_dim, .q = row + k_head * l->k_dim,
		                       .k = row + job->k_cols + k_head * l->k_dim, .v = row + 2 * job->k_cols + head * l->v_dim, .beta = b + head,
		                       .decay = b + l->v_heads + head, .stride = args->qkvz.row_stride, .rate_stride = args->ba.row_stride,
		                       .out_stride = args->out.row_stride, .s_in = s, .s = s, .out = cpu_row(&args->out, first) + head * l->v_dim};
		if (read < 0) memset(s, 0, matrix * sizeof *s);
		else d.s_in = (const float *)gdn_state(args->cache, args->layer, read) + (size_t)head * matrix;
		job->kernels->delta(&d);
		for (int t = first; t < end; t++) {
			float *out = cpu_row(&args->out, t) + head * l->v_dim;
			job->kernels->rms_norm(out, out, args->norm, l->v_dim, args->eps);
			job->kernels->swiglu(out, cpu_row(&args->qkvz, t) + 2 * job->k_cols + job->v_cols + head * l->v_dim, out, l->v_dim);
		}
	}
}

static enum status expect_columns(const struct tensor *t, int rows, int cols, const char *what, struct error *err)
{
	TRY(tensor_expect(t, TENSOR_SHARDED, what, err));
	TRY(cpu_expect_f32(t, what, err));
	if (t->rows == rows && t->cols == cols) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: tensor is [%d,%d], expected [%d,%d]", what, t->rows, t->cols, rows, cols);
}

static enum status check_gdn(const struct gdn_args *args, struct error *err)
{
	const struct gdn_layout *l = &args->cache->layout;
	const int rows = args->rows->rows, values = l->v_heads * l->v_dim;
	if (l->k_heads < 1 || l->v_heads % l->k_heads || l->k_dim < 1 || l->v_dim < 1 || l->conv_kernel < 1 || l->conv_kernel > GDN_MAX_TAPS ||
	    args->layer < 0 || args->layer >= l->layers || l->dtype != DTYPE_F32)
		return FAIL(err, BAD_INPUT,
		            "gdn: layer %d of %d, %d key and %d value heads of %d and %d, %d taps, %s inputs: value heads must be a multiple of key heads, taps at most %d, inputs F32",
		            args->layer, l->layers, l->k_heads, l->v_heads, l->k_dim, l->v_dim, l->conv_kernel, dtype_name(l->dtype), GDN_MAX_TAPS);
	for (int s = 0; s < args->rows->seqs; s++)
		if (args->rows->state_read[s] >= l->slots || args->rows->state_write[s] < 0 || args->rows->state_write[s] >= l->slots)
			return FAIL(err, BAD_INPUT, "gdn: sequence %d reads slot %d and writes slot %d of %d", s, args->rows->state_read[s],
			            args->rows->state_write[s], l->slots);
	TRY(expect_columns(&args->qkvz, rows, gdn_channels(l) + values, "gdn qkvz", err));
	TRY(expect_columns(&args->ba, rows, 2 * l->v_heads, "gdn ba", err));
	return expect_columns(&args->out, rows, values, "gdn out", err);
}

enum status cpu_gdn(struct stream *stream, const struct gdn_args *args, struct error *err)
{
	TRY(check_gdn(args, err));
	const struct gdn_layout *l = &args->cache->layout;
	const int64_t rows = args->rows->rows;
	struct gdn_job job = {.args = args, .kernels = cpu_kernels(stream), .k_cols = l->k_heads * l->k_dim, .v_cols = l->v_heads * l->v_dim,
	                      .per_k_head = l->v_heads / l->k_heads};
	run_units(stream, &job, args->rows->rows, 16 * rows * l->v_heads, rates_chunk);
	run_units(stream, &job, args->rows->seqs * l->k_heads, rows * gdn_channels(l) * l->conv_kernel, conv_chunk);
	run_units(stream, &job, args->rows->seqs * l->v_heads, rows * l->v_heads * l->k_dim * l->v_dim, delta_chunk);
	return STATUS_OK;
}
