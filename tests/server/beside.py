# SPDX-License-Identifier: MIT
"""How fast a chat goes on beside clients that mean harm: 300 connections that send a byte a second of a
body, ones that ask for a file in 2 600 ranges and do not read, and one that sends schemas of 8 000
alternatives, one behind the other. Both are measured in turns.
    beside.py --model FILE [--threads 1] [--tokens 160] [--rounds 5] [--pause 1.0]
--pause: seconds that the client of schemas waits between two. The clients compute on the same machine."""
import argparse
import json
import socket
import statistics
import threading
import time

from serving import Server

HEAD = b"Host: 127.0.0.1\r\n"
RANGES = b"GET /style.css HTTP/1.1\r\n" + HEAD + b"Range: bytes=" + b",".join([b"0-"] * 2600) + b"\r\n\r\n"
SCHEMA = {"anyOf": [{"type": "string", "maxLength": n} for n in range(1, 8001)]}
N_SLOW = 300


class Harm:
    """The clients; a context manager."""

    def __init__(self, server, pause):
        self.server, self.pause = server, pause
        self.ended = threading.Event()
        self.counts = dict.fromkeys(("connections", "ranges", "schemas"), 0)
        self.threads = [threading.Thread(target=f) for f in (self.slow, self.ranges, self.schemas)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        while self.counts["connections"] < N_SLOW:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def connect(self):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", self.server.port))
        return connection

    def slow(self):
        held = []
        while not self.ended.is_set():
            while len(held) < N_SLOW:
                held.append(self.connect())
                held[-1].sendall(b"POST /v1/chat/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 100000\r\n\r\n")
                self.counts["connections"] += 1
            for connection in list(held):
                try:
                    connection.sendall(b" ")
                except OSError:  # the server has closed it
                    held.remove(connection)
            self.ended.wait(1)

    def ranges(self):
        held = []
        while not self.ended.is_set():
            held.append(self.connect())
            held[-1].sendall(RANGES)
            self.counts["ranges"] += 1
            del held[:-12]
            self.ended.wait(0.2)

    def schemas(self):
        body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8,
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        while not self.ended.is_set():
            self.server.request("POST", "/v1/chat/completions", body)
            self.counts["schemas"] += 1
            self.ended.wait(self.pause)


def speed(server, tokens):
    body = {"messages": [{"role": "user", "content": "Write a long story about a river."}], "max_tokens": tokens, "temperature": 0}
    begin = time.monotonic()
    status, _, answer = server.request("POST", "/v1/chat/completions", body, timeout=300)
    assert status == 200, answer
    return json.loads(answer)["usage"]["completion_tokens"] / (time.monotonic() - begin)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0)
    o = parser.parse_args()
    alone, beside = [], []
    with Server(o.model, "--slots", 2, "--threads", o.threads) as server:
        speed(server, o.tokens)
        for _ in range(o.rounds):
            alone.append(speed(server, o.tokens))
            with Harm(server, o.pause) as harm:
                beside.append(speed(server, o.tokens))
                begin = time.monotonic()
                assert server.request("GET", "/health")[0] == 200
                health = time.monotonic() - begin
            print(f"alone {alone[-1]:.1f}, beside {beside[-1]:.1f} tokens/s; {harm.counts}; /health after {health:.3f} s", flush=True)
    medians = statistics.median(alone), statistics.median(beside)
    print(f"medians {medians[0]:.1f} and {medians[1]:.1f} tokens/s: {medians[1] / medians[0]:.3f}")


if __name__ == "__main__":
    main()
