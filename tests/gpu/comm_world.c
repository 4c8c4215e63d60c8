/* comm_world.c: see comm_world.h. */
#include "gpu/comm_world.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/sumtree.h"
#include "device/gpu/runtime.h"

#define EPS 1e-5f

/* ---- threads and devices */

bool world_open(struct world *w, const struct gpu_check *c, int P, size_t x_room, size_t room)
{
	int devices = 1;
	*w = (struct world){.ops = c->ops, .P = P, .seed = c->seed};
	if (gpu_device_count(&devices) != GPU_OK || devices < 1) devices = 1; /* opening says why */
	for (int r = 0; r < P; r++) {
		struct world_rank *rank = &w->rank[r];
		struct stream_options so = {.max_rows = 8, .max_k = 64, .max_n = 64, .max_q_heads = 1, .max_head_dim = 64, .max_context = 64, .max_seqs = 1};
		*rank = (struct world_rank){.world = w, .index = r};
		if (w->ops->open(&rank->device, &(struct device_options){.ordinal = r % devices, .sharers = (P + devices - 1 - r % devices) / devices}, &rank->err) == STATUS_OK &&
		    w->ops->stream_create(rank->device, &so, &rank->stream, &rank->err) == STATUS_OK &&
		    w->ops->alloc(rank->device, x_room * sizeof(float), MEM_WORKSPACE, "x", (void **)&rank->x, &rank->err) == STATUS_OK &&
		    w->ops->alloc(rank->device, room, MEM_WORKSPACE, "room", (void **)&rank->room, &rank->err) == STATUS_OK)
			continue;
		printf("FAIL comm: rank %d: %s\n", r, rank->err.text);
		world_close(w);
		return false;
	}
	return true;
}

void world_close(struct world *w)
{
	group_destroy(&w->group);
	for (int r = 0; r < w->P; r++) {
		struct world_rank *rank = &w->rank[r];
		if (!rank->device) continue;
		w->ops->attach(rank->device);
		w->ops->free(rank->device, rank->x);
		w->ops->free(rank->device, rank->room);
		if (rank->stream) w->ops->stream_destroy(rank->stream);
		for (int k = 0; k < WORLD_PINNED; k++) w->ops->host_free(rank->device, rank->pinned[k].data);
		w->ops->close(rank->device);
	}
}

void world_group(struct world *w, uint64_t timeout_ms, const char *fault)
{
	struct error err = {0};
	group_destroy(&w->group);
	w->plan = (struct fault_plan){0};
	struct group_options o = {.world_size = w->P, .timeout_ms = timeout_ms, .fault = fault ? &w->plan : NULL};
	if ((fault && fault_parse(&w->plan, fault, &err) != STATUS_OK) || group_create(&w->group, &o, &err) != STATUS_OK) {
		fprintf(stderr, "comm check: %s\n", err.text);
		abort();
	}
	for (int r = 0; r < w->P; r++) w->rank[r].st = STATUS_OK, w->rank[r].err = (struct error){0}, w->rank[r].complaint[0] = 0;
}

struct job {
	struct world_rank *rank;
	const struct comm_options *options;
	void (*body)(struct world_rank *rank);
};

static void *run_job(void *argument)
{
	struct job *job = argument;
	struct world_rank *rank = job->rank;
	rank->world->ops->attach(rank->device);
	if (job->options) {
		rank->options = *job->options;
		rank->st = comm_create(&rank->comm, rank->world->group, rank->index, rank->device, rank->stream, &rank->options, &rank->err);
		if (!rank->comm != (rank->st != STATUS_OK)) world_complain(rank, "comm_create: status %s, comm %p", status_name(rank->st), (void *)rank->comm);
	}
	if (job->body && rank->st == STATUS_OK) job->body(rank);
	if (rank->complaint[0]) group_abort(rank->world->group, rank->index, NULL);
	return NULL;
}

static void run_threads(struct world *w, const struct comm_options *options, void (*body)(struct world_rank *rank))
{
	struct job jobs[WORLD_MAX_RANKS];
	for (int r = 0; r < w->P; r++) {
		jobs[r] = (struct job){&w->rank[r], options, body};
		if (pthread_create(&w->rank[r].thread, NULL, run_job, &jobs[r])) abort();
	}
	for (int r = 0; r < w->P; r++) pthread_join(w->rank[r].thread, NULL);
}

void world_connect(struct world *w, const struct comm_options *options)
{
	run_threads(w, options, NULL);
}

void world_drop(struct world *w)
{
	for (int r = 0; r < w->P; r++) {
		w->ops->attach(w->rank[r].device);
		comm_destroy(&w->rank[r].comm);
	}
}

