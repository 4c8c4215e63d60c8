/* dtype.h: element types of checkpoints and tensors, and the exact scalar conversions that define them. */
#ifndef TANDEM_BASE_DTYPE_H
#define TANDEM_BASE_DTYPE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_COUNT };

static inline size_t dtype_bytes(enum dtype t)
{
	return t == DTYPE_F32 ? 4 : 2;
}

static inline const char *dtype_name(enum dtype t)
{
	static const char *const names[] = {"F32", "F16", "BF16"};
	return (unsigned)t < DTYPE_COUNT ? names[t] : "?";
}

static inline float f32_from_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static inline uint32_t f32_to_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

/* Exact. */
static inline float bf16_to_f32(uint16_t bits)
{
	return f32_from_bits((uint32_t)bits << 16);
}

/* Round to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float value)
{
	uint32_t bits = f32_to_bits(value);
	if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
	return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

/* Exact, subnormals included. A signalling NaN comes out quiet, as the vector instruction gives it. */
static inline float f16_to_f32(uint16_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, mantissa = bits & 1023;
	if (exponent == 31) return f32_from_bits(sign | 0x7f800000u | (mantissa ? 0x400000u | mantissa << 13 : 0));
	if (exponent) return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
	float value = (float)mantissa * 0x1p-24f;
	return f32_from_bits(sign | f32_to_bits(value));
}

#endif
