#include "text/tpl_lex.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/tpl_ops.h"
#include "text/tpl_text.h"
#include "text/utf8.h"

#define MAX_BRACKETS 256

struct lexer {
	struct tpl_run *run;
	const char *source; /* LF only, final newline dropped */
	size_t n, at;
	bool line_starting; /* what was read last ended a line */
	char brackets[MAX_BRACKETS];
	size_t open;
	struct tpl_token *tokens;
	size_t count, capacity;
};

static enum status push(struct lexer *l, enum tpl_token_kind kind, struct tpl_token **out)
{
	if (l->count == l->capacity) {
		size_t capacity = l->capacity ? l->capacity * 2 : 256;
		struct tpl_token *tokens;
		TRY(TPL_NEW(l->run, tokens, capacity));
		if (l->count) memcpy(tokens, l->tokens, l->count * sizeof *tokens);
		l->tokens = tokens;
		l->capacity = capacity;
	}
	*out = &l->tokens[l->count++];
	**out = (struct tpl_token){.kind = kind, .line = l->run->line};
	return tpl_pay(l->run, 1);
}

/* Moves to `to` and counts the lines passed. */
static void advance(struct lexer *l, size_t to)
{
	for (size_t i = l->at; i < to; i++) l->run->line += l->source[i] == '\n';
	if (to > l->at) l->line_starting = l->source[to - 1] == '\n';
	l->at = to;
}

static bool is_at(const struct lexer *l, size_t at, const char *text)
{
	size_t n = strlen(text);
	return at + n <= l->n && memcmp(l->source + at, text, n) == 0;
}

static size_t space_length(const struct lexer *l, size_t at)
{
	uint32_t cp;
	if (at >= l->n) return 0;
	size_t n = utf8_decode(l->source + at, l->n - at, &cp);
	return tpl_is_space(cp) ? n : 0;
}

static size_t skip_space(const struct lexer *l, size_t at)
{
	for (size_t n; (n = space_length(l, at)) > 0;) at += n;
	return at;
}

/* The start of the white space that ends at `end`, not before `from`. */
static size_t skip_space_back(const struct lexer *l, size_t from, size_t end)
{
	while (end > from) {
		size_t start = end - 1;
		while (start > from && ((unsigned char)l->source[start] & 0xC0) == 0x80) start--;
		if (space_length(l, start) == 0) break;
		end = start;
	}
	return end;
}

/* If "%}", "-%}" or (with plus) "+%}" stands at `at` (`close` is its last two characters): where what it eats ends, else 0. */
static size_t end_of_tag(const struct lexer *l, size_t at, const char *close, bool plus, bool trim)
{
	if (plus && at < l->n && l->source[at] == '+' && is_at(l, at + 1, close)) return at + 3;
	if (at < l->n && l->source[at] == '-' && is_at(l, at + 1, close)) return skip_space(l, at + 3);
	if (!is_at(l, at, close)) return 0;
	return trim && is_at(l, at + 2, "\n") ? at + 3 : at + 2;
}

static bool at_word(const struct lexer *l, size_t *at, const char *word)
{
	size_t i = skip_space(l, *at);
	if (!is_at(l, i, word)) return false;
	*at = i + strlen(word);
	return true;
}

/* "{%- raw %}" at `at`: where its content starts, else 0. */
static size_t raw_begin(const struct lexer *l, size_t at)
{
	size_t i = at + 2;
	if (!is_at(l, at, "{%")) return 0;
	if (is_at(l, i, "-") || is_at(l, i, "+")) i++;
	if (!at_word(l, &i, "raw")) return 0;
	i = skip_space(l, i);
	if (is_at(l, i, "-%}")) return skip_space(l, i + 3);
	return is_at(l, i, "%}") ? i + 2 : 0;
}

static size_t raw_end(const struct lexer *l, size_t at)
{
	size_t i = at + 2;
	if (!is_at(l, at, "{%")) return 0;
	if (is_at(l, i, "-") || is_at(l, i, "+")) i++;
	if (!at_word(l, &i, "endraw")) return 0;
	return end_of_tag(l, skip_space(l, i), "%}", true, true);
}

