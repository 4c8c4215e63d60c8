#include "client/sse.h"

#include <string.h>

void sse_fini(struct sse *sse)
{
	buf_fini(&sse->line);
	buf_fini(&sse->data);
	*sse = (struct sse){0};
}

void sse_clear(struct sse *sse)
{
	buf_clear(&sse->line);
	buf_clear(&sse->data);
	sse->has_data = sse->after_cr = sse->begun = false;
}

static enum status append(struct buf *to, const char *bytes, size_t n, struct error *err)
{
	if (to->size + n > SSE_MAX_EVENT) return FAIL(err, BAD_INPUT, "event stream: an event is longer than %u bytes; this is no server of tokens", SSE_MAX_EVENT);
	return buf_append(to, bytes, n, err);
}

/* One line without its end. */
static enum status take_line(struct sse *sse, struct error *err)
{
	const char *line = sse->line.data ? sse->line.data : "";
	size_t n = sse->line.size;
	if (!sse->begun && n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) line += 3, n -= 3;
	sse->begun = true;
	if (n < 4 || memcmp(line, "data", 4) != 0 || (n > 4 && line[4] != ':')) return STATUS_OK;
	size_t skip = n > 5 && line[5] == ' ' ? 6 : n > 4 ? 5 : 4;
	if (sse->has_data) TRY(append(&sse->data, "\n", 1, err));
	sse->has_data = true;
	return append(&sse->data, line + skip, n - skip, err);
}

enum status sse_feed(struct sse *sse, const char *bytes, size_t n, bool (*event)(void *context, const char *data, size_t n), void *context,
                     struct error *err)
{
	for (size_t at = 0; at < n;) {
		if (sse->after_cr && bytes[at] == '\n') at++;
		sse->after_cr = false;
		size_t run = 0;
		while (at + run < n && bytes[at + run] != '\n' && bytes[at + run] != '\r') run++;
		if (run) TRY(append(&sse->line, bytes + at, run, err));
		at += run;
		if (at == n) break;
		sse->after_cr = bytes[at++] == '\r';
		bool blank = !sse->line.size;
		TRY(take_line(sse, err));
		buf_clear(&sse->line);
		if (!blank || !sse->has_data) continue;
		sse->has_data = false;
		bool more = event(context, sse->data.data ? sse->data.data : "", sse->data.size);
		buf_clear(&sse->data);
		if (!more) break;
	}
	return STATUS_OK;
}
