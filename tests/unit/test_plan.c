/* The planner: the shapes of the hybrid model that the kernel pre-screen was made for, to the digit at each degree; that plans of
 * models that run say what the manifest and shard_of say; and that what is said to run on a device does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/status.h"
#include "engine/loader.h"
#include "model/plan.h"
#include "unit/files.h"
#include "unit/golden.h"

static const char qwen27b[] =
	"{\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":false,\"text_config\":{\"model_type\":\"qwen3_5_text\",\"hidden_size\":5120,"
	"\"intermediate_size\":17408,\"num_hidden_layers\":64,\"num_attention_heads\":24,\"num_key_value_heads\":4,\"head_dim\":256,"
	"\"vocab_size\":248320,\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,\"linear_key_head_dim\":128,"
	"\"linear_value_head_dim\":128,\"linear_conv_kernel_dim\":4,\"full_attention_interval\":4,\"attn_output_gate\":true,"
	"\"mamba_ssm_dtype\":\"float32\",\"max_position_embeddings\":262144,\"dtype\":\"bfloat16\"}}";

static struct model_config config_of(const char *text)
{
	struct model_config config;
	struct error err = {0};
	if (model_config_parse(&config, text, strlen(text), "config.json", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	return config;
}

static struct plan_degree plan(const struct model_config *config, int world_size)
{
	struct plan_degree d;
	const struct plan_options options = {.max_rows = 512, .activation = DTYPE_BF16, .kv = DTYPE_BF16};
	plan_degree(&d, config, world_size, &options);
	return d;
}

static const struct plan_family *family(const struct plan_degree *d, const char *name)
{
	for (int i = 0; i < d->families; i++)
		if (strcmp(d->family[i].family, name) == 0) return &d->family[i];
	fail_msg("no family \"%s\"", name);
	return NULL;
}

static const int degrees[] = {1, 2, 4, 8};

/* The table, as data: global [N, K], then the local axis that is cut at P = 1, 2, 4, 8. */
static const struct {
	const char *family, *kind;
	int64_t n, k, local[4];
	int count;
} table[] = {
	{"attn q+gate", "column", 12288, 5120, {12288, 6144, 3072, 1536}, 16},
	{"attn k", "column", 1024, 5120, {1024, 512, 256, 256}, 16},
	{"attn v", "column", 1024, 5120, {1024, 512, 256, 256}, 16},
	{"attn qkv", "column", 14336, 5120, {14336, 7168, 3584, 2048}, 16},
	{"attn o", "row", 5120, 6144, {6144, 3072, 1536, 768}, 16},
	{"gdn in_proj_qkv", "column", 10240, 5120, {10240, 5120, 2560, 1280}, 48},
	{"gdn in_proj_z", "column", 6144, 5120, {6144, 3072, 1536, 768}, 48},
	{"gdn qkvz", "column", 16384, 5120, {16384, 8192, 4096, 2048}, 48},
	{"gdn in_proj_b", "column", 48, 5120, {48, 24, 12, 6}, 48},
	{"gdn in_proj_a", "column", 48, 5120, {48, 24, 12, 6}, 48},
	{"gdn ba", "column", 96, 5120, {96, 48, 24, 12}, 48},
	{"gdn conv1d", "column", 10240, 4, {10240, 5120, 2560, 1280}, 48},
	{"gdn A_log, dt_bias", "column", 48, 1, {48, 24, 12, 6}, 96},
	{"gdn norm", "replicated", 128, 1, {128, 128, 128, 128}, 48},
	{"gdn out", "row", 5120, 6144, {6144, 3072, 1536, 768}, 48},
	{"mlp gate_up", "column", 34816, 5120, {34816, 17408, 8704, 4352}, 64},
	{"mlp down", "row", 5120, 17408, {17408, 8704, 4352, 2176}, 64},
	{"lm_head", "vocab", 248320, 5120, {248320, 124160, 62080, 31040}, 1},
	{"embedding", "replicated", 248320, 5120, {248320, 248320, 248320, 248320}, 1},
	{"attn q_norm, k_norm", "replicated", 256, 1, {256, 256, 256, 256}, 32},
};

