/* Completions and chats: admission, the way through the worker, events of the engine, output for the client. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "serve/server_impl.h"

#define TAKE_EVENTS 64

/* ---- admission ---- */

static int capacity(const struct server *s)
{
	return s->options.max_sequences + s->options.max_queue;
}

static enum status refuse_full(struct refusal *r)
{
	return refuse(r, 429, NULL, "the queue of this server is full; try again later");
}

/* Any thread. Each sequence counts, so a request with n choices takes n places, all or none. */
static enum status reserve(struct server *s, int n, struct refusal *r)
{
	int most = capacity(s), now = atomic_load(&s->admitted);
	if (n > most) return refuse(r, 400, "n", "the request asks for %d sequences at once; this server takes at most %d", n, most);
	do {
		if (now + n > most) return refuse_full(r);
	} while (!atomic_compare_exchange_weak(&s->admitted, &now, now + n));
	return STATUS_OK;
}

static void give_back(struct exchange *x, int n)
{
	x->reserved -= n;
	atomic_fetch_sub(&x->server->admitted, n);
}

int generate_waiting(struct server *s, const struct driver_status *d)
{
	int waiting = atomic_load(&s->admitted) - d->stats.running - d->stats.waiting;
	return waiting > 0 ? waiting : 0;
}

/* ---- before the engine ---- */

void generate_start(struct exchange *x, enum work_kind kind)
{
	struct server *s = x->server;
	struct refusal why;
	x->work = kind;
	if (s->state != SERVER_READY && (kind == WORK_COMPLETIONS || kind == WORK_CHAT)) {
		(void)refuse(&why, 503, NULL, "the server is shutting down; try another one");
		exchange_refuse(x, &why);
	} else if (atomic_load(&s->admitted) >= capacity(s) && (kind == WORK_COMPLETIONS || kind == WORK_CHAT)) {
		s->metrics.rejected++;
		(void)refuse_full(&why); /* before any work on it */
		exchange_refuse(x, &why);
	} else {
		work_put(s, x);
	}
}

static void cancel_job(void *context, struct driver_job *job)
{
	struct exchange *x = context;
	driver_cancel(x->server->driver, job);
}

static enum status make_completion(struct exchange *x, struct request *q, struct prompts *prompts, struct refusal *r)
{
	struct server *s = x->server;
	char id[40];
	uint64_t number = atomic_fetch_add(&s->next_seed, 1), seed = rng_mix(number);
	snprintf(id, sizeof id, "%016llx%08llx", (unsigned long long)rng_mix(seed ^ clock_ns()), (unsigned long long)(number & 0xffffffffu));
	struct completion_options options = {.facts = s->facts, .request = q, .prompts = prompts, .id = id, .created = (int64_t)time(NULL),
	                                     .arrival_ns = x->arrival_ns, .seed = seed, .cancel = cancel_job, .context = x};
	return completion_create(&x->completion, &options, r);
}

static enum status prepare(struct exchange *x, const json_t *body, struct refusal *r)
{
	struct server *s = x->server;
	struct request q;
	struct prompts prompts = {0};
	int count = 0;
	TRY(request_parse(&q, x->work == WORK_CHAT ? ENDPOINT_CHAT : ENDPOINT_COMPLETIONS, body, s->facts, r));
	enum status st = prompt_count(body, q.endpoint, &count, r);
	if (st == STATUS_OK) st = reserve(s, count * q.n, r);
	if (st == STATUS_OK) x->reserved = count * q.n; /* given back with the exchange if it goes no further */
	if (st == STATUS_OK) st = prompts_read(&prompts, count, body, &q, s->facts, r);
	if (st == STATUS_OK) st = make_completion(x, &q, &prompts, r);
	request_fini(&q);
	prompts_fini(&prompts);
	return st;
}

void generate_prepare(struct exchange *x)
{
	json_t *body;
	if (body_parse(&body, x->body.data ? x->body.data : "", x->body.size, &x->refusal) != STATUS_OK) return;
	(void)(prepare(x, body, &x->refusal)); /* a refusal is an answer */
	json_decref(body);
}

/* ---- output ---- */

static void count_end(struct exchange *x)
{
	if (!x->completion || x->measured) return;
	x->measured = true;
	metrics_completion(&x->server->metrics, x->completion, x->submitted_ns, clock_ns());
}

/* More waits than a client that reads leaves. Between two turns the connection sends a piece; so what came at once, and the prompt
 * that choices begin with (an echo with its log-probabilities may be megabytes), is not held against the client. */
static bool reads_too_slowly(struct exchange *x, size_t unsent)
{
	if (x->turn != x->server->turn) {
		x->turn = x->server->turn;
		x->unsent_before = x->unsent;
	}
	x->unsent = unsent;
	if (unsent > x->unsent_before + x->most_at_once) x->most_at_once = unsent - x->unsent_before;
	return unsent > SERVER_STREAM_BYTES + x->most_at_once + completion_first_bytes(x->completion);
}

