/* kernels.h: the kernels that the tests of the emulated device run. Each launcher returns what the launch returned. */
#ifndef TANDEM_TESTS_GPU_EMU_KERNELS_H
#define TANDEM_TESTS_GPU_EMU_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "device/gpu/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- planted.cu: each kernel is right with bug = false, and has what its name says with bug = true.
 * X(enumerator, words that the fault's text must have) */
#define PLANTED_LIST(X)                                                     \
	X(UNWRITTEN_SHARED, "which this block has not written")                 \
	X(LEFT_FROM_LAST_BLOCK, "which this block has not written")             \
	X(SHARED_READ_BEYOND, "beside or beyond the arrays")                    \
	X(SHARED_WRITE_BEYOND, "beside or beyond the arrays")                   \
	X(DYNAMIC_BEYOND, "beside or beyond the arrays")                        \
	X(SHARED_TOO_LARGE, "bytes of shared memory")                           \
	X(GLOBAL_READ_BEYOND, "of an allocation of 4000 bytes")                 \
	X(GLOBAL_WRITE_BEYOND, "of an allocation of 4000 bytes")                \
	X(GLOBAL_BEFORE, "where nothing is allocated")                          \
	X(GLOBAL_STREAM_BEYOND, "of an allocation of 4000 bytes")               \
	X(MISALIGNED, "not aligned")                                            \
	X(HOST_MEMORY, "host memory")                                           \
	X(NO_BARRIER, "of shared memory, which")                                 \
	X(NO_SECOND_BARRIER, "with no barrier between")                         \
	X(NO_WAVE_BARRIER, "of shared memory, which")                            \
	X(TWO_WRITERS, "with no barrier between")                               \
	X(PLAIN_BESIDE_ATOMIC, "with no barrier between")                       \
	X(BARRIER_MISSED, "waits in the")                                       \
	X(BARRIER_LEFT, "has left the kernel")                                  \
	X(OTHER_BARRIER, "meets the others at the gpu_sync of line")            \
	X(SHUFFLE_MISSED, "gpu_shfl_xor")                                       \
	X(SHUFFLE_LEFT, "has left the kernel")                                  \
	X(OTHER_SHUFFLE, "but its wave waits in the")

enum planted {
#define X(name, text) PLANTED_##name,
	PLANTED_LIST(X)
#undef X
	PLANTED_COUNT
};
/* Two blocks of 128 threads; x: device memory of 1000 floats at which 0, 1, 2 … stand; out: 256 floats; host: memory that is not the device's.
 * out[i] = x[i] + x[neighbour of i in its block], whatever the kernel. */
gpu_error planted_launch(enum planted which, bool bug, const float *x, float *out, const float *host, gpu_stream stream);

/* out[block] = sum over the block's 128 threads of x. The first has half of its shuffles only in lanes below 32, the second takes 32 for the width. */
gpu_error width_half_wave(const float *x, float *out, gpu_stream stream);
gpu_error width_wrong_sum(const float *x, float *out, gpu_stream stream);
/* Wave 1 reads from global memory what wave 0 writes, with no barrier: out[0] = 0 or 1, as the order comes. */
gpu_error order_of_waves(uint32_t *flag, uint32_t *out, gpu_stream stream);
/* out[0] = number of the block that came first. */
gpu_error order_of_blocks(uint32_t *count, uint32_t *out, int blocks, gpu_stream stream);

/* ---- words.cu */
/* Of each thread of a block of 3 dimensions, [linear thread][10]: its indices, the block's, and the four sizes x y of block and grid. */
gpu_error words_index(uint32_t *out, unsigned grid[3], unsigned block[3], gpu_stream stream);
/* For a block of `threads`, per thread [8]: xor 1, xor GPU_WARP/2, down 1, down GPU_WARP-1, from lane 2, ballot of odd threads (two words), 64-bit xor's high word. */
gpu_error words_waves(uint32_t *out, int threads, gpu_stream stream);
/* sums: [0] u32, [1] i32, [2] f32 bits, [3] max u32, [4] max i32, [5] low word of u64, over 4 blocks of 96 threads. */
gpu_error words_atomics(uint32_t *sums, gpu_stream stream);
/* out[i] = the f16 of in[i], back[i] = the f32 of out[i], bf[i] = the bf16. */
gpu_error words_convert(const float *in, uint16_t *out, float *back, uint16_t *bf, int n, gpu_stream stream);
/* out[i] = what of `large` (by value), to see that arguments are copied at the launch. */
struct words_large {
	uint32_t value[60];
};
gpu_error words_arguments(struct words_large large, uint32_t *out, gpu_stream stream);
gpu_error words_add(float *x, float v, int n, gpu_stream stream);
gpu_error words_dynamic(uint32_t *out, size_t shared, bool allow, gpu_stream stream);
gpu_error words_sized(uint32_t *out, unsigned grid[3], unsigned block[3], gpu_stream stream);
/* Every block waits until all have come. */
gpu_error words_grid_barrier(uint32_t *count, uint32_t *out, int blocks, gpu_stream stream);

/* ---- ranks.cu: all-to-all by pushing. Each rank writes its values into every rank's inbox and then a flag; waits for all flags; adds up. */
#define RANKS_MAX 8
struct ranks_view {
	int ranks, rank, count, blocks;
	float *inbox[RANKS_MAX];    /* of every rank: [ranks][count] */
	uint32_t *flags[RANKS_MAX]; /* of every rank: [ranks][blocks] */
	const float *own;           /* [count] */
	float *sum;                 /* [count] */
	const uint32_t *abort;      /* pinned */
	uint32_t *gave_up;          /* counts threads that saw it */
	uint32_t generation;
	bool forgets_to_wait; /* planted */
};
gpu_error ranks_sum(struct ranks_view view, gpu_stream stream);

#ifdef __cplusplus
}
#endif

#endif