static void test_hybrid_shapes(void **state)
{
	(void)state;
	struct model_config config = config_of(qwen27b);
	for (int p = 0; p < 4; p++) {
		struct plan_degree d = plan(&config, degrees[p]);
		assert_true(d.legal);
		for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
			const struct plan_family *f = family(&d, table[i].family);
			bool row = strcmp(table[i].kind, "row") == 0;
			assert_string_equal(f->kind, table[i].kind);
			assert_int_equal(f->global_n, table[i].n);
			assert_int_equal(f->global_k, table[i].k);
			assert_int_equal(f->local_n, row ? table[i].n : table[i].local[p]);
			assert_int_equal(f->local_k, row ? table[i].local[p] : table[i].k);
			assert_int_equal(f->count, table[i].count);
		}
	}
}

static void test_hybrid_heads_and_state(void **state)
{
	(void)state;
	struct model_config config = config_of(qwen27b);
	static const int heads[4][5] = {{24, 4, 1, 16, 48}, {12, 2, 1, 8, 24}, {6, 1, 1, 4, 12}, {3, 1, 2, 2, 6}};
	static const uint64_t kv[4] = {65536, 32768, 16384, 16384};
	for (int p = 0; p < 4; p++) {
		struct plan_degree d = plan(&config, degrees[p]);
		assert_int_equal(d.q_heads, heads[p][0]);
		assert_int_equal(d.kv_heads, heads[p][1]);
		assert_int_equal(d.kv_replicated, heads[p][2]);
		assert_int_equal(d.gdn_k_heads, heads[p][3]);
		assert_int_equal(d.gdn_v_heads, heads[p][4]);
		assert_int_equal(d.kv_per_token, kv[p]);
		assert_int_equal(d.state_per_sequence, 48 * (61440 + 3145728) / degrees[p]);
	}
	char *bf16 = files_json(qwen27b, "{}");
	char *at = strstr(bf16, "float32");
	assert_non_null(at);
	memcpy(at, "float16", 7); /* the state is F32 all the same */
	struct model_config small = config_of(bf16);
	assert_int_equal(plan(&small, 1).state_per_sequence, 48 * (61440 + 3145728));
	free(bf16);
}

static void test_hybrid_bytes(void **state)
{
	(void)state;
	struct model_config config = config_of(qwen27b);
	struct plan_degree one = plan(&config, 1);
	uint64_t all = one.sharded_bytes + one.replicated_bytes;
	assert_true(all / 2 > UINT64_C(26890000000) && all / 2 < UINT64_C(26900000000)); /* 26.90e9 parameters */
	int tensors = 0;
	for (int i = 0; i < one.families; i++) tensors += one.family[i].stored ? one.family[i].count : 0;
	assert_int_equal(tensors, 851);
	for (int p = 1; p < 4; p++) {
		struct plan_degree d = plan(&config, degrees[p]);
		assert_int_equal(d.replicated_bytes, one.replicated_bytes);
		uint64_t shared_kv = d.kv_replicated > 1 ? UINT64_C(16) * 2 * 128 * 5120 * 2 : 0; /* each of k, v holds 256 rows where 128 would be a share */
		assert_int_equal(d.sharded_bytes, one.sharded_bytes / (uint64_t)degrees[p] + shared_kv);
	}
}

