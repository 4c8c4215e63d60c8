/* blocks.c: weights of block types as a checkpoint stores them: random ones, and what they are worth. Written from the format, not from
 * the code under check: the arithmetic is that of the reference (products and one sum in f32), the places are those of the stored block. */
#include <string.h>

#include "base/rng.h"
#include "common/fill.h"

static uint16_t scale_bits(enum fill fill, uint64_t bits)
{
	uint16_t sign = bits >> 20 & 0x8000, mantissa = bits & 0x3ff;
	switch (fill) {
	case FILL_ZERO: return sign;
	case FILL_DENORMAL: return (uint16_t)(sign | mantissa);
	case FILL_EXTREME: return (uint16_t)((bits & 0x7c00) == 0x7c00 ? sign | mantissa : bits & 0xffff); /* any but inf and NaN */
	case FILL_SPECIAL:
		if ((bits >> 40) % 16 == 0) return (uint16_t)(bits & 1 ? sign | 0x7c00 : 0x7e00);
		break;
	default: break;
	}
	return (uint16_t)(sign | 0x1c00 | (bits >> 10 & 0x0c00) | mantissa); /* 2^-8 .. 2^-5 */
}

static void put_scale(uint8_t *at, enum fill fill, uint64_t bits)
{
	uint16_t scale = scale_bits(fill, bits);
	memcpy(at, &scale, 2);
}

void blocks_fill(void *out, enum dtype dtype, size_t n, enum fill fill, uint64_t seed, uint64_t stream)
{
	size_t block = dtype_size(dtype, (size_t)dtype_block(dtype));
	uint8_t *at = out;
	for (size_t b = 0; b < n / (size_t)dtype_block(dtype); b++, at += block) {
		for (size_t i = 0; i < block; i++) at[i] = (uint8_t)rng_u64(seed, stream, b * 1024 + i);
		uint64_t one = rng_u64(seed, stream, b * 1024 + 1000), two = rng_u64(seed, stream, b * 1024 + 1001);
		put_scale(dtype == DTYPE_Q6_K ? at + 208 : at, fill, one);
		if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K) put_scale(at + 2, fill, two);
	}
}

static float f16_at(const uint8_t *p)
{
	uint16_t bits;
	memcpy(&bits, p, 2);
	return f16_to_f32(bits);
}

/* As ggml's get_scale_min_k4. */
static void scale_min(const uint8_t *s, int i, int *scale, int *min)
{
	*scale = i < 4 ? s[i] & 63 : (s[i + 4] & 0xf) | (s[i - 4] >> 6 << 4);
	*min = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | (s[i] >> 6 << 4);
}

float blocks_value(const void *data, enum dtype dtype, size_t i)
{
	const uint8_t *b = (const uint8_t *)data + dtype_size(dtype, i - i % (size_t)dtype_block(dtype));
	int k = (int)(i % (size_t)dtype_block(dtype)), shift = k / 16 * 4, j = k % 16, scale, min, q;
	float d = f16_at(b), m = f16_at(b + 2);
	switch (dtype) {
	case DTYPE_Q8_0: return d * (float)(int8_t)b[2 + k];
	case DTYPE_Q4_0: return d * (float)((b[2 + j] >> shift & 15) - 8);
	case DTYPE_Q4_1: return d * (float)(b[4 + j] >> shift & 15) + m;
	case DTYPE_Q5_0: return d * (float)(((b[6 + j] >> shift & 15) | (b[2 + k / 8] >> k % 8 & 1) << 4) - 16);
	case DTYPE_Q5_1: return d * (float)((b[8 + j] >> shift & 15) | (b[4 + k / 8] >> k % 8 & 1) << 4) + m;
	case DTYPE_Q4_K:
		scale_min(b + 4, k / 32, &scale, &min);
		q = b[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15;
		return d * (float)scale * (float)q - m * (float)min;
	case DTYPE_Q5_K:
		scale_min(b + 4, k / 32, &scale, &min);
		q = (b[48 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15) | (b[16 + k % 32] >> k / 32 & 1) << 4;
		return d * (float)scale * (float)q - m * (float)min;
	case DTYPE_Q6_K: {
		int half = k / 128, part = k % 128 / 32, column = k % 32;
		q = (b[64 * half + 32 * (part % 2) + column] >> (part / 2 * 4) & 15) | (b[128 + 32 * half + column] >> (2 * part) & 3) << 4;
		return f16_at(b + 208) * (float)(int8_t)b[192 + k / 16] * (float)(q - 32);
	}
	default: return 0;
	}
}
