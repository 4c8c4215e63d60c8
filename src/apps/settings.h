/* settings.h: what the command line says, the commands that exist, and the one table that connects them.
 *
 * To add a command: a line in COMMAND_LIST, a file cmd_NAME.c with its function, its bit in the table rows (settings.c) that it
 * takes. Its help follows from these. A command returns a status and fills `err`; main prints it and chooses the exit code.
 */
#ifndef TANDEM_APPS_SETTINGS_H
#define TANDEM_APPS_SETTINGS_H

#include "apps/options.h"

struct settings {
	const char *model; /* the operand MODEL; NULL where the command has none */
	const char *second; /* the second operand, where one may be given */
	bool help, version, verbose, json;

	/* prompt */
	const char *prompt, *prompt_file; /* prompt "-": stdin */
	bool chat;
	struct int_list tokens;
	const char *prompts; /* verify: a file, one prompt a line */

	/* generation; NaN and top_k -1: not given, the model's generation_config.json decides */
	int max_tokens;
	bool ignore_eos;
	double temperature, top_p, min_p, repetition_penalty;
	int top_k;
	struct optional_u64 seed;

	/* ranks and devices */
	int tp;
	struct int_list degrees; /* plan */
	const char *device;
	struct int_list devices;
	int threads; /* 0: all */
	const char *isa;
	const char *lm_head, *embedding;

	/* engine; 0 or NULL: its default */
	int context, prefill_chunk, kv_block, timeout_ms;
	bool no_graphs, tp_invariant;
	struct optional_u64 random_weights;
	const char *fault, *whitelist;
	bool explain_dispatch;

	const char *out;
	uint64_t device_memory; /* plan */
	const char *target;     /* plan: judge kernels for this device; NULL: none */

	/* tokenize */
	bool add_special, decode, jsonl;

	/* serve */
	const char *host, *api_key, *served_names, *on_failure, *defaults, *cors_origin;
	int port, max_running, max_queue, kv_tokens, state_snapshots, state_every, drain_s, comment_s;
	uint64_t max_body;

	/* bench */
	int batch, bench_context, steps, prefill, repeat, bench_input, bench_output;
	const char *trace;
	struct int_list rows, hidden;
	const char *dtype, *transport; /* bench collective */
	int matrix; /* bench peak */

	/* prescreen */
	struct int_list classes, contexts; /* --rows, --contexts */
	const char *phase, *families;
	double budget, keep, reject; /* budget s, 0: none */
	bool resume, quick, any_order, no_chain;

	/* bench serve */
	int requests, concurrency, vocab;
	double rate; /* INFINITY: all at once */
	const char *input_len, *output_len, *lengths, *endpoint, *goodput, *server;
	bool token_ids;
};

/* X(enumerator, function and file, name, operand or NULL, one line for help) */
#define COMMAND_LIST(X)                                                                                   \
	X(RUN, cmd_run, "run", "MODEL", "generate text from a prompt")                                        \
	X(LOGITS, cmd_logits, "logits", "MODEL", "all logits of a prompt, and their SHA-256")                 \
	X(TOKENIZE, cmd_tokenize, "tokenize", "MODEL|DIR", "text to token ids and back")                      \
	X(PLAN, cmd_plan, "plan", "MODEL", "what each rank holds at each world size; reads no weights")       \
	X(SERVE, cmd_serve, "serve", "MODEL", "answer requests over HTTP: an OpenAI-compatible server")         \
	X(PRESCREEN, cmd_prescreen, "prescreen", "MODEL", "measure which kernels suit the shapes of a rank")  \
	X(PRESCREEN_DIFF, cmd_prescreen_diff, "prescreen diff", "A.json [B.json]", "what flips between TP degrees, or between two runs") \
	X(PRESCREEN_REPORT, cmd_prescreen_report, "prescreen report", "RESULTS.json", "whitelist and reports anew from saved results") \
	X(VERIFY, cmd_verify, "verify", "MODEL", "compare a world size with one rank on the same prompts")    \
	X(BENCH_STEP, cmd_bench_step, "bench step", "MODEL", "time of one decode step and of a prefill")      \
	X(BENCH_SERVE, cmd_bench_serve, "bench serve", "URL|MODEL", "latency and throughput of a server under load") \
	X(BENCH_GEMM, cmd_bench_gemm, "bench gemm", "MODEL", "a model's linears: whole, and one rank's part")   \
	X(BENCH_COLLECTIVE, cmd_bench_collective, "bench collective", NULL, "all-reduce over the ranks of this machine") \
	X(BENCH_PEAK, cmd_bench_peak, "bench peak", NULL, "what this machine can do: bandwidth, arithmetic")

enum command_index {
#define X(code, function, name, operand, summary) COMMAND_INDEX_##code,
	COMMAND_LIST(X)
#undef X
		COMMAND_COUNT
};

enum command_bit {
#define X(code, function, name, operand, summary) COMMAND_##code = 1 << COMMAND_INDEX_##code,
	COMMAND_LIST(X)
#undef X
		COMMAND_ALL = (1 << COMMAND_COUNT) - 1
};

struct command {
	const char *name, *operand, *summary;
	unsigned bit;
	enum status (*run)(const struct settings *settings, struct error *err);
};

#define X(code, function, name, operand, summary) enum status function(const struct settings *settings, struct error *err);
COMMAND_LIST(X)
#undef X

extern const struct option_table settings_table;
extern const struct command command_table[COMMAND_COUNT];
/* Whether the n bytes at `name` are one's whole name. */
bool settings_is_command(const char *name, size_t n);

/* The defaults of one command. */
void settings_init(struct settings *settings, unsigned command);
void settings_fini(struct settings *settings);

#endif
