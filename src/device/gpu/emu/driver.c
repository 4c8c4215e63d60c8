/* driver.c: devices, streams, events and graphs of the emulated device: what a vendor's runtime library does.
 *
 * An op is a launch, a copy, a fill, or the recording or awaiting of an event. Put on a stream it is done at once (eager), kept in a graph
 * (the stream is being captured) or queued (between emu_together_begin and _run). A graph is the list of its ops in the order of their capture,
 * which respects every dependency that events made.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/gpu/emu/internal.h"

struct emu_event {
	bool timing;
	uint64_t recorded, done; /* versions: what a record made, what has been reached */
	uint64_t time_ns;
	struct emu_graph *capture; /* recorded by a stream under capture: whoever waits for it joins the capture */
};

struct emu_graph {
	int references, device;
	struct emu_op *head, **tail;
	struct emu_stream *streams; /* under capture: the origin and who joined */
};

/* As in a vendor's runtime, each OS thread has a current device and a last error. */
static _Thread_local int current_device;
static _Thread_local gpu_error last_error;
static _Thread_local int captures; /* that go on */

static gpu_error done(gpu_error code)
{
	if (code != GPU_OK && code != GPU_NOT_READY) last_error = code;
	return code;
}

gpu_error gpu_last_error(void)
{
	const gpu_error code = last_error;
	last_error = GPU_OK;
	return code;
}

const char *gpu_error_text(gpu_error code)
{
	static const char *const texts[] = {
#define X(name, text) text,
		EMU_ERROR_LIST(X)
#undef X
	};
	if (code == EMU_FAULT) return emu_fault_text();
	return (unsigned)code < sizeof texts / sizeof texts[0] ? texts[code] : "unknown error";
}

void emu_reset(void)
{
	emu_faults_reset();
	emu_memory_peers_reset();
	last_error = GPU_OK;
}

/* ---- devices and memory */

gpu_error gpu_device_count(int *out)
{
	*out = EMU_DEVICES;
	return GPU_OK;
}

static bool is_device(int device)
{
	return device >= 0 && device < EMU_DEVICES;
}

gpu_error gpu_set_device(int device)
{
	if (!is_device(device)) return done(EMU_BAD_VALUE);
	current_device = device;
	return GPU_OK;
}

gpu_error gpu_props_get(struct gpu_props *out, int device)
{
	if (!is_device(device)) return done(EMU_BAD_VALUE);
	*out = (struct gpu_props){
		.name = "emulated device",
		.warp = GPU_WARP,
		.multiprocessors = 4,
		.max_threads = EMU_MAX_THREADS,
		.max_shared = EMU_MAX_SHARED,
		.l2_bytes = 1 << 20,
		.memory_bytes = EMU_DEVICE_BYTES,
	};
	snprintf(out->arch, sizeof out->arch, "emu%d", GPU_WARP);
	return GPU_OK;
}

gpu_error emu_malloc(void **out, size_t bytes)
{
	*out = NULL;
	if (captures) return done(EMU_BAD_CAPTURE);
	const gpu_error state = emu_device_state(current_device);
	return done(state != GPU_OK ? state : emu_memory_alloc(current_device, bytes, out));
}

gpu_error gpu_free(void *p)
{
	return done(captures ? EMU_BAD_CAPTURE : emu_memory_free(current_device, p));
}

gpu_error gpu_mem_info(size_t *free_bytes, size_t *total)
{
	emu_memory_info(current_device, free_bytes, total);
	return GPU_OK;
}

gpu_error emu_host_alloc(void **out, size_t bytes)
{
	*out = NULL;
	return done(captures ? EMU_BAD_CAPTURE : emu_memory_alloc(EMU_HOST, bytes, out));
}

gpu_error gpu_host_free(void *p)
{
	return done(emu_memory_free(EMU_HOST, p));
}

gpu_error gpu_peer_can(int *out, int device, int peer)
{
	if (!is_device(device) || !is_device(peer)) return done(EMU_BAD_VALUE);
	*out = device != peer;
	return GPU_OK;
}

gpu_error gpu_peer_enable(int peer)
{
	if (!is_device(peer) || peer == current_device) return done(EMU_BAD_VALUE);
	return done(emu_memory_peer_enable(current_device, peer) ? GPU_OK : GPU_PEER_ALREADY);
}

/* ---- ops */

static struct emu_op *op_clone(const struct emu_op *op)
{
	const size_t head = (sizeof *op + 15) / 16 * 16;
	struct emu_op *copy = malloc(head + op->launch.args_bytes);
	if (!copy) return NULL;
	*copy = *op;
	copy->next = NULL;
	if (op->launch.args_bytes) {
		memcpy((char *)copy + head, op->launch.args, op->launch.args_bytes);
		copy->launch.args = (char *)copy + head;
	}
	return copy;
}

