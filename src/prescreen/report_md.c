#include <stdio.h>
#include <string.h>

#include "prescreen/compare.h"
#include "prescreen/rejects.h"
#include "prescreen/report.h"

/* What Markdown would take as its own in the cell of a table. */
static enum status put(struct buf *out, const char *text, struct error *err)
{
	for (; *text; text++) {
		if (*text == '&') {
			TRY(buf_puts(out, "&amp;", err));
		} else if (*text == '<') {
			TRY(buf_puts(out, "&lt;", err));
		} else {
			if (strchr("|\\`*_[]#", *text)) TRY(buf_puts(out, "\\", err));
			char c = (unsigned char)*text < 32 ? ' ' : *text;
			TRY(buf_append(out, &c, 1, err));
		}
	}
	return STATUS_OK;
}

static enum status put_head(const struct results *r, struct buf *out, struct error *err)
{
	TRY(buf_puts(out, "# Prescreen of ", err));
	TRY(put(out, r->model, err));
	TRY(buf_puts(out, "\n\nModel type ", err));
	TRY(put(out, r->model_type, err));
	TRY(buf_printf(out, err, ", %s, on ", dtype_name(r->dtype)));
	TRY(put(out, r->device, err));
	TRY(buf_puts(out, " ", err));
	TRY(put(out, r->flavour, err));
	TRY(buf_puts(out, " (", err));
	TRY(put(out, r->versions, err));
	TRY(buf_printf(out, err, "), %d host thread%s; tandem ", r->threads, r->threads == 1 ? "" : "s"));
	TRY(put(out, r->program, err));
	TRY(buf_printf(out, err, ". Kept from %gx on, slow below %gx, boundary between. Measured in %.0f s", r->keep, r->reject, r->seconds));
	TRY(buf_puts(out, r->complete ? ".\n" : "; not complete.\n", err));
	for (int i = 0; i < r->degrees; i++) {
		if (r->degree[i].legal) continue;
		TRY(buf_printf(out, err, "\nTP%d is not possible: ", r->degree[i].world_size));
		TRY(put(out, r->degree[i].why_not, err));
		TRY(buf_puts(out, ".\n", err));
	}
	return STATUS_OK;
}

static enum status put_cell(const struct result_problem *problem, struct buf *out, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	TRY(buf_puts(out, " | ", err));
	if (!problem) return buf_puts(out, "-", err);
	const struct result_candidate *best = grid_best(problem);
	if (!best) return put(out, problem->note[0] ? problem->note : problem->done ? "no candidate" : "not measured", err);
	TRY(buf_puts(out, best->outcome == OUTCOME_KEEP ? "**keep** " : "", err));
	if (best->outcome != OUTCOME_KEEP) TRY(buf_printf(out, err, "%s ", outcome_name(best->outcome)));
	if (best->timing.pairs) TRY(buf_printf(out, err, "%.3fx ", best->timing.speedup));
	TRY(put(out, grid_variant_text(&best->requested, text), err));
	if (best->timing.pairs) return STATUS_OK;
	TRY(buf_puts(out, ": ", err));
	return put(out, grid_why(best, text), err);
}

static enum status put_family_head(const struct grid *grid, int row, struct buf *out, struct error *err)
{
	char shape[RESULTS_TEXT];
	TRY(buf_puts(out, "\n### ", err));
	TRY(put(out, grid->row[row].family, err));
	TRY(buf_puts(out, "\n\n| rows", err));
	for (int d = 0; d < grid->degrees; d++) {
		const struct result_problem *any = NULL;
		for (int i = row; i < grid->rows && !any && !strcmp(grid->row[i].family, grid->row[row].family); i++) any = grid->row[i].at[d];
		TRY(buf_printf(out, err, " | TP%d", grid->degree[d]));
		if (any) TRY(buf_printf(out, err, " [%s]", result_problem_shape(any, shape)));
	}
	TRY(buf_puts(out, " |\n|---", err));
	for (int d = 0; d < grid->degrees; d++) TRY(buf_puts(out, "|---", err));
	return buf_puts(out, "|\n", err);
}

static enum status put_grid(const struct grid *grid, struct buf *out, struct error *err)
{
	char text[RESULTS_TEXT];
	TRY(buf_puts(out, "\n## Best candidate of each problem\n\nSpeed-up over what the dispatch takes by itself; medians of interleaved pairs.\n", err));
	for (int i = 0; i < grid->rows; i++) {
		if (!i || strcmp(grid->row[i].family, grid->row[i - 1].family)) TRY(put_family_head(grid, i, out, err));
		TRY(buf_printf(out, err, "| %s", grid_row_text(&grid->row[i], text)));
		for (int d = 0; d < grid->degrees; d++) TRY(put_cell(grid->row[i].at[d], out, err));
		TRY(buf_puts(out, " |\n", err));
	}
	return STATUS_OK;
}

