#include "serve/answer.h"

#include <string.h>

static bool is_chat(const struct answer *a)
{
	return a->request->endpoint == ENDPOINT_CHAT;
}

static void put_head(struct out *out, const char *object, const char *prefix, const char *id, int64_t created, const struct facts *facts)
{
	out_printf(out, "{\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", prefix, id, object, (long long)created);
	out_text(out, facts->names[0]);
	out_printf(out, ",\"system_fingerprint\":\"tandem-%s-tp%d\",\"choices\":[", TANDEM_VERSION, facts->info.world_size);
}

bool answer_init(struct answer *a, enum endpoint endpoint, const char *id, int64_t created, const struct facts *facts, const struct request *request)
{
	bool chat = endpoint == ENDPOINT_CHAT;
	const char *prefix = chat ? "chatcmpl-" : "cmpl-";
	*a = (struct answer){.request = request};
	out_puts(&a->chunk_head, "data: ");
	put_head(&a->chunk_head, chat ? "chat.completion.chunk" : "text_completion", prefix, id, created, facts);
	put_head(&a->body_head, chat ? "chat.completion" : "text_completion", prefix, id, created, facts);
	return !a->chunk_head.failed && !a->body_head.failed;
}

void answer_fini(struct answer *a)
{
	out_fini(&a->chunk_head);
	out_fini(&a->body_head);
}

/* ---- parts ---- */

static void put_usage(struct out *out, const struct completion_times *t)
{
	out_printf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}", t->prompt_tokens,
	           t->completion_tokens, t->prompt_tokens + t->completion_tokens, t->cached_tokens);
}

static void put_ids(struct out *out, const char *key, const int32_t *ids, size_t count)
{
	out_printf(out, ",\"%s\":[", key);
	for (size_t i = 0; i < count; i++) out_printf(out, i ? ",%d" : "%d", ids[i]);
	out_puts(out, "]");
}

static void put_finish(struct out *out, const struct choice *choice, const struct request *q)
{
	out_puts(out, ",\"finish_reason\":");
	out_text(out, choice->finish);
	out_puts(out, ",\"stop_reason\":");
	if (choice->finish && choice->stop >= 0) out_string(out, q->stops.items[choice->stop].text, q->stops.items[choice->stop].size);
	else if (choice->finish && choice->stop_id >= 0) out_int(out, choice->stop_id);
	else out_puts(out, "null");
}

/* Not in streams. */
static void put_prompt_logprobs(struct out *out, struct choice *choice, const struct request *q)
{
	if (q->prompt_logprobs < 0) return;
	out_puts(out, ",\"prompt_logprobs\":[");
	out_bytes(out, choice->prompt_logprobs.buf.data, choice->prompt_logprobs.buf.size);
	out_puts(out, "]");
	if (choice->prompt_logprobs.failed) out->failed = true;
}

static void put_text(struct out *out, struct choice *choice)
{
	out_string(out, choice->fresh.data ? choice->fresh.data : "", choice->fresh.size);
	buf_clear(&choice->fresh);
}

/* Ids that were not put out yet, where they are wanted; with the first, those of the prompt. */
static void put_token_ids(struct answer *a, struct out *out, struct choice *choice, bool first)
{
	if (!a->request->return_token_ids) return;
	if (first) put_ids(out, "prompt_token_ids", choice->prompt->ids.ids, choice->prompt->ids.count);
	put_ids(out, "token_ids", choice->ids.ids, choice->ids.count);
	choice->ids.count = 0;
}

/* ---- streams ---- */

static void chunk_begin(struct answer *a, struct out *out, const struct choice *choice)
{
	out_bytes(out, a->chunk_head.buf.data, a->chunk_head.buf.size);
	out_printf(out, "{\"index\":%d,", choice->index);
}

static void chunk_end(struct answer *a, struct out *out, const struct completion_times *times)
{
	out_puts(out, "}]");
	if (a->request->continuous_usage) {
		out_puts(out, ",\"usage\":");
		put_usage(out, times);
	} else if (a->request->include_usage) {
		out_puts(out, ",\"usage\":null");
	}
	out_puts(out, "}\n\n");
}

