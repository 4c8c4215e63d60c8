#include "client/summary.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/stats.h"

void sample_fini(struct sample *sample)
{
	free(sample->gaps_ms);
	sample->gaps_ms = NULL;
	sample->gap_count = sample->gap_capacity = 0;
}

enum status sample_piece(struct sample *s, uint64_t now_ns, struct error *err)
{
	if (s->first_ns) {
		if (s->gap_count == s->gap_capacity) {
			int capacity = s->gap_capacity ? 2 * s->gap_capacity : 32;
			TRY(mem_grow((void **)&s->gaps_ms, (size_t)capacity, sizeof *s->gaps_ms, "inter-token times", err));
			s->gap_capacity = capacity;
		}
		s->gaps_ms[s->gap_count++] = (double)(now_ns - s->last_ns) / 1e6;
	} else {
		s->first_ns = now_ns;
	}
	s->last_ns = now_ns;
	return STATUS_OK;
}

const char *sample_failure(const struct sample *s, char text[64])
{
	if (s->end != LOAD_DONE) return load_end_text(s->end);
	if (s->status != 200) {
		snprintf(text, 64, "HTTP %d", s->status);
		return text;
	}
	if (s->error_event) return "error event in the stream";
	if (!s->done_mark) return "stream without [DONE]";
	return s->first_ns ? NULL : "stream without tokens";
}

enum status goodput_parse(struct goodput *out, const char *text, struct error *err)
{
	static const char *const names[] = {"ttft", "tpot", "e2el"};
	double limits[3] = {0};
	const char *at = text;
	do {
		size_t n = strcspn(at, ":"), number = 0;
		char *end = (char *)at;
		int which = -1;
		for (int i = 0; i < 3; i++)
			if (n == strlen(names[i]) && !strncmp(at, names[i], n)) which = i;
		if (which >= 0 && at[n] == ':') {
			number = strspn(at + n + 1, "0123456789.");
			if (number && !limits[which]) limits[which] = strtod(at + n + 1, &end);
		}
		if (which < 0 || !number || end != at + n + 1 + number || !(limits[which] > 0) || (*end && *end != ','))
			return FAIL(err, USAGE, "--goodput: '%.80s' are no limits in ms; give one or more of ttft:MS,tpot:MS,e2el:MS", text);
		at = *end ? end + 1 : NULL;
	} while (at);
	*out = (struct goodput){limits[0], limits[1], limits[2]};
	return STATUS_OK;
}

struct distribution distribution_of(double *values, int n)
{
	struct distribution d = {.count = n};
	double sum = 0;
	if (!n) return d;
	for (int i = 0; i < n; i++) sum += values[i];
	d.mean = sum / n;
	d.p50 = percentile(values, n, 0.5);
	d.p90 = percentile(values, n, 0.9);
	d.p99 = percentile(values, n, 0.99);
	d.max = values[n - 1];
	return d;
}

static double ms(uint64_t from, uint64_t to)
{
	return to > from ? (double)(to - from) / 1e6 : 0;
}

static double tpot(const struct sample *s)
{
	return ms(s->first_ns, s->last_ns) / (s->output_tokens - 1);
}

static bool is_good(const struct sample *s, const struct goodput *g)
{
	if (g->ttft > 0 && ms(s->sent_ns, s->first_ns) > g->ttft) return false;
	if (g->e2el > 0 && ms(s->sent_ns, s->end_ns) > g->e2el) return false;
	return !(g->tpot > 0) || s->output_tokens < 2 || tpot(s) <= g->tpot;
}

static void count_failure(struct summary *out, const char *text)
{
	int i = 0;
	while (i < out->failure_kinds && strcmp(out->failures[i].text, text) != 0) i++;
	if (i == SUMMARY_MAX_KINDS) i--; /* the last kind takes the rest */
	else if (i == out->failure_kinds) snprintf(out->failures[out->failure_kinds++].text, sizeof out->failures[0].text, "%s", text);
	out->failures[i].count++;
}

static void count_all(struct summary *out, const struct sample *samples, int n, const struct goodput *limits)
{
	uint64_t first = UINT64_MAX, last = 0;
	char text[64];
	for (int i = 0; i < n; i++) {
		const struct sample *s = &samples[i];
		const char *failure = sample_failure(s, text);
		if (s->sent_ns && s->sent_ns < first) first = s->sent_ns;
		if (s->end_ns > last) last = s->end_ns;
		if (failure) {
			count_failure(out, failure);
			continue;
		}
		out->completed++;
		out->good += is_good(s, limits);
		out->input_tokens += s->input_tokens;
		out->output_tokens += s->output_tokens;
	}
	out->seconds = last > first ? (double)(last - first) / 1e9 : 0;
}

enum status summary_make(struct summary *out, const struct sample *samples, int n, const struct goodput *limits, struct error *err)
{
	size_t most = (size_t)n, gaps = 0;
	char text[64];
	*out = (struct summary){.requests = n};
	count_all(out, samples, n, limits);
	for (int i = 0; i < n; i++) gaps += (size_t)samples[i].gap_count;
	if (gaps > most) most = gaps;
	double *values = mem_zalloc(most, sizeof *values, "times", err);
	if (!values) return STATUS_NO_MEMORY;
	int k = 0;
#define EACH(member, condition, value)                                        \
	k = 0;                                                                    \
	for (int i = 0; i < n; i++) {                                             \
		const struct sample *s = &samples[i];                                 \
		if (!sample_failure(s, text) && (condition)) values[k++] = (value);   \
	}                                                                         \
	out->member = distribution_of(values, k);
	EACH(ttft, true, ms(s->sent_ns, s->first_ns))
	EACH(tpot, s->output_tokens > 1, tpot(s))
	EACH(e2el, true, ms(s->sent_ns, s->end_ns))
	EACH(delay, true, ms(s->due_ns, s->sent_ns))
#undef EACH
	k = 0;
	for (int i = 0; i < n; i++)
		for (int j = 0; j < samples[i].gap_count && !sample_failure(&samples[i], text); j++) values[k++] = samples[i].gaps_ms[j];
	out->itl = distribution_of(values, k);
	free(values);
	return STATUS_OK;
}
