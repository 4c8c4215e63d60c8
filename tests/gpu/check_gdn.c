/* check_gdn.c: the gated delta net and the output gate against doubles: steps of one row and of many, with and without a state before them, the state checked by
 * what later steps make of it. u is 2^-24, U the unit of the result's type.
 *
 * Bound: out is a norm, so an error of o counts by its share of o's length, about sqrt(k_dim) times its share of S; sums over k_dim and over the rows that have not
 * decayed: 4000 u of the gain silu(z) norm. What is kept in T costs more: the inputs of a convolution are exact, results of steps with many rows are rounded to T
 * before their norm: 3 U.
 *
 * In chunks (device/gpu/gdn_chunk.h) products take 11 bits: behind the first of them in a case, 2^-11 of sum |q| |S|, by the root mean square of it over the head's
 * columns, counts too. The state is then by so much less exact for the rows of later steps.
 */
#include <math.h>
#include <string.h>

#include "common/gdn.h"
#include "device/gpu/gdn_chunk.h"
#include "gpu/harness.h"

#define MAX_SEQS 4
#define MAX_STEPS 4
static const double u = 0x1.01p-24;

struct net {
	int k_heads, v_heads, k_dim, v_dim, taps, seqs;
	int step[MAX_STEPS][MAX_SEQS]; /* rows of each sequence in each step; a sequence without a row is not in it */
	float a_log, conv;             /* added to A_log: the larger the stronger decays; factor of taps, 0: 1 */
};

static int channels_of(const struct net *n)
{
	return 2 * n->k_heads * n->k_dim + n->v_heads * n->v_dim;
}

static int values_of(const struct net *n)
{
	return n->v_heads * n->v_dim;
}

/* The inputs of all rows of a case and what they must give; host memory of the case. */
struct text {
	int length[MAX_SEQS], first[MAX_SEQS]; /* rows of a sequence, and its first among all */
	char *qkvz, *ba;                       /* [rows] of T, as the device reads them */
	double *want, *scale;                  /* [rows][values] */
	double *rough;                         /* as scale, of what the roundings of products cost */
};

struct weights {
	float *conv, *a_log, *dt, *norm; /* host */
	const float *d_conv, *d_a_log, *d_dt, *d_norm;
};

static double sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static struct weights make_weights(struct gpu_check *c, const struct net *n)
{
	struct weights w;
	size_t taps = (size_t)(n->taps * channels_of(n)) * 4, heads = (size_t)n->v_heads * 4;
	w.conv = gpu_filled(c, DTYPE_F32, taps / 4, 11);
	w.a_log = gpu_filled(c, DTYPE_F32, heads / 4, 12);
	w.dt = gpu_filled(c, DTYPE_F32, heads / 4, 13);
	w.norm = gpu_filled(c, DTYPE_F32, (size_t)n->v_dim, 14);
	for (int i = 0; i < n->v_heads; i++) w.a_log[i] += n->a_log;
	for (size_t i = 0; n->conv != 0 && i < taps / 4; i++) w.conv[i] *= n->conv;
	w.d_conv = gpu_put(c, w.conv, taps), w.d_a_log = gpu_put(c, w.a_log, heads), w.d_dt = gpu_put(c, w.dt, heads);
	w.d_norm = gpu_put(c, w.norm, (size_t)n->v_dim * 4);
	return w;
}

static struct text make_text(struct gpu_check *c, const struct net *n, const struct weights *w)
{
	struct text text = {0};
	int rows = 0, cols = channels_of(n) + values_of(n);
	for (int s = 0; s < n->seqs; s++) {
		text.first[s] = rows;
		for (int i = 0; i < MAX_STEPS; i++) text.length[s] += n->step[i][s];
		rows += text.length[s];
	}
	text.qkvz = gpu_filled(c, c->dtype, (size_t)rows * (size_t)cols, 1);
	text.ba = gpu_filled(c, c->dtype, (size_t)rows * 2 * (size_t)n->v_heads, 2);
	text.want = gpu_host(c, (size_t)rows * (size_t)values_of(n) * 8);
	text.scale = gpu_host(c, (size_t)rows * (size_t)values_of(n) * 8);
	text.rough = gpu_host(c, (size_t)rows * (size_t)values_of(n) * 8);
	const struct gdn_oracle net = {.k_heads = n->k_heads, .v_heads = n->v_heads, .k_dim = n->k_dim, .v_dim = n->v_dim, .taps = n->taps, .conv = w->conv,
	                               .a_log = w->a_log, .dt_bias = w->dt, .norm = w->norm, .dtype = c->dtype};
	for (int s = 0; s < n->seqs; s++) {
		const size_t row = (size_t)text.first[s], at = row * (size_t)values_of(n), size = dtype_bytes(c->dtype);
		gdn_oracle(&net, text.length[s], text.qkvz + row * (size_t)cols * size, text.ba + row * 2 * (size_t)n->v_heads * size, text.want + at, text.scale + at,
		           text.rough + at);
	}
	return text;
}

