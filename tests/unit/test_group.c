/* The rendezvous and the abort (contracts C1, C2, C3; fault points of E8). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/group.h"
#include "unit/ranks.h"

#define LONG_MS 60000 /* a deadline that no test may reach */

static const int world_sizes[] = {1, 2, 3, 4, 6, 8};
#define WORLDS ((int)(sizeof world_sizes / sizeof *world_sizes))

static struct group *make_of(const struct group_options *options)
{
	struct group *group;
	struct error err = {0};
	if (group_create(&group, options, &err) != STATUS_OK) fail_msg("group_create: %s", err.text);
	return group;
}

static struct group *make(int world_size, uint64_t timeout_ms)
{
	return make_of(&(struct group_options){.world_size = world_size, .timeout_ms = timeout_ms});
}

static void assert_holds(const char *text, const char *part)
{
	if (!strstr(text, part)) fail_msg("'%s' does not hold '%s'", text, part);
}

static void test_create_refuses(void **state)
{
	(void)state;
	const struct group_options bad[] = {{.world_size = 0, .timeout_ms = 1}, {.world_size = -1, .timeout_ms = 1},
	                                    {.world_size = 65, .timeout_ms = 1}, {.world_size = 2, .timeout_ms = 0}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct group *group = (struct group *)state;
		struct error err = {0};
		assert_int_equal(group_create(&group, &bad[i], &err), STATUS_BAD_INPUT);
		assert_null(group);
		assert_true(err.text[0]);
	}
	struct group *group = NULL;
	group_destroy(&group);
	group = make(64, 1);
	assert_int_equal(group_world_size(group), 64);
	group_destroy(&group);
	group_destroy(&group);
	assert_null(group);
}

/* ---- generations ---- */

struct cells {
	struct group *group;
	uint64_t generations;
	struct {
		_Alignas(64) uint64_t value[2]; /* plain: TSan sees whether the meeting orders them */
	} rank[GROUP_MAX_RANKS];
};

/* Writes its cell, meets, reads everybody's. Two cells alternate, as the scratch does: no second meeting is needed. */
static void body_cells(struct rank_run *run)
{
	struct cells *cells = run->context;
	for (uint64_t g = 0; g < cells->generations; g++) {
		cells->rank[run->rank].value[g % 2] = g;
		struct collective_desc desc = {.sequence = g, .op = COLLECTIVE_BARRIER};
		run->st = group_meet(cells->group, run->rank, &desc, &run->err);
		RANK_CHECK(run, run->st == STATUS_OK, "generation %llu", (unsigned long long)g);
		for (int r = 0; r < run->world_size; r++)
			RANK_CHECK(run, cells->rank[r].value[g % 2] == g, "rank %d wrote %llu, expected %llu", r,
			           (unsigned long long)cells->rank[r].value[g % 2], (unsigned long long)g);
	}
}

static void test_many_generations(void **state)
{
	(void)state;
	for (int i = 0; i < WORLDS; i++) {
		int P = world_sizes[i];
		struct cells *cells = aligned_alloc(64, sizeof *cells);
		struct rank_run runs[RANKS_MAX];
		assert_non_null(cells);
		memset(cells, 0, sizeof *cells);
		cells->group = make(P, LONG_MS);
		cells->generations = P <= 2 ? 200000 : 5000;
		uint64_t start = clock_ns();
		ranks_run(P, body_cells, cells, runs);
		uint64_t span = clock_ns() - start;
		ranks_assert_content(runs, P);
		print_message("P=%d: %.2f us a meeting\n", P, (double)span / 1e3 / (double)cells->generations);
		group_destroy(&cells->group);
		free(cells);
	}
}

/* ---- descriptors ---- */

struct mismatch {
	struct group *group;
	int outlier;
	struct collective_desc ours, theirs;
};

static void body_mismatch(struct rank_run *run)
{
	struct mismatch *m = run->context;
	const struct collective_desc *desc = run->rank == m->outlier ? &m->theirs : &m->ours;
	run->st = group_meet(m->group, run->rank, desc, &run->err);
	struct error again = {0};
	RANK_CHECK(run, group_meet(m->group, run->rank, &m->ours, &again) == run->st, "a dead group meets");
	RANK_CHECK(run, !strcmp(again.text, run->err.text), "'%s'", again.text);
}

