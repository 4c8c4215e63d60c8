/* dtype.h: element types of checkpoints and tensors, and the exact scalar conversions that define them.
 *
 * Plain types have one number an element. Block types are weights only: `elements` consecutive inputs of one output share `bytes` bytes,
 * and nothing smaller than a block can be cut out, so sizes go through dtype_size. Names and layouts are those of the GGUF format.
 */
#ifndef TANDEM_BASE_DTYPE_H
#define TANDEM_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* X(name, elements of a block, bytes of a block); plain types first. */
#define DTYPE_LIST(X)  \
	X(F32, 1, 4)       \
	X(F16, 1, 2)       \
	X(BF16, 1, 2)      \
	X(Q8_0, 32, 34)    \
	X(Q4_0, 32, 18)    \
	X(Q4_1, 32, 20)    \
	X(Q5_0, 32, 22)    \
	X(Q5_1, 32, 24)    \
	X(Q4_K, 256, 144)  \
	X(Q5_K, 256, 176)  \
	X(Q6_K, 256, 210)

enum dtype {
#define X(name, elements, bytes) DTYPE_##name,
	DTYPE_LIST(X)
#undef X
	DTYPE_COUNT
};
#define DTYPE_PLAIN_COUNT 3

static inline bool dtype_is_plain(enum dtype t)
{
	return (unsigned)t < DTYPE_PLAIN_COUNT;
}

/* Of an element of a plain type. */
static inline size_t dtype_bytes(enum dtype t)
{
	return t == DTYPE_F32 ? 4 : 2;
}

/* Elements that only go together: 1 for a plain type. */
static inline int dtype_block(enum dtype t)
{
	static const int elements[] = {
#define X(name, elements, bytes) elements,
		DTYPE_LIST(X)
#undef X
	};
	return (unsigned)t < DTYPE_COUNT ? elements[t] : 1;
}

/* Bytes of n elements, n a multiple of the block. Does not check for overflow: n is bounded where it is read. */
static inline size_t dtype_size(enum dtype t, size_t n)
{
	static const size_t bytes[] = {
#define X(name, elements, bytes) bytes,
		DTYPE_LIST(X)
#undef X
	};
	return (unsigned)t < DTYPE_COUNT ? n / (size_t)dtype_block(t) * bytes[t] : 0;
}

static inline const char *dtype_name(enum dtype t)
{
	static const char *const names[] = {
#define X(name, elements, bytes) #name,
		DTYPE_LIST(X)
#undef X
	};
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

/* The value of a plain type at `at`, any alignment. Exact. */
static inline float dtype_load(enum dtype t, const void *at)
{
	uint16_t half;
	float value;
	if (t == DTYPE_F32) {
		memcpy(&value, at, sizeof value);
		return value;
	}
	memcpy(&half, at, sizeof half);
	return t == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

#endif
