/* What the metadata and the tensors of a GGUF file say about the model. See gguf.h.
 *
 * The config is read by way of the config.json that it amounts to, so that every bound, default and refusal of config.c holds here too;
 * messages then name the keys of config.json. Frequency factors of rope (Llama 3.1) come as a tensor of their own.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/fields.h"
#include "model/gguf.h"

/* ---- names ---- */

static const struct architecture {
	const char *name;       /* general.architecture */
	const char *model_type; /* of config.json */
	bool interleaved;       /* q and k rows, see gguf.h */
	int gemma;              /* layers of the size whose scores are scaled by the mean width of its heads, which no key says; 0: no Gemma */
} architectures[] = {
	{"llama", "llama", true, 0}, /* Mistral too */
	{"qwen2", "qwen2", false, 0},
	{"qwen3", "qwen3", false, 0},
	{"gemma2", "gemma2", false, 46},
	{"gemma3", "gemma3_text", false, 62},
};
#define ARCHITECTURES (sizeof architectures / sizeof *architectures)

static const struct architecture *find_architecture(const struct gguf *file)
{
	struct gguf_text name = {0};
	struct error ignored = {0};
	if (gguf_string(file, "general.architecture", &name, &ignored) != STATUS_OK || !name.data) return NULL;
	for (size_t i = 0; i < ARCHITECTURES; i++)
		if (gguf_text_is(name, architectures[i].name)) return &architectures[i];
	return NULL;
}

/* The one table of names, for all architectures. Those of layers follow "blk.<i>." and "model.layers.<i>.". */
static const struct name {
	const char *gguf, *checkpoint;
	bool in_layer;
	enum weight_role role;
	enum gguf_order order;
	enum { ANY, TWO_NORMS, FOUR_NORMS } where; /* by the norms that a layer has */
} names[] = {
	{"token_embd.weight", "model.embed_tokens.weight", false, WEIGHT_EMBED, GGUF_PLAIN, ANY},
	{"output_norm.weight", "model.norm.weight", false, WEIGHT_FINAL_NORM, GGUF_PLAIN, ANY},
	{"output.weight", "lm_head.weight", false, WEIGHT_LM_HEAD, GGUF_PLAIN, ANY},
	{"attn_norm.weight", "input_layernorm.weight", true, WEIGHT_INPUT_NORM, GGUF_PLAIN, ANY},
	{"ffn_norm.weight", "post_attention_layernorm.weight", true, WEIGHT_POST_NORM, GGUF_PLAIN, TWO_NORMS},
	{"ffn_norm.weight", "pre_feedforward_layernorm.weight", true, WEIGHT_POST_NORM, GGUF_PLAIN, FOUR_NORMS},
	{"post_attention_norm.weight", "post_attention_layernorm.weight", true, WEIGHT_MIXED_NORM, GGUF_PLAIN, FOUR_NORMS},
	{"post_ffw_norm.weight", "post_feedforward_layernorm.weight", true, WEIGHT_MLP_NORM, GGUF_PLAIN, FOUR_NORMS},
	{"attn_q.weight", "self_attn.q_proj.weight", true, WEIGHT_Q, GGUF_Q_HEADS, ANY},
	{"attn_k.weight", "self_attn.k_proj.weight", true, WEIGHT_K, GGUF_KV_HEADS, ANY},
	{"attn_v.weight", "self_attn.v_proj.weight", true, WEIGHT_V, GGUF_PLAIN, ANY},
	{"attn_output.weight", "self_attn.o_proj.weight", true, WEIGHT_O, GGUF_PLAIN, ANY},
	{"attn_q.bias", "self_attn.q_proj.bias", true, WEIGHT_Q_BIAS, GGUF_Q_HEADS, ANY},
	{"attn_k.bias", "self_attn.k_proj.bias", true, WEIGHT_K_BIAS, GGUF_KV_HEADS, ANY},
	{"attn_v.bias", "self_attn.v_proj.bias", true, WEIGHT_V_BIAS, GGUF_PLAIN, ANY},
	{"attn_output.bias", "self_attn.o_proj.bias", true, WEIGHT_O_BIAS, GGUF_PLAIN, ANY},
	{"attn_q_norm.weight", "self_attn.q_norm.weight", true, WEIGHT_Q_NORM, GGUF_PLAIN, ANY},
	{"attn_k_norm.weight", "self_attn.k_norm.weight", true, WEIGHT_K_NORM, GGUF_PLAIN, ANY},
	{"ffn_gate.weight", "mlp.gate_proj.weight", true, WEIGHT_GATE, GGUF_PLAIN, ANY},
	{"ffn_up.weight", "mlp.up_proj.weight", true, WEIGHT_UP, GGUF_PLAIN, ANY},
	{"ffn_down.weight", "mlp.down_proj.weight", true, WEIGHT_DOWN, GGUF_PLAIN, ANY},
	{"ffn_gate.bias", "mlp.gate_proj.bias", true, WEIGHT_GATE_BIAS, GGUF_PLAIN, ANY},
	{"ffn_up.bias", "mlp.up_proj.bias", true, WEIGHT_UP_BIAS, GGUF_PLAIN, ANY},
	{"ffn_down.bias", "mlp.down_proj.bias", true, WEIGHT_DOWN_BIAS, GGUF_PLAIN, ANY},
};
#define NAMES (sizeof names / sizeof *names)
_Static_assert(NAMES == WEIGHT_DENSE_ROLES + 1, "each role of a dense model has one name, the norm before the MLP two");

