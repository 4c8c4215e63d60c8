/* `tandem verify`: a world size against one rank, on the same prompts: logits of every prompt position, then greedy tokens.
 *
 * First the one-rank engine runs everything and is closed, then the other: both at once would need the weights twice. The first
 * one's logits wait in an unnamed temporary file, so that memory does not grow with the prompts. On CPU, and with --tp-invariant, the two
 * must give the same bits; elsewhere the same tokens, except where the reference's two likeliest are nearer than the error (a near tie).
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/session.h"
#include "base/mem.h"
#include "base/rng.h"

#define DEFAULT_PROMPTS 4
#define DEFAULT_PROMPT_TOKENS 24
#define PROMPTS_LIMIT (16u << 20) /* bytes of a --prompts file */

struct sample {
	struct token_list prompt;
	struct token_list tokens; /* greedy, by one rank */
	struct { float *items; size_t count; } margin; /* of each of them: the reference's likeliest minus its second, in logits */
	int compared;
	int differs; /* first generated token that differs; -1 */
	int32_t found; /* what the other gave there */
};

struct verify {
	const struct settings *settings;
	struct session session;
	struct sample *samples;
	int count;
	FILE *reference; /* [positions][V] f32 of one rank */
	float *row;      /* [V], read back */
	int vocab_size;
	bool second;     /* the run that is compared */
	struct sample *now;

	int64_t positions, same_top;
	double max_abs, max_rel, min_margin;
	bool identical;
	int io_error;
};

/* --- prompts --- */

static enum status default_prompts(struct verify *v, int vocab_size, int context, struct error *err)
{
	v->samples = mem_zalloc(DEFAULT_PROMPTS, sizeof *v->samples, "prompts", err);
	if (!v->samples) return STATUS_NO_MEMORY;
	v->count = DEFAULT_PROMPTS;
	int room = context > v->settings->max_tokens ? context - v->settings->max_tokens : 1;
	for (int i = 0; i < v->count; i++) {
		int n = DEFAULT_PROMPT_TOKENS * (i + 1) / DEFAULT_PROMPTS;
		for (int t = 0; t < n && t < room; t++)
			TRY(token_list_push(&v->samples[i].prompt, (int32_t)(rng_u64(1, (uint64_t)i, (uint64_t)t) % (uint64_t)vocab_size), err));
	}
	return STATUS_OK;
}

/* "1,2,3" alone on a line is ids, all else is text. */
static enum status read_ids(const char *line, struct token_list *out, bool *ids, struct error *err)
{
	*ids = line[strspn(line, "0123456789, ")] == 0;
	for (const char *at = line; *ids && *at;) {
		char *end;
		errno = 0;
		long id = strtol(at, &end, 10);
		if (end == at || errno || id > INT32_MAX) return FAIL(err, BAD_INPUT, "--prompts: '%.60s': not token ids; write them as 1,2,3", line);
		TRY(token_list_push(out, (int32_t)id, err));
		at = end + strspn(end, " ");
		if (*at == ',') at++;
	}
	return STATUS_OK;
}

static enum status file_prompts(struct verify *v, const struct tokenizer *tokenizer, struct error *err)
{
	struct buf text = {0};
	enum status st;
	TRY_GOTO(buf_read_file(&text, v->settings->prompts, PROMPTS_LIMIT, err), end);
	char *rest = text.data, *line;
	while ((line = strsep(&rest, "\n"))) {
		if (!*line) continue;
		TRY_GOTO(mem_grow((void **)&v->samples, (size_t)v->count + 1, sizeof *v->samples, "prompts", err), end);
		struct sample *sample = &v->samples[v->count++];
		*sample = (struct sample){0};
		bool ids;
		TRY_GOTO(read_ids(line, &sample->prompt, &ids, err), end);
		if (ids) continue;
		if (!tokenizer) {
			st = FAIL(err, BAD_INPUT, "--prompts: has text, but the model has no tokenizer; write token ids as 1,2,3");
			goto end;
		}
		TRY_GOTO(tokenizer_encode(tokenizer, line, strlen(line), true, &sample->prompt, err), end);
	}
	if (!v->count) st = FAIL(err, BAD_INPUT, "--prompts: %s has no prompt; write one a line", v->settings->prompts);
end:
	buf_fini(&text);
	return st;
}

static enum status read_prompts(struct verify *v, struct error *err)
{
	if (!v->settings->prompts) return default_prompts(v, v->session.info.vocab_size, v->session.info.context, err);
	struct tokenizer *tokenizer;
	TRY(model_tokenizer(&tokenizer, v->settings->model, &v->session.console, err));
	enum status st = file_prompts(v, tokenizer, err);
	tokenizer_destroy(&tokenizer);
	return st;
}

/* --- logits --- */

static int keep_row(void *context, int position, const float *logits, int vocab_size)
{
	struct verify *v = context;
	(void)position;
	if (fwrite(logits, sizeof *logits, (size_t)vocab_size, v->reference) == (size_t)vocab_size) return 0;
	v->io_error = errno;
	return 1;
}

