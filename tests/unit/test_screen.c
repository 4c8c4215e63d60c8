/* The prescreen's measuring: planted candidates that are each wrong in one way and must be rejected for that; what is stopped and gone on with; statistics of
 * pairs; problems of a model; the file. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/rng.h"
#include "prescreen/grid.h"
#include "prescreen/problems.h"
#include "prescreen/screen.h"
#include "prescreen/timing.h"
#include "unit/files.h"
#include "unit/planted_device.h"

#define LLAMA "tests/golden/llama"
#define QWEN "tests/data/plan/qwen3.5-27b"

static struct model_config config;

static void load(const char *path)
{
	struct error err = {0};
	if (model_config_load(&config, path, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static struct results one_problem(enum linear_use use, int n, int k, int m)
{
	struct error err = {0};
	struct results r = {.keep = 1.05, .reject = 1.01, .dtype = DTYPE_F32};
	struct result_problem *p = results_add_problem(&r, &err);
	assert_non_null(p);
	snprintf(p->phase, sizeof p->phase, "decode");
	p->linear = (struct linear_key){use, DTYPE_F32, n, k, m};
	assert_int_equal(result_add_place(p, 1, "mlp down", 2, &err), STATUS_OK);
	return r;
}

static struct screen_options options_for(const struct device_ops *ops)
{
	static const struct device_options device = {.isa = "c"};
	return (struct screen_options){.ops = ops, .device = &device, .config = &config, .rotate_bytes = -1, .timeout_ms = 10000};
}

static void run(struct results *r, struct planted_state state)
{
	struct error err = {0};
	struct screen_options options = options_for(planted_ops(state));
	if (screen_run(r, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_true(r->complete);
}

static const struct {
	enum planted way;
	enum outcome outcome;
	enum reason reason;
	const char *detail;
} expected[] = {
	{PLANTED_DEFAULT, OUTCOME_BASELINE, REASON_NONE, ""},
	{PLANTED_FAST, OUTCOME_KEEP, REASON_NONE, ""},
	{PLANTED_LONE, OUTCOME_KEEP, REASON_NONE, ""},
	{PLANTED_EVEN, OUTCOME_REJECT, REASON_SLOW, "< 1.01"},
	{PLANTED_ABSENT, OUTCOME_REJECT, REASON_REFUSED, "no such kernel"},
	{PLANTED_FALLS, OUTCOME_REJECT, REASON_NOT_TAKEN, "resolved to rows 4"},
	{PLANTED_SAME, OUTCOME_REJECT, REASON_UNCHANGED, "default"},
	{PLANTED_RECORD, OUTCOME_REJECT, REASON_REFUSED, "2048 threads"},
	{PLANTED_LAUNCH, OUTCOME_REJECT, REASON_REFUSED, "invalid configuration"},
	{PLANTED_PART, OUTCOME_REJECT, REASON_UNWRITTEN, "values were never written"},
	{PLANTED_SPILL, OUTCOME_REJECT, REASON_OUTSIDE, "4 places outside"},
	{PLANTED_RACY, OUTCOME_REJECT, REASON_UNREPEATABLE, "different bits"},
	{PLANTED_WRONG, OUTCOME_REJECT, REASON_WRONG, "relative L2 0.02 >"},
	{PLANTED_NAN, OUTCOME_REJECT, REASON_WRONG, "relative L2 nan"},
};

static void expect_planted(const struct result_problem *p, bool eager)
{
	assert_int_equal(p->candidates, PLANTED_COUNT);
	for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
		const struct result_candidate *c = &p->candidate[expected[i].way];
		if (eager && expected[i].way == PLANTED_RECORD) continue; /* nothing is recorded */
		if (eager && (expected[i].way == PLANTED_FAST || expected[i].way == PLANTED_EVEN)) {
			assert_true(c->timing.pairs > 0 && (c->reason == REASON_NONE || c->reason == REASON_SLOW)); /* by the clock of a machine that may be busy */
			continue;
		}
		enum reason reason = expected[i].reason;
		/* Without a launch list the name of what ran is all that can tell. */
		if (eager && expected[i].way == PLANTED_SAME) reason = REASON_NOT_TAKEN;
		if (c->outcome != expected[i].outcome || c->reason != reason || !strstr(c->detail, expected[i].detail))
			fail_msg("%s %s: %s, %s, \"%s\" (%.3f of %d pairs); expected %s, %s, \"%s\"", c->requested.kernel, c->requested.mode, outcome_name(c->outcome),
			         reason_name(c->reason), c->detail, c->timing.speedup, c->timing.pairs, outcome_name(expected[i].outcome), reason_name(reason), expected[i].detail);
		bool timed = expected[i].outcome != OUTCOME_REJECT || reason == REASON_SLOW;
		assert_int_equal(c->timing.pairs > 0, timed); /* what is wrong is never timed */
	}
	if (!eager) assert_true(fabs(p->candidate[PLANTED_FAST].timing.speedup - 4) < 1e-3 && fabs(p->candidate[PLANTED_EVEN].timing.speedup - 1) < 1e-3);
	assert_false(p->candidate[PLANTED_NAN].check.error.max <= INFINITY); /* the first value is no number: it sticks */
	assert_false(p->candidate[PLANTED_NAN].check.error.l2 <= INFINITY);
	assert_true(p->candidate[PLANTED_FAST].check.same_bits);
	assert_string_equal(p->candidate[PLANTED_FAST].check.hash, p->candidate[0].check.hash);
}

