/* One request and its answer as libmicrohttpd sees them: judging the head, collecting the body, sending what the routes made.
 *
 * libmicrohttpd 0.9.75 accepts more than it should in a head: two Content-Length, a Transfer-Encoding beside one, white space in a field
 * name. A folded line it takes for the rest of the field's name: `Content-Length: 5` and ` 0` give a field `Content-Length0`. Each of these lets
 * two hops disagree on where a request ends, so they are refused here and the connection is closed. It also cannot answer while a body arrives;
 * see http_refuse_raw. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/server_impl.h"
#include "serve/tcp.h"

/* ---- the head ---- */

#define DISCARD_BYTES 65536 /* of a body that is read only to keep the connection */

struct head {
	const char *content_length, *transfer_encoding, *host, *authorization, *expect, *request_id;
	const char *twice; /* a field that came twice with different values, or twice where that is never right */
	const char *end; /* of what was looked at last; NULL: lines do not lie where they came in */
	bool bad_name, folded;
};

static bool token_char(unsigned char c)
{
	return c > 0x20 && c < 0x7f && !strchr("\"(),/:;<=>?@[\\]{}", c);
}

static void note(const char **slot, const char *name, const char *value, bool never_twice, struct head *h)
{
	if (*slot && (never_twice || strcmp(*slot, value) != 0)) h->twice = name;
	if (!*slot) *slot = value;
}

/* libmicrohttpd 0.9 leaves the lines where they came in, one behind the other, with a NUL where their end was. Between them is a folded line, or the name
 * that it was put to lies elsewhere; or a value has a NUL of its own. Later versions unfold a line as RFC 9112 has it, and trim values. */
static bool lines_lie_still(void)
{
	return !strncmp(MHD_get_version(), "0.9.", 4);
}

static bool next_line(const char *end, const char *line)
{
	uintptr_t gap = (uintptr_t)line - (uintptr_t)end;
	return gap == 1 || gap == 2; /* LF, CR LF */
}

static enum MHD_Result look_at(void *context, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct head *h = context;
	(void)kind;
	if (!value) value = "";
	h->folded |= h->end && !next_line(h->end, name);
	if (h->end) h->end = value + strlen(value);
	if (!*name) h->bad_name = true;
	for (const char *c = name; *c; c++) h->bad_name |= !token_char((unsigned char)*c);
	if (!strcasecmp(name, "content-length")) note(&h->content_length, "Content-Length", value, true, h);
	else if (!strcasecmp(name, "transfer-encoding")) note(&h->transfer_encoding, "Transfer-Encoding", value, true, h);
	else if (!strcasecmp(name, "host")) note(&h->host, "Host", value, true, h);
	else if (!strcasecmp(name, "authorization")) note(&h->authorization, "Authorization", value, false, h);
	else if (!strcasecmp(name, "expect")) note(&h->expect, "Expect", value, false, h);
	else if (!strcasecmp(name, "x-request-id") && !h->request_id) h->request_id = value;
	return MHD_YES;
}

/* Of a field's value: libmicrohttpd leaves the white space behind it there. */
static size_t value_bytes(const char *value)
{
	size_t n = strlen(value);
	while (n && (value[n - 1] == ' ' || value[n - 1] == '\t')) n--;
	return n;
}

static bool value_is(const char *value, const char *word)
{
	size_t n = strlen(word);
	return value_bytes(value) == n && !strncasecmp(value, word, n);
}

static enum status check_framing(const struct head *h, const char *version, struct refusal *r)
{
	bool old = !strcmp(version, "HTTP/1.0");
	if (h->folded) return refuse(r, 400, NULL, "a header field is folded over several lines, or holds a NUL");
	if (h->bad_name) return refuse(r, 400, NULL, "the name of a header field holds a character that no name may hold");
	if (h->twice) return refuse(r, 400, NULL, "the header field %s is given twice", h->twice);
	if (h->transfer_encoding && (h->content_length || old))
		return refuse(r, 400, NULL, "Transfer-Encoding beside %s", old ? "HTTP/1.0" : "Content-Length");
	if (h->transfer_encoding && strcasecmp(h->transfer_encoding, "chunked") != 0) /* with a blank behind it the library knows no frame */
		return refuse(r, 501, NULL, "the transfer encoding is not supported; use chunked or Content-Length");
	if (!h->host && !old) return refuse(r, 400, NULL, "the header field Host is missing");
	if (h->expect && !value_is(h->expect, "100-continue")) return refuse(r, 417, NULL, "the expectation is not one that this server meets");
	return STATUS_OK;
}

