/* p2p.c: own collectives over peer memory, the host's side: memory, choice of the kernel, launches, and what the device reports.
 *
 * The host meets nobody after creation: a collective is a launch. What can go wrong is found by the kernels (p2p.h), which leave a report in
 * pinned memory; p2p_check reads it once the stream has run dry (comm_sync). The group's abort is written into the same memory
 * (group_watch), so that it ends kernels that wait, in recorded graphs too.
 *
 * Choice by the size of the partial, the same on all ranks: packets up to packet_bytes; above, with more than two ranks, two shots from
 * two_shot_bytes on; else pull. For --tp-invariant, where the tree is not the order of ranks, always the tree.
 */
#include "comm/gpu/p2p.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "comm/gpu/connect.h"
#include "device/gpu/device.h"

_Static_assert(P2P_MAX_SOURCES >= TREE_SUM_MAX_SOURCES, "every tree that host takes");

/* What the peers must know of a rank. */
struct place {
	unsigned char *area;
	void *partial;
	size_t packet_bytes, two_shot_bytes;
	int32_t ordinal, blocks, max_rows, cols, dtype, invariant, tree_leaves;
};
_Static_assert(sizeof(struct place) <= GROUP_EXCHANGE_BYTES, "a place must fit into one exchange");

struct p2p_comm {
	struct comm base;
	struct device *device;
	struct stream *stream; /* of all its collectives; borrowed */
	void *memory;          /* state, area, partial */
	struct p2p_control *control; /* pinned */
	struct p2p_view view;
	struct place place; /* own */
	void *partial[P2P_MAX_RANKS];
	int64_t stride; /* elements from one row of a partial to the next */
	int packet_rows; /* most rows that the area has room for as packets */
	int partial_rows; /* of the partial that was given out and not reduced yet; 0: none */
	bool along_tree;
	struct p2p_tree tree;
	bool watched;
	bool shown; /* peers may know the memory's address */
};

/* Two H200: measured (docs/MEASUREMENTS.md). Others: where the bytes that packets send too much, 4/3 (P - 1) against 2 (P - 1) / P times the
 * partial at the measured 320 GB/s, cost more than the second shot's 4 us; P = 3 to 8 have run on GPUs that ranks share, and are not timed. */
static const struct {
	size_t packet_bytes, two_shot_bytes;
} defaults[P2P_MAX_RANKS + 1] = {
	[2] = {4 << 20, SIZE_MAX}, [3] = {1 << 20, 1 << 20},     [4] = {512 << 10, 512 << 10}, [5] = {384 << 10, 384 << 10},
	[6] = {256 << 10, 256 << 10}, [7] = {192 << 10, 192 << 10}, [8] = {128 << 10, 128 << 10},
};

static size_t packet_bytes(const struct comm_options *o, int world_size)
{
	return o->packet_bytes ? o->packet_bytes : defaults[world_size].packet_bytes;
}

static struct p2p_comm *p2p_comm(struct comm *comm)
{
	return (struct p2p_comm *)comm;
}

static enum dtype partial_dtype(const struct p2p_comm *p)
{
	return (enum dtype)p->place.dtype;
}

/* ---- launches */

static enum status check_stream(const struct p2p_comm *p, const struct stream *stream, struct error *err)
{
	if (stream == p->stream) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "collective seq %llu: on another stream than the comm was made with", (unsigned long long)p->base.sequence);
}

/* Ranks that share a device share what the driver has to hold launches that wait: a rank that is far ahead could use it up, and the one that all wait
 * for would find no room. So none is further ahead than a few collectives. What a graph launches takes no such room. */
#define SHARED_AHEAD 8
static enum status hold_back(struct p2p_comm *p, struct error *err)
{
	const bool due = p->view.shared && p->base.sequence % SHARED_AHEAD == 0 && !gpu_stream_object(p->stream)->recording;
	return due ? p->stream->vt->stream_sync(p->stream, group_deadline(p->base.group), group_abort_flag(p->base.group), err) : STATUS_OK;
}

