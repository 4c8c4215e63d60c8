/* `tandem serve`: the model, its tokenizer and chat template, and a server around them; signals end it in order. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "apps/explain.h"
#include "apps/gguf_text.h"
#include "apps/session.h"
#include "base/thread.h"
#include "model/config.h"
#include "model/gguf.h"
#include "serve/server.h"
#include "text/template.h"
#include "text/utf8.h"

#define DEFAULT_CONTEXT 8192 /* the engine's, where the model allows more */
#define DEFAULT_KV_CONTEXTS 4
#define EXIT_LIMIT_S 4 /* from a failure to the end of the process, whatever hangs */

struct serve {
	const struct settings *settings;
	struct session session;
	struct tokenizer *tokenizer;
	struct chat_template *chat_template;
	struct facts facts;
	struct server *server;
	struct buf names; /* copy that facts.names point into */
	struct buf folder;
	int listen_fd, port;
	int signals[2];   /* pipe */
};

/* Clients name the model by what they read in answers, so names are the UTF-8 that those have. */
static enum status read_names(struct serve *s, struct error *err)
{
	const char *given = s->settings->served_names;
	if (!given) {
		TRY(model_name(s->settings->model, &s->names, err));
		s->facts.names[s->facts.name_count++] = s->names.data;
		return STATUS_OK;
	}
	TRY(utf8_append_lossy(&s->names, given, strlen(given), err));
	TRY(buf_puts(&s->names, "", err));
	char *rest = s->names.data, *name;
	while ((name = strsep(&rest, ","))) {
		if (!*name || strlen(name) > 200 || s->facts.name_count == FACTS_MAX_NAMES)
			return FAIL(err, USAGE, "--served-model-name: give 1 to %d names of 1 to 200 bytes with commas between them", FACTS_MAX_NAMES);
		s->facts.names[s->facts.name_count++] = name;
	}
	return STATUS_OK;
}

/* What a conversation needs. Without it, or with a template that cannot be used, the other routes still work. */
static enum status open_template(struct serve *s, struct error *err)
{
	if (!s->tokenizer) {
		console_log(&s->session.console, LOG_WARN, "no tokenizer: prompts must be token ids, and answers have no text");
		return STATUS_OK;
	}
	const char *model = s->settings->model;
	TRY(gguf_is_file(model) ? gguf_chat_template(&s->chat_template, model, err) : chat_template_load(&s->chat_template, s->folder.data, err));
	const struct error *problem = chat_template_problem(s->chat_template, false);
	if (problem) console_log(&s->session.console, LOG_WARN, problem->text);
	s->facts.chat_template = s->chat_template;
	return STATUS_OK;
}

static int64_t kv_tokens(const struct settings *settings, int longest)
{
	int64_t context = settings->context ? settings->context : longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
	int64_t contexts = settings->max_running < DEFAULT_KV_CONTEXTS ? settings->max_running : DEFAULT_KV_CONTEXTS;
	if (settings->kv_tokens) return settings->kv_tokens;
	int64_t block = session_block_tokens(settings), blocks = (context + block - 1) / block;
	return contexts * blocks * block;
}

static enum status open_model(struct serve *s, struct error *err)
{
	const struct settings *settings = s->settings;
	struct model_config config;
	console_init(&s->session.console, settings->verbose);
	TRY(model_folder(settings->model, &s->folder, err));
	TRY(read_names(s, err));
	TRY(model_config_load(&config, settings->model, NULL, err));
	TRY(model_tokenizer(&s->tokenizer, settings->model, &s->session.console, err));
	TRY(open_template(s, err));
	struct session_needs needs = {.max_sequences = settings->max_running, .kv_tokens = kv_tokens(settings, config.max_position),
	                              .state_snapshots = settings->state_snapshots, .state_every = settings->state_every ? settings->state_every : -1};
	return session_open(&s->session, settings, &needs, err);
}

static void fill_facts(struct serve *s)
{
	struct facts *f = &s->facts;
	f->root = s->settings->model;
	f->created = (int64_t)time(NULL);
	f->info = s->session.info;
	f->tokenizer = s->tokenizer;
	f->ignore_eos = s->settings->ignore_eos;
	f->model_defaults = !strcmp(s->settings->defaults, "model");
}

