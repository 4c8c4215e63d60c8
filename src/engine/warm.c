#include "engine/warm.h"

#include "engine/forward.h"

/* One linear as the forward pass calls it. */
struct use {
	struct linear_weight weight;
	const float *bias;
	struct tensor x, y;
	bool partial; /* y is the comm's */
	int most;     /* rows */
};

#define WARM_SHAPES 32 /* that a model has at most; a further one is only run again */
struct warm {
	struct rank *rank;
	struct use done[WARM_SHAPES];
	int count;
};

/* What a library's choice may go by: up to 256 bytes. */
static uintptr_t alignment(const void *address)
{
	const uintptr_t bits = (uintptr_t)address | 256;
	return bits & (~bits + 1);
}

static bool same_alignment(const struct use *a, const struct use *b)
{
	return alignment(a->weight.data) == alignment(b->weight.data) && alignment(a->x.data) == alignment(b->x.data) && alignment(a->y.data) == alignment(b->y.data);
}

static bool is_done(struct warm *warm, const struct use *use)
{
	for (int i = 0; i < warm->count; i++) {
		const struct use *d = &warm->done[i];
		if (d->weight.n == use->weight.n && d->weight.k == use->weight.k && d->weight.dtype == use->weight.dtype && d->partial == use->partial &&
		    d->y.dtype == use->y.dtype && d->y.row_stride == use->y.row_stride && same_alignment(d, use))
			return true;
	}
	if (warm->count < WARM_SHAPES) warm->done[warm->count++] = *use;
	return false;
}

static enum status run(struct warm *warm, const struct use *use, struct error *err)
{
	struct rank *rank = warm->rank;
	const struct device_ops *vt = rank->device->vt;
	if (!use->weight.n || is_done(warm, use)) return STATUS_OK;
	for (int rows = 0; rows < use->most;) {
		const int next = vt->linear_rows_after(rank->stream, rows);
		if (!next) return STATUS_OK;
		rows = next < use->most ? next : use->most;
		struct linear_args args = {.x = use->x, .weight = &use->weight, .bias = use->bias, .y = use->y};
		args.x.rows = args.y.rows = rows;
		if (use->partial) {
			TRY(COMM(rank->comm, partial, rows, &args.y, err));
			args.split = &rank->comm->split;
		}
		TRY(rank_moves(rank, err));
		TRY(OP(rank->stream, linear, &args, err));
	}
	return STATUS_OK;
}

/* The column-parallel half of a sub-layer: y has the columns of all parts. */
static enum status run_columns(struct warm *warm, const struct fused_weight *weight, const float *bias, struct tensor x, void *y, int cols, int most,
                               struct error *err)
{
	const struct tensor all = tensor_view(y, warm->rank->activation, TENSOR_SHARDED, most, cols);
	for (int i = 0; i < weight->parts; i++) {
		struct use use = {.weight = weight->part[i], .bias = bias ? bias + weight->begin[i] : NULL, .x = x, .most = most};
		use.y = tensor_columns(&all, weight->begin[i], weight->part[i].n);
		TRY(run(warm, &use, err));
	}
	return STATUS_OK;
}

/* The row-parallel half: what goes in is a buffer of its inputs alone. */
static enum status run_rows(struct warm *warm, const struct fused_weight *weight, void *x, int most, struct error *err)
{
	if (!weight->parts) return STATUS_OK;
	const struct use use = {.weight = weight->part[0], .x = tensor_view(x, warm->rank->activation, TENSOR_SHARDED, most, weight->part[0].k), .partial = true,
	                        .most = most};
	return run(warm, &use, err);
}

/* Both projections of a gated delta net, as the op that takes them together runs them. */
static enum status run_gdn_in(struct warm *warm, const struct gdn_weights *w, struct tensor h, int most, struct error *err)
{
	const struct rank *rank = warm->rank;
	struct linear_weight both = w->qkvz.part[0];
	if (w->qkvz.parts != 1 || w->ba.parts != 1) return STATUS_OK;
	both.n += w->ba.part[0].n;
	const int cols = rank_shape(&rank->model->config, rank->world_size).gdn_in_cols;
	const struct tensor all = tensor_view(rank->buffers.qkv, rank->activation, TENSOR_SHARDED, most, cols);
	const struct use use = {.weight = both, .x = h, .y = tensor_columns(&all, 0, both.n), .most = most};
	return run(warm, &use, err);
}

