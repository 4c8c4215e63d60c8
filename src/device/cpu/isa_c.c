/* isa_c.c: the kernels in plain C. They are the definition of every bit (docs/NUMERICS.md), meant to be read; the loop order is
 * chosen for that, and only then for speed. fmaf is one rounding on every machine; where it is no instruction (x86-64 without
 * -mfma) it is a call, which makes this table slow but keeps it right.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "device/cpu/exp.h"
#include "device/cpu/kernels.h"
#include "device/cpu/quant.h"

/* Sum of 16 lanes: halves are added until one is left. */
static float lane_sum(const float lane[LANES])
{
	float sum[LANES];
	memcpy(sum, lane, sizeof sum);
	for (int width = LANES / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++) sum[i] = sum[i] + sum[i + width];
	return sum[0];
}

/* NaN in `a` is passed over; the same choice for +0 and -0 as the vector instruction's. */
static float max_f32(float a, float b)
{
	return a > b ? a : b;
}

static float lane_max(const float lane[LANES])
{
	float max[LANES];
	memcpy(max, lane, sizeof max);
	for (int width = LANES / 2; width > 0; width /= 2)
		for (int i = 0; i < width; i++) max[i] = max_f32(max[i], max[i + width]);
	return max[0];
}

static void chain_f32(float *acc, const void *w, const float *x, int k, int rows)
{
	const float *weight = w;
	for (int r = 0; r < rows; r++)
		for (int i = 0; i < k; i++)
			for (int j = 0; j < PANEL; j++)
				acc[r * PANEL + j] = fmaf(x[i * rows + r], weight[i * PANEL + j], acc[r * PANEL + j]);
}

/* The narrow types are widened k-step by k-step: exact, so this is the same chain. */
static void chain_f16(float *acc, const void *w, const float *x, int k, int rows)
{
	const uint16_t *half = w;
	float wide[PANEL];
	for (int i = 0; i < k; i++) {
		for (int j = 0; j < PANEL; j++) wide[j] = f16_to_f32(half[i * PANEL + panel_slot(DTYPE_F16, j)]);
		chain_f32(acc, wide, x + i * rows, 1, rows);
	}
}

static void chain_bf16(float *acc, const void *w, const float *x, int k, int rows)
{
	const uint16_t *half = w;
	float wide[PANEL];
	for (int i = 0; i < k; i++) {
		for (int j = 0; j < PANEL; j++) wide[j] = bf16_to_f32(half[i * PANEL + panel_slot(DTYPE_BF16, j)]);
		chain_f32(acc, wide, x + i * rows, 1, rows);
	}
}

/* Block types: quant_element defines each weight. */
static void quant_widen(enum dtype dtype, float *out, const void *panel, int k0, int k)
{
	for (int i = 0; i < k; i++)
		for (int j = 0; j < PANEL; j++) out[i * PANEL + j] = quant_element(dtype, panel, k0 + i, j);
}

static void quant_chain(enum dtype dtype, float *acc, const void *panel, const float *x, int k0, int k, int rows)
{
	float wide[PANEL];
	for (int i = 0; i < k; i++) {
		quant_widen(dtype, wide, panel, k0 + i, 1);
		chain_f32(acc, wide, x + i * rows, 1, rows);
	}
}

