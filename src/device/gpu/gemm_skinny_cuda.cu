/* gemm_skinny_cuda.cu: y = x W^T for 1 to 32 rows of x on tensor cores (sm_90), bound by the rate at which W is read.
 *
 * A block walks tiles of R rows of W. One warp (the producer) keeps a ring of shared-memory stages full: KC inputs of the R rows and of the rows of x, by one
 * tensor copy each, as slices of 64 inputs (128 bytes, swizzled); eight warps (the consumers) multiply, an eighth of a stage's inputs each. W is the 16-row
 * operand of mma.m16n8k16, tokens are its 8 columns. The consumers' sums meet in shared memory, in a fixed order. The ring takes nearly all of the shared memory
 * and is filled with W before the kernel waits for its predecessor: so the memory has requests to serve while one kernel ends and another starts.
 *
 * For one row of x no more than WINDOW stages are asked for at a time. Memory answers in turn: were the whole ring asked for at once, everything else (a norm's
 * input, the packets of a sum over ranks, the keys of attention) would stand in line behind it for 6 us. That row is read whole by each block, by plain loads;
 * of more rows each stage has its own part.
 *
 * Why not: a copy for each row or slice (a copy takes a multiprocessor about 50 ns whatever its size); a smaller ring, so that two kernels fit; the next kernel's
 * first weights to the second-level cache ahead; tiles of 64 and 128 rows; clusters of blocks that share K; 64 rows of x, where the library is faster. All
 * measured, docs/MEASUREMENTS.md.
 */
#include "device/gpu/linear_device.h"
#include "device/gpu/skinny.h"
#include "device/gpu/wide_cuda.h"

#define CONSUMERS 8                    /* warps */
#define THREADS (32 * (CONSUMERS + 1)) /* the last warp is the producer */
#define MAX_STAGES 16
#define BARRIER_BYTES 1024
#define SLICE 64 /* inputs: 128 bytes, the widest swizzle */
#define WINDOW 3 /* stages of 16 KiB: what keeps memory busy, and 5 % of a step less than 2 or 6 of them */
#define ROOM 16384 /* bytes that are left to a block of another kernel beside, where x is one row */
#define RESIDENT_MAX_ROWS 1 /* rows of x that a block normalises for itself, */
#define RESIDENT_MAX_K 8192 /* and inputs; */
#define RESIDENT_MAX_BYTES 65536 /* of one row without a norm that it keeps */

/* ---- tensor copies of this layout */

