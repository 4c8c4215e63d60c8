/* gemv_decode.cu: one row of x against W, with what a decode step puts before and behind: rms_norm of x; SwiGLU of gate and up, rotation and cache write, or
 * adding to the residual. Bound by the rate at which W is read; any device.
 *
 * A wave sums one output, or the two outputs of a pair, at a time and walks many: blocks stay for the whole kernel, so that x is made once for each of them and
 * loads never stop: while a wave multiplies one batch of 16-byte pieces, the next one, of this row or of its next, is on its way.
 */
#include "device/gpu/gpu.h"
#include "device/gpu/linear.h"
#include "device/gpu/linear_device.h"

#define DECODE_THREADS 256
#define DECODE_BLOCKS 4 /* on a multiprocessor: 64 registers a thread */

/* ROWS x DEPTH pieces of 16 bytes of a lane. */
template <int ROWS, int DEPTH> struct decode_batch {
	gpu_vec16 piece[ROWS][DEPTH];
};

/* The rows of W of unit u. */
GPU_DEVICE int decode_row(const fused_problem &p, int unit)
{
	if (p.ending != LINEAR_ROPE) return unit;
	const int half = p.rope.head_dim / 2;
	return unit / half * p.rope.head_dim + unit % half;
}
GPU_DEVICE int decode_pair(const fused_problem &p)
{
	return p.ending == LINEAR_STORE ? 0 : p.ending == LINEAR_SWIGLU ? p.gemm.n / 2 : p.rope.head_dim / 2;
}

template <typename T, int ROWS, int DEPTH>
GPU_TEMPLATE void decode_load(decode_batch<ROWS, DEPTH> &batch, const fused_problem &p, int unit, int k0)
{
	constexpr int step = GPU_WARP * gpu_lanes<T>::count;
	const T *w = (const T *)p.gemm.w + decode_row(p, unit) * p.gemm.w_stride + k0;
	GPU_UNROLL for (int r = 0; r < ROWS; r++)
		GPU_UNROLL for (int d = 0; d < DEPTH; d++)
			if (k0 + d * step < p.gemm.k) batch.piece[r][d] = gpu_load16_stream(w + r * decode_pair(p) * p.gemm.w_stride + d * step);
}

template <typename T, int ROWS, int DEPTH>
GPU_TEMPLATE void decode_dot(float acc[ROWS], const decode_batch<ROWS, DEPTH> &batch, const T *x, int k, int k0)
{
	constexpr int vec = gpu_lanes<T>::count, step = GPU_WARP * vec;
	float a[vec], b[vec];
	GPU_UNROLL for (int d = 0; d < DEPTH; d++) {
		if (k0 + d * step >= k) break;
		gpu_widen16<T>(*(const gpu_vec16 *)(x + k0 + d * step), a);
		GPU_UNROLL for (int r = 0; r < ROWS; r++) {
			gpu_widen16<T>(batch.piece[r][d], b);
			GPU_UNROLL for (int i = 0; i < vec; i++) acc[r] = gpu_fma(a[i], b[i], acc[r]);
		}
	}
}

/* x, or its norm, to shared memory. */
template <typename T> GPU_TEMPLATE void decode_stage(const fused_problem &p, T *shared, float *scratch)
{
	const int k = p.gemm.k;
	if (!p.norm.x) {
		const gpu_vec16 *x = (const gpu_vec16 *)p.gemm.x;
		for (int i = (int)threadIdx.x; i < k / gpu_lanes<T>::count; i += DECODE_THREADS) ((gpu_vec16 *)shared)[i] = x[i];
	} else {
		float sum = 0;
		for (int i = (int)threadIdx.x; i < k; i += DECODE_THREADS) sum += p.norm.x[i] * p.norm.x[i];
		const float scale = 1.0f / sqrtf(gpu_block_sum(sum, scratch) / (float)k + p.norm.eps);
		for (int i = (int)threadIdx.x; i < k; i += DECODE_THREADS) shared[i] = gpu_narrow<T>(p.norm.x[i] * scale * p.norm.weight[i]);
	}
	gpu_sync();
}

/* Wave w of all waves: units w, w + waves, ...: an output (ROWS 1) or a pair. Lane l: pieces l, l + GPU_WARP, ... of K. W: rows aligned to 16 bytes, K a multiple of
 * a piece. Dynamic shared memory: x[K]. */
