/* check_gdn.c: the gated delta net and the output gate. A case is a few sequences; each variant runs them in steps of its own, with slots of its
 * own, and must give the reference's bits, results and states alike. Oracle: the formulas of ops.h in double precision, row by row.
 *
 * Bound: out is a norm, so an error of o counts by its share of o's length. q and k have length 1 and |S| grows by what k adds, so o's error is a few
 * hundred roundings (rows of S, steps that have not decayed) of |S|, of which o is a share of about 1/sqrt(k_dim): 2000 u of the gain silu(z) norm,
 * for the sizes and lengths below.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "common/gdn.h"
#include "device/cpu/cpu.h"

#define MAX_SEQS 3
#define LAYER 1
#define GDN_BOUND (2000 * 0x1p-24)

struct net {
	int k_heads, v_heads, k_dim, v_dim, taps;
	int seqs, length[MAX_SEQS];
};

struct parameters {
	struct guarded conv, a_log, dt_bias, norm;
};

static struct guarded floats(struct check *c, size_t n, enum fill fill, uint64_t stream)
{
	struct guarded g = guarded_alloc(n * 4);
	fill_with(g.data, DTYPE_F32, n, fill, c->seed, stream);
	return g;
}

static int channels_of(const struct net *n)
{
	return 2 * n->k_heads * n->k_dim + n->v_heads * n->v_dim;
}

static int values_of(const struct net *n)
{
	return n->v_heads * n->v_dim;
}

static size_t state_floats(const struct net *n)
{
	return (size_t)(n->v_heads * n->k_dim * n->v_dim + (n->taps - 1) * channels_of(n));
}

/* Row `position` of a sequence: q|k|v|z and b|a, the same in whatever step it comes. */
static void fill_row(struct check *c, const struct net *n, int seq, int position, float *qkvz, float *ba)
{
	uint64_t stream = 1000 + (uint64_t)seq * 10000 + (uint64_t)position;
	fill_with(qkvz, DTYPE_F32, (size_t)(channels_of(n) + values_of(n)), c->fill, c->seed, 2 * stream);
	fill_with(ba, DTYPE_F32, (size_t)(2 * n->v_heads), c->fill, c->seed, 2 * stream + 1);
}

struct run {
	const struct net *net;
	const struct parameters *parameters;
	struct gdn_cache cache;
	struct guarded memory;
	int slot[MAX_SEQS]; /* -1: none yet */
	float *out;         /* all rows, sequence after sequence */
};

/* One step: rows [from[s], to[s]) of each sequence. */
static void step(struct check *c, const struct runner *v, struct run *r, const int *from, const int *to)
{
	const struct net *n = r->net;
	int rows = 0, seqs = 0, cols = channels_of(n) + values_of(n), t = 0, before = 0;
	int32_t start[MAX_SEQS + 1] = {0}, read[MAX_SEQS], write[MAX_SEQS];
	for (int s = 0; s < n->seqs; s++) rows += to[s] - from[s];
	struct guarded qkvz = guarded_alloc((size_t)rows * (size_t)cols * 4), ba = guarded_alloc((size_t)rows * (size_t)n->v_heads * 8);
	struct guarded out = guarded_alloc((size_t)rows * (size_t)values_of(n) * 4);
	guarded_poison(&out);
	for (int s = 0; s < n->seqs; s++) {
		if (from[s] == to[s]) continue;
		for (int p = from[s]; p < to[s]; p++, t++) fill_row(c, n, s, p, (float *)qkvz.data + (size_t)t * (size_t)cols, (float *)ba.data + (size_t)t * 2 * (size_t)n->v_heads);
		read[seqs] = r->slot[s];
		/* Of the two slots of a sequence the one that is not read; slot 0 is nobody's. */
		write[seqs] = r->slot[s] == 1 + 2 * s ? 2 + 2 * s : 1 + 2 * s;
		r->slot[s] = write[seqs];
		start[++seqs] = t;
	}
	struct step_rows sr = {.rows = rows, .seqs = seqs, .row_start = start, .state_read = read, .state_write = write};
	struct gdn_args args = {.qkvz = tensor_view(qkvz.data, DTYPE_F32, TENSOR_SHARDED, rows, cols),
	                        .ba = tensor_view(ba.data, DTYPE_F32, TENSOR_SHARDED, rows, 2 * n->v_heads), .conv = r->parameters->conv.data,
	                        .a_log = r->parameters->a_log.data, .dt_bias = r->parameters->dt_bias.data, .norm = r->parameters->norm.data, .eps = 1e-6f,
	                        .cache = &r->cache, .layer = LAYER, .rows = &sr,
	                        .out = tensor_view(out.data, DTYPE_F32, TENSOR_SHARDED, rows, values_of(n))};
	struct error err = {0};
	expect_ok(c, v, OP(v->stream, gdn, &args, &err), &err);
	expect_intact(c, v, &out, "out");
	expect_intact(c, v, &r->memory, "states");
	for (int s = 0, i = 0; s < n->seqs; before += n->length[s++]) {
		if (from[s] == to[s]) continue;
		size_t width = (size_t)values_of(n);
		memcpy(r->out + (size_t)(before + from[s]) * width, (float *)out.data + (size_t)start[i] * width, (size_t)(to[s] - from[s]) * width * 4);
		i++;
	}
	guarded_free(&qkvz), guarded_free(&ba), guarded_free(&out);
}

