/* Patterns: what each rewriting means, by what it matches; refusals; matches that are empty, long, or too much. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "text/pattern.h"

/* All matches in `text`, each in brackets. */
static void assert_matches(const char *regex, const char *text, const char *want)
{
	struct pattern *pattern;
	struct pattern_scratch *scratch;
	struct buf got = {0};
	struct error err = {0};
	if (pattern_regex(&pattern, regex, strlen(regex), &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(pattern_scratch_create(&scratch, &err), STATUS_OK);
	struct pattern_walk walk = {.text = text, .n = strlen(text)};
	for (;;) {
		bool found;
		size_t start = 0, end = 0;
		if (pattern_next(pattern, scratch, &walk, &found, &start, &end, &err) != STATUS_OK) fail_msg("%s", err.text);
		if (!found) break;
		assert_int_equal(buf_printf(&got, &err, "[%.*s]", (int)(end - start), text + start), STATUS_OK);
	}
	if (strcmp(got.data ? got.data : "", want) != 0) fail_msg("%s in \"%s\" gives %s, expected %s", regex, text, got.data, want);
	buf_fini(&got);
	pattern_scratch_destroy(&scratch);
	pattern_destroy(&pattern);
}

static void test_sets_mean_what_the_reference_means(void **state)
{
	(void)state;
	assert_matches("\\s", "a\xE1\xA0\x8E" "b\xC2\xA0" "c\x1C", "[\xC2\xA0]"); /* U+180E is no space any more, U+001C never was */
	assert_matches("\\S+", "a\xE1\xA0\x8E" "b\xE3\x80\x80" "c", "[a\xE1\xA0\x8E" "b][c]");
	assert_matches("[^\\s]", "\xE1\xA0\x8E\xE2\x80\xA8", "[\xE1\xA0\x8E]");
	assert_matches("\\w+", "e\xCC\x81_1 \xC2\xB2\xE2\x80\xBF", "[e\xCC\x81_1][\xC2\xB2\xE2\x80\xBF]");
	assert_matches("[\\w]+", "1\xC2\xB2\xC2\xB2", "[1]"); /* the reference's brackets lack the superscripts that its bare \w has */
	assert_matches("\\d", "1\xD9\xA1\xC2\xBD", "[1][\xD9\xA1]");
	assert_matches("\\h+", "xbeefy", "[beef]");
	assert_matches("\\v", "a\x0B\n", "[\x0B]");
	assert_matches("\\bthe\\b", "the theme the", "[the][the]");
	assert_matches("e\\B", "e ee", "[e]");
	assert_matches("(?i:'s)", "'s'S'\xC5\xBF", "['s]['S]['\xC5\xBF]");
	assert_matches("\\p{L}+", "\xF0\xB1\x8D\x90\xE1\xB2\x89" "1", "[\xF0\xB1\x8D\x90\xE1\xB2\x89]"); /* letters of Unicode 15 and 16 */
	assert_matches("[^\\p{L}]", "\xF0\xB1\x8D\x90" "1", "[1]");
	assert_matches("\\p{^L}|\\P{N}", "a1", "[a][1]");
	assert_matches("\\p{Han}+", "\xE4\xB8\xAD\xF0\xB1\x8D\x90\xE3\x80\x82", "[\xE4\xB8\xAD\xF0\xB1\x8D\x90]"); /* U+3002 has Han only as an extension */
	assert_matches("\\p{Cn}", "\xF0\xB1\x8D\x90\xCD\xB8", "[\xCD\xB8]");
}

static void test_brackets_nest_and_intersect(void **state)
{
	(void)state;
	assert_matches("[^(\\s|[.,!?])]+", "a(b|c .d", "[a][b][c][d]");
	assert_matches("[a-e&&[^bc]]+", "abcde", "[a][de]");
	assert_matches("[^a-e&&[^bc]]+", "abcdef", "[bc][f]");
	assert_matches("[\\S&&\\D&&[^x]]", "1 ax", "[a]");
	assert_matches("[]a]+", "a]b", "[a]]");
	assert_matches("[\\]\\-\\\\]+", "]-\\a", "[]-\\]");
	assert_matches("[\\w-]+", "a-b c", "[a-b][c]");
	assert_matches("[a-c-e]+", "a-ed", "[a-e]");
	assert_matches("[^\\S\\n]+", " \n\t", "[ ][\t]");
	assert_matches("[[:space:][:digit:]]+", "1 2a", "[1 2]");
	assert_matches("[\\x41\\x{e9}\\u4E2D]", "A\xC3\xA9\xE4\xB8\xAD", "[A][\xC3\xA9][\xE4\xB8\xAD]");
	assert_matches("[a&]", "&a", "[&][a]");
}

static void test_groups_and_quantifiers(void **state)
{
	(void)state;
	assert_matches("a(?i)b|c", "aB C ac", "[aB][ac]"); /* the option covers the alternative as well: a(?i:b|c) */
	assert_matches("(?m:a.b)", "a\nb", "[a\nb]");
	assert_matches("a.b", "a\nb", "");
	assert_matches("^.|.$", "ab\ncd", "[a][b][c][d]");
	assert_matches("\\p{N}{1,3}+", "12345", "[12345]"); /* not possessive: the repetition is repeated */
	assert_matches("a{,2}b", "aaab", "[aab]");
	assert_matches("a{2}?b", "aab b", "[aab][b]");
	assert_matches("a{x}|{|a{,}", "a{x}{", "[a{x}][{]");
	assert_matches("x(?#note)y", "xy", "[xy]");
	assert_matches("a++b|(?>a)c", "aabac", "[aab][ac]");
	assert_matches("\\Aa|b\\z|c\\Z", "aabcb", "[a][b]");
}

static void test_empty_matches_move_on(void **state)
{
	(void)state;
	assert_matches("a*", "baac", "[][aa][]");
	assert_matches("", "\xC3\xA9x", "[][][]");
	assert_matches("(?=\xC3\xA9)", "\xC3\xA9\xC3\xA9", "[][]");
	assert_matches("$", "a", "[]");
}

static void test_unknown_forms_are_refused(void **state)
{
	(void)state;
	static const char *const texts[] = {"(a)\\1", "(?<n>a)", "\\g<0>", "\\K", "\\G", "\\X", "(?R)", "(*FAIL)", "(?C1)", "(?x) a", "(?~a)", "(?(1)a)", "\\p{Nothing}",
	                                    "\\p{sc:Han}", "\\p{", "\\pL", "[", "[a", "[b-a]", "(", ")", "a)", "*", "+a", "|*", "\\", "[\\", "\\x{110000}", "\\ud800", "\\xff",
	                                    "[[:alpha:]]", "\\cA", "\\Q", "(?", "(?i", "(?P<a>b)", "\\N{U+41}"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct pattern *pattern;
		struct error err = {0};
		enum status st = pattern_regex(&pattern, texts[i], strlen(texts[i]), &err);
		if (st != STATUS_BAD_INPUT && st != STATUS_UNSUPPORTED) fail_msg("%s: status %s", texts[i], status_name(st));
		assert_null(pattern);
		assert_true(err.text[0] != 0);
	}
	struct pattern *pattern;
	assert_int_equal(pattern_regex(&pattern, "a\0b", 3, NULL), STATUS_UNSUPPORTED);
	assert_int_equal(pattern_literal(&pattern, "", 0, NULL), STATUS_UNSUPPORTED);
}

static void test_depth_is_bounded(void **state)
{
	(void)state;
	char text[5000];
	struct pattern *pattern;
	for (const char *open = "[("; *open; open++) {
		memset(text, *open, sizeof text);
		struct error err = {0};
		assert_int_equal(pattern_regex(&pattern, text, sizeof text, &err), STATUS_BAD_INPUT);
		assert_non_null(strstr(err.text, "nested"));
	}
}

/* pcre2#156: a repeated group over a long text uses up the stack of the compiled code; the interpreter then takes over. */
static void test_long_matches_of_repeated_groups(void **state)
{
	(void)state;
	enum { N = 100000 };
	static const char *const texts[] = {"(?:a|b)*", "(a|bb?)*", "(?:(?=[ab]).)+"};
	char *text = malloc(N);
	assert_non_null(text);
	for (size_t i = 0; i < N; i++) text[i] = i % 3 ? 'a' : 'b';
	for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
		struct pattern *pattern;
		struct pattern_scratch *scratch;
		struct error err = {0};
		bool found;
		size_t start, end;
		assert_int_equal(pattern_regex(&pattern, texts[k], strlen(texts[k]), &err), STATUS_OK);
		assert_int_equal(pattern_scratch_create(&scratch, &err), STATUS_OK);
		struct pattern_walk walk = {.text = text, .n = N};
		if (pattern_next(pattern, scratch, &walk, &found, &start, &end, &err) != STATUS_OK) fail_msg("%s: %s", texts[k], err.text);
		assert_true(found);
		assert_int_equal(start, 0);
		assert_int_equal(end, N);
		pattern_scratch_destroy(&scratch);
		pattern_destroy(&pattern);
	}
	free(text);
}

/* What exceeds the limits is an error, never "no match". */
static void test_a_match_beyond_the_limits_fails(void **state)
{
	(void)state;
	static const char regex[] = "(?:a+)+c";
	char text[60];
	struct pattern *pattern;
	struct pattern_scratch *scratch;
	struct error err = {0};
	bool found;
	size_t start, end;
	memset(text, 'a', sizeof text);
	text[sizeof text - 1] = 'c'; /* so that the search is not cut short by the missing c … */
	text[sizeof text - 2] = 'b'; /* … that no run of a reaches */
	assert_int_equal(pattern_regex(&pattern, regex, sizeof regex - 1, &err), STATUS_OK);
	assert_int_equal(pattern_scratch_create(&scratch, &err), STATUS_OK);
	struct pattern_walk walk = {.text = text, .n = sizeof text};
	assert_int_equal(pattern_next(pattern, scratch, &walk, &found, &start, &end, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "limit"));
	pattern_scratch_destroy(&scratch);
	pattern_destroy(&pattern);
}

static void test_replacing(void **state)
{
	(void)state;
	struct pattern *pattern;
	struct pattern_scratch *scratch;
	struct buf out = {0};
	struct error err = {0};
	assert_int_equal(pattern_scratch_create(&scratch, &err), STATUS_OK);
	assert_int_equal(pattern_literal(&pattern, "aa", 2, &err), STATUS_OK);
	assert_int_equal(pattern_replace(pattern, scratch, "aaab\0aa", 7, "$1", 2, &out, &err), STATUS_OK);
	assert_int_equal(out.size, 7);
	assert_memory_equal(out.data, "$1ab\0$1", 7);
	buf_clear(&out);
	pattern_destroy(&pattern);
	assert_int_equal(pattern_regex(&pattern, "x*", 2, &err), STATUS_OK);
	assert_int_equal(pattern_replace(pattern, scratch, "", 0, "-", 1, &out, &err), STATUS_OK);
	assert_int_equal(out.size, 0);
	pattern_destroy(&pattern);
	pattern_scratch_destroy(&scratch);
	buf_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sets_mean_what_the_reference_means),
		cmocka_unit_test(test_brackets_nest_and_intersect),
		cmocka_unit_test(test_groups_and_quantifiers),
		cmocka_unit_test(test_empty_matches_move_on),
		cmocka_unit_test(test_unknown_forms_are_refused),
		cmocka_unit_test(test_depth_is_bounded),
		cmocka_unit_test(test_long_matches_of_repeated_groups),
		cmocka_unit_test(test_a_match_beyond_the_limits_fails),
		cmocka_unit_test(test_replacing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
