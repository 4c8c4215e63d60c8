/* Requests: the answer is a function of the request alone (batch, chunk, prefix cache, preemption, world size), and what the public
 * boundary promises about ends, deadlines, queue, log-probabilities and counters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/status.h"
#include "unit/golden.h"

enum { REQUESTS = 8, N = 24, LONGEST = 96, EVENTS = 64 };

struct answer {
	int32_t tokens[LONGEST];
	float logprobs[LONGEST];
	int count, ends, cached;
	enum tandem_finish finish;
};

static struct tandem *open_with(struct tandem_options o)
{
	struct tandem *engine;
	struct tandem_error err = {0};
	if (!o.model) o.model = GOLDEN_DIR "llama";
	if (!o.context) o.context = 128;
	if (!o.threads) o.threads = o.world_size;
	if (!o.kv_block_tokens) o.kv_block_tokens = 16;
	if (tandem_open(&engine, &o, &err)) fail_msg("open: %s", err.text);
	return engine;
}

/* Half of them share a prefix of 40 tokens; greedy, seeded, with penalties, in turn. */
static struct tandem_request request_of(int i, int32_t text[LONGEST])
{
	int count = i % 2 ? 41 + 5 * i : 3 + 9 * i, common = i % 2 ? 40 : 0;
	for (int t = 0; t < count; t++) text[t] = t < common ? (7 * t + t * t) % 150 : (i * 31 + t * 17 + t * t) % 150;
	struct tandem_request r = {.prompt = text, .prompt_count = count, .max_tokens = N, .ignore_eos = true, .sampling = {.logprob = true}};
	if (i % 3) r.sampling = (struct tandem_sampling){.temperature = 0.8, .top_p = 0.95, .top_k = 50, .seed = 7 + (uint64_t)i, .logprob = true};
	if (i % 3 == 2) r.sampling.repetition_penalty = 1.2;
	return r;
}

static uint64_t submit(struct tandem *engine, const struct tandem_request *r)
{
	uint64_t id;
	struct tandem_error err = {0};
	if (tandem_submit(engine, r, &id, &err)) fail_msg("submit: %s", err.text);
	return id;
}

/* One step; adds to answers[id - first]. False: nothing to do. */
static bool step(struct tandem *engine, struct answer *answers, uint64_t first)
{
	static struct tandem_event events[EVENTS];
	struct tandem_error err = {0};
	int count;
	bool idle;
	if (tandem_step(engine, events, EVENTS, &count, &idle, &err)) fail_msg("step: %s", err.text);
	for (int i = 0; i < count; i++) {
		struct answer *a = &answers[events[i].id - first];
		assert_int_equal(a->ends, 0);
		a->ends += events[i].finish != TANDEM_RUNNING;
		a->finish = events[i].finish;
		a->cached = events[i].cached_tokens;
		if (events[i].token < 0) continue;
		a->logprobs[a->count] = events[i].logprob;
		a->tokens[a->count++] = events[i].token;
	}
	return !idle;
}

static void assert_clean(struct tandem *engine)
{
	struct tandem_stats s;
	tandem_get_stats(engine, &s);
	assert_int_equal(s.running, 0);
	assert_int_equal(s.waiting, 0);
	assert_int_equal(s.kv_free_blocks, s.kv_blocks);
	assert_int_equal(s.submitted, s.finished);
}

static void answers_alone(const char *model, struct answer alone[REQUESTS])
{
	for (int i = 0; i < REQUESTS; i++) {
		int32_t text[LONGEST];
		struct tandem_request r = request_of(i, text);
		struct tandem *engine = open_with((struct tandem_options){.model = model, .world_size = 1, .no_prefix_cache = true});
		uint64_t id = submit(engine, &r);
		while (step(engine, &alone[i], id)) continue;
		assert_int_equal(alone[i].count, N);
		tandem_close(&engine);
	}
}

