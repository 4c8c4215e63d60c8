/* ops.h: the op table: what a back end must be able to compute. Each signature stands once, in OP_LIST.
 *
 * All ops are asynchronous on a stream: arguments are read at the call, device memory is read and written when the stream gets
 * there. A return of STATUS_OK says that the op was accepted, not that it is done (the CPU back end happens to be done). No op
 * allocates. Every pointer to data is a device address; the small args structs are host memory and need not outlive the call.
 * Scalars T = token rows of the step, H = hidden size, D = head size.
 *
 * The CPU's plain-C ops define the bits (docs/NUMERICS.md); every other implementation is checked against them.
 */
#ifndef TANDEM_DEVICE_OPS_H
#define TANDEM_DEVICE_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "base/sumtree.h"
#include "device/tensor.h"

struct stream;

/* The weights of one linear on one rank, W [n, k], in the back end's own layout (CPU: panels of consecutive outputs), kept
 * in the checkpoint's dtype. Filled by device_ops.linear_put. Also serves as embedding table. */
struct linear_weight {
	void *data; /* device memory, device_ops.linear_bytes(dtype, n, k) */
	enum dtype dtype;
	int n; /* local outputs */
	int k; /* local inputs */
};

/* How a row-parallel linear sums: the rank's k inputs are `leaves` equal segments, the leaves [first, first+leaves) of a tree
 * of `tree_leaves`; its complete subtrees are `spans`, one output slot each. NULL in place of a split: one ascending chain. */
struct sum_split {
	int tree_leaves;
	int first;
	int leaves;
	int spans;
	struct sum_span span[SUMTREE_MAX_SPANS];
};

/* Keys and values of all layers on one rank, in blocks of `block_tokens` positions. The layout inside a block belongs to the
 * back end. Block numbers are rank-local; block 0 is the sink of padding rows. */
struct kv_layout {
	int layers, blocks, block_tokens; /* block_tokens: a multiple of 16 */
	int kv_heads, head_dim;           /* local heads */
	enum dtype dtype;
};

struct kv_cache {
	void *data; /* device memory, device_ops.kv_bytes(layout) */
	struct kv_layout layout;
};

/* State of the gated delta net of one rank, in slots: one slot holds all GDN layers of one sequence at one length. A layer's part is the
 * last conv_kernel - 1 inputs of its convolution, oldest first, and S of each value head, in the back end's own order of rows and columns. Slot 0 is
 * the sink of padding rows. */
struct gdn_layout {
	int layers, slots;           /* slots: the sink included */
	int k_heads, v_heads;        /* local; value head h uses key head h / (v_heads / k_heads) */
	int k_dim, v_dim, conv_kernel;
	enum dtype dtype;            /* of the convolution's inputs; S is f32 */
};

struct gdn_cache {
	void *data; /* device memory, gdn_cache_bytes(layout) */
	struct gdn_layout layout;
};

/* Columns of q, k and v together: the channels of the convolution. */
static inline int gdn_channels(const struct gdn_layout *l)
{
	return 2 * l->k_heads * l->k_dim + l->v_heads * l->v_dim;
}
#define GDN_ALIGN ((size_t)256)
/* Bytes of all S, k_dim x v_dim each, of one layer in a slot, and of the inputs [conv_kernel - 1][channels] behind it. */
static inline size_t gdn_s_bytes(const struct gdn_layout *l)
{
	return ((size_t)l->v_heads * (size_t)l->k_dim * (size_t)l->v_dim * sizeof(float) + GDN_ALIGN - 1) / GDN_ALIGN * GDN_ALIGN;
}
static inline size_t gdn_inputs_bytes(const struct gdn_layout *l)
{
	return ((size_t)(l->conv_kernel - 1) * (size_t)gdn_channels(l) * dtype_bytes(l->dtype) + GDN_ALIGN - 1) / GDN_ALIGN * GDN_ALIGN;
}
static inline size_t gdn_slot_bytes(const struct gdn_layout *l)
{
	return (size_t)l->layers * (gdn_s_bytes(l) + gdn_inputs_bytes(l));
}
static inline size_t gdn_cache_bytes(const struct gdn_layout *l)
{
	return (size_t)l->slots * gdn_slot_bytes(l);
}
/* Where a layer's part of a slot is: S, and the inputs gdn_s_bytes behind it. */
static inline void *gdn_state(const struct gdn_cache *cache, int layer, int slot)
{
	const struct gdn_layout *l = &cache->layout;
	return (char *)cache->data + (size_t)slot * gdn_slot_bytes(l) + (size_t)layer * (gdn_s_bytes(l) + gdn_inputs_bytes(l));
}

