#include "engine/loader.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* Bytes of checkpoint read at a time per rank: what bounds the host memory of loading beyond the weights themselves. A window is packed while it is in a core's cache. */
#define WINDOW_BYTES ((size_t)2 << 20)

/* Where one parameter lives on a rank: rows [n0, n0 + local rows) of a linear, or a vector. Taps of a convolution are vectors, one behind the
 * other, `stride` floats apart. */
struct place {
	const struct linear_weight *linear; /* NULL: vector */
	int n0;
	float *vector;
	int64_t stride;
	int expert; /* whose parameter it is; 0 where it is not an expert's */
};

/* The linears and vectors of a layer and the parameters that they are made of, in row order. One table: allocation, read and share walk it. */
struct part {
	enum weight_role role;
	size_t field; /* offset in struct layer_weights: a fused_weight, or a pointer to a vector */
};
#define LINEAR(role, member) {WEIGHT_##role, offsetof(struct layer_weights, member)}
static const struct part linear_parts[] = {
	LINEAR(Q, qkv), LINEAR(K, qkv), LINEAR(V, qkv), LINEAR(Q_GATE, qkv), LINEAR(O, o),
	LINEAR(GDN_Q, gdn.qkvz), LINEAR(GDN_K, gdn.qkvz), LINEAR(GDN_V, gdn.qkvz), LINEAR(GDN_Z, gdn.qkvz),
	LINEAR(GDN_B, gdn.ba), LINEAR(GDN_A, gdn.ba), LINEAR(GDN_OUT, gdn.out),
	LINEAR(GATE, gate_up), LINEAR(UP, gate_up), LINEAR(DOWN, down),
	LINEAR(ROUTER, moe.router), LINEAR(SHARED_ROUTER, moe.router),
	LINEAR(SHARED_GATE, moe.shared_gate_up), LINEAR(SHARED_UP, moe.shared_gate_up), LINEAR(SHARED_DOWN, moe.shared_down),
};
static const struct part vector_parts[] = {
	LINEAR(INPUT_NORM, input_norm), LINEAR(POST_NORM, post_norm), LINEAR(MIXED_NORM, mixed_norm), LINEAR(MLP_NORM, mlp_norm),
	LINEAR(Q_NORM, q_norm), LINEAR(K_NORM, k_norm),
	LINEAR(Q_BIAS, qkv_bias), LINEAR(K_BIAS, qkv_bias), LINEAR(V_BIAS, qkv_bias), LINEAR(Q_GATE_BIAS, qkv_bias), LINEAR(O_BIAS, o_bias),
	LINEAR(GDN_CONV_Q, gdn.conv), LINEAR(GDN_CONV_K, gdn.conv), LINEAR(GDN_CONV_V, gdn.conv),
	LINEAR(GDN_A_LOG, gdn.a_log), LINEAR(GDN_DT_BIAS, gdn.dt_bias), LINEAR(GDN_NORM, gdn.norm),
	LINEAR(GATE_BIAS, gate_up_bias), LINEAR(UP_BIAS, gate_up_bias), LINEAR(DOWN_BIAS, down_bias),
};
#undef LINEAR
#define PARTS(list) (sizeof(list) / sizeof *(list))

static enum status check_sizes(const struct model_config *c, const struct device_ops *ops, struct error *err)
{
	const struct device_sizes *s = &ops->sizes;
	const char *advice = strcmp(ops->name, "cpu") == 0 ? "take another model" : "take --device cpu, or another model";
	const bool gdn = model_gdn_layers(c) > 0;
	const struct {
		const char *key;
		int value, most;
	} bounds[] = {
		{"linear_key_head_dim", gdn ? c->gdn.k_dim : 0, s->max_gdn_k_dim},
		{"linear_value_head_dim", gdn ? c->gdn.v_dim : 0, s->max_gdn_v_dim},
		{"linear_conv_kernel_dim", gdn ? c->gdn.conv_kernel : 0, s->max_gdn_taps},
		{"num_experts", c->moe.layers ? c->moe.experts : 0, s->max_experts},
	};
	if ((s->head_multiple && c->head_dim % s->head_multiple) || (s->max_head_dim && c->head_dim > s->max_head_dim))
		return FAIL(err, UNSUPPORTED, "%s: head_dim %d: --device %s computes attention with multiples of %d up to %d; %s", c->model_type, c->head_dim, ops->name,
		            s->head_multiple, s->max_head_dim, advice);
	for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
		if (bounds[i].most && bounds[i].value > bounds[i].most)
			return FAIL(err, UNSUPPORTED, "%s: %s %d: --device %s computes with up to %d; %s", c->model_type, bounds[i].key, bounds[i].value, ops->name, bounds[i].most,
			            advice);
	return STATUS_OK;
}

