/* The engine against Hugging Face transformers on the tiny models of tests/golden: all positions, every legal world size, both config
 * styles; and against itself, bit for bit, over world sizes, chunks, threads, pages and instruction sets (contract C6). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "unit/golden.h"

#define TOLERANCE 1e-4 /* of the largest logit */
#define MAX_TOKENS 512

static struct tandem_options options_for(const char *path, int world_size)
{
	return (struct tandem_options){.model = path, .world_size = world_size, .threads = world_size};
}

static float *run(const struct tandem_options *options, const int32_t *tokens, int count, int vocab)
{
	struct tandem_error err = {0};
	int got_vocab = 0;
	float *logits = golden_logits(options, tokens, count, &got_vocab, &err);
	if (!logits) fail_msg("%s, P=%d: %s", options->model, options->world_size, err.text);
	assert_int_equal(got_vocab, vocab);
	return logits;
}

static void assert_close(const float *got, const float *want, int count, int vocab, const char *model)
{
	double largest = 0, worst = 0;
	size_t n = (size_t)count * (size_t)vocab, at = 0;
	for (size_t i = 0; i < n; i++)
		if (fabs((double)want[i]) > largest) largest = fabs((double)want[i]);
	for (size_t i = 0; i < n; i++) {
		double error = fabs((double)got[i] - (double)want[i]);
		if (error > worst || isnan(got[i])) {
			worst = isnan(got[i]) ? INFINITY : error;
			at = i;
		}
	}
	if (worst > TOLERANCE * largest)
		fail_msg("%s: logit [%zu][%zu] is %g, want %g: error %g of the largest %g, limit %g", model, at / (size_t)vocab, at % (size_t)vocab,
		         (double)got[at], (double)want[at], worst / largest, largest, TOLERANCE);
}

static void assert_same_bits(const float *got, const float *want, int count, int vocab, const char *model, const char *what)
{
	for (size_t i = 0; i < (size_t)count * (size_t)vocab; i++)
		if (memcmp(&got[i], &want[i], sizeof *got))
			fail_msg("%s, %s: logit [%zu][%zu] is %a, with one rank %a", model, what, i / (size_t)vocab, i % (size_t)vocab, (double)got[i],
			         (double)want[i]);
}

/* One case of one model: HF's logits at P=1, the same bits for every other way to run it. */
static void check_case(const char *model, const json_t *expect, const json_t *item)
{
	char path[256];
	int32_t tokens[MAX_TOKENS];
	int count = golden_ids(json_object_get(item, "tokens"), tokens, MAX_TOKENS);
	int vocab = (int)json_integer_value(json_array_get(json_object_get(item, "shape"), 1));
	float *want = golden_floats(model, json_string_value(json_object_get(item, "logits")), (size_t)count * (size_t)vocab);
	snprintf(path, sizeof path, GOLDEN_DIR "%s", model);

	struct tandem_options one = options_for(path, 1);
	one.context = count + 32;
	float *base = run(&one, tokens, count, vocab);
	assert_close(base, want, count, vocab, model);

	const json_t *degrees = json_object_get(expect, "legal_tp");
	for (size_t i = 0; i < json_array_size(degrees); i++) {
		int world_size = (int)json_integer_value(json_array_get(degrees, i));
		struct tandem_options many = one;
		char what[64];
		many.world_size = many.threads = world_size;
		many.kv_shuffle = 77; /* ranks with differently permuted blocks */
		many.kv_block_tokens = 16;
		many.prefill_chunk = 7 + 4 * world_size;
		snprintf(what, sizeof what, "P=%d, chunk %d, shuffled blocks of 16", world_size, many.prefill_chunk);
		float *got = run(&many, tokens, count, vocab);
		assert_same_bits(got, base, count, vocab, model, what);
		free(got);
	}
	free(base);
	free(want);
}

static void test_logits_of_every_model(void **state)
{
	(void)state;
	json_t *index = golden_index(), *models = json_object_get(index, "models");
	for (size_t m = 0; m < json_array_size(models); m++) {
		const char *model = json_string_value(json_object_get(json_array_get(models, m), "name"));
		json_t *expect = golden_load(model, "expect.json"), *cases = json_object_get(expect, "cases");
		for (size_t i = 0; i < json_array_size(cases); i++) check_case(model, expect, json_array_get(cases, i));
		json_decref(expect);
	}
	assert_true(json_array_size(models) >= 20);
	json_decref(index);
}

