/* emu.h: the neutral names on an emulated device, so that kernels run, and are checked, where there is no GPU.
 *
 * The runtime (device/gpu/emu) is a driver in C: eight devices with memory of their own, streams, events, graphs. The kernels' sources are
 * compiled by a host compiler; each thread of a block is a fiber, and the compiler puts a call into the emulator before every access
 * to memory (-fsanitize=thread gives the calls, the emulator answers them, the sanitizer's own library is not linked). What is caught,
 * with the kernel, the block and the thread that did it:
 *   - an access outside of an allocation, to host memory that is not pinned, to a peer that was not enabled; a misaligned access;
 *   - a read of shared memory that this block has not written; an access beside a GPU_SHARED array or the launch's dynamic bytes;
 *   - two threads that use the same shared bytes, one of them writing, with no gpu_sync (or, in one wave, gpu_warp_sync) between them;
 *   - a barrier or a wave operation that some threads miss, or that they enter at different lines.
 * A fault is sticky, as on a device: every later call on that device returns it, and gpu_error_text tells it.
 *
 * Streams are eager: a launch has run when it returns, on the caller's OS thread. A kernel that waits for another rank's yields that thread
 * again and again. Blocks start in a seeded order, one after the other; when all that run only spin, the next one starts too.
 *
 * Not emulated: caches, memory that becomes visible late (all is sequentially consistent), the order of memory between blocks, time.
 */
#ifndef TANDEM_DEVICE_GPU_VENDOR_EMU_H
#define TANDEM_DEVICE_GPU_VENDOR_EMU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(enumerator, text). FAULT's text is what the first fault said. */
#define EMU_ERROR_LIST(X)                                                    \
	X(GPU_OK, "no error")                                                    \
	X(GPU_NOT_READY, "not ready")                                            \
	X(GPU_NO_MEMORY, "out of device memory")                                 \
	X(GPU_PEER_ALREADY, "peer access is already enabled")                    \
	X(EMU_BAD_VALUE, "invalid argument")                                     \
	X(EMU_BAD_LAUNCH, "launch outside of the device's limits")               \
	X(EMU_BAD_CAPTURE, "not allowed while a stream is being captured")       \
	X(EMU_FAULT, "fault in a kernel")

typedef enum emu_error {
#define X(code, text) code,
	EMU_ERROR_LIST(X)
#undef X
} gpu_error;
typedef struct emu_stream *gpu_stream;
typedef struct emu_event *gpu_event;
typedef struct emu_graph *gpu_graph;
typedef struct emu_graph *gpu_graph_exec;

