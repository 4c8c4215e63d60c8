/* `tandem bench collective`: the all-reduce of [T,H] over the ranks of this machine, as a step does it twice a layer.
 *
 * One call: take the scratch, all-reduce onto the residual, wait for the stream. Times are rank 0's, whose call cannot end before the last rank
 * came. The first call of a shape is reported apart (cold); the ranks meet before every timed call, so that a late rank of the call before
 * does not count. Writing the partial is the linear's work and is not timed.
 *
 * Where the back end records graphs, what counts is a call inside one: the median over replays of a graph of many calls, divided by their
 * number; once as it is and once with the norm that follows. By default every transport that can connect the ranks is measured, one
 * after the other, on the same devices.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/console.h"
#include "apps/measure.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/thread.h"
#include "comm/comm.h"

#define REPLAYS 10
#define GRAPH_CALLS 400       /* enough that launching and waiting do not show */
#define GRAPH_CALLS_LARGE 20
#define LARGE_BYTES (4 << 20)
#define NOISE_BYTES ((size_t)1 << 20)
#define WAYS 2

struct figures {
	double cold_us, enqueue_us, p50_us, p95_us, p99_us;
	double graph_us, graph_norm_us; /* a call in a recorded graph; 0: no graphs */
};

struct shape {
	int rows, cols;
	struct figures way[WAYS];
};

struct bench {
	const struct settings *settings;
	struct fleet fleet;
	enum dtype dtype;
	const char *transports[WAYS]; /* as asked for */
	char names[WAYS][16];         /* as made; "": could not connect */
	int ways, way;                /* the one that runs */
	struct group *group;          /* of that way */
	struct shape *shapes;         /* of one hidden size after the other */
	int shape_count, max_rows;
	char isa[24];
	int threads;
};

struct rank {
	struct bench *bench;
	int index;
	pthread_t thread;
	struct device *device;
	struct stream *stream;
	struct comm *comm;
	float *x, *weight;
	void *h;
	uint32_t *noise;              /* host */
	double *call_us, *enqueue_us; /* [repeat + 1] */
	enum status st;
	struct error err;
};

static enum status launch(struct rank *rank, const struct shape *shape, bool norm, struct error *err)
{
	struct all_reduce_args args = {.x = tensor_view(rank->x, DTYPE_F32, TENSOR_REPLICATED, shape->rows, shape->cols), .add_residual = true};
	TRY(COMM(rank->comm, partial, shape->rows, &args.partial, err));
	if (norm) {
		args.norm_weight = rank->weight;
		args.norm_eps = 1e-5f;
		args.h = tensor_view(rank->h, rank->bench->dtype, TENSOR_REPLICATED, shape->rows, shape->cols);
	}
	return COMM(rank->comm, all_reduce, rank->stream, &args, err);
}

/* Random bits with small exponents in place of what a linear would have written. */
static enum status fill_partial(struct rank *rank, const struct shape *shape, struct error *err)
{
	struct tensor partial;
	TRY(COMM(rank->comm, partial, shape->rows, &partial, err));
	size_t bytes = (size_t)partial.slots * (size_t)partial.slot_stride * dtype_bytes(partial.dtype);
	for (size_t done = 0; done < bytes; done += NOISE_BYTES)
		TRY(rank->device->vt->copy(rank->stream, (char *)partial.data + done, rank->noise, bytes - done < NOISE_BYTES ? bytes - done : NOISE_BYTES,
		                           COPY_TO_DEVICE, err));
	return comm_sync(rank->comm, rank->stream, err);
}

static enum status one_call(struct rank *rank, const struct shape *shape, int run, struct error *err)
{
	TRY(COMM(rank->comm, barrier, err));
	uint64_t start = clock_ns();
	TRY(launch(rank, shape, false, err));
	uint64_t queued = clock_ns();
	TRY(comm_sync(rank->comm, rank->stream, err));
	rank->call_us[run] = (double)(clock_ns() - start) / 1e3;
	rank->enqueue_us[run] = (double)(queued - start) / 1e3;
	return STATUS_OK;
}

