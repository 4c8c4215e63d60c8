/* results_json.c: prescreen.json. What a struct looks like in the file stands once, in a table that both directions walk; every field of a table
 * must be there, and no other key may be.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/out_file.h"
#include "model/fields.h"
#include "prescreen/results.h"

#define MAX_LIST 1000000 /* entries of a list: a sanity limit, far beyond any model */

enum field_type {
	FIELD_TEXT,   /* char[size] */
	FIELD_INT,    /* int, lo..hi */
	FIELD_INT64,
	FIELD_REAL,   /* double; null stands for what is not finite */
	FIELD_BOOL,
	FIELD_NAME,   /* an enum, by its name */
	FIELD_SIZES,  /* unsigned[3] */
	FIELD_OBJECT, /* a struct within */
};

struct field {
	const char *name;
	enum field_type type;
	size_t offset, size;
	int64_t lo, hi;                 /* INT, INT64 */
	const char *(*name_of)(int value); /* NAME: of 0..hi */
	const struct field *table;      /* OBJECT, ended by a NULL name */
	bool may_miss;                  /* REAL, not negative, and BOOL: left out where it is 0 or false */
};

#define TEXT(s, key, field) {.name = key, .type = FIELD_TEXT, .offset = offsetof(struct s, field), .size = sizeof(((struct s *)0)->field)}
#define INTEGER(s, key, field, low, high) {.name = key, .type = FIELD_INT, .offset = offsetof(struct s, field), .lo = (low), .hi = (high)}
#define INTEGER64(s, key, field) {.name = key, .type = FIELD_INT64, .offset = offsetof(struct s, field), .lo = 0, .hi = INT64_C(1) << 60}
#define REAL(s, key, field) {.name = key, .type = FIELD_REAL, .offset = offsetof(struct s, field)}
#define FLAG(s, key, field) {.name = key, .type = FIELD_BOOL, .offset = offsetof(struct s, field)}
#define NAME(s, key, field, function, count) {.name = key, .type = FIELD_NAME, .offset = offsetof(struct s, field), .hi = (count) - 1, .name_of = function}
#define OBJECT(s, key, field, of) {.name = key, .type = FIELD_OBJECT, .offset = offsetof(struct s, field), .table = of}

static const char *name_of_dtype(int value) { return dtype_name((enum dtype)value); }
static const char *name_of_use(int value) { return linear_use_name((enum linear_use)value); }
static const char *name_of_op(int value) { return problem_op_name((enum problem_op)value); }
static const char *name_of_outcome(int value) { return outcome_name((enum outcome)value); }
static const char *name_of_reason(int value) { return reason_name((enum reason)value); }

#define MANY 2147483647
static const struct field variant_fields[] = {TEXT(variant, "kernel", kernel), TEXT(variant, "mode", mode), FLAG(variant, "invariant", invariant), {0}};
static const struct field error_fields[] = {REAL(result_error, "l2", l2), REAL(result_error, "max", max), {0}};
static const struct field check_fields[] = {
	OBJECT(result_check, "error", error, error_fields), OBJECT(result_check, "bound", bound, error_fields), INTEGER64(result_check, "values", values),
	INTEGER64(result_check, "unwritten", unwritten), INTEGER64(result_check, "outside", outside), INTEGER64(result_check, "referenced", referenced),
	INTEGER(result_check, "repeats", repeats, 0, MANY), FLAG(result_check, "repeatable", repeatable), FLAG(result_check, "same_bits", same_bits),
	TEXT(result_check, "hash", hash), {0}};
static const struct field timing_fields[] = {
	INTEGER(result_timing, "pairs", pairs, 0, MANY), REAL(result_timing, "baseline_us", baseline_us), REAL(result_timing, "us", us),
	REAL(result_timing, "speedup", speedup), REAL(result_timing, "low", low), REAL(result_timing, "high", high), FLAG(result_timing, "steady", steady), {0}};
