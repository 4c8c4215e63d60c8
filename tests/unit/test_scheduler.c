/* The scheduler on its own pools: each rule of docs/SCHEDULER.md in the smallest case; tests/sim has the large ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/scheduler.h"

enum { SIZE = 16, ROWS = 64, SEQS = 8 };

static struct kv_pool *pools[2];
static struct kv_group group = {pools, 2};
static struct scheduler *scheduler;
static struct step_plan plan;
static uint64_t last_id;
static bool cached;

static int states, state_every, tails; /* of the next one to be opened */

static void open_scheduler(int seqs, int rows, int blocks, int max_queue, bool cache)
{
	struct error err = {0};
	for (int r = 0; r < 2; r++) {
		struct kv_options kv = {.blocks = blocks, .block_tokens = SIZE, .max_seqs = seqs, .max_blocks = 64, .shuffle = (uint64_t)r,
		                        .prefix_cache = cache, .states = states};
		assert_int_equal(kv_create(&pools[r], &kv, &err), STATUS_OK);
	}
	struct scheduler_options options = {.max_seqs = seqs, .max_rows = rows, .kv_blocks = blocks, .block_tokens = SIZE, .max_queue = max_queue,
	                                    .states = states, .state_every = state_every, .kv = &group};
	assert_int_equal(scheduler_create(&scheduler, &options, &err), STATUS_OK);
	struct step_limits limits = {.max_rows = rows, .max_seqs = seqs, .max_tails = tails, .max_outputs = seqs};
	assert_int_equal(step_plan_init(&plan, &limits, &err), STATUS_OK);
	last_id = 0;
	cached = cache;
}

/* A model with state, its cache on: room for `snapshots` beside what the sequences need. */
static void open_stateful(int seqs, int blocks, int snapshots, int every)
{
	states = 2 * seqs + snapshots;
	state_every = every;
	open_scheduler(seqs, ROWS, blocks, 0, true);
	states = state_every = 0;
}

static void close_scheduler(void)
{
	step_plan_fini(&plan);
	scheduler_destroy(&scheduler);
	for (int r = 0; r < 2; r++) kv_destroy(&pools[r]);
}

/* The first `common` tokens are those of every request. */
static struct sequence *request(int prompt, int max_tokens, int common)
{
	int32_t tokens[1024];
	struct error err = {0};
	last_id++;
	for (int i = 0; i < prompt; i++) tokens[i] = i < common ? i : (int32_t)last_id * 1000 + i;
	struct sequence *q;
	struct sequence_options o = {.prompt = tokens, .prompt_count = prompt, .max_tokens = max_tokens,
	                             .block_tokens = cached ? SIZE : 0, .salt = 1};
	assert_int_equal(sequence_create(&q, last_id, &o, &err), STATUS_OK);
	return q;
}

static struct sequence *submit(int prompt, int max_tokens, int common)
{
	struct error err = {0};
	struct sequence *q = request(prompt, max_tokens, common);
	if (scheduler_submit(scheduler, q, &err) != STATUS_OK) fail_msg("%s", err.text);
	return q;
}

