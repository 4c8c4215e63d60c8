/* The scheduler on its own: admission, chunks, order, and a random workload that must always drain. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/scheduler.h"

static struct scheduler *make(int seqs, int rows, int blocks)
{
	struct scheduler_options options = {.max_seqs = seqs, .max_rows = rows, .kv_blocks = blocks, .block_tokens = 16};
	struct scheduler *s;
	assert_int_equal(scheduler_create(&s, &options, NULL), STATUS_OK);
	return s;
}

static struct sequence *request(uint64_t id, int prompt, int max_tokens)
{
	int32_t tokens[512];
	for (int i = 0; i < prompt; i++) tokens[i] = (int32_t)id * 1000 + i;
	struct sequence *q;
	struct sequence_options o = {.prompt = tokens, .prompt_count = prompt, .max_tokens = max_tokens};
	assert_int_equal(sequence_create(&q, id, &o, NULL), STATUS_OK);
	return q;
}

static struct step_plan make_plan(int rows, int seqs)
{
	struct step_plan plan;
	assert_int_equal(step_plan_init(&plan, &(struct step_limits){.max_rows = rows, .max_seqs = seqs, .max_outputs = seqs, .rotary_dim = 2}, NULL),
	                 STATUS_OK);
	return plan;
}

static void test_prefill_is_chunked_and_logits_come_with_the_last_chunk(void **state)
{
	(void)state;
	struct scheduler *s = make(2, 16, 100);
	struct step_plan plan = make_plan(16, 2);
	struct sequence *q = request(1, 40, 4);
	scheduler_submit(s, q);
	const int rows[] = {16, 16, 8}, outputs[] = {0, 0, 1};
	for (int i = 0, at = 0; i < 3; i++) {
		scheduler_plan(s, &plan);
		assert_int_equal(plan.rows, rows[i]);
		assert_int_equal(plan.outputs, outputs[i]);
		assert_int_equal(plan.position[0], at);
		assert_int_equal(plan.token[0], 1000 + at);
		at += rows[i];
		assert_int_equal(plan.kv_len[0], at);
		scheduler_committed(s, &plan);
	}
	assert_int_equal(plan.output_row[0], 7);
	assert_int_equal(sequence_append(q, 5), FINISH_NONE);
	scheduler_plan(s, &plan);
	assert_int_equal(plan.rows, 1);
	assert_int_equal(plan.token[0], 5);
	assert_int_equal(plan.position[0], 40);
	step_plan_fini(&plan);
	scheduler_destroy(&s);
}

static void test_decode_rows_come_before_a_long_prefill(void **state)
{
	(void)state;
	struct scheduler *s = make(4, 8, 100);
	struct step_plan plan = make_plan(8, 4);
	struct sequence *a = request(1, 3, 9), *b = request(2, 50, 9);
	scheduler_submit(s, a);
	scheduler_submit(s, b);
	scheduler_plan(s, &plan); /* 3 rows of a, 5 of b */
	assert_int_equal(plan.seqs, 2);
	assert_int_equal(plan.row_start[1], 3);
	assert_int_equal(plan.rows, 8);
	scheduler_committed(s, &plan);
	(void)sequence_append(a, 7);
	scheduler_plan(s, &plan);
	assert_ptr_equal(plan.sequence[0], a);
	assert_int_equal(plan.row_start[1], 1);
	assert_int_equal(plan.rows, 8);
	assert_int_equal(plan.outputs, 1);
	step_plan_fini(&plan);
	scheduler_destroy(&s);
}

