# SPDX-License-Identifier: MIT
"""What an answer has to be: a class or a JSON Schema, as a grammar and as the value that comes of it."""

from __future__ import annotations

import json
from array import array
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from ._values import Words
from .functions import schema_of, value_of
from .grammar import CompiledGrammar, Matcher
from .text import TextModel, TextStream, chat_parse
from .types import Part

#: No mark that ends a thought is longer, and each begins with one of the characters.
_LONGEST_MARK, _MARKS = 64, ("<", "[")


class ResponseFormat:
    """A class of pydantic's, a dataclass, a TypedDict or another annotation; or a JSON Schema.

    Raises TypeError for what has no schema.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = None if isinstance(kind, Mapping) else kind
        defs: Dict[str, Any] = {}
        self.schema: Dict[str, Any] = (
            dict(kind) if isinstance(kind, Mapping) else schema_of(kind, "response_format", defs))
        if defs:
            self.schema["$defs"] = defs

    def compile(
        self, model: TextModel, tools: Union[Sequence[Mapping[str, Any]], str, None] = None
    ) -> CompiledGrammar:
        """tools: calls of these may come in its place. Raises as CompiledGrammar."""
        listed = json.loads(tools) if isinstance(tools, str) else tools
        return CompiledGrammar(model, schema=self.schema, tools=listed)

    def value(self, text: str) -> Any:
        """The value that a whole answer is, of the class where it is one. Raises ValueError for text that was
        cut, and what the class raises (pydantic's ValidationError is a ValueError)."""
        value = json.loads(text)
        return value if self._kind is None else value_of(self._kind, value)


class AfterThoughts:
    """A matcher for what comes behind the thoughts that a model begins with, which it leaves alone."""

    def __init__(self, model: TextModel, matcher: Matcher) -> None:
        self._matcher = matcher
        self._text = TextStream(model, special=True)
        self._everything = array("I", [0xFFFFFFFF]) * ((model.info.n_vocab + 31) // 32)
        self._prompt, self._said = "", ""
        self._thinks = False

    def begin(self, prompt: str) -> None:
        """The end of what the model reads: a thought may be open there."""
        self._prompt = prompt
        self._thinks = self._is_thinking()

    def mask(self) -> Optional[Words]:
        # A mask of everything, not None: drafts would go on past the end of a thought.
        return self._everything if self._thinks else self._matcher.mask()

    def accept(self, token: int) -> None:
        if not self._thinks:
            self._matcher.accept(token)
            return
        self._said += self._text.push(token)
        if any(mark in self._said[-_LONGEST_MARK:] for mark in _MARKS):
            self._thinks = self._is_thinking()

    def _is_thinking(self) -> bool:
        parts = chat_parse(self._said, prompt=self._prompt, partial=True, calls=False)
        return parts.open is Part.REASONING
