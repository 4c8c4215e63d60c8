/* Sampling on the device against engine/sampler.c. The token must be the same, except where the draw, or a limit of top-p or min-p, is so close to
 * a boundary that the rounding of the two sums decides: n tokens above the floor, masses in units of 2^-44 on the device and in double on the
 * host, so within n * 2^-44 of the total and n * 2^-52 of it. A difference that this does not explain fails. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/device_sampler.h"
#include "gpu/harness.h"

enum shape { SHAPE_NORMAL, SHAPE_PEAKED, SHAPE_TIES, SHAPE_EQUAL, SHAPE_CROWDED, SHAPE_COUNT };
static const char *const shape_names[SHAPE_COUNT] = {"normal", "peaked", "ties", "equal", "crowded"};

#define PROMPT 24
#define GENERATED 48
#define BIASES 6
#define MASKED 3
#define ADJUSTS 128

/* One row as a sequence has it. */
struct sample_case {
	struct sampler_params params;
	struct sampler_input input;
	int32_t prompt[PROMPT], generated[GENERATED], bias_ids[BIASES], masked[MASKED];
	float bias_values[BIASES];
};

static double unit(const struct gpu_check *c, uint64_t row, uint64_t i)
{
	return rng_unit(c->seed, 100 + row, i);
}

static double gauss(const struct gpu_check *c, uint64_t row, uint64_t i)
{
	double a = unit(c, row, 2 * i), b = unit(c, row, 2 * i + 1);
	return sqrt(-2 * log(1 - a)) * cos(6.283185307179586 * b);
}

static void fill_logits(const struct gpu_check *c, float *x, int n, enum shape shape, uint64_t row)
{
	for (int i = 0; i < n; i++) {
		double g = shape == SHAPE_EQUAL || shape == SHAPE_CROWDED ? 0 : gauss(c, row, (uint64_t)i);
		switch (shape) {
		case SHAPE_NORMAL: x[i] = (float)(2 * g); break;
		case SHAPE_PEAKED: x[i] = (float)(6 * g + (unit(c, row + 1000, (uint64_t)i) < 0.001 ? 20 : 0)); break;
		case SHAPE_TIES: x[i] = (float)(round(2 * g) / 2) * (i % 2 ? 1.0f : -1.0f); break; /* both zeros among them */
		case SHAPE_EQUAL: x[i] = 1.5f; break;
		default: x[i] = i % 97 ? 1.0f + 0x1p-23f * (float)((i * 7) % 20000) : -30.0f; break; /* more tokens in a cell than the list holds */
		}
	}
}

#define PICK(stream, ...) ((const double[]){__VA_ARGS__})[(int)(unit(c, 5000 + row, stream) * (double)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))]

static void make_case(const struct gpu_check *c, struct sample_case *s, int vocab, uint64_t row, bool plain)
{
	for (int i = 0; i < PROMPT; i++) s->prompt[i] = (int32_t)(unit(c, 6000 + row, (uint64_t)i) * vocab);
	for (int i = 0; i < GENERATED; i++) s->generated[i] = (int32_t)(pow(unit(c, 7000 + row, (uint64_t)i), 2) * vocab);
	for (int i = 0; i < MASKED; i++) s->masked[i] = (int32_t)(unit(c, 8000 + row, (uint64_t)i) * (vocab + 1)) - 1;
	int biases = 0;
	for (int i = 0; i < BIASES; i++) {
		int32_t id = (int32_t)(unit(c, 9000 + row, (uint64_t)i) * vocab);
		bool again = false;
		for (int j = 0; j < biases; j++) again = again || s->bias_ids[j] == id;
		if (again) continue;
		s->bias_ids[biases] = id;
		s->bias_values[biases++] = (float)(unit(c, 9500 + row, (uint64_t)i) * 12 - 6);
	}
	s->params = (struct sampler_params){.temperature = PICK(0, 0.0, 0.05, 0.7, 1.0, 1.0, 1.5, 30.0),
	                                    .top_k = (int)PICK(1, 0, 0, 1, 5, 50, 700, 5000),
	                                    .top_p = PICK(2, 1.0, 1.0, 0.95, 0.5, 0.1, 0.0),
	                                    .min_p = PICK(3, 0, 0, 0, 0.02, 0.3, 1.0),
	                                    .repetition_penalty = PICK(4, 1.0, 1.0, 1.3, 0.8),
	                                    .presence_penalty = PICK(5, 0, 0, 0.6, -0.5),
	                                    .frequency_penalty = PICK(6, 0, 0, 0.2, -0.1),
	                                    .seed = rng_u64(c->seed, 3, row),
	                                    .bias_ids = s->bias_ids,
	                                    .bias_values = s->bias_values,
	                                    .bias_count = PICK(7, 0, 1) > 0 ? biases : 0,
	                                    .want_logprob = PICK(8, 0, 1) > 0};
	s->input = (struct sampler_input){.prompt = s->prompt, .prompt_count = PROMPT, .generated = s->generated, .generated_count = GENERATED,
	                                  .masked = s->masked, .masked_count = vocab > 2 * MASKED && PICK(9, 0, 1) > 0 ? MASKED : 0};
	if (!plain) return;
	s->params = (struct sampler_params){.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = rng_u64(c->seed, 3, row), .want_logprob = true};
	s->input.masked_count = 0;
}

