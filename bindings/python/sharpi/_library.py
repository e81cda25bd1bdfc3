# SPDX-License-Identifier: MIT
"""Finds the shared library, opens it once, and calls it."""

from __future__ import annotations

import ctypes
import os
import pathlib
import sys
from typing import Any, Callable, Optional, Type, TypeVar

from . import _abi
from .errors import error_of

Struct = TypeVar("Struct", bound=ctypes.Structure)

_SONAME = "sharpi.dll" if sys.platform == "win32" else f"libsharpi.so.{_abi.SHARPI_VERSION_MAJOR}"
_HEADER_VERSION = _abi.SHARPI_VERSION_MAJOR * 10000 + _abi.SHARPI_VERSION_MINOR * 100


def _path() -> str:
    """SHARPI_LIBRARY names it; else the package's own; else the system's."""
    named = os.environ.get("SHARPI_LIBRARY")
    if named:
        return named
    own = pathlib.Path(__file__).with_name("lib") / _SONAME
    return str(own) if own.exists() else _SONAME


def _open() -> ctypes.CDLL:
    path = _path()
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"libsharpi cannot be loaded: {error}") from error
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError as error:
            raise ImportError(f"{path} has no {name}: it is older than this package") from error
        function.restype = result
        function.argtypes = arguments
    version = library.sharpi_version()
    if version // 10000 != _abi.SHARPI_VERSION_MAJOR or version < _HEADER_VERSION:
        raise ImportError(f"{path} has version {version}, this package needs {_HEADER_VERSION}")
    return library


#: The functions of sharpi.h. A call leaves the interpreter's lock to other threads.
lib: Any = _open()


def new_error() -> _abi.sharpi_error:
    error = _abi.sharpi_error()
    error.struct_size = ctypes.sizeof(error)
    return error


def raise_error(status: int, error: _abi.sharpi_error) -> None:
    raise error_of(status, error.native_code, error.text.decode("utf-8", "replace"))


def call(function: Callable[..., int], *arguments: object) -> None:
    """Calls a function whose last argument is a sharpi_error; its failure becomes an exception."""
    error = new_error()
    status = function(*arguments, ctypes.byref(error))
    if status != 0:
        raise_error(status, error)


def params(kind: Type[Struct], init: Callable[..., None]) -> Struct:
    """A parameter struct with the library's defaults in it."""
    struct = kind()
    init(ctypes.byref(struct), ctypes.sizeof(struct))
    return struct


def out_struct(kind: Type[Struct]) -> Struct:
    """A struct for the library to fill."""
    struct = kind()
    setattr(struct, "struct_size", ctypes.sizeof(struct))
    return struct


def build_info() -> str:
    """One line: version, compiler, backends built into the library."""
    text: bytes = lib.sharpi_build_info()
    return text.decode()


def version() -> int:
    """Version of the library: major * 10000 + minor * 100 + patch."""
    number: int = lib.sharpi_version()
    return number


def tier_name(tier: int) -> str:
    """Name of a tier in one word, as plans and reports write it: "cpu", "cuda", "vulkan"."""
    text: bytes = lib.sharpi_tier_name(tier)
    return text.decode()


def status_name(status: int) -> str:
    """Name of a status as in sharpi.h, such as "SHARPI_E_KV_FULL"."""
    text: Optional[bytes] = lib.sharpi_status_name(status)
    return text.decode() if text is not None else ""
