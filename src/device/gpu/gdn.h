/* gdn.h: what the kernels of the gated delta net share, between gdn.cu (checks, choice, any shape and number of rows) and the families of kernels. C++17.
 */
#ifndef TANDEM_DEVICE_GPU_GDN_H
#define TANDEM_DEVICE_GPU_GDN_H

#include "device/gpu/context.h"

#define GDN_MAX_K 128
#define GDN_MAX_V 256
#define GDN_GPU_TAPS 6 /* with more a tile does not fit into 48 KiB of shared memory */

struct gdn_params {
	const void *qkvz, *ba; /* [rows] of T */
	int64_t stride, ba_stride, out_stride;
	const float *conv, *a_log, *dt_bias, *norm;
	float eps;
	char *state; /* of this layer, in slot 0 */
	int64_t slot_bytes, inputs_at; /* from a slot to the next; of the inputs behind S */
	const int32_t *row_start, *read, *write;
	void *out;
	int k_heads, v_heads, k_dim, v_dim, taps;
	int columns, tile; /* of a block */
	int first_seq;     /* of the launch; those before it are another kernel's */
	int longest;       /* sequences with more rows are not for gdn.cu's kernels */
	bool fresh;        /* this step wrote the states that are read: a kernel waits for the one before it first */
};

#ifdef __cplusplus
extern "C" {
#endif
/* ---- gdn_decode.cu: sequences [p.first_seq, p.first_seq + seqs) of one row each. */

bool gdn_decode_can(const struct gpu_context *context, const struct gdn_params *p);
gpu_error gdn_decode_launch(const struct gpu_context *context, const struct gdn_params *p, enum dtype dtype, int seqs);
#ifdef __cplusplus
}
#endif

#endif
