/* test_warm.c: before ranks sum together every linear of a step has run at every size that the back end tells apart, and to a place like the step's. The
 * device is the CPU's, which is made to say that it loads code for sizes, and whose experts are made to say which linears a GPU's run. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/coordinator.h"
#include "engine/forward.h"
#include "engine/warm.h"
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
	enum dtype y_type;
	int64_t y_stride;
	uintptr_t y_alignment; /* up to 64 bytes; of a partial, which may lie in one of two places: 0 */
};
static struct {
	pthread_mutex_t lock;
	struct call call[4096];
	int calls;
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void note(const struct linear_weight *weight, const struct tensor *y, bool partial)
{
	const uintptr_t bits = (uintptr_t)y->data | 64;
	pthread_mutex_lock(&seen.lock);
	assert_true(seen.calls < 4096);
	seen.call[seen.calls++] = (struct call){weight->n, weight->k, y->rows, partial, y->dtype, y->row_stride, partial ? 0 : bits & (~bits + 1)};
	pthread_mutex_unlock(&seen.lock);
}

static enum status linear(struct stream *stream, const struct linear_args *args, struct error *err)
{
	note(args->weight, &args->y, args->split != NULL);
	return device_find("cpu")->ops.linear(stream, args, err);
}

static enum status moe(struct stream *stream, const struct moe_args *args, struct error *err)
{
	const struct moe_weights *w = args->weights;
	const struct linear_weight *plain[] = {&w->router, &w->shared_gate_up, &w->shared_down};
	for (int i = 0; i < (w->shared_down.n ? 3 : 1); i++) {
		const struct tensor y = tensor_view(args->scratch, i ? args->in.h.dtype : DTYPE_F32, TENSOR_REPLICATED, args->in.h.rows, plain[i]->n);
		note(plain[i], &y, false);
	}
	return device_find("cpu")->ops.moe(stream, args, err);
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
		if (c->n == call.n && c->k == call.k && c->m == call.m && c->partial == call.partial && c->y_type == call.y_type && c->y_stride == call.y_stride &&
		    c->y_alignment == call.y_alignment)
			return true;
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

static void make_table(void)
{
	table = *device_find("cpu");
	table.open = open_device;
	table.stream_create = stream_create;
	table.ops.linear = linear;
	table.ops.moe = moe;
	table.linear_rows_after = rows_after;
}

static void test_model(const char *name)
{
	struct model model;
	struct coordinator *c;
	struct error err = {0};
	open_model(&model, name);
	make_table();
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
			if (!was_seen(want, warmed))
				print_error("%s: [%d,%d]%s to %s rows of %d, aligned to %d, was not run with %d rows\n", name, want.n, want.k, want.partial ? " partial" : "",
				            dtype_name(want.y_type), (int)want.y_stride, (int)want.y_alignment, want.m);
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

static void test_shared_expert(void **state)
{
	(void)state;
	test_model("qwen3_5-moe");
}

/* ---- logits that come together in rank 0's memory: as ranks of GPUs do, whose comm orders streams */

static enum status fence(struct comm *comm, struct stream *stream, struct error *err)
{
	(void)comm, (void)stream, (void)err;
	return STATUS_OK;
}

#define HEAD_N 5 /* rows of rank 1's slice, from 3 on: not where memory is aligned */
#define HEAD_HIDDEN 8
#define HEAD_ROWS 2
static void test_head(void **state)
{
	(void)state;
	static const struct comm_ops ops = {.name = "fenced", .fence = fence};
	static float x[HEAD_ROWS * HEAD_HIDDEN], norm[HEAD_HIDDEN], head_x[4 * HEAD_HIDDEN], head_h[4 * HEAD_HIDDEN];
	static _Alignas(64) float logits[2][4 * (HEAD_N + 3)];
	struct model model = {.config = {.hidden_size = HEAD_HIDDEN, .vocab_size = HEAD_N + 3, .rms_eps = 1e-5f}};
	struct comm comm = {.vt = &ops, .rank = 1, .world_size = 2};
	struct rank rank[2] = {0}, *const all[] = {&rank[0], &rank[1]};
	struct error err = {0};
	make_table();
	assert_int_equal(group_create(&comm.group, &(struct group_options){.world_size = 2, .timeout_ms = 10000}, &err), STATUS_OK);
	for (int r = 0; r < 2; r++)
		rank[r] = (struct rank){.index = r, .world_size = 2, .model = &model, .comm = &comm, .group = comm.group, .peers = all, .activation = DTYPE_F32, .all_rows = true,
		                        .buffers = {.x = x, .head_x = head_x, .head_h = head_h, .logits = logits[r]}, .rows.rows = HEAD_ROWS,
		                        .options.limits = {.max_rows = 4, .max_seqs = 4, .max_outputs = 4},
		                        .weights = {.head = {.dtype = DTYPE_F32, .n = HEAD_N, .k = HEAD_HIDDEN}, .head_begin = 3, .final_norm = norm}};
	struct rank *last = &rank[1];
	assert_int_equal(table.open(&last->device, &(struct device_options){.isa = "auto"}, &err), STATUS_OK);
	assert_int_equal(table.stream_create(last->device, &(struct stream_options){.max_rows = 4, .max_k = HEAD_HIDDEN, .max_n = HEAD_N}, &last->stream, &err), STATUS_OK);
	assert_int_equal(rank_alloc(last, table.linear_bytes(DTYPE_F32, HEAD_N, HEAD_HIDDEN), MEM_SHARDED, "head", &last->weights.head.data, &err), STATUS_OK);
	for (enum step_result result = 0; result < RESULT_COUNT; result++) {
		if (result == RESULT_BEST && !table.ops.argmax) continue;
		seen.calls = 0;
		assert_int_equal(warm_linears(last, &err), STATUS_OK);
		const int warmed = seen.calls;
		assert_int_equal(forward_head(last, HEAD_ROWS, result, &err), STATUS_OK);
		assert_int_equal(seen.calls, warmed + 1);
		assert_true(was_seen(seen.call[warmed], warmed));
	}
	rank_release(last);
	group_destroy(&comm.group);
}

/* They are then in memory that peers may write. */
static enum mem_tag logits_tag;
static enum status alloc(struct device *device, size_t bytes, enum mem_tag tag, const char *what, void **out, struct error *err)
{
	if (!strcmp(what, "logits")) logits_tag = tag;
	return device_find("cpu")->alloc(device, bytes, tag, what, out, err);
}

static void test_memory_of_logits(void **state)
{
	(void)state;
	static const struct comm_ops fenced = {.name = "fenced", .fence = fence}, plain = {.name = "plain"};
	static const struct {
		int index, world_size;
		const struct comm_ops *ops;
		enum mem_tag tag;
	} cases[] = {{0, 2, &fenced, MEM_GATHERED}, {1, 2, &fenced, MEM_WORKSPACE}, {0, 2, &plain, MEM_WORKSPACE}, {0, 1, &fenced, MEM_WORKSPACE}};
	struct model model;
	struct error err = {0};
	open_model(&model, "llama-head-dim");
	make_table();
	table.alloc = alloc;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct comm comm = {.vt = cases[i].ops, .rank = cases[i].index, .world_size = cases[i].world_size};
		struct rank rank = {.index = cases[i].index, .world_size = cases[i].world_size, .model = &model, .comm = &comm, .activation = DTYPE_F32,
		                    .options = {.limits = {.max_rows = 4, .max_seqs = 4, .max_outputs = 4}, .max_context = 64,
		                                .kv = {.blocks = 8, .block_tokens = 16, .max_seqs = 4, .max_blocks = 4}}};
		assert_int_equal(group_create(&comm.group, &(struct group_options){.world_size = comm.world_size, .timeout_ms = 10000}, &err), STATUS_OK);
		rank.group = comm.group;
		assert_int_equal(table.open(&rank.device, &(struct device_options){.isa = "auto"}, &err), STATUS_OK);
		assert_int_equal(table.stream_create(rank.device, &(struct stream_options){.max_rows = 4}, &rank.stream, &err), STATUS_OK);
		assert_int_equal(rank_prepare(&rank, &err), STATUS_OK);
		assert_int_equal(logits_tag, cases[i].tag);
		rank_release(&rank);
		group_destroy(&comm.group);
	}
	manifest_fini(&model.manifest);
	source_close(&model.source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_gdn), cmocka_unit_test(test_biases),
	                                   cmocka_unit_test(test_shared_expert), cmocka_unit_test(test_head), cmocka_unit_test(test_memory_of_logits)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