/* All at once, then the odd ones again, which find everything cached if there is a cache. */
static void compare_together(struct tandem_options o, const struct answer alone[REQUESTS], struct tandem_stats *stats)
{
	int32_t text[LONGEST];
	struct answer together[2 * REQUESTS] = {0};
	struct tandem *engine = open_with(o);
	uint64_t first = 0;
	for (int i = 0; i < REQUESTS; i++) {
		struct tandem_request r = request_of(i, text);
		uint64_t id = submit(engine, &r);
		if (!i) first = id;
		if (i % 3 == 0) step(engine, together, first); /* some arrive while others run */
	}
	while (step(engine, together, first)) continue;
	for (int i = 0; i < REQUESTS; i++) {
		struct tandem_request r = request_of(i, text);
		submit(engine, &r);
	}
	while (step(engine, together, first)) continue;
	for (int i = 0; i < 2 * REQUESTS; i++) {
		const struct answer *a = &together[i], *b = &alone[i % REQUESTS];
		if (a->count != N || memcmp(a->tokens, b->tokens, N * sizeof *a->tokens) || memcmp(a->logprobs, b->logprobs, N * sizeof *a->logprobs))
			fail_msg("P=%d chunk %d, %d sequences, %lld kv tokens, cache %s: request %d differs", o.world_size, o.prefill_chunk, o.max_sequences,
			         (long long)o.kv_tokens, o.no_prefix_cache ? "off" : "on", i);
	}
	assert_clean(engine);
	tandem_get_stats(engine, stats);
	tandem_close(&engine);
}

static void compare_everywhere(const char *model, int max_world)
{
	struct answer alone[REQUESTS] = {0};
	struct tandem_stats s;
	uint64_t cached = 0, preemptions = 0;
	answers_alone(model, alone);
	for (int P = 1; P <= max_world; P *= 2) {
		for (int variant = 0; variant < 12; variant++) {
			struct tandem_options o = {.model = model, .world_size = P, .kv_shuffle = 5, .max_sequences = variant % 2 ? 6 : 3,
			                           .prefill_chunk = (const int[]){7, 33, 512}[variant % 3], .no_prefix_cache = variant >= 6,
			                           .kv_tokens = variant / 3 % 2 ? 144 : 1024}; /* 144: the longest one fits, and little beside it */
			compare_together(o, alone, &s);
			assert_true(o.no_prefix_cache ? s.cached_tokens == 0 : s.cached_tokens > 0);
			cached += s.cached_tokens;
			preemptions += s.preemptions;
		}
	}
	assert_true(cached > 0);
	assert_true(preemptions > 20);
}

static void test_answers_depend_on_the_request_alone(void **state)
{
	(void)state;
	compare_everywhere(GOLDEN_DIR "llama", 4);
}

static void test_answers_with_a_sliding_window_too(void **state)
{
	(void)state;
	compare_everywhere(GOLDEN_DIR "mistral-window", 2);
}

static void test_answers_with_dynamic_rope_too(void **state)
{
	(void)state;
	compare_everywhere(GOLDEN_DIR "rope-dynamic", 2);
}

static void test_answers_with_two_ropes_and_windows_too(void **state)
{
	(void)state;
	compare_everywhere(GOLDEN_DIR "gemma3", 2);
}

/* Hits end at snapshots of state; with two of them for six sequences they are let go all the time. */
static void test_answers_with_recurrent_state_too(void **state)
{
	(void)state;
	struct answer alone[REQUESTS] = {0};
	struct tandem_stats s;
	compare_everywhere(GOLDEN_DIR "qwen3_5", 2);
	answers_alone(GOLDEN_DIR "qwen3_5", alone);
	struct tandem_options o = {.model = GOLDEN_DIR "qwen3_5", .world_size = 2, .kv_shuffle = 5, .max_sequences = 6, .prefill_chunk = 33, .kv_tokens = 1024,
	                           .state_snapshots = 2, .state_every = 16};
	compare_together(o, alone, &s);
	assert_true(s.state_hits > 0 && s.state_evictions > 0 && s.cached_tokens > 0);
	assert_int_equal(s.state_free_slots, 14);
	o.state_snapshots = -1;
	compare_together(o, alone, &s);
	assert_int_equal(s.state_free_slots, 12);
}

