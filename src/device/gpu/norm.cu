/* norm.cu: RMS norm over rows, of what is added to the residual stream, and over heads. */
#include "device/gpu/rows.h"

#define NORM_MAX_THREADS 1024
#define NORM_PACK 8   /* elements a thread holds per pass */
#define NORM_PASSES 2 /* so rows of up to 16384 stay in registers */

/* Block: one row. Thread: packs threadIdx.x, + blockDim.x, … of 8 elements, which stay in registers between the sum and the result; the
 * weights are on their way before the kernel waits for the row. Rows and weights aligned to a pack (16 bytes of T, 32 of f32 in two).
 * Shared: 128 bytes. n a multiple of 8, at most 16384. Bound: (sizeof X + sizeof T) n bytes a row; one row alone is a launch, two round
 * trips to memory and a barrier. */
template <typename X, typename T, int PASSES> GPU_KERNEL(NORM_MAX_THREADS)
rms_norm_kernel(const X *x, int64_t x_stride, const float *weight, float eps, T *out, int64_t out_stride, int n)
{
	GPU_SHARED(float, scratch, 32);
	const int packs = n / NORM_PACK;
	float w[PASSES][NORM_PACK], v[PASSES][NORM_PACK], sum = 0;
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = (int)threadIdx.x + p * (int)blockDim.x;
		if (at < packs) gpu_load<NORM_PACK>(weight + at * NORM_PACK, w[p]);
	}
	gpu_wait_previous();
	gpu_start_next();
	x += blockIdx.x * x_stride;
	out += blockIdx.x * out_stride;
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = (int)threadIdx.x + p * (int)blockDim.x;
		if (at >= packs) continue;
		gpu_load<NORM_PACK>(x + at * NORM_PACK, v[p]);
		GPU_UNROLL for (int i = 0; i < NORM_PACK; i++) sum = gpu_fma(v[p][i], v[p][i], sum);
	}
	sum = gpu_block_sum(sum, scratch);
	const float r = 1.0f / sqrtf(sum / (float)n + eps);
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = (int)threadIdx.x + p * (int)blockDim.x;
		if (at >= packs) continue;
		GPU_UNROLL for (int i = 0; i < NORM_PACK; i++) v[p][i] = v[p][i] * r * w[p][i];
		gpu_store<NORM_PACK>(out + at * NORM_PACK, v[p]);
	}
}

/* The same for any width and alignment: an element a thread and pass, read twice. */
template <typename X, typename T> GPU_KERNEL(NORM_MAX_THREADS)
rms_norm_any_kernel(const X *x, int64_t x_stride, const float *weight, float eps, T *out, int64_t out_stride, int n)
{
	GPU_SHARED(float, scratch, 32);
	gpu_wait_previous();
	gpu_start_next();
	x += blockIdx.x * x_stride;
	out += blockIdx.x * out_stride;
	float sum = 0;
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) sum = gpu_fma(gpu_widen(x[i]), gpu_widen(x[i]), sum);
	sum = gpu_block_sum(sum, scratch);
	const float r = 1.0f / sqrtf(sum / (float)n + eps);
	for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) out[i] = gpu_narrow<T>(gpu_widen(x[i]) * r * weight[i]);
}

template <typename X, typename T> static enum status rms_norm_launch(struct stream *stream, const struct rms_norm_args *a, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const int n = a->x.cols, packs = n / NORM_PACK, most = context->props.max_threads < NORM_MAX_THREADS ? context->props.max_threads : NORM_MAX_THREADS;
	const bool aligned = gpu_rows_aligned(&a->x, 16) && gpu_rows_aligned(&a->out, 16) && (uintptr_t)a->weight % 16 == 0;
	const dim3 grid((unsigned)a->x.rows);
	gpu_error code;
	if (n % NORM_PACK == 0 && aligned && packs <= most * NORM_PASSES) {
		int threads = gpu_round_up(packs, GPU_WARP);
		if (threads > most) threads = gpu_round_up((packs + 1) / 2, GPU_WARP);
		if (threads >= packs)
			code = GPU_LAUNCH((rms_norm_kernel<X, T, 1>), grid, dim3((unsigned)threads), 0, context->stream, (const X *)a->x.data, a->x.row_stride,
			                  a->weight, a->eps, (T *)a->out.data, a->out.row_stride, n);
		else
			code = GPU_LAUNCH((rms_norm_kernel<X, T, NORM_PASSES>), grid, dim3((unsigned)threads), 0, context->stream, (const X *)a->x.data,
			                  a->x.row_stride, a->weight, a->eps, (T *)a->out.data, a->out.row_stride, n);
	} else {
		const int threads = n < 512 ? gpu_round_up(n, GPU_WARP) : 512;
		code = GPU_LAUNCH((rms_norm_any_kernel<X, T>), grid, dim3((unsigned)threads), 0, context->stream, (const X *)a->x.data, a->x.row_stride,
		                  a->weight, a->eps, (T *)a->out.data, a->out.row_stride, n);
	}
	return gpu_check(code, "rms_norm", err);
}

