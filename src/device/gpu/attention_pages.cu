/* attention_pages.cu: sequences' lengths, offsets and pages as a library of fused attention wants them (attention_cudnn.c). */
#include "device/gpu/attention_device.h"

#define THREADS 256

/* Sequence s of the library is number p.first_seq + s of the step. A sequence of one row that the decode kernel has done, and one behind the step's last, gets no
 * rows and one key. Entry i of its table: the block of keys from i * block_tokens on; behind its last key block 0, which every cache has.
 * Block (x, s), thread t: entry x * THREADS + t; thread 0 of block (0, s): the numbers of s, and behind the last sequence the offsets' ends. */
GPU_KERNEL(THREADS) attention_pages_kernel(GPU_PARAMETER attention_params p, GPU_PARAMETER attention_pages to)
{
	gpu_wait_previous();
	gpu_start_next();
	const int s = (int)blockIdx.y, i = (int)(blockIdx.x * blockDim.x + threadIdx.x), seq = p.first_seq + s;
	const bool here = seq < p.seqs;
	const int first = p.row_start[here ? seq : p.seqs], rows = here ? p.row_start[seq + 1] - first : 0;
	const bool wanted = rows > (p.skip_single ? 1 : 0);
	const int keys = wanted ? p.position[first + rows - 1] + 1 : 1;
	if (i < to.blocks) to.table[(int64_t)s * to.blocks + i] = wanted && i < p.max_blocks && i * p.block_tokens < keys ? p.block_table[(int64_t)seq * p.max_blocks + i] : 0;
	if (i) return;
	to.rows[s] = wanted ? rows : 0, to.keys[s] = keys;
	to.q_start[s] = (int32_t)(first * p.q_stride), to.out_start[s] = (int32_t)(first * p.out_stride);
	if (s + 1 < to.seqs) return;
	to.q_start[s + 1] = (int32_t)((first + rows) * p.q_stride), to.out_start[s + 1] = (int32_t)((first + rows) * p.out_stride);
}

extern "C" enum status attention_pages_write(const struct gpu_context *ctx, const struct attention_params *p, const struct attention_pages *to, struct error *err)
{
	const dim3 grid((unsigned)((to->blocks + THREADS - 1) / THREADS), (unsigned)to->seqs);
	return gpu_check(GPU_LAUNCH(attention_pages_kernel, grid, dim3(THREADS), 0, ctx->stream, *p, *to), "attention_pages", err);
}