enum status loader_fits(const struct model_config *c, const struct device_ops *ops, struct error *err)
{
	const char *lacks = NULL;
	if (c->stored.blocks && !ops->block_types)
		return FAIL(err, UNSUPPORTED, "%s: --device %s computes with F32, F16 and BF16 weights only; take --device cpu, or weights that are not quantised", c->model_type,
		            ops->name);
	if (model_gdn_layers(c) && !ops->ops.gdn) lacks = "gated delta-net layers";
	if (c->attn_output_gate && !ops->ops.gate) lacks = "gated attention";
	if (c->moe.layers && !ops->ops.moe) lacks = "experts";
	if (c->four_norms && !(ops->ops.norm_add && ops->ops.geglu && ops->ops.softcap)) lacks = "Gemma's norms";
	if (!lacks) return check_sizes(c, ops, err);
	return FAIL(err, UNSUPPORTED, "%s: --device %s has no kernels for %s; take --device cpu", c->model_type, ops->name, lacks);
}

/* The experts of a layer, the shared one included, are one block of weights: all of the type of the first one's gate. The router's rows are one linear. */
static enum weight_role same_type_as(enum weight_role role)
{
	if (role == WEIGHT_SHARED_ROUTER) return WEIGHT_ROUTER;
	bool block = role == WEIGHT_EXPERT_GATE || role == WEIGHT_EXPERT_UP || role == WEIGHT_EXPERT_DOWN || role == WEIGHT_SHARED_GATE ||
	             role == WEIGHT_SHARED_UP || role == WEIGHT_SHARED_DOWN;
	return block ? WEIGHT_EXPERT_GATE : role;
}

static enum status check_tensor(const struct model *model, const struct weight *w, int expert, struct error *err)
{
	struct source_tensor tensor, other;
	char name[WEIGHT_NAME_BYTES], other_name[WEIGHT_NAME_BYTES];
	TRY(weight_find(model->source, w, expert, name, &tensor, err));
	enum weight_role role = same_type_as(w->role);
	if (role == w->role && w->experts == 1) return STATUS_OK;
	TRY(weight_find(model->source, manifest_find(&model->manifest, role, w->layer), 0, other_name, &other, err));
	if (tensor.dtype == other.dtype) return STATUS_OK;
	return FAIL(err, UNSUPPORTED, "%s: is of type %s, %s of type %s; one type for these tensors of a layer is wanted", name, dtype_name(tensor.dtype), other_name,
	            dtype_name(other.dtype));
}

