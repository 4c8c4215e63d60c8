/* The prescreen's trials on this device: for each op that asks for a linear, for attention, experts and the delta net, the default's output is within the bound of the
 * double-precision reference, all of it is written and nothing else; and what is not so is seen: an op that did not run, a value that is off, in the output or in
 * the cache. The static rules of attention's kernels against these. And the comparison of two matrices that this rests on. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "device/gpu/attention.h"
#include "gpu/harness.h"
#include "prescreen/attention_rules.h"
#include "prescreen/candidate.h"
#include "prescreen/trial.h"

static const struct model_config model = {.model_type = "llama", .hidden_size = 128, .intermediate_size = 192, .layers = 2, .q_heads = 8, .kv_heads = 4, .head_dim = 16,
                                          .vocab_size = 512, .max_position = 256, .rms_eps = 1e-5f, .rotary_dim = 16,
                                          .moe = {.layers = 2, .experts = 8, .experts_per_token = 3, .intermediate = 32, .shared_intermediate = 64, .norm_topk = true}};

static void check_run(struct gpu_check *c, struct trial *t, bool runs, struct result_check *out)
{
	*out = (struct result_check){0};
	gpu_ok(c, trial_poison(t, &c->err));
	if (runs) gpu_ok(c, trial_issue(t, 0, &c->err));
	gpu_ok(c, trial_check(t, out, &c->err));
}

/* The element at `at` of a region doubled in its highest exponent bit: huge, or tiny where it was 2 or more; then what the check says. */
static void check_flip(struct gpu_check *c, struct trial *t, int region, int64_t at)
{
	struct trial_region *r = &t->region[region];
	const size_t size = dtype_bytes(r->dtype);
	char *place = r->device + TRIAL_GUARD_BYTES + (size_t)at * size, value[4];
	struct result_check off = {0};
	gpu_ok(c, trial_poison(t, &c->err));
	gpu_ok(c, trial_issue(t, 0, &c->err));
	gpu_get(c, value, place, size);
	value[size - 1] ^= 0x40;
	gpu_ok(c, c->ops->copy(c->stream, place, value, size, COPY_TO_DEVICE, &c->err));
	gpu_sync_stream(c);
	gpu_ok(c, trial_check(t, &off, &c->err));
	if (off.same_bits || off.error.max <= off.bound.max) gpu_fail(c, "region %d, a value that is off: error %g of %g", region, off.error.max, off.bound.max);
}

static void check_trial(struct gpu_check *c, struct trial *t)
{
	struct result_check right, nothing, off;
	check_run(c, t, true, &right);
	c->compared += (long)right.referenced;
	if (!(right.error.l2 <= right.bound.l2 && right.error.max <= right.bound.max) || right.unwritten || right.outside || !right.referenced)
		gpu_fail(c, "L2 %g of %g, max %g of %g, %lld of %lld values referenced, %lld unwritten, %lld outside", right.error.l2, right.bound.l2, right.error.max, right.bound.max,
		         (long long)right.referenced, (long long)right.values, (long long)right.unwritten, (long long)right.outside);
	/* Without a baseline: the reference alone must see it, in the cache too. */
	check_flip(c, t, 0, t->samples.row[0] * t->region[0].stride + t->samples.col[0]);
	for (int i = 0; i < t->cached.cols; i += t->cached.cols / 2) check_flip(c, t, 1, t->cached.place[i]);
	check_run(c, t, true, &off);
	gpu_ok(c, trial_keep_baseline(t, &c->err));
	check_run(c, t, true, &off);
	if (!off.same_bits || off.unwritten || off.outside || strcmp(off.hash, right.hash)) gpu_fail(c, "a second run: %s and %s, %lld unwritten", off.hash, right.hash, (long long)off.unwritten);
	check_flip(c, t, 0, t->region[0].cols - 1); /* whatever has a reference */
	check_run(c, t, false, &nothing);
	if (nothing.unwritten != nothing.values || !nothing.values) gpu_fail(c, "no run: %lld of %lld values unwritten", (long long)nothing.unwritten, (long long)nothing.values);
}

