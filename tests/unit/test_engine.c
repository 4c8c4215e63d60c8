/* The engine's contracts on tiny models: two all-reduces a layer, results independent of the batch, every fault point on every rank
 * answered in time with nothing left behind and the same tokens after a rebuild (E2, E3, E5, E7, E8, C3). */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "unit/golden.h"

#define MODEL GOLDEN_DIR "llama"
#define LAYERS 2
#define TOKENS 12

static const int32_t prompt[] = {3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28};
#define PROMPT ((int)(sizeof prompt / sizeof *prompt))

static struct tandem *open_with(struct tandem_options o)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	if (!o.model) o.model = MODEL;
	if (!o.context) o.context = 128;
	if (!o.threads) o.threads = o.world_size;
	if (tandem_open(&engine, &o, &err)) fail_msg("open: %s", err.text);
	return engine;
}

static void greedy(struct tandem *engine, int32_t out[TOKENS])
{
	struct tandem_error err = {0};
	int got;
	if (golden_greedy(engine, prompt, PROMPT, TOKENS, true, out, &got, &err)) fail_msg("greedy: %s", err.text);
	assert_int_equal(got, TOKENS);
}

static int tasks(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/task");
	for (struct dirent *entry; dir && (entry = readdir(dir));) count += entry->d_name[0] != '.';
	if (dir) closedir(dir);
	return count;
}

/* A joined thread may stay in /proc for a moment. Sanitizers keep threads of their own, hence relative to the start. */
static int tasks_at_start;
static void assert_no_thread_left(void)
{
	for (int i = 0; i < 200 && tasks() > tasks_at_start; i++) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	assert_int_equal(tasks(), tasks_at_start);
}

static void test_two_all_reduces_a_layer(void **state)
{
	(void)state;
	for (int P = 1; P <= 8; P *= 2) {
		struct tandem *engine = open_with((struct tandem_options){.world_size = P});
		int32_t tokens[TOKENS];
		struct tandem_info info;
		tandem_get_info(engine, &info);
		assert_int_equal(info.collectives_per_step, 0);
		greedy(engine, tokens);
		tandem_get_info(engine, &info);
		assert_int_equal(info.collectives_per_step, 2 * LAYERS);
		assert_int_equal(info.kv_free_tokens, info.kv_tokens);
		tandem_close(&engine);
	}
	assert_no_thread_left();
}

struct stream {
	int32_t tokens[64];
	int count;
	enum tandem_finish finish;
};

static uint64_t submit(struct tandem *engine, int variant, int n)
{
	int32_t text[64];
	int count = 5 + 7 * variant;
	for (int i = 0; i < count; i++) text[i] = (variant * 31 + i * 17 + i * i) % 160;
	struct tandem_request r = {.prompt = text, .prompt_count = count, .max_tokens = n, .ignore_eos = true};
	if (variant % 2) r.sampling = (struct tandem_sampling){.temperature = 0.9, .top_p = 0.95, .top_k = 40, .seed = 100 + (uint64_t)variant};
	uint64_t id;
	struct tandem_error err = {0};
	if (tandem_submit(engine, &r, &id, &err)) fail_msg("submit: %s", err.text);
	return id;
}

static void drain(struct tandem *engine, struct stream *streams, uint64_t first_id)
{
	for (bool idle = false; !idle;) {
		struct tandem_event events[64];
		struct tandem_error err = {0};
		int count;
		if (tandem_step(engine, events, 64, &count, &idle, &err)) fail_msg("step: %s", err.text);
		for (int i = 0; i < count; i++) {
			struct stream *s = &streams[events[i].id - first_id];
			if (events[i].token >= 0) s->tokens[s->count++] = events[i].token;
			s->finish = events[i].finish;
		}
	}
}

static void test_tokens_do_not_depend_on_the_batch(void **state)
{
	(void)state;
	enum { REQUESTS = 6, N = 20 };
	struct stream alone[REQUESTS] = {0};
	for (int i = 0; i < REQUESTS; i++) {
		struct tandem *engine = open_with((struct tandem_options){.world_size = 1});
		uint64_t id = submit(engine, i, N);
		drain(engine, &alone[i], id);
		assert_int_equal(alone[i].count, N);
		tandem_close(&engine);
	}
	for (int P = 1; P <= 4; P *= 2) {
		for (int chunk = 6; chunk <= 64; chunk += 29) {
			struct stream together[REQUESTS] = {0};
			struct tandem *engine = open_with((struct tandem_options){.world_size = P, .prefill_chunk = chunk, .max_sequences = 4, .kv_tokens = 400,
			                                                          .kv_shuffle = 5, .kv_block_tokens = 16});
			uint64_t first = 0;
			for (int i = 0; i < REQUESTS; i++) {
				uint64_t id = submit(engine, i, N);
				if (!i) first = id;
			}
			drain(engine, together, first);
			for (int i = 0; i < REQUESTS; i++) {
				assert_int_equal(together[i].count, N);
				assert_int_equal(together[i].finish, TANDEM_LENGTH);
				assert_memory_equal(together[i].tokens, alone[i].tokens, N * sizeof(int32_t));
			}
			struct tandem_info info;
			tandem_get_info(engine, &info);
			assert_int_equal(info.kv_free_tokens, info.kv_tokens);
			tandem_close(&engine);
		}
	}
}

