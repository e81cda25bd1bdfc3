# SPDX-License-Identifier: MIT
"""Contexts: threads, devices, the log."""

from __future__ import annotations

import ctypes
import threading
from typing import Any, Callable, List, Optional, Union

from . import _abi
from ._handles import Closing, InCallback, check_process_goes_on
from ._interrupt import after_fork
from ._library import call, lib, out_struct, params
from ._values import c_string, enum_of, owned, u32
from .errors import InvalidArgument
from .types import Device, Isa, LogLevel

#: A whole line of the log, maybe from a thread of the library; one at a time.
Log = Callable[[LogLevel, str], object]


class Context(Closing):
    """Owns the CPU tier's threads, the devices and the log. One a process is usual: `default_context()`.

    n_threads: of the CPU tier, caller included; 0 = one per CPU.
    isa: the best kernels that may be used: "auto", "scalar", "avx2", "avx512", "amx", "neon", "i8mm".
    log, log_level: gets lines of this level and the more important ones. It must not use this package's
        objects. An exception in it is reported as sys.unraisablehook does, and goes no further.
    read_env: session settings that are left at their defaults come from SHARPI_KV_DTYPE and
        SHARPI_SNAPKV_*, where the environment has them.
    alloc, free: large host blocks: alloc(bytes, alignment) -> address (0: none left), and
        free(address, bytes). Both or neither; any thread.

    Raises InvalidArgument, Unsupported (isa), OutOfMemory. Any thread.
    """

    def __init__(
        self,
        *,
        n_threads: int = 0,
        isa: Union[Isa, str] = Isa.AUTO,
        log: Optional[Log] = None,
        log_level: Union[LogLevel, str] = LogLevel.WARN,
        read_env: bool = False,
        alloc: Optional[Callable[[int, int], int]] = None,
        free: Optional[Callable[[int, int], object]] = None,
    ) -> None:
        check_process_goes_on()
        p = params(_abi.sharpi_context_params, lib.sharpi_context_params_init)
        p.n_threads = u32(n_threads, "n_threads")
        p.cpu_isa = enum_of(Isa, isa)
        p.log_level = enum_of(LogLevel, log_level)
        p.flags = _abi.SHARPI_CONTEXT_READ_ENV if read_env else 0
        if log is not None:
            p.log = _log_callback(log)
        if (alloc is None) != (free is None):
            raise InvalidArgument("alloc and free come together")
        if alloc is not None and free is not None:
            p.alloc, p.free = _allocator(alloc, free)
        # `p` holds the callbacks, and everything made from this context holds its handle.
        self._handle = owned(None, lib.sharpi_context_create, [ctypes.byref(p)],
                             lib.sharpi_context_destroy, "context", p)

    def device(self, index: int, *, measure: bool = False) -> Device:
        """A device; 0 is the host. measure: read its bandwidth now (tens of milliseconds).

        Raises NotFound; the text says why there is no GPU, if there is none. Any thread.
        """
        out = out_struct(_abi.sharpi_device)
        flags = _abi.SHARPI_DEVICE_MEASURE if measure else 0
        with self._handle as context:
            call(lib.sharpi_device_info, context, u32(index, "index"), flags, ctypes.byref(out))
        return Device.of(out)

    def find(self, device: str) -> int:
        """The index of the device that a text means: an index, an id, or a name or a part of one.

        Raises NotFound, InvalidArgument (the names of several devices have it). Any thread.
        """
        index = ctypes.c_uint32()
        with self._handle as context:
            call(lib.sharpi_device_find, context, c_string(device, "device"), ctypes.byref(index))
        return index.value

    def devices(self, *, measure: bool = False) -> List[Device]:
        """All devices, the host first."""
        first = self.device(0, measure=measure)
        return [first] + [self.device(i, measure=measure) for i in range(1, first.n_devices)]


def _log_callback(log: Log) -> Any:
    def line(_: object, level: int, text: Any, size: int) -> None:
        with InCallback():
            log(LogLevel(level), ctypes.string_at(text, size).decode("utf-8", "replace"))

    return _abi.sharpi_log_fn(line)


def _allocator(alloc: Callable[[int, int], int], free: Callable[[int, int], object]) -> Any:
    def take(_: object, size: int, alignment: int) -> Optional[int]:
        with InCallback():
            try:
                return alloc(size, alignment) or None
            except Exception:  # no memory is what the library can be told
                return None

    def give(_: object, address: Optional[int], size: int) -> None:
        with InCallback():
            free(address or 0, size)

    return _abi.sharpi_alloc_fn(take), _abi.sharpi_free_fn(give)


_default: Optional[Context] = None
_default_lock = threading.RLock()  # a signal handler may ask, too


def default_context() -> Context:
    """The process's own context, made with all defaults when it is first asked for."""
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Context()
        return _default


def _after_fork() -> None:
    global _default_lock
    _default_lock = threading.RLock()


after_fork(_after_fork)
