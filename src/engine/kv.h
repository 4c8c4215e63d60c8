/* kv.h: which blocks of a rank's KV cache belong to which sequence. Pure host bookkeeping: no device memory is touched here.
 *
 * Two-phase (contract E2): a step first reserves room for its new tokens on every rank, and only when all ranks have run it is the
 * length committed; otherwise rolled back, blocks included. Logical lengths are equal on all ranks, block numbers never are taken to
 * be: each rank has its own pool, and tests shuffle them differently. Block 0 is the sink of padding rows and is never given away.
 *
 * Prefix cache: a block that is committed full can be found again by what it holds and is shared by counting, never copied and never
 * written again. A block is empty, held (refs > 0, by so many sequences), or idle: cached and held by nobody. Empty blocks are handed
 * out first, then the idle block that was let go longest ago. The hash chain only finds: a hit must have the same tokens and follow the
 * same block, hence (by induction from the first) the same text; a collision can cost a hit but never give wrong KV. Whoever holds a
 * cached block holds the one before it, and gives it back later, so no cached block outlives the one it follows (docs/SCHEDULER.md).
 *
 * Models with recurrent state (docs/HYBRID.md) have slots for it beside the blocks (kv_states.h). A reservation takes a slot for the step to
 * write; commit makes it the one of the committed length and lets the one before go, rollback gives it back: what was committed is never
 * written again. A cached block may keep the state at its end, a snapshot, and a prefix hit ends at one. An evicted block takes its along.
 *
 * Sliding layers see the last window_tokens only, and have a cache of their own (kv_windows.h): a block has one of its blocks while a window reaches
 * it. A prefix hit ends where the window before it is still there.
 *
 * Pools that see the same operations in the same order hold the same logical contents, whatever their shuffle and salt.
 * Owner: the rank worker during a step, the coordinator between steps; never both.
 */
#ifndef TANDEM_ENGINE_KV_H
#define TANDEM_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rng.h"
#include "base/status.h"

struct kv_pool;

struct kv_options {
	int blocks;        /* besides the sink */
	int block_tokens;
	int max_seqs;
	int max_blocks;    /* per sequence */
	uint64_t shuffle;  /* 0: ascending hand-out; else a permutation by this seed */
	bool prefix_cache;
	int states;        /* slots for recurrent state, besides the sink 0; 0: the model has none. A sequence needs two during a step */
	int windows;       /* blocks for sliding layers, besides the sink 0; 0: they have none of their own */
	int window_tokens; /* that such a layer sees, itself included */
};

/* What a sequence says: hashes[i] = kv_hash over block i's tokens, chained on hashes[i - 1] (the first: on a salt). */
struct kv_text {
	const int32_t *tokens;
	const uint64_t *hashes;
};
static inline uint64_t kv_hash(uint64_t before, const int32_t *tokens, int count)
{
	for (int i = 0; i < count; i++) before = rng_mix(before + 0x9e3779b97f4a7c15u + (uint32_t)tokens[i]);
	return before;
}

enum status kv_create(struct kv_pool **out, const struct kv_options *options, struct error *err) NODISCARD;
void kv_destroy(struct kv_pool **pool);

/* Room for `tokens` more of sequence `seq` (0..max_seqs-1). NO_ROOM leaves the sequence as it was. One open reservation a sequence; of models with state a
 * second one behind it, whose rows the same step computes. */
enum status kv_reserve(struct kv_pool *pool, int seq, int tokens, struct error *err) NODISCARD;
/* Length grows by the reservation; without one: nothing. With a text, blocks that are full now become findable, and those that exist
 * already are taken in place of the sequence's own; a sequence gives its text always or never (NULL). Where a second reservation is open it is the next one to
 * commit, and the state between both becomes a snapshot, as kv_snapshot makes one that does not roll. */
void kv_commit(struct kv_pool *pool, int seq, const struct kv_text *text);
void kv_rollback(struct kv_pool *pool, int seq); /* blocks of the reservations go back; without one: nothing */
void kv_release(struct kv_pool *pool, int seq);  /* the sequence is over: all its blocks go back, cached ones stay findable */
void kv_reset(struct kv_pool *pool);             /* all sequences are over and nothing is cached */

/* The state of the committed length stays with the block that ends there, and whoever adopts up to there gets it. Nothing happens where
 * the length is not whole blocks or the block is not cached. rolling: until the sequence makes its next snapshot; if the sequence is over
 * before, it stays. Without a reservation. */
void kv_snapshot(struct kv_pool *pool, int seq, bool rolling);

/* How many cached blocks follow what `seq` holds and say blocks[..limit) of the text, where the model has state only those up to the last one
 * that has a snapshot, where it has sliding layers up to the last one that has its window; *idle: how many of them nobody holds. The sequence's length must be whole blocks, without a reservation. */
int kv_match(const struct kv_pool *pool, int seq, const struct kv_text *text, int limit, int *idle);
/* The same, with a snapshot behind them or not: as far as others have been with this text. */
int kv_known(const struct kv_pool *pool, int seq, const struct kv_text *text, int limit);
/* Takes up to `blocks` of them, with the state behind them, committed; returns how many there were. */
int kv_adopt(struct kv_pool *pool, int seq, const struct kv_text *text, int blocks);

int kv_length(const struct kv_pool *pool, int seq);   /* committed tokens */
int kv_free_blocks(const struct kv_pool *pool);       /* that could be handed out now: empty or idle */
int kv_idle_blocks(const struct kv_pool *pool);       /* cached, held by nobody */
uint64_t kv_evictions(const struct kv_pool *pool);
int kv_seq_blocks(const struct kv_pool *pool, int seq);          /* blocks held, reservation included */
int kv_refs(const struct kv_pool *pool, int32_t block);
bool kv_cached(const struct kv_pool *pool, int32_t block);
const int32_t *kv_table(const struct kv_pool *pool, int seq);    /* [max_blocks], borrowed */
/* Device slot (block * block_tokens + offset) of position `position` of `seq`, which must be covered by its blocks. */
int32_t kv_slot(const struct kv_pool *pool, int seq, int position);
/* State slot of the committed length, which a step reads; -1: none, the state of no token. */
int32_t kv_state_read(const struct kv_pool *pool, int seq);
/* State slot that the open reservation writes; -1: no reservation, or a model without state. */
int32_t kv_state_write(const struct kv_pool *pool, int seq);
/* The same of the second reservation, whose step reads what the first one writes. */
int32_t kv_state_tail(const struct kv_pool *pool, int seq);
int kv_free_states(const struct kv_pool *pool); /* slots that could be handed out now: empty, or snapshots that no sequence holds */
int kv_snapshots(const struct kv_pool *pool);
int kv_free_windows(const struct kv_pool *pool); /* window blocks that could be handed out now */
/* Window block of the sequence's block number `block`, which it holds; 0: behind its window. */
int32_t kv_window_block(const struct kv_pool *pool, int seq, int block);
int kv_window_wants(const struct kv_pool *pool, int32_t block); /* sequences whose window reaches the block */
uint64_t kv_snapshot_evictions(const struct kv_pool *pool);
bool kv_is_snapshot(const struct kv_pool *pool, int32_t state);
int kv_state_refs(const struct kv_pool *pool, int32_t state); /* sequences that hold it */

/* Integrity: every block is empty, idle, or held as often as tables name it; lengths fit; the cache is a tree whose index finds each
 * block once; the sink is nobody's. BAD_INPUT with the first fault. For tests. */
enum status kv_check(const struct kv_pool *pool, struct error *err) NODISCARD;

#endif
