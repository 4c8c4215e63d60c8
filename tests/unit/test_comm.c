/* The host collective (contracts C4, C5, C6) on the fake device: eager and lazy streams, delays, failures. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "comm/comm.h"
#include "unit/fake_device.h"
#include "unit/ranks.h"

#define LONG_MS 60000
#define SHORT_MS 500

/* ---- one group with a device, stream and comm per rank ---- */

struct world {
	struct group *group;
	struct fault_plan plan;
	struct comm_options options[RANKS_MAX];
	struct fake_options fake[RANKS_MAX];
	struct device *device[RANKS_MAX];
	struct stream *stream[RANKS_MAX];
	struct comm *comm[RANKS_MAX];
	enum status created[RANKS_MAX];
	rank_body *body; /* after creation; run->context is the world */
	int generations;
	int victim;
	int kind; /* of the trial, for the body */
};

static struct world *world_make(int P, uint64_t timeout_ms, const char *fault, const struct comm_options *options, const struct fake_options *fake)
{
	struct world *w = calloc(1, sizeof *w);
	struct error err = {0};
	assert_non_null(w);
	if (fault && fault_parse(&w->plan, fault, &err) != STATUS_OK) fail_msg("%s", err.text);
	struct group_options go = {.world_size = P, .timeout_ms = timeout_ms, .fault = fault ? &w->plan : NULL};
	if (group_create(&w->group, &go, &err) != STATUS_OK) fail_msg("%s", err.text);
	for (int r = 0; r < P; r++) {
		w->options[r] = *options;
		w->fake[r] = *fake;
		w->fake[r].seed += (uint64_t)r;
	}
	return w;
}

static void body_world(struct rank_run *run)
{
	struct world *w = run->context;
	const int r = run->rank;
	w->device[r] = fake_open(&w->fake[r]);
	w->stream[r] = fake_stream(w->device[r]);
	run->st = w->created[r] = comm_host_create(&w->comm[r], w->group, r, w->device[r], w->stream[r], &w->options[r], &run->err);
	RANK_CHECK(run, !w->comm[r] == (run->st != STATUS_OK), "the out-parameter says the same");
	if (run->st == STATUS_OK && w->body) w->body(run);
	if (run->complaint[0]) group_abort(w->group, r, NULL); /* or the others would wait, and the watchdog hide the complaint */
}

static void world_run(struct world *w, struct rank_run *runs)
{
	ranks_run(group_world_size(w->group), body_world, w, runs);
	ranks_assert_content(runs, group_world_size(w->group));
}

static void world_end(struct world *w)
{
	for (int r = 0; r < group_world_size(w->group); r++) {
		comm_destroy(&w->comm[r]);
		comm_destroy(&w->comm[r]);
		w->stream[r]->vt->stream_destroy(w->stream[r]);
		fake_close(w->device[r]);
	}
	group_destroy(&w->group);
	free(w);
}

static enum status sync(struct rank_run *run)
{
	struct world *w = run->context;
	struct stream *stream = w->stream[run->rank];
	return stream->vt->stream_sync(stream, group_deadline(w->group), group_abort_flag(w->group), &run->err);
}

/* ---- values: leaf l of generation g at (t, c), and what their sum must be ---- */

static float leaf_value(uint64_t g, int leaf, int64_t at)
{
	double u = rng_unit(g, (uint64_t)leaf, (uint64_t)at) * 2 - 1;
	return (float)ldexp(u, (int)(rng_u64(g + 77, (uint64_t)leaf, (uint64_t)at) % 24) - 12); /* magnitudes far apart: order shows */
}

static float residual_value(uint64_t g, int64_t at)
{
	return leaf_value(g, 5000, at);
}

/* By the definition in sumtree.h, not by its code. */
static float subtree(uint64_t g, int lo, int hi, int64_t at)
{
	int n = hi - lo;
	if (n == 1) return leaf_value(g, lo, at);
	int mid = n % 2 ? hi - 1 : lo + n / 2;
	float a = subtree(g, lo, mid, at), b = subtree(g, mid, hi, at);
	return a + b;
}

static float expected(uint64_t g, int leaves, int64_t at, const float *bias, int c, bool residual)
{
	float sum = subtree(g, 0, leaves, at);
	if (bias) sum += bias[c];
	if (residual) sum = residual_value(g, at) + sum;
	return sum;
}

