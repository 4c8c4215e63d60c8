/* device.h: one device as the engine sees it: memory, streams, events, graphs, weights, and the op table.
 *
 * A back end is the files that the build picked plus one `struct device_ops`. Optional entries (NULL) say what their absence
 * means. Calls on a device are made by the rank worker that owns it, unless a line says otherwise. Everything on a stream is
 * asynchronous; an entry that waits for it says so, and stream_sync takes a deadline and an abort flag (contract C2).
 */
#ifndef TANDEM_DEVICE_DEVICE_H
#define TANDEM_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "base/status.h"
#include "device/compare.h"
#include "device/ops.h"
#include "device/variant.h"

struct device;
struct stream;
struct event;
struct graph;

/* What memory is for: the per-rank report (S5) adds up by tag. X(enumerator, name) */
#define MEM_TAG_LIST(X)                  \
	X(SHARDED, "sharded weights")        \
	X(REPLICATED, "replicated weights")  \
	X(KV, "kv cache")                    \
	X(STATE, "state of sequences")       \
	X(SCRATCH, "collective scratch")     \
	X(WORKSPACE, "workspace")            \
	X(GATHERED, "gathered logits")       /* workspace that peers write, as they do scratch */ \
	X(RUNTIME, "runtime and context") /* of a GPU: what its memory holds besides, other processes' included */

enum mem_tag {
#define X(code, name) MEM_##code,
	MEM_TAG_LIST(X)
#undef X
		MEM_TAG_COUNT
};

struct mem_report {
	size_t now[MEM_TAG_COUNT]; /* bytes */
	size_t peak;               /* largest total so far */
};

struct device_options {
	int ordinal;      /* which device; CPU: ignored */
	int sharers;      /* ranks on this device, this one counted; 0 is 1. CPU: ignored */
	const int *cores; /* CPU: hardware threads (OS indices) for this device's team; element 0 is the rank worker's own */
	int core_count;   /* CPU: team size; 0: one unpinned thread */
	bool pin;         /* CPU: bind each thread of the team to its core */
	const char *isa;  /* CPU: "auto", "avx512", "avx2" or "c" */
	const struct log *log;
};

/* Largest step that a stream will see; its workspace is sized by it at creation (no allocation per step). */
struct stream_options {
	int max_rows;     /* T */
	int max_k;        /* largest local K of any linear */
	int max_n;        /* largest local N */
	int max_q_heads;  /* local */
	int max_head_dim;
	int max_context;  /* longest sequence */
	int max_seqs;     /* S */
	int gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim; /* of gated delta nets, heads local; 0: none */
	bool invariant;   /* results must not depend on the world size (CPU: they never do) */
};

/* What a launch is bounded by; 0: unknown, or there is no such bound. */
struct device_limits {
	int wave;              /* lanes that run together; 1 on a CPU */
	int max_threads;       /* of a block */
	int64_t shared_bytes;  /* of a block */
	int compute_units;
	size_t cache_bytes;    /* of the last level, that weights should not stay in while they are measured */
};

enum copy_kind { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE };

/* The sizes of a model that the ops take; 0: all that a config may state. loader_fits compares, before anything is loaded. */
struct device_sizes {
	int head_multiple, max_head_dim; /* of attention */
	int max_gdn_k_dim, max_gdn_v_dim, max_gdn_taps;
	int max_experts;
};

struct device_ops {
	const char *name; /* "cpu", "cuda", "hip" */
	enum status (*open)(struct device **out, const struct device_options *options, struct error *err);
	void (*close)(struct device *device); /* all memory and streams must be gone */
	/* How `world_size` ranks share this machine: fills options[0..world_size) but for isa and log. threads: of all ranks together, 0:
	 * what the process may use. ordinals: rank -> device, or NULL. *storage holds what the options point to; the caller free()s it. */
	enum status (*partition)(int world_size, int threads, const int *ordinals, struct device_options *options, void **storage,
	                         struct error *err);
	/* The calling thread is this device's worker from now on (bound to its core, current device set). open does it too. */
	void (*attach)(struct device *device);
	/* What the device runs on, for reports: "avx512", "sm_90", … */
	const char *(*flavour)(const struct device *device);
	int (*threads)(const struct device *device); /* host threads that compute; 1 on a GPU */
	void (*limits)(const struct device *device, struct device_limits *out); /* any thread. NULL: nothing is known */

