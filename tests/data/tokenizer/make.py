#!/usr/bin/env python3
"""Writes the small tokenizers of this folder, NAME.json, and what the Hugging Face library makes of some texts, NAME.cases.

Run it only to change them: the unit tests read the files and need no Python. A line of .cases is {"text", "special", "tokens",
"decoded", "decoded_skip"}: encoded with or without the post-processor, and decoded with special tokens kept or skipped.
"""

import json
import os

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = ("the cat sat on the mat. the dog's bone isn't there; we're here, they'll see. 12 345 6789 words and more words in the thin "
          "thing that thought through thousands of théories. Viet Nam Việt Nam. int main(void) { return 0; } over and over again ")

GPT2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
LLAMA3 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
QWEN3 = LLAMA3.replace("{1,3}", "")
QWEN35 = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
TEKKEN = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}"
          "\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")
DEEPSEEK = ["\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\\r\\n]+|"
            "\\s+(?!\\S)|\\s+"]

TEXTS = ["", " ", "the cat", "  the  cat ", "The dog's bone ISN'T there, we'LL see.", "'S 's 'ſ", " Việt Nam Vie\u0323\u0302t", "12345 6 78901",
         "a\nb\r\nc\n\n\n d\t\te   f", "int main(void) { return x_1->y; }\n", "日本語のテキスト、中文。", "\U0001F600\U0001F468\u200d\U0001F469\u200d\U0001F467 ok",
         "e\u0301e\u0301 \u1100\u1161\u11a8", "\u00a0\u3000\u2028x\u180ey", "½ ² Ⅷ ①", "\0a\0", "\u2581the \u2581\u2581 cat\u2581", "<s>Hello", "Hi</s>there",
         "<s> a </s> b <s><s>", "<think>the</think> thing<|end|>", "Hello world again", "\ufffd \ufeff\u200b", "A<tok>B <tok> C", "théories THÉORIES ǅ", " Điện"]


def bytes_to_chars():
    keep = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    rest = [b for b in range(256) if b not in keep]
    return {**{b: chr(b) for b in keep}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


CHARS = bytes_to_chars()


def mapped(text):
    return "".join(CHARS[b] for b in text.encode())


def learn(words, count):
    """A plain BPE learner, enough to have merges of several levels."""
    pieces = [list(w) for w in words]
    merges = []
    for _ in range(count):
        pairs = {}
        for p in pieces:
            for pair in zip(p, p[1:]):
                pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for p in pieces:
            i = 0
            while i + 1 < len(p):
                if (p[i], p[i + 1]) == best:
                    p[i:i + 2] = ["".join(best)]
                i += 1
    return merges


def model(alphabet, merges, extra=(), pairs=False, **options):
    words = list(dict.fromkeys([*alphabet, *("".join(m) for m in merges), *extra]))
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
            "byte_fallback": False, **options, "vocab": {w: i for i, w in enumerate(words)}, "merges": [list(m) if pairs else " ".join(m) for m in merges]}


def byte_model(extra=(), **options):
    merges = learn([mapped(w) for w in [" " + w for w in CORPUS.split()] + CORPUS.split()], 120)
    return model(CHARS.values(), merges, extra, **options)


