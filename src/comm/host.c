/* host.c: the reference collective: ranks are threads of one process and read each other's scratch directly.
 *
 * It defines what a collective must give (contract C5): f32 sums in the order of the summation tree, any world size, the same bits for
 * every world size. All other collectives are compared with it. It computes nothing itself: sums go through the device's tree_sum op,
 * copies through its copy, so it serves every device whose memory is visible to its peers.
 *
 * Streams. Ops are asynchronous, a meeting is not; so before each meeting the rank's stream is synchronised (with the group's deadline
 * and abort flag). That one wait does two things: this rank's partial is complete before it announces it, and this rank's reads of its
 * peers' scratch of the use before are done before the peers may go on to overwrite it. On CPU, where ops are done when they
 * return, it costs nothing. A GPU back end that wants to run ahead of the host needs its own collective with flags in device memory.
 *
 * Uses. Buffers alternate with the number of *uses* of scratch (all-reduces and broadcast chunks), not with the sequence number: a
 * barrier synchronises no stream, so it must not count as the meeting that makes a buffer free.
 *
 * One shot: every rank sums all rows from all scratches: P*N reads a rank. Two shots, for long messages and P > 2: each rank sums its
 * slice of the rows into `slice`, all meet again, then each adds all slices to its x: about 2N reads. The second shot is a tree_sum of
 * one source, so residual and bias are added by the same op in the same order: same bits. `slice` is single: it is written
 * after the first meeting of a use, and there all ranks have finished reading the slices of the use before.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "comm/transport.h"

#define DEFAULT_TWO_SHOT_BYTES ((size_t)256 << 10)

/* What the peers must know of a rank. */
struct place {
	struct comm_options options;
	int spans;
	float *scratch[2]; /* [spans][rows][cols], dense for the rows of the use */
	float *slice;      /* [ceil(max_rows / P)][cols]; NULL when P <= 2 */
};
_Static_assert(sizeof(struct place) <= GROUP_EXCHANGE_BYTES, "a place must fit into one exchange");

struct host_comm {
	struct comm base;
	struct device *device;
	void *memory; /* this rank's scratch and slice */
	uint64_t uses;
	int partial_rows;          /* of the partial that was given out and not reduced yet; 0: none */
	struct tree_sum_args tree; /* sources and merges of the whole tree; the rest is filled per call */
	struct place places[];     /* [world_size] */
};

/* Says during which collective the device failed. */
static enum status device_did(const struct comm *comm, enum status st, struct error *err)
{
	if (st != STATUS_OK) error_prefix(err, "collective seq %llu", (unsigned long long)comm->sequence);
	return st;
}

static enum status sync_and_meet(struct comm *comm, struct stream *stream, const struct collective_desc *desc, struct error *err)
{
	TRY(device_did(comm, stream->vt->stream_sync(stream, group_deadline(comm->group), group_abort_flag(comm->group), err), err));
	return group_meet(comm->group, comm->rank, desc, err);
}

static enum status check_stream(const struct host_comm *host, const struct stream *stream, struct error *err)
{
	if (stream->device == host->device) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "collective seq %llu: the stream is of another device than the comm's", (unsigned long long)host->base.sequence);
}

/* ---- all-reduce ---- */

static enum status give_partial(struct host_comm *host, int rows, struct tensor *out, struct error *err)
{
	const struct place *mine = &host->places[host->base.rank];
	TRY(comm_check_rows(rows, mine->options.max_rows, err));
	*out = tensor_view(mine->scratch[host->uses % 2], DTYPE_F32, TENSOR_PARTIAL, rows, mine->options.cols);
	out->slots = mine->spans;
	host->partial_rows = rows;
	return STATUS_OK;
}

static enum status host_partial(struct comm *comm, int rows, struct tensor *out, struct error *err)
{
	struct error why = {0};
	*out = (struct tensor){0};
	return comm_settle(comm, give_partial((struct host_comm *)comm, rows, out, &why), &why, err);
}

