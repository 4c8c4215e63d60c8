/* moe_grouped_cuda.cu: the experts' products on tensor cores: every tile is up to 128 rows of one expert, gathered, against 128 rows of its matrix.
 *
 * A block keeps a ring of shared-memory stages of 64 inputs full by asynchronous copies and multiplies by mma.m16n8k16, rows of x as the 16-row operand. Few rows an
 * expert: small tiles, bound by the rate at which the matrices are read, each expert's once. For SWIGLU, gate and up rows of a unit lie in neighbouring
 * column tiles, so that one thread has both sums.
 */
#include "device/gpu/moe_grouped.h"
#include "device/gpu/tensor_cuda.h"

#define GROUPED_THREADS 256
#define GROUPED_N 128 /* rows of W in a tile */
#define GROUPED_K 64  /* inputs of a stage: rows of 128 bytes */
#define LINE 128

/* Threads of a tile of BM rows: warps along its rows and along W; rows and columns of a warp in units of the instruction; stages. */
template <int BM> struct grouped_cut {
	static constexpr int warps_m = BM >= 64 ? 2 : 1, warps_n = 8 / warps_m;
	static constexpr int mt = BM / 16 / warps_m, nt = GROUPED_N / 8 / warps_n;
	static constexpr int stages = BM == 128 ? 3 : 4, stage_bytes = (BM + GROUPED_N) * LINE;
	static constexpr int a_copies = BM >= 32 ? BM / 32 : 1;
};

/* Row r < GROUPED_N of a tile of W; -1: none. SWIGLU: eight gate rows, the eight up rows of the same units, and so on. */
template <bool SWIGLU> GPU_TEMPLATE int grouped_w_row(int n0, int r, int n)
{
	if (!SWIGLU) return n0 + r < n ? n0 + r : -1;
	const int unit = n0 / 2 + r / 16 * 8 + r % 8;
	return unit < n / 2 ? unit + r / 8 % 2 * (n / 2) : -1;
}

/* What a thread copies: chunk threadIdx.x % 8 of rows threadIdx.x / 8 + 32 j of both operands. */
template <typename T, int BM> struct grouped_copies {
	const T *a[grouped_cut<BM>::a_copies], *w[GROUPED_N / 32]; /* NULL: zeros */
	int k;
};

template <typename T, int BM> GPU_TEMPLATE void grouped_fetch(const grouped_copies<T, BM> &from, uint32_t stage, int k0)
{
	const int row = (int)threadIdx.x / 8, chunk = (int)threadIdx.x % 8, at = k0 + chunk * 8;
	const uint32_t place = stage + row * LINE + ((chunk ^ (row & 7)) << 4); /* rows 32 apart have the same swizzle */
	const bool inside = at < from.k;
	GPU_UNROLL for (int j = 0; j < grouped_cut<BM>::a_copies; j++)
		if (BM >= 32 || row < BM) tensor_copy16(place + j * 32 * LINE, inside && from.a[j] ? from.a[j] + at : from.w[0], inside && from.a[j]);
	GPU_UNROLL for (int j = 0; j < GROUPED_N / 32; j++)
		tensor_copy16(place + (BM + j * 32) * LINE, inside && from.w[j] ? from.w[j] + at : from.w[0], inside && from.w[j]);
}

/* One stage: this warp's part of the tile. */
template <typename T, int BM> GPU_TEMPLATE void grouped_multiply(float acc[grouped_cut<BM>::mt][grouped_cut<BM>::nt][4], uint32_t stage, int warp_m, int warp_n)
{
	typedef grouped_cut<BM> cut;
	const int lane = (int)threadIdx.x % 32;
	const int a_row = warp_m * cut::mt * 16 + lane % 16, a_chunk = lane / 16, w_row = BM + warp_n * cut::nt * 8 + lane / 16 * 8 + lane % 8, w_chunk = lane / 8 % 2;
	GPU_UNROLL for (int step = 0; step < GROUPED_K / 16; step++) {
		uint32_t a[cut::mt][4], w[cut::nt / 2][4];
		GPU_UNROLL for (int m = 0; m < cut::mt; m++)
			tensor_load4(a[m], stage + (a_row + m * 16) * LINE + (((step * 2 + a_chunk) ^ (a_row & 7)) << 4));
		GPU_UNROLL for (int n = 0; n < cut::nt / 2; n++)
			tensor_load4(w[n], stage + (w_row + n * 16) * LINE + (((step * 2 + w_chunk) ^ (w_row & 7)) << 4));
		GPU_UNROLL for (int m = 0; m < cut::mt; m++)
			GPU_UNROLL for (int n = 0; n < cut::nt; n++) tensor_mma<T>(acc[m][n], a[m], w[n / 2][n % 2 * 2], w[n / 2][n % 2 * 2 + 1]);
	}
}