/* The box of `map` at row `row` and slice `slice` to shared memory; outside the tensor: zeros. */
GPU_DEVICE void copy_box(uint32_t to, const CUtensorMap *map, int row, int slice, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to), "l"(map), "r"(0),
	             "r"(row), "r"(slice), "r"(barrier)
	             : "memory");
}
/* For what is read once. */
GPU_DEVICE void copy_box_stream(uint32_t to, const CUtensorMap *map, int row, int slice, uint32_t barrier, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
	             "l"(map), "r"(0), "r"(row), "r"(slice), "r"(barrier), "l"(policy)
	             : "memory");
}
/* Two boxes of rows from `row` of both halves of group `group`. */
GPU_DEVICE void copy_pair_stream(uint32_t to, const CUtensorMap *map, int row, int group, int slice, uint32_t barrier, uint64_t policy)
{
	asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %2, %4, %5}], [%6], %7;" ::"r"(to),
	             "l"(map), "r"(0), "r"(row), "r"(group), "r"(slice), "r"(barrier), "l"(policy)
	             : "memory");
}
GPU_DEVICE void consumer_sync(void)
{
	asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* ---- the plan of a launch */

struct skinny_plan {
	CUtensorMap w, x;
	fused_problem problem;
	int tiles, stages;
	int x_rows; /* of x in a stage: all of its tiles of eight, or those that exist where there is one tile; 0: x is resident */
	int window; /* stages that are on their way at most; all where x comes with W, behind the wait */
	int chunks; /* of K, KC each, the last one perhaps past the end */
	int stage_bytes;
	int sums_at, resident_at, resident_pitch; /* in dynamic shared memory, bytes */
};

/* Row r < R of tile t as a row of W. SWIGLU: half gate, half up. ROPE: half the lower, half the upper half of a head's dimensions. */
template <int R> GPU_TEMPLATE int tile_row(const fused_problem &p, int tile, int r)
{
	const int half = R / 2, upper = r >= half;
	if (p.ending == LINEAR_STORE) return tile * R + r;
	if (p.ending == LINEAR_SWIGLU) return tile * half + (upper ? p.gemm.n / 2 - half : 0) + r;
	const int per_head = p.rope.head_dim / R, head = tile / per_head;
	return head * p.rope.head_dim + tile % per_head * half + (upper ? p.rope.head_dim / 2 - half : 0) + r;
}

/* ---- producer */

struct producer_state {
	uint32_t ring, full, empty;
	uint64_t policy;
};

/* A walk over the block's stages: chunk after chunk of a tile, tile after tile. `row` and `group` are the tile's place in the map of W. No division stands
 * between two copies: one thread makes them all. */
struct stage_walk {
	int tile, chunk, row, group;
};

template <int R> GPU_TEMPLATE void walk_to(stage_walk &walk, const fused_problem &p, int tile)
{
	walk.tile = tile;
	walk.chunk = 0;
	walk.group = p.ending == LINEAR_ROPE ? tile / (p.rope.head_dim / R) : 0;
	walk.row = p.ending == LINEAR_ROPE ? (tile - walk.group * (p.rope.head_dim / R)) * (R / 2) : p.ending == LINEAR_SWIGLU ? tile * (R / 2) : tile * R;
}

template <int R> GPU_TEMPLATE void walk_on(stage_walk &walk, const skinny_plan &plan)
{
	if (++walk.chunk == plan.chunks) walk_to<R>(walk, plan.problem, walk.tile + (int)gridDim.x);
}

/* Stage: W [KC/64][R][64], then x [KC/64][x_rows][64]. A tile of pairs (SWIGLU, ROPE) is R/2 rows of each half. */
template <int R, int KC> GPU_TEMPLATE void produce_w(const skinny_plan &plan, const producer_state &s, const stage_walk &walk, int stage)
{
	const int slice = walk.chunk * (KC / SLICE);
	const uint32_t barrier = s.full + 8 * stage, to = s.ring + stage * plan.stage_bytes;
	barrier_expect(barrier, (R + plan.x_rows) * KC * 2);
	if (plan.problem.ending == LINEAR_STORE) copy_box_stream(to, &plan.w, walk.row, slice, barrier, s.policy);
	else copy_pair_stream(to, &plan.w, walk.row, walk.group, slice, barrier, s.policy);
}

template <int R, int KC> GPU_TEMPLATE void produce_x(const skinny_plan &plan, const producer_state &s, int chunk, int stage)
{
	if (!plan.x_rows) return;
	copy_box(s.ring + stage * plan.stage_bytes + R * KC * 2, &plan.x, 0, chunk * (KC / SLICE), s.full + 8 * stage);
}

/* One lane. */
template <int R, int KC> GPU_TEMPLATE void produce(const skinny_plan &plan, const producer_state &s)
{
	stage_walk walk;
	int stage = 0, chunk = 0;
	uint32_t parity = 0, come_parity = 0;
	if (plan.window < plan.stages) gpu_start_next(); /* ahead of a fill that waits for memory */
	walk_to<R>(walk, plan.problem, (int)blockIdx.x);
	for (; stage < plan.stages && walk.tile < plan.tiles; stage++, walk_on<R>(walk, plan)) {
		if (stage >= plan.window) barrier_wait(s.full + 8 * (stage - plan.window), 0);
		produce_w<R, KC>(plan, s, walk, stage);
	}
	if (plan.window == plan.stages) gpu_start_next();
	gpu_wait_previous();
	for (int i = 0; i < stage; i++) {
		produce_x<R, KC>(plan, s, chunk, i);
		if (++chunk == plan.chunks) chunk = 0;
	}
	int come = stage - plan.window; /* the stage that must have come before the next is asked for */
	for (stage = 0; walk.tile < plan.tiles; walk_on<R>(walk, plan)) {
		barrier_wait(s.empty + 8 * stage, parity);
		if (plan.window < plan.stages) barrier_wait(s.full + 8 * come, come_parity);
		produce_w<R, KC>(plan, s, walk, stage);
		produce_x<R, KC>(plan, s, walk.chunk, stage);
		if (++stage == plan.stages) stage = 0, parity ^= 1;
		if (++come == plan.stages) come = 0, come_parity ^= 1;
	}
}

/* ---- consumers */

/* rms_norm of each row to resident[m][k]: thread t has elements 4 t + 1024 i. The weight is on its way before the kernel waits for x. `scratch`: float [8]. */
template <typename T> GPU_TEMPLATE void normalise(const skinny_plan &plan, T *resident, float *scratch)
{
	const linear_norm &norm = plan.problem.norm;
	const int k = plan.problem.gemm.k, begin = (int)threadIdx.x * 4, step = CONSUMERS * 128;
	const int padded = (plan.resident_pitch - 16) / 2; /* whole chunks: W is zero there, and x must not be NaN */
	float4 w[RESIDENT_MAX_K / (CONSUMERS * 128)], v[RESIDENT_MAX_K / (CONSUMERS * 128)];
	GPU_UNROLL for (int i = 0; i < RESIDENT_MAX_K / step; i++)
		if (begin + i * step < k) w[i] = *(const float4 *)(norm.weight + begin + i * step);
	gpu_wait_previous();
	for (int m = 0; m < plan.problem.gemm.m; m++) {
		float sum = 0, total = 0;
		GPU_UNROLL for (int i = 0; i < RESIDENT_MAX_K / step; i++) {
			if (begin + i * step >= k) break;
			v[i] = *(const float4 *)(norm.x + m * norm.stride + begin + i * step);
			sum += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w;
		}
		sum = gpu_warp_sum(sum);
		consumer_sync(); /* the last row's scratch has been read */
		if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = sum;
		consumer_sync();
		for (int i = 0; i < CONSUMERS; i++) total += scratch[i];
		const float scale = 1.0f / sqrtf(total / (float)k + norm.eps);
		T *out = (T *)((char *)resident + m * plan.resident_pitch);
		GPU_UNROLL for (int i = 0; i < RESIDENT_MAX_K / step; i++) {
			if (begin + i * step >= k) break;
			T *at = out + begin + i * step;
			at[0] = gpu_narrow<T>(v[i].x * scale * w[i].x), at[1] = gpu_narrow<T>(v[i].y * scale * w[i].y);
			at[2] = gpu_narrow<T>(v[i].z * scale * w[i].z), at[3] = gpu_narrow<T>(v[i].w * scale * w[i].w);
		}
		for (int i = k + (int)threadIdx.x; i < padded; i += CONSUMERS * 32) out[i] = gpu_narrow<T>(0.0f);
	}
	consumer_sync();
}

/* The one row of x to resident, 16 bytes at a time, four loads of a thread on their way. */
template <typename T> GPU_TEMPLATE void fetch_x(const skinny_plan &plan, T *resident)
{
	constexpr int step = CONSUMERS * 32, loads = 4;
	const gpu_vec16 *from = (const gpu_vec16 *)plan.problem.gemm.x;
	gpu_vec16 *to = (gpu_vec16 *)resident;
	const int pieces = plan.problem.gemm.k / 8, padded = (plan.resident_pitch - 16) / 16; /* as in normalise */
	gpu_wait_previous();
	for (int first = (int)threadIdx.x; first < pieces; first += step * loads) {
		gpu_vec16 v[loads];
		GPU_UNROLL for (int i = 0; i < loads; i++)
			if (first + i * step < pieces) v[i] = from[first + i * step];
		GPU_UNROLL for (int i = 0; i < loads; i++)
			if (first + i * step < pieces) to[first + i * step] = v[i];
	}
	for (int i = pieces + (int)threadIdx.x; i < padded; i += step) to[i] = gpu_vec16{};
	consumer_sync();
}

/* Where a lane reads its row of a matrix in shared memory: a slice is `rows` lines of 128 bytes. A chunk of 16 bytes lies where its number, by exclusive or
 * with the line's number mod 8, says (the copy's swizzle); or, `swizzle` 0, where it is. */
struct lane_matrix {
	uint32_t base; /* of the stage's first slice */
	int line, lines; /* of the lane's row; in a slice */
	int chunk, swizzle;
};
GPU_DEVICE uint32_t chunk_at(const lane_matrix &m, int chunk)
{
	const int line = m.line + chunk / 8 * m.lines;
	return m.base + line * (SLICE * 2) + (((chunk % 8 + m.chunk) ^ (line & m.swizzle)) << 4);
}

/* One stage: this warp's part of the inputs, each CONSUMERS-th of STEPS times 32. */
template <typename T, int MT, int GROUPS, int STEPS>
GPU_TEMPLATE void multiply(float acc[GROUPS][MT][4], const lane_matrix &w, const lane_matrix &x, int warp)
{
	GPU_UNROLL for (int i = 0; i < STEPS / CONSUMERS; i++) {
		const int step = i * CONSUMERS + warp;
		uint32_t b[MT][4];
		GPU_UNROLL for (int t = 0; t < MT; t++) tensor_load4(b[t], chunk_at(x, step * 4) + t * 8 * SLICE * 2);
		GPU_UNROLL for (int g = 0; g < GROUPS; g++) {
			uint32_t lo[4], hi[4];
			tensor_load4(lo, chunk_at(w, step * 4) + g * 16 * SLICE * 2);
			tensor_load4(hi, chunk_at(w, step * 4 + 2) + g * 16 * SLICE * 2);
			GPU_UNROLL for (int t = 0; t < MT; t++) {
				tensor_mma<T>(acc[g][t], lo, b[t][0], b[t][1]);
				tensor_mma<T>(acc[g][t], hi, b[t][2], b[t][3]);
			}
		}
	}
}

/* Sums of the warps: sums[warp][token][row], rows padded by 4 so that neither side meets a bank twice. */
template <int MT, int GROUPS, int R> GPU_TEMPLATE void put_sums(float *sums, const float acc[GROUPS][MT][4], int warp)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, q = lane % 4, pitch = R + 4;
	float *out = sums + warp * MT * 8 * pitch;
	GPU_UNROLL for (int i = 0; i < GROUPS; i++)
		GPU_UNROLL for (int t = 0; t < MT; t++)
			GPU_UNROLL for (int j = 0; j < 4; j++) out[(t * 8 + 2 * q + j % 2) * pitch + i * 16 + g + j / 2 * 8] = acc[i][t][j];
}

