/* Sockets: accepting, the loop, time limits, closes that let the client read.
 *
 * libmicrohttpd runs in external mode: it owns an epoll set of its own, which is one of the things that ours waits for. Why so: a stream
 * is woken by the engine for each token, hundreds of times a second; with the library's own thread every wake goes through its
 * lock and pipe and finds its state under foreign control, while here whoever takes the token also runs the connection.
 *
 * What the library does not do is done here. A connection beyond the limit gets a 503. Each phase of a request has a time limit that
 * dribbling bytes do not extend. A client that goes away while its request waits is noticed (the library does not look at suspended
 * connections). A connection that is closed with unread input would be reset, and the client might lose the answer; so such a socket is
 * kept by a duplicate descriptor that reads on for a moment. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/server_impl.h"
#include "serve/tcp.h"

#define MAX_EVENTS 128
#define ACCEPT_AT_ONCE 64
#define BACKLOG 1024
#define FILES_WANTED 65535
#define FILES_KEPT (SERVER_MAX_LINGER + 128) /* for everything that is no connection */

/* ---- listening ---- */

static enum status bind_one(int *out, const struct addrinfo *a, const char *host, struct error *err)
{
	int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0) return FAIL(err, IO, "--host %s: %s; try another address", host, strerror(errno));
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	if (bind(fd, a->ai_addr, a->ai_addrlen) == 0) {
		*out = fd;
		return STATUS_OK;
	}
	int why = errno;
	close(fd);
	return FAIL(err, IO, "--host %s --port: %s; %s", host, strerror(why), why == EADDRINUSE ? "another program listens there, choose another port" : "try another address or port");
}

enum status server_listen(int *fd, const char *host, int *port, struct error *err)
{
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
	char service[16];
	*fd = -1;
	snprintf(service, sizeof service, "%d", *port);
	int code = getaddrinfo(host, service, &hints, &list);
	if (code) return FAIL(err, USAGE, "--host %s: %s; give an address of this machine", host, gai_strerror(code));
	enum status st = bind_one(fd, list, host, err);
	freeaddrinfo(list);
	TRY(st);
	struct sockaddr_storage name;
	socklen_t size = sizeof name;
	if (getsockname(*fd, (struct sockaddr *)&name, &size) == 0)
		*port = ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port : ((struct sockaddr_in *)&name)->sin_port);
	return STATUS_OK;
}

/* ---- epoll ---- */

