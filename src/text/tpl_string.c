/* What the methods of str do. See tpl_method.h. */
#include <string.h>

#include "text/tpl_format.h"
#include "text/tpl_method.h"
#include "text/utf8.h"

static uint32_t char_at(const struct tpl_string *s, size_t at)
{
	uint32_t cp;
	(void)utf8_decode(s->data + at, s->size - at, &cp);
	return cp;
}

static size_t char_before(const struct tpl_string *s, size_t end)
{
	do end--;
	while (((unsigned char)s->data[end] & 0xC0) == 0x80);
	return end;
}

/* `chars` has the character of `s` at `at`, or without `chars` it is white space. */
static bool strips(const struct tpl_string *s, size_t at, const struct tpl_string *chars)
{
	if (!chars) return tpl_is_space(char_at(s, at));
	size_t n = utf8_length(s->data[at]);
	for (size_t i = 0; i < chars->size; i += utf8_length(chars->data[i]))
		if (i + n <= chars->size && memcmp(chars->data + i, s->data + at, n) == 0) return true;
	return false;
}

enum status tpl_strip(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *chars, bool left, bool right, struct tpl_value *out)
{
	size_t from = 0, to = s->size, cost = chars ? chars->size / 8 + 1 : 1;
	while (left && from < to && strips(s, from, chars)) {
		TRY(tpl_pay(run, cost));
		from += utf8_length(s->data[from]);
	}
	while (right && to > from && strips(s, char_before(s, to), chars)) {
		TRY(tpl_pay(run, cost));
		to = char_before(s, to);
	}
	return tpl_string_cut(run, s, from, to, out);
}

/* The first occurrence in [from, s->size), or SIZE_MAX. */
static size_t find_from(const struct tpl_string *s, size_t from, const struct tpl_string *what)
{
	if (what->size == 0) return from;
	if (s->size - from < what->size) return SIZE_MAX;
	const char *hit = what->size == 1 ? memchr(s->data + from, what->data[0], s->size - from)
	                                  : memmem(s->data + from, s->size - from, what->data, what->size);
	return hit ? (size_t)(hit - s->data) : SIZE_MAX;
}

/* The last occurrence that ends at or before `end`, or SIZE_MAX. */
static enum status find_last(struct tpl_run *run, const struct tpl_string *s, size_t end, const struct tpl_string *what, size_t *out)
{
	*out = SIZE_MAX;
	if (what->size > end) return STATUS_OK;
	size_t at = end - what->size;
	for (;; at--) {
		if (what->size == 0 || (s->data[at] == what->data[0] && memcmp(s->data + at, what->data, what->size) == 0)) break;
		if (at % TPL_BYTES_PER_STEP == 0) TRY(tpl_pay(run, 1 + what->size / 8));
		if (at == 0) return STATUS_OK;
	}
	*out = at;
	return STATUS_OK;
}

static enum status replace_empty(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *to, int64_t limit, struct tpl_text *t)
{
	size_t at = 0;
	for (; limit != 0; limit--) {
		TRY(tpl_text_string(run, t, to));
		if (at == s->size) return STATUS_OK;
		size_t n = utf8_length(s->data[at]);
		TRY(tpl_text_cut(run, t, s, at, at + n));
		at += n;
	}
	return tpl_text_cut(run, t, s, at, s->size);
}

enum status tpl_replace(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *from, const struct tpl_string *to, int64_t limit,
                        struct tpl_value *out)
{
	struct tpl_text t = {0};
	size_t at = 0;
	TRY(tpl_pay_bytes(run, s->size));
	if (from->size == 0) {
		TRY(replace_empty(run, s, to, limit, &t));
		return tpl_text_finish(run, &t, s->markup, out);
	}
	for (; limit != 0; limit--) {
		size_t hit = find_from(s, at, from);
		if (hit == SIZE_MAX) break;
		TRY(tpl_text_cut(run, &t, s, at, hit));
		TRY(tpl_text_string(run, &t, to));
		at = hit + from->size;
	}
	TRY(tpl_text_cut(run, &t, s, at, s->size));
	return tpl_text_finish(run, &t, s->markup, out);
}

