#include "model/config.h"

#include <libgen.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "model/fields.h"
#include "model/gguf.h"

/* Bounds of what is taken for a model. Far above anything that exists, low enough that the bytes of a whole model stay below 2^63: a
 * dense tensor (2^24 x 2^20) x 4 bytes x 2^10 layers = 2^56, experts 2^12 x (2^17 x 2^20) x 4 x 2^10 = 2^61, a few such terms added. */
#define MAX_HIDDEN (INT64_C(1) << 20)
#define MAX_INTERMEDIATE (INT64_C(1) << 24)
#define MAX_HEADS (INT64_C(1) << 14)
#define MAX_VOCAB (INT64_C(1) << 24)
#define MAX_POSITION (INT64_C(1) << 30)
#define MAX_EXPERTS (INT64_C(1) << 12)
#define MAX_EXPERT_INTERMEDIATE (INT64_C(1) << 16)
#define MAX_CONFIG_BYTES ((size_t)16 << 20)

enum {
	ATTENTION_BIAS = 1 << 0, /* the key attention_bias counts: q, k, v and o */
	MLP_BIAS = 1 << 1,       /* the key mlp_bias counts */
	QKV_BIAS = 1 << 2,       /* always on q, k, v, never on o */
	QK_NORM = 1 << 3,
	WINDOW_ALL = 1 << 4,   /* sliding_window, unless null, holds for all layers */
	WINDOW_LAYER = 1 << 5, /* max_window_layers and layer_types say for which layers */
	HYBRID = 1 << 6,       /* GDN layers, gated attention, partial rotary */
	MOE = 1 << 7,
	GDN_BY_K_HEAD = 1 << 8,
	NO_DENSE_MLP = 1 << 9, /* every layer has experts; no intermediate_size */
	NORM_TOPK = 1 << 10,   /* norm_topk_prob: its default, or what holds where the class has no such key */
	GEMMA = 1 << 11,       /* four norms, scaled embedding, gelu, query_pre_attn_scalar, sliding layers */
	LOCAL_ROPE = 1 << 12,  /* sliding layers have a rope of their own */
	WINDOW_SWITCH = 1 << 13, /* beside one of the above: sliding_window counts only with use_sliding_window */
};

/* What only the Gemma classes give defaults for. */
static const struct gemma {
	int q_heads, vocab;
	int pattern; /* one layer in so many is full, the others slide */
	double attn_softcap, final_softcap; /* 0: none */
} gemma2 = {8, 256000, 2, 50, 30}, gemma3 = {8, 262208, 6, 0, 0};

/* One line per architecture: what differs from Llama. HF's configuration classes are the source of the defaults. */
static const struct family {
	const char *type;
	unsigned flags;
	int head_dim; /* default when the key is absent; 0: hidden_size / heads */
	int kv_heads; /* default when the key is absent; 0: as many as query heads */
	int max_position;
	int window; /* default sliding_window */
	int experts_per_token;
	const struct gemma *gemma; /* of the GEMMA ones */
} families[] = {
	{.type = "llama", .flags = ATTENTION_BIAS | MLP_BIAS, .max_position = 2048},
	{.type = "mistral", .flags = WINDOW_ALL, .kv_heads = 8, .max_position = 131072, .window = 4096},
	{.type = "qwen2", .flags = QKV_BIAS | WINDOW_SWITCH | WINDOW_LAYER, .kv_heads = 32, .max_position = 32768, .window = 4096},
	{.type = "qwen3", .flags = ATTENTION_BIAS | QK_NORM | WINDOW_SWITCH | WINDOW_LAYER, .head_dim = 128, .kv_heads = 32, .max_position = 32768, .window = 4096},
	{.type = "qwen3_moe", .flags = ATTENTION_BIAS | QK_NORM | WINDOW_SWITCH | WINDOW_ALL | MOE,
	 .kv_heads = 4, .max_position = 32768, .window = 4096, .experts_per_token = 8},
	{.type = "qwen3_5_text", .flags = ATTENTION_BIAS | QK_NORM | HYBRID, .head_dim = 256, .kv_heads = 4, .max_position = 32768},
	{.type = "qwen3_5", .flags = ATTENTION_BIAS | QK_NORM | HYBRID, .head_dim = 256, .kv_heads = 4, .max_position = 32768},
	{.type = "qwen3_5_moe_text", .flags = ATTENTION_BIAS | QK_NORM | HYBRID | MOE | NO_DENSE_MLP | NORM_TOPK,
	 .head_dim = 256, .kv_heads = 2, .max_position = 32768, .experts_per_token = 8},
	{.type = "qwen3_5_moe", .flags = ATTENTION_BIAS | QK_NORM | HYBRID | MOE | NO_DENSE_MLP | NORM_TOPK,
	 .head_dim = 256, .kv_heads = 2, .max_position = 32768, .experts_per_token = 8},
	{.type = "qwen3_next", .flags = ATTENTION_BIAS | QK_NORM | HYBRID | MOE | GDN_BY_K_HEAD | NORM_TOPK,
	 .head_dim = 256, .kv_heads = 2, .max_position = 32768, .experts_per_token = 10},
	{.type = "gemma2", .flags = ATTENTION_BIAS | GEMMA, .head_dim = 256, .kv_heads = 4, .max_position = 8192, .window = 4096, .gemma = &gemma2},
	{.type = "gemma3_text", .flags = ATTENTION_BIAS | QK_NORM | GEMMA | LOCAL_ROPE,
	 .head_dim = 256, .kv_heads = 4, .max_position = 131072, .window = 4096, .gemma = &gemma3},
	{.type = "gemma3", .flags = ATTENTION_BIAS | QK_NORM | GEMMA | LOCAL_ROPE, .head_dim = 256, .kv_heads = 4, .max_position = 131072, .window = 4096, .gemma = &gemma3},
};
#define FAMILIES (sizeof families / sizeof *families)

