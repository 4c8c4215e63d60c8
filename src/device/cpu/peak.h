/* peak.h: what this machine can do at most, measured: reading memory, and f32 fused multiply-adds. All other figures are shown against
 * these. The loops are those of the chosen instruction set (kernels.h), so a peak of "c" is that of plain C.
 */
#ifndef TANDEM_DEVICE_CPU_PEAK_H
#define TANDEM_DEVICE_CPU_PEAK_H

#include "device/device.h"

#define CPU_PEAK_MAX_COUNTS 16

/* Entry i: with threads[i] threads; 1, 2, 4, ... and last the number asked for. Medians of several passes. */
struct cpu_peak {
	int counts;
	int threads[CPU_PEAK_MAX_COUNTS];
	double read_gbps[CPU_PEAK_MAX_COUNTS];  /* 1e9 bytes a second out of a buffer far larger than any cache */
	double fma_gflops[CPU_PEAK_MAX_COUNTS]; /* two operations a fused multiply-add */
};

/* options: isa, core_count (threads; 0: one), cores and pin count as they do for a device. Takes about half a second a thread count and
 * half a gigabyte of memory. NO_MEMORY, UNSUPPORTED as for a device. */
enum status cpu_peak(const struct device_options *options, struct cpu_peak *out, struct error *err) NODISCARD;

#endif
