/* kv_group.h: the pools of all ranks as one. Each operation is done on every pool, in the same order, so that all hold the same logical
 * contents; questions are answered by the first. Only numbers of tokens and blocks pass between the pools, never a block number.
 *
 * A group of no pools has no room and every operation on it does nothing (a rank that is stuck in its device may still touch its pool).
 * Owner: the coordinator, between steps.
 */
#ifndef TANDEM_ENGINE_KV_GROUP_H
#define TANDEM_ENGINE_KV_GROUP_H

#include "engine/kv.h"

struct kv_group {
	struct kv_pool **pools; /* [count], by rank; borrowed */
	int count;
};

int kv_group_match(const struct kv_group *group, int seq, const struct kv_text *text, int limit, int *idle);
/* MISMATCH, naming the rank, if one has fewer than `blocks` to give: the ranks' caches differ, the group cannot go on. */
enum status kv_group_adopt(const struct kv_group *group, int seq, const struct kv_text *text, int blocks, struct error *err) NODISCARD;
void kv_group_commit(const struct kv_group *group, int seq, const struct kv_text *text);
void kv_group_snapshot(const struct kv_group *group, int seq, bool rolling);
int kv_group_known(const struct kv_group *group, int seq, const struct kv_text *text, int limit);
void kv_group_rollback(const struct kv_group *group, int seq);
void kv_group_release(const struct kv_group *group, int seq);
void kv_group_reset(const struct kv_group *group);

int kv_group_free_blocks(const struct kv_group *group);
int kv_group_seq_blocks(const struct kv_group *group, int seq);

/* kv_check of every pool, and that all say the same about every sequence and about their blocks as a whole. After a failed step the
 * latter need not hold until kv_group_reset: a rank that got further has evicted more. For tests. */
enum status kv_group_check(const struct kv_group *group, int max_seqs, struct error *err) NODISCARD;

#endif
