#include "common/fill.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

const char *fill_name(enum fill fill)
{
	static const char *const names[] = {"random", "extreme", "zero", "denormal", "special"};
	return names[fill];
}

static float fill_value(enum fill fill, uint64_t seed, uint64_t stream, uint64_t i)
{
	uint64_t bits = rng_u64(seed, stream, i);
	float uniform = (float)(rng_unit(seed, stream, i) * 2 - 1);
	switch (fill) {
	case FILL_EXTREME: return f32_from_bits((uint32_t)bits & ((uint32_t)(bits >> 40) % 255 << 23 | 0x807fffffu)); /* exponent <= 254 */
	case FILL_ZERO: return bits & 1 ? 0.0f : -0.0f;
	case FILL_DENORMAL: return f32_from_bits((uint32_t)bits & 0x81ffffffu);
	case FILL_SPECIAL:
		if ((bits >> 32) % 61 == 0) return bits & 1 ? INFINITY : -INFINITY;
		if ((bits >> 32) % 61 == 1) return NAN;
		return uniform;
	case FILL_RANDOM:
	case FILL_COUNT: break;
	}
	return uniform;
}

/* Round to nearest; enough for test weights. */
static uint16_t f16_from_f32(float value)
{
	uint32_t bits = f32_to_bits(value), sign = bits >> 16 & 0x8000;
	float magnitude = fabsf(value);
	if (value != value) return (uint16_t)(sign | 0x7e00);
	if (magnitude >= 65520.0f) return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x1p-14f) return (uint16_t)(sign | (uint32_t)lrintf(magnitude * 0x1p24f));
	uint32_t m = f32_to_bits(magnitude) + 0xfff + (f32_to_bits(magnitude) >> 13 & 1);
	return (uint16_t)(sign | ((m >> 13) - (112 << 10)));
}

void fill_with(void *out, enum dtype dtype, size_t n, enum fill fill, uint64_t seed, uint64_t stream)
{
	if (!dtype_is_plain(dtype)) blocks_fill(out, dtype, n, fill, seed, stream);
	for (size_t i = 0; dtype_is_plain(dtype) && i < n; i++) {
		float value = fill_value(fill, seed, stream, i);
		if (dtype == DTYPE_F32) memcpy((char *)out + i * 4, &value, 4);
		else {
			uint16_t half = dtype == DTYPE_BF16 ? bf16_from_f32(value) : f16_from_f32(value);
			/* subnormals of the type itself, not those that f32 rounds away */
			if (dtype == DTYPE_F16 && fill == FILL_DENORMAL) half = (uint16_t)(rng_u64(seed, stream, i) & 0x87ff);
			memcpy((char *)out + i * 2, &half, 2);
		}
	}
}

double element(const void *data, enum dtype dtype, size_t i)
{
	if (!dtype_is_plain(dtype)) return (double)blocks_value(data, dtype, i);
	return (double)dtype_load(dtype, (const char *)data + i * dtype_bytes(dtype));
}

void set_element(void *data, enum dtype dtype, size_t i, double value)
{
	float single = (float)value;
	uint16_t half = dtype == DTYPE_F16 ? f16_from_f32(single) : bf16_from_f32(single);
	if (dtype == DTYPE_F32) memcpy((char *)data + i * 4, &single, 4);
	else memcpy((char *)data + i * 2, &half, 2);
}
