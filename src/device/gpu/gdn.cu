/* gdn.cu: the gated delta net on a GPU, and the output gate of attention. Which kernel takes which sequences; any shape and any number of rows.
 *
 * S of a value head is transposed in the cache, [v_dim][k_dim]: four neighbouring lanes share a column of S, and what they hold of it stays in registers from
 * row to row of a sequence. A block goes through the rows of its sequence in tiles: convolution of the tile's q, k and v into shared memory, norms and rates,
 * then row by row without a barrier. Steps of one row a sequence (most shapes have gdn_decode.cu for that), and short sequences beside
 * chunks: a block has a whole head and makes its norm too. Else a head's columns are spread over blocks, each of which convolves q and k for itself, and the norm is a kernel behind it.
 * Long sequences may go in chunks (gdn_chunk.h).
 */
#include "device/gpu/gdn.h"
#include "device/gpu/gdn_chunk.h"
#include "device/gpu/rows.h"

#define GDN_PARTS 4    /* lanes that share a column */
#define GDN_PACK 4     /* neighbouring rows of S that a lane has: 16 bytes */
#define GDN_TILE 32    /* rows of a sequence at a time */
#define GDN_WHOLE_TILE 16 /* by a block that has a whole head, beside chunks: what fits into 48 KiB of shared memory */
#define GDN_COLUMNS 32 /* of S, of a block, where a head is spread */
#define GDN_WHOLE_V 128 /* a wider head is spread always: more threads would have too few registers */

/* Where the parts of a block's shared memory are; f32 all of them. A row of the tile has the padded k_dim of q, that of k, and the columns of v. */
struct gdn_shared {
	float *qkv;   /* [tile][span] */
	float *o;     /* [tile][columns] */
	float *z;     /* [tile][columns], WHOLE only */
	float *conv;  /* [taps][span] */
	float *beta, *decay; /* [tile] */
	int span;
};

GPU_DEVICE gdn_shared gdn_carve(void *memory, const gdn_params &p, int width, bool whole)
{
	gdn_shared m;
	m.span = 2 * width + p.columns;
	m.qkv = (float *)memory, m.o = m.qkv + p.tile * m.span, m.z = m.o + p.tile * p.columns, m.conv = m.z + (whole ? p.tile * p.columns : 0);
	m.beta = m.conv + p.taps * m.span, m.decay = m.beta + p.tile;
	return m;
}
static size_t gdn_shared_bytes(const gdn_params *p, int width, bool whole)
{
	const int span = 2 * width + p->columns;
	return sizeof(float) * (size_t)(p->tile * (span + (whole ? 2 : 1) * p->columns + 2) + p->taps * span);
}

/* Which channel column i of a tile's row is; -1: padding. */
struct gdn_columns {
	int width, k_dim, q, k, v, count; /* first channels; columns of v */
};
GPU_DEVICE int gdn_channel(const gdn_columns &c, int i)
{
	if (i < c.width) return i < c.k_dim ? c.q + i : -1;
	if (i < 2 * c.width) return i - c.width < c.k_dim ? c.k + i - c.width : -1;
	return i - 2 * c.width < c.count ? c.v + i - 2 * c.width : -1;
}

/* A sequence as a block sees it. */
template <typename T> struct gdn_rows {
	const T *qkvz;   /* of its first row in this step */
	const T *before; /* [taps - 1][channels] inputs of the steps before; NULL: none */
	int rows, channels;
};

/* Input of a channel in row t of this step; below 0: of an earlier one. */
template <typename T> GPU_TEMPLATE float gdn_input(const gdn_rows<T> &s, const gdn_params &p, int t, int channel)
{
	if (t >= 0) return gpu_widen(s.qkvz[t * p.stride + channel]);
	return s.before ? gpu_widen(s.before[(int64_t)(t + p.taps - 1) * s.channels + channel]) : 0.0f;
}

