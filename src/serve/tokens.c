/* /tokenize and /detokenize, in a worker: a body in, a reply or a refusal out. */
#include "serve/chat.h"
#include "serve/server_impl.h"

static void put_ids(struct out *out, const struct token_list *ids)
{
	out_puts(out, "[");
	for (size_t i = 0; i < ids->count; i++) out_printf(out, i ? ",%d" : "%d", ids->ids[i]);
	out_puts(out, "]");
}

static void put_pieces(struct out *out, const struct tokenizer *tokenizer, const struct token_list *ids)
{
	out_puts(out, "[");
	for (size_t i = 0; i < ids->count; i++) {
		if (i) out_puts(out, ",");
		out_text(out, tokenizer_text(tokenizer, ids->ids[i]));
	}
	out_puts(out, "]");
}

static void finish(struct exchange *x, struct out *out)
{
	if (out->failed) {
		out_fini(out);
		(void)refuse_memory(&x->refusal);
		return;
	}
	x->reply.status = 200;
	x->reply.content_type = "application/json";
	x->reply.body = out->buf;
}

static enum status from_text(struct token_list *ids, const json_t *body, const struct facts *facts, struct refusal *r)
{
	const json_t *prompt = body_get(body, "prompt");
	const char *name = prompt ? "prompt" : "content";
	bool special = prompt != NULL; /* vLLM's form adds them unless told not to, llama-server's does not */
	struct error err = {0};
	if (!prompt) prompt = body_get(body, "content");
	if (!prompt) return refuse(r, 400, "prompt", "prompt is missing; give text, or messages");
	if (!json_is_string(prompt)) return refuse(r, 400, name, "%s must be a string, not %s", name, body_type_name(prompt));
	TRY(body_bool(body, "add_special_tokens", &special, r));
	TRY(body_bool(body, "add_special", &special, r));
	enum status st = tokenizer_encode(facts->tokenizer, json_string_value(prompt), json_string_length(prompt), special, ids, &err);
	return st == STATUS_OK ? st : refuse_error(r, name, st, &err);
}

static enum status from_messages(struct token_list *ids, const json_t *body, const struct facts *facts, struct refusal *r)
{
	struct request q = {.endpoint = ENDPOINT_CHAT, .add_generation_prompt = true};
	TRY(body_bool(body, "add_special_tokens", &q.add_special, r));
	TRY(body_bool(body, "continue_final_message", &q.continue_final, r));
	q.add_generation_prompt = !q.continue_final;
	TRY(body_bool(body, "add_generation_prompt", &q.add_generation_prompt, r));
	if (q.continue_final && q.add_generation_prompt)
		return refuse(r, 400, "continue_final_message", "continue_final_message and add_generation_prompt exclude each other; set one to false");
	if (body_get(body, "tools")) return refuse(r, 501, "tools", "tools are not supported by this server; leave tools out");
	return chat_tokens(ids, body, &q, facts, r);
}

static enum status tokenize(struct exchange *x, const json_t *body, struct refusal *r)
{
	const struct facts *facts = x->server->facts;
	struct token_list ids = {0};
	struct out out = {0};
	bool pieces = false;
	TRY(request_model(body, facts, r));
	if (!facts->tokenizer) return refuse(r, 400, NULL, "this model has no tokenizer");
	TRY(body_bool(body, "return_token_strs", &pieces, r));
	enum status st = body_get(body, "messages") ? from_messages(&ids, body, facts, r) : from_text(&ids, body, facts, r);
	if (st == STATUS_OK) {
		out_printf(&out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids.count, facts->info.context);
		put_ids(&out, &ids);
		out_puts(&out, ",\"token_strs\":");
		if (pieces) put_pieces(&out, facts->tokenizer, &ids);
		else out_puts(&out, "null");
		out_puts(&out, "}");
		finish(x, &out);
	}
	token_list_fini(&ids);
	return st;
}

static enum status detokenize(struct exchange *x, const json_t *body, struct refusal *r)
{
	const struct facts *facts = x->server->facts;
	const json_t *tokens = body_get(body, "tokens");
	struct token_list ids = {0};
	struct buf text = {0};
	struct out out = {0};
	struct error err = {0};
	TRY(request_model(body, facts, r));
	if (!facts->tokenizer) return refuse(r, 400, NULL, "this model has no tokenizer");
	if (!json_is_array(tokens)) return refuse(r, 400, "tokens", "tokens must be an array of token ids, not %s", tokens ? body_type_name(tokens) : "missing");
	enum status st = prompt_ids(tokens, "tokens", facts->info.vocab_size, &ids, r);
	if (st == STATUS_OK) {
		st = tokenizer_decode(facts->tokenizer, ids.ids, ids.count, false, &text, &err);
		if (st != STATUS_OK) st = refuse_error(r, "tokens", st, &err);
	}
	if (st == STATUS_OK) {
		const char *bytes = text.data ? text.data : "";
		out_puts(&out, "{\"prompt\":");
		out_string(&out, bytes, text.size);
		out_puts(&out, ",\"content\":");
		out_string(&out, bytes, text.size);
		out_puts(&out, "}");
		finish(x, &out);
	}
	token_list_fini(&ids);
	buf_fini(&text);
	return st;
}

static void run(struct exchange *x, enum status (*what)(struct exchange *x, const json_t *body, struct refusal *r))
{
	json_t *body;
	if (body_parse(&body, x->body.data ? x->body.data : "", x->body.size, &x->refusal) != STATUS_OK) return;
	(void)(what(x, body, &x->refusal)); /* a refusal is an answer */
	json_decref(body);
}

void tokens_tokenize(struct exchange *x)
{
	run(x, tokenize);
}

void tokens_detokenize(struct exchange *x)
{
	run(x, detokenize);
}
