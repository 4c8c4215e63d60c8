/* coordinator.h: drives the ranks of one group through steps (contracts E2, E7, C3). Owner: the thread that calls the engine.
 *
 * A step is published to every worker with one generation; when all have reported success its KV is committed on every rank, else
 * rolled back on every rank and the group is dead until coordinator_rebuild. Waiting for workers always ends: a worker that makes no
 * progress (heartbeat) for the timeout, or whose thread is gone, aborts the group; so does an interrupt.
 */
#ifndef TANDEM_ENGINE_COORDINATOR_H
#define TANDEM_ENGINE_COORDINATOR_H

#include "engine/kv_group.h"
#include "engine/worker.h"

struct coordinator;

struct coordinator_options {
	const struct model *model;
	const struct device_ops *ops;
	int world_size;
	int threads;         /* 0: all that the process may use */
	const int *ordinals; /* or NULL */
	const char *isa;
	struct rank_options rank;
	uint64_t kv_shuffle; /* 0: none; else each rank gets its own permutation */
	uint64_t timeout_ms;
	struct fault_plan *fault; /* borrowed; may be NULL */
	const struct log *log;
	const _Atomic int *interrupt; /* non-zero: stop soon with CANCELLED */
	void (*progress)(void *context, uint64_t done_bytes); /* may be NULL; while opening */
	void *progress_context;
};

/* Opens every rank and loads weights; returns when all are ready. *out is to be closed, on failure too, where it may be NULL. */
enum status coordinator_open(struct coordinator **out, const struct coordinator_options *options, struct error *err) NODISCARD;
/* Idempotent, bounded in time. False: a rank did not come back from its device, or its device is still busy; then all that it may touch, which is what the options
 * point to as well, is left as it is. */
bool coordinator_close(struct coordinator **coordinator) NODISCARD;

/* Runs the plan on all ranks and commits its KV. On failure KV is rolled back and the group is dead. */
enum status coordinator_step(struct coordinator *coordinator, const struct step_plan *plan, struct error *err) NODISCARD;
/* Logits of `count` rows of the step just run, from `first` on, into the first rows of coordinator_logits. */
enum status coordinator_head(struct coordinator *coordinator, int first, int count, struct error *err) NODISCARD;
/* [max_outputs][V]: what the last step with RESULT_LOGITS, or coordinator_head, gave. May be written. */
float *coordinator_logits(struct coordinator *coordinator);
/* The likeliest token of output `output` of the last step, which had RESULT_BEST. DEVICE_FAULT if its logits hold NaN or infinity. */
enum status coordinator_best(const struct coordinator *coordinator, int output, int32_t *token, struct error *err) NODISCARD;
/* What the device's sampler reads, for device_sampler_create; NULL: the devices do not sample. */
void *coordinator_sample_memory(struct coordinator *coordinator);
/* Of output `output` of the last step, which had RESULT_SAMPLED. */
const struct sample_choice *coordinator_sampled(const struct coordinator *coordinator, int output);
/* Runs the step just run once more on the devices alone, traced; or, repeats > 0, its recorded form so often: UNSUPPORTED if there is none.
 * Results are in each rank's trace. Nothing may have been done between that step and this. */
enum status coordinator_measure(struct coordinator *coordinator, int repeats, struct error *err) NODISCARD;
void coordinator_abort(struct coordinator *coordinator, const struct error *reason);
bool coordinator_dead(const struct coordinator *coordinator);
/* A new group on the same devices and weights; all sequences' KV is dropped. DEVICE_FAULT if a device did not come back. */
enum status coordinator_rebuild(struct coordinator *coordinator, struct error *err) NODISCARD;

/* The pools of all ranks, for between steps; lives as long as the coordinator. Empty once a rank is stuck. */
struct kv_group *coordinator_kv(struct coordinator *coordinator);

/* What can be seen of a rank from outside, also during a step. */
struct rank_health {
	uint64_t commands;  /* that it has finished */
	uint64_t moves;     /* heartbeat */
	uint64_t silent_ms; /* in a command: since the heartbeat was last seen to move (looked at every 20 ms); else 0 */
};
/* Any thread, while the coordinator is open. Returns whether the group can run steps. */
bool coordinator_health(const struct coordinator *coordinator, int rank, struct rank_health *out);
const struct rank *coordinator_rank(const struct coordinator *coordinator, int rank);
/* Time of all steps so far in the phases that ranks and coordinator know, the others 0. Between steps. */
void coordinator_phases(const struct coordinator *coordinator, int rank, uint64_t ns[TANDEM_PHASES]);
int coordinator_threads(const struct coordinator *coordinator);
/* All-reduces of rank 0 so far. */
uint64_t coordinator_all_reduces(const struct coordinator *coordinator);

#endif
