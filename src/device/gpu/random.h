/* random.h: made-up weights on the device. */
#ifndef TANDEM_DEVICE_GPU_RANDOM_H
#define TANDEM_DEVICE_GPU_RANDOM_H

#include "device/gpu/context.h"

#ifdef __cplusplus
extern "C" {
#endif
/* out: [rows, cols] of the region, dense. */
enum status gpu_random_rows(struct stream *stream, void *out, const struct random_region *region, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
