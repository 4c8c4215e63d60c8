/* gemm_tile.cu: y = x W^T for any shape, type and alignment, on any device: the linear of last resort, and that of --tp-invariant.
 *
 * One output element is one chain of fused multiply-adds over ascending k from +0 (the definition of docs/NUMERICS.md), or one such chain for each leaf and
 * the leaves added in tree order. So the bits depend on K and its leaves, not on M, N, the tile or the wave's width.
 */
#include "device/gpu/gpu.h"
#include "device/gpu/linear.h"

#define TILE_N 64
#define TILE_K 16
#define TILE_THREADS 256
#define TILE_PER_THREAD 4 /* outputs along n */

/* rows [row0, row0+ROWS) x [k0, k1) of a row-major matrix, widened, to tile[k][row]; zero outside. Thread t takes k = t % 16, so that 16 threads read a run. */
template <typename T, int ROWS>
GPU_TEMPLATE void tile_load(float tile[TILE_K][ROWS + 4], const T *matrix, int64_t stride, int row0, int rows, int k0, int k1)
{
	for (int i = (int)threadIdx.x; i < ROWS * TILE_K; i += TILE_THREADS) {
		const int row = row0 + i / TILE_K, k = k0 + i % TILE_K;
		tile[i % TILE_K][i / TILE_K] = row < rows && k < k1 ? gpu_widen(matrix[row * stride + k]) : 0.0f;
	}
}

template <int RM> GPU_TEMPLATE void tile_add(float to[RM][TILE_PER_THREAD], const float from[RM][TILE_PER_THREAD])
{
	GPU_UNROLL for (int i = 0; i < RM; i++)
		GPU_UNROLL for (int j = 0; j < TILE_PER_THREAD; j++) to[i][j] = gpu_add(to[i][j], from[i][j]);
}

/* acc = the chains of inputs [k0, k1). All threads of the block take part. */
template <typename T, int RM>
GPU_TEMPLATE void tile_chain(float acc[RM][TILE_PER_THREAD], float ws[TILE_K][TILE_N + 4], float xs[TILE_K][RM * 16 + 4], const gemm_problem &p,
                             int m0, int n0, int k0, int k1)
{
	const int tn = (int)threadIdx.x % 16 * TILE_PER_THREAD, tm = (int)threadIdx.x / 16 * RM;
	GPU_UNROLL for (int i = 0; i < RM; i++)
		GPU_UNROLL for (int j = 0; j < TILE_PER_THREAD; j++) acc[i][j] = 0;
	for (int k = k0; k < k1; k += TILE_K) {
		tile_load<T, TILE_N>(ws, (const T *)p.w, p.w_stride, n0, p.n, k, k1);
		tile_load<T, RM * 16>(xs, (const T *)p.x, p.x_stride, m0, p.m, k, k1);
		gpu_sync();
		const int steps = k1 - k < TILE_K ? k1 - k : TILE_K; /* not past the end: x * 0 may be NaN, and -0 + 0 is +0 */
		for (int s = 0; s < steps; s++)
			GPU_UNROLL for (int i = 0; i < RM; i++)
				GPU_UNROLL for (int j = 0; j < TILE_PER_THREAD; j++) acc[i][j] = gpu_fma(xs[s][tm + i], ws[s][tn + j], acc[i][j]);
		gpu_sync();
	}
}

template <typename T, typename Y, int RM> GPU_TEMPLATE void tile_store(const float acc[RM][TILE_PER_THREAD], const gemm_problem &p, int m0, int n0)
{
	const int tn = (int)threadIdx.x % 16 * TILE_PER_THREAD, tm = (int)threadIdx.x / 16 * RM;
	for (int i = 0; i < RM; i++) {
		const int m = m0 + tm + i;
		for (int j = 0; j < TILE_PER_THREAD; j++) {
			const int n = n0 + tn + j;
			if (m >= p.m || n >= p.n) continue;
			float v = p.bias ? gpu_add(acc[i][j], p.bias[n]) : acc[i][j];
			Y *y = (Y *)p.y + m * p.y_stride + n;
			if (p.accumulate) v = gpu_add(gpu_widen(*y), v);
			*y = gpu_narrow<Y>(v);
		}
	}
}

/* Block (bx, by): outputs [64 bx, +64) of rows [16 RM by, +16 RM). Thread t: four outputs 4 (t % 16), of RM rows RM (t / 16). Any alignment. Bound: f32 FMA. */
template <typename T, typename Y, int RM> GPU_KERNEL(TILE_THREADS) tile_kernel(gemm_problem p)
{
	GPU_SHARED(float, ws, TILE_K * (TILE_N + 4));
	GPU_SHARED(float, xs, TILE_K * (RM * 16 + 4));
	const int n0 = (int)blockIdx.x * TILE_N, m0 = (int)blockIdx.y * RM * 16;
	float acc[RM][TILE_PER_THREAD];
	gpu_wait_previous();
	gpu_start_next();
	tile_chain<T, RM>(acc, (float(*)[TILE_N + 4])ws, (float(*)[RM * 16 + 4])xs, p, m0, n0, 0, p.k);
	tile_store<T, Y, RM>(acc, p, m0, n0);
}