static size_t line_break(const struct tpl_string *s, size_t at)
{
	uint32_t cp = char_at(s, at);
	if (cp == '\r' && at + 1 < s->size && s->data[at + 1] == '\n') return 2;
	bool ends = (cp >= '\n' && cp <= '\r') || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
	return ends ? utf8_length(s->data[at]) : 0;
}

enum status tpl_split_lines(struct tpl_run *run, const struct tpl_string *s, bool keep_ends, struct tpl_seq **out)
{
	TRY(tpl_seq_new(run, 0, out));
	TRY(tpl_pay_bytes(run, s->size));
	for (size_t from = 0; from < s->size;) {
		size_t end = from, n = 0;
		while (end < s->size && (n = line_break(s, end)) == 0) end += utf8_length(s->data[end]);
		struct tpl_value line;
		TRY(tpl_string_cut(run, s, from, keep_ends ? end + n : end, &line));
		TRY(tpl_seq_push(run, *out, line));
		from = end + n;
	}
	return STATUS_OK;
}

enum status tpl_join(struct tpl_run *run, const struct tpl_string *separator, const struct tpl_seq *items, bool strings, struct tpl_value *out)
{
	struct tpl_text t = {0};
	for (size_t i = 0; i < items->count; i++) {
		if (strings && items->items[i].kind != TPL_STRING) return FAIL(run->err, BAD_INPUT, "join: item %zu is a %s, not a str", i, tpl_kind_name(items->items[i]));
		if (i) TRY(tpl_text_string(run, &t, separator));
		TRY(tpl_text_str(run, &t, items->items[i]));
	}
	return tpl_text_finish(run, &t, false, out);
}

static enum status pad(struct tpl_run *run, const struct tpl_string *s, size_t left, size_t right, const struct tpl_string *fill, struct tpl_value *out)
{
	struct tpl_text t = {0};
	TRY(tpl_text_repeat(run, &t, fill, left));
	TRY(tpl_text_string(run, &t, s));
	TRY(tpl_text_repeat(run, &t, fill, right));
	return tpl_text_finish(run, &t, s->markup, out);
}

static const struct tpl_string space = {.data = " ", .size = 1, .chars = 1}, zero = {.data = "0", .size = 1, .chars = 1};

static enum status center(struct tpl_run *run, const struct tpl_string *s, int64_t width, const struct tpl_string *fill, struct tpl_value *out)
{
	size_t total = width > (int64_t)s->chars ? (size_t)width - s->chars : 0;
	size_t left = total / 2 + (total & (size_t)width & 1); /* as CPython shares an odd one */
	return pad(run, s, left, total - left, fill, out);
}

enum status tpl_center(struct tpl_run *run, const struct tpl_string *s, int64_t width, struct tpl_value *out)
{
	return center(run, s, width, &space, out);
}

bool tpl_all_cased(const struct tpl_string *s, enum tpl_letter as)
{
	bool any = false;
	for (size_t i = 0; i < s->size; i += utf8_length(s->data[i])) {
		enum tpl_letter letter = tpl_letter_case(char_at(s, i));
		if (letter == TPL_LETTER_NONE) continue;
		if (letter != as) return false;
		any = true;
	}
	return any;
}

/* ---- the methods ---- */

#define METHOD(name) static enum status name(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, struct tpl_value *out)

/* An argument that may be absent or none. */
static enum status optional_string(struct tpl_run *run, const struct tpl_value *given, const struct tpl_string **out)
{
	*out = NULL;
	return given && given->kind != TPL_NONE ? tpl_arg_string(run, given, out) : STATUS_OK;
}

static enum status strip_by(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, bool left, bool right, struct tpl_value *out)
{
	const struct tpl_string *chars;
	TRY(optional_string(run, got->at[0], &chars));
	return tpl_strip(run, self.string, chars, left, right, out);
}

METHOD(strip) { return strip_by(run, self, got, true, true, out); }
METHOD(lstrip) { return strip_by(run, self, got, true, false, out); }
METHOD(rstrip) { return strip_by(run, self, got, false, true, out); }

