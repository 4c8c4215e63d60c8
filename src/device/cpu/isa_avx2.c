/* isa_avx2.c: the vector kernels for AVX2 with FMA and F16C. Compiled with that instruction set's flags; only its table is visible. */
#include "device/cpu/vec_avx2.h"

#define LINEAR_CASES ROW_CASES_2
#define ATTEND_CASES ROW_CASES_3

#include "device/cpu/kernels_vec.h"

#include "device/cpu/kernels_gdn.h"

const struct cpu_kernels cpu_kernels_avx2 = {
	.name = VEC_NAME,
	.linear_rows = VEC_LINEAR_ROWS,
	.attend_rows = VEC_ATTEND_ROWS,
	.quant_rows = VEC_QUANT_ROWS,
	.widen_rows = VEC_QUANT_ROWS,
	.fma_step_flops = 2.0 * LANES * FMA_CHAINS,
	CPU_KERNEL_SLOTS,
};
