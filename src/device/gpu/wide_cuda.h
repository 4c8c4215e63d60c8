/* wide_cuda.h: Hopper's warpgroup products (wgmma), bulk tensor copies and memory barriers, for the *_cuda.cu kernels.
 *
 * Operand tiles in shared memory are what a tensor copy with 128-byte swizzle leaves: [rows][64 elements of 16 bits], rows of 128 bytes, at
 * addresses that are multiples of 1024. Accumulators of m64: wave w of the four has rows 16 w + g, 16 w + g + 8; d[4 n + i] as in tensor_cuda.h's C.
 */
#ifndef TANDEM_DEVICE_GPU_WIDE_CUDA_H
#define TANDEM_DEVICE_GPU_WIDE_CUDA_H

#include <cuda.h>

#include "device/gpu/tensor_cuda.h"

/* ---- warpgroup products. fence before the first of a batch; commit closes the batch; wait<N> returns when at most N batches are unfinished. */
GPU_DEVICE void wide_fence(void)
{
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_DEVICE void wide_commit(void)
{
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N> GPU_TEMPLATE void wide_wait(void)
{
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* The compiler may not move uses of these registers across this point. */
template <int N> GPU_TEMPLATE void wide_pin(float *d)
{
	GPU_UNROLL for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptor of a tile whose contraction runs along its 64 contiguous elements (add 2 for each 16 of them), or, far = bytes between neighbouring
 * blocks of 64 columns, across its rows (add 128 for each 16 rows). */
GPU_DEVICE uint64_t wide_tile(uint32_t address, uint32_t far)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(far >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* d = a b^T (+ d if add), [64][N] from tiles in shared memory, 16 columns of contraction. */
template <typename T, int N> GPU_TEMPLATE void wide_mma(float *d, uint64_t a, uint64_t b, bool add);
/* d = a b (+ d): a in registers, as fragments of each wave's 16 rows; b's contraction runs across its rows. */
template <typename T, int N> GPU_TEMPLATE void wide_mma(float *d, const uint32_t *a, uint64_t b, bool add);
/* d = a b^T (+ d): a in registers; b's contraction runs along its rows. */
template <typename T, int N> GPU_TEMPLATE void wide_mma_rows(float *d, const uint32_t *a, uint64_t b, bool add);

/* The accumulators of an instruction, 32 or 64 of them: as text, and as operands. */
#define WIDE_TEXT_32 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WIDE_TEXT_64 \
	WIDE_TEXT_32     \
	", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WIDE_8(d, i) \
	"+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define WIDE_32(d, i) WIDE_8(d, i), WIDE_8(d, i + 8), WIDE_8(d, i + 16), WIDE_8(d, i + 24)
#define WIDE_64(d) WIDE_32(d, 0), WIDE_32(d, 32)

/* All forms for one type, whose name in the instruction is `word`. */
#define WIDE_MMA(T, word)                                                                                                                                \
	template <> GPU_TEMPLATE void wide_mma<T, 128>(float *d, uint64_t a, uint64_t b, bool add)                                                           \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." word "." word " {" WIDE_TEXT_64               \
		             "}, %64, %65, p, 1, 1, 0, 0; }"                                                                                                     \
		             : WIDE_64(d)                                                                                                                        \
		             : "l"(a), "l"(b), "r"((int)add));                                                                                                   \
	}                                                                                                                                                    \
	template <> GPU_TEMPLATE void wide_mma<T, 128>(float *d, const uint32_t *a, uint64_t b, bool add)                                                    \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." word "." word " {" WIDE_TEXT_64               \
		             "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1; }"                                                                                       \
		             : WIDE_64(d)                                                                                                                        \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                                                               \
	}                                                                                                                                                    \
	template <> GPU_TEMPLATE void wide_mma<T, 64>(float *d, const uint32_t *a, uint64_t b, bool add)                                                     \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." word "." word " {" WIDE_TEXT_32                \
		             "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1; }"                                                                                       \
		             : WIDE_32(d, 0)                                                                                                                     \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                                                               \
	}                                                                                                                                                    \
	template <> GPU_TEMPLATE void wide_mma_rows<T, 64>(float *d, const uint32_t *a, uint64_t b, bool add)                                                \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." word "." word " {" WIDE_TEXT_32               \
		             "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0; }"                                                                                       \
		             : WIDE_32(d, 0)                                                                                                                     \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                                                               \
	}
WIDE_MMA(bf16, "bf16")
WIDE_MMA(f16, "f16")

/* ---- memory barriers in shared memory */
GPU_DEVICE void barrier_init(uint32_t barrier, int count)
{
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
/* After all inits, before the first use by copies. */
GPU_DEVICE void barrier_init_done(void)
{
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
GPU_DEVICE void barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives, and makes the phase wait for `bytes` from copies too. */
GPU_DEVICE void barrier_expect(uint32_t barrier, uint32_t bytes)
{
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/* Until the phase of this parity is over. */
GPU_DEVICE void barrier_wait(uint32_t barrier, int parity)
{
	asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done: }" ::"r"(barrier), "r"(parity)
	             : "memory");
}
/* What this thread wrote to shared memory may be read by products and copies afterwards. */
GPU_DEVICE void wide_publish(void)
{
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Barrier `id` of `threads` threads. */
GPU_DEVICE void barrier_threads(int id, int threads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
GPU_DEVICE void barrier_threads_arrive(int id, int threads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- a box of a matrix to shared memory, from (row, column) on; rows and columns outside the matrix are zeros and count as bytes too */
GPU_DEVICE void wide_copy(uint32_t to, const CUtensorMap *map, int column, int row, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map),
	             "r"(barrier), "r"(column), "r"(row)
	             : "memory");
}

#endif
