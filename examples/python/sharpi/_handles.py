# SPDX-License-Identifier: MIT
"""The life of the library's objects.

A handle owns one reference. It may be closed in any order with others, by any thread, also while a
call on it runs elsewhere: the library's object goes when the last such call has returned. What is
forgotten is closed by the garbage collector, what is left at the end of the process by `atexit`. A
child of `os.fork()` has none of the library's threads: handles from before are unusable there, and
are never given back.
"""

from __future__ import annotations

import atexit
import collections
import os
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Deque, Optional, Tuple, Type, TypeVar

from .errors import Closed

Self = TypeVar("Self", bound="Closing")

_generation = 0  # counts the forks that led to this process
_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_callbacks = threading.local()  # .depth: how many of our callbacks this thread is in
_waiting: Deque[Tuple[Callable[[int], None], int]] = collections.deque()


class InCallback:
    """Around the body of a callback. A garbage collection in it must not call the library back."""

    def __enter__(self) -> None:
        _callbacks.depth = getattr(_callbacks, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        _callbacks.depth -= 1


def _destroy(function: Callable[[int], None], pointer: int) -> None:
    _waiting.append((function, pointer))
    if getattr(_callbacks, "depth", 0) == 0:
        destroy_waiting()


def destroy_waiting() -> None:
    """Destroys what was let go in callbacks."""
    while _waiting:
        try:
            function, pointer = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        function(pointer)


class Handle:
    """One reference to an object of the library; `with handle as pointer` is a use of it."""

    def __init__(
        self,
        pointer: Optional[int],
        destroy: Callable[[int], None],
        what: str,
        *keep: object,
        cancel: Optional[Callable[[int], None]] = None,
    ) -> None:
        self._pointer = pointer or 0
        self._cancel = cancel  # asks a running call to end
        self._function = destroy
        self._what = what
        #: What must outlive the object: callbacks of its context, which parents hold too.
        self._keep = keep
        # A signal handler may come between any two lines and use or close the same handle.
        self._lock = threading.RLock()
        self._uses = 0
        self._closed = False
        self._generation = _generation
        _handles.add(self)

    def __enter__(self) -> int:
        with self._lock:
            self._uses += 1  # first: who closes from now on leaves the object to this use
            if not self._closed and self._generation == _generation:
                return self._pointer
        self._leave()
        if self._generation != _generation:
            raise Closed(f"this {self._what} was made before the process was forked")
        raise Closed(f"this {self._what} is closed")

    def __exit__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._uses -= 1
            pointer = self._take() if self._closed and self._uses == 0 else 0
        self._give_back(pointer)
        if _waiting and getattr(_callbacks, "depth", 0) == 0:
            destroy_waiting()

    def _take(self) -> int:
        pointer, self._pointer = self._pointer, 0
        return pointer

    def _give_back(self, pointer: int) -> None:
        if pointer and self._generation == _generation:
            _destroy(self._function, pointer)

    @property
    def closed(self) -> bool:
        return self._closed or self._generation != _generation

    def close(self) -> None:
        with self._lock:
            self._closed = True
            pointer = self._take() if self._uses == 0 else 0
        self._give_back(pointer)

    @property
    def in_use(self) -> bool:
        return self._uses != 0 and self._generation == _generation

    def leave_process(self) -> None:
        """close() at the end of the process: what another thread still computes is told to stop."""
        with self._lock:
            if self._uses and self._cancel and self._generation == _generation:
                self._cancel(self._pointer)
        self.close()

    def __del__(self) -> None:
        # Nobody can be in a call on it any more, even where an interrupt lost the count of uses.
        self._closed = True
        self._give_back(self._take())


class Closing:
    """An object with a handle: `close()`, or a `with` statement."""

    _handle: Handle

    def close(self) -> None:
        """Gives the object up; a second time does nothing. Every later use raises `Closed`."""
        self._handle.close()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    def __enter__(self: Self) -> Self:
        with self._handle:
            return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()


def _after_fork() -> None:
    global _generation
    _generation += 1
    _waiting.clear()


#: Seconds that the end of the process waits for calls of other threads, which were told to stop.
_PATIENCE = 10.0


_ending = False


def check_process_goes_on() -> None:
    """Behind the end of the interpreter nobody would wait for a call that is begun now."""
    if _ending:
        raise Closed("the process is ending")


def _at_exit() -> None:
    """Threads of contexts end before the interpreter does: a log callback needs it. So do calls of
    other threads, whose callbacks need it too: a thread that finds the interpreter gone is ended where
    it stands, and with frames of the library below it that ends the process by an abort."""
    global _ending
    _ending = True
    left: Any = list(_handles)
    for handle in left:
        handle.leave_process()
    until = time.monotonic() + _PATIENCE
    while any(handle.in_use for handle in left) and time.monotonic() < until:
        time.sleep(0.001)
    destroy_waiting()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
