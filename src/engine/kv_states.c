#include "engine/kv_states.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"

void kv_fill_stack(int32_t *stack, int n, uint64_t shuffle)
{
	for (int i = 0; i < n; i++) stack[i] = n - i; /* 1 on top; 0 is the sink */
	for (int i = n - 1; shuffle && i > 0; i--) {
		int j = (int)(rng_u64(shuffle, 0, (uint64_t)i) % (uint64_t)(i + 1));
		int32_t swap = stack[i];
		stack[i] = stack[j];
		stack[j] = swap;
	}
}

enum status kv_states_init(struct kv_states *out, int count, uint64_t shuffle, struct error *err)
{
	*out = (struct kv_states){.count = count, .shuffle = shuffle};
	out->slots = mem_zalloc((size_t)count + 1, sizeof *out->slots, "state slots", err);
	out->free_list = mem_zalloc((size_t)count, sizeof *out->free_list, "state slots", err);
	if (!out->slots || !out->free_list) {
		kv_states_fini(out);
		return STATUS_NO_MEMORY;
	}
	kv_states_reset(out);
	return STATUS_OK;
}

void kv_states_fini(struct kv_states *states)
{
	free(states->slots);
	free(states->free_list);
	*states = (struct kv_states){0};
}

void kv_states_reset(struct kv_states *states)
{
	memset(states->slots, 0, ((size_t)states->count + 1) * sizeof *states->slots);
	kv_fill_stack(states->free_list, states->count, states->shuffle);
	states->free_count = states->count;
	states->idle_count = states->snapshots = 0;
}

/* At the new end of the ring, or, if it rolls, at the old one. */
static void link_idle(struct kv_states *states, int32_t slot)
{
	struct kv_state *s = &states->slots[slot];
	s->older = s->rolling ? 0 : states->slots[0].older;
	s->newer = s->rolling ? states->slots[0].newer : 0;
	states->slots[s->older].newer = slot;
	states->slots[s->newer].older = slot;
	states->idle_count++;
}

static void unlink_idle(struct kv_states *states, int32_t slot)
{
	const struct kv_state *s = &states->slots[slot];
	states->slots[s->older].newer = s->newer;
	states->slots[s->newer].older = s->older;
	states->idle_count--;
}

int32_t kv_states_take(struct kv_states *states, int32_t *block)
{
	*block = 0;
	if (!states->free_count) {
		int32_t oldest = states->slots[0].newer;
		assert(oldest);
		*block = states->slots[oldest].block;
		kv_states_forget(states, oldest);
		states->evictions++;
	}
	int32_t slot = states->free_list[--states->free_count];
	states->slots[slot].refs = 1;
	return slot;
}

void kv_states_hold(struct kv_states *states, int32_t slot)
{
	if (slot > 0 && states->slots[slot].refs++ == 0) unlink_idle(states, slot);
}

void kv_states_let_go(struct kv_states *states, int32_t slot)
{
	if (slot <= 0 || --states->slots[slot].refs > 0) return;
	if (states->slots[slot].block) link_idle(states, slot);
	else states->free_list[states->free_count++] = slot;
}

void kv_states_settle(struct kv_states *states, int32_t slot)
{
	struct kv_state *s = &states->slots[slot];
	assert(s->block);
	if (!s->rolling) return;
	if (!s->refs) unlink_idle(states, slot);
	s->rolling = false;
	if (!s->refs) link_idle(states, slot);
}

void kv_states_keep(struct kv_states *states, int32_t slot, int32_t block, bool rolling)
{
	assert(states->slots[slot].refs > 0 && !states->slots[slot].block);
	states->slots[slot].block = block;
	states->slots[slot].rolling = rolling;
	states->snapshots++;
}

void kv_states_forget(struct kv_states *states, int32_t slot)
{
	struct kv_state *s = &states->slots[slot];
	assert(s->block);
	s->block = 0;
	s->rolling = false;
	states->snapshots--;
	if (s->refs) return;
	unlink_idle(states, slot);
	states->free_list[states->free_count++] = slot;
}

enum status kv_states_check(const struct kv_states *states, int *held, struct error *err)
{
	int n = states->count, idle = 0, used = 0, snapshots = 0;
	if (held[0] || states->slots[0].refs || states->slots[0].block) return FAIL(err, BAD_INPUT, "kv check: the sink's state slot was given away");
	for (int32_t i = 1; i <= n; i++) {
		const struct kv_state *s = &states->slots[i];
		if (held[i] != s->refs) return FAIL(err, BAD_INPUT, "kv check: state slot %d is held %d times and counts %d", i, held[i], s->refs);
		if (s->rolling && !s->block) return FAIL(err, BAD_INPUT, "kv check: state slot %d rolls and is no snapshot", i);
		snapshots += s->block > 0;
		used += s->refs > 0;
	}
	for (int32_t i = states->slots[0].newer; i && idle <= n; i = states->slots[i].newer, idle++) {
		if (states->slots[i].refs || !states->slots[i].block || held[i]++)
			return FAIL(err, BAD_INPUT, "kv check: state slot %d (refs %d, block %d) is in the idle ring wrongly", i, states->slots[i].refs,
			            states->slots[i].block);
	}
	for (int i = 0; i < states->free_count; i++)
		if (states->slots[states->free_list[i]].block || held[states->free_list[i]]++)
			return FAIL(err, BAD_INPUT, "kv check: state slot %d is in the free list wrongly", states->free_list[i]);
	if (idle != states->idle_count || snapshots != states->snapshots || used + idle + states->free_count != n)
		return FAIL(err, BAD_INPUT, "kv check: %d held + %d idle (counted %d) + %d empty are not %d state slots; %d snapshots (counted %d)", used, idle,
		            states->idle_count, states->free_count, n, snapshots, states->snapshots);
	return STATUS_OK;
}
