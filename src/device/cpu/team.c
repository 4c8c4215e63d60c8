#include "device/cpu/team.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "base/wait.h"

/* The claim word holds all that decides whether a claim is good, so that one fetch_add is a consistent answer even for a member
 * that wakes up during a later job: the low half is the next chunk, the high half the number of chunks. A member that got
 * next < chunks owns that chunk; the job's fn and context cannot change before it is reported done, because team_run waits for
 * it. A member that got next >= chunks looks at nothing else. Each member overshoots at most once a job, far below 2^32. */
#define CLAIM_NEXT 0xffffffffu

struct member {
	struct team *team;
	pthread_t thread;
	int index;
	bool running;
};

struct team {
	/* Written by member 0 while no chunk is claimed, read by owners of a claimed chunk. */
	team_fn *fn;
	void *context;
	_Alignas(64) _Atomic uint64_t claim;
	_Alignas(64) _Atomic uint64_t done; /* chunks finished since creation */
	uint64_t target;                    /* `done` once the current job is finished; constant while one runs */
	struct wait_word posted;            /* bumped for each job and at the end */
	struct wait_word finished;          /* bumped by the member that finishes a job's last chunk */
	_Atomic bool stop;
	int members;
	int first_core;     /* member 0's core; -1: not bound */
	bool attached;      /* old_mask is what `attached_thread` had */
	pthread_t attached_thread;
	cpu_set_t old_mask;
	struct member member[];
};

static void work(struct team *team, int index)
{
	for (;;) {
		uint64_t claim = atomic_fetch_add_explicit(&team->claim, 1, memory_order_acq_rel);
		uint32_t chunk = (uint32_t)(claim & CLAIM_NEXT), chunks = (uint32_t)(claim >> 32);
		if (chunk >= chunks) return;
		uint64_t target = team->target; /* before the chunk is reported: after that the next job may begin */
		team->fn(team->context, (int)chunk, index);
		uint64_t done = atomic_fetch_add_explicit(&team->done, 1, memory_order_acq_rel) + 1;
		if (done == target && index != 0) wait_bump(&team->finished);
	}
}

static void *member_main(void *argument)
{
	struct member *self = argument;
	struct team *team = self->team;
	for (;;) {
		uint32_t seen = atomic_load_explicit(&team->posted.value, memory_order_acquire);
		if (atomic_load_explicit(&team->stop, memory_order_acquire)) return NULL;
		work(team, self->index);
		/* Idle for as long as the engine is: the deadline only bounds one sleep. */
		(void)wait_change(&team->posted, seen, clock_deadline_ms(60000));
	}
}

void team_run(struct team *team, int chunks, team_fn *fn, void *context)
{
	assert(chunks >= 0 && chunks <= TEAM_MAX_CHUNKS);
	if (chunks <= 1 || team->members == 1) {
		for (int i = 0; i < chunks; i++) fn(context, i, 0);
		return;
	}
	team->fn = fn;
	team->context = context;
	team->target += (uint64_t)chunks;
	atomic_store_explicit(&team->claim, (uint64_t)chunks << 32, memory_order_release);
	wait_bump(&team->posted);
	work(team, 0);
	/* Not bounded by a deadline of its own: what is waited for is arithmetic of this process that already runs, and its
	 * memory could not be reused before it ends. */
	for (;;) {
		uint32_t seen = atomic_load_explicit(&team->finished.value, memory_order_acquire);
		if (atomic_load_explicit(&team->done, memory_order_acquire) == team->target) return;
		(void)wait_change(&team->finished, seen, clock_deadline_ms(1000));
	}
}

int team_members(const struct team *team)
{
	return team->members;
}

static enum status pin(pthread_t thread, int core, struct error *err)
{
	cpu_set_t mask;
	CPU_ZERO(&mask);
	if (core < 0 || core >= CPU_SETSIZE) return FAIL(err, BAD_INPUT, "cpu core %d: out of range; name cores 0..%d", core, CPU_SETSIZE - 1);
	CPU_SET(core, &mask);
	int rc = pthread_setaffinity_np(thread, sizeof mask, &mask);
	if (rc) return FAIL(err, BAD_INPUT, "cpu core %d: a thread cannot be bound to it (%s); choose a core this process may use", core, strerror(rc));
	return STATUS_OK;
}

static enum status start_member(struct team *team, int index, const struct team_options *options, struct error *err)
{
	struct member *member = &team->member[index];
	*member = (struct member){.team = team, .index = index};
	int rc = thread_start(&member->thread, NULL, member_main, member);
	if (rc) return FAIL(err, NO_MEMORY, "cpu team: thread %d of %d: %s; use fewer threads", index, team->members, strerror(rc));
	member->running = true;
	(void)pthread_setname_np(member->thread, "tandem-cpu"); /* for a look with top -H; harmless if it fails */
	return options->pin ? pin(member->thread, options->cores[index], err) : STATUS_OK;
}

enum status team_attach(struct team *team, struct error *err)
{
	if (team->first_core < 0) return STATUS_OK;
	if (!team->attached || !pthread_equal(team->attached_thread, pthread_self())) {
		team->attached = pthread_getaffinity_np(pthread_self(), sizeof team->old_mask, &team->old_mask) == 0;
		team->attached_thread = pthread_self();
	}
	return pin(pthread_self(), team->first_core, err);
}

enum status team_create(struct team **out, const struct team_options *options, struct error *err)
{
	*out = NULL;
	if (options->members < 1 || options->members > TEAM_MAX_MEMBERS)
		return FAIL(err, BAD_INPUT, "cpu team: %d threads; 1..%d are possible", options->members, TEAM_MAX_MEMBERS);
	/* aligned_alloc: the words sit on cache lines of their own. */
	size_t bytes = sizeof(struct team) + (size_t)options->members * sizeof(struct member);
	bytes = (bytes + 63) / 64 * 64;
	struct team *team = aligned_alloc(64, bytes);
	if (!team) return FAIL(err, NO_MEMORY, "cpu team: no memory for %zu bytes; use fewer threads", bytes);
	memset(team, 0, bytes);
	team->members = options->members;
	team->first_core = options->pin ? options->cores[0] : -1;
	enum status st;
	TRY_GOTO(team_attach(team, err), fail);
	for (int i = 1; i < team->members; i++) TRY_GOTO(start_member(team, i, options, err), fail);
	*out = team;
	return STATUS_OK;
fail:
	team_destroy(&team);
	return st;
}

void team_destroy(struct team **team)
{
	struct team *t = *team;
	if (!t) return;
	atomic_store_explicit(&t->stop, true, memory_order_release);
	wait_bump(&t->posted);
	for (int i = 1; i < t->members; i++)
		if (t->member[i].running) pthread_join(t->member[i].thread, NULL);
	if (t->attached && pthread_equal(t->attached_thread, pthread_self()))
		(void)pthread_setaffinity_np(pthread_self(), sizeof t->old_mask, &t->old_mask);
	free(t);
	*team = NULL;
}
