/* prompt.h: what the model is to read: text or token ids of a completion, messages of a chat, as token ids. */
#ifndef TANDEM_SERVE_PROMPT_H
#define TANDEM_SERVE_PROMPT_H

#include "serve/request.h"

struct prompt {
	struct token_list ids;
	struct buf text; /* for echo: as given, or decoded */
};

struct prompts {
	struct prompt *items;
	int count;
};
void prompts_fini(struct prompts *prompts);

/* How many prompts the body holds, looked at by shape alone: admission comes before tokenizing. */
enum status prompt_count(const json_t *body, enum endpoint endpoint, int *count, struct refusal *r) NODISCARD;
/* `count` as prompt_count gave it. 400 for an empty prompt, an id outside the vocabulary, a template that refuses. */
enum status prompts_read(struct prompts *out, int count, const json_t *body, const struct request *request, const struct facts *facts,
                         struct refusal *r) NODISCARD;
/* The tokens that may be generated after `prompt` ids: the request's max_tokens, cut to what context and KV leave (a documented rule,
 * the same on every route). 400 with both numbers if not one fits. */
enum status prompt_room(const struct request *request, size_t prompt, const struct facts *facts, int *max_tokens, struct refusal *r) NODISCARD;

/* Token ids from a JSON array. */
enum status prompt_ids(const json_t *array, const char *name, int vocab_size, struct token_list *out, struct refusal *r) NODISCARD;

#endif
