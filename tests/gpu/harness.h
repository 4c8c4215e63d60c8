/* harness.h: checker and benchmark of the GPU's ops, one binary (build/VENDOR/tests/gpu/check_gpu); on the emulated device too.
 *
 * A case makes its inputs from a printed seed, puts them into device memory between guard bands, runs the op into poisoned memory and
 * compares all of the result with doubles under a written bound. What lies between the rows of a strided tensor must stay as it was, and
 * so must the guard bands, which are looked at when the case ends. Then the case's memory is gone.
 *
 * Each op of OP_LIST , OP_FAMILY_LIST and OP_FUSED_LIST has a `gpu_check_OP`, which must compare something, or the run fails; gpu_bench_OP is optional.
 */
#ifndef TANDEM_TESTS_GPU_HARNESS_H
#define TANDEM_TESTS_GPU_HARNESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/fill.h"
#include "device/device.h"

struct gpu_piece;

struct gpu_check {
	const struct device_ops *ops; /* device under test */
	struct device *device;
	struct stream *stream;
	const struct device_ops *reference_ops; /* the CPU's plain C with one thread: its memory is host memory, its ops are done at return */
	struct device *reference;
	struct stream *reference_stream;
	uint64_t seed;
	bool quick;      /* small shapes only: the emulated device runs a lane at a time */
	const char *op;  /* under check */
	char shape[200]; /* of the current case */
	enum dtype dtype;
	enum fill fill;
	struct error err; /* of the last call: GPU_RUN fills and gpu_ok reads it */
	bool case_failed;
	int passed, failed; /* cases */
	int skipped;        /* what this machine cannot check (gpu_skip) */
	long compared;      /* elements of the current op */
	struct gpu_piece *pieces; /* memory of the current case */
	double read_gbps;         /* --bench: measured */
	const struct variant *variant; /* that the stream was told to take (gpu_each_variant), or NULL */
	int refused;                   /* of the variants of the last key: those that said that they cannot */
};

