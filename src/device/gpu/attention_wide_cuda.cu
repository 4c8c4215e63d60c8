/* attention_wide_cuda.cu: attention of sequences with several rows on Hopper's warpgroup products, 16-bit types, heads up to 128.
 *
 * Block (query head, tile), three warpgroups: 128 rows of one sequence against its keys, 128 at a time, online softmax (after FlashAttention-3). Tiles are
 * numbered from the last, since later rows see more and long work should begin first.
 *   Warpgroup 0, one wave of it: the producer. Queries once, then keys and values into STAGES buffers each by tensor copies, boxes of
 *     `box` keys x 64 elements (box divides block_tokens), lane i the box i; boxes without a key that some row sees are zeros (a row behind the matrix).
 *   Warpgroups 1, 2: rows 64 (w - 1) .. + 63. S [64][128] = Q K^T from shared memory, O [64][DIM] += P V with P in registers. The scores of the
 *     next keys are computed while the values of these are added; softmax runs beside the products, the other warpgroup's too: the two take turns.
 * Where some keys of a tile count and others do not (the last, or the first of a window), scores are masked and values cleared.
 *
 * DIM is head_dim rounded up to 64 or 128. Keys' and values' columns behind the head's end are zeros (outside the map's matrix); queries' are the next head's,
 * which zeros silence.
 *
 * Shared memory: queries 128 * DIM, keys and values STAGES * 128 * DIM each, 16 bits: 224 KB at DIM 128; tiles [64 elements][rows] with 128-byte swizzle.
 * Rows of q and of the cache at multiples of 16 bytes. One block on a multiprocessor; registers are moved from the producer to the others. The
 * bound aimed for is the tensor cores' rate.
 */
#include "device/gpu/attention_device.h"
#include "device/gpu/wide_cuda.h"

#define THREADS 384
#define ROWS 128
#define KEYS 128
#define STAGES 3 /* two leave the products waiting */
#define WAVES 8 /* that consume */

enum { TURN_FIRST = 1, TURN_SECOND = 2, CLEARED = 3 }; /* hardware barriers */

template <int DIM> struct wide_shared {
	static constexpr uint32_t tile = KEYS * DIM * 2;  /* bytes */
	static constexpr uint32_t half = KEYS * 128;      /* of 64 elements' columns */
	static constexpr uint32_t queries = 0, keys = tile, values = keys + STAGES * tile, barriers = values + STAGES * tile;
	static constexpr size_t bytes = barriers + 8 * (1 + 4 * STAGES) + 1024; /* the launch aligns to 16 bytes only */
};

/* Addresses of the memory barriers: one for the queries, then full and empty ones of keys and values. */
struct wide_barriers {
	uint32_t base;
	__device__ __forceinline__ uint32_t queries() const { return base; }
	__device__ __forceinline__ uint32_t full(int values, int stage) const { return base + 8u * (uint32_t)(1 + values * 2 * STAGES + stage); }
	__device__ __forceinline__ uint32_t empty(int values, int stage) const { return base + 8u * (uint32_t)(1 + values * 2 * STAGES + STAGES + stage); }
};

/* What the block is at. */
struct wide_job {
	attention_rows tile;
	int head, first, end, begin, turns; /* keys [first, end) count; tiles of keys from `begin` on */
	uint32_t shared;
	wide_barriers barriers;
};

/* ---- producer */

/* The cache's row with the first key of this lane's box of keys; behind the matrix, where zeros come from, if nobody sees any of them. */
GPU_DEVICE int key_row(const attention_params &p, const wide_job &job, int box, int turn)
{
	const int boxes = KEYS / box, key = job.begin + turn * KEYS + (int)threadIdx.x % 32 % boxes * box;
	if (key >= job.end || key + box <= job.first) return p.blocks * 2 * p.kv_heads * p.block_tokens;
	const int block = p.block_shift >= 0 ? key >> p.block_shift : key / p.block_tokens;
	const int at = p.block_table[(int64_t)job.tile.seq * p.max_blocks + block];
	return (at * 2 * p.kv_heads + job.head / p.group) * p.block_tokens + key - block * p.block_tokens;
}

