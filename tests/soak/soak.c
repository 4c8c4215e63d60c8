/* soak URL [--requests N] [--seed S] [--failures N] [--growth MIB]: mixed traffic on a `tandem serve`, and what must be true of it.
 *
 * Kinds are drawn from the seed: streams and bodies that run to their end, clients that vanish (before the answer, in the middle of it, in the
 * middle of the body), bodies and requests that are malformed. Checked for each: it ends exactly once and as its kind must; streams that were
 * not hung up hold one finish for each choice and [DONE], or one error event and [DONE] where a rank failed; a fixed greedy request
 * gives the same text each time. Checked at the end: nothing in flight, all KV free, --failures aborts and as many rebuilds, resident
 * memory no more than --growth (48) above what it was after the first tenth. Then 1000 idle connections and 200 streams at once. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "client/fetch.h"

#define CONCURRENCY 24
#define IDLE 1000
#define STREAMS 200
#define SETTLE_MS 30000
#define MAX_N 3
#define SPARE_FDS 3

enum kind { STREAM, BODY, GREEDY, CHAT, LEAVE_EARLY, LEAVE_MIDWAY, HALF_BODY, BAD_JSON, BAD_FIELD, BAD_HTTP, BAD_PATH, KINDS };
static const char *const kind_names[] = {"stream", "body", "greedy", "chat stream", "left before the answer", "left midway", "half a body", "bad JSON",
                                         "bad field", "bad HTTP", "bad path"};

struct exchange {
	enum kind kind;
	int n;            /* choices */
	int leave_after;  /* events */
	int events, ends; /* ends: how often it was reported as over */
	int finishes[MAX_N];
	int errors;
	bool done, after_end; /* something came after the error or [DONE] */
};

struct soak {
	struct peer peer;
	struct exchange *exchanges;
	int count;
	uint64_t seed;
	struct buf greedy, text; /* what the first greedy request said; what this one says */
	int kinds[KINDS], server_errors, full;
	int bad;
	struct buf body;
	double growth;      /* bytes that it may gain */
	double descriptors; /* of the server, before anything */
};

static void complain(struct soak *s, int index, const char *what)
{
	if (s->bad++ < 20) printf("NOT OK  request %d (%s): %s\n", index, kind_names[s->exchanges[index].kind], what);
}

/* ---- what is sent ---- */

static enum status put_json(const struct soak *s, int index, struct buf *out)
{
	const struct exchange *x = &s->exchanges[index];
	uint64_t draw = rng_u64(s->seed, 2, (uint64_t)index);
	bool stream = x->kind == STREAM || x->kind == CHAT || x->kind == LEAVE_EARLY || x->kind == LEAVE_MIDWAY;
	int tokens = x->kind == LEAVE_MIDWAY || x->kind == LEAVE_EARLY ? 200 : 1 + (int)(draw % 24);
	if (x->kind == BAD_JSON) return buf_puts(out, draw % 2 ? "{\"prompt\": \"Once\", " : "[[[[{{{{", NULL);
	if (x->kind == BAD_FIELD) return buf_puts(out, draw % 2 ? "{\"prompt\": \"Once\", \"temperature\": \"hot\"}" : "{\"prompt\": [1, -7], \"max_tokens\": 3}", NULL);
	if (x->kind == GREEDY) return buf_puts(out, "{\"prompt\": \"Once upon a time\", \"max_tokens\": 12, \"temperature\": 0}", NULL);
	if (x->kind == CHAT) TRY(buf_printf(out, NULL, "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me story %d\"}]", (int)(draw % 50)));
	else TRY(buf_printf(out, NULL, "{\"prompt\": \"One day number %d\"", (int)(draw % 50)));
	/* Text that comes soon in most stories: choices that end before the engine knows. */
	if (draw & 128) TRY(buf_puts(out, ", \"stop\": [\"a\", \"never\"]", NULL));
	return buf_printf(out, NULL, ", \"max_tokens\": %d, \"n\": %d, \"seed\": %d, \"ignore_eos\": %s, \"stream\": %s}", tokens, x->n, index, draw & 64 ? "true" : "false",
	                  stream ? "true" : "false");
}

static enum status on_request(void *context, int index, struct buf *out, struct error *err)
{
	struct soak *s = context;
	const struct exchange *x = &s->exchanges[index];
	if (x->kind == BAD_HTTP) return buf_puts(out, index % 2 ? "GET\r\n\r\n" : "POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n", err);
	buf_clear(&s->body);
	TRY(put_json(s, index, &s->body));
	const char *path = x->kind == CHAT ? "/v1/chat/completions" : x->kind == BAD_PATH ? "/v1/nowhere" : "/v1/completions";
	TRY(fetch_head(&s->peer, "POST", path, s->body.size + (x->kind == HALF_BODY ? 100 : 0), out, err));
	return buf_append(out, s->body.data, s->body.size, err);
}