/* "<prefix><number>.<rest>": the rest, or NULL. */
static const char *after_layer(const char *name, const char *prefix, int *layer)
{
	size_t n = strlen(prefix);
	char *end;
	if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9') return NULL;
	long number = strtol(name + n, &end, 10);
	if (*end != '.' || number >= MODEL_MAX_LAYERS) return NULL;
	*layer = (int)number;
	return end + 1;
}

bool gguf_name_of(const struct gguf *file, const char *name, char *out, size_t size, enum gguf_order *order)
{
	int layer = -1, n;
	const char *rest = after_layer(name, "model.layers.", &layer);
	const struct architecture *a = find_architecture(file);
	for (size_t i = 0; i < NAMES; i++) {
		if (names[i].in_layer != (rest != NULL) || strcmp(names[i].checkpoint, rest ? rest : name) != 0) continue;
		if (names[i].where != ANY && (names[i].where == FOUR_NORMS) != (a && a->gemma)) continue;
		*order = names[i].order;
		n = rest ? snprintf(out, size, "blk.%d.%s", layer, names[i].gguf) : snprintf(out, size, "%s", names[i].gguf);
		return n > 0 && (size_t)n < size;
	}
	return false;
}

/* The role of a tensor of the file; false for one that the engine has no use for. */
static bool role_of(const char *name, enum weight_role *role)
{
	int layer;
	const char *rest = after_layer(name, "blk.", &layer);
	for (size_t i = 0; i < NAMES; i++) {
		if (names[i].in_layer != (rest != NULL) || strcmp(names[i].gguf, rest ? rest : name) != 0) continue;
		*role = names[i].role;
		return true;
	}
	return false;
}

/* ---- config ---- */

struct reader {
	const struct gguf *file;
	const struct architecture *architecture;
	json_t *json; /* the config.json in the making */
	struct error *err;
};

bool gguf_interleaves(const struct gguf *file)
{
	const struct architecture *a = find_architecture(file);
	return a && a->interleaved;
}

static enum status need_architecture(struct reader *r)
{
	struct gguf_text name = {0};
	TRY(gguf_string(r->file, "general.architecture", &name, r->err));
	if (!name.data) return FAIL(r->err, BAD_INPUT, "%s: general.architecture is missing; this is no model", r->file->path);
	r->architecture = find_architecture(r->file);
	if (r->architecture) return STATUS_OK;
	char known[100] = "", text[64];
	for (size_t i = 0, n = 0; i < ARCHITECTURES; i++)
		n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", architectures[i].name);
	snprintf(text, sizeof text, "%.*s", (int)(name.size < 60 ? name.size : 60), name.data);
	return FAIL(r->err, UNSUPPORTED, "%s: general.architecture \"%s\" is not implemented; %s are", r->file->path, fields_one_line(text), known);
}

