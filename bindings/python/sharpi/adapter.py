# SPDX-License-Identifier: MIT
"""Adapters (LoRA): loaded beside a model, chosen and scaled for each session."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Any, Iterable, List, Tuple, Union

from . import _abi
from ._handles import Closing
from ._library import call, lib, out_struct
from ._values import owned, path_bytes, read_rows
from .errors import InvalidArgument
from .types import AdapterSummary, MemoryRow

if TYPE_CHECKING:
    from .model import Model


class Adapter(Closing):
    """A loaded adapter; `model.adapter()` makes one. Sessions that have chosen it keep it alive.

    Raises NotFound, IOFailed, BadFormat, Mismatch (of another base), Unsupported (a model planned without
    adapters: `adapters` or `adapter_rank` of the plan), DoesNotFit, OutOfMemory.
    """

    model: "Model"
    _no_copy = "model.adapter() loads it again"

    def __init__(self, model: "Model", path: Union[str, os.PathLike[str]]) -> None:
        self.model = model
        self._handle = owned(model._handle, lib.sharpi_adapter_load, [path_bytes(path)],
                             lib.sharpi_adapter_destroy, "adapter", model._handle)

    @property
    def info(self) -> AdapterSummary:
        out = out_struct(_abi.sharpi_adapter_summary)
        with self._handle as adapter:
            call(lib.sharpi_adapter_info, adapter, ctypes.byref(out))
        return AdapterSummary.of(out)

    def memory(self) -> List[MemoryRow]:
        """What it holds, measured at the allocator."""
        with self._handle as adapter:
            rows = read_rows(lib.sharpi_adapter_memory, adapter, _abi.sharpi_memory_row)
        return [MemoryRow.of(row) for row in rows]


#: An adapter as it was trained, or (adapter, scale).
Use = Union[Adapter, Tuple[Adapter, float]]


def choose(session: int, uses: Iterable[Use]) -> None:
    """Tells the library which adapters a session has from now on."""
    chosen = [use if isinstance(use, tuple) else (use, 1.0) for use in uses]
    for adapter, _ in chosen:
        if not isinstance(adapter, Adapter):
            raise InvalidArgument(f"{adapter!r} is no Adapter")
    block: Any = (_abi.sharpi_adapter_use * len(chosen))()
    with contextlib.ExitStack() as used:
        for use, (adapter, scale) in zip(block, chosen):
            use.adapter, use.scale = used.enter_context(adapter._handle), float(scale)
        call(lib.sharpi_session_set_adapters, session, block, ctypes.sizeof(_abi.sharpi_adapter_use),
             len(chosen))
