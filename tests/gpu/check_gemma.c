/* check_gemma.c: geglu, norm_add, softcap. u is 2^-24, U the unit of the result's type. */
#include <math.h>
#include <string.h>

#include "gpu/harness.h"

static const double u = 0x1.01p-24;

/* Fills whose results in f32 and in double are the same but for rounding. */
static const enum fill tame[] = {FILL_RANDOM, FILL_ZERO, FILL_DENORMAL, FILL_SPECIAL};
enum { TAME = sizeof tame / sizeof *tame };

/* --- geglu: g / (1 + exp(-v)) up, v = 2 sqrt(2 / pi) (g + 0.044715 g^3). v errs by 4 u of itself, so the exponential by |v| times that, which counts as far
 * as it is not small beside 1; then as swiglu. */

static void geglu_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int n, int stride, double scale)
{
	gpu_case(c, dtype, fill, "T=%d I=%d stride %d scale %g", rows, n, stride, scale);
	const size_t count = (size_t)(rows - 1) * (size_t)stride + (size_t)(2 * n), all = (size_t)rows * (size_t)n;
	char *host = gpu_filled(c, dtype, count, 1);
	for (size_t i = 0; i < count; i++) set_element(host, dtype, i, element(host, dtype, i) * scale);
	struct tensor x = tensor_view(gpu_put(c, host, count * dtype_bytes(dtype)), dtype, TENSOR_SHARDED, rows, 2 * n);
	x.row_stride = stride;
	struct tensor out = gpu_output(c, dtype, TENSOR_SHARDED, rows, n, stride - n);
	double *want = gpu_host(c, all * 8), *bound = gpu_host(c, all * 8);
	for (size_t i = 0; i < all; i++) {
		const size_t at = i / (size_t)n * (size_t)stride + i % (size_t)n;
		const double g = element(host, dtype, at), up = element(host, dtype, at + (size_t)n), v = 2 * sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g);
		want[i] = g / (1 + exp(-v)) * up;
		if (isinf(up) && v < -88) want[i] = NAN; /* in f32 exp(-v) is infinite long before it is in double */
		bound[i] = fabs(want[i]) * ((8 + 5 * fmin(fabs(v), 100) / (1 + exp(v))) * u + gpu_unit(dtype));
	}
	GPU_RUN(c, geglu, {.x = x, .out = out});
	gpu_compare(c, "out", &out, want, bound, 1, gpu_tiny(dtype) + 0x1p-112 * scale);
	gpu_case_end(c);
}

void gpu_check_geglu(struct gpu_check *c)
{
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(dtype)
		{
			geglu_case(c, tame[f], dtype, 1, 1, 2, 1);
			geglu_case(c, tame[f], dtype, 3, 17, 37, 4);
			geglu_case(c, tame[f], dtype, 2, 1000, 2000, 20);
			geglu_case(c, tame[f], dtype, 2, 64, 144, 3);
			if (!c->quick) geglu_case(c, tame[f], dtype, 300, 2048, 4096, 3);
			if (!c->quick) geglu_case(c, tame[f], dtype, 1, 21504, 43008, 3);
		}
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	const struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_SHARDED, 2, 8, 8), out = gpu_output(c, DTYPE_F32, TENSOR_SHARDED, 2, 5, 5);
	GPU_REFUSED(c, geglu, BAD_INPUT, {.x = x, .out = out});
	gpu_case_end(c);
}

/* --- norm_add: the norm's bound (check_rows.c) and one addition; then the next norm's, of rows that err so */

struct norm_add_case {
	int rows, n, stride;
	enum dtype h; /* of the next norm's rows */
	bool next;
};

/* One row: x becomes what is wanted of it; h. Bounds of both. */
static void norm_add_oracle(const struct norm_add_case *nc, double *x, const float *y, const float *weight, const float *next, double eps, double *x_bound,
                            double *h, double *h_bound)
{
	const int n = nc->n;
	const double norm_rel = (n / 512.0 + 40) * u;
	double sum = 0, errors = 0;
	for (int i = 0; i < n; i++) sum += (double)y[i] * (double)y[i];
	const double r = 1 / sqrt(sum / n + eps);
	sum = 0;
	for (int i = 0; i < n; i++) {
		const double normed = (double)y[i] * r * (double)weight[i];
		x[i] += normed;
		x_bound[i] = norm_rel * fabs(normed) + 2 * u * fabs(x[i]);
		sum += x[i] * x[i], errors += x_bound[i] * x_bound[i];
	}
	const double second = 1 / sqrt(sum / n + eps), moved = isfinite(sum) && sum > 0 ? sqrt(errors / sum) : 0;
	for (int i = 0; i < n; i++) {
		h[i] = x[i] * second * (double)next[i];
		h_bound[i] = fabs(second * (double)next[i]) * x_bound[i] + fabs(h[i]) * (norm_rel + moved + gpu_unit(nc->h));
	}
}

