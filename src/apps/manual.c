/* Man pages in roff. Text from the tables passes `put`, which alone knows what roff would take as its own: a backslash, a minus that
 * must stay one, a quote or a full stop at the start of a line. */
#include "apps/manual.h"

#include <stdio.h>
#include <string.h>

#include "tandem.h"

/* What a command's page says beyond its line in --help. A command that has no entry fails tests/e2e/install.sh. */
static const struct detail {
	unsigned command;
	const char *text;     /* paragraphs, an empty line between two */
	const char *examples; /* command lines */
} details[] = {
	{COMMAND_RUN, "Continues a prompt and writes the continuation to standard output as it comes; a summary of time and memory goes to standard "
	              "error. What an option leaves open the model's generation_config.json decides; without one the likeliest token is taken.",
	 "tandem run models/demo -p \"Once upon a time\" --tp 2\ntandem run MODEL --tokens 1,2,3 --json"},
	{COMMAND_LOGITS, "Runs a prompt through the model and prints the SHA-256 of its logits, which are the same bits for every world size, thread "
	                 "count, prefill chunk and instruction set.",
	 "tandem logits MODEL --tokens 1,2,3 --tp 4\ntandem logits MODEL --tokens 1,2,3 --out logits.f32"},
	{COMMAND_TOKENIZE, "Reads text on standard input and writes its token ids, or the reverse with --decode.",
	 "echo hello | tandem tokenize MODEL\necho '[1,2,3]' | tandem tokenize MODEL --decode"},
	{COMMAND_PLAN, "Says what each rank would hold at each world size, and why a world size is not possible. It reads the config and the headers "
	               "of the weight files only, so that it can be asked before anything large is downloaded. With --target it also says which kernels would be "
	               "legal there for each rank's shapes; the device need not be present.",
	 "tandem plan MODEL --tp 1,2,4,8 --device-memory 24GiB\ntandem plan MODEL --tp 2,4 --target gfx936"},
	{COMMAND_PRESCREEN, "Takes the shapes that one rank has at each world size, runs every kernel that the device offers for each of them, and says which are right and "
	                    "faster than what the dispatch takes by itself. A candidate must be legal, be what was asked for and something else than the baseline, write all of its "
	                    "output and nothing else, give the same bits each time, and be as close to a double-precision reference as its type allows; only then is it timed, in "
	                    "pairs with the baseline. Weights are invented: MODEL needs config.json only.\n\n"
	                    "Then what is kept for decode is tried in the chain of a layer's ops, where launches overlap: only what makes that faster enters the whitelist.\n\n"
	                    "An interrupt, or the end of --budget, leaves a file that --resume goes on with. Nothing else should run on the machine.",
	 "tandem prescreen MODEL --tp 1,2,4 --device cuda --out MODEL.h200\ntandem prescreen MODEL --phase decode --families mlp --quick"},
	{COMMAND_VERIFY, "Runs the same prompts on one rank and on several, and compares logits and greedy tokens. On CPU they must be the same bits.",
	 "tandem verify MODEL --tp 4"},
	{COMMAND_PRESCREEN_DIFF, "Reads the results of a prescreen and lists the candidates whose verdict is not the same at every world size: what must not be carried over from "
	                         "one to another. With two files it compares two runs: which verdicts changed, and what part of them did not.",
	 "tandem prescreen diff prescreen.json\ntandem prescreen diff monday/prescreen.json tuesday/prescreen.json --json"},
	{COMMAND_PRESCREEN_REPORT, "Writes whitelist.json, report.md and report.html anew from the results of a prescreen, which may have been run on another machine. Nothing is "
	                           "measured.",
	 "tandem prescreen report out/prescreen.json\ntandem prescreen report prescreen.json --out reports --any-order"},
	{COMMAND_BENCH_STEP, "Times decode steps and prefills against the bytes and the arithmetic that they cannot avoid. Nothing else should run on "
	                     "the machine.",
	 "tandem bench step MODEL --random-weights 1 --tp 2 --batch 4"},
	{COMMAND_SERVE, "Serves the model over HTTP: /v1/completions, /v1/chat/completions (with a chat template), /v1/models, /tokenize, /detokenize, "
	                "/health, /metrics, and a page to chat with at /. Requests are batched as they come.\n\n"
	                "The first SIGTERM or SIGINT lets requests in flight end, the second ends at once. A failure of a rank ends the requests in "
	                "flight with an error; then the ranks are joined anew on the weights already loaded, unless --on-failure says exit.",
	 "tandem serve models/demo --tp 2 --port 8000\ncurl http://127.0.0.1:8000/v1/completions -d '{\"prompt\":\"Once\",\"max_tokens\":16}'"},
	{COMMAND_BENCH_SERVE, "Sends a load of streamed requests to an OpenAI-compatible server at URL, or to a server of its own for MODEL, and reports time to "
	                      "the first token (TTFT), time per output token (TPOT), time between tokens (ITL), time to the end (E2EL), throughput, goodput, "
	                      "and what failed and why. Prompts are random, and a function of the seed.",
	 "tandem bench serve http://127.0.0.1:8000 --rate 4 --requests 200 --goodput ttft:500,tpot:60\n"
	 "tandem bench serve models/demo --server '--tp 2' --input-len 16:256 --output-len 32 --concurrency 8"},
	{COMMAND_BENCH_GEMM, "Times the linears of a model whole and as one rank would hold them.", "tandem bench gemm MODEL --tp 1,2,4"},
	{COMMAND_BENCH_COLLECTIVE, "Times the all-reduce over the ranks of this machine.", "tandem bench collective --tp 2"},
	{COMMAND_BENCH_PEAK, "Measures memory bandwidth and arithmetic, the bounds that the other benchmarks are read against.", "tandem bench peak"},
};

