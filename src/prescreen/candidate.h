/* candidate.h: inside the prescreen: one candidate of one problem (screen.h says in which steps). Shared by screen.c,
 * candidate.c and chain.c. */
#ifndef TANDEM_PRESCREEN_CANDIDATE_H
#define TANDEM_PRESCREEN_CANDIDATE_H

#include "prescreen/kernels.h"
#include "prescreen/problems.h"
#include "prescreen/screen.h"
#include "prescreen/timing.h"
#include "prescreen/trial.h"

#define CANDIDATES_MAX 128
#define CANDIDATE_S 1.5 /* that its pairs take at most */
#define CANDIDATE_QUICK_S 0.03
#define LAUNCHES_MAX 64 /* kernels of one call that are written down */

/* One variant, made ready to be timed. */
struct side {
	struct variant variant;
	struct graph *graph; /* of `calls` calls; NULL where the back end records nothing */
	int calls;
};

struct screen {
	struct results *results;
	const struct screen_options *options;
	struct bench bench;
	struct target target; /* the device, for the static rules */
	struct pair_rule rule;
	struct pairs pairs;
	int repeats;
	uint64_t started_ns;
	double seconds_before; /* of the runs that this one goes on with */
	int measured;
	bool cut; /* the budget ended within the problem in work */
	uint64_t chains_ns; /* when the first chain of this run began */
	int chains_measured;
	struct side baseline; /* of the problem in work */
	struct event *from, *to;
	int next_copy;
};

/* A description of an open device; static rules need no more. */
void candidate_target(struct target *out, const struct device *device, const struct device_limits *limits);
/* Everything about candidate `i`; an error is the run's, not the candidate's. */
enum status candidate_run(struct screen *s, struct trial *trial, struct result_problem *problem, int i, double seconds, struct error *err) NODISCARD;
/* us of one replay of a graph. */
enum status candidate_time_graph(struct screen *s, struct graph *graph, double *us, struct error *err) NODISCARD;
bool candidate_out_of_budget(const struct screen *s);
/* The same, within a problem: which is then cut off. */
bool candidate_cut(struct screen *s);
/* Drops what belongs to the problem in work. */
void candidate_forget(struct screen *s);
/* Whether a failure is the whole run's and not a candidate's: then `err` is told why. */
bool candidate_ends_run(enum status st, const struct error *why, struct error *err);
/* CANCELLED if the run is to stop. */
enum status candidate_stopped(const struct screen *s, struct error *err) NODISCARD;

#endif
