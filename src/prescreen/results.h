/* results.h: what a prescreen found: every problem of the model's ranks, every candidate for it, and the evidence; and its file, prescreen.json
 * (format "tandem-prescreen", docs/PRESCREEN.md), written and read back: by --resume, by reports, by the whitelist, by `prescreen diff`.
 *
 * Plain data, owned by whoever zeroed it or called results_parse or results_load, freed by results_fini. Texts are copies. A file is untrusted input: results_parse
 * refuses what it does not know with one line that names file, field, what was expected and what was found. Any thread, one at a time.
 */
#ifndef TANDEM_PRESCREEN_RESULTS_H
#define TANDEM_PRESCREEN_RESULTS_H

#include <jansson.h>

#include "base/buf.h"
#include "device/variant.h"

#define RESULTS_FORMAT "tandem-prescreen"
#define RESULTS_VERSION 1
#define RESULTS_MAX_FILE ((size_t)64 << 20)
#define RESULTS_MAX_DEGREES 16
#define RESULTS_TEXT 160

/* X(enumerator, name) */
#define PROBLEM_OP_LIST(X) \
	X(LINEAR, "linear")    \
	X(ATTENTION, "attention") \
	X(MOE, "moe")             \
	X(GDN, "gdn")

/* What became of a candidate. BASELINE: what the dispatch takes by itself, which the others are compared with. X(enumerator, name) */
#define OUTCOME_LIST(X)      \
	X(OPEN, "open")          \
	X(BASELINE, "baseline")  \
	X(KEEP, "keep")          \
	X(BOUNDARY, "boundary")  \
	X(REJECT, "reject")

/* Why a candidate is rejected, in the order in which it is tried; NONE for every other outcome. X(enumerator, name, explanation) */
#define REASON_LIST(X)                                                                                             \
	X(NONE, "", "")                                                                                                \
	X(STATIC, "static", "a static rule does not hold; it was not launched")                                        \
	X(REFUSED, "refused", "the back end refused to record or to launch it")                                        \
	X(NOT_TAKEN, "not taken", "the dispatch resolved the request to something else")                               \
	X(UNCHANGED, "unchanged", "the launches are those of the baseline: there is nothing to compare")               \
	X(OUTSIDE, "outside", "memory outside of the output was written")                                              \
	X(UNWRITTEN, "unwritten", "a part of the output was never written")                                            \
	X(UNREPEATABLE, "unrepeatable", "repeated runs on the same input gave different bits")                         \
	X(WRONG, "wrong", "the result is further from the reference than its type and K allow")                        \
	X(SLOW, "slow", "correct, and no faster than the baseline")

enum problem_op {
#define X(code, name) PROBLEM_##code,
	PROBLEM_OP_LIST(X)
#undef X
		PROBLEM_OP_COUNT
};
enum outcome {
#define X(code, name) OUTCOME_##code,
	OUTCOME_LIST(X)
#undef X
		OUTCOME_COUNT
};
enum reason {
#define X(code, name, text) REASON_##code,
	REASON_LIST(X)
#undef X
		REASON_COUNT
};

/* Attention of one rank: `rows` rows, one of each of `rows` sequences (decode) or all of one sequence (prefill), over `context` keys a sequence. */
struct attention_problem {
	enum dtype dtype; /* of the cache */
	int q_heads, kv_heads, head_dim;
	int rows, context, block_tokens;
	bool prefill;
	double softcap; /* of scores (device/ops.h); 0: none */
};

/* The gated delta net of one rank: `rows` rows, one of each of `rows` sequences (decode) or all of one sequence (prefill). */
struct gdn_problem {
	enum dtype dtype; /* of activations and the convolution's inputs */
	int k_heads, v_heads, k_dim, v_dim, conv_kernel;
	int rows;
	bool prefill;
};

/* Whose problem it is: equal problems of several degrees and families are one. */
#define RESULT_FAMILY_BYTES 32
struct result_place {
	int world_size;
	char family[RESULT_FAMILY_BYTES]; /* "mlp down"; "attention" */
	int count;                        /* of them in the model */
};

