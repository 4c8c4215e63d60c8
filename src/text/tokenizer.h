/* tokenizer.h: text <-> token ids by a Hugging Face tokenizer.json, id for id as the HF `tokenizers` library gives them; or by plain arrays
 * with the same meaning, from a file of another kind.
 *
 * Read from the file, never chosen by model name: normalizers, pre-tokenizers, BPE model (byte-level and SentencePiece
 * style with byte fallback), added tokens, post-processor, decoders. A part that is not implemented is refused by name when
 * the file is opened. A tokenizer is immutable after open and may be shared by any number of threads; what a call needs
 * besides is allocated by that call. Every byte of the file and of the text is untrusted.
 */
#ifndef TANDEM_TEXT_TOKENIZER_H
#define TANDEM_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "text/text_range.h"

struct tokenizer;

/* A growable list of ids; `{0}` is empty. */
struct token_list {
	int32_t *ids;
	size_t count;
	size_t capacity;
};
void token_list_fini(struct token_list *list);
/* Room for `extra` more ids. */
enum status token_list_reserve(struct token_list *list, size_t extra, struct error *err) NODISCARD;
enum status token_list_push(struct token_list *list, int32_t id, struct error *err) NODISCARD;
enum status token_list_append(struct token_list *list, const int32_t *ids, size_t n, struct error *err) NODISCARD;

/* `path`: a tokenizer.json, or a folder that holds one. *out is NULL on failure. `log` (may be NULL) gets warnings. */
enum status tokenizer_open(struct tokenizer **out, const char *path, const struct log *log, struct error *err) NODISCARD;
/* The same from bytes in memory (the fuzzer uses it). `name` is for messages. */
enum status tokenizer_parse(struct tokenizer **out, const char *json, size_t n, const char *name, const struct log *log, struct error *err) NODISCARD;
void tokenizer_destroy(struct tokenizer **tokenizer);

/* ---- from plain arrays ---- */

struct tokenizer_text {
	const char *data; /* no NUL needed */
	size_t size;
};

/* What a token is to the tokenizer; control tokens are the special ones. Numbers as in GGUF files. */
enum token_kind { TOKEN_NORMAL = 1, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER_DEFINED, TOKEN_UNUSED, TOKEN_BYTE };

enum tokenizer_model {
	TOKENIZER_BYTE_LEVEL,   /* merges over printable characters that stand for bytes, as GPT-2's */
	TOKENIZER_SENTENCEPIECE /* scores over text with marks for spaces, bytes for what is unknown, as Llama 2's */
};

/* All borrowed during the call. */
struct tokenizer_description {
	enum tokenizer_model model;
	const char *split; /* byte level: the pre-tokenizer's name ("llama-bpe", "qwen2", …), NULL: "default". Unknown names are refused */
	int32_t count;
	const struct tokenizer_text *tokens; /* [count] by id */
	const uint8_t *kinds;                /* [count] enum token_kind */
	const float *scores;                 /* [count] SentencePiece: higher joins first */
	const struct tokenizer_text *merges; /* [merge_count] byte level: "a b", first joins first */
	size_t merge_count;
	int32_t bos, eos, unknown;              /* -1: none */
	int add_bos, add_eos, add_space_prefix; /* 0, 1; -1: what the model does where nothing is said */
};
/* `name` is for messages. *out is NULL on failure. */
enum status tokenizer_create(struct tokenizer **out, const struct tokenizer_description *description, const char *name, const struct log *log,
                             struct error *err) NODISCARD;

/* For a model with embeddings of `rows` ids, before the tokenizer is shared. BAD_INPUT if the vocabulary goes beyond them. Added tokens may:
 * `log` is told, and from then on encoding refuses what would give such an id. */
enum status tokenizer_limit(struct tokenizer *tokenizer, int32_t rows, const char *name, const struct log *log, struct error *err) NODISCARD;
/* One more than the largest id that the file names. */
int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
/* The id of the vocabulary entry or added token whose content is exactly `text`; -1 if there is none. */
int32_t tokenizer_id(const struct tokenizer *tokenizer, const char *text);
/* The entry's text as the file spells it (borrowed); NULL if the id is not in the file. */
const char *tokenizer_text(const struct tokenizer *tokenizer, int32_t id);
bool tokenizer_is_special(const struct tokenizer *tokenizer, int32_t id);

/* Appends the ids of text[0..n) to `out`. Special-token text in the input is parsed as special tokens, as HF does.
 * add_special: run the post-processor's template (BOS and the like). Invalid UTF-8: each maximal ill-formed subpart counts as
 * U+FFFD. BAD_INPUT past tokenizer_limit. On failure `out` keeps what it had. Near-linear in n for any input. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t n, bool add_special, struct token_list *out,
                             struct error *err) NODISCARD;

/* As tokenizer_encode, for text that was put together from a template and what a user wrote: in `user` (ascending, apart from each other,
 * valid UTF-8 text) a special token is not recognised but is text like any other, also where only part of it lies in such a range. Where
 * special tokens are looked for in normalized text, the user's and the template's are normalized each by itself. Added tokens that are not special are
 * found there too. */
enum status tokenizer_encode_marked(const struct tokenizer *tokenizer, const char *text, size_t n, bool add_special,
                                    const struct text_range *user, size_t user_count, struct token_list *out, struct error *err) NODISCARD;

/* Appends the text of ids[0..n) to `out` (valid UTF-8), decoders applied as HF does. Ids that the file does not name decode to
 * nothing. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special, struct buf *out,
                             struct error *err) NODISCARD;

/* Incremental decoding: the pieces joined equal tokenizer_decode of all ids, and no piece ever ends inside a code point. */
struct detokenizer;
enum status detokenizer_create(struct detokenizer **out, const struct tokenizer *tokenizer, bool skip_special, struct error *err) NODISCARD;
/* What it decodes for; borrowed. */
const struct tokenizer *detokenizer_of(const struct detokenizer *detokenizer);
void detokenizer_destroy(struct detokenizer **detokenizer);
/* To a new one: what is pushed goes on from ids[0..n), whose text, all of it, is known already. So the first word keeps the space in front of it, and a
 * code point that begins in them comes whole as soon as it is complete. Decodes no more of them than that takes. After a failure: destroy. */
enum status detokenizer_follow(struct detokenizer *detokenizer, const int32_t *ids, size_t n, struct error *err) NODISCARD;
/* Appends to `piece` what became certain with this id (maybe nothing). O(1) amortised in the length of the stream. */
enum status detokenizer_push(struct detokenizer *detokenizer, int32_t id, struct buf *piece, struct error *err) NODISCARD;
/* Appends the bytes that this id stands for by itself, without regard to what was pushed: maybe part of a code point. */
enum status detokenizer_bytes(struct detokenizer *detokenizer, int32_t id, struct buf *bytes, struct error *err) NODISCARD;
/* Appends what was still held back. The detokenizer is then as newly created. */
enum status detokenizer_finish(struct detokenizer *detokenizer, struct buf *piece, struct error *err) NODISCARD;

#endif
