#include "engine/rank.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "engine/device_sampler.h"
#include "engine/graphs.h"

struct rank_shape rank_shape(const struct model_config *c, int world_size)
{
	struct rank_shape s = {.q_heads = c->q_heads / world_size,
	                       .kv_heads = c->kv_heads >= world_size ? c->kv_heads / world_size : 1,
	                       .inner = c->moe.layers < c->layers ? c->intermediate_size / world_size : 0};
	s.q_cols = s.q_heads * c->head_dim;
	s.kv_cols = s.kv_heads * c->head_dim;
	s.qkv_cols = s.q_cols * (c->attn_output_gate ? 2 : 1) + 2 * s.kv_cols;
	s.gdn_k_heads = c->gdn.k_heads / world_size;
	s.gdn_v_heads = c->gdn.v_heads / world_size;
	s.gdn_k_cols = s.gdn_k_heads * c->gdn.k_dim;
	s.gdn_v_cols = s.gdn_v_heads * c->gdn.v_dim;
	s.qkvz_cols = 2 * s.gdn_k_cols + 2 * s.gdn_v_cols;
	s.gdn_in_cols = (s.qkvz_cols + 2 * s.gdn_v_heads + 7) / 8 * 8;
	return s;
}

struct gdn_layout rank_gdn_layout(const struct rank *rank)
{
	const struct model_config *c = &rank->model->config;
	struct rank_shape shape = rank_shape(c, rank->world_size);
	return (struct gdn_layout){.layers = model_gdn_layers(c), .slots = rank->options.kv.states ? rank->options.kv.states + 1 : 0,
	                           .k_heads = shape.gdn_k_heads, .v_heads = shape.gdn_v_heads, .k_dim = c->gdn.k_dim, .v_dim = c->gdn.v_dim,
	                           .conv_kernel = c->gdn.conv_kernel, .dtype = rank->activation};
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

/* Layers that share the cache of attention, and sliding ones with a cache of their own (options.kv.windows). */
static void kv_layers(const struct rank *rank, int *whole, int *sliding)
{
	const struct model_config *c = &rank->model->config;
	*whole = *sliding = 0;
	for (int i = 0; i < c->layers; i++) {
		if (c->layer_kind[i] == LAYER_GDN) continue;
		*(rank->options.kv.windows && c->layer_kind[i] == LAYER_SLIDING ? sliding : whole) += 1;
	}
}

static int largest(int a, int b)
{
	return a > b ? a : b;
}

struct step_limits rank_limits(const struct rank_options *o)
{
	struct step_limits l = o->limits;
	int bucket = step_bucket(l.max_seqs);
	if (!o->graphs || bucket == STEP_BUCKETS) return l;
	int rows = step_bucket_rows(bucket);
	return (struct step_limits){.max_rows = largest(l.max_rows, rows), .max_seqs = rows, .max_tails = l.max_tails, .max_outputs = largest(l.max_outputs, rows)};
}

/* Host memory that lives as long as the rank: pinned, where the back end has such. */
static enum status host_alloc(struct rank *rank, size_t bytes, const char *what, void *out, struct error *err)
{
	void *block = NULL;
	TRY(mem_grow((void **)&rank->host_blocks, (size_t)rank->host_block_count + 1, sizeof *rank->host_blocks, "host memory list", err));
	if (rank->device->vt->host_alloc) TRY(rank->device->vt->host_alloc(rank->device, bytes, what, &block, err));
	else block = mem_zalloc(bytes, 1, what, err);
	if (!block) return STATUS_NO_MEMORY;
	rank->host_blocks[rank->host_block_count++] = block;
	memcpy(out, &block, sizeof block);
	return STATUS_OK;
}

/* Byte offsets of the metadata arrays of a step. They depend on its sizes alone, so that a recorded step may keep the pointers.
 * output_row is last: a head pass over rows of the step writes more of it. */
struct meta_layout {
	size_t token, position, kv_slot, row_start, tail_start, state_read, state_write, block_table, window_slot, window_table, output_row, bytes;
};

static struct meta_layout meta_layout(const struct kv_options *kv, int rows, int seqs, int outputs)
{
	const size_t tables = (size_t)seqs * (size_t)kv->max_blocks;
	size_t at = 0;
	struct meta_layout m;
	size_t *const offsets[] = {&m.token, &m.position, &m.kv_slot, &m.row_start, &m.tail_start, &m.state_read, &m.state_write, &m.block_table, &m.window_slot,
	                           &m.window_table, &m.output_row};
	const size_t counts[] = {(size_t)rows, (size_t)rows, (size_t)rows, (size_t)seqs + 1, (size_t)seqs + 1, (size_t)seqs, (size_t)seqs,
	                         tables, kv->windows ? (size_t)rows : 0, kv->windows ? tables : 0, (size_t)outputs};
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
		*offsets[i] = at;
		at = (at + counts[i] * sizeof(int32_t) + 63) / 64 * 64;
	}
	m.bytes = at;
	return m;
}

