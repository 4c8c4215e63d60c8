/* xccl.h: what xccl.c and its kernel share. */
#ifndef TANDEM_COMM_GPU_XCCL_H
#define TANDEM_COMM_GPU_XCCL_H

#include "comm/gpu/p2p.h"

#ifdef __cplusplus
extern "C" {
#endif
/* x = x + (partial[0] + bias): partial[0] is the sum already. */
gpu_error xccl_launch_add(const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream);
#ifdef __cplusplus
}
#endif

#endif
