/* p2p_use.h: what all kernels that meet their peers in device memory do alike: begin a use, announce it, wait for peers, store and load packets, widen
 * what is in them. comm/gpu/p2p.h has the protocol. */
#ifndef TANDEM_DEVICE_GPU_P2P_USE_H
#define TANDEM_DEVICE_GPU_P2P_USE_H

#include "device/gpu/gpu.h"
#include "device/gpu/p2p_view.h"

/* How often a wave that waits looks up from its packet: after LOOKS spins, of about half a microsecond each, at the clock; and not before it has
 * waited for CHECK_NS at memory of the host. Sooner would be worse than useless: two thousand waves that read over PCI Express because a peer is
 * 30 us late make their own rank a millisecond late, so that the peer does the same, and so on. */
#define P2P_LOOKS 64
#define P2P_CHECK_NS 5000000u

/* What a block knows of the use that it is in. */
struct p2p_use {
	uint32_t number; /* 0: this rank has stopped; leave */
	uint32_t flag;   /* of packets and blocks: use and descriptor */
};

/* Eight bits that tell descriptors apart, never 0: memory that nobody has written holds no flag. */
GPU_DEVICE uint32_t p2p_hash(const p2p_desc &desc)
{
	uint32_t h = 0x9e3779b9u;
	GPU_UNROLL for (int i = 0; i < P2P_DESC_WORDS; i++) h = (h ^ desc.word[i]) * 0x85ebca6bu, h ^= h >> 15;
	return h % 255 + 1;
}

/* One thread of each block of a launch counts it. All blocks add to one counter, P2P_TICKETS together, so each of them can tell from what it found there how
 * many launches came before; nothing has to be reset, and no block has to be the last. `shared`: [2], for p2p_taken. */
GPU_DEVICE void p2p_take(const p2p_view &view, unsigned long long *counter, uint32_t *shared)
{
	unsigned long long mine = blockIdx.x == 0 ? P2P_TICKETS - (gridDim.x - 1) : 1;
	const uint32_t stop = gpu_load_volatile(&view.state->stop); /* both on their way before either is used */
	const unsigned long long before = gpu_atomic_add(counter, mine);
	shared[0] = (uint32_t)(before / P2P_TICKETS) + 1;
	shared[1] = stop;
}

/* Any thread of the block, behind that. */
GPU_DEVICE p2p_use p2p_taken(const p2p_view &view, const uint32_t *shared)
{
	p2p_use use;
	use.number = shared[1] ? 0 : shared[0];
	use.flag = shared[0] << 8 | p2p_hash(view.desc);
	return use;
}

/* All threads of the block. */
GPU_DEVICE p2p_use p2p_begin(const p2p_view &view, uint32_t *shared)
{
	if (threadIdx.x == 0) p2p_take(view, &view.state->ticket, shared);
	gpu_sync();
	return p2p_taken(view, shared);
}

/* The use that has begun last. */
GPU_DEVICE p2p_use p2p_last(const p2p_view &view)
{
	const uint32_t number = (uint32_t)(gpu_load8_volatile(&view.state->ticket) / P2P_TICKETS);
	return {number, number << 8 | p2p_hash(view.desc)};
}

/* Where rank `from` writes into rank `to`'s area in this use. */
GPU_DEVICE unsigned char *p2p_place(const p2p_view &view, const p2p_part &part, const p2p_use &use, int to, int from)
{
	return view.area[to] + part.at + (use.number % 2) * part.half + (size_t)from * part.source;
}

GPU_DEVICE unsigned long long *p2p_announcement(const p2p_view &view, const p2p_use &use, int to, int from)
{
	return (unsigned long long *)p2p_place(view, view.announced, use, to, from);
}

/* By the first wave of one block. What this rank has written before, and whatever else its stream has done, is visible to who has seen it, if the
 * caller made a system fence before. */
GPU_DEVICE void p2p_announce(const p2p_view &view, const p2p_use &use)
{
	const int to = (int)threadIdx.x / 4, word = (int)threadIdx.x % 4;
	if (to < view.ranks && to != view.rank && word < P2P_DESC_WORDS)
		gpu_store8_volatile(p2p_announcement(view, use, to, view.rank) + word, (unsigned long long)use.number << 32 | view.desc.word[word]);
}

/* ---- faults, all rare; one thread each */

GPU_DEVICE void p2p_stop(const p2p_view &view, const p2p_use &use, uint32_t fault, uint32_t peer, const p2p_desc *theirs)
{
	if (gpu_atomic_add(&view.state->stop, 1u)) return; /* another thread was first */
	volatile p2p_report *report = &view.control->report;
	report->use = use.number;
	report->peer = peer;
	for (int i = 0; i < P2P_DESC_WORDS; i++) {
		report->mine.word[i] = view.desc.word[i];
		report->theirs.word[i] = theirs ? theirs->word[i] : 0;
	}
	gpu_fence_system();
	report->fault = fault;
}

/* True if rank `peer` has announced this use; false with `stop` set if it announced another thing than this rank. */
GPU_DEVICE bool p2p_has_announced(const p2p_view &view, const p2p_use &use, int peer)
{
	const unsigned long long *place = p2p_announcement(view, use, view.rank, peer);
	p2p_desc theirs;
	bool same = true;
	for (int i = 0; i < P2P_DESC_WORDS; i++) {
		unsigned long long word = gpu_load8_volatile(place + i);
		if ((uint32_t)(word >> 32) != use.number) return false;
		theirs.word[i] = (uint32_t)word;
		same = same && theirs.word[i] == view.desc.word[i];
	}
	if (!same) p2p_stop(view, use, P2P_MISMATCH, (uint32_t)peer, &theirs);
	return same;
}