static void test_admission_waits_for_all_that_can_be_needed(void **state)
{
	(void)state;
	struct scheduler *s = make(4, 64, 4); /* 64 tokens of KV */
	struct step_plan plan = make_plan(64, 4);
	struct sequence *a = request(1, 20, 29), *b = request(2, 10, 7); /* 3 blocks at most; 1 block exactly */
	struct sequence *c = request(3, 1, 1);
	scheduler_submit(s, a);
	scheduler_submit(s, b);
	scheduler_submit(s, c);
	scheduler_plan(s, &plan);
	assert_int_equal(plan.seqs, 2); /* c waits although its turn would be now */
	assert_int_equal(c->state, SEQUENCE_QUEUED);
	scheduler_committed(s, &plan);
	(void)sequence_append(a, 1);
	scheduler_remove(s, b);
	sequence_destroy(&b);
	scheduler_plan(s, &plan);
	assert_int_equal(c->state, SEQUENCE_RUNNING);
	assert_ptr_equal(scheduler_find(s, 3), c);
	assert_null(scheduler_find(s, 2));
	step_plan_fini(&plan);
	scheduler_destroy(&s);
}

static void test_random_workload_drains_in_order_of_arrival(void **state)
{
	(void)state;
	enum { REQUESTS = 300 };
	struct scheduler *s = make(5, 24, 60);
	struct step_plan plan = make_plan(24, 5);
	uint64_t submitted = 0, done = 0, last_started = 0, draws = 0;
	for (int step = 0; done < REQUESTS; step++) {
		assert_true(step < 100000);
		while (submitted < REQUESTS && rng_u64(3, 0, draws++) % 3 == 0) {
			submitted++;
			scheduler_submit(s, request(submitted, 1 + (int)(rng_u64(3, 1, submitted) % 200), 1 + (int)(rng_u64(3, 2, submitted) % 60)));
		}
		scheduler_plan(s, &plan);
		scheduler_committed(s, &plan);
		for (int i = 0; i < plan.seqs; i++)
			if (plan.sequence[i]->id > last_started) last_started = plan.sequence[i]->id;
		for (uint64_t id = 1; id < last_started; id++) { /* nobody is overtaken on the way in */
			struct sequence *q = scheduler_find(s, id);
			assert_true(!q || q->state == SEQUENCE_RUNNING);
		}
		for (int i = 0; i < plan.outputs; i++) {
			struct sequence *q = plan.sequence[plan.output_seq[i]];
			bool cancel = rng_u64(3, 4, draws++) % 50 == 0;
			if (sequence_append(q, 1) == FINISH_NONE && !cancel) continue;
			scheduler_remove(s, q);
			sequence_destroy(&q);
			done++;
		}
	}
	assert_null(scheduler_next_cancelled(s, true));
	step_plan_fini(&plan);
	scheduler_destroy(&s);
}

static void test_stop_ids_hold_until_min_tokens(void **state)
{
	(void)state;
	int32_t prompt[] = {1}, stops[] = {9, 8};
	struct sequence *q;
	struct sequence_options o = {.prompt = prompt, .prompt_count = 1, .max_tokens = 4, .min_tokens = 2, .stop_ids = stops, .stop_count = 2};
	assert_int_equal(sequence_create(&q, 1, &o, NULL), STATUS_OK);
	assert_int_equal(sequence_append(q, 9), FINISH_NONE);
	assert_int_equal(sequence_append(q, 1), FINISH_NONE);
	assert_int_equal(sequence_append(q, 8), FINISH_STOP);
	sequence_destroy(&q);
	o.min_tokens = 0;
	assert_int_equal(sequence_create(&q, 1, &o, NULL), STATUS_OK);
	for (int i = 0; i < 3; i++) assert_int_equal(sequence_append(q, 1), FINISH_NONE);
	assert_int_equal(sequence_append(q, 1), FINISH_LENGTH);
	sequence_destroy(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefill_is_chunked_and_logits_come_with_the_last_chunk),
		cmocka_unit_test(test_decode_rows_come_before_a_long_prefill),
		cmocka_unit_test(test_admission_waits_for_all_that_can_be_needed),
		cmocka_unit_test(test_random_workload_drains_in_order_of_arrival),
		cmocka_unit_test(test_stop_ids_hold_until_min_tokens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
