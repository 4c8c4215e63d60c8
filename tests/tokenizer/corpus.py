"""Deterministic test texts for the tokenizer: no files needed, the same on every machine.

Code points come from Unicode 16 blocks by sampling, assigned or not. `documents` gives mixed texts, `adversarial` texts of about
a megabyte that hurt naive tokenizers, `broken` byte strings that are not UTF-8.
"""

import random

# (first, last): blocks by script or use, then stretches of planes 1 to 3.
BLOCKS = [
    (0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x700, 0x74F), (0x780, 0x7FF), (0x800, 0x8FF), (0x900, 0x97F), (0x980, 0x9FF), (0xA00, 0xA7F),
    (0xA80, 0xAFF), (0xB00, 0xB7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xC80, 0xCFF), (0xD00, 0xD7F), (0xD80, 0xDFF), (0xE00, 0xE7F),
    (0xE80, 0xEFF), (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x139F), (0x13A0, 0x13FF),
    (0x1400, 0x167F), (0x1680, 0x17FF), (0x1800, 0x18AF), (0x1900, 0x1AFF), (0x1B00, 0x1CFF), (0x1D00, 0x1DFF), (0x1E00, 0x1EFF),
    (0x1F00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x20CF), (0x20D0, 0x20FF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2400, 0x25FF),
    (0x2600, 0x27BF), (0x27C0, 0x2BFF), (0x2C00, 0x2DFF), (0x2E00, 0x2FFF), (0x3000, 0x303F), (0x3040, 0x309F), (0x30A0, 0x30FF),
    (0x3100, 0x33FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0x4E00, 0x5FFF), (0xA000, 0xA4CF), (0xA4D0, 0xA6FF), (0xA700, 0xA7FF),
    (0xA800, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFE6F), (0xFE70, 0xFEFF),
    (0xFF00, 0xFFFF), (0x10000, 0x107FF), (0x10800, 0x10FFF), (0x11000, 0x11FFF), (0x12000, 0x1254F), (0x13000, 0x143FF),
    (0x16000, 0x16FFF), (0x1B000, 0x1BCFF), (0x1CC00, 0x1D3FF), (0x1D400, 0x1D7FF), (0x1D800, 0x1EFFF), (0x1F000, 0x1F2FF),
    (0x1F300, 0x1F64F), (0x1F650, 0x1FAFF), (0x1FB00, 0x1FBFF), (0x20000, 0x2A6DF), (0x2A6E0, 0x323AF), (0xE0000, 0xE01FF),
    (0x10FF00, 0x10FFFF),
]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n  ", "\u00a0", "\u3000", "\u2028", "\u1680", "\u180e", "\u200b", "\x85",
          "\x0b", "\x0c", "\x1c", "\ufeff", " " * 17, "\t" * 9, "\n" * 6, " \n \n "]
SYLLABLES = ("the of and to in is that it for was on are as with his they at be this from have or by one had not but what all were when "
             "we there can an your which their said if do will each about how up out them then she many some so these would other into "
             "has more her two like him see time could no make than first been its who now people my made over did down only way find "
             "use may water long little very after words called just where most know").split()
ENDINGS = ["", "", "", "s", "ing", "ed", "er", "ly", "'s", "'t", "'re", "'ve", "'ll", "'d", "'m", "'S", "'LL", "'\u017f", ",", ".", "!", "?!"]
CODE = ["if (x == 0) { return -1; }", "def f(self, *args, **kwargs):\n        return [i ** 2 for i in range(10)]", "for (int i=0;i<n;++i)",
        "SELECT * FROM t WHERE a >= 1.5e-3;", "#include <stdio.h>", "https://example.org/a?b=c&d=%20e#f", "user@example.com",
        "{\"key\": [1, 2.0, null, true]}", "<div class=\"a b\">&nbsp;</div>", "\\frac{1}{2} $x_i^{2}$", "0x7FfF_ffff 1_000_000 3.14159",
        "---\n+++ b/file.c\n@@ -1,3 +1,4 @@", "C:\\Windows\\System32", "$HOME/.config && exit 1", "a->b::c<d>(e)", "/* ... */ // ///"]
EMOJI = ["\U0001F600", "\U0001F468\u200d\U0001F469\u200d\U0001F467\u200d\U0001F466", "\U0001F1E9\U0001F1EA", "\U0001F44D\U0001F3FD",
         "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", "\U0001F9D1\u200d\U0001F680",
         "\u263a", "\U0001FAE8"]
MARKS = [0x300, 0x301, 0x302, 0x303, 0x308, 0x30A, 0x323, 0x327, 0x328, 0x331, 0x345, 0x5B0, 0x64B, 0x93C, 0x94D, 0x3099, 0x1DC0, 0x20D0]
SPECIALS = ["<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>",
            "<tool_call>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<|EOT|>", "<0x0A>",
            "<0xE2>", "<|", "|>", "<|im_start", "\u2581", "\u2581\u2581", "[INST]", "<<SYS>>"]


