/* gdn_chunk_cuda.cu: the gated delta net in chunks of 64 rows on tensor cores (gdn_chunk.h): what is made for all chunks at once. Three kernels:
 *   inputs  convolution, silu, lengths: tiles of k, q and v of each chunk and head; the convolution's last inputs to the slot.
 *   pairs   per chunk and value head: decays, k k^T and q k^T, (I + A)^-1 by blocks.
 *   scan    gdn_scan_cuda.cu.
 *
 * Numerics. S, all sums, decays, rates and the inverse are f32. What goes into a product is f16 (11 bits, 8 times as fine as the bf16 that others take): q and
 * k, of length 1; entries of the inverse and pairs, at most 1; v, S, R and U, which are linear in v and S: a power of two per head and step brings a bound
 * of them to 2^14, so that no activation overflows. Rounding k is harmless: the delta rule of the rounded k is done. For the rest each of seven roundings is
 * 2^-12 of its term, and o is as exact as 2^-11 of sum |q| |S| allows. No result depends on other heads, so none depends on the number of ranks.
 */
#include "device/gpu/gdn_chunk_cuda.h"

#define TAPS GDN_CHUNK_TAPS
#define LEAST_LOG2 (-40.0f) /* of a row's decay: less is as good as none, and sums of 64 stay exact enough */

/* A chunk. rows 0: there is none in this place. */
struct gdn_place {
	int seq, start, count; /* rows of the sequence in this step */
	int first, rows;       /* of the chunk, from start */
};

/* All lanes of a wave. */
GPU_DEVICE gdn_place gdn_find(const gdn_chunk_params &p, int place)
{
	gdn_place at = {0, 0, 0, 0, 0};
	for (int base = 0; base < p.seqs; base += 32) {
		const int seq = base + (int)threadIdx.x % 32, last = seq < p.seqs ? seq : p.seqs - 1, start = p.row_start[last], end = p.row_start[last + 1];
		const int before = __popc((uint32_t)gpu_ballot(seq < p.seqs && start / CHUNK + seq <= place)); /* they ascend */
		if (before == 0) break;
		at.seq = base + before - 1;
		at.start = gpu_shfl(start, before - 1), at.count = gpu_shfl(end, before - 1) - at.start;
		if (before < 32) break;
	}
	at.first = (place - at.start / CHUNK - at.seq) * CHUNK;
	if (at.count >= CHUNK && at.first < at.count) at.rows = at.count - at.first < CHUNK ? at.count - at.first : CHUNK;
	return at;
}

/* ---- inputs */

#define INPUT_THREADS 256
#define INPUT_ROWS 8 /* of a wave */

/* Four neighbouring channels of a row, as they lie. */
template <typename T> struct gdn_four {
	uint2 bits;
};
template <typename T> GPU_TEMPLATE void gdn_widen4(gdn_four<T> v, float *x)
{
	const T *element = (const T *)&v;
	GPU_UNROLL for (int i = 0; i < 4; i++) x[i] = gpu_widen(element[i]);
}

/* Of row t of the sequence; below 0: of an earlier step. */
template <typename T> GPU_TEMPLATE gdn_four<T> gdn_load_input(const gdn_chunk_params &p, const gdn_place &at, const T *before, int channel, int channels, int t)
{
	gdn_four<T> x = {{0, 0}};
	if (t >= 0 && t < at.count) x = *(const gdn_four<T> *)((const T *)p.qkvz + (at.start + t) * p.stride + channel);
	if (t < 0 && before && t >= 1 - p.taps) x = *(const gdn_four<T> *)(before + (int64_t)(t + p.taps - 1) * channels + channel);
	return x;
}

/* The wave's rows, [8][4 channels], into the order of the scan; scaled. tile: [128 columns][64 rows] in shared memory, pieces of 8 rows permuted against bank conflicts. */
GPU_DEVICE void gdn_put_values(f16 *out, f16 *tile, const float (*y)[4], float scale)
{
	const int wave = (int)threadIdx.x / GPU_WARP, lane = (int)threadIdx.x % GPU_WARP;
	GPU_UNROLL for (int i = 0; i < 4; i++) {
		gpu_vec16 piece;
		GPU_UNROLL for (int j = 0; j < 4; j++) piece.x[j] = tensor_pack<f16>(y[2 * j][i] * scale, y[2 * j + 1][i] * scale);
		*(gpu_vec16 *)(tile + (lane * 4 + i) * CHUNK + ((wave ^ lane ^ 2 * i) % 8) * 8) = piece;
	}
	gpu_sync();
	for (int i = (int)threadIdx.x; i < TILE / 8; i += INPUT_THREADS) {
		const int to = i % 32, column = i / 128 * 16 + to / 4, group = i / 32 % 4;
		gpu_vec16 piece;
		GPU_UNROLL for (int j = 0; j < 4; j++) {
			const int v = column + j % 2 * 8, rows = group * 2 + j / 2;
			piece.x[j] = *(const uint32_t *)(tile + v * CHUNK + ((rows ^ v / 4 ^ v % 4 * 2) % 8) * 8 + to % 4 * 2);
		}
		*(gpu_vec16 *)(out + i * 8) = piece;
	}
}