template <int MT, int R> GPU_TEMPLATE float get_sum(const float *sums, int token, int row)
{
	float v = 0;
	GPU_UNROLL for (int w = 0; w < CONSUMERS; w++) v += sums[(w * MT * 8 + token) * (R + 4) + row];
	return v;
}

/* Item i of a tile: token after token. */
struct tile_item {
	ending_item item;
	int token, r; /* row of the tile */
};
template <typename T, int R> GPU_TEMPLATE tile_item fetch_tile_item(const fused_problem &p, int tile, int i)
{
	const bool pairs = p.ending != LINEAR_STORE;
	const int token = pairs ? i / (R / 2) : i / R, r = pairs ? i % (R / 2) : i % R;
	tile_item item = {fetch_ending<T>(p, token, tile_row<R>(p, tile, r), tile_row<R>(p, tile, pairs ? r + R / 2 : r)), token, r};
	return item;
}

/* `at`: this thread's first item, fetched while the sums were made. */
template <typename T, int MT, int R> GPU_TEMPLATE void finish_tile(const skinny_plan &plan, const float *sums, int tile, tile_item at)
{
	const fused_problem &p = plan.problem;
	const int items = (p.ending == LINEAR_STORE ? R : R / 2) * p.gemm.m;
	for (int i = (int)threadIdx.x; i < items; i += CONSUMERS * 32) {
		if (i >= CONSUMERS * 32) at = fetch_tile_item<T, R>(p, tile, i);
		if (!at.item.out) continue;
		const float a = get_sum<MT, R>(sums, at.token, at.r), b = p.ending == LINEAR_STORE ? 0 : get_sum<MT, R>(sums, at.token, at.r + R / 2);
		finish_ending<T>(p, at.item, a, b);
	}
}

