"""The figures of docs/MEASUREMENTS.md, "Server": python3 tests/serve/figures.py [overhead|load|memory|ttft|stop]...

Environment: TANDEM (the program), TANDEM_MODEL (a folder or a GGUF file; models/demo). No test: it judges nothing, and on a machine with
other work it measures that work."""
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from harness import MODEL, TANDEM, Server, head, read_answer


def tandem(*arguments):
    return json.loads(subprocess.run([TANDEM, *map(str, arguments), "--json"], check=True, capture_output=True, text=True).stdout)


def bench(server, *arguments):
    return tandem("bench", "serve", f"http://127.0.0.1:{server.port}", *arguments)


def overhead():
    """A token through the server less a step without one; the same contexts, both as medians, alternating."""
    for threads in (1, os.cpu_count()):
        server = Server("--threads", threads, "--max-running", 1, "--kv-tokens", 1024, "--context", 512, tp=1)
        step, tpot, itl = [], [], []
        for _ in range(5):
            step.append(tandem("bench", "step", MODEL, "--threads", threads, "--context", 32, "--steps", 192, "--prefill", 16, "--repeat", 1)["decode_ms"])
            report = bench(server, "--requests", 8, "--concurrency", 1, "--input-len", 32, "--output-len", 200)
            tpot.append(report["tpot_ms"]["p50"])
            itl.append(report["itl_ms"]["p50"])
        server.stop()
        least = min(step)
        print(f"overhead, {threads} engine threads: step {least:.3f} ms, ITL p50 {min(itl):.3f} ms, TPOT p50 {min(tpot):.3f} ms: "
              f"{1000 * (min(itl) - least):+.0f} and {1000 * (min(tpot) - least):+.0f} us a token", flush=True)


def load():
    for many, requests in ((1, 6), (4, 16), (16, 48)):
        server = Server("--max-running", 16, "--kv-tokens", 16384, "--context", 1024, tp=1)
        r = bench(server, "--requests", requests, "--concurrency", many, "--input-len", 32, "--output-len", 96)
        server.stop()
        print(f"load, {many} at a time: TTFT p50 {r['ttft_ms']['p50']:.0f} p99 {r['ttft_ms']['p99']:.0f} ms, TPOT p50 {r['tpot_ms']['p50']:.2f} "
              f"p99 {r['tpot_ms']['p99']:.2f} ms, {r['output_tokens_per_s']:.0f} tok/s", flush=True)


def resident(server):
    with open(f"/proc/{server.process.pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:"))


def memory():
    """Connections that had an answer and stay open; then streams of which the engine runs eight and the others wait."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(tp=1)
    server.complete(max_tokens=64)
    before = resident(server)
    idle = [server.raw(head("GET", "/version", None, {})) for _ in range(1000)]
    assert all(read_answer(sock).status == 200 for sock in idle)
    kept = resident(server)
    print(f"memory, 1000 idle connections: {before} -> {kept} KiB, {(kept - before) / 1000:.1f} KiB each", flush=True)
    streams = [server.open_stream({"prompt": f"Story {i}", "max_tokens": 200, "ignore_eos": True}) for i in range(200)]
    peak = kept
    while server.get("/health").json["pending"]:
        peak = max(peak, resident(server))
        time.sleep(0.02)
    ends = sum(b"[DONE]" in read_answer(sock).body for sock in streams)
    print(f"memory, 200 streams beside them: {kept} -> {peak} KiB at most, {(peak - kept) / 200:.1f} KiB each; {ends} ended", flush=True)
    server.stop()


def first_event(server, prompt):
    start = time.monotonic()
    sock = server.open_stream({"prompt": prompt, "max_tokens": 2, "temperature": 0})
    sock.settimeout(120)
    data = b""
    while b"data: " not in data:
        data += sock.recv(65536)
    elapsed = 1000 * (time.monotonic() - start)
    while b"[DONE]" not in data:
        data += sock.recv(65536)
    return elapsed


def ttft():
    """Short requests, one after another, while eight clients send one long prompt after another."""
    for chunk in (512, 128):
        server = Server("--max-running", 16, "--kv-tokens", 16384, "--context", 1024, "--prefill-chunk", chunk, tp=1)
        alone = sorted(first_event(server, f"Say {i}") for i in range(5))
        over, sent = threading.Event(), []

        def long_prompts(which):
            while not over.is_set():
                words = " ".join(str((which * 7919 + len(sent) * 104729 + i * i) % 997) for i in range(230))
                sent.append(server.post("/v1/completions", {"prompt": words, "max_tokens": 1}).json["usage"]["prompt_tokens"])

        clients = [threading.Thread(target=long_prompts, args=(i,)) for i in range(8)]
        for client in clients:
            client.start()
        time.sleep(1)
        times = sorted(first_event(server, f"Tell {i}") for i in range(30))
        over.set()
        for client in clients:
            client.join()
        server.stop()
        print(f"ttft, chunks of {chunk}: alone {alone[2]:.0f} ms; beside 8 clients with prompts of {min(sent)}-{max(sent)} tokens: "
              f"p10 {times[3]:.0f} p50 {times[15]:.0f} p90 {times[27]:.0f} max {times[-1]:.0f} ms", flush=True)


def stop():
    for what in ("idle", "idle, 1000 connections", "8 streams, --drain 2"):
        server = Server("--drain", 2, "--context", 1024, "--kv-tokens", 16384, tp=1)
        open_ones = [server.raw(head("GET", "/version", None, {})) for _ in range(1000)] if "1000" in what else []
        if "streams" in what:
            open_ones = [server.open_stream({"prompt": "Once", "max_tokens": 900, "ignore_eos": True}) for _ in range(8)]
            time.sleep(0.2)
        start = time.monotonic()
        code = server.stop(signal.SIGTERM)
        print(f"stop, {what}: {time.monotonic() - start:.2f} s, exit {code}", flush=True)
        for sock in open_ones:
            sock.close()


if __name__ == "__main__":
    for name in sys.argv[1:] or ("overhead", "load", "memory", "ttft", "stop"):
        {"overhead": overhead, "load": load, "memory": memory, "ttft": ttft, "stop": stop}[name]()
