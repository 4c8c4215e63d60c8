"""reference.py [SIZE...] [FAMILY...] | --list: logits on the GPU against HF transformers, on random models made here.

The truth is HF in f32 on the bf16 weights. HF's own run in bf16 says how far rounding to bf16 takes a correct implementation from it; ours keeps the
residual stream in f32 and may be at most 1.2 times as far (relative L2 of all logits), and must name the same best token wherever the truth's two
best are further apart than twice HF's largest error in that position. An f32 model has to be within 2e-5."""
import gc
import os
import sys
import tempfile

from gpu_common import DEVICE, attempt, check, finish, ranks, skip, tandem

# The families that are compared where none is named, those that take long first. Mistral and Qwen2 are so by name: their layers are Llama's, with a window or a bias.
USUAL = ("Qwen3_5", "Qwen3Next", "Llama", "Qwen3", "Gemma3", "Gemma2", "Qwen3Moe", "Qwen3NextMoe")
if sys.argv[1:] == ["--list"]:
    print("\n".join(USUAL))
    sys.exit(0)

try:
    import numpy
    import torch
    import transformers
except ImportError as missing:
    skip("reference: %s; install torch and transformers to compare" % missing)
    finish()

PLACE = "cuda" if torch.cuda.is_available() else "cpu"
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
F32_BOUND = 2e-5
BF16_FACTOR = 1.2

SIZES = {
    "tiny": dict(hidden_size=256, intermediate_size=704, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=1000),
    "mid": dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=4, head_dim=128, vocab_size=32000),
}
COMMON = dict(max_position_embeddings=4096, initializer_range=0.04, bos_token_id=None, eos_token_id=None, pad_token_id=None)
PLAIN = dict(rope_theta=10000.0, tie_word_embeddings=False)
EXPERTS = dict(num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192, norm_topk_prob=True)
# The gated delta net's heads are of 128, as those of real models, which have kernels of their own; three attention heads of 256 in "mid" for the same reason.
HYBRID = {
    "tiny": dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128, num_hidden_layers=4),
    "mid": dict(linear_num_key_heads=4, linear_num_value_heads=12, linear_key_head_dim=128, linear_value_head_dim=128, head_dim=256, num_attention_heads=12,
                num_key_value_heads=2),
}


def sliding(size, **more):
    """Every second layer slides over fewer tokens than the prompt has."""
    layers = SIZES[size]["num_hidden_layers"]
    return dict(layer_types=[("sliding_attention", "full_attention")[i % 2] for i in range(layers)], sliding_window=24 if size == "tiny" else 200, **more)


# Soft caps are some that random scores and logits reach.
GEMMA2 = dict(attn_logit_softcapping=2.0, final_logit_softcapping=4.0, query_pre_attn_scalar=100)
GEMMA3 = dict(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}, query_pre_attn_scalar=100)

# Of each family: its name and its config's in transformers, what the config is given besides, whether norm weights are stored less 1, what is compared:
# sizes in bf16, "f32" the tiny one in f32. Experts are compared in f32 alone: where two of them are close, rounding to 16 bits falls either way.
# Sizes of one family stand for others with the same kernels.
COMPARED = ("tiny", "mid", "f32")
FAMILIES = {
    "Llama": ("Llama", "LlamaConfig", lambda size: PLAIN, False, COMPARED),
    "Mistral": ("Mistral", "MistralConfig", lambda size: dict(PLAIN, sliding_window=24), False, ("tiny", "f32")),
    "Qwen2": ("Qwen2", "Qwen2Config", lambda size: PLAIN, False, ("tiny", "f32")),
    "Qwen3": ("Qwen3", "Qwen3Config", lambda size: PLAIN, False, ("tiny", "f32")),
    "Gemma2": ("Gemma2", "Gemma2Config", lambda size: sliding(size, **GEMMA2), True, ("tiny",)),
    "Gemma3": ("Gemma3", "Gemma3TextConfig", lambda size: sliding(size, **GEMMA3), True, ("tiny", "f32")),
    "Qwen3Moe": ("Qwen3Moe", "Qwen3MoeConfig", lambda size: dict(PLAIN, **EXPERTS), False, ("f32",)),
    "Qwen3_5": ("Qwen3_5", "Qwen3_5TextConfig", lambda size: dict(PLAIN, **HYBRID[size]), True, COMPARED),
    "Qwen3Next": ("Qwen3Next", "Qwen3NextConfig", lambda size: dict(PLAIN, **HYBRID[size], num_experts=0, num_experts_per_tok=1), True, ("tiny", "f32")),
    "Qwen3NextMoe": ("Qwen3Next", "Qwen3NextConfig", lambda size: dict(PLAIN, **HYBRID[size], **EXPERTS, shared_expert_intermediate_size=96), True, ("f32",)),
}


