/* cuda.h: the neutral names on CUDA. */
#ifndef TANDEM_DEVICE_GPU_VENDOR_CUDA_H
#define TANDEM_DEVICE_GPU_VENDOR_CUDA_H

#include <cuda.h>
#include <cuda_runtime.h>
#include <string.h>

/* ---- host */
typedef cudaError_t gpu_error;
typedef cudaStream_t gpu_stream;
typedef cudaEvent_t gpu_event;
typedef cudaGraph_t gpu_graph;
typedef cudaGraphExec_t gpu_graph_exec;

#define GPU_COLLECTIVES_LIBRARY "libnccl.so.2" /* NCCL's interface, loaded at run time; NULL: none */
#define GPU_ATTENTION_LIBRARY "libcudnn.so.9" /* cuDNN's interface (vendor/sdpa.h), loaded at run time; NULL: none */
#define GPU_EMULATED false
#define GPU_OK cudaSuccess
#define GPU_NOT_READY cudaErrorNotReady
#define GPU_NO_MEMORY cudaErrorMemoryAllocation
#define GPU_PEER_ALREADY cudaErrorPeerAccessAlreadyEnabled
#define gpu_error_text cudaGetErrorString
#define gpu_last_error cudaGetLastError
#define gpu_device_count cudaGetDeviceCount
#define gpu_set_device cudaSetDevice
#define gpu_malloc(out, bytes) cudaMalloc((void **)(out), bytes)
/* Memory in which kernels that run at the same time on several devices see each other's writes. */
#define gpu_malloc_shared gpu_malloc
#define gpu_free cudaFree
#define gpu_mem_info cudaMemGetInfo
/* Pinned host memory that kernels of every device can read and write; its device address is its host address. */
#define gpu_host_alloc(out, bytes) cudaHostAlloc((void **)(out), bytes, cudaHostAllocPortable | cudaHostAllocMapped)
#define gpu_host_free cudaFreeHost
#define gpu_memset_async cudaMemsetAsync
#define gpu_copy_async(dst, src, bytes, stream) cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream)
#define gpu_stream_create(out) cudaStreamCreateWithFlags(out, cudaStreamNonBlocking)
#define gpu_stream_destroy cudaStreamDestroy
#define gpu_stream_query cudaStreamQuery
#define gpu_event_create(out) cudaEventCreateWithFlags(out, cudaEventDisableTiming)
#define gpu_event_create_timing cudaEventCreate
#define gpu_event_destroy cudaEventDestroy
#define gpu_event_record cudaEventRecord
#define gpu_event_query cudaEventQuery
#define gpu_event_elapsed_ms cudaEventElapsedTime
#define gpu_stream_wait_event(stream, event) cudaStreamWaitEvent(stream, event, 0)
#define gpu_capture_begin(stream) cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)
#define gpu_capture_end cudaStreamEndCapture
#define gpu_graph_instantiate(out, graph) cudaGraphInstantiate(out, graph, 0)
#define gpu_graph_destroy cudaGraphDestroy
#define gpu_graph_exec_destroy cudaGraphExecDestroy
#define gpu_graph_launch cudaGraphLaunch
/* The most bytes of which another device sees all or nothing. */
#define GPU_WHOLE_BYTES 16
#define gpu_peer_can cudaDeviceCanAccessPeer
#define gpu_peer_enable(peer) cudaDeviceEnablePeerAccess(peer, 0)

static inline gpu_error gpu_props_get(struct gpu_props *out, int device)
{
	struct cudaDeviceProp p;
	gpu_error code = cudaGetDeviceProperties(&p, device);
	if (code != GPU_OK) return code;
	memset(out, 0, sizeof *out);
	for (size_t i = 0; i + 1 < sizeof out->name && p.name[i]; i++) out->name[i] = p.name[i];
	const char digits[] = {(char)('0' + p.major), (char)('0' + p.minor)};
	out->arch[0] = 's', out->arch[1] = 'm', out->arch[2] = '_', out->arch[3] = digits[0], out->arch[4] = digits[1];
	out->warp = p.warpSize;
	out->multiprocessors = p.multiProcessorCount;
	out->max_threads = p.maxThreadsPerBlock;
	out->max_shared = p.sharedMemPerBlockOptin;
	out->l2_bytes = (size_t)p.l2CacheSize;
	out->memory_bytes = p.totalGlobalMem;
	return GPU_OK;
}

