/* check_exp.c: the exponential of all ops, by itself, through the kernel tables: special values, ends of the range, and a sweep over
 * the bit patterns. Bound: 1.1 ulp of the result; below 2^-126 (x < -126 ln 2) the result is +0. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "check/check.h"
#include "device/cpu/cpu.h"

#define RUN 4096

static void bound_exp(const float *x, double *want, double *bound, int n)
{
	for (int i = 0; i < n; i++) {
		double y = exp((double)x[i]);
		int e;
		frexp(y, &e);
		want[i] = y > 0x1.fffffffp127 ? NAN : y;
		bound[i] = y < 0x1p-126 ? 0x1p-126 : 1.1 * ldexp(1, e - 24);
	}
}

static void run_exp(struct check *c, const float *x, int n)
{
	float out[RUN], first[RUN];
	double want[RUN], bound[RUN];
	const struct cpu_kernels *seen = NULL;
	for (int i = 0; i < c->variants; i++) {
		const struct cpu_kernels *kernels = cpu_kernels(c->variant[i].stream);
		if (kernels == seen) continue;
		seen = kernels;
		kernels->exp(i ? out : first, x, n);
		if (i) compare_bits(c, &c->variant[i], "exp", out, first, (size_t)n);
		else reference_bits(c, first, (size_t)n);
	}
	bound_exp(x, want, bound, n);
	compare_bound(c, "exp", first, want, bound, (size_t)n);
}

void check_exp(struct check *c)
{
	static const struct { float x, y; } exact[] = {{0, 1}, {-0.0f, 1}, {-INFINITY, 0}, {INFINITY, INFINITY}, {-88, 0}, {-1e30f, 0}, {89, INFINITY}};
	case_begin(c, FILL_SPECIAL, "special values");
	for (size_t i = 0; i < sizeof exact / sizeof *exact; i++) {
		float y;
		cpu_kernels(c->variant[0].stream)->exp(&y, &exact[i].x, 1);
		compare_bits(c, &c->variant[0], "exp", &y, &exact[i].y, 1);
		run_exp(c, &exact[i].x, 1);
	}
	float nan = NAN, y;
	cpu_kernels(c->variant[0].stream)->exp(&y, &nan, 1);
	if (y == y) case_fail(c, &c->variant[0], "exp(NaN) = %g", (double)y);
	run_exp(c, &nan, 1);
	case_end(c);

	/* Every stride-th bit pattern, both signs; the stride is odd, so low bits vary. */
	case_begin(c, FILL_RANDOM, "sweep");
	uint32_t stride = c->quick ? 65537 : 2053, at = 0;
	float x[RUN];
	for (bool more = true; more;) {
		int n = 0;
		for (; n < RUN && more; n++) {
			x[n] = f32_from_bits(at);
			more = at < UINT32_MAX - stride;
			at += stride;
		}
		run_exp(c, x, n);
	}
	/* All floats around both ends and around half steps of the range reduction. */
	static const float centre[] = {-87.33654f, 88.722839f, 88.37626f, -87.0f, 0.34657359f, -0.34657359f, 1.0f, -103.97f};
	for (size_t i = 0; i < sizeof centre / sizeof *centre; i++) {
		for (int j = 0; j < RUN; j++) x[j] = f32_from_bits(f32_to_bits(centre[i]) + (uint32_t)j - RUN / 2);
		run_exp(c, x, RUN);
	}
	case_end(c);
}
