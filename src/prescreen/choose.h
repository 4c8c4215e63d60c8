/* choose.h: the whitelist that results justify: for each linear and M class the fastest candidate whose verdict is keep, and whose speed-up is not
 * below 1 anywhere in its interval; of linears of decode, where chains were measured (chain.h), only those that are confirmed there.
 *
 * Conservative on purpose. Only measured classes count; neighbouring classes with the same choice become one range, which also takes in the M between
 * them, if they are at most a factor CHOOSE_MAX_STEP apart; a class without a choice, or with another one, or not measured to the end, ends a range; nothing
 * reaches beyond the outermost class. So no range covers an M at which its variant was measured slower. Linears alone have entries: how attention,
 * experts and delta nets are computed is judged and timed, and stays what the dispatch takes.
 */
#ifndef TANDEM_PRESCREEN_CHOOSE_H
#define TANDEM_PRESCREEN_CHOOSE_H

#include "engine/whitelist.h"
#include "prescreen/results.h"

#define CHOOSE_MAX_STEP 4
/* A class takes its neighbour's variant, if that is kept here too and not slower than the best by more than this: fewer ranges, more M covered. */
#define CHOOSE_NEAR 0.98

/* In front of an entry's `where`: a linear of decode in results whose chains were switched off. */
#define CHOOSE_UNCONFIRMED "not confirmed: "

/* Whether a candidate's own verdict allows it, chains apart. */
bool choose_eligible(const struct result_candidate *candidate, bool any_order);

/* any_order: candidates of another order of summation than the back end's invariant one may be chosen too. The whitelist is sealed; the
 * caller owns it. BAD_INPUT if the results have no linear. */
enum status choose_whitelist(struct whitelist *out, const struct results *results, bool any_order, struct error *err) NODISCARD;

#endif
