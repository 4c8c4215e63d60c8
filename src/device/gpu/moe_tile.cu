/* moe_tile.cu: the experts' products for any shape, type and alignment, on any device: what tensor cores or few rows do not take, and --tp-invariant.
 *
 * Every sum is one chain of fused multiply-adds over ascending inputs; in the invariant order the down projections of a row's experts are one chain for each
 * leaf (docs/NUMERICS.md), so the bits depend on neither the world size nor the other rows.
 */
#include "device/gpu/gpu.h"
#include "device/gpu/moe.h"

#define TILE_N 64
#define TILE_K 16
#define TILE_THREADS 256
#define TILE_PER_THREAD 4 /* outputs along n */
#define TREE_THREADS 64

/* What a tile's product reads: rows of the tile by their slot, W of the tile's expert. */
template <typename T> struct moe_operand {
	const T *in;
	int64_t in_stride;
	const T *w; /* from the first input column on */
	int64_t w_stride;
	int n, k; /* rows of W, inputs */
};

/* Row r of block bx's 64 as a row of W; SWIGLU: gate and up of a unit in turn. -1: none. */
template <bool SWIGLU> GPU_TEMPLATE int tile_w_row(int n0, int r, int n)
{
	if (!SWIGLU) return n0 + r < n ? n0 + r : -1;
	const int unit = n0 / 2 + r / 2;
	return unit < n / 2 ? unit + r % 2 * (n / 2) : -1;
}

/* acc = chains over all inputs of the tile's rows. `from`: in shared memory, for each row its index in `in`, -1 for none. */
template <typename T, int RM, bool SWIGLU>
GPU_TEMPLATE void tile_product(float acc[RM][TILE_PER_THREAD], float (*ws)[TILE_N + 4], float (*xs)[RM * 16 + 4], const moe_operand<T> &o, const int32_t *from, int n0)
{
	const int tn = (int)threadIdx.x % 16 * TILE_PER_THREAD, tm = (int)threadIdx.x / 16 * RM;
	for (int k = 0; k < o.k; k += TILE_K) {
		for (int i = (int)threadIdx.x; i < TILE_N * TILE_K; i += TILE_THREADS) {
			const int at = k + i % TILE_K, row = tile_w_row<SWIGLU>(n0, i / TILE_K, o.n);
			ws[i % TILE_K][i / TILE_K] = row >= 0 && at < o.k ? gpu_widen(o.w[row * o.w_stride + at]) : 0.0f;
		}
		for (int i = (int)threadIdx.x; i < RM * 16 * TILE_K; i += TILE_THREADS) {
			const int at = k + i % TILE_K, row = from[i / TILE_K];
			xs[i % TILE_K][i / TILE_K] = row >= 0 && at < o.k ? gpu_widen(o.in[row * o.in_stride + at]) : 0.0f;
		}
		gpu_sync();
		const int steps = o.k - k < TILE_K ? o.k - k : TILE_K;
		for (int s = 0; s < steps; s++)
			GPU_UNROLL for (int i = 0; i < RM; i++)
				GPU_UNROLL for (int j = 0; j < TILE_PER_THREAD; j++) acc[i][j] = gpu_fma(xs[s][tm + i], ws[s][tn + j], acc[i][j]);
		gpu_sync();
	}
}

/* Block (bx, by): tile by, rows [64 bx, +64) of its expert's matrix: SWIGLU 32 inner columns of act, else 64 of part. Thread t: four outputs 4 (t % 16), of RM rows
 * RM (t / 16). Shared: 4.5 KiB and 1.2 RM KiB. Bound: f32 FMA. */
template <typename T, int RM, bool SWIGLU> GPU_KERNEL(TILE_THREADS) moe_tile_kernel(moe_problem p, moe_span span)
{
	GPU_SHARED(float, ws, TILE_K * (TILE_N + 4));
	GPU_SHARED(float, xs, TILE_K * (RM * 16 + 4));
	GPU_SHARED(int32_t, from, RM * 16);
	const int n0 = (int)blockIdx.x * TILE_N, tn = (int)threadIdx.x % 16 * TILE_PER_THREAD, tm = (int)threadIdx.x / 16 * RM;
	gpu_wait_previous();
	gpu_start_next();
	if ((int)blockIdx.y >= p.tiles[0]) return;
	const moe_tile tile = p.tile[blockIdx.y];
	if ((int)threadIdx.x < RM * 16) {
		const int r = (int)threadIdx.x, slot = tile.first + r;
		from[r] = r >= tile.rows ? -1 : SWIGLU ? p.pair_of_slot[slot] / p.top_k : slot;
	}
	gpu_sync();
	moe_operand<T> o;
	o.in = SWIGLU ? (const T *)p.x : (const T *)p.act + span.k0;
	o.in_stride = SWIGLU ? p.x_stride : p.inner;
	o.w = SWIGLU ? (const T *)p.gate_up + tile.expert * p.gate_up_step : (const T *)p.down + tile.expert * p.down_step + span.k0;
	o.w_stride = SWIGLU ? p.hidden : p.inner;
	o.n = SWIGLU ? 2 * p.inner : p.hidden;
	o.k = SWIGLU ? p.hidden : span.k;
	float acc[RM][TILE_PER_THREAD] = {};
	tile_product<T, RM, SWIGLU>(acc, (float(*)[TILE_N + 4])ws, (float(*)[RM * 16 + 4])xs, o, from, n0);
	for (int i = 0; i < RM; i++) {
		if (tm + i >= tile.rows) break;
		const int64_t slot = tile.first + tm + i;
		for (int j = 0; j < TILE_PER_THREAD; j += SWIGLU ? 2 : 1) {
			const int at = SWIGLU ? (n0 + tn + j) / 2 : n0 + tn + j;
			if (at >= (SWIGLU ? p.inner : p.hidden)) continue;
			if (SWIGLU) ((T *)p.act)[slot * p.inner + at] = gpu_narrow<T>(acc[i][j] / (1.0f + expf(-acc[i][j])) * acc[i][j + 1]);
			else ((T *)p.part)[slot * p.hidden + at] = gpu_narrow<T>(acc[i][j]);
		}
	}
}