static void test_planted(void **state)
{
	(void)state;
	load(LLAMA);
	static const enum linear_use uses[] = {LINEAR_USE_PLAIN, LINEAR_USE_PARTIAL};
	for (int u = 0; u < 2; u++) {
		struct results r = one_problem(uses[u], 96, 64, 3);
		run(&r, (struct planted_state){0});
		const struct result_problem *p = &r.problem[0];
		expect_planted(p, false);
		assert_true(p->candidate[PLANTED_FAST].observed.known);
		assert_string_equal(p->candidate[PLANTED_FAST].observed.item[0].name, "fast_kernel");
		assert_int_equal(p->candidate[PLANTED_FAST].check.referenced, p->candidate[PLANTED_FAST].check.values);
		assert_string_equal(p->candidate[PLANTED_LLMM1].rule, ""); /* F32: the rules have nothing to say */
		results_fini(&r);
	}
}

static void test_planted_eager(void **state)
{
	(void)state;
	load(LLAMA);
	struct results r = one_problem(LINEAR_USE_PLAIN, 96, 64, 3);
	run(&r, (struct planted_state){.eager = true});
	expect_planted(&r.problem[0], true);
	assert_false(r.problem[0].candidate[PLANTED_FAST].observed.known);
	results_fini(&r);
}

/* A launch list that nobody can give: the name of what ran decides, and an override that only says so cannot be caught. */
static void test_without_launch_list(void **state)
{
	(void)state;
	load(LLAMA);
	struct results r = one_problem(LINEAR_USE_PLAIN, 64, 32, 1);
	run(&r, (struct planted_state){.no_kernels = true});
	assert_false(r.problem[0].candidate[PLANTED_FAST].observed.known);
	assert_int_equal(r.problem[0].candidate[PLANTED_FAST].outcome, OUTCOME_KEEP);
	assert_int_equal(r.problem[0].candidate[PLANTED_FALLS].reason, REASON_NOT_TAKEN);
	results_fini(&r);
}

/* The account: with K cut in two the down projection asks for 1088 threads, with K cut in four for 544 of a 32-lane device. */
static void test_static_first(void **state)
{
	(void)state;
	load(QWEN);
	static const struct { int k; const char *verdict, *rule; } rows[] = {{8704, "illegal", "threads"}, {4352, "legal", "all"}};
	for (int i = 0; i < 2; i++) {
		struct results r = one_problem(LINEAR_USE_PLAIN, 64, rows[i].k, 1);
		r.problem[0].linear.dtype = r.dtype = DTYPE_BF16;
		run(&r, (struct planted_state){0});
		const struct result_candidate *c = &r.problem[0].candidate[PLANTED_LLMM1];
		assert_string_equal(c->verdict, rows[i].verdict);
		assert_string_equal(c->rule, rows[i].rule);
		assert_int_equal(c->reason == REASON_STATIC, i == 0);
		assert_int_equal(planted.launched[PLANTED_LLMM1] == 0, i == 0); /* what is illegal is never launched */
		if (i == 0) assert_non_null(strstr(c->detail, "1088 > 1024"));
		results_fini(&r);
	}
}

/* A refusal that takes the device along is the run's failure, and says after whom. */
static void test_device_dies(void **state)
{
	(void)state;
	load(LLAMA);
	struct error err = {0};
	struct results r = one_problem(LINEAR_USE_PLAIN, 64, 32, 1);
	struct screen_options options = options_for(planted_ops((struct planted_state){.dies = true}));
	assert_int_equal(screen_run(&r, &options, &err), STATUS_DEVICE_FAULT);
	assert_non_null(strstr(err.text, "after illegal launch"));
	assert_non_null(strstr(err.text, "the device is gone"));
	assert_int_equal(r.problem[0].candidate[PLANTED_LAUNCH].reason, REASON_REFUSED);
	assert_false(r.problem[0].done);
	results_fini(&r);
}

