#!/usr/bin/env python3
"""Writes tests/unit/rope_values.h: inverse frequencies, cosines and sines as HF transformers computes them.

Usage: tools/make_rope_values.py > tests/unit/rope_values.h   (needs torch and transformers)
Each position is asked of a fresh module, so that dynamic scaling sees a sequence that ends there.
"""
import json
import sys

import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = [  # name, head_dim, max_position_embeddings, rope parameters
    ("default", 16, 256, {"rope_type": "default", "rope_theta": 10000.0}),
    ("default, wide", 128, 8192, {"rope_type": "default", "rope_theta": 1000000.0}),
    ("linear", 16, 256, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}),
    ("dynamic", 16, 64, {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 4.0}),
    ("llama3", 128, 131072, {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    ("llama3, close factors", 16, 256, {"rope_type": "llama3", "rope_theta": 200.0, "factor": 4.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 8.0, "original_max_position_embeddings": 64}),
    ("yarn", 128, 131072, {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0,
                           "original_max_position_embeddings": 32768}),
    ("yarn, all keys", 16, 256, {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "mscale": 1.0,
                                 "mscale_all_dim": 0.5, "beta_fast": 6.0, "beta_slow": 0.7, "truncate": False,
                                 "original_max_position_embeddings": 32}),
    ("yarn, attention_factor", 16, 256, {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0,
                                         "attention_factor": 0.75, "original_max_position_embeddings": 32}),
]
POSITIONS = [0, 1, 63, 64, 79, 200]


def numbers(values):
    out, line = [], "\t\t"
    for v in values:
        text = float(v).hex().replace("0000000p", "p") + "f, "
        if len(line) + len(text) > 128:
            out.append(line.rstrip())
            line = "\t\t"
        line += text
    return "\n".join(out + [line.rstrip()])


def main():
    print("/* Made by tools/make_rope_values.py with transformers %s, torch %s: do not edit. */" %
          (transformers.__version__, torch.__version__.split("+")[0]))
    print("static const int rope_positions[] = {%s};" % ", ".join(map(str, POSITIONS)))
    print("#define ROPE_POSITIONS %d\n" % len(POSITIONS))
    print("static const struct rope_case {\n\tconst char *name, *parameters;\n\tint head_dim, max_position;\n\tfloat scale;")
    print("\tfloat inv_freq[64];\n\tfloat rows[ROPE_POSITIONS][128]; /* cos, then sin, of each position; as many as head_dim */")
    print("} rope_cases[] = {")
    for name, head_dim, length, parameters in CASES:
        config = LlamaConfig(hidden_size=8 * head_dim, num_attention_heads=8, head_dim=head_dim,
                             max_position_embeddings=length, rope_parameters=dict(parameters))
        module = LlamaRotaryEmbedding(config)
        text = json.dumps(parameters).replace('"', '\\"')
        print('\t{"%s",\n\t "%s",\n\t %d, %d, %sf,\n\t {\n%s\n\t },\n\t {' %
              (name, text, head_dim, length, float(torch.tensor(module.attention_scaling)).hex(), numbers(module.inv_freq)))
        for position in POSITIONS:
            cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor([[position]]))
            half = head_dim // 2
            print("\t\t{\n%s\n\t\t}," % numbers(torch.cat([cos[0, 0, :half], sin[0, 0, :half]])))
        print("\t }},")
    print("};")


if __name__ == "__main__":
    sys.exit(main())