/* Median time of a call in a recorded graph. */
static enum status in_graph(struct rank *rank, const struct shape *shape, bool norm, double *us, struct error *err)
{
	const struct device_ops *vt = rank->device->vt;
	const bool large = (size_t)shape->rows * (size_t)shape->cols * dtype_bytes(rank->bench->dtype) >= LARGE_BYTES;
	const int calls = large ? GRAPH_CALLS_LARGE : GRAPH_CALLS;
	double times[REPLAYS + 1];
	struct graph *graph = NULL;
	enum status st = vt->graph_begin(rank->stream, err);
	if (st != STATUS_OK) return st;
	for (int i = 0; i < calls && st == STATUS_OK; i++) st = launch(rank, shape, norm, err);
	st = device_graph_end(rank->stream, st, &graph, err);
	for (int i = 0; i <= REPLAYS && st == STATUS_OK; i++) {
		TRY_GOTO(COMM(rank->comm, barrier, err), end);
		uint64_t start = clock_ns();
		TRY_GOTO(vt->graph_launch(graph, rank->stream, err), end);
		rank->comm->vt->replayed(rank->comm, (uint64_t)calls, (uint64_t)calls);
		TRY_GOTO(comm_sync(rank->comm, rank->stream, err), end);
		times[i] = (double)(clock_ns() - start) / 1e3 / calls;
	}
	*us = percentile(times + 1, REPLAYS, 0.5);
end:
	vt->graph_destroy(graph);
	return st;
}

static enum status one_shape(struct rank *rank, struct shape *shape, struct error *err)
{
	int repeat = rank->bench->settings->repeat;
	struct figures f = {0};
	TRY(fill_partial(rank, shape, err));
	for (int run = 0; run <= repeat; run++) TRY(one_call(rank, shape, run, err));
	if (rank->device->vt->graph_begin && rank->comm->vt->replayed) {
		TRY(in_graph(rank, shape, false, &f.graph_us, err));
		TRY(in_graph(rank, shape, true, &f.graph_norm_us, err));
	}
	if (rank->index) return STATUS_OK;
	f.cold_us = rank->call_us[0];
	f.enqueue_us = percentile(rank->enqueue_us + 1, repeat, 0.5);
	f.p50_us = percentile(rank->call_us + 1, repeat, 0.5);
	f.p95_us = percentile(rank->call_us + 1, repeat, 0.95);
	f.p99_us = percentile(rank->call_us + 1, repeat, 0.99);
	shape->way[rank->bench->way] = f;
	return STATUS_OK;
}

static enum status allocate(struct rank *rank, int cols, struct error *err)
{
	const struct device_ops *vt = rank->device->vt;
	const size_t n = (size_t)rank->bench->max_rows * (size_t)cols;
	TRY(vt->alloc(rank->device, n * sizeof(float), MEM_WORKSPACE, "activations", (void **)&rank->x, err));
	TRY(vt->alloc(rank->device, n * sizeof(float), MEM_WORKSPACE, "activations", &rank->h, err));
	return vt->alloc(rank->device, (size_t)cols * sizeof(float), MEM_WORKSPACE, "norm weight", (void **)&rank->weight, err);
}

static void release(struct rank *rank)
{
	rank->device->vt->free(rank->device, rank->x);
	rank->device->vt->free(rank->device, rank->h);
	rank->device->vt->free(rank->device, rank->weight);
	rank->x = rank->weight = rank->h = NULL;
}