/* ---- stopping and going on */

struct stopper {
	int left, saves;
	bool after_save; /* stops then */
	const char *path;
};

static bool stop(void *context)
{
	struct stopper *s = context;
	return s->left-- <= 0 || (s->after_save && s->saves);
}

static enum status save(void *context, const struct results *results, struct error *err)
{
	struct stopper *s = context;
	s->saves++;
	return results_save(results, s->path, err);
}

static struct results two_problems(void)
{
	struct error err = {0};
	struct results r = one_problem(LINEAR_USE_PLAIN, 96, 64, 1);
	struct result_problem *p = results_add_problem(&r, &err);
	assert_non_null(p);
	*p = (struct result_problem){.linear = {LINEAR_USE_PLAIN, DTYPE_F32, 64, 32, 2}};
	snprintf(p->phase, sizeof p->phase, "decode");
	return r;
}

static enum status refuse_open(struct device **out, const struct device_options *options, struct error *err)
{
	(void)out, (void)options;
	return FAIL(err, DEVICE_FAULT, "no device; plug one in");
}

static void test_resume(void **state)
{
	(void)state;
	load(LLAMA);
	char folder[256], path[512];
	struct error err = {0};
	files_make(folder);
	snprintf(path, sizeof path, "%s/prescreen.json", folder);
	struct results r = two_problems(), old, again = two_problems();
	struct screen_options options = options_for(planted_ops((struct planted_state){0}));
	struct stopper s = {.left = 5, .path = path};
	options.stop = stop;
	options.save = save;
	options.context = &s;
	/* Stops within the first problem: nothing is done, so what a file has from before stays. */
	assert_int_equal(screen_run(&r, &options, &err), STATUS_CANCELLED);
	assert_int_equal(s.saves, 0);
	/* Likewise a device that cannot be opened. */
	struct device_ops shut = *options.ops;
	struct screen_options failing = options;
	shut.open = refuse_open;
	failing.ops = &shut;
	err = (struct error){0};
	assert_int_equal(screen_run(&r, &failing, &err), STATUS_DEVICE_FAULT);
	assert_int_equal(s.saves, 0);
	/* Stops within the second: the first is done, which a later run takes over. */
	err = (struct error){0};
	s.left = 1000000;
	s.after_save = true;
	assert_int_equal(screen_run(&r, &options, &err), STATUS_CANCELLED);
	assert_int_equal(s.saves, 2);
	err = (struct error){0};
	s.after_save = false;
	assert_int_equal(results_load(&old, path, &err), STATUS_OK);
	assert_true(old.problem[0].done);
	assert_false(old.complete || old.problem[1].done);
	assert_int_equal(old.problem[1].candidates, PLANTED_COUNT);
	assert_int_equal(screen_identify(&again, &options, &err), STATUS_OK);
	assert_int_equal(screen_resume(&again, &old, true, path, &err), STATUS_OK);
	assert_true(again.problem[0].done);
	assert_false(again.problem[1].done);
	planted = (struct planted_state){0};
	s.saves = 0;
	assert_int_equal(screen_run(&again, &options, &err), STATUS_OK);
	assert_int_equal(s.saves, 1); /* one problem was measured */
	assert_true(again.complete);
	assert_string_equal(again.problem[0].candidate[PLANTED_FAST].check.hash, r.problem[0].candidate[PLANTED_FAST].check.hash);
	results_fini(&old);
	results_fini(&again);
	results_fini(&r);
	files_remove(folder);
}

/* Results as of a run that is done. */
static struct results done_results(void)
{
	struct error err = {0};
	struct results r = two_problems();
	snprintf(r.program, sizeof r.program, "1.2.3");
	snprintf(r.model, sizeof r.model, "llama");
	snprintf(r.model_type, sizeof r.model_type, "llama");
	snprintf(r.device, sizeof r.device, "cuda");
	snprintf(r.flavour, sizeof r.flavour, "sm_90");
	snprintf(r.versions, sizeof r.versions, "driver 1");
	r.threads = 1;
	r.degree[r.degrees++] = (struct result_degree){.world_size = 1, .legal = true, .q_heads = 4, .kv_heads = 2, .head_dim = 16};
	r.degree[r.degrees++] = (struct result_degree){.world_size = 2, .legal = true, .q_heads = 2, .kv_heads = 1, .head_dim = 16};
	assert_int_equal(result_add_place(&r.problem[0], 2, "mlp down", 2, &err), STATUS_OK);
	assert_int_equal(result_add_place(&r.problem[1], 2, "attn o", 2, &err), STATUS_OK);
	for (int i = 0; i < r.problems; i++) {
		assert_non_null(result_add_candidate(&r.problem[i], &err));
		r.problem[i].done = true;
	}
	return r;
}

