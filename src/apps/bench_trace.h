/* bench_trace.h: where the time of the step just run goes, op by op: summed by kind, and as a file for a trace viewer. */
#ifndef TANDEM_APPS_BENCH_TRACE_H
#define TANDEM_APPS_BENCH_TRACE_H

#include <jansson.h>

#include "base/buf.h"
#include "tandem.h"

/* X(enumerator, name) */
#define BENCH_PART_LIST(X)        \
	X(GEMM, "gemm")               \
	X(ATTENTION, "attention")     \
	X(GDN, "gdn")                 \
	X(EXPERTS, "experts")         \
	X(ALL_REDUCE, "all_reduce")   \
	X(HEAD, "head")               \
	X(OTHER, "other")

enum bench_part {
#define X(code, name) BENCH_##code,
	BENCH_PART_LIST(X)
#undef X
		BENCH_PART_COUNT
};

/* Of the rank that took longest in all. A sum over ops that run one behind the other, each with its own launch: more than a recorded step takes. */
struct bench_split {
	double us[BENCH_PART_COUNT];
};

/* path: where to write the trace of all ranks; NULL: nowhere. */
enum status bench_trace(struct tandem *engine, int ranks, const char *path, struct bench_split *out, struct error *err) NODISCARD;
json_t *bench_split_json(const struct bench_split *split);
enum status bench_split_text(const struct bench_split *split, const char *what, struct buf *out, struct error *err) NODISCARD;

#endif