/* All rows, at most `chunk` of a sequence in a step. Appends the last states, S and inputs of each sequence, to out. */
static float *run_net(struct check *c, const struct runner *v, const struct net *n, const struct parameters *parameters, int chunk, size_t *count)
{
	struct run r = {.net = n, .parameters = parameters};
	size_t rows = 0;
	r.cache.layout = (struct gdn_layout){.layers = 2, .slots = 2 * MAX_SEQS + 1, .k_heads = n->k_heads, .v_heads = n->v_heads, .k_dim = n->k_dim,
	                                     .v_dim = n->v_dim, .conv_kernel = n->taps, .dtype = DTYPE_F32};
	r.memory = guarded_alloc(gdn_cache_bytes(&r.cache.layout));
	guarded_poison(&r.memory); /* what was there before a sequence's first row is read by nobody */
	r.cache.data = r.memory.data;
	for (int s = 0; s < n->seqs; s++) {
		rows += (size_t)n->length[s];
		r.slot[s] = -1;
	}
	*count = rows * (size_t)values_of(n) + (size_t)n->seqs * state_floats(n);
	r.out = malloc(*count * 4);
	int from[MAX_SEQS], to[MAX_SEQS] = {0};
	for (bool more = true; more;) {
		more = false;
		for (int s = 0; s < n->seqs; s++) {
			from[s] = to[s];
			to[s] = n->length[s] - from[s] < chunk ? n->length[s] : from[s] + chunk;
			more |= to[s] > from[s];
		}
		if (more) step(c, v, &r, from, to);
	}
	float *at = r.out + rows * (size_t)values_of(n);
	for (int s = 0; s < n->seqs; s++, at += state_floats(n)) {
		const char *state = gdn_state(&r.cache, LAYER, r.slot[s]);
		size_t matrix = (size_t)(n->v_heads * n->k_dim * n->v_dim);
		memcpy(at, state, matrix * 4);
		memcpy(at + matrix, state + gdn_s_bytes(&r.cache.layout), (state_floats(n) - matrix) * 4);
	}
	guarded_free(&r.memory);
	return r.out;
}

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

