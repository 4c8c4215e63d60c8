#include "text/tpl_method.h"

#include "text/tpl_ops.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define METHOD(name) static enum status name(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)

/* ---- dict ---- */

enum status tpl_dict_items(struct tpl_run *run, const struct tpl_dict *dict, struct tpl_seq **out)
{
	TRY(tpl_seq_new(run, dict->count, out));
	for (size_t i = 0; i < dict->count; i++) {
		struct tpl_value pair;
		TRY(tpl_pair_tuple(run, dict->pairs[i].key, dict->pairs[i].value, &pair));
		TRY(tpl_seq_push(run, *out, pair));
	}
	return STATUS_OK;
}

METHOD(items)
{
	(void)got;
	struct tpl_seq *seq;
	TRY(tpl_dict_items(run, self.dict, &seq));
	seq->printed = "dict_items";
	*out = tpl_seq(TPL_VIEW, seq);
	return STATUS_OK;
}

static enum status one_side(struct tpl_run *run, const struct tpl_dict *dict, bool keys, struct tpl_value *out)
{
	struct tpl_seq *seq;
	TRY(tpl_seq_new(run, dict->count, &seq));
	for (size_t i = 0; i < dict->count; i++) TRY(tpl_seq_push(run, seq, keys ? dict->pairs[i].key : dict->pairs[i].value));
	seq->printed = keys ? "dict_keys" : "dict_values";
	*out = tpl_seq(TPL_VIEW, seq);
	return STATUS_OK;
}

METHOD(keys) { (void)got; return one_side(run, self.dict, true, out); }
METHOD(values) { (void)got; return one_side(run, self.dict, false, out); }

METHOD(get)
{
	struct tpl_value *found;
	TRY(tpl_dict_get(run, self.dict, *got->at[0], &found));
	*out = found ? *found : got->at[1] ? *got->at[1] : tpl_none();
	return STATUS_OK;
}

METHOD(copy) /* nothing can change it, so it is its own copy */
{
	(void)run;
	(void)got;
	*out = self;
	return STATUS_OK;
}

/* ---- list and tuple ---- */

METHOD(count)
{
	int64_t n = 0;
	for (size_t i = 0; i < self.seq->count; i++) {
		bool equal;
		TRY(tpl_equal(run, self.seq->items[i], *got->at[0], &equal));
		TRY(tpl_pay(run, 1));
		n += equal;
	}
	*out = tpl_int(n);
	return STATUS_OK;
}

static int64_t clamp(int64_t i, int64_t n)
{
	if (i < 0) i = i < -n ? 0 : i + n;
	return i > n ? n : i;
}

METHOD(index_of)
{
	int64_t from, to, n = (int64_t)self.seq->count;
	TRY(tpl_arg_int(run, got->at[1], 0, &from));
	TRY(tpl_arg_int(run, got->at[2], n, &to));
	to = clamp(to, n);
	for (int64_t i = clamp(from, n); i < to; i++) {
		bool equal;
		TRY(tpl_equal(run, self.seq->items[i], *got->at[0], &equal));
		TRY(tpl_pay(run, 1));
		if (!equal) continue;
		*out = tpl_int(i);
		return STATUS_OK;
	}
	return FAIL(run->err, BAD_INPUT, "index: the item is not there");
}

static const struct tpl_function dict_methods[] = {
	{"items", "", items}, {"keys", "", keys}, {"values", "", values}, {"get", "- ! -", get}, {"copy", "", copy},
};
static const struct tpl_function list_methods[] = {{"index", "- ! - -", index_of}, {"count", "-", count}, {"copy", "", copy}};

/* ---- attributes ---- */

/* What Python has besides. "!" starts those that the sandbox hides because they would change the value. */
static const char *const other_str[] = {"casefold",  "encode",       "expandtabs",  "format",    "format_map", "isascii",   "isdecimal", "isidentifier",
                                        "isnumeric", "isprintable",  "istitle",     "maketrans", "swapcase",   "translate", NULL};
static const char *const other_list[] = {"!", "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort", NULL};
static const char *const other_dict[] = {"fromkeys", "!", "clear", "pop", "popitem", "setdefault", "update", NULL};
static const char *const other_int[] = {"as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "imag", "numerator", "real",
                                        "to_bytes",         NULL};
static const char *const other_float[] = {"as_integer_ratio", "conjugate", "fromhex", "hex", "imag", "is_integer", "real", NULL};
static const char *const other_view[] = {"isdisjoint", "mapping", NULL};
static const char *const other_range[] = {"count", "index", "start", "step", "stop", NULL};
static const char *const other_macro[] = {"arguments", "caller", "catch_kwargs", "catch_varargs", "explicit_caller", "name", NULL};
static const char *const other_none[] = {NULL};

static const char *const *others_of(struct tpl_value self, const struct tpl_function **methods, size_t *n)
{
	*n = 0;
	switch (self.kind) {
	case TPL_STRING: *methods = tpl_string_methods; *n = tpl_string_method_count; return other_str;
	case TPL_LIST: *methods = list_methods; *n = COUNT(list_methods); return other_list;
	case TPL_TUPLE: *methods = list_methods; *n = 2; return other_none;
	case TPL_DICT: *methods = dict_methods; *n = COUNT(dict_methods); return other_dict;
	case TPL_INT:
	case TPL_BOOL: return other_int;
	case TPL_FLOAT: return other_float;
	case TPL_VIEW: return other_view;
	case TPL_RANGE: return other_range;
	case TPL_MACRO: return other_macro;
	default: return other_none;
	}
}

enum status tpl_method_bind(struct tpl_run *run, struct tpl_value self, const struct tpl_function *function, struct tpl_value *out)
{
	struct tpl_method *method;
	TRY(TPL_NEW(run, method, 1));
	*method = (struct tpl_method){.self = self, .function = function};
	*out = (struct tpl_value){.kind = TPL_METHOD, .method = method};
	return STATUS_OK;
}

enum status tpl_method_find(struct tpl_run *run, struct tpl_value self, const struct tpl_string *name, struct tpl_value *out, bool *found)
{
	const struct tpl_function *methods = NULL;
	size_t n;
	bool hidden = false;
	const char *const *others = others_of(self, &methods, &n);
	const struct tpl_function *method = tpl_function_find(methods, n, name);
	*found = true;
	if (method) return tpl_method_bind(run, self, method, out);
	for (; *others; others++) {
		if (**others == '!') hidden = true;
		if (!tpl_string_is(name, *others)) continue;
		if (!hidden) return FAIL(run->err, UNSUPPORTED, "'%s' of a %s is not implemented", *others, tpl_kind_name(self));
		*out = tpl_undefined(name);
		return STATUS_OK;
	}
	*found = false;
	return STATUS_OK;
}