struct result_error {
	double l2;  /* |y - ref| / |ref| */
	double max; /* largest |y - ref| */
};

/* Against what the output was compared. */
struct result_check {
	struct result_error error, bound;    /* of all compared values */
	int64_t values;                      /* of the output */
	int64_t unwritten;                   /* still poisoned after a run */
	int64_t outside;                     /* guard bytes that changed */
	int64_t referenced;                  /* values compared with the double-precision reference; the others with the baseline's */
	int repeats;                         /* runs on the same input whose bits were compared */
	bool repeatable;
	bool same_bits;                      /* as the baseline's */
	char hash[20];                       /* of the output's bits; "" where it never ran */
};

/* Medians of interleaved pairs. */
struct result_timing {
	int pairs;                /* 0: not timed */
	double baseline_us, us;   /* of one call */
	double speedup;           /* median over pairs of baseline / candidate */
	double low, high;         /* 95 % interval of that median */
	bool steady;              /* false: the budget ended before the interval was narrow enough */
};

struct result_launches {
	struct kernel_launch *item; /* owned */
	int count;
	bool known; /* the back end can tell: from a recorded graph, else (count 0, known false) only linear_ran's name is there */
};

/* A kept candidate of a linear of decode, preferred in the chain of a layer's ops (chain.h). `outcome`: OPEN: it was not tried; KEEP: confirmed. */
struct result_confirm {
	enum outcome outcome;
	int world_size;            /* of several degrees, that whose timing this is: the one where it gained least */
	struct result_timing timing; /* us of the whole chain: defaults, and with this candidate */
	double gain_us;            /* of one of its calls there; negative: slower */
	char detail[RESULTS_TEXT]; /* why it is not confirmed, or "" */
};

/* The chain of one degree and number of rows: all confirmed candidates together. */
struct result_chain {
	int world_size, rows;
	int layers, context;  /* of the chain; keys of a sequence */
	int entries;          /* confirmed, after what was dropped; 0: the defaults stay */
	struct result_timing timing; /* of these together; pairs 0: there was nothing to time */
};

/* What the results say of chains. UNKNOWN: a file from before there were any; OFF: not wanted; ON: those in the list are done. */
enum chain_mode { CHAIN_UNKNOWN, CHAIN_OFF, CHAIN_ON };

struct result_candidate {
	struct variant requested, resolved; /* resolved.kernel "": it never ran */
	struct result_launches observed;
	bool changed;                       /* observed (or, where not known, resolved) differs from the baseline's; false for the baseline */
	char rule[24];                      /* static verdict: the rule that decided, "all" where every one holds; "" where none is for this kernel */
	char verdict[12];                   /* "legal", "illegal", "unknown", or "" */
	char verdict_detail[RESULTS_TEXT];
	enum outcome outcome;
	enum reason reason;
	char detail[RESULTS_TEXT];          /* with the numbers; "" where there is nothing to say */
	struct result_check check;
	struct result_timing timing;
	struct result_confirm confirm;
};

struct result_problem {
	enum problem_op op;
	char phase[12];                     /* "decode", "prefill" */
	struct linear_key linear;           /* LINEAR */
	struct attention_problem attention; /* ATTENTION */
	struct moe_key moe;                 /* MOE */
	struct gdn_problem gdn;             /* GDN */
	struct result_place *place;         /* [places] owned */
	int places;
	bool done;                          /* false: candidates are missing or open */
	char note[RESULTS_TEXT];            /* why nothing could be measured, or "" */
	struct result_candidate *candidate; /* [candidates] owned; [0] is the baseline, where there is one */
	int candidates;
};

/* A degree and its head layout. */
struct result_degree {
	int world_size;
	bool legal;
	char why_not[RESULTS_TEXT];              /* of an illegal one */
	int q_heads, kv_heads, kv_replicated, head_dim; /* local */
	int gdn_k_heads, gdn_v_heads, gdn_k_dim, gdn_v_dim; /* local; 0: no such layers */
};

