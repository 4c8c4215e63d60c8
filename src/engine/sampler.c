#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tandem.h"

#define BEST_VECTORS 4 /* of maxima, side by side */

struct candidate {
	float logit;
	int32_t id;
};

struct sampler {
	int vocab_size;
	struct candidate *candidates; /* [vocab] */
	int32_t *counts;              /* [vocab] occurrences, all zero between calls */
};

enum status sampler_create(struct sampler **out, int vocab_size, struct error *err)
{
	*out = NULL;
	struct sampler *s = mem_zalloc(1, sizeof *s, "sampler", err);
	if (!s) return STATUS_NO_MEMORY;
	s->vocab_size = vocab_size;
	s->candidates = mem_zalloc((size_t)vocab_size, sizeof *s->candidates, "sampler candidates", err);
	s->counts = mem_zalloc((size_t)vocab_size, sizeof *s->counts, "sampler counts", err);
	if (!s->candidates || !s->counts) {
		sampler_destroy(&s);
		return STATUS_NO_MEMORY;
	}
	*out = s;
	return STATUS_OK;
}

void sampler_destroy(struct sampler **sampler)
{
	if (!*sampler) return;
	free((*sampler)->candidates);
	free((*sampler)->counts);
	free(*sampler);
	*sampler = NULL;
}

static enum status in_range(const char *name, double value, double lo, double hi, struct error *err)
{
	if (isfinite(value) && value >= lo && value <= hi) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: %g is out of range; give %g to %g", name, value, lo, hi);
}

enum status sampler_validate(const struct sampler_params *p, int vocab_size, struct error *err)
{
	TRY(in_range("temperature", p->temperature, 0, 1e6, err));
	TRY(in_range("top_k", p->top_k, 0, 2147483647.0, err));
	TRY(in_range("top_p", p->top_p, 0, 1, err));
	TRY(in_range("min_p", p->min_p, 0, 1, err));
	TRY(in_range("repetition_penalty", p->repetition_penalty, 1e-6, 1e6, err));
	TRY(in_range("presence_penalty", p->presence_penalty, -2, 2, err));
	TRY(in_range("frequency_penalty", p->frequency_penalty, -2, 2, err));
	TRY(in_range("logprobs", p->logprobs, 0, SAMPLER_MAX_LOGPROBS, err));
	TRY(in_range("logit_bias", p->bias_count, 0, SAMPLER_MAX_BIASES, err));
	for (int i = 0; i < p->bias_count; i++) {
		if (p->bias_ids[i] < 0 || p->bias_ids[i] >= vocab_size)
			return FAIL(err, BAD_INPUT, "logit_bias: token id %d is out of range; give 0 to %d", p->bias_ids[i], vocab_size - 1);
		TRY(in_range("logit_bias", p->bias_values[i], -SAMPLER_MAX_BIAS, SAMPLER_MAX_BIAS, err));
	}
	return STATUS_OK;
}

bool sampler_is_argmax(const struct sampler_params *p)
{
	return p->temperature < TANDEM_GREEDY_BELOW && p->bias_count == 0 && p->presence_penalty == 0 && p->frequency_penalty == 0 &&
	       p->repetition_penalty == 1 && p->logprobs == 0 && !p->want_logprob;
}

static void count_tokens(struct sampler *s, const int32_t *ids, int n, int step)
{
	for (int i = 0; i < n; i++) s->counts[ids[i]] += step;
}

/* Of several biases for one token only the sum is bounded, so that the penalties behind cannot overflow. What is not finite stays, to be found. */
static void apply_biases(const struct sampler_params *p, float *logits)
{
	for (int i = 0; i < p->bias_count; i++) logits[p->bias_ids[i]] += p->bias_values[i];
	for (int i = 0; i < p->bias_count; i++) {
		float *logit = &logits[p->bias_ids[i]];
		if (isfinite(*logit)) *logit = fminf(fmaxf(*logit, -SAMPLER_MAX_BIAS), SAMPLER_MAX_BIAS);
	}
}

