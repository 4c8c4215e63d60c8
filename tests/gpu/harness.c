/* harness.c: memory, comparison and measurement for the checks; main.c runs them. */
#include "gpu/harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "device/gpu/context.h"
#include "device/gpu/random.h"

#define BAND 256 /* bytes before and behind every piece of device memory */
#define CANARY 0xa5
#define SYNC_MS 60000

/* Device memory [band | data | band] with what it held at first, or host memory (no device). */
struct gpu_piece {
	struct gpu_piece *next;
	char *device; /* the first band; NULL: host memory only */
	char *initial; /* host: as device memory was made, bands included; NULL: no bands */
	size_t bytes; /* of the data */
};

static void *must(void *ptr)
{
	if (ptr) return ptr;
	fprintf(stderr, "check_gpu: out of memory\n");
	exit(1);
}

static void end_run(struct gpu_check *c, const char *why)
{
	printf("FAIL %s [%s]: %s: %s\n", c->op, c->shape, why, c->err.text);
	printf("%d passed, %d failed\n", c->passed, c->failed + 1);
	exit(1);
}

/* --- cases */

void gpu_case(struct gpu_check *c, enum dtype dtype, enum fill fill, const char *shape, ...)
{
	va_list args;
	va_start(args, shape);
	vsnprintf(c->shape, sizeof c->shape, shape, args);
	va_end(args);
	c->dtype = dtype;
	c->fill = fill;
	c->case_failed = false;
}

