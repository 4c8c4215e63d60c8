/* comm.c: which transport a comm gets, and what all of them share.
 *
 * The table is in order of preference. Whether a transport can connect is asked collectively, of one after the other, so that every rank sees
 * the same answers and takes the same one; a build without a GPU back end has the first line alone.
 */
#include "comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static const struct transport *const transports[] = {
	&transport_host,
	&transport_solo,
#ifdef GPU_NAME
	&transport_p2p,
	&transport_xccl,
#endif
};
#define TRANSPORTS (int)(sizeof transports / sizeof *transports)

void comm_destroy(struct comm **comm)
{
	if (!*comm) return;
	(*comm)->vt->destroy(*comm);
	*comm = NULL;
}

enum status comm_settle(struct comm *comm, enum status st, const struct error *why, struct error *err)
{
	if (st == STATUS_OK) return st;
	if (st == STATUS_RANK_LOST) return FAIL(err, RANK_LOST, "%s", why->text); /* injected: leaves without a word */
	group_abort(comm->group, comm->rank, why);
	return group_error(comm->group, err);
}

enum status comm_barrier(struct comm *comm, struct error *err)
{
	struct error why = {0};
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_BARRIER};
	TRY(comm_settle(comm, group_meet(comm->group, comm->rank, &desc, &why), &why, err));
	comm->sequence++;
	return STATUS_OK;
}

enum status comm_sync(struct comm *comm, struct stream *stream, struct error *err)
{
	struct error why = {0};
	enum status st = comm->vt->sync ? comm->vt->sync(comm, stream, &why)
	                                : stream->vt->stream_sync(stream, group_deadline(comm->group), group_abort_flag(comm->group), &why);
	struct error device = {0};
	/* what a kernel says of the collective that it waited in tells more than that the stream was late */
	if ((st == STATUS_OK || st == STATUS_TIMEOUT) && comm->vt->check && comm->vt->check(comm, &device) != STATUS_OK) {
		st = device.code;
		why = device;
	}
	if (st == STATUS_OK) st = group_error(comm->group, &why); /* done, but for nobody */
	return comm_settle(comm, st, &why, err);
}

enum status comm_check_options(const struct comm_options *options, int world_size, struct error *err)
{
	if (options->max_rows < 1 || options->cols < 1)
		return FAIL(err, BAD_INPUT, "collective scratch: [%d,%d]; expected positive sizes", options->max_rows, options->cols);
	if (options->tree_leaves < 1 || options->tree_leaves > SUMTREE_MAX_LEAVES || options->tree_leaves % world_size)
		return FAIL(err, BAD_INPUT, "summation tree: %d leaves on %d ranks; expected a multiple of the ranks, at most %d", options->tree_leaves,
		            world_size, SUMTREE_MAX_LEAVES);
	return STATUS_OK;
}

enum status comm_check_rows(int rows, int max_rows, struct error *err)
{
	if (rows >= 1 && rows <= max_rows) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "all_reduce: %d rows; expected 1..%d", rows, max_rows);
}

void comm_split_tree(struct sum_split *split, int tree_leaves, int rank, int world_size)
{
	const int leaves = tree_leaves / world_size;
	*split = (struct sum_split){.tree_leaves = tree_leaves, .first = rank * leaves, .leaves = leaves};
	split->spans = sumtree_spans(tree_leaves, split->first, split->first + leaves, split->span);
}

/* ---- one rank alone. Nothing to add up: the row-parallel linear adds to x itself (device_ops.accumulates), and there is no scratch. But where the
 * bits may not depend on the world size, it sums along the tree as every rank does, into the tree's one span, which is then added to x. */

struct solo_comm {
	struct comm base;
	struct device *device;
	float *scratch; /* invariant: [max_rows][cols]; one is enough, the stream orders its uses */
	int max_rows, cols;
};

static enum status solo_partial(struct comm *comm, int rows, struct tensor *out, struct error *err)
{
	const struct solo_comm *solo = (const struct solo_comm *)comm;
	*out = (struct tensor){0};
	struct error why = {0};
	if (!solo->scratch)
		return comm_settle(comm, FAIL(&why, BAD_INPUT, "all_reduce: %d rows: one rank alone has none; its linears accumulate", rows), &why, err);
	enum status st = comm_check_rows(rows, solo->max_rows, &why);
	if (st != STATUS_OK) return comm_settle(comm, st, &why, err);
	*out = tensor_view(solo->scratch, DTYPE_F32, TENSOR_PARTIAL, rows, solo->cols);
	return STATUS_OK;
}