static void norm_add_case(struct gpu_check *c, enum fill fill, const struct norm_add_case *nc)
{
	gpu_case(c, nc->h, fill, "T=%d H=%d stride %d%s", nc->rows, nc->n, nc->stride, nc->next ? " and the next norm" : "");
	void *x_host, *y_host;
	const float eps = 1e-6f;
	const size_t n = (size_t)nc->n, all = (size_t)nc->rows * n;
	const struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, nc->rows, nc->n, nc->stride, 1, &x_host);
	const struct tensor y = gpu_input(c, DTYPE_F32, TENSOR_REPLICATED, nc->rows, nc->n, nc->n, 2, &y_host);
	const struct tensor h = gpu_output(c, nc->h, TENSOR_REPLICATED, nc->rows, nc->n, nc->stride);
	const float *weight = gpu_filled(c, DTYPE_F32, n, 3), *next = gpu_filled(c, DTYPE_F32, n, 4);
	double *want = gpu_host(c, all * 8), *bound = gpu_host(c, all * 8), *h_want = gpu_host(c, all * 8), *h_bound = gpu_host(c, all * 8);
	for (size_t t = 0; t < (size_t)nc->rows; t++) {
		for (size_t i = 0; i < n; i++) want[t * n + i] = (double)((float *)x_host)[t * (size_t)nc->stride + i];
		norm_add_oracle(nc, want + t * n, (float *)y_host + t * n, weight, next, (double)eps, bound + t * n, h_want + t * n, h_bound + t * n);
	}
	for (size_t i = 0; i < all && !nc->next; i++) h_want[i] = NAN; /* the poison, which nothing may overwrite */
	GPU_RUN(c, norm_add, {.x = x, .y = y, .weight = gpu_put(c, weight, n * 4), .eps = eps, .next = nc->next ? gpu_put(c, next, n * 4) : NULL, .h = h});
	gpu_compare(c, "x", &x, want, bound, 1, 0x1p-140);
	gpu_compare(c, "h", &h, h_want, h_bound, 1, gpu_tiny(nc->h) + 0x1p-130);
	gpu_case_end(c);
}

void gpu_check_norm_add(struct gpu_check *c)
{
	static const int sizes[][3] = {{1, 1, 1}, {1, 7, 9}, {3, 64, 64}, {2, 100, 101}, {2, 640, 648}, {5, 768, 800}, {1, 5376, 5376}};
	static const int large[][3] = {{3, 8192, 8192}, {2, 16384, 16384}, {2, 16392, 16400}, {300, 3840, 3848}};
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(h)
			for (int next = 0; next <= 1; next++) {
				for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
					norm_add_case(c, tame[f], &(struct norm_add_case){sizes[i][0], sizes[i][1], sizes[i][2], h, next == 1});
				for (size_t i = 0; !c->quick && i < sizeof large / sizeof *large; i++)
					norm_add_case(c, tame[f], &(struct norm_add_case){large[i][0], large[i][1], large[i][2], h, next == 1});
			}
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	const struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_REPLICATED, 2, 8, 8);
	struct tensor partial = x, narrow = x, half = x;
	partial.dist = TENSOR_PARTIAL, narrow.cols = 7, half.dtype = DTYPE_BF16;
	float *weight = gpu_room(c, 32);
	GPU_REFUSED(c, norm_add, BAD_INPUT, {.x = x, .y = partial, .weight = weight});
	GPU_REFUSED(c, norm_add, BAD_INPUT, {.x = x, .y = x, .weight = weight, .next = weight, .h = narrow});
	GPU_REFUSED(c, norm_add, UNSUPPORTED, {.x = x, .y = half, .weight = weight});
	gpu_case_end(c);
}

