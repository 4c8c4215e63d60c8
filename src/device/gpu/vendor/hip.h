/* hip.h: the neutral names on HIP, of 5.2 and later (Debian 12's). Compiled for gfx90a and gfx906, whose waves have 64 lanes; for a target with
 * 32 the build sets GPU_WARP (Makefile: HIP_ARCHS). Compiled in CI; nobody has run it on a device. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_HIP_H
#define TANDEM_DEVICE_GPU_VENDOR_HIP_H

#ifdef __HIPCC__
#include <hip/hip_runtime.h>
#else
#include <hip/hip_runtime_api.h>
#endif
#include <string.h>

/* ---- host */
typedef hipError_t gpu_error;
typedef hipStream_t gpu_stream;
typedef hipEvent_t gpu_event;
typedef hipGraph_t gpu_graph;
typedef hipGraphExec_t gpu_graph_exec;

#define GPU_COLLECTIVES_LIBRARY "librccl.so.1" /* NCCL's interface, loaded at run time; NULL: none */
#define GPU_ATTENTION_LIBRARY NULL /* cuDNN's interface (vendor/sdpa.h), loaded at run time; NULL: none */
#define GPU_EMULATED false
#define GPU_OK hipSuccess
#define GPU_NOT_READY hipErrorNotReady
#define GPU_NO_MEMORY hipErrorOutOfMemory
#define GPU_PEER_ALREADY hipErrorPeerAccessAlreadyEnabled
#define gpu_error_text hipGetErrorString
#define gpu_last_error hipGetLastError
#define gpu_device_count hipGetDeviceCount
#define gpu_set_device hipSetDevice
#define gpu_malloc(out, bytes) hipMalloc((void **)(out), bytes)
#define gpu_free hipFree
#define gpu_mem_info hipMemGetInfo
/* Coherent: what a kernel writes there is seen while it runs. */
#define gpu_host_alloc(out, bytes) hipHostMalloc((void **)(out), bytes, hipHostMallocPortable | hipHostMallocMapped | hipHostMallocCoherent)
#define gpu_host_free hipHostFree
#define gpu_memset_async hipMemsetAsync
#define gpu_copy_async(dst, src, bytes, stream) hipMemcpyAsync(dst, src, bytes, hipMemcpyDefault, stream)
#define gpu_stream_create(out) hipStreamCreateWithFlags(out, hipStreamNonBlocking)
#define gpu_stream_destroy hipStreamDestroy
#define gpu_stream_query hipStreamQuery
#define gpu_event_create(out) hipEventCreateWithFlags(out, hipEventDisableTiming)
#define gpu_event_create_timing hipEventCreate
#define gpu_event_destroy hipEventDestroy
#define gpu_event_record hipEventRecord
#define gpu_event_query hipEventQuery
#define gpu_event_elapsed_ms hipEventElapsedTime
#define gpu_stream_wait_event(stream, event) hipStreamWaitEvent(stream, event, 0)
#define gpu_capture_begin(stream) hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal)
#define gpu_capture_end hipStreamEndCapture
#define gpu_graph_instantiate(out, graph) hipGraphInstantiate(out, graph, NULL, NULL, 0)
#define gpu_graph_destroy hipGraphDestroy
#define gpu_graph_exec_destroy hipGraphExecDestroy
#define gpu_graph_launch hipGraphLaunch
/* The most bytes of which another device sees all or nothing: what AMD's memory model promises. */
#define GPU_WHOLE_BYTES 8
/* Fine-grained: kernels that run at the same time on several devices see each other's writes. */
#define gpu_malloc_shared(out, bytes) hipExtMallocWithFlags((void **)(out), bytes, hipDeviceMallocFinegrained)
#define gpu_peer_can hipDeviceCanAccessPeer
#define gpu_peer_enable(peer) hipDeviceEnablePeerAccess(peer, 0)

static inline gpu_error gpu_props_get(struct gpu_props *out, int device)
{
	hipDeviceProp_t p;
	gpu_error code = hipGetDeviceProperties(&p, device);
	if (code != GPU_OK) return code;
	memset(out, 0, sizeof *out);
	for (size_t i = 0; i + 1 < sizeof out->name && p.name[i]; i++) out->name[i] = p.name[i];
	/* "gfx90a:sramecc+:xnack-" */
	for (size_t i = 0; i + 1 < sizeof out->arch && p.gcnArchName[i] && p.gcnArchName[i] != ':'; i++) out->arch[i] = p.gcnArchName[i];
	out->warp = p.warpSize;
	out->multiprocessors = p.multiProcessorCount;
	out->max_threads = p.maxThreadsPerBlock;
	out->max_shared = p.sharedMemPerBlock;
	out->l2_bytes = (size_t)p.l2CacheSize;
	out->memory_bytes = p.totalGlobalMem;
	return GPU_OK;
}

