/* url.h: http://host[:port][/path], and what it resolves to. */
#ifndef TANDEM_CLIENT_URL_H
#define TANDEM_CLIENT_URL_H

#include <stdbool.h>
#include <sys/socket.h>

#include "base/status.h"

struct url {
	char host[256]; /* without the brackets of an IPv6 address */
	int port;
	char path[256]; /* no slash at its end; may be empty */
	bool brackets;
};

bool url_is(const char *text);
/* USAGE on anything else. */
enum status url_parse(struct url *out, const char *text, struct error *err) NODISCARD;
/* The first TCP address. IO if there is none. */
enum status url_resolve(const struct url *url, struct sockaddr_storage *address, socklen_t *length, struct error *err) NODISCARD;

#endif