static enum status solo_all_reduce(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	const struct solo_comm *solo = (const struct solo_comm *)comm;
	struct error why = {0};
	if (!solo->scratch || args->partial.data != solo->scratch || args->x.rows != args->partial.rows)
		return comm_settle(comm, FAIL(&why, BAD_INPUT, "all_reduce: %d rows of a partial that was not given out", args->x.rows), &why, err);
	struct tree_sum_args sum = {.sources = 1, .source = {solo->scratch}, .row_end = args->x.rows,
	                            .residual = args->add_residual ? args->x : (struct tensor){0}, .bias = args->bias, .out = args->x};
	enum status st = OP(stream, tree_sum, &sum, &why);
	comm->sequence++;
	comm->all_reduces++;
	return comm_settle(comm, st, &why, err);
}

static enum status solo_broadcast(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err)
{
	(void)stream;
	struct error why = {0};
	if (root != 0 || (bytes && !data))
		return comm_settle(comm, FAIL(&why, BAD_INPUT, "broadcast: %zu bytes at %p from rank %d; expected rank 0", bytes, data, root), &why, err);
	comm->sequence++;
	return STATUS_OK;
}

static enum status solo_fence(struct comm *comm, struct stream *stream, struct error *err)
{
	(void)stream, (void)err;
	comm->sequence++;
	return STATUS_OK;
}

static void solo_replayed(struct comm *comm, uint64_t collectives, uint64_t all_reduces)
{
	comm->sequence += collectives;
	comm->all_reduces += all_reduces;
}

static void solo_destroy(struct comm *comm)
{
	struct solo_comm *solo = (struct solo_comm *)comm;
	if (solo->scratch) solo->device->vt->free(solo->device, solo->scratch);
	free(solo);
}

static const struct comm_ops solo_ops = {
	.name = "solo",
	.partial = solo_partial,
	.all_reduce = solo_all_reduce,
	.broadcast = solo_broadcast,
	.barrier = comm_barrier,
	.fence = solo_fence,
	.replayed = solo_replayed,
	.destroy = solo_destroy,
};

static bool solo_suits(const struct device_ops *ops, int world_size, const struct comm_options *options)
{
	(void)options;
	return world_size == 1 && ops->accumulates;
}

static enum status solo_can_connect(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	(void)err;
	*yes = solo_suits(link->device->vt, link->world_size, link->options);
	if (link->world_size > 1) snprintf(why, TRANSPORT_WHY_BYTES, "%d ranks", link->world_size);
	else snprintf(why, TRANSPORT_WHY_BYTES, "%s linears cannot accumulate", link->device->vt->name);
	return STATUS_OK;
}

static size_t solo_scratch_bytes(int rank, int world_size, const struct comm_options *o)
{
	(void)rank, (void)world_size;
	return o->invariant ? (size_t)o->max_rows * (size_t)o->cols * sizeof(float) : 0;
}

static enum status solo_create(struct comm **out, const struct link *link, struct error *err)
{
	const struct comm_options *o = link->options;
	TRY(comm_check_options(o, 1, err));
	struct solo_comm *solo = mem_zalloc(1, sizeof *solo, "collective", err);
	if (!solo) return STATUS_NO_MEMORY;
	*solo = (struct solo_comm){.base = {.vt = &solo_ops, .group = link->group, .world_size = 1, .sequence = 1}, .device = link->device,
	                           .max_rows = o->max_rows, .cols = o->cols};
	comm_split_tree(&solo->base.split, o->tree_leaves, 0, 1);
	const size_t bytes = solo_scratch_bytes(0, 1, o);
	enum status st = STATUS_OK;
	if (bytes) st = link->device->vt->alloc(link->device, bytes, MEM_SCRATCH, "collective scratch", (void **)&solo->scratch, err);
	if (st != STATUS_OK) free(solo);
	else *out = &solo->base;
	return st;
}