void emu_op_free(struct emu_op *op)
{
	free(op);
}

/* Host memory, or inside of one allocation. */
static bool range_is_good(const void *p, size_t bytes)
{
	if (!emu_memory_reserved(p)) return p || !bytes;
	const struct emu_allocation *a = emu_memory_find(p);
	return a && (uintptr_t)p <= a->end && bytes <= a->end - (uintptr_t)p;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool emu_op_do(const struct emu_op *op, int device)
{
	switch (op->kind) {
	case EMU_OP_KERNEL: break;
	case EMU_OP_COPY:
		if (!range_is_good(op->dst, op->bytes) || !range_is_good(op->src, op->bytes))
			emu_fault(device, "copy of %zu bytes from %p to %p: outside of an allocation", op->bytes, op->src, op->dst);
		else if (op->bytes) memmove(op->dst, op->src, op->bytes);
		break;
	case EMU_OP_SET:
		if (!range_is_good(op->dst, op->bytes)) emu_fault(device, "fill of %zu bytes at %p: outside of an allocation", op->bytes, op->dst);
		else if (op->bytes) memset(op->dst, op->byte, op->bytes);
		break;
	case EMU_OP_WORD:
		if (!range_is_good(op->dst, sizeof op->word)) emu_fault(device, "write of a word at %p: outside of an allocation", op->dst);
		else __atomic_store_n((uint32_t *)op->dst, op->word, __ATOMIC_RELEASE);
		break;
	case EMU_OP_RECORD:
		__atomic_store_n(&op->event->time_ns, now_ns(), __ATOMIC_RELAXED);
		__atomic_store_n(&op->event->done, op->version, __ATOMIC_RELEASE);
		break;
	case EMU_OP_WAIT: return __atomic_load_n(&op->event->done, __ATOMIC_ACQUIRE) >= op->version;
	}
	return true;
}

static gpu_error op_run(struct emu_executor *ex, const struct emu_op *op, int device)
{
	if (op->kind == EMU_OP_KERNEL) return emu_grid_run(ex, op, device);
	/* Eager: what an event stands for has been done when it was recorded, or another OS thread is about to do it. */
	while (!emu_op_do(op, device)) nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
	return emu_device_state(device);
}

static gpu_error op_queue(struct emu_executor *ex, struct emu_stream *stream, const struct emu_op *op)
{
	struct emu_op *copy = op_clone(op);
	if (!copy) return GPU_NO_MEMORY;
	if (!stream->head) stream->tail = &stream->head;
	*stream->tail = copy;
	stream->tail = &copy->next;
	if (!stream->listed) {
		stream->listed = true;
		stream->next_queued = ex->streams;
		ex->streams = stream;
	}
	return GPU_OK;
}

static gpu_error op_put(gpu_stream stream, const struct emu_op *op)
{
	if (!stream || stream->device != current_device) return EMU_BAD_VALUE;
	if (stream->capture) {
		struct emu_op *copy = op_clone(op);
		if (!copy) return GPU_NO_MEMORY;
		*stream->capture->tail = copy;
		stream->capture->tail = &copy->next;
		return GPU_OK;
	}
	struct emu_executor *ex = emu_executor();
	if (!ex) return GPU_NO_MEMORY;
	const gpu_error state = emu_device_state(stream->device);
	if (state != GPU_OK) return state;
	return ex->queueing ? op_queue(ex, stream, op) : op_run(ex, op, stream->device);
}

gpu_error gpu_memset_async(void *dst, int byte, size_t bytes, gpu_stream stream)
{
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_SET, .dst = dst, .byte = byte, .bytes = bytes}));
}

gpu_error gpu_copy_async(void *dst, const void *src, size_t bytes, gpu_stream stream)
{
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_COPY, .dst = dst, .src = src, .bytes = bytes}));
}

/* ---- launches */

#define MAX_ALLOWED 1024

static struct {
	pthread_mutex_t lock;
	int count;
	struct {
		const void *kernel;
		size_t bytes;
	} entry[MAX_ALLOWED];
} allowed = {.lock = PTHREAD_MUTEX_INITIALIZER};

gpu_error emu_allow_shared(const void *kernel, size_t bytes)
{
	if (bytes > EMU_MAX_SHARED) return done(EMU_BAD_VALUE);
	pthread_mutex_lock(&allowed.lock);
	int i = 0;
	while (i < allowed.count && allowed.entry[i].kernel != kernel) i++;
	const bool room = i < MAX_ALLOWED;
	if (room) allowed.entry[i].kernel = kernel, allowed.entry[i].bytes = bytes;
	if (i == allowed.count && room) allowed.count++;
	pthread_mutex_unlock(&allowed.lock);
	return done(room ? GPU_OK : GPU_NO_MEMORY);
}