/* One run of text inside a line. `start`: it begins an input line. */
static enum status put(struct buf *out, const char *text, size_t n, bool start, struct error *err)
{
	for (size_t i = 0; i < n; i++) {
		char c = text[i];
		if (c == '\\') TRY(buf_puts(out, "\\e", err));
		else if (c == '-') TRY(buf_puts(out, "\\-", err));
		else if (c == '"') TRY(buf_puts(out, "\\(dq", err));
		else if (c == '^') TRY(buf_puts(out, "\\(ha", err));
		else if (c == '~') TRY(buf_puts(out, "\\(ti", err));
		else if (c == '`') TRY(buf_puts(out, "\\(ga", err));
		else if (c == '\'') TRY(buf_puts(out, "\\(aq", err));
		else if (c == '.' && start && i == 0) TRY(buf_puts(out, "\\&.", err));
		else TRY(buf_append(out, &c, 1, err));
	}
	return STATUS_OK;
}

static enum status put_text(struct buf *out, const char *text, struct error *err)
{
	return put(out, text, strlen(text), false, err);
}

/* `text` in a font: 'B' or 'I'. */
static enum status put_font(struct buf *out, char font, const char *text, struct error *err)
{
	TRY(buf_printf(out, err, "\\f%c", font));
	TRY(put_text(out, text, err));
	return buf_puts(out, "\\fR", err);
}

/* Lines become paragraphs (`filled`) or stay lines. */
static enum status put_lines(struct buf *out, const char *text, bool filled, struct error *err)
{
	for (const char *at = text; *at;) {
		size_t n = strcspn(at, "\n");
		if (n) {
			TRY(put(out, at, n, true, err));
			TRY(buf_puts(out, "\n", err));
		} else if (filled) {
			TRY(buf_puts(out, ".PP\n", err));
		}
		at += n + (at[n] == '\n');
	}
	return STATUS_OK;
}

/* "bench step" as "bench-step" */
static void hyphenate(const char *name, char text[48])
{
	snprintf(text, 48, "%s", name);
	for (char *at = text; *at; at++)
		if (*at == ' ') *at = '-';
}

