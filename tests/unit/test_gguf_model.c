/* Models from GGUF files: the config and the rows that come out, block types and degrees. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "model/plan.h"
#include "model/rope.h"
#include "model/source.h"
#include "unit/files.h"
#include "unit/gguf_writer.h"

struct shape {
	const char *architecture;
	int hidden, inner, heads, kv_heads, layers, vocab;
};

/* Less the key `without`, where that is not NULL. */
static void metadata_but(struct writer *w, const struct shape *s, const char *without)
{
	const struct {
		const char *key;
		int value;
	} ints[] = {{"embedding_length", s->hidden}, {"feed_forward_length", s->inner}, {"attention.head_count", s->heads},
	            {"attention.head_count_kv", s->kv_heads}, {"block_count", s->layers}, {"context_length", 512}};
	char name[100];
	writer_text(w, "general.architecture", s->architecture);
	for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) {
		snprintf(name, sizeof name, "%s.%s", s->architecture, ints[i].key);
		if (without && strcmp(ints[i].key, without) == 0) continue;
		writer_u32(w, name, (uint32_t)ints[i].value);
	}
	snprintf(name, sizeof name, "%s.attention.layer_norm_rms_epsilon", s->architecture);
	if (!without || strcmp(without, "attention.layer_norm_rms_epsilon") != 0) writer_f32(w, name, 1e-5f);
	snprintf(name, sizeof name, "%s.rope.freq_base", s->architecture);
	if (!without || strcmp(without, "rope.freq_base") != 0) writer_f32(w, name, 100000.0f);
	writer_u32(w, "tokenizer.ggml.eos_token_id", 2);
	writer_u32(w, "tokenizer.ggml.eot_token_id", 5);
	writer_u32(w, "tokenizer.ggml.bos_token_id", 1);
}

static void metadata(struct writer *w, const struct shape *s)
{
	metadata_but(w, s, NULL);
}

static size_t matrix(struct writer *w, const char *name, uint32_t type, enum dtype dtype, int rows, int cols)
{
	size_t bytes = dtype_size(dtype, (size_t)rows * (size_t)cols);
	writer_tensor(w, name, type, rows, cols, bytes, NULL);
	return bytes;
}

static void load(struct writer *w, char folder[256], char path[512], struct model_config *config, struct error *err, enum status expected)
{
	struct buf file;
	writer_finish(w, &file);
	files_make(folder);
	files_write(path, folder, "m.gguf", file.data, file.size);
	buf_fini(&file);
	*err = (struct error){0};
	enum status st = model_config_load(config, path, NULL, err);
	if (st != expected) fail_msg("expected %s, got %s: %s", status_name(expected), status_name(st), err->text);
}

static void test_config(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	metadata(&w, &s);
	size_t embedding = matrix(&w, "token_embd.weight", 8, DTYPE_Q8_0, s.vocab, s.hidden);
	size_t down = matrix(&w, "blk.0.ffn_down.weight", 3, DTYPE_Q4_1, s.hidden, s.inner);
	down += matrix(&w, "blk.1.ffn_down.weight", 8, DTYPE_Q8_0, s.hidden, s.inner);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_string_equal(c.model_type, "llama");
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.intermediate_size, 96);
	assert_int_equal(c.layers, 2);
	assert_int_equal(c.q_heads, 4);
	assert_int_equal(c.kv_heads, 2);
	assert_int_equal(c.head_dim, 16);
	assert_int_equal(c.vocab_size, 10);
	assert_int_equal(c.max_position, 512);
	assert_true(c.rms_eps == 1e-5f);
	assert_true(c.rope.theta == 100000.0);
	assert_int_equal(c.rope.type, ROPE_DEFAULT);
	assert_true(c.tied);
	assert_false(c.qkv_bias);
	assert_int_equal(c.eos_count, 2);
	assert_int_equal(c.eos[1], 5);
	assert_int_equal(c.bos, 1);
	assert_true(c.stored.own_types);
	assert_int_equal(c.stored.role_bytes[WEIGHT_EMBED], embedding);
	assert_int_equal(c.stored.role_bytes[WEIGHT_DOWN], down);
	assert_int_equal(c.stored.down_block, 32);
	assert_int_equal(c.dtype, DTYPE_Q8_0);
	files_remove(folder);

	/* the names of qwen3 and its norms; a window on llama is Mistral's */
	metadata(&w, &(struct shape){"qwen3", 64, 96, 4, 2, 2, 10});
	writer_u32(&w, "qwen3.attention.key_length", 32);
	writer_u32(&w, "qwen3.attention.value_length", 32);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	matrix(&w, "output.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.head_dim, 32);
	assert_true(c.qk_norm && !c.tied && !c.qkv_bias);
	assert_int_equal(c.dtype, DTYPE_F16);
	files_remove(folder);
	metadata(&w, &s);
	writer_u32(&w, "llama.attention.sliding_window", 100);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.sliding_window, 100);
	assert_int_equal(c.layer_kind[1], LAYER_SLIDING);
	files_remove(folder);
}