/* Whether this rank's memory has whole rows of logits: see rank_buffers. */
static bool has_whole_logits(const struct rank *rank)
{
	return rank->index == 0 && rank_gathers_logits(rank);
}

static size_t logits_columns(const struct rank *rank)
{
	return (size_t)(has_whole_logits(rank) ? rank->model->config.vocab_size : rank->weights.head.n);
}

static size_t moe_bytes(const struct rank *rank, int rows)
{
	const struct model_config *c = &rank->model->config;
	const struct moe_shape shape = {.rows = rows, .dtype = rank->activation, .hidden = c->hidden_size, .experts = c->moe.experts, .top_k = c->moe.experts_per_token,
	                                .inner = c->moe.intermediate / rank->world_size, .shared_inner = c->moe.shared_intermediate / rank->world_size,
	                                .leaves = rank->model->tree_leaves / rank->world_size};
	return c->moe.layers ? rank->device->vt->moe_scratch_bytes(rank->device, &shape) : 0;
}

static enum status prepare_buffers(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct rank_shape shape = rank_shape(c, rank->world_size);
	struct step_limits limits = rank_limits(&rank->options);
	struct rank_buffers *b = &rank->buffers;
	size_t rows = (size_t)limits.max_rows, outputs = (size_t)limits.max_outputs, hidden = (size_t)c->hidden_size;
	size_t act = dtype_bytes(rank->activation), rotary = (size_t)c->rotary_dim;
	size_t meta = meta_layout(&rank->options.kv, limits.max_rows, limits.max_seqs + limits.max_tails, limits.max_outputs).bytes;
	const struct {
		void *out;
		size_t bytes;
		const char *what;
	} list[] = {
		{&b->x, rows * hidden * sizeof(float), "residual stream"},
		{&b->y, c->four_norms ? rows * hidden * sizeof(float) : 0, "rows to be added"},
		{&b->h, rows * hidden * act, "normed rows"},
		{&b->qkv, rows * (size_t)largest(shape.qkv_cols, shape.gdn_in_cols) * act, "qkv rows"},
		{&b->attn, rows * (size_t)largest(shape.q_cols, shape.gdn_v_cols) * act, "attention rows"},
		{&b->gate_up, rows * 2 * (size_t)shape.inner * act, "gate and up rows"},
		{&b->act, rows * (size_t)shape.inner * act, "mlp rows"},
		{&b->moe, moe_bytes(rank, limits.max_rows), "expert rows"},
		{&b->head_x, outputs * hidden * sizeof(float), "output rows"},
		{&b->head_h, outputs * hidden * act, "normed output rows"},
		{&b->logits, outputs * logits_columns(rank) * sizeof(float), "logits"},
		{&b->rope, (size_t)rank->options.max_context * rotary * sizeof(float), "rope table"},
		{&b->cos_sin, rows * rotary * sizeof(float), "rope rows"},
		{&b->rope_local, c->two_ropes ? (size_t)rank->options.max_context * rotary * sizeof(float) : 0, "rope table of sliding layers"},
		{&b->cos_sin_local, c->two_ropes ? rows * rotary * sizeof(float) : 0, "rope rows of sliding layers"},
		{&b->meta, meta, "step metadata"},
	};
	for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
		void *memory;
		const bool gathered = list[i].out == &b->logits && has_whole_logits(rank) && rank->world_size > 1;
		TRY(rank_alloc(rank, list[i].bytes, gathered ? MEM_GATHERED : MEM_WORKSPACE, list[i].what, &memory, err));
		memcpy(list[i].out, &memory, sizeof memory);
	}
	TRY(host_alloc(rank, meta, "step metadata", &b->meta_host, err));
	if (rank->device->vt->ops.argmax) TRY(host_alloc(rank, outputs * sizeof *rank->best, "best tokens", &rank->best, err));
	if (rank->index != 0) return STATUS_OK;
	return host_alloc(rank, outputs * (size_t)c->vocab_size * sizeof(float), "logits", &rank->host_logits, err);
}

