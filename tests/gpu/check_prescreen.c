/* The prescreen's trials on this device: for each op that asks for a linear, and for attention, the default's output is within the bound of the
 * double-precision reference, all of it is written and nothing else; and what is not so is seen: an op that did not run, a value that is off. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/harness.h"
#include "prescreen/trial.h"

static const struct model_config model = {.model_type = "llama", .hidden_size = 128, .intermediate_size = 192, .layers = 2, .q_heads = 8, .kv_heads = 4, .head_dim = 16,
                                          .vocab_size = 512, .max_position = 256, .rms_eps = 1e-5f, .rotary_dim = 16};

static void check_run(struct gpu_check *c, struct trial *t, bool runs, struct result_check *out)
{
	*out = (struct result_check){0};
	gpu_ok(c, trial_poison(t, &c->err));
	if (runs) gpu_ok(c, trial_issue(t, 0, &c->err));
	gpu_ok(c, trial_fetch(t, &c->err));
	trial_check(t, out);
}

static void check_trial(struct gpu_check *c, struct trial *t)
{
	struct result_check right, nothing, off;
	check_run(c, t, true, &right);
	c->compared += (long)right.referenced;
	if (!(right.error.l2 <= right.bound.l2 && right.error.max <= right.bound.max) || right.unwritten || right.outside || !right.referenced)
		gpu_fail(c, "L2 %g of %g, max %g of %g, %lld of %lld values referenced, %lld unwritten, %lld outside", right.error.l2, right.bound.l2, right.error.max, right.bound.max,
		         (long long)right.referenced, (long long)right.values, (long long)right.unwritten, (long long)right.outside);
	gpu_ok(c, trial_keep_baseline(t, &c->err));
	check_run(c, t, true, &off);
	if (!off.same_bits || off.unwritten || off.outside || strcmp(off.hash, right.hash)) gpu_fail(c, "a second run: %s and %s, %lld unwritten", off.hash, right.hash, (long long)off.unwritten);
	char *value = t->host + TRIAL_GUARD_BYTES; /* the highest bit of its exponent: huge, or tiny where it was 2 or more */
	value[dtype_bytes(t->region[0].dtype) - 1] ^= 0x40;
	trial_check(t, &off);
	if (off.same_bits || off.error.max <= off.bound.max) gpu_fail(c, "a value that is off: error %g of %g", off.error.max, off.bound.max);
	check_run(c, t, false, &nothing);
	if (nothing.unwritten != nothing.values || !nothing.values) gpu_fail(c, "no run: %lld of %lld values unwritten", (long long)nothing.unwritten, (long long)nothing.values);
}

static void check_problem(struct gpu_check *c, struct bench *bench, const struct result_problem *p)
{
	char text[RESULTS_TEXT];
	struct trial trial = {0};
	struct trial_weights *weights = p->op == PROBLEM_LINEAR ? calloc(1, sizeof *weights) : NULL;
	gpu_case(c, bench->config->dtype, FILL_RANDOM, "%s %s", result_problem_text(p, text), dtype_name(bench->config->dtype));
	if (weights) gpu_ok(c, trial_weights_open(weights, bench, p->linear.dtype, p->linear.n, p->linear.k, &c->err));
	gpu_ok(c, trial_open(&trial, bench, weights, p, &c->err));
	if (!c->case_failed) check_trial(c, &trial);
	trial_close(&trial);
	if (weights) trial_weights_close(weights);
	free(weights);
	gpu_case_end(c);
}

void gpu_check_prescreen(struct gpu_check *c)
{
	static const struct { enum linear_use use; int n, k, m; } linears[] = {
		{LINEAR_USE_PLAIN, 129, 128, 1}, {LINEAR_USE_PLAIN, 96, 128, 40}, {LINEAR_USE_PARTIAL, 128, 96, 3}, {LINEAR_USE_ACCUMULATE, 128, 192, 2},
		{LINEAR_USE_ATTENTION_IN, 256, 128, 1}, {LINEAR_USE_ATTENTION_IN, 256, 128, 5}, {LINEAR_USE_ATTENTION_IN, 256, 128, 48},
		{LINEAR_USE_MLP_IN, 384, 128, 1}, {LINEAR_USE_MLP_IN, 384, 128, 6}, {LINEAR_USE_MLP_IN, 384, 128, 36},
	};
	struct result_place place = {.world_size = 1, .family = "mlp down", .count = 2};
	for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_PLAIN_COUNT; dtype++) {
		struct model_config config = model;
		struct bench bench = {.ops = c->ops, .device = c->device, .stream = c->stream, .config = &config, .timeout_ms = 60000};
		config.dtype = dtype;
		for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
			struct result_problem p = {.phase = "decode", .linear = {linears[i].use, dtype, linears[i].n, linears[i].k, linears[i].m}, .place = &place, .places = 1};
			check_problem(c, &bench, &p);
		}
		struct result_problem decode = {.op = PROBLEM_ATTENTION, .phase = "decode", .attention = {dtype, 8, 4, 16, 3, 70, 64, false}, .place = &place, .places = 1};
		struct result_problem prefill = {.op = PROBLEM_ATTENTION, .phase = "prefill", .attention = {dtype, 8, 4, 16, 40, 40, 64, true}, .place = &place, .places = 1};
		check_problem(c, &bench, &decode);
		check_problem(c, &bench, &prefill);
	}
}
