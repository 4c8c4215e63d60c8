/* rows.cu: embedding rows, SwiGLU and GeGLU, soft cap, sums along the tree, gathering of rows. Grids are (row, piece of the row), so that any number of rows
 * fits. Each kernel exists twice: N elements a thread in packs of up to 16 bytes, and N = 1 for odd widths, strides and alignments. */
#include "device/gpu/rows.h"

#define ROW_THREADS 256

static dim3 row_grid(int rows, int cols, int per_thread)
{
	return dim3((unsigned)rows, gpu_blocks(cols, ROW_THREADS * per_thread));
}

/* What is in the table: tokens [begin, begin + n); what their rows are multiplied by. */
struct embed_range {
	int begin, n;
	float scale;
};

/* Thread: N columns of one row, read from the table and widened; of a token that is not there, and in the slots behind the first, -0.0. Bound: bytes
 * read and written. */
template <typename W, typename T, int N>
GPU_KERNEL(ROW_THREADS)
embed_kernel(const W *table, embed_range range, const int32_t *token, T *out, int64_t stride, int64_t slot_stride, int slots, int cols)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = ((int)blockIdx.y * ROW_THREADS + (int)threadIdx.x) * N, row = token[blockIdx.x] - range.begin;
	if (i >= cols) return;
	float v[N], nothing[N];
	GPU_UNROLL for (int j = 0; j < N; j++) v[j] = nothing[j] = -0.0f;
	if (row >= 0 && row < range.n) {
		gpu_load<N>(table + (int64_t)row * cols + i, v);
		GPU_UNROLL for (int j = 0; j < N; j++) v[j] *= range.scale;
	}
	gpu_store<N>(out + blockIdx.x * stride + i, v);
	for (int s = 1; s < slots; s++) gpu_store<N>(out + s * slot_stride + blockIdx.x * stride + i, nothing);
}

template <typename W, typename T> static enum status embed_launch(struct stream *stream, const struct embed_args *a, struct error *err)
{
	const gpu_stream on = gpu_context(stream)->stream;
	const int cols = a->out.cols, slots = a->out.slots;
	const bool packs = cols % 8 == 0 && (uintptr_t)a->table->data % 16 == 0 && gpu_rows_aligned(&a->out, 16) && a->out.slot_stride * (int64_t)sizeof(T) % 16 == 0;
	const W *table = (const W *)a->table->data;
	const embed_range range = {a->begin, a->table->n, a->scale != 0 ? a->scale : 1.0f};
	T *out = (T *)a->out.data;
	if (packs)
		return gpu_check(GPU_LAUNCH((embed_kernel<W, T, 8>), row_grid(a->out.rows, cols, 8), dim3(ROW_THREADS), 0, on, table, range, a->token, out,
		                            a->out.row_stride, a->out.slot_stride, slots, cols), "embed", err);
	return gpu_check(GPU_LAUNCH((embed_kernel<W, T, 1>), row_grid(a->out.rows, cols, 1), dim3(ROW_THREADS), 0, on, table, range, a->token, out,
	                            a->out.row_stride, a->out.slot_stride, slots, cols), "embed", err);
}

template <typename W> static enum status embed_from(struct stream *stream, const struct embed_args *a, struct error *err)
{
	GPU_BY_DTYPE(a->out.dtype, T, "embed out", err, return embed_launch<W, T>(stream, a, err))
}

enum status gpu_embed(struct stream *stream, const struct embed_args *args, struct error *err)
{
	TRY(gpu_expect(&args->out, args->out.dist == TENSOR_PARTIAL ? TENSOR_PARTIAL : TENSOR_REPLICATED, args->out.rows, args->table->k, "embed out", err));
	if (args->out.rows == 0 || args->out.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->table->dtype, W, "embed table", err, return embed_from<W>(stream, args, err))
}

