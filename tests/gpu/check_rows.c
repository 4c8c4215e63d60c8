/* check_rows.c: embed, rms_norm, head_norm, swiglu, tree_sum, gather_rows. u is 2^-24, U the unit of the result's type. */
#include <math.h>
#include <string.h>

#include "base/sumtree.h"
#include "gpu/harness.h"

static const double u = 0x1.01p-24;

/* Fills whose results in f32 and in double are the same but for rounding. */
static const enum fill tame[] = {FILL_RANDOM, FILL_ZERO, FILL_DENORMAL, FILL_SPECIAL};
enum { TAME = sizeof tame / sizeof *tame };

static size_t at(int row, int col, int cols)
{
	return (size_t)row * (size_t)cols + (size_t)col;
}

/* --- embed: exact where the output is no narrower than the table, but for the scale */

static void embed_case(struct gpu_check *c, enum fill fill, enum dtype table, enum dtype out, int rows, int n, int k, int stride, float scale)
{
	gpu_case(c, out, fill, "T=%d V=%d H=%d stride %d table %s scale %g", rows, n, k, stride, dtype_name(table), (double)scale);
	void *host;
	struct linear_weight w = gpu_weight(c, table, n, k, 1, &host);
	int32_t *token = gpu_host(c, (size_t)rows * 4);
	double *want = gpu_host(c, (size_t)rows * (size_t)k * 8);
	for (int t = 0; t < rows; t++) {
		token[t] = t == 1 ? n - 1 : t * 7919 % n;
		for (int i = 0; i < k; i++) want[at(t, i, k)] = element(host, table, at(token[t], i, k)) * (scale != 0 ? (double)scale : 1);
	}
	struct tensor x = gpu_output(c, out, TENSOR_REPLICATED, rows, k, stride);
	GPU_RUN(c, embed, {.table = &w, .token = gpu_put(c, token, (size_t)rows * 4), .scale = scale, .out = x});
	const bool exact = scale == 0 && (out == DTYPE_F32 || out == table);
	gpu_compare(c, "out", &x, want, NULL, exact ? 0 : gpu_unit(out) + u, exact ? 0 : gpu_tiny(out));
	gpu_case_end(c);
}

/* From rows [begin, begin + part) of the table into two slots: the others' tokens and the second slot are the zeros that change nothing. */
static void embed_part_case(struct gpu_check *c, enum dtype dtype, int rows, int n, int begin, int part, int k, int stride)
{
	gpu_case(c, dtype, FILL_RANDOM, "T=%d V=%d of %d from %d H=%d stride %d", rows, part, n, begin, k, stride);
	void *host;
	struct linear_weight w = gpu_weight(c, dtype, n, k, 1, &host), some = linear_view(c->ops, &w, begin, part);
	const size_t unit = dtype_bytes(dtype), line = (size_t)k * unit;
	int32_t *token = gpu_host(c, (size_t)rows * 4);
	char *want = gpu_host(c, 2 * (size_t)rows * line);
	for (size_t i = 0; i < 2 * (size_t)rows * line; i++) want[i] = i % unit == unit - 1 ? (char)0x80 : 0; /* -0.0 */
	for (int t = 0; t < rows; t++) {
		token[t] = t * 7919 % n;
		if (token[t] >= begin && token[t] < begin + part) memcpy(want + (size_t)t * line, (const char *)host + (size_t)token[t] * line, line);
	}
	struct tensor both = gpu_output(c, dtype, TENSOR_PARTIAL, 2 * rows, k, stride), out = both;
	out.rows = rows, out.slots = 2, out.slot_stride = (int64_t)rows * stride;
	GPU_RUN(c, embed, {.table = &some, .begin = begin, .token = gpu_put(c, token, (size_t)rows * 4), .out = out});
	gpu_compare_exact(c, "out", &both, want);
	gpu_case_end(c);
}

