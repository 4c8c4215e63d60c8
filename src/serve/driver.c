#include "serve/driver.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/thread.h"

#define REFRESH_NS 100000000u
#define REBUILD_TRIES 3

struct driver {
	struct driver_options options;
	pthread_t thread;
	bool started;

	/* Lock order: none; no thread holds two of these. */
	pthread_mutex_t in_lock;
	pthread_cond_t in_wake;
	struct driver_job *in_first, **in_last; /* submitted, not yet taken */
	bool cancels;                           /* some job has `cancelled` set that the thread has not seen */
	bool stop;

	pthread_mutex_t out_lock;
	pthread_cond_t out_room;
	struct driver_event *out;
	int out_size, out_first, out_count;
	bool out_abandoned;

	pthread_mutex_t status_lock;
	struct driver_status status;

	/* the thread's own */
	struct driver_job **active; /* in flight, ascending by id: ids rise */
	int active_count;
	struct tandem_event *events; /* of one step */
	uint64_t refreshed_ns;
	uint64_t step_ns;    /* that steps took in all */
	uint64_t generation; /* steps done; the engine's own count is read with the rest, now and then */
};

/* ---- events out ---- */

static void put_event(struct driver *d, const struct driver_event *event)
{
	pthread_mutex_lock(&d->out_lock);
	if (d->out_count == d->out_size) {
		pthread_mutex_unlock(&d->out_lock);
		d->options.notify(d->options.context); /* whoever is to make room may not know yet */
		pthread_mutex_lock(&d->out_lock);
	}
	while (d->out_count == d->out_size && !d->out_abandoned) pthread_cond_wait(&d->out_room, &d->out_lock);
	if (!d->out_abandoned) d->out[(d->out_first + d->out_count++) % d->out_size] = *event;
	pthread_mutex_unlock(&d->out_lock);
}

int driver_take(struct driver *d, struct driver_event *events, int max)
{
	pthread_mutex_lock(&d->out_lock);
	int n = d->out_count < max ? d->out_count : max;
	for (int i = 0; i < n; i++) events[i] = d->out[(d->out_first + i) % d->out_size];
	d->out_first = (d->out_first + n) % d->out_size;
	d->out_count -= n;
	if (n) pthread_cond_signal(&d->out_room);
	pthread_mutex_unlock(&d->out_lock);
	return n;
}

static void finish_job(struct driver *d, struct driver_job *job, enum tandem_finish finish, const struct tandem_error *why)
{
	struct driver_event event = {.job = job, .event = {.id = job->id, .token = -1, .finish = finish}, .at_ns = clock_ns()};
	if (why) job->error = *why;
	put_event(d, &event);
}

static void finish_all(struct driver *d, enum tandem_finish finish, const struct tandem_error *why)
{
	for (int i = 0; i < d->active_count; i++) finish_job(d, d->active[i], finish, why);
	d->active_count = 0;
	d->options.notify(d->options.context);
}

/* ---- what others may read ---- */

/* `in_flight`: jobs that go on. `progress`: a step was done, or work begins after none was there. */
static void publish(struct driver *d, int in_flight, bool progress, bool refresh)
{
	uint64_t now = clock_ns();
	struct tandem_info info;
	struct tandem_stats stats;
	struct tandem_rank_bytes bytes[DRIVER_MAX_RANKS];
	refresh = refresh || now - d->refreshed_ns > REFRESH_NS;
	if (refresh) {
		tandem_get_info(d->options.engine, &info);
		tandem_get_stats(d->options.engine, &stats);
		for (int r = 0; r < info.world_size && r < DRIVER_MAX_RANKS; r++) tandem_get_rank_bytes(d->options.engine, r, &bytes[r]);
		d->refreshed_ns = now;
	}
	pthread_mutex_lock(&d->status_lock);
	if (progress) d->status.progress_ns = now;
	d->status.generation = d->generation;
	d->status.step_ns = d->step_ns;
	d->status.in_flight = in_flight;
	if (refresh) {
		d->status.info = info;
		d->status.stats = stats;
		memcpy(d->status.ranks, bytes, sizeof d->status.ranks[0] * (size_t)(info.world_size < DRIVER_MAX_RANKS ? info.world_size : DRIVER_MAX_RANKS));
	}
	pthread_mutex_unlock(&d->status_lock);
}

