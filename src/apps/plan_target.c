#include "apps/plan_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define CELL_BYTES 48

json_t *plan_target_json(const struct target *target, const struct shapes *shapes, int plan_index)
{
	json_t *list = json_array();
	int f = 0;
	while (shapes && f < shapes->families && shapes->family[f].plan_index != plan_index) f++;
	if (!shapes || f == shapes->families) return list;
	struct linear_shape shape = shapes_linear(shapes, f, 0);
	for (int id = 0; id < KERNEL_COUNT; id++) {
		const struct kernel_family *kernel = kernel_family((enum kernel_id)id);
		for (int m = 0; m < kernel->modes; m++) {
			struct verdict v;
			char mode[32];
			kernel_judge(&v, target, (enum kernel_id)id, &kernel->mode[m], &shape);
			json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s,s:s}", "kernel", kernel_name((enum kernel_id)id), "mode",
			                                      kernel_mode_name(&kernel->mode[m], mode), "verdict", verdict_name(v.kind), "rule", v.rule,
			                                      "detail", v.detail));
		}
	}
	return list;
}

/* What is not legal, once, with the places where it is so. */
struct reason {
	char text[256];
	struct buf places;
	int count; /* of places */
};

struct reasons {
	struct reason *item;
	size_t count;
};

static enum status add_reason(struct reasons *list, const char *text, const char *place, struct error *err)
{
	size_t i = 0;
	while (i < list->count && strcmp(list->item[i].text, text) != 0) i++;
	if (i == list->count) {
		TRY(mem_grow((void **)&list->item, list->count + 1, sizeof *list->item, "reasons", err));
		list->item[list->count] = (struct reason){0};
		snprintf(list->item[list->count++].text, sizeof list->item->text, "%s", text);
	}
	list->item[i].count++;
	return buf_printf(&list->item[i].places, err, "%s%s", list->item[i].places.size ? "; " : "", place);
}

static void reasons_fini(struct reasons *list)
{
	for (size_t i = 0; i < list->count; i++) buf_fini(&list->item[i].places);
	free(list->item);
}

static bool same_reason(const struct verdict *a, const struct verdict *b)
{
	return a->kind == b->kind && a->rule == b->rule && strcmp(a->detail, b->detail) == 0;
}

/* One line a mode, or one for the kernel where all its modes have the same. */
static enum status add_reasons(struct reasons *list, const struct shapes *shapes, int f, const struct kernel_family *kernel,
                               const struct verdict v[KERNEL_MAX_MODES], struct error *err)
{
	bool all_same = true;
	for (int m = 1; m < kernel->modes; m++) all_same = all_same && same_reason(&v[0], &v[m]);
	for (int m = 0; m < (all_same ? 1 : kernel->modes); m++) {
		char text[256], place[64], mode[32] = "";
		if (v[m].kind == VERDICT_LEGAL) continue;
		if (!all_same) kernel_mode_name(&kernel->mode[m], mode);
		snprintf(text, sizeof text, "%s%s%s: %s: %s: %s", kernel_name(kernel->id), mode[0] ? " " : "", mode, verdict_name(v[m].kind), v[m].rule, v[m].detail);
		snprintf(place, sizeof place, "TP%d %s", shapes->world_size, shapes->family[f].family);
		TRY(add_reason(list, text, place, err));
	}
	return STATUS_OK;
}

/* The cell of one family and kernel at one degree, and its reasons. */
static enum status judge_cell(char cell[CELL_BYTES], struct reasons *list, const struct target *target, const struct shapes *shapes, int f,
                              const struct kernel_family *kernel, struct error *err)
{
	struct linear_shape shape = shapes_linear(shapes, f, 0);
	struct verdict v[KERNEL_MAX_MODES];
	int kinds[3] = {0};
	for (int m = 0; m < kernel->modes; m++) {
		kernel_judge(&v[m], target, kernel->id, &kernel->mode[m], &shape);
		kinds[v[m].kind]++;
	}
	if (kinds[VERDICT_LEGAL] && kinds[VERDICT_LEGAL] < kernel->modes) snprintf(cell, CELL_BYTES, "legal: %d of %d", kinds[VERDICT_LEGAL], kernel->modes);
	else snprintf(cell, CELL_BYTES, "%s", verdict_name(kinds[VERDICT_LEGAL] ? VERDICT_LEGAL : kinds[VERDICT_ILLEGAL] ? VERDICT_ILLEGAL : VERDICT_UNKNOWN));
	return add_reasons(list, shapes, f, kernel, v, err);
}

