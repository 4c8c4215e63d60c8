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
 * Reads partial [rows][stride] of T (rows aligned to 16 bytes), x [rows][x_stride]; writes x, and h where NORM. Shared memory: two words, a wave sum.
 * Bound: latency of one store over the link; from about 256 KiB on the link, 4/3 of the partial's bytes (two of f32's 8 where packets are of 8).
 * RANKS: 2, 4 or 8, at least view.ranks. NORM: one block a row, row_packets <= KEEP * threads. */
#define KEEP 3 /* packets of a row that a thread of a NORM block keeps in registers */

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
	GPU_UNROLL for (int r = 0; r < RANKS; r++) {
		if (r >= v.ranks) break;
		GPU_UNROLL for (int i = 0; i < PACKET_WORDS; i++) {
			float part[each];
			p2p_widen<T>(r == v.rank ? own[i] : data[r][i], part);
			GPU_UNROLL for (int k = 0; k < each; k++) sum[i * each + k] = r ? gpu_add(sum[i * each + k], part[k]) : part[k];
		}
	}
}

template <typename T, int RANKS> GPU_KERNEL(1024) packets_kernel(p2p_view v, p2p_sum s)
{
	constexpr int E = packet<T>::elements;
	GPU_SHARED(uint32_t, shared, 2);
	gpu_start_next();
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
	bool alive = true;
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
	if (blockIdx.x == 0 && threadIdx.x < GPU_WARP) (void)p2p_await_announced(v, use);
}

/* h of one row from the thread's `KEEP` packets of x. */
template <typename T, int E>
GPU_TEMPLATE void norm_row(const p2p_sum &s, int row, const float (*x)[E], const float (*weight)[E], float *scratch)
{
	float squares = 0;
	GPU_UNROLL for (int k = 0; k < KEEP; k++)
		GPU_UNROLL for (int i = 0; i < E; i++) squares += x[k][i] * x[k][i];
	const float scale = rsqrtf(gpu_block_sum(squares, scratch) / (float)s.cols + s.eps);
	T *h = (T *)s.h + (size_t)row * (size_t)s.h_stride;
	GPU_UNROLL for (int k = 0; k < KEEP; k++) {
		const int c = ((int)threadIdx.x + k * (int)blockDim.x) * E;
		float out[E];
		GPU_UNROLL for (int i = 0; i < E; i++) out[i] = x[k][i] * scale * weight[k][i];
		p2p_store_narrow<T, E>(h, c, s, out);
	}
}

