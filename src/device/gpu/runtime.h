/* runtime.h: the vendor's runtime under neutral names, for host code (C17 and C++17). What a name means is what CUDA means by it; a
 * vendor header maps it (cuda.h, hip.h) or implements it (emu.h: the emulated device, which runs kernels on the host).
 *
 * The build sets one of GPU_CUDA, GPU_HIP, GPU_EMU, and GPU_NAME to cuda, hip or emu.
 */
#ifndef TANDEM_DEVICE_GPU_RUNTIME_H
#define TANDEM_DEVICE_GPU_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* What the kernels' launchers want to know of a device. */
struct gpu_props {
	char name[64];
	char arch[32];      /* "sm_90", "gfx90a", "emu32" */
	int warp;           /* lanes of a wave */
	int multiprocessors;
	int max_threads;    /* of a block */
	size_t max_shared;  /* bytes of shared memory a block can ask for */
	size_t l2_bytes;
	size_t memory_bytes;
};

/* What a node of a recorded graph launches. */
struct gpu_launched {
	bool kernel;      /* false: it is a copy or a fill, and the rest is not set */
	const char *name; /* valid as long as the graph is */
	unsigned grid[3], block[3];
	size_t shared; /* dynamic, bytes */
};

#if defined(GPU_CUDA)
#include "device/gpu/vendor/cuda.h"
#elif defined(GPU_HIP)
#include "device/gpu/vendor/hip.h"
#elif defined(GPU_EMU)
#include "device/gpu/vendor/emu.h"
#else
#error "one of GPU_CUDA, GPU_HIP, GPU_EMU must be defined"
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* OK, or a report naming `what` and the vendor's text: NO_MEMORY for lack of memory, else DEVICE_FAULT. */
enum status gpu_check(gpu_error code, const char *what, struct error *err);
#ifdef __cplusplus
}
#endif

#endif
