/* bench_steps.h: steps of one kind in a throughput run: how many, how long, and where each rank's time of them went. */
#ifndef TANDEM_APPS_BENCH_STEPS_H
#define TANDEM_APPS_BENCH_STEPS_H

#include <jansson.h>

#include "base/buf.h"
#include "model/shard.h"
#include "tandem.h"

struct bench_phases {
	uint64_t ns[SHARD_MAX_WORLD][TANDEM_PHASES];
};

struct bench_steps {
	int steps;
	double ms, most_ms; /* all together, the longest */
	struct bench_phases phases;
};

/* All ranks' phases so far. */
void bench_phases_get(struct bench_phases *out, const struct tandem *engine, int ranks);
/* One step more, of `ms`, with the phases before it and after it. */
void bench_steps_add(struct bench_steps *steps, double ms, const struct bench_phases *before, const struct bench_phases *after);
/* Mean, in ms. */
double bench_steps_mean(const struct bench_steps *steps);
/* [rank] {phase: mean microseconds} */
json_t *bench_steps_json(const struct bench_steps *steps, int ranks);
/* A line for each rank, if there were steps. */
enum status bench_steps_text(const struct bench_steps *steps, const char *what, int ranks, struct buf *out, struct error *err) NODISCARD;

#endif
