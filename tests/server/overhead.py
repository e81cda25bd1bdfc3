# SPDX-License-Identifier: MIT
"""What serving costs: tokens a second of streams over HTTP, beside the same model, threads and depth
in bench/model_bench, which calls the library alone. Both are measured in turns. Processor time is
given per thread, as that can be compared on a machine that does other work, too.
    overhead.py --model FILE [--streams 1] [--threads 1] [--tokens 96] [--rounds 5] [--warm 16]
                [--more '{"ignore_eos": true}'] [--url http://127.0.0.1:8080 --pid PID] [FLAGS OF THE SERVER]
With --url another server is measured, one that somebody started and that answers chat completions;
then model_bench is not run."""
import argparse
import json
import os
import pathlib
import selectors
import socket
import statistics
import subprocess
import time
import urllib.parse

from serving import ROOT, Server

PROMPT = "Write a long story about a lighthouse, a storm and a ship."


def thread_seconds(pid):
    """Processor time of each thread of a process so far."""
    out = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            out[task] = int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e9
        except OSError:
            pass  # it has just ended
    return out


class Stream:
    """One answer over a bare socket, read as it comes."""

    def __init__(self, address, options):
        body = {"messages": [{"role": "user", "content": PROMPT}], "temperature": 0, "max_tokens": options.warm + options.tokens,
                "stream": True, "stream_options": {"include_usage": True}, **json.loads(options.more)}
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(address)
        self.socket.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(data), data))
        self.data, self.events, self.ended = bytearray(), 0, False

    def read(self):
        piece = self.socket.recv(1 << 16)
        self.ended = not piece
        self.data += piece
        self.events += piece.count(b'"content":"')

    def tokens_an_event(self):
        """One, but for tokens that are no whole character, and those that came together."""
        self.socket.close()
        events = [line[6:] for line in bytes(self.data).splitlines() if line.startswith(b'data: {"')]
        assert events, bytes(self.data[:400])
        return json.loads(events[-1])["usage"]["completion_tokens"] / self.events


def measure(address, pid, options):
    """(tokens/s of all streams, {thread: seconds a token}) from when all write to the first end."""
    streams = [Stream(address, options) for _ in range(options.streams)]
    begin = None
    with selectors.DefaultSelector() as ready:
        for stream in streams:
            ready.register(stream.socket, selectors.EVENT_READ, stream)
        while not any(stream.ended for stream in streams):
            for key, _ in ready.select():
                key.data.read()
            if begin is None and min(stream.events for stream in streams) >= options.warm:
                begin, before, events = time.monotonic(), thread_seconds(pid), sum(stream.events for stream in streams)
        end, after = time.monotonic(), thread_seconds(pid)
        events = sum(stream.events for stream in streams) - events
    for stream in streams:
        while not stream.ended:
            stream.read()
    tokens = events * statistics.mean(stream.tokens_an_event() for stream in streams)
    return tokens / (end - begin), {task: (after[task] - before.get(task, 0)) / tokens for task in after}


def bench(options, tokens):
    """Tokens/s of model_bench; it decodes six times as many tokens."""
    environment = {**os.environ, "SHARPI_BENCH_MODEL": options.model, "SHARPI_BENCH_THREADS": str(options.threads),
                   "SHARPI_BENCH_BATCH": str(options.streams), "SHARPI_BENCH_TOKENS": str(tokens), "SHARPI_BENCH_ROUNDS": "5",
                   "SHARPI_BENCH_DEPTH": str(options.depth)}
    program = [options.bench, "--benchmark_filter=^decode", "--benchmark_format=json"]
    out = json.loads(subprocess.run(program, env=environment, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return 5 * tokens * options.streams / (out["benchmarks"][0]["real_time"] / 1000)


def show(name, values, unit="", digits=2):
    print(f"{name:44} {statistics.median(values):9.{digits}f} {unit}  ({min(values):.{digits}f} to {max(values):.{digits}f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    for name, value in (("streams", 1), ("threads", 1), ("tokens", 96), ("warm", 16), ("rounds", 5), ("depth", 20), ("pid", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--more", default="{}", help="further fields of the request")
    parser.add_argument("--url")
    parser.add_argument("--bench", default=str(ROOT / "build" / "bench" / "model_bench"))
    options, flags = parser.parse_known_args()
    if options.url:
        where = urllib.parse.urlsplit(options.url)
        rounds = [measure((where.hostname, where.port), options.pid, options) for _ in range(options.rounds)]
        rates = []
    else:
        rounds, rates = [], []
        with Server(options.model, "--slots", options.streams, "--threads", options.threads, *flags) as server:
            for _ in range(options.rounds):
                rates.append(bench(options, options.tokens // 6))
                rounds.append(measure(("127.0.0.1", server.port), server.process.pid, options))
    served = [rate for rate, _ in rounds]
    ordered = [sorted(threads.values(), reverse=True) for _, threads in rounds]
    print(f"{options.streams} streams of {options.tokens} tokens, {options.threads} threads for the model, {options.rounds} rounds: median (least to most)")
    show("over HTTP", served, "tokens/s")
    if rates:
        show("model_bench", rates, "tokens/s")
        show("HTTP over model_bench, of each round", [100 * (b / s - 1) for s, b in zip(served, rates)], "% more time")
    show("processor time a token, all threads", [1e3 * sum(o) for o in ordered], "ms", 3)
    show("of it the threads that compute", [1e3 * sum(o[:options.threads]) for o in ordered], "ms", 3)
    show("of it all others", [1e3 * sum(o[options.threads:]) for o in ordered], "ms", 3)
    show("all others beside those that compute", [100 * sum(o[options.threads:]) / sum(o[:options.threads]) for o in ordered], "%")


if __name__ == "__main__":
    main()
