/* cpu.c: the CPU as a device: memory by tag, streams as workspaces, and the table.
 *
 * There is no queue: an op is done when its call returns, so stream_sync and the events have nothing to wait for, and there is
 * nothing to record: the graph entries are NULL.
 */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "device/cpu/onednn.h"
#include "device/cpu/topology.h"

struct cpu_allocation {
	struct cpu_allocation *next;
	void *ptr;
	size_t bytes;
	enum mem_tag tag;
};

static enum status cpu_open(struct device **out, const struct device_options *options, struct error *err)
{
	*out = NULL;
	const struct cpu_kernels *kernels;
	TRY(cpu_isa_find(&kernels, options->isa, err));
	int members = options->core_count > 0 ? options->core_count : 1;
	if (options->pin && (options->core_count < 1 || !options->cores))
		return FAIL(err, BAD_INPUT, "cpu device: asked to bind threads without naming cores");
	struct cpu_device *device = mem_zalloc(1, sizeof *device, "cpu device", err);
	if (!device) return STATUS_NO_MEMORY;
	device->base.vt = device_find("cpu");
	device->kernels = kernels;
	enum status st = team_create(&device->team, &(struct team_options){.cores = options->cores, .members = members, .pin = options->pin}, err);
	if (st != STATUS_OK) {
		free(device);
		return st;
	}
	if (options->log) log_write(options->log, LOG_DEBUG, "cpu device: isa %s, %d threads%s", kernels->name, members, options->pin ? ", pinned" : "");
	*out = &device->base;
	return STATUS_OK;
}

static void cpu_close(struct device *base)
{
	if (!base) return;
	struct cpu_device *device = cpu_device(base);
	team_destroy(&device->team);
	while (device->allocations) { /* the contract says none is left; what the caller forgot must not outlive the device */
		struct cpu_allocation *allocation = device->allocations;
		device->allocations = allocation->next;
		mem_unmap(allocation->ptr, allocation->bytes);
		free(allocation);
	}
	free(device);
}

/* Threads are bound to their cores where the group takes every core that it may use (two of its threads must never meet on one while
 * another is free) and where there are several memory nodes (a migrated thread would read across). A smaller group on one node is left
 * to the system, or two such processes would sit on the same first cores. With more threads than cores binding could only hurt.
 */
static bool should_bind(const struct cpu_topology *topology, int threads)
{
	return threads == topology->count || (topology->nodes > 1 && threads <= topology->count);
}

static enum status cpu_partition(int world_size, int threads, const int *ordinals, struct device_options *options, void **storage, struct error *err)
{
	(void)ordinals;
	*storage = NULL;
	if (world_size < 1 || threads < 0 || threads > TEAM_MAX_MEMBERS)
		return FAIL(err, BAD_INPUT, "cpu: %d ranks with %d threads; at least one rank and 0..%d threads are wanted", world_size, threads, TEAM_MAX_MEMBERS);
	struct cpu_topology topology;
	TRY(cpu_topology_init(&topology, err));
	if (!threads) threads = topology.threads < TEAM_MAX_MEMBERS ? topology.threads : TEAM_MAX_MEMBERS;
	if (threads < world_size) threads = world_size;
	int *cores = mem_zalloc((size_t)threads + (size_t)world_size + 1 + (size_t)topology.count, sizeof *cores, "cpu partition", err);
	if (cores) {
		int *start = cores + threads;
		cpu_topology_divide(&topology, world_size, threads, cores, start, start + world_size + 1);
		for (int r = 0; r < world_size; r++) {
			options[r].ordinal = 0;
			options[r].cores = cores + start[r];
			options[r].core_count = start[r + 1] - start[r];
			options[r].pin = should_bind(&topology, threads);
		}
		*storage = cores;
	}
	cpu_topology_fini(&topology);
	return cores ? STATUS_OK : STATUS_NO_MEMORY;
}

/* A failure to bind costs speed only. */
static void cpu_attach(struct device *device)
{
	struct error ignored = {0};
	(void)!team_attach(cpu_device(device)->team, &ignored);
}

static const char *cpu_flavour(const struct device *device)
{
	return ((const struct cpu_device *)device)->kernels->name;
}

static int cpu_threads(const struct device *device)
{
	return team_members(((const struct cpu_device *)device)->team);
}

static void cpu_limits(const struct device *device, struct device_limits *out)
{
	(void)device;
	long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
	*out = (struct device_limits){.wave = 1, .cache_bytes = cache > 0 ? (size_t)cache : 0};
}