/* What the rows of one step are: ragged prefill and decode rows of several sequences, sequence after sequence.
 * Arrays are device memory, written by the engine before the first op of the step. */
struct step_rows {
	int rows;                   /* T */
	int seqs;                   /* S */
	const int32_t *token;       /* [T] */
	const int32_t *position;    /* [T] ascending within a sequence */
	const int32_t *kv_slot;     /* [T] block * block_tokens + offset, where this row's K and V go */
	const float *cos_sin;       /* [T][rotary_dim]: cos of rotary_dim/2 angles, then their sin (rope factor included) */
	const int32_t *row_start;   /* [S+1] first row of each sequence */
	const int32_t *block_table; /* [S][max_blocks] */
	int max_blocks;
	const int32_t *state_read;  /* [S] slot of the state before this step's rows, -1: none yet. Models without state: NULL, as the next */
	const int32_t *state_write; /* [S] slot that takes the state behind them; another one, but for the sink */
	const int32_t *tail_start;  /* [tails + 1] row_start of the last `tails` sequences, less the first of it */
	int max_kv_len;  /* host: the most keys that a sequence has once this step's rows are written, for partitioning; while a graph is recorded: the most
	                    that it may be replayed with */
	int max_seq_rows; /* host copy of the largest row count of a sequence */
	int tails;       /* host: the last so many sequences are the next rows of others of this step, and read the states that those write. Ops of state take
	                    them, or the others, but not both in one call */
	int tail_rows;   /* host: of the tails together, the step's last rows */
	bool fresh;      /* host: states that are read were written by this step: they are not as old as weights */
	int single_seqs; /* host: the first so many sequences have one row each, whatever follows; 0 is always right */
};

/* Elements [row, row + rows) x [col, col + cols) of a random tensor (model/source.h says what they are), made on the device. */
struct random_region {
	uint64_t seed, stream;
	int64_t row, rows, col, cols;
	float offset, scale;
	enum dtype dtype;
};

/* out[t] = table[token[t] - begin], widened. A replicated out wants a table of all tokens. A partial one is made from the rows that this rank has:
 * tokens of other ranks, and all slots but the first, are -0.0, which changes no value that it is added to. */
struct embed_args {
	const struct linear_weight *table;
	int begin;            /* token of the table's first row; 0 where out is replicated */
	float scale;          /* the row is multiplied by it; 0: it is not */
	const int32_t *token; /* [T], each a token of the vocabulary (checked by the engine) */
	struct tensor out;    /* [T,H] replicated or partial */
};

/* out = x * rsqrt(mean(x^2) + eps) * weight, row by row. */
struct rms_norm_args {
	struct tensor x;     /* [T,H] replicated */
	const float *weight; /* [H] */
	float eps;
	struct tensor out; /* [T,H] replicated; may be x */
};

/* The same over each head's D columns of a sharded tensor, in place (Qwen3's q and k norm). */
struct head_norm_args {
	struct tensor x; /* [T, heads*D] sharded (a view of columns) */
	int heads, head_dim;
	const float *weight; /* [D] */
	float eps;
};

/* y = x W^T (+ bias). split NULL: y sharded (or replicated) [T,n], bias added last. With a split: y partial
 * [spans][T][n], bias refused (a row-parallel bias is added once, after the sum). accumulate: y f32, y += x W^T (+ bias); only
 * where device_ops.accumulates. */
struct linear_args {
	struct tensor x;
	const struct linear_weight *weight;
	const float *bias; /* [n] or NULL */
	const struct sum_split *split;
	struct tensor y;
	bool accumulate;
};

/* Rotates columns in place, pairs (i, i + rotary_dim/2) of each head. */
struct rope_args {
	struct tensor x; /* [T, heads*D] sharded */
	int heads, head_dim, rotary_dim;
	const float *cos_sin; /* [T][rotary_dim] */
};