static void check_problem(struct gpu_check *c, struct bench *bench, const struct result_problem *p)
{
	char text[RESULTS_TEXT];
	struct trial trial = {0};
	struct trial_weights *weights = p->op == PROBLEM_LINEAR ? calloc(1, sizeof *weights) : NULL;
	struct trial_experts experts = {0};
	gpu_case(c, bench->config->dtype, FILL_RANDOM, "%s %s%s", result_problem_text(p, text), dtype_name(bench->config->dtype), bench->config->qk_norm ? ", norms of heads" : "");
	if (weights) gpu_ok(c, trial_weights_open(weights, bench, p->linear.dtype, p->linear.n, p->linear.k, &c->err));
	if (p->op == PROBLEM_MOE) gpu_ok(c, trial_experts_open(&experts, bench, &p->moe, &c->err));
	gpu_ok(c, trial_open(&trial, bench, weights, &experts, p, &c->err));
	if (!c->case_failed) check_trial(c, &trial);
	trial_close(&trial);
	if (weights) trial_weights_close(weights);
	trial_experts_close(&experts);
	free(weights);
	gpu_case_end(c);
}

/* Every kind of thing that two matrices can have, against what the CPU says of them. */
static void check_compare(struct gpu_check *c, enum dtype dtype)
{
	enum { ROWS = 37, COLS = 129, STRIDE = 140 };
	const size_t size = dtype_bytes(dtype), bytes = (size_t)ROWS * STRIDE * size;
	const uint32_t unwritten = dtype == DTYPE_F32 ? 0xffffffffu : 0xffff;
	gpu_case(c, dtype, FILL_RANDOM, "compare [%d,%d] of stride %d", ROWS, COLS, STRIDE);
	char *a = gpu_filled(c, dtype, (size_t)ROWS * STRIDE, 1), *b = gpu_host(c, bytes);
	memcpy(b, a, bytes);
	memset(a + 5 * size, 0xff, size);                  /* b has it, a has not */
	memset(b + (2 * STRIDE + 7) * size, 0xff, size);   /* a has it, b has not */
	memset(a + (3 * STRIDE) * size, 0xff, size), memset(b + (3 * STRIDE) * size, 0xff, size); /* nobody has */
	a[(9 * STRIDE + 11) * size] ^= 1;                  /* a bit */
	a[(10 * STRIDE + COLS) * size] ^= 1;               /* a bit between the rows: nobody looks */
	void *on_a = gpu_put(c, a, bytes), *on_b = gpu_put(c, b, bytes);
	for (int with = 0; with < 3; with++) {
		struct compare_args args = {.dtype = dtype, .a = on_a, .b = with ? on_b : NULL, .rows = ROWS, .cols = COLS, .stride = STRIDE, .unwritten = unwritten,
		                            .sparse = with == 2, .deadline_ns = clock_deadline_ms(60000)};
		struct compare_result got, want;
		gpu_ok(c, c->ops->compare(c->stream, &args, &got, &c->err));
		args.a = a, args.b = with ? b : NULL;
		gpu_ok(c, c->reference_ops->compare(c->reference_stream, &args, &want, &c->err));
		c->compared += ROWS * COLS;
		const double sum = 1e-9 * (want.ref2 + want.diff2);
		if (got.values != want.values || got.unwritten != want.unwritten || got.outside != want.outside || got.different != want.different || got.hash != want.hash ||
		    fabs(got.diff2 - want.diff2) > sum || fabs(got.ref2 - want.ref2) > sum || (float)got.most != (float)want.most ||
		    !((float)got.most_diff == (float)want.most_diff || (isnan(got.most_diff) && isnan(want.most_diff))))
			gpu_fail(c, "with %d: %lld values, %lld unwritten, %lld outside, %lld different, hash %llx, sums %g %g, most %g %g; expected %lld, %lld, %lld, %lld, %llx, %g %g, %g %g", with,
			         (long long)got.values, (long long)got.unwritten, (long long)got.outside, (long long)got.different, (unsigned long long)got.hash, got.diff2, got.ref2,
			         got.most_diff, got.most, (long long)want.values, (long long)want.unwritten, (long long)want.outside, (long long)want.different,
			         (unsigned long long)want.hash, want.diff2, want.ref2, want.most_diff, want.most);
		if (with == 2 && want.outside != 1) gpu_fail(c, "%lld places outside, one was made", (long long)want.outside);
	}
	gpu_case_end(c);
}