static const struct field launch_fields[] = {
	TEXT(kernel_launch, "name", name), {.name = "grid", .type = FIELD_SIZES, .offset = offsetof(struct kernel_launch, grid)},
	{.name = "block", .type = FIELD_SIZES, .offset = offsetof(struct kernel_launch, block)}, INTEGER(kernel_launch, "shared_bytes", shared_bytes, 0, MANY), {0}};
static const struct field candidate_fields[] = {
	OBJECT(result_candidate, "requested", requested, variant_fields), OBJECT(result_candidate, "resolved", resolved, variant_fields),
	FLAG(result_candidate, "changed", changed), TEXT(result_candidate, "verdict", verdict), TEXT(result_candidate, "rule", rule),
	TEXT(result_candidate, "verdict_detail", verdict_detail), NAME(result_candidate, "outcome", outcome, name_of_outcome, OUTCOME_COUNT),
	NAME(result_candidate, "reason", reason, name_of_reason, REASON_COUNT), TEXT(result_candidate, "detail", detail),
	OBJECT(result_candidate, "check", check, check_fields), OBJECT(result_candidate, "timing", timing, timing_fields), {0}};
static const struct field confirm_fields[] = {
	NAME(result_confirm, "outcome", outcome, name_of_outcome, OUTCOME_COUNT), INTEGER(result_confirm, "tp", world_size, 1, 65536),
	OBJECT(result_confirm, "timing", timing, timing_fields), REAL(result_confirm, "gain_us", gain_us), TEXT(result_confirm, "detail", detail), {0}};
static const struct field chain_fields[] = {
	INTEGER(result_chain, "tp", world_size, 1, 65536), INTEGER(result_chain, "rows", rows, 1, MANY), INTEGER(result_chain, "layers", layers, 0, MANY),
	INTEGER(result_chain, "context", context, 0, MANY), INTEGER(result_chain, "entries", entries, 0, MANY),
	OBJECT(result_chain, "timing", timing, timing_fields), {0}};
static const struct field linear_fields[] = {
	NAME(linear_key, "use", use, name_of_use, LINEAR_USE_COUNT), NAME(linear_key, "dtype", dtype, name_of_dtype, DTYPE_COUNT),
	INTEGER(linear_key, "n", n, 1, MANY), INTEGER(linear_key, "k", k, 1, MANY), INTEGER(linear_key, "m", m, 1, MANY), {0}};
static const struct field attention_fields[] = {
	NAME(attention_problem, "dtype", dtype, name_of_dtype, DTYPE_COUNT), INTEGER(attention_problem, "q_heads", q_heads, 1, MANY),
	INTEGER(attention_problem, "kv_heads", kv_heads, 1, MANY), INTEGER(attention_problem, "head_dim", head_dim, 1, MANY),
	INTEGER(attention_problem, "rows", rows, 1, MANY), INTEGER(attention_problem, "context", context, 1, MANY),
	INTEGER(attention_problem, "block_tokens", block_tokens, 1, MANY), FLAG(attention_problem, "prefill", prefill),
	{.name = "softcap", .type = FIELD_REAL, .offset = offsetof(struct attention_problem, softcap), .may_miss = true}, {0}};
static const struct field moe_fields[] = {
	NAME(moe_key, "use", use, name_of_use, LINEAR_USE_COUNT), NAME(moe_key, "dtype", dtype, name_of_dtype, DTYPE_COUNT), INTEGER(moe_key, "hidden", hidden, 1, MANY),
	INTEGER(moe_key, "experts", experts, 1, MANY), INTEGER(moe_key, "top_k", top_k, 1, MANY), INTEGER(moe_key, "inner", inner, 1, MANY),
	INTEGER(moe_key, "shared_inner", shared_inner, 0, MANY), INTEGER(moe_key, "m", m, 1, MANY), {0}};
