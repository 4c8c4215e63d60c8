/* sampler.h: picks the next token of one sequence from its f32 logits. Done once per step for the whole group (E5): here on the host,
 * where rank 0's device does not do it itself (device_sampler.h).
 *
 * Order: logit bias, repetition, presence and frequency penalties, (log-probabilities are taken here,) temperature, top-k,
 * top-p, min-p, then one draw. The draw is rng_unit(seed, stream, position): a function of the request and the position alone, so that
 * the same seed gives the same tokens whatever the batch. All filters keep ties; the best token always stays. Greedy when temperature is
 * 0 (or so small that the best logit wins anyway): the smallest id among equals.
 */
#ifndef TANDEM_ENGINE_SAMPLER_H
#define TANDEM_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define SAMPLER_MAX_LOGPROBS 20
#define SAMPLER_MAX_BIAS 1e30f /* a sum with a logit, and of several for one token, is cut to it: no penalty makes that infinite */
#define SAMPLER_MAX_BIASES 1000000

struct sampler_params {
	double temperature; /* 0: greedy */
	int top_k;          /* 0: off */
	double top_p;       /* 1: off */
	double min_p;       /* 0: off */
	double repetition_penalty; /* 1: off */
	double presence_penalty, frequency_penalty;
	uint64_t seed;
	const int32_t *bias_ids;
	const float *bias_values;
	int bias_count;
	int logprobs; /* alternatives reported */
	bool want_logprob;
};

struct sampler_choice {
	int32_t token;
	float logprob;
	int alternatives;
	int32_t alternative_id[SAMPLER_MAX_LOGPROBS];
	float alternative_logprob[SAMPLER_MAX_LOGPROBS];
};

/* Working memory for a vocabulary, made at start: sampling allocates nothing. */
struct sampler;
enum status sampler_create(struct sampler **out, int vocab_size, struct error *err) NODISCARD;
void sampler_destroy(struct sampler **sampler);

/* BAD_INPUT naming the parameter that is out of range. */
enum status sampler_validate(const struct sampler_params *params, int vocab_size, struct error *err) NODISCARD;

/* Whether sampler_pick takes the likeliest token of the logits as they are, and nothing else is asked for. */
bool sampler_is_argmax(const struct sampler_params *params);

/* Log-probability of `token`, and of the `alternatives` best, of a distribution as it is. DEVICE_FAULT as sampler_pick. */
enum status sampler_score(struct sampler *sampler, const float *logits, int32_t token, int alternatives, struct sampler_choice *out,
                          struct error *err) NODISCARD;

/* `logits` [vocab] is overwritten. prompt/generated: the sequence so far, for penalties. `masked` ids (may be NULL) cannot be chosen.
 * DEVICE_FAULT if a logit is NaN or all are -inf: that is never a sampling result. */
struct sampler_input {
	float *logits;
	const int32_t *prompt;
	int prompt_count;
	const int32_t *generated;
	int generated_count;
	const int32_t *masked;
	int masked_count;
};
enum status sampler_pick(struct sampler *sampler, const struct sampler_params *params, const struct sampler_input *input,
                         struct sampler_choice *out, struct error *err) NODISCARD;

#endif