/* The text from the current position to the tag at `end`, less what the tag's sign or lstrip_blocks takes away. */
static enum status push_data(struct lexer *l, size_t end, char sign, bool variable)
{
	size_t from = l->at, stop = end;
	if (sign == '-') stop = skip_space_back(l, from, end);
	else if (sign != '+' && !variable) {
		size_t line = end;
		while (line > from && l->source[line - 1] != '\n') line--;
		if ((line > from || l->line_starting) && skip_space_back(l, line, end) == line) stop = line;
	}
	if (stop > from) {
		struct tpl_token *token;
		TRY(push(l, TPL_TOKEN_DATA, &token));
		TRY(tpl_string_new(l->run, l->source + from, stop - from, false, &token->text));
	}
	advance(l, end);
	return STATUS_OK;
}

static char sign_at(const struct lexer *l, size_t at)
{
	return at < l->n && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : 0;
}

static enum status lex_comment(struct lexer *l)
{
	advance(l, l->at + 2 + (sign_at(l, l->at + 2) != 0));
	for (size_t i = l->at; i < l->n; i++) {
		size_t end = end_of_tag(l, i, "#}", true, true);
		if (!end) continue;
		advance(l, end);
		return STATUS_OK;
	}
	return FAIL(l->run->err, BAD_INPUT, "a comment does not end; close it with '#}'");
}

static enum status lex_raw(struct lexer *l, size_t content)
{
	advance(l, content);
	for (size_t i = l->at; i < l->n; i++) {
		size_t end = raw_end(l, i);
		if (!end) continue;
		TRY(push_data(l, i, sign_at(l, i + 2), false));
		advance(l, end);
		return STATUS_OK;
	}
	return FAIL(l->run->err, BAD_INPUT, "a raw block does not end; close it with '{%% endraw %%}'");
}

/* ---- constants ---- */

static enum status read_hex(struct lexer *l, size_t at, size_t end, size_t digits, uint32_t *out)
{
	*out = 0;
	for (size_t i = 0; i < digits; i++) {
		int digit = at + i < end ? utf8_hex_digit(l->source[at + i]) : -1;
		if (digit < 0) return FAIL(l->run->err, BAD_INPUT, "a truncated escape in a string");
		*out = *out << 4 | (uint32_t)digit;
	}
	if (*out > 0x10FFFF) return FAIL(l->run->err, BAD_INPUT, "an escape in a string is no character");
	if (*out >= 0xD800 && *out <= 0xDFFF) return FAIL(l->run->err, UNSUPPORTED, "a surrogate in a string is not implemented");
	return STATUS_OK;
}

