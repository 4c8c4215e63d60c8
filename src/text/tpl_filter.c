/* Filters on single values, and the way from a name to a filter. Signatures are Jinja's. */
#include "text/tpl_filter.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tpl_eval.h"
#include "text/tpl_format.h"
#include "text/tpl_json.h"
#include "text/tpl_loop.h"
#include "text/tpl_method.h"
#include "text/tpl_ops.h"
#include "text/utf8.h"

#define FILTER(name) static enum status name(struct tpl_run *run, struct tpl_value in, const struct tpl_bound *got, struct tpl_value *out)

static const struct tpl_string empty = {.data = ""}, space = {.data = " ", .size = 1, .chars = 1};

/* ---- text ---- */

static enum status cased(struct tpl_run *run, struct tpl_value in, enum tpl_case to, struct tpl_value *out)
{
	TRY(tpl_soft_str(run, in, &in));
	return tpl_change_case(run, in.string, to, out);
}

FILTER(upper) { (void)got; return cased(run, in, TPL_UPPER, out); }
FILTER(lower) { (void)got; return cased(run, in, TPL_LOWER, out); }
FILTER(capitalize) { (void)got; return cased(run, in, TPL_CAPITALIZE, out); }

static bool starts_word(char c)
{
	return c && strchr("- \t\n\r\v\f({[<", c);
}

FILTER(title) /* unlike str.title(), words begin after blanks, hyphens and opening brackets only */
{
	(void)got;
	struct tpl_text t = {0};
	TRY(tpl_soft_str(run, in, &in));
	const struct tpl_string *s = in.string;
	for (size_t i = 0; i < s->size;) {
		size_t from = i;
		bool separator = starts_word(s->data[i]);
		while (i < s->size && starts_word(s->data[i]) == separator) i++;
		size_t first = separator ? 0 : utf8_length(s->data[from]);
		TRY(tpl_text_cased(run, &t, s, from, from + first, TPL_UPPER));
		TRY(tpl_text_cased(run, &t, s, from + first, i, TPL_LOWER));
	}
	return tpl_text_finish(run, &t, false, out);
}

FILTER(trim)
{
	const struct tpl_string *chars = NULL;
	TRY(tpl_soft_str(run, in, &in));
	if (got->at[0] && got->at[0]->kind != TPL_NONE) TRY(tpl_arg_string(run, got->at[0], &chars));
	return tpl_strip(run, in.string, chars, true, true, out);
}

FILTER(replace)
{
	struct tpl_value from, to;
	int64_t limit;
	TRY(tpl_str(run, in, &in));
	TRY(tpl_str(run, *got->at[0], &from));
	TRY(tpl_str(run, *got->at[1], &to));
	TRY(tpl_arg_int(run, got->at[2] && got->at[2]->kind == TPL_NONE ? NULL : got->at[2], -1, &limit));
	return tpl_replace(run, in.string, from.string, to.string, limit, out);
}

FILTER(center)
{
	int64_t width;
	TRY(tpl_soft_str(run, in, &in));
	TRY(tpl_arg_int(run, got->at[0], 80, &width));
	return tpl_center(run, in.string, width, out);
}

FILTER(string) { (void)got; return tpl_soft_str(run, in, out); }
FILTER(escape) { (void)got; return tpl_escape(run, in, out); }

FILTER(force_escape)
{
	(void)got;
	TRY(tpl_str(run, in, &in));
	return tpl_escape(run, in, out);
}

FILTER(safe)
{
	(void)got;
	struct tpl_string *made;
	TRY(tpl_soft_str(run, in, &in));
	TRY(TPL_NEW(run, made, 1));
	*made = *in.string;
	made->markup = true;
	*out = tpl_string(made);
	return STATUS_OK;
}