static const struct field gdn_fields[] = {
	NAME(gdn_problem, "dtype", dtype, name_of_dtype, DTYPE_COUNT), INTEGER(gdn_problem, "k_heads", k_heads, 1, MANY), INTEGER(gdn_problem, "v_heads", v_heads, 1, MANY),
	INTEGER(gdn_problem, "k_dim", k_dim, 1, MANY), INTEGER(gdn_problem, "v_dim", v_dim, 1, MANY), INTEGER(gdn_problem, "conv_kernel", conv_kernel, 1, MANY),
	INTEGER(gdn_problem, "rows", rows, 1, MANY), FLAG(gdn_problem, "prefill", prefill), {0}};
/* A problem's key, by its op. */
static const struct {
	const struct field *fields;
	size_t offset;
} keys[PROBLEM_OP_COUNT] = {
	[PROBLEM_LINEAR] = {linear_fields, offsetof(struct result_problem, linear)},
	[PROBLEM_ATTENTION] = {attention_fields, offsetof(struct result_problem, attention)},
	[PROBLEM_MOE] = {moe_fields, offsetof(struct result_problem, moe)},
	[PROBLEM_GDN] = {gdn_fields, offsetof(struct result_problem, gdn)},
};
static const struct field place_fields[] = {INTEGER(result_place, "tp", world_size, 1, 65536), TEXT(result_place, "family", family),
                                            INTEGER(result_place, "count", count, 0, MANY), {0}};
static const struct field problem_fields[] = {NAME(result_problem, "op", op, name_of_op, PROBLEM_OP_COUNT), TEXT(result_problem, "phase", phase),
                                              FLAG(result_problem, "done", done), TEXT(result_problem, "note", note), {0}};
static const struct field degree_fields[] = {
	INTEGER(result_degree, "tp", world_size, 1, 65536), FLAG(result_degree, "legal", legal), TEXT(result_degree, "why_not", why_not),
	INTEGER(result_degree, "q_heads", q_heads, 0, MANY), INTEGER(result_degree, "kv_heads", kv_heads, 0, MANY),
	INTEGER(result_degree, "kv_replicated", kv_replicated, 0, MANY), INTEGER(result_degree, "head_dim", head_dim, 0, MANY),
	INTEGER(result_degree, "gdn_k_heads", gdn_k_heads, 0, MANY), INTEGER(result_degree, "gdn_v_heads", gdn_v_heads, 0, MANY),
	INTEGER(result_degree, "gdn_k_dim", gdn_k_dim, 0, MANY), INTEGER(result_degree, "gdn_v_dim", gdn_v_dim, 0, MANY), {0}};
static const struct field results_fields[] = {
	TEXT(results, "program", program), TEXT(results, "model", model), TEXT(results, "model_type", model_type),
	NAME(results, "dtype", dtype, name_of_dtype, DTYPE_COUNT), TEXT(results, "device", device), TEXT(results, "flavour", flavour),
	TEXT(results, "versions", versions), INTEGER(results, "threads", threads, 1, 65536), REAL(results, "keep", keep), REAL(results, "reject", reject),
	{.name = "any_order", .type = FIELD_BOOL, .offset = offsetof(struct results, any_order), .may_miss = true},
	INTEGER64(results, "rotate_bytes", rotate_bytes), REAL(results, "seconds", seconds), FLAG(results, "complete", complete), {0}};

/* ---- writing */

static json_t *object_json(const struct field *table, const void *from);

/* A text may have been cut within a character; what is no UTF-8 could not be written. */
static json_t *text_json(const char *text)
{
	char copy[256];
	json_t *made = json_string(fields_text(copy, sizeof copy, text));
	return made ? made : json_string("?");
}

static json_t *field_json(const struct field *f, const void *at)
{
	int number;
	double real;
	switch (f->type) {
	case FIELD_TEXT: return text_json(at);
	case FIELD_INT: return json_integer(*(const int *)at);
	case FIELD_INT64: return json_integer(*(const int64_t *)at);
	case FIELD_REAL: real = *(const double *)at; return isfinite(real) ? json_real(real) : json_null();
	case FIELD_BOOL: return json_boolean(*(const bool *)at);
	case FIELD_NAME: memcpy(&number, at, sizeof number); return json_string(f->name_of(number));
	case FIELD_SIZES: return json_pack("[I,I,I]", (json_int_t)((const unsigned *)at)[0], (json_int_t)((const unsigned *)at)[1], (json_int_t)((const unsigned *)at)[2]);
	case FIELD_OBJECT: return object_json(f->table, at);
	}
	return NULL;
}