/* Each distinct token once: the count is zeroed as it is used, so the array is clean again afterwards. */
static void apply_penalties(struct sampler *s, const struct sampler_params *p, const struct sampler_input *in)
{
	if (p->presence_penalty != 0 || p->frequency_penalty != 0) {
		count_tokens(s, in->generated, in->generated_count, 1);
		for (int i = 0; i < in->generated_count; i++) {
			int32_t id = in->generated[i];
			if (!s->counts[id]) continue;
			in->logits[id] -= (float)(p->presence_penalty + p->frequency_penalty * s->counts[id]);
			s->counts[id] = 0;
		}
	}
	if (p->repetition_penalty == 1) return;
	count_tokens(s, in->prompt, in->prompt_count, 1);
	count_tokens(s, in->generated, in->generated_count, 1);
	for (int pass = 0; pass < 2; pass++) {
		const int32_t *ids = pass ? in->generated : in->prompt;
		int n = pass ? in->generated_count : in->prompt_count;
		for (int i = 0; i < n; i++) {
			if (!s->counts[ids[i]]) continue;
			float *logit = &in->logits[ids[i]];
			*logit = *logit > 0 ? (float)(*logit / p->repetition_penalty) : (float)(*logit * p->repetition_penalty);
			s->counts[ids[i]] = 0;
		}
	}
}

/* Index of the best logit, smallest id among equals; -1 if any is NaN or all are -inf. */
static int32_t best_token(const float *logits, int n)
{
	typedef float four __attribute__((vector_size(16)));
	typedef int32_t mask __attribute__((vector_size(16)));
	const float low = -INFINITY;
	four top[BEST_VECTORS];
	mask nan = {0};
	for (int v = 0; v < BEST_VECTORS; v++) top[v] = (four){low, low, low, low};
	int i = 0;
	for (; i + 4 * BEST_VECTORS <= n; i += 4 * BEST_VECTORS)
		for (int v = 0; v < BEST_VECTORS; v++) {
			four x;
			memcpy(&x, logits + i + 4 * v, sizeof x);
			mask more = x > top[v];
			top[v] = (four)((more & (mask)x) | (~more & (mask)top[v]));
			nan |= x != x;
		}
	float best = low;
	bool bad = nan[0] | nan[1] | nan[2] | nan[3];
	for (int v = 0; v < BEST_VECTORS; v++)
		for (int j = 0; j < 4; j++) best = top[v][j] > best ? top[v][j] : best;
	for (; i < n; i++) {
		best = logits[i] > best ? logits[i] : best;
		bad |= isnan(logits[i]);
	}
	if (bad || best == low) return -1;
	for (i = 0; logits[i] != best;) i++;
	return i;
}

static enum status find_best(const struct sampler *s, const float *logits, int32_t *best, struct error *err)
{
	*best = best_token(logits, s->vocab_size);
	if (*best >= 0 && !isinf(logits[*best])) return STATUS_OK;
	return FAIL(err, DEVICE_FAULT, "sampling: the logits hold NaN or infinity; the weights or the device are faulty");
}

