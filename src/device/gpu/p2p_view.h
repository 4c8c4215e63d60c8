/* p2p_view.h: what kernels know of peer memory: the area that each rank has, where in it what lies, and who listens. comm/gpu/p2p.h has the protocol and
 * makes these; they stand here because ops of the device take part in it (carried.h). Valid C17 and C++17.
 */
#ifndef TANDEM_DEVICE_GPU_P2P_VIEW_H
#define TANDEM_DEVICE_GPU_P2P_VIEW_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "device/gpu/runtime.h"

#define P2P_MAX_RANKS 8

/* What a rank announces. */
#define P2P_DESC_WORDS 3
struct p2p_desc {
	uint32_t word[P2P_DESC_WORDS]; /* op | dtype << 8 | root << 16, count's low and high half */
};

enum p2p_fault { P2P_FINE, P2P_MISMATCH, P2P_LATE, P2P_ABORTED };

/* Written once by the device, by the first thread that finds a fault; read by the host after the stream has run dry. */
struct p2p_report {
	uint32_t fault; /* enum p2p_fault */
	uint32_t use;
	uint32_t peer; /* MISMATCH: who said `theirs`; LATE: bits of the ranks whose announcement had not come */
	struct p2p_desc mine, theirs;
};

/* Pinned host memory of one rank. */
struct p2p_control {
	uint32_t abort; /* by the group (group_watch): != 0: leave */
	struct p2p_report report;
};

/* One rank's counters, in its own device memory. */
struct p2p_state {
	unsigned long long ticket; /* P2P_TICKETS for each use that has begun, see p2p_begin */
	unsigned long long sent, received; /* the same of the halves of carried sums */
	uint32_t stop;             /* how many threads have found a fault */
};
#define P2P_TICKETS 4096 /* more than any grid has blocks */

/* Offsets in an area, in bytes from its begin; a half is at + (use % 2) * half. */
struct p2p_part {
	size_t at, half;
	size_t source; /* bytes for each source rank in a half */
};

struct p2p_view {
	int rank, ranks;
	int blocks; /* largest grid: what the smallest device of the group runs at once, so that no block waits for one that has not begun */
	uint64_t limit_ns; /* how long a kernel may wait */
	struct p2p_state *state;
	struct p2p_control *control;
	unsigned char *area[P2P_MAX_RANKS]; /* by rank */
	struct p2p_part announced; /* [2][ranks][4] u64 */
	struct p2p_part flags;     /* [2][ranks][P2P_FLAGS] u32 */
	struct p2p_part packets;   /* [2][ranks][] packets */
	struct p2p_part carried;   /* [2][ranks][] packets of carried sums, by their own count */
	struct p2p_part gathered;  /* [] vectors of 16 bytes: what this rank summed in the first of two shots; no halves, see above */
	struct p2p_desc desc;
};
#define P2P_MAX_BLOCKS 256
#define P2P_FLAGS (2 * P2P_MAX_BLOCKS) /* of a source in a half: a block has one for each phase */

#endif
