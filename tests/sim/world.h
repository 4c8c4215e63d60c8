/* world.h: the simulated group: two or three pools that are shuffled differently, and for each a memory that stands for its KV cache. The
 * value at a position is computed from the value before it, as the block table gives it, and the token: so what a sequence reads is
 * what its blocks hold, and a wrong, stale or overwritten block changes the tokens. With states, a second memory stands for the state slots:
 * the value of the committed length, which a step reads in one slot and writes, further on, in another.
 */
#ifndef TANDEM_TESTS_SIM_WORLD_H
#define TANDEM_TESTS_SIM_WORLD_H

#include "engine/kv_group.h"
#include "engine/scheduler.h"
#include "engine/step.h"

#define WORLD_RANKS 3

struct world_options {
	int ranks, blocks, block_tokens, max_seqs, max_blocks, states;
	int windows, window_tokens; /* as in kv_options */
	bool prefix_cache;
	uint64_t seed;
};

struct world {
	struct world_options options;
	struct kv_pool *pools[WORLD_RANKS];
	uint64_t *memory[WORLD_RANKS]; /* [(blocks + 1) * block_tokens] */
	uint64_t *states[WORLD_RANKS]; /* [states + 1] */
	int32_t *windows[WORLD_RANKS]; /* [(windows + 1) * block_tokens] the tokens themselves: what sliding layers would see */
	struct kv_group kv;
};

enum status world_create(struct world *out, const struct world_options *options, struct error *err) NODISCARD;
void world_destroy(struct world *world);

/* Reserves and computes the plan on every rank. If `fail_rank` >= 0 that rank gives up after `fail_after` sequences, ABORTED; the ranks
 * before it have run whole, those after it not at all. BAD_INPUT: an invariant does not hold. */
enum status world_run(struct world *world, const struct step_plan *plan, int fail_rank, int fail_after, struct error *err) NODISCARD;
/* Commits on every rank, or rolls back. */
void world_settle(struct world *world, const struct step_plan *plan, bool commit);
/* That the state of a committed sequence is still that of its text, on every rank. BAD_INPUT: it is not. */
enum status world_check_state(const struct world *world, const struct sequence *sequence, struct error *err) NODISCARD;
/* The value at the last position of plan sequence `seq`. */
uint64_t world_value(const struct world *world, const struct step_plan *plan, int seq);

/* What a value must be: of the text so far and the next token. The first: of 0. */
static inline uint64_t world_next_value(uint64_t before, int32_t token)
{
	return rng_mix(before * 3 + 0x1234567u + (uint64_t)token);
}
/* The token that a request with this seed draws from a value. */
static inline int32_t world_draw(uint64_t value, uint64_t seed, int vocab)
{
	return (int32_t)(rng_u64(seed, 9, value) % (uint64_t)vocab);
}

#endif
