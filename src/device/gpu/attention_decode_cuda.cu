/* attention_decode_cuda.cu: attention of sequences with one row on tensor cores, 16-bit types: flash-decoding without shared memory for the keys.
 *
 * Block (split, kv head * slices + slice, seq), WAVES waves: one split's keys for up to 8 query heads of one KV head. A wave takes every WAVES-th group
 * of 16 keys (which lie together in memory) straight into registers as the A side of m16n8k16 products; the query heads are the B side's 8
 * columns (with lane = 4 g + c):
 *   S^T[key][head] = K Q^T: contraction over d in an order of our own, so that lane (g, c) holds the 16-byte pieces c, c + 4, … of keys g, g + 8;
 *   O^T[d][head] += V^T P^T: lane (g, c) holds the pieces g, g + 8, … of keys 2c, 2c+1, 2c+8, 2c+9; a byte permutation pairs neighbouring keys.
 *     Row g of product (h, t) is d = 64 h + 8 g + t, row g + 8 is d = 64 h + 8 g + t + 4.
 * All loads are 16 bytes, full sectors; those of the wave's next group are in flight while this one is computed. Waves keep maximum, sum and
 * vector of their own, merged through shared memory at the end. The splits of a row are one or several clusters: each block of a cluster adds up a share of
 * the row's outputs, of which the others write their parts into its shared memory. Several clusters have work only where a context is long; they leave their sums in the
 * workspace, and the last block to arrive adds up its share of them.
 *
 * A wave's first group is read before gpu_wait_previous, unless this step writes its last key: block tables, positions and older keys were there
 * before the step's first kernel (copies do not overlap with kernels).
 *
 * DIM is head_dim rounded up to 64, 128 or 256; pieces behind the head's end are zeros. Weights P are rounded to T. Shared memory: (WAVES * heads + 12) *
 * (DIM + 4) floats and some. A wave has 8 KB (DIM 128) in flight; 12 waves on a multiprocessor give the read rate of memory, the bound aimed for:
 * in one block to four, as the number of sequences and heads wants it. Short contexts are bound by latencies.
 */
#include "device/gpu/attention_device.h"
#include "device/gpu/tensor_cuda.h"

#define HEADS 8        /* of a block */
#define MAX_CLUSTER 16
#define FEW_KEYS 64    /* fewest keys worth a block */
#define MANY_KEYS 256  /* with more for each of its blocks, a row's next cluster gets work */
#define SM_WAVES 12    /* on a multiprocessor, by their registers */
#define MAX_CLUSTERS 8 /* of a row */

template <int DIM> struct key_regs {
	gpu_vec16 low[DIM / 32], high[DIM / 32]; /* keys g, g + 8 */
};
template <int DIM> struct value_regs {
	gpu_vec16 key[4][DIM / 64]; /* keys 2c, 2c+1, 2c+8, 2c+9 */
};

/* 16 bytes of a row of T at d, zeros behind the head's end. */
template <typename T, int DIM, bool EXACT> GPU_TEMPLATE gpu_vec16 load_piece(const T *row, int d, int head_dim)
{
	if (EXACT || d < head_dim) return gpu_load16_stream(row + d);
	return gpu_vec16{};
}

template <typename T, int DIM, bool EXACT> GPU_TEMPLATE void load_keys(key_regs<DIM> &k, const T *group, int head_dim)
{
	const int dim = EXACT ? DIM : head_dim;
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		k.low[j] = load_piece<T, DIM, EXACT>(group + g * dim, j * 32 + c * 8, dim);
		k.high[j] = load_piece<T, DIM, EXACT>(group + (g + 8) * dim, j * 32 + c * 8, dim);
	}
}

template <typename T, int DIM, bool EXACT> GPU_TEMPLATE void load_values(value_regs<DIM> &v, const T *group, int head_dim)
{
	const int dim = EXACT ? DIM : head_dim;
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 4; i++)
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			v.key[i][h] = load_piece<T, DIM, EXACT>(group + (2 * c + i % 2 + i / 2 * 8) * dim, h * 64 + g * 8, dim);
}

