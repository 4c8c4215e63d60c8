/* transport.h: what a transport gives to comm_create, and what transports share. Inside src/comm only. */
#ifndef TANDEM_COMM_TRANSPORT_H
#define TANDEM_COMM_TRANSPORT_H

#include "comm/comm.h"

/* One rank's end of a comm that is being made. */
struct link {
	struct group *group;
	int rank, world_size;
	struct device *device;
	struct stream *stream;
	const struct comm_options *options;
};

#define TRANSPORT_WHY_BYTES 120

struct transport {
	const char *name;
	/* May such devices use it, for all that is known without opening them? */
	bool (*suits)(const struct device_ops *ops, int world_size, const struct comm_options *options);
	/* Collective call: can these ranks use it? All get the same answer. `why` where not. Errors are the group's. */
	enum status (*can_connect)(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err);
	enum status (*create)(struct comm **out, const struct link *link, struct error *err);
	/* What `create` allocates as MEM_SCRATCH; 0 where it would refuse. The options are such as comm_check_options takes. */
	size_t (*scratch_bytes)(int rank, int world_size, const struct comm_options *options);
};

extern const struct transport transport_host;
extern const struct transport transport_solo;
extern const struct transport transport_p2p;  /* gpu/ */
extern const struct transport transport_xccl; /* gpu/ */

/* Collective call: *yes of all ranks; where one says no, `why` is the lowest such rank's. */
enum status transport_agree(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err) NODISCARD;

/* Every failure of a collective ends here: see "Failure" in comm.h. */
enum status comm_settle(struct comm *comm, enum status st, const struct error *why, struct error *err);
/* As `comm.barrier` of all transports that count their collectives in comm->sequence. */
enum status comm_barrier(struct comm *comm, struct error *err);
/* BAD_INPUT: sizes or tree that cannot be. */
enum status comm_check_options(const struct comm_options *options, int world_size, struct error *err) NODISCARD;
/* BAD_INPUT: an all-reduce of so many rows has no scratch. */
enum status comm_check_rows(int rows, int max_rows, struct error *err) NODISCARD;
/* This rank's part of the tree. */
void comm_split_tree(struct sum_split *split, int tree_leaves, int rank, int world_size);

#endif