METHOD(upper) { (void)got; return tpl_change_case(run, self.string, TPL_UPPER, out); }
METHOD(lower) { (void)got; return tpl_change_case(run, self.string, TPL_LOWER, out); }
METHOD(capitalize) { (void)got; return tpl_change_case(run, self.string, TPL_CAPITALIZE, out); }
METHOD(title) { (void)got; return tpl_change_case(run, self.string, TPL_TITLE, out); }

static enum status push_cut(struct tpl_run *run, struct tpl_seq *list, const struct tpl_string *s, size_t from, size_t to)
{
	struct tpl_value piece;
	TRY(tpl_string_cut(run, s, from, to, &piece));
	return tpl_seq_push(run, list, piece);
}

/* split() without a separator: runs of white space. */
static enum status split_space(struct tpl_run *run, const struct tpl_string *s, int64_t limit, struct tpl_seq *list)
{
	size_t at = 0;
	for (;; limit--) {
		while (at < s->size && tpl_is_space(char_at(s, at))) at += utf8_length(s->data[at]);
		if (at == s->size) return STATUS_OK;
		size_t from = at;
		if (limit == 0) return push_cut(run, list, s, from, s->size); /* the rest as it is */
		while (at < s->size && !tpl_is_space(char_at(s, at))) at += utf8_length(s->data[at]);
		TRY(push_cut(run, list, s, from, at));
	}
}

static enum status rsplit_space(struct tpl_run *run, const struct tpl_string *s, int64_t limit, struct tpl_seq *list)
{
	size_t end = s->size;
	for (;; limit--) {
		while (end > 0 && tpl_is_space(char_at(s, char_before(s, end)))) end = char_before(s, end);
		if (end == 0) return STATUS_OK;
		size_t from = end;
		if (limit == 0) return push_cut(run, list, s, 0, end);
		while (from > 0 && !tpl_is_space(char_at(s, char_before(s, from)))) from = char_before(s, from);
		TRY(push_cut(run, list, s, from, end));
		end = from;
	}
}

static enum status split_by(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *by, int64_t limit, struct tpl_seq *list)
{
	size_t at = 0;
	for (; limit != 0; limit--) {
		size_t hit = find_from(s, at, by);
		if (hit == SIZE_MAX) break;
		TRY(push_cut(run, list, s, at, hit));
		at = hit + by->size;
	}
	return push_cut(run, list, s, at, s->size);
}

static enum status rsplit_by(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *by, int64_t limit, struct tpl_seq *list)
{
	size_t end = s->size;
	for (; limit != 0; limit--) {
		size_t hit;
		TRY(find_last(run, s, end, by, &hit));
		if (hit == SIZE_MAX) break;
		TRY(push_cut(run, list, s, hit + by->size, end));
		end = hit;
	}
	return push_cut(run, list, s, 0, end);
}

static enum status any_split(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, bool right, struct tpl_value *out)
{
	const struct tpl_string *by;
	int64_t limit;
	struct tpl_seq *list;
	TRY(optional_string(run, got->at[0], &by));
	TRY(tpl_arg_int(run, got->at[1], -1, &limit));
	if (by && by->size == 0) return FAIL(run->err, BAD_INPUT, "split: the separator is empty");
	if (limit < 0) limit = INT64_MAX;
	TRY(tpl_pay_bytes(run, self.string->size));
	TRY(tpl_seq_new(run, 0, &list));
	if (by) TRY(right ? rsplit_by(run, self.string, by, limit, list) : split_by(run, self.string, by, limit, list));
	else TRY(right ? rsplit_space(run, self.string, limit, list) : split_space(run, self.string, limit, list));
	for (size_t i = 0; right && i < list->count / 2; i++) { /* found from the right */
		struct tpl_value swap = list->items[i];
		list->items[i] = list->items[list->count - 1 - i];
		list->items[list->count - 1 - i] = swap;
	}
	*out = tpl_seq(TPL_LIST, list);
	return STATUS_OK;
}

