#include "engine/forward.h"

#include <math.h>

/* A step of the equation: run the op, unless the group is dead; let the coordinator see that this rank moves. */
#define RUN(op, ...)                                                          \
	do {                                                                      \
		TRY(rank_moves(rank, err));                                           \
		TRY(OP(rank->stream, op, &((struct op##_args)__VA_ARGS__), err));     \
	} while (0)

/* y = x W^T (+ bias): the column-parallel half of a sub-layer. */
static enum status column_parallel(struct rank *rank, struct tensor x, const struct fused_weight *weight, const float *bias, struct tensor y,
                                   struct error *err)
{
	for (int i = 0; i < weight->parts; i++) {
		int begin = weight->begin[i];
		RUN(linear, {.x = x, .weight = &weight->part[i], .bias = bias ? bias + begin : NULL, .y = tensor_columns(&y, begin, weight->part[i].n)});
	}
	return STATUS_OK;
}

/* y += sum over ranks of x W^T (+ bias): the row-parallel half of a sub-layer and its all-reduce. */
static enum status row_parallel(struct rank *rank, struct tensor x, const struct fused_weight *weight, const float *bias, struct tensor y,
                                struct error *err)
{
	struct tensor partial;
	TRY(COMM(rank->comm, partial, y.rows, &partial, err));
	RUN(linear, {.x = x, .weight = &weight->part[0], .split = &rank->comm->split, .y = partial});
	TRY(COMM(rank->comm, all_reduce, rank->stream, &((struct all_reduce_args){.partial = partial, .x = y, .add_residual = true, .bias = bias}),
	         err));
	return rank_moves(rank, err);
}

static enum status attention_block(struct rank *rank, int layer, struct tensor x, struct tensor h, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	struct rank_shape shape = rank_shape(c, rank->world_size);
	int rows = x.rows;
	struct tensor qkv = tensor_view(rank->buffers.qkv, DTYPE_F32, TENSOR_SHARDED, rows, shape.qkv_cols); /* [T, q|k|v] */
	struct tensor q = tensor_columns(&qkv, 0, shape.q_cols);
	struct tensor k = tensor_columns(&qkv, shape.q_cols, shape.kv_cols);
	struct tensor v = tensor_columns(&qkv, shape.q_cols + shape.kv_cols, shape.kv_cols);
	struct tensor attn = tensor_view(rank->buffers.attn, DTYPE_F32, TENSOR_SHARDED, rows, shape.q_cols);

	RUN(rms_norm, {.x = x, .weight = w->input_norm, .eps = c->rms_eps, .out = h});
	TRY(column_parallel(rank, h, &w->qkv, w->qkv_bias, qkv, err));
	if (c->qk_norm) {
		RUN(head_norm, {.x = q, .heads = shape.q_heads, .head_dim = c->head_dim, .weight = w->q_norm, .eps = c->rms_eps});
		RUN(head_norm, {.x = k, .heads = shape.kv_heads, .head_dim = c->head_dim, .weight = w->k_norm, .eps = c->rms_eps});
	}
	RUN(rope, {.x = q, .heads = shape.q_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .cos_sin = rank->rows.cos_sin});
	RUN(rope, {.x = k, .heads = shape.kv_heads, .head_dim = c->head_dim, .rotary_dim = c->rotary_dim, .cos_sin = rank->rows.cos_sin});
	RUN(kv_write, {.k = k, .v = v, .cache = &rank->cache, .layer = layer, .kv_slot = rank->rows.kv_slot});
	RUN(attention, {.q = q, .out = attn, .q_heads = shape.q_heads, .cache = &rank->cache, .layer = layer, .rows = &rank->rows,
	                .scale = 1.0f / sqrtf((float)c->head_dim),
	                .window = c->layer_kind[layer] == LAYER_SLIDING ? c->sliding_window : 0});
	return row_parallel(rank, attn, &w->o, w->o_bias, x, err);
}

static enum status mlp_block(struct rank *rank, int layer, struct tensor x, struct tensor h, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct layer_weights *w = &rank->weights.layers[layer];
	int inner = rank_shape(c, rank->world_size).inner;
	struct tensor gate_up = tensor_view(rank->buffers.gate_up, DTYPE_F32, TENSOR_SHARDED, x.rows, 2 * inner); /* [T, gate|up] */
	struct tensor act = tensor_view(rank->buffers.act, DTYPE_F32, TENSOR_SHARDED, x.rows, inner);

	RUN(rms_norm, {.x = x, .weight = w->post_norm, .eps = c->rms_eps, .out = h});
	TRY(column_parallel(rank, h, &w->gate_up, w->gate_up_bias, gate_up, err));
	RUN(swiglu, {.x = gate_up, .out = act});
	return row_parallel(rank, act, &w->down, w->down_bias, x, err);
}

enum status forward_layers(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct tensor x = tensor_view(rank->buffers.x, DTYPE_F32, TENSOR_REPLICATED, rank->rows.rows, c->hidden_size);
	struct tensor h = tensor_view(rank->buffers.h, DTYPE_F32, TENSOR_REPLICATED, rank->rows.rows, c->hidden_size);

	RUN(embed, {.table = &rank->weights.embed, .token = rank->rows.token, .out = x});
	for (int layer = 0; layer < c->layers; layer++) {
		TRY(attention_block(rank, layer, x, h, err));
		TRY(mlp_block(rank, layer, x, h, err));
	}
	return STATUS_OK;
}

enum status forward_head(struct rank *rank, int outputs, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct rank_weights *w = &rank->weights;
	struct tensor x = tensor_view(rank->buffers.x, DTYPE_F32, TENSOR_REPLICATED, rank->rows.rows, c->hidden_size);
	struct tensor out = tensor_view(rank->buffers.head_x, DTYPE_F32, TENSOR_REPLICATED, outputs, c->hidden_size);
	struct tensor logits = tensor_view(rank->buffers.logits, DTYPE_F32, TENSOR_SHARDED, outputs, w->head.n);
	if (outputs == 0 || w->head.n == 0) return STATUS_OK;

	RUN(gather_rows, {.x = x, .row = rank->output_row, .out = out});
	RUN(rms_norm, {.x = out, .weight = w->final_norm, .eps = c->rms_eps, .out = out});
	RUN(linear, {.x = out, .weight = &w->head, .y = logits});
	for (int i = 0; i < outputs; i++) {
		float *host = rank->host_logits + (size_t)i * (size_t)c->vocab_size + w->head_begin;
		TRY(rank->device->vt->copy(rank->stream, host, (float *)logits.data + (size_t)i * (size_t)w->head.n, (size_t)w->head.n * sizeof(float),
		                           COPY_TO_HOST, err));
	}
	return STATUS_OK;
}
