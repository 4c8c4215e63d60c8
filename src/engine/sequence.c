#include "engine/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum status sequence_create(struct sequence **out, uint64_t id, const struct sequence_options *o, struct error *err)
{
	*out = NULL;
	struct sequence *s = mem_zalloc(1, sizeof *s, "request", err);
	if (!s) return STATUS_NO_MEMORY;
	*s = (struct sequence){.id = id, .slot = -1, .prompt_count = o->prompt_count, .count = o->prompt_count, .max_tokens = o->max_tokens,
	                       .min_tokens = o->min_tokens, .stop_count = o->stop_count, .sampling = o->sampling};
	size_t bias = (size_t)o->sampling.bias_count;
	s->tokens = mem_zalloc((size_t)o->prompt_count + (size_t)o->max_tokens, sizeof *s->tokens, "request tokens", err);
	s->bias_ids = mem_zalloc(bias, sizeof *s->bias_ids, "logit bias", err);
	s->bias_values = mem_zalloc(bias, sizeof *s->bias_values, "logit bias", err);
	if (!s->tokens || !s->bias_ids || !s->bias_values) {
		sequence_destroy(&s);
		return STATUS_NO_MEMORY;
	}
	memcpy(s->tokens, o->prompt, (size_t)o->prompt_count * sizeof *s->tokens);
	if (o->stop_count) memcpy(s->stop_ids, o->stop_ids, (size_t)o->stop_count * sizeof *s->stop_ids);
	if (bias) {
		memcpy(s->bias_ids, o->sampling.bias_ids, bias * sizeof *s->bias_ids);
		memcpy(s->bias_values, o->sampling.bias_values, bias * sizeof *s->bias_values);
	}
	s->sampling.bias_ids = s->bias_ids;
	s->sampling.bias_values = s->bias_values;
	*out = s;
	return STATUS_OK;
}

void sequence_destroy(struct sequence **sequence)
{
	if (!*sequence) return;
	free((*sequence)->tokens);
	free((*sequence)->bias_ids);
	free((*sequence)->bias_values);
	free(*sequence);
	*sequence = NULL;
}

enum sequence_finish sequence_append(struct sequence *s, int32_t token)
{
	s->tokens[s->count++] = token;
	int generated = s->count - s->prompt_count;
	for (int i = 0; i < s->stop_count && generated > s->min_tokens; i++)
		if (s->stop_ids[i] == token) return FINISH_STOP;
	return generated >= s->max_tokens ? FINISH_LENGTH : FINISH_NONE;
}
