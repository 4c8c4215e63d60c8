#include "text/tpl_text.h"

#include <string.h>
#include <utf8proc.h>

#include "base/mem.h"
#include "text/unicode.h"
#include "text/utf8.h"

static enum status add_mark(struct tpl_run *run, struct tpl_text *t, size_t start, size_t end)
{
	if (t->mark_count > 0 && t->marks[t->mark_count - 1].end == start) {
		t->marks[t->mark_count - 1].end = end;
		return STATUS_OK;
	}
	if (t->mark_count == t->mark_capacity) {
		size_t capacity = t->mark_capacity ? t->mark_capacity * 2 : 4;
		struct tpl_mark *marks;
		TRY(TPL_NEW(run, marks, capacity));
		if (t->mark_count) memcpy(marks, t->marks, t->mark_count * sizeof *marks);
		t->marks = marks;
		t->mark_capacity = capacity;
	}
	t->marks[t->mark_count++] = (struct tpl_mark){.start = start, .end = end};
	return STATUS_OK;
}

static enum status reserve(struct tpl_run *run, struct tpl_text *t, size_t extra)
{
	size_t need;
	if (!size_add(t->size, extra, &need)) return tpl_out_of(run, "memory");
	if (t == run->root && need > run->output_bytes) return tpl_out_of(run, "output");
	if (need <= t->capacity) return STATUS_OK;
	size_t capacity = t->capacity > need / 2 ? t->capacity * 2 : need;
	if (capacity < 32) capacity = 32;
	char *data;
	TRY(tpl_pay_bytes(run, t->size));
	TRY(TPL_NEW(run, data, capacity));
	if (t->size) memcpy(data, t->data, t->size);
	t->data = data;
	t->capacity = capacity;
	return STATUS_OK;
}

enum status tpl_text_bytes(struct tpl_run *run, struct tpl_text *t, const char *data, size_t n, bool user)
{
	if (n == 0) return STATUS_OK;
	TRY(tpl_pay_bytes(run, n));
	TRY(reserve(run, t, n));
	memcpy(t->data + t->size, data, n);
	if (user) TRY(add_mark(run, t, t->size, t->size + n));
	t->size += n;
	return STATUS_OK;
}

enum status tpl_text_puts(struct tpl_run *run, struct tpl_text *t, const char *text)
{
	return tpl_text_bytes(run, t, text, strlen(text), false);
}

enum status tpl_text_cut(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t from, size_t to)
{
	if (to <= from) return STATUS_OK;
	size_t base = t->size;
	TRY(tpl_text_bytes(run, t, s->data + from, to - from, false));
	TRY(tpl_pay(run, s->mark_count));
	for (size_t i = 0; i < s->mark_count; i++) {
		size_t start = s->marks[i].start > from ? s->marks[i].start : from;
		size_t end = s->marks[i].end < to ? s->marks[i].end : to;
		if (start < end) TRY(add_mark(run, t, base + start - from, base + end - from));
	}
	return STATUS_OK;
}

enum status tpl_text_string(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s)
{
	return tpl_text_cut(run, t, s, 0, s->size);
}

enum status tpl_text_repeat(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t times)
{
	size_t bytes;
	if (!size_mul(s->size, times, &bytes)) return tpl_out_of(run, "memory");
	if (bytes == 0) return STATUS_OK;
	TRY(reserve(run, t, bytes));
	if (s->mark_count > 0) {
		for (size_t i = 0; i < times; i++) TRY(tpl_text_string(run, t, s));
		return STATUS_OK;
	}
	TRY(tpl_pay_bytes(run, bytes));
	char *start = t->data + t->size;
	memcpy(start, s->data, s->size);
	for (size_t done = s->size; done < bytes;) { /* what is there already, once more */
		size_t n = done < bytes - done ? done : bytes - done;
		memcpy(start + done, start, n);
		done += n;
	}
	t->size += bytes;
	return STATUS_OK;
}

enum status tpl_text_finish(struct tpl_run *run, struct tpl_text *t, bool markup, struct tpl_value *out)
{
	struct tpl_value made;
	TRY(tpl_string_new(run, t->data, t->size, false, &made));
	struct tpl_string *s = (struct tpl_string *)made.string; /* just made here, nobody else knows it */
	s->marks = t->marks;
	s->mark_count = t->mark_count;
	s->markup = markup;
	*out = made;
	return STATUS_OK;
}

bool tpl_marked(const struct tpl_string *s, size_t at, size_t *cursor)
{
	while (*cursor < s->mark_count && s->marks[*cursor].end <= at) ++*cursor;
	return *cursor < s->mark_count && s->marks[*cursor].start <= at;
}

bool tpl_is_space(uint32_t cp)
{
	return (cp >= 0x1C && cp <= 0x1F) || unicode_is_space(cp);
}

bool tpl_is_digit(uint32_t cp)
{
	if (cp < 0x80) return cp >= '0' && cp <= '9';
	return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
	       (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089); /* and the superscripts and subscripts */
}

