/* Trials against their references on the CPU: attention_in made of the CPU's ops, with faults planted in what it leaves in the cache: the reference sees them without any baseline, where a
 * baseline with the same fault would have hidden them. And experts and delta nets, as the CPU computes them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "device/device.h"
#include "prescreen/trial.h"
#include "prescreen/trial_parts.h"

enum fault { RIGHT, KEYS_NOT_ROTATED, KEYS_NOT_NORMED, KEYS_ROTATED_AS_FIRST_ROW, VALUES_ROTATED, VALUES_FOR_KEYS, ONE_KEY_MISSING, FAULTS };
static enum fault fault;

static const struct device_ops *cpu;
static struct device_ops table;
static struct model_config config;

static enum status planted_open(struct device **out, const struct device_options *options, struct error *err)
{
	TRY(cpu->open(out, options, err));
	(*out)->vt = &table;
	return STATUS_OK;
}

static enum status planted_attention_in(struct stream *stream, const struct attention_in_args *a, struct error *err)
{
	const int q_cols = a->q_heads * a->head_dim, kv_cols = a->kv_heads * a->head_dim;
	const struct tensor q = tensor_columns(&a->qkv, 0, q_cols), k = tensor_columns(&a->qkv, q_cols, kv_cols), v = tensor_columns(&a->qkv, q_cols + kv_cols, kv_cols);
	struct rope_args rope = {.x = q, .heads = a->q_heads, .head_dim = a->head_dim, .rotary_dim = a->rotary_dim, .cos_sin = a->rows->cos_sin};
	TRY(cpu->ops.rms_norm(stream, &(struct rms_norm_args){.x = a->in.x, .weight = a->in.weight, .eps = a->in.eps, .out = a->in.h}, err));
	TRY(cpu->ops.linear(stream, &(struct linear_args){.x = a->in.h, .weight = a->weight, .y = a->qkv}, err));
	if (a->q_norm) TRY(cpu->ops.head_norm(stream, &(struct head_norm_args){.x = q, .heads = a->q_heads, .head_dim = a->head_dim, .weight = a->q_norm, .eps = a->in.eps}, err));
	if (a->k_norm && fault != KEYS_NOT_NORMED)
		TRY(cpu->ops.head_norm(stream, &(struct head_norm_args){.x = k, .heads = a->kv_heads, .head_dim = a->head_dim, .weight = a->k_norm, .eps = a->in.eps}, err));
	TRY(cpu->ops.rope(stream, &rope, err));
	rope.x = fault == VALUES_ROTATED ? v : k, rope.heads = a->kv_heads;
	if (fault == VALUES_ROTATED) TRY(cpu->ops.rope(stream, &rope, err));
	rope.x = k;
	for (int r = 0; fault == KEYS_ROTATED_AS_FIRST_ROW && r < k.rows; r++) { /* each row with the angles of the first */
		struct rope_args one = rope;
		one.x.data = (float *)k.data + (int64_t)r * k.row_stride;
		one.x.rows = 1;
		TRY(cpu->ops.rope(stream, &one, err));
	}
	if (fault != KEYS_NOT_ROTATED && fault != KEYS_ROTATED_AS_FIRST_ROW) TRY(cpu->ops.rope(stream, &rope, err));
	const struct tensor written = fault == VALUES_FOR_KEYS ? v : k;
	struct kv_write_args kv = {.k = written, .v = v, .cache = a->cache, .layer = a->layer, .kv_slot = a->rows->kv_slot};
	if (fault == ONE_KEY_MISSING) kv.k.rows = kv.v.rows = k.rows - 1;
	return cpu->ops.kv_write(stream, &kv, err);
}

/* The CPU's linears do not add to what is there. */
static enum status planted_linear(struct stream *stream, const struct linear_args *a, struct error *err)
{
	struct linear_args one = *a;
	if (!a->accumulate) return cpu->ops.linear(stream, a, err);
	one.accumulate = false;
	one.x.dist = TENSOR_REPLICATED;
	one.y.data = calloc((size_t)a->y.rows * (size_t)a->y.row_stride, sizeof(float));
	const enum status st = cpu->ops.linear(stream, &one, err);
	for (int64_t i = 0; i < a->y.rows * a->y.row_stride; i++) ((float *)a->y.data)[i] += ((const float *)one.y.data)[i];
	free(one.y.data);
	return st;
}

