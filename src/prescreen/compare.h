/* compare.h: what flips: verdicts of one candidate at several TP degrees of one run, or of the same problem in two runs. Borrows from the results; a list
 * is freed by its fini. Any thread.
 *
 * A flip is a change of outcome (keep, boundary, reject). The lesson of prescreening is that they are common between degrees; between two runs on
 * one machine they should be rare, and `compare_runs` says how rare.
 */
#ifndef TANDEM_PRESCREEN_COMPARE_H
#define TANDEM_PRESCREEN_COMPARE_H

#include "prescreen/grid.h"

/* One candidate (kernel and mode) that has not the same outcome at all degrees of a row. */
struct degree_flip {
	const struct grid_row *row;
	const struct variant *variant;
	const struct result_candidate *at[RESULTS_MAX_DEGREES]; /* by column; NULL: it is no candidate there, or was not decided */
};

struct degree_flips {
	struct degree_flip *item;
	int count;
	int compared; /* candidates of rows that were decided at two degrees or more */
};

enum status compare_degrees(struct degree_flips *out, const struct grid *grid, struct error *err) NODISCARD;
void degree_flips_fini(struct degree_flips *flips);

struct run_flip {
	const struct result_problem *problem; /* of the first run */
	const struct result_candidate *a, *b;
};

struct run_flips {
	struct run_flip *item; /* outcomes that differ */
	int count;
	int compared, equal;   /* candidates decided in both, baselines apart; of these, with the same outcome */
	int problems, same_best; /* in both; of these, with the same best candidate and verdict */
	int chained, same_confirmed; /* problems of which a chain tried candidates in both; of these, those where both or neither of the runs have one confirmed */
	int only_a, only_b;    /* candidates decided in one run alone, those of problems that the other lacks included */
	double spread;         /* largest |speedup a / speedup b - 1| of candidates timed in both */
};

/* Two runs of one model on one kind of device. BAD_INPUT if they are of different models, element types or thresholds: such verdicts cannot be
 * compared. Other devices or libraries can: what flips then is the answer. */
enum status compare_runs(struct run_flips *out, const struct results *a, const struct results *b, struct error *err) NODISCARD;
void run_flips_fini(struct run_flips *flips);
/* equal / compared; 1 if nothing was compared. */
double run_stability(const struct run_flips *flips);

/* For people and for programs. JSON: a new reference, NULL: no memory. */
enum status compare_degrees_text(const struct degree_flips *flips, const struct grid *grid, struct buf *out, struct error *err) NODISCARD;
enum status compare_runs_text(const struct run_flips *flips, struct buf *out, struct error *err) NODISCARD;
json_t *compare_degrees_json(const struct degree_flips *flips, const struct grid *grid);
json_t *compare_runs_json(const struct run_flips *flips);

#endif
