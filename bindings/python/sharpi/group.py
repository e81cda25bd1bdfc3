# SPDX-License-Identifier: MIT
"""Groups: one model over several processes, which make the same calls in the same order."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable, Optional, Union

from . import _abi
from ._callbacks import Held
from ._handles import Closing, InCallback
from ._library import call, lib, out_struct, params
from ._values import owned, path_bytes
from .types import GroupSummary

#: Gives bytes to a rank, within so many seconds; returns when that rank has taken them.
Send = Callable[[int, bytes, float], object]
#: Takes so many bytes from a rank, within so many seconds.
Receive = Callable[[int, int, float], bytes]


class _Transport(Held):
    """The host's functions for C. What they raise ends the call, and with it the group."""

    def __init__(self, send: Send, receive: Receive, abandon: Optional[Callable[[], object]]) -> None:
        self._send, self._receive, self._abandon = send, receive, abandon
        self.functions = (_abi.sharpi_send_fn(self._sent), _abi.sharpi_receive_fn(self._received),
                          _abi.sharpi_abandon_fn(self._abandoned))

    def _sent(self, _: object, to: int, data: Any, size: int, timeout_ms: int) -> int:
        with InCallback():
            try:
                self._send(to, ctypes.string_at(data, size), timeout_ms / 1000)
                return 0
            except BaseException as error:
                return getattr(error, "errno", None) or 1

    def _received(self, _: object, sender: int, out: Any, size: int, timeout_ms: int) -> int:
        with InCallback():
            try:
                data = self._receive(sender, size, timeout_ms / 1000)
                if len(data) != size:
                    return 1
                ctypes.memmove(out, data, size)
                return 0
            except BaseException as error:
                return getattr(error, "errno", None) or 1

    def _abandoned(self, _: object) -> None:
        with InCallback():
            try:
                if self._abandon is not None:
                    self._abandon()
            except BaseException:
                pass  # the group is lost whatever it says


class Group(Closing):
    """This process's place in a group; `Model(path, group=...)` then has its share of the layers.

    Either nccl_comm, the address of an ncclComm_t (nccl_library: the library that made it), or the
    functions send(rank, data, seconds) and receive(rank, size, seconds), and abandon(), which is called once
    after a failure. batch_parts: in how many parts a batch goes down the ranks, 0 = by what they read.
    timeout and load_timeout: seconds that a call, or a model's loading, waits for another rank.

    Raises InvalidArgument, Unsupported (NCCL cannot be opened), Mismatch (ranks do not agree), DeviceLost.
    """

    _no_copy = "a process is in a group once"

    def __init__(
        self,
        rank: int,
        n_ranks: int,
        *,
        send: Optional[Send] = None,
        receive: Optional[Receive] = None,
        abandon: Optional[Callable[[], object]] = None,
        nccl_comm: Optional[int] = None,
        nccl_library: Union[str, "os.PathLike[str]", None] = None,
        batch_parts: int = 0,
        timeout: float = 60.0,
        load_timeout: float = 600.0,
    ) -> None:
        p = params(_abi.sharpi_group_params, lib.sharpi_group_params_init)
        p.rank, p.n_ranks, p.batch_parts = rank, n_ranks, batch_parts
        p.timeout_ms, p.load_timeout_ms = int(timeout * 1000), int(load_timeout * 1000)
        p.nccl_comm = nccl_comm
        if nccl_library is not None:
            p.nccl_library = path_bytes(nccl_library)
        transport = None
        if send is not None and receive is not None:
            transport = _Transport(send, receive, abandon)
            p.send, p.receive, p.abandon = transport.functions
        self._handle = owned(None, lib.sharpi_group_create, [ctypes.byref(p)], lib.sharpi_group_destroy,
                             "group", transport)

    @property
    def info(self) -> GroupSummary:
        out = out_struct(_abi.sharpi_group_summary)
        with self._handle as group:
            call(lib.sharpi_group_info, group, ctypes.byref(out))
        return GroupSummary.of(out)