def mark_model(**options):
    words = ["\u2581" + w for w in CORPUS.split()]
    merges = learn(words, 100) + [("\u2581", "\u2581"), ("\u2581\u2581", "\u2581\u2581")]
    alphabet = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + sorted(set("".join(words)))
    return model(alphabet, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True, **options)


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def level(prefix=False, regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def chain(kind, *parts):
    names = {"pre": "pretokenizers", "norm": "normalizers", "dec": "decoders", "post": "processors"}
    return {"type": "Sequence", names[kind]: list(parts)}


def added(content, special=True, **options):
    return {"id": 0, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special, **options}


def template(before, after=()):
    names = [*before, *after]
    piece = lambda n: {"SpecialToken": {"id": n, "type_id": 0}}
    single = [piece(n) for n in before] + [{"Sequence": {"id": "A", "type_id": 0}}] + [piece(n) for n in after]
    return {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": names}


SPM_NORM = chain("norm", {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
SPM_DEC = chain("dec", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0})
SPECIAL = [added("<s>"), added("</s>")]
META = {"type": "Metaspace", "replacement": "\u2581"}

# name: (model, added tokens, normalizer, pre-tokenizer, post-processor, decoder)
FILES = {
    "gpt2": (byte_model(), [added("<|end|>")], None, level(regex=True), level(), level()),
    "llama3": (byte_model(extra=[mapped(" Điện")], ignore_merges=True), [added("<s>"), added("<|end|>")], None,
               chain("pre", split(LLAMA3), level()), chain("post", level(), template(["<s>"])), level()),
    "qwen3": (byte_model(pairs=True, end_of_word_suffix=""), [added("<|end|>"), added("<think>", False), added("</think>", False)],
              {"type": "NFC"}, chain("pre", split(QWEN3), level()), level(), level()),
    "qwen35": (byte_model(), [added("<|end|>")], {"type": "NFC"}, chain("pre", split(QWEN35), level()), level(), level()),
    "tekken": (byte_model(ignore_merges=True), [added("<s>")], None, chain("pre", split(TEKKEN), level()), template(["<s>"]), level()),
    "deepseek": (byte_model(), [added("<s>"), added("<tok>", False, normalized=True)], chain("norm"),
                 chain("pre", *(split(p) for p in DEEPSEEK), level()), level(), level()),
    "smollm": (byte_model(), [added("<|end|>")], None, chain("pre", {"type": "Digits", "individual_digits": True}, level(prefix=True, regex=True)), None, level()),
    "llama2": (mark_model(), [added("<unk>"), *SPECIAL], SPM_NORM, None, template(["<s>"]), SPM_DEC),
    "mistral": (mark_model(), [added("<unk>"), *SPECIAL], None, {**META, "prepend_scheme": "first", "split": False}, template(["<s>"]), SPM_DEC),
    "metaspace": (mark_model(), [*SPECIAL, added("<tok>", False, normalized=True)], {"type": "NFKC"}, META, template(["<s>"], ["</s>"]), META),
    "metaspace-never": (mark_model(), SPECIAL, None, {**META, "prepend_scheme": "never", "add_prefix_space": False}, None, {**META, "prepend_scheme": "never"}),
    "added": (mark_model(), [*SPECIAL, added("<tok>", lstrip=True, rstrip=True), added("cat", False, single_word=True), added("é", False, normalized=True),
                             added("the cat", False), added("sat on", False, rstrip=True)],
              {"type": "NFC"}, {**META, "prepend_scheme": "always"}, None, chain("dec", {"type": "ByteFallback"}, META)),
    "unknown": (model(["<unk>", *"abcdehnorst \u2581"], [("t", "h"), ("th", "e")], unk_token="<unk>"), [], {"type": "NFD"}, None, None, None),
    "vanish": (model([*"abcdehnorst"], [("t", "h"), ("th", "e")]), [], {"type": "NFKD"}, split("\\s+", "Removed"), None,
               {"type": "Strip", "content": "t", "start": 1, "stop": 0}),
    "with-next": (byte_model(), [], None, chain("pre", split("[\\s&&[^\\n]]|x*", "MergedWithNext"), split("(?i)THE|\\d", "Contiguous"), level()), None, level()),
    "with-previous": (byte_model(), [], None, chain("pre", split("[^(\\s|[.,!])]", "MergedWithPrevious"), split("\\w+\\b", "Contiguous", True), level()), None, level()),
}


def write(name, parts):
    m, tokens, normalizer, pre, post, decoder = parts
    known = dict(m["vocab"])
    for token in tokens:
        token["id"] = known.setdefault(token["content"], len(known))
    made = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer, "pre_tokenizer": pre,
            "post_processor": post, "decoder": decoder, "model": m}
    for part in [post, *(post or {}).get("processors", [])]:
        if part and part["type"] == "TemplateProcessing":
            part["special_tokens"] = {n: {"id": n, "ids": [known[n]], "tokens": [n]} for n in dict.fromkeys(part["special_tokens"])}
    path = os.path.join(HERE, name + ".json")
    with open(path, "w", encoding="ascii") as f:
        json.dump(made, f)
        f.write("\n")
    hf = Tokenizer.from_file(path)
    with open(os.path.join(HERE, name + ".cases"), "w", encoding="ascii") as f:
        for text in TEXTS:
            for special in (False, True):
                ids = hf.encode(text, add_special_tokens=special).ids
                f.write(json.dumps({"text": text, "special": special, "tokens": ids, "decoded": hf.decode(ids, skip_special_tokens=False),
                                    "decoded_skip": hf.decode(ids)}) + "\n")


for file_name, file_parts in FILES.items():
    write(file_name, file_parts)