METHOD(split) { return any_split(run, self, got, false, out); }
METHOD(rsplit) { return any_split(run, self, got, true, out); }

METHOD(splitlines)
{
	struct tpl_seq *list;
	TRY(tpl_split_lines(run, self.string, tpl_arg_true(got->at[0]), &list));
	*out = tpl_seq(TPL_LIST, list);
	return STATUS_OK;
}

static enum status any_partition(struct tpl_run *run, const struct tpl_string *s, const struct tpl_bound *got, bool right, struct tpl_value *out)
{
	const struct tpl_string *by;
	struct tpl_seq *parts;
	size_t hit;
	TRY(tpl_arg_string(run, got->at[0], &by));
	if (by->size == 0) return FAIL(run->err, BAD_INPUT, "partition: the separator is empty");
	TRY(tpl_pay_bytes(run, s->size));
	if (right) TRY(find_last(run, s, s->size, by, &hit));
	else hit = find_from(s, 0, by);
	bool none = hit == SIZE_MAX;
	if (none) hit = right ? 0 : s->size;
	TRY(tpl_seq_new(run, 3, &parts));
	TRY(push_cut(run, parts, s, 0, hit));
	TRY(push_cut(run, parts, s, hit, none ? hit : hit + by->size));
	TRY(push_cut(run, parts, s, none ? hit : hit + by->size, s->size));
	*out = tpl_seq(TPL_TUPLE, parts);
	return STATUS_OK;
}

METHOD(partition) { return any_partition(run, self.string, got, false, out); }
METHOD(rpartition) { return any_partition(run, self.string, got, true, out); }

/* s[start:end] as Python's find, count, startswith and endswith cut it; *offset is the characters before it. `past`: start lies
 * beyond the string, where not even "" is found. */
static enum status window(struct tpl_run *run, const struct tpl_string *s, const struct tpl_value *start, const struct tpl_value *end,
                          const struct tpl_string **out, int64_t *offset, bool *past)
{
	int64_t n = (int64_t)s->chars, a, b;
	size_t from, to;
	struct tpl_value cut;
	TRY(tpl_arg_int(run, start && start->kind == TPL_NONE ? NULL : start, 0, &a));
	TRY(tpl_arg_int(run, end && end->kind == TPL_NONE ? NULL : end, n, &b));
	if (a < 0) a = a < -n ? 0 : a + n;
	if (b < 0) b = b < -n ? 0 : b + n;
	if (b > n) b = n;
	*past = a > b;
	if (*past) a = b;
	TRY(tpl_string_offset(run, s, (size_t)a, &from));
	TRY(tpl_string_offset(run, s, (size_t)b, &to));
	TRY(tpl_string_cut(run, s, from, to, &cut));
	*out = cut.string;
	*offset = a;
	return STATUS_OK;
}

static bool has_end(const struct tpl_string *s, const struct tpl_string *what, bool at_end)
{
	if (what->size > s->size) return false;
	return what->size == 0 || memcmp(at_end ? s->data + s->size - what->size : s->data, what->data, what->size) == 0;
}

static enum status any_with(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, bool at_end, struct tpl_value *out)
{
	const struct tpl_string *s, *what;
	int64_t offset;
	bool past, found = false;
	TRY(window(run, self.string, got->at[1], got->at[2], &s, &offset, &past));
	struct tpl_seq one = {.items = &(struct tpl_value){0}, .count = 1};
	one.items[0] = *got->at[0];
	const struct tpl_seq *choices = got->at[0]->kind == TPL_TUPLE ? got->at[0]->seq : &one;
	for (size_t i = 0; !found && i < choices->count; i++) {
		TRY(tpl_arg_string(run, &choices->items[i], &what));
		TRY(tpl_pay_bytes(run, what->size));
		found = !past && has_end(s, what, at_end);
	}
	*out = tpl_bool(found);
	return STATUS_OK;
}

METHOD(startswith) { return any_with(run, self, got, false, out); }
METHOD(endswith) { return any_with(run, self, got, true, out); }

