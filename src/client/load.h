/* load.h: sends many HTTP requests from one thread and tells its owner what comes back. The owner decides what a request says, when it is
 * sent, and when to hang up; here are connections, framing, time limits and the ways in which an exchange ends.
 *
 * Each request ends exactly once, by the hook `end`. Connections are kept and used again where the server lets them be; a kept connection
 * that turns out to be closed is replaced without the owner noticing. Thread: the caller's. */
#ifndef TANDEM_CLIENT_LOAD_H
#define TANDEM_CLIENT_LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/buf.h"

/* X(enumerator, text for reports) */
#define LOAD_END_LIST(X)                                             \
	X(DONE, "complete response")                                     \
	X(HUNG_UP, "hung up by us")                                      \
	X(NO_CONNECTION, "connection refused")                           \
	X(LOST, "connection lost")                                       \
	X(TIMEOUT, "no byte within the time limit")                      \
	X(BAD_RESPONSE, "response that is not HTTP")

enum load_end {
#define X(code, text) LOAD_##code,
	LOAD_END_LIST(X)
#undef X
		LOAD_ENDS
};
const char *load_end_text(enum load_end end);

struct load_answer {
	enum load_end end;
	int status;        /* HTTP; 0: none came */
	bool stream;       /* it was an event stream: `body` is empty then */
	const char *body;  /* first LOAD_MAX_BODY bytes, NUL-terminated */
	size_t body_bytes;
	uint64_t at_ns;
};
#define LOAD_MAX_BODY (1u << 20)

struct load_options {
	const struct sockaddr_storage *address;
	socklen_t address_length;
	int count;           /* requests, numbered from 0 */
	int concurrency;     /* in flight at once at most */
	uint32_t timeout_ms; /* longest silence of the server in a request */
	void *context;       /* of the hooks; they get the number of the request */
	/* When request `index` is due, in ns since the start; ascending. NULL: at once. */
	uint64_t (*due)(void *context, int index);
	/* Appends the whole request, head and body. Called when it is sent. */
	enum status (*request)(void *context, int index, struct buf *out, struct error *err);
	/* The last byte was handed to the kernel. May be NULL. False: hang up. */
	bool (*sent)(void *context, int index, uint64_t now_ns);
	/* One event of a stream. False: hang up. */
	bool (*event)(void *context, int index, const char *data, size_t n, uint64_t now_ns);
	void (*end)(void *context, int index, const struct load_answer *answer);
};

/* Returns when every request has ended, or with the first failure of our own (memory, descriptors, a hook). */
enum status load_run(const struct load_options *options, struct error *err) NODISCARD;

#endif
