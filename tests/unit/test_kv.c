/* KV bookkeeping: two phases, permuted pools, prefix cache, integrity under a random workload. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/rng.h"
#include "engine/kv_group.h"

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
	kv_commit(pool, 0, NULL);
	assert_int_equal(kv_length(pool, 0), 17);
	assert_int_equal(kv_reserve(pool, 0, 15, NULL), STATUS_OK); /* fits the second block to the last token */
	assert_int_equal(kv_seq_blocks(pool, 0), 2);
	kv_rollback(pool, 0);
	assert_int_equal(kv_length(pool, 0), 17);
	assert_int_equal(kv_seq_blocks(pool, 0), 2);
	kv_commit(pool, 0, NULL); /* without a reservation: nothing */
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
	kv_commit(pool, 0, NULL);
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
				kv_commit(pool, seq, NULL);
				length[seq] += tokens;
			} else kv_rollback(pool, seq);
		}
		assert_int_equal(kv_length(pool, seq), length[seq]);
		assert_sound(pool);
	}
	kv_reset(pool);
	assert_int_equal(kv_free_blocks(pool), 40);
	kv_destroy(&pool);
}

/* --- recurrent state -------------------------------------------------------------------------------------------------------- */

static struct kv_pool *make_states(int states, int seqs, bool cache, uint64_t shuffle)
{
	struct kv_options options = {.blocks = 16, .block_tokens = 4, .max_seqs = seqs, .max_blocks = 16, .shuffle = shuffle, .prefix_cache = cache,
	                             .states = states};
	struct error err = {0};
	struct kv_pool *pool;
	if (kv_create(&pool, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	return pool;
}

static void test_state_flips_on_commit_and_stays_on_rollback(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(3, 2, false, 0);
	assert_int_equal(kv_state_read(pool, 0), -1);
	assert_int_equal(kv_state_write(pool, 0), -1);
	assert_int_equal(kv_reserve(pool, 0, 5, NULL), STATUS_OK);
	int32_t first = kv_state_write(pool, 0);
	assert_true(first > 0 && kv_state_read(pool, 0) == -1);
	kv_commit(pool, 0, NULL);
	assert_int_equal(kv_state_read(pool, 0), first);
	assert_int_equal(kv_state_write(pool, 0), -1);
	assert_int_equal(kv_reserve(pool, 0, 1, NULL), STATUS_OK);
	assert_int_not_equal(kv_state_write(pool, 0), first);
	assert_int_equal(kv_free_states(pool), 1);
	kv_rollback(pool, 0);
	assert_int_equal(kv_state_read(pool, 0), first);
	assert_int_equal(kv_free_states(pool), 2);
	assert_sound(pool);
	assert_int_equal(kv_reserve(pool, 0, 1, NULL), STATUS_OK);
	assert_int_equal(kv_reserve(pool, 1, 1, NULL), STATUS_OK);
	kv_commit(pool, 1, NULL); /* slots: one read and one written of sequence 0, one read of sequence 1 */
	assert_sound(pool);
	int blocks = kv_free_blocks(pool);
	assert_int_equal(kv_reserve(pool, 1, 8, &(struct error){0}), STATUS_NO_ROOM);
	assert_int_equal(kv_free_blocks(pool), blocks);
	assert_int_equal(kv_state_write(pool, 1), -1);
	assert_sound(pool);
	kv_release(pool, 0); /* with its reservation open */
	assert_int_equal(kv_free_states(pool), 2);
	assert_int_equal(kv_state_read(pool, 0), -1);
	assert_sound(pool);
	kv_reset(pool);
	assert_int_equal(kv_free_states(pool), 3);
	assert_int_equal(kv_state_read(pool, 1), -1);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_state_slots_are_permuted_and_each_is_given_once(void **state)
{
	(void)state;
	enum { SEQS = 8 };
	struct kv_pool *a = make_states(2 * SEQS, SEQS, false, 1), *b = make_states(2 * SEQS, SEQS, false, 2), *plain = make_states(2 * SEQS, SEQS, false, 0);
	struct kv_pool *pools[] = {a, b, plain};
	int same = 0;
	for (int p = 0; p < 3; p++) {
		bool seen[2 * SEQS + 1] = {true};
		for (int s = 0; s < SEQS; s++) {
			assert_int_equal(kv_reserve(pools[p], s, 1, NULL), STATUS_OK);
			kv_commit(pools[p], s, NULL);
			assert_int_equal(kv_reserve(pools[p], s, 1, NULL), STATUS_OK);
		}
		for (int s = 0; s < SEQS; s++) {
			const int32_t slots[] = {kv_state_read(pools[p], s), kv_state_write(pools[p], s)};
			for (int i = 0; i < 2; i++) {
				assert_true(slots[i] >= 1 && slots[i] <= 2 * SEQS && !seen[slots[i]]);
				seen[slots[i]] = true;
			}
		}
		assert_sound(pools[p]);
	}
	for (int s = 0; s < SEQS; s++) same += kv_state_read(a, s) == kv_state_read(b, s);
	assert_true(same < SEQS);
	assert_int_equal(kv_state_read(plain, 0), 1);
	for (int p = 0; p < 3; p++) kv_destroy(&pools[p]);
}

/* --- prefix cache: blocks of 4 tokens --------------------------------------------------------------------------------------- */

enum { SIZE = 4, LONGEST = 64 };

static struct kv_pool *make_cache(int blocks, uint64_t shuffle)
{
	struct kv_options options = {.blocks = blocks, .block_tokens = SIZE, .max_seqs = 4, .max_blocks = LONGEST / SIZE, .shuffle = shuffle,
	                             .prefix_cache = true};
	struct error err = {0};
	struct kv_pool *pool;
	if (kv_create(&pool, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	return pool;
}

struct said {
	int32_t tokens[LONGEST];
	uint64_t hashes[LONGEST / SIZE];
	struct kv_text text;
};

/* `common` tokens that all texts share, then tokens of its own. */
static void say(struct said *s, int common, int own)
{
	for (int i = 0; i < LONGEST; i++) s->tokens[i] = i < common ? i : 1000 * own + i;
	for (int i = 0; i < LONGEST / SIZE; i++) s->hashes[i] = kv_hash(i ? s->hashes[i - 1] : 77, s->tokens + i * SIZE, SIZE);
	s->text = (struct kv_text){s->tokens, s->hashes};
}

static void compute(struct kv_pool *pool, int seq, int tokens, const struct said *s)
{
	struct error err = {0};
	if (kv_reserve(pool, seq, tokens, &err) != STATUS_OK) fail_msg("%s", err.text);
	kv_commit(pool, seq, &s->text);
	assert_sound(pool);
}

static void test_full_blocks_are_found_and_shared(void **state)
{
	(void)state;
	struct kv_pool *pool = make_cache(8, 3);
	struct said a, b;
	int idle;
	say(&a, 10, 1);
	say(&b, 10, 2);
	compute(pool, 0, 11, &a); /* two full blocks, one of 3 tokens */
	assert_int_equal(kv_match(pool, 1, &b.text, 2, &idle), 2);
	assert_int_equal(idle, 0);
	assert_int_equal(kv_match(pool, 1, &b.text, 1, &idle), 1);
	assert_int_equal(kv_adopt(pool, 1, &b.text, 9), 2);
	assert_int_equal(kv_length(pool, 1), 8);
	assert_int_equal(kv_refs(pool, kv_table(pool, 0)[1]), 2);
	assert_int_equal(kv_free_blocks(pool), 5);
	compute(pool, 1, 4, &b); /* its own third block */
	assert_int_not_equal(kv_table(pool, 0)[2], kv_table(pool, 1)[2]);
	kv_release(pool, 0);
	assert_int_equal(kv_free_blocks(pool), 5);
	assert_int_equal(kv_idle_blocks(pool), 0); /* b holds what a cached; a's last block was not full */
	kv_release(pool, 1);
	assert_int_equal(kv_idle_blocks(pool), 3);
	assert_int_equal(kv_match(pool, 2, &b.text, 9, &idle), 3);
	assert_int_equal(idle, 3);
	assert_sound(pool);
	kv_reset(pool);
	assert_int_equal(kv_match(pool, 2, &b.text, 9, &idle), 0);
	assert_int_equal(kv_free_blocks(pool), 8);
	kv_destroy(&pool);
}

static void test_a_twin_takes_the_place_of_an_own_block(void **state)
{
	(void)state;
	struct kv_pool *pool = make_cache(8, 0);
	struct said a;
	say(&a, 0, 1);
	assert_int_equal(kv_reserve(pool, 0, 9, NULL), STATUS_OK);
	assert_int_equal(kv_reserve(pool, 1, 9, NULL), STATUS_OK); /* the same text in the same step */
	kv_commit(pool, 0, &a.text);
	kv_commit(pool, 1, &a.text);
	assert_sound(pool);
	for (int i = 0; i < 2; i++) assert_int_equal(kv_table(pool, 0)[i], kv_table(pool, 1)[i]);
	assert_int_not_equal(kv_table(pool, 0)[2], kv_table(pool, 1)[2]);
	assert_int_equal(kv_free_blocks(pool), 8 - 4);
	compute(pool, 1, 3, &a);
	compute(pool, 0, 3, &a);
	assert_int_equal(kv_table(pool, 0)[2], kv_table(pool, 1)[2]);
	assert_int_equal(kv_free_blocks(pool), 8 - 3);
	kv_destroy(&pool);
}

static void test_the_block_let_go_longest_ago_is_evicted_and_followers_first(void **state)
{
	(void)state;
	struct kv_pool *pool = make_cache(6, 5);
	struct said a, b, c;
	int idle;
	say(&a, 0, 1);
	say(&b, 0, 2);
	say(&c, 0, 3);
	compute(pool, 0, 12, &a);
	kv_release(pool, 0);
	compute(pool, 0, 12, &b);
	kv_release(pool, 0);
	assert_int_equal(kv_evictions(pool), 0);
	compute(pool, 0, 8, &c); /* two of a's three go, its last ones */
	assert_int_equal(kv_evictions(pool), 2);
	assert_int_equal(kv_match(pool, 1, &a.text, 3, &idle), 1);
	assert_int_equal(kv_match(pool, 1, &b.text, 3, &idle), 3);
	assert_int_equal(kv_adopt(pool, 1, &a.text, 1), 1); /* used again: now b's are older */
	kv_release(pool, 1);
	compute(pool, 0, 4, &c);
	assert_int_equal(kv_match(pool, 1, &a.text, 3, &idle), 1);
	assert_int_equal(kv_match(pool, 1, &b.text, 3, &idle), 2);
	kv_destroy(&pool);
}

static void test_a_hash_collision_is_no_hit(void **state)
{
	(void)state;
	struct kv_pool *pool = make_cache(8, 0);
	struct said a, b, c;
	int idle;
	say(&a, 0, 1);
	say(&b, 0, 2);
	memcpy(b.hashes, a.hashes, sizeof b.hashes); /* every block collides */
	compute(pool, 0, 8, &a);
	assert_int_equal(kv_match(pool, 1, &b.text, 2, &idle), 0);
	compute(pool, 1, 8, &b);
	assert_int_equal(kv_match(pool, 2, &b.text, 2, &idle), 2);
	assert_int_equal(kv_match(pool, 2, &a.text, 2, &idle), 2);
	say(&c, 0, 1); /* a's second block after b's first one: same tokens, same hash, another text */
	memcpy(c.tokens, b.tokens, SIZE * sizeof *c.tokens);
	memcpy(c.hashes, a.hashes, sizeof c.hashes);
	assert_int_equal(kv_match(pool, 2, &c.text, 2, &idle), 1);
	kv_destroy(&pool);
}

static void test_reserved_room_is_not_found_and_rolls_back(void **state)
{
	(void)state;
	struct kv_pool *pool = make_cache(4, 0);
	struct said a, b;
	int idle;
	say(&a, 8, 1);
	say(&b, 8, 2);
	compute(pool, 0, 8, &a);
	kv_release(pool, 0);
	assert_int_equal(kv_adopt(pool, 1, &b.text, 2), 2);
	assert_int_equal(kv_reserve(pool, 1, 8, NULL), STATUS_OK);
	assert_int_equal(kv_reserve(pool, 2, 1, &(struct error){0}), STATUS_NO_ROOM); /* held blocks are not evicted */
	assert_int_equal(kv_match(pool, 2, &b.text, 4, &idle), 2);
	kv_rollback(pool, 1);
	assert_int_equal(kv_length(pool, 1), 8);
	assert_int_equal(kv_free_blocks(pool), 2);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_ranks_whose_caches_differ_are_noticed(void **state)
{
	(void)state;
	struct kv_pool *pools[] = {make_cache(8, 0), make_cache(8, 9)};
	struct kv_group group = {pools, 2}, none = {0};
	struct said a;
	struct error err = {0};
	int idle;
	say(&a, 8, 1);
	for (int r = 0; r < 2; r++) assert_int_equal(kv_reserve(pools[r], 0, 8, NULL), STATUS_OK);
	kv_group_commit(&group, 0, &a.text);
	kv_group_release(&group, 0);
	assert_int_equal(kv_group_match(&group, 1, &a.text, 2, &idle), 2);
	assert_int_equal(kv_group_adopt(&group, 1, &a.text, 2, &err), STATUS_OK);
	assert_int_equal(kv_group_check(&group, 4, &err), STATUS_OK);
	kv_group_release(&group, 1);
	kv_reset(pools[1]);
	assert_int_equal(kv_group_adopt(&group, 1, &a.text, 2, &err), STATUS_MISMATCH);
	if (!strstr(err.text, "rank 1")) fail_msg("'%s' names no rank", err.text);
	assert_int_equal(kv_group_check(&group, 4, &(struct error){0}), STATUS_BAD_INPUT);
	assert_int_equal(kv_group_free_blocks(&none), 0);
	assert_int_equal(kv_group_match(&none, 0, &a.text, 2, &idle), 0);
	for (int r = 0; r < 2; r++) kv_destroy(&pools[r]);
}

/* --- snapshots of state: blocks of 4 tokens --------------------------------------------------------------------------------- */

static void step(struct kv_pool *pool, int seq, int tokens, const struct said *s, int snapshot) /* -1: none, else rolling or not */
{
	compute(pool, seq, tokens, s);
	if (snapshot >= 0) kv_snapshot(pool, seq, snapshot == 1);
	assert_sound(pool);
}

static void test_a_hit_ends_at_the_deepest_snapshot(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(8, 4, true, 3);
	struct said a, b;
	int idle;
	say(&a, 12, 1);
	say(&b, 12, 2);
	step(pool, 0, 8, &a, 0);
	int32_t kept = kv_state_read(pool, 0);
	step(pool, 0, 6, &a, 0); /* not whole blocks: no snapshot */
	assert_int_equal(kv_snapshots(pool), 1);
	assert_true(kv_is_snapshot(pool, kept));
	assert_int_equal(kv_state_refs(pool, kept), 0);
	assert_int_equal(kv_known(pool, 1, &b.text, 16), 3);
	assert_int_equal(kv_match(pool, 1, &b.text, 16, &idle), 2);
	assert_int_equal(kv_match(pool, 1, &b.text, 1, &idle), 0);
	assert_int_equal(kv_adopt(pool, 1, &b.text, 1), 0); /* no snapshot so far up: nothing is taken */
	assert_int_equal(kv_seq_blocks(pool, 1), 0);
	assert_int_equal(kv_adopt(pool, 1, &b.text, 9), 2);
	assert_int_equal(kv_length(pool, 1), 8);
	assert_int_equal(kv_state_read(pool, 1), kept);
	assert_sound(pool);
	assert_int_equal(kv_adopt(pool, 2, &a.text, 9), 2); /* shared by two and by the cache */
	assert_int_equal(kv_state_refs(pool, kept), 2);
	step(pool, 1, 1, &b, -1); /* reads it, writes its own */
	assert_int_not_equal(kv_state_read(pool, 1), kept);
	assert_int_equal(kv_state_refs(pool, kept), 1);
	for (int s = 0; s < 3; s++) kv_release(pool, s);
	assert_sound(pool);
	assert_int_equal(kv_free_states(pool), 8);
	assert_int_equal(kv_match(pool, 3, &a.text, 9, &idle), 2);
	assert_int_equal(idle, 2);
	kv_reset(pool);
	assert_int_equal(kv_snapshots(pool), 0);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_a_twin_lends_its_block_and_takes_the_snapshot(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(8, 4, true, 3);
	struct said a;
	int idle;
	say(&a, 0, 1);
	step(pool, 0, 9, &a, -1); /* cached first, without a snapshot */
	step(pool, 1, 8, &a, 0);
	assert_int_equal(kv_table(pool, 0)[1], kv_table(pool, 1)[1]);
	assert_int_equal(kv_match(pool, 2, &a.text, 9, &idle), 2);
	assert_int_equal(kv_adopt(pool, 2, &a.text, 2), 2);
	assert_int_equal(kv_state_read(pool, 2), kv_state_read(pool, 1));
	step(pool, 3, 8, &a, 0); /* computed again: the state that is there takes the place of its own */
	assert_int_equal(kv_state_read(pool, 3), kv_state_read(pool, 1));
	assert_int_equal(kv_snapshots(pool), 1);
	assert_int_equal(kv_free_states(pool), 8 - 2);
	kv_destroy(&pool);
}

static void test_the_state_between_two_reservations_is_kept(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(8, 4, true, 3);
	struct said a;
	int idle;
	say(&a, 0, 1);
	for (int run = 0; run < 2; run++) {
		assert_int_equal(kv_reserve(pool, 0, 8, NULL), STATUS_OK);
		assert_int_equal(kv_state_tail(pool, 0), -1);
		assert_int_equal(kv_reserve(pool, 0, 5, NULL), STATUS_OK);
		assert_sound(pool);
		assert_int_equal(kv_seq_blocks(pool, 0), 4);
		assert_int_equal(kv_free_states(pool), 8 - 2);
		if (run) break;
		kv_rollback(pool, 0);
		assert_sound(pool);
		assert_int_equal(kv_seq_blocks(pool, 0), 0);
		assert_int_equal(kv_free_states(pool), 8);
	}
	int32_t between = kv_state_write(pool, 0), last = kv_state_tail(pool, 0);
	assert_true(between > 0 && last > 0 && between != last);
	kv_commit(pool, 0, &a.text);
	assert_sound(pool);
	assert_int_equal(kv_length(pool, 0), 8);
	assert_int_equal(kv_state_read(pool, 0), between);
	assert_int_equal(kv_state_write(pool, 0), last);
	kv_commit(pool, 0, &a.text);
	assert_sound(pool);
	assert_int_equal(kv_length(pool, 0), 13);
	assert_int_equal(kv_state_read(pool, 0), last);
	assert_int_equal(kv_state_write(pool, 0), -1);
	assert_true(kv_is_snapshot(pool, between) && !kv_is_snapshot(pool, last));
	assert_int_equal(kv_match(pool, 1, &a.text, 9, &idle), 2);
	assert_int_equal(kv_adopt(pool, 1, &a.text, 9), 2);
	assert_int_equal(kv_state_read(pool, 1), between);
	kv_destroy(&pool);
}

static void test_snapshots_go_before_running_state_the_longest_unused_first(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(5, 4, true, 0);
	struct said a, b, c;
	int idle;
	say(&a, 0, 1);
	say(&b, 0, 2);
	say(&c, 0, 3);
	step(pool, 0, 4, &a, 0);
	kv_release(pool, 0);
	step(pool, 0, 4, &b, 0);
	kv_release(pool, 0);
	assert_int_equal(kv_adopt(pool, 1, &a.text, 1), 1); /* used: now b's is the older one */
	kv_release(pool, 1);
	assert_int_equal(kv_free_states(pool), 5);
	for (int s = 0; s < 4; s++) assert_int_equal(kv_reserve(pool, s, 1, NULL), STATUS_OK);
	assert_int_equal(kv_snapshot_evictions(pool), 1);
	assert_int_equal(kv_match(pool, 3, &b.text, 1, &idle), 0);
	assert_int_equal(kv_match(pool, 3, &a.text, 1, &idle), 0); /* 3 holds blocks of its own */
	for (int s = 0; s < 4; s++) kv_rollback(pool, s);
	assert_int_equal(kv_match(pool, 3, &a.text, 1, &idle), 1);
	assert_int_equal(kv_known(pool, 3, &b.text, 1), 1); /* its block is still there */
	assert_int_equal(kv_adopt(pool, 0, &a.text, 1), 1);
	for (int s = 0; s < 4; s++) assert_int_equal(kv_reserve(pool, s, 1, NULL), STATUS_OK);
	assert_int_equal(kv_snapshots(pool), 1); /* read by a sequence: it stays */
	kv_commit(pool, 1, NULL);
	assert_int_equal(kv_reserve(pool, 1, 1, &(struct error){0}), STATUS_NO_ROOM);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_a_rolling_snapshot_is_replaced_and_stays_at_the_end(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(6, 4, true, 0);
	struct said a, b;
	int idle;
	say(&a, 0, 1);
	say(&b, 0, 2);
	step(pool, 0, 4, &a, 0);
	for (int i = 0; i < 3; i++) step(pool, 0, 4, &a, 1);
	assert_int_equal(kv_snapshots(pool), 2);
	assert_int_equal(kv_match(pool, 1, &a.text, 9, &idle), 4);
	assert_int_equal(kv_match(pool, 1, &a.text, 3, &idle), 1);
	step(pool, 0, 1, &a, -1);
	for (int s = 1; s < 4; s++) assert_int_equal(kv_reserve(pool, s, 1, NULL), STATUS_OK);
	assert_int_equal(kv_match(pool, 0, &a.text, 9, &idle), 0);
	assert_int_equal(kv_reserve(pool, 0, 1, NULL), STATUS_OK); /* the rolling one goes, though it was let go last */
	assert_int_equal(kv_snapshots(pool), 1);
	for (int s = 0; s < 4; s++) kv_rollback(pool, s);
	assert_int_equal(kv_match(pool, 1, &a.text, 9, &idle), 1);
	step(pool, 0, 3, &a, 1); /* length 20 */
	kv_release(pool, 0); /* over: it stays, and is now the youngest */
	assert_int_equal(kv_match(pool, 1, &a.text, 9, &idle), 5);
	step(pool, 2, 4, &b, 0);
	for (int s = 0; s < 4; s++) assert_int_equal(kv_reserve(pool, s, 1, NULL), STATUS_OK);
	assert_int_equal(kv_snapshots(pool), 2); /* b's is read; of a's two the earlier one went */
	for (int s = 0; s < 4; s++) kv_rollback(pool, s);
	assert_int_equal(kv_match(pool, 1, &a.text, 4, &idle), 0);
	assert_int_equal(kv_match(pool, 1, &a.text, 9, &idle), 5);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_an_evicted_block_takes_its_snapshot_along(void **state)
{
	(void)state;
	struct kv_pool *pool = make_states(8, 4, true, 5);
	struct said a, b;
	say(&a, 0, 1);
	say(&b, 0, 2);
	step(pool, 0, 32, &a, 0);
	kv_release(pool, 0);
	step(pool, 0, 32, &b, 0); /* all 16 blocks are cached */
	assert_int_equal(kv_snapshots(pool), 2);
	step(pool, 1, 4, &b, -1); /* one of a's goes: its last, with the state */
	assert_int_equal(kv_evictions(pool), 1);
	assert_int_equal(kv_snapshots(pool), 1);
	assert_int_equal(kv_snapshot_evictions(pool), 0);
	assert_int_equal(kv_known(pool, 2, &a.text, 8), 7);
	kv_destroy(&pool);
}

/* Reserve, commit, roll back, adopt, snapshot, release at random on two pools that are shuffled differently: both stay sound and equal, and
 * a slot says what its text says. */
static void test_random_snapshots_stay_sound(void **state)
{
	(void)state;
	enum { SEQS = 4, STEPS = 30000, STATES = 2 * SEQS };
	struct kv_pool *pools[] = {make_states(STATES, SEQS, true, 0), make_states(STATES, SEQS, true, 9)};
	struct kv_group group = {pools, 2};
	static uint64_t holds[2][STATES + 1]; /* hash of the text up to where a slot's state is */
	struct said texts[3];
	const struct said *says[SEQS] = {0};
	int adopted = 0;
	for (int i = 0; i < 3; i++) say(&texts[i], 6 * i + 8, i + 1);
	for (uint64_t i = 0; i < STEPS; i++) {
		int seq = (int)(rng_u64(4, 0, i) % SEQS), tokens = 1 + (int)(rng_u64(4, 1, i) % 9), what = (int)(rng_u64(4, 2, i) % 16), idle;
		struct error err = {0};
		if (!says[seq]) says[seq] = &texts[rng_u64(4, 3, i) % 3];
		const struct said *s = says[seq];
		int length = kv_length(pools[0], seq), room = LONGEST - length;
		if (what == 0 || !room) {
			kv_group_release(&group, seq);
			says[seq] = NULL;
		} else if (what < 4 && length % SIZE == 0) {
			int found = kv_group_match(&group, seq, &s->text, LONGEST / SIZE, &idle);
			if (kv_group_adopt(&group, seq, &s->text, found, &err) != STATUS_OK) fail_msg("%s", err.text);
			adopted += found > 0;
		} else {
			bool roll = what == 15, fits = true;
			for (int r = 0; r < 2; r++) fits &= kv_reserve(pools[r], seq, tokens < room ? tokens : room, &(struct error){0}) == STATUS_OK;
			for (int r = 0; r < 2 && fits && !roll; r++)
				holds[r][kv_state_write(pools[r], seq)] = kv_hash(1, s->tokens, length + (tokens < room ? tokens : room));
			if (fits && !roll) {
				kv_group_commit(&group, seq, &s->text);
				if (what < 12) kv_group_snapshot(&group, seq, what % 2);
			} else kv_group_rollback(&group, seq);
		}
		if (kv_group_check(&group, SEQS, &err) != STATUS_OK) fail_msg("step %d: %s", (int)i, err.text);
		for (int r = 0; r < 2; r++)
			for (int q = 0; q < SEQS; q++)
				if (kv_length(pools[r], q)) assert_true(holds[r][kv_state_read(pools[r], q)] == kv_hash(1, says[q]->tokens, kv_length(pools[r], q)));
	}
	if (adopted < 500 || kv_snapshot_evictions(pools[0]) < 100 || kv_evictions(pools[0]) < 100)
		fail_msg("%d adoptions, %d snapshots and %d blocks evicted: too few to mean anything", adopted, (int)kv_snapshot_evictions(pools[0]), (int)kv_evictions(pools[0]));
	for (int r = 0; r < 2; r++) kv_destroy(&pools[r]);
}

/* --- sliding layers: windows of 6 tokens over blocks of 4 ------------------------------------------------------------------- */

static struct kv_pool *make_windows(int windows)
{
	struct kv_options options = {.blocks = 24, .block_tokens = SIZE, .max_seqs = 4, .max_blocks = LONGEST / SIZE, .shuffle = 3, .prefix_cache = true,
	                             .windows = windows, .window_tokens = 6};
	struct error err = {0};
	struct kv_pool *pool;
	if (kv_create(&pool, &options, &err) != STATUS_OK) fail_msg("%s", err.text);
	return pool;
}

static void test_blocks_behind_the_window_are_given_back(void **state)
{
	(void)state;
	struct kv_pool *pool = make_windows(8);
	struct said a;
	say(&a, 0, 1);
	assert_int_equal(kv_reserve(pool, 0, 9, NULL), STATUS_OK);
	assert_int_equal(kv_free_windows(pool), 5);
	kv_rollback(pool, 0);
	assert_int_equal(kv_free_windows(pool), 8);
	assert_sound(pool);
	for (int length = 1; length <= 30; length++) {
		assert_int_equal(kv_reserve(pool, 0, 1, NULL), STATUS_OK);
		kv_commit(pool, 0, NULL); /* without a text nothing is kept */
		assert_sound(pool);
		int from = length - 5 > 0 ? (length - 5) / SIZE : 0; /* the next token sees itself and 5 before it */
		for (int i = 0; i < kv_seq_blocks(pool, 0); i++) assert_int_equal(kv_window_block(pool, 0, i) > 0, i >= from);
		assert_int_equal(kv_free_windows(pool), 8 - (kv_seq_blocks(pool, 0) - from));
	}
	assert_int_equal(kv_seq_blocks(pool, 0), 8); /* the other layers keep theirs */
	assert_int_equal(kv_reserve(pool, 1, 4 * 7, &(struct error){0}), STATUS_NO_ROOM); /* 6 are free */
	assert_int_equal(kv_seq_blocks(pool, 1), 0);
	kv_release(pool, 0);
	assert_int_equal(kv_free_windows(pool), 8);
	assert_sound(pool);
	kv_destroy(&pool);
}

static void test_a_hit_ends_where_its_window_is_still_there(void **state)
{
	(void)state;
	struct kv_pool *pool = make_windows(8);
	struct said a, b;
	int idle;
	say(&a, 0, 1);
	say(&b, 0, 2);
	compute(pool, 0, 24, &a); /* 6 blocks: the window reaches back into the fifth */
	assert_int_equal(kv_free_windows(pool), 6);
	assert_int_equal(kv_match(pool, 1, &a.text, 6, &idle), 6);
	assert_int_equal(kv_match(pool, 1, &a.text, 3, &idle), 3); /* nobody wants them, but they are there */
	compute(pool, 1, 24, &b); /* takes the two empty ones, and those of a's first four blocks */
	assert_int_equal(kv_match(pool, 2, &a.text, 3, &idle), 0);
	assert_int_equal(kv_match(pool, 2, &a.text, 6, &idle), 6);
	assert_int_equal(kv_known(pool, 2, &a.text, 6), 6);
	assert_int_equal(kv_adopt(pool, 2, &a.text, 5), 0); /* the fourth block's is gone, which the window before 20 reaches */
	assert_int_equal(kv_adopt(pool, 2, &a.text, 6), 6);
	assert_int_equal(kv_window_block(pool, 2, 3), 0);
	assert_int_equal(kv_window_block(pool, 2, 5), kv_window_block(pool, 0, 5));
	assert_int_equal(kv_window_wants(pool, kv_table(pool, 0)[5]), 2);
	assert_sound(pool);
	compute(pool, 3, 12, &a); /* a twin brings back what was given up */
	assert_int_equal(kv_table(pool, 3)[2], kv_table(pool, 0)[2]);
	kv_release(pool, 3);
	assert_int_equal(kv_match(pool, 3, &a.text, 3, &idle), 3);
	kv_reset(pool);
	assert_int_equal(kv_free_windows(pool), 8);
	assert_sound(pool);
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
		cmocka_unit_test(test_state_flips_on_commit_and_stays_on_rollback),
		cmocka_unit_test(test_state_slots_are_permuted_and_each_is_given_once),
		cmocka_unit_test(test_full_blocks_are_found_and_shared),
		cmocka_unit_test(test_a_twin_takes_the_place_of_an_own_block),
		cmocka_unit_test(test_the_block_let_go_longest_ago_is_evicted_and_followers_first),
		cmocka_unit_test(test_a_hash_collision_is_no_hit),
		cmocka_unit_test(test_reserved_room_is_not_found_and_rolls_back),
		cmocka_unit_test(test_ranks_whose_caches_differ_are_noticed),
		cmocka_unit_test(test_a_hit_ends_at_the_deepest_snapshot),
		cmocka_unit_test(test_a_twin_lends_its_block_and_takes_the_snapshot),
		cmocka_unit_test(test_the_state_between_two_reservations_is_kept),
		cmocka_unit_test(test_snapshots_go_before_running_state_the_longest_unused_first),
		cmocka_unit_test(test_a_rolling_snapshot_is_replaced_and_stays_at_the_end),
		cmocka_unit_test(test_an_evicted_block_takes_its_snapshot_along),
		cmocka_unit_test(test_random_snapshots_stay_sound),
		cmocka_unit_test(test_blocks_behind_the_window_are_given_back),
		cmocka_unit_test(test_a_hit_ends_where_its_window_is_still_there),
		cmocka_unit_test(test_bad_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