/* One tile of keys (values 0) or values (1); row: key_row. */
template <int DIM>
GPU_TEMPLATE void copy_tile(const attention_params &p, const CUtensorMap *map, const wide_job &job, int box, int row, int turn, int values)
{
	using shared = wide_shared<DIM>;
	const int lane = (int)threadIdx.x % 32, stage = turn % STAGES, boxes = KEYS / box;
	const uint32_t full = job.barriers.full(values, stage), to = job.shared + (values ? shared::values : shared::keys) + (uint32_t)stage * shared::tile;
	if (lane == 0) {
		barrier_wait(job.barriers.empty(values, stage), turn / STAGES % 2 ^ 1);
		barrier_expect(full, shared::tile);
	}
	gpu_warp_sync();
	if (lane >= boxes * (DIM / 64)) return;
	const int half = lane / boxes, index = lane % boxes;
	if (values) row += p.kv_heads * p.block_tokens; /* behind the matrix it stays there */
	wide_copy(to + (uint32_t)half * shared::half + (uint32_t)(index * box * 128), map, half * 64, row, full);
}

template <int DIM>
GPU_TEMPLATE void produce(const attention_params &p, const CUtensorMap *q_map, const CUtensorMap *kv_map, const wide_job &job, int box)
{
	using shared = wide_shared<DIM>;
	if (threadIdx.x >= 32) return;
	if (threadIdx.x == 0) {
		barrier_expect(job.barriers.queries(), shared::tile);
		for (int half = 0; half < DIM / 64; half++)
			wide_copy(job.shared + shared::queries + (uint32_t)half * shared::half, q_map, job.head * p.head_dim + half * 64, job.tile.row, job.barriers.queries());
	}
	for (int turn = 0; turn < job.turns; turn++) {
		const int row = key_row(p, job, box, turn); /* the table is read while the tile's places become free */
		copy_tile<DIM>(p, kv_map, job, box, row, turn, 0);
		copy_tile<DIM>(p, kv_map, job, box, row, turn, 1);
	}
}

/* ---- consumers */

/* Rows g and g + 8 of the wave's 16. */
struct wide_rows {
	int position[2];
	float max[2], sum[2], keep[2]; /* sum: this lane's share */
};

/* Begins score = Q K^T. */
template <typename T, int DIM> GPU_TEMPLATE void begin_scores(float *score, const wide_job &job, int group, int turn)
{
	using shared = wide_shared<DIM>;
	const uint32_t q = job.shared + shared::queries + (uint32_t)group * 64 * 128, k = job.shared + shared::keys + (uint32_t)(turn % STAGES) * shared::tile;
	wide_fence();
	GPU_UNROLL for (int step = 0; step < DIM / 16; step++) {
		const uint32_t offset = (uint32_t)(step / 4) * shared::half + (uint32_t)(step % 4) * 32;
		wide_mma<T, 128>(score, wide_tile(q + offset, 16), wide_tile(k + offset, 16), step > 0);
	}
	wide_commit();
}

/* Begins acc (+)= P V. */
template <typename T, int DIM> GPU_TEMPLATE void begin_values(float *acc, const uint32_t (*weight)[4], const wide_job &job, int turn)
{
	using shared = wide_shared<DIM>;
	const uint32_t v = job.shared + shared::values + (uint32_t)(turn % STAGES) * shared::tile;
	wide_fence();
	GPU_UNROLL for (int step = 0; step < KEYS / 16; step++)
		wide_mma<T, DIM>(acc, weight[step], wide_tile(v + (uint32_t)step * 2048, shared::half), step > 0 || turn > 0);
	wide_commit();
}

GPU_DEVICE void mask_scores(float *score, const wide_rows &rows, int base, int window)
{
	const int c = (int)threadIdx.x % 4;
	GPU_UNROLL for (int i = 0; i < KEYS / 2; i++) {
		const int key = base + i / 4 * 8 + 2 * c + i % 2, at = rows.position[i / 2 % 2];
		if (key > at || (window > 0 && key <= at - window)) score[i] = ATTENTION_NONE;
	}
}

