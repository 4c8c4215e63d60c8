#include "model/shard.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "model/source.h"

/* ---- The manifest: which tensors a model has, and how each is cut ---- */

/* A tensor extent as a quantity of the config: a head count times the rows of a head, or a plain size. GDN_V_OF_K and GDN_HEADS_OF_K are
 * GDN_V and GDN_HEADS with all that belongs to one key head kept together, as the layout by key heads has them. */
enum extent {
	EXTENT_ONE, EXTENT_HIDDEN, EXTENT_INTERMEDIATE, EXTENT_VOCAB, EXTENT_HEAD_DIM, EXTENT_Q, EXTENT_KV,
	EXTENT_GDN_K, EXTENT_GDN_V, EXTENT_GDN_V_OF_K, EXTENT_GDN_HEADS, EXTENT_GDN_HEADS_OF_K, EXTENT_GDN_V_DIM, EXTENT_GDN_TAPS,
	EXTENT_EXPERTS, EXTENT_EXPERT, EXTENT_SHARED
};
enum condition {
	ALWAYS, IF_UNTIED, IF_QKV_BIAS, IF_O_BIAS, IF_MLP_BIAS, IF_QK_NORM, IF_GATE, IF_GATE_BIAS, IF_FLAT, IF_BY_K_HEAD,
	IF_STACKED, IF_PER_EXPERT, IF_SHARED, IF_TWO_NORMS, IF_FOUR_NORMS
};
/* Which layers have it. */
enum scope { OUTER, EVERY, ATTENTION, GDN, DENSE_MLP, SPARSE_MLP };
/* Parameters of equal names are parts of one tensor, in the order of the table: below each other, or each with a head's rows in turn. */
enum join { BELOW, IN_TURN };

/* The one table of names (S1), for all architectures: they differ in the conditions. Names are relative to `<prefix>` for the outer
 * tensors, `<prefix>layers.<i>.` for those of a layer. A role may have several lines, of which one applies. */
