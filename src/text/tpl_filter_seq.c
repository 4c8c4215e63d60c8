/* Filters on sequences. Those that Jinja makes generators of are computed at once, and give a value that can be consumed once. */
#include <string.h>

#include "text/tpl_eval.h"
#include "text/tpl_filter.h"
#include "text/tpl_format.h"
#include "text/tpl_method.h"
#include "text/tpl_ops.h"
#include "text/tpl_sort.h"

#define FILTER(name) static enum status name(struct tpl_run *run, struct tpl_value in, const struct tpl_bound *got, struct tpl_value *out)

static const struct tpl_string empty = {.data = ""};

/* ---- attributes by path: "a.b.0" ---- */

static bool is_index(const struct tpl_string *s, size_t from, size_t to, int64_t *out)
{
	*out = 0;
	if (to == from || to - from > 9) return false;
	for (size_t i = from; i < to; i++) {
		if (s->data[i] < '0' || s->data[i] > '9') return false;
		*out = *out * 10 + (s->data[i] - '0');
	}
	return true;
}

/* item.part.part...; `fallback` (may be NULL) stands in for what is undefined on the way. */
static enum status follow(struct tpl_run *run, struct tpl_value item, const struct tpl_string *path, size_t from, size_t to,
                          const struct tpl_value *fallback, struct tpl_value *out)
{
	for (size_t at = from; at <= to;) {
		const char *dot = to > at ? memchr(path->data + at, '.', to - at) : NULL;
		size_t end = dot ? (size_t)(dot - path->data) : to;
		int64_t index;
		struct tpl_value part;
		if (is_index(path, at, end, &index)) part = tpl_int(index);
		else TRY(tpl_string_cut(run, path, at, end, &part));
		TRY(tpl_get_item(run, item, part, &item));
		if (fallback && item.kind == TPL_UNDEFINED) item = *fallback;
		at = end + 1;
	}
	*out = item;
	return STATUS_OK;
}

/* `attribute` NULL or none: the item itself. */
static enum status attribute_of(struct tpl_run *run, struct tpl_value item, const struct tpl_value *attribute, const struct tpl_value *fallback,
                                struct tpl_value *out)
{
	*out = item;
	if (!attribute || attribute->kind == TPL_NONE) return STATUS_OK;
	if (attribute->kind == TPL_STRING) return follow(run, item, attribute->string, 0, attribute->string->size, fallback, out);
	TRY(tpl_get_item(run, item, *attribute, out));
	if (fallback && out->kind == TPL_UNDEFINED) *out = *fallback;
	return STATUS_OK;
}

static enum status fold(struct tpl_run *run, struct tpl_value v, bool case_sensitive, struct tpl_value *out)
{
	*out = v;
	return v.kind == TPL_STRING && !case_sensitive ? tpl_change_case(run, v.string, TPL_LOWER, out) : STATUS_OK;
}

/* ---- whole sequences ---- */

FILTER(first)
{
	(void)got;
	struct tpl_iter it;
	bool more;
	TRY(tpl_iter_init(run, in, &it));
	TRY(tpl_iter_next(run, &it, &more, out));
	if (!more) *out = tpl_undefined(NULL);
	return STATUS_OK;
}

FILTER(last)
{
	(void)got;
	struct tpl_seq *items;
	if (in.kind == TPL_GENERATOR) return FAIL(run->err, BAD_INPUT, "last of a generator; make it a list first");
	TRY(tpl_collect(run, in, &items));
	*out = items->count ? items->items[items->count - 1] : tpl_undefined(NULL);
	return STATUS_OK;
}

FILTER(list)
{
	(void)got;
	struct tpl_seq *items;
	TRY(tpl_collect(run, in, &items));
	*out = tpl_seq(TPL_LIST, items);
	return STATUS_OK;
}

FILTER(items)
{
	(void)got;
	struct tpl_seq *seq;
	if (in.kind != TPL_UNDEFINED && in.kind != TPL_DICT) return FAIL(run->err, BAD_INPUT, "items of a %s, not of a dict", tpl_kind_name(in));
	if (in.kind == TPL_DICT) TRY(tpl_dict_items(run, in.dict, &seq));
	else TRY(tpl_seq_new(run, 0, &seq));
	*out = tpl_seq(TPL_GENERATOR, seq);
	return STATUS_OK;
}

