/* Classes of characters in a pattern: \s, \p{L}, [a-z&&[^q]]. See pattern_rewrite.h. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "text/pattern_rewrite.h"
#include "text/unicode.h"
#include "text/utf8.h"

#define ANY_CHARACTER "(?s:.)"

void char_class_fini(struct char_class *class)
{
	buf_fini(&class->items);
	buf_fini(&class->others);
}

enum status char_class_write(const struct char_class *class, struct buf *out, struct error *err)
{
	if (class->others.size == 0 && class->items.size == 0) return buf_puts(out, "(?!)", err);
	if (class->others.size == 0) return buf_printf(out, err, "[%s]", class->items.data);
	if (class->items.size > 0) return buf_printf(out, err, "(?:[%s]%s)", class->items.data, class->others.data);
	/* A single bracket stays bare: the compiler of PCRE2 repeats it much faster than a group. Items never hold a raw '|'. */
	bool bare = class->others.data[1] == '[' && !strchr(class->others.data + 1, '|');
	return buf_printf(out, err, bare ? "%s" : "(?:%s)", class->others.data + 1);
}

/* Adds the complement of `set` to `into`. */
static enum status add_negated(struct char_class *into, const struct char_class *set, struct error *err)
{
	if (set->others.size == 0 && set->items.size > 0) return buf_printf(&into->others, err, "|[^%s]", set->items.data);
	TRY(buf_puts(&into->others, "|(?!", err));
	TRY(char_class_write(set, &into->others, err));
	return buf_puts(&into->others, ")" ANY_CHARACTER, err);
}

static enum status add_class(struct char_class *into, const struct char_class *set, bool negated, struct error *err)
{
	if (negated) return add_negated(into, set, err);
	TRY(buf_append(&into->items, set->items.data, set->items.size, err));
	return buf_append(&into->others, set->others.data, set->others.size, err);
}

/* ---- properties ---- */

static enum status add_new_ranges(struct buf *items, const char *category, uint32_t from, struct error *err)
{
	struct unicode_range range;
	for (size_t i = 0; unicode_new_range(category, &i, &range);) {
		if (range.first < from) continue;
		TRY(buf_printf(items, err, "\\x{%X}-\\x{%X}", (unsigned)range.first, (unsigned)range.last));
	}
	return STATUS_OK;
}

static enum status add_category(struct char_class *into, const char *category, struct error *err)
{
	if (strcmp(category, "C") == 0) { /* unassigned code points have to lose the new ones: not an item, an alternative */
		TRY(buf_puts(&into->items, "\\p{Cc}\\p{Cf}\\p{Co}", err));
		TRY(add_new_ranges(&into->items, "C", 0, err));
		category = "Cn";
	}
	if (strcmp(category, "Cn") == 0) {
		TRY(buf_puts(&into->others, "|(?![", err));
		TRY(add_new_ranges(&into->others, "", 0, err));
		return buf_puts(&into->others, "])\\p{Cn}", err);
	}
	TRY(buf_printf(&into->items, err, "\\p{%s}", category));
	return add_new_ranges(&into->items, category, 0, err);
}

/* \w of the reference: Alphabetic, Mark, Decimal_Number, Connector_Punctuation; outside of brackets also the superscripts and
 * fractions of its Latin-1 table. The ranges from U+24B6 on are the circled letters. */
static enum status add_word(struct char_class *into, bool bare, struct error *err)
{
	static const char *const categories[] = {"L", "M", "Nd", "Nl", "Pc"};
	for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) TRY(add_category(into, categories[i], err));
	if (bare) TRY(buf_puts(&into->items, "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}", err));
	return buf_puts(&into->items, "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}", err);
}

static bool compiles(const char *pattern)
{
	int code;
	PCRE2_SIZE offset;
	pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
	pcre2_code_free(compiled);
	return compiled != NULL;
}

