/* refusal.h: why a request is not served: the HTTP status and the error body that say so.
 *
 * Functions that judge a request take a `struct refusal` in place of a `struct error`: the status is part of the answer, and `param` names
 * the field. A message never quotes the client's text (it may hold anything) nor a file or line of ours.
 */
#ifndef TANDEM_SERVE_REFUSAL_H
#define TANDEM_SERVE_REFUSAL_H

#include "serve/out.h"

/* X(HTTP status, "type" of the error body). 4xx: the client must change something, and its library will not try again; 5xx and 429:
 * trying again may help. */
#define REFUSAL_LIST(X)             \
	X(400, "invalid_request_error") \
	X(401, "authentication_error")  \
	X(404, "not_found_error")       \
	X(405, "not_found_error")       \
	X(408, "timeout_error")         \
	X(413, "invalid_request_error") \
	X(414, "invalid_request_error") \
	X(417, "invalid_request_error") \
	X(429, "rate_limit_error")      \
	X(431, "invalid_request_error") \
	X(500, "server_error")          \
	X(501, "not_supported_error")   \
	X(503, "unavailable_error")

struct refusal {
	int status;        /* 0: none */
	const char *type;  /* NULL: as the table says */
	const char *param; /* the field at fault, static storage; NULL: none */
	int retry_after;   /* seconds; 0: no such header */
	char message[400];
};

/* Fills `r` and returns BAD_INPUT, so that `return refuse(...)` reads well and TRY works. */
PRINTF_LIKE(4, 5) enum status refuse(struct refusal *r, int status, const char *param, const char *format, ...);
/* What a library function of ours reported: BAD_INPUT and USAGE are the client's fault (400), NO_ROOM and NO_MEMORY 503, the rest 500. */
enum status refuse_error(struct refusal *r, const char *param, enum status code, const struct error *err);
enum status refuse_memory(struct refusal *r);

const char *refusal_type(const struct refusal *r);
/* {"error":{"message","type","param","code"}}, without a line end. */
void refusal_write(const struct refusal *r, struct out *out);

#endif