static void test_cancel_in_every_state(void **state)
{
	(void)state;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .max_sequences = 2, .prefill_chunk = 4});
	uint64_t ids[4];
	for (int i = 0; i < 4; i++) ids[i] = submit(engine, i, 20);
	struct tandem_event events[64];
	struct tandem_error err = {0};
	int count;
	bool idle;
	assert_int_equal(tandem_step(engine, events, 64, &count, &idle, &err), 0);
	assert_int_equal(tandem_cancel(engine, ids[0]), 0); /* in prefill */
	assert_int_equal(tandem_cancel(engine, ids[3]), 0); /* queued */
	assert_true(tandem_cancel(engine, 9999) != 0);
	assert_int_equal(tandem_step(engine, events, 64, &count, &idle, &err), 0);
	assert_int_equal(count, 2);
	for (int i = 0; i < 2; i++) assert_int_equal(events[i].finish, TANDEM_CANCELLED);
	struct stream streams[4] = {0};
	for (int i = 0; i < 4; i++) assert_int_equal(tandem_step(engine, events, 64, &count, &idle, &err), 0);
	assert_int_equal(tandem_cancel(engine, ids[1]), 0); /* decoding or nearly so */
	drain(engine, streams, ids[0]);
	assert_int_equal(streams[1].finish, TANDEM_CANCELLED);
	assert_int_equal(streams[2].finish, TANDEM_LENGTH);
	assert_true(tandem_cancel(engine, ids[2]) != 0); /* over */
	struct tandem_info info;
	tandem_get_info(engine, &info);
	assert_int_equal(info.kv_free_tokens, info.kv_tokens);
	tandem_close(&engine);
}

static void *interrupt_later(void *engine)
{
	nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
	tandem_interrupt(engine, true);
	return NULL;
}

/* Log lines come from the thread that opens. */
static void note_where(void *context, int level, const char *text)
{
	(void)level;
	if (strstr(text, "rank 1: no progress for ") && strstr(text, " ms, while loading weights; given up after 3000")) *(bool *)context = true;
}

static void test_a_start_that_stalls_says_where(void **state)
{
	(void)state;
	bool said = false;
	struct tandem_error err = {0};
	struct tandem *engine = NULL;
	struct tandem_options o = {.model = MODEL, .world_size = 2, .threads = 2, .context = 64, .timeout_ms = 3000, .fault = "rank=1,at=load,seq=0,kind=stall:20000",
	                           .log = note_where, .context_pointer = &said};
	assert_int_not_equal(tandem_open(&engine, &o, &err), 0);
	assert_null(engine);
	assert_true(said);
}

/* Opening has four times the deadline, and not more; the rank that opened waits as long for the one that did not, and says so before the coordinator
 * gives up: by 2 s here, which a thread may be late. */
static void test_a_device_that_does_not_open_is_given_up(void **state)
{
	(void)state;
	const uint64_t start = clock_ns();
	struct tandem_error err = {0};
	struct tandem *engine = NULL;
	struct tandem_options o = {.model = MODEL, .world_size = 2, .threads = 2, .context = 64, .timeout_ms = 2500, .fault = "rank=1,at=open,seq=0,kind=stall:20000"};
	assert_int_equal(tandem_exit_code(tandem_open(&engine, &o, &err)), 5);
	assert_null(engine);
	assert_true(clock_ns() - start > 7500000000u && clock_ns() - start < 18000000000u);
	if (!strstr(err.text, "rank 1 did not come within 8000 ms")) fail_msg("'%s'", err.text);
}

/* What is allowed an opening is not held against what comes behind it. */
static void test_a_slow_device_and_a_slow_start_behind_it(void **state)
{
	(void)state;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .timeout_ms = 2500, .fault = "rank=1,at=open,seq=0,kind=stall:3500;rank=1,at=barrier,seq=0,kind=stall:300"});
	tandem_close(&engine);
}

