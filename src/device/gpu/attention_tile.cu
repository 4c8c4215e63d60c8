/* attention_tile.cu: attention of sequences with several rows, any device and type: tiles in shared memory, plain f32 arithmetic.
 *
 * Block (tile, query head), THREADS threads: ROWS rows of one sequence against its keys, KEYS at a time, online softmax. Tiles are numbered from the
 * last, since later rows see more and long work should begin first. In a tile of keys
 *   scores:  thread (key t % KEYS, rows t / KEYS * 4 .. + 3)
 *   weights: eight threads a row, KEYS / 8 neighbouring keys each
 *   sums:    thread (d = t % 32 + 32 i, rows t / 32 * 4 .. + 3), in registers.
 * Keys that no row of the tile sees are not read: their places are zero.
 *
 * Shared memory: (ROWS + KEYS) * (D + 4) floats + ROWS * KEYS + 2 ROWS: 57 KB at D = 256. Alignment 16 bytes of rows and cache. It is the fallback;
 * nothing but correctness is aimed for.
 */
#include "device/gpu/attention_device.h"

#define THREADS 128
#define ROWS 16
#define KEYS 32
#define PART 4 /* rows of a thread */

struct tile_shared {
	float *query, *kv, *weight, *factor;
	int stride;
};

static size_t tile_floats(int head_dim)
{
	return (size_t)(ROWS + KEYS) * (size_t)(head_dim + 4) + ROWS * KEYS + ROWS;
}

/* Keys (or values) [base, base + KEYS) to shared memory as f32; outside [first, end) zeros. */
template <typename T>
GPU_TEMPLATE void load_tile(const attention_params &p, const int32_t *table, int kv_head, int64_t behind, int base, int first, int end, const tile_shared &s)
{
	constexpr int count = gpu_lanes<T>::count;
	const int chunks = p.head_dim / count;
	for (int i = (int)threadIdx.x; i < KEYS * chunks; i += THREADS) {
		const int key = base + i / chunks, d = i % chunks * count;
		gpu_vec16 raw = {};
		if (key >= first && key < end)
			raw = gpu_load16_stream((const T *)p.kv + attention_kv_offset(p, table[key / p.block_tokens], kv_head, key % p.block_tokens) + behind + d);
		gpu_widen16<T>(raw, s.kv + i / chunks * s.stride + d);
	}
}

/* score[row][key] of four rows and one key; -inf where the row does not see the key. */
GPU_DEVICE void score_tile(const attention_params &p, const tile_shared &s, const int *position, int rows, int base)
{
	const int key = (int)threadIdx.x % KEYS, row = (int)threadIdx.x / KEYS * PART;
	float sum[PART] = {};
	for (int d = 0; d < p.head_dim; d++) {
		const float k = s.kv[key * s.stride + d];
		GPU_UNROLL for (int i = 0; i < PART; i++) sum[i] = gpu_fma(s.query[(row + i) * s.stride + d], k, sum[i]);
	}
	GPU_UNROLL for (int i = 0; i < PART; i++) {
		const int at = row + i < rows ? position[row + i] : -1;
		const bool seen = base + key <= at && (p.window == 0 || base + key > at - p.window);
		s.weight[(row + i) * KEYS + key] = seen ? attention_capped(p, sum[i]) : ATTENTION_NONE;
	}
}

/* Scores into weights; factor[row]: what the sums so far are multiplied by. max and sum are the thread's row's. */
GPU_DEVICE void weigh_tile(const tile_shared &s, float &max, float &sum)
{
	const int row = (int)threadIdx.x / 8, part = (int)threadIdx.x % 8 * (KEYS / 8);
	float *score = s.weight + row * KEYS + part, top = max;
	GPU_UNROLL for (int i = 0; i < KEYS / 8; i++) top = fmaxf(top, score[i]);
	GPU_UNROLL for (int mask = 4; mask > 0; mask /= 2) top = fmaxf(top, gpu_shfl_xor(top, mask));
	const float keep = max == ATTENTION_NONE ? 0.0f : exp2f(max - top);
	float add = 0;
	GPU_UNROLL for (int i = 0; i < KEYS / 8; i++) {
		const float weight = score[i] == ATTENTION_NONE ? 0.0f : exp2f(score[i] - top);
		score[i] = weight;
		add += weight;
	}
	GPU_UNROLL for (int mask = 4; mask > 0; mask /= 2) add += gpu_shfl_xor(add, mask);
	sum = gpu_fma(sum, keep, add);
	max = top;
	if (threadIdx.x % 8 == 0) s.factor[row] = keep;
}

template <int COLUMNS> GPU_TEMPLATE void sum_tile(const attention_params &p, const tile_shared &s, float (*acc)[COLUMNS])
{
	const int lane = (int)threadIdx.x % 32, row = (int)threadIdx.x / 32 * PART;
	GPU_UNROLL for (int i = 0; i < PART; i++) {
		const float keep = s.factor[row + i];
		GPU_UNROLL for (int c = 0; c < COLUMNS; c++) acc[i][c] *= keep;
	}
	for (int key = 0; key < KEYS; key++) {
		float weight[PART];
		GPU_UNROLL for (int i = 0; i < PART; i++) weight[i] = s.weight[(row + i) * KEYS + key];
		GPU_UNROLL for (int c = 0; c < COLUMNS; c++) {
			if (c * 32 + lane >= p.head_dim) continue;
			const float v = s.kv[key * s.stride + c * 32 + lane];
			GPU_UNROLL for (int i = 0; i < PART; i++) acc[i][c] = gpu_fma(weight[i], v, acc[i][c]);
		}
	}
}

