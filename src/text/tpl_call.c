#include "text/tpl_call.h"

#include <stdio.h>
#include <string.h>

#include "text/tpl_eval.h"
#include "text/tpl_format.h"
#include "text/tpl_method.h"
#include "text/tpl_ops.h"
#include "text/utf8.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MAX_RANGE 100000 /* of Jinja's sandbox */

/* ---- built-ins ---- */

const struct tpl_function *tpl_function_find(const struct tpl_function *table, size_t count, const struct tpl_string *name)
{
	for (size_t i = 0; i < count; i++)
		if (tpl_string_is(name, table[i].name)) return &table[i];
	return NULL;
}

static enum status bind_positional(struct tpl_run *run, const struct tpl_function *f, const struct tpl_args *args, size_t count, struct tpl_bound *out)
{
	if (args->count > count) return FAIL(run->err, BAD_INPUT, "'%s' takes at most %zu arguments, got %zu", f->name, count, args->count);
	for (size_t i = 0; i < args->count; i++) out->at[i] = &args->values[i];
	return STATUS_OK;
}

/* The number of the parameter of that name, or `count`. */
static size_t parameter_of(char names[][16], size_t count, const struct tpl_string *name)
{
	size_t i = 0;
	while (i < count && (names[i][0] == '-' || !tpl_string_is(name, names[i]))) i++;
	return i;
}

static enum status bind(struct tpl_run *run, const struct tpl_function *f, const struct tpl_args *args, struct tpl_bound *out)
{
	char names[TPL_MAX_PARAMETERS][16];
	size_t count = 0, required = SIZE_MAX;
	*out = (struct tpl_bound){.all = args};
	if (strcmp(f->parameters, "*") == 0) return STATUS_OK;
	for (const char *p = f->parameters; *p;) {
		size_t n = strcspn(p, " ");
		if (*p == '!') required = count;
		else snprintf(names[count++], sizeof names[0], "%.*s", (int)n, p);
		p += n + (p[n] == ' ');
	}
	TRY(bind_positional(run, f, args, count, out));
	for (size_t k = 0; k < args->keyword_count; k++) {
		const struct tpl_string *name = args->keywords[k].name;
		size_t i = parameter_of(names, count, name);
		if (i == count || out->at[i])
			return FAIL(run->err, BAD_INPUT, "'%s' has no argument '%.*s', or has it twice", f->name, name->size < 64 ? (int)name->size : 64, name->data);
		out->at[i] = &args->keywords[k].value;
	}
	for (size_t i = 0; i < count && i < required; i++)
		if (!out->at[i]) return FAIL(run->err, BAD_INPUT, "'%s' needs its argument %zu", f->name, i + 1);
	return STATUS_OK;
}

enum status tpl_function_call(struct tpl_run *run, const struct tpl_function *f, struct tpl_value self, const struct tpl_args *args, struct tpl_value *out)
{
	struct tpl_bound got;
	TRY(bind(run, f, args, &got));
	return f->call(run, self, &got, out);
}

enum status tpl_arg_int(struct tpl_run *run, const struct tpl_value *given, int64_t fallback, int64_t *out)
{
	*out = fallback;
	if (!given) return STATUS_OK;
	if (given->kind == TPL_UNDEFINED) return tpl_fail_undefined(run, *given);
	if (!tpl_as_int(*given, out)) return FAIL(run->err, BAD_INPUT, "an argument is a %s, not an int", tpl_kind_name(*given));
	return STATUS_OK;
}

bool tpl_arg_true(const struct tpl_value *given)
{
	return given && tpl_truth(*given);
}

enum status tpl_arg_string(struct tpl_run *run, const struct tpl_value *given, const struct tpl_string **out)
{
	*out = NULL;
	if (given->kind == TPL_UNDEFINED) return tpl_fail_undefined(run, *given);
	if (given->kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "an argument is a %s, not a str", tpl_kind_name(*given));
	*out = given->string;
	return STATUS_OK;
}

/* ---- functions ---- */

