#!/usr/bin/env python3
"""A second opinion on the golden logits: the forward pass in double precision, in numpy, from the formulas alone.

    python3 tools/golden_oracle.py tests/golden/NAME [...]     compare with the recorded logits, print the error

It reads a Hugging Face style folder (config.json in the old or the new key style, safetensors in one file or several)
and knows the Llama, Mistral, Qwen2, Qwen3, Qwen3.5, Qwen3-Next, Gemma 2 and Gemma 3 layers with every RoPE type that the golden
models use, and layers with experts. It shares no code with transformers; where the two agree, the formulas are right and the difference is what
transformers' float32 costs. Slow and small on purpose: no cache, no batch, [T, V] logits in one go. Needs numpy only.
"""
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

NUMPY_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_safetensors(path):
    """{name: float64 array} of one file."""
    blob = path.read_bytes()
    size = struct.unpack_from("<Q", blob)[0]
    header = json.loads(blob[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = np.frombuffer(blob[begin:end], NUMPY_TYPES[entry["dtype"]])
        if entry["dtype"] == "BF16":
            values = (values.astype("<u4") << 16).view("<f4")
        tensors[name] = values.astype(np.float64).reshape(entry["shape"])
    return tensors


def read_weights(folder):
    """All tensors of the model, the prefix of a nested text model removed."""
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    weights = {}
    for name in names:
        weights.update(read_safetensors(folder / name))
    return {name.replace("model.language_model.", "model."): value for name, value in weights.items()}


def read_config(path):
    """config.json as a flat dict with `rope` filled in from whichever key style it has."""
    config = json.loads(path.read_text())
    if "text_config" in config:
        config = {**config["text_config"], "tie_word_embeddings": config.get("tie_word_embeddings", False)}
    config["gemma"] = config["model_type"].startswith("gemma")
    if config["gemma"]:
        config = {**GEMMA, **config}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = config.get("num_key_value_heads") or heads
    config["head_dim"] = config.get("head_dim") or config["hidden_size"] // heads
    config.setdefault("norm_topk_prob", config["model_type"] != "qwen3_moe")
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if config["model_type"] == "gemma3_text":
        local = rope.get("sliding_attention", {})
        config["rope_local"] = {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10000.0), **local}
        rope = {"rope_theta": config.get("rope_theta", 1000000.0), **rope.get("full_attention", rope)}
    rope["rope_type"] = rope.get("rope_type", rope.get("type", "default"))
    rope["rope_theta"] = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    rope["max_position_embeddings"] = config["max_position_embeddings"]
    config["rope"] = rope
    config["hybrid"] = config["model_type"].startswith(("qwen3_5", "qwen3_next"))
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 0.25 if config["hybrid"] else 1.0))
    config["rotary_dim"] = int(config["head_dim"] * share)
    return config


# What the classes of Gemma give where the file says nothing.
GEMMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "query_pre_attn_scalar": 256, "sliding_window": 4096}


def is_gdn(config, layer):
    if not config["hybrid"]:
        return False
    if config.get("layer_types"):
        return config["layer_types"][layer] == "linear_attention"
    return (layer + 1) % config.get("full_attention_interval", 4) != 0


def layer_window(config, layer):
    """Sliding window of a layer in keys (self included), or None for full attention."""
    window = config.get("sliding_window")
    if config["gemma"]:
        pattern = config.get("sliding_window_pattern", 2 if config["model_type"] == "gemma2" else 6)
        slides = config["layer_types"][layer] == "sliding_attention" if config.get("layer_types") else (layer + 1) % pattern != 0
        return window if slides else None
    if window is None or config["model_type"] == "llama" or config["hybrid"]:
        return None
    if config["model_type"] == "mistral":
        return window
    if not config.get("use_sliding_window", False):
        return None
    if config["model_type"] == "qwen3_moe":
        return window
    types = config.get("layer_types")
    if types is None:
        return window if layer >= config["max_window_layers"] else None
    return window if types[layer] == "sliding_attention" else None


