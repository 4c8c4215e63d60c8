/* attention_wide_cuda.cu: attention of sequences with several rows on Hopper's warpgroup products, 16-bit types, heads up to 256.
 *
 * Block (query head, tile), three warpgroups: 128 rows of one sequence against its keys, KEYS at a time, online softmax (after FlashAttention-3). Tiles are
 * numbered from the last, since later rows see more and long work should begin first.
 *   Warpgroup 0, one wave of it: the producer. Queries once, then keys and values into buffers of their own by tensor copies, boxes of `box` keys
 *     (a power of 2 that divides block_tokens and KEYS), lane i the box i; boxes without a key that some row sees are zeros (rows behind the matrix). The next
 *     keys are asked for before the values of these: their place becomes free first.
 *   Warpgroups 1, 2: rows 64 (w - 1) .. + 63. S [64][KEYS] = Q K^T from shared memory, O [64][DIM] += P V with P in registers. The scores of the
 *     next keys are computed while the values of these are added; softmax runs beside the products, the other warpgroup's too: the two take turns.
 * Where some keys of a tile count and others do not (the last, or the first of a window), scores are masked and values cleared.
 *
 * DIM is head_dim rounded up to 64, 128, 192 or 256. Keys' and values' columns behind the head's end are zeros (outside the map's matrix); queries' are the next
 * head's, which zeros silence.
 *
 * Shared memory, 16 bits, blocks of 64 elements [8 rows][64] with 128-byte swizzle. Queries 128 * DIM: a row of blocks after the other's (wide_shared::half apart).
 * Keys and values: heads that fill their blocks come in one box, all blocks of a group of 8 keys side by side; else each 64 columns are boxes of their own, and a
 * block's groups lie together (wide_job: across, down). Up to 225 KB.
 * Rows of q and of the cache at multiples of 16 bytes. One block on a multiprocessor; registers are moved from the producer to the others, who at DIM 256
 * hold O, S and P in 188. The bound aimed for is the tensor cores' rate.
 */
#include "device/gpu/attention_device.h"
#include "device/gpu/wide_cuda.h"

#define THREADS 384
#define ROWS 128
#define WAVES 8 /* that consume */

enum { TURN_FIRST = 1, TURN_SECOND = 2, CLEARED = 3 }; /* hardware barriers */

/* Keys of a tile, and for how many tiles of them, and of their values, there is room. Two leave the products of heads of 128 waiting. Of 64 keys a product would read
 * queries and keys from shared memory for as long as it computes. */
template <int DIM> struct wide_shape {
	static constexpr int keys = 128, stages = 3;
};
template <> struct wide_shape<192> {
	static constexpr int keys = 96, stages = 2;
};
template <> struct wide_shape<256> {
	static constexpr int keys = 80, stages = 2;
};

template <int DIM> struct wide_shared {
	static constexpr int stages = wide_shape<DIM>::stages;
	static constexpr uint32_t tile = wide_shape<DIM>::keys * DIM * 2; /* bytes */
	static constexpr uint32_t half = ROWS * 128;                      /* 64 columns of the queries */
	static constexpr uint32_t queries = 0, keys = ROWS * DIM * 2, values = keys + stages * tile, barriers = values + stages * tile;
	static constexpr size_t bytes = barriers + 8 * (1 + 4 * stages) + 1024; /* the launch aligns to 16 bytes only */
	static_assert(bytes <= 227 * 1024, "shared memory of a block");
};

/* Addresses of the memory barriers: one for the queries, then full and empty ones of keys and values. */
template <int STAGES> struct wide_barriers {
	uint32_t base;
	__device__ __forceinline__ uint32_t queries() const { return base; }
	__device__ __forceinline__ uint32_t full(int values, int stage) const { return base + 8u * (uint32_t)(1 + values * 2 * STAGES + stage); }
	__device__ __forceinline__ uint32_t empty(int values, int stage) const { return base + 8u * (uint32_t)(1 + values * 2 * STAGES + STAGES + stage); }
};

