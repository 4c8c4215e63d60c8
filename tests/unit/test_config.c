/* config.json: every architecture in old and new key styles, every refusal by name, generation_config.json. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "model/config.h"
#include "unit/files.h"

static const char llama[] = "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":4,"
                            "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"vocab_size\":160,\"max_position_embeddings\":256,"
                            "\"rms_norm_eps\":1e-5,\"hidden_act\":\"silu\",\"torch_dtype\":\"bfloat16\",\"eos_token_id\":2,\"bos_token_id\":1}";

static const char hybrid[] =
	"{\"model_type\":\"qwen3_5\",\"text_config\":{\"model_type\":\"qwen3_5_text\",\"hidden_size\":5120,\"intermediate_size\":17408,"
	"\"num_hidden_layers\":8,\"num_attention_heads\":24,\"num_key_value_heads\":4,\"head_dim\":256,\"vocab_size\":248320,"
	"\"linear_num_key_heads\":16,\"linear_num_value_heads\":48,\"eos_token_id\":7,\"dtype\":\"bfloat16\","
	"\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"mrope_section\":[11,11,10],\"partial_rotary_factor\":0.25}},"
	"\"eos_token_id\":8,\"tie_word_embeddings\":false}";

static enum status parse(struct model_config *out, const char *base, const char *change, struct error *err)
{
	char *text = files_json(base, change);
	*err = (struct error){0};
	enum status st = model_config_parse(out, text, strlen(text), "config.json", NULL, err);
	free(text);
	return st;
}

static struct model_config good(const char *base, const char *change)
{
	struct model_config config;
	struct error err;
	if (parse(&config, base, change, &err) != STATUS_OK) fail_msg("%s: %s", change, err.text);
	return config;
}

/* The refusal has this code, is one line and names `needle`. */
static void bad(const char *base, const char *change, enum status code, const char *needle)
{
	struct model_config config;
	struct error err;
	enum status st = parse(&config, base, change, &err);
	if (st != code) fail_msg("%s: expected %s, got %s: %s", change, status_name(code), status_name(st), err.text);
	if (!strstr(err.text, needle)) fail_msg("%s: expected a message with \"%s\", got \"%s\"", change, needle, err.text);
	if (strchr(err.text, '\n')) fail_msg("%s: more than one line: %s", change, err.text);
	static const struct model_config zero;
	if (memcmp(&config, &zero, sizeof zero) != 0) fail_msg("%s: something is left in the config", change);
}

static void test_llama(void **state)
{
	(void)state;
	struct model_config c = good(llama, "{}");
	assert_string_equal(c.model_type, "llama");
	assert_int_equal(c.hidden_size, 64);
	assert_int_equal(c.intermediate_size, 128);
	assert_int_equal(c.layers, 4);
	assert_int_equal(c.q_heads, 8);
	assert_int_equal(c.kv_heads, 4);
	assert_int_equal(c.head_dim, 8);
	assert_int_equal(c.rotary_dim, 8);
	assert_int_equal(c.vocab_size, 160);
	assert_int_equal(c.max_position, 256);
	assert_true(c.rms_eps == 1e-5f);
	assert_false(c.qkv_bias || c.o_bias || c.mlp_bias || c.qk_norm || c.tied || c.attn_output_gate);
	assert_int_equal(c.dtype, DTYPE_BF16);
	assert_int_equal(c.rope.type, ROPE_DEFAULT);
	assert_true(c.rope.theta == 10000);
	assert_int_equal(c.sliding_window, 0);
	assert_int_equal(c.eos_count, 1);
	assert_int_equal(c.eos[0], 2);
	assert_int_equal(c.bos, 1);
	assert_string_equal(c.tensor_prefix, "model.");
	assert_string_equal(c.cannot_run, "");

	c = good(llama, "{\"rms_norm_eps\":\"remove!\",\"torch_dtype\":\"remove!\",\"max_position_embeddings\":\"remove!\",\"eos_token_id\":null,"
	                "\"bos_token_id\":null,\"hidden_act\":\"remove!\"}");
	assert_true(c.rms_eps == 1e-6f);
	assert_int_equal(c.dtype, DTYPE_F32);
	assert_int_equal(c.max_position, 2048);
	assert_int_equal(c.eos_count, 0);
	assert_int_equal(c.bos, -1);

	c = good(llama, "{\"attention_bias\":true}");
	assert_true(c.qkv_bias && c.o_bias && !c.mlp_bias);
	c = good(llama, "{\"mlp_bias\":true,\"tie_word_embeddings\":true}");
	assert_true(!c.qkv_bias && !c.o_bias && c.mlp_bias && c.tied);
}