FILTER(format)
{
	struct tpl_seq args = {.items = got->all->values, .count = got->all->count};
	if (got->all->keyword_count) return FAIL(run->err, UNSUPPORTED, "format with keywords is not implemented");
	TRY(tpl_soft_str(run, in, &in));
	return tpl_percent(run, in.string, tpl_seq(TPL_TUPLE, &args), out);
}

/* The text that indents: so many blanks, or a string as it is. */
static enum status indentation(struct tpl_run *run, const struct tpl_value *width, int64_t fallback, struct tpl_value *out)
{
	struct tpl_text t = {0};
	int64_t n;
	if (width && width->kind == TPL_STRING) {
		*out = *width;
		return STATUS_OK;
	}
	TRY(tpl_arg_int(run, width, fallback, &n));
	TRY(tpl_text_repeat(run, &t, &space, n > 0 ? (size_t)n : 0));
	return tpl_text_finish(run, &t, false, out);
}

FILTER(indent)
{
	struct tpl_value by;
	struct tpl_seq *lines;
	struct tpl_text t = {0}, source = {0};
	const struct tpl_string *s;
	bool blank = tpl_arg_true(got->at[2]);
	TRY(tpl_arg_string(run, &in, &s));
	TRY(indentation(run, got->at[0], 4, &by));
	TRY(tpl_text_string(run, &source, s));
	TRY(tpl_text_puts(run, &source, "\n")); /* so that there is a line */
	TRY(tpl_text_finish(run, &source, s->markup, &in));
	TRY(tpl_split_lines(run, in.string, false, &lines));
	for (size_t i = 0; i < lines->count; i++) {
		const struct tpl_string *line = lines->items[i].string;
		if (i) TRY(tpl_text_puts(run, &t, "\n"));
		if (i ? blank || line->size > 0 : tpl_arg_true(got->at[1])) TRY(tpl_text_string(run, &t, by.string));
		TRY(tpl_text_string(run, &t, line));
	}
	return tpl_text_finish(run, &t, s->markup, out);
}

FILTER(truncate)
{
	const struct tpl_string *s, *end = NULL;
	int64_t length, leeway;
	size_t cut;
	struct tpl_value head;
	struct tpl_text t = {0};
	size_t chars;
	TRY(tpl_arg_int(run, got->at[0], 255, &length));
	if (got->at[2]) TRY(tpl_arg_string(run, got->at[2], &end));
	TRY(tpl_arg_int(run, got->at[3] && got->at[3]->kind == TPL_NONE ? NULL : got->at[3], 5, &leeway));
	int64_t end_chars = end ? (int64_t)end->chars : 3;
	if (length < end_chars || leeway < 0 || length > INT64_MAX - leeway) return FAIL(run->err, BAD_INPUT, "truncate: the length or the leeway is out of range");
	*out = in;
	if (tpl_length(in, &chars) && (int64_t)chars <= length + leeway) return STATUS_OK; /* whatever it is */
	TRY(tpl_arg_string(run, &in, &s));
	TRY(tpl_string_offset(run, s, (size_t)(length - end_chars), &cut));
	TRY(tpl_string_cut(run, s, 0, cut, &head));
	const char *blank = head.string->size ? memrchr(head.string->data, ' ', head.string->size) : NULL;
	size_t keep = !tpl_arg_true(got->at[1]) && blank ? (size_t)(blank - head.string->data) : head.string->size;
	TRY(tpl_text_cut(run, &t, head.string, 0, keep));
	TRY(end ? tpl_text_string(run, &t, end) : tpl_text_puts(run, &t, "..."));
	return tpl_text_finish(run, &t, s->markup, out);
}

FILTER(wordcount)
{
	(void)got;
	int64_t words = 0;
	bool inside = false;
	TRY(tpl_soft_str(run, in, &in));
	TRY(tpl_pay_bytes(run, in.string->size));
	for (size_t i = 0; i < in.string->size;) {
		uint32_t cp;
		i += utf8_decode(in.string->data + i, in.string->size - i, &cp);
		bool word = cp == '_' || tpl_is_alnum(cp);
		words += word && !inside;
		inside = word;
	}
	*out = tpl_int(words);
	return STATUS_OK;
}