static enum status any_find(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, bool last, int64_t *out)
{
	const struct tpl_string *s, *what;
	int64_t offset;
	bool past;
	size_t hit;
	struct tpl_value before;
	TRY(tpl_arg_string(run, got->at[0], &what));
	TRY(window(run, self.string, got->at[1], got->at[2], &s, &offset, &past));
	TRY(tpl_pay_bytes(run, s->size));
	if (last) TRY(find_last(run, s, s->size, what, &hit));
	else hit = find_from(s, 0, what);
	*out = -1;
	if (past || hit == SIZE_MAX) return STATUS_OK;
	TRY(tpl_string_cut(run, s, 0, hit, &before));
	*out = offset + (int64_t)before.string->chars;
	return STATUS_OK;
}

static enum status find_or_fail(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, bool last, bool fail, struct tpl_value *out)
{
	int64_t at;
	TRY(any_find(run, self, got, last, &at));
	if (fail && at < 0) return FAIL(run->err, BAD_INPUT, "index: the text is not there");
	*out = tpl_int(at);
	return STATUS_OK;
}

METHOD(find) { return find_or_fail(run, self, got, false, false, out); }
METHOD(rfind) { return find_or_fail(run, self, got, true, false, out); }
METHOD(str_index) { return find_or_fail(run, self, got, false, true, out); }
METHOD(str_rindex) { return find_or_fail(run, self, got, true, true, out); }

METHOD(str_count)
{
	const struct tpl_string *s, *what;
	int64_t offset, count = 0;
	bool past;
	TRY(tpl_arg_string(run, got->at[0], &what));
	TRY(window(run, self.string, got->at[1], got->at[2], &s, &offset, &past));
	TRY(tpl_pay_bytes(run, s->size));
	if (what->size == 0) count = (int64_t)s->chars + 1;
	else
		for (size_t at = 0; (at = find_from(s, at, what)) != SIZE_MAX; at += what->size) count++;
	*out = tpl_int(past ? 0 : count);
	return STATUS_OK;
}

METHOD(replace)
{
	const struct tpl_string *from, *to;
	int64_t limit;
	TRY(tpl_arg_string(run, got->at[0], &from));
	TRY(tpl_arg_string(run, got->at[1], &to));
	TRY(tpl_arg_int(run, got->at[2], -1, &limit));
	if (self.string->markup || from->markup || to->markup) return FAIL(run->err, UNSUPPORTED, "replace of a 'safe' string is not implemented");
	return tpl_replace(run, self.string, from, to, limit, out);
}

METHOD(join)
{
	struct tpl_seq *items;
	TRY(tpl_collect(run, *got->at[0], &items));
	if (self.string->markup) return FAIL(run->err, UNSUPPORTED, "join by a 'safe' string is not implemented");
	return tpl_join(run, self.string, items, true, out);
}

static enum status remove_end(struct tpl_run *run, const struct tpl_string *s, const struct tpl_bound *got, bool at_end, struct tpl_value *out)
{
	const struct tpl_string *what;
	TRY(tpl_arg_string(run, got->at[0], &what));
	size_t cut = has_end(s, what, at_end) ? what->size : 0;
	return tpl_string_cut(run, s, at_end ? 0 : cut, at_end ? s->size - cut : s->size, out);
}

METHOD(removeprefix) { return remove_end(run, self.string, got, false, out); }
METHOD(removesuffix) { return remove_end(run, self.string, got, true, out); }

static enum status padding(struct tpl_run *run, struct tpl_value self, const struct tpl_bound *got, const struct tpl_string **fill, int64_t *width, size_t *total)
{
	*fill = &space;
	*total = 0;
	TRY(tpl_arg_int(run, got->at[0], 0, width));
	if (got->at[1]) TRY(tpl_arg_string(run, got->at[1], fill));
	if ((*fill)->chars != 1) return FAIL(run->err, BAD_INPUT, "the text to fill with is not one character");
	*total = *width > (int64_t)self.string->chars ? (size_t)*width - self.string->chars : 0;
	return STATUS_OK;
}