static void test_mismatch_fails_all(void **state)
{
	(void)state;
	const struct collective_desc ours = {.sequence = 12, .op = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .count = 4096};
	struct collective_desc theirs[5] = {ours, ours, ours, ours, ours};
	theirs[0].sequence = 13;
	theirs[1].op = COLLECTIVE_BROADCAST;
	theirs[2].dtype = DTYPE_BF16;
	theirs[3].count = 4095;
	theirs[4].root = 1;
	for (int i = 1; i < WORLDS; i++) {
		const int P = world_sizes[i];
		for (int trial = 0; trial < 5 * P; trial++) {
			struct mismatch m = {.group = make(P, LONG_MS), .outlier = trial / 5, .ours = ours, .theirs = theirs[trial % 5]};
			struct rank_run runs[RANKS_MAX];
			ranks_run(P, body_mismatch, &m, runs);
			ranks_assert_content(runs, P);
			char text[2][96], name[128];
			collective_desc_format(&m.ours, text[0], sizeof text[0]);
			collective_desc_format(&m.theirs, text[1], sizeof text[1]);
			snprintf(name, sizeof name, "rank %d: %s", m.outlier, text[1]);
			for (int r = 0; r < P; r++) {
				assert_int_equal(runs[r].st, STATUS_MISMATCH);
				assert_holds(runs[r].err.text, text[0]);
				assert_holds(runs[r].err.text, name);
			}
			assert_true(group_aborted(m.group));
			group_destroy(&m.group);
		}
	}
}

static void test_format(void **state)
{
	(void)state;
	char text[96], small[9];
	struct collective_desc desc = {.sequence = 12, .op = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .count = 4096};
	collective_desc_format(&desc, text, sizeof text);
	assert_string_equal(text, "all_reduce seq 12 F32 x 4096");
	collective_desc_format(&desc, small, sizeof small);
	assert_string_equal(small, "all_redu");
	desc = (struct collective_desc){.sequence = 7, .op = COLLECTIVE_BROADCAST, .count = 5, .root = 3};
	collective_desc_format(&desc, text, sizeof text);
	assert_string_equal(text, "broadcast seq 7 5 bytes from rank 3");
	desc = (struct collective_desc){.sequence = UINT64_MAX, .op = COLLECTIVE_BARRIER};
	collective_desc_format(&desc, text, sizeof text);
	assert_string_equal(text, "barrier seq 18446744073709551615");
	desc.op = (enum collective_op)99;
	collective_desc_format(&desc, text, sizeof text);
	assert_string_equal(text, "unknown seq 18446744073709551615");
}

/* ---- abort ---- */

static void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

struct waiters {
	struct group *group;
	_Atomic uint64_t abort_ns;
};

/* Rank 0 aborts after a while, the others wait in a meeting that it never joins. */
static void body_abort(struct rank_run *run)
{
	struct waiters *w = run->context;
	if (run->rank == 0) {
		sleep_ms(30);
		struct error why = {0};
		run->st = FAIL(&why, IO, "disk: on fire");
		atomic_store(&w->abort_ns, clock_ns());
		group_abort(w->group, 0, &why);
		return;
	}
	struct collective_desc desc = {.sequence = 1};
	run->st = group_meet(w->group, run->rank, &desc, &run->err);
}

static void test_abort_wakes_all(void **state)
{
	(void)state;
	for (int i = 1; i < WORLDS; i++) {
		const int P = world_sizes[i];
		struct waiters w = {.group = make(P, LONG_MS)};
		struct rank_run runs[RANKS_MAX];
		assert_false(group_aborted(w.group));
		assert_int_equal(group_error(w.group, NULL), STATUS_OK);
		assert_int_equal(*group_abort_flag(w.group), 0);
		ranks_run(P, body_abort, &w, runs);
		for (int r = 0; r < P; r++) {
			assert_int_equal(runs[r].st, STATUS_IO);
			assert_string_equal(runs[r].err.text, r ? "rank 0: disk: on fire" : "");
			assert_true(runs[r].end_ns < w.abort_ns + UINT64_C(5000000000));
		}
		assert_int_not_equal(*group_abort_flag(w.group), 0);
		group_destroy(&w.group);
	}
}

