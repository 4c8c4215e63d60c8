#include "text/pattern_rewrite.h"

#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

/* One open group. An isolated `(?i)` opens a group of its own that ends with the group around it. */
struct group {
	size_t start; /* in the output */
	bool isolated;
};

struct writer {
	struct rewrite in;
	struct buf *out;
	size_t atom;   /* where the last atom starts in the output: what a quantifier applies to */
	bool has_atom; /* false at the start of an alternative */
	int groups;
	struct group stack[PATTERN_MAX_DEPTH];
};

static bool follows(const struct rewrite *rw, const char *text)
{
	size_t n = strlen(text);
	return (size_t)(rw->end - rw->p) >= n && memcmp(rw->p, text, n) == 0;
}

static enum status unsupported(const struct rewrite *rw, const char *what)
{
	return FAIL(rw->err, UNSUPPORTED, "pattern: %s is not implemented, in %.200s", what, rw->text);
}

/* `min` to `max` hexadecimal digits. */
static enum status hex(struct rewrite *rw, int min, int max, uint32_t *cp)
{
	int count = 0;
	*cp = 0;
	for (; count < max && rw->p < rw->end && utf8_hex_digit(*rw->p) >= 0; count++) *cp = *cp << 4 | (uint32_t)utf8_hex_digit(*rw->p++);
	if (count < min || *cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000))
		return FAIL(rw->err, BAD_INPUT, "pattern: not the code of a character, in %.200s", rw->text);
	return STATUS_OK;
}

static enum status hex_escape(struct rewrite *rw, uint32_t *cp)
{
	if (!follows(rw, "{")) {
		TRY(hex(rw, 1, 2, cp));
		return *cp < 0x80 ? STATUS_OK : unsupported(rw, "a raw byte");
	}
	rw->p++;
	TRY(hex(rw, 1, 8, cp));
	if (!follows(rw, "}")) return FAIL(rw->err, BAD_INPUT, "pattern: '}' is missing in %.200s", rw->text);
	rw->p++;
	return STATUS_OK;
}

enum status rewrite_escaped(struct rewrite *rw, bool in_class, uint32_t *cp)
{
	static const char letters[] = "ntrfaev", values[] = "\n\t\r\f\a\x1b\v";
	if (rw->end - rw->p < 2) return FAIL(rw->err, BAD_INPUT, "pattern: ends in a backslash: %.200s", rw->text);
	rw->p++;
	char c = *rw->p;
	const char *known = strchr(letters, c);
	if (known && c) *cp = (unsigned char)values[known - letters];
	else if (c == 'b' && in_class) *cp = '\b';
	else if (c == 'x') return rw->p++, hex_escape(rw, cp);
	else if (c == 'u') return rw->p++, hex(rw, 4, 4, cp);
	else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return unsupported(rw, (char[]){'\\', c, 0});
	else {
		rw->p += utf8_decode(rw->p, (size_t)(rw->end - rw->p), cp);
		return STATUS_OK;
	}
	rw->p++;
	return STATUS_OK;
}

static void begin_atom(struct writer *w)
{
	w->atom = w->out->size;
	w->has_atom = true;
}

/* \b and \B by the reference's own \w. */
static enum status word_boundary(struct writer *w, bool negated)
{
	struct char_class word = {0};
	struct rewrite fake = {.p = "\\w", .text = "\\w", .err = w->in.err};
	fake.end = fake.p + 2;
	bool is_set;
	enum status st = rewrite_set(&fake, &word, &is_set);
	if (st == STATUS_OK) {
		const char *items = word.items.data;
		const char *format = negated ? "(?:(?<=[%s])(?=[%s])|(?<![%s])(?![%s]))" : "(?:(?<=[%s])(?![%s])|(?<![%s])(?=[%s]))";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		st = buf_printf(w->out, w->in.err, format, items, items, items, items);
#pragma GCC diagnostic pop
	}
	char_class_fini(&word);
	return st;
}

