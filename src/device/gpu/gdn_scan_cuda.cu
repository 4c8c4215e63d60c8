/* gdn_scan_cuda.cu: the chunks of a sequence one after the other (gdn_chunk.h), half a value head a block.
 *
 * Cluster of two blocks: the halves of a value head of one sequence. Three warpgroups: one copies tiles ahead; one has S, transposed, in registers, wave w columns
 * 16 w to + 15, and does the products; one makes norm and gate of their o, for which the blocks tell each other sums of squares. Lane (g, c) of a wave: columns
 * g and + 8, contraction and rows of the chunk at 8 n + 2 c, + 1, so that results of one product are the next one's operand as they lie.
 *
 * A chunk's products are queued so that those which do not lead to the next S (S^T q, and what u_s counts in o_t) run while registers are worked on. Bound: of few
 * sequences the chain of three products, with many the products.
 */
#include "device/gpu/gdn_chunk_cuda.h"

#define STATE_BITS 14 /* |S| and |v| are brought below 2^14: R is up to twice as large */

/* Warpgroups of the scan, and waves of the ones that count. */
enum { SCAN_COPIES, SCAN_CONSUMES, SCAN_ENDS, SCAN_GROUPS };
#define SCAN_THREADS (SCAN_GROUPS * 128)
#define SCAN_WAVES 4
#define STAGES 3
#define OUT_LINE 72 /* elements between rows of o: 64 and padding */

/* Shared memory, bytes: stages, each k, q, inverse, pairs; rates of each; o of two chunks; sums of its squares, [2 chunks][2 halves][64]; maxima; barriers. */
struct gdn_scan_shared {
	static constexpr uint32_t queries = 2 * PANEL, inverse = 4 * PANEL, pairs = 5 * PANEL, stage = 6 * PANEL;
	static constexpr uint32_t rates = STAGES * stage, rates_bytes = GDN_RATES * 4, out = rates + STAGES * rates_bytes, out_bytes = CHUNK * OUT_LINE * 2;
	static constexpr uint32_t sums = out + 2 * out_bytes, sums_bytes = CHUNK * 4, tops = sums + 4 * sums_bytes, barriers = tops + 128;
	static constexpr uint32_t bytes = barriers + 8 * (2 * STAGES + 5) + 1024;
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
	float up, down;        /* S, v, R, U and o are times `down`, a power of two, inside; up its inverse */
	__device__ __forceinline__ uint32_t barrier(int i) const { return shared + gdn_scan_shared::barriers + (uint32_t)i * 8; }
	__device__ __forceinline__ uint32_t full(int stage) const { return barrier(stage); }
	__device__ __forceinline__ uint32_t empty(int stage) const { return barrier(STAGES + stage); }
	__device__ __forceinline__ uint32_t out_full(int turn) const { return barrier(2 * STAGES + turn); }
	__device__ __forceinline__ uint32_t out_empty(int turn) const { return barrier(2 * STAGES + 2 + turn); }
	__device__ __forceinline__ uint32_t summed() const { return barrier(2 * STAGES + 4); }
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
	const int wave = (int)threadIdx.x / 32 % SCAN_WAVES, lane = (int)threadIdx.x % 32;
	const f16 *from = p.values + ((int64_t)(job.place + chunk) * p.v_heads + job.head) * TILE + (job.half * SCAN_WAVES + wave) * (TILE / 8);
	GPU_UNROLL for (int i = 0; i < CHUNK / 16; i++) value[i] = *(const gpu_vec16 *)(from + (i * 32 + lane) * 8);
}

/* The exponent of the power of two that S, v, R and U are divided by: a bound of all columns of S in this step stays below 2^STATE_BITS. The block; s: what the
 * thread has of S. */
GPU_DEVICE int gdn_scan_exponent(const gdn_chunk_params &p, const gdn_scan_job &job, const float *s)
{
	constexpr int waves = SCAN_THREADS / 32;
	float *shared = (float *)(job.memory + gdn_scan_shared::tops), top = 0, sum = 0;
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) top = fmaxf(top, fabsf(s[i]));
	for (int c = (int)threadIdx.x; c < job.chunks; c += SCAN_THREADS) sum += p.peaks[(int64_t)(job.place + c) * p.v_heads + job.head];
	top = gpu_warp_max(top), sum = gpu_warp_sum(sum);
	if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top, shared[waves + threadIdx.x / 32] = sum;
	gpu_sync();
	top = sum = 0;
	GPU_UNROLL for (int i = 0; i < waves; i++) top = fmaxf(top, shared[i]), sum += shared[waves + i];
	return gdn_excess(top / SCALE + CHUNK * sum, STATE_BITS); /* a column's length is at most sqrt(DIM) times its largest element */
}