static void check_attention_in(struct gpu_check *c, struct bench *bench, struct model_config *config, const struct result_place *place)
{
	static const int rows[] = {1, 5, 48};
	for (int kind = 0; kind < 2; kind++) { /* norms of heads, a gate, and a part of each head that is not rotated */
		config->qk_norm = kind, config->attn_output_gate = kind, config->rotary_dim = kind ? 8 : 16;
		for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
			const struct result_problem p = {.phase = "decode", .linear = {LINEAR_USE_ATTENTION_IN, config->dtype, kind ? 384 : 256, 128, rows[i]}, .place = (struct result_place *)place, .places = 1};
			check_problem(c, bench, &p);
		}
	}
	config->qk_norm = config->attn_output_gate = false, config->rotary_dim = 16;
}

/* Every way to compute the experts that is listed: taken, right, or refused by name. */
static void check_moe_ways(struct gpu_check *c, struct bench *bench, const struct result_problem *p)
{
	struct variant list[16], ran;
	struct trial trial = {0};
	struct trial_experts experts = {0};
	int taken = 0;
	gpu_case(c, p->moe.dtype, FILL_RANDOM, "ways of %d rows of experts, %s", p->moe.m, linear_use_name(p->moe.use));
	gpu_ok(c, trial_experts_open(&experts, bench, &p->moe, &c->err));
	gpu_ok(c, trial_open(&trial, bench, NULL, &experts, p, &c->err));
	const int count = c->case_failed ? 0 : c->ops->moe_variants(c->stream, &p->moe, list, 16);
	for (int i = 0; i < count; i++) {
		const struct moe_preference preference = {.key = p->moe, .m_low = p->moe.m, .m_high = p->moe.m, .variant = list[i]};
		struct result_check check = {0};
		gpu_ok(c, c->ops->moe_prefer(c->stream, &preference, 1, &c->err));
		gpu_ok(c, trial_poison(&trial, &c->err));
		const enum status st = trial_issue(&trial, 0, &c->err);
		if (st == STATUS_UNSUPPORTED && i && strstr(c->err.text, list[i].kernel)) {
			c->err = (struct error){0};
			continue;
		}
		gpu_ok(c, st);
		gpu_ok(c, trial_check(&trial, &check, &c->err));
		c->ops->moe_ran(c->stream, &ran);
		c->compared += (long)check.referenced;
		taken++;
		if (i && !variant_equal(&ran, &list[i])) gpu_fail(c, "%s '%s' was taken where %s '%s' is preferred", ran.kernel, ran.mode, list[i].kernel, list[i].mode);
		if (!(check.error.l2 <= check.bound.l2 && check.error.max <= check.bound.max) || check.unwritten || check.outside)
			gpu_fail(c, "%s '%s': L2 %g of %g, max %g of %g, %lld unwritten, %lld outside", list[i].kernel, list[i].mode, check.error.l2, check.bound.l2, check.error.max,
			         check.bound.max, (long long)check.unwritten, (long long)check.outside);
	}
	if (taken < 3) gpu_fail(c, "%d of %d ways were taken", taken, count);
	struct moe_preference none = {.key = p->moe, .m_low = 1, .m_high = 1, .variant = {.kernel = "moe_tile", .mode = "17 rows"}};
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->moe_prefer(c->stream, &none, 1, &c->err));
	none.m_high = 0;
	gpu_refused(c, STATUS_BAD_INPUT, c->ops->moe_prefer(c->stream, &none, 1, &c->err));
	gpu_ok(c, c->ops->moe_prefer(c->stream, NULL, 0, &c->err));
	trial_close(&trial);
	trial_experts_close(&experts);
	gpu_case_end(c);
}

static void check_blocks(struct gpu_check *c, struct bench *bench, struct result_place *place)
{
	static const int rows[] = {1, 3, 40};
	static const enum linear_use uses[] = {LINEAR_USE_ACCUMULATE, LINEAR_USE_PARTIAL};
	const enum dtype dtype = bench->config->dtype;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		for (int u = 0; u < 2; u++) {
			const struct result_problem moe = {.op = PROBLEM_MOE, .phase = "decode", .moe = {uses[u], dtype, 128, 8, 3, 32, i == 1 ? 0 : 64, rows[i]}, .place = place, .places = 1};
			check_problem(c, bench, &moe);
			check_moe_ways(c, bench, &moe);
		}
		const struct result_problem gdn = {.op = PROBLEM_GDN, .phase = "decode", .gdn = {dtype, 2, 4, 32, 16, 4, rows[i], rows[i] > 32}, .place = place, .places = 1};
		check_problem(c, bench, &gdn);
	}
}