/* ---- numbers ---- */

/* The text without white space around it and with single underscores between digits gone; false if it is too long or not ASCII. */
static bool number_text(const struct tpl_string *s, char *out, size_t room)
{
	size_t n = 0, from = 0, to = s->size;
	uint32_t cp;
	for (size_t k; from < to && (k = utf8_decode(s->data + from, to - from, &cp), tpl_is_space(cp)); from += k) {}
	while (to > from) {
		size_t start = to - 1;
		while (start > from && ((unsigned char)s->data[start] & 0xC0) == 0x80) start--;
		(void)utf8_decode(s->data + start, s->size - start, &cp);
		if (!tpl_is_space(cp)) break;
		to = start;
	}
	for (size_t i = from; i < to; i++) {
		unsigned char c = (unsigned char)s->data[i];
		if (c == '_' && i > from && i + 1 < to && s->data[i - 1] != '_' && s->data[i + 1] != '_') continue;
		if (c <= ' ' || c >= 0x7F || n == room - 1) return false;
		out[n++] = (char)c;
	}
	out[n] = 0;
	return n > 0;
}

static bool float_of(const struct tpl_string *s, double *out)
{
	char text[512], *end;
	if (!number_text(s, text, sizeof text)) return false;
	if (strpbrk(text, "xX_(")) return false; /* strtod knows hexadecimal and nan(...) */
	*out = strtod(text, &end);
	return *end == 0;
}

enum int_text { INT_TEXT_BAD, INT_TEXT_GOOD, INT_TEXT_LARGE };

static enum int_text int_of(const struct tpl_string *s, int64_t base, int64_t *out)
{
	char text[512], *p = text;
	if (!number_text(s, text, sizeof text)) return INT_TEXT_BAD;
	bool negative = *p == '-';
	p += *p == '-' || *p == '+';
	int prefix = p[0] != '0' ? 0 : (p[1] | 32) == 'x' ? 16 : (p[1] | 32) == 'o' ? 8 : (p[1] | 32) == 'b' ? 2 : 0;
	if (prefix && (base == prefix || base == 0)) {
		p += 2;
		base = prefix;
	} else if (base == 0) {
		base = 10;
		if (p[0] == '0' && strspn(p, "0") != strlen(p)) return INT_TEXT_BAD;
	}
	if (!*p) return INT_TEXT_BAD;
	__int128 value = 0;
	bool large = false;
	for (; *p; p++) {
		int digit = *p >= '0' && *p <= '9' ? *p - '0' : (*p | 32) >= 'a' && (*p | 32) <= 'z' ? (*p | 32) - 'a' + 10 : 99;
		if (digit >= base) return INT_TEXT_BAD;
		if (!large) value = value * base + digit;
		large = large || value > (__int128)INT64_MAX + 1;
	}
	if (negative) value = -value;
	if (large || value > INT64_MAX || value < INT64_MIN) return INT_TEXT_LARGE;
	*out = (int64_t)value;
	return INT_TEXT_GOOD;
}

static enum status too_large(struct tpl_run *run)
{
	return FAIL(run->err, UNSUPPORTED, "an integer leaves the 64 bits that are implemented");
}

