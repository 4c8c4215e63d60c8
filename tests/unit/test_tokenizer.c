/* The tokenizer against small files of tests/data/tokenizer and what the Hugging Face library made of their texts; then single
 * rules, damaged files, and long inputs. The comparison with the library itself is tests/tokenizer/compare.py. */
#include <dirent.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "text/tokenizer.h"
#include "text/utf8.h"
#include "unit/tokens.h"

/* Piece by piece; every piece must be whole code points. */
static struct buf decode_streamed(const struct tokenizer *t, const struct token_list *ids, bool skip)
{
	struct detokenizer *d;
	struct buf text = {0};
	struct error err = {0};
	assert_int_equal(detokenizer_create(&d, t, skip, &err), STATUS_OK);
	for (size_t i = 0; i <= ids->count; i++) {
		struct buf piece = {0};
		enum status st = i < ids->count ? detokenizer_push(d, ids->ids[i], &piece, &err) : detokenizer_finish(d, &piece, &err);
		if (st != STATUS_OK) fail_msg("%s", err.text);
		assert_int_equal(utf8_valid_prefix(piece.data, piece.size), piece.size);
		assert_int_equal(buf_append(&text, piece.data, piece.size, &err), STATUS_OK);
		buf_fini(&piece);
	}
	detokenizer_destroy(&d);
	assert_null(d);
	return text;
}

static void assert_ids(const char *what, const struct token_list *got, const int32_t *want, size_t n)
{
	for (size_t i = 0; i < n || i < got->count; i++)
		if (i >= n || i >= got->count || got->ids[i] != want[i])
			fail_msg("%s: id %zu of %zu is %d, expected %d of %zu", what, i, got->count, i < got->count ? (int)got->ids[i] : -1,
			         i < n ? (int)want[i] : -1, n);
}

/* ---- the files and their cases ---- */

static void check_decoding(const struct tokenizer *t, const char *what, const struct token_list *ids, const json_t *want, bool skip)
{
	struct buf whole = tokens_decode(t, ids, skip), streamed = decode_streamed(t, ids, skip);
	tokens_assert_text(what, &whole, json_string_value(want), json_string_length(want));
	tokens_assert_text(what, &streamed, json_string_value(want), json_string_length(want));
	buf_fini(&whole);
	buf_fini(&streamed);
}

static void check_case(const struct tokenizer *t, const char *what, const char *line, size_t n)
{
	json_error_t why;
	json_t *c = json_loadb(line, n, JSON_ALLOW_NUL, &why);
	if (!c) fail_msg("%s: %s", what, why.text);
	const json_t *text = json_object_get(c, "text"), *tokens = json_object_get(c, "tokens");
	int32_t want[512];
	size_t count = json_array_size(tokens);
	assert_true(count <= 512);
	for (size_t i = 0; i < count; i++) want[i] = (int32_t)json_integer_value(json_array_get(tokens, i));
	struct token_list ids = tokens_encode(t, json_string_value(text), json_string_length(text), json_is_true(json_object_get(c, "special")));
	assert_ids(what, &ids, want, count);
	check_decoding(t, what, &ids, json_object_get(c, "decoded"), false);
	check_decoding(t, what, &ids, json_object_get(c, "decoded_skip"), true);
	token_list_fini(&ids);
	json_decref(c);
}

static void check_file(const char *name)
{
	char path[256], what[300];
	struct tokenizer *t = tokens_open(name);
	char *line = NULL;
	size_t capacity = 0, number = 0;
	snprintf(path, sizeof path, TOKENS_FOLDER "/%s.cases", name);
	FILE *file = fopen(path, "r");
	if (!file) fail_msg("%s cannot be read", path);
	for (ssize_t n; (n = getline(&line, &capacity, file)) > 0;) {
		snprintf(what, sizeof what, "%s:%zu", path, ++number);
		check_case(t, what, line, (size_t)n);
	}
	assert_true(number > 40);
	free(line);
	fclose(file);
	tokenizer_destroy(&t);
	assert_null(t);
}