/* Before a launch: nobody may be told to wait for a group that is dead, and faults are injected here. */
static enum status enter(struct p2p_comm *p, const struct stream *stream, struct error *err)
{
	struct comm *comm = &p->base;
	TRY(check_stream(p, stream, err));
	if (group_aborted(comm->group)) return group_error(comm->group, err);
	TRY(hold_back(p, err));
	return group_fault_point(comm->group, comm->rank, FAULT_BARRIER, comm->sequence, err);
}

static enum status leave(struct p2p_comm *p, gpu_error code, struct error *err)
{
	struct comm *comm = &p->base;
	enum status st = gpu_check(code, "collective launch", err);
	if (st != STATUS_OK) error_prefix(err, "seq %llu", (unsigned long long)comm->sequence);
	return st == STATUS_OK ? group_fault_point(comm->group, comm->rank, FAULT_READY, comm->sequence, err) : st;
}

static struct p2p_view view_for(const struct p2p_comm *p, enum collective_op op, enum dtype dtype, int64_t count, int root)
{
	struct p2p_view view = p->view;
	view.desc = (struct p2p_desc){{(uint32_t)op | (uint32_t)dtype << 8 | (uint32_t)root << 16, (uint32_t)count, (uint32_t)((uint64_t)count >> 32)}};
	return view;
}

/* ---- all-reduce */

static enum status give_partial(struct p2p_comm *p, int rows, struct tensor *out, struct error *err)
{
	TRY(comm_check_rows(rows, p->place.max_rows, err));
	*out = tensor_view(p->place.partial, partial_dtype(p), TENSOR_PARTIAL, rows, p->place.cols);
	out->row_stride = p->stride;
	out->slots = p->base.split.spans;
	out->slot_stride = (int64_t)rows * p->stride;
	p->partial_rows = rows;
	return STATUS_OK;
}

static enum status p2p_partial(struct comm *comm, int rows, struct tensor *out, struct error *err)
{
	struct error why = {0};
	*out = (struct tensor){0};
	return comm_settle(comm, give_partial(p2p_comm(comm), rows, out, &why), &why, err);
}

static enum status check_replicated(const struct tensor *t, const char *what, int rows, int cols, struct error *err)
{
	TRY(tensor_expect(t, TENSOR_REPLICATED, what, err));
	if (t->data && t->rows == rows && t->cols == cols && t->slots == 1 && t->row_stride >= cols && dtype_is_plain(t->dtype)) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: [%d,%d] %s, row stride %lld%s; expected [%d,%d]", what, t->rows, t->cols, dtype_name(t->dtype),
	            (long long)t->row_stride, t->data ? "" : ", no data", rows, cols);
}

static enum status check_all_reduce(const struct p2p_comm *p, const struct all_reduce_args *args, struct error *err)
{
	const struct tensor *partial = &args->partial, *x = &args->x;
	TRY(tensor_expect(partial, TENSOR_PARTIAL, "all_reduce: partial", err));
	if (!p->partial_rows) return FAIL(err, BAD_INPUT, "all_reduce: no partial was asked for since the last collective");
	if (partial->data != p->place.partial || partial->slots != p->base.split.spans || partial->rows != p->partial_rows ||
	    partial->cols != p->place.cols || partial->row_stride != p->stride || partial->dtype != partial_dtype(p))
		return FAIL(err, BAD_INPUT, "all_reduce: partial [%d][%d,%d] %s is not the one given out for this use, [%d][%d,%d] %s", partial->slots,
		            partial->rows, partial->cols, dtype_name(partial->dtype), p->base.split.spans, p->partial_rows, p->place.cols,
		            dtype_name(partial_dtype(p)));
	TRY(check_replicated(x, "all_reduce: x", partial->rows, partial->cols, err));
	if (x->dtype != DTYPE_F32) return FAIL(err, BAD_INPUT, "all_reduce: x is %s; expected F32", dtype_name(x->dtype));
	return args->norm_weight ? check_replicated(&args->h, "all_reduce: h", partial->rows, partial->cols, err) : STATUS_OK;
}

static bool aligned(const void *p, size_t bytes)
{
	return (uintptr_t)p % bytes == 0;
}

