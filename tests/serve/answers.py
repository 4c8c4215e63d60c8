"""What answers say: forms, streams, stop strings, log-probabilities, seeds, ends (B039 to B061, sections 1.3 to 1.7 of the API)."""
import json
import os
import re
import shutil
import subprocess

from harness import case, model_copy, texts, CHAT, ROOT, TANDEM

SERVER = ("--max-running", 8, "--kv-tokens", 4096)
COMPLETE, CHATS = "/v1/completions", "/v1/chat/completions"
PROMPT = "Once upon a time"


def word_marks():
    """The model with a tokenizer whose decoder takes the space in front of the first word away, as Llama 2's does."""
    folder = model_copy()
    shutil.copy(os.path.join(ROOT, "tests", "data", "tokenizer", "llama2.json"), os.path.join(folder, "tokenizer.json"))
    return folder


def other_tokenizer():
    """The model with a tokenizer that begins each prompt with a token, and that has a token `".` in place of `."`."""
    folder = model_copy()
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as file:
        tokenizer = json.load(file)
    begin = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [begin, {"Sequence": {"id": "A", "type_id": 0}}],
                                   "pair": [begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
                                   "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}}}
    model = tokenizer["model"]
    model["vocab"]['".'] = model["vocab"].pop('."')
    model["merges"] = [m if m not in ('. "', [".", '"']) else ['"', "."] if isinstance(m, list) else '" .' for m in model["merges"]]
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return folder


def check_echo(choice):
    """Each token is where its offset says, unless it is no text, and among its own alternatives."""
    probs, last = choice["logprobs"], 0
    for token, value, top, offset in zip(probs["tokens"], probs["token_logprobs"], probs["top_logprobs"], probs["text_offset"]):
        assert last <= offset <= len(choice["text"]), (offset, last)
        if token not in ("<|endoftext|>", "<|im_end|>") and not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token), (choice["text"][offset:][:20], offset, token)
        assert (value is None) == (top is None) and (top is None or token in top), (token, value, top)
        last = offset


def ids_of(server, text):
    return server.post("/tokenize", {"prompt": text}).json["tokens"]


def eos_ids(server):
    return ids_of(server, "<|im_end|>") + ids_of(server, "<|endoftext|>")


@case("bodies have the fields of the API, in both forms")
def _(server):
    answer = server.complete(max_tokens=3).json
    assert set(answer) >= {"id", "object", "created", "model", "choices", "usage"} and answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    assert set(answer["choices"][0]) == {"index", "text", "logprobs", "finish_reason", "stop_reason"} and answer["choices"][0]["logprobs"] is None
    usage = answer["usage"]
    assert usage["completion_tokens"] == 3 and usage["total_tokens"] == usage["prompt_tokens"] + 3 and usage["prompt_tokens"] == len(ids_of(server, PROMPT))
    answer = server.chat(max_tokens=3).json
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason"}
    assert choice["message"]["role"] == "assistant" and choice["message"]["refusal"] is None and choice["finish_reason"] == "length"
    assert server.complete(max_tokens=3).json["id"] != server.complete(max_tokens=3).json["id"]


@case("streams: the order of chunks, equal to the body (B053, B055)")
def _(server):
    for options in ({}, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}, {"include_usage": False}):
        events = server.stream_chat(max_tokens=6, stream_options=options)
        assert all(e["object"] == "chat.completion.chunk" for e in events)
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and events[0]["choices"][0]["finish_reason"] is None
        last = events[-2 if options.get("include_usage") else -1]
        assert last["choices"][0]["finish_reason"] == "length" and last["choices"][0]["delta"] == {}, last
        middle = [e["choices"][0]["delta"] for e in events[1:events.index(last)]]
        assert middle and all(set(d) == {"content"} and d["content"] for d in middle), middle
        assert texts(events)[0] == server.chat(max_tokens=6).text
        if options.get("include_usage"):
            assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 6
            if options.get("continuous_usage_stats"):
                assert [e["usage"]["completion_tokens"] for e in events[:-1]] == sorted(e["usage"]["completion_tokens"] for e in events[:-1])
            else:
                assert all(e["usage"] is None for e in events[:-1])
        else:
            assert all("usage" not in e for e in events)
    events = server.stream_complete(max_tokens=6)
    assert all(e["object"] == "text_completion" and e["choices"] for e in events)
    assert texts(events)[0] == server.complete(max_tokens=6).text and events[-1]["choices"][0]["finish_reason"] == "length"
    assert len(events) >= 5, "tokens do not come one by one"