static void sound(void)
{
	struct error err = {0};
	if (kv_group_check(&group, 1, &err) != STATUS_OK || scheduler_check(scheduler, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void make_plan(void)
{
	struct error err = {0};
	if (scheduler_plan(scheduler, &plan, 1, &err) != STATUS_OK) fail_msg("%s", err.text);
	sound();
}

/* Rows that the plan gives the sequence. */
static int rows_of(const struct sequence *q)
{
	for (int i = 0; i < plan.seqs; i++)
		if (plan.sequence[i] == q) return plan.row_start[i + 1] - plan.row_start[i];
	return 0;
}

/* Runs the plan: every output gets token 7. */
static void run_plan(void)
{
	for (int i = 0; i < plan.seqs; i++)
		for (int r = 0; r < 2; r++)
			assert_int_equal(kv_reserve(pools[r], plan.slot[i], plan.row_start[i + 1] - plan.row_start[i], NULL), STATUS_OK);
	for (int i = 0; i < plan.seqs; i++) {
		struct kv_text text;
		kv_group_commit(&group, plan.slot[i], sequence_text(plan.sequence[i], &text));
	}
	scheduler_committed(scheduler, &plan);
	for (int i = 0; i < plan.outputs; i++) {
		struct sequence *q = plan.sequence[plan.output_seq[i]];
		enum sequence_finish finish = sequence_append(q, 7);
		if (finish == FINISH_NONE) continue;
		scheduler_remove(scheduler, q, finish);
		sequence_destroy(&q);
	}
	sound();
}

static void step(void)
{
	make_plan();
	run_plan();
}

static void test_prefill_is_chunked_and_logits_come_with_the_last_chunk(void **state)
{
	(void)state;
	open_scheduler(2, 16, 100, 0, false);
	struct sequence *q = submit(40, 4, 0);
	const int rows[] = {16, 16, 8}, outputs[] = {0, 0, 1};
	for (int i = 0, at = 0; i < 3; i++) {
		make_plan();
		assert_int_equal(plan.rows, rows[i]);
		assert_int_equal(plan.outputs, outputs[i]);
		assert_int_equal(plan.position[0], at);
		assert_int_equal(plan.token[0], 1000 + at);
		at += rows[i];
		assert_int_equal(plan.kv_len[0], at);
		if (i == 2) assert_int_equal(plan.output_row[0], 7);
		run_plan();
	}
	make_plan();
	assert_int_equal(plan.rows, 1);
	assert_int_equal(plan.token[0], 7);
	assert_int_equal(plan.position[0], 40);
	assert_int_equal(q->count, 41);
	close_scheduler();
}

static void test_rows_are_shared_among_decodes_the_oldest_prefill_and_short_ones(void **state)
{
	(void)state;
	open_scheduler(4, 42, 100, 0, false);
	struct sequence *a = submit(3, 90, 0), *b = submit(200, 9, 0), *c = submit(60, 9, 0), *d = submit(5, 9, 0);
	step();
	assert_int_equal(a->count, 4);
	int b_before = b->computed;
	make_plan();
	assert_ptr_equal(plan.sequence[0], a); /* decode rows stand first */
	assert_int_equal(rows_of(a), 1);
	assert_int_equal(rows_of(d), 1); /* it decodes too: short, done in the first step */
	assert_int_equal(rows_of(b), 40 - 40 / 4);
	assert_int_equal(rows_of(c), 40 / 4);
	assert_int_equal(plan.rows, 42);
	run_plan();
	assert_int_equal(b->computed, b_before + 30);
	close_scheduler();
}

static void test_admission_by_current_need_and_in_order(void **state)
{
	(void)state;
	open_scheduler(SEQS, ROWS, 6, 0, false); /* watermark: one block */
	struct sequence *a = submit(20, 60, 0); /* two blocks now, five at most */
	struct sequence *b = submit(40, 2, 0);  /* three */
	struct sequence *c = submit(1, 1, 0);   /* one: fits beside, but not before b does */
	make_plan();
	assert_int_equal(a->state, SEQUENCE_RUNNING);
	assert_int_equal(b->state, SEQUENCE_RUNNING);
	assert_int_equal(c->state, SEQUENCE_QUEUED);
	run_plan();
	step(); /* b's second token: it ends */
	make_plan();
	assert_int_equal(c->state, SEQUENCE_RUNNING);
	assert_ptr_equal(scheduler_find(scheduler, 3), c);
	assert_null(scheduler_find(scheduler, 2));
	close_scheduler();
}

static void test_a_pool_sized_for_its_requests_is_used_to_the_last_block(void **state)
{
	(void)state;
	open_scheduler(3, ROWS, 6, 0, false); /* two blocks each, nothing for a watermark */
	for (int i = 0; i < 3; i++) (void)submit(16, 17, 0);
	make_plan();
	assert_int_equal(plan.seqs, 3);
	run_plan();
	step();
	assert_int_equal(kv_group_free_blocks(&group), 0);
	for (int i = 0; i < 15; i++) step();
	assert_null(scheduler_any(scheduler));
	close_scheduler();
}

static void test_the_youngest_is_preempted_and_comes_back_first(void **state)
{
	(void)state;
	open_scheduler(3, ROWS, 6, 0, false);
	struct sequence *a = submit(30, 60, 0), *b = submit(30, 40, 0), *c = submit(60, 1, 0);
	struct scheduler_stats stats;
	step();
	assert_int_equal(c->state, SEQUENCE_QUEUED);
	for (int i = 0; b->state == SEQUENCE_RUNNING; i++) {
		assert_true(i < 40);
		step();
	}
	assert_int_equal(b->preemptions, 1);
	assert_int_equal(b->computed, 0);
	assert_true(b->count > b->prompt_count); /* its tokens are kept */
	assert_int_equal(rows_of(a), 1);
	scheduler_get_stats(scheduler, &stats);
	assert_int_equal(stats.preemptions, 1);
	assert_int_equal(stats.waiting, 2);
	int kept = b->count;
	for (int i = 0; i < 60 && b->state == SEQUENCE_QUEUED; i++) step();
	assert_int_equal(c->state, SEQUENCE_QUEUED); /* b is older */
	assert_true(kept <= b->count);
	close_scheduler();
}

static void test_cached_prefixes_are_adopted_but_not_the_last_token(void **state)
{
	(void)state;
	open_scheduler(SEQS, ROWS, 100, 0, true);
	(void)submit(32, 1, 32);
	step(); /* ends, its two blocks stay */
	struct sequence *b = submit(32, 3, 32), *c = submit(50, 3, 32);
	make_plan();
	assert_int_equal(rows_of(b), 16); /* all cached, but the last token must be computed, so its block */
	assert_int_equal(rows_of(c), 18);
	assert_int_equal(b->cached_tokens, 16);
	assert_int_equal(c->cached_tokens, 32);
	run_plan();
	assert_int_equal(kv_table(pools[0], b->slot)[1], kv_table(pools[0], c->slot)[1]); /* one copy again */
	struct scheduler_stats stats;
	scheduler_get_stats(scheduler, &stats);
	assert_int_equal(stats.prompt_tokens, 32 + 32 + 50);
	assert_int_equal(stats.cached_tokens, 48);
	close_scheduler();
}

static void test_siblings_compute_a_common_prompt_once(void **state)
{
	(void)state;
	open_scheduler(4, 256, 100, 0, true);
	struct sequence *q[4];
	for (int i = 0; i < 4; i++) q[i] = submit(100, 5, 100);
	make_plan();
	assert_int_equal(plan.rows, 100); /* the others wait for its blocks */
	run_plan();
	make_plan();
	for (int i = 1; i < 4; i++) {
		assert_int_equal(rows_of(q[i]), 4);
		assert_int_equal(q[i]->cached_tokens, 96);
	}
	assert_int_equal(plan.rows, 1 + 3 * 4);
	run_plan();
	assert_int_equal(kv_group_free_blocks(&group), 100 - 6 - 4);
	close_scheduler();
}

static void test_a_full_queue_is_busy(void **state)
{
	(void)state;
	open_scheduler(2, ROWS, 100, 1, false);
	for (int i = 0; i < 3; i++) (void)submit(5, 5, 0); /* two slots and one place to wait */
	struct sequence *q = request(5, 5, 0);
	struct error err = {0};
	assert_int_equal(scheduler_submit(scheduler, q, &err), STATUS_BUSY);
	step();
	assert_int_equal(scheduler_submit(scheduler, q, &(struct error){0}), STATUS_BUSY);
	assert_true(scheduler_cancel(scheduler, 1));
	scheduler_sweep(scheduler, 1);
	struct sequence *ended = scheduler_take_ended(scheduler);
	assert_int_equal(ended->finish, FINISH_CANCELLED);
	sequence_destroy(&ended);
	step();
	assert_int_equal(scheduler_submit(scheduler, q, &err), STATUS_OK);
	close_scheduler();
}

static void test_deadlines_and_cancels_end_in_every_state(void **state)
{
	(void)state;
	open_scheduler(1, ROWS, 100, 0, false);
	struct sequence *running = submit(5, 50, 0), *queued = request(5, 5, 0), *later = request(5, 5, 0), *ended;
	struct error err = {0};
	queued->deadline_ns = 100;
	later->deadline_ns = 200;
	assert_int_equal(scheduler_submit(scheduler, queued, &err), STATUS_OK);
	assert_int_equal(scheduler_submit(scheduler, later, &err), STATUS_OK);
	step();
	scheduler_sweep(scheduler, 99);
	assert_null(scheduler_take_ended(scheduler));
	scheduler_sweep(scheduler, 100);
	ended = scheduler_take_ended(scheduler);
	assert_ptr_equal(ended, queued);
	assert_int_equal(ended->finish, FINISH_TIMEOUT);
	sequence_destroy(&ended);
	make_plan();
	assert_true(scheduler_cancel(scheduler, running->id)); /* in flight */
	assert_true(scheduler_dropped(scheduler, running));
	scheduler_sweep(scheduler, 150);
	ended = scheduler_take_ended(scheduler);
	assert_ptr_equal(ended, running);
	assert_int_equal(ended->finish, FINISH_CANCELLED);
	sequence_destroy(&ended);
	assert_false(scheduler_cancel(scheduler, 1)); /* over */
	assert_false(scheduler_cancel(scheduler, 99));
	assert_int_equal(kv_group_free_blocks(&group), 100);
	step();
	assert_int_equal(later->state, SEQUENCE_RUNNING);
	scheduler_sweep(scheduler, 200);
	ended = scheduler_take_ended(scheduler);
	assert_ptr_equal(ended, later);
	sequence_destroy(&ended);
	assert_null(scheduler_any(scheduler));
	close_scheduler();
}

static void test_a_scored_prompt_is_computed_whole(void **state)
{
	(void)state;
	open_scheduler(2, ROWS, 100, 0, true);
	(void)submit(40, 1, 40);
	step();
	int32_t tokens[40];
	struct error err = {0};
	struct sequence *q;
	for (int i = 0; i < 40; i++) tokens[i] = i;
	struct sequence_options o = {.prompt = tokens, .prompt_count = 40, .score_prompt = true, .block_tokens = SIZE, .salt = 1};
	assert_int_equal(sequence_create(&q, ++last_id, &o, &err), STATUS_OK);
	assert_int_equal(scheduler_submit(scheduler, q, &err), STATUS_OK);
	make_plan();
	assert_int_equal(rows_of(q), 40);
	assert_int_equal(plan.outputs, 0); /* nothing is generated */
	close_scheduler();
}

/* --- models with state ------------------------------------------------------------------------------------------------------ */

static struct scheduler_stats stats(void)
{
	struct scheduler_stats out;
	scheduler_get_stats(scheduler, &out);
	return out;
}

/* Steps until q has been read; its chunks must end where `ends` says, which 0 ends. */
static void prefill(const struct sequence *q, const int *ends)
{
	for (int i = 0; ends[i]; i++) {
		step();
		assert_int_equal(q->computed, ends[i]);
	}
}

static void run_out(void)
{
	for (int i = 0; i < 300 && scheduler_any(scheduler); i++) step();
	assert_null(scheduler_any(scheduler));
}

static void test_state_is_kept_at_the_end_of_a_prompt_and_where_texts_part(void **state)
{
	(void)state;
	open_stateful(2, 100, 8, 0);
	struct sequence *a = submit(150, 2, 90);
	prefill(a, (int[]){64, 128, 144, 150, 0}); /* 144: its last whole block */
	run_out();
	struct sequence *b = submit(130, 2, 90); /* another text from 90 on: it finds the blocks up to 80 and no state */
	prefill(b, (int[]){64, 80, 128, 130, 0});
	assert_int_equal(b->cached_tokens, 0);
	run_out();
	struct sequence *c = submit(100, 2, 90);
	step();
	assert_int_equal(c->cached_tokens, 80);
	assert_int_equal(c->computed, 100); /* 96 is too near to 80 to be kept */
	run_out();
	assert_int_equal(stats().computed_tokens, 151 + 131 + 100 - 80 + 1);
	assert_int_equal(stats().state_hits, 1);
	close_scheduler();
}

/* One step for a prompt whose last whole block is not its end, where the plan has room for a second part; not for a part of one row. */
static void test_state_is_kept_within_a_step(void **state)
{
	(void)state;
	tails = 1;
	open_stateful(2, 64, 1, 0);
	tails = 0;
	submit(3 * SIZE + 5, 1, 100);
	make_plan();
	assert_int_equal(plan.tails, 1);
	assert_int_equal(plan.seqs, 2);
	assert_true(plan.goes_on[0] && !plan.goes_on[1]);
	assert_int_equal(plan.kv_len[0], 3 * SIZE);
	assert_int_equal(plan.kv_len[1], 3 * SIZE + 5);
	assert_int_equal(plan.outputs, 1);
	assert_int_equal(plan.output_seq[0], 1);
	run_plan();
	assert_int_equal(stats().computed_tokens, 3 * SIZE + 5);
	assert_int_equal(kv_snapshots(pools[0]), 1);
	struct sequence *b = submit(3 * SIZE + 7, 1, 100); /* says what a said, and more */
	make_plan();
	assert_int_equal(b->cached_tokens, 3 * SIZE);
	assert_int_equal(plan.tails, 0);
	assert_int_equal(plan.rows, 7);
	run_plan();
	struct sequence *c = submit(3 * SIZE + 1, 1, 0);
	make_plan();
	assert_int_equal(plan.tails, 0);
	assert_int_equal(rows_of(c), 3 * SIZE);
	run_plan();
	run_out();
	close_scheduler();
}

static void test_the_same_prompt_again_computes_its_last_block(void **state)
{
	(void)state;
	open_stateful(2, 100, 8, 0);
	for (int i = 0; i < 3; i++) {
		struct sequence *q = submit(100, 2, 100);
		step();
		assert_int_equal(q->cached_tokens, i ? 96 : 0);
		run_out();
	}
	assert_int_equal(stats().computed_tokens, 101 + 5 + 5);
	close_scheduler();
}

static void test_siblings_with_state_compute_a_common_beginning_once(void **state)
{
	(void)state;
	open_stateful(3, 100, 8, 0);
	struct sequence *a = submit(150, 2, 90), *b = submit(120, 2, 90), *c = submit(90, 2, 90);
	prefill(a, (int[]){48, 80, 0}); /* the others wait, and follow through the snapshot at 48 */
	assert_true(b->computed == 48 && c->computed == 48);
	run_out();
	assert_int_equal(stats().cached_tokens, 80 + 80);
	assert_int_equal(stats().computed_tokens, 151 + 41 + 11);
	close_scheduler();
	open_stateful(1, 100, 8, 0); /* b is not even admitted */
	a = submit(150, 2, 90);
	b = submit(120, 2, 90);
	prefill(a, (int[]){64, 80, 144, 150, 0});
	for (int i = 0; i < 60 && b->state == SEQUENCE_QUEUED; i++) step();
	assert_int_equal(b->cached_tokens, 80);
	run_out();
	close_scheduler();
}

static void test_a_conversation_goes_on_from_the_end_of_the_answer(void **state)
{
	(void)state;
	open_stateful(2, 100, 0, 0);
	(void)submit(20, 60, 20); /* generates 7s; 79 tokens are read */
	run_out();
	assert_int_equal(kv_snapshots(pools[0]), 1); /* 16 is too near to the beginning, the others were replaced by 64 */
	int32_t tokens[100];
	struct sequence *q;
	struct error err = {0};
	for (int i = 0; i < 100; i++) tokens[i] = i < 20 ? i : i < 80 ? 7 : 3;
	struct sequence_options o = {.prompt = tokens, .prompt_count = 100, .max_tokens = 2, .block_tokens = SIZE, .salt = 1};
	assert_int_equal(sequence_create(&q, ++last_id, &o, &err), STATUS_OK);
	assert_int_equal(scheduler_submit(scheduler, q, &err), STATUS_OK);
	step();
	assert_int_equal(q->cached_tokens, 64);
	run_out();
	close_scheduler();
}

static void test_a_long_prompt_leaves_state_every_so_often(void **state)
{
	(void)state;
	open_stateful(1, 100, 8, 128);
	struct sequence *a = submit(500, 1, 300);
	prefill(a, (int[]){64, 128, 192, 256, 320, 384, 448, 496, 0});
	run_out();
	assert_int_equal(kv_snapshots(pools[0]), 4);
	struct sequence *b = submit(330, 1, 300);
	step();
	assert_int_equal(b->cached_tokens, 256);
	assert_int_equal(b->computed, 288); /* where the texts part */
	run_out();
	close_scheduler();
}

/* As near as snapshots may be, and no multiple is passed over for one that is too near. */
static void test_a_short_distance_of_states_is_taken_as_far_as_it_can_be(void **state)
{
	(void)state;
	for (int every = 1; every <= 3 * SIZE; every += SIZE - 1) {
		open_stateful(1, 100, 8, every);
		(void)submit(10 * SIZE + 4, 1, 300);
		run_out();
		assert_true(kv_snapshots(pools[0]) >= 3);
		close_scheduler();
	}
}

static void test_the_preempted_go_on_from_their_last_snapshot(void **state)
{
	(void)state;
	open_stateful(2, 12, 4, 0);
	(void)submit(52, 55, 0);
	struct sequence *b = submit(40, 60, 0);
	for (int i = 0; i < 60 && !b->preemptions; i++) step();
	assert_int_equal(b->preemptions, 1);
	uint64_t hits = stats().state_hits;
	assert_int_equal(b->computed, 0);
	assert_true(b->count > 50);
	for (int i = 0; i < 60 && b->state == SEQUENCE_QUEUED; i++) step();
	assert_int_equal(stats().state_hits, hits + 1);
	assert_int_equal(b->cached_tokens, 0); /* coming back is no hit of the request's */
	run_out();
	close_scheduler();
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

static void test_sizes_that_cannot_work_are_refused(void **state)
{
	(void)state;
	struct scheduler *s;
	struct error err = {0};
	struct scheduler_options few_rows = {.max_seqs = 4, .max_rows = 3, .kv_blocks = 1, .block_tokens = 16, .kv = &group};
	assert_int_equal(scheduler_create(&s, &few_rows, &err), STATUS_BAD_INPUT);
	assert_null(s);
	struct scheduler_options few_states = {.max_seqs = 4, .max_rows = 8, .kv_blocks = 1, .block_tokens = 16, .states = 7, .kv = &group};
	assert_int_equal(scheduler_create(&s, &few_states, &err), STATUS_BAD_INPUT);
	assert_null(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_prefill_is_chunked_and_logits_come_with_the_last_chunk),
		cmocka_unit_test(test_rows_are_shared_among_decodes_the_oldest_prefill_and_short_ones),
		cmocka_unit_test(test_admission_by_current_need_and_in_order),
		cmocka_unit_test(test_a_pool_sized_for_its_requests_is_used_to_the_last_block),
		cmocka_unit_test(test_the_youngest_is_preempted_and_comes_back_first),
		cmocka_unit_test(test_cached_prefixes_are_adopted_but_not_the_last_token),
		cmocka_unit_test(test_siblings_compute_a_common_prompt_once),
		cmocka_unit_test(test_a_full_queue_is_busy),
		cmocka_unit_test(test_deadlines_and_cancels_end_in_every_state),
		cmocka_unit_test(test_a_scored_prompt_is_computed_whole),
		cmocka_unit_test(test_state_is_kept_at_the_end_of_a_prompt_and_where_texts_part),
		cmocka_unit_test(test_state_is_kept_within_a_step),
		cmocka_unit_test(test_the_same_prompt_again_computes_its_last_block),
		cmocka_unit_test(test_siblings_with_state_compute_a_common_beginning_once),
		cmocka_unit_test(test_a_conversation_goes_on_from_the_end_of_the_answer),
		cmocka_unit_test(test_a_long_prompt_leaves_state_every_so_often),
		cmocka_unit_test(test_a_short_distance_of_states_is_taken_as_far_as_it_can_be),
		cmocka_unit_test(test_the_preempted_go_on_from_their_last_snapshot),
		cmocka_unit_test(test_stop_ids_hold_until_min_tokens),
		cmocka_unit_test(test_sizes_that_cannot_work_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