/* A name that is no general category: a script (the exact one, not Script_Extensions, PCRE2's default) or a binary property. */
static enum status add_named(struct char_class *into, const char *name, struct error *err)
{
	char test[80];
	snprintf(test, sizeof test, "\\p{sc:%s}", name);
	if (compiles(test)) {
		TRY(buf_puts(&into->items, test, err));
		return strcasecmp(name, "Han") == 0 ? add_new_ranges(&into->items, "Lo", 0x20000, err) : STATUS_OK;
	}
	snprintf(test, sizeof test, "\\p{%s}", name);
	if (!compiles(test)) return FAIL(err, UNSUPPORTED, "pattern: property '%s' is unknown; use a general category or a script", name);
	return buf_puts(&into->items, test, err);
}

static const char *category_of(const char *name)
{
	static const char *const pairs[][2] = {
		{"Letter", "L"}, {"Mark", "M"}, {"Number", "N"}, {"Punctuation", "P"}, {"Symbol", "S"}, {"Separator", "Z"}, {"Other", "C"},
		{"Uppercase_Letter", "Lu"}, {"Lowercase_Letter", "Ll"}, {"Decimal_Number", "Nd"}, {"Digit", "Nd"},
	};
	static const char categories[] = " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn ";
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
		if (strcasecmp(name, pairs[i][0]) == 0) return pairs[i][1];
	size_t n = strlen(name);
	for (const char *p = categories; n > 0 && (p = strstr(p, name)); p++)
		if (p[-1] == ' ' && p[n] == ' ') return name;
	return NULL;
}

/* After \p or \P. */
static enum status property(struct rewrite *rw, struct char_class *into, bool negated)
{
	char name[48];
	size_t n = 0;
	if (rw->p == rw->end || *rw->p != '{') return FAIL(rw->err, BAD_INPUT, "pattern: '{' expected after \\p in %.200s", rw->text);
	rw->p++;
	if (rw->p < rw->end && *rw->p == '^') {
		negated = !negated;
		rw->p++;
	}
	for (; rw->p < rw->end && *rw->p != '}'; rw->p++) {
		char c = *rw->p;
		bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
		if (!fine || n + 1 == sizeof name) return FAIL(rw->err, UNSUPPORTED, "pattern: property name not understood in %.200s", rw->text);
		name[n++] = c;
	}
	if (rw->p == rw->end) return FAIL(rw->err, BAD_INPUT, "pattern: '}' is missing in %.200s", rw->text);
	rw->p++;
	name[n] = 0;
	struct char_class set = {0};
	const char *category = category_of(name);
	enum status st = category ? add_category(&set, category, rw->err) : add_named(&set, name, rw->err);
	if (st == STATUS_OK) st = add_class(into, &set, negated, rw->err);
	char_class_fini(&set);
	return st;
}

static enum status add_simple_set(struct char_class *set, char letter, bool bare, struct error *err)
{
	switch (letter) {
	case 's': return buf_puts(&set->items, UNICODE_SPACE_ITEMS, err);
	case 'd': return add_category(set, "Nd", err);
	case 'h': return buf_puts(&set->items, "0-9a-fA-F", err);
	default: return add_word(set, bare, err);
	}
}

enum status rewrite_set(struct rewrite *rw, struct char_class *into, bool *is_set)
{
	char c = rw->end - rw->p >= 2 ? rw->p[1] : 0;
	*is_set = c && strchr("sSdDhHwWpP", c);
	if (!*is_set) return STATUS_OK;
	rw->p += 2;
	bool negated = c >= 'A' && c <= 'Z';
	char letter = negated ? (char)(c - 'A' + 'a') : c;
	if (letter == 'p') return property(rw, into, negated);
	struct char_class set = {0};
	enum status st = add_simple_set(&set, letter, rw->depth == 0, rw->err);
	if (st == STATUS_OK) st = add_class(into, &set, negated, rw->err);
	char_class_fini(&set);
	return st;
}

/* ---- brackets ---- */

static enum status posix_name(struct rewrite *rw, struct char_class *into)
{
	static const char *const names[][2] = {{"[:space:]", "s"}, {"[:digit:]", "d"}, {"[:word:]", "w"}, {"[:xdigit:]", "h"}};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		size_t n = strlen(names[i][0]);
		if ((size_t)(rw->end - rw->p) < n || memcmp(rw->p, names[i][0], n) != 0) continue;
		rw->p += n;
		return add_simple_set(into, names[i][1][0], false, rw->err);
	}
	return FAIL(rw->err, UNSUPPORTED, "pattern: this [:name:] is not implemented in %.200s", rw->text);
}

