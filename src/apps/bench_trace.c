#include "apps/bench_trace.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "apps/session.h"
#include "base/mem.h"
#include "base/out_file.h"

static const char *const part_names[] = {
#define X(code, name) name,
	BENCH_PART_LIST(X)
#undef X
};

struct tracer {
	json_t *events;
	struct bench_split *ranks; /* [ranks] */
};

/* The fused ops are their linear and little else. */
static enum bench_part part_of(const char *section, const char *op)
{
	if (!strcmp(section, "head")) return BENCH_HEAD;
	if (!strcmp(op, "linear") || !strcmp(op, "attention_in") || !strcmp(op, "gdn_in") || !strcmp(op, "mlp_in")) return BENCH_GEMM;
	if (!strcmp(op, "attention")) return BENCH_ATTENTION;
	if (!strcmp(op, "gdn")) return BENCH_GDN;
	if (!strcmp(op, "moe")) return BENCH_EXPERTS;
	return !strcmp(op, "all_reduce") ? BENCH_ALL_REDUCE : BENCH_OTHER;
}

static void on_span(void *context, int rank, const char *section, const char *op, double begin_us, double us)
{
	struct tracer *t = context;
	t->ranks[rank].us[part_of(section, op)] += us;
	if (t->events)
		json_array_append_new(t->events, json_pack("{s:s,s:s,s:s,s:f,s:f,s:i,s:i}", "name", op, "cat", section, "ph", "X", "ts", begin_us, "dur", us,
		                                           "pid", rank, "tid", 0));
}

static double sum(const struct bench_split *split)
{
	double total = 0;
	for (int i = 0; i < BENCH_PART_COUNT; i++) total += split->us[i];
	return total;
}

static enum status write_trace(json_t *events, const char *path, struct error *err)
{
	struct out_file out = {0};
	json_t *file = json_pack("{s:s,s:O}", "displayTimeUnit", "ns", "traceEvents", events);
	enum status st = file ? out_file_open(&out, path, err) : FAIL(err, NO_MEMORY, "--trace: no memory; use fewer layers");
	if (st == STATUS_OK && json_dumpf(file, out.file, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0) st = FAIL(err, IO, "--trace: %s: %s; free some space", path, strerror(errno));
	if (st == STATUS_OK) st = out_file_commit(&out, path, err);
	out_file_drop(&out);
	json_decref(file);
	return st;
}

enum status bench_trace(struct tandem *engine, int ranks, const char *path, struct bench_split *out, struct error *err)
{
	struct tracer t = {.events = path ? json_array() : NULL, .ranks = mem_zalloc((size_t)ranks, sizeof *t.ranks, "trace", err)};
	struct tandem_error from = {0};
	enum status st = STATUS_NO_MEMORY;
	*out = (struct bench_split){{0}};
	if (!t.ranks) goto end;
	TRY_GOTO(session_error(tandem_trace_step(engine, on_span, &t, &from), &from, err), end);
	for (int r = 0; r < ranks; r++)
		if (sum(&t.ranks[r]) > sum(out)) *out = t.ranks[r];
	if (path) st = write_trace(t.events, path, err);
end:
	json_decref(t.events);
	free(t.ranks);
	return st;
}

json_t *bench_split_json(const struct bench_split *split)
{
	json_t *object = json_object();
	for (int i = 0; i < BENCH_PART_COUNT; i++) json_object_set_new(object, part_names[i], json_real(split->us[i]));
	return object;
}

enum status bench_split_text(const struct bench_split *split, const char *what, struct buf *out, struct error *err)
{
	const char *separator = "";
	TRY(buf_printf(out, err, "%s op by op:", what));
	for (int i = 0; i < BENCH_PART_COUNT; i++) {
		bool absent = (i == BENCH_GDN || i == BENCH_EXPERTS) && split->us[i] <= 0;
		if (absent) continue;
		TRY(buf_printf(out, err, "%s %s %.0f us", separator, part_names[i], split->us[i]));
		separator = ",";
	}
	return buf_puts(out, "\n", err);
}
