#include "model/plan.h"

#include <string.h>

/* A segment of rows (or columns) that is cut by itself: `units` pieces of `unit`. */
struct segment {
	int units, unit;
	bool shared; /* KV heads: fewer units than ranks are shared among them */
};

static int64_t length(struct segment s)
{
	return (int64_t)s.units * s.unit;
}

/* 0: this degree cannot cut it. */
static int64_t local_length(struct segment s, int world_size)
{
	if (s.units % world_size == 0) return length(s) / world_size;
	return s.shared && world_size % s.units == 0 ? s.unit : 0;
}

enum { STORED = 1, RUNS = 2 };

static struct plan_family *add(struct plan_degree *d, const char *name, const char *kind, int count, int flags)
{
	struct plan_family *f = &d->family[d->families++];
	*f = (struct plan_family){.family = name, .kind = kind, .count = count, .stored = flags & STORED, .runs = flags & RUNS};
	return f;
}

/* Rows are the segments below each other, each cut by itself. */
static void add_column(struct plan_degree *d, const char *name, const struct segment *segments, int n, int64_t k, int count, int flags)
{
	if (count == 0) return;
	struct plan_family *f = add(d, name, "column", count, flags);
	f->global_k = f->local_k = k;
	for (int i = 0; i < n; i++) {
		int64_t local = local_length(segments[i], d->world_size);
		f->global_n += length(segments[i]);
		f->local_n += local;
		if (!local) f->local_k = 0;
	}
	if (!f->local_k) f->local_n = 0;
}

static void add_row(struct plan_degree *d, const char *name, int64_t n, struct segment k, int count, int flags)
{
	if (count == 0) return;
	struct plan_family *f = add(d, name, "row", count, flags);
	f->global_n = n;
	f->global_k = length(k);
	f->local_k = local_length(k, d->world_size);
	f->local_n = f->local_k ? n : 0;
}

static void add_whole(struct plan_degree *d, const char *name, const char *kind, int64_t n, int64_t k, int count, int flags)
{
	if (count == 0) return;
	struct plan_family *f = add(d, name, kind, count, flags);
	f->global_n = f->local_n = n;
	f->global_k = f->local_k = k;
}

/* The cuttable quantities of a model, named once. */
struct parts {
	int attention, gdn, dense, moe; /* how many layers have which */
	int sliding;                    /* of those with attention */
	struct segment q, kv, attended; /* q: with its gate where there is one; attended: input of o */
	struct segment mlp, expert, shared_expert;
	struct segment key, value, value_head, per_key_head_qkvz, per_key_head_ba;
};

static struct parts parts_of(const struct model_config *c)
{
	struct parts p = {0};
	for (int i = 0; i < c->layers; i++) *(c->layer_kind[i] == LAYER_GDN ? &p.gdn : &p.attention) += 1;
	for (int i = 0; i < c->layers; i++) p.sliding += c->layer_kind[i] == LAYER_SLIDING;
	p.moe = c->moe.layers;
	p.dense = c->layers - p.moe;
	p.q = (struct segment){c->q_heads, c->head_dim * (c->attn_output_gate ? 2 : 1), false};
	p.kv = (struct segment){c->kv_heads, c->head_dim, true};
	p.attended = (struct segment){c->q_heads, c->head_dim, false};
	p.mlp = (struct segment){c->intermediate_size, 1, false};
	p.expert = (struct segment){c->moe.intermediate, 1, false};
	p.shared_expert = (struct segment){c->moe.shared_intermediate, 1, false};
	p.key = (struct segment){c->gdn.k_heads, c->gdn.k_dim, false};
	p.value = (struct segment){c->gdn.v_heads, c->gdn.v_dim, false};
	p.value_head = (struct segment){c->gdn.v_heads, 1, false};
	if (c->gdn.k_heads) {
		int per_key_head = c->gdn.v_heads / c->gdn.k_heads;
		p.per_key_head_qkvz = (struct segment){c->gdn.k_heads, 2 * c->gdn.k_dim + 2 * per_key_head * c->gdn.v_dim, false};
		p.per_key_head_ba = (struct segment){c->gdn.k_heads, 2 * per_key_head, false};
	}
	return p;
}