FILTER(join)
{
	struct tpl_seq *items, *parts;
	struct tpl_value separator = tpl_string(&empty);
	if (got->at[0]) TRY(tpl_str(run, *got->at[0], &separator));
	TRY(tpl_collect(run, in, &items));
	TRY(tpl_seq_new(run, items->count, &parts));
	for (size_t i = 0; i < items->count; i++) {
		struct tpl_value part;
		TRY(attribute_of(run, items->items[i], got->at[1], NULL, &part));
		TRY(tpl_seq_push(run, parts, part));
	}
	return tpl_join(run, separator.string, parts, false, out);
}

FILTER(reverse)
{
	(void)got;
	struct tpl_seq *items, *made;
	if (in.kind == TPL_STRING) return tpl_slice(run, in, (struct tpl_value[]){tpl_none(), tpl_none(), tpl_int(-1)}, out);
	TRY(tpl_collect(run, in, &items));
	TRY(tpl_seq_new(run, items->count, &made));
	for (size_t i = items->count; i-- > 0;) TRY(tpl_seq_push(run, made, items->items[i]));
	*out = tpl_seq(in.kind == TPL_GENERATOR ? TPL_LIST : TPL_GENERATOR, made);
	return STATUS_OK;
}

FILTER(sum)
{
	struct tpl_iter it;
	*out = got->at[1] ? *got->at[1] : tpl_int(0);
	if (out->kind == TPL_STRING) return FAIL(run->err, BAD_INPUT, "sum does not join strings; use join");
	TRY(tpl_iter_init(run, in, &it));
	for (;;) {
		bool more;
		struct tpl_value item;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) return STATUS_OK;
		TRY(attribute_of(run, item, got->at[0], NULL, &item));
		TRY(tpl_binary(run, '+', *out, item, out));
	}
}

static enum status extreme(struct tpl_run *run, struct tpl_value in, const struct tpl_bound *got, int wanted, struct tpl_value *out)
{
	struct tpl_iter it;
	struct tpl_value best = tpl_none();
	bool any = false;
	*out = tpl_undefined(NULL);
	TRY(tpl_iter_init(run, in, &it));
	for (;;) {
		bool more;
		struct tpl_value item, key;
		int order = wanted;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) return STATUS_OK;
		TRY(attribute_of(run, item, got->at[1], NULL, &key));
		TRY(fold(run, key, tpl_arg_true(got->at[0]), &key));
		if (any) TRY(tpl_order(run, key, best, &order));
		if (order == wanted) {
			best = key;
			*out = item;
		}
		any = true;
	}
}

FILTER(min) { return extreme(run, in, got, -1, out); }
FILTER(max) { return extreme(run, in, got, 1, out); }

FILTER(unique)
{
	struct tpl_iter it;
	struct tpl_dict *seen;
	struct tpl_seq *made;
	TRY(tpl_dict_new(run, &seen));
	TRY(tpl_seq_new(run, 0, &made));
	TRY(tpl_iter_init(run, in, &it));
	for (;;) {
		bool more;
		struct tpl_value item, key, *known;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) break;
		TRY(attribute_of(run, item, got->at[1], NULL, &key));
		TRY(fold(run, key, tpl_arg_true(got->at[0]), &key));
		TRY(tpl_dict_get(run, seen, key, &known));
		if (known) continue;
		TRY(tpl_dict_set(run, seen, key, tpl_none()));
		TRY(tpl_seq_push(run, made, item));
	}
	*out = tpl_seq(TPL_GENERATOR, made);
	return STATUS_OK;
}

/* The sort key: the attribute, or a list of them when the path has commas. */
static enum status sort_key(struct tpl_run *run, struct tpl_value item, const struct tpl_value *attribute, bool case_sensitive, struct tpl_value *out)
{
	struct tpl_seq *parts;
	struct tpl_value part;
	if (!attribute || attribute->kind != TPL_STRING) {
		TRY(attribute_of(run, item, attribute, NULL, &part));
		return fold(run, part, case_sensitive, out);
	}
	const struct tpl_string *path = attribute->string;
	TRY(tpl_seq_new(run, 0, &parts));
	for (size_t at = 0; at <= path->size;) {
		const char *comma = path->size > at ? memchr(path->data + at, ',', path->size - at) : NULL;
		size_t end = comma ? (size_t)(comma - path->data) : path->size;
		TRY(follow(run, item, path, at, end, NULL, &part));
		TRY(fold(run, part, case_sensitive, &part));
		TRY(tpl_seq_push(run, parts, part));
		at = end + 1;
	}
	*out = tpl_seq(TPL_LIST, parts);
	return STATUS_OK;
}