/* The escape whose letter is at `*at`; moves past it. */
static enum status lex_escape(struct lexer *l, size_t *at, size_t end, struct tpl_text *t)
{
	static const char letters[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
	char c = l->source[*at], bytes[4];
	size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
	uint32_t cp = 0;
	if (digits) {
		TRY(read_hex(l, *at + 1, end, digits, &cp));
		*at += 1 + digits;
		return tpl_text_bytes(l->run, t, bytes, utf8_encode(cp, bytes), false);
	}
	if (c >= '0' && c <= '7') {
		for (size_t i = 0; i < 3 && *at < end && l->source[*at] >= '0' && l->source[*at] <= '7'; i++, ++*at) cp = cp * 8 + (uint32_t)(l->source[*at] - '0');
		return tpl_text_bytes(l->run, t, bytes, utf8_encode(cp, bytes), false);
	}
	if (c == 'N') return FAIL(l->run->err, UNSUPPORTED, "the escape '\\N' in a string is not implemented");
	if ((unsigned char)c >= 0x80) return FAIL(l->run->err, UNSUPPORTED, "a backslash before a character beyond ASCII is not implemented");
	++*at;
	if (c == '\n') return STATUS_OK;
	for (const char *p = letters; *p; p += 2)
		if (*p == c) return tpl_text_bytes(l->run, t, p + 1, 1, false);
	bytes[0] = '\\'; /* Python keeps an unknown escape as it is */
	bytes[1] = c;
	return tpl_text_bytes(l->run, t, bytes, 2, false);
}

static enum status lex_string(struct lexer *l)
{
	char quote = l->source[l->at];
	size_t from = l->at + 1, end = from;
	while (end < l->n && l->source[end] != quote) end += l->source[end] == '\\' ? 2 : 1;
	if (end >= l->n) return FAIL(l->run->err, BAD_INPUT, "a string does not end");
	struct tpl_token *token;
	TRY(push(l, TPL_TOKEN_CONSTANT, &token));
	if (!memchr(l->source + from, '\\', end - from)) TRY(tpl_string_new(l->run, l->source + from, end - from, false, &token->text));
	else {
		struct tpl_text t = {0};
		for (size_t i = from; i < end;) {
			size_t start = i;
			while (i < end && l->source[i] != '\\') i++;
			TRY(tpl_text_bytes(l->run, &t, l->source + start, i - start, false));
			if (i < end && i + 1 == end) return FAIL(l->run->err, BAD_INPUT, "a backslash ends a string");
			if (i++ < end) TRY(lex_escape(l, &i, end, &t));
		}
		TRY(tpl_text_finish(l->run, &t, false, &token->text));
	}
	advance(l, end + 1);
	return STATUS_OK;
}

/* Digits with single underscores between them; the end. */
static size_t digits_end(const struct lexer *l, size_t at, int base)
{
	size_t end = at;
	while (end < l->n) {
		size_t i = end + (end > at && l->source[end] == '_');
		int digit = i < l->n ? utf8_hex_digit(l->source[i]) : -1;
		if (digit < 0 || digit >= base) break;
		end = i + 1;
	}
	return end;
}

/* Where a float that starts at `at` ends, or 0. */
static size_t float_end(const struct lexer *l, size_t at)
{
	if (at > 0 && l->source[at - 1] == '.') return 0; /* a.0.1 is two subscripts */
	size_t whole = digits_end(l, at, 10), end = whole;
	if (whole == at) return 0;
	if (is_at(l, end, ".") && digits_end(l, end + 1, 10) > end + 1) end = digits_end(l, end + 1, 10);
	if (is_at(l, end, "e") || is_at(l, end, "E")) {
		size_t exponent = end + 1 + (sign_at(l, end + 1) != 0);
		if (digits_end(l, exponent, 10) > exponent) end = digits_end(l, exponent, 10);
	}
	return end > whole ? end : 0;
}

static enum status lex_number(struct lexer *l)
{
	size_t end = float_end(l, l->at), from = l->at, n = 0;
	bool real = end > 0;
	int base = 10;
	char text[64], *rest;
	if (!real && l->source[from] == '0' && from + 1 < l->n) {
		int c = tolower((unsigned char)l->source[from + 1]);
		int other = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
		size_t start = from + 2 + is_at(l, from + 2, "_");
		if (other && digits_end(l, start, other) > start) {
			base = other;
			end = digits_end(l, start, other);
			from += 2;
		} else { /* 0 and its repetitions only: 012 is two numbers */
			end = from + 1;
			while (is_at(l, end, "0") || is_at(l, end, "_0")) end += l->source[end] == '_' ? 2 : 1;
		}
	} else if (!real) end = digits_end(l, from, 10);
	for (size_t i = from; i < end; i++) {
		if (l->source[i] == '_') continue;
		if (n == sizeof text - 1) return FAIL(l->run->err, UNSUPPORTED, "a number of more than %zu digits is not implemented", sizeof text - 1);
		text[n++] = l->source[i];
	}
	text[n] = 0;
	struct tpl_token *token;
	TRY(push(l, TPL_TOKEN_CONSTANT, &token));
	errno = 0;
	if (real) token->text = tpl_float(strtod(text, &rest));
	else token->text = tpl_int(strtoll(text, &rest, base));
	if (!real && errno == ERANGE) return FAIL(l->run->err, UNSUPPORTED, "an integer leaves the 64 bits that are implemented");
	advance(l, end);
	return STATUS_OK;
}

/* ---- tags ---- */

static enum status lex_operator(struct lexer *l)
{
	static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
	char c = l->source[l->at];
	struct tpl_token *token;
	for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
		if (!is_at(l, l->at, two[i])) continue;
		TRY(push(l, TPL_TOKEN_OPERATOR, &token));
		token->op = TPL_OP(two[i][0], two[i][1]);
		advance(l, l->at + 2);
		return STATUS_OK;
	}
	if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c)) {
		uint32_t cp;
		size_t n = utf8_decode(l->source + l->at, l->n - l->at, &cp);
		return FAIL(l->run->err, BAD_INPUT, "unexpected character '%.*s' in a tag", cp < 0x20 ? 0 : (int)n, l->source + l->at);
	}
	if (strchr("([{", c)) {
		if (l->open == MAX_BRACKETS) return FAIL(l->run->err, UNSUPPORTED, "brackets nested deeper than %d", MAX_BRACKETS);
		l->brackets[l->open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
	} else if (strchr(")]}", c)) {
		if (l->open == 0 || l->brackets[--l->open] != c) return FAIL(l->run->err, BAD_INPUT, "unexpected '%c'", c);
	}
	TRY(push(l, TPL_TOKEN_OPERATOR, &token));
	token->op = c;
	advance(l, l->at + 1);
	return STATUS_OK;
}

