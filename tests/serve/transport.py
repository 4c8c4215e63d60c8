"""HTTP itself, by raw sockets: framing, limits, time-outs, keep-alive (B001 to B007, B119, and what libmicrohttpd leaves open)."""
import json
import os
import re
import socket
import threading
import time

from harness import case, closed, head, read_answer, GREEDY

LIMIT = 1 << 20
SERVER = ("--max-body", "1MiB", "--max-running", 4, "--kv-tokens", 2048)
BODY = json.dumps({**GREEDY, "max_tokens": 2}).encode()
PATH = "/v1/completions"
JSON = {"Content-Type": "application/json"}


def expect(server, data, status, *, close=None, text=None):
    sock = server.raw(data)
    answer = read_answer(sock)
    assert answer is not None and answer.status == status, (answer and (answer.status, answer.body), data[:200])
    if status >= 400 and answer.headers.get("content-type") == "application/json":
        error = answer.error
        assert set(error) == {"message", "type", "param", "code"} and error["code"] == status, error
    if text is not None:
        assert text in answer.body.decode(), answer.body
    if close is not None:
        assert closed(sock, 5 if close else 0.3) == close, f"closed: {not close}"
    sock.close()
    return answer


def chunked(data, pieces, extension="", trailer=""):
    out = b""
    for piece in pieces:
        out += f"{len(piece):x}{extension}\r\n".encode() + piece + b"\r\n"
    return out + b"0\r\n" + trailer.encode() + b"\r\n"


@case("B001 chunked bodies give the same answer and keep the connection")
def _(server):
    want = server.post(PATH, BODY).json["choices"]
    start = head("POST", PATH, None, {**JSON, "Transfer-Encoding": "chunked"})
    ways = [chunked(BODY, [BODY]), chunked(BODY, [bytes([b]) for b in BODY]), chunked(BODY, [BODY[:7], BODY[7:]], ";name=value", "X-Trailer: 1\r\n")]
    for way in ways:
        sock = server.raw(start + way)
        for again in range(2):
            answer = read_answer(sock)
            assert answer.status == 200 and answer.json["choices"] == want, answer.body
            if not again:
                sock.sendall(start + way)
        sock.close()


@case("chunked bodies that are malformed: 400 and close")
def _(server):
    start = head("POST", PATH, None, {**JSON, "Transfer-Encoding": "chunked"})
    for bad in (b"zz\r\n", b"-1\r\nx\r\n", b"5\r\n{}xxxxxxxx\r\n0\r\n\r\n"):
        sock = server.raw(start + bad)
        answer = read_answer(sock)
        assert answer is None or answer.status == 400, answer.status
        assert closed(sock)


@case("B003 Expect: 100-continue over the limit: 413 without 100, then close")
def _(server):
    expect(server, head("POST", PATH, LIMIT + 1, {**JSON, "Expect": "100-continue"}), 413, close=True)
    sock = server.raw(head("POST", PATH, len(BODY), {**JSON, "Expect": "100-continue"}))
    assert read_answer(sock).status == 100
    sock.sendall(BODY)
    assert read_answer(sock).status == 200
    expect(server, head("POST", PATH, len(BODY), {**JSON, "Expect": "something"}), 417, close=True)


@case("B003 a body over the limit: 413 that a client who is still sending can read")
def _(server):
    for size in (LIMIT + 1, 8 * LIMIT):
        answer = server.post(PATH, b"x" * size)
        assert answer.status == 413 and answer.error["type"] == "invalid_request_error", answer.body
    data = head("POST", PATH, None, {**JSON, "Transfer-Encoding": "chunked"}) + chunked(b"", [b"x" * 65536] * 40)
    expect(server, data, 413, close=True)
    assert server.post(PATH, b" " * (LIMIT - len(BODY)) + BODY).status == 200  # exactly the limit


