/* comm.h: collectives of one rank. `host` (ranks are threads of one process, memory is shared) is the reference for all others.
 *
 * A comm belongs to its rank's worker thread. Calls are made by all ranks in the same order with the same sizes. They are
 * asynchronous on the stream like ops; host code may learn of a failure at this call or at the next stream_sync.
 *
 * All-reduce protocol. Each rank owns two scratch buffers of [slots][max_rows][cols] f32 made at start (C4). comm_partial gives
 * the one for the next all-reduce; the row-parallel linear writes its partial straight into it. comm_all_reduce meets the other ranks
 * (descriptor check), then sums all ranks' slots along the summation tree into the caller's tensor. Buffers alternate by sequence
 * number: a rank can write buffer s%2 for sequence s+2 only after it met all others for s+1, and each of them came there after it
 * finished reading buffer s%2. So no scratch is overwritten before every peer has read it, with one rendezvous an all-reduce.
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
	int tree_leaves; /* leaves of the summation tree: the same on all ranks, a multiple of the world size */
};

/* x (in and out) = x + (sum over ranks of partial + bias). x NULL data is refused. */
struct all_reduce_args {
	struct tensor partial; /* what comm_partial gave, dist PARTIAL */
	struct tensor x;       /* [rows, cols] replicated: residual in, result out */
	bool add_residual;     /* false: x is only written */
	const float *bias;     /* [cols] or NULL */
};

struct comm_ops {
	const char *name;
	enum status (*partial)(struct comm *comm, int rows, struct tensor *out, struct error *err);
	enum status (*all_reduce)(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err);
	enum status (*broadcast)(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err);
	enum status (*barrier)(struct comm *comm, struct error *err);
	void (*destroy)(struct comm *comm);
};

struct comm {
	const struct comm_ops *vt;
	struct group *group;
	int rank, world_size;
	uint64_t sequence;    /* of the next collective */
	uint64_t all_reduces; /* so far: the counting test reads it */
	struct sum_split split; /* this rank's part of the tree; `leaves` = tree_leaves / world_size */
};

/* Collective call: every rank of the group calls it with its own device and stream; returns when all scratch is known to all. */
enum status comm_host_create(struct comm **out, struct group *group, int rank, struct device *device, struct stream *stream,
                             const struct comm_options *options, struct error *err) NODISCARD;
/* After all ranks' last collective. NULL is fine. */
void comm_destroy(struct comm **comm);

#define COMM(comm, call, ...) ((comm)->vt->call((comm), __VA_ARGS__))

#endif
