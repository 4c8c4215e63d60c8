/* `tandem run`: one prompt, its continuation streamed to stdout as it comes, and what it cost. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/gguf_text.h"
#include "apps/measure.h"
#include "apps/explain.h"
#include "apps/session.h"
#include "base/clock.h"
#include "model/gguf.h"
#include "text/template.h"

#define PROMPT_LIMIT (64u << 20) /* bytes of text */

struct run {
	const struct settings *settings;
	struct session session;
	struct tokenizer *tokenizer; /* NULL: token ids in, JSON out */
	struct detokenizer *detokenizer;
	struct token_list prompt, tokens;
	struct buf text, piece;
	struct tandem_sampling sampling;
	enum tandem_finish finish;
	uint64_t start_ns, first_ns, last_ns;
};

static enum status read_stdin(struct buf *text, struct error *err)
{
	size_t n;
	do {
		TRY(buf_reserve(text, 65536, err));
		n = fread(text->data + text->size, 1, 65536, stdin);
		text->size += n;
		text->data[text->size] = 0;
		if (text->size > PROMPT_LIMIT) return FAIL(err, BAD_INPUT, "stdin: the prompt is longer than %u bytes; give a shorter one", PROMPT_LIMIT);
	} while (n);
	return ferror(stdin) ? FAIL(err, IO, "stdin: cannot be read; give the prompt with -p or --prompt-file") : STATUS_OK;
}

static enum status check_sources(const struct settings *s, struct error *err)
{
	int sources = !!s->prompt + !!s->prompt_file + !!s->tokens.items;
	if (s->chat && s->tokens.items) return FAIL(err, USAGE, "--chat: is for text; give the prompt with -p or --prompt-file");
	if (sources == 1) return STATUS_OK;
	return FAIL(err, USAGE, "prompt: %s; give one of -p TEXT, --prompt-file F, --tokens 1,2,3", sources ? "given in two ways" : "missing");
}

/* A user's message in the model's chat template: special-token text inside the message stays text. */
static enum status encode_chat(struct run *run, const struct buf *text, struct error *err)
{
	const char *model = run->settings->model;
	struct chat_template *chat = NULL;
	struct template_output rendered = {0};
	struct buf folder = {0};
	struct tm local;
	time_t now = time(NULL);
	enum status st;
	TRY_GOTO(model_folder(model, &folder, err), end);
	TRY_GOTO(gguf_is_file(model) ? gguf_chat_template(&chat, model, err) : chat_template_load(&chat, folder.data, err), end);
	TRY_GOTO(chat_template_prompt(chat, text->data ? text->data : "", text->size, localtime_r(&now, &local), &rendered, err), end);
	st = tokenizer_encode_marked(run->tokenizer, rendered.text.data ? rendered.text.data : "", rendered.text.size, false, rendered.user,
	                             rendered.user_count, &run->prompt, err);
end:
	template_output_fini(&rendered);
	chat_template_destroy(&chat);
	buf_fini(&folder);
	return st;
}

/* The bytes of the prompt are taken as they are, a last newline included. */
static enum status read_prompt(struct run *run, struct error *err)
{
	const struct settings *s = run->settings;
	for (int i = 0; i < s->tokens.count; i++) TRY(token_list_push(&run->prompt, s->tokens.items[i], err));
	if (s->tokens.items) return STATUS_OK;
	struct buf text = {0};
	enum status st;
	if (s->prompt_file) TRY_GOTO(buf_read_file(&text, s->prompt_file, PROMPT_LIMIT, err), end);
	else if (!strcmp(s->prompt, "-")) TRY_GOTO(read_stdin(&text, err), end);
	else TRY_GOTO(buf_puts(&text, s->prompt, err), end);
	if (s->chat) st = encode_chat(run, &text, err);
	else st = tokenizer_encode(run->tokenizer, text.data ? text.data : "", text.size, true, &run->prompt, err);
end:
	buf_fini(&text);
	return st;
}

static enum status need_tokenizer(const struct run *run, struct error *err)
{
	const struct settings *s = run->settings;
	if (run->tokenizer || (s->tokens.items && s->json)) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: has no %s; give the prompt with --tokens and ask for --json", s->model,
	            gguf_is_file(s->model) ? "tokenizer" : "tokenizer.json");
}

