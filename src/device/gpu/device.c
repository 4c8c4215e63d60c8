/* device.c: a GPU as a device: how many there are, which rank has which, opening and closing, and the table.
 *
 * One rank is one thread with one device. `attach` makes the device current for the calling thread, and everything else counts on that.
 */
#include "device/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/gpu/attention.h"
#include "device/gpu/compare.h"
#include "device/gpu/gdn.h"
#include "device/gpu/moe.h"
#include "device/gpu/moe_ways.h"
#include "device/gpu/peak.h"

/* 0 devices and a reason, where the runtime says that there are none. */
static int count_devices(const char **reason)
{
	int count = 0;
	gpu_error code = gpu_device_count(&count);
	*reason = "";
	if (code == GPU_OK) return count;
	(void)gpu_last_error();
	*reason = gpu_error_text(code);
	return 0;
}

static enum status no_such_device(int ordinal, struct error *err)
{
	const char *reason;
	int count = count_devices(&reason);
	if (count > 0)
		return FAIL(err, BAD_INPUT, GPU_NAME_TEXT ": there is no device %d; %d found, numbered from 0", ordinal, count);
	return FAIL(err, UNSUPPORTED, GPU_NAME_TEXT ": 0 devices found%s%s; see that the driver is loaded, or take --device cpu", *reason ? ": " : "",
	            reason);
}

static void gpu_device_close(struct device *base)
{
	if (!base) return;
	struct gpu_device *device = gpu_device(base);
	(void)gpu_set_device(device->ordinal);
	if (device->service) (void)gpu_stream_destroy(device->service);
	gpu_memory_free_all(device); /* the contract says none is left; what the caller forgot must not outlive the device */
	free(device);
}

static enum status gpu_device_open(struct device **out, const struct device_options *options, struct error *err)
{
	*out = NULL;
	const char *reason;
	int count = count_devices(&reason);
	if (options->ordinal < 0 || options->ordinal >= count) return no_such_device(options->ordinal, err);
	struct gpu_device *device = mem_zalloc(1, sizeof *device, "gpu device", err);
	if (!device) return STATUS_NO_MEMORY;
	device->base.vt = device_find(GPU_NAME_TEXT);
	device->ordinal = options->ordinal;
	device->log = options->log;
	device->sharers = options->sharers > 1 ? options->sharers : 1;
	enum status st;
	TRY_GOTO(gpu_check(gpu_set_device(device->ordinal), "set device", err), fail);
	TRY_GOTO(gpu_check(gpu_props_get(&device->props, device->ordinal), "device properties", err), fail);
	TRY_GOTO(gpu_check(gpu_stream_create(&device->service), "stream", err), fail);
	gpu_memory_count_runtime(device);
	if (options->log)
		log_write(options->log, LOG_DEBUG, GPU_NAME_TEXT " device %d: %s, %s, %d multiprocessors, %.1f GiB", device->ordinal, device->props.name,
		          device->props.arch, device->props.multiprocessors, (double)device->props.memory_bytes / 0x1p30);
	if (options->log && device->sharers > 1)
		log_write(options->log, LOG_WARN, GPU_NAME_TEXT " device %d is shared by %d ranks: for checks, not for speed", device->ordinal, device->sharers);
	*out = &device->base;
	return STATUS_OK;
fail:
	error_prefix(err, GPU_NAME_TEXT " device %d", options->ordinal);
	gpu_device_close(&device->base);
	return st;
}

static void count_sharers(struct device_options *options, int ranks)
{
	for (int r = 0; r < ranks; r++) {
		options[r].sharers = 0;
		for (int other = 0; other < ranks; other++) options[r].sharers += options[other].ordinal == options[r].ordinal;
	}
}

/* Rank r on device ordinals[r], or on device r. Several ranks on one device is for checks, and only where the caller says so: they take turns. */
static enum status gpu_partition(int world_size, int threads, const int *ordinals, struct device_options *options, void **storage, struct error *err)
{
	(void)threads;
	*storage = NULL;
	const char *reason;
	int count = count_devices(&reason);
	for (int r = 0; r < world_size; r++) {
		int ordinal = ordinals ? ordinals[r] : r;
		if (!count) return no_such_device(ordinal, err);
		if (!ordinals && ordinal >= count)
			return FAIL(err, BAD_INPUT, GPU_NAME_TEXT ": %d ranks want %d devices, %d found; take --tp %d or less (or, for a check without speed, name a "
			            "device for each rank, some twice: --devices 0,0)",
			            world_size, world_size, count, count);
		if (ordinal < 0 || ordinal >= count) return no_such_device(ordinal, err);
		options[r].ordinal = ordinal;
	}
	count_sharers(options, world_size);
	return STATUS_OK;
}

static void gpu_attach(struct device *device)
{
	(void)gpu_set_device(gpu_device(device)->ordinal); /* open has done the same with success */
}

static const char *gpu_flavour(const struct device *device)
{
	return ((const struct gpu_device *)device)->props.arch;
}

static int gpu_threads(const struct device *device)
{
	(void)device;
	return 1;
}

