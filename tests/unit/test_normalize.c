/* Normal forms: the rules by example, marks in any order, and code points that the reference does not know. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "text/normalize.h"
#include "text/utf8.h"

static struct buf normal_form(enum normalizer_kind form, const char *text, size_t n)
{
	struct buf out = {0};
	struct error err = {0};
	assert_int_equal(buf_reserve(&out, n, &err), STATUS_OK);
	if (unicode_normalize(form, text, n, &out, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_int_equal(utf8_valid_prefix(out.data, out.size), out.size);
	return out;
}

static void assert_form(enum normalizer_kind form, const char *text, const char *want)
{
	struct buf got = normal_form(form, text, strlen(text));
	if (strcmp(got.data, want) != 0) fail_msg("form %d of \"%s\" is \"%s\", expected \"%s\"", form, text, got.data, want);
	buf_fini(&got);
}

static void test_forms(void **state)
{
	(void)state;
	assert_form(NORMALIZER_NFC, "plain ASCII\n", "plain ASCII\n");
	assert_form(NORMALIZER_NFC, "ae\xCC\x81" "a", "a\xC3\xA9" "a");
	assert_form(NORMALIZER_NFD, "a\xC3\xA9" "a", "ae\xCC\x81" "a");
	assert_form(NORMALIZER_NFC, "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", "\xEA\xB0\x81"); /* Hangul: three jamo, one syllable */
	assert_form(NORMALIZER_NFD, "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
	assert_form(NORMALIZER_NFC, "\xE2\x84\xA6\xEF\xAC\x81", "\xCE\xA9\xEF\xAC\x81");
	assert_form(NORMALIZER_NFKC, "\xE2\x84\xA6\xEF\xAC\x81", "\xCE\xA9" "fi");
	assert_form(NORMALIZER_NFKD, "\xC2\xBD\xC3\x85", "1\xE2\x81\x84" "2A\xCC\x8A");
	assert_form(NORMALIZER_NFC, "e\xCC\x81\xCC\xA3", "\xE1\xBA\xB9\xCC\x81"); /* marks are ordered before they join */
	assert_form(NORMALIZER_NFC, "\xCC\x81" "a", "\xCC\x81" "a");
	assert_form(NORMALIZER_NFC, "\xE0\xA5\x98", "\xE0\xA4\x95\xE0\xA4\xBC"); /* excluded from composition */
}

/* U+0899 (Unicode 14) has a class and U+1CCD6 (16) a decomposition in newer data: neither has for the reference. */
static void test_unknown_code_points_are_inert(void **state)
{
	(void)state;
	assert_form(NORMALIZER_NFC, "e\xE0\xA2\x99\xCC\x81", "e\xE0\xA2\x99\xCC\x81");
	assert_form(NORMALIZER_NFD, "\xC3\xA9\xE0\xA2\x99\xCC\xA3", "e\xCC\x81\xE0\xA2\x99\xCC\xA3");
	assert_form(NORMALIZER_NFKC, "\xF0\x9C\xB3\x96", "\xF0\x9C\xB3\x96");
}

static void test_nul_is_a_character(void **state)
{
	(void)state;
	struct buf got = normal_form(NORMALIZER_NFC, "e\0e\xCC\x81\0", 6);
	assert_int_equal(got.size, 5);
	assert_memory_equal(got.data, "e\0\xC3\xA9\0", 5);
	buf_fini(&got);
}

/* Two classes in turn: sorting by exchanges would take 10^11 of them. */
static void test_long_runs_of_marks(void **state)
{
	(void)state;
	enum { N = 1000000 };
	char *text = malloc(N);
	assert_non_null(text);
	for (size_t i = 0; i < N; i += 4) memcpy(text + i, i % 8 ? "\xCC\x81\xCC\xA3" : "\xCC\x82\xCC\xA4", 4);
	text[0] = 'x';
	text[1] = 'y';
	clock_t begun = clock();
	struct buf got = normal_form(NORMALIZER_NFD, text, N);
	assert_int_equal(got.size, N);
	for (size_t i = 2; i < N; i += 2) assert_true((got.data[i + 1] == '\xA3' || got.data[i + 1] == '\xA4') == (i < 2 + N / 2)); /* below first */
	double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC; /* of processor time */
	if (seconds > 10) fail_msg("1 MB of marks took %.1f s", seconds);
	buf_fini(&got);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_forms),
		cmocka_unit_test(test_unknown_code_points_are_inert),
		cmocka_unit_test(test_nul_is_a_character),
		cmocka_unit_test(test_long_runs_of_marks),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
