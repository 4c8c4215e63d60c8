/* What is left after failures that no fault point can plant: threads and groups that cannot be made, ops that call a failure the caller's, devices that hang through
 * everything, new groups that take long to be made. The linker puts the functions below in place of the engine's (Makefile). */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group.h"
#include "engine/forward.h"
#include "engine/graphs.h"
#include "unit/golden.h"

#define TOKENS 8
static const int32_t prompt[] = {3, 14, 15, 92, 65, 35};
#define PROMPT ((int)(sizeof prompt / sizeof *prompt))

/* What the next calls do; all zero: what they always do. */
static struct {
	_Atomic int no_thread, no_group; /* so many fail */
	_Atomic int threads;             /* made so far */
	_Atomic int bad_input;           /* so many forward passes call it the caller's */
	_Atomic int hang_ms, record_ms;  /* each takes so long, whatever is aborted */
	_Atomic int hung;                /* forward passes that have come back */
	_Atomic bool until_abort;        /* forward passes do not begin before their group is aborted */
	_Atomic bool entered;            /* one is there */
} plan;

static void take_ms(int ms)
{
	if (ms) nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}

static bool takes_one(_Atomic int *count)
{
	return atomic_load(count) > 0 && atomic_fetch_sub(count, 1) > 0;
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
	if (takes_one(&plan.no_thread)) return EAGAIN;
	atomic_fetch_add(&plan.threads, 1);
	return __real_pthread_create(thread, attributes, main, argument);
}

enum status __real_group_create(struct group **out, const struct group_options *options, struct error *err);
enum status __wrap_group_create(struct group **out, const struct group_options *options, struct error *err);
enum status __wrap_group_create(struct group **out, const struct group_options *options, struct error *err)
{
	*out = NULL;
	if (takes_one(&plan.no_group)) return FAIL(err, NO_MEMORY, "group: planted");
	return __real_group_create(out, options, err);
}

enum status __real_forward_layers(struct rank *rank, struct error *err);
enum status __wrap_forward_layers(struct rank *rank, struct error *err);
enum status __wrap_forward_layers(struct rank *rank, struct error *err)
{
	if (takes_one(&plan.bad_input)) return FAIL(err, BAD_INPUT, "attention: planted");
	if (atomic_load(&plan.until_abort)) {
		atomic_store(&plan.entered, true);
		while (!group_aborted(rank->group)) take_ms(1);
		atomic_store(&plan.until_abort, false); /* not the passes of the group after it */
	}
	const int ms = atomic_load(&plan.hang_ms);
	take_ms(ms);
	enum status st = __real_forward_layers(rank, err);
	if (ms) atomic_fetch_add(&plan.hung, 1);
	return st;
}

enum status __real_graphs_record(struct rank *rank, struct error *err);
enum status __wrap_graphs_record(struct rank *rank, struct error *err);
enum status __wrap_graphs_record(struct rank *rank, struct error *err)
{
	take_ms(atomic_load(&plan.record_ms));
	return __real_graphs_record(rank, err);
}

static struct tandem *open_with(int world_size, unsigned timeout_ms, const char *fault)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	const struct tandem_options o = {.model = GOLDEN_DIR "llama", .world_size = world_size, .threads = world_size, .context = 64, .timeout_ms = timeout_ms, .fault = fault};
	if (tandem_open(&engine, &o, &err)) fail_msg("open: %s", err.text);
	return engine;
}

static int greedy(struct tandem *engine, int32_t out[TOKENS], struct tandem_error *err)
{
	int got;
	memset(err, 0, sizeof *err);
	return golden_greedy(engine, prompt, PROMPT, TOKENS, true, out, &got, err);
}

/* The engine gives the tokens that it gave at first. */
static void assert_well(struct tandem *engine, const int32_t want[TOKENS])
{
	int32_t got[TOKENS];
	struct tandem_error err;
	struct tandem_info info;
	if (greedy(engine, got, &err)) fail_msg("greedy: %s", err.text);
	assert_memory_equal(got, want, sizeof got);
	tandem_get_info(engine, &info);
	assert_int_equal(info.kv_free_tokens, info.kv_tokens);
}

static bool usable(struct tandem *engine)
{
	struct tandem_health health;
	tandem_get_health(engine, 0, &health);
	return health.usable;
}

static void expect_tokens(int32_t want[TOKENS])
{
	struct tandem_error err;
	struct tandem *engine = open_with(1, 0, NULL);
	if (greedy(engine, want, &err)) fail_msg("greedy: %s", err.text);
	tandem_close(&engine);
}

static void test_a_rebuild_that_fails_can_be_tried_again(void **state)
{
	(void)state;
	int32_t want[TOKENS], got[TOKENS];
	struct tandem_error err;
	expect_tokens(want);
	for (int thread = 0; thread < 2; thread++) {
		struct tandem *engine = open_with(2, 0, "rank=1,at=kernel,seq=0,kind=exit");
		assert_int_not_equal(greedy(engine, got, &err), 0);
		*(thread ? &plan.no_thread : &plan.no_group) = 1;
		memset(&err, 0, sizeof err);
		assert_int_equal(tandem_rebuild(engine, &err), STATUS_NO_MEMORY);
		assert_true(err.text[0]);
		assert_false(usable(engine));
		assert_int_not_equal(greedy(engine, got, &err), 0);
		memset(&err, 0, sizeof err);
		if (tandem_rebuild(engine, &err)) fail_msg("rebuild: %s", err.text);
		assert_well(engine, want);
		tandem_close(&engine);
	}
}