static struct p2p_sum sum_of(const struct p2p_comm *p, const struct all_reduce_args *args)
{
	struct p2p_sum sum = {
		.stride = p->stride, .x = args->x.data, .x_stride = args->x.row_stride, .bias = args->bias, .norm = args->norm_weight,
		.eps = args->norm_eps, .h = args->h.data, .h_stride = args->h.row_stride, .rows = args->x.rows, .cols = args->x.cols,
		.add = args->add_residual,
	};
	memcpy(sum.partial, p->partial, sizeof p->partial);
	sum.pairs = aligned(sum.x, 8) && sum.x_stride % 2 == 0 && aligned(sum.bias, 8) && aligned(sum.norm, 8) && aligned(sum.h, 4) && sum.h_stride % 2 == 0;
	return sum;
}

static bool takes_packets(const struct p2p_comm *p, int rows)
{
	const size_t bytes = (size_t)rows * (size_t)p->place.cols * dtype_bytes(partial_dtype(p));
	return !p->along_tree && bytes <= p->place.packet_bytes && rows <= p->packet_rows;
}

/* Does the kernel of this all-reduce make h itself? A block has a whole row there: with few rows too few blocks push, and a norm of its own behind
 * the sum is sooner done; with many some blocks have several rows. Measured on two H200. */
#define FUSED_ROWS_FIRST 64
#define FUSED_ROWS_LAST 128
static bool fuses_norm(const struct p2p_comm *p, const struct all_reduce_args *args)
{
	const int rows = args->x.rows;
	const enum dtype dtype = partial_dtype(p);
	return args->norm_weight && FUSED_ROWS_FIRST <= rows && rows <= FUSED_ROWS_LAST && takes_packets(p, rows) && args->h.dtype == dtype &&
	       dtype != DTYPE_F32 && p->view.ranks <= P2P_NORM_RANKS && p2p_row_packets(args->x.cols, dtype) <= P2P_KEEP * P2P_NORM_THREADS;
}

static gpu_error launch(const struct p2p_comm *p, const struct p2p_view *view, const struct p2p_sum *sum)
{
	const size_t bytes = (size_t)sum->rows * (size_t)sum->cols * dtype_bytes(partial_dtype(p));
	gpu_stream stream = gpu_context(p->stream)->stream;
	if (p->along_tree) return p2p_launch_tree(view, sum, &p->tree, stream);
	if (takes_packets(p, sum->rows)) return p2p_launch_packets(view, sum, partial_dtype(p), stream);
	if (view->ranks > 2 && bytes >= p->place.two_shot_bytes) return p2p_launch_two_shots(view, sum, partial_dtype(p), stream);
	return p2p_launch_pull(view, sum, partial_dtype(p), stream);
}

static enum status reduce(struct p2p_comm *p, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct comm *comm = &p->base;
	TRY(enter(p, stream, err));
	TRY(check_all_reduce(p, args, err));
	const bool fused = fuses_norm(p, args);
	const struct p2p_view view = view_for(p, COLLECTIVE_ALL_REDUCE, partial_dtype(p), (int64_t)args->x.rows * args->x.cols, 0);
	struct p2p_sum sum = sum_of(p, args);
	if (!fused) sum.norm = NULL;
	TRY(leave(p, launch(p, &view, &sum), err));
	p->partial_rows = 0;
	comm->sequence++;
	comm->all_reduces++;
	if (!args->norm_weight || fused) return STATUS_OK;
	return OP(stream, rms_norm, &((struct rms_norm_args){.x = args->x, .weight = args->norm_weight, .eps = args->norm_eps, .out = args->h}), err);
}

static enum status p2p_all_reduce(struct comm *comm, struct stream *stream, const struct all_reduce_args *args, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, reduce(p2p_comm(comm), stream, args, &why), &why, err);
}

/* ---- broadcast, fence */