/* What stands in for the row-parallel linear: fills the partial on the stream. */
struct fill {
	struct tensor partial;
	const struct sum_split *split;
	uint64_t g;
};

static void run_fill(void *context)
{
	const struct fill *fill = context;
	const struct tensor *p = &fill->partial;
	for (int s = 0; s < p->slots; s++)
		for (int64_t i = 0; i < (int64_t)p->rows * p->cols; i++)
			((float *)p->data)[s * p->slot_stride + i] = subtree(fill->g, fill->split->span[s].lo, fill->split->span[s].hi, i);
}

static void poison(void *context)
{
	const struct tensor *p = context;
	for (int64_t i = 0; i < p->slots * p->slot_stride; i++) ((float *)p->data)[i] = NAN;
}

/* ---- all-reduce ---- */

static int rows_of_generation(const struct comm_options *options, int g)
{
	return g % 3 == 0 ? options->max_rows : 1 + (int)(rng_u64(3, 3, (uint64_t)g) % (uint64_t)options->max_rows);
}

/* One all-reduce of generation g into a strided x; checks every value after the sync. Scratch is poisoned as soon as it is given out,
 * which is the earliest moment at which the contract lets it be written. */
static void one_generation(struct rank_run *run, int g)
{
	struct world *w = run->context;
	struct comm *comm = w->comm[run->rank];
	struct stream *stream = w->stream[run->rank];
	const struct comm_options *options = &w->options[run->rank];
	const int rows = rows_of_generation(options, g), cols = options->cols, stride = cols + 3;
	const bool residual = g % 2, with_bias = g % 5 == 1;
	struct fill fill = {.split = &comm->split, .g = (uint64_t)g};
	run->st = COMM(comm, partial, rows, &fill.partial, &run->err);
	RANK_CHECK(run, run->st == STATUS_OK, "partial of generation %d", g);
	fake_call(stream, poison, &fill.partial);
	fake_call(stream, run_fill, &fill);

	float *x = malloc(((size_t)rows * (size_t)stride + (size_t)cols) * sizeof *x), *bias = x + rows * stride;
	for (int64_t i = 0; i < (int64_t)rows * stride; i++) x[i] = -7;
	for (int t = 0; t < rows; t++)
		for (int c = 0; c < cols; c++) x[t * stride + c] = residual ? residual_value((uint64_t)g, (int64_t)t * cols + c) : NAN;
	for (int c = 0; c < cols; c++) bias[c] = leaf_value((uint64_t)g, 6000, c);
	struct all_reduce_args args = {.partial = fill.partial, .x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, rows, cols),
	                               .add_residual = residual, .bias = with_bias ? bias : NULL};
	args.x.row_stride = stride;
	run->st = COMM(comm, all_reduce, stream, &args, &run->err);
	if (run->st == STATUS_OK) run->st = sync(run);
	for (int t = 0; t < rows && run->st == STATUS_OK && !run->complaint[0]; t++) {
		for (int c = 0; c < cols; c++) {
			float want = expected((uint64_t)g, options->tree_leaves, (int64_t)t * cols + c, args.bias, c, residual);
			float got = x[t * stride + c];
			if (!rank_check(run, f32_to_bits(got) == f32_to_bits(want), "sum", "generation %d [%d,%d]: %a, expected %a", g, t, c, (double)got,
			                (double)want))
				break;
		}
		for (int c = cols; c < stride; c++) rank_check(run, x[t * stride + c] == -7, "gap", "written at generation %d row %d", g, t);
	}
	free(x);
}

static void body_reduce(struct rank_run *run)
{
	struct world *w = run->context;
	for (int g = 0; g < w->generations && run->st == STATUS_OK && !run->complaint[0]; g++) one_generation(run, g);
}

static void check_reduce(int P, int generations, const struct comm_options *options, const struct fake_options *fake)
{
	struct world *w = world_make(P, LONG_MS, NULL, options, fake);
	struct rank_run runs[RANKS_MAX];
	w->body = body_reduce;
	w->generations = generations;
	world_run(w, runs);
	size_t scratch = 0;
	for (int r = 0; r < P; r++) {
		if (runs[r].st != STATUS_OK) fail_msg("P=%d rank %d: %s", P, r, runs[r].err.text);
		if (fake_counts(w->device[r]).scratch_bytes > scratch) scratch = fake_counts(w->device[r]).scratch_bytes;
		assert_int_equal(w->comm[r]->all_reduces, generations);
		assert_int_equal(w->comm[r]->sequence, generations + 1);
		assert_int_equal(fake_counts(w->device[r]).allocs, 1); /* none on the step path */
	}
	assert_int_equal(comm_scratch_bytes(w->device[0]->vt, P, options), scratch);
	world_end(w);
}