static void gpu_limits(const struct device *device, struct device_limits *out)
{
	const struct gpu_props *props = &((const struct gpu_device *)device)->props;
	*out = (struct device_limits){.wave = props->warp, .max_threads = props->max_threads, .shared_bytes = (int64_t)props->max_shared,
	                              .compute_units = props->multiprocessors, .cache_bytes = props->l2_bytes};
}

/* Of a model whose weights are quantised there is none: linear_put refuses those. */
static enum dtype gpu_activation(enum dtype model)
{
	return dtype_is_plain(model) ? model : DTYPE_F32;
}

static size_t gpu_kv_bytes(const struct kv_layout *l)
{
	return (size_t)l->layers * gpu_kv_layer_bytes(l);
}

/* "580.82.07", or "" where the system does not say. */
static void driver_number(char *text, size_t bytes)
{
	FILE *file = *GPU_DRIVER_FILE ? fopen(GPU_DRIVER_FILE, "re") : NULL;
	if (!file || !fgets(text, (int)bytes, file)) text[0] = 0;
	text[strcspn(text, "\n")] = 0;
	if (file) fclose(file);
}

static void gpu_versions(const struct device *device, char *text, size_t bytes)
{
	const struct gpu_props *props = &((const struct gpu_device *)device)->props;
	char number[48], library[64];
	int driver = 0, runtime = 0;
	driver_number(number, sizeof number);
	if (gpu_driver_version(&driver) != GPU_OK || gpu_runtime_version(&runtime) != GPU_OK) (void)gpu_last_error(); /* 0: it does not say */
	gemm_library_version(library, sizeof library);
	snprintf(text, bytes, "%s, %.1f GiB, %d multiprocessors; driver %s%s" GPU_NAME_TEXT " %d, runtime %d%s%s", props->name, (double)props->memory_bytes / 0x1p30,
	         props->multiprocessors, number, *number ? ", " : "", driver, runtime, *library ? ", " : "", library);
}

#define GPU_PASTE_(name) name##_device_ops
#define GPU_PASTE(name) GPU_PASTE_(name)
extern const struct device_ops GPU_PASTE(GPU_NAME);

const struct device_ops GPU_PASTE(GPU_NAME) = {
	.name = GPU_NAME_TEXT,
	.open = gpu_device_open,
	.close = gpu_device_close,
	.partition = gpu_partition,
	.attach = gpu_attach,
	.flavour = gpu_flavour,
	.threads = gpu_threads,
	.limits = gpu_limits,
	.alloc = gpu_memory_alloc,
	.free = gpu_memory_free,
	.report = gpu_memory_report,
	.free_bytes = gpu_memory_free_bytes,
	.host_alloc = gpu_memory_host_alloc,
	.host_free = gpu_memory_host_free,
	.activation = gpu_activation,
	.kv_block_tokens = 64,
	.prefill_chunk = 8192,
	.accumulates = true,
	.host_idles = !GPU_EMULATED, /* the emulated device computes on them */
	.stream_create = gpu_stream_object_create,
	.stream_destroy = gpu_stream_object_destroy,
	.stream_sync = gpu_stream_object_sync,
	.event_create = gpu_event_object_create,
	.event_elapsed_ms = gpu_event_object_elapsed_ms,
	.event_destroy = gpu_event_object_destroy,
	.event_record = gpu_event_object_record,
	.copy = gpu_memory_copy,
	.graph_begin = gpu_graph_object_begin,
	.graph_end = gpu_graph_object_end,
	.graph_launch = gpu_graph_object_launch,
	.graph_destroy = gpu_graph_object_destroy,
	.linear_bytes = gpu_linear_bytes,
	.linear_granule = 1,
	.linear_put = gpu_linear_put,
	.linear_copy_rows = gpu_linear_copy_rows,
	.linear_random = gpu_linear_random,
	.vector_put = gpu_vector_put,
	.kv_bytes = gpu_kv_bytes,
	.moe_scratch_bytes = gpu_moe_scratch_bytes,
	.moe_norms = true,
	.linear_rows_after = gpu_linear_rows_after,
	.linear_variants = gpu_linear_variants,
	.linear_prefer = gpu_linear_prefer,
	.linear_ran = gpu_linear_ran,
	.attention_variants = gpu_attention_variants,
	.attention_prefer = gpu_attention_prefer,
	.attention_ran = gpu_attention_ran,
	.moe_variants = gpu_moe_variants,
	.moe_prefer = gpu_moe_prefer,
	.moe_ran = gpu_moe_ran,
	.graph_kernels = gpu_graph_object_kernels,
	.versions = gpu_versions,
	.read_memory = gpu_peak_read,
	.compare = gpu_compare_memory,
	.sizes = {.head_multiple = ATTENTION_HEAD_MULTIPLE, .max_head_dim = ATTENTION_MAX_HEAD, .max_gdn_k_dim = GDN_MAX_K, .max_gdn_v_dim = GDN_MAX_V,
	          .max_gdn_taps = GDN_GPU_TAPS, .max_experts = MOE_MAX_EXPERTS},
	.ops = {
#define X(op) .op = gpu_##op,
		OP_LIST(X)
		OP_FUSED_LIST(X)
		OP_FAMILY_LIST(X)
#undef X
	},
};
