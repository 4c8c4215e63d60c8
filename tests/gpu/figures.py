"""figures.py OUT.json OUT.md: measures what docs/MEASUREMENTS.md reports of GPUs. docs/TESTING.md describes the JSON.

Shapes are real, weights invented on the device. Times are medians that `tandem bench` takes. A figure that this machine has too few GPUs for is null."""
import json
import os
import subprocess
import sys
import time

from gpu_common import DEVICE, EMULATED, GPUS, LOGS, TANDEM, Failed, attempt, check, degrees, finish, plan_model, skip, small_model, tandem_json

SEED = ("--random-weights", 1)
CONTEXT = 32 if EMULATED else 1024
PREFILLS = (16, 32) if EMULATED else (1024, 8192)
BATCHES = (1, 2, 4) if EMULATED else (1, 16, 64) # the keys keep the names of the real ones
COLLECTIVE_ROWS = (1, 4, 8, 16, 32, 64, 128, 512, 2048) # of 4096 bf16: 8 KiB to 16 MiB

# What the figures are to reach on two H200, and what vLLM 0.22.1 gave there (issue and docs/MEASUREMENTS.md).
TARGETS = {
    "llama8b_tp1_b1_ms": (4.0, 4.96), "llama8b_tp2_b1_ms": (2.3, 3.51), "llama8b_tp1_b16_ms": (4.9, 5.66), "llama8b_tp2_b16_ms": (2.9, 3.98),
    "llama8b_tp1_b64_ms": (6.8, 7.77), "llama8b_tp2_b64_ms": (4.1, 5.01), "qwen32b_tp1_b1_ms": (16.6, 18.94), "qwen32b_tp2_b1_ms": (8.9, 11.22),
    "llama8b_tp1_prefill1024_ms": (27, 27.7), "llama8b_tp2_prefill1024_ms": (17, 36.9), "llama8b_tp1_prefill8192_ms": (210, 219),
    "llama8b_tp2_prefill8192_ms": (118, 128), "llama8b_tp1_throughput_tok_s": (7500, 6800), "llama8b_tp2_throughput_tok_s": (12500, 11200),
    "first_token_s": (5, 48), "hyb27b_tp1_b1_ms": (14.0, 15.5), "hyb27b_tp2_b1_ms": (7.5, 9.8), "hyb27b_tp1_b16_ms": (15.8, 17.1), "hyb27b_tp2_b16_ms": (8.8, 10.6),
    "hyb27b_tp2_b64_ms": (None, 13.3), "hyb27b_tp1_prefill8192_ms": (860, 921), "hyb27b_tp2_prefill8192_ms": (470, 516), "hyb27b_first_token_s": (10, 228), "moe30b_tp1_b1_ms": (2.24, None), "moe30b_tp2_b1_ms": (1.12, None),
}

figures, details = {}, {}


HYBRID = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "full_attention_interval": 2, "attn_output_gate": True, "linear_num_key_heads": 2,
          "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4}
EXPERTS = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def model(name, scratch, **changes):
    return small_model(os.path.join(scratch, name), **changes) if EMULATED else plan_model(name)


def put(key, value, detail=None):
    figures[key] = value
    if detail:
        details[key] = detail
    check(value is not None and value > 0, "%s %.4g" % (key, value))


def step(folder, world, batch, prefill, *more, steps=32, repeat=3):
    steps = 2 if EMULATED else steps
    return tandem_json("bench", "step", folder, *SEED, "--device", DEVICE, "--tp", world, "--batch", batch, "--context", CONTEXT, "--steps", steps,
                       "--prefill", prefill, "--repeat", 1 if EMULATED else repeat, *more, timeout=60 * (10 if EMULATED else 1))


def decode_detail(result):
    keys = ("decode_ms", "device_ms", "host_gap_us", "prefill_ms", "load_ms", "decode_gb_per_s", "split_us", "prefill_split_us")
    return {key: result[key] for key in keys if key in result}


def peaks():
    peak = tandem_json("bench", "peak", "--device", DEVICE, *(("--matrix", 128) if EMULATED else ()))
    put("read_gb_s", peak["read_gb_per_s"])
    put("matrix_tflops", peak["matrix_tflops"])


def trace_path():
    """The timeline of a decode step on all ranks, beside the report."""
    return os.path.join(os.path.dirname(sys.argv[1]) or ".", "gpu-trace-%d.json" % GPUS)


