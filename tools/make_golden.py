#!/usr/bin/env python3
"""Golden vectors: tiny random models with the logits that Hugging Face transformers computes for them.

    pip install torch transformers safetensors numpy
    python3 tools/make_golden.py tiny [NAME ...]       write tests/golden/<NAME>/ and tests/golden/INDEX.json
    python3 tools/make_golden.py smollm2 FOLDER        write tests/golden/smollm2.json from the folder that
                                                       tools/smollm2_folder.py made

Run by hand; the output is committed. The weights come from numpy's generator, seeded by model and tensor name, so a
second run writes the same weights; the logits repeat bit for bit on one machine and to float32 rounding on another.

Every model is there for one way of getting a forward pass wrong. Before a model is written, the tool proves that it
can tell: it checks transformers against tools/golden_oracle.py (double precision, no shared code), for each config
variant, and then that logits move by more than SENSITIVE when any single tensor is shuffled, when Q and K are rotated
in the other RoPE layout, and for each wrong reading of the config listed with the model.

`dynamic` RoPE deserves a note. transformers takes the base from the longest position of the *call*, for all rows of
that call, and leaves cached keys as they are. So its logits beyond max_position_embeddings depend on how the
prompt was cut into calls. Fed token by token it has one meaning, the one that holds for decoding anyway: the row at
position p uses theta'(max(p + 1, max_position_embeddings)). The case `long` records that.
"""
import argparse
import copy
import json
import math
import re
import shutil
import struct
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, DynamicCache

import golden_oracle as oracle

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
AGREE = 1e-5           # transformers (f32) against the oracle (f64), relative L2
SENSITIVE = 1e-2       # a wrong forward pass must be at least this far off
MIN_GAP = 1e-3         # least gap between the router's logits of the last expert chosen and of the next
MIN_MARGIN = 5e-3      # least gap between the two largest logits, at every position
MIN_DISTINCT = 12      # distinct tokens in a continuation: one that runs in a circle tests little
UNUSED_EOS = 2         # eos of all models; in no continuation


@dataclass
class Golden:
    name: str
    quirk: str
    config: dict                                    # what differs from BASE, in the new key style
    model_type: str = "llama"
    dtype: str = "BF16"
    style: str = "new"                              # key style of config.json; the other one lies beside it
    omit: tuple = ()                                # keys that config.json lacks (their defaults apply)
    old: dict = field(default_factory=dict)         # keys that only the old style has
    type_key: str = "rope_type"                     # its name in an old rope_scaling
    tokens: int = 48
    continuation: int = 24
    long_tokens: int = 0                            # a second case of this length, fed token by token
    files: int = 1                                  # number of safetensors files
    keep_head: bool = False                         # a tied model whose file still has lm_head.weight
    nested: bool = False                            # config under text_config, tensors under model.language_model.
    float32: tuple = ()                             # ends of names of tensors that are F32 whatever dtype says
    stacked: bool = False                           # all experts of a layer in one tensor (transformers 5); else one for each
    stop: bool = False                              # eos lists in config.json and generation_config.json
    wrong: dict = field(default_factory=dict)       # name of a mistake -> what it does to the oracle's config


BASE = dict(vocab_size=160, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=4, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
NO_SCALING = {"rope": {"rope_type": "default"}}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}