static void test_families(void **state)
{
	(void)state;
	struct model_config c = good(llama, "{\"model_type\":\"qwen2\"}");
	assert_true(c.qkv_bias && !c.o_bias && !c.qk_norm);
	assert_int_equal(c.head_dim, 8);
	c = good(llama, "{\"model_type\":\"qwen3\"}");
	assert_true(!c.qkv_bias && !c.o_bias && c.qk_norm);
	assert_int_equal(c.head_dim, 128); /* the class default, not hidden / heads */
	c = good(llama, "{\"model_type\":\"qwen3\",\"attention_bias\":true,\"head_dim\":16}");
	assert_true(c.qkv_bias && c.o_bias);
	c = good(llama, "{\"model_type\":\"mistral\"}");
	assert_false(c.qkv_bias || c.qk_norm);
	assert_int_equal(c.max_position, 256);
}

/* B109, B111 */
static void test_head_dim(void **state)
{
	(void)state;
	assert_int_equal(good(llama, "{\"head_dim\":null}").head_dim, 8);
	assert_int_equal(good(llama, "{\"head_dim\":16}").head_dim, 16);
	assert_int_equal(good(llama, "{\"head_dim\":16}").rotary_dim, 16);
	assert_int_equal(good(llama, "{\"model_type\":\"qwen3\",\"head_dim\":null}").head_dim, 8);
	bad(llama, "{\"hidden_size\":66}", STATUS_BAD_INPUT, "hidden_size 66 is not a multiple of num_attention_heads 8");
	assert_int_equal(good(llama, "{\"hidden_size\":66,\"head_dim\":8}").head_dim, 8);
	bad(llama, "{\"head_dim\":7}", STATUS_BAD_INPUT, "head_dim");
	bad(llama, "{\"head_dim\":1024}", STATUS_BAD_INPUT, "head_dim");
}

static void test_kv_heads(void **state)
{
	(void)state;
	assert_int_equal(good(llama, "{\"num_key_value_heads\":\"remove!\"}").kv_heads, 8);
	assert_int_equal(good(llama, "{\"num_key_value_heads\":null}").kv_heads, 8);
	assert_int_equal(good(llama, "{\"num_key_value_heads\":1}").kv_heads, 1);
	assert_int_equal(good(llama, "{\"model_type\":\"mistral\",\"num_attention_heads\":16,\"num_key_value_heads\":\"remove!\"}").kv_heads, 8);
	assert_int_equal(good(llama, "{\"model_type\":\"mistral\",\"num_attention_heads\":16,\"num_key_value_heads\":null}").kv_heads, 16);
	bad(llama, "{\"num_key_value_heads\":3}", STATUS_BAD_INPUT, "num_attention_heads 8 is not a multiple of num_key_value_heads 3");
	bad(llama, "{\"num_key_value_heads\":16}", STATUS_BAD_INPUT, "num_key_value_heads 16");
}

static void test_old_and_new_keys_agree(void **state)
{
	(void)state;
	static const char *const pairs[][2] = {
		{"{\"rope_theta\":500000.0}", "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0}}"},
		{"{\"torch_dtype\":\"float16\"}", "{\"torch_dtype\":\"remove!\",\"dtype\":\"float16\"}"},
		{"{\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}",
	     "{\"rope_parameters\":{\"rope_type\":\"linear\",\"factor\":2.0,\"rope_theta\":500000}}"},
		{"{\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
	     "\"original_max_position_embeddings\":64}}",
	     "{\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
	     "\"original_max_position_embeddings\":64,\"rope_theta\":10000.0}}"},
		{"{\"rope_scaling\":null,\"rope_theta\":9.0}", "{\"rope_scaling\":{},\"rope_theta\":9.0}"},
	};
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		struct model_config old = good(llama, pairs[i][0]), new = good(llama, pairs[i][1]);
		assert_memory_equal(&old, &new, sizeof old);
	}
}

