"""reference.py [SIZE...] [FAMILY...]: logits on the GPU against HF transformers, on random models made here.

The truth is HF in f32 on the bf16 weights. HF's own run in bf16 says how far rounding to bf16 takes a correct implementation from it; ours keeps the
residual stream in f32 and may be at most 1.2 times as far (relative L2 of all logits), and must name the same best token wherever the truth's two
best are further apart than twice HF's largest error in that position. An f32 model has to be within 2e-5."""
import gc
import os
import sys
import tempfile

from gpu_common import DEVICE, Failed, attempt, check, finish, ranks, skip, tandem

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
COMMON = dict(max_position_embeddings=4096, rope_theta=10000.0, tie_word_embeddings=False, initializer_range=0.04, bos_token_id=None, eos_token_id=None,
              pad_token_id=None)


# The gated delta net's heads are of 128, as those of real models, which have kernels of their own; three attention heads of 256 in "mid" for the same reason.
HYBRID = {
    "tiny": dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=128, linear_value_head_dim=128, num_hidden_layers=4),
    "mid": dict(linear_num_key_heads=4, linear_num_value_heads=12, linear_key_head_dim=128, linear_value_head_dim=128, head_dim=256, num_attention_heads=12,
                num_key_value_heads=2),
}
# Name in transformers: class of its config, further keys by size.
FAMILIES = {
    "Llama": ("LlamaConfig", {}), "Qwen3": ("Qwen3Config", {}), "Qwen3_5": ("Qwen3_5TextConfig", HYBRID),
    "Qwen3Next": ("Qwen3NextConfig", {size: dict(keys, num_experts=0, num_experts_per_tok=1) for size, keys in HYBRID.items()}),
}


def make_model(family, size, dtype, folder):
    config_class, more = FAMILIES[family]
    config = getattr(transformers, config_class)(**{**SIZES[size], **more.get(size, {})}, **COMMON)
    torch.manual_seed(3)
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is left out
                centred = bool(more) and "linear_attn" not in name  # kept less 1
                parameter.uniform_(0.5 - centred, 1.5 - centred)
    model.to(dtype).save_pretrained(folder)
    del model
    gc.collect()


def hf_logits(family, folder, dtype, tokens):
    model = getattr(transformers, family + "ForCausalLM").from_pretrained(folder, dtype=dtype, attn_implementation="eager").to(PLACE).eval()
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
    for world in (1, 2):
        compare("%s %s TP%d" % (family, size, world), our_logits(folder, world, tokens, vocab, scratch), truth, yardstick)


def main():
    print("note torch %s, transformers %s on %s" % (torch.__version__, transformers.__version__, PLACE))
    sizes = [word for word in sys.argv[1:] if word in SIZES] or list(SIZES)
    families = [word for word in sys.argv[1:] if word in FAMILIES] or list(FAMILIES)
    with tempfile.TemporaryDirectory() as scratch:
        for family in families:
            config_class = FAMILIES[family][0]
            if not hasattr(transformers, config_class):
                skip("%s: transformers %s does not have it" % (family, transformers.__version__))
                continue
            for size in sizes:
                attempt("%s %s" % (family, size), one_model, family, size, torch.bfloat16, 65 if size == "tiny" else 600, scratch)
            attempt("%s tiny f32" % family, one_model, family, "tiny", torch.float32, 65, scratch)
    finish()


if __name__ == "__main__":
    main()