static void say_where(struct serve *s)
{
	const struct tandem_info *i = &s->session.info;
	const char *host = s->settings->host;
	bool six = strchr(host, ':') != NULL;
	bool defaults = s->facts.model_defaults && (!isnan(i->default_temperature) || !isnan(i->default_top_p) || i->default_top_k > 0 || !isnan(i->default_repetition_penalty));
	if (defaults)
		fprintf(stderr, "tandem: sampling defaults of generation_config.json apply where a request says nothing: temperature %g, top_p %g, top_k %lld, repetition_penalty %g\n",
		        isnan(i->default_temperature) ? 1 : i->default_temperature, isnan(i->default_top_p) ? 1 : i->default_top_p,
		        i->default_top_k > 0 ? (long long)i->default_top_k : 0LL, isnan(i->default_repetition_penalty) ? 1 : i->default_repetition_penalty);
	fprintf(stderr, "tandem: serving %s on http://%s%s%s:%d (%d rank%s, context %d, %lld KV tokens)\n", s->facts.names[0], six ? "[" : "", host, six ? "]" : "",
	        s->port, i->world_size, i->world_size == 1 ? "" : "s", i->context, (long long)i->kv_tokens);
}

static enum status say_dispatch(const struct session *session, struct error *err)
{
	struct buf out = {0};
	TRY(explain_rehearse(session, err));
	enum status st = explain_text(session, true, &out, err);
	if (st == STATUS_OK) fputs(out.data, stderr);
	buf_fini(&out);
	return st;
}

static enum status open_server(struct serve *s, struct error *err)
{
	const struct settings *settings = s->settings;
	struct server_options o = {.facts = &s->facts, .engine = s->session.engine, .listen_fd = s->listen_fd, .signal_fd = s->signals[0],
	                           .api_key = settings->api_key, .cors_origin = settings->cors_origin, .max_sequences = settings->max_running,
	                           .max_queue = settings->max_queue, .max_body = settings->max_body, .drain_seconds = settings->drain_s,
	                           .comment_seconds = settings->comment_s, .stall_ms = settings->timeout_ms / 2,
	                           .rebuild = !strcmp(settings->on_failure, "rebuild"), .log = console_sink(&s->session.console)};
	s->listen_fd = -1;
	return server_open(&s->server, &o, err);
}

static enum status check_key(const char *key, struct error *err)
{
	if (!key) return STATUS_OK;
	if (!*key) return FAIL(err, USAGE, "--api-key: empty; give a key or leave it out");
	if (strchr(" \t", key[0]) || strchr(" \t", key[strlen(key) - 1]))
		return FAIL(err, USAGE, "--api-key: begins or ends with white space, which is no part of what clients send; give another key");
	return STATUS_OK;
}

static enum status serve_all(struct serve *s, struct error *err)
{
	const struct settings *settings = s->settings;
	TRY(check_key(settings->api_key, err));
	if (!settings->max_body) return FAIL(err, USAGE, "--max-body: 0; give at least 1 byte");
	s->port = settings->port;
	TRY(server_listen(&s->listen_fd, settings->host, &s->port, err)); /* an address in use is told before the model is read */
	TRY(open_model(s, err));
	if (s->session.explain) TRY(say_dispatch(&s->session, err));
	fill_facts(s);
	if (pipe2(s->signals, O_NONBLOCK | O_CLOEXEC) != 0) return FAIL(err, IO, "signals: no pipe; raise the limit of open files");
	TRY(open_server(s, err));
	signals_to(s->signals[1]);
	say_where(s);
	return server_run(s->server, err);
}

/* A rank that hangs cannot hold the process: its failure was told, and the group is dead. */
static void *end_soon(void *code)
{
	sleep(EXIT_LIMIT_S);
	_exit((int)(intptr_t)code);
}

static void limit_exit(enum status st)
{
	pthread_t thread;
	if (status_scope(st) == STATUS_SCOPE_FATAL && !thread_start(&thread, NULL, end_soon, (void *)(intptr_t)status_exit_code(st))) pthread_detach(thread);
}

enum status cmd_serve(const struct settings *settings, struct error *err)
{
	struct serve s = {.settings = settings, .listen_fd = -1, .signals = {-1, -1}};
	enum status st = serve_all(&s, err);
	limit_exit(st);
	server_close(&s.server);
	session_close(&s.session);
	if (s.listen_fd >= 0) close(s.listen_fd);
	chat_template_destroy(&s.chat_template);
	tokenizer_destroy(&s.tokenizer);
	buf_fini(&s.folder);
	buf_fini(&s.names);
	return st;
}