static void test_gemma(void **state)
{
	(void)state;
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512], name[64];
	metadata(&w, &(struct shape){"gemma3", 64, 96, 4, 1, 12, 10});
	writer_u32(&w, "gemma3.attention.sliding_window", 512), writer_u32(&w, "gemma3.attention.key_length", 32);
	writer_text(&w, "gemma3.rope.scaling.type", "linear"), writer_f32(&w, "gemma3.rope.scaling.factor", 8);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.four_norms && c.gelu && c.scaled_embedding && c.qk_norm && c.tied);
	assert_false(c.centred_norms); /* the converter has added the 1 */
	assert_true(c.rope.theta == 1e5 && c.rope.type == ROPE_LINEAR && c.rope.factor == 8);
	assert_true(c.rope_local.theta == 1e4 && c.rope_local.type == ROPE_DEFAULT);
	assert_int_equal(c.sliding_window, 512);
	assert_int_equal(c.layer_kind[4], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[5], LAYER_FULL);
	assert_true(c.query_scale == (float)(1 / sqrt(32)));
	struct gguf file;
	enum gguf_order order;
	assert_int_equal(gguf_open(&file, path, &err), STATUS_OK);
	static const char *const pairs[][2] = {{"post_attention_layernorm", "post_attention_norm"}, {"pre_feedforward_layernorm", "ffn_norm"},
	                                       {"post_feedforward_layernorm", "post_ffw_norm"}, {"input_layernorm", "attn_norm"}};
	for (int i = 0; i < 4; i++) {
		char from[80], want[80];
		snprintf(from, sizeof from, "model.layers.3.%s.weight", pairs[i][0]);
		snprintf(want, sizeof want, "blk.3.%s.weight", pairs[i][1]);
		assert_true(gguf_name_of(&file, from, name, sizeof name, &order));
		assert_string_equal(name, want);
	}
	gguf_close(&file);
	files_remove(folder);
	metadata(&w, &(struct shape){"gemma3", 64, 96, 4, 1, 62, 10}); /* the size whose scores are scaled by hidden / heads */
	writer_u32(&w, "gemma3.attention.sliding_window", 512), writer_u32(&w, "gemma3.attention.key_length", 32);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.query_scale == 0.25f);
	files_remove(folder);
	metadata(&w, &(struct shape){"gemma2", 64, 96, 4, 1, 4, 10});
	writer_u32(&w, "gemma2.attention.sliding_window", 512), writer_u32(&w, "gemma2.attention.key_length", 32);
	writer_f32(&w, "gemma2.attn_logit_softcapping", 40), writer_f32(&w, "gemma2.final_logit_softcapping", 20);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.attn_softcap == 40 && c.final_softcap == 20 && !c.qk_norm && !c.two_ropes && c.rope.theta == 1e5);
	assert_int_equal(c.layer_kind[2], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[3], LAYER_FULL);
	files_remove(folder);
	metadata(&w, &(struct shape){"llama", 64, 96, 4, 2, 2, 10});
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(gguf_open(&file, path, &err), STATUS_OK);
	assert_true(gguf_name_of(&file, "model.layers.0.post_attention_layernorm.weight", name, sizeof name, &order));
	assert_string_equal(name, "blk.0.ffn_norm.weight");
	assert_false(gguf_name_of(&file, "model.layers.0.pre_feedforward_layernorm.weight", name, sizeof name, &order));
	gguf_close(&file);
	files_remove(folder);
}