/* What users of a server with a system prompt get: the first request leaves its end, the second the end of what it shares, the third starts there. */
static void test_a_system_prompt_is_read_twice(void **state)
{
	(void)state;
	enum { COMMON = 70 };
	int32_t text[128];
	struct answer answers[4] = {0};
	struct tandem *engine = open_with((struct tandem_options){.model = GOLDEN_DIR "qwen3_5", .world_size = 2, .context = 192});
	uint64_t first = 0;
	for (int i = 0; i < 4; i++) {
		for (int t = 0; t < 90 + i; t++) text[t] = t < COMMON ? (7 * t + t * t) % 150 : (31 * i + 17 * t) % 150;
		struct tandem_request r = {.prompt = text, .prompt_count = 90 + i, .max_tokens = 5, .ignore_eos = true};
		uint64_t id = submit(engine, &r);
		if (!i) first = id;
		while (step(engine, answers, first)) continue;
	}
	assert_int_equal(answers[0].cached, 0);
	assert_int_equal(answers[1].cached, 0);
	assert_int_equal(answers[2].cached, 64);
	assert_int_equal(answers[3].cached, 64);
	struct tandem_stats s;
	tandem_get_stats(engine, &s);
	assert_int_equal(s.state_hits, 2);
	assert_int_equal(s.cached_tokens, 128);
	assert_clean(engine);
	tandem_close(&engine);
}

static void test_cached_tokens_are_reported(void **state)
{
	(void)state;
	int32_t text[LONGEST];
	struct answer answers[4] = {0};
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2});
	struct tandem_request r = request_of(1, text); /* 46 tokens */
	uint64_t first = submit(engine, &r);
	while (step(engine, answers, first)) continue;
	submit(engine, &r);
	while (step(engine, answers, first)) continue;
	r.cache_salt = 9; /* a stranger */
	submit(engine, &r);
	while (step(engine, answers, first)) continue;
	submit(engine, &r);
	while (step(engine, answers, first)) continue;
	assert_int_equal(answers[0].cached, 0);
	assert_int_equal(answers[1].cached, 32);
	assert_int_equal(answers[2].cached, 0);
	assert_int_equal(answers[3].cached, 32);
	for (int i = 1; i < 4; i++) assert_memory_equal(answers[i].tokens, answers[0].tokens, N * sizeof(int32_t));
	struct tandem_stats s;
	tandem_get_stats(engine, &s);
	assert_int_equal(s.cached_tokens, 64);
	assert_int_equal(s.prompt_tokens, 4 * 46);
	assert_int_equal(s.generated_tokens, 4 * N);
	assert_int_equal(s.computed_tokens, 4 * (46 + N - 1) - 64);
	assert_clean(engine);
	tandem_close(&engine);
}

static void test_deadlines(void **state)
{
	(void)state;
	int32_t text[LONGEST];
	struct answer answers[3] = {0};
	struct tandem *engine = open_with((struct tandem_options){.world_size = 1, .max_sequences = 1});
	struct tandem_request r = request_of(0, text);
	r.deadline_ms = 1;
	uint64_t first = submit(engine, &r);
	submit(engine, &r); /* still queued then */
	step(engine, answers, first);
	nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
	r.deadline_ms = 600000;
	submit(engine, &r);
	while (step(engine, answers, first)) continue;
	assert_int_equal(answers[0].finish, TANDEM_TIMEOUT);
	assert_int_equal(answers[1].finish, TANDEM_TIMEOUT);
	assert_int_equal(answers[1].count, 0);
	assert_int_equal(answers[2].finish, TANDEM_LENGTH);
	assert_clean(engine);
	tandem_close(&engine);
}