static enum status one_width(struct rank *rank, int first, int count, struct error *err)
{
	struct bench *b = rank->bench;
	int cols = b->shapes[first].cols;
	struct comm_options options = {.max_rows = b->max_rows, .cols = cols, .dtype = b->dtype, .tree_leaves = b->settings->tp,
	                               .transport = b->transports[b->way]};
	enum status st;
	TRY_GOTO(allocate(rank, cols, err), end);
	TRY_GOTO(comm_create(&rank->comm, b->group, rank->index, rank->device, rank->stream, &options, err), end);
	if (rank->index == 0) snprintf(b->names[b->way], sizeof b->names[0], "%s", rank->comm->vt->name);
	for (int i = 0; i < count; i++) TRY_GOTO(one_shape(rank, &b->shapes[first + i], err), end);
	TRY_GOTO(COMM(rank->comm, barrier, err), end); /* peers read this rank's scratch until here */
end:
	if (st != STATUS_OK) group_abort(b->group, rank->index, err);
	release(rank);
	return st;
}

static enum status run_rank(struct rank *rank, struct error *err)
{
	struct bench *b = rank->bench;
	TRY(b->fleet.ops->open(&rank->device, &b->fleet.options[rank->index], err));
	struct stream_options stream = {.max_rows = b->max_rows, .max_k = 64, .max_n = 64, .max_q_heads = 1, .max_head_dim = 64, .max_context = 64};
	TRY(b->fleet.ops->stream_create(rank->device, &stream, &rank->stream, err));
	int per_width = b->settings->rows.count;
	for (int first = 0; first < b->shape_count; first += per_width) {
		TRY(one_width(rank, first, per_width, err));
		comm_destroy(&rank->comm);
	}
	if (rank->index) return STATUS_OK;
	snprintf(b->isa, sizeof b->isa, "%s", b->fleet.ops->flavour(rank->device));
	b->threads = b->fleet.ops->threads(rank->device) * b->settings->tp;
	return STATUS_OK;
}

static void *rank_main(void *argument)
{
	struct rank *rank = argument;
	rank->st = run_rank(rank, &rank->err);
	if (rank->st != STATUS_OK) group_abort(rank->bench->group, rank->index, &rank->err);
	return NULL;
}

static void close_rank(struct rank *rank)
{
	const struct device_ops *ops = rank->bench->fleet.ops;
	if (rank->device) ops->attach(rank->device);
	comm_destroy(&rank->comm);
	if (rank->stream) ops->stream_destroy(rank->stream);
	if (rank->device) ops->close(rank->device);
	free(rank->noise);
	free(rank->call_us);
	free(rank->enqueue_us);
}

/* Host memory of a rank. */
static enum status prepare_rank(struct rank *rank, struct error *err)
{
	size_t runs = (size_t)rank->bench->settings->repeat + 1;
	rank->call_us = mem_zalloc(runs, sizeof(double), "times", err);
	rank->enqueue_us = rank->call_us ? mem_zalloc(runs, sizeof(double), "times", err) : NULL;
	rank->noise = rank->enqueue_us ? mem_zalloc(1, NOISE_BYTES, "noise", err) : NULL;
	if (!rank->noise) return STATUS_NO_MEMORY;
	for (size_t i = 0; i < NOISE_BYTES / 4; i++) /* 16-bit halves, or a float, of magnitude below 2 */
		rank->noise[i] = (uint32_t)rng_u64(1, (uint64_t)rank->index, i) & 0xbfffbfffu;
	return STATUS_OK;
}

/* Starts all ranks and waits for them; their memory is freed when all have ended, for they read one another's. */
static enum status run_ranks(struct bench *b, struct rank *ranks, struct error *err)
{
	int started = 0, P = b->settings->tp;
	enum status st = STATUS_OK;
	for (int r = 0; r < P && st == STATUS_OK; r++) {
		struct rank *rank = &ranks[r];
		*rank = (struct rank){.bench = b, .index = r};
		st = prepare_rank(rank, err);
		if (st != STATUS_OK) continue;
		if (thread_start(&rank->thread, NULL, rank_main, rank) != 0) st = FAIL(err, NO_MEMORY, "rank %d: no thread; use fewer ranks", r);
		else started++;
	}
	if (st != STATUS_OK) group_abort(b->group, -1, err);
	for (int r = 0; r < started; r++) pthread_join(ranks[r].thread, NULL);
	if (st == STATUS_OK) st = group_error(b->group, err);
	for (int r = 0; r < P; r++)
		if (ranks[r].bench) close_rank(&ranks[r]);
	return st;
}

