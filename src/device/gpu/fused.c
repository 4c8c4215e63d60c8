/* fused.c: the fused ops as compositions: which kernels run for which shapes. One function per path; the op picks one. */
#include "device/gpu/device.h"
#include "device/gpu/qkv.h"
#include "device/gpu/skinny.h"
#include "device/gpu/ways.h"
#include "device/gpu/wide.h"

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

/* The linear of a fused op; `norm`: its kernel makes h for itself. */
static struct fused_problem problem_of(const struct norm_input *in, const struct linear_weight *w, const float *bias, const struct tensor *y, bool norm)
{
	struct fused_problem p = {.gemm = {.x = in->h.data, .w = w->data, .bias = bias, .y = y->data, .type = w->dtype, .y_type = y->dtype, .m = in->x.rows, .n = w->n,
	                                    .k = w->k, .x_stride = in->h.row_stride, .w_stride = w->k, .y_stride = y->row_stride}};
	if (norm) p.norm = (struct linear_norm){.x = in->x.data, .stride = in->x.row_stride, .weight = in->weight, .eps = in->eps};
	return p;
}

static enum status by_skinny(struct stream *stream, const struct norm_input *in, const struct fused_problem *p, const struct skinny_shape *shape, bool inside,
                             struct error *err)
{
	if (!p->norm.x) TRY(make_norm(stream, in, err));
	way_ran(gpu_context(stream), &(struct way){.kernel = WAY_SKINNY, .fusion = inside ? WAY_NORM_INSIDE : WAY_NORM_BEFORE, .skinny = *shape});
	return skinny_launch(gpu_context(stream), p, shape, err);
}

static enum status by_wide(struct stream *stream, const struct norm_input *in, const struct fused_problem *p, const struct wide_shape *shape, struct error *err)
{
	TRY(make_norm(stream, in, err));
	way_ran(gpu_context(stream), &(struct way){.kernel = WAY_WIDE, .fusion = WAY_NORM_BEFORE, .wide = *shape});
	return wide_launch(gpu_context(stream), p, shape, err);
}

static enum status by_decode(struct stream *stream, const struct fused_problem *p, struct error *err)
{
	way_ran(gpu_context(stream), &(struct way){.kernel = WAY_DECODE, .fusion = WAY_NORM_INSIDE});
	return decode_launch(gpu_context(stream), p, err);
}

/* One kernel for all of it, where the shape allows: the preferred one, or, where that is NULL, with the norm inside for the fewest rows. *done false: nothing
 * has been launched. */
static enum status run_fused(struct stream *stream, const struct norm_input *in, const struct fused_problem *p, const struct way_preference *preferred, bool *done,
                             struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	*done = false;
	if (context->invariant || in->x.dtype != DTYPE_F32 || in->h.dtype != p->gemm.type || p->gemm.k != in->x.cols || in->h.rows != in->x.rows) return STATUS_OK;
	struct fused_problem bare = *p; /* h made by its own kernel */
	bare.norm.x = NULL;
	*done = true;
	if (preferred) {
		const bool inside = preferred->way.fusion == WAY_NORM_INSIDE;
		if (preferred->way.kernel == WAY_DECODE) return by_decode(stream, p, err);
		if (preferred->way.kernel == WAY_WIDE) return by_wide(stream, in, &bare, &preferred->way.wide, err);
		return by_skinny(stream, in, inside ? p : &bare, &preferred->way.skinny, inside, err);
	}
	const struct fused_problem *whole = skinny_can(context, p) ? p : skinny_can(context, &bare) ? &bare : NULL;
	const struct skinny_shape shape = whole ? skinny_default(context, whole) : (struct skinny_shape){0};
	if (shape.rows) return by_skinny(stream, in, whole, &shape, whole->norm.x != NULL, err);
	const struct wide_shape wide = wide_can(context, &bare) ? wide_default(context, &bare) : (struct wide_shape){0};
	if (wide.blocks) return by_wide(stream, in, &bare, &wide, err);
	if (decode_can(context, p)) return by_decode(stream, p, err);
	*done = false;
	return STATUS_OK;
}