/* Rows [first, first + n) convolved; padding becomes 0. All threads. */
template <typename T> GPU_TEMPLATE void gdn_convolve(const gdn_shared &m, const gdn_rows<T> &s, const gdn_params &p, const gdn_columns &columns, int first, int n)
{
	for (int i = (int)threadIdx.x; i < n * m.span; i += (int)blockDim.x) {
		const int t = i / m.span, c = i % m.span, channel = gdn_channel(columns, c);
		float sum = 0;
		if (channel >= 0)
			for (int tap = 0; tap < p.taps; tap++) sum = gpu_fma(m.conv[tap * m.span + c], gdn_input(s, p, first + t - (p.taps - 1) + tap, channel), sum);
		m.qkv[i] = sum / (1.0f + expf(-sum));
	}
}

/* The last taps - 1 inputs of channels [channel, channel + count) to the slot that is written. */
template <typename T> GPU_TEMPLATE void gdn_keep(T *out, const gdn_rows<T> &s, const gdn_params &p, int channel, int count)
{
	for (int i = (int)threadIdx.x; i < (p.taps - 1) * count; i += (int)blockDim.x) {
		const int back = i / count, c = channel + i % count;
		out[(int64_t)back * s.channels + c] = gpu_narrow<T>(gdn_input(s, p, s.rows - (p.taps - 1) + back, c));
	}
}

/* beta and decay of a tile's rows; the last threads, which have the least of the convolution to do. */
template <typename T> GPU_TEMPLATE void gdn_rates(const gdn_shared &m, const gdn_params &p, const T *ba, int head, int n)
{
	for (int t = (int)blockDim.x - 1 - (int)threadIdx.x; t < n; t += (int)blockDim.x) {
		const T *row = ba + t * p.ba_stride;
		const float a = gpu_widen(row[p.v_heads + head]) + p.dt_bias[head], soft = fmaxf(a, 0.0f) + log1pf(expf(-fabsf(a)));
		m.beta[t] = 1.0f / (1.0f + expf(-gpu_widen(row[head])));
		m.decay[t] = expf(-expf(p.a_log[head]) * soft);
	}
}

/* Rows of q and of k to length 1 (q: divided by sqrt(k_dim) besides), a wave a row. */
GPU_DEVICE void gdn_lengths(const gdn_shared &m, const gdn_params &p, int width, int n)
{
	const int wave = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP, waves = (int)blockDim.x / GPU_WARP;
	for (int i = wave; i < 2 * n; i += waves) {
		float *row = m.qkv + (i % n) * m.span + (i < n ? 0 : width), sum = 0;
		for (int c = lane; c < width; c += GPU_WARP) sum = gpu_fma(row[c], row[c], sum);
		const float r = (i < n ? 1.0f / sqrtf((float)p.k_dim) : 1.0f) / sqrtf(gpu_warp_sum(sum) + GDN_L2_EPS);
		for (int c = lane; c < width; c += GPU_WARP) row[c] *= r;
	}
}

/* One row of the delta rule for a lane's share of a column. */
template <int PACKS> GPU_TEMPLATE float gdn_row(float s[PACKS][GDN_PACK], const float *q, const float *k, float v, float beta, float decay)
{
	float found = 0, o = 0;
	GPU_UNROLL for (int j = 0; j < PACKS; j++)
		GPU_UNROLL for (int e = 0; e < GDN_PACK; e++) {
			s[j][e] *= decay;
			found = gpu_fma(k[j * GDN_PACK * GDN_PARTS + e], s[j][e], found);
		}
	found += gpu_shfl_xor(found, 1);
	found += gpu_shfl_xor(found, 2);
	const float change = (v - found) * beta;
	GPU_UNROLL for (int j = 0; j < PACKS; j++)
		GPU_UNROLL for (int e = 0; e < GDN_PACK; e++) {
			s[j][e] = gpu_fma(k[j * GDN_PACK * GDN_PARTS + e], change, s[j][e]);
			o = gpu_fma(q[j * GDN_PACK * GDN_PARTS + e], s[j][e], o);
		}
	o += gpu_shfl_xor(o, 1);
	return o + gpu_shfl_xor(o, 2);
}