/* B107, B117 */
static void test_rope(void **state)
{
	(void)state;
	assert_true(good(llama, "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000}}").rope.theta == 1e6);
	assert_true(good(llama, "{\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000},\"rope_theta\":10000.0}").rope.theta == 1e6);
	assert_true(good(llama, "{\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_theta\":5000.0}").rope.theta == 5000);

	struct model_config c = good(llama, "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}}");
	assert_int_equal(c.rope.type, ROPE_DYNAMIC);
	assert_int_equal(c.rope.original_max_position, 256);
	assert_int_equal(c.max_position, 1024);
	c = good(llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.5}}");
	assert_int_equal(c.rope.type, ROPE_LINEAR);
	assert_int_equal(c.max_position, 640);
	c = good(llama, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":256}}");
	assert_int_equal(c.rope.type, ROPE_YARN);
	assert_int_equal(c.max_position, 1024);
	assert_true(c.rope.beta_fast == 32 && c.rope.beta_slow == 1 && c.rope.truncate && c.rope.attention_factor == 0);
	c = good(llama, "{\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null,\"original_max_position_embeddings\":64,\"beta_fast\":null,"
	                "\"attention_factor\":0.5,\"truncate\":false}}");
	assert_true(c.rope.factor == 4 && c.rope.attention_factor == 0.5 && !c.rope.truncate);
	assert_int_equal(c.max_position, 256);
	/* the outer pretrained length wins, as in HF */
	c = good(llama, "{\"original_max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":8.0}}");
	assert_int_equal(c.rope.original_max_position, 32);
	/* the type of the new key wins */
	assert_int_equal(good(llama, "{\"rope_scaling\":{\"type\":\"foo\",\"rope_type\":\"linear\",\"factor\":2.0}}").rope.type, ROPE_LINEAR);

	bad(llama, "{\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2.0}}", STATUS_UNSUPPORTED, "longrope");
	bad(llama, "{\"rope_scaling\":{\"type\":\"su\",\"factor\":2.0}}", STATUS_UNSUPPORTED, "\"su\"");
	bad(llama, "{\"rope_parameters\":{\"rope_type\":\"foo\",\"rope_theta\":2.0}}", STATUS_UNSUPPORTED, "foo");
	bad(llama, "{\"rope_scaling\":{\"factor\":2.0}}", STATUS_BAD_INPUT, "rope_scaling.rope_type");
	bad(llama, "{\"rope_scaling\":{\"type\":\"linear\"}}", STATUS_BAD_INPUT, "rope_scaling.factor");
	bad(llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", STATUS_BAD_INPUT, "rope_scaling.factor");
	bad(llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}", STATUS_BAD_INPUT, "rope_scaling.factor");
	bad(llama, "{\"rope_scaling\":{\"type\":3,\"factor\":2}}", STATUS_BAD_INPUT, "rope_scaling.type");
	bad(llama, "{\"rope_scaling\":5}", STATUS_BAD_INPUT, "rope_scaling");
	bad(llama, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,\"high_freq_factor\":4.0}}", STATUS_BAD_INPUT,
	    "high_freq_factor");
	bad(llama, "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8.0,\"high_freq_factor\":4.0}}", STATUS_BAD_INPUT, "low_freq_factor");
	bad(llama, "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", STATUS_UNSUPPORTED, "rope_parameters.full_attention");
	bad(llama, "{\"rope_theta\":0}", STATUS_BAD_INPUT, "rope_theta");
	bad(llama, "{\"rope_theta\":-1}", STATUS_BAD_INPUT, "rope_theta");
	bad(llama, "{\"partial_rotary_factor\":0.5}", STATUS_UNSUPPORTED, "partial_rotary_factor");
	bad(llama, "{\"head_dim\":2,\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0}}", STATUS_UNSUPPORTED, "dynamic");
}

static void test_windows(void **state)
{
	(void)state;
	struct model_config c = good(llama, "{\"model_type\":\"mistral\",\"sliding_window\":12}");
	assert_int_equal(c.sliding_window, 12);
	for (int i = 0; i < 4; i++) assert_int_equal(c.layer_kind[i], LAYER_SLIDING);
	c = good(llama, "{\"model_type\":\"mistral\",\"sliding_window\":null}");
	assert_int_equal(c.sliding_window, 0);
	assert_int_equal(c.layer_kind[0], LAYER_FULL);
	assert_int_equal(good(llama, "{\"model_type\":\"mistral\"}").sliding_window, 4096); /* class default */

	c = good(llama, "{\"model_type\":\"qwen2\",\"sliding_window\":12,\"use_sliding_window\":false,\"max_window_layers\":1}");
	assert_int_equal(c.sliding_window, 0);
	assert_int_equal(c.layer_kind[3], LAYER_FULL);
	c = good(llama, "{\"model_type\":\"qwen2\",\"sliding_window\":12,\"use_sliding_window\":true,\"max_window_layers\":1}");
	assert_int_equal(c.sliding_window, 12);
	assert_int_equal(c.layer_kind[0], LAYER_FULL);
	assert_int_equal(c.layer_kind[1], LAYER_SLIDING);
	c = good(llama, "{\"model_type\":\"qwen3\",\"sliding_window\":12,\"use_sliding_window\":true,"
	                "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\",\"sliding_attention\"]}");
	assert_int_equal(c.layer_kind[0], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[1], LAYER_FULL);
	/* Qwen3-MoE has no max_window_layers: all layers, or none. */
#define MOE "\"model_type\":\"qwen3_moe\",\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"sliding_window\":12,\"use_sliding_window\":"
	static const char *const slides[] = {"{" MOE "true}", "{" MOE "true,\"max_window_layers\":3}",
	                                     "{" MOE "true,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]}"};
	for (int n = 0; n < 3; n++) {
		c = good(llama, slides[n]);
		assert_int_equal(c.sliding_window, 12);
		for (int i = 0; i < 4; i++) assert_int_equal(c.layer_kind[i], LAYER_SLIDING);
	}
	c = good(llama, "{" MOE "false,\"max_window_layers\":0,\"layer_types\":[\"full_attention\",\"full_attention\",\"full_attention\",\"full_attention\"]}");
	assert_int_equal(c.sliding_window, 0);
	assert_int_equal(c.layer_kind[3], LAYER_FULL);
	assert_int_equal(good(llama, "{" MOE "null}").sliding_window, 0); /* the class default of the switch */
	bad(llama, "{" MOE "true,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\"]}", STATUS_UNSUPPORTED,
	    "layer_types[2]");
#undef MOE
	assert_int_equal(good(llama, "{\"sliding_window\":12}").sliding_window, 0); /* Llama has none, whatever the file says */

	bad(llama, "{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\"]}", STATUS_BAD_INPUT, "layer_types");
	bad(llama, "{\"model_type\":\"qwen3\",\"layer_types\":[1,2,3,4]}", STATUS_BAD_INPUT, "layer_types");
	bad(llama, "{\"model_type\":\"qwen3\",\"layer_types\":\"full_attention\"}", STATUS_BAD_INPUT, "layer_types");
	bad(llama, "{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}",
	    STATUS_BAD_INPUT, "layer_types[2]");
	bad(llama, "{\"model_type\":\"qwen3\",\"layer_types\":[\"full_attention\",\"chunked_attention\",\"full_attention\",\"full_attention\"]}",
	    STATUS_UNSUPPORTED, "chunked_attention");
	bad(llama, "{\"layer_types\":[\"full_attention\",\"linear_attention\",\"full_attention\",\"full_attention\"]}", STATUS_UNSUPPORTED,
	    "linear_attention");
	bad(llama, "{\"model_type\":\"mistral\",\"sliding_window\":12,\"layer_types\":[\"sliding_attention\",\"full_attention\","
	           "\"sliding_attention\",\"full_attention\"]}", STATUS_UNSUPPORTED, "layer_types[1]");
}

