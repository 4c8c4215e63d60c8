/* strftime, without the C library's: its result would depend on the locale of the process. */
#include <stdio.h>
#include <string.h>

#include "text/tpl_call.h"

static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

struct piece {
	const char *text; /* a name */
	int length;       /* of it; -1: all */
	int number, width;
	char pad;
};

static struct piece name_piece(const char *name, int length)
{
	return (struct piece){.text = name, .length = length};
}

static struct piece number_piece(int number, int width, char pad)
{
	return (struct piece){.number = number, .width = width, .pad = pad};
}

/* One code that is a single field; false for any other. */
static bool field(const struct tm *now, char code, struct piece *out)
{
	int hour12 = now->tm_hour % 12 ? now->tm_hour % 12 : 12;
	switch (code) {
	case 'a': *out = name_piece(days[now->tm_wday], 3); return true;
	case 'A': *out = name_piece(days[now->tm_wday], -1); return true;
	case 'b':
	case 'h': *out = name_piece(months[now->tm_mon], 3); return true;
	case 'B': *out = name_piece(months[now->tm_mon], -1); return true;
	case 'p': *out = name_piece(now->tm_hour < 12 ? "AM" : "PM", -1); return true;
	case 'z':
	case 'Z': *out = name_piece("", -1); return true; /* the time is naive */
	case 'n': *out = name_piece("\n", -1); return true;
	case 't': *out = name_piece("\t", -1); return true;
	case '%': *out = name_piece("%", -1); return true;
	case 'd': *out = number_piece(now->tm_mday, 2, '0'); return true;
	case 'e': *out = number_piece(now->tm_mday, 2, ' '); return true;
	case 'm': *out = number_piece(now->tm_mon + 1, 2, '0'); return true;
	case 'Y': *out = number_piece(now->tm_year + 1900, 1, '0'); return true;
	case 'y': *out = number_piece((now->tm_year + 1900) % 100, 2, '0'); return true;
	case 'C': *out = number_piece((now->tm_year + 1900) / 100, 2, '0'); return true;
	case 'H': *out = number_piece(now->tm_hour, 2, '0'); return true;
	case 'k': *out = number_piece(now->tm_hour, 2, ' '); return true;
	case 'I': *out = number_piece(hour12, 2, '0'); return true;
	case 'l': *out = number_piece(hour12, 2, ' '); return true;
	case 'M': *out = number_piece(now->tm_min, 2, '0'); return true;
	case 'S': *out = number_piece(now->tm_sec, 2, '0'); return true;
	case 'f': *out = number_piece(0, 6, '0'); return true;
	case 'j': *out = number_piece(now->tm_yday + 1, 3, '0'); return true;
	case 'u': *out = number_piece(now->tm_wday ? now->tm_wday : 7, 1, '0'); return true;
	case 'w': *out = number_piece(now->tm_wday, 1, '0'); return true;
	case 'U': *out = number_piece((now->tm_yday + 7 - now->tm_wday) / 7, 2, '0'); return true;
	case 'W': *out = number_piece((now->tm_yday + 7 - (now->tm_wday + 6) % 7) / 7, 2, '0'); return true;
	default: return false;
	}
}

static const char *composite(char code)
{
	switch (code) {
	case 'c': return "%a %b %e %H:%M:%S %Y";
	case 'D':
	case 'x': return "%m/%d/%y";
	case 'F': return "%Y-%m-%d";
	case 'R': return "%H:%M";
	case 'r': return "%I:%M:%S %p";
	case 'T':
	case 'X': return "%H:%M:%S";
	default: return NULL;
	}
}

static enum status put(struct tpl_run *run, struct tpl_text *t, const struct piece *p, char pad)
{
	char text[32];
	if (p->text) return tpl_text_bytes(run, t, p->text, p->length < 0 ? strlen(p->text) : (size_t)p->length, false);
	if (pad == '-') snprintf(text, sizeof text, "%d", p->number);
	else snprintf(text, sizeof text, (pad ? pad : p->pad) == '0' ? "%0*d" : "%*d", p->width, p->number);
	return tpl_text_puts(run, t, text);
}

static enum status format_time(struct tpl_run *run, const struct tm *now, const char *format, size_t n, struct tpl_text *t)
{
	for (size_t i = 0; i < n; i++) {
		struct piece p;
		size_t from = i;
		while (i < n && format[i] != '%') i++;
		TRY(tpl_text_bytes(run, t, format + from, i - from, false));
		if (i >= n) break;
		char pad = i + 1 < n && (format[i + 1] == '-' || format[i + 1] == '0') ? format[i + 1] : 0;
		i += pad ? 2 : 1;
		char code = i < n ? format[i] : 0;
		const char *parts = composite(code);
		if (parts) TRY(format_time(run, now, parts, strlen(parts), t));
		else if (code && field(now, code, &p)) TRY(put(run, t, &p, pad));
		else return FAIL(run->err, UNSUPPORTED, "strftime_now: a code of the format is not implemented");
	}
	return STATUS_OK;
}

static bool valid(const struct tm *now)
{
	return now->tm_wday >= 0 && now->tm_wday < 7 && now->tm_mon >= 0 && now->tm_mon < 12 && now->tm_year > -1900 && now->tm_year < 8100;
}

enum status tpl_strftime(struct tpl_run *run, const struct tm *now, const struct tpl_string *format, struct tpl_value *out)
{
	struct tpl_text t = {0};
	if (!valid(now)) return FAIL(run->err, BAD_INPUT, "strftime_now: the time that was given is none");
	TRY(format_time(run, now, format->data, format->size, &t));
	return tpl_text_finish(run, &t, false, out);
}