@case("B055 a stream of no visible text ends properly")
def _(server):
    eos = str(eos_ids(server)[0])
    for events in (server.stream_chat(logit_bias={eos: 100}), server.stream_complete(logit_bias={eos: 100})):
        assert texts(events)[0] == "" and events[-1]["choices"][0]["finish_reason"] == "stop" and events[-1]["choices"][0]["stop_reason"] is None
    answer = server.complete(logit_bias={eos: 100}).json
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["text"] == ""


@case("B051 n choices: each index has its role, its text and its own end")
def _(server):
    for n in (2, 3):
        events = server.stream_chat(n=n, temperature=1, seed=5, max_tokens=5)
        for i in range(n):
            mine = [e["choices"][0] for e in events if e["choices"][0]["index"] == i]
            assert mine[0]["delta"] == {"role": "assistant", "content": ""} and mine[-1]["finish_reason"], mine
            assert sum(c["finish_reason"] is not None for c in mine) == 1
        body = server.chat(n=n, temperature=1, seed=5, max_tokens=5).json["choices"]
        assert [c["index"] for c in body] == list(range(n))
        assert {c["index"]: c["message"]["content"] for c in body} == texts(events)
        assert len({c["message"]["content"] for c in body}) > 1, "all choices are the same"
    greedy = server.complete(n=3).json["choices"]
    assert len({c["text"] for c in greedy}) == 1 and len(greedy) == 3
    assert server.chat(n=1, temperature=1, seed=5, max_tokens=5).text == server.chat(n=3, temperature=1, seed=5, max_tokens=5).text


