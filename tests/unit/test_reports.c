/* What is said about results: flips between degrees and between runs, how stable verdicts are, rejections put together, and reports that carry all of it
 * and nothing that a hostile name could add. account.json has the speed-ups of a published account of TP2 and TP4 on one device; its other numbers are
 * made up. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "prescreen/compare.h"
#include "prescreen/rejects.h"
#include "prescreen/report.h"
#include "unit/files.h"

#define ACCOUNT "tests/data/prescreen/account.json"
#define SAMPLE "tests/data/prescreen/sample.json"

static void need(enum status st, const struct error *err)
{
	if (st != STATUS_OK) fail_msg("%s", err->text);
}

static struct results load(const char *path)
{
	struct results r;
	struct error err = {0};
	need(results_load(&r, path, &err), &err);
	return r;
}

static struct result_problem *find(struct results *r, const char *family, int tp, int m)
{
	for (int i = 0; i < r->problems; i++)
		for (int p = 0; p < r->problem[i].places; p++)
			if (r->problem[i].op == PROBLEM_LINEAR && r->problem[i].linear.m == m && r->problem[i].place[p].world_size == tp && !strcmp(r->problem[i].place[p].family, family))
				return &r->problem[i];
	fail_msg("no %s at TP%d", family, tp);
	return NULL;
}

static void test_the_accounts_flips(void **state)
{
	(void)state;
	static const struct { const char *family; int m; enum outcome two, four; } want[] = {
		{"gdn qkvz", 1, OUTCOME_KEEP, OUTCOME_REJECT}, {"gdn ba", 1, OUTCOME_REJECT, OUTCOME_KEEP},   {"mlp down", 1, OUTCOME_REJECT, OUTCOME_KEEP},
		{"gdn out", 1, OUTCOME_KEEP, OUTCOME_REJECT},  {"gdn out", 4096, OUTCOME_KEEP, OUTCOME_REJECT},
	};
	struct results r = load(ACCOUNT);
	struct grid grid;
	struct degree_flips flips;
	struct error err = {0};
	need(grid_init(&grid, &r, &err), &err);
	need(compare_degrees(&flips, &grid, &err), &err);
	assert_int_equal(grid.degrees, 2);
	assert_int_equal(flips.count, 5);
	assert_int_equal(flips.compared, 14);
	for (int i = 0; i < 5; i++) {
		const struct degree_flip *f = &flips.item[i];
		assert_string_equal(f->row->family, want[i].family);
		assert_int_equal(f->row->m, want[i].m);
		assert_int_equal(f->at[0]->outcome, want[i].two);
		assert_int_equal(f->at[1]->outcome, want[i].four);
	}
	struct buf text = {0};
	need(compare_degrees_text(&flips, &grid, &text, &err), &err);
	assert_non_null(strstr(text.data, "TP2   5120 x 8704            reject    threads: 1088 > 1024"));
	assert_non_null(strstr(text.data, "5 of 14 candidates"));
	json_t *object = compare_degrees_json(&flips, &grid);
	assert_int_equal(json_integer_value(json_object_get(object, "flipped")), 5);
	json_t *down = json_array_get(json_object_get(object, "flips"), 2);
	assert_string_equal(json_string_value(json_object_get(json_array_get(json_object_get(down, "degrees"), 0), "reason")), "static");
	json_decref(object);
	buf_fini(&text);
	degree_flips_fini(&flips);
	grid_fini(&grid);
	results_fini(&r);
}

/* A planted flip is found, and nothing else is. */
static void test_planted_flip_between_runs(void **state)
{
	(void)state;
	struct results a = load(ACCOUNT), b = load(ACCOUNT);
	struct run_flips flips;
	struct error err = {0};
	need(compare_runs(&flips, &a, &b, &err), &err);
	assert_int_equal(flips.count, 0);
	assert_int_equal(flips.compared, 28);
	assert_true(run_stability(&flips) == 1 && flips.spread == 0);
	assert_int_equal(flips.same_best, 28);
	assert_int_equal(flips.chained, 0);
	run_flips_fini(&flips);
	/* Chains: confirmed in one run alone; confirmed in both, other candidates apart; tried in one run alone. */
	find(&a, "gdn qkvz", 2, 1)->candidate[1].confirm.outcome = OUTCOME_KEEP;
	find(&b, "gdn qkvz", 2, 1)->candidate[1].confirm.outcome = OUTCOME_BOUNDARY;
	find(&a, "mlp down", 4, 1)->candidate[1].confirm.outcome = find(&b, "mlp down", 4, 1)->candidate[1].confirm.outcome = OUTCOME_KEEP;
	find(&a, "attn qkv", 2, 1)->candidate[1].confirm.outcome = OUTCOME_REJECT;

	struct result_problem *ba = find(&b, "gdn ba", 2, 1);
	ba->candidate[1].outcome = OUTCOME_KEEP;
	ba->candidate[1].reason = REASON_NONE;
	ba->candidate[1].timing.speedup = 1.02 * 1.1;
	find(&b, "mlp down", 2, 1)->candidate[1].outcome = OUTCOME_OPEN; /* not decided there */
	find(&b, "attn qkv", 4, 1)->candidate[1].requested.mode[0] = '8'; /* another candidate in either run */
	need(compare_runs(&flips, &a, &b, &err), &err);
	assert_int_equal(flips.count, 1);
	assert_int_equal(flips.compared, 26);
	assert_int_equal(flips.equal, 25);
	assert_int_equal(flips.only_a, 2);
	assert_int_equal(flips.only_b, 1);
	assert_true(run_stability(&flips) > 0.961 && run_stability(&flips) < 0.962);
	assert_true(flips.spread > 0.09 && flips.spread < 0.0910);
	assert_int_equal(flips.same_best, 25);
	assert_int_equal(flips.chained, 2);
	assert_int_equal(flips.same_confirmed, 1);
	assert_int_equal(flips.item[0].a->outcome, OUTCOME_REJECT);
	assert_int_equal(flips.item[0].b->outcome, OUTCOME_KEEP);
	struct buf text = {0};
	need(compare_runs_text(&flips, &text, &err), &err);
	assert_non_null(strstr(text.data, "decode M=1 linear [48 x 5120], LLMM1 (4)"));
	assert_non_null(strstr(text.data, "25 of 26 verdicts are equal: 96.2 %"));
	assert_non_null(strstr(text.data, "of 2 problems that chains were asked about in both, 1 have a confirmed candidate in both runs or in neither: 50.0 %"));
	json_t *object = compare_runs_json(&flips);
	assert_int_equal(json_array_size(json_object_get(object, "flips")), 1);
	json_decref(object);
	buf_fini(&text);
	run_flips_fini(&flips);
	results_fini(&a), results_fini(&b);
}

