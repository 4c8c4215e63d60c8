/* `tandem bench collective`: the all-reduce of [T,H] f32 over the ranks of this machine, as a step does it twice a layer.
 *
 * One call: take the scratch, all-reduce, wait for the stream. Times are rank 0's, whose call cannot end before the last rank came. The
 * first call of a shape is reported apart (cold); the ranks meet before every timed call, so that a late rank of the call before
 * does not count. Writing the partial is the linear's work and is not timed.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/console.h"
#include "apps/measure.h"
#include "base/clock.h"
#include "base/mem.h"
#include "comm/comm.h"

struct shape {
	int rows, cols;
	double cold_us, enqueue_us, p50_us, p95_us, p99_us;
};

struct bench {
	const struct settings *settings;
	struct fleet fleet;
	struct group *group;
	struct shape *shapes; /* of one hidden size after the other */
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
	void *x;
	double *call_us, *enqueue_us; /* [repeat + 1] */
	enum status st;
	struct error err;
};

static enum status one_call(struct rank *rank, const struct shape *shape, int run, struct error *err)
{
	struct all_reduce_args args = {.x = tensor_view(rank->x, DTYPE_F32, TENSOR_REPLICATED, shape->rows, shape->cols), .add_residual = true};
	TRY(COMM(rank->comm, partial, shape->rows, &args.partial, err));
	TRY(COMM(rank->comm, barrier, err));
	uint64_t start = clock_ns();
	TRY(COMM(rank->comm, all_reduce, rank->stream, &args, err));
	uint64_t queued = clock_ns();
	uint64_t deadline = clock_deadline_ms((uint64_t)rank->bench->settings->timeout_ms);
	TRY(rank->device->vt->stream_sync(rank->stream, deadline, group_abort_flag(rank->bench->group), err));
	rank->call_us[run] = (double)(clock_ns() - start) / 1e3;
	rank->enqueue_us[run] = (double)(queued - start) / 1e3;
	return STATUS_OK;
}

static enum status one_shape(struct rank *rank, struct shape *shape, struct error *err)
{
	int repeat = rank->bench->settings->repeat;
	for (int run = 0; run <= repeat; run++) TRY(one_call(rank, shape, run, err));
	if (rank->index) return STATUS_OK;
	shape->cold_us = rank->call_us[0];
	shape->enqueue_us = percentile(rank->enqueue_us + 1, repeat, 0.5);
	shape->p50_us = percentile(rank->call_us + 1, repeat, 0.5);
	shape->p95_us = percentile(rank->call_us + 1, repeat, 0.95);
	shape->p99_us = percentile(rank->call_us + 1, repeat, 0.99);
	return STATUS_OK;
}

static enum status one_width(struct rank *rank, int first, int count, struct error *err)
{
	const struct bench *b = rank->bench;
	int cols = b->shapes[first].cols;
	struct comm_options options = {.max_rows = b->max_rows, .cols = cols, .tree_leaves = b->settings->tp};
	enum status st;
	TRY(comm_host_create(&rank->comm, b->group, rank->index, rank->device, rank->stream, &options, err));
	TRY_GOTO(rank->device->vt->alloc(rank->device, (size_t)b->max_rows * (size_t)cols * sizeof(float), MEM_WORKSPACE, "activations", &rank->x,
	                                 err), end);
	for (int i = 0; i < count; i++) TRY_GOTO(one_shape(rank, &rank->bench->shapes[first + i], err), end);
	TRY_GOTO(COMM(rank->comm, barrier, err), end); /* peers read this rank's scratch until here */
end:
	if (st != STATUS_OK) group_abort(b->group, rank->index, err);
	rank->device->vt->free(rank->device, rank->x);
	rank->x = NULL;
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
	comm_destroy(&rank->comm);
	if (rank->stream) ops->stream_destroy(rank->stream);
	if (rank->device) ops->close(rank->device);
	free(rank->call_us);
	free(rank->enqueue_us);
}

