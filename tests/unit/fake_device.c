#include "unit/fake_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"

#define MAX_JOBS 256

struct job {
	enum { JOB_SUM, JOB_COPY, JOB_CALL } kind;
	struct tree_sum_args sum;
	void *dst;
	const void *src;
	size_t bytes;
	void (*fn)(void *);
	void *context;
};

struct fake {
	struct device base;
	struct fake_options options;
	struct fake_counts counts;
	uint64_t draws;
};

struct fake_stream {
	struct stream base;
	struct job jobs[MAX_JOBS];
	int count;
};

static void die(const char *why)
{
	fprintf(stderr, "fake device: %s\n", why);
	abort();
}

static void nap(struct fake *fake)
{
	if (!fake->options.delay_us) return;
	uint64_t us = rng_u64(fake->options.seed, 1, fake->draws++) % (fake->options.delay_us + 1);
	if (us) nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static float program(const struct tree_sum_args *a, int64_t at)
{
	float stack[SUMTREE_MAX_DEPTH];
	int top = 0;
	for (int i = 0; i < a->sources; i++) {
		if (top == SUMTREE_MAX_DEPTH) die("tree_sum stack");
		stack[top++] = ((const float *)a->source[i])[at];
		for (int m = 0; m < a->merges[i]; m++, top--) stack[top - 2] = stack[top - 2] + stack[top - 1];
	}
	if (top != 1) die("tree_sum program leaves more than one value");
	return stack[0];
}

static void run_sum(struct fake *fake, const struct tree_sum_args *a)
{
	const int cols = a->out.cols;
	for (int t = a->row_begin; t < a->row_end; t++) {
		if (t == (a->row_begin + a->row_end) / 2) nap(fake);
		for (int c = 0; c < cols; c++) {
			float value = program(a, (int64_t)t * cols + c);
			if (a->bias) value += a->bias[c];
			if (a->residual.data) value = ((const float *)a->residual.data)[t * a->residual.row_stride + c] + value;
			((float *)a->out.data)[t * a->out.row_stride + c] = value;
		}
	}
}

static void run_job(struct fake *fake, const struct job *job)
{
	nap(fake);
	switch (job->kind) {
	case JOB_SUM: run_sum(fake, &job->sum); break;
	case JOB_COPY: memcpy(job->dst, job->src, job->bytes); break;
	case JOB_CALL: job->fn(job->context); break;
	}
}

static void put(struct stream *stream, const struct job *job)
{
	struct fake_stream *s = (struct fake_stream *)stream;
	struct fake *fake = (struct fake *)stream->device;
	if (!fake->options.lazy) {
		run_job(fake, job);
		return;
	}
	if (s->count == MAX_JOBS) die("too many jobs without a sync");
	s->jobs[s->count++] = *job;
}

void fake_call(struct stream *stream, void (*fn)(void *), void *context)
{
	put(stream, &(struct job){.kind = JOB_CALL, .fn = fn, .context = context});
}

static enum status fake_tree_sum(struct stream *stream, const struct tree_sum_args *args, struct error *err)
{
	struct fake *fake = (struct fake *)stream->device;
	if (++fake->counts.tree_sums == fake->options.fail_tree_sum) return FAIL(err, DEVICE_FAULT, "fake tree_sum: injected");
	put(stream, &(struct job){.kind = JOB_SUM, .sum = *args});
	return STATUS_OK;
}

static enum status fake_copy(struct stream *stream, void *dst, const void *src, size_t bytes, enum copy_kind kind, struct error *err)
{
	struct fake *fake = (struct fake *)stream->device;
	(void)kind;
	if (++fake->counts.copies == fake->options.fail_copy) return FAIL(err, DEVICE_FAULT, "fake copy: injected");
	put(stream, &(struct job){.kind = JOB_COPY, .dst = dst, .src = src, .bytes = bytes});
	return STATUS_OK;
}

static enum status fake_sync(struct stream *stream, uint64_t deadline_ns, const _Atomic int *abort_flag, struct error *err)
{
	struct fake_stream *s = (struct fake_stream *)stream;
	struct fake *fake = (struct fake *)stream->device;
	int n = ++fake->counts.syncs;
	if (n == fake->options.fail_sync) return FAIL(err, DEVICE_FAULT, "fake stream: injected");
	if (n == fake->options.hang_sync) {
		while (clock_ns() < deadline_ns) {
			if (atomic_load(abort_flag)) return FAIL(err, ABORTED, "fake stream: aborted");
			nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
		}
		return FAIL(err, TIMEOUT, "fake stream: not done by the deadline");
	}
	for (int i = 0; i < s->count; i++) run_job(fake, &s->jobs[i]);
	s->count = 0;
	return STATUS_OK;
}

static enum status fake_alloc(struct device *device, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err)
{
	struct fake *fake = (struct fake *)device;
	*out = NULL;
	if (++fake->counts.allocs == fake->options.fail_alloc) {
		fake->counts.allocs--;
		return FAIL(err, NO_MEMORY, "%s: injected lack of memory for %zu bytes", what, bytes);
	}
	*out = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	if (!*out) return FAIL(err, NO_MEMORY, "%s: %zu bytes", what, bytes);
	if (tag == MEM_SCRATCH) fake->counts.scratch_bytes += bytes;
	memset(*out, 0xff, bytes); /* NaN: worse than the zeroes of the contract, so that what nobody wrote shows */
	return STATUS_OK;
}

static void fake_free(struct device *device, void *ptr)
{
	if (ptr) ((struct fake *)device)->counts.frees++;
	free(ptr);
}

static void fake_stream_destroy(struct stream *stream)
{
	free(stream);
}

static const struct device_ops fake_ops = {
	.name = "fake",
	.close = fake_close,
	.alloc = fake_alloc,
	.free = fake_free,
	.stream_destroy = fake_stream_destroy,
	.stream_sync = fake_sync,
	.copy = fake_copy,
	.ops = {.tree_sum = fake_tree_sum},
};

struct device *fake_open(const struct fake_options *options)
{
	struct fake *fake = calloc(1, sizeof *fake);
	if (!fake) die("no memory");
	fake->base.vt = &fake_ops;
	fake->options = *options;
	return &fake->base;
}

void fake_close(struct device *device)
{
	if (!device) return;
	struct fake *fake = (struct fake *)device;
	if (fake->counts.allocs != fake->counts.frees) die("closed with memory still allocated");
	free(fake);
}

struct stream *fake_stream(struct device *device)
{
	struct fake_stream *stream = calloc(1, sizeof *stream);
	if (!stream) die("no memory");
	stream->base = (struct stream){.vt = &fake_ops, .device = device};
	return &stream->base;
}

struct fake_counts fake_counts(const struct device *device)
{
	return ((const struct fake *)device)->counts;
}
