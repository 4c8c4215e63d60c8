/* sequence.h: one request while it lives: its tokens, how far the model has read them, how it ends. Owner: the coordinator. */
#ifndef TANDEM_ENGINE_SEQUENCE_H
#define TANDEM_ENGINE_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/sampler.h"

enum sequence_state { SEQUENCE_QUEUED, SEQUENCE_RUNNING, SEQUENCE_DONE };
enum sequence_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_FAILED };

#define SEQUENCE_MAX_STOPS 64

struct sequence {
	uint64_t id;
	enum sequence_state state;
	int slot;        /* KV sequence number while running, else -1 */
	int32_t *tokens; /* prompt, then generated; room for prompt_count + max_tokens */
	int prompt_count;
	int count;    /* tokens so far */
	int computed; /* tokens whose KV is committed: always < count while running */
	int max_tokens, min_tokens;
	int32_t stop_ids[SEQUENCE_MAX_STOPS];
	int stop_count;
	struct sampler_params sampling; /* bias arrays owned by the sequence */
	int32_t *bias_ids;
	float *bias_values;
	bool cancelled; /* wanted; takes effect between steps */
	struct sequence *next; /* queue order */
};

struct sequence_options {
	const int32_t *prompt;
	int prompt_count, max_tokens, min_tokens;
	const int32_t *stop_ids;
	int stop_count;
	struct sampler_params sampling;
};

/* Everything is copied. Ranges are the caller's to have checked. */
enum status sequence_create(struct sequence **out, uint64_t id, const struct sequence_options *options, struct error *err) NODISCARD;
void sequence_destroy(struct sequence **sequence);
/* Appends a sampled token and says whether the sequence ends with it. */
enum sequence_finish sequence_append(struct sequence *sequence, int32_t token);

#endif
