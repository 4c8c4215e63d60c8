/* plan.h: what a model needs on each rank at each TP degree, from config.json alone (S5, `tandem plan`): local shapes per family,
 * heads, legality with reasons, bytes per rank, KV tokens that fit. Pure arithmetic; also plans models that cannot run yet.
 */
#ifndef TANDEM_MODEL_PLAN_H
#define TANDEM_MODEL_PLAN_H

#include "model/config.h"
#include "model/shard.h"

#define PLAN_MAX_FAMILIES 16
#define PLAN_MAX_REASONS 8

struct plan_family {
	char family[32]; /* "attn qkv", "attn o", "mlp gate_up", "mlp down", "lm_head", "gdn qkvz", … as in models.md 2 */
	const char *kind; /* "column", "row", "replicated", "rank0" */
	int64_t global_n, global_k, local_n, local_k;
	int count;        /* linears of this family in the model */
};

struct plan_degree {
	int world_size;
	bool legal;
	char reason[PLAN_MAX_REASONS][160];
	int reasons;
	int q_heads, kv_heads, kv_replicated; /* local; kv_replicated: ranks that share one KV head, 1 = not replicated */
	struct plan_family family[PLAN_MAX_FAMILIES];
	int families;
	/* bytes on the rank that needs most (rank 0) and on the others */
	uint64_t sharded_bytes, replicated_bytes, rank0_extra_bytes;
	uint64_t kv_per_token; /* bytes a token, this rank */
	uint64_t state_per_sequence; /* GDN state, bytes a sequence, this rank */
	uint64_t scratch_bytes, workspace_bytes;
	int64_t kv_tokens; /* that fit in device_memory after weights, scratch, workspace; -1: device_memory 0 */
};

struct plan_options {
	uint64_t device_memory; /* bytes per device; 0: unknown */
	int max_rows;           /* rows of the largest step (prefill chunk), for scratch */
	enum dtype activation;  /* F32 on CPU */
	enum dtype kv;          /* F32 on CPU */
};

/* Never fails for an illegal degree: it says so in the result. */
void plan_degree(struct plan_degree *out, const struct model_config *config, int world_size, const struct plan_options *options);

#endif
