/* screen.h: the prescreen itself: takes the problems of a `struct results` one after another, runs every variant that the back end lists for them, and
 * writes down what became of each (results.h). Nothing of this runs in a serving process.
 *
 * One candidate: static rules; the request (linear_prefer); the recording of one call, whose launches are compared with the baseline's; a run over
 * poisoned output, compared whole; repeats, compared bit by bit; then interleaved pairs against the baseline (timing.h), each a replay of a recorded graph
 * (a loop of calls where the back end records nothing), over weights that go around in memory larger than the cache.
 *
 * The first thing that is wrong ends it, and only what is right is timed. After a refusal the baseline must still run: if it does not, the device has failed.
 */
#ifndef TANDEM_PRESCREEN_SCREEN_H
#define TANDEM_PRESCREEN_SCREEN_H

#include "device/device.h"
#include "model/config.h"
#include "prescreen/results.h"

struct screen_progress {
	int problems, done;         /* all of them, and those that are done */
	int candidates, candidate;  /* of the one in work, and which of them */
	const struct result_problem *problem;
	int chains, chains_done;    /* in the second part, else 0 */
	int world_size;             /* of the chain in work */
	double chain_seconds;       /* since the first chain of this run */
	int chains_measured;        /* by this run */
	double seconds;             /* since the start */
	int measured;               /* problems that this run has done */
};

struct screen_options {
	const struct device_ops *ops;
	const struct device_options *device;
	const struct model_config *config;
	bool chain;                 /* confirm what is kept in the chain of a layer's ops (chain.h); false: the results say so */
	bool any_order;             /* candidates of another order of summation may enter the whitelist: they are confirmed too */
	bool quick;                 /* fewer pairs, fewer repeats: for tests */
	int64_t rotate_bytes;       /* -1: twice the device's last cache, at most 512 MiB; 0: one copy of the weights */
	double budget_s;            /* of this run; 0: none. It is asked between pairs; a problem that it cuts off stays open, as what it does not reach */
	int timeout_ms;             /* of one wait for the device */
	/* Any may be NULL. stop: is asked between pairs; true ends the run, which returns CANCELLED. save: after each problem and chain,
	 * and after a failure, if this run has done one of these. */
	bool (*stop)(void *context);
	void (*progress)(void *context, const struct screen_progress *progress);
	enum status (*save)(void *context, const struct results *results, struct error *err);
	void *context;
};

/* Measures the problems of `results` that are not done, then, if all are, the chains that are not; keep, reject and the model's fields are set before, device's are filled in. `complete` says whether
 * all are done. CANCELLED: stopped. DEVICE_FAULT and the like: the device failed; what is in `results` until then is right, and was saved. */
enum status screen_run(struct results *results, const struct screen_options *options, struct error *err) NODISCARD;

/* Takes from `old`, an interrupted run's, what it has done of the problems of `results`. BAD_INPUT: it is of another version, model, device or set of options,
 * or has results that this run (with or without chains) does not ask for and would lose; `old` and `results` are then as they were. */
enum status screen_resume(struct results *results, struct results *old, bool chain, const char *file, struct error *err) NODISCARD;

/* Device and flavour of `results`, as screen_run fills them: opens the device for a moment. */
enum status screen_identify(struct results *results, const struct screen_options *options, struct error *err) NODISCARD;

#endif