/* Each size refuses everything that is not a sensible integer, and says which key. */
static void test_every_number_is_checked(void **state)
{
	(void)state;
	static const struct {
		const char *key, *model_type;
		bool required, zero_is_fine;
	} keys[] = {
		{"hidden_size", "llama", true, false},        {"intermediate_size", "llama", true, false},
		{"num_hidden_layers", "llama", true, false},  {"num_attention_heads", "llama", true, false},
		{"vocab_size", "llama", true, false},         {"num_key_value_heads", "llama", false, false},
		{"head_dim", "llama", false, false},          {"max_position_embeddings", "llama", false, false},
		{"sliding_window", "mistral", false, false},  {"max_window_layers", "qwen2", false, true},
		{"sliding_window", "qwen3", false, false},
	};
	static const char *const values[] = {"0",      "-1",      "4611686018427387904", "9223372036854775807", "1.5", "64.0",
	                                     "1e300",  "\"64\"",  "true",                "[]",                  "{}",  "[64]"};
	for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
		for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
			if (keys[k].zero_is_fine && v == 0) continue;
			char change[160];
			snprintf(change, sizeof change, "{\"model_type\":\"%s\",\"%s\":%s}", keys[k].model_type, keys[k].key, values[v]);
			bad(llama, change, STATUS_BAD_INPUT, keys[k].key);
		}
		char change[160];
		if (!keys[k].required) continue;
		snprintf(change, sizeof change, "{\"%s\":\"remove!\"}", keys[k].key);
		bad(llama, change, STATUS_BAD_INPUT, keys[k].key);
		snprintf(change, sizeof change, "{\"%s\":null}", keys[k].key);
		bad(llama, change, STATUS_BAD_INPUT, keys[k].key);
	}
	static const char *const eps[] = {"0", "-1e-5", "2", "\"1e-5\"", "true"};
	for (size_t v = 0; v < sizeof eps / sizeof *eps; v++) {
		char change[80];
		snprintf(change, sizeof change, "{\"rms_norm_eps\":%s}", eps[v]);
		bad(llama, change, STATUS_BAD_INPUT, "rms_norm_eps");
	}
	bad(llama, "{\"num_hidden_layers\":1025}", STATUS_BAD_INPUT, "num_hidden_layers: expected an integer from 1 to 1024, found 1025");
	/* as transformers has it: 2.0 is none */
	bad(llama, "{\"num_hidden_layers\":2.0}", STATUS_BAD_INPUT, "num_hidden_layers: expected an integer from 1 to 1024, found 2.0");
	bad(llama, "{\"num_hidden_layers\":2.5}", STATUS_BAD_INPUT, "found 2.5");
	bad(llama, "{\"num_hidden_layers\":1e300}", STATUS_BAD_INPUT, "found 1");
	bad(llama, "{\"attention_bias\":1}", STATUS_BAD_INPUT, "attention_bias");
	bad(llama, "{\"tie_word_embeddings\":\"true\"}", STATUS_BAD_INPUT, "tie_word_embeddings");
	bad(llama, "{\"hidden_act\":1}", STATUS_BAD_INPUT, "hidden_act");
	bad(llama, "{\"model_type\":7}", STATUS_BAD_INPUT, "model_type");
	/* the largest that passes: sizes at their bounds make no product overflow */
	(void)good(llama, "{\"hidden_size\":1048576,\"intermediate_size\":16777216,\"num_hidden_layers\":1024,\"vocab_size\":16777216,"
	                  "\"num_attention_heads\":16384,\"num_key_value_heads\":16384,\"head_dim\":512}");
}

