/* isa_avx2.c: the vector kernels for AVX2 with FMA and F16C. Compiled with that instruction set's flags; only its table is visible. */
#include "device/cpu/vec_avx2.h"

#define LINEAR_CASES ROW_CASES_2
#define ATTEND_CASES ROW_CASES_3

#include "device/cpu/kernels_vec.h"

const struct cpu_kernels cpu_kernels_avx2 = {
	.name = VEC_NAME,
	.linear_rows = VEC_LINEAR_ROWS,
	.attend_rows = VEC_ATTEND_ROWS,
	.chain = {[DTYPE_F32] = chain_f32, [DTYPE_F16] = chain_f16, [DTYPE_BF16] = chain_bf16},
#define QUANT_SLOT(type) [DTYPE_##type] = chain_##type,
	.quant_chain = {QUANT_TYPES(QUANT_SLOT)},
#undef QUANT_SLOT
#define QUANT_SLOT(type) [DTYPE_##type] = widen_##type,
	.quant_widen = {QUANT_TYPES(QUANT_SLOT)},
	.quant_rows = VEC_QUANT_ROWS,
	.rms_norm = rms_norm,
	.rope = rope,
	.swiglu = swiglu,
	.tree_sum = tree_sum,
	.attend = attend,
	.rescale = rescale,
	.divide = divide,
	.exp = exponential,
	.read = read_sum,
	.fma = fma_run,
	.fma_step_flops = 2.0 * LANES * FMA_CHAINS,
};
