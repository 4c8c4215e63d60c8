/* check_device.c: what device.h says of memory, weights, graphs, waiting and refusals. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/gpu/context.h"
#include "gpu/harness.h"
#include "model/source.h"

static void expect(struct gpu_check *c, bool right, const char *what)
{
	c->compared++;
	if (!right) gpu_fail(c, "%s", what);
}

static void check_memory(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "memory by tag");
	struct mem_report before, during, after;
	unsigned char bytes[1000];
	void *p = NULL;
	c->ops->report(c->device, &before);
	gpu_ok(c, c->ops->alloc(c->device, sizeof bytes, MEM_SCRATCH, "a thousand bytes", &p, &c->err));
	c->ops->report(c->device, &during);
	memset(bytes, 1, sizeof bytes);
	gpu_get(c, bytes, p, sizeof bytes);
	bool zero = true;
	for (size_t i = 0; i < sizeof bytes; i++) zero = zero && !bytes[i];
	c->ops->free(c->device, p);
	c->ops->free(c->device, NULL);
	c->ops->report(c->device, &after);
	expect(c, zero, "device memory is not zeroed");
	expect(c, during.now[MEM_SCRATCH] == before.now[MEM_SCRATCH] + 1000, "the report lacks the thousand bytes");
	expect(c, after.now[MEM_SCRATCH] == before.now[MEM_SCRATCH] && after.peak >= during.now[MEM_SCRATCH], "the report keeps the thousand bytes");
	gpu_refused(c, STATUS_NO_MEMORY, c->ops->alloc(c->device, (size_t)1 << 50, MEM_KV, "a petabyte", &p, &c->err));
	expect(c, !p, "an out-parameter is left behind");
	gpu_ok(c, c->ops->host_alloc(c->device, 4096, "a page", &p, &c->err));
	memset(p, 7, 4096);
	c->ops->host_free(c->device, p);
	gpu_case_end(c);
}

static void check_partition(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "ranks to devices");
	struct device_options options[3] = {{.ordinal = -1}};
	void *storage = NULL;
	gpu_ok(c, c->ops->partition(1, 0, NULL, options, &storage, &c->err));
	expect(c, options[0].ordinal == 0, "rank 0 is not on device 0");
	gpu_ok(c, c->ops->partition(3, 0, (int[]){0, 0, 0}, options, &storage, &c->err));
	expect(c, options[0].sharers == 3 && options[2].sharers == 3 && options[2].ordinal == 0, "three ranks do not share device 0");
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->partition(1, 0, (int[]){9999}, options, &storage, &c->err));
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->partition(2, 0, (int[]){0, -1}, options, &storage, &c->err));
	struct device *device = NULL;
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->open(&device, &(struct device_options){.ordinal = 9999}, &c->err));
	struct stream *stream = NULL;
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->stream_create(c->device, &(struct stream_options){.max_rows = -1}, &stream, &c->err));
	expect(c, !device && !stream, "an out-parameter is left behind");
	c->ops->stream_destroy(NULL);
	c->ops->event_destroy(NULL);
	c->ops->graph_destroy(NULL);
	c->ops->close(NULL);
	free(storage);
	gpu_case_end(c);
}

/* Rows at a stride, unaligned, more than the staging buffers hold together; then the same rows by a copy from another weight. */
static void check_weights(struct gpu_check *c, enum dtype dtype, int n, int k, int n0, int rows)
{
	gpu_case(c, dtype, FILL_RANDOM, "put n=%d k=%d rows %d..%d", n, k, n0, n0 + rows);
	size_t line = (size_t)k * dtype_bytes(dtype), stride = line + 6, all = (size_t)n * line;
	char *src = gpu_host(c, (size_t)rows * stride + 1), *want = gpu_host(c, all), *got = gpu_host(c, all);
	memset(want, 0xff, all);
	for (int r = 0; r < rows; r++) {
		fill_with(want + (size_t)(n0 + r) * line, dtype, (size_t)k, FILL_RANDOM, c->seed, (uint64_t)r);
		memcpy(src + 1 + (size_t)r * stride, want + (size_t)(n0 + r) * line, line);
	}
	struct linear_weight w = {.data = gpu_room(c, all), .dtype = dtype, .n = n, .k = k}, copy = w;
	copy.data = gpu_room(c, all);
	gpu_ok(c, c->ops->linear_put(c->stream, &w, n0, rows, src + 1, stride, &c->err));
	memset(src, 0, (size_t)rows * stride); /* put is done with it */
	gpu_get(c, got, w.data, all);
	expect(c, !memcmp(got, want, all), "linear_put: other bytes than its source");
	gpu_ok(c, c->ops->linear_copy_rows(c->stream, &copy, &w, n0, rows, &c->err));
	gpu_get(c, got, copy.data, all);
	expect(c, !memcmp(got, want, all), "linear_copy_rows: other bytes than its source");
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->linear_put(c->stream, &w, n0, n - n0 + 1, src, line, &c->err));
	gpu_case_end(c);
}