static void add_attention(struct plan_degree *d, const struct model_config *c, const struct parts *p)
{
	const struct segment qkv[] = {p->q, p->kv, p->kv};
	add_column(d, "attn qkv", qkv, 3, c->hidden_size, p->attention, RUNS);
	add_column(d, c->attn_output_gate ? "attn q+gate" : "attn q", &p->q, 1, c->hidden_size, p->attention, STORED);
	add_column(d, "attn k", &p->kv, 1, c->hidden_size, p->attention, STORED);
	add_column(d, "attn v", &p->kv, 1, c->hidden_size, p->attention, STORED);
	if (c->qkv_bias) add_column(d, "attn qkv bias", qkv, 3, 1, p->attention, STORED);
	if (c->qk_norm) add_whole(d, "attn q_norm, k_norm", "replicated", c->head_dim, 1, 2 * p->attention, STORED);
	add_row(d, "attn o", c->hidden_size, p->attended, p->attention, STORED | RUNS);
	if (c->o_bias) add_whole(d, "attn o bias", "replicated", c->hidden_size, 1, p->attention, STORED);
}

/* Two layouts in checkpoints, one at run time: q, k, v, z and b, a as flat segments. */
static void add_gdn(struct plan_degree *d, const struct model_config *c, const struct parts *p)
{
	const struct segment qkvz[] = {p->key, p->key, p->value, p->value}, ba[] = {p->value_head, p->value_head};
	int64_t h = c->hidden_size;
	add_column(d, "gdn qkvz", qkvz, 4, h, p->gdn, RUNS);
	add_column(d, "gdn ba", ba, 2, h, p->gdn, RUNS);
	if (c->gdn.by_k_head) {
		add_column(d, "gdn in_proj_qkvz", &p->per_key_head_qkvz, 1, h, p->gdn, STORED);
		add_column(d, "gdn in_proj_ba", &p->per_key_head_ba, 1, h, p->gdn, STORED);
	} else {
		add_column(d, "gdn in_proj_qkv", qkvz, 3, h, p->gdn, STORED);
		add_column(d, "gdn in_proj_z", &p->value, 1, h, p->gdn, STORED);
		add_column(d, "gdn in_proj_b", &p->value_head, 1, h, p->gdn, STORED);
		add_column(d, "gdn in_proj_a", &p->value_head, 1, h, p->gdn, STORED);
	}
	add_column(d, "gdn conv1d", qkvz, 3, c->gdn.conv_kernel, p->gdn, STORED);
	add_column(d, "gdn A_log, dt_bias", &p->value_head, 1, 1, 2 * p->gdn, STORED);
	add_whole(d, "gdn norm", "replicated", c->gdn.v_dim, 1, p->gdn, STORED);
	add_row(d, "gdn out", h, p->value, p->gdn, STORED | RUNS);
}

static void add_mlp(struct plan_degree *d, const struct model_config *c, const struct parts *p)
{
	const struct segment gate_up[] = {p->mlp, p->mlp}, expert[] = {p->expert, p->expert}, shared[] = {p->shared_expert, p->shared_expert};
	int64_t h = c->hidden_size;
	int experts = p->moe * c->moe.experts, with_shared = c->moe.shared_intermediate ? p->moe : 0;
	add_column(d, "mlp gate_up", gate_up, 2, h, p->dense, RUNS);
	add_column(d, "mlp gate, up", &p->mlp, 1, h, 2 * p->dense, STORED);
	add_row(d, "mlp down", h, p->mlp, p->dense, STORED | RUNS);
	if (c->mlp_bias) {
		add_column(d, "mlp gate, up bias", &p->mlp, 1, 1, 2 * p->dense, STORED);
		add_whole(d, "mlp down bias", "replicated", h, 1, p->dense, STORED);
	}
	add_whole(d, "moe router", "replicated", c->moe.experts, h, p->moe, STORED | RUNS);
	add_column(d, "moe expert gate_up", expert, 2, h, experts, RUNS);
	add_column(d, "moe expert gate, up", &p->expert, 1, h, 2 * experts, STORED);
	add_row(d, "moe expert down", h, p->expert, experts, STORED | RUNS);
	add_column(d, "moe shared gate_up", shared, 2, h, with_shared, RUNS);
	add_column(d, "moe shared gate, up", &p->shared_expert, 1, h, 2 * with_shared, STORED);
	add_row(d, "moe shared down", h, p->shared_expert, with_shared, STORED | RUNS);
	add_whole(d, "moe shared gate", "replicated", 1, h, with_shared, STORED | RUNS);
}