void world_run(struct world *w, const struct comm_options *options, void (*body)(struct world_rank *rank))
{
	run_threads(w, options, body);
	world_drop(w);
}

void world_complain(struct world_rank *rank, const char *format, ...)
{
	if (rank->complaint[0]) return;
	va_list args;
	va_start(args, format);
	vsnprintf(rank->complaint, sizeof rank->complaint, format, args);
	va_end(args);
}

bool world_report(struct world *w, struct gpu_check *c)
{
	bool good = true;
	for (int r = 0; r < w->P; r++) {
		struct world_rank *rank = &w->rank[r];
		if (rank->complaint[0]) gpu_fail(c, "rank %d: %s", r, rank->complaint);
		else if (rank->st != STATUS_OK) gpu_fail(c, "rank %d: %s: %s", r, status_name(rank->st), rank->err.text);
		else continue;
		good = false;
	}
	return good;
}

/* ---- numbers */

static float narrow(enum dtype dtype, float v)
{
	float stored;
	set_element(&stored, dtype, 0, (double)v);
	return (float)element(&stored, dtype, 0);
}

/* Magnitudes far apart: the order of a sum shows. */
static float number(const struct world *w, uint64_t g, int what, int64_t at)
{
	const double u = rng_unit(w->seed + g, (uint64_t)what, (uint64_t)at) * 2 - 1;
	return (float)ldexp(u, (int)(rng_u64(w->seed + g + 77, (uint64_t)what, (uint64_t)at) % 20) - 12);
}
enum { RESIDUAL = 5000, BIAS, WEIGHT };

/* Leaves [lo, hi) by the definition in sumtree.h, not by its code. */
static float subtree(const struct world *w, uint64_t g, int lo, int hi, int64_t at)
{
	const int n = hi - lo;
	if (n == 1) return number(w, g, lo, at);
	const int mid = n % 2 ? hi - 1 : lo + n / 2;
	const float a = subtree(w, g, lo, mid, at), b = subtree(w, g, mid, hi, at);
	return a + b;
}

static float partial_value(const struct world_rank *rank, uint64_t g, int owner, int slot, int64_t at)
{
	const struct comm_options *o = &rank->options;
	if (!o->invariant) return narrow(o->dtype, number(rank->world, g, owner, at));
	const struct sum_span *span = &rank->comm->split.span[slot];
	return subtree(rank->world, g, span->lo, span->hi, at);
}

static float sum_value(const struct world_rank *rank, uint64_t g, int64_t at, bool rounded)
{
	const struct world *w = rank->world;
	const struct comm_options *o = &rank->options;
	if (o->invariant) return subtree(w, g, 0, o->tree_leaves, at);
	float sum = partial_value(rank, g, 0, 0, at);
	for (int r = 1; r < w->P; r++) sum += partial_value(rank, g, r, 0, at);
	return rounded ? narrow(o->dtype, sum) : sum;
}

/* Two shots carry sums in the partials' type. */
static bool rounds(const struct world_rank *rank, int rows)
{
	const struct comm_options *o = &rank->options;
	const size_t bytes = (size_t)rows * (size_t)o->cols * dtype_bytes(o->dtype);
	return !o->invariant && rank->world->P > 2 && bytes > o->packet_bytes && bytes >= o->two_shot_bytes;
}

/* ---- one all-reduce */

static size_t x_bytes(const struct world_rank *rank, const struct world_sum *sum)
{
	return (size_t)sum->rows * (size_t)(rank->options.cols + sum->pad) * sizeof(float);
}

static enum status copy(struct world_rank *rank, void *to, const void *from, size_t bytes, enum copy_kind kind)
{
	return rank->world->ops->copy(rank->stream, to, from, bytes, kind, &rank->err);
}

/* Room of a rank: h, then bias, then norm weight. */
static unsigned char *h_at(const struct world_rank *rank)
{
	return rank->room;
}
static float *vector_at(const struct world_rank *rank, int which)
{
	const size_t h = ((size_t)rank->options.max_rows * (size_t)(rank->options.cols + 8) * 4 + 255) / 256 * 256;
	return (float *)(rank->room + h) + which * (rank->options.cols + 8);
}

static size_t partial_bytes(const struct tensor *partial)
{
	return (size_t)partial->slots * (size_t)partial->slot_stride * dtype_bytes(partial->dtype);
}