const char *gpu_error_text(gpu_error code);
gpu_error gpu_last_error(void); /* of this OS thread's calls; forgets it */
gpu_error gpu_device_count(int *out);
gpu_error gpu_set_device(int device);
gpu_error gpu_props_get(struct gpu_props *out, int device);
gpu_error emu_malloc(void **out, size_t bytes); /* filled with 0xff: NaN in every float type */
gpu_error gpu_free(void *p);
gpu_error gpu_mem_info(size_t *free_bytes, size_t *total);
gpu_error emu_host_alloc(void **out, size_t bytes);
gpu_error gpu_host_free(void *p);
gpu_error gpu_memset_async(void *dst, int byte, size_t bytes, gpu_stream stream);
gpu_error gpu_copy_async(void *dst, const void *src, size_t bytes, gpu_stream stream);
gpu_error gpu_stream_create(gpu_stream *out);
gpu_error gpu_stream_destroy(gpu_stream stream);
gpu_error gpu_stream_query(gpu_stream stream);
typedef gpu_error (*gpu_stream_writer)(gpu_stream, void *, uint32_t); /* as in cuda.h */
gpu_error gpu_stream_writer_get(gpu_stream_writer *out);
#define gpu_stream_write(writer, stream, word, value) (writer)(stream, word, value)
gpu_error gpu_stream_wait_event(gpu_stream stream, gpu_event event);
gpu_error gpu_event_create(gpu_event *out);
gpu_error gpu_event_create_timing(gpu_event *out);
gpu_error gpu_event_destroy(gpu_event event);
gpu_error gpu_event_record(gpu_event event, gpu_stream stream);
gpu_error gpu_event_query(gpu_event event);
gpu_error gpu_event_elapsed_ms(float *out, gpu_event from, gpu_event to);
gpu_error gpu_capture_begin(gpu_stream stream);
gpu_error gpu_capture_end(gpu_stream stream, gpu_graph *out);
gpu_error gpu_graph_instantiate(gpu_graph_exec *out, gpu_graph graph);
gpu_error gpu_graph_destroy(gpu_graph graph);
gpu_error gpu_graph_exec_destroy(gpu_graph_exec exec);
gpu_error gpu_graph_launch(gpu_graph_exec exec, gpu_stream stream);
/* What a recorded graph launches, as in cuda.h. Nodes come in order of recording and have no edges. */
typedef const struct emu_op *gpu_graph_node;
typedef char gpu_graph_edge_kind;
gpu_error gpu_graph_nodes(gpu_graph graph, gpu_graph_node *nodes, size_t *count);
gpu_error gpu_graph_edges(gpu_graph graph, gpu_graph_node *from, gpu_graph_node *to, gpu_graph_edge_kind *kinds, size_t *count);
gpu_error gpu_graph_node_launch(gpu_graph_node node, struct gpu_launched *out);
gpu_error gpu_driver_version(int *out); /* of the emulator: what results may depend on */
#define gpu_runtime_version gpu_driver_version
#define GPU_DRIVER_FILE "" /* there is none */
gpu_error gpu_peer_can(int *out, int device, int peer);
gpu_error gpu_peer_enable(int peer);
/* As in cuda.h. A device of 64 lanes has 8, so that both kinds of packets are tried. */
#define GPU_WHOLE_BYTES (GPU_WARP == 64 ? 8 : 16)
#define GPU_COLLECTIVES_LIBRARY NULL /* NCCL's interface, loaded at run time; NULL: none */
#define GPU_ATTENTION_LIBRARY NULL /* cuDNN's interface (vendor/sdpa.h), loaded at run time; NULL: none */
#define GPU_EMULATED true /* on the host's cores, which have other work too */
#define gpu_malloc(out, bytes) emu_malloc((void **)(out), bytes)
#define gpu_malloc_shared gpu_malloc
#define gpu_host_alloc(out, bytes) emu_host_alloc((void **)(out), bytes)

/* ---- for tests of the emulated device and of what runs on several */

/* Seed of the order of fibers and blocks for what this OS thread launches from now on. */
void emu_seed(uint64_t seed);
/* Forgets all faults and peer access. Memory and streams stay. */
void emu_reset(void);
/* Switches of fibers on this OS thread so far. */
uint64_t emu_switches(void);

/* Kernels of several devices on one OS thread: between begin and run, everything put on streams by this thread is queued; run interleaves
 * the streams' kernels, all their blocks at once, by a seeded choice at each switch point (barrier, wave operation, volatile, acquire,
 * release and atomic accesses), and gpu_clock_ns counts switches, not time. Returns the first fault of any device. */
struct emu_together {
	uint64_t seed;
	uint64_t stall;         /* so many switches in which fibers did nothing but spin are a deadlock, which is a fault; 0: 200 000 */
	uint64_t ns_per_switch; /* how gpu_clock_ns advances; 0: 100 */
	void (*tick)(void *arg, uint64_t switches); /* may be NULL; called every `tick_every` switches: writes abort words and the like */
	void *arg;
	uint64_t tick_every;
};
void emu_together_begin(const struct emu_together *options);
gpu_error emu_together_run(void);

/* ---- between kernels and the emulator */
struct emu_dim3 {
	unsigned x, y, z;
#ifdef __cplusplus
	constexpr emu_dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
#endif
};
struct emu_index {
	struct emu_dim3 thread, block, block_dim, grid_dim;
};
/* One launch; `args` (copied) is what `invoke` gets on each fiber. */
struct emu_launch {
	const char *name;
	void (*invoke)(void *args);
	const void *kernel;
	const void *args;
	size_t args_bytes;
	struct emu_dim3 grid, block;
	size_t shared;
};
enum emu_meeting { EMU_SYNC, EMU_WAVE_SYNC, EMU_SHUFFLE_XOR, EMU_SHUFFLE_DOWN, EMU_SHUFFLE, EMU_BALLOT, EMU_MEETINGS };