static bool on_sent(void *context, int index, uint64_t now_ns)
{
	const struct soak *s = context;
	(void)now_ns;
	return s->exchanges[index].kind != HALF_BODY && s->exchanges[index].kind != LEAVE_EARLY;
}

/* ---- what comes back ---- */

static void take_chunk(struct soak *s, int index, const json_t *chunk)
{
	struct exchange *x = &s->exchanges[index];
	const json_t *choices = json_object_get(chunk, "choices");
	if (!chunk || x->errors || x->done) x->after_end = true;
	if (json_object_get(chunk, "error")) x->errors++;
	for (size_t i = 0; i < json_array_size(choices); i++) {
		const json_t *choice = json_array_get(choices, i);
		json_int_t number = json_integer_value(json_object_get(choice, "index"));
		if (number < 0 || number >= x->n) complain(s, index, "a choice that was not asked for");
		else if (json_is_string(json_object_get(choice, "finish_reason"))) x->finishes[number]++;
		else if (x->finishes[number]) complain(s, index, "a choice goes on after its end");
	}
}

static bool on_event(void *context, int index, const char *data, size_t n, uint64_t now_ns)
{
	struct soak *s = context;
	struct exchange *x = &s->exchanges[index];
	(void)now_ns;
	if (n == 6 && !memcmp(data, "[DONE]", 6)) {
		x->after_end |= x->done;
		x->done = true;
	} else {
		json_t *chunk = json_loadb(data, n, 0, NULL);
		take_chunk(s, index, chunk);
		json_decref(chunk);
	}
	return x->kind != LEAVE_MIDWAY || ++x->events < x->leave_after;
}

static void check_stream(struct soak *s, int index)
{
	const struct exchange *x = &s->exchanges[index];
	if (!x->done) complain(s, index, "the stream has no [DONE]");
	if (x->after_end) complain(s, index, "events after the end, or no JSON");
	if (x->errors > 1) complain(s, index, "two error events");
	s->server_errors += x->errors;
	for (int i = 0; i < x->n && !x->errors; i++)
		if (x->finishes[i] != 1) complain(s, index, "a choice without one finish");
}

static void check_greedy(struct soak *s, int index, const json_t *answer)
{
	const char *text = json_string_value(json_object_get(json_array_get(json_object_get(answer, "choices"), 0), "text"));
	if (!text) complain(s, index, "no text");
	else if (s->greedy.data && strcmp(s->greedy.data, text) != 0) complain(s, index, "another text than at first");
	else if (!s->greedy.data && buf_puts(&s->greedy, text, NULL) != STATUS_OK) abort();
}

static void check_body(struct soak *s, int index, const struct load_answer *a)
{
	const struct exchange *x = &s->exchanges[index];
	json_t *answer = json_loadb(a->body, a->body_bytes, 0, NULL);
	const json_t *choices = json_object_get(answer, "choices");
	int finishes = 0;
	for (size_t i = 0; i < json_array_size(choices); i++) finishes += json_is_string(json_object_get(json_array_get(choices, i), "finish_reason"));
	if (finishes != x->n) complain(s, index, "a choice without a finish");
	if (x->kind == GREEDY) check_greedy(s, index, answer);
	json_decref(answer);
}

static void check_error(struct soak *s, int index, const struct load_answer *a)
{
	json_t *answer = json_loadb(a->body, a->body_bytes, 0, NULL);
	const json_t *error = json_object_get(answer, "error");
	if (!json_is_string(json_object_get(error, "message")) || json_integer_value(json_object_get(error, "code")) != a->status)
		complain(s, index, "an error without a body that says so");
	json_decref(answer);
}

/* Requests of good form: answered in full, or by an error of the server where a rank failed. */
static void check_good(struct soak *s, int index, const struct load_answer *a)
{
	if (a->end != LOAD_DONE) complain(s, index, load_end_text(a->end));
	else if (a->status == 200 && a->stream) check_stream(s, index);
	else if (a->status == 200) check_body(s, index, a);
	else if (a->status == 429) s->full++, check_error(s, index, a);
	else if (a->status == 500 || a->status == 503) s->server_errors++, check_error(s, index, a);
	else complain(s, index, "refused");
}

