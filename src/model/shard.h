/* shard.h: which part of each weight lives on which rank. Pure arithmetic over plain structs; loader, planner and tests use
 * the same functions. The manifest is the one table that maps an architecture's parameter names to their sharding (S1); no other
 * place tests names. Layout: W is [out, in] = [rows, cols] as in the checkpoint; column-parallel cuts rows, row-parallel cuts cols.
 */
#ifndef TANDEM_MODEL_SHARD_H
#define TANDEM_MODEL_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sumtree.h"
#include "model/config.h"

enum shard_kind { SHARD_REPLICATED, SHARD_COLUMN, SHARD_ROW };

/* One tensor's part on one rank. */
struct shard_spec {
	enum shard_kind kind;
	int64_t global_rows, global_cols;
	int64_t local_rows, local_cols;
	int axis;      /* 0 rows, 1 cols, -1 replicated */
	int64_t begin; /* along axis, in the global tensor */
	int rank, world_size;
	int replicas; /* how many ranks hold this same part: 1, world_size when replicated, P/Nkv for few KV heads */
	int owner;    /* the lowest rank that holds this same part: it reads it from the checkpoint */
};

/* What a tensor is to the forward pass. X(enumerator, short name) */
#define WEIGHT_ROLE_LIST(X)       \
	X(EMBED, "embedding")         \
	X(FINAL_NORM, "final norm")   \
	X(LM_HEAD, "lm_head")         \
	X(INPUT_NORM, "input norm")   \
	X(POST_NORM, "norm before the MLP") \
	X(Q, "q_proj") X(K, "k_proj") X(V, "v_proj") X(O, "o_proj") \
	X(Q_BIAS, "q_proj bias") X(K_BIAS, "k_proj bias") X(V_BIAS, "v_proj bias") X(O_BIAS, "o_proj bias") \
	X(Q_NORM, "q_norm") X(K_NORM, "k_norm") \
	X(GATE, "gate_proj") X(UP, "up_proj") X(DOWN, "down_proj") \
	X(GATE_BIAS, "gate_proj bias") X(UP_BIAS, "up_proj bias") X(DOWN_BIAS, "down_proj bias") \
	X(MIXED_NORM, "norm behind attention") X(MLP_NORM, "norm behind the MLP") X(Q_GATE, "q_proj gate") X(Q_GATE_BIAS, "q_proj gate bias") \
	X(GDN_Q, "gdn q") X(GDN_K, "gdn k") X(GDN_V, "gdn v") X(GDN_Z, "gdn z") X(GDN_B, "gdn b") X(GDN_A, "gdn a") \
	X(GDN_CONV_Q, "gdn conv q") X(GDN_CONV_K, "gdn conv k") X(GDN_CONV_V, "gdn conv v") \
	X(GDN_A_LOG, "gdn A_log") X(GDN_DT_BIAS, "gdn dt_bias") X(GDN_NORM, "gdn norm") X(GDN_OUT, "gdn out_proj") \
	X(ROUTER, "router") X(EXPERT_GATE, "expert gate_proj") X(EXPERT_UP, "expert up_proj") X(EXPERT_DOWN, "expert down_proj") \
	X(SHARED_ROUTER, "shared expert's gate") X(SHARED_GATE, "shared gate_proj") X(SHARED_UP, "shared up_proj") X(SHARED_DOWN, "shared down_proj")

enum weight_role {
#define X(code, name) WEIGHT_##code,
	WEIGHT_ROLE_LIST(X)
#undef X
		WEIGHT_ROLE_COUNT
};
#define WEIGHT_DENSE_ROLES (WEIGHT_MLP_NORM + 1) /* the roles before are those of dense models */

/* Where a parameter's rows lie in the checkpoint's tensor of that name: in groups of `unit`, the first at row `first`, one every `stride`
 * rows. A tensor may hold several parameters, below each other or taking turns by head. */
struct weight_stored {
	int64_t rows; /* of the tensor */
	int64_t first, unit, stride;
};

/* One parameter of the model, global view. */
struct weight {
	enum weight_role role;
	int layer; /* -1 outside the layers */
	char name[128]; /* '*' stands for the number of the expert */
	int experts;    /* how many of these there are, one for each expert of the layer; 1: it is not an expert's */
	bool stacked;   /* those of all experts are one tensor [experts][stored.rows][cols] */
	int64_t rows, cols; /* of one; a vector [n] is rows = n, cols = 1, dims = 1 */
	int dims;           /* 1 or 2: what the checkpoint must declare; 3: [rows, 1, cols], taps of a convolution */
	struct weight_stored stored;
	bool centred; /* vectors: the checkpoint has the value less 1 */
	enum shard_kind kind;
	int64_t unit; /* rows (column) or cols (row) that must stay together: head_dim, or 1 */
	int64_t units; /* rows / unit or cols / unit: q heads, kv heads, I; 1 when replicated */
	bool may_replicate; /* with fewer units than ranks each rank may hold one unit, shared with others: only K and V (S4) */
};

struct manifest {
	struct weight *weights;
	int *begin; /* [layers + 2] weights of layer i: begin[i + 1] up to begin[i + 2]; the outer ones are layer -1 */
	int count, layers;
};

