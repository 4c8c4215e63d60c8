/* logprobs.h: log-probabilities in the forms of the two endpoints, collected token by token until they are put out.
 *
 * Completions: four parallel arrays, and a token that is no text by itself is written bytes:\xNN, so that keys stay distinct. Chat: a list
 * of entries, each with the bytes of its token. Values are clamped to -9999.0, never NaN.
 */
#ifndef TANDEM_SERVE_LOGPROBS_H
#define TANDEM_SERVE_LOGPROBS_H

#include "serve/out.h"
#include "serve/request.h"

/* `{0}` is empty. */
struct logprobs {
	int count;
	struct out tokens, values, tops, offsets; /* completions: the insides of the arrays. Chat: `tokens` alone, the insides of the list */
};

struct logprob_entry {
	int32_t token;
	bool scored; /* false: the first token of a prompt, which nothing predicted */
	float logprob;
	int alternatives;
	const int32_t *alternative_id;
	const float *alternative_logprob;
	int64_t offset; /* code points before it, from the start of the text */
};

struct logprob_style {
	enum endpoint endpoint;
	int top;             /* alternatives to write */
	bool tokens_as_ids;  /* "token_id:5" in place of text */
	struct detokenizer *detokenizer; /* NULL: no text is known, ids are written */
};

void logprobs_fini(struct logprobs *l);
void logprobs_add(struct logprobs *l, const struct logprob_style *style, const struct logprob_entry *entry);
/* One element of "prompt_logprobs": null for the first token, else an object by token id. */
void logprobs_put_prompt(struct out *out, const struct logprob_style *style, const struct logprob_entry *entry);
/* The value of the key "logprobs", then `l` is empty. Nothing collected: null. */
void logprobs_take(struct logprobs *l, enum endpoint endpoint, struct out *out);

#endif
