/* engine.h: what stands behind the public handle: struct tandem, for tandem.c (life, reports) and requests.c (requests, steps). Owner: the
 * engine thread; `interrupted` may be set by any. */
#ifndef TANDEM_ENGINE_ENGINE_H
#define TANDEM_ENGINE_ENGINE_H

#include <sys/types.h>

#include "tandem.h"

#include "engine/coordinator.h"
#include "engine/device_sampler.h"
#include "engine/scheduler.h"
#include "engine/whitelist.h"

struct tandem {
	struct model model;
	struct generation_defaults defaults;
	const struct device_ops *ops;
	struct coordinator *coordinator;
	struct scheduler *scheduler;
	struct step_plan plan;
	struct sampler *sampler;
	struct device_sampler *device_sampler; /* NULL: the devices do not sample */
	int sample_rows;                       /* that it has room for */
	struct fault_plan fault;
	struct log log;
	_Atomic int interrupted;
	pid_t process;              /* that opened it: a fork has the memory and none of the threads */
	bool busy;                  /* inside a call that runs the ranks: what calls in now is a callback of it */
	_Atomic bool left;          /* closed, but for a rank that does not come back from its device: the caller is told nothing more */
	int world_size, context, max_sequences, kv_blocks, windows, states, state_every, block_tokens, max_rows;
	uint64_t timeout_ms;
	uint64_t next_id;
	uint64_t cache_salt;        /* of this process */
	bool prefix_cache;
	bool head_on_rank0, embedding_split;
	bool graphs, invariant;
	struct whitelist whitelist; /* no shapes: none was given */
	bool explain;               /* dispatch is noted for tandem_explain_dispatch */
	int max_queue;
	struct sequence *kept;      /* ended in the last step and scored: their prompt's log-probabilities can still be asked for */
	uint64_t finished, generated_tokens, aborted_groups, rebuilds;
	uint64_t generation; /* of the last plan */
	int collectives_per_step;
	struct step_clock clock; /* PLAN, APPLY */
	double load_ms;
	void (*user_log)(void *, int, const char *);
	void (*user_progress)(void *, const char *, uint64_t, uint64_t);
	void *user_context;
	uint64_t progress_total;
};

/* Around each call that runs the ranks. BAD_INPUT, and nothing is to be left: in a callback of such a call, and in a fork of the process that opened the engine. */
enum status engine_enter(struct tandem *engine, struct error *err) NODISCARD;
void engine_leave(struct tandem *engine);
/* Copies `err` to the caller's; returns `code`. */
int engine_error(struct tandem_error *out, enum status code, const struct error *err);
/* Frees what the last step kept for tandem_prompt_logprob. */
void requests_forget_kept(struct tandem *engine);
/* Something failed with `st`. If the group, which lived until then, has ended by it, then so has all that ran; after an interrupt there is a new one. */
void requests_after_failure(struct tandem *engine, enum status st);

#endif
