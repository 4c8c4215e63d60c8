"""What the parts of gpu_check.sh share: the program, counting, models that are only a config. Python 3 without packages."""
import json
import os
import signal
import subprocess
import sys
import time

TANDEM = os.environ.get("TANDEM", "build/cuda/tandem")
DEVICE = os.environ.get("GPU_DEVICE", "cuda")
GPUS = int(os.environ.get("GPU_COUNT", "1"))
LOGS = os.environ.get("GPU_LOGS", ".")
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
EMULATED = DEVICE == "emu"

counts = {"passed": 0, "failed": 0, "skipped": 0}


def check(ok, what):
    """Counts and prints one check."""
    counts["passed" if ok else "failed"] += 1
    print(("ok   " if ok else "FAIL ") + what, flush=True)
    return ok


def skip(why):
    counts["skipped"] += 1
    print("skip " + why, flush=True)


def finish():
    print("%(passed)d passed, %(failed)d failed, %(skipped)d skipped" % counts, flush=True)
    sys.exit(1 if counts["failed"] or not (counts["passed"] or counts["skipped"]) else 0)


def end_with_group(*_):
    sys.exit(143)


signal.signal(signal.SIGTERM, end_with_group)


def degrees():
    """World sizes that this machine has GPUs for."""
    return [p for p in (1, 2, 4, 8) if p <= GPUS]


def all_degrees():
    """World sizes of what is checked and not timed: where there are too few GPUs, several ranks share one."""
    return degrees() if EMULATED else [1, 2, 4, 8]


def ranks(world):
    """Options for a world size: which GPU each rank is on, where two must share one."""
    return ["--tp", world] + (["--devices", ",".join(str(r % GPUS) for r in range(world))] if world > GPUS and not EMULATED else [])


class Failed(Exception):
    pass


def tandem(*arguments, timeout=120, codes=(0,)):
    """Runs the program; its standard output, or Failed with its last words."""
    command = [TANDEM] + [str(a) for a in arguments]
    print("$ " + " ".join(command)[:400], flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Failed("no end after %d s: %s" % (timeout, " ".join(command[:4])))
    if done.returncode not in codes:
        raise Failed("exit %d: %s: %s" % (done.returncode, " ".join(command[:4]), done.stderr.strip()[-400:]))
    return done.stdout


def tandem_json(*arguments, **options):
    return json.loads(tandem(*arguments, "--json", **options))


def attempt(what, function, *arguments):
    """Runs a group of checks; a failure to run is a failed check with its reason."""
    start = time.time()
    try:
        function(*arguments)
    except (Failed, OSError, ValueError, KeyError) as error:
        check(False, "%s: %s" % (what, error))
    print("     %s took %.1f s" % (what, time.time() - start), flush=True)


def plan_model(name):
    """Folder of one of the shapes of tests/data/plan: config.json alone."""
    return os.path.join(ROOT, "tests", "data", "plan", name)


def small_model(folder, **changes):
    """Writes a config.json of a few layers; weights are invented (--random-weights)."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
              "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096, "max_position_embeddings": 4096,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
              "attention_bias": False, "mlp_bias": False}
    if EMULATED:
        config.update(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32, vocab_size=512)
    config.update(changes)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    return folder