@case("several prompts: index = prompt * n + choice; text and ids alike")
def _(server):
    prompts = [PROMPT, "The cat"]
    single = [server.complete(p).text for p in prompts]
    answer = server.complete(prompts, n=2).json
    assert [c["text"] for c in answer["choices"]] == [single[0]] * 2 + [single[1]] * 2 and [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert server.complete([ids_of(server, p) for p in prompts]).json["choices"][1]["text"] == single[1]
    assert texts(server.stream_complete(prompts)) == dict(enumerate(single))
    assert answer["usage"]["prompt_tokens"] == sum(len(ids_of(server, p)) for p in prompts) and answer["usage"]["completion_tokens"] == 32
    assert server.complete([PROMPT]).text == single[0]


@case("B041 a seed gives the same text, whatever runs beside it; another seed another")
def _(server):
    fields = {"temperature": 1.2, "max_tokens": 24}
    got = {server.complete(seed=7, **fields).text for _ in range(10)}
    assert len(got) == 1, got
    beside = server.complete([PROMPT] * 4, seed=7, **fields).json["choices"]
    assert {c["text"] for c in beside} == got
    assert len({server.complete(seed=s, **fields).text for s in range(5)}) > 2
    assert len({server.complete(**fields).text for _ in range(5)}) > 2, "without a seed all are the same"


@case("B043 min_tokens: exactly so many tokens before the end")
def _(server):
    eos = eos_ids(server)
    for n in (1, 2, 5):
        for id_ in eos:
            choice = server.complete(logit_bias={str(id_): 100}, min_tokens=n, max_tokens=20, return_token_ids=True).json["choices"][0]
            assert len(choice["token_ids"]) == n + 1 and choice["token_ids"][-1] == id_ and not set(choice["token_ids"][:-1]) & set(eos), choice
            assert choice["finish_reason"] == "stop"
    choice = server.complete(logit_bias={"300": 100}, stop_token_ids=[300], min_tokens=3, max_tokens=20, return_token_ids=True).json["choices"][0]
    assert len(choice["token_ids"]) == 4 and 300 not in choice["token_ids"][:-1]
    text = server.complete(max_tokens=10).text
    choice = server.complete(max_tokens=10, min_tokens=10, stop=[text[:2]]).json["choices"][0]
    assert choice["text"] == text and choice["finish_reason"] == "length"
    events = server.stream_complete(max_tokens=10)
    pieces = [e["choices"][0]["text"] for e in events]
    for n in range(10):  # a stop string that begins in the first n tokens and ends behind them
        before, behind = "".join(pieces[:n]), "".join(pieces[n:])
        for stop in (before[-1:] + behind[:1], before[-3:] + behind[:2]):
            want = text.find(stop, max(0, len(before) - len(stop) + 1))
            choice = server.complete(max_tokens=10, min_tokens=n, stop=[stop]).json["choices"][0]
            assert choice["text"] == text[:want] and choice["finish_reason"] == "stop", (n, stop, choice)
            assert texts(server.stream_complete(max_tokens=10, min_tokens=n, stop=[stop]))[0] == text[:want]


@case("B045 ignore_eos ignores every end-of-text id")
def _(server):
    for id_ in eos_ids(server):
        answer = server.complete(logit_bias={str(id_): 100}, ignore_eos=True, max_tokens=6, return_token_ids=True).json
        choice = answer["choices"][0]
        assert choice["token_ids"] == [id_] * 6 and choice["finish_reason"] == "length" and choice["text"] == "", choice
        shown = server.complete(logit_bias={str(id_): 100}, ignore_eos=True, max_tokens=2, skip_special_tokens=False).text
        assert shown in ("<|im_end|>" * 2, "<|endoftext|>" * 2)


@case("stop tokens: their text is left out, stop_reason names them")
def _(server):
    ids = server.complete(max_tokens=10, return_token_ids=True).json["choices"][0]["token_ids"]
    at = next(i for i in range(3, 10) if ids[i] not in ids[:i])
    choice = server.complete(max_tokens=10, stop_token_ids=[ids[at]], return_token_ids=True).json["choices"][0]
    assert choice["token_ids"] == ids[:at + 1] and choice["finish_reason"] == "stop" and choice["stop_reason"] == ids[at]
    assert choice["text"] == server.complete(max_tokens=at).text


@case("B047 B049 stop strings over token borders: nothing of them is sent, nothing else held back")
def _(server):
    full = server.complete(max_tokens=40).text
    assert len(full) > 30
    for length in (1, 2, 5, 9):
        for at in range(1, len(full) - length, 3):
            stop = full[at:at + length]
            want = full[:full.index(stop)]
            answer = server.complete(max_tokens=40, stop=[stop, "never to be found"]).json["choices"][0]
            assert answer["text"] == want and answer["finish_reason"] == "stop" and answer["stop_reason"] == stop, (stop, answer)
            if at % 9 == 1:
                events = server.stream_complete(max_tokens=40, stop=[stop])
                assert texts(events)[0] == want and events[-1]["choices"][0]["stop_reason"] == stop, (stop, texts(events))
                kept = server.complete(max_tokens=40, stop=stop, include_stop_str_in_output=True).text
                assert kept == want + stop
    events = server.stream_chat(max_tokens=30, stop=["x" * 40])
    free = server.stream_chat(max_tokens=30)
    assert [e["choices"][0]["delta"] for e in events] == [e["choices"][0]["delta"] for e in free]
    stop = full[2:8] + "\u4e16"  # begins as the text does, then differs: held, then let go
    assert texts(server.stream_complete(max_tokens=40, stop=[stop]))[0] == full
    assert server.complete(stop=[PROMPT[:4]], max_tokens=8, echo=True).text == PROMPT + server.complete(max_tokens=8).text  # not in the prompt


@case("the stop string that is complete first wins, of those the longest")
def _(server):
    full = server.complete(max_tokens=30).text
    for stops, want in (([full[5:9], full[3:12]], full[:5]), ([full[6:9], full[4:9]], full[:4])):
        if full.index(stops[0]) in (5, 6):
            assert server.complete(max_tokens=30, stop=stops).text == want


@case("B039 echo: alone, with log-probabilities, with one token")
def _(server):
    for prompt, count in ((ids_of(server, PROMPT)[:5], 5), ([300], 1), (PROMPT, None)):
        for stream in (False, True):
            body = {"prompt": prompt, "echo": True, "max_tokens": 0, "logprobs": 1}
            if stream:
                events = server.stream(COMPLETE, {**body, "stream_options": {"include_usage": True}})
                answer = {"choices": events[0]["choices"], "usage": events[-1]["usage"]}
            else:
                answer = server.post(COMPLETE, body).json
            choice, n = answer["choices"][0], count or len(ids_of(server, PROMPT))
            assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == 0, answer
            assert choice["text"] == (prompt if isinstance(prompt, str) else server.post("/detokenize", {"tokens": prompt}).json["prompt"])
            probs = choice["logprobs"]
            assert all(len(probs[k]) == n for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset")), probs
            assert probs["token_logprobs"][0] is None and probs["top_logprobs"][0] is None and all(p <= 0 for p in probs["token_logprobs"][1:])
            assert "".join(probs["tokens"]) == choice["text"] and [choice["text"][o:].startswith(t) for o, t in zip(probs["text_offset"], probs["tokens"])] == [True] * n
        assert server.post(COMPLETE, {"prompt": prompt, "echo": True, "max_tokens": 0}).json["choices"][0]["text"] == choice["text"]
    answer = server.complete(echo=True, max_tokens=4, logprobs=0).json["choices"][0]
    n = len(ids_of(server, PROMPT))
    assert answer["text"] == PROMPT + server.complete(max_tokens=4).text and len(answer["logprobs"]["tokens"]) == n + 4
    assert "".join(answer["logprobs"]["tokens"]) == answer["text"]
    assert texts(server.stream_complete(echo=True, max_tokens=4))[0] == answer["text"]


@case("echo with log-probabilities: offsets are those of the text though its front was cut off")
def _(server):
    for text in ("Tom said, \"I am here.\" She said \"go\". The \u4f60\u597d cat \U0001f600, they say, is on the mat.", PROMPT):
        ids = ids_of(server, text)
        for prompt in (text, ids, ids + ids_of(server, "\U0001f600")[:1]):
            for most in (None, 1, 3, 7, len(ids) - 1, len(ids), len(ids) + 5):
                for k in (0, 20):
                    choice = server.complete(prompt, echo=True, logprobs=k, max_tokens=2, truncate_prompt_tokens=most).json["choices"][0]
                    check_echo(choice)
                    assert most is not None or choice["logprobs"]["text_offset"][0] == 0


@case("echo with a tokenizer that begins with a token of its own", server=["--max-running", 8, "--kv-tokens", 4096], start={"model": other_tokenizer()})
def _(server):
    for text in ("Tom said, \"I am here\". She said, \"Go.\" Then he went home.", "Mom said, \"You are a good boy.\" Tom said, \"I want to play.\"", "Once upon a time."):
        ids = ids_of(server, text)
        assert ids[0] == 0, ids
        for most in (None, 1, 4, len(ids) - 1, len(ids)):
            for k in (0, 1, 20):
                choice = server.complete(text, echo=True, logprobs=k, max_tokens=3, truncate_prompt_tokens=most).json["choices"][0]
                assert choice["text"].startswith(text)
                check_echo(choice)
        choice = server.complete(text, echo=True, logprobs=0, max_tokens=0).json["choices"][0]
        assert choice["logprobs"]["tokens"][0] == "<|endoftext|>" and choice["logprobs"]["text_offset"][:2] == [0, 0]


@case("log-probabilities of completions: parallel arrays, offsets, the token among them")
def _(server):
    for k in (0, 1, 5, 20):
        choice = server.complete(logprobs=k, max_tokens=10, return_token_ids=True).json["choices"][0]
        probs = choice["logprobs"]
        assert [len(probs[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [10] * 4
        for token, value, top, offset in zip(probs["tokens"], probs["token_logprobs"], probs["top_logprobs"], probs["text_offset"]):
            assert token in top and top[token] == value <= 0 and max(k, 1) <= len(top) <= k + 1
            assert choice["text"][offset:].startswith(token), (choice["text"], offset, token)
            assert value == max(top.values())  # greedy
        events = server.stream_complete(logprobs=k, max_tokens=10)
        joined = {name: sum((e["choices"][0]["logprobs"][name] for e in events if e["choices"][0]["logprobs"]), []) for name in probs}
        assert joined == probs, (joined, probs)
    ids = server.complete(logprobs=1, max_tokens=3, return_tokens_as_token_ids=True, return_token_ids=True).json["choices"][0]
    assert ids["logprobs"]["tokens"] == [f"token_id:{i}" for i in ids["token_ids"]]


@case("log-probabilities of chats: bytes join to the text")
def _(server):
    choice = server.chat(logprobs=True, top_logprobs=3, max_tokens=10).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert len(content) == 10 and choice["logprobs"]["refusal"] is None
    assert bytes(b for e in content for b in e["bytes"]).decode() == choice["message"]["content"]
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"} and len(entry["top_logprobs"]) == 3
        assert all(set(t) == {"token", "logprob", "bytes"} for t in entry["top_logprobs"]) and entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    events = server.stream_chat(logprobs=True, top_logprobs=3, max_tokens=10)
    assert sum((e["choices"][0]["logprobs"]["content"] for e in events if e["choices"][0]["logprobs"]), []) == content
    assert server.chat(logprobs=True, max_tokens=2).json["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


@case("B061 many alternatives, on tokens that are no text and with huge biases")
def _(server):
    pieces = server.post("/tokenize", {"prompt": "\U0001f600", "return_token_strs": True}).json["tokens"]
    for fields in ({"top_k": 1}, {"logit_bias": {str(i): -100 for i in range(1000)}}, {"logit_bias": {str(i): 100 for i in pieces}, "temperature": 1, "seed": 1}):
        for answer in (server.complete(logprobs=20, max_tokens=8, **fields), server.chat(logprobs=True, top_logprobs=20, max_tokens=8, **fields)):
            assert answer.status == 200, answer.body
            probs = answer.json["choices"][0]["logprobs"]
            if "tokens" in probs:
                assert all(len(top) <= 21 for top in probs["top_logprobs"])
                values = [v for top in probs["top_logprobs"] for v in top.values()]
            else:
                values = [t["logprob"] for e in probs["content"] for t in e["top_logprobs"]]
            assert all(-9999 <= v <= 0 for v in values), [v for v in values if not -9999 <= v <= 0]


@case("B057 line separators are escaped in streams and bodies")
def _(server):
    for text in ("\u2028", "\u2029", "\u0085", "a\u2028b\n\r\tc\u0000\u007f\"\\"):
        answer = server.complete(text, echo=True, max_tokens=1)
        assert answer.text.startswith(text), answer.body
        assert not re.search("[\u0085\u2028\u2029]", answer.body.decode())
        assert texts(server.stream_complete(text, echo=True, max_tokens=1))[0].startswith(text)


@case("split characters: whole code points only, the rest as U+FFFD")
def _(server):
    emoji = "\U0001f600"
    pieces = ids_of(server, emoji)
    assert len(pieces) > 1
    answer = server.complete(logit_bias={str(pieces[0]): 100}, max_tokens=3, logprobs=1)  # the same lead byte again and again
    assert answer.json["choices"][0]["text"] == "\ufffd" * 3, answer.body
    assert all(t.startswith("bytes:\\x") for t in answer.json["choices"][0]["logprobs"]["tokens"]), answer.body
    events = server.stream_complete(logit_bias={str(pieces[0]): 100}, max_tokens=3)
    assert texts(events)[0] == "\ufffd" * 3
    assert server.complete(emoji, echo=True, max_tokens=0).text == emoji


@case("the first word of an answer keeps the space in front of it", server=SERVER, start={"model": word_marks()})
def _(server):
    word = ids_of(server, "the")[-1]
    forced = {"logit_bias": {str(word): 100}, "max_tokens": 3}
    assert server.complete("the", **forced).text == " the the the"
    assert texts(server.stream_complete("the", **forced))[0] == " the the the"
    choice = server.complete("the", echo=True, logprobs=0, **forced).json["choices"][0]
    assert choice["text"] == "the the the the" and choice["logprobs"]["text_offset"] == [0, 0, 3, 7, 11], choice
    assert server.complete(ids_of(server, "the")[:1], **forced).text == "the the the"  # of the prompt nothing is text
    lead, rest = ids_of(server, "the\u00ff")[-2:]  # in bytes
    assert server.complete(ids_of(server, "the") + [lead], logit_bias={str(rest): 100}, max_tokens=1).text == "\u00ff"
    assert server.complete(ids_of(server, "the") + [lead], **forced).text == " the the the"
    assert server.complete("the\n", **forced).text == " the the the"
    run = subprocess.run([TANDEM, "run", server.command[2], "-p", "on", "-n", "4", "--ignore-eos", "--json"], capture_output=True, check=True)
    out = json.loads(run.stdout)
    assert out["text"][0] == " ", out
    assert "on" + out["text"] == server.post("/detokenize", {"tokens": out["prompt_tokens"][1:] + out["tokens"]}).json["prompt"], out


@case("prompt_logprobs, token ids, salted prefixes")
def _(server):
    n = len(ids_of(server, PROMPT))
    for answer in (server.complete(prompt_logprobs=2, max_tokens=2), server.chat(prompt_logprobs=0, max_tokens=2, return_token_ids=True)):
        choice = answer.json["choices"][0]
        probs = choice["prompt_logprobs"]
        ids = choice.get("prompt_token_ids") or ids_of(server, PROMPT)
        assert len(probs) == len(ids) and probs[0] is None
        for id_, entry in zip(ids[1:], probs[1:]):
            assert str(id_) in entry and set(entry[str(id_)]) == {"logprob", "rank", "decoded_token"} and 1 <= len(entry) <= 3
    long = [300 + i % 11 for i in range(200)]
    first = server.complete(long, max_tokens=2).json["usage"]["prompt_tokens_details"]["cached_tokens"]
    again = server.complete(long, max_tokens=2).json
    assert first == 0 and again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 160, again
    salted = server.complete(long, max_tokens=2, cache_salt="x").json
    assert salted["usage"]["prompt_tokens_details"]["cached_tokens"] == 0 and salted["choices"][0]["text"] == again["choices"][0]["text"]


@case("penalties and filters do what they say")
def _(server):
    ids = lambda **f: server.complete(max_tokens=40, return_token_ids=True, ignore_eos=True, **f).json["choices"][0]["token_ids"]
    plain = ids(logit_bias={"300": 20})
    assert plain.count(300) > len(set(plain))
    assert len(set(ids(logit_bias={"300": 20}, presence_penalty=2, frequency_penalty=2))) > len(set(plain))
    assert len(set(ids(logit_bias={"300": 20}, repetition_penalty=10))) > len(set(plain))
    assert ids(temperature=2, top_k=1) == ids()


@case("the served model tells its size and its defaults")
def _(server):
    model = server.get("/v1/models").json
    assert model["object"] == "list" and model["data"][0]["object"] == "model" and model["data"][0]["owned_by"]
    assert model["data"][0]["max_model_len"] > 0 and model["data"][0]["sampling_defaults"]["temperature"] == 1
    assert server.get("/version").json["version"] and server.get("/ping").status == 200 and server.post("/ping", b"").status == 200
    page = server.get("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html") and b"<html" in page.body


@case("metrics: one HELP and TYPE a family, buckets add up, names that dashboards know")
def _(server):
    server.stream_complete(max_tokens=4)
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families, counts = {}, {}
    for line in answer.body.decode().splitlines():
        if line.startswith("#"):
            _, kind, name, rest = line.split(" ", 3)
            assert (kind, name) not in families, line
            families[kind, name] = rest
        else:
            assert re.fullmatch(r'[a-z0-9_:]+\{model_name="demo",engine="0"(,[a-z_]+="[^"]*")*\} [-+0-9.e]+', line), line
            counts[line.rsplit(" ", 1)[0]] = float(line.rsplit(" ", 1)[1])
    names = {n for k, n in families if k == "TYPE"}
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
                 "vllm:request_success_total", "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds",
                 "vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds", "vllm:num_preemptions_total", "vllm:prefix_cache_hits_total",
                 "http_requests_total", "http_request_duration_seconds", "process_resident_memory_bytes", "tandem_rank_weight_bytes", "tandem_rank_kv_bytes",
                 "tandem_rank_scratch_bytes", "tandem_rank_generation", "tandem_aborts_total", "tandem_rebuilds_total"):
        assert name in names, name
    for name in (n for n in names if families["TYPE", n] == "histogram" and n.startswith("vllm:")):
        base = f'{name}_bucket{{model_name="demo",engine="0",le="'
        buckets = [v for k, v in counts.items() if k.startswith(base)]
        assert buckets == sorted(buckets) and buckets[-1] == counts[f'{name}_count{{model_name="demo",engine="0"}}'], name
    before = server.metric("vllm:generation_tokens_total")
    server.complete(max_tokens=7, ignore_eos=True)
    assert server.metric("vllm:generation_tokens_total") == before + 7
    assert counts['tandem_rank_weight_bytes{model_name="demo",engine="0",rank="1"}'] > 0
