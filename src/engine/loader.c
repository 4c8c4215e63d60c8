#include "engine/loader.h"

#include <string.h>

#include "base/mem.h"

/* Bytes of checkpoint mapped at a time per rank: what bounds the host memory of loading beyond the weights themselves. */
#define WINDOW_BYTES ((size_t)8 << 20)

/* Where one parameter lives on a rank: rows [n0, n0 + local rows) of a linear, or a vector. */
struct place {
	const struct linear_weight *linear; /* NULL: vector */
	int n0;
	float *vector;
};

/* The linears and vectors of a layer and the parameters that they are made of, in row order. One table: allocation, read and share walk it. */
struct part {
	enum weight_role role;
	size_t field; /* offset in struct layer_weights: a fused_weight, or a pointer to a vector */
};
#define LINEAR(role, member) {WEIGHT_##role, offsetof(struct layer_weights, member)}
static const struct part linear_parts[] = {
	LINEAR(Q, qkv), LINEAR(K, qkv), LINEAR(V, qkv), LINEAR(O, o), LINEAR(GATE, gate_up), LINEAR(UP, gate_up), LINEAR(DOWN, down),
};
static const struct part vector_parts[] = {
	LINEAR(INPUT_NORM, input_norm), LINEAR(POST_NORM, post_norm),   LINEAR(Q_NORM, q_norm),       LINEAR(K_NORM, k_norm),
	LINEAR(Q_BIAS, qkv_bias),       LINEAR(K_BIAS, qkv_bias),       LINEAR(V_BIAS, qkv_bias),     LINEAR(O_BIAS, o_bias),
	LINEAR(GATE_BIAS, gate_up_bias), LINEAR(UP_BIAS, gate_up_bias), LINEAR(DOWN_BIAS, down_bias),
};
#undef LINEAR
#define PARTS(list) (sizeof(list) / sizeof *(list))

enum status loader_check(const struct model *model, const struct device_ops *ops, struct error *err)
{
	for (int i = 0; i < model->manifest.count; i++) {
		const struct weight *w = &model->manifest.weights[i];
		struct source_tensor tensor;
		TRY(source_find(model->source, w->name, w->dims, w->rows, w->cols, &tensor, err));
		if (!ops->block_types && !dtype_is_plain(tensor.dtype))
			return FAIL(err, UNSUPPORTED,
			            "%s: is of type %s, and --device %s computes with F32, F16 and BF16 weights only; take --device cpu, or weights that are not quantised",
			            w->name, dtype_name(tensor.dtype), ops->name);
	}
	return STATUS_OK;
}

enum dtype loader_embedding_dtype(const struct model *model)
{
	const struct weight *w = manifest_find(&model->manifest, WEIGHT_EMBED, -1);
	struct source_tensor tensor = {.dtype = model->config.dtype};
	struct error ignored = {0};
	(void)!source_find(model->source, w->name, w->dims, w->rows, w->cols, &tensor, &ignored);
	return tensor.dtype;
}

uint64_t loader_bytes(const struct model *model)
{
	uint64_t total = 0;
	for (int i = 0; i < model->manifest.count; i++) {
		const struct weight *w = &model->manifest.weights[i];
		total += weight_stored_bytes(&model->config, w);
	}
	return total;
}

static enum status find(const struct rank *rank, const struct weight *w, struct source_tensor *out, struct error *err)
{
	return source_find(rank->model->source, w->name, w->dims, w->rows, w->cols, out, err);
}

/* Rows [row, row+rows) x [col, col+cols) of the checkpoint into `place`, a window at a time. */
static enum status read_region(struct rank *rank, const struct weight *w, const struct place *place, int64_t row, int64_t rows, int64_t col,
                               int64_t cols, struct error *err)
{
	struct source_tensor tensor;
	TRY(find(rank, w, &tensor, err));
	const struct device_ops *vt = rank->device->vt;
	struct source_scratch scratch = {0};
	size_t row_bytes = dtype_size(tensor.dtype, (size_t)cols);
	int64_t window = (int64_t)(WINDOW_BYTES / (row_bytes ? row_bytes : 1));
	if (window > vt->linear_granule) window -= window % vt->linear_granule; /* whole panels at a time */
	if (window < 1) window = 1;
	if (!place->linear) window = rows;
	enum status st = STATUS_OK;
	for (int64_t at = 0; at < rows; at += window) {
		int64_t n = rows - at < window ? rows - at : window;
		const void *data;
		size_t stride;
		TRY_GOTO(source_read(rank->model->source, &tensor, row + at, n, col, cols, &scratch, &data, &stride, err), out);
		if (place->linear)
			TRY_GOTO(vt->linear_put(rank->stream, place->linear, place->n0 + (int)at, (int)n, data, stride, err), out);
		else TRY_GOTO(vt->vector_put(rank->stream, place->vector, data, tensor.dtype, (int)n, err), out);
		/* the source's memory is the window's: the stream must be through with it before it goes */
		TRY_GOTO(vt->stream_sync(rank->stream, group_deadline(rank->group), group_abort_flag(rank->group), err), out);
		source_done(rank->model->source, &tensor, row + at, n);
		atomic_fetch_add_explicit(&rank->loaded_bytes, (uint64_t)n * row_bytes, memory_order_relaxed);
		atomic_fetch_add_explicit(&rank->heartbeat, 1, memory_order_relaxed);
	}
out:
	source_scratch_fini(&scratch);
	return st;
}