/* What the block is at. */
template <int DIM> struct wide_job {
	attention_rows tile;
	int head, first, end, begin, turns; /* keys [first, end) count; tiles of keys from `begin` on */
	int box;
	uint32_t across, down; /* bytes from a block of keys or values to that of the next 64 columns, and of the next 8 keys */
	uint32_t shared;
	wide_barriers<wide_shape<DIM>::stages> barriers;
};

/* ---- producer */

/* The cache's row with the first key of this lane's box of keys; behind the matrix, where zeros come from, if nobody sees any of them. */
template <int DIM> GPU_TEMPLATE int key_row(const attention_params &p, const wide_job<DIM> &job, int turn)
{
	constexpr int KEYS = wide_shape<DIM>::keys;
	const int boxes = KEYS / job.box, key = job.begin + turn * KEYS + (int)threadIdx.x % 32 % boxes * job.box;
	if (key >= job.end || key + job.box <= job.first) return p.blocks * 2 * p.kv_heads * p.block_tokens;
	const int block = p.block_shift >= 0 ? key >> p.block_shift : key / p.block_tokens;
	const int at = p.block_table[(int64_t)job.tile.seq * p.max_blocks + block];
	return (at * 2 * p.kv_heads + job.head / p.group) * p.block_tokens + key - block * p.block_tokens;
}

/* One tile of keys (values 0) or values (1); row: key_row. */
template <int DIM> GPU_TEMPLATE void copy_tile(const attention_params &p, const CUtensorMap *map, const wide_job<DIM> &job, int row, int turn, int values)
{
	using shared = wide_shared<DIM>;
	constexpr int STAGES = wide_shape<DIM>::stages;
	const int lane = (int)threadIdx.x % 32, stage = turn % STAGES, boxes = wide_shape<DIM>::keys / job.box, parts = p.head_dim == DIM ? 1 : DIM / 64;
	const uint32_t full = job.barriers.full(values, stage), to = job.shared + (values ? shared::values : shared::keys) + (uint32_t)stage * shared::tile;
	if (lane == 0) {
		barrier_wait(job.barriers.empty(values, stage), turn / STAGES % 2 ^ 1);
		barrier_expect(full, shared::tile);
	}
	gpu_warp_sync();
	if (lane >= boxes * parts) return;
	const int part = lane / boxes, index = lane % boxes;
	if (values) row += p.kv_heads * p.block_tokens; /* behind the matrix it stays there */
	wide_copy_groups(to + (uint32_t)part * job.across + (uint32_t)(index * job.box / 8) * job.down, map, part * 64, row / 8, full);
}

template <int DIM> GPU_TEMPLATE void produce(const attention_params &p, const CUtensorMap *q_map, const CUtensorMap *kv_map, const wide_job<DIM> &job)
{
	using shared = wide_shared<DIM>;
	if (threadIdx.x >= 32) return;
	if (threadIdx.x == 0) {
		barrier_expect(job.barriers.queries(), ROWS * DIM * 2);
		for (int half = 0; half < DIM / 64; half++)
			wide_copy(job.shared + shared::queries + (uint32_t)half * shared::half, q_map, job.head * p.head_dim + half * 64, job.tile.row, job.barriers.queries());
	}
	int before = 0;
	for (int turn = 0; turn < job.turns; turn++) {
		const int row = key_row(p, job, turn); /* the table is read while the tile's places become free */
		copy_tile(p, kv_map, job, row, turn, 0);
		if (turn > 0) copy_tile(p, kv_map, job, before, turn - 1, 1);
		before = row;
	}
	copy_tile(p, kv_map, job, before, job.turns - 1, 1);
}

/* ---- consumers */

/* Rows g and g + 8 of the wave's 16. */
struct wide_rows {
	int position[2];
	float max[2], sum[2], keep[2]; /* sum: this lane's share */
};

