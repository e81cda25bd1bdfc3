# SPDX-License-Identifier: MIT
"""Text: tokens, chat formats, streams of characters and stop strings. No weights are needed."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from . import _abi
from ._handles import Closing
from ._library import call, lib, out_struct, params
from ._values import (Tokens, c_string, i32, int_array, number, owned, path_bytes, read_bytes,
                      read_numbers, utf8)
from .errors import Busy
from .plan import meta_keys
from .types import ModelSummary, Part, TokenAttributes

#: A message: role, content, and where they are: reasoning (or reasoning_content), tool_calls,
#: tool_call_id, name. `content` is text, None (JSON's null), or a list of parts: [{"type": "text", ...}].
Message = Mapping[str, Any]


def _json(value: object) -> bytes:
    return utf8(value) if isinstance(value, (str, bytes)) else json.dumps(value).encode()


class _Messages:
    """Messages as C sees them; holds their bytes."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.block = (_abi.sharpi_message * len(messages))()
        for out, message in zip(self.block, messages):
            unknown = set(message) - {"role", "content", "reasoning", "reasoning_content", "tool_calls",
                                      "tool_call_id", "name"}
            if unknown:
                raise TypeError(f"a message has no {', '.join(sorted(unknown))}")
            out.role = c_string(message["role"], "role")
            reasoning = message.get("reasoning", message.get("reasoning_content"))
            content, parts = message.get("content"), None
            if isinstance(content, (list, tuple)):
                content, parts = None, _json(content)
            calls = message.get("tool_calls")
            for field, value in (("content", content), ("parts", parts), ("reasoning", reasoning),
                                 ("tool_calls", _json(calls) if calls else None)):
                if value is not None:
                    data = utf8(value)
                    setattr(out, field, data)
                    setattr(out, field + "_len", len(data))
            for field in ("tool_call_id", "name"):
                if message.get(field) is not None:
                    setattr(out, field, c_string(message[field], field))


