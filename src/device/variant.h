/* variant.h: the ways in which a back end can compute one linear, attention, or the experts of a layer, by name, so that they can be measured against each other and one of them be asked
 * for. Plain data.
 *
 * One mechanism serves measuring and serving: a stream is told what to prefer for a key (device_ops.linear_prefer), and the ops dispatch as always. What was
 * asked for, what the dispatch made of it (device_ops.linear_ran), and what a recorded graph shows (device_ops.graph_kernels) are three things, and
 * evidence keeps them apart.
 */
#ifndef TANDEM_DEVICE_VARIANT_H
#define TANDEM_DEVICE_VARIANT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

/* What stands around the product: which op asks for it. X(enumerator, name) */
#define LINEAR_USE_LIST(X)              \
	X(PLAIN, "linear")                  \
	X(ACCUMULATE, "linear +=")          \
	X(PARTIAL, "linear partial")        \
	X(ATTENTION_IN, "attention_in")     \
	X(MLP_IN, "mlp_in")

enum linear_use {
#define X(code, name) LINEAR_USE_##code,
	LINEAR_USE_LIST(X)
#undef X
		LINEAR_USE_COUNT
};

static inline const char *linear_use_name(enum linear_use use)
{
	static const char *const names[] = {
#define X(code, name) name,
		LINEAR_USE_LIST(X)
#undef X
	};
	return (unsigned)use < LINEAR_USE_COUNT ? names[use] : "?";
}

/* A problem as the dispatch sees it: y [m, n] = x [m, k] W [n, k]^T on one rank. */
struct linear_key {
	enum linear_use use;
	enum dtype dtype; /* of the weights */
	int n, k, m;
};

/* But for the rows. */
static inline bool linear_key_alike(const struct linear_key *a, const struct linear_key *b)
{
	return a->use == b->use && a->dtype == b->dtype && a->n == b->n && a->k == b->k;
}
static inline bool linear_key_equal(const struct linear_key *a, const struct linear_key *b)
{
	return linear_key_alike(a, b) && a->m == b->m;
}

/* A way to compute it. Names are stable: they stand in files. */
#define VARIANT_KERNEL_BYTES 32
#define VARIANT_MODE_BYTES 96
struct variant {
	char kernel[VARIANT_KERNEL_BYTES]; /* "gemv_strided", "skinny", "cublasLt", "panels", "default": what the dispatch takes by itself */
	char mode[VARIANT_MODE_BYTES];     /* "4 rows, 640 threads"; "" where there is but one */
	bool invariant;                    /* same bits as the back end's invariant order */
};

/* Kernel and mode. */
static inline bool variant_equal(const struct variant *a, const struct variant *b)
{
	return strcmp(a->kernel, b->kernel) == 0 && strcmp(a->mode, b->mode) == 0;
}

/* For rows m_low to m_high of a key (its own m does not count) this variant is to be taken. */
struct linear_preference {
	struct linear_key key;
	int m_low, m_high;
	struct variant variant;
};

/* Attention as one rank sees it. */
struct attention_key {
	bool prefill; /* sequences of several rows, else of one */
	enum dtype dtype; /* of the cache */
	int q_heads, kv_heads, head_dim;
	int m; /* rows */
};

/* As a linear's; the key's own m does not count. */
struct attention_preference {
	struct attention_key key;
	int m_low, m_high;
	struct variant variant;
};

/* The experts of a layer as one rank sees them. */
struct moe_key {
	enum linear_use use; /* of y: PLAIN, ACCUMULATE or PARTIAL */
	enum dtype dtype;    /* of weights and activations */
	int hidden, experts, top_k;
	int inner, shared_inner; /* of one expert, and of the shared one (0: none); local */
	int m; /* rows */
};
static inline bool moe_key_alike(const struct moe_key *a, const struct moe_key *b)
{
	return a->use == b->use && a->dtype == b->dtype && a->hidden == b->hidden && a->experts == b->experts && a->top_k == b->top_k && a->inner == b->inner &&
	       a->shared_inner == b->shared_inner;
}

/* As a linear's; the key's own m does not count. */
struct moe_preference {
	struct moe_key key;
	int m_low, m_high;
	struct variant variant;
};

/* One kernel of a recorded graph. */
#define LAUNCH_NAME_BYTES 160
struct kernel_launch {
	char name[LAUNCH_NAME_BYTES]; /* as the driver tells it, cut to fit */
	unsigned grid[3], block[3];
	unsigned shared_bytes; /* dynamic */
};

#endif
