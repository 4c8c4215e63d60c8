/* sample.cu: one token per row, as engine/sampler.c chooses it, without sorting the vocabulary.
 *
 * Every step of the specification is a question to the distribution in the order (logit down, id up): where does the count reach k (top-k),
 * where does the mass reach p of the total (top-p), where does it pass the draw. Four kernels answer them:
 *   scan       blocks share a row: adjustments, the best, the lowest; clears the row's histogram
 *   histogram  blocks share a row: count and mass of 4096 cells of equal width between the best and the floor; log-sum for the log-probability
 *   gather     blocks share a row: which cells the questions will look into, and a list of the tokens in these
 *   resolve    a block per row: each question finds its cell in the histogram, takes that cell's tokens from the list, sorts them and finds the
 *              token. What is not in the list it reads from the row; a cell with more tokens than a list holds is divided by the bits of the
 *              logit until it fits or holds one value only.
 *
 * Masses are integers: weight exp((logit - best) / T) in units of 2^-44, the exponential in double. Integer sums do not depend on their order, so
 * the result is the same in every run. A weight is off by at most 2^-45 of rounding and a few 2^-53 of exp; with n tokens above the floor, a
 * boundary between two tokens is off by at most n * 2^-44 of the kept mass. Only a draw (or a top-p or min-p limit) that close to a boundary can
 * come out otherwise than on the host, whose own sums are in double.
 *
 * Weights below exp(-31.2) are 0 here and count for top-k alone; tokens below best - 70 T do not count at all, as on the host.
 */
#include "device/gpu/sample.h"

#define SPLIT_THREADS 512
#define UNROLL 8 /* loads of a thread in flight */

/* ---- scan */

GPU_DEVICE void adjust_range(float *x, int begin, int end, const struct sample_row *p, const struct sample_adjust *adjust)
{
	for (int i = (int)threadIdx.x; i < p->adjusts; i += (int)blockDim.x) {
		const struct sample_adjust a = adjust[p->first_adjust + i];
		if (a.token < begin || a.token >= end) continue;
		float v = x[a.token];
		if (a.change & SAMPLE_BIAS) v = gpu_add(v, a.bias);
		if (a.change & SAMPLE_SUBTRACT) v = gpu_add(v, -a.subtract);
		if (a.change & SAMPLE_REPETITION) v = v > 0 ? (float)((double)v / p->repetition) : (float)((double)v * p->repetition);
		if (a.change & SAMPLE_MASK) v = -INFINITY;
		x[a.token] = v;
	}
}

/* Block (s, r): the s-th range of row r. Reads and, where adjusted, writes it; leaves a partial and its share of the histogram cleared. */
GPU_KERNEL(SPLIT_THREADS)
sample_scan_kernel(float *logits, int64_t stride, int vocab, const struct sample_row *rows, const struct sample_adjust *adjust,
                   struct sample_memory m)
{
	GPU_SHARED(struct sample_partial, waves, 32);
	gpu_wait_previous();
	gpu_start_next();
	const int row = (int)blockIdx.y, split = (int)blockIdx.x, splits = (int)gridDim.x;
	const struct sample_row *p = &rows[row];
	if (p->mode == SAMPLE_SKIP) return;
	const int chunk = (vocab + splits - 1) / splits, begin = chunk * split, end = begin + chunk < vocab ? begin + chunk : vocab;
	float *x = logits + row * stride;
	adjust_range(x, begin, end, p, adjust);
	gpu_sync();
	struct sample_partial best = {-INFINITY, INFINITY, INT32_MAX, 0};
	for (int i = begin + (int)threadIdx.x; i < end; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, x, i, end);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) { /* ids rise: the first of equals stays */
			if (v[j] > best.top) best.top = v[j], best.best = i + j * (int)blockDim.x;
			if (v[j] > -INFINITY) best.lowest = fminf(best.lowest, v[j]);
			best.bad |= v[j] != v[j];
		}
	}
	best = best_of_wave(best);
	if (threadIdx.x % GPU_WARP == 0) waves[threadIdx.x / GPU_WARP] = best;
	gpu_sync();
	if (threadIdx.x == 0) {
		for (int w = 1; w < SPLIT_THREADS / GPU_WARP; w++) best = better_partial(best, waves[w]);
		m.partial[row * SAMPLE_MAX_SPLITS + split] = best;
		if (split == 0) {
			m.log_sum[row] = 0;
			m.plan[row].listed = 0;
		}
	}
	if (p->mode != SAMPLE_DRAW) return;
	for (int i = split * (int)blockDim.x + (int)threadIdx.x; i < SAMPLE_BINS; i += splits * (int)blockDim.x) {
		m.mass[row * SAMPLE_BINS + i] = 0;
		m.count[row * SAMPLE_BINS + i] = 0;
	}
}

