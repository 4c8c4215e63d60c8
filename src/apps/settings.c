/* The option table. Order here is order in --help. */
#include "apps/settings.h"

#include <math.h>
#include <string.h>

#include "prescreen/target.h"

#define ARRAY_COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define AT(field) .offset = offsetof(struct settings, field)

/* Commands that open an engine. */
#define ENGINE (COMMAND_RUN | COMMAND_LOGITS | COMMAND_SERVE | COMMAND_VERIFY | COMMAND_BENCH_STEP)
/* Commands that open devices: engines, and benchmarks that use the devices directly. */
#define ALONE (COMMAND_PRESCREEN | COMMAND_BENCH_GEMM | COMMAND_BENCH_PEAK) /* one rank is measured, on one device */
#define DEVICES (ENGINE | COMMAND_PRESCREEN | COMMAND_BENCH_GEMM | COMMAND_BENCH_COLLECTIVE | COMMAND_BENCH_PEAK)
#define TOKENS_MAX 16777216.0
#define COMMA(name) #name ", "
#define EXACT_MAX 9007199254740992.0 /* 2^53: whole numbers up to here survive JSON */

static const struct option rows[] = {
	{.name = "prompt", .letter = 'p', .type = OPTION_TEXT, .argument = "TEXT", .group = "Prompt", AT(prompt), .commands = COMMAND_RUN,
	 .help = "text to continue; - reads it from stdin"},
	{.name = "prompt-file", .type = OPTION_TEXT, .argument = "F", .group = "Prompt", AT(prompt_file), .commands = COMMAND_RUN,
	 .help = "text to continue, from a file"},
	{.name = "chat", .type = OPTION_FLAG, .group = "Prompt", AT(chat), .commands = COMMAND_RUN,
	 .help = "the prompt is a user's message: put it into the model's chat template"},
	{.name = "tokens", .type = OPTION_INTS, .argument = "1,2,3", .group = "Prompt", AT(tokens), .commands = COMMAND_RUN | COMMAND_LOGITS,
	 .help = "token ids to continue, in place of text", .min = 0, .max = 2147483647},
	{.name = "prompts", .type = OPTION_TEXT, .argument = "F", .group = "Prompt", AT(prompts), .commands = COMMAND_VERIFY,
	 .help = "prompts, one a line: text, or token ids as 1,2,3", .absent = "4 made from the vocabulary size"},

	{.name = "max-tokens", .letter = 'n', .type = OPTION_INT, .argument = "N", .group = "Generation", AT(max_tokens), .initial = "128",
	 .unit = "tokens", .commands = COMMAND_RUN, .help = "tokens to generate at most", .min = 1, .max = TOKENS_MAX},
	{.name = "max-tokens", .letter = 'n', .type = OPTION_INT, .argument = "N", .group = "Generation", AT(max_tokens), .initial = "32",
	 .unit = "tokens", .commands = COMMAND_VERIFY, .help = "greedy tokens to compare for each prompt", .min = 1, .max = TOKENS_MAX},
	{.name = "ignore-eos", .type = OPTION_FLAG, .group = "Generation", AT(ignore_eos), .commands = ENGINE & ~COMMAND_SERVE,
	 .help = "go on after an end-of-text token (logits and bench always do)"},
	{.name = "ignore-eos", .type = OPTION_FLAG, .group = "Generation", AT(ignore_eos), .commands = COMMAND_SERVE,
	 .help = "go on after an end-of-text token, unless a request says ignore_eos: false"},
	{.name = "temp", .type = OPTION_REAL, .argument = "T", .group = "Generation", AT(temperature), .absent = "the model's if it says do_sample, else 0",
	 .commands = COMMAND_RUN, .help = "temperature; 0 takes the likeliest token", .min = 0, .max = 100},
	{.name = "top-k", .type = OPTION_INT, .argument = "K", .group = "Generation", AT(top_k), .absent = "the model's, else 0",
	 .commands = COMMAND_RUN, .help = "choose among the K likeliest; 0 is off", .min = 0, .max = 2147483647},
	{.name = "top-p", .type = OPTION_REAL, .argument = "P", .group = "Generation", AT(top_p), .absent = "the model's, else 1",
	 .commands = COMMAND_RUN, .help = "choose among the likeliest that add up to P; 0 leaves the likeliest, 1 is off", .min = 0, .max = 1},
	{.name = "min-p", .type = OPTION_REAL, .argument = "P", .group = "Generation", AT(min_p), .absent = "0", .commands = COMMAND_RUN,
	 .help = "drop tokens below P times the likeliest; 0 is off", .min = 0, .max = 1},
	{.name = "repeat-penalty", .type = OPTION_REAL, .argument = "X", .group = "Generation", AT(repetition_penalty),
	 .absent = "the model's, else 1", .commands = COMMAND_RUN, .help = "divide the logits of tokens seen before; 1 is off", .min = 0.01, .max = 100},
	{.name = "seed", .type = OPTION_U64, .argument = "S", .group = "Generation", AT(seed), .initial = "0", .commands = COMMAND_RUN,
	 .help = "same seed, same tokens", .min = 0, .max = EXACT_MAX},

	{.name = "add-special", .type = OPTION_FLAG, .group = "Tokens", AT(add_special), .commands = COMMAND_TOKENIZE,
	 .help = "add what the model expects around a text (BOS and the like)"},
	{.name = "decode", .type = OPTION_FLAG, .group = "Tokens", AT(decode), .commands = COMMAND_TOKENIZE,
	 .help = "read an array of ids, write the text"},
	{.name = "jsonl", .type = OPTION_FLAG, .group = "Tokens", AT(jsonl), .commands = COMMAND_TOKENIZE,
	 .help = "one JSON object a line: {\"text\"} to {\"tokens\"}, or back with --decode"},

	{.name = "tp", .type = OPTION_INT, .argument = "P", .group = "Ranks and devices", AT(tp), .initial = "1", .unit = "ranks",
	 .commands = ENGINE & ~COMMAND_VERIFY, .help = "tensor-parallel world size", .min = 1, .max = 64},
	{.name = "tp", .type = OPTION_INT, .argument = "P", .group = "Ranks and devices", AT(tp), .initial = "2", .unit = "ranks",
	 .commands = COMMAND_VERIFY | COMMAND_BENCH_COLLECTIVE, .help = "world size to compare with one rank, or to measure", .min = 1, .max = 64},
	{.name = "tp", .type = OPTION_INTS, .argument = "1,2,4,8", .group = "Ranks and devices", AT(degrees), .initial = "1,2,4,8", .unit = "ranks",
	 .commands = COMMAND_PLAN | COMMAND_BENCH_GEMM, .help = "world sizes to plan, or to measure one rank of", .min = 1, .max = 64, .once = true},
	{.name = "tp", .type = OPTION_INTS, .argument = "1,2,4", .group = "Ranks and devices", AT(degrees), .initial = "1,2,4", .unit = "ranks",
	 .commands = COMMAND_PRESCREEN, .help = "world sizes; one rank of each is measured, alone", .min = 1, .max = 64, .once = true},
	{.name = "device", .type = OPTION_TEXT, .argument = "NAME", .group = "Ranks and devices", AT(device), .initial = "cpu",
	 .commands = DEVICES | COMMAND_PLAN, .help = "kind of device"},
	{.name = "devices", .type = OPTION_INTS, .argument = "0,1", .group = "Ranks and devices", AT(devices), .absent = "0,1,... up to P-1",
	 .commands = DEVICES & ~ALONE, .help = "device of each rank, in rank order; ranks may share one, for checks", .min = 0, .max = 1023},
	{.name = "devices", .type = OPTION_INTS, .argument = "0", .group = "Ranks and devices", AT(devices), .absent = "0",
	 .commands = ALONE, .help = "the device to measure", .min = 0, .max = 1023},
	{.name = "device-memory", .type = OPTION_BYTES, .argument = "64GiB", .group = "Ranks and devices", AT(device_memory),
	 .absent = "not known; the KV room is then not given", .commands = COMMAND_PLAN, .help = "memory of one device"},
	{.name = "target", .type = OPTION_TEXT, .argument = "NAME|FILE", .group = "Ranks and devices", AT(target), .absent = "none",
	 .commands = COMMAND_PLAN, .help = "which kernels are legal on " TARGET_LIST(COMMA) "or a device described in a JSON file"},
	{.name = "threads", .type = OPTION_INT, .argument = "N", .group = "Ranks and devices", AT(threads), .absent = "the cores this process may use",
	 .commands = DEVICES & ~COMMAND_PRESCREEN, .help = "CPU threads of all ranks together", .min = 1, .max = 1024},
	{.name = "threads", .type = OPTION_INT, .argument = "N", .group = "Ranks and devices", AT(threads), .absent = "the cores over the largest world size",
	 .commands = COMMAND_PRESCREEN, .help = "CPU threads of the rank that is measured", .min = 1, .max = 1024},
	{.name = "isa", .type = OPTION_CHOICE, .argument = "auto|avx512|avx2|c", .group = "Ranks and devices", AT(isa), .initial = "auto",
	 .commands = DEVICES, .help = "CPU instruction set; the results are the same bits"},

	{.name = "context", .type = OPTION_INT, .argument = "N", .group = "Engine", AT(context), .absent = "the model's, at most 8192 tokens",
	 .commands = ENGINE & ~COMMAND_BENCH_STEP, .help = "longest sequence, prompt and answer", .min = 1, .max = TOKENS_MAX},
	{.name = "prefill-chunk", .type = OPTION_INT, .argument = "N", .group = "Engine", AT(prefill_chunk), .absent = "512 tokens, on a GPU 8192",
	 .commands = ENGINE | COMMAND_PLAN, .help = "prompt tokens in one step at most", .min = 1, .max = 65536},
	{.name = "kv-block", .type = OPTION_INT, .argument = "N", .group = "Engine", AT(kv_block), .absent = "32 tokens, on a GPU 64",
	 .commands = ENGINE, .help = "KV page size, a multiple of 16", .min = 16, .max = 4096},
	{.name = "lm-head", .type = OPTION_CHOICE, .argument = "auto|vocab|rank0", .group = "Engine", AT(lm_head), .initial = "auto", .commands = ENGINE,
	 .help = "logits: by all ranks, rows of the vocabulary each (vocab, and auto), or by rank 0 alone"},
	{.name = "embedding", .type = OPTION_CHOICE, .argument = "auto|replicated|vocab", .group = "Engine", AT(embedding), .initial = "auto",
	 .commands = ENGINE | COMMAND_PLAN,
	 .help = "its table: whole on every rank, or rows of the vocabulary on each, for an all-reduce more (auto: on GPUs, unless the LM head is the same table)"},
	{.name = "no-graphs", .type = OPTION_FLAG, .group = "Engine", AT(no_graphs), .commands = ENGINE,
	 .help = "GPU: launch each kernel of a decode step by itself; the same results, later"},
	{.name = "tp-invariant", .type = OPTION_FLAG, .group = "Engine", AT(tp_invariant), .commands = ENGINE | COMMAND_PLAN,
	 .help = "GPU: bit-identical logits at every world size, slower; a CPU gives them always"},
	{.name = "random-weights", .type = OPTION_U64, .argument = "SEED", .group = "Engine", AT(random_weights), .absent = "off",
	 .commands = ENGINE, .help = "invent the weights; MODEL needs config.json only", .min = 0, .max = EXACT_MAX},
	{.name = "timeout", .type = OPTION_INT, .argument = "MS", .group = "Engine", AT(timeout_ms), .initial = "30000", .unit = "ms",
	 .commands = ENGINE & ~COMMAND_SERVE, .help = "longest wait of one rank for another; four times that to open devices", .min = 1, .max = 86400000},
	{.name = "timeout", .type = OPTION_INT, .argument = "MS", .group = "Engine", AT(timeout_ms), .initial = "30000", .unit = "ms",
	 .commands = COMMAND_BENCH_COLLECTIVE, .help = "longest wait of one rank for another", .min = 1, .max = 86400000},
	{.name = "timeout", .type = OPTION_INT, .argument = "MS", .group = "Engine", AT(timeout_ms), .initial = "30000", .unit = "ms",
	 .commands = COMMAND_PRESCREEN | COMMAND_BENCH_GEMM, .help = "longest wait for the device", .min = 1, .max = 86400000},
	{.name = "timeout", .type = OPTION_INT, .argument = "MS", .group = "Engine", AT(timeout_ms), .initial = "10000", .unit = "ms", .commands = COMMAND_SERVE,
	 .help = "longest wait of one rank for another, four times that to open devices: a rank that stalls has failed", .min = 1, .max = 86400000},
	{.name = "fault", .type = OPTION_TEXT, .argument = "SPEC", .group = "Engine", AT(fault), .commands = ENGINE,
	 .help = "make a rank fail: rank=N,at=POINT,seq=N[,kind=error|oom|stall:MS|exit]"},
	{.name = "whitelist", .type = OPTION_TEXT, .argument = "F", .group = "Engine", AT(whitelist), .commands = ENGINE,
	 .help = "kernels to take, measured by tandem prescreen on this device for this model; refused whole where it was not"},
	{.name = "explain-dispatch", .type = OPTION_FLAG, .group = "Engine", AT(explain_dispatch), .commands = COMMAND_RUN | COMMAND_BENCH_STEP | COMMAND_SERVE,
	 .help = "say which kernel each linear takes and why; serve tries some steps for it before it listens"},

	{.name = "host", .type = OPTION_TEXT, .argument = "ADDRESS", .group = "Server", AT(host), .initial = "127.0.0.1", .commands = COMMAND_SERVE,
	 .help = "address to listen at; 0.0.0.0 is every one of this machine"},
	{.name = "port", .type = OPTION_INT, .argument = "N", .group = "Server", AT(port), .initial = "8000", .commands = COMMAND_SERVE,
	 .help = "TCP port; 0 takes a free one and says which", .min = 0, .max = 65535},
	{.name = "api-key", .type = OPTION_TEXT, .argument = "KEY", .group = "Server", AT(api_key), .commands = COMMAND_SERVE,
	 .help = "ask for Authorization: Bearer KEY, but for /health and the page at /"},
	{.name = "served-model-name", .type = OPTION_TEXT, .argument = "NAMES", .group = "Server", AT(served_names), .absent = "the folder's name",
	 .commands = COMMAND_SERVE, .help = "what requests may call the model, commas between; answers carry the first"},
	{.name = "max-running", .type = OPTION_INT, .argument = "N", .group = "Server", AT(max_running), .initial = "8", .unit = "sequences",
	 .commands = COMMAND_SERVE | COMMAND_PLAN, .help = "sequences that the engine works on at once", .min = 1, .max = 1024},
	{.name = "max-queue", .type = OPTION_INT, .argument = "N", .group = "Server", AT(max_queue), .initial = "256", .unit = "sequences",
	 .commands = COMMAND_SERVE, .help = "sequences that wait beyond those; the next gets 429", .min = 0, .max = 65536},
	{.name = "max-body", .type = OPTION_BYTES, .argument = "BYTES", .group = "Server", AT(max_body), .initial = "4MiB", .commands = COMMAND_SERVE,
	 .help = "largest request body"},
	{.name = "kv-tokens", .type = OPTION_INT, .argument = "N", .group = "Server", AT(kv_tokens), .absent = "up to 4 times the context",
	 .commands = COMMAND_SERVE, .help = "tokens of KV cache, all sequences together", .min = 16, .max = 1073741824},
	{.name = "state-snapshots", .type = OPTION_INT, .argument = "N", .group = "Server", AT(state_snapshots), .absent = "as many as --max-running",
	 .commands = COMMAND_SERVE | COMMAND_PLAN, .help = "room for snapshots of recurrent state, where prefix cache hits end", .min = 1, .max = 65536},
	{.name = "state-every", .type = OPTION_INT, .argument = "N", .group = "Server", AT(state_every), .initial = "4096", .unit = "tokens",
	 .commands = COMMAND_SERVE, .help = "tokens of a long prompt between two snapshots; 0 takes them only where prompts part and end", .min = 0, .max = 1073741824},
	{.name = "drain", .type = OPTION_INT, .argument = "SECONDS", .group = "Server", AT(drain_s), .initial = "30", .unit = "s",
	 .commands = COMMAND_SERVE, .help = "how long requests in flight may take after SIGTERM", .min = 0, .max = 86400},
	{.name = "on-failure", .type = OPTION_CHOICE, .argument = "rebuild|exit", .group = "Server", AT(on_failure), .initial = "rebuild",
	 .commands = COMMAND_SERVE, .help = "after a failure of the ranks: make a new group, or end with code 5"},
	{.name = "defaults", .type = OPTION_CHOICE, .argument = "model|none", .group = "Server", AT(defaults), .initial = "model",
	 .commands = COMMAND_SERVE, .help = "what a request leaves open comes from generation_config.json, or is off"},
	{.name = "sse-comments", .type = OPTION_INT, .argument = "SECONDS", .group = "Server", AT(comment_s), .initial = "0", .unit = "s",
	 .commands = COMMAND_SERVE, .help = "comment line in a stream that is silent for so long; 0 is off", .min = 0, .max = 3600},
	{.name = "cors-origin", .type = OPTION_TEXT, .argument = "ORIGIN", .group = "Server", AT(cors_origin), .commands = COMMAND_SERVE,
	 .help = "let pages of this origin (or *) use the server"},

	{.name = "phase", .type = OPTION_CHOICE, .argument = "both|decode|prefill", .group = "Prescreen", AT(phase), .initial = "both", .commands = COMMAND_PRESCREEN,
	 .help = "few rows (decode: up to 32), many (prefill), or both"},
	{.name = "rows", .type = OPTION_INTS, .argument = "M,...", .group = "Prescreen", AT(classes), .absent = "1,2,4,8,16,512,1024,2048,4096,8192 rows",
	 .commands = COMMAND_PRESCREEN, .help = "token rows of a step to measure", .min = 1, .max = 65536, .once = true},
	{.name = "rows", .type = OPTION_INTS, .argument = "M,...", .group = "Prescreen", AT(classes), .initial = "1", .unit = "rows",
	 .commands = COMMAND_PLAN, .help = "with --target: token rows to judge for", .min = 1, .max = 65536, .once = true},
	{.name = "contexts", .type = OPTION_INTS, .argument = "C,...", .group = "Prescreen", AT(contexts), .absent = "512 tokens, on a GPU 8192",
	 .commands = COMMAND_PRESCREEN, .help = "tokens of each sequence for the attention of decode", .min = 1, .max = 1048576, .once = true},
	{.name = "families", .type = OPTION_TEXT, .argument = "F,...", .group = "Prescreen", AT(families), .absent = "all", .commands = COMMAND_PRESCREEN,
	 .help = "only families whose name has one of these in it, such as mlp,attn o (tandem plan lists them; attention is one)"},
	{.name = "keep", .type = OPTION_REAL, .argument = "X", .group = "Prescreen", AT(keep), .initial = "1.05", .unit = "times as fast",
	 .commands = COMMAND_PRESCREEN, .help = "candidates from here on are kept", .min = 1, .max = 100},
	{.name = "reject", .type = OPTION_REAL, .argument = "X", .group = "Prescreen", AT(reject), .initial = "1.01", .unit = "times as fast",
	 .commands = COMMAND_PRESCREEN, .help = "below they are no faster; boundary lies between", .min = 0.1, .max = 100},
	{.name = "budget", .type = OPTION_REAL, .argument = "SECONDS", .group = "Prescreen", AT(budget), .initial = "0", .unit = "s",
	 .commands = COMMAND_PRESCREEN, .min = 0, .max = 86400,
	 .help = "time for all of it, but for the pair of calls that it ends in; a problem that is cut off or not reached stays open for --resume; 0 is no limit"},
	{.name = "quick", .type = OPTION_FLAG, .group = "Prescreen", AT(quick), .commands = COMMAND_PRESCREEN,
	 .help = "fewer repeats, weights that may stay in the cache: to see it work, not to decide by"},
	{.name = "resume", .type = OPTION_FLAG, .group = "Prescreen", AT(resume), .commands = COMMAND_PRESCREEN,
	 .help = "go on with what prescreen.json in --out has"},
	{.name = "no-chain", .type = OPTION_FLAG, .group = "Prescreen", AT(no_chain), .commands = COMMAND_PRESCREEN,
	 .help = "do not try what is kept in the chain of a layer's ops; the whitelist then marks what is not confirmed"},
	{.name = "any-order", .type = OPTION_FLAG, .group = "Prescreen", AT(any_order), .commands = COMMAND_PRESCREEN | COMMAND_PRESCREEN_REPORT,
	 .help = "CPU: the whitelist may hold kernels that sum in another order, so that logits are no longer the same bits everywhere"},
	{.name = "out", .type = OPTION_TEXT, .argument = "DIR", .group = "Prescreen", AT(out), .initial = "prescreen", .commands = COMMAND_PRESCREEN,
	 .help = "folder for prescreen.json and what is made of it"},

	{.name = "batch", .type = OPTION_INT, .argument = "B", .group = "Measurement", AT(batch), .initial = "1", .unit = "sequences",
	 .commands = COMMAND_BENCH_STEP, .help = "sequences that decode together", .min = 1, .max = 1024},
	{.name = "context", .type = OPTION_INT, .argument = "C", .group = "Measurement", AT(bench_context), .initial = "128", .unit = "tokens",
	 .commands = COMMAND_BENCH_STEP, .help = "tokens of each sequence before the first timed step", .min = 1, .max = TOKENS_MAX},
	{.name = "steps", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(steps), .initial = "16", .unit = "steps",
	 .commands = COMMAND_BENCH_STEP, .help = "decode steps to time", .min = 1, .max = 1000000},
	{.name = "prefill", .type = OPTION_INT, .argument = "T", .group = "Measurement", AT(prefill), .initial = "128", .unit = "tokens",
	 .commands = COMMAND_BENCH_STEP, .help = "prompt length of the timed prefill", .min = 1, .max = TOKENS_MAX},
	{.name = "repeat", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(repeat), .initial = "3", .unit = "runs",
	 .commands = COMMAND_BENCH_STEP, .help = "prefills to time", .min = 1, .max = 1000},

	{.name = "trace", .type = OPTION_TEXT, .argument = "F", .group = "Measurement", AT(trace), .commands = COMMAND_BENCH_STEP,
	 .help = "write where the time of a decode step goes on each rank: a Chrome trace (chrome://tracing)"},
	{.name = "requests", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(requests), .initial = "0", .unit = "requests",
	 .commands = COMMAND_BENCH_STEP, .help = "measure throughput instead: N requests at once through the engine, without a server", .min = 0, .max = 1000000},
	{.name = "input", .type = OPTION_INT, .argument = "L", .group = "Measurement", AT(bench_input), .initial = "512", .unit = "tokens",
	 .commands = COMMAND_BENCH_STEP, .help = "prompt of each of the --requests", .min = 1, .max = TOKENS_MAX},
	{.name = "output", .type = OPTION_INT, .argument = "M", .group = "Measurement", AT(bench_output), .initial = "128", .unit = "tokens",
	 .commands = COMMAND_BENCH_STEP, .help = "answer of each of the --requests", .min = 1, .max = TOKENS_MAX},

	{.name = "rows", .type = OPTION_INTS, .argument = "T,...", .group = "Measurement", AT(rows), .initial = "1,4,16,32,128,512", .unit = "tokens",
	 .commands = COMMAND_BENCH_COLLECTIVE, .help = "token rows of an all-reduce", .min = 1, .max = 65536},
	{.name = "rows", .type = OPTION_INTS, .argument = "T,...", .group = "Measurement", AT(rows), .initial = "1,16,128", .unit = "tokens",
	 .commands = COMMAND_BENCH_GEMM, .help = "token rows of a linear", .min = 1, .max = 65536},
	{.name = "hidden", .type = OPTION_INTS, .argument = "H,...", .group = "Measurement", AT(hidden), .initial = "1024,4096",
	 .unit = "elements", .commands = COMMAND_BENCH_COLLECTIVE, .help = "hidden sizes", .min = 1, .max = 1048576},
	{.name = "dtype", .type = OPTION_CHOICE, .argument = "auto|bf16|f16|f32", .group = "Measurement", AT(dtype), .initial = "auto",
	 .commands = COMMAND_BENCH_COLLECTIVE, .help = "partial sums; auto: f32 on a CPU, bf16 on a GPU"},
	{.name = "transport", .type = OPTION_CHOICE, .argument = "auto|host|p2p|xccl", .group = "Measurement", AT(transport), .initial = "auto",
	 .commands = COMMAND_BENCH_COLLECTIVE, .help = "what carries them; auto: all that can on this device"},
	{.name = "repeat", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(repeat), .initial = "200", .unit = "calls",
	 .commands = COMMAND_BENCH_COLLECTIVE, .help = "calls to time for each shape", .min = 1, .max = 1000000},
	{.name = "repeat", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(repeat), .initial = "5", .unit = "calls",
	 .commands = COMMAND_BENCH_GEMM, .help = "calls to time for each shape", .min = 1, .max = 1000000},

	{.name = "matrix", .type = OPTION_INT, .argument = "N", .group = "Measurement", AT(matrix), .initial = "8192", .unit = "rows",
	 .commands = COMMAND_BENCH_PEAK, .help = "rows and columns of the matrices that a GPU multiplies; it reads 64 N^2 bytes", .min = 128, .max = 16384},

	{.name = "requests", .type = OPTION_INT, .argument = "N", .group = "Load", AT(requests), .initial = "100", .unit = "requests",
	 .commands = COMMAND_BENCH_SERVE, .help = "requests to send; one more goes first to see that it works", .min = 1, .max = 1000000},
	{.name = "rate", .type = OPTION_REAL, .argument = "R", .group = "Load", AT(rate), .initial = "inf", .unit = "requests/s",
	 .commands = COMMAND_BENCH_SERVE, .help = "mean rate of Poisson arrivals; inf sends all at once", .min = 0.001, .max = INFINITY},
	{.name = "concurrency", .type = OPTION_INT, .argument = "C", .group = "Load", AT(concurrency), .absent = "no limit",
	 .commands = COMMAND_BENCH_SERVE, .help = "requests in flight at most; others wait here", .min = 1, .max = 65536},
	{.name = "input-len", .type = OPTION_TEXT, .argument = "N|LO:HI", .group = "Load", AT(input_len), .initial = "128", .unit = "tokens",
	 .commands = COMMAND_BENCH_SERVE, .help = "length of prompts, or the range it is drawn from; words where the endpoint is chat"},
	{.name = "output-len", .type = OPTION_TEXT, .argument = "N|LO:HI", .group = "Load", AT(output_len), .initial = "64", .unit = "tokens",
	 .commands = COMMAND_BENCH_SERVE, .help = "length of answers, or the range it is drawn from"},
	{.name = "lengths", .type = OPTION_TEXT, .argument = "F", .group = "Load", AT(lengths), .commands = COMMAND_BENCH_SERVE,
	 .help = "lengths from a file in place of those: a line has input and output tokens"},
	{.name = "endpoint", .type = OPTION_CHOICE, .argument = "completions|chat", .group = "Load", AT(endpoint), .initial = "completions",
	 .commands = COMMAND_BENCH_SERVE, .help = "prompts of token ids, or conversations of words"},
	{.name = "vocab", .type = OPTION_INT, .argument = "N", .group = "Load", AT(vocab), .initial = "128", .unit = "ids", .commands = COMMAND_BENCH_SERVE,
	 .help = "prompt ids are drawn from 0 to N-1", .min = 1, .max = 16777216},
	{.name = "token-ids", .type = OPTION_FLAG, .group = "Load", AT(token_ids), .commands = COMMAND_BENCH_SERVE,
	 .help = "ask for ids in the stream: for a server that has no tokenizer"},
	{.name = "seed", .type = OPTION_U64, .argument = "S", .group = "Load", AT(seed), .initial = "0", .commands = COMMAND_BENCH_SERVE,
	 .help = "same seed, same load", .min = 0, .max = EXACT_MAX},
	{.name = "goodput", .type = OPTION_TEXT, .argument = "LIMITS", .group = "Load", AT(goodput), .commands = COMMAND_BENCH_SERVE,
	 .help = "count requests that keep ttft:MS,tpot:MS,e2el:MS (one or more of them)"},
	{.name = "timeout", .type = OPTION_INT, .argument = "MS", .group = "Load", AT(timeout_ms), .initial = "120000", .unit = "ms",
	 .commands = COMMAND_BENCH_SERVE, .help = "longest silence of the server in a request", .min = 1, .max = 86400000},
	{.name = "api-key", .type = OPTION_TEXT, .argument = "KEY", .group = "Load", AT(api_key), .commands = COMMAND_BENCH_SERVE,
	 .help = "sent as Authorization: Bearer KEY"},
	{.name = "served-model-name", .type = OPTION_TEXT, .argument = "NAME", .group = "Load", AT(served_names),
	 .absent = "the first of /v1/models", .commands = COMMAND_BENCH_SERVE, .help = "model to ask for"},
	{.name = "server", .type = OPTION_TEXT, .argument = "OPTIONS", .group = "Load", AT(server), .commands = COMMAND_BENCH_SERVE,
	 .help = "options of the server that is started for MODEL, such as '--tp 2 --max-running 16'"},

	{.name = "json", .type = OPTION_FLAG, .group = "Output", AT(json),
	 .commands = COMMAND_RUN | COMMAND_PLAN | COMMAND_PRESCREEN | COMMAND_VERIFY | COMMAND_BENCH_STEP | COMMAND_BENCH_GEMM | COMMAND_BENCH_COLLECTIVE | COMMAND_BENCH_PEAK |
	             COMMAND_BENCH_SERVE | COMMAND_PRESCREEN_DIFF | COMMAND_PRESCREEN_REPORT,
	 .help = "one JSON object on stdout"},
	{.name = "out", .type = OPTION_TEXT, .argument = "F", .group = "Output", AT(out), .commands = COMMAND_LOGITS,
	 .help = "also write the logits: f32, little endian, [tokens, vocabulary]"},
	{.name = "out", .type = OPTION_TEXT, .argument = "DIR", .group = "Output", AT(out), .absent = "the folder of RESULTS.json",
	 .commands = COMMAND_PRESCREEN_REPORT, .help = "folder for whitelist.json, report.md and report.html"},
	{.name = "verbose", .letter = 'v', .type = OPTION_FLAG, .group = "Output", AT(verbose), .commands = COMMAND_ALL,
	 .help = "tell on stderr what the engine does"},
	{.name = "help", .letter = 'h', .type = OPTION_FLAG, .group = "Output", AT(help), .commands = COMMAND_ALL, .help = "this text"},
	{.name = "version", .type = OPTION_FLAG, .group = "Output", AT(version), .commands = COMMAND_ALL, .help = "the version"},
};

const struct option_table settings_table = {rows, ARRAY_COUNT(rows)};

const struct command command_table[COMMAND_COUNT] = {
#define X(code, function, name, operand, summary) {name, operand, summary, COMMAND_##code, function},
	COMMAND_LIST(X)
#undef X
};

bool settings_is_command(const char *name, size_t n)
{
	for (int i = 0; i < COMMAND_COUNT; i++)
		if (strlen(command_table[i].name) == n && !strncmp(command_table[i].name, name, n)) return true;
	return false;
}

void settings_init(struct settings *settings, unsigned command)
{
	*settings = (struct settings){.device = "cpu", .temperature = NAN, .top_p = NAN, .min_p = NAN, .repetition_penalty = NAN, .top_k = -1};
	options_init(&settings_table, command, settings);
}

void settings_fini(struct settings *settings)
{
	options_fini(&settings_table, settings);
}