static void test_runs_that_cannot_be_compared(void **state)
{
	(void)state;
	struct results a = load(ACCOUNT), b = load(ACCOUNT), other = load(SAMPLE);
	struct run_flips flips;
	struct error err = {0};
	assert_int_equal(compare_runs(&flips, &a, &other, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "qwen3_5 in BF16, the other of llama"));
	err = (struct error){0};
	b.keep = 1.10;
	assert_int_equal(compare_runs(&flips, &a, &b, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "one run are 1.05 and 1.05, of the other 1.1 and 1.05;"));
	err = (struct error){0};
	b.keep = a.keep + 1e-12;
	assert_int_equal(compare_runs(&flips, &a, &b, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "one run are 1.05 and 1.05, of the other 1.0500000000"));
	err = (struct error){0};
	b.keep = a.keep;
	for (int i = 0; i < b.problems; i++) b.problem[i].phase[0] = 'x';
	assert_int_equal(compare_runs(&flips, &a, &b, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "no problem in common"));
	results_fini(&a), results_fini(&b), results_fini(&other);
}

static void test_rejections_go_together(void **state)
{
	(void)state;
	struct results r = load(SAMPLE);
	struct rejects rejects;
	struct error err = {0};
	need(rejects_init(&rejects, &r, &err), &err);
	assert_int_equal(rejects.of_reason[REASON_WRONG], 1); /* one candidate at two places */
	assert_int_equal(rejects.count, 5);
	assert_string_equal(rejects.item[0].why, "threads: 1088 > 1024");
	rejects_fini(&rejects);
	results_fini(&r);
	/* the same candidate slow at three M: one line with the range */
	r = (struct results){.keep = 1.05, .reject = 1};
	for (int m = 4; m >= 1; m /= 2) {
		struct result_problem *p = results_add_problem(&r, &err);
		*p = (struct result_problem){.op = PROBLEM_LINEAR, .phase = "decode", .linear = {.n = 8, .k = 8, .m = m}, .done = true};
		need(result_add_place(p, 2, "attn o", 1, &err), &err);
		struct result_candidate *c = result_add_candidate(p, &err);
		*c = (struct result_candidate){.requested = {.kernel = "a"}, .outcome = OUTCOME_REJECT, .reason = REASON_SLOW, .timing = {.pairs = 3, .speedup = 0.9 + 0.01 * m}};
	}
	need(rejects_init(&rejects, &r, &err), &err);
	assert_int_equal(rejects.count, 1);
	assert_int_equal(rejects.item[0].count, 3);
	assert_string_equal(rejects.item[0].rows, "1, 2, 4");
	assert_string_equal(rejects.item[0].why, "0.910x to 0.940x, slow");
	rejects_fini(&rejects);
	results_fini(&r);
}

