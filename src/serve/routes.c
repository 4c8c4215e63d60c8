/* Which path and method is what, and the answers that need nobody else. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "serve/page.h"
#include "serve/server_impl.h"

struct route {
	const char *path;
	unsigned methods; /* bits of enum method */
	const char *allow;
	bool open;        /* no key is asked for */
	enum work_kind work;
	void (*answer)(struct exchange *x); /* where `work` is NONE */
};

enum method { METHOD_GET = 1, METHOD_POST = 2 };

/* ---- short answers ---- */

static void answer_json(struct exchange *x, int status, struct out *out)
{
	struct refusal why;
	if (out->failed) {
		out_fini(out);
		(void)refuse_memory(&why);
		exchange_refuse(x, &why);
		return;
	}
	x->reply.status = status;
	x->reply.content_type = "application/json";
	x->reply.body = out->buf;
}

void routes_look_at_ranks(struct server *s, uint64_t now_ns)
{
	for (int r = 0; r < s->facts->info.world_size && r < DRIVER_MAX_RANKS; r++) {
		struct tandem_health h;
		tandem_get_health(s->options.engine, r, &h);
		if (h.moves + h.commands == s->moves[r]) continue;
		s->moves[r] = h.moves + h.commands;
		s->moved_ns[r] = now_ns;
	}
}

/* Is there work, and a rank that has not moved for too long? A step may take its time, an op may not. Work that only begins starts the
 * clock, not what was before. */
static bool stalled(const struct server *s, const struct driver_status *d, uint64_t now)
{
	for (int r = 0; d->in_flight > 0 && r < d->info.world_size && r < DRIVER_MAX_RANKS; r++) {
		uint64_t moved = s->moved_ns[r] > d->progress_ns ? s->moved_ns[r] : d->progress_ns;
		if (now > moved && now - moved > (uint64_t)s->options.stall_ms * 1000000u) return true;
	}
	return false;
}

static const char *health_of(const struct server *s, const struct driver_status *d, uint64_t now)
{
	if (d->state == DRIVER_STOPPED) return "failed";
	if (d->state == DRIVER_REBUILDING) return "degraded";
	if (stalled(s, d, now)) return "stalled";
	return s->state == SERVER_READY ? "ok" : "draining";
}

static void health(struct exchange *x)
{
	struct server *s = x->server;
	struct driver_status d;
	struct out out = {0};
	driver_get_status(s->driver, &d);
	uint64_t now = clock_ns();
	routes_look_at_ranks(s, now);
	const char *state = health_of(s, &d, now);
	double age = now > d.progress_ns ? (double)(now - d.progress_ns) / 1e6 : 0;
	out_printf(&out, "{\"status\":\"%s\",\"generation\":%llu,\"age_ms\":%.1f,\"pending\":%d,\"aborts\":%llu,\"rebuilds\":%llu,\"ranks\":[", state,
	           (unsigned long long)d.generation, age, atomic_load(&s->admitted), (unsigned long long)d.aborts, (unsigned long long)d.rebuilds);
	for (int r = 0; r < d.info.world_size; r++) {
		struct tandem_health h;
		tandem_get_health(s->options.engine, r, &h);
		out_printf(&out, "%s{\"rank\":%d,\"usable\":%s,\"commands\":%llu,\"moves\":%llu,\"silent_ms\":%llu}", r ? "," : "", r, h.usable ? "true" : "false",
		           (unsigned long long)h.commands, (unsigned long long)h.moves, (unsigned long long)h.silent_ms);
	}
	out_puts(&out, "]");
	bool well = !strcmp(state, "ok");
	if (!well) out_printf(&out, ",\"error\":{\"message\":\"the server is %s\",\"type\":\"unavailable_error\",\"param\":null,\"code\":503}", state);
	out_puts(&out, "}");
	answer_json(x, well ? 200 : 503, &out);
	if (!well) x->reply.retry_after = 1;
}

static void ping(struct exchange *x)
{
	health(x);
}

static void put_model(const struct facts *f, const char *name, struct out *out)
{
	const struct tandem_info *i = &f->info;
	out_puts(out, "{\"id\":");
	out_text(out, name);
	out_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"tandem\",\"root\":", (long long)f->created);
	out_text(out, f->root);
	out_printf(out, ",\"parent\":null,\"max_model_len\":%d,\"permission\":[],\"vocab_size\":%d,\"world_size\":%d,\"chat\":%s,\"sampling_defaults\":{", i->context,
	           i->vocab_size, i->world_size, f->chat_template ? "true" : "false");
	bool any = f->model_defaults;
	out_printf(out, "\"temperature\":%.9g,", any && i->default_temperature >= 0 ? i->default_temperature : 1.0);
	out_printf(out, "\"top_p\":%.9g,", any && i->default_top_p >= 0 ? i->default_top_p : 1.0);
	out_printf(out, "\"top_k\":%lld,", any && i->default_top_k > 0 ? (long long)i->default_top_k : 0LL);
	out_printf(out, "\"repetition_penalty\":%.9g}}", any && i->default_repetition_penalty > 0 ? i->default_repetition_penalty : 1.0);
}