static void set_state(struct driver *d, enum driver_state state, const struct tandem_error *failure, int aborts, int rebuilds)
{
	pthread_mutex_lock(&d->status_lock);
	d->status.state = state;
	if (failure) d->status.failure = *failure;
	d->status.aborts += (uint64_t)aborts;
	d->status.rebuilds += (uint64_t)rebuilds;
	pthread_mutex_unlock(&d->status_lock);
}

void driver_get_status(struct driver *d, struct driver_status *out)
{
	pthread_mutex_lock(&d->status_lock);
	*out = d->status;
	pthread_mutex_unlock(&d->status_lock);
}

/* ---- jobs in ---- */

void driver_submit(struct driver *d, struct driver_job *const *jobs, int n)
{
	pthread_mutex_lock(&d->in_lock);
	for (int i = 0; i < n; i++) {
		jobs[i]->next = NULL;
		*d->in_last = jobs[i];
		d->in_last = &jobs[i]->next;
	}
	pthread_cond_signal(&d->in_wake);
	pthread_mutex_unlock(&d->in_lock);
}

void driver_cancel(struct driver *d, struct driver_job *job)
{
	pthread_mutex_lock(&d->in_lock);
	job->cancelled = true;
	d->cancels = true;
	pthread_cond_signal(&d->in_wake);
	pthread_mutex_unlock(&d->in_lock);
}

static void submit_one(struct driver *d, struct driver_job *job, bool cancelled)
{
	struct tandem_error why = {0};
	if (cancelled) {
		finish_job(d, job, TANDEM_CANCELLED, NULL);
	} else if (tandem_submit(d->options.engine, &job->request, &job->id, &why)) {
		finish_job(d, job, TANDEM_FAILED, &why);
	} else {
		d->active[d->active_count++] = job;
	}
}

/* Takes what came in, waiting for it if there is nothing else to do. False: it is time to stop. */
static bool take_inbox(struct driver *d)
{
	pthread_mutex_lock(&d->in_lock);
	while (!d->stop && !d->in_first && !d->cancels && !d->active_count) pthread_cond_wait(&d->in_wake, &d->in_lock);
	struct driver_job *first = d->in_first;
	bool stop = d->stop, cancels = d->cancels;
	d->in_first = NULL;
	d->in_last = &d->in_first;
	d->cancels = false;
	/* `cancelled` is read under the lock; a job that is cancelled later is found through `cancels`. */
	for (int i = 0; cancels && i < d->active_count; i++)
		if (d->active[i]->cancelled) (void)tandem_cancel(d->options.engine, d->active[i]->id);
	struct driver_job *dropped = NULL, **last = &dropped, **at = &first;
	while (*at) {
		struct driver_job *job = *at;
		if (!job->cancelled && !stop) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		job->next = NULL;
		*last = job;
		last = &job->next;
	}
	pthread_mutex_unlock(&d->in_lock);
	bool ended = dropped != NULL;
	/* A job may be freed as soon as its terminal event is out: look at `next` first. */
	for (struct driver_job *job = dropped, *next; job; job = next) next = job->next, submit_one(d, job, true);
	int before = d->active_count;
	for (struct driver_job *job = first, *next; job; job = next) next = job->next, ended |= before == d->active_count, submit_one(d, job, false);
	if (ended) d->options.notify(d->options.context);
	if (!before && d->active_count) publish(d, d->active_count, true, false);
	return !stop;
}

/* ---- steps ---- */

static int find_active(const struct driver *d, uint64_t id)
{
	int lo = 0, hi = d->active_count;
	while (lo < hi) {
		int mid = lo + (hi - lo) / 2;
		if (d->active[mid]->id < id) lo = mid + 1;
		else hi = mid;
	}
	return lo < d->active_count && d->active[lo]->id == id ? lo : -1;
}