/* Starts all ranks and waits for them; their memory is freed when all have ended, for they read one another's. */
static enum status run_ranks(struct bench *b, struct rank *ranks, struct error *err)
{
	int started = 0, P = b->settings->tp;
	size_t runs = (size_t)b->settings->repeat + 1;
	enum status st = STATUS_OK;
	for (int r = 0; r < P && st == STATUS_OK; r++) {
		struct rank *rank = &ranks[r];
		*rank = (struct rank){.bench = b, .index = r};
		rank->call_us = mem_zalloc(runs, sizeof(double), "times", err);
		rank->enqueue_us = rank->call_us ? mem_zalloc(runs, sizeof(double), "times", err) : NULL;
		if (!rank->enqueue_us) st = STATUS_NO_MEMORY;
		else if (pthread_create(&rank->thread, NULL, rank_main, rank) != 0) st = FAIL(err, NO_MEMORY, "rank %d: no thread; use fewer ranks", r);
		else started++;
	}
	if (st != STATUS_OK) group_abort(b->group, -1, err);
	for (int r = 0; r < started; r++) pthread_join(ranks[r].thread, NULL);
	if (st == STATUS_OK) st = group_error(b->group, err);
	for (int r = 0; r < P; r++)
		if (ranks[r].bench) close_rank(&ranks[r]);
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

static double payload_bytes(const struct shape *s)
{
	return (double)s->rows * s->cols * 4;
}

static enum status print_json(const struct bench *b, struct error *err)
{
	json_t *results = json_array();
	for (int i = 0; i < b->shape_count; i++) {
		const struct shape *s = &b->shapes[i];
		json_array_append_new(results, json_pack("{s:i,s:i,s:s,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "rows", s->rows, "hidden", s->cols, "dtype", "F32",
		                                         "bytes", payload_bytes(s), "cold_us", s->cold_us, "enqueue_us", s->enqueue_us, "p50_us",
		                                         s->p50_us, "p95_us", s->p95_us, "p99_us", s->p99_us, "payload_gb_per_s",
		                                         per_second(payload_bytes(s) / 1e9, s->p50_us / 1e3)));
	}
	return output_json(json_pack("{s:s,s:s,s:s,s:s,s:i,s:i,s:i,s:o}", "collective", "all_reduce", "back_end", "host", "device",
	                             b->fleet.ops->name, "isa", b->isa, "world_size", b->settings->tp, "threads", b->threads, "repeat",
	                             b->settings->repeat, "results", results), err);
}

static enum status print_table(const struct bench *b, struct error *err)
{
	struct buf out = {0};
	char bytes[24];
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "all_reduce, host, %s (%s), %d ranks, %d threads, %d calls a shape, microseconds\n", b->fleet.ops->name, b->isa,
	                    b->settings->tp, b->threads, b->settings->repeat), end);
	TRY_GOTO(buf_printf(&out, err, "%5s %6s %9s %9s %9s %9s %9s %9s %9s\n", "T", "H", "f32", "cold", "enqueue", "p50", "p95", "p99", "GB/s"), end);
	for (int i = 0; i < b->shape_count; i++) {
		const struct shape *s = &b->shapes[i];
		TRY_GOTO(buf_printf(&out, err, "%5d %6d %9s %9.1f %9.1f %9.1f %9.1f %9.1f %9.2f\n", s->rows, s->cols,
		                    format_bytes(payload_bytes(s), bytes), s->cold_us, s->enqueue_us, s->p50_us, s->p95_us, s->p99_us,
		                    per_second(payload_bytes(s) / 1e9, s->p50_us / 1e3)), end);
	}
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

enum status cmd_bench_collective(const struct settings *settings, struct error *err)
{
	struct bench b = {.settings = settings};
	struct group_options group = {.world_size = settings->tp, .timeout_ms = (uint64_t)settings->timeout_ms};
	struct rank *ranks = NULL;
	enum status st;
	TRY(fleet_init(&b.fleet, settings, settings->tp, err));
	TRY_GOTO(make_shapes(&b, err), end);
	TRY_GOTO(group_create(&b.group, &group, err), end);
	ranks = mem_zalloc((size_t)settings->tp, sizeof *ranks, "ranks", err);
	st = ranks ? run_ranks(&b, ranks, err) : STATUS_NO_MEMORY;
	if (st == STATUS_OK) st = settings->json ? print_json(&b, err) : print_table(&b, err);
end:
	free(ranks);
	group_destroy(&b.group);
	free(b.shapes);
	fleet_fini(&b.fleet);
	return st;
}
