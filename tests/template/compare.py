#!/usr/bin/env python3
"""Compares chat templates as tandem renders them with jinja2 in the set-up of Hugging Face: equal bytes, or both fail.

    compare.py [--program PATH] [--conversations N] [--snippets N] [--seed N] [TEMPLATE...]

Every template of tests/template/families, every TEMPLATE given (a .jinja file or a tokenizer_config.json) on N random conversations
each, and N random programs. Prints what was compared; shows the first differences and ends with 1 if there are any.
"""

import argparse
import glob
import json
import os
import random
import re
import subprocess
import sys
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import conversations
import reference
import snippets

READS_PARTS = {"qwen3_5", "mistral", "gemma4", "glm"}  # the others get content as one string
ADDRESS = re.compile(r"0x[0-9a-f]{6,}|<(built-in )?(method|function|generator|bound|class)|dict_(keys|values|items)\(|reverseiterator|reversed object")


def expected(source, job):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = reference.render(source, job)
        text.encode()
        return text, None
    except RecursionError:
        return None, "recursion"
    except Exception as e:
        return None, f"{type(e).__name__}: {e}"


def got(program, jobs):
    data = "".join(json.dumps(job) + "\n" for job in jobs).encode()
    done = subprocess.run([program], input=data, capture_output=True)
    lines = done.stdout.split(b"\n")[:-1]
    if done.returncode != 0 or len(lines) != len(jobs):
        at = min(len(lines), len(jobs) - 1)
        sys.exit(f"{program} ended with {done.returncode} at job {at}: {json.dumps(jobs[at])}\n{done.stderr.decode(errors='replace')[-3000:]}")
    return [json.loads(line) for line in lines]


class Tally:
    def __init__(self):
        self.equal = self.both_fail = self.unsupported = self.different = 0
        self.reasons = {}

    def add(self, source, job, want, reason, answer, may_lack):
        if "text" in answer and answer["text"] == want:
            self.equal += 1
        elif "error" in answer and want is None:
            self.both_fail += 1
        elif answer.get("status") == "unsupported" and may_lack and (ADDRESS.search(want or "") or "64 bits" in answer["error"] or "not implemented" in answer["error"]):
            self.unsupported += 1
            key = re.sub(r".*line \d+: ", "", answer["error"])
            self.reasons[key] = self.reasons.get(key, 0) + 1
        else:
            self.different += 1
            if self.different <= 12:
                print(f"DIFFERENT: {source!r}\n  want {want!r} {reason or ''}\n  got  {answer.get('text', answer.get('error'))!r}")
                if job.get("messages"):
                    print("  job ", json.dumps(job)[:1500])

    def line(self, what):
        more = f", {self.unsupported} not implemented" if self.unsupported else ""
        return f"{what}: {self.equal} equal, {self.both_fail} failed in both{more}, {self.different} different"


def check_marks(source, job, answer):
    """Bytes outside the marks came from the template: without the users' text there is nothing of it there."""
    text, at, plain = answer["text"].encode(), 0, b""
    for start, end in answer["user"]:
        if not at <= start < end <= len(text):
            return f"marks out of order: {answer['user']}"
        plain += text[at:start]
        at = end
    plain += text[at:]
    return None if "日本".encode() not in plain and "Привет".encode() not in plain else "text of the user is not marked"


def compare_templates(args, files):
    total = 0
    for file in files:
        name = os.path.basename(file).removesuffix(".jinja")
        source = open(file, encoding="utf-8", newline="").read()
        if name == "tokenizer_config.json":
            name, source = os.path.basename(os.path.dirname(file)), json.loads(source).get("chat_template")
            if not isinstance(source, str):
                continue
        rng, tally, jobs, wants = random.Random(f"{args.seed} {name}"), Tally(), [], []
        for _ in range(args.conversations):
            job = conversations.conversation(rng)
            seen = job if name in READS_PARTS else {**job, "messages": reference.flat(job["messages"])}
            wants.append(expected(source, seen))
            jobs.append({**job, "template": source, "now": reference.NOW_FIELDS})
        for job, (want, reason), answer in zip(jobs, wants, got(args.program, jobs)):
            tally.add(name, {k: v for k, v in job.items() if k != "template"}, want, reason, answer, False)
            wrong = "text" in answer and check_marks(source, job, answer)
            if wrong:
                tally.different += 1
                print(f"MARKS: {name}: {wrong}: {answer}"[:2000])
        print(tally.line(name))
        total += tally.different
    return total


def compare_snippets(args):
    rng, tally = random.Random(args.seed), Tally()
    sources = [snippets.program(rng) for _ in range(args.snippets)]
    for start in range(0, len(sources), 2000):
        part = sources[start:start + 2000]
        jobs = [{"template": source, "kwargs": snippets.VARIABLES, "now": reference.NOW_FIELDS} for source in part]
        for source, job, answer in zip(part, jobs, got(args.program, jobs)):
            want, reason = expected(source, job)
            tally.add(source, {}, want, reason, answer, True)
    print(tally.line("snippets"))
    for reason, n in sorted(tally.reasons.items(), key=lambda item: -item[1])[: 40 if args.verbose else 0]:
        print(f"    {n} {reason}")
    return tally.different


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default="build/tests/e2e/template_render")
    parser.add_argument("--conversations", type=int, default=300)
    parser.add_argument("--snippets", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("templates", nargs="*")
    args = parser.parse_args()
    different = compare_templates(args, sorted(glob.glob(os.path.join(HERE, "families", "*.jinja"))) + args.templates)
    different += compare_snippets(args)
    sys.exit(different > 0)


main()