struct kv_write_args {
	struct tensor k, v; /* [T, kv_heads*D] sharded */
	const struct kv_cache *cache;
	int layer;
	const int32_t *kv_slot; /* [T] */
};

/* Causal attention of the step's rows over the cache (their own K and V already written). A row at position p sees keys
 * max(0, p - window + 1) .. p, or 0 .. p when window is 0. Query head h uses KV head h / (q_heads / kv_heads). */
struct attention_args {
	struct tensor q;   /* [T, q_heads*D] sharded */
	struct tensor out; /* [T, q_heads*D] sharded */
	int q_heads;
	const struct kv_cache *cache;
	int layer;
	const struct step_rows *rows;
	float scale;
	int window;
	float softcap; /* scores become softcap tanh(score / softcap), behind the scale; 0: they stay */
};

/* The gated delta net from its projections to what out_proj reads. Per sequence and row t:
 *   (q, k, v) <- silu(causal depthwise convolution of (q, k, v) over the rows, the oldest tap first, the inputs of the state before them)
 *   q <- q / sqrt(sum q^2 + 1e-6) / sqrt(k_dim), k <- k / sqrt(sum k^2 + 1e-6)                      per key head
 *   beta = sigmoid(b), decay = exp(-exp(a_log) softplus(a + dt_bias))                              per value head
 *   S <- decay S;  e = beta (v - S^T k);  S <- S + k e^T;  o = S^T q                               per value head, f32
 *   out = rms_norm(o) norm silu(z)                                                                 per value head
 * and the state that results in state_write. On the CPU strictly row by row, so that cuts into chunks do not show. */
struct gdn_args {
	struct tensor qkvz; /* [T, q|k|v|z] sharded; overwritten */
	struct tensor ba;   /* [T, b|a] sharded; overwritten */
	const float *conv;  /* [conv_kernel][channels] */
	const float *a_log, *dt_bias; /* [v_heads] */
	const float *norm;  /* [v_dim] */
	float eps;
	const struct gdn_cache *cache;
	int layer; /* which of the GDN layers */
	const struct step_rows *rows;
	struct tensor out; /* [T, v_heads * v_dim] sharded */
};
#define GDN_L2_EPS 1e-6f
#define GDN_MAX_TAPS 64

/* x *= sigmoid(gate). */
struct gate_args {
	struct tensor x, gate; /* [T, n] sharded */
};

/* out = silu(gate) * up, gate = columns [0,I), up = columns [I,2I) of x. */
struct swiglu_args {
	struct tensor x;   /* [T, 2I] sharded */
	struct tensor out; /* [T, I] sharded */
};

/* out = gelu(gate) * up, gelu(g) = g / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))), columns as swiglu's. */
struct geglu_args {
	struct tensor x;   /* [T, 2I] sharded */
	struct tensor out; /* [T, I] sharded */
};

/* x += rms_norm(y) * weight, row by row; y is overwritten. With `next`, then h = rms_norm(x) * next. */
struct norm_add_args {
	struct tensor x, y;  /* [T,H] replicated, f32 */
	const float *weight; /* [H] */
	float eps;           /* of both norms */
	const float *next;   /* [H] or NULL */
	struct tensor h;     /* [T,H] replicated; only with next */
};

/* x = cap tanh(x / cap). */
struct softcap_args {
	struct tensor x; /* [R, n] */
	float cap;
};

/* out = residual + (tree sum of sources + bias), rows [row_begin, row_end) only. residual and bias may be absent (NULL data). The
 * program is that of base/sumtree.h: push source i, then merges[i] times pop two and push their sum. */
#define TREE_SUM_MAX_SOURCES 128
struct tree_sum_args {
	int sources;
	const void *source[TREE_SUM_MAX_SOURCES]; /* each [rows, cols] dense */
	enum dtype source_dtype;                  /* zeroed: F32 */
	uint8_t merges[TREE_SUM_MAX_SOURCES];
	int row_begin, row_end;
	struct tensor residual; /* [T,H] replicated, of out's type, or .data NULL; may be out */
	const float *bias;      /* [H] or NULL */
	struct tensor out;      /* [T,H] replicated */
};

/* out[i] = x[row[i]]. */
struct gather_rows_args {
	struct tensor x;
	const int32_t *row; /* [out.rows] */
	struct tensor out;
};

