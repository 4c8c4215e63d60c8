/* unicode.h: the few character facts that must not depend on the version of an installed library.
 *
 * The reference splits text by Unicode 16 and normalizes it by Unicode 9; the PCRE2 and utf8proc of a machine are anything from
 * 13 on. Two small tables close the gap: code points that got a general category in 15.0 to 16.0 (added to every class of a
 * pattern; harmless where PCRE2 knows them already), and code points with a decomposition or a combining class from 10.0 on
 * (inert here, whatever utf8proc says). Constant data only. Thread: any.
 */
#ifndef TANDEM_TEXT_UNICODE_H
#define TANDEM_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* White_Space as items of a character class. PCRE2's own \s would add U+180E. */
#define UNICODE_SPACE_ITEMS "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
bool unicode_is_space(uint32_t cp);

struct unicode_range {
	uint32_t first, last;
	char category[3];
};

/* The next range at or after *index whose general category starts with `category` ("L", "Nd"), neighbours joined; false at the
 * end. Start with *index = 0. */
bool unicode_new_range(const char *category, size_t *index, struct unicode_range *out);

/* True for code points that normalization leaves alone because the reference does not know them. */
bool unicode_is_inert(uint32_t cp);

#endif
