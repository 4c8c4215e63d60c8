#!/usr/bin/env python3
"""GGUF files against folders of the same weights: one hash of the logits, whatever holds them and on however many ranks. Prints verdicts
and their number; ends with 1 if one is bad. Usage: compare.py SMOLLM2_GGUF SMOLLM2_FOLDER
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from gguf import GGMLQuantizationType as Type
from gguf import RopeScalingType

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tokenizer"))
import corpus
import models
import tokenizers

passed = failed = skipped = 0


def tandem(*arguments, data=None):
    done = subprocess.run(["build/tandem", *map(str, arguments)], input=data, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode()


def verdict(name, ok, more=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print("ok     " if ok else "NOT OK ", name, "" if ok else more, flush=True)


def logits(model, *arguments, tokens="1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20"):
    code, out, err = tandem("logits", model, "--tokens", tokens, *arguments)
    return out.decode().strip() if code == 0 else err


def same(name, gguf, folder, degrees=(1, 2)):
    """One hash for the folder on one rank and the file on each degree, in chunks of one row, a few, and many, on two instruction sets."""
    want = logits(folder)
    runs = [(p, chunk) for p in degrees for chunk in (1, 5, 64)]
    got = {run: logits(gguf, "--tp", run[0], "--prefill-chunk", run[1]) for run in runs}
    got["isa c"] = logits(gguf, "--isa", "c")
    verdict(name, len(want) == 64 and set(got.values()) == {want}, f"{want} {got}")


def small_models(folder):
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, *models.K_TYPES):
        gguf, plain = models.write(folder, kind.name, "llama", {"": kind})
        same(f"llama, all {kind.name}", gguf, plain, (1, 2) if kind in models.K_TYPES else (1, 2, 4))
    mixed = {"": Type.Q4_K, "attn_v": Type.Q6_K, "ffn_down": Type.Q6_K, "ffn_up": Type.Q8_0, "token_embd": Type.Q6_K}
    same("llama, mixed types in fused linears, tied", *models.write(folder, "mixed", "llama", mixed, tied=True))
    same("llama, biases", *models.write(folder, "bias", "llama", {"": Type.Q5_1}, biases=tuple(list(models.LAYER)[:7]), config={"attention_bias": True, "mlp_bias": True}))
    same("qwen2", *models.write(folder, "qwen2", "qwen2", {"": Type.Q4_1, "attn_k": Type.F16}, biases=("attn_q", "attn_k", "attn_v")))
    same("qwen3", *models.write(folder, "qwen3", "qwen3", {"": Type.Q5_K, "output": Type.Q6_K}))

    def gemma(w):
        w.add_sliding_window(8)
        w.add_uint32(f"{w.arch}.attention.sliding_window_pattern", 2)
        w.add_float32(f"{w.arch}.final_logit_softcapping", 3.0)
        if w.arch == "gemma2":
            w.add_float32("gemma2.attn_logit_softcapping", 2.0)
    for name, more in (("gemma3", {"model_type": "gemma3_text", "sliding_window_pattern": 2}), ("gemma2", {"attn_logit_softcapping": 2.0})):
        config = more | {"sliding_window": 8, "query_pre_attn_scalar": models.HEAD_DIM, "final_logit_softcapping": 3.0}
        same(name, *models.write(folder, name, name, {"": Type.Q5_0, "attn_v": Type.Q8_0, "ffn_down": Type.Q6_K}, tied=True, config=config, metadata=gemma))

    def scaling(kind):
        def add(w):
            w.add_rope_scaling_type(kind)
            w.add_rope_scaling_factor(4.0)
            w.add_rope_scaling_orig_ctx_len(128)
        return add
    for kind in (RopeScalingType.LINEAR, RopeScalingType.YARN):
        rope = {"rope_scaling": {"rope_type": kind.value, "factor": 4.0, "original_max_position_embeddings": 128}}
        same(f"rope scaling {kind.value}", *models.write(folder, kind.value, "llama", {"": Type.Q8_0}, config=rope, metadata=scaling(kind)))

    code, out, err = tandem("logits", Path(folder) / "Q4_K.gguf", "--tokens", "1", "--tp", 4)
    verdict("a degree that cuts blocks is refused by name", code == 3 and "quantised o_proj" in err and "degrees that work: 1, 2" in err and err.count("\n") == 1, err)
    code, out, err = tandem("plan", Path(folder) / "mixed.gguf", "--tp", "1,2,4", "--json")
    plan = json.loads(out) if code == 0 else {"degrees": [{}, {}, {}]}
    size = sum(t.n_bytes for t in __import__("gguf").GGUFReader(Path(folder) / "mixed.gguf").tensors)
    verdict("plan: bytes are the file's", plan["degrees"][0].get("bytes", {}).get("weights") == size, f"{size} {plan['degrees'][0].get('bytes')} {err}")
    verdict("plan: degrees", [d.get("legal") for d in plan["degrees"]] == [True, True, False], err)


def smollm2(gguf, folder):
    tokens = ",".join(map(str, range(100, 164)))
    want = logits(folder, tokens=tokens)
    got = {(p, c): logits(gguf, "--tp", p, "--prefill-chunk", c, tokens=tokens) for p in (1, 3) for c in (2, 512)}
    verdict("SmolLM2: the file's logits are the folder's, at TP1 and TP3", len(want) == 64 and set(got.values()) == {want}, f"{want} {got}")
    for case in json.load(open("tests/golden/smollm2.json"))["cases"]:
        for world_size in (1, 3):
            code, out, err = tandem("run", gguf, "-p", case["text"], "-n", 64, "--tp", world_size, "--json", "--ignore-eos", "--temp", 0, "--context", 512)
            answer = json.loads(out) if code == 0 else {}
            ok = answer.get("prompt_tokens") == case["tokens"] and answer.get("tokens") == case["greedy"]
            ok = ok and answer.get("text") == re.sub(r"<\|\w+\|>", "", case["greedy_text"])
            verdict(f"SmolLM2 {case['name']}, tp {world_size}: prompt ids, 64 greedy tokens, text", ok, f"{err} {answer}")
    code, out, err = tandem("verify", gguf, "--tp", 3, "-n", 8)
    verdict("verify", code == 0, err)
    code, out, err = tandem("bench", "step", gguf, "--steps", 2, "--prefill", 16, "--repeat", 1, "--json")
    verdict("bench step: linear bytes are four-bit ones", code == 0 and 80e6 < json.loads(out)["linear_bytes"] < 110e6, f"{err} {out}")
    answers = [answer_of(model) for model in (gguf, folder)]
    verdict("serve: the same chat as from the folder", answers[0] and answers[0] == answers[1] and "Paris" in answers[0][0], str(answers))
    compare_tokenizers(gguf, folder)


def compare_tokenizers(gguf, folder):
    texts = ["", " ", "Hello  world\n\n\t x", "<|im_start|>user\n1234<|im_end|>", "na\u00efve \u4f60\u597d \U0001f600"] + list(corpus.documents(1, 100000))
    data = "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
    name = Path(folder).name
    outputs = []
    for flags in (["--jsonl"], ["--jsonl", "--add-special"]):
        outputs.append([tandem("tokenize", model, *flags, data=data) for model in (gguf, folder)])
        a, b = outputs[-1]
        verdict(f"tokenizer {name} {' '.join(flags)}", a[0] == 0 and a[1] == b[1] and a[1].count(b"\n") == len(texts), a[2] + b[2])
    (a, b) = [tandem("tokenize", model, "--jsonl", "--decode", data=outputs[0][0][1]) for model in (gguf, folder)]
    verdict(f"tokenizer {name} --decode", a[0] == 0 and a[1] == b[1], a[2] + b[2])


def real_tokenizers(folder):
    global skipped
    root = os.environ.get("TANDEM_TOKENIZERS", "")
    if not os.path.isdir(root):
        skipped = 1
        print("skipped: TANDEM_TOKENIZERS names no folder: real vocabularies are not compared")
        return
    for found in sorted(Path(root).rglob("tokenizer.json")):
        gguf = Path(folder) / f"{found.parent.name}.tokenizer.gguf"
        if tokenizers.write(found.parent, gguf):
            compare_tokenizers(str(gguf), str(found.parent))
        else:
            print(f"        {found.parent.name}: no GGUF name for its pre-tokenizer here")


def answer_of(model):
    """What the server says to one question: its chat template and tokenizer have to be right."""
    server = subprocess.Popen(["build/tandem", "serve", model, "--port", "0", "--context", "512"], stderr=subprocess.PIPE, text=True)
    try:
        url = next((m.group() for m in (re.search(r"http://[^ ]+", line) for line in server.stderr) if m), None)
        if not url:
            return None
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 20, "temperature": 0}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = json.load(response)
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]
    finally:
        server.terminate()
        server.wait(timeout=30)
        server.stderr.close()


with tempfile.TemporaryDirectory() as made:
    small_models(made)
    real_tokenizers(made)
smollm2(*sys.argv[1:3])
print(f"{passed} passed, {failed} failed, {skipped} skipped")
sys.exit(failed > 0)