/* norm and gate of a row's head from o and z in shared memory; a wave. */
template <typename T> GPU_TEMPLATE void gdn_norm_row(const float *o, const float *z, T *out, const gdn_params &p)
{
	const int lane = (int)threadIdx.x % GPU_WARP;
	float sum = 0;
	for (int c = lane; c < p.v_dim; c += GPU_WARP) sum = gpu_fma(o[c], o[c], sum);
	const float r = 1.0f / sqrtf(gpu_warp_sum(sum) / (float)p.v_dim + p.eps);
	for (int c = lane; c < p.v_dim; c += GPU_WARP) out[c] = gpu_narrow<T>(z[c] / (1.0f + expf(-z[c])) * (o[c] * r * p.norm[c]));
}

/* A lane's share of column `column` of S: rows part * 4 + 16 j + (0..3). */
template <int PACKS, bool STORE> GPU_TEMPLATE void gdn_move(float s[PACKS][GDN_PACK], float *at, int part, int k_dim)
{
	GPU_UNROLL for (int j = 0; j < PACKS; j++) {
		const int i = (j * GDN_PARTS + part) * GDN_PACK;
		if (i + GDN_PACK <= k_dim && k_dim % GDN_PACK == 0) {
			if (STORE) gpu_store<GDN_PACK>(at + i, s[j]);
			else gpu_load<GDN_PACK>(at + i, s[j]);
			continue;
		}
		GPU_UNROLL for (int e = 0; e < GDN_PACK; e++) {
			if (STORE && i + e < k_dim) at[i + e] = s[j][e];
			if (!STORE) s[j][e] = i + e < k_dim ? at[i + e] : 0.0f;
		}
	}
}

/* Block (b, h, s): columns [b * columns, ...) of value head h of sequence first_seq + s; thread: lane part t % 4 of column t / 4. k_dim up to 16 PACKS. WHOLE: the block has
 * all columns and writes what out_proj reads; else o. Shared: gdn_shared. The sink, slot 0, is not written: many padding rows would at once. The
 * launch bounds, more threads than run, are what makes ptxas take registers enough. Bound: a step of
 * one row reads and writes S once; with many 7 operations an element of S and row. */
