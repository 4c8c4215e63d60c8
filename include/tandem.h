/* tandem.h: one large language model on several devices of this machine by tensor parallelism. The public boundary.
 *
 * It speaks token ids; text, JSON and sockets are the caller's. One `struct tandem` is one model on one group of ranks.
 *
 * Threads. All calls on an engine are made by one thread at a time ("the engine thread"), with these exceptions while it is open:
 * tandem_cancel and tandem_get_health may be called by any thread at any time, also during a step; tandem_interrupt by any thread and
 * by a signal handler. A callback may call these, tandem_submit, and what reports; tandem_step, tandem_logits, tandem_rebuild and measurements are
 * BAD_INPUT there, and tandem_close does nothing. A server has one engine thread, which takes requests from a queue of its own between steps.
 * The engine's own threads take no signal that is sent to the process: the program's may block them, wait for them, or handle them.
 * Rounding and subnormals are the engine's own (docs/NUMERICS.md), whatever the caller's floating-point mode, which stays as it is.
 *
 * Processes. An engine belongs to the process that opened it. A fork of that may only close it, which leaves its memory as it is there;
 * what needs the ranks is BAD_INPUT.
 *
 * Functions return 0 or a status code (tandem_status_name, tandem_exit_code) and then have filled `err`. There is no global state.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TANDEM_VERSION "0.1.0"
#if defined(__GNUC__)
#define TANDEM_API __attribute__((visibility("default")))
#else
#define TANDEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct tandem;

struct tandem_error {
	int code;       /* 0: none */
	char text[512]; /* "<what>: <why>; <what to do>" */
};
TANDEM_API const char *tandem_status_name(int code);
/* 0 ok, 2 usage, 3 bad input, 4 no room, 5 group aborted, 6 device fault */
TANDEM_API int tandem_exit_code(int code);
/* True for what a group does not survive: only tandem_rebuild or tandem_close may follow. A step may end it with another status too, as when a rank has no memory:
 * `usable` of tandem_get_health says. */
TANDEM_API bool tandem_is_fatal(int code);

/* Zero means "default" in every field. Strings are borrowed during tandem_open only. */
struct tandem_options {
	const char *model;     /* folder or one GGUF file; config.json with random_weights */
	int world_size;        /* ranks; 1 */
	const char *device;    /* "cpu"; "cuda" or "hip" in a build that has it */
	const int *devices;    /* world_size ordinals (rank -> device), or NULL: 0, 1, … */
	int threads;           /* CPU threads of all ranks together; the cores this process may use */
	const char *isa;       /* CPU: "auto" */
	int context;           /* tokens per sequence; min(the model's, 8192) */
	int prefill_chunk;     /* most rows of one step; 512, on a GPU 8192; at least 5/4 of max_sequences */
	int max_sequences;     /* running at once; 8 */
	int64_t kv_tokens;     /* tokens of KV for all sequences together; one full context */
	int kv_block_tokens;   /* 32, on a GPU 64; a multiple of 16 */
	bool no_prefix_cache;  /* compute every prompt whole; answers are the same, later */
	int state_snapshots;   /* models with recurrent state: room for snapshots of it, where hits in the prefix cache end; as many as max_sequences; -1: none */
	int state_every;       /* tokens of a long prompt between two of them that are kept for their own sake; 4096; -1: none */
	int max_queue;         /* requests that may wait beyond max_sequences; 0: no limit */
	uint64_t kv_shuffle;   /* tests: non-zero permutes each rank's physical blocks differently */
	bool no_graphs;        /* GPU: launch every kernel of a decode step by itself; the same bits, later */
	const char *lm_head;   /* "vocab": its rows are split over the ranks; "rank0": rank 0 computes all logits; "auto": vocab */
	const char *embedding; /* "replicated": its table is whole on every rank; "vocab": rows of the vocabulary on each, for an all-reduce more; "auto": vocab
	                        * on GPUs, unless the LM head is the same table. The same bits */
	bool tp_invariant;     /* GPU: the same bits at every world size, slower; a CPU gives them always */
	bool random_weights;   /* ignore weight files */
	uint64_t random_seed;
	uint32_t timeout_ms;   /* longest wait of one rank for another; 30000. To open devices: four times that */
	const char *fault;     /* --fault text; NULL */
	const char *whitelist; /* file of kernels to take, from `tandem prescreen`; NULL: each device's own choice. Refused whole if it was made for another
	                        * device, library, program version or model */
	bool explain_dispatch; /* keep notes for tandem_explain_dispatch */
	void (*log)(void *context, int level, const char *line); /* level 0 debug, 1 info, 2 warning; any thread */
	void (*progress)(void *context, const char *what, uint64_t done, uint64_t total); /* while loading; any one thread */
	void *context_pointer; /* for log and progress */
};

