/* p2p_device.h: how the kernels of p2p_*.cu add sums to x. p2p_use.h has what they do before. */
#ifndef TANDEM_COMM_GPU_P2P_DEVICE_H
#define TANDEM_COMM_GPU_P2P_DEVICE_H

#include "comm/gpu/p2p.h"
#include "device/gpu/gpu.h"
#include "device/gpu/p2p_use.h"

/* ---- adding to x: elements [c, c + N) of a row, those below cols */

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

#endif