/* In the time that the longer of the two takes, wherever they differ. */
static bool same_secret(const char *given, const char *secret)
{
	size_t n = value_bytes(given), m = strlen(secret);
	unsigned different = (unsigned)(n ^ m) | (unsigned)((n ^ m) >> 32);
	for (size_t i = 0; i < (n > m ? n : m); i++) different |= (unsigned)((unsigned char)given[n ? i % n : 0] ^ (unsigned char)secret[m ? i % m : 0]);
	return different == 0;
}

static enum status check_key(const struct exchange *x, const struct head *h, struct refusal *r)
{
	const char *key = x->server->options.api_key, *given = h->authorization;
	if (!key || (x->route && routes_open(x->route)) || !strcmp(x->method, "OPTIONS")) return STATUS_OK;
	if (given && !strncasecmp(given, "bearer", 6) && (given[6] == ' ' || given[6] == '\t')) {
		given += 6;
		given += strspn(given, " \t");
		if (same_secret(given, key)) return STATUS_OK;
	}
	return refuse(r, 401, NULL, "the API key is %s; send it as Authorization: Bearer KEY", h->authorization ? "not the right one" : "missing");
}

static enum status check_body_size(const struct exchange *x, const struct head *h, struct refusal *r)
{
	size_t most = x->server->options.max_body;
	if (!h->content_length) return STATUS_OK;
	size_t n = strlen(h->content_length);
	bool over = n > 18 || strtoull(h->content_length, NULL, 10) > most;
	return over ? refuse(r, 413, NULL, "the body is larger than the limit of this server, %zu bytes", most) : STATUS_OK;
}

static const char *static_method(const char *method)
{
	static const char *const known[] = {"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (!strcmp(method, known[i])) return known[i];
	return "other";
}

static void keep_request_id(struct exchange *x, const char *id)
{
	size_t n = id ? value_bytes(id) : 0;
	if (!n || n >= sizeof x->request_id) return;
	for (size_t i = 0; i < n; i++)
		if (id[i] < 0x20 || id[i] == 0x7f) return;
	memcpy(x->request_id, id, n);
	x->request_id[n] = 0;
}

/* The path of a target that begins with scheme and authority, as proxies are asked (RFC 9112, 3.2.2). */
static const char *path_of(const char *url)
{
	if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0) return url;
	const char *path = strchr(strchr(url, ':') + 3, '/');
	return path ? path : "/";
}

/* Everything that can be said before the body. `early`: say it now and close, because where the body ends is not certain, or it is
 * not worth reading; else a short body is read and forgotten, so that the connection can be used again. */
static enum status judge_head(struct exchange *x, const char *url, const char *method, const char *version, struct refusal *r)
{
	struct head h = {.end = lines_lie_still() ? version + strlen(version) : NULL};
	bool wrong_method;
	const char *allow = NULL;
	MHD_get_connection_values(x->mhd, MHD_HEADER_KIND, look_at, &h);
	h.folded |= h.end && (uintptr_t)method + x->head_bytes - (uintptr_t)h.end > 4; /* two ends of line */
	x->method = static_method(method);
	x->route = routes_find(path_of(url), &wrong_method, method, &allow);
	x->early = true;
	x->chunked = h.transfer_encoding;
	keep_request_id(x, h.request_id);
	if (x->url_bytes > SERVER_URL_BYTES) return refuse(r, 414, NULL, "the URL is longer than %d bytes", SERVER_URL_BYTES);
	TRY(check_framing(&h, version, r));
	if (x->url_cut) return refuse(r, 400, NULL, "the path holds a NUL");
	x->early = h.expect || h.transfer_encoding || (h.content_length && (strlen(h.content_length) > 9 || atol(h.content_length) > DISCARD_BYTES));
	TRY(check_key(x, &h, r));
	if (!x->route) return refuse(r, 404, NULL, "this path does not exist");
	x->reply.allow = allow;
	if (wrong_method) return refuse(r, 405, NULL, "this path does not take this method; it takes %s", allow);
	x->early = true;
	TRY(check_body_size(x, &h, r));
	x->early = false;
	return STATUS_OK;
}

/* ---- answers ---- */

void exchange_refuse(struct exchange *x, const struct refusal *why)
{
	struct out out = {0};
	refusal_write(why, &out);
	buf_fini(&x->reply.body);
	x->reply.status = why->status;
	x->reply.content_type = "application/json";
	x->reply.retry_after = why->retry_after;
	x->reply.body = out.buf;
}

void exchange_count(struct exchange *x, int status)
{
	int number = routes_number(x->route), count;
	if (x->counted) return;
	x->counted = true;
	metrics_http(&x->server->metrics, number, routes_names(&count)[number], x->method ? x->method : "other", status,
	             (double)(clock_ns() - x->arrival_ns) / 1e9);
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
	(void)MHD_add_response_header(response, name, value); /* without memory the answer goes without it */
}

