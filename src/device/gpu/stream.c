/* stream.c: streams with their workspace, waiting for them, events.
 *
 * Nothing here blocks inside the runtime: waits poll, so that every one of them sees the group's abort and its deadline (contract C2).
 */
#include "device/gpu/device.h"

#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"
#include "device/gpu/attention.h"
#include "device/gpu/gdn_chunk.h"
#include "device/gpu/library.h"

/* How long after an abort a stream may take to run dry: kernels that wait for a peer look at the abort word every few microseconds. */
#define ABORT_GRACE_MS 2000
/* As in base/wait.c: a spin, then a spin that offers the core for as long as a decode step may take (a nap overshoots by up to 70 us), then
 * naps short against a prefill. */
#define SPIN_NS 20000
#define YIELD_NS 40000000
#define NAP_NS 20000

const struct gpu_context *gpu_context(const struct stream *stream)
{
	return &((const struct gpu_stream_object *)stream)->context;
}

/* ---- waiting
 *
 * A sync puts the write of a number behind the stream's work, and looks for that number in host memory. The runtime is asked now and then, since what failed
 * writes nothing; asking takes locks of the runtime, which a peer's launches need as well: a rank that asks without a pause can keep its peer from launching
 * the very thing it waits for. On two H200 some steps took as much longer as the spin lasted.
 */

#define LOOK_NS 10000 /* of a spin, between two looks of the caller at its abort flag and deadline; without a word the runtime is asked as often */
#define ASK_NS 500000 /* between two questions to the runtime, where there is a word */

static bool reached(const struct gpu_wait *wait)
{
	return wait->word && atomic_load_explicit(wait->word, memory_order_acquire) == wait->mark;
}

/* Until the word says so, but no longer than a look. */
static void spin(const struct gpu_wait *wait)
{
	for (uint64_t begin = clock_ns(); clock_ns() - begin < LOOK_NS;)
		for (int i = 0; i < 16; i++) {
			if (reached(wait)) return;
			wait_relax();
		}
}

void gpu_wait_begin(struct gpu_wait *wait, struct stream *stream)
{
	struct gpu_stream_object *object = gpu_stream_object(stream);
	*wait = (struct gpu_wait){.stream = object->context.stream, .begin_ns = clock_ns()};
	if (!object->word || gpu_stream_write(object->writer, wait->stream, (void *)object->word, object->marks + 1) != GPU_OK) return;
	wait->word = object->word;
	wait->mark = ++object->marks;
	wait->ask_ns = wait->begin_ns + ASK_NS;
}

bool gpu_wait_look(struct gpu_wait *wait, gpu_error *code)
{
	if (reached(wait)) { /* asked once: for a failure. The runtime may not have noticed the end itself. */
		*code = gpu_stream_query(wait->stream);
		if (*code == GPU_NOT_READY) *code = GPU_OK;
		return false;
	}
	*code = GPU_NOT_READY;
	const uint64_t now = clock_ns(), waited = now - wait->begin_ns;
	if (now >= wait->ask_ns) {
		*code = gpu_stream_query(wait->stream);
		if (*code != GPU_NOT_READY) return false;
		wait->ask_ns = now + (wait->word ? ASK_NS : 0);
	}
	if (waited < YIELD_NS) spin(wait);
	if (waited < SPIN_NS || reached(wait)) return true;
	if (waited < YIELD_NS) sched_yield();
	else nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	return true;
}

enum status gpu_drain(gpu_stream stream, uint64_t deadline_ns, const char *what, struct error *err)
{
	struct gpu_wait wait = {.stream = stream, .begin_ns = clock_ns()};
	gpu_error code;
	while (gpu_wait_look(&wait, &code))
		if (clock_ns() >= deadline_ns)
			return FAIL(err, TIMEOUT, "%s: not done after %.1f s", what, (double)(clock_ns() - wait.begin_ns) * 1e-9);
	return gpu_check(code, what, err);
}

/* An aborted group's kernels leave their waits by the abort word: only then is its memory safe to touch. What the stream says beyond the
 * abort is not reported: the group has its first error. */
static enum status aborted(gpu_stream stream, struct error *err)
{
	struct error ignored = {0};
	enum status st = gpu_drain(stream, clock_deadline_ms(ABORT_GRACE_MS), "after an abort", &ignored);
	if (st == STATUS_OK) return FAIL(err, ABORTED, "stream: the group was aborted");
	return FAIL(err, ABORTED, "stream: the group was aborted, and then %s", ignored.text);
}

enum status gpu_stream_object_sync(struct stream *base, uint64_t deadline_ns, const _Atomic int *abort, struct error *err)
{
	struct gpu_stream_object *object = gpu_stream_object(base);
	if (object->recording) return FAIL(err, BAD_INPUT, "stream: sync while it records a graph");
	struct gpu_wait wait;
	gpu_error code;
	gpu_wait_begin(&wait, base);
	while (gpu_wait_look(&wait, &code)) {
		if (abort && atomic_load_explicit(abort, memory_order_acquire)) return aborted(wait.stream, err);
		if (clock_ns() >= deadline_ns)
			return FAIL(err, TIMEOUT, GPU_NAME_TEXT " device %d: its work was not done after %.1f s", object->context.ordinal,
			            (double)(clock_ns() - wait.begin_ns) * 1e-9);
	}
	enum status st = gpu_check(code, GPU_NAME_TEXT " stream", err);
	if (st != STATUS_OK) error_prefix(err, "device %d", object->context.ordinal);
	return st;
}

/* ---- streams */

/* Device memory for one op at a time: the most that an op wants. Each family says what it wants for such a stream. */
#define GEMM_WORKSPACE_BYTES ((size_t)32 << 20)

