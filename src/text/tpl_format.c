#include "text/tpl_format.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tpl_call.h"
#include "text/tpl_loop.h"
#include "text/tpl_ops.h"
#include "text/utf8.h"

/* ---- numbers ---- */

size_t tpl_float_repr(double d, char out[TPL_NUMBER_BYTES])
{
	if (isnan(d)) return (size_t)snprintf(out, TPL_NUMBER_BYTES, "nan");
	if (isinf(d)) return (size_t)snprintf(out, TPL_NUMBER_BYTES, d < 0 ? "-inf" : "inf");
	char digits[TPL_NUMBER_BYTES], sci[TPL_NUMBER_BYTES];
	for (int precision = 0; precision < 17; precision++) {
		snprintf(sci, sizeof sci, "%.*e", precision, d);
		if (strtod(sci, NULL) == d) break;
	}
	size_t n = 0;
	const char *p = sci;
	for (; *p != 'e'; p++)
		if (*p >= '0' && *p <= '9') digits[n++] = *p; /* whatever the locale puts between them */
	digits[n] = 0;
	int exponent = atoi(p + 1), k = (int)n;
	const char *sign = signbit(d) ? "-" : "";
	if (exponent < -4 || exponent >= 16)
		return (size_t)snprintf(out, TPL_NUMBER_BYTES, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "", digits + 1, exponent < 0 ? '-' : '+',
		                        abs(exponent));
	if (exponent < 0) return (size_t)snprintf(out, TPL_NUMBER_BYTES, "%s0.%.*s%s", sign, -exponent - 1, "000", digits);
	if (k <= exponent + 1) return (size_t)snprintf(out, TPL_NUMBER_BYTES, "%s%s%.*s.0", sign, digits, exponent + 1 - k, "0000000000000000");
	return (size_t)snprintf(out, TPL_NUMBER_BYTES, "%s%.*s.%s", sign, exponent + 1, digits, digits + exponent + 1);
}

static enum status put_int(struct tpl_run *run, struct tpl_text *t, int64_t i)
{
	char text[TPL_NUMBER_BYTES];
	return tpl_text_bytes(run, t, text, (size_t)snprintf(text, sizeof text, "%" PRId64, i), false);
}

static enum status put_float(struct tpl_run *run, struct tpl_text *t, double d)
{
	char text[TPL_NUMBER_BYTES];
	return tpl_text_bytes(run, t, text, tpl_float_repr(d, text), false);
}

/* ---- repr ---- */