/* For a group of which only the keys [first, end) count: the others score -inf, and their values become zeros, since a weight of 0 does not
 * silence the NaN that stale memory may hold. */
template <int DIM> GPU_TEMPLATE void cut_group(float *score, value_regs<DIM> &v, int first, int end)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 4; i++) {
		const int scored = g + i / 2 * 8, valued = 2 * c + i % 2 + i / 2 * 8;
		if (scored < first || scored >= end) score[i] = ATTENTION_NONE;
		if (valued < first || valued >= end) GPU_UNROLL for (int h = 0; h < DIM / 64; h++) v.key[i][h] = gpu_vec16{};
	}
}

/* score[4] = S^T of 16 keys and 8 heads in the layout of C. */
template <typename T, int DIM> GPU_TEMPLATE void score_keys(float *score, const key_regs<DIM> &k, const gpu_vec16 *query)
{
	float other[4]; /* two chains: half of the latency */
	GPU_UNROLL for (int i = 0; i < 4; i++) score[i] = other[i] = 0;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		const gpu_vec16 q = query[j];
		GPU_UNROLL for (int half = 0; half < 4; half += 2) {
			const uint32_t a[4] = {k.low[j].x[half], k.high[j].x[half], k.low[j].x[half + 1], k.high[j].x[half + 1]};
			tensor_mma<T>(half ? other : score, a, q.x[half], q.x[half + 1]);
		}
	}
	GPU_UNROLL for (int i = 0; i < 4; i++) score[i] += other[i];
}

/* acc[DIM / 64][4][4] += V^T P^T. */
template <typename T, int DIM> GPU_TEMPLATE void add_values(float (*acc)[4][4], const value_regs<DIM> &v, uint32_t p0, uint32_t p1)
{
	GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
		GPU_UNROLL for (int t = 0; t < 4; t++) {
			const uint32_t order = t % 2 ? 0x7632 : 0x5410; /* element t of both keys */
			const uint32_t a[4] = {__byte_perm(v.key[0][h].x[t / 2], v.key[1][h].x[t / 2], order),
			                       __byte_perm(v.key[0][h].x[t / 2 + 2], v.key[1][h].x[t / 2 + 2], order),
			                       __byte_perm(v.key[2][h].x[t / 2], v.key[3][h].x[t / 2], order),
			                       __byte_perm(v.key[2][h].x[t / 2 + 2], v.key[3][h].x[t / 2 + 2], order)};
			tensor_mma<T>(acc[h][t], a, p0, p1);
		}
}

/* What a wave has so far of heads 2c and 2c + 1: maximum of scores * scale, this lane's share of the sum, O^T. */
template <int DIM> struct wave_state {
	float max[2], sum[2], acc[DIM / 64][4][4];
};

/* Scores into weights, packed as the B side of the second product; acc is rescaled. */
template <typename T, int DIM> GPU_TEMPLATE void weigh(wave_state<DIM> &s, float *score, float scale, uint32_t *p)
{
	GPU_UNROLL for (int i = 0; i < 4; i++) score[i] *= scale;
	GPU_UNROLL for (int i = 0; i < 2; i++) {
		float top = fmaxf(score[i], score[i + 2]);
		GPU_UNROLL for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, gpu_shfl_xor(top, mask));
		top = fmaxf(top, s.max[i]);
		const float keep = tensor_exp2(s.max[i] - top); /* a group has a key that counts: top is finite */
		s.max[i] = top;
		score[i] = tensor_exp2(score[i] - top);
		score[i + 2] = tensor_exp2(score[i + 2] - top);
		s.sum[i] = s.sum[i] * keep + (score[i] + score[i + 2]);
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			GPU_UNROLL for (int t = 0; t < 4; t++) s.acc[h][t][i] *= keep, s.acc[h][t][i + 2] *= keep;
	}
	p[0] = tensor_transpose(tensor_pack<T>(score[0], score[1]));
	p[1] = tensor_transpose(tensor_pack<T>(score[2], score[3]));
}

/* Where a group of keys lies. */
struct group_place {
	int block, token;
};
GPU_DEVICE group_place find_group(const attention_params &p, const int32_t *table, int key)
{
	const int index = p.block_shift >= 0 ? key >> p.block_shift : key / p.block_tokens;
	return {table[index], key - index * p.block_tokens};
}

