/* check.h: checker and benchmark of device ops, one binary (after dav1d's checkasm).
 *
 * The C kernels with one thread define the bits. A case makes its inputs from a printed seed, runs that variant, compares it with a
 * double-precision oracle under a written bound, then runs every other variant (instruction set x threads) into poisoned
 * memory and compares bit by bit; only NaN equals any NaN. Every tensor lies between a canary and an inaccessible page, so a write
 * before it fails the case and any access behind it ends the run at the place.
 *
 * Each op of OP_LIST has a `check_OP` (the link fails without) that must compare something (the run fails otherwise).
 */
#ifndef TANDEM_TESTS_CHECK_CHECK_H
#define TANDEM_TESTS_CHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/fill.h"
#include "device/device.h"

/* --- memory between guards */
struct guarded {
	void *data;   /* its end is the end of a page, the next page is inaccessible */
	size_t bytes;
	void *map;
	size_t map_bytes;
};
struct guarded guarded_alloc(size_t bytes);
void guarded_free(struct guarded *g);
bool guarded_intact(const struct guarded *g); /* canary before the data */
void guarded_poison(struct guarded *g);       /* all bytes 0xff: NaN in every float type */

/* --- variants of an op: opened devices that run it */
struct runner {
	const char *isa;
	int threads;
	struct device *device;
	struct stream *stream;
};

#define CHECK_MAX_VARIANTS 16

struct check {
	uint64_t seed;
	const char *op;  /* under check */
	char shape[160]; /* of the current case */
	enum fill fill;
	struct runner variant[CHECK_MAX_VARIANTS]; /* [0]: c, one thread: the reference */
	int variants;
	int passed, failed; /* cases */
	bool case_failed;
	long compared;      /* comparisons of the current op */
	uint64_t hash;      /* of the reference's results of the current op, random fill only */
	bool quick;         /* sanitizer runs: fewer of the large shapes */
	/* --bench */
	double read_gbps, fma_gflops; /* this machine's peaks with all threads */
};

/* Names the case for messages; resets case_failed. */
void case_begin(struct check *c, enum fill fill, const char *shape, ...) __attribute__((format(printf, 3, 4)));
/* Counts it. */
void case_end(struct check *c);
void case_fail(struct check *c, const struct runner *v, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The reference's result of the current case. What all cases of an op give together is recorded in check.c: a change there is a change of the
 * definition, which no comparison of implementations would see. */
void reference_bits(struct check *c, const float *data, size_t n);
/* `got` against the reference's bits. what: which output. */
void compare_bits(struct check *c, const struct runner *v, const char *what, const float *got, const float *want, size_t n);
/* |got - want| <= bound, element by element, with want and bound from the oracle. NaN in `want` is skipped. */
void compare_bound(struct check *c, const char *what, const float *got, const double *want, const double *bound, size_t n);
/* OK and intact guards, else the case fails. */
void expect_ok(struct check *c, const struct runner *v, enum status st, const struct error *err);
void expect_intact(struct check *c, const struct runner *v, const struct guarded *g, const char *what);

/* Weights of one linear behind guards, filled through linear_put. `source` keeps the rows [n][k] as in a checkpoint. */
struct test_weight {
	struct linear_weight w;
	struct guarded panels, source;
};
struct test_weight test_weight_make(struct check *c, enum dtype dtype, int n, int k, uint64_t stream);
void test_weight_free(struct test_weight *t);

#define X(op) void check_##op(struct check *c);
OP_LIST(X)
X(exp)
OP_FAMILY_LIST(X)
#undef X

/* --- bench */
struct bench_timer {
	double best_s, median_s;
};
/* Runs fn(context) until about 0.3 s are spent, at least 5 times. */
struct bench_timer bench_run(void (*fn)(void *), void *context);
void bench_linear(struct check *c);
void bench_attention(struct check *c);
void bench_rows(struct check *c);
void bench_gdn(struct check *c);

#endif
