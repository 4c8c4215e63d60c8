/* fused.c: the fused ops as compositions: which kernels run for which shapes. One function per path; the op picks one. */
#include "device/gpu/context.h"
#include "device/gpu/qkv.h"

static enum status make_norm(struct stream *stream, const struct norm_input *in, struct error *err)
{
	if (in->done) return STATUS_OK;
	return gpu_rms_norm(stream, &(struct rms_norm_args){.x = in->x, .weight = in->weight, .eps = in->eps, .out = in->h}, err);
}

/* The rows of q, k and v, op by op: any head size and alignment. */
static enum status qkv_by_ops(struct stream *stream, const struct gpu_qkv_args *a, struct error *err)
{
	const int q_cols = a->q_heads * a->head_dim, kv_cols = a->kv_heads * a->head_dim;
	struct tensor q = tensor_columns(&a->qkv, 0, q_cols), k = tensor_columns(&a->qkv, q_cols, kv_cols),
	              v = tensor_columns(&a->qkv, q_cols + kv_cols, kv_cols);
	if (a->q_norm) TRY(gpu_head_norm(stream, &(struct head_norm_args){.x = q, .heads = a->q_heads, .head_dim = a->head_dim, .weight = a->q_norm, .eps = a->eps}, err));
	if (a->k_norm) TRY(gpu_head_norm(stream, &(struct head_norm_args){.x = k, .heads = a->kv_heads, .head_dim = a->head_dim, .weight = a->k_norm, .eps = a->eps}, err));
	struct rope_args rope = {.x = q, .heads = a->q_heads, .head_dim = a->head_dim, .rotary_dim = a->rotary_dim, .cos_sin = a->cos_sin};
	TRY(gpu_rope(stream, &rope, err));
	rope.x = k, rope.heads = a->kv_heads;
	TRY(gpu_rope(stream, &rope, err));
	return gpu_kv_write(stream, &(struct kv_write_args){.k = k, .v = v, .cache = a->cache, .layer = a->layer, .kv_slot = a->kv_slot}, err);
}

enum status gpu_attention_in(struct stream *stream, const struct attention_in_args *args, struct error *err)
{
	TRY(make_norm(stream, &args->in, err));
	TRY(gpu_linear(stream, &(struct linear_args){.x = args->in.h, .weight = args->weight, .bias = args->bias, .y = args->qkv}, err));
	const struct gpu_qkv_args qkv = {
		.qkv = args->qkv, .q_heads = args->q_heads, .kv_heads = args->kv_heads, .head_dim = args->head_dim, .rotary_dim = args->rotary_dim,
		.q_norm = args->q_norm, .k_norm = args->k_norm, .eps = args->in.eps, .cos_sin = args->rows->cos_sin, .kv_slot = args->rows->kv_slot,
		.cache = args->cache, .layer = args->layer,
	};
	return gpu_qkv_fits(gpu_context(stream), &qkv) ? gpu_qkv(stream, &qkv, err) : qkv_by_ops(stream, &qkv, err);
}

enum status gpu_mlp_in(struct stream *stream, const struct mlp_in_args *args, struct error *err)
{
	TRY(make_norm(stream, &args->in, err));
	TRY(gpu_linear(stream, &(struct linear_args){.x = args->in.h, .weight = args->weight, .bias = args->bias, .y = args->gate_up}, err));
	return gpu_swiglu(stream, &(struct swiglu_args){.x = args->gate_up, .out = args->out}, err);
}
