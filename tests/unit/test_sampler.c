/* Sampling: greedy and filters by hand-made logits, the draw by statistics and by seed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/sampler.h"

#define VOCAB 8
static const float base_logits[VOCAB] = {0.0f, 1.0f, 2.0f, 3.0f, 3.0f, -1.0f, 0.5f, -2.0f};
static const struct sampler_params off = {.top_p = 1, .repetition_penalty = 1};

static struct sampler_choice pick_with(const struct sampler_params *params, struct sampler_input in)
{
	static float logits[VOCAB];
	struct sampler *sampler;
	struct sampler_choice choice;
	struct error err = {0};
	if (!in.logits) {
		memcpy(logits, base_logits, sizeof logits);
		in.logits = logits;
	}
	assert_int_equal(sampler_create(&sampler, VOCAB, &err), STATUS_OK);
	if (sampler_pick(sampler, params, &in, &choice, &err) != STATUS_OK) fail_msg("%s", err.text);
	sampler_destroy(&sampler);
	return choice;
}

static void test_greedy_takes_the_smallest_id_among_equals(void **state)
{
	(void)state;
	assert_int_equal(pick_with(&off, (struct sampler_input){0}).token, 3);
	struct sampler_params p = off;
	const double tiny[] = {1e-10, 5e-324, 1e-6};
	for (int i = 0; i < 3; i++) {
		p.temperature = tiny[i];
		assert_int_equal(pick_with(&p, (struct sampler_input){0}).token, 3);
	}
}

static void test_tiny_temperature_and_top_p_stay_finite(void **state)
{
	(void)state;
	struct sampler_params p = off;
	p.temperature = 1e-4;
	int32_t token = pick_with(&p, (struct sampler_input){0}).token;
	assert_true(token == 3 || token == 4); /* equal logits: a fair coin */
	p.temperature = 1;
	p.top_p = 1e-300;
	p.logprobs = 3;
	struct sampler_choice c = pick_with(&p, (struct sampler_input){0});
	assert_true(c.token == 3 || c.token == 4); /* the filter keeps ties */
	assert_true(isfinite(c.logprob));
}

static void test_bias_penalties_and_mask(void **state)
{
	(void)state;
	const int32_t ids[] = {7, 3};
	const float values[] = {100, -5};
	struct sampler_params p = off;
	p.bias_ids = ids;
	p.bias_values = values;
	p.bias_count = 2;
	assert_int_equal(pick_with(&p, (struct sampler_input){0}).token, 7);
	const int32_t masked[] = {7, 4, 3, -1, 99};
	assert_int_equal(pick_with(&p, (struct sampler_input){.masked = masked, .masked_count = 5}).token, 2);

	const int32_t generated[] = {3, 4, 3};
	p = off;
	p.frequency_penalty = 0.75; /* token 3: 3 - 1.5, token 4: 3 - 0.75 */
	struct sampler_input in = {.generated = generated, .generated_count = 3};
	assert_int_equal(pick_with(&p, in).token, 4);
	p.frequency_penalty = 0;
	p.presence_penalty = 1.5; /* both 1.5: token 2 wins */
	assert_int_equal(pick_with(&p, in).token, 2);
	p = off;
	p.repetition_penalty = 2; /* prompt counts too; a negative logit moves down as well */
	const int32_t prompt[] = {3, 5, 2};
	assert_int_equal(pick_with(&p, (struct sampler_input){.prompt = prompt, .prompt_count = 3}).token, 4);
}

static void test_logprobs_are_those_of_a_softmax(void **state)
{
	(void)state;
	struct sampler_params p = off;
	p.logprobs = 20;
	struct sampler_choice c = pick_with(&p, (struct sampler_input){0});
	assert_int_equal(c.alternatives, VOCAB);
	double sum = 0, total = 0;
	for (int i = 0; i < VOCAB; i++) sum += exp((double)base_logits[i]);
	for (int i = 0; i < VOCAB; i++) {
		double want = base_logits[c.alternative_id[i]] - log(sum);
		assert_true(fabs(want - (double)c.alternative_logprob[i]) < 1e-6);
		if (i) assert_true(c.alternative_logprob[i] <= c.alternative_logprob[i - 1]);
		total += exp((double)c.alternative_logprob[i]);
	}
	assert_true(fabs(total - 1) < 1e-6);
	assert_int_equal(c.alternative_id[0], 3);
	assert_true(fabs((double)c.logprob - (double)c.alternative_logprob[0]) < 1e-7);
}

