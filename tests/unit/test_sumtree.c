/* The summation tree (contract C6): spans tile, are maximal, and both programs give the tree of the definition. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "base/rng.h"
#include "base/sumtree.h"
#include "unit/ranks.h"

static float leaf(int i)
{
	return (float)ldexp(rng_unit(11, 0, (uint64_t)i) * 2 - 1, (int)(rng_u64(11, 1, (uint64_t)i) % 30) - 15);
}

static int middle(int lo, int hi)
{
	return (hi - lo) % 2 ? hi - 1 : lo + (hi - lo) / 2;
}

/* By the definition in the header. */
static float recursive(int lo, int hi)
{
	if (hi - lo == 1) return leaf(lo);
	float a = recursive(lo, middle(lo, hi)), b = recursive(middle(lo, hi), hi);
	return a + b;
}

static bool is_node(int lo, int hi, struct sum_span want)
{
	if (lo == want.lo && hi == want.hi) return true;
	if (want.lo < lo || hi < want.hi || hi - lo == 1) return false;
	return is_node(lo, middle(lo, hi), want) || is_node(middle(lo, hi), hi, want);
}

/* The little program; checks the stack bound and that one value is left. */
static float execute(const float *items, const uint8_t *merges, int n)
{
	float stack[SUMTREE_MAX_DEPTH];
	int top = 0;
	for (int i = 0; i < n; i++) {
		assert_true(top < SUMTREE_MAX_DEPTH);
		stack[top++] = items[i];
		for (int m = 0; m < merges[i]; m++, top--) {
			assert_true(top >= 2);
			stack[top - 2] += stack[top - 1];
		}
	}
	assert_int_equal(top, 1);
	return stack[0];
}

static void assert_same(float a, float b)
{
	if (f32_to_bits(a) != f32_to_bits(b)) fail_msg("%a != %a", (double)a, (double)b);
}

static float span_sum(int leaves, struct sum_span span)
{
	float items[SUMTREE_MAX_LEAVES];
	uint8_t merges[SUMTREE_MAX_LEAVES];
	for (int i = span.lo; i < span.hi; i++) items[i - span.lo] = leaf(i);
	sumtree_leaf_program(leaves, span, merges);
	return execute(items, merges, span.hi - span.lo);
}

static void check_spans(int leaves, int lo, int hi)
{
	struct sum_span spans[SUMTREE_MAX_SPANS];
	int n = sumtree_spans(leaves, lo, hi, spans), at = lo;
	assert_true(n >= 1 && n <= SUMTREE_MAX_SPANS);
	for (int i = 0; i < n; i++) {
		assert_int_equal(spans[i].lo, at);
		assert_true(spans[i].hi > spans[i].lo);
		assert_true(is_node(0, leaves, spans[i]));
		if (i) assert_false(is_node(0, leaves, (struct sum_span){spans[i - 1].lo, spans[i].hi})); /* would have been one span */
		at = spans[i].hi;
	}
	assert_int_equal(at, hi);
}

static void test_spans_tile_any_range(void **state)
{
	(void)state;
	static const int trees[] = {1, 2, 3, 5, 7, 8, 12, 24, 31, 56, 97};
	for (size_t t = 0; t < sizeof trees / sizeof *trees; t++)
		for (int lo = 0; lo < trees[t]; lo++)
			for (int hi = lo + 1; hi <= trees[t]; hi++) check_spans(trees[t], lo, hi);
	for (int i = 0; i < 20000; i++) {
		int leaves = 1 + (int)(rng_u64(1, 0, (uint64_t)i) % SUMTREE_MAX_LEAVES);
		int lo = (int)(rng_u64(1, 1, (uint64_t)i) % (uint64_t)leaves);
		check_spans(leaves, lo, lo + 1 + (int)(rng_u64(1, 2, (uint64_t)i) % (uint64_t)(leaves - lo)));
	}
}

