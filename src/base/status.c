#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *status_name(enum status code)
{
	switch (code) {
#define X(code, name, scope, exit) \
	case STATUS_##code: return name;
		STATUS_LIST(X)
#undef X
	}
	return "unknown status";
}

enum status_scope status_scope(enum status code)
{
	switch (code) {
#define X(code, name, scope, exit) \
	case STATUS_##code: return STATUS_SCOPE_##scope;
		STATUS_LIST(X)
#undef X
	}
	return STATUS_SCOPE_FATAL;
}

int status_exit_code(enum status code)
{
	switch (code) {
#define X(code, name, scope, exit) \
	case STATUS_##code: return exit;
		STATUS_LIST(X)
#undef X
	}
	return 6;
}

enum status error_set(struct error *err, enum status code, const char *file, int line, const char *format, ...)
{
	if (!err || err->code != STATUS_OK) return code;
	err->code = code;
	err->file = file;
	err->line = line;
	va_list args;
	va_start(args, format);
	vsnprintf(err->text, sizeof err->text, format, args);
	va_end(args);
	return code;
}

void error_prefix(struct error *err, const char *format, ...)
{
	if (!err) return;
	char text[sizeof err->text];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(text, sizeof text, format, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof text) return;
	snprintf(text + n, sizeof text - (size_t)n, ": %.*s", (int)(sizeof text - (size_t)n - 3), err->text);
	memcpy(err->text, text, sizeof text);
}