/* S of the lane to and from the slot: columns 16 wave + g and + 8 of this half, rows 8 n + 2 c and + 1. */
template <bool STORE> GPU_TEMPLATE void gdn_move_state(float *s, float *state, const gdn_scan_job &job)
{
	const int g = (int)threadIdx.x % 32 / 4, c = (int)threadIdx.x % 4, wave = (int)threadIdx.x / 32 % SCAN_WAVES;
	float *at = state + (job.head * DIM + job.half * 64 + wave * 16 + g) * DIM + 2 * c;
	GPU_UNROLL for (int n = 0; n < DIM / 8; n++)
		GPU_UNROLL for (int r = 0; r < 2; r++) {
			float *pair = s + 4 * n + 2 * r;
			if (STORE) *(float2 *)(at + r * 8 * DIM + n * 8) = make_float2(pair[0], pair[1]);
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

/* d (+)= fragments [STEPS] times the transpose of a tile of 64 rows. */
template <int STEPS> GPU_TEMPLATE void gdn_product(float *d, const uint32_t (*a)[4], uint32_t tile, bool add)
{
	GPU_UNROLL for (int step = 0; step < STEPS; step++)
		wide_mma_rows<f16, CHUNK>(d, a[step], wide_tile(tile + (uint32_t)(step / 4 * PANEL + step % 4 * 32), 16, 1024), add || step > 0);
	wide_commit();
}

/* The wave's 16 columns of o, packed, to those who end the chunk; rows and columns change places. The chunk's tiles are done with. */
GPU_DEVICE void gdn_hand_out(const gdn_scan_job &job, int chunk, const uint32_t (*o)[4])
{
	const int wave = (int)threadIdx.x / 32 % SCAN_WAVES, lane = (int)threadIdx.x % 32, turn = chunk % 2;
	const uint32_t to = job.shared + gdn_scan_shared::out + (uint32_t)turn * gdn_scan_shared::out_bytes + (uint32_t)(wave * 16) * 2;
	barrier_wait(job.out_empty(turn), chunk / 2 % 2 ^ 1);
	GPU_UNROLL for (int n = 0; n < CHUNK / 16; n++)
		tensor_store4_transposed(to + (uint32_t)((n * 16 + lane / 16 * 8 + lane % 8) * OUT_LINE + lane / 8 % 2 * 8) * 2, o[n]);
	gpu_warp_sync();
	if (lane == 0) barrier_arrive(job.out_full(turn)), barrier_arrive(job.empty(chunk % STAGES));
}

template <typename T> GPU_TEMPLATE void gdn_consume(const gdn_chunk_params &p, const gdn_scan_job &job, float *s)
{
	using m = gdn_scan_shared;
	const int c2 = (int)threadIdx.x % 4 * 2;
	uint32_t a[DIM / 16][4], r16[CHUNK / 16][4], d16[CHUNK / 16][4], out[CHUNK / 16][4];
	float x[CHUNK / 2], o[CHUNK / 2];
	gpu_vec16 value[CHUNK / 16];
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) s[i] *= job.down;
	GPU_UNROLL for (int i = 0; i < DIM / 4; i++) a[i / 4][i % 4] = tensor_pack<f16>(s[2 * i], s[2 * i + 1]);
	gdn_load_values(value, p, job, 0);
	float peak = p.peaks[(int64_t)job.place * p.v_heads + job.head];
	for (int chunk = 0; chunk < job.chunks; chunk++) {
		const int stage = chunk % STAGES;
		const uint32_t tiles = job.shared + (uint32_t)stage * m::stage;
		const float *rates = (const float *)(job.memory + m::rates + (uint32_t)stage * m::rates_bytes) + c2;
		barrier_wait(job.full(stage), chunk / STAGES % 2);
		wide_fence();
		gdn_product<DIM / 16>(x, a, tiles, false);
		gdn_product<DIM / 16>(o, a, tiles + m::queries, false);
		if (chunk) gdn_hand_out(job, chunk - 1, out);
		const float widen = gdn_power(gdn_excess(peak, VALUE_BITS)) * job.down;
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
		GPU_UNROLL for (int step = 0; step < CHUNK / 16; step++) wide_mma<f16, DIM>(s, d16[step], wide_tile(tiles + (uint32_t)step * 2048, PANEL, 1024), true);
		wide_commit();
		gdn_product<CHUNK / 16>(o, r16, tiles + m::pairs, true);
		wide_wait<1>();
		wide_pin<DIM / 2>(s);
		gdn_pin_fragments(d16[0], CHUNK / 4);
		GPU_UNROLL for (int i = 0; i < DIM / 4; i++) a[i / 4][i % 4] = tensor_pack<f16>(s[2 * i], s[2 * i + 1]);
		wide_wait<0>();
		wide_pin<CHUNK / 2>(o);
		gdn_pin_fragments(r16[0], CHUNK / 4);
		GPU_UNROLL for (int i = 0; i < CHUNK / 4; i++) out[i / 4][i % 4] = tensor_pack<T>(o[2 * i], o[2 * i + 1]); /* handed out during the next products */
	}
	gdn_hand_out(job, job.chunks - 1, out);
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) s[i] *= job.up;
}

