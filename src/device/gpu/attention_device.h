/* attention_device.h: what the attention kernels share on the device. See attention.h. */
#ifndef TANDEM_DEVICE_GPU_ATTENTION_DEVICE_H
#define TANDEM_DEVICE_GPU_ATTENTION_DEVICE_H

#include <math.h>

#include "device/gpu/attention.h"
#include "device/gpu/gpu.h"

#define ATTENTION_NONE (-INFINITY) /* maximum of no scores */

/* Element offset of key `key` of block `block`; values lie kv_heads * block_tokens * D behind. */
GPU_DEVICE int64_t attention_kv_offset(const attention_params &p, int block, int kv_head, int token)
{
	return (((int64_t)block * 2 * p.kv_heads + kv_head) * p.block_tokens + token) * p.head_dim;
}

/* Keys [begin, end) of one split, begin a multiple of 16; `active` splits of this row have work. */
struct attention_range {
	int begin, end, first, active;
};

/* The keys that split `split` of `splits` of a row at `position` reads. `step`: fewest keys worth a block, a multiple of 16. */
GPU_DEVICE attention_range attention_split(const attention_params &p, int position, int split, int splits, int step)
{
	attention_range r;
	const int keys = position + 1;
	r.first = p.window > 0 && keys > p.window ? keys - p.window : 0;
	int from = r.first / ATTENTION_GROUP * ATTENTION_GROUP, each;
	if (p.invariant) {
		each = ATTENTION_CHUNK;
		while ((int64_t)each * ATTENTION_CHUNKS < keys) each *= 2;
		from = from / each * each;
	} else {
		each = ((keys - from + splits - 1) / splits + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP;
		each = each < step ? step : each;
	}
	r.active = (keys - from + each - 1) / each;
	r.begin = from + split * each;
	r.end = r.begin + each < keys ? r.begin + each : keys;
	return r;
}

/* A tile of `tile_rows` rows of one sequence. rows 0: there is no such tile. */
struct attention_rows {
	int seq, row, rows;
};

/* Tile number `index` of the step, counted sequence after sequence. All lanes of the wave take part and get the same answer. */
GPU_DEVICE attention_rows attention_find_tile(const attention_params &p, int index, int tile_rows)
{
	const int lane = (int)threadIdx.x % GPU_WARP;
	attention_rows found = {0, 0, 0};
	for (int base = p.first_seq; base < p.seqs; base += GPU_WARP) {
		const int seq = base + lane;
		int start = 0, count = 0;
		if (seq < p.seqs) {
			start = p.row_start[seq];
			count = p.row_start[seq + 1] - start;
			if (p.skip_single && count == 1) count = 0;
		}
		const int tiles = (count + tile_rows - 1) / tile_rows;
		int before = tiles; /* inclusive, then exclusive sum of the tiles of lower lanes */
		GPU_UNROLL for (int d = 1; d < GPU_WARP; d *= 2) {
			const int other = gpu_shfl(before, lane >= d ? lane - d : lane);
			if (lane >= d) before += other;
		}
		const int total = gpu_shfl(before, GPU_WARP - 1);
		before -= tiles;
		if (index < total) {
			const bool mine = index >= before && index < before + tiles;
			const unsigned long long who = gpu_ballot(mine);
			int owner = 0;
			while (!(who >> owner & 1)) owner++;
			const int first = (index - before) * tile_rows;
			found.seq = base + owner;
			found.row = gpu_shfl(start + first, owner);
			const int left = gpu_shfl(count - first, owner);
			found.rows = left < tile_rows ? left : tile_rows;
			return found;
		}
		index -= total;
	}
	return found;
}

/* What a score is multiplied by first: in its query, or before tanh. */
GPU_DEVICE float attention_first_scale(const attention_params &p)
{
	return p.cap_scale > 0 ? p.cap_scale : p.scale_log2;
}
/* A score that has had that, in powers of 2. */
GPU_DEVICE float attention_capped(const attention_params &p, float score)
{
	return p.cap_scale > 0 ? gpu_tanh(score) * p.scale_log2 : score;
}

/* Adds one (maximum, sum) to another; returns the factors of both sides' vectors. Powers of 2; either side may be empty. */
GPU_DEVICE void attention_merge(float &max, float &sum, float other_max, float other_sum, float *mine, float *theirs)
{
	const float top = fmaxf(max, other_max);
	*mine = max == ATTENTION_NONE ? 0.0f : exp2f(max - top);
	*theirs = other_max == ATTENTION_NONE ? 0.0f : exp2f(other_max - top);
	sum = sum * *mine + other_sum * *theirs;
	max = top;
}

/* Whether this block is the last of `active` to arrive at `counter`, which it then leaves zero. Writes of all blocks before are visible to it.
 * All threads of the block call it; `flag`: GPU_SHARED int [1]. */
GPU_DEVICE bool attention_last_block(uint32_t *counter, int active, int *flag)
{
	gpu_fence_device();
	gpu_sync();
	if (threadIdx.x == 0) {
		const bool last = gpu_atomic_add(counter, 1u) == (uint32_t)active - 1;
		if (last) *counter = 0;
		*flag = last;
	}
	gpu_sync();
	const bool last = *flag != 0;
	if (last) gpu_fence_device();
	return last;
}

/* out[head][d] for `heads` query heads from `first_head` on, from the partial results of `active` splits, by all threads of the block.
 * scale: GPU_SHARED float [heads][ATTENTION_MAX_SPLITS + 1]: the splits' factors and the sum of all weights.
 * BATCH: loads that a thread has in flight. */
template <typename T, int BATCH>
GPU_TEMPLATE void attention_combine(const attention_params &p, int seq, int row, int first_head, int heads, int active, float *scale)
{
	constexpr int stride = ATTENTION_MAX_SPLITS + 1;
	const int lane = (int)threadIdx.x % GPU_WARP, wave = (int)threadIdx.x / GPU_WARP, waves = (int)blockDim.x / GPU_WARP;
	const int64_t base = ((int64_t)seq * p.q_heads + first_head) * p.splits;
	for (int h = wave; h < heads; h += waves) { /* a lane is a split */
		const float *stats = p.partial_stats + (base + (int64_t)h * p.splits + lane) * 2;
		const float max = lane < active ? stats[0] : ATTENTION_NONE, sum = lane < active ? stats[1] : 0.0f;
		const float top = gpu_warp_max(max), factor = max == ATTENTION_NONE ? 0.0f : exp2f(max - top);
		const float total = gpu_warp_sum(sum * factor);
		if (lane < active) scale[h * stride + lane] = factor;
		if (lane == 0) scale[h * stride + ATTENTION_MAX_SPLITS] = total;
	}
	gpu_sync();
	const int quads = p.head_dim / 4;
	T *out = (T *)p.out + (int64_t)row * p.out_stride + (int64_t)first_head * p.head_dim;
	for (int i = (int)threadIdx.x; i < heads * quads; i += (int)blockDim.x) {
		const int h = i / quads, d = i % quads * 4;
		const float *partial = p.partial + (base + (int64_t)h * p.splits) * p.head_dim + d, *factor = scale + h * stride;
		float sum[4] = {};
		for (int first = 0; first < active; first += BATCH) {
			gpu_vec16 raw[BATCH]; /* all on their way before the first is used */
			GPU_UNROLL for (int s = 0; s < BATCH; s++) {
				const int from = first + s < active ? first + s : active - 1;
				raw[s] = *(const gpu_vec16 *)(partial + from * p.head_dim);
			}
			GPU_UNROLL for (int s = 0; s < BATCH; s++) {
				const float weight = first + s < active ? factor[first + s] : 0.0f;
				GPU_UNROLL for (int e = 0; e < 4; e++) sum[e] = gpu_fma(gpu_bits_to_f32(raw[s].x[e]), weight, sum[e]);
			}
		}
		GPU_UNROLL for (int e = 0; e < 4; e++) out[(int64_t)h * p.head_dim + d + e] = gpu_narrow<T>(sum[e] / factor[ATTENTION_MAX_SPLITS]);
	}
}

#endif
