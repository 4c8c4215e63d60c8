/* check_tanh.c: geglu, norm_add, softcap. Every variant gives the reference's bits; the reference is compared with the formulas in double
 * precision. u is 2^-24. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"

#define U 0x1.01p-24

static struct guarded filled(struct check *c, size_t n, uint64_t stream, float scale)
{
	struct guarded g = guarded_alloc(n * 4);
	fill_with(g.data, DTYPE_F32, n, c->fill, c->seed, stream);
	for (size_t i = 0; i < n; i++) ((float *)g.data)[i] *= scale;
	return g;
}

/* --- geglu. The argument 2u of the exponential errs by 4 u of itself, so the exponential by |2u| times that; then as swiglu. */

static void geglu_oracle(const float *gate, const float *up, int n, double *want, double *bound)
{
	for (int i = 0; i < n; i++) {
		double g = (double)gate[i], turn = sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g);
		want[i] = g / (1 + exp(-2 * turn)) * (double)up[i];
		bound[i] = (8 + 10 * fmin(fabs(turn), 90)) * U * fabs(want[i]) + 0x1p-126 * (fabs((double)up[i]) + 1) * 100;
	}
}

static void geglu_case(struct check *c, enum fill fill, int rows, int n, float scale)
{
	case_begin(c, fill, "T=%d I=%d scale %g", rows, n, (double)scale);
	const size_t in = (size_t)rows * 2 * (size_t)n, outs = (size_t)rows * (size_t)(n + 2);
	struct guarded x = filled(c, in, 1, scale), out = guarded_alloc(outs * 4);
	float *first = malloc(outs * 4);
	double *want = malloc((size_t)n * 8), *bound = malloc((size_t)n * 8);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		guarded_poison(&out);
		struct tensor to = tensor_view(out.data, DTYPE_F32, TENSOR_SHARDED, rows, n + 2);
		struct geglu_args args = {.x = tensor_view(x.data, DTYPE_F32, TENSOR_SHARDED, rows, 2 * n), .out = tensor_columns(&to, 0, n)};
		expect_ok(c, v, OP(v->stream, geglu, &args, &err), &err);
		expect_intact(c, v, &out, "out");
		if (i) compare_bits(c, v, "out", out.data, first, outs);
		else memcpy(first, out.data, outs * 4), reference_bits(c, first, outs);
	}
	for (int t = 0; (fill == FILL_RANDOM || fill == FILL_ZERO) && t < rows; t++) {
		const float *gate = (float *)x.data + (size_t)t * 2 * (size_t)n;
		geglu_oracle(gate, gate + n, n, want, bound);
		compare_bound(c, "out", first + (size_t)t * (size_t)(n + 2), want, bound, (size_t)n);
	}
	case_end(c);
	guarded_free(&x), guarded_free(&out);
	free(first), free(want), free(bound);
}

void check_geglu(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		geglu_case(c, fill, 1, 1, 1);
		geglu_case(c, fill, 3, 17, 4);
		geglu_case(c, fill, 2, 1000, 20);
		geglu_case(c, fill, 40, 704, 3);
	}
}

/* --- norm_add. The norm's bound (check_rows.c) and one addition. */

