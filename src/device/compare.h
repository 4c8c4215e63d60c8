/* compare.h: what an op left in a matrix, in numbers, for measuring (device_ops.compare). Plain data; valid C17 and C++17. */
#ifndef TANDEM_DEVICE_COMPARE_H
#define TANDEM_DEVICE_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* A value whose bits are `unwritten` counts as one that nobody has written. */
struct compare_args {
	enum dtype dtype;  /* plain */
	const void *a, *b; /* device memory: the matrix, and what it is compared with or NULL */
	int64_t rows, cols, stride; /* of both; the stride in elements */
	uint32_t unwritten;
	bool sparse; /* only some of it is written: where b (or, without one, a itself) is unwritten, there is no value */
	uint64_t deadline_ns;
};
struct compare_result {
	int64_t values, unwritten;
	int64_t outside;   /* sparse: places that a has written and b has not */
	int64_t different; /* values whose bits are not b's */
	/* Of the values that are written, b the reference (without one: a itself): sums of (a - b)^2 and b^2, largest |a - b| (NaN if one is) and |b|. */
	double diff2, ref2, most_diff, most;
	uint64_t hash; /* the sum over all places i = row * cols + column of rng_mix(i * 2^32 + bits), whatever is written there */
};

#endif