int rank_sample_rows(const struct rank_options *o)
{
	int rows = rank_limits(o).max_outputs;
	return rows < SAMPLE_MAX_ROWS ? rows : SAMPLE_MAX_ROWS;
}

int rank_sample_adjusts(const struct rank_options *o)
{
	return 1024 * rank_sample_rows(o);
}

/* Rank 0 samples, where the back end can, such a vocabulary too, and whole rows of logits come together there. */
static enum status prepare_sampler(struct rank *rank, struct error *err)
{
	const int rows = rank_sample_rows(&rank->options);
	if (rank->index != 0 || !rank->device->vt->ops.sample || rank->model->config.vocab_size > SAMPLE_MAX_COLS || !rank_gathers_logits(rank)) return STATUS_OK;
	size_t bytes = device_sampler_bytes(rows, rank_sample_adjusts(&rank->options));
	TRY(rank_alloc(rank, bytes, MEM_WORKSPACE, "sampling parameters", &rank->buffers.sample, err));
	TRY(rank_alloc(rank, sample_scratch_bytes(rows), MEM_WORKSPACE, "sampling scratch", &rank->buffers.sample_scratch, err));
	TRY(host_alloc(rank, (size_t)rows * sizeof *rank->sampled, "sampled tokens", &rank->sampled, err));
	return host_alloc(rank, bytes, "sampling parameters", &rank->sample_host, err);
}

#define ROPE_CHUNK 256 /* positions */

static enum status fill_rope(struct rank *rank, const struct rope_table *table, float *out, struct error *err)
{
	const size_t row = (size_t)table->rotary_dim;
	float *chunk = mem_zalloc(ROPE_CHUNK * row, sizeof *chunk, "rope rows", err);
	enum status st = chunk ? STATUS_OK : STATUS_NO_MEMORY;
	for (int at = 0; at < rank->options.max_context && st == STATUS_OK; at += ROPE_CHUNK) {
		int n = rank->options.max_context - at < ROPE_CHUNK ? rank->options.max_context - at : ROPE_CHUNK;
		for (int i = 0; i < n; i++) rope_row(table, at + i, chunk + (size_t)i * row);
		TRY_GOTO(rank->device->vt->copy(rank->stream, out + (size_t)at * row, chunk, (size_t)n * row * sizeof *chunk, COPY_TO_DEVICE,
		                                err), out);
		TRY_GOTO(rank->device->vt->stream_sync(rank->stream, group_deadline(rank->group), group_abort_flag(rank->group), err), out);
	}
out:
	free(chunk);
	return st;
}