static bool is_left_out(const struct field *f, const void *at)
{
	return f->may_miss && (f->type == FIELD_BOOL ? !*(const bool *)at : *(const double *)at == 0);
}

static json_t *object_json(const struct field *table, const void *from)
{
	json_t *object = json_object();
	for (const struct field *f = table; f->name; f++) {
		if (is_left_out(f, (const char *)from + f->offset)) continue;
		if (json_object_set_new(object, f->name, field_json(f, (const char *)from + f->offset)) != 0) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

static json_t *list_json(const struct field *table, const void *items, int count, size_t size)
{
	json_t *list = json_array();
	for (int i = 0; i < count; i++)
		if (json_array_append_new(list, object_json(table, (const char *)items + (size_t)i * size)) != 0) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static json_t *candidate_json(const struct result_candidate *c)
{
	json_t *object = object_json(candidate_fields, c);
	json_t *launches = c->observed.known ? list_json(launch_fields, c->observed.item, c->observed.count, sizeof *c->observed.item) : json_null();
	int bad = json_object_set_new(object, "launches", launches);
	if (c->confirm.outcome != OUTCOME_OPEN) bad |= json_object_set_new(object, "chain", object_json(confirm_fields, &c->confirm));
	if (!bad) return object;
	json_decref(object);
	return NULL;
}

static json_t *problem_json(const struct result_problem *p)
{
	json_t *object = object_json(problem_fields, p), *candidates = json_array();
	int bad = json_object_set_new(object, "key", object_json(keys[p->op].fields, (const char *)p + keys[p->op].offset));
	bad |= json_object_set_new(object, "places", list_json(place_fields, p->place, p->places, sizeof *p->place));
	for (int i = 0; i < p->candidates; i++) bad |= json_array_append_new(candidates, candidate_json(&p->candidate[i]));
	bad |= json_object_set_new(object, "candidates", candidates);
	if (!bad) return object;
	json_decref(object);
	return NULL;
}

json_t *results_json(const struct results *r)
{
	json_t *object = json_pack("{s:s,s:i}", "format", RESULTS_FORMAT, "version", RESULTS_VERSION), *body = object_json(results_fields, r), *problems = json_array();
	int bad = json_object_update(object, body);
	bad |= json_object_set_new(object, "degrees", list_json(degree_fields, r->degree, r->degrees, sizeof *r->degree));
	for (int i = 0; i < r->problems; i++) bad |= json_array_append_new(problems, problem_json(&r->problem[i]));
	bad |= json_object_set_new(object, "problems", problems);
	if (r->chain_mode == CHAIN_OFF) bad |= json_object_set_new(object, "chains", json_null());
	if (r->chain_mode == CHAIN_ON) bad |= json_object_set_new(object, "chains", list_json(chain_fields, r->chain, r->chains, sizeof *r->chain));
	json_decref(body);
	if (!bad) return object;
	json_decref(object);
	return NULL;
}

/* ---- reading */

static enum status read_object(const struct field *table, const char *const *more, const json_t *object, const char *file, const char *section, void *to,
                               struct error *err);

static enum status read_text(const struct fields *in, const struct field *f, char *to, struct error *err)
{
	TRY(fields_copy(in, f->name, to, f->size, err));
	fields_one_line(to);
	return STATUS_OK;
}

static enum status read_name(const struct fields *in, const struct field *f, void *to, struct error *err)
{
	const char *text = NULL;
	TRY(fields_string(in, f->name, &text, err));
	for (int value = 0; text && value <= f->hi; value++)
		if (strcmp(text, f->name_of(value)) == 0) {
			memcpy(to, &value, sizeof value);
			return STATUS_OK;
		}
	return fields_refuse(in, f->name, "a name that this version knows (docs/PRESCREEN.md)", fields_get(in, f->name), err);
}

static enum status read_sizes(const struct fields *in, const struct field *f, unsigned *to, struct error *err)
{
	const json_t *list = fields_get(in, f->name);
	if (json_array_size(list) != 3) return fields_refuse(in, f->name, "three sizes", list, err);
	for (size_t i = 0; i < 3; i++) {
		const json_t *item = json_array_get(list, i);
		json_int_t value = json_integer_value(item);
		if (!json_is_integer(item) || value < 0 || value > UINT32_MAX) return fields_refuse(in, f->name, "three sizes", list, err);
		to[i] = (unsigned)value;
	}
	return STATUS_OK;
}

static enum status read_real(const struct fields *in, const struct field *f, double *to, struct error *err)
{
	if (f->may_miss) return fields_number(in, f->name, 0, false, DBL_MAX, to, err);
	if (!fields_get(in, f->name)) {
		*to = NAN;
		return STATUS_OK;
	}
	return fields_number(in, f->name, -DBL_MAX, false, DBL_MAX, to, err);
}

static enum status read_field(const struct fields *in, const struct field *f, void *to, struct error *err)
{
	char section[128];
	if (!json_object_get(in->object, f->name)) return f->may_miss ? STATUS_OK : fields_need(in, f->name, "a value", err);
	switch (f->type) {
	case FIELD_TEXT: return read_text(in, f, to, err);
	case FIELD_INT:
		TRY(fields_need(in, f->name, "a whole number", err));
		return fields_int(in, f->name, f->lo, f->hi, to, err);
	case FIELD_INT64:
		TRY(fields_need(in, f->name, "a whole number", err));
		return fields_int64(in, f->name, f->lo, f->hi, to, err);
	case FIELD_REAL: return read_real(in, f, to, err);
	case FIELD_BOOL:
		TRY(fields_need(in, f->name, "true or false", err));
		return fields_bool(in, f->name, to, err);
	case FIELD_NAME: return read_name(in, f, to, err);
	case FIELD_SIZES: return read_sizes(in, f, to, err);
	case FIELD_OBJECT:
		snprintf(section, sizeof section, "%.90s%.30s.", in->section, f->name);
		return read_object(f->table, NULL, fields_get(in, f->name), in->file, section, to, err);
	}
	return STATUS_OK;
}

static bool has_name(const struct field *table, const char *const *more, const char *key)
{
	for (; table->name; table++)
		if (strcmp(table->name, key) == 0) return true;
	for (; more && *more; more++)
		if (strcmp(*more, key) == 0) return true;
	return false;
}

static enum status read_object(const struct field *table, const char *const *more, const json_t *object, const char *file, const char *section, void *to,
                               struct error *err)
{
	struct fields in = {.object = object, .file = file, .section = section};
	const char *key;
	json_t *value;
	char text[64];
	if (!json_is_object(object)) return FAIL(err, BAD_INPUT, "%s: %.*s: expected an object; the file is damaged", file, (int)strlen(section) - (*section != 0), section);
	json_object_foreach((json_t *)object, key, value)
		if (!has_name(table, more, key))
			return FAIL(err, BAD_INPUT, "%s: %s%s: not a field of this format, version %d; correct the file", file, section, fields_text(text, sizeof text, key),
			            RESULTS_VERSION);
	for (const struct field *f = table; f->name; f++) TRY(read_field(&in, f, (char *)to + f->offset, err));
	return STATUS_OK;
}

static enum status need_list(const json_t *object, const char *key, const char *file, const char *section, const json_t **list, struct error *err)
{
	struct fields in = {.object = object, .file = file, .section = section};
	*list = fields_get(&in, key);
	if (json_is_array(*list) && json_array_size(*list) <= MAX_LIST) return STATUS_OK;
	return fields_refuse(&in, key, "a list", *list, err);
}

static enum status read_launches(struct result_launches *out, const json_t *object, const char *file, const char *section, struct error *err)
{
	const json_t *list;
	char inner[128];
	if (!json_object_get(object, "launches") || json_is_null(json_object_get(object, "launches"))) return STATUS_OK;
	TRY(need_list(object, "launches", file, section, &list, err));
	int count = (int)json_array_size(list);
	out->known = true;
	if (!count) return STATUS_OK;
	out->item = mem_zalloc((size_t)count, sizeof *out->item, "launches", err);
	if (!out->item) return STATUS_NO_MEMORY;
	for (out->count = 0; out->count < count; out->count++) {
		snprintf(inner, sizeof inner, "%.90slaunches[%d].", section, out->count);
		TRY(read_object(launch_fields, NULL, json_array_get(list, (size_t)out->count), file, inner, &out->item[out->count], err));
	}
	return STATUS_OK;
}

/* Left out where the candidate was not tried in a chain. */
static enum status read_confirm(struct result_confirm *out, const json_t *object, const char *file, const char *section, struct error *err)
{
	char inner[128];
	const json_t *chain = json_object_get(object, "chain");
	if (!chain) return STATUS_OK;
	snprintf(inner, sizeof inner, "%.100schain.", section);
	return read_object(confirm_fields, NULL, chain, file, inner, out, err);
}

static enum status read_candidates(struct result_problem *p, const json_t *object, const char *file, const char *section, struct error *err)
{
	static const char *const more[] = {"launches", "chain", NULL};
	const json_t *list;
	char inner[128];
	TRY(need_list(object, "candidates", file, section, &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		struct result_candidate *c = result_add_candidate(p, err);
		if (!c) return STATUS_NO_MEMORY;
		snprintf(inner, sizeof inner, "%.90scandidates[%zu].", section, i);
		TRY(read_object(candidate_fields, more, item, file, inner, c, err));
		TRY(read_launches(&c->observed, item, file, inner, err));
		TRY(read_confirm(&c->confirm, item, file, inner, err));
		if ((c->outcome == OUTCOME_BASELINE) == (i == 0)) continue;
		return FAIL(err, BAD_INPUT, "%s: %soutcome: %s; the first candidate, and no other, is the baseline", file, inner, outcome_name(c->outcome));
	}
	return STATUS_OK;
}

static enum status read_places(struct result_problem *p, const json_t *object, const char *file, const char *section, struct error *err)
{
	const json_t *list;
	char inner[128];
	TRY(need_list(object, "places", file, section, &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct result_place place = {0};
		snprintf(inner, sizeof inner, "%.90splaces[%zu].", section, i);
		TRY(read_object(place_fields, NULL, json_array_get(list, i), file, inner, &place, err));
		TRY(result_add_place(p, place.world_size, place.family, place.count, err));
	}
	return STATUS_OK;
}

static enum status read_problems(struct results *out, const json_t *root, const char *file, struct error *err)
{
	static const char *const more[] = {"key", "places", "candidates", NULL};
	const json_t *list;
	char section[64], inner[80];
	TRY(need_list(root, "problems", file, "", &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *item = json_array_get(list, i);
		struct result_problem *p = results_add_problem(out, err);
		if (!p) return STATUS_NO_MEMORY;
		snprintf(section, sizeof section, "problems[%zu].", i);
		snprintf(inner, sizeof inner, "%skey.", section);
		TRY(read_object(problem_fields, more, item, file, section, p, err));
		TRY(read_object(keys[p->op].fields, NULL, json_object_get(item, "key"), file, inner, (char *)p + keys[p->op].offset, err));
		TRY(read_places(p, item, file, section, err));
		TRY(read_candidates(p, item, file, section, err));
	}
	return STATUS_OK;
}

static enum status read_degrees(struct results *out, const json_t *root, const char *file, struct error *err)
{
	const json_t *list;
	char section[64];
	TRY(need_list(root, "degrees", file, "", &list, err));
	if (json_array_size(list) > RESULTS_MAX_DEGREES)
		return FAIL(err, BAD_INPUT, "%s: degrees: %zu of them, at most %d are expected", file, json_array_size(list), RESULTS_MAX_DEGREES);
	for (size_t i = 0; i < json_array_size(list); i++) {
		snprintf(section, sizeof section, "degrees[%zu].", i);
		TRY(read_object(degree_fields, NULL, json_array_get(list, i), file, section, &out->degree[i], err));
		out->degrees++;
	}
	return STATUS_OK;
}

/* Left out: a file from before there were chains; null: none were wanted. */
static enum status read_chains(struct results *out, const json_t *root, const char *file, struct error *err)
{
	const json_t *list = json_object_get(root, "chains");
	char section[64];
	if (!list) return STATUS_OK;
	out->chain_mode = json_is_null(list) ? CHAIN_OFF : CHAIN_ON;
	if (out->chain_mode == CHAIN_OFF) return STATUS_OK;
	TRY(need_list(root, "chains", file, "", &list, err));
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct result_chain chain = {0};
		snprintf(section, sizeof section, "chains[%zu].", i);
		TRY(read_object(chain_fields, NULL, json_array_get(list, i), file, section, &chain, err));
		TRY(results_add_chain(out, &chain, err));
	}
	return STATUS_OK;
}

static enum status read_head(const json_t *root, const char *file, struct error *err)
{
	struct fields in = {.object = root, .file = file, .section = ""};
	const char *format = NULL;
	int version = 0;
	TRY(fields_need(&in, "format", "\"" RESULTS_FORMAT "\"", err));
	TRY(fields_string(&in, "format", &format, err));
	if (strcmp(format, RESULTS_FORMAT) != 0) return fields_refuse(&in, "format", "\"" RESULTS_FORMAT "\"", fields_get(&in, "format"), err);
	TRY(fields_need(&in, "version", "a whole number", err));
	TRY(fields_int(&in, "version", 0, MANY, &version, err));
	if (version == RESULTS_VERSION) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: version %d of the format, this program reads %d; run the prescreen again", file, version, RESULTS_VERSION);
}

static enum status from_object(struct results *out, const json_t *root, const char *file, struct error *err)
{
	static const char *const more[] = {"format", "version", "degrees", "problems", "chains", NULL};
	TRY(read_head(root, file, err));
	TRY(read_object(results_fields, more, root, file, "", out, err));
	TRY(read_degrees(out, root, file, err));
	TRY(read_chains(out, root, file, err));
	return read_problems(out, root, file, err);
}

/* Takes `root`. */
static enum status finish(struct results *out, json_t *root, const char *file, struct error *err)
{
	enum status st = from_object(out, root, file, err);
	json_decref(root);
	if (st != STATUS_OK) results_fini(out);
	return st;
}

enum status results_parse(struct results *out, const char *text, size_t n, const char *file, struct error *err)
{
	json_t *root;
	*out = (struct results){0};
	TRY(fields_parse(&root, text, n, file, err));
	return finish(out, root, file, err);
}

enum status results_load(struct results *out, const char *path, struct error *err)
{
	json_t *root;
	*out = (struct results){0};
	TRY(fields_load(&root, path, RESULTS_MAX_FILE, err));
	return finish(out, root, path, err);
}

enum status results_text(const struct results *results, size_t layout, struct buf *out, struct error *err)
{
	json_t *object = results_json(results);
	char *text = object ? json_dumps(object, layout | JSON_REAL_PRECISION(17)) : NULL;
	json_decref(object);
	if (!text) return FAIL(err, NO_MEMORY, "prescreen: no memory for the text of its results; use a machine with more");
	enum status st = buf_puts(out, text, err);
	free(text);
	return st;
}

enum status results_save(const struct results *results, const char *path, struct error *err)
{
	struct buf text = {0};
	enum status st = results_text(results, JSON_INDENT(1), &text, err);
	if (st == STATUS_OK) st = out_file_write(path, text.data, text.size, err);
	buf_fini(&text);
	return st;
}