METHOD(ljust)
{
	const struct tpl_string *fill;
	int64_t width;
	size_t total;
	TRY(padding(run, self, got, &fill, &width, &total));
	return pad(run, self.string, 0, total, fill, out);
}

METHOD(rjust)
{
	const struct tpl_string *fill;
	int64_t width;
	size_t total;
	TRY(padding(run, self, got, &fill, &width, &total));
	return pad(run, self.string, total, 0, fill, out);
}

METHOD(str_center)
{
	const struct tpl_string *fill;
	int64_t width;
	size_t total;
	TRY(padding(run, self, got, &fill, &width, &total));
	return center(run, self.string, width, fill, out);
}

METHOD(zfill)
{
	const struct tpl_string *s = self.string;
	int64_t width;
	struct tpl_text t = {0};
	TRY(tpl_arg_int(run, got->at[0], 0, &width));
	size_t total = width > (int64_t)s->chars ? (size_t)width - s->chars : 0, sign = s->size && (s->data[0] == '-' || s->data[0] == '+');
	TRY(tpl_text_cut(run, &t, s, 0, sign));
	TRY(tpl_text_repeat(run, &t, &zero, total));
	TRY(tpl_text_cut(run, &t, s, sign, s->size));
	return tpl_text_finish(run, &t, s->markup, out);
}

/* ---- questions about every character ---- */

static enum status every(struct tpl_run *run, const struct tpl_string *s, bool (*is)(uint32_t), struct tpl_value *out)
{
	bool all = s->size > 0;
	TRY(tpl_pay_bytes(run, s->size));
	for (size_t i = 0; all && i < s->size; i += utf8_length(s->data[i])) all = is(char_at(s, i));
	*out = tpl_bool(all);
	return STATUS_OK;
}

METHOD(str_isspace) { (void)got; return every(run, self.string, tpl_is_space, out); }
METHOD(str_isdigit) { (void)got; return every(run, self.string, tpl_is_digit, out); }
METHOD(str_isalpha) { (void)got; return every(run, self.string, tpl_is_alpha, out); }
METHOD(str_isalnum) { (void)got; return every(run, self.string, tpl_is_alnum, out); }
METHOD(str_isupper) { (void)got; *out = tpl_bool(tpl_all_cased(self.string, TPL_LETTER_UPPER)); return tpl_pay_bytes(run, self.string->size); }
METHOD(str_islower) { (void)got; *out = tpl_bool(tpl_all_cased(self.string, TPL_LETTER_LOWER)); return tpl_pay_bytes(run, self.string->size); }

const struct tpl_function tpl_string_methods[] = {
	{"strip", "! -", strip},           {"lstrip", "! -", lstrip},
	{"rstrip", "! -", rstrip},         {"split", "! sep maxsplit", split},
	{"rsplit", "! sep maxsplit", rsplit}, {"splitlines", "! keepends", splitlines},
	{"startswith", "- ! - -", startswith}, {"endswith", "- ! - -", endswith},
	{"upper", "", upper},              {"lower", "", lower},
	{"capitalize", "", capitalize},    {"title", "", title},
	{"replace", "- - ! -", replace},   {"join", "-", join},
	{"find", "- ! - -", find},         {"rfind", "- ! - -", rfind},
	{"index", "- ! - -", str_index},   {"rindex", "- ! - -", str_rindex},
	{"count", "- ! - -", str_count},   {"partition", "-", partition},
	{"rpartition", "-", rpartition},   {"removeprefix", "-", removeprefix},
	{"removesuffix", "-", removesuffix}, {"ljust", "- ! -", ljust},
	{"rjust", "- ! -", rjust},         {"center", "- ! -", str_center},
	{"zfill", "-", zfill},             {"isspace", "", str_isspace},
	{"isdigit", "", str_isdigit},          {"isalpha", "", str_isalpha},
	{"isalnum", "", str_isalnum},          {"isupper", "", str_isupper},
	{"islower", "", str_islower},
};
const size_t tpl_string_method_count = sizeof tpl_string_methods / sizeof *tpl_string_methods;