/* What the reading functions share. `text` is the language model's object; `top` the file's. They are one where nothing is nested. */
struct reader {
	struct model_config *config;
	const struct family *family;
	struct fields text, top;
	const struct log *log;
	struct error *err;
};

static const struct family *find_family(const char *type)
{
	for (size_t i = 0; i < FAMILIES; i++)
		if (strcmp(families[i].type, type) == 0) return &families[i];
	return NULL;
}

static enum status unknown_model(const struct reader *r, const char *type)
{
	char known[200] = "";
	for (size_t i = 0, n = 0; i < FAMILIES; i++)
		n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", families[i].type);
	return FAIL(r->err, UNSUPPORTED, "%s: model_type \"%.60s\" is not implemented; models that run: %s", r->top.file, type, known);
}

/* The language model may be nested in text_config (multimodal wrappers); then its own model_type decides. */
static enum status read_family(struct reader *r)
{
	const json_t *nested = fields_get(&r->top, "text_config");
	if (nested) {
		if (!json_is_object(nested)) return fields_refuse(&r->top, "text_config", "an object", nested, r->err);
		r->text.object = nested;
		r->text.section = "text_config.";
	}
	const char *outer = NULL, *inner = NULL;
	TRY(fields_string(&r->top, "model_type", &outer, r->err));
	TRY(fields_string(&r->text, "model_type", &inner, r->err));
	if (!inner) inner = outer;
	if (!inner) return fields_need(&r->text, "model_type", "the name of an architecture", r->err);
	r->family = find_family(inner);
	if (!r->family) return unknown_model(r, inner);
	if (!outer) outer = inner;
	struct model_config *c = r->config;
	fields_text(c->model_type, sizeof c->model_type, outer);
	snprintf(c->tensor_prefix, sizeof c->tensor_prefix, "%s", nested ? "model.language_model." : "model.");
	return STATUS_OK;
}

static enum status need_int(const struct fields *f, const char *key, int64_t hi, int *value, struct error *err)
{
	TRY(fields_need(f, key, "a positive integer", err));
	return fields_int(f, key, 1, hi, value, err);
}

/* fallback 0: there is none. */
static enum status need_int_or(const struct fields *f, const char *key, int64_t hi, int fallback, int *value, struct error *err)
{
	if (!fallback) return need_int(f, key, hi, value, err);
	*value = fallback;
	return fields_int(f, key, 1, hi, value, err);
}

static enum status read_sizes(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	TRY(need_int(f, "hidden_size", MAX_HIDDEN, &c->hidden_size, r->err));
	TRY(need_int(f, "num_hidden_layers", MODEL_MAX_LAYERS, &c->layers, r->err));
	const struct gemma *gemma = r->family->gemma; /* its configs may leave these out */
	TRY(need_int_or(f, "num_attention_heads", MAX_HEADS, gemma ? gemma->q_heads : 0, &c->q_heads, r->err));
	TRY(need_int_or(f, "vocab_size", MAX_VOCAB, gemma ? gemma->vocab : 0, &c->vocab_size, r->err));
	if (!(r->family->flags & NO_DENSE_MLP)) TRY(need_int(f, "intermediate_size", MAX_INTERMEDIATE, &c->intermediate_size, r->err));

	/* Absent and null differ: null says "one per query head", absent takes the class default where that is possible at all. */
	int kv_default = r->family->kv_heads;
	if (json_object_get(f->object, "num_key_value_heads") || !kv_default || c->q_heads % kv_default) kv_default = c->q_heads;
	c->kv_heads = kv_default;
	TRY(fields_int(f, "num_key_value_heads", 1, MAX_HEADS, &c->kv_heads, r->err));
	if (c->q_heads % c->kv_heads)
		return FAIL(r->err, BAD_INPUT, "%s: %snum_attention_heads %d is not a multiple of num_key_value_heads %d; correct the file", f->file,
		            f->section, c->q_heads, c->kv_heads);

	c->head_dim = json_object_get(f->object, "head_dim") ? 0 : r->family->head_dim;
	TRY(fields_int(f, "head_dim", 1, MODEL_MAX_HEAD_DIM, &c->head_dim, r->err));
	if (!c->head_dim) {
		if (c->hidden_size % c->q_heads)
			return FAIL(r->err, BAD_INPUT, "%s: %shidden_size %d is not a multiple of num_attention_heads %d and no head_dim is given; correct the file",
			            f->file, f->section, c->hidden_size, c->q_heads);
		c->head_dim = c->hidden_size / c->q_heads;
	}
	if (c->head_dim % 2 || c->head_dim > MODEL_MAX_HEAD_DIM)
		return FAIL(r->err, BAD_INPUT, "%s: %shead_dim: expected an even number up to %d, found %d; correct the file", f->file, f->section,
		            MODEL_MAX_HEAD_DIM, c->head_dim);

	c->max_position = r->family->max_position;
	TRY(fields_int(f, "max_position_embeddings", 1, MAX_POSITION, &c->max_position, r->err));
	double eps = 1e-6;
	TRY(fields_number(f, "rms_norm_eps", 0, true, 1, &eps, r->err));
	c->rms_eps = (float)eps;
	return STATUS_OK;
}

