/* completion.h: one request from the first token to the last byte of its answer.
 *
 * A request has prompts × n choices, each one job of the engine. Events of the jobs go in; out comes a stream of SSE events, or at the
 * end one body. Here token ids become text, stop strings end a choice, log-probabilities and usage are written, and it is decided
 * which single end the client sees. Thread: the server's; completion_create may run in any, before the first event.
 *
 * A completion ends for its client (completion_ended) before its last job does: what a stop string or an error ended is cancelled in
 * the engine, and memory lives until every terminal event has come (completion_idle).
 */
#ifndef TANDEM_SERVE_COMPLETION_H
#define TANDEM_SERVE_COMPLETION_H

#include "serve/driver.h"
#include "serve/prompt.h"

struct completion;

struct completion_options {
	const struct facts *facts;
	struct request *request; /* taken over on success, and so are the prompts: the caller's are empty then */
	struct prompts *prompts;
	const char *id;          /* without its prefix */
	int64_t created;         /* Unix time */
	uint64_t arrival_ns;
	uint64_t seed;           /* where the request gives none */
	/* Asks for the end of a job whose events no longer matter. */
	void (*cancel)(void *context, struct driver_job *job);
	void *context; /* of cancel, and whoever asks completion_context */
};

/* 400 if a prompt does not fit. */
enum status completion_create(struct completion **out, const struct completion_options *options, struct refusal *r) NODISCARD;
/* Only when idle (or before its jobs were submitted). */
void completion_destroy(struct completion **completion);
/* The one that a job belongs to. */
struct completion *completion_of(const struct driver_job *job);
void *completion_context(const struct completion *completion);

/* Puts the jobs to be submitted into `jobs`, which has room for completion_choices; returns how many. None may be needed. */
int completion_jobs(struct completion *completion, struct driver_job **jobs);
int completion_choices(const struct completion *completion);
bool completion_is_stream(const struct completion *completion);
const struct request *completion_request(const struct completion *completion);

/* Takes one event. */
void completion_event(struct completion *completion, const struct driver_event *event);
/* Ends the answer here, with this error as its end; jobs in flight are cancelled. Nothing if it has ended. */
void completion_fail(struct completion *completion, const struct refusal *why);
/* The client has gone: no more output, jobs are cancelled. */
void completion_abandon(struct completion *completion);
/* Appends an SSE comment, to be called between events. */
void completion_comment(struct completion *completion);

/* Bytes to send: SSE events, or the body once ended. The caller clears what it has sent. */
struct out *completion_output(struct completion *completion);
/* Of a stream: bytes of the chunks that its choices began with, which hold the echo of the prompt. */
size_t completion_first_bytes(const struct completion *completion);
bool completion_ended(const struct completion *completion);
bool completion_idle(const struct completion *completion);
/* Status 0 unless it ended by an error before anything was put out: then this is the answer. */
const struct refusal *completion_refusal(const struct completion *completion);
/* Something was put out already, so that an error can only be an event of the stream. */
bool completion_begun(const struct completion *completion);

/* What metrics want to know. */
struct completion_times {
	uint64_t arrival_ns, first_ns, last_ns; /* first and last token of any choice; 0: none */
	double queue_seconds; /* of the first choice */
	uint64_t gap_ns; /* between the last token and the one before it of the same choice; 0: the last event brought none */
	int prompt_tokens, completion_tokens, cached_tokens;
};
void completion_get_times(const struct completion *completion, struct completion_times *out);
/* Names of enum-like ends per choice: "stop", "length", "abort", "error". */
const char *completion_finish(const struct completion *completion, int choice);

#endif