/* A fused op: one kernel if it is preferred, or, without a preference, if one suits. *done false: norm, linear and ending by themselves are wanted. */
typedef enum status fused_fn(struct stream *stream, const void *args, const struct way_preference *preferred, bool *done, struct error *err);
static enum status try_fused(struct stream *stream, fused_fn *run, const void *args, const struct way_preference *preferred, bool *done, struct error *err)
{
	*done = false;
	if (preferred && !way_is_fused(&preferred->way)) return STATUS_OK;
	enum status st = run(stream, args, preferred, done, err);
	if (st != STATUS_OK && preferred) error_prefix(err, "preferred %s '%s'", preferred->name.kernel, preferred->name.mode);
	if (st != STATUS_OK || *done || !preferred) return st;
	return FAIL(err, UNSUPPORTED, "preferred %s '%s': no one kernel computes this: f32 rows, weights, activations and cache of one plain type, heads rotated whole "
	                              "and without norms of their own are wanted",
	            preferred->name.kernel, preferred->name.mode);
}

static enum status attention_in_fused(struct stream *stream, const void *args, const struct way_preference *preferred, bool *done, struct error *err)
{
	const struct attention_in_args *a = args;
	const struct kv_layout *kv = &a->cache->layout;
	*done = false;
	if (a->q_norm || a->k_norm || a->rotary_dim != a->head_dim || kv->dtype != a->weight->dtype || a->qkv.dtype != a->weight->dtype || !dtype_is_plain(kv->dtype) ||
	    a->weight->n != (a->q_heads + 2 * a->kv_heads) * a->head_dim || a->qkv.rows != a->in.x.rows || kv->kv_heads != a->kv_heads || kv->head_dim != a->head_dim)
		return STATUS_OK; /* the composition takes it, or says what is wrong */
	struct fused_problem p = problem_of(&a->in, a->weight, a->bias, &a->qkv, !a->in.done);
	p.ending = LINEAR_ROPE;
	p.rope = (struct linear_rope){.q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .cos_sin = a->rows->cos_sin, .kv_slot = a->rows->kv_slot,
	                              .cache = (char *)a->cache->data + (size_t)a->layer * gpu_kv_layer_bytes(kv), .block_tokens = kv->block_tokens};
	return run_fused(stream, &a->in, &p, preferred, done, err);
}

static enum status mlp_in_fused(struct stream *stream, const void *args, const struct way_preference *preferred, bool *done, struct error *err)
{
	const struct mlp_in_args *a = args;
	*done = false;
	if (a->out.dtype != a->weight->dtype || !dtype_is_plain(a->weight->dtype) || a->weight->n != 2 * a->out.cols || a->out.rows != a->in.x.rows) return STATUS_OK;
	struct fused_problem p = problem_of(&a->in, a->weight, a->bias, &a->out, !a->in.done);
	p.ending = LINEAR_SWIGLU;
	p.gelu = a->gelu;
	return run_fused(stream, &a->in, &p, preferred, done, err);
}

/* A linear of in.h, with the norm inside its kernel where nothing else is preferred and that can. */
static enum status run_normed(struct stream *stream, const struct norm_input *in, const struct linear_args *linear, const struct way_preference *preferred,
                              struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const struct fused_problem p = problem_of(in, linear->weight, linear->bias, &linear->y, true);
	const bool fits = in->x.dtype == DTYPE_F32 && in->h.dtype == p.gemm.type && in->x.cols == p.gemm.k && linear->y.cols == p.gemm.n && linear->y.rows == p.gemm.m &&
	                  (linear->y.dtype == p.gemm.type || linear->y.dtype == DTYPE_F32);
	if (fits && !preferred && !in->done && !context->invariant && skinny_can(context, &p)) {
		const struct skinny_shape shape = skinny_default(context, &p);
		if (shape.rows) return by_skinny(stream, in, &p, &shape, true, err);
	}
	TRY(make_norm(stream, in, err));
	return linear_run(stream, linear, preferred, err);
}

/* The linear of a composition. */
static enum status run_apart(struct stream *stream, const struct norm_input *in, const struct linear_args *linear, const struct way_preference *preferred,
                             struct error *err)
{
	TRY(run_normed(stream, in, linear, preferred, err));
	gpu_context(stream)->dispatch->ran.fusion = WAY_APART;
	return STATUS_OK;
}

