/* check_comm.c: collectives of the GPU back end (contracts C1 to C5, C7, C8) against numbers that each rank works out itself: every kind of kernel,
 * 2, 3, 4 and 8 ranks (which share devices where there are too few), eager and replayed; and what happens when a rank fails. On the emulated device check_comm_emu.c also
 * interleaves the ranks' kernels in chosen orders.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "device/gpu/device.h"
#include "gpu/comm_world.h"

#define LONG_MS 60000

static int device_count(void)
{
	int count = 0;
	return gpu_device_count(&count) == GPU_OK ? count : 0;
}

/* ---- sequences of collectives */

struct sequence {
	int steps;
	bool graph; /* the steps are recorded once and replayed */
	size_t scratch[WORLD_MAX_RANKS]; /* bytes of each rank while it has a comm */
};

static void note_scratch(const struct world_rank *rank)
{
	struct sequence *sequence = rank->world->context;
	struct mem_report report;
	rank->world->ops->report(rank->device, &report);
	sequence->scratch[rank->index] = report.now[MEM_SCRATCH];
}

static struct world_sum random_sum(const struct world *w, const struct comm_options *o, uint64_t g)
{
	const uint64_t bits = rng_u64(w->seed, 901, g);
	return (struct world_sum){.g = g, .rows = g % 4 ? 1 + (int)(bits % (uint64_t)o->max_rows) : o->max_rows,
	                          .pad = (int)(bits >> 8 & 3) * (o->cols % 2 ? 1 : 2), .bias = bits >> 12 & 1,
	                          .add = bits >> 13 & 3, .norm = (bits >> 16 & 1) && rng_u64(w->seed, 902, 0)};
}

static enum status broadcast_one(struct world_rank *rank, uint64_t g)
{
	const struct world *w = rank->world;
	const uint64_t bits = rng_u64(w->seed, 903, g);
	const int root = (int)(bits % (uint64_t)w->P), offset = (int)(bits >> 8 & 7);
	const size_t bytes = g % 3 ? bits >> 16 & 255 : 5000 + (bits >> 16 & 4095);
	unsigned char *sent = NULL, *got = NULL, *to = rank->room + 64 + offset;
	enum status st;
	TRY_GOTO(world_take(rank, WORLD_BYTES, (void **)&sent), out);
	TRY_GOTO(world_take(rank, WORLD_BYTES, (void **)&got), out);
	for (size_t i = 0; i < bytes + 1; i++) sent[i] = (unsigned char)rng_u64(w->seed + g, (uint64_t)rank->index, i);
	TRY_GOTO(w->ops->copy(rank->stream, to, sent, bytes + 1, COPY_TO_DEVICE, &rank->err), out);
	TRY_GOTO(COMM(rank->comm, broadcast, rank->stream, to, bytes, root, &rank->err), out);
	TRY_GOTO(w->ops->copy(rank->stream, got, to, bytes + 1, COPY_TO_HOST, &rank->err), out);
	TRY_GOTO(comm_sync(rank->comm, rank->stream, &rank->err), out);
	for (size_t i = 0; i < bytes; i++)
		if (got[i] != (unsigned char)rng_u64(w->seed + g, (uint64_t)root, i))
			world_complain(rank, "broadcast %" PRIu64 " of %zu bytes from rank %d: byte %zu", g, bytes, root, i);
	if (got[bytes] != sent[bytes]) world_complain(rank, "broadcast %" PRIu64 ": wrote behind its %zu bytes", g, bytes);
out:
	if (st != STATUS_OK) (void)!w->ops->stream_sync(rank->stream, UINT64_MAX, NULL, &(struct error){0}); /* nothing reads or writes them any more */
	world_give(rank, sent);
	world_give(rank, got);
	return st;
}

