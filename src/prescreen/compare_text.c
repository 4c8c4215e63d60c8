/* compare_text.c: flips as text and as JSON. */
#include <math.h>
#include <stdio.h>

#include "prescreen/compare.h"

enum status compare_degrees_text(const struct degree_flips *flips, const struct grid *grid, struct buf *out, struct error *err)
{
	char row[RESULTS_TEXT], variant[RESULTS_TEXT], shape[RESULTS_TEXT], why[2 * RESULTS_TEXT];
	for (int i = 0; i < flips->count; i++) {
		const struct degree_flip *f = &flips->item[i];
		TRY(buf_printf(out, err, "%s, %s, %s\n", f->row->family, grid_row_text(f->row, row), grid_variant_text(f->variant, variant)));
		for (int d = 0; d < grid->degrees; d++) {
			if (!f->at[d]) continue;
			char tp[16];
			snprintf(tp, sizeof tp, "TP%d", grid->degree[d]);
			TRY(buf_printf(out, err, "  %-5s %-22s %-9s %s\n", tp, result_problem_shape(f->row->at[d], shape), outcome_name(f->at[d]->outcome), grid_why(f->at[d], why)));
		}
	}
	return buf_printf(out, err, "%d of %d candidates that were decided at two degrees or more flip between them\n", flips->count, flips->compared);
}

enum status compare_runs_text(const struct run_flips *flips, struct buf *out, struct error *err)
{
	char problem[RESULTS_TEXT], variant[RESULTS_TEXT], why[2 * RESULTS_TEXT];
	for (int i = 0; i < flips->count; i++) {
		const struct run_flip *f = &flips->item[i];
		TRY(buf_printf(out, err, "%s, %s\n", result_problem_text(f->problem, problem), grid_variant_text(&f->a->requested, variant)));
		TRY(buf_printf(out, err, "  first  %-9s %s\n", outcome_name(f->a->outcome), grid_why(f->a, why)));
		TRY(buf_printf(out, err, "  second %-9s %s\n", outcome_name(f->b->outcome), grid_why(f->b, why)));
	}
	TRY(buf_printf(out, err, "%d of %d verdicts are equal: %.1f %%; the best candidate is the same for %d of %d problems\n", flips->equal, flips->compared,
	               100 * run_stability(flips), flips->same_best, flips->problems));
	if (flips->chained)
		TRY(buf_printf(out, err, "of %d problems that chains were asked about in both, %d have a confirmed candidate in both runs or in neither: %.1f %%\n", flips->chained, flips->same_confirmed,
		               100.0 * flips->same_confirmed / flips->chained));
	TRY(buf_printf(out, err, "speed-ups differ by %.1f %% at most", 100 * flips->spread));
	if (flips->only_a || flips->only_b) TRY(buf_printf(out, err, "; decided in the first run alone: %d, in the second alone: %d", flips->only_a, flips->only_b));
	return buf_puts(out, "\n", err);
}

static json_t *candidate_json(const struct result_candidate *c)
{
	char why[2 * RESULTS_TEXT];
	return json_pack("{s:s,s:s,s:o,s:s}", "outcome", outcome_name(c->outcome), "reason", reason_name(c->reason), "speedup",
	                 c->timing.pairs && isfinite(c->timing.speedup) ? json_real(c->timing.speedup) : json_null(), "why", grid_why(c, why));
}

json_t *compare_degrees_json(const struct degree_flips *flips, const struct grid *grid)
{
	char shape[RESULTS_TEXT];
	json_t *list = json_array();
	for (int i = 0; list && i < flips->count; i++) {
		const struct degree_flip *f = &flips->item[i];
		json_t *degrees = json_array();
		for (int d = 0; d < grid->degrees; d++) {
			json_t *at = f->at[d] ? candidate_json(f->at[d]) : NULL;
			if (!at) continue;
			json_object_set_new(at, "tp", json_integer(grid->degree[d]));
			json_object_set_new(at, "shape", json_string(result_problem_shape(f->row->at[d], shape)));
			json_array_append_new(degrees, at);
		}
		json_array_append_new(list, json_pack("{s:s,s:s,s:i,s:i,s:s,s:s,s:o}", "family", f->row->family, "phase", f->row->phase, "m", f->row->m, "context",
		                                      f->row->context, "kernel", f->variant->kernel, "mode", f->variant->mode, "degrees", degrees));
	}
	return json_pack("{s:s,s:i,s:i,s:o}", "between", "degrees", "compared", flips->compared, "flipped", flips->count, "flips", list);
}

json_t *compare_runs_json(const struct run_flips *flips)
{
	char problem[RESULTS_TEXT];
	json_t *list = json_array();
	for (int i = 0; list && i < flips->count; i++) {
		const struct run_flip *f = &flips->item[i];
		json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:o,s:o}", "problem", result_problem_text(f->problem, problem), "kernel", f->a->requested.kernel, "mode",
		                                      f->a->requested.mode, "first", candidate_json(f->a), "second", candidate_json(f->b)));
	}
	return json_pack("{s:s,s:i,s:i,s:f,s:i,s:i,s:i,s:i,s:f,s:i,s:i,s:o}", "between", "runs", "compared", flips->compared, "equal", flips->equal, "stability",
	                 run_stability(flips), "problems", flips->problems, "same_best", flips->same_best, "chained", flips->chained, "same_confirmed",
	                 flips->same_confirmed, "largest_spread", flips->spread, "only_first", flips->only_a, "only_second", flips->only_b, "flips", list);
}