template <typename T> GPU_TEMPLATE void grouped_put(T *out, float low, float high)
{
	*(uint32_t *)out = tensor_pack<T>(low, high);
}

/* Sums to act or part: C's rows g and g + 8, columns 2c and 2c + 1. */
template <typename T, int BM, bool SWIGLU>
GPU_TEMPLATE void grouped_store(const float acc[grouped_cut<BM>::mt][grouped_cut<BM>::nt][4], const moe_problem &p, const moe_tile &tile, int n0, int warp_m, int warp_n)
{
	typedef grouped_cut<BM> cut;
	const int lane = (int)threadIdx.x % 32, g = lane / 4, c = lane % 4;
	GPU_UNROLL for (int m = 0; m < cut::mt; m++)
		GPU_UNROLL for (int half = 0; half < 2; half++) {
			const int row = (warp_m * cut::mt + m) * 16 + g + half * 8;
			if (row >= tile.rows) continue;
			const int64_t slot = tile.first + row;
			GPU_UNROLL for (int n = 0; n < cut::nt; n += SWIGLU ? 2 : 1) {
				const int column = warp_n * cut::nt + n;
				const int at = (SWIGLU ? (n0 + column * 8) / 2 : n0 + column * 8) + 2 * c;
				const float *v = acc[m][n] + half * 2;
				if (at >= (SWIGLU ? p.inner : p.hidden)) continue;
				if (SWIGLU) {
					const float *up = acc[m][n + (SWIGLU ? 1 : 0)] + half * 2;
					grouped_put<T>((T *)p.act + slot * p.inner + at, v[0] / (1.0f + expf(-v[0])) * up[0], v[1] / (1.0f + expf(-v[1])) * up[1]);
				} else {
					grouped_put<T>((T *)p.part + slot * p.hidden + at, v[0], v[1]);
				}
			}
		}
}

/* Block (bx, by): tile by, rows [128 bx, +128) of its expert's matrix: SWIGLU 64 inner columns of act, else 128 of part. Inputs and rows of memory in whole
 * pieces of 16 bytes. Dynamic shared memory: the ring, stage: rows of x, then rows of W, 128 bytes each, chunks of 16 at (number xor row mod 8). */
