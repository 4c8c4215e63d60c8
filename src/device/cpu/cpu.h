/* cpu.h: inside the CPU back end: device, stream, and the entries that its files give to the table in cpu.c.
 *
 * Ops run at the call, on the caller (member 0) and its team; a stream is only the workspace for them, made once. Files:
 * cpu.c memory, streams, table · ops.c row-wise ops · linear.c weights and linears · variants.c ways to compute a linear · onednn.c one of
 * them by a library · moe.c experts ·
 * attention.c cache and attention · gdn.c gated delta net ·
 * isa*.c and kernels*.h inner loops · team.c threads · topology.c which cores · peak.c what the machine can do.
 */
#ifndef TANDEM_DEVICE_CPU_CPU_H
#define TANDEM_DEVICE_CPU_CPU_H

#include <stdatomic.h>

#include "device/cpu/kernels.h"
#include "device/cpu/team.h"
#include "device/device.h"

struct cpu_allocation;

struct cpu_device {
	struct device base;
	const struct cpu_kernels *kernels;
	struct team *team;
	struct cpu_allocation *allocations; /* owner thread only */
	_Atomic size_t now[MEM_TAG_COUNT];  /* bytes; read by any thread */
	_Atomic size_t total, peak;
};

/* Linear: rows whose tiles stream a whole panel each; beyond that, rows and panels of one work item, and k-steps of a panel that stay in the
 * first-level cache while all tiles use them (16 KiB in two bytes an element). */
#define LINEAR_FEW_ROWS 42
#define LINEAR_BLOCK_ROWS 112
#define LINEAR_BLOCK_PANELS 4
#define LINEAR_CHUNK_K 256

#define LINEAR_WIDE_K 128 /* inputs of a panel that are widened at a time for all tiles (block types): 16 KiB */

/* What one member needs while it works on a chunk. All 64-byte aligned. */
struct cpu_scratch {
	float *wide;  /* [LINEAR_WIDE_K + 2 * QUANT_GROUP][PANEL] weights of a block type, widened */
	float *stack; /* [LINEAR_BLOCK_PANELS][SUMTREE_MAX_DEPTH][block rows][PANEL] chains in flight */
	float *tile;  /* attention: 4 x [TILE_MAX_ROWS][TILE_STRIDE]: queries, weights, block result, running result */
};

/* A way to compute a linear (variants.c). kernels NULL: the dispatch's own choice. */
struct cpu_way {
	const struct cpu_kernels *kernels;
	int panels;  /* of a work item, 1 to LINEAR_BLOCK_PANELS */
	int chunk_k; /* inputs at a time; 0: a whole leaf */
	bool widen;  /* block types: chunk_k of them at a time into scratch, before use */
	bool onednn; /* by that library instead (onednn.h) */
};

struct cpu_preference {
	struct linear_key key;
	int m_low, m_high;
	struct cpu_way way;
};

struct cpu_stream {
	struct stream base;
	struct stream_options options;
	int block_rows; /* rows that `stack` has room for */
	float *packed;  /* [max_rows * max_k] activations in tiles [k][rows of the tile] */
	float *partial; /* [partials][TILE_STRIDE] attention of one row, head and KV_BLOCK: acc, then max and sum */
	int64_t partials;
	int *unit_start; /* [max_rows + 1] attention: first work unit of each sequence */
	struct cpu_scratch *scratch; /* [members] */
	void *workspace;             /* one allocation behind all of these */
	struct cpu_preference *preferences; /* [preference_count], the first that fits counts */
	int preference_count;
	struct cpu_way ran; /* what the last linear did */
	struct onednn *onednn;  /* loaded when it was first asked about; NULL: not, or there is none */
	bool onednn_tried;
};

static inline struct cpu_device *cpu_device(struct device *device)
{
	return (struct cpu_device *)device;
}
static inline struct cpu_stream *cpu_stream(struct stream *stream)
{
	return (struct cpu_stream *)stream;
}
static inline const struct cpu_kernels *cpu_kernels(struct stream *stream)
{
	return cpu_device(stream->device)->kernels;
}
static inline struct team *cpu_team(struct stream *stream)
{
	return cpu_device(stream->device)->team;
}

/* The table of that name, or the best one for "auto" and NULL. UNSUPPORTED if this processor or build lacks it. */
enum status cpu_isa_find(const struct cpu_kernels **out, const char *name, struct error *err) NODISCARD;

/* The i-th table that this processor can run, best first; NULL past the last. */
const struct cpu_kernels *cpu_isa_usable(int i);

/* OK if the tensor is F32 with sane dimensions. */
enum status cpu_expect_f32(const struct tensor *t, const char *what, struct error *err) NODISCARD;

static inline float *cpu_row(const struct tensor *t, int64_t row)
{
	return (float *)t->data + row * t->row_stride;
}

/* The sum of a row-parallel op over k inputs as its program: which leaves make which span. */
struct cpu_sum_plan {
	int spans, leaves, leaf_k;
	struct sum_span span[SUMTREE_MAX_SPANS]; /* relative to the rank's first leaf */
	uint8_t merges[SUMTREE_MAX_LEAVES];
};
/* BAD_INPUT if the split does not fit k or y (partial, a slot a span). `what` names the op. */
enum status cpu_sum_plan(struct cpu_sum_plan *out, const struct sum_split *split, int k, const struct tensor *y, const char *what, struct error *err) NODISCARD;

size_t cpu_linear_bytes(enum dtype dtype, int n, int k);
enum status cpu_linear_put(struct stream *stream, const struct linear_weight *w, int n0, int rows, const void *src, size_t src_stride,
                           struct error *err);
enum status cpu_linear_copy_rows(struct stream *stream, const struct linear_weight *dst, const struct linear_weight *src, int n0, int rows,
                                 struct error *err);
enum status cpu_vector_put(struct stream *stream, float *dst, const void *src, enum dtype dtype, int n, struct error *err);
/* The entries of the same names in device_ops. */
int cpu_linear_variants(struct stream *stream, const struct linear_key *key, struct variant *out, int max);
enum status cpu_linear_prefer(struct stream *stream, const struct linear_preference *list, int count, struct error *err);
void cpu_linear_ran(const struct stream *stream, struct variant *out);
/* What the stream was told to take for this linear; NULL: the dispatch decides. */
const struct cpu_way *cpu_preferred_way(const struct cpu_stream *stream, const struct linear_args *args);
void cpu_versions(const struct device *device, char *text, size_t bytes);

size_t cpu_kv_bytes(const struct kv_layout *layout);
/* Partials that split attention may need under these options (attention.c decides when it splits). */
int64_t cpu_attention_partials(const struct stream_options *options, int members);

size_t cpu_moe_scratch_bytes(const struct device *device, const struct moe_shape *shape);
enum status cpu_compare(struct stream *stream, const struct compare_args *args, struct compare_result *out, struct error *err);

#define X(op) enum status cpu_##op(struct stream *stream, const struct op##_args *args, struct error *err);
OP_LIST(X)
OP_FAMILY_LIST(X)
#undef X

#endif