enum status loader_check(const struct model *model, const struct device_ops *ops, struct error *err)
{
	TRY(loader_fits(&model->config, ops, err));
	for (int i = 0; i < model->manifest.count; i++)
		for (int e = 0; e < model->manifest.weights[i].experts; e++) TRY(check_tensor(model, &model->manifest.weights[i], e, err));
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

/* A tensor of the source, and room for its name. */
struct found {
	struct source_tensor tensor;
	char name[WEIGHT_NAME_BYTES];
};
static enum status find(const struct rank *rank, const struct weight *w, int expert, struct found *out, struct error *err)
{
	return weight_find(rank->model->source, w, expert, out->name, &out->tensor, err);
}

static void count_loaded(struct rank *rank, uint64_t bytes)
{
	atomic_fetch_add_explicit(&rank->loaded_bytes, bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&rank->heartbeat, 1, memory_order_relaxed);
}

/* The stream must be through with the window before the next one is read into its place. */
static enum status window_done(struct rank *rank, uint64_t bytes, struct error *err)
{
	TRY(rank->device->vt->stream_sync(rank->stream, group_deadline(rank->group), group_abort_flag(rank->group), err));
	count_loaded(rank, bytes);
	return STATUS_OK;
}

/* The rank's part of a linear into `place`, a window at a time. */
static enum status read_linear(struct rank *rank, const struct weight *w, const struct place *place, const struct shard_spec *spec,
                               struct error *err)
{
	struct found found;
	TRY(find(rank, w, place->expert, &found, err));
	const struct source_tensor tensor = found.tensor;
	const struct device_ops *vt = rank->device->vt;
	struct source_scratch scratch = {0};
	const int64_t row = spec->axis == 0 ? spec->begin : 0, col = spec->axis == 1 ? spec->begin : 0, rows = spec->local_rows, cols = spec->local_cols;
	size_t row_bytes = dtype_size(tensor.dtype, (size_t)cols);
	int64_t window = (int64_t)(WINDOW_BYTES / (row_bytes ? row_bytes : 1));
	if (window > vt->linear_granule) window -= window % vt->linear_granule; /* whole panels at a time */
	if (window < 1) window = 1;
	enum status st = STATUS_OK;
	for (int64_t done = 0, n; done < rows; done += n) {
		int64_t at;
		n = weight_run(w, place->expert, row + done, rows - done < window ? rows - done : window, &at);
		const void *data;
		size_t stride;
		TRY_GOTO(source_read(rank->model->source, &tensor, at, n, col, cols, &scratch, &data, &stride, err), out);
		TRY_GOTO(vt->linear_put(rank->stream, place->linear, place->n0 + (int)done, (int)n, data, stride, err), out);
		TRY_GOTO(window_done(rank, (uint64_t)n * row_bytes, err), out);
	}
out:
	source_scratch_fini(&scratch);
	return st;
}

/* n elements, `stride` bytes apart, as f32; centred ones with their 1. */
static void gather(float *out, const char *data, size_t stride, enum dtype dtype, int64_t n, float add)
{
	for (int64_t i = 0; i < n; i++) {
		const float value = dtype_load(dtype, data + (size_t)i * stride);
		out[i] = add ? add + value : value; /* the sum in f32, as the models' own code has it */
	}
}

/* The rank's part of a vector, or of each tap. */
static enum status read_vector(struct rank *rank, const struct weight *w, const struct place *place, const struct shard_spec *spec,
                               struct error *err)
{
	struct found found;
	TRY(find(rank, w, place->expert, &found, err));
	const struct source_tensor tensor = found.tensor;
	const struct device_ops *vt = rank->device->vt;
	struct source_scratch scratch = {0};
	const int64_t row = spec->axis == 0 ? spec->begin : 0, rows = spec->local_rows;
	enum status st = STATUS_OK;
	float *values = mem_zalloc((size_t)rows, sizeof *values, "vector", err);
	if (!values) return STATUS_NO_MEMORY;
	for (int64_t done = 0, n; done < rows; done += n) {
		int64_t at;
		n = weight_run(w, 0, row + done, rows - done, &at);
		for (int64_t tap = 0; tap < w->cols; tap++) {
			const void *data;
			size_t stride;
			TRY_GOTO(source_read(rank->model->source, &tensor, at, n, tap, 1, &scratch, &data, &stride, err), out);
			gather(values, data, stride, tensor.dtype, n, w->centred ? 1 : 0);
			TRY_GOTO(vt->vector_put(rank->stream, place->vector + tap * place->stride + done, values, DTYPE_F32, (int)n, err), out);
			TRY_GOTO(window_done(rank, (uint64_t)n * dtype_bytes(tensor.dtype), err), out);
		}
	}
out:
	free(values);
	source_scratch_fini(&scratch);
	return st;
}

/* The rank's part of a linear as the device makes it, run by run. */
static enum status make_linear(struct rank *rank, const struct weight *w, const struct place *place, const struct source_recipe *recipe,
                               const struct shard_spec *spec, struct error *err)
{
	struct random_region region = {.seed = recipe->seed, .stream = recipe->stream, .offset = recipe->offset, .scale = recipe->scale,
	                               .col = spec->axis == 1 ? spec->begin : 0, .cols = spec->local_cols, .dtype = place->linear->dtype};
	const int64_t row = spec->axis == 0 ? spec->begin : 0;
	for (int64_t done = 0; done < spec->local_rows; done += region.rows) {
		region.rows = weight_run(w, place->expert, row + done, spec->local_rows - done, &region.row);
		TRY(rank->device->vt->linear_random(rank->stream, place->linear, place->n0 + (int)done, &region, err));
		count_loaded(rank, (uint64_t)region.rows * dtype_size(region.dtype, (size_t)region.cols));
	}
	return STATUS_OK;
}

/* Whether the device makes up the linears itself: then every rank makes its own, shared or not. */
static bool made_on_device(const struct rank *rank, const struct weight *w, int expert, struct source_recipe *recipe)
{
	struct found found;
	struct error ignored = {0};
	return rank->device->vt->linear_random && w->dims == 2 && find(rank, w, expert, &found, &ignored) == STATUS_OK &&
	       source_recipe(rank->model->source, &found.tensor, recipe);
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
	if (place->linear && made_on_device(rank, w, place->expert, &recipe)) return reads ? make_linear(rank, w, place, &recipe, spec, err) : STATUS_OK;
	if (own != reads) return STATUS_OK; /* the other phase's work */
	if (own) return place->linear ? read_linear(rank, w, place, spec, err) : read_vector(rank, w, place, spec, err);
	if (place->linear)
		return rank->device->vt->linear_copy_rows(rank->stream, place->linear, owner_place->linear, place->n0, (int)spec->local_rows, err);
	return rank->device->vt->copy(rank->stream, place->vector, owner_place->vector, (size_t)spec->local_rows * sizeof(float), COPY_ON_DEVICE,
	                              err);
}

static enum status alloc_linear(struct rank *rank, const struct weight *w, int n, int k, enum mem_tag tag, struct linear_weight *out,
                                struct error *err)
{
	struct found found;
	TRY(find(rank, w, 0, &found, err));
	*out = (struct linear_weight){.dtype = found.tensor.dtype, .n = n, .k = k};
	return rank_alloc(rank, rank->device->vt->linear_bytes(out->dtype, n, k), tag, w->name, &out->data, err);
}

/* Adds the local rows of `w` to a fused weight: to its last part if that is of the same type, else as a new one. */
static enum status add_part(const struct rank *rank, const struct weight *w, struct fused_weight *out, struct error *err)
{
	struct found found;
	struct shard_spec spec;
	TRY(find(rank, w, 0, &found, err));
	TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
	const enum dtype dtype = found.tensor.dtype;
	struct linear_weight *last = out->parts ? &out->part[out->parts - 1] : NULL;
	if (!last || last->dtype != dtype) {
		out->begin[out->parts] = last ? out->begin[out->parts - 1] + last->n : 0;
		last = &out->part[out->parts++];
		*last = (struct linear_weight){.dtype = dtype, .k = (int)spec.local_cols};
	}
	last->n += (int)spec.local_rows;
	return STATUS_OK;
}

static enum status alloc_parts(struct rank *rank, struct fused_weight *fused, const char *name, enum mem_tag tag, struct error *err)
{
	for (int p = 0; p < fused->parts; p++) {
		struct linear_weight *w = &fused->part[p];
		TRY(rank_alloc(rank, rank->device->vt->linear_bytes(w->dtype, w->n, w->k), tag, name, &w->data, err));
	}
	return STATUS_OK;
}

/* Both projections of a gated delta net: one behind the other where that makes one linear of them. */
static enum status alloc_gdn_in(struct rank *rank, struct gdn_weights *gdn, const char *name, enum mem_tag tag, struct error *err)
{
	const struct device_ops *vt = rank->device->vt;
	struct linear_weight *qkvz = &gdn->qkvz.part[0], *ba = &gdn->ba.part[0], both = *qkvz;
	if (gdn->qkvz.parts != 1 || gdn->ba.parts != 1 || qkvz->dtype != ba->dtype || qkvz->n % vt->linear_granule) {
		TRY(alloc_parts(rank, &gdn->qkvz, name, tag, err));
		return alloc_parts(rank, &gdn->ba, name, tag, err);
	}
	both.n += ba->n;
	TRY(rank_alloc(rank, vt->linear_bytes(both.dtype, both.n, both.k), tag, name, &both.data, err));
	qkvz->data = both.data;
	*ba = linear_view(vt, &both, qkvz->n, ba->n);
	return STATUS_OK;
}

static enum status alloc_linears(struct rank *rank, int layer, struct error *err)
{
	struct layer_weights *weights = &rank->weights.layers[layer];
	const char *name = NULL;
	enum mem_tag tag = MEM_SHARDED;
	for (size_t i = 0; i < PARTS(linear_parts); i++) {
		struct fused_weight *fused = (struct fused_weight *)((char *)weights + linear_parts[i].field);
		const struct weight *of = manifest_find(&rank->model->manifest, linear_parts[i].role, layer);
		if (of) {
			name = of->name;
			tag = of->kind == SHARD_REPLICATED ? MEM_REPLICATED : MEM_SHARDED;
			TRY(add_part(rank, of, fused, err));
		}
		bool complete = i + 1 == PARTS(linear_parts) || linear_parts[i + 1].field != linear_parts[i].field;
		if (!complete || fused == &weights->gdn.qkvz) continue; /* with ba, which follows */
		if (fused == &weights->gdn.ba) TRY(alloc_gdn_in(rank, &weights->gdn, name, tag, err));
		else TRY(alloc_parts(rank, fused, name, tag, err));
	}
	return STATUS_OK;
}

/* Rows of a layer's vector: those of all that it is made of. */
static enum status vector_rows(const struct rank *rank, int layer, size_t field, int64_t *rows, struct error *err)
{
	*rows = 0;
	for (size_t i = 0; i < PARTS(vector_parts); i++) {
		const struct weight *w = manifest_find(&rank->model->manifest, vector_parts[i].role, layer);
		struct shard_spec spec;
		if (!w || vector_parts[i].field != field) continue;
		TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
		*rows += spec.local_rows;
	}
	return STATUS_OK;
}

static enum status alloc_vectors(struct rank *rank, int layer, struct error *err)
{
	char *base = (char *)&rank->weights.layers[layer];
	for (size_t i = 0; i < PARTS(vector_parts); i++) {
		const struct weight *w = manifest_find(&rank->model->manifest, vector_parts[i].role, layer);
		float **vector = (float **)(base + vector_parts[i].field);
		int64_t rows;
		if (!w || *vector) continue;
		TRY(vector_rows(rank, layer, vector_parts[i].field, &rows, err));
		TRY(rank_alloc(rank, (size_t)(rows * w->cols) * sizeof(float), w->kind == SHARD_REPLICATED ? MEM_REPLICATED : MEM_SHARDED, w->name,
		               (void **)vector, err));
	}
	return STATUS_OK;
}

/* All experts' part of a kind of weights, one behind the other: `parts` parameters of `w`'s shape each. */
static enum status alloc_experts(struct rank *rank, const struct weight *w, int parts, struct linear_weight *first, size_t *step, struct error *err)
{
	struct found found;
	struct shard_spec spec;
	TRY(find(rank, w, 0, &found, err));
	TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
	*first = (struct linear_weight){.dtype = found.tensor.dtype, .n = parts * (int)spec.local_rows, .k = (int)spec.local_cols};
	*step = rank->device->vt->linear_bytes(first->dtype, first->n, first->k);
	return rank_alloc(rank, (size_t)w->experts * *step, MEM_SHARDED, w->name, &first->data, err);
}

static enum status alloc_moe(struct rank *rank, int layer, struct error *err)
{
	const struct manifest *m = &rank->model->manifest;
	struct expert_weights *moe = &rank->weights.layers[layer].moe;
	const struct weight *gate = manifest_find(m, WEIGHT_EXPERT_GATE, layer);
	if (!gate) return STATUS_OK;
	TRY(alloc_experts(rank, gate, 2, &moe->op.gate_up, &moe->op.gate_up_bytes, err));
	TRY(alloc_experts(rank, manifest_find(m, WEIGHT_EXPERT_DOWN, layer), 1, &moe->op.down, &moe->op.down_bytes, err));
	moe->op.experts = gate->experts;
	moe->op.router = moe->router.part[0];
	moe->op.shared_gate_up = moe->shared_gate_up.part[0];
	moe->op.shared_down = moe->shared_down.part[0];
	return STATUS_OK;
}

/* This rank's vocabulary rows; or all of them on rank 0. */
static void vocab_range(const struct rank *rank, bool all_on_rank0, int *begin, int *end)
{
	const int vocab = rank->model->config.vocab_size;
	struct shard_rows own = shard_vocab(vocab, rank->world_size, rank->index, rank->device->vt->linear_granule);
	if (all_on_rank0) own = (struct shard_rows){rank->index ? vocab : 0, vocab};
	*begin = (int)own.begin;
	*end = (int)own.end;
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
				TRY(vector_rows(rank, layer, parts[i].field, &here.stride, err));
				here.vector = *(float **)(base + parts[i].field) + n0;
				if (owner_base) there.vector = *(float **)(owner_base + parts[i].field) + n0;
			}
			TRY(bring(rank, w, &here, owner_base ? &there : NULL, spec.owner, &spec, err));
			n0 += (int)spec.local_rows;
		}
	}
	return STATUS_OK;
}