static void test_files_give_the_ids_and_texts_of_the_reference(void **state)
{
	(void)state;
	struct dirent **entries;
	int n = scandir(TOKENS_FOLDER, &entries, NULL, alphasort), files = 0;
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		char *dot = strrchr(entries[i]->d_name, '.');
		if (dot && strcmp(dot, ".json") == 0) {
			*dot = 0;
			check_file(entries[i]->d_name);
			files++;
		}
		free(entries[i]);
	}
	free(entries);
	assert_int_equal(files, 16);
}

/* ---- single rules ---- */

static void assert_encodes(const struct tokenizer *t, const char *text, const char *tokens)
{
	struct token_list ids = tokens_encode(t, text, strlen(text), false);
	struct buf got = {0};
	struct error err = {0};
	for (size_t i = 0; i < ids.count; i++) assert_int_equal(buf_printf(&got, &err, i ? "|%s" : "%s", tokenizer_text(t, ids.ids[i])), STATUS_OK);
	tokens_assert_text(text, &got, tokens, strlen(tokens));
	buf_fini(&got);
	token_list_fini(&ids);
}

/* A file whose `token` is looked for in normalized text, by another normalizer unless that is NULL. */
static struct tokenizer *open_normalized(const char *name, const char *token, const char *normalizer)
{
	char path[256];
	struct tokenizer *t;
	struct error err = {0};
	size_t i;
	json_t *added;
	snprintf(path, sizeof path, TOKENS_FOLDER "/%s.json", name);
	json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
	assert_non_null(root);
	json_array_foreach(json_object_get(root, "added_tokens"), i, added)
		if (strcmp(json_string_value(json_object_get(added, "content")), token) == 0) assert_int_equal(json_object_set_new(added, "normalized", json_true()), 0);
	if (normalizer) assert_int_equal(json_object_set_new(root, "normalizer", json_loads(normalizer, 0, NULL)), 0);
	char *text = json_dumps(root, 0);
	if (tokenizer_parse(&t, text, strlen(text), name, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	free(text);
	json_decref(root);
	return t;
}

/* How many ids of special tokens `text` gets when text[start..end) came from a user, and decodes to `want`. */
static int specials_of(const struct tokenizer *t, const char *text, size_t start, size_t end, const char *want)
{
	struct token_list ids = {0};
	struct buf back = {0};
	struct error err = {0};
	const struct text_range user = {start, end};
	int count = 0;
	if (tokenizer_encode_marked(t, text, strlen(text), false, &user, start < end, &ids, &err) != STATUS_OK) fail_msg("%s", err.text);
	for (size_t i = 0; i < ids.count; i++) count += tokenizer_is_special(t, ids.ids[i]);
	assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, false, &back, &err), STATUS_OK);
	tokens_assert_text(text, &back, want, strlen(want));
	buf_fini(&back);
	token_list_fini(&ids);
	return count;
}

static int specials(const struct tokenizer *t, const char *text, size_t start, size_t end)
{
	return specials_of(t, text, start, end, text);
}

static void check_whose(struct tokenizer *t)
{
	const char *text = "<|end|>hi <|end|> you<|end|>";
	assert_int_equal(specials(t, text, 0, 0), 3);
	assert_int_equal(specials(t, text, 7, 21), 2);  /* what the user wrote, the middle one whole */
	assert_int_equal(specials(t, text, 12, 13), 2); /* one byte of it is enough */
	assert_int_equal(specials(t, text, 16, 17), 2);
	assert_int_equal(specials(t, text, 9, 10), 3); /* just before it */
	assert_int_equal(specials(t, text, 17, 21), 3); /* just behind it */
	assert_int_equal(specials(t, text, 0, strlen(text)), 0);
	tokenizer_destroy(&t);
}

static void test_a_user_writes_no_special_token(void **state)
{
	(void)state;
	check_whose(tokens_open("qwen3"));
	check_whose(open_normalized("qwen3", "<|end|>", NULL));
	check_whose(open_normalized("qwen3", "<|end|>", "{\"type\":\"Sequence\",\"normalizers\":[]}"));
}