static int top(const float *row, int n, int without)
{
	int best = -1;
	for (int i = 0; i < n; i++)
		if (i != without && (best < 0 || row[i] > row[best])) best = i;
	return best;
}

static int compare_row(void *context, int position, const float *logits, int vocab_size)
{
	struct verify *v = context;
	(void)position;
	errno = 0;
	if (fread(v->row, sizeof *v->row, (size_t)vocab_size, v->reference) != (size_t)vocab_size) {
		v->io_error = errno ? errno : EIO;
		return 1;
	}
	if (memcmp(v->row, logits, sizeof *logits * (size_t)vocab_size) != 0) v->identical = false;
	double largest = 0, worst = 0;
	for (int i = 0; i < vocab_size; i++) {
		double size = fabs((double)v->row[i]), error = fabs((double)v->row[i] - (double)logits[i]);
		if (size > largest) largest = size;
		if (!(error <= worst)) worst = error; /* NaN counts as an error */
	}
	if (!(worst <= v->max_abs)) v->max_abs = worst;
	if (largest > 0 && !(worst / largest <= v->max_rel)) v->max_rel = worst / largest;
	int first = top(v->row, vocab_size, -1), second = top(v->row, vocab_size, first);
	if (second >= 0) v->min_margin = fmin(v->min_margin, (double)v->row[first] - (double)v->row[second]);
	v->same_top += top(logits, vocab_size, -1) == first;
	v->positions++;
	return 0;
}

static enum status run_logits(struct verify *v, const struct sample *sample, struct error *err)
{
	struct tandem_error from = {0};
	int code = tandem_logits(v->session.engine, sample->prompt.ids, (int)sample->prompt.count, v->second ? compare_row : keep_row, v, &from);
	if (v->io_error) return FAIL(err, IO, "temporary file: %s; free some space in the folder for temporary files", strerror(v->io_error));
	return session_error(code, &from, err);
}

/* --- tokens --- */

static enum status on_event(void *context, const struct tandem_event *event, struct error *err)
{
	struct verify *v = context;
	struct sample *sample = v->now;
	if (event->token < 0) return STATUS_OK;
	if (!v->second) {
		TRY(mem_grow((void **)&sample->margin.items, sample->margin.count + 1, sizeof(float), "margins", err));
		sample->margin.items[sample->margin.count++] =
			event->alternatives > 1 ? event->alternative_logprob[0] - event->alternative_logprob[1] : INFINITY;
		return token_list_push(&sample->tokens, event->token, err);
	}
	if (sample->differs >= 0) return STATUS_OK;
	int at = sample->compared++;
	if ((size_t)at < sample->tokens.count && sample->tokens.ids[at] == event->token) return STATUS_OK;
	sample->differs = at;
	sample->found = event->token;
	return STATUS_OK;
}

static enum status run_tokens(struct verify *v, struct sample *sample, struct error *err)
{
	struct tandem_request request = {
		.prompt = sample->prompt.ids,
		.prompt_count = (int)sample->prompt.count,
		.max_tokens = v->settings->max_tokens,
		.ignore_eos = v->settings->ignore_eos,
		.sampling = {.logprobs = 2},
	};
	v->now = sample;
	sample->differs = -1;
	return session_generate(&v->session, &request, on_event, v, err);
}

/* All prompts on `world_size` ranks. */
static enum status run_world(struct verify *v, int world_size, struct error *err)
{
	struct session_needs needs = {.world_size = world_size, .no_fault = !v->second};
	TRY(session_open(&v->session, v->settings, &needs, err));
	if (!v->second) {
		TRY(read_prompts(v, err));
		v->vocab_size = v->session.info.vocab_size;
		v->row = mem_zalloc((size_t)v->vocab_size, sizeof *v->row, "a row of logits", err);
		if (!v->row) return STATUS_NO_MEMORY;
	}
	rewind(v->reference);
	for (int i = 0; i < v->count; i++) {
		TRY(run_logits(v, &v->samples[i], err));
		TRY(run_tokens(v, &v->samples[i], err));
	}
	if (v->second) return STATUS_OK;
	session_close(&v->session);
	return STATUS_OK;
}

/* --- report --- */

static const struct sample *first_difference(const struct verify *v)
{
	for (int i = 0; i < v->count; i++)
		if (v->samples[i].differs >= 0) return &v->samples[i];
	return NULL;
}

static double margin_at(const struct sample *sample)
{
	return (size_t)sample->differs < sample->margin.count ? (double)sample->margin.items[sample->differs] : INFINITY;
}

/* Two logits that are at most 2e apart can change order when each moves by e. */
static bool near_tie(const struct verify *v, const struct sample *sample)
{
	return margin_at(sample) <= 2 * v->max_abs;
}

static int32_t expected_at(const struct sample *sample)
{
	return (size_t)sample->differs < sample->tokens.count ? sample->tokens.ids[sample->differs] : -1;
}

