/* p2p_bulk.cu: all-reduces that peers read out of each other's memory: pull (one shot), two shots, and the summation tree. See p2p.h.
 *
 * All three: wait until every peer has announced the use, for its partial is complete then; read; and leave only when every peer's block of
 * the same number has said that it has read. All vectors are 16 bytes of partial, V elements; vector i is row i / row_vectors. Rows of the partials
 * are padded to 16 bytes, x may be anything. Thread t of the grid has the vectors t, t + threads, ..., UNROLL of them of all ranks in flight.
 * Bound: the link, (P - 1) times the partial's bytes into each rank, for two shots 2 (P - 1) / P times.
 */
#include "comm/gpu/p2p_device.h"

#define BULK_THREADS 704 /* as many as have the registers for what is in flight */

/* Every partial is complete and can be read; false: leave. All threads of the block. `shared`: one word. */
GPU_DEVICE bool begin_reading(const p2p_view &v, const p2p_use &use, uint32_t *shared)
{
	if (threadIdx.x < GPU_WARP) {
		if (blockIdx.x == 0) {
			gpu_fence_system(); /* own partial, written by the kernel before */
			p2p_announce(v, use);
		}
		const bool good = p2p_await_announced(v, use);
		gpu_fence_system();
		if (threadIdx.x == 0) *shared = good;
	}
	gpu_sync();
	return *shared != 0;
}

/* Tells every peer's block of the same number that this one is through with `phase`, and waits until all of those have said so. */
GPU_DEVICE bool end_phase(const p2p_view &v, const p2p_use &use, int phase, uint32_t *shared)
{
	gpu_sync();
	if (threadIdx.x < GPU_WARP) {
		const int peer = (int)threadIdx.x, mine = phase * P2P_MAX_BLOCKS + (int)blockIdx.x;
		const bool real = peer < v.ranks && peer != v.rank;
		gpu_fence_system();
		if (real) gpu_store_release((uint32_t *)p2p_place(v, v.flags, use, peer, v.rank) + mine, use.flag);
		const uint32_t *come = (const uint32_t *)p2p_place(v, v.flags, use, v.rank, real ? peer : v.rank) + mine;
		bool good = true;
		p2p_patience patience = {0, 0, 0};
		while (good && gpu_ballot(real && gpu_load_acquire(come) != use.flag)) good = p2p_wait_on(v, use, patience);
		gpu_fence_system();
		if (threadIdx.x == 0) *shared = good;
	}
	gpu_sync();
	return *shared != 0;
}

/* One rank's part of a vector. What other ranks wrote is read at system scope. */
GPU_DEVICE gpu_vec16 load_part(const void *from, bool own, size_t place)
{
	const gpu_vec16 *p = (const gpu_vec16 *)from + place;
	return own ? *p : gpu_load16_volatile(p);
}

/* The ranks' parts of one vector added up, rank 0 first. */
template <typename T, int RANKS> GPU_TEMPLATE void sum_parts(const p2p_view &v, const gpu_vec16 *part, float *sum)
{
	constexpr int V = gpu_lanes<T>::count;
	GPU_UNROLL for (int r = 0; r < RANKS; r++) {
		float one[V];
		gpu_widen16<T>(part[r], one);
		GPU_UNROLL for (int i = 0; i < V; i++)
			if (r < v.ranks) sum[i] = r ? gpu_add(sum[i], one[i]) : one[i];
	}
}