void gpu_check_embed(struct gpu_check *c)
{
	GPU_EACH_DTYPE(table)
	GPU_EACH_DTYPE(out)
	{
		embed_case(c, FILL_SPECIAL, table, out, 1, 3, 7, 7, 0);
		embed_case(c, FILL_SPECIAL, table, out, 5, 11, 64, 72, 0);
		embed_case(c, FILL_SPECIAL, table, out, 5, 11, 64, 72, 73.5f);
		embed_case(c, FILL_DENORMAL, table, out, 3, 40, 33, 35, 0);
		embed_case(c, FILL_DENORMAL, table, out, 3, 40, 33, 35, 8);
		if (!c->quick) embed_case(c, FILL_RANDOM, table, out, 130, 500, 4096, 4096, 62);
	}
	GPU_EACH_DTYPE(dtype)
	{
		embed_part_case(c, dtype, 5, 11, 4, 3, 64, 72);
		embed_part_case(c, dtype, 9, 12, 0, 5, 33, 35);
		embed_part_case(c, dtype, 3, 12, 12, 0, 8, 8);
	}
}

/* --- rms_norm. Sum of squares in chains of n/512 + 24 and a tree of 10; root, quotient, two products: (n/512 + 40) u, and U. */

static void norm_oracle(const void *x, enum dtype dtype, size_t from, const float *weight, int n, double eps, double *want)
{
	double sum = 0;
	for (int i = 0; i < n; i++) sum += element(x, dtype, from + (size_t)i) * element(x, dtype, from + (size_t)i);
	for (int i = 0; i < n; i++) want[i] = element(x, dtype, from + (size_t)i) * (1 / sqrt(sum / n + eps)) * (double)weight[i];
}

static void rms_norm_case(struct gpu_check *c, enum fill fill, enum dtype from, enum dtype to, int rows, int n, int stride)
{
	gpu_case(c, to, fill, "T=%d H=%d stride %d from %s", rows, n, stride, dtype_name(from));
	void *x_host;
	const float eps = 1e-6f;
	struct tensor x = gpu_input(c, from, TENSOR_REPLICATED, rows, n, stride, 1, &x_host), out = gpu_output(c, to, TENSOR_REPLICATED, rows, n, stride + 8);
	float *weight = gpu_filled(c, DTYPE_F32, (size_t)n, 2);
	const float *w = gpu_put(c, weight, (size_t)n * 4);
	double *want = gpu_host(c, (size_t)rows * (size_t)n * 8);
	for (int t = 0; t < rows; t++) norm_oracle(x_host, from, at(t, 0, stride), weight, n, (double)eps, want + at(t, 0, n));
	GPU_RUN(c, rms_norm, {.x = x, .weight = w, .eps = eps, .out = out});
	gpu_compare(c, "out", &out, want, NULL, (n / 512.0 + 40) * u + gpu_unit(to), gpu_tiny(to));
	if (from == to) {
		GPU_RUN(c, rms_norm, {.x = x, .weight = w, .eps = eps, .out = x});
		gpu_compare(c, "in place", &x, want, NULL, (n / 512.0 + 40) * u + gpu_unit(to), gpu_tiny(to));
	}
	gpu_case_end(c);
}

void gpu_check_rms_norm(struct gpu_check *c)
{
	static const int sizes[][3] = {{1, 1, 1}, {1, 7, 9}, {3, 64, 64}, {2, 100, 101}, {5, 768, 800}, {1, 4096, 4096}, {2, 5120, 5120}};
	static const int large[][3] = {{3, 8192, 8192}, {2, 16384, 16384}, {2, 16392, 16400}, {1, 20000, 20000}, {300, 4096, 4104}};
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(to)
		{
			for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
				rms_norm_case(c, tame[f], DTYPE_F32, to, sizes[i][0], sizes[i][1], sizes[i][2]);
				if (to != DTYPE_F32) rms_norm_case(c, tame[f], to, to, sizes[i][0], sizes[i][1], sizes[i][2]);
			}
			for (size_t i = 0; !c->quick && i < sizeof large / sizeof *large; i++) rms_norm_case(c, tame[f], DTYPE_F32, to, large[i][0], large[i][1], large[i][2]);
		}
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_REPLICATED, 2, 8, 8), partial = x, narrow = x;
	partial.dist = TENSOR_PARTIAL;
	narrow.cols = 7;
	GPU_REFUSED(c, rms_norm, BAD_INPUT, {.x = partial, .out = x});
	GPU_REFUSED(c, rms_norm, BAD_INPUT, {.x = x, .out = narrow});
	gpu_case_end(c);
}