static void on_end(void *context, int index, const struct load_answer *a)
{
	struct soak *s = context;
	struct exchange *x = &s->exchanges[index];
	if (x->ends++) complain(s, index, "ended twice");
	s->kinds[x->kind]++;
	switch (x->kind) {
	case STREAM:
	case BODY:
	case GREEDY:
	case CHAT: check_good(s, index, a); break;
	case LEAVE_EARLY:
	case HALF_BODY:
		if (a->end != LOAD_HUNG_UP) complain(s, index, load_end_text(a->end));
		break;
	case LEAVE_MIDWAY: /* it may be over before we leave, well or not */
		if (a->end != LOAD_HUNG_UP) check_good(s, index, a);
		break;
	case BAD_JSON:
	case BAD_FIELD:
	case BAD_PATH:
		if (a->end != LOAD_DONE) complain(s, index, load_end_text(a->end));
		else if (a->status == 429) s->full++;
		else if (a->status != (x->kind == BAD_PATH ? 404 : 400)) complain(s, index, "not refused by 400 or 404");
		else check_error(s, index, a);
		break;
	case BAD_HTTP:
		if (a->end == LOAD_TIMEOUT || a->status / 100 == 2) complain(s, index, "taken");
		break;
	case KINDS: break;
	}
}

/* ---- the server as a whole ---- */

/* The sum over labels of a metric; -1: none. */
static double metric(struct soak *s, const char *name)
{
	int status;
	double sum = 0;
	bool found = false;
	size_t n = strlen(name);
	if (fetch(&s->peer, "/metrics", &s->text, &status, NULL) != STATUS_OK || status != 200) return -1;
	for (const char *line = s->text.data; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
		const char *close = strncmp(line, name, n) || line[n] != '{' ? NULL : strstr(line, "} ");
		if (!close) continue;
		sum += strtod(close + 2, NULL);
		found = true;
	}
	return found ? sum : -1;
}

static bool quiet(struct soak *s)
{
	int status;
	if (fetch(&s->peer, "/health", &s->text, &status, NULL) != STATUS_OK || status != 200) return false;
	json_t *health = json_loadb(s->text.data, s->text.size, 0, NULL);
	bool none = json_integer_value(json_object_get(health, "pending")) == 0;
	json_decref(health);
	return none && metric(s, "tandem_kv_free_tokens") == metric(s, "tandem_kv_tokens");
}

static int passed, failed;

static void verdict(const char *name, bool good)
{
	if (good) passed++;
	else failed++;
	printf("%s  %s\n", good ? "ok    " : "NOT OK", name);
}

/* After traffic the server must be as before it: no request, no KV, no connection but the one that asks. */
static void settle(struct soak *s)
{
	uint64_t end = clock_deadline_ms(SETTLE_MS);
	bool good;
	while (!(good = quiet(s) && metric(s, "process_open_fds") <= s->descriptors + SPARE_FDS) && clock_ns() < end) usleep(50000);
	if (!good)
		printf("        free KV %.0f of %.0f; descriptors %.0f, at the start %.0f; %s\n", metric(s, "tandem_kv_free_tokens"), metric(s, "tandem_kv_tokens"),
		       metric(s, "process_open_fds"), s->descriptors, s->text.data ? "" : "no answer");
	verdict("then nothing is in flight, all KV is free, and no descriptor is lost", good);
}

static enum status send_all(struct soak *s, int concurrency, struct error *err)
{
	struct load_options options = {.address = &s->peer.address, .address_length = s->peer.address_length, .count = s->count, .concurrency = concurrency,
	                               .timeout_ms = s->peer.timeout_ms, .context = s, .request = on_request, .sent = on_sent, .event = on_event, .end = on_end};
	return load_run(&options, err);
}

/* `count` requests whose kinds are drawn, or all of the kind `only`. */
static enum status traffic(struct soak *s, int count, int only, int concurrency, const char *name, struct error *err)
{
	static const enum kind deck[] = {STREAM, STREAM, STREAM, BODY, BODY, GREEDY, CHAT, CHAT, LEAVE_EARLY, LEAVE_MIDWAY, LEAVE_MIDWAY, HALF_BODY, BAD_JSON, BAD_FIELD, BAD_HTTP, BAD_PATH};
	int before = s->bad;
	s->count = count;
	s->exchanges = mem_zalloc((size_t)count, sizeof *s->exchanges, "requests", err);
	if (!s->exchanges) return STATUS_NO_MEMORY;
	for (int i = 0; i < count; i++) {
		uint64_t draw = rng_u64(s->seed, 1, (uint64_t)i);
		struct exchange *x = &s->exchanges[i];
		x->kind = only >= 0 ? (enum kind)only : deck[draw % (sizeof deck / sizeof *deck)];
		x->n = x->kind == GREEDY || only >= 0 ? 1 : 1 + (int)((draw >> 8) % MAX_N);
		x->leave_after = 1 + (int)((draw >> 16) % 12);
	}
	enum status st = send_all(s, concurrency, err);
	for (int i = 0; i < count && st == STATUS_OK; i++)
		if (s->exchanges[i].ends != 1) complain(s, i, "no end");
	free(s->exchanges);
	s->exchanges = NULL;
	s->seed++;
	if (st == STATUS_OK) verdict(name, s->bad == before);
	return st;
}

