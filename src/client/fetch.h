/* fetch.h: heads of requests, and one GET at a time. */
#ifndef TANDEM_CLIENT_FETCH_H
#define TANDEM_CLIENT_FETCH_H

#include "client/load.h"
#include "client/url.h"

/* A server, and how to speak to it. */
struct peer {
	struct url url;
	struct sockaddr_storage address;
	socklen_t address_length;
	const char *api_key; /* borrowed; NULL: none */
	uint32_t timeout_ms;
};
/* USAGE for what is no URL, IO for a name that has no address. */
enum status peer_init(struct peer *peer, const char *url, const char *api_key, uint32_t timeout_ms, struct error *err) NODISCARD;

/* Appends a head. body_bytes 0: no body; else one of JSON. */
enum status fetch_head(const struct peer *peer, const char *method, const char *path, size_t body_bytes, struct buf *out, struct error *err) NODISCARD;
/* GET: `body` (cleared first) and the HTTP status. IO if no whole answer comes. */
enum status fetch(const struct peer *peer, const char *path, struct buf *body, int *status, struct error *err) NODISCARD;

#endif