static void check_vector(struct gpu_check *c, enum dtype dtype, int n)
{
	gpu_case(c, dtype, FILL_RANDOM, "vector_put %d", n);
	char *src = gpu_host(c, (size_t)n * 4 + 1), *filled = gpu_filled(c, dtype, (size_t)n, 1);
	float *want = gpu_host(c, (size_t)n * 4), *got = gpu_host(c, (size_t)n * 4);
	memcpy(src + 1, filled, (size_t)n * dtype_bytes(dtype));
	for (int i = 0; i < n; i++) want[i] = (float)element(filled, dtype, (size_t)i);
	float *device = gpu_room(c, (size_t)n * 4);
	gpu_ok(c, c->ops->vector_put(c->stream, device, src + 1, dtype, n, &c->err));
	gpu_get(c, got, device, (size_t)n * 4);
	expect(c, !memcmp(got, want, (size_t)n * 4), "vector_put: other values than its source");
	gpu_case_end(c);
}

static void check_quantised(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "quantised weights");
	struct linear_weight w = {.data = gpu_room(c, 8192), .dtype = DTYPE_Q4_0, .n = 4, .k = 32};
	char rows[4 * 18] = {0};
	gpu_refused(c, STATUS_UNSUPPORTED, c->ops->linear_put(c->stream, &w, 0, 4, rows, 18, &c->err));
	gpu_case_end(c);
}

/* The device's bits against those that the host makes. */
static void check_random(struct gpu_check *c, enum dtype dtype, int n, int k, int row, int col, int cols)
{
	gpu_case(c, dtype, FILL_RANDOM, "random weights n=%d k=%d from (%d,%d), %d columns", n, k, row, col, cols);
	struct source *source = NULL;
	struct source_tensor tensor;
	struct source_scratch scratch = {0};
	const void *want = NULL;
	size_t stride = 0, bytes = (size_t)n * (size_t)cols * dtype_bytes(dtype);
	char *got = gpu_host(c, bytes);
	gpu_ok(c, source_open_random(&source, c->seed, dtype, &c->err));
	gpu_ok(c, source_find(source, "model.layers.3.mlp.up_proj.weight", 2, 4096, k, &tensor, &c->err));
	gpu_ok(c, source_read(source, &tensor, row, n, col, cols, &scratch, &want, &stride, &c->err));
	struct linear_weight w = {.data = gpu_room(c, bytes), .dtype = dtype, .n = n, .k = cols};
	struct random_region region = {.seed = c->seed, .stream = tensor.stream, .row = row, .rows = n, .col = col, .cols = cols, .dtype = dtype,
	                               .scale = (float)(__builtin_sqrt(3.0 / (double)k) / 32768)};
	gpu_ok(c, c->ops->linear_random(c->stream, &w, 0, &region, &c->err));
	gpu_get(c, got, w.data, bytes);
	for (int r = 0; r < n; r++)
		expect(c, !memcmp(got + (size_t)r * w.k * dtype_bytes(dtype), (const char *)want + (size_t)r * stride, (size_t)cols * dtype_bytes(dtype)),
		       "a row of random weights differs from the host's");
	source_scratch_fini(&scratch);
	source_close(&source);
	gpu_case_end(c);
}