template <typename T, int PACKS, bool WHOLE> GPU_KERNEL(PACKS > 2 ? GDN_PARTS *GDN_WHOLE_V : 2 * GDN_PARTS *GDN_WHOLE_V) gdn_kernel(gdn_params p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	constexpr int width = PACKS * GDN_PACK * GDN_PARTS;
	const int seq = p.first_seq + (int)blockIdx.z, head = (int)blockIdx.y, k_head = head / (p.v_heads / p.k_heads), begin = (int)blockIdx.x * p.columns;
	const int columns = p.v_dim - begin < p.columns ? p.v_dim - begin : p.columns, column = (int)threadIdx.x / GDN_PARTS, part = (int)threadIdx.x % GDN_PARTS;
	const int first = p.row_start[seq], keys = p.k_heads * p.k_dim, value = 2 * keys + head * p.v_dim, read = p.read[seq], write = p.write[seq];
	const int at = (head * p.v_dim + begin + column) * p.k_dim;
	const gdn_shared m = gdn_carve(dynamic, p, width, WHOLE);
	const gdn_columns where = {width, p.k_dim, k_head * p.k_dim, keys + k_head * p.k_dim, value + begin, columns};
	const char *old = p.state + (read < 0 ? 0 : read) * p.slot_bytes;
	const gdn_rows<T> s = {(const T *)p.qkvz + first * p.stride, read < 0 ? NULL : (const T *)(old + p.inputs_at), p.row_start[seq + 1] - first,
	                       2 * keys + p.v_heads * p.v_dim};
	if (s.rows > p.longest) {
		gpu_wait_previous();
		return;
	}
	float state[PACKS][GDN_PACK] = {};
	if (p.fresh) gpu_wait_previous(); /* else what is read is as old as weights: an earlier step left it */
	if (read >= 0 && column < columns) gdn_move<PACKS, false>(state, (float *)old + at, part, p.k_dim);
	for (int i = (int)threadIdx.x; i < p.taps * m.span; i += (int)blockDim.x) {
		const int channel = gdn_channel(where, i % m.span);
		m.conv[i] = channel < 0 ? 0.0f : p.conv[(int64_t)(i / m.span) * s.channels + channel];
	}
	gpu_sync();
	gpu_wait_previous();
	gpu_start_next();
	for (int t0 = 0; t0 < s.rows; t0 += p.tile) {
		const int n = s.rows - t0 < p.tile ? s.rows - t0 : p.tile;
		gdn_rates(m, p, (const T *)p.ba + (first + t0) * p.ba_stride, head, n);
		gdn_convolve(m, s, p, where, t0, n);
		if (WHOLE)
			for (int i = (int)threadIdx.x; i < n * columns; i += (int)blockDim.x)
				m.z[i] = gpu_widen(s.qkvz[(t0 + i / columns) * p.stride + s.channels + head * p.v_dim + i % columns]);
		gpu_sync();
		gdn_lengths(m, p, width, n);
		gpu_sync();
		for (int t = 0; t < n; t++) {
			const float *row = m.qkv + t * m.span;
			const float v = column < columns ? row[2 * width + column] : 0.0f;
			const float o = gdn_row<PACKS>(state, row + part * GDN_PACK, row + width + part * GDN_PACK, v, m.beta[t], m.decay[t]);
			if (part == 0 && column < columns) m.o[t * p.columns + column] = o;
		}
		gpu_sync();
		T *out = (T *)p.out + (first + t0) * p.out_stride + head * p.v_dim + begin;
		if (WHOLE)
			for (int t = (int)threadIdx.x / GPU_WARP; t < n; t += (int)blockDim.x / GPU_WARP)
				gdn_norm_row<T>(m.o + t * p.columns, m.z + t * p.columns, out + t * p.out_stride, p);
		else
			for (int i = (int)threadIdx.x; i < n * columns; i += (int)blockDim.x)
				out[i / columns * p.out_stride + i % columns] = gpu_narrow<T>(m.o[i / columns * p.columns + i % columns]);
	}
	if (write == 0) return;
	char *next = p.state + write * p.slot_bytes;
	if (column < columns) gdn_move<PACKS, true>(state, (float *)next + at, part, p.k_dim);
	T *inputs = (T *)(next + p.inputs_at);
	gdn_keep(inputs, s, p, value + begin, columns);
	if (begin || head % (p.v_heads / p.k_heads)) return;
	gdn_keep(inputs, s, p, k_head * p.k_dim, p.k_dim);
	gdn_keep(inputs, s, p, keys + k_head * p.k_dim, p.k_dim);
}

#define GDN_NORM_WAVES 4

/* Wave: norm and gate of one head of one row, in place; the sequences before first_seq have one row each. Shared: a head a wave. Bound: out read and
 * written, z read. */
template <typename T> GPU_KERNEL(GDN_NORM_WAVES * GPU_WARP) gdn_norm_kernel(gdn_params p, int64_t items, int z_at)
{
	GPU_SHARED(float, o, 2 * GDN_NORM_WAVES * GDN_MAX_V);
	gpu_wait_previous();
	gpu_start_next();
	const int wave = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
	const int64_t item = (int64_t)blockIdx.x * GDN_NORM_WAVES + wave;
	if (item >= items) return;
	const int64_t row = p.first_seq + item / p.v_heads;
	const int head = (int)(item % p.v_heads);
	T *out = (T *)p.out + row * p.out_stride + head * p.v_dim;
	const T *z = (const T *)p.qkvz + row * p.stride + z_at + head * p.v_dim;
	float *mine = o + 2 * wave * GDN_MAX_V;
	for (int c = lane; c < p.v_dim; c += GPU_WARP) mine[c] = gpu_widen(out[c]), mine[GDN_MAX_V + c] = gpu_widen(z[c]);
	gdn_norm_row<T>(mine, mine + GDN_MAX_V, out, p); /* each lane reads what it wrote */
}