/* ---- one shot. RANKS: 2, 4 or 8, at least view.ranks. */
template <typename T, int RANKS> GPU_KERNEL(BULK_THREADS) pull_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_sum s)
{
	constexpr int V = gpu_lanes<T>::count, UNROLL = RANKS == 2 ? 3 : 8 / RANKS;
	GPU_SHARED(uint32_t, shared, 3);
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number || !begin_reading(v, use, shared + 2)) return;
	const int row_vectors = (s.cols + V - 1) / V, vectors = s.rows * row_vectors, step = (int)(gridDim.x * blockDim.x);
	for (int first = (int)(blockIdx.x * blockDim.x + threadIdx.x); first < vectors; first += UNROLL * step) {
		gpu_vec16 part[UNROLL][RANKS];
		GPU_UNROLL for (int u = 0; u < UNROLL; u++) {
			const p2p_vector at = p2p_find<T>(s, first + u * step, row_vectors);
			GPU_UNROLL for (int r = 0; r < RANKS; r++)
				if (r < v.ranks && first + u * step < vectors) part[u][r] = load_part(s.partial[r], r == v.rank, at.place);
		}
		GPU_UNROLL for (int u = 0; u < UNROLL; u++) {
			if (first + u * step >= vectors) continue;
			const p2p_vector at = p2p_find<T>(s, first + u * step, row_vectors);
			float sum[V];
			sum_parts<T, RANKS>(v, part[u], sum);
			p2p_update_x<V>(s, at.row, at.c, sum);
		}
	}
	(void)end_phase(v, use, 0, shared + 2);
}

/* ---- two shots. Rank r sums the vectors [n r / P, n (r + 1) / P) of all partials into its own gathered area, rounded to T, and then every rank
 * reads all gathered areas, its own too, so that all have the same bits. Block b reads in the second shot what blocks b wrote in the first. */
GPU_DEVICE int range_begin(int vectors, int ranks, int rank)
{
	return (int)((long long)vectors * rank / ranks);
}

template <typename T> GPU_TEMPLATE gpu_vec16 narrow_vector(const float *v)
{
	union {
		T element[gpu_lanes<T>::count];
		gpu_vec16 vector;
	} out;
	GPU_UNROLL for (int i = 0; i < gpu_lanes<T>::count; i++) out.element[i] = gpu_narrow<T>(v[i]);
	return out.vector;
}

GPU_DEVICE gpu_vec16 *gathered(const p2p_view &v, const p2p_use &use, int rank)
{
	return (gpu_vec16 *)p2p_place(v, v.gathered, use, rank, 0);
}

template <typename T, int RANKS> GPU_KERNEL(BULK_THREADS) two_shots_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_sum s)
{
	constexpr int V = gpu_lanes<T>::count, UNROLL = 8 / RANKS, WIDE = 4;
	GPU_SHARED(uint32_t, shared, 3);
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number || !begin_reading(v, use, shared + 2)) return;
	const int row_vectors = (s.cols + V - 1) / V, vectors = s.rows * row_vectors, step = (int)(gridDim.x * blockDim.x);
	const int me = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	const int begin = range_begin(vectors, v.ranks, v.rank), size = range_begin(vectors, v.ranks, v.rank + 1) - begin;
	for (int first = me; first < size; first += UNROLL * step) {
		gpu_vec16 part[UNROLL][RANKS];
		GPU_UNROLL for (int u = 0; u < UNROLL; u++) {
			const p2p_vector at = p2p_find<T>(s, begin + first + u * step, row_vectors);
			GPU_UNROLL for (int r = 0; r < RANKS; r++)
				if (r < v.ranks && first + u * step < size) part[u][r] = load_part(s.partial[r], r == v.rank, at.place);
		}
		GPU_UNROLL for (int u = 0; u < UNROLL; u++) {
			if (first + u * step >= size) continue;
			float sum[V];
			sum_parts<T, RANKS>(v, part[u], sum);
			gathered(v, use, v.rank)[first + u * step] = narrow_vector<T>(sum);
		}
	}
	if (!end_phase(v, use, 0, shared + 2)) return;
	for (int k = 0; k < v.ranks; k++) {
		const int r = (v.rank + k) % v.ranks, from = range_begin(vectors, v.ranks, r), n = range_begin(vectors, v.ranks, r + 1) - from;
		for (int first = me; first < n; first += WIDE * step) {
			gpu_vec16 in[WIDE];
			GPU_UNROLL for (int u = 0; u < WIDE; u++)
				if (first + u * step < n) in[u] = gpu_load16_volatile(gathered(v, use, r) + first + u * step);
			GPU_UNROLL for (int u = 0; u < WIDE; u++) {
				if (first + u * step >= n) continue;
				const p2p_vector at = p2p_find<T>(s, from + first + u * step, row_vectors);
				float sum[V];
				gpu_widen16<T>(in[u], sum);
				p2p_update_x<V>(s, at.row, at.c, sum);
			}
		}
	}
}

