# SPDX-License-Identifier: MIT
"""Python functions that C calls. Nothing may be raised through C: an exception waits in the callback
until the call that it stopped has returned."""

from __future__ import annotations

import ctypes
import time
from typing import Any, Callable, Optional

from . import _abi
from ._handles import InCallback
from .types import Phase

#: Progress of a long call: phase, done, total. It may return False to cancel, or raise. It runs in the
#: thread that computes, which is a helper where the main thread made the call.
Progress = Callable[[Phase, int, int], Optional[bool]]


class Paced:
    """Progress of a prompt for somebody who looks: ten times a second at most, and at the end. Parts
    that are read one after the other count as one: `ahead` tokens are still to come behind this one."""

    _PAUSE = 0.1  # seconds

    def __init__(self, progress: Progress, now: Callable[[], float] = time.monotonic) -> None:
        self._progress, self._now = progress, now
        self._next = now()
        self._before = 0  # tokens of the parts that were read

    def part(self, ahead: int = 0) -> Progress:
        """What a call of the next part is told by."""
        before = self._before

        def told(phase: Phase, done: int, total: int) -> Optional[bool]:
            self._before = before + total
            if self._now() < self._next and (done < total or ahead):
                return None
            answer = self._progress(phase, before + done, before + total + ahead)
            self._next = self._now() + self._PAUSE
            return answer

        return told


class Held:
    """An exception of a callback, to be raised after the call."""

    error: Optional[BaseException] = None

    def reraise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error


class ProgressCallback(Held):
    """Also where nobody asked for progress: `cancelled` stops a call that has no other way."""

    def __init__(self, progress: Optional[Progress]) -> None:
        self.cancelled = False
        self._progress = progress
        self.function: Any = _abi.sharpi_progress_fn(self._call)

    def _call(self, _: object, phase: int, done: int, total: int) -> int:
        with InCallback():
            try:
                if self.cancelled:
                    return 1
                if self._progress is None:
                    return 0
                return 1 if self._progress(Phase(phase), done, total) is False else 0
            except BaseException as error:
                self.error = error
                return 1


class MeanwhileCallback(Held):
    def __init__(self, meanwhile: Callable[[int], object]) -> None:
        self._meanwhile = meanwhile
        self.function: Any = _abi.sharpi_meanwhile_fn(self._call)

    def _call(self, _: object, token: int) -> None:
        with InCallback():
            try:
                self._meanwhile(token)
            except BaseException as error:
                self.error = error


class WriteCallback(Held):
    """Pieces of a saved session to a function."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self.function: Any = _abi.sharpi_write_fn(self._call)

    def _call(self, _: object, data: Any, size: int) -> int:
        with InCallback():
            try:
                self._write(ctypes.string_at(data, size))
                return 0
            except BaseException as error:
                self.error = error
                return getattr(error, "errno", None) or 1


class ReadCallback(Held):
    """Pieces of a saved session from a function of offset and size."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read = read
        self.function: Any = _abi.sharpi_read_fn(self._call)

    def _call(self, _: object, offset: int, out: Any, size: int) -> int:
        with InCallback():
            try:
                data = self._read(offset, size)
                if len(data) != size:
                    raise EOFError(f"{len(data)} of {size} bytes at {offset}")
                ctypes.memmove(out, data, size)
                return 0
            except BaseException as error:
                self.error = error
                return getattr(error, "errno", None) or 1
