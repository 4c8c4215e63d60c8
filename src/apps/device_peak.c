#include "apps/device_peak.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/stats.h"

#define ROUNDS 7
#define CALLS 4 /* between two events */
#define SYNC_MS 60000

struct peak_run {
	const struct device_ops *ops;
	struct device *device;
	struct stream *stream;
	struct event *begin, *end;
	void *memory, *sum, *product;
	size_t bytes;
	int matrix;
};

typedef enum status (*peak_call)(struct peak_run *run, struct error *err);

static enum status read_once(struct peak_run *run, struct error *err)
{
	return run->ops->read_memory(run->stream, run->memory, run->bytes, run->sum, err);
}

/* Both matrices lie in the buffer that is read. */
static enum status multiply_once(struct peak_run *run, struct error *err)
{
	int n = run->matrix;
	struct linear_weight w = {.data = (char *)run->memory + run->bytes / 2, .dtype = DTYPE_BF16, .n = n, .k = n};
	return OP(run->stream, linear,
	          (&(struct linear_args){.x = tensor_view(run->memory, DTYPE_BF16, TENSOR_REPLICATED, n, n), .weight = &w,
	                                 .y = tensor_view(run->product, DTYPE_BF16, TENSOR_SHARDED, n, n)}),
	          err);
}

/* Median milliseconds of a call. */
static enum status time_calls(struct peak_run *run, peak_call call, double *ms, struct error *err)
{
	double times[ROUNDS];
	for (int round = -1; round < ROUNDS; round++) { /* the first one warms */
		float elapsed;
		TRY(run->ops->event_record(run->begin, run->stream, err));
		for (int i = 0; i < CALLS; i++) TRY(call(run, err));
		TRY(run->ops->event_record(run->end, run->stream, err));
		TRY(run->ops->stream_sync(run->stream, clock_deadline_ms(SYNC_MS), NULL, err));
		TRY(run->ops->event_elapsed_ms(run->begin, run->end, &elapsed, err));
		if (round >= 0) times[round] = (double)elapsed / CALLS;
	}
	*ms = percentile(times, ROUNDS, 0.5);
	return STATUS_OK;
}

/* Random bits, not zeros: a device may be faster on zeros. */
static enum status fill(struct peak_run *run, struct error *err)
{
	int cols = run->matrix, rows = (int)(run->bytes / 2 / (size_t)cols);
	struct linear_weight all = {.data = run->memory, .dtype = DTYPE_BF16, .n = rows, .k = cols};
	struct random_region region = {.seed = 1, .rows = rows, .cols = cols, .scale = 1.0f / 32768, .dtype = DTYPE_BF16};
	return run->ops->linear_random(run->stream, &all, 0, &region, err);
}

static enum status prepare(struct peak_run *run, const struct device_options *options, struct error *err)
{
	int n = run->matrix;
	struct stream_options stream = {.max_rows = n, .max_k = n, .max_n = n, .max_q_heads = 1, .max_head_dim = 64, .max_context = 1, .max_seqs = 1};
	TRY(run->ops->open(&run->device, options, err));
	TRY(run->ops->stream_create(run->device, &stream, &run->stream, err));
	TRY(run->ops->event_create(run->device, &run->begin, err));
	TRY(run->ops->event_create(run->device, &run->end, err));
	TRY(run->ops->alloc(run->device, run->bytes, MEM_WORKSPACE, "memory to read", &run->memory, err));
	TRY(run->ops->alloc(run->device, sizeof(uint32_t), MEM_WORKSPACE, "sum", &run->sum, err));
	TRY(run->ops->alloc(run->device, 2 * (size_t)n * (size_t)n, MEM_WORKSPACE, "product", &run->product, err));
	return fill(run, err);
}

static void release(struct peak_run *run)
{
	if (!run->device) return;
	run->ops->free(run->device, run->memory);
	run->ops->free(run->device, run->sum);
	run->ops->free(run->device, run->product);
	if (run->begin) run->ops->event_destroy(run->begin);
	if (run->end) run->ops->event_destroy(run->end);
	if (run->stream) run->ops->stream_destroy(run->stream);
	run->ops->close(run->device);
}

enum status device_peak(const struct device_ops *ops, const struct device_options *options, int matrix, struct device_peak *out,
                        struct error *err)
{
	double read_ms, multiply_ms, n = matrix;
	*out = (struct device_peak){.matrix = matrix, .read_bytes = 64 * n * n};
	if (!ops->read_memory || !ops->event_create || !ops->linear_random)
		return FAIL(err, UNSUPPORTED, "bench peak: %s has no way to be measured by device; give --device cpu", ops->name);
	struct peak_run run = {.ops = ops, .bytes = 64 * (size_t)matrix * (size_t)matrix, .matrix = matrix};
	enum status st;
	TRY_GOTO(prepare(&run, options, err), end);
	snprintf(out->flavour, sizeof out->flavour, "%s", ops->flavour(run.device));
	TRY_GOTO(time_calls(&run, read_once, &read_ms, err), end);
	TRY_GOTO(time_calls(&run, multiply_once, &multiply_ms, err), end);
	out->read_gb_per_s = out->read_bytes / read_ms * 1e-6;
	out->matrix_tflops = 2 * n * n * n / multiply_ms * 1e-9;
end:
	release(&run);
	return st;
}
