/* moe_device.h: routing of one row by a block of threads, for the kernels of moe_route.cu, moe_decode.cu and moe_flow.cu. */
#ifndef TANDEM_DEVICE_GPU_MOE_DEVICE_H
#define TANDEM_DEVICE_GPU_MOE_DEVICE_H

#include "device/gpu/gpu.h"
#include "device/gpu/moe.h"

#define ROUTE_THREADS 256

/* In shared memory. */
struct moe_route {
	float p[MOE_MAX_EXPERTS]; /* probabilities; of NaN: 0 */
	float scratch[32];
	int32_t by_rank[MOE_MAX_TOP_K];
	float p_by_rank[MOE_MAX_TOP_K];
	int32_t chosen[MOE_MAX_TOP_K]; /* ascending */
	float weight[MOE_MAX_TOP_K + 1];
};

template <int THREADS> GPU_TEMPLATE float block_max(float v, float *scratch)
{
	const int wave = (int)threadIdx.x / GPU_WARP;
	v = gpu_warp_max(v);
	gpu_sync();
	if (threadIdx.x % GPU_WARP == 0) scratch[wave] = v;
	gpu_sync();
	float max = scratch[0];
	for (int w = 1; w < THREADS / GPU_WARP; w++) max = fmaxf(max, scratch[w]);
	return max;
}

/* Past the first-level cache: down reads before it has waited, when that may hold what was here a layer ago. */
GPU_DEVICE float logit_at(const float *logits, int i)
{
	return gpu_bits_to_f32(gpu_load_volatile((const uint32_t *)logits + i));
}

/* How many of the experts first, first + step, ... go before e. */
GPU_DEVICE int rank_among(const float *p, int experts, int e, int first, int step)
{
	const float mine = p[e];
	int rank = 0;
	for (int other = first; other < experts; other += step) rank += p[other] > mine || (p[other] == mine && other < e);
	return rank;
}

/* A thread's logits: of experts threadIdx.x, + THREADS, ...; -inf behind the last. */
template <int THREADS> struct route_logits {
	static constexpr int count = (MOE_MAX_EXPERTS + THREADS - 1) / THREADS;
	float v[count];
};

/* Softmax over all experts; an expert is chosen if fewer than top_k are likelier, or as likely and before it. shared_logit: of the shared expert's gate, for
 * thread 0. All THREADS threads of the block; the result is there when it returns. */
template <int THREADS> GPU_TEMPLATE void route_values(const moe_problem &p, route_logits<THREADS> logits, float shared_logit, moe_route *r)
{
	float max = -INFINITY, sum = 0, *v = logits.v;
	GPU_UNROLL for (int i = 0; i < logits.count; i++) max = fmaxf(max, v[i]);
	max = block_max<THREADS>(max, r->scratch);
	GPU_UNROLL for (int i = 0; i < logits.count; i++) {
		v[i] = (int)threadIdx.x + i * THREADS < p.experts ? expf(v[i] - max) : 0;
		sum += v[i];
	}
	sum = gpu_block_sum(sum, r->scratch);
	GPU_UNROLL for (int i = 0; i < logits.count; i++) {
		const int e = (int)threadIdx.x + i * THREADS;
		v[i] = v[i] / sum;
		if (e < p.experts) r->p[e] = v[i] == v[i] ? v[i] : 0;
	}
	gpu_sync();
	int share = 1; /* threads that compare for one expert */
	while (share < 8 && 2 * share * p.experts <= THREADS) share *= 2;
	for (int first = 0; first < p.experts; first += THREADS) {
		const int e = first + (int)threadIdx.x / share;
		int rank = e < p.experts ? rank_among(r->p, p.experts, e, (int)threadIdx.x % share, share) : 0;
		for (int mask = 1; mask < share; mask *= 2) rank += gpu_shfl_xor(rank, mask);
		if ((int)threadIdx.x % share == 0 && e < p.experts && rank < p.top_k) r->by_rank[rank] = e, r->p_by_rank[rank] = sum == sum ? r->p[e] : sum;
	}
	gpu_sync();
	if ((int)threadIdx.x < p.top_k) {
		const int e = r->by_rank[threadIdx.x];
		int at = 0;
		float total = 0;
		for (int i = 0; i < p.top_k; i++) total += r->p_by_rank[i], at += r->by_rank[i] < e;
		r->chosen[at] = e;
		r->weight[at] = p.norm_topk ? r->p_by_rank[threadIdx.x] / total : r->p_by_rank[threadIdx.x];
	}
	if (threadIdx.x == 0) r->weight[p.top_k] = p.shared ? 1.0f / (1.0f + expf(-shared_logit)) : 0;
	gpu_sync();
}

/* The same from the row's logits in memory, by ROUTE_THREADS threads. */
GPU_DEVICE void route_row(const moe_problem &p, int row, moe_route *r)
{
	const float *logits = p.logits + (int64_t)row * (p.experts + p.shared);
	route_logits<ROUTE_THREADS> own;
	GPU_UNROLL for (int i = 0; i < own.count; i++) {
		const int e = (int)threadIdx.x + i * ROUTE_THREADS;
		own.v[i] = e < p.experts ? logit_at(logits, e) : -INFINITY;
	}
	route_values<ROUTE_THREADS>(p, own, p.shared && threadIdx.x == 0 ? logit_at(logits, p.experts) : 0, r);
}

/* To memory, by the first threads. */
GPU_DEVICE void put_route(const moe_problem &p, int row, const moe_route *r)
{
	const int t = (int)threadIdx.x;
	if (t < p.top_k) p.chosen[row * p.top_k + t] = r->chosen[t];
	if (t <= p.top_k) p.weight[row * (p.top_k + 1) + t] = r->weight[t];
}

#endif
