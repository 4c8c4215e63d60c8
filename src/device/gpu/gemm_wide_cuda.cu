/* gemm_wide_cuda.cu: y = x W^T for many rows of x on Hopper's warpgroup products (sm_90), 16-bit types, with SwiGLU or GeGLU, or the addition to y, behind.
 *
 * Blocks stay: one a multiprocessor, each walks tiles of y, 128 rows of x by 128 of W. Three warpgroups: one lane of the first asks for slices of 64 inputs of
 * both (tensor copies, a ring of stages); the other two take turns at whole tiles, so that one writes its results while the other multiplies. CLUSTER
 * neighbouring blocks have neighbouring rows of x and the same rows of W: each asks for its part of W for all of them, so that the second-level cache is read
 * less.
 *
 * Tiles are walked in bands of BAND clusters' rows, down before across, so that a band's rows of x and the rows of W of the blocks that run stay in the
 * second-level cache. Results go through shared memory, 64 rows by 128 bytes at a time, and leave by tensor stores, or by tensor additions where y is added
 * to: rows and columns outside y are left out by the copy, columns by 16 bytes.
 *
 * SwiGLU: the tile's rows of W are as many gate as up rows, so that a thread holds both sums of an output, and neither is rounded before the product.
 */
#include <string.h>

#include "device/gpu/gpu.h"
#include "device/gpu/wide.h"
#include "device/gpu/wide_cuda.h"

#define GROUPS 2 /* warpgroups that multiply */
#define THREADS (128 * (GROUPS + 1))
#define ROWS 128 /* of x in a tile */
#define COLS 128 /* rows of W in a tile */
#define BAND 8
#define SLICE 64 /* inputs: 128 bytes, the widest swizzle */
#define BOX (COLS / 2) /* rows of W of one copy */
#define BARRIER_BYTES 1024
#define PIECE_BYTES 8192 /* 64 rows of 128 bytes */
#define X_BYTES (ROWS * SLICE * 2)
#define STAGE_BYTES (X_BYTES + COLS * SLICE * 2)
#define STAGES 6
#define RING (BARRIER_BYTES + GROUPS * 2 * PIECE_BYTES) /* offset; two pieces for each group */
#define SHARED_BYTES (RING + STAGES * STAGE_BYTES)

/* ---- instructions of this kernel alone */

/* A box to the same place of all blocks of `mask`, each of which counts its bytes. */
GPU_DEVICE void copy_box_all(uint32_t to, const CUtensorMap *map, int column, int row, int half, uint32_t barrier, int mask)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
	             "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(half), "h"((uint16_t)mask)
	             : "memory");
}
GPU_DEVICE void copy_box(uint32_t to, const CUtensorMap *map, int column, int row, int half, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map),
	             "r"(barrier), "r"(column), "r"(row), "r"(half)
	             : "memory");
}
GPU_DEVICE void store_box(uint32_t from, const CUtensorMap *map, int column, int row, bool add)
{
	if (add)
		asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(column), "r"(row)
		             : "memory");
	else asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(column), "r"(row) : "memory");
	asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/* Until at most N of this thread's stores still read shared memory. */