static void test_spans_by_hand(void **state)
{
	(void)state;
	struct sum_span spans[SUMTREE_MAX_SPANS];
	/* 6 = 3 + 3, 3 = 2 + 1: the middle third is leaf 2 and the pair's half of the right side's (3,4). */
	assert_int_equal(sumtree_spans(6, 2, 4, spans), 2);
	assert_int_equal(sumtree_spans(6, 0, 2, spans), 1);
	assert_int_equal(sumtree_spans(6, 3, 5, spans), 1);
	assert_int_equal(sumtree_spans(6, 0, 6, spans), 1);
	assert_int_equal(sumtree_spans(6, 1, 6, spans), 3); /* 1, 2, 3-5 */
	assert_int_equal(spans[2].lo, 3);
	assert_int_equal(spans[2].hi, 6);
}

static void test_leaf_program_is_the_recursion(void **state)
{
	(void)state;
	for (int leaves = 1; leaves <= SUMTREE_MAX_LEAVES; leaves++)
		assert_same(span_sum(leaves, (struct sum_span){0, (int16_t)leaves}), recursive(0, leaves));
}

/* One span a rank wherever the world size is a power of two that divides the leaves. */
static void test_one_span_for_powers_of_two(void **state)
{
	(void)state;
	struct sum_span spans[SUMTREE_MAX_SPANS];
	for (int leaves = 1; leaves <= SUMTREE_MAX_LEAVES; leaves++)
		for (int P = 1; P <= 64; P *= 2)
			for (int r = 0; r < P && leaves % P == 0; r++)
				assert_int_equal(sumtree_spans(leaves, r * (leaves / P), (r + 1) * (leaves / P), spans), 1);
}

/* Cut over any legal number of ranks, summed per span, then over all spans: the bits of one rank. */
static void test_any_split_gives_the_same_bits(void **state)
{
	(void)state;
	static const int trees[] = {1, 2, 6, 8, 12, 24, 40, 56, 120, 168, 840};
	for (size_t t = 0; t < sizeof trees / sizeof *trees; t++) {
		const int leaves = trees[t];
		const float whole = recursive(0, leaves);
		for (int P = 1; P <= leaves && P <= 64; P++) {
			if (leaves % P) continue;
			struct sum_span spans[64 * SUMTREE_MAX_SPANS];
			float items[64 * SUMTREE_MAX_SPANS];
			uint8_t merges[64 * SUMTREE_MAX_SPANS];
			int n = 0, each = leaves / P;
			for (int r = 0; r < P; r++) n += sumtree_spans(leaves, r * each, (r + 1) * each, spans + n);
			for (int i = 0; i < n; i++) items[i] = span_sum(leaves, spans[i]);
			sumtree_program(leaves, (struct sum_span){0, (int16_t)leaves}, spans, n, merges);
			assert_same(execute(items, merges, n), whole);
		}
	}
}

/* The bounds in the header, over every range of the largest legal tree and every world size. */
static void test_bounds(void **state)
{
	(void)state;
	struct sum_span spans[SUMTREE_MAX_SPANS];
	int most = 0;
	for (int leaves = 1; leaves <= SUMTREE_MAX_LEAVES; leaves += leaves < 500 ? 1 : 17)
		for (int lo = 0; lo < leaves; lo++)
			for (int hi = lo + 1; hi <= leaves; hi += 1 + leaves / 100) {
				int n = sumtree_spans(leaves, lo, hi, spans);
				if (n > most) most = n;
			}
	print_message("most spans in a range: %d\n", most);
	assert_true(most <= SUMTREE_MAX_SPANS);
}

int main(void)
{
	watchdog(240);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_spans_tile_any_range),
		cmocka_unit_test(test_spans_by_hand),
		cmocka_unit_test(test_leaf_program_is_the_recursion),
		cmocka_unit_test(test_one_span_for_powers_of_two),
		cmocka_unit_test(test_any_split_gives_the_same_bits),
		cmocka_unit_test(test_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