/* Frequencies of 20 000 draws against the filtered distribution. */
static void check_frequencies(const struct sampler_params *params, const double want[VOCAB])
{
	enum { DRAWS = 20000 };
	int counts[VOCAB] = {0};
	struct sampler_params p = *params;
	for (int i = 0; i < DRAWS; i++) {
		p.seed = (uint64_t)i;
		counts[pick_with(&p, (struct sampler_input){0}).token]++;
	}
	for (int i = 0; i < VOCAB; i++) {
		double got = counts[i] / (double)DRAWS, sigma = sqrt(want[i] * (1 - want[i]) / DRAWS);
		if (fabs(got - want[i]) > 5 * sigma + 1e-9) fail_msg("token %d: frequency %g, want %g", i, got, want[i]);
	}
}

static void distribution(double temperature, const int *kept, double want[VOCAB])
{
	double sum = 0;
	for (int i = 0; i < VOCAB; i++) sum += want[i] = kept[i] ? exp((double)base_logits[i] / temperature) : 0;
	for (int i = 0; i < VOCAB; i++) want[i] /= sum;
}

static void test_draw_follows_the_filtered_distribution(void **state)
{
	(void)state;
	double want[VOCAB];
	struct sampler_params p = off;
	p.temperature = 0.8;
	distribution(0.8, (const int[]){1, 1, 1, 1, 1, 1, 1, 1}, want);
	check_frequencies(&p, want);
	p.top_k = 3; /* 3, 4, 2 */
	distribution(0.8, (const int[]){0, 0, 1, 1, 1, 0, 0, 0}, want);
	check_frequencies(&p, want);
	p.top_k = 1; /* ties are kept: 3 and 4 */
	distribution(0.8, (const int[]){0, 0, 0, 1, 1, 0, 0, 0}, want);
	check_frequencies(&p, want);
	p = off;
	p.temperature = 1;
	p.top_p = 0.76; /* 3 and 4 have 0.752: 2 is needed to reach it */
	distribution(1, (const int[]){0, 0, 1, 1, 1, 0, 0, 0}, want);
	check_frequencies(&p, want);
	p.top_p = 1;
	p.min_p = 0.2; /* of the best: exp(-1) = 0.37 stays, exp(-2) = 0.14 goes */
	distribution(1, (const int[]){0, 0, 1, 1, 1, 0, 0, 0}, want);
	check_frequencies(&p, want);
}

static void test_draw_depends_on_seed_and_position_alone(void **state)
{
	(void)state;
	struct sampler_params p = off;
	p.temperature = 5;
	p.seed = 42;
	const int32_t prompt[] = {1, 2, 3}, other[] = {7, 7, 7};
	int32_t first = pick_with(&p, (struct sampler_input){.prompt = prompt, .prompt_count = 3}).token;
	for (int i = 0; i < 10; i++)
		assert_int_equal(pick_with(&p, (struct sampler_input){.prompt = other, .prompt_count = 3}).token, first);
	int differ = 0;
	for (int n = 0; n < 32; n++) {
		int32_t long_prompt[40] = {0};
		differ += pick_with(&p, (struct sampler_input){.prompt = long_prompt, .prompt_count = n}).token != first;
	}
	assert_true(differ > 8);
}

static void test_broken_logits_are_an_error(void **state)
{
	(void)state;
	struct sampler *sampler;
	struct sampler_choice choice;
	assert_int_equal(sampler_create(&sampler, VOCAB, NULL), STATUS_OK);
	for (int kind = 0; kind < 3; kind++) {
		float logits[VOCAB];
		for (int i = 0; i < VOCAB; i++) logits[i] = kind == 0 ? -INFINITY : base_logits[i];
		if (kind == 1) logits[5] = NAN;
		if (kind == 2) logits[5] = INFINITY;
		struct error err = {0};
		assert_int_equal(sampler_pick(sampler, &off, &(struct sampler_input){.logits = logits}, &choice, &err), STATUS_DEVICE_FAULT);
		assert_true(err.text[0]);
	}
	sampler_destroy(&sampler);
}