template <int N> GPU_TEMPLATE void store_wait(void)
{
	asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
GPU_DEVICE void store_fragments(uint32_t address, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* ---- the plan of a launch */

struct wide_plan {
	CUtensorMap x, w, y;
	const float *bias;
	int down, across; /* tiles of a cluster's rows; of W's rows */
	int slices;       /* of K */
	int n;            /* columns of y */
	bool add, gelu;
};

enum { PLAIN, FULL, GATED }; /* y: of T; of f32; of T by pairs */

struct tile_at {
	int row, column; /* in tiles: of a cluster's rows of x, of COLS rows of W */
};
GPU_DEVICE tile_at find_tile(const wide_plan &p, int tile)
{
	const int per_band = BAND * p.across, band = tile / per_band, rest = tile - band * per_band;
	const int left = p.down - band * BAND, height = left < BAND ? left : BAND, column = rest / height;
	const tile_at at = {band * BAND + rest - column * height, column};
	return at;
}

/* A walk over the block's slices. */
struct slice_walk {
	int tile, slice;
	tile_at at;
};
GPU_DEVICE void walk_begin(slice_walk &walk, const wide_plan &p, int cluster)
{
	walk.tile = cluster, walk.slice = 0;
	walk.at = find_tile(p, walk.tile);
}
GPU_DEVICE void walk_on(slice_walk &walk, const wide_plan &p, int clusters)
{
	if (++walk.slice < p.slices) return;
	walk.tile += clusters, walk.slice = 0;
	walk.at = find_tile(p, walk.tile);
}

struct block_place {
	uint32_t shared; /* address of the dynamic shared memory */
	int rank, cluster, clusters; /* within the cluster; which cluster; of how many */
	int tiles;
};
GPU_DEVICE uint32_t full_at(const block_place &b, int stage)
{
	return b.shared + 8u * (uint32_t)stage;
}
GPU_DEVICE uint32_t empty_at(const block_place &b, int stage)
{
	return b.shared + 64u + 8u * (uint32_t)stage;
}

/* ---- producer: one lane */

template <int CLUSTER, int ENDING> GPU_TEMPLATE void produce_w(const wide_plan &p, const block_place &b, const slice_walk &walk, int stage)
{
	constexpr int boxes = 2 / CLUSTER; /* that this block asks for */
	const uint32_t barrier = full_at(b, stage), to = b.shared + RING + stage * STAGE_BYTES + X_BYTES;
	barrier_expect(barrier, STAGE_BYTES);
	GPU_UNROLL for (int i = 0; i < boxes; i++) {
		const int box = b.rank * boxes + i; /* GATED: 0: gate, 1: up */
		const int half = ENDING == GATED ? box : 0, row = ENDING == GATED ? walk.at.column * BOX : walk.at.column * COLS + box * BOX;
		if (CLUSTER > 1) copy_box_all(to + box * BOX * SLICE * 2, &p.w, walk.slice * SLICE, row, half, barrier, (1 << CLUSTER) - 1);
		else copy_box(to + box * BOX * SLICE * 2, &p.w, walk.slice * SLICE, row, half, barrier);
	}
}
template <int CLUSTER> GPU_TEMPLATE void produce_x(const wide_plan &p, const block_place &b, const slice_walk &walk, int stage)
{
	wide_copy(b.shared + RING + stage * STAGE_BYTES, &p.x, walk.slice * SLICE, (walk.at.row * CLUSTER + b.rank) * ROWS, full_at(b, stage));
}

template <int CLUSTER, int ENDING> GPU_TEMPLATE void produce(const wide_plan &p, const block_place &b)
{
	slice_walk w, x;
	int stage = 0, parity = 0;
	walk_begin(w, p, b.cluster);
	x = w;
	for (; stage < STAGES && w.tile < b.tiles; stage++, walk_on(w, p, b.clusters)) produce_w<CLUSTER, ENDING>(p, b, w, stage);
	gpu_wait_previous();
	for (int i = 0; i < stage; i++, walk_on(x, p, b.clusters)) produce_x<CLUSTER>(p, b, x, i);
	for (stage = 0; w.tile < b.tiles; walk_on(w, p, b.clusters)) {
		barrier_wait(empty_at(b, stage), parity);
		produce_w<CLUSTER, ENDING>(p, b, w, stage);
		produce_x<CLUSTER>(p, b, w, stage);
		if (++stage == STAGES) stage = 0, parity ^= 1;
	}
}

/* ---- consumers */

/* This warp needs the stage no more, whose part of W comes from any block of the cluster. Products alone have read it: nothing of this thread is to be seen
 * by the others, and an arrival that releases to the cluster would wait for all of its memory operations. */
template <int CLUSTER> GPU_TEMPLATE void release(const block_place &b, int stage)
{
	const int lane = (int)threadIdx.x % 32;
	if (CLUSTER == 1 && lane == 0) barrier_arrive(empty_at(b, stage));
	if (CLUSTER > 1 && lane < CLUSTER) asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(empty_at(b, stage), lane)) : "memory");
}

GPU_DEVICE float gate(float g, bool gelu)
{
	if (gelu) return gpu_gelu(g);
	return __fdividef(g, 1.0f + __expf(-g));
}

/* The bias of two columns. */
GPU_DEVICE float2 bias_at(const float *bias, int column, int n)
{
	const float2 v = {column < n ? bias[column] : 0.0f, column + 1 < n ? bias[column + 1] : 0.0f};
	return v;
}

/* Barriers of the block's threads: of a group; the other group's for its turn. */
enum { GROUP_BARRIER = 1, TURN_BARRIER = GROUP_BARRIER + GROUPS };

