/* metrics.h: counters and histograms in Prometheus' text format, under vLLM's names where the meaning is the same, tandem_* for the rest.
 * Thread: the server's alone, for writing as for reading; so nothing here is locked or atomic. */
#ifndef TANDEM_SERVE_METRICS_H
#define TANDEM_SERVE_METRICS_H

#include "serve/completion.h"
#include "serve/driver.h"

#define METRICS_MAX_BUCKETS 32
#define METRICS_MAX_HANDLERS 32
#define METRICS_MAX_HTTP 256 /* combinations of handler, method and status */

struct histogram {
	double bounds[METRICS_MAX_BUCKETS]; /* ascending; +Inf is implied */
	int buckets;
	uint64_t counts[METRICS_MAX_BUCKETS + 1];
	uint64_t count;
	double sum;
};

/* X(member, name, help) of the histograms about requests */
#define METRICS_HISTOGRAM_LIST(X)                                                                                    \
	X(ttft, "vllm:time_to_first_token_seconds", "Arrival of a request to its first token.")                          \
	X(itl, "vllm:inter_token_latency_seconds", "Time between two tokens of a sequence.")                             \
	X(e2e, "vllm:e2e_request_latency_seconds", "Arrival of a request to its end.")                                   \
	X(queue, "vllm:request_queue_time_seconds", "Arrival at the engine to the first step of a request.")             \
	X(prefill, "vllm:request_prefill_time_seconds", "First step of a request to its first token.")                   \
	X(inference, "vllm:request_inference_time_seconds", "Arrival at the engine to the last token.")                  \
	X(decode, "vllm:request_decode_time_seconds", "First token to last token.")                                      \
	X(prompt, "vllm:request_prompt_tokens", "Prompt tokens of a request.")                                           \
	X(generation, "vllm:request_generation_tokens", "Tokens generated for a request.")                               \
	X(max_tokens, "vllm:request_params_max_tokens", "max_tokens of a request.")                                      \
	X(n, "vllm:request_params_n", "n of a request.")

struct metrics {
#define X(member, name, help) struct histogram member;
	METRICS_HISTOGRAM_LIST(X)
#undef X
	struct histogram http[METRICS_MAX_HANDLERS]; /* duration by handler */
	struct {
		const char *handler, *method;
		int status;
		uint64_t count;
	} requests[METRICS_MAX_HTTP];
	int request_kinds;
	uint64_t prompt_tokens, generation_tokens;
	uint64_t finished_stop, finished_length, finished_abort, finished_error; /* by choice */
	uint64_t rejected;        /* 429: the queue was full */
	uint64_t slow_readers;    /* cut off */
	uint64_t refused_connections, timed_out;
};

void metrics_init(struct metrics *m, int context);
void histogram_add(struct histogram *h, double value);
/* `handler`: its number; the names are static. */
void metrics_http(struct metrics *m, int number, const char *handler, const char *method, int status, double seconds);
/* A request ended, well or not. */
void metrics_completion(struct metrics *m, const struct completion *completion, uint64_t submitted_ns, uint64_t now_ns);

struct metrics_state {
	const struct facts *facts;
	const struct driver_status *driver;
	const struct tandem *engine; /* for tandem_get_health */
	int waiting; /* sequences that the engine has not got yet, beside those it counts itself */
	int connections;
	const char *const *handlers; /* names by number */
	int handler_count;
};
void metrics_write(const struct metrics *m, const struct metrics_state *state, struct out *out);

#endif