/* Sums of squares of this half's rows to both blocks; returns when both halves' are here. sums: [2 halves][64] of this chunk. */
GPU_DEVICE void gdn_share_sums(const gdn_scan_job &job, int chunk, const float *square, bool mine, int row)
{
	const uint32_t at = job.shared + gdn_scan_shared::sums + (uint32_t)(chunk % 2 * 2 + job.half) * gdn_scan_shared::sums_bytes;
	GPU_UNROLL for (int block = 0; block < 2; block++) {
		const uint32_t to = cluster_address(at, block);
		GPU_UNROLL for (int i = 0; i < 4; i++)
			if (mine) cluster_store(to + (uint32_t)(row + 16 * i) * 4, square[i]);
	}
	gpu_warp_sync();
	if (threadIdx.x % 32 < 2) cluster_barrier_arrive(cluster_address(job.summed(), (int)threadIdx.x % 32));
	cluster_barrier_wait(job.summed(), chunk % 2);
}

/* Norm and gate: thread t has columns t % 8 * 8, + 8 of rows t / 8 + 16 i. */
template <typename T> GPU_TEMPLATE void gdn_end(const gdn_chunk_params &p, const gdn_scan_job &job)
{
	using m = gdn_scan_shared;
	const int t = (int)threadIdx.x % 128, column = job.head * DIM + job.half * 64 + t % 8 * 8, row = t / 8;
	float weight[8];
	gpu_load<8>(p.norm + job.half * 64 + t % 8 * 8, weight);
	for (int chunk = 0; chunk < job.chunks; chunk++) {
		const int left = job.count - chunk * CHUNK, turn = chunk % 2;
		const T *z = (const T *)p.qkvz + (int64_t)(job.start + chunk * CHUNK) * p.stride + (2 * p.k_heads + p.v_heads) * DIM + column;
		const T *from = (const T *)(job.memory + m::out + (uint32_t)turn * m::out_bytes) + t % 8 * 8;
		T *out = (T *)p.out + (int64_t)(job.start + chunk * CHUNK) * p.out_stride + column;
		gpu_vec16 gate[4], o[4];
		float square[4] = {};
		GPU_UNROLL for (int i = 0; i < 4; i++)
			if (row + 16 * i < left) gate[i] = *(const gpu_vec16 *)(z + (row + 16 * i) * p.stride);
		barrier_wait(job.out_full(turn), chunk / 2 % 2);
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			float v[8];
			o[i] = *(const gpu_vec16 *)(from + (row + 16 * i) * OUT_LINE);
			gpu_widen16<T>(o[i], v);
			GPU_UNROLL for (int e = 0; e < 8; e++) v[e] *= job.up, square[i] = gpu_fma(v[e], v[e], square[i]);
			GPU_UNROLL for (int mask = 1; mask < 8; mask *= 2) square[i] += gpu_shfl_xor(square[i], mask);
		}
		gpu_warp_sync();
		if (t % 32 == 0) barrier_arrive(job.out_empty(turn));
		gdn_share_sums(job, chunk, square, t % 8 == 0, row);
		const float *sums = (const float *)(job.memory + m::sums + (uint32_t)(chunk % 2) * 2 * m::sums_bytes);
		GPU_UNROLL for (int i = 0; i < 4; i++) {
			if (row + 16 * i >= left) continue;
			const float r = job.up * rsqrtf((sums[row + 16 * i] + sums[CHUNK + row + 16 * i]) / DIM + p.eps);
			float v[8], g[8];
			gpu_widen16<T>(o[i], v);
			gpu_widen16<T>(gate[i], g);
			GPU_UNROLL for (int e = 0; e < 8; e++) v[e] = gdn_silu(g[e]) * (v[e] * r * weight[e]);
			gpu_store<8>(out + (row + 16 * i) * p.out_stride, v);
		}
	}
}