static void body_sequence(struct world_rank *rank)
{
	const struct sequence *sequence = rank->world->context;
	note_scratch(rank);
	for (int i = 0; i < sequence->steps && rank->st == STATUS_OK && !rank->complaint[0]; i++) {
		const uint64_t g = (uint64_t)i + 1, what = rng_u64(rank->world->seed, 904, g) % 8;
		const struct world_sum sum = random_sum(rank->world, &rank->options, g);
		if (what == 0) rank->st = broadcast_one(rank, g);
		else if (what == 1 && rank->comm->vt->fence) rank->st = COMM(rank->comm, fence, rank->stream, &rank->err);
		else if (what == 2) rank->st = COMM(rank->comm, barrier, &rank->err);
		else rank->st = world_one(rank, &sum);
	}
	if (rank->st == STATUS_OK) rank->st = comm_sync(rank->comm, rank->stream, &rank->err);
}

/* One graph of three all-reduces with their inputs; replayed, so that generations are counted by the device alone. Between replays
 * the stream goes on eagerly, so that graph and launches share the counter. */
#define GRAPH_SUMS 3
#define GRAPH_REPLAYS 4
static void body_graph(struct world_rank *rank)
{
	struct world *w = rank->world;
	struct world_sum sums[GRAPH_SUMS];
	struct world_buffers host[GRAPH_SUMS] = {0};
	struct graph *graph = NULL;
	struct error *err = &rank->err;
	enum status st;
	for (int i = 0; i < GRAPH_SUMS; i++) {
		sums[i] = random_sum(w, &rank->options, 70 + (uint64_t)i);
		TRY_GOTO(world_prepare(rank, &sums[i], &host[i]), end);
	}
	TRY_GOTO(w->ops->graph_begin(rank->stream, err), end);
	for (int i = 0; i < GRAPH_SUMS && st == STATUS_OK; i++) st = world_all_reduce(rank, &sums[i], &host[i]);
	enum status ended = w->ops->graph_end(rank->stream, &graph, err);
	if (st == STATUS_OK) st = ended;
	for (int k = 0; k < GRAPH_REPLAYS && st == STATUS_OK; k++) {
		TRY_GOTO(w->ops->graph_launch(graph, rank->stream, err), end);
		rank->comm->vt->replayed(rank->comm, GRAPH_SUMS, GRAPH_SUMS);
		TRY_GOTO(comm_sync(rank->comm, rank->stream, err), end);
		for (int i = 0; i < GRAPH_SUMS; i++) {
			world_compare(rank, &sums[i], &host[i]);
			memset(host[i].result, 0xee, 8); /* the next replay must write it again */
		}
		const struct world_sum between = random_sum(w, &rank->options, 90 + (uint64_t)k);
		TRY_GOTO(world_one(rank, &between), end);
	}
end:
	rank->st = st;
	(void)!w->ops->stream_sync(rank->stream, clock_deadline_ms(LONG_MS), NULL, err);
	for (int i = 0; i < GRAPH_SUMS; i++) world_buffers_free(&host[i]);
	w->ops->graph_destroy(graph);
}

static size_t room_bytes(const struct comm_options *o)
{
	return (size_t)o->max_rows * (size_t)(o->cols + 8) * 4 + (size_t)(o->cols + 8) * 8 + 16384;
}

/* What the options make of the choice among kernels. */
static const char *kind_of(const struct comm_options *o, int P)
{
	if (o->invariant) return "invariant";
	if (o->transport && !strcmp(o->transport, "xccl")) return "library";
	return o->packet_bytes > 1 ? "packets" : P > 2 && o->two_shot_bytes == 1 ? "two shots" : "pull";
}

/* The rank that has most has what is planned. */
static void compare_scratch(struct gpu_check *c, int P, const struct comm_options *o, const size_t scratch[WORLD_MAX_RANKS])
{
	const size_t planned = comm_scratch_bytes(c->ops, P, o);
	size_t most = 0;
	for (int r = 0; r < P; r++)
		if (scratch[r] > most) most = scratch[r];
	if (most != planned) gpu_fail(c, "scratch: %zu bytes planned, the largest rank has %zu", planned, most);
}

