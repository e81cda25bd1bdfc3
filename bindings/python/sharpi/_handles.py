# SPDX-License-Identifier: MIT
"""The life of the library's objects.

A handle owns one reference. It may be closed in any order with others, by any thread, also while a
call on it runs elsewhere: the library's object goes when the last such call has returned. What is
forgotten is closed by the garbage collector, what is left at the end of the process by `atexit`. A
child of `os.fork()` has none of the library's threads: handles from before are unusable there, and
are never given back.

A signal handler may raise between any two instructions of the main thread; in a destructor Python
even drops what it raised. So a handle has no destructor. It has a token, and when that goes, closed,
forgotten or lost by an interrupt, the interpreter itself hands what is owed to the library to a helper
thread, where no signal comes.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from types import TracebackType
from typing import Any, Callable, Dict, NoReturn, Optional, Tuple, Type, TypeVar

from . import _interrupt
from .errors import Closed

Self = TypeVar("Self", bound="Closing")

_generation = 0  # counts the forks that led to this process
_callbacks = threading.local()  # .depth: how many of our callbacks this thread is in
#: What is owed to the library; a weak reference that nobody holds would say nothing.
_debts: "Dict[int, _Debt]" = {}
_paying = threading.RLock()


class _Token:
    """An object of the library goes when nothing refers to its token."""

    __slots__ = ("__weakref__",)


class _Debt(weakref.ref):  # type: ignore[type-arg]
    """A reference to give back when its token goes."""

    __slots__ = ("_pay", "_keep", "_generation", "handle")

    handle: "weakref.ref[Handle]"
    _pay: Any
    _keep: Tuple[object, ...]
    _generation: int

    @classmethod
    def of(cls, handle: "Handle", destroy: Callable[[int], None]) -> _Token:
        """The token of a new debt. Never in the main thread."""
        token = _Token()
        debt = cls(token, _interrupt.hand_over())
        debt._pay = map(destroy, (handle._pointer,))  # once, however often it is asked
        debt._keep = handle._keep  # callbacks of a context may be called until then
        debt._generation = _generation
        debt.handle = weakref.ref(handle)
        _debts[id(debt)] = debt
        return token

    def run(self) -> None:
        with _paying:
            if self._generation == _generation:
                next(self._pay, None)
            _debts.pop(id(self), None)
            self._keep = ()  # whoever still holds the debt does not hold its parents


def settle() -> None:
    """Waits until the library has got back what it is owed. In a callback, which may not call the
    library, nothing happens: the helper thread goes on."""
    if getattr(_callbacks, "depth", 0) == 0:
        # Parents were made before what is made of them, and their turn comes when that has gone.
        for debt in reversed(list(_debts.values())):
            if debt() is None:
                debt.run()


class InCallback:
    """Around the body of a callback. A garbage collection in it must not call the library back."""

    def __enter__(self) -> None:
        _callbacks.depth = getattr(_callbacks, "depth", 0) + 1

    def __exit__(self, *_: object) -> None:
        _callbacks.depth -= 1


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
        self._what = what
        #: What must outlive the object: callbacks of its context, which parents hold too.
        self._keep = keep
        # A signal handler may come between any two lines and use or close the same handle.
        self._lock = threading.RLock()
        self._uses = 0
        self._closed = False
        self._generation = _generation
        self._token = _Debt.of(self, destroy) if self._pointer else None

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
            is_over = self._closed and self._uses == 0
            if is_over:
                self._token = None
        if is_over:
            settle()

    @property
    def closed(self) -> bool:
        return self._closed or self._generation != _generation

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._uses == 0:
                self._token = None
        settle()

    @property
    def in_use(self) -> bool:
        return self._uses != 0 and self._generation == _generation

    def leave_process(self) -> None:
        """close() at the end of the process: what another thread still computes is told to stop."""
        with self._lock:
            if self._uses and self._cancel and self._generation == _generation:
                self._cancel(self._pointer)
        self.close()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"the handle of a {self._what} cannot be copied or pickled")


class Closing:
    """An object with a handle: `close()`, or a `with` statement."""

    _handle: Handle

    def close(self) -> None:
        """Gives the object up; a second time does nothing. Every later use raises `Closed`."""
        self._handle.close()

    @property
    def closed(self) -> bool:
        return self._handle.closed

    #: What to do instead of copying.
    _no_copy = "it stands for one object of the library"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled: {self._no_copy}")

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
    global _paying
    _generation += 1
    _debts.clear()
    _paying = threading.RLock()


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
    left = [handle for handle in [debt.handle() for debt in list(_debts.values())] if handle]
    for handle in left:
        handle.leave_process()
    until = time.monotonic() + _PATIENCE
    while any(handle.in_use for handle in left) and time.monotonic() < until:
        time.sleep(0.001)
    settle()


_interrupt.after_fork(_after_fork)
atexit.register(_at_exit)
