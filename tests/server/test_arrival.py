# SPDX-License-Identifier: MIT
"""Requests on their way to the server: how long they may be, how long they may take, and what becomes
of the parts of them that it did not read. Bare sockets."""
import json
import os
import re
import select
import socket
import time
import zlib

import pytest
from serving import QUESTION, Server

MIB = 1 << 20
# A server under a sanitizer holds freed memory back on purpose.
MOST_MEMORY = 24 * MIB if os.environ.get("SHARPI_SERVER_SANITIZED") is None else 1 << 40
CHAT = "/v1/chat/completions"
ASK = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 3}).encode()


def head(method, path, *headers):
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", *headers, "", ""]).encode()


def connect(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def rest_of(connection):
    """What comes until the server closes."""
    out = b""
    while piece := connection.recv(65536):
        out += piece
    return out


def answers(data):
    """The statuses in what came over a connection. No body holds such a line."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def closing(data):
    return re.search(rb"\r\nConnection: close\r\n", data) is not None and b"Keep-Alive:" not in data


@pytest.fixture(scope="module")
def small():
    with Server("tiny-qwen3-q8_0.gguf", "--max-body", "1M", "--api-key", "secret") as server:
        yield server


def endless(name):
    """The headers of a body that is too long, and its parts, most of which are not there to be read."""
    if name == "gzip":
        z = zlib.compressobj(9, zlib.DEFLATED, 31)
        body = b"".join([z.compress(b" " * MIB) for _ in range(200)]) + z.flush()
        assert len(body) < MIB
        return [f"Content-Length: {len(body)}", "Content-Encoding: gzip"], [body]
    if name == "chunks":
        return ["Transfer-Encoding: chunked"], [b"100000\r\n" + b" " * MIB + b"\r\n"] * 100 + [b"0\r\n\r\n"]
    if name == "a line of a chunk":
        return ["Transfer-Encoding: chunked"], [b"1" * MIB] * 100
    if name == "no length":
        return [], [b" " * MIB] * 100
    return [f"Content-Length: {100 * MIB}"], [b" " * MIB] * 100


@pytest.mark.parametrize("path", [CHAT, "/v1/sharpi/sessions/s1/compact"])
@pytest.mark.parametrize("name", ["gzip", "chunks", "no length", "a length"])
def test_bodies_beyond_the_limit_are_refused_however_they_come(small, name, path):
    headers, parts = endless(name)
    before = small.resident_bytes()
    with connect(small) as connection:
        connection.sendall(head("POST", path, "Authorization: Bearer secret", *headers))
        for part in parts:
            connection.sendall(part)
        data = rest_of(connection)
    refusal = (400, "a POST says how long its body is") if name == "no length" else (413, "the request is too long")
    assert answers(data) == [refusal[0]] and closing(data)
    assert json.loads(data.split(b"\r\n\r\n", 1)[1])["error"]["message"] == refusal[1]
    assert small.resident_bytes() - before < MOST_MEMORY


@pytest.mark.parametrize("method, path, status", [("POST", "/v1/nothing", 404), ("PUT", CHAT, 404), ("PATCH", "/", 404),
                                                  ("DELETE", CHAT, 404), ("POST", "/%0A", 404), ("POST", "/" + "a" * 8000, 404),
                                                  ("GET", "/health", 200)])
def test_bodies_that_nobody_wants_are_not_kept(small, method, path, status):
    headers, parts = endless("chunks")
    before = small.resident_bytes()
    with connect(small) as connection:
        connection.sendall(head(method, path, "Authorization: Bearer secret", *headers))
        for part in parts:
            connection.sendall(part)
        data = rest_of(connection)
    assert answers(data) == [status] and closing(data)
    assert small.resident_bytes() - before < MOST_MEMORY


def test_lines_without_an_end_are_refused(small):
    before = small.resident_bytes()
    with connect(small) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * (20 * MIB))
        data = rest_of(connection)
    assert answers(data) == [431] and closing(data)
    headers, parts = endless("a line of a chunk")
    with connect(small) as connection:
        connection.sendall(head("POST", CHAT, "Authorization: Bearer secret", *headers))
        for part in parts:
            connection.sendall(part)
        assert answers(rest_of(connection)) == [400]
    assert small.resident_bytes() - before < MOST_MEMORY


@pytest.mark.parametrize("headers, status", [
    (["Content-Length: 9"], 401), (["Transfer-Encoding: chunked"], 401), (["Authorization: Bearer wrong", "Content-Length: 9"], 401),
    (["Authorization: Bearer secret", "Origin: http://other.example", "Content-Length: 9"], 403),
    (["Authorization: Bearer secret", "Content-Length: 9999999"], 413),
    (["Authorization: Bearer secret", "Content-Length: 99999999999999999999"], 413),
    (["Authorization: Bearer secret", "Content-Length: -1"], 400), (["Authorization: Bearer secret", "Content-Length: many"], 400),
    (["Authorization: Bearer secret", "Content-Length: 9", "Content-Length: 10"], 400),
    (["Authorization: Bearer secret", "Content-Length: 9", "Transfer-Encoding: chunked"], 400),
    (["Authorization: Bearer secret", "Transfer-Encoding: gzip, chunked"], 400),
    (["Authorization: Bearer wrong", "Content-Length: 9", "Expect: 100-continue"], 401)])
def test_a_head_is_judged_before_its_body_comes(small, headers, status):
    with connect(small) as connection:
        connection.sendall(head("POST", CHAT, *headers))
        data = rest_of(connection)
    assert answers(data) == [status] and closing(data)


SECOND = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize("request_head", [
    head("POST", CHAT, "Authorization: Bearer wrong", f"Content-Length: {len(SECOND)}"),
    head("POST", CHAT, "Authorization: Bearer secret", f"Content-Length: {len(SECOND)}").replace(b"application/json", b"text/plain"),
    head("POST", "/v1/nothing", "Authorization: Bearer secret", f"Content-Length: {len(SECOND)}"),
    head("DELETE", "/nothing"),
    head("GET", "/health", f"Content-Length: {len(SECOND)}"),
    head("POST", CHAT, "Authorization: Bearer secret", "Content-Length: many"),
    head("POST", CHAT, "Authorization: Bearer secret", "Transfer-Encoding: chunked") + b"2\r\n{}0\r\n"])
def test_a_body_that_was_not_read_is_no_request(small, request_head):
    with connect(small) as connection:
        connection.sendall(request_head + SECOND)
        data = rest_of(connection)
    assert len(answers(data)) == 1 and closing(data)


def test_connections_go_on_after_what_was_read(small):
    def posted(body):
        return head("POST", CHAT, "Authorization: Bearer secret", f"Content-Length: {len(body)}") + body
    with connect(small) as connection:
        connection.sendall(SECOND + posted(b"{") + posted(ASK) + SECOND + head("GET", "/v1/models", "Connection: close"))
        assert answers(rest_of(connection)) == [200, 400, 200, 200, 401]


def test_requests_that_do_not_arrive_make_room():
    """Each of these holds one of two threads, and sends a little of its request again and again."""
    ask = head("POST", CHAT, "Content-Length: 99")
    with Server("tiny-qwen3-q8_0.gguf", "--connections", 2, "--receive-timeout", 1) as server:
        for begun in (b"GET /health HTTP/1.1\r\nX: ", ask, head("POST", CHAT, "Transfer-Encoding: chunked") + b"1000\r\n"):
            slow = [connect(server) for _ in range(2)]
            for connection in slow:
                connection.sendall(begun)
            deadline = time.monotonic() + 60
            waiting = set(slow)
            while waiting:
                assert time.monotonic() < deadline, "it waits for slow requests"
                for connection in waiting:
                    connection.sendall(b" ")
                waiting -= set(select.select(list(waiting), [], [], 0.1)[0])
            for connection in slow:
                data = rest_of(connection)
                assert answers(data) == [408] and closing(data)
                connection.close()
            assert server.request("GET", "/health")[0] == 200
