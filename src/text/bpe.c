/* Encoding one piece: characters to ids, the cache of words, the unknown. See bpe.h. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/byte_chars.h"
#include "text/utf8.h"

#define MARK "\xE2\x96\x81"

/* A piece seen before in this call, and where its ids lie in the output. */
struct word {
	uint64_t key[4]; /* the bytes, zero-filled */
	uint32_t length; /* 0: free */
	uint32_t count;
	size_t at;
};

#define WORD_MAX_BYTES sizeof((struct word *)0)->key
#define CACHE_MAX_WORDS 16384u

struct bpe_scratch {
	struct token_list *out;
	struct word *words; /* direct-mapped: a new word replaces the old one of its slot */
	uint32_t word_mask;
	struct bpe_heap heap;
	int32_t *ids;
	size_t id_count, id_capacity;
	struct buf mapped; /* a piece of raw bytes as printable characters */
};

enum status bpe_scratch_create(struct bpe_scratch **out, struct token_list *ids, size_t text_bytes, struct error *err)
{
	*out = NULL;
	struct bpe_scratch *made = mem_zalloc(1, sizeof *made, "tokenizer", err);
	if (!made) return STATUS_NO_MEMORY;
	uint32_t words = 64;
	while (words < CACHE_MAX_WORDS && words < text_bytes / 8) words *= 2;
	made->out = ids;
	made->word_mask = words - 1;
	made->words = mem_zalloc(words, sizeof *made->words, "tokenizer", err);
	if (!made->words) {
		bpe_scratch_destroy(&made);
		return STATUS_NO_MEMORY;
	}
	*out = made;
	return STATUS_OK;
}

void bpe_scratch_destroy(struct bpe_scratch **scratch)
{
	if (!*scratch) return;
	bpe_heap_fini(&(*scratch)->heap);
	buf_fini(&(*scratch)->mapped);
	free((*scratch)->words);
	free((*scratch)->ids);
	free(*scratch);
	*scratch = NULL;
}

static enum status reserve_ids(struct bpe_scratch *s, size_t n, struct error *err)
{
	s->id_count = 0;
	if (n <= s->id_capacity) return STATUS_OK;
	TRY(mem_grow((void **)&s->ids, n, sizeof *s->ids, "tokenizer", err));
	s->id_capacity = n;
	return STATUS_OK;
}

/* ---- characters to ids ---- */

/* The ids of the bytes of an unknown character; false if one of them has none. */
static bool fall_back(const struct bpe *bpe, struct bpe_scratch *s, const char *character, size_t n)
{
	if (!bpe->byte_fallback) return false;
	for (size_t i = 0; i < n; i++)
		if (bpe->fallback_ids[(uint8_t)character[i]] < 0) return false;
	for (size_t i = 0; i < n; i++) s->ids[s->id_count++] = bpe->fallback_ids[(uint8_t)character[i]];
	return true;
}

/* As in the reference, an unknown token is written when the next known character comes, or at the end: bytes of a fallback
 * between an unknown character and that point come before it. */
static enum status symbols_of_text(const struct bpe *bpe, struct bpe_scratch *s, const char *text, size_t n, struct error *err)
{
	bool pending = false;
	TRY(reserve_ids(s, n, err)); /* a character makes at most one id per byte */
	for (size_t i = 0, length; i < n; i += length) {
		length = utf8_length(text[i]);
		int32_t id = vocab_find(&bpe->vocab, text + i, length);
		if (id >= 0) {
			if (pending) s->ids[s->id_count++] = bpe->unknown_id;
			pending = false;
			s->ids[s->id_count++] = id;
			continue;
		}
		if (fall_back(bpe, s, text + i, length) || !bpe->has_unknown) continue;
		if (bpe->unknown_id < 0)
			return FAIL(err, BAD_INPUT, "tokenizer: the text needs the unknown token, which is not in the vocabulary; check tokenizer.json");
		if (pending && !bpe->fuse_unknown) s->ids[s->id_count++] = bpe->unknown_id;
		pending = true;
	}
	if (pending) s->ids[s->id_count++] = bpe->unknown_id;
	return STATUS_OK;
}

