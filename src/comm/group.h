/* group.h: what the ranks of one tensor-parallel group share: abort state, deadlines, and the rendezvous where all meet.
 *
 * One group per life: after an abort it is dead (contract C3) and a rebuild makes a new one. First error wins, abort is
 * idempotent and wakes everyone. Every wait here ends by arrival of all ranks, by abort, or by the deadline, whichever is first; a
 * rank whose wait passes the deadline aborts the group, naming the ranks that did not come.
 *
 * An abort does not stop a rank that runs: one rank may leave a meeting with the error while another was just released from the same
 * meeting and works on; it learns of the abort at its next call. So what the ranks share (scratch, the group itself) is destroyed
 * only after every rank's worker has been joined, on failure as on success.
 *
 * Injected faults (base/fault.h). group_meet visits two points with desc->sequence: BARRIER on entry, before the others can see this
 * rank, and READY after all have met, before the caller uses what the meeting made safe. Kinds error and oom abort the group; stall
 * sleeps until the abort at most; exit returns RANK_LOST and aborts nothing: a dead rank says nothing, the others must find out by
 * their deadline.
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
#define GROUP_EXCHANGE_BYTES 128
#define GROUP_MAX_WATCHES GROUP_MAX_RANKS

struct group_options {
	int world_size;
	uint64_t timeout_ms; /* for each rendezvous, from this rank's arrival; at least 1 */
	uint64_t first_timeout_ms; /* for a rank's first one, where others may still open their devices; 0: as the others */
	struct fault_plan *fault; /* may be NULL; borrowed */
};

/* X(enumerator, name). SETUP: an exchange of addresses when a comm is made. */
#define COLLECTIVE_LIST(X)        \
	X(BARRIER, "barrier")         \
	X(ALL_REDUCE, "all_reduce")   \
	X(BROADCAST, "broadcast")     \
	X(SETUP, "setup")

enum collective_op {
#define X(code, name) COLLECTIVE_##code,
	COLLECTIVE_LIST(X)
#undef X
};

/* What a rank says it is about to do. All ranks must say the same, or both sides fail and the group aborts with both
 * descriptors in the message (C1). */
struct collective_desc {
	uint64_t sequence;
	enum collective_op op;
	enum dtype dtype;
	int64_t count; /* elements; bytes for broadcast and setup, whose dtype is left 0 */
	int root;      /* broadcast only, else 0 */
};

enum status group_create(struct group **out, const struct group_options *options, struct error *err) NODISCARD;
/* No rank may be inside a call. NULL is fine. */
void group_destroy(struct group **group);
int group_world_size(const struct group *group);
struct fault_plan *group_fault(const struct group *group);
/* Now + the group's timeout: for waits elsewhere that belong to a collective (stream_sync). */
uint64_t group_deadline(const struct group *group);

/* First call wins: stores `reason` (with "rank R: " in front unless rank < 0) and wakes every waiter. Any thread. When it returns,
 * whether first or not, group_aborted is true. */
void group_abort(struct group *group, int rank, const struct error *reason);
bool group_aborted(const struct group *group);
/* Non-zero once aborted: for waits elsewhere (device spins, stalls). */
const _Atomic int *group_abort_flag(const struct group *group);
/* While watched, *word becomes 1 at the abort, or at once if that was before. For those who cannot look at the flag: device spins poll a word in
 * memory of their own. At most GROUP_MAX_WATCHES words: NO_ROOM. Any thread. */
enum status group_watch(struct group *group, _Atomic uint32_t *word, struct error *err) NODISCARD;
/* After it the word is not written any more. A word that is not watched is fine. */
void group_unwatch(struct group *group, _Atomic uint32_t *word);
/* Fills err (unless it holds an error already) with the first error, code and text, and returns its code; OK while not aborted. The
 * code may be of a milder scope than the group's death is (NO_MEMORY on one rank): who must know asks group_aborted. */
enum status group_error(const struct group *group, struct error *err);

/* The injected fault of this rank at this point, if there is one: for collectives that meet on the device and not here. Errors as group_meet's. */
enum status group_fault_point(struct group *group, int rank, enum fault_point at, uint64_t sequence, struct error *err) NODISCARD;

/* Meets all ranks. Rank r's k-th call meets the others' k-th calls. What a rank wrote before the call is visible to all after it.
 * Errors: MISMATCH, TIMEOUT (this call aborts the group), the first error of a group that is already dead, or an injected one. */
enum status group_meet(struct group *group, int rank, const struct collective_desc *desc, struct error *err) NODISCARD;

/* All ranks give `bytes` (<= GROUP_EXCHANGE_BYTES, = desc->count) at `mine` and get everybody's, in rank order, at `all`. Two meetings. */
enum status group_exchange(struct group *group, int rank, const struct collective_desc *desc, const void *mine, void *all,
                           struct error *err) NODISCARD;

/* "all_reduce seq 12 F32 x 4096", for messages. */
void collective_desc_format(const struct collective_desc *desc, char *text, size_t size);

#endif
