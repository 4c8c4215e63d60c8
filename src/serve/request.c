#include "serve/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "serve/unsupported.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define AT(field) .offset = offsetof(struct request, field)
#define BOTH (ENDPOINT_COMPLETIONS | ENDPOINT_CHAT)
#define BIAS_MAX 100

static const struct field table[] = {
	{.name = "n", .kind = FIELD_INT, AT(n), .min = 1, .max = REQUEST_MAX_N, .where = BOTH},
	{.name = "max_tokens", .kind = FIELD_INT64, AT(max_tokens), .min = 0, .max = 0x1p63, .where = ENDPOINT_COMPLETIONS},
	{.name = "max_tokens", .kind = FIELD_INT64, AT(max_tokens), .min = 1, .max = 0x1p63, .where = ENDPOINT_CHAT},
	/* Read after max_tokens: where both are given, this one counts. */
	{.name = "max_completion_tokens", .kind = FIELD_INT64, AT(max_tokens), .min = 1, .max = 0x1p63, .where = ENDPOINT_CHAT},
	{.name = "min_tokens", .kind = FIELD_INT, AT(min_tokens), .min = 0, .max = INT32_MAX, .where = BOTH},
	{.name = "ignore_eos", .kind = FIELD_BOOL, AT(ignore_eos), .where = BOTH},
	{.name = "temperature", .kind = FIELD_REAL, AT(temperature), .min = 0, .max = 2, .where = BOTH},
	{.name = "top_p", .kind = FIELD_REAL, AT(top_p), .min = 0, .max = 1, .where = BOTH},
	{.name = "min_p", .kind = FIELD_REAL, AT(min_p), .min = 0, .max = 1, .where = BOTH},
	{.name = "top_k", .kind = FIELD_INT, AT(top_k), .min = -1, .max = INT32_MAX, .where = BOTH},
	{.name = "repetition_penalty", .kind = FIELD_REAL, AT(repetition_penalty), .min = 1e-6, .max = 1e6, .where = BOTH},
	{.name = "presence_penalty", .kind = FIELD_REAL, AT(presence_penalty), .min = -2, .max = 2, .where = BOTH},
	{.name = "frequency_penalty", .kind = FIELD_REAL, AT(frequency_penalty), .min = -2, .max = 2, .where = BOTH},
	{.name = "seed", .kind = FIELD_INT64, AT(seed), .min = -0x1p63, .max = 0x1p63, .where = BOTH},
	{.name = "include_stop_str_in_output", .kind = FIELD_BOOL, AT(include_stop), .where = BOTH},
	{.name = "skip_special_tokens", .kind = FIELD_BOOL, AT(skip_special), .where = BOTH},
	{.name = "logprobs", .kind = FIELD_INT, AT(logprobs), .min = 0, .max = TANDEM_MAX_LOGPROBS, .where = ENDPOINT_COMPLETIONS},
	{.name = "prompt_logprobs", .kind = FIELD_INT, AT(prompt_logprobs), .min = 0, .max = TANDEM_MAX_LOGPROBS, .where = BOTH},
	{.name = "echo", .kind = FIELD_BOOL, AT(echo), .where = ENDPOINT_COMPLETIONS},
	{.name = "stream", .kind = FIELD_BOOL, AT(stream), .where = BOTH},
	{.name = "return_token_ids", .kind = FIELD_BOOL, AT(return_token_ids), .where = BOTH},
	{.name = "return_tokens_as_token_ids", .kind = FIELD_BOOL, AT(tokens_as_ids), .where = BOTH},
	{.name = "truncate_prompt_tokens", .kind = FIELD_INT, AT(truncate_prompt), .min = -1, .max = INT32_MAX, .where = BOTH},
	{.name = "add_special_tokens", .kind = FIELD_BOOL, AT(add_special), .where = BOTH},
	{.name = "add_generation_prompt", .kind = FIELD_BOOL, AT(add_generation_prompt), .where = ENDPOINT_CHAT},
	{.name = "continue_final_message", .kind = FIELD_BOOL, AT(continue_final), .where = ENDPOINT_CHAT},
};