static void test_illegal_degrees(void **state)
{
	(void)state;
	struct model_config config = config_of(qwen27b);
	static const struct {
		int p, reasons;
		const char *first;
	} cases[] = {{3, 3, "num_key_value_heads 4 is not a multiple of 3, nor the other way round"}, {5, 5, "num_attention_heads 24"},
	             {6, 3, "num_key_value_heads 4"}, {7, 5, "num_attention_heads 24"}, {16, 1, "num_attention_heads 24"}, {0, 1, "world size 0"},
	             {-1, 1, "world size -1"}, {65, 1, "expected 1 to 64"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct plan_degree d = plan(&config, cases[i].p);
		assert_false(d.legal);
		assert_int_equal(d.world_size, cases[i].p);
		if (d.reasons != cases[i].reasons) fail_msg("P=%d: expected %d reasons, found %d: %s", cases[i].p, cases[i].reasons, d.reasons, d.reason[0]);
		if (!strstr(d.reason[0], cases[i].first)) fail_msg("P=%d: expected \"%s\" in \"%s\"", cases[i].p, cases[i].first, d.reason[0]);
		assert_int_equal(d.sharded_bytes, 0);
		assert_int_equal(d.kv_tokens, -1);
		assert_int_equal(d.kv_replicated, 0);
	}
	/* what can be cut is still told */
	struct plan_degree d = plan(&config, 3);
	assert_int_equal(family(&d, "attn o")->local_k, 2048);
	assert_int_equal(family(&d, "attn qkv")->local_n, 0);
	assert_int_equal(family(&d, "mlp down")->local_k, 0);
}

static void test_kv_tokens(void **state)
{
	(void)state;
	struct model_config config = config_of(qwen27b);
	struct plan_options options = {.device_memory = UINT64_C(64) << 30, .scratch_bytes = UINT64_C(3) << 20, .max_rows = 512, .activation = DTYPE_BF16, .kv = DTYPE_BF16};
	struct plan_degree d;
	plan_degree(&d, &config, 2, &options);
	uint64_t used = d.sharded_bytes + d.replicated_bytes + d.scratch_bytes + d.workspace_bytes + 3 * d.state_per_sequence;
	assert_int_equal(d.kv_tokens, ((UINT64_C(64) << 30) - used) / 32768); /* one sequence's two slots of state, and the sink's */
	options.state_slots = plan_state_slots(8, 5);
	plan_degree(&d, &config, 2, &options);
	assert_int_equal(d.kv_tokens, ((UINT64_C(64) << 30) - used - 19 * d.state_per_sequence) / 32768);
	assert_int_equal(d.scratch_bytes, UINT64_C(3) << 20);
	options.device_memory = UINT64_C(16) << 30;
	plan_degree(&d, &config, 1, &options);
	assert_int_equal(d.kv_tokens, 0); /* the weights alone do not fit */
	options.device_memory = 0;
	plan_degree(&d, &config, 1, &options);
	assert_int_equal(d.kv_tokens, -1);
	options = (struct plan_options){.kv = DTYPE_F32};
	plan_degree(&d, &config, 1, &options);
	assert_int_equal(d.kv_per_token, 131072);
	assert_true(d.workspace_bytes > 0);
}

static void test_mixture_of_experts(void **state)
{
	(void)state;
	struct model_config config = config_of(
		"{\"model_type\":\"qwen3_next\",\"hidden_size\":2048,\"intermediate_size\":5120,\"num_hidden_layers\":48,\"num_attention_heads\":16,"
		"\"num_key_value_heads\":2,\"head_dim\":256,\"vocab_size\":151936,\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,"
		"\"num_experts\":512,\"num_experts_per_tok\":10,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,"
		"\"torch_dtype\":\"bfloat16\"}");
	struct plan_degree d = plan(&config, 4);
	assert_true(d.legal);
	assert_int_equal(d.kv_replicated, 2);
	assert_int_equal(family(&d, "gdn in_proj_qkvz")->global_n, 12288);
	assert_int_equal(family(&d, "gdn in_proj_qkvz")->local_n, 3072);
	assert_int_equal(family(&d, "gdn in_proj_ba")->local_n, 16);
	assert_int_equal(family(&d, "gdn qkvz")->local_n, 3072);
	assert_int_equal(family(&d, "moe expert gate_up")->global_n, 1024);
	assert_int_equal(family(&d, "moe expert gate_up")->local_n, 256);
	assert_int_equal(family(&d, "moe expert gate_up")->count, 48 * 512);
	assert_int_equal(family(&d, "moe expert down")->local_k, 128);
	assert_int_equal(family(&d, "moe router")->local_n, 512);
	assert_int_equal(family(&d, "moe shared down")->local_k, 128);
	struct plan_degree one = plan(&config, 1);
	uint64_t parameters = (one.sharded_bytes + one.replicated_bytes) / 2;
	assert_true(parameters > UINT64_C(79500000000) && parameters < UINT64_C(80000000000)); /* "80B" */
}

/* Parameters that share a tensor of the checkpoint stand one behind the other. */
static int tensors_of(const struct manifest *m)
{
	int tensors = 0;
	for (int i = 0; i < m->count; i++)
		if (i == 0 || strcmp(m->weights[i].name, m->weights[i - 1].name) != 0) tensors += m->weights[i].stacked ? 1 : m->weights[i].experts;
	return tensors;
}

static int64_t local_rows(const struct manifest *m, enum weight_role role, int layer, int world_size)
{
	struct shard_spec spec;
	const struct weight *w = manifest_find(m, role, layer);
	if (!w) return 0;
	assert_int_equal(shard_of(&spec, w, world_size, 0, NULL), STATUS_OK);
	return spec.local_rows;
}

static void check_gdn_shapes(const struct plan_degree *d, const struct model_config *config, const struct manifest *m)
{
	int layer = 0, p = d->world_size;
	while (layer < config->layers && config->layer_kind[layer] != LAYER_GDN) layer++;
	if (layer == config->layers) return;
	int64_t k = local_rows(m, WEIGHT_GDN_K, layer, p), v = local_rows(m, WEIGHT_GDN_V, layer, p);
	assert_int_equal(k, d->gdn_k_heads * config->gdn.k_dim);
	assert_int_equal(v, d->gdn_v_heads * config->gdn.v_dim);
	assert_int_equal(family(d, "gdn qkvz")->local_n, 2 * k + v + local_rows(m, WEIGHT_GDN_Z, layer, p));
	assert_int_equal(family(d, "gdn ba")->local_n, local_rows(m, WEIGHT_GDN_B, layer, p) + local_rows(m, WEIGHT_GDN_A, layer, p));
	assert_int_equal(family(d, "gdn conv1d")->local_n, 2 * local_rows(m, WEIGHT_GDN_CONV_Q, layer, p) + local_rows(m, WEIGHT_GDN_CONV_V, layer, p));
	assert_int_equal(family(d, "gdn conv1d")->local_k, config->gdn.conv_kernel);
}

static void check_moe_shapes(const struct plan_degree *d, const struct model_config *config, const struct manifest *m)
{
	int layer = 0, p = d->world_size;
	struct shard_spec down;
	while (layer < config->layers && !config->moe.sparse[layer]) layer++;
	if (layer == config->layers) return;
	assert_int_equal(family(d, "moe router")->local_n, local_rows(m, WEIGHT_ROUTER, layer, p));
	assert_int_equal(family(d, "moe expert gate_up")->local_n, local_rows(m, WEIGHT_EXPERT_GATE, layer, p) + local_rows(m, WEIGHT_EXPERT_UP, layer, p));
	assert_int_equal(family(d, "moe expert gate_up")->count, config->moe.layers * manifest_find(m, WEIGHT_EXPERT_GATE, layer)->experts);
	assert_int_equal(shard_of(&down, manifest_find(m, WEIGHT_EXPERT_DOWN, layer), p, 0, NULL), STATUS_OK);
	assert_int_equal(family(d, "moe expert down")->local_k, down.local_cols);
	if (!config->moe.shared_intermediate) return;
	assert_int_equal(family(d, "moe shared gate_up")->local_n, local_rows(m, WEIGHT_SHARED_GATE, layer, p) + local_rows(m, WEIGHT_SHARED_UP, layer, p));
	assert_int_equal(family(d, "moe shared gate")->local_n, local_rows(m, WEIGHT_SHARED_ROUTER, layer, p));
}

/* The planner's arithmetic and the loader's are two; here they meet. */
static void check_against_manifest(const char *text)
{
	struct model_config config = config_of(text);
	struct manifest m;
	struct error err = {0};
	if (manifest_init(&m, &config, &err) != STATUS_OK) fail_msg("%s", err.text);
	for (int p = 1; p <= 8; p++) {
		struct plan_degree d = plan(&config, p);
		assert_int_equal(d.legal, shard_degree(&config, p, NULL) == STATUS_OK);
		if (!d.legal) continue;
		uint64_t sharded = 0, replicated = 0, head = 0;
		for (int i = 0; i < m.count; i++) {
			const struct weight *w = &m.weights[i];
			struct shard_spec s;
			if (shard_of(&s, w, p, p - 1, &err) != STATUS_OK) fail_msg("%s", err.text);
			uint64_t bytes = (uint64_t)w->experts * (uint64_t)s.local_rows * (uint64_t)s.local_cols * dtype_bytes(config.dtype);
			if (w->role == WEIGHT_LM_HEAD) head = bytes / (uint64_t)(w->rows) * (uint64_t)((w->rows + p - 1) / p);
			else *(w->kind == SHARD_REPLICATED ? &replicated : &sharded) += bytes;
		}
		assert_int_equal(d.replicated_bytes, replicated);
		assert_int_equal(d.sharded_bytes, sharded + head);
		struct shard_spec k;
		int attention = 0;
		while (config.layer_kind[attention] == LAYER_GDN) attention++;
		int64_t q_rows = local_rows(&m, WEIGHT_Q, attention, p), gate_rows = local_rows(&m, WEIGHT_Q_GATE, attention, p);
		assert_int_equal(shard_of(&k, manifest_find(&m, WEIGHT_K, attention), p, 0, NULL), STATUS_OK);
		check_gdn_shapes(&d, &config, &m);
		check_moe_shapes(&d, &config, &m);
		assert_int_equal(d.q_heads * config.head_dim, q_rows);
		assert_int_equal(d.kv_heads * config.head_dim, k.local_rows);
		assert_int_equal(d.kv_replicated, k.replicas);
		assert_int_equal(family(&d, "attn qkv")->local_n, q_rows + gate_rows + 2 * k.local_rows);
		int tensors = 0;
		for (int i = 0; i < d.families; i++)
			if (d.family[i].stored) tensors += strcmp(d.family[i].family, "attn qkv bias") ? d.family[i].count : 3 * d.family[i].count;
		assert_int_equal(tensors, tensors_of(&m));
	}
	manifest_fini(&m);
}

static void test_plan_equals_manifest(void **state)
{
	(void)state;
	static const char base[] = "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,\"num_hidden_layers\":32,"
							   "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"vocab_size\":128256,\"torch_dtype\":\"bfloat16\"}";
	static const char *const changes[] = {
		"{}",
		"{\"tie_word_embeddings\":true}",
		"{\"attention_bias\":true,\"mlp_bias\":true}",
		"{\"model_type\":\"qwen2\",\"num_attention_heads\":28,\"num_key_value_heads\":4,\"hidden_size\":3584,\"intermediate_size\":18944}",
		"{\"model_type\":\"qwen3\",\"num_attention_heads\":64,\"num_key_value_heads\":8,\"hidden_size\":5120,\"intermediate_size\":25600}",
		"{\"model_type\":\"mistral\",\"head_dim\":128,\"hidden_size\":5120,\"sliding_window\":null}",
		"{\"model_type\":\"qwen3_5_text\",\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,\"linear_value_head_dim\":64}",
		"{\"model_type\":\"qwen3_5_text\",\"linear_num_key_heads\":8,\"linear_num_value_heads\":8,\"attn_output_gate\":false}",
		"{\"model_type\":\"qwen3_next\",\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"num_experts\":0,\"attention_bias\":true}",
		"{\"num_attention_heads\":32,\"num_key_value_heads\":2,\"torch_dtype\":\"float32\",\"vocab_size\":32003}",
		"{\"model_type\":\"qwen3_moe\",\"num_experts\":128,\"moe_intermediate_size\":768,\"mlp_only_layers\":[0,5],\"hidden_size\":2048}",
		"{\"model_type\":\"qwen3_moe\",\"num_experts\":60,\"moe_intermediate_size\":1536,\"decoder_sparse_step\":3,\"num_key_value_heads\":4}",
		"{\"model_type\":\"qwen3_next\",\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"num_experts\":512,\"moe_intermediate_size\":512,"
		"\"shared_expert_intermediate_size\":256,\"mlp_only_layers\":[1]}",
		"{\"model_type\":\"qwen3_5_moe_text\",\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"num_experts\":256,\"moe_intermediate_size\":512,"
		"\"shared_expert_intermediate_size\":512}",
	};
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		char *text = files_json(base, changes[i]);
		check_against_manifest(text);
		free(text);
	}
}