FILTER(to_int)
{
	int64_t base, i;
	double d = NAN;
	TRY(tpl_arg_int(run, got->at[1], 10, &base));
	if (in.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, in);
	if (in.kind == TPL_STRING) {
		if (base != 0 && (base < 2 || base > 36)) i = INT_TEXT_BAD; /* Python's ValueError, caught */
		else {
			enum int_text read = int_of(in.string, base, &i);
			if (read == INT_TEXT_LARGE) return too_large(run);
			if (read == INT_TEXT_GOOD) {
				*out = tpl_int(i);
				return STATUS_OK;
			}
		}
		if (!float_of(in.string, &d)) d = NAN;
		if (isinf(d)) d = NAN;
	} else if (tpl_as_int(in, &i)) {
		*out = tpl_int(i);
		return STATUS_OK;
	} else if (in.kind == TPL_FLOAT) d = in.real;
	if (isnan(d)) {
		*out = got->at[0] ? *got->at[0] : tpl_int(0);
		return STATUS_OK;
	}
	if (isinf(d)) return FAIL(run->err, BAD_INPUT, "int: an infinite float");
	if (!(d >= -0x1p63 && d < 0x1p63)) return too_large(run);
	*out = tpl_int((int64_t)d);
	return STATUS_OK;
}

FILTER(to_float)
{
	double d;
	if (in.kind == TPL_UNDEFINED) return tpl_fail_undefined(run, in);
	if (tpl_as_number(in, &d) || (in.kind == TPL_STRING && float_of(in.string, &d))) *out = tpl_float(d);
	else *out = got->at[0] ? *got->at[0] : tpl_float(0);
	return STATUS_OK;
}

FILTER(absolute)
{
	(void)got;
	int64_t i;
	if (in.kind == TPL_FLOAT) *out = tpl_float(fabs(in.real));
	else if (!tpl_as_int(in, &i)) return FAIL(run->err, BAD_INPUT, "abs of a %s", tpl_kind_name(in));
	else if (i < 0) return tpl_negate(run, in, out);
	else *out = tpl_int(i);
	return STATUS_OK;
}

FILTER(round_to)
{
	int64_t precision, i;
	double d;
	const struct tpl_string *method = NULL;
	char text[400];
	TRY(tpl_arg_int(run, got->at[0], 0, &precision));
	if (got->at[1]) TRY(tpl_arg_string(run, got->at[1], &method));
	bool up = method && tpl_string_is(method, "ceil"), down = method && tpl_string_is(method, "floor");
	if (method && !up && !down && !tpl_string_is(method, "common")) return FAIL(run->err, BAD_INPUT, "round: the method is common, ceil or floor");
	if (!tpl_as_number(in, &d)) return FAIL(run->err, BAD_INPUT, "round of a %s", tpl_kind_name(in));
	if (precision < 0 || precision > 22) return FAIL(run->err, UNSUPPORTED, "round to a precision below 0 or above 22 is not implemented");
	if (up || down) {
		double scale = pow(10, (double)precision);
		if (!isfinite(d)) return FAIL(run->err, BAD_INPUT, "round of a float that is not finite");
		*out = tpl_float((up ? ceil(d * scale) : floor(d * scale)) / scale + 0.0);
	} else if (tpl_as_int(in, &i)) *out = tpl_int(i);
	else {
		snprintf(text, sizeof text, "%.*f", (int)precision, d); /* exact decimal, ties to even: what Python does */
		*out = tpl_float(strtod(text, NULL));
	}
	return STATUS_OK;
}

/* ---- any value ---- */

FILTER(fallback)
{
	(void)run;
	bool replace_it = in.kind == TPL_UNDEFINED || (tpl_arg_true(got->at[1]) && !tpl_truth(in));
	*out = !replace_it ? in : got->at[0] ? *got->at[0] : tpl_string(&empty);
	return STATUS_OK;
}

FILTER(length)
{
	(void)got;
	size_t n;
	if (in.kind == TPL_LOOP) TRY(tpl_loop_length(run, in.loop, &n));
	else if (!tpl_length(in, &n)) return FAIL(run->err, BAD_INPUT, "a %s has no length", tpl_kind_name(in));
	*out = tpl_int((int64_t)n);
	return STATUS_OK;
}

