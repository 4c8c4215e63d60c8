#include "prescreen/rejects.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct reject {
	const struct result_problem *problem;
	const struct result_place *place;
	const struct result_candidate *candidate;
	char why[2 * RESULTS_TEXT]; /* "" where it was timed: those go together whatever the time */
};

static int in_order(const struct reject *a, const struct reject *b, bool rows_too)
{
	if (a->candidate->reason != b->candidate->reason) return a->candidate->reason < b->candidate->reason ? -1 : 1;
	int text = strcmp(a->candidate->requested.kernel, b->candidate->requested.kernel);
	if (!text) text = strcmp(a->candidate->requested.mode, b->candidate->requested.mode);
	if (!text) text = strcmp(a->place->family, b->place->family);
	if (text) return text;
	if (a->place->world_size != b->place->world_size) return a->place->world_size < b->place->world_size ? -1 : 1;
	text = strcmp(a->problem->phase, b->problem->phase);
	if (!text) text = strcmp(a->why, b->why);
	if (text || !rows_too) return text;
	return (result_problem_rows(a->problem) > result_problem_rows(b->problem)) - (result_problem_rows(a->problem) < result_problem_rows(b->problem));
}

static int by_order(const void *a, const void *b)
{
	return in_order(a, b, true);
}

static int count_all(const struct results *r)
{
	int count = 0;
	for (int i = 0; i < r->problems; i++)
		for (int c = 0; c < r->problem[i].candidates; c++)
			if (r->problem[i].candidate[c].outcome == OUTCOME_REJECT) count += r->problem[i].places;
	return count;
}

static void collect(struct reject *list, struct rejects *out, const struct results *r)
{
	int n = 0;
	for (int i = 0; i < r->problems; i++)
		for (int c = 0; c < r->problem[i].candidates; c++) {
			const struct result_candidate *candidate = &r->problem[i].candidate[c];
			if (candidate->outcome != OUTCOME_REJECT) continue;
			out->of_reason[candidate->reason]++;
			for (int p = 0; p < r->problem[i].places; p++) {
				list[n] = (struct reject){&r->problem[i], &r->problem[i].place[p], candidate, ""};
				if (!candidate->timing.pairs) grid_why(candidate, list[n].why);
				n++;
			}
		}
}

static void name_rows(struct reject_group *group, const struct reject *list, int count)
{
	size_t used = 0;
	int last = -1;
	for (int i = 0; i < count; i++) {
		int rows = result_problem_rows(list[i].problem);
		if (rows == last) continue;
		last = rows;
		int n = snprintf(group->rows + used, sizeof group->rows - used, "%s%d", used ? ", " : "", rows);
		if (n < 0 || used + (size_t)n + 5 > sizeof group->rows) {
			snprintf(group->rows + used, sizeof group->rows - used, ", ...");
			return;
		}
		used += (size_t)n;
	}
}

static struct reject_group group_of(const struct reject *list, int count)
{
	const struct result_candidate *first = list[0].candidate;
	struct reject_group g = {.reason = first->reason, .variant = &first->requested, .place = list[0].place, .problem = list[0].problem, .count = count};
	double low = first->timing.speedup, high = low;
	for (int i = 1; i < count; i++) {
		double speedup = list[i].candidate->timing.speedup;
		low = speedup < low ? speedup : low;
		high = speedup > high ? speedup : high;
	}
	name_rows(&g, list, count);
	if (!first->timing.pairs || count == 1) grid_why(first, g.why);
	else snprintf(g.why, sizeof g.why, "%.3fx to %.3fx, %s", low, high, reason_name(g.reason));
	return g;
}

enum status rejects_init(struct rejects *out, const struct results *results, struct error *err)
{
	*out = (struct rejects){0};
	int count = count_all(results);
	struct reject *list = mem_zalloc((size_t)count + 1, sizeof *list, "rejections", err);
	out->item = mem_zalloc((size_t)count + 1, sizeof *out->item, "rejections", err);
	if (!list || !out->item) {
		free(list);
		rejects_fini(out);
		return STATUS_NO_MEMORY;
	}
	collect(list, out, results);
	qsort(list, (size_t)count, sizeof *list, by_order);
	for (int from = 0, to; from < count; from = to) {
		for (to = from + 1; to < count && in_order(&list[from], &list[to], false) == 0;) to++;
		out->item[out->count++] = group_of(&list[from], to - from);
	}
	free(list);
	return STATUS_OK;
}

void rejects_fini(struct rejects *rejects)
{
	free(rejects->item);
	*rejects = (struct rejects){0};
}
