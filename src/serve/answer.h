/* answer.h: choices of a completion, and how they are written: chunks of a stream, or one body. The forms are those of the OpenAI API
 * and its de-facto additions; field order never changes, so that a client sees the same bytes for the same answer.
 */
#ifndef TANDEM_SERVE_ANSWER_H
#define TANDEM_SERVE_ANSWER_H

#include "serve/completion.h"
#include "serve/logprobs.h"

struct choice {
	struct driver_job job;
	struct completion *completion;
	int index;
	const struct prompt *prompt;
	struct detokenizer *text; /* NULL: the model has no tokenizer, text is empty */
	struct stop_scan scan;
	struct buf piece;         /* scratch: what the last token made certain */
	struct buf fresh;         /* text to be put out */
	struct logprobs logprobs; /* to be put out */
	struct token_list ids;    /* to be put out, where wanted */
	struct driver_scores scores; /* of the prompt, where wanted */
	struct out prompt_logprobs;  /* the insides of that array */
	int64_t chars;            /* code points of text so far, echo included */
	int tokens;               /* generated */
	uint64_t last_ns;         /* when the last one came */
	bool role_sent, submitted, started, over; /* over: the terminal event has come */
	const char *finish; /* static; NULL while open */
	int stop;           /* the stop string that ended it; -1 */
	int32_t stop_id;    /* the stop token that ended it and is no end-of-text; -1 */
};
void choice_fini(struct choice *choice);
/* Room for the scores of its prompt. False: no memory. */
bool choice_want_scores(struct choice *choice, int top) NODISCARD;
/* Takes the scores of the prompt, which must be filled. */
void choice_take_scores(struct choice *choice, const struct request *request);
/* Takes one token: text, log-probabilities, stop strings, the end. False: no memory. */
bool choice_token(struct choice *choice, const struct tandem_event *event, const struct request *request, const struct facts *facts) NODISCARD;
int64_t choice_count_chars(const char *text, size_t n);

struct answer {
	const struct request *request;
	struct out chunk_head, body_head; /* up to the choices */
};
bool answer_init(struct answer *a, enum endpoint endpoint, const char *id, int64_t created, const struct facts *facts, const struct request *request) NODISCARD;
void answer_fini(struct answer *a);

/* What the choice has to say, if anything: its role, text, its end. */
void answer_chunk(struct answer *a, struct out *out, struct choice *choice, const struct completion_times *times);
/* Usage where asked for, then the end mark of the stream. */
void answer_end(struct answer *a, struct out *out, const struct completion_times *times);
/* The end of a stream that failed. */
void answer_error(struct out *out, const struct refusal *why);
void answer_body(struct answer *a, struct out *out, struct choice *choices, int count, const struct completion_times *times);

#endif
