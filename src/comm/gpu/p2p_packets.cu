/* p2p_packets.cu: collectives whose data travels in packets: the all-reduce of small partials, broadcast, and the fence, which is a use with
 * no data. See p2p.h. */
#include "comm/gpu/p2p_device.h"

/* GPU_WHOLE_BYTES of data and flag, stored and loaded in one piece. */
#define PACKET_WORDS (GPU_WHOLE_BYTES / 4 - 1) /* of data */

#if GPU_WHOLE_BYTES == 16
GPU_DEVICE void packet_put(void *place, const uint32_t *data, uint32_t flag)
{
	gpu_vec16 v;
	GPU_UNROLL for (int i = 0; i < 3; i++) v.x[i] = data[i];
	v.x[3] = flag;
	gpu_store16_volatile(place, v);
}
GPU_DEVICE bool packet_get(const void *place, uint32_t flag, uint32_t *data)
{
	const gpu_vec16 v = gpu_load16_volatile(place);
	GPU_UNROLL for (int i = 0; i < 3; i++) data[i] = v.x[i];
	return v.x[3] == flag;
}
#else
GPU_DEVICE void packet_put(void *place, const uint32_t *data, uint32_t flag)
{
	gpu_store8_volatile((unsigned long long *)place, (unsigned long long)flag << 32 | data[0]);
}
GPU_DEVICE bool packet_get(const void *place, uint32_t flag, uint32_t *data)
{
	const unsigned long long v = gpu_load8_volatile((const unsigned long long *)place);
	data[0] = (uint32_t)v;
	return (uint32_t)(v >> 32) == flag;
}
#endif

/* ---- all-reduce
 *
 * Item i is one packet: row i / row_packets, elements [c, c + E) of it. Thread t of the grid (NORM: of the block, which has a whole row) has the items
 * t, t + threads, ...: it writes its own partial's packet to every peer, and when all its packets are on their way it waits for the peers'
 * packets of the same items, adds in rank order, and updates x. So data crosses the link once, with no fence, and everything that does not
 * depend on a peer (x, bias, norm weights) is loaded before the wait.
 * Reads partial [rows][stride] of T (rows aligned to 16 bytes), x [rows][x_stride]; writes x, and h where NORM. Shared memory: two words; NORM: a
 * wave sum and the row's weights.
 * Bound: latency of one store over the link; from about 256 KiB on the link, 4/3 of the partial's bytes (two of f32's 8 where packets are of 8).
 * RANKS: 2, 4 or 8, at least view.ranks. NORM: 16-bit T, at most P2P_NORM_RANKS, one block a row, row_packets <= P2P_KEEP * threads. */
template <typename T> struct packet {
	static constexpr int elements = PACKET_WORDS * p2p_word<T>::elements;
};

template <typename T, int RANKS> GPU_TEMPLATE void push_item(const p2p_view &v, const p2p_use &use, int item, const uint32_t *data)
{
	GPU_UNROLL for (int r = 0; r < RANKS; r++)
		if (r < v.ranks && r != v.rank)
			packet_put(p2p_place(v, v.packets, use, r, v.rank) + (size_t)item * GPU_WHOLE_BYTES, data, use.flag);
}

/* Own words [item] of the partial. Behind the last column lies the row's padding. */
template <typename T> GPU_TEMPLATE void load_own(const p2p_view &v, const p2p_sum &s, int row, int c, uint32_t *data)
{
	const uint32_t *from = (const uint32_t *)((const T *)s.partial[v.rank] + (size_t)row * (size_t)s.stride + c);
	GPU_UNROLL for (int i = 0; i < PACKET_WORDS; i++) data[i] = c + i * p2p_word<T>::elements < s.cols ? from[i] : 0;
}