template <typename X> static enum status rms_norm_from(struct stream *stream, const struct rms_norm_args *a, struct error *err)
{
	GPU_BY_DTYPE(a->out.dtype, T, "rms_norm out", err, return rms_norm_launch<X, T>(stream, a, err))
}

enum status gpu_rms_norm(struct stream *stream, const struct rms_norm_args *args, struct error *err)
{
	TRY(gpu_expect(&args->x, TENSOR_REPLICATED, args->x.rows, args->x.cols, "rms_norm x", err));
	TRY(gpu_expect(&args->out, TENSOR_REPLICATED, args->x.rows, args->x.cols, "rms_norm out", err));
	if (args->x.rows == 0 || args->x.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->x.dtype, X, "rms_norm x", err, return rms_norm_from<X>(stream, args, err))
}

/* ---- norm_add: x += rms_norm(y) weight, then perhaps h = rms_norm(x) next */

struct norm_add_params {
	float *x;
	const float *y;
	int64_t x_stride, y_stride, h_stride;
	const float *weight, *next; /* next NULL: no h */
	float eps;
	void *h;
	int n;
};

/* Block and threads as rms_norm_kernel: a row, in registers from the first load to h. With one pass both weights are on their way before the kernel waits;
 * registers do not hold two passes of them. Bound: 12 n bytes and sizeof T n a row; one row alone is a launch, two round trips to memory and two barriers. */
template <typename T, int PASSES> GPU_KERNEL(NORM_MAX_THREADS) norm_add_kernel(norm_add_params a)
{
	GPU_SHARED(float, scratch, 32);
	constexpr bool early = PASSES == 1;
	const int first = (int)threadIdx.x * NORM_PACK, step = (int)blockDim.x * NORM_PACK;
	float w[NORM_PACK], next[NORM_PACK], v[PASSES][NORM_PACK], x[PASSES][NORM_PACK], sum = 0;
	if (early && first < a.n) {
		gpu_load<NORM_PACK>(a.weight + first, w);
		if (a.next) gpu_load<NORM_PACK>(a.next + first, next);
	}
	gpu_wait_previous();
	gpu_start_next();
	float *row = a.x + blockIdx.x * a.x_stride;
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = first + p * step;
		if (at >= a.n) continue;
		gpu_load<NORM_PACK>(a.y + blockIdx.x * a.y_stride + at, v[p]);
		gpu_load<NORM_PACK>(row + at, x[p]);
		GPU_UNROLL for (int i = 0; i < NORM_PACK; i++) sum = gpu_fma(v[p][i], v[p][i], sum);
	}
	float r = 1.0f / sqrtf(gpu_block_sum(sum, scratch) / (float)a.n + a.eps);
	sum = 0;
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = first + p * step;
		if (at >= a.n) continue;
		if (!early) gpu_load<NORM_PACK>(a.weight + at, w);
		GPU_UNROLL for (int i = 0; i < NORM_PACK; i++) {
			x[p][i] = gpu_add(x[p][i], gpu_mul(v[p][i] * r, w[i]));
			sum = gpu_fma(x[p][i], x[p][i], sum);
		}
		gpu_store<NORM_PACK>(row + at, x[p]);
	}
	if (!a.next) return;
	r = 1.0f / sqrtf(gpu_block_sum(sum, scratch) / (float)a.n + a.eps);
	GPU_UNROLL for (int p = 0; p < PASSES; p++)
	{
		const int at = first + p * step;
		if (at >= a.n) continue;
		if (!early) gpu_load<NORM_PACK>(a.next + at, next);
		GPU_UNROLL for (int i = 0; i < NORM_PACK; i++) x[p][i] = x[p][i] * r * next[i];
		gpu_store<NORM_PACK>((T *)a.h + blockIdx.x * a.h_stride + at, x[p]);
	}
}

/* The same for any width and alignment: an element a thread and pass. A thread reads again only what it wrote itself. */
template <typename T> GPU_KERNEL(NORM_MAX_THREADS) norm_add_any_kernel(norm_add_params a)
{
	GPU_SHARED(float, scratch, 32);
	gpu_wait_previous();
	gpu_start_next();
	float *x = a.x + blockIdx.x * a.x_stride;
	const float *y = a.y + blockIdx.x * a.y_stride;
	float sum = 0;
	for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) sum = gpu_fma(y[i], y[i], sum);
	float r = 1.0f / sqrtf(gpu_block_sum(sum, scratch) / (float)a.n + a.eps);
	sum = 0;
	for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) {
		const float v = gpu_add(x[i], gpu_mul(y[i] * r, a.weight[i]));
		x[i] = v;
		sum = gpu_fma(v, v, sum);
	}
	if (!a.next) return;
	r = 1.0f / sqrtf(gpu_block_sum(sum, scratch) / (float)a.n + a.eps);
	T *h = (T *)a.h + blockIdx.x * a.h_stride;
	for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) h[i] = gpu_narrow<T>(x[i] * r * a.next[i]);
}

