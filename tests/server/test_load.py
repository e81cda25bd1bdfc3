# SPDX-License-Identifier: MIT
"""Load that a server has to bear: nobody is forgotten, nothing is left over. Loopback only."""
import asyncio
import os
import pathlib
import re
import resource
import shutil
import socket
import threading
import time

import load
import pytest
from serving import ENDLESS, Server, find_server

MIB = 1 << 20
# A server under a sanitizer holds freed memory back on purpose: it looks for leaks itself, at its end.
SANITIZED = os.environ.get("SHARPI_SERVER_SANITIZED") is not None
# What allocator and thread stacks of a warm server may take more or less between two looks.
SLACK = 12 * MIB


def test_two_hundred_connections_at_once():
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 8, "--queue", 256) as server:
        async def crowd():
            return sum(await asyncio.gather(*(load.right_answer(server.port, load.NAMES[i % 8]) for i in range(200))))
        assert asyncio.run(crowd()) == 0, "the queue had room for all"
        server.wait_idle()


def test_a_full_queue_says_so_and_when_to_come_again():
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 1, "--queue", 2) as server:
        async def crowd():
            data = load.ask(max_tokens=200, logit_bias=ENDLESS)
            return await asyncio.gather(*(load.whole_answer(server.port, data) for _ in range(40)))
        statuses = [status for status, _ in asyncio.run(crowd())]
        assert set(statuses) == {200, 429}, statuses
        held = threading.Event()

        def hold():  # the one place, and the queue behind it
            async def holders():
                await asyncio.gather(*(load.slow_reader(server.port, 1.5) for _ in range(6)))
            held.set()
            asyncio.run(holders())
        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        thread.join()
        server.wait_idle()
        assert server.chat()["usage"]["completion_tokens"] > 5


def test_nobody_waits_for_answers_to_clients_that_were_reset():
    """Each of these answers would hold one of the two places for as long as the context has room."""
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 2, "--queue-timeout", 20, "--context", 32768) as server:
        async def crowd():
            for i in range(40):
                await load.resetter(server.port, 0.0005 * i)
        asyncio.run(crowd())
        server.wait_idle()
        assert server.chat()["usage"]["completion_tokens"] > 5


def test_bad_clients_cost_nothing_in_the_end():
    """Memory, threads and descriptors are flat from the second round on, and every question was
    answered rightly beside clients that read slowly, leave, close halfway or say nothing."""
    with Server("tiny-qwen3-q8_0.gguf", "--slots", 4, "--queue", 64) as server:
        async def rounds(n):
            for _ in range(n):
                await load.mixed(server.port, right=30, wrong=8, seconds=0.6)
        asyncio.run(rounds(2))
        server.wait_idle()
        before = server.resident_bytes()
        threads, descriptors = server.threads(), server.descriptors()
        sessions = len(server.sessions())
        asyncio.run(rounds(4))
        server.wait_idle()
        deadline = time.monotonic() + 10  # connections that were left are closed when that is noticed
        while server.threads() > threads + 4 or server.descriptors() > descriptors + 4:
            assert time.monotonic() < deadline, (server.threads(), threads, server.descriptors(), descriptors)
            time.sleep(0.05)
        assert len(server.sessions()) <= max(sessions, 6)
        grown = server.resident_bytes() - before
        if grown >= SLACK:  # as many sessions at once as never before; a leak goes on growing
            before += grown
            asyncio.run(rounds(4))
            server.wait_idle()
            grown = server.resident_bytes() - before
        assert grown < SLACK or SANITIZED, f"{grown / MIB:.1f} MiB more after four rounds"


def test_long_bodies_at_once_are_forgotten():
    body = load.request_bytes({"messages": [{"role": "user", "content": "word " * (1 << 19)}]})
    with Server("tiny-qwen3-q8_0.gguf") as server:
        async def senders(n):
            for status, _ in await asyncio.gather(*(load.whole_answer(server.port, body) for _ in range(n))):
                assert status == 400, status
        for _ in range(2):  # what the allocator keeps for next time
            asyncio.run(senders(2))
        before = server.resident_bytes()
        for _ in range(2):
            asyncio.run(senders(2))
        grown = server.resident_bytes() - before
        assert grown < 2 * SLACK or SANITIZED, f"{grown / MIB:.1f} MiB more after four bodies of 2.5"
        assert server.chat()["usage"]["completion_tokens"] > 5


@pytest.fixture
def crowded():
    """A server, and what gives it room for so many MiB more: a thread takes 8 of them for its stack."""
    if SANITIZED or not shutil.which("prlimit"):
        pytest.skip("prlimit is not installed" if not SANITIZED else "a sanitizer takes address space as it likes")
    with Server("tiny-qwen3-q8_0.gguf", "--threads", 1, program=["prlimit", f"--stack={8 * MIB}:", str(find_server())]) as server:
        def give_room(mib):
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            taken = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
            limit = resource.RLIM_INFINITY if mib is None else taken + mib * MIB
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        yield server, give_room


def test_connections_wait_where_there_is_no_thread_for_them(crowded):
    server, give_room = crowded
    server.chat()
    give_room(20)
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(20)]
    for connection in connections:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    for connection in connections:  # those that have a thread first, the others after them
        connection.sendall(b"Connection: close\r\n\r\n")
    for connection in connections:
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        connection.close()
    assert server.threads() < 10
    give_room(None)
    assert server.chat()["usage"]["completion_tokens"] > 5


def test_masks_are_made_where_there_is_no_thread_for_them(crowded):
    server, give_room = crowded
    form = {"type": "json_object"}
    server.chat(max_tokens=1, response_format=form)  # the one mask is needed before there is a step to make it beside
    give_room(7)
    answer = server.chat(max_tokens=20, response_format=form)["choices"][0]["message"]["content"]
    give_room(None)
    assert answer == server.chat(max_tokens=20, response_format=form)["choices"][0]["message"]["content"]
