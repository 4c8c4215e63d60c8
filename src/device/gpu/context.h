/* context.h: what launchers know of the stream they launch on. Valid C17 and C++17; filled by device.c at stream creation. */
#ifndef TANDEM_DEVICE_GPU_CONTEXT_H
#define TANDEM_DEVICE_GPU_CONTEXT_H

#include "base/log.h"
#include "device/gpu/runtime.h"
#include "device/ops.h"

struct gemm_library; /* cuBLASLt or hipBLASLt, loaded at run time (library.h) */
struct dispatch;     /* which variants of a linear are preferred, and which ran (ways.h) */

struct gpu_context {
	gpu_stream stream;
	int ordinal;
	struct gpu_props props;
	bool alone;             /* no other rank is on this device: a kernel may count on all its multiprocessors */
	bool invariant;         /* --tp-invariant: one order of summation per output element, whatever N, M and the world size */
	void *workspace;        /* device memory for one op at a time: attention's splits, GEMM workspace */
	size_t workspace_bytes;
	uint32_t *counters;     /* device memory, counter_count zeroed words, at least GPU_COUNTERS: a kernel that uses some leaves them zero */
	int counter_count;
	void *meeting;          /* device memory, GPU_MEETING_BYTES: of kernels whose blocks wait for each other (moe_flow.cu), zeroed when the stream is made */
	struct gemm_library *gemm; /* NULL: none on this machine */
	struct dispatch *dispatch;
	const struct log *log; /* or NULL */
	const bool *recording; /* a graph is being recorded on the stream */
};
#define GPU_COUNTERS 16384
#define GPU_MEETING_BYTES 65536

/* Of one layer of the KV cache, which is laid out as docs/GPU.md says: [layer][block][k|v][kv_head][block_tokens][D]. */
static inline size_t gpu_kv_layer_bytes(const struct kv_layout *l)
{
	return (size_t)l->blocks * 2 * (size_t)l->kv_heads * (size_t)l->block_tokens * (size_t)l->head_dim * dtype_bytes(l->dtype);
}

#ifdef __cplusplus
extern "C" {
#endif
const struct gpu_context *gpu_context(const struct stream *stream);

/* Ops of the table (device/ops.h), each in the .cu file of its family. */
#define X(op) enum status gpu_##op(struct stream *stream, const struct op##_args *args, struct error *err);
OP_LIST(X)
OP_FUSED_LIST(X)
OP_FAMILY_LIST(X)
#undef X
#ifdef __cplusplus
}
#endif

#endif