static void norm_add_case(struct check *c, enum fill fill, int rows, int n, bool then)
{
	case_begin(c, fill, "T=%d H=%d%s", rows, n, then ? " and the next norm" : "");
	const size_t all = (size_t)rows * (size_t)n;
	const double eps = 1e-6;
	struct guarded x0 = filled(c, all, 1, 1), y0 = filled(c, all, 2, 1), weight = filled(c, (size_t)n, 3, 1);
	struct guarded x = guarded_alloc(all * 4), y = guarded_alloc(all * 4), h = guarded_alloc(all * 4), next = filled(c, (size_t)n, 4, 1), normed_x = guarded_alloc(all * 4);
	float *first = malloc(all * 4);
	double *want = malloc((size_t)n * 8), *bound = malloc((size_t)n * 8);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		memcpy(x.data, x0.data, all * 4);
		memcpy(y.data, y0.data, all * 4);
		struct norm_add_args args = {.x = tensor_view(x.data, DTYPE_F32, TENSOR_REPLICATED, rows, n), .y = tensor_view(y.data, DTYPE_F32, TENSOR_REPLICATED, rows, n),
		                             .weight = weight.data, .eps = (float)eps};
		if (then) args.next = next.data, args.h = tensor_view(h.data, DTYPE_F32, TENSOR_REPLICATED, rows, n);
		expect_ok(c, v, OP(v->stream, norm_add, &args, &err), &err);
		if (then) { /* the same bits as the norm by itself */
			struct rms_norm_args norm = {.x = args.x, .weight = next.data, .eps = (float)eps, .out = tensor_view(normed_x.data, DTYPE_F32, TENSOR_REPLICATED, rows, n)};
			expect_ok(c, v, OP(v->stream, rms_norm, &norm, &err), &err);
			expect_intact(c, v, &h, "h");
			compare_bits(c, v, "h", h.data, normed_x.data, all);
		}
		expect_intact(c, v, &x, "x");
		expect_intact(c, v, &y, "y");
		if (i) compare_bits(c, v, "x", x.data, first, all);
		else memcpy(first, x.data, all * 4), reference_bits(c, first, all);
	}
	for (int t = 0; (fill == FILL_RANDOM || fill == FILL_ZERO) && t < rows; t++) {
		const float *a = (float *)x0.data + (size_t)t * (size_t)n, *b = (float *)y0.data + (size_t)t * (size_t)n, *w = weight.data;
		double sum = 0;
		for (int i = 0; i < n; i++) sum += (double)b[i] * (double)b[i];
		for (int i = 0; i < n; i++) {
			double normed = (double)b[i] / sqrt(sum / n + (double)(float)eps) * (double)w[i];
			want[i] = (double)a[i] + normed;
			bound[i] = (n / 32.0 + 8) * U * fabs(normed) + U * fabs(want[i]) + 0x1p-140;
		}
		compare_bound(c, "x", first + (size_t)t * (size_t)n, want, bound, (size_t)n);
	}
	case_end(c);
	guarded_free(&x0), guarded_free(&y0), guarded_free(&weight), guarded_free(&x), guarded_free(&y), guarded_free(&h), guarded_free(&next), guarded_free(&normed_x);
	free(first), free(want), free(bound);
}

void check_norm_add(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		norm_add_case(c, fill, 1, 1, false);
		norm_add_case(c, fill, 3, 17, true);
		norm_add_case(c, fill, 7, 640, false);
		norm_add_case(c, fill, 33, 2560, true);
	}
}

/* --- softcap. The quotient's half u moves tanh by at most as much of itself, tanh has 2 ulp (4 u), the product one. */

static void softcap_case(struct check *c, enum fill fill, int rows, int n, float scale, float cap)
{
	case_begin(c, fill, "[%d,%d] scale %g cap %g", rows, n, (double)scale, (double)cap);
	const size_t all = (size_t)rows * (size_t)n;
	struct guarded x0 = filled(c, all, 1, scale), x = guarded_alloc(all * 4);
	float *first = malloc(all * 4);
	double *want = malloc(all * 8), *bound = malloc(all * 8);
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		struct error err = {0};
		memcpy(x.data, x0.data, all * 4);
		struct softcap_args args = {.x = tensor_view(x.data, DTYPE_F32, TENSOR_SHARDED, rows, n), .cap = cap};
		expect_ok(c, v, OP(v->stream, softcap, &args, &err), &err);
		expect_intact(c, v, &x, "x");
		if (i) compare_bits(c, v, "x", x.data, first, all);
		else memcpy(first, x.data, all * 4), reference_bits(c, first, all);
		args.cap = 0;
		if (OP(v->stream, softcap, &args, &err) != STATUS_BAD_INPUT) case_fail(c, v, "a cap of 0 is taken");
	}
	for (size_t i = 0; i < all; i++) {
		want[i] = (double)cap * tanh((double)((float *)x0.data)[i] / (double)cap);
		bound[i] = 6 * U * fabs(want[i]) + 0x1p-140;
	}
	if (fill == FILL_RANDOM || fill == FILL_ZERO) compare_bound(c, "x", first, want, bound, all);
	case_end(c);
	guarded_free(&x0), guarded_free(&x);
	free(first), free(want), free(bound);
}

void check_softcap(struct check *c)
{
	for (enum fill fill = 0; fill < FILL_COUNT; fill++) {
		softcap_case(c, fill, 1, 1, 1, 30);
		softcap_case(c, fill, 3, 17, 20, 30);
		softcap_case(c, fill, 2, 1000, 200, 50);
		softcap_case(c, fill, 5, 4099, 0.01f, 5);
	}
}
