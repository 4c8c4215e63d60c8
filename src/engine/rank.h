/* rank.h: everything that one rank owns: device, stream, comm, weights, KV, buffers. Owner: the rank's worker thread while it runs
 * a command, the coordinator between commands (worker.h). Shapes: T rows, H hidden, P ranks; local = this rank's part.
 */
#ifndef TANDEM_ENGINE_RANK_H
#define TANDEM_ENGINE_RANK_H

#include <stdatomic.h>

#include "base/fault.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/kv.h"
#include "engine/step.h"
#include "engine/step_clock.h"
#include "engine/trace.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/shard.h"
#include "model/source.h"

struct whitelist;

/* Parameters of one input below each other: their outputs are consecutive columns. Those of equal type that follow each other are one
 * linear; where a checkpoint mixes types there are several. */
#define FUSED_MAX_PARTS 4
struct fused_weight {
	struct linear_weight part[FUSED_MAX_PARTS];
	int begin[FUSED_MAX_PARTS]; /* first output of each */
	int parts;
};

/* A layer has the weights of its mixer, attention or gated delta net, and of its MLP; what it does not have is zero. */
struct gdn_weights {
	struct fused_weight qkvz;     /* [(2 Hk dk + 2 Hv dv)/P, H] q rows, k rows, v rows, z rows */
	struct fused_weight ba;       /* [2 Hv/P, H] b rows, a rows; behind qkvz in memory where both are one type */
	struct fused_weight out;      /* [H, Hv/P * dv] */
	float *conv;                  /* [Kc][q|k|v channels of this rank] */
	float *a_log, *dt_bias;       /* [Hv/P] */
	float *norm;                  /* [dv] */
};

/* Instead of gate_up and down. `op` is what the forward pass uses: views of the others, and all experts in one block each. */
struct expert_weights {
	struct fused_weight router;   /* [E, H], and with a shared expert its gate [1, H] */
	struct fused_weight shared_gate_up, shared_down;
	struct moe_weights op;
};

struct layer_weights {
	struct gdn_weights gdn;
	struct expert_weights moe;
	struct fused_weight qkv;      /* [(Nq + 2 Nkv + gate: Nq)/P * D, H] q rows, k rows, v rows, gate rows where the model has them */
	struct fused_weight o;        /* [H, Nq/P * D] */
	struct fused_weight gate_up;  /* [2I/P, H] gate rows, up rows */
	struct fused_weight down;     /* [H, I/P] */
	float *qkv_bias;              /* [outputs of qkv] or NULL */
	float *o_bias, *down_bias;    /* [H] or NULL: added once, after the sum */
	float *gate_up_bias;          /* [2I/P] or NULL */
	float *mixed_norm, *mlp_norm;  /* [H] of what attention and the MLP add to the residual stream, or NULL */
	float *input_norm, *post_norm; /* [H], before them; centred ones (config.centred_norms) with their 1 added, as all norms here */
	float *q_norm, *k_norm;       /* [D] or NULL */
};

struct rank_weights {
	struct linear_weight embed; /* [V, H], or of a split embedding this rank's rows */
	int embed_begin;            /* token of the first of them */
	struct linear_weight head;  /* [head rows of this rank, H]; a view of embed when tied */
	int head_begin;             /* first vocabulary row of `head` */
	float *final_norm;          /* [H] */
	struct layer_weights *layers;
};

/* Activations and step metadata, made once for the largest step. Device memory unless said otherwise; elements of rank->activation
 * where no type is said. */
struct rank_buffers {
	float *x;       /* [T, H] residual stream */
	float *y;       /* [T, H] what a sub-layer adds to it, where that is normed first; NULL: it is not */
	void *h;        /* [T, H] normed */
	void *qkv;      /* [T, outputs of qkv, or of qkvz and ba] */
	void *attn;     /* [T, inputs of o, or of the GDN's out] */
	void *gate_up;  /* [T, 2I/P] */
	void *act;      /* [T, I/P] */
	void *moe;      /* intermediate results of the experts */
	float *head_x;  /* [outputs, H] */
	void *head_h;   /* [outputs, H] normed */
	float *logits;  /* [outputs, head.n]; of rank 0, where the logits are gathered on the device: [outputs, V] */
	void *sample;   /* rank 0: device copy of sample_host (device_sampler.h) */
	void *sample_scratch;
	float *rope;    /* [context, rotary_dim] cos and sin of every position */
	float *cos_sin; /* [T, rotary_dim] of the step's rows */
	float *rope_local, *cos_sin_local; /* the same of sliding layers, where they have a rope of their own */
	char *meta;     /* device copy of meta_host */
	char *meta_host; /* host: the arrays of a step, one after another (rank.c) */
};

/* A decode step as it was recorded, and how many collectives it holds. */
struct recorded_step {
	struct graph *graph; /* NULL: not recorded */
	uint64_t collectives, all_reduces;
};

/* What the ranks of an engine share read-only. */
struct model {
	struct model_config config;
	struct manifest manifest;
	struct rope_table rope, rope_local; /* rope_local: where config.two_ropes */
	struct source *source;
	int tree_leaves;
};

struct rank_options {
	struct step_limits limits;
	struct kv_options kv;
	int max_context;
	bool graphs;    /* decode steps are recorded and replayed, where back end and collectives can */
	bool head_on_rank0; /* rank 0 computes all logits; else each rank those of its vocabulary rows */
	bool embedding_split; /* each rank has its vocabulary rows of the embedding, those of its head where that is the same table */
	bool invariant; /* the same bits at every world size, where that is a choice (--tp-invariant) */
	const struct whitelist *whitelist; /* variants of linears to take; NULL: the device's own choice. Borrowed, the same on all ranks */
	bool explain;   /* note what was taken for each linear (dispatch.h) */
};

