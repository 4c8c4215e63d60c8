#include "prescreen/grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int context_of(const struct result_problem *problem)
{
	return problem->op == PROBLEM_ATTENTION ? problem->attention.context : 0;
}

/* The row of a place whose cell is still free. One rank may ask for the sum in another way than several do (linear += and linear partial): it is the same row.
 * Ranks of one world size that have different LM heads fill several; *taken says how many others there are. */
static struct grid_row *find_row(struct grid *grid, const struct result_problem *problem, const struct result_place *place, int column, int *taken)
{
	*taken = 0;
	for (int i = 0; i < grid->rows; i++) {
		struct grid_row *row = &grid->row[i];
		if (row->op != problem->op || row->m != result_problem_rows(problem) || row->context != context_of(problem) || strcmp(row->family, place->family) ||
		    strcmp(row->phase, problem->phase))
			continue;
		if (!row->at[column]) return row;
		++*taken;
	}
	return NULL;
}

static enum status add_place(struct grid *grid, const struct result_problem *problem, const struct result_place *place, struct error *err)
{
	int column = 0;
	while (column < grid->degrees && grid->degree[column] != place->world_size) column++;
	if (column == grid->degrees) {
		if (column == RESULTS_MAX_DEGREES) return FAIL(err, NO_ROOM, "results: more than %d world sizes; measure fewer at a time", RESULTS_MAX_DEGREES);
		grid->degree[grid->degrees++] = place->world_size;
	}
	int taken;
	struct grid_row *row = find_row(grid, problem, place, column, &taken);
	if (!row) {
		void *list = grid->row;
		TRY(mem_grow(&list, (size_t)grid->rows + 1, sizeof *row, "rows of a report", err));
		grid->row = list;
		row = &grid->row[grid->rows++];
		*row = (struct grid_row){.family = place->family, .phase = problem->phase, .op = problem->op, .m = result_problem_rows(problem), .context = context_of(problem),
		                         .others = taken};
	}
	row->at[column] = problem;
	return STATUS_OK;
}

/* Of the first row of its family. */
static int family_order(const struct grid *grid, const char *family)
{
	int i = 0;
	while (strcmp(grid->row[i].family, family)) i++;
	return i;
}

struct keyed_row {
	int family;
	struct grid_row row;
};

static int by_place(const void *left, const void *right)
{
	const struct keyed_row *a = left, *b = right;
	if (a->family != b->family) return a->family < b->family ? -1 : 1;
	int phase = strcmp(a->row.phase, b->row.phase);
	if (phase) return phase;
	if (a->row.m != b->row.m) return a->row.m < b->row.m ? -1 : 1;
	if (a->row.context != b->row.context) return a->row.context < b->row.context ? -1 : 1;
	return a->row.others - b->row.others;
}

static enum status sort_rows(struct grid *grid, struct error *err)
{
	struct keyed_row *list = mem_zalloc((size_t)grid->rows + 1, sizeof *list, "rows of a report", err);
	if (!list) return STATUS_NO_MEMORY;
	for (int i = 0; i < grid->rows; i++) list[i] = (struct keyed_row){family_order(grid, grid->row[i].family), grid->row[i]};
	if (grid->rows) qsort(list, (size_t)grid->rows, sizeof *list, by_place);
	for (int i = 0; i < grid->rows; i++) grid->row[i] = list[i].row;
	free(list);
	return STATUS_OK;
}

enum status grid_init(struct grid *out, const struct results *results, struct error *err)
{
	*out = (struct grid){0};
	enum status st = STATUS_OK;
	for (int i = 0; i < results->degrees; i++)
		if (results->degree[i].legal) out->degree[out->degrees++] = results->degree[i].world_size;
	for (int i = 0; i < results->problems; i++)
		for (int p = 0; p < results->problem[i].places; p++) TRY_GOTO(add_place(out, &results->problem[i], &results->problem[i].place[p], err), fail);
	TRY_GOTO(sort_rows(out, err), fail);
	return STATUS_OK;
fail:
	grid_fini(out);
	return st;
}

void grid_fini(struct grid *grid)
{
	free(grid->row);
	*grid = (struct grid){0};
}

/* Higher is better; candidates that were never compared by time come last. */
static int rank_of(const struct result_candidate *c)
{
	if (c->outcome == OUTCOME_KEEP) return 4;
	if (c->outcome == OUTCOME_BOUNDARY) return 3;
	return c->outcome != OUTCOME_REJECT ? 0 : c->timing.pairs ? 2 : 1;
}

const struct result_candidate *grid_best(const struct result_problem *problem)
{
	const struct result_candidate *best = NULL;
	for (int i = 0; i < problem->candidates; i++) {
		const struct result_candidate *c = &problem->candidate[i];
		int rank = rank_of(c), so_far = best ? rank_of(best) : 0;
		if (rank > so_far || (rank && rank == so_far && c->timing.speedup > best->timing.speedup)) best = c;
	}
	return best;
}

const char *grid_variant_text(const struct variant *v, char text[RESULTS_TEXT])
{
	if (v->mode[0]) snprintf(text, RESULTS_TEXT, "%s (%s)", v->kernel, v->mode);
	else snprintf(text, RESULTS_TEXT, "%s", v->kernel);
	return text;
}

const char *grid_why(const struct result_candidate *c, char text[2 * RESULTS_TEXT])
{
	size_t bytes = 2 * RESULTS_TEXT;
	const char *reason = reason_name(c->reason);
	if (c->timing.pairs) snprintf(text, bytes, "%.3fx (%.3f to %.3f)%s%s", c->timing.speedup, c->timing.low, c->timing.high, reason[0] ? ", " : "", reason);
	else if (c->reason == REASON_STATIC) snprintf(text, bytes, "%s: %s", c->rule, c->verdict_detail);
	else if (c->detail[0]) snprintf(text, bytes, "%s: %s", reason, c->detail);
	else snprintf(text, bytes, "%s", reason[0] ? reason_text(c->reason) : outcome_name(c->outcome));
	return text;
}

const char *grid_chain_text(const struct result_candidate *c, char text[2 * RESULTS_TEXT])
{
	const struct result_confirm *confirm = &c->confirm;
	text[0] = 0;
	if (confirm->outcome == OUTCOME_KEEP)
		snprintf(text, 2 * RESULTS_TEXT, "confirmed in the chain: %.2f us less a call, %.4fx (%.4f to %.4f)", confirm->gain_us, confirm->timing.speedup, confirm->timing.low,
		         confirm->timing.high);
	else if (confirm->outcome != OUTCOME_OPEN) snprintf(text, 2 * RESULTS_TEXT, "not confirmed: %s", confirm->detail);
	return text;
}

const char *grid_row_text(const struct grid_row *row, char text[RESULTS_TEXT])
{
	char shape[RESULTS_TEXT];
	int n = snprintf(text, RESULTS_TEXT, "%s M=%d", row->phase, row->m);
	if (row->op == PROBLEM_ATTENTION) snprintf(text + n, (size_t)(RESULTS_TEXT - n), ", %d keys", row->context);
	for (int d = 0; row->others && d < RESULTS_MAX_DEGREES && n < RESULTS_TEXT - 32; d++)
		if (row->at[d]) n += snprintf(text + n, (size_t)(RESULTS_TEXT - n), ", %.24s", result_problem_shape(row->at[d], shape));
	return text;
}
