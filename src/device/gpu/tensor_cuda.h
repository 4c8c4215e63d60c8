/* tensor_cuda.h: the tensor core and copy instructions of the *_cuda.cu kernels. Layouts of fragments are those of the PTX
 * manual for m16n8k16: with g = lane / 4 and c = lane % 4, A[4] = (row g | g+8, columns 2c,2c+1 | 2c+8,2c+9) in the order (g,lo) (g+8,lo) (g,hi)
 * (g+8,hi); B[2] = (rows 2c,2c+1 | 2c+8,2c+9, column g); C[4] = (g, 2c) (g, 2c+1) (g+8, 2c) (g+8, 2c+1).
 */
#ifndef TANDEM_DEVICE_GPU_TENSOR_CUDA_H
#define TANDEM_DEVICE_GPU_TENSOR_CUDA_H

#include "device/gpu/gpu.h"

/* c += a b. */
template <typename T> GPU_TEMPLATE void tensor_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
template <> GPU_TEMPLATE void tensor_mma<bf16>(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> GPU_TEMPLATE void tensor_mma<f16>(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
	             : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two values rounded to T, `low` in the low half. */
template <typename T> GPU_TEMPLATE uint32_t tensor_pack(float low, float high);
template <> GPU_TEMPLATE uint32_t tensor_pack<bf16>(float low, float high)
{
	uint32_t v;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}
template <> GPU_TEMPLATE uint32_t tensor_pack<f16>(float low, float high)
{
	uint32_t v;
	asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
	return v;
}

/* The 8 x 8 matrix of 16-bit elements that the wave holds (lane: row g, columns 2c,2c+1), transposed. */
GPU_DEVICE uint32_t tensor_transpose(uint32_t v)
{
	uint32_t t;
	asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
	return t;
}

/* 2^x; -inf gives 0. */
GPU_DEVICE float tensor_exp2(float x)
{
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

/* tanh x: gpu_tanh with the approximations of power and quotient, 2^-22 off at most. */
GPU_DEVICE float tensor_tanh(float x)
{
	float quotient;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(quotient) : "f"(tensor_exp2(x * 2.88539008f) + 1.0f));
	return gpu_fma(-2.0f, quotient, 1.0f);
}

GPU_DEVICE uint32_t tensor_shared_address(const void *p)
{
	return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
GPU_DEVICE void tensor_load4(uint32_t *r, uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
GPU_DEVICE void tensor_load4_transposed(uint32_t *r, uint32_t address)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

/* The reverse, of what tensor_load4_transposed gives. */
GPU_DEVICE void tensor_store4_transposed(uint32_t address, const uint32_t *r)
{
	asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

/* 16 bytes from global to shared memory, zeros where !valid, behind the thread's back: in groups that commit closes; wait<N> returns when at
 * most N of the thread's groups are unfinished. */
GPU_DEVICE void tensor_copy16(uint32_t to, const void *from, bool valid)
{
	asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
}
GPU_DEVICE void tensor_copy_commit(void)
{
	asm volatile("cp.async.commit_group;");
}
template <int N> GPU_TEMPLATE void tensor_copy_wait(void)
{
	asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

/* Clusters of blocks. After arrive and wait (or sync, which is both) all threads of the cluster's blocks have arrived, and what they wrote to shared memory
 * is visible. A block's shared memory may be written by others only after a barrier that it took part in. */
GPU_DEVICE void cluster_arrive(void)
{
	asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
GPU_DEVICE void cluster_wait(void)
{
	asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The same place in the shared memory of block `rank` of the cluster. */
GPU_DEVICE uint32_t cluster_address(uint32_t address, int rank)
{
	uint32_t there;
	asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
	return there;
}
GPU_DEVICE void cluster_store4(uint32_t address, float4 v)
{
	asm volatile("st.shared::cluster.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
GPU_DEVICE void cluster_store2(uint32_t address, float a, float b)
{
	asm volatile("st.shared::cluster.v2.f32 [%0], {%1,%2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
GPU_DEVICE void cluster_store(uint32_t address, float v)
{
	asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
/* A memory barrier that blocks of the cluster share: arrival at any block's; waiting at the own one, for what was written before the arrivals. */
GPU_DEVICE void cluster_barrier_arrive(uint32_t barrier)
{
	asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
GPU_DEVICE void cluster_barrier_wait(uint32_t barrier, int parity)
{
	asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1; @p bra done; bra again; done: }" ::"r"(barrier), "r"(parity)
	             : "memory");
}

#endif
