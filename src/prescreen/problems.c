#include "prescreen/problems.h"

#include <stdio.h>
#include <string.h>

static bool is_fused_qkv(const struct model_config *config, const struct shapes *shapes, const struct shape_family *family)
{
	const struct shape_attention *a = &shapes->attention;
	const int gates = config->attn_output_gate ? a->q_heads : 0; /* rows of the same weight */
	return strcmp(family->family, "attn qkv") == 0 && a->layers && config->rotary_dim > 0 &&
	       family->n == (int64_t)(a->q_heads + gates + 2 * a->kv_heads) * a->head_dim;
}

/* As engine/forward.c: row_parallel. */
static enum linear_use use_of_sum(const struct device_ops *ops, const struct model_config *config, const struct shapes *shapes)
{
	if (shapes->world_size > 1 || !ops->accumulates) return LINEAR_USE_PARTIAL;
	return config->four_norms ? LINEAR_USE_PLAIN : LINEAR_USE_ACCUMULATE;
}

enum linear_use problem_use(const struct device_ops *ops, const struct model_config *config, const struct shapes *shapes, const struct shape_family *family)
{
	bool plain = dtype_is_plain(shapes->dtype);
	if (strcmp(family->kind, "row") == 0) return use_of_sum(ops, config, shapes);
	if (plain && ops->ops.attention_in && is_fused_qkv(config, shapes, family)) return LINEAR_USE_ATTENTION_IN;
	if (plain && ops->ops.mlp_in && strcmp(family->family, "mlp gate_up") == 0) return LINEAR_USE_MLP_IN;
	return LINEAR_USE_PLAIN;
}

void problem_split(struct sum_split *out, const struct model_config *config, int world_size)
{
	*out = (struct sum_split){.tree_leaves = shard_tree_leaves(config)};
	out->leaves = out->tree_leaves / world_size;
	out->spans = sumtree_spans(out->tree_leaves, 0, out->leaves, out->span);
}

/* Is `name` among the wanted: does one of the words stand in it? */
static bool wanted(const char *families, const char *name)
{
	if (!families) return true;
	for (const char *at = families; *at;) {
		size_t n = strcspn(at, ",");
		char word[RESULT_FAMILY_BYTES];
		snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), at);
		if (n && strstr(name, word)) return true;
		at += n + (at[n] == ',');
	}
	return false;
}

struct maker {
	struct results *out;
	const struct model_config *config;
	const struct device_ops *ops;
	const struct problem_choice *choice;
	const char *of_moe; /* the first family that was wanted and is no problem of its own; NULL: none */
};

/* The place joins the problem, which is made if it is new. */
static enum status add(struct maker *m, const struct result_problem *problem, int world_size, const char *family, int count, struct error *err)
{
	struct result_problem *have = results_find(m->out, problem);
	if (!have) {
		have = results_add_problem(m->out, err);
		if (!have) return STATUS_NO_MEMORY;
		*have = *problem;
	}
	return result_add_place(have, world_size, family, count, err);
}

static const char *phase_of(int rows)
{
	return rows <= DECODE_MAX_ROWS ? "decode" : "prefill";
}

static enum status add_linear(struct maker *m, const struct shapes *shapes, const struct shape_family *f, int rows, struct error *err)
{
	bool prefill = rows > DECODE_MAX_ROWS;
	if (!(prefill ? m->choice->prefill : m->choice->decode)) return STATUS_OK;
	if (prefill && strcmp(f->kind, "vocab") == 0) return STATUS_OK; /* a prompt wants the logits of its last row */
	if (f->n > INT32_MAX || f->k > INT32_MAX) return FAIL(err, UNSUPPORTED, "%s: [%lld x %lld] is too large to measure; leave it out by --families", f->family, (long long)f->n, (long long)f->k);
	struct result_problem p = {.op = PROBLEM_LINEAR, .linear = {.use = problem_use(m->ops, m->config, shapes, f), .dtype = shapes->dtype, .n = (int)f->n, .k = (int)f->k, .m = rows}};
	snprintf(p.phase, sizeof p.phase, "%s", phase_of(rows));
	return add(m, &p, shapes->world_size, f->family, f->count, err);
}

