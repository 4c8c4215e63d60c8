/* check_argmax.c: exact: the largest value, the smallest index among equals, -1 for a row with NaN. */
#include <math.h>
#include <string.h>

#include "gpu/harness.h"

/* What is put into the rows besides what the fill made. */
enum place { PLACE_NOTHING, PLACE_TIES, PLACE_NAN, PLACE_LAST, PLACE_MINUS_INF, PLACE_COUNT };
static const char *const place_names[] = {"", " ties", " a NaN", " last is best", " all -inf"};

static void place(float *row, int t, int n, enum place what)
{
	switch (what) {
	case PLACE_TIES: row[n / 3] = row[n - 1] = row[n / 2] = 1e30f; break;
	case PLACE_NAN: row[(t * 31 + n - 1) % n] = t % 2 ? NAN : row[0]; break;
	case PLACE_LAST: row[n - 1] = INFINITY; break;
	case PLACE_MINUS_INF:
		for (int i = 0; i < n; i++) row[i] = -INFINITY;
		break;
	default: break;
	}
}

static void argmax_case(struct gpu_check *c, enum fill fill, int rows, int n, int stride, int begin, enum place what)
{
	gpu_case(c, DTYPE_F32, fill, "R=%d n=%d stride %d from %d%s", rows, n, stride, begin, place_names[what]);
	size_t count = (size_t)(rows - 1) * (size_t)stride + (size_t)n;
	float *host = gpu_filled(c, DTYPE_F32, count, 1);
	struct best_token *want = gpu_host(c, (size_t)rows * sizeof *want), *got = NULL;
	for (int t = 0; t < rows; t++) {
		float *row = host + (size_t)t * (size_t)stride;
		place(row, t, n, what);
		want[t] = (struct best_token){.value = row[0], .index = begin};
		for (int i = 0; i < n; i++)
			if (row[i] > want[t].value || (row[i] == row[i] && want[t].value != want[t].value)) want[t] = (struct best_token){row[i], begin + i};
		for (int i = 0; i < n; i++)
			if (row[i] != row[i]) want[t].index = -1;
	}
	struct tensor x = tensor_view(gpu_put(c, host, count * 4), DTYPE_F32, TENSOR_SHARDED, rows, n);
	x.row_stride = stride;
	void *pinned = NULL;
	gpu_ok(c, c->ops->host_alloc(c->device, (size_t)rows * sizeof *got, "tokens", &pinned, &c->err));
	got = pinned;
	for (int again = 0; again < 2; again++) { /* the second time finds the counters as the first left them */
		memset(got, 0xff, (size_t)rows * sizeof *got);
		GPU_RUN(c, argmax, {.logits = x, .begin = begin, .out = got});
		gpu_sync_stream(c);
		for (int t = 0; t < rows; t++) {
			c->compared++;
			if (got[t].index != want[t].index || (want[t].index >= 0 && got[t].value != want[t].value))
				gpu_fail(c, "row %d: %a at %d, expected %a at %d", t, (double)got[t].value, got[t].index, (double)want[t].value, want[t].index);
		}
	}
	c->ops->host_free(c->device, pinned);
	gpu_case_end(c);
}

void gpu_check_argmax(struct gpu_check *c)
{
	for (enum place what = 0; what < PLACE_COUNT; what++) {
		argmax_case(c, FILL_RANDOM, 1, 1, 1, 0, what);
		argmax_case(c, FILL_RANDOM, 3, 33, 35, 100, what);
		argmax_case(c, FILL_RANDOM, 2, 4096, 4096, 0, what);
		argmax_case(c, FILL_RANDOM, 5, 5003, 5004, 7, what);
		if (c->quick) continue;
		argmax_case(c, FILL_RANDOM, 1, 151936, 151936, 0, what);
		argmax_case(c, FILL_RANDOM, 64, 128256, 128256, 64128, what);
		argmax_case(c, FILL_RANDOM, 2, 299999, 300001, 0, what);
	}
	GPU_EACH_FILL(fill) argmax_case(c, fill, 4, 1000, 1000, 3, PLACE_NOTHING);
}

struct argmax_bench {
	struct argmax_args args;
	float *logits;
	int n;
};

static void argmax_once(struct gpu_check *c, void *context, int i)
{
	struct argmax_bench *b = context;
	struct argmax_args args = b->args;
	args.logits.data = b->logits + (size_t)(i % b->n) * (size_t)args.logits.rows * (size_t)args.logits.cols;
	gpu_ok(c, OP(c->stream, argmax, &args, &c->err));
}

void gpu_bench_argmax(struct gpu_check *c)
{
	static const int rows_of[] = {1, 16, 64};
	enum { V = 128256 };
	for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
		int rows = rows_of[i];
		gpu_case(c, DTYPE_F32, FILL_RANDOM, "R=%d V=%d", rows, V);
		struct argmax_bench b = {.n = gpu_bench_rotation(c, (size_t)rows * V * 4)};
		b.logits = gpu_random_room(c, DTYPE_F32, (size_t)b.n * (size_t)rows * V, 1);
		b.args = (struct argmax_args){.logits = tensor_view(NULL, DTYPE_F32, TENSOR_SHARDED, rows, V), .out = gpu_room(c, (size_t)rows * sizeof(struct best_token))};
		gpu_bench_report(c, gpu_bench(c, argmax_once, &b, 64), 4.0 * rows * V, 0);
		gpu_case_end(c);
	}
}