/* "<architecture>.<key>" */
static const char *key_of(const struct reader *r, const char *key, char out[80])
{
	snprintf(out, 80, "%s.%s", r->architecture->name, key);
	return out;
}

static bool has(const struct reader *r, const char *key)
{
	char full[80];
	return gguf_find(r->file, key_of(r, key, full)) != NULL;
}

static enum status put(struct reader *r, const char *key, json_t *value)
{
	if (value && json_object_set_new(r->json, key, value) == 0) return STATUS_OK;
	return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
}

/* An array of one number per layer is taken if all are equal. */
static enum status read_int(struct reader *r, const char *key, int64_t lo, int64_t hi, int64_t *value)
{
	char full[80];
	const struct gguf_field *field = gguf_find(r->file, key_of(r, key, full));
	bool listed = field && field->type == GGUF_ARRAY && field->count && (field->item == GGUF_I32 || field->item == GGUF_U32);
	if (!listed) return gguf_int(r->file, full, lo, hi, value, r->err);
	int64_t first = gguf_item_int(field, 0);
	for (uint64_t i = 1; i < field->count; i++)
		if (gguf_item_int(field, i) != first)
			return FAIL(r->err, UNSUPPORTED, "%s: %s differs from layer to layer; such models are not implemented", r->file->path, full);
	if (first < lo || first > hi)
		return FAIL(r->err, BAD_INPUT, "%s: %s: expected %" PRId64 " to %" PRId64 ", found %" PRId64 "; the file is damaged", r->file->path, full, lo, hi, first);
	*value = first;
	return STATUS_OK;
}

/* Integers go over as they are: config.c knows the bounds. */
static enum status copy_int(struct reader *r, const char *key, const char *to)
{
	int64_t value = 0;
	if (!has(r, key)) return STATUS_OK;
	TRY(read_int(r, key, INT64_MIN, INT64_MAX, &value));
	return put(r, to, json_integer(value));
}

static enum status copy_number(struct reader *r, const char *key, json_t *object, const char *to)
{
	char full[80];
	double value = 0;
	if (!gguf_find(r->file, key_of(r, key, full))) return STATUS_OK;
	TRY(gguf_number(r->file, full, &value, r->err));
	if (json_object_set_new(object, to, json_real(value)) == 0) return STATUS_OK;
	return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
}

/* What config.json would have a default for, and files of this kind always state. */
static enum status need(const struct reader *r, const char *key)
{
	if (has(r, key)) return STATUS_OK;
	return FAIL(r->err, BAD_INPUT, "%s: %s.%s is missing; convert the model again", r->file->path, r->architecture->name, key);
}

static enum status convert_sizes(struct reader *r)
{
	static const struct {
		const char *gguf, *config;
	} ints[] = {
		{"embedding_length", "hidden_size"},           {"feed_forward_length", "intermediate_size"},
		{"block_count", "num_hidden_layers"},          {"attention.head_count", "num_attention_heads"},
		{"attention.head_count_kv", "num_key_value_heads"}, {"context_length", "max_position_embeddings"},
		{"attention.key_length", "head_dim"},
	};
	TRY(need(r, "context_length"));
	TRY(need(r, "attention.layer_norm_rms_epsilon"));
	for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) TRY(copy_int(r, ints[i].gguf, ints[i].config));
	if (!has(r, "attention.head_count_kv")) TRY(put(r, "num_key_value_heads", json_null())); /* as many as query heads */
	if (!has(r, "attention.key_length")) TRY(put(r, "head_dim", json_null()));
	const struct gguf_tensor *embedding = gguf_tensor(r->file, "token_embd.weight");
	if (!embedding || embedding->dims != 2) return FAIL(r->err, BAD_INPUT, "%s: tensor \"token_embd.weight\" is missing or no matrix; this is no model", r->file->path);
	TRY(put(r, "vocab_size", json_integer(embedding->shape[0])));
	TRY(put(r, "tie_word_embeddings", json_boolean(!gguf_tensor(r->file, "output.weight"))));
	return copy_number(r, "attention.layer_norm_rms_epsilon", r->json, "rms_norm_eps");
}

