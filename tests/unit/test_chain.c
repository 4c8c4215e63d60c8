/* Confirmation in the chain: what is fast alone and slow there is not written, what is confirmed is; together; what is left open, and gone on with. */
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
#include "prescreen/chain.h"
#include "prescreen/choose.h"
#include "prescreen/problems.h"
#include "prescreen/screen.h"
#include "unit/planted_device.h"

static struct model_config config;

/* Two linears of decode, one number of rows. */
static struct results problems_of(int32_t world_size, const char *families, int vocab)
{
	static const int32_t rows[] = {2}, contexts[] = {8};
	struct error err = {0};
	struct results r = {.keep = 1.5, .reject = 1.3, .dtype = DTYPE_F32};
	const struct problem_choice c = {.degrees = &world_size, .degree_count = 1, .decode = true, .rows = rows, .row_count = 1, .families = families,
	                                 .contexts = contexts, .context_count = 1};
	if (model_config_load(&config, "tests/golden/llama", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	config.vocab_size = vocab;
	if (problems_make(&r, &config, planted_ops((struct planted_state){0}), &c, &err) != STATUS_OK) fail_msg("%s", err.text);
	snprintf(r.program, sizeof r.program, "0");
	snprintf(r.model, sizeof r.model, "llama");
	snprintf(r.model_type, sizeof r.model_type, "llama");
	assert_int_equal(r.problems, 2);
	assert_false(linear_key_equal(&r.problem[0].linear, &r.problem[1].linear));
	return r;
}

/* With this model each has two places in the chain. */
static struct results chain_problems(void)
{
	return problems_of(1, "attn o,mlp gate_up", 160);
}

static struct screen_options options_for(const struct device_ops *ops)
{
	static const struct device_options device = {.isa = "c"};
	return (struct screen_options){.ops = ops, .device = &device, .config = &config, .rotate_bytes = -1, .quick = true, .any_order = true, .timeout_ms = 10000};
}

static void run_chain(struct results *r, struct planted_state state, double budget_s)
{
	struct error err = {0};
	struct screen_options options = options_for(planted_ops(state));
	options.chain = true;
	options.budget_s = budget_s;
	if (screen_run(r, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void expect_entries(const struct results *r, int entries)
{
	struct whitelist w;
	struct error err = {0};
	if (choose_whitelist(&w, r, true, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(w.entries, entries);
	for (int i = 0; i < entries; i++) {
		if (strcmp(w.entry[i].prefer.variant.kernel, "fast")) fail_msg("%s is in the whitelist", w.entry[i].prefer.variant.kernel);
		assert_int_equal(w.entry[i].prefer.m_low, 2);
		assert_int_equal(w.entry[i].prefer.m_high, 2);
		assert_ptr_equal(strstr(w.entry[i].where, CHOOSE_UNCONFIRMED), NULL);
	}
	whitelist_fini(&w);
}

/* Fast alone and slow in the chain: tried first, refused there, and not written; the next best is. */
static void test_chain(void **state)
{
	(void)state;
	struct results r = chain_problems(), back;
	struct error err = {0};
	run_chain(&r, (struct planted_state){0}, 0);
	for (int i = 0; i < 2; i++) {
		const struct result_candidate *lone = &r.problem[i].candidate[PLANTED_LONE], *fast = &r.problem[i].candidate[PLANTED_FAST];
		assert_true(lone->timing.speedup > fast->timing.speedup);
		assert_int_equal(lone->outcome, OUTCOME_KEEP); /* its own verdict stays */
		assert_int_equal(lone->confirm.outcome, OUTCOME_REJECT);
		assert_true(lone->confirm.timing.high < 1 && fabs(lone->confirm.gain_us + 300) < 1);
		assert_non_null(strstr(lone->confirm.detail, "TP1 chain of"));
		if (fast->confirm.outcome != OUTCOME_KEEP) fail_msg("%s: %s", outcome_name(fast->confirm.outcome), fast->confirm.detail);
		assert_true(fast->confirm.timing.low > 1 && fabs(fast->confirm.gain_us - 150) < 1);
		assert_int_equal(r.problem[i].candidate[PLANTED_EVEN].confirm.outcome, OUTCOME_OPEN);
		assert_false(result_confirmed(&r, &r.problem[i], lone));
		assert_true(result_confirmed(&r, &r.problem[i], fast));
	}
	const struct result_chain *chain = results_find_chain(&r, 1, 2);
	assert_non_null(chain);
	assert_int_equal(chain->entries, 2);
	assert_true(chain->timing.low > 1);
	expect_entries(&r, 2);
	/* The file keeps it. */
	json_t *object = results_json(&r);
	char *text = json_dumps(object, 0);
	if (results_parse(&back, text, strlen(text), "x.json", &err) != STATUS_OK) fail_msg("%s", err.text);
	expect_entries(&back, 2);
	json_t *again = results_json(&back);
	assert_true(json_equal(object, again));
	json_decref(object);
	json_decref(again);
	strstr(text, "gain_us")[0] = 'p';
	results_fini(&back);
	assert_int_equal(results_parse(&back, text, strlen(text), "x.json", &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "chain.pain_us: not a field"));
	free(text);
	results_fini(&back);
	results_fini(&r);
}

/* Where nothing is recorded: the machine's clock, so no more than that they were tried, the fastest first. */
static void test_chain_eager(void **state)
{
	(void)state;
	struct results r = chain_problems();
	run_chain(&r, (struct planted_state){.eager = true}, 0);
	assert_non_null(results_find_chain(&r, 1, 2));
	for (int i = 0; i < 2; i++) {
		assert_int_not_equal(r.problem[i].candidate[PLANTED_LONE].confirm.outcome, OUTCOME_OPEN);
		assert_true(r.problem[i].candidate[PLANTED_LONE].confirm.timing.pairs >= 4);
	}
	results_fini(&r);
}

/* Each faster alone in the chain, slower together: what gained least is dropped until one is left. */
static void test_chain_together(void **state)
{
	(void)state;
	struct results r = chain_problems();
	run_chain(&r, (struct planted_state){.jealous = true}, 0);
	assert_int_equal(results_find_chain(&r, 1, 2)->entries, 1);
	int dropped = 0;
	for (int i = 0; i < 2; i++) {
		const struct result_confirm *confirm = &r.problem[i].candidate[PLANTED_FAST].confirm;
		dropped += confirm->outcome == OUTCOME_BOUNDARY && strstr(confirm->detail, "dropped: the TP1 chain with all 2 is");
	}
	assert_int_equal(dropped, 1);
	expect_entries(&r, 1);
	results_fini(&r);
}

/* What was not tried in its chain does not enter; what was never to be is marked. A later run does what is left. */
static void test_chain_open(void **state)
{
	(void)state;
	struct error err = {0};
	struct results r = chain_problems(), next = chain_problems();
	struct whitelist w;
	int wanted, done;
	struct screen_options options = options_for(planted_ops((struct planted_state){0})); /* no chain */
	if (screen_run(&r, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(r.chain_mode, CHAIN_OFF);
	if (choose_whitelist(&w, &r, true, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(w.entries, 2);
	for (int i = 0; i < 2; i++) assert_int_equal(strncmp(w.entry[i].where, CHOOSE_UNCONFIRMED "TP1 ", strlen(CHOOSE_UNCONFIRMED "TP1 ")), 0);
	whitelist_fini(&w);
	run_chain(&r, (struct planted_state){0}, 1e-9); /* no time for it */
	assert_true(r.complete);
	chain_count(&r, &wanted, &done);
	assert_int_equal(wanted, 1);
	assert_int_equal(done, 0);
	expect_entries(&r, 0);
	options = options_for(planted_ops((struct planted_state){0}));
	assert_int_equal(screen_identify(&next, &options, &err), STATUS_OK);
	assert_int_equal(screen_resume(&next, &r, true, "x.json", &err), STATUS_OK);
	run_chain(&next, (struct planted_state){0}, 0);
	assert_int_equal(planted.launched[PLANTED_EVEN], 0); /* alone it was measured before */
	expect_entries(&next, 2);
	results_fini(&r);
	/* And that run's chain is not measured again. */
	r = chain_problems();
	options = options_for(planted_ops((struct planted_state){0}));
	assert_int_equal(screen_identify(&r, &options, &err), STATUS_OK);
	assert_int_equal(screen_resume(&r, &next, true, "x.json", &err), STATUS_OK);
	run_chain(&r, (struct planted_state){0}, 0);
	assert_int_equal(planted.launched[PLANTED_FAST], 0);
	expect_entries(&r, 2);
	results_fini(&r);
	results_fini(&next);
}

/* Ranks have LM heads of two sizes: either is confirmed. */
static void test_chain_heads(void **state)
{
	(void)state;
	struct results r = problems_of(2, "lm_head", 352);
	assert_int_equal(r.problem[0].linear.n, 192);
	assert_int_equal(r.problem[1].linear.n, 160);
	run_chain(&r, (struct planted_state){0}, 0);
	const struct result_chain *chain = results_find_chain(&r, 2, 2);
	assert_non_null(chain);
	assert_int_equal(chain->entries, 2);
	for (int i = 0; i < 2; i++) assert_true(fabs(r.problem[i].candidate[PLANTED_FAST].confirm.gain_us - 150) < 1);
	expect_entries(&r, 2);
	results_fini(&r);
}

/* Ends the run when its chain has judged one problem and comes to another: as Ctrl-C does, or by its budget. */
struct ender {
	const struct result_problem *first;
	double budget_s;
	bool stop;
};

static bool stop(void *context)
{
	return ((struct ender *)context)->stop;
}

static void end_within_chain(void *context, const struct screen_progress *progress)
{
	struct ender *e = context;
	if (!progress->chains) return;
	if (!e->first) e->first = progress->problem;
	if (e->first == progress->problem) return;
	e->stop = !e->budget_s;
	const uint64_t start = clock_ns();
	while (clock_seconds_since(start) < e->budget_s) continue;
}

/* A chain that did not come to its end leaves nothing behind: all of it is measured again. */
static void test_chain_ends_early(void **state)
{
	(void)state;
	static const double budgets[] = {0, 2};
	for (int i = 0; i < 2; i++) {
		struct error err = {0};
		struct results r = chain_problems(), next = chain_problems();
		struct screen_options options = options_for(planted_ops((struct planted_state){0}));
		struct ender e = {.budget_s = budgets[i]};
		if (screen_run(&r, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
		options.chain = true;
		options.stop = stop;
		options.progress = end_within_chain;
		options.context = &e;
		options.budget_s = e.budget_s;
		assert_int_equal(screen_run(&r, &options, &err), e.budget_s ? STATUS_OK : STATUS_CANCELLED);
		assert_non_null(e.first);
		assert_int_equal(r.chains, 0);
		for (int j = 0; j < r.problems; j++)
			for (int k = 0; k < r.problem[j].candidates; k++) assert_int_equal(r.problem[j].candidate[k].confirm.outcome, OUTCOME_OPEN);
		err = (struct error){0};
		assert_int_equal(screen_identify(&next, &options, &err), STATUS_OK);
		assert_int_equal(screen_resume(&next, &r, true, "x.json", &err), STATUS_OK);
		run_chain(&next, (struct planted_state){0}, 0);
		for (int j = 0; j < next.problems; j++) assert_int_equal(next.problem[j].candidate[PLANTED_LONE].confirm.outcome, OUTCOME_REJECT);
		expect_entries(&next, 2);
		results_fini(&r);
		results_fini(&next);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_chain), cmocka_unit_test(test_chain_eager), cmocka_unit_test(test_chain_together),
	                                   cmocka_unit_test(test_chain_open), cmocka_unit_test(test_chain_heads), cmocka_unit_test(test_chain_ends_early)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
