"""Small models twice: as a GGUF file with weights of a given type, and as a Hugging Face style folder of the same weights, dequantised by
the package gguf to F32. Types that the package cannot quantise to (the K types) get random blocks: what they are worth does not matter.
"""
import json
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, CONTEXT = 256, 1024, 8, 4, 64, 2, 96, 512
K_TYPES = (Type.Q4_K, Type.Q5_K, Type.Q6_K)
# GGUF name, checkpoint name
LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}
GEMMA = {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate": (INNER, HIDDEN), "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
    "attn_norm": (HIDDEN,), "ffn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,), "attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,),
    "token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,), "output": (VOCAB, HIDDEN),
}


def random_blocks(rng, rows, columns, kind):
    """Blocks of a K type with random bits and scales that give weights of a sane size."""
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // elements, size), dtype=np.uint8)
    scales = (rng.uniform(0.5, 1, blocks.shape[:2] + (2,)) * (2e-5 if kind == Type.Q6_K else 1e-4)).astype("<f2").view(np.uint8)
    if kind == Type.Q6_K:
        blocks[..., 208:210] = scales[..., :2]
    else:
        blocks[..., :4] = scales
    return blocks.reshape(rows, -1)


def weight(rng, shape, kind):
    """As stored, and as F32."""
    if kind in K_TYPES:
        stored = random_blocks(rng, *shape, kind)
        return stored, dequantize(stored, kind).reshape(shape)
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    if kind == Type.F32:
        return values, values
    stored = quantize(values, kind)
    return stored, dequantize(stored, kind).reshape(shape)


def half_split(rows, heads):
    """Rows (head, pair, half) to (head, half, pair)."""
    tail = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *tail).swapaxes(1, 2).reshape(rows.shape)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name in sorted(tensors):
        raw = np.ascontiguousarray(tensors[name], "<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def layer_names(architecture):
    """GGUF name -> checkpoint name of what a layer has."""
    normed = architecture in ("qwen3", "gemma3")
    plain = {key: name for key, name in LAYER.items() if normed or not key.endswith(("q_norm", "k_norm"))}
    return plain | (GEMMA if architecture.startswith("gemma") else {})


def names(architecture, tied, biases):
    out = [("token_embd.weight", "token_embd", -1), ("output_norm.weight", "output_norm", -1)]
    if not tied:
        out.append(("output.weight", "output", -1))
    for layer in range(LAYERS):
        for key in layer_names(architecture):
            out.append((f"blk.{layer}.{key}.weight", key, layer))
            if key in biases:
                out.append((f"blk.{layer}.{key}.bias", key, layer))
    return out


def write(folder, name, architecture, types, tied=False, biases=(), config=None, metadata=None, seed=1):
    """`types`: the type of each matrix by its GGUF key, "" for the others. Gives the paths of the GGUF file and of the folder."""
    rng = np.random.default_rng(seed)
    folder = Path(folder)
    gguf, out = folder / f"{name}.gguf", folder / name
    out.mkdir(parents=True, exist_ok=True)
    w = GGUFWriter(gguf, architecture)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(INNER)
    w.add_block_count(LAYERS)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_key_length(HEAD_DIM)
    w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    if metadata:
        metadata(w)
    tensors = {}
    for full, key, layer in names(architecture, tied, biases):
        bias = full.endswith(".bias")
        shape = (SHAPES[key][0],) if bias else SHAPES[key]
        kind = Type.F32 if len(shape) == 1 else types.get(key, types[""])
        stored, values = weight(rng, shape, kind)
        if len(shape) == 1 and not bias:
            stored = values = (1 + 0.1 * values).astype(np.float32)
        w.add_tensor(full, stored, raw_dtype=kind)
        if architecture == "llama" and key in ("attn_q", "attn_k"):
            values = half_split(values, HEADS if key == "attn_q" else KV_HEADS)
        if architecture.startswith("gemma") and key.endswith("norm"):
            values = values - np.float32(1)                       # the converter adds it; exact between 1/2 and 2
        hf = OUTER[key] if layer < 0 else f"model.layers.{layer}.{layer_names(architecture)[key]}"
        tensors[hf + (".bias" if bias else ".weight")] = values
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    write_safetensors(out / "model.safetensors", tensors)
    plain = {
        "model_type": architecture, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 10000.0, "tie_word_embeddings": tied, "torch_dtype": "float32", "hidden_act": "silu",
    }
    (out / "config.json").write_text(json.dumps(plain | (config or {})))
    return str(gguf), str(out)