/* Flags win; else generation_config.json where it says do_sample; else greedy. */
static struct tandem_sampling choose_sampling(const struct settings *s, const struct tandem_info *info)
{
	bool defaults = info->default_sample;
	double temperature = defaults ? isnan(info->default_temperature) ? 1 : info->default_temperature : 0;
	double top_p = defaults && !isnan(info->default_top_p) ? info->default_top_p : 1;
	double penalty = defaults && !isnan(info->default_repetition_penalty) ? info->default_repetition_penalty : 1;
	int64_t top_k = defaults && info->default_top_k > 0 && info->default_top_k <= INT32_MAX ? info->default_top_k : 0;
	if (!isnan(s->top_p)) top_p = s->top_p;
	return (struct tandem_sampling){
		.temperature = isnan(s->temperature) ? temperature : s->temperature,
		.top_p = fmax(top_p, TANDEM_TOP_P_LEAST),
		.min_p = isnan(s->min_p) ? 0 : s->min_p,
		.repetition_penalty = isnan(s->repetition_penalty) ? penalty : s->repetition_penalty,
		.top_k = s->top_k < 0 ? (int)top_k : s->top_k,
		.seed = s->seed.value,
	};
}

static enum status emit(struct run *run, struct error *err)
{
	TRY(buf_append(&run->text, run->piece.data, run->piece.size, err));
	if (!run->settings->json && run->piece.size) TRY(output_write(run->piece.data, run->piece.size, err));
	buf_clear(&run->piece);
	return STATUS_OK;
}

static bool is_eos(const struct tandem_info *info, int32_t token)
{
	for (int i = 0; i < info->eos_count; i++)
		if (info->eos[i] == token) return true;
	return false;
}

static enum status on_event(void *context, const struct tandem_event *event, struct error *err)
{
	struct run *run = context;
	run->finish = event->finish;
	if (event->token < 0) return STATUS_OK;
	run->last_ns = clock_ns();
	if (!run->first_ns) run->first_ns = run->last_ns;
	TRY(token_list_push(&run->tokens, event->token, err));
	/* The token that ended the text is not part of it, special or not. */
	if (!run->detokenizer || (event->finish == TANDEM_STOP && is_eos(&run->session.info, event->token))) return STATUS_OK;
	TRY(detokenizer_push(run->detokenizer, event->token, &run->piece, err));
	return emit(run, err);
}

static enum status generate(struct run *run, struct error *err)
{
	struct tandem_request request = {
		.prompt = run->prompt.ids,
		.prompt_count = (int)run->prompt.count,
		.max_tokens = run->settings->max_tokens,
		.ignore_eos = run->settings->ignore_eos,
		.sampling = run->sampling,
	};
	run->start_ns = clock_ns();
	enum status st = session_generate(&run->session, &request, on_event, run, err);
	if (st == STATUS_CANCELLED || signals_caught()) run->finish = TANDEM_CANCELLED;
	if (st != STATUS_OK && st != STATUS_CANCELLED) return st;
	tandem_get_info(run->session.engine, &run->session.info);
	if (run->detokenizer && !output_finish()) {
		TRY(detokenizer_finish(run->detokenizer, &run->piece, err));
		TRY(emit(run, err));
	}
	return st;
}

static const char *finish_name(enum tandem_finish finish)
{
	switch (finish) {
	case TANDEM_STOP: return "stop";
	case TANDEM_LENGTH: return "length";
	case TANDEM_CANCELLED: return "cancelled";
	case TANDEM_TIMEOUT: return "timeout";
	case TANDEM_RUNNING:
	case TANDEM_FAILED: break;
	}
	return "error";
}

static double ttft_ms(const struct run *run)
{
	return run->first_ns ? (double)(run->first_ns - run->start_ns) / 1e6 : 0;
}

/* Mean over the tokens after the first. */
static double tpot_ms(const struct run *run)
{
	return run->tokens.count > 1 ? (double)(run->last_ns - run->first_ns) / 1e6 / (double)(run->tokens.count - 1) : 0;
}

static json_t *id_array(const struct token_list *list)
{
	json_t *array = json_array();
	for (size_t i = 0; i < list->count; i++) json_array_append_new(array, json_integer(list->ids[i]));
	return array;
}

