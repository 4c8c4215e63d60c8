"""Random conversations, with everything that clients send: tools, calls, results, parts, nulls, thinking, text of all kinds."""

import json

WORDS = ["hello", "weather", "Ωmega", "naïve", "日本語", "emoji 😀👍🏽", "<tag>", "a & b", "\"quoted\"", "it's", "back\\slash", "{{ x }}", "{% if %}",
         "<|im_end|>", "<｜User｜>", "</think>", "<think>deep</think>", "/no_think", "\n", "\n\n", "\t", "  ", "\u00a0", "\u2028", "ﬁne", "ß", "İ", "\u0001", "\x7f",
         "end.", "1.0", "100%", "a_b", "Привет", "e\u0301", "\u200b", "\ufeff", "line\r\nbreak"]
ROLES = ["user", "assistant", "system", "tool", "developer", "ipython"]


def text(rng, most=8):
    return rng.choice(["", " "]).join(rng.choice(WORDS) for _ in range(rng.randrange(most)))


def value(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice([0, 1, -1, 7, 2**31, -2**53, 10**15])
    if kind == 1:
        return rng.choice([0.5, 1.0, -0.0, 1e-7, 1e16, 123456.789, 1e22, 3.14, 1e-5, 0.0001])
    if kind == 2:
        return rng.choice([True, False, None])
    if kind < 6:
        return text(rng, 4)
    if kind < 8:
        return {rng.choice(["z", "a", "m", "items", "keys", "é", "type", "name", "enum", text(rng, 2)]): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(4))]


def schema(rng, depth=0):
    kind = rng.choice(["string", "number", "integer", "boolean", "array", "object"] if depth < 2 else ["string", "number"])
    made = {"type": kind}
    if rng.random() < 0.6:
        made["description"] = text(rng)
    if kind == "string" and rng.random() < 0.3:
        made["enum"] = [text(rng, 3) for _ in range(3)]
    if kind == "array":
        made["items"] = schema(rng, depth + 1)
    if kind == "object":
        made["properties"] = {name: schema(rng, depth + 1) for name in rng.sample(["zeta", "alpha", "mid", "Items", "keys", "city"], rng.randrange(1, 4))}
        if rng.random() < 0.5:
            made["required"] = list(made["properties"])[:1]
    if rng.random() < 0.2:
        made["default"] = value(rng)
    return made


def tool(rng):
    function = {"name": rng.choice(["get_weather", "search", "run"]), "description": text(rng)}
    if rng.random() < 0.9:
        function["parameters"] = {"type": "object", "properties": {n: schema(rng) for n in rng.sample(["city", "b", "a", "unit"], rng.randrange(0, 4))}}
        if rng.random() < 0.5:
            function["parameters"]["required"] = list(function["parameters"]["properties"])
    if rng.random() < 0.2:
        function["return"] = {"type": "string"}
    return {"type": "function", "function": function}


def call(rng):
    arguments = {k: value(rng) for k in rng.sample(["city", "unit", "n", "list", "é"], rng.randrange(0, 4))}
    as_text = rng.random() < 0.5
    function = {"name": rng.choice(["get_weather", "search"]), "arguments": json.dumps(arguments, ensure_ascii=rng.random() < 0.5) if as_text else arguments}
    if rng.random() < 0.03:
        function["arguments"] = "not json"
    made = {"type": "function", "function": function}
    if rng.random() < 0.9:
        made["id"] = rng.choice(["abcdefgh1", "call_1234567890"]) if rng.random() < 0.2 else "abc456789"
    return made


def content(rng, parts):
    if rng.random() < parts:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randrange(1, 4))]
    return text(rng)


def message(rng, role, parts):
    made = {"role": role, "content": content(rng, parts)}
    if role == "assistant":
        if rng.random() < 0.3:
            made["tool_calls"] = [call(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
            if rng.random() < 0.7:
                made["content"] = None
        if rng.random() < 0.2:
            made["reasoning_content"] = rng.choice([None, text(rng)])
    if role in ("tool", "ipython"):
        made["tool_call_id"] = "abc456789"
        made["name"] = "get_weather"
    if rng.random() < 0.05:
        made["extra"] = value(rng)
    if rng.random() < 0.5:
        made = dict(sorted(made.items()))
    return made


def conversation(rng):
    """Mostly well-formed, so that templates go all the way; now and then not."""
    parts = rng.choice([0, 0, 0.3])
    roles = ["system"] if rng.random() < 0.5 else []
    for _ in range(rng.randrange(1, 5)):
        roles.append("user")
        if rng.random() < 0.8:
            roles.append("assistant")
            if rng.random() < 0.2:
                roles += ["tool"] * rng.randrange(1, 3) + ["assistant"]
    if rng.random() < 0.7 and roles[-1] == "assistant":
        roles.pop()
    if rng.random() < 0.05:
        rng.shuffle(roles)
    if rng.random() < 0.03:
        roles.append(rng.choice(ROLES))
    job = {"messages": [message(rng, role, parts) for role in roles], "add_generation_prompt": rng.random() < 0.7, "kwargs": {},
           "special_tokens": {"bos_token": "<s>", "eos_token": "</s>"}}
    if rng.random() < 0.4:
        job["tools"] = [tool(rng) for _ in range(rng.randrange(0, 4))]
    if rng.random() < 0.3:
        job["kwargs"]["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.1:
        job["kwargs"]["thinking"] = True
    if rng.random() < 0.1:
        job["kwargs"]["internal_tools"] = job["kwargs"]["builtin_tools"] = ["shell", "search"]
    if rng.random() < 0.05:
        job["special_tokens"] = {}
    return job