/* What a block is at. */
struct decode_job {
	attention_range range;
	int seq, row, position, kv_head, first_head, heads;
	int unit, cluster, rank, index, clusters; /* row and slice; blocks of a cluster, this one; this cluster, how many of them have work */
};

/* Queries: lane (g, c) holds the pieces c, c + 4, … of head g. */
template <typename T, int DIM, bool EXACT> GPU_TEMPLATE void load_queries(gpu_vec16 *query, const attention_params &p, const decode_job &job)
{
	const int lane = (int)threadIdx.x % 32;
	const T *q = (const T *)p.q + (int64_t)job.row * p.q_stride + (int64_t)(job.first_head + lane / 4) * p.head_dim;
	GPU_UNROLL for (int j = 0; j < DIM / 32; j++) {
		query[j] = gpu_vec16{};
		if (lane / 4 < job.heads) query[j] = load_piece<T, DIM, EXACT>(q, j * 32 + lane % 4 * 8, p.head_dim);
	}
}

/* The wave's groups of the split. Waits for the kernel before. */
template <typename T, int DIM, bool EXACT, int WAVES> GPU_TEMPLATE void attend(const attention_params &p, const decode_job &job, wave_state<DIM> &s)
{
	constexpr int step = WAVES * ATTENTION_GROUP;
	constexpr bool early = DIM <= 128; /* registers for values that are not needed yet */
	const attention_range &range = job.range;
	const int32_t *table = p.block_table + (int64_t)job.seq * p.max_blocks;
	const int64_t values = (int64_t)p.kv_heads * p.block_tokens * p.head_dim;
	int key = range.begin + (int)threadIdx.x / 32 * ATTENTION_GROUP;
	if (key + ATTENTION_GROUP <= range.first) key += (range.first - key) / step * step; /* invariant mode begins splits before the window */
	if (key + ATTENTION_GROUP <= range.first) key += step;
	const bool any = key < range.end, old = key + ATTENTION_GROUP <= job.position;
	key_regs<DIM> k;
	value_regs<DIM> v;
	gpu_vec16 query[DIM / 32];
	group_place place = {0, 0};
	if (any) place = find_group(p, table, key);
	const T *group = (const T *)p.kv + attention_kv_offset(p, place.block, job.kv_head, place.token);
	if (any && old) {
		load_keys<T, DIM, EXACT>(k, group, p.head_dim);
		if (early) load_values<T, DIM, EXACT>(v, group + values, p.head_dim);
	}
	gpu_wait_previous();
	if (!any) return;
	load_queries<T, DIM, EXACT>(query, p, job);
	if (!old) {
		load_keys<T, DIM, EXACT>(k, group, p.head_dim);
		if (early) load_values<T, DIM, EXACT>(v, group + values, p.head_dim);
	}
	if (key + step < range.end) place = find_group(p, table, key + step);
	while (true) {
		const int next = key + step;
		const bool more = next < range.end;
		const T *next_group = (const T *)p.kv + attention_kv_offset(p, place.block, job.kv_head, place.token);
		if (next + step < range.end) place = find_group(p, table, next + step); /* a turn ahead of its use */
		float score[4];
		uint32_t weight[2];
		score_keys<T, DIM>(score, k, query);
		if (early && more) load_keys<T, DIM, EXACT>(k, next_group, p.head_dim);
		if (!early) load_values<T, DIM, EXACT>(v, group + values, p.head_dim);
		if (key < range.first || key + ATTENTION_GROUP > range.end) cut_group<DIM>(score, v, range.first - key, range.end - key);
		weigh<T, DIM>(s, score, p.scale_log2, weight);
		add_values<T, DIM>(s.acc, v, weight[0], weight[1]);
		if (!more) break;
		if (early) load_values<T, DIM, EXACT>(v, next_group + values, p.head_dim);
		else load_keys<T, DIM, EXACT>(k, next_group, p.head_dim);
		key = next, group = next_group;
	}
}