static enum status check_all_reduce(const struct host_comm *host, const struct all_reduce_args *args, struct error *err)
{
	const struct place *mine = &host->places[host->base.rank];
	const struct tensor *p = &args->partial, *x = &args->x;
	TRY(tensor_expect(p, TENSOR_PARTIAL, "all_reduce: partial", err));
	TRY(tensor_expect(x, TENSOR_REPLICATED, "all_reduce: x", err));
	if (!host->partial_rows) return FAIL(err, BAD_INPUT, "all_reduce: no partial was asked for since the last collective");
	if (p->data != mine->scratch[host->uses % 2] || p->slots != mine->spans || p->rows != host->partial_rows ||
	    p->cols != mine->options.cols || p->row_stride != p->cols || p->slot_stride != (int64_t)p->rows * p->cols || p->dtype != DTYPE_F32)
		return FAIL(err, BAD_INPUT, "all_reduce: partial [%d][%d,%d] %s is not the one given out for this use, [%d][%d,%d] F32", p->slots,
		            p->rows, p->cols, dtype_name(p->dtype), mine->spans, host->partial_rows, mine->options.cols);
	if (!x->data || x->dtype != DTYPE_F32 || x->rows != p->rows || x->cols != p->cols || x->slots != 1 || x->row_stride < x->cols)
		return FAIL(err, BAD_INPUT, "all_reduce: x [%d,%d] %s, row stride %lld%s; expected [%d,%d] F32", x->rows, x->cols, dtype_name(x->dtype),
		            (long long)x->row_stride, x->data ? "" : ", no data", p->rows, p->cols);
	return STATUS_OK;
}

/* Rows [begin, end) of `x`. */
static struct tensor rows_of(const struct tensor *x, int begin, int end)
{
	struct tensor view = *x;
	view.data = (char *)x->data + (size_t)begin * (size_t)x->row_stride * dtype_bytes(x->dtype);
	view.rows = end - begin;
	view.slot_stride = view.rows * view.row_stride;
	return view;
}

/* The tree's sources, `skip` rows into each slot. */
static void fill_sources(struct host_comm *host, const struct tensor *partial, int skip)
{
	const size_t slot = (size_t)partial->rows * (size_t)partial->cols;
	int n = 0;
	for (int r = 0; r < host->base.world_size; r++)
		for (int s = 0; s < host->places[r].spans; s++)
			host->tree.source[n++] = host->places[r].scratch[host->uses % 2] + (size_t)s * slot + (size_t)skip * (size_t)partial->cols;
}

static enum status one_shot(struct host_comm *host, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct tree_sum_args *sum = &host->tree;
	fill_sources(host, &args->partial, 0);
	sum->row_begin = 0;
	sum->row_end = args->x.rows;
	sum->residual = args->add_residual ? args->x : (struct tensor){0};
	sum->bias = args->bias;
	sum->out = args->x;
	return device_did(&host->base, OP(stream, tree_sum, sum, err), err);
}

static int slice_begin(const struct host_comm *host, int rows, int rank)
{
	return (int)((int64_t)rows * rank / host->base.world_size);
}

static enum status two_shots(struct host_comm *host, struct stream *stream, const struct all_reduce_args *args,
                             const struct collective_desc *desc, struct error *err)
{
	const int rows = args->x.rows, cols = args->x.cols, rank = host->base.rank;
	int begin = slice_begin(host, rows, rank), end = slice_begin(host, rows, rank + 1);
	struct tree_sum_args *sum = &host->tree;
	fill_sources(host, &args->partial, begin);
	sum->row_begin = 0;
	sum->row_end = end - begin;
	sum->residual = (struct tensor){0};
	sum->bias = NULL;
	sum->out = tensor_view(host->places[rank].slice, DTYPE_F32, TENSOR_REPLICATED, end - begin, cols);
	TRY(device_did(&host->base, OP(stream, tree_sum, sum, err), err));
	TRY(sync_and_meet(&host->base, stream, desc, err));

	for (int r = 0; r < host->base.world_size; r++) {
		begin = slice_begin(host, rows, r);
		end = slice_begin(host, rows, r + 1);
		struct tensor x = rows_of(&args->x, begin, end);
		struct tree_sum_args copy = {.sources = 1, .source = {host->places[r].slice}, .row_end = end - begin,
		                             .residual = args->add_residual ? x : (struct tensor){0}, .bias = args->bias, .out = x};
		TRY(device_did(&host->base, OP(stream, tree_sum, &copy, err), err));
	}
	return STATUS_OK;
}

static bool takes_two_shots(const struct host_comm *host, int rows)
{
	const struct comm_options *options = &host->places[host->base.rank].options;
	return host->base.world_size > 2 && rows >= host->base.world_size &&
	       (size_t)rows * (size_t)options->cols * sizeof(float) >= options->two_shot_bytes;
}

static enum status reduce(struct host_comm *host, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct comm *comm = &host->base;
	TRY(check_stream(host, stream, err));
	TRY(check_all_reduce(host, args, err));
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32,
	                               .count = (int64_t)args->x.rows * args->x.cols};
	TRY(sync_and_meet(comm, stream, &desc, err));
	if (takes_two_shots(host, args->x.rows)) TRY(two_shots(host, stream, args, &desc, err));
	else TRY(one_shot(host, stream, args, err));
	host->partial_rows = 0;
	host->uses++;
	comm->sequence++;
	comm->all_reduces++;
	return STATUS_OK;
}