/* The shared expert's linears, as the back end's op runs them: each from and to rows of their own. */
static enum status run_shared(struct warm *warm, const struct moe_weights *w, struct tensor h, struct error *err)
{
	const struct rank *rank = warm->rank;
	const struct linear_weight *in = &w->shared_gate_up, *out = &w->shared_down;
	void *moe = rank->buffers.moe;
	const struct use inner = {.weight = *in, .x = h, .y = tensor_view(moe, rank->activation, TENSOR_SHARDED, h.rows, in->n), .most = h.rows};
	const struct use outer = {.weight = *out, .x = tensor_view(moe, rank->activation, TENSOR_REPLICATED, h.rows, out->k),
	                          .y = tensor_view(h.data, rank->activation, TENSOR_REPLICATED, h.rows, out->n), .most = h.rows};
	TRY(run(warm, &inner, err));
	return run(warm, &outer, err);
}

static enum status run_layer(struct warm *warm, const struct layer_weights *w, struct error *err)
{
	const struct rank *rank = warm->rank;
	const struct rank_buffers *b = &rank->buffers;
	const struct rank_shape shape = rank_shape(&rank->model->config, rank->world_size);
	const int most = rank_limits(&rank->options).max_rows;
	const struct tensor h = tensor_view(b->h, rank->activation, TENSOR_REPLICATED, most, rank->model->config.hidden_size);
	TRY(run_columns(warm, &w->qkv, w->qkv_bias, h, b->qkv, shape.qkv_cols, most, err));
	TRY(run_rows(warm, &w->o, b->attn, most, err));
	TRY(run_columns(warm, &w->gdn.qkvz, NULL, h, b->qkv, shape.gdn_in_cols, most, err));
	TRY(run_columns(warm, &w->gdn.ba, NULL, h, b->qkv, shape.gdn_in_cols, most, err));
	if (rank->device->vt->ops.gdn_in) TRY(run_gdn_in(warm, &w->gdn, h, most, err));
	TRY(run_rows(warm, &w->gdn.out, b->attn, most, err));
	TRY(run_columns(warm, &w->gate_up, w->gate_up_bias, h, b->gate_up, 2 * shape.inner, most, err));
	TRY(run_rows(warm, &w->down, b->act, most, err));
	if (!w->moe.router.parts) return STATUS_OK;
	const struct linear_weight *router = &w->moe.op.router;
	const struct use routed = {.weight = *router, .x = h, .y = tensor_view(b->moe, DTYPE_F32, TENSOR_REPLICATED, most, router->n), .most = most};
	TRY(run(warm, &routed, err));
	return w->moe.op.shared_down.n ? run_shared(warm, &w->moe.op, h, err) : STATUS_OK;
}

/* Where the logits of a step go. Several ranks may write into rank 0's memory, which nobody reads meanwhile. */
static enum status run_head(struct warm *warm, enum step_result result, struct error *err)
{
	const struct rank *rank = warm->rank;
	const int outputs = rank_limits(&rank->options).max_outputs;
	const struct use use = {.weight = rank->weights.head, .x = tensor_view(rank->buffers.head_h, rank->activation, TENSOR_REPLICATED, outputs, rank->model->config.hidden_size),
	                        .y = forward_logits(rank, outputs, result), .most = outputs};
	return run(warm, &use, err);
}

enum status warm_linears(struct rank *rank, struct error *err)
{
	struct warm warm = {.rank = rank};
	if (rank->world_size == 1 || !rank->device->vt->linear_rows_after) return STATUS_OK;
	for (int layer = 0; layer < rank->model->config.layers; layer++) TRY(run_layer(&warm, &rank->weights.layers[layer], err));
	TRY(run_head(&warm, RESULT_LOGITS, err));
	TRY(run_head(&warm, RESULT_BEST, err));
	return comm_sync(rank->comm, rank->stream, err);
}
