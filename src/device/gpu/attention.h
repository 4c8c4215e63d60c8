/* attention.h: what the attention kernels are given, and their launchers. Internal to attention*.{c,cu}; valid C17 and C++17.
 *
 * A step's sequences are of two kinds, told apart on the device, since the host does not know row_start: those of one row go to the decode
 * kernel (blocks share the keys), longer ones to the prefill kernel (blocks share the rows). The launcher leaves out a kernel that can
 * have nothing to do.
 *
 * Splits of decode. Keys come in groups of 16, which never cross a KV block. The grid has `splits` blocks for each sequence and KV head; how many
 * of them work, and on which keys, is computed from the row's position (attention_device.h). Partial results (unnormalised sum, maximum, sum of
 * weights) go to the workspace, [seq][q head][split][D] floats and [seq][q head][split][2] behind them; the last block to arrive adds them up in
 * ascending order of splits. Invariant mode: a split is 256 * 2^i keys from position 0 on, the smallest i that makes do with ATTENTION_CHUNKS
 * of them, so that the order of summation depends on the position alone.
 */
#ifndef TANDEM_DEVICE_GPU_ATTENTION_H
#define TANDEM_DEVICE_GPU_ATTENTION_H

#include "device/gpu/context.h"
#include "device/variant.h"

struct stream_options;

#define ATTENTION_HEAD_MULTIPLE 16 /* what a head_dim must be one of */
#define ATTENTION_MAX_HEAD 256
#define ATTENTION_GROUP 16      /* keys that lie together whatever block_tokens is */
#define ATTENTION_MAX_SPLITS 32 /* of one sequence and KV head */
#define ATTENTION_CHUNKS 16     /* most splits in invariant mode */
#define ATTENTION_SLICE 4       /* query heads of a block that goes by splits, at most */
#define ATTENTION_CHUNK 256     /* fewest keys of a split in invariant mode */

/* The kernels' parameter. Pointers are device memory; strides in elements. */
struct attention_params {
	const void *q;  /* [rows][q_heads*D] */
	void *out;      /* [rows][q_heads*D] */
	const void *kv; /* the layer's: [block][k|v][kv_head][block_tokens][D] */
	int64_t q_stride, out_stride;
	const int32_t *position, *row_start, *block_table;
	int rows, seqs, max_seq_rows, max_blocks, block_tokens, blocks, max_kv_len;
	int q_heads, kv_heads, group, head_dim;
	float scale_log2; /* scale * log2(e): weights are powers of 2. With a soft cap: cap * log2(e), of tanh(score * cap_scale) */
	float cap_scale;  /* scale / cap; 0: no soft cap */
	int window;       /* 0: none */
	bool dense;       /* sequence s is row s */
	bool skip_single; /* prefill: sequences of one row are not for this kernel */
	int first_seq;    /* prefill: no sequence before this one is for it */
	bool invariant;
	int block_shift;  /* log2(block_tokens), or -1 */
	int splits; /* decode: blocks of one sequence and KV head */
	float *partial;
	float *partial_stats;
	uint32_t *counters; /* [seqs][kv_heads (times head slices)], zero before and after */
};

/* Tiles of `tile_rows` rows that a prefill kernel can have to do: a sequence wastes less than one. A grid of more costs: each idle block looks for its
 * tile among all sequences before it leaves. */
static inline unsigned attention_most_tiles(const struct attention_params *p, int tile_rows)
{
	return (unsigned)((p->rows - p->first_seq) / tile_rows + p->seqs - p->first_seq);
}

#ifdef __cplusplus
extern "C" {
#endif
/* Workspace that attention may ask for on such a stream. */
size_t gpu_attention_workspace(const struct stream_options *options, const struct gpu_props *props);
/* Counters that attention may want for such a stream. */
int gpu_attention_counters(const struct stream_options *options);
/* gpu_attention without the first `skip` candidates for each kind of sequences, as long as another follows: for checks. */
enum status gpu_attention_skip(struct stream *stream, const struct attention_args *args, int skip, struct error *err);

/* Launchers: one kernel each, all checks of the arguments done (attention.c). can: whether the kernel takes this type and these heads. */
struct attention_kernel {
	const char *name;
	bool (*can)(const struct attention_params *p, enum dtype dtype);
	enum status (*launch)(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err);
	bool splits; /* goes by params.splits; else it cuts the keys as it likes */
};
extern const struct attention_kernel attention_decode, attention_tile;                /* any device */
extern const struct attention_kernel attention_decode_tensor, attention_prefill_tensor, attention_prefill_wide; /* CUDA */

/* ---- variants, by name (attention_ways.c): a kernel's name, and for one that goes by splits "8 splits", or "" for as many as fill the device */

struct attention_way {
	const struct attention_kernel *kernel; /* NULL: nothing has run */
	int splits;                            /* 0: by the dispatch */
};
struct attention_preferred {
	struct attention_key key; /* m: 0 */
	int m_low, m_high;
	struct attention_way way;
	struct variant name;
};
/* What the stream prefers for this step, or NULL. */
const struct attention_preferred *attention_preferred(const struct gpu_context *context, bool prefill, const struct attention_params *p, enum dtype dtype);
/* Candidates in the order of the dispatch, NULL behind the last. */
const struct attention_kernel *const *attention_kernels(bool prefill);
/* One more that the dispatch never takes by itself, or NULL. Preferred, it takes what it can, and what it cannot goes the dispatch's own way. */
const struct attention_kernel *attention_optional(bool prefill);

/* ---- attention_cudnn.c */

struct attention_library;
extern const struct attention_kernel attention_cudnn;
/* Whether the library is here and has a plan for this problem, which is made if there is none yet and no graph is recorded. UNSUPPORTED, DEVICE_FAULT (what
 * the library said): it will not do. Not for the step path, but for the first step of its class (attention_cudnn.c). */
enum status attention_cudnn_ready(const struct gpu_context *ctx, const struct attention_params *p, enum dtype dtype, struct error *err) NODISCARD;
void attention_library_destroy(struct attention_library **library);
/* Lengths, offsets and block tables as a library wants them, for `seqs` sequences from number p->first_seq on; those behind the step's last have no rows. Device
 * memory, 32-bit numbers behind one another. */
struct attention_pages {
	int32_t *rows, *keys;         /* [seqs] */
	int32_t *q_start, *out_start; /* [seqs + 1], in elements */
	int32_t *table;               /* [seqs][blocks] */
	int seqs, blocks;
};
#define ATTENTION_PAGES_INTS(seqs, blocks) ((seqs) * (4 + (blocks)) + 2)
static inline struct attention_pages attention_pages_at(void *room, int seqs, int blocks)
{
	int32_t *at = (int32_t *)room;
	const struct attention_pages pages = {at, at + seqs, at + 2 * seqs, at + 3 * seqs + 1, at + 4 * seqs + 2, seqs, blocks};
	return pages;
}
/* attention_pages.cu: written by a kernel. */
enum status attention_pages_write(const struct gpu_context *ctx, const struct attention_params *p, const struct attention_pages *to, struct error *err) NODISCARD;

/* device_ops: */
int gpu_attention_variants(struct stream *stream, const struct attention_key *key, struct variant *out, int max);
enum status gpu_attention_prefer(struct stream *stream, const struct attention_preference *list, int count, struct error *err);
void gpu_attention_ran(const struct stream *stream, struct variant *out);
#ifdef __cplusplus
}
#endif

#endif
