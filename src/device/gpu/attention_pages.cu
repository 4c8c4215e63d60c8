/* attention_pages.cu: one sequence's lengths and pages as a library of fused attention wants them (attention_cudnn.c). */
#include "device/gpu/attention_device.h"

#define THREADS 256

/* Of the last sequence, number p.first_seq: lengths[0] its rows, lengths[ATTENTION_PAGES_KEYS / 4] its keys; table[i] the block of its keys from
 * i * block_tokens on, for i < blocks; behind its last key block 0, which every cache has. Thread i writes table[i]. */
GPU_KERNEL(THREADS) attention_pages_kernel(GPU_PARAMETER attention_params p, int32_t *lengths, int32_t *table, int blocks)
{
	gpu_wait_previous();
	gpu_start_next();
	const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
	const int first = p.row_start[p.first_seq], end = p.row_start[p.first_seq + 1];
	const int keys = end > first ? p.position[end - 1] + 1 : 0;
	if (i == 0) lengths[0] = end - first, lengths[ATTENTION_PAGES_KEYS / 4] = keys;
	if (i < blocks) table[i] = i < p.max_blocks && i * p.block_tokens < keys ? p.block_table[(int64_t)p.first_seq * p.max_blocks + i] : 0;
}

extern "C" enum status attention_pages(const struct gpu_context *ctx, const struct attention_params *p, int32_t *lengths, int32_t *table, int blocks, struct error *err)
{
	const unsigned grid = (unsigned)((blocks + THREADS - 1) / THREADS);
	return gpu_check(GPU_LAUNCH(attention_pages_kernel, dim3(grid), dim3(THREADS), 0, ctx->stream, *p, lengths, table, blocks), "attention_pages", err);
}