/* An expert's rows of gate, up or down. */
static struct linear_weight expert_linear(const struct moe_weights *w, enum weight_role role, int expert)
{
	struct linear_weight linear = role == WEIGHT_EXPERT_DOWN ? w->down : w->gate_up;
	linear.data = (char *)linear.data + (size_t)expert * (role == WEIGHT_EXPERT_DOWN ? w->down_bytes : w->gate_up_bytes);
	return linear;
}

/* The experts of a layer: every rank has its own part of each, so nothing is shared. */
static enum status bring_experts(struct rank *rank, struct rank *const *ranks, int layer, uint64_t *seq, struct error *err)
{
	static const enum weight_role roles[] = {WEIGHT_EXPERT_GATE, WEIGHT_EXPERT_UP, WEIGHT_EXPERT_DOWN};
	const struct moe_weights *op = &rank->weights.layers[layer].moe.op;
	for (size_t i = 0; i < PARTS(roles) && !ranks; i++) {
		const struct weight *w = manifest_find(&rank->model->manifest, roles[i], layer);
		struct shard_spec spec;
		if (!w) continue;
		TRY(shard_of(&spec, w, rank->world_size, rank->index, err));
		for (int e = 0; e < w->experts; e++) {
			const struct linear_weight linear = expert_linear(op, roles[i], e);
			const struct place here = {.linear = &linear, .expert = e, .n0 = roles[i] == WEIGHT_EXPERT_UP ? (int)spec.local_rows : 0};
			TRY(visit(rank, seq, err));
			TRY(bring(rank, w, &here, NULL, rank->index, &spec, err));
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
	for (int layer = 0; layer < rank->model->config.layers; layer++) {
		TRY(bring_layer(rank, ranks, layer, &seq, err));
		TRY(bring_experts(rank, ranks, layer, &seq, err));
	}
	return rank->device->vt->stream_sync(rank->stream, group_deadline(rank->group), group_abort_flag(rank->group), err);
}

enum status loader_read(struct rank *rank, struct error *err)
{
	int layers = rank->model->config.layers;
	rank->weights.layers = mem_zalloc((size_t)layers, sizeof *rank->weights.layers, "layer table", err);
	if (!rank->weights.layers) return STATUS_NO_MEMORY;
	TRY(alloc_outer(rank, err));
	for (int layer = 0; layer < layers; layer++) {
		TRY(alloc_linears(rank, layer, err));
		TRY(alloc_vectors(rank, layer, err));
		TRY(alloc_moe(rank, layer, err));
	}
	return bring_all(rank, NULL, err);
}

enum status loader_share(struct rank *rank, struct rank *const *ranks, struct error *err)
{
	return bring_all(rank, ranks, err);
}