static size_t workspace_bytes(const struct stream_options *options, const struct gpu_props *props)
{
	const size_t wants[] = {GEMM_WORKSPACE_BYTES, gpu_attention_workspace(options, props), gpu_gdn_workspace(options)};
	size_t most = 0;
	for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) most = wants[i] > most ? wants[i] : most;
	return most;
}

static int counter_count(const struct stream_options *options)
{
	const int most = gpu_attention_counters(options);
	return most > GPU_COUNTERS ? most : GPU_COUNTERS;
}

void gpu_stream_object_destroy(struct stream *base)
{
	if (!base) return;
	struct gpu_stream_object *object = gpu_stream_object(base);
	struct gpu_context *context = &object->context;
	struct error ignored = {0};
	/* what still runs would use the workspace; after a fault the stream is dry */
	if (context->stream) (void)!gpu_drain(context->stream, clock_deadline_ms(ABORT_GRACE_MS), "stream", &ignored);
	gemm_library_destroy(&context->gemm);
	attention_library_destroy(&object->dispatch.attention_library);
	free(object->dispatch.preferred);
	free(object->dispatch.attention);
	free(object->dispatch.moe);
	gpu_stages_free(object);
	gpu_memory_free(base->device, context->workspace);
	gpu_memory_free(base->device, context->counters);
	gpu_memory_free(base->device, context->meeting);
	if (context->stream) (void)gpu_stream_destroy(context->stream);
	gpu_memory_host_free(base->device, (void *)object->word);
	free(object);
}

static enum status make_word(struct gpu_stream_object *object, struct error *err)
{
	void *word;
	if (gpu_stream_writer_get(&object->writer) != GPU_OK) return STATUS_OK;
	TRY(gpu_memory_host_alloc(object->base.device, sizeof *object->word, "stream progress", &word, err));
	object->word = word;
	atomic_store(object->word, 0);
	return STATUS_OK;
}

enum status gpu_stream_object_create(struct device *device, const struct stream_options *options, struct stream **out, struct error *err)
{
	*out = NULL;
	const struct stream_options *o = options;
	if (o->max_rows < 0 || o->max_k < 0 || o->max_n < 0 || o->max_q_heads < 0 || o->max_head_dim < 0 || o->max_context < 0 || o->max_seqs < 0)
		return FAIL(err, BAD_INPUT, "gpu stream: rows %d, k %d, n %d, heads %d of %d, context %d, sequences %d: none may be negative", o->max_rows,
		            o->max_k, o->max_n, o->max_q_heads, o->max_head_dim, o->max_context, o->max_seqs);
	struct gpu_stream_object *object = mem_zalloc(1, sizeof *object, "gpu stream", err);
	if (!object) return STATUS_NO_MEMORY;
	struct gpu_context *context = &object->context;
	object->base = (struct stream){.vt = device->vt, .device = device};
	context->ordinal = gpu_device(device)->ordinal;
	context->props = gpu_device(device)->props;
	context->alone = gpu_device(device)->sharers <= 1;
	context->invariant = o->invariant;
	context->dispatch = &object->dispatch;
	context->log = gpu_device(device)->log;
	context->recording = &object->recording;
	context->workspace_bytes = workspace_bytes(o, &context->props);
	context->counter_count = counter_count(o);
	enum status st;
	TRY_GOTO(gpu_check(gpu_stream_create(&context->stream), "stream", err), fail);
	TRY_GOTO(gpu_memory_alloc(device, context->workspace_bytes, MEM_WORKSPACE, "stream workspace", &context->workspace, err), fail);
	TRY_GOTO(gpu_memory_alloc(device, (size_t)context->counter_count * sizeof(uint32_t), MEM_WORKSPACE, "stream counters", (void **)&context->counters, err), fail);
	TRY_GOTO(gpu_memory_alloc(device, GPU_MEETING_BYTES, MEM_WORKSPACE, "stream meeting words", &context->meeting, err), fail);
	TRY_GOTO(gemm_library_create(&context->gemm, NULL, err), fail);
	TRY_GOTO(make_word(object, err), fail);
	gpu_memory_count_runtime(gpu_device(device));
	*out = &object->base;
	return STATUS_OK;
fail:
	gpu_stream_object_destroy(&object->base);
	return st;
}

/* ---- events */

struct gpu_event_object {
	struct event base;
	gpu_event event;
};

enum status gpu_event_object_create(struct device *device, struct event **out, struct error *err)
{
	*out = NULL;
	struct gpu_event_object *object = mem_zalloc(1, sizeof *object, "gpu event", err);
	if (!object) return STATUS_NO_MEMORY;
	object->base.vt = device->vt;
	enum status st = gpu_check(gpu_event_create_timing(&object->event), "event", err);
	if (st != STATUS_OK) {
		free(object);
		return st;
	}
	*out = &object->base;
	return STATUS_OK;
}

enum status gpu_event_object_elapsed_ms(const struct event *from, const struct event *to, float *ms, struct error *err)
{
	return gpu_check(gpu_event_elapsed_ms(ms, ((const struct gpu_event_object *)from)->event, ((const struct gpu_event_object *)to)->event),
	                 "event times", err);
}

void gpu_event_object_destroy(struct event *event)
{
	if (!event) return;
	(void)gpu_event_destroy(((struct gpu_event_object *)event)->event);
	free(event);
}

enum status gpu_event_object_record(struct event *event, struct stream *stream, struct error *err)
{
	return gpu_check(gpu_event_record(((struct gpu_event_object *)event)->event, gpu_context(stream)->stream), "event record", err);
}