static void test_refused_by_name(void **state)
{
	(void)state;
	bad(llama, "{\"model_type\":\"mixtral\"}", STATUS_UNSUPPORTED, "\"mixtral\" is not implemented; models that run: llama, mistral, qwen2, qwen3");
	bad(llama, "{\"model_type\":\"gemma4_text\"}", STATUS_UNSUPPORTED, "gemma4_text");
	bad(llama, "{\"model_type\":\"two\\nlines\"}", STATUS_UNSUPPORTED, "two?lines");
	bad(llama, "{\"model_type\":\"remove!\"}", STATUS_BAD_INPUT, "model_type");
	bad(llama, "{\"hidden_act\":\"gelu_pytorch_tanh\"}", STATUS_UNSUPPORTED, "gelu_pytorch_tanh");
	bad(llama, "{\"torch_dtype\":\"float8_e4m3fn\"}", STATUS_UNSUPPORTED, "float8_e4m3fn");
	bad(llama, "{\"dtype\":8}", STATUS_BAD_INPUT, "dtype");
	bad(llama, "{\"num_experts\":8}", STATUS_UNSUPPORTED, "num_experts");
	bad(llama, "{\"num_local_experts\":8}", STATUS_UNSUPPORTED, "num_local_experts");
	bad(llama, "{\"final_logit_softcapping\":30.0}", STATUS_UNSUPPORTED, "final_logit_softcapping");
	bad(llama, "{\"model_type\":\"mistral\",\"attention_bias\":true}", STATUS_UNSUPPORTED, "attention_bias");
	bad(llama, "{\"model_type\":\"qwen2\",\"mlp_bias\":true}", STATUS_UNSUPPORTED, "mlp_bias");

	struct model_config c = good(llama, "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}");
	assert_non_null(strstr(c.cannot_run, "quantization_config (gptq)"));
	assert_non_null(strstr(good(llama, "{\"quantization_config\":{}}").cannot_run, "quantization_config"));
	/* cut names stay UTF-8 */
	c = good(llama, "{\"quantization_config\":{\"quant_method\":\"123456789012345678901234567890123456\xe2\x82\xac\xe2\x82\xac\"}}");
	assert_non_null(strstr(c.cannot_run, "(123456789012345678901234567890123456\xe2\x82\xac)"));
	c = good(llama, "{\"quantization_config\":{\"quant_method\":\"1234567890123456789012345678901234567\xe2\x82\xac\"}}");
	assert_non_null(strstr(c.cannot_run, "(1234567890123456789012345678901234567)"));
	assert_string_equal(good(llama, "{\"quantization_config\":null}").cannot_run, "");
	/* at the outer level of a nested config too */
	assert_non_null(strstr(good("{\"model_type\":\"llava\"}", "{\"quantization_config\":{\"quant_method\":\"fp8\"},\"text_config\":"
	                            "{\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":2,"
	                            "\"num_attention_heads\":8,\"vocab_size\":160}}").cannot_run, "fp8"));
}

static void test_not_a_config(void **state)
{
	(void)state;
	static const char *const texts[] = {"", "{", "[]", "null", "\"x\"", "{\"model_type\":\"llama\",}", "{} {}", "{\"a\":1,\"a\":2}",
	                                    "{\"model_type\":\"llama\",\"model\\u005ftype\":\"qwen2\"}", "{\"hidden_size\":99999999999999999999}",
	                                    "{\"rms_norm_eps\":NaN}", "{\"rms_norm_eps\":1e999}", "{\"x\":\"\xff\"}", "\xef\xbb\xbf{}"};
	struct model_config config;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct error err = {0};
		if (model_config_parse(&config, texts[i], strlen(texts[i]), "config.json", NULL, &err) != STATUS_BAD_INPUT) fail_msg("accepted: %s", texts[i]);
		assert_non_null(strstr(err.text, "config.json"));
		assert_null(strchr(err.text, '\n'));
	}
	char deep[20001];
	memset(deep, '[', 20000);
	deep[20000] = 0;
	struct error err = {0};
	assert_int_equal(model_config_parse(&config, deep, 20000, "config.json", NULL, &err), STATUS_BAD_INPUT);
}