struct place {
	struct bench bench;
	struct result_place where;
};

static void open_place(struct place *p)
{
	static const struct device_options device = {.isa = "c"};
	const struct stream_options stream = {.max_rows = 1024, .max_k = 512, .max_n = 2048, .max_q_heads = 16, .max_head_dim = 64, .max_context = 256, .max_seqs = 32};
	struct error err = {0};
	cpu = device_find("cpu");
	table = *cpu;
	table.open = planted_open;
	table.ops.attention_in = planted_attention_in;
	table.ops.linear = planted_linear;
	*p = (struct place){.bench = {.ops = &table, .config = &config, .timeout_ms = 10000}, .where = {.world_size = 1, .family = "attn qkv", .count = 2}};
	if (table.open(&p->bench.device, &device, &err) != STATUS_OK) fail_msg("%s", err.text);
	if (table.stream_create(p->bench.device, &stream, &p->bench.stream, &err) != STATUS_OK) fail_msg("%s", err.text);
}

static void close_place(struct place *p)
{
	table.stream_destroy(p->bench.stream);
	table.close(p->bench.device);
}

static struct result_check run(struct trial *t)
{
	struct result_check check = {0};
	struct error err = {0};
	enum status st = trial_poison(t, &err);
	if (st == STATUS_OK) st = trial_issue(t, 0, &err);
	if (st == STATUS_OK) st = trial_check(t, &check, &err);
	if (st != STATUS_OK) fail_msg("%s", err.text);
	return check;
}

static bool is_within(const struct result_check *c)
{
	return c->error.l2 <= c->bound.l2 && c->error.max <= c->bound.max;
}

