#include "device/cpu/peak.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cpu/cpu.h"

#define BUFFER_BYTES ((size_t)512 << 20)
#define READ_CHUNK_BYTES ((size_t)2 << 20) /* one huge page: a member streams through it */
#define FMA_CHUNKS 64
#define FMA_STEPS 40000
#define PASSES 9

struct peak_job {
	const struct cpu_kernels *kernels;
	char *buffer;
	float sink[TEAM_MAX_MEMBERS]; /* results go somewhere, or the loops could be dropped */
};

static void touch_chunk(void *context, int chunk, int member)
{
	(void)member;
	struct peak_job *job = context;
	memset(job->buffer + (size_t)chunk * READ_CHUNK_BYTES, 1, READ_CHUNK_BYTES);
}

static void read_chunk(void *context, int chunk, int member)
{
	struct peak_job *job = context;
	job->sink[member] += job->kernels->read((const float *)(job->buffer + (size_t)chunk * READ_CHUNK_BYTES), READ_CHUNK_BYTES / sizeof(float));
}

static void fma_chunk(void *context, int chunk, int member)
{
	(void)chunk;
	struct peak_job *job = context;
	job->sink[member] += job->kernels->fma(FMA_STEPS);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median_seconds(struct team *team, int chunks, team_fn *fn, struct peak_job *job)
{
	double seconds[PASSES];
	team_run(team, chunks, fn, job); /* warm: pages, clock rate */
	for (int i = 0; i < PASSES; i++) {
		uint64_t begin = clock_ns();
		team_run(team, chunks, fn, job);
		seconds[i] = (double)(clock_ns() - begin) * 1e-9;
	}
	qsort(seconds, PASSES, sizeof *seconds, by_value);
	return seconds[PASSES / 2];
}

static enum status measure(const struct device_options *options, int threads, struct peak_job *job, struct cpu_peak *out, struct error *err)
{
	struct team *team;
	TRY(team_create(&team, &(struct team_options){.cores = options->cores, .members = threads, .pin = options->pin}, err));
	int chunks = (int)(BUFFER_BYTES / READ_CHUNK_BYTES), i = out->counts++;
	team_run(team, chunks, touch_chunk, job);
	out->threads[i] = threads;
	out->read_gbps[i] = (double)BUFFER_BYTES / median_seconds(team, chunks, read_chunk, job) * 1e-9;
	double flops = (double)FMA_CHUNKS * FMA_STEPS * job->kernels->fma_step_flops;
	out->fma_gflops[i] = flops / median_seconds(team, FMA_CHUNKS, fma_chunk, job) * 1e-9;
	team_destroy(&team);
	return STATUS_OK;
}

enum status cpu_peak(const struct device_options *options, struct cpu_peak *out, struct error *err)
{
	*out = (struct cpu_peak){0};
	const struct cpu_kernels *kernels;
	TRY(cpu_isa_find(&kernels, options->isa, err));
	int most = options->core_count > 0 ? options->core_count : 1;
	struct peak_job *job = mem_zalloc(1, sizeof *job, "peak", err);
	if (!job) return STATUS_NO_MEMORY;
	enum status st = STATUS_NO_MEMORY;
	job->kernels = kernels;
	job->buffer = mem_map(BUFFER_BYTES, "peak buffer", err);
	if (job->buffer) st = STATUS_OK;
	for (int threads = 1; st == STATUS_OK && threads < most && out->counts < CPU_PEAK_MAX_COUNTS - 1; threads *= 2)
		st = measure(options, threads, job, out, err);
	if (st == STATUS_OK) st = measure(options, most, job, out, err);
	mem_unmap(job->buffer, BUFFER_BYTES);
	free(job);
	return st;
}
