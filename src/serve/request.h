/* request.h: the fields of /v1/completions and /v1/chat/completions: read, checked, defaults filled in.
 *
 * Every type and range is checked here, so that nothing behind it meets a surprise. Fields nobody knows are ignored, as clients send many;
 * fields with a meaning that this server does not give them are refused by name (501), never ignored. Pure: no threads, no clock.
 */
#ifndef TANDEM_SERVE_REQUEST_H
#define TANDEM_SERVE_REQUEST_H

#include "serve/facts.h"
#include "serve/body.h"
#include "serve/stop.h"

enum endpoint { ENDPOINT_COMPLETIONS = 1, ENDPOINT_CHAT = 2 };

#define REQUEST_MAX_N 128
#define REQUEST_MAX_PROMPTS 256
#define REQUEST_MAX_BIAS 1024
#define REQUEST_MAX_STOP_IDS 48 /* what the engine takes beside the model's own */

struct request {
	enum endpoint endpoint;
	int n;
	int64_t max_tokens; /* -1: the room left in the context */
	int min_tokens;
	bool ignore_eos;

	double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
	int top_k;
	int64_t seed; /* -1: none */
	int32_t *bias_ids;
	float *bias_values;
	int bias_count;

	struct stop_set stops;
	int32_t stop_ids[REQUEST_MAX_STOP_IDS];
	int stop_count;
	bool include_stop, skip_special;

	int logprobs;        /* alternatives to report; -1: no log-probabilities */
	int prompt_logprobs; /* -1: none */
	bool echo, stream, include_usage, continuous_usage, return_token_ids, tokens_as_ids;

	uint64_t cache_salt; /* prefixes are shared among equal ones; 0: none given */
	int truncate_prompt; /* last so many tokens; -1: as many as fit; 0: all */
	bool add_special;
	bool add_generation_prompt, continue_final;
};

/* On failure (`r` filled) `out` is as after request_fini. */
enum status request_parse(struct request *out, enum endpoint endpoint, const json_t *body, const struct facts *facts, struct refusal *r) NODISCARD;
void request_fini(struct request *request);

/* 404 if the body names a model that is not served here. */
enum status request_model(const json_t *body, const struct facts *facts, struct refusal *r) NODISCARD;

#endif