/* --- head_norm: chains of at most 8, a tree of 6: 32 u, and U */

static void head_norm_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int heads, int dim)
{
	gpu_case(c, dtype, fill, "T=%d heads=%d D=%d", rows, heads, dim);
	int cols = heads * dim, stride = cols + 24;
	void *host;
	struct tensor x = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, stride, 1, &host);
	float *weight = gpu_filled(c, DTYPE_F32, (size_t)dim, 2);
	double *want = gpu_host(c, (size_t)rows * (size_t)cols * 8);
	for (int t = 0; t < rows; t++)
		for (int h = 0; h < heads; h++) norm_oracle(host, dtype, at(t, h * dim, stride), weight, dim, 1e-5, want + at(t, h * dim, cols));
	GPU_RUN(c, head_norm, {.x = x, .heads = heads, .head_dim = dim, .weight = gpu_put(c, weight, (size_t)dim * 4), .eps = 1e-5f});
	gpu_compare(c, "x", &x, want, NULL, 32 * u + gpu_unit(dtype) + 1e-5 * 0x1p-23, gpu_tiny(dtype));
	gpu_case_end(c);
}

void gpu_check_head_norm(struct gpu_check *c)
{
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(dtype)
		{
			head_norm_case(c, tame[f], dtype, 1, 1, 8);
			head_norm_case(c, tame[f], dtype, 3, 5, 40);
			head_norm_case(c, tame[f], dtype, 2, 3, 256);
			head_norm_case(c, tame[f], dtype, c->quick ? 2 : 33, 16, 128);
		}
}

/* --- swiglu. exp 2 u (or 4 on a device), 1 + e, quotient, product: 8 u, and U; where exp(-g) overflows the exact result is below 2^-120 |u|. */

static void swiglu_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int n, int stride, double scale)
{
	gpu_case(c, dtype, fill, "T=%d I=%d stride %d scale %g", rows, n, stride, scale);
	size_t count = (size_t)(rows - 1) * (size_t)stride + (size_t)(2 * n);
	char *host = gpu_filled(c, dtype, count, 1);
	for (size_t i = 0; i < count; i++) set_element(host, dtype, i, element(host, dtype, i) * scale);
	struct tensor x = tensor_view(gpu_put(c, host, count * dtype_bytes(dtype)), dtype, TENSOR_SHARDED, rows, 2 * n);
	x.row_stride = stride;
	struct tensor out = gpu_output(c, dtype, TENSOR_SHARDED, rows, n, stride - n);
	double *want = gpu_host(c, (size_t)rows * (size_t)n * 8);
	for (int t = 0; t < rows; t++)
		for (int i = 0; i < n; i++) {
			double g = element(host, dtype, at(t, i, stride)), up = element(host, dtype, at(t, n + i, stride));
			want[at(t, i, n)] = g / (1 + exp(-g)) * up;
			/* in f32 exp(-g) is infinite long before it is in double */
			if (isinf(up) && g < -88) want[at(t, i, n)] = NAN;
		}
	GPU_RUN(c, swiglu, {.x = x, .out = out});
	gpu_compare(c, "out", &out, want, NULL, 8 * u + gpu_unit(dtype), gpu_tiny(dtype) + 0x1p-112 * scale);
	gpu_case_end(c);
}

void gpu_check_swiglu(struct gpu_check *c)
{
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(dtype)
		{
			swiglu_case(c, tame[f], dtype, 1, 1, 2, 1);
			swiglu_case(c, tame[f], dtype, 3, 17, 37, 10);
			swiglu_case(c, tame[f], dtype, 2, 1000, 2000, 100);
			swiglu_case(c, tame[f], dtype, 2, 64, 144, 8);
			if (!c->quick) swiglu_case(c, tame[f], dtype, 300, 2048, 4096, 8);
			if (!c->quick) swiglu_case(c, tame[f], dtype, 1, 14336, 28672, 8);
		}
}

