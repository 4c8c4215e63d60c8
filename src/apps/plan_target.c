#include "apps/plan_target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "prescreen/attention_rules.h"
#include "prescreen/problems.h"

#define CELL_BYTES 48

/* Family f for m rows. */
static struct linear_shape shape_of(const struct shapes *shapes, int f, int m)
{
	struct linear_shape shape = shapes_linear(shapes, f, 0);
	shape.m = m;
	return shape;
}

static void judge_all(json_t *list, const struct target *target, const struct linear_shape *shape)
{
	for (int id = 0; id < KERNEL_COUNT; id++) {
		const struct kernel_family *kernel = kernel_family((enum kernel_id)id);
		for (int m = 0; m < kernel->modes; m++) {
			struct verdict v;
			char mode[32];
			kernel_judge(&v, target, (enum kernel_id)id, &kernel->mode[m], shape);
			json_array_append_new(list, json_pack("{s:s,s:s,s:i,s:s,s:s,s:s}", "kernel", kernel_name((enum kernel_id)id), "mode",
			                                      kernel_mode_name(&kernel->mode[m], mode), "m", shape->m, "verdict", verdict_name(v.kind), "rule", v.rule,
			                                      "detail", v.detail));
		}
	}
}

/* The heads of one rank, for sequences of one row or of several. */
static struct attention_shape heads_of(const struct shapes *shapes, int m)
{
	const struct shape_attention *a = &shapes->attention;
	return (struct attention_shape){.q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .block_tokens = ATTENTION_BLOCK_TOKENS,
	                                .prefill = m > DECODE_MAX_ROWS, .dtype = shapes->dtype, .softcap = (double)a->softcap};
}

/* A kernel of the other kind of sequences has no place in a table. */
static bool is_of_phase(const struct verdict *v)
{
	return strcmp(v->rule, "phase") != 0;
}

json_t *plan_target_attention_json(const struct target *target, const struct shapes *shapes, const struct int_list *rows)
{
	json_t *list = json_array();
	for (int i = 0; shapes && shapes->legal && shapes->attention.layers && i < rows->count; i++)
		for (int id = 0; id < ATTENTION_COUNT; id++) {
			const struct attention_shape shape = heads_of(shapes, rows->items[i]);
			struct verdict v;
			attention_judge(&v, target, (enum attention_id)id, &shape);
			if (!is_of_phase(&v)) continue;
			json_array_append_new(list, json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:f,s:s,s:s,s:s}", "kernel", attention_name((enum attention_id)id), "m", rows->items[i], "query", shape.q_heads,
			                                      "kv", shape.kv_heads, "head_dim", shape.head_dim, "block_tokens", shape.block_tokens, "softcap", shape.softcap, "verdict",
			                                      verdict_name(v.kind), "rule", v.rule, "detail", v.detail));
		}
	return list;
}

json_t *plan_target_json(const struct target *target, const struct shapes *shapes, int plan_index, const struct int_list *rows)
{
	json_t *list = json_array();
	int f = 0;
	while (shapes && f < shapes->families && shapes->family[f].plan_index != plan_index) f++;
	for (int i = 0; shapes && f < shapes->families && i < rows->count; i++) {
		struct linear_shape shape = shape_of(shapes, f, rows->items[i]);
		judge_all(list, target, &shape);
	}
	return list;
}

/* What is not legal, once, with the places where it is so. */
struct objection {
	char text[256];
	struct buf places;
	int count; /* of places */
};

struct objections {
	struct objection *item;
	size_t count;
};

static enum status add_reason(struct objections *list, const char *text, const char *place, struct error *err)
{
	size_t i = 0;
	while (i < list->count && strcmp(list->item[i].text, text) != 0) i++;
	if (i == list->count) {
		TRY(mem_grow((void **)&list->item, list->count + 1, sizeof *list->item, "reasons", err));
		list->item[list->count] = (struct objection){0};
		snprintf(list->item[list->count++].text, sizeof list->item->text, "%s", text);
	}
	list->item[i].count++;
	return buf_printf(&list->item[i].places, err, "%s%s", list->item[i].places.size ? "; " : "", place);
}

static void reasons_fini(struct objections *list)
{
	for (size_t i = 0; i < list->count; i++) buf_fini(&list->item[i].places);
	free(list->item);
}

static bool same_reason(const struct verdict *a, const struct verdict *b)
{
	return a->kind == b->kind && a->rule == b->rule && strcmp(a->detail, b->detail) == 0;
}