/* The same, leaf by leaf: a finished leaf waits on `stack` until the program of base/sumtree.h adds it to its neighbour. */
template <typename T, typename Y, int RM> GPU_KERNEL(TILE_THREADS) tile_leaves_kernel(gemm_problem p, gemm_leaves tree)
{
	GPU_SHARED(float, ws, TILE_K * (TILE_N + 4));
	GPU_SHARED(float, xs, TILE_K * (RM * 16 + 4));
	const int n0 = (int)blockIdx.x * TILE_N, m0 = (int)blockIdx.y * RM * 16, leaf_k = p.k / tree.leaves;
	float stack[SUMTREE_MAX_DEPTH][RM][TILE_PER_THREAD];
	int depth = 0;
	gpu_wait_previous();
	gpu_start_next();
	for (int leaf = 0; leaf < tree.leaves; leaf++) {
		tile_chain<T, RM>(stack[depth++], (float(*)[TILE_N + 4])ws, (float(*)[RM * 16 + 4])xs, p, m0, n0, leaf * leaf_k, (leaf + 1) * leaf_k);
		for (int merge = tree.merges[leaf]; merge > 0; merge--, depth--) tile_add<RM>(stack[depth - 2], stack[depth - 1]);
	}
	tile_store<T, Y, RM>(stack[0], p, m0, n0);
}

template <typename T, typename Y, int RM> static gpu_error tile_run(const struct gpu_context *context, const gemm_problem &p, const gemm_leaves *leaves)
{
	const dim3 grid((unsigned)((p.n + TILE_N - 1) / TILE_N), (unsigned)((p.m + RM * 16 - 1) / (RM * 16)));
	if (leaves) return GPU_LAUNCH((tile_leaves_kernel<T, Y, RM>), grid, dim3(TILE_THREADS), 0, context->stream, p, *leaves);
	return GPU_LAUNCH((tile_kernel<T, Y, RM>), grid, dim3(TILE_THREADS), 0, context->stream, p);
}

template <typename T> static gpu_error tile_typed(const struct gpu_context *context, const gemm_problem &p, const gemm_leaves *leaves)
{
	const bool few = p.m <= 16;
	if (p.y_type == DTYPE_F32) return few ? tile_run<T, float, 1>(context, p, leaves) : tile_run<T, float, 4>(context, p, leaves);
	return few ? tile_run<T, T, 1>(context, p, leaves) : tile_run<T, T, 4>(context, p, leaves);
}

enum status tile_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemm_leaves *leaves, struct error *err)
{
	const int most = 65535 * 64; /* rows of tokens that the grid's second dimension reaches */
	if (problem->m > most) return FAIL(err, UNSUPPORTED, "linear: %d rows; at most %d", problem->m, most);
	gpu_error code = problem->type == DTYPE_F32   ? tile_typed<float>(context, *problem, leaves)
	                 : problem->type == DTYPE_F16 ? tile_typed<f16>(context, *problem, leaves)
	                                              : tile_typed<bf16>(context, *problem, leaves);
	return gpu_check(code, "launch of gemm_tile", err);
}

/* Block (bx, by): columns [256 bx, +256) of row by, and of every gridDim.y-th row after it. */
template <typename Y> GPU_KERNEL(256) bias_fill_kernel(Y *y, int64_t y_stride, const float *bias, int m, int n, bool add)
{
	const int col = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	gpu_wait_previous();
	gpu_start_next();
	if (col >= n) return;
	for (int row = (int)blockIdx.y; row < m; row += (int)gridDim.y) {
		Y *out = y + row * y_stride + col;
		*out = gpu_narrow<Y>(add ? gpu_add(gpu_widen(*out), bias[col]) : bias[col]);
	}
}

template <typename Y> static gpu_error bias_fill_typed(const struct gpu_context *context, const gemm_problem &p)
{
	const dim3 grid((unsigned)((p.n + 255) / 256), (unsigned)(p.m < 65535 ? p.m : 65535));
	return GPU_LAUNCH(bias_fill_kernel<Y>, grid, dim3(256), 0, context->stream, (Y *)p.y, p.y_stride, p.bias, p.m, p.n, p.accumulate);
}

enum status bias_fill_launch(const struct gpu_context *context, const struct gemm_problem *problem, struct error *err)
{
	gpu_error code = problem->y_type == DTYPE_F32   ? bias_fill_typed<float>(context, *problem)
	                 : problem->y_type == DTYPE_F16 ? bias_fill_typed<f16>(context, *problem)
	                                                : bias_fill_typed<bf16>(context, *problem);
	return gpu_check(code, "launch of bias_fill", err);
}