/* One sequence: want and bound of all its rows. */
static void oracle(struct check *c, const struct net *n, const struct parameters *p, int seq, double *want, double *bound)
{
	const int rows = n->length[seq], cols = channels_of(n) + values_of(n);
	float *qkvz = malloc((size_t)rows * (size_t)cols * 4), *ba = malloc((size_t)rows * (size_t)n->v_heads * 8);
	for (int t = 0; t < rows; t++) fill_row(c, n, seq, t, qkvz + (size_t)t * (size_t)cols, ba + (size_t)t * 2 * (size_t)n->v_heads);
	const struct gdn_oracle net = {.k_heads = n->k_heads, .v_heads = n->v_heads, .k_dim = n->k_dim, .v_dim = n->v_dim, .taps = n->taps, .conv = p->conv.data,
	                               .a_log = p->a_log.data, .dt_bias = p->dt_bias.data, .norm = p->norm.data, .dtype = DTYPE_F32};
	gdn_oracle(&net, rows, qkvz, ba, want, bound, NULL);
	for (int i = 0; i < rows * values_of(n); i++) bound[i] *= GDN_BOUND;
	free(qkvz), free(ba);
}

static void net_case(struct check *c, const struct net *n, enum fill fill)
{
	case_begin(c, fill, "heads %d/%d of %d, %d, %d taps, rows %d, %d, %d", n->k_heads, n->v_heads, n->k_dim, n->v_dim, n->taps, n->length[0],
	           n->length[1], n->length[2]);
	struct parameters p = {floats(c, (size_t)(n->taps * channels_of(n)), fill, 1), floats(c, (size_t)n->v_heads, fill, 2),
	                       floats(c, (size_t)n->v_heads, fill, 3), floats(c, (size_t)n->v_dim, fill, 4)};
	static const int chunks[] = {1 << 20, 1, 2, 7, 16, 33};
	size_t count, same;
	float *reference = run_net(c, &c->variant[0], n, &p, chunks[0], &count);
	reference_bits(c, reference, count);
	if (fill == FILL_RANDOM) {
		double *want = malloc(count * 8), *bound = malloc(count * 8);
		size_t at = 0;
		for (int s = 0; s < n->seqs; at += (size_t)(n->length[s++] * values_of(n))) oracle(c, n, &p, s, want + at, bound + at);
		compare_bound(c, "out", reference, want, bound, at);
		free(want), free(bound);
	}
	for (int i = 1; i < c->variants; i++) {
		float *got = run_net(c, &c->variant[i], n, &p, chunks[i % 6], &same);
		compare_bits(c, &c->variant[i], "out and states", got, reference, count);
		free(got);
	}
	float *rows = run_net(c, &c->variant[0], n, &p, 3, &same);
	compare_bits(c, &c->variant[0], "in steps of 3", rows, reference, count);
	case_end(c);
	guarded_free(&p.conv), guarded_free(&p.a_log), guarded_free(&p.dt_bias), guarded_free(&p.norm);
	free(reference), free(rows);
}

/* beta and decay by themselves, over the range where they are neither 0 nor 1. With a_log and dt_bias 0 decay is exp(-softplus(a)) = 1 - sigmoid(a).
 * Bounds: beta 4 u; decay's exponent, softplus(a), has an error of 4 u, which decay has as a share of itself. */
static void rates_case(struct check *c)
{
	enum { N = 4099 };
	float *b = malloc(3 * N * 4), *reference = b + N, *zero = b + 2 * N, *a = malloc(2 * N * 4), *decay = a + N;
	double *want = malloc(N * 8), *bound = malloc(N * 8);
	case_begin(c, FILL_RANDOM, "beta and decay of %d values", N);
	memset(zero, 0, N * 4);
	for (int i = 0; i < c->variants; i++) {
		for (int j = 0; j < N; j++) b[j] = a[j] = -90 + 180.0f * (float)j / N;
		cpu_kernels(c->variant[i].stream)->rates(b, a, zero, zero, N);
		if (i) {
			compare_bits(c, &c->variant[i], "beta", b, reference, N);
			compare_bits(c, &c->variant[i], "decay", a, decay, N);
			continue;
		}
		memcpy(reference, b, N * 4), memcpy(decay, a, N * 4);
		reference_bits(c, b, N), reference_bits(c, a, N);
	}
	for (int half = 0; half < 2; half++) {
		for (int j = 0; j < N; j++) {
			double x = (double)(-90 + 180.0f * (float)j / N);
			want[j] = half ? 1 / (1 + exp(x)) : sigmoid(x);
			bound[j] = want[j] * (4 + (half ? 4 * log1p(exp(x)) : 0)) * 0x1p-24 + 0x1p-125;
		}
		compare_bound(c, half ? "decay" : "beta", half ? decay : reference, want, bound, N);
	}
	case_end(c);
	free(b), free(a), free(want), free(bound);
}