static size_t allowed_shared(const void *kernel)
{
	size_t bytes = EMU_STATIC_SHARED;
	pthread_mutex_lock(&allowed.lock);
	for (int i = 0; i < allowed.count; i++)
		if (allowed.entry[i].kernel == kernel) bytes = allowed.entry[i].bytes;
	pthread_mutex_unlock(&allowed.lock);
	return bytes;
}

gpu_error emu_launch(const struct emu_launch *launch, gpu_stream stream)
{
	const struct emu_dim3 g = launch->grid, b = launch->block;
	const bool grid_fits = g.x && g.y && g.z && g.x <= 0x7fffffff && g.y <= 65535 && g.z <= 65535;
	const bool block_fits = b.x && b.y && b.z && b.x <= EMU_MAX_THREADS && b.y <= EMU_MAX_THREADS && b.z <= 64 &&
	                        (uint64_t)b.x * b.y * b.z <= EMU_MAX_THREADS;
	if (!grid_fits || !block_fits || launch->shared > EMU_MAX_SHARED || launch->shared > allowed_shared(launch->kernel)) return done(EMU_BAD_LAUNCH);
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_KERNEL, .launch = *launch}));
}

/* ---- streams and events */

gpu_error gpu_stream_create(gpu_stream *out)
{
	*out = calloc(1, sizeof **out);
	if (!*out) return done(GPU_NO_MEMORY);
	(*out)->device = current_device;
	return GPU_OK;
}

gpu_error gpu_stream_destroy(gpu_stream stream)
{
	if (!stream) return done(EMU_BAD_VALUE);
	struct emu_executor *ex = stream->listed ? emu_executor() : NULL;
	for (struct emu_stream **at = ex ? &ex->streams : NULL; at && *at; at = &(*at)->next_queued)
		if (*at == stream) {
			*at = stream->next_queued;
			break;
		}
	while (stream->head) {
		struct emu_op *op = stream->head;
		stream->head = op->next;
		emu_op_free(op);
	}
	free(stream);
	return GPU_OK;
}

gpu_error gpu_stream_query(gpu_stream stream)
{
	if (!stream) return done(EMU_BAD_VALUE);
	if (stream->capture) return done(EMU_BAD_CAPTURE);
	const gpu_error state = emu_device_state(stream->device);
	return done(state != GPU_OK ? state : stream->head ? GPU_NOT_READY : GPU_OK);
}

static gpu_error stream_write(gpu_stream stream, void *word, uint32_t value)
{
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_WORD, .dst = word, .word = value}));
}

gpu_error gpu_stream_writer_get(gpu_stream_writer *out)
{
	*out = stream_write;
	return GPU_OK;
}

static gpu_error event_new(gpu_event *out, bool timing)
{
	*out = calloc(1, sizeof **out);
	if (!*out) return done(GPU_NO_MEMORY);
	(*out)->timing = timing;
	return GPU_OK;
}

gpu_error gpu_event_create(gpu_event *out)
{
	return event_new(out, false);
}

gpu_error gpu_event_create_timing(gpu_event *out)
{
	return event_new(out, true);
}

gpu_error gpu_event_destroy(gpu_event event)
{
	if (!event) return done(EMU_BAD_VALUE);
	free(event);
	return GPU_OK;
}

gpu_error gpu_event_record(gpu_event event, gpu_stream stream)
{
	if (!event || !stream) return done(EMU_BAD_VALUE);
	event->capture = stream->capture;
	if (stream->capture) return GPU_OK; /* an edge between captured streams: the order of capture keeps it */
	const uint64_t version = __atomic_add_fetch(&event->recorded, 1, __ATOMIC_RELAXED);
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_RECORD, .event = event, .version = version}));
}

gpu_error gpu_event_query(gpu_event event)
{
	if (!event) return done(EMU_BAD_VALUE);
	if (event->capture) return done(EMU_BAD_CAPTURE);
	return __atomic_load_n(&event->done, __ATOMIC_ACQUIRE) < __atomic_load_n(&event->recorded, __ATOMIC_RELAXED) ? GPU_NOT_READY : GPU_OK;
}

gpu_error gpu_event_elapsed_ms(float *out, gpu_event from, gpu_event to)
{
	if (!from || !to || !from->timing || !to->timing || !from->recorded || !to->recorded) return done(EMU_BAD_VALUE);
	if (gpu_event_query(from) != GPU_OK || gpu_event_query(to) != GPU_OK) return GPU_NOT_READY;
	*out = (float)((double)(to->time_ns - from->time_ns) * 1e-6);
	return GPU_OK;
}