bool tpl_is_alpha(uint32_t cp)
{
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
	return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool tpl_is_alnum(uint32_t cp)
{
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
	return tpl_is_alpha(cp) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

bool tpl_is_printable(uint32_t cp)
{
	if (cp < 0x7F) return cp >= 0x20;
	switch (utf8proc_category((utf8proc_int32_t)cp)) {
	case UTF8PROC_CATEGORY_CC:
	case UTF8PROC_CATEGORY_CF:
	case UTF8PROC_CATEGORY_CS:
	case UTF8PROC_CATEGORY_CO:
	case UTF8PROC_CATEGORY_CN:
	case UTF8PROC_CATEGORY_ZS:
	case UTF8PROC_CATEGORY_ZL:
	case UTF8PROC_CATEGORY_ZP: return false;
	default: return true;
	}
}

enum tpl_letter tpl_letter_case(uint32_t cp)
{
	if (cp < 0x80) return cp >= 'A' && cp <= 'Z' ? TPL_LETTER_UPPER : cp >= 'a' && cp <= 'z' ? TPL_LETTER_LOWER : TPL_LETTER_NONE;
	utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)cp);
	if (category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT) return TPL_LETTER_UPPER;
	if (category == UTF8PROC_CATEGORY_LL || cp == 0xAA || cp == 0xBA || (cp >= 0x2B0 && cp <= 0x2B8)) return TPL_LETTER_LOWER;
	return TPL_LETTER_NONE;
}

/* Upper case that is longer than one character (SpecialCasing.txt, the entries met in practice). */
static const struct {
	uint32_t cp;
	const char *upper, *title;
} long_upper[] = {
	{0xDF, "SS", "Ss"},       {0x149, "\xCA\xBCN", "\xCA\xBCN"}, {0x1F0, "J\xCC\x8C", "J\xCC\x8C"}, {0xFB00, "FF", "Ff"},
	{0xFB01, "FI", "Fi"},     {0xFB02, "FL", "Fl"},              {0xFB03, "FFI", "Ffi"},            {0xFB04, "FFL", "Ffl"},
	{0xFB05, "ST", "St"},     {0xFB06, "ST", "St"},              {0x587, "\xD4\xB5\xD5\x92", "\xD4\xB5\xD6\x82"},
};

static enum status put_cp(struct tpl_run *run, struct tpl_text *t, uint32_t cp, bool user)
{
	char bytes[4];
	return tpl_text_bytes(run, t, bytes, utf8_encode(cp, bytes), user);
}

static enum status put_upper(struct tpl_run *run, struct tpl_text *t, uint32_t cp, bool title, bool user)
{
	for (size_t i = 0; cp >= 0x80 && i < sizeof long_upper / sizeof *long_upper; i++) {
		const char *text = title ? long_upper[i].title : long_upper[i].upper;
		if (long_upper[i].cp == cp) return tpl_text_bytes(run, t, text, strlen(text), user);
	}
	utf8proc_int32_t c = (utf8proc_int32_t)cp;
	return put_cp(run, t, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)), user);
}

static bool cased_or_ignorable(uint32_t cp, bool *ignorable)
{
	*ignorable = cp == '\'' || cp == '.' || cp == ':' || cp == '^' || cp == '`' || cp == 0xA8 || cp == 0xAD || cp == 0xAF || cp == 0xB4 || cp == 0xB7 ||
	             cp == 0xB8 || cp == 0x2019 || utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN;
	return tpl_letter_case(cp) != TPL_LETTER_NONE;
}

/* A capital sigma at the end of a word becomes the final form: within [from, to), a cased letter before it and none after, ignorable
 * ones aside. */
static bool is_final_sigma(const struct tpl_string *s, size_t from, size_t to, size_t at)
{
	bool ignorable = true, before = false;
	uint32_t cp;
	for (size_t i = at; i > from && ignorable && !before;) {
		do i--;
		while (((unsigned char)s->data[i] & 0xC0) == 0x80);
		(void)utf8_decode(s->data + i, s->size - i, &cp);
		before = cased_or_ignorable(cp, &ignorable) && !ignorable;
	}
	if (!before) return false;
	ignorable = true;
	for (size_t i = at + 2; i < to && ignorable;) {
		i += utf8_decode(s->data + i, s->size - i, &cp);
		if (cased_or_ignorable(cp, &ignorable) && !ignorable) return false;
	}
	return true;
}

static enum status put_lower(struct tpl_run *run, struct tpl_text *t, uint32_t cp, bool final_sigma, bool user)
{
	if (cp == 0x130) return tpl_text_bytes(run, t, "i\xCC\x87", 3, user);
	if (final_sigma) return put_cp(run, t, 0x3C2, user);
	return put_cp(run, t, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), user);
}

enum status tpl_text_cased(struct tpl_run *run, struct tpl_text *t, const struct tpl_string *s, size_t from, size_t to, enum tpl_case how)
{
	size_t cursor = 0;
	bool inside = false; /* TITLE: the character before is a letter; CAPITALIZE: it is not the first */
	TRY(tpl_pay_bytes(run, to - from));
	for (size_t i = from; i < to;) {
		uint32_t cp;
		size_t at = i;
		bool user = tpl_marked(s, at, &cursor);
		i += utf8_decode(s->data + i, s->size - i, &cp);
		if (how == TPL_UPPER) TRY(put_upper(run, t, cp, false, user));
		else if (how == TPL_LOWER || inside) TRY(put_lower(run, t, cp, cp == 0x3A3 && is_final_sigma(s, from, to, at), user));
		else TRY(put_upper(run, t, cp, true, user));
		inside = how == TPL_CAPITALIZE || tpl_letter_case(cp) != TPL_LETTER_NONE;
	}
	return STATUS_OK;
}

enum status tpl_change_case(struct tpl_run *run, const struct tpl_string *s, enum tpl_case to, struct tpl_value *out)
{
	struct tpl_text t = {0};
	TRY(tpl_text_cased(run, &t, s, 0, s->size, to));
	return tpl_text_finish(run, &t, s->markup, out);
}