/* Refuses a switch that means something elsewhere and that this architecture does not have. */
static enum status refuse_switch(const struct reader *r, const char *key)
{
	bool on = false;
	TRY(fields_bool(&r->text, key, &on, r->err));
	if (!on) return STATUS_OK;
	return FAIL(r->err, UNSUPPORTED, "%s: %s%s: true is not implemented for %s; no such model is known", r->text.file, r->text.section, key,
	            r->family->type);
}

/* c tanh(x / c); 0: none. Null and absent differ. */
static enum status read_softcap(struct reader *r, const char *key, double fallback, bool known, float *out)
{
	double cap = json_object_get(r->text.object, key) ? 0 : fallback;
	TRY(fields_number(&r->text, key, 0, true, 1e6, &cap, r->err));
	*out = (float)cap;
	if (*out == 0 || known) return STATUS_OK;
	return FAIL(r->err, UNSUPPORTED, "%s: %s%s is not implemented for %s; use a model without it", r->text.file, r->text.section, key, r->family->type);
}

static enum status read_gemma(struct reader *r)
{
	struct model_config *c = r->config;
	const struct gemma *gemma = r->family->gemma;
	double scalar = gemma ? 256 : c->head_dim;
	/* The class of Gemma 3 has the key for scores and does not use it. */
	TRY(read_softcap(r, "attn_logit_softcapping", gemma ? gemma->attn_softcap : 0, gemma && !(r->family->flags & LOCAL_ROPE), &c->attn_softcap));
	TRY(read_softcap(r, "final_logit_softcapping", gemma ? gemma->final_softcap : 0, gemma != NULL, &c->final_softcap));
	if (gemma) {
		TRY(fields_number(&r->text, "query_pre_attn_scalar", 0, true, 1e9, &scalar, r->err));
		TRY(refuse_switch(r, "use_bidirectional_attention"));
		c->four_norms = c->scaled_embedding = c->tied = true;
	}
	c->query_scale = gemma ? (float)pow(scalar, -0.5) : 1.0f / sqrtf((float)c->head_dim);
	return STATUS_OK;
}

static enum status read_switches(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	c->gelu = r->family->flags & GEMMA;
	const char *key = c->gelu ? "hidden_activation" : "hidden_act", *wanted = c->gelu ? "gelu_pytorch_tanh" : "silu", *act = wanted;
	TRY(fields_string(f, key, &act, r->err));
	if (strcmp(act, wanted) != 0 && (c->gelu || strcmp(act, "swish") != 0))
		return FAIL(r->err, UNSUPPORTED, "%s: %s%s \"%.40s\" is not implemented; only \"%s\" is", f->file, f->section, key, act, wanted);

	if (r->family->flags & ATTENTION_BIAS) {
		TRY(fields_bool(f, "attention_bias", &c->o_bias, r->err));
		c->qkv_bias = c->o_bias;
	} else if (!(r->family->flags & QKV_BIAS)) {
		TRY(refuse_switch(r, "attention_bias"));
	}
	if (r->family->flags & QKV_BIAS) c->qkv_bias = true;
	if (r->family->flags & MLP_BIAS) TRY(fields_bool(f, "mlp_bias", &c->mlp_bias, r->err));
	else TRY(refuse_switch(r, "mlp_bias"));
	c->qk_norm = r->family->flags & QK_NORM;
	c->centred_norms = r->family->flags & (HYBRID | GEMMA);
	TRY(read_gemma(r));

	/* The outer level decides, as in HF; the inner one counts where the outer is silent. */
	TRY(fields_bool(f, "tie_word_embeddings", &c->tied, r->err));
	bool inner = c->tied;
	TRY(fields_bool(&r->top, "tie_word_embeddings", &c->tied, r->err));
	if (inner != c->tied && fields_get(f, "tie_word_embeddings"))
		log_write(r->log, LOG_WARN, "%s: tie_word_embeddings differs between the levels; the outer one (%s) is used", f->file,
		          c->tied ? "true" : "false");
	return STATUS_OK;
}

static enum status dtype_of(const struct reader *r, const struct fields *f, const char *key, enum dtype *out)
{
	const char *name = NULL;
	TRY(fields_string(f, key, &name, r->err));
	if (!name) return STATUS_OK;
	const char *plain = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
	static const char *const names[DTYPE_PLAIN_COUNT] = {[DTYPE_F32] = "float32", [DTYPE_F16] = "float16", [DTYPE_BF16] = "bfloat16"};
	for (int i = 0; i < DTYPE_PLAIN_COUNT; i++) {
		if (strcmp(plain, names[i]) != 0) continue;
		*out = (enum dtype)i;
		return STATUS_OK;
	}
	return FAIL(r->err, UNSUPPORTED, "%s: %s%s \"%.40s\" is not implemented; float32, float16 and bfloat16 are", f->file, f->section, key,
	            name);
}