/* Block (b, row): columns [256 b, +256): weighted parts of the row's experts, ascending, then the shared one's. Bound: reading the parts. */
template <typename T, typename Y> GPU_KERNEL(256) moe_combine_kernel(moe_problem p)
{
	GPU_SHARED(float, weight, MOE_MAX_TOP_K + 1);
	GPU_SHARED(int32_t, slot, MOE_MAX_TOP_K);
	const int row = (int)blockIdx.y, j = (int)blockIdx.x * 256 + (int)threadIdx.x, t = (int)threadIdx.x;
	gpu_wait_previous();
	gpu_start_next();
	if (t <= p.top_k) weight[t] = p.weight[row * (p.top_k + 1) + t];
	if (t < p.top_k) slot[t] = p.slot_of_pair[row * p.top_k + t];
	gpu_sync();
	if (j >= p.hidden) return;
	float sum = 0;
	for (int i = 0; i < p.top_k; i++) sum = gpu_fma(weight[i], gpu_widen(((const T *)p.part)[(int64_t)slot[i] * p.hidden + j]), sum);
	if (p.shared) sum = gpu_fma(weight[p.top_k], gpu_widen(((const T *)p.shared_part)[(int64_t)row * p.hidden + j]), sum);
	Y *y = (Y *)p.y + row * p.y_stride + j;
	*y = gpu_narrow<Y>(p.accumulate ? gpu_widen(*y) + sum : sum);
}

/* Goes on with the chain of output `j` by columns [k0, k0 + k) of one expert; all TREE_THREADS threads take part in staging. */
template <typename T>
GPU_TEMPLATE float tree_chain(float acc, float (*ws)[TREE_THREADS + 1], float *as, const T *w, int64_t w_stride, int n0, int n, const T *act, float weight, int k0, int k)
{
	const int t = (int)threadIdx.x;
	for (int at = 0; at < k; at += TILE_K) {
		const int steps = k - at < TILE_K ? k - at : TILE_K;
		for (int i = t; i < TREE_THREADS * TILE_K; i += TREE_THREADS) {
			const int step = i % TILE_K, row = n0 + i / TILE_K;
			ws[step][i / TILE_K] = row < n && step < steps ? gpu_widen(w[row * w_stride + k0 + at + step]) : 0.0f;
		}
		if (t < TILE_K) as[t] = t < steps ? gpu_mul(gpu_widen(act[k0 + at + t]), weight) : 0.0f;
		gpu_sync();
		for (int s = 0; s < steps; s++) acc = gpu_fma(as[s], ws[s][t], acc);
		gpu_sync();
	}
	return acc;
}