def llama3_frequencies(rope, freq):
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope.get("original_max_position_embeddings", rope["max_position_embeddings"])
    turns = original * freq / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return (1 - smooth) * freq / rope["factor"] + smooth * freq


def yarn_frequencies(rope, freq, d):
    original = rope.get("original_max_position_embeddings", rope["max_position_embeddings"])
    correction = lambda n: d * math.log(original / (2 * math.pi * n)) / (2 * math.log(rope["rope_theta"]))
    low, high = correction(rope.get("beta_fast") or 32), correction(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    return freq / rope["factor"] * ramp + freq * (1 - ramp)


def yarn_scale(rope):
    if rope.get("attention_factor") is not None:
        return rope["attention_factor"]
    factor = rope["factor"]
    scale = lambda m: 1.0 if factor <= 1 else 0.1 * m * math.log(factor) + 1.0
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return scale(rope["mscale"]) / scale(rope["mscale_all_dim"])
    return scale(1.0)


def rope_tables(rope, d, positions):
    """cos and sin [T, d/2]. `dynamic` takes its base from each token's own position, as decoding with a cache does."""
    exponent = np.arange(0, d, 2) / d
    kind = rope["rope_type"]
    theta, scale = np.full((len(positions), 1), float(rope["rope_theta"])), 1.0
    if kind == "dynamic":
        longest = rope["max_position_embeddings"]
        length = np.maximum(positions + 1, longest)[:, None]
        theta = theta * (rope["factor"] * length / longest - (rope["factor"] - 1)) ** (d / (d - 2))
    freq = theta ** -exponent
    if kind == "linear":
        freq = freq / rope["factor"]
    elif kind == "llama3":
        freq = llama3_frequencies(rope, freq)
    elif kind == "yarn":
        freq, scale = yarn_frequencies(rope, freq, d), yarn_scale(rope)
    elif kind not in ("default", "dynamic"):
        raise ValueError(f"unknown rope_type {kind}")
    angle = positions[:, None] * freq
    return np.cos(angle) * scale, np.sin(angle) * scale


def rotate(x, cos, sin):
    """x [T, heads, D]; pairs are (i, i + d/2) of the first d columns, cos and sin [T, d/2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def norm_weight(weights, name, config):
    """The hybrid families and Gemma store the weights of these norms less 1."""
    return weights[name] + 1 if config["hybrid"] or config["gemma"] else weights[name]


def softcap(x, cap):
    return cap * np.tanh(x / cap) if cap else x


def linear(x, weights, name):
    y = x @ weights[name + ".weight"].T
    return y + weights[name + ".bias"] if name + ".bias" in weights else y


def attention(x, weights, prefix, config, cos, sin, window):
    T, D = len(x), config["head_dim"]
    q = linear(x, weights, prefix + "q_proj")
    if config["hybrid"] and config.get("attn_output_gate", True):
        q, gate = np.split(q.reshape(T, -1, 2 * D), 2, axis=-1)
    else:
        q, gate = q.reshape(T, -1, D), None
    k = linear(x, weights, prefix + "k_proj").reshape(T, -1, D)
    v = linear(x, weights, prefix + "v_proj").reshape(T, -1, D)
    if prefix + "q_norm.weight" in weights:
        q = rms(q, norm_weight(weights, prefix + "q_norm.weight", config), config["rms_norm_eps"])
        k = rms(k, norm_weight(weights, prefix + "k_norm.weight", config), config["rms_norm_eps"])
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(config["query_pre_attn_scalar"] if config["gemma"] else D)
    if config["model_type"] == "gemma2":
        scores = softcap(scores, config["attn_logit_softcapping"])
    query, key = np.arange(T)[:, None], np.arange(T)[None, :]
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    scores = np.where(visible, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("hqk,khd->qhd", p, v)
    if gate is not None and not config.get("no_output_gate"):        # the switch: how much it matters
        out = out * sigmoid(gate)
    return linear(out.reshape(T, -1), weights, prefix + "o_proj")


def gdn_projections(x, weights, prefix, config):
    """(q|k|v, z, b, a): apart in one generation, in turn by key head in the other."""
    T, kh, vh = len(x), config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    if prefix + "in_proj_qkv.weight" in weights:
        return tuple(linear(x, weights, prefix + "in_proj_" + name) for name in ("qkv", "z", "b", "a"))
    each = vh // kh
    qkvz = linear(x, weights, prefix + "in_proj_qkvz").reshape(T, kh, 2 * dk + 2 * each * dv)
    q, k, v, z = (part.reshape(T, -1) for part in np.split(qkvz, [dk, 2 * dk, 2 * dk + each * dv], axis=-1))
    ba = linear(x, weights, prefix + "in_proj_ba").reshape(T, kh, 2 * each)
    return np.concatenate([q, k, v], axis=-1), z, ba[..., :each].reshape(T, vh), ba[..., each:].reshape(T, vh)


def gated_delta_net(x, weights, prefix, config):
    T, kh, vh = len(x), config["linear_num_key_heads"], config["linear_num_value_heads"]
    dk, dv = config["linear_key_head_dim"], config["linear_value_head_dim"]
    qkv, z, b, a = gdn_projections(x, weights, prefix, config)
    taps = weights[prefix + "conv1d.weight"][:, 0, :]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, qkv.shape[1])), qkv])
    qkv = sum(padded[j:j + T] * taps[:, j] for j in range(taps.shape[1]))
    qkv = qkv * sigmoid(qkv)
    q, k, v = np.split(qkv, [kh * dk, 2 * kh * dk], axis=-1)
    unit = lambda y: y / (1 if config.get("no_l2_norm") else np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6))
    q = np.repeat(unit(q.reshape(T, kh, dk)) / math.sqrt(dk), vh // kh, axis=1)
    k = np.repeat(unit(k.reshape(T, kh, dk)), vh // kh, axis=1)
    v, z = v.reshape(T, vh, dv), z.reshape(T, vh, dv)
    beta = sigmoid(b)
    decay = np.exp(-np.exp(weights[prefix + "A_log"]) * np.log1p(np.exp(a + weights[prefix + "dt_bias"])))
    state, out = np.zeros((vh, dk, dv)), np.empty((T, vh, dv))
    for t in range(T):
        state = state * decay[t][:, None, None]
        change = (v[t] - np.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + k[t][:, :, None] * change[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    out = rms(out, weights[prefix + "norm.weight"], config["rms_norm_eps"]) * z * sigmoid(z)
    return linear(out.reshape(T, -1), weights, prefix + "out_proj")


def mlp(x, weights, prefix, gelu=False):
    gate, up = linear(x, weights, prefix + "gate_proj"), linear(x, weights, prefix + "up_proj")
    if gelu:
        return linear(gate / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3))) * up, weights, prefix + "down_proj")
    return linear(gate / (1 + np.exp(-gate)) * up, weights, prefix + "down_proj")


def expert_weights(weights, prefix, e):
    """(gate and up rows, down) of expert e from either layout of the checkpoint."""
    if prefix + "gate_up_proj" in weights:
        return weights[prefix + "gate_up_proj"][e], weights[prefix + "down_proj"][e]
    gate_up = [weights[f"{prefix}{e}.{name}_proj.weight"] for name in ("gate", "up")]
    return np.concatenate(gate_up), weights[f"{prefix}{e}.down_proj.weight"]


def experts(x, weights, prefix, config, gaps):
    """The routed experts and, where there is one, the shared expert behind its gate. `gaps` takes, for each token, by how much its last chosen
    expert's logit exceeds the next one's."""
    scores = linear(x, weights, prefix + "gate")
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    k = config["num_experts_per_tok"]
    order = np.argsort(-p, axis=-1, kind="stable")
    if k < p.shape[-1]:
        ranked = -np.sort(-scores, axis=-1)
        gaps.extend((ranked[:, k - 1] - ranked[:, k]).tolist())
    y = np.zeros_like(x)
    for t, row in enumerate(x):
        chosen = order[t, :k]
        weight = np.ones(k) if config.get("router_weights") == "none" else p[t, chosen]
        if config["norm_topk_prob"]:
            weight = weight / weight.sum()
        for e, w in zip(chosen, weight):
            gate_up, down = expert_weights(weights, prefix + "experts.", e)
            gate, up = np.split(gate_up @ row, 2)
            y[t] += w * (down @ (gate / (1 + np.exp(-gate)) * up))
    if prefix + "shared_expert_gate.weight" in weights:
        shared = mlp(x, weights, prefix + "shared_expert.")
        if config.get("shared_gate") != "none":
            shared = shared / (1 + np.exp(-linear(x, weights, prefix + "shared_expert_gate")))
        y += shared
    return y


def gemma_logits(config, weights, tokens):
    """Keys that only mistakes have: one_rope, no_embedding_scale, silu."""
    eps, positions = config["rms_norm_eps"], np.arange(len(tokens))
    x = weights["model.embed_tokens.weight"][tokens] * (1 if config.get("no_embedding_scale") else math.sqrt(config["hidden_size"]))
    norm = lambda y, name: rms(y, norm_weight(weights, name + ".weight", config), eps)
    for i in range(config["num_hidden_layers"]):
        layer, window = f"model.layers.{i}.", layer_window(config, i)
        local = window is not None and "rope_local" in config and not config.get("one_rope")
        cos, sin = rope_tables(config["rope_local" if local else "rope"], config["rotary_dim"], positions)
        a = attention(norm(x, layer + "input_layernorm"), weights, layer + "self_attn.", config, cos, sin, window)
        x = x + norm(a, layer + "post_attention_layernorm")
        m = mlp(norm(x, layer + "pre_feedforward_layernorm"), weights, layer + "mlp.", gelu=not config.get("silu"))
        x = x + norm(m, layer + "post_feedforward_layernorm")
    return softcap(norm(x, "model.norm") @ weights["model.embed_tokens.weight"].T, config.get("final_logit_softcapping"))


def logits(config, weights, tokens, gaps=None):
    """[T, V] logits in float64. `gaps`: a list for those of the routers."""
    gaps = [] if gaps is None else gaps
    if config["gemma"]:
        return gemma_logits(config, weights, tokens)
    eps = config["rms_norm_eps"]
    x = weights["model.embed_tokens.weight"][tokens]
    cos, sin = rope_tables(config["rope"], config["rotary_dim"], np.arange(len(tokens)))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        h = rms(x, norm_weight(weights, layer + "input_layernorm.weight", config), eps)
        if is_gdn(config, i):
            x = x + gated_delta_net(h, weights, layer + "linear_attn.", config)
        else:
            x = x + attention(h, weights, layer + "self_attn.", config, cos, sin, layer_window(config, i))
        h = rms(x, norm_weight(weights, layer + "post_attention_layernorm.weight", config), eps)
        if layer + "mlp.gate.weight" in weights:
            x = x + experts(h, weights, layer + "mlp.", config, gaps)
        else:
            x = x + mlp(h, weights, layer + "mlp.")
    head = "model.embed_tokens" if config.get("tie_word_embeddings", False) else "lm_head"
    return rms(x, norm_weight(weights, "model.norm.weight", config), eps) @ weights[head + ".weight"].T


def relative_error(a, b):
    """Relative L2 distance over all positions."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for folder in map(Path, sys.argv[1:]):
        expect = json.loads((folder / "expect.json").read_text())
        weights = read_weights(folder)
        for case in expect["cases"]:
            recorded = np.fromfile(folder / case["logits"], "<f4").reshape(case["shape"])
            for name in expect["configs"]:
                computed = logits(read_config(folder / name), weights, case["tokens"])
                print(f"{folder.name} {case['name']} {name}: relative L2 {relative_error(recorded, computed):.1e}")


if __name__ == "__main__":
    main()