enum change { PROGRAM, MODEL, MODEL_TYPE, DTYPE, DEVICE, FLAVOUR, VERSIONS, THREADS, ROTATE, KEEP, KEEP_CLOSE, REJECT, ANY_ORDER, HEADS, FEWER_DEGREES, FEWER_ROWS, FEWER_FAMILIES, NO_CHAIN, MORE, CHANGES };

static void change(struct results *r, struct results *old, enum change what)
{
	struct error err = {0};
	switch (what) {
	case PROGRAM: strcpy(r->program, "1.2.4"); break;
	case MODEL: strcpy(r->model, "qwen3"); break;
	case MODEL_TYPE: strcpy(r->model_type, "qwen3"); break;
	case DTYPE: r->dtype = DTYPE_BF16; break;
	case DEVICE: strcpy(r->device, "hip"); break;
	case FLAVOUR: strcpy(r->flavour, "sm_80"); break;
	case VERSIONS: strcpy(r->versions, "driver 2"); break;
	case THREADS: r->threads = 2; break;
	case ROTATE: r->rotate_bytes = 1; break;
	case KEEP: r->keep = 3; break;
	case KEEP_CLOSE: r->keep += 1e-12; break;
	case REJECT: r->reject = 1; break;
	case ANY_ORDER: r->any_order = true; break;
	case HEADS: r->degree[1].kv_heads = 2; break;
	case FEWER_DEGREES: r->degrees = 1, r->problem[0].places = 1, r->problem[1].linear.n = 128; break;
	case FEWER_ROWS: r->problem[1].linear.m = 1; break;
	case FEWER_FAMILIES: strcpy(r->problem[0].place[1].family, "attn qkv"); break;
	case NO_CHAIN: assert_int_equal(results_add_chain(old, &(struct result_chain){.world_size = 1, .rows = 1}, &err), STATUS_OK); break;
	case MORE: assert_int_equal(result_add_place(&r->problem[1], 4, "attn o", 2, &err), STATUS_OK), old->problem[1].done = false; break;
	case CHANGES: break;
	}
}

/* Results of something else are not relabelled, and what is not asked for again is not thrown away. */
static void test_resume_refuses(void **state)
{
	(void)state;
	static const char *const told[CHANGES + 1] = {
		[PROGRAM] = "the version of tandem is 1.2.3, now it is 1.2.4", [MODEL] = "the model is llama, now it is qwen3",
		[MODEL_TYPE] = "the model's type is llama, now it is qwen3", [DTYPE] = "the type of the weights is F32, now it is BF16",
		[DEVICE] = "the device is cuda, now it is hip", [FLAVOUR] = "the device is sm_90, now it is sm_80", [VERSIONS] = "software is driver 1, now it is driver 2",
		[THREADS] = "1 threads, 0 bytes, now it is 2 threads, 0 bytes", [ROTATE] = "now it is 1 threads, 1 bytes",
		[KEEP] = "--keep and --reject is 1.05 and 1.01, now it is 3 and 1.01", [REJECT] = "now it is 1.05 and 1",
		[KEEP_CLOSE] = "--keep and --reject is 1.05 and 1.01, now it is 1.0500000000",
		[ANY_ORDER] = "--any-order is off, now it is on; leave --resume out", [HEADS] = "at world size 2 the model has other heads",
		[FEWER_DEGREES] = "has 2 results that are not asked for now and would be lost, the first TP2 decode M=1 linear [96 x 64]",
		[FEWER_ROWS] = "has 1 results that are not asked for now and would be lost, the first TP2 decode M=2 linear [64 x 32]",
		[FEWER_FAMILIES] = "has 1 results", [NO_CHAIN] = "has 1 chains that would be lost; leave --no-chain out",
	};
	for (enum change what = 0; what <= CHANGES; what++) {
		struct results old = done_results(), r = done_results();
		struct error err = {0};
		for (int i = 0; i < r.problems; i++) r.problem[i].done = false, r.problem[i].candidates = 0, free(r.problem[i].candidate), r.problem[i].candidate = NULL;
		change(&r, &old, what);
		const enum status st = screen_resume(&r, &old, what != NO_CHAIN, "x.json", &err);
		if (st != (told[what] ? STATUS_BAD_INPUT : STATUS_OK) || (told[what] && !strstr(err.text, told[what])))
			fail_msg("change %d: %s, \"%s\"; expected \"%s\"", (int)what, status_name(st), err.text, told[what] ? told[what] : "");
		assert_int_equal(r.problem[0].done, !told[what]);
		assert_int_equal(old.problem[0].candidates, told[what] ? 1 : 0); /* taken, or as it was */
		results_fini(&old);
		results_fini(&r);
	}
}

