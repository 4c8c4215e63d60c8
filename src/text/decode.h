/* decode.h: the decoders of tokenizer.json as a chain of stages through which token texts stream.
 *
 * A stage gets text in chunks, each of whole code points; `last` marks the end of a token. So ByteLevel, which reads the whole
 * list as one byte string, and Fuse, which makes one token of all, need not wait for the end: they hand out an open token.
 * A stage that needs whole tokens collects an open one until it ends; after Fuse that is the end of the stream, which is right
 * and late. What a stage holds back is what the tokens to come could still change: an incomplete code point, a run of byte
 * tokens (one bad byte changes them all), copies of the character that Strip may have to cut.
 *
 * The chain is immutable; the state belongs to one stream.
 */
#ifndef TANDEM_TEXT_DECODE_H
#define TANDEM_TEXT_DECODE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "text/pattern.h"
#include "text/pretokenize.h"
#include "text/utf8.h"

enum decoder_kind { DECODER_BYTE_LEVEL, DECODER_BYTE_FALLBACK, DECODER_FUSE, DECODER_METASPACE, DECODER_REPLACE, DECODER_STRIP };

struct decoder_step {
	enum decoder_kind kind;
	enum prepend_scheme prepend; /* METASPACE */
	size_t start, stop;          /* STRIP */
	struct pattern *pattern;     /* REPLACE */
	struct buf text;             /* METASPACE: the mark; REPLACE: by what; STRIP: the character */
};

#define DECODER_MAX_STEPS 16

struct decoder {
	bool present; /* without one, the tokens are joined by spaces */
	size_t count;
	struct decoder_step steps[DECODER_MAX_STEPS];
};

struct json_t;
/* `node` may be NULL. On failure `out` is as after decoder_fini. */
enum status decoder_parse(struct decoder *out, const struct json_t *node, struct error *err) NODISCARD;
void decoder_fini(struct decoder *decoder);

struct decoder_stage {
	struct buf open;         /* the token that is being collected */
	struct buf run;          /* BYTE_FALLBACK: bytes that may become text */
	struct buf made;         /* what goes on to the next stage */
	struct utf8_stream utf8; /* BYTE_LEVEL */
	size_t tokens;           /* METASPACE: tokens that ended */
	size_t cut, copies;      /* STRIP: cut at the start; held back at the end */
	bool started;            /* STRIP: something else than copies has come */
};

/* Zero-initialised but for the first two members. */
struct decoder_state {
	const struct decoder *decoder;
	struct pattern_scratch *scratch; /* owned */
	bool any;                        /* a token was written (for the spaces between) */
	struct decoder_stage stages[DECODER_MAX_STEPS];
};
enum status decoder_state_init(struct decoder_state *state, const struct decoder *decoder, struct error *err) NODISCARD;
void decoder_state_fini(struct decoder_state *state);
/* One token's text. Appends what is certain to `out`. */
enum status decoder_push(struct decoder_state *state, const char *text, size_t n, struct buf *out, struct error *err) NODISCARD;
/* The bytes of one token alone: what the chain makes of it wherever it stands, before bytes become text. Uses the scratch of the state,
 * not the state. */
enum status decoder_bytes(struct decoder_state *state, const char *text, size_t n, struct buf *bytes, struct error *err) NODISCARD;
/* Appends the rest; the state is then as new. */
enum status decoder_finish(struct decoder_state *state, struct buf *out, struct error *err) NODISCARD;

#endif
