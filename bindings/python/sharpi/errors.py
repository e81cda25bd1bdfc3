# SPDX-License-Identifier: MIT
"""Exceptions: one class for each status of sharpi.h."""

from __future__ import annotations

from typing import Dict, Optional, Type

from .types import KVFullReason, Status


class Error(Exception):
    """A call of the library failed.

    `status` says how, `native_code` is errno or a CUDA code or what the status' entry in sharpi.h says
    (0: none), `text` is one sentence.
    """

    status = Status.INTERNAL

    def __init__(self, text: str, native_code: int = 0, status: Optional[Status] = None) -> None:
        super().__init__(text)
        self.text = text
        self.native_code = native_code
        if status is not None:
            self.status = status

    def __str__(self) -> str:
        return f"{self.text} ({self.status.name})"


class InvalidArgument(Error, ValueError):
    """An argument is out of range or contradictory."""

    status = Status.INVALID_ARGUMENT


class OutOfMemory(Error, MemoryError):
    """Host or device memory could not be had."""

    status = Status.OUT_OF_MEMORY


class Unsupported(Error):
    """Valid, but this build, model or device cannot do it."""

    status = Status.UNSUPPORTED


class NotFound(Error):
    """No such file, device, key, token or checkpoint."""

    status = Status.NOT_FOUND


class IOFailed(Error):
    """The operating system, or the function of a caller, refused to read or write."""

    status = Status.IO


class BadFormat(Error):
    """A file or a saved session is malformed."""

    status = Status.FORMAT


class Mismatch(Error):
    """Well formed, but of another model, plan or version."""

    status = Status.MISMATCH


class Cancelled(Error):
    """`Session.cancel()` or a progress callback stopped the call."""

    status = Status.CANCELLED


class KVFull(Error):
    """The session is full; nothing changed. `reason` says what is used up."""

    status = Status.KV_FULL

    @property
    def reason(self) -> KVFullReason:
        return KVFullReason(self.native_code)


class DoesNotFit(Error):
    """A budget is too small; the text has the bytes."""

    status = Status.DOES_NOT_FIT


class BufferTooSmall(Error):
    """A caller's buffer is too small."""

    status = Status.BUFFER_TOO_SMALL


class BadState(Error):
    """Not possible in the object's present state."""

    status = Status.STATE


class Closed(BadState):
    """The object was closed, or was made before this process was forked."""


class Busy(Error):
    """Another call is using the object."""

    status = Status.BUSY


class DeviceError(Error):
    """A call of a device failed; `native_code` says which."""

    status = Status.DEVICE


class DeviceLost(Error):
    """A device is gone for good; its objects can only be closed."""

    status = Status.DEVICE_LOST


class InternalError(Error):
    """A bug of the library, caught."""

    status = Status.INTERNAL


_classes: Dict[int, Type[Error]] = {
    int(kind.status): kind
    for kind in (
        InvalidArgument, OutOfMemory, Unsupported, NotFound, IOFailed, BadFormat, Mismatch, Cancelled,
        KVFull, DoesNotFit, BufferTooSmall, BadState, Busy, DeviceError, DeviceLost, InternalError,
    )
}


def error_of(status: int, native_code: int, text: str) -> Error:
    """The exception of a status; of one that only a newer library knows, `Error` itself."""
    kind = _classes.get(status)
    if kind is None:
        return Error(text, native_code, Status(status))
    return kind(text, native_code)
