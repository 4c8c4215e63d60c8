/* kv.h: which blocks of a rank's KV cache belong to which sequence. Pure host bookkeeping: no device memory is touched here.
 *
 * Two-phase (contract E2): a step first reserves room for its new tokens on every rank, and only when all ranks have run it is the
 * length committed; otherwise rolled back, blocks included. Logical lengths are equal on all ranks, block numbers never are taken to
 * be: each rank has its own pool, and tests shuffle them differently. Block 0 is the sink of padding rows and is never given away.
 * Owner: the rank worker during a step, the coordinator between steps; never both.
 */
#ifndef TANDEM_ENGINE_KV_H
#define TANDEM_ENGINE_KV_H

#include <stdint.h>

#include "base/status.h"

struct kv_pool;

struct kv_options {
	int blocks;        /* besides the sink */
	int block_tokens;
	int max_seqs;
	int max_blocks;    /* per sequence */
	uint64_t shuffle;  /* 0: ascending hand-out; else a permutation by this seed */
};

enum status kv_create(struct kv_pool **out, const struct kv_options *options, struct error *err) NODISCARD;
void kv_destroy(struct kv_pool **pool);

/* Room for `tokens` more of sequence `seq` (0..max_seqs-1). NO_ROOM leaves the sequence as it was. One open reservation a sequence. */
enum status kv_reserve(struct kv_pool *pool, int seq, int tokens, struct error *err) NODISCARD;
void kv_commit(struct kv_pool *pool, int seq);   /* length grows by the reservation; without one: nothing */
void kv_rollback(struct kv_pool *pool, int seq); /* blocks of the reservation go back; without one: nothing */
void kv_release(struct kv_pool *pool, int seq);  /* the sequence is over: all its blocks go back */
void kv_release_all(struct kv_pool *pool);

int kv_length(const struct kv_pool *pool, int seq);   /* committed tokens */
int kv_free_blocks(const struct kv_pool *pool);
int kv_seq_blocks(const struct kv_pool *pool, int seq);          /* blocks held, reservation included */
const int32_t *kv_table(const struct kv_pool *pool, int seq);    /* [max_blocks], borrowed */
/* Device slot (block * block_tokens + offset) of position `position` of `seq`, which must be covered by its blocks. */
int32_t kv_slot(const struct kv_pool *pool, int seq, int position);

/* Integrity: every block is free or held exactly once, lengths fit, the sink is nobody's. BAD_INPUT with the first fault. For tests. */
enum status kv_check(const struct kv_pool *pool, struct error *err) NODISCARD;

#endif