/* Waits for the item's packets of all peers and adds up, rank 0 first. `on`: this lane has an item. All lanes of the wave. */
template <typename T, int RANKS>
GPU_TEMPLATE void sum_item(const p2p_view &v, const p2p_use &use, bool on, int item, const uint32_t *own, bool *alive, float *sum)
{
	constexpr int each = p2p_word<T>::elements;
	uint32_t data[RANKS][PACKET_WORDS] = {};
	p2p_patience patience = {0, 0, 0};
	for (;;) {
		bool come = true;
		GPU_UNROLL for (int r = 0; r < RANKS; r++)
			if (on && r < v.ranks && r != v.rank)
				come = packet_get(p2p_place(v, v.packets, use, v.rank, r) + (size_t)item * GPU_WHOLE_BYTES, use.flag, data[r]) && come;
		if (!gpu_ballot(!come) || !*alive) break;
		*alive = p2p_wait_on(v, use, patience);
	}
	GPU_UNROLL for (int r = 0; r < RANKS; r++)
		GPU_UNROLL for (int i = 0; i < PACKET_WORDS; i++) {
			float part[each];
			p2p_widen<T>(r == v.rank ? own[i] : data[r][i], part);
			GPU_UNROLL for (int k = 0; k < each; k++)
				if (r < v.ranks) sum[i * each + k] = r ? gpu_add(sum[i * each + k], part[k]) : part[k];
		}
}

template <typename T, int RANKS> GPU_KERNEL(512) packets_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_sum s)
{
	constexpr int E = packet<T>::elements;
	GPU_SHARED(uint32_t, shared, 2);
	p2p_start_next(v);
	gpu_wait_previous();
	const int row_packets = (s.cols + E - 1) / E, items = s.rows * row_packets, step = (int)(gridDim.x * blockDim.x);
	const int lane = (int)threadIdx.x % GPU_WARP, first = (int)(blockIdx.x * blockDim.x + threadIdx.x) - lane;
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number) return;
	if (blockIdx.x == 0) p2p_announce(v, use);
	for (int item = first + lane; item < items; item += step) {
		uint32_t own[PACKET_WORDS];
		load_own<T>(v, s, item / row_packets, item % row_packets * E, own);
		push_item<T, RANKS>(v, use, item, own);
	}
	/* The announcement was sent first, so waiting for it here costs nothing. */
	bool alive = blockIdx.x > 0 || threadIdx.x >= GPU_WARP || p2p_await_announced(v, use);
	for (int wave = first; wave < items; wave += step) {
		const int item = wave + lane, row = item / row_packets, c = item % row_packets * E;
		const bool on = item < items;
		uint32_t own[PACKET_WORDS] = {};
		float x[E] = {}, sum[E];
		float *x_row = s.x + (size_t)row * (size_t)s.x_stride;
		if (on) load_own<T>(v, s, row, c, own);
		if (on && s.add) p2p_load_row<E>(x_row, c, s, x);
		sum_item<T, RANKS>(v, use, on, item, own, &alive, sum);
		if (!on) continue;
		p2p_add_rest<E>(s, c, x, sum);
		p2p_store_row<E>(x_row, c, s, sum);
	}
}

/* h of one row from the thread's `P2P_KEEP` packets of x. */
template <typename T, int E>
GPU_TEMPLATE void norm_row(const p2p_sum &s, int row, const float (*x)[E], const float *weight, float *scratch)
{
	float squares = 0;
	GPU_UNROLL for (int k = 0; k < P2P_KEEP; k++)
		GPU_UNROLL for (int i = 0; i < E; i++) squares += x[k][i] * x[k][i];
	const float scale = 1.0f / sqrtf(gpu_block_sum(squares, scratch) / (float)s.cols + s.eps);
	T *h = (T *)s.h + (size_t)row * (size_t)s.h_stride;
	GPU_UNROLL for (int k = 0; k < P2P_KEEP; k++) {
		const int c = ((int)threadIdx.x + k * (int)blockDim.x) * E;
		float out[E];
		GPU_UNROLL for (int i = 0; i < E; i++) out[i] = c + i < s.cols ? x[k][i] * scale * weight[c + i] : 0.0f;
		p2p_store_narrow<T, E>(h, c, s, out);
	}
}

