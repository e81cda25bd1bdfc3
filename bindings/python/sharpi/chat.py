# SPDX-License-Identifier: MIT
"""Conversations with a history."""

from __future__ import annotations

import inspect
from typing import (TYPE_CHECKING, Any, AsyncIterator, Dict, Generator, Iterable, Iterator, List, Mapping,
                    Optional, Sequence, Tuple, Union)

from ._async import in_thread
from ._callbacks import Paced, Progress
from .errors import BadState, KVFull, Unsupported
from .functions import Tool, Toolbox
from .generate import Generation, Grammar
from .grammar import CompiledGrammar, Matcher
from .model import Model
from .response_format import AfterThoughts, ResponseFormat
from .session import Session
from .text import ChatParts, Message, chat_parse
from .types import KVFullReason, Part, SamplerOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Tokens before an answer that decide how it begins: a template may open a think block there.
_PROMPT_TAIL = 256

#: Answers in a row that call functions.
_MOST_ROUNDS = 10

#: Rows that are taken at a time where an answer outgrows what a compaction left.
_ROOM_FOR_ANSWER = 1024


def read_prompt(
    session: Session, tokens: Sequence[int], *, progress: Optional[Progress] = None
) -> int:
    """Makes a session hold exactly these tokens, with logits; returns how many it had to read.

    What the session already has of them stays, as far back as it can be truncated to: any common
    beginning, a checkpoint of a hybrid. Raises as Session.prefill().
    """
    held, wanted = session.tokens(), list(tokens)
    if held == wanted and session.info.n_logit_rows:
        return 0
    same = 0
    while same < len(held) and same < len(wanted) - 1 and held[same] == wanted[same]:
        same += 1
    lengths = session.reachable()
    if session.model.info.is_hybrid or (lengths and same < lengths[0]):
        same = max((length for length in lengths if length <= same), default=0)
    if same < len(held):
        session.truncate(same)
    try:
        session.prefill(wanted[same:], progress=progress)
    except KVFull as full:
        _take_room(session, len(wanted) - same + _ROOM_FOR_ANSWER, full)
        session.prefill(wanted[same:], progress=progress)
    return len(wanted) - same


def _take_room(session: Session, n_rows: int, full: KVFull) -> None:
    """A compaction gives memory back that the context may need again: takes enough of it for so many
    rows more. Raises `full` where the context is full, OutOfMemory or DoesNotFit where memory is."""
    if full.reason is not KVFullReason.SLOTS:
        raise full
    info = session.info
    session.reserve(min(info.n_slots_max + n_rows, info.n_ctx))