static void sequence_case(struct gpu_check *c, int P, const struct comm_options *o, int steps)
{
	struct world w;
	struct sequence sequence = {.steps = steps};
	if (!world_open(&w, c, P, (size_t)o->max_rows * (size_t)(o->cols + 8), room_bytes(o))) {
		c->failed++;
		return;
	}
	world_reserve(&w, o);
	for (int graph = 0; graph < 2; graph++) {
		gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks, %s%s, up to [%d,%d], %d leaves%s", P, kind_of(o, P), graph ? ", replayed" : "", o->max_rows, o->cols,
		         o->tree_leaves, o->uses_before ? ", after 2^31 or 2^32 uses" : "");
		world_group(&w, LONG_MS, NULL);
		w.context = &sequence;
		world_run(&w, o, graph ? body_graph : body_sequence);
		if (world_report(&w, c)) c->compared += o->max_rows * o->cols;
		if (!graph && strcmp(o->transport, "xccl")) compare_scratch(c, P, o, sequence.scratch);
		gpu_case_end(c);
	}
	world_close(&w);
}

static void check_kinds(struct gpu_check *c, int P)
{
	static const int shapes[][2] = {{5, 24}, {3, 130}, {7, 33}, {2, 1}, {40, 64}, {70, 13}};
	GPU_EACH_DTYPE(dtype)
		for (int kind = 0; kind < (P > 2 ? 3 : 2); kind++)
			for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
				struct comm_options o = {.max_rows = shapes[s][0], .cols = shapes[s][1], .dtype = dtype, .tree_leaves = P, .transport = "p2p",
				                         .packet_bytes = kind == 0 ? SIZE_MAX / 2 : 1, .two_shot_bytes = kind == 2 ? 1 : SIZE_MAX};
				if (c->quick && s != (size_t)(kind + (int)dtype) % 5 && !(s == 5 && kind == 0 && dtype == DTYPE_BF16)) continue; /* the last: norms in the kernel */
				sequence_case(c, P, &o, c->quick ? 6 : 24);
			}
	const int leaves[] = {P, 2 * P, 4 * P, 840};
	for (int i = 0; i < 4; i++) {
		struct comm_options o = {.max_rows = 4, .cols = 21 + i, .dtype = DTYPE_F32, .tree_leaves = leaves[i], .invariant = true, .transport = "p2p"};
		if (840 % P || (c->quick && i % 2)) continue;
		sequence_case(c, P, &o, 6);
	}
}

/* Each kind of kernel while the words that number the uses begin again: what this rank or a peer counts in 31 or 32 bits. */
static void check_wraps(struct gpu_check *c, int P)
{
	static const uint64_t wraps[] = {UINT64_C(1) << 31, UINT64_C(1) << 32};
	for (int i = 0; i < 2; i++)
		for (int kind = 0; kind < (P > 2 ? 4 : 3); kind++) {
			struct comm_options o = {.max_rows = 3, .cols = 70, .dtype = DTYPE_BF16, .tree_leaves = P, .transport = "p2p", .packet_bytes = kind == 0 ? SIZE_MAX / 2 : 1,
			                         .two_shot_bytes = kind == 3 ? 1 : SIZE_MAX, .uses_before = wraps[i] - 3};
			if (kind == 2) o.dtype = DTYPE_F32, o.invariant = true, o.tree_leaves = 4 * P;
			if (!c->quick || i == 1) sequence_case(c, P, &o, 6);
		}
}

/* Real sizes, each by the kind that its size gets. */
static void check_large(struct gpu_check *c, int P)
{
	static const int shapes[][2] = {{1, 4096}, {16, 5120}, {256, 4096}, {257, 8192}, {512, 4096}};
	for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
		struct comm_options o = {.max_rows = shapes[s][0], .cols = shapes[s][1], .dtype = s % 2 ? DTYPE_F16 : DTYPE_BF16, .tree_leaves = P, .transport = "auto",
		                         .packet_bytes = 2 << 20, .two_shot_bytes = 2 << 20};
		sequence_case(c, P, &o, 3);
	}
}

/* ---- failures */