static enum status escape(struct writer *w)
{
	struct rewrite *rw = &w->in;
	char c = rw->end - rw->p >= 2 ? rw->p[1] : 0;
	begin_atom(w);
	if (c && strchr("AzZR", c)) {
		rw->p += 2;
		return buf_append(w->out, rw->p - 2, 2, rw->err);
	}
	if (c == 'b' || c == 'B') {
		rw->p += 2;
		return word_boundary(w, c == 'B');
	}
	struct char_class set = {0};
	bool is_set = false;
	enum status st = rewrite_set(rw, &set, &is_set);
	if (st == STATUS_OK && is_set) st = char_class_write(&set, w->out, rw->err);
	char_class_fini(&set);
	if (st != STATUS_OK || is_set) return st;
	uint32_t cp;
	TRY(rewrite_escaped(rw, false, &cp));
	return buf_printf(w->out, rw->err, "\\x{%X}", (unsigned)cp);
}

static enum status bracket(struct writer *w)
{
	struct char_class set = {0};
	begin_atom(w);
	enum status st = rewrite_bracket(&w->in, &set);
	if (st == STATUS_OK) st = char_class_write(&set, w->out, w->in.err);
	char_class_fini(&set);
	return st;
}

static enum status push_group(struct writer *w, bool isolated)
{
	if (w->groups == PATTERN_MAX_DEPTH) return FAIL(w->in.err, BAD_INPUT, "pattern: nested deeper than %d levels", PATTERN_MAX_DEPTH);
	w->stack[w->groups++] = (struct group){.start = w->out->size, .isolated = isolated};
	w->has_atom = false;
	return STATUS_OK;
}

/* At `(?` with option letters: (?i) (?i:...) (?-m) and so on. */
static enum status options(struct writer *w)
{
	struct rewrite *rw = &w->in;
	char text[16] = "(?";
	size_t n = 2;
	for (rw->p += 2; rw->p < rw->end && *rw->p != ')' && *rw->p != ':'; rw->p++) {
		char c = *rw->p == 'm' ? 's' : *rw->p; /* Ruby's m is everybody's s */
		if (!strchr("is-", c) || *rw->p == 's' || n + 2 >= sizeof text) return unsupported(rw, "a group of this kind");
		text[n++] = c;
	}
	if (rw->p == rw->end || n == 2) return FAIL(rw->err, BAD_INPUT, "pattern: a group is not closed in %.200s", rw->text);
	bool isolated = *rw->p++ == ')';
	text[n] = ':';
	TRY(push_group(w, isolated));
	return buf_puts(w->out, text, rw->err);
}

static enum status open_group(struct writer *w)
{
	static const char *const same[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
	struct rewrite *rw = &w->in;
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		if (!follows(rw, same[i])) continue;
		TRY(push_group(w, false));
		rw->p += strlen(same[i]);
		return buf_puts(w->out, same[i], rw->err);
	}
	if (follows(rw, "(?#")) {
		const char *close = memchr(rw->p, ')', (size_t)(rw->end - rw->p));
		if (!close) return FAIL(rw->err, BAD_INPUT, "pattern: a comment is not closed in %.200s", rw->text);
		rw->p = close + 1;
		return STATUS_OK;
	}
	if (follows(rw, "(?<") || follows(rw, "(*")) return unsupported(rw, "a group of this kind");
	if (follows(rw, "(?")) return options(w);
	TRY(push_group(w, false));
	rw->p++;
	return buf_puts(w->out, "(?:", rw->err); /* captures are of no use here: back references are refused */
}

/* Closes the innermost group and the isolated options inside of it. */
static enum status close_group(struct writer *w)
{
	bool isolated;
	do {
		if (w->groups == 0) return FAIL(w->in.err, BAD_INPUT, "pattern: ')' without '(' in %.200s", w->in.text);
		w->groups--;
		isolated = w->stack[w->groups].isolated;
		w->atom = w->stack[w->groups].start;
		TRY(buf_puts(w->out, ")", w->in.err));
	} while (isolated);
	w->has_atom = true;
	w->in.p++;
	return STATUS_OK;
}

