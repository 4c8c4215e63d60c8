/* `tandem prescreen diff A [B]`: what flips between the TP degrees of one run, or between two runs, and how stable verdicts are. */
#include <string.h>

#include "apps/console.h"
#include "apps/settings.h"
#include "prescreen/compare.h"

static enum status print(const struct settings *settings, const struct buf *text, json_t *object, struct error *err)
{
	if (!settings->json) return output_write(text->data, text->size, err);
	if (object) json_object_set_new(object, "first", json_path(settings->model));
	if (object && settings->second) json_object_set_new(object, "second", json_path(settings->second));
	return output_json(object, err);
}

static enum status diff_degrees(const struct settings *settings, const struct results *a, struct error *err)
{
	struct grid grid = {0};
	struct degree_flips flips = {0};
	struct buf text = {0};
	enum status st;
	TRY_GOTO(grid_init(&grid, a, err), end);
	TRY_GOTO(compare_degrees(&flips, &grid, err), end);
	if (!settings->json) TRY_GOTO(compare_degrees_text(&flips, &grid, &text, err), end);
	st = print(settings, &text, settings->json ? compare_degrees_json(&flips, &grid) : NULL, err);
end:
	buf_fini(&text);
	degree_flips_fini(&flips);
	grid_fini(&grid);
	return st;
}

static enum status diff_runs(const struct settings *settings, const struct results *a, const struct results *b, struct error *err)
{
	struct run_flips flips = {0};
	struct buf text = {0};
	enum status st;
	TRY_GOTO(compare_runs(&flips, a, b, err), end);
	if (!settings->json) TRY_GOTO(compare_runs_text(&flips, &text, err), end);
	st = print(settings, &text, settings->json ? compare_runs_json(&flips) : NULL, err);
end:
	buf_fini(&text);
	run_flips_fini(&flips);
	return st;
}

enum status cmd_prescreen_diff(const struct settings *settings, struct error *err)
{
	struct results a = {0}, b = {0};
	enum status st;
	TRY_GOTO(results_load(&a, settings->model, err), end);
	if (settings->second) TRY_GOTO(results_load(&b, settings->second, err), end);
	st = settings->second ? diff_runs(settings, &a, &b, err) : diff_degrees(settings, &a, err);
end:
	results_fini(&a);
	results_fini(&b);
	return st;
}
