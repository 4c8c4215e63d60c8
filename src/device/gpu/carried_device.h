/* carried_device.h: both halves of a carried sum (carried.h), for the kernels that make partials and those that read sums. comm/gpu/p2p.h has the protocol
 * of all other collectives.
 *
 * A carried sum is one use of the protocol, begun and announced by the sender's block 0. Its packets go by a count of their own, which both kernels keep: the
 * sender's blocks take tickets of `sent` behind gpu_wait_previous(), the receiver's of `received` *before* their gpu_start_next(). So neither has to wait for
 * the other to say what is next: a receiver's blocks cannot begin before all of the last receiver's have taken theirs, since each launch in between
 * begins when all blocks of the one before it have let it.
 * The receiver, the next kernel on the stream, begins while the sender runs, and does not wait for it to end. Every rank sends to all ranks, to itself too, and
 * the own packets come first: who has seen one knows that the sender has passed gpu_wait_previous(), so whatever was launched before the sender has ended, the
 * receiver before included: the residual that it wrote can be read, and everything be written. It waits for its predecessor some time before it ends, since
 * those behind count on that, and then sees the announcements of all peers (block 0).
 *
 * Why a half can be reused. Rank A sends sum j + 2 to B when A's receiver of j + 1 has ended, which has seen B's packets of j + 1; B sent those behind
 * gpu_wait_previous(), when its receiver of j had ended.
 *
 * Packet i of group g of row r is number (r * groups + g) * group + i.
 */
#ifndef TANDEM_DEVICE_GPU_CARRIED_DEVICE_H
#define TANDEM_DEVICE_GPU_CARRIED_DEVICE_H

#include "device/gpu/carried.h"
#include "device/gpu/gpu.h"
#include "device/gpu/p2p_use.h"

template <typename T> struct carried {
	static constexpr int elements = PACKET_WORDS * p2p_word<T>::elements; /* of a packet */
	static constexpr int group = (CARRIED_GROUP + elements - 1) / elements; /* packets */
};

/* First column of packet `item` of a row, and how many elements it holds. */
template <typename T> GPU_TEMPLATE int carried_column(int item)
{
	return item / carried<T>::group * CARRIED_GROUP + item % carried<T>::group * carried<T>::elements;
}
template <typename T> GPU_TEMPLATE int carried_count(int item)
{
	const int rest = CARRIED_GROUP - item % carried<T>::group * carried<T>::elements;
	return rest < carried<T>::elements ? rest : carried<T>::elements;
}

/* ---- the sender */

/* One thread of each block, behind gpu_wait_previous(). `shared`: [3]. */
GPU_DEVICE void carried_take_send(const p2p_view &v, uint32_t *shared)
{
	p2p_take(v, &v.state->sent, shared);
	if (blockIdx.x == 0) shared[2] = (uint32_t)(gpu_atomic_add(&v.state->ticket, (unsigned long long)P2P_TICKETS) / P2P_TICKETS) + 1;
}

/* By the first wave of block 0, behind that. */
GPU_DEVICE void carried_announce(const p2p_view &v, const uint32_t *shared)
{
	p2p_announce(v, {shared[2], 0});
}

/* Packet `item` of this rank to all; to the peers first. */
GPU_DEVICE void carried_put(const p2p_view &v, const p2p_use &sum, int item, const uint32_t *data)
{
	for (int k = 1; k <= v.ranks; k++) {
		const int to = (v.rank + k) % v.ranks;
		packet_put(p2p_place(v, v.carried, sum, to, v.rank) + (size_t)item * GPU_WHOLE_BYTES, data, sum.flag);
	}
}

/* ---- the receiver */

/* One thread of each block, before gpu_start_next(). `shared`: [2], for p2p_taken. */
GPU_DEVICE void carried_take_receive(const p2p_view &v, uint32_t *shared)
{
	p2p_take(v, &v.state->received, shared);
}

GPU_RARE void carried_look_around(const p2p_view &v, p2p_patience &patience)
{
	p2p_look_around(v, p2p_last(v), patience); /* the sender's, unless that hangs itself */
}

/* As p2p_wait_on. */
GPU_DEVICE bool carried_wait_on(const p2p_view &v, p2p_patience &patience)
{
	gpu_spin_pause();
	if (++patience.looks % P2P_LOOKS) return true;
	if ((int)threadIdx.x % GPU_WARP == 0) carried_look_around(v, patience);
	return !gpu_shfl(gpu_load_volatile(&v.state->stop), 0);
}