template <typename T, int RANKS> GPU_KERNEL(1024) packets_norm_kernel(p2p_view v, p2p_sum s)
{
	constexpr int E = packet<T>::elements;
	GPU_SHARED(uint32_t, shared, 2);
	GPU_SHARED(float, scratch, 32);
	gpu_start_next();
	const int row_packets = (s.cols + E - 1) / E, threads = (int)blockDim.x, me = (int)threadIdx.x;
	float weight[KEEP][E];
	GPU_UNROLL for (int k = 0; k < KEEP; k++) p2p_load_row<E>(s.norm, (me + k * threads) * E, s, weight[k]); /* weights: no need to wait */
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
	bool alive = true;
	for (int row = (int)blockIdx.x; row < s.rows; row += (int)gridDim.x) {
		float kept[KEEP][E] = {};
		float *x_row = s.x + (size_t)row * (size_t)s.x_stride;
		GPU_UNROLL for (int k = 0; k < KEEP; k++) {
			const int p = me + k * threads, c = p * E;
			const bool on = p < row_packets;
			if (k * threads >= row_packets) break;
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
	if (blockIdx.x == 0 && threadIdx.x < GPU_WARP) (void)p2p_await_announced(v, use);
}

/* Threads of a NORM block: as few as leave no thread more packets than another, in whole waves of either width. */
static int norm_threads(int row_packets)
{
	const int rounds = (row_packets + 1023) / 1024, threads = (row_packets + rounds - 1) / rounds;
	return (threads + 63) / 64 * 64;
}

bool p2p_packets_norm(const struct p2p_sum *sum, enum dtype dtype)
{
	return p2p_row_packets(sum->cols, dtype) <= KEEP * 1024;
}

template <typename T, int RANKS> static gpu_error launch_packets(const p2p_view &view, const p2p_sum &sum, enum dtype dtype, gpu_stream stream)
{
	const int row_packets = p2p_row_packets(sum.cols, dtype);
	if (sum.norm) {
		const int blocks = sum.rows < view.blocks ? sum.rows : view.blocks;
		return GPU_LAUNCH((packets_norm_kernel<T, RANKS>), dim3((unsigned)blocks), dim3((unsigned)norm_threads(row_packets)), 0, stream, view, sum);
	}
	const long long items = (long long)sum.rows * row_packets;
	const int threads = items <= 256 * view.blocks ? 256 : 512; /* few: more blocks push sooner; many: measured best */
	const long long want = (items + threads - 1) / threads;
	const int blocks = want < view.blocks ? (int)want : view.blocks;
	return GPU_LAUNCH((packets_kernel<T, RANKS>), dim3((unsigned)blocks), dim3((unsigned)threads), 0, stream, view, sum);
}

template <typename T> static gpu_error launch_packets_of(const p2p_view &view, const p2p_sum &sum, enum dtype dtype, gpu_stream stream)
{
	if (view.ranks <= 2) return launch_packets<T, 2>(view, sum, dtype, stream);
	return view.ranks <= 4 ? launch_packets<T, 4>(view, sum, dtype, stream) : launch_packets<T, 8>(view, sum, dtype, stream);
}

gpu_error p2p_launch_packets(const struct p2p_view *view, const struct p2p_sum *sum, enum dtype dtype, gpu_stream stream)
{
	if (dtype == DTYPE_F32) return launch_packets_of<float>(*view, *sum, dtype, stream);
	return dtype == DTYPE_BF16 ? launch_packets_of<bf16>(*view, *sum, dtype, stream) : launch_packets_of<f16>(*view, *sum, dtype, stream);
}

/* ---- broadcast: the root's bytes as packets, 4 * PACKET_WORDS of them each, to every peer, which stores them at its own `data`. Any alignment. One
 * block has the packets t, t + threads, ...; no speed is asked of it. */
GPU_KERNEL(256) broadcast_kernel(p2p_view v, p2p_bytes b)
{
	constexpr int E = 4 * PACKET_WORDS;
	GPU_SHARED(uint32_t, shared, 2);
	gpu_start_next();
	gpu_wait_previous();
	const p2p_use use = p2p_begin(v, shared);
	if (!use.number) return;
	if (blockIdx.x == 0) p2p_announce(v, use);
	const int lane = (int)threadIdx.x % GPU_WARP, step = (int)(gridDim.x * blockDim.x), items = (int)((b.bytes + E - 1) / E);
	bool alive = true;
	for (int wave = (int)(blockIdx.x * blockDim.x + threadIdx.x) - lane; wave < items; wave += step) {
		const int item = wave + lane;
		const size_t begin = (size_t)item * E;
		const bool on = item < items;
		uint32_t data[PACKET_WORDS] = {};
		if (v.rank == b.root) {
			for (int i = 0; i < E && on && begin + i < b.bytes; i++) data[i / 4] |= (uint32_t)b.data[begin + i] << (i % 4 * 8);
			if (on) push_item<float, P2P_MAX_RANKS>(v, use, item, data);
			continue;
		}
		p2p_patience patience = {0, 0, 0};
		const unsigned char *place = p2p_place(v, v.packets, use, v.rank, b.root) + (size_t)item * GPU_WHOLE_BYTES;
		while (alive && gpu_ballot(on && !packet_get(place, use.flag, data))) alive = p2p_wait_on(v, use, patience);
		for (int i = 0; i < E && on && begin + i < b.bytes; i++) b.data[begin + i] = (unsigned char)(data[i / 4] >> (i % 4 * 8));
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
GPU_KERNEL(GPU_WARP) fence_kernel(p2p_view v)
{
	GPU_SHARED(uint32_t, shared, 2);
	gpu_start_next();
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