/* Opens model, devices, group, weights, KV; returns when every rank is ready. On failure *out is NULL and nothing is left, but
 * for what tandem_close says. A weight file that is shortened meanwhile is BAD_INPUT, a disk that fails IO. */
TANDEM_API int tandem_open(struct tandem **out, const struct tandem_options *options, struct tandem_error *err);
/* Ends requests, ranks and memory; bounded in time also while a step is in flight or a rank has failed: what a rank may use that did not come back from its device by
 * then is left as it is. NULL is fine. */
TANDEM_API void tandem_close(struct tandem **engine);
/* After a fatal error that left the devices healthy: a new group on the loaded weights. Requests in flight are gone. */
TANDEM_API int tandem_rebuild(struct tandem *engine, struct tandem_error *err);

struct tandem_rank_bytes {
	uint64_t sharded, replicated, kv, state, scratch, workspace, runtime, peak; /* state: recurrent, of sequences; runtime: a GPU's context and the like; peak: of all together */
};
struct tandem_info {
	const char *device, *isa, *lm_head, *embedding; /* e.g. "cpu", "avx512", "rank0", "replicated" */
	int world_size, threads, vocab_size, layers, context, max_sequences;
	int eos[16], eos_count, bos; /* bos -1: none */
	int collectives_per_step;    /* all-reduces in the last step: two a layer, and one of a split embedding; 0 before the first, and on one GPU, which has nothing to reduce */
	uint64_t steps;              /* generation of the last step */
	uint64_t weight_bytes;       /* all ranks together, as stored */
	uint64_t checkpoint_bytes_read;
	int64_t kv_tokens, kv_free_tokens; /* free: empty, or cached and used by nobody */
	int state_slots;             /* of each rank, two a sequence and the snapshots; 0: the model has no recurrent state */
	double load_ms;
	double default_temperature, default_top_p, default_repetition_penalty; /* generation_config.json; NaN: absent */
	int64_t default_top_k;                                                 /* -1: absent */
	bool default_sample;
};
TANDEM_API void tandem_get_info(const struct tandem *engine, struct tandem_info *out);
TANDEM_API void tandem_get_rank_bytes(const struct tandem *engine, int rank, struct tandem_rank_bytes *out);

/* Engine thread. Counters rise for the life of the engine. */
struct tandem_stats {
	int running, waiting;                   /* requests now */
	uint64_t submitted, finished;           /* requests; finished in any way */
	uint64_t prompt_tokens, cached_tokens;  /* of requests that started; of these, found in the prefix cache */
	uint64_t generated_tokens;
	uint64_t computed_tokens;               /* rows of all steps, what a preempted request computes again included */
	uint64_t preemptions, evictions;        /* evictions: of cached blocks */
	uint64_t steps, aborted_groups, rebuilds;
	int kv_block_tokens, kv_blocks, kv_free_blocks, kv_cached_blocks; /* cached: part of the free ones, could be a hit */
	int state_snapshots, state_free_slots;  /* snapshots now; free: empty, or snapshots that no request uses */
	uint64_t state_hits, state_evictions;   /* snapshots that requests went on from; that were given up for room */
};
TANDEM_API void tandem_get_stats(const struct tandem *engine, struct tandem_stats *out);

