/* main.c of check_gpu: see harness.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/gpu/device.h"
#include "device/gpu/peak.h"
#include "gpu/harness.h"

struct family {
	const char *op;
	void (*check)(struct gpu_check *c);
	void (*bench)(struct gpu_check *c); /* NULL: none */
	size_t slot;                        /* in the table of ops; SIZE_MAX: not an op */
};

static const struct family families[] = {
	{"device", gpu_check_device, NULL, SIZE_MAX},
	{"comm", gpu_check_comm, NULL, SIZE_MAX},
	{"xccl", gpu_check_xccl, NULL, SIZE_MAX},
	{"prescreen", gpu_check_prescreen, NULL, SIZE_MAX},
	{"attention_cudnn", gpu_check_attention_cudnn, gpu_bench_attention_cudnn, SIZE_MAX},
#define X(op) {#op, gpu_check_##op, gpu_bench_##op, offsetof(struct op_table, op)},
	OP_LIST(X)
	OP_FUSED_LIST(X)
	OP_FAMILY_LIST(X)
#undef X
};
enum { FAMILIES = sizeof families / sizeof *families };

struct options {
	const char *only[FAMILIES];
	int only_count;
	bool bench, list;
	int ordinal;
};

static bool chosen(const struct options *o, const char *op)
{
	for (int i = 0; i < o->only_count; i++)
		if (!strcmp(o->only[i], op)) return true;
	return !o->only_count;
}

static bool has_op(const struct gpu_check *c, const struct family *f)
{
	void (*entry)(void) = NULL;
	if (f->slot == SIZE_MAX) return true;
	memcpy(&entry, (const char *)&c->ops->ops + f->slot, sizeof entry);
	return entry != NULL;
}

static void run_check(struct gpu_check *c, const struct family *f)
{
	int passed = c->passed, failed = c->failed, skipped = c->skipped;
	uint64_t begin = clock_ns();
	c->op = f->op;
	c->compared = 0;
	c->ops->attach(c->device); /* the check before may have opened devices of its own */
	if (!has_op(c, f)) {
		printf("FAIL %s: the back end has none\n", f->op);
		c->failed++;
	} else if (!f->check) {
		printf("FAIL %s: no check\n", f->op);
		c->failed++;
	} else {
		c->ops->attach(c->device); /* another family may have used other devices on this thread */
		f->check(c);
		if (!c->compared && c->skipped == skipped) printf("FAIL %s: its check compares nothing\n", f->op), c->failed++;
	}
	printf("%-14s %5d passed, %d failed, %10ld elements compared, %.1f s\n", f->op, c->passed - passed, c->failed - failed, c->compared,
	       (double)(clock_ns() - begin) * 1e-9);
	fflush(stdout);
}

/* --- measured read rate: a buffer far larger than any cache, in one graph so that launches do not count */

#define PEAK_BYTES ((size_t)4 << 30)

struct peak {
	const char *data;
	uint32_t *sum;
	size_t bytes;
};

static void peak_launch(struct gpu_check *c, void *context, int i)
{
	const struct peak *p = context;
	(void)i;
	gpu_ok(c, gpu_peak_read(c->stream, p->data, p->bytes, p->sum, &c->err));
}

static void measure_read(struct gpu_check *c)
{
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "%zu bytes", PEAK_BYTES);
	struct peak p = {.bytes = PEAK_BYTES, .data = gpu_random_room(c, DTYPE_BF16, PEAK_BYTES / 2, 1.0f), .sum = gpu_put(c, "\0\0\0", 4)};
	c->read_gbps = (double)p.bytes / gpu_bench(c, peak_launch, &p, 2) * 1e-9;
	gpu_case_end(c);
	printf("read rate %.1f GB/s\n", c->read_gbps);
}

static void run_bench(struct gpu_check *c, const struct options *o)
{
	c->op = "read";
	measure_read(c);
	for (int i = 0; i < FAMILIES; i++) {
		if (!chosen(o, families[i].op) || !families[i].bench || !has_op(c, &families[i])) continue;
		c->op = families[i].op;
		families[i].bench(c);
	}
}

/* --- opening */

