#include "prescreen/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool decided(const struct result_candidate *c)
{
	return c->outcome == OUTCOME_KEEP || c->outcome == OUTCOME_BOUNDARY || c->outcome == OUTCOME_REJECT;
}

static const struct result_candidate *find_candidate(const struct result_problem *problem, const struct variant *variant)
{
	for (int i = 0; problem && i < problem->candidates; i++)
		if (decided(&problem->candidate[i]) && variant_equal(&problem->candidate[i].requested, variant)) return &problem->candidate[i];
	return NULL;
}

/* --- degrees ---------------------------------------------------------------------------------------------------------------- */

/* Fills *flip for the variant; says at how many degrees it was decided, and whether they agree. */
static int look_across(struct degree_flip *flip, const struct grid_row *row, const struct variant *variant, int degrees, bool *agree)
{
	int found = 0;
	enum outcome first = OUTCOME_OPEN;
	*flip = (struct degree_flip){.row = row, .variant = variant};
	*agree = true;
	for (int d = 0; d < degrees; d++) {
		flip->at[d] = find_candidate(row->at[d], variant);
		if (!flip->at[d]) continue;
		if (found++ == 0) first = flip->at[d]->outcome;
		*agree &= flip->at[d]->outcome == first;
	}
	return found;
}

static enum status look_at_row(struct degree_flips *out, const struct grid *grid, const struct grid_row *row, struct error *err)
{
	for (int d = 0; d < grid->degrees; d++)
		for (int i = 0; row->at[d] && i < row->at[d]->candidates; i++) {
			const struct result_candidate *c = &row->at[d]->candidate[i];
			bool seen = !decided(c), agree;
			for (int before = 0; before < d && !seen; before++) seen = find_candidate(row->at[before], &c->requested) != NULL;
			struct degree_flip flip;
			if (seen || look_across(&flip, row, &c->requested, grid->degrees, &agree) < 2) continue;
			out->compared++;
			if (agree) continue;
			void *list = out->item;
			TRY(mem_grow(&list, (size_t)out->count + 1, sizeof flip, "flips", err));
			out->item = list;
			out->item[out->count++] = flip;
		}
	return STATUS_OK;
}

enum status compare_degrees(struct degree_flips *out, const struct grid *grid, struct error *err)
{
	*out = (struct degree_flips){0};
	enum status st = STATUS_OK;
	for (int i = 0; i < grid->rows; i++) TRY_GOTO(look_at_row(out, grid, &grid->row[i], err), fail);
	return STATUS_OK;
fail:
	degree_flips_fini(out);
	return st;
}

void degree_flips_fini(struct degree_flips *flips)
{
	free(flips->item);
	*flips = (struct degree_flips){0};
}

/* --- runs ------------------------------------------------------------------------------------------------------------------- */

static bool same_best(const struct result_problem *a, const struct result_problem *b)
{
	const struct result_candidate *x = grid_best(a), *y = grid_best(b);
	if (!x || !y) return x == y;
	if (x->outcome != y->outcome) return false;
	return x->outcome != OUTCOME_KEEP || variant_equal(&x->requested, &y->requested);
}

static int decided_candidates(const struct result_problem *problem)
{
	int count = 0;
	for (int i = 0; i < problem->candidates; i++) count += decided(&problem->candidate[i]);
	return count;
}

/* What chains said of a problem: were its candidates tried, is one confirmed? */
static bool was_chained(const struct result_problem *problem, bool *confirmed)
{
	bool tried = false;
	*confirmed = false;
	for (int i = 0; i < problem->candidates; i++) {
		tried |= problem->candidate[i].confirm.outcome != OUTCOME_OPEN;
		*confirmed |= problem->candidate[i].confirm.outcome == OUTCOME_KEEP;
	}
	return tried;
}

static void compare_chains(struct run_flips *out, const struct result_problem *a, const struct result_problem *b)
{
	bool x, y;
	if (!was_chained(a, &x) || !was_chained(b, &y)) return;
	out->chained++;
	out->same_confirmed += x == y;
}

static enum status compare_problem(struct run_flips *out, const struct result_problem *a, const struct result_problem *b, struct error *err)
{
	int both = 0;
	out->problems++;
	out->same_best += same_best(a, b);
	compare_chains(out, a, b);
	for (int i = 0; i < a->candidates; i++) {
		const struct result_candidate *x = &a->candidate[i], *y = decided(x) ? find_candidate(b, &x->requested) : NULL;
		if (!y) {
			out->only_a += decided(x);
			continue;
		}
		both++;
		out->compared++;
		if (x->timing.pairs && y->timing.pairs && y->timing.speedup > 0) out->spread = fmax(out->spread, fabs(x->timing.speedup / y->timing.speedup - 1));
		if (x->outcome == y->outcome) {
			out->equal++;
			continue;
		}
		void *list = out->item;
		TRY(mem_grow(&list, (size_t)out->count + 1, sizeof *out->item, "flips", err));
		out->item = list;
		out->item[out->count++] = (struct run_flip){a, x, y};
	}
	out->only_b += decided_candidates(b) - both;
	return STATUS_OK;
}

static enum status comparable(const struct results *a, const struct results *b, struct error *err)
{
	char x[RESULTS_TEXT], y[RESULTS_TEXT];
	if (strcmp(a->model_type, b->model_type) || a->dtype != b->dtype)
		return FAIL(err, BAD_INPUT, "prescreen diff: one run is of %s in %s, the other of %s in %s; give two runs of one model", a->model_type, dtype_name(a->dtype),
		            b->model_type, dtype_name(b->dtype));
	if (results_thresholds_differ(a, b, x, y))
		return FAIL(err, BAD_INPUT, "prescreen diff: --keep and --reject of one run are %s, of the other %s; give two runs with the same thresholds", x, y);
	return STATUS_OK;
}

enum status compare_runs(struct run_flips *out, const struct results *a, const struct results *b, struct error *err)
{
	*out = (struct run_flips){0};
	enum status st = STATUS_OK;
	TRY(comparable(a, b, err));
	for (int i = 0; i < a->problems; i++) {
		const struct result_problem *twin = results_find(b, &a->problem[i]);
		if (twin) TRY_GOTO(compare_problem(out, &a->problem[i], twin, err), fail);
		else out->only_a += decided_candidates(&a->problem[i]);
	}
	for (int i = 0; i < b->problems; i++)
		if (!results_find(a, &b->problem[i])) out->only_b += decided_candidates(&b->problem[i]);
	if (out->problems) return STATUS_OK;
	st = FAIL(err, BAD_INPUT, "prescreen diff: the two runs have no problem in common; give runs of the same model, degrees and rows");
fail:
	run_flips_fini(out);
	return st;
}

void run_flips_fini(struct run_flips *flips)
{
	free(flips->item);
	*flips = (struct run_flips){0};
}

double run_stability(const struct run_flips *flips)
{
	return flips->compared ? (double)flips->equal / flips->compared : 1;
}
