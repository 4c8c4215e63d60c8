/* sse.h: reads a stream of server-sent events, as the HTML standard defines them, from bytes that come in any pieces.
 *
 * Only `data` matters here: several data lines of an event are joined by LF, comments and other fields are dropped. Line ends are LF, CRLF
 * or CR. An event without data is none. An event that the stream's end cuts off is dropped, as the standard says. */
#ifndef TANDEM_CLIENT_SSE_H
#define TANDEM_CLIENT_SSE_H

#include <stdbool.h>

#include "base/buf.h"

#define SSE_MAX_EVENT (16u << 20) /* bytes of one line or event; a server that sends more is refused */

/* `{0}` is the start of a stream. */
struct sse {
	struct buf line, data;
	bool has_data;
	bool after_cr; /* an LF now belongs to the CR before it */
	bool begun;    /* past the first line, which may start with a byte order mark */
};
void sse_fini(struct sse *sse);
/* Ready for another stream; keeps the memory. */
void sse_clear(struct sse *sse);

/* Calls `event` for each event that these bytes complete; the data is followed by a NUL and valid during the call. False from it ends the
 * feeding at once, with OK. BAD_INPUT if something is too long. */
enum status sse_feed(struct sse *sse, const char *bytes, size_t n, bool (*event)(void *context, const char *data, size_t n), void *context,
                     struct error *err) NODISCARD;

#endif
