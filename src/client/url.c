#include "client/url.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool url_is(const char *text)
{
	return strstr(text, "://") != NULL;
}

static bool put(char *to, size_t size, const char *from, size_t n)
{
	if (n >= size) return false;
	for (size_t i = 0; i < n; i++)
		if (from[i] <= ' ' || from[i] == 127) return false;
	memcpy(to, from, n);
	to[n] = 0;
	return true;
}

enum status url_parse(struct url *out, const char *text, struct error *err)
{
	struct url url = {.port = 80};
	if (strncmp(text, "http://", 7) != 0)
		return FAIL(err, USAGE, "URL: '%.80s' is not http://; give one such as http://127.0.0.1:8000 (TLS is not spoken here)", text);
	const char *at = text + 7, *host = at;
	size_t n;
	if (*at == '[') {
		url.brackets = true;
		host = at + 1;
		n = strcspn(host, "]");
		if (!host[n]) n = 0; /* no end: no host */
		at = host + n + (host[n] == ']');
	} else {
		n = strcspn(at, ":/");
		at += n;
	}
	bool good = n && put(url.host, sizeof url.host, host, n) && !strpbrk(url.host, "@?#");
	if (*at == ':') {
		size_t digits = strspn(++at, "0123456789");
		url.port = digits && digits < 6 ? atoi(at) : 0;
		at += digits;
	}
	size_t path = strlen(at);
	while (path && at[path - 1] == '/') path--;
	good = good && url.port >= 1 && url.port <= 65535 && (!*at || *at == '/') && !strpbrk(at, "?#") && put(url.path, sizeof url.path, at, path);
	if (!good) return FAIL(err, USAGE, "URL: '%.80s' is none of a server; give one such as http://127.0.0.1:8000", text);
	*out = url;
	return STATUS_OK;
}

enum status url_resolve(const struct url *url, struct sockaddr_storage *address, socklen_t *length, struct error *err)
{
	char port[8];
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
	snprintf(port, sizeof port, "%d", url->port);
	int rc = getaddrinfo(url->host, port, &hints, &list);
	if (rc) return FAIL(err, IO, "%s: %s; check the name of the server", url->host, gai_strerror(rc));
	memcpy(address, list->ai_addr, list->ai_addrlen);
	*length = list->ai_addrlen;
	freeaddrinfo(list);
	return STATUS_OK;
}