static void completion_chunk(struct answer *a, struct out *out, struct choice *choice, const struct completion_times *times)
{
	bool first = !choice->role_sent;
	/* Ids that were asked for do not wait for text: without a tokenizer there is none. */
	if (!choice->fresh.size && !choice->ids.count && !choice->finish) return;
	choice->role_sent = true;
	chunk_begin(a, out, choice);
	out_puts(out, "\"text\":");
	put_text(out, choice);
	out_puts(out, ",\"logprobs\":");
	logprobs_take(&choice->logprobs, ENDPOINT_COMPLETIONS, out);
	put_finish(out, choice, a->request);
	put_token_ids(a, out, choice, first);
	chunk_end(a, out, times);
}

static void role_chunk(struct answer *a, struct out *out, struct choice *choice, const struct completion_times *times)
{
	choice->role_sent = true;
	chunk_begin(a, out, choice);
	out_puts(out, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null");
	if (a->request->return_token_ids) put_ids(out, "prompt_token_ids", choice->prompt->ids.ids, choice->prompt->ids.count);
	chunk_end(a, out, times);
}

static void chat_chunk(struct answer *a, struct out *out, struct choice *choice, const struct completion_times *times)
{
	if (!choice->role_sent) role_chunk(a, out, choice, times);
	if (choice->fresh.size) {
		chunk_begin(a, out, choice);
		out_puts(out, "\"delta\":{\"content\":");
		put_text(out, choice);
		out_puts(out, "},\"logprobs\":");
		logprobs_take(&choice->logprobs, ENDPOINT_CHAT, out);
		out_puts(out, ",\"finish_reason\":null");
		put_token_ids(a, out, choice, false);
		chunk_end(a, out, times);
	}
	if (!choice->finish) return;
	chunk_begin(a, out, choice);
	out_puts(out, "\"delta\":{},\"logprobs\":");
	logprobs_take(&choice->logprobs, ENDPOINT_CHAT, out); /* of tokens without text, such as the end of text */
	put_finish(out, choice, a->request);
	if (choice->ids.count) put_token_ids(a, out, choice, false);
	chunk_end(a, out, times);
}

void answer_chunk(struct answer *a, struct out *out, struct choice *choice, const struct completion_times *times)
{
	if (is_chat(a)) chat_chunk(a, out, choice, times);
	else completion_chunk(a, out, choice, times);
}

void answer_end(struct answer *a, struct out *out, const struct completion_times *times)
{
	if (a->request->include_usage) {
		out_bytes(out, a->chunk_head.buf.data, a->chunk_head.buf.size);
		out_puts(out, "],\"usage\":");
		put_usage(out, times);
		out_puts(out, "}\n\n");
	}
	out_puts(out, "data: [DONE]\n\n");
}

void answer_error(struct out *out, const struct refusal *why)
{
	out_puts(out, "data: ");
	refusal_write(why, out);
	out_puts(out, "\n\ndata: [DONE]\n\n");
}

/* ---- bodies ---- */

static void body_choice(struct answer *a, struct out *out, struct choice *choice)
{
	out_printf(out, "{\"index\":%d,", choice->index);
	if (is_chat(a)) {
		out_puts(out, "\"message\":{\"role\":\"assistant\",\"content\":");
		put_text(out, choice);
		out_puts(out, ",\"refusal\":null}");
	} else {
		out_puts(out, "\"text\":");
		put_text(out, choice);
	}
	out_puts(out, ",\"logprobs\":");
	logprobs_take(&choice->logprobs, a->request->endpoint, out);
	put_finish(out, choice, a->request);
	put_token_ids(a, out, choice, true);
	put_prompt_logprobs(out, choice, a->request);
	out_puts(out, "}");
}

void answer_body(struct answer *a, struct out *out, struct choice *choices, int count, const struct completion_times *times)
{
	out_bytes(out, a->body_head.buf.data, a->body_head.buf.size);
	for (int i = 0; i < count; i++) {
		if (i) out_puts(out, ",");
		body_choice(a, out, &choices[i]);
	}
	out_puts(out, "],\"usage\":");
	put_usage(out, times);
	out_puts(out, "}");
}
