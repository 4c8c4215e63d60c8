/* gemv.cu: y = x W^T for 1 to 16 rows of x where W is read once and nothing else matters: bound by the memory's read rate.
 *
 * W is read in 16-byte pieces that bypass the first-level cache, x lies in shared memory, sums are f32. Three ways to cut the work (linear.h): a wave for
 * each output or few (what the engine uses), a block for each few outputs, and a block whose every thread has exactly one piece of K, which is legal only
 * where K is short. The first pieces of W are asked for before the kernel waits for its predecessor: weights do not depend on it.
 */
#include "device/gpu/gpu.h"
#include "device/gpu/linear.h"

#define GEMV_DEPTH 4             /* 16-byte loads in flight, per lane and output */
#define GEMV_WAVE_THREADS 256
#define GEMV_SHARED (48 * 1024)  /* what a block may have without asking */

template <typename T> GPU_TEMPLATE void gemv_store(const gemm_problem &p, int m, int n, float v)
{
	const int64_t at = m * p.y_stride + n;
	if (p.bias) v += p.bias[n];
	if (p.y_type != DTYPE_F32) ((T *)p.y)[at] = gpu_narrow<T>(v);
	else ((float *)p.y)[at] = p.accumulate ? ((float *)p.y)[at] + v : v;
}

/* Columns [k0, k0 + count) of the M rows of x to shared memory, rows past the last one as copies of it. 16 bytes at a time where x allows. */
template <typename T, int M> GPU_TEMPLATE void gemv_stage(T *shared, const gemm_problem &p, int k0, int count)
{
	const T *x = (const T *)p.x + k0;
	const int vec = gpu_lanes<T>::count;
	GPU_UNROLL for (int m = 0; m < M; m++) {
		const T *row = x + (m < p.m ? m : p.m - 1) * p.x_stride;
		if ((uintptr_t)row % 16 == 0)
			for (int i = (int)threadIdx.x; i < count / vec; i += (int)blockDim.x) ((gpu_vec16 *)(shared + m * count))[i] = ((const gpu_vec16 *)row)[i];
		else
			for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) shared[m * count + i] = row[i];
	}
}

template <typename T, int M> GPU_TEMPLATE void gemv_dot(float acc[M], gpu_vec16 w, const T *shared, int k, int count)
{
	constexpr int vec = gpu_lanes<T>::count;
	float wide[vec], x[vec];
	gpu_widen16<T>(w, wide);
	GPU_UNROLL for (int m = 0; m < M; m++) {
		gpu_widen16<T>(*(const gpu_vec16 *)(shared + m * count + k), x);
		GPU_UNROLL for (int i = 0; i < vec; i++) acc[m] = gpu_fma(wide[i], x[i], acc[m]);
	}
}

/* Wave w of block b: outputs [ROWS (b waves + w), +ROWS); lane l: pieces l, l + GPU_WARP, ... of K. W: rows aligned to 16 bytes, K a multiple of a piece.
 * Dynamic shared memory: x[M][chunk_k], chunk_k a multiple of a piece; K is walked in chunks. Bound: reading W. */
template <typename T, int M, int ROWS> GPU_KERNEL(GEMV_WAVE_THREADS) gemv_wave_kernel(gemm_problem p, int chunk_k)
{
	GPU_DYNAMIC_SHARED(dynamic);
	constexpr int vec = gpu_lanes<T>::count, step = GPU_WARP * vec, depth = M >= 16 ? 1 : M >= 8 ? 2 : GEMV_DEPTH;
	T *shared = (T *)dynamic;
	const int lane = (int)threadIdx.x % GPU_WARP, waves = (int)blockDim.x / GPU_WARP;
	const int n0 = ((int)blockIdx.x * waves + (int)threadIdx.x / GPU_WARP) * ROWS;
	const T *w[ROWS];
	GPU_UNROLL for (int r = 0; r < ROWS; r++) w[r] = (const T *)p.w + (n0 + r < p.n ? n0 + r : p.n - 1) * p.w_stride;
	float acc[ROWS][M] = {};
	gpu_vec16 piece[ROWS][depth];
	for (int c0 = 0; c0 < p.k; c0 += chunk_k) {
		const int count = p.k - c0 < chunk_k ? p.k - c0 : chunk_k;
		for (int k0 = lane * vec; k0 < count || k0 == lane * vec; k0 += depth * step) {
			GPU_UNROLL for (int r = 0; r < ROWS; r++)
				GPU_UNROLL for (int d = 0; d < depth; d++)
					if (k0 + d * step < count) piece[r][d] = gpu_load16_stream(w[r] + c0 + k0 + d * step);
			if (k0 == lane * vec) {
				if (c0 == 0) {
					gpu_wait_previous();
					gpu_start_next();
				}
				gpu_sync(); /* the last chunk's x has been read */
				gemv_stage<T, M>(shared, p, c0, count);
				gpu_sync();
			}
			GPU_UNROLL for (int d = 0; d < depth; d++)
				GPU_UNROLL for (int r = 0; r < ROWS; r++)
					if (k0 + d * step < count) gemv_dot<T, M>(acc[r], piece[r][d], shared, k0 + d * step, count);
		}
	}
	GPU_UNROLL for (int r = 0; r < ROWS; r++)
		GPU_UNROLL for (int m = 0; m < M; m++) {
			const float sum = gpu_warp_sum(acc[r][m]);
			if (lane == 0 && m < p.m && n0 + r < p.n) gemv_store<T>(p, m, n0 + r, sum);
		}
}

