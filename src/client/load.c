/* One epoll set; a slot is a connection or none. `index` is the request that it carries, -1 while it rests. */
#include "client/load.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "client/reply.h"
#include "client/sse.h"

#define SCAN_NS 20000000u /* how often time limits are looked at */
#define READ_BYTES 65536

struct slot {
	int fd;    /* -1: no connection */
	int index;
	bool used; /* carried a request before: it may be closed without that being a failure */
	bool heard, hang_up, bad, told_sent;
	struct buf out, body;
	size_t sent;
	struct reply reply;
	struct sse sse;
	uint64_t heard_ns;
};

struct load {
	const struct load_options *o;
	struct slot *slots;
	int *idle; /* stack of slots that rest; those with a connection on top */
	int idle_count, next, ended, epoll;
	uint64_t start_ns, scanned_ns;
	char *bytes;
	struct slot *now; /* whose bytes are being read */
	enum status failed; /* of what a callback could not return */
	struct error *err;
};

const char *load_end_text(enum load_end end)
{
	static const char *const texts[] = {
#define X(code, text) text,
		LOAD_END_LIST(X)
#undef X
	};
	return end < LOAD_ENDS ? texts[end] : "";
}

static void disconnect(struct slot *slot)
{
	if (slot->fd >= 0) close(slot->fd);
	slot->fd = -1;
	slot->used = false;
}

static void finish(struct load *l, struct slot *slot, enum load_end end)
{
	struct load_answer answer = {.end = end, .status = slot->reply.state == REPLY_STATUS ? 0 : slot->reply.status, .stream = slot->reply.event_stream,
	                             .body = slot->body.data ? slot->body.data : "", .body_bytes = slot->body.size, .at_ns = clock_ns()};
	int index = slot->index;
	slot->index = -1;
	if (end != LOAD_DONE || slot->reply.close) disconnect(slot);
	l->ended++;
	l->idle[l->idle_count++] = (int)(slot - l->slots);
	l->o->end(l->o->context, index, &answer);
}

/* ---- sending ---- */

static enum status watch(struct load *l, struct slot *slot, int what, uint32_t events, struct error *err)
{
	struct epoll_event event = {.events = events, .data.ptr = slot};
	if (!epoll_ctl(l->epoll, what, slot->fd, &event)) return STATUS_OK;
	return FAIL(err, IO, "epoll: %s; use fewer connections", strerror(errno));
}