static enum status add_attention(struct maker *m, const struct shapes *shapes, int rows, int context, struct error *err)
{
	bool prefill = rows > DECODE_MAX_ROWS;
	if (!(prefill ? m->choice->prefill : m->choice->decode)) return STATUS_OK;
	const struct shape_attention *a = &shapes->attention;
	enum dtype dtype = device_activation(m->ops, shapes->dtype);
	struct result_problem p = {.op = PROBLEM_ATTENTION,
	                           .attention = {.dtype = dtype, .q_heads = a->q_heads, .kv_heads = a->kv_heads, .head_dim = a->head_dim, .rows = rows,
	                                         .context = prefill ? rows : context, .block_tokens = device_kv_block_tokens(m->ops), .prefill = prefill,
	                                         .softcap = (double)a->softcap}};
	snprintf(p.phase, sizeof p.phase, "%s", phase_of(rows));
	return add(m, &p, shapes->world_size, "attention", a->layers, err);
}

bool problem_moe(struct moe_key *out, const struct device_ops *ops, const struct model_config *config, const struct shapes *shapes, int rows)
{
	const struct shape_moe *e = &shapes->moe;
	*out = (struct moe_key){.use = use_of_sum(ops, config, shapes), .dtype = shapes->dtype, .hidden = e->gate_up_k, .experts = e->experts, .top_k = e->experts_per_token,
	                        .inner = e->down_k, .shared_inner = e->shared_down_k, .m = rows};
	return e->layers > 0 && ops->ops.moe;
}

bool problem_gdn(struct gdn_problem *out, const struct device_ops *ops, const struct shapes *shapes, int rows)
{
	const struct shape_gdn *g = &shapes->gdn;
	*out = (struct gdn_problem){.dtype = device_activation(ops, shapes->dtype), .k_heads = g->k_heads, .v_heads = g->v_heads, .k_dim = g->k_dim, .v_dim = g->v_dim,
	                            .conv_kernel = g->conv_kernel, .rows = rows, .prefill = rows > DECODE_MAX_ROWS};
	return g->layers > 0 && ops->ops.gdn;
}

/* The experts of a layer and the gated delta net, where the model has some and the back end computes them. */
static enum status add_blocks(struct maker *m, const struct shapes *shapes, int rows, struct error *err)
{
	struct result_problem experts = {.op = PROBLEM_MOE}, gdn = {.op = PROBLEM_GDN};
	if (!(rows > DECODE_MAX_ROWS ? m->choice->prefill : m->choice->decode)) return STATUS_OK;
	snprintf(experts.phase, sizeof experts.phase, "%s", phase_of(rows));
	snprintf(gdn.phase, sizeof gdn.phase, "%s", phase_of(rows));
	if (problem_moe(&experts.moe, m->ops, m->config, shapes, rows) && wanted(m->choice->families, "moe experts"))
		TRY(add(m, &experts, shapes->world_size, "moe experts", shapes->moe.layers, err));
	if (problem_gdn(&gdn.gdn, m->ops, shapes, rows) && wanted(m->choice->families, "gdn state")) TRY(add(m, &gdn, shapes->world_size, "gdn state", shapes->gdn.layers, err));
	return STATUS_OK;
}

static enum status add_rows(struct maker *m, const struct shapes *shapes, int rows, struct error *err)
{
	for (int f = 0; f < shapes->families; f++) {
		const struct shape_family *family = &shapes->family[f];
		if (!wanted(m->choice->families, family->family)) continue;
		if (plan_is_of_moe(family->family)) {
			if (!m->of_moe) m->of_moe = family->family;
			continue;
		}
		TRY(add_linear(m, shapes, family, rows, err));
	}
	TRY(add_blocks(m, shapes, rows, err));
	if (!shapes->attention.layers || !wanted(m->choice->families, "attention")) return STATUS_OK;
	if (rows > DECODE_MAX_ROWS) return add_attention(m, shapes, rows, 0, err);
	for (int i = 0; i < m->choice->context_count; i++) TRY(add_attention(m, shapes, rows, m->choice->contexts[i], err));
	return STATUS_OK;
}