static void test_eos(void **state)
{
	(void)state;
	struct model_config c = good(llama, "{\"eos_token_id\":[128001,128008,128009,128001]}");
	assert_int_equal(c.eos_count, 3);
	assert_int_equal(c.eos[2], 128009);
	assert_int_equal(good(llama, "{\"eos_token_id\":[]}").eos_count, 0);
	bad(llama, "{\"eos_token_id\":-1}", STATUS_BAD_INPUT, "eos_token_id");
	bad(llama, "{\"eos_token_id\":\"2\"}", STATUS_BAD_INPUT, "eos_token_id");
	bad(llama, "{\"eos_token_id\":[1,2.5]}", STATUS_BAD_INPUT, "eos_token_id");
	bad(llama, "{\"eos_token_id\":4611686018427387904}", STATUS_BAD_INPUT, "eos_token_id");
	bad(llama, "{\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", STATUS_UNSUPPORTED, "eos_token_id");
	bad(llama, "{\"bos_token_id\":-3}", STATUS_BAD_INPUT, "bos_token_id");
}

static void test_hybrid_and_experts(void **state)
{
	(void)state;
	struct model_config c = good(hybrid, "{}");
	assert_string_equal(c.model_type, "qwen3_5");
	assert_string_equal(c.tensor_prefix, "model.language_model.");
	assert_string_equal(c.cannot_run, "");
	assert_true(c.attn_output_gate && c.qk_norm);
	assert_int_equal(c.rotary_dim, 64);
	assert_true(c.rope.theta == 1e7);
	assert_int_equal(c.gdn.k_heads, 16);
	assert_int_equal(c.gdn.v_heads, 48);
	assert_int_equal(c.gdn.k_dim, 128);
	assert_int_equal(c.gdn.conv_kernel, 4);
	assert_int_equal(c.layer_kind[2], LAYER_GDN);
	assert_int_equal(c.layer_kind[3], LAYER_FULL);
	assert_int_equal(c.layer_kind[7], LAYER_FULL);
	assert_int_equal(c.eos_count, 2); /* both levels */

	c = good(llama, "{\"model_type\":\"qwen3_next\",\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"num_experts\":16,"
	                "\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":32,\"num_experts_per_tok\":4}");
	assert_string_equal(c.cannot_run, "");
	assert_int_equal(c.moe.layers, 4);
	assert_true(c.moe.norm_topk && c.moe.sparse[0] && c.moe.sparse[3]);
	assert_true(c.gdn.by_k_head);
	assert_int_equal(c.head_dim, 256);

	c = good(llama, "{\"model_type\":\"qwen3_moe\",\"num_experts\":16,\"moe_intermediate_size\":32,\"mlp_only_layers\":[0],\"decoder_sparse_step\":2}");
	assert_int_equal(c.moe.layers, 2); /* layers 1 and 3; 0 would not be sparse anyway */
	assert_true(!c.moe.sparse[0] && c.moe.sparse[1] && !c.moe.sparse[2] && c.moe.sparse[3] && !c.moe.norm_topk);
	assert_int_equal(c.moe.experts_per_token, 8);
	c = good(llama, "{\"model_type\":\"qwen3_moe\",\"num_local_experts\":16,\"moe_intermediate_size\":32,\"mlp_only_layers\":[1],\"norm_topk_prob\":true}");
	assert_int_equal(c.moe.experts, 16);
	assert_true(c.moe.sparse[0] && !c.moe.sparse[1] && c.moe.sparse[2] && c.moe.norm_topk);
	bad(llama, "{\"model_type\":\"qwen3_moe\",\"num_experts\":4,\"moe_intermediate_size\":32}", STATUS_BAD_INPUT, "num_experts_per_tok");
	c = good(llama, "{\"model_type\":\"qwen3_moe\",\"num_experts\":99,\"moe_intermediate_size\":32,\"num_experts_per_tok\":65}");
	assert_non_null(strstr(c.cannot_run, "up to 64"));
	bad(llama, "{\"model_type\":\"qwen3_moe\"}", STATUS_BAD_INPUT, "num_experts");
	bad(llama, "{\"model_type\":\"qwen3_moe\",\"num_experts\":16,\"moe_intermediate_size\":32,\"mlp_only_layers\":[9]}", STATUS_BAD_INPUT,
	    "mlp_only_layers");
	bad(llama, "{\"model_type\":\"qwen3_next\"}", STATUS_BAD_INPUT, "linear_num_key_heads");
	bad(llama, "{\"model_type\":\"qwen3_5_text\",\"linear_num_key_heads\":3,\"linear_num_value_heads\":4}", STATUS_BAD_INPUT, "not a multiple");
}