#define SHORT_MS (GPU_EMULATED ? 1000 : 300)
#define EXIT_MS (GPU_EMULATED ? 3000 : 1000) /* whoever is late by that much keeps the victim from its exit */
#define ABORT_MS (GPU_EMULATED ? 5000 : 100) /* an emulated device shares its processor with others */

struct failing {
	int victim;
	bool other_rows; /* the victim makes another call than the rest; else it makes none */
	uint64_t told_ns; /* when the group was aborted, for the time from there */
	double end_ms[WORLD_MAX_RANKS];
	int graph_sums;
};

/* Everybody but the victim launches all-reduces, recorded ones too, that cannot end; the victim aborts the group after a while. */
static void body_abort(struct world_rank *rank)
{
	struct world *w = rank->world;
	struct failing *f = w->context;
	if (rank->index == f->victim) {
		while (clock_ns() < f->told_ns) continue;
		struct error why = {0};
		(void)FAIL(&why, NO_ROOM, "the victim had enough");
		f->told_ns = clock_ns();
		group_abort(w->group, rank->index, &why);
		rank->st = comm_sync(rank->comm, rank->stream, &rank->err);
		return;
	}
	struct graph *graph = NULL;
	struct world_buffers host[4] = {0};
	const struct world_sum sum = {.g = 5, .rows = rank->options.max_rows, .add = true};
	const int sums = f->graph_sums ? f->graph_sums : 1;
	enum status st = STATUS_OK;
	for (int i = 0; i < sums && st == STATUS_OK; i++) st = world_prepare(rank, &sum, &host[i]);
	if (st == STATUS_OK && f->graph_sums) st = w->ops->graph_begin(rank->stream, &rank->err);
	for (int i = 0; i < sums && st == STATUS_OK; i++) st = world_all_reduce(rank, &sum, &host[i]);
	if (f->graph_sums) {
		enum status ended = w->ops->graph_end(rank->stream, &graph, &rank->err);
		if (st == STATUS_OK) st = ended;
		if (st == STATUS_OK) st = w->ops->graph_launch(graph, rank->stream, &rank->err);
	}
	if (st == STATUS_OK) st = comm_sync(rank->comm, rank->stream, &rank->err);
	rank->st = st;
	f->end_ms[rank->index] = (double)(clock_ns() - f->told_ns) * 1e-6;
	(void)!w->ops->stream_sync(rank->stream, clock_deadline_ms(LONG_MS), NULL, &rank->err);
	for (int i = 0; i < 4; i++) world_buffers_free(&host[i]);
	w->ops->graph_destroy(graph);
}

static bool says(const struct world_rank *rank, enum status st, const char *text)
{
	return rank->st == st && strstr(rank->err.text, text);
}

/* After whatever happened: a new group on the same devices works. */
static void rebuild_case(struct gpu_check *c, struct world *w, const struct comm_options *o)
{
	struct sequence sequence = {.steps = 3};
	gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks, rebuilt after a failure", w->P);
	world_group(w, LONG_MS, NULL);
	w->context = &sequence;
	world_run(w, o, body_sequence);
	if (world_report(w, c)) c->compared++;
	gpu_case_end(c);
}

static void abort_case(struct gpu_check *c, struct world *w, const struct comm_options *o, int graph_sums)
{
	struct failing f = {.victim = w->P - 1, .graph_sums = graph_sums, .told_ns = clock_ns() + 50000000u};
	gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks, %s, abort while %s waits", w->P, kind_of(o, w->P), graph_sums ? "a recorded graph" : "a kernel");
	world_group(w, LONG_MS, NULL);
	w->context = &f;
	world_run(w, o, body_abort);
	for (int r = 0; r < w->P; r++) {
		const struct world_rank *rank = &w->rank[r];
		if (!says(rank, STATUS_NO_ROOM, "the victim had enough"))
			gpu_fail(c, "rank %d: %s: \"%s\" in place of the first error", r, status_name(rank->st), rank->err.text);
		if (r != f.victim && f.end_ms[r] > ABORT_MS) gpu_fail(c, "rank %d heard of it after %.1f ms; expected %d at most", r, f.end_ms[r], ABORT_MS);
	}
	gpu_case_end(c);
}

