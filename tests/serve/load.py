"""Many at once: queue limits, clients that vanish or do not read, work that does not hold up the short answers (B009 to B015)."""
import atexit
import json
import os
import random
import shutil
import socket
import tempfile
import threading
import time

from harness import MODEL, GREEDY, CHAT, Server, case, closed, events_of, head, read_answer, texts

COMPLETE = "/v1/completions"
SERVER = ("--max-running", 8, "--kv-tokens", 4096, "--max-queue", 300)


def slow_model():
    """A folder whose model takes about a second for a few hundred tokens; the weights are random."""
    folder = tempfile.mkdtemp(prefix="tandem-slow.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(MODEL, name), folder)
    config = json.load(open(os.path.join(MODEL, "config.json")))
    config.update(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8, head_dim=64, max_position_embeddings=4096)
    json.dump(config, open(os.path.join(folder, "config.json"), "w"))
    return folder


SLOW = slow_model()


def in_threads(count, function):
    results = [None] * count
    def call(i):
        try:
            results[i] = function(i)
        except Exception as error:
            results[i] = error
    threads = [threading.Thread(target=call, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def slow_options(*more):
    return {"server": ["--random-weights", 1, "--context", 2048, "--threads", 2, *more], "start": {"model": SLOW}, "settle": False}


@case("B009 short answers come at once while a long prompt is read", **slow_options("--kv-tokens", 8192))
def _(server):
    body = {"prompt": [300 + i % 50 for i in range(2000)], "max_tokens": 2}
    sock = server.open_stream(body)
    time.sleep(0.3)
    assert server.get("/health").json["pending"] == 1
    for _ in range(10):
        for path in ("/health", "/v1/models", "/metrics", "/version", "/"):
            answer = server.get(path)
            assert answer.status == 200, (path, answer.body)
    assert server.post("/tokenize", {"prompt": "x"}).status == 200
    assert server.get("/health").json["pending"] == 1, "these answers waited for the prompt, or it is read too quickly to show anything"
    sock.close()
    until(server, lambda: server.get("/health").json["pending"] == 0, 20)


def until(server, done, seconds):
    """Within so many seconds, on a busy machine five times that."""
    end = time.time() + 5 * seconds
    while not done():
        assert time.time() < end, f"not within {5 * seconds} s: {server.get('/health').body}"
        time.sleep(0.05)


@case("B011 comments only where they were asked for, and only whole ones", **slow_options("--kv-tokens", 8192, "--sse-comments", 1))
def _(server):
    body = {"prompt": [300 + i % 50 for i in range(2000)], "max_tokens": 3, "temperature": 0}
    answer = server.post(COMPLETE, {**body, "stream": True})
    lines = answer.body.decode().split("\n\n")
    comments = [l for l in lines if l.startswith(":")]
    assert comments and all("\n" not in l for l in comments), lines
    assert [l for l in lines if l and not l.startswith(":") and not l.startswith("data: ")] == []
    assert lines[-2] == "data: [DONE]"


@case("B011 no comments by default", **slow_options("--kv-tokens", 8192))
def _(server):
    assert len(server.stream(COMPLETE, {"prompt": [300 + i % 50 for i in range(1500)], "max_tokens": 3, "temperature": 0})) >= 1


@case("a client that gives up on a body frees the engine at once", **slow_options("--kv-tokens", 8192))
def _(server):
    data = json.dumps({"prompt": [300] * 100, "max_tokens": 1500, "ignore_eos": True}).encode()
    sock = server.raw(head("POST", COMPLETE, len(data), server.headers()) + data)
    until(server, lambda: server.get("/health").json["pending"] == 1, 10)
    time.sleep(0.3)
    sock.close()
    until(server, lambda: server.get("/health").json["pending"] == 0, 3)
    assert server.metric("tandem_kv_free_tokens") == server.metric("tandem_kv_tokens")


@case("B013 500 streams, each dropped somewhere")
def _(server):
    draw = random.Random(13)
    def drop(i):
        sock = server.open_stream({"prompt": f"Once upon a time {i % 7}", "max_tokens": 60, "temperature": 1, "seed": i, "n": 1 + i % 3})
        for _ in range(draw.randrange(4)):
            sock.recv(draw.randrange(1, 2000))
        if i % 3 == 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # reset in place of an orderly end
        sock.close()
    for start in range(0, 500, 20):
        errors = [e for e in in_threads(20, lambda i: drop(start + i)) if e]
        assert not errors, errors[0]


@case("B015 the queue is bounded: 429 with Retry-After, n counts as n", server=["--max-running", 2, "--max-queue", 8, "--kv-tokens", 4096])
def _(server):
    hold = [server.open_stream({"prompt": "Once", "max_tokens": 700, "ignore_eos": True, "temperature": 1}) for _ in range(10)]
    until(server, lambda: server.get("/health").json["pending"] == 10, 10)
    for body in (GREEDY, {**GREEDY, "stream": True}):
        answer = server.post(COMPLETE, body)
        assert answer.status == 429 and int(answer.headers["retry-after"]) >= 1 and answer.error["type"] == "rate_limit_error", answer.body
    for sock in hold:
        sock.close()
    until(server, lambda: server.get("/health").json["pending"] == 0, 20)
    answers = in_threads(40, lambda i: server.complete(max_tokens=30))
    statuses = [a.status for a in answers]
    assert set(statuses) <= {200, 429} and statuses.count(200) >= 10, statuses
    assert len({a.text for a in answers if a.status == 200}) == 1
    for n, status in ((16, 400), (11, 400), (10, 200)):
        answer = server.complete(n=n)
        assert answer.status == status, (n, answer.status, answer.body)
    answer = server.complete(["Once"] * 4, n=3)
    assert answer.status == 400 and answer.error["param"] == "n", answer.body
    first = server.open_stream({"prompt": "Once", "max_tokens": 600, "ignore_eos": True})
    until(server, lambda: server.get("/health").json["pending"] == 1, 10)
    assert server.complete(n=10).status == 429
    assert server.complete(n=9).status == 200
    first.close()


@case("a client that does not read: bounded memory, then cut off", server=["--max-running", 8, "--kv-tokens", 8192], start={"tp": 1})
def _(server):
    socks = []
    for _ in range(8):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", server.port))
        data = json.dumps({"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 20, "n": 8, "temperature": 1}).encode()
        sock.sendall(head("POST", COMPLETE, len(data), server.headers()) + data)
        socks.append(sock)
    before = server.metric("process_resident_memory_bytes")
    until(server, lambda: server.metric("tandem_slow_readers_total") >= 8, 120)
    assert server.metric("process_resident_memory_bytes") - before < 64 << 20
    until(server, lambda: server.get("/health").json["pending"] == 0, 20)
    for sock in socks:
        sock.close()


@case("an answer that begins with much is not the client's slowness: an echo with log-probabilities", server=["--max-running", 8, "--kv-tokens", 8192])
def _(server):
    for more in ({}, {"n": 4, "max_tokens": 20, "temperature": 0}):
        body = {"prompt": "the cat " * 450, "max_tokens": 1, "echo": True, "logprobs": 20, "seed": 1, **more}
        want = {c["index"]: c for c in server.post(COMPLETE, body).json["choices"]}
        got = {}
        for event in server.stream(COMPLETE, body):
            for choice in event["choices"]:
                mine = got.setdefault(choice["index"], {"text": "", "logprobs": {}})
                mine["text"] += choice["text"]
                for name, values in (choice["logprobs"] or {}).items():
                    mine["logprobs"].setdefault(name, []).extend(values)
        assert len(want[0]["logprobs"]["tokens"]) > 800
        assert got == {i: {"text": c["text"], "logprobs": c["logprobs"]} for i, c in want.items()}
    assert server.metric("tandem_slow_readers_total") == 0
    before = server.metric("vllm:generation_tokens_total")
    sock = socket.socket()  # the like, not read
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    data = json.dumps({"prompt": "the cat " * 100, "max_tokens": 800, "echo": True, "logprobs": 20, "n": 16, "ignore_eos": True, "stream": True}).encode()
    sock.sendall(head("POST", COMPLETE, len(data), server.headers()) + data)
    until(server, lambda: server.metric("tandem_slow_readers_total") == 1, 60)
    until(server, lambda: server.get("/health").json["pending"] == 0, 20)
    assert server.metric("vllm:generation_tokens_total") - before < 16 * 800, "it could go on to the end"
    sock.close()


@case("200 streams at once, all complete and equal to themselves alone")
def _(server):
    want = {i: server.complete(f"Once upon a time {i}", max_tokens=8).text for i in range(5)}
    got = in_threads(200, lambda i: texts(server.stream_complete(f"Once upon a time {i % 5}", max_tokens=8))[0])
    assert all(g == want[i % 5] for i, g in enumerate(got)), [g for i, g in enumerate(got) if g != want[i % 5]][:3]


@case("mixed traffic: good, bad, cut off, half sent; one end each")
def _(server):
    draw = random.Random(4)
    kinds = [draw.randrange(7) for _ in range(300)]
    def one(i):
        kind = kinds[i]
        if kind == 0:
            answer = server.chat(max_tokens=6, temperature=1)
            return answer.status == 200 and answer.json["choices"][0]["finish_reason"] in ("stop", "length")
        if kind == 1:
            events = server.stream_chat(max_tokens=6, n=2)
            return sum(1 for e in events for c in e["choices"] if c["finish_reason"]) == 2
        if kind == 2:
            return server.post(COMPLETE, b'{"prompt": "x", "max_tokens": -4}').status == 400
        if kind == 3:
            sock = server.open_stream({"prompt": "Once", "max_tokens": 50})
            sock.recv(100)
            sock.close()
            return True
        if kind == 4:
            sock = server.raw(head("POST", COMPLETE, 1000, server.headers()) + b'{"prompt":')
            sock.close()
            return True
        if kind == 5:
            return server.complete(["Once", "Twice"], max_tokens=4, stop=["e"]).status == 200
        answer = server.complete(max_tokens=5, logprobs=3, echo=True)
        return answer.status == 200 and answer.json["choices"][0]["finish_reason"] in ("stop", "length")
    for start in range(0, 300, 30):
        results = in_threads(30, lambda i: one(start + i))
        assert all(r is True for r in results), [(kinds[start + i], r) for i, r in enumerate(results) if r is not True][:3]
