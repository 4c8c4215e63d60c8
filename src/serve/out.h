/* out.h: writing response text: JSON values, and numbers and literals between them.
 *
 * A writer remembers its first failure and ignores what comes after, so that a body is built without a check at each piece;
 * whoever sends it asks `failed` once. Strings may hold any bytes: each maximal ill-formed part becomes U+FFFD, so that what is
 * written is always valid JSON in valid UTF-8. U+0085, U+2028 and U+2029 are escaped, because readers of event streams split lines
 * at them. Owner: whoever declared it; `{0}` is an empty writer.
 */
#ifndef TANDEM_SERVE_OUT_H
#define TANDEM_SERVE_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct out {
	struct buf buf;
	bool failed; /* no memory */
};

void out_fini(struct out *out);
void out_clear(struct out *out); /* keeps the memory; forgets a failure */

void out_bytes(struct out *out, const void *bytes, size_t n);
void out_puts(struct out *out, const char *text);
PRINTF_LIKE(2, 3) void out_printf(struct out *out, const char *format, ...);
/* A JSON string with its quotes. */
void out_string(struct out *out, const char *text, size_t n);
void out_text(struct out *out, const char *text); /* the same of a C string; NULL is null */
void out_int(struct out *out, int64_t value);
/* Shortest form that reads back as the same float. -inf and anything below -9999 is -9999.0, as other servers write it; a NaN, which
 * must not come here, is null. */
void out_logprob(struct out *out, float value);

#endif
