/* `tandem bench serve`: a load of requests on a server, and how it bears it. The server is any that speaks the OpenAI API at a URL; for
 * a model folder, a `tandem serve` of our own on a free port of 127.0.0.1.
 *
 * Prompts of completions are token ids, so that lengths are exact and no tokenizer is needed here; those of chats are that many short words.
 * Both are random, so that no prefix cache helps. Each answer is asked to have its planned length (ignore_eos). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "apps/child.h"
#include "apps/console.h"
#include "apps/measure.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "client/arrivals.h"
#include "client/fetch.h"
#include "client/summary.h"

#define STREAM_PROMPT 100 /* random streams from here on: one a request */
#define FILE_LIMIT (64u << 20)

struct bench {
	const struct settings *settings;
	struct child child; /* the server that we started, if we did */
	struct peer peer;
	bool chat;
	struct buf model, body;
	struct arrival *arrivals;
	struct sample *samples;
	struct goodput limits;
	struct summary summary;
	uint64_t start_ns;
	enum status failed; /* of a hook that has no way to return it */
};

/* ---- requests ---- */

static enum status put_prompt(struct bench *b, int index, struct buf *out, struct error *err)
{
	static const char *const words[] = {"a", "the", "and", "to", "of", "in", "day", "one", "he", "she", "it", "dog", "cat", "sun", "tree", "big"};
	uint64_t seed = b->settings->seed.value, stream = STREAM_PROMPT + (uint64_t)index;
	int n = b->arrivals[index].input_tokens;
	TRY(buf_puts(out, b->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" : ",\"prompt\":[", err));
	for (int i = 0; i < n; i++) {
		uint64_t draw = rng_u64(seed, stream, (uint64_t)i);
		if (b->chat) TRY(buf_printf(out, err, "%s%s", i ? " " : "", words[draw % 16]));
		else TRY(buf_printf(out, err, "%s%llu", i ? "," : "", (unsigned long long)(draw % (uint64_t)b->settings->vocab)));
	}
	return buf_puts(out, b->chat ? "\"}]" : "]", err);
}

static enum status put_body(struct bench *b, int index, struct buf *out, struct error *err)
{
	TRY(buf_append(out, b->model.data, b->model.size, err)); /* {"model":"…" */
	TRY(put_prompt(b, index, out, err));
	TRY(buf_printf(out, err, ",\"%s\":%d,\"temperature\":0,\"ignore_eos\":true", b->chat ? "max_completion_tokens" : "max_tokens",
	               b->arrivals[index].output_tokens));
	if (b->settings->token_ids) TRY(buf_puts(out, ",\"return_token_ids\":true", err));
	return buf_puts(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}", err);
}

static enum status on_request(void *context, int index, struct buf *out, struct error *err)
{
	struct bench *b = context;
	buf_clear(&b->body);
	TRY(put_body(b, index, &b->body, err));
	TRY(fetch_head(&b->peer, "POST", b->chat ? "/v1/chat/completions" : "/v1/completions", b->body.size, out, err));
	TRY(buf_append(out, b->body.data, b->body.size, err));
	b->samples[index].due_ns = b->start_ns + b->arrivals[index].at_ns;
	b->samples[index].sent_ns = clock_ns();
	return STATUS_OK;
}

static uint64_t on_due(void *context, int index)
{
	return ((struct bench *)context)->arrivals[index].at_ns;
}

/* ---- answers ---- */

static bool has_text(const json_t *value)
{
	return json_string_length(value) > 0 || json_array_size(value) > 0;
}

/* A choice that brings tokens: text of a completion, content or the like of a chat's delta, ids. The first chunk of a chat, a role and no
 * content, is none. */
static bool brings_tokens(const json_t *choice)
{
	static const char *const keys[] = {"content", "reasoning_content", "reasoning", "tool_calls"};
	const json_t *delta = json_object_get(choice, "delta");
	bool any = has_text(json_object_get(choice, "text")) || has_text(json_object_get(choice, "token_ids"));
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) any |= has_text(json_object_get(delta, keys[i]));
	return any;
}

static bool take_chunk(struct bench *b, struct sample *s, const json_t *chunk, uint64_t now_ns)
{
	const json_t *usage = json_object_get(chunk, "usage"), *choices = json_object_get(chunk, "choices");
	if (json_object_get(chunk, "error")) s->error_event = true;
	for (size_t i = 0; i < json_array_size(choices) && b->failed == STATUS_OK; i++)
		if (brings_tokens(json_array_get(choices, i))) b->failed = sample_piece(s, now_ns, NULL);
	if (json_is_object(usage)) {
		s->input_tokens = (int)json_integer_value(json_object_get(usage, "prompt_tokens"));
		s->output_tokens = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
	}
	return b->failed == STATUS_OK;
}