/* Every legal world size of 8, 12 and 24 leaves gives the bits of the definition, so also those of P = 1; by one shot and by two. */
static void test_bits_do_not_depend_on_world_size(void **state)
{
	(void)state;
	static const int trees[] = {8, 12, 24};
	for (int i = 0; i < 3; i++)
		for (int P = 1; P <= 12; P++)
			for (int two = 0; two < 2; two++) {
				if (trees[i] % P) continue;
				struct comm_options options = {.max_rows = 9, .cols = 13, .tree_leaves = trees[i], .two_shot_bytes = two ? 1 : SIZE_MAX};
				check_reduce(P, 12, &options, &(struct fake_options){.lazy = two});
			}
}

static void test_sizes(void **state)
{
	(void)state;
	static const int sizes[][2] = {{1, 1}, {1, 7}, {2, 16}, {7, 1}, {5, 33}, {16, 64}, {3, 129}};
	static const int world_sizes[] = {1, 2, 3, 4, 6, 8};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (size_t p = 0; p < sizeof world_sizes / sizeof *world_sizes; p++)
			for (size_t two = 0; two < 2; two++) {
				struct comm_options options = {.max_rows = sizes[i][0], .cols = sizes[i][1], .tree_leaves = 24, .two_shot_bytes = two};
				check_reduce(world_sizes[p], 6, &options, &(struct fake_options){.lazy = i % 2});
			}
}

static void test_scratch_survives_until_read(void **state)
{
	(void)state;
	static const int world_sizes[] = {2, 3, 4};
	for (int trial = 0; trial < 12; trial++) {
		struct comm_options options = {.max_rows = 6, .cols = 8, .tree_leaves = 12, .two_shot_bytes = trial % 4 > 1 ? 1 : SIZE_MAX};
		struct fake_options fake = {.lazy = trial % 2, .delay_us = 150, .seed = (uint64_t)trial};
		check_reduce(world_sizes[trial / 4], 60, &options, &fake);
	}
}

/* Barriers synchronise no stream; with lazy streams a comm that let them count as a meeting would lose scratch. */
static void body_barriers(struct rank_run *run)
{
	struct world *w = run->context;
	struct comm *comm = w->comm[run->rank];
	struct stream *stream = w->stream[run->rank];
	const struct comm_options *options = &w->options[run->rank];
	const int n = options->max_rows * options->cols;
	float *x = malloc((size_t)w->generations * (size_t)n * sizeof *x);
	struct fill *fills = calloc((size_t)w->generations, sizeof *fills);
	for (int g = 0; g < w->generations && run->st == STATUS_OK; g++) {
		struct fill *fill = &fills[g];
		*fill = (struct fill){.split = &comm->split, .g = (uint64_t)g};
		run->st = COMM(comm, partial, options->max_rows, &fill->partial, &run->err);
		if (run->st != STATUS_OK) break;
		fake_call(stream, poison, &fill->partial);
		fake_call(stream, run_fill, fill);
		struct all_reduce_args args = {.partial = fill->partial,
		                               .x = tensor_view(x + g * n, DTYPE_F32, TENSOR_REPLICATED, options->max_rows, options->cols)};
		run->st = COMM(comm, all_reduce, stream, &args, &run->err);
		for (int b = 0; b < (g * 7 + 3) % 4 && run->st == STATUS_OK; b++) run->st = COMM(comm, barrier, &run->err);
	}
	if (run->st == STATUS_OK) run->st = sync(run); /* no check before: nothing but the comm synchronised the stream */
	for (int g = 0; g < w->generations && run->st == STATUS_OK; g++)
		for (int i = 0; i < n; i++) {
			float want = expected((uint64_t)g, options->tree_leaves, i, NULL, 0, false);
			rank_check(run, f32_to_bits(x[g * n + i]) == f32_to_bits(want), "sum", "generation %d at %d", g, i);
		}
	free(fills);
	free(x);
}

