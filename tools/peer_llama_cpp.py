#!/usr/bin/env python3
"""Times llama.cpp (PyPI llama-cpp-python, gguf, numpy) on the shapes of a config.json, beside `tandem bench step` in one run.

    python3 tools/peer_llama_cpp.py tests/data/plan/bench-1.4b/config.json --threads 2 [--tandem build/tandem] [--work DIR]
    python3 tools/peer_llama_cpp.py model.gguf --threads 2 --tp 1     # an existing file, for both

Writes a GGUF file with random BF16 weights into --work (kept, reused), then alternates the two programs --rounds times and prints the
median decode time at batch 1 and prefill of 512 tokens of each, and their ratios. Nothing else may run on the machine meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import time

import numpy as np


def write_gguf(path, config):
    import gguf

    c = json.load(open(config))
    hidden, heads, kv, layers = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["num_hidden_layers"]
    dim, inner, vocab = c.get("head_dim") or hidden // heads, c["intermediate_size"], c["vocab_size"]
    rng = np.random.default_rng(1)
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(hidden)
    w.add_block_count(layers)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv)
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_rope_dimension_count(dim)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_vocab_size(vocab)
    w.add_tokenizer_model("llama")
    w.add_token_list([b"<unk>", b"<s>", b"</s>"] + [b"t%d" % i for i in range(vocab - 3)])
    w.add_token_scores([0.0] * vocab)
    w.add_token_types([2, 3, 3] + [1] * (vocab - 3))

    def matrix(name, rows, cols):
        bits = (rng.standard_normal((rows, cols), dtype=np.float32) / np.float32(cols**0.5)).view(np.uint32) >> 16
        w.add_tensor(name, bits.astype(np.uint16).view(np.uint8).reshape(rows, cols * 2), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name):
        w.add_tensor(name, np.ones(hidden, dtype=np.float32))

    matrix("token_embd.weight", vocab, hidden)
    for i in range(layers):
        for name, rows, cols in (("attn_q", heads * dim, hidden), ("attn_k", kv * dim, hidden), ("attn_v", kv * dim, hidden), ("attn_output", hidden, heads * dim),
                                 ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden), ("ffn_down", hidden, inner)):
            matrix(f"blk.{i}.{name}.weight", rows, cols)
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
    norm("output_norm.weight")
    matrix("output.weight", vocab, hidden)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def llama_cpp(path, threads, prefill, steps):
    """Milliseconds of one decode step and of a prefill, in a process of its own."""
    code = f"""
import time, statistics, llama_cpp
m = llama_cpp.Llama({path!r}, n_ctx={prefill + steps + 64}, n_batch={prefill}, n_ubatch={prefill}, n_threads={threads}, n_threads_batch={threads}, verbose=False)
n = m.n_vocab()
times = []
for r in range(3):
    m.reset(); t = time.perf_counter(); m.eval([(7 * i + r) % n for i in range({prefill})]); times.append(time.perf_counter() - t)
m.reset(); m.eval([1] * 64)
steps = []
for i in range({steps}):
    t = time.perf_counter(); m.eval([(11 * i) % n]); steps.append(time.perf_counter() - t)
print(1e3 * statistics.median(steps), 1e3 * statistics.median(times))
"""
    import sys
    return [float(x) for x in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()]


def tandem(program, model, threads, prefill, steps, world_size, extra):
    out = subprocess.run([program, "bench", "step", model, "--threads", str(threads), "--tp", str(world_size), "--steps", str(steps), "--prefill", str(prefill),
                          "--context", "64", "--json", *extra], capture_output=True, text=True, check=True).stdout
    d = json.loads(out)
    return [d["decode_ms"], d["prefill_ms"]]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--steps", type=int, default=32)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--tp", default="1,2", help="world sizes of tandem")
    p.add_argument("--tandem", default="build/tandem")
    p.add_argument("--work", default="build/peer")
    args = p.parse_args()
    if args.model.endswith(".gguf"):
        path, model, extra = args.model, args.model, []
    else:
        os.makedirs(args.work, exist_ok=True)
        path = os.path.join(args.work, os.path.basename(os.path.dirname(os.path.abspath(args.model))) + ".gguf")
        model, extra = args.model, ["--random-weights", "1"]
        if not os.path.exists(path):
            write_gguf(path + ".part", args.model)
            os.rename(path + ".part", path)
    degrees = args.tp.split(",")
    rows = {"llama.cpp": [], **{f"tandem tp{d}": [] for d in degrees}}
    for _ in range(args.rounds):
        rows["llama.cpp"].append(llama_cpp(path, args.threads, args.prefill, args.steps))
        for world_size in degrees:
            rows[f"tandem tp{world_size}"].append(tandem(args.tandem, model, args.threads, args.prefill, args.steps, world_size, extra))
        time.sleep(1)
    peer = [statistics.median(r[i] for r in rows["llama.cpp"]) for i in (0, 1)]
    print(f"{'':12} {'decode ms':>10} {'ratio':>7} {f'prefill {args.prefill} ms':>15} {'tok/s':>8} {'ratio':>7}")
    for name, values in rows.items():
        decode, prefill = (statistics.median(v[i] for v in values) for i in (0, 1))
        print(f"{name:12} {decode:10.2f} {peer[0] / decode:6.2f}x {prefill:15.1f} {args.prefill * 1e3 / prefill:8.1f} {peer[1] / prefill:6.2f}x")


if __name__ == "__main__":
    main()