#define QUANT_TYPE(type)                                                                                                 \
	static void chain_##type(float *acc, const void *panel, const float *x, int k0, int k, int rows)                 \
	{                                                                                                                \
		quant_chain(DTYPE_##type, acc, panel, x, k0, k, rows);                                                   \
	}                                                                                                                \
	static void widen_##type(float *out, const void *panel, int k0, int k)                                           \
	{                                                                                                                \
		quant_widen(DTYPE_##type, out, panel, k0, k);                                                            \
	}
QUANT_TYPES(QUANT_TYPE)

static void rms_norm(float *out, const float *x, const float *weight, int n, float eps)
{
	float lane[LANES] = {0};
	for (int i = 0; i < n; i++) lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
	float mean = lane_sum(lane) / (float)n;
	float r = 1.0f / sqrtf(mean + eps);
	for (int i = 0; i < n; i++) out[i] = x[i] * r * weight[i];
}

static void rope(float *x, const float *cosine, const float *sine, int half)
{
	for (int i = 0; i < half; i++) {
		float a = x[i], b = x[i + half], c = cosine[i], s = sine[i];
		x[i] = fmaf(a, c, -(b * s));
		x[i + half] = fmaf(b, c, a * s);
	}
}

static void swiglu(float *out, const float *gate, const float *up, int n)
{
	for (int i = 0; i < n; i++) out[i] = gate[i] / (1.0f + exp_f32(-gate[i])) * up[i];
}

static void tree_sum(const struct tree_args *args)
{
	for (int i = 0; i < args->n; i++) {
		float stack[SUMTREE_MAX_DEPTH];
		int depth = 0;
		for (int s = 0; s < args->sources; s++) {
			stack[depth++] = args->source[s][args->offset + (size_t)i];
			for (int m = args->merges[s]; m > 0; m--) {
				depth--;
				stack[depth - 1] = stack[depth - 1] + stack[depth];
			}
		}
		float sum = stack[0];
		if (args->bias) sum = sum + args->bias[i];
		if (args->residual) sum = args->residual[i] + sum;
		args->out[i] = sum;
	}
}

static void conv(float *out, const float *const *in, const float *w, int taps, int64_t stride, int n)
{
	for (int c = 0; c < n; c++) {
		float sum = 0.0f;
		for (int tap = 0; tap < taps; tap++)
			if (in[tap]) sum = fmaf(w[tap * stride + c], in[tap][c], sum);
		out[c] = sum / (1.0f + exp_f32(-sum));
	}
}

static void l2_norm(float *x, int n, float eps, float scale)
{
	float lane[LANES] = {0};
	for (int i = 0; i < n; i++) lane[i % LANES] = fmaf(x[i], x[i], lane[i % LANES]);
	float r = scale / sqrtf(lane_sum(lane) + eps);
	for (int i = 0; i < n; i++) x[i] = x[i] * r;
}

static void rates(float *b, float *a, const float *a_log, const float *dt_bias, int n)
{
	for (int i = 0; i < n; i++) {
		b[i] = 1.0f / (1.0f + exp_f32(-b[i]));
		a[i] = exp_f32(-(exp_f32(a_log[i]) * softplus_f32(a[i] + dt_bias[i])));
	}
}

/* One column of S and one row: the state decays, loses what k finds in it, gains v, and is asked with q. */
static float delta_column(float *s, const float *s_in, const struct delta_args *args, int row, int j)
{
	const float *q = args->q + row * args->stride, *k = args->k + row * args->stride;
	const float decay = args->decay[row * args->rate_stride], beta = args->beta[row * args->rate_stride];
	float found = 0.0f, out = 0.0f;
	for (int i = 0; i < args->k_dim; i++) found = fmaf(k[i], s_in[(size_t)i * args->v_dim + j] * decay, found);
	float change = (args->v[row * args->stride + j] - found) * beta;
	for (int i = 0; i < args->k_dim; i++) {
		size_t at = (size_t)i * args->v_dim + j;
		s[at] = fmaf(k[i], change, s_in[at] * decay);
		out = fmaf(q[i], s[at], out);
	}
	return out;
}

static void delta(const struct delta_args *args)
{
	for (int row = 0; row < args->rows; row++)
		for (int j = 0; j < args->v_dim; j++)
			args->out[row * args->out_stride + j] = delta_column(args->s, row ? args->s : args->s_in, args, row, j);
}

static void gate(float *x, const float *by, int n)
{
	for (int i = 0; i < n; i++) x[i] = x[i] / (1.0f + exp_f32(-by[i]));
}

static void geglu(float *out, const float *g, const float *up, int n)
{
	for (int i = 0; i < n; i++) out[i] = gelu_f32(g[i]) * up[i];
}

static void softcap(float *x, float cap, int n)
{
	for (int i = 0; i < n; i++) x[i] = tanh_f32(x[i] / cap) * cap;
}

/* One row of a tile: softmax weights of the visible positions, their maximum and sum. */
static void attend_weights(const struct attend_args *args, int row)
{
	const float *q = args->q + row * TILE_STRIDE;
	float *p = args->p + row * TILE_STRIDE;
	float lane[LANES];
	for (int i = 0; i < LANES; i++) lane[i] = -HUGE_VALF;
	for (int j = args->lo[row]; j < args->hi[row]; j++) {
		const float *k = args->k[j / KV_GROUP] + j % KV_GROUP;
		float dot = 0.0f;
		for (int d = 0; d < args->head_dim; d++) dot = fmaf(q[d], k[(size_t)d * args->k_stride], dot);
		p[j] = dot * args->scale;
		if (args->softcap > 0.0f) p[j] = tanh_f32(p[j] / args->softcap) * args->softcap;
		lane[j % LANES] = max_f32(p[j], lane[j % LANES]);
	}
	float max = lane_max(lane);
	for (int i = 0; i < LANES; i++) lane[i] = 0.0f;
	for (int j = args->lo[row]; j < args->hi[row]; j++) {
		p[j] = exp_f32(p[j] - max);
		lane[j % LANES] = lane[j % LANES] + p[j];
	}
	args->max[row] = max;
	args->sum[row] = lane_sum(lane);
}

static void attend(const struct attend_args *args)
{
	for (int row = 0; row < args->rows; row++) {
		attend_weights(args, row);
		const float *p = args->p + row * TILE_STRIDE;
		float *acc = args->acc + row * TILE_STRIDE;
		for (int d = 0; d < args->v_stride; d++) acc[d] = 0.0f;
		for (int j = args->lo[row]; j < args->hi[row]; j++) {
			const float *v = args->v[j / KV_GROUP] + (size_t)(j % KV_GROUP) * args->v_stride;
			for (int d = 0; d < args->v_stride; d++) acc[d] = fmaf(p[j], v[d], acc[d]);
		}
	}
}

static void rescale(float *acc, const float *part, float a, float b, int n)
{
	for (int i = 0; i < n; i++) acc[i] = fmaf(acc[i], a, part[i] * b);
}

static void divide(float *out, const float *acc, float by, int n)
{
	for (int i = 0; i < n; i++) out[i] = acc[i] / by;
}

static void exponential(float *out, const float *x, int n)
{
	for (int i = 0; i < n; i++) out[i] = exp_f32(x[i]);
}

static float read_sum(const float *p, size_t n)
{
	float lane[LANES] = {0};
	for (size_t i = 0; i < n; i += LANES)
		for (int j = 0; j < LANES; j++) lane[j] = lane[j] + p[i + (size_t)j];
	return lane_sum(lane);
}

static float fma_run(long steps)
{
	float lane[LANES] = {0};
	for (long i = 0; i < steps; i++)
		for (int j = 0; j < LANES; j++) lane[j] = fmaf(lane[j], 0.5f, 1.0f);
	return lane_sum(lane);
}

const struct cpu_kernels cpu_kernels_c = {
	.name = "c",
	.linear_rows = 4,
	.attend_rows = 4,
	.quant_rows = 4,
	.widen_rows = 4,
	.fma_step_flops = 2.0 * LANES,
	CPU_KERNEL_SLOTS,
};