void request_fini(struct request *request)
{
	stop_fini(&request->stops);
	free(request->bias_ids);
	free(request->bias_values);
	request->bias_ids = NULL;
	request->bias_values = NULL;
}

enum status request_model(const json_t *body, const struct facts *facts, struct refusal *r)
{
	const json_t *value = body_get(body, "model");
	if (!value) return STATUS_OK;
	if (!json_is_string(value)) return refuse(r, 400, "model", "model must be a string, not %s", body_type_name(value));
	size_t n = json_string_length(value);
	for (int i = 0; i < facts->name_count; i++)
		if (n == strlen(facts->names[i]) && !memcmp(json_string_value(value), facts->names[i], n)) return STATUS_OK;
	return refuse(r, 404, "model", "The model of this request does not exist here; GET /v1/models lists what is served");
}

static void set_defaults(struct request *q, enum endpoint endpoint, const struct facts *facts)
{
	const struct tandem_info *info = &facts->info;
	*q = (struct request){.endpoint = endpoint, .n = 1, .max_tokens = endpoint == ENDPOINT_COMPLETIONS ? 16 : -1, .temperature = 1, .top_p = 1,
	                      .repetition_penalty = 1, .seed = -1, .skip_special = true, .logprobs = -1, .prompt_logprobs = -1,
	                      .add_special = endpoint == ENDPOINT_COMPLETIONS, .add_generation_prompt = true, .ignore_eos = facts->ignore_eos};
	if (!facts->model_defaults) return;
	if (!isnan(info->default_temperature)) q->temperature = info->default_temperature;
	if (!isnan(info->default_top_p)) q->top_p = info->default_top_p;
	if (!isnan(info->default_repetition_penalty)) q->repetition_penalty = info->default_repetition_penalty;
	if (info->default_top_k > 0 && info->default_top_k <= INT32_MAX) q->top_k = (int)info->default_top_k;
}

/* So near 0 that only the likeliest token could come: greedy, and nothing is left to filter. */
static void settle_sampling(struct request *q)
{
	if (q->temperature < TANDEM_GREEDY_BELOW) {
		q->temperature = 0;
		q->top_p = 1;
		q->top_k = 0;
		q->min_p = 0;
	}
	q->top_p = fmax(q->top_p, TANDEM_TOP_P_LEAST);
	if (q->top_k < 0) q->top_k = 0;
}

static enum status read_best_of(const struct request *q, const json_t *body, struct refusal *r)
{
	const json_t *value = body_get(body, "best_of");
	int64_t best;
	if (!value) return STATUS_OK;
	TRY(body_whole(value, "best_of", 0, REQUEST_MAX_N, &best, r));
	if (best <= 1 || best == q->n) return STATUS_OK;
	return refuse(r, 400, "best_of", "best_of is %lld; it must be 1 or equal to n (%d)", (long long)best, q->n);
}

static enum status add_stop(struct request *q, const json_t *value, struct refusal *r)
{
	size_t n = json_string_length(value);
	if (!n) return refuse(r, 400, "stop", "stop holds an empty string; leave it out");
	if (n > STOP_MAX_BYTES) return refuse(r, 400, "stop", "a stop string has %zu bytes; at most %d are taken", n, STOP_MAX_BYTES);
	return stop_add(&q->stops, json_string_value(value), n, NULL) == STATUS_OK ? STATUS_OK : refuse_memory(r);
}

static enum status read_stop(struct request *q, const json_t *body, struct refusal *r)
{
	const json_t *value = body_get(body, "stop"), *item;
	size_t i;
	if (!value) return STATUS_OK;
	if (json_is_string(value)) return add_stop(q, value, r);
	if (!json_is_array(value)) return refuse(r, 400, "stop", "stop must be a string or an array of strings, not %s", body_type_name(value));
	if (json_array_size(value) > STOP_MAX_STRINGS)
		return refuse(r, 400, "stop", "stop has %zu strings; at most %d are taken", json_array_size(value), STOP_MAX_STRINGS);
	json_array_foreach((json_t *)value, i, item) {
		if (!json_is_string(item)) return refuse(r, 400, "stop", "stop[%zu] must be a string, not %s", i, body_type_name(item));
		TRY(add_stop(q, item, r));
	}
	return STATUS_OK;
}