template <typename T, int RANKS> GPU_KERNEL(P2P_NORM_THREADS) packets_norm_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_sum s)
{
	constexpr int E = packet<T>::elements;
	GPU_SHARED(uint32_t, shared, 2);
	GPU_SHARED(float, scratch, 32);
	const int row_packets = (s.cols + E - 1) / E, threads = (int)blockDim.x, me = (int)threadIdx.x;
	GPU_DYNAMIC_SHARED(weight_bytes);
	float *weight = (float *)weight_bytes; /* each thread reads what it wrote itself; weights need not wait for anything */
	for (int p = me; p < row_packets; p += threads)
		for (int c = p * E; c < p * E + E && c < s.cols; c++) weight[c] = s.norm[c];
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number) return;
	if (blockIdx.x == 0) p2p_announce(v, use);
	for (int row = (int)blockIdx.x; row < s.rows; row += (int)gridDim.x)
		for (int p = me; p < row_packets; p += threads) {
			uint32_t own[PACKET_WORDS];
			load_own<T>(v, s, row, p * E, own);
			push_item<T, RANKS>(v, use, row * row_packets + p, own);
		}
	bool alive = blockIdx.x > 0 || threadIdx.x >= GPU_WARP || p2p_await_announced(v, use);
	for (int row = (int)blockIdx.x; row < s.rows; row += (int)gridDim.x) {
		float kept[P2P_KEEP][E] = {};
		float *x_row = s.x + (size_t)row * (size_t)s.x_stride;
		GPU_UNROLL for (int k = 0; k < P2P_KEEP; k++) {
			const int p = me + k * threads, c = p * E;
			const bool on = p < row_packets;
			uint32_t own[PACKET_WORDS] = {};
			float x[E] = {};
			if (on) load_own<T>(v, s, row, c, own);
			if (on && s.add) p2p_load_row<E>(x_row, c, s, x);
			sum_item<T, RANKS>(v, use, on, row * row_packets + p, own, &alive, kept[k]);
			p2p_add_rest<E>(s, c, x, kept[k]);
			GPU_UNROLL for (int i = 0; i < E; i++) kept[k][i] = on && c + i < s.cols ? kept[k][i] : 0.0f;
			p2p_store_row<E>(x_row, c, s, kept[k]);
		}
		norm_row<T, E>(s, row, kept, weight, scratch);
	}
}

/* Threads of a NORM block: as few as leave no thread more packets than another, in whole waves of either width. */
static int norm_threads(int row_packets)
{
	const int rounds = (row_packets + P2P_NORM_THREADS - 1) / P2P_NORM_THREADS, threads = (row_packets + rounds - 1) / rounds;
	return (threads + 63) / 64 * 64;
}

template <typename T, int RANKS> static gpu_error launch_packets(const p2p_view &view, const p2p_sum &sum, int row_packets, gpu_stream stream)
{
	const long long items = (long long)sum.rows * row_packets;
	const int threads = items <= 256 * view.blocks ? 256 : 512; /* few: more blocks push sooner; many: measured best */
	const long long want = (items + threads - 1) / threads;
	const int blocks = want < view.blocks ? (int)want : view.blocks;
	return GPU_LAUNCH((packets_kernel<T, RANKS>), dim3((unsigned)blocks), dim3((unsigned)threads), 0, stream, view, sum);
}

template <typename T, int RANKS> static gpu_error launch_packets_norm(const p2p_view &view, const p2p_sum &sum, int row_packets, gpu_stream stream)
{
	const int blocks = sum.rows < view.blocks ? sum.rows : view.blocks;
	const size_t shared = (size_t)sum.cols * sizeof(float);
	return GPU_LAUNCH((packets_norm_kernel<T, RANKS>), dim3((unsigned)blocks), dim3((unsigned)norm_threads(row_packets)), shared, stream, view, sum);
}

/* CALL(T, RANKS) for the dtype and the smallest RANKS. */
#define FOR_RANKS(T, ranks, CALL) ((ranks) <= 2 ? CALL(T, 2) : (ranks) <= 4 ? CALL(T, 4) : CALL(T, 8))
#define FOR_FEW_RANKS(T, ranks, CALL) ((ranks) <= 2 ? CALL(T, 2) : CALL(T, P2P_NORM_RANKS))

gpu_error p2p_launch_packets(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream)
{
	const int row_packets = p2p_row_packets(sum->cols, dtype);
#define PLAIN(T, RANKS) launch_packets<T, RANKS>(*view, *sum, row_packets, stream)
#define NORM(T, RANKS) launch_packets_norm<T, RANKS>(*view, *sum, row_packets, stream)
	if (dtype == DTYPE_F32) return FOR_RANKS(float, view->ranks, PLAIN);
	if (sum->norm) return dtype == DTYPE_F16 ? FOR_FEW_RANKS(f16, view->ranks, NORM) : FOR_FEW_RANKS(bf16, view->ranks, NORM);
	return dtype == DTYPE_F16 ? FOR_RANKS(f16, view->ranks, PLAIN) : FOR_RANKS(bf16, view->ranks, PLAIN);
#undef PLAIN
#undef NORM
}