static void take_scores(struct driver *d, struct driver_job *job)
{
	struct driver_scores *scores = job->scores;
	for (int i = 1; i < job->request.prompt_count; i++) {
		struct tandem_event score;
		if (tandem_prompt_logprob(d->options.engine, job->id, i, &score, NULL)) return; /* the owner sees that they are not there */
		int n = score.alternatives < scores->top ? score.alternatives : scores->top;
		scores->logprob[i] = score.logprob;
		scores->alternatives[i] = n;
		for (int k = 0; k < n; k++) {
			scores->alternative_id[(size_t)i * (size_t)scores->top + (size_t)k] = score.alternative_id[k];
			scores->alternative_logprob[(size_t)i * (size_t)scores->top + (size_t)k] = score.alternative_logprob[k];
		}
	}
	scores->filled = true;
}

static void pass_events(struct driver *d, int count)
{
	uint64_t now = clock_ns();
	for (int i = 0; i < count; i++) {
		int at = find_active(d, d->events[i].id);
		if (at < 0) continue;
		struct driver_event event = {.job = d->active[at], .event = d->events[i], .at_ns = now};
		if (event.job->scores && !event.job->scores->filled && (event.event.token >= 0 || event.event.finish == TANDEM_LENGTH)) take_scores(d, event.job);
		if (event.event.finish != TANDEM_RUNNING) {
			memmove(&d->active[at], &d->active[at + 1], (size_t)(d->active_count - at - 1) * sizeof *d->active);
			d->active_count--;
		}
		put_event(d, &event);
	}
	if (count) d->options.notify(d->options.context);
}

/* Rebuilds the group; false if that failed as well. */
static bool rebuild(struct driver *d, struct tandem_error *why)
{
	set_state(d, DRIVER_REBUILDING, NULL, 0, 0);
	for (int i = 0; i < REBUILD_TRIES; i++) {
		struct tandem_error again = {0};
		if (!tandem_rebuild(d->options.engine, &again)) {
			set_state(d, DRIVER_READY, NULL, 0, 1);
			return true;
		}
		log_write(&d->options.log, LOG_WARN, "rebuild failed: %s", again.text);
		*why = again;
	}
	return false;
}

/* After a step that failed: true if work can go on. To clients, and as an end of the process, all such failures are one, also where a rank says that it
 * has no memory: its words are for the log. */
static bool recover(struct driver *d, struct tandem_error *why)
{
	log_write(&d->options.log, LOG_WARN, "%s", why->text);
	why->code = STATUS_ABORTED;
	set_state(d, d->options.rebuild ? DRIVER_REBUILDING : DRIVER_STOPPED, d->options.rebuild ? NULL : why, 1, 0);
	finish_all(d, TANDEM_FAILED, why);
	bool usable = d->options.rebuild && rebuild(d, why);
	why->code = STATUS_ABORTED;
	publish(d, 0, true, usable);
	if (!usable) set_state(d, DRIVER_STOPPED, why, 0, 0);
	d->options.notify(d->options.context);
	return usable;
}

static bool run_step(struct driver *d)
{
	struct tandem_error why = {0};
	int count = 0;
	bool idle = false;
	uint64_t start = clock_ns();
	int code = tandem_step(d->options.engine, d->events, d->options.max_events, &count, &idle, &why);
	int going = d->active_count;
	if (!code && !idle) d->step_ns += clock_ns() - start;
	if (!code) d->generation++;
	for (int i = 0; i < count; i++) going -= d->events[i].finish != TANDEM_RUNNING;
	publish(d, going, true, going <= 0); /* before the events: who got the last one sees the free KV */
	pass_events(d, count);
	if (code == STATUS_CANCELLED) { /* interrupted: whoever did that is about to stop us */
		finish_all(d, TANDEM_CANCELLED, NULL);
		return true;
	}
	if (code) return recover(d, &why);
	if (idle && d->active_count) { /* cannot be: the engine holds nothing that we wait for */
		why = (struct tandem_error){.code = STATUS_MISMATCH, .text = "engine: idle with requests in flight; this is a bug"};
		return recover(d, &why);
	}
	return true;
}