/* --- softcap: an error of tanh's value, 2^-21; of the quotient and the products 4 u */

static void softcap_case(struct gpu_check *c, enum fill fill, int rows, int n, int stride, double scale, float cap)
{
	gpu_case(c, DTYPE_F32, fill, "[%d,%d] stride %d scale %g cap %g", rows, n, stride, scale, (double)cap);
	const size_t count = (size_t)rows * (size_t)stride, all = (size_t)rows * (size_t)n;
	float *host = gpu_filled(c, DTYPE_F32, count, 1);
	for (size_t i = 0; i < count; i++) host[i] *= (float)scale;
	struct tensor x = tensor_view(gpu_put(c, host, count * 4), DTYPE_F32, TENSOR_SHARDED, rows, n);
	x.row_stride = stride;
	double *want = gpu_host(c, all * 8);
	for (size_t i = 0; i < all; i++) want[i] = (double)cap * tanh((double)host[i / (size_t)n * (size_t)stride + i % (size_t)n] / (double)cap);
	GPU_RUN(c, softcap, {.x = x, .cap = cap});
	gpu_compare(c, "x", &x, want, NULL, 4 * u, 0x1p-21 * (double)cap);
	gpu_case_end(c);
}

void gpu_check_softcap(struct gpu_check *c)
{
	for (int f = 0; f < TAME; f++) {
		softcap_case(c, tame[f], 1, 1, 1, 1, 30);
		softcap_case(c, tame[f], 3, 17, 20, 20, 30);
		softcap_case(c, tame[f], 2, 1000, 1000, 200, 50);
		softcap_case(c, tame[f], 5, 4099, 4104, 0.01, 5);
		softcap_case(c, tame[f], 3, 4096, 8192, 60, 30);
		if (!c->quick) softcap_case(c, tame[f], 16, 262144, 262144, 60, 30);
	}
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	const struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_SHARDED, 2, 8, 8), half = gpu_output(c, DTYPE_BF16, TENSOR_SHARDED, 2, 8, 8);
	GPU_REFUSED(c, softcap, BAD_INPUT, {.x = x, .cap = 0});
	GPU_REFUSED(c, softcap, BAD_INPUT, {.x = half, .cap = 30});
	gpu_case_end(c);
}

/* --- bench: the rows of Gemma-3-27B */

struct norm_add_bench {
	int n, rows, cols;
	size_t each; /* elements of a buffer of rows */
	float *x, *y, *weight;
	char *h;
};

static void norm_add_once(struct gpu_check *c, void *context, int i)
{
	const struct norm_add_bench *b = context;
	const size_t from = (size_t)(i % b->n) * b->each;
	GPU_RUN(c, norm_add, {.x = tensor_view(b->x + from, DTYPE_F32, TENSOR_REPLICATED, b->rows, b->cols),
	                      .y = tensor_view(b->y + from, DTYPE_F32, TENSOR_REPLICATED, b->rows, b->cols), .weight = b->weight, .next = b->weight, .eps = 1e-6f,
	                      .h = tensor_view(b->h + from * 2, DTYPE_BF16, TENSOR_REPLICATED, b->rows, b->cols)});
}

void gpu_bench_norm_add(struct gpu_check *c)
{
	static const int rows_of[] = {1, 16, 64, 8192};
	enum { H = 5376 };
	for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
		const int rows = rows_of[i];
		gpu_case(c, DTYPE_BF16, FILL_RANDOM, "T=%d H=%d and the next norm", rows, H);
		struct norm_add_bench b = {.rows = rows, .cols = H, .each = (size_t)rows * H};
		b.n = gpu_bench_rotation(c, 10 * b.each);
		b.x = gpu_random_room(c, DTYPE_F32, (size_t)b.n * b.each, 1);
		b.y = gpu_random_room(c, DTYPE_F32, (size_t)b.n * b.each, 1);
		b.h = gpu_random_room(c, DTYPE_BF16, (size_t)b.n * b.each, 1);
		b.weight = gpu_random_room(c, DTYPE_F32, H, 1);
		gpu_bench_report(c, gpu_bench(c, norm_add_once, &b, rows > 512 ? 20 : 200), 14.0 * rows * H, 0);
		gpu_case_end(c);
	}
}
