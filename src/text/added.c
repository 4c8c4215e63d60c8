#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/json_field.h"
#include "text/unicode.h"
#include "text/utf8.h"

/* ---- trie ---- */

static enum status new_node(struct trie *trie, char byte, uint32_t *index, struct error *err)
{
	if (trie->count == trie->capacity) {
		uint32_t capacity = trie->capacity ? trie->capacity * 2 : 256;
		TRY(mem_grow((void **)&trie->nodes, capacity, sizeof *trie->nodes, "added tokens", err));
		trie->capacity = capacity;
	}
	if (trie->count == 0) trie->nodes[trie->count++] = (struct trie_node){.token = -1}; /* 0 means "none" */
	if (trie->count == trie->capacity) return new_node(trie, byte, index, err);
	*index = trie->count++;
	trie->nodes[*index] = (struct trie_node){.byte = byte, .token = -1};
	return STATUS_OK;
}

static uint32_t child_of(const struct trie *trie, uint32_t node, char byte)
{
	uint32_t i = trie->nodes[node].child;
	while (i && trie->nodes[i].byte != byte) i = trie->nodes[i].sibling;
	return i;
}

static enum status trie_add(struct trie *trie, const char *text, size_t n, int32_t token, struct error *err)
{
	uint32_t node = trie->first[(uint8_t)text[0]], next;
	if (!node) {
		TRY(new_node(trie, text[0], &node, err));
		trie->first[(uint8_t)text[0]] = node;
	}
	for (size_t i = 1; i < n; i++, node = next) {
		next = child_of(trie, node, text[i]);
		if (next) continue;
		TRY(new_node(trie, text[i], &next, err));
		trie->nodes[next].sibling = trie->nodes[node].child;
		trie->nodes[node].child = next;
	}
	if (trie->nodes[node].token < 0) trie->nodes[node].token = token; /* of two equal texts the first counts */
	return STATUS_OK;
}

/* The longest token that starts at text[0]; -1 if there is none. */
static int32_t trie_longest(const struct trie *trie, const char *text, size_t n, size_t *length)
{
	int32_t best = -1;
	uint32_t node = trie->first[(uint8_t)text[0]];
	for (size_t i = 0; node; node = child_of(trie, node, text[i])) {
		i++;
		if (trie->nodes[node].token >= 0) {
			best = trie->nodes[node].token;
			*length = i;
		}
		if (i == n) break;
	}
	return best;
}

static void trie_fini(struct trie *trie)
{
	free(trie->nodes);
	*trie = (struct trie){0};
}

/* ---- reading ---- */

static enum status parse_token(const json_t *node, struct json_text *content, struct added_token *token, int64_t *id, struct error *err)
{
	static const char where[] = "added token";
	TRY(json_field_text(node, where, "content", content, err));
	TRY(json_field_bool(node, where, "single_word", false, &token->single_word, err));
	TRY(json_field_bool(node, where, "lstrip", false, &token->lstrip, err));
	TRY(json_field_bool(node, where, "rstrip", false, &token->rstrip, err));
	TRY(json_field_bool(node, where, "special", false, &token->special, err));
	TRY(json_field_bool(node, where, "normalized", !token->special, &token->normalized, err));
	const json_t *number = json_field(node, "id");
	*id = json_is_integer(number) ? json_integer_value(number) : -1;
	return STATUS_OK;
}

static enum status add_token(struct added *out, const json_t *node, const struct vocab *model, const struct log *log, struct error *err)
{
	struct json_text content;
	struct added_token token = {0};
	int64_t claimed;
	TRY(parse_token(node, &content, &token, &claimed, err));
	if (content.size == 0) return STATUS_OK; /* as in the reference */
	int32_t id = vocab_find(&out->vocab, content.data, content.size);
	if (id < 0) id = vocab_find(model, content.data, content.size);
	if (id < 0) id = out->vocab.id_end > (int32_t)model->count ? out->vocab.id_end : (int32_t)model->count;
	if (claimed != id)
		log_write(log, LOG_WARN, "tokenizer: added token '%.64s' has id %d, not %lld as the file says", content.data, (int)id,
		          (long long)claimed);
	uint32_t before = out->vocab.count;
	TRY(vocab_add(&out->vocab, content.data, content.size, id, err));
	if (out->vocab.count > before) {
		TRY(mem_grow((void **)&out->tokens, out->vocab.capacity, sizeof *out->tokens, "added tokens", err));
		out->tokens[before] = token;
		return STATUS_OK;
	}
	/* The same text again: the later rules count, but special stays special. */
	struct added_token *old = &out->tokens[out->vocab.by_id[id] - 1];
	token.special = token.special || old->special;
	*old = token;
	return STATUS_OK;
}