/* Answers whatever still comes until the driver is told to stop. */
static void serve_stopped(struct driver *d)
{
	struct driver_status status;
	driver_get_status(d, &status);
	for (;;) {
		pthread_mutex_lock(&d->in_lock);
		while (!d->stop && !d->in_first) pthread_cond_wait(&d->in_wake, &d->in_lock);
		struct driver_job *first = d->in_first;
		bool stop = d->stop;
		d->in_first = NULL;
		d->in_last = &d->in_first;
		pthread_mutex_unlock(&d->in_lock);
		for (struct driver_job *job = first, *next; job; job = next)
			next = job->next, finish_job(d, job, status.failure.code ? TANDEM_FAILED : TANDEM_CANCELLED, status.failure.code ? &status.failure : NULL);
		d->options.notify(d->options.context);
		if (stop) return;
	}
}

static void *driver_main(void *argument)
{
	struct driver *d = argument;
	bool going = true;
	while (going && take_inbox(d))
		if (d->active_count) going = run_step(d);
	if (going) {
		for (int i = 0; i < d->active_count; i++) (void)tandem_cancel(d->options.engine, d->active[i]->id);
		finish_all(d, TANDEM_CANCELLED, NULL);
		set_state(d, DRIVER_STOPPED, NULL, 0, 0);
	}
	serve_stopped(d);
	return NULL;
}

/* ---- life ---- */

enum status driver_start(struct driver **out, const struct driver_options *options, struct error *err)
{
	*out = NULL;
	struct driver *d = mem_zalloc(1, sizeof *d, "engine thread", err);
	if (!d) return STATUS_NO_MEMORY;
	d->options = *options;
	d->in_last = &d->in_first;
	d->out_size = 4 * options->max_events + 2 * options->capacity + 64;
	d->out = mem_zalloc((size_t)d->out_size, sizeof *d->out, "events", err);
	d->active = mem_zalloc((size_t)options->capacity + 1, sizeof *d->active, "jobs", err);
	d->events = mem_zalloc((size_t)options->max_events, sizeof *d->events, "events", err);
	pthread_mutex_init(&d->in_lock, NULL);
	pthread_mutex_init(&d->out_lock, NULL);
	pthread_mutex_init(&d->status_lock, NULL);
	pthread_cond_init(&d->in_wake, NULL);
	pthread_cond_init(&d->out_room, NULL);
	if (!d->out || !d->active || !d->events) {
		driver_destroy(&d);
		return STATUS_NO_MEMORY;
	}
	publish(d, 0, true, true);
	if (thread_start(&d->thread, NULL, driver_main, d) != 0) {
		driver_destroy(&d);
		return FAIL(err, NO_MEMORY, "engine thread: cannot be started; lower the load of this machine");
	}
	d->started = true;
	*out = d;
	return STATUS_OK;
}

void driver_destroy(struct driver **driver)
{
	struct driver *d = *driver;
	if (!d) return;
	*driver = NULL;
	if (d->started) {
		pthread_mutex_lock(&d->in_lock);
		d->stop = true;
		pthread_cond_signal(&d->in_wake);
		pthread_mutex_unlock(&d->in_lock);
		pthread_mutex_lock(&d->out_lock);
		d->out_abandoned = true;
		pthread_cond_signal(&d->out_room);
		pthread_mutex_unlock(&d->out_lock);
		pthread_join(d->thread, NULL);
	}
	pthread_cond_destroy(&d->in_wake);
	pthread_cond_destroy(&d->out_room);
	pthread_mutex_destroy(&d->in_lock);
	pthread_mutex_destroy(&d->out_lock);
	pthread_mutex_destroy(&d->status_lock);
	free(d->out);
	free(d->active);
	free(d->events);
	free(d);
}
