# SPDX-License-Identifier: MIT
"""Python values to C ones and back: every number is checked for its width, no text is cut."""

from __future__ import annotations

import array
import ctypes
import os
from enum import IntFlag
from typing import (TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type,
                    Union)

from . import _abi
from ._handles import Handle, settle
from ._interrupt import shielded
from ._library import call, lib, new_error, params, raise_error
from .errors import InvalidArgument
from .types import OPTION_ENUMS, _Number

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer
else:
    Buffer = Any

#: Token ids: a list, a tuple, array.array("i"), a numpy array of 32-bit integers, ...
Tokens = Union[Sequence[int], Buffer]
#: 32-bit words of a mask, in any of these forms or as bytes.
Words = Union[Sequence[int], Buffer]

_SPELLINGS = {"FP32": "F32", "Q8": "Q8_0", "TQ4": "Q4"}
_FLOATS = (ctypes.c_float, ctypes.c_double)
_BUDGETS = ("budget", "prompt_budget")
_PATHS = ("draft_path",)


def number(value: object, kind: Any, name: str) -> int:
    """`value` as a C integer of this kind; ctypes alone would cut off what does not fit."""
    try:
        whole = int(value)  # type: ignore[call-overload]
        exact = whole == value
    except (TypeError, ValueError):
        exact = False
    if not exact:
        raise InvalidArgument(f"{name} is a whole number, not {value!r}")
    result: int = kind(whole).value
    if result != whole:
        raise InvalidArgument(f"{name} is out of range: {whole}")
    return result


def u32(value: object, name: str) -> int:
    return number(value, ctypes.c_uint32, name)


def i32(value: object, name: str) -> int:
    return number(value, ctypes.c_int32, name)


def enum_of(kind: "Union[Type[_Number], Type[IntFlag]]", value: object) -> int:
    """A member, its number, or its name in any case ("q8_0", "bf16", "cuda"); of flags several names,
    with commas between them ("ngram,mtp")."""
    if isinstance(value, str) and "," in value and issubclass(kind, IntFlag):
        return sum({enum_of(kind, one.strip()) for one in value.split(",")})
    if isinstance(value, str):
        name = value.upper()
        member = kind.__members__.get(_SPELLINGS.get(name, name))
        if member is None:
            raise InvalidArgument(f"{value!r} is none of {', '.join(kind.__members__).lower()}")
        return int(member)
    return u32(value, kind.__name__)


def int_array(values: Tokens, code: str, name: str) -> "Tuple[Any, int]":
    """(address of 32-bit numbers that stays valid while the result lives, how many)."""
    if isinstance(values, (str, bytes, bytearray)) and code == "i":
        raise InvalidArgument(f"{name} is a sequence of whole numbers")
    if not isinstance(values, (list, tuple)):
        view = _same_numbers(values, code)
        if view is not None:
            return view
    try:
        numbers = array.array(code, values)  # type: ignore[arg-type]
    except OverflowError:
        raise InvalidArgument(f"{name}: a number does not have 32 bits") from None
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is a sequence of whole numbers") from None
    kind = ctypes.c_int32 if code == "i" else ctypes.c_uint32
    return (kind * len(numbers)).from_buffer(numbers), len(numbers)