static void describe_degree(struct result_degree *out, const struct model_config *config, const struct plan_degree *d)
{
	*out = (struct result_degree){.world_size = d->world_size, .legal = d->legal};
	if (!d->legal) {
		snprintf(out->why_not, sizeof out->why_not, "%.150s", d->reasons ? d->reason[0] : "not possible for this model");
		return;
	}
	out->q_heads = d->q_heads;
	out->kv_heads = d->kv_heads;
	out->kv_replicated = d->kv_replicated;
	out->head_dim = config->head_dim;
	out->gdn_k_heads = d->gdn_k_heads;
	out->gdn_v_heads = d->gdn_v_heads;
	out->gdn_k_dim = d->gdn_v_heads ? config->gdn.k_dim : 0;
	out->gdn_v_dim = d->gdn_v_heads ? config->gdn.v_dim : 0;
}

/* The plan's head is that of the ranks with most rows of the vocabulary; others ask for theirs, which are families behind it. */
static void add_other_heads(struct shapes *out, const struct model_config *config, int granule)
{
	int64_t rows[SHARD_VOCAB_SIZES];
	const int sizes = shard_vocab_sizes(rows, config->vocab_size, out->world_size, granule), families = out->families;
	for (int f = 0; f < families; f++)
		for (int i = 1; i < sizes && strcmp(out->family[f].kind, "vocab") == 0; i++) {
			struct shape_family *other = &out->family[out->families++];
			*other = out->family[f];
			other->n = rows[i];
		}
}

void problems_shapes(struct shapes *out, struct plan_degree *degree, const struct model_config *config, const struct device_ops *ops, int world_size)
{
	enum dtype activation = device_activation(ops, config->dtype);
	const struct plan_options options = {.vocab_granule = ops->linear_granule, .activation = activation, .kv = activation};
	struct plan_degree own;
	if (!degree) degree = &own;
	plan_degree(degree, config, world_size, &options);
	shapes_of(out, config, degree);
	if (out->legal) add_other_heads(out, config, ops->linear_granule);
}

static enum status add_degree(struct maker *m, int world_size, struct error *err)
{
	const struct problem_choice *c = m->choice;
	struct plan_degree degree;
	struct shapes shapes;
	problems_shapes(&shapes, &degree, m->config, m->ops, world_size);
	describe_degree(&m->out->degree[m->out->degrees++], m->config, &degree);
	if (!shapes.legal) return STATUS_OK;
	for (int i = 0; i < (c->rows ? c->row_count : SHAPES_CLASSES); i++) TRY(add_rows(m, &shapes, c->rows ? c->rows[i] : shapes_class[i].m, err));
	return STATUS_OK;
}

enum status problems_make(struct results *out, const struct model_config *config, const struct device_ops *ops, const struct problem_choice *choice,
                          struct error *err)
{
	struct maker m = {.out = out, .config = config, .ops = ops, .choice = choice};
	bool legal = false;
	if (!dtype_is_plain(config->dtype))
		return FAIL(err, UNSUPPORTED, "prescreen: weights of type %s; there is one kernel for block types, so nothing to choose: take a model in BF16, F16 or F32", dtype_name(config->dtype));
	if (choice->degree_count > RESULTS_MAX_DEGREES) return FAIL(err, USAGE, "--tp: %d world sizes, at most %d", choice->degree_count, RESULTS_MAX_DEGREES);
	for (int i = 0; i < choice->degree_count; i++) TRY(add_degree(&m, choice->degrees[i], err));
	for (int i = 0; i < out->degrees; i++) legal |= out->degree[i].legal;
	if (out->problems) return STATUS_OK;
	if (out->degrees && !legal) return FAIL(err, BAD_INPUT, "--tp %d: %s; leave it out", out->degree[0].world_size, out->degree[0].why_not);
	if (choice->families && m.of_moe)
		return FAIL(err, USAGE, "--families %s: %s is measured with all of the layer's experts, as one op; give 'moe experts'", choice->families, m.of_moe);
	return FAIL(err, USAGE, "prescreen: nothing to measure%s%s; see tandem plan MODEL for the families, and --phase, --rows, --tp", choice->families ? ", no family fits --families " : "",
	            choice->families ? choice->families : "");
}