/* Thread: N columns of gate and of up. Bound: 3 sizeof T a column. */
template <typename T, int N, bool GELU> GPU_KERNEL(ROW_THREADS) swiglu_kernel(const T *x, int64_t x_stride, T *out, int64_t out_stride, int cols)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = ((int)blockIdx.y * ROW_THREADS + (int)threadIdx.x) * N;
	if (i >= cols) return;
	float gate[N], up[N];
	gpu_load<N>(x + blockIdx.x * x_stride + i, gate);
	gpu_load<N>(x + blockIdx.x * x_stride + cols + i, up);
	GPU_UNROLL for (int j = 0; j < N; j++) gate[j] = (GELU ? gpu_gelu(gate[j]) : gate[j] / (1.0f + expf(-gate[j]))) * up[j];
	gpu_store<N>(out + blockIdx.x * out_stride + i, gate);
}

template <typename T, bool GELU> static enum status swiglu_launch(struct stream *stream, const struct tensor *from, const struct tensor *to, struct error *err)
{
	constexpr int N = gpu_lanes<T>::count;
	const char *what = GELU ? "geglu" : "swiglu";
	const gpu_stream on = gpu_context(stream)->stream;
	const int cols = to->cols;
	const T *x = (const T *)from->data;
	T *out = (T *)to->data;
	if (cols % N == 0 && gpu_rows_aligned(from, 16) && gpu_rows_aligned(to, 16))
		return gpu_check(GPU_LAUNCH((swiglu_kernel<T, N, GELU>), row_grid(to->rows, cols, N), dim3(ROW_THREADS), 0, on, x, from->row_stride, out,
		                            to->row_stride, cols), what, err);
	return gpu_check(GPU_LAUNCH((swiglu_kernel<T, 1, GELU>), row_grid(to->rows, cols, 1), dim3(ROW_THREADS), 0, on, x, from->row_stride, out,
	                            to->row_stride, cols), what, err);
}

static enum status expect_gated(const struct tensor *x, const struct tensor *out, const char *what, struct error *err)
{
	TRY(gpu_expect(out, TENSOR_SHARDED, out->rows, out->cols, what, err));
	TRY(gpu_expect(x, TENSOR_SHARDED, out->rows, (int64_t)out->cols * 2, what, err));
	if (x->dtype == out->dtype) return STATUS_OK;
	return FAIL(err, BAD_INPUT, "%s: from %s to %s; equal types are wanted", what, dtype_name(x->dtype), dtype_name(out->dtype));
}

enum status gpu_swiglu(struct stream *stream, const struct swiglu_args *args, struct error *err)
{
	TRY(expect_gated(&args->x, &args->out, "swiglu", err));
	if (args->out.rows == 0 || args->out.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->out.dtype, T, "swiglu x", err, return swiglu_launch<T, false>(stream, &args->x, &args->out, err))
}

enum status gpu_geglu(struct stream *stream, const struct geglu_args *args, struct error *err)
{
	TRY(expect_gated(&args->x, &args->out, "geglu", err));
	if (args->out.rows == 0 || args->out.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->out.dtype, T, "geglu x", err, return swiglu_launch<T, true>(stream, &args->x, &args->out, err))
}

/* ---- softcap */

/* Thread: N columns of a row. Bound: the bytes of x, twice. */
template <int N> GPU_KERNEL(ROW_THREADS) softcap_kernel(float *x, int64_t stride, int cols, float cap, float inverse)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = ((int)blockIdx.y * ROW_THREADS + (int)threadIdx.x) * N;
	if (i >= cols) return;
	float v[N];
	x += blockIdx.x * stride + i;
	gpu_load<N>(x, v);
	GPU_UNROLL for (int j = 0; j < N; j++) v[j] = cap * gpu_tanh(v[j] * inverse);
	gpu_store<N>(x, v);
}