/* Block (head, place), heads of q, then k, then v; wave: 8 rows; lane: 4 channels. Bound: q, k and v read and written. */
template <typename T> __global__ void __launch_bounds__(INPUT_THREADS, 3) gdn_inputs_kernel(const gdn_chunk_params p)
{
	GPU_SHARED(f16, tile, TILE);
	GPU_SHARED(float, peaks, INPUT_THREADS / 32);
	const int head = (int)blockIdx.x, place = (int)blockIdx.y, wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	const int channels = (2 * p.k_heads + p.v_heads) * DIM, channel = head * DIM + lane * 4;
	float weight[TAPS][4];
	GPU_UNROLL for (int tap = 0; tap < TAPS; tap++) {
		const int own = tap - (TAPS - p.taps);
		GPU_UNROLL for (int i = 0; i < 4; i++) weight[tap][i] = 0;
		if (own >= 0) gpu_load<4>(p.conv + (int64_t)own * channels + channel, weight[tap]);
	}
	const gdn_place at = gdn_find(p, place);
	gpu_wait_previous();
	gpu_start_next();
	if (!at.rows) return;
	const int first = at.first + wave * INPUT_ROWS;
	const T *before = nullptr;
	if (first == 0) {
		const int read = p.read[at.seq];
		if (read >= 0) before = (const T *)(p.state + read * p.slot_bytes + p.inputs_at);
	}
	gdn_four<T> input[INPUT_ROWS + TAPS - 1];
	GPU_UNROLL for (int r = 0; r < INPUT_ROWS + TAPS - 1; r++) input[r] = gdn_load_input<T>(p, at, before, channel, channels, first + r - (TAPS - 1));
	float x[INPUT_ROWS][4] = {}, peak = 0;
	GPU_UNROLL for (int r = 0; r < INPUT_ROWS; r++) {
		GPU_UNROLL for (int tap = 0; tap < TAPS; tap++) {
			float v[4];
			gdn_widen4(input[r + tap], v);
			GPU_UNROLL for (int i = 0; i < 4; i++) x[r][i] = gpu_fma(weight[tap][i], v[i], x[r][i]);
		}
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			x[r][i] = first + r < at.count ? gdn_silu(x[r][i]) : 0.0f;
			peak = fmaxf(peak, fabsf(x[r][i]));
		}
	}
	if (head < 2 * p.k_heads) {
		f16 *out = (head < p.k_heads ? p.queries : p.keys) + ((int64_t)place * p.k_heads + head % p.k_heads) * TILE;
		out += lane / 16 * (PANEL / 2) + wave * INPUT_ROWS * 64 + lane % 2 * 4;
		GPU_UNROLL for (int r = 0; r < INPUT_ROWS; r++) {
			const float square = x[r][0] * x[r][0] + x[r][1] * x[r][1] + x[r][2] * x[r][2] + x[r][3] * x[r][3];
			const float length = rsqrtf(gpu_warp_sum(square) + GDN_L2_EPS);
			*(uint2 *)(out + r * 64 + (lane / 2 % 8 ^ r) * 8) =
				make_uint2(tensor_pack<f16>(x[r][0] * length, x[r][1] * length), tensor_pack<f16>(x[r][2] * length, x[r][3] * length));
		}
	} else {
		const int64_t item = (int64_t)place * p.v_heads + head - 2 * p.k_heads;
		peak = gpu_warp_max(peak);
		if (lane == 0) peaks[wave] = peak;
		gpu_sync();
		GPU_UNROLL for (int i = 0; i < INPUT_THREADS / 32; i++) peak = fmaxf(peak, peaks[i]);
		gdn_put_values(p.values + item * TILE, tile, x, gdn_power(-gdn_excess(peak, VALUE_BITS)));
		if (threadIdx.x == 0) p.peaks[item] = peak;
	}
	if (at.first + at.rows < at.count || wave >= p.taps - 1) return;
	const int write = p.write[at.seq];
	if (write == 0) return;
	const int64_t to = (int64_t)wave * channels + channel; /* a sequence that goes in chunks has more rows than taps */
	*(gdn_four<T> *)((T *)(p.state + write * p.slot_bytes + p.inputs_at) + to) = gdn_load_input<T>(p, at, nullptr, channel, channels, at.count - (p.taps - 1) + wave);
}