static void test_budget(void **state)
{
	(void)state;
	load(LLAMA);
	struct error err = {0};
	struct results r = two_problems();
	struct screen_options options = options_for(planted_ops((struct planted_state){0}));
	options.budget_s = 1e-9;
	assert_int_equal(screen_run(&r, &options, &err), STATUS_OK);
	assert_false(r.complete || r.problem[0].done || r.problem[1].done);
	results_fini(&r);
}

/* A problem takes far more than 10 s: it is cut off, not measured to its end. */
static void test_budget_cuts(void **state)
{
	(void)state;
	load(LLAMA);
	struct error err = {0};
	struct results r = two_problems();
	struct screen_options options = options_for(planted_ops((struct planted_state){.eager = true, .slow_us = 100000}));
	const uint64_t start = clock_ns();
	options.budget_s = 1;
	assert_int_equal(screen_run(&r, &options, &err), STATUS_OK);
	const double seconds = clock_seconds_since(start);
	if (seconds > 10) fail_msg("%.2f s of a budget of 1", seconds);
	assert_true(planted.launched[0] > 1);
	assert_false(r.complete || r.problem[0].done || r.problem[1].done);
	assert_int_equal(r.problem[0].candidates, 0); /* half of them would be taken for all */
	options.ops = planted_ops((struct planted_state){0});
	options.budget_s = 0;
	assert_int_equal(screen_run(&r, &options, &err), STATUS_OK);
	assert_true(r.complete);
	assert_int_equal(r.problem[0].candidates, PLANTED_COUNT);
	results_fini(&r);
}

/* ---- pairs */

static struct pairs pairs_of(double ratio, double noise, int n)
{
	struct pairs p = {0};
	for (int i = 0; i < n; i++) pairs_add(&p, 200 * ratio * (1 + noise * (rng_unit(1, 7, (uint64_t)i) - 0.5)), 200);
	return p;
}

static void test_pairs(void **state)
{
	(void)state;
	const struct pair_rule rule = {.keep = 1.05, .reject = 1.01, .least = 8, .most = PAIRS_MAX, .width = 0.004};
	struct result_timing t;
	struct pairs p = pairs_of(1.2, 0.02, 8);
	assert_true(pairs_enough(&p, &rule)); /* far from any threshold */
	pairs_summary(&p, &t);
	assert_true(t.low <= t.speedup && t.speedup <= t.high && t.pairs == 8);
	assert_true(t.us == 100 && t.baseline_us > 110 && t.baseline_us < 130);
	assert_int_equal(pairs_outcome(&t, &rule), OUTCOME_KEEP);
	p = pairs_of(1.2, 0.02, 7);
	assert_false(pairs_enough(&p, &rule)); /* too few */
	p = pairs_of(1.052, 0.04, 8);
	assert_false(pairs_enough(&p, &rule)); /* close, and noisy */
	p = pairs_of(1.052, 0.04, 300);
	assert_true(pairs_enough(&p, &rule)); /* close, and by now known */
	pairs_summary(&p, &t);
	assert_int_equal(pairs_outcome(&t, &rule), OUTCOME_KEEP);
	p = pairs_of(1.03, 0.001, 8);
	pairs_summary(&p, &t);
	assert_int_equal(pairs_outcome(&t, &rule), OUTCOME_BOUNDARY);
	p = pairs_of(1.0, 0.001, 8);
	pairs_summary(&p, &t);
	assert_int_equal(pairs_outcome(&t, &rule), OUTCOME_REJECT);
	p = pairs_of(0.4, 0.05, 2);
	assert_false(pairs_enough(&p, &rule));
	p = pairs_of(0.4, 0.05, 3);
	assert_true(pairs_enough(&p, &rule)); /* hopeless */
	p = pairs_of(0.9, 0.05, 7);
	assert_false(pairs_enough(&p, &rule));
	p = pairs_of(1.02, 0, PAIRS_MAX);
	assert_true(pairs_enough(&p, &rule));
}

