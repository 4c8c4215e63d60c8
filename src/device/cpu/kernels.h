/* kernels.h: what an instruction set must provide to the CPU back end: inner loops on dense memory, one thread, no checks.
 *
 * The C table (isa_c.c) is the specification: the others give the same bits for every input whose result is not NaN (for NaN
 * only the fact). Who calls: linear.c, attention.c, ops.c, which check arguments, cut the work and own the order of everything
 * above one kernel call. Numbers of elements are exact: no kernel reads or writes outside what is stated here.
 */
#ifndef TANDEM_DEVICE_CPU_KERNELS_H
#define TANDEM_DEVICE_CPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/sumtree.h"

#define LANES 16             /* partial sums of a reduction over one row: element i goes to lane i % LANES */
#define PANEL 32             /* outputs of a weight panel: [K][PANEL] elements, a bf16 k-step is one cache line */
#define QUANT_GROUP 32       /* inputs that share what scales them, in every block type; a block is one or more groups */
#define KV_BLOCK 256         /* positions whose softmax is one unit of the definition, anchored at position 0 */
#define KV_GROUP 16          /* positions that are surely in one cache block (block_tokens is a multiple of it) */
#define TILE_MAX_ROWS 14     /* no table's attend_rows exceeds it */
#define TILE_STRIDE 272      /* floats from one row of an attention tile to the next: 256, and off the cache-set period */
#define MAX_HEAD_DIM 256
#define HEAD_MULTIPLE 8      /* what a head_dim must be one of */

/* Where output `lane` of a panel lies within a k-step. BF16 panels alternate between their halves, so that a shift and a mask of the whole
 * k-step give 16 consecutive outputs each in f32. */
static inline int panel_slot(enum dtype dtype, int lane)
{
	return dtype == DTYPE_BF16 ? lane % LANES * 2 + lane / LANES : lane;
}

#define QUANT_TYPES(X) X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q4_K) X(Q5_K) X(Q6_K) /* the block types */

/* A tile of `rows` query vectors against one block of KV_BLOCK positions of one KV head. Row r sees the positions
 * [lo[r], hi[r]) of the block, lo < hi. Memory of positions that no row sees is not used in any result; that of groups (KV_GROUP
 * positions) that no row sees is not read, and their pointers may be anything. */
struct attend_args {
	int rows; /* 1..attend_rows */
	int head_dim;
	float scale;
	float softcap; /* 0: none */
	const float *q; /* [rows][TILE_STRIDE], head_dim used */
	int lo[TILE_MAX_ROWS], hi[TILE_MAX_ROWS];
	const float *k[KV_BLOCK / KV_GROUP]; /* group g: element (d, position i) at d * k_stride + i */
	const float *v[KV_BLOCK / KV_GROUP]; /* group g: element (position i, d) at i * v_stride + d, d < v_stride */
	const float *next_k[KV_BLOCK / KV_GROUP]; /* where a group that is wanted next lies, for prefetch only; k[g] where none is */
	int k_stride, v_stride;              /* v_stride: head_dim rounded up to LANES; the padding is zero */
	float *p;                            /* [rows][TILE_STRIDE] scratch: scores, then weights */
	float *max, *sum;                    /* [rows] out */
	float *acc;                          /* [rows][TILE_STRIDE] out, v_stride used: sum of p * v, not divided */
};

/* out = residual + (tree sum of `sources` + bias) over n elements; residual and bias may be NULL. */
struct tree_args {
	const float *const *source; /* [sources], + offset */
	size_t offset;
	const uint8_t *merges;
	int sources;
	const float *residual, *bias;
	float *out;
	int n;
};

/* One value head of the gated delta net over `rows` rows, as isa_c.c has it. s [k_dim][v_dim] takes the last state; s_in may be s. */
struct delta_args {
	int rows, k_dim, v_dim;
	const float *q, *k, *v;     /* of the first row; `stride` floats to the next one's */
	const float *beta, *decay;  /* of the first row; rate_stride to the next one's */
	int64_t stride, rate_stride, out_stride;
	const float *s_in;
	float *s;
	float *out; /* [rows][v_dim] */
};

struct cpu_kernels {
	const char *name;
	int linear_rows; /* rows that `chain` takes at most */
	int attend_rows; /* rows that `attend` takes at most */

