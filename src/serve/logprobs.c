#include "serve/logprobs.h"

#include <string.h>

#include "text/utf8.h"

void logprobs_fini(struct logprobs *l)
{
	out_fini(&l->tokens);
	out_fini(&l->values);
	out_fini(&l->tops);
	out_fini(&l->offsets);
	l->count = 0;
}

static bool failed(const struct logprobs *l)
{
	return l->tokens.failed || l->values.failed || l->tops.failed || l->offsets.failed;
}

static bool bytes_of(const struct logprob_style *style, int32_t id, struct buf *bytes)
{
	buf_clear(bytes);
	return style->detokenizer && detokenizer_bytes(style->detokenizer, id, bytes, NULL) == STATUS_OK && bytes->data;
}

/* The token as a JSON string. */
static void put_token(struct out *out, const struct logprob_style *style, int32_t id, const struct buf *bytes, bool known)
{
	if (style->tokens_as_ids || !known) {
		out_printf(out, "\"token_id:%d\"", id);
	} else if (style->endpoint == ENDPOINT_CHAT || utf8_valid_prefix(bytes->data, bytes->size) == bytes->size) {
		out_string(out, bytes->data, bytes->size);
	} else {
		out_puts(out, "\"bytes:");
		for (size_t i = 0; i < bytes->size; i++) out_printf(out, "\\\\x%02x", (unsigned char)bytes->data[i]);
		out_puts(out, "\"");
	}
}

static void put_bytes(struct out *out, const struct buf *bytes, bool known)
{
	if (!known) {
		out_puts(out, "null");
		return;
	}
	out_puts(out, "[");
	for (size_t i = 0; i < bytes->size; i++) out_printf(out, i ? ",%u" : "%u", (unsigned char)bytes->data[i]);
	out_puts(out, "]");
}

static void put_chat_token(struct out *out, const struct logprob_style *style, int32_t id, float logprob)
{
	struct buf bytes = {0};
	bool known = bytes_of(style, id, &bytes);
	out_puts(out, "{\"token\":");
	put_token(out, style, id, &bytes, known);
	out_puts(out, ",\"logprob\":");
	out_logprob(out, logprob);
	out_puts(out, ",\"bytes\":");
	put_bytes(out, &bytes, known);
	buf_fini(&bytes);
}

static void add_chat(struct logprobs *l, const struct logprob_style *style, const struct logprob_entry *e)
{
	struct out *out = &l->tokens;
	if (l->count) out_puts(out, ",");
	put_chat_token(out, style, e->token, e->scored ? e->logprob : 0);
	out_puts(out, ",\"top_logprobs\":[");
	for (int i = 0; i < e->alternatives && i < style->top; i++) {
		if (i) out_puts(out, ",");
		put_chat_token(out, style, e->alternative_id[i], e->alternative_logprob[i]);
		out_puts(out, "}");
	}
	out_puts(out, "]}");
}

/* Whether the object, written so far without its braces, has the key (quotes and colon included). Keys begin at the start and behind a comma outside
 * of quotes; a token such as "," or "\":" may spell the like within a key. */
static bool has_key(const char *object, size_t n, const struct buf *key)
{
	bool quoted = false, begins = true;
	for (size_t i = 0; i < n; i++) {
		if (begins && n - i >= key->size && !memcmp(object + i, key->data, key->size)) return true;
		begins = !quoted && object[i] == ',';
		if (quoted && object[i] == '\\') i++;
		else if (object[i] == '"') quoted = !quoted;
	}
	return false;
}

/* One more key of an object, unless its text is a key already: two ids may spell the same. `keys` holds the object so far. */
static void put_key(struct out *keys, size_t start, const struct logprob_style *style, int32_t id, float logprob)
{
	struct buf bytes = {0};
	struct out key = {0};
	bool known = bytes_of(style, id, &bytes);
	put_token(&key, style, id, &bytes, known);
	out_puts(&key, ":");
	if (key.failed || !key.buf.data) keys->failed = true;
	else if (keys->buf.size == start || !has_key(keys->buf.data + start, keys->buf.size - start, &key.buf)) {
		if (keys->buf.size > start) out_puts(keys, ",");
		out_bytes(keys, key.buf.data, key.buf.size);
		out_logprob(keys, logprob);
	}
	out_fini(&key);
	buf_fini(&bytes);
}

