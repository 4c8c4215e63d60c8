/* tcp.h: what the kernel says about a connection. */
#ifndef TANDEM_SERVE_TCP_H
#define TANDEM_SERVE_TCP_H

#include <stdbool.h>
#include <stdint.h>

struct tcp_bytes {
	uint64_t received, acknowledged; /* since it was opened; 0 where the kernel does not say */
};
struct tcp_bytes tcp_bytes(int fd);
/* Small writes go out at once. */
void tcp_no_delay(int fd);

#endif
