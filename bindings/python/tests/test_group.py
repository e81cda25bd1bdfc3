# SPDX-License-Identifier: MIT
"""Groups: two processes have a model together and give the tokens of one."""

import multiprocessing
import time

import pytest

import sharpi
from conftest import find

MODEL = find("tiny-qwen3-q8_0.gguf")
PROMPT = list(range(40, 80))
OPTIONS = {"n_ctx": 128, "n_chunk": 16, "n_gpu_layers": 0}


def greedy(model, n=5):
    session = model.session()
    session.set_sampler(temperature=0)
    session.prefill(PROMPT)
    return [session.step()[0].token for _ in range(n)]


def rank(own, connection, results):
    def send(to, data, seconds):
        assert to == 1 - own
        connection.send_bytes(data)
        if not connection.poll(seconds):
            raise TimeoutError
        connection.recv_bytes()  # it was taken

    def receive(sender, size, seconds):
        if not connection.poll(seconds):
            raise TimeoutError
        data = connection.recv_bytes()
        assert sender == 1 - own and len(data) == size
        connection.send_bytes(b"taken")
        return data

    try:
        group = sharpi.Group(own, 2, send=send, receive=receive, abandon=connection.close, timeout=20)
        with sharpi.Model(MODEL, group=group, rank_layers=[1, 3], **OPTIONS) as model:
            results.put((own, group.info.n_ranks, model.info.n_layers, greedy(model)))
    except Exception as error:
        results.put((own, repr(error)))


def test_two_processes_give_the_tokens_of_one():
    method = multiprocessing.get_context("spawn")
    ends, results = method.Pipe(), method.Queue()
    ranks = [method.Process(target=rank, args=(i, ends[i], results)) for i in range(2)]
    for one in ranks:
        one.start()
    said = sorted(results.get(timeout=100) for _ in ranks)
    for one in ranks:
        one.join(100)
    with sharpi.Model(MODEL, **OPTIONS) as model:
        tokens = greedy(model)
    assert said == [(0, 2, 1, tokens), (1, 2, 3, tokens)]


def test_a_group_that_nobody_joins_is_lost():
    def late(*_):
        time.sleep(0.01)
        raise TimeoutError

    with pytest.raises(sharpi.DeviceLost, match="rank 1 does not answer"):
        sharpi.Group(0, 2, send=late, receive=late, load_timeout=0.1)


def test_what_makes_no_group():
    with pytest.raises(sharpi.InvalidArgument, match="rank 2"):
        sharpi.Group(2, 2, send=print, receive=print)
    with pytest.raises(sharpi.InvalidArgument, match="nccl_comm"):
        sharpi.Group(0, 2)
    with pytest.raises(sharpi.Unsupported, match="NCCL cannot be opened"):
        sharpi.Group(0, 2, nccl_comm=1, nccl_library="/nowhere/libnccl.so.2")
