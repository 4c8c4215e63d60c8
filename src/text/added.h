/* added.h: the added tokens of tokenizer.json: texts that are cut out before the model sees anything.
 *
 * Two passes share this code: tokens with normalized=false are looked for in the raw text, the others, by their normal form,
 * in each normalized segment between. Among the tokens that start at one place the longest counts; a match that is rejected
 * (single_word) is stepped over whole. lstrip and rstrip swallow the white space beside the token. An id in the file is a
 * claim: as in the reference, a token whose text is in the model's vocabulary has that id, others are numbered on.
 *
 * Owner: the tokenizer; read-only once it is open.
 */
#ifndef TANDEM_TEXT_ADDED_H
#define TANDEM_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "text/normalize.h"
#include "text/pattern.h"
#include "text/text_range.h"
#include "text/vocab.h"

struct added_token {
	bool single_word, lstrip, rstrip, normalized, special;
	uint32_t form, form_length; /* normalized: the normal form, in `forms` */
};

/* A trie over bytes; node 0 is the root, whose children are in `first`. */
struct trie_node {
	uint32_t sibling, child; /* 0: none */
	int32_t token;           /* index of the token that ends here; -1: none */
	char byte;
};

struct trie {
	struct trie_node *nodes;
	uint32_t count, capacity;
	uint32_t first[256];
};

struct added {
	struct vocab vocab; /* entry i of `vocab` is token i */
	struct added_token *tokens;
	struct buf forms;
	struct trie raw, normal; /* normalized false, true */
	bool normal_special;     /* special tokens are among those of `normal` */
	struct pattern *word;    /* \w, if a token is single_word */
};

struct json_t;
/* `node`: the array, or NULL for none. On failure `out` is as after added_fini. */
enum status added_parse(struct added *out, const struct json_t *node, const struct vocab *model, const struct normalizer *normalizer,
                        const struct log *log, struct error *err) NODISCARD;
void added_fini(struct added *added);
bool added_is_special(const struct added *added, int32_t id);
/* What the decoders get for the token: its text, or its normal form where that is what is looked for. NULL: not here. */
const char *added_text(const struct added *added, int32_t id, size_t *n);

/* A walk over text[0..n): stretches of text and tokens in turn. Start from {.trie, .text, .n}, and what else is known. */
struct added_walk {
	const struct trie *trie;
	const char *text;
	size_t n;
	const struct text_range *user; /* ascending ranges of text[0..n) in which special tokens are text */
	size_t user_count;
	size_t next;     /* where the search goes on */
	size_t done;     /* what is before was handed out */
	int32_t pending; /* token found behind the stretch that was handed out, + 1 */
	size_t pending_end;
};
/* False at the end. *id: the token, or -1 for the text [*start, *end), which is not empty. */
enum status added_next(const struct added *added, struct pattern_scratch *scratch, struct added_walk *walk, bool *more, int32_t *id,
                       size_t *start, size_t *end, struct error *err) NODISCARD;

#endif