/* What normalization makes of the user's text neither hides a token of the template's nor makes one. */
static void test_a_normalizer_keeps_apart_whose_text_is(void **state)
{
	(void)state;
	static const char drop[] = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"xy\"},\"content\":\"\"}";
	struct tokenizer *t = open_normalized("qwen3", "<|end|>", NULL);
	assert_int_equal(specials_of(t, "<|end|>e\xCC\x81 <|end|><|end|>", 7, 18, "<|end|>\xC3\xA9 <|end|><|end|>"), 2);
	assert_int_equal(specials(t, "<|end|>\xCC\xB8<|end|>", 7, 9), 2); /* a mark that would join the ">" */
	tokenizer_destroy(&t);
	t = open_normalized("qwen3", "<|end|>", "{\"type\":\"NFKC\"}");
	assert_int_equal(specials_of(t, "<|end|>\xEF\xBC\x9C|end|><|end|>", 7, 16, "<|end|><|end|><|end|>"), 2); /* a wide "<" */
	tokenizer_destroy(&t);
	t = open_normalized("qwen3", "<|end|>", drop);
	assert_int_equal(specials_of(t, "xy<|end|>xy<|exynd|>xy<|end|>", 9, 22, "<|end|><|end|><|end|>"), 2);
	assert_int_equal(specials_of(t, "<|end|><|exynd|><|end|>", 10, 12, "<|end|><|end|><|end|>"), 2);
	assert_int_equal(specials_of(t, "<|end|><|exynd|><|end|>", 0, 0, "<|end|><|end|><|end|>"), 3);
	tokenizer_destroy(&t);
	t = open_normalized("llama2", "</s>", NULL); /* looked for as "\u2581</s>" */
	assert_int_equal(specials_of(t, "the </s> the </s> the </s>", 9, 17, "the </s> the </s> the </s>"), 2);
	assert_int_equal(specials_of(t, "</s>the </s>", 4, 12, "</s>the </s>"), 1);
	assert_int_equal(specials_of(t, "</s> the </s>", 0, 5, "</s> the </s>"), 1);
	tokenizer_destroy(&t);
}

static void assert_bytes(const struct tokenizer *t, const char *token, const char *bytes)
{
	struct detokenizer *d;
	struct buf got = {0};
	struct error err = {0};
	int32_t id = tokenizer_id(t, token);
	if (id < 0) fail_msg("no token %s", token);
	assert_int_equal(detokenizer_create(&d, t, true, &err), STATUS_OK);
	if (detokenizer_bytes(d, id, &got, &err) != STATUS_OK) fail_msg("%s", err.text);
	tokens_assert_text(token, &got, bytes, strlen(bytes));
	buf_fini(&got);
	detokenizer_destroy(&d);
}

static void test_bytes_of_a_token_alone(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("qwen3");
	assert_bytes(t, "\xC4\xA0", " ");
	assert_bytes(t, "<|end|>", "<|end|>");
	assert_bytes(t, "\xC3\xA9", "\xE9"); /* a byte that is no text by itself */
	tokenizer_destroy(&t);
	t = tokens_open("llama2");
	assert_bytes(t, "<0xE9>", "\xE9");
	assert_bytes(t, "\xE2\x96\x81", " ");
	tokenizer_destroy(&t);
}

