/* pretokenize.h: the pre-tokenizer of tokenizer.json: ByteLevel, Split, Digits, Metaspace and Sequence, flattened to a list.
 *
 * A step cuts pieces into smaller ones (a cut is two offsets, nothing is copied) or rewrites their text. The rewriting of
 * ByteLevel, when it comes last as it does in nearly every file, is left to the model, which maps bytes to ids directly:
 * `pretokenizer.bytes`. Owner: the tokenizer; immutable after parsing; the pieces belong to one call.
 */
#ifndef TANDEM_TEXT_PRETOKENIZE_H
#define TANDEM_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "text/pattern.h"

enum split_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_CONTIGUOUS, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

enum pretokenizer_kind {
	PRETOKENIZER_SPLIT,        /* cuts at the matches of `pattern` */
	PRETOKENIZER_PREFIX_SPACE, /* a space before each piece that has none */
	PRETOKENIZER_BYTE_CHARS,   /* bytes to their printable characters */
	PRETOKENIZER_METASPACE,    /* spaces to `mark`, and a mark in front by `prepend` */
};

struct pretokenizer_step {
	enum pretokenizer_kind kind;
	enum split_behavior behavior;
	enum prepend_scheme prepend;
	bool invert;
	struct pattern *pattern;
	struct buf mark;
};

#define PRETOKENIZER_MAX_STEPS 32

struct pretokenizer {
	size_t count;
	bool bytes; /* the pieces are raw bytes that stand for their printable characters */
	struct pretokenizer_step steps[PRETOKENIZER_MAX_STEPS];
};

struct json_t;
/* `node` may be NULL: the whole segment is one piece. On failure `out` is as after pretokenizer_fini. */
enum status pretokenizer_parse(struct pretokenizer *out, const struct json_t *node, struct error *err) NODISCARD;
/* Byte level: the expressions (NULL ends them before `max`), each cutting the pieces of the one before, isolated. */
enum status pretokenizer_of_splits(struct pretokenizer *out, const char *const *splits, int max, struct error *err) NODISCARD;
void pretokenizer_fini(struct pretokenizer *pretokenizer);

struct span {
	size_t start, end;
};

struct span_list {
	struct span *list;
	size_t count, capacity;
};

/* The pieces of one segment; memory is kept from segment to segment. `{0}` is empty. */
struct pieces {
	const char *text; /* the segment or `texts` */
	struct span_list now, made;
	struct buf texts[2];
	int turn;
};
void pieces_fini(struct pieces *pieces);

/* Cuts text[0..n) (n > 0). `first`: the segment is where the whole input starts. The result borrows `text`. */
enum status pretokenizer_run(const struct pretokenizer *pretokenizer, struct pattern_scratch *scratch, const char *text, size_t n,
                             bool first, struct pieces *pieces, struct error *err) NODISCARD;

/* One Metaspace component as it stands in the file; shared with the decoder of that name. */
struct metaspace {
	struct buf mark;
	enum prepend_scheme prepend;
	bool split;
};
enum status metaspace_parse(struct metaspace *out, const struct json_t *node, struct error *err) NODISCARD;

#endif
