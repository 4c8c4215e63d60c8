#include "engine/rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct rank_shape rank_shape(const struct model_config *c, int world_size)
{
	struct rank_shape s = {.q_heads = c->q_heads / world_size,
	                       .kv_heads = c->kv_heads >= world_size ? c->kv_heads / world_size : 1,
	                       .inner = c->intermediate_size / world_size};
	s.q_cols = s.q_heads * c->head_dim;
	s.kv_cols = s.kv_heads * c->head_dim;
	s.qkv_cols = s.q_cols + 2 * s.kv_cols;
	return s;
}

enum status rank_alloc(struct rank *rank, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err)
{
	*out = NULL;
	if (rank->allocation_count == rank->allocation_capacity) {
		int capacity = rank->allocation_capacity ? rank->allocation_capacity * 2 : 64;
		TRY(mem_grow((void **)&rank->allocations, (size_t)capacity, sizeof *rank->allocations, "allocation list", err));
		rank->allocation_capacity = capacity;
	}
	TRY(rank->device->vt->alloc(rank->device, bytes, tag, what, out, err));
	rank->allocations[rank->allocation_count++] = *out;
	return STATUS_OK;
}

/* Byte offsets of the metadata arrays: fixed by the limits, so that a recorded graph may keep the pointers. cos_sin is last: a step
 * copies only the rows that it uses. */
struct meta_layout {
	size_t token, position, kv_slot, row_start, kv_len, output_row, block_table, cos_sin, bytes;
};

static struct meta_layout meta_layout(const struct rank_options *o)
{
	size_t at = 0;
	struct meta_layout m;
	size_t *const offsets[] = {&m.token, &m.position, &m.kv_slot, &m.row_start, &m.kv_len, &m.output_row, &m.block_table};
	const size_t counts[] = {(size_t)o->limits.max_rows,     (size_t)o->limits.max_rows,
	                         (size_t)o->limits.max_rows,     (size_t)o->limits.max_seqs + 1,
	                         (size_t)o->limits.max_seqs,     (size_t)o->limits.max_outputs,
	                         (size_t)o->limits.max_seqs * (size_t)o->kv.max_blocks};
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		*offsets[i] = at;
		at = (at + counts[i] * sizeof(int32_t) + 63) / 64 * 64;
	}
	m.cos_sin = at;
	m.bytes = at + (size_t)o->limits.max_rows * (size_t)o->limits.rotary_dim * sizeof(float);
	return m;
}

static enum status prepare_buffers(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct rank_shape shape = rank_shape(c, rank->world_size);
	struct rank_buffers *b = &rank->buffers;
	size_t rows = (size_t)rank->options.limits.max_rows, outputs = (size_t)rank->options.limits.max_outputs;
	size_t hidden = (size_t)c->hidden_size;
	const struct {
		float **out;
		size_t count;
		const char *what;
	} list[] = {
		{&b->x, rows * hidden, "residual stream"},
		{&b->h, rows * hidden, "normed rows"},
		{&b->qkv, rows * (size_t)shape.qkv_cols, "qkv rows"},
		{&b->attn, rows * (size_t)shape.q_cols, "attention rows"},
		{&b->gate_up, rows * 2 * (size_t)shape.inner, "gate and up rows"},
		{&b->act, rows * (size_t)shape.inner, "mlp rows"},
		{&b->head_x, outputs * hidden, "output rows"},
		{&b->logits, outputs * (size_t)rank->weights.head.n, "logits"},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++)
		TRY(rank_alloc(rank, list[i].count * sizeof(float), MEM_WORKSPACE, list[i].what, (void **)list[i].out, err));
	b->meta_bytes = meta_layout(&rank->options).bytes;
	TRY(rank_alloc(rank, b->meta_bytes, MEM_WORKSPACE, "step metadata", (void **)&b->meta, err));
	b->meta_host = mem_zalloc(b->meta_bytes, 1, "step metadata", err);
	return b->meta_host ? STATUS_OK : STATUS_NO_MEMORY;
}

static int largest(int a, int b)
{
	return a > b ? a : b;
}

