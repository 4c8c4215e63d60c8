#include "prescreen/timing.h"

#include <math.h>
#include <string.h>

#include "base/stats.h"

#define HOPELESS_PAIRS 3 /* in each of which a candidate is slower than this part of the lower threshold: it needs no more */
#define HOPELESS_PART 0.85

void pairs_add(struct pairs *pairs, double baseline_us, double us)
{
	int i = pairs->count++;
	pairs->baseline_us[i] = baseline_us / 2;
	pairs->us[i] = us / 2;
	pairs->ratio[i] = us > 0 ? baseline_us / us : 0;
}

static double median(const double *values, int n)
{
	double copy[PAIRS_MAX];
	memcpy(copy, values, (size_t)n * sizeof *values);
	return percentile(copy, n, 0.5);
}

void pairs_summary(const struct pairs *pairs, struct result_timing *out)
{
	double sorted[PAIRS_MAX];
	int n = pairs->count, reach = (int)ceil(0.98 * sqrt((double)n)); /* ranks to both sides of the middle: 1.96 standard deviations of a binomial */
	memcpy(sorted, pairs->ratio, (size_t)n * sizeof *sorted);
	*out = (struct result_timing){.pairs = n, .baseline_us = median(pairs->baseline_us, n), .us = median(pairs->us, n)};
	out->speedup = percentile(sorted, n, 0.5);
	int low = (n - 1) / 2 - reach, high = n / 2 + reach;
	out->low = sorted[low < 0 ? 0 : low];
	out->high = sorted[high > n - 1 ? n - 1 : high];
}

static double distance(double value, const struct pair_rule *rule)
{
	double to_keep = fabs(value - rule->keep), to_reject = fabs(value - rule->reject);
	return to_keep < to_reject ? to_keep : to_reject;
}

bool pairs_enough(const struct pairs *pairs, const struct pair_rule *rule)
{
	struct result_timing t;
	if (pairs->count < HOPELESS_PAIRS) return false;
	if (pairs->count >= PAIRS_MAX) return true;
	pairs_summary(pairs, &t);
	if (t.high < rule->reject * HOPELESS_PART) return true;
	if (pairs->count < rule->least) return false;
	double half = fmax(t.high - t.speedup, t.speedup - t.low);
	return half <= rule->width * t.speedup || distance(t.speedup, rule) >= 2 * half;
}

enum outcome pairs_outcome(const struct result_timing *timing, const struct pair_rule *rule)
{
	if (timing->speedup >= rule->keep) return OUTCOME_KEEP;
	return timing->speedup < rule->reject ? OUTCOME_REJECT : OUTCOME_BOUNDARY;
}
