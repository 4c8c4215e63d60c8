/* The merging loop, see bpe.h. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/bpe.h"

/* Up to this many symbols a scan for the lowest rank beats the heap. */
#define SCAN_MAX 48
#define NONE UINT32_MAX

void bpe_heap_fini(struct bpe_heap *heap)
{
	free(heap->symbols);
	free(heap->items);
	*heap = (struct bpe_heap){0};
}

static size_t merge_by_scan(const struct bpe *bpe, int32_t *ids, size_t n)
{
	uint32_t ranks[SCAN_MAX];
	int32_t made[SCAN_MAX];
	for (size_t i = 0; i + 1 < n; i++) ranks[i] = bpe_rank(bpe, ids[i], ids[i + 1], &made[i]);
	while (n > 1) {
		size_t best = 0;
		for (size_t i = 1; i + 1 < n; i++)
			if (ranks[i] < ranks[best]) best = i;
		if (ranks[best] == BPE_NO_RANK) break;
		ids[best] = made[best];
		size_t tail = n - best - 2; /* symbols after the merged pair; pairs: one less */
		memmove(ids + best + 1, ids + best + 2, tail * sizeof *ids);
		n--;
		if (tail > 0) {
			memmove(ranks + best + 1, ranks + best + 2, (tail - 1) * sizeof *ranks);
			memmove(made + best + 1, made + best + 2, (tail - 1) * sizeof *made);
			ranks[best] = bpe_rank(bpe, ids[best], ids[best + 1], &made[best]);
		}
		if (best > 0) ranks[best - 1] = bpe_rank(bpe, ids[best - 1], ids[best], &made[best - 1]);
	}
	return n;
}

static void sift_down(uint64_t *items, size_t count, size_t i)
{
	uint64_t item = items[i];
	for (size_t child; (child = 2 * i + 1) < count; i = child) {
		if (child + 1 < count && items[child + 1] < items[child]) child++;
		if (items[child] >= item) break;
		items[i] = items[child];
	}
	items[i] = item;
}

static uint64_t pop(struct bpe_heap *heap)
{
	uint64_t top = heap->items[0];
	heap->items[0] = heap->items[--heap->count];
	if (heap->count > 0) sift_down(heap->items, heap->count, 0);
	return top;
}

static void push(struct bpe_heap *heap, uint64_t item)
{
	size_t i = heap->count++;
	while (i > 0 && heap->items[(i - 1) / 2] > item) {
		heap->items[i] = heap->items[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	heap->items[i] = item;
}

/* Looks the pair at `i` up anew; true if it can be merged. */
static bool refresh(const struct bpe *bpe, struct bpe_symbol *symbols, uint32_t i)
{
	struct bpe_symbol *s = &symbols[i];
	s->rank = s->next == NONE ? BPE_NO_RANK : bpe_rank(bpe, s->id, symbols[s->next].id, &s->made);
	return s->rank != BPE_NO_RANK;
}

static enum status prepare(const struct bpe *bpe, struct bpe_heap *heap, const int32_t *ids, size_t n, struct error *err)
{
	if (n > heap->symbol_capacity) {
		TRY(mem_grow((void **)&heap->symbols, n, sizeof *heap->symbols, "tokenizer", err));
		heap->symbol_capacity = n;
	}
	/* Each merge takes an item out and puts in at most two: never more than twice the symbols. */
	if (2 * n > heap->item_capacity) {
		TRY(mem_grow((void **)&heap->items, 2 * n, sizeof *heap->items, "tokenizer", err));
		heap->item_capacity = 2 * n;
	}
	for (uint32_t i = 0; i < n; i++)
		heap->symbols[i] = (struct bpe_symbol){.id = ids[i], .prev = i == 0 ? NONE : i - 1, .next = i + 1 == n ? NONE : i + 1};
	heap->count = 0;
	for (uint32_t i = 0; i + 1 < n; i++)
		if (refresh(bpe, heap->symbols, i)) heap->items[heap->count++] = (uint64_t)heap->symbols[i].rank << 32 | i;
	for (size_t i = heap->count / 2; i-- > 0;) sift_down(heap->items, heap->count, i);
	return STATUS_OK;
}

static enum status merge_by_heap(const struct bpe *bpe, struct bpe_heap *heap, int32_t *ids, size_t *n, struct error *err)
{
	TRY(prepare(bpe, heap, ids, *n, err));
	struct bpe_symbol *symbols = heap->symbols;
	while (heap->count > 0) {
		uint64_t item = pop(heap);
		uint32_t at = (uint32_t)item;
		struct bpe_symbol *left = &symbols[at];
		if (left->rank != (uint32_t)(item >> 32)) continue; /* the pair has changed since, or is gone */
		struct bpe_symbol *right = &symbols[left->next];
		left->id = left->made;
		right->rank = BPE_NO_RANK;
		left->next = right->next;
		if (left->next != NONE) symbols[left->next].prev = at;
		if (refresh(bpe, symbols, at)) push(heap, (uint64_t)left->rank << 32 | at);
		if (left->prev != NONE && refresh(bpe, symbols, left->prev)) push(heap, (uint64_t)symbols[left->prev].rank << 32 | left->prev);
	}
	size_t count = 0;
	for (uint32_t i = 0; i != NONE; i = symbols[i].next) ids[count++] = symbols[i].id;
	*n = count;
	return STATUS_OK;
}

enum status bpe_merge_all(const struct bpe *bpe, struct bpe_heap *heap, int32_t *ids, size_t *n, struct error *err)
{
	if (*n > SCAN_MAX) return merge_by_heap(bpe, heap, ids, n, err);
	if (*n > 1) *n = merge_by_scan(bpe, ids, *n);
	return STATUS_OK;
}