/* Sequences from p.first_seq on, any number of rows each; chunks: long ones in chunks. */
template <typename T, int PACKS> static gpu_error gdn_rest(const struct gpu_context *context, gdn_params p, const struct gdn_args *a, bool chunks)
{
	const struct step_rows *rows = a->rows;
	const bool whole = chunks || (!context->invariant && rows->max_seq_rows <= 1 && p.v_dim <= GDN_WHOLE_V);
	p.columns = whole || p.v_dim < GDN_COLUMNS ? p.v_dim : GDN_COLUMNS;
	p.tile = !whole ? GDN_TILE : chunks ? GDN_WHOLE_TILE : 1;
	p.longest = chunks ? GDN_CHUNK - 1 : rows->max_seq_rows;
	const dim3 grid(gpu_blocks(p.v_dim, p.columns), (unsigned)p.v_heads, (unsigned)(rows->seqs - p.first_seq));
	const dim3 block((unsigned)gpu_round_up(GDN_PARTS * p.columns, GPU_WARP));
	const size_t shared = gdn_shared_bytes(&p, PACKS * GDN_PACK * GDN_PARTS, whole);
	gpu_error code = chunks ? gdn_launch_chunks(context, a) : GPU_OK;
	const bool all_long = (int64_t)(rows->seqs - p.first_seq) * rows->max_seq_rows == rows->rows - p.first_seq;
	if (code != GPU_OK || (chunks && all_long)) return code;
	if (whole) return GPU_LAUNCH((gdn_kernel<T, PACKS, true>), grid, block, shared, context->stream, p);
	code = GPU_LAUNCH((gdn_kernel<T, PACKS, false>), grid, block, shared, context->stream, p);
	const int64_t items = (int64_t)(rows->rows - p.first_seq) * p.v_heads; /* a row each of the sequences before */
	const int z_at = 2 * p.k_heads * p.k_dim + p.v_heads * p.v_dim;
	if (code != GPU_OK) return code;
	return GPU_LAUNCH(gdn_norm_kernel<T>, dim3(gpu_blocks(items, GDN_NORM_WAVES)), dim3(GDN_NORM_WAVES * GPU_WARP), 0, context->stream, p, items, z_at);
}

/* Sequences of one row, as far as they come first, and the rest; in the invariant order all by one kernel, whatever their rows. */
template <typename T, int PACKS> static gpu_error gdn_run(const struct gpu_context *context, gdn_params p, const struct gdn_args *a, bool chunks)
{
	const struct step_rows *rows = a->rows;
	const int singles = rows->max_seq_rows <= 1 ? rows->seqs : rows->single_seqs;
	if (singles == 0 || p.fresh || context->invariant || !gdn_decode_can(context, &p)) return gdn_rest<T, PACKS>(context, p, a, chunks && !context->invariant);
	gpu_error code = gdn_decode_launch(context, &p, a->qkvz.dtype, singles);
	p.first_seq = singles;
	return code != GPU_OK || singles == rows->seqs ? code : gdn_rest<T, PACKS>(context, p, a, chunks);
}

template <typename T> static enum status gdn_launch(struct stream *stream, const struct gdn_args *a, bool chunks, struct error *err)
{
	const struct gdn_layout *l = &a->cache->layout;
	const gdn_params p = {a->qkvz.data, a->ba.data, a->qkvz.row_stride, a->ba.row_stride, a->out.row_stride, a->conv, a->a_log, a->dt_bias, a->norm, a->eps,
	                      (char *)gdn_state(a->cache, a->layer, 0), (int64_t)gdn_slot_bytes(l), (int64_t)gdn_s_bytes(l), a->rows->row_start,
	                      a->rows->state_read, a->rows->state_write, a->out.data, l->k_heads, l->v_heads, l->k_dim, l->v_dim, l->conv_kernel, 0, 0, 0, 0, a->rows->fresh};
	const struct gpu_context *context = gpu_context(stream);
	chunks = chunks && gdn_launch_chunks && gdn_wants_chunks(a, context->workspace_bytes);
	return gpu_check(l->k_dim <= 32 ? gdn_run<T, 2>(context, p, a, chunks) : gdn_run<T, GDN_MAX_K / (GDN_PACK * GDN_PARTS)>(context, p, a, chunks), "gdn", err);
}

