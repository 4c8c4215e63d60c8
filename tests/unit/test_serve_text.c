/* The pure text parts of the server: stop strings cut anywhere, JSON for any bytes, log-probabilities, error bodies. */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "serve/logprobs.h"
#include "serve/refusal.h"
#include "serve/stop.h"
#include "text/utf8.h"

/* ---- stop strings ---- */

/* What must come out: the text before the match that ends first behind `early` bytes, of those the longest. */
static size_t expected_cut(const char *text, const char *const *stops, int count, size_t early, int *which)
{
	size_t n = strlen(text);
	*which = -1;
	for (size_t end = early + 1; end <= n; end++) {
		size_t best = 0;
		for (int i = 0; i < count; i++) {
			size_t m = strlen(stops[i]);
			if (m <= end && m > best && !memcmp(text + end - m, stops[i], m)) best = m, *which = i;
		}
		if (best) return end - best;
	}
	return n;
}

/* Feeds `text` in pieces of the sizes that `seed` draws, `early` bytes of it as such in which no string is complete; checks that nothing is held
 * without need. */
static void check_stops(const char *text, const char *const *stops, int count, size_t early, uint64_t seed, bool include)
{
	struct stop_set set = {0};
	struct stop_scan scan = {0};
	struct buf out = {0};
	int which, found = -1;
	size_t cut = expected_cut(text, stops, count, early, &which), n = strlen(text), at = 0;
	for (int i = 0; i < count; i++) assert_int_equal(stop_add(&set, stops[i], strlen(stops[i]), NULL), STATUS_OK);
	for (uint64_t k = 0; at < n && found < 0; k++) {
		size_t piece = 1 + rng_u64(seed, 1, k) % 5;
		if (piece > n - at) piece = n - at;
		if (at < early && piece > early - at) piece = early - at;
		enum status st = at < early ? stop_pass(&scan, &set, text + at, piece, &out, NULL)
		                            : stop_push(&scan, &set, text + at, piece, include, &out, &found, NULL);
		assert_int_equal(st, STATUS_OK);
		at += piece;
		if (found >= 0) break;
		size_t held = 0; /* the longest end of what came that begins a stop string */
		for (int i = 0; i < count; i++)
			for (size_t m = 1; m < strlen(stops[i]) && m <= at; m++)
				if (m > held && !memcmp(text + at - m, stops[i], m)) held = m;
		if (out.size != at - held) fail_msg("\"%s\" after %zu bytes: %zu are out, not %zu", text, at, out.size, at - held);
	}
	if (found < 0) assert_int_equal(stop_finish(&scan, &out, NULL), STATUS_OK);
	size_t want = cut + (include && which >= 0 ? strlen(stops[which]) : 0);
	if (found != which || out.size != want || memcmp(out.data ? out.data : "", text, want) != 0)
		fail_msg("\"%s\": stop %d (expected %d), text \"%s\" of %zu bytes (expected %zu)", text, found, which, out.data ? out.data : "", out.size, want);
	buf_fini(&out);
	stop_scan_fini(&scan);
	stop_fini(&set);
}

static void test_stop_strings_in_pieces(void **state)
{
	(void)state;
	static const char *const sets[][3] = {{"DEFGHIJ", NULL, NULL}, {"aab", "ab", NULL}, {"abcd", "bc", "x"}, {"aaaa", "aaaab", NULL}, {"\n\n", "\n", NULL},
	                                      {"abab", "babx", "ba"}, {"e\xcc\x81", "\xe4\xb8\x96\xe7\x95\x8c", NULL}};
	static const char *const texts[] = {"ABCDEFGHIJKLM", "aaab", "abcabcd", "aaaaaab", "line\n\nnext", "ababab", "xbabx", "caf\x65\xcc\x81 \xe4\xb8\x96\xe7\x95\x8c!", "DEFGHI", "", "ab"};
	for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
		int count = 0;
		while (count < 3 && sets[s][count]) count++;
		for (size_t t = 0; t < sizeof texts / sizeof *texts; t++)
			for (uint64_t seed = 0; seed < 20; seed++) check_stops(texts[t], sets[s], count, seed / 2 % 5, seed, seed % 2);
	}
}