static bool watch_add(struct server *s, int fd, uint32_t events, struct watch *watch)
{
	struct epoll_event event = {.events = events, .data.ptr = watch};
	return epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static void watch_remove(struct server *s, int fd)
{
	epoll_ctl(s->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void http_wake(void *server)
{
	struct server *s = server;
	uint64_t one = 1;
	ssize_t n = write(s->wake_fd, &one, sizeof one);
	(void)n; /* full means that it is awake already */
}

/* ---- progress ---- */

void http_phase(struct connection *c, enum phase phase)
{
	if (c->phase == phase) return;
	c->phase = phase;
	c->since_ns = clock_ns();
	c->bytes_seen = 0;
	if (phase == PHASE_IDLE) c->bytes_seen = c->bytes_taken;
}

static int fd_of(struct MHD_Connection *mhd)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
	return info ? info->connect_fd : -1;
}

void http_refuse_raw(struct server *s, int fd, const struct refusal *why)
{
	struct out body = {0}, out = {0};
	const char *origin = s->options.cors_origin;
	refusal_write(why, &body);
	out_printf(&out, "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n", why->status,
	           MHD_get_reason_phrase_for((unsigned)why->status), body.buf.size);
	if (why->retry_after) out_printf(&out, "Retry-After: %d\r\n", why->retry_after);
	if (origin) out_printf(&out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", origin);
	out_puts(&out, "\r\n");
	out_bytes(&out, body.buf.data, body.buf.size);
	/* Nothing was sent on this connection yet, so that a few hundred bytes fit; if not, the client has no use for them. */
	if (!out.failed && !body.failed) (void)!send(fd, out.buf.data, out.buf.size, MSG_DONTWAIT | MSG_NOSIGNAL);
	out_fini(&body);
	out_fini(&out);
}

/* ---- lingering closes ---- */

static void linger(struct server *s, int fd)
{
	struct lingering *l = s->linger_count < SERVER_MAX_LINGER ? mem_zalloc(1, sizeof *l, "closing connection", NULL) : NULL;
	if (!l || !watch_add(s, fd, EPOLLIN | EPOLLRDHUP, &l->watch)) {
		free(l);
		close(fd);
		return;
	}
	l->watch.kind = WATCH_LINGER;
	l->fd = fd;
	l->deadline_ns = clock_deadline_ms(SERVER_LINGER_MS);
	l->next = s->lingers;
	s->lingers = l;
	s->linger_count++;
	shutdown(fd, SHUT_WR);
}

/* Those whose time or patience is over, or all. */
static void end_lingers(struct server *s, uint64_t now, bool all)
{
	for (struct lingering **at = &s->lingers; *at;) {
		struct lingering *l = *at;
		if (!all && now < l->deadline_ns && l->bytes < SERVER_LINGER_BYTES) {
			at = &l->next;
			continue;
		}
		*at = l->next;
		watch_remove(s, l->fd);
		close(l->fd);
		free(l);
		s->linger_count--;
	}
}

static void on_linger(struct lingering *l)
{
	static char sink[65536];
	for (int i = 0; i < 16; i++) {
		ssize_t n = recv(l->fd, sink, sizeof sink, MSG_DONTWAIT);
		if (n > 0) l->bytes += (uint64_t)n;
		else {
			if (n == 0 || errno != EAGAIN) l->deadline_ns = 0;
			return;
		}
	}
}

/* ---- connections ---- */

static void forget(struct server *s, struct connection *c)
{
	if (c->previous) c->previous->next = c->next;
	else s->connections = c->next;
	if (c->next) c->next->previous = c->previous;
	s->connection_count--;
	free(c);
}

static void on_closed(struct server *s, struct connection *c)
{
	char byte;
	watch_remove(s, c->fd); /* before the descriptor may get a duplicate */
	if (c->exchange) exchange_lost(c->exchange);
	ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
	bool peer_open = n > 0 || (n < 0 && errno == EAGAIN);
	int copy = !c->clean && peer_open && s->state != SERVER_ENDING ? dup(c->fd) : -1;
	if (copy >= 0) linger(s, copy);
	forget(s, c);
}

static void on_connection(void *server, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode what)
{
	struct server *s = server;
	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		if (*context) on_closed(s, *context);
		*context = NULL;
		return;
	}
	struct connection *c = mem_zalloc(1, sizeof *c, "connection", NULL);
	*context = c;
	if (!c) return; /* exchange_begin then refuses */
	c->watch.kind = WATCH_PEER;
	c->fd = fd_of(mhd);
	c->since_ns = clock_ns();
	watch_add(s, c->fd, EPOLLRDHUP | EPOLLONESHOT, &c->watch);
	c->next = s->connections;
	if (c->next) c->next->previous = c;
	s->connections = c;
	s->connection_count++;
}

static void refuse_connection(struct server *s, int fd)
{
	struct refusal why;
	s->metrics.refused_connections++;
	(void)refuse(&why, 503, NULL, "the server has too many connections; try again later");
	http_refuse_raw(s, fd, &why);
	linger(s, fd);
}

/* Without a free descriptor a connection stays where it is, and the listener stays ready: looking on would only burn the processor. */
static void turn_deaf(struct server *s)
{
	watch_remove(s, s->options.listen_fd);
	s->deaf = true;
}

static void accept_some(struct server *s)
{
	for (int i = 0; i < ACCEPT_AT_ONCE; i++) {
		struct sockaddr_storage address;
		socklen_t size = sizeof address;
		int fd = accept4(s->options.listen_fd, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) turn_deaf(s);
			return;
		}
		tcp_no_delay(fd);
		if (s->connection_count >= s->max_connections) refuse_connection(s, fd);
		else if (MHD_add_connection(s->daemon, fd, (struct sockaddr *)&address, size) != MHD_YES) s->metrics.refused_connections++;
	}
}

/* ---- time limits ---- */

static bool over(const struct connection *c, uint64_t now, uint64_t ms)
{
	return now > c->since_ns && now - c->since_ns > ms * 1000000u;
}

static void time_out(struct server *s, struct connection *c, const char *what)
{
	struct refusal why;
	s->metrics.timed_out++;
	(void)refuse(&why, 408, NULL, "%s did not arrive in time", what);
	http_refuse_raw(s, c->fd, &why);
	if (c->exchange) exchange_count(c->exchange, 408);
	shutdown(c->fd, SHUT_RDWR);
}

/* An answer that the client's machine does not take. */
static void check_stall(struct server *s, struct connection *c, uint64_t now)
{
	uint64_t taken = tcp_bytes(c->fd).acknowledged;
	if (taken != c->bytes_seen) {
		c->bytes_seen = taken;
		c->since_ns = now;
	} else if (over(c, now, SERVER_STALL_MS)) {
		s->metrics.slow_readers++;
		shutdown(c->fd, SHUT_RDWR);
	}
}

static void check_connection(struct server *s, struct connection *c, uint64_t now)
{
	/* What came before the end was looked at by now; the library itself overlooks an end that comes with the last bytes. */
	if (c->peer_closed && (c->phase == PHASE_IDLE || c->phase == PHASE_HEAD || c->phase == PHASE_BODY)) shutdown(c->fd, SHUT_RDWR);
	switch (c->phase) {
	case PHASE_IDLE:
		/* Bytes without a request line: from now on the shorter limit holds. */
		if (tcp_bytes(c->fd).received > c->bytes_seen) http_phase(c, PHASE_HEAD);
		else if (over(c, now, SERVER_IDLE_MS)) shutdown(c->fd, SHUT_RDWR);
		break;
	case PHASE_HEAD:
		if (over(c, now, SERVER_HEAD_MS)) time_out(s, c, "the head of the request");
		break;
	case PHASE_BODY:
		if (over(c, now, SERVER_BODY_MS)) time_out(s, c, "the body of the request");
		break;
	case PHASE_SEND: check_stall(s, c, now); break;
	case PHASE_WORK: break; /* ours to take time; the peer is watched */
	}
}

static void tick(struct server *s)
{
	uint64_t now = clock_ns();
	if (now - s->ticked_ns < SERVER_TICK_MS * 1000000u) return;
	s->ticked_ns = now;
	if (s->deaf) s->deaf = !watch_add(s, s->options.listen_fd, EPOLLIN, &s->on_listen);
	for (struct connection *c = s->connections, *next; c; c = next) {
		next = c->next;
		check_connection(s, c, now);
	}
	generate_tick(s, now);
	routes_look_at_ranks(s, now);
}

/* ---- the loop ---- */

/* The client has closed its side: it wants nothing that is not ready now. */
static void on_peer_gone(struct connection *c)
{
	c->peer_closed = true;
	if (!c->exchange || (c->phase != PHASE_WORK && c->phase != PHASE_SEND)) return;
	generate_gone(c->exchange);
	exchange_resume(c->exchange); /* to be closed */
}

static void on_signal(struct server *s)
{
	char bytes[64];
	ssize_t n = read(s->options.signal_fd, bytes, sizeof bytes);
	if (n > 0) s->signals += (int)n;
}

static void dispatch(struct server *s, struct watch *watch)
{
	uint64_t count;
	switch (watch->kind) {
	case WATCH_LISTEN: accept_some(s); break;
	case WATCH_WAKE:
		if (read(s->wake_fd, &count, sizeof count) > 0) generate_pump(s);
		break;
	case WATCH_SIGNAL: on_signal(s); break;
	case WATCH_PEER: on_peer_gone((struct connection *)(void *)watch); break;
	case WATCH_LINGER: on_linger((struct lingering *)(void *)watch); break;
	case WATCH_HTTP: break; /* MHD_run looks itself */
	}
}

void http_turn(struct server *s)
{
	struct epoll_event events[MAX_EVENTS];
	MHD_UNSIGNED_LONG_LONG wanted;
	s->turn++;
	bool busy = MHD_get_timeout(s->daemon, &wanted) == MHD_YES && wanted == 0;
	bool timed = s->connections || s->lingers || s->deaf || s->state != SERVER_READY;
	int n = epoll_wait(s->epoll_fd, events, MAX_EVENTS, busy ? 0 : timed ? SERVER_TICK_MS : 10000);
	/* An event may free what a later one of this round points to only if that one is a connection's or a lingering socket's; those are
	 * freed by MHD_run and end_lingers, below. */
	for (int i = 0; i < n; i++) dispatch(s, events[i].data.ptr);
	MHD_run(s->daemon);
	end_lingers(s, clock_ns(), false);
	tick(s);
}

static void log_library(void *context, const char *format, va_list args)
{
	(void)context;
	(void)format;
	(void)args;
}

/* As many files as the system allows: a connection is one. */
static void raise_file_limit(struct server *s)
{
	struct rlimit limit = {1024, 1024};
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < FILES_WANTED) {
		limit.rlim_cur = limit.rlim_max < FILES_WANTED ? limit.rlim_max : FILES_WANTED;
		setrlimit(RLIMIT_NOFILE, &limit);
		getrlimit(RLIMIT_NOFILE, &limit);
	}
	long spare = limit.rlim_cur > 1u << 20 ? 1 << 20 : (long)limit.rlim_cur - FILES_KEPT;
	s->max_connections = spare < 16 ? 16 : spare > SERVER_MAX_CONNECTIONS ? SERVER_MAX_CONNECTIONS : (int)spare;
}