static void test_first_error_wins(void **state)
{
	(void)state;
	struct group *group = make(2, LONG_MS);
	struct error first = {0}, second = {0}, seen = {0}, held = {0};
	(void)FAIL(&first, RANK_LOST, "rank 1: gone");
	(void)FAIL(&second, IO, "later");
	group_abort(group, 1, &first);
	group_abort(group, 0, &second);
	group_abort(group, -1, NULL);
	assert_int_equal(group_error(group, &seen), STATUS_RANK_LOST);
	assert_string_equal(seen.text, "rank 1: gone"); /* the rank is not named twice */
	assert_int_equal(group_error(group, NULL), STATUS_RANK_LOST);
	(void)FAIL(&held, USAGE, "mine");
	assert_int_equal(group_error(group, &held), STATUS_RANK_LOST);
	assert_string_equal(held.text, "mine");
	group_destroy(&group);

	group = make(2, LONG_MS);
	group_abort(group, -1, NULL);
	assert_int_equal(group_error(group, NULL), STATUS_ABORTED);
	group_destroy(&group);
}

static void body_race(struct rank_run *run)
{
	struct group *group = run->context;
	struct error why = {0};
	(void)FAIL(&why, IO, "by %d", run->rank);
	group_abort(group, run->rank, &why);
	RANK_CHECK(run, group_aborted(group), "after group_abort returned");
	run->st = group_error(group, &run->err);
}

static void test_abort_race(void **state)
{
	(void)state;
	for (int i = 0; i < 200; i++) {
		struct group *group = make(8, LONG_MS);
		struct rank_run runs[8];
		ranks_run(8, body_race, group, runs);
		ranks_assert_content(runs, 8);
		for (int r = 0; r < 8; r++) assert_string_equal(runs[r].err.text, runs[0].err.text);
		group_destroy(&group);
	}
}

/* Everybody meets without end while rank 0 aborts in the middle: all end, with one error. */
static void body_storm(struct rank_run *run)
{
	struct group *group = run->context;
	for (uint64_t g = 0;; g++) {
		struct collective_desc desc = {.sequence = g};
		if (run->rank == 0 && g == 300) {
			struct error why = {0};
			(void)FAIL(&why, CANCELLED, "stop");
			group_abort(group, 0, &why);
		}
		run->st = group_meet(group, run->rank, &desc, &run->err);
		if (run->st != STATUS_OK) return;
	}
}

static void test_abort_under_load(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		struct group *group = make(4, LONG_MS);
		struct rank_run runs[4];
		ranks_run(4, body_storm, group, runs);
		for (int r = 0; r < 4; r++) assert_string_equal(runs[r].err.text, "rank 0: stop");
		group_destroy(&group);
	}
}

/* ---- deadline ---- */

struct absent {
	struct group *group;
	uint64_t set; /* ranks that stay away from sequence 5 */
};

static void body_absent(struct rank_run *run)
{
	struct absent *absent = run->context;
	struct collective_desc desc = {.sequence = 4};
	run->st = group_meet(absent->group, run->rank, &desc, &run->err);
	RANK_CHECK(run, run->st == STATUS_OK, "first meeting");
	if (absent->set >> run->rank & 1) return;
	desc = (struct collective_desc){.sequence = 5, .op = COLLECTIVE_ALL_REDUCE, .dtype = DTYPE_F32, .count = 64};
	run->st = group_meet(absent->group, run->rank, &desc, &run->err);
}

static void test_deadline_names_the_missing(void **state)
{
	(void)state;
	const struct group_options options = {.world_size = 8, .timeout_ms = 3000, .first_timeout_ms = LONG_MS}; /* a thread's start may take long */
	struct absent absent = {.group = make_of(&options), .set = 0xea}; /* 1, 3, 5-7 */
	struct rank_run runs[8];
	uint64_t start = clock_ns();
	ranks_run(8, body_absent, &absent, runs);
	ranks_assert_content(runs, 8);
	assert_true(clock_ns() - start >= 3000000000);
	for (int r = 0; r < 8; r++) {
		if (absent.set >> r & 1) continue;
		assert_int_equal(runs[r].st, STATUS_TIMEOUT);
		assert_holds(runs[r].err.text, "all_reduce seq 5 F32 x 64: ranks 1,3,5-7 did not come within 3000 ms (rank 1 last seen at seq 4)");
		assert_int_equal(strncmp(runs[r].err.text, "rank ", 5), 0);
	}
	/* Who comes late finds the group dead. */
	struct collective_desc desc = {.sequence = 5};
	struct error err = {0};
	assert_int_equal(group_meet(absent.group, 1, &desc, &err), STATUS_TIMEOUT);
	assert_string_equal(err.text, runs[0].err.text);
	group_destroy(&absent.group);
}

