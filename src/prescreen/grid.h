/* grid.h: results seen as a table: a row is a family at one M class, a column a TP degree. What reports show and what flips are looked for in.
 * Borrows from the results; freed by grid_fini. Any thread. */
#ifndef TANDEM_PRESCREEN_GRID_H
#define TANDEM_PRESCREEN_GRID_H

#include "prescreen/results.h"

struct grid_row {
	const char *family;
	const char *phase;
	enum problem_op op;
	int m;       /* rows */
	int context; /* attention: keys; else 0 */
	int others;  /* rows that ask the same of ranks with another shape, before this one */
	const struct result_problem *at[RESULTS_MAX_DEGREES]; /* by column; NULL: none */
};

struct grid {
	int degree[RESULTS_MAX_DEGREES]; /* world size of each column: the legal ones */
	int degrees;
	struct grid_row *row; /* [rows] owned: a family's rows stand together, decode first, then by M; families in the order of the results */
	int rows;
};

enum status grid_init(struct grid *out, const struct results *results, struct error *err) NODISCARD;
void grid_fini(struct grid *grid);

/* What decides a problem: its best kept candidate; else the best of the boundary; else the fastest that was timed; else the first that was rejected. NULL:
 * there is nothing but a baseline, or nothing. */
const struct result_candidate *grid_best(const struct result_problem *problem);
/* "gemv_strided (4 rows, 640 threads)" */
const char *grid_variant_text(const struct variant *variant, char text[RESULTS_TEXT]);
/* Why a candidate is where it is: "1.26x (1.24 to 1.27)", "threads: 1088 > 1024", ... */
const char *grid_why(const struct result_candidate *candidate, char text[2 * RESULTS_TEXT]);
/* What its chain says of a candidate: "confirmed in the chain: 0.31 us less a call, 1.004x (1.002 to 1.005)"; "" where it was not tried. */
const char *grid_chain_text(const struct result_candidate *candidate, char text[2 * RESULTS_TEXT]);
/* "decode M=1", "prefill M=512, 512 keys"; of other ranks "decode M=1, 64 x 64" with the shape of each cell */
const char *grid_row_text(const struct grid_row *row, char text[RESULTS_TEXT]);

#endif
