/* `tandem bench gemm`: each linear of a model through the device's own op table: the whole matrix, and the part that one rank holds
 * at each world size, with that rank's share of the threads.
 *
 * One rank runs alone, so its share of the memory bandwidth is better than in a step. Copies of the weights are used in turn, more
 * of them than the caches hold, where half of the free memory has room for so many. Values are invented; their cost does not depend on them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/console.h"
#include "apps/measure.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/plan.h"

#define ROTATE_BYTES ((size_t)512 << 20) /* beyond the last-level cache of large servers */
#define ROTATE_MAX 1024

struct result {
	char family[32];
	const char *kind;
	int world_size, threads, rows, n, k;
	double us;
	double weight_bytes;
	double speedup; /* over the same family and rows at the first world size; 0: that is this one */
};

struct bench {
	const struct settings *settings;
	struct model_config config;
	struct fleet fleet;
	struct device *device;
	struct stream *stream;
	struct result *results;
	int count;
	int max_rows;
	double *times;
	char isa[24];
};

/* One linear on the device. */
struct linear {
	struct linear_weight copy[ROTATE_MAX];
	int copies, next;
	void *x, *y;
	struct sum_split split;
	bool row_parallel;
};

static bool measured(const struct plan_family *f)
{
	return strcmp(f->kind, "replicated") != 0;
}

static void free_linear(struct bench *b, struct linear *l)
{
	for (int i = 0; i < l->copies; i++) b->fleet.ops->free(b->device, l->copy[i].data);
	b->fleet.ops->free(b->device, l->x);
	b->fleet.ops->free(b->device, l->y);
}

/* All rows get the same invented values: what they are does not matter. */
static enum status fill_weight(struct bench *b, const struct linear_weight *w, struct error *err)
{
	if (w->k % dtype_block(w->dtype))
		return FAIL(err, UNSUPPORTED, "bench gemm: %d inputs are no whole blocks of %d (%s); use another --tp", w->k, dtype_block(w->dtype), dtype_name(w->dtype));
	uint8_t *row = mem_zalloc(dtype_size(w->dtype, (size_t)w->k), 1, "a row of weights", err);
	if (!row) return STATUS_NO_MEMORY;
	if (!dtype_is_plain(w->dtype)) memset(row, 0x2c, dtype_size(w->dtype, (size_t)w->k)); /* all scales are 0.065 */
	for (int i = 0; dtype_is_plain(w->dtype) && i < w->k; i++) {
		float value = (float)(rng_unit(1, 0, (uint64_t)i) - 0.5);
		uint32_t bits = f32_to_bits(value);
		uint16_t half = w->dtype == DTYPE_BF16 ? bf16_from_f32(value) : (uint16_t)(0x3000 | (bits & 0x3ff)); /* F16: some normal number */
		if (w->dtype == DTYPE_F32) memcpy(row + 4 * (size_t)i, &bits, 4);
		else memcpy(row + 2 * (size_t)i, &half, 2);
	}
	enum status st = b->fleet.ops->linear_put(b->stream, w, 0, w->n, row, 0, err);
	free(row);
	return st;
}

static struct sum_split split_of(const struct bench *b, int world_size)
{
	struct sum_split split = {.tree_leaves = shard_tree_leaves(&b->config)};
	split.leaves = split.tree_leaves / world_size;
	split.spans = sumtree_spans(split.tree_leaves, 0, split.leaves, split.span);
	return split;
}

static enum status make_linear(struct bench *b, struct linear *l, const struct plan_family *f, int world_size, struct error *err)
{
	const struct device_ops *ops = b->fleet.ops;
	int n = (int)f->local_n, k = (int)f->local_k;
	*l = (struct linear){.row_parallel = !strcmp(f->kind, "row")};
	if (l->row_parallel) l->split = split_of(b, world_size);
	size_t slots = l->row_parallel ? (size_t)l->split.spans : 1, rows = (size_t)b->max_rows;
	TRY(ops->alloc(b->device, rows * (size_t)k * 4, MEM_WORKSPACE, "activations", &l->x, err));
	TRY(ops->alloc(b->device, slots * rows * (size_t)n * 4, MEM_WORKSPACE, "activations", &l->y, err));
	const size_t bytes = ops->linear_bytes(b->config.dtype, n, k), half = ops->free_bytes(b->device) / 2;
	size_t copies = ROTATE_BYTES / bytes + 1;
	if (copies > half / bytes) copies = half / bytes ? half / bytes : 1;
	if (copies > ROTATE_MAX) copies = ROTATE_MAX;
	while (l->copies < (int)copies) {
		struct linear_weight *w = &l->copy[l->copies];
		*w = (struct linear_weight){.dtype = b->config.dtype, .n = n, .k = k};
		TRY(ops->alloc(b->device, bytes, MEM_SHARDED, f->family, &w->data, err));
		l->copies++;
		TRY(fill_weight(b, w, err));
	}
	return STATUS_OK;
}