/* --- cases */
/* Begins one: `dtype` is that of the activations. */
void gpu_case(struct gpu_check *c, enum dtype dtype, enum fill fill, const char *shape, ...) __attribute__((format(printf, 4, 5)));
/* Waits for the device, checks the guard bands, frees the case's memory, counts it. */
void gpu_case_end(struct gpu_check *c);
/* Not between the two: prints and counts what is left out, and why. */
void gpu_skip(struct gpu_check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void gpu_fail(struct gpu_check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Fails the case if `st` is not OK; a device fault ends the run. */
void gpu_ok(struct gpu_check *c, enum status st);
/* GPU_RUN(c, rms_norm, {.x = x, ...}) */
#define GPU_RUN(c, op, ...) gpu_ok((c), OP((c)->stream, op, &((struct op##_args)__VA_ARGS__), &(c)->err))
/* The call must be refused with this code, and with a text. */
#define GPU_REFUSED(c, op, code, ...) gpu_refused((c), STATUS_##code, OP((c)->stream, op, &((struct op##_args)__VA_ARGS__), &(c)->err))
void gpu_refused(struct gpu_check *c, enum status want, enum status got);
void gpu_sync_stream(struct gpu_check *c); /* stream_sync with a deadline */

/* --- variants of a linear: `run` makes a case for each of them, the stream told to take it for this key */
void gpu_each_variant(struct gpu_check *c, const struct linear_key *key, void (*run)(struct gpu_check *c, const void *arg), const void *arg);
/* Around the one op of such a case, `st` what it returned. Where a variant is asked for, the op goes through a graph, whose kernels must be that variant's;
 * linear_ran must name it; and it may say that it cannot (UNSUPPORTED, naming itself): false then. */
void gpu_variant_begin(struct gpu_check *c);
bool gpu_variant_end(struct gpu_check *c, enum status st);

/* --- memory of the case */
void *gpu_host(struct gpu_check *c, size_t bytes);                                      /* zeroed host memory */
void *gpu_filled(struct gpu_check *c, enum dtype dtype, size_t n, uint64_t stream);     /* host, filled as the case says */
void *gpu_put(struct gpu_check *c, const void *host, size_t bytes);                     /* device memory that holds this */
void *gpu_room(struct gpu_check *c, size_t bytes);                                      /* device memory, 0xff: NaN in every float type */
void gpu_get(struct gpu_check *c, void *host, const void *device, size_t bytes);        /* waits */
/* [rows, cols] with rows `stride` elements apart. `host`, if not NULL: the filled host copy, of the same stride. */
struct tensor gpu_input(struct gpu_check *c, enum dtype dtype, enum tensor_dist dist, int rows, int cols, int stride, uint64_t stream, void **host);
struct tensor gpu_output(struct gpu_check *c, enum dtype dtype, enum tensor_dist dist, int rows, int cols, int stride);
/* A weight made through linear_put (in two cuts); `rows`: the host rows [n][k]. */
struct linear_weight gpu_weight(struct gpu_check *c, enum dtype dtype, int n, int k, uint64_t stream, void **rows);
/* Device memory of random bits of `dtype` within +- scale * sqrt(3), made on the device: for measuring. */
void *gpu_random_room(struct gpu_check *c, enum dtype dtype, size_t n, float scale);

/* --- results */
double gpu_unit(enum dtype dtype); /* half an ulp of 1: the relative error of one rounding */
double gpu_tiny(enum dtype dtype); /* the smallest positive number: more than the error of rounding a subnormal one */
/* Every element of `t` against want[rows][cols]: |got - want| <= rel * scale + abs, where scale is |want|, or scale[rows][cols] if given. NaN is
 * wanted where want is NaN, infinity where it is infinite or beyond the type's largest number. */
void gpu_compare(struct gpu_check *c, const char *what, const struct tensor *t, const double *want, const double *scale, double rel, double abs);
/* Bit by bit, but that any NaN equals any NaN. want: [rows][cols] dense, of t's type. */
void gpu_compare_exact(struct gpu_check *c, const char *what, const struct tensor *t, const void *want);

/* --- measuring */
/* Records `launches` calls fn(c, context, 0 .. launches-1) as one graph; median of replays, seconds a call. Let `i` choose among buffers that
 * together are larger than the cache. */
double gpu_bench(struct gpu_check *c, void (*fn)(struct gpu_check *c, void *context, int i), void *context, int launches);
/* Prints a line: time, GB/s against the measured read rate where bytes > 0, TFLOP/s where flops > 0. */
void gpu_bench_report(struct gpu_check *c, double seconds, double bytes, double flops);
/* Buffers to rotate among so that `bytes` each are never in the cache. */
int gpu_bench_rotation(const struct gpu_check *c, size_t bytes);

/* Weak: the address of what nobody wrote is NULL. */
#define X(op)                                                        \
	void gpu_check_##op(struct gpu_check *c) __attribute__((weak));  \
	void gpu_bench_##op(struct gpu_check *c) __attribute__((weak));
OP_LIST(X)
OP_FUSED_LIST(X)
OP_FAMILY_LIST(X)
#undef X
void gpu_check_device(struct gpu_check *c);
void gpu_check_comm(struct gpu_check *c); /* opens devices of its own */
void gpu_check_xccl(struct gpu_check *c); /* too */
void gpu_check_prescreen(struct gpu_check *c);
void gpu_check_attention_cudnn(struct gpu_check *c); /* where that library is */
void gpu_bench_attention_cudnn(struct gpu_check *c);
/* Only where devices are emulated: */
void gpu_check_comm_emu(struct gpu_check *c) __attribute__((weak));
void gpu_check_wait_emu(struct gpu_check *c) __attribute__((weak));

/* The fills that most row ops take. */
#define GPU_EACH_FILL(var) for (enum fill var = FILL_RANDOM; var < FILL_COUNT; var++)
#define GPU_EACH_DTYPE(var) for (enum dtype var = DTYPE_F32; var <= DTYPE_BF16; var++)

#endif
