/* connect.h: peer access of a group's devices, checked both ways and proved (contract C7). */
#ifndef TANDEM_COMM_GPU_CONNECT_H
#define TANDEM_COMM_GPU_CONNECT_H

#include "comm/transport.h"

/* As transport.suits. */
bool connect_suits(const struct device_ops *ops, int world_size, const struct comm_options *options);
/* Collective call: enables peer access between all ranks' devices and proves that it works. As transport.can_connect. */
enum status connect_peers(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err) NODISCARD;

#endif
