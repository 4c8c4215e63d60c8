/* check_comm_emu.c: the ranks' kernels interleaved on one thread by a seeded scheduler (emu.h), which switches at every access that another rank could
 * see. Built for the emulated device alone (Makefile). Each trial is a seed: sequences of all-reduces, results compared bit by bit; then the same
 * with an abort at a random moment, with a rank that makes another call, and with one that makes none.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "device/gpu/device.h"
#include "gpu/comm_world.h"

#define LONG_MS 60000       /* that the threads which make the comms do not reach */
#define NS_PER_SWITCH 20000 /* the clock of a run: a millisecond is 50 switches */
#define NS_NO_CALL 6000000  /* where somebody does not come: LONG_MS are 10 000 switches */
#define STALL 20000000      /* switches without a store: more than any deadline here takes */
#define MAX_STEPS 6

enum trouble { NONE, ABORT, OTHER_CALL, NO_CALL, TROUBLES };
static const char *const trouble_names[TROUBLES] = {"all well", "abort", "another call", "no call"};

struct trial {
	struct world *world;
	enum trouble trouble;
	int victim, steps, bad_step; /* the victim goes wrong at this step */
	uint64_t abort_at;           /* switches */
	bool told;
	struct world_sum sum[MAX_STEPS];
	struct world_buffers host[WORLD_MAX_RANKS][MAX_STEPS];
};

static void tick(void *argument, uint64_t switches)
{
	struct trial *t = argument;
	if (t->trouble != ABORT || t->told || switches < t->abort_at) return;
	struct error why = {0};
	(void)FAIL(&why, NO_ROOM, "somebody had enough");
	t->told = true;
	group_abort(t->world->group, t->victim, &why);
}

/* What rank r does; false: it has stopped. */
static bool launch_rank(struct trial *t, int r)
{
	struct world_rank *rank = &t->world->rank[r];
	t->world->ops->attach(rank->device);
	for (int i = 0; i < t->steps; i++) {
		struct world_sum sum = t->sum[i];
		const bool wrong = r == t->victim && i == t->bad_step;
		if (wrong && t->trouble == NO_CALL) return true;
		if (wrong && t->trouble == OTHER_CALL) sum.rows = sum.rows > 1 ? sum.rows - 1 : 2;
		rank->st = world_prepare(rank, &sum, &t->host[r][i]);
		if (rank->st == STATUS_OK) rank->st = world_all_reduce(rank, &sum, &t->host[r][i]);
		if (rank->st != STATUS_OK) return false;
		if (wrong && t->trouble == OTHER_CALL) return true;
	}
	return true;
}

static void judge(struct gpu_check *c, struct trial *t)
{
	static const enum status expected[TROUBLES] = {STATUS_OK, STATUS_NO_ROOM, STATUS_MISMATCH, STATUS_TIMEOUT};
	for (int k = 1; k <= t->world->P; k++) { /* the victim last: nobody has told it yet */
		const int r = (t->victim + k) % t->world->P;
		struct world_rank *rank = &t->world->rank[r];
		t->world->ops->attach(rank->device);
		enum status st = comm_sync(rank->comm, rank->stream, &rank->err);
		const bool early = t->trouble == ABORT && !t->told; /* all was over before */
		const enum status want = early ? STATUS_OK : expected[t->trouble];
		/* who is told first is told by the device; the others hear the group's first error */
		if (st != want) gpu_fail(c, "rank %d: %s: %s; expected %s", r, status_name(st), rank->err.text, status_name(want));
		if (t->trouble == NO_CALL && r != t->victim && !strstr(rank->err.text, "did not come")) gpu_fail(c, "rank %d: \"%s\"", r, rank->err.text);
		for (int i = 0; want == STATUS_OK && i < t->steps; i++) world_compare(rank, &t->sum[i], &t->host[r][i]);
		if (rank->complaint[0]) gpu_fail(c, "rank %d: %s", r, rank->complaint);
	}
}