/* Bits of the peers that have not announced this use. */
GPU_RARE uint32_t p2p_missing(const p2p_view &view, const p2p_use &use)
{
	uint32_t missing = 0;
	for (int r = 0; r < view.ranks; r++)
		if (r != view.rank && !p2p_has_announced(view, use, r)) missing |= 1u << r;
	return missing;
}

struct p2p_patience {
	uint32_t looks;
	unsigned long long begin, next; /* 0: no look at the clock yet */
};

GPU_RARE void p2p_look_around(const p2p_view &view, const p2p_use &use, p2p_patience &patience)
{
	const unsigned long long now = gpu_clock_ns();
	if (!patience.begin) patience.begin = now, patience.next = now + P2P_CHECK_NS;
	if (now < patience.next) return;
	patience.next = now + P2P_CHECK_NS;
	const uint32_t missing = p2p_missing(view, use);
	if (gpu_load_volatile(&view.control->abort)) p2p_stop(view, use, P2P_ABORTED, 0, NULL);
	else if (now - patience.begin > view.limit_ns) p2p_stop(view, use, P2P_LATE, missing, NULL);
}

/* Between two looks at what has not come yet: false where there is no point in going on. All lanes of the wave call it together. */
GPU_DEVICE bool p2p_wait_on(const p2p_view &view, const p2p_use &use, p2p_patience &patience)
{
	gpu_spin_pause();
	if (++patience.looks % P2P_LOOKS) return true;
	if ((int)threadIdx.x % GPU_WARP == 0) p2p_look_around(view, use, patience);
	return !gpu_shfl(gpu_load_volatile(&view.state->stop), 0);
}

/* Until every peer has announced the same as this rank. By one wave: a lane has one word of one peer. */
GPU_DEVICE bool p2p_await_announced(const p2p_view &view, const p2p_use &use)
{
	const int peer = (int)threadIdx.x % GPU_WARP / 4, word = (int)threadIdx.x % 4;
	const bool on = peer < view.ranks && peer != view.rank && word < P2P_DESC_WORDS;
	const unsigned long long *place = p2p_announcement(view, use, view.rank, on ? peer : view.rank) + (on ? word : 0);
	unsigned long long seen = 0;
	p2p_patience patience = {0, 0, 0};
	for (;;) {
		if (on) seen = gpu_load8_volatile(place);
		if (!gpu_ballot(on && (uint32_t)(seen >> 32) != use.number)) break;
		if (!p2p_wait_on(view, use, patience)) return false;
	}
	if (!gpu_ballot(on && (uint32_t)seen != view.desc.word[on ? word : 0])) return true;
	if ((int)threadIdx.x % GPU_WARP == 0) (void)p2p_missing(view, use); /* reports who differs */
	return false;
}

/* ---- packets */

/* GPU_WHOLE_BYTES of data and flag, stored and loaded in one piece. */
#define PACKET_WORDS (GPU_WHOLE_BYTES / 4 - 1) /* of data */

struct packet_words {
	uint32_t data[PACKET_WORDS], flag;
};

#if GPU_WHOLE_BYTES == 16
GPU_DEVICE void packet_put(void *place, const uint32_t *data, uint32_t flag)
{
	gpu_vec16 v;
	GPU_UNROLL for (int i = 0; i < 3; i++) v.x[i] = data[i];
	v.x[3] = flag;
	gpu_store16_volatile(place, v);
}
GPU_DEVICE packet_words packet_load(const void *place)
{
	const gpu_vec16 v = gpu_load16_volatile(place);
	return {{v.x[0], v.x[1], v.x[2]}, v.x[3]};
}
/* True where the packet has come. */
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
GPU_DEVICE packet_words packet_load(const void *place)
{
	const unsigned long long v = gpu_load8_volatile((const unsigned long long *)place);
	return {{(uint32_t)v}, (uint32_t)(v >> 32)};
}
GPU_DEVICE bool packet_get(const void *place, uint32_t flag, uint32_t *data)
{
	const packet_words v = packet_load(place);
	data[0] = v.data[0];
	return v.flag == flag;
}
#endif

/* Two floats in one piece. */
struct alignas(8) p2p_pair {
	float x, y;
};

/* Words of 32 bits of partials: two 16-bit elements, or one f32. */
template <typename T> struct p2p_word {
	static constexpr int elements = 4 / (int)sizeof(T);
};
template <typename T> GPU_TEMPLATE void p2p_widen(uint32_t word, float *out);
template <> GPU_TEMPLATE void p2p_widen<float>(uint32_t word, float *out)
{
	out[0] = gpu_bits_to_f32(word);
}
template <> GPU_TEMPLATE void p2p_widen<bf16>(uint32_t word, float *out)
{
	out[0] = gpu_bits_to_f32(word << 16);
	out[1] = gpu_bits_to_f32(word & 0xffff0000u);
}
template <> GPU_TEMPLATE void p2p_widen<f16>(uint32_t word, float *out)
{
	out[0] = gpu_f16_to_f32((uint16_t)(word & 0xffff));
	out[1] = gpu_f16_to_f32((uint16_t)(word >> 16));
}

#endif
