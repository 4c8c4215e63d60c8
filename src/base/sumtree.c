#include "base/sumtree.h"

#include <assert.h>

static int split_point(int lo, int hi)
{
	int n = hi - lo;
	return n % 2 ? hi - 1 : lo + n / 2;
}

static void collect(int node_lo, int node_hi, int lo, int hi, struct sum_span *spans, int *n)
{
	if (node_hi <= lo || hi <= node_lo) return;
	if (lo <= node_lo && node_hi <= hi) {
		assert(*n < SUMTREE_MAX_SPANS);
		spans[(*n)++] = (struct sum_span){(int16_t)node_lo, (int16_t)node_hi};
		return;
	}
	int mid = split_point(node_lo, node_hi);
	collect(node_lo, mid, lo, hi, spans, n);
	collect(mid, node_hi, lo, hi, spans, n);
}

int sumtree_spans(int leaves, int lo, int hi, struct sum_span spans[SUMTREE_MAX_SPANS])
{
	assert(0 <= lo && lo < hi && hi <= leaves && leaves <= SUMTREE_MAX_LEAVES);
	int n = 0;
	collect(0, leaves, lo, hi, spans, &n);
	return n;
}

/* Walks down from `node` to `item`, counting the nodes on the way inside `root` that end where `item` ends. */
static uint8_t merges_after(int node_lo, int node_hi, struct sum_span root, struct sum_span item)
{
	uint8_t count = 0;
	while (node_lo != item.lo || node_hi != item.hi) {
		if (root.lo <= node_lo && node_hi <= root.hi && node_hi == item.hi) count++;
		int mid = split_point(node_lo, node_hi);
		if (item.lo < mid) node_hi = mid;
		else node_lo = mid;
	}
	return count;
}

void sumtree_program(int leaves, struct sum_span root, const struct sum_span *items, int n, uint8_t *merges)
{
	for (int i = 0; i < n; i++) merges[i] = merges_after(0, leaves, root, items[i]);
}

void sumtree_leaf_program(int leaves, struct sum_span root, uint8_t *merges)
{
	for (int i = root.lo; i < root.hi; i++)
		merges[i - root.lo] = merges_after(0, leaves, root, (struct sum_span){(int16_t)i, (int16_t)(i + 1)});
}
