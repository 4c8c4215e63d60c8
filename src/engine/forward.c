#include "engine/forward.h"

#include <math.h>

#include "engine/device_sampler.h"
#include "engine/dispatch.h"

_Static_assert(MODEL_MAX_EXPERTS_PER_TOKEN <= MOE_MAX_TOP_K, "the op takes what the model may ask for");

/* A step of the equation: run the op, unless the group is dead; let the coordinator see that this rank moves. */
#define RUN(op, ...)                                                          \
	do {                                                                      \
		TRY(rank_moves(rank, err));                                           \
		TRY(OP(rank->stream, op, &((struct op##_args)__VA_ARGS__), err));     \
		TRY(rank_mark(rank, #op, err));                                       \
	} while (0)
/* The back end's op that does several steps in one pass; what stands in the other branch is what it must compute. */
#define FUSED(op, weights) (rank->stream->vt->ops.op && (weights)->parts == 1)

/* The residual stream, and its norm for the next sub-layer. */
struct hidden {
	struct tensor x; /* [T,H] f32 */
	struct tensor h; /* [T,H] memory for the norm */
	bool normed;     /* the collective that made x has made h too */
};

static enum status norm(struct rank *rank, struct hidden *s, const float *weight, struct error *err)
{
	if (!s->normed) RUN(rms_norm, {.x = s->x, .weight = weight, .eps = rank->model->config.rms_eps, .out = s->h});
	return STATUS_OK;
}

/* y = x W^T (+ bias): the column-parallel half of a sub-layer. */
static enum status column_parallel(struct rank *rank, struct tensor x, const struct fused_weight *weight, const float *bias, struct tensor y,
                                   struct error *err)
{
	for (int i = 0; i < weight->parts; i++) {
		int begin = weight->begin[i];
		RUN(linear, {.x = x, .weight = &weight->part[i], .bias = bias ? bias + begin : NULL, .y = tensor_columns(&y, begin, weight->part[i].n)});
		dispatch_ran(rank, LINEAR_USE_PLAIN, &weight->part[i], x.rows);
	}
	return STATUS_OK;
}

/* With fewer rows the op that reads the norm makes it in its own kernel, while that waits for weights: sooner than behind the sum. On two H200 a
 * decode step of one row took 2.65 ms so and 2.74 ms the other way. */
#define NORM_BEHIND_SUM_ROWS 17

/* The norms around a sub-layer's sum: of what it adds to the residual stream (NULL: that is added as it is), and the next sub-layer's (NULL: there is
 * none). */
struct norms {
	const float *behind, *next;
};

/* The norm that the layer behind this one begins with. */
static const float *norm_of_next(const struct rank *rank, int layer)
{
	return layer + 1 < rank->model->config.layers ? rank->weights.layers[layer + 1].input_norm : NULL;
}

static struct tensor added_rows(const struct rank *rank, const struct hidden *s)
{
	return tensor_view(rank->buffers.y, DTYPE_F32, TENSOR_REPLICATED, s->x.rows, s->x.cols);
}

/* s.x += rms_norm(y), and the next sub-layer's norm while the rows are at hand */
static enum status add_normed(struct rank *rank, struct hidden *s, struct tensor y, struct norms norms, struct error *err)
{
	RUN(norm_add, {.x = s->x, .y = y, .weight = norms.behind, .eps = rank->model->config.rms_eps, .next = norms.next, .h = s->h});
	s->normed = norms.next != NULL;
	return STATUS_OK;
}

static enum status all_reduce(struct rank *rank, const struct all_reduce_args *sum, struct error *err)
{
	TRY(COMM(rank->comm, all_reduce, rank->stream, sum, err));
	TRY(rank_mark(rank, "all_reduce", err));
	return rank_moves(rank, err);
}

/* y = sum over ranks of `partial` + bias, s.x += its norm. */
static enum status reduce_normed(struct rank *rank, struct tensor partial, const float *bias, struct hidden *s, struct norms norms, struct error *err)
{
	struct tensor y = added_rows(rank, s);
	TRY(all_reduce(rank, &(struct all_reduce_args){.partial = partial, .x = y, .bias = bias}, err));
	return add_normed(rank, s, y, norms, err);
}

/* s.x += sum over ranks of `partial` + bias; the all-reduce may make the next norm as well. */
static enum status reduce(struct rank *rank, struct tensor partial, const float *bias, struct hidden *s, const float *next_norm, struct error *err)
{
	struct all_reduce_args sum = {.partial = partial, .x = s->x, .add_residual = true, .bias = bias};
	s->normed = false;
	if (next_norm && rank->comm->vt->norms && s->x.rows >= NORM_BEHIND_SUM_ROWS) {
		sum.norm_weight = next_norm;
		sum.norm_eps = rank->model->config.rms_eps;
		sum.h = s->h;
		s->normed = true;
	}
	return all_reduce(rank, &sum, err);
}

/* s.x += sum over ranks of in W^T (+ bias): the row-parallel half of a sub-layer and its all-reduce. */
static enum status row_parallel(struct rank *rank, struct tensor in, const struct fused_weight *weight, const float *bias, struct hidden *s,
                                struct norms norms, struct error *err)
{
	struct tensor partial;
	s->normed = false;
	if (rank->adds && norms.behind) {
		in.dist = TENSOR_REPLICATED; /* the part of the only rank */
		RUN(linear, {.x = in, .weight = &weight->part[0], .bias = bias, .y = added_rows(rank, s)});
		dispatch_ran(rank, LINEAR_USE_PLAIN, &weight->part[0], in.rows);
		return add_normed(rank, s, added_rows(rank, s), norms, err);
	}
	if (rank->adds) {
		RUN(linear, {.x = in, .weight = &weight->part[0], .bias = bias, .y = s->x, .accumulate = true});
		dispatch_ran(rank, LINEAR_USE_ACCUMULATE, &weight->part[0], in.rows);
		return STATUS_OK;
	}
	TRY(COMM(rank->comm, partial, s->x.rows, &partial, err));
	RUN(linear, {.x = in, .weight = &weight->part[0], .split = &rank->comm->split, .y = partial});
	dispatch_ran(rank, LINEAR_USE_PARTIAL, &weight->part[0], in.rows);
	if (norms.behind) return reduce_normed(rank, partial, bias, s, norms, err);
	return reduce(rank, partial, bias, s, norms.next, err);
}

/* sqrt(H), in bf16 where the activations are, as the models' own code has it; 0: rows stay as they are. */
static float embedding_scale(const struct rank *rank)
{
	const struct model_config *c = &rank->model->config;
	float scale = c->scaled_embedding ? (float)sqrt((double)c->hidden_size) : 0;
	return rank->activation == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(scale)) : scale;
}

/* s.x = the tokens' rows of the embedding. Of a split one each rank adds those that it has: a sum with one term, which is exact. */
static enum status embedding(struct rank *rank, struct hidden *s, struct error *err)
{
	const struct rank_weights *w = &rank->weights;
	struct tensor partial;
	if (!rank->options.embedding_split) {
		RUN(embed, {.table = &w->embed, .token = rank->rows.token, .scale = embedding_scale(rank), .out = s->x});
		return STATUS_OK;
	}
	TRY(COMM(rank->comm, partial, s->x.rows, &partial, err));
	RUN(embed, {.table = &w->embed, .begin = w->embed_begin, .token = rank->rows.token, .scale = embedding_scale(rank), .out = partial});
	return all_reduce(rank, &(struct all_reduce_args){.partial = partial, .x = s->x}, err);
}

/* The cache that a layer's keys are in, the rows with its slots, blocks and angles, and which of its layers it is. */
struct kept {
	const struct kv_cache *cache;
	const struct step_rows *rows;
	int nth;
};

/* From the residual stream to queries (first columns of qkv) and cache. */
static enum status attention_in(struct rank *rank, int layer, const struct kept *kept, struct hidden *s, struct tensor qkv, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	struct rank_shape shape = rank_shape(c, rank->world_size);
	struct tensor q = tensor_columns(&qkv, 0, shape.q_cols);
	struct tensor k = tensor_columns(&qkv, shape.q_cols, shape.kv_cols);
	struct tensor v = tensor_columns(&qkv, shape.q_cols + shape.kv_cols, shape.kv_cols);

	const float *cos_sin = kept->rows->cos_sin;

	if (FUSED(attention_in, &w->qkv)) {
		RUN(attention_in, {.in = {.x = s->x, .weight = w->input_norm, .eps = c->rms_eps, .h = s->h, .done = s->normed},
		                   .weight = &w->qkv.part[0], .bias = w->qkv_bias, .q_norm = w->q_norm, .k_norm = w->k_norm, .q_heads = shape.q_heads,
		                   .kv_heads = shape.kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .rows = kept->rows,
		                   .cache = kept->cache, .layer = kept->nth, .qkv = qkv});
		dispatch_ran(rank, LINEAR_USE_ATTENTION_IN, &w->qkv.part[0], s->x.rows);
		return STATUS_OK;
	}
	TRY(norm(rank, s, w->input_norm, err));
	TRY(column_parallel(rank, s->h, &w->qkv, w->qkv_bias, qkv, err));
	if (c->qk_norm) {
		RUN(head_norm, {.x = q, .heads = shape.q_heads, .head_dim = c->head_dim, .weight = w->q_norm, .eps = c->rms_eps});
		RUN(head_norm, {.x = k, .heads = shape.kv_heads, .head_dim = c->head_dim, .weight = w->k_norm, .eps = c->rms_eps});
	}
	RUN(rope, {.x = q, .heads = shape.q_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .cos_sin = cos_sin});
	RUN(rope, {.x = k, .heads = shape.kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .cos_sin = cos_sin});
	RUN(kv_write, {.k = k, .v = v, .cache = kept->cache, .layer = kept->nth, .kv_slot = kept->rows->kv_slot});
	return STATUS_OK;
}

static enum status attention_block(struct rank *rank, int layer, const struct kept *kept, struct hidden *s, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	struct rank_shape shape = rank_shape(c, rank->world_size);
	int rows = s->x.rows;
	struct tensor qkv = tensor_view(rank->buffers.qkv, rank->activation, TENSOR_SHARDED, rows, shape.qkv_cols); /* [T, q|k|v|gate] */
	struct tensor attn = tensor_view(rank->buffers.attn, rank->activation, TENSOR_SHARDED, rows, shape.q_cols);

	TRY(attention_in(rank, layer, kept, s, qkv, err));
	RUN(attention, {.q = tensor_columns(&qkv, 0, shape.q_cols), .out = attn, .q_heads = shape.q_heads, .cache = kept->cache, .layer = kept->nth,
	                .rows = kept->rows, .scale = c->query_scale, .softcap = c->attn_softcap,
	                .window = c->layer_kind[layer] == LAYER_SLIDING ? c->sliding_window : 0});
	if (c->attn_output_gate) RUN(gate, {.x = attn, .gate = tensor_columns(&qkv, shape.q_cols + 2 * shape.kv_cols, shape.q_cols)});
	return row_parallel(rank, attn, &w->o, w->o_bias, s, (struct norms){w->mixed_norm, w->post_norm}, err);
}

/* From the residual stream to `in`, [T, q|k|v|z|b|a]. */
static enum status gdn_in(struct rank *rank, int layer, struct hidden *s, struct tensor in, struct error *err)
{
	const struct layer_weights *w = &rank->weights.layers[layer];
	const struct linear_weight *qkvz = &w->gdn.qkvz.part[0], *ba = &w->gdn.ba.part[0];
	const int rows = s->x.rows, qkvz_cols = rank_shape(&rank->model->config, rank->world_size).qkvz_cols;
	const bool apart = w->gdn.ba.parts > 1 || dispatch_prefers(rank, LINEAR_USE_PLAIN, qkvz, rows) || dispatch_prefers(rank, LINEAR_USE_PLAIN, ba, rows);

	if (FUSED(gdn_in, &w->gdn.qkvz) && !apart) {
		RUN(gdn_in, {.in = {.x = s->x, .weight = w->input_norm, .eps = rank->model->config.rms_eps, .h = s->h, .done = s->normed}, .qkvz = qkvz, .ba = ba, .out = in});
		dispatch_ran(rank, LINEAR_USE_PLAIN, qkvz, rows);
		dispatch_ran(rank, LINEAR_USE_PLAIN, ba, rows);
		return STATUS_OK;
	}
	TRY(norm(rank, s, w->input_norm, err));
	TRY(column_parallel(rank, s->h, &w->gdn.qkvz, NULL, tensor_columns(&in, 0, qkvz_cols), err));
	return column_parallel(rank, s->h, &w->gdn.ba, NULL, tensor_columns(&in, qkvz_cols, in.cols - qkvz_cols), err);
}

/* Rows [row, row + rows) of a tensor. */
static struct tensor tensor_rows(const struct tensor *t, int row, int rows)
{
	struct tensor view = *t;
	view.data = (char *)t->data + (size_t)row * (size_t)t->row_stride * dtype_bytes(t->dtype);
	view.rows = rows;
	return view;
}

/* The recurrence: of what goes on within this step behind the rest, whose states it reads. */
static enum status gdn_rows(struct rank *rank, const struct gdn_args *all, struct error *err)
{
	const int tails = all->rows->tails, first = all->rows->rows - all->rows->tail_rows, seqs = all->rows->seqs - tails;
	struct step_rows rows = *all->rows;
	struct gdn_args part = *all;
	part.rows = &rows;
	if (!tails) return OP(rank->stream, gdn, all, err);
	rows.rows = first, rows.seqs = seqs, rows.tails = rows.tail_rows = 0;
	part.qkvz = tensor_rows(&all->qkvz, 0, first), part.ba = tensor_rows(&all->ba, 0, first), part.out = tensor_rows(&all->out, 0, first);
	TRY(OP(rank->stream, gdn, &part, err));
	const int rest = all->rows->tail_rows;
	rows.rows = rest, rows.seqs = tails, rows.fresh = true, rows.single_seqs = 0;
	rows.row_start = all->rows->tail_start, rows.state_read += seqs, rows.state_write += seqs;
	part.qkvz = tensor_rows(&all->qkvz, first, rest), part.ba = tensor_rows(&all->ba, first, rest), part.out = tensor_rows(&all->out, first, rest);
	return OP(rank->stream, gdn, &part, err);
}

/* nth: of the layers with a gated delta net. */
static enum status gdn_block(struct rank *rank, int layer, int nth, struct hidden *s, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	struct rank_shape shape = rank_shape(c, rank->world_size);
	int rows = s->x.rows;
	struct tensor all = tensor_view(rank->buffers.qkv, rank->activation, TENSOR_SHARDED, rows, shape.gdn_in_cols);
	struct tensor in = tensor_columns(&all, 0, shape.qkvz_cols + 2 * shape.gdn_v_heads); /* [T, q|k|v|z|b|a] */
	struct tensor out = tensor_view(rank->buffers.attn, rank->activation, TENSOR_SHARDED, rows, shape.gdn_v_cols);

	TRY(gdn_in(rank, layer, s, in, err));
	TRY(rank_moves(rank, err));
	TRY(gdn_rows(rank, &(struct gdn_args){.qkvz = tensor_columns(&in, 0, shape.qkvz_cols), .ba = tensor_columns(&in, shape.qkvz_cols, 2 * shape.gdn_v_heads),
	                                      .conv = w->gdn.conv, .a_log = w->gdn.a_log, .dt_bias = w->gdn.dt_bias, .norm = w->gdn.norm, .eps = c->rms_eps,
	                                      .cache = &rank->state, .layer = nth, .rows = &rank->rows, .out = out}, err));
	TRY(rank_mark(rank, "gdn", err));
	return row_parallel(rank, out, &w->gdn.out, NULL, s, (struct norms){w->mixed_norm, w->post_norm}, err);
}

static enum status mlp_block(struct rank *rank, int layer, struct hidden *s, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	int rows = s->x.rows, inner = rank_shape(c, rank->world_size).inner;
	struct tensor gate_up = tensor_view(rank->buffers.gate_up, rank->activation, TENSOR_SHARDED, rows, 2 * inner); /* [T, gate|up] */
	struct tensor act = tensor_view(rank->buffers.act, rank->activation, TENSOR_SHARDED, rows, inner);

	if (FUSED(mlp_in, &w->gate_up)) {
		RUN(mlp_in, {.in = {.x = s->x, .weight = w->post_norm, .eps = c->rms_eps, .h = s->h, .done = s->normed},
		             .weight = &w->gate_up.part[0], .bias = w->gate_up_bias, .gelu = c->gelu, .gate_up = gate_up, .out = act});
		dispatch_ran(rank, LINEAR_USE_MLP_IN, &w->gate_up.part[0], rows);
	} else {
		TRY(norm(rank, s, w->post_norm, err));
		TRY(column_parallel(rank, s->h, &w->gate_up, w->gate_up_bias, gate_up, err));
		if (c->gelu) RUN(geglu, {.x = gate_up, .out = act});
		else RUN(swiglu, {.x = gate_up, .out = act});
	}
	return row_parallel(rank, act, &w->down, w->down_bias, s, (struct norms){w->mlp_norm, norm_of_next(rank, layer)}, err);
}

/* s.x += sum over ranks of the experts' parts. */
static enum status moe_block(struct rank *rank, int layer, struct hidden *s, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	struct tensor y = s->x; /* added to, or what is to be summed */
	if (!rank->stream->vt->moe_norms) {
		TRY(norm(rank, s, w->post_norm, err));
		s->normed = true;
	}
	const struct norm_input in = {.x = s->x, .weight = w->post_norm, .eps = c->rms_eps, .h = s->h, .done = s->normed};
	s->normed = false;
	if (!rank->adds) TRY(COMM(rank->comm, partial, s->x.rows, &y, err));
	RUN(moe, {.in = in, .weights = &w->moe.op, .top_k = c->moe.experts_per_token, .norm_topk = c->moe.norm_topk,
	          .split = rank->adds ? NULL : &rank->comm->split, .y = y, .accumulate = rank->adds, .scratch = rank->buffers.moe});
	if (rank->adds) return STATUS_OK;
	return reduce(rank, y, NULL, s, norm_of_next(rank, layer), err);
}

enum status forward_layers(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const int rows = rank->rows.rows;
	struct hidden s = {.x = tensor_view(rank->buffers.x, DTYPE_F32, TENSOR_REPLICATED, rows, c->hidden_size),
	                   .h = tensor_view(rank->buffers.h, rank->activation, TENSOR_REPLICATED, rows, c->hidden_size)};
	struct tensor angles = tensor_view(rank->buffers.cos_sin, DTYPE_F32, TENSOR_REPLICATED, rows, c->rotary_dim);
	struct tensor all_angles = tensor_view(rank->buffers.rope, DTYPE_F32, TENSOR_REPLICATED, rank->options.max_context, c->rotary_dim);

	RUN(gather_rows, {.x = all_angles, .row = rank->rows.position, .out = angles});
	if (c->two_ropes) {
		angles.data = rank->buffers.cos_sin_local;
		all_angles.data = rank->buffers.rope_local;
		RUN(gather_rows, {.x = all_angles, .row = rank->rows.position, .out = angles});
	}
	TRY(embedding(rank, &s, err));
	struct kept whole = {&rank->cache, &rank->rows, 0}, sliding = {&rank->window_cache, &rank->window_rows, 0};
	for (int layer = 0, gdn = 0; layer < c->layers; layer++) {
		struct kept *kept = c->layer_kind[layer] == LAYER_SLIDING ? &sliding : &whole;
		if (c->layer_kind[layer] == LAYER_GDN) TRY(gdn_block(rank, layer, gdn++, &s, err));
		else TRY(attention_block(rank, layer, kept, &s, err));
		kept->nth += c->layer_kind[layer] != LAYER_GDN;
		if (c->moe.sparse[layer]) TRY(moe_block(rank, layer, &s, err));
		else TRY(mlp_block(rank, layer, &s, err));
	}
	return STATUS_OK;
}

struct tensor forward_logits(const struct rank *rank, int outputs, enum step_result result)
{
	const struct linear_weight *head = &rank->weights.head;
	struct tensor logits = tensor_view(rank->buffers.logits, DTYPE_F32, TENSOR_SHARDED, outputs, head->n);
	if (result == RESULT_BEST || !rank_gathers_logits(rank)) return logits;
	logits.data = rank->peers[0]->buffers.logits + rank->weights.head_begin;
	logits.row_stride = rank->model->config.vocab_size;
	return logits;
}

static const struct sample_adjust *sample_adjusts(const struct rank *rank)
{
	return (const struct sample_adjust *)((const char *)rank->buffers.sample + device_sampler_adjust_offset(rank_sample_rows(&rank->options)));
}

enum status forward_head(struct rank *rank, int outputs, enum step_result result, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct rank_weights *w = &rank->weights;
	struct tensor x = tensor_view(rank->buffers.x, DTYPE_F32, TENSOR_REPLICATED, rank->rows.rows, c->hidden_size);
	struct tensor last = tensor_view(rank->buffers.head_x, DTYPE_F32, TENSOR_REPLICATED, outputs, c->hidden_size);
	struct tensor h = tensor_view(rank->buffers.head_h, rank->activation, TENSOR_REPLICATED, outputs, c->hidden_size);
	struct tensor logits = forward_logits(rank, outputs, result);

	if (rank->tracing) rank->trace->section = "head";
	if (outputs && w->head.n) {
		if (rank->all_rows) last = x;
		else RUN(gather_rows, {.x = x, .row = rank->output_row, .out = last});
		RUN(rms_norm, {.x = last, .weight = w->final_norm, .eps = c->rms_eps, .out = h});
		RUN(linear, {.x = h, .weight = &w->head, .y = logits});
		dispatch_ran(rank, LINEAR_USE_PLAIN, &w->head, outputs);
		if (c->final_softcap > 0) RUN(softcap, {.x = logits, .cap = c->final_softcap});
		if (result == RESULT_BEST) RUN(argmax, {.logits = logits, .begin = w->head_begin, .out = rank->best});
	}
	if (!outputs || result == RESULT_BEST || !rank_gathers_logits(rank)) return STATUS_OK;
	if (rank->world_size > 1) {
		TRY(COMM(rank->comm, fence, rank->stream, err));
		TRY(rank_mark(rank, "fence", err));
	}
	if (result == RESULT_SAMPLED && rank->index == 0)
		RUN(sample, {.logits = tensor_view(rank->buffers.logits, DTYPE_F32, TENSOR_REPLICATED, outputs, c->vocab_size), .row = rank->buffers.sample,
		             .adjust = sample_adjusts(rank), .scratch = rank->buffers.sample_scratch, .out = rank->sampled});
	return STATUS_OK;
}
