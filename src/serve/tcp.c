/* A file of its own, because <linux/tcp.h> knows more than <netinet/tcp.h> and the two exclude each other. */
#include "serve/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

struct tcp_bytes tcp_bytes(int fd)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof info;
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return (struct tcp_bytes){0};
	return (struct tcp_bytes){.received = info.tcpi_bytes_received, .acknowledged = info.tcpi_bytes_acked};
}

void tcp_no_delay(int fd)
{
	int on = 1;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}