def word(r):
    kind = r.random()
    if kind < 0.80:
        text = r.choice(SYLLABLES)
        if r.random() < 0.15:
            text += r.choice(SYLLABLES)
        if r.random() < 0.12:
            text = text.capitalize() if r.random() < 0.7 else text.upper()
        return text + r.choice(ENDINGS)
    if kind < 0.90:
        return str(r.randrange(10 ** r.randint(1, 12)))
    return "".join(r.choice("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789_-'") for _ in range(r.randint(1, 14)))


def script(r):
    first, last = r.choice(BLOCKS)
    out = []
    for _ in range(r.randint(2, 40)):
        cp = r.randint(first, last)
        if not 0xD800 <= cp <= 0xDFFF:
            out.append(chr(cp))
        if r.random() < 0.12:
            out.append(r.choice(SPACES[:4]))
        if r.random() < 0.08:
            out.extend(chr(r.choice(MARKS)) for _ in range(r.randint(1, 4)))
    return "".join(out)


def scalar(r):
    cp = r.randrange(0x110000 - 0x800)
    return chr(cp if cp < 0xD800 else cp + 0x800)


def fragment(r):
    kind = r.random()
    if kind < 0.45:
        return " ".join(word(r) for _ in range(r.randint(3, 30)))
    if kind < 0.75:
        return script(r)
    if kind < 0.80:
        return r.choice(CODE)
    if kind < 0.85:
        return "".join(r.choice(EMOJI) for _ in range(r.randint(1, 5)))
    if kind < 0.90:
        return "".join(r.choice(SPACES) for _ in range(r.randint(1, 8)))
    if kind < 0.95:
        return r.choice(SPECIALS)
    if kind < 0.98:
        return "".join(r.choice("aeiounAEO") + "".join(chr(r.choice(MARKS)) for _ in range(r.randint(0, 3))) for _ in range(r.randint(1, 10)))
    return "".join(scalar(r) for _ in range(r.randint(1, 12)))


def documents(seed, total_bytes, size=4000):
    """Texts of about `size` bytes, `total_bytes` in all; a few short ones first, where edges are."""
    r = random.Random(seed)
    out = ["", " ", "a", "  ", " a", "a ", "\n", "\0", "a\0b", "'s", "\u2581", "\u2581a", "<s>", "<s>Hello", "Hi</s>there", " <s> a", "\u0301", "e\u0301", " Vi\u1ec7t"]
    out += [fragment(r) for _ in range(3000)]
    done = sum(len(t.encode()) for t in out)
    while done < total_bytes:
        parts, n = [], 0
        while n < size:
            part = fragment(r)
            parts.append(part)
            if r.random() < 0.6:
                parts.append(r.choice(SPACES[:8]))
            n += len(part.encode()) + 1
        text = "".join(parts)
        out.append(text)
        done += len(text.encode())
    return out


def adversarial(seed, n=1000000):
    r = random.Random(seed)
    yield "one letter", "a" * n
    yield "random letters", "".join(r.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(n))
    yield "capitals", "".join(r.choice("ABCDEFGHIJ") for _ in range(n))
    yield "digits", "".join(r.choice("0123456789") for _ in range(n))
    yield "spaces", " " * n
    yield "line ends", "\n" * n
    yield "spaces and line ends", "".join(r.choice(" \n\t\r") for _ in range(n))
    yield "punctuation", "".join(r.choice("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~") for _ in range(n))
    yield "equals signs", "=" * n
    yield "spaces then a letter", (" " * 999 + "x") * (n // 1000)
    yield "ideographs", "".join(chr(r.randint(0x4E00, 0x9FA5)) for _ in range(n // 3))
    yield "thai", "".join(chr(r.randint(0xE01, 0xE30)) for _ in range(n // 3))
    yield "marks on one letter", "a" + "".join(chr(r.choice(MARKS)) for _ in range(n // 2))
    yield "emoji", "".join(chr(r.randint(0x1F300, 0x1F64F)) for _ in range(n // 4))
    yield "openings of special tokens", "<|" * (n // 2)
    yield "special tokens", "".join(r.choice(SPECIALS) for _ in range(n // 10))
    yield "word marks", "\u2581" * (n // 3)
    yield "short words", "".join(r.choice(["a ", "I ", "to ", "x "]) for _ in range(n // 2))


def broken(seed, n):
    """Bytes: text with damage in it."""
    r = random.Random(seed)
    out = bytearray()
    while len(out) < n:
        part = bytearray(fragment(r).encode())
        kind = r.random()
        if kind < 0.3 and part:
            part[r.randrange(len(part))] = r.randrange(256)
        elif kind < 0.5 and part:
            del part[r.randrange(len(part))]
        elif kind < 0.7:
            part += bytes(r.randrange(0x80, 0x100) for _ in range(r.randint(1, 6)))
        elif kind < 0.8:
            part += r.choice([b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"\xf0\x9f\x98", b"\xff\xfe", b"\xf8\x88\x80\x80\x80"])
        out += part
    return bytes(out)
