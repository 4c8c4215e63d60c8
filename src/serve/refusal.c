#include "serve/refusal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum status refuse(struct refusal *r, int status, const char *param, const char *format, ...)
{
	va_list args;
	*r = (struct refusal){.status = status, .param = param};
	if (status == 429 || status == 503) r->retry_after = 1;
	va_start(args, format);
	vsnprintf(r->message, sizeof r->message, format, args);
	va_end(args);
	return STATUS_BAD_INPUT;
}

enum status refuse_error(struct refusal *r, const char *param, enum status code, const struct error *err)
{
	switch (code) {
	case STATUS_BAD_INPUT:
	case STATUS_USAGE: return refuse(r, 400, param, "%s", err->text);
	case STATUS_UNSUPPORTED: return refuse(r, 501, param, "%s", err->text);
	case STATUS_BUSY: return refuse(r, 429, param, "%s", err->text);
	case STATUS_NO_ROOM:
	case STATUS_NO_MEMORY: return refuse(r, 503, param, "%s", err->text);
	case STATUS_CANCELLED: return refuse(r, 503, param, "the request was cancelled by the server");
	case STATUS_OK:
	case STATUS_IO:
	case STATUS_ABORTED:
	case STATUS_TIMEOUT:
	case STATUS_MISMATCH:
	case STATUS_RANK_LOST:
	case STATUS_DEVICE_FAULT: break;
	}
	/* What failed inside is for the log, not for clients. */
	return refuse(r, 500, param, "the server failed while it worked on this request; it can be sent again");
}

enum status refuse_memory(struct refusal *r)
{
	return refuse(r, 503, NULL, "the server has no memory for this request now; try again later");
}

const char *refusal_type(const struct refusal *r)
{
	if (r->type) return r->type;
	switch (r->status) {
#define X(status, name) \
	case status: return name;
		REFUSAL_LIST(X)
#undef X
	default: return r->status < 500 ? "invalid_request_error" : "server_error";
	}
}

void refusal_write(const struct refusal *r, struct out *out)
{
	out_puts(out, "{\"error\":{\"message\":");
	out_text(out, r->message);
	out_puts(out, ",\"type\":");
	out_text(out, refusal_type(r));
	out_puts(out, ",\"param\":");
	out_text(out, r->param);
	out_printf(out, ",\"code\":%d}}", r->status);
}
