/* target.h: a device as a description, so that kernels can be judged for one that is not there (design: static checks come before timing).
 *
 * A number that nobody has verified is TARGET_UNKNOWN. A check that needs it then answers "unknown", never "legal"; so does a floor that is too
 * low: `shared_floor` is what is known to be there although the size is not. Plain data, immutable once made; any thread. Sources of the numbers
 * stand beside them in target.c.
 */
#ifndef TANDEM_PRESCREEN_TARGET_H
#define TANDEM_PRESCREEN_TARGET_H

#include <stdint.h>

#include "base/status.h"

#define TARGET_UNKNOWN (-1)
#define TARGET_MAX_NAME 48

/* X(enumerator, name): families of kernels that a build for a device may have. */
#define KERNEL_LIST(X)                 \
	X(LLMM1, "LLMM1")                  \
	X(LLMM1_DISPATCHED, "LLMM1 dispatched") \
	X(WVSPLITK, "wvSplitK")            \
	X(GEMV_LLMM1, "gemv_llmm1")        \
	X(GEMV_STRIDED, "gemv_strided")    \
	X(LINEAR, "linear")

enum kernel_id {
#define X(code, name) KERNEL_##code,
	KERNEL_LIST(X)
#undef X
	KERNEL_COUNT
};

/* X(enumerator, name): tandem's attention kernels, in the order of the dispatch (attention_rules.h). */
#define ATTENTION_LIST(X)              \
	X(DECODE_TENSOR, "decode_tensor")  \
	X(DECODE, "decode")                \
	X(PREFILL_WIDE, "prefill_wide")    \
	X(PREFILL_TENSOR, "prefill_tensor") \
	X(TILE, "tile")

enum attention_id {
#define X(code, name) ATTENTION_##code,
	ATTENTION_LIST(X)
#undef X
	ATTENTION_COUNT
};

/* X(name): the devices that are described, each by a row in target.c. */
#define TARGET_LIST(X) X(gfx936) X(gfx90a) X(gfx942) X(h200) X(a100) X(cpu)

enum target_id {
#define X(name) TARGET_##name,
	TARGET_LIST(X)
#undef X
};

enum known { KNOWN_NO, KNOWN_YES, KNOWN_NOT }; /* KNOWN_NOT: not known */

struct target {
	char name[TARGET_MAX_NAME];
	int wave;             /* lanes that run together; 1 where there are none */
	int max_threads;      /* of a block; or TARGET_UNKNOWN */
	int64_t shared_bytes; /* of a block; or TARGET_UNKNOWN */
	int64_t shared_floor; /* at least so much is there; counts while shared_bytes is unknown; 0: nothing is known */
	int compute_units;    /* or TARGET_UNKNOWN */
	int align_bytes;      /* that the vector loads of its kernels need of a row of weights */
	enum known skinny;    /* does the dispatcher of LLMM1 and wvSplitK try them on this device at all */
	unsigned kernels;     /* bit 1 << enum kernel_id: what its build has */
	unsigned attention;   /* bit 1 << enum attention_id: likewise */
	int sm;               /* what its tensor cores can do, as the vendor numbers it ("sm_90": 90); 0: it has none of these; or TARGET_UNKNOWN */
};

const char *kernel_name(enum kernel_id id);

/* NULL if none has that name. Static storage. */
const struct target *target_find(const char *name);
/* "gfx936, gfx90a, …". Static storage. */
const char *target_names(void);

/* A JSON object of the same fields (docs/PRESCREEN.md). BAD_INPUT names the file, the field, what was expected and what was found; a key
 * that is not a field is refused, so that a misspelt limit does not silently count as unknown. */
enum status target_parse(struct target *out, const char *json, size_t n, const char *file, struct error *err) NODISCARD;
/* What an option says: a name, or the path of a file (with a '/' or a '.'). USAGE lists the names. */
enum status target_open(struct target *out, const char *name_or_file, struct error *err) NODISCARD;

#endif