static enum status read_dtype(struct reader *r)
{
	r->config->dtype = DTYPE_F32; /* what torch makes of a config without one */
	const struct fields *levels[] = {&r->top, &r->text}; /* the later wins */
	for (int i = 0; i < 2; i++) {
		TRY(dtype_of(r, levels[i], "torch_dtype", &r->config->dtype));
		TRY(dtype_of(r, levels[i], "dtype", &r->config->dtype));
	}
	return STATUS_OK;
}

static enum status read_quantisation(struct reader *r)
{
	const struct fields *levels[] = {&r->text, &r->top};
	static const char *const keys[] = {"quantization_config", "compression_config"};
	for (int i = 0; i < 4; i++) {
		const struct fields *f = levels[i / 2];
		const json_t *found = fields_get(f, keys[i % 2]);
		if (!found || r->config->cannot_run[0]) continue;
		const char *method = json_string_value(json_object_get(found, "quant_method"));
		char text[40];
		snprintf(r->config->cannot_run, sizeof r->config->cannot_run,
		         "%s%s (%s): quantised weights are not implemented; use the checkpoint in bfloat16, float16 or float32", f->section,
		         keys[i % 2], fields_text(text, sizeof text, method ? method : "no quant_method"));
	}
	return STATUS_OK;
}

static enum status rope_type_of(const struct reader *r, const struct fields *f, enum rope_type *out)
{
	const char *name = NULL;
	TRY(fields_string(f, "type", &name, r->err));
	TRY(fields_string(f, "rope_type", &name, r->err)); /* wins over the old key */
	if (!name) {
		if (fields_get(f, "factor")) return fields_refuse(f, "rope_type", "the kind of scaling beside a factor", NULL, r->err);
		name = "default";
	}
	static const char *const names[] = {"default", "linear", "dynamic", "llama3", "yarn"};
	for (int i = 0; i < 5; i++) {
		if (strcmp(name, names[i]) != 0) continue;
		*out = (enum rope_type)i;
		return STATUS_OK;
	}
	return FAIL(r->err, UNSUPPORTED, "%s: %srope_type \"%.40s\" is not implemented; default, linear, dynamic, llama3 and yarn are", f->file,
	            f->section, name);
}

/* The scaling values of `f` (rope_parameters, or the old rope_scaling). */
static enum status read_rope_scaling(const struct reader *r, const struct fields *f, struct rope_config *rope)
{
	struct error *err = r->err;
	TRY(rope_type_of(r, f, &rope->type));
	if (rope->type == ROPE_DEFAULT) return STATUS_OK;
	/* Llama 3.1 style files may state the pretrained length outside the scaling object; HF then prefers that one. */
	rope->original_max_position = r->config->max_position;
	TRY(fields_int64(f, "original_max_position_embeddings", 1, MAX_POSITION, &rope->original_max_position, err));
	if (rope->type == ROPE_LLAMA3 || rope->type == ROPE_YARN)
		TRY(fields_int64(&r->text, "original_max_position_embeddings", 1, MAX_POSITION, &rope->original_max_position, err));
	/* Dynamic scaling in HF starts at max_position_embeddings, whatever else the object says. */
	if (rope->type == ROPE_DYNAMIC) rope->original_max_position = r->config->max_position;

	if (rope->type == ROPE_YARN) rope->factor = (double)r->config->max_position / (double)rope->original_max_position;
	else TRY(fields_need(f, "factor", "a number", err));
	TRY(fields_number(f, "factor", 0, true, 1e6, &rope->factor, err));
	if (rope->factor < 1) log_write(r->log, LOG_WARN, "%s: %sfactor %g is below 1", f->file, f->section, rope->factor);

	if (rope->type == ROPE_LLAMA3) {
		TRY(fields_need(f, "low_freq_factor", "a number", err));
		TRY(fields_need(f, "high_freq_factor", "a number", err));
		TRY(fields_number(f, "low_freq_factor", 0, true, 1e6, &rope->low_freq_factor, err));
		TRY(fields_number(f, "high_freq_factor", rope->low_freq_factor, true, 1e6, &rope->high_freq_factor, err));
	}
	if (rope->type == ROPE_YARN) {
		TRY(fields_number(f, "beta_fast", 0, true, 1e6, &rope->beta_fast, err));
		TRY(fields_number(f, "beta_slow", 0, true, 1e6, &rope->beta_slow, err));
		TRY(fields_number(f, "attention_factor", 0, true, 1e6, &rope->attention_factor, err));
		TRY(fields_number(f, "mscale", 0, false, 1e6, &rope->mscale, err));
		TRY(fields_number(f, "mscale_all_dim", 0, false, 1e6, &rope->mscale_all_dim, err));
		TRY(fields_bool(f, "truncate", &rope->truncate, err));
	}
	return STATUS_OK;
}