/* A prompt whose tokens differ where rounding does not explain it. */
static const struct sample *clear_difference(const struct verify *v)
{
	for (int i = 0; i < v->count; i++)
		if (v->samples[i].differs >= 0 && !near_tie(v, &v->samples[i])) return &v->samples[i];
	return NULL;
}

static int64_t token_count(const struct verify *v)
{
	int64_t tokens = 0;
	for (int i = 0; i < v->count; i++) tokens += (int64_t)v->samples[i].tokens.count;
	return tokens;
}

static enum status print_json(const struct verify *v, struct error *err)
{
	const struct sample *bad = first_difference(v);
	json_t *difference = json_null();
	if (bad)
		difference = json_pack("{s:i,s:i,s:i,s:i,s:f,s:b}", "prompt", (int)(bad - v->samples), "index", bad->differs, "expected",
		                       expected_at(bad), "found", bad->found, "margin", fmin(margin_at(bad), 1e30), "near_tie", near_tie(v, bad));
	json_t *object = json_pack("{s:o,s:i,s:I,s:I,s:f,s:f,s:b,s:f,s:I,s:b,s:o}", "model", json_path(v->settings->model), "prompts", v->count, "positions",
	                           (json_int_t)v->positions, "tokens_compared", (json_int_t)token_count(v), "max_abs_error",
	                           fmin(v->max_abs, 1e30), "max_rel_error", fmin(v->max_rel, 1e30), "bit_identical", v->identical,
	                           "min_top1_margin", fmin(v->min_margin, 1e30), "same_top1", (json_int_t)v->same_top, "tokens_agree", !bad,
	                           "first_difference", difference);
	return session_output(&v->session, object, err);
}

static enum status print_report(const struct verify *v, struct error *err)
{
	const struct sample *bad = first_difference(v);
	struct buf out = {0};
	enum status st;
	TRY_GOTO(buf_printf(&out, err, "TP%d against TP1, %d prompts, %lld positions, %lld greedy tokens\n", v->session.info.world_size, v->count,
	                    (long long)v->positions, (long long)token_count(v)), end);
	TRY_GOTO(buf_printf(&out, err, "logits: bit-identical %s, largest error %.3g, relative to the row's largest %.3g\n",
	                    v->identical ? "yes" : "no", v->max_abs, v->max_rel), end);
	TRY_GOTO(buf_printf(&out, err, "top-1: same at %lld of %lld positions, smallest margin %.4g\n", (long long)v->same_top,
	                    (long long)v->positions, v->min_margin), end);
	if (bad)
		TRY_GOTO(buf_printf(&out, err, "tokens: differ first in prompt %d at token %d: TP1 gave %d, TP%d gave %d; margin %.4g, %s\n",
		                    (int)(bad - v->samples), bad->differs, expected_at(bad), v->session.info.world_size, bad->found,
		                    margin_at(bad), near_tie(v, bad) ? "a near tie" : "no near tie"), end);
	else TRY_GOTO(buf_puts(&out, "tokens: all agree\n", err), end);
	st = output_write(out.data, out.size, err);
end:
	buf_fini(&out);
	return st;
}

/* A run that stopped early gave no event to differ by. */
static void find_short_runs(struct verify *v)
{
	for (int i = 0; i < v->count; i++) {
		struct sample *sample = &v->samples[i];
		if (sample->differs < 0 && (size_t)sample->compared < sample->tokens.count) {
			sample->differs = sample->compared;
			sample->found = -1;
		}
	}
}

static enum status run_all(struct verify *v, struct error *err)
{
	v->reference = tmpfile();
	if (!v->reference) return FAIL(err, IO, "temporary file: %s; free some space in the folder for temporary files", strerror(errno));
	TRY(run_world(v, 1, err));
	v->second = true;
	TRY(run_world(v, v->settings->tp, err));
	find_short_runs(v);
	TRY(v->settings->json ? print_json(v, err) : print_report(v, err));
	const struct sample *bad = clear_difference(v);
	if (bad)
		return FAIL(err, MISMATCH, "verify: TP%d and TP1 generate different tokens, and prompt %d is no near tie; see the report",
		            v->session.info.world_size, (int)(bad - v->samples));
	bool exact = !strcmp(v->session.info.device, "cpu") || v->settings->tp_invariant;
	if (!v->identical && exact)
		return FAIL(err, MISMATCH, "verify: TP%d and TP1 differ in their bits, which %s never may; please report this",
		            v->session.info.world_size, v->settings->tp_invariant ? "--tp-invariant" : "the CPU");
	return STATUS_OK;
}

enum status cmd_verify(const struct settings *settings, struct error *err)
{
	struct verify v = {.settings = settings, .identical = true, .min_margin = INFINITY};
	enum status st = run_all(&v, err);
	session_close(&v.session);
	for (int i = 0; i < v.count; i++) {
		token_list_fini(&v.samples[i].prompt);
		token_list_fini(&v.samples[i].tokens);
		free(v.samples[i].margin.items);
	}
	free(v.samples);
	free(v.row);
	if (v.reference) fclose(v.reference);
	return st;
}