/* --- tree_sum: every value passes at most depth + 2 additions: 26 u of the sum of magnitudes, and U of it */

struct tree_case {
	int sources, rows, cols, begin, end;
	bool residual, bias;
};

static void tree_sum_case(struct gpu_check *c, enum fill fill, enum dtype from, enum dtype to, const struct tree_case *tc)
{
	gpu_case(c, to, fill, "%d sources of %s T=%d H=%d rows %d..%d%s%s", tc->sources, dtype_name(from), tc->rows, tc->cols, tc->begin, tc->end,
	         tc->residual ? " residual" : "", tc->bias ? " bias" : "");
	size_t dense = (size_t)tc->rows * (size_t)tc->cols;
	int stride = tc->cols + 5;
	void *residual_host, *source_host[TREE_SUM_MAX_SOURCES];
	struct tensor residual = gpu_input(c, to, TENSOR_REPLICATED, tc->rows, tc->cols, stride, 900, &residual_host);
	float *bias = gpu_filled(c, DTYPE_F32, (size_t)tc->cols, 901);
	struct tree_sum_args args = {.sources = tc->sources, .source_dtype = from, .row_begin = tc->begin, .row_end = tc->end};
	for (int s = 0; s < tc->sources; s++) {
		source_host[s] = gpu_filled(c, from, dense, (uint64_t)s);
		args.source[s] = gpu_put(c, source_host[s], dense * dtype_bytes(from));
	}
	sumtree_leaf_program(tc->sources, (struct sum_span){0, (int16_t)tc->sources}, args.merges);
	if (tc->residual) args.residual = residual;
	if (tc->bias) args.bias = gpu_put(c, bias, (size_t)tc->cols * 4);
	args.out = gpu_output(c, to, TENSOR_REPLICATED, tc->rows, tc->cols, stride);
	double *want = gpu_host(c, dense * 8), *size = gpu_host(c, dense * 8);
	for (int t = 0; t < tc->rows; t++)
		for (int i = 0; i < tc->cols; i++) {
			size_t here = at(t, i, tc->cols);
			double sum = tc->bias ? (double)bias[i] : 0, magnitude = fabs(sum);
			for (int s = 0; s < tc->sources; s++) sum += element(source_host[s], from, here), magnitude += fabs(element(source_host[s], from, here));
			if (tc->residual) sum += element(residual_host, to, at(t, i, stride)), magnitude += fabs(element(residual_host, to, at(t, i, stride)));
			bool ours = t >= tc->begin && t < tc->end;
			want[here] = ours ? sum : NAN; /* others' rows keep the poison, which is NaN */
			size[here] = magnitude;
		}
	gpu_ok(c, OP(c->stream, tree_sum, &args, &c->err));
	gpu_compare(c, "out", &args.out, want, size, 26 * u + gpu_unit(to), gpu_tiny(to));
	gpu_case_end(c);
}

void gpu_check_tree_sum(struct gpu_check *c)
{
	static const struct tree_case cases[] = {
		{1, 1, 1, 0, 1, false, false}, {2, 3, 17, 0, 3, true, false},  {3, 5, 100, 1, 4, true, true},  {7, 2, 33, 0, 2, false, true},
		{8, 9, 512, 1, 7, true, false}, {24, 2, 65, 0, 1, true, true}, {128, 1, 48, 0, 1, true, false}, {4, 3, 31, 2, 2, false, false},
	};
	for (int f = 0; f < TAME; f++)
		GPU_EACH_DTYPE(to)
		GPU_EACH_DTYPE(from)
			for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) tree_sum_case(c, tame[f], from, to, &cases[i]);
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	struct tensor x = gpu_output(c, DTYPE_F32, TENSOR_REPLICATED, 2, 8, 8);
	GPU_REFUSED(c, tree_sum, BAD_INPUT, {.sources = 2, .source = {x.data, x.data}, .merges = {0, 0}, .row_end = 2, .out = x});
	GPU_REFUSED(c, tree_sum, BAD_INPUT, {.sources = 1, .source = {x.data}, .row_end = 3, .out = x});
	gpu_case_end(c);
}

