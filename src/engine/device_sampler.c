#include "engine/device_sampler.h"

#include <stdlib.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tandem.h"

struct device_sampler {
	int vocab_size, max_rows, max_adjusts;
	struct sample_row *rows;
	struct sample_adjust *adjusts;
	int row_count, used; /* of adjusts */
	int32_t *entry;      /* [vocab] 1 + where the token's adjustment of the current row is; all zero between calls */
	int32_t *counts;     /* [vocab] occurrences; all zero between calls */
};

enum status device_sampler_create(struct device_sampler **out, int vocab_size, int max_rows, int max_adjusts, void *memory, struct error *err)
{
	*out = NULL;
	struct device_sampler *s = mem_zalloc(1, sizeof *s, "device sampler", err);
	if (!s) return STATUS_NO_MEMORY;
	*s = (struct device_sampler){.vocab_size = vocab_size, .max_rows = max_rows, .max_adjusts = max_adjusts, .rows = memory};
	s->adjusts = (struct sample_adjust *)((char *)memory + device_sampler_adjust_offset(max_rows));
	s->entry = mem_zalloc((size_t)vocab_size, sizeof *s->entry, "device sampler entries", err);
	s->counts = mem_zalloc((size_t)vocab_size, sizeof *s->counts, "device sampler counts", err);
	if (!s->entry || !s->counts) {
		device_sampler_destroy(&s);
		return STATUS_NO_MEMORY;
	}
	*out = s;
	return STATUS_OK;
}

void device_sampler_destroy(struct device_sampler **sampler)
{
	if (!*sampler) return;
	free((*sampler)->entry);
	free((*sampler)->counts);
	free(*sampler);
	*sampler = NULL;
}

void device_sampler_begin(struct device_sampler *s, int rows)
{
	s->row_count = rows;
	s->used = 0;
	for (int r = 0; r < rows; r++) s->rows[r] = (struct sample_row){.mode = SAMPLE_SKIP};
}

/* The adjustment of this token in the current row, made if there is none; NULL: no room. */
static struct sample_adjust *adjust_of(struct device_sampler *s, int32_t token)
{
	if (!s->entry[token]) {
		if (s->used == s->max_adjusts) return NULL;
		s->adjusts[s->used] = (struct sample_adjust){.token = token};
		s->entry[token] = ++s->used;
	}
	return &s->adjusts[s->entry[token] - 1];
}

static bool add_biases(struct device_sampler *s, const struct sampler_params *p)
{
	for (int i = 0; i < p->bias_count; i++) {
		struct sample_adjust *a = adjust_of(s, p->bias_ids[i]);
		if (!a || a->change & SAMPLE_BIAS) return false;
		a->change |= SAMPLE_BIAS;
		a->bias = p->bias_values[i];
	}
	return true;
}

/* Each distinct token once: the count is zeroed as it is used, also where there is no room. */
static bool add_counted(struct device_sampler *s, const struct sampler_params *p, const struct sampler_input *in)
{
	if (p->presence_penalty == 0 && p->frequency_penalty == 0) return true;
	bool room = true;
	for (int i = 0; i < in->generated_count; i++) s->counts[in->generated[i]]++;
	for (int i = 0; i < in->generated_count; i++) {
		int32_t id = in->generated[i];
		if (!s->counts[id]) continue;
		struct sample_adjust *a = room ? adjust_of(s, id) : NULL;
		room = a != NULL;
		if (a) {
			a->change |= SAMPLE_SUBTRACT;
			a->subtract = (float)(p->presence_penalty + p->frequency_penalty * s->counts[id]);
		}
		s->counts[id] = 0;
	}
	return room;
}

static bool add_flag(struct device_sampler *s, const int32_t *ids, int n, uint32_t change)
{
	for (int i = 0; i < n; i++) {
		if (ids[i] < 0 || ids[i] >= s->vocab_size) continue;
		struct sample_adjust *a = adjust_of(s, ids[i]);
		if (!a) return false;
		a->change |= change;
	}
	return true;
}

static bool add_adjusts(struct device_sampler *s, const struct sampler_params *p, const struct sampler_input *in)
{
	if (!add_biases(s, p) || !add_counted(s, p, in)) return false;
	if (p->repetition_penalty != 1 && !(add_flag(s, in->prompt, in->prompt_count, SAMPLE_REPETITION) &&
	                                    add_flag(s, in->generated, in->generated_count, SAMPLE_REPETITION)))
		return false;
	return add_flag(s, in->masked, in->masked_count, SAMPLE_MASK);
}

bool device_sampler_add(struct device_sampler *s, int row, const struct sampler_params *p, const struct sampler_input *in)
{
	if (p->logprobs > 0) return false;
	int first = s->used;
	bool fits = add_adjusts(s, p, in);
	for (int i = first; i < s->used; i++) s->entry[s->adjusts[i].token] = 0;
	if (!fits) {
		s->used = first;
		return false;
	}
	uint64_t position = (uint64_t)in->prompt_count + (uint64_t)in->generated_count;
	s->rows[row] = (struct sample_row){.temperature = p->temperature,
	                                   .top_p = p->top_p,
	                                   .min_p = p->min_p,
	                                   .repetition = p->repetition_penalty,
	                                   .unit = rng_unit(p->seed, 1, position),
	                                   .top_k = p->top_k,
	                                   .mode = p->temperature >= TANDEM_GREEDY_BELOW ? SAMPLE_DRAW : SAMPLE_GREEDY,
	                                   .first_adjust = first,
	                                   .adjusts = s->used - first,
	                                   .want_logprob = p->want_logprob};
	return true;
}

size_t device_sampler_bytes_used(const struct device_sampler *s)
{
	if (!s->used) return (size_t)s->row_count * sizeof(struct sample_row);
	return device_sampler_bytes(s->max_rows, s->used);
}

enum status device_sampler_choice(const struct sample_choice *choice, struct sampler_choice *out, struct error *err)
{
	*out = (struct sampler_choice){.token = choice->token, .logprob = choice->logprob};
	if (choice->token >= 0) return STATUS_OK;
	return FAIL(err, DEVICE_FAULT, "sampling: the logits hold NaN or infinity; the weights or the device are faulty");
}