/* ---- fused ops. Optional: a back end that has none leaves NULL, and the engine runs what they are made of. */

/* h = rms_norm(x), to be made by the op that reads it, unless the collective before it has done so. */
struct norm_input {
	struct tensor x;     /* [T,H] replicated, f32 */
	const float *weight; /* [H] */
	float eps;
	struct tensor h; /* [T,H] replicated: result, or memory for it */
	bool done;       /* h holds it already */
};

/* From the residual stream to queries and cache: norm, linear (+ bias), q and k norm, rope, kv write. Queries end up in the first columns of
 * `qkv`; what the columns of k and v hold afterwards is not defined. Further rows of the weight are outputs behind them, as the linear gives them. */
struct attention_in_args {
	struct norm_input in;
	const struct linear_weight *weight; /* [(q + 2 kv) D + more, H]: q, k, v rows, more (an output gate's) */
	const float *bias;                  /* [its n] or NULL */
	const float *q_norm, *k_norm;       /* [D] or NULL */
	int q_heads, kv_heads, head_dim, rotary_dim; /* local */
	const struct step_rows *rows;
	const struct kv_cache *cache;
	int layer;
	struct tensor qkv; /* [T, (q + 2 kv) D + more] sharded */
};

/* From the residual stream to what the gated delta net reads: norm, both linears, which are one where b and a rows
 * lie behind the others in memory. What the stream prefers for either does not count. */
struct gdn_in_args {
	struct norm_input in;
	const struct linear_weight *qkvz, *ba; /* [2 Hk dk + 2 Hv dv, H]: q, k, v, z rows; [2 Hv, H]: b rows, a rows; local heads */
	struct tensor out;                     /* [T, q|k|v|z|b|a] sharded */
};

/* out = swiglu(rms_norm(x) W^T + bias), or geglu of that. */
struct mlp_in_args {
	struct norm_input in;
	const struct linear_weight *weight; /* [2I, H]: gate rows, up rows */
	const float *bias;
	bool gelu;             /* geglu, not swiglu */
	struct tensor gate_up; /* [T, 2I] sharded: memory that may be used */
	struct tensor out;     /* [T, I] sharded */
};

/* The experts of a layer on one rank: SwiGLU MLPs whose inner dimension is cut, one behind the other in memory; and the one that takes part for
 * every row, where there is one. All weights of one plain type. */
struct moe_weights {
	int experts;                     /* E */
	struct linear_weight router;     /* [E, H], whole; with a shared expert [E + 1, H], its gate last */
	struct linear_weight gate_up;    /* of expert 0: [2I/P, H] gate rows, up rows */
	struct linear_weight down;       /* of expert 0: [H, I/P] */
	size_t gate_up_bytes, down_bytes; /* from an expert to the next */
	struct linear_weight shared_gate_up, shared_down; /* [2Is/P, H], [H, Is/P]; n 0: no shared expert */
};

/* What the memory for moe's intermediate results depends on: device_ops.moe_scratch_bytes. */
struct moe_shape {
	int rows;           /* of the largest call */
	enum dtype dtype;   /* of activations */
	int hidden, experts, top_k;
	int inner, shared_inner; /* local */
	int leaves;         /* local, of the summation tree */
};

/* y = sum over the row's top_k experts e, ascending, of p_e E_e(x) + sigmoid(x g) S(x), E and S this rank's part of the experts. p: softmax of the
 * router's logits over all experts; the largest are chosen, of equal ones the lower index; norm_topk: divided by their sum. As a row-parallel linear:
 * y partial [spans][T][H] with a split, or accumulated. */
struct moe_args {
	struct norm_input in; /* in.h is the experts' input; not done: only where device_ops.moe_norms */
	const struct moe_weights *weights;
	int top_k;
	bool norm_topk;
	const struct sum_split *split;
	struct tensor y;
	bool accumulate; /* y f32 replicated, y +=; only where device_ops.accumulates */
	void *scratch;   /* device memory, device_ops.moe_scratch_bytes of a shape with at least as many rows; contents do not matter */
};
#define MOE_MAX_TOP_K 64

