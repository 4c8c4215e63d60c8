/* random.h: made-up weights on the device. */
#ifndef TANDEM_DEVICE_GPU_RANDOM_H
#define TANDEM_DEVICE_GPU_RANDOM_H

#include "device/gpu/context.h"

struct gpu_random_args {
	void *out; /* [rows, cols] dense */
	enum dtype dtype;
	uint64_t seed, stream;
	int64_t row, rows, col, cols; /* the region of the tensor that `out` is */
	float offset, scale;
};

#ifdef __cplusplus
extern "C" {
#endif
enum status gpu_random_rows(struct stream *stream, const struct gpu_random_args *args, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