/* What the static rules say of attention's kernels is what the kernels take, for all types and heads. */
static void check_attention_rules(struct gpu_check *c, enum dtype dtype, const struct target *target)
{
	gpu_case(c, dtype, FILL_RANDOM, "static rules of attention");
	for (int prefill = 0; prefill < 2; prefill++)
		for (const struct attention_kernel *const *k = attention_kernels(prefill); *k; k++)
			for (int dim = 8; dim <= 272; dim += 8) {
				const struct attention_shape shape = {.q_heads = 12, .kv_heads = 4, .head_dim = dim, .block_tokens = 64, .prefill = prefill, .dtype = dtype};
				const struct attention_params p = {.q_heads = 12, .kv_heads = 4, .group = 3, .head_dim = dim, .rows = 1, .seqs = 1, .block_tokens = 64, .blocks = 1};
				int id = 0;
				struct verdict v;
				while (id < ATTENTION_COUNT && strcmp(attention_name((enum attention_id)id), (*k)->name) != 0) id++;
				if (id == ATTENTION_COUNT) {
					gpu_fail(c, "no rules for %s", (*k)->name);
					continue;
				}
				attention_judge(&v, target, (enum attention_id)id, &shape);
				const bool taken = dim % 16 == 0 && (*k)->can(&p, dtype); /* the op itself wants multiples of 16 */
				c->compared++;
				if ((v.kind == VERDICT_LEGAL) != taken) gpu_fail(c, "%s, head_dim %d: %s, %s: %s; the kernel says %s", (*k)->name, dim, verdict_name(v.kind), v.rule, v.detail, taken ? "yes" : "no");
			}
	gpu_case_end(c);
}

/* And the shared memory of each launch is what they counted: all of it for kernels of prefill, which have little besides; no more for those of decode. */
static void check_attention_launches(struct gpu_check *c, struct bench *bench, const struct target *target, const struct result_problem *p)
{
	const struct attention_key key = problem_attention_key(&p->attention);
	const struct attention_shape shape = {.q_heads = key.q_heads, .kv_heads = key.kv_heads, .head_dim = key.head_dim, .block_tokens = 64, .prefill = key.prefill, .dtype = key.dtype};
	struct variant list[16];
	struct trial trial = {0};
	gpu_case(c, key.dtype, FILL_RANDOM, "launches of attention, head_dim %d, %s", key.head_dim, p->phase);
	gpu_ok(c, trial_open_unchecked(&trial, bench, NULL, NULL, p, &c->err));
	const int count = c->case_failed ? 0 : c->ops->attention_variants(c->stream, &key, list, 16);
	for (int i = 1; i < count; i++) {
		const struct attention_preference preference = {.key = key, .m_low = key.m, .m_high = key.m, .variant = list[i]};
		struct kernel_launch launch = {0};
		struct graph *graph = NULL;
		struct verdict v;
		long long bytes = 0;
		int launches = 0, id = 0;
		while (id < ATTENTION_COUNT && strcmp(attention_name((enum attention_id)id), list[i].kernel) != 0) id++;
		if (id == ATTENTION_COUNT) continue; /* a library's: nobody here knows its rules */
		gpu_ok(c, c->ops->attention_prefer(c->stream, &preference, 1, &c->err));
		gpu_ok(c, c->ops->graph_begin(c->stream, &c->err));
		gpu_ok(c, device_graph_end(c->stream, trial_issue(&trial, 0, &c->err), &graph, &c->err));
		if (graph) gpu_ok(c, c->ops->graph_kernels(graph, &launch, 1, &launches, &c->err));
		if (graph) c->ops->graph_destroy(graph);
		attention_judge(&v, target, (enum attention_id)id, &shape);
		const char *at = strstr(v.detail, "threads, ");
		if (v.kind != VERDICT_LEGAL || launches != 1 || !at || sscanf(at, "threads, %lld", &bytes) != 1) gpu_fail(c, "%s: %s, %s, %d launches", list[i].kernel, verdict_name(v.kind), v.detail, launches);
		else if (launch.shared_bytes > bytes || (key.prefill && launch.shared_bytes + 128 < bytes))
			gpu_fail(c, "%s: %u bytes of shared memory, the rules say %lld", list[i].kernel, launch.shared_bytes, bytes);
		c->compared++;
	}
	gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	trial_close(&trial);
	gpu_case_end(c);
}