static void default_rope(struct rope_config *rope, double theta, int64_t original)
{
	*rope = (struct rope_config){.type = ROPE_DEFAULT, .theta = theta, .factor = 1, .beta_fast = 32, .beta_slow = 1, .truncate = true,
	                             .original_max_position = original};
}

/* rope_parameters by layer type; or, in older files, rope_theta, rope_local_base_freq, and rope_scaling for the full layers alone. */
static enum status read_two_ropes(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	static const char *const types[] = {"full_attention", "sliding_attention"}, *const thetas[] = {"rope_theta", "rope_local_base_freq"};
	struct rope_config *const ropes[] = {&c->rope, &c->rope_local};
	const json_t *all = fields_get(f, "rope_parameters"), *scaling = fields_get(f, "rope_scaling");
	c->two_ropes = true;
	c->rotary_dim = c->head_dim;
	if (all && (!json_is_object(all) || !(json_object_get(all, types[0]) || json_object_get(all, types[1]))))
		return fields_refuse(f, "rope_parameters", "an object with full_attention and sliding_attention", all, r->err);
	if (scaling && (!json_is_object(scaling) || all)) return fields_refuse(f, "rope_scaling", all ? "nothing beside rope_parameters" : "an object", scaling, r->err);
	for (int i = 0; i < 2; i++) {
		default_rope(ropes[i], i ? 10000 : 1000000, c->max_position);
		TRY(fields_number(f, thetas[i], 1, true, 1e15, &ropes[i]->theta, r->err));
		const json_t *own = all ? json_object_get(all, types[i]) : i ? NULL : scaling;
		if (!own || json_is_null(own)) continue;
		if (!json_is_object(own)) return fields_refuse(f, types[i], "an object", own, r->err);
		const struct fields part = {own, f->file, all ? (i ? "rope_parameters.sliding_attention." : "rope_parameters.full_attention.") : "rope_scaling."};
		TRY(fields_number(&part, "rope_theta", 1, true, 1e15, &ropes[i]->theta, r->err));
		TRY(read_rope_scaling(r, &part, ropes[i]));
		if (ropes[i]->type == ROPE_DYNAMIC) return FAIL(r->err, UNSUPPORTED, "%s: %srope_type dynamic is not implemented for %s", f->file, part.section, r->family->type);
	}
	return STATUS_OK;
}

/* Of the two homes of rope settings HF prefers rope_scaling, unless it is null or empty. */
static enum status rope_object(const struct reader *r, struct fields *out)
{
	static const char *const keys[] = {"rope_parameters", "rope_scaling"};
	static const char *const sections[2][2] = {{"rope_parameters.", "rope_scaling."},
	                                           {"text_config.rope_parameters.", "text_config.rope_scaling."}};
	for (int i = 0; i < 2; i++) {
		const json_t *found = fields_get(&r->text, keys[i]);
		if (!found) continue;
		if (!json_is_object(found)) return fields_refuse(&r->text, keys[i], "an object", found, r->err);
		const char *key;
		json_t *value;
		json_object_foreach((json_t *)found, key, value) {
			if (json_is_object(value))
				return FAIL(r->err, UNSUPPORTED, "%s: %s%s.%.60s: rope settings per layer type are not implemented", r->text.file,
				            r->text.section, keys[i], key);
		}
		if (json_object_size(found) == 0) continue;
		*out = (struct fields){found, r->text.file, sections[r->text.section[0] != 0][i]};
	}
	return STATUS_OK;
}

static enum status read_rotary_dim(struct reader *r, const struct fields *scaling)
{
	struct model_config *c = r->config;
	bool partial = r->family->flags & HYBRID;
	double share = partial ? 0.25 : 1;
	TRY(fields_number(&r->text, "partial_rotary_factor", 0, true, 1, &share, r->err));
	if (scaling->object) TRY(fields_number(scaling, "partial_rotary_factor", 0, true, 1, &share, r->err));
	if (!partial && share != 1) /* exact: 1 is what was read */
		return FAIL(r->err, UNSUPPORTED, "%s: %spartial_rotary_factor %g is not implemented for %s", r->text.file, r->text.section, share,
		            r->family->type);
	c->rotary_dim = (int)(c->head_dim * share);
	if (c->rotary_dim < 2 || c->rotary_dim % 2)
		return FAIL(r->err, BAD_INPUT, "%s: %spartial_rotary_factor %g of head_dim %d leaves %d rotary dimensions; expected an even number",
		            r->text.file, r->text.section, share, c->head_dim, c->rotary_dim);
	return STATUS_OK;
}

static enum status read_rope(struct reader *r)
{
	struct model_config *c = r->config;
	struct rope_config *rope = &c->rope;
	if (r->family->flags & LOCAL_ROPE) return read_two_ropes(r);
	default_rope(rope, 10000, c->max_position);
	struct fields scaling = {NULL, r->text.file, ""};
	TRY(rope_object(r, &scaling));
	TRY(fields_number(&r->text, "rope_theta", 1, true, 1e15, &rope->theta, r->err));
	if (scaling.object) {
		TRY(fields_number(&scaling, "rope_theta", 1, true, 1e15, &rope->theta, r->err)); /* wins over the old place */
		TRY(read_rope_scaling(r, &scaling, rope));
	}
	TRY(read_rotary_dim(r, &scaling));
	if (rope->type == ROPE_DYNAMIC && c->rotary_dim == 2)
		return FAIL(r->err, UNSUPPORTED, "%s: dynamic rope needs more than 2 rotary dimensions", r->text.file);

