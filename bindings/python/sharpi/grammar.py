# SPDX-License-Identifier: MIT
"""Grammars: what generated text has to match, and the tokens that may come next."""

from __future__ import annotations

import ctypes
import json
import threading
from typing import Any, List, Mapping, Optional, Sequence, Union

from . import _abi
from ._handles import Closing, Handle
from ._library import call, lib, params
from ._values import c_string, owned, read_bytes, utf8
from .errors import Busy, Mismatch, NotFound
from .text import TextModel


def check_schema(schema: Union[Mapping[str, Any], bool, str], text: Union[str, bytes]) -> Optional[str]:
    """None if a JSON text is valid for a schema (a mapping, or JSON text; `bool`, too), else what is wrong.

    All of JSON Schema 2020-12 within one document, also what no grammar holds while a text is written.
    Raises InvalidArgument (the schema is malformed), Unsupported, DoesNotFit. Any thread.
    """
    rules = utf8(schema) if isinstance(schema, str) else json.dumps(schema).encode()
    data = utf8(text)
    try:
        call(lib.sharpi_schema_check, rules, len(rules), data, len(data))
    except Mismatch as e:
        return e.text
    return None


class CompiledGrammar(Closing):
    """A JSON Schema, a regular expression, or rules in GBNF, compiled for a model's tokens.

    One of `schema` (a mapping, or JSON text; `bool`, too), `regex` and `gbnf`. tools: calls of these functions
    may come in its place; with tools alone any text, in which a call keeps to its schema once it begins.
    must_call: nothing but calls. single_call: one at most. tool: the only function that may be called.
    lenient: what cannot be enforced is listed in `notes` instead of refused. Any thread, several at once.
    Raises Unsupported, InvalidArgument, DoesNotFit.
    """

    def __init__(
        self,
        model: TextModel,
        *,
        schema: Union[Mapping[str, Any], bool, str, None] = None,
        regex: Optional[str] = None,
        gbnf: Optional[str] = None,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        tool: Optional[str] = None,
        must_call: bool = False,
        single_call: bool = False,
        lenient: bool = False,
    ) -> None:
        given = [(kind, text) for kind, text in (
            (_abi.SHARPI_GRAMMAR_JSON_SCHEMA, schema), (_abi.SHARPI_GRAMMAR_REGEX, regex),
            (_abi.SHARPI_GRAMMAR_GBNF, gbnf)) if text is not None]
        if len(given) > 1:
            raise TypeError("schema, regex and gbnf: one of them at most")
        p = params(_abi.sharpi_grammar_params, lib.sharpi_grammar_params_init)
        p.flags = (_abi.SHARPI_GRAMMAR_LENIENT * lenient | _abi.SHARPI_GRAMMAR_MUST_CALL * must_call |
                   _abi.SHARPI_GRAMMAR_SINGLE_CALL * single_call)
        if given:
            p.kind, text = given[0]
            data = utf8(text) if isinstance(text, str) else json.dumps(text).encode()
            p.text, p.text_len = data, len(data)
        if tools is not None:
            listed = json.dumps(list(tools)).encode()
            p.tools, p.tools_len = listed, len(listed)
        if tool is not None:
            p.tool = c_string(tool, "tool")
        self._handle = owned(model._handle, lib.sharpi_grammar_compile, [ctypes.byref(p)],
                             lib.sharpi_grammar_destroy, "grammar")
        #: What is not enforced, each a sentence that begins with its place.
        self.notes: List[str] = self._read_notes()

    def _read_notes(self) -> List[str]:
        notes: List[str] = []
        while True:
            try:
                with self._handle as pointer:
                    text = read_bytes(lib.sharpi_grammar_note, pointer, len(notes), cap=512)
            except NotFound:
                return notes
            notes.append(text.decode("utf-8", "replace"))

    def matcher(self) -> "Matcher":
        """A matcher at the beginning of a text: the `grammar` of `generate()` and `Chat`."""
        return Matcher(owned(self._handle, lib.sharpi_matcher_create, [], lib.sharpi_matcher_destroy,
                             "matcher"))


class Matcher(Closing):
    """How far one text has come, a `sharpi.Grammar`. Made by `CompiledGrammar.matcher()`. One thread at a time."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        words = ctypes.c_uint32()
        with self._handle as pointer:
            lib.sharpi_matcher_mask(pointer, None, 0, ctypes.byref(words), None)
        self._words = words.value

    def mask(self) -> memoryview:
        """32-bit words: bit t % 32 of word t // 32 says whether token t may come next."""
        out = (ctypes.c_uint32 * self._words)()
        self._call(lib.sharpi_matcher_mask, out, self._words, ctypes.byref(ctypes.c_uint32()))
        return memoryview(out).cast("B").cast("I")

    def accept(self, token: int) -> None:
        """A token was drawn. Raises Mismatch where it may not come next; then nothing has changed."""
        self._call(lib.sharpi_matcher_accept, token)

    def accept_text(self, text: Union[str, bytes]) -> None:
        """Text was put there, however it is cut into tokens. Raises as accept()."""
        data = utf8(text)
        self._call(lib.sharpi_matcher_accept_text, data, len(data))

    def forced(self, limit: int = 256) -> bytes:
        """The bytes that have to come next, as far as there is no choice."""
        with self._alone(), self._handle as pointer:
            return read_bytes(lib.sharpi_matcher_forced, pointer, cap=limit)

    @property
    def may_end(self) -> bool:
        """The text matches as it is."""
        return self._progress() != _abi.SHARPI_MATCH_OPEN

    @property
    def complete(self) -> bool:
        """It matches, and nothing may follow."""
        return self._progress() == _abi.SHARPI_MATCH_COMPLETE

    def clone(self) -> "Matcher":
        """A second matcher at the same place, independent from now on."""
        with self._alone():
            return Matcher(owned(self._handle, lib.sharpi_matcher_clone, [],
                                 lib.sharpi_matcher_destroy, "matcher"))

    def _progress(self) -> int:
        with self._alone(), self._handle as pointer:
            return int(lib.sharpi_matcher_progress(pointer))

    def _call(self, function: Any, *arguments: Any) -> None:
        with self._alone(), self._handle as pointer:
            call(function, pointer, *arguments)

    def _alone(self) -> "_Alone":
        return _Alone(self._lock)


class _Alone:
    """Refuses a second thread instead of waiting for the first."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise Busy("another call is using the matcher")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
