/* shapes.h: the problems that one rank of a model gives to kernels, at one TP degree: every linear that runs with its local [N, K], the head
 * layout of attention, heads and state of GDN layers, groups of experts; and the row counts (M classes) at which they are looked at. From plan_degree, so
 * they are what planner and loader say. Pure; any thread.
 */
#ifndef TANDEM_PRESCREEN_SHAPES_H
#define TANDEM_PRESCREEN_SHAPES_H

#include "model/plan.h"
#include "prescreen/kernels.h"

struct shape_class {
	const char *phase; /* "decode", "prefill" */
	int m;
};
#define SHAPES_CLASSES 10 /* decode 1, 2, 4, 8, 16; prefill 512, 1024, 2048, 4096, 8192 */
extern const struct shape_class shapes_class[SHAPES_CLASSES];

struct shape_family {
	const char *family, *kind; /* as plan_family; static */
	int64_t n, k;              /* local */
	int count;                 /* of them in the model */
	bool bias;
	int plan_index;            /* in plan_degree.family */
};

struct shape_attention {
	int layers; /* 0: none */
	int q_heads, kv_heads, head_dim; /* local */
	float softcap; /* of scores; 0: none */
};

struct shape_gdn {
	int layers; /* 0: none */
	int k_heads, v_heads, k_dim, v_dim; /* local; the state of a sequence and layer is [v_heads, k_dim, v_dim] */
	int conv_channels, conv_kernel;     /* and [conv_kernel - 1, conv_channels] of the convolution */
	enum dtype state_dtype;
};

/* The experts of a layer: grouped problems, whose rows are the tokens that chose an expert. */
struct shape_moe {
	int layers; /* 0: none */
	int experts, experts_per_token;
	int gate_up_n, gate_up_k, down_n, down_k; /* of one expert, local */
	int shared_down_k;                        /* of the shared one; 0: none */
	bool norm_topk;
};

struct shapes {
	int world_size;
	bool legal; /* else everything below is empty; plan_degree has the reasons */
	enum dtype dtype;
	struct shape_family family[PLAN_MAX_FAMILIES];
	int families;
	struct shape_attention attention;
	struct shape_gdn gdn;
	struct shape_moe moe;
};

/* `degree` is plan_degree's answer for `config`. */
void shapes_of(struct shapes *out, const struct model_config *config, const struct plan_degree *degree);
/* Family f at class c. */
struct linear_shape shapes_linear(const struct shapes *shapes, int f, int c);

#endif
