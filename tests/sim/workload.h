/* workload.h: one random workload, all of it a function of its seed: sizes of the group and its KV, arrivals, shared prefixes, cancels in
 * every state, deadlines, failing ranks. Invariants are checked after every step. */
#ifndef TANDEM_TESTS_SIM_WORKLOAD_H
#define TANDEM_TESTS_SIM_WORKLOAD_H

#include "base/status.h"

/* X(name): what a run must have met at least once to mean anything. */
#define SIM_COUNT_LIST(X)                                                                                                          \
	X(steps) X(requests) X(tokens) X(refused) X(busy) X(finished) X(stopped) X(scored) X(timeouts) X(cancelled_queued)             \
	X(cancelled_running) X(cancelled_in_flight) X(cancelled_finished) X(failures) X(preemptions) X(cached_tokens) X(evictions)     \
	X(recomputed_tokens) X(youngest_waits) X(prefills_beside) X(full_queue_steps) \
	X(windowed_workloads) X(windowed_cached_tokens) X(stateful_workloads) X(snapshots) X(cut_chunks) X(tails) X(state_hits) X(snapshot_evictions)

struct sim_counts {
#define X(name) unsigned long long name;
	SIM_COUNT_LIST(X)
#undef X
};

/* Runs it for `steps` steps, then until all requests have ended; adds to `counts`. BAD_INPUT with the broken invariant. */
enum status workload_run(unsigned long long seed, int steps, struct sim_counts *counts, struct error *err) NODISCARD;

#endif
