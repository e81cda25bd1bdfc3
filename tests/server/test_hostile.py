# SPDX-License-Identifier: MIT
"""Clients that mean harm, or might: heads that leave doubt, ranges, long paths, slow connections that
would hold every place, and a second server on the same port. Loopback only, bounded in count."""
import json
import resource
import socket
import subprocess

import pytest
from serving import ANSWER, FIXTURES, Server, find_server
from test_arrival import ASK, CHAT, SECOND, answers, closing, connect, head, rest_of
from test_load import SANITIZED


def once(server, data):
    with connect(server) as connection:
        connection.sendall(data)
        return rest_of(connection)


@pytest.fixture(scope="module")
def key():
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 2, "--api-key", "secret") as server:
        yield server


BODY = b'{"prompt": "a", "max_tokens": 1}'
UNCLEAR = {
    "a blank before the colon of a length": head("GET", "/health", f"Content-Length : {len(SECOND)}") + SECOND,
    "a blank before the colon of a coding": head("POST", CHAT, "Transfer-Encoding : chunked", f"Content-Length: {len(BODY)}") + BODY,
    "NUL behind a length": head("POST", CHAT, f"Content-Length: {len(BODY)}\0") + BODY,
    "two lengths that are the same": head("POST", CHAT, f"Content-Length: {len(BODY)}", f"Content-Length: {len(BODY)}") + BODY,
    "two hosts": head("GET", "/v1/models", "Host: other.example"),
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "a header in two lines": head("GET", "/v1/models", "X: a\r\n b"),
    "an encoding that nobody reads": head("POST", CHAT, "Content-Encoding: zstd", f"Content-Length: {len(BODY)}") + BODY,
    "lines that end with one byte": b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n",
    "a POST that does not say how long it is": head("POST", CHAT, "Authorization: Bearer secret") + SECOND,
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_heads_that_leave_doubt_are_refused(key, name):
    """One answer, and nothing behind it is taken for a request."""
    data = once(key, UNCLEAR[name] + SECOND)
    assert answers(data) == [400] and closing(data)
    assert json.loads(data.split(b"\r\n\r\n", 1)[1])["error"]["message"]


def test_ranges_are_not_served(key):
    many = "Range: bytes=" + ",".join(["0-"] * 2600)
    whole = key.request("GET", "/style.css")[2]
    for header in (many, "Range: bytes=0-0", "Range: bytes=9-"):
        data = once(key, head("GET", "/style.css", header, "Connection: close"))
        assert answers(data) == [200] and data.split(b"\r\n\r\n", 1)[1] == whole


def test_long_paths_end_nothing():
    """With the stacks that small systems give to threads; a sanitizer needs more of them."""
    def small_stacks():
        resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
    with Server("tiny-qwen3-q8_0.gguf", "--threads", 1, preexec_fn=None if SANITIZED else small_stacks) as server:
        for method in ("POST", "GET", "DELETE"):
            for size in (1900, 8000, 60000):
                data = once(server, head(method, "/" + "a" * size, "Content-Length: 0", "Connection: close"))
                assert answers(data) == [404]
        assert server.chat()["choices"][0]["message"]["content"] == ANSWER


def test_a_port_is_not_shared(key):
    command = [str(find_server()), "--model", str(FIXTURES / "tiny-qwen3-q8_0.gguf"), "--port", str(key.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1 and "in use" in second.stderr, (second.returncode, second.stderr)


BEGUN = [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nX: ", head("POST", CHAT, "Content-Length: 99"),
         head("POST", CHAT, "Transfer-Encoding: chunked") + b"1000\r\n"]


def test_three_hundred_slow_connections_keep_nobody_out():
    """More than there are threads, at rest, in the middle of a head, of a body, and of an answer that
    they do not take."""
    with Server("tiny-qwen3-q8_0.gguf", "--connections", 8, "--slots", 2) as server:
        threads = server.threads()
        slow = []
        for i in range(300):
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(BEGUN[i % 6] if i % 6 < 5 else head("GET", "/style.css") * 200)
            slow.append(connection)
        for _ in range(5):
            assert server.request("GET", "/health")[0] == 200
            assert server.request("GET", "/")[0] == 200
            assert server.chat()["choices"][0]["message"]["content"] == ANSWER
        assert server.threads() <= threads + 8
        for connection in slow:
            connection.close()


def test_all_connections_that_the_system_has_keep_nobody_out():
    """The one that is missed least is closed for a new one."""
    def few_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    with Server("tiny-qwen3-q8_0.gguf", preexec_fn=few_descriptors) as server:
        slow = [connect(server) for _ in range(200)]
        for connection in slow:
            try:
                connection.sendall(b"GET /health HTTP/1.1\r\nX: ")
            except OSError:
                pass  # it had to make room already
        assert server.request("GET", "/health")[0] == 200
        assert server.chat()["choices"][0]["message"]["content"] == ANSWER
        for connection in slow:
            connection.close()


def test_requests_that_wait_for_threads_keep_nobody_out():
    """Both threads write answers whose readers take nothing; more requests wait."""
    from load import ask
    from serving import ENDLESS
    with Server("tiny-qwen3-q8_0.gguf", "--connections", 2, "--slots", 2, "--context", 32768) as server:
        writing = []
        for _ in range(6):
            connection = connect(server)
            connection.sendall(ask(stream=True, max_tokens=100000, logit_bias=ENDLESS))
            writing.append(connection)
        assert all(c.recv(15) == b"HTTP/1.1 200 OK" for c in writing[:2])
        for path in ("/health", "/", "/v1/models"):
            assert server.request("GET", path)[0] == 200
        for connection in writing:
            connection.close()


def test_pages_and_applications_that_are_named_may_ask():
    named = "https://chat.example"
    with Server("tiny-qwen3-q8_0.gguf", "--api-key", "secret", "--allow-origin", f"{named},app://obsidian.md") as server:
        bearer = {"Authorization": "bearer secret"}
        for origin, status in ((named, 200), ("HTTPS://Chat.Example", 200), ("app://obsidian.md", 200), ("https://other.example", 403)):
            got, headers, _ = server.request("GET", "/v1/models", None, {"Origin": origin, **bearer})
            assert got == status and headers.get("access-control-allow-origin") == (origin if status == 200 else None)
        ask = {"Origin": named, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, x-stainless-os"}
        status, headers, _ = server.request("OPTIONS", CHAT, None, ask)
        assert status == 204 and headers["access-control-allow-origin"] == named and "POST" in headers["access-control-allow-methods"]
        assert headers["access-control-allow-headers"] == "authorization, x-stainless-os"
        status, headers, _ = server.request("OPTIONS", CHAT, None, {**ask, "Origin": "https://other.example"})
        assert status == 403 and "access-control-allow-origin" not in headers
        # What is refused, and what is a stream, can be read by such a page, too.
        for body, more, status in ((b"{", bearer, 400), (b"{}", {}, 401), (json.dumps({**json.loads(ASK), "stream": True}).encode(), bearer, 200)):
            got, headers, _ = server.request("POST", CHAT, body, {"Origin": named, "Content-Type": "application/json", **more})
            assert got == status and headers["access-control-allow-origin"] == named


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "box.example", ""])
def test_other_machines_are_let_in_only_when_that_is_said(host):
    command = [str(find_server()), "--model", "x.gguf", f"--host={host}"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2 and "--api-key" in refused.stderr and "--no-key" in refused.stderr, refused.stderr
    for more in (["--no-key"], ["--api-key", "secret"]):  # these come as far as to look for the model
        assert subprocess.run([*command, *more], capture_output=True, timeout=60).returncode == 1
    assert subprocess.run([*command, "--no-key", "--api-key", "secret"], capture_output=True, timeout=60).returncode == 2


def test_names_are_looked_at_also_where_other_machines_may_ask():
    with Server("tiny-qwen3-q8_0.gguf", "--host", "0.0.0.0", "--no-key", "--allow-host", "box.example") as server:
        for host, status in (("localhost", 200), ("LocalHost:1234", 200), ("10.0.0.5:80", 200), ("BOX.example", 200), ("other.example", 403)):
            assert server.request("GET", "/v1/models", None, {"Host": host})[0] == status, host