static bool is_name_char(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* The inside of a tag up to and with its end. */
static enum status lex_tag(struct lexer *l, bool variable)
{
	struct tpl_token *token;
	TRY(push(l, variable ? TPL_TOKEN_VARIABLE_BEGIN : TPL_TOKEN_BLOCK_BEGIN, &token));
	advance(l, l->at + 2 + (sign_at(l, l->at + 2) != 0));
	for (;;) {
		size_t end = l->open == 0 ? end_of_tag(l, l->at, variable ? "}}" : "%}", !variable, !variable) : 0;
		if (end) {
			TRY(push(l, variable ? TPL_TOKEN_VARIABLE_END : TPL_TOKEN_BLOCK_END, &token));
			advance(l, end);
			return STATUS_OK;
		}
		size_t blank = skip_space(l, l->at);
		if (blank > l->at) {
			advance(l, blank);
			continue;
		}
		if (l->at == l->n) return FAIL(l->run->err, BAD_INPUT, "the template ends within a tag");
		char c = l->source[l->at];
		if (c == '"' || c == '\'') TRY(lex_string(l));
		else if (c >= '0' && c <= '9') TRY(lex_number(l));
		else if (is_name_char(c)) {
			size_t to = l->at;
			while (to < l->n && is_name_char(l->source[to])) to++;
			TRY(push(l, TPL_TOKEN_NAME, &token));
			TRY(tpl_string_new(l->run, l->source + l->at, to - l->at, false, &token->text));
			advance(l, to);
		} else TRY(lex_operator(l));
	}
}

static enum status lex_next(struct lexer *l)
{
	size_t tag = l->at;
	while (tag < l->n && !(l->source[tag] == '{' && tag + 1 < l->n && l->source[tag + 1] && strchr("{%#", l->source[tag + 1]))) tag++;
	if (tag == l->n) return push_data(l, tag, '+', true);
	char kind = l->source[tag + 1];
	size_t raw = raw_begin(l, tag);
	TRY(push_data(l, tag, sign_at(l, tag + 2), kind == '{'));
	if (raw) return lex_raw(l, raw);
	return kind == '#' ? lex_comment(l) : lex_tag(l, kind == '{');
}

/* CR LF and CR become LF; the last newline goes. */
static enum status normalize(struct lexer *l, const char *source, size_t n)
{
	char *text;
	TRY(tpl_pay_bytes(l->run, n));
	TRY(TPL_NEW(l->run, text, n + 1));
	for (size_t i = 0; i < n; i++) {
		if (source[i] == '\r' && i + 1 < n && source[i + 1] == '\n') continue;
		text[l->n++] = source[i] == '\r' ? '\n' : source[i];
	}
	if (l->n > 0 && text[l->n - 1] == '\n') l->n--;
	l->source = text;
	return STATUS_OK;
}

enum status tpl_lex(struct tpl_run *run, const char *source, size_t n, struct tpl_token **tokens, size_t *count)
{
	struct lexer l = {.run = run, .line_starting = true};
	run->line = 1;
	if (utf8_valid_prefix(source, n) < n) return FAIL(run->err, BAD_INPUT, "the template is not UTF-8");
	TRY(normalize(&l, source, n));
	while (l.at < l.n) TRY(lex_next(&l));
	struct tpl_token *end;
	TRY(push(&l, TPL_TOKEN_END, &end));
	*tokens = l.tokens;
	*count = l.count;
	return STATUS_OK;
}