enum status rank_prepare(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct rank_shape shape = rank_shape(c, rank->world_size);
	const struct kv_options *kv = &rank->options.kv;
	TRY(kv_create(&rank->pool, kv, err));
	int whole, sliding;
	kv_layers(rank, &whole, &sliding);
	rank->cache.layout = (struct kv_layout){.layers = whole, .blocks = kv->blocks + 1, .block_tokens = kv->block_tokens,
	                                        .kv_heads = shape.kv_heads, .head_dim = c->head_dim, .dtype = rank->activation};
	TRY(rank_alloc(rank, rank->device->vt->kv_bytes(&rank->cache.layout), MEM_KV, "kv cache", &rank->cache.data, err));
	rank->window_cache.layout = rank->cache.layout;
	rank->window_cache.layout.layers = sliding;
	rank->window_cache.layout.blocks = kv->windows + 1;
	if (sliding)
		TRY(rank_alloc(rank, rank->device->vt->kv_bytes(&rank->window_cache.layout), MEM_KV, "kv cache of sliding layers", &rank->window_cache.data, err));
	rank->state.layout = rank_gdn_layout(rank);
	if (rank->state.layout.slots)
		TRY(rank_alloc(rank, gdn_cache_bytes(&rank->state.layout), MEM_STATE, "state of sequences", &rank->state.data, err));
	TRY(prepare_buffers(rank, err));
	TRY(prepare_sampler(rank, err));
	if (c->two_ropes) TRY(fill_rope(rank, &rank->model->rope_local, rank->buffers.rope_local, err));
	return fill_rope(rank, &rank->model->rope, rank->buffers.rope, err);
}

void rank_release(struct rank *rank)
{
	if (rank->device) {
		const struct device_ops *vt = rank->device->vt;
		graphs_forget(rank);
		trace_destroy(&rank->trace);
		if (rank->stream) vt->stream_destroy(rank->stream);
		for (int i = 0; i < rank->host_block_count; i++) {
			if (vt->host_free) vt->host_free(rank->device, rank->host_blocks[i]);
			else free(rank->host_blocks[i]);
		}
		for (int i = 0; i < rank->allocation_count; i++) vt->free(rank->device, rank->allocations[i]);
		vt->close(rank->device);
	}
	free(rank->allocations);
	free(rank->notes);
	free(rank->host_blocks);
	free(rank->weights.layers);
	kv_destroy(&rank->pool);
	rank->device = NULL;
	rank->stream = NULL;
	rank->allocations = NULL;
	rank->notes = NULL;
	rank->host_blocks = NULL;
	rank->allocation_count = rank->allocation_capacity = rank->host_block_count = 0;
	rank->buffers = (struct rank_buffers){0};
	rank->weights = (struct rank_weights){0};
}

/* The rows as sliding layers see them. */
static void view_windows(struct rank *rank, const struct meta_layout *at)
{
	const char *device = rank->buffers.meta;
	rank->window_rows = rank->rows;
	if (rank->model->config.two_ropes) rank->window_rows.cos_sin = rank->buffers.cos_sin_local;
	if (!rank->options.kv.windows) return;
	rank->window_rows.kv_slot = (const int32_t *)(device + at->window_slot);
	rank->window_rows.block_table = (const int32_t *)(device + at->window_table);
}

/* Points the step's rows at the device's copy of the metadata. */
static void view_rows(struct rank *rank, const struct meta_layout *at, int rows, int seqs)
{
	const char *device = rank->buffers.meta;
	rank->rows = (struct step_rows){.rows = rows,
	                                .seqs = seqs,
	                                .token = (const int32_t *)(device + at->token),
	                                .position = (const int32_t *)(device + at->position),
	                                .kv_slot = (const int32_t *)(device + at->kv_slot),
	                                .cos_sin = rank->buffers.cos_sin,
	                                .row_start = (const int32_t *)(device + at->row_start),
	                                .tail_start = (const int32_t *)(device + at->tail_start),
	                                .state_read = (const int32_t *)(device + at->state_read),
	                                .state_write = (const int32_t *)(device + at->state_write),
	                                .block_table = (const int32_t *)(device + at->block_table),
	                                .max_blocks = rank->options.kv.max_blocks};
	rank->output_row = (const int32_t *)(device + at->output_row);
}