static enum status index_token(struct added *out, uint32_t i, const struct normalizer *normalizer, struct pattern_scratch *scratch,
                               struct buf spare[2], struct error *err)
{
	const struct vocab_entry *entry = &out->vocab.entries[i];
	const char *text = out->vocab.texts.data + entry->offset;
	size_t n = entry->length;
	struct added_token *token = &out->tokens[i];
	if (!token->normalized) return trie_add(&out->raw, text, n, (int32_t)i, err);
	TRY(normalizer_run(normalizer, scratch, text, n, true, spare, &text, &n, err));
	if (out->forms.size + n > UINT32_MAX) return FAIL(err, UNSUPPORTED, "added tokens: more than 4 GiB of text");
	token->form = (uint32_t)out->forms.size;
	token->form_length = (uint32_t)n;
	TRY(buf_append(&out->forms, text, n, err));
	out->normal_special = out->normal_special || token->special;
	return n > 0 ? trie_add(&out->normal, text, n, (int32_t)i, err) : STATUS_OK;
}

static enum status index_tokens(struct added *out, const struct normalizer *normalizer, struct error *err)
{
	struct buf spare[2] = {{0}};
	struct pattern_scratch *scratch;
	bool words = false;
	enum status st;
	TRY(pattern_scratch_create(&scratch, err));
	for (int special = 1; special >= 0; special--) { /* of two tokens with one normal form a special one counts */
		for (uint32_t i = 0; i < out->vocab.count; i++) {
			if (out->tokens[i].special != (special != 0)) continue;
			words = words || out->tokens[i].single_word;
			TRY_GOTO(index_token(out, i, normalizer, scratch, spare, err), out);
		}
	}
	st = words ? pattern_regex(&out->word, "[\\w\\u200C\\u200D]", 16, err) : STATUS_OK;
out:
	buf_fini(&spare[0]);
	buf_fini(&spare[1]);
	pattern_scratch_destroy(&scratch);
	return st;
}

enum status added_parse(struct added *out, const struct json_t *node, const struct vocab *model, const struct normalizer *normalizer,
                        const struct log *log, struct error *err)
{
	enum status st = STATUS_OK;
	*out = (struct added){0};
	if (!node) return STATUS_OK;
	if (!json_is_array(node)) return FAIL(err, BAD_INPUT, "\"added_tokens\" is not an array; check the file");
	for (size_t i = 0; i < json_array_size(node); i++) TRY_GOTO(add_token(out, json_array_get(node, i), model, log, err), fail);
	TRY_GOTO(index_tokens(out, normalizer, err), fail);
	return STATUS_OK;
fail:
	added_fini(out);
	return st;
}

void added_fini(struct added *added)
{
	vocab_fini(&added->vocab);
	buf_fini(&added->forms);
	free(added->tokens);
	trie_fini(&added->raw);
	trie_fini(&added->normal);
	pattern_destroy(&added->word);
	*added = (struct added){0};
}

static const struct added_token *token_of(const struct added *added, int32_t id)
{
	if (id < 0 || id >= added->vocab.id_end || added->vocab.by_id[id] == 0) return NULL;
	return &added->tokens[added->vocab.by_id[id] - 1];
}

bool added_is_special(const struct added *added, int32_t id)
{
	const struct added_token *token = token_of(added, id);
	return token && token->special;
}

const char *added_text(const struct added *added, int32_t id, size_t *n)
{
	const struct added_token *token = token_of(added, id);
	if (!token || !token->normalized) return vocab_text(&added->vocab, id, n);
	*n = token->form_length;
	return added->forms.data + token->form;
}

/* ---- finding ---- */

