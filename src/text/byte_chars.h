/* byte_chars.h: the printable characters that byte-level vocabularies use for bytes (GPT-2's table).
 *
 * Bytes 21..7E, A1..AC and AE..FF stand for themselves; the other 68, in order, are U+0100 and up. Constant. Thread: any.
 */
#ifndef TANDEM_TEXT_BYTE_CHARS_H
#define TANDEM_TEXT_BYTE_CHARS_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/* Code point of the character for `byte`. */
uint32_t byte_char(uint8_t byte);
/* The byte that `cp` stands for; -1 if it is not in the table. */
int byte_of_char(uint32_t cp);
/* Appends the characters for bytes[0..n). */
enum status byte_chars_append(struct buf *out, const char *bytes, size_t n, struct error *err) NODISCARD;

#endif