static enum status one_character(struct rewrite *rw, uint32_t *cp)
{
	if (*rw->p == '\\') return rewrite_escaped(rw, true, cp);
	rw->p += utf8_decode(rw->p, (size_t)(rw->end - rw->p), cp);
	return STATUS_OK;
}

static bool at(const struct rewrite *rw, const char *text)
{
	size_t n = strlen(text);
	return (size_t)(rw->end - rw->p) >= n && memcmp(rw->p, text, n) == 0;
}

/* One character or a range of them. A '-' that does not stand between two characters is itself. */
static enum status range(struct rewrite *rw, struct char_class *into)
{
	uint32_t first, last;
	TRY(one_character(rw, &first));
	last = first;
	bool set_follows = rw->end - rw->p >= 3 && rw->p[1] == '\\' && strchr("sSdDhHwWpP", rw->p[2]);
	if (at(rw, "-") && !at(rw, "-]") && !at(rw, "-[") && !at(rw, "-&&") && rw->end - rw->p >= 2 && !set_follows) {
		rw->p++;
		TRY(one_character(rw, &last));
		if (last < first) return FAIL(rw->err, BAD_INPUT, "pattern: a range runs backwards in %.200s", rw->text);
	}
	if (first == last) return buf_printf(&into->items, rw->err, "\\x{%X}", (unsigned)first);
	return buf_printf(&into->items, rw->err, "\\x{%X}-\\x{%X}", (unsigned)first, (unsigned)last);
}

static enum status item(struct rewrite *rw, struct char_class *into)
{
	if (at(rw, "[:")) return posix_name(rw, into);
	if (*rw->p == '[') return rewrite_bracket(rw, into);
	bool is_set = false;
	if (*rw->p == '\\') TRY(rewrite_set(rw, into, &is_set));
	return is_set ? STATUS_OK : range(rw, into);
}

/* The members up to ']'. `all` gets one lookahead per operand of && but the last, which stays in `last`. */
static enum status members(struct rewrite *rw, struct char_class *last, struct buf *all)
{
	if (at(rw, "]")) { /* first in the bracket, it is itself */
		rw->p++;
		TRY(buf_puts(&last->items, "\\]", rw->err));
	}
	while (!at(rw, "]")) {
		if (rw->p == rw->end) return FAIL(rw->err, BAD_INPUT, "pattern: ']' is missing in %.200s", rw->text);
		if (!at(rw, "&&")) {
			TRY(item(rw, last));
			continue;
		}
		rw->p += 2;
		TRY(buf_puts(all, "(?=", rw->err));
		TRY(char_class_write(last, all, rw->err));
		TRY(buf_puts(all, ")", rw->err));
		buf_clear(&last->items);
		buf_clear(&last->others);
	}
	rw->p++;
	return STATUS_OK;
}

enum status rewrite_bracket(struct rewrite *rw, struct char_class *into)
{
	struct char_class set = {0}, met = {0};
	struct buf all = {0};
	enum status st = STATUS_OK;
	if (++rw->depth > PATTERN_MAX_DEPTH) {
		st = FAIL(rw->err, BAD_INPUT, "pattern: nested deeper than %d levels", PATTERN_MAX_DEPTH);
		goto out;
	}
	rw->p++;
	bool negated = at(rw, "^");
	if (negated) rw->p++;
	TRY_GOTO(members(rw, &set, &all), out);
	if (all.size == 0) {
		TRY_GOTO(add_class(into, &set, negated, rw->err), out);
	} else {
		TRY_GOTO(char_class_write(&set, &all, rw->err), out);
		TRY_GOTO(buf_printf(&met.others, rw->err, "|%s", all.data), out);
		TRY_GOTO(add_class(into, &met, negated, rw->err), out);
	}
	rw->depth--;
out:
	char_class_fini(&set);
	char_class_fini(&met);
	buf_fini(&all);
	return st;
}