/* Zero pages of the system: a page comes into being on the node of the thread that first writes it, which is one of the
 * rank's own (linear_put and the ops run on the team). */
static enum status cpu_alloc(struct device *base, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err)
{
	*out = NULL;
	struct cpu_device *device = cpu_device(base);
	struct cpu_allocation *allocation = mem_zalloc(1, sizeof *allocation, what, err);
	if (!allocation) return STATUS_NO_MEMORY;
	void *ptr = mem_map(bytes, what, err);
	if (!ptr) {
		free(allocation);
		return STATUS_NO_MEMORY;
	}
	*allocation = (struct cpu_allocation){.next = device->allocations, .ptr = ptr, .bytes = bytes, .tag = tag};
	device->allocations = allocation;
	atomic_fetch_add(&device->now[tag], bytes);
	size_t total = atomic_fetch_add(&device->total, bytes) + bytes;
	if (total > atomic_load(&device->peak)) atomic_store(&device->peak, total); /* one writer */
	*out = ptr;
	return STATUS_OK;
}

static void cpu_free(struct device *base, void *ptr)
{
	struct cpu_device *device = cpu_device(base);
	for (struct cpu_allocation **link = &device->allocations; ptr && *link; link = &(*link)->next) {
		struct cpu_allocation *allocation = *link;
		if (allocation->ptr != ptr) continue;
		*link = allocation->next;
		atomic_fetch_sub(&device->now[allocation->tag], allocation->bytes);
		atomic_fetch_sub(&device->total, allocation->bytes);
		mem_unmap(ptr, allocation->bytes);
		free(allocation);
		return;
	}
}

static void cpu_report(const struct device *base, struct mem_report *out)
{
	const struct cpu_device *device = (const struct cpu_device *)base;
	for (int i = 0; i < MEM_TAG_COUNT; i++) out->now[i] = atomic_load(&device->now[i]);
	out->peak = atomic_load(&device->peak);
}

/* A number in a small file of the kernel's, after `key`; SIZE_MAX if it is not there ("max" of a cgroup without a limit too). */
static size_t kernel_number(const char *path, const char *key)
{
	char line[128];
	unsigned long long value = 0;
	bool found = false;
	FILE *file = fopen(path, "re");
	while (file && !found && fgets(line, sizeof line, file))
		found = strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%llu", &value) == 1;
	if (file) fclose(file);
	return found ? (size_t)value : SIZE_MAX;
}

/* What the machine could give, page cache included, and no more than the control group still allows. */
static size_t cpu_free_bytes(const struct device *device)
{
	(void)device;
	size_t available = kernel_number("/proc/meminfo", "MemAvailable:");
	if (available != SIZE_MAX) available *= 1024;
	size_t limit = kernel_number("/sys/fs/cgroup/memory.max", ""), used = kernel_number("/sys/fs/cgroup/memory.current", "");
	if (limit != SIZE_MAX && used != SIZE_MAX) {
		size_t left = limit > used ? limit - used : 0;
		if (left < available) available = left;
	}
	return available;
}

/* Sizes of the workspace's parts, in floats; each a multiple of 16 so that all parts stay aligned. */
struct workspace {
	size_t packed, partial, unit_start, wide, stack, tile, total;
};

static struct workspace workspace_size(const struct cpu_stream *stream, int members)
{
	const struct stream_options *o = &stream->options;
	struct workspace size = {
		.packed = size_round_up((size_t)o->max_rows * (size_t)o->max_k, 16),
		.partial = (size_t)stream->partials * TILE_STRIDE,
		.unit_start = size_round_up((size_t)o->max_rows + 1, 16),
		.wide = (size_t)(LINEAR_WIDE_K + 2 * QUANT_GROUP) * PANEL,
		.stack = (size_t)LINEAR_BLOCK_PANELS * SUMTREE_MAX_DEPTH * (size_t)stream->block_rows * PANEL,
		.tile = (size_t)4 * TILE_MAX_ROWS * TILE_STRIDE,
	};
	size.total = size.packed + size.partial + size.unit_start + (size.wide + size.stack + size.tile) * (size_t)members;
	return size;
}

static float *carve(float **at, size_t floats)
{
	float *part = *at;
	*at += floats;
	return part;
}

static void cpu_stream_destroy(struct stream *base)
{
	if (!base) return;
	struct cpu_stream *stream = cpu_stream(base);
	if (stream->workspace) cpu_free(base->device, stream->workspace);
	free(stream->preferences);
	onednn_close(&stream->onednn);
	free(stream->scratch);
	free(stream);
}