/* As in cuda.h. */
typedef hipError_t (*gpu_stream_writer)(hipStream_t, void *, uint32_t, unsigned);
static inline gpu_error gpu_stream_writer_get(gpu_stream_writer *out)
{
	*out = hipStreamWriteValue32;
	return GPU_OK;
}
#define gpu_stream_write(writer, stream, word, value) (writer)(stream, word, value, 0)

/* ---- what a recorded graph launches: as in cuda.h. */
typedef hipGraphNode_t gpu_graph_node;
typedef char gpu_graph_edge_kind;
#define gpu_graph_nodes hipGraphGetNodes

static inline gpu_error gpu_graph_edges(gpu_graph graph, gpu_graph_node *from, gpu_graph_node *to, gpu_graph_edge_kind *kinds, size_t *count)
{
	(void)kinds;
	return hipGraphGetEdges(graph, from, to, count);
}

/* `func` of a kernel of this program is its host function; of a library's, most likely a hipFunction_t: the first is asked first. */
static inline gpu_error gpu_graph_node_launch(gpu_graph_node node, struct gpu_launched *out)
{
	hipKernelNodeParams p;
	hipGraphNodeType type;
	gpu_error code = hipGraphNodeGetType(node, &type);
	memset(out, 0, sizeof *out);
	if (code != GPU_OK || type != hipGraphNodeTypeKernel) return code;
	if ((code = hipGraphKernelNodeGetParams(node, &p)) != GPU_OK) return code;
	out->name = hipKernelNameRefByPtr(p.func, NULL);
	if (!out->name) out->name = hipKernelNameRef((hipFunction_t)p.func);
	if (!out->name) return hipErrorInvalidDeviceFunction;
	out->kernel = true;
	out->grid[0] = p.gridDim.x, out->grid[1] = p.gridDim.y, out->grid[2] = p.gridDim.z;
	out->block[0] = p.blockDim.x, out->block[1] = p.blockDim.y, out->block[2] = p.blockDim.z;
	out->shared = p.sharedMemBytes;
	return GPU_OK;
}

#define gpu_driver_version hipDriverGetVersion
#define gpu_runtime_version hipRuntimeGetVersion
#define GPU_DRIVER_FILE "/sys/module/amdgpu/version"

/* ---- device */
#ifdef __HIPCC__
#if defined(__AMDGCN_WAVEFRONT_SIZE)
static_assert(__AMDGCN_WAVEFRONT_SIZE == GPU_WARP, "the host's code was told another wave width than this target has");
#endif

#define GPU_KERNEL(max_threads) __global__ void __launch_bounds__(max_threads)
#define GPU_KERNEL_ALONE GPU_KERNEL
#define GPU_DEVICE static __device__ __forceinline__
#define GPU_TEMPLATE __device__ __forceinline__
#define GPU_UNROLL _Pragma("unroll")
#define GPU_RARE static __device__ __attribute__((noinline))
#define GPU_PARAMETER const
#define GPU_RESTRICT __restrict__
/* The device's compilation would make a constant of its own of a constant table, and not find the host functions in it. */
#if defined(__HIP_DEVICE_COMPILE__)
#define GPU_HOST_TABLE(...)
#else
#define GPU_HOST_TABLE(...) extern "C" __VA_ARGS__
#endif
#define GPU_SHARED(type, name, count) __shared__ __attribute__((aligned(16))) type name[count]
#define GPU_DYNAMIC_SHARED(name) extern __shared__ __attribute__((aligned(16))) unsigned char name[]
#define gpu_sync() __syncthreads()
/* The lanes of a wave run in step and their accesses stay in order: the compiler alone must be held back. */
#define gpu_warp_sync() (__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront"), __builtin_amdgcn_wave_barrier())
#define gpu_shfl_xor(value, mask) __shfl_xor(value, mask)
#define gpu_shfl_down(value, delta) __shfl_down(value, delta)
#define gpu_shfl(value, lane) __shfl(value, lane)
#define gpu_ballot(predicate) ((unsigned long long)__ballot(predicate))
#define gpu_atomic_add(address, value) atomicAdd(address, value)
#define gpu_atomic_max(address, value) atomicMax(address, value)
#define gpu_fence_device() __threadfence()
#define gpu_fence_system() __threadfence_system()
/* -ffp-contract=off: the compiler fuses nothing by itself. */
#define gpu_fma(a, b, c) __builtin_fmaf(a, b, c)
#define gpu_mul(a, b) ((float)(a) * (float)(b))
#define gpu_add(a, b) ((float)(a) + (float)(b))