static void test_queue_and_room_limits(void **state)
{
	(void)state;
	int32_t text[LONGEST];
	uint64_t id;
	struct answer answers[8] = {0};
	struct tandem_error err = {0};
	struct tandem *engine = open_with((struct tandem_options){.world_size = 1, .max_sequences = 2, .max_queue = 1, .kv_tokens = 64});
	struct tandem_request r = request_of(0, text);
	for (int i = 0; i < 3; i++) submit(engine, &r);
	assert_int_equal(tandem_submit(engine, &r, &id, &err), STATUS_BUSY);
	assert_int_equal(tandem_exit_code(STATUS_BUSY), 4);
	assert_non_null(strstr(err.text, "full"));
	while (step(engine, answers, 1)) continue;
	assert_int_equal(tandem_submit(engine, &r, &id, &err), 0);
	assert_int_equal(id, 4);
	while (step(engine, answers, 1)) continue;
	struct tandem_request big = request_of(3, text); /* 56 + 24 tokens never fit into 64 */
	memset(&err, 0, sizeof err);
	assert_int_equal(tandem_submit(engine, &big, &id, &err), STATUS_NO_ROOM);
	assert_clean(engine);
	tandem_close(&engine);
}

/* --- log-probabilities of the prompt ---------------------------------------------------------------------------------------- */

struct reference {
	const int32_t *tokens;
	int count;
	double logprob[LONGEST]; /* of tokens[i] after the ones before */
	int best[LONGEST];
};

static int refer(void *context, int position, const float *logits, int vocab)
{
	struct reference *ref = context;
	int best = 0;
	double sum = 0;
	for (int i = 1; i < vocab; i++)
		if (logits[i] > logits[best]) best = i;
	for (int i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)logits[best]);
	if (position + 1 == ref->count) return 0;
	ref->best[position + 1] = best;
	ref->logprob[position + 1] = (double)logits[ref->tokens[position + 1]] - (double)logits[best] - log(sum);
	return 0;
}

static void assert_scores(struct tandem *engine, uint64_t id, const struct reference *ref, int alternatives)
{
	struct tandem_error err = {0};
	struct tandem_event e;
	for (int p = 1; p < ref->count; p++) {
		if (tandem_prompt_logprob(engine, id, p, &e, &err)) fail_msg("position %d: %s", p, err.text);
		assert_int_equal(e.id, id);
		assert_int_equal(e.token, ref->tokens[p]);
		if (fabs((double)e.logprob - ref->logprob[p]) > 1e-5) fail_msg("position %d: %g, want %g", p, (double)e.logprob, ref->logprob[p]);
		assert_int_equal(e.alternatives, alternatives);
		if (alternatives) assert_int_equal(e.alternative_id[0], ref->best[p]);
		if (alternatives && e.token == ref->best[p]) assert_true(e.logprob == e.alternative_logprob[0]);
	}
	assert_int_equal(tandem_prompt_logprob(engine, id, 0, &e, &err), STATUS_BAD_INPUT);
	assert_int_equal(tandem_prompt_logprob(engine, id, ref->count, &e, &err), STATUS_BAD_INPUT);
}

