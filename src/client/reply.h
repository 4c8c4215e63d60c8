/* reply.h: reads one HTTP/1.1 response from bytes that come in any pieces: status, the headers that a client of ours needs, and the body
 * freed of its framing (chunked, by length, or up to the end of the connection). Interim responses (1xx) are skipped.
 * Strict: what does not follow RFC 9112 is BAD_INPUT, and the connection is of no more use. */
#ifndef TANDEM_CLIENT_REPLY_H
#define TANDEM_CLIENT_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define REPLY_MAX_LINE 8192
#define REPLY_MAX_HEADERS 128

enum reply_state { REPLY_STATUS, REPLY_HEADERS, REPLY_BODY, REPLY_CHUNK_SIZE, REPLY_CHUNK_END, REPLY_TRAILERS, REPLY_DONE };

/* `{0}` awaits a response. */
struct reply {
	enum reply_state state;
	int status;          /* 0 until known */
	bool event_stream;   /* Content-Type: text/event-stream */
	bool close;          /* the connection ends with this response */
	bool chunked, until_end, has_length;
	uint64_t left;       /* bytes of the body, or of this chunk, still to come */
	int headers;
	int line_bytes;
	char line[REPLY_MAX_LINE];
};

/* Takes bytes up to the end of the response; *used tells how many. `body` gets the body's bytes as they come; false from it stops. */
enum status reply_feed(struct reply *reply, const char *bytes, size_t n, size_t *used, bool (*body)(void *context, const char *bytes, size_t n),
                       void *context, struct error *err) NODISCARD;
/* The connection ended. OK if the response is complete by that. */
enum status reply_end(struct reply *reply, struct error *err) NODISCARD;

#endif
