"""The vocabulary of a tokenizer.json as a GGUF file: what a converter writes. For comparing both ways of reading it."""
import json
from pathlib import Path

from gguf import GGUFWriter, TokenType

NORMAL, UNKNOWN, CONTROL, USER, BYTE = TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.BYTE
# A part of the pattern that only this one has, and its name.
PATTERNS = [("\\p{N}{1,3}| ?[^\\s", "llama-bpe"), ("\\p{L}+|\\p{N}| ?[^\\s\\p{L}", "qwen2"), ("\u3040-\u309f", "deepseek-v3")]


def pre_name(pre):
    text = json.dumps(pre, ensure_ascii=False).replace("\\\\", "\\")
    return next((name for part, name in PATTERNS if part in text), None)


def surrounding(post, ids):
    """Ids that the post-processor puts in front, and behind."""
    steps = post.get("processors", [post]) if post else []
    template = next((s["single"] for s in steps if s["type"] == "TemplateProcessing"), [{"Sequence": {}}])
    at = next(i for i, piece in enumerate(template) if "Sequence" in piece)
    return [ids[p["SpecialToken"]["id"]] for p in template[:at]], [ids[p["SpecialToken"]["id"]] for p in template[at + 1:]]


def write(folder, path):
    """False if the tokenizer is of a kind that GGUF has no name for here."""
    d = json.loads((Path(folder) / "tokenizer.json").read_text(encoding="utf-8"))
    model, sentencepiece = d["model"], d["model"].get("byte_fallback", False)
    pre = pre_name(d["pre_tokenizer"])
    if not sentencepiece and not pre:
        return False
    ids = dict(model["vocab"])
    kinds = {t: BYTE if sentencepiece and len(t) == 6 and t.startswith("<0x") else NORMAL for t in ids}
    for token in d["added_tokens"]:
        ids[token["content"]] = token["id"]
        kinds[token["content"]] = (UNKNOWN if token["content"] == model.get("unk_token") else CONTROL) if token["special"] else USER
    count = max(ids.values()) + 1
    tokens, types = [f"[PAD{i}]" for i in range(count)], [TokenType.UNUSED] * count
    for token, i in ids.items():
        tokens[i], types[i] = token, kinds[token]
    before, after = surrounding(d["post_processor"], ids)
    w = GGUFWriter(path, "llama")
    w.add_tokenizer_model("llama" if sentencepiece else "gpt2")
    w.add_token_list(tokens)
    w.add_token_types(types)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    if sentencepiece:
        scores, made = [-1e6] * count, 0
        for merge in merges:  # a token's score is where it is first made
            i = ids["".join(merge.split(" "))]
            if scores[i] == -1e6:
                scores[i], made = -float(made), made + 1
        w.add_token_scores(scores)
        w.add_add_space_prefix(True)
    else:
        w.add_tokenizer_pre(pre)
        w.add_token_merges(merges)
    w.add_add_bos_token(bool(before))
    w.add_add_eos_token(bool(after))
    if before:
        w.add_bos_token_id(before[0])
    if after:
        w.add_eos_token_id(after[0])
    if model.get("unk_token"):
        w.add_unk_token_id(ids[model["unk_token"]])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()
    return True