static inline gpu_error gpu_driver_function(const char *name, unsigned version, void *out)
{
	enum cudaDriverEntryPointQueryResult result;
	gpu_error code = cudaGetDriverEntryPointByVersion(name, (void **)out, version, cudaEnableDefault, &result);
	return code != GPU_OK ? code : *(void **)out ? GPU_OK : cudaErrorNotSupported;
}

/* Writes a word of pinned memory once the device has done, and shown to the host, what the stream was given before. */
typedef CUresult (*gpu_stream_writer)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
static inline gpu_error gpu_stream_writer_get(gpu_stream_writer *out)
{
	return gpu_driver_function("cuStreamWriteValue32", 12000, out);
}
static inline gpu_error gpu_stream_write(gpu_stream_writer writer, gpu_stream stream, void *word, uint32_t value)
{
	return writer(stream, (CUdeviceptr)word, value, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS ? GPU_OK : cudaErrorUnknown;
}

/* ---- what a recorded graph launches: by the driver, since the runtime knows only kernels that were linked into this program, not those of libraries.
 * Nodes come in no promised order; edges (from[i] comes before to[i]) give it. Arrays may be NULL: then *count alone is set. */
typedef cudaGraphNode_t gpu_graph_node;
typedef CUgraphEdgeData gpu_graph_edge_kind;
#define gpu_graph_nodes cudaGraphGetNodes

static inline gpu_error gpu_graph_edges(gpu_graph graph, gpu_graph_node *from, gpu_graph_node *to, gpu_graph_edge_kind *kinds, size_t *count)
{
	CUresult (*edges)(CUgraph, CUgraphNode *, CUgraphNode *, CUgraphEdgeData *, size_t *);
	gpu_error code = gpu_driver_function("cuGraphGetEdges", 12030, &edges);
	return code != GPU_OK ? code : edges(graph, from, to, kinds, count) == CUDA_SUCCESS ? GPU_OK : cudaErrorInvalidValue;
}

static inline gpu_error gpu_graph_node_launch(gpu_graph_node node, struct gpu_launched *out)
{
	CUresult (*parameters)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *), (*function_name)(const char **, CUfunction), (*kernel_name)(const char **, CUkernel);
	CUDA_KERNEL_NODE_PARAMS p;
	enum cudaGraphNodeType type;
	gpu_error code = cudaGraphNodeGetType(node, &type);
	memset(out, 0, sizeof *out);
	if (code != GPU_OK || type != cudaGraphNodeTypeKernel) return code;
	if ((code = gpu_driver_function("cuGraphKernelNodeGetParams", 12000, &parameters)) != GPU_OK) return code;
	if ((code = gpu_driver_function("cuFuncGetName", 12030, &function_name)) != GPU_OK) return code;
	if ((code = gpu_driver_function("cuKernelGetName", 12030, &kernel_name)) != GPU_OK) return code;
	if (parameters(node, &p) != CUDA_SUCCESS) return cudaErrorInvalidValue;
	if ((p.func ? function_name(&out->name, p.func) : kernel_name(&out->name, p.kern)) != CUDA_SUCCESS) return cudaErrorInvalidDeviceFunction;
	out->kernel = true;
	out->grid[0] = p.gridDimX, out->grid[1] = p.gridDimY, out->grid[2] = p.gridDimZ;
	out->block[0] = p.blockDimX, out->block[1] = p.blockDimY, out->block[2] = p.blockDimZ;
	out->shared = p.sharedMemBytes;
	return GPU_OK;
}

/* The driver's and the runtime's version, 13000 for 13.0, and where the driver's own number is told. */
#define gpu_driver_version cudaDriverGetVersion
#define gpu_runtime_version cudaRuntimeGetVersion
#define GPU_DRIVER_FILE "/sys/module/nvidia/version"

