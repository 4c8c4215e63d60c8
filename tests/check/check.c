/* check.c: the harness of tests/check; main() holds its usage. */
#include "check/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rng.h"
#include "device/cpu/cpu.h"
#include "device/cpu/peak.h"

#define CANARY 0xa5

static size_t page_round(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (bytes + page - 1) / page * page;
}

struct guarded guarded_alloc(size_t bytes)
{
	size_t page = page_round(1), body = page_round(bytes + 64);
	struct guarded g = {.bytes = bytes, .map_bytes = body + page};
	g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (g.map == MAP_FAILED || mprotect((char *)g.map + body, page, PROT_NONE)) {
		perror("check: mmap");
		exit(1);
	}
	g.data = (char *)g.map + body - bytes;
	size_t band = (size_t)((char *)g.data - (char *)g.map);
	memset(g.map, CANARY, band);
	return g;
}

void guarded_free(struct guarded *g)
{
	if (g->map) munmap(g->map, g->map_bytes);
	*g = (struct guarded){0};
}

bool guarded_intact(const struct guarded *g)
{
	for (const unsigned char *p = g->map; p < (unsigned char *)g->data; p++)
		if (*p != CANARY) return false;
	return true;
}

void guarded_poison(struct guarded *g)
{
	memset(g->data, 0xff, g->bytes);
}

void case_begin(struct check *c, enum fill fill, const char *shape, ...)
{
	va_list args;
	va_start(args, shape);
	vsnprintf(c->shape, sizeof c->shape, shape, args);
	va_end(args);
	c->fill = fill;
	c->case_failed = false;
}

void case_end(struct check *c)
{
	if (c->case_failed) c->failed++;
	else c->passed++;
}

void case_fail(struct check *c, const struct runner *v, const char *format, ...)
{
	if (c->case_failed) return; /* one line a case */
	c->case_failed = true;
	printf("FAIL %s [%s] fill %s seed %" PRIu64 " (%s, %d threads): ", c->op, c->shape, fill_name(c->fill), c->seed, v ? v->isa : "oracle",
	       v ? v->threads : 1);
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
}

/* With seed 1, all cases. Update only with docs/NUMERICS.md. Order of cases does not matter. */
static const struct { const char *op; uint64_t hash; } recorded[] = {
	{"exp", 0xa5b61b3aae496383},
	{"rms_norm", 0x2bfba2a6e5f0b7ab},
	{"head_norm", 0xeb56c9523dcdbd42},
	{"linear", 0x3150aaf052be5596},
	{"rope", 0x898ca90c7e42de50},
	{"attention", 0xd8695eacf4c72d1b},
	{"swiglu", 0xe1d21c19d6c1ae7},
	{"tree_sum", 0x6e5effbe5621b509},
	{"gdn", 0x2c5d507b26716a},
	{"gate", 0x389e117ddf771e43},
	{"geglu", 0xcb8359e4a9acaf16},
	{"norm_add", 0xfce25da34b391f41},
	{"softcap", 0x72a8faf579483e2d},
	{"moe", 0xd688c4ef553a7e31},
};

void reference_bits(struct check *c, const float *data, size_t n)
{
	if (c->fill != FILL_RANDOM) return;
	uint64_t hash = rng_name(c->shape);
	for (size_t i = 0; i < n; i++) hash = rng_mix(hash ^ f32_to_bits(data[i]));
	c->hash += hash;
}

static void compare_recorded(struct check *c)
{
	if (c->seed != 1 || c->quick) return;
	for (size_t i = 0; i < sizeof recorded / sizeof *recorded; i++) {
		if (strcmp(recorded[i].op, c->op) || recorded[i].hash == c->hash) continue;
		printf("FAIL %s: the reference gives %#" PRIx64 ", recorded is %#" PRIx64 ": its definition or its cases changed\n", c->op, c->hash, recorded[i].hash);
		c->failed++;
	}
}

void compare_bits(struct check *c, const struct runner *v, const char *what, const float *got, const float *want, size_t n)
{
	c->compared++;
	if (!memcmp(got, want, n * sizeof *got)) return;
	for (size_t i = 0; i < n; i++) {
		if (!memcmp(&got[i], &want[i], sizeof *got) || (got[i] != got[i] && want[i] != want[i])) continue;
		case_fail(c, v, "%s[%zu] = %a (%08x), reference %a (%08x)", what, i, (double)got[i], f32_to_bits(got[i]), (double)want[i],
		          f32_to_bits(want[i]));
		return;
	}
}

