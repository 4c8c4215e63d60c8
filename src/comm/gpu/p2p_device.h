/* p2p_device.h: what the kernels of p2p_*.cu do alike: begin a use, announce it, wait for peers, add up. See p2p.h for the protocol. */
#ifndef TANDEM_COMM_GPU_P2P_DEVICE_H
#define TANDEM_COMM_GPU_P2P_DEVICE_H

#include "comm/gpu/p2p.h"
#include "device/gpu/gpu.h"

/* How often a wave that waits looks up from its packet: after P2P_LOOKS spins, of about half a microsecond each, at the clock; and not before it has
 * waited for P2P_CHECK_NS at memory of the host. Sooner would be worse than useless: two thousand waves that read over PCI Express because a peer is
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

/* Lets the next kernel of this rank begin, but where it would hold what a rank on the same device needs to come to this collective. */
GPU_DEVICE void p2p_start_next(const p2p_view &view)
{
	if (!view.shared) gpu_start_next();
}

/* Number of this use. All blocks of the launch add to one counter, P2P_TICKETS together, so each of them can tell from what it found there how
 * many launches came before; nothing has to be reset, and no block has to be the last. `shared`: [2]. All threads of the block call it. */
GPU_DEVICE p2p_use p2p_begin(const p2p_view &view, uint32_t *shared)
{
	if (threadIdx.x == 0) {
		unsigned long long mine = blockIdx.x == 0 ? P2P_TICKETS - (gridDim.x - 1) : 1;
		const uint32_t stop = gpu_load_volatile(&view.state->stop); /* both on their way before either is used */
		const unsigned long long before = gpu_atomic_add(&view.state->ticket, mine);
		shared[0] = ((uint32_t)(before / P2P_TICKETS) + 1) | P2P_USED;
		shared[1] = stop;
	}
	gpu_sync();
	p2p_use use;
	use.number = shared[1] ? 0 : shared[0];
	use.flag = shared[0] << 8 | p2p_hash(view.desc);
	return use;
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

/* Until every peer has announced the same as this rank. By the first wave of a block: a lane has one word of one peer. */
GPU_DEVICE bool p2p_await_announced(const p2p_view &view, const p2p_use &use)
{
	const int peer = (int)threadIdx.x / 4, word = (int)threadIdx.x % 4;
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
	if (threadIdx.x == 0) (void)p2p_missing(view, use); /* reports who differs */
	return false;
}

/* ---- adding to x: elements [c, c + N) of a row, those below cols */

struct alignas(8) p2p_pair {
	float x, y;
};

template <int N> GPU_TEMPLATE void p2p_load_row(const float *row, int c, const p2p_sum &s, float *out)
{
	if (N % 2 == 0 && s.pairs && c + N <= s.cols) {
		GPU_UNROLL for (int i = 0; i + 1 < N; i += 2) {
			const p2p_pair pair = *(const p2p_pair *)(row + c + i);
			out[i] = pair.x, out[i + 1] = pair.y;
		}
		return;
	}
	GPU_UNROLL for (int i = 0; i < N; i++) out[i] = c + i < s.cols ? row[c + i] : 0.0f;
}

template <int N> GPU_TEMPLATE void p2p_store_row(float *row, int c, const p2p_sum &s, const float *v)
{
	if (N % 2 == 0 && s.pairs && c + N <= s.cols) {
		GPU_UNROLL for (int i = 0; i + 1 < N; i += 2) {
			p2p_pair pair;
			pair.x = v[i], pair.y = v[i + 1];
			*(p2p_pair *)(row + c + i) = pair;
		}
		return;
	}
	GPU_UNROLL for (int i = 0; i < N; i++)
		if (c + i < s.cols) row[c + i] = v[i];
}

/* sum = x + (sum + bias), in host's order. */
template <int N> GPU_TEMPLATE void p2p_add_rest(const p2p_sum &s, int c, const float *x, float *sum)
{
	if (s.bias) {
		float bias[N];
		p2p_load_row<N>(s.bias, c, s, bias);
		GPU_UNROLL for (int i = 0; i < N; i++) sum[i] = gpu_add(sum[i], bias[i]);
	}
	if (s.add) GPU_UNROLL for (int i = 0; i < N; i++) sum[i] = gpu_add(x[i], sum[i]);
}

/* ---- vectors of 16 bytes of partial */

/* Vector `i`: row, first column, and where it lies in a partial, in vectors. */
struct p2p_vector {
	int row, c;
	size_t place;
};
template <typename T> GPU_TEMPLATE p2p_vector p2p_find(const p2p_sum &s, int i, int row_vectors)
{
	constexpr int V = gpu_lanes<T>::count;
	const int row = i / row_vectors, k = i - row * row_vectors;
	return {row, k * V, (size_t)row * (size_t)(s.stride / V) + (size_t)k};
}

/* x of one vector. */
template <int V> GPU_TEMPLATE void p2p_update_x(const p2p_sum &s, int row, int c, float *sum)
{
	float *x_row = s.x + (size_t)row * (size_t)s.x_stride, x[V] = {};
	if (s.add) p2p_load_row<V>(x_row, c, s, x);
	p2p_add_rest<V>(s, c, x, sum);
	p2p_store_row<V>(x_row, c, s, sum);
}

/* Elements [c, c + N) of a row of h. */
template <typename T, int N> GPU_TEMPLATE void p2p_store_narrow(T *row, int c, const p2p_sum &s, const float *v)
{
	if (sizeof(T) == 2 && N % 2 == 0 && s.pairs && c + N <= s.cols) {
		GPU_UNROLL for (int i = 0; i + 1 < N; i += 2) {
			union {
				T half[2];
				uint32_t word;
			} pair;
			pair.half[0] = gpu_narrow<T>(v[i]), pair.half[1] = gpu_narrow<T>(v[i + 1]);
			*(uint32_t *)(row + c + i) = pair.word;
		}
		return;
	}
	GPU_UNROLL for (int i = 0; i < N; i++)
		if (c + i < s.cols) row[c + i] = gpu_narrow<T>(v[i]);
}

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