	/* Linear and dynamic scaling stretch what the file declares; yarn files declare either length. */
	double reach = 0;
	if (rope->type == ROPE_LINEAR || rope->type == ROPE_DYNAMIC) reach = rope->factor * c->max_position;
	if (rope->type == ROPE_YARN) reach = rope->factor * (double)rope->original_max_position;
	if (reach > c->max_position) c->max_position = reach < (double)MAX_POSITION ? (int)reach : (int)MAX_POSITION;
	return STATUS_OK;
}

static enum status read_layer_kinds(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	unsigned flags = r->family->flags;
	bool use_window = flags & (WINDOW_ALL | GEMMA) && !(flags & WINDOW_SWITCH);
	int pattern = flags & GEMMA ? r->family->gemma->pattern : 0;
	if (flags & WINDOW_SWITCH) TRY(fields_bool(f, "use_sliding_window", &use_window, r->err));
	int window = json_object_get(f->object, "sliding_window") ? 0 : r->family->window, max_window_layers = 28, interval = 4;
	if (flags & (WINDOW_ALL | WINDOW_LAYER | GEMMA)) TRY(fields_int(f, "sliding_window", 1, MAX_POSITION, &window, r->err));
	c->sliding_window = use_window ? window : 0;
	if (flags & WINDOW_LAYER) TRY(fields_int(f, "max_window_layers", 0, MAX_POSITION, &max_window_layers, r->err));
	if (flags & HYBRID) TRY(fields_int(f, "full_attention_interval", 1, MODEL_MAX_LAYERS, &interval, r->err));
	if (flags & LOCAL_ROPE) TRY(fields_int(f, "sliding_window_pattern", 1, MODEL_MAX_LAYERS, &pattern, r->err));
	if (flags & GEMMA && !window) return fields_need(f, "sliding_window", "a number of tokens", r->err);

	for (int i = 0; i < c->layers; i++) {
		bool slides = c->sliding_window && (flags & WINDOW_ALL || (flags & GEMMA ? (i + 1) % pattern != 0 : i >= max_window_layers));
		c->layer_kind[i] = slides ? LAYER_SLIDING : LAYER_FULL;
		if (flags & HYBRID && (i + 1) % interval) c->layer_kind[i] = LAYER_GDN;
	}

	const json_t *types = fields_get(f, "layer_types");
	if (!types) return STATUS_OK;
	if (!json_is_array(types) || json_array_size(types) != (size_t)c->layers)
		return fields_refuse(f, "layer_types", "a list with one entry per hidden layer", types, r->err);
	static const char *const names[] = {[LAYER_FULL] = "full_attention", [LAYER_SLIDING] = "sliding_attention", [LAYER_GDN] = "linear_attention"};
	for (int i = 0; i < c->layers; i++) {
		const json_t *entry = json_array_get(types, (size_t)i);
		const char *name = json_string_value(entry);
		if (!name) return fields_refuse(f, "layer_types", "names of layer types", entry, r->err);
		int kind = 0;
		while (kind < 3 && strcmp(name, names[kind]) != 0) kind++;
		bool known = kind < 3 && (kind != LAYER_GDN || flags & HYBRID) && (kind != LAYER_SLIDING || flags & (WINDOW_ALL | WINDOW_LAYER | GEMMA));
		if (!known)
			return FAIL(r->err, UNSUPPORTED, "%s: %slayer_types[%d] \"%.40s\" is not implemented for %s", f->file, f->section, i, name,
			            r->family->type);
		if (kind == LAYER_SLIDING && !c->sliding_window)
			return FAIL(r->err, BAD_INPUT, "%s: %slayer_types[%d] is sliding_attention but no sliding window is in use; correct the file",
			            f->file, f->section, i);
		/* HF's Mistral and Qwen3-MoE slide everywhere or nowhere, whatever the list says: a list that disagrees has no reference. */
		if (flags & WINDOW_ALL && kind != c->layer_kind[i])
			return FAIL(r->err, UNSUPPORTED, "%s: %slayer_types[%d] \"%.40s\" beside sliding_window %d is not implemented for %s", f->file,
			            f->section, i, name, c->sliding_window, r->family->type);
		c->layer_kind[i] = (uint8_t)kind;
	}
	return STATUS_OK;
}