/* ---- pairs */

#define PAIR_THREADS 128
#define LINE 68 /* floats between rows of a square: products without bank conflicts */

struct gdn_pairs_shared {
	union {
		f16 keys[TILE];
		float a[CHUNK * LINE]; /* A; then nobody wants the keys */
	};
	union {
		f16 queries[TILE];
		float x[CHUNK * LINE]; /* the inverse */
	};
	union {
		f16 pairs[SQUARE];
		float product[32 * LINE];
	};
	float log2_decay[CHUNK], beta[CHUNK], half; /* sums of logarithms; the first 32 rows' */
};

/* Address of 16 bytes of a tile in shared memory. */
GPU_DEVICE uint32_t gdn_piece(uint32_t tile, int row, int piece)
{
	return tile + (uint32_t)(piece / 8 * PANEL + row * 128 + ((piece ^ row) % 8) * 16);
}

/* Sums of logarithms of decays and beta of the chunk's rows, and all rates. Threads 0 to 63 have a row each; all call. */
template <typename T> GPU_TEMPLATE void gdn_chunk_rates(gdn_pairs_shared &m, const gdn_chunk_params &p, const gdn_place &at, int head, float *rates)
{
	const int t = (int)threadIdx.x, lane = t % 32;
	float sum = 0, beta = 0;
	if (t < at.rows) {
		const T *row = (const T *)p.ba + (at.start + at.first + t) * p.ba_stride;
		const float a = gpu_widen(row[p.v_heads + head]) + p.dt_bias[head], soft = fmaxf(a, 0.0f) + log1pf(expf(-fabsf(a)));
		beta = 1.0f / (1.0f + expf(-gpu_widen(row[head])));
		sum = fmaxf(-LOG2_E * expf(p.a_log[head]) * soft, LEAST_LOG2);
	}
	GPU_UNROLL for (int d = 1; d < 32; d *= 2) {
		const float other = gpu_shfl(sum, lane >= d ? lane - d : lane);
		if (lane >= d) sum += other;
	}
	if (t == 31) m.half = sum;
	gpu_sync();
	if (t >= 32) sum += m.half;
	if (t < CHUNK) m.log2_decay[t] = sum, m.beta[t] = beta;
	gpu_sync();
	if (t >= CHUNK) return;
	const float last = m.log2_decay[CHUNK - 1], decay = tensor_exp2(sum);
	rates[t] = beta;
	rates[CHUNK + t] = beta * decay;
	rates[2 * CHUNK + t] = decay * SCALE;
	rates[3 * CHUNK + t] = tensor_exp2(last - sum);
	if (t < 4) rates[4 * CHUNK + t] = tensor_exp2(last);
}