static void test_barriers_between(void **state)
{
	(void)state;
	for (int trial = 0; trial < 4; trial++) {
		struct comm_options options = {.max_rows = 4, .cols = 8, .tree_leaves = 12, .two_shot_bytes = trial % 2 ? 1 : SIZE_MAX};
		struct world *w = world_make(trial < 2 ? 2 : 4, LONG_MS, NULL, &options, &(struct fake_options){.lazy = true, .delay_us = 100});
		struct rank_run runs[RANKS_MAX];
		w->body = body_barriers;
		w->generations = 40;
		world_run(w, runs);
		for (int r = 0; r < group_world_size(w->group); r++) assert_int_equal(runs[r].st, STATUS_OK);
		world_end(w);
	}
}

/* ---- broadcast ---- */

static void body_broadcast(struct rank_run *run)
{
	static const size_t sizes[] = {0, 1, 3, 4, 63, 64, 65, 127, 128, 129, 1000};
	struct world *w = run->context;
	struct comm *comm = w->comm[run->rank];
	for (int root = 0; root < run->world_size; root++)
		for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
			unsigned char data[1001];
			for (size_t b = 0; b < sizeof data; b++) data[b] = run->rank == root ? (unsigned char)rng_u64(i, (uint64_t)root, b) : 0xaa;
			run->st = COMM(comm, broadcast, w->stream[run->rank], data, sizes[i], root, &run->err);
			if (run->st == STATUS_OK) run->st = sync(run);
			RANK_CHECK(run, run->st == STATUS_OK, "%zu bytes from %d", sizes[i], root);
			for (size_t b = 0; b < sizes[i]; b++)
				RANK_CHECK(run, data[b] == (unsigned char)rng_u64(i, (uint64_t)root, b), "byte %zu of %zu from %d", b, sizes[i], root);
			RANK_CHECK(run, run->rank == root || data[sizes[i]] == 0xaa, "written past the end, %zu bytes", sizes[i]);
			if (i % 4 == 0) one_generation(run, (int)i); /* both kinds share the scratch */
			if (run->complaint[0] || run->st != STATUS_OK) return;
		}
}

static void test_broadcast(void **state)
{
	(void)state;
	static const int world_sizes[] = {1, 2, 3, 4, 8};
	for (int i = 0; i < 10; i++) {
		struct comm_options options = {.max_rows = 4, .cols = 4, .tree_leaves = 24}; /* a chunk: 64 bytes */
		struct fake_options fake = {.lazy = i % 2, .delay_us = i % 2 ? 20 : 0};
		struct world *w = world_make(world_sizes[i / 2], LONG_MS, NULL, &options, &fake);
		struct rank_run runs[RANKS_MAX];
		w->body = body_broadcast;
		world_run(w, runs);
		for (int r = 0; r < group_world_size(w->group); r++) assert_int_equal(runs[r].st, STATUS_OK);
		world_end(w);
	}
}

/* ---- creation ---- */

static const struct comm_options plain = {.max_rows = 4, .cols = 8, .tree_leaves = 24};

static void test_split(void **state)
{
	(void)state;
	struct world *w = world_make(3, LONG_MS, NULL, &(struct comm_options){.max_rows = 1, .cols = 1, .tree_leaves = 12}, &(struct fake_options){0});
	struct rank_run runs[3];
	world_run(w, runs);
	/* 12 = (0..6)(6..12), 6 = (3)(3), 3 = (2)(1): rank 1 owns 4..8 = leaves 4, 5 of [3,6) and 6, 7 of [6,9). */
	static const int spans[3] = {2, 3, 2};
	for (int r = 0; r < 3; r++) {
		const struct sum_split *split = &w->comm[r]->split;
		struct tensor partial;
		struct error err = {0};
		assert_int_equal(split->tree_leaves, 12);
		assert_int_equal(split->first, 4 * r);
		assert_int_equal(split->leaves, 4);
		assert_int_equal(split->spans, spans[r]);
		assert_int_equal(COMM(w->comm[r], partial, 1, &partial, &err), STATUS_OK);
		assert_int_equal(partial.slots, spans[r]);
		assert_int_equal(partial.dist, TENSOR_PARTIAL);
		assert_string_equal(w->comm[r]->vt->name, "host");
	}
	world_end(w);
	comm_destroy(&(struct comm *){NULL});
}