	/* Zeroed device memory. `what` goes into the message when there is no room. */
	enum status (*alloc)(struct device *device, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err);
	void (*free)(struct device *device, void *ptr); /* NULL is fine */
	void (*report)(const struct device *device, struct mem_report *out); /* any thread */
	size_t (*free_bytes)(const struct device *device);                   /* what could still be allocated, roughly; SIZE_MAX: unknown */
	bool one_memory; /* all devices of this back end draw on the same memory */
	/* Host memory that copies to and from this device are fast with. NULL entries: any memory is. */
	enum status (*host_alloc)(struct device *device, size_t bytes, const char *what, void **out, struct error *err);
	void (*host_free)(struct device *device, void *ptr);

	/* Element type of activations, partial sums and KV for a model whose weights are of type `model`; the residual stream is f32
	 * everywhere, and so are logits. */
	enum dtype (*activation)(enum dtype model);
	int kv_block_tokens; /* block size that suits the attention kernels, where the user has not said otherwise; 0: device_kv_block_tokens knows */
	int prefill_chunk;   /* rows of a step that suit it; 0: device_prefill_chunk knows */
	bool host_idles;     /* the host's cores have nothing to do while a step runs: threads that wait may spin */
	bool block_types;    /* weights of block types (quantised) can be put */
	bool accumulates;    /* linear_args.accumulate is supported: at world size 1 no all-reduce is needed */

	enum status (*stream_create)(struct device *device, const struct stream_options *options, struct stream **out, struct error *err);
	void (*stream_destroy)(struct stream *stream);
	/* Waits until all that was put on the stream is done; its failure is returned here. */
	enum status (*stream_sync)(struct stream *stream, uint64_t deadline_ns, const _Atomic int *abort, struct error *err);

	/* For measurements: an event that remembers when the stream got there, and the time between two such, once the stream was synchronised.
	 * NULL, all four: streams are eager, the host's clock says it. */
	enum status (*event_create)(struct device *device, struct event **out, struct error *err);
	void (*event_destroy)(struct event *event);
	enum status (*event_record)(struct event *event, struct stream *stream, struct error *err);
	enum status (*event_elapsed_ms)(const struct event *from, const struct event *to, float *ms, struct error *err);

	/* Host memory of COPY_TO_HOST / COPY_TO_DEVICE must stay until the next stream_sync. */
	enum status (*copy)(struct stream *stream, void *dst, const void *src, size_t bytes, enum copy_kind kind, struct error *err);

	/* Recording of a decode step. NULL entries: the back end runs eagerly (CPU). */
	enum status (*graph_begin)(struct stream *stream, struct error *err);
	enum status (*graph_end)(struct stream *stream, struct graph **out, struct error *err);
	enum status (*graph_launch)(struct graph *graph, struct stream *stream, struct error *err);
	void (*graph_destroy)(struct graph *graph);

	/* Weights. put: rows [n0, n0+rows) of `w` from host memory, each row w->k elements of w->dtype at `src + i*src_stride`
	 * bytes (unaligned is fine). copy_rows: the same rows from another device's copy of equal n, k, dtype; any thread's memory. */
	size_t (*linear_bytes)(enum dtype dtype, int n, int k);
	int linear_granule; /* rows [n0, n) of a weight are a weight of their own, at linear_bytes(n0, k), where n0 is a multiple of this */
	enum status (*linear_put)(struct stream *stream, const struct linear_weight *w, int n0, int rows, const void *src, size_t src_stride,
	                          struct error *err);
	enum status (*linear_copy_rows)(struct stream *stream, const struct linear_weight *dst, const struct linear_weight *src, int n0, int rows,
	                                struct error *err);
	/* As linear_put, of made-up weights: rows [n0, n0 + region->rows) of `w`. NULL: the engine makes them on the host. */
	enum status (*linear_random)(struct stream *stream, const struct linear_weight *w, int n0, const struct random_region *region,
	                             struct error *err);
	/* n elements of `dtype` at src (unaligned is fine) widened to f32 at dst. */
	enum status (*vector_put)(struct stream *stream, float *dst, const void *src, enum dtype dtype, int n, struct error *err);

	size_t (*kv_bytes)(const struct kv_layout *layout);
	size_t (*moe_scratch_bytes)(const struct device *device, const struct moe_shape *shape); /* NULL where ops.moe is */
	bool moe_norms; /* ops.moe makes the norm of its input, where that is not done */