/* The region as the device makes it, all at once. */
static enum status make_region(struct rank *rank, const struct place *place, const struct source_recipe *recipe,
                               const struct shard_spec *spec, struct error *err)
{
	struct random_region region = {.seed = recipe->seed, .stream = recipe->stream, .offset = recipe->offset, .scale = recipe->scale,
	                               .row = spec->axis == 0 ? spec->begin : 0, .rows = spec->local_rows, .col = spec->axis == 1 ? spec->begin : 0,
	                               .cols = spec->local_cols, .dtype = place->linear->dtype};
	TRY(rank->device->vt->linear_random(rank->stream, place->linear, place->n0, &region, err));
	uint64_t bytes = (uint64_t)spec->local_rows * dtype_size(region.dtype, (size_t)spec->local_cols);
	atomic_fetch_add_explicit(&rank->loaded_bytes, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&rank->heartbeat, 1, memory_order_relaxed);
	return STATUS_OK;
}

/* Whether the device makes up the linears itself: then every rank makes its own, shared or not. */
static bool made_on_device(const struct rank *rank, const struct weight *w, struct source_recipe *recipe)
{
	struct source_tensor tensor;
	struct error ignored = {0};
	return rank->device->vt->linear_random && w->dims == 2 && find(rank, w, &tensor, &ignored) == STATUS_OK &&
	       source_recipe(rank->model->source, &tensor, recipe);
}

/* Every parameter visit is a fault point; `seq` counts them. */
static enum status visit(struct rank *rank, uint64_t *seq, struct error *err)
{
	if (group_aborted(rank->group)) return group_error(rank->group, err);
	return fault_check(group_fault(rank->group), rank->index, FAULT_LOAD, (*seq)++, group_abort_flag(rank->group), err);
}

/* Reads the rank's part of a parameter if it owns it (read) or copies it from the owner (share). */
static enum status bring(struct rank *rank, const struct weight *w, const struct place *place, const struct place *owner_place, int owner,
                         const struct shard_spec *spec, struct error *err)
{
	bool own = owner == rank->index, reads = owner_place == NULL;
	struct source_recipe recipe;
	if (place->linear && made_on_device(rank, w, &recipe)) return reads ? make_region(rank, place, &recipe, spec, err) : STATUS_OK;
	if (own != reads) return STATUS_OK; /* the other phase's work */
	if (own)
		return read_region(rank, w, place, spec->axis == 0 ? spec->begin : 0, spec->local_rows, spec->axis == 1 ? spec->begin : 0,
		                   spec->local_cols, err);
	if (place->linear)
		return rank->device->vt->linear_copy_rows(rank->stream, place->linear, owner_place->linear, place->n0, (int)spec->local_rows, err);
	return rank->device->vt->copy(rank->stream, place->vector, owner_place->vector, (size_t)spec->local_rows * sizeof(float), COPY_ON_DEVICE,
	                              err);
}

static enum status alloc_linear(struct rank *rank, const struct weight *w, int n, int k, enum mem_tag tag, struct linear_weight *out,
                                struct error *err)
{
	struct source_tensor tensor;
	TRY(find(rank, w, &tensor, err));
	*out = (struct linear_weight){.dtype = tensor.dtype, .n = n, .k = k};
	return rank_alloc(rank, rank->device->vt->linear_bytes(tensor.dtype, n, k), tag, w->name, &out->data, err);
}

/* Adds the local rows of `w` to a fused weight: to its last part if that is of the same type, else as a new one. */
static enum status add_part(const struct rank *rank, const struct weight *w, struct fused_weight *out, struct error *err)
{
	struct source_tensor tensor;
	struct shard_spec spec;
	TRY(find(rank, w, &tensor, err));
	TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
	struct linear_weight *last = out->parts ? &out->part[out->parts - 1] : NULL;
	if (!last || last->dtype != tensor.dtype) {
		out->begin[out->parts] = last ? out->begin[out->parts - 1] + last->n : 0;
		last = &out->part[out->parts++];
		*last = (struct linear_weight){.dtype = tensor.dtype, .k = (int)spec.local_cols};
	}
	last->n += (int)spec.local_rows;
	return STATUS_OK;
}