template <typename T, int BM, bool SWIGLU> GPU_KERNEL(GROUPED_THREADS) moe_grouped_kernel(moe_problem p, moe_span span)
{
	typedef grouped_cut<BM> cut;
	extern __shared__ __align__(128) unsigned char grouped_shared[];
	const uint32_t ring = tensor_shared_address(grouped_shared);
	const int n0 = (int)blockIdx.x * GROUPED_N, warp = (int)threadIdx.x / 32, warp_m = warp % cut::warps_m, warp_n = warp / cut::warps_m;
	gpu_wait_previous();
	gpu_start_next();
	if ((int)blockIdx.y >= p.tiles[0]) return;
	const moe_tile tile = p.tile[blockIdx.y];
	const T *w = SWIGLU ? (const T *)p.gate_up + tile.expert * p.gate_up_step : (const T *)p.down + tile.expert * p.down_step + span.k0;
	const int w_stride = SWIGLU ? p.hidden : p.inner, n = SWIGLU ? 2 * p.inner : p.hidden;
	grouped_copies<T, BM> from;
	from.k = SWIGLU ? p.hidden : span.k;
	GPU_UNROLL for (int j = 0; j < cut::a_copies; j++) {
		const int row = (int)threadIdx.x / 8 + 32 * j, slot = tile.first + row;
		from.a[j] = NULL;
		if (row < tile.rows) from.a[j] = SWIGLU ? (const T *)p.x + p.pair_of_slot[slot] / p.top_k * p.x_stride : (const T *)p.act + (int64_t)slot * p.inner + span.k0;
	}
	GPU_UNROLL for (int j = 0; j < GROUPED_N / 32; j++) {
		const int row = grouped_w_row<SWIGLU>(n0, (int)threadIdx.x / 8 + 32 * j, n);
		from.w[j] = row >= 0 ? w + (int64_t)row * w_stride : NULL;
	}
	if (!from.w[0]) from.w[0] = w; /* an address for copies that bring zeros; what it brings to rows past n is not stored */
	const int steps = (from.k + GROUPED_K - 1) / GROUPED_K;
	float acc[cut::mt][cut::nt][4] = {};
	for (int s = 0; s < cut::stages - 1; s++) {
		if (s < steps) grouped_fetch<T, BM>(from, ring + s * cut::stage_bytes, s * GROUPED_K);
		tensor_copy_commit();
	}
	for (int s = 0; s < steps; s++) {
		tensor_copy_wait<cut::stages - 2>();
		__syncthreads(); /* stage s is there for all, and all are done with the one that is fetched next */
		const int ahead = s + cut::stages - 1;
		if (ahead < steps) grouped_fetch<T, BM>(from, ring + ahead % cut::stages * cut::stage_bytes, ahead * GROUPED_K);
		tensor_copy_commit();
		grouped_multiply<T, BM>(acc, ring + s % cut::stages * cut::stage_bytes, warp_m, warp_n);
	}
	grouped_store<T, BM, SWIGLU>(acc, p, tile, n0, warp_m, warp_n);
}

/* ---- launchers */

bool moe_grouped_can(const struct gpu_context *context, const struct moe_problem *p)
{
	const uintptr_t pointers = (uintptr_t)p->x | (uintptr_t)p->gate_up | (uintptr_t)p->down;
	(void)context;
	return p->type != DTYPE_F32 && pointers % 16 == 0 && p->x_stride % 8 == 0 && p->hidden % 8 == 0 && p->inner % 8 == 0;
}

template <typename T, int BM, bool SWIGLU> static gpu_error grouped_run(const struct gpu_context *context, const moe_problem &p, const moe_span &span)
{
	const int n = SWIGLU ? 2 * p.inner : p.hidden, shared = grouped_cut<BM>::stages * grouped_cut<BM>::stage_bytes;
	const dim3 grid((unsigned)((n + GROUPED_N - 1) / GROUPED_N), (unsigned)moe_most_tiles(p.rows, p.top_k, p.experts, BM));
	gpu_error code = gpu_allow_shared((moe_grouped_kernel<T, BM, SWIGLU>), shared);
	if (code != GPU_OK) return code;
	return GPU_LAUNCH((moe_grouped_kernel<T, BM, SWIGLU>), grid, dim3(GROUPED_THREADS), (size_t)shared, context->stream, p, span);
}

template <typename T, bool SWIGLU> static gpu_error grouped_typed(const struct gpu_context *context, const moe_problem &p, int tile_rows, const moe_span &span)
{
	switch (tile_rows) {
	case 16: return grouped_run<T, 16, SWIGLU>(context, p, span);
	case 32: return grouped_run<T, 32, SWIGLU>(context, p, span);
	case 64: return grouped_run<T, 64, SWIGLU>(context, p, span);
	default: return grouped_run<T, 128, SWIGLU>(context, p, span);
	}
}

enum status moe_grouped_up(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, struct error *err)
{
	const struct moe_span none = {0, 0, 0, 0};
	gpu_error code = p->type == DTYPE_F16 ? grouped_typed<f16, true>(context, *p, tile_rows, none) : grouped_typed<bf16, true>(context, *p, tile_rows, none);
	return gpu_check(code, "launch of moe_grouped", err);
}

enum status moe_grouped_down(const struct gpu_context *context, const struct moe_problem *p, int tile_rows, const struct moe_span *span, struct error *err)
{
	gpu_error code = p->type == DTYPE_F16 ? grouped_typed<f16, false>(context, *p, tile_rows, *span) : grouped_typed<bf16, false>(context, *p, tile_rows, *span);
	return gpu_check(code, "launch of moe_grouped", err);
}
