/* fill.h: made-up inputs of tests, functions of (seed, stream, element). */
#ifndef TANDEM_TESTS_COMMON_FILL_H
#define TANDEM_TESTS_COMMON_FILL_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"

enum fill {
	FILL_RANDOM,   /* uniform in (-1, 1) */
	FILL_EXTREME,  /* any finite bit pattern */
	FILL_ZERO,     /* +0 and -0 */
	FILL_DENORMAL, /* subnormal and just above */
	FILL_SPECIAL,  /* random with some inf and NaN */
	FILL_COUNT
};
const char *fill_name(enum fill fill);
/* n elements of `dtype` (whole blocks) at `out`; stream tells the tensors of a case apart. */
void fill_with(void *out, enum dtype dtype, size_t n, enum fill fill, uint64_t seed, uint64_t stream);
double element(const void *data, enum dtype dtype, size_t i); /* widened */
void set_element(void *data, enum dtype dtype, size_t i, double value); /* plain types; rounded to nearest even */
/* The same for block types (blocks.c). */
void blocks_fill(void *out, enum dtype dtype, size_t n, enum fill fill, uint64_t seed, uint64_t stream);
float blocks_value(const void *data, enum dtype dtype, size_t i);

#endif