/* 64 rows of the tile from the group's registers. acc[4 n + i]: columns 8 n + .. of the tile. half: which of the group's pieces is next. */
template <typename T, int ENDING> GPU_TEMPLATE void finish(const wide_plan &p, uint32_t pieces, int group, float *acc, int row, int tile_column, int &half)
{
	constexpr int outs = ENDING == GATED ? COLS / 16 : COLS / 8, blocks = ENDING == FULL ? 4 : 8; /* blocks of 8 columns: of y in the tile; of a piece */
	const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
	const int column = tile_column * outs * 8;
	if (p.bias) {
		GPU_UNROLL for (int n = 0; n < COLS / 8; n++) {
			const bool up = ENDING == GATED && n >= outs;
			const float2 v = bias_at(p.bias + (up ? p.n : 0), column + (up ? n - outs : n) * 8 + 2 * c, p.n);
			acc[4 * n] += v.x, acc[4 * n + 1] += v.y, acc[4 * n + 2] += v.x, acc[4 * n + 3] += v.y;
		}
	}
	GPU_UNROLL for (int piece = 0; piece < outs / blocks; piece++) {
		const uint32_t at = pieces + half * PIECE_BYTES;
		if (thread == 0) store_wait<1>();
		barrier_threads(GROUP_BARRIER + group, 128);
		if (ENDING == FULL) {
			GPU_UNROLL for (int j = 0; j < blocks; j++)
				GPU_UNROLL for (int low = 0; low < 2; low++) {
					const int r = warp * 16 + low * 8 + g;
					const float *v = acc + 4 * (piece * blocks + j) + 2 * low;
					asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at + r * 128 + (((2 * j + c / 2) ^ (r & 7)) << 4) + c % 2 * 8), "f"(v[0]), "f"(v[1]) : "memory");
				}
		} else {
			const int r = warp * 16 + lane % 16;
			GPU_UNROLL for (int j = 0; j < blocks; j += 2) {
				uint32_t v[4];
				GPU_UNROLL for (int k = 0; k < 4; k++) {
					const float *sum = acc + 4 * (piece * blocks + j + k / 2) + k % 2 * 2, *up = sum + (ENDING == GATED ? 4 * outs : 0);
					v[k] = ENDING == GATED ? tensor_pack<T>(gate(sum[0], p.gelu) * up[0], gate(sum[1], p.gelu) * up[1]) : tensor_pack<T>(sum[0], sum[1]);
				}
				store_fragments(at + r * 128 + ((j + lane / 16) ^ (r & 7)) * 16, v);
			}
		}
		wide_publish();
		barrier_threads(GROUP_BARRIER + group, 128);
		if (thread == 0) store_box(at, &p.y, column + piece * blocks * 8, row, ENDING == FULL && p.add);
		half ^= 1;
	}
}

/* `slices` further in the ring: those of the other group's tile. */
GPU_DEVICE void ring_skip(int &stage, int &parity, int slices)
{
	stage += slices;
	parity ^= stage / STAGES & 1;
	stage %= STAGES;
}