class Chat:
    """A conversation: `chat.ask("...")` for a whole answer, `for piece in chat.send("...")` as it comes.

    of: a model (the chat then has a session of its own) or a session. system: the first message.
    tools: functions that the model may call, plain Python ones or as JSON has them. variables, thinking:
    as TextModel.chat_format(). max_tokens: of an answer. The other arguments are the sampler's. `messages` may be edited between two answers: each one tokenises the
    whole conversation, and the session reads what it does not hold yet.
    """

    def __init__(
        self,
        of: Union[Model, Session],
        system: Optional[str] = None,
        *,
        messages: Iterable[Message] = (),
        tools: Union[Sequence[Tool], str, None] = None,
        variables: Optional[Mapping[str, object]] = None,
        thinking: Optional[bool] = None,
        max_tokens: Optional[int] = None,
        **sampler: "Unpack[SamplerOptions]",
    ) -> None:
        self._own = isinstance(of, Model)
        self.session = of.session() if isinstance(of, Model) else of
        self.messages: List[Dict[str, Any]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self.messages += [dict(message) for message in messages]
        self._compiled: Optional[Tuple[str, CompiledGrammar]] = None
        self.last_reply: Optional[Reply] = None
        """Of the last send(), ask(), reply() or regenerate(): why it ended, its reasoning, ..."""
        self.tools = tools
        self.variables = variables
        self.thinking = thinking
        self.max_tokens = max_tokens
        self.session.set_sampler(**sampler)

    def send(self, content: str, **options: Any) -> "Reply":
        """Says something; the answer comes from the iterator. options: as reply().

        Where the context has no room for what was said (KVFull), it is taken out of the messages again.
        """
        said = {"role": "user", "content": content}
        self.messages.append(said)
        try:
            reply = self.reply(**options)
        except BaseException:  # what was asked for is refused
            self.messages.pop()
            raise
        reply._said = said
        return reply

    def ask(self, content: str, **options: Any) -> str:
        """Says something and waits for the answer's content; `last_reply.finish_reason` says why it
        ended, "length" also where the context is full. options and KVFull: as send().

        Functions among the tools are called, and the model goes on, ten times at most. Calls of other
        tools end it: `last_reply.tool_calls` has them.
        """
        reply = self.send(content, **options).finish()
        for _ in range(_MOST_ROUNDS):
            if not reply.calls_functions:
                break
            reply = reply.call_functions(**options).finish()
        return reply.content

    async def ask_async(self, content: str, **options: Any) -> str:
        """As ask(), while the event loop goes on. Functions may be coroutines. A task that is cancelled
        stops the answer; what there is of it stays."""
        reply = await self.send(content, **options)
        for _ in range(_MOST_ROUNDS):
            if not reply.calls_functions:
                break
            reply = await (await reply.call_functions_async(**options))
        return reply.content

    def reply(
        self,
        *,
        stop: Union[str, Sequence[str]] = (),
        grammar: Optional[Grammar] = None,
        response_format: Any = None,
        progress: Optional[Progress] = None,
    ) -> "Reply":
        """The assistant's next message, to the messages as they are. stop, grammar: as
        Session.generate(). response_format: what the content has to be, behind the thoughts of a model that
        thinks: a class of pydantic's, a dataclass, a TypedDict or another annotation, or a JSON Schema as a
        mapping; `Reply.parsed` is its value. Calls of the chat's tools may come in its place. Raises
        Unsupported for what cannot be enforced, by its place. progress(phase, done, total): while the conversation is read, ten times a
        second at most, and when it is read; of what the session does not hold yet."""
        if grammar is not None and response_format is not None:
            raise TypeError("grammar and response_format: one of them at most")
        wanted = None if response_format is None else ResponseFormat(response_format)
        self.last_reply = Reply(self, stop, grammar, wanted, progress)
        return self.last_reply

    def _matcher(self, wanted: ResponseFormat, tools: Union[Sequence[Mapping[str, Any]], str, None]) -> Matcher:
        """The grammar of the last format is kept: many answers have the same."""
        key = repr((wanted.schema, tools))
        if self._compiled is None or self._compiled[0] != key:
            self._compiled = (key, wanted.compile(self.session.model, tools))
        return self._compiled[1].matcher()

    def regenerate(self, **options: Any) -> "Reply":
        """Answers the last message of somebody else again. options: as reply()."""
        while self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return self.reply(**options)

    def close(self) -> None:
        """Closes the session, if it is the chat's own."""
        if self._own:
            self.session.close()

    def __enter__(self) -> "Chat":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reply(Iterator[str]):
    """An answer as it comes: iterating gives its content. When it ends, or is left by an exception such
    as KeyboardInterrupt, what there is becomes the conversation's last message. In a program with an
    event loop: `async for piece in reply`, or `await reply` for the whole."""

    def __init__(
        self,
        chat: Chat,
        stop: Union[str, Sequence[str]],
        grammar: Optional[Grammar],
        wanted: Optional[ResponseFormat],
        progress: Optional[Progress],
    ) -> None:
        self._chat = chat
        self._tools = Toolbox(chat.tools)
        self._wanted = wanted
        self._thoughts: Optional[AfterThoughts] = None
        if wanted is not None:
            matcher = chat._matcher(wanted, self._tools.json)
            grammar = self._thoughts = AfterThoughts(chat.session.model, matcher)
        self._progress = None if progress is None else Paced(progress)
        self._constrained = grammar is not None
        self._prompt = ""
        self._text = ""
        self._given = 0
        self._done = False
        self.n_read = 0
        """Tokens of the conversation that were not in the session."""
        self.parts = ChatParts("", "", [], Part.CONTENT)
        """What there is of the answer."""
        self.generation: Generation = chat.session.generate(
            max_tokens=chat.max_tokens, stop=stop, special=True, grammar=grammar
        )
        self._started = False
        self._said: Optional[Dict[str, Any]] = None  # the message that it answers

    @property
    def content(self) -> str:
        return self.parts.content

    @property
    def reasoning(self) -> str:
        return self.parts.reasoning

    @property
    def tool_calls(self) -> List[Dict[str, Any]]:
        return self.parts.tool_calls

    @property
    def finish_reason(self) -> Optional[str]:
        """As Generation.finish_reason, or "tool_calls"."""
        reason = self.generation.finish_reason
        return "tool_calls" if reason == "end" and self.tool_calls else reason

    @property
    def parsed(self) -> Any:
        """The content as the value that response_format asked for, of its class where it is one; None
        without such, while the answer goes on, and where calls came in its place. Raises ValueError where the
        answer was cut (`finish_reason` "length") or does not validate."""
        if self._wanted is None or not self._done or (self.tool_calls and not self.content):
            return None
        return self._wanted.value(self.content)

    def finish(self) -> "Reply":
        """Waits for the end."""
        for _ in self:
            pass
        return self

    @property
    def calls_functions(self) -> bool:
        """It ends with calls, and all are of functions among the chat's tools."""
        return self._done and self._tools.knows(self.tool_calls)

    def call_functions(self, **options: Any) -> "Reply":
        """Calls them, and gives the answer to what they said. options: as Chat.reply(). An exception of
        a function is something for the model to read; a coroutine function raises TypeError."""
        results = [self._tools.begin(call) for call in self.tool_calls]
        for result in results:
            if inspect.isawaitable(result):
                for one in results:
                    if inspect.iscoroutine(one):
                        one.close()
                raise TypeError("a function that is a coroutine needs ask_async() or call_functions_async()")
        return self._go_on(results, options)

    async def call_functions_async(self, **options: Any) -> "Reply":
        """The same, one function after the other; they may be coroutines."""
        results: List[object] = []
        for call in self.tool_calls:
            result = self._tools.begin(call)
            try:
                results.append(await result if inspect.isawaitable(result) else result)
            except Exception as error:
                results.append({"error": f"{type(error).__name__}: {error}"})
        return self._go_on(results, options)

    def _go_on(self, results: Sequence[object], options: Mapping[str, Any]) -> "Reply":
        chat = self._chat
        for call, result in zip(self.tool_calls, results):
            chat.messages.append(self._tools.message(call, result))
        return chat.reply(**options)

    def __aiter__(self) -> AsyncIterator[str]:
        return self._pieces()

    async def _pieces(self) -> AsyncIterator[str]:
        while True:
            try:
                piece = await in_thread(self._chat.session, lambda: next(self, None))
            except BaseException:  # the task was cancelled, maybe just behind a piece
                self.stop()
                raise
            if piece is None:
                return
            yield piece

    def __await__(self) -> Generator[Any, None, "Reply"]:
        return in_thread(self._chat.session, self.finish).__await__()

    def __iter__(self) -> "Reply":
        return self

    def __next__(self) -> str:
        while not self._done:
            try:
                self._advance()
            except BaseException as error:
                if isinstance(error, KVFull) and not self._started:
                    self._take_back()
                self.stop()
                raise
            piece = self.content[self._given :]
            if piece:
                self._given += len(piece)
                return piece
        raise StopIteration

    def _advance(self) -> None:
        if not self._started:
            self._start()
        try:
            self._text += self._next_piece()
        except StopIteration:
            self.stop()
        else:
            self.parts = self._parse(partial=True)

    def _parse(self, *, partial: bool) -> ChatParts:
        tools = self._tools.json
        return chat_parse(self._text, prompt=self._prompt, partial=partial, tools=tools,
                          calls=bool(tools), constrained=self._constrained)

    def _take_back(self) -> None:
        """What has no room harms no later answer."""
        messages = self._chat.messages
        if messages and messages[-1] is self._said:
            messages.pop()

    def _next_piece(self) -> str:
        try:
            return next(self.generation)
        except KVFull as full:
            _take_room(self._chat.session, _ROOM_FOR_ANSWER, full)
            return next(self.generation)

    def _start(self) -> None:
        chat, session = self._chat, self._chat.session
        tokens = session.model.chat_tokenize(
            chat.messages, tools=self._tools.json, variables=chat.variables, thinking=chat.thinking
        )
        self.n_read = self._checkpoint(tokens)
        told = None if self._progress is None else self._progress.part()
        self.n_read += read_prompt(session, tokens, progress=told)
        self._prompt = session.model.detokenize(tokens[-_PROMPT_TAIL:], special=True)
        if self._thoughts is not None:
            self._thoughts.begin(self._prompt)
        self._started = True

    def _checkpoint(self, tokens: List[int]) -> int:
        """Hybrids go back to checkpoints only, and templates change how an answer begins once it is
        history: what lies before it gets one, where the session has any. Returns the tokens read."""
        chat, session = self._chat, self._chat.session
        if not session.model.info.is_hybrid:
            return 0
        before = session.model.chat_tokenize(
            chat.messages, tools=self._tools.json, variables=chat.variables, thinking=chat.thinking, prompt=False
        )
        if not before or before == tokens or tokens[: len(before)] != before:
            return 0
        if len(before) in session.reachable() and session.tokens()[: len(before)] == before:
            return 0
        told = None if self._progress is None else self._progress.part(ahead=len(tokens) - len(before))
        n_read = read_prompt(session, before, progress=told)
        try:
            session.checkpoint()
        except (BadState, Unsupported):
            pass  # none, or all are pinned: then the next turn reads more
        return n_read

    def stop(self) -> None:
        """Ends the answer here: what there is becomes a message."""
        if self._done:
            return
        self._done = True
        if not self._started:
            return
        self.parts = self._parse(partial=False)
        message: Dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        self._chat.messages.append(message)