/* The group's error is what they report too, and they are not lost by it. */
static void test_those_who_survive_a_lost_rank_keep_their_threads(void **state)
{
	(void)state;
	static const char *const points[] = {"reserve,seq=3", "barrier,seq=17", "kernel,seq=3"};
	int32_t want[TOKENS], got[TOKENS];
	expect_tokens(want);
	for (int i = 0; i < 3; i++) {
		char fault[64] = "rank=2,at=";
		struct tandem_error err;
		strcat(strcat(fault, points[i]), ",kind=exit");
		struct tandem *engine = open_with(4, 0, fault);
		assert_int_not_equal(greedy(engine, got, &err), 0);
		plan.threads = 0;
		memset(&err, 0, sizeof err);
		if (tandem_rebuild(engine, &err)) fail_msg("rebuild: %s", err.text);
		assert_int_equal(plan.threads, 1);
		assert_well(engine, want);
		tandem_close(&engine);
	}
}

/* Whatever a rank calls its failure: the group has ended, and with it its requests. */
static void test_a_rank_that_calls_its_failure_the_callers(void **state)
{
	(void)state;
	int32_t want[TOKENS], got[TOKENS];
	struct tandem_error err;
	struct tandem_stats stats;
	expect_tokens(want);
	struct tandem *engine = open_with(2, 0, NULL);
	plan.bad_input = 1;
	assert_int_not_equal(greedy(engine, got, &err), 0);
	assert_false(usable(engine));
	tandem_get_stats(engine, &stats);
	assert_int_equal(stats.running + stats.waiting, 0);
	assert_int_equal(stats.aborted_groups, 1);
	memset(&err, 0, sizeof err);
	if (tandem_rebuild(engine, &err)) fail_msg("rebuild: %s", err.text);
	assert_well(engine, want);
	tandem_close(&engine);
}

static void *interrupt_a_pass(void *engine)
{
	while (!atomic_load(&plan.entered)) take_ms(1);
	tandem_interrupt(engine, true);
	return NULL;
}

static void no_span(void *context, int rank, const char *section, const char *op, double begin_us, double us)
{
	(void)context, (void)rank, (void)section, (void)op, (void)begin_us, (void)us;
}

/* In a step, and in a measurement of one; also where a new group is not made within one look of the coordinator. */
static void test_an_interrupt_leaves_a_usable_engine(void **state)
{
	(void)state;
	int32_t want[TOKENS], got[TOKENS];
	expect_tokens(want);
	for (int traced = 0; traced < 2; traced++) {
		struct tandem_error err;
		pthread_t thread;
		struct tandem *engine = open_with(2, 0, NULL);
		assert_well(engine, want);
		plan.until_abort = true;
		plan.entered = false;
		plan.hang_ms = plan.record_ms = 100;
		assert_int_equal(pthread_create(&thread, NULL, interrupt_a_pass, engine), 0);
		memset(&err, 0, sizeof err);
		if (traced) assert_int_equal(tandem_trace_step(engine, no_span, NULL, &err), STATUS_CANCELLED);
		else assert_int_equal(greedy(engine, got, &err), STATUS_CANCELLED);
		pthread_join(thread, NULL);
		plan.hang_ms = plan.record_ms = 0;
		tandem_interrupt(engine, false);
		assert_true(usable(engine));
		assert_well(engine, want);
		tandem_close(&engine);
	}
}

/* It comes back when the engine has been closed, and finds all that it uses. Sanitizers watch. */
static void test_a_device_that_hangs_through_close(void **state)
{
	(void)state;
	int32_t got[TOKENS];
	struct tandem_error err;
	struct tandem *engine = open_with(1, 500, NULL);
	const uint64_t begin = clock_ns();
	plan.hang_ms = 14000; /* longer than a step and close wait: each its deadline, and 5 s */
	plan.hung = 0;
	assert_int_equal(greedy(engine, got, &err), STATUS_TIMEOUT);
	plan.hang_ms = 0;
	tandem_close(&engine);
	assert_null(engine);
	assert_true(clock_ns() - begin < 13000000000u);
	for (int i = 0; i < 1000 && !plan.hung; i++) take_ms(10);
	assert_int_equal(plan.hung, 1);
	take_ms(200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_rebuild_that_fails_can_be_tried_again),
		cmocka_unit_test(test_those_who_survive_a_lost_rank_keep_their_threads),
		cmocka_unit_test(test_a_rank_that_calls_its_failure_the_callers),
		cmocka_unit_test(test_an_interrupt_leaves_a_usable_engine),
		cmocka_unit_test(test_a_device_that_hangs_through_close),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
