/* Reading the BPE model from tokenizer.json. See bpe.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/bpe.h"
#include "text/byte_chars.h"
#include "text/json_field.h"
#include "text/utf8.h"

#define MARK "\xE2\x96\x81"

static enum status parse_vocab(struct bpe *bpe, const json_t *node, struct error *err)
{
	const json_t *vocab = json_field(node, "vocab");
	if (!json_is_object(vocab)) return FAIL(err, BAD_INPUT, "model: \"vocab\" is missing or not an object; check the file");
	TRY(vocab_reserve(&bpe->vocab, json_object_size(vocab) + 1, err));
	for (void *i = json_object_iter((json_t *)vocab); i; i = json_object_iter_next((json_t *)vocab, i)) {
		const json_t *id = json_object_iter_value(i);
		json_int_t value = json_integer_value(id);
		if (!json_is_integer(id) || value < 0 || value > VOCAB_MAX_ID)
			return FAIL(err, BAD_INPUT, "model: vocab entry '%.64s' has no id from 0 to %d; check the file", json_object_iter_key(i), VOCAB_MAX_ID);
		TRY(vocab_add(&bpe->vocab, json_object_iter_key(i), json_object_iter_key_len(i), (int32_t)value, err));
	}
	return STATUS_OK;
}

/* The two halves of merge number `index`; *skip for a "#version" line. */
static enum status merge_halves(const json_t *merge, size_t index, struct tokenizer_text *left, struct tokenizer_text *right, bool *skip,
                                struct error *err)
{
	*skip = false;
	if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
	    json_is_string(json_array_get(merge, 1))) {
		const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
		*left = (struct tokenizer_text){.data = json_string_value(a), .size = json_string_length(a)};
		*right = (struct tokenizer_text){.data = json_string_value(b), .size = json_string_length(b)};
		return STATUS_OK;
	}
	if (json_is_string(merge)) {
		const char *text = json_string_value(merge);
		size_t n = json_string_length(merge);
		*skip = strncmp(text, "#version", 8) == 0;
		if (*skip) return STATUS_OK;
		const char *space = memchr(text, ' ', n);
		if (space && !memchr(space + 1, ' ', (size_t)(text + n - space - 1))) {
			*left = (struct tokenizer_text){.data = text, .size = (size_t)(space - text)};
			*right = (struct tokenizer_text){.data = space + 1, .size = n - left->size - 1};
			return STATUS_OK;
		}
	}
	return FAIL(err, BAD_INPUT, "model: merge %zu is neither \"a b\" nor [\"a\", \"b\"]; check the file", index);
}

static void insert_merge(struct bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t made)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	uint32_t i = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & bpe->merge_mask;
	while (bpe->merges[i].pair != UINT64_MAX && bpe->merges[i].pair != pair) i = (i + 1) & bpe->merge_mask;
	bpe->merges[i] = (struct bpe_merge){.pair = pair, .rank = rank, .made = made}; /* of two equal pairs the later counts */
}

/* Does joining these two reach across the start of a word mark? */
static bool crosses_mark(struct tokenizer_text left, struct tokenizer_text right)
{
	size_t n = sizeof MARK - 1;
	if (right.size < n || memcmp(right.data, MARK, n) != 0) return false;
	return left.size < n || memcmp(left.data + left.size - n, MARK, n) != 0;
}

static int shown(struct tokenizer_text text)
{
	return text.size < 40 ? (int)text.size : 40;
}

enum status bpe_add_merge(struct bpe *bpe, struct tokenizer_text left, struct tokenizer_text right, uint32_t rank, struct buf *joined,
                          struct error *err)
{
	buf_clear(joined);
	TRY(buf_append(joined, left.data, left.size, err));
	TRY(buf_append(joined, right.data, right.size, err));
	int32_t a = vocab_find(&bpe->vocab, left.data, left.size), b = vocab_find(&bpe->vocab, right.data, right.size);
	int32_t made = vocab_find(&bpe->vocab, joined->data, joined->size);
	if (a < 0 || b < 0 || made < 0)
		return FAIL(err, BAD_INPUT, "model: merge %u ('%.*s' + '%.*s') uses a token that is not in the vocabulary; check the file",
		            (unsigned)rank, shown(left), left.data, shown(right), right.data);
	if (crosses_mark(left, right)) bpe->cut_at_marks = false;
	insert_merge(bpe, a, b, rank, made);
	return STATUS_OK;
}