static const struct template {
	enum weight_role role;
	enum scope scope;
	const char *name;
	enum extent rows, cols;
	int dims;
	enum shard_kind kind;
	enum condition condition;
	enum join join;
	bool centred; /* where config->centred_norms */
} templates[] = {
#define MATRIX(role, scope, name, rows, cols, kind, condition) \
	{WEIGHT_##role, scope, name, EXTENT_##rows, EXTENT_##cols, 2, SHARD_##kind, condition, BELOW, false}
#define HEADS_IN_TURN(role, scope, name, rows, cols, condition) \
	{WEIGHT_##role, scope, name, EXTENT_##rows, EXTENT_##cols, 2, SHARD_COLUMN, condition, IN_TURN, false}
#define VECTOR(role, scope, name, rows, kind, condition) \
	{WEIGHT_##role, scope, name, EXTENT_##rows, EXTENT_ONE, 1, SHARD_##kind, condition, IN_TURN, false}
#define NORM(role, scope, name, rows, condition) \
	{WEIGHT_##role, scope, name, EXTENT_##rows, EXTENT_ONE, 1, SHARD_REPLICATED, condition, BELOW, true}
#define TAPS(role, scope, name, rows) {WEIGHT_##role, scope, name, EXTENT_##rows, EXTENT_GDN_TAPS, 3, SHARD_COLUMN, ALWAYS, BELOW, false}
	MATRIX(EMBED, OUTER, "embed_tokens.weight", VOCAB, HIDDEN, REPLICATED, ALWAYS),
	NORM(FINAL_NORM, OUTER, "norm.weight", HIDDEN, ALWAYS),
	MATRIX(LM_HEAD, OUTER, NULL, VOCAB, HIDDEN, REPLICATED, IF_UNTIED), /* name: see head_name */
	NORM(INPUT_NORM, EVERY, "input_layernorm.weight", HIDDEN, ALWAYS),
	HEADS_IN_TURN(Q, ATTENTION, "self_attn.q_proj.weight", Q, HIDDEN, ALWAYS),
	HEADS_IN_TURN(Q_GATE, ATTENTION, "self_attn.q_proj.weight", Q, HIDDEN, IF_GATE),
	MATRIX(K, ATTENTION, "self_attn.k_proj.weight", KV, HIDDEN, COLUMN, ALWAYS),
	MATRIX(V, ATTENTION, "self_attn.v_proj.weight", KV, HIDDEN, COLUMN, ALWAYS),
	VECTOR(Q_BIAS, ATTENTION, "self_attn.q_proj.bias", Q, COLUMN, IF_QKV_BIAS),
	VECTOR(Q_GATE_BIAS, ATTENTION, "self_attn.q_proj.bias", Q, COLUMN, IF_GATE_BIAS),
	VECTOR(K_BIAS, ATTENTION, "self_attn.k_proj.bias", KV, COLUMN, IF_QKV_BIAS),
	VECTOR(V_BIAS, ATTENTION, "self_attn.v_proj.bias", KV, COLUMN, IF_QKV_BIAS),
	NORM(Q_NORM, ATTENTION, "self_attn.q_norm.weight", HEAD_DIM, IF_QK_NORM),
	NORM(K_NORM, ATTENTION, "self_attn.k_norm.weight", HEAD_DIM, IF_QK_NORM),
	MATRIX(O, ATTENTION, "self_attn.o_proj.weight", HIDDEN, Q, ROW, ALWAYS),
	VECTOR(O_BIAS, ATTENTION, "self_attn.o_proj.bias", HIDDEN, REPLICATED, IF_O_BIAS),
	MATRIX(GDN_Q, GDN, "linear_attn.in_proj_qkv.weight", GDN_K, HIDDEN, COLUMN, IF_FLAT),
	MATRIX(GDN_K, GDN, "linear_attn.in_proj_qkv.weight", GDN_K, HIDDEN, COLUMN, IF_FLAT),
	MATRIX(GDN_V, GDN, "linear_attn.in_proj_qkv.weight", GDN_V, HIDDEN, COLUMN, IF_FLAT),
	MATRIX(GDN_Z, GDN, "linear_attn.in_proj_z.weight", GDN_V, HIDDEN, COLUMN, IF_FLAT),
	MATRIX(GDN_B, GDN, "linear_attn.in_proj_b.weight", GDN_HEADS, HIDDEN, COLUMN, IF_FLAT),
	MATRIX(GDN_A, GDN, "linear_attn.in_proj_a.weight", GDN_HEADS, HIDDEN, COLUMN, IF_FLAT),
	HEADS_IN_TURN(GDN_Q, GDN, "linear_attn.in_proj_qkvz.weight", GDN_K, HIDDEN, IF_BY_K_HEAD),
	HEADS_IN_TURN(GDN_K, GDN, "linear_attn.in_proj_qkvz.weight", GDN_K, HIDDEN, IF_BY_K_HEAD),
	HEADS_IN_TURN(GDN_V, GDN, "linear_attn.in_proj_qkvz.weight", GDN_V_OF_K, HIDDEN, IF_BY_K_HEAD),
	HEADS_IN_TURN(GDN_Z, GDN, "linear_attn.in_proj_qkvz.weight", GDN_V_OF_K, HIDDEN, IF_BY_K_HEAD),
	HEADS_IN_TURN(GDN_B, GDN, "linear_attn.in_proj_ba.weight", GDN_HEADS_OF_K, HIDDEN, IF_BY_K_HEAD),
	HEADS_IN_TURN(GDN_A, GDN, "linear_attn.in_proj_ba.weight", GDN_HEADS_OF_K, HIDDEN, IF_BY_K_HEAD),
	TAPS(GDN_CONV_Q, GDN, "linear_attn.conv1d.weight", GDN_K),
	TAPS(GDN_CONV_K, GDN, "linear_attn.conv1d.weight", GDN_K),
	TAPS(GDN_CONV_V, GDN, "linear_attn.conv1d.weight", GDN_V),
	VECTOR(GDN_A_LOG, GDN, "linear_attn.A_log", GDN_HEADS, COLUMN, ALWAYS),
	VECTOR(GDN_DT_BIAS, GDN, "linear_attn.dt_bias", GDN_HEADS, COLUMN, ALWAYS),
	VECTOR(GDN_NORM, GDN, "linear_attn.norm.weight", GDN_V_DIM, REPLICATED, ALWAYS), /* never centred */
	MATRIX(GDN_OUT, GDN, "linear_attn.out_proj.weight", HIDDEN, GDN_V, ROW, ALWAYS),
	NORM(POST_NORM, EVERY, "post_attention_layernorm.weight", HIDDEN, IF_TWO_NORMS),
	NORM(MIXED_NORM, EVERY, "post_attention_layernorm.weight", HIDDEN, IF_FOUR_NORMS),
	NORM(POST_NORM, EVERY, "pre_feedforward_layernorm.weight", HIDDEN, IF_FOUR_NORMS),
	NORM(MLP_NORM, EVERY, "post_feedforward_layernorm.weight", HIDDEN, IF_FOUR_NORMS),
	MATRIX(GATE, DENSE_MLP, "mlp.gate_proj.weight", INTERMEDIATE, HIDDEN, COLUMN, ALWAYS),
	MATRIX(UP, DENSE_MLP, "mlp.up_proj.weight", INTERMEDIATE, HIDDEN, COLUMN, ALWAYS),
	VECTOR(GATE_BIAS, DENSE_MLP, "mlp.gate_proj.bias", INTERMEDIATE, COLUMN, IF_MLP_BIAS),
	VECTOR(UP_BIAS, DENSE_MLP, "mlp.up_proj.bias", INTERMEDIATE, COLUMN, IF_MLP_BIAS),
	MATRIX(DOWN, DENSE_MLP, "mlp.down_proj.weight", HIDDEN, INTERMEDIATE, ROW, ALWAYS),
	VECTOR(DOWN_BIAS, DENSE_MLP, "mlp.down_proj.bias", HIDDEN, REPLICATED, IF_MLP_BIAS),
	MATRIX(ROUTER, SPARSE_MLP, "mlp.gate.weight", EXPERTS, HIDDEN, REPLICATED, ALWAYS),
	MATRIX(EXPERT_GATE, SPARSE_MLP, "mlp.experts.*.gate_proj.weight", EXPERT, HIDDEN, COLUMN, IF_PER_EXPERT),
	MATRIX(EXPERT_UP, SPARSE_MLP, "mlp.experts.*.up_proj.weight", EXPERT, HIDDEN, COLUMN, IF_PER_EXPERT),
	MATRIX(EXPERT_DOWN, SPARSE_MLP, "mlp.experts.*.down_proj.weight", HIDDEN, EXPERT, ROW, IF_PER_EXPERT),
	MATRIX(EXPERT_GATE, SPARSE_MLP, "mlp.experts.gate_up_proj", EXPERT, HIDDEN, COLUMN, IF_STACKED),
	MATRIX(EXPERT_UP, SPARSE_MLP, "mlp.experts.gate_up_proj", EXPERT, HIDDEN, COLUMN, IF_STACKED),
	MATRIX(EXPERT_DOWN, SPARSE_MLP, "mlp.experts.down_proj", HIDDEN, EXPERT, ROW, IF_STACKED),
	MATRIX(SHARED_ROUTER, SPARSE_MLP, "mlp.shared_expert_gate.weight", ONE, HIDDEN, REPLICATED, IF_SHARED),
	MATRIX(SHARED_GATE, SPARSE_MLP, "mlp.shared_expert.gate_proj.weight", SHARED, HIDDEN, COLUMN, IF_SHARED),
	MATRIX(SHARED_UP, SPARSE_MLP, "mlp.shared_expert.up_proj.weight", SHARED, HIDDEN, COLUMN, IF_SHARED),
	MATRIX(SHARED_DOWN, SPARSE_MLP, "mlp.shared_expert.down_proj.weight", HIDDEN, SHARED, ROW, IF_SHARED),
#undef MATRIX
#undef HEADS_IN_TURN
#undef VECTOR
#undef NORM
#undef TAPS
};
#define TEMPLATES ((int)(sizeof templates / sizeof *templates))
_Static_assert((int)WEIGHT_ROLE_COUNT <= MODEL_MAX_ROLES, "config.stored has room for each role");

/* Prefixes that checkpoints have used, and the name of their head. */
static const struct prefix {
	const char *prefix, *head;
} prefixes[] = {
	{"model.", "lm_head.weight"},
	{"model.language_model.", "lm_head.weight"},
	{"language_model.model.", "language_model.lm_head.weight"},
	{"", "lm_head.weight"}, /* a bare decoder saved without its wrapper */
};

static const char *head_name(const char *prefix)
{
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
		if (strcmp(prefixes[i].prefix, prefix) == 0) return prefixes[i].head;
	return "lm_head.weight";
}

static void match_prefix(struct model_config *config, const struct source *source)
{
	char name[sizeof config->tensor_prefix + 32];
	snprintf(name, sizeof name, "%sembed_tokens.weight", config->tensor_prefix);
	if (source_has(source, name)) return;
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
		snprintf(name, sizeof name, "%sembed_tokens.weight", prefixes[i].prefix);
		if (!source_has(source, name)) continue;
		snprintf(config->tensor_prefix, sizeof config->tensor_prefix, "%s", prefixes[i].prefix);
		return;
	}
}

void manifest_match(struct model_config *config, const struct source *source)
{
	char name[sizeof config->tensor_prefix + 64];
	match_prefix(config, source);
	for (int i = 0; i < config->layers && config->moe.experts && !config->moe.stacked; i++) {
		snprintf(name, sizeof name, "%slayers.%d.mlp.experts.gate_up_proj", config->tensor_prefix, i);
		config->moe.stacked = source_has(source, name);
	}
}

enum status weight_find(struct source *source, const struct weight *w, int expert, char name[WEIGHT_NAME_BYTES], struct source_tensor *out,
                        struct error *err)
{
	const char *star = strchr(w->name, '*');
	if (star) snprintf(name, WEIGHT_NAME_BYTES, "%.*s%d%s", (int)(star - w->name), w->name, expert, star + 1);
	else snprintf(name, WEIGHT_NAME_BYTES, "%s", w->name);
	if (w->stacked) return source_find_stack(source, name, w->experts, w->stored.rows, w->cols, out, err);
	return source_find(source, name, w->dims, w->stored.rows, w->cols, out, err);
}

uint64_t weight_stored_bytes(const struct model_config *config, const struct weight *weight)
{
	if (config->stored.own_types) return config->stored.role_bytes[weight->role] / (weight->layer < 0 ? 1 : (uint64_t)config->layers);
	return (uint64_t)weight->experts * (uint64_t)weight->rows * (uint64_t)weight->cols * dtype_bytes(config->dtype);
}

static bool in_scope(enum scope scope, const struct model_config *c, int layer)
{
	switch (scope) {
	case OUTER: return layer < 0;
	case EVERY: return layer >= 0;
	case ATTENTION: return layer >= 0 && c->layer_kind[layer] != LAYER_GDN;
	case GDN: return layer >= 0 && c->layer_kind[layer] == LAYER_GDN;
	case DENSE_MLP: return layer >= 0 && !c->moe.sparse[layer];
	case SPARSE_MLP: return layer >= 0 && c->moe.sparse[layer];
	}
	return false;
}

static bool applies(const struct template *t, const struct model_config *c, int layer)
{
	if (!in_scope(t->scope, c, layer)) return false;
	switch (t->condition) {
	case ALWAYS: return true;
	case IF_UNTIED: return !c->tied;
	case IF_QKV_BIAS: return c->qkv_bias;
	case IF_O_BIAS: return c->o_bias;
	case IF_MLP_BIAS: return c->mlp_bias;
	case IF_QK_NORM: return c->qk_norm;
	case IF_GATE: return c->attn_output_gate;
	case IF_GATE_BIAS: return c->attn_output_gate && c->qkv_bias;
	case IF_FLAT: return !c->gdn.by_k_head;
	case IF_BY_K_HEAD: return c->gdn.by_k_head;
	case IF_STACKED: return c->moe.stacked;
	case IF_PER_EXPERT: return !c->moe.stacked;
	case IF_SHARED: return c->moe.shared_intermediate > 0;
	case IF_TWO_NORMS: return !c->four_norms;
	case IF_FOUR_NORMS: return c->four_norms;
	}
	return false;
}

/* Elements along an axis; *unit: how many of them belong together. */
static int64_t extent_of(enum extent extent, const struct model_config *c, int64_t *unit)
{
	int64_t of_k = c->gdn.k_heads ? c->gdn.v_heads / c->gdn.k_heads : 1;
	*unit = 1;
	switch (extent) {
	case EXTENT_ONE: return 1;
	case EXTENT_HIDDEN: return c->hidden_size;
	case EXTENT_INTERMEDIATE: return c->intermediate_size;
	case EXTENT_VOCAB: return c->vocab_size;
	case EXTENT_HEAD_DIM: return c->head_dim;
	case EXTENT_Q: *unit = c->head_dim; return (int64_t)c->q_heads * c->head_dim;
	case EXTENT_KV: *unit = c->head_dim; return (int64_t)c->kv_heads * c->head_dim;
	case EXTENT_GDN_K: *unit = c->gdn.k_dim; return (int64_t)c->gdn.k_heads * c->gdn.k_dim;
	case EXTENT_GDN_V: *unit = c->gdn.v_dim; return (int64_t)c->gdn.v_heads * c->gdn.v_dim;
	case EXTENT_GDN_V_OF_K: *unit = of_k * c->gdn.v_dim; return (int64_t)c->gdn.v_heads * c->gdn.v_dim;
	case EXTENT_GDN_HEADS: return c->gdn.v_heads;
	case EXTENT_GDN_HEADS_OF_K: *unit = of_k; return c->gdn.v_heads;
	case EXTENT_GDN_V_DIM: return c->gdn.v_dim;
	case EXTENT_GDN_TAPS: return c->gdn.conv_kernel;
	case EXTENT_EXPERTS: return c->moe.experts;
	case EXTENT_EXPERT: return c->moe.intermediate;
	case EXTENT_SHARED: return c->moe.shared_intermediate;
	}
	return 0;
}

/* Where the rows lie among those of the other parameters of the same tensor. */
static struct weight_stored stored_of(const struct template *t, const struct model_config *c, int layer)
{
	struct weight_stored s = {0};
	int64_t rows = extent_of(t->rows, c, &s.unit);
	if (!t->name) return (struct weight_stored){.rows = rows, .unit = rows, .stride = rows};
	for (const struct template *part = templates; part < templates + TEMPLATES; part++) {
		if (!applies(part, c, layer) || !part->name || strcmp(part->name, t->name) != 0) continue;
		int64_t unit, part_rows = extent_of(part->rows, c, &unit);
		if (part < t) s.first += t->join == IN_TURN ? unit : part_rows;
		s.rows += part_rows;
		s.stride += unit;
	}
	if (t->join == BELOW) s.stride = s.unit;
	return s;
}

static void fill(struct weight *w, const struct template *t, const struct model_config *c, int layer)
{
	int64_t row_unit, col_unit;
	*w = (struct weight){.role = t->role, .layer = layer, .dims = t->dims, .kind = t->kind, .unit = 1, .units = 1};
	w->rows = extent_of(t->rows, c, &row_unit);
	w->cols = extent_of(t->cols, c, &col_unit);
	w->stored = stored_of(t, c, layer);
	w->centred = t->centred && c->centred_norms;
	w->experts = t->role == WEIGHT_EXPERT_GATE || t->role == WEIGHT_EXPERT_UP || t->role == WEIGHT_EXPERT_DOWN ? c->moe.experts : 1;
	w->stacked = t->condition == IF_STACKED;
	if (t->kind == SHARD_COLUMN) {
		w->unit = row_unit;
		w->units = w->rows / row_unit;
		w->may_replicate = t->rows == EXTENT_KV;
	}
	if (t->kind == SHARD_ROW) {
		w->unit = col_unit;
		w->units = w->cols / col_unit;
	}
	int n;
	if (!t->name) n = snprintf(w->name, sizeof w->name, "%s", head_name(c->tensor_prefix));
	else if (layer < 0) n = snprintf(w->name, sizeof w->name, "%s%s", c->tensor_prefix, t->name);
	else n = snprintf(w->name, sizeof w->name, "%slayers.%d.%s", c->tensor_prefix, layer, t->name);
	assert(n > 0 && n < (int)sizeof w->name);
	(void)n;
}

enum status manifest_init(struct manifest *out, const struct model_config *config, struct error *err)
{
	*out = (struct manifest){.layers = config->layers};
	if (config->cannot_run[0]) return FAIL(err, UNSUPPORTED, "model: %s", config->cannot_run);
	int count = 0;
	for (int layer = -1; layer < config->layers; layer++)
		for (int t = 0; t < TEMPLATES; t++) count += applies(&templates[t], config, layer);
	out->weights = mem_zalloc((size_t)count, sizeof *out->weights, "list of tensors", err);
	out->begin = mem_zalloc((size_t)config->layers + 2, sizeof *out->begin, "list of tensors", err);
	if (!out->weights || !out->begin) {
		manifest_fini(out);
		return STATUS_NO_MEMORY;
	}
	for (int layer = -1; layer < config->layers; layer++) {
		for (int t = 0; t < TEMPLATES; t++)
			if (applies(&templates[t], config, layer)) fill(&out->weights[out->count++], &templates[t], config, layer);
		out->begin[layer + 2] = out->count;
	}
	return STATUS_OK;
}

void manifest_fini(struct manifest *manifest)
{
	free(manifest->weights);
	free(manifest->begin);
	*manifest = (struct manifest){0};
}

const struct weight *manifest_find(const struct manifest *manifest, enum weight_role role, int layer)
{
	if (layer < -1 || layer >= manifest->layers) return NULL;
	for (int i = manifest->begin[layer + 1]; i < manifest->begin[layer + 2]; i++)
		if (manifest->weights[i].role == role) return &manifest->weights[i];
	return NULL;
}

/* ---- Parts ---- */

static const char *axis_name(enum shard_kind kind)
{
	return kind == SHARD_COLUMN ? "rows (outputs)" : "columns (inputs)";
}

static bool divides(const struct weight *w, int world_size)
{
	return w->units % world_size == 0 || (w->may_replicate && world_size % w->units == 0);
}

static enum status indivisible(const struct weight *w, int world_size, struct error *err)
{
	char works[32] = "";
	for (int p = 1, n = 0; p <= 8; p++)
		if (divides(w, p)) n += snprintf(works + n, sizeof works - (size_t)n, "%s%d", n ? ", " : "", p);
	return FAIL(err, BAD_INPUT,
	            "%s: %s: expected a multiple of %d units of %" PRId64 ", found %" PRId64 " units; degrees that divide it: %s", w->name,
	            axis_name(w->kind), world_size, w->unit, w->units, works);
}

enum status shard_of(struct shard_spec *out, const struct weight *weight, int world_size, int rank, struct error *err)
{
	*out = (struct shard_spec){0};
	if (world_size < 1 || world_size > SHARD_MAX_WORLD || rank < 0 || rank >= world_size)
		return FAIL(err, BAD_INPUT, "%s: rank %d of %d: expected a rank below a world size of at most %d", weight->name, rank, world_size,
		            SHARD_MAX_WORLD);
	if (weight->rows < 1 || weight->cols < 1 || weight->unit < 1 || weight->units < 1)
		return FAIL(err, BAD_INPUT, "%s: expected a shape above zero, found [%" PRId64 ", %" PRId64 "]", weight->name, weight->rows,
		            weight->cols);
	struct shard_spec spec = {.kind = weight->kind,
	                          .global_rows = weight->rows,
	                          .global_cols = weight->cols,
	                          .local_rows = weight->rows,
	                          .local_cols = weight->cols,
	                          .axis = -1,
	                          .rank = rank,
	                          .world_size = world_size,
	                          .replicas = world_size};
	if (weight->kind != SHARD_REPLICATED) {
		if (!divides(weight, world_size)) return indivisible(weight, world_size, err);
		spec.replicas = weight->units % world_size == 0 ? 1 : (int)(world_size / weight->units);
		int64_t local = weight->units * weight->unit * spec.replicas / world_size;
		spec.owner = rank - rank % spec.replicas;
		spec.begin = rank / spec.replicas * local;
		spec.axis = weight->kind == SHARD_COLUMN ? 0 : 1;
		*(spec.axis == 0 ? &spec.local_rows : &spec.local_cols) = local;
	}
	*out = spec;
	return STATUS_OK;
}

static int64_t local_length(const struct shard_spec *s)
{
	return s->axis == 0 ? s->local_rows : s->local_cols;
}

static int64_t global_length(const struct shard_spec *s)
{
	return s->axis == 0 ? s->global_rows : s->global_cols;
}

enum status shard_validate(const struct shard_spec *s, const char *name, size_t element_bytes, struct error *err)
{
	if (s->world_size < 1 || s->world_size > SHARD_MAX_WORLD || s->rank < 0 || s->rank >= s->world_size)
		return FAIL(err, BAD_INPUT, "%s: rank %d of %d is not possible; expected a world size from 1 to %d", name, s->rank, s->world_size,
		            SHARD_MAX_WORLD);
	if (s->global_rows < 1 || s->global_cols < 1 || s->local_rows < 1 || s->local_cols < 1)
		return FAIL(err, BAD_INPUT, "%s: shapes must be above zero, found global [%" PRId64 ", %" PRId64 "] local [%" PRId64 ", %" PRId64 "]",
		            name, s->global_rows, s->global_cols, s->local_rows, s->local_cols);
	int expected_axis = s->kind == SHARD_COLUMN ? 0 : s->kind == SHARD_ROW ? 1 : -1;
	if (s->axis != expected_axis) return FAIL(err, BAD_INPUT, "%s: shard axis: expected %d, found %d", name, expected_axis, s->axis);
	/* Along an axis that is not cut the part is whole. */
	if ((s->axis != 0 && s->local_rows != s->global_rows) || (s->axis != 1 && s->local_cols != s->global_cols))
		return FAIL(err, BAD_INPUT, "%s: local shape [%" PRId64 ", %" PRId64 "] is cut along an axis that stays whole; global is [%" PRId64 ", %" PRId64 "]",
		            name, s->local_rows, s->local_cols, s->global_rows, s->global_cols);
	if (s->axis < 0 && s->begin) return FAIL(err, BAD_INPUT, "%s: a replicated tensor begins at %" PRId64 ", expected 0", name, s->begin);
	if (s->axis >= 0 && (s->begin < 0 || s->begin > global_length(s) - local_length(s)))
		return FAIL(err, BAD_INPUT, "%s: axis %d: range [%" PRId64 ", +%" PRId64 ") is outside [0, %" PRId64 ")", name, s->axis, s->begin,
		            local_length(s), global_length(s));
	if (s->replicas < 1 || s->world_size % s->replicas || s->owner < 0 || s->owner > s->rank || s->rank - s->owner >= s->replicas)
		return FAIL(err, BAD_INPUT, "%s: rank %d of %d: owner %d with %d replicas is not possible", name, s->rank, s->world_size, s->owner,
		            s->replicas);
	size_t bytes = element_bytes;
	if (!size_mul(bytes, (size_t)s->global_rows, &bytes) || !size_mul(bytes, (size_t)s->global_cols, &bytes) || bytes > PTRDIFF_MAX)
		return FAIL(err, BAD_INPUT, "%s: [%" PRId64 ", %" PRId64 "] of %zu bytes is larger than the address space", name, s->global_rows,
		            s->global_cols, element_bytes);
	return STATUS_OK;
}

enum status shard_validate_group(const struct shard_spec *specs, int world_size, const char *name, struct error *err)
{
	int64_t covered = 0;
	for (int r = 0; r < world_size; r++) {
		const struct shard_spec *s = &specs[r];
		if (s->rank != r || s->world_size != world_size)
			return FAIL(err, BAD_INPUT, "%s: part %d: expected rank %d of %d, found %d of %d", name, r, r, world_size, s->rank, s->world_size);
		if (s->kind != specs[0].kind || s->axis != specs[0].axis || s->global_rows != specs[0].global_rows ||
		    s->global_cols != specs[0].global_cols || s->replicas != specs[0].replicas)
			return FAIL(err, BAD_INPUT, "%s: ranks 0 and %d disagree on kind, axis, global shape or replicas", name, r);
		int expected_owner = r - r % s->replicas;
		if (s->owner != expected_owner)
			return FAIL(err, BAD_INPUT, "%s: rank %d: expected owner %d, found %d", name, r, expected_owner, s->owner);
		const struct shard_spec *owner = &specs[s->owner];
		if (s->begin != owner->begin || s->local_rows != owner->local_rows || s->local_cols != owner->local_cols)
			return FAIL(err, BAD_INPUT, "%s: rank %d does not hold the same part as its owner %d", name, r, s->owner);
		if (s->axis < 0 || s->owner != r) continue;
		if (s->begin != covered)
			return FAIL(err, BAD_INPUT, "%s: axis %d: rank %d begins at %" PRId64 ", expected %" PRId64 " (no gap, no overlap)", name, s->axis, r,
			            s->begin, covered);
		covered += local_length(s);
	}
	if (specs[0].axis >= 0 && covered != global_length(&specs[0]))
		return FAIL(err, BAD_INPUT, "%s: axis %d: parts cover %" PRId64 " of %" PRId64, name, specs[0].axis, covered, global_length(&specs[0]));
	return STATUS_OK;
}

enum status shard_validate_all(const struct manifest *manifest, int world_size, struct error *err)
{
	struct shard_spec specs[SHARD_MAX_WORLD];
	for (int i = 0; i < manifest->count; i++) {
		const struct weight *w = &manifest->weights[i];
		for (int r = 0; r < world_size; r++) {
			TRY(shard_of(&specs[r], w, world_size, r, err));
			TRY(shard_validate(&specs[r], w->name, sizeof(float), err)); /* no type has larger elements */
		}
		TRY(shard_validate_group(specs, world_size, w->name, err));
	}
	return STATUS_OK;
}

/* ---- Degrees ---- */

/* Quantities that must be cut evenly. `shared`: one of them may also be held by several ranks. 0 where the model has no such thing. */
struct divisible {
	const char *what, *key;
	int count;
	bool shared;
};
#define TREE_DIVISIBLES 7 /* the first ones, which do not depend on how weights are stored */
#define DIVISIBLES 9

static int blocks_across(int inputs, int block)
{
	return block > 1 ? inputs / block : 0;
}

static void divisibles(const struct model_config *c, struct divisible out[DIVISIBLES])
{
	bool dense = c->moe.layers < c->layers;
	out[0] = (struct divisible){"query heads", "num_attention_heads", c->q_heads, false};
	out[1] = (struct divisible){"KV heads", "num_key_value_heads", c->kv_heads, true};
	out[2] = (struct divisible){"MLP width", "intermediate_size", dense ? c->intermediate_size : 0, false};
	out[3] = (struct divisible){"GDN key heads", "linear_num_key_heads", c->gdn.k_heads, false};
	out[4] = (struct divisible){"GDN value heads", "linear_num_value_heads", c->gdn.v_heads, false};
	out[5] = (struct divisible){"expert width", "moe_intermediate_size", c->moe.intermediate, false};
	out[6] = (struct divisible){"shared expert width", "shared_expert_intermediate_size", c->moe.shared_intermediate, false};
	out[7] = (struct divisible){"quantised o_proj", "number of blocks across its inputs", blocks_across(c->q_heads * c->head_dim, c->stored.o_block), false};
	out[8] = (struct divisible){"quantised down_proj", "number of blocks across its inputs", blocks_across(c->intermediate_size, c->stored.down_block), false};
}

static bool cuts_evenly(const struct divisible *d, int p)
{
	return d->count % p == 0 || (d->shared && p % d->count == 0);
}

static bool fits(const struct model_config *c, int world_size, int quantities)
{
	struct divisible d[DIVISIBLES];
	divisibles(c, d);
	for (int i = 0; i < quantities; i++)
		if (!cuts_evenly(&d[i], world_size)) return false;
	return true;
}

static int gcd(int a, int b)
{
	while (b) {
		int t = a % b;
		a = b;
		b = t;
	}
	return a;
}

int shard_tree_leaves(const struct model_config *config)
{
	int leaves = 1;
	for (int p = 2; p <= 8; p++)
		if (fits(config, p, TREE_DIVISIBLES)) leaves = leaves / gcd(leaves, p) * p;
	return leaves;
}

int shard_reasons(const struct model_config *config, int world_size, char (*reason)[SHARD_REASON_BYTES], int max)
{
	int n = 0;
	if (world_size < 1 || world_size > SHARD_MAX_WORLD) {
		if (max > 0) snprintf(reason[n++], SHARD_REASON_BYTES, "world size %d: expected 1 to %d", world_size, SHARD_MAX_WORLD);
		return n;
	}
	struct divisible d[DIVISIBLES];
	divisibles(config, d);
	for (int i = 0; i < DIVISIBLES && n < max; i++)
		if (!cuts_evenly(&d[i], world_size))
			snprintf(reason[n++], SHARD_REASON_BYTES, "%s: %s %d is not a multiple of %d%s", d[i].what, d[i].key, d[i].count, world_size,
			         d[i].shared ? ", nor the other way round" : "");
	int leaves = shard_tree_leaves(config);
	if (!n && world_size > 8 && leaves % world_size && n < max)
		snprintf(reason[n++], SHARD_REASON_BYTES, "summation tree: its %d leaves are not a multiple of %d, so the bits would depend on the degree",
		         leaves, world_size);
	return n;
}

enum status shard_degree(const struct model_config *config, int world_size, struct error *err)
{
	char reason[2][SHARD_REASON_BYTES];
	int reasons = shard_reasons(config, world_size, reason, 2);
	if (!reasons) return STATUS_OK;
	char works[32] = "";
	for (int p = 1, n = 0; p <= 8; p++)
		if (fits(config, p, DIVISIBLES)) n += snprintf(works + n, sizeof works - (size_t)n, "%s%d", n ? ", " : "", p);
	return FAIL(err, BAD_INPUT, "tensor parallelism over %d ranks: %s%s%s; degrees that work: %s", world_size, reason[0],
	            reasons > 1 ? "; " : "", reasons > 1 ? reason[1] : "", works);
}

bool shard_embedding(const struct model_config *config, int world_size, const char *choice, bool one_memory)
{
	if (world_size == 1 || !strcmp(choice, "replicated")) return false;
	return !strcmp(choice, "vocab") || (!config->tied && !one_memory);
}

struct shard_rows shard_vocab(int64_t vocab, int world_size, int rank, int granule)
{
	const int64_t unit = granule > 0 ? granule : 1, granules = (vocab + unit - 1) / unit;
	const int64_t begin = granules * rank / world_size * unit, end = granules * (rank + 1) / world_size * unit;
	return (struct shard_rows){begin < vocab ? begin : vocab, end < vocab ? end : vocab};
}

int shard_vocab_sizes(int64_t rows[SHARD_VOCAB_SIZES], int64_t vocab, int world_size, int granule)
{
	int count = 0;
	for (int rank = 0; rank < world_size; rank++) {
		const struct shard_rows own = shard_vocab(vocab, world_size, rank, granule);
		const int64_t size = own.end - own.begin;
		int at = 0;
		while (at < count && rows[at] > size) at++;
		if (!size || (at < count && rows[at] == size)) continue;
		for (int i = count++; i > at; i--) rows[i] = rows[i - 1];
		rows[at] = size;
	}
	return count;
}