static bool make_descriptors(struct server *s)
{
	s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	s->on_listen.kind = WATCH_LISTEN;
	s->on_wake.kind = WATCH_WAKE;
	s->on_signal.kind = WATCH_SIGNAL;
	s->on_http.kind = WATCH_HTTP;
	return s->epoll_fd >= 0 && s->wake_fd >= 0 && watch_add(s, s->wake_fd, EPOLLIN, &s->on_wake) &&
	       (s->options.signal_fd < 0 || watch_add(s, s->options.signal_fd, EPOLLIN, &s->on_signal));
}

enum status http_open(struct server *s, struct error *err)
{
	raise_file_limit(s);
	if (!make_descriptors(s)) return FAIL(err, IO, "server: %s; raise the limit of open files", strerror(errno));
	s->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, exchange_handle, s,
	                             MHD_OPTION_EXTERNAL_LOGGER, log_library, NULL, MHD_OPTION_CONNECTION_LIMIT, (unsigned)SERVER_MAX_CONNECTIONS + 64,
	                             MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)SERVER_POOL_BYTES, MHD_OPTION_CONNECTION_MEMORY_INCREMENT, (size_t)4096,
	                             MHD_OPTION_URI_LOG_CALLBACK, exchange_begin, s, MHD_OPTION_NOTIFY_COMPLETED, exchange_completed, s,
	                             MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
	if (!s->daemon) return FAIL(err, IO, "server: libmicrohttpd does not start: %s", strerror(errno));
	const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	if (!info || !watch_add(s, info->epoll_fd, EPOLLIN, &s->on_http)) return FAIL(err, IO, "server: epoll: %s", strerror(errno));
	if (listen(s->options.listen_fd, BACKLOG) != 0 || !watch_add(s, s->options.listen_fd, EPOLLIN, &s->on_listen))
		return FAIL(err, IO, "server: cannot listen: %s; choose another port", strerror(errno));
	return STATUS_OK;
}

void http_close(struct server *s)
{
	for (struct exchange *x = s->exchanges; x; x = x->next) exchange_resume(x);
	if (s->daemon) MHD_stop_daemon(s->daemon);
	s->daemon = NULL;
	end_lingers(s, 0, true);
	if (s->options.listen_fd >= 0) close(s->options.listen_fd);
	s->options.listen_fd = -1;
	if (s->wake_fd >= 0) close(s->wake_fd);
	if (s->epoll_fd >= 0) close(s->epoll_fd);
	s->wake_fd = s->epoll_fd = -1;
}
