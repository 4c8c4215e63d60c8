/* weights.c: weights as the kernels read them: rows [n][k], dense, in the checkpoint's type.
 *
 * The loader's rows lie in memory that is not pinned, at any stride. They go through small pinned buffers in turns: the processor packs one
 * while the device fetches the other, and the source's memory may be used again when put returns.
 */
#include "device/gpu/device.h"

#include <string.h>
#include <sched.h>

#include "base/clock.h"
#include "device/gpu/random.h"

#define STAGE_DEADLINE_MS 30000

size_t gpu_linear_bytes(enum dtype dtype, int n, int k)
{
	return (size_t)n * dtype_size(dtype, (size_t)k);
}

void gpu_stages_free(struct gpu_stream_object *stream)
{
	for (int i = 0; i < GPU_STAGES; i++) {
		struct gpu_stage *stage = &stream->stage[i];
		if (stage->data) (void)gpu_host_free(stage->data);
		if (stage->sent) (void)gpu_event_destroy(stage->sent);
		*stage = (struct gpu_stage){0};
	}
}

/* The next stage, once the device has fetched what it held. */
static enum status take_stage(struct gpu_stream_object *stream, struct gpu_stage **out, struct error *err)
{
	struct gpu_stage *stage = &stream->stage[stream->next_stage];
	stream->next_stage = (stream->next_stage + 1) % GPU_STAGES;
	if (!stage->data) TRY(gpu_check(gpu_host_alloc(&stage->data, GPU_STAGE_BYTES), "pinned memory for loading", err));
	if (!stage->sent) TRY(gpu_check(gpu_event_create(&stage->sent), "event", err));
	uint64_t deadline = clock_deadline_ms(STAGE_DEADLINE_MS);
	while (stage->pending) {
		gpu_error code = gpu_event_query(stage->sent);
		stage->pending = code == GPU_NOT_READY;
		if (!stage->pending) TRY(gpu_check(code, "copy of weights", err));
		else if (clock_ns() >= deadline) return FAIL(err, TIMEOUT, "copy of weights: not done after %d ms", STAGE_DEADLINE_MS);
		else sched_yield();
	}
	*out = stage;
	return STATUS_OK;
}

static enum status send_stage(struct gpu_stream_object *stream, struct gpu_stage *stage, void *dst, size_t bytes, struct error *err)
{
	TRY(gpu_check(gpu_copy_async(dst, stage->data, bytes, stream->context.stream), "copy of weights", err));
	TRY(gpu_check(gpu_event_record(stage->sent, stream->context.stream), "event record", err));
	stage->pending = true;
	return STATUS_OK;
}

static enum status check_rows(const struct linear_weight *w, int n0, int rows, const char *what, struct error *err)
{
	if (!dtype_is_plain(w->dtype))
		return FAIL(err, UNSUPPORTED, "%s: weights of type %s; the " GPU_NAME_TEXT " back end has F32, F16 and BF16; --device cpu runs them", what,
		            dtype_name(w->dtype));
	if (n0 < 0 || rows < 0 || rows > w->n - n0) return FAIL(err, BAD_INPUT, "%s: rows [%d,%d) of %d", what, n0, n0 + rows, w->n);
	return STATUS_OK;
}

/* Bytes [at, at + count) of the dense rows whose sources are `stride` apart. */
static void pack(char *out, const char *src, size_t stride, size_t line, size_t at, size_t count)
{
	if (stride == line) {
		memcpy(out, src + at, count);
		return;
	}
	while (count) {
		size_t row = at / line, col = at % line, part = line - col < count ? line - col : count;
		memcpy(out, src + row * stride + col, part);
		out += part, at += part, count -= part;
	}
}

enum status gpu_linear_put(struct stream *base, const struct linear_weight *w, int n0, int rows, const void *src, size_t src_stride,
                           struct error *err)
{
	TRY(check_rows(w, n0, rows, "linear_put", err));
	struct gpu_stream_object *stream = gpu_stream_object(base);
	size_t line = dtype_size(w->dtype, (size_t)w->k), total = line * (size_t)rows;
	char *dst = (char *)w->data + line * (size_t)n0;
	for (size_t at = 0; at < total;) {
		size_t part = total - at < GPU_STAGE_BYTES ? total - at : GPU_STAGE_BYTES;
		struct gpu_stage *stage;
		TRY(take_stage(stream, &stage, err));
		pack(stage->data, src, src_stride, line, at, part);
		TRY(send_stage(stream, stage, dst + at, part, err));
		at += part;
	}
	return STATUS_OK;
}

enum status gpu_linear_copy_rows(struct stream *stream, const struct linear_weight *dst, const struct linear_weight *src, int n0, int rows,
                                 struct error *err)
{
	TRY(check_rows(dst, n0, rows, "linear_copy_rows", err));
	if (src->n != dst->n || src->k != dst->k || src->dtype != dst->dtype)
		return FAIL(err, BAD_INPUT, "linear_copy_rows: from %s [%d,%d] to %s [%d,%d]; equal ones are wanted", dtype_name(src->dtype), src->n, src->k,
		            dtype_name(dst->dtype), dst->n, dst->k);
	size_t line = dtype_size(dst->dtype, (size_t)dst->k), at = line * (size_t)n0;
	if (!rows || !line) return STATUS_OK;
	return gpu_check(gpu_copy_async((char *)dst->data + at, (const char *)src->data + at, line * (size_t)rows, gpu_context(stream)->stream),
	                 "copy of weights between devices", err);
}

enum status gpu_linear_random(struct stream *stream, const struct linear_weight *w, int n0, const struct random_region *region,
                              struct error *err)
{
	TRY(check_rows(w, n0, (int)region->rows, "linear_random", err));
	if (region->cols != w->k || region->dtype != w->dtype)
		return FAIL(err, BAD_INPUT, "linear_random: %lld columns of %s for a weight of %d of %s", (long long)region->cols, dtype_name(region->dtype),
		            w->k, dtype_name(w->dtype));
	char *dst = (char *)w->data + gpu_linear_bytes(w->dtype, n0, w->k);
	return gpu_random_rows(stream, dst, region, err);
}

enum status gpu_vector_put(struct stream *base, float *dst, const void *src, enum dtype dtype, int n, struct error *err)
{
	if (!dtype_is_plain(dtype))
		return FAIL(err, UNSUPPORTED, "vector_put: a vector of type %s; F32, F16 and BF16 are supported", dtype_name(dtype));
	struct gpu_stream_object *stream = gpu_stream_object(base);
	enum { MOST = GPU_STAGE_BYTES / sizeof(float) };
	for (int at = 0; at < n; at += MOST) {
		int part = n - at < MOST ? n - at : MOST;
		struct gpu_stage *stage;
		TRY(take_stage(stream, &stage, err));
		for (int i = 0; i < part; i++) ((float *)(void *)stage->data)[i] = dtype_load(dtype, (const char *)src + (size_t)(at + i) * dtype_bytes(dtype));
		TRY(send_stage(stream, stage, dst + at, (size_t)part * sizeof(float), err));
	}
	return STATUS_OK;
}