/* All tensors that `config` needs. UNSUPPORTED where config->cannot_run. Owner of the list: the caller (manifest_fini). */
enum status manifest_init(struct manifest *out, const struct model_config *config, struct error *err) NODISCARD;
void manifest_fini(struct manifest *manifest);
/* NULL if the model has no such tensor. layer -1 for the outer ones. Takes constant time. */
const struct weight *manifest_find(const struct manifest *manifest, enum weight_role role, int layer);
/* The tensor in `source` that holds expert `expert`'s (any, where it is not an expert's); BAD_INPUT if it is not there or of another shape.
 * out->name is borrowed from the source, or is `name`. */
#define WEIGHT_NAME_BYTES 160
struct source;
struct source_tensor;
enum status weight_find(struct source *source, const struct weight *w, int expert, char name[WEIGHT_NAME_BYTES], struct source_tensor *out,
                        struct error *err) NODISCARD;
/* Rows from `row` on that lie below each other in the stored tensor: how many, at most `rows`; *at: where. */
static inline int64_t weight_run(const struct weight *w, int expert, int64_t row, int64_t rows, int64_t *at)
{
	const struct weight_stored *s = &w->stored;
	int64_t within = row % s->unit, run = s->stride == s->unit ? rows : s->unit - within;
	*at = s->first + row / s->unit * s->stride + within + (w->stacked ? expert * s->rows : 0);
	return run < rows ? run : rows;
}
/* Bytes of `weight` in the checkpoint. Where types differ from layer to layer (config->stored): the mean over the layers. */
uint64_t weight_stored_bytes(const struct model_config *config, const struct weight *weight);
/* Sets config->tensor_prefix to the one of the known prefixes under which `source` holds the embedding (multimodal files have used
 * several; a text-only export of one drops them). Without a match the prefix stays as the config suggests. Also says in config->moe whether it
 * has experts in one tensor. */
void manifest_match(struct model_config *config, const struct source *source);

/* The part of `weight` on `rank`. K and V with fewer heads than ranks are replicated by head when world_size is a multiple of the
 * heads (S4). Bias of a row-parallel linear is replicated: it is added once, after the sum. Refusals name tensor, axis, expected,
 * found, and the degrees that would work. */
enum status shard_of(struct shard_spec *out, const struct weight *weight, int world_size, int rank, struct error *err) NODISCARD;
/* Checks one spec by itself: rank/world legal, dims positive, replicated local = global, range in bounds, byte product. */
enum status shard_validate(const struct shard_spec *spec, const char *name, size_t element_bytes, struct error *err) NODISCARD;
/* All ranks' specs of one tensor: the distinct parts are disjoint and cover the axis, replicas agree. */
enum status shard_validate_group(const struct shard_spec *specs, int world_size, const char *name, struct error *err) NODISCARD;
/* Every rank's part of every parameter, by both (S2). */
enum status shard_validate_all(const struct manifest *manifest, int world_size, struct error *err) NODISCARD;

/* Whether each rank has its vocabulary rows of the embedding alone, which then costs an all-reduce. choice: "auto", "vocab" or "replicated"; auto: where
 * ranks have memories of their own and the embedding is not the LM head as well. Never with one rank. */
bool shard_embedding(const struct model_config *config, int world_size, const char *choice, bool one_memory);

/* A rank's rows of the vocabulary, of the LM head and of a split embedding: whole granules (device_ops.linear_granule), as even as they go, so that a tied
 * head is a view. granule 0: not known, which counts as 1. */
struct shard_rows {
	int64_t begin, end;
};
struct shard_rows shard_vocab(int64_t vocab, int world_size, int rank, int granule);
/* How many rows ranks have, each number once, the largest first, 0 left out; returns how many there are. Three at most: as many granules as divide, one more,
 * and the last rank's, whose last granule need not be full. */
#define SHARD_VOCAB_SIZES 3
int shard_vocab_sizes(int64_t rows[SHARD_VOCAB_SIZES], int64_t vocab, int world_size, int granule);

#define SHARD_MAX_WORLD 64
/* A degree is legal if every rank gets whole query heads, whole KV heads (or one shared KV head), an equal share of the intermediate
 * size (and of GDN heads, expert widths), whole blocks of quantised row-parallel weights, and whole leaves of the summation tree. The
 * tree depends on the model alone, not on how its weights are stored, so that the bits depend on neither (C6): beyond 8 a degree must
 * divide its leaves, or it is refused.
 * OK if this degree can run; else BAD_INPUT with the reason and the degrees (1..8) that would work. */
enum status shard_degree(const struct model_config *config, int world_size, struct error *err) NODISCARD;
#define SHARD_REASON_BYTES 160
/* All reasons why the degree is illegal, at most `max`; 0: legal. */
int shard_reasons(const struct model_config *config, int world_size, char (*reason)[SHARD_REASON_BYTES], int max);
/* Leaves of the model's summation tree: the least common multiple of its legal degrees up to 8. */
int shard_tree_leaves(const struct model_config *config);

#endif
