# SPDX-License-Identifier: MIT
"""Generated text as an iterator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Optional, Sequence, Union

from ._callbacks import Progress
from ._values import Tokens, Words
from .errors import KVFull
from .session import Bias, Sampled, Session
from .text import StopStream, TextStream
from .types import KVFullReason

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object


class Grammar(Protocol):
    """What decides which tokens may be drawn, such as a matcher of llguidance."""

    def mask(self) -> Optional[Words]:
        """32-bit words for the next draw, as Session.sample() takes them; None: all tokens may."""

    def accept(self, token: int) -> None:
        """A token was drawn, the one that ends the text included. Called while a GPU reads it."""


class Generation(Iterator[str]):
    """The text that a session generates, piece by piece: `for piece in session.generate(...)`.

    The prompt is read with the first piece. Leaving the loop early stops the generation; the session
    holds what was read so far. Ctrl-C stops within a token and comes out of the loop.
    """

    finish_reason: Optional[str] = None
    """None while it goes on, then "end" (the model's own), "stop" (a stop string), "length" (max_tokens,
    or the context is full)."""

    def __init__(
        self,
        session: Session,
        prompt: Union[str, Tokens, None],
        max_tokens: Optional[int],
        stop: Union[str, Sequence[str]],
        special: bool,
        grammar: Optional[Grammar],
        bias: Optional[Bias],
        logprobs: int,
        progress: Optional[Progress],
    ) -> None:
        self._session = session
        self._prompt = prompt
        self._max_tokens = max_tokens
        self._grammar = grammar
        self._bias = bias
        self._n_logprobs = logprobs
        self._progress = progress
        self._text = TextStream(session.model, special=special)
        self._stops = StopStream([stop] if isinstance(stop, str) else stop)
        self._mask: Optional[Words] = None
        self._started = False
        self._told = False  # the grammar knows what this step drew
        self.sampled: List[Sampled] = []
        """What was drawn, the token that ended it included."""

    @property
    def tokens(self) -> List[int]:
        """The token ids that were drawn."""
        return [one.token for one in self.sampled]

    @property
    def stop_string(self) -> Optional[str]:
        """The stop string that ended it."""
        return self._stops.stopped

    def text(self) -> str:
        """What is left of the text, in one piece."""
        return "".join(self)

    def __iter__(self) -> "Generation":
        return self

    def __next__(self) -> str:
        if not self._started:
            self._read_prompt()
            self._started = True
        while self.finish_reason is None:
            piece = self._step()
            if piece:
                return piece
        raise StopIteration

    def _read_prompt(self) -> None:
        prompt, session = self._prompt, self._session
        if isinstance(prompt, str):
            prompt = session.model.tokenize(prompt, add_special=session.info.n_tokens == 0)
        if prompt is not None and len(prompt):  # type: ignore[arg-type]
            session.prefill(prompt, progress=self._progress)
        if self._grammar is not None:
            self._mask = self._grammar.mask()

    def _step(self) -> str:
        left = None if self._max_tokens is None else self._max_tokens - len(self.sampled)
        if left is not None and left <= 0:
            return self._finish("length")
        self._told = False
        try:
            drawn = self._session.step(
                mask=self._mask,
                bias=self._bias,
                logprobs=self._n_logprobs,
                meanwhile=self._drawn if self._grammar is not None else None,
                max_tokens=16 if left is None else min(left, 16),
            )
        except KVFull as full:
            if full.reason is not KVFullReason.CONTEXT:
                raise
            return self._last()
        self.sampled += drawn
        text = ""
        for one in drawn:
            if self._session.model.is_end(one.token):
                if self._grammar is not None and not self._told:  # nothing was read meanwhile
                    self._grammar.accept(one.token)
                return text + self._finish("end")
            text += self._stops.push(self._text.push(one.token))
            if self._stops.stopped is not None:
                self.finish_reason = "stop"
                return text
        return text

    def _last(self) -> str:
        """The token that there is no room to read ends the text."""
        one = self._session.sample(mask=self._mask, bias=self._bias, logprobs=self._n_logprobs)
        self.sampled.append(one)
        if self._grammar is not None and not self._told:
            self._grammar.accept(one.token)
        if self._session.model.is_end(one.token):
            return self._finish("end")
        text = self._stops.push(self._text.push(one.token))
        if self._stops.stopped is None:
            return text + self._finish("length")
        self.finish_reason = "stop"
        return text

    def _drawn(self, token: int) -> None:
        """The next step's mask, made while this step's token is read."""
        assert self._grammar is not None
        self._told = True
        self._grammar.accept(token)
        if not self._session.model.is_end(token):
            self._mask = self._grammar.mask()

    def _finish(self, reason: str) -> str:
        text = self._stops.push(self._text.finish())
        if self._stops.stopped is None:
            text += self._stops.finish()
        self.finish_reason = reason if self._stops.stopped is None else "stop"
        return text
