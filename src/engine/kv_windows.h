/* kv_windows.h: room for the keys and values of sliding layers, as a part of a rank's KV pool (kv.h). Those layers see the last tokens only, so they
 * have a cache of their own with fewer blocks: a block of the pool has one of them, its window block, while somebody's window reaches it.
 *
 * `wants` counts the sequences whose window reaches a block. A window block that nobody wants stays with its block while that is cached and the
 * room is not needed: a prefix hit needs the window before its end. Empty ones are handed out first, then the one that was wanted longest
 * ago. Window block 0 is the sink of padding rows.
 * Owner: the pool's.
 */
#ifndef TANDEM_ENGINE_KV_WINDOWS_H
#define TANDEM_ENGINE_KV_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct kv_window {
	int32_t at;           /* window block; 0: none */
	int32_t wants;
	int32_t older, newer; /* ring of blocks with a window block that nobody wants, through block 0 */
};

struct kv_windows {
	struct kv_window *of;   /* [blocks + 1] by block of the pool */
	int32_t *free_list;     /* stack of empty window blocks */
	int blocks, count;      /* count 0: the model has no sliding layers of its own */
	int free_count, idle_count;
	uint64_t shuffle;
};

/* `out` is zero or as fini leaves it. shuffle as in kv_options. */
enum status kv_windows_init(struct kv_windows *out, int blocks, int count, uint64_t shuffle, struct error *err) NODISCARD;
void kv_windows_fini(struct kv_windows *windows);
void kv_windows_reset(struct kv_windows *windows); /* all empty */

/* Window blocks that could be handed out now. */
static inline int kv_windows_free(const struct kv_windows *windows)
{
	return windows->free_count + windows->idle_count;
}
/* `block`, which has none, gets a window block, wanted once; there must be room. */
void kv_windows_attach(struct kv_windows *windows, int32_t block);
/* One sequence more whose window reaches the block, which has a window block; one less. keep: it stays with the block when nobody wants it. */
void kv_windows_want(struct kv_windows *windows, int32_t block);
void kv_windows_unwant(struct kv_windows *windows, int32_t block, bool keep);
/* The block has none any more, wanted or not. */
void kv_windows_drop(struct kv_windows *windows, int32_t block);
/* What `from` has, wanted once, is `to`'s, which has none. */
void kv_windows_move(struct kv_windows *windows, int32_t from, int32_t to);

/* Integrity: wants[block] (which it changes) sequences say that they want a block's. BAD_INPUT with the first fault. For tests. */
enum status kv_windows_check(const struct kv_windows *windows, int *wants, struct error *err) NODISCARD;

#endif