/* As published: what the classes have as defaults is left out. */
static const char gemma[] = "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,"
                            "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},"
                            "\"torch_dtype\":\"bfloat16\",\"vision_config\":{\"model_type\":\"siglip_vision_model\"}}";
#define TEXT(body) "{\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":64,\"intermediate_size\":64,\"num_hidden_layers\":4," body "}}"

static void test_gemma(void **state)
{
	(void)state;
	struct model_config c = good(gemma, "{}");
	assert_string_equal(c.model_type, "gemma3");
	assert_string_equal(c.cannot_run, "");
	assert_true(c.four_norms && c.gelu && c.scaled_embedding && c.centred_norms && c.qk_norm && c.tied && c.two_ropes);
	assert_int_equal(c.q_heads, 8);
	assert_int_equal(c.kv_heads, 4);
	assert_int_equal(c.head_dim, 256);
	assert_int_equal(c.vocab_size, 262208);
	assert_int_equal(c.max_position, 131072); /* linear scaling counted in */
	assert_true(c.query_scale == 1.0f / 16);
	assert_true(c.rope.type == ROPE_LINEAR && c.rope.factor == 8 && c.rope.theta == 1e6);
	assert_true(c.rope_local.type == ROPE_DEFAULT && c.rope_local.theta == 1e4);
	for (int i = 0; i < 34; i++) assert_int_equal(c.layer_kind[i], (i + 1) % 6 ? LAYER_SLIDING : LAYER_FULL);
	assert_int_equal(c.sliding_window, 1024);
	assert_true(c.final_softcap == 0 && c.attn_softcap == 0);
	c = good(gemma, TEXT("\"query_pre_attn_scalar\":168,\"sliding_window_pattern\":2,\"rope_theta\":5,\"rope_local_base_freq\":7,\"final_logit_softcapping\":30"));
	assert_true(c.query_scale == (float)(1 / sqrt(168)) && c.rope.theta == 5 && c.rope_local.theta == 7 && c.final_softcap == 30);
	assert_int_equal(c.layer_kind[1], LAYER_FULL);
	c = good(gemma, TEXT("\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":2,\"rope_theta\":9},"
	                     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":11}}"));
	assert_true(c.rope.theta == 9 && c.rope.factor == 2 && c.rope_local.theta == 11 && c.rope_local.type == ROPE_DEFAULT);
	c = good(llama, "{\"model_type\":\"gemma2\",\"hidden_act\":\"remove!\"}");
	assert_true(c.attn_softcap == 50 && c.final_softcap == 30 && !c.qk_norm && !c.two_ropes && c.rope.theta == 1e4);
	assert_int_equal(c.layer_kind[0], LAYER_SLIDING);
	assert_int_equal(c.layer_kind[1], LAYER_FULL);
	c = good(llama, "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null}");
	assert_true(c.attn_softcap == 0 && c.final_softcap == 30);
	c = good(llama, "{}");
	assert_true(c.query_scale == 1.0f / sqrtf(8) && !c.four_norms);
	bad(gemma, TEXT("\"attn_logit_softcapping\":50"), STATUS_UNSUPPORTED, "attn_logit_softcapping");
	bad(gemma, TEXT("\"hidden_activation\":\"gelu\""), STATUS_UNSUPPORTED, "hidden_activation \"gelu\"");
	bad(gemma, TEXT("\"use_bidirectional_attention\":true"), STATUS_UNSUPPORTED, "use_bidirectional_attention");
	bad(gemma, TEXT("\"sliding_window\":null"), STATUS_BAD_INPUT, "sliding_window");
	bad(gemma, TEXT("\"rope_parameters\":{\"rope_type\":\"default\"}"), STATUS_BAD_INPUT, "rope_parameters");
	bad(gemma, TEXT("\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"dynamic\",\"factor\":2}}"), STATUS_UNSUPPORTED, "rope_type");
	bad(gemma, TEXT("\"rope_parameters\":{\"full_attention\":{}},\"rope_scaling\":{}"), STATUS_BAD_INPUT, "rope_scaling");
	bad(gemma, TEXT("\"final_logit_softcapping\":-1"), STATUS_BAD_INPUT, "final_logit_softcapping");
	bad(gemma, TEXT("\"query_pre_attn_scalar\":0"), STATUS_BAD_INPUT, "query_pre_attn_scalar");
}

