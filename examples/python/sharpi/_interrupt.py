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
import threading
from typing import Callable, List, Optional, TypeVar

T = TypeVar("T")


class _Job:
    def __init__(self, body: Callable[[], object]) -> None:
        self.body = body
        self.claim = threading.Lock()  # whoever takes it first decides whether the job runs
        self.done = threading.Lock()
        self.done.acquire()
        self.finished = False
        self.result: object = None
        self.error: Optional[BaseException] = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            self.result = self.body()
        except BaseException as error:  # handed to the thread that asked
            self.error = error
        self.finished = True
        self.done.release()


class _Helper:
    """A thread that runs one job after the other. It ends with the process."""

    def __init__(self) -> None:
        self.jobs: "queue.SimpleQueue[_Job]" = queue.SimpleQueue()
        threading.Thread(target=self._loop, name="sharpi", daemon=True).start()

    def _loop(self) -> None:
        while True:
            self.jobs.get().run()


# Usually one: a signal handler that calls the library while the main thread waits takes another.
_idle: List[_Helper] = []
os.register_at_fork(after_in_child=_idle.clear)


def _wait_out(job: _Job, stop: Callable[[], None]) -> None:
    """Waits until a running job is over, whatever signals come."""
    while not job.finished:
        try:
            stop()
            job.done.acquire()
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
    try:
        helper = _idle.pop()
    except IndexError:
        helper = _Helper()
    job = _Job(body)
    try:
        helper.jobs.put(job)
        job.done.acquire()
    except BaseException:
        if not job.claim.acquire(blocking=False):
            _wait_out(job, stop)
            stopped()
        _idle.append(helper)
        raise
    _idle.append(helper)
    error, job.error = job.error, None  # its traceback holds the job: no cycle
    if error is not None:
        try:
            raise error
        finally:
            del error
    result, job.result = job.result, None  # the helper may hold the job a moment longer
    return result  # type: ignore[return-value]