static enum status head(struct buf *out, const char *suffix, const char *summary, struct error *err)
{
	const char *dash = *suffix ? "\\-" : "";
	TRY(buf_puts(out, ".\\\" Written by `tandem --man` from the option table.\n.TH TANDEM", err));
	TRY(buf_puts(out, dash, err));
	for (const char *at = suffix; *at; at++) {
		char upper = *at >= 'a' && *at <= 'z' ? (char)(*at - 'a' + 'A') : *at;
		TRY(put(out, &upper, 1, false, err));
	}
	TRY(buf_printf(out, err, " 1 \"\" \"tandem %s\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\ntandem%s", TANDEM_VERSION, dash));
	TRY(put_text(out, suffix, err));
	TRY(buf_puts(out, " \\- ", err));
	TRY(put_text(out, summary, err));
	return buf_puts(out, "\n.SH SYNOPSIS\n", err);
}

static enum status put_option(const struct option *option, struct buf *out, struct error *err)
{
	char name[80];
	TRY(buf_puts(out, ".TP\n", err));
	if (option->letter) TRY(buf_printf(out, err, "\\fB\\-%c\\fR, ", option->letter));
	snprintf(name, sizeof name, "--%s", option->name);
	TRY(put_font(out, 'B', name, err));
	if (option->argument) {
		TRY(buf_puts(out, " ", err));
		TRY(put_font(out, 'I', option->argument, err));
	}
	TRY(buf_printf(out, err, "\n%c", option->help[0] >= 'a' && option->help[0] <= 'z' ? option->help[0] - 'a' + 'A' : option->help[0]));
	TRY(put_text(out, option->help + 1, err));
	TRY(buf_puts(out, ".\n", err));
	if (option->type == OPTION_FLAG) return STATUS_OK;
	const char *value = option->initial ? option->initial : option->absent ? option->absent : "none";
	TRY(buf_puts(out, "Default: ", err));
	TRY(put_text(out, value, err));
	if (option->unit) TRY(buf_printf(out, err, " %s", option->unit));
	return buf_puts(out, ".\n", err);
}

static enum status put_options(unsigned bit, struct buf *out, struct error *err)
{
	const char *group = NULL;
	TRY(buf_puts(out, ".SH OPTIONS\n", err));
	for (int i = 0; i < settings_table.count; i++) {
		const struct option *option = &settings_table.rows[i];
		if (!(option->commands & bit) || !option->help) continue;
		if (!group || strcmp(group, option->group) != 0) {
			TRY(buf_puts(out, ".SS ", err));
			TRY(put_text(out, option->group, err));
			TRY(buf_puts(out, "\n", err));
		}
		group = option->group;
		TRY(put_option(option, out, err));
	}
	return STATUS_OK;
}

static enum status put_exit_status(struct buf *out, struct error *err)
{
	TRY(buf_puts(out, ".SH EXIT STATUS\n", err));
	TRY(put_text(out, EXIT_CODES_TEXT, err));
	return buf_puts(out, ".\nAn error is one line on standard error: what, why, and what to do.\n", err);
}

static enum status put_examples(const char *lines, struct buf *out, struct error *err)
{
	TRY(buf_puts(out, ".SH EXAMPLES\n.nf\n", err));
	TRY(put_lines(out, lines, false, err));
	return buf_puts(out, ".fi\n", err);
}

/* Pages of all commands but `self`, and the main page if `self` is a command. */
static enum status put_see_also(unsigned self, struct buf *out, struct error *err)
{
	const char *comma = "";
	TRY(buf_puts(out, ".SH SEE ALSO\n", err));
	if (self) {
		TRY(buf_puts(out, ".BR tandem (1)", err));
		comma = ",\n";
	}
	for (int i = 0; i < COMMAND_COUNT; i++) {
		if (command_table[i].bit == self) continue;
		char name[48];
		hyphenate(command_table[i].name, name);
		TRY(buf_printf(out, err, "%s.BR tandem\\-", *comma ? " ,\n" : ""));
		TRY(put_text(out, name, err));
		TRY(buf_puts(out, " (1)", err));
		comma = ",\n";
	}
	return buf_puts(out, "\n", err);
}