/* The largest sizes that a config may state overflow nothing (the sanitizer watches). */
static void test_bounds(void **state)
{
	(void)state;
	struct model_config config = config_of(
		"{\"model_type\":\"qwen3_next\",\"hidden_size\":1048576,\"intermediate_size\":16777216,\"num_hidden_layers\":1024,"
		"\"num_attention_heads\":16384,\"num_key_value_heads\":16384,\"head_dim\":512,\"vocab_size\":16777216,\"linear_num_key_heads\":16384,"
		"\"linear_num_value_heads\":16384,\"linear_key_head_dim\":1024,\"linear_value_head_dim\":1024,\"linear_conv_kernel_dim\":64,"
		"\"num_experts\":4096,\"num_experts_per_tok\":4096,\"moe_intermediate_size\":65536,\"shared_expert_intermediate_size\":16777216,"
		"\"full_attention_interval\":2,\"torch_dtype\":\"float32\"}");
	for (int p = 1; p <= 8; p *= 2) {
		struct plan_degree d = plan(&config, p);
		assert_true(d.legal);
		assert_true(d.sharded_bytes + d.replicated_bytes < UINT64_C(1) << 63);
		for (int i = 0; i < d.families; i++) assert_true(d.family[i].local_n > 0 && d.family[i].local_k > 0);
	}
}