/* The best of each row: the largest value, the smallest index among equals; a row with NaN has index -1. */
struct best_token {
	float value;
	int32_t index; /* `begin` + column */
};
struct argmax_args {
	struct tensor logits; /* [R, n] f32 */
	int begin;
	struct best_token *out; /* [R], memory that the host reads after stream_sync */
};

/* One token per row, chosen as engine/sampler.h says (that is the specification; this op does the same filters in the same order). What depends on
 * history comes as one entry per token that changes: bias added, then `subtract` taken off (presence and frequency penalty), then repetition,
 * then the mask. */
enum sample_mode { SAMPLE_SKIP, SAMPLE_GREEDY, SAMPLE_DRAW }; /* SKIP: logits and result of the row stay as they are */
enum sample_change { SAMPLE_BIAS = 1, SAMPLE_SUBTRACT = 2, SAMPLE_REPETITION = 4, SAMPLE_MASK = 8 };
struct sample_adjust {
	int32_t token;
	uint32_t change; /* of enum sample_change */
	float bias, subtract;
};
struct sample_row {
	double temperature; /* at least 1e-5 where mode is DRAW */
	double top_p, min_p, repetition;
	double unit;   /* the draw: rng_unit(seed, 1, position) */
	int32_t top_k; /* 0: off */
	int32_t mode;  /* enum sample_mode */
	int32_t first_adjust, adjusts; /* distinct tokens of this row's range of `adjust` */
	int32_t want_logprob;
	int32_t unused;
};
struct sample_choice {
	int32_t token; /* -1: a logit is NaN, or the best is infinite */
	float logprob; /* of the token after adjustments, at temperature 1; 0 if not wanted */
};
struct sample_args {
	struct tensor logits;          /* [R, V] f32, replicated; overwritten */
	const struct sample_row *row;  /* [R] device memory */
	const struct sample_adjust *adjust;
	void *scratch;             /* device memory, sample_scratch_bytes(R); contents do not matter */
	struct sample_choice *out; /* [R], memory that the host reads after stream_sync */
};
#define SAMPLE_MAX_ROWS 256
#define SAMPLE_MAX_COLS (1 << 19) /* of a larger vocabulary the host samples */
#define SAMPLE_MAX_SPLITS 32  /* blocks that share a row */
#define SAMPLE_BINS 4096      /* of a row's histogram */
static inline size_t sample_scratch_bytes(int rows)
{
	size_t histogram = SAMPLE_BINS * (sizeof(uint64_t) + sizeof(uint32_t)), list = SAMPLE_BINS * sizeof(uint64_t);
	return (size_t)rows * (histogram + list + SAMPLE_MAX_SPLITS * 16 + 64);
}

/* X(name): enum status name(struct stream *, const struct name_args *, struct error *) */
#define OP_FUSED_LIST(X) \
	X(attention_in)      \
	X(gdn_in)            \
	X(mlp_in)            \
	X(argmax)            \
	X(sample)

/* Ops of single families. A back end that lacks one (NULL) cannot run models that need it; loader_fits says so. */
#define OP_FAMILY_LIST(X) \
	X(gdn)            \
	X(gate)           \
	X(moe)            \
	X(geglu)          \
	X(norm_add)       \
	X(softcap)

#define OP_LIST(X) \
	X(embed)       \
	X(rms_norm)    \
	X(head_norm)   \
	X(linear)      \
	X(rope)        \
	X(kv_write)    \
	X(attention)   \
	X(swiglu)      \
	X(tree_sum)    \
	X(gather_rows)

struct op_table {
#define X(op) enum status (*op)(struct stream *, const struct op##_args *, struct error *);
	OP_LIST(X)
	OP_FAMILY_LIST(X)
	OP_FUSED_LIST(X) /* NULL: none */
#undef X
};

#ifdef __cplusplus
extern "C" {
#endif
/* For back ends. The program must leave exactly one value and stay within SUMTREE_MAX_DEPTH; its deepest stack goes to *depth. */
enum status ops_check_program(const struct tree_sum_args *args, int *depth, struct error *err) NODISCARD;
/* A weight of moe, [n, k] of the plain type `dtype`. */
enum status ops_check_expert(const struct linear_weight *weight, enum dtype dtype, int n, int k, const char *what, struct error *err) NODISCARD;
#ifdef __cplusplus
}
#endif

#endif
