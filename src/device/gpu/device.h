/* device.h: inside the GPU back end, host side: device and stream, and the entries that its C files give to the table in device.c.
 *
 * runtime.c errors · memory.c allocations and copies · stream.c streams, events · graph.c graphs · weights.c what the loader puts · ways.c variants.
 * A device belongs to its rank's worker thread; its memory report may be read by any thread.
 */
#ifndef TANDEM_DEVICE_GPU_DEVICE_H
#define TANDEM_DEVICE_GPU_DEVICE_H

#include <stdatomic.h>

#include "device/device.h"
#include "device/gpu/context.h"
#include "device/gpu/runtime.h"
#include "device/gpu/ways.h"

#define GPU_TEXT_(name) #name
#define GPU_TEXT(name) GPU_TEXT_(name)
#define GPU_NAME_TEXT GPU_TEXT(GPU_NAME) /* "cuda" */

struct gpu_allocation {
	struct gpu_allocation *next;
	void *ptr;
	size_t bytes;
	enum mem_tag tag;
};

struct gpu_device {
	struct device base;
	int ordinal;
	int sharers; /* ranks on this GPU: they share its memory */
	struct gpu_props props;
	const struct log *log; /* of device_options */
	gpu_stream service; /* of the device's own work: zeroing */
	struct gpu_allocation *allocations; /* owner thread only */
	_Atomic size_t now[MEM_TAG_COUNT];  /* bytes; read by any thread */
	_Atomic size_t total, peak;
};

/* Pinned host memory that the loader's rows go through: one part is filled while the other is on its way. */
#define GPU_STAGES 2
#define GPU_STAGE_BYTES ((size_t)4 << 20)
struct gpu_stage {
	char *data;
	gpu_event sent;
	bool pending; /* `sent` was recorded and not yet seen */
};

struct gpu_stream_object {
	struct stream base;
	struct gpu_context context;
	struct dispatch dispatch;
	struct gpu_stage stage[GPU_STAGES]; /* made by the first put */
	int next_stage;
	bool recording;
	gpu_stream_writer writer;
	_Atomic uint32_t *word; /* pinned host memory: the device writes there how far it got; NULL: it cannot */
	uint32_t marks;         /* the last number put on the stream for it to write */
};

static inline struct gpu_device *gpu_device(struct device *device)
{
	return (struct gpu_device *)device;
}
static inline struct gpu_stream_object *gpu_stream_object(struct stream *stream)
{
	return (struct gpu_stream_object *)stream;
}

/* A wait for all that a stream was given up to its begin. */
struct gpu_wait {
	gpu_stream stream;
	const _Atomic uint32_t *word; /* of the stream object; NULL: only the runtime knows */
	uint32_t mark;
	uint64_t begin_ns, ask_ns; /* when the runtime is to be asked next */
};
void gpu_wait_begin(struct gpu_wait *wait, struct stream *stream);
/* One look, and a pause that grows with the time waited. False: it is over, with OK or the stream's failure in *code. */
bool gpu_wait_look(struct gpu_wait *wait, gpu_error *code);

/* Polls until `stream` is empty: OK, its failure, or TIMEOUT. Not for the step path. */
enum status gpu_drain(gpu_stream stream, uint64_t deadline_ns, const char *what, struct error *err) NODISCARD;

/* memory.c */
enum status gpu_memory_alloc(struct device *device, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err);
void gpu_memory_free(struct device *device, void *ptr);
void gpu_memory_free_all(struct gpu_device *device);
void gpu_memory_report(const struct device *device, struct mem_report *out);
size_t gpu_memory_free_bytes(const struct device *device);
/* What the device's memory holds besides our allocations goes to MEM_RUNTIME. */
void gpu_memory_count_runtime(struct gpu_device *device);
enum status gpu_memory_host_alloc(struct device *device, size_t bytes, const char *what, void **out, struct error *err);
void gpu_memory_host_free(struct device *device, void *ptr);
enum status gpu_memory_copy(struct stream *stream, void *dst, const void *src, size_t bytes, enum copy_kind kind, struct error *err);

/* stream.c */
enum status gpu_stream_object_create(struct device *device, const struct stream_options *options, struct stream **out, struct error *err);
void gpu_stream_object_destroy(struct stream *stream);
enum status gpu_stream_object_sync(struct stream *stream, uint64_t deadline_ns, const _Atomic int *abort, struct error *err);
enum status gpu_event_object_create(struct device *device, struct event **out, struct error *err);
enum status gpu_event_object_elapsed_ms(const struct event *from, const struct event *to, float *ms, struct error *err);
void gpu_event_object_destroy(struct event *event);
enum status gpu_event_object_record(struct event *event, struct stream *stream, struct error *err);

/* graph.c */
enum status gpu_graph_object_begin(struct stream *stream, struct error *err);
enum status gpu_graph_object_end(struct stream *stream, struct graph **out, struct error *err);
enum status gpu_graph_object_launch(struct graph *graph, struct stream *stream, struct error *err);
void gpu_graph_object_destroy(struct graph *graph);
enum status gpu_graph_object_kernels(struct graph *graph, struct kernel_launch *out, int max, int *count, struct error *err);

/* weights.c */
size_t gpu_linear_bytes(enum dtype dtype, int n, int k);
int gpu_linear_rows_after(const struct stream *stream, int rows);
enum status gpu_linear_put(struct stream *stream, const struct linear_weight *w, int n0, int rows, const void *src, size_t src_stride,
                           struct error *err);
enum status gpu_linear_copy_rows(struct stream *stream, const struct linear_weight *dst, const struct linear_weight *src, int n0, int rows,
                                 struct error *err);
enum status gpu_vector_put(struct stream *stream, float *dst, const void *src, enum dtype dtype, int n, struct error *err);
enum status gpu_linear_random(struct stream *stream, const struct linear_weight *w, int n0, const struct random_region *region,
                              struct error *err);
void gpu_stages_free(struct gpu_stream_object *stream);

/* moe.c */
size_t gpu_moe_scratch_bytes(const struct device *device, const struct moe_shape *shape);

#endif