HYBRID = dict(num_hidden_layers=4, head_dim=16, linear_num_key_heads=8, linear_num_value_heads=16, linear_key_head_dim=8,
              linear_value_head_dim=12, rms_norm_eps=1e-6,
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
GEMMA_WRONG = {"silu": {"silu": True}, "embedding not scaled": {"no_embedding_scale": True}, "scores by head_dim": {"query_pre_attn_scalar": 16},
               "window + 1": {"sliding_window": 10}, "full attention": {"sliding_window": 1000}}
MOE_WRONG = {"logits chosen without their softmax": {"router_weights": "none"}, "an expert more": {"num_experts_per_tok": 4}}
SHARED_WRONG = {"shared expert without its gate": {"shared_gate": "none"}}

MODELS = [
    Golden("llama", "plain Llama, untied head, F32", {}, dtype="F32", style="old",
           wrong={"theta": {"rope": {"rope_theta": 500000.0}}, "eps": {"rms_norm_eps": 0.1}}),
    Golden("llama-tied", "tied embeddings, vocabulary divisible by no degree, F16, rope_theta 500", dict(
        tie_word_embeddings=True, vocab_size=163, num_hidden_layers=3, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}), dtype="F16",
        wrong={"theta": {"rope": {"rope_theta": 10000.0}}}),
    Golden("llama-bias", "attention_bias on q, k, v, o and mlp_bias on gate, up, down",
           dict(attention_bias=True, mlp_bias=True)),
    Golden("llama-head-dim", "head_dim 16 is not hidden_size / heads; intermediate 128",
           dict(head_dim=16, intermediate_size=128, tie_word_embeddings=True), style="old"),
    Golden("llama-defaults", "config.json without num_key_value_heads (MHA), head_dim, rope_theta, tie flag",
           dict(num_key_value_heads=8), dtype="F16", style="old",
           omit=("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "tie_word_embeddings",
                 "attention_bias", "mlp_bias")),
    Golden("rope-llama3", "llama3 RoPE, new style rope_parameters",
           dict(head_dim=16, tie_word_embeddings=True, rope_parameters=LLAMA3), wrong={"no scaling": NO_SCALING}),
    Golden("rope-llama3-old", "llama3 RoPE, old style rope_scaling with rope_type, theta at top level",
           dict(head_dim=16, tie_word_embeddings=True, rope_parameters={
               **LLAMA3, "rope_theta": 200.0, "factor": 4.0, "high_freq_factor": 8.0,
               "original_max_position_embeddings": 64}), style="old", wrong={"no scaling": NO_SCALING}),
    Golden("rope-linear", "linear RoPE, old style rope_scaling with `type`",
           dict(head_dim=16, tie_word_embeddings=True,
                rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
           style="old", type_key="type", wrong={"no scaling": NO_SCALING}),
    Golden("rope-dynamic", "dynamic NTK RoPE; `prompt` stays within the original length, `long` goes beyond it and was "
           "computed token by token",
           dict(head_dim=16, tie_word_embeddings=True, max_position_embeddings=64,
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}),
           style="old", tokens=40, long_tokens=80, wrong={"long: no scaling": NO_SCALING}),
    Golden("rope-yarn", "yarn RoPE, attention_factor by default",
           dict(head_dim=16, tie_word_embeddings=True,
                rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0,
                                 "original_max_position_embeddings": 64}),
           wrong={"no scaling": NO_SCALING, "attention factor 1": {"rope": {"attention_factor": 1.0}}}),
    Golden("rope-yarn-mscale", "yarn RoPE with mscale, mscale_all_dim, beta_fast, beta_slow, truncate false",
           dict(head_dim=16, tie_word_embeddings=True,
                rope_parameters={"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "mscale": 1.0,
                                 "mscale_all_dim": 0.5, "beta_fast": 6.0, "beta_slow": 0.7, "truncate": False,
                                 "original_max_position_embeddings": 32}),
           style="old",
           wrong={"no scaling": NO_SCALING, "truncate": {"rope": {"truncate": True}},
                  "mscale ignored": {"rope": {"mscale": None}},
                  "betas ignored": {"rope": {"beta_fast": 32, "beta_slow": 1}}}),
    Golden("llama-12-heads", "12 query and 12 KV heads, intermediate 96: degrees with factor 3",
           dict(hidden_size=72, head_dim=8, intermediate_size=96, num_attention_heads=12, num_key_value_heads=12,
                vocab_size=168, tie_word_embeddings=True)),
    Golden("llama-9-heads", "9 query and 3 KV heads (as SmolLM2), intermediate 96: degree 3",
           dict(hidden_size=72, intermediate_size=96, num_attention_heads=9, num_key_value_heads=3,
                tie_word_embeddings=True), style="old"),
    Golden("mistral-window", "Mistral, sliding_window 12 on every layer",
           dict(sliding_window=12, tie_word_embeddings=True), model_type="mistral", tokens=64, style="old",
           wrong={"full attention": {"sliding_window": None}, "window + 1": {"sliding_window": 13},
                  "window - 1": {"sliding_window": 11}}),
    Golden("mistral-full", "Mistral, sliding_window null, head_dim 16 is not hidden_size / heads, 2 KV heads",
           dict(sliding_window=None, head_dim=16, num_key_value_heads=2), model_type="mistral",
           wrong={"window 12": {"sliding_window": 12}}),
    Golden("qwen2", "Qwen2: bias on q, k, v, none on o; tied; the old style names a window that is not in use",
           dict(tie_word_embeddings=True, rms_norm_eps=1e-6, use_sliding_window=False, sliding_window=None,
                max_window_layers=1, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
           model_type="qwen2", dtype="F16", style="old", old={"sliding_window": 12},
           wrong={"window used": {"use_sliding_window": True, "sliding_window": 12, "layer_types": None}}),
    Golden("qwen2-window", "Qwen2 with use_sliding_window: layer 0 full, 1 and 2 sliding (old style: max_window_layers)",
           dict(num_hidden_layers=3, tie_word_embeddings=True, use_sliding_window=True, sliding_window=10,
                max_window_layers=1, layer_types=["full_attention", "sliding_attention", "sliding_attention"]),
           model_type="qwen2", tokens=56,
           wrong={"full attention": {"use_sliding_window": False},
                  "window everywhere": {"layer_types": ["sliding_attention"] * 3},
                  "layers swapped": {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}}),
    Golden("qwen3", "Qwen3: RMS norm of q and k per head; head_dim 16 is not hidden_size / heads; eos lists in "
           "config.json and generation_config.json",
           dict(head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False, sliding_window=None,
                max_window_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0}),
           model_type="qwen3", stop=True),
    Golden("qwen3-moe", "Qwen3-MoE: 2 of 8 experts on every layer, a tensor per expert; weights of the chosen do not sum to 1",
           dict(head_dim=16, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=False, tie_word_embeddings=True,
                use_sliding_window=False, sliding_window=None),
           model_type="qwen3_moe", wrong={**MOE_WRONG, "weights made to sum to 1": {"norm_topk_prob": True}}),
    Golden("qwen3-moe-norm", "Qwen3-MoE with norm_topk_prob, mlp_only_layers [0], all experts in one tensor",
           dict(head_dim=16, num_hidden_layers=3, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
                mlp_only_layers=[0], tie_word_embeddings=True, use_sliding_window=False, sliding_window=None),
           model_type="qwen3_moe", stacked=True, wrong={**MOE_WRONG, "norm ignored": {"norm_topk_prob": False}}),
    Golden("qwen3-moe-step", "Qwen3-MoE with decoder_sparse_step 2: layers 1 and 3 have experts; 12 query and 3 KV heads; F16",
           dict(hidden_size=72, num_attention_heads=12, num_key_value_heads=3, intermediate_size=48, num_hidden_layers=4, num_experts=5, head_dim=8,
                num_experts_per_tok=2, moe_intermediate_size=36, norm_topk_prob=False, decoder_sparse_step=2,
                tie_word_embeddings=True, use_sliding_window=False, sliding_window=None), dtype="F16",
           model_type="qwen3_moe", style="old", files=2, wrong=MOE_WRONG),
    Golden("qwen3-moe-window", "Qwen3-MoE with use_sliding_window: every layer slides; the old style names a max_window_layers that is not this model's",
           dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=False, tie_word_embeddings=True,
                use_sliding_window=True, sliding_window=10),
           model_type="qwen3_moe", tokens=56, old={"max_window_layers": 1},
           wrong={**MOE_WRONG, "full attention": {"use_sliding_window": False}, "window + 1": {"sliding_window": 11}, "window - 1": {"sliding_window": 9}}),
    Golden("llama-split", "three safetensors files with model.safetensors.index.json",
           dict(tie_word_embeddings=True), files=3),
    Golden("llama-tied-head", "tied embeddings although the file also has lm_head.weight (equal to the embedding)",
           dict(tie_word_embeddings=True), keep_head=True),
    Golden("nested", "Llama under text_config, tensors under model.language_model., tie flag at top level; tensors of a "
           "vision tower and of an MTP layer to be skipped", dict(tie_word_embeddings=True), nested=True),
    Golden("qwen3_5", "Qwen3.5: gated delta net in layers 0 to 2, layer 3 full attention with output gate, centred norms, rotary "
           "over a quarter of the head; 8 key heads of 8, 16 value heads of 12",
           dict(HYBRID, tie_word_embeddings=True), model_type="qwen3_5_text", old={"full_attention_interval": 4},
           wrong={"rotary over the whole head": {"rotary_dim": 16}, "no output gate": {"no_output_gate": True},
                  "no l2 norm": {"no_l2_norm": True}}),
    Golden("qwen3_5-composite", "Qwen3.5 under text_config beside a vision tower and an MTP layer, tie flag above; layers by layer_types, full attention "
           "first; 3 value heads a key head, 3 taps, A_log and norms in F32",
           dict(HYBRID, hidden_size=48, intermediate_size=96, num_attention_heads=12, num_key_value_heads=4, head_dim=24, num_hidden_layers=3,
                linear_num_key_heads=4, linear_num_value_heads=12, linear_key_head_dim=20, linear_value_head_dim=8, linear_conv_kernel_dim=3,
                layer_types=["full_attention", "linear_attention", "linear_attention"], tie_word_embeddings=True,
                rope_parameters={"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.25}),
           model_type="qwen3_5_text", nested=True, float32=("A_log", "linear_attn.norm.weight"),
           old={"layer_types": ["full_attention", "linear_attention", "linear_attention"]}),
    Golden("qwen3_next-dense", "Qwen3-Next without experts: q k v z and b a in turn by key head, attention_bias on q with its gate, k, v, o; every "
           "second layer full attention",
           dict(HYBRID, num_experts=0, num_experts_per_tok=1, attention_bias=True, linear_num_key_heads=4, linear_num_value_heads=8,
                layer_types=["linear_attention", "full_attention"] * 2),
           model_type="qwen3_next", dtype="F16", style="old", old={"full_attention_interval": 2, "tie_word_embeddings": False}),
    Golden("gemma3", "Gemma 3: four norms, scaled embedding, gelu; layers 2 and 4 full with linear RoPE, the others slide over 9 tokens with a base "
           "of their own; scores scaled by 40, not by the heads' 16; one KV head",
           dict(num_hidden_layers=5, head_dim=16, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True, query_pre_attn_scalar=40,
                sliding_window=9, layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
                rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}),
           model_type="gemma3_text", tokens=56, old={"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                                                                     "full_attention"]},
           wrong={**GEMMA_WRONG, "one rope": {"one_rope": True}, "no scaling": NO_SCALING}),
    Golden("gemma3-composite", "Gemma 3 under text_config beside a vision tower: keys for heads absent, sliding_window_pattern, rope_local_base_freq, "
           "rope_scaling of the full layers; final soft cap",
           dict(num_hidden_layers=4, head_dim=16, num_key_value_heads=4, rms_norm_eps=1e-6, tie_word_embeddings=True, query_pre_attn_scalar=24,
                sliding_window=9, final_logit_softcapping=5.0, layer_types=["sliding_attention", "full_attention"] * 2,
                rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 2.0},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
           model_type="gemma3_text", nested=True, style="old", old={"sliding_window_pattern": 2},
           omit=("num_attention_heads", "num_key_value_heads"),
           wrong={**GEMMA_WRONG, "one rope": {"one_rope": True}, "no soft cap": {"final_logit_softcapping": None}}),
    Golden("gemma2", "Gemma 2: layers 0 and 2 slide over 9 tokens, layer 1 full; scores and logits soft capped, no norm of q and k",
           dict(num_hidden_layers=3, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True, query_pre_attn_scalar=24, sliding_window=9,
                attn_logit_softcapping=3.0, final_logit_softcapping=6.0, rope_parameters={"rope_type": "default", "rope_theta": 1000.0}),
           model_type="gemma2", tokens=56, dtype="F16",
           wrong={**GEMMA_WRONG, "no soft cap": {"final_logit_softcapping": None}, "scores not capped": {"attn_logit_softcapping": None}}),
    Golden("qwen3_next-moe", "Qwen3-Next: 3 of 8 experts and a shared one of another width, a tensor per expert; layer 2 dense",
           dict(HYBRID, num_hidden_layers=3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=24,
                linear_num_key_heads=8, linear_num_value_heads=8, linear_value_head_dim=8, mlp_only_layers=[2], tie_word_embeddings=True,
                layer_types=["linear_attention", "full_attention", "linear_attention"]),
           model_type="qwen3_next", old={"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
           wrong={**MOE_WRONG, **SHARED_WRONG, "norm ignored": {"norm_topk_prob": False}}),
    Golden("qwen3_5-moe", "Qwen3.5-MoE: 2 of 5 experts in one tensor and a shared one of equal width, under text_config",
           dict(HYBRID, num_hidden_layers=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
                linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"], tie_word_embeddings=True),
           model_type="qwen3_5_moe_text", nested=True, stacked=True, old={"layer_types": ["linear_attention", "full_attention"]},
           wrong={**MOE_WRONG, **SHARED_WRONG}),
]


# ---- weights ---------------------------------------------------------------------------------------------------

def random_tensor(model, seed, name, shape):
    """Large enough that attention is peaked and every tensor matters; see SENSITIVE."""
    rng = np.random.Generator(np.random.PCG64([zlib.crc32(f"{model}/{name}".encode()), seed]))
    if model.startswith("gemma") and name == "model.norm.weight":
        return rng.uniform(4, 12, shape)                                            # logits of usual size from a small embedding
    if "norm" in name:
        centred = model.startswith(("qwen3_5", "qwen3_next", "gemma")) and "linear_attn" not in name
        return rng.uniform(0.5, 1.5, shape) - centred
    if name.endswith("A_log"):
        return rng.uniform(-3, 1, shape)
    if name.endswith("dt_bias"):
        return rng.normal(0, 1, shape)
    if name.endswith("conv1d.weight"):
        return rng.normal(0, 0.6, shape)
    if "linear_attn.in_proj" in name:
        return rng.normal(0, 2 / np.sqrt(shape[1]), shape)
    if name.endswith(".bias"):
        return rng.normal(0, 0.4, shape)
    if "embed_tokens" in name or "lm_head" in name:
        return rng.normal(0, 0.03 if model.startswith("gemma") else 0.25, shape)   # Gemma's is scaled: a token must not predict itself
    gain = 1.5 if re.search(r"[qk]_proj", name) else 1.2
    return rng.normal(0, gain / np.sqrt(shape[-1]), shape)


def encode(values, dtype):
    """float64 array -> (stored bytes). BF16 rounds to nearest even."""
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors, golden):
    header, blob = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(tensors):
        dtype = "F32" if name.endswith(golden.float32) else golden.dtype
        data = encode(tensors[name], dtype)
        header[name] = {"dtype": dtype, "shape": list(tensors[name].shape),
                        "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def tensor_per_expert(tensors):
    """The layout of most published checkpoints: `experts.E.gate_proj.weight` and so on."""
    split = {}
    for name, value in tensors.items():
        if not re.search(r"\.experts\.(gate_up|down)_proj$", name):
            split[name] = value
            continue
        prefix, kind = name.rsplit(".", 1)
        for e, rows in enumerate(value):
            parts = {"down_proj": rows} if kind == "down_proj" else dict(zip(("gate_proj", "up_proj"), np.split(rows, 2)))
            split.update({f"{prefix}.{e}.{part}.weight": part_rows for part, part_rows in parts.items()})
    return split


def write_weights(folder, golden, seed, shapes):
    tensors = {name: random_tensor(golden.name, seed, name, shape) for name, shape in shapes.items()}
    if not golden.stacked:
        tensors = tensor_per_expert(tensors)
    if golden.config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    if golden.keep_head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if golden.nested:
        tensors = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
        for name in ("model.visual.patch_embed.proj.weight", "mtp.fc.weight"):
            tensors[name] = random_tensor(golden.name, seed, name, (4, 8))
    if golden.files == 1:
        return write_safetensors(folder / "model.safetensors", tensors, golden)
    names = sorted(tensors)
    weight_map = {name: f"model-{i * golden.files // len(names) + 1:05}-of-{golden.files:05}.safetensors"
                  for i, name in enumerate(names)}
    for file in sorted(set(weight_map.values())):
        write_safetensors(folder / file, {name: tensors[name] for name in names if weight_map[name] == file}, golden)
    size = sum(len(encode(value, golden.dtype)) for value in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})


# ---- config ----------------------------------------------------------------------------------------------------

def write_json(path, value):
    """Indented, but a list of plain values stays on one line."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    flat = lambda match: "[" + re.sub(r"\s*\n\s*", " ", match.group(1)) + "]"
    path.write_text(re.sub(r"\[\n\s*([^\[\]{}]*?)\s*\]", flat, text) + "\n", encoding="utf-8")


def new_style(golden):
    """config.json as transformers 5 writes it."""
    torch_dtype = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[golden.dtype]
    architecture = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                    "qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM", "qwen3_5_text": "Qwen3_5ForCausalLM",
                    "qwen3_next": "Qwen3NextForCausalLM", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
                    "gemma2": "Gemma2ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}[golden.model_type]
    settings = copy.deepcopy({**BASE, **golden.config})       # the config class edits what it is given
    settings.update(bos_token_id=1, eos_token_id=[UNUSED_EOS, 3] if golden.stop else UNUSED_EOS,
                    architectures=[architecture], dtype=torch_dtype)
    config = AutoConfig.for_model(golden.model_type, **settings)
    return json.loads(config.to_json_string())


def old_style(golden, config):
    """The same, as transformers 4 wrote it."""
    config = dict(config)
    rope = config.pop("rope_parameters")
    if "sliding_attention" in rope:
        config["rope_local_base_freq"], rope = rope["sliding_attention"]["rope_theta"], rope["full_attention"]
    config["rope_theta"] = rope["rope_theta"]
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "rope_type")}
    config["rope_scaling"] = {golden.type_key: rope["rope_type"], **scaling} if scaling else None
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.46.0"
    config.pop("layer_types", None)
    if "num_local_experts" in config:
        config["num_experts"] = config.pop("num_local_experts")
    config.update(golden.old)
    return dict(sorted(config.items()))


def nest(config):
    """The shape of a multimodal config: the text model's keys one level down, the tie flag above."""
    outer = {key: config.pop(key) for key in ("tie_word_embeddings", "transformers_version")}
    config.pop("architectures")
    if config["model_type"] == "gemma3_text":
        return {"architectures": ["Gemma3ForConditionalGeneration"], "image_token_index": 9, "model_type": "gemma3",
                "text_config": config, **outer, "vision_config": {"hidden_size": 8, "model_type": "siglip_vision_model"}}
    if config["model_type"].startswith("qwen3_5"):
        kind = config["model_type"].removesuffix("_text")
        architecture = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[kind]
        return {"architectures": [architecture], "image_token_id": 9, "model_type": kind,
                "text_config": config, **outer, "vision_config": {"hidden_size": 8, "model_type": kind + "_vision"}}
    return {"architectures": ["LlavaForConditionalGeneration"], "image_token_index": 9, "model_type": "llava",
            "text_config": config, **outer, "vision_config": {"hidden_size": 8, "model_type": "clip_vision_model"}}


def write_configs(folder, golden):
    """config.json in the model's style, config.<other style>.json beside it; returns their names."""
    new = new_style(golden)
    variants = {"new": new, "old": old_style(golden, new)}
    names = []
    for style in (golden.style, "old" if golden.style == "new" else "new"):
        config = variants[style]
        if style == golden.style:
            config = {key: value for key, value in config.items() if key not in golden.omit}
        names.append("config.json" if style == golden.style else f"config.{style}.json")
        write_json(folder / names[-1], nest(config) if golden.nested else config)
    return names


# ---- transformers ----------------------------------------------------------------------------------------------

def load(folder, config_name="config.json"):
    """The model in float32 with eager attention, read by transformers' own loader (a nested one: by hand)."""
    settings = json.loads((folder / config_name).read_text())
    nested = "text_config" in settings
    if nested:
        settings = {**settings["text_config"], "tie_word_embeddings": settings["tie_word_embeddings"]}
    config = AutoConfig.for_model(**settings)
    options = dict(attn_implementation="eager", dtype=torch.float32)
    if not nested:
        return AutoModelForCausalLM.from_pretrained(folder, config=config, **options).eval()
    model = AutoModelForCausalLM.from_config(config, **options).eval()
    weights = {name: torch.tensor(value, dtype=torch.float32) for name, value in oracle.read_weights(folder).items()}
    missing = model.load_state_dict(weights, strict=False).missing_keys
    assert missing == (["lm_head.weight"] if settings["tie_word_embeddings"] else []), missing
    return model


def one_pass(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def token_by_token(model, tokens):
    cache, rows = DynamicCache(config=model.config), []
    with torch.no_grad():
        for token in tokens:
            rows.append(model(torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0, -1].numpy())
    return np.stack(rows)


def margins(rows):
    top = np.sort(rows, axis=-1)
    return [float(f"{gap:.4g}") for gap in top[:, -1] - top[:, -2]]


def continue_greedily(model, tokens, count, stepwise=False):
    """(tokens, margins) of the continuation; the prompt goes in at once, or token by token."""
    cache, chunks = DynamicCache(config=model.config), [[token] for token in tokens] if stepwise else [tokens]
    chosen, rows = [], []
    with torch.no_grad():
        for chunk in chunks:
            row = model(torch.tensor([chunk]), past_key_values=cache, use_cache=True).logits[0, -1].numpy()
        while len(chosen) < count:
            chosen.append(int(row.argmax()))
            rows.append(row)
            row = model(torch.tensor([[chosen[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1].numpy()
    return chosen, margins(np.stack(rows))


# ---- cases -----------------------------------------------------------------------------------------------------

def make_case(model, golden, seed, name, length, stepwise):
    """One prompt with its logits and continuation; None if some position is close to a tie, meets eos or repeats."""
    rng = np.random.Generator(np.random.PCG64([zlib.crc32(f"{golden.name}/{name}".encode()), seed]))
    tokens = [1] + rng.integers(4, model.config.vocab_size, length - 1).tolist()
    rows = token_by_token(model, tokens) if stepwise else one_pass(model, tokens)
    gaps = margins(rows)
    greedy, greedy_gaps = continue_greedily(model, tokens, golden.continuation, stepwise)
    if min(gaps + greedy_gaps) < MIN_MARGIN or len(set(greedy)) < MIN_DISTINCT or {UNUSED_EOS, 3} & set(greedy):
        return None, None
    case = {"name": name, "fed": "token by token" if stepwise else "in one pass", "tokens": tokens,
            "logits": "logits.bin" if name == "prompt" else f"logits-{name}.bin", "shape": list(rows.shape),
            "argmax": rows.argmax(-1).tolist(), "margin": gaps, "min_margin": min(gaps),
            "greedy": greedy, "greedy_margin": greedy_gaps, "min_greedy_margin": min(greedy_gaps)}
    return case, rows


def make_cases(model, golden, seed):
    wanted = [("prompt", golden.tokens, False)] + ([("long", golden.long_tokens, True)] if golden.long_tokens else [])
    made = [make_case(model, golden, seed, *arguments) for arguments in wanted]
    return made if all(case for case, _ in made) else None


def record_stop(folder, golden, model, case):
    """Declare a token of the continuation an eos, in generation_config.json only, and record where that ends it."""
    first = next(i for i in range(8, golden.continuation) if case["greedy"][i] not in case["greedy"][:i])
    eos = [UNUSED_EOS, 3, case["greedy"][first]]
    write_json(folder / "generation_config.json", {
        "bos_token_id": 1, "do_sample": False, "eos_token_id": eos, "transformers_version": transformers.__version__})
    model = load(folder)
    out = model.generate(torch.tensor([case["tokens"]]), max_new_tokens=golden.continuation)
    out = out[0, len(case["tokens"]):].tolist()
    assert out == case["greedy"][:first + 1], (out, case["greedy"])
    case["stop"] = {"eos": eos, "greedy": out}


# ---- proofs ----------------------------------------------------------------------------------------------------

def legal_degrees(config):
    """Degrees up to 8 at which heads and intermediate sizes divide (KV heads may be replicated)."""
    q, kv = config["num_attention_heads"], config["num_key_value_heads"]
    keys = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "linear_num_key_heads", "linear_num_value_heads")
    sizes = [config.get(key, 0) for key in keys]
    return [p for p in range(1, 9) if q % p == 0 and (kv % p == 0 or p % kv == 0) and all(size % p == 0 for size in sizes)]


def other_rope_layout(weights, config):
    """Rows of Q and K in the order of interleaved pairs: what a rotation of (2i, 2i+1) would amount to."""
    changed = dict(weights)
    for name, value in weights.items():
        if re.search(r"self_attn\.[qk]_(proj|norm)", name):
            gated = config["hybrid"] and "q_proj" in name
            heads = value.reshape(-1, config["head_dim"] * (2 if gated else 1), *value.shape[1:]).copy()
            turned = heads[:, :config["rotary_dim"]]
            parts = turned.reshape(len(heads), config["rotary_dim"] // 2, 2, *value.shape[1:])
            heads[:, :config["rotary_dim"]] = parts.swapaxes(1, 2).reshape(turned.shape)
            changed[name] = heads.reshape(value.shape)
    return changed


def override(config, change):
    return {**config, **change, "rope": {**config["rope"], **change.get("rope", {})}}


def check_variants(folder, golden, names, cases):
    """transformers reads every config variant alike, and the oracle agrees."""
    weights = oracle.read_weights(folder)
    worst = 0.0
    for name in names:
        model, config = load(folder, name), oracle.read_config(folder / name)
        for case, rows in cases:
            feed = token_by_token if case["fed"] == "token by token" else one_pass
            again = feed(model, case["tokens"])
            assert np.array_equal(again, rows), f"{golden.name}: {name} gives other logits than config.json"
            expected = oracle.logits(config, weights, case["tokens"] + case["greedy"][:-1])
            assert expected[len(rows) - 1:].argmax(-1).tolist() == case["greedy"], f"{golden.name}: other continuation"
            error = oracle.relative_error(rows, expected[:len(rows)])
            assert error < AGREE, f"{golden.name}: {name}, case {case['name']}: oracle differs by {error:.1e}"
            worst = max(worst, error)
    return worst


def check_sensitivity(folder, golden, cases):
    """The least effect, on the last case's logits, of shuffling a tensor or of misreading the config."""
    config, weights = oracle.read_config(folder / "config.json"), oracle.read_weights(folder)
    tokens = cases[-1][0]["tokens"]
    right = oracle.logits(config, weights, tokens)
    effects = {"RoPE layout": oracle.logits(config, other_rope_layout(weights, config), tokens)}
    for mistake, change in golden.wrong.items():
        effects[mistake] = oracle.logits(override(config, change), weights, tokens)
    unused = ("model.visual.", "mtp.") + (("lm_head.",) if config.get("tie_word_embeddings") else ())
    for name in weights:
        if not name.startswith(unused):
            effects[name] = oracle.logits(config, {**weights, name: np.roll(weights[name], 1, axis=0 if len(weights[name]) > 1 else -1)}, tokens)
    effects = {name: oracle.relative_error(wrong, right) for name, wrong in effects.items()}
    least = min(effects, key=effects.get)
    assert effects[least] > SENSITIVE, f"{golden.name}: {least} moves the logits by {effects[least]:.1e} only"
    return least, effects[least]


# ---- commands --------------------------------------------------------------------------------------------------

def clear_choices(folder, cases):
    """No token of any case is close to choosing another expert."""
    config, weights, gaps = oracle.read_config(folder / "config.json"), oracle.read_weights(folder), [math.inf]
    for case, _ in cases:
        oracle.logits(config, weights, case["tokens"] + case["greedy"][:-1], gaps)
    return min(gaps) >= MIN_GAP


def make_model(golden):
    folder = GOLDEN / golden.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    names = write_configs(folder, golden)
    settings = copy.deepcopy({**BASE, **golden.config})
    shapes = {name: tuple(value.shape) for name, value in
              AutoModelForCausalLM.from_config(AutoConfig.for_model(golden.model_type, **settings)).state_dict().items()}
    for seed in range(100):
        write_weights(folder, golden, seed, shapes)
        model = load(folder)
        cases = make_cases(model, golden, seed)
        if cases and clear_choices(folder, cases):
            break
    else:
        raise SystemExit(f"make_golden: {golden.name}: no seed gives clear margins")
    error = check_variants(folder, golden, names, cases)
    least, effect = check_sensitivity(folder, golden, cases)
    if golden.stop:
        record_stop(folder, golden, model, cases[0][0])
    for case, rows in cases:
        rows.astype("<f4").tofile(folder / case["logits"])
    write_json(folder / "expect.json", {
        "name": golden.name, "quirk": golden.quirk, "seed": seed, "dtype": golden.dtype,
        "legal_tp": legal_degrees(settings), "configs": names, "oracle_relative_l2": float(f"{error:.1e}"),
        "cases": [case for case, _ in cases]})
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{golden.name:18} seed {seed:2}  {size / 1024:5.0f} KiB  oracle {error:.1e}  least effect {effect:.2f} ({least})")


def write_index():
    index = []
    for golden in MODELS:
        folder = GOLDEN / golden.name
        if not folder.exists():
            continue
        expect = json.loads((folder / "expect.json").read_text())
        index.append({"name": golden.name, "model_type": golden.model_type, "dtype": golden.dtype, "quirk": golden.quirk,
                      "legal_tp": expect["legal_tp"], "configs": expect["configs"],
                      "files": sorted(file.name for file in folder.iterdir())})
    write_json(GOLDEN / "INDEX.json", {
        "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "numpy": np.__version__,
        "models": index})


def tiny(names):
    unknown = set(names) - {golden.name for golden in MODELS}
    if unknown:
        raise SystemExit(f"make_golden: no such model: {', '.join(sorted(unknown))}")
    for golden in MODELS:
        if not names or golden.name in names:
            make_model(golden)
    write_index()


# ---- SmolLM2 ---------------------------------------------------------------------------------------------------

SMOLLM2_TOKENS = 64
SMOLLM2_MIN_MARGIN = 1e-3
SMOLLM2_PROMPTS = [
    ("story", "Once upon a time, in a small village by the sea,"),
    ("code", "import json\n\nclass Config:\n    def __init__(self, path):\n"),
    ("multilingual", "Bonjour, je m'appelle Claire et j'habite à Paris. 你好,世界! Привет, мир!"),
    ("numbers", "List of the planets with their distance from the Sun in 1,000,000 km: Mercury 57.9, Venus 108.2,"),
    ("chat", [{"role": "user", "content": "What is gravity? Answer in one sentence."}]),
    ("chat-system", [{"role": "system", "content": "You are a helpful pirate."},
                     {"role": "user", "content": "Tell me a short story about a cat."}]),
]


def smollm2_case(model, tokenizer, name, prompt):
    case = {"name": name}
    if isinstance(prompt, list):
        case["messages"] = prompt
        prompt = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    assert tokenizer.decode(tokens) == prompt
    greedy, gaps = continue_greedily(model, tokens, SMOLLM2_TOKENS)
    assert min(gaps) >= SMOLLM2_MIN_MARGIN, f"{name}: margin {min(gaps)}"
    eos = model.config.eos_token_id
    case.update(text=prompt, tokens=tokens, greedy=greedy, greedy_text=tokenizer.decode(greedy),
                first_eos=greedy.index(eos) if eos in greedy else None, min_margin=min(gaps))
    return case


def smollm2(folder):
    """Greedy continuations of the real model, eos ignored; `first_eos` is the index at which it would have ended."""
    torch.set_num_threads(2)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), load(folder)
    cases = [smollm2_case(model, tokenizer, *prompt) for prompt in SMOLLM2_PROMPTS]
    assert cases[0]["greedy_text"].startswith(" there was a wise old wizard named Thorold.")
    write_json(GOLDEN / "smollm2.json", {
        "model": "SmolLM2-135M-Instruct, Q4_1 expanded to F32 by tools/smollm2_folder.py", "compute": "float32, eager",
        "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "cases": cases})
    for case in cases:
        print(f"{case['name']:14} margin {case['min_margin']:.3f}  {case['greedy_text'][:60]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tiny").add_argument("names", nargs="*", metavar="NAME")
    commands.add_parser("smollm2").add_argument("folder", type=Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore", FutureWarning)      # past_key_values is being renamed to cache
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if args.command == "tiny":
        tiny(args.names)
    else:
        smollm2(args.folder)


if __name__ == "__main__":
    main()