static void add_completion(struct logprobs *l, const struct logprob_style *style, const struct logprob_entry *e)
{
	struct buf bytes = {0};
	const char *comma = l->count ? "," : "";
	out_puts(&l->tokens, comma);
	put_token(&l->tokens, style, e->token, &bytes, bytes_of(style, e->token, &bytes));
	buf_fini(&bytes);
	out_puts(&l->values, comma);
	out_puts(&l->tops, comma);
	out_printf(&l->offsets, "%s%lld", comma, (long long)e->offset);
	if (!e->scored) {
		out_puts(&l->values, "null");
		out_puts(&l->tops, "null");
		return;
	}
	out_logprob(&l->values, e->logprob);
	out_puts(&l->tops, "{");
	size_t start = l->tops.buf.size;
	bool listed = false;
	for (int i = 0; i < e->alternatives && i < style->top; i++) {
		put_key(&l->tops, start, style, e->alternative_id[i], e->alternative_logprob[i]);
		listed |= e->alternative_id[i] == e->token;
	}
	if (!listed) put_key(&l->tops, start, style, e->token, e->logprob);
	out_puts(&l->tops, "}");
}

void logprobs_add(struct logprobs *l, const struct logprob_style *style, const struct logprob_entry *entry)
{
	if (style->endpoint == ENDPOINT_CHAT) add_chat(l, style, entry);
	else add_completion(l, style, entry);
	l->count++;
}

static void put_prompt_token(struct out *out, const struct logprob_style *style, int32_t id, float logprob, int rank)
{
	struct buf bytes = {0};
	bool known = bytes_of(style, id, &bytes);
	out_printf(out, "\"%d\":{\"logprob\":", id);
	out_logprob(out, logprob);
	if (rank) out_printf(out, ",\"rank\":%d", rank);
	else out_puts(out, ",\"rank\":null");
	out_puts(out, ",\"decoded_token\":");
	if (known) out_string(out, bytes.data, bytes.size);
	else out_puts(out, "null");
	out_puts(out, "}");
	buf_fini(&bytes);
}

void logprobs_put_prompt(struct out *out, const struct logprob_style *style, const struct logprob_entry *e)
{
	bool listed = false;
	if (!e->scored) {
		out_puts(out, "null");
		return;
	}
	out_puts(out, "{");
	for (int i = 0; i < e->alternatives && i < style->top; i++) {
		if (i) out_puts(out, ",");
		put_prompt_token(out, style, e->alternative_id[i], e->alternative_logprob[i], i + 1);
		listed |= e->alternative_id[i] == e->token;
	}
	if (!listed && e->alternatives && style->top) out_puts(out, ",");
	if (!listed) put_prompt_token(out, style, e->token, e->logprob, 0);
	out_puts(out, "}");
}

static void put_inside(struct out *out, const char *before, struct out *inside)
{
	out_puts(out, before);
	out_bytes(out, inside->buf.data, inside->buf.size);
	out_clear(inside);
}

void logprobs_take(struct logprobs *l, enum endpoint endpoint, struct out *out)
{
	if (!l->count) {
		out_puts(out, "null");
		return;
	}
	if (failed(l)) out->failed = true;
	l->count = 0;
	if (endpoint == ENDPOINT_CHAT) {
		put_inside(out, "{\"content\":[", &l->tokens);
		out_puts(out, "],\"refusal\":null}");
		return;
	}
	put_inside(out, "{\"tokens\":[", &l->tokens);
	put_inside(out, "],\"token_logprobs\":[", &l->values);
	put_inside(out, "],\"top_logprobs\":[", &l->tops);
	put_inside(out, "],\"text_offset\":[", &l->offsets);
	out_puts(out, "]}");
}