struct dispatch_notes;

struct rank {
	int index, world_size;
	const struct model *model;
	struct rank_options options;
	struct device *device;
	struct stream *stream;
	struct comm *comm;
	struct group *group;
	struct rank_weights weights;
	struct kv_cache cache; /* of the attention layers; where sliding ones have a cache of their own, of the others */
	struct kv_cache window_cache; /* that one */
	struct gdn_cache state; /* of the GDN layers */
	struct kv_pool *pool;
	struct rank_buffers buffers;
	struct rank *const *peers; /* all ranks; what of theirs may be used when, says where it is used */
	enum dtype activation; /* of activations, partial sums and KV */
	bool adds;             /* row-parallel linears add to the residual stream: one rank has nothing to reduce */
	struct step_rows rows; /* of the step in flight; pointers into buffers.meta */
	struct step_rows window_rows; /* the same with slots and blocks of window_cache */
	const int32_t *output_row; /* device, [outputs] */
	bool all_rows;             /* the outputs are the rows, in order */
	float *host_logits; /* rank 0's, host, [outputs][V] */
	void *sample_host;       /* rank 0's, host: what the sample op reads; NULL: it does not sample */
	struct sample_choice *sampled; /* rank 0's, host, [outputs] */
	struct best_token *best; /* host, [outputs]: of this rank's vocabulary rows */
	void **host_blocks;      /* host memory that copies are fast with, for the way out */
	int host_block_count;
	struct recorded_step recorded[STEP_BUCKETS][RESULT_COUNT]; /* graphs.h */
	int replays; /* which of them in this step, for comparison with the peers */
	struct dispatch_notes *notes; /* owned; NULL: not asked for */
	struct step_clock clock;  /* WAKE to REPORT */
	struct trace *trace;      /* made by the first measurement */
	bool tracing;             /* the step that is being put on the stream is traced */
	void **allocations; /* device memory of weights and buffers, for the way out */
	int allocation_count, allocation_capacity;
	_Atomic uint64_t heartbeat; /* bumped after every op: the coordinator tells slow from stuck */
	_Atomic uint64_t loaded_bytes;
};

/* Local heads and widths of a rank. */
struct rank_shape {
	int q_heads, kv_heads; /* local; a replicated KV head counts as this rank's own */
	int q_cols, kv_cols, inner;           /* q_heads*D, kv_heads*D, I/P */
	int qkv_cols;                         /* q, k, v, and the output gate where there is one */
	int gdn_k_heads, gdn_v_heads;
	int gdn_k_cols, gdn_v_cols, qkvz_cols; /* k_heads*dk, v_heads*dv, 2 of each */
	int gdn_in_cols;                       /* qkvz and ba, and so many more that rows are aligned */
};
struct rank_shape rank_shape(const struct model_config *config, int world_size);
/* The state cache of a rank, of which model, options and activation are set; no slots: the model has no state. */
struct gdn_layout rank_gdn_layout(const struct rank *rank);

/* The largest step as the buffers hold it: decode steps are padded to a bucket, which may be more than was asked for. */
struct step_limits rank_limits(const struct rank_options *options);
/* Whether whole rows of logits are put together in rank 0's device memory. Else each rank copies its columns to the host. */
static inline bool rank_gathers_logits(const struct rank *rank)
{
	return rank->world_size == 1 || rank->comm->vt->fence != NULL;
}

/* Zeroed device memory that lives as long as the rank. */
enum status rank_alloc(struct rank *rank, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err) NODISCARD;
/* KV cache and pool, activations, metadata, stream: all but weights and comm. Worker thread. */
enum status rank_prepare(struct rank *rank, struct error *err) NODISCARD;
/* Frees what rank_prepare and the loader made, and the device. Comm must be gone. Half-built ranks are fine. */
void rank_release(struct rank *rank);

/* Bumps the heartbeat; the group's error if it is aborted. Called between ops. */
static inline NODISCARD enum status rank_moves(struct rank *rank, struct error *err)
{
	atomic_fetch_add_explicit(&rank->heartbeat, 1, memory_order_relaxed);
	return atomic_load_explicit(group_abort_flag(rank->group), memory_order_relaxed) ? group_error(rank->group, err) : STATUS_OK;
}

/* Behind every op: a mark, if the step is traced. */
static inline NODISCARD enum status rank_mark(struct rank *rank, const char *op, struct error *err)
{
	return rank->tracing ? trace_mark(rank->trace, rank->stream, op, err) : STATUS_OK;
}

/* Fills metadata of `plan` from this rank's block tables and copies it to the device. KV must be reserved. bucket: rows of a decode step,
 * padding included; 0: no padding. Padding rows are token 0 at position 0, alone in a sequence whose only block is the sink. */
enum status rank_assemble(struct rank *rank, const struct step_plan *plan, int bucket, struct error *err) NODISCARD;
/* Makes rows [first, first + count) of the step just run the output rows (count <= max_outputs). */
enum status rank_select_outputs(struct rank *rank, int first, int count, struct error *err) NODISCARD;
/* Copies the logits of `outputs` rows that forward_head made to host_logits: rank 0 whole rows, or each rank its columns. rows: which of
 * them; NULL: all. */
enum status rank_fetch_logits(struct rank *rank, int outputs, const bool *rows, struct error *err) NODISCARD;
/* Rows and adjustments that the device's sampler has room for in a step. */
int rank_sample_rows(const struct rank_options *options);
int rank_sample_adjusts(const struct rank_options *options);

#endif
