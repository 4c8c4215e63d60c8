/* peak.h: what the device can do at most, measured: the rate at which its memory is read. All other figures are shown against it. */
#ifndef TANDEM_DEVICE_GPU_PEAK_H
#define TANDEM_DEVICE_GPU_PEAK_H

#include "device/gpu/context.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Reads `bytes` (a multiple of 16) of device memory at `data` once. *out, device memory, takes a sum that stands for the values read. */
enum status gpu_peak_read(struct stream *stream, const void *data, size_t bytes, uint32_t *out, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