static void test_stop_strings_at_random(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 3000; seed++) {
		char text[40], stop[3][8];
		const char *stops[3];
		int n = (int)(rng_u64(seed, 2, 0) % 39), count = 1 + (int)(rng_u64(seed, 2, 1) % 3);
		for (int i = 0; i < n; i++) text[i] = (char)('a' + rng_u64(seed, 3, (uint64_t)i) % 2);
		text[n] = 0;
		for (int k = 0; k < count; k++) {
			int m = 1 + (int)(rng_u64(seed, 4, (uint64_t)k) % 7);
			for (int i = 0; i < m; i++) stop[k][i] = (char)('a' + rng_u64(seed, 5 + (uint64_t)k, (uint64_t)i) % 2);
			stop[k][m] = 0;
			stops[k] = stop[k];
		}
		check_stops(text, stops, count, seed / 3 % 9, seed, seed % 3 == 0);
	}
}

/* ---- JSON ---- */

/* `text` as a JSON string is valid, and says the same after reading, ill-formed parts replaced. */
static void check_string(const char *text, size_t n)
{
	struct out out = {0};
	struct buf want = {0};
	json_error_t why;
	out_string(&out, text, n);
	assert_false(out.failed);
	assert_int_equal(utf8_valid_prefix(out.buf.data, out.buf.size), out.buf.size);
	json_t *back = json_loadb(out.buf.data, out.buf.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
	if (!back) fail_msg("%s: %s", out.buf.data, why.text);
	assert_int_equal(utf8_append_lossy(&want, text, n, NULL), STATUS_OK);
	if (json_string_length(back) != want.size || memcmp(json_string_value(back), want.data ? want.data : "", want.size) != 0)
		fail_msg("%s: reads back as other text", out.buf.data);
	for (size_t i = 0; i < out.buf.size; i++) assert_true((unsigned char)out.buf.data[i] >= 0x20 && out.buf.data[i] != 0x7f);
	assert_null(memmem(out.buf.data, out.buf.size, "\xc2\x85", 2));
	assert_null(memmem(out.buf.data, out.buf.size, "\xe2\x80\xa8", 3));
	assert_null(memmem(out.buf.data, out.buf.size, "\xe2\x80\xa9", 3));
	json_decref(back);
	buf_fini(&want);
	out_fini(&out);
}

/* llama.cpp#9195 */
static void test_any_bytes_become_valid_json(void **state)
{
	(void)state;
	static const char *const texts[] = {"", "plain", "\xc0\xaf", "\xed\xa0\x80", "\xe4\xbd", "\xf5\x80\x80\x80", "a\xe2\x80\xa8z\xe2\x80\xa9\xc2\x85", "\"\\\b\f\n\r\t/", "\xf0\x9f\x98\x80", "\xef\xbf\xbd"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check_string(texts[i], strlen(texts[i]));
	for (int b = 0; b < 256; b++) {
		char text[3] = {'x', (char)b, 'y'};
		check_string(text, 3);
		check_string(text + 1, 1);
	}
	for (uint64_t seed = 0; seed < 2000; seed++) {
		char text[24];
		for (size_t i = 0; i < sizeof text; i++) text[i] = (char)rng_u64(seed, 9, i);
		check_string(text, sizeof text);
	}
}

static void check_logprob(float value, const char *want)
{
	struct out out = {0};
	out_logprob(&out, value);
	assert_string_equal(out.buf.data, want);
	out_fini(&out);
}

static void test_log_probabilities_are_json_numbers(void **state)
{
	(void)state;
	check_logprob(-INFINITY, "-9999.0");
	check_logprob(-1e30f, "-9999.0");
	check_logprob(NAN, "null");
	check_logprob(0, "0.0");
	check_logprob(-0.0f, "0.0");
	check_logprob(1e-6f, "0.0");
	check_logprob(-1, "-1.0");
	check_logprob(-0.5f, "-0.5");
	check_logprob(-1e-9f, "-1e-09");
}

static json_t *read_json(struct out *out)
{
	json_error_t why;
	assert_false(out->failed);
	json_t *value = json_loadb(out->buf.data, out->buf.size, JSON_REJECT_DUPLICATES, &why);
	if (!value) fail_msg("%s: %s", out->buf.data, why.text);
	return value;
}

/* Without a tokenizer: ids stand for text, and the forms are the same. */
static void test_forms_of_log_probabilities(void **state)
{
	(void)state;
	struct logprobs l = {0};
	struct out out = {0};
	const int32_t ids[] = {7, 8, 7};
	const float values[] = {-0.5f, -INFINITY, -0.5f};
	struct logprob_entry first = {.token = 5}, entry = {.token = 9, .scored = true, .logprob = -2, .alternatives = 3, .alternative_id = ids, .alternative_logprob = values, .offset = 4};
	struct logprob_style style = {.endpoint = ENDPOINT_COMPLETIONS, .top = 2};
	logprobs_add(&l, &style, &first);
	logprobs_add(&l, &style, &entry);
	logprobs_take(&l, ENDPOINT_COMPLETIONS, &out);
	assert_string_equal(out.buf.data, "{\"tokens\":[\"token_id:5\",\"token_id:9\"],\"token_logprobs\":[null,-2.0],\"top_logprobs\":[null,"
	                                  "{\"token_id:7\":-0.5,\"token_id:8\":-9999.0,\"token_id:9\":-2.0}],\"text_offset\":[0,4]}");
	json_decref(read_json(&out));
	out_clear(&out);
	logprobs_take(&l, ENDPOINT_COMPLETIONS, &out);
	assert_string_equal(out.buf.data, "null");
	out_clear(&out);
	style = (struct logprob_style){.endpoint = ENDPOINT_CHAT, .top = 1};
	logprobs_add(&l, &style, &entry);
	logprobs_take(&l, ENDPOINT_CHAT, &out);
	assert_string_equal(out.buf.data, "{\"content\":[{\"token\":\"token_id:9\",\"logprob\":-2.0,\"bytes\":null,\"top_logprobs\":[{\"token\":\"token_id:7\","
	                                  "\"logprob\":-0.5,\"bytes\":null}]}],\"refusal\":null}");
	out_clear(&out);
	style.top = 3; /* the same text twice is one key */
	style.endpoint = ENDPOINT_COMPLETIONS;
	logprobs_add(&l, &style, &entry);
	logprobs_take(&l, ENDPOINT_COMPLETIONS, &out);
	json_decref(read_json(&out));
	out_clear(&out);
	logprobs_put_prompt(&out, &(struct logprob_style){.top = 2}, &entry);
	json_decref(read_json(&out));
	out_fini(&out);
	logprobs_fini(&l);
}

/* Each of the alternatives is a key of its own whatever the others spell, and once only. */
static void test_tokens_that_spell_parts_of_keys(void **state)
{
	(void)state;
	static const char *const spelled[] = {"\".", ".", "\"", ",\".", ",", "\\", "\\\"", "a", ":", "\":", ",\"", "a\",\"."};
	enum { COUNT = sizeof spelled / sizeof *spelled };
	struct tokenizer_text tokens[COUNT];
	uint8_t kinds[COUNT];
	float values[2 * COUNT];
	int32_t ids[2 * COUNT];
	for (size_t i = 0; i < COUNT; i++) {
		tokens[i] = (struct tokenizer_text){.data = spelled[i], .size = strlen(spelled[i])};
		kinds[i] = TOKEN_NORMAL;
		values[i] = values[COUNT + i] = -1;
	}
	struct tokenizer_description d = {.model = TOKENIZER_BYTE_LEVEL, .count = COUNT, .tokens = tokens, .kinds = kinds, .bos = -1, .eos = -1, .unknown = -1};
	struct tokenizer *tokenizer;
	struct error err = {0};
	if (tokenizer_create(&tokenizer, &d, "test", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	struct detokenizer *detokenizer;
	assert_int_equal(detokenizer_create(&detokenizer, tokenizer, false, NULL), STATUS_OK);
	struct logprob_style style = {.endpoint = ENDPOINT_COMPLETIONS, .top = 2 * COUNT, .detokenizer = detokenizer};
	struct logprobs l = {0};
	struct out out = {0};
	for (uint64_t seed = 0; seed < 200; seed++) {
		for (int i = 0; i < 2 * COUNT; i++) ids[i] = (int32_t)(rng_u64(seed, 1, (uint64_t)i) % COUNT);
		struct logprob_entry entry = {.token = (int32_t)(seed % COUNT), .scored = true, .logprob = -2, .alternatives = (int)(seed % (2 * COUNT)), .alternative_id = ids, .alternative_logprob = values};
		logprobs_add(&l, &style, &entry);
		logprobs_take(&l, ENDPOINT_COMPLETIONS, &out);
		json_t *body = read_json(&out), *top = json_array_get(json_object_get(body, "top_logprobs"), 0);
		for (int i = 0; i < entry.alternatives; i++)
			if (!json_object_get(top, spelled[ids[i]])) fail_msg("seed %d: %s is not in %s", (int)seed, spelled[ids[i]], out.buf.data);
		assert_non_null(json_object_get(top, spelled[entry.token]));
		json_decref(body);
		out_clear(&out);
	}
	out_fini(&out);
	logprobs_fini(&l);
	detokenizer_destroy(&detokenizer);
	tokenizer_destroy(&tokenizer);
}

static void test_error_bodies(void **state)
{
	(void)state;
	struct refusal r;
	struct out out = {0};
	static const struct {
		int status;
		const char *type;
	} rows[] = {{400, "invalid_request_error"}, {401, "authentication_error"}, {404, "not_found_error"}, {408, "timeout_error"}, {413, "invalid_request_error"},
	            {429, "rate_limit_error"}, {500, "server_error"}, {501, "not_supported_error"}, {503, "unavailable_error"}};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		assert_int_equal(refuse(&r, rows[i].status, i % 2 ? "field" : NULL, "bytes \xff and \"quotes\""), STATUS_BAD_INPUT);
		assert_int_equal(r.retry_after > 0, rows[i].status == 429 || rows[i].status == 503);
		refusal_write(&r, &out);
		json_t *body = read_json(&out), *error = json_object_get(body, "error");
		assert_string_equal(json_string_value(json_object_get(error, "type")), rows[i].type);
		assert_int_equal(json_integer_value(json_object_get(error, "code")), rows[i].status);
		assert_true(i % 2 ? json_is_string(json_object_get(error, "param")) : json_is_null(json_object_get(error, "param")));
		json_decref(body);
		out_clear(&out);
	}
	struct error inside = {.text = "src/engine/x.c: secret"};
	(void)refuse_error(&r, NULL, STATUS_ABORTED, &inside);
	assert_int_equal(r.status, 500);
	assert_null(strstr(r.message, "secret"));
	out_fini(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stop_strings_in_pieces),
		cmocka_unit_test(test_stop_strings_at_random),
		cmocka_unit_test(test_any_bytes_become_valid_json),
		cmocka_unit_test(test_log_probabilities_are_json_numbers),
		cmocka_unit_test(test_forms_of_log_probabilities),
		cmocka_unit_test(test_tokens_that_spell_parts_of_keys),
		cmocka_unit_test(test_error_bodies),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
