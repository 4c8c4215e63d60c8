/* `tandem prescreen`: which kernels suit the shapes of one rank. Wires options, devices, progress, signals and files around screen_run. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/console.h"
#include "apps/measure.h"
#include "apps/prescreen_files.h"
#include "apps/prescreen_text.h"
#include "apps/session.h"
#include "base/mem.h"
#include "model/fields.h"
#include "prescreen/chain.h"
#include "prescreen/problems.h"
#include "prescreen/screen.h"
#include "tandem.h"

#define QUICK_ROTATE_BYTES ((int64_t)8 << 20)
#define CPU_CONTEXT 512
#define GPU_CONTEXT 8192

struct prescreen {
	const struct settings *settings;
	struct model_config config;
	struct fleet fleet;
	struct results results;
	struct console console;
	struct log log;
	char path[4096]; /* DIR/prescreen.json */
	int folder;      /* DIR, locked until the end; -1: not open */
	int null;        /* where signals write to */
	bool saved;      /* the file is of this run, or of the one that it goes on with; then it has: */
	int problems_saved, chains_saved;
};

/* ---- what the measuring asks for */

static bool stop(void *context)
{
	(void)context;
	return signals_caught() != 0;
}

/* What the file has is counted when it has it: the results may get further, and the next save fail. */
static void note_saved(struct prescreen *p)
{
	int wanted;
	p->saved = true;
	p->problems_saved = results_done(&p->results);
	chain_count(&p->results, &wanted, &p->chains_saved);
}

static enum status save(void *context, const struct results *results, struct error *err)
{
	struct prescreen *p = context;
	TRY(results_save(results, p->path, err));
	note_saved(p);
	return STATUS_OK;
}

static void say_chain(const struct screen_progress *s, const char *problem, char *line, size_t bytes)
{
	char left[32] = "";
	double rest = s->chains_measured ? s->chain_seconds / s->chains_measured * (s->chains - s->chains_done) : -1;
	if (rest >= 0) snprintf(left, sizeof left, ", %d:%02d left", (int)rest / 60, (int)rest % 60);
	snprintf(line, bytes, "chain %d/%d%s: TP%d, %.120s, candidate %d of %d", s->chains_done + 1, s->chains, left, s->world_size, problem, s->candidate + 1, s->candidates);
}

static void progress(void *context, const struct screen_progress *s)
{
	struct prescreen *p = context;
	char problem[RESULTS_TEXT], left[32] = "", line[256];
	result_problem_text(s->problem, problem);
	double rest = s->measured ? s->seconds / s->measured * (s->problems - s->done) : -1;
	if (rest >= 0) snprintf(left, sizeof left, ", %d:%02d left", (int)rest / 60, (int)rest % 60);
	snprintf(line, sizeof line, "%d/%d%s: %.120s, candidate %d of %d", s->done + 1, s->problems, left, problem, s->candidate + 1, s->candidates);
	if (s->chains) say_chain(s, problem, line, sizeof line);
	console_status(&p->console, line);
	if (p->console.verbose && s->candidate == 0) log_write(&p->log, LOG_INFO, "%s, %.1f s so far", line, s->seconds);
}

/* ---- set up */

/* The rank that is measured has the threads that one of the largest world size would have, unless --threads says otherwise. */
static enum status open_fleet(struct prescreen *p, struct error *err)
{
	const struct settings *s = p->settings;
	int most = 1;
	for (int i = 0; i < s->degrees.count; i++) most = s->degrees.items[i] > most ? s->degrees.items[i] : most;
	return fleet_init_alone(&p->fleet, s, s->threads ? 1 : most, err);
}

static enum status name_model(struct prescreen *p, struct error *err)
{
	struct buf name = {0};
	enum status st = model_name(p->settings->model, &name, err);
	if (st == STATUS_OK) fields_text(p->results.model, sizeof p->results.model, name.data);
	buf_fini(&name);
	return st;
}

static enum status make_problems(struct prescreen *p, struct error *err)
{
	const struct settings *s = p->settings;
	const int32_t context = p->fleet.ops->graph_begin ? GPU_CONTEXT : CPU_CONTEXT;
	struct problem_choice choice = {.degrees = s->degrees.items, .degree_count = s->degrees.count, .decode = strcmp(s->phase, "prefill") != 0,
	                                .prefill = strcmp(s->phase, "decode") != 0, .rows = s->classes.items, .row_count = s->classes.count, .families = s->families,
	                                .contexts = s->contexts.items ? s->contexts.items : &context, .context_count = s->contexts.items ? s->contexts.count : 1};
	if (!(s->reject <= s->keep)) return FAIL(err, USAGE, "--reject %g: is above --keep %g; give one that is not", s->reject, s->keep);
	snprintf(p->results.program, sizeof p->results.program, "%s", TANDEM_VERSION);
	snprintf(p->results.model_type, sizeof p->results.model_type, "%.31s", p->config.model_type);
	TRY(name_model(p, err));
	p->results.dtype = p->config.dtype;
	p->results.keep = s->keep;
	p->results.reject = s->reject;
	p->results.any_order = s->any_order && strcmp(p->fleet.ops->name, "cpu") == 0;
	return problems_make(&p->results, &p->config, p->fleet.ops, &choice, err);
}