static enum status alloc_linears(struct rank *rank, int layer, struct error *err)
{
	char *base = (char *)&rank->weights.layers[layer];
	for (size_t i = 0; i < PARTS(linear_parts); i++) {
		struct fused_weight *fused = (struct fused_weight *)(base + linear_parts[i].field);
		TRY(add_part(rank, manifest_find(&rank->model->manifest, linear_parts[i].role, layer), fused, err));
		bool complete = i + 1 == PARTS(linear_parts) || linear_parts[i + 1].field != linear_parts[i].field;
		for (int p = 0; complete && p < fused->parts; p++) {
			struct linear_weight *w = &fused->part[p];
			TRY(rank_alloc(rank, rank->device->vt->linear_bytes(w->dtype, w->n, w->k), MEM_SHARDED, manifest_find(&rank->model->manifest, linear_parts[i].role, layer)->name, &w->data, err));
		}
	}
	return STATUS_OK;
}

static enum status alloc_layer(struct rank *rank, int layer, struct error *err)
{
	struct layer_weights *lw = &rank->weights.layers[layer];
	struct rank_shape shape = rank_shape(&rank->model->config, rank->world_size);
	const struct model_config *c = &rank->model->config;
	const struct manifest *m = &rank->model->manifest;
	const struct {
		enum weight_role role;
		float **out;
		int n;
		enum mem_tag tag;
	} vectors[] = {
		{WEIGHT_INPUT_NORM, &lw->input_norm, c->hidden_size, MEM_REPLICATED}, {WEIGHT_POST_NORM, &lw->post_norm, c->hidden_size, MEM_REPLICATED},
		{WEIGHT_Q_NORM, &lw->q_norm, c->head_dim, MEM_REPLICATED},            {WEIGHT_K_NORM, &lw->k_norm, c->head_dim, MEM_REPLICATED},
		{WEIGHT_Q_BIAS, &lw->qkv_bias, shape.qkv_cols, MEM_SHARDED},          {WEIGHT_GATE_BIAS, &lw->gate_up_bias, 2 * shape.inner, MEM_SHARDED},
		{WEIGHT_O_BIAS, &lw->o_bias, c->hidden_size, MEM_REPLICATED},         {WEIGHT_DOWN_BIAS, &lw->down_bias, c->hidden_size, MEM_REPLICATED},
	};
	TRY(alloc_linears(rank, layer, err));
	for (size_t i = 0; i < PARTS(vectors); i++) {
		const struct weight *w = manifest_find(m, vectors[i].role, layer);
		if (w) TRY(rank_alloc(rank, (size_t)vectors[i].n * sizeof(float), vectors[i].tag, w->name, (void **)vectors[i].out, err));
	}
	return STATUS_OK;
}

/* This rank's vocabulary rows: whole granules, as even as they go, so that a tied head is a view; or all of them on rank 0. */
static void vocab_range(const struct rank *rank, bool all_on_rank0, int *begin, int *end)
{
	int64_t granule = rank->device->vt->linear_granule, vocab = rank->model->config.vocab_size;
	int64_t panels = (vocab + granule - 1) / granule;
	int64_t lo = panels * rank->index / rank->world_size * granule, hi = panels * (rank->index + 1) / rank->world_size * granule;
	if (all_on_rank0) {
		lo = rank->index ? vocab : 0;
		hi = vocab;
	}
	*begin = (int)(lo < vocab ? lo : vocab);
	*end = (int)(hi < vocab ? hi : vocab);
}

static enum status alloc_outer(struct rank *rank, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	const struct manifest *m = &rank->model->manifest;
	struct rank_weights *w = &rank->weights;
	const bool split = rank->options.embedding_split;
	int begin, end, rows = c->vocab_size;
	if (split) {
		vocab_range(rank, c->tied && rank->options.head_on_rank0, &w->embed_begin, &end);
		rows = end - w->embed_begin;
	}
	vocab_range(rank, rank->options.head_on_rank0, &begin, &end);
	w->head_begin = begin;
	TRY(alloc_linear(rank, manifest_find(m, WEIGHT_EMBED, -1), rows, c->hidden_size, split ? MEM_SHARDED : MEM_REPLICATED, &w->embed, err));
	TRY(rank_alloc(rank, (size_t)c->hidden_size * sizeof(float), MEM_REPLICATED, "final norm", (void **)&w->final_norm, err));
	if (c->tied) {
		w->head = linear_view(rank->device->vt, &w->embed, begin - w->embed_begin, end - begin);
		return STATUS_OK;
	}
	return alloc_linear(rank, manifest_find(m, WEIGHT_LM_HEAD, -1), end - begin, c->hidden_size, MEM_SHARDED, &w->head, err);
}

