/* rank.h: everything that one rank owns: device, stream, comm, weights, KV, buffers. Owner: the rank's worker thread while it runs
 * a command, the coordinator between commands (engine.c, "hand-over"). Shapes: T rows, H hidden, P ranks; local = this rank's part.
 */
#ifndef TANDEM_ENGINE_RANK_H
#define TANDEM_ENGINE_RANK_H

#include <stdatomic.h>

#include "base/fault.h"
#include "comm/comm.h"
#include "device/device.h"
#include "engine/kv.h"
#include "engine/step.h"
#include "model/config.h"
#include "model/rope.h"
#include "model/shard.h"
#include "model/source.h"

/* Parameters of one input below each other: their outputs are consecutive columns. Those of equal type that follow each other are one
 * linear; where a checkpoint mixes types there are several. */
#define FUSED_MAX_PARTS 3
struct fused_weight {
	struct linear_weight part[FUSED_MAX_PARTS];
	int begin[FUSED_MAX_PARTS]; /* first output of each */
	int parts;
};

struct layer_weights {
	struct fused_weight qkv;      /* [(Nq + 2 Nkv)/P * D, H] q rows, k rows, v rows */
	struct fused_weight o;        /* [H, Nq/P * D] */
	struct fused_weight gate_up;  /* [2I/P, H] gate rows, up rows */
	struct fused_weight down;     /* [H, I/P] */
	float *qkv_bias;              /* [outputs of qkv] or NULL */
	float *o_bias, *down_bias;    /* [H] or NULL: added once, after the sum */
	float *gate_up_bias;          /* [2I/P] or NULL */
	float *input_norm, *post_norm; /* [H] */
	float *q_norm, *k_norm;       /* [D] or NULL */
};

struct rank_weights {
	struct linear_weight embed; /* [V, H], whole on every rank */
	struct linear_weight head;  /* [head rows of this rank, H]; a view of embed when tied */
	int head_begin;             /* first vocabulary row of `head` */
	float *final_norm;          /* [H] */
	struct layer_weights *layers;
};

/* Activations and step metadata, made once for the largest step. Device memory unless said otherwise. */
struct rank_buffers {
	float *x;      /* [T, H] residual stream */
	float *h;      /* [T, H] normed */
	float *qkv;    /* [T, outputs of qkv] */
	float *attn;   /* [T, Nq/P * D] */
	float *gate_up; /* [T, 2I/P] */
	float *act;    /* [T, I/P] */
	float *head_x; /* [outputs, H] */
	float *logits; /* [outputs, head.n] */
	char *meta;    /* device copy of meta_host */
	char *meta_host; /* host: the arrays of struct step_rows, one after another at fixed offsets */
	size_t meta_bytes;
};

/* What the ranks of an engine share read-only. */
struct model {
	struct model_config config;
	struct manifest manifest;
	struct rope_table rope;
	struct source *source;
	int tree_leaves;
};

struct rank_options {
	struct step_limits limits;
	struct kv_options kv;
	int max_context;
};

struct rank {
	int index, world_size;
	const struct model *model;
	struct rank_options options;
	struct device *device;
	struct stream *stream;
	struct comm *comm;
	struct group *group;
	struct rank_weights weights;
	struct kv_cache cache;
	struct kv_pool *pool;
	struct rank_buffers buffers;
	struct step_rows rows; /* of the step in flight; pointers into buffers.meta */
	const int32_t *output_row; /* device, [outputs] */
	float *host_logits; /* host, [outputs][vocab]; shared by all ranks, each writes its columns */
	void **allocations; /* device memory of weights and buffers, for the way out */
	int allocation_count, allocation_capacity;
	_Atomic uint64_t heartbeat; /* bumped after every op: the coordinator tells slow from stuck */
	_Atomic uint64_t loaded_bytes;
};

/* Local heads and widths of a rank. */
struct rank_shape {
	int q_heads, kv_heads; /* local; a replicated KV head counts as this rank's own */
	int q_cols, kv_cols, qkv_cols, inner; /* q_heads*D, kv_heads*D, their sum, I/P */
};
struct rank_shape rank_shape(const struct model_config *config, int world_size);

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

/* Fills metadata of `plan` from this rank's block tables and copies it to the device. KV must be reserved. */
enum status rank_assemble(struct rank *rank, const struct step_plan *plan, struct error *err) NODISCARD;
/* Makes rows [first, first + count) of the step just run the output rows (count <= max_outputs). */
enum status rank_select_outputs(struct rank *rank, int first, int count, struct error *err) NODISCARD;

#endif
