/* gdn_chunk_cuda.cu: the gated delta net in chunks of 64 rows on tensor cores (gdn_chunk.h), heads of 128, for sequences of 64 rows and more. Three kernels:
 *   inputs  convolution, silu, lengths: tiles of k, q and v of each chunk and head; the convolution's last inputs to the slot.
 *   pairs   per chunk and value head: decays, k k^T and q k^T, (I + A)^-1 by blocks.
 *   scan    per sequence and half a value head: its chunks one after the other, S in registers.
 *
 * Numerics. S, all sums, decays, rates and the inverse are f32. What goes into a product is f16 (11 bits, 8 times as fine as the bf16 that others take): q and k, of
 * length 1; entries of the inverse and pairs, at most 1; v, S, R and U, which are linear in v and S: a power of two per head and step brings a bound
 * of them to 2^14, so that no activation overflows. Rounding k is harmless: the delta rule of the rounded k is done. For the rest each of seven roundings is 2^-12 of
 * its term, and o is as exact as 2^-11 of sum |q| |S| allows. No result depends on other heads, so none depends on the number of ranks.
 *
 * Tiles are f16 images of shared memory as warpgroup products want it: [64 columns][rows] with 128-byte swizzle; but values lie as the scan's registers want them:
 * [half][wave][group of 16 rows][lane][8], the 8 being the A fragment of 16 of v's columns and 16 rows.
 * Rates of a chunk and head: [4][64] beta, beta e^G, e^G / sqrt(128), e^(G_last - G), then e^G_last. Rows behind a short chunk's end are zeros, beta too.
 */
#include "device/gpu/gdn_chunk.h"
#include "device/gpu/rows.h"
#include "device/gpu/wide_cuda.h"

#define DIM GDN_CHUNK_DIM
#define CHUNK GDN_CHUNK
#define TAPS GDN_CHUNK_TAPS
#define PANEL (CHUNK * 128)  /* bytes of a tile's 64 columns */
#define TILE (CHUNK * DIM)   /* elements */
#define SQUARE (CHUNK * CHUNK)
#define LOG2_E 1.44269504f
#define SCALE 0.08838834764831845f /* 1 / sqrt(DIM) */
#define LEAST_LOG2 (-40.0f) /* of a row's decay: less is as good as none, and sums of 64 stay exact enough */
#define VALUE_BITS 9         /* |v| of a tile is brought below 2^9: R and U are up to 64 times as large */
#define STATE_BITS 14

struct gdn_chunk_params {
	const void *qkvz, *ba;
	void *out;
	int64_t stride, ba_stride, out_stride;
	const float *conv, *a_log, *dt_bias;
	char *state; /* of this layer, in slot 0 */
	int64_t slot_bytes, inputs_at;
	const int32_t *row_start, *read, *write;
	int seqs, k_heads, v_heads, taps;
	f16 *keys, *queries, *values, *inverse, *pairs;
	float *rates, *peaks;
	bool fresh; /* this step wrote the states that are read */
};

/* A chunk. rows 0: there is none in this place. */
struct gdn_place {
	int seq, start, count; /* rows of the sequence in this step */
	int first, rows;       /* of the chunk, from start */
};

GPU_DEVICE int gdn_first_place(const gdn_chunk_params &p, int seq)
{
	return p.row_start[seq] / CHUNK + seq;
}

/* The whole block. */
GPU_DEVICE gdn_place gdn_find(const gdn_chunk_params &p, int place)
{
	gdn_place at = {-1, 0, 0, 0, 0};
	for (int base = 0; base < p.seqs; base += (int)blockDim.x) {
		const int seq = base + (int)threadIdx.x;
		at.seq += __syncthreads_count(seq < p.seqs && gdn_first_place(p, seq) <= place);
	}
	at.start = p.row_start[at.seq], at.count = p.row_start[at.seq + 1] - at.start;
	at.first = (place - gdn_first_place(p, at.seq)) * CHUNK;
	if (at.count >= CHUNK && at.first < at.count) at.rows = at.count - at.first < CHUNK ? at.count - at.first : CHUNK;
	return at;
}

GPU_DEVICE float gdn_power(int exponent)
{
	return gpu_bits_to_f32((uint32_t)(exponent + 127) << 23);
}
/* The least e >= 0 such that x 2^-e < 2^bits. */
GPU_DEVICE int gdn_excess(float x, int bits)
{
	const int exponent = (int)(__float_as_uint(x) >> 23) - 127 + 1 - bits;
	return exponent > 0 ? exponent : 0;
}