static enum status read_gdn(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	if (!(r->family->flags & HYBRID)) return STATUS_OK;
	/* Linear heads default to the class values as head sizes do; their number makes the model and must be given. */
	c->gdn.k_dim = c->gdn.v_dim = 128;
	c->gdn.conv_kernel = 4;
	TRY(need_int(f, "linear_num_key_heads", MAX_HEADS, &c->gdn.k_heads, r->err));
	TRY(need_int(f, "linear_num_value_heads", MAX_HEADS, &c->gdn.v_heads, r->err));
	TRY(fields_int(f, "linear_key_head_dim", 1, 1024, &c->gdn.k_dim, r->err));
	TRY(fields_int(f, "linear_value_head_dim", 1, 1024, &c->gdn.v_dim, r->err));
	TRY(fields_int(f, "linear_conv_kernel_dim", 1, 64, &c->gdn.conv_kernel, r->err));
	if (c->gdn.v_heads % c->gdn.k_heads)
		return FAIL(r->err, BAD_INPUT, "%s: %slinear_num_value_heads %d is not a multiple of linear_num_key_heads %d; correct the file", f->file,
		            f->section, c->gdn.v_heads, c->gdn.k_heads);
	c->gdn.by_k_head = r->family->flags & GDN_BY_K_HEAD;
	enum dtype state = DTYPE_F32;
	TRY(dtype_of(r, f, "mamba_ssm_dtype", &state));
	if (state != DTYPE_F32) log_write(r->log, LOG_WARN, "%s: %smamba_ssm_dtype %s: the state is kept in F32", f->file, f->section, dtype_name(state));
	c->attn_output_gate = true;
	return fields_bool(f, "attn_output_gate", &c->attn_output_gate, r->err);
}

/* Layer i has experts unless mlp_only_layers names it or decoder_sparse_step does not divide i + 1. */
static enum status read_sparse_layers(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	int step = 1;
	TRY(fields_int(f, "decoder_sparse_step", 1, MODEL_MAX_LAYERS, &step, r->err));
	const json_t *dense = fields_get(f, "mlp_only_layers");
	if (dense && !json_is_array(dense)) return fields_refuse(f, "mlp_only_layers", "a list of layer numbers", dense, r->err);
	for (int i = 0; i < c->layers; i++) c->moe.sparse[i] = (i + 1) % step == 0;
	for (size_t i = 0; dense && i < json_array_size(dense); i++) {
		const json_t *entry = json_array_get(dense, i);
		if (!json_is_integer(entry) || json_integer_value(entry) < 0 || json_integer_value(entry) >= c->layers)
			return fields_refuse(f, "mlp_only_layers", "layer numbers below num_hidden_layers", entry, r->err);
		c->moe.sparse[json_integer_value(entry)] = false;
	}
	for (int i = 0; i < c->layers; i++) c->moe.layers += c->moe.sparse[i];
	return STATUS_OK;
}

static enum status read_moe(struct reader *r)
{
	struct model_config *c = r->config;
	const struct fields *f = &r->text;
	if (!(r->family->flags & MOE)) {
		static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
		for (size_t i = 0; i < 3; i++) {
			int experts = 0;
			TRY(fields_int(f, keys[i], 0, INT32_MAX, &experts, r->err));
			if (experts > 1)
				return FAIL(r->err, UNSUPPORTED, "%s: %s%s %d: mixture of experts is not implemented for %s", f->file, f->section, keys[i],
				            experts, r->family->type);
		}
		return STATUS_OK;
	}
	c->moe.experts_per_token = r->family->experts_per_token;
	bool every = r->family->flags & NO_DENSE_MLP;
	const char *key = fields_get(f, "num_local_experts") && !fields_get(f, "num_experts") ? "num_local_experts" : "num_experts"; /* one attribute in HF */
	TRY(fields_need(f, key, "a number of experts", r->err));
	TRY(fields_int(f, key, 0, MAX_EXPERTS, &c->moe.experts, r->err));
	if (!c->moe.experts) return every ? need_int(f, key, MAX_EXPERTS, &c->moe.experts, r->err) : STATUS_OK;
	TRY(need_int(f, "moe_intermediate_size", MAX_EXPERT_INTERMEDIATE, &c->moe.intermediate, r->err));
	TRY(fields_int(f, "num_experts_per_tok", 1, c->moe.experts, &c->moe.experts_per_token, r->err));
	if (c->moe.experts_per_token > c->moe.experts)
		return FAIL(r->err, BAD_INPUT, "%s: %s%s %d is less than the %d experts of a token that num_experts_per_tok means where it is absent; give it", f->file,
		            f->section, key, c->moe.experts, c->moe.experts_per_token);
	if (c->moe.experts_per_token > MODEL_MAX_EXPERTS_PER_TOKEN)
		snprintf(c->cannot_run, sizeof c->cannot_run, "num_experts_per_tok %d can be planned but is not run; up to %d are", c->moe.experts_per_token,
		         MODEL_MAX_EXPERTS_PER_TOKEN);
	if (r->family->flags & HYBRID) TRY(need_int(f, "shared_expert_intermediate_size", MAX_INTERMEDIATE, &c->moe.shared_intermediate, r->err));
	c->moe.norm_topk = r->family->flags & NORM_TOPK;
	if (!every) TRY(fields_bool(f, "norm_topk_prob", &c->moe.norm_topk, r->err));
	if (!every) return read_sparse_layers(r);
	for (int i = 0; i < c->layers; i++) c->moe.sparse[i] = true;
	c->moe.layers = c->layers;
	return STATUS_OK;
}