/* What the architecture has no key for shows in the tensors. */
static enum status convert_switches(struct reader *r)
{
	if (strcmp(r->architecture->model_type, "llama") == 0) {
		bool q = gguf_tensor(r->file, "blk.0.attn_q.bias"), o = gguf_tensor(r->file, "blk.0.attn_output.bias");
		if (q != o) return FAIL(r->err, UNSUPPORTED, "%s: a bias on %s is not implemented", r->file->path, q ? "q, k, v but not on o" : "o but not on q, k, v");
		TRY(put(r, "attention_bias", json_boolean(q)));
		TRY(put(r, "mlp_bias", json_boolean(gguf_tensor(r->file, "blk.0.ffn_gate.bias") != NULL)));
	}
	return STATUS_OK;
}

static enum status refuse(const struct reader *r, const char *key, const char *why)
{
	return FAIL(r->err, UNSUPPORTED, "%s: %s.%s: %s", r->file->path, r->architecture->name, key, why);
}

/* Keys whose presence changes the computation, and that nothing here reads. */
static enum status refuse_unknown(struct reader *r)
{
	int64_t experts = 0, window = 0;
	bool causal = true;
	char key[80];
	TRY(gguf_int(r->file, key_of(r, "expert_count", key), 0, INT32_MAX, &experts, r->err));
	if (experts > 0) return refuse(r, "expert_count", "experts are not read from GGUF files; take the model as a folder of safetensors");
	TRY(gguf_int(r->file, key_of(r, "attention.sliding_window", key), 0, INT32_MAX, &window, r->err));
	if (window && strcmp(r->architecture->name, "llama") != 0 && !r->architecture->gemma)
		return refuse(r, "attention.sliding_window", "which layers it is for is not said; convert the model without it");
	TRY(gguf_bool(r->file, key_of(r, "attention.causal", key), &causal, r->err));
	if (!causal) return refuse(r, "attention.causal", "attention to later tokens is not implemented");
	int64_t keys = 0, values = 0;
	TRY(gguf_int(r->file, key_of(r, "attention.key_length", key), 0, INT32_MAX, &keys, r->err));
	values = keys;
	TRY(gguf_int(r->file, key_of(r, "attention.value_length", key), 0, INT32_MAX, &values, r->err));
	if (keys && values != keys) return refuse(r, "attention.value_length", "values of another size than keys are not implemented");
	int64_t heads = 1, hidden = 0;
	TRY(gguf_int(r->file, key_of(r, "embedding_length", key), 1, INT32_MAX, &hidden, r->err));
	if (!keys) TRY(read_int(r, "attention.head_count", 1, INT32_MAX, &heads));
	if (!keys) keys = hidden / heads;
	static const char *const widths[] = {"rope.dimension_count", "rope.dimension_count_swa"}; /* the second of sliding layers */
	for (int i = 0; i < 2; i++) {
		int64_t width = 0;
		TRY(gguf_int(r->file, key_of(r, widths[i], key), 0, INT32_MAX, &width, r->err));
		if (width && width != keys) return refuse(r, widths[i], "rope over a part of each head is not implemented");
	}
	return STATUS_OK;
}