class TextModel(Closing):
    """A model's text: tokenizer, chat template, metadata. `TextModel(path)` opens a file for that alone,
    without weights; a `Model` is one, too. Any thread, several at once.

    Raises NotFound, IOFailed, BadFormat.
    """

    def __init__(self, path: Union[str, os.PathLike[str]]) -> None:
        self._handle = owned(None, lib.sharpi_model_open_text, [path_bytes(path)],
                             lib.sharpi_model_destroy, "model")

    @property
    def info(self) -> ModelSummary:
        """What the model is."""
        out = out_struct(_abi.sharpi_model_summary)
        with self._handle as model:
            call(lib.sharpi_model_info, model, ctypes.byref(out))
        return ModelSummary.of(out)

    def meta(self, key: str) -> str:
        """A metadata value of the file as text. Raises NotFound."""
        with self._handle as model:
            text = read_bytes(lib.sharpi_model_meta, model, c_string(key, "key"))
        return text.decode("utf-8", "replace")

    def meta_keys(self) -> List[str]:
        with self._handle as model:
            return meta_keys(lib.sharpi_model_meta_key, model)

    def tokenize(
        self, text: Union[str, bytes], *, add_special: bool = True, parse_special: bool = False
    ) -> List[int]:
        """Token ids of a text. add_special: BOS and EOS as the file asks. parse_special: the text of
        control tokens becomes their ids. Raises Unsupported (the file's tokenizer is unknown)."""
        data = utf8(text)
        flags = _abi.SHARPI_TOKENIZE_ADD_SPECIAL if add_special else 0
        flags |= _abi.SHARPI_TOKENIZE_PARSE_SPECIAL if parse_special else 0
        with self._handle as model:
            return read_numbers(lib.sharpi_tokenize, model, data, len(data), flags, cap=len(data) + 8)

    def detokenize_bytes(self, tokens: Tokens, *, special: bool = False) -> bytes:
        """The bytes of tokens, which need not be whole characters. special: control tokens as text.
        Raises InvalidArgument (no such token)."""
        block, n = int_array(tokens, "i", "tokens")
        flags = _abi.SHARPI_DETOKENIZE_SPECIAL if special else 0
        with self._handle as model:
            return read_bytes(lib.sharpi_detokenize, model, block, n, flags, cap=8 * n + 64)

    def detokenize(self, tokens: Tokens, *, special: bool = False) -> str:
        """The text of tokens; bytes that are no characters become U+FFFD."""
        return self.detokenize_bytes(tokens, special=special).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to a text; of a control token its spelling."""
        with self._handle as model:
            return read_bytes(lib.sharpi_token_bytes, model, i32(token, "token"))

    def token_id(self, text: Union[str, bytes]) -> int:
        """The token that stands for exactly this text. Raises NotFound."""
        out, data = ctypes.c_int32(), utf8(text)
        with self._handle as model:
            call(lib.sharpi_token_id, model, data, len(data), ctypes.byref(out))
        return out.value

    def token_attributes(self, token: int) -> TokenAttributes:
        """What a token is; none: ordinary text, or outside the vocabulary."""
        with self._handle as model:
            return TokenAttributes(lib.sharpi_token_attributes(model, i32(token, "token")))

    def is_end(self, token: int) -> bool:
        """The token ends a generation."""
        with self._handle as model:
            return bool(lib.sharpi_token_is_end(model, i32(token, "token")))

    def text_stream(self, *, special: bool = False) -> "TextStream":
        """Turns tokens into whole characters, one after the other."""
        return TextStream(self, special=special)

    def _chat(
        self,
        messages: Sequence[Message],
        tools: object,
        variables: Optional[Mapping[str, object]],
        thinking: Optional[bool],
        prompt: bool,
        now: int,
    ) -> Tuple[Any, List[object]]:
        p = params(_abi.sharpi_chat_params, lib.sharpi_chat_params_init)
        block = _Messages(messages).block
        p.flags = _abi.SHARPI_CHAT_DESCRIBE_TOOLS | (0 if prompt else _abi.SHARPI_CHAT_NO_PROMPT)
        if thinking is not None:
            p.flags |= _abi.SHARPI_CHAT_THINKING if thinking else _abi.SHARPI_CHAT_NO_THINKING
        p.messages, p.n_messages = ctypes.addressof(block), len(block)
        if tools:
            p.tools = data = _json(tools)
            p.tools_len = len(data)
        if variables:
            p.variables = data = _json(variables)
            p.variables_len = len(data)
        p.now = number(now, ctypes.c_uint64, "now")
        return p, [block]

    def chat_format(
        self,
        messages: Sequence[Message],
        *,
        tools: Union[Sequence[Mapping[str, Any]], str, None] = None,
        variables: Optional[Mapping[str, object]] = None,
        thinking: Optional[bool] = None,
        prompt: bool = True,
        now: int = 0,
    ) -> str:
        """A conversation as prompt text, by the file's own template.

        tools: functions as JSON or as what becomes JSON; where the template has no place for them, or for
        calls, they become text. variables: further ones of the template.
        thinking: what the template's variables for it say; None leaves it to the template. prompt:
        open the assistant's turn. now: seconds since 1970 that templates print, 0 = the clock.
        Raises Unsupported, BadFormat (template), InvalidArgument (the template refuses), DoesNotFit.
        """
        p, keep = self._chat(messages, tools, variables, thinking, prompt, now)
        with self._handle as model:
            text = read_bytes(lib.sharpi_chat_format, model, ctypes.byref(p), cap=1 << 14)
        del keep
        return text.decode("utf-8", "surrogateescape")

    def chat_tokenize(
        self,
        messages: Sequence[Message],
        *,
        tools: Union[Sequence[Mapping[str, Any]], str, None] = None,
        variables: Optional[Mapping[str, object]] = None,
        thinking: Optional[bool] = None,
        prompt: bool = True,
        now: int = 0,
    ) -> List[int]:
        """As chat_format(), as token ids in which no message can close a turn or open one."""
        p, keep = self._chat(messages, tools, variables, thinking, prompt, now)
        with self._handle as model:
            tokens = read_numbers(lib.sharpi_chat_tokenize, model, ctypes.byref(p), cap=4096)
        del keep
        return tokens


class TextStream:
    """Tokens to text in whole characters: the incomplete tail waits. One thread at a time."""

    def __init__(self, model: TextModel, *, special: bool = False) -> None:
        self._model = model
        self._flags = _abi.SHARPI_DETOKENIZE_SPECIAL if special else 0
        self._state = _abi.sharpi_text_stream()
        self._lock = threading.Lock()

    def push(self, *tokens: int) -> str:
        """The characters that are complete with these tokens."""
        block, n = int_array(tokens, "i", "tokens")
        with self._alone(), self._model._handle as model:
            text = read_bytes(lib.sharpi_detokenize_stream, model, ctypes.byref(self._state), block,
                              n, self._flags)
        return text.decode("utf-8", "replace")

    def finish(self) -> str:
        """The text has ended: whatever is held."""
        with self._alone():
            text = read_bytes(lib.sharpi_text_stream_finish, ctypes.byref(self._state))
        return text.decode("utf-8", "replace")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise Busy("another call is using the stream")
        try:
            yield
        finally:
            self._lock.release()


class StopStream:
    """Passes text on up to the first stop string. One thread at a time.

    stops: strings of 1 to 128 bytes. `stopped` is the one that was found.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = list(stops)
        data = [c_string(stop, "a stop string") for stop in self._stops]
        self._block = (ctypes.c_char_p * len(data))(*data)
        self._state = _abi.sharpi_stop_stream()
        self._lock = threading.Lock()
        # Refusals come now, not with the first text.
        if data:
            self.push("")

    @property
    def stopped(self) -> Optional[str]:
        return self._stops[self._state.which] if self._state.stopped else None

    def push(self, text: str) -> str:
        """What can be passed on; nothing after a stop string."""
        if not self._stops:
            return text
        data = utf8(text)
        return self._alone(lib.sharpi_stop_stream_push, self._block, len(self._stops), data, len(data),
                           cap=len(data) + _abi.SHARPI_STOP_BYTES)

    def finish(self) -> str:
        """The text has ended: whatever is held."""
        return self._alone(lib.sharpi_stop_stream_finish, cap=_abi.SHARPI_STOP_BYTES)

    def _alone(self, call: Any, *arguments: Any, cap: int) -> str:
        if not self._lock.acquire(blocking=False):
            raise Busy("another call is using the stream")
        try:
            data = read_bytes(call, ctypes.byref(self._state), *arguments, cap=cap)
        finally:
            self._lock.release()
        return data.decode("utf-8", "replace")


