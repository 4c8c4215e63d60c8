#include "sim/world.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum status world_create(struct world *out, const struct world_options *o, struct error *err)
{
	enum status st;
	*out = (struct world){.options = *o};
	for (int r = 0; r < o->ranks; r++) {
		struct kv_options kv = {.blocks = o->blocks, .block_tokens = o->block_tokens, .max_seqs = o->max_seqs, .max_blocks = o->max_blocks,
		                        .shuffle = r ? rng_u64(o->seed, 7, (uint64_t)r) | 1 : 0, .prefix_cache = o->prefix_cache,
		                        .states = o->states, .windows = o->windows, .window_tokens = o->window_tokens};
		TRY_GOTO(kv_create(&out->pools[r], &kv, err), fail);
		size_t slots = ((size_t)o->blocks + 1) * (size_t)o->block_tokens;
		out->memory[r] = mem_zalloc(slots, sizeof **out->memory, "simulated memory", err);
		out->states[r] = mem_zalloc((size_t)o->states + 1, sizeof **out->states, "simulated state", err);
		out->windows[r] = mem_zalloc(((size_t)o->windows + 1) * (size_t)o->block_tokens, sizeof **out->windows, "simulated windows", err);
		if (!out->memory[r] || !out->states[r] || !out->windows[r]) {
			st = STATUS_NO_MEMORY;
			goto fail;
		}
	}
	out->kv = (struct kv_group){out->pools, o->ranks};
	return STATUS_OK;
fail:
	world_destroy(out);
	return st;
}

void world_destroy(struct world *world)
{
	for (int r = 0; r < WORLD_RANKS; r++) {
		kv_destroy(&world->pools[r]);
		free(world->memory[r]);
		free(world->states[r]);
		free(world->windows[r]);
		world->windows[r] = NULL;
		world->memory[r] = world->states[r] = NULL;
	}
}

/* The value that the sequence's text has at `length`. */
static uint64_t value_of(const struct sequence *q, int length)
{
	uint64_t value = 0;
	for (int p = 0; p < length; p++) value = world_next_value(value, q->tokens[p]);
	return value;
}

/* The recurrent part: from the state of the committed length to the one of the step's end, in another slot. */
static enum status compute_state(struct world *w, int rank, const struct sequence *q, int slot, int begin, int end, bool tail, struct error *err)
{
	const struct kv_pool *pool = w->pools[rank];
	int32_t read = tail ? kv_state_write(pool, slot) : kv_state_read(pool, slot), write = tail ? kv_state_tail(pool, slot) : kv_state_write(pool, slot);
	uint64_t value = read < 0 ? 0 : w->states[rank][read];
	if ((read < 0) != (begin == 0) || write < 1 || write == read)
		return FAIL(err, BAD_INPUT, "request %llu reads state slot %d and writes %d at position %d of rank %d", (unsigned long long)q->id, read,
		            write, begin, rank);
	if (kv_state_refs(pool, write) != 1 || kv_is_snapshot(pool, write))
		return FAIL(err, BAD_INPUT, "request %llu writes state slot %d of rank %d, which is shared", (unsigned long long)q->id, write, rank);
	if (value != value_of(q, begin))
		return FAIL(err, BAD_INPUT, "request %llu goes on from another text's state at position %d on rank %d", (unsigned long long)q->id, begin, rank);
	for (int p = begin; p < end; p++) value = world_next_value(value, q->tokens[p]);
	w->states[rank][write] = value;
	return STATUS_OK;
}

