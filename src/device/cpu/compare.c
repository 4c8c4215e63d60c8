/* compare.c: what an op left in a matrix (struct compare_args). */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "device/cpu/cpu.h"

static uint32_t bits_at(enum dtype dtype, const void *data, int64_t i)
{
	uint32_t word;
	uint16_t half;
	if (dtype == DTYPE_F32) {
		memcpy(&word, (const char *)data + 4 * i, 4);
		return word;
	}
	memcpy(&half, (const char *)data + 2 * i, 2);
	return half;
}

static double value_of(enum dtype dtype, uint32_t bits)
{
	if (dtype == DTYPE_F32) return f32_from_bits(bits);
	return dtype == DTYPE_BF16 ? bf16_to_f32((uint16_t)bits) : f16_to_f32((uint16_t)bits);
}

static void look_at(const struct compare_args *c, int64_t i, struct compare_result *out)
{
	const uint32_t a = bits_at(c->dtype, c->a, i), b = c->b ? bits_at(c->dtype, c->b, i) : a;
	if (c->sparse && b == c->unwritten) {
		out->outside += a != b;
		return;
	}
	out->values++;
	out->different += a != b;
	out->unwritten += a == c->unwritten;
	if (a == c->unwritten) return;
	const double reference = value_of(c->dtype, b), difference = fabs(value_of(c->dtype, a) - reference);
	out->diff2 += difference * difference;
	out->ref2 += reference * reference;
	if (!isnan(out->most_diff) && !(difference <= out->most_diff)) out->most_diff = difference;
	if (fabs(reference) > out->most) out->most = fabs(reference);
}

enum status cpu_compare(struct stream *stream, const struct compare_args *args, struct compare_result *out, struct error *err)
{
	(void)stream;
	if (!dtype_is_plain(args->dtype)) return FAIL(err, UNSUPPORTED, "compare: values of type %s; plain types are supported", dtype_name(args->dtype));
	*out = (struct compare_result){0};
	for (int64_t row = 0; row < args->rows; row++)
		for (int64_t col = 0; col < args->cols; col++) {
			const int64_t at = row * args->stride + col;
			out->hash += rng_mix((uint64_t)(row * args->cols + col) << 32 | bits_at(args->dtype, args->a, at));
			look_at(args, at, out);
		}
	return STATUS_OK;
}
