#include "client/arrivals.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

/* Random streams: one for each thing that is drawn, so that adding one changes no other. */
enum stream { STREAM_GAP = 1, STREAM_INPUT, STREAM_OUTPUT };

/* Decimal digits, 1 to ARRIVALS_MAX_TOKENS; moves *text behind them. 0: none. */
static int take_tokens(const char **text)
{
	size_t n = strspn(*text, "0123456789");
	if (!n || n > 8) return 0;
	long value = strtol(*text, NULL, 10);
	*text += n;
	return value >= 1 && value <= ARRIVALS_MAX_TOKENS ? (int)value : 0;
}

enum status token_range_parse(struct token_range *out, const char *who, const char *text, struct error *err)
{
	const char *at = text;
	struct token_range range;
	range.lo = range.hi = take_tokens(&at);
	if (range.lo && *at == ':') {
		at++;
		range.hi = take_tokens(&at);
	}
	if (!range.lo || *at || range.hi < range.lo)
		return FAIL(err, USAGE, "--%s: '%.80s' is no length; give tokens from 1 to %d such as 128, or a range such as 16:256", who, text, ARRIVALS_MAX_TOKENS);
	*out = range;
	return STATUS_OK;
}

static int draw(struct token_range range, uint64_t seed, enum stream stream, uint64_t index)
{
	return range.lo + (int)(rng_u64(seed, stream, index) % (uint64_t)(range.hi - range.lo + 1));
}

void arrivals_draw(struct arrival *arrivals, int count, double rate, uint64_t seed, struct token_range input, struct token_range output)
{
	double at = 0;
	for (int i = 0; i < count; i++) {
		uint64_t index = (uint64_t)i;
		if (i && !isinf(rate)) at += -log1p(-rng_unit(seed, STREAM_GAP, index)) / rate;
		arrivals[i] = (struct arrival){(uint64_t)(at * 1e9), draw(input, seed, STREAM_INPUT, index), draw(output, seed, STREAM_OUTPUT, index)};
	}
}

/* The pair of one line. False: the line holds none. */
static enum status take_pair(const char *line, size_t n, const char *name, int number, struct arrival *out, bool *found, struct error *err)
{
	const char *at = line + strspn(line, " \t"), *end = line + n;
	*found = at < end && *at != '#';
	if (!*found) return STATUS_OK;
	out->input_tokens = take_tokens(&at);
	at += strspn(at, " \t,");
	out->output_tokens = take_tokens(&at);
	at += strspn(at, " \t\r");
	if (out->input_tokens && out->output_tokens && at == end) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s, line %d: not a pair of lengths; each line is input and output tokens, such as 128 32", name, number);
}

enum status arrivals_lengths(struct arrival *arrivals, int count, const char *name, const char *text, struct error *err)
{
	int filled = 0, number = 0;
	for (const char *at = text; *at && filled < count;) {
		size_t n = strcspn(at, "\n");
		bool found;
		TRY(take_pair(at, n, name, ++number, &arrivals[filled], &found, err));
		filled += found;
		at += n + (at[n] == '\n');
	}
	if (!filled) return FAIL(err, BAD_INPUT, "%s: holds no lengths; each line is input and output tokens, such as 128 32", name);
	for (int i = filled; i < count; i++) {
		arrivals[i].input_tokens = arrivals[i % filled].input_tokens;
		arrivals[i].output_tokens = arrivals[i % filled].output_tokens;
	}
	return STATUS_OK;
}