FILTER(sort)
{
	struct tpl_seq *items, *made;
	struct tpl_value *keys;
	TRY(tpl_collect(run, in, &items));
	TRY(TPL_NEW(run, keys, items->count));
	for (size_t i = 0; i < items->count; i++) TRY(sort_key(run, items->items[i], got->at[2], tpl_arg_true(got->at[1]), &keys[i]));
	TRY(tpl_sorted(run, items->items, keys, items->count, tpl_arg_true(got->at[0]), &made));
	*out = tpl_seq(TPL_LIST, made);
	return STATUS_OK;
}

FILTER(dictsort)
{
	struct tpl_seq *pairs, *made;
	struct tpl_value *keys;
	const struct tpl_string *by = NULL;
	if (in.kind != TPL_DICT) return FAIL(run->err, BAD_INPUT, "dictsort of a %s, not of a dict", tpl_kind_name(in));
	if (got->at[1]) TRY(tpl_arg_string(run, got->at[1], &by));
	bool by_value = by && tpl_string_is(by, "value");
	if (by && !by_value && !tpl_string_is(by, "key")) return FAIL(run->err, BAD_INPUT, "dictsort sorts by 'key' or 'value'");
	TRY(tpl_dict_items(run, in.dict, &pairs));
	TRY(TPL_NEW(run, keys, pairs->count));
	for (size_t i = 0; i < pairs->count; i++) TRY(fold(run, pairs->items[i].seq->items[by_value], tpl_arg_true(got->at[0]), &keys[i]));
	TRY(tpl_sorted(run, pairs->items, keys, pairs->count, tpl_arg_true(got->at[2]), &made));
	*out = tpl_seq(TPL_LIST, made);
	return STATUS_OK;
}

FILTER(batch)
{
	struct tpl_seq *items, *made, *row = NULL;
	int64_t size;
	TRY(tpl_arg_int(run, got->at[0], 0, &size));
	TRY(tpl_collect(run, in, &items));
	if (size < 1) return FAIL(run->err, UNSUPPORTED, "batch by less than 1 is not implemented");
	TRY(tpl_seq_new(run, 0, &made));
	for (size_t i = 0; i < items->count; i++) {
		if (i % (size_t)size == 0) {
			TRY(tpl_seq_new(run, 0, &row));
			TRY(tpl_seq_push(run, made, tpl_seq(TPL_LIST, row)));
		}
		TRY(tpl_seq_push(run, row, items->items[i]));
	}
	bool fill = got->at[1] && got->at[1]->kind != TPL_NONE;
	while (fill && row && row->count < (size_t)size) TRY(tpl_seq_push(run, row, *got->at[1]));
	*out = tpl_seq(TPL_GENERATOR, made);
	return STATUS_OK;
}

FILTER(slice)
{
	struct tpl_seq *items, *made, *row;
	int64_t slices;
	size_t at = 0;
	TRY(tpl_arg_int(run, got->at[0], 0, &slices));
	TRY(tpl_collect(run, in, &items));
	if (slices < 1) return FAIL(run->err, UNSUPPORTED, "slice into less than 1 is not implemented");
	TRY(tpl_seq_new(run, 0, &made));
	size_t n = items->count / (size_t)slices, extra = items->count % (size_t)slices;
	bool fill = got->at[1] && got->at[1]->kind != TPL_NONE;
	for (size_t k = 0; k < (size_t)slices; k++) {
		TRY(tpl_seq_new(run, 0, &row));
		for (size_t i = 0; i < n + (k < extra); i++) TRY(tpl_seq_push(run, row, items->items[at++]));
		if (fill && k >= extra) TRY(tpl_seq_push(run, row, *got->at[1]));
		TRY(tpl_seq_push(run, made, tpl_seq(TPL_LIST, row)));
	}
	*out = tpl_seq(TPL_GENERATOR, made);
	return STATUS_OK;
}

/* ---- map, select, reject ---- */

static const struct tpl_value *keyword(const struct tpl_args *args, const char *name)
{
	for (size_t i = 0; i < args->keyword_count; i++)
		if (tpl_string_is(args->keywords[i].name, name)) return &args->keywords[i].value;
	return NULL;
}

