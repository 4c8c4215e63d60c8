/* The load engine against a server that does what servers should not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/fetch.h"

#define STREAM "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
#define BODY "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

/* What the server does with one request; the path says which. */
static const struct script {
	const char *reply;
	enum { KEEP, CLOSE, RESET, SILENT } then;
	enum load_end end;
	int status, events;
} scripts[] = {
	{BODY, KEEP, LOAD_DONE, 200, 0},
	{BODY, CLOSE, LOAD_DONE, 200, 0}, /* says nothing of closing: the next request on this connection meets an end */
	{"", RESET, LOAD_LOST, 0, 0},
	{STREAM "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n", KEEP, LOAD_DONE, 200, 2},
	{STREAM "9\r\ndata: 1\n\n\r\n9\r\nda", CLOSE, LOAD_LOST, 200, 1},
	{"", CLOSE, LOAD_LOST, 0, 0},
	{"HTTP/1.1 200 OK\r\nContent-", CLOSE, LOAD_LOST, 200, 0},
	{"220 mail.example ready\r\n", CLOSE, LOAD_BAD_RESPONSE, 0, 0},
	{STREAM "zz\r\n", KEEP, LOAD_BAD_RESPONSE, 200, 0},
	{"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n", CLOSE, LOAD_DONE, 200, 1},
	{"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull", CLOSE, LOAD_DONE, 503, 0},
	{STREAM "9\r\ndata: 1\n\n\r\n9\r\ndata: X\n\n\r\n9\r\ndata: 3\n\n\r\n", SILENT, LOAD_HUNG_UP, 200, 2},
	{STREAM "9\r\ndata: 1\n\n\r\n", SILENT, LOAD_TIMEOUT, 200, 1},
	{"", SILENT, LOAD_TIMEOUT, 0, 0},
};
#define SCRIPTS ((int)(sizeof scripts / sizeof scripts[0]))
#define LIVELY (SCRIPTS - 2) /* those before the ones that end by the client's patience */
#define LONG_MS 30000        /* of silence: no thread of the server is that late */
#define SHORT_MS 2500
#define REQUESTS 600

struct server {
	int fd;
	_Atomic int connections;
	struct peer peer;
};

/* False: this connection is over. */
static bool answer(int fd, const char *request)
{
	int number = atoi(strchr(request, '/') + 1);
	const struct script *s = &scripts[number];
	for (const char *at = s->reply; *at; at++) /* byte by byte, as the network may */
		if (send(fd, at, 1, MSG_NOSIGNAL) != 1) return false;
	if (s->then == SILENT) {
		char byte;
		while (recv(fd, &byte, 1, 0) > 0) {}
	}
	if (s->then == RESET) setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	return s->then == KEEP;
}

static void *serve_connection(void *context)
{
	int fd = (int)(intptr_t)context;
	char request[4096];
	size_t n = 0;
	for (;;) {
		ssize_t got = recv(fd, request + n, sizeof request - 1 - n, 0);
		if (got <= 0) break;
		n += (size_t)got;
		request[n] = 0;
		if (!strstr(request, "\r\n\r\n")) continue;
		n = 0;
		if (!answer(fd, request)) break;
	}
	close(fd);
	return NULL;
}

static void *serve(void *context)
{
	struct server *server = context;
	for (;;) {
		pthread_t thread;
		int fd = accept(server->fd, NULL, NULL);
		if (fd < 0) return NULL;
		server->connections++;
		if (pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)fd)) abort();
		pthread_detach(thread);
	}
}

struct outcome {
	int ends, events, status;
	enum load_end end;
	char body[16];
};

struct client {
	struct server *server;
	struct outcome *outcomes;
	int first, scripts; /* these, in turn */
};

static int script_of(const struct client *c, int index)
{
	return c->first + index % c->scripts;
}

static enum status on_request(void *context, int index, struct buf *out, struct error *err)
{
	struct client *c = context;
	char path[16];
	snprintf(path, sizeof path, "/%d", script_of(c, index));
	return fetch_head(&c->server->peer, "GET", path, 0, out, err);
}

static bool on_event(void *context, int index, const char *data, size_t n, uint64_t now_ns)
{
	struct client *c = context;
	(void)now_ns;
	c->outcomes[index].events++;
	return !(n == 1 && *data == 'X');
}