/* ---- problems */

static const struct result_problem *find(const struct results *r, int n, int k, int m)
{
	for (int i = 0; i < r->problems; i++)
		if (r->problem[i].op == PROBLEM_LINEAR && r->problem[i].linear.n == n && r->problem[i].linear.k == k && r->problem[i].linear.m == m) return &r->problem[i];
	fail_msg("no problem [%d x %d], M %d", n, k, m);
	return NULL;
}

static void test_problems(void **state)
{
	(void)state;
	static const int32_t degrees[] = {1, 2, 4, 3}, contexts[] = {8192};
	struct error err = {0};
	struct results r = {0};
	struct problem_choice c = {.degrees = degrees, .degree_count = 4, .decode = true, .prefill = true, .contexts = contexts, .context_count = 1};
	load(QWEN);
	assert_int_equal(problems_make(&r, &config, device_find("cpu"), &c, &err), STATUS_OK);
	/* attention's and GDN's out projections have one shape. */
	const struct result_problem *p = find(&r, 5120, 3072, 1);
	assert_int_equal(p->places, 2);
	assert_int_equal(p->place[0].world_size, 2);
	assert_int_equal(p->linear.use, LINEAR_USE_PARTIAL);
	assert_int_equal(find(&r, 5120, 8704, 4096)->place[0].count, 64);
	assert_int_equal(find(&r, 8704, 5120, 1)->places, 1);
	assert_int_equal(find(&r, 124160, 5120, 1)->linear.use, LINEAR_USE_PLAIN);
	for (int i = 0; i < r.problems; i++) assert_false(r.problem[i].op == PROBLEM_LINEAR && r.problem[i].linear.n == 124160 && r.problem[i].linear.m > 16);
	assert_int_equal(r.degrees, 4);
	assert_false(r.degree[3].legal);
	assert_true(r.degree[3].why_not[0]);
	assert_int_equal(r.degree[1].gdn_v_heads, 24);
	int attention = 0;
	for (int i = 0; i < r.problems; i++) attention += r.problem[i].op == PROBLEM_ATTENTION && r.problem[i].attention.q_heads == 6 && r.problem[i].attention.kv_heads == 1;
	assert_int_equal(attention, SHAPES_CLASSES);
	results_fini(&r);
	c.families = "nothing";
	assert_int_equal(problems_make(&r, &config, device_find("cpu"), &c, &err), STATUS_USAGE);
	results_fini(&r);
	c.families = "down";
	c.prefill = false;
	err = (struct error){0};
	assert_int_equal(problems_make(&r, &config, device_find("cpu"), &c, &err), STATUS_OK);
	assert_int_equal(r.problems, 15); /* three degrees, five classes */
	results_fini(&r);
}

/* Ranks that have other rows of the vocabulary ask for another LM head: each is a problem, and a row of the report. */
static void test_heads_of_all_ranks(void **state)
{
	(void)state;
	static const struct {
		int32_t world_size;
		int vocab, granule, problems, n[3];
	} cases[] = {{8, 151936, 32, 2, {19008, 18976}}, {8, 262208, 32, 2, {32800, 32768}}, {8, 248320, 32, 1, {31040}},
	             {2, 32003, 1, 2, {16002, 16001}}, {4, 165, 32, 3, {64, 37, 32}}};
	static const int32_t rows[] = {4};
	struct error err = {0};
	struct device_ops ops = *device_find("cpu");
	load(QWEN);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct problem_choice c = {.degrees = &cases[i].world_size, .degree_count = 1, .decode = true, .rows = rows, .row_count = 1, .families = "lm_head"};
		struct results r = {0};
		struct grid grid;
		char text[RESULTS_TEXT], shape[RESULTS_TEXT];
		config.vocab_size = cases[i].vocab;
		ops.linear_granule = cases[i].granule;
		assert_int_equal(problems_make(&r, &config, &ops, &c, &err), STATUS_OK);
		assert_int_equal(r.problems, cases[i].problems);
		assert_int_equal(grid_init(&grid, &r, &err), STATUS_OK);
		assert_int_equal(grid.rows, r.problems);
		assert_string_equal(grid_row_text(&grid.row[0], text), "decode M=4");
		for (int p = 0; p < r.problems; p++) {
			assert_int_equal(r.problem[p].linear.n, cases[i].n[p]);
			assert_int_equal(r.problem[p].places, 1);
			assert_string_equal(r.problem[p].place[0].family, "lm_head");
			assert_ptr_equal(grid.row[p].at[0], &r.problem[p]);
			snprintf(shape, sizeof shape, "decode M=4, %d x 5120", cases[i].n[p]);
			if (p) assert_string_equal(grid_row_text(&grid.row[p], text), shape);
		}
		grid_fini(&grid);
		results_fini(&r);
	}
}