void gpu_skip(struct gpu_check *c, const char *format, ...)
{
	c->skipped++;
	printf("skip %s: ", c->op);
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

void gpu_fail(struct gpu_check *c, const char *format, ...)
{
	if (c->case_failed) return; /* one line a case */
	c->case_failed = true;
	printf("FAIL %s [%s] %s fill %s seed %" PRIu64 ": ", c->op, c->shape, dtype_name(c->dtype), fill_name(c->fill), c->seed);
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

void gpu_ok(struct gpu_check *c, enum status st)
{
	if (st == STATUS_DEVICE_FAULT || st == STATUS_TIMEOUT) end_run(c, status_name(st));
	if (st != STATUS_OK) gpu_fail(c, "%s: %s", status_name(st), c->err.text);
	c->err = (struct error){0};
}

void gpu_refused(struct gpu_check *c, enum status want, enum status got)
{
	c->compared++;
	if (got != want || !c->err.text[0]) gpu_fail(c, "gives %s (%s), expected %s", status_name(got), c->err.text, status_name(want));
	c->err = (struct error){0};
}

void gpu_sync_stream(struct gpu_check *c)
{
	gpu_ok(c, c->ops->stream_sync(c->stream, clock_deadline_ms(SYNC_MS), NULL, &c->err));
}

static void check_bands(struct gpu_check *c, const struct gpu_piece *p)
{
	unsigned char band[2 * BAND];
	gpu_ok(c, c->ops->copy(c->stream, band, p->device, BAND, COPY_TO_HOST, &c->err));
	gpu_ok(c, c->ops->copy(c->stream, band + BAND, p->device + BAND + p->bytes, BAND, COPY_TO_HOST, &c->err));
	gpu_sync_stream(c);
	for (int i = 0; i < 2 * BAND; i++) {
		if (band[i] == CANARY) continue;
		gpu_fail(c, "wrote %s %zu bytes of memory: byte %d", i < BAND ? "before" : "behind", p->bytes, i < BAND ? i - BAND : i - BAND);
		return;
	}
}

void gpu_case_end(struct gpu_check *c)
{
	gpu_sync_stream(c);
	while (c->pieces) {
		struct gpu_piece *p = c->pieces;
		c->pieces = p->next;
		if (p->device && p->initial) check_bands(c, p);
		if (p->device) c->ops->free(c->device, p->device);
		free(p->initial);
		free(p);
	}
	if (c->case_failed) c->failed++;
	else c->passed++;
}

/* --- memory */

static struct gpu_piece *new_piece(struct gpu_check *c, size_t bytes)
{
	struct gpu_piece *p = must(calloc(1, sizeof *p));
	*p = (struct gpu_piece){.next = c->pieces, .bytes = bytes};
	c->pieces = p;
	return p;
}

void *gpu_host(struct gpu_check *c, size_t bytes)
{
	struct gpu_piece *p = new_piece(c, bytes);
	return p->initial = must(calloc(1, bytes + 64));
}

void *gpu_filled(struct gpu_check *c, enum dtype dtype, size_t n, uint64_t stream)
{
	void *out = gpu_host(c, dtype_size(dtype, n));
	fill_with(out, dtype, n, c->fill, c->seed, stream);
	return out;
}

static char *place(struct gpu_check *c, struct gpu_piece *p, size_t bytes)
{
	void *memory = NULL;
	enum status st = c->ops->alloc(c->device, bytes, MEM_WORKSPACE, "test memory", &memory, &c->err);
	if (st != STATUS_OK) end_run(c, status_name(st));
	return p->device = memory;
}

void *gpu_put(struct gpu_check *c, const void *host, size_t bytes)
{
	struct gpu_piece *p = new_piece(c, bytes);
	p->initial = must(malloc(bytes + 2 * BAND));
	memset(p->initial, CANARY, BAND);
	if (host) memcpy(p->initial + BAND, host, bytes);
	else memset(p->initial + BAND, 0xff, bytes);
	memset(p->initial + BAND + bytes, CANARY, BAND);
	place(c, p, bytes + 2 * BAND);
	gpu_ok(c, c->ops->copy(c->stream, p->device, p->initial, bytes + 2 * BAND, COPY_TO_DEVICE, &c->err));
	gpu_sync_stream(c);
	return p->device + BAND;
}

void *gpu_room(struct gpu_check *c, size_t bytes)
{
	return gpu_put(c, NULL, bytes);
}

void gpu_get(struct gpu_check *c, void *host, const void *device, size_t bytes)
{
	gpu_ok(c, c->ops->copy(c->stream, host, device, bytes, COPY_TO_HOST, &c->err));
	gpu_sync_stream(c);
}

static struct tensor strided(void *data, enum dtype dtype, enum tensor_dist dist, int rows, int cols, int stride)
{
	struct tensor t = tensor_view(data, dtype, dist, rows, cols);
	t.row_stride = stride;
	t.slot_stride = (int64_t)rows * stride;
	return t;
}

static size_t extent(const struct tensor *t)
{
	return t->rows > 0 ? (size_t)(t->rows - 1) * (size_t)t->row_stride + (size_t)t->cols : 0;
}

struct tensor gpu_input(struct gpu_check *c, enum dtype dtype, enum tensor_dist dist, int rows, int cols, int stride, uint64_t stream, void **host)
{
	struct tensor t = strided(NULL, dtype, dist, rows, cols, stride);
	void *filled = gpu_filled(c, dtype, extent(&t), stream);
	t.data = gpu_put(c, filled, extent(&t) * dtype_bytes(dtype));
	if (host) *host = filled;
	return t;
}

struct tensor gpu_output(struct gpu_check *c, enum dtype dtype, enum tensor_dist dist, int rows, int cols, int stride)
{
	struct tensor t = strided(NULL, dtype, dist, rows, cols, stride);
	t.data = gpu_room(c, extent(&t) * dtype_bytes(dtype));
	return t;
}

struct linear_weight gpu_weight(struct gpu_check *c, enum dtype dtype, int n, int k, uint64_t stream, void **rows)
{
	size_t line = dtype_size(dtype, (size_t)k);
	void *filled = gpu_filled(c, dtype, (size_t)n * (size_t)k, stream);
	struct linear_weight w = {.dtype = dtype, .n = n, .k = k};
	w.data = gpu_room(c, c->ops->linear_bytes(dtype, n, k));
	int cut = n / 3; /* as fused weights come */
	gpu_ok(c, c->ops->linear_put(c->stream, &w, 0, cut, filled, line, &c->err));
	gpu_ok(c, c->ops->linear_put(c->stream, &w, cut, n - cut, (char *)filled + (size_t)cut * line, line, &c->err));
	if (rows) *rows = filled;
	return w;
}

void *gpu_random_room(struct gpu_check *c, enum dtype dtype, size_t n, float scale)
{
	struct gpu_piece *p = new_piece(c, n * dtype_bytes(dtype));
	enum { COLS = 4096 };
	size_t rows = (n + COLS - 1) / COLS;
	void *out = place(c, p, rows * COLS * dtype_bytes(dtype));
	struct random_region region = {.dtype = dtype, .seed = c->seed, .stream = (uint64_t)(uintptr_t)p, .rows = (int64_t)rows, .cols = COLS,
	                               .scale = scale * 1.7320508f / 32768};
	gpu_ok(c, gpu_random_rows(c->stream, out, &region, &c->err));
	return out;
}

/* --- results */

double gpu_unit(enum dtype dtype)
{
	return dtype == DTYPE_F32 ? 0x1p-24 : dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

double gpu_tiny(enum dtype dtype)
{
	return dtype == DTYPE_F32 ? 0x1p-149 : dtype == DTYPE_F16 ? 0x1p-24 : 0x1p-133;
}

static double largest_number(enum dtype dtype)
{
	return dtype == DTYPE_F16 ? 65504.0 : dtype == DTYPE_BF16 ? 0x1.fep127 : 0x1.fffffep127;
}

static const struct gpu_piece *piece_of(const struct gpu_check *c, const void *address)
{
	for (const struct gpu_piece *p = c->pieces; p; p = p->next)
		if (p->device && p->initial && (const char *)address >= p->device + BAND && (const char *)address < p->device + BAND + p->bytes) return p;
	return NULL;
}

/* The tensor's extent as it is now; what lies between the rows must be as it was. */
static char *fetch(struct gpu_check *c, const char *what, const struct tensor *t)
{
	size_t unit = dtype_bytes(t->dtype), stride = (size_t)t->row_stride * unit, line = (size_t)t->cols * unit;
	char *got = gpu_host(c, extent(t) * unit);
	gpu_get(c, got, t->data, extent(t) * unit);
	const struct gpu_piece *p = piece_of(c, t->data);
	if (!p) {
		gpu_fail(c, "%s: is not memory of the case", what);
		return got;
	}
	const char *before = p->initial + ((char *)t->data - p->device);
	for (int r = 0; r + 1 < t->rows; r++)
		if (memcmp(got + (size_t)r * stride + line, before + (size_t)r * stride + line, stride - line))
			gpu_fail(c, "%s: wrote between row %d and row %d", what, r, r + 1);
	return got;
}

static bool within(double got, double want, double bound, enum dtype dtype)
{
	if (want != want) return got != got;
	if (fabs(want) > largest_number(dtype) && isinf(got)) return (got > 0) == (want > 0);
	if (isinf(want)) return got == want;
	return fabs(got - want) <= bound;
}

void gpu_compare(struct gpu_check *c, const char *what, const struct tensor *t, const double *want, const double *scale, double rel, double abs)
{
	const char *got = fetch(c, what, t);
	c->compared += (long)t->rows * t->cols;
	for (int r = 0; r < t->rows; r++)
		for (int i = 0; i < t->cols; i++) {
			size_t at = (size_t)r * (size_t)t->cols + (size_t)i;
			double value = element(got, t->dtype, (size_t)r * (size_t)t->row_stride + (size_t)i);
			double bound = rel * (scale ? scale[at] : fabs(want[at])) + abs;
			if (within(value, want[at], bound, t->dtype)) continue;
			gpu_fail(c, "%s[%d][%d] = %.9g, exact %.9g: error %.3g > bound %.3g", what, r, i, value, want[at], fabs(value - want[at]), bound);
			return;
		}
}

void gpu_compare_exact(struct gpu_check *c, const char *what, const struct tensor *t, const void *want)
{
	const char *got = fetch(c, what, t);
	size_t unit = dtype_bytes(t->dtype);
	c->compared += (long)t->rows * t->cols;
	for (int r = 0; r < t->rows; r++)
		for (int i = 0; i < t->cols; i++) {
			size_t at = (size_t)r * (size_t)t->cols + (size_t)i, here = (size_t)r * (size_t)t->row_stride + (size_t)i;
			if (!memcmp(got + here * unit, (const char *)want + at * unit, unit)) continue;
			double a = element(got, t->dtype, here), b = element(want, t->dtype, at);
			if (a != a && b != b) continue;
			gpu_fail(c, "%s[%d][%d] = %a, expected the bits of %a", what, r, i, a, b);
			return;
		}
}

/* --- measuring */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void runtime_ok(struct gpu_check *c, gpu_error code, const char *what)
{
	gpu_ok(c, gpu_check(code, what, &c->err));
}

double gpu_bench(struct gpu_check *c, void (*fn)(struct gpu_check *c, void *context, int i), void *context, int launches)
{
	enum { REPLAYS = 11 };
	double times[REPLAYS];
	gpu_stream stream = gpu_context(c->stream)->stream;
	gpu_event begin, end;
	runtime_ok(c, gpu_event_create_timing(&begin), "event");
	runtime_ok(c, gpu_event_create_timing(&end), "event");
	struct graph *graph = NULL;
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	for (int i = 0; i < launches; i++) fn(c, context, i);
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	for (int i = -1; graph && i < REPLAYS; i++) {
		runtime_ok(c, gpu_event_record(begin, stream), "event record");
		gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
		runtime_ok(c, gpu_event_record(end, stream), "event record");
		gpu_sync_stream(c);
		float ms = 0;
		runtime_ok(c, gpu_event_elapsed_ms(&ms, begin, end), "elapsed time");
		if (i >= 0) times[i] = (double)ms * 1e-3; /* the first one warms */
	}
	c->ops->graph_destroy(graph);
	(void)gpu_event_destroy(begin);
	(void)gpu_event_destroy(end);
	if (c->case_failed) return NAN;
	qsort(times, REPLAYS, sizeof *times, by_value);
	return times[REPLAYS / 2] / launches;
}

void gpu_bench_report(struct gpu_check *c, double seconds, double bytes, double flops)
{
	printf("%-14s %-44s %-4s %9.2f us", c->op, c->shape, dtype_name(c->dtype), seconds * 1e6);
	if (bytes > 0) printf("  %8.1f GB/s %5.1f %%", bytes / seconds * 1e-9, c->read_gbps > 0 ? 100e-9 * bytes / seconds / c->read_gbps : 0);
	if (flops > 0) printf("  %8.1f TFLOP/s", flops / seconds * 1e-12);
	printf("\n");
	fflush(stdout);
}

int gpu_bench_rotation(const struct gpu_check *c, size_t bytes)
{
	size_t want = 3 * gpu_context(c->stream)->props.l2_bytes;
	int n = (int)(want / (bytes ? bytes : 1)) + 1;
	return n < 2 ? 2 : n > 64 ? 64 : n;
}
