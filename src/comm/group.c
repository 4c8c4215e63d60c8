/* group.c: one rendezvous, one abort.
 *
 * The rendezvous. Each rank writes its descriptor into its own slot and adds one to `arrived`. Who brings it to the world size is
 * the last: it compares all descriptors, resets the count and bumps `turn`; the others wait for `turn` to change (base/wait.h: spin
 * about 20 us, then sleep). So a meeting costs each rank one atomic add and the line of `turn`, and there is nothing to reset between
 * generations. `turn` may wrap: a rank compares it only with the value that it read before it arrived, and no more than one release
 * can happen until it arrives again.
 *
 * Order. `turn` is read before the arrival (after it, the release may already have happened). The add on `arrived` is acquire-release,
 * so the last arriver sees every slot; the bump of `turn` is a release that the others acquire, so everything written before a meeting
 * is visible after it, and a slot is rewritten only after it was compared.
 *
 * The abort. The reason is stored under a lock, then the flag is set, then `turn` is bumped: the same word that a meeting waits on, so
 * that one wait sees both. A waiter whose `turn` changed asks the flag; if both happened, the abort counts. A dead group's `arrived` means
 * nothing any more; every entry looks at the flag first. Why a lock and not a compare-exchange: the loser of a race must not
 * return before the flag is set, and aborts are rare.
 *
 * Not here: waiting on streams (the back ends do that, with group_deadline and group_abort_flag), restarting a dead group.
 * tests/promela/group.pml is a model of this file and of the scratch protocol in host.c; change them together.
 */
#include "comm/group.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"

struct slot {
	_Alignas(64) struct collective_desc desc; /* by its rank before arrival; read by the last arriver */
	_Atomic uint64_t meetings;                /* arrivals so far; the others read it to name who is missing */
	_Atomic uint64_t last_sequence;           /* of desc, for the same message */
	_Alignas(64) unsigned char shared[GROUP_EXCHANGE_BYTES]; /* in the group, not with the rank: a peer may read it after the rank has left */
};

struct group {
	struct wait_word turn; /* bumped by a release and by the abort */
	_Alignas(64) _Atomic int arrived;
	_Alignas(64) _Atomic int abort;
	int world_size;
	uint64_t timeout_ms, first_timeout_ms;
	struct fault_plan *fault;
	pthread_mutex_t lock; /* of the first write to error, and of watch */
	struct error error;   /* constant once abort is set */
	_Atomic uint32_t *watch[GROUP_MAX_WATCHES]; /* NULL: free */
	struct slot slots[GROUP_MAX_RANKS];
};

enum status group_create(struct group **out, const struct group_options *options, struct error *err)
{
	*out = NULL;
	if (options->world_size < 1 || options->world_size > GROUP_MAX_RANKS)
		return FAIL(err, BAD_INPUT, "group: world size %d; expected 1..%d", options->world_size, GROUP_MAX_RANKS);
	if (options->timeout_ms < 1) return FAIL(err, BAD_INPUT, "group: timeout of 0 ms; expected at least 1");
	struct group *group = mem_map(sizeof *group, "group", err); /* pages: calloc does not align to 64 */
	if (!group) return STATUS_NO_MEMORY;
	group->world_size = options->world_size;
	group->timeout_ms = options->timeout_ms;
	group->first_timeout_ms = options->first_timeout_ms ? options->first_timeout_ms : options->timeout_ms;
	group->fault = options->fault;
	pthread_mutex_init(&group->lock, NULL);
	*out = group;
	return STATUS_OK;
}

void group_destroy(struct group **group)
{
	if (!*group) return;
	pthread_mutex_destroy(&(*group)->lock);
	mem_unmap(*group, sizeof **group);
	*group = NULL;
}

int group_world_size(const struct group *group)
{
	return group->world_size;
}

struct fault_plan *group_fault(const struct group *group)
{
	return group->fault;
}

uint64_t group_deadline(const struct group *group)
{
	return clock_deadline_ms(group->timeout_ms);
}

/* ---- abort ---- */

static void keep_reason(struct group *group, int rank, const struct error *reason)
{
	if (!reason || reason->code == STATUS_OK) {
		(void)FAIL(&group->error, ABORTED, "group aborted without a reason");
	} else {
		group->error = *reason;
	}
	char prefix[32];
	int n = snprintf(prefix, sizeof prefix, "rank %d: ", rank);
	if (rank >= 0 && strncmp(group->error.text, prefix, (size_t)n) != 0) error_prefix(&group->error, "rank %d", rank);
}

void group_abort(struct group *group, int rank, const struct error *reason)
{
	pthread_mutex_lock(&group->lock);
	bool first = !group_aborted(group);
	if (first) {
		keep_reason(group, rank, reason);
		atomic_store(&group->abort, 1);
		for (int i = 0; i < GROUP_MAX_WATCHES; i++)
			if (group->watch[i]) atomic_store(group->watch[i], 1);
	}
	pthread_mutex_unlock(&group->lock);
	if (first) wait_bump(&group->turn);
}