/* The wave's state to shared memory: acc [heads][DIM + 4], stats [HEADS][2]. */
template <int DIM> GPU_TEMPLATE void put_wave(wave_state<DIM> &s, int heads, float *acc, float *stats)
{
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int i = 0; i < 2; i++) {
		const int head = 2 * c + i;
		GPU_UNROLL for (int mask = 4; mask < 32; mask *= 2) s.sum[i] += gpu_shfl_xor(s.sum[i], mask);
		if (head >= heads) continue;
		if (g == 0) stats[head * 2] = s.max[i], stats[head * 2 + 1] = s.sum[i];
		GPU_UNROLL for (int h = 0; h < DIM / 64; h++)
			GPU_UNROLL for (int half = 0; half < 2; half++) {
				const float4 four = {s.acc[h][0][i + 2 * half], s.acc[h][1][i + 2 * half], s.acc[h][2][i + 2 * half], s.acc[h][3][i + 2 * half]};
				*(float4 *)(acc + head * (DIM + 4) + h * 64 + g * 8 + half * 4) = four;
			}
	}
}

template <typename T> GPU_TEMPLATE void put_four(T *to, float4 v, float inverse)
{
	const uint2 packed = {tensor_pack<T>(v.x * inverse, v.y * inverse), tensor_pack<T>(v.z * inverse, v.w * inverse)};
	*(uint2 *)to = packed;
}

/* to += from * factor. */
GPU_DEVICE void add_scaled(float4 &to, float4 from, float factor)
{
	to.x = gpu_fma(from.x, factor, to.x), to.y = gpu_fma(from.y, factor, to.y);
	to.z = gpu_fma(from.z, factor, to.z), to.w = gpu_fma(from.w, factor, to.w);
}

/* A row's outputs are items of four d of a head, item = head * DIM / 4 + d / 4, dealt to the blocks of its cluster: item = slot * cluster + rank. Where
 * a block receives the parts of its items: values [slot][source] of 16 bytes, then maxima and sums [slot][source] of 8. */
template <int DIM> struct inbox {
	uint32_t base; /* in shared memory */
	__device__ __forceinline__ uint32_t value(int place) const { return base + (uint32_t)place * 16; }
	__device__ __forceinline__ uint32_t stats(int place) const { return base + (uint32_t)(HEADS * DIM * 4 + place * 8); }
};

/* Sum of the first `waves` waves' results for each item: to `out` if the row has only this split, else to the block whose item it is. */
template <typename T, int DIM, int WAVES>
GPU_TEMPLATE void merge_waves(const attention_params &p, const decode_job &job, int waves, const float *acc, const float *stats, inbox<DIM> box)
{
	for (int i = (int)threadIdx.x; i < job.heads * (DIM / 4); i += WAVES * 32) {
		const int h = i / (DIM / 4), d = i % (DIM / 4) * 4;
		float max = ATTENTION_NONE, sum = 0;
		float4 value = {0, 0, 0, 0};
		for (int w = 0; w < waves; w++) max = fmaxf(max, stats[(w * HEADS + h) * 2]);
		for (int w = 0; w < waves; w++) {
			const float factor = tensor_exp2(stats[(w * HEADS + h) * 2] - max);
			sum = gpu_fma(stats[(w * HEADS + h) * 2 + 1], factor, sum);
			add_scaled(value, *(const float4 *)(acc + (w * job.heads + h) * (DIM + 4) + d), factor);
		}
		if (job.range.active > 1) {
			const int owner = i % job.cluster, place = i - owner + job.rank;
			cluster_store4(cluster_address(box.value(place), owner), value);
			cluster_store2(cluster_address(box.stats(place), owner), max, sum);
		} else if (d < p.head_dim) {
			put_four((T *)p.out + (int64_t)job.row * p.out_stride + (int64_t)(job.first_head + h) * p.head_dim + d, value, 1.0f / sum);
		}
	}
}

/* Running sum of results that have maxima of their own. */
struct merged {
	float max, sum;
	float4 value;
};
GPU_DEVICE void merge_one(merged &to, float max, float sum, float4 value)
{
	float mine, theirs;
	attention_merge(to.max, to.sum, max, sum, &mine, &theirs);
	to.value.x *= mine, to.value.y *= mine, to.value.z *= mine, to.value.w *= mine;
	add_scaled(to.value, value, theirs);
}

