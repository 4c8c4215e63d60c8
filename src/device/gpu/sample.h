/* sample.h: what the kernels of sample.cu and sample_resolve.cu share: their memory, the numbers, a histogram in shared memory. */
#ifndef TANDEM_DEVICE_GPU_SAMPLE_H
#define TANDEM_DEVICE_GPU_SAMPLE_H

#include <math.h>

#include "device/gpu/gpu.h"

struct sample_partial {
	float top, lowest; /* lowest: above -inf */
	int32_t best;
	int32_t bad; /* a NaN was seen */
};

/* Cells of a row's histogram that its questions will look into, as far as that is known before any has been looked into; first > last: none. The
 * tokens of these cells are gathered in a list. What the plan misses is found in the row itself. */
#define PLAN_RANGES 4
struct sample_plan {
	uint32_t first[PLAN_RANGES], last[PLAN_RANGES];
	uint32_t listed; /* tokens; where that is more than SAMPLE_BINS the list is not complete */
};

/* The scratch memory, R rows each. */
struct sample_memory {
	unsigned long long *mass;       /* [R][SAMPLE_BINS] */
	unsigned long long *list;       /* [R][SAMPLE_BINS] key << 32 | ~id */
	unsigned long long *log_sum;    /* [R] mass at temperature 1 */
	struct sample_plan *plan;       /* [R] */
	struct sample_partial *partial; /* [R][SAMPLE_MAX_SPLITS] */
	uint32_t *count;                /* [R][SAMPLE_BINS] */
};

/* What all blocks of a row know after the scan. */
struct sample_facts {
	float top;
	int32_t best; /* -1: nothing can be chosen */
	double inverse;     /* 1 / T */
	uint32_t floor_key; /* smallest key of a token that takes part */
	float scale;        /* cells per unit of logit */
};

#define SAMPLE_SHARED_BYTES (3 * SAMPLE_BINS * sizeof(uint32_t)) /* a histogram, or a list of SAMPLE_BINS tokens */

/* ---- numbers */

/* Unsigned order of keys = order of floats; both zeros have one key. */
GPU_DEVICE uint32_t key_of(float v)
{
	union {
		float f;
		uint32_t u;
	} x;
	x.f = v + 0.0f;
	return x.u & 0x80000000u ? ~x.u : x.u | 0x80000000u;
}
GPU_DEVICE float key_value(uint32_t key)
{
	return gpu_bits_to_f32(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

GPU_DEVICE uint64_t weight_of(float logit, float top, double inverse)
{
	const double x = ((double)logit - (double)top) * inverse;
	if (x < -31.2) return 0;
	return (uint64_t)(exp(x) * 0x1p44 + 0.5);
}

/* Which cell of the histogram, 0 for the best; never falls as the logit falls, and that is all that the search needs. */
GPU_DEVICE uint32_t cell_of(float logit, const struct sample_facts *f)
{
	return (uint32_t)fminf((f->top - logit) * f->scale, (float)(SAMPLE_BINS - 1));
}

/* 64-bit sum in two words of shared memory: devices without a 64-bit atomic there would loop. */
GPU_DEVICE void add_mass(uint32_t *low, uint32_t *high, uint64_t mass)
{
	const uint32_t part = (uint32_t)mass;
	uint32_t up = (uint32_t)(mass >> 32);
	if (part) {
		const uint32_t before = gpu_atomic_add(low, part);
		up += before + part < before;
	}
	if (up) gpu_atomic_add(high, up);
}

/* Elements i, i + blockDim, … of x[0, n); -inf behind the end, which takes part in nothing. */
template <int N> GPU_TEMPLATE void load_logits(float (&v)[N], const float *x, int i, int n)
{
	GPU_UNROLL for (int j = 0; j < N; j++) {
		const int at = i + j * (int)blockDim.x;
		v[j] = at < n ? x[at] : -INFINITY;
	}
}

GPU_DEVICE bool ranks_before(float a, int32_t a_id, float b, int32_t b_id)
{
	return a > b || (a == b && a_id < b_id);
}

GPU_DEVICE struct sample_partial better_partial(struct sample_partial a, struct sample_partial b)
{
	if (ranks_before(b.top, b.best, a.top, a.best)) a.top = b.top, a.best = b.best;
	a.lowest = fminf(a.lowest, b.lowest);
	a.bad |= b.bad;
	return a;
}
/* Of all lanes; every lane gets it. */
GPU_DEVICE struct sample_partial best_of_wave(struct sample_partial mine)
{
	for (int mask = GPU_WARP / 2; mask > 0; mask /= 2) {
		struct sample_partial other;
		other.top = gpu_shfl_xor(mine.top, mask);
		other.lowest = gpu_shfl_xor(mine.lowest, mask);
		other.best = gpu_shfl_xor(mine.best, mask);
		other.bad = gpu_shfl_xor(mine.bad, mask);
		mine = better_partial(mine, other);
	}
	return mine;
}

/* Each wave reads all partials of the row at once, a lane each. */
GPU_DEVICE struct sample_facts read_facts(const struct sample_partial *partial, int splits, const struct sample_row *p)
{
	static_assert(SAMPLE_MAX_SPLITS <= GPU_WARP, "a lane for each part of a row");
	const int lane = (int)threadIdx.x % GPU_WARP;
	struct sample_partial mine = {-INFINITY, INFINITY, INT32_MAX, 0};
	if (lane < splits) mine = partial[lane];
	mine = best_of_wave(mine);
	const float lowest = mine.lowest;
	struct sample_facts f = {mine.top, mine.best, 0, 0, 0};
	if (mine.bad || isinf(f.top)) f.best = -1;
	if (f.best < 0 || p->mode != SAMPLE_DRAW) return f;
	const double floor = (double)f.top - 70.0 * p->temperature;
	const float rounded = (float)floor;
	f.floor_key = key_of(rounded) + ((double)rounded < floor);
	f.inverse = 1.0 / p->temperature;
	const float range = fminf((float)(70.0 * p->temperature), f.top - lowest);
	f.scale = range > 1e-30f ? (float)SAMPLE_BINS / range : 0;
	return f;
}

/* ---- histogram in shared memory: three arrays of SAMPLE_BINS words */

struct shared_histogram {
	uint32_t *count, *low, *high;
};
GPU_DEVICE struct shared_histogram histogram_at(unsigned char *memory)
{
	struct shared_histogram h;
	h.count = (uint32_t *)memory;
	h.low = h.count + SAMPLE_BINS;
	h.high = h.low + SAMPLE_BINS;
	return h;
}
GPU_DEVICE void histogram_clear(struct shared_histogram h)
{
	for (int i = (int)threadIdx.x; i < SAMPLE_BINS; i += (int)blockDim.x) h.count[i] = h.low[i] = h.high[i] = 0;
	gpu_sync();
}
GPU_DEVICE void histogram_add(struct shared_histogram h, uint32_t cell, uint64_t mass)
{
	gpu_atomic_add(&h.count[cell], 1u);
	add_mass(&h.low[cell], &h.high[cell], mass);
}

/* The last two kernels (sample_resolve.cu). */
enum status gpu_sample_resolve(const struct gpu_context *ctx, const struct sample_args *args, int splits, struct sample_memory m, struct error *err);

#endif
