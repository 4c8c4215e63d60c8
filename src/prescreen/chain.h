/* chain.h: the second part of a prescreen: whether what is faster alone is faster in a decode step.
 *
 * A candidate is timed behind itself. In a step it runs between other ops, and where launches overlap (a kernel asks for its weights while the one before
 * it ends) a kernel that is faster alone can make the step slower. So, for each degree and number of rows of decode, the ops of some layers at one rank's
 * shapes are recorded as the engine launches them: norm and linear or attention_in, attention over a cache, o, the delta net, mlp_in, down or the experts, over and over with
 * weights that go around in memory as those of a trial, and the head (of each size that ranks have) at the end if one of its candidates
 * is kept. Left out: collectives, and rope and cache writes where no op fuses them.
 *
 * Against the chain of defaults stands that with one kept candidate preferred, in interleaved pairs (timing.h). It is confirmed if the interval of the ratio lies
 * above 1. Of a problem the CHAIN_CANDIDATES fastest are tried, and the confirmed one that gains most is taken. Then all that are taken together: if that
 * interval does not lie above 1, the one that gained least is dropped, and so on. A problem of several degrees must be confirmed in the chain of each.
 *
 * The verdict of a candidate itself stays what it is; the whitelist takes only what is confirmed (choose.h).
 */
#ifndef TANDEM_PRESCREEN_CHAIN_H
#define TANDEM_PRESCREEN_CHAIN_H

#include "prescreen/candidate.h"

#define CHAIN_CANDIDATES 4
#define CHAIN_CONTEXT 1024 /* keys of a sequence */
#define CHAIN_QUICK_CONTEXT 64

/* What the chains of the results' degrees need beyond the problems themselves. */
void chain_widen(struct stream_options *stream, const struct results *results, const struct screen_options *options);

/* Measures the chains that the results lack; saves after each. Ends early, with STATUS_OK, when the budget does. A chain that does not come to its end leaves
 * candidates as they were. All problems are done before. */
enum status chain_run(struct screen *s, struct error *err) NODISCARD;

/* Whether all problems of this chain are done. */
bool chain_measured(const struct results *results, int world_size, int rows);
/* Chains that the results call for, and, of them, those that are there. */
void chain_count(const struct results *results, int *wanted, int *done);

#endif