/* The victim launches another number of rows, or never comes. */
static void body_differ(struct world_rank *rank)
{
	const struct failing *f = rank->world->context;
	struct world_sum sum = {.g = 9, .rows = rank->options.max_rows, .add = true};
	if (rank->index == f->victim && !f->other_rows) return;
	if (rank->index == f->victim) sum.rows--;
	rank->st = world_one(rank, &sum);
}

static void differ_case(struct gpu_check *c, struct world *w, const struct comm_options *o, bool other_rows)
{
	struct failing f = {.victim = w->P - 1, .other_rows = other_rows};
	char mine[64], theirs[64];
	gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks, %s, rank %d %s", w->P, kind_of(o, w->P), f.victim, other_rows ? "makes another call" : "does not come");
	snprintf(mine, sizeof mine, "%s x %d", dtype_name(o->dtype), o->max_rows * o->cols);
	snprintf(theirs, sizeof theirs, "%s x %d", dtype_name(o->dtype), (o->max_rows - 1) * o->cols);
	world_group(w, other_rows ? LONG_MS : SHORT_MS, NULL);
	w->context = &f;
	world_run(w, o, body_differ);
	for (int r = 0; r < w->P; r++) {
		const struct world_rank *rank = &w->rank[r];
		if (other_rows && !(says(rank, STATUS_MISMATCH, mine) && says(rank, STATUS_MISMATCH, theirs)))
			gpu_fail(c, "rank %d: %s: \"%s\"; expected a mismatch of %s and %s", r, status_name(rank->st), rank->err.text, mine, theirs);
		if (!other_rows && r != f.victim && !says(rank, STATUS_TIMEOUT, "did not come"))
			gpu_fail(c, "rank %d: %s: \"%s\"; expected to hear who did not come", r, status_name(rank->st), rank->err.text);
	}
	gpu_case_end(c);
}

static void fault_case(struct gpu_check *c, struct world *w, const struct comm_options *o, const char *kind, enum status want)
{
	struct sequence sequence = {.steps = 12};
	char fault[80];
	const int seq = 1 + (int)(rng_u64(c->seed, 33, (uint64_t)want) % 6);
	snprintf(fault, sizeof fault, "rank=%d,at=%s,seq=%d,kind=%s", w->P - 1, seq % 2 ? "barrier" : "ready", seq, kind);
	gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks, fault %s", w->P, fault);
	const bool exits = !strcmp(kind, "exit");
	world_group(w, exits ? EXIT_MS : want == STATUS_TIMEOUT ? SHORT_MS : LONG_MS, fault);
	w->context = &sequence;
	const uint64_t begin = clock_ns();
	world_run(w, o, body_sequence);
	for (int r = 0; r < w->P; r++) {
		const struct world_rank *rank = &w->rank[r];
		const bool silent = exits && r == w->P - 1;
		if (rank->complaint[0]) gpu_fail(c, "rank %d: %s", r, rank->complaint);
		if (rank->st != (silent ? STATUS_RANK_LOST : want)) gpu_fail(c, "rank %d: %s: %s; expected %s", r, status_name(rank->st), rank->err.text, status_name(want));
	}
	if ((double)(clock_ns() - begin) * 1e-9 > 20) gpu_fail(c, "took %.1f s", (double)(clock_ns() - begin) * 1e-9);
	gpu_case_end(c);
}

static void check_failures(struct gpu_check *c, int P)
{
	struct world w;
	for (int kind = 0; kind < (P > 2 ? 3 : 2); kind++) {
		const struct comm_options o = {.max_rows = 6, .cols = 72, .dtype = DTYPE_BF16, .tree_leaves = P, .packet_bytes = kind == 0 ? SIZE_MAX / 2 : 1,
		                               .two_shot_bytes = kind == 2 ? 1 : SIZE_MAX};
		if (!world_open(&w, c, P, (size_t)o.max_rows * (size_t)(o.cols + 8), room_bytes(&o))) {
			c->failed++;
			return;
		}
		world_reserve(&w, &o);
		abort_case(c, &w, &o, 0);
		abort_case(c, &w, &o, 3);
		rebuild_case(c, &w, &o);
		differ_case(c, &w, &o, true);
		differ_case(c, &w, &o, false);
		fault_case(c, &w, &o, "error", STATUS_ABORTED);
		fault_case(c, &w, &o, "oom", STATUS_NO_MEMORY);
		fault_case(c, &w, &o, "stall:40000", STATUS_TIMEOUT);
		if (kind == (P - 2) % 3) fault_case(c, &w, &o, "exit", STATUS_TIMEOUT); /* each kind for some P: its deadline is long */
		rebuild_case(c, &w, &o);
		world_close(&w);
	}
}

