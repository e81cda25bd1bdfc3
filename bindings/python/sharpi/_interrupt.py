# SPDX-License-Identifier: MIT
"""Long calls that Ctrl-C stops.

Python runs signal handlers in the main thread only, and between two of its own instructions, not
inside a call of C. So a long call of the main thread is made by a helper thread, while the main thread
waits in a way that signals end. What a handler raises (KeyboardInterrupt) stops the call, and is
raised when it has returned. Other threads call directly: no signal reaches them.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import weakref
from typing import Any, Callable, List, Optional, TypeVar

T = TypeVar("T")


class _Job:
    def __init__(self, body: Callable[[], object]) -> None:
        self.body: Optional[Callable[[], object]] = body
        self.claim = threading.Lock()  # whoever takes it first decides whether the job runs
        self.done = threading.Lock()
        self.done.acquire()
        self.finished = False
        self.result: object = None
        self.error: Optional[BaseException] = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            self.finished = True
            return
        body, self.body = self.body, None
        assert body is not None
        try:
            self.result = body()
        except BaseException as error:  # handed to the thread that asked
            self.error = error
        del body  # whoever asked finds that nothing holds what it was about any more
        self.finished = True
        self.done.release()


class _Helpers:
    """Threads that run one job after the other; they end with the process. Usually there is one: a
    signal handler that calls the library while the main thread waits takes another."""

    def __init__(self) -> None:
        self.jobs: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._threads: List[int] = []  # each has put itself down
        self._open: "List[weakref.ref[_Job]]" = []  # jobs that are not done, if nobody lost them

    def put(self, job: _Job) -> None:
        left = [one for one in self._open if not getattr(one(), "finished", True)]
        self._open[:] = [*left, weakref.ref(job)]
        self.start(len(self._open))
        self.jobs.put(job)

    def start(self, n: int) -> None:
        """Until there are n."""
        if len(self._threads) < n:
            threading.Thread(target=self._work, name="sharpi", daemon=True).start()

    def _work(self) -> None:
        self._threads.append(threading.get_ident())
        while True:
            job = self.jobs.get()
            job.run()
            del job


_helpers = _Helpers()


def after_fork(body: Callable[[], None]) -> None:
    """Calls body in every process that this one forks. Windows has no forks."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=body)


def _after_fork() -> None:
    global _helpers
    _helpers = _Helpers()


after_fork(_after_fork)


def hand_over() -> Callable[[Any], None]:
    """A function, of C alone, that lets a helper call its argument's run()."""
    _helpers.start(1)
    return _helpers.jobs.put


def _wait(lock: threading.Lock) -> None:
    """Until the lock is given. On Windows a signal's handler runs between two waits, and ends none."""
    if sys.platform == "win32":
        while not lock.acquire(timeout=0.05):
            pass
    else:
        lock.acquire()


def _wait_out(job: _Job, stop: Callable[[], None]) -> None:
    """Waits until a running job is over, whatever signals come."""
    while not job.finished:
        try:
            stop()
            _wait(job.done)
        except BaseException:
            pass  # one more signal: the first one's exception goes on when the call has ended


def shielded(body: Callable[[], T]) -> T:
    """body(), which makes an object: an interrupt waits for its end, and nothing of it is lost."""
    return run(body, lambda: None, lambda: None)


def run(body: Callable[[], T], stop: Callable[[], None], stopped: Callable[[], None]) -> T:
    """body(), so that a signal's exception ends it early.

    stop() asks the running call to end; stopped() is called when it has, before the exception goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        return body()
    job = _Job(body)
    try:
        _helpers.put(job)
        _wait(job.done)
    except BaseException:
        if job.claim.acquire(blocking=False):
            job.finished = True
        else:
            _wait_out(job, stop)
            stopped()
        raise
    error, job.error = job.error, None  # its traceback holds the job: no cycle
    if error is not None:
        try:
            raise error
        finally:
            del error
    result, job.result = job.result, None  # the helper may hold the job a moment longer
    return result  # type: ignore[return-value]
