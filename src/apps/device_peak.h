/* device_peak.h: what one device can do at most, measured through its own ops: reading memory, and the product of two large matrices. */
#ifndef TANDEM_APPS_DEVICE_PEAK_H
#define TANDEM_APPS_DEVICE_PEAK_H

#include "device/device.h"

struct device_peak {
	char flavour[32];
	double read_gb_per_s;
	double matrix_tflops; /* bf16, `matrix` rows and columns, sums in f32 */
	int matrix;
	double read_bytes;
};

/* Opens the device for it. Medians. The buffer that is read has 64 * matrix^2 bytes, which at 8192 is 4 GiB. UNSUPPORTED: no way to read. */
enum status device_peak(const struct device_ops *ops, const struct device_options *options, int matrix, struct device_peak *out,
                        struct error *err) NODISCARD;

#endif
