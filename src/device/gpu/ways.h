/* ways.h: a variant of a linear (device/variant.h) as the dispatch sees it: which family of kernels, cut how; and what a stream prefers. A "variant" is two names,
 * a "way" what they have been parsed into.
 *
 * Names. Kernel: "default", "gemv_strided", "gemv_wave", "gemv_llmm1", "skinny", "wide", "gemv_decode", "tile", and the vendor's library. Mode: how the family
 * cuts the work. Of a fused use, a kernel that computes all of it is told from the same kernel between a norm and an ending of their own: ", norm inside"
 * makes the norm too, ", norm before" leaves it to a kernel, ", apart" is three kernels. Where the norm has been made already (norm_input.done), the first two
 * are the same.
 *
 * Owner: the stream's; preferences change between steps only. A stream that is to be invariant takes tile whatever is preferred.
 */
#ifndef TANDEM_DEVICE_GPU_WAYS_H
#define TANDEM_DEVICE_GPU_WAYS_H

#include "device/device.h"
#include "device/gpu/attention.h"
#include "device/gpu/library.h"
#include "device/gpu/linear.h"
#include "device/gpu/moe_ways.h"
#include "device/gpu/skinny.h"
#include "device/gpu/wide.h"

/* X(enumerator, name) */
#define WAY_LIST(X)             \
	X(DEFAULT, "default")       \
	X(STRIDED, "gemv_strided")  \
	X(WAVE, "gemv_wave")        \
	X(LLMM1, "gemv_llmm1")      \
	X(SKINNY, "skinny")         \
	X(WIDE, "wide")             \
	X(DECODE, "gemv_decode")    \
	X(TILE, "tile")             \
	X(LIBRARY, gemm_library_variant)

enum way_kernel {
#define X(code, name) WAY_##code,
	WAY_LIST(X)
#undef X
		WAY_COUNT
};

/* Where the norm and the ending of a fused use are. */
enum way_fusion { WAY_PLAIN /* a plain use */, WAY_APART, WAY_NORM_BEFORE, WAY_NORM_INSIDE };

struct way {
	enum way_kernel kernel;
	enum way_fusion fusion;
	struct gemv_shape gemv;     /* STRIDED, WAVE, LLMM1 */
	struct skinny_shape skinny; /* SKINNY */
	struct wide_shape wide;     /* WIDE */
	struct gemm_algo algo;      /* LIBRARY */
};

struct way_preference {
	struct linear_key key; /* m: 0 */
	int m_low, m_high;
	struct way way;            /* LIBRARY: algo is for results of the weights' type, */
	struct gemm_algo algo_f32; /* this one for f32 */
	bool legal, legal_f32;     /* the library said so, of dense operands and the first and the last row count */
	struct variant name;
};

/* Of one stream. */
struct dispatch {
	struct way_preference *preferred; /* sorted by key, then rows */
	int count;
	enum linear_use use; /* of the last op, */
	struct way ran;      /* and what was taken for it */
	struct attention_preferred *attention; /* in the order given */
	int attention_count;
	struct attention_way attention_ran;
	struct attention_library *attention_library; /* opened when its variant is first asked for; NULL: not yet, or not here */
	bool attention_library_sought;
	struct moe_preferred *moe; /* likewise */
	int moe_count;
	struct moe_way moe_ran;
};

/* What the stream prefers for this, or NULL. No allocation; constant but for a binary search. */
const struct way_preference *way_preferred(const struct gpu_context *context, enum linear_use use, const struct linear_weight *w, int m);
/* What the dispatch took, for linear_ran. */
static inline void way_ran(const struct gpu_context *context, const struct way *way)
{
	context->dispatch->ran = *way;
}
/* Whether all of a fused use is one way. */
static inline bool way_is_fused(const struct way *way)
{
	return way->fusion == WAY_NORM_BEFORE || way->fusion == WAY_NORM_INSIDE;
}

/* device_ops: */
int gpu_linear_variants(struct stream *stream, const struct linear_key *key, struct variant *out, int max);
enum status gpu_linear_prefer(struct stream *stream, const struct linear_preference *list, int count, struct error *err);
void gpu_linear_ran(const struct stream *stream, struct variant *out);

#endif