/* Begins score = Q K^T. */
template <typename T, int DIM> GPU_TEMPLATE void begin_scores(float *score, const wide_job<DIM> &job, int group, int turn)
{
	using shared = wide_shared<DIM>;
	const uint64_t q = wide_tile(job.shared + shared::queries + (uint32_t)group * 64 * 128, 16, 1024);
	const uint64_t k = wide_tile(job.shared + shared::keys + (uint32_t)(turn % shared::stages) * shared::tile, 16, job.down);
	wide_fence();
	GPU_UNROLL for (int step = 0; step < DIM / 16; step++) {
		const uint32_t block = (uint32_t)(step / 4), inside = (uint32_t)(step % 4) * 32;
		wide_mma<T, wide_shape<DIM>::keys>(score, wide_tile_at(q, block * shared::half + inside), wide_tile_at(k, block * job.across + inside), step > 0);
	}
	wide_commit();
}

/* Begins acc (+)= P V. */
template <typename T, int DIM> GPU_TEMPLATE void begin_values(float *acc, const uint32_t (*weight)[4], const wide_job<DIM> &job, int turn)
{
	using shared = wide_shared<DIM>;
	const uint64_t v = wide_tile(job.shared + shared::values + (uint32_t)(turn % shared::stages) * shared::tile, job.across, job.down);
	wide_fence();
	GPU_UNROLL for (int step = 0; step < wide_shape<DIM>::keys / 16; step++)
		wide_mma<T, DIM>(acc, weight[step], wide_tile_at(v, (uint32_t)step * 2 * job.down), step > 0 || turn > 0);
	wide_commit();
}

template <int KEYS> GPU_TEMPLATE void mask_scores(float *score, const wide_rows &rows, int base, int window)
{
	const int c = (int)threadIdx.x % 4;
	GPU_UNROLL for (int i = 0; i < KEYS / 2; i++) {
		const int key = base + i / 4 * 8 + 2 * c + i % 2, at = rows.position[i / 2 % 2];
		if (key > at || (window > 0 && key <= at - window)) score[i] = ATTENTION_NONE;
	}
}

/* Scores into weights (still f32); rows.keep: what the sums so far must be multiplied by. */
template <int KEYS> GPU_TEMPLATE void weigh(float *score, wide_rows &rows, float scale)
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

template <typename T, int KEYS> GPU_TEMPLATE void pack_weights(uint32_t (*weight)[4], const float *score)
{
	GPU_UNROLL for (int i = 0; i < KEYS / 4; i++) weight[i / 4][i % 4] = tensor_pack<T>(score[2 * i], score[2 * i + 1]);
}

/* Values of tile `turn` outside the keys [first, job.end) become zeros, where there are any: a weight of 0 does not silence the NaN that stale memory may
 * hold. Both warpgroups call it for the same tiles. */
template <int DIM> GPU_TEMPLATE void clear_values(const wide_job<DIM> &job, int turn, int first)
{
	using shared = wide_shared<DIM>;
	constexpr int KEYS = wide_shape<DIM>::keys;
	const int base = job.begin + turn * KEYS;
	if (base >= first && base + KEYS <= job.end) return;
	unsigned char *values = nullptr;
	asm volatile("cvta.shared.u64 %0, %1;" : "=l"(values) : "l"((uint64_t)(job.shared + shared::values + (uint32_t)(turn % shared::stages) * shared::tile)));
	const int me = (int)threadIdx.x - 128;
	for (int i = me; i < KEYS * (DIM / 8); i += WAVES * 32) { /* 16 bytes; the swizzle stays within a row */
		const uint32_t block = (uint32_t)(i / (KEYS * 8)), row = (uint32_t)(i / 8 % KEYS);
		const int key = base + (int)row;
		if (key < first || key >= job.end) *(gpu_vec16 *)(values + block * job.across + row / 8 * job.down + row % 8 * 128 + i % 8 * 16) = gpu_vec16{};
	}
	wide_publish();
	barrier_threads(CLEARED, WAVES * 32);
}

template <typename T, int DIM> GPU_TEMPLATE void put_rows(const attention_params &p, const wide_job<DIM> &job, int group, wide_rows &rows, const float *acc)
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