static int count_op(const struct results *r, enum problem_op op)
{
	int count = 0;
	for (int i = 0; i < r->problems; i++) count += r->problem[i].op == op;
	return count;
}

/* Delta nets and experts, at every degree; and which op asks for what, where a back end has fused ones: as engine/forward.c has it. */
static void test_blocks(void **state)
{
	(void)state;
	static const int32_t degrees[] = {1, 2, 4, 8}, rows[] = {2, 1024};
	struct error err = {0};
	struct results r = {0};
	struct device_ops fused = *device_find("cpu");
	const struct problem_choice c = {.degrees = degrees, .degree_count = 4, .decode = true, .prefill = true, .rows = rows, .row_count = 2, .contexts = degrees, .context_count = 1};
	fused.accumulates = true;
	load(QWEN);
	assert_int_equal(problems_make(&r, &config, &fused, &c, &err), STATUS_OK);
	assert_int_equal(count_op(&r, PROBLEM_GDN), 8);
	assert_int_equal(count_op(&r, PROBLEM_MOE), 0);
	struct result_problem like = {.op = PROBLEM_GDN, .phase = "prefill", .gdn = {DTYPE_F32, 4, 12, 128, 128, 4, 1024, true}};
	const struct result_problem *p = results_find(&r, &like);
	assert_non_null(p);
	assert_int_equal(p->place[0].world_size, 4);
	assert_int_equal(p->place[0].count, 48);
	assert_string_equal(p->place[0].family, "gdn state");
	results_fini(&r);
	/* An output gate's rows belong to attention_in; without that op it is a linear. */
	assert_true(config.attn_output_gate);
	fused.ops.attention_in = (enum status (*)(struct stream *, const struct attention_in_args *, struct error *))fused.ops.rope; /* any that is there: it is not called */
	assert_int_equal(problems_make(&r, &config, &fused, &c, &err), STATUS_OK);
	assert_int_equal(find(&r, 7168, 5120, 2)->linear.use, LINEAR_USE_ATTENTION_IN);
	assert_int_equal(find(&r, 8192, 5120, 2)->linear.use, LINEAR_USE_PLAIN);
	results_fini(&r);
	load("tests/data/plan/qwen3-30b-a3b");
	assert_int_equal(problems_make(&r, &config, &fused, &c, &err), STATUS_OK);
	assert_int_equal(count_op(&r, PROBLEM_MOE), 8);
	like = (struct result_problem){.op = PROBLEM_MOE, .phase = "decode", .moe = {LINEAR_USE_PARTIAL, DTYPE_BF16, 2048, 128, 8, 384, 0, 2}};
	p = results_find(&r, &like);
	assert_non_null(p);
	assert_int_equal(p->place[0].world_size, 2);
	assert_int_equal(p->place[0].count, 48);
	like.moe.use = LINEAR_USE_ACCUMULATE, like.moe.inner = 768;
	assert_non_null(results_find(&r, &like)); /* one rank adds */
	for (int i = 0; i < r.problems; i++)
		for (int at = 0; at < r.problem[i].places; at++) assert_true(r.problem[i].op == PROBLEM_MOE || !plan_is_of_moe(r.problem[i].place[at].family));
	results_fini(&r);
	/* Who asks for a part of the experts is told what to ask for. */
	struct problem_choice part = c;
	part.families = "moe router,moe shared";
	assert_int_equal(problems_make(&r, &config, &fused, &part, &err), STATUS_USAGE);
	assert_non_null(strstr(err.text, "--families moe router,moe shared: moe router is measured with all of the layer's experts, as one op; give 'moe experts'"));
	err = (struct error){0};
	results_fini(&r);
	part.families = "moe";
	assert_int_equal(problems_make(&r, &config, &fused, &part, &err), STATUS_OK);
	assert_int_equal(r.problems, count_op(&r, PROBLEM_MOE));
	results_fini(&r);
	/* Capped scores are another problem, in the file too. */
	load("tests/golden/gemma2");
	const struct problem_choice attention = {.degrees = degrees, .degree_count = 1, .decode = true, .rows = rows, .row_count = 1, .contexts = degrees, .context_count = 1, .families = "attention"};
	assert_int_equal(problems_make(&r, &config, device_find("cpu"), &attention, &err), STATUS_OK);
	assert_int_equal(r.problems, 1);
	assert_true(r.problem[0].attention.softcap == 3);
	like = r.problem[0];
	like.attention.softcap = 0;
	assert_null(results_find(&r, &like));
	r.threads = 1;
	json_t *file = results_json(&r);
	char *text = json_dumps(file, JSON_COMPACT);
	struct results back;
	assert_non_null(strstr(text, "\"prefill\":false,\"softcap\":3.0"));
	assert_int_equal(results_parse(&back, text, strlen(text), "x.json", &err), STATUS_OK);
	assert_non_null(results_find(&back, &r.problem[0]));
	results_fini(&back);
	memcpy(strstr(text, "3.0}"), "-30", 3);
	assert_int_equal(results_parse(&back, text, strlen(text), "x.json", &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "softcap: expected a number from 0"));
	free(text);
	json_decref(file);
	results_fini(&r);
}