/* A recorded copy runs at each launch and not before; what a recording refuses leaves the stream usable. */
static void check_graph(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "graphs and events");
	struct graph *graph = NULL;
	uint32_t got = 0, one = 1, two = 2, *src = gpu_put(c, &one, 4), *dst = gpu_room(c, 4);
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	gpu_ok(c, c->ops->copy(c->stream, dst, src, 4, COPY_ON_DEVICE, &c->err));
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->stream_sync(c->stream, clock_deadline_ms(1000), NULL, &c->err));
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	gpu_get(c, &got, dst, 4);
	expect(c, got == 0xffffffffu, "a recorded copy ran");
	gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
	gpu_get(c, &got, dst, 4);
	expect(c, got == 1, "a launched graph did not copy");
	gpu_ok(c, c->ops->copy(c->stream, src, &two, 4, COPY_TO_DEVICE, &c->err));
	gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
	gpu_get(c, &got, dst, 4);
	expect(c, got == 2, "a graph launched again did not copy again");
	c->ops->graph_destroy(graph);
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->graph_end(c->stream, &graph, &c->err));
	struct event *from = NULL, *to = NULL;
	float ms = -1;
	gpu_ok(c, c->ops->event_create(c->device, &from, &c->err));
	gpu_ok(c, c->ops->event_create(c->device, &to, &c->err));
	gpu_ok(c, c->ops->event_record(from, c->stream, &c->err));
	gpu_ok(c, c->ops->event_record(to, c->stream, &c->err));
	gpu_sync_stream(c);
	gpu_ok(c, c->ops->event_elapsed_ms(from, to, &ms, &c->err));
	expect(c, ms >= 0, "the time between two events is negative");
	c->ops->event_destroy(from);
	c->ops->event_destroy(to);
	gpu_case_end(c);
}

/* A recorded graph tells its kernels in the order of their recording, and nothing of its copies. */
static void check_graph_kernels(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "kernels of a graph");
	enum { LAUNCHES = 9, COLS = 32 };
	struct graph *graph = NULL;
	struct kernel_launch launch[LAUNCHES];
	int count = 0;
	struct tensor x = gpu_input(c, DTYPE_F32, TENSOR_SHARDED, 3, COLS, COLS, 1, NULL), half = gpu_output(c, DTYPE_F32, TENSOR_SHARDED, 3, COLS / 2, COLS / 2);
	const float *weight = gpu_put(c, gpu_filled(c, DTYPE_F32, COLS, 2), COLS * sizeof(float));
	memset(launch, 0, sizeof launch);
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	for (int i = 0; i < LAUNCHES; i++) {
		if (i % 3 == 0) GPU_RUN(c, swiglu, {.x = x, .out = half});
		else GPU_RUN(c, head_norm, {.x = x, .heads = 1 << i % 3, .head_dim = COLS >> i % 3, .weight = weight, .eps = 1e-5f});
		if (i == 4) gpu_ok(c, c->ops->copy(c->stream, half.data, x.data, 4, COPY_ON_DEVICE, &c->err));
	}
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	gpu_ok(c, c->ops->graph_kernels(graph, launch, LAUNCHES - 1, &count, &c->err));
	expect(c, count == LAUNCHES, "the kernels of a graph are not as many as were recorded");
	for (int i = 0; i < LAUNCHES - 1; i++)
		if (!strstr(launch[i].name, i % 3 ? "head_norm_kernel" : "swiglu_kernel") || launch[i].block[0] < 32)
			gpu_fail(c, "kernel %d is %s of %u threads", i, launch[i].name, launch[i].block[0]);
	expect(c, !*launch[LAUNCHES - 1].name, "more kernels were written than there was room for");
	c->ops->graph_destroy(graph);
	gpu_case_end(c);
}

