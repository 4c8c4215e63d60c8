/* The text of an answer is what decoding prompt and answer together adds to the prompt's: detokenizer_follow, on chosen ids and on random ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "text/utf8.h"
#include "unit/tokens.h"

/* What comes behind the first `n` ids, given that those were followed. */
static void assert_follows(const struct tokenizer *t, const int32_t *ids, size_t n, size_t count, const char *want)
{
	struct detokenizer *d;
	struct buf text = {0};
	struct error err = {0};
	assert_int_equal(detokenizer_create(&d, t, true, &err), STATUS_OK);
	assert_int_equal(detokenizer_follow(d, ids, n, &err), STATUS_OK);
	for (size_t i = n; i < count; i++) {
		assert_int_equal(detokenizer_push(d, ids[i], &text, &err), STATUS_OK);
		assert_int_equal(utf8_valid_prefix(text.data ? text.data : "", text.size), text.size);
	}
	assert_int_equal(detokenizer_finish(d, &text, &err), STATUS_OK);
	tokens_assert_text("behind", &text, want, strlen(want));
	buf_fini(&text);
	detokenizer_destroy(&d);
}

/* The space in front of the first word of an answer stays, unless that is the first of all. Bytes that end the prompt are not said again, but one that
 * begins a code point is its part. */
static void test_an_answer_follows_its_prompt(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("llama2");
	int32_t bos = tokenizer_id(t, "<s>"), the = tokenizer_id(t, "\xE2\x96\x81the"), line = tokenizer_id(t, "<0x0A>"), c3 = tokenizer_id(t, "<0xC3>"),
	        a9 = tokenizer_id(t, "<0xA9>");
	assert_follows(t, (int32_t[]){the, the, the}, 1, 3, " the the");
	assert_follows(t, (int32_t[]){bos, the, the}, 2, 3, " the");
	assert_follows(t, (int32_t[]){bos, the}, 1, 2, "the");
	assert_follows(t, (int32_t[]){the, the}, 0, 2, "the the");
	assert_follows(t, (int32_t[]){the, bos, bos, bos, bos, bos, bos, bos, bos, bos, the}, 10, 11, " the");
	assert_follows(t, (int32_t[]){the, line, the}, 2, 3, " the");
	assert_follows(t, (int32_t[]){the, line, line, line, the}, 2, 5, "\n\n the");
	assert_follows(t, (int32_t[]){the, line}, 2, 2, "");
	assert_follows(t, (int32_t[]){the, c3, a9, the}, 2, 4, "\xC3\xA9 the");
	assert_follows(t, (int32_t[]){the, c3, the}, 2, 3, " the");
	assert_follows(t, (int32_t[]){the, c3}, 2, 2, "");
	assert_follows(t, (int32_t[]){the, c3, a9, c3, a9, c3, a9, c3, a9, c3, a9, c3, a9}, 10, 13, "\xC3\xA9\xC3\xA9");
	assert_follows(t, (int32_t[]){the, line, c3, the}, 3, 4, " the");
	tokenizer_destroy(&t);
	t = tokens_open("gpt2");
	struct token_list ids = tokens_encode(t, "ab\xF0\x9F\xA6\x9C", 6, false);
	assert_int_equal(ids.count, 6);
	assert_follows(t, ids.ids, 4, 6, "\xF0\x9F\xA6\x9C");
	assert_follows(t, (int32_t[]){ids.ids[0], ids.ids[2], ids.ids[1]}, 2, 3, "b");
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

/* Behind any prompt: what decoding all has beyond what decoding the prompt has. Some tokens in pairs that are one character in bytes. */
static void test_answers_follow_prompts_at_random(void **state)
{
	(void)state;
	static const char *const names[] = {"gpt2", "llama2", "mistral", "metaspace", "added"};
	int compared = 0;
	for (uint64_t seed = 0; seed < 2000; seed++) {
		struct tokenizer *t = tokens_open(names[seed % 5]);
		int32_t list[40], c3 = seed % 5 == 3 ? -1 : tokenizer_id(t, "<0xC3>"), bytes = c3 < 0 ? 0 : 256;
		size_t count = 2 + rng_u64(seed, 1, 0) % 38, cut = 1 + rng_u64(seed, 1, 1) % (count - 1), same = 0;
		for (size_t i = 0; i < count; i++) {
			bool pair = bytes && rng_u64(seed, 3, i) % 2;
			list[i] = pair ? c3 : bytes + (int32_t)(rng_u64(seed, 2, i) % (uint64_t)(tokenizer_vocab_size(t) - bytes));
			if (pair && i + 1 < count) list[++i] = tokenizer_id(t, "<0xA9>");
		}
		size_t closed = bytes && list[cut - 1] == c3 ? cut - 1 : cut; /* what begins a character comes with the answer */
		struct buf all = tokens_decode(t, &(struct token_list){.ids = list, .count = count}, true), prompt = tokens_decode(t, &(struct token_list){.ids = list, .count = closed}, true);
		while (same < prompt.size && same < all.size && prompt.data[same] == all.data[same]) same++;
		while (same > 0 && same < all.size && ((unsigned char)all.data[same] & 0xC0) == 0x80) same--;
		if (all.size && !memmem(all.data, all.size, "\xEF\xBF\xBD", 3)) {
			assert_follows(t, list, cut, count, all.data + same);
			compared++;
		}
		buf_fini(&all);
		buf_fini(&prompt);
		tokenizer_destroy(&t);
	}
	assert_true(compared > 500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_answer_follows_its_prompt), cmocka_unit_test(test_answers_follow_prompts_at_random)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