/* One step: its rows are gathered out of the text, what they give is compared. */
static void run_step(struct gpu_check *c, const struct net *n, const struct weights *w, const struct text *text, const struct gdn_cache *cache, const int *step,
                     int *done, int *slot, bool *chunks)
{
	const double rel = 4000 * u + 3 * gpu_unit(c->dtype);
	const int cols = channels_of(n) + values_of(n), values = values_of(n);
	const size_t line = (size_t)cols * dtype_bytes(c->dtype), ba_line = 2 * (size_t)n->v_heads * dtype_bytes(c->dtype);
	int32_t start[MAX_SEQS + 1] = {0}, read[MAX_SEQS], write[MAX_SEQS];
	int rows = 0, seqs = 0, most = 0;
	for (int s = 0; s < n->seqs; s++) rows += step[s];
	char *qkvz = gpu_host(c, (size_t)rows * line), *ba = gpu_host(c, (size_t)rows * ba_line);
	double *want = gpu_host(c, (size_t)rows * (size_t)values * 8), *scale = gpu_host(c, (size_t)rows * (size_t)values * 8);
	for (int s = 0; s < n->seqs; s++) {
		const size_t from = (size_t)(text->first[s] + done[s]), count = (size_t)step[s], to = (size_t)start[seqs];
		if (!count) continue;
		memcpy(qkvz + to * line, text->qkvz + from * line, count * line);
		memcpy(ba + to * ba_line, text->ba + from * ba_line, count * ba_line);
		memcpy(want + to * (size_t)values, text->want + from * (size_t)values, count * (size_t)values * 8);
		memcpy(scale + to * (size_t)values, text->scale + from * (size_t)values, count * (size_t)values * 8);
		for (size_t i = 0; *chunks && i < count * (size_t)values; i++) scale[to * (size_t)values + i] += 0x1p-11 / rel * text->rough[from * (size_t)values + i];
		read[seqs] = slot[s];
		write[seqs] = slot[s] = slot[s] == 1 + 2 * s ? 2 + 2 * s : 1 + 2 * s;
		start[seqs + 1] = start[seqs] + step[s];
		seqs++;
		done[s] += step[s];
		if (step[s] > most) most = step[s];
	}
	struct step_rows sr = {.rows = rows, .seqs = seqs, .row_start = gpu_put(c, start, sizeof start), .state_read = gpu_put(c, read, sizeof read),
	                       .state_write = gpu_put(c, write, sizeof write), .max_seq_rows = most, .fresh = rows % 2 == 0};
	while (sr.single_seqs < seqs && start[sr.single_seqs + 1] == sr.single_seqs + 1) sr.single_seqs++;
	struct tensor out = gpu_output(c, c->dtype, TENSOR_SHARDED, rows, values, values + 8);
	const struct gdn_args args = {.qkvz = tensor_view(gpu_put(c, qkvz, (size_t)rows * line), c->dtype, TENSOR_SHARDED, rows, cols),
	                              .ba = tensor_view(gpu_put(c, ba, (size_t)rows * ba_line), c->dtype, TENSOR_SHARDED, rows, 2 * n->v_heads), .conv = w->d_conv,
	                              .a_log = w->d_a_log, .dt_bias = w->d_dt, .norm = w->d_norm, .eps = 1e-6f, .cache = cache, .layer = 1, .rows = &sr, .out = out};
	if (*chunks && most >= GDN_CHUNK && !gdn_wants_chunks(&args, gpu_context(c->stream)->workspace_bytes)) gpu_fail(c, "%d rows would not go in chunks", most);
	gpu_ok(c, gpu_gdn_by(c->stream, &args, *chunks, &c->err));
	gpu_compare(c, most >= GDN_CHUNK ? "out of chunks" : most > 1 ? "out of many rows" : "out of one row", &out, want, scale, rel, gpu_tiny(c->dtype));
}