static enum status time_linear(struct bench *b, struct linear *l, int rows, double *us, struct error *err)
{
	int repeat = b->settings->repeat, n = l->copy[0].n, k = l->copy[0].k;
	const enum dtype activation = device_activation(b->fleet.ops, b->config.dtype);
	struct linear_args args = {.x = tensor_view(l->x, activation, l->row_parallel ? TENSOR_SHARDED : TENSOR_REPLICATED, rows, k),
	                           .split = l->row_parallel ? &l->split : NULL,
	                           .y = tensor_view(l->y, activation, l->row_parallel ? TENSOR_PARTIAL : TENSOR_SHARDED, rows, n)};
	if (l->row_parallel) args.y.slots = l->split.spans;
	for (int run = -1; run < repeat; run++) {
		args.weight = &l->copy[l->next++ % l->copies]; /* the one that was used or filled longest ago */
		uint64_t start = clock_ns();
		TRY(OP(b->stream, linear, &args, err));
		TRY(b->fleet.ops->stream_sync(b->stream, clock_deadline_ms((uint64_t)b->settings->timeout_ms), NULL, err));
		if (run >= 0) b->times[run] = (double)(clock_ns() - start) / 1e3;
	}
	*us = percentile(b->times, repeat, 0.5);
	return STATUS_OK;
}

static void set_speedup(const struct bench *b, struct result *r)
{
	for (int i = 0; i < b->count; i++) {
		const struct result *first = &b->results[i];
		if (first->world_size == r->world_size || first->rows != r->rows || strcmp(first->family, r->family) != 0) continue;
		r->speedup = r->us > 0 ? first->us / r->us : 0;
		return;
	}
}

static enum status measure_family(struct bench *b, const struct plan_family *f, int world_size, struct error *err)
{
	struct linear linear = {0};
	enum status st;
	TRY_GOTO(make_linear(b, &linear, f, world_size, err), end);
	for (int i = 0; i < b->settings->rows.count; i++) {
		struct result r = {.kind = f->kind, .world_size = world_size, .threads = b->fleet.ops->threads(b->device),
		                   .rows = b->settings->rows.items[i], .n = (int)f->local_n, .k = (int)f->local_k};
		snprintf(r.family, sizeof r.family, "%s", f->family);
		r.weight_bytes = (double)dtype_size(b->config.dtype, (size_t)r.n * (size_t)r.k);
		TRY_GOTO(time_linear(b, &linear, r.rows, &r.us, err), end);
		set_speedup(b, &r);
		TRY_GOTO(mem_grow((void **)&b->results, (size_t)b->count + 1, sizeof r, "results", err), end);
		b->results[b->count++] = r;
	}
end:
	free_linear(b, &linear);
	return st;
}

/* Of one linear: its inputs, and as much of the stream's workspace; its outputs; one copy of its weights. */
static double bytes_of(const struct bench *b, const struct plan_family *f, int world_size)
{
	const double rows = b->max_rows, n = (double)f->local_n, k = (double)f->local_k, slots = strcmp(f->kind, "row") ? 1 : split_of(b, world_size).spans;
	return rows * k * 8 + slots * rows * n * 4 + (double)b->fleet.ops->linear_bytes(b->config.dtype, (int)f->local_n, (int)f->local_k);
}

static enum status open_rank(struct bench *b, const struct plan_degree *degree, struct error *err)
{
	struct stream_options stream = {.max_rows = b->max_rows, .max_q_heads = degree->q_heads, .max_head_dim = b->config.head_dim, .max_context = 64};
	for (int i = 0; i < degree->families; i++) {
		const struct plan_family *f = &degree->family[i];
		if (!measured(f)) continue;
		if (f->local_n > INT32_MAX || f->local_k > INT32_MAX)
			return FAIL(err, UNSUPPORTED, "%s: too large to measure; use a smaller model", f->family);
		if (f->local_n > stream.max_n) stream.max_n = (int)f->local_n;
		if (f->local_k > stream.max_k) stream.max_k = (int)f->local_k;
	}
	TRY(fleet_init_alone(&b->fleet, b->settings, degree->world_size, err));
	TRY(b->fleet.ops->open(&b->device, &b->fleet.options[0], err));
	snprintf(b->isa, sizeof b->isa, "%s", b->fleet.ops->flavour(b->device));
	for (int i = 0; i < degree->families; i++)
		if (measured(&degree->family[i]))
			TRY(device_room(b->device, bytes_of(b, &degree->family[i], degree->world_size), degree->family[i].family, "fewer --rows or a larger --tp", err));
	return b->fleet.ops->stream_create(b->device, &stream, &b->stream, err);
}