static enum status make_folder(struct prescreen *p, struct error *err)
{
	const char *out = p->settings->out;
	if (mkdir(out, 0777) != 0 && errno != EEXIST) return FAIL(err, IO, "--out %.200s: %s; give a folder that can be made or is there", out, strerror(errno));
	if ((size_t)snprintf(p->path, sizeof p->path, "%s/prescreen.json", out) >= sizeof p->path) return FAIL(err, USAGE, "--out %.80s...: the path is too long; use a shorter one", out);
	p->folder = open(out, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if ((p->folder < 0 && errno != EACCES) || access(out, W_OK) != 0)
		return FAIL(err, IO, "--out %.200s: %s; give a folder where you may write", out, strerror(errno));
	/* Anything else that is wrong (a file system without locks, a folder that may not be read) is no reason not to measure. */
	if (flock(p->folder, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return STATUS_OK;
	return FAIL(err, BUSY, "--out %.200s: another prescreen is at work there; wait for its end, or give another folder", out);
}

static enum status resume(struct prescreen *p, const struct screen_options *options, struct error *err)
{
	struct results old;
	if (!p->settings->resume) return STATUS_OK;
	if (access(p->path, F_OK) != 0) return FAIL(err, BAD_INPUT, "--resume: there is no %.200s; leave --resume out to start", p->path);
	TRY(screen_identify(&p->results, options, err));
	TRY(results_load(&old, p->path, err));
	enum status st = screen_resume(&p->results, &old, options->chain, p->path, err);
	results_fini(&old);
	if (st == STATUS_OK) note_saved(p);
	return st;
}

/* ---- and after */

static enum status print(const struct prescreen *p, struct error *err)
{
	struct buf out = {0};
	enum status st = p->settings->json ? results_text(&p->results, JSON_COMPACT, &out, err) : prescreen_text(&p->results, &out, err);
	if (st == STATUS_OK && p->settings->json) st = buf_puts(&out, "\n", err);
	if (st == STATUS_OK) st = output_write(out.data, out.size, err);
	buf_fini(&out);
	return st;
}

static void say_open(const struct prescreen *p)
{
	int chains, measured;
	chain_count(&p->results, &chains, &measured);
	if (!p->saved) return;
	if (p->problems_saved < p->results.problems)
		fprintf(stderr, "tandem: %s has %d of %d problems; go on with the same command and --resume\n", p->path, p->problems_saved, p->results.problems);
	else if (p->results.chain_mode == CHAIN_ON && p->chains_saved < chains)
		fprintf(stderr, "tandem: %s has %d of %d chains; go on with the same command and --resume\n", p->path, p->chains_saved, chains);
}

/* The whitelist and the reports. Heads alone, of a model that has no linear to measure here, give none. */
static enum status write_files(const struct prescreen *p, struct error *err)
{
	struct whitelist whitelist = {0};
	struct buf line = {0};
	bool linears = false;
	for (int i = 0; i < p->results.problems; i++) linears |= p->results.problem[i].op == PROBLEM_LINEAR;
	if (!linears) return STATUS_OK;
	enum status st = prescreen_files_write(&p->results, p->settings->out, p->settings->any_order, &whitelist, err);
	if (st == STATUS_OK) st = prescreen_files_say(&p->results, p->settings->out, &whitelist, &line, err);
	if (st == STATUS_OK) fputs(line.data, stderr);
	whitelist_fini(&whitelist);
	buf_fini(&line);
	return st;
}

/* All files, if there is anything to write: a budget that ended before the first problem was done leaves those of an earlier run alone. */
static enum status finish(struct prescreen *p, struct error *err)
{
	if (!results_done(&p->results)) {
		fputs("tandem: --budget: it ended before a problem was done, and nothing was written; give more\n", stderr);
		return STATUS_OK;
	}
	enum status st = save(p, &p->results, err);
	say_open(p);
	return st == STATUS_OK ? write_files(p, err) : st;
}

static enum status run(struct prescreen *p, struct error *err)
{
	const struct settings *s = p->settings;
	struct screen_options options = {.config = &p->config, .chain = !s->no_chain, .any_order = s->any_order, .quick = s->quick,
	                                 .rotate_bytes = s->quick ? QUICK_ROTATE_BYTES : -1, .budget_s = s->budget, .timeout_ms = s->timeout_ms, .stop = stop,
	                                 .progress = progress, .save = save, .context = p};
	if (!s->degrees.count) return FAIL(err, USAGE, "--tp: has no world size; give some such as 1,2,4");
	TRY(model_config_load(&p->config, s->model, &p->log, err));
	TRY(open_fleet(p, err));
	options.ops = p->fleet.ops;
	options.any_order |= strcmp(options.ops->name, "cpu") != 0;
	options.device = &p->fleet.options[0];
	TRY(make_problems(p, err));
	TRY(make_folder(p, err));
	TRY(resume(p, &options, err));
	signals_to(p->null);
	enum status st = screen_run(&p->results, &options, err);
	console_clear(&p->console);
	if (st != STATUS_OK) say_open(p);
	else st = finish(p, err);
	return st == STATUS_OK ? print(p, err) : st;
}

enum status cmd_prescreen(const struct settings *settings, struct error *err)
{
	struct prescreen *p = mem_zalloc(1, sizeof *p, "prescreen", err);
	if (!p) return STATUS_NO_MEMORY;
	p->settings = settings;
	p->folder = -1;
	p->null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	console_init(&p->console, settings->verbose);
	p->log = console_sink(&p->console);
	enum status st = run(p, err);
	results_fini(&p->results);
	fleet_fini(&p->fleet);
	if (p->folder >= 0) close(p->folder);
	if (p->null >= 0) close(p->null);
	free(p);
	return st;
}
