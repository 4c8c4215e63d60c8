"""reference.py: logits on the GPU against HF transformers, on random models made here.

The truth is HF in f32 on the bf16 weights. HF's own run in bf16 says how far rounding to bf16 takes a correct implementation from it; ours keeps the
residual stream in f32 and may be at most 1.2 times as far (relative L2 of all logits), and must name the same best token wherever the truth's two
best are further apart than twice HF's largest error in that position. An f32 model has to be within 2e-5."""
import gc
import os
import sys
import tempfile

from gpu_common import DEVICE, GPUS, Failed, attempt, check, finish, skip, tandem

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
# Caps that random scores and logits reach; windows that prompts are longer than.
GEMMA2 = dict(attn_logit_softcapping=2.0, final_logit_softcapping=4.0)
GEMMA3 = dict(rope_parameters={"full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
                               "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})


def gemma(size, **more):
    layers = SIZES[size]["num_hidden_layers"]
    return dict(layer_types=[("sliding_attention", "full_attention")[i % 2] for i in range(layers)], sliding_window=24 if size == "tiny" else 200,
                query_pre_attn_scalar=100, **more)


def make_config(family, size):
    if family == "Gemma2":
        return transformers.Gemma2Config(**SIZES[size], **COMMON, **gemma(size, **GEMMA2))
    if family == "Gemma3":
        return transformers.Gemma3TextConfig(**SIZES[size], **COMMON, **gemma(size, **GEMMA3))
    return getattr(transformers, family + "Config")(**SIZES[size], **COMMON, **PLAIN)


def make_model(family, size, dtype, folder):
    config = make_config(family, size)
    torch.manual_seed(3)
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # ones would hide a norm that is left out; Gemma's are stored less 1
                parameter.uniform_(*((-0.5, 0.5) if family.startswith("Gemma") else (0.5, 1.5)))
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
    tandem("logits", folder, "--device", DEVICE, "--tp", world, "--tokens", ",".join(map(str, tokens)), "--out", out)
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
        name = "%s %s TP%d" % (family, size, world)
        if world > GPUS:
            skip("%s: needs two GPUs" % name)
            continue
        compare(name, our_logits(folder, world, tokens, vocab, scratch), truth, yardstick)


def main():
    print("note torch %s, transformers %s on %s" % (torch.__version__, transformers.__version__, PLACE))
    sizes = sys.argv[1:] or ["tiny", "mid"]
    with tempfile.TemporaryDirectory() as scratch:
        for family in ("Llama", "Qwen3", "Gemma2", "Gemma3"):
            for size in sizes:
                attempt("%s %s" % (family, size), one_model, family, size, torch.bfloat16, 65 if size == "tiny" else 600, scratch)
            attempt("%s tiny f32" % family, one_model, family, "tiny", torch.float32, 65, scratch)
    finish()


if __name__ == "__main__":
    main()