FILTER(attribute)
{
	const struct tpl_string *name;
	bool found;
	TRY(tpl_arg_string(run, got->at[0], &name));
	if (in.kind != TPL_DICT) return tpl_get_attr(run, in, name, out);
	TRY(tpl_method_find(run, in, name, out, &found));
	if (!found) *out = tpl_undefined(name);
	return STATUS_OK;
}

static enum status separators(struct tpl_run *run, const struct tpl_value *given, struct tpl_json_out *how)
{
	if (!given || given->kind == TPL_NONE) return STATUS_OK;
	struct tpl_seq *pair;
	TRY(tpl_collect(run, *given, &pair));
	if (pair->count != 2) return FAIL(run->err, BAD_INPUT, "tojson: separators are two strings");
	TRY(tpl_arg_string(run, &pair->items[0], &how->item_separator));
	return tpl_arg_string(run, &pair->items[1], &how->key_separator);
}

FILTER(to_json)
{
	static const struct tpl_string comma = {.data = ",", .size = 1, .chars = 1}, comma_space = {.data = ", ", .size = 2, .chars = 2},
	                               colon = {.data = ": ", .size = 2, .chars = 2};
	struct tpl_text t = {0};
	struct tpl_json_out how = {.ensure_ascii = tpl_arg_true(got->at[0]), .sort_keys = tpl_arg_true(got->at[3]), .key_separator = &colon};
	const struct tpl_value *indent = got->at[1];
	how.indented = indent && indent->kind != TPL_NONE;
	how.item_separator = how.indented ? &comma : &comma_space;
	if (how.indented) {
		struct tpl_value by;
		TRY(indentation(run, indent, 0, &by));
		how.indent = by.string;
	}
	TRY(separators(run, got->at[2], &how));
	TRY(tpl_dump_json(run, &t, in, &how));
	return tpl_text_finish(run, &t, false, out);
}

FILTER(from_json)
{
	(void)got;
	const struct tpl_string *text;
	TRY(tpl_arg_string(run, &in, &text));
	return tpl_parse_json(run, text, out);
}

static const struct tpl_function filters[] = {
	{"upper", "", upper},
	{"lower", "", lower},
	{"capitalize", "", capitalize},
	{"title", "", title},
	{"trim", "! chars", trim},
	{"replace", "old new ! count", replace},
	{"center", "! width", center},
	{"string", "", string},
	{"e", "", escape},
	{"escape", "", escape},
	{"forceescape", "", force_escape},
	{"safe", "", safe},
	{"format", "*", format},
	{"indent", "! width first blank", indent},
	{"truncate", "! length killwords end leeway", truncate},
	{"wordcount", "", wordcount},
	{"int", "! default base", to_int},
	{"float", "! default", to_float},
	{"abs", "", absolute},
	{"round", "! precision method", round_to},
	{"d", "! default_value boolean", fallback},
	{"default", "! default_value boolean", fallback},
	{"length", "", length},
	{"count", "", length},
	{"attr", "name", attribute},
	{"tojson", "! ensure_ascii indent separators sort_keys", to_json},
	{"from_json", "", from_json},
};

static const struct tpl_function *find_filter(const struct tpl_string *name)
{
	const struct tpl_function *f = tpl_function_find(filters, sizeof filters / sizeof *filters, name);
	return f ? f : tpl_function_find(tpl_sequence_filters, tpl_sequence_filter_count, name);
}

bool tpl_filter_exists(const struct tpl_string *name)
{
	return find_filter(name) != NULL;
}

enum status tpl_filter(struct tpl_run *run, const struct tpl_string *name, struct tpl_value in, const struct tpl_args *args, struct tpl_value *out)
{
	const struct tpl_function *f = find_filter(name);
	if (!f) return FAIL(run->err, UNSUPPORTED, "the filter '%.*s' is not known here", name->size < 64 ? (int)name->size : 64, name->data);
	TRY(tpl_descend(run)); /* map(map, ...) */
	TRY(tpl_function_call(run, f, in, args, out));
	run->depth++;
	return STATUS_OK;
}