/* Sums acc[] over the block; thread r < ROWS stores output n0 + r. scratch: float [ROWS][32]. */
template <typename T, int ROWS> GPU_TEMPLATE void gemv_finish(const float acc[ROWS], float *scratch, const gemm_problem &p, int n0)
{
	const int lane = (int)threadIdx.x % GPU_WARP, wave = (int)threadIdx.x / GPU_WARP, waves = (int)blockDim.x / GPU_WARP;
	GPU_UNROLL for (int r = 0; r < ROWS; r++) {
		const float sum = gpu_warp_sum(acc[r]);
		if (lane == 0) scratch[r * 32 + wave] = sum;
	}
	gpu_sync();
	const int r = (int)threadIdx.x;
	if (r >= ROWS || n0 + r >= p.n) return;
	float total = 0;
	for (int i = 0; i < waves; i++) total += scratch[r * 32 + i];
	gemv_store<T>(p, 0, n0 + r, total);
}

/* Block b: outputs [ROWS b, +ROWS) of the one row of x; thread t: pieces t, t + blockDim.x, ... of K. W: rows aligned to 16 bytes, K a multiple of a piece.
 * At most 32 waves a block, threads >= ROWS. Bound: reading W. */
template <typename T, int ROWS> GPU_KERNEL(1024) gemv_strided_kernel(gemm_problem p)
{
	constexpr int vec = gpu_lanes<T>::count;
	GPU_SHARED(float, scratch, ROWS * 32);
	const int n0 = (int)blockIdx.x * ROWS, stride = (int)blockDim.x * vec;
	float acc[ROWS] = {}, wide[vec], x[vec];
	gpu_vec16 piece[ROWS];
	bool waited = false;
	for (int k = (int)threadIdx.x * vec; k < p.k || !waited; k += stride) {
		const bool inside = k < p.k;
		GPU_UNROLL for (int r = 0; r < ROWS; r++)
			if (inside) piece[r] = gpu_load16_stream((const T *)p.w + (n0 + r < p.n ? n0 + r : p.n - 1) * p.w_stride + k);
		if (!waited) {
			gpu_wait_previous();
			gpu_start_next();
			waited = true;
		}
		if (!inside) break;
		GPU_UNROLL for (int i = 0; i < vec; i++) x[i] = gpu_widen(((const T *)p.x)[k + i]);
		GPU_UNROLL for (int r = 0; r < ROWS; r++) {
			gpu_widen16<T>(piece[r], wide);
			GPU_UNROLL for (int i = 0; i < vec; i++) acc[r] = gpu_fma(wide[i], x[i], acc[r]);
		}
	}
	gemv_finish<T, ROWS>(acc, scratch, p, n0);
}

/* Block b: outputs [ROWS b, +ROWS) of the one row of x; thread t has piece t of K and no loop: threads = K / piece rounded up to whole waves, which must not
 * exceed 1024. The kernel that a tensor-parallel degree can make illegal (K = 8704 at two ranks), kept as such. */
