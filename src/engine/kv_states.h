/* kv_states.h: the slots that hold recurrent state, as a part of a rank's KV pool (kv.h). Bookkeeping only: what a slot holds is the device's.
 *
 * A slot is empty, held by sequences (refs > 0), or idle: a snapshot that belongs to a cached block and that no sequence holds. A snapshot may be held
 * too; then it stays when it is let go. Empty slots are handed out first, then the idle one that was let go longest ago. A snapshot that rolls
 * is its sequence's last for now, to be replaced by the next one: those go before all others. Slot 0 is the sink of padding rows and is never
 * given away.
 * Owner: the pool's.
 */
#ifndef TANDEM_ENGINE_KV_STATES_H
#define TANDEM_ENGINE_KV_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct kv_state {
	int32_t refs;         /* sequences that read it or write it */
	int32_t block;        /* cached block at whose end this is the state; 0: no snapshot */
	int32_t older, newer; /* ring of idle slots through slot 0 */
	bool rolling;
};

struct kv_states {
	struct kv_state *slots; /* [count + 1]; slot 0's newer is the one to let go first */
	int32_t *free_list;     /* stack of empty slots */
	int count;              /* besides the sink; 0: the model has no state */
	int free_count, idle_count;
	int snapshots;          /* idle and held */
	uint64_t shuffle;
	uint64_t evictions;     /* snapshots let go for room */
};

/* `out` is zero or as fini leaves it. shuffle as in kv_options. */
enum status kv_states_init(struct kv_states *out, int count, uint64_t shuffle, struct error *err) NODISCARD;
void kv_states_fini(struct kv_states *states);
void kv_states_reset(struct kv_states *states); /* all empty */

/* Slots that could be handed out now. */
static inline int kv_states_free(const struct kv_states *states)
{
	return states->free_count + states->idle_count;
}
/* A slot for one holder; there must be one. *block: whose snapshot it was, which has none now; 0: it was empty. */
int32_t kv_states_take(struct kv_states *states, int32_t *block);
/* One holder more, one less; a slot of 0 or less: nothing. */
void kv_states_hold(struct kv_states *states, int32_t slot);
void kv_states_let_go(struct kv_states *states, int32_t slot);
/* A held slot becomes the snapshot of `block`, which has none. */
void kv_states_keep(struct kv_states *states, int32_t slot, int32_t block, bool rolling);
/* A snapshot does not roll any more: it is as if it was let go just now. */
void kv_states_settle(struct kv_states *states, int32_t slot);
/* It is no snapshot any more; empty if nobody holds it. */
void kv_states_forget(struct kv_states *states, int32_t slot);

/* Integrity: held[slot] (which it changes) sequences say that they hold a slot. BAD_INPUT with the first fault. For tests. */
enum status kv_states_check(const struct kv_states *states, int *held, struct error *err) NODISCARD;

/* 1..n from the top of the stack down, or in the order of a permutation by `shuffle`. */
void kv_fill_stack(int32_t *stack, int n, uint64_t shuffle);

#endif
