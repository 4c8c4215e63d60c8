#include "client/fetch.h"

enum status peer_init(struct peer *peer, const char *url, const char *api_key, uint32_t timeout_ms, struct error *err)
{
	*peer = (struct peer){.api_key = api_key, .timeout_ms = timeout_ms};
	TRY(url_parse(&peer->url, url, err));
	return url_resolve(&peer->url, &peer->address, &peer->address_length, err);
}

enum status fetch_head(const struct peer *peer, const char *method, const char *path, size_t body_bytes, struct buf *out, struct error *err)
{
	const struct url *u = &peer->url;
	TRY(buf_printf(out, err, "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%d\r\nUser-Agent: tandem\r\n", method, u->path, path, u->brackets ? "[" : "", u->host,
	               u->brackets ? "]" : "", u->port));
	if (peer->api_key) TRY(buf_printf(out, err, "Authorization: Bearer %s\r\n", peer->api_key));
	if (body_bytes) TRY(buf_printf(out, err, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body_bytes));
	return buf_puts(out, "\r\n", err);
}

struct question {
	const struct peer *peer;
	const char *path;
	struct buf *body;
	struct load_answer answer;
	enum status failed;
};

static enum status on_request(void *context, int index, struct buf *out, struct error *err)
{
	const struct question *q = context;
	(void)index;
	return fetch_head(q->peer, "GET", q->path, 0, out, err);
}

static bool on_event(void *context, int index, const char *data, size_t n, uint64_t now_ns)
{
	(void)context, (void)index, (void)data, (void)n, (void)now_ns;
	return false; /* a stream was not asked for */
}

static void on_end(void *context, int index, const struct load_answer *answer)
{
	struct question *q = context;
	(void)index;
	q->answer = *answer;
	q->failed = buf_append(q->body, answer->body, answer->body_bytes, NULL);
}

enum status fetch(const struct peer *peer, const char *path, struct buf *body, int *status, struct error *err)
{
	struct question q = {.peer = peer, .path = path, .body = body};
	struct load_options options = {.address = &peer->address, .address_length = peer->address_length, .count = 1, .concurrency = 1,
	                               .timeout_ms = peer->timeout_ms, .context = &q, .request = on_request, .event = on_event, .end = on_end};
	*status = 0;
	buf_clear(body);
	TRY(load_run(&options, err));
	if (q.failed != STATUS_OK) return FAIL(err, NO_MEMORY, "%s: no memory for the answer", path);
	if (q.answer.end != LOAD_DONE)
		return FAIL(err, IO, "%s port %d: %s; is a server running there?", peer->url.host, peer->url.port, load_end_text(q.answer.end));
	*status = q.answer.status;
	return STATUS_OK;
}
