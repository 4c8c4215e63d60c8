#include "engine/kv_group.h"

int kv_group_match(const struct kv_group *group, int seq, const struct kv_text *text, int limit, int *idle)
{
	*idle = 0;
	return group->count ? kv_match(group->pools[0], seq, text, limit, idle) : 0;
}

enum status kv_group_adopt(const struct kv_group *group, int seq, const struct kv_text *text, int blocks, struct error *err)
{
	for (int r = 0; r < group->count; r++) {
		int got = kv_adopt(group->pools[r], seq, text, blocks);
		if (got != blocks)
			return FAIL(err, MISMATCH, "rank %d: its KV cache has %d blocks of a prefix, rank 0 has %d; rebuild the group", r, got, blocks);
	}
	return STATUS_OK;
}

void kv_group_commit(const struct kv_group *group, int seq, const struct kv_text *text)
{
	for (int r = 0; r < group->count; r++) kv_commit(group->pools[r], seq, text);
}

void kv_group_snapshot(const struct kv_group *group, int seq, bool rolling)
{
	for (int r = 0; r < group->count; r++) kv_snapshot(group->pools[r], seq, rolling);
}

int kv_group_known(const struct kv_group *group, int seq, const struct kv_text *text, int limit)
{
	return group->count ? kv_known(group->pools[0], seq, text, limit) : 0;
}

void kv_group_rollback(const struct kv_group *group, int seq)
{
	for (int r = 0; r < group->count; r++) kv_rollback(group->pools[r], seq);
}

void kv_group_release(const struct kv_group *group, int seq)
{
	for (int r = 0; r < group->count; r++) kv_release(group->pools[r], seq);
}

void kv_group_reset(const struct kv_group *group)
{
	for (int r = 0; r < group->count; r++) kv_reset(group->pools[r]);
}

int kv_group_free_blocks(const struct kv_group *group)
{
	return group->count ? kv_free_blocks(group->pools[0]) : 0;
}

int kv_group_seq_blocks(const struct kv_group *group, int seq)
{
	return group->count ? kv_seq_blocks(group->pools[0], seq) : 0;
}

enum status kv_group_check(const struct kv_group *group, int max_seqs, struct error *err)
{
	for (int r = 0; r < group->count; r++) {
		const struct kv_pool *pool = group->pools[r], *first = group->pools[0];
		TRY(kv_check(pool, err));
		if (kv_free_blocks(pool) != kv_free_blocks(first) || kv_idle_blocks(pool) != kv_idle_blocks(first))
			return FAIL(err, BAD_INPUT, "kv check: rank %d has %d free and %d idle blocks, rank 0 has %d and %d", r, kv_free_blocks(pool),
			            kv_idle_blocks(pool), kv_free_blocks(first), kv_idle_blocks(first));
		if (kv_free_states(pool) != kv_free_states(first) || kv_snapshots(pool) != kv_snapshots(first))
			return FAIL(err, BAD_INPUT, "kv check: rank %d has %d free state slots and %d snapshots, rank 0 has %d and %d", r, kv_free_states(pool),
			            kv_snapshots(pool), kv_free_states(first), kv_snapshots(first));
		if (kv_free_windows(pool) != kv_free_windows(first))
			return FAIL(err, BAD_INPUT, "kv check: rank %d has %d free window blocks, rank 0 has %d", r, kv_free_windows(pool), kv_free_windows(first));
		for (int seq = 0; seq < max_seqs; seq++)
			if (kv_length(pool, seq) != kv_length(first, seq) || kv_seq_blocks(pool, seq) != kv_seq_blocks(first, seq))
				return FAIL(err, BAD_INPUT, "kv check: sequence %d has %d tokens on rank %d, %d on rank 0", seq, kv_length(pool, seq), r,
				            kv_length(first, seq));
	}
	return STATUS_OK;
}