/* COLUMNS = head_dim / 32, rounded up to the instance. */
template <typename T, int COLUMNS> GPU_KERNEL(THREADS) attention_tile_kernel(const attention_params p)
{
	GPU_DYNAMIC_SHARED(dynamic);
	GPU_SHARED(int, position, ROWS);
	GPU_SHARED(float, total, ROWS);
	tile_shared s;
	s.stride = p.head_dim + 4;
	s.query = (float *)dynamic;
	s.kv = s.query + ROWS * s.stride;
	s.weight = s.kv + KEYS * s.stride;
	s.factor = s.weight + ROWS * KEYS;
	const int head = (int)blockIdx.y, kv_head = head / p.group, tid = (int)threadIdx.x;
	gpu_wait_previous();
	gpu_start_next();
	const attention_rows tile = attention_find_tile(p, (int)(gridDim.x - 1 - blockIdx.x), ROWS);
	if (tile.rows == 0) return;

	if (tid < ROWS) position[tid] = tid < tile.rows ? p.position[tile.row + tid] : -1;
	const float first_scale = attention_first_scale(p);
	for (int i = tid; i < ROWS * p.head_dim; i += THREADS) {
		const int r = i / p.head_dim, d = i % p.head_dim;
		const T *q = (const T *)p.q + (int64_t)(tile.row + r) * p.q_stride + (int64_t)head * p.head_dim;
		s.query[r * s.stride + d] = r < tile.rows ? gpu_widen(q[d]) * first_scale : 0.0f;
	}
	gpu_sync();
	const int32_t *table = p.block_table + (int64_t)tile.seq * p.max_blocks;
	const int64_t values = (int64_t)p.kv_heads * p.block_tokens * p.head_dim;
	const int end = position[tile.rows - 1] + 1;
	const int first = p.window > 0 && position[0] >= p.window ? position[0] - p.window + 1 : 0;
	float max = ATTENTION_NONE, sum = 0, acc[PART][COLUMNS] = {};
	for (int base = first / KEYS * KEYS; base < end; base += KEYS) {
		load_tile<T>(p, table, kv_head, 0, base, first, end, s);
		gpu_sync();
		score_tile(p, s, position, tile.rows, base);
		gpu_sync();
		weigh_tile(s, max, sum);
		load_tile<T>(p, table, kv_head, values, base, first, end, s);
		gpu_sync();
		sum_tile<COLUMNS>(p, s, acc);
		gpu_sync();
	}
	if (tid % 8 == 0) total[tid / 8] = sum;
	gpu_sync();
	const int lane = tid % 32, row = tid / 32 * PART;
	GPU_UNROLL for (int i = 0; i < PART; i++)
		GPU_UNROLL for (int c = 0; c < COLUMNS; c++) {
			const int d = c * 32 + lane;
			if (row + i >= tile.rows || d >= p.head_dim) continue;
			((T *)p.out)[(int64_t)(tile.row + row + i) * p.out_stride + (int64_t)head * p.head_dim + d] = gpu_narrow<T>(acc[i][c] / total[row + i]);
		}
}

/* ---- launcher */

template <typename T, int COLUMNS> static gpu_error launch_instance(const struct gpu_context *ctx, const attention_params *p)
{
	const size_t shared = tile_floats(p->head_dim) * sizeof(float);
	const unsigned tiles = attention_most_tiles(p, ROWS);
	const gpu_error code = gpu_allow_shared((attention_tile_kernel<T, COLUMNS>), shared);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((attention_tile_kernel<T, COLUMNS>), dim3(tiles, (unsigned)p->q_heads), dim3(THREADS), shared, ctx->stream, *p);
}

template <typename T> static gpu_error launch_type(const struct gpu_context *ctx, const attention_params *p)
{
	if (p->head_dim <= 64) return launch_instance<T, 2>(ctx, p);
	if (p->head_dim <= 128) return launch_instance<T, 4>(ctx, p);
	return launch_instance<T, 8>(ctx, p);
}

static bool can_tile(const attention_params *p, enum dtype dtype)
{
	return dtype_is_plain(dtype) && p->head_dim % 16 == 0 && p->head_dim <= 256;
}

static enum status launch_tile(const struct gpu_context *ctx, const attention_params *p, enum dtype dtype, struct error *err)
{
	const gpu_error code = dtype == DTYPE_BF16 ? launch_type<bf16>(ctx, p) : dtype == DTYPE_F16 ? launch_type<f16>(ctx, p) : launch_type<float>(ctx, p);
	return gpu_check(code, "attention_tile", err);
}

GPU_HOST_TABLE(const struct attention_kernel attention_tile = {"tile", can_tile, launch_tile, false};)