static void capture_join(struct emu_graph *graph, gpu_stream stream)
{
	stream->capture = graph;
	stream->next_queued = graph->streams;
	graph->streams = stream;
}

gpu_error gpu_stream_wait_event(gpu_stream stream, gpu_event event)
{
	if (!stream || !event) return done(EMU_BAD_VALUE);
	if (event->capture || stream->capture) {
		if (!event->capture && event->recorded) return done(EMU_BAD_CAPTURE); /* work from outside of the capture */
		if (event->capture && stream->capture && stream->capture != event->capture) return done(EMU_BAD_CAPTURE);
		if (event->capture && !stream->capture) capture_join(event->capture, stream);
		return GPU_OK;
	}
	const uint64_t version = __atomic_load_n(&event->recorded, __ATOMIC_RELAXED);
	return done(op_put(stream, &(struct emu_op){.kind = EMU_OP_WAIT, .event = event, .version = version}));
}

/* ---- graphs */

static void graph_unref(struct emu_graph *graph)
{
	if (__atomic_sub_fetch(&graph->references, 1, __ATOMIC_ACQ_REL)) return;
	while (graph->head) {
		struct emu_op *op = graph->head;
		graph->head = op->next;
		emu_op_free(op);
	}
	free(graph);
}

gpu_error gpu_capture_begin(gpu_stream stream)
{
	if (!stream || stream->device != current_device) return done(EMU_BAD_VALUE);
	if (stream->capture || stream->head) return done(EMU_BAD_CAPTURE);
	struct emu_graph *graph = calloc(1, sizeof *graph);
	if (!graph) return done(GPU_NO_MEMORY);
	graph->references = 1;
	graph->device = stream->device;
	graph->tail = &graph->head;
	capture_join(graph, stream);
	captures++;
	return GPU_OK;
}

gpu_error gpu_capture_end(gpu_stream stream, gpu_graph *out)
{
	*out = NULL;
	if (!stream || !stream->capture) return done(EMU_BAD_CAPTURE);
	struct emu_graph *graph = stream->capture;
	while (graph->streams) {
		struct emu_stream *s = graph->streams;
		graph->streams = s->next_queued;
		s->capture = NULL;
		s->next_queued = NULL;
	}
	captures--;
	*out = graph;
	return GPU_OK;
}

gpu_error gpu_graph_instantiate(gpu_graph_exec *out, gpu_graph graph)
{
	*out = NULL;
	if (!graph) return done(EMU_BAD_VALUE);
	__atomic_add_fetch(&graph->references, 1, __ATOMIC_RELAXED);
	*out = graph;
	return GPU_OK;
}

gpu_error gpu_graph_destroy(gpu_graph graph)
{
	if (!graph) return done(EMU_BAD_VALUE);
	graph_unref(graph);
	return GPU_OK;
}

gpu_error gpu_graph_exec_destroy(gpu_graph_exec exec)
{
	return gpu_graph_destroy(exec);
}

gpu_error gpu_graph_launch(gpu_graph_exec exec, gpu_stream stream)
{
	if (!exec || !stream || exec->device != stream->device) return done(EMU_BAD_VALUE);
	gpu_error code = GPU_OK;
	for (const struct emu_op *op = exec->head; op && code == GPU_OK; op = op->next) code = op_put(stream, op);
	return done(code);
}

gpu_error gpu_graph_nodes(gpu_graph graph, gpu_graph_node *nodes, size_t *count)
{
	const size_t room = *count;
	*count = 0;
	if (!graph) return done(EMU_BAD_VALUE);
	for (const struct emu_op *op = graph->head; op; op = op->next, ++*count)
		if (nodes && *count < room) nodes[*count] = op;
	return GPU_OK;
}

gpu_error gpu_graph_edges(gpu_graph graph, gpu_graph_node *from, gpu_graph_node *to, gpu_graph_edge_kind *kinds, size_t *count)
{
	(void)from, (void)to, (void)kinds;
	*count = 0;
	return done(graph ? GPU_OK : EMU_BAD_VALUE);
}

gpu_error gpu_graph_node_launch(gpu_graph_node node, struct gpu_launched *out)
{
	const struct emu_launch *l = &node->launch;
	*out = (struct gpu_launched){.kernel = node->kind == EMU_OP_KERNEL};
	if (!out->kernel) return GPU_OK;
	*out = (struct gpu_launched){.kernel = true, .name = l->name, .grid = {l->grid.x, l->grid.y, l->grid.z}, .block = {l->block.x, l->block.y, l->block.z},
	                             .shared = l->shared};
	return GPU_OK;
}

gpu_error gpu_driver_version(int *out)
{
	*out = 1000; /* as the vendors write 1.0 */
	return GPU_OK;
}
