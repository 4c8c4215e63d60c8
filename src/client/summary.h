/* summary.h: from what happened to each request of a load to the figures that serving is judged by. Pure.
 *
 * TTFT: sent to the first token. ITL: between two pieces of a stream that bring tokens; all gaps of all requests. TPOT: first to last token
 * over the tokens after the first, one value a request. E2EL: sent to the end of the stream. These are the definitions of the
 * load generators in use (docs/SERVING.md), so that figures can be put side by side. Times are from the sending, not from when the request
 * was due: `delay` shows how far the two were apart. Failed requests count in no distribution. */
#ifndef TANDEM_CLIENT_SUMMARY_H
#define TANDEM_CLIENT_SUMMARY_H

#include <stdbool.h>
#include <stdint.h>

#include "client/load.h"

/* X(member, name in reports, in --goodput) */
#define SUMMARY_LIST(X)      \
	X(ttft, "TTFT", "ttft")  \
	X(tpot, "TPOT", "tpot")  \
	X(itl, "ITL", NULL)      \
	X(e2el, "E2EL", "e2el")

struct sample {
	enum load_end end;
	int status;          /* HTTP; 0: no answer */
	bool error_event;    /* the stream told of a failure */
	bool done_mark;      /* data: [DONE] */
	uint64_t due_ns, sent_ns, first_ns, last_ns, end_ns; /* first and last: pieces with tokens; 0: none */
	int input_tokens, output_tokens; /* as the server counts, else as asked for and as pieces came */
	double *gaps_ms;     /* owned */
	int gap_count, gap_capacity;
};
void sample_fini(struct sample *sample);
/* A piece with tokens has come. */
enum status sample_piece(struct sample *sample, uint64_t now_ns, struct error *err) NODISCARD;
/* Why the request did not succeed; NULL: it did. `text` is room for it. */
const char *sample_failure(const struct sample *sample, char text[64]);

/* Limits in ms; 0: none. A request is good if it keeps all of them. */
struct goodput {
	double ttft, tpot, e2el;
};
/* "ttft:200,tpot:50,e2el:5000", each at most once. USAGE. */
enum status goodput_parse(struct goodput *out, const char *text, struct error *err) NODISCARD;

struct distribution { /* ms; all 0 if count is 0 */
	int count;
	double mean, p50, p90, p99, max;
};
struct distribution distribution_of(double *values, int n); /* sorts */

#define SUMMARY_MAX_KINDS 24
struct summary {
	int requests, completed, good;
	int64_t input_tokens, output_tokens; /* of completed requests */
	double seconds;                      /* first sent to last end */
#define X(member, name, goodput) struct distribution member;
	SUMMARY_LIST(X)
#undef X
	struct distribution delay;
	struct {
		char text[64];
		int count;
	} failures[SUMMARY_MAX_KINDS];
	int failure_kinds;
};
enum status summary_make(struct summary *out, const struct sample *samples, int n, const struct goodput *limits, struct error *err) NODISCARD;

#endif
