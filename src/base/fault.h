/* fault.h: named places where a rank can be made to fail (contract E8), so that tests can walk all of them.
 *
 * A plan is parsed once from text `rank=1,at=barrier,seq=3[,kind=error|oom|stall:<ms>|exit]` (several separated by
 * `;`) and passed by pointer; there is no global. Each entry fires once. Without a plan a check is one comparison.
 */
#ifndef TANDEM_BASE_FAULT_H
#define TANDEM_BASE_FAULT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* X(enumerator, name in --fault, what seq counts) */
#define FAULT_POINT_LIST(X)                  \
	X(OPEN, "open", "always 0")              \
	X(LOAD, "load", "weight tensors")        \
	X(RESERVE, "reserve", "steps")           \
	X(BARRIER, "barrier", "collectives")     \
	X(READY, "ready", "collectives")         \
	X(KERNEL, "kernel", "steps")             \
	X(SAMPLE, "sample", "steps")             \
	X(SHUTDOWN, "shutdown", "always 0")

enum fault_point {
#define X(code, name, counts) FAULT_##code,
	FAULT_POINT_LIST(X)
#undef X
		FAULT_POINT_COUNT
};

enum fault_kind { FAULT_KIND_ERROR, FAULT_KIND_OOM, FAULT_KIND_STALL, FAULT_KIND_EXIT };

#define FAULT_MAX_ENTRIES 8

struct fault_entry {
	int rank;
	enum fault_point at;
	uint64_t seq; /* fires at the first visit with seq >= this */
	enum fault_kind kind;
	uint32_t stall_ms;
	_Atomic bool fired;
};

struct fault_plan {
	int count;
	struct fault_entry entries[FAULT_MAX_ENTRIES];
};

/* USAGE with the accepted forms if `text` is not one of them. */
enum status fault_parse(struct fault_plan *plan, const char *text, struct error *err) NODISCARD;
/* NULL plan: STATUS_OK. ERROR gives ABORTED, OOM gives NO_MEMORY, EXIT gives RANK_LOST: the worker then leaves
 * without a word, as a dead one would. STALL sleeps (ended early when *stop becomes non-zero; stop may be NULL) and gives OK. */
enum status fault_check(struct fault_plan *plan, int rank, enum fault_point at, uint64_t seq, const _Atomic int *stop,
                        struct error *err) NODISCARD;

#endif