static enum status symbols_of_bytes(const struct bpe *bpe, struct bpe_scratch *s, const char *bytes, size_t n, struct error *err)
{
	TRY(reserve_ids(s, n, err));
	for (size_t i = 0; i < n; i++) {
		int32_t id = bpe->byte_ids[(uint8_t)bytes[i]];
		if (id < 0) { /* a vocabulary without all bytes: the rules for unknown characters apply */
			buf_clear(&s->mapped);
			TRY(byte_chars_append(&s->mapped, bytes, n, err));
			return symbols_of_text(bpe, s, s->mapped.data, s->mapped.size, err);
		}
		s->ids[i] = id;
	}
	s->id_count = n;
	return STATUS_OK;
}

/* ---- words ---- */

/* The slot of a short piece; its key is filled into `key`. */
static struct word *word_slot(struct bpe_scratch *s, const char *piece, size_t n, uint64_t key[4])
{
	memset(key, 0, WORD_MAX_BYTES);
	memcpy(key, piece, n);
	uint64_t h = (key[0] ^ n) * 0x9e3779b97f4a7c15u;
	if (n > 8) {
		h = (h ^ (h >> 29) ^ key[1]) * 0xbf58476d1ce4e5b9u;
		h = (h ^ (h >> 29) ^ key[2]) * 0x94d049bb133111ebu;
		h = (h ^ (h >> 29) ^ key[3]) * 0x9e3779b97f4a7c15u;
	}
	return &s->words[(uint32_t)(h >> 40) & s->word_mask];
}

static enum status encode_anew(const struct bpe *bpe, struct bpe_scratch *s, const char *piece, size_t n, bool bytes, struct error *err)
{
	if (bytes) TRY(symbols_of_bytes(bpe, s, piece, n, err));
	else TRY(symbols_of_text(bpe, s, piece, n, err));
	TRY(bpe_merge_all(bpe, &s->heap, s->ids, &s->id_count, err));
	return token_list_append(s->out, s->ids, s->id_count, err);
}

/* ignore_merges: a piece that is an entry of the vocabulary is that entry, reachable by merges or not. -1 if it is none. */
static enum status find_whole(const struct bpe *bpe, struct bpe_scratch *s, const char *piece, size_t n, bool bytes, int32_t *id,
                              struct error *err)
{
	*id = -1;
	if (!bpe->ignore_merges) return STATUS_OK;
	if (bytes) {
		buf_clear(&s->mapped);
		TRY(byte_chars_append(&s->mapped, piece, n, err));
		piece = s->mapped.data;
		n = s->mapped.size;
	}
	*id = vocab_find(&bpe->vocab, piece, n);
	return STATUS_OK;
}

static enum status encode_word(const struct bpe *bpe, struct bpe_scratch *s, const char *piece, size_t n, bool bytes, struct error *err)
{
	struct word *word = NULL;
	uint64_t key[4];
	if (n <= WORD_MAX_BYTES) {
		word = word_slot(s, piece, n, key);
		if (word->length == n && memcmp(word->key, key, sizeof key) == 0) {
			/* The room is made before the source is read: the list may move. */
			TRY(token_list_reserve(s->out, word->count, err));
			return token_list_append(s->out, s->out->ids + word->at, word->count, err);
		}
	}
	size_t at = s->out->count;
	int32_t id;
	TRY(find_whole(bpe, s, piece, n, bytes, &id, err));
	if (id >= 0) TRY(token_list_append(s->out, &id, 1, err));
	else TRY(encode_anew(bpe, s, piece, n, bytes, err));
	if (word) {
		*word = (struct word){.length = (uint32_t)n, .count = (uint32_t)(s->out->count - at), .at = at};
		memcpy(word->key, key, sizeof key);
	}
	return STATUS_OK;
}

static bool mark_at(const char *text, size_t n)
{
	return n >= sizeof MARK - 1 && memcmp(text, MARK, sizeof MARK - 1) == 0;
}

/* Where the word that starts at text[0] ends: before the next mark that does not follow a mark. */
static size_t word_end(const char *text, size_t n)
{
	size_t i = 0;
	while (mark_at(text + i, n - i)) i += sizeof MARK - 1;
	while (i < n) {
		const char *lead = memchr(text + i, MARK[0], n - i);
		if (!lead) return n;
		i = (size_t)(lead - text);
		if (mark_at(lead, n - i)) return i;
		i++;
	}
	return n;
}

enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *s, const char *piece, size_t n, bool bytes, struct error *err)
{
	if (bytes || !bpe->cut_at_marks) return encode_word(bpe, s, piece, n, bytes, err);
	while (n > 0) {
		size_t end = word_end(piece, n);
		TRY(encode_word(bpe, s, piece, end, false, err));
		piece += end;
		n -= end;
	}
	return STATUS_OK;
}