static enum status send(struct p2p_comm *p, struct stream *stream, unsigned char *data, size_t bytes, int root, struct error *err)
{
	struct comm *comm = &p->base;
	TRY(enter(p, stream, err));
	if (root < 0 || root >= comm->world_size) return FAIL(err, BAD_INPUT, "broadcast: root %d; expected 0..%d", root, comm->world_size - 1);
	if (bytes > INT64_MAX || (bytes && !data)) return FAIL(err, BAD_INPUT, "broadcast: %zu bytes at %p", bytes, (void *)data);
	if (p->partial_rows) return FAIL(err, BAD_INPUT, "broadcast: between a partial and its all_reduce");
	const size_t room = p->view.packets.source / GPU_WHOLE_BYTES * (GPU_WHOLE_BYTES - 4);
	const struct p2p_view view = view_for(p, COLLECTIVE_BROADCAST, DTYPE_F32, (int64_t)bytes, root);
	gpu_error code = GPU_OK;
	size_t done = 0;
	do {
		struct p2p_bytes part = {.data = data + done, .bytes = bytes - done < room ? bytes - done : room, .root = root};
		code = p2p_launch_broadcast(&view, &part, gpu_context(stream)->stream);
		done += part.bytes;
	} while (code == GPU_OK && done < bytes);
	TRY(leave(p, code, err));
	comm->sequence++;
	return STATUS_OK;
}

static enum status p2p_broadcast(struct comm *comm, struct stream *stream, void *data, size_t bytes, int root, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, send(p2p_comm(comm), stream, data, bytes, root, &why), &why, err);
}

static enum status put_fence(struct p2p_comm *p, struct stream *stream, struct error *err)
{
	TRY(enter(p, stream, err));
	const struct p2p_view view = view_for(p, COLLECTIVE_BARRIER, DTYPE_F32, 0, 0);
	TRY(leave(p, p2p_launch_fence(&view, gpu_context(stream)->stream), err));
	p->base.sequence++;
	return STATUS_OK;
}

static enum status p2p_fence(struct comm *comm, struct stream *stream, struct error *err)
{
	struct error why = {0};
	return comm_settle(comm, put_fence(p2p_comm(comm), stream, &why), &why, err);
}

static void p2p_replayed(struct comm *comm, uint64_t collectives, uint64_t all_reduces)
{
	comm->sequence += collectives;
	comm->all_reduces += all_reduces;
}

/* ---- what the device reports */

static void format_desc(const struct p2p_desc *d, uint32_t use, char *text, size_t size)
{
	struct collective_desc desc = {.sequence = use & ~P2P_USED, .op = (enum collective_op)(d->word[0] & 0xff), .dtype = (enum dtype)(d->word[0] >> 8 & 0xff),
	                               .count = (int64_t)((uint64_t)d->word[2] << 32 | d->word[1]), .root = (int)(d->word[0] >> 16)};
	collective_desc_format(&desc, text, size);
}

static enum status p2p_check(struct comm *comm, struct error *err)
{
	const struct p2p_comm *p = p2p_comm(comm);
	const volatile struct p2p_report *seen = &p->control->report;
	if (seen->fault == P2P_FINE) return STATUS_OK;
	atomic_thread_fence(memory_order_acquire);
	const struct p2p_report report = p->control->report;
	char mine[96], theirs[96];
	format_desc(&report.mine, report.use, mine, sizeof mine);
	format_desc(&report.theirs, report.use, theirs, sizeof theirs);
	if (report.fault == P2P_MISMATCH)
		return FAIL(err, MISMATCH, "collective: rank %d: %s, but rank %u: %s; all ranks must make the same calls with the same sizes", comm->rank, mine,
		            report.peer, theirs);
	if (report.fault == P2P_LATE && report.peer) {
		char ranks[64] = "";
		for (int r = 0, n = 0; r < comm->world_size; r++)
			if (report.peer >> r & 1) n += snprintf(ranks + n, sizeof ranks - (size_t)n, "%s%d", n ? "," : "", r);
		return FAIL(err, TIMEOUT, "%s: rank %s did not come within %.1f s; a rank died or hangs, or the timeout is too short", mine, ranks,
		            (double)p->view.limit_ns * 1e-9);
	}
	if (report.fault == P2P_LATE)
		return FAIL(err, TIMEOUT, "%s: all ranks came, but their data did not within %.1f s", mine, (double)p->view.limit_ns * 1e-9);
	if (group_aborted(comm->group)) return group_error(comm->group, err);
	return FAIL(err, ABORTED, "%s: the group was aborted", mine);
}