static enum status command_page(const struct command *command, const char *suffix, struct buf *out, struct error *err)
{
	const struct detail *detail = NULL;
	for (size_t i = 0; i < sizeof details / sizeof details[0]; i++)
		if (details[i].command == command->bit) detail = &details[i];
	TRY(head(out, suffix, command->summary, err));
	TRY(buf_printf(out, err, ".B tandem %s\n", command->name));
	if (command->operand) {
		TRY(buf_puts(out, ".I ", err));
		TRY(put_text(out, command->operand, err));
		TRY(buf_puts(out, "\n", err));
	}
	TRY(buf_puts(out, "[options]\n", err));
	if (detail) {
		TRY(buf_puts(out, ".SH DESCRIPTION\n", err));
		TRY(put_lines(out, detail->text, true, err));
	}
	TRY(put_options(command->bit, out, err));
	TRY(put_exit_status(out, err));
	if (detail) TRY(put_examples(detail->examples, out, err));
	return put_see_also(command->bit, out, err);
}

static enum status main_page(struct buf *out, struct error *err)
{
	TRY(head(out, "", "one large language model on several devices by tensor parallelism", err));
	TRY(buf_puts(out, ".B tandem\n.I COMMAND\n[\\fIMODEL\\fR] [options]\n.br\n.B tandem\n.I COMMAND\n.B \\-\\-help\n.SH DESCRIPTION\n", err));
	TRY(put_lines(out,
	              "Runs a model on P ranks, each a thread with a device, its shard of the weights and its own KV cache. On CPU the results are the same "
	              "bits for every world size, thread count, batch and instruction set.\n\n"
	              "MODEL is a folder in Hugging Face form: config.json, safetensors files, tokenizer.json; or one GGUF file. An option is given at most once; "
	              "numbers are checked against their range; the default of each stands in the page of its command.",
	              true, err));
	TRY(buf_puts(out, ".SH COMMANDS\n", err));
	for (int i = 0; i < COMMAND_COUNT; i++) {
		const struct command *command = &command_table[i];
		TRY(buf_printf(out, err, ".TP\n.B %s\n%c%s.\n", command->name, command->summary[0] - 'a' + 'A', command->summary + 1));
	}
	TRY(buf_puts(out, ".SH OPTIONS\n.TP\n\\fB\\-h\\fR, \\fB\\-\\-help\\fR\nAll commands and options.\n", err));
	TRY(buf_puts(out, ".TP\n\\fB\\-\\-version\\fR\nThe version.\n", err));
	TRY(buf_puts(out, ".TP\n\\fB\\-\\-man\\fR [\\fIPAGE\\fR]\nThe names of the manual pages, or one of them as roff.\n", err));
	TRY(buf_puts(out, ".TP\n\\fB\\-\\-completion\\fR\nThe completion script for bash, to be read by \\fBsource\\fR.\n", err));
	TRY(put_exit_status(out, err));
	TRY(put_examples("tandem plan MODEL --tp 1,2,4,8\ntandem run MODEL -p \"Once upon a time\" --tp 2\nsource <(tandem --completion)", out, err));
	return put_see_also(0, out, err);
}

enum status manual_list(struct buf *out, struct error *err)
{
	TRY(buf_puts(out, "tandem\n", err));
	for (int i = 0; i < COMMAND_COUNT; i++) {
		char name[48];
		hyphenate(command_table[i].name, name);
		TRY(buf_printf(out, err, "tandem-%s\n", name));
	}
	return STATUS_OK;
}

enum status manual_page(const char *page, struct buf *out, struct error *err)
{
	if (!strcmp(page, "tandem")) return main_page(out, err);
	for (int i = 0; i < COMMAND_COUNT; i++) {
		char name[48];
		hyphenate(command_table[i].name, name);
		if (!strncmp(page, "tandem-", 7) && !strcmp(page + 7, name)) return command_page(&command_table[i], name, out, err);
	}
	return FAIL(err, USAGE, "--man '%.40s': no such page; see tandem --man", page);
}