static enum status is_word(const struct added *added, struct pattern_scratch *scratch, const char *character, size_t n, bool *word,
                           struct error *err)
{
	struct pattern_walk walk = {.text = character, .n = n};
	size_t start, end;
	return pattern_next(added->word, scratch, &walk, word, &start, &end, err);
}

static size_t step_back(const char *text, size_t at)
{
	do at--;
	while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80);
	return at;
}

/* Does a word character touch text[start..end)? */
static enum status touches_word(const struct added *added, struct pattern_scratch *scratch, const struct added_walk *walk, size_t start,
                                size_t end, bool *touches, struct error *err)
{
	*touches = false;
	if (start > 0) {
		size_t before = step_back(walk->text, start);
		TRY(is_word(added, scratch, walk->text + before, start - before, touches, err));
	}
	if (!*touches && end < walk->n) TRY(is_word(added, scratch, walk->text + end, utf8_length(walk->text[end]), touches, err));
	return STATUS_OK;
}

static void swallow_space(const struct added_walk *walk, const struct added_token *token, size_t *start, size_t *end)
{
	uint32_t cp;
	while (token->lstrip && *start > walk->done) {
		size_t before = step_back(walk->text, *start);
		utf8_decode(walk->text + before, *start - before, &cp);
		if (!unicode_is_space(cp)) break;
		*start = before;
	}
	while (token->rstrip && *end < walk->n) {
		size_t length = utf8_decode(walk->text + *end, walk->n - *end, &cp);
		if (!unicode_is_space(cp)) break;
		*end += length;
	}
}

/* Does text[start..end) hold a byte of the user's? Ranges that end before `start` are left behind for good. */
static bool is_users(struct added_walk *walk, size_t start, size_t end)
{
	while (walk->user_count > 0 && walk->user->end <= start) walk->user++, walk->user_count--;
	return walk->user_count > 0 && walk->user->start < end;
}

/* The next token from walk->next on; *token is -1 if there is none. */
static enum status find(const struct added *added, struct pattern_scratch *scratch, struct added_walk *walk, int32_t *token, size_t *start,
                        size_t *end, struct error *err)
{
	const struct trie *trie = walk->trie;
	*token = -1;
	while (trie->count > 0 && walk->next < walk->n) {
		size_t at = walk->next, length = 0;
		while (at < walk->n && !trie->first[(uint8_t)walk->text[at]]) at++;
		walk->next = at;
		if (at == walk->n) break;
		int32_t found = trie_longest(trie, walk->text + at, walk->n - at, &length);
		walk->next = at + (found >= 0 ? length : 1);
		if (found < 0) continue;
		if (added->tokens[found].special && is_users(walk, at, at + length)) continue;
		bool touches = false;
		if (added->tokens[found].single_word) TRY(touches_word(added, scratch, walk, at, at + length, &touches, err));
		if (touches) continue;
		size_t from = at, to = at + length;
		swallow_space(walk, &added->tokens[found], &from, &to);
		/* It is space that the token before has swallowed: of one that swallows too nothing remains, any other is found again. */
		if (added->tokens[found].lstrip && to <= walk->done) continue;
		*token = found;
		*start = from;
		*end = to;
		break;
	}
	return STATUS_OK;
}

enum status added_next(const struct added *added, struct pattern_scratch *scratch, struct added_walk *walk, bool *more, int32_t *id,
                       size_t *start, size_t *end, struct error *err)
{
	*more = true;
	if (!walk->pending) {
		int32_t token;
		size_t from = walk->n, to = walk->n;
		TRY(find(added, scratch, walk, &token, &from, &to, err));
		if (token < 0 && walk->done >= walk->n) {
			*more = false;
			return STATUS_OK;
		}
		*start = walk->done;
		*end = from;
		*id = -1;
		walk->done = from > walk->done ? from : walk->done;
		walk->pending = token + 1;
		walk->pending_end = to;
		if (*end > *start) return STATUS_OK;
	}
	*id = added->vocab.entries[walk->pending - 1].id;
	*start = walk->done;
	*end = walk->pending_end;
	walk->done = walk->pending_end;
	walk->pending = 0;
	return STATUS_OK;
}