/* ---- along the tree: f32, any number of slots a rank (slot k of a partial begins k * rows * stride floats behind slot 0). One vector a thread at
 * a time, the tree's open sums on a stack: for --tp-invariant where the tree is not the order of ranks; no speed is asked of it. */
GPU_KERNEL(256) tree_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_sum s, GPU_PARAMETER p2p_tree tree)
{
	GPU_SHARED(uint32_t, shared, 3);
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number || !begin_reading(v, use, shared + 2)) return;
	const int row_vectors = (s.cols + 3) / 4, vectors = s.rows * row_vectors;
	for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < vectors; i += (int)(gridDim.x * blockDim.x)) {
		const int row = i / row_vectors, c = i % row_vectors * 4;
		float open[SUMTREE_MAX_DEPTH][4];
		int depth = 0;
		for (int k = 0; k < tree.sources; k++) {
			const float *slot = (const float *)s.partial[tree.rank[k]] + (size_t)tree.slot[k] * (size_t)s.rows * (size_t)s.stride;
			gpu_widen16<float>(gpu_load16_volatile(slot + (size_t)row * (size_t)s.stride + c), open[depth++]);
			for (int m = 0; m < tree.merges[k]; m++, depth--)
				for (int e = 0; e < 4; e++) open[depth - 2][e] = gpu_add(open[depth - 2][e], open[depth - 1][e]);
		}
		p2p_update_x<4>(s, row, c, open[0]);
	}
	(void)end_phase(v, use, 0, shared + 2);
}

/* ---- launchers */

static unsigned bulk_blocks(const p2p_view &view, long long vectors, int threads)
{
	const long long want = (vectors + threads - 1) / threads;
	return want < 1 ? 1 : want < view.blocks ? (unsigned)want : (unsigned)view.blocks;
}

static long long sum_vectors_count(const p2p_sum &sum, enum dtype dtype)
{
	const int each = 16 / (int)dtype_bytes(dtype);
	return (long long)sum.rows * ((sum.cols + each - 1) / each);
}

template <typename T> static gpu_error launch_pull(const p2p_view &view, const p2p_sum &sum, enum dtype dtype, gpu_stream stream)
{
	const dim3 grid(bulk_blocks(view, sum_vectors_count(sum, dtype), BULK_THREADS)), block(BULK_THREADS);
	if (view.ranks <= 2) return GPU_LAUNCH((pull_kernel<T, 2>), grid, block, 0, stream, view, sum);
	if (view.ranks <= 4) return GPU_LAUNCH((pull_kernel<T, 4>), grid, block, 0, stream, view, sum);
	return GPU_LAUNCH((pull_kernel<T, 8>), grid, block, 0, stream, view, sum);
}

template <typename T> static gpu_error launch_two_shots(const p2p_view &view, const p2p_sum &sum, enum dtype dtype, gpu_stream stream)
{
	const dim3 grid(bulk_blocks(view, sum_vectors_count(sum, dtype) / view.ranks, 512)), block(512);
	if (view.ranks <= 2) return GPU_LAUNCH((two_shots_kernel<T, 2>), grid, block, 0, stream, view, sum);
	if (view.ranks <= 4) return GPU_LAUNCH((two_shots_kernel<T, 4>), grid, block, 0, stream, view, sum);
	return GPU_LAUNCH((two_shots_kernel<T, 8>), grid, block, 0, stream, view, sum);
}