/* Metadata of more than what is read of a file at once; and the file is shortened then. */
static void test_long_metadata(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	char folder[256], path[512];
	static char scores[5 << 20];
	const float factors[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	const void *data;
	size_t stride;
	writer_array(&w, "tokenizer.ggml.scores", GGUF_F32, sizeof scores / 4);
	writer_put(&w.fields, scores, sizeof scores);
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	writer_tensor(&w, "rope_freqs.weight", 0, 0, 8, sizeof factors, factors);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.rope.type, ROPE_FACTORS);
	assert_true(c.rope.factors[7] == 8);
	assert_int_equal(source_open_checkpoint(&source, path, NULL, &err), STATUS_OK);
	assert_int_equal(source_find(source, "model.embed_tokens.weight", 2, 10, 64, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 9, 1, 0, 64, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(truncate(path, 1000), 0);
	assert_int_equal(source_read(source, &t, 9, 1, 0, 64, &scratch, &data, &stride, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "m.gguf: no byte "));
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

static void refused(struct writer *w, enum status expected, const char *needle)
{
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	load(w, folder, path, &c, &err, expected);
	if (!strstr(err.text, needle) || strchr(err.text, '\n')) fail_msg("expected \"%s\" in \"%s\"", needle, err.text);
	files_remove(folder);
}

static void test_refusals(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	writer_u32(&w, "x", 1);
	refused(&w, STATUS_BAD_INPUT, "general.architecture is missing");
	metadata(&w, &(struct shape){"mamba", 64, 96, 4, 2, 2, 10});
	refused(&w, STATUS_UNSUPPORTED, "\"mamba\" is not implemented; llama, qwen2, qwen3, gemma2, gemma3 are");
	metadata(&w, &s);
	refused(&w, STATUS_BAD_INPUT, "\"token_embd.weight\" is missing");
	metadata(&w, &s), writer_u32(&w, "llama.expert_count", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.expert_count");
	metadata(&w, &s), writer_u32(&w, "llama.rope.dimension_count", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.dimension_count");
	metadata(&w, &s), writer_u32(&w, "llama.rope.dimension_count_swa", 8), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.dimension_count_swa");
	metadata(&w, &s), writer_key(&w, "llama.attention.causal", GGUF_BOOL), writer_put_uint(&w.fields, 0, 1), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.attention.causal");
	metadata(&w, &s), writer_text(&w, "llama.rope.scaling.type", "longrope"), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_UNSUPPORTED, "llama.rope.scaling.type");
	metadata(&w, &s), writer_tensor(&w, "token_embd.weight", 20, 10, 64, 0, NULL);
	refused(&w, STATUS_UNSUPPORTED, "type IQ4_NL is not implemented");
	metadata(&w, &(struct shape){"llama", 64, 96, 0, 2, 2, 10}), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_BAD_INPUT, "head_count");
	metadata(&w, &(struct shape){"llama", 64, 96, 5, 2, 2, 10}), matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	refused(&w, STATUS_BAD_INPUT, "num_attention_heads 5");
}

static void test_rope(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	float factors[8] = {1, 1, 1, 2, 2.5f, 4, 8, 8};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	struct rope_table plain, table;
	char folder[256], path[512];
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	writer_tensor(&w, "rope_freqs.weight", 0, 0, 8, sizeof factors, factors);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.rope.type, ROPE_FACTORS);
	assert_int_equal(rope_init(&table, &c, &err), STATUS_OK);
	c.rope.type = ROPE_DEFAULT;
	assert_int_equal(rope_init(&plain, &c, &err), STATUS_OK);
	for (int i = 0; i < 8; i++) assert_true(table.inv_freq[i] == plain.inv_freq[i] / factors[i]);
	files_remove(folder);

	metadata(&w, &s);
	writer_text(&w, "llama.rope.scaling.type", "yarn");
	writer_f32(&w, "llama.rope.scaling.factor", 4);
	writer_u32(&w, "llama.rope.scaling.original_context_length", 128);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(c.rope.type, ROPE_YARN);
	assert_true(c.rope.factor == 4);
	assert_int_equal(c.rope.original_max_position, 128);
	files_remove(folder);
}

/* Each key of rope's scaling, under each type: read, refused by name, or without effect; none is passed over. */
static void test_rope_scaling_keys(void **state)
{
	(void)state;
	enum { PLAIN, LINEAR, YARN, NEVER, TYPES = 4 }; /* what the key makes of the type; NEVER: refused */
	static const char *const types[TYPES] = {NULL, "none", "linear", "yarn"};
	static const struct {
		const char *key;
		double value;
		int with[TYPES];   /* beside the type and no factor */
		int scaled[TYPES]; /* beside the type and a factor of 4 */
	} keys[] = {
		{"finetuned", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"original_context_length", 128, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_beta_fast", 16, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_beta_slow", 2, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"factor", 4, {LINEAR, PLAIN, LINEAR, YARN}, {0}},
		{"factor", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {0}},
		{"factor", -4, {NEVER, NEVER, NEVER, NEVER}, {0}},
		{"attn_factor", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"attn_factor", 0.5, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"yarn_attn_factor", 1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_attn_factor", 2, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"yarn_ext_factor", -1, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_ext_factor", 0, {PLAIN, PLAIN, PLAIN, NEVER}, {LINEAR, PLAIN, LINEAR, NEVER}},
		{"yarn_ext_factor", 1, {NEVER, NEVER, NEVER, PLAIN}, {NEVER, NEVER, NEVER, YARN}},
		{"yarn_log_multiplier", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"yarn_log_multiplier", 0.1, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"alpha", 0, {PLAIN, PLAIN, PLAIN, PLAIN}, {LINEAR, PLAIN, LINEAR, YARN}},
		{"alpha", 1000, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
		{"of_tomorrow", 1, {NEVER, NEVER, NEVER, NEVER}, {NEVER, NEVER, NEVER, NEVER}},
	};
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	static const enum rope_type kinds[] = {ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN};
	for (size_t n = 0; n < 2 * TYPES * sizeof keys / sizeof *keys; n++) {
		const size_t k = n / (2 * TYPES), type = n / 2 % TYPES;
		const bool scaled = n % 2;
		const int expected = scaled ? keys[k].scaled[type] : keys[k].with[type];
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512], name[80];
		snprintf(name, sizeof name, "llama.rope.scaling.%s", keys[k].key);
		if (scaled && strcmp(keys[k].key, "factor") == 0) continue;
		metadata(&w, &s);
		if (types[type]) writer_text(&w, "llama.rope.scaling.type", types[type]);
		if (scaled) writer_f32(&w, "llama.rope.scaling.factor", 4);
		if (strcmp(keys[k].key, "original_context_length") == 0) writer_u32(&w, name, (uint32_t)keys[k].value);
		else writer_f32(&w, name, (float)keys[k].value);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		if (expected == NEVER) {
			refused(&w, keys[k].value == -4 ? STATUS_BAD_INPUT : STATUS_UNSUPPORTED, name);
			continue;
		}
		load(&w, folder, path, &c, &err, STATUS_OK);
		if (c.rope.type != kinds[expected]) fail_msg("%s %g beside type %s: rope type %d", name, keys[k].value, types[type] ? types[type] : "(none)", (int)c.rope.type);
		if (expected != PLAIN) assert_true(c.rope.factor == 4);
		files_remove(folder);
	}
}

/* The older key counts where the newer does not stand, and only where there is a type to scale by. */
static void test_scale_linear(void **state)
{
	(void)state;
	static const struct {
		const char *type;
		double factor; /* of the newer key; 0: absent */
		enum rope_type expected;
		double scale;
	} cases[] = {{NULL, 0, ROPE_LINEAR, 8}, {"linear", 0, ROPE_LINEAR, 8}, {"yarn", 0, ROPE_YARN, 8}, {"none", 0, ROPE_DEFAULT, 1}, {NULL, 2, ROPE_LINEAR, 2}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512];
		metadata(&w, &(struct shape){"llama", 64, 96, 4, 2, 2, 10});
		if (cases[i].type) writer_text(&w, "llama.rope.scaling.type", cases[i].type);
		if (cases[i].factor > 0) writer_f32(&w, "llama.rope.scaling.factor", (float)cases[i].factor);
		writer_f32(&w, "llama.rope.scale_linear", 8);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		load(&w, folder, path, &c, &err, STATUS_OK);
		assert_int_equal(c.rope.type, cases[i].expected);
		assert_true(c.rope.factor == cases[i].scale);
		files_remove(folder);
	}
}

/* What a file must state, and what stands for the base where it does not. */
static void test_absent_keys(void **state)
{
	(void)state;
	static const char *const needed[] = {"attention.layer_norm_rms_epsilon", "context_length"};
	const struct shape llama = {"llama", 64, 96, 4, 2, 2, 10}, gemma = {"gemma3", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	for (int i = 0; i < 2; i++) {
		metadata_but(&w, &llama, needed[i]);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		refused(&w, STATUS_BAD_INPUT, needed[i]);
	}
	metadata_but(&w, &gemma, "rope.freq_base");
	writer_u32(&w, "gemma3.attention.sliding_window", 4);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_true(c.rope.theta == 10000 && c.rope_local.theta == 10000);
	files_remove(folder);
}

/* One number of heads for each layer is one number, whatever else says how wide a head is. */
static void test_heads_by_layer(void **state)
{
	(void)state;
	static const char *const architectures[] = {"llama", "gemma2"};
	for (int n = 0; n < 8; n++) {
		const bool gemma = n & 1, width = n & 2, differ = n & 4;
		struct writer w = {0};
		struct model_config c;
		struct error err;
		char folder[256], path[512], name[80];
		metadata_but(&w, &(struct shape){architectures[gemma], 64, 96, 4, 2, 2, 10}, "attention.head_count");
		snprintf(name, sizeof name, "%s.attention.head_count", architectures[gemma]);
		writer_array(&w, name, GGUF_U32, 2);
		writer_put_uint(&w.fields, 4, 4);
		writer_put_uint(&w.fields, differ ? 8 : 4, 4);
		snprintf(name, sizeof name, "%s.rope.dimension_count", architectures[gemma]);
		if (width) writer_u32(&w, name, 16);
		if (gemma) writer_u32(&w, "gemma2.attention.sliding_window", 4);
		matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
		if (differ) {
			refused(&w, STATUS_UNSUPPORTED, "attention.head_count differs from layer to layer");
			continue;
		}
		load(&w, folder, path, &c, &err, STATUS_OK);
		assert_int_equal(c.q_heads, 4);
		assert_int_equal(c.head_dim, 16);
		files_remove(folder);
	}
}

static void test_rows(void **state)
{
	(void)state;
	const struct shape s = {"llama", 64, 96, 4, 2, 2, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	struct source *source;
	struct source_tensor t;
	struct source_scratch scratch = {0};
	char folder[256], path[512];
	unsigned char rows[64];
	for (int i = 0; i < 64; i++) rows[i] = (unsigned char)i; /* one byte of q in each row's first block */
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, 10, 64);
	size_t line = 2 * 34;
	unsigned char *q = calloc(64, line);
	for (int i = 0; i < 64; i++) q[(size_t)i * line + 2] = rows[i], q[(size_t)i * line + 36] = (unsigned char)(rows[i] + 100);
	writer_tensor(&w, "blk.1.attn_q.weight", 8, 64, 64, 64 * line, q);
	writer_tensor(&w, "blk.1.attn_k.weight", 8, 32, 64, 32 * line, q);
	writer_tensor(&w, "blk.1.attn_v.weight", 8, 32, 64, 32 * line, q);
	writer_tensor(&w, "blk.0.attn_norm.weight", 8, 0, 64, line, q);
	free(q);
	load(&w, folder, path, &c, &err, STATUS_OK);
	assert_int_equal(source_open_checkpoint(&source, path, NULL, &err), STATUS_OK);
	assert_true(source_has(source, "model.embed_tokens.weight"));
	assert_false(source_has(source, "lm_head.weight"));
	assert_false(source_has(source, "token_embd.weight"));

	/* heads of 16: rows 0, 2, 4, … first, then the odd ones */
	assert_int_equal(source_find(source, "model.layers.1.self_attn.q_proj.weight", 2, 64, 64, &t, &err), STATUS_OK);
	const void *data;
	size_t stride;
	for (int from = 0; from < 64; from += 5) {
		int n = 64 - from < 5 ? 64 - from : 5;
		assert_int_equal(source_read(source, &t, from, n, 32, 32, &scratch, &data, &stride, &err), STATUS_OK);
		for (int i = 0; i < n; i++) {
			int row = from + i, stored = row / 16 * 16 + (row % 8) * 2 + row % 16 / 8;
			assert_int_equal(((const unsigned char *)data)[(size_t)i * stride + 2], stored + 100);
		}
	}
	assert_int_equal(source_read(source, &t, 0, 1, 16, 32, &scratch, &data, &stride, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "cut through blocks of 32 (Q8_0)"));

	/* two heads of k */
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.1.self_attn.k_proj.weight", 2, 32, 64, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 7, 3, 0, 32, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(((const unsigned char *)data)[2 * stride + 2], 3); /* row 9 */

	/* v is stored as it is read */
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.1.self_attn.v_proj.weight", 2, 32, 64, &t, &err), STATUS_OK);
	assert_int_equal(source_read(source, &t, 3, 2, 0, 64, &scratch, &data, &stride, &err), STATUS_OK);
	assert_int_equal(((const unsigned char *)data)[2], 3);
	assert_int_equal(source_bytes_read(source), 64 * 34 + 3 * 34 + 2 * line);

	assert_int_equal(source_find(source, "model.layers.1.self_attn.v_proj.weight", 2, 64, 64, &t, &err), STATUS_BAD_INPUT);
	assert_non_null(strstr(err.text, "\"blk.1.attn_v.weight\": expected shape [64, 64], found [32, 64]"));
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.norm.weight", 1, 64, 1, &t, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "\"output_norm.weight\" (model.norm.weight) of shape [64] is missing")) fail_msg("%s", err.text);
	err = (struct error){0};
	assert_int_equal(source_find(source, "model.layers.0.input_layernorm.weight", 1, 64, 1, &t, &err), STATUS_UNSUPPORTED);
	assert_non_null(strstr(err.text, "Q8_0 is not implemented for a vector"));
	source_scratch_fini(&scratch);
	source_close(&source);
	files_remove(folder);
}

