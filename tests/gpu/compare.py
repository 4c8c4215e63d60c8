"""compare.py verify|invariant|plan: world sizes against each other, and the plan against what was allocated."""
import os
import sys
import tempfile

from gpu_common import (DEVICE, EMULATED, all_degrees, attempt, check, degrees, finish, plan_model, ranks, small_model, tandem, tandem_json)

HEADS = 32 if EMULATED else 128
MODELS = {"llama": {}, "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
          "qwen3_5": {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "full_attention_interval": 2, "attn_output_gate": True,
                      "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": HEADS, "linear_value_head_dim": HEADS,
                      "linear_conv_kernel_dim": 4, "torch_dtype": "float32"}}
# Of a row's largest logit. Two orders of summation of bf16 activations: a few of bf16's 2^-8. The delta rule multiplies what they differ by from token to token, so
# that model is of f32.
BOUNDS = {"qwen3_5": 1e-4}


def worlds_of(name):
    """All of them for one model; for the others two and the most, so that all parts together keep to their ten minutes."""
    every = all_degrees()
    return every if name == "llama" else sorted(set(every) & {1, 2, every[-1]})


def verify_one(name, folder, world):
    """Greedy tokens equal but for near ties, and logits within the rounding of the model's type."""
    result = tandem_json("verify", folder, "--random-weights", 7, "--device", DEVICE, *ranks(world), "-n", 8 if EMULATED else 48)
    difference = result["first_difference"]
    tokens = result["tokens_agree"] or difference["near_tie"]
    check(tokens, "%s TP%d against TP1: tokens %s" % (name, world, "agree" if result["tokens_agree"] else "differ: %s" % difference))
    check(result["max_rel_error"] <= BOUNDS.get(name, 2.0 ** -5), "%s TP%d against TP1: largest error %.3g, %.3g of the row's largest; smallest margin %.3g, same best at %d of %d" % (
        name, world, result["max_abs_error"], result["max_rel_error"], result["min_top1_margin"], result["same_top1"], result["positions"]))


def verify(folder):
    for name, changes in MODELS.items():
        model = small_model(os.path.join(folder, name), **changes)
        for world in worlds_of(name)[1:]:
            attempt("verify %s" % name, verify_one, name, model, world)


def invariant_one(name, folder):
    tokens = ",".join(str(1 + i * 37 % 400) for i in range(40))
    hashes = {}
    for world in worlds_of(name):
        hashes[world] = tandem("logits", folder, "--random-weights", 7, "--device", DEVICE, *ranks(world), "--tp-invariant", "--tokens", tokens).strip()
    again = tandem("logits", folder, "--random-weights", 7, "--device", DEVICE, "--tp", 1, "--tp-invariant", "--tokens", tokens, "--prefill-chunk", 16).strip()
    check(len(hashes[1]) == 64 and again == hashes[1], "%s --tp-invariant: prefill in chunks of 16 gives the same bits (%s)" % (name, hashes[1][:16]))
    for world in worlds_of(name)[1:]:
        check(hashes[world] == hashes[1], "%s --tp-invariant: TP%d %s, TP1 %s" % (name, world, hashes[world][:16], hashes[1][:16]))


def invariant(folder):
    for name in ("llama", "qwen3_5"): # what qwen3 has besides, norms of heads, the other has too
        attempt("invariant %s" % name, invariant_one, name, small_model(os.path.join(folder, name), **MODELS[name]))


def plan_one(folder, world, name, *options):
    context = 2048
    plan = tandem_json("plan", folder, "--device", DEVICE, "--tp", world, *options)["degrees"][0]["bytes"]
    run = tandem_json("run", folder, "--random-weights", 7, "--device", DEVICE, "--tp", world, "--context", context, "--tokens", "1,2,3", "-n", 4,
                      "--ignore-eos", *options, timeout=100)
    kv = plan["kv_per_token"] * run["kv_tokens"]
    planned = plan["sharded"] + plan["replicated"] + plan["scratch"] + plan["workspace"] + kv
    scratch = max(seen["scratch"] for seen in run["rank_bytes"])
    # devices that cannot reach each other's memory have the library's collectives, and its scratch
    check(not EMULATED or scratch == plan["scratch"], "%s TP%d: scratch of the largest rank %d bytes, planned %d" % (name, world, scratch, plan["scratch"]))
    for rank, seen in enumerate(run["rank_bytes"]):
        allocated = sum(seen[tag] for tag in ("sharded", "replicated", "kv", "scratch", "workspace"))
        share = allocated / planned - 1
        # a model of a megabyte is smaller than what any model needs
        check(EMULATED or abs(share) <= 0.03, "%s TP%d rank %d: %.3f GB allocated, planned %.3f GB: %+.2f %% (at most 3); peak with the runtime's own %.3f GB" % (
            name, world, rank, allocated / 1e9, planned / 1e9, 100 * share, seen["peak"] / 1e9))
        weights, planned_weights = seen["sharded"] + seen["replicated"], plan["sharded"] + plan["replicated"]
        check(abs(weights / planned_weights - 1) <= 0.03, "%s TP%d rank %d: weights %.3f GB, planned %.3f GB" % (name, world, rank, weights / 1e9, planned_weights / 1e9))


def plan(folder):
    model = small_model(os.path.join(folder, "llama")) if EMULATED else plan_model("llama3-8b")
    for world in degrees():
        attempt("plan TP%d" % world, plan_one, model, world, "small" if EMULATED else "Llama-3.1-8B")
        if EMULATED:
            attempt("plan TP%d --tp-invariant" % world, plan_one, model, world, "small --tp-invariant", "--tp-invariant")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        {"verify": verify, "invariant": invariant, "plan": plan}[sys.argv[1]](scratch)
    finish()
