/* kernels.h: what can be said of a kernel and a shape before anything is launched. One table of families (kernels.c), one list of rules.
 *
 * A verdict is legal (every rule holds), illegal (one does not: the first is named) or unknown (none fails, but one needs a number that the
 * target's description lacks). Illegal also means launches that run and give something else than asked: rows never written, inputs never
 * read, another mode. Legal says nothing about speed. Pure functions; any thread.
 *
 * Families. W is [n, k], y = x W^T, x has m rows.
 *   LLMM1             vLLM's: one 8-element chunk of k per thread, no loop; nothing checked at launch; tail rows not written; sums at most 16 waves
 *   LLMM1 dispatched  the same as reached through vLLM's guards: is this shape's branch LLMM1 at all
 *   wvSplitK          vLLM's for m <= 4, persistent over n
 *   gemv_llmm1        tandem's: the geometry of LLMM1, tail rows guarded, sums up to 32 waves
 *   gemv_strided      tandem's: a loop over k, so that k does not bound the threads
 *   linear            the framework's or the back end's own: the baseline, any shape
 */
#ifndef TANDEM_PRESCREEN_KERNELS_H
#define TANDEM_PRESCREEN_KERNELS_H

#include "base/dtype.h"
#include "prescreen/target.h"

struct linear_shape {
	int64_t n, k; /* out, in: of one rank */
	int m;        /* token rows */
	enum dtype dtype;
	bool bias;
};

struct kernel_mode {
	int rows;    /* outputs of a block; 0: the family has no modes */
	int threads; /* of a block, where the mode fixes them; else 0 */
};

#define KERNEL_MAX_MODES 4
struct kernel_family {
	enum kernel_id id;
	int modes; /* entries of mode; at least 1 */
	struct kernel_mode mode[KERNEL_MAX_MODES];
	int max_m;            /* 0: any */
	int reduction_waves;  /* that its last stage of the sum holds; 0: any */
	bool tail_guarded;    /* n need not be a multiple of mode.rows */
	bool half_only;       /* f16 and bf16 only */
};

/* X(enumerator, name): in the order in which they are tried. */
#define RULE_LIST(X)   \
	X(BUILD, "build")  \
	X(DTYPE, "dtype")  \
	X(MODE, "mode")    \
	X(ROWS, "rows")    \
	X(K8, "k8")        \
	X(ALIGNMENT, "alignment") \
	X(THREADS, "threads")     \
	X(WAVE, "wave")           \
	X(REDUCTION, "reduction") \
	X(SHARED, "shared memory") \
	X(TAIL, "grid tail")       \
	X(UNITS, "compute units")  \
	X(GUARD, "guard order")

enum verdict_kind { VERDICT_LEGAL, VERDICT_ILLEGAL, VERDICT_UNKNOWN };

#define VERDICT_DETAIL_BYTES 128
struct verdict {
	enum verdict_kind kind;
	const char *rule; /* that decided; "all" when legal. Static */
	char detail[VERDICT_DETAIL_BYTES]; /* with the numbers: "1088 > 1024" */
};

const char *verdict_name(enum verdict_kind kind);
/* For a rule: puts its numbers into `detail` (VERDICT_DETAIL_BYTES) and returns `kind`. */
PRINTF_LIKE(3, 4) enum verdict_kind verdict_say(char *detail, enum verdict_kind kind, const char *format, ...);
/* Over the rules in their order: the first that says illegal decides, else the first that does not know. True: no further rule need be asked. *first begins zeroed. */
bool verdict_decides(struct verdict *first, const struct verdict *next);
/* Never NULL for an id below KERNEL_COUNT. Static. */
const struct kernel_family *kernel_family(enum kernel_id id);
/* "4", "4 rows, 640 threads", "" for a family without modes. Returns text. */
const char *kernel_mode_name(const struct kernel_mode *mode, char text[32]);

/* Any mode may be asked for: one that the family does not have is illegal by the rule "mode". */
void kernel_judge(struct verdict *out, const struct target *target, enum kernel_id id, const struct kernel_mode *mode,
                  const struct linear_shape *shape);

/* The branch that vLLM's dispatcher takes for a shape, in the order of its guards: KERNEL_WVSPLITK, KERNEL_LLMM1 (always with 4 rows a
 * block) or KERNEL_LINEAR; `why` (VERDICT_DETAIL_BYTES) is the guard that decided. KERNEL_COUNT: not known, the device's place in its first
 * guard is not. A branch that is reached may still be a stub: judge it. gfx950, which has a branch of its own before these, is not covered. */
enum kernel_id kernel_dispatch(const struct target *target, const struct linear_shape *shape, char why[VERDICT_DETAIL_BYTES]);

#endif