/* Reads `{n}`, `{n,}`, `{,m}` or `{n,m}`; false, and nothing consumed, if it is not one of them. */
static bool interval(struct rewrite *rw, char text[32])
{
	const char *p = rw->p + 1;
	char low[8] = "0", high[8] = "";
	size_t n = 0;
	while (p < rw->end && *p >= '0' && *p <= '9' && n < 6) low[n++] = *p++;
	bool has_low = n > 0, comma = p < rw->end && *p == ',';
	if (has_low) low[n] = 0;
	if (comma) {
		p++;
		for (n = 0; p < rw->end && *p >= '0' && *p <= '9' && n < 6;) high[n++] = *p++;
		high[n] = 0;
	}
	if (p == rw->end || *p != '}' || (!has_low && !high[0])) return false;
	rw->p = p + 1;
	strcpy(text, "{");
	strcat(text, low);
	if (comma) strcat(text, ",");
	strcat(text, high);
	strcat(text, "}");
	return true;
}

/* Puts the last atom into a group, so that a second quantifier may follow. */
static enum status wrap_atom(struct writer *w)
{
	struct buf tail = {0};
	enum status st = buf_append(&tail, w->out->data + w->atom, w->out->size - w->atom, w->in.err);
	if (st == STATUS_OK) {
		w->out->size = w->atom;
		st = buf_printf(w->out, w->in.err, "(?:%s)", tail.data);
	}
	buf_fini(&tail);
	return st;
}

static enum status quantifier(struct writer *w)
{
	struct rewrite *rw = &w->in;
	char text[32] = {*rw->p, 0};
	bool counted = *rw->p == '{';
	if (counted && !interval(rw, text)) { /* a brace like any other character */
		begin_atom(w);
		rw->p++;
		return buf_puts(w->out, "\\{", rw->err);
	}
	if (!w->has_atom) return FAIL(rw->err, BAD_INPUT, "pattern: nothing to repeat in %.200s", rw->text);
	if (!counted) rw->p++;
	TRY(buf_puts(w->out, text, rw->err));
	bool fixed = counted && !strchr(text, ',');
	if (follows(rw, "?") && !fixed) {
		rw->p++;
		TRY(buf_puts(w->out, "?", rw->err));
	} else if (follows(rw, "+") && !counted) {
		rw->p++;
		TRY(buf_puts(w->out, "+", rw->err));
	}
	bool again = rw->p < rw->end && (strchr("*+?", *rw->p) || *rw->p == '{');
	return again ? wrap_atom(w) : STATUS_OK;
}

static enum status element(struct writer *w)
{
	struct rewrite *rw = &w->in;
	switch (*rw->p) {
	case '\\': return escape(w);
	case '[': return bracket(w);
	case '(': return open_group(w);
	case ')': return close_group(w);
	case '*':
	case '+':
	case '?':
	case '{': return quantifier(w);
	case '|':
		w->has_atom = false;
		rw->p++;
		return buf_puts(w->out, "|", rw->err);
	default: break;
	}
	begin_atom(w);
	size_t n = utf8_length(*rw->p);
	if (n > (size_t)(rw->end - rw->p)) n = (size_t)(rw->end - rw->p);
	rw->p += n;
	return buf_append(w->out, rw->p - n, n, rw->err);
}

enum status pattern_rewrite(struct buf *out, const char *text, size_t n, struct error *err)
{
	struct writer w = {.in = {.p = text, .end = text + n, .text = text, .err = err}, .out = out};
	if (memchr(text, 0, n)) return unsupported(&w.in, "U+0000");
	TRY(buf_reserve(out, n, err));
	while (w.in.p < w.in.end) TRY(element(&w));
	while (w.groups > 0) { /* isolated options last to the end */
		if (!w.stack[--w.groups].isolated) return FAIL(err, BAD_INPUT, "pattern: ')' is missing in %.200s", text);
		TRY(buf_puts(out, ")", err));
	}
	return STATUS_OK;
}