template <typename T, int ROWS> GPU_KERNEL(1024) gemv_llmm1_kernel(gemm_problem p)
{
	constexpr int vec = gpu_lanes<T>::count;
	GPU_SHARED(float, scratch, ROWS * 32);
	const int n0 = (int)blockIdx.x * ROWS, k = (int)threadIdx.x * vec;
	const bool inside = k < p.k;
	float acc[ROWS] = {}, wide[vec], x[vec] = {};
	constexpr int group = ROWS < 8 ? ROWS : 8; /* what registers hold */
	gpu_vec16 piece[group];
	GPU_UNROLL for (int r0 = 0; r0 < ROWS; r0 += group) {
		GPU_UNROLL for (int r = 0; r < group; r++)
			if (inside) piece[r] = gpu_load16_stream((const T *)p.w + (n0 + r0 + r < p.n ? n0 + r0 + r : p.n - 1) * p.w_stride + k);
		if (r0 == 0) {
			gpu_wait_previous();
			gpu_start_next();
			if (inside)
				GPU_UNROLL for (int i = 0; i < vec; i++) x[i] = gpu_widen(((const T *)p.x)[k + i]);
		}
		GPU_UNROLL for (int r = 0; r < group; r++) {
			if (!inside) continue;
			gpu_widen16<T>(piece[r], wide);
			GPU_UNROLL for (int i = 0; i < vec; i++) acc[r0 + r] = gpu_fma(wide[i], x[i], acc[r0 + r]);
		}
	}
	gemv_finish<T, ROWS>(acc, scratch, p, n0);
}

static int piece_of(enum dtype type)
{
	return 16 / (int)dtype_bytes(type);
}

static int llmm1_threads(const struct gpu_context *context, const struct gemm_problem *p, int rows)
{
	const int wave = context->props.warp, pieces = (p->k + piece_of(p->type) - 1) / piece_of(p->type);
	const int threads = (pieces + wave - 1) / wave * wave;
	return threads > rows * 16 ? threads : (rows * 16 + wave - 1) / wave * wave;
}

bool gemv_can(const struct gpu_context *context, const struct gemm_problem *p)
{
	(void)context;
	return p->m >= 1 && p->m <= GEMV_MAX_ROWS && p->k % piece_of(p->type) == 0 && (uintptr_t)p->w % 16 == 0 &&
	       p->w_stride * (int64_t)dtype_bytes(p->type) % 16 == 0;
}

struct gemv_shape gemv_default(const struct gpu_context *context, const struct gemm_problem *p)
{
	(void)context;
	struct gemv_shape shape = {GEMV_WAVE, 1, 256};
	if (p->m == 1 && p->n >= 8192) shape.rows = 2;
	return shape;
}

static bool one_of(int value, int lo, int hi)
{
	for (int v = lo; v <= hi; v *= 2)
		if (v == value) return true;
	return false;
}

static enum status check_shape(const struct gpu_context *context, const struct gemm_problem *p, const struct gemv_shape *shape, struct error *err)
{
	const int wave = context->props.warp, most = context->props.max_threads < 1024 ? context->props.max_threads : 1024;
	if (!gemv_can(context, p))
		return FAIL(err, UNSUPPORTED, "gemv: [%d,%d] x [%d,%d]^T of %s; 1 to %d rows, K a multiple of %d and weight rows aligned to 16 bytes are wanted", p->m,
		            p->k, p->n, p->k, dtype_name(p->type), GEMV_MAX_ROWS, piece_of(p->type));
	if (shape->family != GEMV_WAVE && p->m != 1) return FAIL(err, UNSUPPORTED, "gemv: %d rows; this family takes one", p->m);
	if (shape->family == GEMV_LLMM1) {
		const int threads = llmm1_threads(context, p, shape->rows);
		if (!one_of(shape->rows, 2, 16)) return FAIL(err, UNSUPPORTED, "gemv_llmm1: %d rows a block; 2, 4, 8 or 16", shape->rows);
		if (threads > most)
			return FAIL(err, UNSUPPORTED, "gemv_llmm1: K = %d needs %d threads, one for each %d inputs; a block has at most %d", p->k, threads,
			            piece_of(p->type), most);
		return STATUS_OK;
	}
	const int limit = shape->family == GEMV_WAVE && most > GEMV_WAVE_THREADS ? GEMV_WAVE_THREADS : most;
	if (!one_of(shape->rows, 1, p->m == 1 ? 4 : 1) || shape->threads < wave || shape->threads > limit || shape->threads % wave)
		return FAIL(err, UNSUPPORTED, "gemv: %d outputs by %d threads, for %d rows; 1, 2 or 4 (1 for several rows) by whole waves of %d up to %d threads",
		            shape->rows, shape->threads, p->m, wave, limit);
	return STATUS_OK;
}