enum status world_take(struct world_rank *rank, size_t bytes, void **out)
{
	struct world_pinned *pinned = NULL;
	size_t room = 4096; /* powers of two, so that few sizes come up */
	while (room < bytes) room *= 2;
	for (int k = 0; k < WORLD_PINNED; k++) {
		struct world_pinned *p = &rank->pinned[k];
		if (p->taken || (p->data && p->bytes < bytes)) continue;
		if (!pinned || (p->data && (!pinned->data || p->bytes < pinned->bytes))) pinned = p; /* the smallest that is there and large enough */
	}
	if (!pinned) return FAIL(&rank->err, NO_ROOM, "test: no free place among %d for %zu bytes of pinned memory", WORLD_PINNED, bytes);
	if (!pinned->data) TRY(rank->world->ops->host_alloc(rank->device, room, "test", &pinned->data, &rank->err));
	if (!pinned->bytes) pinned->bytes = room;
	pinned->taken = true;
	*out = pinned->data;
	return STATUS_OK;
}

enum status world_prepare(struct world_rank *rank, const struct world_sum *sum, struct world_buffers *host)
{
	const struct world *w = rank->world;
	struct tensor shape, *partial = &shape;
	TRY(COMM(rank->comm, partial, sum->rows, partial, &rank->err));
	const int cols = rank->options.cols, width = cols + sum->pad;
	const size_t bytes = partial_bytes(partial);
	host->rank = rank;
	TRY(world_take(rank, bytes, (void **)&host->partial));
	TRY(world_take(rank, x_bytes(rank, sum), (void **)&host->x));
	TRY(world_take(rank, x_bytes(rank, sum), (void **)&host->result));
	TRY(world_take(rank, (size_t)sum->rows * (size_t)cols * 4, (void **)&host->h));
	TRY(world_take(rank, (size_t)cols * 2 * sizeof(float), (void **)&host->bias));
	host->weight = host->bias + cols;
	memset(host->partial, 0xff, bytes); /* NaN between the rows */
	for (int s = 0; s < partial->slots; s++)
		for (int64_t i = 0; i < (int64_t)sum->rows * cols; i++)
			set_element(host->partial, partial->dtype, (size_t)(s * partial->slot_stride + i / cols * partial->row_stride + i % cols),
			            (double)partial_value(rank, sum->g, rank->index, s, i));
	for (int row = 0; row < sum->rows; row++)
		for (int c = 0; c < width; c++) {
			const float v = c < cols ? number(w, sum->g, RESIDUAL, (int64_t)row * cols + c) : NAN;
			memcpy(host->x + ((size_t)row * (size_t)width + (size_t)c) * 4, &v, 4);
		}
	for (int c = 0; c < cols; c++) host->bias[c] = number(w, sum->g, BIAS, c), host->weight[c] = number(w, sum->g, WEIGHT, c);
	return STATUS_OK;
}

static enum status put_inputs(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host, const struct tensor *partial)
{
	const int cols = rank->options.cols;
	TRY(copy(rank, partial->data, host->partial, partial_bytes(partial), COPY_TO_DEVICE));
	TRY(copy(rank, rank->x, host->x, x_bytes(rank, sum), COPY_TO_DEVICE));
	TRY(copy(rank, vector_at(rank, 0), host->bias, (size_t)cols * 4, COPY_TO_DEVICE));
	return copy(rank, vector_at(rank, 1), host->weight, (size_t)cols * 4, COPY_TO_DEVICE);
}

enum status world_all_reduce(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host)
{
	const int cols = rank->options.cols;
	struct all_reduce_args args = {.add_residual = sum->add, .x = tensor_view(rank->x, DTYPE_F32, TENSOR_REPLICATED, sum->rows, cols)};
	args.x.row_stride = cols + sum->pad;
	TRY(COMM(rank->comm, partial, sum->rows, &args.partial, &rank->err));
	TRY(put_inputs(rank, sum, host, &args.partial));
	if (sum->bias) args.bias = vector_at(rank, 0);
	if (sum->norm) {
		args.norm_weight = vector_at(rank, 1);
		args.norm_eps = EPS;
		args.h = tensor_view(h_at(rank), rank->options.dtype, TENSOR_REPLICATED, sum->rows, cols);
	}
	TRY(COMM(rank->comm, all_reduce, rank->stream, &args, &rank->err));
	TRY(copy(rank, host->result, rank->x, x_bytes(rank, sum), COPY_TO_HOST));
	return sum->norm ? copy(rank, host->h, args.h.data, (size_t)sum->rows * (size_t)cols * dtype_bytes(args.h.dtype), COPY_TO_HOST) : STATUS_OK;
}