enum status gpu_gdn_by(struct stream *stream, const struct gdn_args *args, bool chunks, struct error *err)
{
	const struct gdn_layout *l = &args->cache->layout;
	const int rows = args->rows->rows, channels = gdn_channels(l), values = l->v_heads * l->v_dim;
	if (l->k_heads < 1 || l->v_heads % l->k_heads || l->conv_kernel < 1 || args->layer < 0 || args->layer >= l->layers)
		return FAIL(err, BAD_INPUT, "gdn: layer %d of %d, %d key and %d value heads, %d taps: value heads must be a multiple of key heads", args->layer,
		            l->layers, l->k_heads, l->v_heads, l->conv_kernel);
	if (l->k_dim < 1 || l->k_dim > GDN_MAX_K || l->v_dim < 1 || l->v_dim > GDN_MAX_V || l->conv_kernel > GDN_GPU_TAPS)
		return FAIL(err, UNSUPPORTED, "gdn: heads of %d and %d, %d taps; up to %d, %d and %d are supported on this device", l->k_dim, l->v_dim, l->conv_kernel,
		            GDN_MAX_K, GDN_MAX_V, GDN_GPU_TAPS);
	TRY(gpu_expect(&args->qkvz, TENSOR_SHARDED, rows, channels + values, "gdn qkvz", err));
	TRY(gpu_expect(&args->ba, TENSOR_SHARDED, rows, 2 * l->v_heads, "gdn ba", err));
	TRY(gpu_expect(&args->out, TENSOR_SHARDED, rows, values, "gdn out", err));
	if (args->ba.dtype != args->qkvz.dtype || args->out.dtype != args->qkvz.dtype || l->dtype != args->qkvz.dtype)
		return FAIL(err, BAD_INPUT, "gdn: qkvz %s, ba %s, state %s, out %s; equal types are wanted", dtype_name(args->qkvz.dtype), dtype_name(args->ba.dtype),
		            dtype_name(l->dtype), dtype_name(args->out.dtype));
	if (args->rows->tails)
		return FAIL(err, BAD_INPUT, "gdn: %d of %d sequences go on from states of others; a call of their own is wanted", args->rows->tails, args->rows->seqs);
	if (rows == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->qkvz.dtype, T, "gdn qkvz", err, return gdn_launch<T>(stream, args, chunks, err))
}

enum status gpu_gdn(struct stream *stream, const struct gdn_args *args, struct error *err)
{
	return gpu_gdn_by(stream, args, true, err);
}

#define GATE_THREADS 256

/* Thread: one element. Bound: 3 sizeof T an element. */
template <typename T> GPU_KERNEL(GATE_THREADS) gate_kernel(T *x, int64_t x_stride, const T *gate, int64_t gate_stride, int cols)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = (int)blockIdx.y * GATE_THREADS + (int)threadIdx.x;
	if (i >= cols) return;
	x += blockIdx.x * x_stride + i;
	*x = gpu_narrow<T>(gpu_widen(*x) / (1.0f + expf(-gpu_widen(gate[blockIdx.x * gate_stride + i]))));
}

template <typename T> static enum status gate_launch(struct stream *stream, const struct gate_args *a, struct error *err)
{
	const dim3 grid((unsigned)a->x.rows, gpu_blocks(a->x.cols, GATE_THREADS));
	return gpu_check(GPU_LAUNCH(gate_kernel<T>, grid, dim3(GATE_THREADS), 0, gpu_context(stream)->stream, (T *)a->x.data, a->x.row_stride,
	                            (const T *)a->gate.data, a->gate.row_stride, a->x.cols), "gate", err);
}

enum status gpu_gate(struct stream *stream, const struct gate_args *args, struct error *err)
{
	TRY(gpu_expect(&args->x, TENSOR_SHARDED, args->x.rows, args->x.cols, "gate x", err));
	TRY(gpu_expect(&args->gate, TENSOR_SHARDED, args->x.rows, args->x.cols, "gate gate", err));
	if (args->x.dtype != args->gate.dtype)
		return FAIL(err, BAD_INPUT, "gate: x is %s, gate %s; equal types are wanted", dtype_name(args->x.dtype), dtype_name(args->gate.dtype));
	if (args->x.rows == 0 || args->x.cols == 0) return STATUS_OK;
	GPU_BY_DTYPE(args->x.dtype, T, "gate x", err, return gate_launch<T>(stream, args, err))
}
