/* Tokenizers from descriptions, as GGUF files give them: pieces with scores, and merges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "text/tokenizer.h"

#define T(literal) {literal, sizeof literal - 1}

static void expect_ids(struct tokenizer *t, const char *text, bool special, const int32_t *ids, size_t n)
{
	struct token_list list = {0};
	struct error err = {0};
	assert_int_equal(tokenizer_encode(t, text, strlen(text), special, &list, &err), STATUS_OK);
	bool same = list.count == n && memcmp(list.ids, ids, n * sizeof *ids) == 0;
	for (size_t i = 0; !same && i < list.count; i++) print_message("%d ", list.ids[i]);
	if (!same) fail_msg("'%s': other ids than expected", text);
	token_list_fini(&list);
}
#define EXPECT_IDS(t, text, special, ...) expect_ids(t, text, special, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / 4)

static void test_scores(void **state)
{
	(void)state;
	static const struct tokenizer_text tokens[] = {T("<unk>"), T("<s>"), T("</s>"), T("<0xC3>"), T("<0xA9>"), T("\xE2\x96\x81"), T("a"), T("b"),
	                                               T("ab"),    T("aba"), T("\xE2\x96\x81" "a"), T("ba"), T("<x>")};
	static const uint8_t kinds[] = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 4};
	static const float scores[] = {0, 0, 0, 0, 0, -10, -11, -12, -1, -2, -3, -1, 0};
	struct tokenizer_description d = {.model = TOKENIZER_SENTENCEPIECE, .count = 13, .tokens = tokens, .kinds = kinds, .scores = scores,
	                                  .bos = 1, .eos = 2, .unknown = 0, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab", true, 1, 5, 8);        /* _ a b: "ab" beats "_a" */
	EXPECT_IDS(t, "aba", false, 5, 9);         /* ab and ba are equal: the left one, then aba */
	EXPECT_IDS(t, "bab", false, 5, 11, 7);     /* here ba is the left one */
	EXPECT_IDS(t, "a\xC3\xA9", false, 10, 3, 4);
	EXPECT_IDS(t, "a<x>a", false, 10, 12, 10); /* the prefix again behind a user's token */
	EXPECT_IDS(t, "a</s>", false, 10, 2);
	struct buf text = {0};
	assert_int_equal(tokenizer_decode(t, (const int32_t[]){1, 10, 3, 4, 10}, 5, true, &text, &err), STATUS_OK);
	assert_string_equal(text.data, "a\xC3\xA9 a");
	buf_fini(&text);
	tokenizer_destroy(&t);

	d.add_space_prefix = d.add_bos = 0;
	d.add_eos = 1;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab", true, 8, 2);
	tokenizer_destroy(&t);
	d.eos = -1;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "EOS"));
}

static void test_merges(void **state)
{
	(void)state;
	static const struct tokenizer_text tokens[] = {T("a"), T("b"), T("1"), T("\xC4\xA0"), T("ab"), T("11"), T("\xC4\xA0" "a"), T("<e>"), T("aab")};
	static const uint8_t kinds[] = {1, 1, 1, 1, 1, 1, 1, 3, 1};
	static const struct tokenizer_text merges[] = {T("a b"), T("1 1"), T("\xC4\xA0 a")};
	struct tokenizer_description d = {.model = TOKENIZER_BYTE_LEVEL, .split = "gpt-2", .count = 9, .tokens = tokens, .kinds = kinds,
	                                  .merges = merges, .merge_count = 3, .bos = 7, .eos = -1, .unknown = -1, .add_bos = -1, .add_eos = -1, .add_space_prefix = -1};
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "ab 11<e>", true, 4, 3, 5, 7);
	EXPECT_IDS(t, "aab", true, 0, 4);
	tokenizer_destroy(&t);
	d.split = "smollm"; /* digits one by one */
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "a11 a", true, 0, 2, 2, 6);
	tokenizer_destroy(&t);
	d.split = "llama-bpe"; /* whole pieces first, and BOS */
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "aab", true, 7, 8);
	tokenizer_destroy(&t);
	d.split = NULL;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_OK);
	EXPECT_IDS(t, "11111", true, 5, 2, 5);
	tokenizer_destroy(&t);
	d.split = "nobody";
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "m: tokenizer: pre-tokenizer 'nobody' is not known"));
	static const struct tokenizer_text wrong[] = {T("ab")}, absent[] = {T("b b")};
	err = (struct error){0};
	d.split = "gpt-2";
	d.merge_count = 1;
	d.merges = wrong;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	err = (struct error){0};
	d.merges = absent;
	assert_int_equal(tokenizer_create(&t, &d, "m", NULL, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "not in the vocabulary"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_scores),
		cmocka_unit_test(test_merges),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