/* *open false: the server did not take it. */
static enum status connect_slot(struct load *l, struct slot *slot, bool *open, struct error *err)
{
	int on = 1;
	*open = false;
	slot->fd = socket(l->o->address->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (slot->fd < 0) return FAIL(err, IO, "socket: %s; use a smaller --concurrency or raise ulimit -n", strerror(errno));
	(void)setsockopt(slot->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	slot->used = false;
	if (connect(slot->fd, (const struct sockaddr *)l->o->address, l->o->address_length) && errno != EINPROGRESS) return STATUS_OK;
	*open = true;
	return watch(l, slot, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT, err);
}

/* Sends what slot->out holds from its start, over the connection that is there or a new one. */
static enum status send_request(struct load *l, struct slot *slot, struct error *err)
{
	bool open = true;
	slot->sent = 0;
	slot->heard = slot->told_sent = slot->bad = false;
	slot->reply = (struct reply){0};
	slot->heard_ns = clock_ns();
	sse_clear(&slot->sse);
	buf_clear(&slot->body);
	if (slot->fd < 0) TRY(connect_slot(l, slot, &open, err));
	else TRY(watch(l, slot, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT, err));
	if (!open) finish(l, slot, LOAD_NO_CONNECTION);
	return STATUS_OK;
}

static enum status start(struct load *l, struct error *err)
{
	struct slot *slot = &l->slots[l->idle[--l->idle_count]];
	slot->index = l->next++;
	slot->hang_up = false;
	buf_clear(&slot->out);
	TRY(l->o->request(l->o->context, slot->index, &slot->out, err));
	return send_request(l, slot, err);
}

/* The connection failed: an old one gets a second chance on a new one, if the server had not begun to answer. */
static enum status lost(struct load *l, struct slot *slot, struct error *err)
{
	bool never = !slot->used && !slot->sent;
	if (slot->used && !slot->heard) {
		disconnect(slot);
		return send_request(l, slot, err);
	}
	finish(l, slot, never ? LOAD_NO_CONNECTION : LOAD_LOST);
	return STATUS_OK;
}

static enum status send_more(struct load *l, struct slot *slot, struct error *err)
{
	while (slot->sent < slot->out.size) {
		ssize_t n = send(slot->fd, slot->out.data + slot->sent, slot->out.size - slot->sent, MSG_NOSIGNAL);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return STATUS_OK;
		/* A server that refuses early stops reading; its answer may be there all the same. */
		if (n < 0 && slot->sent && errno != ENOTCONN) slot->sent = slot->out.size;
		else if (n < 0) return lost(l, slot, err);
		else slot->sent += (size_t)n;
	}
	TRY(watch(l, slot, EPOLL_CTL_MOD, EPOLLIN, err));
	if (slot->told_sent || !l->o->sent) return STATUS_OK;
	slot->told_sent = true;
	if (!l->o->sent(l->o->context, slot->index, clock_ns())) finish(l, slot, LOAD_HUNG_UP);
	return STATUS_OK;
}

/* ---- receiving ---- */

static bool on_event(void *context, const char *data, size_t n)
{
	struct load *l = context;
	bool more = l->o->event(l->o->context, l->now->index, data, n, clock_ns());
	l->now->hang_up |= !more;
	return more;
}

static bool on_body(void *context, const char *bytes, size_t n)
{
	struct load *l = context;
	struct slot *slot = l->now;
	if (slot->reply.event_stream) {
		struct error ours = {0};
		enum status st = sse_feed(&slot->sse, bytes, n, on_event, l, &ours);
		if (st == STATUS_BAD_INPUT) slot->bad = true;
		else if (st != STATUS_OK) l->failed = st;
		return !slot->hang_up && !slot->bad && l->failed == STATUS_OK;
	}
	size_t room = LOAD_MAX_BODY - slot->body.size;
	l->failed = buf_append(&slot->body, bytes, n < room ? n : room, l->err);
	return l->failed == STATUS_OK;
}

static enum status receive(struct load *l, struct slot *slot, struct error *err)
{
	ssize_t n = recv(slot->fd, l->bytes, READ_BYTES, 0);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return STATUS_OK;
	if (slot->index < 0) { /* closed while it rested, or talking out of turn */
		disconnect(slot);
		return STATUS_OK;
	}
	if (n < 0) return lost(l, slot, err);
	if (!n) {
		if (slot->heard && reply_end(&slot->reply, NULL) == STATUS_OK) finish(l, slot, LOAD_DONE);
		else return lost(l, slot, err);
		return STATUS_OK;
	}
	size_t used;
	slot->heard = true;
	slot->heard_ns = clock_ns();
	l->now = slot;
	enum status st = reply_feed(&slot->reply, l->bytes, (size_t)n, &used, on_body, l, NULL);
	if (l->failed != STATUS_OK) return l->failed;
	if (st != STATUS_OK || slot->bad) finish(l, slot, LOAD_BAD_RESPONSE);
	else if (slot->hang_up) finish(l, slot, LOAD_HUNG_UP);
	else if (slot->reply.state == REPLY_DONE) {
		if (used < (size_t)n || slot->sent < slot->out.size) slot->reply.close = true; /* bytes beyond the answer, or answered before it was asked */
		slot->used = true;
		finish(l, slot, LOAD_DONE);
	}
	return STATUS_OK;
}

static enum status ready(struct load *l, struct slot *slot, uint32_t events, struct error *err)
{
	if (slot->fd < 0) return STATUS_OK; /* ended by an event before this one */
	if (events & EPOLLERR && !slot->heard && slot->index >= 0 && !(events & EPOLLIN)) return lost(l, slot, err);
	/* What else is ready will be so at the next turn; here the connection may have become another one. */
	if (events & EPOLLOUT && slot->index >= 0) return send_more(l, slot, err);
	return receive(l, slot, err);
}

/* ---- the loop ---- */

static void expire(struct load *l, uint64_t now)
{
	uint64_t limit = (uint64_t)l->o->timeout_ms * 1000000u;
	if (now - l->scanned_ns < SCAN_NS) return;
	l->scanned_ns = now;
	for (int i = 0; i < l->o->concurrency; i++)
		if (l->slots[i].index >= 0 && now > l->slots[i].heard_ns && now - l->slots[i].heard_ns > limit) finish(l, &l->slots[i], LOAD_TIMEOUT);
}

/* ns until there is something to do without a socket becoming ready. */
static uint64_t patience(const struct load *l, uint64_t now)
{
	if (l->next == l->o->count || !l->idle_count) return SCAN_NS;
	uint64_t due = l->start_ns + (l->o->due ? l->o->due(l->o->context, l->next) : 0);
	return due <= now ? 0 : due - now < SCAN_NS ? due - now : SCAN_NS;
}

static enum status turn(struct load *l, struct error *err)
{
	struct epoll_event events[256];
	uint64_t now = clock_ns(), wait;
	while (!(wait = patience(l, now)) && l->next < l->o->count && l->idle_count) TRY(start(l, err));
	expire(l, now);
	/* poll on the epoll set: its time limit is finer than epoll_wait's */
	struct pollfd set = {.fd = l->epoll, .events = POLLIN};
	struct timespec time = {0, (long)wait};
	(void)ppoll(&set, 1, &time, NULL);
	int n = epoll_wait(l->epoll, events, 256, 0);
	if (n < 0 && errno != EINTR) return FAIL(err, IO, "epoll_wait: %s; this is a bug", strerror(errno));
	for (int i = 0; i < n; i++) TRY(ready(l, events[i].data.ptr, events[i].events, err));
	return STATUS_OK;
}

static enum status run(struct load *l, struct error *err)
{
	l->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll < 0) return FAIL(err, IO, "epoll_create1: %s; raise ulimit -n", strerror(errno));
	l->slots = mem_zalloc((size_t)l->o->concurrency, sizeof *l->slots, "connections", err);
	l->idle = mem_zalloc((size_t)l->o->concurrency, sizeof *l->idle, "connections", err);
	l->bytes = mem_zalloc(1, READ_BYTES, "connections", err);
	if (!l->slots || !l->idle || !l->bytes) return STATUS_NO_MEMORY;
	for (int i = 0; i < l->o->concurrency; i++) {
		l->slots[i].fd = l->slots[i].index = -1;
		l->idle[l->idle_count++] = l->o->concurrency - 1 - i;
	}
	l->start_ns = l->scanned_ns = clock_ns();
	while (l->ended < l->o->count) TRY(turn(l, err));
	return STATUS_OK;
}

enum status load_run(const struct load_options *options, struct error *err)
{
	struct load l = {.o = options, .epoll = -1, .err = err};
	enum status st = run(&l, err);
	for (int i = 0; l.slots && i < options->concurrency; i++) {
		disconnect(&l.slots[i]);
		buf_fini(&l.slots[i].out);
		buf_fini(&l.slots[i].body);
		sse_fini(&l.slots[i].sse);
	}
	if (l.epoll >= 0) close(l.epoll);
	free(l.slots);
	free(l.idle);
	free(l.bytes);
	return st;
}
