# SPDX-License-Identifier: MIT
"""Calls of a session for programs with an event loop: a thread makes them, and the loop goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Callable, TypeVar

from .errors import Error

if TYPE_CHECKING:
    from .session import Session

T = TypeVar("T")


async def in_thread(session: "Session", body: Callable[[], T]) -> T:
    """body(), which computes on the session. A task that is cancelled stops it within a token, and is
    cancelled when it has ended: the session can be used again."""
    future = asyncio.get_running_loop().run_in_executor(None, body)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            session.cancel()
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                continue  # once more: the call has to end first
            except Error:
                pass
        session.resume()
        raise