void compare_bound(struct check *c, const char *what, const float *got, const double *want, const double *bound, size_t n)
{
	c->compared++;
	for (size_t i = 0; i < n; i++) {
		if (want[i] != want[i] || fabs((double)got[i] - want[i]) <= bound[i]) continue;
		case_fail(c, NULL, "%s[%zu] = %.9g, exact %.9g: error %.3g > bound %.3g", what, i, (double)got[i], want[i],
		          fabs((double)got[i] - want[i]), bound[i]);
		return;
	}
}

void expect_ok(struct check *c, const struct runner *v, enum status st, const struct error *err)
{
	if (st != STATUS_OK) case_fail(c, v, "%s: %s", status_name(st), err->text);
}

void expect_intact(struct check *c, const struct runner *v, const struct guarded *g, const char *what)
{
	if (!guarded_intact(g)) case_fail(c, v, "wrote before %s", what);
}

struct test_weight test_weight_make(struct check *c, enum dtype dtype, int n, int k, uint64_t stream)
{
	const struct runner *v = &c->variant[0];
	struct test_weight t = {.w = {.dtype = dtype, .n = n, .k = k}};
	size_t bytes = v->device->vt->linear_bytes(dtype, n, k), row = dtype_size(dtype, (size_t)k);
	t.panels = guarded_alloc(bytes);
	t.source = guarded_alloc((size_t)n * row);
	memset(t.panels.data, 0, bytes);
	fill_with(t.source.data, dtype, (size_t)n * (size_t)k, c->fill, c->seed, stream);
	t.w.data = t.panels.data;
	struct error err = {0};
	int cut = n / 3; /* in two parts, as fused weights come */
	expect_ok(c, v, v->device->vt->linear_put(v->stream, &t.w, 0, cut, t.source.data, row, &err), &err);
	expect_ok(c, v, v->device->vt->linear_put(v->stream, &t.w, cut, n - cut, (char *)t.source.data + (size_t)cut * row, row, &err), &err);
	expect_intact(c, v, &t.panels, "panels");
	return t;
}