static void run_trial(struct gpu_check *c, struct world *w, const struct comm_options *o, uint64_t seed, enum trouble trouble)
{
	struct trial *t = calloc(1, sizeof *t);
	t->world = w, t->trouble = trouble;
	t->victim = (int)(rng_u64(seed, 1, 0) % (uint64_t)w->P);
	t->steps = 2 + (int)(rng_u64(seed, 2, 0) % (MAX_STEPS - 1));
	t->bad_step = (int)(rng_u64(seed, 3, 0) % (uint64_t)t->steps);
	t->abort_at = emu_switches() + rng_u64(seed, 4, 0) % 6000;
	for (int i = 0; i < t->steps; i++) {
		const uint64_t bits = rng_u64(seed, 5, (uint64_t)i);
		t->sum[i] = (struct world_sum){.g = seed * 16 + (uint64_t)i, .rows = 1 + (int)(bits % (uint64_t)o->max_rows), .pad = (int)(bits >> 8 & 3),
		                               .add = bits >> 12 & 1, .bias = bits >> 13 & 1, .norm = bits >> 14 & 1};
	}
	gpu_case(c, o->dtype, FILL_RANDOM, "%d ranks interleaved, [%d,%d], packets to %zu, two shots from %zu, %s, after %" PRIu64 " uses, trial %" PRIu64, w->P, o->max_rows,
	         o->cols, o->packet_bytes, o->two_shot_bytes, trouble_names[trouble], o->uses_before, seed);
	world_group(w, LONG_MS, NULL);
	world_connect(w, o);
	if (world_report(w, c)) {
		const struct emu_together together = {.seed = seed, .stall = STALL, .ns_per_switch = trouble == NO_CALL ? NS_NO_CALL : NS_PER_SWITCH, .tick = tick, .arg = t,
		                                      .tick_every = 16};
		emu_together_begin(&together);
		for (int r = 0; r < w->P; r++)
			if (!launch_rank(t, r)) gpu_fail(c, "rank %d: %s", r, w->rank[r].err.text);
		if (emu_together_run() != GPU_OK) gpu_fail(c, "the devices: %s", gpu_error_text(EMU_FAULT));
		judge(c, t);
		c->compared += t->steps;
	}
	for (int r = 0; r < w->P; r++)
		for (int i = 0; i < MAX_STEPS; i++) world_buffers_free(&t->host[r][i]);
	world_drop(w);
	gpu_case_end(c);
	free(t);
}

static void check_world(struct gpu_check *c, int P, int trials)
{
	struct world w;
	if (!world_open(&w, c, P, 4096, 16384)) {
		c->failed++;
		return;
	}
	for (int i = 0; i < trials; i++) {
		const uint64_t seed = c->seed * 1000 + (uint64_t)(i + 100 * P), bits = rng_u64(seed, 9, 0);
		const int kind = (int)(bits % (P > 2 ? 4 : 3)); /* packets, pull, tree, two shots */
		struct comm_options o = {.max_rows = 2 + (int)(bits >> 8 & 3), .cols = 1 + (int)(bits >> 12 & 63), .dtype = (enum dtype)(bits >> 20 & 3) % 3,
		                         .tree_leaves = P, .packet_bytes = kind == 0 ? SIZE_MAX / 2 : 1, .two_shot_bytes = kind == 3 ? 1 : SIZE_MAX};
		if (bits >> 28 & 1) o.uses_before = (UINT64_C(1) << (bits >> 29 & 1 ? 31 : 32)) - 1 - (bits >> 30 & 3); /* the numbers of uses begin again */
		if (kind == 2) o.dtype = DTYPE_F32, o.invariant = true, o.tree_leaves = P * (1 + (int)(bits >> 24 & 3));
		run_trial(c, &w, &o, seed, (enum trouble)(i % TROUBLES));
	}
	world_close(&w);
}

void gpu_check_comm_emu(struct gpu_check *c)
{
	const int trials = c->quick ? 16 : 400;
	check_world(c, 2, trials);
	check_world(c, 3, trials);
	check_world(c, 4, trials);
	check_world(c, 8, trials / 2);
}