static void common_headers(const struct exchange *x, struct MHD_Response *response, const char *content_type)
{
	const struct server_options *o = &x->server->options;
	if (content_type) add_header(response, "Content-Type", content_type);
	if (x->request_id[0]) add_header(response, "X-Request-Id", x->request_id);
	if (o->cors_origin) {
		add_header(response, "Access-Control-Allow-Origin", o->cors_origin);
		add_header(response, "Vary", "Origin");
	}
}

/* A page may send the fields that its request has: what counts is the key. `asked`: their names, as the browser lists them. */
static const char *allowed_headers(const char *asked)
{
	static const char usual[] = "Authorization, Content-Type, X-Request-Id";
	if (!asked || !*asked) return usual;
	for (const char *c = asked; *c; c++)
		if (!token_char((unsigned char)*c) && !strchr(", \t", *c)) return usual;
	return asked;
}

static void reply_headers(const struct exchange *x, struct MHD_Response *response)
{
	const struct reply *reply = &x->reply;
	char seconds[16];
	common_headers(x, response, reply->content_type);
	if (reply->retry_after) {
		snprintf(seconds, sizeof seconds, "%d", reply->retry_after);
		add_header(response, "Retry-After", seconds);
	}
	if (reply->policy) {
		add_header(response, "Content-Security-Policy", reply->policy);
		add_header(response, "X-Content-Type-Options", "nosniff");
		add_header(response, "Referrer-Policy", "no-referrer");
		add_header(response, "Cache-Control", "no-cache");
	}
	if (reply->status == 401) add_header(response, "WWW-Authenticate", "Bearer");
	if (reply->allow && (reply->status == 405 || !strcmp(x->method, "OPTIONS"))) add_header(response, "Allow", reply->allow);
	if (x->server->options.cors_origin && !strcmp(x->method, "OPTIONS")) {
		add_header(response, "Access-Control-Allow-Methods", reply->allow ? reply->allow : "GET");
		add_header(response, "Access-Control-Allow-Headers",
		           allowed_headers(MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Access-Control-Request-Headers")));
		add_header(response, "Vary", "Access-Control-Request-Headers");
		add_header(response, "Access-Control-Max-Age", "600");
	}
	if (reply->close || x->server->state != SERVER_READY) add_header(response, "Connection", "close");
}

static enum MHD_Result send_reply(struct exchange *x)
{
	struct buf body = x->reply.body;
	x->reply.body = (struct buf){0};
	struct MHD_Response *response =
		MHD_create_response_from_buffer(body.size, body.data ? body.data : (void *)"", body.data ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
	if (!response) {
		free(body.data);
		return MHD_NO;
	}
	reply_headers(x, response);
	x->replied = true;
	http_phase(x->connection, PHASE_SEND);
	exchange_count(x, x->reply.status);
	enum MHD_Result result = MHD_queue_response(x->mhd, (unsigned)x->reply.status, response);
	MHD_destroy_response(response);
	return result;
}

static ssize_t read_stream(void *context, uint64_t position, char *out, size_t max)
{
	struct exchange *x = context;
	(void)position;
	ssize_t n = generate_read(x, out, max);
	if (n == -1) {
		exchange_count(x, 200);
		return MHD_CONTENT_READER_END_OF_STREAM;
	}
	if (n < 0) return MHD_CONTENT_READER_END_WITH_ERROR;
	http_phase(x->connection, n ? PHASE_SEND : PHASE_WORK);
	if (!n) {
		x->suspended = true;
		MHD_suspend_connection(x->mhd);
	}
	return n;
}

static enum MHD_Result send_stream(struct exchange *x)
{
	struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 1024, read_stream, x, NULL);
	if (!response) return MHD_NO;
	common_headers(x, response, "text/event-stream");
	add_header(response, "Cache-Control", "no-cache");
	add_header(response, "X-Accel-Buffering", "no");
	if (x->server->state != SERVER_READY) add_header(response, "Connection", "close");
	x->replied = x->streaming = true;
	http_phase(x->connection, PHASE_SEND);
	enum MHD_Result result = MHD_queue_response(x->mhd, 200, response);
	MHD_destroy_response(response);
	return result;
}

/* ---- the body ---- */

/* An error while the body arrives: the answer goes out past the library, and the connection ends. */
static enum MHD_Result break_off(struct exchange *x, int status, const char *message)
{
	struct refusal why;
	(void)refuse(&why, status, NULL, "%s", message);
	http_refuse_raw(x->server, x->connection->fd, &why);
	exchange_count(x, status);
	return MHD_NO;
}

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t *size)
{
	struct server *s = x->server;
	if (!x->body_counted) http_phase(x->connection, PHASE_BODY);
	if (x->body.size + *size > s->options.max_body) return break_off(x, 413, "the body is larger than the limit of this server");
	if (!x->reply.status && routes_takes_body(x->route)) {
		size_t most = 16 * s->options.max_body > (64u << 20) ? 16 * s->options.max_body : 64u << 20;
		if (s->body_bytes + *size > most || buf_append(&x->body, data, *size, NULL) != STATUS_OK)
			return break_off(x, 503, "the server holds too many request bodies; try again later");
		s->body_bytes += *size;
	}
	x->body_counted += *size;
	*size = 0;
	return MHD_YES;
}

/* ---- what libmicrohttpd calls ---- */

void *exchange_begin(void *server, const char *uri, struct MHD_Connection *mhd)
{
	struct server *s = server;
	struct exchange *x = mem_zalloc(1, sizeof *x, "request", NULL);
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	if (!x || !info || !info->socket_context) {
		free(x);
		return NULL;
	}
	x->server = s;
	x->mhd = mhd;
	x->connection = info->socket_context;
	x->connection->exchange = x;
	x->connection->clean = false;
	x->arrival_ns = clock_ns();
	x->url_bytes = strlen(uri);
	const char *nul = strstr(uri, "%00");
	x->url_cut = nul && nul < uri + strcspn(uri, "?");
	x->next = s->exchanges;
	if (x->next) x->next->previous = x;
	s->exchanges = x;
	http_phase(x->connection, PHASE_HEAD);
	return x;
}

static enum MHD_Result begin_answer(struct exchange *x)
{
	if (!x->dispatched) {
		x->dispatched = true;
		http_phase(x->connection, PHASE_WORK);
		routes_dispatch(x);
	}
	if (!x->working && x->reply.status) return send_reply(x);
	if (!x->working && x->completion && completion_begun(x->completion)) return send_stream(x);
	if (x->connection->peer_closed) return MHD_NO;
	x->suspended = true;
	MHD_suspend_connection(x->mhd);
	return MHD_YES;
}

enum MHD_Result exchange_handle(void *server, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                const char *data, size_t *size, void **context)
{
	struct exchange *x = *context;
	struct refusal why;
	(void)server;
	if (!x) return MHD_NO; /* no memory for it */
	if (!x->seen) {
		const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
		x->seen = true;
		x->head_bytes = info ? info->header_size : 0;
		http_phase(x->connection, PHASE_BODY);
		if (judge_head(x, url, method, version, &why) == STATUS_OK) return MHD_YES;
		exchange_refuse(x, &why);
		x->dispatched = true;
		x->reply.close = x->early;
		return x->early ? send_reply(x) : MHD_YES;
	}
	if (*size) return take_body(x, data, size);
	if (x->replied) return MHD_YES;
	return begin_answer(x);
}

/* The client side is over, well or not. */
static void part(struct exchange *x)
{
	exchange_count(x, x->replied ? (x->streaming ? 200 : x->reply.status) : 499);
	x->connection->exchange = NULL;
	x->connection = NULL;
	x->mhd = NULL;
	x->suspended = false;
	generate_gone(x);
	exchange_release(x);
}

/* What came beyond this request is the begin of the next head, whose time then runs. How long the frames of chunks were is not known: behind such a
 * request what has come counts as its own. */
static void count_taken(struct exchange *x)
{
	struct connection *c = x->connection;
	uint64_t received = tcp_bytes(c->fd).received, taken = c->bytes_taken + x->head_bytes + x->body_counted;
	c->bytes_taken = x->chunked || taken > received ? received : taken;
}

void exchange_completed(void *server, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how)
{
	struct exchange *x = *context;
	(void)server;
	(void)mhd;
	*context = NULL;
	if (!x) return;
	x->connection->clean = how == MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->early;
	count_taken(x);
	http_phase(x->connection, PHASE_IDLE);
	part(x);
}

void exchange_lost(struct exchange *x)
{
	part(x);
}

void exchange_resume(struct exchange *x)
{
	if (!x->suspended || !x->mhd) return;
	x->suspended = false;
	MHD_resume_connection(x->mhd);
}

void exchange_release(struct exchange *x)
{
	struct server *s = x->server;
	if (x->mhd || x->working || (x->completion && !completion_idle(x->completion))) return;
	if (x->previous) x->previous->next = x->next;
	else s->exchanges = x->next;
	if (x->next) x->next->previous = x->previous;
	atomic_fetch_sub(&s->admitted, x->reserved);
	s->body_bytes -= x->body.size;
	completion_destroy(&x->completion);
	buf_fini(&x->body);
	buf_fini(&x->reply.body);
	free(x);
}