static void try_faults(struct place *place, int rows)
{
	const int all = config.q_heads * (config.attn_output_gate ? 2 : 1) + 2 * config.kv_heads;
	const struct result_problem p = {.phase = "decode", .linear = {LINEAR_USE_ATTENTION_IN, DTYPE_F32, all * config.head_dim, config.hidden_size, rows}, .place = &place->where, .places = 1};
	struct trial_weights *weights = calloc(1, sizeof *weights);
	struct trial trial;
	struct error err = {0};
	if (trial_weights_open(weights, &place->bench, DTYPE_F32, p.linear.n, p.linear.k, &err) != STATUS_OK || trial_open(&trial, &place->bench, weights, NULL, &p, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	for (fault = RIGHT; fault < FAULTS; fault++) {
		const struct result_check check = run(&trial);
		const bool none = fault == RIGHT || (fault == KEYS_NOT_NORMED && !config.qk_norm) || (fault == KEYS_ROTATED_AS_FIRST_ROW && rows == 1) ||
		                  (fault == ONE_KEY_MISSING && rows == 1);
		if (fault == ONE_KEY_MISSING && rows == 1) continue; /* nothing would be written */
		if (is_within(&check) != none)
			fail_msg("fault %d, %d rows, gate %d: L2 %g of %g, max %g of %g", (int)fault, rows, config.attn_output_gate, check.error.l2, check.bound.l2, check.error.max, check.bound.max);
		const int sampled = trial.cached.rows * trial.cached.cols;
		assert_true(sampled > 0 && check.referenced == sampled + (int64_t)trial.samples.rows * trial.samples.cols);
		if (fault == RIGHT) assert_int_equal(check.unwritten, 0);
	}
	trial_close(&trial);
	trial_weights_close(weights);
	free(weights);
}

static void test_attention_in(void **state)
{
	(void)state;
	struct place place;
	static const int rows[] = {1, 3, 17, 70};
	for (int kind = 0; kind < 2; kind++) {
		config = (struct model_config){.model_type = "llama", .hidden_size = 96, .intermediate_size = 192, .layers = 2, .q_heads = 6, .kv_heads = 3, .head_dim = 16, .vocab_size = 512,
		                               .max_position = 256, .rms_eps = 1e-5f, .rotary_dim = kind ? 8 : 16, .qk_norm = kind, .attn_output_gate = kind, .dtype = DTYPE_F32};
		open_place(&place);
		for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) try_faults(&place, rows[i]);
		close_place(&place);
	}
}

/* Where the samples are few, both ends are among them. */
static void expect_ends(const struct trial *t)
{
	assert_int_equal(t->samples.row[0], 0);
	assert_int_equal(t->samples.row[t->samples.rows - 1], t->region[0].rows - 1);
	assert_int_equal(t->samples.col[0], 0);
	assert_int_equal(t->samples.col[t->samples.cols - 1], t->region[0].cols - 1);
}

static void try_block(struct place *place, const struct result_problem *p)
{
	struct trial_experts experts = {0};
	struct trial trial;
	struct error err = {0};
	char text[RESULTS_TEXT];
	if (p->op == PROBLEM_MOE && trial_experts_open(&experts, &place->bench, &p->moe, &err) != STATUS_OK) fail_msg("%s", err.text);
	if (trial_open(&trial, &place->bench, NULL, &experts, p, &err) != STATUS_OK) fail_msg("%s", err.text);
	expect_ends(&trial);
	const struct result_check first = run(&trial), second = run(&trial); /* inputs that it overwrites are put back */
	if (!is_within(&first) || first.unwritten || first.outside || !first.referenced)
		fail_msg("%s: L2 %g of %g, max %g of %g, %lld unwritten", result_problem_text(p, text), first.error.l2, first.bound.l2, first.error.max, first.bound.max, (long long)first.unwritten);
	assert_string_equal(first.hash, second.hash);
	float *value = (float *)(void *)(trial.region[0].device + TRIAL_GUARD_BYTES) + trial.samples.row[trial.samples.rows - 1] * trial.region[0].stride + trial.samples.col[trial.samples.cols - 1];
	*value = *value * 1.5f + 1; /* a CPU's memory is the host's */
	struct result_check off = {0};
	assert_int_equal(trial_check(&trial, &off, &err), STATUS_OK);
	assert_false(is_within(&off));
	trial_close(&trial);
	trial_experts_close(&experts);
}

static void test_blocks(void **state)
{
	(void)state;
	static const int rows[] = {1, 5, 40};
	struct place place;
	config = (struct model_config){.model_type = "x", .hidden_size = 64, .intermediate_size = 192, .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .vocab_size = 512, .max_position = 256,
	                               .rms_eps = 1e-5f, .rotary_dim = 16, .dtype = DTYPE_F32,
	                               .moe = {.layers = 2, .experts = 12, .experts_per_token = 3, .intermediate = 32, .shared_intermediate = 48, .norm_topk = true}};
	open_place(&place);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		config.moe.norm_topk = i != 1;
		const struct result_problem moe = {.op = PROBLEM_MOE, .phase = "decode", .moe = {LINEAR_USE_PARTIAL, DTYPE_F32, 64, 12, 3, 32, i == 1 ? 0 : 48, rows[i]}, .place = &place.where, .places = 1};
		const struct result_problem gdn = {.op = PROBLEM_GDN, .phase = "decode", .gdn = {DTYPE_F32, 2, 6, 16, 24, 4, rows[i], rows[i] > 32}, .place = &place.where, .places = 1};
		try_block(&place, &moe);
		try_block(&place, &gdn);
	}
	close_place(&place);
}