/* ---- life */

/* Kernels that still wait are told to leave: nothing here may be freed under them. */
static void stop_kernels(struct p2p_comm *p)
{
	struct error ignored = {0};
	*(volatile uint32_t *)&p->control->abort = 1;
	(void)!gpu_drain(gpu_context(p->stream)->stream, clock_deadline_ms(2000), "collective", &ignored);
}

static void p2p_destroy(struct comm *comm)
{
	struct p2p_comm *p = p2p_comm(comm);
	if (p->watched) {
		group_unwatch(comm->group, (_Atomic uint32_t *)&p->control->abort);
		stop_kernels(p);
	}
	if (p->memory) p->device->vt->free(p->device, p->memory);
	if (p->control) p->device->vt->host_free(p->device, p->control);
	free(p);
}

static const struct comm_ops p2p_ops = {
	.name = "p2p",
	.norms = true,
	.partial = p2p_partial,
	.all_reduce = p2p_all_reduce,
	.broadcast = p2p_broadcast,
	.barrier = comm_barrier,
	.fence = p2p_fence,
	.replayed = p2p_replayed,
	.check = p2p_check,
	.destroy = p2p_destroy,
};

static enum status check_options(const struct comm_options *o, int world_size, struct error *err)
{
	TRY(comm_check_options(o, world_size, err));
	if (!dtype_is_plain(o->dtype)) return FAIL(err, BAD_INPUT, "collective: partials of %s; expected F32, F16 or BF16", dtype_name(o->dtype));
	if (o->invariant && o->dtype != DTYPE_F32)
		return FAIL(err, BAD_INPUT, "collective: %s partials cannot have bits that do not depend on the world size; expected F32", dtype_name(o->dtype));
	const int64_t vectors = (int64_t)o->max_rows * ((int64_t)o->cols * 4 / 16 + 1);
	if (vectors > INT32_MAX / 4) return FAIL(err, UNSUPPORTED, "collective: [%d,%d]; its vectors must be numbered in 32 bits", o->max_rows, o->cols);
	return STATUS_OK;
}

/* This rank's split and, where sums go along the tree, the program over all ranks' spans. */
static enum status plan_tree(struct p2p_comm *p, const struct comm_options *options, struct error *err)
{
	struct comm *comm = &p->base;
	const int P = comm->world_size, leaves = options->invariant ? options->tree_leaves : P;
	struct sum_span spans[P2P_MAX_SOURCES + SUMTREE_MAX_SPANS];
	comm_split_tree(&comm->split, leaves, comm->rank, P);
	if (!options->invariant) return STATUS_OK; /* a slot a rank, in order of ranks */
	int n = 0;
	for (int r = 0; r < P && n <= P2P_MAX_SOURCES; r++) {
		struct sum_split split;
		comm_split_tree(&split, leaves, r, P);
		for (int s = 0; s < split.spans; s++, n++) {
			spans[n] = split.span[s];
			if (n < P2P_MAX_SOURCES) p->tree.rank[n] = (uint8_t)r, p->tree.slot[n] = (uint8_t)s;
		}
	}
	if (n > P2P_MAX_SOURCES)
		return FAIL(err, UNSUPPORTED, "summation tree: %d leaves on %d ranks have more than %d partial sums; use fewer ranks", leaves, P, P2P_MAX_SOURCES);
	sumtree_program(leaves, (struct sum_span){0, (int16_t)leaves}, spans, n, p->tree.merges);
	p->tree.sources = n;
	p->along_tree = n != P;
	for (int i = 0; i < n; i++) p->along_tree = p->along_tree || p->tree.merges[i] != (i > 0);
	return STATUS_OK;
}

static struct p2p_part add_part(size_t *used, size_t source, size_t sources)
{
	source = size_round_up(source, 128);
	struct p2p_part part = {.at = *used, .half = source * sources, .source = source};
	*used += 2 * part.half;
	return part;
}

