#include "prescreen/shapes.h"

#include <string.h>

const struct shape_class shapes_class[SHAPES_CLASSES] = {
	{"decode", 1},    {"decode", 2},     {"decode", 4},     {"decode", 8},     {"decode", 16},
	{"prefill", 512}, {"prefill", 1024}, {"prefill", 2048}, {"prefill", 4096}, {"prefill", 8192},
};

static bool has_bias(const struct model_config *c, const char *family)
{
	if (strcmp(family, "attn qkv") == 0) return c->qkv_bias;
	if (strcmp(family, "attn o") == 0) return c->o_bias;
	return c->mlp_bias && strncmp(family, "mlp ", 4) == 0;
}

static void add_families(struct shapes *out, const struct model_config *c, const struct plan_degree *d)
{
	for (int i = 0; i < d->families; i++) {
		const struct plan_family *f = &d->family[i];
		if (!f->runs) continue;
		out->family[out->families++] = (struct shape_family){.family = f->family, .kind = f->kind, .n = f->local_n, .k = f->local_k,
		                                                     .count = f->count, .bias = has_bias(c, f->family), .plan_index = i};
	}
}

static struct shape_gdn gdn_of(const struct model_config *c, const struct plan_degree *d, int layers)
{
	struct shape_gdn g = {.layers = layers, .k_heads = d->gdn_k_heads, .v_heads = d->gdn_v_heads, .k_dim = c->gdn.k_dim, .v_dim = c->gdn.v_dim,
	                      .conv_kernel = c->gdn.conv_kernel, .state_dtype = DTYPE_F32};
	g.conv_channels = 2 * g.k_heads * g.k_dim + g.v_heads * g.v_dim;
	return g;
}

static struct shape_moe moe_of(const struct model_config *c, int world_size)
{
	int inner = c->moe.intermediate / world_size;
	return (struct shape_moe){.layers = c->moe.layers, .experts = c->moe.experts, .experts_per_token = c->moe.experts_per_token, .gate_up_n = 2 * inner,
	                          .gate_up_k = c->hidden_size, .down_n = c->hidden_size, .down_k = inner,
	                          .shared_down_k = c->moe.shared_intermediate / world_size, .norm_topk = c->moe.norm_topk};
}

void shapes_of(struct shapes *out, const struct model_config *config, const struct plan_degree *degree)
{
	int gdn = 0;
	*out = (struct shapes){.world_size = degree->world_size, .legal = degree->legal, .dtype = config->dtype};
	if (!degree->legal) return;
	for (int i = 0; i < config->layers; i++) gdn += config->layer_kind[i] == LAYER_GDN;
	add_families(out, config, degree);
	if (gdn < config->layers)
		out->attention = (struct shape_attention){.layers = config->layers - gdn, .q_heads = degree->q_heads, .kv_heads = degree->kv_heads,
		                                          .head_dim = config->head_dim, .softcap = config->attn_softcap};
	if (gdn) out->gdn = gdn_of(config, degree, gdn);
	if (config->moe.layers) out->moe = moe_of(config, degree->world_size);
}

struct linear_shape shapes_linear(const struct shapes *shapes, int f, int c)
{
	const struct shape_family *family = &shapes->family[f];
	return (struct linear_shape){.n = family->n, .k = family->k, .m = shapes_class[c].m, .dtype = shapes->dtype, .bias = family->bias};
}
