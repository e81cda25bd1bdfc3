# SPDX-License-Identifier: MIT
"""What requests take of memory: a bounded multiple of their bytes, a bounded sum of all, and nothing
once they are answered; and a server that goes on where the system gives no more."""
import json
import pathlib
import re
import threading

import pytest
from serving import ANSWER, Server
from test_arrival import CHAT, answers, closing, connect, head, rest_of
from test_load import SANITIZED, crowded  # noqa: F401  (a fixture)

MIB = 1 << 20
COMPLETIONS = "/v1/completions"


def many(piece, size):
    return b'{"prompt":[' + b",".join([piece] * (size // (len(piece) + 1))) + b"]}"


def lists(size):
    return many(b"[" * 97 + b"]" * 97, size)


def objects(size):
    return many(b'{"":0}', size)


def send(server, body, path=COMPLETIONS):
    return server.request("POST", path, body, {"Content-Type": "application/json"}, timeout=120)


def most_resident(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def arguments(size):
    """Calls of functions, whose arguments are JSON in a text."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 97 + "]" * 97}}
    calls = [call] * 1000
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    return json.dumps({"messages": [message] * (size // len(json.dumps(message)))}).encode()


@pytest.mark.parametrize("make, path", [(lists, COMPLETIONS), (objects, COMPLETIONS), (arguments, CHAT)])
def test_a_body_takes_a_bounded_multiple_of_itself_and_gives_it_back(make, path):
    body = make(16 * MIB - 1000)
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 2) as server:
        server.chat()
        before = server.resident_bytes()
        most = most_resident(server)
        for _ in range(3):
            status, _, data = send(server, body, path)
            assert status == 400 and " more " in json.loads(data)["error"]["message"]
        if not SANITIZED:
            assert most_resident(server) - most < 64 * MIB
            assert server.resident_bytes() - before < 8 * MIB


def test_what_a_long_prompt_took_is_given_back():
    body = json.dumps({"messages": [{"role": "user", "content": "word " * (3 * MIB)}]}).encode()
    ids = many(b"7", 8 * MIB)
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 2) as server:
        server.chat()
        before = server.resident_bytes()
        for _ in range(2):
            for sent, path in ((body, CHAT), (ids, COMPLETIONS)):
                status, _, data = send(server, sent, path)
                assert status == 400 and "context" in json.loads(data)["error"]["message"]
        assert server.resident_bytes() - before < 12 * MIB or SANITIZED


def test_bodies_have_a_sum():
    """Clients that never send the end of theirs; those for whom there is no room are told so."""
    with Server("tiny-qwen3-q8_0.gguf", "--max-body", "4M", "--request-memory", "72M") as server:
        begun = []
        for _ in range(30):
            connection = connect(server)
            begun.append(connection)
            try:
                connection.sendall(head("POST", CHAT, f"Content-Length: {4 * MIB}") + b" " * (4 * MIB - 1))
            except OSError:
                pass  # refused while it was sent
        refused = 0
        for connection in begun:
            connection.settimeout(0.2)
            try:
                data = rest_of(connection)
            except (TimeoutError, ConnectionResetError):
                continue  # it waits for the last byte
            assert answers(data) == [503] and closing(data) and b"Retry-After: 1\r\n" in data
            refused += 1
        assert 0 < refused <= 30 - 12
        assert server.request("GET", "/health")[0] == 200
        for connection in begun:
            connection.close()
        server.wait_idle()
        assert send(server, b" " * MIB)[0] == 400  # there is room again
        assert server.chat()["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize("room", [4, 24, 64])
def test_a_server_without_memory_says_so_and_goes_on(crowded, room):  # noqa: F811
    server, give_room = crowded
    server.chat()
    give_room(room)
    bodies = [(json.dumps({"messages": [{"role": "user", "content": "word " * (400 << 10)}]}).encode(), CHAT),
              (many(b"7", 6 * MIB), COMPLETIONS), (many(b'["a"]', 600 << 10), COMPLETIONS), (many(b'{"":0}', 200 << 10), COMPLETIONS),
              (json.dumps({"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 30}).encode(), CHAT),
              (json.dumps({"messages": [{"role": "user", "content": "tell me"}], "max_tokens": 30, "stream": True}).encode(), CHAT)]
    seen = set()

    def client(i):
        for turn in range(6):
            body, path = bodies[(i + turn) % len(bodies)]
            try:
                seen.add(send(server, body, path)[0])
            except OSError:
                seen.add("cut")  # not even the answer could be made
    clients = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    assert server.process.poll() is None, "\n".join(server.lines[-5:])
    assert seen <= {200, 400, 429, 503, "cut"} and 503 in seen | {"cut"} or room > 4, seen
    give_room(None)
    assert server.chat()["choices"][0]["message"]["content"] == ANSWER
    assert server.request("GET", "/health")[0] == 200
