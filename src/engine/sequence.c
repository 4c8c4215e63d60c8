#include "engine/sequence.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static enum status alloc_arrays(struct sequence *s, const struct sequence_options *o, struct error *err)
{
	size_t bias = (size_t)o->sampling.bias_count, tokens = (size_t)o->prompt_count + (size_t)o->max_tokens;
	s->tokens = mem_zalloc(tokens, sizeof *s->tokens, "request tokens", err);
	s->bias_ids = mem_zalloc(bias, sizeof *s->bias_ids, "logit bias", err);
	s->bias_values = mem_zalloc(bias, sizeof *s->bias_values, "logit bias", err);
	bool all = s->tokens && s->bias_ids && s->bias_values;
	if (o->block_tokens) {
		s->hashes = mem_zalloc(tokens / (size_t)o->block_tokens, sizeof *s->hashes, "request block hashes", err);
		all = all && s->hashes;
	}
	if (o->score_prompt) {
		s->scores = mem_zalloc((size_t)o->prompt_count, sizeof *s->scores, "prompt log-probabilities", err);
		all = all && s->scores;
	}
	return all ? STATUS_OK : STATUS_NO_MEMORY;
}

/* Each block once, when it becomes full. */
static void hash_full_blocks(struct sequence *s)
{
	for (; s->hashes && (s->hashed + 1) * s->block_tokens <= s->count; s->hashed++)
		s->hashes[s->hashed] = kv_hash(s->hashed ? s->hashes[s->hashed - 1] : s->salt, s->tokens + (size_t)s->hashed * s->block_tokens,
		                               s->block_tokens);
}

enum status sequence_create(struct sequence **out, uint64_t id, const struct sequence_options *o, struct error *err)
{
	*out = NULL;
	struct sequence *s = mem_zalloc(1, sizeof *s, "request", err);
	if (!s) return STATUS_NO_MEMORY;
	*s = (struct sequence){.id = id, .slot = -1, .prompt_count = o->prompt_count, .count = o->prompt_count, .max_tokens = o->max_tokens,
	                       .min_tokens = o->min_tokens, .stop_count = o->stop_count, .sampling = o->sampling,
	                       .block_tokens = o->block_tokens, .salt = o->salt, .submitted_ns = o->submitted_ns, .deadline_ns = o->deadline_ns};
	enum status st = alloc_arrays(s, o, err);
	if (st != STATUS_OK) {
		sequence_destroy(&s);
		return st;
	}
	size_t bias = (size_t)o->sampling.bias_count;
	memcpy(s->tokens, o->prompt, (size_t)o->prompt_count * sizeof *s->tokens);
	if (o->stop_count) memcpy(s->stop_ids, o->stop_ids, (size_t)o->stop_count * sizeof *s->stop_ids);
	if (bias) {
		memcpy(s->bias_ids, o->sampling.bias_ids, bias * sizeof *s->bias_ids);
		memcpy(s->bias_values, o->sampling.bias_values, bias * sizeof *s->bias_values);
	}
	s->sampling.bias_ids = s->bias_ids;
	s->sampling.bias_values = s->bias_values;
	s->scored = 1;
	hash_full_blocks(s);
	*out = s;
	return STATUS_OK;
}

void sequence_destroy(struct sequence **sequence)
{
	if (!*sequence) return;
	free((*sequence)->tokens);
	free((*sequence)->hashes);
	free((*sequence)->bias_ids);
	free((*sequence)->bias_values);
	free((*sequence)->scores);
	free(*sequence);
	*sequence = NULL;
}

enum sequence_finish sequence_append(struct sequence *s, int32_t token)
{
	s->tokens[s->count++] = token;
	hash_full_blocks(s);
	int generated = s->count - s->prompt_count;
	for (int i = 0; i < s->stop_count && generated > s->min_tokens; i++)
		if (s->stop_ids[i] == token) return FINISH_STOP;
	return generated >= s->max_tokens ? FINISH_LENGTH : FINISH_NONE;
}