static const struct way_preference *preference(struct stream *stream, enum linear_use use, const struct linear_weight *w, int m)
{
	gpu_context(stream)->dispatch->use = use;
	return way_preferred(gpu_context(stream), use, w, m);
}

enum status gpu_attention_in(struct stream *stream, const struct attention_in_args *args, struct error *err)
{
	bool done;
	if (args->in.x.rows == 0) return STATUS_OK;
	const struct way_preference *preferred = preference(stream, LINEAR_USE_ATTENTION_IN, args->weight, args->in.x.rows);
	TRY(try_fused(stream, attention_in_fused, args, preferred, &done, err));
	if (done) return STATUS_OK;
	TRY(run_apart(stream, &args->in, &(struct linear_args){.x = args->in.h, .weight = args->weight, .bias = args->bias, .y = args->qkv}, preferred, err));
	const struct gpu_qkv_args qkv = {
		.qkv = tensor_columns(&args->qkv, 0, (args->q_heads + 2 * args->kv_heads) * args->head_dim), .q_heads = args->q_heads, .kv_heads = args->kv_heads, .head_dim = args->head_dim, .rotary_dim = args->rotary_dim,
		.q_norm = args->q_norm, .k_norm = args->k_norm, .eps = args->in.eps, .cos_sin = args->rows->cos_sin, .kv_slot = args->rows->kv_slot,
		.cache = args->cache, .layer = args->layer,
	};
	return gpu_qkv_fits(gpu_context(stream), &qkv) ? gpu_qkv(stream, &qkv, err) : qkv_by_ops(stream, &qkv, err);
}

enum status gpu_gdn_in(struct stream *stream, const struct gdn_in_args *args, struct error *err)
{
	const struct linear_weight *qkvz = args->qkvz, *ba = args->ba;
	struct linear_args linear = {.x = args->in.h, .weight = qkvz, .y = tensor_columns(&args->out, 0, qkvz->n)};
	if (args->in.x.rows == 0) return STATUS_OK;
	if (args->out.cols != qkvz->n + ba->n || qkvz->k != ba->k)
		return FAIL(err, BAD_INPUT, "gdn_in: [%d,%d] and [%d,%d] for %d columns; as many columns as rows of both are wanted", qkvz->n, qkvz->k, ba->n, ba->k, args->out.cols);
	const bool adjacent = ba->dtype == qkvz->dtype && (const char *)ba->data == (const char *)qkvz->data + gpu_linear_bytes(qkvz->dtype, qkvz->n, qkvz->k);
	gpu_context(stream)->dispatch->use = LINEAR_USE_PLAIN;
	if (adjacent) {
		struct linear_weight both = *qkvz;
		both.n += ba->n;
		linear.weight = &both, linear.y = args->out;
		TRY(run_normed(stream, &args->in, &linear, NULL, err));
	} else {
		TRY(run_normed(stream, &args->in, &linear, NULL, err));
		if (!args->in.done) TRY(make_norm(stream, &args->in, err)); /* it may be in the kernel of the first alone */
		linear.weight = ba, linear.y = tensor_columns(&args->out, qkvz->n, ba->n);
		TRY(linear_run(stream, &linear, NULL, err));
	}
	gpu_context(stream)->dispatch->ran.fusion = WAY_PLAIN;
	return STATUS_OK;
}

enum status gpu_mlp_in(struct stream *stream, const struct mlp_in_args *args, struct error *err)
{
	bool done;
	if (args->in.x.rows == 0) return STATUS_OK;
	const struct way_preference *preferred = preference(stream, LINEAR_USE_MLP_IN, args->weight, args->in.x.rows);
	TRY(try_fused(stream, mlp_in_fused, args, preferred, &done, err));
	if (done) return STATUS_OK;
	TRY(run_apart(stream, &args->in, &(struct linear_args){.x = args->in.h, .weight = args->weight, .bias = args->bias, .y = args->gate_up}, preferred, err));
	if (args->gelu) return gpu_geglu(stream, &(struct geglu_args){.x = args->gate_up, .out = args->out}, err);
	return gpu_swiglu(stream, &(struct swiglu_args){.x = args->gate_up, .out = args->out}, err);
}