/* k k^T and q k^T of the wave's 16 rows; columns behind them are left out. */
GPU_DEVICE void gdn_pair_products(float (*kk)[4], float (*qk)[4], const gdn_pairs_shared &m)
{
	const int wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	const uint32_t keys = tensor_shared_address(m.keys), queries = tensor_shared_address(m.queries);
	GPU_UNROLL for (int step = 0; step < DIM / 16; step++) {
		uint32_t k[4], q[4], b[4];
		tensor_load4(k, gdn_piece(keys, wave * 16 + lane % 16, step * 2 + lane / 16));
		tensor_load4(q, gdn_piece(queries, wave * 16 + lane % 16, step * 2 + lane / 16));
		GPU_UNROLL for (int n = 0; n < CHUNK / 16; n++) {
			if (n > wave) continue;
			tensor_load4(b, gdn_piece(keys, n * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
			tensor_mma<f16>(kk[2 * n], k, b[0], b[1]);
			tensor_mma<f16>(kk[2 * n + 1], k, b[2], b[3]);
			tensor_mma<f16>(qk[2 * n], q, b[0], b[1]);
			tensor_mma<f16>(qk[2 * n + 1], q, b[2], b[3]);
		}
	}
}

/* A to m.a, and what u_s counts in o_t to m.pairs. */
GPU_DEVICE void gdn_weigh_pairs(gdn_pairs_shared &m, const float (*kk)[4], const float (*qk)[4])
{
	const int wave = (int)threadIdx.x / 32, g = (int)threadIdx.x % 32 / 4, c = (int)threadIdx.x % 4;
	GPU_UNROLL for (int n = 0; n < CHUNK / 8; n++)
		GPU_UNROLL for (int r = 0; r < 2; r++) {
			const int i = wave * 16 + g + r * 8, j = n * 8 + 2 * c;
			uint32_t *pair = (uint32_t *)(m.pairs + i * 64 + (n ^ i % 8) * 8 + 2 * c);
			if (n >= 2 * wave + 2) { /* nobody reads A there */
				*pair = 0;
				continue;
			}
			float a[2], o[2];
			GPU_UNROLL for (int e = 0; e < 2; e++) {
				const float decay = j + e <= i ? tensor_exp2(m.log2_decay[i] - m.log2_decay[j + e]) : 0.0f;
				a[e] = j + e < i ? m.beta[i] * decay * kk[n][2 * r + e] : 0.0f;
				o[e] = j + e <= i ? SCALE * decay * qk[n][2 * r + e] : 0.0f;
			}
			*(float2 *)(m.a + i * LINE + j) = make_float2(a[0], a[1]);
			*pair = tensor_pack<f16>(o[0], o[1]);
		}
}

/* Columns 16 wave .. + 15 of the inverse, rows of the same: lane a column, row by row. Lanes 16 and up clear what lies right of it. */
GPU_DEVICE void gdn_invert_diagonal(gdn_pairs_shared &m)
{
	const int first = (int)threadIdx.x / 32 * 16, column = (int)threadIdx.x % 16;
	if (threadIdx.x % 32 >= 16) {
		if (first % 32 == 0) GPU_UNROLL for (int i = 0; i < 16; i++) m.x[(first + i) * LINE + first + 16 + column] = 0;
		return;
	}
	float x[16];
	GPU_UNROLL for (int i = 0; i < 16; i++) {
		const float *a = m.a + (first + i) * LINE + first;
		float sum[4] = {i == column ? 1.0f : 0.0f, 0, 0, 0};
		GPU_UNROLL for (int k = 0; k < i; k++) sum[k % 4] = gpu_fma(-a[k], x[k], sum[k % 4]);
		x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
		m.x[(first + i) * LINE + first + column] = x[i];
	}
}

/* out[ROWS rows from `row`][4 columns from `column`] = sign * left right over [from, to); all LINE floats a row. */
template <int ROWS> GPU_TEMPLATE void gdn_multiply(float *out, const float *left, const float *right, int row, int column, int from, int to, float sign)
{
	float sum[ROWS][4] = {};
	_Pragma("unroll 2") for (int k = from; k < to; k += 4) {
		float l[ROWS][4], r[4][4];
		GPU_UNROLL for (int i = 0; i < ROWS; i++) gpu_load<4>(left + (row + i) * LINE + k, l[i]);
		GPU_UNROLL for (int i = 0; i < 4; i++) gpu_load<4>(right + (k + i) * LINE + column, r[i]);
		GPU_UNROLL for (int i = 0; i < 4 * ROWS; i++)
			GPU_UNROLL for (int j = 0; j < 4; j++) sum[i / 4][i % 4] = gpu_fma(l[i / 4][j], r[j][i % 4], sum[i / 4][i % 4]);
	}
	GPU_UNROLL for (int i = 0; i < ROWS; i++) {
		GPU_UNROLL for (int j = 0; j < 4; j++) sum[i][j] *= sign;
		gpu_store<4>(out + (row + i) * LINE + column, sum[i]);
	}
}

/* (I + A)^-1 to m.x, zeros in the upper triangles of its two blocks of 32. Of blocks: X11 = B11^-1, X22 = B22^-1, X21 = - X22 A21 X11. */
GPU_DEVICE void gdn_invert(gdn_pairs_shared &m)
{
	const int t = (int)threadIdx.x, wave = t / 32, pair = t / 64 * 32, at = pair * LINE + pair; /* of a block of 32 */
	gdn_invert_diagonal(m);
	gpu_sync();
	gdn_multiply<1>(m.product + t / 64 * 16 * LINE, m.a + at + 16 * LINE, m.x + at, t % 64 / 4, t % 4 * 4, 0, 16, 1);
	gpu_sync();
	gdn_multiply<1>(m.x + at + 16 * LINE, m.x + at + 16 * LINE + 16, m.product + t / 64 * 16 * LINE, t % 64 / 4, t % 4 * 4, 0, 16, -1);
	gpu_sync();
	/* X11 is nothing above its diagonal, X22 right of it: waves share the columns of the first product, and the rows of the second. */
	gdn_multiply<2>(m.product, m.a + 32 * LINE, m.x, t % 32 / 2 * 2, wave * 8 + t % 2 * 4, wave * 8, 32, 1);
	gpu_sync();
	gdn_multiply<2>(m.x + 32 * LINE, m.x + 32 * LINE + 32, m.product, t / 8 * 2, t % 8 * 4, 0, wave * 8 + 8, -1);
	gpu_sync();
}

/* Block (value head, place), 4 waves of 16 rows. Bound: k and q read from the cache by each value head, two squares written. */
template <typename T> __global__ void __launch_bounds__(PAIR_THREADS) gdn_pairs_kernel(const gdn_chunk_params p)
{
	__shared__ __align__(128) gdn_pairs_shared m;
	const int head = (int)blockIdx.x, place = (int)blockIdx.y, t = (int)threadIdx.x;
	const int64_t item = (int64_t)place * p.v_heads + head, key_item = (int64_t)place * p.k_heads + head / (p.v_heads / p.k_heads);
	const gdn_place at = gdn_find(p, place);
	gpu_wait_previous();
	gpu_start_next();
	if (!at.rows) return;
	for (int i = t; i < TILE / 8; i += PAIR_THREADS) {
		tensor_copy16(tensor_shared_address(m.keys + i * 8), p.keys + key_item * TILE + i * 8, true);
		tensor_copy16(tensor_shared_address(m.queries + i * 8), p.queries + key_item * TILE + i * 8, true);
	}
	tensor_copy_commit();
	gdn_chunk_rates<T>(m, p, at, head, p.rates + item * GDN_RATES);
	tensor_copy_wait<0>();
	gpu_sync();
	float kk[CHUNK / 8][4] = {}, qk[CHUNK / 8][4] = {};
	gdn_pair_products(kk, qk, m);
	gpu_sync();
	gdn_weigh_pairs(m, kk, qk);
	gpu_sync();
	for (int i = t; i < SQUARE / 8; i += PAIR_THREADS) ((gpu_vec16 *)(p.pairs + item * SQUARE))[i] = ((const gpu_vec16 *)m.pairs)[i];
	gdn_invert(m); /* begins with a part that leaves m.pairs alone, and a barrier */
	for (int i = t; i < SQUARE / 8; i += PAIR_THREADS) {
		const int row = i / 8, piece = i % 8;
		float x[8] = {};
		if (piece * 8 <= row) gpu_load<8>(m.x + row * LINE + piece * 8, x);
		gpu_vec16 out;
		GPU_UNROLL for (int j = 0; j < 4; j++) out.x[j] = tensor_pack<f16>(x[2 * j], x[2 * j + 1]);
		((gpu_vec16 *)(p.inverse + item * SQUARE))[row * 8 + (piece ^ row % 8)] = out;
	}
}

/* ---- launcher */

template <typename T> static gpu_error gdn_chunk_run(const struct gpu_context *context, const gdn_chunk_params &p, int places)
{
	const unsigned heads = (unsigned)(2 * p.k_heads + p.v_heads);
	gpu_error code = GPU_LAUNCH(gdn_inputs_kernel<T>, dim3(heads, (unsigned)places), dim3(INPUT_THREADS), 0, context->stream, p);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH(gdn_pairs_kernel<T>, dim3((unsigned)p.v_heads, (unsigned)places), dim3(PAIR_THREADS), 0, context->stream, p);
}

extern "C" gpu_error gdn_chunk_launch(const struct gpu_context *context, const struct gdn_args *a)
{
	const struct gdn_layout *l = &a->cache->layout;
	const struct gdn_workspace w = gdn_workspace(a->rows->rows, a->rows->seqs, l->k_heads, l->v_heads);
	char *memory = (char *)context->workspace;
	const gdn_chunk_params p = {
		a->qkvz.data, a->ba.data, a->out.data, a->qkvz.row_stride, a->ba.row_stride, a->out.row_stride, a->conv, a->a_log, a->dt_bias, a->norm, a->eps,
		(char *)gdn_state(a->cache, a->layer, 0), (int64_t)gdn_slot_bytes(l), (int64_t)gdn_s_bytes(l), a->rows->row_start, a->rows->state_read,
		a->rows->state_write, a->rows->seqs, l->k_heads, l->v_heads, l->conv_kernel, (f16 *)(memory + w.keys), (f16 *)(memory + w.queries),
		(f16 *)(memory + w.values), (f16 *)(memory + w.inverse), (f16 *)(memory + w.pairs), (float *)(memory + w.rates), (float *)(memory + w.peaks), a->rows->fresh};
	const gpu_error code = l->dtype == DTYPE_BF16 ? gdn_chunk_run<bf16>(context, p, w.places) : gdn_chunk_run<f16>(context, p, w.places);
	return code == GPU_OK ? gdn_scan_launch(context, &p, l->dtype) : code;
}
