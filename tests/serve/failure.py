"""A rank fails, stalls or vanishes while requests run; the server drains, ends, refuses to start (issue point 7, section 1.6)."""
import json
import os
import signal
import subprocess
import threading
import time

from harness import CHAT, GREEDY, MODEL, ROOT, TANDEM, Server, case, closed, events_of, head, read_answer
from load import SLOW, in_threads, until

COMPLETE = "/v1/completions"
BASE = ["--max-running", 4, "--kv-tokens", 2048, "--timeout", 1500]


def long_stream(server, **fields):
    return server.open_stream({"prompt": "Once upon", "max_tokens": 900, "ignore_eos": True, "temperature": 1, **fields})


def general(error):
    """A failure of the group as clients read it."""
    return error["code"] == 500 and error["type"] == "server_error" and "rank" not in error["message"] and "inject" not in error["message"]


def error_end(answer):
    """A stream that ends by exactly one error event."""
    text = answer.body.decode()
    assert text.endswith("data: [DONE]\n\n"), text[-300:]
    errors = [json.loads(e[6:]) for e in text.split("\n\n")[:-2] if '"error"' in e[:20]]
    assert len(errors) == 1 and set(errors[0]["error"]) == {"message", "type", "param", "code"}, text[-500:]
    assert '"error"' in text.split("\n\n")[-3], "something follows the error"
    return errors[0]["error"]


def check_failure(server, kind):
    streams = [long_stream(server, n=1 + i % 2) for i in range(3)]
    body = [None]
    thread = threading.Thread(target=lambda: body.__setitem__(0, server.complete(max_tokens=900, ignore_eos=True)))
    thread.start()
    for sock in streams:
        sock.settimeout(300)
        answer = read_answer(sock)
        if answer.status == 200:
            error = error_end(answer)
            assert general(error), error
        else:
            assert answer.status == 500 and general(answer.error), answer.body
    thread.join()
    assert body[0].status == 500 and general(body[0].error), (kind, body[0].status, body[0].body)
    until(server, lambda: server.get("/health").status == 200, 20)
    health = server.get("/health").json
    assert health["aborts"] == 1 and health["rebuilds"] == 1, health
    assert server.metric("tandem_aborts_total") == 1 and server.metric("tandem_rebuilds_total") == 1
    assert server.complete(max_tokens=3).status == 200


def add(kind, rank, at):
    # Collectives, or steps. Late enough that every client's request is in: one that comes after the failure is answered by the new group.
    seq = 6000 if at in ("barrier", "ready") else 400
    spec = f"rank={rank},at={at},seq={seq},kind={kind}"
    @case(f"rank {rank} fails at {at} by {kind}: one error each, a new group, all as before", server=[*BASE, "--fault", spec])
    def _(server):
        memory = server.metric("tandem_rank_kv_bytes"), server.metric("tandem_rank_scratch_bytes"), server.metric("tandem_rank_weight_bytes")
        check_failure(server, kind)
        assert memory == (server.metric("tandem_rank_kv_bytes"), server.metric("tandem_rank_scratch_bytes"), server.metric("tandem_rank_weight_bytes"))


for kind, rank, at in (("error", 1, "kernel"), ("error", 0, "barrier"), ("oom", 1, "reserve"), ("exit", 1, "kernel"), ("stall:4000", 1, "kernel"), ("error", 0, "sample"),
                       ("stall:4000", 0, "ready")):
    add(kind, rank, at)


def add_exit(rank, at, kind):
    @case(f"--on-failure exit, rank {rank} at {at} by {kind}: one error event each, exit code 5 within 5 s",
          server=[*BASE, "--on-failure", "exit", "--fault", f"rank={rank},at={at},seq=60,kind={kind}"], settle=False)
    def _(server):
        sock = long_stream(server)
        sock.settimeout(300)
        error = error_end(read_answer(sock))
        assert general(error), error
        start = time.time()
        code = server.process.wait(60)
        assert code == 5 and time.time() - start < 5, (code, server.stderr())
        assert server.stderr().count("tandem: ") >= 1


for rank, at, kind in ((1, "kernel", "error"), (0, "reserve", "oom"), (1, "reserve", "oom"), (1, "kernel", "oom"), (0, "sample", "oom")):
    add_exit(rank, at, kind)


@case("--on-failure exit with a rank that hangs", server=[*BASE, "--on-failure", "exit", "--fault", "rank=1,at=kernel,seq=60,kind=stall:60000"], settle=False)
def _(server):
    sock = long_stream(server)
    sock.settimeout(300)
    error_end(read_answer(sock))
    start = time.time()
    code = server.process.wait(60)
    assert code == 5 and time.time() - start < 5, (code, server.stderr())