struct tandem_health {
	bool usable;        /* false: the group is dead until tandem_rebuild */
	uint64_t commands;  /* that the rank has finished: all ranks show the same between steps */
	uint64_t moves;     /* rises with every op */
	uint64_t silent_ms; /* in a step: since the rank was last seen to move, to about 20 ms; else 0. Past timeout_ms it is given up */
};
/* Any thread. */
TANDEM_API void tandem_get_health(const struct tandem *engine, int rank, struct tandem_health *out);

/* How to pick a token. Zeroed: greedy. */
struct tandem_sampling {
	double temperature;        /* 0: greedy */
	int top_k;                 /* 0: off */
	double top_p, min_p;       /* 0: off */
	double repetition_penalty; /* 0 or 1: off; else 1e-6 to 1e6 */
	double presence_penalty, frequency_penalty;
	uint64_t seed;
	const int32_t *bias_ids; /* logit bias */
	const float *bias_values; /* -1e30 to 1e30, and a logit with all of its own too */
	int bias_count;
	bool logprob; /* report the log-probability of the token; implied by logprobs */
	int logprobs; /* how many alternatives to report, 0..TANDEM_MAX_LOGPROBS */
};
#define TANDEM_MAX_LOGPROBS 20
/* A temperature below this is as 0, greedy: so near 0 that only the likeliest token could come. */
#define TANDEM_GREEDY_BELOW 1e-5
/* For a user whose top_p of 0 means "the likeliest token alone", since 0 is "off" above: the least top_p that is not off. */
#define TANDEM_TOP_P_LEAST 1e-300

struct tandem_request {
	const int32_t *prompt; /* copied */
	int prompt_count;      /* >= 1 */
	int max_tokens;        /* >= 1; 0 with prompt_logprobs: score the prompt, generate nothing */
	int min_tokens;
	bool ignore_eos;
	const int32_t *stop_ids; /* besides the model's eos; copied */
	int stop_count;
	struct tandem_sampling sampling;
	bool prompt_logprobs;  /* keep the prompt's for tandem_prompt_logprob, with sampling.logprobs alternatives; it is computed whole */
	uint32_t deadline_ms;  /* from submit to the last token, 0: none; past it the request ends between two steps with TIMEOUT */
	uint64_t cache_salt;   /* prefixes are shared only among requests with the same salt */
};

/* Queues a request; the same request gives the same tokens whatever runs beside it. BAD_INPUT: empty prompt, id out of range, prompt
 * longer than the context, parameter out of range. NO_ROOM: it could never fit into the KV cache. BUSY: the queue is full. */
TANDEM_API int tandem_submit(struct tandem *engine, const struct tandem_request *request, uint64_t *id, struct tandem_error *err);
/* Any thread. Queued, running or in a step: the request ends with CANCELLED at the next tandem_step and gives no token more, unless the
 * step in flight was just ending it otherwise. Non-zero: it is over or never was. */
TANDEM_API int tandem_cancel(struct tandem *engine, uint64_t id);

enum tandem_finish { TANDEM_RUNNING, TANDEM_STOP, TANDEM_LENGTH, TANDEM_CANCELLED, TANDEM_FAILED, TANDEM_TIMEOUT };

struct tandem_event {
	uint64_t id;
	int32_t token; /* -1: none (finish without a token) */
	enum tandem_finish finish;
	int cached_tokens; /* of the prompt, found in the prefix cache so far */
	float queue_ms;    /* from submit to the start; if it never started, to its end */
	float logprob; /* of token, natural log, of the distribution before temperature; only if asked for */
	int alternatives;
	int32_t alternative_id[TANDEM_MAX_LOGPROBS];
	float alternative_logprob[TANDEM_MAX_LOGPROBS];
};

/* Runs one step of all running requests (one prefill chunk and/or one token each) and writes at most `max` events; max must be at
 * least max_sequences. *count = 0 with status 0 and *idle true: nothing to do. Every request gets exactly one event whose finish is not
 * RUNNING, unless a step that fails ends all requests without events; it does so with any status but BAD_INPUT for its own arguments (room for too few events). */
TANDEM_API int tandem_step(struct tandem *engine, struct tandem_event *events, int max, int *count, bool *idle, struct tandem_error *err);