/* Item i of a row: four d of a head. */
template <typename T, int DIM> GPU_TEMPLATE void put_item(const attention_params &p, const decode_job &job, int i, const merged &m)
{
	const int h = i / (DIM / 4), d = i % (DIM / 4) * 4;
	if (d < p.head_dim) put_four((T *)p.out + (int64_t)job.row * p.out_stride + (int64_t)(job.first_head + h) * p.head_dim + d, m.value, 1.0f / m.sum);
}

/* Place of an item's sum over one cluster in the workspace: the four values, then maximum and sum. */
template <int DIM> GPU_TEMPLATE float4 *sum_place(const attention_params &p, const decode_job &job, int cluster, int item)
{
	const int most = (int)gridDim.x / job.cluster;
	return (float4 *)p.partial + (((int64_t)job.unit * most + cluster) * (HEADS * DIM / 4) + item) * 2;
}

/* This block's items over its cluster, of whose blocks `active` have parts: to `out`, or to the workspace where there are several clusters. A lane is a
 * source; `cluster` neighbouring lanes share an item. */
template <typename T, int DIM, int WAVES> GPU_TEMPLATE void merge_cluster(const attention_params &p, const decode_job &job, int active, inbox<DIM> box)
{
	const int places = job.heads * (DIM / 4);
	for (int first = 0; first < places; first += WAVES * 32) {
		const int place = first + (int)threadIdx.x, source = place % job.cluster, item = place - source + job.rank;
		merged m = {ATTENTION_NONE, 0, {0, 0, 0, 0}};
		if (place < places && source < active) {
			asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(m.value.x), "=f"(m.value.y), "=f"(m.value.z), "=f"(m.value.w) : "r"(box.value(place)));
			asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(m.max), "=f"(m.sum) : "r"(box.stats(place)));
		}
		float top = m.max;
		for (int mask = 1; mask < job.cluster; mask *= 2) top = fmaxf(top, gpu_shfl_xor(top, mask));
		const float factor = m.max == ATTENTION_NONE ? 0.0f : tensor_exp2(m.max - top);
		float part[5] = {m.sum * factor, m.value.x * factor, m.value.y * factor, m.value.z * factor, m.value.w * factor};
		for (int mask = 1; mask < job.cluster; mask *= 2)
			GPU_UNROLL for (int i = 0; i < 5; i++) part[i] += gpu_shfl_xor(part[i], mask);
		if (source > 0 || place >= places) continue;
		m = {top, part[0], {part[1], part[2], part[3], part[4]}};
		if (job.clusters == 1) {
			put_item<T, DIM>(p, job, item, m);
			continue;
		}
		float4 *to = sum_place<DIM>(p, job, job.index, item);
		to[0] = m.value, to[1] = float4{m.max, m.sum, 0, 0};
	}
}

/* The row's clusters' sums of this block's share. */
template <typename T, int DIM, int WAVES> GPU_TEMPLATE void merge_clusters(const attention_params &p, const decode_job &job)
{
	for (int i = job.rank + (int)threadIdx.x * job.cluster; i < job.heads * (DIM / 4); i += WAVES * 32 * job.cluster) {
		merged m = {ATTENTION_NONE, 0, {0, 0, 0, 0}};
		for (int c = 0; c < job.clusters; c++) {
			const float4 *from = sum_place<DIM>(p, job, c, i);
			const float4 value = from[0], stats = from[1];
			merge_one(m, stats.x, stats.y, value);
		}
		put_item<T, DIM>(p, job, i, m);
	}
}

/* Bytes of dynamic shared memory. */
template <int DIM, int WAVES> static constexpr size_t decode_shared(int heads)
{
	return (size_t)(WAVES * heads * (DIM + 4) + HEADS * DIM * 3 / 2 + WAVES * HEADS * 2) * sizeof(float);
}