/* ---- the explanation of a difference */

struct entry {
	float logit;
	int32_t id;
	double weight;
};

static int best_first(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
	return (x->id > y->id) - (x->id < y->id);
}

/* Could `token` be the draw, if each sum were off by up to `bound` of the total? x: logits after adjustments. */
static bool within_rounding(const struct sample_case *s, const float *x, int vocab, int32_t token)
{
	const struct sampler_params *p = &s->params;
	float top = -INFINITY;
	for (int i = 0; i < vocab; i++) top = fmaxf(top, x[i]);
	struct entry *e = malloc((size_t)vocab * sizeof *e);
	int n = 0, cut;
	for (int i = 0; i < vocab; i++)
		if ((double)x[i] >= (double)top - 70.0 * p->temperature) e[n++] = (struct entry){x[i], i, exp(((double)x[i] - top) / p->temperature)};
	qsort(e, (size_t)n, sizeof *e, best_first);
	double total = 0, bound = n * 0x1p-44;
	if (p->top_k > 0 && p->top_k < n) {
		for (cut = p->top_k; cut < n && e[cut].logit == e[p->top_k - 1].logit;) cut++;
		n = cut;
	}
	for (int i = 0; i < n; i++) total += e[i].weight;
	bound += total * n * 0x1p-52;
	double before = 0, mass = 0; /* `mass`: kept, if the cut is at i */
	bool possible = false;
	double target = rng_unit(p->seed, 1, PROMPT + GENERATED), token_begin = -1, token_end = -1;
	for (int i = 0; i <= n && !possible; i++) {
		bool edge = i == n || (i > 0 && e[i].logit != e[i - 1].logit);
		if (edge && i > 0) { /* may the filters end here? */
			bool wanted_all = i == n, p_ends = p->top_p < 1 && mass >= p->top_p * total - bound;
			bool min_ends = i < n && e[i].weight < p->min_p * (1 + 1e-13);
			bool ends = wanted_all || p_ends || min_ends;
			if (ends && token_begin >= 0 && target * mass >= token_begin - 2 * bound && target * mass <= token_end + 2 * bound) possible = true;
			bool must_end = (p->top_p < 1 && mass >= p->top_p * total + bound) || (i < n && e[i].weight < p->min_p * (1 - 1e-13));
			if (must_end) break;
		}
		if (i == n) break;
		before = mass;
		mass += e[i].weight;
		if (e[i].id == token) token_begin = before, token_end = mass;
	}
	free(e);
	return possible;
}

/* ---- a run */

struct run {
	int rows, vocab, stride;
	struct sample_case *cases;
	float *logits; /* host, [rows][stride] */
	struct device_sampler *device;
	struct sampler *host;
	void *memory;              /* the device sampler's */
	struct sample_choice *out; /* host copy */
};

static long draws, differences; /* of the whole check */

