/* arrivals.h: what a load of requests looks like: when each is sent and how long its prompt and answer are. Pure and a function of the seed,
 * so that two servers, or two versions of one, can be given the same load. */
#ifndef TANDEM_CLIENT_ARRIVALS_H
#define TANDEM_CLIENT_ARRIVALS_H

#include <stdint.h>

#include "base/status.h"

struct token_range {
	int lo, hi; /* uniform, both ends included */
};

struct arrival {
	uint64_t at_ns; /* since the start */
	int input_tokens, output_tokens;
};

#define ARRIVALS_MAX_TOKENS 16777216

/* "128" or "16:256". `who` names the option in the error. USAGE. */
enum status token_range_parse(struct token_range *out, const char *who, const char *text, struct error *err) NODISCARD;

/* Fills arrivals[0..count). Gaps are exponential with mean 1/rate seconds, which makes the arrivals a Poisson process; rate INFINITY: all
 * at 0. The first comes at 0. */
void arrivals_draw(struct arrival *arrivals, int count, double rate, uint64_t seed, struct token_range input, struct token_range output);

/* Lengths from text instead: lines "input output"; blank lines and lines that start with # are skipped; from the top again when they are
 * used up. BAD_INPUT with the line's number. */
enum status arrivals_lengths(struct arrival *arrivals, int count, const char *name, const char *text, struct error *err) NODISCARD;

#endif