/* The sliding layers: each row finds the tokens of its window, and writes its own. */
static enum status compute_window(struct world *w, int rank, const struct sequence *q, int slot, int begin, int end, struct error *err)
{
	const struct kv_pool *pool = w->pools[rank];
	int size = w->options.block_tokens, from = begin + 1 - w->options.window_tokens;
	for (int p = from > 0 ? from : 0; p < end; p++) {
		int32_t block = kv_window_block(pool, slot, p / size), *at = &w->windows[rank][block * size + p % size];
		if (block < 1 || block > w->options.windows || (p >= begin && kv_window_wants(pool, kv_table(pool, slot)[p / size]) != 1))
			return FAIL(err, BAD_INPUT, "request %llu has window block %d at position %d of rank %d", (unsigned long long)q->id, block, p, rank);
		if (p >= begin) *at = q->tokens[p];
		if (*at != q->tokens[p])
			return FAIL(err, BAD_INPUT, "request %llu finds another text's window at position %d on rank %d", (unsigned long long)q->id, p, rank);
	}
	return STATUS_OK;
}

/* One sequence's rows on one rank. */
static enum status compute(struct world *w, int rank, const struct step_plan *plan, int seq, struct error *err)
{
	const struct kv_pool *pool = w->pools[rank];
	const struct sequence *q = plan->sequence[seq];
	int slot = plan->slot[seq], begin = plan->position[plan->row_start[seq]], end = plan->kv_len[seq];
	uint64_t *memory = w->memory[rank], value = 0, want = 0;
	for (int p = 0; p < end; p++) {
		int32_t at = kv_slot(pool, slot, p), block = at / w->options.block_tokens;
		if (p >= begin) {
			if (kv_refs(pool, block) != 1 || kv_cached(pool, block))
				return FAIL(err, BAD_INPUT, "request %llu writes block %d of rank %d, which is shared", (unsigned long long)q->id, block, rank);
			memory[at] = world_next_value(value, q->tokens[p]);
		}
		value = memory[at];
		want = world_next_value(want, q->tokens[p]);
		if (value != want)
			return FAIL(err, BAD_INPUT, "request %llu reads another text's KV at position %d on rank %d", (unsigned long long)q->id, p, rank);
	}
	if (w->options.windows) TRY(compute_window(w, rank, q, slot, begin, end, err));
	return w->options.states ? compute_state(w, rank, q, slot, begin, end, seq >= plan->seqs - plan->tails, err) : STATUS_OK;
}

enum status world_run(struct world *w, const struct step_plan *plan, int fail_rank, int fail_after, struct error *err)
{
	for (int r = 0; r < w->options.ranks; r++) {
		for (int s = 0; s < plan->seqs; s++) {
			if (r == fail_rank && s >= fail_after) return FAIL(err, ABORTED, "rank %d fails as planned", r);
			TRY(kv_reserve(w->pools[r], plan->slot[s], plan->row_start[s + 1] - plan->row_start[s], err));
		}
		if (r == fail_rank) return FAIL(err, ABORTED, "rank %d fails as planned", r);
		for (int s = 0; s < plan->seqs; s++) TRY(compute(w, r, plan, s, err));
	}
	return STATUS_OK;
}

void world_settle(struct world *w, const struct step_plan *plan, bool commit)
{
	for (int s = 0; s < plan->seqs; s++) {
		struct kv_text text;
		if (commit) kv_group_commit(&w->kv, plan->slot[s], sequence_text(plan->sequence[s], &text));
		else kv_group_rollback(&w->kv, plan->slot[s]);
	}
}

enum status world_check_state(const struct world *w, const struct sequence *q, struct error *err)
{
	for (int r = 0; r < w->options.ranks && w->options.states && q->slot >= 0; r++) {
		int length = kv_length(w->pools[r], q->slot);
		int32_t read = kv_state_read(w->pools[r], q->slot);
		if ((read < 0) != (length == 0) || (length && w->states[r][read] != value_of(q, length)))
			return FAIL(err, BAD_INPUT, "request %llu has lost the state of its %d tokens on rank %d", (unsigned long long)q->id, length, r);
	}
	return STATUS_OK;
}

uint64_t world_value(const struct world *w, const struct step_plan *plan, int seq)
{
	const struct kv_pool *pool = w->pools[0];
	if (w->options.states) return w->states[0][kv_state_read(pool, plan->slot[seq])];
	return w->memory[0][kv_slot(pool, plan->slot[seq], plan->kv_len[seq] - 1)];
}
