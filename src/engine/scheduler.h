/* scheduler.h: which sequences run and what the next step computes. One logical scheduler for the whole group (E1); a pure host
 * module: it knows lengths and free blocks, not devices.
 *
 * Policy of this version: first come, first served. A sequence is admitted when a slot is free and the KV it can ever need
 * fits beside what the running ones can ever need, so that no running sequence can run out of room. A step takes one row of every
 * decoding sequence and fills the rest of the row budget with prefill chunks, oldest first.
 */
#ifndef TANDEM_ENGINE_SCHEDULER_H
#define TANDEM_ENGINE_SCHEDULER_H

#include "engine/sequence.h"
#include "engine/step.h"

struct scheduler;

struct scheduler_options {
	int max_seqs;
	int max_rows;
	int kv_blocks;
	int block_tokens;
};

enum status scheduler_create(struct scheduler **out, const struct scheduler_options *options, struct error *err) NODISCARD;
void scheduler_destroy(struct scheduler **scheduler); /* and all sequences in it */

/* Takes ownership of the sequence. */
void scheduler_submit(struct scheduler *scheduler, struct sequence *sequence);
struct sequence *scheduler_find(struct scheduler *scheduler, uint64_t id);
/* Admits what fits, then fills the plan; 0 rows if there is nothing to do. Cancelled sequences are not planned. */
void scheduler_plan(struct scheduler *scheduler, struct step_plan *plan);
/* The step was committed on all ranks. */
void scheduler_committed(struct scheduler *scheduler, const struct step_plan *plan);
/* Takes a finished (or cancelled) sequence out; its slot is free again. The caller releases KV and destroys the sequence. */
void scheduler_remove(struct scheduler *scheduler, struct sequence *sequence);
/* Any sequence that is cancelled, or (all) any at all: for draining. NULL: none. */
struct sequence *scheduler_next_cancelled(struct scheduler *scheduler, bool all);

#endif
