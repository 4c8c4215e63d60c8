/* attention_rules.h: what can be said of tandem's own attention kernels for one rank's heads on a described device, without running anything (as kernels.h says it of
 * linears; the same verdicts). Pure functions; any thread.
 *
 *   decode          sequences of one row, any device and type; up to 4 query heads of a KV head share a block
 *   decode_tensor   the same on tensor cores, in clusters of blocks; up to 8 query heads share one
 *   prefill_wide    sequences of several rows on warpgroup products
 *   prefill_tensor  the same on the tensor cores of every device that has some
 *   tile            the same, any device and type
 */
#ifndef TANDEM_PRESCREEN_ATTENTION_RULES_H
#define TANDEM_PRESCREEN_ATTENTION_RULES_H

#include "base/dtype.h"
#include "prescreen/kernels.h"
#include "prescreen/target.h"

#define ATTENTION_BLOCK_TOKENS 64 /* of the GPU back ends, where the user has not said otherwise */

struct attention_shape {
	int q_heads, kv_heads, head_dim; /* of one rank */
	int block_tokens;
	bool prefill; /* sequences of several rows, else of one */
	enum dtype dtype;
	double softcap; /* of scores; 0: none */
};

/* X(enumerator, name): in the order in which they are tried. */
#define ATTENTION_RULE_LIST(X)     \
	X(BUILD, "build")              \
	X(PHASE, "phase")              \
	X(DTYPE, "dtype")              \
	X(GROUP, "group")              \
	X(HEAD_DIM, "head_dim")        \
	X(BLOCK_TOKENS, "block tokens") \
	X(SOFTCAP, "soft cap")         \
	X(ARCH, "arch")                \
	X(THREADS, "threads")          \
	X(WAVE, "wave")                \
	X(SHARED, "shared memory")

/* Static. */
const char *attention_name(enum attention_id id);
void attention_judge(struct verdict *out, const struct target *target, enum attention_id id, const struct attention_shape *shape);

#endif