/* Negative where x ranks before y: higher logit, then smaller id. */
static int rank_order(const struct candidate *x, const struct candidate *y)
{
	if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Sifts the root of a heap whose root is the worst candidate. */
static void sift(struct candidate *heap, int n, int i)
{
	for (;;) {
		int worst = i, left = 2 * i + 1, right = left + 1;
		if (left < n && rank_order(&heap[left], &heap[worst]) > 0) worst = left;
		if (right < n && rank_order(&heap[right], &heap[worst]) > 0) worst = right;
		if (worst == i) return;
		struct candidate swap = heap[i];
		heap[i] = heap[worst];
		heap[worst] = swap;
		i = worst;
	}
}

/* Best first, in place. Not qsort: that may allocate, and sampling is on the step path. */
static void sort_best_first(struct candidate *c, int n)
{
	for (int j = n / 2 - 1; j >= 0; j--) sift(c, n, j);
	for (int end = n - 1; end > 0; end--) {
		struct candidate worst = c[0];
		c[0] = c[end];
		c[end] = worst;
		sift(c, end, 0);
	}
}

/* The k best of `logits`, sorted, into out. Returns how many (entries of -inf are left out). */
static int select_top(const float *logits, int n, int k, struct candidate *out)
{
	int count = 0;
	for (int i = 0; i < n; i++) {
		struct candidate c = {logits[i], i};
		if (c.logit == -INFINITY) continue;
		if (count < k) {
			out[count++] = c;
			if (count == k)
				for (int j = k / 2 - 1; j >= 0; j--) sift(out, k, j);
		} else if (rank_order(&c, &out[0]) < 0) {
			out[0] = c;
			sift(out, k, 0);
		}
	}
	sort_best_first(out, count);
	return count;
}

static void report_logprobs(struct sampler *s, int alternatives, const float *logits, int32_t best, struct sampler_choice *out, double *log_sum)
{
	double sum = 0;
	for (int i = 0; i < s->vocab_size; i++) sum += exp((double)logits[i] - (double)logits[best]);
	*log_sum = (double)logits[best] + log(sum);
	if (!alternatives) return;
	struct candidate top[SAMPLER_MAX_LOGPROBS];
	int want = alternatives < s->vocab_size ? alternatives : s->vocab_size;
	out->alternatives = select_top(logits, s->vocab_size, want, top);
	for (int i = 0; i < out->alternatives; i++) {
		out->alternative_id[i] = top[i].id;
		out->alternative_logprob[i] = (float)((double)top[i].logit - *log_sum);
	}
}

/* Candidates that are left after top-k, top-p and min-p of the tempered distribution; one draw among them. */
static int32_t draw(struct sampler *s, const struct sampler_params *p, const float *logits, float top, uint64_t position)
{
	/* A token this far below the best has less than 1e-30 of its weight: leaving it out keeps the sort short and cannot be seen. */
	double floor = (double)top - 70.0 * p->temperature;
	int n = 0;
	for (int i = 0; i < s->vocab_size; i++)
		if ((double)logits[i] >= floor) s->candidates[n++] = (struct candidate){logits[i], i};
	sort_best_first(s->candidates, n);
	if (p->top_k > 0 && p->top_k < n) {
		int keep = p->top_k;
		while (keep < n && s->candidates[keep].logit == s->candidates[p->top_k - 1].logit) keep++;
		n = keep;
	}
	double total = 0;
	for (int i = 0; i < n; i++) total += exp(((double)s->candidates[i].logit - top) / p->temperature);
	double kept = 0, mass = 0;
	int left = 0;
	while (left < n) { /* top-p keeps the smallest head with mass >= top_p, min-p what is likely enough beside the best */
		double weight = exp(((double)s->candidates[left].logit - top) / p->temperature);
		bool tie = left > 0 && s->candidates[left].logit == s->candidates[left - 1].logit;
		if (left > 0 && !tie && mass >= p->top_p * total) break;
		if (left > 0 && weight < p->min_p) break;
		mass += weight;
		kept += weight;
		left++;
	}
	double target = rng_unit(p->seed, 1, position) * kept;
	for (int i = 0; i < left; i++) {
		target -= exp(((double)s->candidates[i].logit - top) / p->temperature);
		if (target < 0) return s->candidates[i].id;
	}
	return s->candidates[left - 1].id;
}

enum status sampler_score(struct sampler *s, const float *logits, int32_t token, int alternatives, struct sampler_choice *out,
                          struct error *err)
{
	int32_t best;
	double log_sum;
	*out = (struct sampler_choice){.token = token};
	TRY(find_best(s, logits, &best, err));
	report_logprobs(s, alternatives, logits, best, out, &log_sum);
	out->logprob = (float)((double)logits[token] - log_sum);
	return STATUS_OK;
}

enum status sampler_pick(struct sampler *s, const struct sampler_params *p, const struct sampler_input *in, struct sampler_choice *out,
                         struct error *err)
{
	*out = (struct sampler_choice){.token = -1};
	apply_biases(p, in->logits);
	apply_penalties(s, p, in);
	for (int i = 0; i < in->masked_count; i++)
		if (in->masked[i] >= 0 && in->masked[i] < s->vocab_size) in->logits[in->masked[i]] = -INFINITY;
	int32_t best;
	TRY(find_best(s, in->logits, &best, err));
	double log_sum = 0;
	bool want = p->want_logprob || p->logprobs > 0;
	if (want) report_logprobs(s, p->logprobs, in->logits, best, out, &log_sum);
	out->token = best;
	if (p->temperature >= TANDEM_GREEDY_BELOW) {
		uint64_t position = (uint64_t)in->prompt_count + (uint64_t)in->generated_count;
		out->token = draw(s, p, in->logits, in->logits[best], position);
	}
	if (want) out->logprob = (float)((double)in->logits[out->token] - log_sum);
	return STATUS_OK;
}