/* Scores into weights (still f32); rows.keep: what the sums so far must be multiplied by. */
GPU_DEVICE void weigh(float *score, wide_rows &rows, float scale)
{
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		float top = rows.max[r];
		GPU_UNROLL for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(score[4 * n + 2 * r], score[4 * n + 2 * r + 1]));
		top = fmaxf(top, gpu_shfl_xor(top, 1));
		top = fmaxf(top, gpu_shfl_xor(top, 2));
		const float minus = top == ATTENTION_NONE ? 0.0f : -top * scale; /* nothing seen yet: all weights are 0 */
		rows.keep[r] = tensor_exp2(gpu_fma(rows.max[r], scale, minus));
		rows.max[r] = top;
		float sum = 0;
		GPU_UNROLL for (int n = 0; n < KEYS / 8; n++)
			GPU_UNROLL for (int i = 4 * n + 2 * r; i < 4 * n + 2 * r + 2; i++) {
				score[i] = tensor_exp2(gpu_fma(score[i], scale, minus));
				sum += score[i];
			}
		rows.sum[r] = gpu_fma(rows.sum[r], rows.keep[r], sum);
	}
}

template <typename T> GPU_TEMPLATE void pack_weights(uint32_t (*weight)[4], const float *score)
{
	GPU_UNROLL for (int i = 0; i < KEYS / 4; i++) weight[i / 4][i % 4] = tensor_pack<T>(score[2 * i], score[2 * i + 1]);
}

/* Values of tile `turn` that no row may see become zeros, where there are any: a weight of 0 does not silence the NaN that stale memory may hold.
 * Both warpgroups call it for the same tiles. */
template <int DIM> GPU_TEMPLATE void clear_values(const wide_job &job, int turn)
{
	using shared = wide_shared<DIM>;
	const int base = job.begin + turn * KEYS;
	if (base >= job.first && base + KEYS <= job.end) return;
	unsigned char *values = nullptr;
	asm volatile("cvta.shared.u64 %0, %1;" : "=l"(values) : "l"((uint64_t)(job.shared + shared::values + (uint32_t)(turn % STAGES) * shared::tile)));
	const int me = (int)threadIdx.x - 128;
	for (int i = me; i < KEYS * (DIM / 8); i += WAVES * 32) { /* 16 bytes; the swizzle stays within a row */
		const int half = i / (KEYS * 8), row = i / 8 % KEYS, key = base + row;
		if (key < job.first || key >= job.end) *(gpu_vec16 *)(values + half * (int)shared::half + row * 128 + i % 8 * 16) = gpu_vec16{};
	}
	wide_publish();
	barrier_threads(CLEARED, WAVES * 32);
}

template <typename T, int DIM> GPU_TEMPLATE void put_rows(const attention_params &p, const wide_job &job, int group, wide_rows &rows, const float *acc)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		rows.sum[r] += gpu_shfl_xor(rows.sum[r], 1);
		rows.sum[r] += gpu_shfl_xor(rows.sum[r], 2);
		const int row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + g + r * 8;
		if (row >= job.tile.rows) continue;
		const float inverse = 1.0f / rows.sum[r];
		T *out = (T *)p.out + (int64_t)(job.tile.row + row) * p.out_stride + (int64_t)job.head * p.head_dim;
		GPU_UNROLL for (int n = 0; n < DIM / 8; n++)
			if (n * 8 < p.head_dim) *(uint32_t *)(out + n * 8 + 2 * c) = tensor_pack<T>(acc[4 * n + 2 * r] * inverse, acc[4 * n + 2 * r + 1] * inverse);
	}
}

