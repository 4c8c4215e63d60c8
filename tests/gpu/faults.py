"""faults.py: a rank fails while recorded steps run on the devices: everybody who waits hears, and the next request is answered on the loaded weights.

Each case is a server of its own with one planted fault. Requests stream; silence is counted from the last token of each."""
import http.client
import json
import re
import subprocess
import tempfile
import threading
import time

from gpu_common import DEVICE, EMULATED, GPUS, TANDEM, Failed, attempt, check, finish, ranks, small_model

WAITING = 2 if EMULATED else 4
TOKENS = 24 if EMULATED else 600
FAULT_STEP = 8 if EMULATED else 150
DEADLINE_MS = 20000 if EMULATED else 4000
SLOW = 20 if EMULATED else 1 # an emulated device is slow, and this is not about it


class Server:
    def __init__(self, folder, world, fault):
        command = [TANDEM, "serve", folder, "--random-weights", "7", "--device", DEVICE, *map(str, ranks(world)), "--port", "0", "--context", "2048",
                   "--timeout", str(DEADLINE_MS), "--drain", "2"]
        command += ["--fault", fault] if fault else []
        print("$ " + " ".join(command), flush=True)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)
        self.log, self.port = [], None
        threading.Thread(target=self.read, daemon=True).start()
        end = time.time() + 60
        while not self.port and time.time() < end and self.process.poll() is None:
            time.sleep(0.02)
        if not self.port:
            self.close()
            raise Failed("the server did not start: " + " ".join(self.log)[-300:])

    def read(self):
        for line in self.process.stderr:
            self.log.append(line.strip())
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found and not self.port:
                self.port = int(found.group(1))

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(8)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def stream(port, prompt, tokens, out):
    """Fills out: ids, when each came, the error if there was one and when."""
    out.update(ids=[], last=time.time(), error=None)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True, "return_token_ids": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        if answer.status != 200:
            out["error"] = answer.read().decode()[:200]
        for line in answer if answer.status == 200 else []:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                out["error"] = event["error"]["message"]
                break
            out["ids"] += event["choices"][0].get("token_ids") or []
            out["last"] = time.time()
    except (OSError, http.client.HTTPException) as error:
        out["error"] = "connection: %s" % error
    out["end"] = time.time()
    connection.close()


def ask(port, tokens=12):
    out = {}
    stream(port, [5, 6, 7, 8], tokens, out)
    return out


def one_case(folder, world, rank, at, kind, allowed_s):
    server = Server(folder, world, "rank=%d,at=%s,seq=%d,kind=%s" % (rank, at, FAULT_STEP, kind))
    name = "TP%d rank %d, %s at %s" % (world, rank, kind.split(":")[0], at)
    try:
        before = ask(server.port, 4)
        if before["error"]:
            raise Failed("the first request failed: %s; the server said: %s" % (before["error"][:100], " | ".join(server.log)[-500:]))
        waiting = [{} for _ in range(WAITING)]
        threads = [threading.Thread(target=stream, args=(server.port, [10 + i, 2, 3], TOKENS, out)) for i, out in enumerate(waiting)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        heard = [out for out in waiting if out["error"]]
        silence = max(out["end"] - out["last"] for out in waiting)
        check(len(heard) == WAITING and silence <= allowed_s, "%s: %d of %d waiting requests heard, after %.2f s of silence at most (%.1f allowed)%s" % (
            name, len(heard), WAITING, silence, allowed_s, ": " + heard[0]["error"][:120] if heard else ""))
        failed_at = max(out["end"] for out in waiting)
        print("     the server said: " + " | ".join(server.log)[-300:], flush=True)
        after = ask(server.port, 4)
        took = after["end"] - failed_at
        check(not after["error"] and after["ids"] == before["ids"] and took <= 5 * SLOW, "%s: the next request has the same answer %.2f s later%s" % (
            name, took, ": " + after["error"] if after["error"] else "" if after["ids"] == before["ids"] else ": %s, before %s" % (after["ids"], before["ids"])))
    finally:
        server.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        small_model(folder)
        world = GPUS if GPUS in (4, 8) else 2
        for rank in range(world):
            attempt("error of rank %d" % rank, one_case, folder, world, rank, "kernel", "error", 1.0 * SLOW)
        attempt("stall of a rank", one_case, folder, world, world - 1, "kernel", "stall:60000", DEADLINE_MS / 1000 + 1.0 * SLOW)
        attempt("exit of a rank", one_case, folder, world, 0, "kernel", "exit", 1.0 * SLOW)
    finish()


if __name__ == "__main__":
    main()
