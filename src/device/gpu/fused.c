/* fused.c: the fused ops as compositions: which kernels run for which shapes. One function per path; the op picks one. */
#include "device/gpu/context.h"
#include "device/gpu/qkv.h"
#include "device/gpu/skinny.h"

/* h, and the sum before it, by kernels of their own. */
static enum status make_norm(struct stream *stream, const struct norm_input *in, struct error *err)
{
	if (in->done) return STATUS_OK;
	if (in->receive) TRY(carried_receive(gpu_context(stream), in->receive, &in->x, &in->sum, err));
	return gpu_rms_norm(stream, &(struct rms_norm_args){.x = in->receive ? in->sum : in->x, .weight = in->weight, .eps = in->eps, .out = in->h}, err);
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

/* The linear of a fused op; `norm`: its kernel makes h for itself. */
static struct fused_problem problem_of(const struct norm_input *in, const struct linear_weight *w, const float *bias, const struct tensor *y, bool norm)
{
	struct fused_problem p = {.gemm = {.x = in->h.data, .w = w->data, .bias = bias, .y = y->data, .type = w->dtype, .y_type = y->dtype, .m = in->x.rows, .n = w->n,
	                                    .k = w->k, .x_stride = in->h.row_stride, .w_stride = w->k, .y_stride = y->row_stride}};
	if (norm) p.norm = (struct linear_norm){.x = in->x.data, .stride = in->x.row_stride, .weight = in->weight, .eps = in->eps};
	if (norm && in->receive) p.link = (struct linear_link){.kind = LINEAR_RECEIVE, .sum = *in->receive, .out = in->sum.data};
	return p;
}

/* One kernel for all of it, where the shape allows; with the norm inside for the fewest rows. *done false: nothing has been launched. */
static enum status run_fused(struct stream *stream, const struct norm_input *in, const struct fused_problem *p, bool *done, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	*done = false;
	if (context->invariant || in->x.dtype != DTYPE_F32 || in->h.dtype != p->gemm.type || p->gemm.k != in->x.cols || in->h.rows != in->x.rows) return STATUS_OK;
	struct fused_problem bare = *p; /* h made by its own kernel */
	bare.norm.x = NULL;
	bare.link.kind = LINEAR_ALONE;
	const struct fused_problem *whole = skinny_can(context, p) ? p : skinny_can(context, &bare) ? &bare : NULL;
	const struct skinny_shape shape = whole ? skinny_default(context, whole) : (struct skinny_shape){0};
	*done = true;
	if (shape.rows) {
		if (!whole->norm.x) TRY(make_norm(stream, in, err));
		return skinny_launch(context, whole, &shape, err);
	}
	if (decode_can(context, p)) return decode_launch(context, p, err);
	*done = false;
	return STATUS_OK;
}

static enum status attention_in_fused(struct stream *stream, const struct attention_in_args *a, bool *done, struct error *err)
{
	const struct kv_layout *kv = &a->cache->layout;
	*done = false;
	if (a->q_norm || a->k_norm || a->rotary_dim != a->head_dim || kv->dtype != a->weight->dtype || a->qkv.dtype != a->weight->dtype || !dtype_is_plain(kv->dtype) ||
	    a->weight->n != (a->q_heads + 2 * a->kv_heads) * a->head_dim || a->qkv.rows != a->in.x.rows || kv->kv_heads != a->kv_heads || kv->head_dim != a->head_dim)
		return STATUS_OK; /* the composition takes it, or says what is wrong */
	struct fused_problem p = problem_of(&a->in, a->weight, a->bias, &a->qkv, !a->in.done);
	const size_t layer_bytes = (size_t)kv->blocks * 2 * (size_t)kv->kv_heads * (size_t)kv->block_tokens * (size_t)kv->head_dim * dtype_bytes(kv->dtype);
	p.ending = LINEAR_ROPE;
	p.rope = (struct linear_rope){.q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .cos_sin = a->rows->cos_sin, .kv_slot = a->rows->kv_slot,
	                              .cache = (char *)a->cache->data + (size_t)a->layer * layer_bytes, .block_tokens = kv->block_tokens};
	return run_fused(stream, &a->in, &p, done, err);
}

static enum status mlp_in_fused(struct stream *stream, const struct mlp_in_args *a, bool *done, struct error *err)
{
	*done = false;
	if (a->out.dtype != a->weight->dtype || !dtype_is_plain(a->weight->dtype) || a->weight->n != 2 * a->out.cols || a->out.rows != a->in.x.rows) return STATUS_OK;
	struct fused_problem p = problem_of(&a->in, a->weight, a->bias, &a->out, !a->in.done);
	p.ending = LINEAR_SWIGLU;
	return run_fused(stream, &a->in, &p, done, err);
}

enum status gpu_attention_in(struct stream *stream, const struct attention_in_args *args, struct error *err)
{
	bool done = false;
	if (args->in.x.rows == 0) return STATUS_OK;
	TRY(attention_in_fused(stream, args, &done, err));
	if (done) return STATUS_OK;
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
	bool done = false;
	if (args->in.x.rows == 0) return STATUS_OK;
	TRY(mlp_in_fused(stream, args, &done, err));
	if (done) return STATUS_OK;
	TRY(make_norm(stream, &args->in, err));
	TRY(gpu_linear(stream, &(struct linear_args){.x = args->in.h, .weight = args->weight, .bias = args->bias, .y = args->gate_up}, err));
	return gpu_swiglu(stream, &(struct swiglu_args){.x = args->gate_up, .out = args->out}, err);
}