template <typename T, int DIM> GPU_TEMPLATE void consume(const attention_params &p, const wide_job &job)
{
	const int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 32, g = lane / 4;
	const int my_turn = group == 0 ? TURN_FIRST : TURN_SECOND, other_turn = group == 0 ? TURN_SECOND : TURN_FIRST;
	wide_rows rows = {{0, 0}, {ATTENTION_NONE, ATTENTION_NONE}, {0, 0}, {0, 0}};
	GPU_UNROLL for (int r = 0; r < 2; r++) {
		const int row = group * 64 + (int)threadIdx.x / 32 % 4 * 16 + g + r * 8; /* rows behind the tile's end repeat its last */
		rows.position[r] = p.position[job.tile.row + (row < job.tile.rows ? row : job.tile.rows - 1)];
	}
	/* Tiles of keys within [all_from, all_to) are seen by all rows of the tile. */
	const int all_to = p.position[job.tile.row] + 1, high = job.end - 1, all_from = p.window > 0 ? high - p.window + 1 : 0;
	float score[KEYS / 2], acc[DIM / 2];
	uint32_t weight[KEYS / 16][4];
	GPU_UNROLL for (int i = 0; i < DIM / 2; i++) acc[i] = 0;
	if (group == 1) barrier_threads_arrive(TURN_FIRST, WAVES * 32);

	barrier_wait(job.barriers.queries(), 0);
	barrier_wait(job.barriers.full(0, 0), 0);
	begin_scores<T, DIM>(score, job, group, 0);
	wide_wait<0>();
	wide_pin<KEYS / 2>(score);
	if (lane == 0) barrier_arrive(job.barriers.empty(0, 0));
	if (job.begin < all_from || job.begin + KEYS > all_to) mask_scores(score, rows, job.begin, p.window);
	weigh(score, rows, p.scale_log2);
	pack_weights<T>(weight, score);

	for (int turn = 1; turn < job.turns; turn++) { /* scores of `turn`, values of the one before */
		const int base = job.begin + turn * KEYS, last = turn - 1;
		barrier_wait(job.barriers.full(0, turn % STAGES), turn / STAGES % 2);
		barrier_wait(job.barriers.full(1, last % STAGES), last / STAGES % 2);
		if (last == 0) clear_values<DIM>(job, last);
		barrier_threads(my_turn, WAVES * 32);
		begin_scores<T, DIM>(score, job, group, turn);
		begin_values<T, DIM>(acc, weight, job, last);
		barrier_threads_arrive(other_turn, WAVES * 32);
		wide_wait<1>();
		wide_pin<KEYS / 2>(score);
		if (lane == 0) barrier_arrive(job.barriers.empty(0, turn % STAGES));
		if (base < all_from || base + KEYS > all_to) mask_scores(score, rows, base, p.window);
		weigh(score, rows, p.scale_log2);
		wide_wait<0>();
		wide_pin<DIM / 2>(acc);
		if (lane == 0) barrier_arrive(job.barriers.empty(1, last % STAGES));
		GPU_UNROLL for (int i = 0; i < DIM / 2; i++) acc[i] *= rows.keep[i / 2 % 2];
		pack_weights<T>(weight, score);
	}
	const int last = job.turns - 1;
	barrier_wait(job.barriers.full(1, last % STAGES), last / STAGES % 2);
	clear_values<DIM>(job, last);
	begin_values<T, DIM>(acc, weight, job, last);
	wide_wait<0>();
	wide_pin<DIM / 2>(acc);
	put_rows<T, DIM>(p, job, group, rows, acc);
	if (group == 0) barrier_threads(my_turn, WAVES * 32); /* takes the turn that nobody wants any more */
}

template <typename T, int DIM>
__global__ void __launch_bounds__(THREADS, 1)
attention_wide_kernel(const attention_params p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap kv_map, int box)
{
	using shared = wide_shared<DIM>;
	GPU_DYNAMIC_SHARED(dynamic);
	wide_job job;
	job.shared = (tensor_shared_address(dynamic) + 1023) / 1024 * 1024;
	job.barriers.base = job.shared + shared::barriers;
	job.head = (int)blockIdx.x;
	if (threadIdx.x == 0) {
		barrier_init(job.barriers.queries(), 1);
		for (int stage = 0; stage < STAGES; stage++)
			for (int values = 0; values < 2; values++) {
				barrier_init(job.barriers.full(values, stage), 1);
				barrier_init(job.barriers.empty(values, stage), WAVES);
			}
		barrier_init_done();
	}
	gpu_sync();
	gpu_wait_previous();
	gpu_start_next();
	job.tile = attention_find_tile(p, (int)(gridDim.y - 1 - blockIdx.y), ROWS);
	if (job.tile.rows == 0) return;
	const int low = p.position[job.tile.row];
	job.first = p.window > 0 && low >= p.window ? low - p.window + 1 : 0;
	job.end = p.position[job.tile.row + job.tile.rows - 1] + 1;
	job.begin = job.first / KEYS * KEYS;
	job.turns = (job.end - job.begin + KEYS - 1) / KEYS;
	if (threadIdx.x < 128) {
		/* 40 + 2 * 232 = 3 * 168, what the launch has; more would wait for ever */
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		produce<DIM>(p, &q_map, &kv_map, job, box);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		consume<T, DIM>(p, job);
	}
}