/* Block (b, row): outputs [64 b, +64), one a thread. Bound: every row reads its experts' matrices for itself; the order is the point. */
template <typename T> GPU_KERNEL(TREE_THREADS) moe_tree_kernel(moe_problem p, moe_span span, gemm_leaves tree)
{
	GPU_SHARED(float, ws, TILE_K * (TREE_THREADS + 1));
	GPU_SHARED(float, as, TILE_K);
	const int row = (int)blockIdx.y, n0 = (int)blockIdx.x * TREE_THREADS, j = n0 + (int)threadIdx.x;
	const int leaf_k = span.k / tree.leaves, shared_leaf_k = span.shared_k / tree.leaves;
	float stack[SUMTREE_MAX_DEPTH];
	int depth = 0;
	gpu_wait_previous();
	gpu_start_next();
	for (int leaf = 0; leaf < tree.leaves; leaf++) {
		float acc = 0;
		for (int i = 0; i < p.top_k; i++) {
			const int pair = row * p.top_k + i;
			acc = tree_chain<T>(acc, (float(*)[TREE_THREADS + 1])ws, as, (const T *)p.down + p.chosen[pair] * p.down_step, p.inner, n0, p.hidden,
			                    (const T *)p.act + (int64_t)p.slot_of_pair[pair] * p.inner, p.weight[row * (p.top_k + 1) + i], span.k0 + leaf * leaf_k, leaf_k);
		}
		if (p.shared)
			acc = tree_chain<T>(acc, (float(*)[TREE_THREADS + 1])ws, as, (const T *)p.shared_down, p.shared_inner, n0, p.hidden,
			                    (const T *)p.shared_act + (int64_t)row * p.shared_inner, p.weight[row * (p.top_k + 1) + p.top_k],
			                    span.shared_k0 + leaf * shared_leaf_k, shared_leaf_k);
		stack[depth++] = acc;
		for (int merge = tree.merges[leaf]; merge > 0; merge--, depth--) stack[depth - 2] = gpu_add(stack[depth - 2], stack[depth - 1]);
	}
	if (j >= p.hidden) return;
	float *y = (float *)p.y + row * p.y_stride + j;
	*y = p.accumulate ? gpu_add(*y, stack[0]) : stack[0];
}

/* ---- launchers */

template <typename T, int RM, bool SWIGLU> static gpu_error tile_run(const struct gpu_context *context, const moe_problem &p, const moe_span &span)
{
	const int n = SWIGLU ? 2 * p.inner : p.hidden;
	const dim3 grid((unsigned)((n + TILE_N - 1) / TILE_N), (unsigned)moe_most_tiles(p.rows, p.top_k, p.experts, RM * 16));
	return GPU_LAUNCH((moe_tile_kernel<T, RM, SWIGLU>), grid, dim3(TILE_THREADS), 0, context->stream, p, span);
}

template <typename T, bool SWIGLU> static gpu_error tile_typed(const struct gpu_context *context, const moe_problem &p, int tile_rows, const moe_span &span)
{
	return tile_rows == 16 ? tile_run<T, 1, SWIGLU>(context, p, span) : tile_run<T, 4, SWIGLU>(context, p, span);
}

enum status moe_tile_up(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err)
{
	const struct moe_span none = {0, 0, 0, 0};
	gpu_error code = p->type == DTYPE_F32   ? tile_typed<float, true>(context, *p, tile_rows, none)
	                 : p->type == DTYPE_F16 ? tile_typed<f16, true>(context, *p, tile_rows, none)
	                                        : tile_typed<bf16, true>(context, *p, tile_rows, none);
	return gpu_check(code, "launch of moe_tile", err);
}

enum status moe_tile_down(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, const struct moe_span *span, struct error *err)
{
	gpu_error code = p->type == DTYPE_F32   ? tile_typed<float, false>(context, *p, tile_rows, *span)
	                 : p->type == DTYPE_F16 ? tile_typed<f16, false>(context, *p, tile_rows, *span)
	                                        : tile_typed<bf16, false>(context, *p, tile_rows, *span);
	return gpu_check(code, "launch of moe_tile", err);
}

template <typename T, typename Y> static gpu_error combine_run(const struct gpu_context *context, const moe_problem &p)
{
	return GPU_LAUNCH((moe_combine_kernel<T, Y>), dim3((unsigned)((p.hidden + 255) / 256), (unsigned)p.rows), dim3(256), 0, context->stream, p);
}

enum status moe_combine(const struct gpu_context *context, const struct moe_problem *p, struct error *err)
{
	const bool wide = p->y_type == DTYPE_F32;
	gpu_error code = p->type == DTYPE_F32   ? combine_run<float, float>(context, *p)
	                 : p->type == DTYPE_F16 ? (wide ? combine_run<f16, float>(context, *p) : combine_run<f16, f16>(context, *p))
	                                        : (wide ? combine_run<bf16, float>(context, *p) : combine_run<bf16, bf16>(context, *p));
	return gpu_check(code, "launch of moe_combine", err);
}

template <typename T>
static gpu_error tree_run(const struct gpu_context *context, const moe_problem &p, const moe_span &span, const gemm_leaves &leaves)
{
	const dim3 grid((unsigned)((p.hidden + TREE_THREADS - 1) / TREE_THREADS), (unsigned)p.rows);
	return GPU_LAUNCH(moe_tree_kernel<T>, grid, dim3(TREE_THREADS), 0, context->stream, p, span, leaves);
}

enum status moe_tree_down(const struct gpu_context *context, const struct moe_problem *p, const struct moe_span *span, const struct gemm_leaves *leaves,
                          struct error *err)
{
	gpu_error code = p->type == DTYPE_F32   ? tree_run<float>(context, *p, *span, *leaves)
	                 : p->type == DTYPE_F16 ? tree_run<f16>(context, *p, *span, *leaves)
	                                        : tree_run<bf16>(context, *p, *span, *leaves);
	return gpu_check(code, "launch of moe_tree", err);
}