/* One rank fails to make its part: all fail with its reason, and nothing is left allocated (fake_close checks). */
static void test_create_fails_together(void **state)
{
	(void)state;
	for (int trial = 0; trial < 12; trial++) {
		const int P = trial % 2 ? 4 : 2, victim = trial % P;
		const int kind = trial / 4;
		struct world *w = world_make(P, LONG_MS, NULL, &plain, &(struct fake_options){0});
		struct rank_run runs[RANKS_MAX];
		static const enum status codes[] = {STATUS_NO_MEMORY, STATUS_BAD_INPUT, STATUS_MISMATCH};
		if (kind == 0) w->fake[victim].fail_alloc = 1;
		else if (kind == 1) w->options[victim].tree_leaves = 7;
		else w->options[victim].cols++;
		world_run(w, runs);
		for (int r = 0; r < P; r++) {
			assert_int_equal(runs[r].st, codes[kind]);
			assert_null(w->comm[r]);
			assert_string_equal(runs[r].err.text, runs[0].err.text);
		}
		assert_true(group_aborted(w->group));
		world_end(w);
	}
}

static void test_create_refuses(void **state)
{
	(void)state;
	const struct comm_options bad[] = {{.max_rows = 0, .cols = 1, .tree_leaves = 6}, {.max_rows = 1, .cols = 0, .tree_leaves = 6},
	                                   {.max_rows = 1, .cols = 1, .tree_leaves = 0}, {.max_rows = 1, .cols = 1, .tree_leaves = 7},
	                                   {.max_rows = 1, .cols = 1, .tree_leaves = 846}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct world *w = world_make(3, LONG_MS, NULL, &bad[i], &(struct fake_options){0});
		struct rank_run runs[3];
		world_run(w, runs);
		for (int r = 0; r < 3; r++) assert_int_equal(runs[r].st, STATUS_BAD_INPUT);
		world_end(w);
	}
	/* Sizes that only a hostile caller has: no overflow, no room. */
	struct world *w = world_make(2, LONG_MS, NULL, &(struct comm_options){.max_rows = INT32_MAX, .cols = INT32_MAX, .tree_leaves = 8},
	                             &(struct fake_options){.fail_alloc = 1});
	struct rank_run runs[2];
	world_run(w, runs);
	for (int r = 0; r < 2; r++) assert_int_equal(runs[r].st, STATUS_NO_MEMORY);
	world_end(w);
}

/* ---- failures ---- */

/* After its own sync fails (not in the comm) a worker aborts the group, as any worker must. */
static void body_reduce_and_report(struct rank_run *run)
{
	struct world *w = run->context;
	body_reduce(run);
	if (run->st == STATUS_OK || run->st == STATUS_RANK_LOST) return;
	group_abort(w->group, run->rank, &run->err);
}

/* A rank that fails at any place, before the meeting, after it, or once its kernels ran, frees the others at once with its reason. */
static void test_device_failures(void **state)
{
	(void)state;
	for (int trial = 0; trial < 12; trial++) {
		const int P = trial % 2 ? 4 : 2, victim = trial / 6 ? P - 1 : 0, kind = trial / 2 % 3;
		struct comm_options options = plain;
		options.two_shot_bytes = trial % 4 > 1 ? 1 : SIZE_MAX;
		struct world *w = world_make(P, LONG_MS, NULL, &options, &(struct fake_options){.lazy = trial % 3 == 0});
		struct rank_run runs[RANKS_MAX];
		if (kind == 0) w->fake[victim].fail_tree_sum = 5;
		else if (kind == 1) w->fake[victim].fail_sync = 6;
		else w->fake[victim].fail_sync = 7;
		w->body = body_reduce_and_report;
		w->generations = 20;
		world_run(w, runs);
		for (int r = 0; r < P; r++) {
			assert_int_equal(w->created[r], STATUS_OK);
			assert_int_equal(runs[r].st, STATUS_DEVICE_FAULT);
			assert_non_null(strstr(runs[r].err.text, "injected"));
		}
		assert_int_equal(group_error(w->group, NULL), STATUS_DEVICE_FAULT);
		world_end(w);
	}
}

static void test_hanging_stream(void **state)
{
	(void)state;
	struct world *w = world_make(3, SHORT_MS, NULL, &plain, &(struct fake_options){0});
	struct rank_run runs[3];
	w->fake[1].hang_sync = 5;
	w->body = body_reduce_and_report;
	w->generations = 20;
	world_run(w, runs);
	for (int r = 0; r < 3; r++) assert_int_equal(runs[r].st, STATUS_TIMEOUT);
	world_end(w);
}