static void net_case(struct gpu_check *c, enum dtype dtype, const struct net *n, bool chunks)
{
	gpu_case(c, dtype, FILL_RANDOM, "heads %d/%d of %d, %d, %d taps, first step %d, %d, %d%s", n->k_heads, n->v_heads, n->k_dim, n->v_dim, n->taps,
	         n->step[0][0], n->step[0][1], n->step[0][2], chunks ? ", in chunks" : "");
	struct weights w = make_weights(c, n);
	struct text text = make_text(c, n, &w);
	struct gdn_cache cache = {.layout = {.layers = 2, .slots = 2 * MAX_SEQS + 1, .k_heads = n->k_heads, .v_heads = n->v_heads, .k_dim = n->k_dim,
	                                     .v_dim = n->v_dim, .conv_kernel = n->taps, .dtype = dtype}};
	cache.data = gpu_room(c, gdn_cache_bytes(&cache.layout)); /* NaN where nobody has written */
	int done[MAX_SEQS] = {0}, slot[MAX_SEQS];
	for (int s = 0; s < MAX_SEQS; s++) slot[s] = -1;
	for (int i = 0; i < MAX_STEPS; i++) {
		int rows = 0;
		for (int s = 0; s < n->seqs; s++) rows += n->step[i][s];
		if (rows) run_step(c, n, &w, &text, &cache, n->step[i], done, slot, &chunks);
	}
	gpu_case_end(c);
}

/* Sequences that begin in the middle, with and without a state, short last chunks, single rows between them; weak decays and strong ones; values that f16 has no
 * room for. */
static void check_chunks(struct gpu_check *c)
{
	static const struct net nets[] = {
		{1, 1, 128, 128, 4, 1, {{64}, {1}, {65}, {1}}, 0, 0},
		{1, 3, 128, 128, 4, 4, {{200, 1, 63, 64}, {1, 1, 1, 1}, {1, 129, 2, 64}, {70, 1, 1, 1}}, 0, 0},
		{2, 2, 128, 128, 4, 3, {{1, 130, 5}, {127, 1, 128}, {1, 1, 1}}, -7, 0},
		{2, 4, 128, 128, 3, 2, {{300, 90}, {1, 1}, {1, 64}, {1, 1}}, 3, 0},
		{1, 2, 128, 128, 1, 2, {{66, 300}, {1, 1}, {64, 1}, {1, 1}}, -3, 0x1p20f},
		{1, 1, 128, 128, 4, 1, {{2000}, {1}}, -5, 1},
	};
	for (int i = 0; i < (int)(sizeof nets / sizeof *nets); i++)
		for (enum dtype dtype = DTYPE_F16; dtype <= DTYPE_BF16; dtype++)
			if (gdn_launch_chunks && (dtype == DTYPE_BF16 || nets[i].conv <= 1)) net_case(c, dtype, &nets[i], true);
	net_case(c, DTYPE_BF16, &nets[0], false);
}