static void test_deadline_never_seen(void **state)
{
	(void)state;
	struct group *group = make(2, 20);
	struct collective_desc desc = {.sequence = 0, .op = COLLECTIVE_SETUP, .count = 8};
	struct error err = {0};
	assert_int_equal(group_meet(group, 1, &desc, &err), STATUS_TIMEOUT);
	assert_holds(err.text, "rank 1: setup seq 0 8 bytes: rank 0 did not come within 20 ms (rank 0 never seen)");
	group_destroy(&group);
}

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void test_waiting_burns_no_cpu(void **state)
{
	(void)state;
	struct group *group = make(2, 300);
	struct collective_desc desc = {0};
	struct error err = {0};
	uint64_t before = thread_cpu_ns(), start = clock_ns();
	assert_int_equal(group_meet(group, 0, &desc, &err), STATUS_TIMEOUT);
	uint64_t cpu = thread_cpu_ns() - before;
	print_message("a wait of %.0f ms took %.3f ms of CPU\n", (double)(clock_ns() - start) / 1e6, (double)cpu / 1e6);
	assert_true(cpu < 30000000);
	group_destroy(&group);
}

/* ---- faults ---- */

struct faulty {
	struct group *group;
	struct fault_plan plan;
	struct rank_run runs[4];
};

/* Faults come behind the first meeting, to which the ranks' threads may be late. */
static void faulty_make(struct faulty *f, const char *text, uint64_t timeout_ms, int P)
{
	struct error err = {0};
	if (fault_parse(&f->plan, text, &err) != STATUS_OK) fail_msg("%s", err.text);
	f->group = make_of(&(struct group_options){.world_size = P, .timeout_ms = timeout_ms, .first_timeout_ms = LONG_MS, .fault = &f->plan});
}

static void body_faulty(struct rank_run *run)
{
	struct group *group = run->context;
	for (uint64_t s = 0; s <= 5 && run->st == STATUS_OK; s++) {
		struct collective_desc desc = {.sequence = s};
		run->st = group_meet(group, run->rank, &desc, &run->err);
	}
}

/* One group of several that run at once. */
static void body_group(struct rank_run *run)
{
	struct faulty *f = (struct faulty *)run->context + run->rank;
	ranks_run(group_world_size(f->group), body_faulty, f->group, f->runs);
}

static void run_fault(struct faulty *f, const char *text, uint64_t timeout_ms, int P)
{
	faulty_make(f, text, timeout_ms, P);
	ranks_run(P, body_faulty, f->group, f->runs);
}

static void test_injected_failures_free_the_peers(void **state)
{
	(void)state;
	static const char *const points[] = {"barrier", "ready"};
	static const char *const kinds[] = {"error", "oom"};
	for (int trial = 0; trial < 16; trial++) {
		const int P = trial & 4 ? 4 : 2, victim = trial & 8 ? P - 1 : 0, oom = trial >> 1 & 1;
		char text[96], expected[128];
		snprintf(text, sizeof text, "rank=%d,at=%s,seq=3,kind=%s", victim, points[trial & 1], kinds[oom]);
		snprintf(expected, sizeof expected, "rank %d: injected %s at %s, seq 3; run without --fault", victim, oom ? "lack of memory" : "error",
		         points[trial & 1]);
		struct faulty f;
		run_fault(&f, text, LONG_MS, P);
		for (int r = 0; r < P; r++) {
			assert_int_equal(f.runs[r].st, oom ? STATUS_NO_MEMORY : STATUS_ABORTED);
			assert_string_equal(f.runs[r].err.text, expected);
		}
		group_destroy(&f.group);
	}
}

static void test_silent_exit_is_found_by_deadline(void **state)
{
	(void)state;
	static const char *const faults[] = {"rank=1,at=barrier,seq=3,kind=exit", "rank=1,at=ready,seq=3,kind=exit"};
	struct faulty f[2];
	struct rank_run runs[2];
	for (int at = 0; at < 2; at++) faulty_make(&f[at], faults[at], 4000, 3);
	ranks_run(2, body_group, f, runs);
	for (int at = 0; at < 2; at++) {
		assert_int_equal(f[at].runs[1].st, STATUS_RANK_LOST);
		for (int r = 0; r < 3; r += 2) {
			const char *text = f[at].runs[r].err.text;
			assert_int_equal(f[at].runs[r].st, STATUS_TIMEOUT);
			/* dead before meeting 3: the others wait at 3; dead after it: they wait at 4 */
			assert_holds(text, at ? "barrier seq 4: rank 1 did not come" : "barrier seq 3: rank 1 did not come");
			assert_holds(text, at ? "last seen at seq 3" : "last seen at seq 2");
		}
		group_destroy(&f[at].group);
	}
}

