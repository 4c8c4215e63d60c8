/* trial.h: one problem on one device: its weights, its input, its output with guards, and the op that asks for it, so that any variant can be run on the
 * same data and what it wrote be looked at.
 *
 * Values. Weights are those that --random-weights would make, of standard deviation 1 / sqrt(K); inputs are multiples of 1/128 in [-1, 1), exact in every
 * type. So an output is a sum of products that are exact in f32, and what differs between kernels is the order of the sum and the last rounding.
 *
 * Poison. Before a checked run every byte of the output and of the guards around it is 0xff, which is a NaN in every type; a value that is still so was not
 * written. Where the op adds to its output (ACCUMULATE) it holds 2^-10 instead, and what is still exactly that was not written.
 *
 * Reference. Sums in double of the very same inputs, over all values where these are at most TRIAL_REFERENCE_PRODUCTS products, else over some columns (first
 * and last among them) of some rows (first and last). Of attention_in that is queries and gates, and keys and values where they lie in the cache. The whole
 * output is compared with that of the baseline in any case, on the device (device_ops.compare).
 *
 * Owner: one thread, that of the device. Everything here may allocate: nothing of it runs in a serving process.
 */
#ifndef TANDEM_PRESCREEN_TRIAL_H
#define TANDEM_PRESCREEN_TRIAL_H

#include "device/device.h"
#include "model/config.h"
#include "model/source.h"
#include "prescreen/results.h"

#define TRIAL_REFERENCE_PRODUCTS (INT64_C(1) << 25)
#define TRIAL_SAMPLES 4096 /* referenced values at most, where not all are */
#define TRIAL_MAX_COPIES 1024
#define TRIAL_GUARD_BYTES 4096
#define TRIAL_GDN_HISTORY 3 /* rows of a sequence before those of a problem with state */

/* What all trials of a run share. */
struct bench {
	const struct device_ops *ops;
	struct device *device;
	struct stream *stream;
	const struct model_config *config;
	size_t rotate_bytes;
	int timeout_ms;
};

/* Copies of one weight: equal values, different memory. */
struct trial_weights {
	struct bench *bench;
	struct source *source;
	struct source_tensor tensor;
	struct source_scratch scratch;
	void *memory; /* of all copies */
	struct linear_weight copy[TRIAL_MAX_COPIES];
	int copies;
	int n, k;
	enum dtype dtype;
};
enum status trial_weights_open(struct trial_weights *out, struct bench *bench, enum dtype dtype, int n, int k, struct error *err) NODISCARD;
void trial_weights_close(struct trial_weights *weights);

/* The experts of one layer, one set: rows choose few of them, so going around among inputs goes around in memory. Router: expert e reads input e alone, so
 * that a trial's inputs say which are chosen, with room to the others. */
struct trial_experts {
	struct bench *bench;
	struct moe_key key; /* m: 0 */
	struct source *source;
	struct source_tensor gate_up, down, shared_gate_up, shared_down; /* of all experts, one behind the other */
	struct source_scratch scratch;
	struct moe_weights op;
	void *memory;
};
enum status trial_experts_open(struct trial_experts *out, struct bench *bench, const struct moe_key *key, struct error *err) NODISCARD;
void trial_experts_close(struct trial_experts *experts);

/* A part of the output: rows `stride` elements apart, columns [0, cols) and [more_at, more_at + more) of `dtype`. */
struct trial_region {
	char *device;        /* guard, output, guard */
	char *baseline;      /* device memory: the baseline's output; NULL before trial_keep_baseline */
	size_t bytes;        /* of the output */
	enum dtype dtype;
	int64_t rows, cols, stride, more_at, more;
	bool sparse;         /* only some of it is written (a cache): what the baseline leaves alone must stay so */
};
#define TRIAL_REGIONS 2
#define TRIAL_ALLOCATIONS 24

/* Values that have a reference: [rows][cols]. */
struct trial_samples {
	int64_t *row, *col; /* of region 0: where they are; of the cache: which row and which column of k, then v */
	int64_t *place;     /* cache: elements from the region's start; NULL: row * stride + col */
	int rows, cols;
	double *reference;
};

struct trial {
	struct bench *bench;
	struct trial_weights *weights; /* LINEAR */
	struct trial_experts *experts; /* MOE */
	const struct result_problem *problem;
	enum dtype activation;
	struct sum_split split;
	float *x;            /* [m][k] as the device sees it */
	float *norm;         /* [k] */
	float *q_norm, *k_norm; /* [D] or NULL */
	void *allocation[TRIAL_ALLOCATIONS];
	int allocations;
	void *device_x, *device_h, *device_norm, *device_gate_up, *device_q_norm, *device_k_norm, *device_scratch;
	int inputs;          /* MOE: of them at device_x, one behind the other */
	struct rms_norm_args between; /* x.data NULL: nothing stands between two calls */
	struct step_rows rows;
	struct kv_cache cache;
	struct gdn_args gdn;         /* GDN: as it is issued, but for what points into this struct */
	struct gdn_cache gdn_cache;
	struct trial_gdn *gdn_input; /* GDN: what its reference reads */
	float *cos_sin;      /* [m][rotary] */
	struct trial_region region[TRIAL_REGIONS];
	int regions;
	void *poison;        /* device memory: the regions with their guards, as nobody has written them */
	void *pristine, *spoilt; /* device memory: inputs that the op overwrites, and where they are to be before a run; NULL: there are none */
	size_t spoilt_bytes;
	size_t region_bytes; /* of all regions with their guards */
	struct trial_samples samples, cached; /* of region 0; of region 1, where that is a cache */
};

/* `weights` are of the problem's n, k and dtype, `experts` of its key, and stay open longer; the one that the problem does not want is NULL. */
enum status trial_open(struct trial *out, struct bench *bench, struct trial_weights *weights, struct trial_experts *experts, const struct result_problem *problem,
                       struct error *err) NODISCARD;
/* Without poison and reference: to be issued and timed, as one op of a chain. */
enum status trial_open_unchecked(struct trial *out, struct bench *bench, struct trial_weights *weights, struct trial_experts *experts,
                                 const struct result_problem *problem, struct error *err) NODISCARD;
void trial_close(struct trial *trial);

/* Puts the op on the stream, with copy number `copy` modulo the copies of weights or inputs. */
enum status trial_issue(struct trial *trial, int copy, struct error *err) NODISCARD;
/* How many different ones there are. */
int trial_copies(const struct trial *trial);
/* Puts a small kernel on the stream, as stands between two linears of a decode step where launches overlap: a candidate that asks for its weights before its
 * predecessor has ended shows it only behind one that leaves it room. Nothing where there is no such thing. */
enum status trial_issue_between(struct trial *trial, struct error *err) NODISCARD;
/* Poisons the output, and puts back inputs that the op overwrites. */
enum status trial_poison(struct trial *trial, struct error *err) NODISCARD;
enum status trial_sync(struct trial *trial, struct error *err) NODISCARD;
/* After the baseline's run: its output is what the others are compared with. */
enum status trial_keep_baseline(struct trial *trial, struct error *err) NODISCARD;
/* After a run: values, unwritten, outside, referenced, error, bound, hash, same_bits of what it left. repeats and repeatable stay. */
enum status trial_check(struct trial *trial, struct result_check *out, struct error *err) NODISCARD;
/* Of the values of the output (guards not). */
enum status trial_hash(struct trial *trial, uint64_t *hash, struct error *err) NODISCARD;

#endif