/* What goes in chunks, whether the device has them or not. */
static void check_choice(struct gpu_check *c)
{
	static const struct choice {
		int k_dim, v_dim, taps, most, stride;
		enum dtype dtype;
		size_t missing; /* bytes of workspace */
		bool chunks;
	} choices[] = {
		{128, 128, 4, 64, 1024, DTYPE_BF16, 0, true},  {128, 128, 1, 100, 1024, DTYPE_F16, 0, true},  {128, 128, 4, 63, 1024, DTYPE_BF16, 0, false},
		{128, 128, 4, 64, 1024, DTYPE_F32, 0, false},  {64, 128, 4, 64, 1024, DTYPE_BF16, 0, false},  {128, 64, 4, 64, 1024, DTYPE_BF16, 0, false},
		{128, 128, 5, 64, 1024, DTYPE_BF16, 0, false}, {128, 128, 4, 64, 1028, DTYPE_BF16, 0, false}, {128, 128, 4, 64, 1024, DTYPE_BF16, 1, false},
	};
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "what goes in chunks");
	for (int i = 0; i < (int)(sizeof choices / sizeof *choices); i++) {
		const struct choice *k = &choices[i];
		const struct gdn_cache cache = {.layout = {.k_heads = 2, .v_heads = 4, .k_dim = k->k_dim, .v_dim = k->v_dim, .conv_kernel = k->taps, .dtype = k->dtype}};
		const struct step_rows rows = {.rows = 130, .seqs = 3, .max_seq_rows = k->most};
		const struct gdn_args args = {.cache = &cache, .rows = &rows, .qkvz = {.row_stride = k->stride}, .out = {.row_stride = 512}};
		if (gdn_wants_chunks(&args, gdn_workspace(130, 3, 2, 4).bytes - k->missing) != k->chunks)
			gpu_fail(c, "choice %d: %s, expected the other way", i, k->chunks ? "row by row" : "in chunks");
		c->compared++;
	}
	gpu_case_end(c);
}

void gpu_check_gdn(struct gpu_check *c)
{
	static const struct net nets[] = {
		{1, 1, 1, 1, 1, 1, {{1}, {1}}, 0, 0},
		{2, 4, 8, 12, 4, 2, {{1, 5}, {1, 1}, {34, 1}, {1, 1}}, 0, 0},
		{1, 3, 20, 33, 3, 3, {{2, 1, 0}, {1, 1, 1}, {1, 1, 1}, {0, 3, 1}}, 0, 0},
		{1, 2, 33, 16, 2, 1, {{1}, {1}, {3}}, 0, 0},
		{1, 3, 128, 128, 4, 2, {{40, 1}, {1, 1}, {1, 2}, {1, 1}}, 0, 0},
		{48, 48, 128, 128, 4, 3, {{1, 1, 1}, {1, 1, 4}, {1, 1, 1}}, 0, 0}, /* more heads than multiprocessors */
		{2, 6, 32, 16, 4, 3, {{1, 3, 2}, {1, 1, 7}, {1, 1, 1}, {1, 0, 1}}, 0, 0},
		{2, 2, 64, 70, 5, 1, {{65}, {1}, {1}}, 0, 0},
	};
	for (int i = 0; i < (int)(sizeof nets / sizeof *nets); i++)
		for (enum dtype dtype = 0; dtype < DTYPE_PLAIN_COUNT; dtype++) net_case(c, dtype, &nets[i], false);
	check_chunks(c);
	check_choice(c);
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "heads that are too wide");
	struct gdn_cache wide = {.layout = {.layers = 2, .slots = 1, .k_heads = 1, .v_heads = 1, .k_dim = 256, .v_dim = 8, .conv_kernel = 4, .dtype = DTYPE_F32}};
	struct step_rows none = {0};
	GPU_REFUSED(c, gdn, UNSUPPORTED, {.cache = &wide, .rows = &none});
	c->compared++;
	gpu_case_end(c);
}

/* --- gate */

static void gate_case(struct gpu_check *c, enum dtype dtype, int rows, int cols)
{
	gpu_case(c, dtype, FILL_RANDOM, "[%d,%d]", rows, cols);
	void *x_host, *gate_host;
	struct tensor x = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, cols + 3, 1, &x_host), gate = gpu_input(c, dtype, TENSOR_SHARDED, rows, cols, cols + 1, 2, &gate_host);
	double *want = gpu_host(c, (size_t)rows * (size_t)cols * 8);
	for (int t = 0; t < rows; t++)
		for (int i = 0; i < cols; i++)
			want[t * cols + i] = element(x_host, dtype, (size_t)(t * (cols + 3) + i)) * sigmoid(element(gate_host, dtype, (size_t)(t * (cols + 1) + i)));
	GPU_RUN(c, gate, {.x = x, .gate = gate});
	gpu_compare(c, "x", &x, want, NULL, 8 * u + gpu_unit(dtype), gpu_tiny(dtype));
	gpu_case_end(c);
}

void gpu_check_gate(struct gpu_check *c)
{
	for (enum dtype dtype = 0; dtype < DTYPE_PLAIN_COUNT; dtype++) {
		gate_case(c, dtype, 1, 1);
		gate_case(c, dtype, 3, 300);
		gate_case(c, dtype, 17, 512);
	}
}