static void test_interrupt_ends_a_stalled_step_and_the_engine_lives(void **state)
{
	(void)state;
	int32_t want[TOKENS], got[TOKENS];
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2});
	greedy(engine, want);
	tandem_close(&engine);
	engine = open_with((struct tandem_options){.world_size = 2, .fault = "rank=1,at=kernel,seq=0,kind=stall:20000"});
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, interrupt_later, engine), 0);
	struct tandem_error err = {0};
	int count;
	uint64_t start = clock_ns();
	assert_int_equal(golden_greedy(engine, prompt, PROMPT, TOKENS, true, got, &count, &err), STATUS_CANCELLED);
	assert_true(clock_ns() - start < 15000000000u); /* the stall lasts 20 s */
	pthread_join(thread, NULL);
	tandem_interrupt(engine, false);
	greedy(engine, got);
	assert_memory_equal(got, want, sizeof want);
	tandem_close(&engine);
	assert_no_thread_left();
}

static void test_requests_that_cannot_be_are_refused(void **state)
{
	(void)state;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 1, .context = 64, .kv_tokens = 64});
	int32_t many[80] = {0}, high[] = {1, 160}, negative[] = {1, -1};
	const struct {
		struct tandem_request r;
		int code;
		const char *word;
	} cases[] = {
		{{.prompt = many, .prompt_count = 0, .max_tokens = 1}, STATUS_BAD_INPUT, "empty"},
		{{.prompt = many, .prompt_count = 65, .max_tokens = 1}, STATUS_BAD_INPUT, "context"},
		{{.prompt = high, .prompt_count = 2, .max_tokens = 1}, STATUS_BAD_INPUT, "160"},
		{{.prompt = negative, .prompt_count = 2, .max_tokens = 1}, STATUS_BAD_INPUT, "-1"},
		{{.prompt = many, .prompt_count = 2, .max_tokens = 0}, STATUS_BAD_INPUT, "max_tokens"},
		{{.prompt = many, .prompt_count = 2, .max_tokens = 1, .min_tokens = 2}, STATUS_BAD_INPUT, "min_tokens"},
		{{.prompt = many, .prompt_count = 2, .max_tokens = 1, .sampling = {.temperature = -1}}, STATUS_BAD_INPUT, "temperature"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct tandem_error err = {0};
		uint64_t id;
		assert_int_equal(tandem_submit(engine, &cases[i].r, &id, &err), cases[i].code);
		if (!strstr(err.text, cases[i].word)) fail_msg("'%s' does not say %s", err.text, cases[i].word);
	}
	struct tandem_error err = {0};
	uint64_t id;
	struct tandem_request whole = {.prompt = many, .prompt_count = 64, .max_tokens = 1 << 30}; /* cut to what the context holds */
	assert_int_equal(tandem_submit(engine, &whole, &id, &err), 0);
	struct stream stream = {0};
	drain(engine, &stream, id);
	assert_int_equal(stream.count, 1);
	tandem_close(&engine);
}

/* One fault: what a user sees, in which time, and what is left. */
static void walk(const char *point, const char *kind, int P, int rank, int seq, const int32_t want[TOKENS])
{
	char fault[128];
	snprintf(fault, sizeof fault, "rank=%d,at=%s,seq=%d,kind=%s", rank, point, seq, kind);
	bool stall = !strncmp(kind, "stall", 5);
	bool open = !strcmp(point, "open"), load = open || !strcmp(point, "load"), shutdown = !strcmp(point, "shutdown");
	bool nobody_waits = stall && (open || shutdown || !strcmp(point, "sample")); /* a device may take four times the deadline to open */
	/* Only a stall is found by the deadline, if somebody waits for it; else it is longer than the deadline, by little. The others' is one that no busy
	 * machine reaches, and more than they may take. */
	unsigned timeout_ms = nobody_waits ? 1800 : stall ? 1000 : 30000;
	struct tandem_options o = {.model = MODEL, .world_size = P, .threads = P, .context = 64, .timeout_ms = timeout_ms, .fault = fault};
	struct tandem *engine;
	struct tandem_error err = {0};
	uint64_t start = clock_ns();
	int code = tandem_open(&engine, &o, &err), got_count = 0;
	int32_t got[TOKENS];
	if (!code) code = golden_greedy(engine, prompt, PROMPT, TOKENS, true, got, &got_count, &err);
	double seconds = (double)(clock_ns() - start) / 1e9;
	if (seconds > 15) fail_msg("P=%d %s: answered after %.1f s", P, fault, seconds);
	if (shutdown || nobody_waits) {
		if (code) fail_msg("P=%d %s: %s", P, fault, err.text);
	} else {
		int exit_code = tandem_exit_code(code);
		int expect = !strcmp(kind, "oom") ? 4 : 5;
		if (exit_code != expect) fail_msg("P=%d %s: exit code %d (%s), want %d", P, fault, exit_code, err.text, expect);
		if (!strstr(err.text, "rank")) fail_msg("P=%d %s: '%s' names no rank", P, fault, err.text);
	}
	if (code && engine) {
		assert_false(load);
		memset(&err, 0, sizeof err);
		if (tandem_rebuild(engine, &err)) fail_msg("P=%d %s: rebuild: %s", P, fault, err.text);
		greedy(engine, got);
		assert_memory_equal(got, want, sizeof got);
		struct tandem_info info;
		tandem_get_info(engine, &info);
		assert_int_equal(info.kv_free_tokens, info.kv_tokens);
	}
	start = clock_ns();
	tandem_close(&engine);
	assert_null(engine);
	if (clock_ns() - start > 15000000000u) fail_msg("P=%d %s: close took %.1f s", P, fault, (double)(clock_ns() - start) / 1e9);
	assert_no_thread_left();
}