/* llama.cpp#7193 */
static void test_ignore_merges_takes_a_whole_piece_that_merges_cannot_reach(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("llama3");
	struct token_list ids = tokens_encode(t, " \xC4\x90i\xE1\xBB\x87n", 8, false);
	assert_int_equal(ids.count, 1);
	token_list_fini(&ids);
	tokenizer_destroy(&t);
	t = tokens_open("gpt2");
	ids = tokens_encode(t, " \xC4\x90i\xE1\xBB\x87n", 8, false);
	assert_true(ids.count > 1);
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

/* tokenizers#1141, #1544 */
static void test_word_marks_of_llama2(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("llama2");
	assert_encodes(t, "<s>the", "<s>|\xE2\x96\x81the");
	assert_encodes(t, "the</s>the", "\xE2\x96\x81the|</s>|\xE2\x96\x81the");
	assert_encodes(t, "", "");
	struct token_list ids = tokens_encode(t, "the the the", 11, false);
	struct detokenizer *d;
	struct error err = {0};
	assert_int_equal(detokenizer_create(&d, t, true, &err), STATUS_OK);
	static const char *const pieces[] = {"the", " the", " the"};
	assert_int_equal(ids.count, 3);
	for (size_t i = 0; i < 3; i++) {
		struct buf piece = {0};
		assert_int_equal(detokenizer_push(d, ids.ids[i], &piece, &err), STATUS_OK);
		tokens_assert_text("piece", &piece, pieces[i], strlen(pieces[i]));
		buf_fini(&piece);
	}
	detokenizer_destroy(&d);
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

/* "<think>" is an added token that is not special. */
static void test_special_text_of_a_user_stays_text(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("qwen3");
	static const char text[] = "a<|end|><think>b";
	struct token_list ids = {0};
	struct buf back = {0};
	struct error err = {0};
	assert_int_equal(tokenizer_encode_marked(t, text, sizeof text - 1, false, &(struct text_range){0, sizeof text - 1}, 1, &ids, &err), STATUS_OK);
	int32_t end = tokenizer_id(t, "<|end|>"), think = tokenizer_id(t, "<think>"), thinks = 0;
	for (size_t i = 0; i < ids.count; i++) {
		assert_int_not_equal(ids.ids[i], end);
		thinks += ids.ids[i] == think;
	}
	assert_int_equal(thinks, 1);
	assert_int_equal(tokenizer_decode(t, ids.ids, ids.count, true, &back, &err), STATUS_OK);
	tokens_assert_text("plain", &back, text, sizeof text - 1);
	buf_fini(&back);
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

static void test_asking_for_ids_and_texts(void **state)
{
	(void)state;
	struct tokenizer *t = tokens_open("llama3");
	int32_t s = tokenizer_id(t, "<s>"), end = tokenizer_vocab_size(t);
	assert_true(s >= 0 && s < end);
	assert_string_equal(tokenizer_text(t, s), "<s>");
	assert_true(tokenizer_is_special(t, s));
	assert_int_equal(tokenizer_id(t, "no such token"), -1);
	assert_int_equal(tokenizer_id(t, ""), -1);
	const int32_t none[] = {-1, end, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < 4; i++) {
		assert_null(tokenizer_text(t, none[i]));
		assert_false(tokenizer_is_special(t, none[i]));
	}
	struct token_list ids = {.ids = (int32_t *)none, .count = 4};
	struct buf text = tokens_decode(t, &ids, false);
	assert_int_equal(text.size, 0);
	buf_fini(&text);
	tokenizer_destroy(&t);
}

/* White space that the token before has swallowed is no token that swallows white space before it. As the reference has it. */
static void test_swallowed_space_is_no_token(void **state)
{
	(void)state;
	static const char format[] = "{\"added_tokens\":[{\"id\":3,\"content\":\"cat\",\"rstrip\":true,\"special\":true},"
	                             "{\"id\":4,\"content\":\"%s\",\"lstrip\":%s,\"rstrip\":%s,\"special\":true}],"
	                             "\"model\":{\"unk_token\":\"?\",\"vocab\":{\"?\":0,\"x\":1,\"y\":2},\"merges\":[]}}";
	static const struct {
		const char *content, *left, *right, *text, *want;
	} cases[] = {
		{"\\n", "true", "true", "cat\n\nx", "cat|x"},  {"\\n", "true", "true", "cat \n x\n y", "cat|x|\n|y"}, {"\\n", "true", "true", "cat\n", "cat"},
		{" ", "true", "false", "cat x", "cat|x"},      {" ", "false", "false", "cat  x", "cat| | |x"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char json[500];
		struct tokenizer *t;
		struct error err = {0};
		int n = snprintf(json, sizeof json, format, cases[i].content, cases[i].left, cases[i].right);
		if (tokenizer_parse(&t, json, (size_t)n, "test", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
		assert_encodes(t, cases[i].text, cases[i].want);
		tokenizer_destroy(&t);
	}
}

/* Invalid bytes count as U+FFFD, one for each maximal subpart. */
static void test_invalid_utf8_is_replaced(void **state)
{
	(void)state;
	static const char *const pairs[][2] = {
		{"a\xFF", "a\xEF\xBF\xBD"},
		{"\xC0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"\xE2\x82", "\xEF\xBF\xBD"},
		{"\xE2\x82x", "\xEF\xBF\xBDx"},
		{"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"\xF0\x9F\x98 \xF0\x9F", "\xEF\xBF\xBD \xEF\xBF\xBD"},
		{"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"\xF0\x9F\x98\xC3\xA9", "\xEF\xBF\xBD\xC3\xA9"},
	};
	struct tokenizer *t = tokens_open("gpt2");
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		struct token_list got = tokens_encode(t, pairs[i][0], strlen(pairs[i][0]), false), want = tokens_encode(t, pairs[i][1], strlen(pairs[i][1]), false);
		assert_ids(pairs[i][1], &got, want.ids, want.count);
		token_list_fini(&got);
		token_list_fini(&want);
	}
	tokenizer_destroy(&t);
}

/* llama.cpp#9195: every pair of bytes as tokens, streamed and whole, gives valid UTF-8, the same. */
static void test_any_bytes_decode_to_valid_text(void **state)
{
	(void)state;
	static const char *const names[] = {"gpt2", "llama2", "added"};
	for (size_t k = 0; k < 3; k++) {
		struct tokenizer *t = tokens_open(names[k]);
		for (int32_t a = 0; a < 270; a += 3) {
			for (int32_t b = 0; b < 270; b += 7) {
				int32_t list[] = {a, b, a, a, b, b, 100, a};
				struct token_list ids = {.ids = list, .count = 8};
				struct buf whole = tokens_decode(t, &ids, false), streamed = decode_streamed(t, &ids, false);
				tokens_assert_text(names[k], &streamed, whole.data ? whole.data : "", whole.size);
				buf_fini(&whole);
				buf_fini(&streamed);
			}
		}
		tokenizer_destroy(&t);
	}
}

static void test_a_failed_encode_keeps_the_list(void **state)
{
	(void)state;
	static const char json[] = "{\"model\":{\"type\":\"BPE\",\"unk_token\":\"<u>\",\"vocab\":{\"a\":0},\"merges\":[]}}";
	struct tokenizer *t;
	struct token_list ids = {0};
	struct error err = {0};
	assert_int_equal(tokenizer_parse(&t, json, sizeof json - 1, "test", NULL, &err), STATUS_OK);
	assert_int_equal(tokenizer_encode(t, "aa", 2, false, &ids, &err), STATUS_OK);
	assert_int_equal(ids.count, 2);
	assert_int_equal(tokenizer_encode(t, "ab", 2, false, &ids, &err), STATUS_BAD_INPUT);
	assert_int_equal(ids.count, 2);
	assert_non_null(strstr(err.text, "unknown token"));
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

/* The chain that needs a whole token after Fuse is late, but right. Strip never cuts past a token that is shorter than it wants. */
static void test_decoder_chains_stream(void **state)
{
	(void)state;
	static const char format[] = "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[%s]},\"model\":{\"vocab\":{\"a\":0,\" \":1,\"_\":2,\"_b_\":3,\"<0xC3>\":4,\"<0xA9>\":5},\"merges\":[]}}";
	static const struct {
		const char *chain, *want;
	} cases[] = {
		{"{\"type\":\"Fuse\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"__\"},\"content\":\"=\"}", "a =b=a<0xC3><0xA9><0xA9>"},
		{"{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\"a\",\"start\":5,\"stop\":2}", " __b__a<0xC3><0xA9><0xA9>"},
		{"{\"type\":\"Strip\",\"content\":\"_\",\"start\":1,\"stop\":3}", "a ba<0xC3><0xA9><0xA9>"},
		{"{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"ByteLevel\"}", "a __b__a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
		{"{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "a   b  a<0xC3><0xA9><0xA9>"},
		{"{\"type\":\"Fuse\"},{\"type\":\"Metaspace\",\"replacement\":\"_\"}", "a ba<0xC3><0xA9><0xA9>"},
	};
	int32_t list[] = {0, 1, 2, 3, 2, 0, 4, 5, 5};
	struct token_list ids = {.ids = list, .count = 9};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char json[600];
		struct tokenizer *t;
		struct error err = {0};
		int n = snprintf(json, sizeof json, format, cases[i].chain);
		if (tokenizer_parse(&t, json, (size_t)n, "test", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
		struct buf whole = tokens_decode(t, &ids, false), streamed = decode_streamed(t, &ids, false);
		tokens_assert_text(cases[i].chain, &whole, cases[i].want, strlen(cases[i].want));
		tokens_assert_text(cases[i].chain, &streamed, cases[i].want, strlen(cases[i].want));
		buf_fini(&whole);
		buf_fini(&streamed);
		tokenizer_destroy(&t);
	}
}

/* ---- long inputs ---- */

/* Of this thread's processor time: what else the machine does is not counted. */
static double cpu_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double encode_seconds(const struct tokenizer *t, const char *unit, size_t n, size_t *count)
{
	char *text = malloc(n);
	size_t m = strlen(unit);
	assert_non_null(text);
	for (size_t i = 0; i < n; i++) text[i] = unit[i % m];
	double begun = cpu_seconds();
	struct token_list ids = tokens_encode(t, text, n, false);
	double seconds = cpu_seconds() - begun;
	*count = ids.count;
	token_list_fini(&ids);
	free(text);
	return seconds;
}

/* llama.cpp#21919, #15594: 9,400 letters overflowed a recursive engine. Here 300,000 letters are one piece. */
static void test_long_runs_stay_near_linear(void **state)
{
	(void)state;
	static const char *const names[] = {"gpt2", "llama3", "qwen35", "tekken", "deepseek", "llama2", "metaspace", "smollm"};
	static const char *const units[] = {"a", "thin", "X", "1", " ", "\n", " \n", "=", "\xE4\xB8\xAD", "e\xCC\xA3\xCC\x81", "\xE2\x96\x81", "<", "\xFF", "a "};
	for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
		struct tokenizer *t = tokens_open(names[k]);
		for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
			size_t count;
			double seconds = encode_seconds(t, units[u], 300000, &count);
			if (seconds > 10) fail_msg("%s: 300 kB of \"%s\" took %.1f s", names[k], units[u], seconds); /* quadratic: minutes to hours */
		}
		tokenizer_destroy(&t);
	}
}

/* ---- threads ---- */

struct worker {
	pthread_t thread;
	const struct tokenizer *tokenizer;
	struct token_list ids;
	bool failed;
};

static const char shared_text[] = "The dog's bone isn't there; 12345 Vi\xE1\xBB\x87t <s> \xE6\x97\xA5\xE6\x9C\xAC \xFF e\xCC\x81\n\n end";

static void *encode_often(void *context)
{
	struct worker *w = context;
	for (int i = 0; i < 200 && !w->failed; i++) {
		struct buf text = {0};
		w->ids.count = 0;
		w->failed = tokenizer_encode(w->tokenizer, shared_text, sizeof shared_text - 1, true, &w->ids, NULL) != STATUS_OK ||
		            tokenizer_decode(w->tokenizer, w->ids.ids, w->ids.count, true, &text, NULL) != STATUS_OK;
		buf_fini(&text);
	}
	return NULL;
}

static void test_one_tokenizer_serves_many_threads(void **state)
{
	(void)state;
	static const char *const names[] = {"qwen3", "llama2"};
	for (size_t k = 0; k < 2; k++) {
		struct tokenizer *t = tokens_open(names[k]);
		struct worker workers[4] = {{0}};
		struct token_list want = tokens_encode(t, shared_text, sizeof shared_text - 1, true);
		for (int i = 0; i < 4; i++) {
			workers[i].tokenizer = t;
			assert_int_equal(pthread_create(&workers[i].thread, NULL, encode_often, &workers[i]), 0);
		}
		for (int i = 0; i < 4; i++) {
			assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
			assert_false(workers[i].failed);
			assert_ids(names[k], &workers[i].ids, want.ids, want.count);
			token_list_fini(&workers[i].ids);
		}
		token_list_fini(&want);
		tokenizer_destroy(&t);
	}
}

/* ---- damaged files ---- */

static void assert_refused(const char *json, enum status want, const char *word)
{
	struct tokenizer *t = (struct tokenizer *)&want;
	struct error err = {0};
	enum status st = tokenizer_parse(&t, json, strlen(json), "file", NULL, &err);
	if (st != want || t || !strstr(err.text, word)) fail_msg("%s: status %s, text \"%s\"; expected %s with \"%s\"", json, status_name(st), err.text, status_name(want), word);
}

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"

static void test_bad_files_are_refused_by_name(void **state)
{
	(void)state;
	assert_refused("", STATUS_BAD_INPUT, "file");
	assert_refused("[]", STATUS_BAD_INPUT, "not a JSON object");
	assert_refused("{}", STATUS_BAD_INPUT, "model");
	assert_refused("{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", STATUS_UNSUPPORTED, "Unigram");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", STATUS_BAD_INPUT, "id");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999},\"merges\":[]}}", STATUS_BAD_INPUT, "id");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0.5},\"merges\":[]}}", STATUS_BAD_INPUT, "id");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", STATUS_BAD_INPUT, "not in the vocabulary");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", STATUS_BAD_INPUT, "merge 0");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", STATUS_BAD_INPUT, "merge 0");
	assert_refused("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}", STATUS_UNSUPPORTED, "end_of_word_suffix");
	assert_refused("{" MODEL ",\"normalizer\":{\"type\":\"Lowercase\"}}", STATUS_UNSUPPORTED, "Lowercase");
	assert_refused("{" MODEL ",\"normalizer\":7}", STATUS_BAD_INPUT, "normalizer");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"}}", STATUS_UNSUPPORTED, "BertPreTokenizer");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(\"}}}", STATUS_BAD_INPUT, "pattern");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"(a)\\\\1\"}}}", STATUS_UNSUPPORTED, "\\1");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Torn\",\"pattern\":{\"String\":\"a\"}}}", STATUS_UNSUPPORTED, "Torn");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}}", STATUS_BAD_INPUT, "one character");
	assert_refused("{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false}}", STATUS_BAD_INPUT, "never");
	assert_refused("{" MODEL ",\"post_processor\":{\"type\":\"RobertaProcessing\"}}", STATUS_UNSUPPORTED, "RobertaProcessing");
	assert_refused("{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}}", STATUS_BAD_INPUT, "'x'");
	assert_refused("{" MODEL ",\"decoder\":{\"type\":\"WordPiece\"}}", STATUS_UNSUPPORTED, "WordPiece");
	assert_refused("{" MODEL ",\"added_tokens\":{}}", STATUS_BAD_INPUT, "added_tokens");
	assert_refused("{" MODEL ",\"added_tokens\":[{\"id\":3}]}", STATUS_BAD_INPUT, "content");
}

static void test_nesting_is_bounded(void **state)
{
	(void)state;
	static const char *const keys[][2] = {{"normalizer", "normalizers"}, {"pre_tokenizer", "pretokenizers"}, {"post_processor", "processors"}, {"decoder", "decoders"}};
	for (size_t k = 0; k < 4; k++) {
		struct buf json = {0};
		struct error err = {0};
		assert_int_equal(buf_printf(&json, &err, "{" MODEL ",\"%s\":", keys[k][0]), STATUS_OK);
		for (int i = 0; i < 500; i++) assert_int_equal(buf_printf(&json, &err, "{\"type\":\"Sequence\",\"%s\":[", keys[k][1]), STATUS_OK);
		for (int i = 0; i < 500; i++) assert_int_equal(buf_puts(&json, "]}", &err), STATUS_OK);
		assert_int_equal(buf_puts(&json, "}", &err), STATUS_OK);
		assert_refused(json.data, STATUS_BAD_INPUT, "nested");
		buf_fini(&json);
	}
}

static void count_warning(void *context, enum log_level level, const char *line)
{
	(void)line;
	if (level == LOG_WARN) ++*(int *)context;
}

/* An id in the file is a claim; the reference numbers tokens that the vocabulary lacks itself. */
static void test_ids_of_added_tokens(void **state)
{
	(void)state;
	static const char json[] = "{" MODEL ",\"added_tokens\":[{\"id\":0,\"content\":\"a\",\"special\":true},{\"id\":3,\"content\":\"x\"},{\"id\":9,\"content\":\"y\"},{\"id\":5,\"content\":\"\"}]}";
	int warnings = 0;
	struct log log = {.write = count_warning, .context = &warnings};
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_parse(&t, json, sizeof json - 1, "test", &log, &err), STATUS_OK);
	assert_int_equal(tokenizer_id(t, "x"), 3);
	assert_int_equal(tokenizer_id(t, "y"), 4);
	assert_int_equal(tokenizer_vocab_size(t), 5);
	assert_int_equal(warnings, 1);
	assert_encodes(t, "abxab", "a|b|x|a|b");
	tokenizer_destroy(&t);
}