static int occurrences(const char *text, const char *what)
{
	int n = 0;
	for (const char *at = text; (at = strstr(at, what)); at += strlen(what)) n++;
	return n;
}

static void test_reports_say_it_all(void **state)
{
	(void)state;
	struct results r = load(ACCOUNT);
	struct buf md = {0}, page = {0};
	struct error err = {0};
	need(report_markdown(&r, &md, &err), &err);
	need(report_html(&r, &page, &err), &err);
	assert_non_null(strstr(md.data, "| decode M=1 | **keep** 1.914x LLMM1 (4) | **keep** 1.993x LLMM1 (4) |"));
	assert_non_null(strstr(md.data, "reject LLMM1 (4): threads: 1088 > 1024"));
	assert_non_null(strstr(md.data, "5 of 14 candidates"));
	assert_non_null(strstr(page.data, "threads: 1088 &gt; 1024"));
	assert_non_null(strstr(page.data, "1.993×"));
	assert_int_equal(occurrences(page.data, "tabindex=0"), 28);     /* every cell can have the focus */
	assert_int_equal(occurrences(page.data, "class=ev role=tooltip"), 28);
	assert_int_equal(occurrences(page.data, "aria-describedby=e"), 28);
	assert_int_equal(occurrences(page.data, "<span class=bar"), 26); /* two were never timed */
	assert_int_equal(occurrences(page.data, "<table"), occurrences(page.data, "</table>"));
	assert_int_equal(occurrences(page.data, "<details"), occurrences(page.data, "</details>"));
	assert_int_equal(occurrences(page.data, "<div"), occurrences(page.data, "</div>"));
	static const char *const outside[] = {"http:", "https:", "<script", "<link", "<img", "@import", "url(", "src="};
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) assert_null(strstr(page.data, outside[i]));
	buf_fini(&md), buf_fini(&page);
	results_fini(&r);
}

/* Half of the last digit that a report shows, a bit below it: what is rounded before it is written is shown otherwise after it was read. */
static void unsettle(struct result_timing *t)
{
	t->us = nextafter(t->us + 0.345, 0), t->baseline_us = nextafter(floor(t->baseline_us) + 0.125, 0);
	t->speedup = nextafter(floor(t->speedup * 10) / 10 + 0.0125, 0), t->low = t->speedup - 1 / 3.0, t->high = t->speedup + 1 / 7.0;
}