const struct transport transport_solo = {"solo", solo_suits, solo_can_connect, solo_create, solo_scratch_bytes};

/* ---- selection */

/* In one exchange. */
struct opinion {
	char why[TRANSPORT_WHY_BYTES];
	int32_t yes;
};
_Static_assert(sizeof(struct opinion) <= GROUP_EXCHANGE_BYTES, "an opinion must fit into one exchange");

enum status transport_agree(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	struct opinion mine = {.yes = *yes}, all[GROUP_MAX_RANKS];
	if (!*yes) snprintf(mine.why, sizeof mine.why, "%s", why);
	struct collective_desc desc = {.op = COLLECTIVE_SETUP, .count = sizeof mine};
	TRY(group_exchange(link->group, link->rank, &desc, &mine, all, err));
	for (int r = 0; r < link->world_size; r++) {
		if (all[r].yes) continue;
		*yes = false;
		memcpy(why, all[r].why, TRANSPORT_WHY_BYTES);
		return STATUS_OK;
	}
	return STATUS_OK;
}

/* All ranks must have been told the same, or they would walk the table differently and meet in the wrong places. */
static enum status agree_on_name(const struct link *link, const char *name, struct error *err)
{
	char mine[32] = {0}, all[GROUP_MAX_RANKS][32];
	snprintf(mine, sizeof mine, "%s", name);
	struct collective_desc desc = {.op = COLLECTIVE_SETUP, .count = sizeof mine};
	TRY(group_exchange(link->group, link->rank, &desc, mine, all, err));
	for (int r = 1; r < link->world_size; r++)
		if (strcmp(all[0], all[r]) != 0)
			return FAIL(err, MISMATCH, "collective: rank 0 was told to use \"%s\", rank %d \"%s\"", all[0], r, all[r]);
	return STATUS_OK;
}

static enum status choose(const struct link *link, const struct transport **out, struct error *err)
{
	const char *name = link->options->transport ? link->options->transport : "auto";
	const bool automatic = strcmp(name, "auto") == 0;
	TRY(agree_on_name(link, name, err));
	char reasons[sizeof err->text / 2] = "";
	size_t used = 0;
	for (int i = 0; i < TRANSPORTS; i++) {
		if (!automatic && strcmp(name, transports[i]->name) != 0) continue;
		bool yes = false;
		char why[TRANSPORT_WHY_BYTES] = "";
		*out = transports[i];
		TRY((*out)->can_connect(link, &yes, why, err));
		if (yes) return STATUS_OK;
		if (used < sizeof reasons)
			used += (size_t)snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used ? "; " : "", transports[i]->name, why);
	}
	*out = NULL;
	if (!used) return FAIL(err, UNSUPPORTED, "collective: there is no transport \"%s\" in this build", name);
	return FAIL(err, UNSUPPORTED, "collective: no way to connect %d ranks on %s (%s)", link->world_size, link->device->vt->name, reasons);
}

enum status comm_create(struct comm **out, struct group *group, int rank, struct device *device, struct stream *stream,
                        const struct comm_options *options, struct error *err)
{
	*out = NULL;
	const struct link link = {.group = group, .rank = rank, .world_size = group_world_size(group), .device = device, .stream = stream,
	                          .options = options};
	struct comm dead = {.group = group, .rank = rank};
	const struct transport *transport = NULL;
	struct error why = {0};
	TRY(comm_settle(&dead, choose(&link, &transport, &why), &why, err));
	why = (struct error){0};
	return comm_settle(&dead, transport->create(out, &link, &why), &why, err);
}

size_t comm_scratch_bytes(const struct device_ops *ops, int world_size, const struct comm_options *options)
{
	struct error ignored = {0};
	if (comm_check_options(options, world_size, &ignored) != STATUS_OK) return 0;
	int i = 0;
	while (i < TRANSPORTS && !transports[i]->suits(ops, world_size, options)) i++;
	size_t most = 0;
	for (int r = 0; i < TRANSPORTS && r < world_size; r++) {
		const size_t bytes = transports[i]->scratch_bytes(r, world_size, options);
		if (bytes > most) most = bytes;
	}
	return most;
}
