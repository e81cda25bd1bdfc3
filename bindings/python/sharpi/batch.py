# SPDX-License-Identifier: MIT
"""Several sessions of one model in one pass, in which its weights are read once for all."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Iterable, List, Optional, Sequence, Tuple

from . import _abi
from ._handles import Handle
from ._interrupt import run
from ._library import call, lib
from ._values import Tokens, Words, i32, int_array, u32
from .session import Bias, Sampled, Session, _sampled


def _compute(sessions: Sequence[Session], body: Callable[[List[int]], None]) -> None:
    """body(handles), while all sessions stay open; an interrupt cancels every one of them."""

    def entered() -> None:
        handles: List[Handle] = []
        try:
            addresses = []
            for session in sessions:
                addresses.append(session._handle.__enter__())
                handles.append(session._handle)
            body(addresses)
        finally:
            for handle in handles:
                handle.__exit__()

    def cancel() -> None:
        for session in sessions:
            session.cancel()

    def resume() -> None:
        for session in sessions:
            session.resume()

    run(entered, cancel, resume)


def decode_batch(pairs: Iterable[Tuple[Session, int]]) -> None:
    """Reads one token in each of several sessions of one model: weights are read once for all.

    All or nothing: on failure no session read a token. After Cancelled, `native_code` is the index of the
    session that was cancelled. Raises as Session.decode(), and InvalidArgument (more than the plan's
    max_batch, a session twice, two models).
    """
    sessions, tokens = [], []
    for session, token in pairs:
        sessions.append(session)
        tokens.append(i32(token, "token"))
    ids, n = int_array(tokens, "i", "tokens")

    def body(handles: List[int]) -> None:
        call(lib.sharpi_decode_batch, (ctypes.c_void_p * n)(*handles), ids, n)

    _compute(sessions, body)


def verify_batch(
    reads: Iterable[Tuple[Session, Tokens]],
    *,
    masks: Optional[Sequence[Optional[Words]]] = None,
    bias: Optional[Bias] = None,
) -> List[int]:
    """Session.verify() in several sessions of one model: how many tokens each of them read, 1 or more.

    masks: for each session None or its mask, as Session.verify() takes it. bias holds for all. All rows
    together are at most the plan's max_logit_rows, max_batch or n_draft + 1, whichever is most: of more,
    the longest reads try fewer drafts. After Cancelled, `native_code` is the index of the session that was
    cancelled. Raises as Session.verify(), and InvalidArgument (more sessions than the plan's max_batch, a
    session twice, two models).
    """
    pairs = list(reads)
    if masks is not None and len(masks) != len(pairs):
        raise ValueError("masks has one entry for each session")
    rows = (_abi.sharpi_batch_read * len(pairs))()
    keep: List[Any] = []
    for i, (session, tokens) in enumerate(pairs):
        block, n = int_array(tokens, "i", "tokens")
        p, held = session._verify_params(n, None if masks is None else masks[i], bias)
        keep += [block, p, held]
        rows[i].tokens, rows[i].n = ctypes.addressof(block), n
        rows[i].params = None if p is None else ctypes.addressof(p)

    def body(handles: List[int]) -> None:
        for i, handle in enumerate(handles):
            rows[i].session = handle
        call(lib.sharpi_verify_batch, rows, ctypes.sizeof(_abi.sharpi_batch_read), len(pairs))

    _compute([session for session, _ in pairs], body)
    del keep
    return [row.n_read for row in rows]


def step_batch(
    sessions: Iterable[Session],
    *,
    masks: Optional[Sequence[Optional[Words]]] = None,
    bias: Optional[Bias] = None,
    logprobs: int = 0,
    max_tokens: int = 16,
) -> List[List[Sampled]]:
    """Session.step() in several sessions of one model: the tokens of each, with drafts at most max_tokens.

    masks: for each session None or its mask, as Session.step() takes it. bias and logprobs hold for all. A
    token that ends a generation is returned and not read. After Cancelled, `native_code` is the index of the
    session that was cancelled. Raises as Session.step(), and InvalidArgument (more sessions than the plan's
    max_batch, a session twice, two models); then no session made a step.
    """
    all_of = list(sessions)
    if masks is not None and len(masks) != len(all_of):
        raise ValueError("masks has one entry for each session")
    cap = u32(max_tokens, "max_tokens")
    rows = (_abi.sharpi_batch_step * len(all_of))()
    keep: List[Any] = []
    outs: List[Tuple[Any, Any]] = []
    for i, session in enumerate(all_of):
        mask = None if masks is None else masks[i]
        p, probabilities, held = session._sample_params(mask, bias, logprobs, cap)
        tokens = (ctypes.c_int32 * cap)()
        keep += [p, held]
        outs.append((tokens, probabilities))
        rows[i].params = None if p is None else ctypes.addressof(p)
        rows[i].out_tokens, rows[i].cap = ctypes.addressof(tokens), cap

    def body(handles: List[int]) -> None:
        for i, handle in enumerate(handles):
            rows[i].session = handle
        call(lib.sharpi_step_batch, rows, ctypes.sizeof(_abi.sharpi_batch_step), len(all_of))

    _compute(all_of, body)
    del keep
    return [_sampled(tokens[: row.n_tokens], ps, logprobs) for row, (tokens, ps) in zip(rows, outs)]