static enum status read_stop_ids(struct request *q, const json_t *body, int vocab_size, struct refusal *r)
{
	const json_t *value = body_get(body, "stop_token_ids"), *item;
	size_t i;
	if (!value) return STATUS_OK;
	if (!json_is_array(value)) return refuse(r, 400, "stop_token_ids", "stop_token_ids must be an array of token ids, not %s", body_type_name(value));
	if (json_array_size(value) > REQUEST_MAX_STOP_IDS)
		return refuse(r, 400, "stop_token_ids", "stop_token_ids has %zu ids; at most %d are taken", json_array_size(value), REQUEST_MAX_STOP_IDS);
	json_array_foreach((json_t *)value, i, item) {
		int64_t id;
		TRY(body_whole(item, "stop_token_ids", 0, vocab_size - 1, &id, r));
		q->stop_ids[q->stop_count++] = (int32_t)id;
	}
	return STATUS_OK;
}

/* A decimal number without sign, blanks or leading zeros; -1. */
static int64_t plain_decimal(const char *text)
{
	int64_t value = 0;
	if (!*text || (text[0] == '0' && text[1])) return -1;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || value > INT32_MAX) return -1;
		value = value * 10 + (*text - '0');
	}
	return value;
}

static enum status read_bias(struct request *q, const json_t *body, int vocab_size, struct refusal *r)
{
	const json_t *value = body_get(body, "logit_bias");
	const char *key;
	json_t *item;
	if (!value) return STATUS_OK;
	if (!json_is_object(value)) return refuse(r, 400, "logit_bias", "logit_bias must be an object, not %s", body_type_name(value));
	size_t count = json_object_size(value);
	if (count > REQUEST_MAX_BIAS) return refuse(r, 400, "logit_bias", "logit_bias has %zu entries; at most %d are taken", count, REQUEST_MAX_BIAS);
	q->bias_ids = mem_zalloc(count, sizeof *q->bias_ids, "logit bias", NULL);
	q->bias_values = mem_zalloc(count, sizeof *q->bias_values, "logit bias", NULL);
	if (!q->bias_ids || !q->bias_values) return refuse_memory(r);
	json_object_foreach((json_t *)value, key, item) {
		int64_t id = plain_decimal(key);
		if (id < 0 || id >= vocab_size)
			return refuse(r, 400, "logit_bias", "a key of logit_bias is not a token id; keys are decimal numbers from 0 to %d", vocab_size - 1);
		if (!json_is_number(item)) return refuse(r, 400, "logit_bias", "a value of logit_bias must be a number, not %s", body_type_name(item));
		double bias = json_number_value(item);
		q->bias_ids[q->bias_count] = (int32_t)id;
		q->bias_values[q->bias_count++] = (float)(bias > BIAS_MAX ? BIAS_MAX : bias < -BIAS_MAX ? -BIAS_MAX : bias);
	}
	return STATUS_OK;
}

/* Chat: logprobs is a boolean, top_logprobs says how many. */
static enum status read_chat_logprobs(struct request *q, const json_t *body, struct refusal *r)
{
	bool wanted = false;
	int64_t top = 0;
	TRY(body_bool(body, "logprobs", &wanted, r));
	const json_t *value = body_get(body, "top_logprobs");
	if (value) TRY(body_whole(value, "top_logprobs", 0, TANDEM_MAX_LOGPROBS, &top, r));
	if (value && top > 0 && !wanted) return refuse(r, 400, "top_logprobs", "top_logprobs needs logprobs to be true");
	if (wanted) q->logprobs = (int)top;
	return STATUS_OK;
}

