/* compare.h: what an op left in a matrix (struct compare_args), in parts that the host adds up. Valid C17 and C++17. */
#ifndef TANDEM_DEVICE_GPU_COMPARE_H
#define TANDEM_DEVICE_GPU_COMPARE_H

#include "device/compare.h"
#include "device/gpu/context.h"

/* Of the values that one block has seen. */
struct compare_part {
	double diff2, ref2;
	uint64_t hash;
	float most_diff, most;
	uint32_t values, unwritten, outside, different, nans, unused;
};

#ifdef __cplusplus
extern "C" {
#endif
/* parts: device memory, [blocks]. A block sees fewer than 2^32 values. */
enum status compare_launch(const struct gpu_context *context, const struct compare_args *args, struct compare_part *parts, unsigned blocks, struct error *err);
enum status gpu_compare_memory(struct stream *stream, const struct compare_args *args, struct compare_result *out, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