struct results {
	char program[32];            /* version that wrote it */
	char model[64], model_type[32];
	enum dtype dtype;            /* of the weights */
	char device[16], flavour[32], versions[RESULTS_TEXT]; /* of struct device_ops */
	int threads;                 /* host threads of the rank that was measured */
	double keep, reject;         /* thresholds: from `keep` on a candidate is kept, below `reject` it is slow, boundary between */
	bool any_order;              /* CPU: candidates that sum in another order were tried in chains too */
	int64_t rotate_bytes;        /* weights that the timed loop goes through; 0: one copy, warm */
	double seconds;              /* that measuring took, all runs of a resumed one together */
	bool complete;
	struct result_degree degree[RESULTS_MAX_DEGREES];
	int degrees;
	enum chain_mode chain_mode;
	struct result_chain *chain;  /* [chains] owned */
	int chains;
	struct result_problem *problem; /* [problems] owned */
	int problems;
};

const char *problem_op_name(enum problem_op op);
const char *outcome_name(enum outcome outcome);
const char *reason_name(enum reason reason);
const char *reason_text(enum reason reason);

void results_fini(struct results *results);
/* Appends a zeroed problem, candidate, place or launch; the pointer is good until the next append to the same list. NULL: NO_MEMORY. */
struct result_problem *results_add_problem(struct results *results, struct error *err);
struct result_candidate *result_add_candidate(struct result_problem *problem, struct error *err);
enum status result_add_place(struct result_problem *problem, int world_size, const char *family, int count, struct error *err) NODISCARD;
enum status result_set_launches(struct result_launches *out, const struct kernel_launch *item, int count, struct error *err) NODISCARD;
enum status results_add_chain(struct results *results, const struct result_chain *chain, struct error *err) NODISCARD;
/* Problems that are done. */
int results_done(const struct results *results);
/* NULL: that chain was not measured to its end. */
const struct result_chain *results_find_chain(const struct results *results, int world_size, int rows);
/* A linear of decode: one that a chain decides about. */
bool result_problem_chained(const struct result_problem *problem);
/* A candidate that was confirmed, with the others, in the chain of every degree of its problem. */
bool result_confirmed(const struct results *results, const struct result_problem *problem, const struct result_candidate *candidate);
void result_candidate_fini(struct result_candidate *candidate);

/* Token rows. */
int result_problem_rows(const struct result_problem *problem);
/* The op that asks: "mlp_in", "attention", "moe". Static. */
const char *result_problem_use(const struct result_problem *problem);
/* "5120 x 8704", "12 + 2 heads of 256", "8 of 128 experts, 768 x 2048", "16 + 48 heads, state 128 x 128" */
const char *result_problem_shape(const struct result_problem *problem, char text[RESULTS_TEXT]);
/* NULL if there is none. */
struct result_problem *results_find(const struct results *results, const struct result_problem *like);
/* "decode M=1 mlp_in [34816 x 5120]", "prefill attention 12+2 of 256, 512 rows over 512 keys" */
const char *result_problem_text(const struct result_problem *problem, char text[RESULTS_TEXT]);
bool result_launches_equal(const struct result_launches *a, const struct result_launches *b);

/* Whether two runs have not the same thresholds; if so, those of each as "1.05 and 1.01", with as many digits as tell them apart. */
bool results_thresholds_differ(const struct results *a, const struct results *b, char text_a[RESULTS_TEXT], char text_b[RESULTS_TEXT]);

/* A new reference; NULL: no memory. */
json_t *results_json(const struct results *results);
/* Appends them as a file has them, with all digits: a report made anew, or a threshold, is the same to the last bit. layout: jansson's JSON_INDENT(1) or JSON_COMPACT. */
enum status results_text(const struct results *results, size_t layout, struct buf *out, struct error *err) NODISCARD;
enum status results_parse(struct results *out, const char *text, size_t n, const char *file, struct error *err) NODISCARD;
enum status results_load(struct results *out, const char *path, struct error *err) NODISCARD;
/* To `path` by way of a file beside it, so that a reader or an interrupt sees the old one or the new one. */
enum status results_save(const struct results *results, const char *path, struct error *err) NODISCARD;

#endif