/* A group's tiles: every second of the block's. Without the turns it would take a stage's next phase but one for its own. */
template <typename T, int CLUSTER, int ENDING> GPU_TEMPLATE void consume(const wide_plan &p, const block_place &b, int group)
{
	const uint32_t pieces = b.shared + BARRIER_BYTES + group * 2 * PIECE_BYTES;
	int stage = 0, parity = 0, half = 0;
	float acc[ROWS / 64][COLS / 2];
	if (group) ring_skip(stage, parity, p.slices);
	gpu_wait_previous();
	if (group) barrier_threads_arrive(TURN_BARRIER, 256);
	for (int tile = b.cluster + group * b.clusters; tile < b.tiles; tile += GROUPS * b.clusters) {
		int before = 0;
		barrier_threads(TURN_BARRIER + group, 256);
		for (int slice = 0; slice < p.slices; slice++) {
			const uint32_t base = b.shared + RING + stage * STAGE_BYTES;
			const uint64_t xs = wide_tile(base, 16, 1024), ws = wide_tile(base + X_BYTES, 16, 1024);
			barrier_wait(full_at(b, stage), parity);
			wide_fence();
			GPU_UNROLL for (int k = 0; k < SLICE / 16; k++)
				GPU_UNROLL for (int m = 0; m < ROWS / 64; m++)
					wide_mma<T, COLS>(acc[m], wide_tile_at(xs, m * 64 * SLICE * 2 + k * 32), wide_tile_at(ws, k * 32), slice > 0 || k > 0);
			wide_commit();
			if (slice > 0) {
				wide_wait<1>();
				release<CLUSTER>(b, before);
			}
			before = stage;
			if (++stage == STAGES) stage = 0, parity ^= 1;
		}
		if (tile + b.clusters < b.tiles) barrier_threads_arrive(TURN_BARRIER + 1 - group, 256);
		wide_wait<0>();
		release<CLUSTER>(b, before);
		const tile_at at = find_tile(p, tile);
		GPU_UNROLL for (int m = 0; m < ROWS / 64; m++) {
			wide_pin<COLS / 2>(acc[m]);
			finish<T, ENDING>(p, pieces, group, acc[m], (at.row * CLUSTER + b.rank) * ROWS + m * 64, at.column, half);
		}
		ring_skip(stage, parity, p.slices);
	}
	if (threadIdx.x % 128 == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Clusters walk tiles c, c + clusters, ... Threads: the producer's warpgroup and two consumers. x, W and y: rows of whole 16 bytes, aligned to them; past the
 * end of K, and past the last rows, the copies bring zeros. Dynamic shared memory: barriers, two pieces for each consumer, the ring. Bound: tensor cores. */
template <typename T, int CLUSTER, int ENDING> __global__ void __launch_bounds__(THREADS, 1) wide_kernel(const __grid_constant__ wide_plan p)
{
	extern __shared__ __align__(1024) unsigned char wide_dynamic[];
	block_place b;
	b.shared = tensor_shared_address(wide_dynamic);
	b.rank = (int)blockIdx.x % CLUSTER, b.cluster = (int)blockIdx.x / CLUSTER, b.clusters = (int)gridDim.x / CLUSTER;
	b.tiles = p.down * p.across;
	if (threadIdx.x == 0) {
		asm volatile("prefetch.tensormap [%0];" ::"l"(&p.x) : "memory");
		asm volatile("prefetch.tensormap [%0];" ::"l"(&p.w) : "memory");
		asm volatile("prefetch.tensormap [%0];" ::"l"(&p.y) : "memory");
		for (int i = 0; i < STAGES; i++) barrier_init(full_at(b, i), 1), barrier_init(empty_at(b, i), 4 * CLUSTER);
		barrier_init_done();
	}
	gpu_sync();
	if (CLUSTER > 1) cluster_arrive(), cluster_wait();
	gpu_start_next();
	if (threadIdx.x < 128) {
		asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
		if (threadIdx.x == 0) produce<CLUSTER, ENDING>(p, b);
		__syncwarp();
	} else {
		asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
		consume<T, CLUSTER, ENDING>(p, b, (int)threadIdx.x / 128 - 1);
	}
	if (CLUSTER > 1) cluster_arrive(), cluster_wait(); /* no block ends while others write to its shared memory */
}

/* ---- launch */

struct map_view {
	CUtensorMapDataType type;
	const void *data;
	int columns, rows, halves; /* halves 0: a map of two dimensions */
	int64_t pitch;             /* bytes */
};

static gpu_error make_map(CUtensorMap *map, const map_view *view, int box_columns, int box_rows)
{
	typedef CUresult encode_fn(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
	                           CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
	encode_fn *encode;
	gpu_error code = gpu_driver_function("cuTensorMapEncodeTiled", 12000, &encode);
	if (code != GPU_OK) return code;
	const cuuint64_t size[3] = {(cuuint64_t)view->columns, (cuuint64_t)view->rows, (cuuint64_t)view->halves};
	const cuuint64_t pitch[2] = {(cuuint64_t)view->pitch, (cuuint64_t)view->pitch * (cuuint64_t)view->rows};
	const cuuint32_t box[3] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows, 1}, step[3] = {1, 1, 1};
	CUresult encoded = encode(map, view->type, view->halves ? 3 : 2, (void *)view->data, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
	                          CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
	return encoded == CUDA_SUCCESS ? GPU_OK : cudaErrorInvalidValue;
}

template <typename T, int CLUSTER, int ENDING> static gpu_error wide_run(const struct gpu_context *context, const fused_problem *problem)
{
	const gemm_problem &p = problem->gemm;
	const bool gated = ENDING == GATED;
	const CUtensorMapDataType type = p.type == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
	const int n = gated ? p.n / 2 : p.n, columns = gated ? COLS / 2 : COLS;
	const map_view x = {type, p.x, p.k, p.m, 0, p.x_stride * 2}, w = {type, p.w, p.k, n, gated ? 2 : 1, p.w_stride * 2};
	const map_view y = {ENDING == FULL ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : type, p.y, n, p.m, 0, p.y_stride * (ENDING == FULL ? 4 : 2)};
	wide_plan plan = {};
	plan.bias = p.bias, plan.n = n, plan.add = p.accumulate, plan.gelu = problem->gelu;
	plan.down = (p.m + ROWS * CLUSTER - 1) / (ROWS * CLUSTER), plan.across = (n + columns - 1) / columns;
	plan.slices = (p.k + SLICE - 1) / SLICE;
	gpu_error code = make_map(&plan.x, &x, SLICE, ROWS);
	if (code == GPU_OK) code = make_map(&plan.w, &w, SLICE, BOX);
	if (code == GPU_OK) code = make_map(&plan.y, &y, ENDING == FULL ? 32 : 64, 64);
	if (code == GPU_OK) code = gpu_allow_shared((wide_kernel<T, CLUSTER, ENDING>), SHARED_BYTES);
	if (code != GPU_OK) return code;
	const int tiles = plan.down * plan.across, fit = context->props.multiprocessors / CLUSTER, clusters = tiles < fit ? tiles : fit;
	return gpu_launch_clusters(wide_kernel<T, CLUSTER, ENDING>, CLUSTER, dim3((unsigned)(clusters * CLUSTER)), dim3(THREADS), SHARED_BYTES, context->stream, plan);
}

template <typename T, int CLUSTER> static gpu_error wide_ending(const struct gpu_context *context, const fused_problem *problem)
{
	if (problem->ending == LINEAR_SWIGLU) return wide_run<T, CLUSTER, GATED>(context, problem);
	if (problem->gemm.y_type == DTYPE_F32) return wide_run<T, CLUSTER, FULL>(context, problem);
	return wide_run<T, CLUSTER, PLAIN>(context, problem);
}

template <typename T> static gpu_error wide_typed(const struct gpu_context *context, const fused_problem *problem, const struct wide_shape *shape)
{
	return shape->blocks == 2 ? wide_ending<T, 2>(context, problem) : wide_ending<T, 1>(context, problem);
}

bool wide_has(const struct wide_shape *shape)
{
	return shape->blocks == 1 || shape->blocks == 2;
}

bool wide_can(const struct gpu_context *context, const struct fused_problem *problem)
{
	const struct gemm_problem *p = &problem->gemm;
	const int y_step = p->y_type == DTYPE_F32 ? 4 : 8; /* elements of 16 bytes */
	const int outs = problem->ending == LINEAR_SWIGLU ? p->n / 2 : p->n;
	if (p->type == DTYPE_F32 || p->m < 1 || outs % y_step || p->k < 8 || p->k % 8 || problem->norm.x || problem->ending == LINEAR_ROPE) return false;
	if ((uintptr_t)p->x % 16 || p->x_stride % 8 || (uintptr_t)p->w % 16 || p->w_stride % 8 || (uintptr_t)p->y % 16 || p->y_stride % y_step) return false;
	if (problem->ending == LINEAR_SWIGLU && (p->n % 2 || p->y_type != p->type)) return false;
	return strcmp(context->props.arch, "sm_90") == 0;
}

/* From so many rows of x, and of W, on a step was seen to win too, not the product alone (H200, docs/MEASUREMENTS.md): the sums of gate and up, which the library sends
 * through memory. With half of those rows of W, at two ranks, a prefill took 0.3 % longer. */
#define DEFAULT_ROWS 4097
#define DEFAULT_OUTPUTS 28672

struct wide_shape wide_default(const struct gpu_context *context, const struct fused_problem *problem)
{
	(void)context;
	const struct gemm_problem *p = &problem->gemm;
	struct wide_shape shape = {problem->ending == LINEAR_SWIGLU && p->m >= DEFAULT_ROWS && p->n >= DEFAULT_OUTPUTS ? 2 : 0};
	return shape;
}

enum status wide_launch(const struct gpu_context *context, const struct fused_problem *problem, const struct wide_shape *shape, struct error *err)
{
	const struct gemm_problem *p = &problem->gemm;
	if (!wide_can(context, problem) || !wide_has(shape))
		return FAIL(err, UNSUPPORTED, "wide gemm: [%d,%d] x [%d,%d]^T of %s, clusters of %d; 16-bit elements, rows of whole 16 bytes and clusters of 1 or 2 are wanted",
		            p->m, p->k, p->n, p->k, dtype_name(p->type), shape->blocks);
	return gpu_check(p->type == DTYPE_F16 ? wide_typed<f16>(context, problem, shape) : wide_typed<bf16>(context, problem, shape), "launch of gemm_wide", err);
}