static enum status put_tried(const struct result_problem *problem, const struct result_candidate *c, struct buf *out, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	if (c->confirm.outcome == OUTCOME_OPEN) return STATUS_OK;
	TRY(buf_printf(out, err, "| TP%d ", c->confirm.world_size));
	for (int i = 0; i < problem->places; i++) {
		if (problem->place[i].world_size != c->confirm.world_size) continue;
		TRY(put(out, problem->place[i].family, err));
		break;
	}
	TRY(buf_printf(out, err, " | %d | ", problem->linear.m));
	TRY(put(out, grid_variant_text(&c->requested, text), err));
	TRY(buf_printf(out, err, " | %.3fx | ", c->timing.speedup));
	TRY(put(out, grid_chain_text(c, text), err));
	return buf_puts(out, " |\n", err);
}

static enum status put_chains(const struct results *r, struct buf *out, struct error *err)
{
	if (r->chain_mode != CHAIN_ON) return STATUS_OK;
	TRY(buf_puts(out, "\n## In the chain of a layer's ops\n\nAll that is confirmed together, against the defaults.\n\n"
	                  "| degree | rows | layers | kernels | defaults | with them | speed-up |\n|---|---|---|---|---|---|---|\n", err));
	for (int i = 0; i < r->chains; i++) {
		const struct result_chain *c = &r->chain[i];
		TRY(buf_printf(out, err, "| TP%d | %d | %d | %d | ", c->world_size, c->rows, c->layers, c->entries));
		if (c->entries) TRY(buf_printf(out, err, "%.1f us | %.1f us | %.4fx (%.4f to %.4f) |\n", c->timing.baseline_us, c->timing.us, c->timing.speedup, c->timing.low, c->timing.high));
		else TRY(buf_puts(out, "- | - | - |\n", err));
	}
	TRY(buf_puts(out, "\n| where | rows | candidate | alone | in the chain |\n|---|---|---|---|---|\n", err));
	for (int i = 0; i < r->problems; i++)
		for (int c = 0; c < r->problem[i].candidates; c++) TRY(put_tried(&r->problem[i], &r->problem[i].candidate[c], out, err));
	return STATUS_OK;
}

static enum status put_flips(const struct degree_flips *flips, const struct grid *grid, struct buf *out, struct error *err)
{
	char text[2 * RESULTS_TEXT];
	TRY(buf_printf(out, err, "\n## What flips between degrees\n\n%d of %d candidates that were decided at two degrees or more.\n", flips->count, flips->compared));
	if (flips->count) TRY(buf_puts(out, "\n| family | rows | candidate | verdicts |\n|---|---|---|---|\n", err));
	for (int i = 0; i < flips->count; i++) {
		const struct degree_flip *f = &flips->item[i];
		TRY(buf_puts(out, "| ", err));
		TRY(put(out, f->row->family, err));
		TRY(buf_printf(out, err, " | %s | ", grid_row_text(f->row, text)));
		TRY(put(out, grid_variant_text(f->variant, text), err));
		TRY(buf_puts(out, " |", err));
		const char *comma = "";
		for (int d = 0; d < grid->degrees; d++) {
			if (!f->at[d]) continue;
			TRY(buf_printf(out, err, "%s TP%d %s ", comma, grid->degree[d], outcome_name(f->at[d]->outcome)));
			TRY(put(out, grid_why(f->at[d], text), err));
			comma = ";";
		}
		TRY(buf_puts(out, " |\n", err));
	}
	return STATUS_OK;
}

static enum status put_rejects(const struct rejects *rejects, struct buf *out, struct error *err)
{
	char text[RESULTS_TEXT];
	TRY(buf_puts(out, "\n## Rejections\n\n| reason | candidates | what it means |\n|---|---|---|\n", err));
	for (int i = 0; i < REASON_COUNT; i++)
		if (rejects->of_reason[i]) TRY(buf_printf(out, err, "| %s | %d | %s |\n", reason_name((enum reason)i), rejects->of_reason[i], reason_text((enum reason)i)));
	TRY(buf_puts(out, "\n| reason | candidate | where | M | why |\n|---|---|---|---|---|\n", err));
	for (int i = 0; i < rejects->count; i++) {
		const struct reject_group *g = &rejects->item[i];
		TRY(buf_printf(out, err, "| %s | ", reason_name(g->reason)));
		TRY(put(out, grid_variant_text(g->variant, text), err));
		TRY(buf_printf(out, err, " | TP%d ", g->place->world_size));
		TRY(put(out, g->place->family, err));
		TRY(buf_printf(out, err, " [%s] | %s | ", result_problem_shape(g->problem, text), g->rows));
		TRY(put(out, g->why, err));
		TRY(buf_puts(out, " |\n", err));
	}
	return STATUS_OK;
}

enum status report_markdown(const struct results *results, struct buf *out, struct error *err)
{
	struct grid grid = {0};
	struct degree_flips flips = {0};
	struct rejects rejects = {0};
	enum status st;
	TRY_GOTO(grid_init(&grid, results, err), end);
	TRY_GOTO(compare_degrees(&flips, &grid, err), end);
	TRY_GOTO(rejects_init(&rejects, results, err), end);
	TRY_GOTO(put_head(results, out, err), end);
	TRY_GOTO(put_grid(&grid, out, err), end);
	TRY_GOTO(put_chains(results, out, err), end);
	TRY_GOTO(put_flips(&flips, &grid, out, err), end);
	TRY_GOTO(put_rejects(&rejects, out, err), end);
end:
	rejects_fini(&rejects);
	degree_flips_fini(&flips);
	grid_fini(&grid);
	return st;
}