static void test_both_config_styles_mean_the_same(void **state)
{
	(void)state;
	json_t *index = golden_index(), *models = json_object_get(index, "models");
	for (size_t m = 0; m < json_array_size(models); m++) {
		json_t *entry = json_array_get(models, m);
		const char *model = json_string_value(json_object_get(entry, "name"));
		json_t *expect = golden_load(model, "expect.json"), *item = json_array_get(json_object_get(expect, "cases"), 0);
		char path[256], variant[256];
		int32_t tokens[MAX_TOKENS];
		int count = golden_ids(json_object_get(item, "tokens"), tokens, MAX_TOKENS);
		int vocab = (int)json_integer_value(json_array_get(json_object_get(item, "shape"), 1));
		snprintf(path, sizeof path, GOLDEN_DIR "%s", model);
		golden_variant(variant, model, json_string_value(json_array_get(json_object_get(entry, "configs"), 1)));
		struct tandem_options a = options_for(path, 1), b = options_for(variant, 1);
		float *first = run(&a, tokens, count, vocab), *second = run(&b, tokens, count, vocab);
		assert_same_bits(second, first, count, vocab, model, "the other config style");
		golden_variant_remove(variant);
		free(first);
		free(second);
		json_decref(expect);
	}
	json_decref(index);
}

static void test_greedy_continuations(void **state)
{
	(void)state;
	json_t *index = golden_index(), *models = json_object_get(index, "models");
	for (size_t m = 0; m < json_array_size(models); m++) {
		const char *model = json_string_value(json_object_get(json_array_get(models, m), "name"));
		json_t *expect = golden_load(model, "expect.json"), *cases = json_object_get(expect, "cases");
		json_t *degrees = json_object_get(expect, "legal_tp");
		int world_size = (int)json_integer_value(json_array_get(degrees, json_array_size(degrees) - 1));
		char path[256];
		snprintf(path, sizeof path, GOLDEN_DIR "%s", model);
		for (size_t i = 0; i < json_array_size(cases); i++) {
			json_t *item = json_array_get(cases, i), *stop = json_object_get(item, "stop");
			for (int with_eos = 0; with_eos <= (stop != NULL); with_eos++) {
				int32_t tokens[MAX_TOKENS], want[MAX_TOKENS], got[MAX_TOKENS];
				int count = golden_ids(json_object_get(item, "tokens"), tokens, MAX_TOKENS), got_count;
				int n = golden_ids(json_object_get(with_eos ? stop : item, "greedy"), want, MAX_TOKENS);
				struct tandem_options o = options_for(path, world_size);
				struct tandem_error err = {0};
				struct tandem *engine;
				o.context = count + n + 1;
				if (tandem_open(&engine, &o, &err)) fail_msg("%s: %s", model, err.text);
				if (golden_greedy(engine, tokens, count, with_eos ? n + 20 : n, !with_eos, got, &got_count, &err)) fail_msg("%s: %s", model, err.text);
				tandem_close(&engine);
				assert_int_equal(got_count, n);
				for (int k = 0; k < n; k++)
					if (got[k] != want[k]) fail_msg("%s, P=%d: token %d is %d, want %d", model, world_size, k, got[k], want[k]);
			}
		}
		json_decref(expect);
	}
	json_decref(index);
}

static void test_threads_and_instruction_sets_do_not_change_a_bit(void **state)
{
	(void)state;
	static const char *const models[] = {"llama", "qwen3", "mistral-window", "llama-12-heads", "llama-tied", "qwen3_5", "qwen3_next-dense", "qwen3-moe-norm", "qwen3_next-moe"};
	static const char *const isas[] = {"c", "avx2", "avx512"};
	for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
		json_t *expect = golden_load(models[m], "expect.json"), *item = json_array_get(json_object_get(expect, "cases"), 0);
		int32_t tokens[MAX_TOKENS];
		int count = golden_ids(json_object_get(item, "tokens"), tokens, MAX_TOKENS);
		int vocab = (int)json_integer_value(json_array_get(json_object_get(item, "shape"), 1));
		char path[256];
		snprintf(path, sizeof path, GOLDEN_DIR "%s", models[m]);
		struct tandem_options o = options_for(path, 1);
		float *base = run(&o, tokens, count, vocab);
		for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
			for (int threads = 1; threads <= 8; threads += 7) {
				struct tandem_error err = {0};
				int got_vocab;
				o.isa = isas[i];
				o.threads = threads;
				o.world_size = i % 2 ? 2 : 1;
				float *got = golden_logits(&o, tokens, count, &got_vocab, &err);
				if (!got && !strcmp(tandem_status_name(err.code), "unsupported")) continue; /* not on this processor */
				if (!got) fail_msg("%s: %s", models[m], err.text);
				assert_same_bits(got, base, count, vocab, models[m], isas[i]);
				free(got);
			}
		}
		free(base);
		json_decref(expect);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_logits_of_every_model),
		cmocka_unit_test(test_both_config_styles_mean_the_same),
		cmocka_unit_test(test_greedy_continuations),
		cmocka_unit_test(test_threads_and_instruction_sets_do_not_change_a_bit),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