template <typename T, int DIM> GPU_TEMPLATE void consume(const attention_params &p, const wide_job<DIM> &job)
{
	constexpr int KEYS = wide_shape<DIM>::keys, STAGES = wide_shape<DIM>::stages;
	const int group = gpu_shfl((int)threadIdx.x / 128 - 1, 0); /* one value for the wave: descriptors stay out of its registers */
	const int lane = (int)threadIdx.x % 32, g = lane / 4;
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
	begin_scores<T>(score, job, group, 0);
	wide_wait<0>();
	wide_pin<KEYS / 2>(score);
	if (lane == 0) barrier_arrive(job.barriers.empty(0, 0));
	if (job.begin < all_from || job.begin + KEYS > all_to) mask_scores<KEYS>(score, rows, job.begin, p.window);
	weigh<KEYS>(score, rows, p.scale_log2);
	pack_weights<T, KEYS>(weight, score);

	barrier_wait(job.barriers.full(1, 0), 0);
	clear_values(job, 0, job.first);
	for (int turn = 1; turn < job.turns; turn++) { /* scores of `turn`, values of the one before */
		const int base = job.begin + turn * KEYS, last = turn - 1;
		barrier_wait(job.barriers.full(0, turn % STAGES), turn / STAGES % 2);
		barrier_wait(job.barriers.full(1, last % STAGES), last / STAGES % 2);
		barrier_threads(my_turn, WAVES * 32);
		begin_scores<T>(score, job, group, turn);
		begin_values<T>(acc, weight, job, last);
		barrier_threads_arrive(other_turn, WAVES * 32);
		wide_wait<1>();
		wide_pin<KEYS / 2>(score);
		if (lane == 0) barrier_arrive(job.barriers.empty(0, turn % STAGES));
		if (base < all_from || base + KEYS > all_to) mask_scores<KEYS>(score, rows, base, p.window);
		weigh<KEYS>(score, rows, p.scale_log2);
		wide_wait<0>();
		wide_pin<DIM / 2>(acc);
		if (lane == 0) barrier_arrive(job.barriers.empty(1, last % STAGES));
		GPU_UNROLL for (int i = 0; i < DIM / 2; i++) acc[i] *= rows.keep[i / 2 % 2];
		pack_weights<T, KEYS>(weight, score);
	}
	const int last = job.turns - 1;
	barrier_wait(job.barriers.full(1, last % STAGES), last / STAGES % 2);
	if (last > 0) clear_values(job, last, 0);
	begin_values<T>(acc, weight, job, last);
	wide_wait<0>();
	wide_pin<DIM / 2>(acc);
	put_rows<T>(p, job, group, rows, acc);
	if (group == 0) barrier_threads(my_turn, WAVES * 32); /* takes the turn that nobody wants any more */
}

template <typename T, int DIM>
__global__ void __launch_bounds__(THREADS, 1)
attention_wide_kernel(const attention_params p, const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap kv_map, int box)
{
	using shared = wide_shared<DIM>;
	constexpr int KEYS = wide_shape<DIM>::keys, STAGES = wide_shape<DIM>::stages;
	GPU_DYNAMIC_SHARED(dynamic);
	wide_job<DIM> job;
	job.shared = (tensor_shared_address(dynamic) + 1023) / 1024 * 1024;
	job.barriers.base = job.shared + shared::barriers;
	job.head = (int)blockIdx.x;
	job.box = box;
	job.across = p.head_dim == DIM ? 1024 : KEYS * 128;
	job.down = p.head_dim == DIM ? DIM / 64 * 1024 : 1024;
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
		produce(p, &q_map, &kv_map, job);
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		consume<T>(p, job);
	}
}

/* ---- launcher */

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* A matrix of 16-bit elements as a map sees it: elements of each dimension, bytes from one to the next of each but the first, elements of a box. */
struct map_shape {
	int rank;
	cuuint64_t sizes[4], strides[3];
	cuuint32_t box[4];
};

