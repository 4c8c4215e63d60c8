/* Fuzzes the file of a prescreen: whatever the text, the answer is a refusal of one line, or results that are written and read back the same, whose
 * texts can be printed, and of which a resumed run can take what is done, or refuses. */
#include <stdlib.h>
#include <string.h>

#include "prescreen/screen.h"
#include "fuzz/standalone.h"

static void check_problem(const struct results *r, const struct result_problem *p)
{
	char text[RESULTS_TEXT];
	check(strlen(result_problem_text(p, text)) < sizeof text && !strchr(text, '\n'));
	check(results_find(r, p) != NULL);
	for (int i = 0; i < p->candidates; i++) {
		const struct result_candidate *c = &p->candidate[i];
		check((c->outcome == OUTCOME_BASELINE) == (i == 0) && (unsigned)c->reason < REASON_COUNT && !strchr(c->detail, '\n'));
		check(result_launches_equal(&c->observed, &c->observed));
	}
}

static void check_resume(struct results *r)
{
	struct results now = *r; /* the same run, asked for again */
	struct error err = {0};
	now.problem = NULL;
	now.problems = 0;
	now.chain = NULL;
	now.chains = 0;
	for (int i = 0; i < r->problems; i++) {
		struct result_problem *p = results_add_problem(&now, &err);
		check(p != NULL);
		*p = r->problem[i];
		p->place = NULL;
		p->places = 0;
		for (int k = 0; k < r->problem[i].places; k++)
			check(result_add_place(p, r->problem[i].place[k].world_size, r->problem[i].place[k].family, r->problem[i].place[k].count, &err) == STATUS_OK);
		p->candidate = NULL;
		p->candidates = 0;
		p->done = false;
	}
	const enum status st = screen_resume(&now, r, true, "prescreen.json", &err);
	check(st == STATUS_OK || (st == STATUS_BAD_INPUT && err.text[0] && !strchr(err.text, '\n'))); /* what is there twice, and not the same, cannot be kept */
	results_fini(&now);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct results r, again;
	struct error err = {0};
	if (results_parse(&r, (const char *)data, size, "prescreen.json", &err) != STATUS_OK) {
		check(err.text[0] && !strchr(err.text, '\n'));
		return 0;
	}
	json_t *object = results_json(&r);
	char *text = object ? json_dumps(object, JSON_REAL_PRECISION(17)) : NULL;
	check(text && results_parse(&again, text, strlen(text), "prescreen.json", &err) == STATUS_OK);
	json_t *back = results_json(&again);
	check(json_equal(object, back));
	for (int i = 0; i < r.problems; i++) check_problem(&r, &r.problem[i]);
	free(text);
	json_decref(object);
	json_decref(back);
	results_fini(&again);
	check_resume(&r);
	results_fini(&r);
	return 0;
}