/* ---- inputs */

#define INPUT_THREADS 256
#define INPUT_ROWS 8 /* of a wave */

/* Four neighbouring channels of row t of the sequence; below 0: of an earlier step. */
template <typename T> GPU_TEMPLATE void gdn_load_input(const gdn_chunk_params &p, const gdn_place &at, const T *before, int channel, int channels, int t, float *x)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) x[i] = 0;
	if (t >= 0 && t < at.count) gpu_load<4>((const T *)p.qkvz + (at.start + t) * p.stride + channel, x);
	if (t < 0 && before && t >= 1 - p.taps) gpu_load<4>(before + (int64_t)(t + p.taps - 1) * channels + channel, x);
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
template <typename T> __global__ void __launch_bounds__(INPUT_THREADS) gdn_inputs_kernel(const gdn_chunk_params p)
{
	GPU_SHARED(f16, tile, TILE);
	GPU_SHARED(float, peaks, INPUT_THREADS / 32);
	const int head = (int)blockIdx.x, place = (int)blockIdx.y, wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
	const int channels = (2 * p.k_heads + p.v_heads) * DIM, channel = head * DIM + lane * 4;
	float weight[TAPS][4];
	GPU_UNROLL for (int tap = 0; tap < TAPS; tap++) {
		const int own = tap - (TAPS - p.taps);
		GPU_UNROLL for (int i = 0; i < 4; i++) weight[tap][i] = own < 0 ? 0.0f : p.conv[(int64_t)own * channels + channel + i];
	}
	const gdn_place at = gdn_find(p, place);
	gpu_wait_previous();
	gpu_start_next();
	if (!at.rows) return;
	const int read = p.read[at.seq], write = p.write[at.seq], first = at.first + wave * INPUT_ROWS;
	const T *before = read < 0 ? nullptr : (const T *)(p.state + read * p.slot_bytes + p.inputs_at);
	float x[INPUT_ROWS + TAPS - 1][4];
	GPU_UNROLL for (int r = 0; r < INPUT_ROWS + TAPS - 1; r++) gdn_load_input<T>(p, at, before, channel, channels, first + r - (TAPS - 1), x[r]);
	float peak = 0;
	GPU_UNROLL for (int r = 0; r < INPUT_ROWS; r++) {
		const float keep = first + r < at.count ? 1.0f : 0.0f;
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			float sum = 0;
			GPU_UNROLL for (int tap = 0; tap < TAPS; tap++) sum = gpu_fma(weight[tap][i], x[r + tap][i], sum);
			x[r][i] = keep * __fdividef(sum, 1.0f + tensor_exp2(-LOG2_E * sum));
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
	if (write == 0 || at.first + at.rows < at.count || wave >= p.taps - 1) return;
	float last[4];
	gdn_load_input<T>(p, at, before, channel, channels, at.count - (p.taps - 1) + wave, last);
	gpu_store<4>((T *)(p.state + write * p.slot_bytes + p.inputs_at) + (int64_t)wave * channels + channel, last);
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
			float a[2], o[2];
			GPU_UNROLL for (int e = 0; e < 2; e++) {
				const float decay = j + e <= i ? tensor_exp2(m.log2_decay[i] - m.log2_decay[j + e]) : 0.0f;
				a[e] = j + e < i ? m.beta[i] * decay * kk[n][2 * r + e] : 0.0f;
				o[e] = j + e <= i ? SCALE * decay * qk[n][2 * r + e] : 0.0f;
			}
			*(float2 *)(m.a + i * LINE + j) = make_float2(a[0], a[1]);
			*(uint32_t *)(m.pairs + i * 64 + (n ^ i % 8) * 8 + 2 * c) = tensor_pack<f16>(o[0], o[1]);
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

/* out[ROWS rows from `row`][4 columns from `column`] = sign * left right over COUNT; all LINE floats a row. */
template <int ROWS, int COUNT> GPU_TEMPLATE void gdn_multiply(float *out, const float *left, const float *right, int row, int column, float sign)
{
	float sum[ROWS][4] = {};
	GPU_UNROLL for (int k = 0; k < COUNT; k += 4) {
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
	const int t = (int)threadIdx.x, pair = t / 64 * 32, at = pair * LINE + pair; /* of a block of 32 */
	gdn_invert_diagonal(m);
	gpu_sync();
	gdn_multiply<1, 16>(m.product + t / 64 * 16 * LINE, m.a + at + 16 * LINE, m.x + at, t % 64 / 4, t % 4 * 4, 1);
	gpu_sync();
	gdn_multiply<1, 16>(m.x + at + 16 * LINE, m.x + at + 16 * LINE + 16, m.product + t / 64 * 16 * LINE, t % 64 / 4, t % 4 * 4, -1);
	gpu_sync();
	gdn_multiply<2, 32>(m.product, m.a + 32 * LINE, m.x, t / 8 * 2, t % 8 * 4, 1);
	gpu_sync();
	gdn_multiply<2, 32>(m.x + 32 * LINE, m.x + 32 * LINE + 32, m.product, t / 8 * 2, t % 8 * 4, -1);
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

/* ---- scan */

#define SCAN_WAVES 4
#define SCAN_THREADS (SCAN_WAVES * 32 + 32)
#define STAGES 3
#define OUT_LINE 24 /* elements between rows of a wave's output: 16 and padding */

/* Shared memory, bytes: stages, each k, q, inverse, pairs; then rates of each, outputs of each wave, peaks, barriers. */
struct gdn_scan_shared {
	static constexpr uint32_t queries = 2 * PANEL, inverse = 4 * PANEL, pairs = 5 * PANEL, stage = 6 * PANEL;
	static constexpr uint32_t rates = STAGES * stage, rates_bytes = GDN_RATES * 4, out = rates + STAGES * rates_bytes, out_bytes = CHUNK * OUT_LINE * 2;
	static constexpr uint32_t peaks = out + SCAN_WAVES * out_bytes, barriers = peaks + 2 * SCAN_WAVES * 4, bytes = barriers + 2 * STAGES * 8 + 1024;
};

GPU_DEVICE void gdn_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

/* What a block is at. */
struct gdn_scan_job {
	int head, half, start, count, place, chunks;
	uint32_t shared;
	unsigned char *memory; /* the same */
	__device__ __forceinline__ uint32_t full(int stage) const { return shared + gdn_scan_shared::barriers + (uint32_t)stage * 8; }
	__device__ __forceinline__ uint32_t empty(int stage) const { return full(STAGES + stage); }
};

GPU_DEVICE void gdn_produce(const gdn_chunk_params &p, const gdn_scan_job &job)
{
	using m = gdn_scan_shared;
	for (int c = 0; c < job.chunks; c++) {
		const int stage = c % STAGES;
		const uint32_t full = job.full(stage), to = job.shared + (uint32_t)stage * m::stage;
		const int64_t item = (int64_t)(job.place + c) * p.v_heads + job.head, key_item = (int64_t)(job.place + c) * p.k_heads + job.head / (p.v_heads / p.k_heads);
		barrier_wait(job.empty(stage), c / STAGES % 2 ^ 1);
		barrier_expect(full, m::stage + m::rates_bytes);
		gdn_copy(to, p.keys + key_item * TILE, TILE * 2, full);
		gdn_copy(to + m::queries, p.queries + key_item * TILE, TILE * 2, full);
		gdn_copy(to + m::inverse, p.inverse + item * SQUARE, SQUARE * 2, full);
		gdn_copy(to + m::pairs, p.pairs + item * SQUARE, SQUARE * 2, full);
		gdn_copy(job.shared + m::rates + (uint32_t)stage * m::rates_bytes, p.rates + item * GDN_RATES, m::rates_bytes, full);
	}
}

/* This lane's v of a chunk. */
GPU_DEVICE void gdn_load_values(gpu_vec16 *value, const gdn_chunk_params &p, const gdn_scan_job &job, int chunk)
{
	const f16 *from = p.values + ((int64_t)(job.place + chunk) * p.v_heads + job.head) * TILE + job.half * (TILE / 2) + (int)threadIdx.x / 32 * (TILE / 8);
	GPU_UNROLL for (int i = 0; i < CHUNK / 16; i++) value[i] = *(const gpu_vec16 *)(from + (i * 32 + (int)threadIdx.x % 32) * 8);
}

/* The exponent of the power of two that S, v, R and U are divided by: a bound of all columns of S in this step stays below 2^STATE_BITS. The consumers. */
GPU_DEVICE int gdn_scan_exponent(const gdn_chunk_params &p, const gdn_scan_job &job, const float *s)
{
	float *shared = (float *)(job.memory + gdn_scan_shared::peaks), top = 0, sum = 0;
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) top = fmaxf(top, fabsf(s[i]));
	for (int c = (int)threadIdx.x; c < job.chunks; c += SCAN_WAVES * 32) sum += p.peaks[(int64_t)(job.place + c) * p.v_heads + job.head];
	top = gpu_warp_max(top), sum = gpu_warp_sum(sum);
	if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top, shared[SCAN_WAVES + threadIdx.x / 32] = sum;
	barrier_threads(1, SCAN_WAVES * 32);
	top = sum = 0;
	GPU_UNROLL for (int i = 0; i < SCAN_WAVES; i++) top = fmaxf(top, shared[i]), sum += shared[SCAN_WAVES + i];
	return gdn_excess(top / SCALE + CHUNK * sum, STATE_BITS); /* a column's length is at most sqrt(DIM) times its largest element */
}

/* S of the lane to and from the slot: columns 16 wave + g and + 8 of this half, rows 8 n + 2 c and + 1. */
template <bool STORE> GPU_TEMPLATE void gdn_move_state(float *s, float *state, const gdn_scan_job &job, float scale)
{
	const int g = (int)threadIdx.x % 32 / 4, c = (int)threadIdx.x % 4;
	float *at = state + (job.head * DIM + job.half * 64 + (int)threadIdx.x / 32 * 16 + g) * DIM + 2 * c;
	GPU_UNROLL for (int n = 0; n < DIM / 8; n++)
		GPU_UNROLL for (int r = 0; r < 2; r++) {
			float *pair = s + 4 * n + 2 * r;
			if (STORE) *(float2 *)(at + r * 8 * DIM + n * 8) = make_float2(pair[0] * scale, pair[1] * scale);
			else {
				const float2 v = *(const float2 *)(at + r * 8 * DIM + n * 8);
				pair[0] = v.x, pair[1] = v.y;
			}
		}
}

GPU_DEVICE void gdn_pin_fragments(uint32_t *r, int n)
{
	GPU_UNROLL for (int i = 0; i < n; i++) asm volatile("" : "+r"(r[i])::"memory");
}

/* out of the wave's 16 columns: through shared memory, where rows and columns change places. */
template <typename T> GPU_TEMPLATE void gdn_put_out(const gdn_chunk_params &p, const gdn_scan_job &job, int chunk, const float *o, float scale)
{
	const int wave = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, left = job.count - chunk * CHUNK;
	const T *tile = (const T *)(job.memory + gdn_scan_shared::out + (uint32_t)wave * gdn_scan_shared::out_bytes);
	const uint32_t to = tensor_shared_address(tile);
	gpu_warp_sync();
	GPU_UNROLL for (int n = 0; n < CHUNK / 16; n++) {
		uint32_t r[4];
		GPU_UNROLL for (int i = 0; i < 4; i++) r[i] = tensor_pack<T>(o[8 * n + 2 * i] * scale, o[8 * n + 2 * i + 1] * scale);
		tensor_store4_transposed(to + (uint32_t)((n * 16 + lane / 16 * 8 + lane % 8) * OUT_LINE + lane / 8 % 2 * 8) * 2, r);
	}
	gpu_warp_sync();
	T *out = (T *)p.out + (int64_t)(job.start + chunk * CHUNK) * p.out_stride + job.head * DIM + job.half * 64 + wave * 16 + lane % 2 * 8;
	GPU_UNROLL for (int i = 0; i < CHUNK / 16; i++) {
		const int t = i * 16 + lane / 2;
		if (t < left) *(gpu_vec16 *)(out + t * p.out_stride) = *(const gpu_vec16 *)(tile + t * OUT_LINE + lane % 2 * 8);
	}
}

/* d (+)= fragments [STEPS] times the transpose of a tile of 64 rows. */
template <int STEPS> GPU_TEMPLATE void gdn_product(float *d, const uint32_t (*a)[4], uint32_t tile, bool add)
{
	GPU_UNROLL for (int step = 0; step < STEPS; step++)
		wide_mma_rows<f16, CHUNK>(d, a[step], wide_tile(tile + (uint32_t)(step / 4 * PANEL + step % 4 * 32), 16, 1024), add || step > 0);
	wide_commit();
}

template <typename T> GPU_TEMPLATE void gdn_consume(const gdn_chunk_params &p, const gdn_scan_job &job, float *s, int exponent)
{
	using m = gdn_scan_shared;
	const int c2 = (int)threadIdx.x % 4 * 2;
	const float up = gdn_power(exponent), down = gdn_power(-exponent);
	uint32_t a[DIM / 16][4], r16[CHUNK / 16][4], d16[CHUNK / 16][4];
	float x[CHUNK / 2], o[CHUNK / 2];
	gpu_vec16 value[CHUNK / 16];
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) s[i] *= down;
	gdn_load_values(value, p, job, 0);
	float peak = p.peaks[(int64_t)job.place * p.v_heads + job.head];
	for (int chunk = 0; chunk < job.chunks; chunk++) {
		const int stage = chunk % STAGES;
		const uint32_t tiles = job.shared + (uint32_t)stage * m::stage;
		const float *rates = (const float *)(job.memory + m::rates + (uint32_t)stage * m::rates_bytes) + c2;
		GPU_UNROLL for (int i = 0; i < DIM / 4; i++) a[i / 4][i % 4] = tensor_pack<f16>(s[2 * i], s[2 * i + 1]);
		barrier_wait(job.full(stage), chunk / STAGES % 2);
		wide_fence();
		gdn_product<DIM / 16>(x, a, tiles, false);
		gdn_product<DIM / 16>(o, a, tiles + m::queries, false);
		const float widen = gdn_power(gdn_excess(peak, VALUE_BITS)) * down;
		wide_wait<1>();
		wide_pin<CHUNK / 2>(x);
		GPU_UNROLL for (int n = 0; n < CHUNK / 8; n++) {
			const float2 beta = *(const float2 *)(rates + n * 8), old = *(const float2 *)(rates + CHUNK + n * 8);
			GPU_UNROLL for (int r = 0; r < 2; r++) {
				const float2 v = __half22float2(*(const __half2 *)&value[n / 2].x[n % 2 * 2 + r]);
				r16[n / 2][n % 2 * 2 + r] = tensor_pack<f16>(beta.x * widen * v.x - old.x * x[4 * n + 2 * r], beta.y * widen * v.y - old.y * x[4 * n + 2 * r + 1]);
			}
		}
		wide_fence();
		gdn_product<CHUNK / 16>(x, r16, tiles + m::inverse, false); /* U */
		if (chunk + 1 < job.chunks) {
			gdn_load_values(value, p, job, chunk + 1);
			peak = p.peaks[(int64_t)(job.place + chunk + 1) * p.v_heads + job.head];
		}
		wide_wait<1>();
		wide_pin<CHUNK / 2>(o);
		gdn_pin_fragments(a[0], DIM / 4);
		GPU_UNROLL for (int i = 0; i < CHUNK / 4; i++) {
			const float2 decay = *(const float2 *)(rates + 2 * CHUNK + i / 2 * 8);
			o[2 * i] *= decay.x, o[2 * i + 1] *= decay.y;
		}
		const float all = rates[4 * CHUNK - c2];
		GPU_UNROLL for (int i = 0; i < DIM / 2; i++) s[i] *= all;
		wide_wait<0>();
		wide_pin<CHUNK / 2>(x);
		gdn_pin_fragments(r16[0], CHUNK / 4);
		GPU_UNROLL for (int i = 0; i < CHUNK / 4; i++) {
			const float2 rest = *(const float2 *)(rates + 3 * CHUNK + i / 2 * 8);
			r16[i / 4][i % 4] = tensor_pack<f16>(x[2 * i], x[2 * i + 1]);
			d16[i / 4][i % 4] = tensor_pack<f16>(x[2 * i] * rest.x, x[2 * i + 1] * rest.y);
		}
		wide_fence();
		gdn_product<CHUNK / 16>(o, r16, tiles + m::pairs, true);
		GPU_UNROLL for (int step = 0; step < CHUNK / 16; step++) wide_mma<f16, DIM>(s, d16[step], wide_tile(tiles + (uint32_t)step * 2048, PANEL, 1024), true);
		wide_commit();
		wide_wait<1>();
		wide_pin<CHUNK / 2>(o);
		gdn_pin_fragments(r16[0], CHUNK / 4);
		gdn_put_out<T>(p, job, chunk, o, up);
		wide_wait<0>();
		wide_pin<DIM / 2>(s);
		gdn_pin_fragments(d16[0], CHUNK / 4);
		if (threadIdx.x % 32 == 0) barrier_arrive(job.empty(stage));
	}
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) s[i] *= up;
}

/* Block (half of a value head, sequence): four waves with 16 columns of S each, transposed, S in their registers; a fifth copies tiles ahead. Wave w, lane (g, c): columns
 * 16 w + g and + 8, contraction and rows of the chunk at 8 n + 2 c, + 1, so that results of one product are the next one's operand as they lie. Bound: of
 * one sequence the chain of four products a chunk, with many the products. */
template <typename T> __global__ void __launch_bounds__(SCAN_THREADS, 1) gdn_scan_kernel(const gdn_chunk_params p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	const int seq = (int)blockIdx.y;
	gdn_scan_job job;
	job.head = (int)blockIdx.x / 2, job.half = (int)blockIdx.x % 2;
	job.start = p.row_start[seq], job.count = p.row_start[seq + 1] - job.start;
	job.place = gdn_first_place(p, seq), job.chunks = (job.count + CHUNK - 1) / CHUNK;
	job.memory = dynamic + (1024 - tensor_shared_address(dynamic) % 1024) % 1024;
	job.shared = tensor_shared_address(job.memory);
	if (job.count < CHUNK) {
		gpu_wait_previous();
		return;
	}
	if (threadIdx.x == 0) {
		for (int stage = 0; stage < STAGES; stage++) barrier_init(job.full(stage), 1), barrier_init(job.empty(stage), SCAN_WAVES);
		barrier_init_done();
	}
	const int read = p.read[seq], write = p.write[seq];
	float s[DIM / 2] = {};
	if (p.fresh) gpu_wait_previous(); /* else what is read is as old as weights: an earlier step left it */
	if (threadIdx.x < SCAN_WAVES * 32 && read >= 0) gdn_move_state<false>(s, (float *)(p.state + read * p.slot_bytes), job, 1);
	gpu_sync();
	gpu_wait_previous();
	gpu_start_next();
	if (threadIdx.x >= SCAN_WAVES * 32) {
		if (threadIdx.x == SCAN_WAVES * 32) gdn_produce(p, job);
		return;
	}
	gdn_consume<T>(p, job, s, gdn_scan_exponent(p, job, s));
	if (write) gdn_move_state<true>(s, (float *)(p.state + write * p.slot_bytes), job, 1);
}

/* ---- launcher */

template <typename T> static gpu_error gdn_chunk_run(const struct gpu_context *context, const gdn_chunk_params &p, int places)
{
	const unsigned heads = (unsigned)(2 * p.k_heads + p.v_heads);
	gpu_error code = gpu_allow_shared(gdn_scan_kernel<T>, gdn_scan_shared::bytes);
	if (code != GPU_OK) return code;
	code = GPU_LAUNCH(gdn_inputs_kernel<T>, dim3(heads, (unsigned)places), dim3(INPUT_THREADS), 0, context->stream, p);
	if (code != GPU_OK) return code;
	code = GPU_LAUNCH(gdn_pairs_kernel<T>, dim3((unsigned)p.v_heads, (unsigned)places), dim3(PAIR_THREADS), 0, context->stream, p);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH(gdn_scan_kernel<T>, dim3((unsigned)(2 * p.v_heads), (unsigned)p.seqs), dim3(SCAN_THREADS), gdn_scan_shared::bytes, context->stream, p);
}

extern "C" gpu_error gdn_chunk_launch(const struct gpu_context *context, const struct gdn_args *a)
{
	const struct gdn_layout *l = &a->cache->layout;
	const struct gdn_workspace w = gdn_workspace(a->rows->rows, a->rows->seqs, l->k_heads, l->v_heads);
	char *memory = (char *)context->workspace;
	const gdn_chunk_params p = {
		a->qkvz.data, a->ba.data, a->out.data, a->qkvz.row_stride, a->ba.row_stride, a->out.row_stride, a->conv, a->a_log, a->dt_bias,
		(char *)gdn_state(a->cache, a->layer, 0), (int64_t)gdn_slot_bytes(l), (int64_t)gdn_s_bytes(l), a->rows->row_start, a->rows->state_read,
		a->rows->state_write, a->rows->seqs, l->k_heads, l->v_heads, l->conv_kernel, (f16 *)(memory + w.keys), (f16 *)(memory + w.queries),
		(f16 *)(memory + w.values), (f16 *)(memory + w.inverse), (f16 *)(memory + w.pairs), (float *)(memory + w.rates), (float *)(memory + w.peaks), a->rows->fresh};
	return l->dtype == DTYPE_BF16 ? gdn_chunk_run<bf16>(context, p, w.places) : gdn_chunk_run<f16>(context, p, w.places);
}