/* A request with prompt_logprobs, from the event of its first token (with max_tokens 0: of its end) to the tandem_step after the one
 * that ended it: token, logprob and alternatives of prompt position `position`, 1..prompt_count-1 (the first token has none). */
TANDEM_API int tandem_prompt_logprob(const struct tandem *engine, uint64_t id, int position, struct tandem_event *out,
                                     struct tandem_error *err);

/* The f32 logits of every position of `tokens`: `row` is called in order, logits valid during the call; non-zero from it stops. */
TANDEM_API int tandem_logits(struct tandem *engine, const int32_t *tokens, int count,
                             int (*row)(void *context, int position, const float *logits, int vocab_size), void *context,
                             struct tandem_error *err);

/* Measurements. They run the step that tandem_step has just run once more, on the devices alone, which changes nothing: right after a
 * tandem_step that was not idle, before requests are submitted or cancelled.
 * trace: eagerly, with a mark behind every op; `span` is called for each op of each rank, in order: section "layers" or "head", op as in
 * device/ops.h, "all_reduce" or "fence", begin and length. A span includes the wait for the host, where that is slower than the device.
 * time: a recorded decode step `repeats` times without the host between; *ms is one of them on the slowest rank. UNSUPPORTED: not recorded. */
TANDEM_API int tandem_trace_step(struct tandem *engine, void (*span)(void *context, int rank, const char *section, const char *op, double begin_us, double us),
                                 void *context, struct tandem_error *err);
TANDEM_API int tandem_time_step(struct tandem *engine, int repeats, double *ms, struct tandem_error *err);
/* Where the time of a step goes, in order. X(enumerator, name, what) */
#define TANDEM_PHASE_LIST(X)                                                                           \
	X(PLAN, "plan", "engine thread: who runs, with how many rows")                                     \
	X(WAKE, "wake", "until the rank's thread has the plan")                                            \
	X(PREPARE, "prepare", "rank: KV blocks, metadata of the rows, its copy put on the stream")         \
	X(MEET, "meet", "rank: until all have come so far")                                                \
	X(LAUNCH, "launch", "rank: a graph, or every op; the device has begun")                            \
	X(WAIT, "wait", "rank: until the device is done")                                                  \
	X(REPORT, "report", "until the engine thread knows that all ranks are done")                       \
	X(COMMIT, "commit", "engine thread: KV of all ranks")                                              \
	X(APPLY, "apply", "engine thread: tokens to sequences, their ends, the caller's events")
#define TANDEM_PHASE_ENUM(code, name, what) TANDEM_##code,
enum tandem_phase {
	TANDEM_PHASE_LIST(TANDEM_PHASE_ENUM)
	TANDEM_PHASES
};
#undef TANDEM_PHASE_ENUM
/* Nanoseconds of all steps so far, as `rank` saw them. */
TANDEM_API void tandem_get_phases(const struct tandem *engine, int rank, uint64_t ns[TANDEM_PHASES]);

/* What rank 0 took for the linears of the steps so far, in order of their first appearance; recorded decode steps are noted at the opening, with calls 0
 * until they run. With explain_dispatch only; between steps. Texts are borrowed during the call. */
struct tandem_dispatch {
	const char *families; /* "attn o, mlp down": what in the model has this shape */
	const char *use;      /* "linear", "linear +=", "linear partial", "attention_in", "mlp_in" */
	const char *dtype;
	int m, n, k;          /* rows; outputs and inputs of this rank */
	const char *kernel, *mode;
	double ratio;         /* as the whitelist has it; 0: not by the whitelist */
	const char *why;      /* "whitelist, 1.21x", "default: ..." */
	uint64_t calls;
};
TANDEM_API int tandem_explain_dispatch(const struct tandem *engine, void (*each)(void *context, const struct tandem_dispatch *item), void *context,
                                       struct tandem_error *err);

/* Async-signal-safe: the current and later steps end soon with CANCELLED until cleared (tandem_interrupt(engine, false)). */
TANDEM_API void tandem_interrupt(struct tandem *engine, bool on);

#ifdef __cplusplus
}
#endif

#endif
