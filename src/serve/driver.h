/* driver.h: the engine thread. It alone calls the engine; others hand it jobs and take events.
 *
 * A job goes in by driver_submit and comes back in exactly one terminal event, whatever happens between: an end, a cancel, a failure of the
 * group, the end of the driver. Until then its memory is the driver's to read; with the terminal event it is the owner's again.
 * Inbox and outbox are separate locks held for a few assignments. The outbox is bounded: if nobody takes events, the engine waits
 * rather than pile them up. What health and metrics need is published after each step and read without waiting for one.
 *
 * A failure of the group ends every job with its error. Then, as the options say, the group is rebuilt on the loaded weights and work
 * goes on, or the driver stops and tells its owner why.
 */
#ifndef TANDEM_SERVE_DRIVER_H
#define TANDEM_SERVE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "tandem.h"

#define DRIVER_MAX_RANKS 64

struct driver;

/* Log-probabilities of a prompt, with `top` alternatives a token; position 0 has none. The arrays are the owner's. */
struct driver_scores {
	int top;
	bool filled;
	float *logprob;                       /* [prompt_count] */
	int *alternatives;                    /* [prompt_count], at most top */
	int32_t *alternative_id;              /* [prompt_count][top] */
	float *alternative_logprob;
};

struct driver_job {
	struct tandem_request request; /* its arrays belong to the owner and stay until the terminal event */
	struct driver_scores *scores;  /* where request.prompt_logprobs; filled before the first event; NULL: not wanted */
	void *owner;                   /* the driver does not look at it */
	struct tandem_error error;     /* filled before a terminal event with finish FAILED */

	/* the driver's */
	uint64_t id;              /* the engine's; 0: not submitted */
	struct driver_job *next;  /* inbox */
	bool cancelled;           /* under the inbox lock */
};

struct driver_event {
	struct driver_job *job;
	struct tandem_event event; /* finish other than RUNNING: the last event of this job */
	uint64_t at_ns;            /* when the step that made it ended */
};

enum driver_state { DRIVER_READY, DRIVER_REBUILDING, DRIVER_STOPPED };

struct driver_status {
	enum driver_state state;
	uint64_t generation;      /* steps done */
	uint64_t step_ns;         /* that they took in all, from plan to tokens */
	uint64_t progress_ns;     /* when the last step ended, or idleness */
	int in_flight;            /* jobs that the engine has */
	uint64_t aborts, rebuilds; /* failures of the group; groups made anew */
	/* Refreshed when idle, and every 100 ms while busy: */
	struct tandem_info info;
	struct tandem_stats stats;
	struct tandem_rank_bytes ranks[DRIVER_MAX_RANKS];
	struct tandem_error failure; /* why the driver stopped; code 0: it was told to */
};

struct driver_options {
	struct tandem *engine; /* borrowed; nobody else may call it while the driver lives */
	int max_events;        /* of one step: max_sequences of the engine */
	int capacity;          /* jobs in flight at once; the owner keeps to it */
	bool rebuild;          /* after a failure; else stop */
	void (*notify)(void *context); /* events wait, or the driver stopped. From the engine thread; must not block */
	void *context;
	struct log log;
};

enum status driver_start(struct driver **out, const struct driver_options *options, struct error *err) NODISCARD;
/* Ends what is in flight as cancelled, then the thread, and waits for it. Events that nobody took are dropped. */
void driver_destroy(struct driver **driver);

/* The jobs at jobs[0..n) in order, all together. Never blocks, never refuses: a driver that has stopped answers by events. */
void driver_submit(struct driver *driver, struct driver_job *const *jobs, int n);
void driver_cancel(struct driver *driver, struct driver_job *job);
/* Takes up to `max` events. */
int driver_take(struct driver *driver, struct driver_event *events, int max);
void driver_get_status(struct driver *driver, struct driver_status *out);

#endif
