/* test_warm.c: before ranks sum together every linear of a step has run at every size that the back end tells apart. The device is the CPU's, which
 * is made to say that it loads code for sizes. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/coordinator.h"
#include "model/rope.h"

#define MAX_ROWS 80
static const int sizes[] = {1, 2, 3, 4, 32, 64, MAX_ROWS};
#define SIZES ((int)(sizeof sizes / sizeof *sizes))

static int rows_after(const struct stream *stream, int rows)
{
	(void)stream;
	return rows < 4 ? rows + 1 : (rows / 32 + 1) * 32;
}

struct call {
	int n, k, m;
	bool partial;
};
static struct {
	pthread_mutex_t lock;
	struct call call[4096];
	int calls;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static enum status linear(struct stream *stream, const struct linear_args *args, struct error *err)
{
	pthread_mutex_lock(&seen.lock);
	assert_true(seen.calls < 4096);
	seen.call[seen.calls++] = (struct call){args->weight->n, args->weight->k, args->x.rows, args->split != NULL};
	pthread_mutex_unlock(&seen.lock);
	return device_find("cpu")->ops.linear(stream, args, err);
}

/* The CPU's devices and streams with our table. */
static struct device_ops table;
static enum status open_device(struct device **out, const struct device_options *options, struct error *err)
{
	TRY(device_find("cpu")->open(out, options, err));
	(*out)->vt = &table;
	return STATUS_OK;
}
static enum status stream_create(struct device *device, const struct stream_options *options, struct stream **out, struct error *err)
{
	TRY(device_find("cpu")->stream_create(device, options, out, err));
	(*out)->vt = &table;
	return STATUS_OK;
}

static bool was_seen(struct call call, int calls)
{
	for (int i = 0; i < calls; i++) {
		const struct call *c = &seen.call[i];
		if (c->n == call.n && c->k == call.k && c->m == call.m && c->partial == call.partial) return true;
	}
	return false;
}

static void open_model(struct model *m, const char *name)
{
	char path[256];
	struct error err = {0};
	snprintf(path, sizeof path, "tests/golden/%s", name);
	memset(m, 0, sizeof *m);
	assert_int_equal(model_config_load(&m->config, path, NULL, &err), STATUS_OK);
	m->tree_leaves = shard_tree_leaves(&m->config);
	assert_int_equal(rope_init(&m->rope, &m->config, &err), STATUS_OK);
	assert_int_equal(source_open_random(&m->source, 3, m->config.dtype, &err), STATUS_OK);
	assert_int_equal(manifest_init(&m->manifest, &m->config, &err), STATUS_OK);
}

/* One prompt of 3 rows, and its last row's logits. */
static void run_step(struct coordinator *c, const struct step_limits *limits)
{
	static const int32_t tokens[] = {1, 2, 3};
	struct step_plan plan;
	struct error err = {0};
	assert_int_equal(step_plan_init(&plan, limits, &err), STATUS_OK);
	step_plan_clear(&plan);
	step_plan_add(&plan, NULL, 0, tokens, 0, 3, 1);
	plan.generation = 1;
	enum status st = coordinator_step(c, &plan, &err);
	if (st != STATUS_OK) print_error("%s\n", err.text);
	assert_int_equal(st, STATUS_OK);
	step_plan_fini(&plan);
}

static void test_model(const char *name)
{
	struct model model;
	struct coordinator *c;
	struct error err = {0};
	open_model(&model, name);
	table = *device_find("cpu");
	table.open = open_device;
	table.stream_create = stream_create;
	table.ops.linear = linear;
	table.linear_rows_after = rows_after;
	struct coordinator_options options = {.model = &model, .ops = &table, .world_size = 2, .threads = 2, .isa = "auto", .timeout_ms = 30000};
	options.rank = (struct rank_options){.limits = {.max_rows = MAX_ROWS, .max_seqs = 4, .max_outputs = 4}, .max_context = 64,
	                                     .kv = {.blocks = 8, .block_tokens = 16, .max_seqs = 4, .max_blocks = 4, .states = model.config.gdn.k_heads ? 8 : 0}};
	seen.calls = 0;
	enum status st = coordinator_open(&c, &options, &err);
	if (st != STATUS_OK) print_error("%s: %s\n", name, err.text);
	assert_int_equal(st, STATUS_OK);
	assert_int_equal(coordinator_all_reduces(c), 0);
	const int warmed = seen.calls;
	assert_true(warmed > 0);
	run_step(c, &options.rank.limits);
	assert_true(seen.calls > warmed);
	for (int i = warmed; i < seen.calls; i++) {
		const bool head = seen.call[i].m == 1; /* of outputs, 4 at most */
		for (int s = 0; s < SIZES && (!head || sizes[s] <= 4); s++) {
			struct call want = seen.call[i];
			want.m = sizes[s];
			if (!was_seen(want, warmed)) print_error("%s: [%d,%d]%s was not run with %d rows\n", name, want.n, want.k, want.partial ? " partial" : "", want.m);
			assert_true(was_seen(want, warmed));
		}
	}
	assert_true(coordinator_close(&c));
	manifest_fini(&model.manifest);
	source_close(&model.source);
}

static void test_dense(void **state)
{
	(void)state;
	test_model("llama-head-dim");
}
static void test_gdn(void **state)
{
	(void)state;
	test_model("qwen3_5");
}
static void test_biases(void **state)
{
	(void)state;
	test_model("qwen2");
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_gdn), cmocka_unit_test(test_biases)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
