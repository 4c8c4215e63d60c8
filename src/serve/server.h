/* server.h: the HTTP server: OpenAI-compatible routes over one engine.
 *
 * Threads. The *server's* (whoever calls server_run) owns every connection and all state of requests; it runs libmicrohttpd in external mode
 * inside its own epoll loop, so that nothing about connections is locked. The *engine thread* (driver.h) calls the engine. Two
 * *workers* (work.c) parse bodies, render templates and tokenize, which may take long for a long prompt. /health, /metrics, /version and
 * /v1/models are answered by the server's thread from what the others published: they never wait for a step or a parse.
 *
 * Everything is bounded: connections, bytes of headers and bodies, requests in flight, output that a client has not read. The
 * numbers are in docs/SERVING.md.
 */
#ifndef TANDEM_SERVE_SERVER_H
#define TANDEM_SERVE_SERVER_H

#include "base/log.h"
#include "serve/facts.h"

struct server;

struct server_options {
	const struct facts *facts;   /* borrowed */
	struct tandem *engine;       /* borrowed; the server's threads alone call it until server_close */
	int listen_fd;               /* of server_listen; the server's from then on, also on failure */
	int signal_fd;               /* each byte that arrives is one wish to end: the first drains, the second ends at once */
	const char *api_key;         /* NULL: none */
	const char *cors_origin;     /* NULL: no cross-origin answers */
	int max_sequences;           /* of the engine */
	int max_queue;               /* sequences that wait, beyond those */
	size_t max_body;             /* bytes */
	int drain_seconds;           /* how long requests in flight may take after the first signal */
	int comment_seconds;         /* silence after which a stream gets an SSE comment; 0: never */
	int stall_ms;                /* a rank that has work and does not move for so long is told by /health */
	bool rebuild;                /* after a failure of the ranks; else server_run ends with it */
	struct log log;
};

/* A socket bound to host:port, not yet listening. *port becomes the real one where 0 was given. -1 in *fd on failure. */
enum status server_listen(int *fd, const char *host, int *port, struct error *err) NODISCARD;

enum status server_open(struct server **out, const struct server_options *options, struct error *err) NODISCARD;
/* Serves until a signal and the drain end it (OK; CANCELLED if in-flight requests were cut off), or the engine is lost (its status). */
enum status server_run(struct server *server, struct error *err) NODISCARD;
void server_close(struct server **server);

#endif