struct fault_trial {
	struct world *w;
	char text[96];
	int kind;
	struct rank_run runs[4];
};

static void body_fault_trial(struct rank_run *run)
{
	struct fault_trial *t = (struct fault_trial *)run->context + run->rank;
	ranks_run(group_world_size(t->w->group), body_world, t->w, t->runs);
}

/* All worlds at once: half of them end by the deadline, and a rank that is late for its exit by that much would never come to it. */
static void test_fault_points(void **state)
{
	(void)state;
	enum { TRIALS = 48, PATIENCE_MS = 5000 };
	static const char *const points[] = {"barrier", "ready"};
	static const char *const kinds[] = {"error", "oom", "exit", "stall:60000"};
	static const enum status codes[] = {STATUS_ABORTED, STATUS_NO_MEMORY, STATUS_TIMEOUT, STATUS_TIMEOUT};
	static struct fault_trial trials[TRIALS];
	struct rank_run runs[TRIALS];
	for (int trial = 0; trial < TRIALS; trial++) {
		const int P = trial % 2 ? 4 : 2, at = trial / 2 % 2, kind = trial / 4 % 4, when = trial / 16;
		static const int seqs[] = {0, 1, 4}; /* creation, first and later all-reduce */
		struct fault_trial *t = &trials[trial];
		t->kind = kind;
		snprintf(t->text, sizeof t->text, "rank=%d,at=%s,seq=%d,kind=%s", P - 1, points[at], seqs[when], kinds[kind]);
		struct comm_options options = plain;
		options.two_shot_bytes = trial % 3 ? 1 : SIZE_MAX;
		t->w = world_make(P, kind < 2 ? LONG_MS : PATIENCE_MS, t->text, &options, &(struct fake_options){.lazy = trial % 5 == 0});
		t->w->body = body_reduce_and_report;
		t->w->generations = 8;
	}
	ranks_run(TRIALS, body_fault_trial, trials, runs);
	for (struct fault_trial *t = trials; t < trials + TRIALS; t++) {
		const int P = group_world_size(t->w->group);
		ranks_assert_content(t->runs, P);
		for (int r = 0; r < P; r++) {
			enum status want = t->kind == 2 && r == P - 1 ? STATUS_RANK_LOST : codes[t->kind];
			if (t->runs[r].st != want) fail_msg("%s: rank %d: %s: %s", t->text, r, status_name(t->runs[r].st), t->runs[r].err.text);
		}
		world_end(t->w);
	}
}

/* ---- refused calls: one rank errs, nobody hangs, all know ---- */

enum bad_call {
	BAD_ROWS_ZERO, BAD_ROWS_MANY, BAD_DIST_PARTIAL, BAD_DIST_X, BAD_POINTER, BAD_NO_PARTIAL, BAD_X_NULL, BAD_X_DTYPE, BAD_X_SHAPE,
	BAD_STREAM, BAD_ROOT, BAD_DATA, BAD_BETWEEN, BAD_COUNT
};

static enum status bad_call(struct rank_run *run, struct world *w, enum bad_call kind, float *x)
{
	struct comm *comm = w->comm[run->rank];
	struct stream *stream = w->stream[run->rank];
	struct tensor partial;
	struct error *err = &run->err;
	if (kind == BAD_ROWS_ZERO) return COMM(comm, partial, 0, &partial, err);
	if (kind == BAD_ROWS_MANY) return COMM(comm, partial, plain.max_rows + 1, &partial, err);
	if (kind == BAD_ROOT) return COMM(comm, broadcast, stream, x, 4, run->world_size, err);
	if (kind == BAD_DATA) return COMM(comm, broadcast, stream, NULL, 4, 0, err);
	TRY(COMM(comm, partial, 2, &partial, err));
	if (kind == BAD_BETWEEN) return COMM(comm, broadcast, stream, x, 4, 0, err);
	struct all_reduce_args args = {.partial = partial, .x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, 2, plain.cols)};
	if (kind == BAD_DIST_PARTIAL) args.partial.dist = TENSOR_REPLICATED;
	if (kind == BAD_DIST_X) args.x.dist = TENSOR_SHARDED;
	if (kind == BAD_POINTER) args.partial.data = x;
	if (kind == BAD_X_NULL) args.x.data = NULL;
	if (kind == BAD_X_DTYPE) args.x.dtype = DTYPE_BF16;
	if (kind == BAD_X_SHAPE) args.x.rows = 3;
	if (kind == BAD_STREAM) stream = w->stream[(run->rank + 1) % run->world_size];
	if (kind == BAD_NO_PARTIAL) {
		TRY(COMM(comm, all_reduce, stream, &args, err));
	}
	return COMM(comm, all_reduce, stream, &args, err);
}