static bool open_devices(struct gpu_check *c, const struct options *o)
{
	c->ops = device_find(GPU_NAME_TEXT);
	c->reference_ops = device_find("cpu");
	enum status st;
	struct stream_options options = {.max_rows = o->bench ? 8192 : 2048, .max_k = 32768, .max_n = 65536, .max_q_heads = 64, .max_head_dim = 256,
	                                 .max_context = 1 << 17, .max_seqs = c->quick ? 8 : 64, .gdn_k_heads = 16, .gdn_v_heads = 48,
	                                 .gdn_k_dim = 128, .gdn_v_dim = 128};
	TRY_GOTO(c->ops->open(&c->device, &(struct device_options){.ordinal = o->ordinal}, &c->err), fail);
	TRY_GOTO(c->ops->stream_create(c->device, &options, &c->stream, &c->err), fail);
	options = (struct stream_options){.max_rows = 1024, .max_k = 32768, .max_n = 65536, .max_q_heads = 64, .max_head_dim = 256, .max_context = 1 << 14};
	TRY_GOTO(c->reference_ops->open(&c->reference, &(struct device_options){.isa = "c"}, &c->err), fail);
	TRY_GOTO(c->reference_ops->stream_create(c->reference, &options, &c->reference_stream, &c->err), fail);
	return true;
fail:
	printf("FAIL open: %s: %s\n", status_name(st), c->err.text);
	return false;
}

static void close_devices(struct gpu_check *c)
{
	if (c->stream) c->ops->stream_destroy(c->stream);
	if (c->device) c->ops->close(c->device);
	if (c->reference_stream) c->reference_ops->stream_destroy(c->reference_stream);
	if (c->reference) c->reference_ops->close(c->reference);
}

static bool parse(struct gpu_check *c, struct options *o, int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *end = NULL;
		bool more = i + 1 < argc;
		if (!strcmp(argv[i], "--bench")) o->bench = true;
		else if (!strcmp(argv[i], "--quick")) c->quick = true;
		else if (!strcmp(argv[i], "--list")) o->list = true;
		else if (!strcmp(argv[i], "--op") && more && o->only_count < FAMILIES) o->only[o->only_count++] = argv[++i];
		else if (!strcmp(argv[i], "--device") && more && (o->ordinal = (int)strtol(argv[i + 1], &end, 10)) >= 0 && !*end) i++;
		else if (!strcmp(argv[i], "--seed") && more && (c->seed = strtoull(argv[i + 1], &end, 10), *argv[i + 1] && !*end)) i++;
		else return false;
	}
	for (int i = 0; i < o->only_count; i++) {
		bool known = false;
		for (int f = 0; f < FAMILIES; f++) known = known || !strcmp(families[f].op, o->only[i]);
		if (!known) return fprintf(stderr, "check_gpu: there is no op %s; --list names them\n", o->only[i]), false;
	}
	return true;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0); /* what was printed is there when a run is killed */
	/* Before the runtime starts: ranks that share a device must not queue behind each other, nor a kernel's first load behind one that waits for a peer. */
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	setenv("NCCL_NVLS_ENABLE", "0", 0); /* no multicast between devices, as tandem itself has it */
	struct gpu_check c = {.seed = 1, .op = "open"};
	struct options o = {0};
	if (!parse(&c, &o, argc, argv)) {
		fprintf(stderr, "usage: check_gpu [--seed N] [--op NAME]... [--quick] [--device N] | --bench [--op NAME]... | --list\n");
		return 2;
	}
	for (int i = 0; o.list && i < FAMILIES; i++) printf("%s%s\n", families[i].op, families[i].bench ? " (bench)" : "");
	if (o.list) return 0;
	bool opened = open_devices(&c, &o);
	if (opened) printf(GPU_NAME_TEXT " device %d: %s, seed %" PRIu64 "\n", o.ordinal, c.ops->flavour(c.device), c.seed);
	if (opened && o.bench) run_bench(&c, &o);
	for (int i = 0; opened && !o.bench && i < FAMILIES; i++)
		if (chosen(&o, families[i].op)) run_check(&c, &families[i]);
	close_devices(&c);
	if (!opened) c.failed++;
	printf("%d passed, %d failed, %d skipped\n", c.passed, c.failed, c.skipped);
	return c.failed || !(c.passed + c.skipped);
}