/* A kernel starts when the one before it has ended. */
GPU_DEVICE void gpu_wait_previous(void)
{
}
GPU_DEVICE void gpu_start_next(void)
{
}

struct alignas(16) gpu_vec16 {
	uint32_t x[4];
};
typedef uint32_t gpu_words4 __attribute__((ext_vector_type(4)));

GPU_DEVICE gpu_vec16 gpu_from_words4(gpu_words4 w)
{
	gpu_vec16 v;
	v.x[0] = w.x, v.x[1] = w.y, v.x[2] = w.z, v.x[3] = w.w;
	return v;
}
GPU_DEVICE gpu_vec16 gpu_load16_stream(const void *p)
{
	return gpu_from_words4(__builtin_nontemporal_load((const gpu_words4 *)p));
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
	__builtin_trap();
}
GPU_DEVICE uint32_t gpu_load_acquire(const uint32_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
}
GPU_DEVICE void gpu_store_release(uint32_t *p, uint32_t v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
GPU_DEVICE uint32_t gpu_load_volatile(const uint32_t *p)
{
	return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
/* One instruction each, past the caches of this device. That 16 aligned bytes then arrive in one piece is what the hardware does as far as
 * is known; AMD's memory model does not promise it. */
GPU_DEVICE gpu_vec16 gpu_load16_volatile(const void *p)
{
	return gpu_from_words4(*(const volatile gpu_words4 *)p);
}
GPU_DEVICE void gpu_store16_volatile(void *p, gpu_vec16 v)
{
	gpu_words4 w;
	w.x = v.x[0], w.y = v.x[1], w.z = v.x[2], w.w = v.x[3];
	*(volatile gpu_words4 *)p = w;
}
GPU_DEVICE unsigned long long gpu_load8_volatile(const unsigned long long *p)
{
	return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
GPU_DEVICE void gpu_store8_volatile(unsigned long long *p, unsigned long long v)
{
	__hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
/* The constant clock ticks at 100 MHz on gfx90a and at 25 on gfx906. It measures deadlines, which need no more. */
GPU_DEVICE unsigned long long gpu_clock_ns(void)
{
#if defined(__gfx906__)
	const unsigned long long ns = 40;
#else
	const unsigned long long ns = 10;
#endif
	return (unsigned long long)__builtin_amdgcn_s_memrealtime() * ns;
}
/* About 64 cycles each: leaves the memory pipe to others. */
GPU_DEVICE void gpu_spin_pause(void)
{
	__builtin_amdgcn_s_sleep(1);
}

GPU_DEVICE float gpu_f16_to_f32(uint16_t bits)
{
	return (float)__builtin_bit_cast(_Float16, bits);
}
GPU_DEVICE uint16_t gpu_f32_to_f16(float v)
{
	return __builtin_bit_cast(uint16_t, (_Float16)v);
}
GPU_DEVICE uint16_t gpu_f32_to_bf16(float v)
{
	const uint32_t bits = __builtin_bit_cast(uint32_t, v);
	if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40);
	return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

template <typename... Formal>
static inline gpu_error gpu_launch_formal(void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, gpu_stream stream, Formal... args)
{
	void *pointers[] = {(void *)&args...};
	return hipLaunchKernel((const void *)kernel, grid, block, pointers, shared, stream);
}
template <typename... Formal, typename... Actual>
static inline gpu_error gpu_launch(void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, gpu_stream stream, Actual... args)
{
	return gpu_launch_formal<Formal...>(kernel, grid, block, shared, stream, static_cast<Formal>(args)...);
}
#define GPU_LAUNCH(kernel, grid, block, shared, stream, ...) gpu_launch(kernel, grid, block, shared, stream, __VA_ARGS__)
#define gpu_preload(kernel) gpu_preload_((const void *)(kernel))
static inline gpu_error gpu_preload_(const void *kernel)
{
	struct hipFuncAttributes ignored;
	return hipFuncGetAttributes(&ignored, kernel);
}
#define gpu_allow_shared(kernel, bytes) hipFuncSetAttribute((const void *)(kernel), hipFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
#endif

#endif
