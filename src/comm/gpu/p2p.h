/* p2p.h: what the host side (p2p.c) and the kernels (p2p_*.cu) of own collectives over peer memory share. Valid C17 and C++17.
 *
 * Each rank owns one area of device memory, laid out alike on all ranks; its peers write into it, the rank itself reads it. Nothing waits
 * for a host: whatever orders the ranks travels with the data.
 *
 * Uses. Every collective is one use (a long broadcast is several), numbered by a counter in device memory that the kernel itself
 * advances, so that replayed graphs count too. A number has 31 bits and P2P_USED above them, so that none is ever 0; numbers come again after 2^31 uses, an even
 * number, and are only compared for equality. Areas are double: use u has the half u % 2.
 * Announcement. The kernel of use u writes to every peer what it is about to do, three words of 32 bits, each in one store with u; and it
 * does not end before it has seen its peers' announcements of u and found them equal to its own (contract C1).
 * Why a half can be reused. Rank A writes into B's half for use u + 2 after A's kernel of use u + 1 has ended, since kernels of a stream run
 * one after the other. That one ended after it saw B's announcement of u + 1, which B wrote after its kernel of use u had ended, with
 * all that B read of that half. The announcements themselves lie in halves by the same argument. Programmatic dependent launch lets a
 * kernel begin early, so everything here comes after gpu_wait_previous().
 * Why the partial can be rewritten. It is single: the linear of use u + 1 writes it when the kernel of use u has ended. Where peers read it
 * themselves (pull, two shots, tree), that kernel's block b ends only after block b of every peer has said that it is done with all the
 * partials that it reads; all blocks together read everything. What two shots gather is single too: it is written after the use's announcements,
 * when every peer's kernel of the use before, which read it, has ended.
 *
 * Packets. Small partials travel as packets of GPU_WHOLE_BYTES: data and, in the last word, a flag that says use and descriptor. A packet
 * is stored and loaded in one piece, so who sees the flag has the data, without a fence. A flag keeps 24 bits of the use: what was left
 * in a half 2^24 uses ago and never since could pass for new, one chance in 2^24 each time that many uses have gone by.
 *
 * Spins. Every wait is made by whole waves. Now and then it looks at the rank's own `stop` word, at a clock, and every five milliseconds at
 * the abort word in pinned host memory and at the peers' announcements. Whatever it finds wrong goes into the control block's report, `stop` is
 * set, and all kernels of this rank, the rest of a graph too, return at once.
 */
#ifndef TANDEM_COMM_GPU_P2P_H
#define TANDEM_COMM_GPU_P2P_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/status.h"
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
	uint32_t stop;             /* how many threads have found a fault */
};
#define P2P_TICKETS 4096 /* more than any grid has blocks */
#define P2P_USED 0x80000000u /* in every number of a use */

/* Offsets in an area, in bytes from its begin; a half is at + (use % 2) * half. */
struct p2p_part {
	size_t at, half;
	size_t source; /* bytes for each source rank in a half */
};

struct p2p_view {
	int rank, ranks;
	int blocks; /* largest grid: what the smallest device of the group runs at once, so that no block waits for one that has not begun; where ranks share a
	             * device, their part of it */
	bool shared; /* another rank is on this rank's device */
	uint64_t limit_ns; /* how long a kernel may wait */
	struct p2p_state *state;
	struct p2p_control *control;
	unsigned char *area[P2P_MAX_RANKS]; /* by rank */
	struct p2p_part announced; /* [2][ranks][4] u64 */
	struct p2p_part flags;     /* [2][ranks][P2P_FLAGS] u32 */
	struct p2p_part packets;   /* [2][ranks][] packets */
	struct p2p_part gathered;  /* [] vectors of 16 bytes: what this rank summed in the first of two shots; no halves, see above */
	struct p2p_desc desc;
};
#define P2P_MAX_BLOCKS 256
#define P2P_FLAGS (2 * P2P_MAX_BLOCKS) /* of a source in a half: a block has one for each phase */

/* x = x + (sum of the ranks' partials + bias), and h = rms_norm(x) where `norm`. */
struct p2p_sum {
	const void *partial[P2P_MAX_RANKS]; /* by rank: [rows][stride] of T, rows aligned to 16 bytes. Packets read their own alone */
	int64_t stride;
	float *x; /* [rows][x_stride] */
	int64_t x_stride;
	const float *bias; /* [cols] or NULL */
	const float *norm; /* [cols] or NULL: packets only */
	float eps;
	void *h; /* [rows][h_stride] of T */
	int64_t h_stride;
	int rows, cols;
	bool add;   /* to x; else x is only written */
	bool pairs; /* x, bias, norm and their rows are aligned to 8 bytes, h's to 4 */
};

/* Sums along the summation tree: sources in order of the leaves, merges as base/sumtree.h says. */
#define P2P_MAX_SOURCES 128
struct p2p_tree {
	int sources;
	uint8_t rank[P2P_MAX_SOURCES], slot[P2P_MAX_SOURCES], merges[P2P_MAX_SOURCES];
};

/* Bytes at `data` of rank `root` to the same place of all others. */
struct p2p_bytes {
	unsigned char *data;
	size_t bytes;
	int root;
};

/* Packets for a row of `cols` elements. */
static inline int p2p_row_packets(int cols, enum dtype dtype)
{
	const int elements = (GPU_WHOLE_BYTES - 4) / (int)dtype_bytes(dtype);
	return (cols + elements - 1) / elements;
}
/* A block of the packet kernel that makes h too (16-bit partials only) has a whole row, in at most so many threads, each of at most so many packets. */
#define P2P_NORM_THREADS 704
#define P2P_NORM_RANKS 4 /* more do not fit into the registers */
#define P2P_KEEP 2

#ifdef __cplusplus
extern "C" {
#endif
/* Launchers. What they are given was checked by p2p.c, and peers are connected. */
gpu_error p2p_launch_packets(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream);
gpu_error p2p_launch_pull(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream);
gpu_error p2p_launch_two_shots(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream);
gpu_error p2p_launch_tree(const struct p2p_view *view, const struct p2p_sum *sum, const struct p2p_tree *tree, gpu_stream stream);
gpu_error p2p_launch_broadcast(const struct p2p_view *view, const struct p2p_bytes *bytes, gpu_stream stream);
gpu_error p2p_launch_fence(const struct p2p_view *view, gpu_stream stream);
/* Writes a pattern of `words` words to `to`, which may be a peer's; counts at `bad` (own memory) the words of `from` that are not it. */
gpu_error p2p_launch_pattern_write(uint32_t *to, int words, uint32_t seed, gpu_stream stream);
gpu_error p2p_launch_pattern_check(const uint32_t *from, int words, uint32_t seed, uint32_t *bad, gpu_stream stream);
/* Load the code of these launchers' kernels for `ranks` ranks on the current device: where a first launch does it, it may wait for kernels that spin. */
gpu_error p2p_preload_packets(int ranks, enum dtype dtype);
gpu_error p2p_preload_bulk(int ranks, enum dtype dtype);
#ifdef __cplusplus
}
#endif

#endif