static void body_refused(struct rank_run *run)
{
	struct world *w = run->context;
	float x[64] = {0};
	if (w->kind == BAD_STREAM) {
		run->st = COMM(w->comm[run->rank], barrier, &run->err); /* all streams exist */
		if (run->st != STATUS_OK) return;
	}
	if (run->rank == w->victim) {
		run->st = bad_call(run, w, (enum bad_call)w->kind, x);
		return;
	}
	for (int g = 0; g < 3 && run->st == STATUS_OK; g++) { /* what the victim should have done */
		struct tensor partial;
		run->st = COMM(w->comm[run->rank], partial, 2, &partial, &run->err);
		if (run->st != STATUS_OK) return;
		struct all_reduce_args args = {.partial = partial, .x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, 2, plain.cols)};
		run->st = COMM(w->comm[run->rank], all_reduce, w->stream[run->rank], &args, &run->err);
	}
}

static void test_refused_calls_free_the_peers(void **state)
{
	(void)state;
	for (int kind = 0; kind < BAD_COUNT; kind++)
		for (int P = 2; P <= 3; P++) {
			struct world *w = world_make(P, LONG_MS, NULL, &plain, &(struct fake_options){0});
			struct rank_run runs[RANKS_MAX];
			w->body = body_refused;
			w->kind = kind;
			w->victim = kind % P;
			world_run(w, runs);
			char who[16];
			snprintf(who, sizeof who, "rank %d: ", w->victim);
			for (int r = 0; r < P; r++) {
				if (runs[r].st != STATUS_BAD_INPUT) fail_msg("kind %d rank %d: %s: %s", kind, r, status_name(runs[r].st), runs[r].err.text);
				assert_int_equal(strncmp(runs[r].err.text, who, strlen(who)), 0);
			}
			world_end(w);
		}
}

/* Each legal by itself, but not the same. */
static void body_differ(struct rank_run *run)
{
	struct world *w = run->context;
	struct comm *comm = w->comm[run->rank];
	struct stream *stream = w->stream[run->rank];
	float x[64] = {0};
	const bool odd = run->rank == w->victim;
	if (w->kind == 0 || odd) {
		struct tensor partial;
		run->st = COMM(comm, partial, odd ? 3 : 2, &partial, &run->err);
		if (run->st != STATUS_OK) return;
		struct all_reduce_args args = {.partial = partial, .x = tensor_view(x, DTYPE_F32, TENSOR_REPLICATED, partial.rows, plain.cols)};
		run->st = COMM(comm, all_reduce, stream, &args, &run->err);
	} else if (w->kind == 1) {
		run->st = COMM(comm, barrier, &run->err);
	} else {
		run->st = COMM(comm, broadcast, stream, x, 8, 0, &run->err);
	}
}

static void test_different_calls(void **state)
{
	(void)state;
	for (int trial = 0; trial < 12; trial++) {
		const int P = trial % 2 ? 4 : 2;
		struct world *w = world_make(P, LONG_MS, NULL, &plain, &(struct fake_options){0});
		struct rank_run runs[RANKS_MAX];
		w->body = body_differ;
		w->kind = trial / 4;
		w->victim = trial % P;
		world_run(w, runs);
		for (int r = 0; r < P; r++) {
			assert_int_equal(runs[r].st, STATUS_MISMATCH);
			assert_non_null(strstr(runs[r].err.text, "all_reduce seq 1 F32 x 24"));
		}
		world_end(w);
	}
}

int main(void)
{
	watchdog(240);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_split),
		cmocka_unit_test(test_bits_do_not_depend_on_world_size),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_scratch_survives_until_read),
		cmocka_unit_test(test_barriers_between),
		cmocka_unit_test(test_broadcast),
		cmocka_unit_test(test_create_fails_together),
		cmocka_unit_test(test_create_refuses),
		cmocka_unit_test(test_device_failures),
		cmocka_unit_test(test_hanging_stream),
		cmocka_unit_test(test_fault_points),
		cmocka_unit_test(test_refused_calls_free_the_peers),
		cmocka_unit_test(test_different_calls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