/* After something happened to its completion: sees to it that the client hears of it. */
static void bring_out(struct exchange *x)
{
	struct completion *c = x->completion;
	/* An answer that is decided stands: tokens of a choice that a stop string ended may still come before it is sent. */
	if (!x->mhd || x->reply.status) return;
	if (!completion_ended(c) && !completion_begun(c)) return;
	if (completion_ended(c)) count_end(x);
	struct out *out = completion_output(c);
	if (completion_refusal(c)->status && !x->replied) {
		exchange_refuse(x, completion_refusal(c));
	} else if (!completion_is_stream(c) && !x->replied) {
		x->reply = (struct reply){.status = 200, .content_type = "application/json", .body = out->buf};
		*out = (struct out){0};
	} else if (reads_too_slowly(x, out->buf.size - x->sent) && !x->too_slow) {
		x->too_slow = true;
		x->server->metrics.slow_readers++;
		shutdown(x->connection->fd, SHUT_RDWR); /* the library then finds it closed, and generate_gone cancels */
	}
	x->spoke_ns = clock_ns();
	exchange_resume(x);
}

ssize_t generate_read(struct exchange *x, char *to, size_t max)
{
	struct out *out = completion_output(x->completion);
	if (x->too_slow || x->connection->peer_closed) return -2;
	size_t n = out->buf.size - x->sent;
	if (n > max) n = max;
	if (!n) return completion_ended(x->completion) ? -1 : 0;
	memcpy(to, out->buf.data + x->sent, n);
	x->sent += n;
	x->unsent = out->buf.size - x->sent;
	if (x->sent == out->buf.size) {
		out_clear(out);
		x->sent = 0;
	}
	return (ssize_t)n;
}

/* ---- the engine ---- */

static bool submit(struct exchange *x)
{
	struct server *s = x->server;
	struct driver_job **jobs = mem_zalloc((size_t)completion_choices(x->completion), sizeof(struct driver_job *), "jobs", NULL);
	if (!jobs) return false;
	struct completion_times t;
	completion_get_times(x->completion, &t);
	s->metrics.prompt_tokens += (uint64_t)t.prompt_tokens;
	x->submitted_ns = x->spoke_ns = clock_ns();
	int n = completion_jobs(x->completion, jobs);
	if (n) driver_submit(s->driver, jobs, n);
	free(jobs);
	return true;
}

static void drop_body(struct exchange *x)
{
	x->server->body_bytes -= x->body.size;
	buf_fini(&x->body);
}

/* Back in the server's thread. */
static void prepared(struct exchange *x)
{
	struct refusal why = x->refusal;
	drop_body(x);
	if (!x->mhd) { /* gone in the meantime; no job was submitted */
		if (x->completion) completion_abandon(x->completion);
		count_end(x);
		exchange_release(x);
		return;
	}
	if (!why.status && x->completion && x->server->state == SERVER_ENDING) (void)refuse(&why, 503, NULL, "the server is shutting down; try another one");
	if (!why.status && x->completion && !submit(x)) (void)refuse_memory(&why);
	if (why.status) {
		if (why.status == 429) x->server->metrics.rejected++;
		exchange_refuse(x, &why);
		exchange_resume(x);
	} else if (x->completion) {
		bring_out(x);
	} else {
		exchange_resume(x);
	}
}

static void take_event(const struct driver_event *event)
{
	struct completion *c = completion_of(event->job);
	struct exchange *x = completion_context(c);
	struct completion_times t;
	completion_event(c, event);
	completion_get_times(c, &t);
	if (event->event.token >= 0) x->server->metrics.generation_tokens++;
	if (t.gap_ns) histogram_add(&x->server->metrics.itl, (double)t.gap_ns / 1e9);
	if (event->event.finish != TANDEM_RUNNING) give_back(x, 1);
	bring_out(x);
	exchange_release(x);
}

void generate_pump(struct server *s)
{
	struct driver_event events[TAKE_EVENTS];
	struct exchange *x;
	int n;
	while ((x = work_take_done(s))) prepared(x);
	do {
		n = driver_take(s->driver, events, TAKE_EVENTS);
		for (int i = 0; i < n; i++) take_event(&events[i]);
	} while (n == TAKE_EVENTS);
}

/* ---- ends from outside ---- */

void generate_gone(struct exchange *x)
{
	if (x->working || !x->completion) return;
	completion_abandon(x->completion);
	count_end(x);
}

void generate_fail_all(struct server *s, const struct refusal *why)
{
	for (struct exchange *x = s->exchanges, *next; x; x = next) {
		next = x->next;
		if (x->working || !x->completion || completion_ended(x->completion)) continue;
		s->cut_off = true;
		completion_fail(x->completion, why);
		bring_out(x);
	}
}

void generate_tick(struct server *s, uint64_t now_ns)
{
	uint64_t silence = (uint64_t)s->options.comment_seconds * 1000000000u;
	for (struct exchange *x = s->exchanges; silence && x; x = x->next) {
		if (x->working || !x->completion || !x->mhd || now_ns - x->spoke_ns < silence) continue;
		completion_comment(x->completion);
		bring_out(x);
	}
}