static enum status print_json(struct run *run, struct error *err)
{
	const struct tandem_sampling *p = &run->sampling;
	json_t *text = run->tokenizer ? json_stringn(run->text.data ? run->text.data : "", run->text.size) : json_null();
	json_t *object = json_pack("{s:o,s:o,s:o,s:o,s:s,s:i,s:i,s:f,s:f,s:f}", "model", json_path(run->settings->model), "prompt_tokens",
	                           id_array(&run->prompt), "tokens", id_array(&run->tokens), "text", text, "finish_reason",
	                           finish_name(run->finish), "prompt_count", (int)run->prompt.count, "count", (int)run->tokens.count, "ttft_ms",
	                           ttft_ms(run), "tpot_ms", tpot_ms(run), "tokens_per_s", per_second(1, tpot_ms(run)));
	json_t *sampling = json_pack("{s:f,s:i,s:f,s:f,s:f,s:I}", "temperature", p->temperature, "top_k", p->top_k, "top_p", p->top_p, "min_p",
	                             p->min_p, "repeat_penalty", p->repetition_penalty, "seed", (json_int_t)p->seed);
	if (object) json_object_set_new(object, "sampling", sampling);
	else json_decref(sampling);
	return session_output(&run->session, object, err);
}

static enum status print_dispatch(const struct run *run, struct error *err)
{
	struct buf out = {0};
	enum status st = explain_text(&run->session, false, &out, err);
	if (st == STATUS_OK) fputs(out.data, stderr);
	buf_fini(&out);
	return st;
}

static enum status print_summary(const struct run *run, struct error *err)
{
	const struct tandem_info *info = &run->session.info;
	char a[24], b[24], c[24], d[24], e[24], f[24], g[24];
	fprintf(stderr, "\n%zu prompt tokens, %zu generated (%s); TTFT %.1f ms, TPOT %.2f ms, %.1f tok/s; loaded in %.0f ms\n", run->prompt.count,
	        run->tokens.count, finish_name(run->finish), ttft_ms(run), tpot_ms(run), per_second(1, tpot_ms(run)), info->load_ms);
	fprintf(stderr, "%s (%s), %d rank%s, %d thread%s, lm-head %s, %d collectives a step\n", info->device, info->isa, info->world_size,
	        info->world_size == 1 ? "" : "s", info->threads, info->threads == 1 ? "" : "s", info->lm_head, info->collectives_per_step);
	for (int r = 0; r < info->world_size; r++) {
		struct tandem_rank_bytes n;
		tandem_get_rank_bytes(run->session.engine, r, &n);
		fprintf(stderr, "rank %d: sharded %s, replicated %s, kv %s, state %s, scratch %s, workspace %s, peak %s\n", r,
		        format_bytes((double)n.sharded, a), format_bytes((double)n.replicated, b), format_bytes((double)n.kv, c),
		        format_bytes((double)n.state, g), format_bytes((double)n.scratch, d), format_bytes((double)n.workspace, e), format_bytes((double)n.peak, f));
	}
	return run->session.explain ? print_dispatch(run, err) : STATUS_OK;
}

static enum status run_all(struct run *run, struct error *err)
{
	TRY(check_sources(run->settings, err));
	console_init(&run->session.console, run->settings->verbose);
	TRY(model_tokenizer(&run->tokenizer, run->settings->model, &run->session.console, err));
	TRY(need_tokenizer(run, err));
	TRY(read_prompt(run, err));
	if (!run->prompt.count) return FAIL(err, BAD_INPUT, "prompt: has no token; give some text or token ids");
	TRY(session_open(&run->session, run->settings, &(struct session_needs){0}, err));
	run->sampling = choose_sampling(run->settings, &run->session.info);
	if (run->tokenizer) TRY(detokenizer_create(&run->detokenizer, run->tokenizer, true, err));
	if (run->detokenizer) TRY(detokenizer_follow(run->detokenizer, run->prompt.ids, run->prompt.count, err));
	enum status st = generate(run, err);
	if ((st != STATUS_OK && st != STATUS_CANCELLED) || output_finish()) return st;
	if (run->settings->json) TRY(print_json(run, err));
	else TRY(print_summary(run, err));
	return run->finish == TANDEM_CANCELLED ? STATUS_CANCELLED : st;
}

enum status cmd_run(const struct settings *settings, struct error *err)
{
	struct run run = {.settings = settings};
	enum status st = run_all(&run, err);
	session_close(&run.session);
	detokenizer_destroy(&run.detokenizer);
	tokenizer_destroy(&run.tokenizer);
	token_list_fini(&run.prompt);
	token_list_fini(&run.tokens);
	buf_fini(&run.text);
	buf_fini(&run.piece);
	return st;
}