enum status group_watch(struct group *group, _Atomic uint32_t *word, struct error *err)
{
	pthread_mutex_lock(&group->lock);
	int i = 0;
	while (i < GROUP_MAX_WATCHES && group->watch[i]) i++;
	if (i < GROUP_MAX_WATCHES) group->watch[i] = word;
	if (group_aborted(group)) atomic_store(word, 1);
	pthread_mutex_unlock(&group->lock);
	if (i < GROUP_MAX_WATCHES) return STATUS_OK;
	return FAIL(err, NO_ROOM, "group: more than %d words watch for its abort", GROUP_MAX_WATCHES);
}

void group_unwatch(struct group *group, _Atomic uint32_t *word)
{
	pthread_mutex_lock(&group->lock);
	for (int i = 0; i < GROUP_MAX_WATCHES; i++)
		if (group->watch[i] == word) group->watch[i] = NULL;
	pthread_mutex_unlock(&group->lock);
}

bool group_aborted(const struct group *group)
{
	return atomic_load_explicit(&group->abort, memory_order_acquire) != 0;
}

const _Atomic int *group_abort_flag(const struct group *group)
{
	return &group->abort;
}

enum status group_error(const struct group *group, struct error *err)
{
	if (!group_aborted(group)) return STATUS_OK;
	if (err && err->code == STATUS_OK) *err = group->error;
	return group->error.code;
}

/* ---- messages ---- */

void collective_desc_format(const struct collective_desc *desc, char *text, size_t size)
{
	static const char *const names[] = {
#define X(code, name) name,
		COLLECTIVE_LIST(X)
#undef X
	};
	const char *name = (unsigned)desc->op < sizeof names / sizeof *names ? names[desc->op] : "unknown";
	int n = snprintf(text, size, "%s seq %" PRIu64, name, desc->sequence);
	if (n < 0 || (size_t)n >= size) return;
	text += n;
	size -= (size_t)n;
	if (desc->op == COLLECTIVE_ALL_REDUCE) snprintf(text, size, " %s x %" PRId64, dtype_name(desc->dtype), desc->count);
	else if (desc->op == COLLECTIVE_BROADCAST) snprintf(text, size, " %" PRId64 " bytes from rank %d", desc->count, desc->root);
	else if (desc->op == COLLECTIVE_SETUP) snprintf(text, size, " %" PRId64 " bytes", desc->count);
}

/* "rank 3" or "ranks 0,2-5". */
static void format_ranks(uint64_t set, char *text, size_t size)
{
	int n = snprintf(text, size, set & (set - 1) ? "ranks " : "rank ");
	const char *comma = "";
	for (int lo = 0; lo < GROUP_MAX_RANKS && n >= 0 && (size_t)n < size; lo++) {
		if (!(set >> lo & 1)) continue;
		int hi = lo;
		while (hi + 1 < GROUP_MAX_RANKS && set >> (hi + 1) & 1) hi++;
		n += lo == hi ? snprintf(text + n, size - (size_t)n, "%s%d", comma, lo)
		              : snprintf(text + n, size - (size_t)n, "%s%d-%d", comma, lo, hi);
		comma = ",";
		lo = hi;
	}
}

static bool desc_equal(const struct collective_desc *a, const struct collective_desc *b)
{
	return a->sequence == b->sequence && a->op == b->op && a->dtype == b->dtype && a->count == b->count && a->root == b->root;
}

/* The ranks whose descriptor is the same as rank `like`'s. */
static uint64_t ranks_like(const struct group *group, int like)
{
	uint64_t set = 0;
	for (int r = 0; r < group->world_size; r++)
		if (desc_equal(&group->slots[r].desc, &group->slots[like].desc)) set |= UINT64_C(1) << r;
	return set;
}

/* Some rank's descriptor is not rank 0's: shows two of them, with all the ranks that say each. */
static void report_mismatch(const struct group *group, struct error *err)
{
	uint64_t all = group->world_size == 64 ? UINT64_MAX : (UINT64_C(1) << group->world_size) - 1;
	uint64_t first = ranks_like(group, 0);
	int other = __builtin_ctzll(all & ~first);
	uint64_t second = ranks_like(group, other);
	char ranks[2][96], descs[2][96];
	format_ranks(first, ranks[0], sizeof ranks[0]);
	format_ranks(second, ranks[1], sizeof ranks[1]);
	collective_desc_format(&group->slots[0].desc, descs[0], sizeof descs[0]);
	collective_desc_format(&group->slots[other].desc, descs[1], sizeof descs[1]);
	(void)FAIL(err, MISMATCH, "collective: %s: %s, but %s: %s%s; all ranks must make the same calls with the same sizes", ranks[0], descs[0],
	           ranks[1], descs[1], (first | second) == all ? "" : " (and more differ)");
}

