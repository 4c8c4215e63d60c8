/* comm.h: collectives of one rank. `host` (ranks are threads of one process, memory is shared) is the reference for all others; on GPUs
 * `p2p` (own kernels over peer memory) and `xccl` (the vendor's library) are chosen by comm_create; one rank alone on a GPU has `solo`.
 *
 * A comm belongs to its rank's worker thread. Calls are made by all ranks in the same order with the same sizes. They are
 * asynchronous on the stream like ops; host code may learn of a failure at this call or at the next comm_sync.
 *
 * All-reduce protocol of `host` (p2p's is in gpu/p2p.h). Each rank owns two scratch buffers of [slots][max_rows][cols] f32 made at start (C4). `partial` gives
 * the one for the next all-reduce; the row-parallel linear writes its partial straight into it. `all_reduce` meets the other ranks
 * (descriptor check), then sums all ranks' slots along the summation tree into the caller's tensor. Buffers alternate by use u
 * (all-reduces and broadcast chunks): a rank can write buffer u%2 for use u+2 only after it met all others for u+1, and each of them
 * came there after it finished reading buffer u%2. So no scratch is overwritten before every peer has read it, with one rendezvous
 * an all-reduce.
 *
 * Failure. Whatever goes wrong in one of these calls, refused arguments too, aborts the group, or the peers would wait for this rank
 * until the deadline; the caller gets the group's first error. The one exception is an injected `exit` (group.h). After a failure
 * only destroy is useful.
 */
#ifndef TANDEM_COMM_COMM_H
#define TANDEM_COMM_COMM_H

#include <stdint.h>

#include "comm/group.h"
#include "device/device.h"
#include "device/tensor.h"

struct comm;

struct comm_options {
	int max_rows;
	int cols;        /* H */
	enum dtype dtype; /* of partial sums; host: F32 */
	bool invariant;   /* GPU: partials are F32, a slot for each span, added along the tree: the bits of host. Else one slot, added in rank order */
	int tree_leaves; /* leaves of the summation tree: the same on all ranks, a multiple of the world size */
	size_t two_shot_bytes; /* partials of at least this size go in two shots where P > 2; 0: the default. host: same bits either way */
	size_t packet_bytes;   /* p2p: partials up to this size go as packets; 0: the default for this world size */
	uint64_t uses_before;  /* p2p, for tests: collectives that it counts as made already, the same on all ranks */
	const char *transport; /* "auto" (also NULL) or the name of one */
};

/* x (in and out) = x + (sum over ranks of partial + bias). x NULL data is refused. */
struct all_reduce_args {
	struct tensor partial; /* what `partial` gave since the last all-reduce */
	struct tensor x;       /* [rows, cols] replicated f32: residual in, result out */
	bool add_residual;     /* false: x is only written */
	const float *bias;     /* [cols] or NULL */
	const float *norm_weight; /* [cols] or NULL: where comm_ops.norms, also h = rms_norm(x) with it */
	float norm_eps;
	struct tensor h; /* [rows, cols] replicated */
};

struct comm_ops {
	const char *name;
	bool norms; /* all_reduce makes h too, where norm_weight is given; NULL there: it does not */
	/* Scratch for this rank's partial of the next all-reduce: [split.spans][rows][cols] of options.dtype, owned by the comm; its row stride may be
	 * larger than cols. 1 <= rows <= max_rows. */
	enum status (*partial)(struct comm *comm, int rows, struct tensor *out, struct error *err);
	enum status (*all_reduce)(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err);
	/* Root's `bytes` at `data` (device memory) to the same place of all others. Not between `partial` and its all-reduce. */
	enum status (*broadcast)(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err);
	/* Meets all ranks; says nothing about what is still on their streams. */
	enum status (*barrier)(struct comm *comm, struct error *err);
	/* Orders streams: what any rank put on its stream after this comes after what every rank put on its own before it. NULL: the
	 * back end's streams are eager, `barrier` does that. */
	enum status (*fence)(struct comm *comm, struct stream *stream, struct error *err);
	/* A recorded graph with `all_reduces` all-reduces was launched on every rank: the comm's counters follow. NULL: no graphs. */
	void (*replayed)(struct comm *comm, uint64_t collectives, uint64_t all_reduces);
	/* Waits for the stream, for comm_sync. NULL: stream_sync does. */
	enum status (*sync)(struct comm *comm, struct stream *stream, struct error *err);
	/* After a stream_sync: did the collectives on the stream do what they should? Use comm_sync. NULL: they have told at their call. */
	enum status (*check)(struct comm *comm, struct error *err);
	void (*destroy)(struct comm *comm);
};

struct comm {
	const struct comm_ops *vt;
	struct group *group;
	int rank, world_size;
	uint64_t sequence;    /* of the next collective; creation was number 0 */
	uint64_t all_reduces; /* so far: the counting test reads it */
	struct sum_split split; /* this rank's part of the tree; `leaves` = tree_leaves / world_size */
};

/* Collective call: every rank of the group calls it with its own device and stream; returns when all scratch is known to all. Device and stream
 * are borrowed. options->transport "auto" takes the first that can connect these devices (all ranks come to the same choice): host where
 * streams are eager (CPU), else solo for one rank, p2p, xccl; never memory of the host in between. UNSUPPORTED, with each one's reason: none
 * can, or the named one cannot. Else as comm_host_create. */
enum status comm_create(struct comm **out, struct group *group, int rank, struct device *device, struct stream *stream,
                        const struct comm_options *options, struct error *err) NODISCARD;
/* Scratch of the rank that has most, with the transport that "auto" takes where devices can reach each other. Opens nothing; 0: no such comm can be. */
size_t comm_scratch_bytes(const struct device_ops *ops, int world_size, const struct comm_options *options);
/* Waits for the stream as stream_sync does, with the group's deadline and abort flag, and gives failures of collectives on it too. */
enum status comm_sync(struct comm *comm, struct stream *stream, struct error *err) NODISCARD;

/* Collective call: every rank of the group calls it with its own device and stream; returns when all scratch is known to all. The
 * device is borrowed. On failure of any rank all fail and the group is aborted. BAD_INPUT or UNSUPPORTED: sizes that cannot be;
 * MISMATCH: the ranks' options differ; NO_MEMORY. */
enum status comm_host_create(struct comm **out, struct group *group, int rank, struct device *device, struct stream *stream,
                             const struct comm_options *options, struct error *err) NODISCARD;
/* Frees the scratch: only when no rank is in a collective or has one on its stream (synchronise, then join the workers or meet once
 * more), for the peers read this rank's scratch. NULL is fine. */
void comm_destroy(struct comm **comm);

#define COMM(comm, call, ...) ((comm)->vt->call((comm), __VA_ARGS__))

#endif