	/* acc[r][j] = fma chain over ascending i of x[i][r] * w[i][j], continued from acc. acc [rows][PANEL], x [k][rows], w [k][PANEL]
	 * with panel_slot(dtype, j) in place of j. */
	void (*chain[DTYPE_PLAIN_COUNT])(float *acc, const void *w, const float *x, int k, int rows);
	/* Block types: the same for inputs [k0, k0 + k) of a panel, multiples of QUANT_GROUP, x and acc as above, rows <= quant_rows. */
	void (*quant_chain[DTYPE_COUNT])(float *acc, const void *panel, const float *x, int k0, int k, int rows);
	/* ... and as weights of an F32 panel, out [k][PANEL]. */
	void (*quant_widen[DTYPE_COUNT])(float *out, const void *panel, int k0, int k);
	int quant_rows; /* rows that `quant_chain` takes at most */
	int widen_rows; /* beyond, widening once for all rows is faster than in each chain */

	void (*rms_norm)(float *out, const float *x, const float *weight, int n, float eps); /* out may be x */
	void (*rope)(float *x, const float *cosine, const float *sine, int half);             /* pairs (i, i + half) */
	void (*swiglu)(float *out, const float *gate, const float *up, int n);
	void (*tree_sum)(const struct tree_args *args);
	/* out[c] = silu(fma chain over ascending taps of w[tap * stride + c] * in[tap][c]); taps whose `in` is NULL are passed over. out may be
	 * one of `in`. */
	void (*conv)(float *out, const float *const *in, const float *w, int taps, int64_t stride, int n);
	void (*l2_norm)(float *x, int n, float eps, float scale);
	/* b becomes sigmoid(b), a becomes exp(-exp(a_log) softplus(a + dt_bias)). */
	void (*rates)(float *b, float *a, const float *a_log, const float *dt_bias, int n);
	void (*delta)(const struct delta_args *args);
	void (*gate)(float *x, const float *gate, int n); /* x *= sigmoid(gate) */
	void (*geglu)(float *out, const float *gate, const float *up, int n);
	void (*softcap)(float *x, float cap, int n); /* x = cap tanh(x / cap) */
	void (*attend)(const struct attend_args *args);
	/* acc = fma(acc, a, part * b), n a multiple of LANES. */
	void (*rescale)(float *acc, const float *part, float a, float b, int n);
	void (*divide)(float *out, const float *acc, float by, int n);
	void (*exp)(float *out, const float *x, int n); /* the exponential of all ops, by itself, for its checker */

	/* For peak.c. Sum over n floats (a multiple of 128), and `steps` steps of fma_step_flops operations each in registers. */
	float (*read)(const float *p, size_t n);
	float (*fma)(long steps);
	double fma_step_flops;
};

/* The slots that every instruction set fills with its own functions of the same names: a table cannot forget one. */
#define CPU_KERNEL_CHAIN_SLOT(type) [DTYPE_##type] = chain_##type,
#define CPU_KERNEL_WIDEN_SLOT(type) [DTYPE_##type] = widen_##type,
#define CPU_KERNEL_SLOTS                                                                        \
	.chain = {[DTYPE_F32] = chain_f32, [DTYPE_F16] = chain_f16, [DTYPE_BF16] = chain_bf16},     \
	.quant_chain = {QUANT_TYPES(CPU_KERNEL_CHAIN_SLOT)},                                        \
	.quant_widen = {QUANT_TYPES(CPU_KERNEL_WIDEN_SLOT)},                                        \
	.rms_norm = rms_norm, .rope = rope, .swiglu = swiglu, .tree_sum = tree_sum, .attend = attend, \
	.conv = conv, .l2_norm = l2_norm, .rates = rates, .delta = delta, .gate = gate,             \
	.geglu = geglu, .softcap = softcap,                                                         \
	.rescale = rescale, .divide = divide, .exp = exponential, .read = read_sum, .fma = fma_run

extern const struct cpu_kernels cpu_kernels_c;
extern const struct cpu_kernels cpu_kernels_avx2;   /* x86-64 builds only */
extern const struct cpu_kernels cpu_kernels_avx512; /* x86-64 builds only */

#endif
