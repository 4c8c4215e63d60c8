/* sumtree.h: the order in which the K-segments of a row-parallel linear are added (contract C6).
 *
 * A reduction over K is cut into `leaves` equal segments; leaf sums are added along one binary tree that the number of
 * leaves alone fixes, so that the result does not depend on how many ranks share the work:
 *     node [lo, hi): one leaf when hi - lo = 1; else the halves when hi - lo is even, else [lo, hi-1) and the last leaf.
 * A rank owns a contiguous range of leaves. It adds up the maximal complete subtrees in its range (its *spans*; one where
 * the world size is a power of two that divides `leaves`), the collective adds the spans of all ranks along the rest of
 * the same tree. Both run the same little program: push item i, then do merges[i] times: pop b, pop a, push a + b.
 * Pure functions over plain values; no allocation.
 */
#ifndef TANDEM_BASE_SUMTREE_H
#define TANDEM_BASE_SUMTREE_H

#include <stdint.h>

#define SUMTREE_MAX_LEAVES 840 /* lcm(1..8) */
#define SUMTREE_MAX_SPANS 32   /* maximal complete subtrees in any contiguous range */
#define SUMTREE_MAX_DEPTH 24   /* values on the program's stack at any time */

/* Leaves [lo, hi): a complete subtree. */
struct sum_span {
	int16_t lo, hi;
};

/* The maximal complete subtrees that tile [lo, hi), ascending. Returns their number (<= SUMTREE_MAX_SPANS).
 * Requires 0 <= lo < hi <= leaves <= SUMTREE_MAX_LEAVES. */
int sumtree_spans(int leaves, int lo, int hi, struct sum_span spans[SUMTREE_MAX_SPANS]);

/* merges[i] for `n` items (complete subtrees, ascending, tiling a complete subtree `root`): how many merges follow the
 * push of item i. */
void sumtree_program(int leaves, struct sum_span root, const struct sum_span *items, int n, uint8_t *merges);

/* merges[i] for the single leaves root.lo + i. */
void sumtree_leaf_program(int leaves, struct sum_span root, uint8_t *merges);

#endif