static void test_prompt_logprobs(void **state)
{
	(void)state;
	for (int P = 1; P <= 2; P++) {
		int32_t text[LONGEST], other[LONGEST];
		struct tandem_error err = {0};
		struct answer answers[8] = {0};
		/* chunks of 50 rows are more than one head pass; 128 tokens of KV preempt */
		struct tandem *engine = open_with((struct tandem_options){.world_size = P, .prefill_chunk = 50, .max_sequences = 3, .kv_tokens = 128});
		struct tandem_request r = request_of(7, text);
		struct reference ref = {.tokens = text, .count = r.prompt_count};
		if (tandem_logits(engine, text, r.prompt_count, refer, &ref, &err)) fail_msg("logits: %s", err.text);
		r.prompt_logprobs = true;
		r.sampling.logprobs = 3;
		uint64_t first = submit(engine, &r); /* generates */
		struct tandem_request r0 = request_of(4, other);
		submit(engine, &r0); /* neighbour */
		while (!answers[0].count) step(engine, answers, first);
		assert_scores(engine, first, &ref, 3);
		while (!answers[0].ends) step(engine, answers, first);
		assert_scores(engine, first, &ref, 3); /* kept until the next step */
		step(engine, answers, first);
		struct tandem_event e;
		assert_int_equal(tandem_prompt_logprob(engine, first, 1, &e, &err), STATUS_BAD_INPUT);
		r.max_tokens = 0;
		r.sampling.logprobs = 0;
		uint64_t scored = submit(engine, &r);
		while (!answers[scored - first].ends) step(engine, answers, first);
		assert_int_equal(answers[scored - first].finish, TANDEM_LENGTH);
		assert_int_equal(answers[scored - first].count, 0);
		assert_int_equal(answers[scored - first].cached, 0);
		assert_scores(engine, scored, &ref, 0);
		while (step(engine, answers, first)) continue;
		r.prompt_logprobs = false;
		uint64_t id;
		assert_int_equal(tandem_submit(engine, &r, &id, &err), STATUS_BAD_INPUT);
		assert_clean(engine);
		tandem_close(&engine);
	}
}

static void test_a_failed_group_is_counted_and_forgets_its_cache(void **state)
{
	(void)state;
	int32_t text[LONGEST];
	struct answer before[1] = {0}, after[1] = {0};
	struct tandem_event events[EVENTS];
	struct tandem_error err = {0};
	struct tandem_stats s;
	struct tandem_health h;
	int count, code = 0;
	bool idle;
	struct tandem *engine = open_with((struct tandem_options){.world_size = 2, .fault = "rank=1,at=kernel,seq=30"});
	struct tandem_request r = request_of(1, text);
	uint64_t id = submit(engine, &r);
	while (step(engine, before, id)) continue;
	submit(engine, &r);
	while (!code) code = tandem_step(engine, events, EVENTS, &count, &idle, &err);
	assert_true(tandem_is_fatal(code));
	tandem_get_stats(engine, &s);
	assert_int_equal(s.aborted_groups, 1);
	assert_int_equal(s.rebuilds, 0);
	assert_true(s.cached_tokens > 0);
	tandem_get_health(engine, 1, &h);
	assert_false(h.usable);
	id = submit(engine, &r);
	assert_int_equal(tandem_step(engine, events, EVENTS, &count, &idle, &err), code); /* still dead: counted once */
	if (tandem_rebuild(engine, &err)) fail_msg("rebuild: %s", err.text);
	id = submit(engine, &r);
	while (step(engine, after, id)) continue;
	assert_int_equal(after[0].cached, 0);
	assert_memory_equal(after[0].tokens, before[0].tokens, N * sizeof(int32_t));
	tandem_get_stats(engine, &s);
	assert_int_equal(s.aborted_groups, 1);
	assert_int_equal(s.rebuilds, 1);
	tandem_get_health(engine, 1, &h);
	assert_true(h.usable);
	assert_int_equal(h.silent_ms, 0);
	assert_clean(engine);
	tandem_close(&engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_depend_on_the_request_alone),
		cmocka_unit_test(test_answers_with_a_sliding_window_too),
		cmocka_unit_test(test_answers_with_dynamic_rope_too),
		cmocka_unit_test(test_answers_with_two_ropes_and_windows_too),
		cmocka_unit_test(test_answers_with_recurrent_state_too),
		cmocka_unit_test(test_a_system_prompt_is_read_twice),
		cmocka_unit_test(test_cached_tokens_are_reported),
		cmocka_unit_test(test_deadlines),
		cmocka_unit_test(test_queue_and_room_limits),
		cmocka_unit_test(test_prompt_logprobs),
		cmocka_unit_test(test_a_failed_group_is_counted_and_forgets_its_cache),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