static void compare_row(struct gpu_check *c, struct run *r, const struct tensor *logits, int row)
{
	struct sample_case *s = &r->cases[row];
	float *x = r->logits + (size_t)row * (size_t)r->stride, *got = gpu_host(c, (size_t)r->vocab * sizeof *got);
	struct sampler_choice want;
	struct error err = {0};
	s->input.logits = x;
	enum status st = sampler_pick(r->host, &s->params, &s->input, &want, &err);
	const struct sample_choice *o = &r->out[row];
	c->compared++;
	if (st != STATUS_OK) {
		if (o->token != -1) gpu_fail(c, "row %d: token %d; the host says %s", row, o->token, err.text);
		return;
	}
	gpu_get(c, got, (char *)logits->data + (size_t)row * (size_t)r->stride * sizeof(float), (size_t)r->vocab * sizeof(float));
	for (int i = 0; i < r->vocab; i++)
		if (memcmp(&got[i], &x[i], sizeof x[i])) {
			gpu_fail(c, "row %d: logit %d after adjustments is %a, the host's %a", row, i, (double)got[i], (double)x[i]);
			return;
		}
	draws += s->params.temperature >= 1e-5;
	if (o->token < 0 || o->token >= r->vocab) gpu_fail(c, "row %d: token %d of %d", row, o->token, r->vocab);
	else if (o->token != want.token) {
		differences++;
		if (s->params.temperature < 1e-5 || !within_rounding(s, x, r->vocab, o->token))
			gpu_fail(c, "row %d: token %d (logit %.9g), the host's %d (%.9g); T %g k %d p %g min %g", row, o->token, (double)x[o->token], want.token,
			         (double)x[want.token], s->params.temperature, s->params.top_k, s->params.top_p, s->params.min_p);
		return;
	}
	double bound = s->params.want_logprob ? 4 * 0x1p-24 * (fabs(want.logprob) + 1) : 0;
	if (!(fabs((double)o->logprob - want.logprob) <= bound))
		gpu_fail(c, "row %d: logprob %.9g, the host's %.9g: more than %.3g apart", row, (double)o->logprob, (double)want.logprob, bound);
}

static void run_begin(struct gpu_check *c, struct run *r, int rows, int vocab, int stride)
{
	*r = (struct run){.rows = rows, .vocab = vocab, .stride = stride};
	r->cases = gpu_host(c, (size_t)rows * sizeof *r->cases);
	r->logits = gpu_host(c, (size_t)rows * (size_t)stride * sizeof(float));
	r->out = gpu_host(c, (size_t)rows * sizeof *r->out);
	r->memory = gpu_host(c, device_sampler_bytes(rows, rows * ADJUSTS));
	gpu_ok(c, sampler_create(&r->host, vocab, &c->err));
	gpu_ok(c, device_sampler_create(&r->device, vocab, rows, rows * ADJUSTS, r->memory, &c->err));
	device_sampler_begin(r->device, rows);
}

static void run_end(struct run *r)
{
	sampler_destroy(&r->host);
	device_sampler_destroy(&r->device);
}

/* Runs the op on r->logits with what the device sampler holds. */
static struct tensor run_op(struct gpu_check *c, struct run *r)
{
	struct tensor logits = tensor_view(gpu_put(c, r->logits, (size_t)r->rows * (size_t)r->stride * sizeof(float)), DTYPE_F32, TENSOR_REPLICATED, r->rows,
	                                   r->vocab);
	logits.row_stride = r->stride;
	char *rows = gpu_put(c, r->memory, device_sampler_bytes_used(r->device));
	struct sample_choice *out = gpu_room(c, (size_t)r->rows * sizeof *out);
	GPU_RUN(c, sample, {.logits = logits, .row = (struct sample_row *)rows,
	                    .adjust = (struct sample_adjust *)(rows + device_sampler_adjust_offset(r->rows)),
	                    .scratch = gpu_room(c, sample_scratch_bytes(r->rows)), .out = out});
	gpu_get(c, r->out, out, (size_t)r->rows * sizeof *out);
	return logits;
}

static void check_shape(struct gpu_check *c, enum shape shape, int rows, int vocab, uint64_t salt, bool plain)
{
	struct run r;
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "R %d V %d %s%s #%d", rows, vocab, shape_names[shape], plain ? " plain" : "", (int)salt);
	run_begin(c, &r, rows, vocab, vocab + 3);
	memset(r.logits, 0xff, (size_t)rows * (size_t)r.stride * sizeof(float));
	for (int i = 0; i < rows; i++) {
		uint64_t row = salt * 1000 + (uint64_t)i;
		fill_logits(c, r.logits + (size_t)i * (size_t)r.stride, vocab, shape, row);
		make_case(c, &r.cases[i], vocab, row, plain);
		if (!device_sampler_add(r.device, i, &r.cases[i].params, &r.cases[i].input)) gpu_fail(c, "row %d was not taken", i);
	}
	struct tensor logits = run_op(c, &r);
	for (int i = 0; i < rows; i++) compare_row(c, &r, &logits, i);
	run_end(&r);
	gpu_case_end(c);
}