template <typename T, int MT, int R, int KC> GPU_TEMPLATE void consume(const skinny_plan &plan, unsigned char *shared, const producer_state &s)
{
	const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, w_row = lane % 16, token = lane % 8;
	const bool resident = plan.x_rows == 0;
	const int x_row = MT > 1 || token < plan.problem.gemm.m ? token : 0; /* columns past the last token are not stored */
	lane_matrix w = {0, w_row, R, lane / 16, 7}, x = {0, x_row, MT > 1 ? MT * 8 : plan.x_rows, lane / 8, 7};
	if (resident) x.line = 0, x.lines = 1, x.swizzle = 0;
	float *sums = (float *)(shared + plan.sums_at);
	int stage = 0;
	uint32_t parity = 0;
	if (plan.problem.norm.x) normalise<T>(plan, (T *)(shared + plan.resident_at), sums);
	else if (resident) fetch_x<T>(plan, (T *)(shared + plan.resident_at));
	else gpu_wait_previous();
	for (int tile = (int)blockIdx.x; tile < plan.tiles; tile += (int)gridDim.x) {
		const tile_item item = fetch_tile_item<T, R>(plan.problem, tile, (int)threadIdx.x);
		float acc[R / 16][MT][4] = {};
		for (int chunk = 0; chunk < plan.chunks; chunk++) {
			w.base = s.ring + stage * plan.stage_bytes;
			x.base = resident ? tensor_shared_address(shared + plan.resident_at) + x_row * plan.resident_pitch + chunk * KC * 2 : w.base + R * KC * 2;
			barrier_wait(s.full + 8 * stage, parity);
			multiply<T, MT, R / 16, KC / 32>(acc, w, x, warp);
			wide_publish(); /* the loads have arrived: an arrival alone does not wait for one that is under way, and a copy may follow */
			__syncwarp();
			if (lane == 0) barrier_arrive(s.empty + 8 * stage);
			if (++stage == plan.stages) stage = 0, parity ^= 1;
		}
		put_sums<MT, R / 16, R>(sums, acc, warp);
		consumer_sync();
		finish_tile<T, MT, R>(plan, sums, tile, item);
		consumer_sync(); /* sums may be overwritten */
	}
}

