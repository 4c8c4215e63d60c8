/* rejects.h: every rejection of a run, those of one candidate and place that differ in M alone put together. Borrows from the results. */
#ifndef TANDEM_PRESCREEN_REJECTS_H
#define TANDEM_PRESCREEN_REJECTS_H

#include "prescreen/grid.h"

struct reject_group {
	enum reason reason;
	const struct variant *variant;
	const struct result_place *place;
	const struct result_problem *problem; /* the first of them */
	int count;
	char rows[64];                        /* "1, 2, 4": M of all; cut with dots */
	char why[2 * RESULTS_TEXT];           /* of all; of the timed ones the range of their speed-ups */
};

struct rejects {
	struct reject_group *item; /* [count] owned, in order of reason, kernel, family, degree */
	int count;
	int of_reason[REASON_COUNT]; /* rejections, not groups */
};

enum status rejects_init(struct rejects *out, const struct results *results, struct error *err) NODISCARD;
void rejects_fini(struct rejects *rejects);

#endif