gpu_error emu_launch(const struct emu_launch *launch, gpu_stream stream);
gpu_error emu_allow_shared(const void *kernel, size_t bytes);
const struct emu_index *emu_index(void) __attribute__((const)); /* one fiber sees one value */
void emu_sync(int line);
uint64_t emu_wave(enum emu_meeting kind, int line, uint64_t value, int argument);
void *emu_shared(const void *site, size_t bytes);
void *emu_dynamic_shared(void);
uint64_t emu_load(const void *p, size_t size);
void emu_store(void *p, uint64_t value, size_t size);
void emu_load16(const void *p, void *out, bool is_volatile);
void emu_store16(void *p, const void *in);
uint32_t emu_atomic_add_u32(uint32_t *p, uint32_t v);
uint64_t emu_atomic_add_u64(uint64_t *p, uint64_t v);
float emu_atomic_add_f32(float *p, float v);
uint32_t emu_atomic_max_u32(uint32_t *p, uint32_t v);
uint64_t emu_atomic_max_u64(uint64_t *p, uint64_t v);
int32_t emu_atomic_max_i32(int32_t *p, int32_t v);
void emu_fence(void);
void emu_pause(void);
void emu_trap(void) __attribute__((noreturn));
uint64_t emu_clock_ns(void);
uint16_t emu_f32_to_f16(float v);

#ifdef __cplusplus
}

/* ---- device */
#include <math.h>
#include <string.h>

#include "base/dtype.h"

typedef emu_dim3 dim3;
typedef emu_dim3 uint3;
#define threadIdx (emu_index()->thread)
#define blockIdx (emu_index()->block)
#define blockDim (emu_index()->block_dim)
#define gridDim (emu_index()->grid_dim)