def llama8b(world, folder):
    for name, batch in zip((1, 16, 64), BATCHES):
        # prefill of 1024 is timed three times over, of 8192 once: it comes with batch 1
        traced = ("--trace", trace_path()) if name == 1 and world == min(GPUS, 2) else ()
        result = step(folder, world, batch, PREFILLS[1] if name == 1 else PREFILLS[0], *traced)
        put("llama8b_tp%d_b%d_ms" % (world, name), result["decode_ms"], decode_detail(result))
        if name == 1:
            put("llama8b_tp%d_prefill8192_ms" % world, result["prefill_ms"])
        if name == 16:
            put("llama8b_tp%d_prefill1024_ms" % world, result["prefill_ms"])


def throughput(world, folder):
    shape = ("--requests", 4, "--input", 16, "--output", 4) if EMULATED else ("--requests", 256, "--input", 512, "--output", 128)
    result = tandem_json("bench", "step", folder, *SEED, "--device", DEVICE, "--tp", world, *shape, timeout=150)
    keys = ("mixed_steps", "mixed_ms", "mixed_most_ms", "mixed_us", "decode_steps", "decode_ms", "decode_most_ms", "decode_us")
    put("llama8b_tp%d_throughput_tok_s" % world, result["throughput_tokens_per_s"], {key: result[key] for key in keys})


def large(key, world, folder):
    result = step(folder, world, 1, PREFILLS[0], steps=16)
    put(key, result["decode_ms"], decode_detail(result))


def hybrid(world, folder):
    for name, batch in zip((1, 16, 64), BATCHES):
        result = step(folder, world, batch, PREFILLS[1] if name == 1 else 64, repeat=1)
        put("hyb27b_tp%d_b%d_ms" % (world, name), result["decode_ms"], decode_detail(result))
        if name == 1:
            put("hyb27b_tp%d_prefill8192_ms" % world, result["prefill_ms"])


def first_token(key, folder):
    """Process start to the first output of a run that says one token; the mean of two."""
    times = []
    for _ in range(1 if EMULATED else 2):
        start = time.time()
        process = subprocess.Popen([TANDEM, "run", folder, "--random-weights", "1", "--device", DEVICE, "--tokens", "1,2,3,4,5,6,7,8", "-n", "1",
                                    "--ignore-eos", "--temp", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, bufsize=0)
        first = process.stdout.read(1)
        seconds = time.time() - start
        rest, log = process.communicate()
        if not first or process.returncode:
            raise Failed("run: exit %d: %s" % (process.returncode, log.decode()[-300:]))
        times.append(seconds)
        details[key] = {"load_ms": json.loads(first + rest)["load_ms"], "runs_s": times}
    put(key, sum(times) / len(times))


def all_reduce(world):
    rows = ",".join(str(r) for r in (COLLECTIVE_ROWS[:2] if EMULATED else COLLECTIVE_ROWS))
    hidden = 64 if EMULATED else 4096
    result = tandem_json("bench", "collective", "--device", DEVICE, "--tp", world, "--rows", rows, "--hidden", hidden, timeout=60)
    details["allreduce_us"] = result
    table = {} # in a recorded graph, as a decode step runs it
    for line in result["results"]:
        pair = table.setdefault(str(int(line["bytes"])), [None, None])
        pair[0 if line["transport"] == "p2p" else 1] = line.get("graph_us", line["p50_us"])
    figures["allreduce_us"] = table
    check(bool(table) and all(own and own > 0 for own, _ in table.values()), "allreduce_us %s" % json.dumps(table))


def machine():
    query = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"], capture_output=True, text=True,
                           check=False) if DEVICE == "cuda" else None
    return query.stdout.strip().splitlines() if query and query.returncode == 0 else [DEVICE]