static void on_end(void *context, int index, const struct load_answer *a)
{
	struct client *c = context;
	struct outcome *o = &c->outcomes[index];
	o->ends++;
	o->end = a->end;
	o->status = a->status;
	snprintf(o->body, sizeof o->body, "%s", a->body);
}

static void run(struct client *c, int count, int concurrency)
{
	struct error err = {0};
	const uint32_t timeout_ms = c->first + c->scripts > LIVELY ? SHORT_MS : LONG_MS;
	struct load_options options = {.address = &c->server->peer.address, .address_length = c->server->peer.address_length, .count = count,
	                               .concurrency = concurrency, .timeout_ms = timeout_ms, .context = c, .request = on_request, .event = on_event, .end = on_end};
	c->outcomes = calloc((size_t)count, sizeof *c->outcomes);
	assert_non_null(c->outcomes);
	if (load_run(&options, &err) != STATUS_OK) fail_msg("%s", err.text);
	for (int i = 0; i < count; i++) {
		const struct script *s = &scripts[script_of(c, i)];
		const struct outcome *o = &c->outcomes[i];
		if (o->ends != 1 || o->end != s->end || o->events != s->events || (o->status != s->status && s->end == LOAD_DONE))
			fail_msg("request %d, script %d: %d ends, '%s' (not '%s'), status %d, %d events", i, script_of(c, i), o->ends, load_end_text(o->end),
			         load_end_text(s->end), o->status, o->events);
		if (s->events == 0 && s->end == LOAD_DONE) assert_string_equal(o->body, s->status == 200 ? "ok" : "full");
	}
	free(c->outcomes);
}

static int set_up(void **state)
{
	static struct server server;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	char url[48];
	pthread_t thread;
	server.fd = socket(AF_INET, SOCK_STREAM, 0);
	if (server.fd < 0 || bind(server.fd, (struct sockaddr *)&address, size) || listen(server.fd, 128)) return -1;
	if (getsockname(server.fd, (struct sockaddr *)&address, &size)) return -1;
	snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(address.sin_port));
	if (peer_init(&server.peer, url, NULL, LONG_MS, NULL) != STATUS_OK) return -1;
	*state = &server;
	return pthread_create(&thread, NULL, serve, &server) || pthread_detach(thread);
}

static void test_each(void **state)
{
	for (int i = 0; i < LIVELY; i++) run(&(struct client){.server = *state, .first = i, .scripts = 1}, 3, 1);
}

/* Connections that one script spoilt are met by the next. */
static void test_mixed(void **state)
{
	run(&(struct client){.server = *state, .scripts = LIVELY}, REQUESTS, 1 + SCRIPTS);
	run(&(struct client){.server = *state, .scripts = LIVELY}, REQUESTS, 64);
}

/* Those that time out, several at a time, and what comes after them in their places. */
static void test_silence(void **state)
{
	run(&(struct client){.server = *state, .scripts = SCRIPTS}, 4 * SCRIPTS, 4);
}

static void test_reuse(void **state)
{
	struct server *server = *state;
	int before = server->connections;
	run(&(struct client){.server = server, .scripts = 1}, 50, 1);
	assert_int_equal(server->connections, before + 1);
}

static void test_nobody(void **state)
{
	struct server *server = *state;
	struct peer peer;
	struct buf body = {0};
	struct error err = {0};
	int status, fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	char url[48];
	/* bound, but not listening */
	assert_int_equal(bind(fd, (struct sockaddr *)&address, size) | getsockname(fd, (struct sockaddr *)&address, &size), 0);
	snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(address.sin_port));
	assert_int_equal(peer_init(&peer, url, NULL, LONG_MS, NULL), STATUS_OK);
	assert_int_equal(fetch(&peer, "/0", &body, &status, &err), STATUS_IO);
	assert_non_null(strstr(err.text, "connection refused"));
	assert_int_equal(fetch(&server->peer, "/0", &body, &status, NULL), STATUS_OK);
	assert_int_equal(status, 200);
	assert_string_equal(body.data, "ok");
	buf_fini(&body);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_each), cmocka_unit_test(test_mixed), cmocka_unit_test(test_silence), cmocka_unit_test(test_reuse), cmocka_unit_test(test_nobody)};
	return cmocka_run_group_tests(tests, set_up, NULL);
}
