/* config.h: a model's config.json and generation_config.json (or a GGUF file's metadata) as one plain struct. Every size of the engine comes from here or
 * from the checkpoint (S1). Old and new key styles are accepted; what tandem does not implement is refused by name. A model that
 * can be planned but not run (quantised safetensors, more experts a token than there is room for) loads with `cannot_run` set. Owner: the caller; immutable after load.
 *
 * Defaults are those of the HF configuration classes, except for the sizes that make a model (hidden_size, intermediate_size,
 * num_hidden_layers, num_attention_heads, vocab_size): these must be in the file. All sizes are bounded so that no product of them
 * that the engine or the planner forms (at most sizes of one tensor x layers x 4 bytes) can overflow int64_t.
 */
#ifndef TANDEM_MODEL_CONFIG_H
#define TANDEM_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"
#include "base/log.h"
#include "base/status.h"

#define MODEL_MAX_EOS 16
#define MODEL_MAX_LAYERS 1024
#define MODEL_MAX_HEAD_DIM 512
#define MODEL_MAX_EXPERTS_PER_TOKEN 64 /* of models that run */
#define MODEL_MAX_ROLES 64

enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_DYNAMIC, ROPE_LLAMA3, ROPE_YARN, ROPE_FACTORS };

struct rope_config {
	enum rope_type type;
	double theta;
	double factor;
	double low_freq_factor, high_freq_factor; /* llama3 */
	int64_t original_max_position;            /* llama3, yarn, dynamic */
	double beta_fast, beta_slow;              /* yarn */
	double attention_factor;                  /* yarn; 0: derive */
	double mscale, mscale_all_dim;            /* yarn; 0: absent */
	bool truncate;                            /* yarn */
	float factors[MODEL_MAX_HEAD_DIM / 2];    /* factors: a divisor of each frequency, as GGUF files of Llama 3 give them */
};

enum layer_kind { LAYER_FULL, LAYER_SLIDING, LAYER_GDN };

struct model_config {
	char model_type[48]; /* as the file says: "llama", "qwen3", … */
	int hidden_size;     /* H */
	int intermediate_size; /* I */
	int layers;
	int q_heads, kv_heads, head_dim; /* Nq, Nkv, D */
	int vocab_size;
	int max_position; /* longest context that the file declares, scaled rope counted in */
	float rms_eps;
	bool qkv_bias, o_bias, mlp_bias;
	bool qk_norm;       /* per-head RMS norm of q and k before rope (Qwen3) */
	bool centred_norms; /* the norms of the residual stream and of q and k store their weight less 1 */
	bool four_norms;    /* Gemma: one before and one behind attention, and so the MLP; those behind come before the residual sum */
	bool gelu;          /* the MLP's gate goes through gelu (tanh form), else silu */
	bool scaled_embedding; /* rows of the embedding are multiplied by sqrt(hidden_size) */
	float query_scale;  /* of scores */
	float attn_softcap, final_softcap; /* scores, logits: c tanh(. / c); 0: none */
	bool attn_output_gate; /* q_proj has D more rows behind each head's: sigmoid of these scales what attention gives */
	bool tied;          /* lm_head aliases the embedding */
	enum dtype dtype;   /* declared; the checkpoint's tensors decide */
	int rotary_dim;     /* <= head_dim, even */
	struct rope_config rope;
	bool two_ropes;     /* sliding layers have rope_local, the others rope */
	struct rope_config rope_local;
	int sliding_window; /* tokens; 0: none */
	uint8_t layer_kind[MODEL_MAX_LAYERS]; /* enum layer_kind */
	int eos[MODEL_MAX_EOS], eos_count; /* union of config.json and generation_config.json; no default: a class default (Llama: 2)
	                                    * would be an ordinary token in another vocabulary */
	int bos;                           /* -1: none */

	/* Checkpoints whose tensors have types of their own (GGUF). Block types cannot be cut inside a block, so they bound the degrees. */
	struct {
		bool own_types;                         /* else all tensors are taken to be of `dtype`; with own types that is what most bytes have */
		uint64_t role_bytes[MODEL_MAX_ROLES];   /* by enum weight_role: all layers together */
		bool blocks;                            /* some of a block type (quantised) */
		int o_block, down_block;                /* inputs of o and down that stay together in every layer; 0: any */
	} stored;

	struct {
		int k_heads, k_dim, v_heads, v_dim, conv_kernel;
		bool by_k_head; /* the checkpoint stores q k v z and b a interleaved by k head (qwen3_next), else as flat segments */
	} gdn;                  /* k_heads 0: no GDN layer */
	struct {
		int experts, experts_per_token, intermediate;
		int shared_intermediate; /* 0: no shared expert */
		int layers;              /* how many layers have experts instead of one MLP */
		bool norm_topk;          /* the weights of a token's experts are made to sum to 1 */
		bool stacked;            /* the checkpoint has all experts in one tensor; manifest_match asks it */
		bool sparse[MODEL_MAX_LAYERS]; /* which layers have experts */
	} moe;                  /* experts 0: dense */
	char tensor_prefix[48]; /* "model." or "model.language_model."; manifest_match asks the checkpoint */
	char cannot_run[200];   /* empty: runs. Else why not, for the message */
};

/* How many layers have a state, and no KV. */
static inline int model_gdn_layers(const struct model_config *config)
{
	int layers = 0;
	for (int i = 0; i < config->layers; i++) layers += config->layer_kind[i] == LAYER_GDN;
	return layers;
}

/* Sampling defaults of generation_config.json; absent values are NaN / -1. */
struct generation_defaults {
	double temperature, top_p, repetition_penalty;
	int64_t top_k;
	bool do_sample; /* false when absent */
};

/* `path`: a model folder, a config.json, or a GGUF file. The eos ids of a generation_config.json beside it are added. BAD_INPUT for values that
 * make no sense (zero, negative, 2^62, fractions, strings), UNSUPPORTED for what is not implemented, IO if unreadable. */
enum status model_config_load(struct model_config *out, const char *path, const struct log *log, struct error *err) NODISCARD;
/* The same from text (fuzzing); generation_config.json is not looked for. */
enum status model_config_parse(struct model_config *out, const char *json, size_t n, const char *name, const struct log *log,
                               struct error *err) NODISCARD;
/* Missing file: all absent, OK. Also adds its eos ids to config->eos. */
enum status generation_defaults_load(struct generation_defaults *out, struct model_config *config, const char *folder, struct error *err) NODISCARD;

#endif
