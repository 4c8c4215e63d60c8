/* group.h: what the ranks of one tensor-parallel group share: abort state, deadlines, and the rendezvous where all meet.
 *
 * One group per life: after an abort it is dead (contract C3) and a rebuild makes a new one. First error wins, abort is
 * idempotent and wakes everyone. Every wait here ends by arrival of all ranks, by abort, or by the deadline, whichever is first; a
 * rank that misses the deadline aborts the group, naming the ranks that did not come.
 */
#ifndef TANDEM_COMM_GROUP_H
#define TANDEM_COMM_GROUP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/fault.h"
#include "base/status.h"

struct group;

#define GROUP_MAX_RANKS 64

struct group_options {
	int world_size;
	uint64_t timeout_ms; /* for each rendezvous */
	struct fault_plan *fault; /* may be NULL; borrowed */
};

enum collective_op { COLLECTIVE_BARRIER, COLLECTIVE_ALL_REDUCE, COLLECTIVE_BROADCAST };

/* What a rank says it is about to do. All ranks must say the same, or both sides fail and the group aborts with both
 * descriptors in the message (C1). */
struct collective_desc {
	uint64_t sequence;
	enum collective_op op;
	enum dtype dtype;
	int64_t count; /* elements */
	int root;      /* broadcast only, else 0 */
};

enum status group_create(struct group **out, const struct group_options *options, struct error *err) NODISCARD;
/* No rank may be inside a call. NULL is fine. */
void group_destroy(struct group **group);
int group_world_size(const struct group *group);
struct fault_plan *group_fault(const struct group *group);

/* First call wins: stores `reason` (with "rank R: " in front unless rank < 0) and wakes every waiter. Any thread. */
void group_abort(struct group *group, int rank, const struct error *reason);
bool group_aborted(const struct group *group);
/* Non-zero once aborted: for waits elsewhere (device spins, stalls). */
const _Atomic int *group_abort_flag(const struct group *group);
/* Fills err with the first error (code and text) and returns its code; OK while not aborted. */
enum status group_error(const struct group *group, struct error *err);

/* Meets all ranks. Rank r's k-th call meets the others' k-th calls. */
enum status group_meet(struct group *group, int rank, const struct collective_desc *desc, struct error *err) NODISCARD;

/* "all_reduce seq 12 F32 x 4096", for messages. */
void collective_desc_format(const struct collective_desc *desc, char *text, size_t size);

#endif