/* Of the meeting that the rank is in. */
static uint64_t meeting_timeout_ms(const struct group *group, int rank)
{
	return atomic_load_explicit(&group->slots[rank].meetings, memory_order_relaxed) > 1 ? group->timeout_ms : group->first_timeout_ms;
}

static void report_timeout(const struct group *group, int rank, const struct collective_desc *desc, struct error *err)
{
	const uint64_t meeting = atomic_load(&group->slots[rank].meetings), timeout_ms = meeting_timeout_ms(group, rank);
	uint64_t missing = 0;
	for (int r = 0; r < group->world_size; r++)
		if (atomic_load(&group->slots[r].meetings) < meeting) missing |= UINT64_C(1) << r;
	char what[96], ranks[128], seen[64] = "never seen";
	collective_desc_format(desc, what, sizeof what);
	if (!missing) { /* came between the deadline and this look */
		(void)FAIL(err, TIMEOUT, "%s: all ranks came, but not within %" PRIu64 " ms; raise the timeout if they are only slow", what,
		           timeout_ms);
		return;
	}
	const struct slot *first = &group->slots[__builtin_ctzll(missing)];
	format_ranks(missing, ranks, sizeof ranks);
	if (atomic_load(&first->meetings)) snprintf(seen, sizeof seen, "last seen at seq %" PRIu64, atomic_load(&first->last_sequence));
	(void)FAIL(err, TIMEOUT, "%s: %s did not come within %" PRIu64 " ms (rank %d %s); a rank died or hangs, or the timeout is too short", what,
	           ranks, timeout_ms, __builtin_ctzll(missing), seen);
}

/* ---- rendezvous ---- */

enum status group_fault_point(struct group *group, int rank, enum fault_point at, uint64_t sequence, struct error *err)
{
	if (!group->fault) return STATUS_OK;
	struct error why = {0};
	enum status st = fault_check(group->fault, rank, at, sequence, &group->abort, &why);
	if (st == STATUS_OK) return st;
	if (st == STATUS_RANK_LOST) return FAIL(err, RANK_LOST, "%s", why.text);
	group_abort(group, rank, &why);
	return group_error(group, err);
}

static enum status release_all(struct group *group, struct error *err)
{
	for (int r = 1; r < group->world_size; r++) {
		if (desc_equal(&group->slots[0].desc, &group->slots[r].desc)) continue;
		struct error why = {0};
		report_mismatch(group, &why);
		group_abort(group, -1, &why);
		return group_error(group, err);
	}
	atomic_store_explicit(&group->arrived, 0, memory_order_relaxed); /* published by the bump */
	wait_bump(&group->turn);
	return STATUS_OK;
}

static enum status await_release(struct group *group, int rank, const struct collective_desc *desc, uint32_t seen, struct error *err)
{
	/* If the abort was bumped before `seen` was read, its flag is visible here; if after, the wait sees the change. */
	if (!group_aborted(group) && !wait_change(&group->turn, seen, clock_deadline_ms(meeting_timeout_ms(group, rank)))) {
		struct error why = {0};
		report_timeout(group, rank, desc, &why);
		group_abort(group, rank, &why);
	}
	return group_error(group, err);
}

static enum status meet(struct group *group, int rank, const struct collective_desc *desc, struct error *err)
{
	if (group_aborted(group)) return group_error(group, err);
	struct slot *mine = &group->slots[rank];
	mine->desc = *desc;
	atomic_store_explicit(&mine->last_sequence, desc->sequence, memory_order_relaxed);
	atomic_fetch_add_explicit(&mine->meetings, 1, memory_order_release);
	uint32_t seen = atomic_load_explicit(&group->turn.value, memory_order_acquire);
	int arrived = atomic_fetch_add_explicit(&group->arrived, 1, memory_order_acq_rel) + 1;
	return arrived == group->world_size ? release_all(group, err) : await_release(group, rank, desc, seen, err);
}

enum status group_meet(struct group *group, int rank, const struct collective_desc *desc, struct error *err)
{
	assert(0 <= rank && rank < group->world_size);
	TRY(group_fault_point(group, rank, FAULT_BARRIER, desc->sequence, err));
	TRY(meet(group, rank, desc, err));
	return group_fault_point(group, rank, FAULT_READY, desc->sequence, err);
}

enum status group_exchange(struct group *group, int rank, const struct collective_desc *desc, const void *mine, void *all, struct error *err)
{
	assert(0 <= desc->count && desc->count <= GROUP_EXCHANGE_BYTES);
	if (group_aborted(group)) return group_error(group, err); /* a peer may still be reading what this rank gave before the abort */
	size_t bytes = (size_t)desc->count;
	memcpy(group->slots[rank].shared, mine, bytes);
	TRY(group_meet(group, rank, desc, err));
	for (int r = 0; r < group->world_size; r++) memcpy((char *)all + (size_t)r * bytes, group->slots[r].shared, bytes);
	return group_meet(group, rank, desc, err); /* nobody writes its slot again before all have read */
}