static enum status read_stream_options(struct request *q, const json_t *body, struct refusal *r)
{
	const json_t *value = body_get(body, "stream_options");
	bool unused = false;
	if (!value) return STATUS_OK;
	if (!json_is_object(value)) return refuse(r, 400, "stream_options", "stream_options must be an object, not %s", body_type_name(value));
	if (!q->stream) return refuse(r, 400, "stream_options", "stream_options is for streams; set stream to true or leave it out");
	TRY(body_bool(value, "include_usage", &q->include_usage, r));
	TRY(body_bool(value, "continuous_usage_stats", &q->continuous_usage, r));
	TRY(body_bool(value, "include_obfuscation", &unused, r)); /* padding against traffic analysis: none is added */
	return STATUS_OK;
}

static enum status read_salt(struct request *q, const json_t *body, struct refusal *r)
{
	const json_t *value = body_get(body, "cache_salt");
	if (!value) return STATUS_OK;
	if (!json_is_string(value) || !json_string_length(value)) return refuse(r, 400, "cache_salt", "cache_salt must be a string that is not empty");
	uint64_t hash = rng_name("cache_salt");
	for (size_t i = 0; i < json_string_length(value); i++) hash = rng_mix(hash ^ (unsigned char)json_string_value(value)[i]);
	q->cache_salt = hash | 1;
	return STATUS_OK;
}

/* 0 stands for all of the prompt here, and for nothing in a request. */
static enum status check_truncation(const struct request *q, const json_t *body, struct refusal *r)
{
	if (q->truncate_prompt || !body_get(body, "truncate_prompt_tokens")) return STATUS_OK;
	return refuse(r, 400, "truncate_prompt_tokens", "truncate_prompt_tokens is 0; give at least 1, or -1 for as many as there is room for");
}

static enum status check_together(const struct request *q, struct refusal *r)
{
	if (q->max_tokens == 0 && !q->echo) return refuse(r, 400, "max_tokens", "max_tokens is 0; that is for echo alone, give at least 1");
	if (q->max_tokens >= 0 && q->min_tokens > q->max_tokens)
		return refuse(r, 400, "min_tokens", "min_tokens is %d, more than max_tokens (%lld)", q->min_tokens, (long long)q->max_tokens);
	if (q->continue_final && q->add_generation_prompt)
		return refuse(r, 400, "continue_final_message", "continue_final_message and add_generation_prompt exclude each other; set one to false");
	if (q->prompt_logprobs >= 0 && q->stream)
		return refuse(r, 400, "prompt_logprobs", "prompt_logprobs is not given in streams; set stream to false");
	return STATUS_OK;
}

static enum status parse(struct request *q, const json_t *body, const struct facts *facts, struct refusal *r)
{
	TRY(request_model(body, facts, r));
	TRY(unsupported_check(body, q->endpoint, r));
	TRY(body_read(body, table, COUNT(table), (unsigned)q->endpoint, q, r));
	if (q->endpoint == ENDPOINT_CHAT) TRY(read_chat_logprobs(q, body, r));
	TRY(check_truncation(q, body, r));
	TRY(read_best_of(q, body, r));
	TRY(read_stop(q, body, r));
	TRY(read_stop_ids(q, body, facts->info.vocab_size, r));
	TRY(read_bias(q, body, facts->info.vocab_size, r));
	TRY(read_stream_options(q, body, r));
	TRY(read_salt(q, body, r));
	/* A conversation that is to be continued leaves no place for a generation prompt; only asking for both is a contradiction. */
	if (q->continue_final && !body_get(body, "add_generation_prompt")) q->add_generation_prompt = false;
	settle_sampling(q);
	return check_together(q, r);
}

enum status request_parse(struct request *out, enum endpoint endpoint, const json_t *body, const struct facts *facts, struct refusal *r)
{
	set_defaults(out, endpoint, facts);
	enum status st = parse(out, body, facts, r);
	if (st != STATUS_OK) request_fini(out);
	return st;
}