/* NaN, nothing finite, +inf, only one token left, a skipped row: row by row. */
static void check_faults(struct gpu_check *c, int vocab)
{
	enum { NAN_ROW, EMPTY_ROW, INF_ROW, ONE_ROW, SKIPPED_ROW, NAN_GREEDY_ROW, ROWS };
	struct run r;
	gpu_case(c, DTYPE_F32, FILL_SPECIAL, "faults V %d", vocab);
	run_begin(c, &r, ROWS, vocab, vocab);
	for (int i = 0; i < ROWS; i++) {
		float *x = r.logits + (size_t)i * (size_t)vocab;
		fill_logits(c, x, vocab, SHAPE_NORMAL, (uint64_t)i);
		make_case(c, &r.cases[i], vocab, (uint64_t)i, true);
		for (int j = 0; j < vocab && (i == EMPTY_ROW || i == ONE_ROW); j++) x[j] = -INFINITY;
		if (i == NAN_ROW || i == NAN_GREEDY_ROW) x[vocab / 2] = NAN;
		if (i == INF_ROW) x[vocab / 2] = INFINITY;
		if (i == ONE_ROW) x[vocab - 1] = -3;
		if (i == NAN_GREEDY_ROW) r.cases[i].params.temperature = 0;
		if (i != SKIPPED_ROW && !device_sampler_add(r.device, i, &r.cases[i].params, &r.cases[i].input)) gpu_fail(c, "row %d was not taken", i);
	}
	(void)run_op(c, &r);
	for (int i = 0; i < ROWS; i++) {
		uint32_t poison;
		memcpy(&poison, &r.out[i].token, sizeof poison);
		struct sampler_choice choice;
		struct error err = {0};
		enum status st = device_sampler_choice(&r.out[i], &choice, &err);
		c->compared++;
		if (i == SKIPPED_ROW) {
			uint32_t logprob;
			memcpy(&logprob, &r.out[i].logprob, sizeof logprob);
			if (poison != 0xffffffffu || logprob != 0xffffffffu) gpu_fail(c, "the result of a skipped row was written");
		} else if (i == ONE_ROW) {
			if (st != STATUS_OK || choice.token != vocab - 1 || choice.logprob != 0) gpu_fail(c, "token %d, logprob %g where one is left", choice.token, (double)choice.logprob);
		} else if (st != STATUS_DEVICE_FAULT) gpu_fail(c, "row %d: token %d of faulty logits", i, r.out[i].token);
	}
	run_end(&r);
	gpu_case_end(c);
}

/* Rows that the device does not take: nothing of them may be left behind for the rows that follow. */
static void check_not_taken(struct gpu_check *c)
{
	enum { VOCAB = 200, ROWS = 4 };
	struct run r;
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "rows that the host samples");
	run_begin(c, &r, ROWS, VOCAB, VOCAB);
	device_sampler_destroy(&r.device);
	gpu_ok(c, device_sampler_create(&r.device, VOCAB, ROWS, PROMPT, r.memory, &c->err)); /* room for less than a row's history */
	device_sampler_begin(r.device, ROWS);
	for (int i = 0; i < ROWS; i++) {
		fill_logits(c, r.logits + i * VOCAB, VOCAB, SHAPE_NORMAL, (uint64_t)i);
		make_case(c, &r.cases[i], VOCAB, (uint64_t)i, true);
	}
	r.cases[0].params.logprobs = 3;
	r.cases[1].params.frequency_penalty = 0.5;
	r.cases[1].params.repetition_penalty = 1.2;
	r.cases[2].bias_ids[1] = r.cases[2].bias_ids[0];
	r.cases[2].params.bias_ids = r.cases[2].bias_ids;
	r.cases[2].params.bias_values = r.cases[2].bias_values;
	r.cases[2].params.bias_count = 2;
	for (int i = 0; i < ROWS; i++) {
		bool taken = device_sampler_add(r.device, i, &r.cases[i].params, &r.cases[i].input);
		c->compared++;
		if (taken != (i == 3)) gpu_fail(c, "row %d: taken %d, expected %d", i, taken, i == 3);
	}
	struct tensor logits = run_op(c, &r);
	compare_row(c, &r, &logits, 3);
	run_end(&r);
	gpu_case_end(c);
}

static void check_refusals(struct gpu_check *c)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "refusals");
	struct tensor x = tensor_view(gpu_room(c, 64), DTYPE_BF16, TENSOR_REPLICATED, 1, 16);
	GPU_REFUSED(c, sample, BAD_INPUT, {.logits = x});
	x = tensor_view(x.data, DTYPE_F32, TENSOR_SHARDED, 1, 16);
	GPU_REFUSED(c, sample, BAD_INPUT, {.logits = x});
	x = tensor_view(x.data, DTYPE_F32, TENSOR_REPLICATED, SAMPLE_MAX_ROWS + 1, 16);
	GPU_REFUSED(c, sample, BAD_INPUT, {.logits = x});
	x = tensor_view(x.data, DTYPE_F32, TENSOR_REPLICATED, 1, SAMPLE_MAX_COLS + 1);
	GPU_REFUSED(c, sample, BAD_INPUT, {.logits = x});
	gpu_case_end(c);
}