static enum status make_range(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	int64_t start = 0, stop, step;
	struct tpl_range *range;
	TRY(tpl_arg_int(run, got->at[0], 0, &stop));
	if (got->at[1]) {
		start = stop;
		TRY(tpl_arg_int(run, got->at[1], 0, &stop));
	}
	TRY(tpl_arg_int(run, got->at[2], 1, &step));
	if (step == 0) return FAIL(run->err, BAD_INPUT, "range() by 0");
	int64_t span;
	if (__builtin_sub_overflow(stop, start, &span)) return FAIL(run->err, BAD_INPUT, "range() is too large");
	uint64_t distance = step > 0 ? (span > 0 ? (uint64_t)span : 0) : (span < 0 ? -(uint64_t)span : 0);
	uint64_t width = step > 0 ? (uint64_t)step : -(uint64_t)step;
	uint64_t count = distance ? (distance - 1) / width + 1 : 0;
	if (count > MAX_RANGE) return FAIL(run->err, BAD_INPUT, "range() has more than %d items", MAX_RANGE);
	TRY(TPL_NEW(run, range, 1));
	*range = (struct tpl_range){.start = start, .stop = stop, .step = step, .count = (size_t)count};
	*out = (struct tpl_value){.kind = TPL_RANGE, .range = range};
	return STATUS_OK;
}

static enum status add_pairs(struct tpl_run *run, struct tpl_dict *dict, struct tpl_value from)
{
	struct tpl_iter it;
	if (from.kind == TPL_DICT) {
		for (size_t i = 0; i < from.dict->count; i++) TRY(tpl_dict_set(run, dict, from.dict->pairs[i].key, from.dict->pairs[i].value));
		return STATUS_OK;
	}
	TRY(tpl_iter_init(run, from, &it));
	for (;;) {
		bool more;
		struct tpl_value pair;
		struct tpl_seq *items;
		TRY(tpl_iter_next(run, &it, &more, &pair));
		if (!more) return STATUS_OK;
		TRY(tpl_collect(run, pair, &items));
		if (items->count != 2) return FAIL(run->err, BAD_INPUT, "an item for a dict has %zu parts, not 2", items->count);
		TRY(tpl_dict_set(run, dict, items->items[0], items->items[1]));
	}
}

static enum status make_mapping(struct tpl_run *run, const struct tpl_args *args, enum tpl_kind kind, struct tpl_value *out)
{
	struct tpl_dict *dict;
	TRY(tpl_dict_new(run, &dict));
	if (args->count > 1) return FAIL(run->err, BAD_INPUT, "dict() and namespace() take at most 1 positional argument, got %zu", args->count);
	if (args->count == 1) TRY(add_pairs(run, dict, args->values[0]));
	for (size_t i = 0; i < args->keyword_count; i++) TRY(tpl_dict_set(run, dict, tpl_string(args->keywords[i].name), args->keywords[i].value));
	*out = (struct tpl_value){.kind = kind, .dict = dict};
	return STATUS_OK;
}

static enum status make_dict(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	return make_mapping(run, got->all, TPL_DICT, out);
}

static enum status make_namespace(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	return make_mapping(run, got->all, TPL_NAMESPACE, out);
}

static enum status raise_exception(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	(void)out;
	struct tpl_value text;
	TRY(tpl_soft_str(run, *got->at[0], &text));
	size_t n = text.string->size, room = sizeof((struct error *)0)->text - 1;
	if (n > room) {
		n = room;
		while (((unsigned char)text.string->data[n] & 0xC0) == 0x80) n--; /* whole characters */
	}
	run->raised = true;
	return FAIL(run->err, BAD_INPUT, "%.*s", (int)n, n ? text.string->data : "");
}

static enum status strftime_now(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	const struct tpl_string *format;
	TRY(tpl_arg_string(run, got->at[0], &format));
	if (!run->now) return FAIL(run->err, BAD_INPUT, "the template asks for the time, and none was given");
	return tpl_strftime(run, run->now, format, out);
}