static enum status cpu_stream_create(struct device *device, const struct stream_options *options, struct stream **out, struct error *err)
{
	*out = NULL;
	const struct stream_options *o = options;
	if (o->max_rows < 0 || o->max_k < 0 || o->max_n < 0 || o->max_q_heads < 0 || o->max_head_dim < 0 || o->max_head_dim > MAX_HEAD_DIM ||
	    o->max_context < 0)
		return FAIL(err, BAD_INPUT, "cpu stream: rows %d, k %d, n %d, heads %d of %d, context %d: all >= 0, heads up to %d wide", o->max_rows,
		            o->max_k, o->max_n, o->max_q_heads, o->max_head_dim, o->max_context, MAX_HEAD_DIM);
	int members = team_members(cpu_device(device)->team);
	struct cpu_stream *stream = mem_zalloc(1, sizeof *stream, "cpu stream", err);
	if (!stream) return STATUS_NO_MEMORY;
	stream->base = (struct stream){.vt = device->vt, .device = device};
	stream->options = *o;
	int rows = o->max_rows > 0 ? o->max_rows : 1;
	stream->block_rows = rows < LINEAR_BLOCK_ROWS ? rows : LINEAR_BLOCK_ROWS;
	stream->partials = cpu_attention_partials(o, members);
	enum status st = STATUS_NO_MEMORY;
	stream->scratch = mem_zalloc((size_t)members, sizeof *stream->scratch, "cpu stream scratch", err);
	if (!stream->scratch) goto fail;
	struct workspace size = workspace_size(stream, members);
	TRY_GOTO(cpu_alloc(device, size.total * sizeof(float), MEM_WORKSPACE, "cpu stream workspace", &stream->workspace, err), fail);
	float *at = stream->workspace;
	stream->packed = carve(&at, size.packed);
	stream->partial = carve(&at, size.partial);
	stream->unit_start = (int *)carve(&at, size.unit_start);
	for (int i = 0; i < members; i++)
		stream->scratch[i] = (struct cpu_scratch){.wide = carve(&at, size.wide), .stack = carve(&at, size.stack), .tile = carve(&at, size.tile)};
	*out = &stream->base;
	return STATUS_OK;
fail:
	cpu_stream_destroy(&stream->base);
	return st;
}

static enum status cpu_stream_sync(struct stream *stream, uint64_t deadline_ns, const _Atomic int *abort_flag, struct error *err)
{
	(void)stream, (void)deadline_ns, (void)abort_flag, (void)err;
	return STATUS_OK;
}

static enum status cpu_copy(struct stream *stream, void *dst, const void *src, size_t bytes, enum copy_kind kind, struct error *err)
{
	(void)stream, (void)kind, (void)err;
	if (bytes) memmove(dst, src, bytes);
	return STATUS_OK;
}

extern const struct device_ops cpu_device_ops;

const struct device_ops cpu_device_ops = {
	.name = "cpu",
	.open = cpu_open,
	.close = cpu_close,
	.partition = cpu_partition,
	.attach = cpu_attach,
	.flavour = cpu_flavour,
	.threads = cpu_threads,
	.limits = cpu_limits,
	.alloc = cpu_alloc,
	.free = cpu_free,
	.report = cpu_report,
	.one_memory = true,
	.block_types = true,
	.free_bytes = cpu_free_bytes,
	.stream_create = cpu_stream_create,
	.stream_destroy = cpu_stream_destroy,
	.stream_sync = cpu_stream_sync,
	.copy = cpu_copy,
	.linear_bytes = cpu_linear_bytes,
	.linear_granule = PANEL,
	.linear_put = cpu_linear_put,
	.linear_copy_rows = cpu_linear_copy_rows,
	.vector_put = cpu_vector_put,
	.kv_bytes = cpu_kv_bytes,
	.linear_variants = cpu_linear_variants,
	.linear_prefer = cpu_linear_prefer,
	.linear_ran = cpu_linear_ran,
	.versions = cpu_versions,
	.moe_scratch_bytes = cpu_moe_scratch_bytes,
	.compare = cpu_compare,
	.sizes = {.head_multiple = HEAD_MULTIPLE, .max_head_dim = MAX_HEAD_DIM, .max_gdn_taps = GDN_MAX_TAPS},
	.ops = {
#define X(op) .op = cpu_##op,
		OP_LIST(X)
		OP_FAMILY_LIST(X)
#undef X
	},
};
