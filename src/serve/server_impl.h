/* server_impl.h: what the parts of the server share. Everything here belongs to the server's thread unless it says otherwise.
 *
 *   http.c      sockets: accept, the loop, time limits, lingering closes
 *   exchange.c  one request and its answer as libmicrohttpd sees them
 *   routes.c    which path and method is what; short answers
 *   generate.c  completions and chats: admission, events of the engine, output
 *   tokens.c    /tokenize and /detokenize
 *   work.c      the workers
 *   server.c    opening, draining, ending
 */
#ifndef TANDEM_SERVE_SERVER_IMPL_H
#define TANDEM_SERVE_SERVER_IMPL_H

#include <microhttpd.h>
#include <stdatomic.h>

#include "serve/completion.h"
#include "serve/metrics.h"
#include "serve/page.h"
#include "serve/server.h"

#define SERVER_URL_BYTES 8192
#define SERVER_POOL_BYTES (32 * 1024)        /* request line and headers of a connection, and its write buffer */
#define SERVER_STREAM_BYTES (256 * 1024)     /* of a stream that its client has not read */
#define SERVER_MAX_CONNECTIONS 4096
#define SERVER_MAX_LINGER 256
#define SERVER_LINGER_BYTES (64u << 20)

#define SERVER_IDLE_MS 330000  /* between requests, and before the first */
#define SERVER_HEAD_MS 10000   /* request line and headers */
#define SERVER_BODY_MS 60000
#define SERVER_STALL_MS 30000  /* an answer of which the client takes nothing */
#define SERVER_LINGER_MS 2000
#define SERVER_TICK_MS 250

struct exchange;
struct route;

enum phase { PHASE_IDLE, PHASE_HEAD, PHASE_BODY, PHASE_WORK, PHASE_SEND };

/* What an epoll event is about. */
enum watch_kind { WATCH_LISTEN, WATCH_WAKE, WATCH_SIGNAL, WATCH_HTTP, WATCH_PEER, WATCH_LINGER };
struct watch {
	enum watch_kind kind;
};

struct connection {
	struct watch watch; /* PEER: is the client still there? */
	bool peer_closed;
	int fd;
	enum phase phase;
	uint64_t since_ns;      /* start of the phase; SEND: last progress */
	uint64_t bytes_seen;    /* IDLE: those of the requests before it; SEND: acknowledged at the last look */
	uint64_t bytes_taken;   /* of requests that are over, as far as known */
	bool clean;             /* the last answer was sent whole and nothing of a request is left unread */
	struct exchange *exchange;
	struct connection *next, *previous;
};

struct lingering {
	struct watch watch;
	int fd;
	uint64_t deadline_ns, bytes;
	struct lingering *next;
};

struct reply {
	int status; /* 0: none yet */
	const char *content_type;
	const char *policy; /* Content-Security-Policy of a page; NULL: it is none */
	struct buf body;
	int retry_after;
	const char *allow;  /* for 405 and OPTIONS */
	bool close;
};

enum work_kind { WORK_NONE, WORK_COMPLETIONS, WORK_CHAT, WORK_TOKENIZE, WORK_DETOKENIZE };

/* One request. Lives until its answer has ended for the client, no worker has it, and every job of it is over. */
struct exchange {
	struct server *server;
	struct MHD_Connection *mhd; /* NULL: the client side is over */
	struct connection *connection;
	const struct route *route;  /* NULL: unknown path */
	const char *method;         /* static */
	size_t url_bytes, head_bytes;
	bool url_cut;   /* a NUL ends the path that the library tells */
	bool seen;      /* the head was judged */
	bool dispatched; /* the route has it */
	bool suspended, streaming, early, chunked;
	char request_id[136];
	uint64_t arrival_ns, submitted_ns, spoke_ns;
	struct buf body;
	size_t body_counted;
	struct reply reply;
	bool replied;

	/* The worker's between work_put and its way back. */
	enum work_kind work;
	bool working;
	struct refusal refusal;
	struct completion *completion;
	int reserved; /* sequences that count against the limit */
	struct exchange *work_next;

	size_t sent; /* of the completion's output */
	size_t unsent, unsent_before; /* of it: now, and before the turn in which it last grew */
	size_t most_at_once;          /* by which it grew in one turn */
	uint64_t turn;                /* that turn */
	bool counted, measured, too_slow;
	struct exchange *next, *previous; /* of all */
};