static void models(struct exchange *x)
{
	const struct facts *f = x->server->facts;
	struct out out = {0};
	out_puts(&out, "{\"object\":\"list\",\"data\":[");
	for (int i = 0; i < f->name_count; i++) {
		if (i) out_puts(&out, ",");
		put_model(f, f->names[i], &out);
	}
	out_puts(&out, "]}");
	answer_json(x, 200, &out);
}

static void version(struct exchange *x)
{
	struct out out = {0};
	out_puts(&out, "{\"version\":\"" TANDEM_VERSION "\"}");
	answer_json(x, 200, &out);
}

static void load(struct exchange *x)
{
	struct out out = {0};
	out_printf(&out, "{\"server_load\":%d}", atomic_load(&x->server->admitted));
	answer_json(x, 200, &out);
}

static void metrics(struct exchange *x)
{
	struct server *s = x->server;
	struct driver_status d;
	struct out out = {0};
	struct metrics_state state = {.facts = s->facts, .driver = &d, .engine = s->options.engine, .connections = s->connection_count};
	driver_get_status(s->driver, &d);
	state.waiting = generate_waiting(s, &d);
	state.handlers = routes_names(&state.handler_count);
	metrics_write(&s->metrics, &state, &out);
	answer_json(x, 200, &out);
	if (x->reply.status == 200) x->reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
}

static void page(struct exchange *x)
{
	struct out out = {0};
	out_bytes(&out, page_html, page_html_size);
	answer_json(x, 200, &out);
	if (x->reply.status != 200) return;
	x->reply.content_type = "text/html; charset=utf-8";
	x->reply.policy = x->server->page_policy;
}

/* ---- the table ---- */

static const struct route table[] = {
	{"/health", METHOD_GET, "GET, HEAD, OPTIONS", true, WORK_NONE, health},
	{"/v1/health", METHOD_GET, "GET, HEAD, OPTIONS", true, WORK_NONE, health},
	{"/", METHOD_GET, "GET, HEAD, OPTIONS", true, WORK_NONE, page},
	{"/ping", METHOD_GET | METHOD_POST, "GET, HEAD, POST, OPTIONS", false, WORK_NONE, ping},
	{"/load", METHOD_GET, "GET, HEAD, OPTIONS", false, WORK_NONE, load},
	{"/metrics", METHOD_GET, "GET, HEAD, OPTIONS", false, WORK_NONE, metrics},
	{"/version", METHOD_GET, "GET, HEAD, OPTIONS", false, WORK_NONE, version},
	{"/v1/models", METHOD_GET, "GET, HEAD, OPTIONS", false, WORK_NONE, models},
	{"/v1/completions", METHOD_POST, "POST, OPTIONS", false, WORK_COMPLETIONS, NULL},
	{"/v1/chat/completions", METHOD_POST, "POST, OPTIONS", false, WORK_CHAT, NULL},
	{"/tokenize", METHOD_POST, "POST, OPTIONS", false, WORK_TOKENIZE, NULL},
	{"/detokenize", METHOD_POST, "POST, OPTIONS", false, WORK_DETOKENIZE, NULL},
	{"*", 0, "GET, HEAD, POST, OPTIONS", true, WORK_NONE, NULL}, /* OPTIONS only: the server as a whole */
};
#define COUNT ((int)(sizeof table / sizeof *table))

const struct route *routes_find(const char *url, bool *wrong_method, const char *method, const char **allow)
{
	*wrong_method = false;
	for (int i = 0; i < COUNT; i++) {
		if (strcmp(url, table[i].path) != 0) continue;
		unsigned bit = !strcmp(method, "POST") ? METHOD_POST : !strcmp(method, "GET") || !strcmp(method, "HEAD") ? METHOD_GET : 0;
		*allow = table[i].allow;
		*wrong_method = !(bit & table[i].methods) && strcmp(method, "OPTIONS") != 0;
		return &table[i];
	}
	return NULL;
}

bool routes_open(const struct route *route)
{
	return route->open;
}

bool routes_takes_body(const struct route *route)
{
	return route->work != WORK_NONE;
}

int routes_number(const struct route *route)
{
	return route ? (int)(route - table) : COUNT;
}

const char *const *routes_names(int *count)
{
	static const char *names[COUNT + 1];
	for (int i = 0; i < COUNT; i++) names[i] = table[i].path;
	names[COUNT] = "other";
	*count = COUNT + 1;
	return names;
}

void routes_dispatch(struct exchange *x)
{
	if (!strcmp(x->method, "OPTIONS")) {
		x->reply.status = 204;
		return;
	}
	if (x->route->work == WORK_NONE) x->route->answer(x);
	else generate_start(x, x->route->work);
}