/* Degrees that would cut a block are refused by name; the summation tree is that of the dequantised model. */
static void test_degrees(void **state)
{
	(void)state;
	const struct shape s = {"llama", 256, 768, 8, 8, 1, 10};
	struct writer w = {0};
	struct model_config c;
	struct error err;
	char folder[256], path[512];
	metadata(&w, &s);
	matrix(&w, "token_embd.weight", 1, DTYPE_F16, s.vocab, s.hidden);
	matrix(&w, "blk.0.attn_output.weight", 8, DTYPE_Q8_0, s.hidden, s.hidden);
	size_t down = matrix(&w, "blk.0.ffn_down.weight", 14, DTYPE_Q6_K, s.hidden, s.inner);
	load(&w, folder, path, &c, &err, STATUS_OK);
	files_remove(folder);
	assert_int_equal(shard_degree(&c, 1, &err), STATUS_OK);
	assert_int_equal(shard_degree(&c, 2, &err), STATUS_BAD_INPUT);
	if (!strstr(err.text, "quantised down_proj: number of blocks across its inputs 3 is not a multiple of 2") || !strstr(err.text, "degrees that work: 1"))
		fail_msg("%s", err.text);
	assert_int_equal(shard_tree_leaves(&c), 8);
	struct plan_degree plan;
	plan_degree(&plan, &c, 1, &(struct plan_options){0});
	assert_true(plan.legal);
	assert_int_equal(plan.sharded_bytes, down + 256 * 8 * 34);
	assert_int_equal(plan.replicated_bytes, 10 * 256 * 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_config),
		cmocka_unit_test(test_gemma),
		cmocka_unit_test(test_long_metadata), cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_rope),
		cmocka_unit_test(test_rope_scaling_keys),
		cmocka_unit_test(test_scale_linear),
		cmocka_unit_test(test_absent_keys),
		cmocka_unit_test(test_heads_by_layer),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_degrees),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