/* ---- what is refused */

static void refuse_case(struct gpu_check *c, struct world *w, const struct comm_options *o, enum status want, const char *text)
{
	gpu_case(c, o->dtype, FILL_RANDOM, "refused: %s", text);
	world_group(w, LONG_MS, NULL);
	world_run(w, o, NULL);
	for (int r = 0; r < w->P; r++)
		if (!says(&w->rank[r], want, text))
			gpu_fail(c, "rank %d: %s: \"%s\"; expected %s: %s", r, status_name(w->rank[r].st), w->rank[r].err.text, status_name(want), text);
	gpu_case_end(c);
}

static void check_refusals(struct gpu_check *c, int P)
{
	struct world w;
	const struct comm_options good = {.max_rows = 4, .cols = 16, .dtype = DTYPE_BF16, .tree_leaves = P};
	struct comm_options o = good;
	if (!world_open(&w, c, P, 64, 64)) {
		c->failed++;
		return;
	}
	o.transport = "host";
	refuse_case(c, &w, &o, STATUS_UNSUPPORTED, "would stop");
	o.transport = "smoke";
	refuse_case(c, &w, &o, STATUS_UNSUPPORTED, "no transport \"smoke\"");
	o = good, o.cols = 0;
	refuse_case(c, &w, &o, STATUS_BAD_INPUT, "expected positive sizes");
	o = good, o.dtype = DTYPE_Q8_0;
	refuse_case(c, &w, &o, STATUS_BAD_INPUT, "partials of Q8_0");
	o = good, o.invariant = true;
	refuse_case(c, &w, &o, STATUS_BAD_INPUT, "expected F32");
	o = good, o.tree_leaves = P + 1;
	refuse_case(c, &w, &o, STATUS_BAD_INPUT, "multiple of the ranks");
	world_close(&w);
}

void gpu_check_comm(struct gpu_check *c)
{
	const int worlds[] = {2, 3, 4, 8};
	printf("comm: %d device(s); where there are fewer than ranks, several ranks share one\n", device_count());
	for (int i = 0; i < 4; i++) {
		check_kinds(c, worlds[i]);
		check_wraps(c, worlds[i]);
		check_refusals(c, worlds[i]);
		check_failures(c, worlds[i]);
		if (!c->quick) check_large(c, worlds[i]);
	}
	if (gpu_check_comm_emu) gpu_check_comm_emu(c);
}

/* The collective library with two ranks, where the bound on its rounding is simple. It must have been told not to use multicast. */
void gpu_check_xccl(struct gpu_check *c)
{
	static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F32};
	const char *library = GPU_COLLECTIVES_LIBRARY, *multicast = getenv("NCCL_NVLS_ENABLE");
	if (!library) gpu_skip(c, "no library for emulated devices");
	else if (device_count() < 2) gpu_skip(c, "it wants two devices");
	else if (!multicast || strcmp(multicast, "0")) gpu_skip(c, "NCCL_NVLS_ENABLE is not 0");
	else if (!dlopen(library, RTLD_NOW | RTLD_LOCAL)) gpu_skip(c, "%s cannot be loaded", library);
	else
		for (int i = 0; i < 2; i++) {
			const struct comm_options o = {.max_rows = 40, .cols = 100, .dtype = dtypes[i], .tree_leaves = 2, .transport = "xccl"};
			sequence_case(c, 2, &o, 12);
		}
}