def markdown():
    lines = ["", "| figure | value | target | met | vLLM 0.22.1 |", "|---|---|---|---|---|"]
    for key, value in figures.items():
        if not isinstance(value, (int, float)):
            continue
        target, peer = TARGETS.get(key, (None, None))
        met = "" if target is None else "yes" if (value >= target if "tok_s" in key else value <= target) else "no"
        gap = details.get(key, {}).get("host_gap_us")
        lines.append("| %s%s | %.4g | %s | %s | %s |" % (key, " (host gap %.0f us)" % gap if gap is not None else "", value, target or "", met, peer or ""))
    if figures.get("allreduce_us"):
        lines += ["", "| all-reduce | own us | NCCL us | ratio |", "|---|---|---|---|"]
        for size, (own, peer) in sorted(figures["allreduce_us"].items(), key=lambda entry: int(entry[0])):
            lines.append("| %s | %.2f | %s | %s |" % (size, own or 0, "%.2f" % peer if peer else "", "%.2f" % (peer / own) if peer and own else ""))
    return "\n".join(lines) + "\n\n"


KEYS = (["llama8b_tp%d_b%d_ms" % (p, b) for b in (1, 16, 64) for p in (1, 2)] + ["qwen32b_tp1_b1_ms", "qwen32b_tp2_b1_ms", "llama70b_tp2_b1_ms", "moe30b_tp1_b1_ms", "moe30b_tp2_b1_ms"] +
        ["llama8b_tp%d_prefill%d_ms" % (p, n) for n in (1024, 8192) for p in (1, 2)] + ["llama8b_tp%d_throughput_tok_s" % p for p in (1, 2)] +
        ["hyb27b_tp%d_%s_ms" % (p, what) for what in ("b1", "b16", "b64", "prefill8192") for p in (1, 2)] + ["hyb27b_first_token_s"] +
        ["read_gb_s", "matrix_tflops", "first_token_s", "allreduce_us"])


def write_report(path, gpus, values, command):
    commit = os.environ.get("GPU_COMMIT", "unknown")
    report = {"commit": commit, "date": time.strftime("%Y-%m-%d"), "gpus": gpus, "machine": machine()[:gpus], "command": command,
              "figures": dict(values, commit=commit), "details": {key: value for key, value in details.items() if values.get(key) is not None}}
    with open(path + ".part", "w") as file:
        json.dump(report, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)


def report(out, table):
    """After each group of figures: a run that is cut short has what it came to."""
    write_report(out, GPUS, figures, "make gpu-check")
    with open(table, "w") as file:
        file.write(markdown())


def report_of_one(out):
    """What one GPU gives is measured on a machine with more, too: its report, unless a run with one GPU has made it of this commit."""
    path = os.path.join(os.path.dirname(out), "gpu-check-1.json")
    try:
        with open(path) as file:
            if json.load(file)["commit"] == os.environ.get("GPU_COMMIT", "unknown"):
                return
    except (OSError, ValueError, KeyError):
        pass
    alone = {key: value if "_tp" not in key and key != "allreduce_us" or "_tp1_" in key else None for key, value in figures.items()}
    write_report(path, 1, alone, "make gpu-check, the figures of one GPU from a run on %d" % GPUS)


def main():
    out, table = sys.argv[1:3]
    figures.update(dict.fromkeys(KEYS))
    llama, qwen, big = (model(name, LOGS) for name in ("llama3-8b", "qwen3-32b", "llama3-70b"))
    mixed = model("qwen3.5-27b", LOGS, **HYBRID)

    def group(what, *call):
        attempt(what, *call)
        report(out, table)

    group("peaks", peaks)
    for world in degrees():
        group("Llama-3.1-8B TP%d" % world, llama8b, world, llama)
    if GPUS > 1:
        group("all-reduce", all_reduce, min(GPUS, 8))
    for world in degrees():
        group("throughput TP%d" % world, throughput, world, llama)
    group("first token", first_token, "first_token_s", llama)
    for world in degrees()[:2]:
        group("Qwen3.5-27B TP%d" % world, hybrid, world, mixed)
    group("first token of Qwen3.5-27B", first_token, "hyb27b_first_token_s", mixed)
    for world in degrees():
        group("Qwen3-32B TP%d" % world, large, "qwen32b_tp%d_b1_ms" % world, world, qwen)
    for world in degrees():
        group("Qwen3-30B-A3B TP%d" % world, large, "moe30b_tp%d_b1_ms" % world, world, model("qwen3-30b-a3b", LOGS, **EXPERTS))
    for world in degrees()[1:]:
        group("Llama-70B TP%d" % world, large, "llama70b_tp%d_b1_ms" % world, world, big)
    if GPUS > 1:
        report_of_one(out)
    else:
        skip("figures of two GPUs: this machine has one")
    finish()


if __name__ == "__main__":
    main()
