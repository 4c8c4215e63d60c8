/* carried_device.h: both halves of a carried sum (carried.h), for the kernels that make partials and those that read sums.
 *
 * The sender. One thread of each block of the kernel that makes the partial takes the use's ticket (p2p_take), after gpu_wait_previous() and *before* the
 * block's gpu_start_next(); one wave of block 0 announces; and every packet goes to all ranks, the own one too.
 * The receiver is the next kernel on the stream. It need not wait for the sender to end: it cannot have begun before all of the sender's blocks had taken their
 * tickets, behind gpu_wait_previous(), so p2p_last() is the sender's use, and all kernels before the sender have ended; and what the sender says comes in packets.
 * It waits for its predecessor some time before it ends, since those behind count on that, and sees the announcements of all peers (block 0).
 * Why the areas can be reused is said in comm/gpu/p2p.h: what stands there of a kernel of use u holds for this pair of kernels; a rank's packets of a use say as
 * much as its announcement, for both come from the sender.
 *
 * Packet j of group g of row r is number (r * groups + g) * group_packets + j.
 */
#ifndef TANDEM_DEVICE_GPU_CARRIED_DEVICE_H
#define TANDEM_DEVICE_GPU_CARRIED_DEVICE_H

#include "device/gpu/carried.h"
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

/* Packet `item` of this rank to all; to the peers first. */
GPU_DEVICE void carried_put(const p2p_view &v, const p2p_use &use, int item, const uint32_t *data)
{
	for (int k = 1; k <= v.ranks; k++) {
		const int to = (v.rank + k) % v.ranks;
		packet_put(p2p_place(v, v.packets, use, to, v.rank) + (size_t)item * GPU_WHOLE_BYTES, data, use.flag);
	}
}

/* sum[i] = the elements of packet first + i * step, where that is below `items`, added up over the ranks in their order; two ranks' packets are in flight
 * together. All lanes of the wave. False: this rank has stopped, and sums mean nothing. */
template <typename T, int N>
GPU_TEMPLATE bool carried_get(const p2p_view &v, const p2p_use &use, int first, int step, int items, float (*sum)[carried<T>::elements])
{
	constexpr int each = p2p_word<T>::elements;
	bool alive = use.number != 0;
	for (int r0 = 0; r0 < v.ranks; r0 += 2) {
		packet_words in[2][N] = {};
		uint32_t missing = 0; /* bits */
		GPU_UNROLL for (int i = 0; i < 2 * N; i++)
			if (r0 + i / N < v.ranks && first + i % N * step < items) missing |= 1u << i;
		p2p_patience patience = {0, 0, 0};
		for (;;) {
			GPU_UNROLL for (int i = 0; i < 2 * N; i++)
				if (missing >> i & 1)
					in[i / N][i % N] = packet_load(p2p_place(v, v.packets, use, v.rank, r0 + i / N) + (size_t)(first + i % N * step) * GPU_WHOLE_BYTES);
			GPU_UNROLL for (int i = 0; i < 2 * N; i++)
				if (in[i / N][i % N].flag == use.flag) missing &= ~(1u << i);
			if (!gpu_ballot(missing != 0) || !alive) break;
			alive = p2p_wait_on(v, use, patience);
		}
		GPU_UNROLL for (int i = 0; i < 2 * N; i++)
			GPU_UNROLL for (int w = 0; w < PACKET_WORDS; w++) {
				float part[each];
				p2p_widen<T>(in[i / N][i % N].data[w], part);
				GPU_UNROLL for (int k = 0; k < each; k++) {
					float *to = &sum[i % N][w * each + k];
					if (r0 + i / N < v.ranks) *to = r0 + i / N ? gpu_add(*to, part[k]) : part[k];
				}
			}
	}
	return alive;
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