/* ---- many connections ---- */

static int open_idle(struct soak *s, int *fds, int count)
{
	int open = 0;
	for (int i = 0; i < count; i++) {
		fds[i] = socket(s->peer.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fds[i] >= 0 && !connect(fds[i], (const struct sockaddr *)&s->peer.address, s->peer.address_length)) open++;
	}
	return open;
}

static enum status many_connections(struct soak *s, struct error *err)
{
	static int fds[IDLE];
	int open = open_idle(s, fds, IDLE);
	printf("        %d idle connections; the server has %.0f\n", open, metric(s, "tandem_connections"));
	verdict("1000 idle connections are taken", open == IDLE && metric(s, "tandem_connections") >= IDLE);
	int full = s->full, errors = s->server_errors;
	TRY(traffic(s, STREAMS, STREAM, STREAMS, "200 streams at once beside them, each with one end", err));
	verdict("none of them was turned away", s->full == full && s->server_errors == errors);
	for (int i = 0; i < IDLE; i++)
		if (fds[i] >= 0) close(fds[i]);
	return STATUS_OK;
}

static enum status run(struct soak *s, int requests, double failures, struct error *err)
{
	s->descriptors = metric(s, "process_open_fds");
	TRY(traffic(s, requests / 10 + 1, -1, CONCURRENCY, "the first tenth", err));
	settle(s);
	double resident = metric(s, "process_resident_memory_bytes"), growth;
	TRY(traffic(s, requests - requests / 10 - 1, -1, CONCURRENCY, "the rest", err));
	settle(s);
	TRY(many_connections(s, err));
	settle(s);
	growth = metric(s, "process_resident_memory_bytes") - resident;
	printf("        resident %.1f MiB, %+.1f MiB since the first tenth\n", (resident + growth) / (1 << 20), growth / (1 << 20));
	verdict("resident memory is bounded", resident > 0 && growth < s->growth);
	printf("        groups that failed %.0f, rebuilt %.0f; requests that ended by that %d, turned away %d\n", metric(s, "tandem_aborts_total"),
	       metric(s, "tandem_rebuilds_total"), s->server_errors, s->full);
	verdict("each planted failure came, and was mended", metric(s, "tandem_aborts_total") == failures && metric(s, "tandem_rebuilds_total") == failures);
	verdict("requests fail only with a group", failures > 0 ? s->server_errors > 0 : s->server_errors == 0);
	for (int i = 0; i < KINDS; i++) printf("        %6d %s\n", s->kinds[i], kind_names[i]);
	return STATUS_OK;
}

int main(int argc, char **argv)
{
	struct soak s = {0};
	struct error err = {0};
	struct rlimit limit;
	int requests = 1000;
	double failures = 0;
	s.seed = 1;
	s.growth = 48 << 20;
	if (argc < 2 || argc % 2) return fprintf(stderr, "usage: soak URL [--requests N] [--seed S] [--failures N] [--growth MIB]\n"), 2;
	for (int i = 2; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--requests")) requests = atoi(argv[i + 1]);
		else if (!strcmp(argv[i], "--seed")) s.seed = strtoull(argv[i + 1], NULL, 10);
		else if (!strcmp(argv[i], "--failures")) failures = atof(argv[i + 1]);
		else if (!strcmp(argv[i], "--growth")) s.growth = atof(argv[i + 1]) * (1 << 20);
		else return fprintf(stderr, "soak: %s: unknown option\n", argv[i]), 2;
	}
	if (!getrlimit(RLIMIT_NOFILE, &limit)) limit.rlim_cur = limit.rlim_max, (void)setrlimit(RLIMIT_NOFILE, &limit);
	enum status st = peer_init(&s.peer, argv[1], NULL, 60000, &err);
	if (st == STATUS_OK) st = run(&s, requests, failures, &err);
	if (st != STATUS_OK) printf("NOT OK  %s\n", err.text), failed++;
	buf_fini(&s.greedy);
	buf_fini(&s.text);
	buf_fini(&s.body);
	printf("%d passed, %d failed\n", passed, failed);
	return failed > 0;
}
