/* KV bookkeeping: two phases, permuted pools, integrity under a random workload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/kv.h"

static struct kv_pool *make(int blocks, int seqs, int max_blocks, uint64_t shuffle)
{
	struct kv_options options = {.blocks = blocks, .block_tokens = 16, .max_seqs = seqs, .max_blocks = max_blocks, .shuffle = shuffle};
	struct error err = {0};
	struct kv_pool *pool;
	if (kv_create(&pool, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	return pool;
}

static void assert_sound(const struct kv_pool *pool)
{
	struct error err = {0};
	if (kv_check(pool, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void test_reserve_commit_rollback(void **state)
{
	(void)state;
	struct kv_pool *pool = make(8, 2, 8, 0);
	assert_int_equal(kv_reserve(pool, 0, 17, NULL), STATUS_OK);
	assert_int_equal(kv_seq_blocks(pool, 0), 2);
	assert_int_equal(kv_length(pool, 0), 0);
	kv_rollback(pool, 0);
	assert_int_equal(kv_free_blocks(pool), 8);
	assert_int_equal(kv_reserve(pool, 0, 17, NULL), STATUS_OK);
	kv_commit(pool, 0);
	assert_int_equal(kv_length(pool, 0), 17);
	assert_int_equal(kv_reserve(pool, 0, 15, NULL), STATUS_OK); /* fits the second block to the last token */
	assert_int_equal(kv_seq_blocks(pool, 0), 2);
	kv_rollback(pool, 0);
	assert_int_equal(kv_length(pool, 0), 17);
	assert_int_equal(kv_seq_blocks(pool, 0), 2);
	kv_commit(pool, 0); /* without a reservation: nothing */
	assert_int_equal(kv_length(pool, 0), 17);
	assert_sound(pool);
	kv_release(pool, 0);
	assert_int_equal(kv_free_blocks(pool), 8);
	kv_destroy(&pool);
	kv_destroy(&pool);
}

static void test_no_room_changes_nothing(void **state)
{
	(void)state;
	struct kv_pool *pool = make(3, 2, 8, 0);
	struct error err = {0};
	assert_int_equal(kv_reserve(pool, 0, 32, NULL), STATUS_OK);
	kv_commit(pool, 0);
	assert_int_equal(kv_reserve(pool, 1, 17, &err), STATUS_NO_ROOM);
	assert_int_equal(kv_free_blocks(pool), 1);
	assert_int_equal(kv_seq_blocks(pool, 1), 0);
	assert_int_equal(kv_reserve(pool, 0, 16 * 7, &(struct error){0}), STATUS_NO_ROOM); /* longer than a sequence may be */
	assert_int_equal(kv_length(pool, 0), 32);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_shuffled_pools_differ_and_hold_each_block_once(void **state)
{
	(void)state;
	struct kv_pool *a = make(64, 1, 64, 1), *b = make(64, 1, 64, 2), *plain = make(64, 1, 64, 0);
	assert_int_equal(kv_reserve(a, 0, 64 * 16, NULL), STATUS_OK);
	assert_int_equal(kv_reserve(b, 0, 64 * 16, NULL), STATUS_OK);
	assert_int_equal(kv_reserve(plain, 0, 64 * 16, NULL), STATUS_OK);
	int same = 0;
	for (int i = 0; i < 64; i++) same += kv_table(a, 0)[i] == kv_table(b, 0)[i];
	assert_true(same < 16);
	for (int i = 0; i < 64; i++) assert_int_equal(kv_table(plain, 0)[i], i + 1);
	for (int p = 0; p < 64 * 16; p += 7) assert_int_equal(kv_slot(a, 0, p), kv_table(a, 0)[p / 16] * 16 + p % 16);
	assert_sound(a);
	assert_sound(b);
	kv_destroy(&a);
	kv_destroy(&b);
	kv_destroy(&plain);
}

static void test_random_workload_stays_sound(void **state)
{
	(void)state;
	enum { SEQS = 5, STEPS = 20000 };
	struct kv_pool *pool = make(40, SEQS, 12, 7);
	int length[SEQS] = {0};
	for (uint64_t i = 0; i < STEPS; i++) {
		int seq = (int)(rng_u64(1, 0, i) % SEQS), tokens = 1 + (int)(rng_u64(1, 1, i) % 40), what = (int)(rng_u64(1, 2, i) % 8);
		if (what == 0) {
			kv_release(pool, seq);
			length[seq] = 0;
		} else if (kv_reserve(pool, seq, tokens, &(struct error){0}) == STATUS_OK) {
			if (what < 6) {
				kv_commit(pool, seq);
				length[seq] += tokens;
			} else kv_rollback(pool, seq);
		}
		assert_int_equal(kv_length(pool, seq), length[seq]);
		assert_sound(pool);
	}
	kv_release_all(pool);
	assert_int_equal(kv_free_blocks(pool), 40);
	kv_destroy(&pool);
}

static void test_bad_sizes_are_refused(void **state)
{
	(void)state;
	struct kv_pool *pool = (struct kv_pool *)state;
	struct error err = {0};
	assert_int_equal(kv_create(&pool, &(struct kv_options){.blocks = 0, .block_tokens = 16, .max_seqs = 1, .max_blocks = 1}, &err), STATUS_BAD_INPUT);
	assert_null(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reserve_commit_rollback),
		cmocka_unit_test(test_no_room_changes_nothing),
		cmocka_unit_test(test_shuffled_pools_differ_and_hold_each_block_once),
		cmocka_unit_test(test_random_workload_stays_sound),
		cmocka_unit_test(test_bad_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
