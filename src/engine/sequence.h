/* sequence.h: one request while it lives: its tokens, how far the model has read them, how it ends. Owner: the coordinator's thread;
 * `cancelled` alone may be set by any. */
#ifndef TANDEM_ENGINE_SEQUENCE_H
#define TANDEM_ENGINE_SEQUENCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "engine/kv.h"
#include "engine/sampler.h"

enum sequence_state { SEQUENCE_QUEUED, SEQUENCE_RUNNING, SEQUENCE_DONE };
enum sequence_finish { FINISH_NONE, FINISH_STOP, FINISH_LENGTH, FINISH_CANCELLED, FINISH_FAILED, FINISH_TIMEOUT };

#define SEQUENCE_MAX_STOPS 64

struct sequence {
	uint64_t id; /* rises with arrival */
	enum sequence_state state;
	enum sequence_finish finish; /* once done */
	int slot;        /* KV sequence number while running, else -1 */
	int32_t *tokens; /* prompt, then generated; room for prompt_count + max_tokens */
	uint64_t *hashes; /* kv_hash of each full block of tokens; NULL: not to be cached */
	int hashed;       /* blocks */
	int block_tokens;
	uint64_t salt;
	int prompt_count;
	int count;    /* tokens so far */
	int computed; /* tokens whose KV is committed; below count while there is something to run */
	int max_tokens, min_tokens; /* max_tokens 0: only the prompt is read and scored */
	int32_t stop_ids[SEQUENCE_MAX_STOPS];
	int stop_count;
	struct sampler_params sampling; /* bias arrays owned by the sequence */
	int32_t *bias_ids;
	float *bias_values;
	struct sampler_choice *scores; /* [prompt_count] of prompt tokens, the first without; NULL: not wanted */
	int scored;                    /* prompt tokens whose score is known (the first needs none) */
	uint64_t submitted_ns, deadline_ns; /* deadline 0: none */
	uint64_t started_ns;                /* first admission; 0: not yet */
	int cached_tokens;                  /* of the prompt, adopted instead of computed */
	int preemptions;
	int known_blocks; /* of models with state: blocks of this text that others have computed, as far as was seen */
	int keep_at;      /* length whose state is to be kept next; 0: none */
	int part_at;      /* length at which its rows of the step being made are two parts, and whose state is kept; 0: they are one */
	int kept_at;      /* length of the last snapshot that it took up or left, while running */
	_Atomic bool cancelled; /* wanted; takes effect between steps */
	struct sequence *next, *previous; /* the list it is in */
	struct sequence *map_next;        /* same bucket of the map of ids */
};

struct sequence_options {
	const int32_t *prompt;
	int prompt_count, max_tokens, min_tokens;
	const int32_t *stop_ids;
	int stop_count;
	struct sampler_params sampling;
	bool score_prompt;
	int block_tokens; /* for the prefix cache; 0: keep out of it */
	uint64_t salt;
	uint64_t submitted_ns, deadline_ns;
};

/* Everything is copied. Ranges are the caller's to have checked. */
enum status sequence_create(struct sequence **out, uint64_t id, const struct sequence_options *options, struct error *err) NODISCARD;
void sequence_destroy(struct sequence **sequence);
/* Appends a sampled token and says whether the sequence ends with it. */
enum sequence_finish sequence_append(struct sequence *sequence, int32_t token);
/* For the prefix cache; NULL if the sequence keeps out of it. */
static inline const struct kv_text *sequence_text(const struct sequence *sequence, struct kv_text *text)
{
	*text = (struct kv_text){sequence->tokens, sequence->hashes};
	return sequence->hashes ? text : NULL;
}
/* Tokens that the model reads at most: the last one sampled is never read. */
static inline int sequence_most_tokens(const struct sequence *sequence)
{
	return sequence->prompt_count + (sequence->max_tokens > 1 ? sequence->max_tokens - 1 : 0);
}

#endif