/* All keys of rope's scaling are read, say nothing, or are refused where they change anything. */
static enum status check_scaling_keys(const struct reader *r, bool yarn)
{
	static const struct {
		const char *key;
		bool plain; /* read, or without a meaning here */
		double neutral;
	} keys[] = {
		{"type", true, 0},           {"factor", true, 0},      {"original_context_length", true, 0}, {"yarn_beta_fast", true, 0},
		{"yarn_beta_slow", true, 0}, {"finetuned", true, 0},   {"attn_factor", false, 1},            {"yarn_attn_factor", false, 1},
		{"yarn_ext_factor", false, -1}, {"alpha", false, 0},   {"yarn_log_multiplier", false, 0},
	};
	char prefix[80], name[60], why[80];
	size_t n = strlen(key_of(r, "rope.scaling.", prefix));
	for (size_t f = 0; f < r->file->field_count; f++) {
		struct gguf_text key = r->file->fields[f].key;
		if (key.size < n || memcmp(key.data, prefix, n) != 0) continue;
		const struct gguf_text rest = {.data = key.data + n, .size = key.size - n};
		size_t i = 0;
		while (i < sizeof keys / sizeof *keys && !gguf_text_is(rest, keys[i].key)) i++;
		snprintf(name, sizeof name, "rope.scaling.%.*s", (int)(rest.size < 40 ? rest.size : 40), rest.data);
		if (i == sizeof keys / sizeof *keys) return refuse(r, fields_one_line(name), "is not implemented");
		if (keys[i].plain) continue;
		char full[80];
		double value = keys[i].neutral;
		TRY(gguf_number(r->file, key_of(r, name, full), &value, r->err));
		/* The type's own extrapolation may be written out: 1 for yarn, 0 for the others. */
		if (value == keys[i].neutral || (keys[i].neutral < 0 && value == yarn)) continue;
		snprintf(why, sizeof why, "%g is not implemented; only %g is", value, keys[i].neutral);
		return refuse(r, name, why);
	}
	return STATUS_OK;
}