/* The config.json files of real models in tests/data/plan. */
static void test_real_configs(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		double billions; /* as published, to two digits */
		int64_t qkv_tp8, down_tp8;
		const char *down; /* NULL: "mlp down" */
	} models[] = {{"llama3-8b", 8.0, 768, 1792, NULL}, {"llama3-70b", 70.6, 1280, 3584, NULL}, {"qwen3-32b", 32.8, 1280, 3200, NULL},
	              {"qwen3.5-27b", 26.9, 2048, 2176, NULL}, {"qwen3-30b-a3b", 30.5, 768, 96, "moe expert down"}, {"gemma3-27b", 27.0, 1024, 2688, NULL}};
	for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
		char path[64];
		snprintf(path, sizeof path, "tests/data/plan/%s", models[i].name);
		struct model_config config;
		struct error err = {0};
		if (model_config_load(&config, path, NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
		struct plan_degree one = plan(&config, 1), eight = plan(&config, 8);
		double billions = (double)(one.sharded_bytes + one.replicated_bytes) / (double)dtype_bytes(config.dtype) / 1e9;
		if (billions < models[i].billions - 0.06 || billions > models[i].billions + 0.06) fail_msg("%s: %.3f billion", models[i].name, billions);
		assert_int_equal(family(&eight, "attn qkv")->local_n, models[i].qkv_tp8);
		assert_int_equal(family(&eight, models[i].down ? models[i].down : "mlp down")->local_k, models[i].down_tp8);
	}
}

