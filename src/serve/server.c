/* Opening, draining, ending. See server.h. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "serve/server_impl.h"

#define FLUSH_MS 500 /* for the last events of requests that were cut off */
#define END_MS 500   /* of the drain limit are kept for that and for ending the engine: the limit is for the whole way out */

static enum status open_parts(struct server *s, struct error *err)
{
	const struct server_options *o = &s->options;
	struct driver_options d = {.engine = o->engine, .max_events = o->max_sequences, .capacity = o->max_sequences + o->max_queue, .rebuild = o->rebuild,
	                           .notify = http_wake, .context = s, .log = o->log};
	uint64_t seed = clock_ns();
	(void)!getrandom(&seed, sizeof seed, GRND_NONBLOCK);
	atomic_store(&s->next_seed, seed);
	metrics_init(&s->metrics, s->facts->info.context);
	TRY(http_open(s, err));
	TRY(work_open(s, err));
	return driver_start(&s->driver, &d, err);
}

enum status server_open(struct server **out, const struct server_options *options, struct error *err)
{
	*out = NULL;
	struct server *s = mem_zalloc(1, sizeof *s, "server", err);
	if (!s) {
		close(options->listen_fd);
		return STATUS_NO_MEMORY;
	}
	s->options = *options;
	s->facts = options->facts;
	page_policy(s->page_policy);
	s->epoll_fd = s->wake_fd = -1;
	enum status st = open_parts(s, err);
	if (st != STATUS_OK) server_close(&s);
	*out = s;
	return st;
}

static bool any_work(const struct server *s)
{
	for (const struct exchange *x = s->exchanges; x; x = x->next)
		if (x->working || x->completion || x->connection) return true;
	return false;
}

/* From here on nothing that was promised is kept: what is in flight ends with an error event, and what is still to be sent has FLUSH_MS. */
static void begin_end(struct server *s, const char *why)
{
	struct refusal r;
	s->state = SERVER_ENDING;
	s->deadline_ns = clock_deadline_ms(FLUSH_MS);
	(void)refuse(&r, 503, NULL, "%s", why);
	generate_fail_all(s, &r);
	tandem_interrupt(s->options.engine, true); /* a long step does not hold us up */
}

static void begin_drain(struct server *s)
{
	log_write(&s->options.log, LOG_INFO, "draining: at most %d s for %d sequences in flight", s->options.drain_seconds, atomic_load(&s->admitted));
	s->state = SERVER_DRAINING;
	uint64_t limit = (uint64_t)s->options.drain_seconds * 1000;
	s->deadline_ns = clock_deadline_ms(limit - (limit / 4 < END_MS ? limit / 4 : END_MS));
}

/* One decision a turn. True: the loop is over. */
static bool decide(struct server *s, const struct driver_status *d)
{
	uint64_t now = clock_ns();
	if (s->state == SERVER_READY && d->state == DRIVER_STOPPED) begin_end(s, "the server failed and ends");
	if (s->state == SERVER_READY && s->signals) begin_drain(s);
	if (s->state == SERVER_DRAINING) {
		if (!any_work(s)) return true;
		if (d->state == DRIVER_STOPPED) begin_end(s, "the server failed and ends");
		else if (s->signals > 1 || now > s->deadline_ns) begin_end(s, "the server shuts down");
	}
	return s->state == SERVER_ENDING && (now > s->deadline_ns || !any_work(s));
}

enum status server_run(struct server *s, struct error *err)
{
	struct driver_status d;
	do {
		http_turn(s);
		driver_get_status(s->driver, &d);
	} while (!decide(s, &d));
	if (d.failure.code) return error_set(err, (enum status)d.failure.code, __FILE__, __LINE__, "%s", d.failure.text);
	return s->cut_off ? FAIL(err, CANCELLED, "the server was shut down with requests in flight") : STATUS_OK;
}

/* Order: connections (their requests are abandoned), the engine thread, the workers, and then what waited for either. */
void server_close(struct server **server)
{
	struct server *s = *server;
	if (!s) return;
	*server = NULL;
	s->state = SERVER_ENDING;
	if (s->workers) work_close(s);
	if (s->driver) tandem_interrupt(s->options.engine, true);
	http_close(s);
	driver_destroy(&s->driver);
	while (s->exchanges) {
		struct exchange *x = s->exchanges;
		s->exchanges = x->next;
		completion_destroy(&x->completion);
		buf_fini(&x->body);
		buf_fini(&x->reply.body);
		free(x);
	}
	free(s);
}