/* Of scores with a cap the rules allow what the op takes when it is preferred. */
static void check_attention_capped(struct gpu_check *c, struct bench *bench, const struct target *target, const struct result_problem *p)
{
	const struct attention_key key = problem_attention_key(&p->attention);
	const struct attention_shape shape = {.q_heads = key.q_heads, .kv_heads = key.kv_heads, .head_dim = key.head_dim, .block_tokens = 64, .prefill = key.prefill,
	                                      .dtype = key.dtype, .softcap = p->attention.softcap};
	struct variant list[16];
	struct trial trial = {0};
	gpu_case(c, key.dtype, FILL_RANDOM, "soft cap of attention, %s", p->phase);
	gpu_ok(c, trial_open_unchecked(&trial, bench, NULL, NULL, p, &c->err));
	const int count = c->case_failed ? 0 : c->ops->attention_variants(c->stream, &key, list, 16);
	for (int i = 1; i < count; i++) {
		const struct attention_preference preference = {.key = key, .m_low = key.m, .m_high = key.m, .variant = list[i]};
		struct verdict v;
		int id = 0;
		while (id < ATTENTION_COUNT && strcmp(attention_name((enum attention_id)id), list[i].kernel) != 0) id++;
		if (id == ATTENTION_COUNT) continue; /* a library's: nobody here knows its rules */
		gpu_ok(c, c->ops->attention_prefer(c->stream, &preference, 1, &c->err));
		attention_judge(&v, target, (enum attention_id)id, &shape);
		if (v.kind == VERDICT_LEGAL) gpu_ok(c, trial_issue(&trial, 0, &c->err));
		else gpu_refused(c, STATUS_UNSUPPORTED, trial_issue(&trial, 0, &c->err));
		c->compared++;
	}
	gpu_ok(c, c->ops->attention_prefer(c->stream, NULL, 0, &c->err));
	trial_close(&trial);
	gpu_case_end(c);
}

void gpu_check_prescreen(struct gpu_check *c)
{
	static const struct { enum linear_use use; int n, k, m; } linears[] = {
		{LINEAR_USE_PLAIN, 129, 128, 1}, {LINEAR_USE_PLAIN, 96, 128, 40}, {LINEAR_USE_PARTIAL, 128, 96, 3}, {LINEAR_USE_ACCUMULATE, 128, 192, 2},
		{LINEAR_USE_MLP_IN, 384, 128, 1}, {LINEAR_USE_MLP_IN, 384, 128, 6}, {LINEAR_USE_MLP_IN, 384, 128, 36},
	};
	static const int dims[] = {16, 64, 80, 128, 160, 256};
	struct result_place place = {.world_size = 1, .family = "mlp down", .count = 2};
	struct device_limits limits;
	struct target target;
	c->ops->limits(c->device, &limits);
	candidate_target(&target, c->device, &limits);
	for (enum dtype dtype = DTYPE_F32; dtype < DTYPE_PLAIN_COUNT; dtype++) {
		struct model_config config = model;
		struct bench bench = {.ops = c->ops, .device = c->device, .stream = c->stream, .config = &config, .timeout_ms = 60000};
		config.dtype = dtype;
		check_compare(c, dtype);
		for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
			struct result_problem p = {.phase = "decode", .linear = {linears[i].use, dtype, linears[i].n, linears[i].k, linears[i].m}, .place = &place, .places = 1};
			check_problem(c, &bench, &p);
		}
		check_attention_in(c, &bench, &config, &place);
		check_blocks(c, &bench, &place);
		struct result_problem decode = {.op = PROBLEM_ATTENTION, .phase = "decode", .attention = {dtype, 8, 4, 16, 3, 70, 64, false, 0}, .place = &place, .places = 1};
		struct result_problem prefill = {.op = PROBLEM_ATTENTION, .phase = "prefill", .attention = {dtype, 8, 4, 16, 40, 40, 64, true, 0}, .place = &place, .places = 1};
		check_problem(c, &bench, &decode);
		check_problem(c, &bench, &prefill);
		decode.attention.softcap = prefill.attention.softcap = 0.25; /* low enough that a reference without one is another */
		check_problem(c, &bench, &decode);
		check_problem(c, &bench, &prefill);
		check_attention_capped(c, &bench, &target, &decode);
		check_attention_capped(c, &bench, &target, &prefill);
		decode.attention.softcap = prefill.attention.softcap = 0;
		check_attention_rules(c, dtype, &target);
		for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
			decode.attention.head_dim = prefill.attention.head_dim = dims[i];
			check_attention_launches(c, &bench, &target, &decode);
			check_attention_launches(c, &bench, &target, &prefill);
		}
	}
}
