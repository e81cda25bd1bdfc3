# SPDX-License-Identifier: MIT
"""Load on a server on this machine, bounded in count and time: many clients at once, clients that
read slowly, that leave, or that say nothing. As a program it prints figures for the documents:
    load.py [--model FILE] [--connections 200] [--requests 400] [--slots 8] [--tokens 64]"""
import argparse
import asyncio
import json
import random
import socket
import statistics
import struct
import time

from serving import ANSWER, ENDLESS, QUESTION, Server

HEAD = "{} {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"


def request_bytes(body, path="/v1/chat/completions"):
    data = json.dumps(body).encode()
    return HEAD.format("POST", path, len(data)).encode() + data


def ask(text=QUESTION, **more):
    return request_bytes({"messages": [{"role": "user", "content": text}], "temperature": 0, **more})


async def connect(port, receive_buffer=None):
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=sock, limit=1 << 24)


async def hang_up(writer):
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


async def whole_answer(port, data):
    """(status, body) of one request, read to the end."""
    reader, writer = await connect(port)
    try:
        writer.write(data)
        await writer.drain()
        answer = await reader.read()
    finally:
        await hang_up(writer)
    head, _, body = answer.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1]) if head.startswith(b"HTTP/1.1 ") else 0
    return status, body


async def patient(port, data, seconds=60):
    """The body of a request, sent again after a moment as long as the server says that it is full."""
    end = time.monotonic() + seconds
    refusals = 0
    while True:
        status, body = await whole_answer(port, data)
        if status == 200:
            return json.loads(body), refusals
        assert status in (429, 503), (status, body[:300])
        assert time.monotonic() < end, f"still full after {seconds} s"
        refusals += 1
        await asyncio.sleep(random.uniform(0.1, 0.5))


async def right_answer(port, name):
    """A question of its own, so that answers of others cannot be taken for it. Its digits differ: of
    33337 the small model makes 33333, also where nobody else asks."""
    code = "".join(random.sample("123456789", 5))
    body, refusals = await patient(port, ask(f"The code of {name} is {code}. What is the code of {name}?"))
    text = body["choices"][0]["message"]["content"]
    assert text == f"The code of {name} is {code}.", f"asked for {code}: {text}"
    return refusals


async def slow_reader(port, seconds):
    """Asks for a long stream and takes a few bytes of it a second, with a small buffer."""
    reader, writer = await connect(port, receive_buffer=4096)
    try:
        writer.write(ask(stream=True, max_tokens=4000, logit_bias=ENDLESS))
        await writer.drain()
        end = time.monotonic() + seconds
        got = 0
        while time.monotonic() < end:
            piece = await asyncio.wait_for(reader.read(64), 30)
            if not piece:
                break
            got += len(piece)
            await asyncio.sleep(0.2)
        return got
    except OSError:
        return 0  # the server may give up on such a reader
    finally:
        writer.transport.abort()


async def leaver(port):
    """Asks for a long stream, reads the beginning, and is gone."""
    reader, writer = await connect(port)
    writer.write(ask(stream=True, max_tokens=4000, logit_bias=ENDLESS))
    await writer.drain()
    await reader.read(256)
    writer.transport.abort()


async def resetter(port, seconds):
    """Sends a long question whose answer would take minutes, and resets the connection a moment later:
    maybe while the server still takes the question apart."""
    _, writer = await connect(port)
    writer.write(ask("word " * 4000, max_tokens=1000000, logit_bias=ENDLESS))
    await writer.drain()
    await asyncio.sleep(seconds)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def half_closer(port):
    """Says that it has nothing more to send, and then reads what comes."""
    reader, writer = await connect(port)
    try:
        writer.write(ask(max_tokens=400, logit_bias=ENDLESS))
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 60)
    except OSError:
        pass
    finally:
        await hang_up(writer)


async def sayer_of_half(port, seconds):
    """Sends half a request, and then nothing."""
    reader, writer = await connect(port)
    try:
        writer.write(ask()[:60])
        await writer.drain()
        await asyncio.wait_for(reader.read(), seconds)
    except (OSError, asyncio.TimeoutError):
        pass
    finally:
        writer.transport.abort()


async def mute(port, seconds):
    """Connects and says nothing."""
    _, writer = await connect(port)
    await asyncio.sleep(seconds)
    writer.transport.abort()


NAMES = ("ember", "olive", "maple", "quartz", "cedar", "raven", "amber", "delta")


async def mixed(port, right, wrong, seconds=1.0):
    """`right` clients with questions beside `wrong` clients of each bad kind, all at once. Returns how
    often the right ones were told to come again."""
    bad = [kind for _ in range(wrong) for kind in
           (slow_reader(port, seconds), leaver(port), half_closer(port), sayer_of_half(port, seconds), mute(port, seconds))]
    good = [right_answer(port, NAMES[i % len(NAMES)]) for i in range(right)]
    results = await asyncio.gather(*good, *bad)
    return sum(results[:right])


async def timed(port, connections, requests, tokens):
    """Requests of so many streaming connections at once: seconds in all, to the first token, to the last."""
    firsts, wholes, refused = [], [], 0
    left = iter(range(requests))

    async def client():
        nonlocal refused
        for i in left:
            name = NAMES[i % len(NAMES)]
            data = ask(f"The code of {name} is {i + 10000}. What is the code of {name}?", stream=True, max_tokens=tokens, logit_bias=ENDLESS)
            while True:
                start = time.monotonic()
                reader, writer = await connect(port)
                writer.write(data)
                status = (await reader.readline()).split(b" ")[1]
                if status == b"200":
                    break
                refused += 1
                await hang_up(writer)
                await asyncio.sleep(random.uniform(0.2, 0.6))
            while b'"content"' not in await reader.readline():
                pass
            firsts.append(time.monotonic() - start)
            assert b"data: [DONE]" in await reader.read()
            wholes.append(time.monotonic() - start)
            await hang_up(writer)

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(connections)))
    return time.monotonic() - start, firsts, wholes, refused


def percentiles(values):
    cuts = statistics.quantiles(values, n=100)
    return f"{statistics.median(values) * 1000:.0f} / {cuts[94] * 1000:.0f} / {cuts[98] * 1000:.0f} ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tiny-qwen3-q8_0.gguf")
    for name, value in (("connections", 200), ("requests", 400), ("slots", 8), ("tokens", 64), ("queue", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    with Server(options.model, "--slots", options.slots, "--queue", options.queue) as server:
        asyncio.run(timed(server.port, 8, 16, 16))  # warm
        seconds, firsts, wholes, refused = asyncio.run(timed(server.port, options.connections, options.requests, options.tokens))
        made = options.requests * options.tokens
        print(f"{options.requests} requests over {options.connections} connections, {options.slots} slots: {seconds:.2f} s,"
              f" {options.requests / seconds:.0f} requests/s, {made / seconds:.0f} tokens/s, {refused} told to come again")
        print(f"first token, median / 95 % / 99 %: {percentiles(firsts)}; last: {percentiles(wholes)}")
        print(f"anonymous memory {server.resident_bytes() / 2**20:.1f} MiB, {server.threads()} threads")


if __name__ == "__main__":
    main()