enum status gpu_softcap(struct stream *stream, const struct softcap_args *args, struct error *err)
{
	const struct tensor *x = &args->x;
	TRY(gpu_expect(x, x->dist, x->rows, x->cols, "softcap x", err));
	if (x->dtype != DTYPE_F32 || x->dist == TENSOR_PARTIAL)
		return FAIL(err, BAD_INPUT, "softcap: %s %s rows; F32, and no partial, is wanted", tensor_dist_name(x->dist), dtype_name(x->dtype));
	if (!(args->cap > 0)) return FAIL(err, BAD_INPUT, "softcap: a cap of %g; one above 0 is wanted", (double)args->cap);
	if (x->rows == 0 || x->cols == 0) return STATUS_OK;
	const gpu_stream on = gpu_context(stream)->stream;
	const float inverse = 1.0f / args->cap;
	if (x->cols % 4 == 0 && gpu_rows_aligned(x, 16))
		return gpu_check(GPU_LAUNCH(softcap_kernel<4>, row_grid(x->rows, x->cols, 4), dim3(ROW_THREADS), 0, on, (float *)x->data, x->row_stride, x->cols,
		                            args->cap, inverse), "softcap", err);
	return gpu_check(GPU_LAUNCH(softcap_kernel<1>, row_grid(x->rows, x->cols, 1), dim3(ROW_THREADS), 0, on, (float *)x->data, x->row_stride, x->cols, args->cap,
	                            inverse), "softcap", err);
}

/* ---- tree_sum */

#define TREE_SMALL_DEPTH 6 /* up to 8 sources, whatever the tree */

struct tree_params {
	const void *source[TREE_SUM_MAX_SOURCES];
	uint8_t merges[TREE_SUM_MAX_SOURCES];
	int sources, row_begin, cols;
	const void *residual; /* of the type of out; NULL: none */
	int64_t residual_stride, out_stride;
	const float *bias;
	void *out;
};

/* Thread: one element, its stack of partial sums in registers: pushing and merging move the whole stack, so that every place has a fixed
 * register. Bound: the bytes of sources, residual and out. */
template <typename S, typename T, int DEPTH> GPU_KERNEL(ROW_THREADS) tree_sum_kernel(tree_params a)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = (int)blockIdx.y * ROW_THREADS + (int)threadIdx.x;
	if (i >= a.cols) return;
	const int64_t row = a.row_begin + (int64_t)blockIdx.x;
	float stack[DEPTH];
	GPU_UNROLL for (int d = 0; d < DEPTH; d++) stack[d] = 0;
	for (int s = 0; s < a.sources; s++) {
		GPU_UNROLL for (int d = DEPTH - 1; d > 0; d--) stack[d] = stack[d - 1];
		stack[0] = gpu_widen(((const S *)a.source[s])[row * a.cols + i]);
		for (int m = 0; m < a.merges[s]; m++) {
			stack[0] = gpu_add(stack[1], stack[0]);
			GPU_UNROLL for (int d = 1; d + 1 < DEPTH; d++) stack[d] = stack[d + 1];
		}
	}
	float sum = stack[0];
	if (a.bias) sum = gpu_add(sum, a.bias[i]);
	if (a.residual) sum = gpu_add(gpu_widen(((const T *)a.residual)[row * a.residual_stride + i]), sum);
	((T *)a.out)[row * a.out_stride + i] = gpu_narrow<T>(sum);
}

template <typename S, typename T> static enum status tree_sum_launch(struct stream *stream, const struct tree_sum_args *a, int depth, struct error *err)
{
	struct tree_params p = {{}, {}, a->sources, a->row_begin, a->out.cols, a->residual.data, a->residual.row_stride, a->out.row_stride, a->bias, a->out.data};
	for (int i = 0; i < a->sources; i++) p.source[i] = a->source[i], p.merges[i] = a->merges[i];
	const dim3 grid = row_grid(a->row_end - a->row_begin, a->out.cols, 1), block(ROW_THREADS);
	const gpu_stream on = gpu_context(stream)->stream;
	return gpu_check(depth <= TREE_SMALL_DEPTH ? GPU_LAUNCH((tree_sum_kernel<S, T, TREE_SMALL_DEPTH>), grid, block, 0, on, p)
	                                           : GPU_LAUNCH((tree_sum_kernel<S, T, SUMTREE_MAX_DEPTH>), grid, block, 0, on, p),
	                 "tree_sum", err);
}