void check_gdn(struct check *c)
{
	static const struct net nets[] = {
		{1, 1, 1, 1, 1, 1, {1}},
		{1, 1, 3, 5, 2, 2, {1, 9}},
		{2, 4, 16, 16, 4, 3, {5, 1, 3}},
		{2, 6, 8, 40, 4, 1, {40}},
		{1, 3, 33, 17, 3, 2, {20, 2}},
		{2, 2, 64, 80, 5, 2, {2, 33}},
		{1, 3, 128, 128, 4, 3, {1, 1, 18}},
	};
	for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
		for (int fill = 0; fill < FILL_COUNT; fill++) net_case(c, &nets[i], (enum fill)fill);
	rates_case(c);
	if (!c->quick) net_case(c, &(struct net){4, 12, 128, 128, 4, 2, {70, 1}}, FILL_RANDOM);
}

/* x * sigmoid(g): two roundings, those of 1 + exp(-g) and of exp itself. */
static void gate_case(struct check *c, int rows, int cols, enum fill fill)
{
	case_begin(c, fill, "[%d,%d]", rows, cols);
	size_t n = (size_t)rows * (size_t)cols;
	struct guarded both = guarded_alloc(2 * n * 4), x = guarded_alloc(2 * n * 4);
	float *reference = malloc(2 * n * 4);
	double *want = malloc(2 * n * 8), *bound = malloc(2 * n * 8);
	fill_with(both.data, DTYPE_F32, 2 * n, fill, c->seed, 1);
	const float *in = both.data;
	for (size_t i = 0; i < 2 * n; i++) {
		bool of_x = i % (2 * (size_t)cols) < (size_t)cols;
		want[i] = of_x ? (double)in[i] * sigmoid((double)in[i + (size_t)cols]) : (double)in[i];
		bound[i] = of_x ? 4 * 0x1p-24 * fabs(want[i]) + 0x1p-125 : 0;
	}
	for (int i = 0; i < c->variants; i++) {
		const struct runner *v = &c->variant[i];
		memcpy(x.data, both.data, 2 * n * 4);
		struct tensor all = tensor_view(x.data, DTYPE_F32, TENSOR_SHARDED, rows, 2 * cols);
		struct gate_args args = {.x = tensor_columns(&all, 0, cols), .gate = tensor_columns(&all, cols, cols)};
		struct error err = {0};
		expect_ok(c, v, OP(v->stream, gate, &args, &err), &err);
		expect_intact(c, v, &x, "x");
		if (i) compare_bits(c, v, "x", x.data, reference, 2 * n);
		else memcpy(reference, x.data, 2 * n * 4), reference_bits(c, reference, 2 * n);
	}
	if (fill == FILL_RANDOM) compare_bound(c, "x", reference, want, bound, 2 * n);
	case_end(c);
	guarded_free(&both), guarded_free(&x);
	free(reference), free(want), free(bound);
}

void check_gate(struct check *c)
{
	for (int fill = 0; fill < FILL_COUNT; fill++) {
		gate_case(c, 1, 1, (enum fill)fill);
		gate_case(c, 5, 33, (enum fill)fill);
		gate_case(c, 40, 512, (enum fill)fill);
	}
}

/* --- bench: the heads of a 27B hybrid model, layer after layer so that a decode step finds its state in memory. A step must at least read and write
 * each S once, and do 7 operations an element of S and row. */

struct gdn_bench {
	const struct runner *v;
	struct gdn_args args;
	int layers, calls;
};