/* Block b: tiles b, b + gridDim.x, ... of R rows of W. Threads: 8 consumer warps and the producer. W and x: 16-bit, rows aligned to 16 bytes; m <= 8 MT; K a
 * multiple of 64; past its end the copies bring zeros. Dynamic shared memory: barriers, the ring, sums, and x where it is resident. Bound: reading W. */
template <typename T, int MT, int R, int KC> __global__ void __launch_bounds__(THREADS, 1) skinny_kernel(const __grid_constant__ skinny_plan plan)
{
	extern __shared__ __align__(1024) unsigned char skinny_shared[];
	const uint32_t barriers = tensor_shared_address(skinny_shared);
	producer_state s = {barriers + BARRIER_BYTES, barriers, barriers + 8 * MAX_STAGES, 0};
	if (threadIdx.x == CONSUMERS * 32) {
		asm volatile("prefetch.tensormap [%0];" ::"l"(&plan.w) : "memory");
		if (plan.x_rows) asm volatile("prefetch.tensormap [%0];" ::"l"(&plan.x) : "memory");
		for (int i = 0; i < plan.stages; i++) barrier_init(s.full + 8 * i, 1), barrier_init(s.empty + 8 * i, CONSUMERS);
		barrier_init_done();
	}
	__syncthreads();
	if (threadIdx.x / 32 < CONSUMERS) {
		consume<T, MT, R, KC>(plan, skinny_shared, s);
	} else if (threadIdx.x % 32 == 0) {
		asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(s.policy));
		produce<R, KC>(plan, s);
	}
}

/* ---- launch */

/* A matrix as [slice][group][half][row][SLICE inputs], or as [slice][row][SLICE]. */
struct skinny_view {
	enum dtype type;
	const void *data;
	int64_t stride; /* elements from row to row */
	int slices, rows; /* rows of a half */
	int groups;       /* of two halves; 0: plain rows */
};