template <typename T, int M, int ROWS> static gpu_error wave_run(const struct gpu_context *context, const gemm_problem &p, int threads)
{
	const int unit = GEMV_DEPTH * context->props.warp * gpu_lanes<T>::count;
	int chunk_k = GEMV_SHARED / (M * (int)sizeof(T)) / unit * unit;
	if (chunk_k < unit) chunk_k = GEMV_SHARED / (M * (int)sizeof(T)) / gpu_lanes<T>::count * gpu_lanes<T>::count;
	if (chunk_k > p.k) chunk_k = p.k;
	const int per_block = threads / context->props.warp * ROWS;
	return GPU_LAUNCH((gemv_wave_kernel<T, M, ROWS>), dim3((unsigned)((p.n + per_block - 1) / per_block)), dim3((unsigned)threads),
	                  (size_t)chunk_k * M * sizeof(T), context->stream, p, chunk_k);
}

template <typename T> static gpu_error wave_rows(const struct gpu_context *context, const gemm_problem &p, const struct gemv_shape *shape)
{
	if (p.m == 1)
		return shape->rows == 1   ? wave_run<T, 1, 1>(context, p, shape->threads)
		       : shape->rows == 2 ? wave_run<T, 1, 2>(context, p, shape->threads)
		                          : wave_run<T, 1, 4>(context, p, shape->threads);
	return p.m <= 2   ? wave_run<T, 2, 1>(context, p, shape->threads)
	       : p.m <= 4 ? wave_run<T, 4, 1>(context, p, shape->threads)
	       : p.m <= 8 ? wave_run<T, 8, 1>(context, p, shape->threads)
	                  : wave_run<T, 16, 1>(context, p, shape->threads);
}

template <typename T> static gpu_error strided_rows(const struct gpu_context *context, const gemm_problem &p, const struct gemv_shape *shape)
{
	const dim3 grid((unsigned)((p.n + shape->rows - 1) / shape->rows)), block((unsigned)shape->threads);
	return shape->rows == 1   ? GPU_LAUNCH((gemv_strided_kernel<T, 1>), grid, block, 0, context->stream, p)
	       : shape->rows == 2 ? GPU_LAUNCH((gemv_strided_kernel<T, 2>), grid, block, 0, context->stream, p)
	                          : GPU_LAUNCH((gemv_strided_kernel<T, 4>), grid, block, 0, context->stream, p);
}

template <typename T> static gpu_error llmm1_rows(const struct gpu_context *context, const gemm_problem &p, const struct gemv_shape *shape)
{
	const dim3 grid((unsigned)((p.n + shape->rows - 1) / shape->rows)), block((unsigned)llmm1_threads(context, &p, shape->rows));
	return shape->rows == 2   ? GPU_LAUNCH((gemv_llmm1_kernel<T, 2>), grid, block, 0, context->stream, p)
	       : shape->rows == 4 ? GPU_LAUNCH((gemv_llmm1_kernel<T, 4>), grid, block, 0, context->stream, p)
	       : shape->rows == 8 ? GPU_LAUNCH((gemv_llmm1_kernel<T, 8>), grid, block, 0, context->stream, p)
	                          : GPU_LAUNCH((gemv_llmm1_kernel<T, 16>), grid, block, 0, context->stream, p);
}

template <typename T> static gpu_error gemv_typed(const struct gpu_context *context, const gemm_problem &p, const struct gemv_shape *shape)
{
	return shape->family == GEMV_WAVE      ? wave_rows<T>(context, p, shape)
	       : shape->family == GEMV_STRIDED ? strided_rows<T>(context, p, shape)
	                                       : llmm1_rows<T>(context, p, shape);
}

enum status gemv_launch(const struct gpu_context *context, const struct gemm_problem *problem, const struct gemv_shape *shape, struct error *err)
{
	TRY(check_shape(context, problem, shape, err));
	gpu_error code = problem->type == DTYPE_F32   ? gemv_typed<float>(context, *problem, shape)
	                 : problem->type == DTYPE_F16 ? gemv_typed<f16>(context, *problem, shape)
	                                              : gemv_typed<bf16>(context, *problem, shape);
	return gpu_check(code, "launch of gemv", err);
}