/* Rows from `row` on of a fused weight. */
static struct place place_in(struct fused_weight *fused, int row)
{
	int p = fused->parts - 1;
	while (p > 0 && fused->begin[p] > row) p--;
	return (struct place){.linear = &fused->part[p], .n0 = row - fused->begin[p]};
}

/* One walk over all parameters of the rank for both phases. owners NULL: read; else copy from them. */
static enum status bring_layer(struct rank *rank, struct rank *const *ranks, int layer, uint64_t *seq, struct error *err)
{
	char *base = (char *)&rank->weights.layers[layer];
	for (int pass = 0; pass < 2; pass++) {
		const struct part *parts = pass ? vector_parts : linear_parts;
		size_t count = pass ? PARTS(vector_parts) : PARTS(linear_parts);
		int n0 = 0;
		for (size_t i = 0; i < count; i++) {
			if (i == 0 || parts[i].field != parts[i - 1].field) n0 = 0;
			const struct weight *w = manifest_find(&rank->model->manifest, parts[i].role, layer);
			if (!w) continue;
			TRY(visit(rank, seq, err));
			struct shard_spec spec;
			TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
			char *owner_base = ranks ? (char *)&ranks[spec.owner]->weights.layers[layer] : NULL;
			struct place here = {0}, there = {0};
			if (pass == 0) {
				here = place_in((struct fused_weight *)(base + parts[i].field), n0);
				if (owner_base) there = place_in((struct fused_weight *)(owner_base + parts[i].field), n0);
			} else {
				here.vector = *(float **)(base + parts[i].field) + n0;
				if (owner_base) there.vector = *(float **)(owner_base + parts[i].field) + n0;
			}
			TRY(bring(rank, w, &here, owner_base ? &there : NULL, spec.owner, &spec, err));
			n0 += (int)spec.local_rows;
		}
	}
	return STATUS_OK;
}

static enum status bring_outer(struct rank *rank, struct rank *const *ranks, uint64_t *seq, struct error *err)
{
	const struct model_config *c = &rank->model->config;
	struct rank_weights *w = &rank->weights;
	const struct weight *embed = manifest_find(&rank->model->manifest, WEIGHT_EMBED, -1);
	const struct weight *norm = manifest_find(&rank->model->manifest, WEIGHT_FINAL_NORM, -1);
	const bool split = rank->options.embedding_split;
	struct shard_spec whole = {.axis = split ? 0 : -1, .begin = w->embed_begin, .local_rows = w->embed.n, .local_cols = c->hidden_size};
	struct place here = {.linear = &w->embed}, there = {.linear = ranks ? &ranks[0]->weights.embed : NULL};
	TRY(visit(rank, seq, err));
	if (w->embed.n) TRY(bring(rank, embed, &here, ranks ? &there : NULL, split ? rank->index : 0, &whole, err));
	whole = (struct shard_spec){.axis = -1, .local_rows = c->hidden_size, .local_cols = 1};
	here = (struct place){.vector = w->final_norm};
	there = (struct place){.vector = ranks ? ranks[0]->weights.final_norm : NULL};
	TRY(visit(rank, seq, err));
	TRY(bring(rank, norm, &here, ranks ? &there : NULL, 0, &whole, err));
	if (ranks || c->tied || !w->head.n) return STATUS_OK;
	TRY(visit(rank, seq, err));
	whole = (struct shard_spec){.axis = 0, .begin = w->head_begin, .local_rows = w->head.n, .local_cols = c->hidden_size, .owner = rank->index};
	here = (struct place){.linear = &w->head};
	return bring(rank, manifest_find(&rank->model->manifest, WEIGHT_LM_HEAD, -1), &here, NULL, rank->index, &whole, err);
}

static enum status bring_all(struct rank *rank, struct rank *const *ranks, struct error *err)
{
	uint64_t seq = 0;
	TRY(bring_outer(rank, ranks, &seq, err));
	for (int layer = 0; layer < rank->model->config.layers; layer++) TRY(bring_layer(rank, ranks, layer, &seq, err));
	return rank->device->vt->stream_sync(rank->stream, group_deadline(rank->group), group_abort_flag(rank->group), err);
}

enum status loader_read(struct rank *rank, struct error *err)
{
	int layers = rank->model->config.layers;
	rank->weights.layers = mem_zalloc((size_t)layers, sizeof *rank->weights.layers, "layer table", err);
	if (!rank->weights.layers) return STATUS_NO_MEMORY;
	TRY(alloc_outer(rank, err));
	for (int layer = 0; layer < layers; layer++) TRY(alloc_layer(rank, layer, err));
	return bring_all(rank, NULL, err);
}

enum status loader_share(struct rank *rank, struct rank *const *ranks, struct error *err)
{
	return bring_all(rank, ranks, err);
}
