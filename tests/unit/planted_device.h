/* planted_device.h: the CPU back end behind a table that records graphs and offers ways to compute a linear that are each wrong in one way, so that the
 * prescreen can be seen to reject them for the right reason. What is right in them is computed by the CPU back end. */
#ifndef TANDEM_TESTS_PLANTED_DEVICE_H
#define TANDEM_TESTS_PLANTED_DEVICE_H

#include "device/device.h"

/* X(enumerator, kernel, mode) */
#define PLANTED_LIST(X)                                         \
	X(DEFAULT, "default", "")                                   \
	X(FAST, "fast", "")            /* right, a quarter of the time */ \
	X(LONE, "lone", "")            /* right, still faster behind itself, slower than the default behind anything else */ \
	X(EVEN, "even", "")            /* right, no faster */         \
	X(LLMM1, "gemv_llmm1", "4")    /* the static rules know it */ \
	X(ABSENT, "absent", "8")       /* the request is refused */   \
	X(FALLS, "rows", "1")          /* falls to the default branch: rows 4 */ \
	X(SAME, "override", "42")      /* says that it is taken, and launches what the default does */ \
	X(RECORD, "illegal", "record") /* cannot be recorded */       \
	X(LAUNCH, "illegal", "launch") /* fails at launch */          \
	X(PART, "part", "")            /* fast, leaves the last outputs unwritten */ \
	X(SPILL, "spill", "")          /* writes one value behind its output */ \
	X(RACY, "racy", "")            /* other bits each time, all of them close enough */ \
	X(WRONG, "wrong", "")          /* fast, and two percent too large */ \
	X(NAN, "nan", "")              /* fast, and one value is not a number */

enum planted {
#define X(code, kernel, mode) PLANTED_##code,
	PLANTED_LIST(X)
#undef X
		PLANTED_COUNT
};

struct planted_state {
	int launched[PLANTED_COUNT]; /* calls that ran */
	bool dies;                   /* a failed launch takes the device along: everything fails from then on */
	bool no_kernels;             /* graph_kernels is left out: what ran is known by name only */
	bool jealous;                /* FAST is slow wherever it is preferred for more than one problem */
	unsigned slow_us;            /* a call takes so much longer */
	bool eager;                  /* nothing is recorded, as on a CPU */
};
extern struct planted_state planted;

/* Sets `planted` anew. The table is valid until the next call. */
const struct device_ops *planted_ops(struct planted_state state);

#endif