/* ---- device */
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define GPU_WARP 32
#define GPU_KERNEL(max_threads) __global__ void __launch_bounds__(max_threads)
#define GPU_KERNEL_ALONE(max_threads) __global__ void __launch_bounds__(max_threads, 1) /* a block has a multiprocessor, and all of its registers, to itself */
#define GPU_DEVICE static __device__ __forceinline__
#define GPU_TEMPLATE __device__ __forceinline__ /* templates and their specialisations */
#define GPU_UNROLL _Pragma("unroll")
#define GPU_RARE static __device__ __noinline__ /* a function that is hardly ever called: not to cost registers where it is not */
#define GPU_PARAMETER const __grid_constant__ /* before a struct that is a kernel's parameter: its address can be taken without a copy */
#define GPU_RESTRICT __restrict__
/* GPU_HOST_TABLE(const struct s name = {...};): a constant of the host, with C linkage, that holds functions of the host. */
#define GPU_HOST_TABLE(...) extern "C" __VA_ARGS__
/* type name[count] in shared memory, aligned to 16 bytes, uninitialised. */
#define GPU_SHARED(type, name, count) __shared__ __align__(16) type name[count]
/* The launch's dynamic shared memory, aligned to 16 bytes. */
#define GPU_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#define gpu_sync() __syncthreads()
#define gpu_warp_sync() __syncwarp()
#define gpu_shfl_xor(value, mask) __shfl_xor_sync(0xffffffffu, value, mask)
#define gpu_shfl_down(value, delta) __shfl_down_sync(0xffffffffu, value, delta)
#define gpu_shfl(value, lane) __shfl_sync(0xffffffffu, value, lane)
#define gpu_ballot(predicate) ((unsigned long long)__ballot_sync(0xffffffffu, predicate))
#define gpu_atomic_add(address, value) atomicAdd(address, value)
#define gpu_atomic_max(address, value) atomicMax(address, value)
#define gpu_fence_device() __threadfence()
#define gpu_fence_system() __threadfence_system()
#define gpu_fma(a, b, c) __fmaf_rn(a, b, c)
#define gpu_mul(a, b) __fmul_rn(a, b)
#define gpu_add(a, b) __fadd_rn(a, b)

/* Programmatic dependent launch: a kernel may start while the one before it still runs. wait_previous returns when that one has finished and
 * its writes are visible; start_next lets the next one start. */
GPU_DEVICE void gpu_wait_previous(void)
{
	asm volatile("griddepcontrol.wait;" ::: "memory");
}
GPU_DEVICE void gpu_start_next(void)
{
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/* 16 bytes at an aligned address. stream: read once, so not worth a cache line. */
struct alignas(16) gpu_vec16 {
	uint32_t x[4];
};
GPU_DEVICE gpu_vec16 gpu_load16_stream(const void *p)
{
	gpu_vec16 v;
	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x[0]), "=r"(v.x[1]), "=r"(v.x[2]), "=r"(v.x[3]) : "l"(p));
	return v;
}

/* 16 bytes from memory to shared memory behind the thread's back, in groups that commit closes. wait<N> returns when at most N of the thread's groups are
 * under way; then this thread, and no other yet, sees what it copied. */