static enum status convert_scaling(struct reader *r, json_t *scaling)
{
	char key[80];
	struct gguf_text type = {.data = "linear", .size = 6}; /* a factor alone */
	TRY(gguf_string(r->file, key_of(r, "rope.scaling.type", key), &type, r->err));
	const bool yarn = gguf_text_is(type, "yarn"), none = gguf_text_is(type, "none");
	if (!yarn && !none && !gguf_text_is(type, "linear")) return refuse(r, "rope.scaling.type", "is not implemented; none, linear and yarn are");
	TRY(check_scaling_keys(r, yarn));
	double factor = 0;
	const char *from = has(r, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear"; /* before there were types */
	TRY(gguf_number(r->file, key_of(r, from, key), &factor, r->err));
	if (factor < 0) return FAIL(r->err, BAD_INPUT, "%s: %s: expected a positive factor, found %g; the file is damaged", r->file->path, key, factor);
	if (none || factor == 0) return STATUS_OK; /* a factor of 0 is how "no scaling" is written too */
	bool ok = json_object_set_new(scaling, "rope_type", json_string(yarn ? "yarn" : "linear")) == 0 &&
	          json_object_set_new(scaling, "factor", json_real(factor)) == 0;
	if (!ok) return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
	if (!yarn) return STATUS_OK;
	int64_t original = 0;
	TRY(gguf_int(r->file, key_of(r, "rope.scaling.original_context_length", key), 1, INT32_MAX, &original, r->err));
	if (original && json_object_set_new(scaling, "original_max_position_embeddings", json_integer(original)) != 0)
		return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
	TRY(copy_number(r, "rope.scaling.yarn_beta_fast", scaling, "beta_fast"));
	return copy_number(r, "rope.scaling.yarn_beta_slow", scaling, "beta_slow");
}

static enum status set(struct reader *r, json_t *object, const char *key, json_t *value)
{
	if (value && json_object_set_new(object, key, value) == 0) return STATUS_OK;
	return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
}

/* Where the rope of the layers that are not sliding goes. Gemma 3 has two; the other's base was 10000 before there was a key for it. */
static enum status rope_home(struct reader *r, json_t *scaling)
{
	if (strcmp(r->architecture->name, "gemma3") != 0) return put(r, "rope_parameters", scaling);
	json_t *both = json_object(), *local = json_object();
	TRY(put(r, "rope_parameters", both));
	TRY(set(r, both, "full_attention", scaling));
	TRY(set(r, both, "sliding_attention", local));
	TRY(set(r, local, "rope_type", json_string("default")));
	TRY(set(r, local, "rope_theta", json_real(10000)));
	return copy_number(r, "rope.freq_base_swa", local, "rope_theta");
}

static enum status convert_gemma(struct reader *r)
{
	char key[80];
	int64_t layers = 0, heads = 1, hidden = 0, width = 0;
	if (!r->architecture->gemma) return STATUS_OK;
	TRY(copy_int(r, "attention.sliding_window", "sliding_window"));
	TRY(copy_int(r, "attention.sliding_window_pattern", "sliding_window_pattern"));
	TRY(copy_number(r, "attn_logit_softcapping", r->json, "attn_logit_softcapping"));
	TRY(copy_number(r, "final_logit_softcapping", r->json, "final_logit_softcapping"));
	TRY(gguf_int(r->file, key_of(r, "block_count", key), 0, INT32_MAX, &layers, r->err));
	TRY(gguf_int(r->file, key_of(r, "embedding_length", key), 1, INT32_MAX, &hidden, r->err));
	TRY(read_int(r, "attention.head_count", 1, INT32_MAX, &heads));
	width = 256;
	TRY(gguf_int(r->file, key_of(r, "attention.key_length", key), 1, INT32_MAX, &width, r->err));
	return put(r, "query_pre_attn_scalar", json_integer(layers == r->architecture->gemma ? hidden / heads : width));
}

static enum status convert_rope(struct reader *r)
{
	json_t *scaling = json_object();
	TRY(rope_home(r, scaling));
	TRY(set(r, scaling, "rope_theta", json_real(10000)));
	TRY(copy_number(r, "rope.freq_base", scaling, "rope_theta"));
	if (gguf_tensor(r->file, "rope_factors_long.weight") || gguf_tensor(r->file, "rope_factors_short.weight"))
		return FAIL(r->err, UNSUPPORTED, "%s: rope factors that depend on the length are not implemented", r->file->path);
	TRY(convert_scaling(r, scaling));
	return json_object_get(scaling, "rope_type") ? STATUS_OK : set(r, scaling, "rope_type", json_string("default"));
}

/* Every token after which generation ends, as far as the file names them. */
static enum status convert_tokens(struct reader *r)
{
	static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	json_t *list = json_array();
	TRY(put(r, "eos_token_id", list));
	for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
		int64_t id = -1;
		TRY(gguf_int(r->file, ends[i], 0, INT32_MAX, &id, r->err));
		if (id >= 0 && json_array_append_new(list, json_integer(id)) != 0) return FAIL(r->err, NO_MEMORY, "%s: no memory for its metadata", r->file->path);
	}
	int64_t bos = -1;
	TRY(gguf_int(r->file, "tokenizer.ggml.bos_token_id", 0, INT32_MAX, &bos, r->err));
	return bos >= 0 ? put(r, "bos_token_id", json_integer(bos)) : STATUS_OK;
}

static enum status convert(struct reader *r)
{
	char key[80];
	TRY(need_architecture(r));
	TRY(refuse_unknown(r));
	TRY(put(r, "model_type", json_string(r->architecture->model_type)));
	TRY(put(r, "dtype", json_string("float32")));
	TRY(convert_sizes(r));
	TRY(convert_switches(r));
	TRY(convert_rope(r));
	TRY(convert_gemma(r));
	TRY(convert_tokens(r));
	/* Only Mistral has one under this architecture, and there it holds for all layers. */
	int64_t window = 0;
	TRY(gguf_int(r->file, key_of(r, "attention.sliding_window", key), 0, INT32_MAX, &window, r->err));
	if (!window || r->architecture->gemma) return STATUS_OK;
	TRY(put(r, "model_type", json_string("mistral")));
	json_object_del(r->json, "attention_bias");
	json_object_del(r->json, "mlp_bias");
	return put(r, "sliding_window", json_integer(window));
}

