#include "client/reply.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BAD(err, why) FAIL(err, BAD_INPUT, "HTTP response: %s; is this a server of tokens?", why)

static enum status status_line(struct reply *r, struct error *err)
{
	const char *l = r->line;
	if (strncmp(l, "HTTP/1.", 7) != 0 || (l[7] != '0' && l[7] != '1') || l[8] != ' ') return BAD(err, "no HTTP/1.1 status line");
	for (int i = 9; i < 12; i++)
		if (l[i] < '0' || l[i] > '9') return BAD(err, "no status of three digits");
	if (l[12] && l[12] != ' ') return BAD(err, "no status of three digits");
	r->status = (l[9] - '0') * 100 + (l[10] - '0') * 10 + l[11] - '0';
	if (r->status < 100) return BAD(err, "status below 100");
	r->close = l[7] == '0';
	r->state = REPLY_HEADERS;
	return STATUS_OK;
}

/* Whether `list` (comma separated) has `token` as an item, in any case. */
static bool has_token(const char *list, const char *token)
{
	size_t n = strlen(token);
	while (*list) {
		list += strspn(list, " \t,");
		size_t item = strcspn(list, ", \t;");
		if (item == n && !strncasecmp(list, token, n)) return true;
		list += strcspn(list, ",");
	}
	return false;
}

static enum status take_length(struct reply *r, const char *value, struct error *err)
{
	uint64_t length = 0;
	size_t n = strspn(value, "0123456789");
	if (!n || n > 18 || value[n + strspn(value + n, " \t")]) return BAD(err, "Content-Length is no number");
	for (size_t i = 0; i < n; i++) length = length * 10 + (uint64_t)(value[i] - '0');
	if (r->has_length && length != r->left) return BAD(err, "two Content-Length that differ");
	r->has_length = true;
	r->left = length;
	return STATUS_OK;
}

static enum status header(struct reply *r, struct error *err)
{
	char *colon = strchr(r->line, ':');
	if (++r->headers > REPLY_MAX_HEADERS) return BAD(err, "too many headers");
	if (!colon || colon == r->line || strcspn(r->line, " \t") < (size_t)(colon - r->line)) return BAD(err, "a header without a name");
	*colon = 0;
	const char *value = colon + 1 + strspn(colon + 1, " \t");
	if (!strcasecmp(r->line, "content-length")) return take_length(r, value, err);
	if (!strcasecmp(r->line, "transfer-encoding")) {
		if (!has_token(value, "chunked")) return BAD(err, "a transfer coding other than chunked");
		r->chunked = true;
	} else if (!strcasecmp(r->line, "connection")) {
		if (has_token(value, "close")) r->close = true;
		else if (has_token(value, "keep-alive")) r->close = false;
	} else if (!strcasecmp(r->line, "content-type")) {
		r->event_stream = has_token(value, "text/event-stream");
	}
	return STATUS_OK;
}

static enum status headers_done(struct reply *r, struct error *err)
{
	if (r->status < 200) {
		*r = (struct reply){0};
		return STATUS_OK;
	}
	if (r->chunked && r->has_length) return BAD(err, "both Content-Length and chunked");
	if (r->status == 204 || r->status == 304) r->state = REPLY_DONE;
	else if (r->chunked) r->state = REPLY_CHUNK_SIZE;
	else if (r->has_length) r->state = r->left ? REPLY_BODY : REPLY_DONE;
	else r->state = REPLY_BODY, r->until_end = r->close = true;
	return STATUS_OK;
}

static enum status chunk_size(struct reply *r, struct error *err)
{
	size_t n = strspn(r->line, "0123456789abcdefABCDEF");
	if (!n || n > 15 || (r->line[n] && !strchr("; \t", r->line[n]))) return BAD(err, "a chunk without a size");
	r->left = strtoull(r->line, NULL, 16);
	r->state = r->left ? REPLY_BODY : REPLY_TRAILERS;
	return STATUS_OK;
}

static enum status take_line(struct reply *r, struct error *err)
{
	switch (r->state) {
	case REPLY_STATUS: return status_line(r, err);
	case REPLY_HEADERS: return r->line[0] ? header(r, err) : headers_done(r, err);
	case REPLY_CHUNK_SIZE: return chunk_size(r, err);
	case REPLY_CHUNK_END:
		r->state = REPLY_CHUNK_SIZE;
		return r->line[0] ? BAD(err, "a chunk longer than its size") : STATUS_OK;
	case REPLY_TRAILERS:
		if (!r->line[0]) r->state = REPLY_DONE;
		return ++r->headers > REPLY_MAX_HEADERS ? BAD(err, "too many trailers") : STATUS_OK;
	case REPLY_BODY:
	case REPLY_DONE: break;
	}
	return STATUS_OK;
}

/* Gathers a line; a last CR is dropped. */
static enum status take_byte(struct reply *r, char c, struct error *err)
{
	if (c != '\n') {
		if (!c) return BAD(err, "a NUL in a header");
		if (r->line_bytes == REPLY_MAX_LINE - 1) return BAD(err, "a line too long");
		r->line[r->line_bytes++] = c;
		return STATUS_OK;
	}
	if (r->line_bytes && r->line[r->line_bytes - 1] == '\r') r->line_bytes--;
	r->line[r->line_bytes] = 0;
	r->line_bytes = 0;
	return take_line(r, err);
}

enum status reply_feed(struct reply *r, const char *bytes, size_t n, size_t *used, bool (*body)(void *context, const char *bytes, size_t n),
                       void *context, struct error *err)
{
	size_t at = 0;
	*used = 0;
	while (at < n && r->state != REPLY_DONE) {
		if (r->state != REPLY_BODY) {
			TRY(take_byte(r, bytes[at++], err));
			continue;
		}
		size_t part = r->until_end || n - at < r->left ? n - at : (size_t)r->left;
		const char *from = bytes + at;
		at += part;
		if (!r->until_end) {
			r->left -= part;
			if (!r->left) r->state = r->chunked ? REPLY_CHUNK_END : REPLY_DONE;
		}
		if (!body(context, from, part)) break;
	}
	*used = at;
	return STATUS_OK;
}

enum status reply_end(struct reply *r, struct error *err)
{
	if (r->state == REPLY_BODY && r->until_end) r->state = REPLY_DONE;
	return r->state == REPLY_DONE ? STATUS_OK : BAD(err, "cut off");
}