/* As of Gemma 3 1B, whose <image_soft_token> is past its embedding. */
static void test_added_tokens_past_the_embedding(void **state)
{
	(void)state;
	static const char json[] = "{\"added_tokens\":[{\"id\":1,\"content\":\"b\",\"special\":true},{\"id\":3,\"content\":\"<x>\",\"special\":true}]," MODEL
	                           ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<x>\"}}],"
	                           "\"special_tokens\":{\"<x>\":{\"ids\":[3]}}}}";
	const struct text_range user = {0, 1};
	int warnings = 0;
	struct log log = {.write = count_warning, .context = &warnings};
	struct tokenizer *t;
	struct token_list ids = {0};
	struct error err = {0};
	assert_int_equal(tokenizer_parse(&t, json, sizeof json - 1, "test", &log, &err), STATUS_OK);
	assert_int_equal(tokenizer_limit(t, 4, "test", &log, &err), STATUS_OK);
	assert_int_equal(tokenizer_encode(t, "a<x>", 4, true, &ids, &err), STATUS_OK);
	assert_int_equal(warnings, 0);
	assert_int_equal(tokenizer_limit(t, 2, "test", &log, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "id is 2,"));
	assert_int_equal(tokenizer_limit(t, 3, "test", &log, &err), STATUS_OK);
	assert_int_equal(warnings, 1);
	ids.count = 1;
	err = (struct error){0};
	assert_int_equal(tokenizer_encode(t, "a", 1, false, &ids, &err), STATUS_OK);
	assert_int_equal(tokenizer_encode(t, "a<x>", 4, false, &ids, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "<x>"));
	assert_int_equal(tokenizer_encode(t, "a", 1, true, &ids, &err), STATUS_BAD_INPUT); /* the one behind every text */
	assert_int_equal(tokenizer_encode_marked(t, "a<x>", 4, false, &user, 1, &ids, &err), STATUS_BAD_INPUT);
	assert_int_equal(ids.count, 2);
	token_list_fini(&ids);
	tokenizer_destroy(&t);
}