/* For the guarded form a cell is the branch that the guards reach: there is nothing to choose. */
static void branch_cell(char cell[CELL_BYTES], const struct target *target, const struct shapes *shapes, int f)
{
	char why[VERDICT_DETAIL_BYTES];
	struct linear_shape shape = shapes_linear(shapes, f, 0);
	enum kernel_id branch = kernel_dispatch(target, &shape, why);
	snprintf(cell, CELL_BYTES, "%s", branch == KERNEL_COUNT ? "unknown" : kernel_name(branch));
}

static enum status put_row(struct reasons *list, const struct target *target, const struct shapes *shapes, int count, int f,
                           const struct kernel_family *kernel, struct buf *out, struct error *err)
{
	bool guarded = kernel->id == KERNEL_LLMM1_DISPATCHED;
	TRY(buf_printf(out, err, "%-20s", guarded ? "vLLM's guards reach" : kernel_name(kernel->id)));
	for (int d = 0; d < count; d++) {
		char cell[CELL_BYTES] = "-";
		if (shapes[d].legal && guarded) branch_cell(cell, target, &shapes[d], f);
		else if (shapes[d].legal) TRY(judge_cell(cell, list, target, &shapes[d], f, kernel, err));
		TRY(buf_printf(out, err, "%17s", cell));
	}
	return buf_puts(out, "\n", err);
}

/* Kernels that the target has; `linear` is left out: it is legal everywhere. */
static enum status put_rows(struct reasons *list, const struct target *target, const struct shapes *shapes, int count, struct buf *out, struct error *err)
{
	const struct shapes *any = NULL;
	for (int d = 0; d < count && !any; d++)
		if (shapes[d].legal) any = &shapes[d];
	for (int f = 0; any && f < any->families; f++) {
		bool first = true;
		for (int id = 0; id < KERNEL_LINEAR; id++) {
			if (!(target->kernels & 1u << id)) continue;
			TRY(buf_printf(out, err, "%-20s", first ? any->family[f].family : ""));
			TRY(put_row(list, target, shapes, count, f, kernel_family((enum kernel_id)id), out, err));
			first = false;
		}
	}
	return STATUS_OK;
}

static enum status put_absent(const struct target *target, struct buf *out, struct error *err)
{
	bool first = true;
	for (int id = 0; id < KERNEL_LINEAR; id++) {
		if (target->kernels & 1u << id || id == KERNEL_LLMM1_DISPATCHED) continue;
		TRY(buf_printf(out, err, "%s%s", first ? "not in its build: " : ", ", kernel_name((enum kernel_id)id)));
		first = false;
	}
	return first ? STATUS_OK : buf_puts(out, "\n", err);
}

enum status plan_target_table(const struct target *target, const struct shapes *shapes, int count, struct buf *out, struct error *err)
{
	struct reasons list = {0};
	char head[64];
	int cells = 0;
	enum status st;
	for (int d = 0; d < count; d++) cells += shapes[d].families;
	snprintf(head, sizeof head, "on %s, M = 1", target->name);
	TRY_GOTO(buf_printf(out, err, "\n%-40s", head), end);
	for (int d = 0; d < count; d++) {
		snprintf(head, sizeof head, "TP%d", shapes[d].world_size);
		TRY_GOTO(buf_printf(out, err, "%17s", head), end);
	}
	TRY_GOTO(buf_puts(out, "\n", err), end);
	TRY_GOTO(put_rows(&list, target, shapes, count, out, err), end);
	TRY_GOTO(put_absent(target, out, err), end);
	for (size_t i = 0; i < list.count; i++) {
		const struct reason *r = &list.item[i];
		TRY_GOTO(buf_printf(out, err, "%s (%s)\n", r->text, r->count == cells ? "everywhere" : r->places.data), end);
	}
end:
	reasons_fini(&list);
	return st;
}