/* Block (s, r) as above. Its histogram in 48 KiB of shared memory is added to the row's. */
GPU_KERNEL(SPLIT_THREADS)
sample_histogram_kernel(const float *logits, int64_t stride, int vocab, const struct sample_row *rows, struct sample_memory m)
{
	GPU_DYNAMIC_SHARED(memory);
	gpu_wait_previous();
	gpu_start_next();
	const int row = (int)blockIdx.y, split = (int)blockIdx.x, splits = (int)gridDim.x;
	const struct sample_row *p = &rows[row];
	const bool draws = p->mode == SAMPLE_DRAW, scores = p->want_logprob != 0;
	if (p->mode == SAMPLE_SKIP || (!draws && !scores)) return;
	const struct sample_facts f = read_facts(m.partial + row * SAMPLE_MAX_SPLITS, splits, p);
	if (f.best < 0) return;
	const struct shared_histogram h = histogram_at(memory);
	if (draws) histogram_clear(h);
	const int chunk = (vocab + splits - 1) / splits, begin = chunk * split, end = begin + chunk < vocab ? begin + chunk : vocab;
	const float *x = logits + row * stride;
	unsigned long long sum = 0;
	for (int i = begin + (int)threadIdx.x; i < end; i += UNROLL * (int)blockDim.x) {
		float v[UNROLL];
		load_logits(v, x, i, end);
		GPU_UNROLL for (int j = 0; j < UNROLL; j++) {
			if (scores) sum += weight_of(v[j], f.top, 1.0);
			if (draws && key_of(v[j]) >= f.floor_key) histogram_add(h, cell_of(v[j], &f), weight_of(v[j], f.top, f.inverse));
		}
	}
	if (scores) {
		for (int mask = GPU_WARP / 2; mask > 0; mask /= 2) sum += gpu_shfl_xor(sum, mask);
		if (threadIdx.x % GPU_WARP == 0) gpu_atomic_add(&m.log_sum[row], sum);
	}
	if (!draws) return;
	gpu_sync();
	for (int i = (int)threadIdx.x; i < SAMPLE_BINS; i += (int)blockDim.x) {
		if (!h.count[i]) continue;
		const unsigned long long mass = (unsigned long long)h.high[i] << 32 | h.low[i];
		gpu_atomic_add(&m.count[row * SAMPLE_BINS + i], h.count[i]);
		if (mass) gpu_atomic_add(&m.mass[row * SAMPLE_BINS + i], mass);
	}
}

/* ---- launcher */

static struct sample_memory sample_memory_at(void *scratch, int rows)
{
	struct sample_memory m;
	m.mass = (unsigned long long *)scratch;
	m.list = m.mass + (size_t)rows * SAMPLE_BINS;
	m.log_sum = m.list + (size_t)rows * SAMPLE_BINS;
	m.plan = (struct sample_plan *)(m.log_sum + rows);
	m.count = (uint32_t *)(m.plan + rows);
	m.partial = (struct sample_partial *)(m.count + (size_t)rows * SAMPLE_BINS);
	return m;
}

extern "C" enum status gpu_sample(struct stream *stream, const struct sample_args *args, struct error *err)
{
	const struct gpu_context *ctx = gpu_context(stream);
	const struct tensor *x = &args->logits;
	if (x->dtype != DTYPE_F32 || x->rows < 1 || x->rows > SAMPLE_MAX_ROWS || x->cols < 1 || x->cols > SAMPLE_MAX_COLS)
		return FAIL(err, BAD_INPUT, "sample: logits [%d,%d] of %s; up to %d rows of up to %d f32 are taken", x->rows, x->cols,
		            dtype_name(x->dtype), SAMPLE_MAX_ROWS, SAMPLE_MAX_COLS);
	TRY(tensor_expect(x, TENSOR_REPLICATED, "sample: logits", err));
	int splits = (2 * ctx->props.multiprocessors + x->rows - 1) / x->rows;
	const int useful = (x->cols + UNROLL * SPLIT_THREADS - 1) / (UNROLL * SPLIT_THREADS);
	if (splits > useful) splits = useful;
	if (splits > SAMPLE_MAX_SPLITS) splits = SAMPLE_MAX_SPLITS;
	const struct sample_memory m = sample_memory_at(args->scratch, x->rows);
	const dim3 grid((unsigned)splits, (unsigned)x->rows);
	float *logits = (float *)x->data;
	TRY(gpu_check(gpu_allow_shared(sample_histogram_kernel, SAMPLE_SHARED_BYTES), "sample: shared memory", err));
	TRY(gpu_check(GPU_LAUNCH(sample_scan_kernel, grid, dim3(SPLIT_THREADS), 0, ctx->stream, logits, x->row_stride, x->cols, args->row,
	                         args->adjust, m),
	              "sample: scan", err));
	TRY(gpu_check(GPU_LAUNCH(sample_histogram_kernel, grid, dim3(SPLIT_THREADS), SAMPLE_SHARED_BYTES, ctx->stream, logits, x->row_stride, x->cols, args->row, m),
	              "sample: histogram", err));
	return gpu_sample_resolve(ctx, args, splits, m, err);
}