void test_weight_free(struct test_weight *t)
{
	guarded_free(&t->panels);
	guarded_free(&t->source);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* One thread: its processor time, so that neighbours do not count. */
static bool processor_time;

static double bench_now(void)
{
	struct timespec now;
	if (!processor_time) return (double)clock_ns() * 1e-9;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

struct bench_timer bench_run(void (*fn)(void *), void *context)
{
	enum { MOST = 400 };
	double times[MOST], spent = 0;
	int n = 0;
	fn(context); /* warm */
	while (n < MOST && (n < 5 || spent < 0.3)) {
		double begin = bench_now();
		fn(context);
		times[n] = bench_now() - begin;
		spent += times[n++];
	}
	qsort(times, (size_t)n, sizeof *times, by_value);
	return (struct bench_timer){.best_s = times[0], .median_s = times[n / 2]};
}

/* --- variants and main */

static bool open_variant(struct check *c, const char *isa, int threads)
{
	struct runner *v = &c->variant[c->variants];
	struct error err = {0};
	const struct device_ops *ops = device_find("cpu");
	*v = (struct runner){.isa = isa, .threads = threads};
	enum status st = ops->open(&v->device, &(struct device_options){.isa = isa, .core_count = threads}, &err);
	if (st == STATUS_UNSUPPORTED) {
		printf("skip isa %s: %s\n", isa, err.text);
		return true;
	}
	struct stream_options options = {.max_rows = 640, .max_k = 8192, .max_n = 32768, .max_q_heads = 32, .max_head_dim = 256, .max_context = 1 << 16};
	if (st == STATUS_OK) st = ops->stream_create(v->device, &options, &v->stream, &err);
	if (st != STATUS_OK) {
		printf("FAIL open %s with %d threads: %s\n", isa, threads, err.text);
		return false;
	}
	c->variants++;
	return true;
}

static bool open_variants(struct check *c)
{
	static const struct { const char *isa; int threads; } all[] = {
		{"c", 1}, {"c", 3}, {"avx2", 1}, {"avx2", 3}, {"avx512", 1}, {"avx512", 2}, {"avx512", 5},
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!open_variant(c, all[i].isa, all[i].threads)) return false;
	return true;
}

static void close_variants(struct check *c)
{
	for (int i = 0; i < c->variants; i++) {
		struct runner *v = &c->variant[i];
		v->device->vt->stream_destroy(v->stream);
		v->device->vt->close(v->device);
	}
}

static void run_check(struct check *c, const char *op, void (*fn)(struct check *), const char *only)
{
	if (only && strcmp(only, op)) return;
	int passed = c->passed, failed = c->failed;
	c->op = op;
	c->compared = 0;
	c->hash = 0;
	uint64_t begin = clock_ns();
	fn(c);
	if (!c->compared) {
		printf("FAIL %s: its check compared nothing\n", op);
		c->failed++;
	}
	if (c->failed == failed) compare_recorded(c);
	printf("%-12s %4d passed, %d failed, %ld comparisons, %.1f s\n", op, c->passed - passed, c->failed - failed, c->compared,
	       (double)(clock_ns() - begin) * 1e-9);
	fflush(stdout);
}

struct alone {
	const struct cpu_kernels *kernels;
	struct guarded memory;
	float sink;
};

static void alone_read(void *context)
{
	struct alone *a = context;
	a->sink += a->kernels->read(a->memory.data, a->memory.bytes / 4);
}

static void alone_fma(void *context)
{
	struct alone *a = context;
	a->sink += a->kernels->fma(100000);
}

/* The peaks of one thread in processor time. */
static void measure_alone(struct check *c)
{
	struct alone a = {.kernels = cpu_kernels(c->variant[0].stream), .memory = guarded_alloc((size_t)256 << 20)};
	madvise(a.memory.map, a.memory.map_bytes, MADV_HUGEPAGE);
	memset(a.memory.data, 0, a.memory.bytes);
	c->read_gbps = (double)a.memory.bytes / bench_run(alone_read, &a).median_s * 1e-9;
	c->fma_gflops = 1e5 * a.kernels->fma_step_flops / bench_run(alone_fma, &a).median_s * 1e-9;
	printf("peak %s, one thread's processor time: read %.1f GB/s, f32 fma %.1f GFLOP/s\n", a.kernels->name, c->read_gbps, c->fma_gflops);
	guarded_free(&a.memory);
}

/* Peaks are measured again for each family: neighbours come and go. */
static bool measure_peak(struct check *c, const char *isa, int threads)
{
	struct cpu_peak peak;
	struct error err = {0};
	if (cpu_peak(&(struct device_options){.isa = isa, .core_count = threads}, &peak, &err) != STATUS_OK) {
		printf("FAIL peak: %s\n", err.text);
		return false;
	}
	for (int i = 0; i < peak.counts; i++)
		printf("peak %s %2d threads: read %6.1f GB/s, f32 fma %7.1f GFLOP/s\n", isa, peak.threads[i], peak.read_gbps[i], peak.fma_gflops[i]);
	c->read_gbps = peak.read_gbps[peak.counts - 1];
	c->fma_gflops = peak.fma_gflops[peak.counts - 1];
	return true;
}

static int bench(struct check *c, const char *isa, int threads, const char *only)
{
	static const struct { const char *op; void (*fn)(struct check *); } families[] = {
		{"linear", bench_linear}, {"attention", bench_attention}, {"rows", bench_rows}, {"gdn", bench_gdn},
	};
	if (!threads) threads = (int)sysconf(_SC_NPROCESSORS_ONLN);
	processor_time = threads == 1;
	close_variants(c);
	c->variants = 0;
	if (!open_variant(c, isa, threads)) return 1;
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		if (only && strcmp(only, families[i].op)) continue;
		if (processor_time) measure_alone(c);
		else if (!measure_peak(c, isa, threads)) return 1;
		families[i].fn(c);
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct check c = {.seed = 1};
	const char *only = NULL, *isa = "auto";
	int threads = 0;
	bool want_bench = false;
	for (int i = 1; i < argc; i++) {
		char *end = NULL;
		if (!strcmp(argv[i], "--bench")) want_bench = true;
		else if (!strcmp(argv[i], "--quick")) c.quick = true;
		else if (!strcmp(argv[i], "--op") && i + 1 < argc) only = argv[++i];
		else if (!strcmp(argv[i], "--isa") && i + 1 < argc) isa = argv[++i];
		else if (!strcmp(argv[i], "--threads") && i + 1 < argc && (threads = (int)strtol(argv[i + 1], &end, 10)) > 0 && !*end) i++;
		else if (!strcmp(argv[i], "--seed") && i + 1 < argc && (c.seed = strtoull(argv[i + 1], &end, 10), *argv[i + 1] && !*end)) i++;
		else {
			fprintf(stderr, "usage: check [--seed N] [--op NAME] [--quick] | check --bench [--op linear|attention|rows|gdn] [--isa NAME] [--threads N]\n"
				"with --threads 1 times are processor time\n");
			return 2;
		}
	}
	if (!open_variants(&c)) return 1;
	int rc = 0;
	if (want_bench) rc = bench(&c, isa, threads, only);
	else {
		printf("seed %" PRIu64 "\n", c.seed);
#define X(op) run_check(&c, #op, check_##op, only);
		X(exp)
		OP_LIST(X)
		OP_FAMILY_LIST(X)
#undef X
		printf("%d passed, %d failed\n", c.passed, c.failed);
		rc = c.failed || !c.passed;
	}
	close_variants(&c);
	return rc;
}
