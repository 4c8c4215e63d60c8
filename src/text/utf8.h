/* utf8.h: reading and writing UTF-8, and what to do with bytes that are not.
 *
 * Ill-formed input is cut into maximal subparts (Unicode 15, section 3.9, table 3-8): the longest prefix of a well-formed
 * sequence, else one byte. Each subpart stands for one U+FFFD, as in Python's errors="replace" and Rust's lossy decoding.
 * No state, no allocation but that of the buffers given. Thread: any.
 */
#ifndef TANDEM_TEXT_UTF8_H
#define TANDEM_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define UTF8_BAD UINT32_MAX
#define UTF8_REPLACEMENT "\xEF\xBF\xBD"

/* Reads one code point at p[0..n), n > 0, and returns the bytes it takes. Ill-formed: *cp is UTF8_BAD and the result is the
 * length of the maximal subpart. */
size_t utf8_decode(const char *p, size_t n, uint32_t *cp);
/* Writes 1 to 4 bytes; `cp` is a Unicode scalar value. */
size_t utf8_encode(uint32_t cp, char out[4]);
/* Length of the longest well-formed prefix of text[0..n). */
size_t utf8_valid_prefix(const char *text, size_t n);
/* Appends text[0..n) with every maximal ill-formed subpart replaced by U+FFFD. */
enum status utf8_append_lossy(struct buf *out, const char *text, size_t n, struct error *err) NODISCARD;

/* Bytes of the sequence that starts with `lead`, in text known to be well-formed. */
static inline size_t utf8_length(char lead)
{
	unsigned char c = (unsigned char)lead;
	return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* The value of a hexadecimal digit; -1 if `c` is none. */
static inline int utf8_hex_digit(char c)
{
	if (c >= '0' && c <= '9') return c - '0';
	if (c >= 'a' && c <= 'f') return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Lossy decoding of bytes that arrive in pieces: holds back a prefix of a sequence until the rest has come. `{0}` is new. */
struct utf8_stream {
	char held[4];
	size_t count;
};
enum status utf8_stream_push(struct utf8_stream *stream, const char *bytes, size_t n, struct buf *out, struct error *err) NODISCARD;
/* What is held becomes U+FFFD; the stream is then new. */
enum status utf8_stream_finish(struct utf8_stream *stream, struct buf *out, struct error *err) NODISCARD;

#endif