static enum status add_eos(struct model_config *c, const struct fields *f, const json_t *found, struct error *err)
{
	if (!json_is_integer(found) || json_integer_value(found) < 0 || json_integer_value(found) > INT32_MAX)
		return fields_refuse(f, "eos_token_id", "a token id or a list of them", found, err);
	int id = (int)json_integer_value(found);
	for (int i = 0; i < c->eos_count; i++)
		if (c->eos[i] == id) return STATUS_OK;
	if (c->eos_count == MODEL_MAX_EOS)
		return FAIL(err, UNSUPPORTED, "%s: %seos_token_id: more than %d different ids; shorten the list", f->file, f->section, MODEL_MAX_EOS);
	c->eos[c->eos_count++] = id;
	return STATUS_OK;
}

static enum status read_eos(struct model_config *c, const struct fields *f, struct error *err)
{
	const json_t *found = fields_get(f, "eos_token_id");
	if (!found) return STATUS_OK;
	if (!json_is_array(found)) return add_eos(c, f, found, err);
	for (size_t i = 0; i < json_array_size(found); i++) TRY(add_eos(c, f, json_array_get(found, i), err));
	return STATUS_OK;
}

static enum status read_all(struct reader *r)
{
	TRY(read_family(r));
	TRY(read_sizes(r));
	TRY(read_switches(r));
	TRY(read_dtype(r));
	TRY(read_quantisation(r));
	TRY(read_rope(r));
	TRY(read_layer_kinds(r));
	TRY(read_gdn(r));
	TRY(read_moe(r));
	TRY(read_eos(r->config, &r->text, r->err));
	TRY(read_eos(r->config, &r->top, r->err));
	r->config->bos = -1;
	TRY(fields_int(&r->top, "bos_token_id", 0, INT32_MAX, &r->config->bos, r->err));
	return fields_int(&r->text, "bos_token_id", 0, INT32_MAX, &r->config->bos, r->err);
}

enum status model_config_parse(struct model_config *out, const char *json, size_t n, const char *name, const struct log *log,
                               struct error *err)
{
	*out = (struct model_config){0};
	json_t *root;
	TRY(fields_parse(&root, json, n, name, err));
	struct reader r = {.config = out, .text = {root, name, ""}, .top = {root, name, ""}, .log = log, .err = err};
	enum status st = read_all(&r);
	if (st != STATUS_OK) *out = (struct model_config){0};
	if (st != STATUS_OK && err) fields_one_line(err->text); /* messages quote strings of the file */
	json_decref(root);
	return st;
}

static enum status load_gguf(struct model_config *out, const char *path, const struct log *log, struct error *err)
{
	struct gguf file;
	TRY(gguf_open(&file, path, err));
	enum status st = gguf_config(out, &file, log, err);
	gguf_close(&file);
	return st;
}

enum status model_config_load(struct model_config *out, const char *path, const struct log *log, struct error *err)
{
	*out = (struct model_config){0};
	if (gguf_is_file(path)) return load_gguf(out, path, log, err);
	struct buf file = {0}, text = {0}, folder = {0};
	struct generation_defaults ignored;
	struct stat info;
	enum status st;
	bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
	TRY_GOTO(buf_printf(&file, err, is_folder ? "%s/config.json" : "%s", path), out);
	TRY_GOTO(buf_puts(&folder, path, err), out);
	TRY_GOTO(buf_read_regular(&text, file.data, MAX_CONFIG_BYTES, err), out);
	TRY_GOTO(model_config_parse(out, text.data, text.size, file.data, log, err), out);
	TRY_GOTO(generation_defaults_load(&ignored, out, is_folder ? path : dirname(folder.data), err), out);
out:
	if (st != STATUS_OK) *out = (struct model_config){0};
	buf_fini(&file);
	buf_fini(&text);
	buf_fini(&folder);
	return st;
}

static enum status read_generation(struct generation_defaults *out, struct model_config *config, const struct fields *f, struct error *err)
{
	TRY(read_eos(config, f, err));
	TRY(fields_number(f, "temperature", 0, false, 1e6, &out->temperature, err));
	TRY(fields_number(f, "top_p", 0, false, 1, &out->top_p, err));
	TRY(fields_number(f, "repetition_penalty", 0, true, 1e6, &out->repetition_penalty, err));
	TRY(fields_int64(f, "top_k", -1, INT32_MAX, &out->top_k, err));
	return fields_bool(f, "do_sample", &out->do_sample, err);
}

enum status generation_defaults_load(struct generation_defaults *out, struct model_config *config, const char *folder, struct error *err)
{
	const struct generation_defaults absent = {.temperature = __builtin_nan(""), .top_p = __builtin_nan(""), .repetition_penalty = __builtin_nan(""), .top_k = -1};
	*out = absent;
	struct buf path = {0};
	json_t *root = NULL;
	enum status st;
	struct stat info;
	TRY_GOTO(buf_printf(&path, err, "%s/generation_config.json", folder), out);
	if (stat(path.data, &info) != 0) goto out;
	TRY_GOTO(fields_load_regular(&root, path.data, MAX_CONFIG_BYTES, err), out);
	struct fields f = {root, path.data, ""};
	TRY_GOTO(read_generation(out, config, &f, err), out);
out:
	if (st != STATUS_OK) *out = absent;
	json_decref(root);
	buf_fini(&path);
	return st;
}