def _same_numbers(values: Any, code: str) -> "Optional[Tuple[Any, int]]":
    """A contiguous buffer of 32-bit integers (of any sign where masks are meant) as it is."""
    try:
        view = memoryview(values)
    except TypeError:
        return None
    if view.itemsize != 4 or view.format not in ("i", "I", "l", "L") or not view.c_contiguous:
        return None
    if code == "i" and view.format not in ("i", "l"):
        return None
    kind = ctypes.c_int32 if code == "i" else ctypes.c_uint32
    if view.readonly:
        return (kind * (view.nbytes // 4)).from_buffer_copy(view), view.nbytes // 4
    return (kind * (view.nbytes // 4)).from_buffer(view), view.nbytes // 4


def fill(struct: Any, options: Mapping[str, object], keep: List[object]) -> None:
    """Puts options into a parameter struct; what the struct then points to goes into `keep`."""
    kinds: Dict[str, Any] = {field[0]: field[1] for field in struct._fields_}
    for name, value in options.items():
        if value is None:
            continue
        if name in ("probe", "keep"):
            block, n = int_array(value, "i" if name == "probe" else "I", name)  # type: ignore[arg-type]
            keep.append(block)
            setattr(struct, name, ctypes.addressof(block))
            setattr(struct, "n_" + name, n)
        elif name in _BUDGETS and value == "auto":
            setattr(struct, name, _abi.SHARPI_BUDGET_AUTO)
        elif name in _PATHS:
            setattr(struct, name, path_bytes(value))  # type: ignore[arg-type]
        elif name in OPTION_ENUMS:
            setattr(struct, name, enum_of(OPTION_ENUMS[name], value))
        elif kinds[name] in _FLOATS:
            setattr(struct, name, float(value))  # type: ignore[arg-type]
        else:
            setattr(struct, name, number(value, kinds[name], name))


def split_options(
    options: Mapping[str, object], *structs: Any
) -> "Tuple[Dict[str, object], ...]":
    """The options of each struct; `kv` is short for k_dtype and v_dtype."""
    known = [{field[0] for field in struct._fields_} - {"struct_size"} for struct in structs]
    parts: Tuple[Dict[str, object], ...] = tuple({} for _ in structs)
    for name, value in options.items():
        for names, part in zip(known, parts):
            if name in names:
                part[name] = value
                break
        else:
            raise TypeError(f"there is no option {name!r}")
    return parts


def session_params(
    options: Mapping[str, object], kv: object, keep: List[object]
) -> "_abi.sharpi_session_params":
    struct = params(_abi.sharpi_session_params, lib.sharpi_session_params_init)
    (own,) = split_options(options, _abi.sharpi_session_params)
    if kv is not None:
        own = {"k_dtype": kv, "v_dtype": kv, **own}
    fill(struct, own, keep)
    return struct


def path_bytes(path: "Union[str, os.PathLike[str]]") -> bytes:
    return c_string(os.fsencode(path), "path")


def c_string(text: Union[str, bytes], name: str) -> bytes:
    """For arguments that end at a NUL."""
    data = utf8(text)
    if b"\0" in data:
        raise InvalidArgument(f"{name} has a NUL in it")
    return data


def utf8(text: Union[str, bytes]) -> bytes:
    """Lone surrogates, as os.fsdecode() makes them of other bytes, become those bytes again."""
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)


def _sized(
    function: Callable[..., int], arguments: Tuple[object, ...], kind: Any, length: Any, cap: int
) -> Any:
    """An array of `kind` that a call filled: (..., out, cap, out_length, err), called again with as much
    room as it asks for."""
    while True:
        block, error = (kind * cap)(), new_error()
        status = function(*arguments, block, cap, ctypes.byref(length), ctypes.byref(error))
        if status == 0:
            return block
        if status != _abi.SHARPI_E_BUFFER_TOO_SMALL or length.value <= cap:
            raise_error(status, error)
        cap = length.value


def read_bytes(function: Callable[..., int], *arguments: object, cap: int = 256) -> bytes:
    """A call that writes text: (..., out, cap, out_len, err)."""
    length = ctypes.c_size_t()
    block = _sized(function, arguments, ctypes.c_char, length, cap)
    return ctypes.string_at(block, length.value)


def read_numbers(
    function: Callable[..., int], *arguments: object, kind: Any = ctypes.c_int32, cap: int = 64
) -> List[int]:
    """A call that writes numbers: (..., out, cap, out_n, err)."""
    count = ctypes.c_uint32()
    block = _sized(function, arguments, kind, count, cap)
    return list(block[: count.value])


def read_rows(function: Callable[..., int], pointer: int, kind: Any) -> List[Any]:
    """A call that writes structs of a size that the caller says: (object, rows, size, cap, n, err)."""
    count, size = ctypes.c_uint32(), ctypes.sizeof(kind)

    def rows(pointer: object, block: object, cap: int, *out: object) -> int:
        return function(pointer, block, size, cap, *out)

    block = _sized(rows, (pointer,), kind, count, 64)
    return list(block[: count.value])


def create(function: Callable[..., int], *arguments: object) -> Optional[int]:
    """A call that makes an object: (..., out, err). What was forgotten before leaves it its room."""
    settle()
    pointer = ctypes.c_void_p()
    call(function, *arguments, ctypes.byref(pointer))
    return pointer.value


def owned(
    parent: Optional[Handle],
    function: Callable[..., int],
    arguments: Sequence[object],
    destroy: Callable[[int], None],
    what: str,
    *keep: object,
    cancel: Optional[Callable[[int], None]] = None,
) -> Handle:
    """The handle of a new object, made of `parent` where there is one; no interrupt loses it."""

    def make() -> Handle:
        if parent is None:
            pointer = create(function, *arguments)
        else:
            with parent as owner:
                pointer = create(function, owner, *arguments)
        return Handle(pointer, destroy, what, parent, *keep, cancel=cancel)

    return shielded(make)
