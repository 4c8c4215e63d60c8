/* carried.h: sums over ranks that the ops around them carry. carried_device.h has how, comm/gpu/p2p.c makes them. Valid C17 and C++17. */
#ifndef TANDEM_DEVICE_GPU_CARRIED_H
#define TANDEM_DEVICE_GPU_CARRIED_H

#include "device/gpu/context.h"
#include "device/gpu/p2p_view.h"

/* A sum over ranks without a kernel of its own (linear_args.send, norm_input.receive): one use of the protocol, begun by the kernel that makes the partial and ended by the one
 * that reads the sum. Its packets lie by groups of CARRIED_GROUP columns, so that a tile of a linear is whole groups. */
struct carried_sum {
	struct p2p_view view;
	const float *bias; /* [cols] or NULL: added to the sum once */
	int rows, cols;    /* cols: a multiple of CARRIED_GROUP */
	enum dtype dtype;  /* of the partials */
};
#define CARRIED_GROUP 16
/* Packets of a group: each holds as many elements as fit, the last one the rest. */
static inline int carried_group_packets(enum dtype dtype)
{
	const int elements = (GPU_WHOLE_BYTES - 4) / (int)dtype_bytes(dtype);
	return (CARRIED_GROUP + elements - 1) / elements;
}

#ifdef __cplusplus
extern "C" {
#endif
/* Both halves as kernels of their own, for linears and norms that do not do it inside (carried.cu). */

/* partial: [rows][stride] of sum->dtype, rows aligned to 4 bytes. */
enum status carried_send(const struct gpu_context *context, const struct carried_sum *sum, const void *partial, int64_t stride, struct error *err);
/* out = x + (sum + bias); x, out: [rows][stride], rows aligned to 8 bytes; the kernel behind carried_send or the linear that sends. */
enum status carried_receive(const struct gpu_context *context, const struct carried_sum *sum, const struct tensor *x, const struct tensor *out, struct error *err);
/* Loads these kernels' code. */
gpu_error carried_preload(enum dtype dtype);
#ifdef __cplusplus
}
#endif

#endif