GPU_DEVICE void gpu_copy16(void *shared, const void *from)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)), "l"(from) : "memory");
}
GPU_DEVICE void gpu_copy_commit(void)
{
	asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N> GPU_TEMPLATE void gpu_copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/* Ends the kernel, and all that the device does for this process, with an error. */
GPU_DEVICE void gpu_trap(void)
{
	asm volatile("trap;");
}

/* System scope, for memory that other devices or the host write or read meanwhile. */
GPU_DEVICE uint32_t gpu_load_acquire(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
GPU_DEVICE void gpu_store_release(uint32_t *p, uint32_t v)
{
	asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
GPU_DEVICE uint32_t gpu_load_volatile(const uint32_t *p)
{
	uint32_t v;
	asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
	return v;
}
/* In one piece (GPU_WHOLE_BYTES). */
GPU_DEVICE gpu_vec16 gpu_load16_volatile(const void *p)
{
	unsigned long long low, high;
	asm volatile("{ .reg .b128 whole; ld.relaxed.sys.global.b128 whole, [%2]; mov.b128 {%0, %1}, whole; }" : "=l"(low), "=l"(high) : "l"(p) : "memory");
	gpu_vec16 v;
	v.x[0] = (uint32_t)low, v.x[1] = (uint32_t)(low >> 32), v.x[2] = (uint32_t)high, v.x[3] = (uint32_t)(high >> 32);
	return v;
}
GPU_DEVICE void gpu_store16_volatile(void *p, gpu_vec16 v)
{
	const unsigned long long low = v.x[0] | (unsigned long long)v.x[1] << 32, high = v.x[2] | (unsigned long long)v.x[3] << 32;
	asm volatile("{ .reg .b128 whole; mov.b128 whole, {%1, %2}; st.relaxed.sys.global.b128 [%0], whole; }" ::"l"(p), "l"(low), "l"(high) : "memory");
}
GPU_DEVICE unsigned long long gpu_load8_volatile(const unsigned long long *p)
{
	unsigned long long v;
	asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
	return v;
}
GPU_DEVICE void gpu_store8_volatile(unsigned long long *p, unsigned long long v)
{
	asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
GPU_DEVICE unsigned long long gpu_clock_ns(void)
{
	unsigned long long t;
	asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
	return t;
}
/* Between two looks at a word that somebody else will change. */
GPU_DEVICE void gpu_spin_pause(void)
{
}

GPU_DEVICE float gpu_f16_to_f32(uint16_t bits)
{
	return __half2float(__ushort_as_half(bits));
}
GPU_DEVICE uint16_t gpu_f32_to_f16(float v)
{
	return __half_as_ushort(__float2half_rn(v));
}
GPU_DEVICE uint16_t gpu_f32_to_bf16(float v)
{
	return __bfloat16_as_ushort(__float2bfloat16_rn(v));
}

/* kernel<<<grid, block, shared, stream>>>(...), where the kernel may start before the one before it has ended (every kernel calls
 * gpu_wait_previous before it touches what another kernel writes or reads). Value: gpu_error. _clusters: `cluster` neighbouring blocks along x
 * run at the same time and reach each other's shared memory; above 8 of them the kernel must be allowed it. */
template <typename... Formal, typename... Actual>
static inline gpu_error gpu_launch_clusters(void (*kernel)(Formal...), unsigned cluster, dim3 grid, dim3 block, size_t shared, gpu_stream stream, Actual... args)
{
	cudaLaunchAttribute attributes[2] = {};
	attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attributes[0].val.programmaticStreamSerializationAllowed = 1;
	attributes[1].id = cudaLaunchAttributeClusterDimension;
	attributes[1].val.clusterDim.x = cluster;
	attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = block;
	config.dynamicSmemBytes = shared;
	config.stream = stream;
	config.attrs = attributes;
	config.numAttrs = cluster > 1 ? 2 : 1;
	return cudaLaunchKernelEx(&config, kernel, static_cast<Formal>(args)...);
}
template <typename... Formal, typename... Actual>
static inline gpu_error gpu_launch(void (*kernel)(Formal...), dim3 grid, dim3 block, size_t shared, gpu_stream stream, Actual... args)
{
	return gpu_launch_clusters(kernel, 1, grid, block, shared, stream, args...);
}
#define GPU_LAUNCH(kernel, grid, block, shared, stream, ...) gpu_launch(kernel, grid, block, shared, stream, __VA_ARGS__)
/* Loads a kernel's code now, not at its first launch. */
#define gpu_preload(kernel) gpu_preload_((const void *)(kernel))
static inline gpu_error gpu_preload_(const void *kernel)
{
	struct cudaFuncAttributes ignored;
	return cudaFuncGetAttributes(&ignored, kernel);
}
/* Allows a kernel more dynamic shared memory than the default. */
#define gpu_allow_shared(kernel, bytes) cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(bytes))
#define gpu_allow_clusters(kernel) cudaFuncSetAttribute((const void *)(kernel), cudaFuncAttributeNonPortableClusterSizeAllowed, 1)
#endif

#endif
