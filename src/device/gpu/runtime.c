#include "device/gpu/runtime.h"

enum status gpu_check(gpu_error code, const char *what, struct error *err)
{
	if (code == GPU_OK) return STATUS_OK;
	(void)gpu_last_error(); /* the runtime keeps it for the next caller who asks */
	if (code == GPU_NO_MEMORY) return FAIL(err, NO_MEMORY, "%s: %s", what, gpu_error_text(code));
	return FAIL(err, DEVICE_FAULT, "%s: %s", what, gpu_error_text(code));
}