/* What speeds depend on: the same each time, and cut to the room that there is. */
static void check_versions(struct gpu_check *c)
{
	char text[200] = "", again[200] = "", cut[8] = "";
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "versions and limits");
	struct device_limits limits = {0};
	c->ops->versions(c->device, text, sizeof text);
	c->ops->versions(c->device, again, sizeof again);
	c->ops->versions(c->device, cut, sizeof cut);
	c->ops->limits(c->device, &limits);
	const struct gpu_props *props = &gpu_context(c->stream)->props;
	expect(c, strstr(text, props->name) && strstr(text, "driver"), "versions do not name device and driver");
	expect(c, !strcmp(text, again), "versions differ from one call to the next");
	expect(c, strlen(cut) == sizeof cut - 1 && !strncmp(cut, text, sizeof cut - 1), "versions are not cut to fit");
	expect(c, limits.wave == props->warp && limits.compute_units == props->multiprocessors && limits.max_threads == props->max_threads, "limits are not the device's");
	gpu_case_end(c);
}

/* A launch that the runtime refuses (a grid beyond its limits), while a graph is recorded: it is reported, and afterwards the stream works. */
static void check_refused_launch(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "a refused launch in a recording");
	struct graph *graph = NULL;
	struct error ignored = {0};
	enum { WIDE = 1 << 30 };
	float one = 1, got = 0, *src = gpu_put(c, &one, 4), *dst = gpu_room(c, 4);
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	enum status st = OP(c->stream, swiglu, &((struct swiglu_args){.x = tensor_view(src, DTYPE_F32, TENSOR_SHARDED, 1, WIDE),
	                                                              .out = tensor_view(dst, DTYPE_F32, TENSOR_SHARDED, 1, WIDE / 2)}), &c->err);
	gpu_refused(c, STATUS_DEVICE_FAULT, st);
	(void)!c->ops->graph_end(c->stream, &graph, &ignored); /* a graph without that launch, or none */
	c->ops->graph_destroy(graph);
	gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
	gpu_ok(c, c->ops->copy(c->stream, dst, src, 4, COPY_ON_DEVICE, &c->err));
	gpu_ok(c, c->ops->graph_end(c->stream, &graph, &c->err));
	if (graph) gpu_ok(c, c->ops->graph_launch(graph, c->stream, &c->err));
	gpu_get(c, &got, dst, 4);
	expect(c, got == 1, "a graph after a refused launch did not run");
	c->ops->graph_destroy(graph);
	gpu_case_end(c);
}

/* Everything of a second device object goes away with it, also what its user forgot. */
static void check_close(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "close");
	size_t before = c->ops->free_bytes(c->device);
	struct device *device = NULL;
	struct stream *stream = NULL;
	void *p;
	gpu_ok(c, c->ops->open(&device, &(struct device_options){.ordinal = gpu_context(c->stream)->ordinal}, &c->err));
	if (device) {
		gpu_ok(c, c->ops->stream_create(device, &(struct stream_options){.max_seqs = 1}, &stream, &c->err));
		gpu_ok(c, c->ops->alloc(device, (size_t)64 << 20, MEM_KV, "forgotten", &p, &c->err));
		if (stream) c->ops->stream_destroy(stream);
		c->ops->close(device);
	}
	c->ops->attach(c->device);
	expect(c, c->ops->free_bytes(c->device) + ((size_t)8 << 20) >= before, "device memory is missing after close");
	gpu_case_end(c);
}

void gpu_check_device(struct gpu_check *c)
{
	check_memory(c);
	check_partition(c);
	GPU_EACH_DTYPE(dtype)
	{
		check_weights(c, dtype, 5, 33, 1, 3);
		check_weights(c, dtype, 16, 64, 0, 16);
		if (!c->quick) check_weights(c, dtype, 3000, 2049, 11, 2900);
		check_vector(c, dtype, 1);
		check_vector(c, dtype, 4099);
		check_random(c, dtype, 7, 129, 3, 5, 77);
		check_random(c, dtype, c->quick ? 8 : 500, 1024, 0, 512, 512);
	}
	check_quantised(c);
	check_graph(c);
	check_graph_kernels(c);
	check_versions(c);
	check_refused_launch(c);
	check_close(c);
	if (gpu_check_wait_emu) gpu_check_wait_emu(c);
}
