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

/* Descriptor of a tile whose contraction runs along its 64 contiguous elements (add 2 for each 16 of them), or across its rows (from each 16 rows to the next
 * 2 * down bytes). across: bytes between neighbouring blocks of 64 columns, of use in the second case; down: between a block's neighbouring groups of 8 rows. */
GPU_DEVICE uint64_t wide_tile(uint32_t address, uint32_t across, uint32_t down)
{
	return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(across >> 4) << 16 | (uint64_t)(down >> 4) << 32 | (uint64_t)1 << 62;
}

/* The tile `bytes` behind. */
GPU_DEVICE uint64_t wide_tile_at(uint64_t tile, uint32_t bytes)
{
	return (tile & 0xffffffff00000000) | ((uint32_t)tile + (bytes >> 4)); /* addresses end far below the field's end */
}

/* d = a b^T (+ d if add), [64][N] from tiles in shared memory, 16 columns of contraction. */
template <typename T, int N> GPU_TEMPLATE void wide_mma(float *d, uint64_t a, uint64_t b, bool add);
/* d = a b (+ d): a in registers, as fragments of each wave's 16 rows; b's contraction runs across its rows. */
template <typename T, int N> GPU_TEMPLATE void wide_mma(float *d, const uint32_t *a, uint64_t b, bool add);
/* d = a b^T (+ d): a in registers; b's contraction runs along its rows. */
template <typename T, int N> GPU_TEMPLATE void wide_mma_rows(float *d, const uint32_t *a, uint64_t b, bool add);

/* The accumulators of an instruction, N / 2 of them: as text, and as operands. */
#define WIDE_TEXT_32 \
	"%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define WIDE_TEXT_40 WIDE_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WIDE_TEXT_48 WIDE_TEXT_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WIDE_TEXT_64 WIDE_TEXT_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WIDE_TEXT_96 \
	WIDE_TEXT_64     \
	", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WIDE_TEXT_128 \
	WIDE_TEXT_96      \
	", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WIDE_8(d, i) \
	"+f"((d)[i]), "+f"((d)[i + 1]), "+f"((d)[i + 2]), "+f"((d)[i + 3]), "+f"((d)[i + 4]), "+f"((d)[i + 5]), "+f"((d)[i + 6]), "+f"((d)[i + 7])
#define WIDE_OPERANDS_32(d) WIDE_8(d, 0), WIDE_8(d, 8), WIDE_8(d, 16), WIDE_8(d, 24)
#define WIDE_OPERANDS_40(d) WIDE_OPERANDS_32(d), WIDE_8(d, 32)
#define WIDE_OPERANDS_48(d) WIDE_OPERANDS_40(d), WIDE_8(d, 40)
#define WIDE_OPERANDS_64(d) WIDE_OPERANDS_48(d), WIDE_8(d, 48), WIDE_8(d, 56)
#define WIDE_OPERANDS_96(d) WIDE_OPERANDS_64(d), WIDE_8(d, 64), WIDE_8(d, 72), WIDE_8(d, 80), WIDE_8(d, 88)
#define WIDE_OPERANDS_128(d) WIDE_OPERANDS_96(d), WIDE_8(d, 96), WIDE_8(d, 104), WIDE_8(d, 112), WIDE_8(d, 120)

/* The first form for one type, whose name in the instruction is `word`. regs: N / 2; a, b, sum: the numbers of the operands behind. */
#define WIDE_SHARED(T, word, N, regs, a_at, b_at, sum_at)                                                                                                \
	template <> GPU_TEMPLATE void wide_mma<T, N>(float *d, uint64_t a, uint64_t b, bool add)                                                             \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #sum_at ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." word "." word " {"                \
		             WIDE_TEXT_##regs "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0; }"                                                                      \
		             : WIDE_OPERANDS_##regs(d)                                                                                                           \
		             : "l"(a), "l"(b), "r"((int)add));                                                                                                   \
	}
/* The second, across 1, and the third, across 0: a's four registers first. */
#define WIDE_REGISTERS(form, across, T, word, N, regs, a0, a1, a2, a3, b_at, sum_at)                                                                     \
	template <> GPU_TEMPLATE void form<T, N>(float *d, const uint32_t *a, uint64_t b, bool add)                                                          \
	{                                                                                                                                                    \
		asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #sum_at ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." word "." word " {"                \
		             WIDE_TEXT_##regs "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p, 1, 1, " #across "; }"                                 \
		             : WIDE_OPERANDS_##regs(d)                                                                                                           \
		             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));                                                               \
	}
#define WIDE_MMA(T, word)                                                  \
	WIDE_SHARED(T, word, 64, 32, 32, 33, 34)                                  \
	WIDE_SHARED(T, word, 80, 40, 40, 41, 42)                                  \
	WIDE_SHARED(T, word, 96, 48, 48, 49, 50)                                  \
	WIDE_SHARED(T, word, 128, 64, 64, 65, 66)                                 \
	WIDE_REGISTERS(wide_mma_rows, 0, T, word, 64, 32, 32, 33, 34, 35, 36, 37) \
	WIDE_REGISTERS(wide_mma, 1, T, word, 64, 32, 32, 33, 34, 35, 36, 37)      \
	WIDE_REGISTERS(wide_mma, 1, T, word, 128, 64, 64, 65, 66, 67, 68, 69)     \
	WIDE_REGISTERS(wide_mma, 1, T, word, 192, 96, 96, 97, 98, 99, 100, 101)   \
	WIDE_REGISTERS(wide_mma, 1, T, word, 256, 128, 128, 129, 130, 131, 132, 133)
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
/* The same of a matrix whose map has the dimensions 64 columns (or all), 8 rows, blocks of 64 columns, groups of 8 rows: from (group, column) on. */
GPU_DEVICE void wide_copy_groups(uint32_t to, const CUtensorMap *map, int column, int group, uint32_t barrier)
{
	asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %5, %5, %4}], [%2];" ::"r"(to), "l"(map),
	             "r"(barrier), "r"(column), "r"(group), "r"(0)
	             : "memory");
}

#endif