static enum status host_all_reduce(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, reduce((struct host_comm *)comm, stream, args, &why), &why, err);
}

/* ---- broadcast ---- */

/* Through the root's scratch, a chunk at a time: the one slot of [max_rows, cols] that every rank has. */
static enum status send_chunks(struct host_comm *host, struct stream *stream, char *data, size_t bytes, int root, struct error *err)
{
	struct comm *comm = &host->base;
	TRY(check_stream(host, stream, err));
	if (root < 0 || root >= comm->world_size) return FAIL(err, BAD_INPUT, "broadcast: root %d; expected 0..%d", root, comm->world_size - 1);
	if (bytes > INT64_MAX || (bytes && !data)) return FAIL(err, BAD_INPUT, "broadcast: %zu bytes at %p", bytes, (void *)data);
	if (host->partial_rows) return FAIL(err, BAD_INPUT, "broadcast: between a partial and its all_reduce");
	const struct comm_options *options = &host->places[root].options;
	const size_t room = (size_t)options->max_rows * (size_t)options->cols * sizeof(float);
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_BROADCAST, .count = (int64_t)bytes, .root = root};
	size_t done = 0;
	do {
		size_t n = bytes - done < room ? bytes - done : room;
		void *buffer = host->places[root].scratch[host->uses % 2];
		if (n && comm->rank == root) TRY(device_did(comm, stream->vt->copy(stream, buffer, data + done, n, COPY_ON_DEVICE, err), err));
		TRY(sync_and_meet(comm, stream, &desc, err));
		if (n && comm->rank != root) TRY(device_did(comm, stream->vt->copy(stream, data + done, buffer, n, COPY_ON_DEVICE, err), err));
		host->uses++;
		done += n;
	} while (done < bytes);
	comm->sequence++;
	return STATUS_OK;
}

static enum status host_broadcast(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, send_chunks((struct host_comm *)comm, stream, data, bytes, root, &why), &why, err);
}

/* ---- life ---- */

static void host_destroy(struct comm *comm)
{
	struct host_comm *host = (struct host_comm *)comm;
	if (host->memory) host->device->vt->free(host->device, host->memory);
	free(host);
}

static const struct comm_ops host_ops = {
	.name = "host",
	.partial = host_partial,
	.all_reduce = host_all_reduce,
	.broadcast = host_broadcast,
	.barrier = comm_barrier,
	.destroy = host_destroy,
};

/* This rank's part of the tree into comm.split, the program over all ranks' spans into tree. */
static enum status plan_tree(struct host_comm *host, int tree_leaves, struct error *err)
{
	struct comm *comm = &host->base;
	const int leaves = tree_leaves / comm->world_size;
	struct sum_span spans[TREE_SUM_MAX_SOURCES + SUMTREE_MAX_SPANS];
	int n = 0;
	comm_split_tree(&comm->split, tree_leaves, comm->rank, comm->world_size);
	for (int r = 0; r < comm->world_size && n <= TREE_SUM_MAX_SOURCES; r++) {
		host->places[r].spans = sumtree_spans(tree_leaves, r * leaves, (r + 1) * leaves, spans + n);
		n += host->places[r].spans;
	}
	if (n > TREE_SUM_MAX_SOURCES)
		return FAIL(err, UNSUPPORTED, "summation tree: %d leaves on %d ranks have more than %d partial sums; use fewer ranks", tree_leaves,
		            comm->world_size, TREE_SUM_MAX_SOURCES);
	host->tree.sources = n;
	sumtree_program(tree_leaves, (struct sum_span){0, (int16_t)tree_leaves}, spans, n, host->tree.merges);
	return STATUS_OK;
}

/* Floats rounded up to whole cache lines. */
static bool area(size_t slots, size_t rows, size_t cols, size_t *floats)
{
	if (!size_mul(slots, rows, floats) || !size_mul(*floats, cols, floats) || !size_add(*floats, 15, floats)) return false;
	*floats &= ~(size_t)15;
	return true;
}

/* Floats of a buffer and of the slice, bytes of all. False: it overflows. */
static bool lay_out(int spans, int world_size, const struct comm_options *options, size_t *buffer, size_t *slice, size_t *bytes)
{
	const size_t rows = (size_t)options->max_rows, cols = (size_t)options->cols, P = (size_t)world_size;
	size_t floats;
	return area((size_t)spans, rows, cols, buffer) && area(1, P > 2 ? (rows + P - 1) / P : 0, cols, slice) && size_mul(*buffer, 2, &floats) &&
	       size_add(floats, *slice, &floats) && size_mul(floats, sizeof(float), bytes);
}