enum status rank_prepare(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct rank_shape shape = rank_shape(c, rank->world_size);
	const struct kv_options *kv = &rank->options.kv;
	TRY(kv_create(&rank->pool, kv, err));
	rank->cache.layout = (struct kv_layout){.layers = c->layers, .blocks = kv->blocks + 1, .block_tokens = kv->block_tokens,
	                                        .kv_heads = shape.kv_heads, .head_dim = c->head_dim, .dtype = DTYPE_F32};
	TRY(rank_alloc(rank, rank->device->vt->kv_bytes(&rank->cache.layout), MEM_KV, "kv cache", &rank->cache.data, err));
	return prepare_buffers(rank, err);
}

void rank_release(struct rank *rank)
{
	if (rank->device) {
		const struct device_ops *vt = rank->device->vt;
		if (rank->stream) vt->stream_destroy(rank->stream);
		for (int i = 0; i < rank->allocation_count; i++) vt->free(rank->device, rank->allocations[i]);
		vt->close(rank->device);
	}
	free(rank->allocations);
	free(rank->buffers.meta_host);
	free(rank->weights.layers);
	kv_destroy(&rank->pool);
	rank->device = NULL;
	rank->stream = NULL;
	rank->allocations = NULL;
	rank->allocation_count = rank->allocation_capacity = 0;
	rank->buffers = (struct rank_buffers){0};
	rank->weights = (struct rank_weights){0};
}

enum status rank_assemble(struct rank *rank, const struct step_plan *plan, struct error *err)
{
	struct meta_layout at = meta_layout(&rank->options);
	char *host = rank->buffers.meta_host, *device = rank->buffers.meta;
	int max_blocks = rank->options.kv.max_blocks, rotary = rank->options.limits.rotary_dim;
	size_t rows = (size_t)plan->rows, seqs = (size_t)plan->seqs;
	memcpy(host + at.token, plan->token, rows * sizeof(int32_t));
	memcpy(host + at.position, plan->position, rows * sizeof(int32_t));
	memcpy(host + at.row_start, plan->row_start, (seqs + 1) * sizeof(int32_t));
	memcpy(host + at.kv_len, plan->kv_len, seqs * sizeof(int32_t));
	memcpy(host + at.output_row, plan->output_row, (size_t)plan->outputs * sizeof(int32_t));
	memcpy(host + at.cos_sin, plan->cos_sin, rows * (size_t)rotary * sizeof(float));
	int32_t *slot = (int32_t *)(host + at.kv_slot), *table = (int32_t *)(host + at.block_table);
	for (int i = 0; i < plan->rows; i++) slot[i] = kv_slot(rank->pool, plan->slot[plan->seq_of_row[i]], plan->position[i]);
	rank->rows = (struct step_rows){.rows = plan->rows, .seqs = plan->seqs, .max_blocks = max_blocks};
	for (int s = 0; s < plan->seqs; s++) {
		memcpy(table + (size_t)s * max_blocks, kv_table(rank->pool, plan->slot[s]),
		       (size_t)kv_seq_blocks(rank->pool, plan->slot[s]) * sizeof(int32_t));
		rank->rows.max_kv_len = largest(rank->rows.max_kv_len, plan->kv_len[s]);
		rank->rows.max_seq_rows = largest(rank->rows.max_seq_rows, plan->row_start[s + 1] - plan->row_start[s]);
	}
	rank->rows.token = (const int32_t *)(device + at.token);
	rank->rows.position = (const int32_t *)(device + at.position);
	rank->rows.kv_slot = (const int32_t *)(device + at.kv_slot);
	rank->rows.row_start = (const int32_t *)(device + at.row_start);
	rank->rows.kv_len = (const int32_t *)(device + at.kv_len);
	rank->rows.block_table = (const int32_t *)(device + at.block_table);
	rank->rows.cos_sin = (const float *)(device + at.cos_sin);
	rank->output_row = (const int32_t *)(device + at.output_row);
	size_t used = at.cos_sin + rows * (size_t)rotary * sizeof(float);
	return rank->device->vt->copy(rank->stream, device, host, used, COPY_TO_DEVICE, err);
}

enum status rank_select_outputs(struct rank *rank, int first, int count, struct error *err)
{
	size_t at = meta_layout(&rank->options).output_row;
	int32_t *rows = (int32_t *)(rank->buffers.meta_host + at);
	for (int i = 0; i < count; i++) rows[i] = first + i;
	return rank->device->vt->copy(rank->stream, rank->buffers.meta + at, rows, (size_t)count * sizeof *rows, COPY_TO_DEVICE, err);
}