/* in[i] = packet first + i * step of rank `from`, where that is below `items`. All lanes of the wave. *alive false: this rank has stopped; nothing is waited
 * for then, and packets mean nothing. */
template <int N> GPU_TEMPLATE void carried_get(const p2p_view &v, const p2p_use &sum, int from, int first, int step, int items, packet_words *in, bool *alive)
{
	const unsigned char *place = p2p_place(v, v.carried, sum, v.rank, from) + (size_t)first * GPU_WHOLE_BYTES;
	uint32_t missing = 0; /* bits */
	GPU_UNROLL for (int i = 0; i < N; i++) {
		in[i] = {};
		if (first + i * step < items) missing |= 1u << i;
	}
	p2p_patience patience = {0, 0, 0};
	for (;;) {
		GPU_UNROLL for (int i = 0; i < N; i++)
			if (missing >> i & 1) in[i] = packet_load(place + (size_t)(i * step) * GPU_WHOLE_BYTES);
		GPU_UNROLL for (int i = 0; i < N; i++)
			if (in[i].flag == sum.flag) missing &= ~(1u << i);
		if (!gpu_ballot(missing != 0) || !*alive) return;
		*alive = carried_wait_on(v, patience);
	}
}

/* sum[i] = the elements of those packets added up over the ranks in their order; `own`: this rank's. */
template <typename T, int N>
GPU_TEMPLATE void carried_add(const p2p_view &v, const p2p_use &use, int first, int step, int items, const packet_words *own, bool *alive, float (*sum)[carried<T>::elements])
{
	constexpr int each = p2p_word<T>::elements;
	for (int r = 0; r < v.ranks; r++) {
		packet_words in[N];
		if (r != v.rank) carried_get<N>(v, use, r, first, step, items, in, alive);
		GPU_UNROLL for (int i = 0; i < N; i++)
			GPU_UNROLL for (int w = 0; w < PACKET_WORDS; w++) {
				float part[each];
				p2p_widen<T>(r == v.rank ? own[i].data[w] : in[i].data[w], part);
				GPU_UNROLL for (int k = 0; k < each; k++) sum[i][w * each + k] = r ? gpu_add(sum[i][w * each + k], part[k]) : part[k];
			}
	}
}

/* When the receiver has waited for its predecessor: by one wave of block 0. */
GPU_DEVICE void carried_end(const p2p_view &v)
{
	(void)p2p_await_announced(v, p2p_last(v));
}

/* Elements of packet `item` of the residual, which the kernel before the sender may have written: not by way of a cache. */
template <typename T> GPU_TEMPLATE void carried_load_residual(const float *row, int item, float *v)
{
	constexpr int E = carried<T>::elements;
	const float *from = row + carried_column<T>(item);
	const int count = carried_count<T>(item);
	GPU_UNROLL for (int i = 0; i < E; i++)
		if (E % 2 && i < count) v[i] = gpu_bits_to_f32(gpu_load_volatile((const uint32_t *)(from + i)));
	GPU_UNROLL for (int i = 0; i + 1 < E; i += 2) {
		if (E % 2 || i >= count) continue;
		const unsigned long long pair = gpu_load8_volatile((const unsigned long long *)(from + i));
		v[i] = gpu_bits_to_f32((uint32_t)pair), v[i + 1] = gpu_bits_to_f32((uint32_t)(pair >> 32));
	}
}

/* Elements of packet `item` of a row of f32, those that it holds; the rest stays. `row`: aligned to 8 bytes. */
template <typename T> GPU_TEMPLATE void carried_load(const float *row, int item, float *v)
{
	constexpr int E = carried<T>::elements;
	const float *from = row + carried_column<T>(item);
	const int count = carried_count<T>(item);
	GPU_UNROLL for (int i = 0; i < E; i += 2) {
		if (i >= count) continue;
		const p2p_pair pair = E % 2 ? p2p_pair{from[i], i + 1 < count ? from[i + 1] : 0.0f} : *(const p2p_pair *)(from + i);
		v[i] = pair.x;
		if (i + 1 < E) v[i + 1] = pair.y;
	}
}

#endif