enum server_state { SERVER_READY, SERVER_DRAINING, SERVER_ENDING };

struct server {
	struct server_options options;
	const struct facts *facts;
	char page_policy[PAGE_POLICY_BYTES];
	struct driver *driver;
	struct workers *workers;
	struct metrics metrics;
	struct MHD_Daemon *daemon;
	int epoll_fd, wake_fd;
	struct watch on_listen, on_wake, on_signal, on_http;
	struct connection *connections;
	int connection_count, max_connections;
	bool deaf; /* the listener is not watched until the next tick */
	struct lingering *lingers;
	int linger_count;
	struct exchange *exchanges;
	_Atomic int admitted;   /* sequences running or queued; workers take, the server's thread gives back */
	size_t body_bytes;      /* of all bodies held */
	_Atomic uint64_t next_seed;
	uint64_t turn;          /* of the loop */
	uint64_t ticked_ns;
	uint64_t moves[DRIVER_MAX_RANKS], moved_ns[DRIVER_MAX_RANKS]; /* of each rank: how far it was, and since when it is there */
	enum server_state state;
	int signals;
	uint64_t deadline_ns;   /* DRAINING: when patience ends; ENDING: when the last bytes must be out */
	bool cut_off;           /* requests were ended by us */
};

/* http.c */
enum status http_open(struct server *s, struct error *err) NODISCARD;
void http_close(struct server *s);
/* One turn of the loop. */
void http_turn(struct server *s);
void http_wake(void *server); /* any thread */
void http_phase(struct connection *c, enum phase phase);
/* An answer written past libmicrohttpd, which cannot answer while a body arrives; the connection must then be closed. */
void http_refuse_raw(struct server *s, int fd, const struct refusal *why);

/* exchange.c */
enum MHD_Result exchange_handle(void *server, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
                                const char *data, size_t *size, void **context);
void *exchange_begin(void *server, const char *uri, struct MHD_Connection *mhd);
void exchange_completed(void *server, struct MHD_Connection *mhd, void **context, enum MHD_RequestTerminationCode how);
/* Its connection was closed before libmicrohttpd told anybody of the request. */
void exchange_lost(struct exchange *x);
/* Something has changed: lets libmicrohttpd call again. */
void exchange_resume(struct exchange *x);
/* Frees it if nobody needs it any more. */
void exchange_release(struct exchange *x);
void exchange_refuse(struct exchange *x, const struct refusal *why);
void exchange_count(struct exchange *x, int status);

/* routes.c */
const struct route *routes_find(const char *url, bool *wrong_method, const char *method, const char **allow);
bool routes_open(const struct route *route);      /* needs no key */
bool routes_takes_body(const struct route *route);
int routes_number(const struct route *route);     /* NULL: the last number */
const char *const *routes_names(int *count);
/* The request is complete: fills x->reply, or hands it on. */
void routes_dispatch(struct exchange *x);
/* Looks how far every rank is. */
void routes_look_at_ranks(struct server *s, uint64_t now_ns);

/* generate.c */
void generate_start(struct exchange *x, enum work_kind kind);
/* In a worker: everything up to the submission. */
void generate_prepare(struct exchange *x);
/* In the server's thread: takes what the workers have prepared, and what the engine says. */
void generate_pump(struct server *s);
void generate_gone(struct exchange *x);
/* Bytes for the client: > 0, 0 for none yet, -1 at the end, -2 to break off. */
ssize_t generate_read(struct exchange *x, char *out, size_t max);
void generate_fail_all(struct server *s, const struct refusal *why);
void generate_tick(struct server *s, uint64_t now_ns);
/* Sequences that were admitted and that the engine does not have yet. */
int generate_waiting(struct server *s, const struct driver_status *d);

/* tokens.c: /tokenize and /detokenize, in a worker */
void tokens_tokenize(struct exchange *x);
void tokens_detokenize(struct exchange *x);

/* work.c */
enum status work_open(struct server *s, struct error *err) NODISCARD;
void work_close(struct server *s);
void work_put(struct server *s, struct exchange *x);
struct exchange *work_take_done(struct server *s);

#endif
