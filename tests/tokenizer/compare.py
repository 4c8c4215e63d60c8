#!/usr/bin/env python3
"""Compares `tandem tokenize` with the Hugging Face `tokenizers` library, id by id.

    compare.py [--tandem PROGRAM] [--mb N] [--adversarial N] [--random N] [--seed N] [FOLDER...]

FOLDERs hold a tokenizer.json each; without any, all folders under $TANDEM_TOKENIZERS. --random N makes N small tokenizer.json files
with random components and compares those as well. Prints what was compared; ends with 1 at the first difference, which it shows.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import corpus
import small


class Different(Exception):
    pass


class Unfit(Exception):
    """The library itself fails on this file: no case."""


def asked(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except KeyboardInterrupt:
        raise
    except BaseException as e:  # its panics are no Exception
        raise Unfit(str(e)) from e


def program(args, folder, flags, data):
    done = subprocess.run([args.tandem, "tokenize", folder, *flags], input=data, capture_output=True)
    if done.returncode != 0:
        raise Different(f"{folder}: tandem tokenize {' '.join(flags)} ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def jsonl(args, folder, flags, key, answer, values):
    data = "".join(json.dumps({key: v}) + "\n" for v in values).encode()
    lines = program(args, folder, ["--jsonl", *flags], data).split(b"\n")[:-1]
    if len(lines) != len(values):
        raise Different(f"{folder}: {len(values)} lines in, {len(lines)} out")
    return [json.loads(line)[answer] for line in lines]


def reference(folder):
    import tokenizers
    made = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    made.no_truncation()
    made.no_padding()
    return made


def processor_seconds():
    """Of the programs that ended: what else the machine does is not counted."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(folder, what, source, ours, theirs):
    if ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    raise Different(f"{folder}: {what} differs at {at}\n  of     {source!r:.2000}\n  tandem {ours[max(0, at - 5):at + 20]!r}\n  HF     {theirs[max(0, at - 5):at + 20]!r}")


def compare_texts(args, folder, hf, texts, special):
    flags = ["--add-special"] if special else []
    theirs = [e.ids for e in asked(hf.encode_batch, texts, add_special_tokens=special)]
    ours = jsonl(args, folder, flags, "text", "tokens", texts)
    for text, a, b in zip(texts, ours, theirs):
        check(folder, "encoding", text, a, b)
    return theirs


def compare_decoding(args, folder, hf, lists):
    theirs = [asked(hf.decode, ids, skip_special_tokens=False) for ids in lists]
    for ids, a, b in zip(lists, jsonl(args, folder, ["--decode"], "tokens", "text", lists), theirs):
        check(folder, "decoding", ids, a, b)


def random_ids(r, hf, count):
    size = hf.get_vocab_size(with_added_tokens=True) + 5
    return [[r.randrange(size) for _ in range(r.choice([0, 1, 2, 3, 5, 8, 20, 100]))] for _ in range(count)]


def compare_broken(args, folder, hf, n):
    data = corpus.broken(args.seed, n)
    ours = json.loads(program(args, folder, [], data))
    check(folder, "encoding of invalid UTF-8", "(corpus.broken)", ours, hf.encode(data.decode(errors="replace"), add_special_tokens=False).ids)
    return len(data)


def compare_folder(args, folder):
    hf = reference(folder)
    texts = corpus.documents(args.seed, args.mb << 20)
    size = sum(len(t.encode()) for t in texts)
    compare_texts(args, folder, hf, texts[:2000], True)
    ids = compare_texts(args, folder, hf, texts, False)
    compare_decoding(args, folder, hf, ids)
    lists = random_ids(random.Random(args.seed), hf, 3000)
    compare_decoding(args, folder, hf, lists)
    size += compare_broken(args, folder, hf, min(args.mb << 20, 2 << 20))
    slow = 0.0
    count = 0
    for name, text in corpus.adversarial(args.seed, args.adversarial):
        data = text.encode()
        begun = processor_seconds()
        ours = json.loads(program(args, folder, [], data))
        slow = max(slow, processor_seconds() - begun)
        check(folder, f"encoding of 1 MB of {name}", name, ours, hf.encode(text, add_special_tokens=False).ids)
        size += len(data)
        count += 1
    print(f"{folder}: {size / 1e6:.1f} MB in {len(texts)} texts, {count} adversarial texts (at most {slow:.2f} s of processor time, loading included), "
          f"{sum(map(len, ids))} ids, {len(ids) + len(lists)} decodings: 0 differences", flush=True)


def ambiguous(description, hf):
    """Two added tokens with one normal form: the library's choice between them differs from run to run."""
    forms = [t["content"] for t in description["added_tokens"] if t["normalized"]]
    if hf.normalizer:
        forms = [hf.normalizer.normalize_str(form) for form in forms]
    return len(set(forms)) < len(forms) or "" in forms


def compare_small(args, count):
    refused = 0
    for i in range(count):
        r = random.Random(args.seed * 1000003 + i)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tokenizer.json")
            description = small.make(r)
            with open(path, "w", encoding="utf-8") as f:
                json.dump(description, f)
            try:
                hf = asked(reference, folder)
                if ambiguous(description, hf):
                    raise Unfit("ambiguous")
            except Unfit:
                refused += 1
                continue
            texts = [small.text(r) for _ in range(40)]
            try:
                compare_texts(args, folder, hf, texts, True)
                ids = compare_texts(args, folder, hf, texts, False)
                compare_decoding(args, folder, hf, ids + random_ids(r, hf, 40))
            except Unfit:
                refused += 1
            except Different as e:
                raise Different(f"random file {i} of seed {args.seed}: {json.dumps({k: v for k, v in description.items() if k != 'model'})}\n"
                                f"model {json.dumps({k: v for k, v in description['model'].items() if k not in ('vocab', 'merges')})}\n{e}") from e
    print(f"{count - refused} random tokenizer.json files, 40 texts and 80 decodings each: 0 differences ({refused} refused by the library)")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tandem", default="build/tandem")
    parser.add_argument("--mb", type=int, default=10)
    parser.add_argument("--adversarial", type=int, default=1000000, metavar="BYTES")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("folders", nargs="*")
    args = parser.parse_args()
    folders = args.folders
    root = os.environ.get("TANDEM_TOKENIZERS")
    if not folders and root:
        folders = sorted(os.path.join(root, f) for f in os.listdir(root) if os.path.exists(os.path.join(root, f, "tokenizer.json")))
    try:
        for folder in folders:
            compare_folder(args, folder)
        if args.random:
            compare_small(args, args.random)
    except Different as e:
        print(f"compare.py: {e}", file=sys.stderr)
        return 1
    if not folders and not args.random:
        print("compare.py: nothing to compare: name folders, set TANDEM_TOKENIZERS or give --random N", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