/* --- gather_rows: exact */

static void gather_case(struct gpu_check *c, enum fill fill, enum dtype dtype, int rows, int from_rows, int cols, int stride)
{
	gpu_case(c, dtype, fill, "%d of %d rows of %d, stride %d", rows, from_rows, cols, stride);
	void *host;
	struct tensor x = gpu_input(c, dtype, TENSOR_REPLICATED, from_rows, cols, stride, 1, &host), out = gpu_output(c, dtype, TENSOR_REPLICATED, rows, cols, stride + 8);
	int32_t *row = gpu_host(c, (size_t)rows * 4);
	size_t unit = dtype_bytes(dtype), line = (size_t)cols * unit;
	char *want = gpu_host(c, (size_t)rows * line);
	for (int i = 0; i < rows; i++) {
		row[i] = (i * 13 + from_rows - 1) % from_rows;
		memcpy(want + (size_t)i * line, (char *)host + (size_t)row[i] * (size_t)stride * unit, line);
	}
	GPU_RUN(c, gather_rows, {.x = x, .row = gpu_put(c, row, (size_t)rows * 4), .out = out});
	gpu_compare_exact(c, "out", &out, want);
	gpu_case_end(c);
}

void gpu_check_gather_rows(struct gpu_check *c)
{
	GPU_EACH_FILL(fill)
	GPU_EACH_DTYPE(dtype)
	{
		gather_case(c, fill, dtype, 1, 1, 1, 1);
		gather_case(c, fill, dtype, 5, 3, 33, 37);
		gather_case(c, fill, dtype, 3, 7, 4096, 4096);
	}
}

/* --- bench */

struct rows_bench {
	int n;        /* buffers to rotate among */
	size_t bytes; /* of one of x, and of one of out */
	char *x, *out;
	float *weight;
	int rows, cols;
	enum dtype from, to;
};

static struct rows_bench bench_make(struct gpu_check *c, enum dtype from, enum dtype to, int rows, int cols_in, int cols_out)
{
	struct rows_bench b = {.rows = rows, .cols = cols_out, .from = from, .to = to};
	size_t in = (size_t)rows * (size_t)cols_in * dtype_bytes(from), out = (size_t)rows * (size_t)cols_out * dtype_bytes(to);
	b.bytes = ((in > out ? in : out) + 255) / 256 * 256;
	b.n = gpu_bench_rotation(c, 2 * b.bytes);
	b.x = gpu_random_room(c, from, (size_t)b.n * b.bytes / dtype_bytes(from), 1);
	b.out = gpu_random_room(c, to, (size_t)b.n * b.bytes / dtype_bytes(to), 1);
	b.weight = gpu_random_room(c, DTYPE_F32, (size_t)cols_in, 1);
	return b;
}

static struct tensor bench_x(const struct rows_bench *b, int i, enum tensor_dist dist, int cols)
{
	return tensor_view(b->x + (size_t)(i % b->n) * b->bytes, b->from, dist, b->rows, cols);
}
static struct tensor bench_out(const struct rows_bench *b, int i, enum tensor_dist dist)
{
	return tensor_view(b->out + (size_t)(i % b->n) * b->bytes, b->to, dist, b->rows, b->cols);
}

static void rms_norm_once(struct gpu_check *c, void *context, int i)
{
	struct rows_bench *b = context;
	GPU_RUN(c, rms_norm, {.x = bench_x(b, i, TENSOR_REPLICATED, b->cols), .weight = b->weight, .eps = 1e-5f, .out = bench_out(b, i, TENSOR_REPLICATED)});
}

void gpu_bench_rms_norm(struct gpu_check *c)
{
	static const int shapes[][2] = {{1, 4096}, {16, 4096}, {64, 8192}, {1024, 4096}, {8192, 4096}, {8192, 5120}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		int rows = shapes[i][0], n = shapes[i][1];
		gpu_case(c, DTYPE_BF16, FILL_RANDOM, "T=%d H=%d from F32", rows, n);
		struct rows_bench b = bench_make(c, DTYPE_F32, DTYPE_BF16, rows, n, n);
		gpu_bench_report(c, gpu_bench(c, rms_norm_once, &b, rows > 512 ? 20 : 200), 6.0 * rows * n, 0);
		gpu_case_end(c);
	}
}