static void compare_h(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host, const float *x, int row)
{
	const int cols = rank->options.cols;
	const enum dtype dtype = rank->options.dtype;
	double squares = 0;
	for (int c = 0; c < cols; c++) squares += (double)x[c] * x[c];
	const double scale = 1 / sqrt(squares / cols + (double)EPS);
	for (int c = 0; c < cols; c++) {
		const unsigned char *at = host->h + ((size_t)row * (size_t)cols + (size_t)c) * dtype_bytes(dtype);
		const double want = x[c] * scale * host->weight[c], got = element(at, dtype, 0);
		if (!(fabs(got - want) <= fabs(want) * (gpu_unit(dtype) + 1e-5) + (dtype == DTYPE_F16 ? 0x1p-25 : 1e-30))) /* half a subnormal of F16 */
			world_complain(rank, "generation %" PRIu64 ": h[%d,%d] = %.9g, expected %.9g", sum->g, row, c, got, want);
	}
}

void world_compare(struct world_rank *rank, const struct world_sum *sum, const struct world_buffers *host)
{
	const int cols = rank->options.cols, width = cols + sum->pad;
	const float *x = (const float *)host->result;
	const bool library = !strcmp(rank->comm->vt->name, "xccl"); /* sums in the partials' type, in its own order */
	for (int row = 0; row < sum->rows && !rank->complaint[0]; row++) {
		for (int c = 0; c < cols; c++) {
			const int64_t at = (int64_t)row * cols + c;
			float want = sum_value(rank, sum->g, at, rounds(rank, sum->rows));
			float bound = (float)(2 * gpu_unit(rank->options.dtype)) * fabsf(want), size = fabsf(want);
			if (sum->bias) want = want + host->bias[c], size += fabsf(host->bias[c]);
			const float residual = number(rank->world, sum->g, RESIDUAL, at);
			if (sum->add) want = residual + want, size += fabsf(residual);
			bound += size * 1e-6f; /* of the library's sum: one rounding to the partials' type, and those of F32 */
			const float got = x[(size_t)row * (size_t)width + (size_t)c];
			if (library ? !(fabsf(got - want) <= bound) : memcmp(&got, &want, 4))
				world_complain(rank, "generation %" PRIu64 ", %d rows%s%s%s: x[%d,%d] = %.9g, expected %.9g", sum->g, sum->rows, sum->bias ? ", bias" : "",
				               sum->add ? ", residual" : "", sum->norm ? ", norm" : "", row, c, (double)got, (double)want);
		}
		if (memcmp(x + (size_t)row * (size_t)width + cols, host->x + ((size_t)row * (size_t)width + (size_t)cols) * 4, (size_t)sum->pad * 4))
			world_complain(rank, "generation %" PRIu64 ": wrote behind row %d of x", sum->g, row);
		if (sum->norm) compare_h(rank, sum, host, x + (size_t)row * (size_t)width, row);
	}
}

void world_give(struct world_rank *rank, const void *taken)
{
	for (int k = 0; k < WORLD_PINNED; k++)
		if (rank->pinned[k].data == taken) rank->pinned[k].taken = false;
}

void world_buffers_free(struct world_buffers *host)
{
	if (!host->rank) return;
	const void *const mine[] = {host->partial, host->x, host->result, host->h, host->bias};
	for (size_t i = 0; i < sizeof mine / sizeof *mine; i++) world_give(host->rank, mine[i]);
	*host = (struct world_buffers){0};
}

static void body_reserve(struct world_rank *rank)
{
	struct world_buffers host[WORLD_SUMS] = {0};
	const struct world_sum largest = {.rows = rank->options.max_rows, .pad = WORLD_PAD};
	for (int i = 0; i < WORLD_SUMS && rank->st == STATUS_OK; i++) rank->st = world_prepare(rank, &largest, &host[i]);
	void *bytes[2] = {NULL};
	for (int i = 0; i < 2 && rank->st == STATUS_OK; i++) rank->st = world_take(rank, WORLD_BYTES, &bytes[i]);
	for (int i = 0; i < 2; i++) world_give(rank, bytes[i]);
	for (int i = 0; i < WORLD_SUMS; i++) world_buffers_free(&host[i]);
}

void world_reserve(struct world *w, const struct comm_options *options)
{
	world_group(w, 60000, NULL);
	world_run(w, options, body_reserve);
}

enum status world_one(struct world_rank *rank, const struct world_sum *sum)
{
	struct world_buffers host = {0};
	enum status st = world_prepare(rank, sum, &host);
	if (st == STATUS_OK) st = world_all_reduce(rank, sum, &host);
	if (st == STATUS_OK) st = comm_sync(rank->comm, rank->stream, &rank->err);
	if (st == STATUS_OK) world_compare(rank, sum, &host);
	else (void)!rank->world->ops->stream_sync(rank->stream, UINT64_MAX, NULL, &rank->err); /* nothing reads `host` any more */
	world_buffers_free(&host);
	return st;
}