static enum status make_map(CUtensorMap *map, enum dtype dtype, const void *data, const struct map_shape *m, struct error *err)
{
	void *entry = NULL;
	cudaDriverEntryPointQueryResult found;
	TRY(gpu_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found), "attention_wide: driver", err));
	if (found != cudaDriverEntryPointSuccess) return FAIL(err, UNSUPPORTED, "attention_wide: the driver has no tensor maps (query result %d)", (int)found);
	const cuuint32_t steps[] = {1, 1, 1, 1};
	const CUresult code = ((encode_function)entry)(
		map, dtype == DTYPE_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, (cuuint32_t)m->rank, const_cast<void *>(data), m->sizes,
		m->strides, m->box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	if (code != CUDA_SUCCESS)
		return FAIL(err, DEVICE_FAULT, "attention_wide: map of %d dimensions, [%lld,%lld,..] in boxes of [%d,%d,..], rows of %lld bytes: driver error %d", m->rank,
		            (long long)m->sizes[0], (long long)m->sizes[1], (int)m->box[0], (int)m->box[1], (long long)m->strides[0], (int)code);
	return STATUS_OK;
}

static struct map_shape queries_shape(const attention_params *p)
{
	return (struct map_shape){2, {(cuuint64_t)(p->q_heads * p->head_dim), (cuuint64_t)p->rows}, {(cuuint64_t)p->q_stride * 2}, {64, ROWS}};
}

/* The layer's keys and values: columns, 8 rows, blocks of 64 columns, groups of 8 rows. whole: a box has all columns; else 64, and zeros behind the last. */
static struct map_shape cache_shape(const attention_params *p, bool whole, int box)
{
	const cuuint64_t groups = (cuuint64_t)p->blocks * 2 * (cuuint64_t)(p->kv_heads * (p->block_tokens / 8)), row = (cuuint64_t)p->head_dim * 2;
	const cuuint32_t parts = whole ? (cuuint32_t)p->head_dim / 64 : 1;
	return (struct map_shape){4, {whole ? 64u : (cuuint64_t)p->head_dim, 8, parts, groups}, {row, 128, 8 * row}, {64, 8, parts, (cuuint32_t)box / 8}};
}

template <typename T, int DIM> static enum status launch_instance(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	constexpr int KEYS = wide_shape<DIM>::keys;
	const int power = p->block_tokens & -p->block_tokens, most = KEYS & -KEYS, box = power < most ? power : most;
	const struct map_shape queries = queries_shape(p), cache = cache_shape(p, p->head_dim == DIM, box);
	CUtensorMap q_map, kv_map;
	TRY(make_map(&q_map, dtype, p->q, &queries, err));
	TRY(make_map(&kv_map, dtype, p->kv, &cache, err));
	gpu_error code = gpu_allow_shared((attention_wide_kernel<T, DIM>), wide_shared<DIM>::bytes);
	if (code == GPU_OK)
		code = GPU_LAUNCH((attention_wide_kernel<T, DIM>), dim3((unsigned)p->q_heads, attention_most_tiles(p, ROWS)), dim3(THREADS), wide_shared<DIM>::bytes,
		                  ctx->stream, *p, q_map, kv_map, box);
	return gpu_check(code, "attention_wide", err);
}

static bool can_wide(const attention_params *p, enum dtype dtype)
{
	return (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 8 == 0 && p->head_dim <= 256 &&
	       ((int64_t)p->blocks + 1) * 2 * p->kv_heads * p->block_tokens < INT32_MAX;
}

template <typename T> static enum status launch_type(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	if (p->head_dim <= 64) return launch_instance<T, 64>(ctx, p, dtype, err);
	if (p->head_dim <= 128) return launch_instance<T, 128>(ctx, p, dtype, err);
	if (p->head_dim <= 192) return launch_instance<T, 192>(ctx, p, dtype, err);
	return launch_instance<T, 256>(ctx, p, dtype, err);
}

static enum status launch_wide(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	return dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p, dtype, err) : launch_type<f16>(ctx, p, dtype, err);
}

extern "C" const struct attention_kernel attention_prefill_wide = {"prefill_wide", can_wide, launch_wide, false};