static bool on_event(void *context, int index, const char *data, size_t n, uint64_t now_ns)
{
	struct bench *b = context;
	struct sample *s = &b->samples[index];
	if (n == 6 && !memcmp(data, "[DONE]", 6)) {
		s->done_mark = true;
		s->end_ns = now_ns;
		return true;
	}
	json_t *chunk = json_loadb(data, n, JSON_ALLOW_NUL, NULL);
	if (!chunk) {
		s->error_event = true;
		return true;
	}
	bool more = take_chunk(b, s, chunk, now_ns);
	json_decref(chunk);
	return more;
}

static void on_end(void *context, int index, const struct load_answer *answer)
{
	struct bench *b = context;
	struct sample *s = &b->samples[index];
	s->end = answer->end;
	s->status = answer->status;
	if (!s->end_ns) s->end_ns = answer->at_ns;
	if (!s->output_tokens) s->output_tokens = s->gap_count + 1;
	if (!s->input_tokens) s->input_tokens = b->arrivals[index].input_tokens;
}

static enum status run_load(struct bench *b, int count, int concurrency, struct error *err)
{
	struct load_options options = {.address = &b->peer.address, .address_length = b->peer.address_length, .count = count, .concurrency = concurrency,
	                               .timeout_ms = b->peer.timeout_ms, .context = b, .due = on_due, .request = on_request,
	                               .event = on_event, .end = on_end};
	b->start_ns = clock_ns();
	TRY(load_run(&options, err));
	return b->failed == STATUS_OK ? STATUS_OK : FAIL(err, NO_MEMORY, "bench serve: no memory for the times; ask for fewer requests");
}

/* ---- before the load ---- */

static enum status ask(struct bench *b, const char *path, struct error *err)
{
	int status;
	TRY(fetch(&b->peer, path, &b->body, &status, err));
	if (status == 200) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: the server answers with status %d; give the URL of an OpenAI-compatible server%s", path, status,
	            status == 401 ? " and its --api-key" : "");
}

/* b->model becomes the start of every body. */
static enum status find_model(struct bench *b, struct error *err)
{
	const char *name = b->settings->served_names;
	json_t *list = NULL;
	if (!name) {
		TRY(ask(b, "/v1/models", err));
		list = json_loadb(b->body.data, b->body.size, 0, NULL);
		name = json_string_value(json_object_get(json_array_get(json_object_get(list, "data"), 0), "id"));
	}
	json_t *object = name ? json_pack("{s:o}", "model", json_path(name)) : NULL;
	char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
	enum status st = text ? buf_append(&b->model, text, strlen(text) - 1, err)
	                      : FAIL(err, BAD_INPUT, "/v1/models: names no model; give its name with --served-model-name");
	free(text);
	json_decref(object);
	json_decref(list);
	return st;
}

static enum status plan_lengths(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	struct token_range input, output;
	struct buf text = {0};
	TRY(token_range_parse(&input, "input-len", s->input_len, err));
	TRY(token_range_parse(&output, "output-len", s->output_len, err));
	if (s->goodput) TRY(goodput_parse(&b->limits, s->goodput, err));
	b->arrivals = mem_zalloc((size_t)s->requests, sizeof *b->arrivals, "requests", err);
	b->samples = mem_zalloc((size_t)s->requests, sizeof *b->samples, "requests", err);
	if (!b->arrivals || !b->samples) return STATUS_NO_MEMORY;
	arrivals_draw(b->arrivals, s->requests, s->rate, s->seed.value, input, output);
	if (!s->lengths) return STATUS_OK;
	enum status st = buf_read_file(&text, s->lengths, FILE_LIMIT, err);
	if (st == STATUS_OK) st = arrivals_lengths(b->arrivals, s->requests, s->lengths, text.data ? text.data : "", err);
	buf_fini(&text);
	return st;
}

/* As many descriptors as the system lets us have. */
static void raise_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit)) return;
	limit.rlim_cur = limit.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* The first request alone: it shows whether the server can do this at all, and is not counted. */
static enum status probe(struct bench *b, struct error *err)
{
	char text[64];
	uint64_t at = b->arrivals[0].at_ns;
	b->arrivals[0].at_ns = 0;
	TRY(run_load(b, 1, 1, err));
	const char *failure = sample_failure(&b->samples[0], text);
	sample_fini(&b->samples[0]);
	b->samples[0] = (struct sample){0};
	b->arrivals[0].at_ns = at;
	if (!failure) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "bench serve: a first request failed: %s; %s", failure,
	            !strcmp(failure, "stream without tokens") ? "a server without a tokenizer needs --token-ids" : "look at the log of the server");
}

/* ---- report ---- */

static json_t *distribution_json(const struct distribution *d)
{
	return json_pack("{s:i,s:f,s:f,s:f,s:f,s:f}", "count", d->count, "mean", d->mean, "p50", d->p50, "p90", d->p90, "p99", d->p99, "max", d->max);
}

static double rate_of(double amount, double seconds)
{
	return per_second(amount, seconds * 1000);
}

