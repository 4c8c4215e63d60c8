#include "serve/out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/utf8.h"

void out_fini(struct out *out)
{
	buf_fini(&out->buf);
	out->failed = false;
}

void out_clear(struct out *out)
{
	buf_clear(&out->buf);
	out->failed = false;
}

void out_bytes(struct out *out, const void *bytes, size_t n)
{
	if (!out->failed && n) out->failed = buf_append(&out->buf, bytes, n, NULL) != STATUS_OK;
}

void out_puts(struct out *out, const char *text)
{
	out_bytes(out, text, strlen(text));
}

void out_printf(struct out *out, const char *format, ...)
{
	char text[1024];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof text) out->failed = true;
	else out_bytes(out, text, (size_t)n);
}

/* Characters that stand for themselves inside quotes: ASCII but controls, quote, backslash and DEL. */
static bool is_plain(unsigned char c)
{
	return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

static void put_escaped(struct out *out, uint32_t cp)
{
	switch (cp) {
	case '"': out_puts(out, "\\\""); break;
	case '\\': out_puts(out, "\\\\"); break;
	case '\n': out_puts(out, "\\n"); break;
	case '\r': out_puts(out, "\\r"); break;
	case '\t': out_puts(out, "\\t"); break;
	case '\b': out_puts(out, "\\b"); break;
	case '\f': out_puts(out, "\\f"); break;
	default: out_printf(out, "\\u%04x", (unsigned)cp);
	}
}

void out_string(struct out *out, const char *text, size_t n)
{
	out_bytes(out, "\"", 1);
	for (size_t at = 0; at < n;) {
		size_t run = at;
		while (run < n && is_plain((unsigned char)text[run])) run++;
		out_bytes(out, text + at, run - at);
		at = run;
		if (at == n) break;
		uint32_t cp;
		size_t size = utf8_decode(text + at, n - at, &cp);
		if (cp == UTF8_BAD) out_puts(out, UTF8_REPLACEMENT);
		else if (cp < 0x80 || cp == 0x85 || cp == 0x2028 || cp == 0x2029) put_escaped(out, cp);
		else out_bytes(out, text + at, size);
		at += size;
	}
	out_bytes(out, "\"", 1);
}

void out_text(struct out *out, const char *text)
{
	if (text) out_string(out, text, strlen(text));
	else out_puts(out, "null");
}

void out_int(struct out *out, int64_t value)
{
	out_printf(out, "%lld", (long long)value);
}

void out_logprob(struct out *out, float value)
{
	char text[40];
	if (isnan(value)) {
		out_puts(out, "null");
		return;
	}
	if (value < -9999) value = -9999;
	if (value > 0) value = 0; /* a rounding of 1 */
	for (int digits = 6; digits <= 9; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, (double)value);
		if (strtof(text, NULL) == value) break;
	}
	out_puts(out, value == 0 ? "0.0" : text);
	if (value != 0 && !strpbrk(text, ".e")) out_puts(out, ".0");
}
