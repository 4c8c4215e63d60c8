/* warm.h: runs every linear of a rank once at each size that the back end tells apart, before the ranks first sum together. */
#ifndef TANDEM_ENGINE_WARM_H
#define TANDEM_ENGINE_WARM_H

#include "engine/rank.h"

/* A vendor's library loads the kernel of an algorithm when it first runs. Loading may wait for the device, with a lock of the process held; a kernel on that
 * device that waits for a peer, whose own launch waits for the lock, would then wait until its deadline. So nothing is left to be loaded once
 * collectives run. One rank and back ends that load nothing (device_ops.linear_rows_after) have nothing to do. Results go to memory that each step writes
 * before it reads it. Worker thread, after rank_prepare; ends with the stream quiet. */
enum status warm_linears(struct rank *rank, struct error *err) NODISCARD;

#endif
