/* device.c: the back ends of this build, by name. */
#include "device/device.h"

#include <string.h>

/* DEVICE_BACKENDS: "X(cpu) X(cuda)", from the build. Each back end defines `const struct device_ops NAME_device_ops`. */
#define X(backend) extern const struct device_ops backend##_device_ops;
DEVICE_BACKENDS
#undef X

static const struct device_ops *const backends[] = {
#define X(backend) &backend##_device_ops,
	DEVICE_BACKENDS
#undef X
};

const struct device_ops *device_find(const char *name)
{
	for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
		if (!strcmp(backends[i]->name, name)) return backends[i];
	return NULL;
}

enum status device_graph_end(struct stream *stream, enum status st, struct graph **out, struct error *err)
{
	struct error ignored = {0}; /* the first failure is what is told */
	*out = NULL;
	enum status ended = stream->vt->graph_end(stream, out, st == STATUS_OK ? err : &ignored);
	if (st == STATUS_OK) st = ended;
	if (st == STATUS_OK) return st;
	if (*out) stream->vt->graph_destroy(*out);
	*out = NULL;
	return st;
}

const char *device_names(void)
{
#define X(backend) ", " #backend
	static const char names[] = DEVICE_BACKENDS;
#undef X
	return names + 2;
}

enum status device_room(const struct device *device, double bytes, const char *what, const char *instead, struct error *err)
{
	const double left = (double)device->vt->free_bytes(device);
	if (bytes <= left) return STATUS_OK;
	return FAIL(err, NO_ROOM, "%s: %.1f GiB are needed, %.1f GiB are free; use %s", what, bytes / 0x1p30, left / 0x1p30, instead);
}