static void swiglu_once(struct gpu_check *c, void *context, int i)
{
	struct rows_bench *b = context;
	GPU_RUN(c, swiglu, {.x = bench_x(b, i, TENSOR_SHARDED, 2 * b->cols), .out = bench_out(b, i, TENSOR_SHARDED)});
}

void gpu_bench_swiglu(struct gpu_check *c)
{
	static const int shapes[][2] = {{1, 14336}, {16, 14336}, {64, 7168}, {1024, 14336}, {8192, 14336}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		int rows = shapes[i][0], n = shapes[i][1];
		gpu_case(c, DTYPE_BF16, FILL_RANDOM, "T=%d I=%d", rows, n);
		struct rows_bench b = bench_make(c, DTYPE_BF16, DTYPE_BF16, rows, 2 * n, n);
		gpu_bench_report(c, gpu_bench(c, swiglu_once, &b, rows > 512 ? 10 : 200), 6.0 * rows * n, 0);
		gpu_case_end(c);
	}
}

static void tree_sum_once(struct gpu_check *c, void *context, int i)
{
	struct rows_bench *b = context;
	const char *x = bench_x(b, i, TENSOR_REPLICATED, b->cols).data;
	struct tensor out = bench_out(b, i, TENSOR_REPLICATED);
	GPU_RUN(c, tree_sum, {.sources = 2, .source = {x, x + (size_t)b->rows * (size_t)b->cols * 2}, .merges = {0, 1}, .source_dtype = DTYPE_BF16,
	                      .row_end = b->rows, .residual = out, .out = out});
}

void gpu_bench_tree_sum(struct gpu_check *c)
{
	static const int shapes[][2] = {{1, 4096}, {64, 4096}, {8192, 4096}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		int rows = shapes[i][0], n = shapes[i][1];
		gpu_case(c, DTYPE_F32, FILL_RANDOM, "2 sources of BF16, residual, T=%d H=%d", rows, n);
		struct rows_bench b = bench_make(c, DTYPE_BF16, DTYPE_F32, rows, 2 * n, n);
		gpu_bench_report(c, gpu_bench(c, tree_sum_once, &b, rows > 512 ? 20 : 200), 12.0 * rows * n, 0);
		gpu_case_end(c);
	}
}

struct embed_bench {
	struct rows_bench rows;
	struct linear_weight table;
	int32_t *token;
};

static void embed_once(struct gpu_check *c, void *context, int i)
{
	struct embed_bench *b = context;
	GPU_RUN(c, embed, {.table = &b->table, .token = b->token + (size_t)(i % b->rows.n) * (size_t)b->rows.rows, .out = bench_out(&b->rows, i, TENSOR_REPLICATED)});
}

void gpu_bench_embed(struct gpu_check *c)
{
	static const int rows_of[] = {1, 64, 8192};
	enum { V = 128256, H = 4096 };
	for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
		int rows = rows_of[i];
		gpu_case(c, DTYPE_F32, FILL_RANDOM, "T=%d V=%d H=%d table BF16", rows, V, H);
		struct embed_bench b = {.rows = bench_make(c, DTYPE_BF16, DTYPE_F32, rows, H, H), .table = {.dtype = DTYPE_BF16, .n = V, .k = H}};
		b.table.data = gpu_random_room(c, DTYPE_BF16, (size_t)V * H, 1);
		int32_t *token = gpu_host(c, (size_t)b.rows.n * (size_t)rows * 4);
		for (int t = 0; t < b.rows.n * rows; t++) token[t] = (int32_t)((int64_t)t * 7919 % V);
		b.token = gpu_put(c, token, (size_t)b.rows.n * (size_t)rows * 4);
		gpu_bench_report(c, gpu_bench(c, embed_once, &b, rows > 512 ? 20 : 200), 6.0 * rows * H, 0);
		gpu_case_end(c);
	}
}