/* Block (half of a value head, sequence). */
template <typename T> __global__ void __launch_bounds__(SCAN_THREADS, 1) gdn_scan_kernel(const gdn_chunk_params p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	const int seq = (int)blockIdx.y, group = (int)threadIdx.x / 128;
	gdn_scan_job job;
	job.head = (int)blockIdx.x / 2, job.half = (int)blockIdx.x % 2;
	job.start = p.row_start[seq], job.count = p.row_start[seq + 1] - job.start;
	job.place = gdn_first_place(p, seq), job.chunks = (job.count + CHUNK - 1) / CHUNK;
	job.memory = dynamic + (1024 - tensor_shared_address(dynamic) % 1024) % 1024;
	job.shared = tensor_shared_address(job.memory);
	if (job.count < CHUNK) { /* both blocks */
		gpu_wait_previous();
		return;
	}
	if (threadIdx.x == 0) {
		for (int stage = 0; stage < STAGES; stage++) barrier_init(job.full(stage), 1), barrier_init(job.empty(stage), SCAN_WAVES);
		for (int turn = 0; turn < 2; turn++) barrier_init(job.out_full(turn), SCAN_WAVES), barrier_init(job.out_empty(turn), SCAN_WAVES);
		barrier_init(job.summed(), 2 * SCAN_WAVES);
		barrier_init_done();
	}
	const int read = p.read[seq], write = p.write[seq];
	float s[DIM / 2] = {};
	if (p.fresh) gpu_wait_previous(); /* else what is read is as old as weights: an earlier step left it */
	if (group == SCAN_CONSUMES && read >= 0) gdn_move_state<false>(s, (float *)(p.state + read * p.slot_bytes), job);
	cluster_arrive();
	cluster_wait(); /* the other block's barriers are there */
	gpu_wait_previous();
	gpu_start_next();
	const int exponent = gdn_scan_exponent(p, job, s);
	job.up = gdn_power(exponent), job.down = gdn_power(-exponent);
	/* 40 + 240 + 224 = 3 * 168, what the launch has; more would wait for ever */
	if (group == SCAN_COPIES) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		if (threadIdx.x == 0) gdn_produce(p, job);
		gpu_warp_sync();
	} else if (group == SCAN_CONSUMES) {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
		gdn_consume<T>(p, job, s);
		if (write) gdn_move_state<true>(s, (float *)(p.state + write * p.slot_bytes), job);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
		gdn_end<T>(p, job);
	}
	cluster_arrive();
	cluster_wait(); /* nobody writes to a block that is gone */
}

template <typename T> static gpu_error gdn_scan_run(const struct gpu_context *context, const gdn_chunk_params &p)
{
	const gpu_error code = gpu_allow_shared(gdn_scan_kernel<T>, gdn_scan_shared::bytes);
	if (code != GPU_OK) return code;
	return gpu_launch_clusters(gdn_scan_kernel<T>, 2, dim3((unsigned)(2 * p.v_heads), (unsigned)p.seqs), dim3(SCAN_THREADS), gdn_scan_shared::bytes, context->stream, p);
}

extern "C" gpu_error gdn_scan_launch(const struct gpu_context *context, const struct gdn_chunk_params *p, enum dtype dtype)
{
	return dtype == DTYPE_BF16 ? gdn_scan_run<bf16>(context, *p) : gdn_scan_run<f16>(context, *p);
}
