/* normalize.h: the normalizer of tokenizer.json: NFC, NFD, NFKC, NFKD, Prepend, Replace and Sequence, flattened to a list.
 *
 * It runs once per segment between added tokens, so Prepend adds its mark again after each of them, as the reference does.
 * Owner: the tokenizer; immutable after parsing. Input and output are well-formed UTF-8.
 */
#ifndef TANDEM_TEXT_NORMALIZE_H
#define TANDEM_TEXT_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "text/pattern.h"

enum normalizer_kind { NORMALIZER_NFC, NORMALIZER_NFD, NORMALIZER_NFKC, NORMALIZER_NFKD, NORMALIZER_PREPEND, NORMALIZER_REPLACE };

struct normalizer_step {
	enum normalizer_kind kind;
	struct pattern *pattern; /* REPLACE */
	struct buf text;         /* PREPEND: what; REPLACE: by what */
};

#define NORMALIZER_MAX_STEPS 32

struct normalizer {
	size_t count;
	struct normalizer_step steps[NORMALIZER_MAX_STEPS];
};

struct json_t;
/* `node` may be NULL: no normalizer. On failure `out` is as after normalizer_fini. */
enum status normalizer_parse(struct normalizer *out, const struct json_t *node, struct error *err) NODISCARD;
void normalizer_fini(struct normalizer *normalizer);

/* The normal form of text[0..n). `begins`: it is the begin of a segment; Prepend does nothing elsewhere. *result points into `text` where
 * nothing changed, else into one of the two spare buffers, whose contents are overwritten. */
enum status normalizer_run(const struct normalizer *normalizer, struct pattern_scratch *scratch, const char *text, size_t n, bool begins,
                           struct buf spare[2], const char **result, size_t *result_n, struct error *err) NODISCARD;

/* Appends the Unicode normal form of text[0..n). Linear: runs of combining marks are sorted by counting. */
enum status unicode_normalize(enum normalizer_kind form, const char *text, size_t n, struct buf *out, struct error *err) NODISCARD;

#endif