/* One divisor for each pair of a head's dimensions: inv_freq[i] / factor[i]. */
static enum status read_rope_factors(struct model_config *config, const struct gguf *file, struct error *err)
{
	const struct gguf_tensor *t = gguf_tensor(file, "rope_freqs.weight");
	if (!t) return STATUS_OK;
	if (config->rope.type != ROPE_DEFAULT)
		return FAIL(err, UNSUPPORTED, "%s: tensor \"rope_freqs.weight\" beside a scaling of another type is not implemented", file->path);
	if (t->dtype != DTYPE_F32 || t->dims != 1 || t->shape[0] != config->rotary_dim / 2)
		return FAIL(err, BAD_INPUT, "%s: tensor \"rope_freqs.weight\": expected %d values of type F32; the file is damaged", file->path, config->rotary_dim / 2);
	TRY(gguf_read(file, t, config->rope.factors, 4 * (size_t)t->shape[0], err));
	for (int i = 0; i < config->rotary_dim / 2; i++) {
		if (!(config->rope.factors[i] > 0 && config->rope.factors[i] < 1e6f))
			return FAIL(err, BAD_INPUT, "%s: tensor \"rope_freqs.weight\": value %d is no positive factor; the file is damaged", file->path, i);
	}
	config->rope.type = ROPE_FACTORS;
	return STATUS_OK;
}

/* Bytes by role, the blocks of the row-parallel tensors, and the type that most bytes have. */
static enum status read_types(struct model_config *config, const struct gguf *file, struct error *err)
{
	uint64_t by_type[DTYPE_COUNT] = {0};
	for (size_t i = 0; i < file->tensor_count; i++) {
		const struct gguf_tensor *t = &file->tensors[i];
		enum weight_role role;
		char name[100], type[24];
		if (!role_of(t->name, &role)) continue;
		if (t->dtype == DTYPE_COUNT)
			return FAIL(err, UNSUPPORTED, "%s: tensor \"%s\": type %s is not implemented; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are",
			            file->path, fields_text(name, sizeof name, t->name), gguf_type_name(t->type, type));
		config->stored.role_bytes[role] += t->bytes;
		if (t->dims == 2) by_type[t->dtype] += t->bytes;
		config->stored.blocks |= !dtype_is_plain(t->dtype);
		int *block = role == WEIGHT_O ? &config->stored.o_block : role == WEIGHT_DOWN ? &config->stored.down_block : NULL;
		if (block && dtype_block(t->dtype) > *block) *block = dtype_block(t->dtype); /* blocks divide each other */
	}
	for (int i = 0; i < DTYPE_COUNT; i++)
		if (by_type[i] > by_type[config->dtype]) config->dtype = (enum dtype)i;
	config->stored.own_types = true;
	return STATUS_OK;
}

enum status gguf_config(struct model_config *out, const struct gguf *file, const struct log *log, struct error *err)
{
	*out = (struct model_config){0};
	struct reader r = {.file = file, .json = json_object(), .err = err};
	char *text = NULL;
	enum status st = r.json ? STATUS_OK : FAIL(err, NO_MEMORY, "%s: no memory for its metadata", file->path);
	if (st == STATUS_OK) st = convert(&r);
	if (st == STATUS_OK) {
		text = json_dumps(r.json, JSON_COMPACT | JSON_REAL_PRECISION(17));
		st = text ? model_config_parse(out, text, strlen(text), file->path, log, err) : FAIL(err, NO_MEMORY, "%s: no memory for its metadata", file->path);
	}
	out->centred_norms = false; /* files have the 1 added */
	if (st == STATUS_OK) st = read_rope_factors(out, file, err);
	if (st == STATUS_OK) st = read_types(out, file, err);
	if (st != STATUS_OK) *out = (struct model_config){0};
	free(text);
	json_decref(r.json);
	return st;
}
