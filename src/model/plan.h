/* plan.h: what a model needs on each rank at each TP degree, from config.json alone (S5, `tandem plan`): local shapes per family,
 * heads, legality with reasons, bytes per rank, KV tokens that fit. Pure arithmetic; also plans models that cannot run yet.
 * For models that run, shapes and bytes equal what shard_of makes of the manifest (tests hold the two together).
 */
#ifndef TANDEM_MODEL_PLAN_H
#define TANDEM_MODEL_PLAN_H

#include <string.h>

#include "model/config.h"
#include "model/shard.h"

#define PLAN_MAX_FAMILIES 48
#define PLAN_MAX_REASONS 8

/* Tensors of one shape and kind. Some are stored in the checkpoint, some are linears that a step runs (a fused one is the stored ones
 * below each other, each cut first), many are both, a norm is only stored. A vector [n] has k = 1; a conv1d [C, 1, Kc] has k = Kc. */
struct plan_family {
	const char *family; /* static: "attn qkv", "attn o", "mlp gate_up", "mlp down", "lm_head", "gdn qkvz", … */
	const char *kind;   /* static: "column", "row", "replicated", "vocab" (rows, not always even: the largest part) */
	int64_t global_n, global_k, local_n, local_k; /* local 0, 0: this degree cannot cut it */
	int count;   /* of them in the model */
	bool stored; /* a tensor of the checkpoint: its bytes count */
	bool runs;   /* a product of this shape is computed */
};

/* A part of an MoE layer's MLP: the engine computes them as one op (`moe`), none of them as a linear. */
static inline bool plan_is_of_moe(const char *family)
{
	return strncmp(family, "moe ", 4) == 0;
}

struct plan_degree {
	int world_size;
	bool legal;
	char reason[PLAN_MAX_REASONS][SHARD_REASON_BYTES];
	int reasons;
	int q_heads, kv_heads, kv_replicated; /* local; kv_replicated: ranks that share one KV head, 1 = not replicated; 0: not legal */
	int gdn_k_heads, gdn_v_heads;         /* local */
	struct plan_family family[PLAN_MAX_FAMILIES];
	int families;
	uint64_t sharded_bytes, replicated_bytes; /* weights in the declared dtype, per rank; 0 if not legal */
	uint64_t kv_per_token; /* bytes a token, this rank; without sliding layers that have a cache of their own */
	uint64_t window_bytes; /* of that cache */
	uint64_t state_per_sequence; /* GDN state, bytes a sequence, this rank */
	uint64_t scratch_bytes;   /* the option's: partial sums that the peers read, and what else a collective keeps; of the rank that has most */
	uint64_t workspace_bytes; /* activations, logits, rope table; of models that run what the engine makes (the back end's own is not in it), else an estimate */
	int64_t kv_tokens; /* that fit in device_memory after weights, scratch, workspace, the slots of GDN state and the sliding layers' cache; 0:
	                    * the weights alone do not fit; -1: unknown (device_memory 0, or not legal) */
};

struct plan_options {
	uint64_t device_memory; /* bytes per device; 0: unknown */
	uint64_t scratch_bytes; /* of the collectives of this world size (comm_scratch_bytes), which this layer does not know */
	int max_rows;           /* rows of the largest step (prefill chunk), for the workspace; 0: 512 */
	int max_outputs;        /* rows of logits of a step; 0: 32 */
	int state_slots;        /* of models with GDN layers, see plan_state_slots; 0: those of one sequence without snapshots */
	int window_slots;       /* tokens that the sliding layers' own cache has room for, the sink's included; 0: they have none */
	int context;            /* longest sequence; 0: the model's, at most 8192 */
	bool head_on_rank0;     /* rank 0 holds the whole LM head */
	int vocab_granule;      /* rows of the vocabulary that a device keeps together (device_ops.linear_granule); 0: not known, they are split evenly */
	bool embedding_split;   /* each rank holds its vocabulary rows of the embedding (shard_embedding) */
	enum dtype activation;  /* F32 on CPU */
	enum dtype kv;          /* F32 on CPU */
};

/* Slots of state besides the sink's: a sequence reads one and writes one during a step, a snapshot of the prefix cache has one. */
static inline int plan_state_slots(int sequences, int snapshots)
{
	return 2 * sequences + snapshots;
}

/* Blocks of the sliding layers' own cache, besides the sink's, with which a sequence that may run never lacks one in steps of max_rows rows, and of
 * `spare` windows more for the prefix cache. More than `blocks` are of no use. */
static inline int plan_window_blocks(int blocks, int block_tokens, int sequences, int max_rows, int window_tokens, int spare)
{
	int64_t most = ((int64_t)sequences + spare) * (window_tokens / block_tokens + 3) + max_rows / block_tokens + 1;
	return most < blocks ? (int)most : blocks;
}

/* Never fails for an illegal degree: it says so in the result. */
void plan_degree(struct plan_degree *out, const struct model_config *config, int world_size, const struct plan_options *options);

#endif