enum status bpe_reserve_merges(struct bpe *bpe, size_t n, struct error *err)
{
	size_t slots = 16;
	if (n > (size_t)1 << 28) return FAIL(err, UNSUPPORTED, "model: %zu merges are too many", n);
	while (slots < n + n / 2) slots *= 2;
	bpe->merges = mem_zalloc(slots, sizeof *bpe->merges, "merges", err);
	if (!bpe->merges) return STATUS_NO_MEMORY;
	for (size_t i = 0; i < slots; i++) bpe->merges[i].pair = UINT64_MAX;
	bpe->merge_mask = (uint32_t)(slots - 1);
	bpe->cut_at_marks = vocab_find(&bpe->vocab, MARK, sizeof MARK - 1) >= 0 && !bpe->vocab.shared_ids && !bpe->ignore_merges;
	return STATUS_OK;
}

static enum status parse_merges(struct bpe *bpe, const json_t *node, struct error *err)
{
	const json_t *list;
	TRY(json_field_array(node, "model", "merges", &list, err));
	struct buf joined = {0};
	enum status st;
	uint32_t rank = 0;
	size_t n = json_array_size(list);
	TRY_GOTO(bpe_reserve_merges(bpe, n, err), out);
	for (size_t i = 0; i < n; i++) {
		struct tokenizer_text left = {0}, right = {0};
		bool skip;
		TRY_GOTO(merge_halves(json_array_get(list, i), i, &left, &right, &skip, err), out);
		if (!skip) TRY_GOTO(bpe_add_merge(bpe, left, right, rank++, &joined, err), out);
	}
out:
	buf_fini(&joined);
	return st;
}

static enum status parse_flags(struct bpe *bpe, const json_t *node, const struct log *log, struct error *err)
{
	static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
	for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
		struct json_text text = {0};
		if (json_field(node, affixes[i])) TRY(json_field_text(node, "model", affixes[i], &text, err));
		if (text.size > 0) return FAIL(err, UNSUPPORTED, "model: \"%s\" is not implemented", affixes[i]);
	}
	const json_t *dropout = json_field(node, "dropout");
	if (dropout && json_number_value(dropout) > 0) log_write(log, LOG_WARN, "tokenizer: dropout is for training; ignored");
	TRY(json_field_bool(node, "model", "fuse_unk", false, &bpe->fuse_unknown, err));
	TRY(json_field_bool(node, "model", "byte_fallback", false, &bpe->byte_fallback, err));
	return json_field_bool(node, "model", "ignore_merges", false, &bpe->ignore_merges, err);
}

void bpe_find_bytes(struct bpe *bpe)
{
	for (unsigned i = 0; i < 256; i++) {
		char text[8];
		size_t n = utf8_encode(byte_char((uint8_t)i), text);
		bpe->byte_ids[i] = vocab_find(&bpe->vocab, text, n);
		n = (size_t)snprintf(text, sizeof text, "<0x%02X>", i);
		bpe->fallback_ids[i] = vocab_find(&bpe->vocab, text, n);
	}
}

static enum status find_unknown(struct bpe *bpe, const json_t *node, struct error *err)
{
	struct json_text unknown;
	bpe->unknown_id = -1;
	bpe->has_unknown = json_field(node, "unk_token") != NULL;
	if (!bpe->has_unknown) return STATUS_OK;
	TRY(json_field_text(node, "model", "unk_token", &unknown, err));
	bpe->unknown_id = vocab_find(&bpe->vocab, unknown.data, unknown.size);
	return STATUS_OK;
}

enum status bpe_parse(struct bpe *out, const struct json_t *node, const struct log *log, struct error *err)
{
	enum status st = STATUS_OK;
	*out = (struct bpe){0};
	if (!json_is_object(node)) return FAIL(err, BAD_INPUT, "\"model\" is missing or not an object; check the file");
	if (json_field(node, "type")) {
		struct json_text type;
		TRY(json_field_text(node, "model", "type", &type, err));
		if (!json_text_is(type, "BPE")) return FAIL(err, UNSUPPORTED, "model: type '%.64s' is not implemented, only BPE is", type.data);
	}
	TRY_GOTO(parse_flags(out, node, log, err), fail);
	TRY_GOTO(parse_vocab(out, node, err), fail);
	TRY_GOTO(parse_merges(out, node, err), fail);
	bpe_find_bytes(out);
	TRY_GOTO(find_unknown(out, node, err), fail);
	return STATUS_OK;
fail:
	bpe_fini(out);
	return st;
}

void bpe_fini(struct bpe *bpe)
{
	vocab_fini(&bpe->vocab);
	free(bpe->merges);
	*bpe = (struct bpe){0};
}