/* Points rank->rows at the metadata of a decode step of `bucket` rows, as every such step has it, whatever is in it. */
static void view_bucket(struct rank *rank, int bucket)
{
	struct meta_layout at = meta_layout(&rank->options.kv, bucket, bucket, bucket);
	view_rows(rank, &at, bucket, bucket);
	rank->rows.max_kv_len = rank->options.max_context;
	rank->rows.max_seq_rows = 1;
	view_windows(rank, &at);
	rank->all_rows = true;
}

/* Rows [begin, end) as sequences of their own in the sink. */
static void pad_rows(struct rank *rank, const struct meta_layout *at, int begin, int end)
{
	char *host = rank->buffers.meta_host;
	int32_t *token = (int32_t *)(host + at->token), *position = (int32_t *)(host + at->position), *slot = (int32_t *)(host + at->kv_slot);
	int32_t *row_start = (int32_t *)(host + at->row_start), *output_row = (int32_t *)(host + at->output_row), *table = (int32_t *)(host + at->block_table);
	int32_t *read = (int32_t *)(host + at->state_read), *write = (int32_t *)(host + at->state_write);
	for (int i = begin; i < end; i++) {
		token[i] = position[i] = slot[i] = 0;
		row_start[i + 1] = i + 1;
		output_row[i] = i;
		read[i] = -1;
		write[i] = 0;
		table[(size_t)i * (size_t)rank->options.kv.max_blocks] = 0;
	}
	for (int i = begin; i < end && rank->options.kv.windows; i++) {
		((int32_t *)(host + at->window_slot))[i] = 0;
		((int32_t *)(host + at->window_table))[(size_t)i * (size_t)rank->options.kv.max_blocks] = 0;
	}
}

/* Slots and tables of window_cache; blocks behind a window are the sink, and are not read. */
static void assemble_windows(struct rank *rank, const struct step_plan *plan, const struct meta_layout *at)
{
	const struct kv_options *kv = &rank->options.kv;
	int32_t *slot = (int32_t *)(rank->buffers.meta_host + at->window_slot), *table = (int32_t *)(rank->buffers.meta_host + at->window_table);
	for (int s = 0; s < plan->seqs; s++)
		for (int i = 0; i < kv_seq_blocks(rank->pool, plan->slot[s]); i++)
			table[(size_t)s * (size_t)kv->max_blocks + (size_t)i] = kv_window_block(rank->pool, plan->slot[s], i);
	for (int i = 0; i < plan->rows; i++) {
		size_t block = (size_t)plan->seq_of_row[i] * (size_t)kv->max_blocks + (size_t)(plan->position[i] / kv->block_tokens);
		slot[i] = table[block] * kv->block_tokens + plan->position[i] % kv->block_tokens;
	}
}

/* Which state each part of a sequence reads and writes; a tail reads what the part before it writes. */
static void assemble_states(struct rank *rank, const struct step_plan *plan, const struct meta_layout *at)
{
	char *host = rank->buffers.meta_host;
	int32_t *read = (int32_t *)(host + at->state_read), *write = (int32_t *)(host + at->state_write), *start = (int32_t *)(host + at->tail_start);
	const int first = plan->seqs - plan->tails;
	for (int s = 0; s < plan->seqs; s++) {
		read[s] = s < first ? kv_state_read(rank->pool, plan->slot[s]) : kv_state_write(rank->pool, plan->slot[s]);
		write[s] = s < first ? kv_state_write(rank->pool, plan->slot[s]) : kv_state_tail(rank->pool, plan->slot[s]);
	}
	for (int s = first; s <= plan->seqs; s++) start[s - first] = plan->row_start[s] - plan->row_start[first];
}