template <typename T> static enum status norm_add_launch(struct stream *stream, const struct norm_add_args *a, struct error *err)
{
	const struct gpu_context *context = gpu_context(stream);
	const int n = a->x.cols, packs = n / NORM_PACK, most = context->props.max_threads < NORM_MAX_THREADS ? context->props.max_threads : NORM_MAX_THREADS;
	const bool aligned = gpu_rows_aligned(&a->x, 16) && gpu_rows_aligned(&a->y, 16) && (uintptr_t)a->weight % 16 == 0 && (uintptr_t)a->next % 16 == 0 &&
	                     (!a->next || gpu_rows_aligned(&a->h, 16));
	const norm_add_params p = {(float *)a->x.data, (const float *)a->y.data, a->x.row_stride, a->y.row_stride, a->h.row_stride, a->weight, a->next, a->eps,
	                           a->h.data, n};
	const dim3 grid((unsigned)a->x.rows);
	if (n % NORM_PACK || !aligned || packs > most * NORM_PASSES)
		return gpu_check(GPU_LAUNCH((norm_add_any_kernel<T>), grid, dim3((unsigned)(n < 512 ? gpu_round_up(n, GPU_WARP) : 512)), 0, context->stream, p), "norm_add",
		                 err);
	int threads = gpu_round_up(packs, GPU_WARP);
	if (threads > most) threads = gpu_round_up((packs + 1) / 2, GPU_WARP);
	return gpu_check(threads >= packs ? GPU_LAUNCH((norm_add_kernel<T, 1>), grid, dim3((unsigned)threads), 0, context->stream, p)
	                                  : GPU_LAUNCH((norm_add_kernel<T, NORM_PASSES>), grid, dim3((unsigned)threads), 0, context->stream, p),
	                 "norm_add", err);
}

enum status gpu_norm_add(struct stream *stream, const struct norm_add_args *args, struct error *err)
{
	TRY(gpu_expect(&args->x, TENSOR_REPLICATED, args->x.rows, args->x.cols, "norm_add x", err));
	TRY(gpu_expect(&args->y, TENSOR_REPLICATED, args->x.rows, args->x.cols, "norm_add y", err));
	if (args->next) TRY(gpu_expect(&args->h, TENSOR_REPLICATED, args->x.rows, args->x.cols, "norm_add h", err));
	if (args->x.dtype != DTYPE_F32 || args->y.dtype != DTYPE_F32)
		return FAIL(err, UNSUPPORTED, "norm_add: rows of %s added to rows of %s; F32 is wanted", dtype_name(args->y.dtype), dtype_name(args->x.dtype));
	if (args->x.rows == 0 || args->x.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->next ? args->h.dtype : DTYPE_F32, T, "norm_add h", err, return norm_add_launch<T>(stream, args, err))
}

#define HEAD_NORM_WAVES 4

/* Wave: one head of one row, lanes along its columns; any width, read twice. For models whose heads the fused kernel of rope.cu does not
 * take, so not tuned. */
template <typename T> GPU_KERNEL(HEAD_NORM_WAVES * GPU_WARP) head_norm_kernel(T *x, int64_t stride, int rows, int heads, int dim, const float *weight, float eps)
{
	gpu_wait_previous();
	gpu_start_next();
	const int lane = (int)threadIdx.x % GPU_WARP;
	const int64_t head = (int64_t)blockIdx.x * HEAD_NORM_WAVES + (int)threadIdx.x / GPU_WARP;
	if (head >= (int64_t)rows * heads) return;
	x += head / heads * stride + head % heads * dim;
	float sum = 0;
	for (int i = lane; i < dim; i += GPU_WARP) sum = gpu_fma(gpu_widen(x[i]), gpu_widen(x[i]), sum);
	sum = gpu_warp_sum(sum);
	const float r = 1.0f / sqrtf(sum / (float)dim + eps);
	for (int i = lane; i < dim; i += GPU_WARP) x[i] = gpu_narrow<T>(gpu_widen(x[i]) * r * weight[i]);
}

template <typename T> static enum status head_norm_launch(struct stream *stream, const struct head_norm_args *a, struct error *err)
{
	const dim3 grid(gpu_blocks((int64_t)a->x.rows * a->heads, HEAD_NORM_WAVES)), block(HEAD_NORM_WAVES * GPU_WARP);
	return gpu_check(GPU_LAUNCH(head_norm_kernel<T>, grid, block, 0, gpu_context(stream)->stream, (T *)a->x.data, a->x.row_stride, a->x.rows, a->heads,
	                            a->head_dim, a->weight, a->eps),
	                 "head_norm", err);
}

enum status gpu_head_norm(struct stream *stream, const struct head_norm_args *args, struct error *err)
{
	TRY(gpu_expect(&args->x, TENSOR_SHARDED, args->x.rows, (int64_t)args->heads * args->head_dim, "head_norm x", err));
	if (args->x.rows == 0 || args->x.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->x.dtype, T, "head_norm x", err, return head_norm_launch<T>(stream, args, err))
}