/* ---- launcher */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Map of a matrix of 16-bit elements, in boxes of `box` rows x 64 columns. */
static enum status make_map(CUtensorMap *map, enum dtype dtype, const void *data, int64_t rows, int64_t cols, int64_t stride, int box, struct error *err)
{
	void *entry = NULL;
	cudaDriverEntryPointQueryResult found;
	TRY(gpu_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found), "attention_wide: driver", err));
	if (found != cudaDriverEntryPointSuccess) return FAIL(err, UNSUPPORTED, "attention_wide: the driver has no tensor maps (query result %d)", (int)found);
	const cuuint64_t sizes[] = {(cuuint64_t)cols, (cuuint64_t)rows}, strides[] = {(cuuint64_t)stride * 2};
	const cuuint32_t boxes[] = {64, (cuuint32_t)box}, steps[] = {1, 1};
	const CUresult code = ((encode_function)entry)(
		map, dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void *>(data), sizes, strides, boxes, steps,
		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (code != CUDA_SUCCESS)
		return FAIL(err, DEVICE_FAULT, "attention_wide: map of [%lld,%lld] with stride %lld in boxes of %d rows: driver error %d", (long long)rows,
		            (long long)cols, (long long)stride, box, (int)code);
	return STATUS_OK;
}

template <typename T, int DIM>
static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p, const CUtensorMap &q_map, const CUtensorMap &kv_map, int box)
{
	const unsigned tiles = attention_most_tiles(p, ROWS);
	const gpu_error code = gpu_allow_shared((attention_wide_kernel<T, DIM>), wide_shared<DIM>::bytes);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((attention_wide_kernel<T, DIM>), dim3((unsigned)p->q_heads, tiles), dim3(THREADS), wide_shared<DIM>::bytes, ctx->stream, *p, q_map,
	                  kv_map, box);
}

/* Rows of a box: the largest power of two that divides a block and a tile of keys. */
static int box_rows(const attention_params *p)
{
	int box = p->block_tokens & -p->block_tokens;
	return box < KEYS ? box : KEYS;
}

static bool can_wide(const attention_params *p, enum dtype dtype)
{
	return (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 8 == 0 && p->head_dim <= 128 &&
	       ((int64_t)p->blocks + 1) * 2 * p->kv_heads * p->block_tokens < INT32_MAX;
}

static enum status launch_wide(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	CUtensorMap q_map, kv_map;
	const int box = box_rows(p);
	TRY(make_map(&q_map, dtype, p->q, p->rows, (int64_t)p->q_heads * p->head_dim, p->q_stride, ROWS, err));
	TRY(make_map(&kv_map, dtype, p->kv, (int64_t)p->blocks * 2 * p->kv_heads * p->block_tokens, p->head_dim, p->head_dim, box, err));
	const bool wide = p->head_dim > 64;
	const gpu_error code = dtype == DTYPE_BF16 ? wide ? launch_instance<bf16, 128>(ctx, p, q_map, kv_map, box) : launch_instance<bf16, 64>(ctx, p, q_map, kv_map, box)
	                       : wide              ? launch_instance<f16, 128>(ctx, p, q_map, kv_map, box)
	                                           : launch_instance<f16, 64>(ctx, p, q_map, kv_map, box);
	return gpu_check(code, "attention_wide", err);
}

extern "C" const struct attention_kernel attention_prefill_wide = {"prefill_wide", can_wide, launch_wide, false, NULL};