static void test_stall(void **state)
{
	(void)state;
	struct faulty f;
	run_fault(&f, "rank=2,at=barrier,seq=2,kind=stall:50;rank=0,at=ready,seq=3,kind=stall:50", LONG_MS, 3);
	for (int r = 0; r < 3; r++) assert_int_equal(f.runs[r].st, STATUS_OK);
	group_destroy(&f.group);
	/* Longer than the deadline: the others give up, and the stall ends with the group. */
	uint64_t start = clock_ns();
	run_fault(&f, "rank=2,at=barrier,seq=2,kind=stall:50000", 100, 3);
	for (int r = 0; r < 3; r++) assert_int_equal(f.runs[r].st, STATUS_TIMEOUT);
	assert_true(clock_ns() - start < UINT64_C(20000000000));
	group_destroy(&f.group);
}

/* ---- exchange ---- */

static void body_exchange(struct rank_run *run)
{
	struct group *group = run->context;
	for (uint64_t g = 0; g < 500; g++) {
		uint64_t mine[2] = {g, (uint64_t)run->rank}, all[RANKS_MAX][2];
		struct collective_desc desc = {.sequence = g, .op = COLLECTIVE_SETUP, .count = sizeof mine};
		run->st = group_exchange(group, run->rank, &desc, mine, all, &run->err);
		RANK_CHECK(run, run->st == STATUS_OK, "exchange %llu", (unsigned long long)g);
		for (int r = 0; r < run->world_size; r++) RANK_CHECK(run, all[r][0] == g && all[r][1] == (uint64_t)r, "from rank %d", r);
	}
}

static void test_exchange(void **state)
{
	(void)state;
	for (int i = 0; i < WORLDS; i++) {
		struct group *group = make(world_sizes[i], LONG_MS);
		struct rank_run runs[RANKS_MAX];
		ranks_run(world_sizes[i], body_exchange, group, runs);
		ranks_assert_content(runs, world_sizes[i]);
		group_destroy(&group);
	}
}

/* ---- words that watch for the abort ---- */

static void test_watch(void **state)
{
	(void)state;
	struct group *group = make(2, LONG_MS);
	struct error why = {0}, err = {0};
	_Atomic uint32_t words[GROUP_MAX_WATCHES + 1] = {0}, late = 0;
	for (int i = 0; i < GROUP_MAX_WATCHES; i++) assert_int_equal(group_watch(group, &words[i], &err), STATUS_OK);
	assert_int_equal(group_watch(group, &words[GROUP_MAX_WATCHES], &err), STATUS_NO_ROOM);
	group_unwatch(group, &words[3]);
	group_unwatch(group, &late); /* was never watched */
	(void)FAIL(&why, NO_ROOM, "enough");
	group_abort(group, 1, &why);
	for (int i = 0; i <= GROUP_MAX_WATCHES; i++) assert_int_equal(words[i], i != 3 && i < GROUP_MAX_WATCHES);
	err = (struct error){0};
	assert_int_equal(group_watch(group, &late, &err), STATUS_OK); /* after the abort: told at once */
	assert_int_equal(late, 1);
	group_destroy(&group);
}

int main(void)
{
	watchdog(240);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_create_refuses),
		cmocka_unit_test(test_many_generations),
		cmocka_unit_test(test_mismatch_fails_all),
		cmocka_unit_test(test_format),
		cmocka_unit_test(test_abort_wakes_all),
		cmocka_unit_test(test_first_error_wins),
		cmocka_unit_test(test_abort_race),
		cmocka_unit_test(test_abort_under_load),
		cmocka_unit_test(test_deadline_names_the_missing),
		cmocka_unit_test(test_deadline_never_seen),
		cmocka_unit_test(test_waiting_burns_no_cpu),
		cmocka_unit_test(test_injected_failures_free_the_peers),
		cmocka_unit_test(test_silent_exit_is_found_by_deadline),
		cmocka_unit_test(test_stall),
		cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_watch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