enum status rank_assemble(struct rank *rank, const struct step_plan *plan, int bucket, struct error *err)
{
	int max_blocks = rank->options.kv.max_blocks;
	struct meta_layout at = meta_layout(&rank->options.kv, bucket ? bucket : plan->rows, bucket ? bucket : plan->seqs, bucket ? bucket : plan->outputs);
	char *host = rank->buffers.meta_host;
	size_t rows = (size_t)plan->rows, seqs = (size_t)plan->seqs;
	memcpy(host + at.token, plan->token, rows * sizeof(int32_t));
	memcpy(host + at.position, plan->position, rows * sizeof(int32_t));
	memcpy(host + at.row_start, plan->row_start, (seqs + 1) * sizeof(int32_t));
	memcpy(host + at.output_row, plan->output_row, (size_t)plan->outputs * sizeof(int32_t));
	int32_t *slot = (int32_t *)(host + at.kv_slot), *table = (int32_t *)(host + at.block_table);
	for (int i = 0; i < plan->rows; i++) slot[i] = kv_slot(rank->pool, plan->slot[plan->seq_of_row[i]], plan->position[i]);
	assemble_states(rank, plan, &at);
	for (int s = 0; s < plan->seqs; s++)
		memcpy(table + (size_t)s * (size_t)max_blocks, kv_table(rank->pool, plan->slot[s]),
		       (size_t)kv_seq_blocks(rank->pool, plan->slot[s]) * sizeof(int32_t));
	if (rank->options.kv.windows) assemble_windows(rank, plan, &at);
	if (bucket) {
		pad_rows(rank, &at, plan->rows, bucket);
		view_bucket(rank, bucket);
	} else {
		view_rows(rank, &at, plan->rows, plan->seqs);
		rank->all_rows = step_plan_decodes(plan);
		while (rank->rows.single_seqs < plan->seqs && plan->row_start[rank->rows.single_seqs + 1] == rank->rows.single_seqs + 1) rank->rows.single_seqs++;
		for (int s = 0; s < plan->seqs; s++) {
			rank->rows.max_kv_len = largest(rank->rows.max_kv_len, plan->kv_len[s]);
			rank->rows.max_seq_rows = largest(rank->rows.max_seq_rows, plan->row_start[s + 1] - plan->row_start[s]);
		}
		rank->rows.tails = plan->tails;
		rank->rows.tail_rows = plan->rows - plan->row_start[plan->seqs - plan->tails];
		view_windows(rank, &at);
	}
	return rank->device->vt->copy(rank->stream, rank->buffers.meta, host, at.bytes, COPY_TO_DEVICE, err);
}

enum status rank_select_outputs(struct rank *rank, int first, int count, struct error *err)
{
	size_t at = (size_t)((const char *)rank->output_row - rank->buffers.meta);
	int32_t *rows = (int32_t *)(rank->buffers.meta_host + at);
	for (int i = 0; i < count; i++) rows[i] = first + i;
	rank->all_rows = false;
	return rank->device->vt->copy(rank->stream, rank->buffers.meta + at, rows, (size_t)count * sizeof *rows, COPY_TO_DEVICE, err);
}

/* Rows [begin, end) of the logits to the host. */
static enum status fetch_rows(struct rank *rank, int begin, int end, struct error *err)
{
	const size_t vocab = (size_t)rank->model->config.vocab_size, columns = (size_t)rank->weights.head.n;
	const struct device_ops *vt = rank->device->vt;
	float *host = rank->peers[0]->host_logits; /* made before the group was ready */
	if (rank_gathers_logits(rank)) {
		if (rank->index != 0) return STATUS_OK;
		size_t at = (size_t)begin * vocab;
		return vt->copy(rank->stream, host + at, rank->buffers.logits + at, (size_t)(end - begin) * vocab * sizeof(float), COPY_TO_HOST, err);
	}
	for (int i = begin; i < end && columns; i++)
		TRY(vt->copy(rank->stream, host + (size_t)i * vocab + (size_t)rank->weights.head_begin, rank->buffers.logits + (size_t)i * columns,
		             columns * sizeof(float), COPY_TO_HOST, err));
	return STATUS_OK;
}

enum status rank_fetch_logits(struct rank *rank, int outputs, const bool *rows, struct error *err)
{
	for (int begin = 0, end; begin < outputs; begin = end) {
		bool wanted = !rows || rows[begin];
		for (end = begin + 1; end < outputs && (!rows || rows[end]) == wanted;) end++;
		if (wanted) TRY(fetch_rows(rank, begin, end, err));
	}
	return STATUS_OK;
}
