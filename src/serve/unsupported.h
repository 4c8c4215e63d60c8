/* unsupported.h: fields that mean something to other servers and nothing here yet: refused by name, so that nobody takes an answer for
 * one that they shaped. 501, or 400 where the value would be wrong anywhere. */
#ifndef TANDEM_SERVE_UNSUPPORTED_H
#define TANDEM_SERVE_UNSUPPORTED_H

#include <jansson.h>

#include "serve/refusal.h"

/* `where`: bits of enum endpoint. */
enum status unsupported_check(const json_t *body, unsigned where, struct refusal *r) NODISCARD;

#endif
