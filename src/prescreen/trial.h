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
 * and last among them) of some rows (first and last). The whole output is compared with that of the baseline in any case.
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
	struct linear_weight copy[TRIAL_MAX_COPIES];
	int copies;
	int n, k;
	enum dtype dtype;
};
enum status trial_weights_open(struct trial_weights *out, struct bench *bench, enum dtype dtype, int n, int k, struct error *err) NODISCARD;
void trial_weights_close(struct trial_weights *weights);

/* A part of the output: [rows][cols] of `dtype`, rows `stride` elements apart, at `offset` bytes of memory of `bytes`. */
struct trial_region {
	char *device;        /* guard, output, guard */
	size_t bytes;        /* of the output */
	enum dtype dtype;
	int64_t rows, cols, stride;
	bool sparse;         /* only some of it is written (a cache): what the baseline leaves alone must stay so */
};
#define TRIAL_REGIONS 2
#define TRIAL_ALLOCATIONS 16

struct trial {
	struct bench *bench;
	struct trial_weights *weights; /* LINEAR */
	const struct result_problem *problem;
	enum dtype activation;
	struct sum_split split;
	float *x;            /* [m][k] as the device sees it */
	float *norm;         /* [k] */
	void *allocation[TRIAL_ALLOCATIONS];
	int allocations;
	void *device_x, *device_h, *device_norm, *device_gate_up;
	struct rms_norm_args between; /* x.data NULL: nothing stands between two calls */
	struct step_rows rows;
	struct kv_cache cache;
	float *cos_sin;      /* [m][rotary] */
	struct trial_region region[TRIAL_REGIONS];
	int regions;
	void *poison;        /* device memory, as long as the largest region with its guards */
	char *host;          /* the regions with their guards, as the device left them */
	char *baseline;      /* the same of the baseline; valid after trial_keep_baseline */
	size_t host_bytes;
	int64_t *sample_row, *sample_col; /* of region 0 */
	int sample_rows, sample_cols;
	double *reference;   /* [sample_rows][sample_cols] */
};

/* `weights` are of the problem's n, k and dtype and stay open longer. */
enum status trial_open(struct trial *out, struct bench *bench, struct trial_weights *weights, const struct result_problem *problem, struct error *err) NODISCARD;
/* Without poison and reference: to be issued and timed, as one op of a chain. */
enum status trial_open_unchecked(struct trial *out, struct bench *bench, struct trial_weights *weights, const struct result_problem *problem,
                                 struct error *err) NODISCARD;
void trial_close(struct trial *trial);

/* Puts the op on the stream, with copy number `copy` modulo the copies. */
enum status trial_issue(struct trial *trial, int copy, struct error *err) NODISCARD;
/* Puts a small kernel on the stream, as stands between two linears of a decode step where launches overlap: a candidate that asks for its weights before its
 * predecessor has ended shows it only behind one that leaves it room. Nothing where there is no such thing. */
enum status trial_issue_between(struct trial *trial, struct error *err) NODISCARD;
/* Poisons the output. */
enum status trial_poison(struct trial *trial, struct error *err) NODISCARD;
enum status trial_sync(struct trial *trial, struct error *err) NODISCARD;
/* After a run: brings the output to `host`. */
enum status trial_fetch(struct trial *trial, struct error *err) NODISCARD;
/* What was fetched is what the others are compared with. */
enum status trial_keep_baseline(struct trial *trial, struct error *err) NODISCARD;
/* Fills values, unwritten, outside, referenced, error, bound, hash, same_bits of what was fetched. */
void trial_check(const struct trial *trial, struct result_check *out);
/* FNV-1a over the values of the output (guards not). */
uint64_t trial_hash(const struct trial *trial);

/* In trial_reference.c: chooses samples and computes them. */
enum status trial_make_reference(struct trial *trial, struct error *err) NODISCARD;

#endif
