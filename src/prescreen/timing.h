/* timing.h: interleaved pairs: what is collected, when it is enough, and what it says. Pure; any thread.
 *
 * A pair is A B B A: baseline, candidate, candidate, baseline, so that a drift of the clock falls on both alike; its ratio is that of the two sums. The
 * speed-up is the median of the ratios, with the order statistics that hold it with 95 % probability.
 */
#ifndef TANDEM_PRESCREEN_TIMING_H
#define TANDEM_PRESCREEN_TIMING_H

#include "prescreen/results.h"

#define PAIRS_MAX 400

struct pairs {
	int count;
	double ratio[PAIRS_MAX], baseline_us[PAIRS_MAX], us[PAIRS_MAX];
};

struct pair_rule {
	double keep, reject; /* thresholds of the speed-up */
	int least, most;     /* pairs: at least, at most (PAIRS_MAX) */
	double width;        /* half the interval, relative, that is narrow enough close to a threshold */
};

/* Times of one pair in us: both runs of each side together. Not called with PAIRS_MAX pairs in it. */
void pairs_add(struct pairs *pairs, double baseline_us, double us);
/* count >= 1 */
void pairs_summary(const struct pairs *pairs, struct result_timing *out);
/* More pairs could not change the verdict by much: the interval is narrow, or lies on one side of every threshold by twice its half width,
 * or the candidate is hopeless. */
bool pairs_enough(const struct pairs *pairs, const struct pair_rule *rule);
/* KEEP, BOUNDARY or REJECT by the median. */
enum outcome pairs_outcome(const struct result_timing *timing, const struct pair_rule *rule);

#endif
