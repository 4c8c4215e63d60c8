/* isa_avx512.c: the vector kernels for AVX-512 (F, BW, VL, DQ). Compiled with that instruction set's flags; only its table is visible. */
#include "device/cpu/vec_avx512.h"

#define LINEAR_CASES ROW_CASES_14
#define ATTEND_CASES ROW_CASES_14

#include "device/cpu/kernels_vec.h"

#include "device/cpu/kernels_gdn.h"

const struct cpu_kernels cpu_kernels_avx512 = {
	.name = VEC_NAME,
	.linear_rows = VEC_LINEAR_ROWS,
	.attend_rows = VEC_ATTEND_ROWS,
	.quant_rows = VEC_QUANT_ROWS,
	.widen_rows = 2 * VEC_QUANT_ROWS,
	.fma_step_flops = 2.0 * LANES * FMA_CHAINS,
	CPU_KERNEL_SLOTS,
};