/* ---- broadcast: the root's bytes as packets, 4 * PACKET_WORDS of them each, to every peer, which stores them at its own `data`. Any alignment. One
 * block has the packets t, t + threads, ...; no speed is asked of it. */
GPU_KERNEL(256) broadcast_kernel(GPU_PARAMETER p2p_view v, GPU_PARAMETER p2p_bytes b)
{
	constexpr int E = 4 * PACKET_WORDS;
	GPU_SHARED(uint32_t, shared, 2);
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number) return;
	if (blockIdx.x == 0) p2p_announce(v, use);
	const int lane = (int)threadIdx.x % GPU_WARP, step = (int)(gridDim.x * blockDim.x), items = (int)((b.bytes + E - 1) / E);
	const int first = (int)(blockIdx.x * blockDim.x + threadIdx.x) - lane;
	bool alive = true;
	for (int item = first + lane; item < items && v.rank == b.root; item += step) {
		uint32_t data[PACKET_WORDS] = {};
		for (int i = 0; i < E && (size_t)item * E + i < b.bytes; i++) data[i / 4] |= (uint32_t)b.data[(size_t)item * E + i] << (i % 4 * 8);
		push_item<float, P2P_MAX_RANKS>(v, use, item, data);
	}
	for (int wave = first; wave < items && v.rank != b.root; wave += step) {
		const int item = wave + lane;
		uint32_t data[PACKET_WORDS] = {};
		p2p_patience patience = {0, 0, 0};
		const unsigned char *place = p2p_place(v, v.packets, use, v.rank, b.root) + (size_t)item * GPU_WHOLE_BYTES;
		while (alive && gpu_ballot(item < items && !packet_get(place, use.flag, data))) alive = p2p_wait_on(v, use, patience);
		for (int i = 0; i < E && (size_t)item * E + i < b.bytes; i++) b.data[(size_t)item * E + i] = (unsigned char)(data[i / 4] >> (i % 4 * 8));
	}
	if (blockIdx.x == 0 && threadIdx.x < GPU_WARP) (void)p2p_await_announced(v, use);
}

gpu_error p2p_launch_broadcast(const struct p2p_view *view, const struct p2p_bytes *bytes, gpu_stream stream)
{
	const size_t want = bytes->bytes / (256 * 4 * PACKET_WORDS) + 1;
	const unsigned blocks = want < (size_t)view->blocks ? (unsigned)want : (unsigned)view->blocks;
	return GPU_LAUNCH(broadcast_kernel, dim3(blocks), dim3(256), 0, stream, *view, *bytes);
}

/* ---- fence: one wave announces and waits for the others' announcements, both with a fence, so that what peers wrote before theirs is visible
 * to what comes after this on the stream. */
GPU_KERNEL(GPU_WARP) fence_kernel(GPU_PARAMETER p2p_view v)
{
	GPU_SHARED(uint32_t, shared, 2);
	p2p_start_next(v);
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number) return;
	gpu_fence_system();
	p2p_announce(v, use);
	(void)p2p_await_announced(v, use);
	gpu_fence_system();
}

gpu_error p2p_launch_fence(const struct p2p_view *view, gpu_stream stream)
{
	return GPU_LAUNCH(fence_kernel, dim3(1), dim3(GPU_WARP), 0, stream, *view);
}

gpu_error p2p_preload_packets(int ranks, enum dtype dtype)
{
	gpu_error code = gpu_preload(broadcast_kernel);
	if (code == GPU_OK) code = gpu_preload(fence_kernel);
	if (code != GPU_OK) return code;
#define PLAIN(T, RANKS) gpu_preload((packets_kernel<T, RANKS>))
#define NORM(T, RANKS) gpu_preload((packets_norm_kernel<T, RANKS>))
	if (dtype == DTYPE_F32) return FOR_RANKS(float, ranks, PLAIN);
	code = dtype == DTYPE_F16 ? FOR_RANKS(f16, ranks, PLAIN) : FOR_RANKS(bf16, ranks, PLAIN);
	if (code != GPU_OK) return code;
	return dtype == DTYPE_F16 ? FOR_FEW_RANKS(f16, ranks, NORM) : FOR_FEW_RANKS(bf16, ranks, NORM);
#undef PLAIN
#undef NORM
}