@case("B005 two lengths, hosts or keys in one request")
def _(server):
    def two(a, b, body=BODY):
        return f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{a}\r\n{b}\r\n\r\n".encode() + body
    n = len(BODY)
    smuggled = BODY + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    for a, b in ((f"Content-Length: {n}", f"Content-Length: {n + 5}"), (f"Content-Length: {n}", f"Content-Length: {n}"),
                 (f"Content-Length: {n}", "Transfer-Encoding: chunked"), ("Transfer-Encoding: chunked", f"Content-Length: {n}"),
                 ("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), (f"Content-Length : {n}", "X: y"), (f"Content-Length\t: {n}", "X: y"),
                 (f"Content-Length: {n}", "Host: other"), (f"Content-Length: {n}", "Bad Name: 1")):
        expect(server, two(a, b, smuggled), 400, close=True)
    expect(server, two(f"Content-Length: {n}, {n}", "X: y"), 400, close=True)
    expect(server, two("Content-Length: -5", "X: y"), 400, close=True)
    expect(server, two("Content-Length: 0x10", "X: y"), 400, close=True)
    expect(server, two("Content-Length: 99999999999999999999999", "X: y"), 413, close=True)
    expect(server, two("Transfer-Encoding: gzip", "X: y"), 501, close=True)
    expect(server, two(f"Content-Length: {n}\r\nAuthorization: Bearer a", "Authorization: Bearer b"), 400, close=True)
    expect(server, f"POST {PATH} HTTP/1.1\r\nContent-Length: {n}\r\n\r\n".encode() + BODY, 400, close=True)  # no Host
    expect(server, f"POST {PATH} HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + chunked(BODY, [BODY]), 400, close=True)


@case("folded header lines: 400 and close, wherever they stand")
def _(server):
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    n = len(hidden)
    for line in (f"Content-Length:\r\n {n}", f"Content-Length: \r\n\t{n}", f"Content-Length: {n // 10}\r\n {n % 10}", f"Content-Length: {n}\r\n ",
                 "Transfer-Encoding:\r\n chunked", "Transfer-Encoding: chunked\r\n ", f"Content-Length:\n {n}", "X-Request-Id: a\r\n b", "X:\r\n y"):
        for lines in (line, f"Host: x\r\n{line}", f"Host: x\r\n{line}\r\nX: y", f"{line}\r\nHost: x"):
            expect(server, f"POST /tokenize HTTP/1.1\r\n{lines}\r\n\r\n".encode() + hidden, 400, close=True)
    expect(server, b"GET /version HTTP/1.1\r\n Host: x\r\nHost: x\r\n\r\n", 400, close=True)
    for pad in range(16250, 16400):  # where the library's buffer ends, the name is made longer in place
        expect(server, f"POST /tokenize HTTP/1.1\r\nHost: x\r\nX: {'a' * pad}\r\nContent-Length: 3\r\n 6\r\n\r\n".encode() + hidden, 400, close=True)
        expect(server, f"GET /version HTTP/1.1\r\nHost: x\r\nX: {'a' * pad}\r\nX: y\r\n\r\n".encode(), 200, close=False if pad % 50 == 0 else None)
    expect(server, b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 3\0\r\n\r\n" + hidden, 400, close=True)
    expect(server, b"GET /version HTTP/1.1\r\nHost: x\r\nX: a\0b\r\nY: z\r\n\r\n", 400, close=True)
    for plain in (b"\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n",
                  b"GET /version HTTP/1.1\nHost:x\nX:\nY: \t z \n\n", b"GET /version?a=%20b&c HTTP/1.1\r\nHost: x\r\nCookie: a=b; c=d\r\n\r\n",
                  b"GET /version HTTP/1.0\r\n\r\n"):
        expect(server, plain, 200)


def rss(server):
    return server.metric("process_resident_memory_bytes")


@case("B007 endless heads: 431 or 414, close, little memory")
def _(server):
    before = rss(server)
    for data, status in ((b"GET /health HTTP/1.1\r\nHost: x\r\nX: ", 431), (b"GET /", 414), (b"GET /health HTTP/1.1\r\nHost: x\r\n", 431)):
        piece = b"X: y\r\n" * 10000 if data.endswith(b"\n") else b"a" * 65536
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        sock.sendall(data)
        try:
            for _ in range(64 << 20 >> 16):
                sock.sendall(piece)
        except OSError:
            pass  # closed on us, early as it should be
        try:
            answer = read_answer(sock)
            assert answer is None or answer.status == status, answer.status
        except OSError:
            pass
        sock.close()
    assert rss(server) - before < 4 << 20, rss(server) - before
    expect(server, b"GET /" + b"a" * 10000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, close=True)
    expect(server, b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 200)


@case("request lines that are no HTTP")
def _(server):
    for data, statuses in ((b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n", (505,)), (b"GET /health FTP/1.1\r\nHost: x\r\n\r\n", (400,)),
                           (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400, None)), (b"GET\r\n\r\n", (400, None)),
                           (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (505, 400))):
        sock = server.raw(data)
        answer = read_answer(sock)
        assert (answer and answer.status) in statuses, (data, answer and answer.status)
        assert closed(sock)


@case("paths and methods: 404, 405 with Allow, HEAD, OPTIONS")
def _(server):
    for path in ("/nope", "/v1", "/v1/models/x/y", "/health/", "//health", "/v1/../health"):
        answer = server.get(path)
        assert answer.status == 404 and answer.error["type"] == "not_found_error", (path, answer.status)
    for method, path, allow in (("GET", PATH, "POST"), ("POST", "/health", "GET"), ("DELETE", "/v1/models", "GET"), ("PUT", "/tokenize", "POST"),
                                ("BREW", "/health", "GET")):
        answer = server.request(method, path, BODY if method != "GET" else None)
        assert answer.status == 405 and allow in answer.headers["allow"], (method, path, answer.status, answer.headers)
    answer = server.request("HEAD", "/health")
    assert answer.status == 200 and answer.body == b"" and int(answer.headers["content-length"]) > 0
    answer = server.request("OPTIONS", PATH)
    assert answer.status == 204 and "POST" in answer.headers["allow"] and "access-control-allow-origin" not in answer.headers
    assert server.get("/health?verbose=1").status == 200
    for url, status in (("http://x/health", 200), ("HTTP://x:80/health?a=http://y/", 200), ("https://x", 200), ("http://x?a", 200), ("http://x/nope", 404),
                        ("ftp://x/health", 404), ("http://", 200), ("/http://x/health", 404)):
        expect(server, head("GET", url, None, {}), status)
    expect(server, head("GET", "/health%00/x", None, {}), 400, close=True)
    expect(server, head("GET", "/health?x=%00", None, {}), 200)
    expect(server, head("POST", "http://127.0.0.1" + PATH, len(BODY), JSON) + BODY, 200)
    answer = server.request("OPTIONS", "*")
    assert answer.status == 204 and "POST" in answer.headers["allow"], answer.headers
    assert "OPTIONS" in expect(server, head("GET", "*", None, {}), 405).headers["allow"]


@case("keep-alive: errors and answers on one connection; pipelined requests in order")
def _(server):
    bad = b'{"prompt": 5}'
    request = head("POST", PATH, len(BODY), JSON) + BODY
    sock = server.raw(b"")
    for data, status in ((head("GET", "/nope", None, {}), 404), (request, 200), (head("POST", PATH, len(bad), JSON) + bad, 400), (head("GET", PATH, None, {}), 405),
                         (head("POST", "/health", len(BODY), JSON) + BODY, 405), (request, 200)):
        sock.sendall(data)
        answer = read_answer(sock)
        assert answer.status == status, (answer.status, status)
        assert answer.headers.get("connection") != "close"
    sock.sendall(request + head("GET", "/version", None, {}) + head("GET", "/nope", None, {}))
    file = sock.makefile("rb")
    got = b""
    while got.count(b"HTTP/1.1 ") < 3 or b"not_found_error" not in got:
        got += file.read1(65536)
    assert re.findall(rb"HTTP/1\.1 (\d+)", got) == [b"200", b"200", b"404"], got
    sock.close()
    sock = server.raw(head("GET", "/version", None, {"Connection": "close"}))
    assert read_answer(sock).status == 200 and closed(sock)
    sock = server.raw(b"GET /version HTTP/1.0\r\n\r\n")
    assert read_answer(sock).status == 200 and closed(sock)


@case("a stream to an HTTP/1.0 client ends with the connection")
def _(server):
    data = json.dumps({**GREEDY, "stream": True}).encode()
    sock = server.raw(f"POST {PATH} HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    got = b""
    while piece := sock.recv(65536):
        got += piece
    assert b"chunked" not in got and got.endswith(b"data: [DONE]\n\n"), got[-200:]


@case("x-request-id is echoed, on errors too; a bad one is not")
def _(server):
    for path, body in ((PATH, GREEDY), (PATH, {}), ("/nope", {})):
        assert server.post(path, body, headers={"X-Request-Id": "abc-123"}).headers["x-request-id"] == "abc-123"
    assert "x-request-id" not in server.post(PATH, GREEDY, headers={"X-Request-Id": "a" * 500}).headers


@case("white space behind a field's value is no part of it", server=[*SERVER, "--api-key", "secret key"])
def _(server):
    n = len(BODY)
    for space in ("", " ", "\t \t"):
        fields = {**JSON, "Authorization": f"Bearer secret key{space}", "X-Request-Id": f"a b{space}"}
        answer = expect(server, head("POST", PATH, n, fields) + BODY, 200)
        assert answer.headers["x-request-id"] == "a b", answer.headers
        sock = server.raw(head("POST", PATH, n, {**fields, "Expect": f"100-Continue{space}"}) + BODY)
        assert read_answer(sock).status in (100, 200)
        sock.close()
    expect(server, head("POST", PATH, n, {**JSON, "Authorization": "Bearer secret"}) + BODY, 401)
    expect(server, head("POST", PATH, None, {**fields, "Transfer-Encoding": "chunked "}) + chunked(BODY, [BODY]), 501, close=True)


@case("a head that dribbles in is cut off after 10 s, a body that stops gets 408", server=[*SERVER])
def _(server):
    start = time.time()
    slow = server.raw(b"GET /health HTTP/1.1\r\nHos")
    line = server.raw(b"GE")
    version, post = head("GET", "/version", None, {}), head("POST", PATH, len(BODY), JSON) + BODY
    chunks = head("POST", PATH, None, {**JSON, "Transfer-Encoding": "chunked"}) + chunked(BODY, [BODY[:7], BODY[7:]])
    kept = [server.raw(data) for data in (version, post, chunks)]  # between requests there is more time
    behind = [server.raw(post) for _ in range(2)]
    for sock in kept + behind:
        assert read_answer(sock).status == 200
    for sock, data in zip(behind, (version, post)):
        sock.sendall(data + b"GET /hea")  # in one packet with the request before
        assert read_answer(sock).status == 200
    def dribble():
        try:
            for _ in range(60):
                slow.sendall(b"t")
                line.sendall(b"T")
                time.sleep(0.25)
        except OSError:
            pass
    thread = threading.Thread(target=dribble)
    thread.start()
    for sock in (slow, line, *behind):
        sock.settimeout(120)
        answer = read_answer(sock)
        assert answer is None or answer.status == 408, answer.status
    assert 8 < time.time() - start < 16, time.time() - start
    thread.join()
    for sock in kept:
        for data in (version, post):
            sock.sendall(data)
            assert read_answer(sock).status == 200


@case("more connections than open files: the rest waits, without work for the server", server=SERVER, start={"files": 64}, settle=False)
def _(server):
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(120)]
    time.sleep(0.5)
    def cpu_seconds():
        with open(f"/proc/{server.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    before = cpu_seconds()
    time.sleep(1.2)
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) >= 63, "descriptors are left: this shows nothing"
    used = cpu_seconds() - before
    assert used < 0.2, used
    for sock in idle:
        sock.close()
    end = time.time() + 10
    while True:
        try:
            answer = server.post(PATH, BODY, timeout=10)
            if answer.status == 200:
                break
        except OSError:
            pass
        assert time.time() < end
        time.sleep(0.1)


@case("1000 idle connections, and one that works among them")
def _(server):
    before = rss(server)
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(1000)]
    for sock in idle[::100]:
        sock.sendall(head("GET", "/version", None, {}))
        assert read_answer(sock).status == 200
    assert server.post(PATH, BODY).status == 200
    grown = (rss(server) - before) / 1000
    assert grown < 65536, grown
    for sock in idle:
        sock.close()


@case("B119 the key guards every route but the open ones", server=[*SERVER, "--api-key", "secret key"])
def _(server):
    key, server.key = server.key, None
    for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/version"), ("GET", "/load"), ("GET", "/ping"), ("POST", "/ping"),
                         ("POST", PATH), ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize"), ("GET", "/nope"), ("PUT", "/metrics")):
        for value in (None, "Bearer wrong", "secret key", "Bearer secret ke", "Bearer secret keyy", "Bearer ", "Bearer", "Basic secret key"):
            answer = server.request(method, path, b"{}" if method == "POST" else None, headers={"Authorization": value} if value is not None else {})
            assert answer.status == 401 and answer.error["type"] == "authentication_error", (method, path, value, answer.status)
            assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/health", "/v1/health", "/"):
        assert server.get(path).status == 200, path
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert server.get("/v1/models", headers={"Authorization": f"{scheme} {key}"}).status == 200
    server.key = key


@case("CORS only for the origin that was given", server=[*SERVER, "--cors-origin", "https://example.org"])
def _(server):
    for answer in (server.request("OPTIONS", PATH), server.get("/version"), server.post(PATH, {})):
        assert answer.headers["access-control-allow-origin"] == "https://example.org", answer.headers
    assert "Authorization" in server.request("OPTIONS", PATH).headers["access-control-allow-headers"]
    asked = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
    answer = server.request("OPTIONS", PATH, headers={"Origin": "https://example.org", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked})
    assert answer.status == 204 and answer.headers["access-control-allow-headers"] == asked, answer.headers
    assert answer.headers["vary"] == "Access-Control-Request-Headers" and "POST" in answer.headers["access-control-allow-methods"], answer.headers
    for bad in ("x: y", "a\"b", "x\xe4"):
        assert "Authorization" in server.request("OPTIONS", PATH, headers={"Access-Control-Request-Headers": bad}).headers["access-control-allow-headers"]
    data = head("POST", PATH, None, {**JSON, "Transfer-Encoding": "chunked"}) + chunked(b"", [b"x" * 65536] * 40)
    assert expect(server, data, 413, close=True).headers["access-control-allow-origin"] == "https://example.org"