/* Sizes of everything; no overflow, since rows times columns are bounded by check_options. Returns the bytes of state, area and partial. */
static size_t lay_out(struct p2p_comm *p, const struct comm_options *o, size_t *area_at, size_t *partial_at)
{
	const size_t ranks = (size_t)p->base.world_size, element = dtype_bytes(o->dtype), row_bytes = (size_t)o->cols * element;
	struct p2p_view *view = &p->view;
	p->stride = (int64_t)(size_round_up(row_bytes, 16) / element);
	const size_t rows = p->along_tree ? 0 : p->place.packet_bytes / row_bytes;
	p->packet_rows = rows < (size_t)o->max_rows ? (int)rows : o->max_rows;
	size_t packets = (size_t)p->packet_rows * (size_t)p2p_row_packets(o->cols, o->dtype) * GPU_WHOLE_BYTES;
	if (packets < 4096) packets = 4096; /* broadcasts need some */
	const size_t vectors = (size_t)o->max_rows * (size_t)p->stride * element / 16;
	size_t used = 0;
	view->announced = add_part(&used, 4 * sizeof(uint64_t), ranks);
	view->flags = add_part(&used, P2P_FLAGS * sizeof(uint32_t), ranks);
	view->packets = add_part(&used, packets, ranks);
	view->gathered = (struct p2p_part){.at = used};
	used += ranks > 2 ? size_round_up((vectors / ranks + 1) * 16, 128) : 0;
	*area_at = size_round_up(sizeof(struct p2p_state), 128);
	*partial_at = *area_at + used;
	return *partial_at + (size_t)p->base.split.spans * vectors * 16;
}

static enum status count_uses_before(struct p2p_comm *p, uint64_t uses, struct error *err)
{
	const unsigned long long ticket = uses * P2P_TICKETS;
	if (!uses) return STATUS_OK;
	TRY(p->stream->vt->copy(p->stream, &p->view.state->ticket, &ticket, sizeof ticket, COPY_TO_DEVICE, err));
	return p->stream->vt->stream_sync(p->stream, group_deadline(p->base.group), group_abort_flag(p->base.group), err);
}

static enum status allocate(struct p2p_comm *p, const struct link *link, struct error *err)
{
	const struct comm_options *o = link->options;
	const struct device_ops *vt = link->device->vt;
	p->place = (struct place){
		.packet_bytes = packet_bytes(o, link->world_size), .two_shot_bytes = o->two_shot_bytes ? o->two_shot_bytes : defaults[link->world_size].two_shot_bytes,
		.ordinal = gpu_context(link->stream)->ordinal, .blocks = gpu_context(link->stream)->props.multiprocessors, .max_rows = o->max_rows, .cols = o->cols, .dtype = (int32_t)o->dtype,
		.invariant = o->invariant, .tree_leaves = o->tree_leaves,
	};
	size_t area, partial, bytes = lay_out(p, o, &area, &partial);
	TRY(vt->alloc(link->device, bytes, MEM_SCRATCH, "collective scratch", &p->memory, err));
	TRY(vt->host_alloc(link->device, sizeof *p->control, "collective control", (void **)&p->control, err));
	memset(p->control, 0, sizeof *p->control);
	const uint64_t now = clock_ns(), deadline = group_deadline(link->group);
	p->view.limit_ns = (deadline > now ? deadline - now : 1) / 8 * 7; /* the device's report, which names ranks, comes before the host's */
	TRY(group_watch(link->group, (_Atomic uint32_t *)&p->control->abort, err));
	p->watched = true;
	p->view.state = p->memory;
	p->view.control = p->control;
	p->place.area = (unsigned char *)p->memory + area;
	p->place.partial = (unsigned char *)p->memory + partial;
	return count_uses_before(p, o->uses_before, err);
}

/* The largest grid that every rank's device runs at once. Ranks that share a device leave half of it to what they wait for: a linear's block may
 * want a multiprocessor of its own. */
