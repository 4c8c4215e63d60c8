/* qkv.h: what happens to the rows of a fused query-key-value projection before attention. */
#ifndef TANDEM_DEVICE_GPU_QKV_H
#define TANDEM_DEVICE_GPU_QKV_H

#include "device/gpu/context.h"

/* In place on `qkv`: norms of q and k heads (where given), rotation, keys and values into the cache. Queries stay in the first columns. */
struct gpu_qkv_args {
	struct tensor qkv; /* [T, (q_heads + 2 kv_heads) head_dim] sharded: q | k | v */
	int q_heads, kv_heads, head_dim, rotary_dim;
	const float *q_norm, *k_norm; /* [head_dim] or NULL */
	float eps;
	const float *cos_sin;   /* [T][rotary_dim] */
	const int32_t *kv_slot; /* [T] */
	const struct kv_cache *cache;
	int layer;
};

#ifdef __cplusplus
extern "C" {
#endif
/* True if gpu_qkv takes these: head sizes that a wave holds in equal packs, aligned rows. */
bool gpu_qkv_fits(const struct gpu_context *context, const struct gpu_qkv_args *args);
enum status gpu_qkv(struct stream *stream, const struct gpu_qkv_args *args, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