/* --- bench: a layer of the 27B model on one GPU and on one of two, states larger than the cache */

struct gdn_bench {
	struct gdn_args args;
	struct step_rows rows;
	int layers;
	bool chunks;
};

static void bench_one(struct gpu_check *c, void *context, int i)
{
	struct gdn_bench *b = context;
	struct gdn_args args = b->args;
	args.layer = i % b->layers;
	gpu_ok(c, gpu_gdn_by(c->stream, &args, b->chunks, &c->err));
}

static void bench_net(struct gpu_check *c, int world, int seqs, int rows_each, bool chunks)
{
	const struct net n = {.k_heads = 16 / world, .v_heads = 48 / world, .k_dim = 128, .v_dim = 128, .taps = 4};
	const int rows = seqs * rows_each, cols = channels_of(&n) + values_of(&n);
	gpu_case(c, DTYPE_BF16, FILL_RANDOM, "gdn of 27B, 1 of %d: %d x %d rows%s", world, seqs, rows_each, chunks ? ", in chunks" : "");
	struct gdn_bench b = {.layers = seqs > 8 ? 4 : 48, .chunks = chunks};
	struct gdn_cache cache = {.layout = {.layers = b.layers, .slots = 2 * seqs + 1, .k_heads = n.k_heads, .v_heads = n.v_heads, .k_dim = 128, .v_dim = 128,
	                                     .conv_kernel = 4, .dtype = DTYPE_BF16}};
	int32_t *start = gpu_host(c, (size_t)(seqs + 1) * 4), *read = gpu_host(c, (size_t)seqs * 4), *write = gpu_host(c, (size_t)seqs * 4);
	for (int s = 0; s < seqs; s++) start[s + 1] = (s + 1) * rows_each, read[s] = 1 + 2 * s, write[s] = 2 + 2 * s;
	cache.data = gpu_random_room(c, DTYPE_F32, gdn_cache_bytes(&cache.layout) / 4, 0.1f);
	b.rows = (struct step_rows){.rows = rows, .seqs = seqs, .row_start = gpu_put(c, start, (size_t)(seqs + 1) * 4), .state_read = gpu_put(c, read, (size_t)seqs * 4),
	                               .state_write = gpu_put(c, write, (size_t)seqs * 4), .max_seq_rows = rows_each};
	b.args = (struct gdn_args){
		.qkvz = tensor_view(gpu_random_room(c, DTYPE_BF16, (size_t)rows * (size_t)cols, 1), DTYPE_BF16, TENSOR_SHARDED, rows, cols),
		.ba = tensor_view(gpu_random_room(c, DTYPE_BF16, (size_t)rows * 2 * (size_t)n.v_heads, 1), DTYPE_BF16, TENSOR_SHARDED, rows, 2 * n.v_heads),
		.conv = gpu_random_room(c, DTYPE_F32, (size_t)(4 * channels_of(&n)), 0.5f), .a_log = gpu_random_room(c, DTYPE_F32, 64, 1),
		.dt_bias = gpu_random_room(c, DTYPE_F32, 64, 1), .norm = gpu_random_room(c, DTYPE_F32, 128, 1), .eps = 1e-6f, .cache = &cache, .rows = &b.rows,
		.out = gpu_output(c, DTYPE_BF16, TENSOR_SHARDED, rows, values_of(&n), values_of(&n))};
	double seconds = gpu_bench(c, bench_one, &b, rows_each > 1 ? 2 : 48);
	gpu_bench_report(c, seconds, seqs * 8.0 * n.v_heads * 128 * 128 + rows * 2.0 * (cols + values_of(&n)), rows * 7.0 * n.v_heads * 128 * 128);
	gpu_case_end(c);
}

void gpu_bench_gdn(struct gpu_check *c)
{
	for (int world = 1; world <= 2; world++) {
		bench_net(c, world, 1, 1, false);
		bench_net(c, world, 16, 1, false);
		bench_net(c, world, 64, 1, false);
		for (int chunks = 0; chunks <= 1; chunks++) {
			bench_net(c, world, 1, 2048, chunks);
			bench_net(c, world, 1, 8192, chunks);
			bench_net(c, world, 8, 1024, chunks);
		}
	}
}
