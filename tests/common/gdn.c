#include "common/gdn.h"

#include <math.h>
#include <stdlib.h>

#include "common/fill.h"

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* q, k and v of row t: the taps, silu, and lengths of q and k. */
static void convolve(const struct gdn_oracle *g, int t, const void *qkvz, int channels, size_t cols, double *x)
{
	for (int i = 0; i < channels; i++) {
		x[i] = 0;
		for (int j = 0; j < g->taps && j <= t; j++)
			x[i] += (double)g->conv[(g->taps - 1 - j) * channels + i] * element(qkvz, g->dtype, (size_t)(t - j) * cols + (size_t)i);
		x[i] *= sigmoid(x[i]);
	}
	for (int h = 0; h < 2 * g->k_heads; h++) { /* q heads, then k heads */
		double sum = 1e-6;
		for (int i = 0; i < g->k_dim; i++) sum += x[h * g->k_dim + i] * x[h * g->k_dim + i];
		for (int i = 0; i < g->k_dim; i++) x[h * g->k_dim + i] /= sqrt(sum * (h < g->k_heads ? g->k_dim : 1));
	}
}

/* One value head of a row: S is `m`, [k_dim][v_dim]. Returns the mean over columns of (sum |q| |S|)^2. */
static double head(const struct gdn_oracle *g, int h, const double *x, double b, double a, double *m, double *o)
{
	const double *q = x + h / (g->v_heads / g->k_heads) * g->k_dim, *k = q + g->k_heads * g->k_dim, *v = x + 2 * g->k_heads * g->k_dim + h * g->v_dim;
	const double decay = exp(-exp((double)g->a_log[h]) * log1p(exp(a + (double)g->dt_bias[h])));
	double rough = 0;
	for (int j = 0; j < g->v_dim; j++) {
		double found = 0, sum = 0;
		o[j] = 0;
		for (int i = 0; i < g->k_dim; i++) found += (m[i * g->v_dim + j] *= decay) * k[i];
		for (int i = 0; i < g->k_dim; i++) {
			const double part = (m[i * g->v_dim + j] += k[i] * sigmoid(b) * (v[j] - found)) * q[i];
			o[j] += part, sum += fabs(part);
		}
		rough += sum * sum;
	}
	return rough / g->v_dim;
}

void gdn_oracle(const struct gdn_oracle *g, int rows, const void *qkvz, const void *ba, double *want, double *scale, double *rough)
{
	const int channels = 2 * g->k_heads * g->k_dim + g->v_heads * g->v_dim, values = g->v_heads * g->v_dim;
	const size_t cols = (size_t)(channels + values), heads = (size_t)g->v_heads, s_size = (size_t)(g->k_dim * g->v_dim);
	double *x = malloc((size_t)channels * sizeof *x), *s = calloc(heads * s_size, sizeof *s);
	for (int t = 0; t < rows; t++) {
		const size_t row = (size_t)t;
		convolve(g, t, qkvz, channels, cols, x);
		for (int h = 0; h < g->v_heads; h++) {
			const size_t at = row * (size_t)values + (size_t)(h * g->v_dim);
			double *o = want + at, square = 0;
			const double products = head(g, h, x, element(ba, g->dtype, row * 2 * heads + (size_t)h), element(ba, g->dtype, (row * 2 + 1) * heads + (size_t)h),
			                             s + (size_t)h * s_size, o);
			for (int j = 0; j < g->v_dim; j++) square += o[j] * o[j];
			square = square / g->v_dim + 1e-6;
			for (int j = 0; j < g->v_dim; j++) {
				const double z = element(qkvz, g->dtype, row * cols + (size_t)(channels + h * g->v_dim + j)), gain = (double)g->norm[j] * z * sigmoid(z);
				o[j] *= gain / sqrt(square);
				scale[at + (size_t)j] = fabs(gain) + fabs(o[j]);
				if (rough) rough[at + (size_t)j] = scale[at + (size_t)j] * sqrt(products / square);
			}
		}
	}
	free(x), free(s);
}