/* Keys of block `split` of the row's grid; how many of the row's clusters have work. */
GPU_DEVICE void cut_row(const attention_params &p, decode_job &job, int split)
{
	const int most = (int)gridDim.x / job.cluster, keys = p.window > 0 && p.window <= job.position ? p.window : job.position + 1;
	int clusters = (keys + job.cluster * MANY_KEYS - 1) / (job.cluster * MANY_KEYS);
	clusters = clusters < most ? clusters : most;
	job.range = attention_split(p, job.position, split, clusters * job.cluster, FEW_KEYS);
	job.clusters = (job.range.active + job.cluster - 1) / job.cluster;
	job.index = split / job.cluster;
}

template <typename T, int DIM, bool EXACT, int WAVES>
__global__ void __launch_bounds__(WAVES * 32, DIM > 128 ? 1 : SM_WAVES / WAVES) attention_decode_tensor_kernel(const attention_params p, int cluster)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(int, flag, 1);
	const int slices = (p.group + HEADS - 1) / HEADS, slice = (int)blockIdx.y % slices, wave = (int)threadIdx.x / 32;
	decode_job job;
	job.seq = (int)blockIdx.z;
	job.kv_head = (int)blockIdx.y / slices;
	job.first_head = job.kv_head * p.group + slice * HEADS;
	job.heads = p.group - slice * HEADS < HEADS ? p.group - slice * HEADS : HEADS;
	job.unit = job.seq * (int)gridDim.y + (int)blockIdx.y;
	job.cluster = cluster;
	job.rank = (int)blockIdx.x % cluster;
	float *parts = (float *)dynamic, *stats = parts + HEADS * DIM * 3 / 2, *acc = stats + WAVES * HEADS * 2;
	const inbox<DIM> box = {tensor_shared_address(parts)};
	job.row = p.dense ? job.seq : p.row_start[job.seq];
	const int split = (int)blockIdx.x;
	const bool single = p.dense || p.row_start[job.seq + 1] - job.row == 1;
	if (single) {
		job.position = p.position[job.row];
		cut_row(p, job, split);
	}
	if (!single) {
		gpu_wait_previous(); /* who waits for this kernel counts on it having waited */
		return;
	}
	if (job.index >= job.clusters) return; /* the row's first cluster waits */
	gpu_start_next();
	if (job.range.active > 1) cluster_arrive();
	if (split < job.range.active) {
		wave_state<DIM> s = {};
		s.max[0] = s.max[1] = ATTENTION_NONE;
		attend<T, DIM, EXACT, WAVES>(p, job, s);
		put_wave<DIM>(s, job.heads, acc + wave * job.heads * (DIM + 4), stats + wave * HEADS * 2);
		gpu_sync();
		if (job.range.active > 1) cluster_wait();
		const int groups = (job.range.end - job.range.begin + ATTENTION_GROUP - 1) / ATTENTION_GROUP;
		merge_waves<T, DIM, WAVES>(p, job, groups < WAVES ? groups : WAVES, acc, stats, box);
	} else {
		gpu_wait_previous();
		cluster_wait();
	}
	if (job.range.active == 1) return; /* so do all blocks of the cluster */
	cluster_arrive();
	cluster_wait();
	const int left = job.range.active - job.index * cluster;
	merge_cluster<T, DIM, WAVES>(p, job, left < cluster ? left : cluster, box);
	if (job.clusters == 1) return;
	if (attention_last_block(&p.counters[job.unit * cluster + job.rank], job.clusters, flag)) merge_clusters<T, DIM, WAVES>(p, job);
}

/* ---- launcher */

/* How a launch is cut: waves of a block, blocks of a cluster, clusters of a row. */
struct decode_cut {
	int waves, cluster, clusters;
};

/* From about a row and head for each multiprocessor on, SM_WAVES waves as evenly as blocks of 3, 4, 6 or 12 of them allow. With fewer, clusters of small
 * blocks, two on each multiprocessor: clusters do not fill a device to the brim, and one that has to wait doubles the time. In invariant mode
 * always the same. */