template <typename S> static enum status tree_sum_from(struct stream *stream, const struct tree_sum_args *a, int depth, struct error *err)
{
	GPU_BY_DTYPE(a->out.dtype, T, "tree_sum out", err, return tree_sum_launch<S, T>(stream, a, depth, err))
}

enum status gpu_tree_sum(struct stream *stream, const struct tree_sum_args *args, struct error *err)
{
	int depth;
	TRY(gpu_expect(&args->out, TENSOR_REPLICATED, args->out.rows, args->out.cols, "tree_sum out", err));
	TRY(ops_check_program(args, &depth, err));
	if (args->residual.data) {
		TRY(gpu_expect(&args->residual, TENSOR_REPLICATED, args->out.rows, args->out.cols, "tree_sum residual", err));
		if (args->residual.dtype != args->out.dtype)
			return FAIL(err, BAD_INPUT, "tree_sum: residual of %s, out of %s", dtype_name(args->residual.dtype), dtype_name(args->out.dtype));
	}
	if (args->row_begin < 0 || args->row_end > args->out.rows)
		return FAIL(err, BAD_INPUT, "tree_sum: rows [%d,%d) of %d", args->row_begin, args->row_end, args->out.rows);
	if (args->row_end <= args->row_begin || args->out.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->source_dtype, S, "tree_sum source", err, return tree_sum_from<S>(stream, args, depth, err))
}

/* ---- gather_rows */

/* Thread: one piece of `U` of a row. Bound: bytes read and written. */
template <typename U> GPU_KERNEL(ROW_THREADS) gather_kernel(const U *x, int64_t x_stride, const int32_t *row, U *out, int64_t out_stride, int pieces)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = (int)blockIdx.y * ROW_THREADS + (int)threadIdx.x;
	if (i < pieces) out[blockIdx.x * out_stride + i] = x[row[blockIdx.x] * x_stride + i];
}

template <typename U> static enum status gather_launch(struct stream *stream, const struct gather_rows_args *a, struct error *err)
{
	const int unit = (int)dtype_bytes(a->x.dtype), pieces = (int)((int64_t)a->out.cols * unit / (int)sizeof(U));
	return gpu_check(GPU_LAUNCH(gather_kernel<U>, row_grid(a->out.rows, pieces, 1), dim3(ROW_THREADS), 0, gpu_context(stream)->stream, (const U *)a->x.data,
	                            a->x.row_stride * unit / (int)sizeof(U), a->row, (U *)a->out.data, a->out.row_stride * unit / (int)sizeof(U), pieces),
	                 "gather_rows", err);
}

enum status gpu_gather_rows(struct stream *stream, const struct gather_rows_args *args, struct error *err)
{
	TRY(gpu_expect(&args->out, args->x.dist, args->out.rows, args->x.cols, "gather_rows out", err));
	if (args->x.dist == TENSOR_PARTIAL || args->x.dtype != args->out.dtype)
		return FAIL(err, BAD_INPUT, "gather_rows: from %s %s rows to %s rows; equal types and no partial are wanted", tensor_dist_name(args->x.dist),
		            dtype_name(args->x.dtype), dtype_name(args->out.dtype));
	if (args->out.rows == 0 || args->out.cols == 0) return STATUS_OK;
	const size_t bytes = (size_t)args->out.cols * dtype_bytes(args->x.dtype);
	if (bytes % 16 == 0 && gpu_rows_aligned(&args->x, 16) && gpu_rows_aligned(&args->out, 16)) return gather_launch<gpu_vec16>(stream, args, err);
	return dtype_bytes(args->x.dtype) == 4 ? gather_launch<uint32_t>(stream, args, err) : gather_launch<uint16_t>(stream, args, err);
}
