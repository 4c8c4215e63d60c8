/* scheduler.h: which sequences run and what the next step computes. One logical scheduler for the whole group (E1); a pure host module:
 * it knows tokens, lengths and KV bookkeeping, not devices. The rules and their reasons are in docs/SCHEDULER.md; in short: arrival
 * order is the only priority, admission by current need, every decode row in every step, at least 3/4 of the other rows for the
 * oldest prefill and the rest shortest first, and where KV runs out the youngest is preempted and computed again later.
 *
 * Thread: the engine's, except scheduler_cancel, which any may call. A lock guards the map of ids alone and is held for a look-up.
 */
#ifndef TANDEM_ENGINE_SCHEDULER_H
#define TANDEM_ENGINE_SCHEDULER_H

#include "engine/kv_group.h"
#include "engine/sequence.h"
#include "engine/step.h"

struct scheduler;

struct scheduler_options {
	int max_seqs;  /* running at once: KV sequence numbers 0..max_seqs-1 */
	int max_rows;  /* of a step; at least max_seqs */
	int kv_blocks; /* of each pool */
	int block_tokens;
	int states;      /* state slots of each pool, at least two a sequence, and one more for each tail of a plan; 0: the model has no state */
	int state_every; /* tokens of a prompt between two snapshots that are kept for their own sake; 0: none are */
	int max_queue; /* sequences that may wait beyond those that free slots will take; 0: no limit */
	struct kv_group *kv; /* borrowed */
};

struct scheduler_stats {
	int running, waiting;
	uint64_t preemptions;
	uint64_t prompt_tokens;   /* of admitted sequences, each counted once */
	uint64_t cached_tokens;   /* of these, adopted from the prefix cache */
	uint64_t computed_tokens; /* rows committed, recomputation included */
	uint64_t state_hits;      /* snapshots of state that sequences went on from */
};

enum status scheduler_create(struct scheduler **out, const struct scheduler_options *options, struct error *err) NODISCARD;
void scheduler_destroy(struct scheduler **scheduler); /* and all sequences in it; KV is not touched */

/* Takes ownership of the sequence, whose id must be above all before. BUSY: the queue is full, the caller still owns it. */
enum status scheduler_submit(struct scheduler *scheduler, struct sequence *sequence, struct error *err) NODISCARD;
/* Live, whatever its state; NULL: over or never was. Engine thread. */
struct sequence *scheduler_find(struct scheduler *scheduler, uint64_t id);
/* Any thread. The sequence ends at the next sweep. False if it is over or never was. */
bool scheduler_cancel(struct scheduler *scheduler, uint64_t id);

/* Ends what is cancelled or past its deadline, in any state; its KV goes back. */
void scheduler_sweep(struct scheduler *scheduler, uint64_t now_ns);
/* The next sequence that a sweep ended, `finish` says how; the caller owns it. NULL: none. */
struct sequence *scheduler_take_ended(struct scheduler *scheduler);

/* Admits, adopts cached prefixes, preempts, then fills the plan; 0 rows if there is nothing to do. MISMATCH: see kv_group_adopt. */
enum status scheduler_plan(struct scheduler *scheduler, struct step_plan *plan, uint64_t now_ns, struct error *err) NODISCARD;
/* The step was committed on all ranks. */
void scheduler_committed(struct scheduler *scheduler, const struct step_plan *plan);
/* True if the sequence was cancelled while its step ran: it gets no token, the next sweep ends it. */
bool scheduler_dropped(struct scheduler *scheduler, const struct sequence *sequence);
/* Takes a live sequence out; its KV goes back, the caller owns it. */
void scheduler_remove(struct scheduler *scheduler, struct sequence *sequence, enum sequence_finish finish);
/* Any live sequence; NULL: none. For draining. */
struct sequence *scheduler_any(const struct scheduler *scheduler);

void scheduler_get_stats(const struct scheduler *scheduler, struct scheduler_stats *out);
/* Integrity: order, slots, lengths against the pools. BAD_INPUT with the first fault. For tests, between steps. */
enum status scheduler_check(const struct scheduler *scheduler, struct error *err) NODISCARD;

#endif
