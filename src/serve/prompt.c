#include "serve/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "serve/chat.h"

void prompts_fini(struct prompts *prompts)
{
	for (int i = 0; i < prompts->count; i++) {
		token_list_fini(&prompts->items[i].ids);
		buf_fini(&prompts->items[i].text);
	}
	free(prompts->items);
	*prompts = (struct prompts){0};
}

/* An array of arrays or of strings holds several prompts; an array of numbers is one. */
static bool is_list(const json_t *value)
{
	const json_t *first = json_array_get(value, 0);
	return json_is_array(value) && (json_is_string(first) || json_is_array(first));
}

enum status prompt_count(const json_t *body, enum endpoint endpoint, int *count, struct refusal *r)
{
	*count = 1;
	if (endpoint == ENDPOINT_CHAT) return STATUS_OK;
	const json_t *value = body_get(body, "prompt");
	if (!value) return refuse(r, 400, "prompt", "prompt is missing; give text or token ids");
	if (!json_is_string(value) && !json_is_array(value))
		return refuse(r, 400, "prompt", "prompt must be a string, an array of strings, or an array of token ids, not %s", body_type_name(value));
	if (json_is_array(value) && !json_array_size(value)) return refuse(r, 400, "prompt", "prompt is empty; give text or token ids");
	if (!is_list(value)) return STATUS_OK;
	if (json_array_size(value) > REQUEST_MAX_PROMPTS)
		return refuse(r, 400, "prompt", "prompt holds %zu prompts; at most %d are taken", json_array_size(value), REQUEST_MAX_PROMPTS);
	const json_t *first = json_array_get(value, 0), *item;
	size_t i;
	json_array_foreach((json_t *)value, i, item)
		if (json_typeof(item) != json_typeof(first)) return refuse(r, 400, "prompt", "prompt mixes kinds: all its prompts must be strings, or all arrays of token ids");
	*count = (int)json_array_size(value);
	return STATUS_OK;
}

enum status prompt_ids(const json_t *array, const char *name, int vocab_size, struct token_list *out, struct refusal *r)
{
	const json_t *item;
	size_t i;
	if (token_list_reserve(out, json_array_size(array), NULL) != STATUS_OK) return refuse_memory(r);
	json_array_foreach((json_t *)array, i, item) {
		int64_t id;
		TRY(body_whole(item, name, 0, vocab_size - 1, &id, r));
		out->ids[out->count++] = (int32_t)id;
	}
	return STATUS_OK;
}

static enum status read_text(struct prompt *p, const json_t *value, const struct request *q, const struct facts *facts, struct refusal *r)
{
	struct error err = {0};
	size_t n = json_string_length(value);
	if (!n) return refuse(r, 400, "prompt", "prompt is an empty string; give some text");
	if (!facts->tokenizer) return refuse(r, 400, "prompt", "this model has no tokenizer; give the prompt as token ids");
	if (q->echo && buf_append(&p->text, json_string_value(value), n, NULL) != STATUS_OK) return refuse_memory(r);
	enum status st = tokenizer_encode(facts->tokenizer, json_string_value(value), n, q->add_special, &p->ids, &err);
	return st == STATUS_OK ? st : refuse_error(r, "prompt", st, &err);
}

static enum status read_one(struct prompt *p, const json_t *value, const struct request *q, const struct facts *facts, struct refusal *r)
{
	if (json_is_string(value)) TRY(read_text(p, value, q, facts, r));
	else if (json_is_array(value)) TRY(prompt_ids(value, "prompt", facts->info.vocab_size, &p->ids, r));
	else return refuse(r, 400, "prompt", "a prompt must be a string or an array of token ids, not %s", body_type_name(value));
	if (!p->ids.count) return refuse(r, 400, "prompt", "prompt has no token; give some text or token ids");
	if (json_is_string(value) || !q->echo || !facts->tokenizer) return STATUS_OK;
	struct error err = {0};
	enum status st = tokenizer_decode(facts->tokenizer, p->ids.ids, p->ids.count, false, &p->text, &err);
	return st == STATUS_OK ? st : refuse_error(r, "prompt", st, &err);
}

/* Of prompt and answer together. */
static int64_t most_tokens(const struct request *q, const struct facts *facts)
{
	int64_t context = facts->info.context, readable = (int64_t)facts->info.kv_tokens + (q->max_tokens != 0); /* the last is sampled but never read */
	return context < readable ? context : readable;
}

/* The tokens of the prompt that stay. To fit, it leaves room for max_tokens if that is possible at all, else for one. */
static size_t kept_tokens(const struct request *q, const struct facts *facts)
{
	if (!q->truncate_prompt) return SIZE_MAX;
	if (q->truncate_prompt > 0) return (size_t)q->truncate_prompt;
	int64_t most = most_tokens(q, facts), answer = q->max_tokens < 0 || q->max_tokens >= most ? 1 : q->max_tokens;
	int64_t kept = most - (answer > q->min_tokens ? answer : q->min_tokens);
	return kept > 0 ? (size_t)kept : 1;
}

static void truncate(struct prompt *p, size_t most)
{
	if (p->ids.count <= most) return;
	memmove(p->ids.ids, p->ids.ids + (p->ids.count - most), most * sizeof *p->ids.ids);
	p->ids.count = most;
}

static enum status read_all(struct prompts *out, const json_t *body, const struct request *q, const struct facts *facts, struct refusal *r)
{
	const json_t *value = body_get(body, "prompt");
	for (int i = 0; i < out->count; i++) {
		struct prompt *p = &out->items[i];
		if (q->endpoint == ENDPOINT_CHAT) TRY(chat_tokens(&p->ids, body, q, facts, r));
		else TRY(read_one(p, is_list(value) ? json_array_get(value, (size_t)i) : value, q, facts, r));
		truncate(p, kept_tokens(q, facts));
	}
	return STATUS_OK;
}

enum status prompts_read(struct prompts *out, int count, const json_t *body, const struct request *request, const struct facts *facts,
                         struct refusal *r)
{
	*out = (struct prompts){.items = mem_zalloc((size_t)count, sizeof *out->items, "prompts", NULL), .count = count};
	if (!out->items) {
		out->count = 0;
		return refuse_memory(r);
	}
	enum status st = read_all(out, body, request, facts, r);
	if (st != STATUS_OK) prompts_fini(out);
	return st;
}

enum status prompt_room(const struct request *request, size_t prompt, const struct facts *facts, int *max_tokens, struct refusal *r)
{
	int64_t used = (int64_t)prompt, context = facts->info.context, kv = facts->info.kv_tokens;
	bool scores_only = request->max_tokens == 0;
	int64_t room = most_tokens(request, facts) - used;
	if (room < (scores_only ? 0 : 1)) {
		(void)refuse(r, 400, request->endpoint == ENDPOINT_CHAT ? "messages" : "prompt",
		             "the prompt has %lld tokens; the context of this server has room for %lld, prompt and answer together", (long long)used,
		             (long long)(context < kv ? context : kv));
		r->type = "context_length_exceeded";
		return STATUS_BAD_INPUT;
	}
	*max_tokens = request->max_tokens < 0 || request->max_tokens > room ? (int)room : (int)request->max_tokens;
	if (request->min_tokens > *max_tokens)
		return refuse(r, 400, "min_tokens", "min_tokens is %d; after this prompt there is room for %d tokens", request->min_tokens, *max_tokens);
	return STATUS_OK;
}