/* Whether it is split, and that its rows move from what is replicated to what is sharded. */
static void test_split_embedding(void **state)
{
	(void)state;
	struct model_config config;
	struct error err = {0};
	if (model_config_load(&config, "tests/data/plan/llama3-8b", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	assert_false(shard_embedding(&config, 1, "vocab", false));
	assert_true(shard_embedding(&config, 2, "auto", false));
	assert_false(shard_embedding(&config, 2, "auto", true));
	assert_true(shard_embedding(&config, 2, "vocab", true));
	assert_false(shard_embedding(&config, 2, "replicated", false));
	const uint64_t row = (uint64_t)config.hidden_size * 2;
	struct plan_options options = {.max_rows = 512, .activation = DTYPE_BF16, .kv = DTYPE_BF16};
	struct plan_degree whole, split;
	plan_degree(&whole, &config, 8, &options);
	options.embedding_split = true;
	plan_degree(&split, &config, 8, &options);
	assert_int_equal(family(&split, "embedding")->local_n, 16032);
	assert_int_equal(whole.replicated_bytes - split.replicated_bytes, 128256 * row);
	assert_int_equal(split.sharded_bytes - whole.sharded_bytes, 16032 * row);
	plan_degree(&split, &config, 1, &options);
	assert_string_equal(family(&split, "embedding")->kind, "replicated");
	/* Tied: split only where asked for, and with the head on rank 0 that rank has all of it. */
	config.tied = true;
	assert_false(shard_embedding(&config, 2, "auto", false));
	assert_true(shard_embedding(&config, 2, "vocab", false));
	plan_degree(&split, &config, 2, &options);
	assert_int_equal(family(&split, "embedding")->local_n, 64128);
	options.head_on_rank0 = true;
	plan_degree(&split, &config, 2, &options);
	assert_int_equal(family(&split, "embedding")->local_n, 128256);
}

/* Ranks of a device that keeps rows together differ: shapes and bytes are those of the largest. Without one they are as even as they go. */
static void test_vocabulary_in_granules(void **state)
{
	(void)state;
	struct model_config config;
	struct error err = {0};
	struct plan_options options = {.embedding_split = true, .activation = DTYPE_BF16, .kv = DTYPE_BF16};
	struct plan_degree even, whole;
	if (model_config_load(&config, "tests/data/plan/llama3-8b", NULL, &err) != STATUS_OK) fail_msg("%s", err.text);
	config.vocab_size = 151936;
	plan_degree(&even, &config, 8, &options);
	options.vocab_granule = 32;
	plan_degree(&whole, &config, 8, &options);
	static const char *const names[] = {"lm_head", "embedding"};
	for (int i = 0; i < 2; i++) {
		assert_int_equal(family(&even, names[i])->local_n, 18992);
		assert_int_equal(family(&whole, names[i])->local_n, 19008);
	}
	assert_int_equal(whole.sharded_bytes - even.sharded_bytes, 2 * 16 * 2 * config.hidden_size);
}

/* Whether a model of these sizes is said to run on this device, as `tandem plan` asks; the refusal goes to *err. */
static bool fits(const char *base, const char *change, const struct device_ops *ops, struct error *err)
{
	struct model_config config;
	char *text = files_json(base, change);
	*err = (struct error){0};
	if (model_config_parse(&config, text, strlen(text), "config.json", NULL, err) != STATUS_OK) fail_msg("%s", err->text);
	free(text);
	return loader_fits(&config, ops, err) == STATUS_OK;
}

#define ONE_LAYER "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"vocab_size\":160}"

/* A size runs to its first token, or both plan and open say no; nothing is refused later. */
static void test_head_sizes_run_or_are_refused(void **state)
{
	(void)state;
	int run = 0;
	for (int dim = 2; dim <= MODEL_MAX_HEAD_DIM; dim += 2) {
		char folder[256], path[512], change[64];
		struct error err;
		struct tandem_error open_err = {0};
		struct tandem *engine;
		int32_t tokens[4];
		int got;
		snprintf(change, sizeof change, "{\"head_dim\":%d}", dim);
		const bool runs = fits(ONE_LAYER, change, device_find("cpu"), &err);
		char *text = files_json(ONE_LAYER, change);
		files_make(folder);
		files_write(path, folder, "config.json", text, strlen(text));
		struct tandem_options o = {.model = folder, .world_size = 1, .threads = 1, .context = 64, .random_weights = true, .random_seed = 1};
		int code = tandem_open(&engine, &o, &open_err);
		if ((code == 0) != runs) fail_msg("head_dim %d: plan says %s, open %s", dim, runs ? "it runs" : err.text, open_err.text);
		if (runs && golden_greedy(engine, (const int32_t[]){3, 14, 15}, 3, 4, true, tokens, &got, &open_err)) fail_msg("head_dim %d: %s", dim, open_err.text);
		if (!runs && (!strstr(open_err.text, "head_dim") || !strstr(open_err.text, "--device cpu") || !strstr(open_err.text, "multiples of 8 up to 256")))
			fail_msg("head_dim %d: %s", dim, open_err.text);
		tandem_close(&engine);
		files_remove(folder);
		free(text);
		run += runs;
	}
	assert_int_equal(run, 256 / 8);
}

/* Each bound of a device: the largest size runs, the next is refused by its key. */
static void test_sizes_beyond_a_device_are_refused(void **state)
{
	(void)state;
	static const char base[] = "{\"model_type\":\"qwen3_next\",\"hidden_size\":32,\"intermediate_size\":32,\"num_hidden_layers\":4,\"num_attention_heads\":2,"
	                           "\"num_key_value_heads\":2,\"head_dim\":16,\"vocab_size\":160,\"linear_num_key_heads\":2,\"linear_num_value_heads\":2,"
	                           "\"linear_key_head_dim\":16,\"linear_value_head_dim\":16,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,"
	                           "\"shared_expert_intermediate_size\":16}";
	static const struct {
		const char *key;
		int most, next;
	} bounds[] = {{"head_dim", 64, 80}, {"head_dim", 48, 40}, {"linear_key_head_dim", 24, 25}, {"linear_value_head_dim", 25, 26}, {"linear_conv_kernel_dim", 5, 6},
	              {"num_experts", 7, 8}};
	struct device_ops ops = *device_find("cpu");
	ops.name = "small";
	ops.sizes = (struct device_sizes){.head_multiple = 16, .max_head_dim = 64, .max_gdn_k_dim = 24, .max_gdn_v_dim = 25, .max_gdn_taps = 5, .max_experts = 7};
	for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
		char change[100];
		struct error err;
		snprintf(change, sizeof change, "{\"%s\":%d}", bounds[i].key, bounds[i].most);
		if (!fits(base, change, &ops, &err)) fail_msg("%s", err.text);
		snprintf(change, sizeof change, "{\"%s\":%d}", bounds[i].key, bounds[i].next);
		if (fits(base, change, &ops, &err)) fail_msg("%s runs", change);
		if (err.code != STATUS_UNSUPPORTED || !strstr(err.text, bounds[i].key) || !strstr(err.text, "--device small")) fail_msg("%s: %s", change, err.text);
	}
	struct error err = {0};
	struct model_config config = config_of(base);
	ops.block_types = false;
	config.stored.blocks = true;
	if (loader_fits(&config, &ops, &err) != STATUS_UNSUPPORTED || !strstr(err.text, "not quantised")) fail_msg("%s", err.text);
	/* What a model does not have does not count. */
	if (!fits(base, "{\"num_experts\":0,\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"],\"linear_key_head_dim\":99}",
	          &ops, &err)) fail_msg("%s", err.text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hybrid_shapes),      cmocka_unit_test(test_hybrid_heads_and_state), cmocka_unit_test(test_hybrid_bytes),
		cmocka_unit_test(test_illegal_degrees),    cmocka_unit_test(test_kv_tokens),              cmocka_unit_test(test_mixture_of_experts),
		cmocka_unit_test(test_plan_equals_manifest), cmocka_unit_test(test_bounds),               cmocka_unit_test(test_real_configs),
		cmocka_unit_test(test_split_embedding),      cmocka_unit_test(test_vocabulary_in_granules),
		cmocka_unit_test(test_head_sizes_run_or_are_refused),
		cmocka_unit_test(test_sizes_beyond_a_device_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