@dataclass(frozen=True)
class ChatParts:
    """A generated text, taken apart."""

    reasoning: str
    content: str
    tool_calls: List[Dict[str, Any]]
    """As a message has them: [{"type": "function", "function": {"name", "arguments"}}, ...]."""
    open: Part
    """The part in which the text ends."""


def chat_parse(
    text: Union[str, bytes],
    *,
    prompt: Union[str, bytes, None] = None,
    partial: bool = False,
    tools: Union[str, bytes, Sequence[Mapping[str, Any]], None] = None,
    reasoning: bool = True,
    calls: bool = True,
    constrained: bool = False,
) -> ChatParts:
    """Takes generated text apart: reasoning, content, tool calls.

    text: detokenised with special=True. prompt: what the model read: a block that its end opens goes on
    in the text. partial: more text is to come; what may be the beginning of a mark is held back, and
    longer texts only add to each part. tools: those of the request; arguments that are written as text
    get their types from the schemas. reasoning, calls: whether they may occur; what is not looked for
    stays in the content. constrained: by a grammar; nothing in the content is a mark. Raises DoesNotFit,
    InvalidArgument. Any thread.
    """
    data, before = utf8(text), utf8(prompt) if prompt is not None else None
    listed = _json(tools) if tools is not None else None
    asked = params(_abi.sharpi_parse_params, lib.sharpi_parse_params_init)
    asked.flags = ((_abi.SHARPI_PARSE_PARTIAL if partial else 0)
                   | (_abi.SHARPI_PARSE_REASONING if reasoning else 0)
                   | (_abi.SHARPI_PARSE_CALLS if calls else 0)
                   | (_abi.SHARPI_PARSE_CONSTRAINED if constrained else 0))
    asked.prompt, asked.prompt_len = before, len(before or b"")
    asked.tools, asked.tools_len = listed, len(listed or b"")
    parts = out_struct(_abi.sharpi_chat_parts)
    whole = read_bytes(lib.sharpi_chat_parse, ctypes.byref(asked), data, len(data),
                       ctypes.byref(parts), cap=2 * len(data) + 256)
    first, second = parts.reasoning_len, parts.reasoning_len + parts.content_len
    said = whole[second : second + parts.tool_calls_len]
    return ChatParts(
        reasoning=whole[:first].decode("utf-8", "replace"),
        content=whole[first:second].decode("utf-8", "replace"),
        tool_calls=json.loads(said) if said else [],
        open=Part(parts.open),
    )