static void walk_all(int P)
{
	static const struct {
		const char *name;
		int seq;
	} points[] = {{"open", 0}, {"load", 3}, {"reserve", 2}, {"barrier", 17}, {"ready", 17}, {"kernel", 4}, {"sample", 4}, {"shutdown", 0}};
	static const char *const kinds[] = {"error", "oom", "exit", "stall:2000"};
	int32_t want[TOKENS];
	struct tandem *engine = open_with((struct tandem_options){.world_size = 1});
	greedy(engine, want);
	tandem_close(&engine);
	for (size_t p = 0; p < sizeof points / sizeof *points; p++) {
		int ranks = strcmp(points[p].name, "sample") ? P : 1; /* sampling happens once, for the group */
		for (int rank = 0; rank < ranks; rank++)
			for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) walk(points[p].name, kinds[k], P, rank, points[p].seq, want);
	}
}

static void test_every_fault_point_on_two_ranks(void **state)
{
	(void)state;
	walk_all(2);
}

static void test_every_fault_point_on_four_ranks(void **state)
{
	(void)state;
	walk_all(4);
}

static void test_a_single_rank_that_dies_is_noticed(void **state)
{
	(void)state;
	int32_t want[TOKENS];
	struct tandem *engine = open_with((struct tandem_options){.world_size = 1});
	greedy(engine, want);
	tandem_close(&engine);
	walk("kernel", "exit", 1, 0, 3, want);
	walk("kernel", "stall:2000", 1, 0, 3, want);
}

static void test_close_while_nothing_ran_and_half_open(void **state)
{
	(void)state;
	struct tandem *engine = NULL;
	tandem_close(&engine);
	engine = open_with((struct tandem_options){.world_size = 4});
	submit(engine, 2, 10); /* queued for ever */
	tandem_close(&engine);
	tandem_close(&engine);
	struct tandem_error err = {0};
	struct tandem_options bad[] = {{.model = MODEL, .world_size = 3},         {.model = MODEL, .world_size = 65},
	                               {.model = "/nonexistent"},                 {.model = MODEL, .device = "abacus"},
	                               {.model = MODEL, .isa = "mmx"},            {.model = MODEL, .fault = "rank=1,at=load,seq=0"},
	                               {.model = MODEL, .kv_block_tokens = 24},   {.model = MODEL, .context = 1 << 30},
	                               {.model = MODEL, .whitelist = "w.json"}, {0}};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		memset(&err, 0, sizeof err);
		int code = tandem_open(&engine, &bad[i], &err);
		if (!code || !err.text[0] || engine) fail_msg("case %zu: code %d '%s'", i, code, err.text);
		assert_true(tandem_exit_code(code) == 2 || tandem_exit_code(code) == 3);
	}
	assert_no_thread_left();
}

static void *nothing(void *unused)
{
	return unused;
}

int main(void)
{
	pthread_t thread; /* sanitizers start theirs with the first one */
	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL)) return 1;
	nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
	tasks_at_start = tasks();
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_all_reduces_a_layer),
		cmocka_unit_test(test_tokens_do_not_depend_on_the_batch),
		cmocka_unit_test(test_cancel_in_every_state),
		cmocka_unit_test(test_a_start_that_stalls_says_where),
		cmocka_unit_test(test_a_device_that_does_not_open_is_given_up),
		cmocka_unit_test(test_a_slow_device_and_a_slow_start_behind_it),
		cmocka_unit_test(test_interrupt_ends_a_stalled_step_and_the_engine_lives),
		cmocka_unit_test(test_requests_that_cannot_be_are_refused),
		cmocka_unit_test(test_every_fault_point_on_two_ranks),
		cmocka_unit_test(test_every_fault_point_on_four_ranks),
		cmocka_unit_test(test_a_single_rank_that_dies_is_noticed),
		cmocka_unit_test(test_close_while_nothing_ran_and_half_open),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