	/* The kernels of a linear on this stream may change with its rows: the next number of rows, above `rows`, that stands for a size of its own; 0: none,
	 * or what runs was loaded before. NULL: as 0. The first run of a size may load code, which waits for the device. */
	int (*linear_rows_after)(const struct stream *stream, int rows);
	/* Variants of a linear (variant.h); NULL entries: there is one way only. variants: those that this back end's dispatch can be told to take for the key,
	 * the first of them "default"; returns how many, at most `max`. Being listed does not mean that it is legal, right or fast for the key. */
	int (*linear_variants)(struct stream *stream, const struct linear_key *key, struct variant *out, int max);
	/* From now on the stream's linears take these; replaces what was preferred before, count 0: nothing is. The list is copied. BAD_INPUT: a variant
	 * that this back end does not have. A preference that cannot compute a problem is an error of the op, never another variant in silence. */
	enum status (*linear_prefer)(struct stream *stream, const struct linear_preference *list, int count, struct error *err);
	/* What the dispatch took for the last linear or fused op on this stream. */
	void (*linear_ran)(const struct stream *stream, struct variant *out);
	/* The same three for attention; a step may have sequences of both kinds, ran tells of the last. */
	int (*attention_variants)(struct stream *stream, const struct attention_key *key, struct variant *out, int max);
	enum status (*attention_prefer)(struct stream *stream, const struct attention_preference *list, int count, struct error *err);
	void (*attention_ran)(const struct stream *stream, struct variant *out);
	/* And for the experts of a layer. */
	int (*moe_variants)(struct stream *stream, const struct moe_key *key, struct variant *out, int max);
	enum status (*moe_prefer)(struct stream *stream, const struct moe_preference *list, int count, struct error *err);
	void (*moe_ran)(const struct stream *stream, struct variant *out);
	/* The kernels of a recorded graph in order of recording; returns how many there are, of which at most `max` are filled in. NULL: cannot tell. */
	enum status (*graph_kernels)(struct graph *graph, struct kernel_launch *out, int max, int *count, struct error *err);
	/* What speeds and variants depend on besides the flavour: "NVIDIA H200, 139.8 GiB, 132 multiprocessors; driver 580.82.07, cuda 13000, runtime 13000,
	 * cublasLt 130100". Any thread. NULL: nothing. */
	void (*versions)(const struct device *device, char *text, size_t bytes);

	/* Reads `bytes` (a multiple of 16) of device memory once, for measuring; *sum, device memory, takes what stands for the values read. NULL: none. */
	enum status (*read_memory)(struct stream *stream, const void *data, size_t bytes, uint32_t *sum, struct error *err);

	/* Waits for the stream and fills *out, host memory. For measuring. */
	enum status (*compare)(struct stream *stream, const struct compare_args *args, struct compare_result *out, struct error *err);

	struct device_sizes sizes;
	struct op_table ops;
};

/* First member of every back end's device, stream, event: what generic code needs. */
struct device {
	const struct device_ops *vt;
};
struct stream {
	const struct device_ops *vt;
	struct device *device;
};
struct event {
	const struct device_ops *vt;
};

/* Rows [n0, n0 + n) of `w` without a copy; n0 must be a multiple of the granule. */
static inline struct linear_weight linear_view(const struct device_ops *vt, const struct linear_weight *w, int n0, int n)
{
	return (struct linear_weight){.data = (char *)w->data + vt->linear_bytes(w->dtype, n0, w->k), .dtype = w->dtype, .n = n, .k = w->k};
}

/* Before anything big is allocated: on a machine that overcommits, lack of memory would show as a killed process. NO_ROOM, saying what to use instead. */
enum status device_room(const struct device *device, double bytes, const char *what, const char *instead, struct error *err) NODISCARD;

/* What a back end wants where the user has not said otherwise. */
#define DEVICE_KV_BLOCK_TOKENS 32
#define DEVICE_PREFILL_CHUNK 512
static inline int device_kv_block_tokens(const struct device_ops *vt)
{
	return vt->kv_block_tokens ? vt->kv_block_tokens : DEVICE_KV_BLOCK_TOKENS;
}
static inline int device_prefill_chunk(const struct device_ops *vt)
{
	return vt->prefill_chunk ? vt->prefill_chunk : DEVICE_PREFILL_CHUNK;
}
static inline enum dtype device_activation(const struct device_ops *vt, enum dtype model)
{
	return vt->activation ? vt->activation(model) : DTYPE_F32;
}

/* Ends a recording that graph_begin began, whatever came of what was recorded since, `st`; returns that, or the end's own failure. *out is NULL then. */
enum status device_graph_end(struct stream *stream, enum status st, struct graph **out, struct error *err) NODISCARD;

/* Back ends in this build by name; NULL if there is none of that name. */
const struct device_ops *device_find(const char *name);
/* Names of the back ends in this build, separated by ", ". */
const char *device_names(void);

/* Launch through the table: OP(stream, linear, &args, err). */
#define OP(stream, op, args, err) ((stream)->vt->ops.op((stream), (args), (err)))

#endif