void gpu_check_sample(struct gpu_check *c)
{
	const int small[] = {1, 2, 33, 513, 1500}, large[] = {4097, 50257, 128256, 262144};
	draws = differences = 0;
	for (int shape = 0; shape < SHAPE_COUNT; shape++)
		for (size_t i = 0; i < sizeof small / sizeof *small; i++) check_shape(c, (enum shape)shape, c->quick ? 6 : 64, small[i], i, false);
	check_shape(c, SHAPE_EQUAL, 3, 9001, 20, false);
	check_shape(c, SHAPE_CROWDED, 3, 9001, 21, false);
	check_shape(c, SHAPE_NORMAL, 2, 20000, 22, true); /* several blocks share a row */
	for (uint64_t i = 0; i < (c->quick ? 8 : 64); i++) check_shape(c, SHAPE_NORMAL, 64, 700, 30 + i, false);
	for (size_t i = 0; i < sizeof large / sizeof *large && !c->quick; i++) {
		for (int shape = 0; shape < SHAPE_COUNT; shape++) check_shape(c, (enum shape)shape, 2, large[i], 200 + i, false);
		check_shape(c, SHAPE_NORMAL, 8, large[i], 210 + i, true);
	}
	if (!c->quick) check_shape(c, SHAPE_PEAKED, SAMPLE_MAX_ROWS, 2000, 300, false);
	check_faults(c, 5);
	check_faults(c, 6000);
	check_not_taken(c);
	check_refusals(c);
	printf("sample: %ld of %ld draws differ from the host's, each within rounding of a boundary\n", differences, draws);
}

/* ---- measuring */

struct sample_bench {
	struct sample_args args;
	float *sets; /* as many logits as the rotation says */
	int count;
};

static void bench_call(struct gpu_check *c, void *context, int i)
{
	struct sample_bench *b = context;
	struct sample_args args = b->args;
	args.logits.data = b->sets + (size_t)(i % b->count) * (size_t)args.logits.rows * (size_t)args.logits.cols;
	gpu_ok(c, OP(c->stream, sample, &args, &c->err));
}

static void bench_rows(struct gpu_check *c, int rows, int vocab, const char *name, struct sampler_params params)
{
	gpu_case(c, DTYPE_F32, FILL_RANDOM, "R %d V %d %s", rows, vocab, name);
	struct run r;
	run_begin(c, &r, rows, 16, 16);
	for (int i = 0; i < rows; i++) {
		params.seed = (uint64_t)i;
		(void)device_sampler_add(r.device, i, &params, &(struct sampler_input){.prompt = NULL});
	}
	size_t bytes = (size_t)rows * (size_t)vocab * sizeof(float);
	struct sample_bench b = {.count = gpu_bench_rotation(c, bytes)};
	if (b.count > 16) b.count = 16;
	b.sets = gpu_random_room(c, DTYPE_F32, (size_t)b.count * (size_t)rows * (size_t)vocab, 3);
	b.args = (struct sample_args){.logits = tensor_view(b.sets, DTYPE_F32, TENSOR_REPLICATED, rows, vocab),
	                              .row = gpu_put(c, r.memory, device_sampler_bytes_used(r.device)),
	                              .scratch = gpu_room(c, sample_scratch_bytes(rows)),
	                              .out = gpu_room(c, (size_t)rows * sizeof(struct sample_choice))};
	gpu_bench_report(c, gpu_bench(c, bench_call, &b, 2 * b.count), (double)bytes, 0);
	run_end(&r);
	gpu_case_end(c);
}

void gpu_bench_sample(struct gpu_check *c)
{
	const int rows[] = {1, 8, 64, 256};
	const struct sampler_params base = {.top_p = 1, .repetition_penalty = 1};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct sampler_params p = base;
		bench_rows(c, rows[i], 128256, "greedy", p);
		p.want_logprob = true;
		bench_rows(c, rows[i], 128256, "greedy, logprob", p);
		p.want_logprob = false;
		p.temperature = 1;
		bench_rows(c, rows[i], 128256, "T 1", p);
		p.top_p = 0.95;
		bench_rows(c, rows[i], 128256, "T 1, p 0.95", p);
		p.top_k = 50;
		p.temperature = 0.7;
		bench_rows(c, rows[i], 128256, "T 0.7, k 50, p 0.95", p);
		p.top_k = 20000;
		p.min_p = 0.01;
		p.want_logprob = true;
		bench_rows(c, rows[i], 128256, "T 0.7, k 20000, p 0.95, min 0.01, logprob", p);
	}
}
