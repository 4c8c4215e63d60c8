/* exp.h: the one exponential of the CPU back end (contract C6). The vector kernels do the same operations in the same order.
 *
 *     t = fma(x, log2 e, 3 * 2^22)       the sum's low bits are n = round(x log2 e)
 *     r = x - n ln 2                     two fma with a split constant; |r| <= 0.3466
 *     p = 1 + (r + r^2 q(r))             q of degree 5: Cephes expf coefficients
 *     exp(x) = p * 2^n                   n added to p's exponent field
 *
 * x < EXP_LOW gives +0: results below 2^-126 would be subnormal; cutting them off keeps the scaling one integer add and the
 * subnormals out of what follows, for an error below 1.2e-38. x > EXP_HIGH gives +inf. Between the two p is on the right side of
 * 1 at both ends, so the exponent field never wraps. NaN gives NaN. Error: at most 1.1 ulp over all floats (tests/check, op exp).
 */
#ifndef TANDEM_DEVICE_CPU_EXP_H
#define TANDEM_DEVICE_CPU_EXP_H

#include <math.h>

#include "base/dtype.h"

#define EXP_LOW -0x1.5d589ep+6f /* smallest float >= -126 ln 2 */
#define EXP_HIGH 0x1.62e42ep+6f /* largest float <= 128 ln 2 */
#define EXP_LOG2E 0x1.715476p+0f
#define EXP_MAGIC 0x1.8p+23f
#define EXP_LN2_HIGH 0x1.62e400p-1f /* 15 bits: n * it is exact */
#define EXP_LN2_LOW 0x1.7f7d1cp-20f
#define EXP_C7 1.9875691500e-4f
#define EXP_C6 1.3981999507e-3f
#define EXP_C5 8.3334519073e-3f
#define EXP_C4 4.1665795894e-2f
#define EXP_C3 1.6666665459e-1f
#define EXP_C2 5.0000001201e-1f

static inline float exp_f32(float x)
{
	if (x < EXP_LOW) return 0.0f;
	if (x > EXP_HIGH) return HUGE_VALF;
	if (x != x) return x;
	float t = fmaf(x, EXP_LOG2E, EXP_MAGIC);
	float n = t - EXP_MAGIC;
	float r = fmaf(n, -EXP_LN2_HIGH, x);
	r = fmaf(n, -EXP_LN2_LOW, r);
	float q = fmaf(EXP_C7, r, EXP_C6);
	q = fmaf(q, r, EXP_C5);
	q = fmaf(q, r, EXP_C4);
	q = fmaf(q, r, EXP_C3);
	q = fmaf(q, r, EXP_C2);
	float p = fmaf(q, r * r, r) + 1.0f;
	return f32_from_bits(f32_to_bits(p) + (f32_to_bits(t) << 23));
}

/* tanh(x), z = x^2:  |x| < TANH_SMALL  x + x z p(z), p of degree 4: Cephes tanhf coefficients
 *                    else              sign(x) (1 - 2 / (exp(2|x|) + 1))
 * NaN gives NaN. Error: at most 2 ulp (tests/check, op softcap). */
#define TANH_SMALL 0.625f
#define TANH_C4 -5.70498872745e-3f
#define TANH_C3 2.06390887954e-2f
#define TANH_C2 -5.37397155531e-2f
#define TANH_C1 1.33314422036e-1f
#define TANH_C0 -3.33332819422e-1f

static inline float tanh_f32(float x)
{
	float size = x > -x ? x : -x, z = x * x;
	float p = fmaf(TANH_C4, z, TANH_C3);
	p = fmaf(p, z, TANH_C2);
	p = fmaf(p, z, TANH_C1);
	p = fmaf(p, z, TANH_C0);
	if (size < TANH_SMALL) return fmaf(p * z, x, x);
	float far = 1.0f - 2.0f / (exp_f32(size + size) + 1.0f);
	return x < 0.0f ? -far : far;
}

/* gelu(g), tanh form: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), so that nothing cancels. */
#define GELU_ROOT 0x1.988454p+0f /* 2 sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

static inline float gelu_f32(float g)
{
	float u = GELU_ROOT * fmaf(GELU_CUBE * g, g * g, g);
	return g / (1.0f + exp_f32(-u));
}

/* softplus(x) = log(1 + exp(x)) = max(x, 0) + log(1 + y), y = exp(-|x|) in [0, 1], and
 *
 *     log(1 + y) = 2 atanh(s) = 2 s (1 + s^2 / 3 + s^4 / 5 + ... + s^14 / 15),  s = y / (2 + y) <= 1/3
 *
 * What is cut off is below 2^-29 of the result. Error: at most 3 ulp where the result is a normal number (tests/check, op exp). */
#define LOG1P_C15 0x1.111112p-4f
#define LOG1P_C13 0x1.3b13b2p-4f
#define LOG1P_C11 0x1.745d18p-4f
#define LOG1P_C9 0x1.c71c72p-4f
#define LOG1P_C7 0x1.24924ap-3f
#define LOG1P_C5 0x1.99999ap-3f
#define LOG1P_C3 0x1.555556p-2f

static inline float softplus_f32(float x)
{
	float y = exp_f32(-(x > -x ? x : -x));
	float s = y / (2.0f + y), z = s * s, twice = s + s;
	float q = fmaf(LOG1P_C15, z, LOG1P_C13);
	q = fmaf(q, z, LOG1P_C11);
	q = fmaf(q, z, LOG1P_C9);
	q = fmaf(q, z, LOG1P_C7);
	q = fmaf(q, z, LOG1P_C5);
	q = fmaf(q, z, LOG1P_C3);
	return (x > 0.0f ? x : 0.0f) + fmaf(twice * z, q, twice);
}

#endif
