/* buf.h: a growable byte string. Owner: whoever declared it; `{0}` is a valid empty buffer. Not thread safe. */
#ifndef TANDEM_BASE_BUF_H
#define TANDEM_BASE_BUF_H

#include <stddef.h>

#include "base/status.h"

struct buf {
	char *data; /* `size` bytes, then a NUL that does not count; NULL while nothing was ever appended */
	size_t size;
	size_t capacity;
};

void buf_fini(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */
/* Room for `extra` more bytes (and the NUL). On failure the buffer is unchanged. */
enum status buf_reserve(struct buf *b, size_t extra, struct error *err) NODISCARD;
enum status buf_append(struct buf *b, const void *bytes, size_t n, struct error *err) NODISCARD;
enum status buf_puts(struct buf *b, const char *text, struct error *err) NODISCARD;
PRINTF_LIKE(3, 4) enum status buf_printf(struct buf *b, struct error *err, const char *format, ...) NODISCARD;
/* The whole file at `path`, at most `limit` bytes, appended. IO if it cannot be read, BAD_INPUT if longer. A pipe is waited for. */
enum status buf_read_file(struct buf *b, const char *path, size_t limit, struct error *err) NODISCARD;
/* The same of a file that nobody named, in a model's folder: BAD_INPUT if it is a pipe or a device, for which a start must not wait. */
enum status buf_read_regular(struct buf *b, const char *path, size_t limit, struct error *err) NODISCARD;

#endif