static void test_missing_file_names_the_path(void **state)
{
	(void)state;
	struct tokenizer *t;
	struct error err = {0};
	assert_int_equal(tokenizer_open(&t, TOKENS_FOLDER, NULL, &err), STATUS_IO);
	assert_null(t);
	assert_non_null(strstr(err.text, TOKENS_FOLDER "/tokenizer.json"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_files_give_the_ids_and_texts_of_the_reference),
		cmocka_unit_test(test_ignore_merges_takes_a_whole_piece_that_merges_cannot_reach),
		cmocka_unit_test(test_a_user_writes_no_special_token),
		cmocka_unit_test(test_a_normalizer_keeps_apart_whose_text_is),
		cmocka_unit_test(test_bytes_of_a_token_alone),
		cmocka_unit_test(test_word_marks_of_llama2),
		cmocka_unit_test(test_swallowed_space_is_no_token),
		cmocka_unit_test(test_special_text_of_a_user_stays_text),
		cmocka_unit_test(test_asking_for_ids_and_texts),
		cmocka_unit_test(test_invalid_utf8_is_replaced),
		cmocka_unit_test(test_any_bytes_decode_to_valid_text),
		cmocka_unit_test(test_a_failed_encode_keeps_the_list),
		cmocka_unit_test(test_decoder_chains_stream),
		cmocka_unit_test(test_long_runs_stay_near_linear),
		cmocka_unit_test(test_one_tokenizer_serves_many_threads),
		cmocka_unit_test(test_bad_files_are_refused_by_name),
		cmocka_unit_test(test_nesting_is_bounded),
		cmocka_unit_test(test_ids_of_added_tokens),
		cmocka_unit_test(test_added_tokens_past_the_embedding),
		cmocka_unit_test(test_missing_file_names_the_path),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