static void gdn_step(void *context)
{
	struct gdn_bench *b = context;
	struct error err = {0};
	b->args.layer = b->calls++ % b->layers;
	if (OP(b->v->stream, gdn, &b->args, &err) != STATUS_OK) printf("bench: %s\n", err.text);
}

static void bench_gdn_of(struct check *c, int seqs, int rows_each)
{
	const struct net n = {.k_heads = 16, .v_heads = 48, .k_dim = 128, .v_dim = 128, .taps = 4};
	const int rows = seqs * rows_each, cols = channels_of(&n) + values_of(&n);
	struct gdn_bench b = {.v = &c->variant[0], .layers = seqs == 1 ? 24 : 4};
	struct gdn_cache cache = {.layout = {.layers = b.layers, .slots = 2 * seqs + 1, .k_heads = 16, .v_heads = 48, .k_dim = 128, .v_dim = 128,
	                                     .conv_kernel = 4, .dtype = DTYPE_F32}};
	float *qkvz = malloc((size_t)rows * (size_t)cols * 4), *ba = calloc((size_t)rows, 96 * 4), *out = malloc((size_t)rows * (size_t)values_of(&n) * 4);
	float *vectors = calloc((size_t)(5 * channels_of(&n)), 4);
	int32_t *start = calloc((size_t)seqs + 1, 4), *read = malloc((size_t)seqs * 4), *write = malloc((size_t)seqs * 4);
	cache.data = aligned_alloc(64, gdn_cache_bytes(&cache.layout));
	fill_with(cache.data, DTYPE_F32, gdn_cache_bytes(&cache.layout) / 4, FILL_RANDOM, 1, 1);
	fill_with(qkvz, DTYPE_F32, (size_t)rows * (size_t)cols, FILL_RANDOM, 1, 2);
	fill_with(vectors, DTYPE_F32, (size_t)(5 * channels_of(&n)), FILL_RANDOM, 1, 3);
	for (int s = 0; s < seqs; s++) {
		start[s + 1] = (s + 1) * rows_each;
		read[s] = 1 + 2 * s;
		write[s] = 2 + 2 * s;
	}
	struct step_rows sr = {.rows = rows, .seqs = seqs, .row_start = start, .state_read = read, .state_write = write};
	b.args = (struct gdn_args){.qkvz = tensor_view(qkvz, DTYPE_F32, TENSOR_SHARDED, rows, cols), .ba = tensor_view(ba, DTYPE_F32, TENSOR_SHARDED, rows, 96),
	                           .conv = vectors, .a_log = vectors + 4 * channels_of(&n), .dt_bias = vectors + 4 * channels_of(&n) + 48,
	                           .norm = vectors + 4 * channels_of(&n) + 96, .eps = 1e-6f, .cache = &cache, .rows = &sr,
	                           .out = tensor_view(out, DTYPE_F32, TENSOR_SHARDED, rows, values_of(&n))};
	struct bench_timer t = bench_run(gdn_step, &b);
	double bytes = seqs * 8.0 * 48 * 128 * 128 + rows * 4.0 * (2 * cols + values_of(&n)), flops = rows * 7.0 * 48 * 128 * 128;
	printf("gdn 16/48 x 128    %2d x %-4d %9.2f us, %6.1f GB/s (%3.0f %% of read), %6.1f GFLOP/s (%3.0f %% of fma)\n", seqs, rows_each, t.median_s * 1e6,
	       bytes * 1e-9 / t.median_s, bytes * 1e-7 / t.median_s / c->read_gbps, flops * 1e-9 / t.median_s, flops * 1e-7 / t.median_s / c->fma_gflops);
	free(qkvz), free(ba), free(out), free(vectors), free(start), free(read), free(write), free(cache.data);
}

void bench_gdn(struct check *c)
{
	bench_gdn_of(c, 1, 1);
	bench_gdn_of(c, 8, 1);
	bench_gdn_of(c, 1, 16);
	bench_gdn_of(c, 1, 512);
}