static void test_nested(void **state)
{
	(void)state;
	char wrapped[1024];
	snprintf(wrapped, sizeof wrapped, "{\"model_type\":\"llava\",\"hidden_size\":1,\"tie_word_embeddings\":true,\"text_config\":%s}", llama);
	struct model_config c = good(wrapped, "{}");
	assert_string_equal(c.model_type, "llava");
	assert_int_equal(c.hidden_size, 64);
	assert_true(c.tied);
	assert_int_equal(c.dtype, DTYPE_BF16);
	c = good(wrapped, "{\"torch_dtype\":\"float16\"}");
	assert_int_equal(c.dtype, DTYPE_BF16); /* the inner one is the language model's */
	assert_false(good(wrapped, "{\"tie_word_embeddings\":\"remove!\"}").tied);
	bad(wrapped, "{\"text_config\":3}", STATUS_BAD_INPUT, "text_config");
	bad(wrapped, "{\"text_config\":{\"model_type\":\"gpt2\"}}", STATUS_UNSUPPORTED, "gpt2");
	bad(wrapped, "{\"text_config\":{\"model_type\":\"llama\",\"hidden_size\":-5}}", STATUS_BAD_INPUT, "text_config.hidden_size");
	bad(wrapped, "{\"text_config\":{}}", STATUS_UNSUPPORTED, "llava");
}

/* B115 */
static void test_generation_config(void **state)
{
	(void)state;
	char folder[256], path[512];
	struct model_config c;
	struct generation_defaults d;
	struct error err = {0};
	files_make(folder);
	assert_int_equal(model_config_load(&c, folder, NULL, &err), STATUS_IO);
	files_write(path, folder, "config.json", llama, strlen(llama));
	err = (struct error){0};
	assert_int_equal(model_config_load(&c, folder, NULL, &err), STATUS_OK);
	assert_int_equal(c.eos_count, 1);
	assert_int_equal(generation_defaults_load(&d, &c, folder, &err), STATUS_OK);
	assert_true(isnan(d.temperature) && isnan(d.top_p) && isnan(d.repetition_penalty) && d.top_k == -1 && !d.do_sample);

	static const char generation[] = "{\"eos_token_id\":[2,128001,128009],\"do_sample\":true,\"temperature\":0.6,\"top_p\":0.9,\"top_k\":20,"
									 "\"repetition_penalty\":1.05}";
	files_write(path, folder, "generation_config.json", generation, strlen(generation));
	assert_int_equal(model_config_load(&c, folder, NULL, &err), STATUS_OK);
	assert_int_equal(c.eos_count, 3);
	assert_int_equal(c.eos[2], 128009);
	snprintf(path, sizeof path, "%s/config.json", folder);
	assert_int_equal(model_config_load(&c, path, NULL, &err), STATUS_OK); /* by file */
	assert_int_equal(c.eos_count, 3);
	assert_int_equal(generation_defaults_load(&d, &c, folder, &err), STATUS_OK);
	assert_int_equal(c.eos_count, 3); /* a union */
	assert_true(d.do_sample && d.temperature == 0.6 && d.top_p == 0.9 && d.top_k == 20 && d.repetition_penalty == 1.05);

	static const char *const wrong[][2] = {{"{\"temperature\":-1}", "temperature"}, {"{\"top_p\":1.5}", "top_p"},
	                                       {"{\"top_k\":1.5}", "top_k"},            {"{\"do_sample\":1}", "do_sample"},
	                                       {"{\"eos_token_id\":\"x\"}", "eos_token_id"}, {"{", "JSON"}};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		files_write(path, folder, "generation_config.json", wrong[i][0], strlen(wrong[i][0]));
		err = (struct error){0};
		assert_int_equal(model_config_load(&c, folder, NULL, &err), STATUS_BAD_INPUT);
		if (!strstr(err.text, wrong[i][1])) fail_msg("%s: %s", wrong[i][0], err.text);
	}
	files_remove(folder);
}

static void count_warning(void *context, enum log_level level, const char *line)
{
	(void)line;
	if (level == LOG_WARN) ++*(int *)context;
}

static void test_warnings(void **state)
{
	(void)state;
	int warnings = 0;
	struct log log = {.write = count_warning, .context = &warnings};
	struct model_config c;
	struct error err = {0};
	char *text = files_json(llama, "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":0.5}}");
	assert_int_equal(model_config_parse(&c, text, strlen(text), "config.json", &log, &err), STATUS_OK);
	assert_int_equal(warnings, 1);
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_llama),
		cmocka_unit_test(test_families),
		cmocka_unit_test(test_head_dim),
		cmocka_unit_test(test_kv_heads),
		cmocka_unit_test(test_old_and_new_keys_agree),
		cmocka_unit_test(test_rope),
		cmocka_unit_test(test_windows),
		cmocka_unit_test(test_every_number_is_checked),
		cmocka_unit_test(test_refused_by_name),
		cmocka_unit_test(test_not_a_config),
		cmocka_unit_test(test_eos),
		cmocka_unit_test(test_hybrid_and_experts),
		cmocka_unit_test(test_gemma),
		cmocka_unit_test(test_nested),
		cmocka_unit_test(test_generation_config),
		cmocka_unit_test(test_warnings),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