static enum status repr_char(struct tpl_run *run, struct tpl_text *t, uint32_t cp, char quote, bool user)
{
	char text[16];
	int n;
	if (cp == (uint32_t)quote || cp == '\\') n = snprintf(text, sizeof text, "\\%c", (int)cp);
	else if (cp == '\n' || cp == '\r' || cp == '\t') n = snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
	else if (tpl_is_printable(cp)) n = (int)utf8_encode(cp, text);
	else n = snprintf(text, sizeof text, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
	return tpl_text_bytes(run, t, text, (size_t)n, user);
}

static bool needs_escape(unsigned char c, char quote)
{
	return c < 0x20 || c >= 0x7F || c == '\\' || c == (unsigned char)quote;
}

static enum status repr_string(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s)
{
	char quote = s->size && memchr(s->data, '\'', s->size) && !memchr(s->data, '"', s->size) ? '"' : '\'';
	size_t cursor = 0;
	if (s->markup) TRY(tpl_text_puts(run, t, "Markup("));
	TRY(tpl_text_bytes(run, t, &quote, 1, false));
	for (size_t i = 0; i < s->size;) {
		size_t from = i;
		while (i < s->size && !needs_escape((unsigned char)s->data[i], quote)) i++;
		TRY(tpl_text_cut(run, t, s, from, i));
		if (i == s->size) break;
		uint32_t cp;
		bool user = tpl_marked(s, i, &cursor);
		i += utf8_decode(s->data + i, s->size - i, &cp);
		TRY(repr_char(run, t, cp, quote, user));
	}
	TRY(tpl_text_bytes(run, t, &quote, 1, false));
	return s->markup ? tpl_text_puts(run, t, ")") : STATUS_OK;
}

static enum status put_repr(struct tpl_run *run, struct tpl_text *t, struct tpl_value v);

static enum status repr_seq(struct tpl_run *run, struct tpl_text *t, struct tpl_value v)
{
	const char *open = v.kind == TPL_TUPLE ? "(" : "[", *close = v.kind == TPL_TUPLE ? ")" : "]";
	if (v.kind == TPL_VIEW) {
		TRY(tpl_text_puts(run, t, v.seq->printed));
		TRY(tpl_text_puts(run, t, "("));
	}
	TRY(tpl_text_puts(run, t, open));
	for (size_t i = 0; i < v.seq->count; i++) {
		if (i) TRY(tpl_text_puts(run, t, ", "));
		TRY(put_repr(run, t, v.seq->items[i]));
	}
	if (v.kind == TPL_TUPLE && v.seq->count == 1) TRY(tpl_text_puts(run, t, ","));
	TRY(tpl_text_puts(run, t, close));
	return v.kind == TPL_VIEW ? tpl_text_puts(run, t, ")") : STATUS_OK;
}

static enum status repr_dict(struct tpl_run *run, struct tpl_text *t, const struct tpl_dict *dict)
{
	TRY(tpl_text_puts(run, t, "{"));
	for (size_t i = 0; i < dict->count; i++) {
		if (i) TRY(tpl_text_puts(run, t, ", "));
		TRY(put_repr(run, t, dict->pairs[i].key));
		TRY(tpl_text_puts(run, t, ": "));
		TRY(put_repr(run, t, dict->pairs[i].value));
	}
	return tpl_text_puts(run, t, "}");
}

static enum status repr_range(struct tpl_run *run, struct tpl_text *t, const struct tpl_range *range)
{
	char text[96];
	int n = snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
	if (range->step != 1) n += snprintf(text + n, sizeof text - (size_t)n, ", %" PRId64, range->step);
	TRY(tpl_text_bytes(run, t, text, (size_t)n, false));
	return tpl_text_puts(run, t, ")");
}

static enum status repr_loop(struct tpl_run *run, struct tpl_text *t, struct tpl_loop *loop)
{
	size_t length;
	TRY(tpl_loop_length(run, loop, &length));
	TRY(tpl_text_puts(run, t, "<LoopContext "));
	TRY(put_int(run, t, (int64_t)loop->index0 + 1));
	TRY(tpl_text_puts(run, t, "/"));
	TRY(put_int(run, t, (int64_t)length));
	return tpl_text_puts(run, t, ">");
}

static enum status repr_value(struct tpl_run *run, struct tpl_text *t, struct tpl_value v)
{
	switch (v.kind) {
	case TPL_UNDEFINED: return tpl_text_puts(run, t, "Undefined");
	case TPL_NONE: return tpl_text_puts(run, t, "None");
	case TPL_BOOL: return tpl_text_puts(run, t, v.boolean ? "True" : "False");
	case TPL_INT: return put_int(run, t, v.integer);
	case TPL_FLOAT: return put_float(run, t, v.real);
	case TPL_STRING: return repr_string(run, t, v.string);
	case TPL_LIST:
	case TPL_TUPLE:
	case TPL_VIEW: return repr_seq(run, t, v);
	case TPL_DICT: return repr_dict(run, t, v.dict);
	case TPL_RANGE: return repr_range(run, t, v.range);
	case TPL_NAMESPACE:
		TRY(tpl_text_puts(run, t, "<Namespace "));
		TRY(repr_dict(run, t, v.dict));
		return tpl_text_puts(run, t, ">");
	case TPL_LOOP: return repr_loop(run, t, v.loop);
	case TPL_MACRO:
		TRY(tpl_text_puts(run, t, "<Macro "));
		TRY(repr_string(run, t, tpl_macro_name(v.macro)));
		return tpl_text_puts(run, t, ">");
	default: break;
	}
	return FAIL(run->err, UNSUPPORTED, "printing a %s is not implemented", tpl_kind_name(v));
}

static enum status put_repr(struct tpl_run *run, struct tpl_text *t, struct tpl_value v)
{
	TRY(tpl_descend(run));
	TRY(repr_value(run, t, v));
	run->depth++;
	return STATUS_OK;
}

enum status tpl_text_str(struct tpl_run *run, struct tpl_text *t, struct tpl_value v)
{
	if (v.kind == TPL_STRING) return tpl_text_string(run, t, v.string);
	if (v.kind == TPL_UNDEFINED) return STATUS_OK;
	return put_repr(run, t, v);
}

enum status tpl_soft_str(struct tpl_run *run, struct tpl_value v, struct tpl_value *out)
{
	struct tpl_text t = {0};
	*out = v;
	if (v.kind == TPL_STRING) return STATUS_OK;
	TRY(tpl_text_str(run, &t, v));
	return tpl_text_finish(run, &t, false, out);
}

enum status tpl_str(struct tpl_run *run, struct tpl_value v, struct tpl_value *out)
{
	if (v.kind != TPL_STRING || !v.string->markup) return tpl_soft_str(run, v, out);
	struct tpl_string *plain;
	TRY(TPL_NEW(run, plain, 1));
	*plain = *v.string;
	plain->markup = false;
	*out = tpl_string(plain);
	return STATUS_OK;
}

enum status tpl_escape(struct tpl_run *run, struct tpl_value v, struct tpl_value *out)
{
	if (v.kind == TPL_STRING && v.string->markup) {
		*out = v;
		return STATUS_OK;
	}
	struct tpl_text t = {0};
	TRY(tpl_soft_str(run, v, &v));
	const struct tpl_string *s = v.string;
	size_t cursor = 0;
	for (size_t i = 0; i < s->size; i++) {
		size_t from = i;
		while (i < s->size && !strchr("&<>\"'", s->data[i])) i++;
		while (i < s->size && s->data[i] == 0) i++; /* strchr finds the NUL */
		TRY(tpl_text_cut(run, &t, s, from, i));
		if (i == s->size) break;
		const char *entity = s->data[i] == '&' ? "&amp;" : s->data[i] == '<' ? "&lt;" : s->data[i] == '>' ? "&gt;" : s->data[i] == '"' ? "&#34;" : "&#39;";
		if (strchr("&<>\"'", s->data[i])) TRY(tpl_text_bytes(run, &t, entity, strlen(entity), tpl_marked(s, i, &cursor)));
		else i--;
	}
	return tpl_text_finish(run, &t, true, out);
}

/* ---- % ---- */

struct conversion {
	char flags[8];
	int width, precision; /* -1: none */
	char type;
};

static bool read_number(const struct tpl_string *s, size_t *at, int *out)
{
	*out = 0;
	for (; *at < s->size && s->data[*at] >= '0' && s->data[*at] <= '9'; ++*at) {
		if (*out > 9999) return false;
		*out = *out * 10 + (s->data[*at] - '0');
	}
	return true;
}

static enum status read_conversion(struct tpl_run *run, const struct tpl_string *s, size_t *at, struct conversion *out)
{
	size_t flags = 0;
	*out = (struct conversion){.width = -1, .precision = -1};
	while (*at < s->size && s->data[*at] && strchr("-+ #0", s->data[*at])) {
		if (flags < sizeof out->flags - 1 && !strchr(out->flags, s->data[*at])) out->flags[flags++] = s->data[*at];
		++*at;
	}
	bool good = true;
	if (*at < s->size && s->data[*at] >= '1' && s->data[*at] <= '9') good = read_number(s, at, &out->width);
	if (good && *at < s->size && s->data[*at] == '.') {
		++*at;
		good = read_number(s, at, &out->precision);
	}
	while (*at < s->size && strchr("hlL", s->data[*at]) && s->data[*at]) ++*at;
	if (*at == s->size) return FAIL(run->err, BAD_INPUT, "the format of '%%' ends within a conversion");
	out->type = s->data[(*at)++];
	if (!good || !out->type || !strchr("srdiufFeEgGxXoc%", out->type))
		return FAIL(run->err, UNSUPPORTED, "this conversion of the '%%' operator is not implemented");
	return STATUS_OK;
}

static enum status put_padded(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, const struct conversion *c)
{
	size_t chars = c->precision >= 0 && (size_t)c->precision < s->chars ? (size_t)c->precision : s->chars, end;
	size_t pad = c->width > 0 && (size_t)c->width > chars ? (size_t)c->width - chars : 0;
	bool left = strchr(c->flags, '-');
	TRY(tpl_string_offset(run, s, chars, &end));
	for (size_t i = 0; !left && i < pad; i++) TRY(tpl_text_puts(run, t, " "));
	TRY(tpl_text_cut(run, t, s, 0, end));
	for (size_t i = 0; left && i < pad; i++) TRY(tpl_text_puts(run, t, " "));
	return STATUS_OK;
}

static enum status put_number(struct tpl_run *run, struct tpl_text *t, const struct conversion *c, struct tpl_value v)
{
	char format[24], text[512];
	int64_t i = 0;
	double d = 0;
	bool real = strchr("fFeEgG", c->type);
	if (!tpl_as_number(v, &d)) return FAIL(run->err, BAD_INPUT, "'%%%c' needs a number, not a %s", c->type, tpl_kind_name(v));
	if (!real && !tpl_as_int(v, &i)) {
		if (!strchr("diu", c->type)) return FAIL(run->err, BAD_INPUT, "'%%%c' needs an integer, not a float", c->type);
		if (!(fabs(d) < 0x1p63)) return FAIL(run->err, UNSUPPORTED, "an integer leaves the 64 bits that are implemented");
		i = (int64_t)d;
	}
	if (!real && i < 0 && strchr("xXo", c->type)) return FAIL(run->err, UNSUPPORTED, "'%%%c' of a negative number is not implemented", c->type);
	if (c->width > 200 || c->precision > 100) return FAIL(run->err, UNSUPPORTED, "a number padded this far is not implemented");
	if (c->type == 'o' && strchr(c->flags, '#')) return FAIL(run->err, UNSUPPORTED, "'%%#o' is not implemented");
	snprintf(format, sizeof format, "%%%s*%s%s%c", c->flags, c->precision >= 0 ? ".*" : "", real ? "" : PRId64, c->type == 'u' ? 'd' : c->type);
	if (!real) { /* the length modifier goes before the letter */
		size_t n = strlen(format);
		memmove(format + n - 2, format + n - 1, 2); /* PRId64 brought its own letter */
	}
	int width = c->width > 0 ? c->width : 0, n;
	if (real) n = c->precision >= 0 ? snprintf(text, sizeof text, format, width, c->precision, d) : snprintf(text, sizeof text, format, width, d);
	else n = c->precision >= 0 ? snprintf(text, sizeof text, format, width, c->precision, i) : snprintf(text, sizeof text, format, width, i);
	if (n < 0 || (size_t)n >= sizeof text) return FAIL(run->err, UNSUPPORTED, "a number this long is not implemented in '%%'");
	return tpl_text_bytes(run, t, text, (size_t)n, false);
}

static enum status put_conversion(struct tpl_run *run, struct tpl_text *t, const struct conversion *c, struct tpl_value v)
{
	if (c->type != 's' && c->type != 'r' && c->type != 'c') return put_number(run, t, c, v);
	struct tpl_value text;
	if (c->type == 'r') {
		struct tpl_text repr = {0};
		TRY(put_repr(run, &repr, v));
		TRY(tpl_text_finish(run, &repr, false, &text));
	} else TRY(tpl_str(run, v, &text));
	if (c->type == 'c' && (v.kind != TPL_STRING || text.string->chars != 1)) return FAIL(run->err, UNSUPPORTED, "'%%c' is implemented for one character");
	return put_padded(run, t, text.string, c);
}

enum status tpl_percent(struct tpl_run *run, const struct tpl_string *format, struct tpl_value args, struct tpl_value *out)
{
	struct tpl_text t = {0};
	size_t count = args.kind == TPL_TUPLE ? args.seq->count : 1, used = 0;
	if (format->markup) return FAIL(run->err, UNSUPPORTED, "'%%' of a 'safe' string is not implemented");
	for (size_t i = 0; i < format->size;) {
		size_t from = i;
		while (i < format->size && format->data[i] != '%') i++;
		TRY(tpl_text_cut(run, &t, format, from, i));
		if (i == format->size) break;
		struct conversion c;
		i++;
		if (i < format->size && format->data[i] == '(') return FAIL(run->err, UNSUPPORTED, "'%%(name)' is not implemented");
		TRY(read_conversion(run, format, &i, &c));
		if (c.type == '%') {
			TRY(tpl_text_puts(run, &t, "%"));
			continue;
		}
		if (used == count) return FAIL(run->err, BAD_INPUT, "'%%' has more conversions than values");
		TRY(put_conversion(run, &t, &c, args.kind == TPL_TUPLE ? args.seq->items[used] : args));
		used++;
	}
	bool may_be_left = args.kind == TPL_DICT || args.kind == TPL_LIST || args.kind == TPL_RANGE || args.kind == TPL_UNDEFINED; /* what Python takes for mappings */
	if (used < count && !(may_be_left && used == 0)) return FAIL(run->err, BAD_INPUT, "'%%' has fewer conversions than values");
	return tpl_text_finish(run, &t, false, out);
}