/* One transport after the other. Where nobody asked for it by name, one that cannot connect is left out. */
static enum status run_ways(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	struct group_options options = {.world_size = s->tp, .timeout_ms = (uint64_t)s->timeout_ms};
	struct rank *ranks = mem_zalloc((size_t)s->tp, sizeof *ranks, "ranks", err);
	enum status st = ranks ? STATUS_OK : STATUS_NO_MEMORY;
	for (b->way = 0; b->way < b->ways && st == STATUS_OK; b->way++) {
		TRY_GOTO(group_create(&b->group, &options, err), end);
		st = run_ranks(b, ranks, err);
		group_destroy(&b->group);
		if (st != STATUS_UNSUPPORTED || b->ways == 1 || (b->way + 1 == b->ways && !b->names[0][0])) continue;
		fprintf(stderr, "tandem: %s\n", err->text);
		*err = (struct error){0};
		st = STATUS_OK;
	}
end:
	free(ranks);
	return st;
}

static enum status make_shapes(struct bench *b, struct error *err)
{
	const struct int_list *rows = &b->settings->rows, *hidden = &b->settings->hidden;
	if (!rows->count || !hidden->count) return FAIL(err, USAGE, "bench collective: no shape; give --rows and --hidden at least one size");
	b->shape_count = rows->count * hidden->count;
	b->shapes = mem_zalloc((size_t)b->shape_count, sizeof *b->shapes, "shapes", err);
	if (!b->shapes) return STATUS_NO_MEMORY;
	for (int i = 0; i < b->shape_count; i++) {
		b->shapes[i] = (struct shape){.rows = rows->items[i % rows->count], .cols = hidden->items[i / rows->count]};
		if (b->shapes[i].rows > b->max_rows) b->max_rows = b->shapes[i].rows;
	}
	return STATUS_OK;
}

/* What the options leave open depends on the device: a CPU has one transport and F32 partials. */
static enum status choose_ways(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	const bool eager = !b->fleet.ops->graph_begin;
	const char *dtype = strcmp(s->dtype, "auto") ? s->dtype : eager ? "f32" : "bf16";
	b->dtype = !strcmp(dtype, "f32") ? DTYPE_F32 : !strcmp(dtype, "f16") ? DTYPE_F16 : DTYPE_BF16;
	b->ways = 1;
	b->transports[0] = s->transport;
	if (!strcmp(s->transport, "auto") && !eager && s->tp > 1) {
		b->transports[0] = "p2p";
		b->transports[b->ways++] = "xccl";
	}
	if (eager && b->dtype != DTYPE_F32) return FAIL(err, USAGE, "--dtype %s: on %s partials are f32", s->dtype, b->fleet.ops->name);
	if (!eager && s->tp < 2) return FAIL(err, USAGE, "--tp %d: one rank on %s has no all-reduce; expected 2 or more", s->tp, b->fleet.ops->name);
	return STATUS_OK;
}

/* All ranks together, where they draw on one memory: residual, norm and two halves of scratch, and a slice of one where there are more than two. */
static enum status check_room(struct bench *b, struct error *err)
{
	const struct device_ops *ops = b->fleet.ops;
	struct device *device;
	double elements = 0;
	if (!ops->one_memory) return STATUS_OK; /* each device refuses what it has no room for */
	for (int i = 0; i < b->shape_count; i++)
		if ((double)b->max_rows * b->shapes[i].cols > elements) elements = (double)b->max_rows * b->shapes[i].cols;
	TRY(ops->open(&device, &b->fleet.options[0], err));
	enum status st = device_room(device, elements * sizeof(float) * (4 * b->settings->tp + 1), "bench collective", "fewer --rows, --hidden or --tp", err);
	ops->close(device);
	return st;
}

static double payload_bytes(const struct bench *b, const struct shape *s)
{
	return (double)s->rows * s->cols * (double)dtype_bytes(b->dtype);
}