template <typename T, int ROWS, int DEPTH> GPU_KERNEL(DECODE_THREADS) gemv_decode_kernel(fused_problem p, int units)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(float, scratch, 32);
	constexpr int vec = gpu_lanes<T>::count, run = DEPTH * GPU_WARP * vec;
	T *x = (T *)dynamic;
	const int lane = (int)threadIdx.x % GPU_WARP, waves = (int)(gridDim.x * (DECODE_THREADS / GPU_WARP));
	int unit = (int)(blockIdx.x * (DECODE_THREADS / GPU_WARP) + threadIdx.x / GPU_WARP), k0 = 0;
	decode_batch<ROWS, DEPTH> batch, next;
	if (unit < units) decode_load<T, ROWS, DEPTH>(batch, p, unit, lane * vec);
	gpu_wait_previous();
	gpu_start_next();
	decode_stage<T>(p, x, scratch);
	float acc[ROWS] = {};
	ending_item item = fetch_ending<T>(p, unit < units ? 0 : p.gemm.m, decode_row(p, unit), decode_row(p, unit) + decode_pair(p));
	while (unit < units) {
		const bool last = k0 + run >= p.gemm.k;
		const int next_unit = last ? unit + waves : unit, next_k0 = last ? 0 : k0 + run;
		if (next_unit < units) decode_load<T, ROWS, DEPTH>(next, p, next_unit, next_k0 + lane * vec);
		decode_dot<T, ROWS, DEPTH>(acc, batch, x, p.gemm.k, k0 + lane * vec);
		if (last) {
			GPU_UNROLL for (int r = 0; r < ROWS; r++) acc[r] = gpu_warp_sum(acc[r]);
			if (lane == 0) finish_ending<T>(p, item, acc[0], acc[ROWS - 1]);
			GPU_UNROLL for (int r = 0; r < ROWS; r++) acc[r] = 0;
			item = fetch_ending<T>(p, next_unit < units ? 0 : p.gemm.m, decode_row(p, next_unit), decode_row(p, next_unit) + decode_pair(p));
		}
		batch = next, unit = next_unit, k0 = next_k0;
	}
}

bool decode_can(const struct gpu_context *context, const struct fused_problem *problem)
{
	const struct gemm_problem *p = &problem->gemm;
	const int piece = 16 / (int)dtype_bytes(p->type);
	if (p->m != 1 || p->k % piece || (uintptr_t)p->w % 16 || p->w_stride * (int64_t)dtype_bytes(p->type) % 16) return false;
	if (!problem->norm.x && (uintptr_t)p->x % 16) return false;
	if (problem->ending == LINEAR_ROPE && (problem->rope.head_dim % 2 || p->n % problem->rope.head_dim)) return false;
	if (problem->ending == LINEAR_SWIGLU && p->n % 2) return false;
	return (size_t)p->k * dtype_bytes(p->type) + 1024 <= context->props.max_shared;
}

template <typename T, int ROWS, int DEPTH> static gpu_error decode_run(const struct gpu_context *context, const fused_problem &problem)
{
	const int units = problem.gemm.n / ROWS, waves = DECODE_THREADS / context->props.warp;
	const size_t shared = (size_t)problem.gemm.k * sizeof(T);
	const int most = DECODE_BLOCKS * context->props.multiprocessors, blocks = (units + waves - 1) / waves;
	if (shared > 32 * 1024) {
		gpu_error code = gpu_allow_shared((gemv_decode_kernel<T, ROWS, DEPTH>), context->props.max_shared - 1024);
		if (code != GPU_OK) return code;
	}
	return GPU_LAUNCH((gemv_decode_kernel<T, ROWS, DEPTH>), dim3((unsigned)(blocks < most ? blocks : most)), dim3(DECODE_THREADS), shared, context->stream, problem, units);
}

template <typename T> static gpu_error decode_typed(const struct gpu_context *context, const fused_problem &problem)
{
	return problem.ending == LINEAR_STORE ? decode_run<T, 1, 4>(context, problem) : decode_run<T, 2, 2>(context, problem);
}

enum status decode_launch(const struct gpu_context *context, const struct fused_problem *problem, struct error *err)
{
	const struct gemm_problem *p = &problem->gemm;
	if (!decode_can(context, problem))
		return FAIL(err, UNSUPPORTED, "gemv decode: [%d,%d] x [%d,%d]^T of %s; one row, K a multiple of 16 bytes that shared memory of %zu bytes holds, and 16-byte alignment are wanted",
		            p->m, p->k, p->n, p->k, dtype_name(p->type), context->props.max_shared);
	gpu_error code = p->type == DTYPE_F32   ? decode_typed<float>(context, *problem)
	                 : p->type == DTYPE_F16 ? decode_typed<f16>(context, *problem)
	                                        : decode_typed<bf16>(context, *problem);
	return gpu_check(code, "launch of gemv_decode", err);
}