static void close_rank(struct bench *b)
{
	if (b->stream) b->fleet.ops->stream_destroy(b->stream);
	if (b->device) b->fleet.ops->close(b->device);
	b->stream = NULL;
	b->device = NULL;
	fleet_fini(&b->fleet);
}

static enum status measure_degree(struct bench *b, int world_size, struct error *err)
{
	struct plan_degree degree;
	struct plan_options options = {.max_rows = b->max_rows, .activation = DTYPE_F32, .kv = DTYPE_F32};
	plan_degree(&degree, &b->config, world_size, &options);
	if (!degree.legal)
		return FAIL(err, BAD_INPUT, "--tp %d: %s; leave it out", world_size, degree.reasons ? degree.reason[0] : "not possible for this model");
	enum status st;
	TRY_GOTO(open_rank(b, &degree, err), end);
	for (int i = 0; i < degree.families; i++)
		if (measured(&degree.family[i])) TRY_GOTO(measure_family(b, &degree.family[i], world_size, err), end);
end:
	close_rank(b);
	return st;
}

static double gb_per_s(const struct result *r)
{
	return per_second(r->weight_bytes / 1e9, r->us / 1e3);
}

static double gflop_per_s(const struct result *r)
{
	return per_second(2e-9 * r->rows * r->n * r->k, r->us / 1e3);
}

static enum status print_json(const struct bench *b, struct error *err)
{
	json_t *results = json_array();
	for (int i = 0; i < b->count; i++) {
		const struct result *r = &b->results[i];
		json_array_append_new(results, json_pack("{s:s,s:s,s:i,s:i,s:i,s:[i,i],s:f,s:f,s:f,s:o}", "family", r->family, "kind", r->kind, "world_size",
		                                         r->world_size, "threads", r->threads, "rows", r->rows, "shape", r->n, r->k, "us", r->us,
		                                         "weight_gb_per_s", gb_per_s(r), "gflop_per_s", gflop_per_s(r), "speedup",
		                                         r->speedup > 0 ? json_real(r->speedup) : json_null()));
	}
	return output_json(json_pack("{s:o,s:s,s:s,s:s,s:i,s:o}", "model", json_path(b->settings->model), "device", b->settings->device, "isa", b->isa, "dtype",
	                             dtype_name(b->config.dtype), "repeat", b->settings->repeat, "results", results), err);
}

static enum status print_table(const struct bench *b, struct error *err)
{
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "%s (%s), weights %s, median of %d calls, one rank alone\n%-16s %-10s %3s %7s %5s %7s %7s %10s %8s %9s %8s\n",
	                    b->settings->device, b->isa, dtype_name(b->config.dtype), b->settings->repeat, "linear", "kind", "TP", "threads", "T", "N",
	                    "K", "us", "GB/s", "GFLOP/s", "speedup"), end);
	for (int i = 0; i < b->count; i++) {
		const struct result *r = &b->results[i];
		TRY_GOTO(buf_printf(&out, err, "%-16s %-10s %3d %7d %5d %7d %7d %10.1f %8.2f %9.1f ", r->family, r->kind, r->world_size, r->threads, r->rows,
		                    r->n, r->k, r->us, gb_per_s(r), gflop_per_s(r)), end);
		if (r->speedup > 0) TRY_GOTO(buf_printf(&out, err, "%8.2f\n", r->speedup), end);
		else TRY_GOTO(buf_puts(&out, "       -\n", err), end);
	}
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

static enum status run_all(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	if (!s->rows.count || !s->degrees.count) return FAIL(err, USAGE, "bench gemm: nothing to measure; give --rows and --tp at least one number");
	for (int i = 0; i < s->rows.count; i++)
		if (s->rows.items[i] > b->max_rows) b->max_rows = s->rows.items[i];
	TRY(model_config_load(&b->config, s->model, NULL, err));
	b->times = mem_zalloc((size_t)s->repeat, sizeof *b->times, "times", err);
	if (!b->times) return STATUS_NO_MEMORY;
	for (int i = 0; i < s->degrees.count; i++) TRY(measure_degree(b, s->degrees.items[i], err));
	return s->json ? print_json(b, err) : print_table(b, err);
}

enum status cmd_bench_gemm(const struct settings *settings, struct error *err)
{
	struct bench bench = {.settings = settings};
	enum status st = run_all(&bench, err);
	free(bench.results);
	free(bench.times);
	return st;
}
