"""What the server tests share: a server of one's own on 127.0.0.1, requests as a client sends them, and the check after each case.

A case is a function with the decorator @case(name). It gets a Server and raises (assert) when something is wrong. After each one the
server must be well: /health is 200, all KV is free again, and a fixed greedy request gives the text that it gave at the start.
"""
import atexit
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TANDEM = os.environ.get("TANDEM", os.path.join(ROOT, "build", "tandem"))
MODEL = os.environ.get("TANDEM_MODEL", os.path.join(ROOT, "models", "demo"))
GREEDY = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
CHAT = [{"role": "user", "content": "Tell me a story"}]
cases = []


def case(name, **options):
    def add(function):
        cases.append((name, function, options))
        return function
    return add


def model_copy():
    """A folder with the model's files, to be changed."""
    folder = tempfile.mkdtemp(prefix="tandem-model.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in os.listdir(MODEL):
        shutil.copy(os.path.join(MODEL, name), folder)
    return folder


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, {k.lower(): v for k, v in headers}, body

    @property
    def json(self):
        return json.loads(self.body.decode("utf-8"), object_pairs_hook=no_duplicates, parse_constant=no_constant)

    @property
    def error(self):
        return self.json["error"]

    @property
    def text(self):
        choice = self.json["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]


def no_duplicates(pairs):
    out = dict(pairs)
    assert len(out) == len(pairs), f"a key twice in {pairs}"
    return out


def no_constant(name):
    raise AssertionError(f"{name} in JSON")


class Server:
    def __init__(self, *arguments, model=MODEL, tp=2, files=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.command = [TANDEM, "serve", model, "--tp", str(tp), "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(self.command, stderr=self.log, stdin=subprocess.DEVNULL,
                                        preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))))
        self.port = self.wait_until_up()
        self.key = arguments[arguments.index("--api-key") + 1] if "--api-key" in arguments else None
        self.kv_free = self.greedy = None

    def wait_until_up(self):
        for _ in range(3000):
            found = re.search(r"serving .* on http://127\.0\.0\.1:(\d+)", self.stderr())
            if found:
                return int(found.group(1))
            if self.process.poll() is not None:
                raise RuntimeError(f"no start: {self.stderr()}")
            time.sleep(0.1)
        raise RuntimeError("no start within 300 s")

    def stderr(self):
        with open(self.log.name) as file:
            return file.read()

    def stop(self, sig=signal.SIGTERM, limit=30):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return "no end"

    # ---- requests ----

    def headers(self, more=None):
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        headers.update(more or {})
        return headers

    def request(self, method, path, body=None, headers=None, timeout=120, connection=None):
        """`body`: bytes as they are, anything else as JSON."""
        own = connection is None
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, data, self.headers(headers))
            response = connection.getresponse()
            return Answer(response.status, response.getheaders(), response.read())
        finally:
            if own:
                connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def complete(self, prompt="Once upon a time", **fields):
        return self.post("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields})

    def chat(self, messages=None, **fields):
        return self.post("/v1/chat/completions", {"messages": messages or CHAT, "temperature": 0, "max_tokens": 8, **fields})

    def stream(self, path, body, **options):
        """The events of a stream, [DONE] left out."""
        answer = self.post(path, {**body, "stream": True}, **options)
        assert answer.status == 200, (answer.status, answer.body)
        return events_of(answer)

    def stream_complete(self, prompt="Once upon a time", **fields):
        return self.stream("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields})

    def stream_chat(self, messages=None, **fields):
        return self.stream("/v1/chat/completions", {"messages": messages or CHAT, "temperature": 0, "max_tokens": 8, **fields})

    def open_stream(self, body, path="/v1/completions"):
        """A socket with the request sent, and whatever of the answer has come."""
        data = json.dumps({**body, "stream": True}).encode()
        return self.raw(head("POST", path, len(data), self.headers()) + data)

    def raw(self, data):
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        sock.sendall(data)
        return sock

    def metric(self, name):
        total, found = 0.0, False
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + "{"):
                total, found = total + float(line.rsplit(" ", 1)[1]), True
        assert found, f"no metric {name}"
        return total

    # ---- the check after each case ----

    def settle(self, seconds=20):
        """Waits until nothing is in flight, then looks at everything that must be as before."""
        end = time.time() + seconds
        while True:
            health = self.get("/health")
            free = self.metric("tandem_kv_free_tokens")
            if health.status == 200 and health.json["pending"] == 0 and (self.kv_free is None or free == self.kv_free):
                break
            assert time.time() < end, f"not well: {health.status} {health.body} free KV {free}, at the start {self.kv_free}"
            time.sleep(0.05)
        text = self.post("/v1/completions", GREEDY).text
        assert self.greedy in (None, text), f"greedy text {text!r}, at the start {self.greedy!r}"
        self.kv_free, self.greedy = free, text


def head(method, path, length, headers, version="HTTP/1.1"):
    lines = [f"{method} {path} {version}", "Host: 127.0.0.1"] + [f"{k}: {v}" for k, v in headers.items()]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def events_of(answer):
    """Strict: `data: ` + one line + two LF, nothing else; the last is [DONE]."""
    assert answer.headers["content-type"] == "text/event-stream", answer.headers
    assert answer.headers["cache-control"] == "no-cache", answer.headers
    text = answer.body.decode("utf-8")
    assert not re.search("[\x85\u2028\u2029\r]", text), "a raw line separator"
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    events = text.split("\n\n")[:-2]
    assert all(e.startswith("data: ") and "\n" not in e for e in events), [e for e in events if not e.startswith("data: ")]
    events = [json.loads(e[6:], object_pairs_hook=no_duplicates, parse_constant=no_constant) for e in events]
    heads = {(e["id"], e["object"], e["created"], e["model"]) for e in events if "error" not in e}
    assert len(heads) <= 1, heads
    return events


def read_answer(sock, limit=1 << 24):
    """Status and body of one answer from a socket, by its framing; the rest of the stream stays."""
    file = sock.makefile("rb")
    line = file.readline()
    if not line:
        return None
    status, headers = int(line.split()[1]), []
    while True:
        line = file.readline().strip()
        if not line:
            break
        name, value = line.split(b":", 1)
        headers.append((name.decode(), value.strip().decode()))
    answer = Answer(status, headers, b"")
    if status < 200:
        return answer
    if answer.headers.get("transfer-encoding") == "chunked":
        while True:
            size = int(file.readline().split(b";")[0], 16)
            answer.body += file.read(size)
            file.readline()
            if not size:
                break
    else:
        answer.body = file.read(int(answer.headers.get("content-length", limit)))
    return answer


def closed(sock, seconds=5):
    """Has the server closed it (with nothing more to read)?"""
    sock.settimeout(seconds)
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True
    except socket.timeout:
        return False


def texts(events):
    """Per choice the joined text of a stream."""
    out = {}
    for event in events:
        for choice in event["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            out[choice["index"]] = out.get(choice["index"], "") + piece
    return out


def run(module_name, server_arguments=(), selected=None):
    """Runs the cases; those with options `server=[...]` get a server of their own. Returns (passed, failed)."""
    passed = failed = 0
    shared = None
    for name, function, options in cases:
        if function.__module__ != module_name or (selected and selected not in name):
            continue
        own = options.get("server")
        start = time.time()
        server = None
        try:
            if own is not None:
                server = Server(*own, **options.get("start", {}))
                if options.get("settle", True):
                    server.settle()
            else:
                if shared is None:
                    shared = Server(*server_arguments)
                    shared.settle()
                server = shared
            function(server)
            if options.get("settle", True):
                server.settle()
            passed += 1
            print(f"ok      {name} ({time.time() - start:.1f} s)", flush=True)
        except Exception as error:
            failed += 1
            print(f"NOT OK  {name}: {type(error).__name__}: {str(error)[:600]}", flush=True)
            at = traceback.extract_tb(error.__traceback__)
            print("        " + " <- ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(at)), flush=True)
            if server is not None and server is shared:
                if shared.process.poll() is not None:
                    print("        the server died: " + shared.stderr()[-500:], flush=True)
                shared.stop()
                shared = None
        finally:
            if own is not None and server is not None:
                server.stop()
    if shared is not None:
        code = shared.stop()
        if code == 0:
            passed += 1
        else:
            failed += 1
            print(f"NOT OK  {module_name}: the server ends with {code}: {shared.stderr()[-500:]}")
    return passed, failed
