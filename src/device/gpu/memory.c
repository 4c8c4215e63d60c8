/* memory.c: device memory by tag, pinned host memory, copies.
 *
 * One request is one allocation of the runtime's: all of them are made at start, so there is nothing to pool.
 */
#include "device/gpu/device.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

#define ZERO_DEADLINE_MS 60000

static enum status no_room(const struct gpu_device *device, size_t bytes, const char *what, struct error *err)
{
	size_t left = 0, all = 0;
	(void)gpu_last_error();
	(void)gpu_mem_info(&left, &all);
	return FAIL(err, NO_MEMORY, GPU_NAME_TEXT " device %d: no room for %s: %zu bytes (%.2f GiB) wanted, %.2f of %.2f GiB free; more ranks, or less context",
	            device->ordinal, what, bytes, (double)bytes / 0x1p30, (double)left / 0x1p30, (double)all / 0x1p30);
}

static void count_total(struct gpu_device *device, enum mem_tag tag, size_t before, size_t after)
{
	atomic_store(&device->now[tag], atomic_load(&device->now[tag]) - before + after); /* one writer */
	size_t total = atomic_load(&device->total) - before + after;
	atomic_store(&device->total, total);
	if (total > atomic_load(&device->peak)) atomic_store(&device->peak, total);
}

/* Kernels of other devices write it while this device's run: HIP has memory of its own kind for that. */
static bool peers_write(enum mem_tag tag)
{
	return tag == MEM_SCRATCH || tag == MEM_GATHERED;
}

enum status gpu_memory_alloc(struct device *base, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err)
{
	*out = NULL;
	struct gpu_device *device = gpu_device(base);
	struct gpu_allocation *allocation = mem_zalloc(1, sizeof *allocation, what, err);
	if (!allocation) return STATUS_NO_MEMORY;
	void *ptr = NULL;
	enum status st;
	gpu_error code = peers_write(tag) ? gpu_malloc_shared(&ptr, bytes ? bytes : 1) : gpu_malloc(&ptr, bytes ? bytes : 1);
	if (code == GPU_NO_MEMORY) {
		st = no_room(device, bytes, what, err);
		goto fail;
	}
	TRY_GOTO(gpu_check(code, what, err), fail);
	TRY_GOTO(gpu_check(gpu_memset_async(ptr, 0, bytes, device->service), what, err), fail);
	TRY_GOTO(gpu_drain(device->service, clock_deadline_ms(ZERO_DEADLINE_MS), what, err), fail);
	*allocation = (struct gpu_allocation){.next = device->allocations, .ptr = ptr, .bytes = bytes, .tag = tag};
	device->allocations = allocation;
	count_total(device, tag, 0, bytes);
	*out = ptr;
	return STATUS_OK;
fail:
	if (ptr) (void)gpu_free(ptr);
	free(allocation);
	return st;
}

static void drop(struct gpu_device *device, struct gpu_allocation **link)
{
	struct gpu_allocation *allocation = *link;
	*link = allocation->next;
	count_total(device, allocation->tag, allocation->bytes, 0);
	(void)gpu_free(allocation->ptr); /* after a device fault this fails, and the process ends */
	free(allocation);
}

void gpu_memory_free(struct device *base, void *ptr)
{
	struct gpu_device *device = gpu_device(base);
	for (struct gpu_allocation **link = &device->allocations; ptr && *link; link = &(*link)->next)
		if ((*link)->ptr == ptr) {
			drop(device, link);
			return;
		}
}

void gpu_memory_free_all(struct gpu_device *device)
{
	while (device->allocations) drop(device, &device->allocations);
}

void gpu_memory_report(const struct device *base, struct mem_report *out)
{
	const struct gpu_device *device = (const struct gpu_device *)base;
	for (int i = 0; i < MEM_TAG_COUNT; i++) out->now[i] = atomic_load(&device->now[i]);
	out->peak = atomic_load(&device->peak);
}

size_t gpu_memory_free_bytes(const struct device *device)
{
	size_t left = 0, all = 0;
	return gpu_mem_info(&left, &all) == GPU_OK ? left / (size_t)((const struct gpu_device *)device)->sharers : SIZE_MAX;
}

void gpu_memory_count_runtime(struct gpu_device *device)
{
	size_t left = 0, all = 0, own = atomic_load(&device->total) - atomic_load(&device->now[MEM_RUNTIME]);
	if (gpu_mem_info(&left, &all) != GPU_OK || all - left < own) return;
	count_total(device, MEM_RUNTIME, atomic_load(&device->now[MEM_RUNTIME]), all - left - own);
}

enum status gpu_memory_host_alloc(struct device *device, size_t bytes, const char *what, void **out, struct error *err)
{
	(void)device;
	*out = NULL;
	enum status st = gpu_check(gpu_host_alloc(out, bytes ? bytes : 1), "pinned host memory", err);
	if (st != STATUS_OK) error_prefix(err, "%s: %zu bytes", what, bytes);
	return st;
}

void gpu_memory_host_free(struct device *device, void *ptr)
{
	(void)device;
	if (ptr) (void)gpu_host_free(ptr);
}

enum status gpu_memory_copy(struct stream *stream, void *dst, const void *src, size_t bytes, enum copy_kind kind, struct error *err)
{
	(void)kind; /* addresses say where they are */
	if (!bytes) return STATUS_OK;
	return gpu_check(gpu_copy_async(dst, src, bytes, gpu_context(stream)->stream), "copy", err);
}
