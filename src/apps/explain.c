#include "apps/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define REHEARSAL_PROMPT 512
#define REHEARSAL_SALT UINT64_C(0x6469737061746368) /* nobody finds these prompts in the prefix cache */

struct line {
	int m, order;
	char shape[40], use[24], kernel[136], families[64], why[256];
};

struct lines {
	struct line *item;
	int count, capacity;
	bool every, failed;
};

static void add_line(void *context, const struct tandem_dispatch *d)
{
	struct lines *lines = context;
	struct error ignored = {0};
	if (!d->calls && !lines->every) return;
	if (lines->count == lines->capacity) {
		int capacity = lines->capacity ? 2 * lines->capacity : 64;
		void *grown = lines->item;
		lines->failed |= mem_grow(&grown, (size_t)capacity, sizeof *lines->item, "dispatch table", &ignored) != STATUS_OK;
		if (lines->failed) return;
		lines->item = grown;
		lines->capacity = capacity;
	}
	struct line *line = &lines->item[lines->count];
	*line = (struct line){.m = d->m, .order = lines->count++};
	snprintf(line->shape, sizeof line->shape, "%d x %d %s", d->n, d->k, d->dtype);
	snprintf(line->use, sizeof line->use, "%s", d->use);
	snprintf(line->kernel, sizeof line->kernel, "%s%s%s", d->kernel, d->mode[0] ? ": " : "", d->mode);
	snprintf(line->families, sizeof line->families, "%s", d->families);
	snprintf(line->why, sizeof line->why, "%s", d->why);
}

static int by_rows(const void *a, const void *b)
{
	const struct line *x = a, *y = b;
	return x->m != y->m ? (x->m > y->m) - (x->m < y->m) : (x->order > y->order) - (x->order < y->order);
}

static int longest(int so_far, const char *text)
{
	int n = (int)strlen(text);
	return n > so_far ? n : so_far;
}

static enum status write_lines(const struct lines *lines, struct buf *out, struct error *err)
{
	int families = 2, shape = 7, use = 3, kernel = 6;
	for (int i = 0; i < lines->count; i++) {
		families = longest(families, lines->item[i].families);
		shape = longest(shape, lines->item[i].shape);
		use = longest(use, lines->item[i].use);
		kernel = longest(kernel, lines->item[i].kernel);
	}
	TRY(buf_printf(out, err, "%5s  %-*s  %-*s  %-*s  %-*s  %s\n", "M", families, "op", shape, "[N x K]", use, "use", kernel, "kernel", "why"));
	for (int i = 0; i < lines->count; i++) {
		const struct line *l = &lines->item[i];
		TRY(buf_printf(out, err, "%5d  %-*s  %-*s  %-*s  %-*s  %s\n", l->m, families, l->families, shape, l->shape, use, l->use, kernel, l->kernel, l->why));
	}
	return STATUS_OK;
}

enum status explain_text(const struct session *session, bool every, struct buf *out, struct error *err)
{
	struct lines lines = {.every = every};
	struct tandem_error from = {0};
	int code = tandem_explain_dispatch(session->engine, add_line, &lines, &from);
	enum status st = lines.failed ? FAIL(err, NO_MEMORY, "dispatch: no memory for the table") : STATUS_OK;
	if (st == STATUS_OK && lines.count) qsort(lines.item, (size_t)lines.count, sizeof *lines.item, by_rows);
	if (st == STATUS_OK) st = write_lines(&lines, out, err);
	free(lines.item);
	if (st == STATUS_OK && code == STATUS_NO_ROOM) return buf_printf(out, err, "%s\n", from.text);
	return st == STATUS_OK ? session_error(code, &from, err) : st;
}

static void add_item(void *context, const struct tandem_dispatch *d)
{
	if (!d->calls) return;
	json_array_append_new(context, json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:s,s:s,s:o,s:s,s:I}", "families", d->families, "use", d->use, "dtype", d->dtype, "m", d->m,
	                                         "n", d->n, "k", d->k, "kernel", d->kernel, "mode", d->mode, "ratio",
	                                         d->ratio > 0 ? json_real(d->ratio) : json_null(), "why", d->why, "calls", (json_int_t)d->calls));
}

enum status explain_json(const struct session *session, json_t **out, struct error *err)
{
	struct tandem_error from = {0};
	*out = json_array();
	if (!*out) return FAIL(err, NO_MEMORY, "JSON output: no memory; use a machine with more");
	int code = tandem_explain_dispatch(session->engine, add_item, *out, &from);
	if (!code || code == STATUS_NO_ROOM) return STATUS_OK;
	json_decref(*out);
	*out = NULL;
	return session_error(code, &from, err);
}

/* `count` requests of `tokens` tokens at once, one token of each. */
static enum status rehearse(const struct session *session, const int32_t *prompt, int tokens, int count, struct tandem_event *events, struct error *err)
{
	struct tandem_error from = {0};
	const struct tandem_request request = {.prompt = prompt, .prompt_count = tokens, .max_tokens = 1, .ignore_eos = true, .cache_salt = REHEARSAL_SALT};
	for (int i = 0; i < count; i++) {
		uint64_t id;
		TRY(session_error(tandem_submit(session->engine, &request, &id, &from), &from, err));
	}
	for (bool idle = false; !idle;) {
		int n;
		TRY(session_error(tandem_step(session->engine, events, session->info.max_sequences, &n, &idle, &from), &from, err));
	}
	return STATUS_OK;
}

enum status explain_rehearse(const struct session *session, struct error *err)
{
	const struct tandem_info *info = &session->info;
	int tokens = info->context - 1 < REHEARSAL_PROMPT ? info->context - 1 : REHEARSAL_PROMPT;
	if (tokens > info->kv_tokens - 1) tokens = (int)info->kv_tokens - 1;
	struct tandem_event *events = mem_zalloc((size_t)info->max_sequences, sizeof *events, "events", err);
	int32_t *prompt = mem_zalloc((size_t)(tokens > 0 ? tokens : 1), sizeof *prompt, "prompt", err);
	enum status st = events && prompt ? STATUS_OK : STATUS_NO_MEMORY;
	for (int count = 1; st == STATUS_OK; count *= 2) {
		if (count > info->max_sequences) count = info->max_sequences;
		st = rehearse(session, prompt, 1, count, events, err);
		if (count == info->max_sequences) break;
	}
	if (st == STATUS_OK && tokens > 1) st = rehearse(session, prompt, tokens, 1, events, err);
	free(events);
	free(prompt);
	return st;
}
