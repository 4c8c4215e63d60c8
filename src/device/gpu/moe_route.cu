/* moe_route.cu: which experts a row takes, and the pairs of all rows in order of experts. */
#include "device/gpu/moe_device.h"

/* Block: one row. Shared: 5 KiB. Bound: a launch and some barriers. */
GPU_KERNEL(ROUTE_THREADS) moe_route_kernel(moe_problem p)
{
	GPU_SHARED(moe_route, route, 1);
	gpu_wait_previous();
	gpu_start_next();
	route_row(p, (int)blockIdx.x, route);
	put_route(p, (int)blockIdx.x, route);
}

enum status moe_route_launch(const struct gpu_context *context, const struct moe_problem *p, struct error *err)
{
	return gpu_check(GPU_LAUNCH(moe_route_kernel, dim3((unsigned)p->rows), dim3(ROUTE_THREADS), 0, context->stream, *p), "launch of moe_route", err);
}

/* Sums of all before: in[0..MOE_MAX_EXPERTS) becomes its exclusive prefix sum; returns the total. One block of MOE_MAX_EXPERTS threads. */
GPU_DEVICE int prefix_sum(int32_t *in)
{
	const int t = (int)threadIdx.x, mine = in[t];
	for (int step = 1; step < MOE_MAX_EXPERTS; step *= 2) {
		gpu_sync();
		const int before = t >= step ? in[t - step] : 0;
		gpu_sync();
		in[t] += before;
	}
	gpu_sync();
	const int total = in[MOE_MAX_EXPERTS - 1], upto = in[t];
	gpu_sync();
	in[t] = upto - mine;
	gpu_sync();
	return total;
}

/* One block: counts, slots and tiles. The order of an expert's pairs is that in which its threads come: no result depends on it, for each pair is computed by
 * itself wherever it lies. Shared: 12 KiB. Bound: 2 atomic operations on shared memory for each pair. */
GPU_KERNEL(MOE_MAX_EXPERTS) moe_sort_kernel(moe_problem p, int tile_rows)
{
	GPU_SHARED(int32_t, begin, MOE_MAX_EXPERTS);
	GPU_SHARED(int32_t, next, MOE_MAX_EXPERTS);
	GPU_SHARED(int32_t, tiles, MOE_MAX_EXPERTS);
	const int t = (int)threadIdx.x, pairs = p.rows * p.top_k;
	begin[t] = 0;
	gpu_wait_previous();
	gpu_start_next();
	gpu_sync();
	for (int i = t; i < pairs; i += MOE_MAX_EXPERTS) gpu_atomic_add(&begin[p.chosen[i]], 1);
	gpu_sync();
	const int count = begin[t];
	tiles[t] = (count + tile_rows - 1) / tile_rows;
	prefix_sum(begin);
	const int total = prefix_sum(tiles);
	next[t] = begin[t];
	for (int i = 0; i * tile_rows < count; i++) {
		moe_tile tile;
		tile.expert = t;
		tile.first = begin[t] + i * tile_rows;
		tile.rows = count - i * tile_rows < tile_rows ? count - i * tile_rows : tile_rows;
		p.tile[tiles[t] + i] = tile;
	}
	if (t == 0) p.tiles[0] = total;
	gpu_sync();
	for (int i = t; i < pairs; i += MOE_MAX_EXPERTS) {
		const int slot = gpu_atomic_add(&next[p.chosen[i]], 1);
		p.pair_of_slot[slot] = i;
		p.slot_of_pair[i] = slot;
	}
}

enum status moe_sort_launch(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err)
{
	return gpu_check(GPU_LAUNCH(moe_sort_kernel, dim3(1), dim3(MOE_MAX_EXPERTS), 0, context->stream, *p, tile_rows), "launch of moe_sort", err);
}