@case("a stall is seen by /health before the deadline ends it", server=["--kv-tokens", 2048, "--timeout", 3000, "--fault", "rank=1,at=kernel,seq=60,kind=stall:8000"])
def _(server):
    sock = long_stream(server)
    seen = set()
    silent = 0
    end = time.time() + 60
    while time.time() < end and not ("ok" in seen and server.get("/health").json["aborts"]):
        health = server.get("/health").json
        seen.add(health["status"])
        silent = max([silent] + [r["silent_ms"] for r in health["ranks"]])
        time.sleep(0.1)
    assert silent > 1000 and "stalled" in seen, (seen, silent)
    sock.settimeout(300)
    error_end(read_answer(sock))


@case("SIGTERM when idle: exit 0 at once", server=BASE, settle=False)
def _(server):
    idle = server.raw(b"")
    start = time.time()
    assert server.stop() == 0 and time.time() - start < 5, time.time() - start
    assert closed(idle)


@case("SIGTERM drains: what runs ends well, what is new gets 503", server=[*BASE, "--drain", 600], settle=False)
def _(server):
    sock = server.open_stream({"prompt": "Once", "max_tokens": 600, "ignore_eos": True, "temperature": 0})
    kept = server.raw(head("GET", "/version", None, {}))
    assert read_answer(kept).status == 200
    until(server, lambda: server.get("/health").json["pending"] == 1, 10)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.05)
    try:
        answer = server.post(COMPLETE, GREEDY)
        assert answer.status == 503 and answer.error["type"] == "unavailable_error" and "retry-after" in answer.headers, answer.body
        health = server.get("/health")
        assert health.status == 503 and health.json["status"] == "draining"
    except ConnectionError:
        pass  # it was that quick
    sock.settimeout(600)
    answer = read_answer(sock)
    events = events_of(answer)
    assert events[-1]["choices"][0]["finish_reason"] == "length" and sum(1 for e in events if "error" in e) == 0
    assert server.process.wait(60) == 0, server.stderr()


@case("the drain has an end: the rest gets an error event", server=["--random-weights", 1, "--threads", 2, "--kv-tokens", 4096, "--drain", 1], start={"model": SLOW}, settle=False)
def _(server):
    sock = long_stream(server, max_tokens=3000)
    until(server, lambda: server.metric("vllm:generation_tokens_total") > 15, 30)
    start = time.time()
    server.process.send_signal(signal.SIGTERM)
    sock.settimeout(300)
    assert error_end(read_answer(sock))["type"] == "unavailable_error"
    assert server.process.wait(60) == 143 and time.time() - start < 15, (server.stderr(), time.time() - start)


@case("a second signal ends at once", server=["--random-weights", 1, "--threads", 2, "--kv-tokens", 4096], start={"model": SLOW}, settle=False)
def _(server):
    sock = long_stream(server, max_tokens=3000)
    until(server, lambda: server.metric("vllm:generation_tokens_total") > 15, 30)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    start = time.time()
    server.process.send_signal(signal.SIGINT)
    sock.settimeout(300)
    error_end(read_answer(sock))
    assert server.process.wait(60) in (130, 143) and time.time() - start < 3, (server.stderr(), time.time() - start)


@case("starts that must fail: one line, the right code", server=BASE)
def _(server):
    def start(*arguments):
        done = subprocess.run([TANDEM, "serve", *map(str, arguments)], capture_output=True, timeout=60)
        return done.returncode, done.stderr.decode()
    for arguments, code, text in (((MODEL, "--port", server.port), 3, "Address already in use"), ((MODEL, "--host", "256.1.1.1"), 2, "--host"),
                                  ((MODEL, "--port", "0", "--api-key", ""), 2, "--api-key"),
                                  ((MODEL, "--port", "0", "--api-key", " "), 2, "--api-key"), ((MODEL, "--port", "0", "--api-key", "key "), 2, "--api-key"),
                                  ((MODEL, "--port", "70000"), 2, "--port"),
                                  ((MODEL, "--on-failure", "hope"), 2, "--on-failure"), ((MODEL, "--port", "0", "--served-model-name", "a,,b"), 2, "--served-model-name"),
                                  (("/nonexistent", "--port", "0"), 3, "nonexistent"), ((MODEL, "--port", "0", "--max-running", "0"), 2, "--max-running")):
        got, err = start(*arguments)
        assert got == code and text in err and err.count("\n") == 1 and err.startswith("tandem: "), (arguments, got, err)


@case("a model without tokenizer serves token ids", server=["--max-running", 2], start={"model": os.path.join(ROOT, "tests", "golden", "llama")}, settle=False)
def _(server):
    answer = server.complete([1, 2, 3], max_tokens=4, return_token_ids=True, ignore_eos=True, logprobs=1)
    assert answer.status == 200 and len(answer.json["choices"][0]["token_ids"]) == 4 and answer.text == "", answer.body
    assert server.complete("text").status == 400 and server.chat().status == 400 and server.post("/tokenize", {"prompt": "x"}).status == 400
