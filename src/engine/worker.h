/* worker.h: the thread that drives one rank. It waits for commands with rising generations, runs one at a time, reports.
 *
 * Hand-over: the coordinator writes the command and bumps `command`; from then until the worker stores `finished` the rank belongs to
 * the worker, otherwise to the coordinator. A command with a generation that does not follow the last one is refused. A worker
 * that fails aborts the group first, so that no peer waits for it, then reports; one that is lost (fault kind exit) says nothing.
 */
#ifndef TANDEM_ENGINE_WORKER_H
#define TANDEM_ENGINE_WORKER_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/wait.h"
#include "engine/rank.h"

enum worker_command {
	WORKER_OPEN, /* device, stream, comm, weights, KV: ends with the group's readiness barrier */
	WORKER_STEP, /* the plan, logits of its outputs included */
	WORKER_HEAD, /* logits of rows [head_first, head_first + head_count) of the step just run */
	WORKER_MEASURE, /* the step just run, again, on the devices alone: KV and results stay what they are */
	WORKER_REJOIN, /* a new group on the same device and weights */
	WORKER_STOP  /* leave; the thread ends */
};

struct worker {
	struct rank rank;
	pthread_t thread;
	bool started; /* thread exists and was not joined */
	bool lost;    /* ended without a report */
	struct wait_word command;
	struct wait_word *done; /* the coordinator's: bumped after each report */
	enum worker_command what;
	uint64_t generation; /* of the command */
	uint64_t accepted;   /* generation that the thread starts after */
	const struct step_plan *plan;
	int head_first, head_count;
	int repeats;      /* of a measurement: replays between two marks; 0: once, eagerly, with a mark behind every op */
	struct device_options device_options;
	const struct device_ops *device_ops;
	struct comm_options comm_options;
	struct stream_options stream_options;
	uint64_t spin_ns;    /* how long an idle worker looks for the next command before it sleeps */
	uint64_t need_bytes; /* weights, KV, scratch and workspace of this rank, planned; the stream has its own already */
	_Atomic uint64_t finished; /* generation of the last report */
	_Atomic(const char *) doing; /* static text: what of its command it is in, for messages */
	bool busy_device;          /* after a failure: its stream did not run dry, so nothing on the device may be freed */
	uint64_t moves_seen;       /* the coordinator's notes for onlookers: the heartbeat, and when it was seen to move */
	_Atomic uint64_t moved_ns;
	enum status status;        /* of that report */
	struct error error;
};

/* Starts the thread; everything but thread state must be filled. */
enum status worker_start(struct worker *worker, struct error *err) NODISCARD;
/* Gives a command; the worker must have finished the one before. */
void worker_command(struct worker *worker, enum worker_command what, uint64_t generation);
static inline bool worker_finished(const struct worker *worker)
{
	return worker->lost || atomic_load_explicit(&worker->finished, memory_order_acquire) == worker->generation;
}
/* Whether its device is being opened, which the device's driver may take long over where others do the same. */
bool worker_is_opening(const struct worker *worker);
/* True if the thread has ended (and is joined now) without a report of its command; waits at most until the deadline. */
bool worker_check_lost(struct worker *worker, uint64_t deadline_ns);

#endif
