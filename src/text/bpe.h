/* bpe.h: the BPE model of tokenizer.json: one piece of text -> ids.
 *
 * The characters of a piece become ids (unknown ones: the ids of their bytes, else the unknown token, else nothing), then the
 * pair with the lowest rank is merged, leftmost first, until none is left. Short pieces are scanned, long ones use a heap, so a
 * piece of n characters takes O(n log n). Byte-level vocabularies are fed raw bytes (`bytes`), see pretokenize.h.
 *
 * A vocabulary in which no merge reaches across the start of a word mark (U+2581) lets a long text be cut there without any
 * difference: SentencePiece-style files hand the whole segment over as one piece.
 *
 * Refused: continuing_subword_prefix, end_of_word_suffix. Ignored with a warning: dropout. Owner: the tokenizer; read-only
 * after parsing. A bpe_scratch belongs to one call.
 */
#ifndef TANDEM_TEXT_BPE_H
#define TANDEM_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

struct bpe_merge {
	uint64_t pair; /* left << 32 | right; UINT64_MAX: free slot */
	uint32_t rank;
	int32_t made;
};

#define BPE_NO_RANK UINT32_MAX

struct bpe {
	struct vocab vocab;
	struct bpe_merge *merges; /* open addressing */
	uint32_t merge_mask;
	int32_t byte_ids[256];     /* id of the printable character of each byte; -1: none */
	int32_t fallback_ids[256]; /* id of <0xHH>; -1: none */
	int32_t unknown_id;        /* -1: none */
	bool has_unknown;          /* the file names an unknown token, maybe one that is not in the vocabulary */
	bool fuse_unknown, byte_fallback, ignore_merges;
	bool cut_at_marks; /* see above */
};

struct json_t;
/* On failure `out` is as after bpe_fini. */
enum status bpe_parse(struct bpe *out, const struct json_t *node, const struct log *log, struct error *err) NODISCARD;
/* The same from arrays. */
enum status bpe_describe(struct bpe *out, const struct tokenizer_description *description, bool ignore_merges, struct error *err) NODISCARD;
void bpe_fini(struct bpe *bpe);

struct bpe_scratch;
/* `text_bytes`: about how much text will come; sizes the cache of words. `out`: where the ids go; it must outlive the scratch and
 * only grow meanwhile, since the cache points into it. */
enum status bpe_scratch_create(struct bpe_scratch **out, struct token_list *ids, size_t text_bytes, struct error *err) NODISCARD;
void bpe_scratch_destroy(struct bpe_scratch **scratch);

/* Appends the ids of one piece (n > 0). `bytes`: it is raw bytes that stand for their printable characters. */
enum status bpe_encode(const struct bpe *bpe, struct bpe_scratch *scratch, const char *piece, size_t n, bool bytes, struct error *err) NODISCARD;

/* ---- shared by the files of this module ---- */

/* The merge of a pair; rank BPE_NO_RANK if there is none. */
static inline uint32_t bpe_rank(const struct bpe *bpe, int32_t left, int32_t right, int32_t *made)
{
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	uint32_t i = (uint32_t)((pair * 0x9e3779b97f4a7c15u) >> 32) & bpe->merge_mask;
	for (;; i = (i + 1) & bpe->merge_mask) {
		const struct bpe_merge *m = &bpe->merges[i];
		if (m->pair == pair) {
			*made = m->made;
			return m->rank;
		}
		if (m->pair == UINT64_MAX) return BPE_NO_RANK;
	}
}

/* Room for n merges, before the first; the vocabulary must be complete. */
enum status bpe_reserve_merges(struct bpe *bpe, size_t n, struct error *err) NODISCARD;
/* Of two merges of one pair the later counts. `joined` is scratch. BAD_INPUT if a part or the whole is no entry of the vocabulary. */
enum status bpe_add_merge(struct bpe *bpe, struct tokenizer_text left, struct tokenizer_text right, uint32_t rank, struct buf *joined,
                          struct error *err) NODISCARD;
/* Fills the tables of bytes from the vocabulary. */
void bpe_find_bytes(struct bpe *bpe);

/* Merges ids[0..*n) in place. */
struct bpe_heap;
enum status bpe_merge_all(const struct bpe *bpe, struct bpe_heap *heap, int32_t *ids, size_t *n, struct error *err) NODISCARD;

struct bpe_symbol {
	int32_t id;
	uint32_t prev, next; /* neighbours; UINT32_MAX at the ends */
	uint32_t rank;       /* of the pair that starts here */
	int32_t made;
};

/* Memory of bpe_merge_all; `{0}` is empty. */
struct bpe_heap {
	struct bpe_symbol *symbols;
	uint64_t *items; /* rank << 32 | position of the left symbol: the smallest is merged next */
	size_t count, symbol_capacity, item_capacity;
};
void bpe_heap_fini(struct bpe_heap *heap);

#endif