/* The arguments after the first `n`, for what is called on each item. */
static struct tpl_args args_from(const struct tpl_args *args, size_t n)
{
	struct tpl_args rest = *args;
	rest.values += n;
	rest.count -= n;
	return rest;
}

static enum status map_item(struct tpl_run *run, struct tpl_value item, const struct tpl_args *args, struct tpl_value *out)
{
	const struct tpl_value *attribute = keyword(args, "attribute"), *fallback = keyword(args, "default");
	const struct tpl_string *name;
	if (args->count == 0 && attribute) {
		if (args->keyword_count > 1u + (fallback != NULL)) return FAIL(run->err, BAD_INPUT, "map has an argument that it does not take");
		if (fallback && fallback->kind == TPL_NONE) fallback = NULL;
		return attribute_of(run, item, attribute, fallback, out);
	}
	if (args->count == 0) return FAIL(run->err, BAD_INPUT, "map needs a filter or an attribute");
	struct tpl_args rest = args_from(args, 1);
	TRY(tpl_arg_string(run, &args->values[0], &name));
	return tpl_filter(run, name, item, &rest, out);
}

FILTER(map)
{
	struct tpl_iter it;
	struct tpl_seq *made;
	TRY(tpl_seq_new(run, 0, &made));
	*out = tpl_seq(TPL_GENERATOR, made);
	if (!tpl_truth(in)) return STATUS_OK;
	TRY(tpl_iter_init(run, in, &it));
	for (;;) {
		bool more;
		struct tpl_value item;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) return STATUS_OK;
		TRY(map_item(run, item, got->all, &item));
		TRY(tpl_seq_push(run, made, item));
	}
}

static enum status passes(struct tpl_run *run, struct tpl_value item, const struct tpl_args *args, bool by_attribute, bool *out)
{
	size_t at = by_attribute;
	const struct tpl_string *name;
	if (by_attribute && args->count == 0) return FAIL(run->err, BAD_INPUT, "selectattr and rejectattr need the name of an attribute");
	if (by_attribute) TRY(attribute_of(run, item, &args->values[0], NULL, &item));
	*out = tpl_truth(item);
	if (args->count == at) return STATUS_OK;
	struct tpl_args rest = args_from(args, at + 1);
	TRY(tpl_arg_string(run, &args->values[at], &name));
	return tpl_test(run, name, item, &rest, out);
}

static enum status choose(struct tpl_run *run, struct tpl_value in, const struct tpl_args *args, bool by_attribute, bool wanted, struct tpl_value *out)
{
	struct tpl_iter it;
	struct tpl_seq *made;
	TRY(tpl_seq_new(run, 0, &made));
	*out = tpl_seq(TPL_GENERATOR, made);
	if (!tpl_truth(in)) return STATUS_OK;
	TRY(tpl_iter_init(run, in, &it));
	for (;;) {
		bool more, pass;
		struct tpl_value item;
		TRY(tpl_iter_next(run, &it, &more, &item));
		if (!more) return STATUS_OK;
		TRY(passes(run, item, args, by_attribute, &pass));
		if (pass == wanted) TRY(tpl_seq_push(run, made, item));
	}
}

FILTER(select_items) { return choose(run, in, got->all, false, true, out); }
FILTER(reject) { return choose(run, in, got->all, false, false, out); }
FILTER(selectattr) { return choose(run, in, got->all, true, true, out); }
FILTER(rejectattr) { return choose(run, in, got->all, true, false, out); }

const struct tpl_function tpl_sequence_filters[] = {
	{"first", "", first},
	{"last", "", last},
	{"list", "", list},
	{"items", "", items},
	{"join", "! d attribute", join},
	{"reverse", "", reverse},
	{"sum", "! attribute start", sum},
	{"min", "! case_sensitive attribute", min},
	{"max", "! case_sensitive attribute", max},
	{"unique", "! case_sensitive attribute", unique},
	{"sort", "! reverse case_sensitive attribute", sort},
	{"dictsort", "! case_sensitive by reverse", dictsort},
	{"batch", "linecount ! fill_with", batch},
	{"slice", "slices ! fill_with", slice},
	{"map", "*", map},
	{"select", "*", select_items},
	{"reject", "*", reject},
	{"selectattr", "*", selectattr},
	{"rejectattr", "*", rejectattr},
};
const size_t tpl_sequence_filter_count = sizeof tpl_sequence_filters / sizeof *tpl_sequence_filters;