static decode_cut cut_decode(int units, int multiprocessors, bool invariant)
{
	if (invariant) return {4, ATTENTION_CHUNKS, 1};
	if (units * 4 <= multiprocessors) {
		const int cluster = units * MAX_CLUSTER <= multiprocessors ? MAX_CLUSTER : 8, clusters = 2 * multiprocessors / (units * cluster);
		return {4, cluster, clusters < 1 ? 1 : clusters > MAX_CLUSTERS ? MAX_CLUSTERS : clusters};
	}
	if (units * 2 <= multiprocessors) return {12, 2, 1};
	static const int sizes[] = {12, 6, 4, 3};
	decode_cut best = {4, 1, 1};
	double most = 0;
	for (int waves : sizes) {
		const int room = multiprocessors * (SM_WAVES / waves), turns = (units + room - 1) / room;
		const double used = (double)units / ((double)turns * room);
		if (used > most && (waves < 12 || turns == 1)) most = used, best.waves = waves;
	}
	return best;
}

template <typename T, int DIM, bool EXACT, int WAVES>
static gpu_error launch_waves(const struct gpu_context *ctx, const attention_params *p, int slices, decode_cut cut)
{
	const size_t shared = decode_shared<DIM, WAVES>(p->group < HEADS ? p->group : HEADS);
	gpu_error code = gpu_allow_shared((attention_decode_tensor_kernel<T, DIM, EXACT, WAVES>), shared);
	if (code == GPU_OK && cut.cluster > 8) code = gpu_allow_clusters((attention_decode_tensor_kernel<T, DIM, EXACT, WAVES>));
	if (code != GPU_OK) return code;
	return gpu_launch_clusters(attention_decode_tensor_kernel<T, DIM, EXACT, WAVES>, (unsigned)cut.cluster,
	                           dim3((unsigned)(cut.cluster * cut.clusters), (unsigned)(p->kv_heads * slices), (unsigned)p->seqs), dim3(WAVES * 32), shared,
	                           ctx->stream, *p, cut.cluster);
}

template <typename T, int DIM, bool EXACT> static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p)
{
	const int slices = (p->group + HEADS - 1) / HEADS, units = p->seqs * p->kv_heads * slices;
	decode_cut cut = cut_decode(units, ctx->props.multiprocessors, p->invariant);
	const size_t bytes = (size_t)units * (size_t)cut.clusters * (HEADS * DIM / 4) * 2 * sizeof(float4);
	if (bytes > ctx->workspace_bytes || (int64_t)units * cut.cluster > GPU_COUNTERS) cut.clusters = 1;
	if (DIM <= 128 && cut.waves == 12) return launch_waves<T, DIM, EXACT, DIM <= 128 ? 12 : 4>(ctx, p, slices, cut);
	if (DIM <= 128 && EXACT && cut.waves == 6) return launch_waves<T, DIM, EXACT, DIM <= 128 && EXACT ? 6 : 4>(ctx, p, slices, cut);
	if (DIM <= 128 && EXACT && cut.waves == 3) return launch_waves<T, DIM, EXACT, DIM <= 128 && EXACT ? 3 : 4>(ctx, p, slices, cut);
	return launch_waves<T, DIM, EXACT, 4>(ctx, p, slices, cut);
}

template <typename T> static gpu_error launch_type(const struct gpu_context *ctx, const attention_params *p)
{
	switch (p->head_dim) {
	case 64: return launch_instance<T, 64, true>(ctx, p);
	case 128: return launch_instance<T, 128, true>(ctx, p);
	case 256: return launch_instance<T, 256, true>(ctx, p);
	}
	if (p->head_dim < 64) return launch_instance<T, 64, false>(ctx, p);
	if (p->head_dim < 128) return launch_instance<T, 128, false>(ctx, p);
	return launch_instance<T, 256, false>(ctx, p);
}

static bool can_decode(const attention_params *p, enum dtype dtype)
{
	return (dtype == DTYPE_BF16 || dtype == DTYPE_F16) && p->head_dim % 8 == 0 && p->head_dim <= 256;
}

static enum status launch_decode(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	return gpu_check(dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p) : launch_type<f16>(ctx, p), "attention_decode_tensor", err);
}

extern "C" const struct attention_kernel attention_decode_tensor = {"decode_tensor", can_decode, launch_decode, false};
