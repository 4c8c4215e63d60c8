/* The thread team of the CPU back end: every chunk once, whatever comes when; no wait for members that do not come; pinning. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "base/clock.h"
#include "device/cpu/team.h"

static struct team *team_of(int members)
{
	struct team *team;
	struct error err = {0};
	if (team_create(&team, &(struct team_options){.members = members}, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(team_members(team), members);
	return team;
}

#define MOST 1000

struct counts {
	int done[MOST];      /* plain: a chunk has one owner, and team_run's return makes it visible */
	long sum[8];         /* by member */
	const int *chunk_of; /* written before team_run */
};

static void count_chunk(void *context, int chunk, int member)
{
	struct counts *c = context;
	c->done[chunk] += c->chunk_of[chunk];
	c->sum[member]++;
}

static void every_chunk_once(void **state)
{
	(void)state;
	int ones[MOST];
	for (int i = 0; i < MOST; i++) ones[i] = 1;
	for (int members = 1; members <= 7; members += 3) {
		struct team *team = team_of(members);
		for (int round = 0; round < 3000; round++) {
			struct counts c = {.chunk_of = ones};
			int chunks = round % 17 == 0 ? MOST : round % 9;
			team_run(team, chunks, count_chunk, &c);
			long total = 0;
			for (int i = 0; i < 8; i++) total += c.sum[i];
			assert_int_equal(total, chunks);
			for (int i = 0; i < MOST; i++) assert_int_equal(c.done[i], i < chunks);
		}
		team_destroy(&team);
		assert_null(team);
	}
}

static void pause_ms(long ms)
{
	nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* Between jobs long enough for members to fall asleep in the kernel: they wake for the next. */
static void wakes_sleepers(void **state)
{
	(void)state;
	struct team *team = team_of(3);
	int ones[MOST];
	for (int i = 0; i < MOST; i++) ones[i] = 1;
	for (int round = 0; round < 20; round++) {
		struct counts c = {.chunk_of = ones};
		team_run(team, 50, count_chunk, &c);
		for (int i = 0; i < 50; i++) assert_int_equal(c.done[i], 1);
		pause_ms(round % 3 ? 1 : 0);
	}
	team_destroy(&team);
}

struct stuck {
	_Atomic int others;
};

/* Chunk 0 is held by whoever claims it until all others are done: so the others must not need that member. */
static void stuck_chunk(void *context, int chunk, int member)
{
	(void)member;
	struct stuck *s = context;
	if (chunk) {
		atomic_fetch_add(&s->others, 1);
		return;
	}
	while (atomic_load(&s->others) < 39) sched_yield();
}

static void a_slow_member_delays_its_chunk_only(void **state)
{
	(void)state;
	struct team *team = team_of(2);
	for (int round = 0; round < 50; round++) {
		struct stuck s = {.others = 0};
		team_run(team, 40, stuck_chunk, &s);
		assert_int_equal(atomic_load(&s.others), 39);
	}
	team_destroy(&team);
}

static void idle_uses_no_processor_time(void **state)
{
	(void)state;
	struct team *team = team_of(4);
	int ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
	struct counts c = {.chunk_of = ones};
	team_run(team, 8, count_chunk, &c);
	pause_ms(5); /* the spin ends */
	clock_t before = clock();
	pause_ms(200);
	double used = (double)(clock() - before) / CLOCKS_PER_SEC;
	if (used > 0.05) fail_msg("an idle team used %.3f s of processor time in 0.2 s", used);
	team_destroy(&team);
}

static void first_allowed_cores(int *cores, int n)
{
	cpu_set_t mask;
	assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
	int found = 0;
	for (int i = 0; i < CPU_SETSIZE && found < n; i++)
		if (CPU_ISSET(i, &mask)) cores[found++] = i;
	for (int i = found; i < n; i++) cores[i] = cores[0];
}

static void where_am_i(void *context, int chunk, int member)
{
	_Atomic int *core = context;
	(void)chunk;
	atomic_store(&core[member], sched_getcpu());
}

static void pins_and_gives_back(void **state)
{
	(void)state;
	int cores[2];
	first_allowed_cores(cores, 2);
	cpu_set_t before, after;
	sched_getaffinity(0, sizeof before, &before);
	struct team *team;
	struct error err = {0};
	if (team_create(&team, &(struct team_options){.cores = cores, .members = 2, .pin = true}, &err) != STATUS_OK) fail_msg("%s", err.text);
	_Atomic int seen[2] = {-1, -1};
	for (int round = 0; round < 1000 && (atomic_load(&seen[0]) < 0 || atomic_load(&seen[1]) < 0); round++) team_run(team, 64, where_am_i, (void *)seen);
	assert_int_equal(atomic_load(&seen[0]), cores[0]);
	if (atomic_load(&seen[1]) >= 0) assert_int_equal(atomic_load(&seen[1]), cores[1]);
	team_destroy(&team);
	sched_getaffinity(0, sizeof after, &after);
	assert_true(CPU_EQUAL(&before, &after));
}

static void refuses_what_it_cannot(void **state)
{
	(void)state;
	struct team *team = (void *)1;
	struct error err = {0};
	assert_int_equal(team_create(&team, &(struct team_options){.members = 0}, &err), STATUS_BAD_INPUT);
	assert_null(team);
	err = (struct error){0};
	int no_such[2] = {CPU_SETSIZE - 1, 0};
	assert_int_equal(team_create(&team, &(struct team_options){.cores = no_such, .members = 2, .pin = true}, &err), STATUS_BAD_INPUT);
	assert_null(team);
	team_destroy(&team);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_chunk_once),   cmocka_unit_test(wakes_sleepers),      cmocka_unit_test(a_slow_member_delays_its_chunk_only),
		cmocka_unit_test(idle_uses_no_processor_time), cmocka_unit_test(pins_and_gives_back), cmocka_unit_test(refuses_what_it_cannot),
	};
	return cmocka_run_group_tests_name("team", tests, NULL, NULL);
}
