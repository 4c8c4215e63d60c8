/* Rotary frequencies and rows against HF transformers, bit for bit where rounding allows: a frequency within one unit in the last
 * place, a cosine or sine within what that unit makes at its position. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "model/rope.h"
#include "unit/files.h"
#include "unit/rope_values.h"

#define CASES (sizeof rope_cases / sizeof *rope_cases)

static void load(struct rope_table *table, const struct rope_case *c)
{
	char text[1024];
	snprintf(text, sizeof text,
	         "{\"model_type\":\"llama\",\"hidden_size\":%d,\"intermediate_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":8,"
	         "\"head_dim\":%d,\"vocab_size\":8,\"max_position_embeddings\":%d,\"rope_parameters\":%s}",
	         8 * c->head_dim, c->head_dim, c->max_position, c->parameters);
	struct model_config config;
	struct error err = {0};
	if (model_config_parse(&config, text, strlen(text), c->name, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	if (rope_init(table, &config, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static int ulps(float a, float b)
{
	return abs((int)f32_to_bits(a) - (int)f32_to_bits(b)); /* both positive */
}

static void test_frequencies(void **state)
{
	(void)state;
	for (size_t i = 0; i < CASES; i++) {
		const struct rope_case *c = &rope_cases[i];
		struct rope_table table;
		load(&table, c);
		assert_int_equal(table.rotary_dim, c->head_dim);
		if (table.scale != c->scale) fail_msg("%s: scale: expected %.9g, found %.9g", c->name, (double)c->scale, (double)table.scale);
		for (int k = 0; k < c->head_dim / 2; k++)
			if (ulps(table.inv_freq[k], c->inv_freq[k]) > 1)
				fail_msg("%s: frequency %d: expected %.9g, found %.9g", c->name, k, (double)c->inv_freq[k], (double)table.inv_freq[k]);
	}
}

static void test_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < CASES; i++) {
		const struct rope_case *c = &rope_cases[i];
		struct rope_table table;
		load(&table, c);
		for (int p = 0; p < ROPE_POSITIONS; p++) {
			float row[128];
			rope_row(&table, rope_positions[p], row);
			for (int k = 0; k < c->head_dim; k++) {
				/* the angle is at most the position; one unit of the frequency moves it by position * 2^-23, theta' of dynamic by some */
				double bound = 2e-7 + rope_positions[p] * (table.config.type == ROPE_DYNAMIC ? 6e-7 : 1.2e-7);
				double expected = (double)c->rows[p][k], found = (double)row[k];
				if (!(fabs(expected - found) <= bound))
					fail_msg("%s: position %d: element %d: expected %.9g, found %.9g", c->name, rope_positions[p], k, expected, found);
			}
		}
	}
}

/* A dynamic row depends on its own position alone, and joins the unscaled rows at the original length. */
static void test_dynamic(void **state)
{
	(void)state;
	const struct rope_case *dynamic = &rope_cases[3];
	struct rope_table table, plain;
	assert_string_equal(dynamic->name, "dynamic");
	load(&table, dynamic);
	plain = table;
	plain.config.type = ROPE_DEFAULT;
	float a[16], b[16];
	rope_row(&table, 63, a);
	rope_row(&plain, 63, b);
	assert_memory_equal(a, b, sizeof a);
	rope_row(&table, 64, a);
	rope_row(&plain, 64, b);
	assert_memory_not_equal(a, b, sizeof a);
	rope_row(&table, 200, b);
	rope_row(&table, 64, b);
	assert_memory_equal(a, b, sizeof a);
}

static void test_refusals(void **state)
{
	(void)state;
	struct rope_table table;
	struct model_config config = {.rotary_dim = 7, .rope = {.type = ROPE_DEFAULT, .theta = 10000}};
	struct error err = {0};
	assert_int_equal(rope_init(&table, &config, &err), STATUS_UNSUPPORTED);
	config.rotary_dim = ROPE_MAX_DIM + 2;
	assert_int_equal(rope_init(&table, &config, NULL), STATUS_UNSUPPORTED);
	config.rotary_dim = 8;
	config.rope.theta = 0;
	err = (struct error){0};
	assert_int_equal(rope_init(&table, &config, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "rope_theta"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_frequencies),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_dynamic),
		cmocka_unit_test(test_refusals),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