static enum status print_json(const struct bench *b, struct error *err)
{
	const struct summary *m = &b->summary;
	json_t *failures = json_object();
	for (int i = 0; i < m->failure_kinds; i++) json_object_set_new(failures, m->failures[i].text, json_integer(m->failures[i].count));
	json_t *object = json_pack("{s:s,s:i,s:i,s:i,s:o,s:f,s:I,s:I,s:f,s:f,s:f,s:o,s:o}", "endpoint", b->settings->endpoint, "requests", m->requests,
	                           "completed", m->completed, "failed", m->requests - m->completed, "failures", failures, "seconds", m->seconds,
	                           "input_tokens", (json_int_t)m->input_tokens, "output_tokens", (json_int_t)m->output_tokens, "requests_per_s",
	                           rate_of(m->completed, m->seconds), "output_tokens_per_s", rate_of((double)m->output_tokens, m->seconds), "total_tokens_per_s",
	                           rate_of((double)(m->input_tokens + m->output_tokens), m->seconds), "goodput_per_s",
	                           b->settings->goodput ? json_real(rate_of(m->good, m->seconds)) : json_null(), "delay_ms", distribution_json(&m->delay));
	if (!object) return output_json(NULL, err);
#define X(member, name, goodput) json_object_set_new(object, #member "_ms", distribution_json(&m->member));
	SUMMARY_LIST(X)
#undef X
	return output_json(object, err);
}

static enum status put_distribution(struct buf *out, const char *name, const struct distribution *d, struct error *err)
{
	return buf_printf(out, err, "%-6s %10.2f %10.2f %10.2f %10.2f %10.2f\n", name, d->mean, d->p50, d->p90, d->p99, d->max);
}

static enum status put_report(const struct bench *b, struct buf *out, struct error *err)
{
	const struct summary *m = &b->summary;
	TRY(buf_printf(out, err, "%d of %d requests completed in %.2f s: %.2f requests/s, %.1f output tokens/s, %.1f tokens/s in all\n", m->completed, m->requests,
	               m->seconds, rate_of(m->completed, m->seconds), rate_of((double)m->output_tokens, m->seconds),
	               rate_of((double)(m->input_tokens + m->output_tokens), m->seconds)));
	if (b->settings->goodput) TRY(buf_printf(out, err, "goodput %.2f requests/s: %d kept %s (ms)\n", rate_of(m->good, m->seconds), m->good, b->settings->goodput));
	for (int i = 0; i < m->failure_kinds; i++) TRY(buf_printf(out, err, "failed %d: %s\n", m->failures[i].count, m->failures[i].text));
	TRY(buf_puts(out, "ms           mean        p50        p90        p99        max\n", err));
#define X(member, name, goodput) TRY(put_distribution(out, name, &m->member, err));
	SUMMARY_LIST(X)
#undef X
	return put_distribution(out, "delay", &m->delay, err);
}

static enum status print_table(const struct bench *b, struct error *err)
{
	struct buf out = {0};
	enum status st = put_report(b, &out, err);
	if (st == STATUS_OK) st = output_write(out.data, out.size, err);
	buf_fini(&out);
	return st;
}

/* Until the server that we started answers: it loads the model first. */
static enum status await_child(struct bench *b, struct error *err)
{
	while (ask(b, "/health", NULL) != STATUS_OK) {
		if (!child_lives(&b->child)) return FAIL(err, BAD_INPUT, "bench serve: the server did not start; it says why above");
		usleep(20000);
	}
	return STATUS_OK;
}

static enum status find_server(struct bench *b, struct error *err)
{
	char url[64];
	const char *where = b->settings->model;
	if (!url_is(where)) {
		int port;
		TRY(child_start(&b->child, where, b->settings->server, &port, err));
		snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
		where = url;
	} else if (b->settings->server) {
		return FAIL(err, USAGE, "--server: is for a server that this command starts; give a model folder in place of the URL");
	}
	TRY(peer_init(&b->peer, where, b->settings->api_key, (uint32_t)b->settings->timeout_ms, err));
	return where == url ? await_child(b, err) : STATUS_OK;
}

static enum status run_all(struct bench *b, struct error *err)
{
	const struct settings *s = b->settings;
	int concurrency = s->concurrency && s->concurrency < s->requests ? s->concurrency : s->requests;
	b->chat = !strcmp(s->endpoint, "chat");
	TRY(plan_lengths(b, err));
	raise_limit();
	TRY(find_server(b, err));
	TRY(find_model(b, err));
	TRY(probe(b, err));
	TRY(run_load(b, s->requests, concurrency, err));
	TRY(summary_make(&b->summary, b->samples, s->requests, &b->limits, err));
	TRY(s->json ? print_json(b, err) : print_table(b, err));
	if (b->summary.completed) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "bench serve: no request completed; see the failures above");
}

enum status cmd_bench_serve(const struct settings *settings, struct error *err)
{
	struct bench bench = {.settings = settings};
	enum status st = run_all(&bench, err);
	child_stop(&bench.child);
	for (int i = 0; bench.samples && i < settings->requests; i++) sample_fini(&bench.samples[i]);
	free(bench.samples);
	free(bench.arrivals);
	buf_fini(&bench.model);
	buf_fini(&bench.body);
	return st;
}