static gpu_error make_map(CUtensorMap *map, const skinny_view *view, int box_rows, int box_slices)
{
	typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
	                           CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
	void *found = NULL;
	cudaDriverEntryPointQueryResult result;
	gpu_error code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
	if (code != GPU_OK) return code;
	if (!found) return cudaErrorNotSupported;
	const cuuint64_t line = (cuuint64_t)view->stride * 2, rows = (cuuint64_t)view->rows, slices = (cuuint64_t)view->slices, groups = (cuuint64_t)view->groups;
	const cuuint64_t plain[3] = {SLICE, rows, slices}, paired[5] = {SLICE, rows, 2, groups, slices};
	const cuuint64_t plain_pitch[2] = {line, SLICE * 2}, paired_pitch[4] = {line, rows * line, 2 * rows * line, SLICE * 2};
	const cuuint32_t plain_box[3] = {SLICE, (cuuint32_t)box_rows, (cuuint32_t)box_slices}, step[5] = {1, 1, 1, 1, 1};
	const cuuint32_t paired_box[5] = {SLICE, (cuuint32_t)box_rows, 2, 1, (cuuint32_t)box_slices};
	CUresult encoded = ((encode_fn *)found)(map, view->type == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, groups ? 5 : 3,
	                                        (void *)view->data, groups ? paired : plain, groups ? paired_pitch : plain_pitch, groups ? paired_box : plain_box, step,
	                                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
	                                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return encoded == CUDA_SUCCESS ? GPU_OK : cudaErrorInvalidValue;
}

static gpu_error make_maps(struct skinny_plan *plan, int tile_rows, int chunk, int tokens)
{
	const fused_problem *problem = &plan->problem;
	const gemm_problem *p = &problem->gemm;
	const int slices = p->k / SLICE, half = problem->ending == LINEAR_ROPE ? problem->rope.head_dim / 2 : p->n / 2;
	skinny_view w = {p->type, p->w, p->w_stride, slices, p->n, 0}, x = {p->type, p->x, p->x_stride, slices, p->m, 0};
	if (problem->ending != LINEAR_STORE) w.rows = half, w.groups = p->n / half / 2;
	gpu_error code = make_map(&plan->w, &w, w.groups ? tile_rows / 2 : tile_rows, chunk / SLICE);
	if (code != GPU_OK || !plan->x_rows) return code;
	return make_map(&plan->x, &x, tokens, chunk / SLICE);
}

static int skinny_rows_of(int m)
{
	return m <= 8 ? 8 : m <= 16 ? 16 : 32;
}

bool skinny_can(const struct gpu_context *context, const struct fused_problem *problem)
{
	const struct gemm_problem *p = &problem->gemm;
	const bool x_fits = problem->norm.x ? p->m <= RESIDENT_MAX_ROWS && p->k <= RESIDENT_MAX_K && p->k % 4 == 0 && (uintptr_t)problem->norm.x % 16 == 0 && problem->norm.stride % 4 == 0 &&
	                                              (uintptr_t)problem->norm.weight % 16 == 0
	                                    : (uintptr_t)p->x % 16 == 0 && p->x_stride % 8 == 0;
	if (p->type == DTYPE_F32 || p->m < 1 || p->m > SKINNY_MAX_ROWS || p->k % SLICE || p->k < SLICE || (uintptr_t)p->w % 16 || p->w_stride % 8 || !x_fits) return false;
	if (problem->ending == LINEAR_SWIGLU && p->n % 32) return false;
	if (problem->ending == LINEAR_ROPE && problem->rope.head_dim % 32) return false;
	return strcmp(context->props.arch, "sm_90") == 0;
}

/* Measured on an H200 (docs/MEASUREMENTS.md): narrow tiles where wide ones would leave multiprocessors idle, and beyond 16 rows, for which there are
 * no narrow ones, the library; a head at one row goes to the gemv. */
struct skinny_shape skinny_default(const struct gpu_context *context, const struct fused_problem *problem)
{
	struct skinny_shape shape = {32, 0};
	const struct gemm_problem *p = &problem->gemm;
	const int sms = context->props.multiprocessors, tiles = (p->n + 31) / 32, rounds = (tiles + sms - 1) / sms, busy = 100 * tiles / (rounds * sms);
	if (p->m > 16) shape.rows = busy < 65 ? 0 : 32;
	else if (p->m <= 4) shape.rows = busy < 65 ? 16 : 32;
	else shape.rows = busy >= 90 && (p->m > 8 || rounds == 1) ? 32 : 16;
	if (problem->ending == LINEAR_STORE && p->m == 1 && p->n >= 65536) shape.rows = 0;
	return shape;
}

template <typename T, int MT, int R, int KC>
static gpu_error skinny_run(const struct gpu_context *context, const fused_problem *problem, const skinny_shape *shape, const char **refused)
{
	const gemm_problem &p = problem->gemm;
	skinny_plan plan;
	*refused = NULL;
	if (problem->ending == LINEAR_SWIGLU && p.n / 2 % (R / 2)) *refused = "half the rows of W are not whole half tiles";
	if (problem->ending == LINEAR_ROPE && problem->rope.head_dim % R) *refused = "a head is not whole tiles";
	plan.problem = *problem;
	plan.tiles = (p.n + R - 1) / R;
	plan.chunks = (p.k + KC - 1) / KC;
	plan.resident_pitch = plan.chunks * KC * 2 + 16;
	const bool is_resident = problem->norm.x || (p.m == 1 && plan.resident_pitch <= RESIDENT_MAX_BYTES);
	plan.x_rows = is_resident ? 0 : MT == 1 ? p.m : MT * 8;
	plan.stage_bytes = ((R + plan.x_rows) * KC * 2 + 1023) / 1024 * 1024; /* the swizzle goes by the address */
	const int sums = CONSUMERS * MT * 8 * (R + 4) * 4, resident = is_resident ? p.m * plan.resident_pitch : 0;
	const int budget = (int)context->props.max_shared - BARRIER_BYTES - sums - resident;
	plan.stages = shape->stages ? shape->stages : (budget - (p.m == 1 ? ROOM : 0)) / plan.stage_bytes;
	if (plan.stages > MAX_STAGES) plan.stages = MAX_STAGES;
	plan.window = is_resident && plan.stages > WINDOW ? WINDOW : plan.stages;
	if (plan.stages < 2 || plan.stages * plan.stage_bytes > budget) *refused = "the ring does not fit into shared memory";
	if (*refused) return GPU_OK;
	plan.sums_at = BARRIER_BYTES + plan.stages * plan.stage_bytes;
	plan.resident_at = plan.sums_at + sums;
	gpu_error code = make_maps(&plan, R, KC, plan.x_rows);
	if (code == GPU_OK) code = gpu_allow_shared((skinny_kernel<T, MT, R, KC>), context->props.max_shared);
	if (code != GPU_OK) return code;
	const int most = context->props.multiprocessors;
	return GPU_LAUNCH((skinny_kernel<T, MT, R, KC>), dim3((unsigned)(plan.tiles < most ? plan.tiles : most)), dim3(THREADS), (size_t)(plan.resident_at + resident),
	                  context->stream, plan);
}

template <typename T>
static gpu_error skinny_typed(const struct gpu_context *context, const fused_problem *problem, const skinny_shape *shape, const char **refused)
{
	const int m = skinny_rows_of(problem->gemm.m), rows = shape->rows;
	if (m == 8 && rows == 16) return skinny_run<T, 1, 16, 512>(context, problem, shape, refused);
	if (m == 8 && rows == 32) return skinny_run<T, 1, 32, 256>(context, problem, shape, refused);
	if (m == 16 && rows == 16) return skinny_run<T, 2, 16, 512>(context, problem, shape, refused);
	if (m == 16 && rows == 32) return skinny_run<T, 2, 32, 256>(context, problem, shape, refused);
	if (m == 32 && rows == 32) return skinny_run<T, 4, 32, 256>(context, problem, shape, refused);
	*refused = "there is no kernel with tiles of so many rows";
	return GPU_OK;
}

enum status skinny_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct skinny_shape *shape, struct error *err)
{
	const struct gemm_problem *p = &problem->gemm;
	if (!skinny_can(context, problem))
		return FAIL(err, UNSUPPORTED, "skinny gemm: [%d,%d] x [%d,%d]^T of %s; 1 to %d rows of 16-bit elements aligned to 16 bytes are wanted", p->m, p->k, p->n, p->k,
		            dtype_name(p->type), SKINNY_MAX_ROWS);
	const char *refused = NULL;
	gpu_error code = p->type == DTYPE_F16 ? skinny_typed<f16>(context, problem, shape, &refused) : skinny_typed<bf16>(context, problem, shape, &refused);
	if (refused)
		return FAIL(err, UNSUPPORTED, "skinny gemm: [%d,%d] x [%d,%d]^T, tiles of %d rows: %s", p->m, p->k, p->n, p->k, shape->rows, refused);
	return gpu_check(code, "launch of gemm_skinny", err);
}