static void test_reports_anew_are_the_same(void **state)
{
	(void)state;
	char folder[256], path[300];
	struct results r = load(SAMPLE), again;
	struct buf text[4] = {0};
	struct error err = {0};
	r.keep = 1.0123456789012345, r.reject = 1 / 3.0, r.seconds = nextafter(12.5, 0);
	for (int i = 0; i < r.problems; i++)
		for (int c = 0; c < r.problem[i].candidates; c++) {
			struct result_candidate *at = &r.problem[i].candidate[c];
			unsettle(&at->timing), unsettle(&at->confirm.timing);
			at->check.error = (struct result_error){nextafter(0.125, 0), 1 / 3.0};
		}
	files_make(folder);
	snprintf(path, sizeof path, "%s/prescreen.json", folder);
	need(results_save(&r, path, &err), &err);
	need(results_load(&again, path, &err), &err);
	need(report_markdown(&r, &text[0], &err), &err);
	need(report_markdown(&again, &text[1], &err), &err);
	need(report_html(&r, &text[2], &err), &err);
	need(report_html(&again, &text[3], &err), &err);
	assert_string_equal(text[0].data, text[1].data);
	assert_string_equal(text[2].data, text[3].data);
	/* and all the rest: to the last bit */
	json_t *one = results_json(&r), *two = results_json(&again);
	assert_true(json_equal(one, two));
	json_decref(one), json_decref(two);
	for (int i = 0; i < 4; i++) buf_fini(&text[i]);
	files_remove(folder);
	results_fini(&r), results_fini(&again);
}

static void test_hostile_names_stay_text(void **state)
{
	(void)state;
	struct results r = load(ACCOUNT);
	struct buf md = {0}, page = {0};
	struct error err = {0};
	strcpy(r.model, "<script>alert(1)</script>");
	strcpy(r.versions, "a|b \"c\" & `d`\n# e");
	strcpy(r.problem[0].candidate[1].requested.kernel, "<img src=x>|");
	strcpy(r.problem[0].candidate[1].observed.item[0].name, "k<int, 4>\x01</div>");
	strcpy(r.problem[1].place[0].family, "a\"><b>|");
	strcpy(r.problem[2].note, "<i>");
	int candidates = r.problem[2].candidates;
	r.problem[2].candidates = 1;
	need(report_markdown(&r, &md, &err), &err);
	need(report_html(&r, &page, &err), &err);
	assert_null(strstr(page.data, "<script"));
	assert_null(strstr(page.data, "<img"));
	assert_null(strstr(page.data, "<b>|"));
	assert_null(strstr(page.data, "<i>"));
	assert_non_null(strstr(page.data, "&lt;script&gt;alert(1)&lt;/script&gt;"));
	assert_non_null(strstr(page.data, "k&lt;int, 4&gt; &lt;/div&gt;"));
	assert_null(strstr(md.data, "<script"));
	assert_null(strstr(md.data, "\n# e"));
	assert_non_null(strstr(md.data, "a\\|b"));
	/* a table's rows keep their number of columns */
	for (char *line = strtok(md.data, "\n"); line; line = strtok(NULL, "\n")) {
		int bars = 0;
		for (char *c = line; *c; c++) bars += *c == '|' && (c == line || c[-1] != '\\');
		if (!strncmp(line, "| decode M=1 |", 14)) assert_int_equal(bars, 4);
	}
	buf_fini(&md), buf_fini(&page);
	r.problem[2].candidates = candidates;
	results_fini(&r);
}

static void test_empty_and_unfinished(void **state)
{
	(void)state;
	struct results r = {.model = "nothing", .keep = 1.05, .reject = 1};
	struct buf md = {0}, page = {0};
	struct error err = {0};
	need(report_markdown(&r, &md, &err), &err);
	need(report_html(&r, &page, &err), &err);
	assert_non_null(strstr(page.data, "None."));
	buf_fini(&md), buf_fini(&page);
	r = load(ACCOUNT);
	r.complete = false;
	r.problem[0].done = false;
	need(report_html(&r, &page, &err), &err);
	assert_non_null(strstr(page.data, "not complete"));
	assert_non_null(strstr(page.data, "problems are not finished"));
	buf_fini(&page);
	results_fini(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_accounts_flips),
		cmocka_unit_test(test_planted_flip_between_runs),
		cmocka_unit_test(test_runs_that_cannot_be_compared),
		cmocka_unit_test(test_rejections_go_together),
		cmocka_unit_test(test_reports_say_it_all),
		cmocka_unit_test(test_reports_anew_are_the_same),
		cmocka_unit_test(test_hostile_names_stay_text),
		cmocka_unit_test(test_empty_and_unfinished),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