static void add_outer(struct plan_degree *d, const struct model_config *c, const struct plan_options *o)
{
	const bool head_on_rank0 = o->head_on_rank0, embedding_split = o->embedding_split && d->world_size > 1;
	int64_t rows[SHARD_VOCAB_SIZES] = {0};
	(void)shard_vocab_sizes(rows, c->vocab_size, d->world_size, o->vocab_granule);
	add_whole(d, "layer norm", "replicated", c->hidden_size, 1, (c->four_norms ? 4 : 2) * c->layers, STORED);
	add_whole(d, "final norm", "replicated", c->hidden_size, 1, 1, STORED);
	/* Tied, the rows of the head are a view of the embedding, and a split embedding is where the head is. */
	add_whole(d, "embedding", embedding_split ? "vocab" : "replicated", c->vocab_size, c->hidden_size, 1, STORED);
	if (embedding_split && !(c->tied && head_on_rank0)) d->family[d->families - 1].local_n = rows[0];
	add_whole(d, "lm_head", "vocab", c->vocab_size, c->hidden_size, 1, c->tied ? RUNS : STORED | RUNS);
	if (!head_on_rank0) d->family[d->families - 1].local_n = rows[0];
}

/* What a stored family is made of, for checkpoints whose tensors have types of their own. */
static const struct {
	const char *family;
	int roles;
	enum weight_role role[4];
} stored_families[] = {
	{"attn q", 1, {WEIGHT_Q}},
	{"attn k", 1, {WEIGHT_K}},
	{"attn v", 1, {WEIGHT_V}},
	{"attn qkv bias", 3, {WEIGHT_Q_BIAS, WEIGHT_K_BIAS, WEIGHT_V_BIAS}},
	{"attn q_norm, k_norm", 2, {WEIGHT_Q_NORM, WEIGHT_K_NORM}},
	{"attn o", 1, {WEIGHT_O}},
	{"attn o bias", 1, {WEIGHT_O_BIAS}},
	{"mlp gate, up", 2, {WEIGHT_GATE, WEIGHT_UP}},
	{"mlp gate, up bias", 2, {WEIGHT_GATE_BIAS, WEIGHT_UP_BIAS}},
	{"mlp down", 1, {WEIGHT_DOWN}},
	{"mlp down bias", 1, {WEIGHT_DOWN_BIAS}},
	{"layer norm", 4, {WEIGHT_INPUT_NORM, WEIGHT_POST_NORM, WEIGHT_MIXED_NORM, WEIGHT_MLP_NORM}},
	{"final norm", 1, {WEIGHT_FINAL_NORM}},
	{"embedding", 1, {WEIGHT_EMBED}},
	{"lm_head", 1, {WEIGHT_LM_HEAD}},
};

/* Bytes of the family's local parts. Cuts fall on rows or blocks, so a part's share of the bytes is its share of the elements. */
static uint64_t family_bytes(const struct plan_family *f, const struct model_config *c)
{
	uint64_t local = (uint64_t)f->local_n * (uint64_t)f->local_k, total = 0;
	if (!c->stored.own_types) return local * (uint64_t)f->count * dtype_bytes(c->dtype);
	for (size_t i = 0; i < sizeof stored_families / sizeof *stored_families; i++)
		for (int r = 0; strcmp(f->family, stored_families[i].family) == 0 && r < stored_families[i].roles; r++)
			total += c->stored.role_bytes[stored_families[i].role[r]];
	return (uint64_t)((unsigned __int128)total * local / ((uint64_t)f->global_n * (uint64_t)f->global_k));
}

static void sum_bytes(struct plan_degree *d, const struct model_config *c)
{
	for (int i = 0; i < d->families; i++) {
		const struct plan_family *f = &d->family[i];
		if (!f->stored) continue;
		uint64_t bytes = family_bytes(f, c);
		if (strcmp(f->kind, "replicated") == 0) d->replicated_bytes += bytes;
		else d->sharded_bytes += bytes;
	}
}

/* The convolution's inputs are activations, S is F32 whatever type the file would keep it in. */
static void sum_state(struct plan_degree *d, const struct model_config *c, const struct parts *p, const struct plan_options *o)
{
	uint64_t of_layer = 2 * (uint64_t)local_length(p->kv, d->world_size) * dtype_bytes(o->kv);
	uint64_t sliding = o->window_slots > 0 ? (uint64_t)p->sliding : 0;
	d->kv_per_token = ((uint64_t)p->attention - sliding) * of_layer;
	d->window_bytes = sliding * of_layer * (uint64_t)o->window_slots;
	if (!p->gdn) return;
	uint64_t channels = (uint64_t)(2 * local_length(p->key, d->world_size) + local_length(p->value, d->world_size));
	uint64_t conv = (uint64_t)(c->gdn.conv_kernel - 1) * channels * dtype_bytes(o->activation);
	uint64_t recurrent = (uint64_t)local_length(p->value, d->world_size) * (uint64_t)c->gdn.k_dim * sizeof(float);
	d->state_per_sequence = (uint64_t)p->gdn * (conv + recurrent);
}