/* ---- the file */

static void test_file(void **state)
{
	(void)state;
	struct error err = {0};
	struct results r;
	struct buf text = {0};
	assert_int_equal(results_load(&r, "tests/data/prescreen/sample.json", &err), STATUS_OK);
	json_t *back = results_json(&r), *file = json_load_file("tests/data/prescreen/sample.json", 0, NULL);
	assert_true(json_equal(back, file));
	json_decref(back);
	json_decref(file);
	r.any_order = true;
	back = results_json(&r);
	assert_true(json_is_true(json_object_get(back, "any_order")));
	results_fini(&r);
	char *all = json_dumps(back, 0);
	json_decref(back);
	assert_int_equal(results_parse(&r, all, strlen(all), "x.json", &err), STATUS_OK);
	assert_true(r.any_order);
	free(all);
	results_fini(&r);
	static const struct { const char *old, *new, *message; } bad[] = {
		{"\"version\": 1", "\"version\": 2", "version 2 of the format, this program reads 1; run the prescreen again"},
		{"tandem-prescreen", "else", "format: expected \"tandem-prescreen\""},
		{"\"threads\"", "\"thread\"", "thread: not a field of this format"},
		{"\"outcome\": \"keep\"", "\"outcome\": \"kept\"", "problems[0].candidates[2].outcome"},
		{"\"outcome\": \"keep\"", "\"outcome\": \"baseline\"", "the first candidate, and no other, is the baseline"},
		{"\"threads\"", "\"any_order\": 1, \"threads\"", "any_order: expected true or false"},
		{"\"n\": 4096", "\"n\": 0", "problems[0].key.n"},
		{"\"n\": 4096", "\"n\": 4096.5", "problems[0].key.n"},
		{"\"op\": \"attention\"", "\"op\": \"linear\"", "problems[2].key"},
	};
	assert_int_equal(buf_read_file(&text, "tests/data/prescreen/sample.json", 1 << 20, &err), STATUS_OK);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct buf changed = {0};
		const char *at = strstr(text.data, bad[i].old);
		assert_non_null(at);
		assert_int_equal(buf_append(&changed, text.data, (size_t)(at - text.data), &err), STATUS_OK);
		assert_int_equal(buf_puts(&changed, bad[i].new, &err), STATUS_OK);
		assert_int_equal(buf_puts(&changed, at + strlen(bad[i].old), &err), STATUS_OK);
		struct error why = {0};
		assert_int_equal(results_parse(&r, changed.data, changed.size, "x.json", &why), STATUS_BAD_INPUT);
		if (!strstr(why.text, bad[i].message)) fail_msg("\"%s\" where \"%s\" was expected", why.text, bad[i].message);
		buf_fini(&changed);
	}
	buf_fini(&text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_planted), cmocka_unit_test(test_planted_eager), cmocka_unit_test(test_without_launch_list), cmocka_unit_test(test_static_first),
		cmocka_unit_test(test_device_dies), cmocka_unit_test(test_resume), cmocka_unit_test(test_resume_refuses), cmocka_unit_test(test_budget),
		cmocka_unit_test(test_budget_cuts), cmocka_unit_test(test_pairs),
		cmocka_unit_test(test_problems), cmocka_unit_test(test_heads_of_all_ranks), cmocka_unit_test(test_blocks), cmocka_unit_test(test_file),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