/* One line a mode, or one for the kernel where all its modes have the same. */
static enum status add_reasons(struct objections *list, const struct shapes *shapes, int f, const struct kernel_family *kernel,
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

/* One table: all families and kernels at all degrees, for m rows. */
struct table {
	const struct target *target;
	const struct shapes *shapes; /* [count] */
	int count, m;
	struct objections *reasons;
};

/* The cell of one family and kernel at one degree, and its reasons. */
static enum status judge_cell(char cell[CELL_BYTES], const struct table *t, const struct shapes *shapes, int f, const struct kernel_family *kernel,
                              struct error *err)
{
	struct linear_shape shape = shape_of(shapes, f, t->m);
	struct verdict v[KERNEL_MAX_MODES];
	int kinds[3] = {0};
	for (int m = 0; m < kernel->modes; m++) {
		kernel_judge(&v[m], t->target, kernel->id, &kernel->mode[m], &shape);
		kinds[v[m].kind]++;
	}
	if (kinds[VERDICT_LEGAL] && kinds[VERDICT_LEGAL] < kernel->modes) snprintf(cell, CELL_BYTES, "legal: %d of %d", kinds[VERDICT_LEGAL], kernel->modes);
	else snprintf(cell, CELL_BYTES, "%s", verdict_name(kinds[VERDICT_LEGAL] ? VERDICT_LEGAL : kinds[VERDICT_ILLEGAL] ? VERDICT_ILLEGAL : VERDICT_UNKNOWN));
	return add_reasons(t->reasons, shapes, f, kernel, v, err);
}

/* For the guarded form a cell is the branch that the guards reach: there is nothing to choose. */
static void branch_cell(char cell[CELL_BYTES], const struct table *t, const struct shapes *shapes, int f)
{
	char why[VERDICT_DETAIL_BYTES];
	struct linear_shape shape = shape_of(shapes, f, t->m);
	enum kernel_id branch = kernel_dispatch(t->target, &shape, why);
	snprintf(cell, CELL_BYTES, "%s", branch == KERNEL_COUNT ? "unknown" : kernel_name(branch));
}

static enum status put_row(const struct table *t, int f, const struct kernel_family *kernel, struct buf *out, struct error *err)
{
	const struct shapes *shapes = t->shapes;
	bool guarded = kernel->id == KERNEL_LLMM1_DISPATCHED;
	TRY(buf_printf(out, err, "%-20s", guarded ? "vLLM's guards reach" : kernel_name(kernel->id)));
	for (int d = 0; d < t->count; d++) {
		char cell[CELL_BYTES] = "-";
		if (shapes[d].legal && guarded) branch_cell(cell, t, &shapes[d], f);
		else if (shapes[d].legal) TRY(judge_cell(cell, t, &shapes[d], f, kernel, err));
		TRY(buf_printf(out, err, "%17s", cell));
	}
	return buf_puts(out, "\n", err);
}

/* The verdict on an attention kernel at a degree; false: the rank has no attention, or the kernel is of the other kind of sequences or of another build. */
static bool judge_attention(const struct table *t, int degree, enum attention_id id, struct verdict *out)
{
	const struct shapes *shapes = &t->shapes[degree];
	if (!shapes->legal || !shapes->attention.layers) return false;
	const struct attention_shape shape = heads_of(shapes, t->m);
	attention_judge(out, t->target, id, &shape);
	return is_of_phase(out) && strcmp(out->rule, "build") != 0;
}

static enum status put_attention_row(const struct table *t, enum attention_id id, bool first, struct buf *out, struct error *err)
{
	TRY(buf_printf(out, err, "%-20s%-20s", first ? "attention" : "", attention_name(id)));
	for (int d = 0; d < t->count; d++) {
		char text[256], place[64];
		struct verdict v;
		const bool there = judge_attention(t, d, id, &v);
		TRY(buf_printf(out, err, "%17s", there ? verdict_name(v.kind) : "-"));
		if (!there || v.kind == VERDICT_LEGAL) continue;
		snprintf(text, sizeof text, "%s: %s: %s: %s", attention_name(id), verdict_name(v.kind), v.rule, v.detail);
		snprintf(place, sizeof place, "TP%d attention", t->shapes[d].world_size);
		TRY(add_reason(t->reasons, text, place, err));
	}
	return buf_puts(out, "\n", err);
}

/* Attention kernels for the table's kind of sequences. */
static enum status put_attention(const struct table *t, struct buf *out, struct error *err)
{
	bool first = true;
	for (int id = 0; id < ATTENTION_COUNT; id++) {
		bool any = false;
		struct verdict v;
		for (int d = 0; d < t->count; d++) any |= judge_attention(t, d, (enum attention_id)id, &v);
		if (!any) continue;
		TRY(put_attention_row(t, (enum attention_id)id, first, out, err));
		first = false;
	}
	return STATUS_OK;
}

/* Kernels that the target has; `linear` is left out: it is legal everywhere. */
static enum status put_rows(const struct table *t, struct buf *out, struct error *err)
{
	const struct shapes *any = NULL;
	for (int d = 0; d < t->count && !any; d++)
		if (t->shapes[d].legal) any = &t->shapes[d];
	for (int f = 0; any && f < any->families; f++) {
		bool first = true;
		for (int id = 0; id < KERNEL_LINEAR; id++) {
			if (!(t->target->kernels & 1u << id)) continue;
			TRY(buf_printf(out, err, "%-20s", first ? any->family[f].family : ""));
			TRY(put_row(t, f, kernel_family((enum kernel_id)id), out, err));
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

static enum status put_table(const struct table *t, struct buf *out, struct error *err)
{
	char head[64];
	int cells = 0;
	for (int d = 0; d < t->count; d++) cells += t->shapes[d].families;
	snprintf(head, sizeof head, "on %s, M = %d", t->target->name, t->m);
	TRY(buf_printf(out, err, "\n%-40s", head));
	for (int d = 0; d < t->count; d++) {
		snprintf(head, sizeof head, "TP%d", t->shapes[d].world_size);
		TRY(buf_printf(out, err, "%17s", head));
	}
	TRY(buf_puts(out, "\n", err));
	TRY(put_rows(t, out, err));
	TRY(put_attention(t, out, err));
	TRY(put_absent(t->target, out, err));
	for (size_t i = 0; i < t->reasons->count; i++) {
		const struct objection *r = &t->reasons->item[i];
		TRY(buf_printf(out, err, "%s (%s)\n", r->text, r->count == cells ? "everywhere" : r->places.data));
	}
	return STATUS_OK;
}

enum status plan_target_table(const struct target *target, const struct shapes *shapes, int count, const struct int_list *rows, struct buf *out, struct error *err)
{
	enum status st = STATUS_OK;
	for (int i = 0; i < rows->count && st == STATUS_OK; i++) {
		struct objections reasons = {0};
		struct table table = {.target = target, .shapes = shapes, .count = count, .m = rows->items[i], .reasons = &reasons};
		st = put_table(&table, out, err);
		reasons_fini(&reasons);
	}
	return st;
}