static int agree_blocks(const struct place *all, int ranks)
{
	int blocks = P2P_MAX_BLOCKS;
	for (int r = 0; r < ranks; r++) {
		int sharers = 0;
		for (int other = 0; other < ranks; other++) sharers += all[other].ordinal == all[r].ordinal;
		const int most = sharers > 1 ? all[r].blocks / sharers / 2 : all[r].blocks;
		if (most < blocks) blocks = most;
	}
	return blocks > 1 ? blocks : 1;
}

static enum status exchange_places(struct p2p_comm *p, struct error *err)
{
	struct comm *comm = &p->base;
	struct place all[P2P_MAX_RANKS];
	struct collective_desc desc = {.sequence = comm->sequence, .op = COLLECTIVE_SETUP, .count = sizeof p->place};
	p->shown = true;
	TRY(group_exchange(comm->group, comm->rank, &desc, &p->place, all, err));
	p->view.blocks = agree_blocks(all, comm->world_size);
	for (int r = 0; r < comm->world_size; r++) {
		const struct place *a = &all[0], *b = &all[r];
		if (a->max_rows != b->max_rows || a->cols != b->cols || a->dtype != b->dtype || a->invariant != b->invariant || a->tree_leaves != b->tree_leaves ||
		    a->packet_bytes != b->packet_bytes || a->two_shot_bytes != b->two_shot_bytes)
			return FAIL(err, MISMATCH, "collective scratch: rank 0: [%d,%d] %s, %d leaves, packets to %zu, two shots from %zu bytes, but rank %d: [%d,%d] %s, "
			            "%d, %zu, %zu",
			            a->max_rows, a->cols, dtype_name((enum dtype)a->dtype), a->tree_leaves, a->packet_bytes, a->two_shot_bytes, r, b->max_rows,
			            b->cols, dtype_name((enum dtype)b->dtype), b->tree_leaves, b->packet_bytes, b->two_shot_bytes);
		p->view.area[r] = b->area;
		p->partial[r] = b->partial;
		p->view.shared = p->view.shared || (r != comm->rank && b->ordinal == p->place.ordinal);
	}
	comm->sequence++;
	return STATUS_OK;
}

static enum status build(struct p2p_comm *p, const struct link *link, struct error *err)
{
	TRY(check_options(link->options, link->world_size, err));
	TRY(plan_tree(p, link->options, err));
	TRY(allocate(p, link, err));
	TRY(gpu_check(p2p_preload_packets(link->world_size, link->options->dtype), "collective kernels", err));
	TRY(gpu_check(p2p_preload_bulk(link->world_size, link->options->dtype), "collective kernels", err));
	return exchange_places(p, err);
}

static enum status p2p_create(struct comm **out, const struct link *link, struct error *err)
{
	struct p2p_comm *p = mem_zalloc(1, sizeof *p, "collective", err);
	if (!p) return STATUS_NO_MEMORY;
	p->base = (struct comm){.vt = &p2p_ops, .group = link->group, .rank = link->rank, .world_size = link->world_size};
	p->device = link->device;
	p->stream = link->stream;
	p->view.rank = link->rank;
	p->view.ranks = link->world_size;
	enum status st = build(p, link, err);
	if (st == STATUS_OK) {
		*out = &p->base;
		return st;
	}
	/* A peer may have left the last meeting with success, where this rank saw an abort, and its first kernel writes here: the memory goes with the
	 * device. */
	if (p->shown) p->memory = NULL;
	p2p_destroy(&p->base);
	return st;
}

static size_t p2p_scratch_bytes(int rank, int world_size, const struct comm_options *o)
{
	struct p2p_comm p = {.base = {.rank = rank, .world_size = world_size}, .place = {.packet_bytes = packet_bytes(o, world_size)}};
	struct error ignored = {0};
	size_t area, partial;
	if (check_options(o, world_size, &ignored) != STATUS_OK || plan_tree(&p, o, &ignored) != STATUS_OK) return 0;
	return lay_out(&p, o, &area, &partial);
}

const struct transport transport_p2p = {"p2p", connect_suits, connect_peers, p2p_create, p2p_scratch_bytes};