/* Elements of the activation type that a row takes besides its norm: qkv, or qkvz and ba; attended, gate and up and product of a dense MLP; of experts
 * the same and an output for each that a row chooses, as if all rows were taken at once (a back end may need less). */
static uint64_t row_elements(const struct plan_degree *d, const struct model_config *c, const struct parts *p)
{
	const int n = d->world_size;
	int64_t qkv = local_length(p->q, n) + 2 * local_length(p->kv, n), qkvz = 2 * local_length(p->key, n) + 2 * local_length(p->value, n);
	int64_t attended = local_length(p->attended, n), values = local_length(p->value, n);
	int64_t gdn_in = qkvz + 2 * local_length(p->value_head, n);
	int64_t elements = (qkv > gdn_in ? qkv : gdn_in) + (attended > values ? attended : values);
	if (p->dense) elements += 3 * local_length(p->mlp, n);
	if (p->moe) elements += c->moe.experts_per_token * (3 * local_length(p->expert, n) + c->hidden_size);
	if (p->moe && c->moe.shared_intermediate) elements += 3 * local_length(p->shared_expert, n) + c->hidden_size;
	return (uint64_t)elements;
}

/* As rank.c makes them: per row the residual stream and rope in f32, norm and the rest in the activation type; per output row what the head
 * reads and, on the rank that gathers them, whole logits; the rope table. */
static void sum_workspace(struct plan_degree *d, const struct model_config *c, const struct parts *p, const struct plan_options *o)
{
	uint64_t rows = (uint64_t)(o->max_rows > 0 ? o->max_rows : 512), outputs = (uint64_t)(o->max_outputs > 0 ? o->max_outputs : 32);
	uint64_t context = (uint64_t)(o->context > 0 ? o->context : c->max_position < 8192 ? c->max_position : 8192);
	uint64_t hidden = (uint64_t)c->hidden_size, rotary = (uint64_t)c->rotary_dim, act = dtype_bytes(o->activation);
	d->scratch_bytes = o->scratch_bytes;
	if (c->two_ropes) rotary *= 2;
	d->workspace_bytes = rows * ((hidden * (c->four_norms ? 2 : 1) + rotary) * 4 + (hidden + row_elements(d, c, p)) * act) +
	                     outputs * (hidden * (4 + act) + (uint64_t)c->vocab_size * 4) + context * rotary * 4;
}

static int64_t tokens_that_fit(const struct plan_degree *d, uint64_t memory, int state_slots)
{
	uint64_t slots = (uint64_t)(state_slots > 0 ? state_slots : plan_state_slots(1, 0)) + 1; /* the sink */
	uint64_t used = d->sharded_bytes + d->replicated_bytes + d->scratch_bytes + d->workspace_bytes + d->window_bytes + slots * d->state_per_sequence;
	if (memory <= used || !d->kv_per_token) return 0;
	return (int64_t)((memory - used) / d->kv_per_token);
}

void plan_degree(struct plan_degree *out, const struct model_config *config, int world_size, const struct plan_options *options)
{
	*out = (struct plan_degree){.world_size = world_size, .kv_tokens = -1};
	out->reasons = shard_reasons(config, world_size, out->reason, PLAN_MAX_REASONS);
	out->legal = out->reasons == 0;
	if (world_size < 1 || world_size > SHARD_MAX_WORLD) return;
	struct parts p = parts_of(config);
	add_attention(out, config, &p);
	add_gdn(out, config, &p);
	add_mlp(out, config, &p);
	add_outer(out, config, options);
	if (!out->legal) return;
	out->q_heads = config->q_heads / world_size;
	out->kv_heads = (int)(local_length(p.kv, world_size) / config->head_dim);
	out->kv_replicated = config->kv_heads % world_size == 0 ? 1 : world_size / config->kv_heads;
	out->gdn_k_heads = config->gdn.k_heads / world_size;
	out->gdn_v_heads = config->gdn.v_heads / world_size;
	sum_bytes(out, config);
	sum_state(out, config, &p, options);
	sum_workspace(out, config, &p, options);
	if (options->device_memory) out->kv_tokens = tokens_that_fit(out, options->device_memory, options->state_slots);
}