static void test_parameters_out_of_range_are_named(void **state)
{
	(void)state;
	const int32_t bad_id[] = {VOCAB}, good_id[] = {0};
	const float one[] = {1}, nan[] = {NAN}, large[] = {3e38f};
	struct {
		struct sampler_params p;
		const char *name;
	} cases[] = {
		{{.temperature = -1, .top_p = 1, .repetition_penalty = 1}, "temperature"},
		{{.temperature = NAN, .top_p = 1, .repetition_penalty = 1}, "temperature"},
		{{.top_p = 1.0000001, .repetition_penalty = 1}, "top_p"},
		{{.top_p = -0.1, .repetition_penalty = 1}, "top_p"},
		{{.top_p = 1, .min_p = 2, .repetition_penalty = 1}, "min_p"},
		{{.top_p = 1, .top_k = -1, .repetition_penalty = 1}, "top_k"},
		{{.top_p = 1, .repetition_penalty = 0}, "repetition_penalty"},
		{{.top_p = 1, .repetition_penalty = INFINITY}, "repetition_penalty"},
		{{.top_p = 1, .repetition_penalty = 1e-300}, "repetition_penalty"},
		{{.top_p = 1, .repetition_penalty = 1e300}, "repetition_penalty"},
		{{.top_p = 1, .repetition_penalty = 1, .presence_penalty = 3}, "presence_penalty"},
		{{.top_p = 1, .repetition_penalty = 1, .logprobs = 21}, "logprobs"},
		{{.top_p = 1, .repetition_penalty = 1, .bias_ids = bad_id, .bias_values = one, .bias_count = 1}, "logit_bias"},
		{{.top_p = 1, .repetition_penalty = 1, .bias_ids = good_id, .bias_values = nan, .bias_count = 1}, "logit_bias"},
		{{.top_p = 1, .repetition_penalty = 1, .bias_ids = good_id, .bias_values = large, .bias_count = 1}, "logit_bias"},
		{{.top_p = 1, .repetition_penalty = 1, .bias_ids = good_id, .bias_values = one, .bias_count = -1}, "logit_bias"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct error err = {0};
		assert_int_equal(sampler_validate(&cases[i].p, VOCAB, &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, cases[i].name)) fail_msg("'%s' does not name %s", err.text, cases[i].name);
	}
	assert_int_equal(sampler_validate(&off, VOCAB, NULL), STATUS_OK);
}

/* What sampler_validate takes never turns finite logits into what looks like a faulty device: that would end the group for one request. */
static void test_parameters_at_their_ends_stay_finite(void **state)
{
	(void)state;
	const double ends[][2] = {{0, 1e6}, {0, 2147483647}, {0, 1}, {0, 1}, {1e-6, 1e6}, {-2, 2}, {-2, 2}, {-SAMPLER_MAX_BIAS, SAMPLER_MAX_BIAS}};
	enum { ENDS = sizeof ends / sizeof *ends, LONG = 4096 };
	static int32_t text[LONG], often[LONG];
	static float bias[LONG];
	for (int i = 0; i < LONG; i++) text[i] = i % 3 + 2, often[i] = 3;
	for (int side = 0; side < 1 << ENDS; side++) {
		double v[ENDS];
		for (int i = 0; i < ENDS; i++) v[i] = ends[i][side >> i & 1];
		for (int i = 0; i < LONG; i++) bias[i] = (float)v[7];
		const struct sampler_params p = {.temperature = v[0], .top_k = (int)v[1], .top_p = v[2], .min_p = v[3], .repetition_penalty = v[4], .presence_penalty = v[5],
		                                 .frequency_penalty = v[6], .bias_ids = often, .bias_values = bias, .bias_count = side & 1 ? LONG : 0};
		assert_int_equal(sampler_validate(&p, VOCAB, NULL), STATUS_OK);
		struct sampler_choice c = pick_with(&p, (struct sampler_input){.prompt = text, .prompt_count = LONG, .generated = text, .generated_count = LONG});
		assert_true(c.token >= 0 && c.token < VOCAB);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parameters_at_their_ends_stay_finite),
		cmocka_unit_test(test_greedy_takes_the_smallest_id_among_equals),
		cmocka_unit_test(test_tiny_temperature_and_top_p_stay_finite),
		cmocka_unit_test(test_bias_penalties_and_mask),
		cmocka_unit_test(test_logprobs_are_those_of_a_softmax),
		cmocka_unit_test(test_draw_follows_the_filtered_distribution),
		cmocka_unit_test(test_draw_depends_on_seed_and_position_alone),
		cmocka_unit_test(test_broken_logits_are_an_error),
		cmocka_unit_test(test_parameters_out_of_range_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