def make_model(family, size, dtype, folder):
    prefix, config_class, more, centred, _ = FAMILIES[family]
    config = getattr(transformers, config_class)(**{**SIZES[size], **COMMON, **more(size)})
    torch.manual_seed(3)
    model = getattr(transformers, prefix + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is left out
                less = centred and "linear_attn" not in name
                parameter.uniform_(0.5 - less, 1.5 - less)
    model.to(dtype).save_pretrained(folder)
    del model
    gc.collect()


def hf_logits(family, folder, dtype, tokens):
    model = getattr(transformers, FAMILIES[family][0] + "ForCausalLM").from_pretrained(folder, dtype=dtype, attn_implementation="eager").to(PLACE).eval()
    with torch.no_grad():
        logits = model(torch.tensor([tokens], device=PLACE)).logits[0].float().cpu().numpy().astype(numpy.float64)
    del model
    gc.collect()
    if PLACE == "cuda":
        torch.cuda.empty_cache()
    return logits


def our_logits(folder, world, tokens, vocab, scratch):
    out = os.path.join(scratch, "logits-%d" % world)
    tandem("logits", folder, "--device", DEVICE, *ranks(world), "--tokens", ",".join(map(str, tokens)), "--out", out)
    return numpy.fromfile(out, dtype="<f4").reshape(len(tokens), vocab).astype(numpy.float64)


def distance(x, truth):
    return float(numpy.linalg.norm(x - truth) / numpy.linalg.norm(truth))


def compare(name, ours, truth, yardstick):
    far = distance(ours, truth)
    if yardstick is None:
        check(far <= F32_BOUND, "%s f32: relative L2 %.3g from HF in f32 (at most %.3g)" % (name, far, F32_BOUND))
        return
    bound = BF16_FACTOR * distance(yardstick, truth)
    check(far <= bound, "%s bf16: relative L2 %.4g from HF in f32; HF in bf16 is %.4g away (at most %.4g)" % (name, far, bound / BF16_FACTOR, bound))
    order = numpy.sort(truth, axis=1)
    clear = order[:, -1] - order[:, -2] > 2 * numpy.abs(yardstick - truth).max(axis=1)
    same = ours.argmax(axis=1) == truth.argmax(axis=1)
    check(bool(same[clear].all()), "%s bf16: same best token at all of %d positions with a clear margin, at %d of %d in all" % (
        name, int(clear.sum()), int(same.sum()), len(same)))


def one_model(family, size, dtype, length, scratch):
    folder = os.path.join(scratch, "%s-%s-%s" % (family, size, str(dtype)[6:]))
    make_model(family, size, dtype, folder)
    vocab = SIZES[size]["vocab_size"]
    tokens = [(7 + 7919 * i) % vocab for i in range(length)]
    truth = hf_logits(family, folder, torch.float32, tokens)
    yardstick = None if dtype == torch.float32 else hf_logits(family, folder, dtype, tokens)
    for world in (1,) if size == "mid" else (1, 2):  # a large one is for kernels that a small one does not reach; ranks were compared by then
        compare("%s %s TP%d" % (family, size, world), our_logits(folder, world, tokens, vocab, scratch), truth, yardstick)


def main():
    print("note torch %s, transformers %s on %s" % (torch.__version__, transformers.__version__, PLACE))
    words = sys.argv[1:]
    sizes = [word for word in words if word in COMPARED] or list(COMPARED)
    families = [word for word in words if word in FAMILIES] or list(USUAL)
    with tempfile.TemporaryDirectory() as scratch:
        for family in families:
            _, config_class, _, _, compared = FAMILIES[family]
            if not hasattr(transformers, config_class):
                skip("%s: transformers %s does not have it" % (family, transformers.__version__))
                continue
            for size in [size for size in sizes if size in compared]:
                if size == "f32":
                    attempt("%s tiny f32" % family, one_model, family, "tiny", torch.float32, 65, scratch)
                else:
                    attempt("%s %s" % (family, size), one_model, family, size, torch.bfloat16, 65 if size == "tiny" else 600, scratch)
    finish()


if __name__ == "__main__":
    main()