static enum status allocate(struct host_comm *host, const struct comm_options *options, struct error *err)
{
	struct place *mine = &host->places[host->base.rank];
	size_t buffer, slice, bytes;
	if (!lay_out(mine->spans, host->base.world_size, options, &buffer, &slice, &bytes))
		return FAIL(err, NO_MEMORY, "collective scratch: [%d,%d] overflows", options->max_rows, options->cols);
	TRY(host->device->vt->alloc(host->device, bytes, MEM_SCRATCH, "collective scratch", &host->memory, err));
	mine->options = *options;
	if (!options->two_shot_bytes) mine->options.two_shot_bytes = DEFAULT_TWO_SHOT_BYTES;
	mine->scratch[0] = host->memory;
	mine->scratch[1] = mine->scratch[0] + buffer;
	mine->slice = slice ? mine->scratch[1] + buffer : NULL;
	return STATUS_OK;
}

static enum status exchange_places(struct host_comm *host, struct error *err)
{
	struct comm *comm = &host->base;
	struct place mine = host->places[comm->rank];
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_SETUP, .count = sizeof mine};
	TRY(group_exchange(comm->group, comm->rank, &desc, &mine, host->places, err));
	const struct comm_options *a = &host->places[0].options;
	for (int r = 1; r < comm->world_size; r++) { /* all ranks look at the same, so all come to the same end */
		const struct comm_options *b = &host->places[r].options;
		if (a->max_rows == b->max_rows && a->cols == b->cols && a->tree_leaves == b->tree_leaves && a->two_shot_bytes == b->two_shot_bytes)
			continue;
		return FAIL(err, MISMATCH, "collective scratch: rank 0: [%d,%d], %d leaves, two shots from %zu bytes, but rank %d: [%d,%d], %d, %zu",
		            a->max_rows, a->cols, a->tree_leaves, a->two_shot_bytes, r, b->max_rows, b->cols, b->tree_leaves, b->two_shot_bytes);
	}
	comm->sequence++;
	return STATUS_OK;
}

static enum status build(struct host_comm *host, struct stream *stream, const struct comm_options *options, struct error *err)
{
	TRY(comm_check_options(options, host->base.world_size, err));
	TRY(check_stream(host, stream, err));
	TRY(plan_tree(host, options->tree_leaves, err));
	TRY(allocate(host, options, err));
	return exchange_places(host, err);
}

enum status comm_host_create(struct comm **out, struct group *group, int rank, struct device *device, struct stream *stream,
                             const struct comm_options *options, struct error *err)
{
	*out = NULL;
	const int P = group_world_size(group);
	struct error why = {0};
	struct comm dead = {.group = group, .rank = rank};
	struct host_comm *host = mem_zalloc(1, sizeof *host + (size_t)P * sizeof host->places[0], "collective", &why);
	if (!host) return comm_settle(&dead, STATUS_NO_MEMORY, &why, err);
	host->base = (struct comm){.vt = &host_ops, .group = group, .rank = rank, .world_size = P};
	host->device = device;
	enum status st = comm_settle(&host->base, build(host, stream, options, &why), &why, err);
	if (st != STATUS_OK) {
		host_destroy(&host->base);
		return st;
	}
	*out = &host->base;
	return STATUS_OK;
}

static bool host_suits(const struct device_ops *ops, int world_size, const struct comm_options *options)
{
	(void)world_size, (void)options;
	return !ops->graph_begin;
}

static enum status host_can_connect(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	(void)err;
	*yes = host_suits(link->device->vt, link->world_size, link->options);
	if (!*yes) snprintf(why, TRANSPORT_WHY_BYTES, "would stop a %s stream at every collective", link->device->vt->name);
	return STATUS_OK;
}

static enum status host_create(struct comm **out, const struct link *link, struct error *err)
{
	return comm_host_create(out, link->group, link->rank, link->device, link->stream, link->options, err);
}

static size_t host_scratch_bytes(int rank, int world_size, const struct comm_options *options)
{
	struct sum_split split;
	size_t buffer, slice, bytes;
	comm_split_tree(&split, options->tree_leaves, rank, world_size);
	return lay_out(split.spans, world_size, options, &buffer, &slice, &bytes) ? bytes : 0;
}

const struct transport transport_host = {"host", host_suits, host_can_connect, host_create, host_scratch_bytes};