static enum status print_json(const struct bench *b, struct error *err)
{
	json_t *results = json_array();
	for (int w = 0; w < b->ways; w++)
		for (int i = 0; i < b->shape_count && b->names[w][0]; i++) {
			const struct shape *s = &b->shapes[i];
			const struct figures *f = &s->way[w];
			json_t *one = json_pack("{s:s,s:i,s:i,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "transport", b->names[w], "rows", s->rows, "hidden", s->cols,
			                        "dtype", dtype_name(b->dtype), "bytes", payload_bytes(b, s), "cold_us", f->cold_us, "enqueue_us", f->enqueue_us,
			                        "p50_us", f->p50_us, "p95_us", f->p95_us, "p99_us", f->p99_us, "payload_gb_per_s",
			                        per_second(payload_bytes(b, s) / 1e9, (f->graph_us > 0 ? f->graph_us : f->p50_us) / 1e3));
			if (f->graph_us > 0) {
				json_object_set_new(one, "graph_us", json_real(f->graph_us));
				json_object_set_new(one, "graph_norm_us", json_real(f->graph_norm_us));
			}
			json_array_append_new(results, one);
		}
	return output_json(json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:o}", "collective", "all_reduce", "back_end", b->names[0][0] ? b->names[0] : b->names[1],
	                             "device", b->fleet.ops->name, "isa", b->isa, "world_size", b->settings->tp, "threads", b->threads, "repeat",
	                             b->settings->repeat, "results", results), err);
}

static enum status print_row(const struct bench *b, const struct shape *s, int way, struct buf *out, struct error *err)
{
	const struct figures *f = &s->way[way];
	char bytes[24], graph[40] = "";
	if (f->graph_us > 0) snprintf(graph, sizeof graph, " %9.2f %9.2f", f->graph_us, f->graph_norm_us);
	return buf_printf(out, err, "%5d %6d %9s %6s %9.1f %9.1f %9.1f %9.1f %9.1f%s %9.2f\n", s->rows, s->cols, format_bytes(payload_bytes(b, s), bytes),
	                  b->names[way], f->cold_us, f->enqueue_us, f->p50_us, f->p95_us, f->p99_us, graph,
	                  per_second(payload_bytes(b, s) / 1e9, (f->graph_us > 0 ? f->graph_us : f->p50_us) / 1e3));
}

static enum status print_table(const struct bench *b, struct error *err)
{
	struct buf out = {0};
	const bool graphs = b->fleet.ops->graph_begin != NULL;
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "all_reduce of %s, %s (%s), %d ranks, %d threads, %d calls a shape, microseconds%s\n", dtype_name(b->dtype),
	                    b->fleet.ops->name, b->isa, b->settings->tp, b->threads, b->settings->repeat,
	                    graphs ? "; graph: a call in a recorded graph, +norm: with the norm that follows" : ""), end);
	TRY_GOTO(buf_printf(&out, err, "%5s %6s %9s %6s %9s %9s %9s %9s %9s%s %9s\n", "T", "H", "bytes", "by", "cold", "enqueue", "p50", "p95", "p99",
	                    graphs ? "     graph     +norm" : "", "GB/s"), end);
	for (int i = 0; i < b->shape_count; i++)
		for (int w = 0; w < b->ways; w++)
			if (b->names[w][0]) TRY_GOTO(print_row(b, &b->shapes[i], w, &out, err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

enum status cmd_bench_collective(const struct settings *settings, struct error *err)
{
	struct bench b = {.settings = settings};
	enum status st;
	TRY(fleet_init(&b.fleet, settings, settings->tp, err));
	TRY_GOTO(make_shapes(&b, err), end);
	TRY_GOTO(choose_ways(&b, err), end);
	TRY_GOTO(check_room(&b, err), end);
	st = run_ways(&b, err);
	if (st == STATUS_OK) st = settings->json ? print_json(&b, err) : print_table(&b, err);
end:
	free(b.shapes);
	fleet_fini(&b.fleet);
	return st;
}