static enum status not_here(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)
{
	(void)self;
	(void)got;
	(void)out;
	return FAIL(run->err, UNSUPPORTED, "the functions lipsum, cycler and joiner are not implemented");
}

enum status tpl_global(struct tpl_run *run, const struct tpl_string *name, struct tpl_value *out)
{
	static const struct tpl_function globals[] = {
		{"range", "- ! - -", make_range},        {"dict", "*", make_dict},   {"namespace", "*", make_namespace}, {"raise_exception", "message", raise_exception},
		{"strftime_now", "format", strftime_now}, {"lipsum", "*", not_here}, {"cycler", "*", not_here},          {"joiner", "*", not_here},
	};
	(void)run;
	const struct tpl_function *f = tpl_function_find(globals, COUNT(globals), name);
	*out = f ? (struct tpl_value){.kind = TPL_FUNCTION, .function = f} : tpl_undefined(name);
	return STATUS_OK;
}

/* ---- macros ---- */

const struct tpl_string *tpl_macro_name(const struct tpl_macro *macro)
{
	return macro->node->name;
}

static bool same_name(const struct tpl_string *a, const struct tpl_string *b)
{
	return a == b || (a->size == b->size && memcmp(a->data, b->data, a->size) == 0);
}

static enum status bind_parameter(struct tpl_run *run, struct tpl_frame *frame, const struct tpl_node *parameter, size_t number, const struct tpl_args *args,
                                  size_t *keywords_used)
{
	struct tpl_value v = tpl_undefined(parameter->name);
	bool given = number < args->count;
	if (given) v = args->values[number];
	for (size_t i = 0; !given && i < args->keyword_count; i++) {
		if (!same_name(args->keywords[i].name, parameter->name)) continue;
		v = args->keywords[i].value;
		given = true;
		++*keywords_used;
	}
	if (!given && parameter->a) TRY(tpl_eval(run, frame, parameter->a, &v)); /* may name the parameters before it */
	return tpl_frame_set(run, frame, parameter->name, v);
}

static enum status check_rest(struct tpl_run *run, const struct tpl_node *node, size_t parameters, const struct tpl_args *args, size_t keywords_used)
{
	if (node->takes_rest) return FAIL(run->err, UNSUPPORTED, "'varargs', 'kwargs' and 'caller' in a macro are not implemented");
	if (args->count > parameters) return FAIL(run->err, BAD_INPUT, "a macro takes at most %zu arguments, got %zu", parameters, args->count);
	if (keywords_used < args->keyword_count) return FAIL(run->err, BAD_INPUT, "a macro is called with a keyword that it does not take, or has already");
	return STATUS_OK;
}

static enum status call_macro(struct tpl_run *run, const struct tpl_macro *macro, const struct tpl_args *args, struct tpl_value *out)
{
	struct tpl_frame *frame;
	size_t number = 0, used = 0;
	TRY(tpl_descend(run));
	TRY(tpl_frame_new(run, macro->frame, &frame));
	for (const struct tpl_node *parameter = macro->node->other; parameter; parameter = parameter->next)
		TRY(bind_parameter(run, frame, parameter, number++, args, &used));
	TRY(check_rest(run, macro->node, number, args, used));
	TRY(tpl_exec_captured(run, frame, macro->node->list, out));
	run->depth++;
	return STATUS_OK;
}

enum status tpl_call(struct tpl_run *run, struct tpl_value callee, const struct tpl_args *args, struct tpl_value *out)
{
	switch (callee.kind) {
	case TPL_MACRO: return call_macro(run, callee.macro, args, out);
	case TPL_FUNCTION: return tpl_function_call(run, callee.function, tpl_none(), args, out);
	case TPL_METHOD: return tpl_function_call(run, callee.method->function, callee.method->self, args, out);
	case TPL_UNDEFINED: return tpl_fail_undefined(run, callee);
	default: return FAIL(run->err, BAD_INPUT, "a %s cannot be called", tpl_kind_name(callee));
	}
}