/* A value that is what it was before: of a million one may be, where too little was added to show; a value that was left out is told from it by the baseline. */
static void test_added(void **state)
{
	(void)state;
	struct place place;
	config = (struct model_config){.model_type = "llama", .hidden_size = 64, .intermediate_size = 32, .layers = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 16, .vocab_size = 512,
	                               .max_position = 256, .rms_eps = 1e-5f, .rotary_dim = 16, .dtype = DTYPE_F32};
	open_place(&place);
	const struct result_problem p = {.phase = "prefill", .linear = {LINEAR_USE_ACCUMULATE, DTYPE_F32, 2048, 64, 513}, .place = &place.where, .places = 1};
	struct trial_weights *weights = calloc(1, sizeof *weights);
	struct trial trial;
	struct error err = {0};
	if (trial_weights_open(weights, &place.bench, DTYPE_F32, p.linear.n, p.linear.k, &err) != STATUS_OK || trial_open(&trial, &place.bench, weights, NULL, &p, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	int column = 0; /* that the reference does not sample: the baseline alone knows it */
	for (int i = 0; i < trial.samples.cols; i++) column += trial.samples.col[i] == column;
	assert_true(column < trial.region[0].cols);
	float *value = (float *)(void *)(trial.region[0].device + TRIAL_GUARD_BYTES) + column; /* of the first row */
	const int64_t next = trial.region[0].stride;
	struct result_check check = run(&trial);
	assert_true(is_within(&check) && !check.unwritten);
	value[0] = TRIAL_START; /* as if what was added had been too small */
	assert_int_equal(trial_check(&trial, &check, &err), STATUS_OK);
	assert_int_equal(check.unwritten, 0);
	assert_int_equal(trial_keep_baseline(&trial, &err), STATUS_OK);
	assert_int_equal(trial_check(&trial, &check, &err), STATUS_OK);
	assert_true(check.unwritten == 0 && check.same_bits);
	value[0] += 0x1p-33f; /* a rounding off: it shows */
	value[next] = TRIAL_START; /* where the baseline has added something */
	assert_int_equal(trial_check(&trial, &check, &err), STATUS_OK);
	assert_false(is_within(&check));
	for (int i = 2; i < 5; i++) value[i * next] = TRIAL_START;
	assert_int_equal(trial_check(&trial, &check, &err), STATUS_OK);
	assert_int_equal(check.unwritten, 4);
	trial_close(&trial);
	trial_weights_close(weights);
	free(weights);
	close_place(&place);
}

/* A cap is the op's and the reference's: both give something else than without. */
static void test_softcap(void **state)
{
	(void)state;
	static const double caps[] = {0, 0.25};
	struct place place;
	config = (struct model_config){.model_type = "x", .hidden_size = 64, .intermediate_size = 192, .layers = 2, .q_heads = 4, .kv_heads = 2, .head_dim = 16, .vocab_size = 512, .max_position = 256,
	                               .rms_eps = 1e-5f, .rotary_dim = 16, .dtype = DTYPE_F32};
	open_place(&place);
	for (int prefill = 0; prefill < 2; prefill++) {
		struct result_check check[2];
		for (int i = 0; i < 2; i++) {
			const struct result_problem p = {.op = PROBLEM_ATTENTION, .phase = "decode", .place = &place.where, .places = 1,
			                                 .attention = {DTYPE_F32, 4, 2, 16, prefill ? 40 : 3, 40, device_kv_block_tokens(place.bench.ops), prefill, caps[i]}};
			struct trial trial;
			struct error err = {0};
			if (trial_open(&trial, &place.bench, NULL, NULL, &p, &err) != STATUS_OK) fail_msg("%s", err.text);
			check[i] = run(&trial);
			if (!is_within(&check[i]) || !check[i].referenced) fail_msg("cap %g: L2 %g of %g", caps[i], check[i].error.l2, check[i].bound.l2);
			trial_close(&trial);
		}
		assert_string_not_equal(check[0].hash, check[1].hash);
	}
	close_place(&place);
}

/* More than the machine has is refused before it is taken. */
static void test_no_room(void **state)
{
	(void)state;
	struct place place;
	struct error err = {0};
	void *out = NULL;
	open_place(&place);
	struct trial trial = {.bench = &place.bench};
	assert_int_equal(trial_take(&trial, (size_t)1 << 52, "prescreen: cache", &out, &err), STATUS_NO_ROOM);
	assert_non_null(strstr(err.text, "prescreen: cache: 8388608.0 GiB are needed"));
	assert_int_equal(trial.allocations, 0);
	close_place(&place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attention_in), cmocka_unit_test(test_blocks), cmocka_unit_test(test_softcap), cmocka_unit_test(test_no_room), cmocka_unit_test(test_added)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