#define GPU_KERNEL(max_threads) __attribute__((noinline)) void
#define GPU_KERNEL_ALONE GPU_KERNEL
#define GPU_DEVICE static inline
#define GPU_TEMPLATE inline
#define GPU_UNROLL
#define GPU_RARE static
#define GPU_PARAMETER const
#define GPU_RESTRICT __restrict__
#define GPU_HOST_TABLE(...) extern "C" __VA_ARGS__
#define GPU_SHARED(type, name, count)      \
	static const char name##_site = 0;     \
	type(&name)[count] = *reinterpret_cast<type(*)[count]>(emu_shared(&name##_site, sizeof(type) * (count)))
#define GPU_DYNAMIC_SHARED(name) unsigned char *const name = (unsigned char *)emu_dynamic_shared()
#define gpu_sync() emu_sync(__LINE__)
#define gpu_warp_sync() ((void)emu_wave(EMU_WAVE_SYNC, __LINE__, 0, 0))

/* Any type of at most 8 bytes. */
template <typename T> static inline T emu_shuffle(emu_meeting kind, int line, T value, int argument)
{
	static_assert(sizeof(T) <= 8, "a lane gives 8 bytes at most");
	uint64_t bits = 0;
	memcpy(&bits, &value, sizeof value);
	bits = emu_wave(kind, line, bits, argument);
	memcpy(&value, &bits, sizeof value);
	return value;
}
#define gpu_shfl_xor(value, mask) emu_shuffle(EMU_SHUFFLE_XOR, __LINE__, value, mask)
#define gpu_shfl_down(value, delta) emu_shuffle(EMU_SHUFFLE_DOWN, __LINE__, value, (int)(delta))
#define gpu_shfl(value, lane) emu_shuffle(EMU_SHUFFLE, __LINE__, value, lane)
#define gpu_ballot(predicate) ((unsigned long long)emu_wave(EMU_BALLOT, __LINE__, (predicate) ? 1 : 0, 0))

static inline unsigned gpu_atomic_add(unsigned *p, unsigned v)
{
	return emu_atomic_add_u32(p, v);
}
static inline int gpu_atomic_add(int *p, int v)
{
	return (int)emu_atomic_add_u32((uint32_t *)p, (uint32_t)v);
}
static inline unsigned long long gpu_atomic_add(unsigned long long *p, unsigned long long v)
{
	return emu_atomic_add_u64((uint64_t *)p, v);
}
static inline float gpu_atomic_add(float *p, float v)
{
	return emu_atomic_add_f32(p, v);
}
static inline unsigned gpu_atomic_max(unsigned *p, unsigned v)
{
	return emu_atomic_max_u32(p, v);
}
static inline int gpu_atomic_max(int *p, int v)
{
	return emu_atomic_max_i32(p, v);
}
static inline unsigned long long gpu_atomic_max(unsigned long long *p, unsigned long long v)
{
	return emu_atomic_max_u64((uint64_t *)p, v);
}
#define gpu_fence_device() emu_fence()
#define gpu_fence_system() emu_fence()
#define gpu_fma(a, b, c) fmaf(a, b, c)
#define gpu_mul(a, b) ((float)(a) * (float)(b))
#define gpu_add(a, b) ((float)(a) + (float)(b))

GPU_DEVICE void gpu_wait_previous(void)
{
}
GPU_DEVICE void gpu_start_next(void)
{
}

struct alignas(16) gpu_vec16 {
	uint32_t x[4];
};
GPU_DEVICE gpu_vec16 gpu_load16_stream(const void *p)
{
	gpu_vec16 v;
	emu_load16(p, &v, false);
	return v;
}
/* As in cuda.h, but the copy is done when it returns. */
GPU_DEVICE void gpu_copy16(void *shared, const void *from)
{
	*(gpu_vec16 *)shared = gpu_load16_stream(from);
}
GPU_DEVICE void gpu_copy_commit(void)
{
}
template <int N> GPU_TEMPLATE void gpu_copy_wait(void)
{
}
GPU_DEVICE void gpu_trap(void)
{
	emu_trap();
}
GPU_DEVICE uint32_t gpu_load_acquire(const uint32_t *p)
{
	return (uint32_t)emu_load(p, sizeof *p);
}
GPU_DEVICE void gpu_store_release(uint32_t *p, uint32_t v)
{
	emu_store(p, v, sizeof *p);
}
GPU_DEVICE uint32_t gpu_load_volatile(const uint32_t *p)
{
	return (uint32_t)emu_load(p, sizeof *p);
}
GPU_DEVICE gpu_vec16 gpu_load16_volatile(const void *p)
{
	gpu_vec16 v;
	emu_load16(p, &v, true);
	return v;
}
GPU_DEVICE void gpu_store16_volatile(void *p, gpu_vec16 v)
{
	emu_store16(p, &v);
}
GPU_DEVICE unsigned long long gpu_load8_volatile(const unsigned long long *p)
{
	return emu_load(p, sizeof *p);
}
GPU_DEVICE void gpu_store8_volatile(unsigned long long *p, unsigned long long v)
{
	emu_store(p, v, sizeof *p);
}
GPU_DEVICE unsigned long long gpu_clock_ns(void)
{
	return emu_clock_ns();
}
GPU_DEVICE void gpu_spin_pause(void)
{
	emu_pause();
}
GPU_DEVICE float gpu_f16_to_f32(uint16_t bits)
{
	return f16_to_f32(bits);
}
GPU_DEVICE uint16_t gpu_f32_to_f16(float v)
{
	return emu_f32_to_f16(v);
}
GPU_DEVICE uint16_t gpu_f32_to_bf16(float v)
{
	return bf16_from_f32(v);
}

template <typename... Formal, typename... Actual>
static inline gpu_error gpu_launch(const char *name, void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, gpu_stream stream, Actual... args)
{
	/* The conversions to the formal types happen here, once; the lambda's bytes are what a graph keeps. */
	auto bind = [](void (*k)(Formal...), Formal... formal) { return [=] { k(formal...); }; };
	auto call = bind(kernel, static_cast<Formal>(args)...);
	struct emu_launch launch = {};
	launch.name = name;
	launch.invoke = [](void *p) { (*static_cast<decltype(call) *>(p))(); };
	launch.kernel = (const void *)kernel;
	launch.args = &call;
	launch.args_bytes = sizeof call;
	launch.grid = grid;
	launch.block = block;
	launch.shared = shared;
	return emu_launch(&launch, stream);
}
#define GPU_LAUNCH(kernel, grid, block, shared, stream, ...) gpu_launch(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)
#define gpu_preload(kernel) ((void)(kernel), GPU_OK)
#define gpu_allow_shared(kernel, bytes) emu_allow_shared((const void *)(kernel), bytes)
#endif

#endif