gpu_error p2p_launch_pull(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream)
{
	if (dtype == DTYPE_F32) return launch_pull<float>(*view, *sum, dtype, stream);
	return dtype == DTYPE_BF16 ? launch_pull<bf16>(*view, *sum, dtype, stream) : launch_pull<f16>(*view, *sum, dtype, stream);
}

gpu_error p2p_launch_two_shots(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream)
{
	if (dtype == DTYPE_F32) return launch_two_shots<float>(*view, *sum, dtype, stream);
	return dtype == DTYPE_BF16 ? launch_two_shots<bf16>(*view, *sum, dtype, stream) : launch_two_shots<f16>(*view, *sum, dtype, stream);
}

gpu_error p2p_launch_tree(const struct p2p_view *view, const struct p2p_sum *sum, const struct p2p_tree *tree, gpu_stream stream)
{
	return GPU_LAUNCH(tree_kernel, dim3(bulk_blocks(*view, sum_vectors_count(*sum, DTYPE_F32), 256)), dim3(256), 0, stream, *view, *sum, *tree);
}

/* ---- proof of peer access: with the stores and loads that the collectives use. One block. */

GPU_DEVICE uint32_t pattern_word(uint32_t seed, int i)
{
	return (seed + (uint32_t)i) * 0x9e3779b1u ^ 0x5bd1e995u;
}

GPU_KERNEL(256) pattern_write_kernel(uint32_t *to, int vectors, uint32_t seed)
{
	gpu_wait_previous();
	for (int i = (int)threadIdx.x; i < vectors; i += (int)blockDim.x) {
		gpu_vec16 v;
		for (int k = 0; k < 4; k++) v.x[k] = pattern_word(seed, 4 * i + k);
		gpu_store16_volatile(to + 4 * i, v);
	}
	gpu_fence_system();
}

GPU_KERNEL(256) pattern_check_kernel(const uint32_t *from, int vectors, uint32_t seed, uint32_t *bad)
{
	gpu_wait_previous();
	uint32_t wrong = 0;
	for (int i = (int)threadIdx.x; i < vectors; i += (int)blockDim.x) {
		const gpu_vec16 v = gpu_load16_volatile(from + 4 * i);
		for (int k = 0; k < 4; k++) wrong += v.x[k] != pattern_word(seed, 4 * i + k);
	}
	if (wrong) gpu_atomic_add(bad, wrong);
}

gpu_error p2p_launch_pattern_write(uint32_t *to, int words, uint32_t seed, gpu_stream stream)
{
	return GPU_LAUNCH(pattern_write_kernel, dim3(1), dim3(256), 0, stream, to, words / 4, seed);
}

gpu_error p2p_launch_pattern_check(const uint32_t *from, int words, uint32_t seed, uint32_t *bad, gpu_stream stream)
{
	return GPU_LAUNCH(pattern_check_kernel, dim3(1), dim3(256), 0, stream, from, words / 4, seed, bad);
}

template <typename T, int RANKS> static gpu_error preload_sums(void)
{
	const gpu_error code = gpu_preload((pull_kernel<T, RANKS>));
	return code == GPU_OK ? gpu_preload((two_shots_kernel<T, RANKS>)) : code;
}

template <typename T> static gpu_error preload_sums_of(int ranks)
{
	if (ranks <= 2) return preload_sums<T, 2>();
	return ranks <= 4 ? preload_sums<T, 4>() : preload_sums<T, 8>();
}

gpu_error p2p_preload_bulk(int ranks, enum dtype dtype)
{
	const gpu_error code = gpu_preload(tree_kernel);
	if (code != GPU_OK) return code;
	if (dtype == DTYPE_F32) return preload_sums_of<float>(ranks);
	return dtype == DTYPE_BF16 ? preload_sums_of<bf16>(ranks) : preload_sums_of<f16>(ranks);
}
