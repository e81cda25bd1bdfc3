# SPDX-License-Identifier: MIT
"""Sessions: one conversation each, with its KV rows, recurrent state and sampler."""

from __future__ import annotations

import array
import ctypes
import os
from dataclasses import dataclass
from typing import (TYPE_CHECKING, Any, BinaryIO, Callable, Iterable, List, Mapping, Optional, Sequence,
                    Tuple, TypeVar, Union)

from . import _abi
from ._callbacks import (Held, MeanwhileCallback, Progress, ProgressCallback, ReadCallback,
                         WriteCallback)
from ._handles import Closing, Handle
from ._interrupt import run
from ._library import call, lib, out_struct, params
from ._values import (Buffer, Tokens, Words, fill, i32, int_array, owned, read_numbers, read_rows,
                      session_params, split_options, u32)
from .errors import Error
from .plan import layer_of
from .types import (CompactOptions, CompactReport, DraftStats, KVType, LayerInfo, MemoryRow, RecallOptions,
                    RecallReport, SamplerOptions, SessionOptions, SessionSummary)

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    from typing_extensions import Unpack

    from .adapter import Use
    from .generate import Generation, Grammar
    from .model import Model

T = TypeVar("T")
#: Bias of single tokens, added to their logits; -inf forbids.
Bias = Mapping[int, float]


@dataclass(frozen=True)
class Sampled:
    """A token that was drawn."""

    token: int
    logprobs: Tuple[Tuple[int, float], ...] = ()
    """(token, natural logarithm of its probability): the token itself, then the most probable ones.
    They are of the model's logits as they are, before bias, penalty, mask and temperature."""


def _bias_arrays(bias: Bias) -> Tuple[Any, Any, int]:
    tokens, n = int_array(list(bias.keys()), "i", "bias")
    return tokens, (ctypes.c_float * n)(*bias.values()), n


class Session(Closing):
    """A conversation with a model; `model.session()` makes one.

    One call at a time: a second one, from another thread, raises Busy. cancel() and resume() may be
    called by any thread at any time. Ctrl-C stops a call that computes within a token; the session is
    then as before that call, but for whole chunks of a prefill.
    """

    model: "Model"
    _no_copy = "fork() makes a second session of the same content, save() gives its bytes"

    def __init__(
        self,
        model: "Model",
        *,
        kv: Union[KVType, str, None] = None,
        adapters: "Iterable[Use]" = (),
        **options: "Unpack[SessionOptions]",
    ) -> None:
        keep: List[object] = []
        p = session_params(options, kv, keep) if options or kv is not None else None
        self._own(model, model._handle, lib.sharpi_session_create, [p and ctypes.byref(p)])
        if adapters:
            self.set_adapters(adapters)

    def _own(
        self, model: "Model", parent: Handle, function: Callable[..., int], arguments: Sequence[object]
    ) -> None:
        self.model = model
        self._handle = owned(parent, function, arguments, lib.sharpi_session_destroy, "session",
                             model._handle, cancel=lib.sharpi_session_cancel)

    def _compute(self, body: Callable[[int], T], *callbacks: Held) -> T:
        """A call that computes: Ctrl-C cancels it, and what a callback raised comes out."""
        handle = self._handle

        def inner() -> T:
            with handle as session:
                return body(session)

        try:
            result = run(inner, self.cancel, self.resume)
        except Error:
            for callback in callbacks:
                callback.reraise()
            raise
        for callback in callbacks:
            callback.reraise()
        return result

    # Reading tokens.

    def prefill(
        self,
        tokens: Tokens,
        *,
        logit_rows: int = 1,
        checkpoint: bool = False,
        more: bool = False,
        n_chunk: int = 0,
        progress: Optional[Progress] = None,
    ) -> int:
        """Reads tokens after those already there; returns how many.

        logit_rows: last rows whose logits stay readable. checkpoint: keep the recurrent state at the
        end. more: the prompt goes on in the next call. n_chunk: tokens of a chunk, at most the plan's; 0 =
        the plan's. progress(phase, done, total) after every chunk, and every layer of one.
        On failure whole chunks stay, and `info.n_tokens` says how many tokens there are.
        Raises InvalidArgument, Unsupported, BadState, KVFull, Cancelled, DeviceError.
        """
        block, n = int_array(tokens, "i", "tokens")
        p = params(_abi.sharpi_prefill_params, lib.sharpi_prefill_params_init)
        p.n_logit_rows = u32(logit_rows, "logit_rows")
        p.n_chunk = u32(n_chunk, "n_chunk")
        p.flags = _abi.SHARPI_PREFILL_CHECKPOINT if checkpoint else 0
        p.flags |= _abi.SHARPI_PREFILL_MORE if more else 0
        told = ProgressCallback(progress)
        if progress is not None:
            p.progress = told.function
        committed = ctypes.c_uint32()

        def body(session: int) -> None:
            call(lib.sharpi_session_prefill, session, block, n, ctypes.byref(p), ctypes.byref(committed))

        self._compute(body, told)
        return committed.value

    def decode(self, token: int) -> None:
        """Reads one token; its logits become row 0. Raises as prefill()."""
        token = i32(token, "token")
        self._compute(lambda session: call(lib.sharpi_session_decode, session, token))

    def _sample_params(
        self, mask: Optional[Words], bias: Optional[Bias], logprobs: int, cap: int
    ) -> Tuple[Any, Any, List[object]]:
        """(params, or None where the sampler alone decides; the log-probabilities; what lives on)."""
        if mask is None and not bias and not logprobs:
            return None, None, []
        p, keep = params(_abi.sharpi_sample_params, lib.sharpi_sample_params_init), list[object]()
        if mask is not None:
            block, p.mask_words = int_array(mask, "I", "mask")
            p.allowed_mask = ctypes.addressof(block)
            keep.append(block)
        if bias:
            tokens, values, p.n_bias = _bias_arrays(bias)
            p.bias_tokens, p.bias_values = ctypes.addressof(tokens), ctypes.addressof(values)
            keep += [tokens, values]
        p.n_logprobs = u32(logprobs, "logprobs")
        rows = (_abi.sharpi_logprob * (cap * p.n_logprobs))() if logprobs else None
        if rows is not None:
            p.logprobs = ctypes.addressof(rows)
        return p, rows, keep

    def sample(
        self, *, mask: Optional[Words] = None, bias: Optional[Bias] = None, logprobs: int = 0
    ) -> Sampled:
        """Draws a token from logits row 0 without reading it.

        mask: 32-bit words, bit t % 32 of word t // 32 says whether token t may be drawn; what lies behind
        the last word may not. bias: of this draw only. logprobs: how many, the token's own first.
        Raises BadState (no logits, or everything is forbidden), BadFormat (damaged weights).
        """
        p, rows, keep = self._sample_params(mask, bias, logprobs, 1)
        token = ctypes.c_int32()
        with self._handle as session:
            call(lib.sharpi_session_sample, session, p and ctypes.byref(p), ctypes.byref(token))
        del keep
        return _sampled([token.value], rows, logprobs)[0]

    def step(
        self,
        *,
        mask: Optional[Words] = None,
        bias: Optional[Bias] = None,
        logprobs: int = 0,
        meanwhile: Optional[Callable[[int], object]] = None,
        max_tokens: int = 16,
    ) -> List[Sampled]:
        """Draws a token and reads it, so that the next step can follow; with drafts at most max_tokens.

        A token that ends the generation (`model.is_end()`) is returned and not read. mask, bias,
        logprobs: as sample(). meanwhile(token): called once with the token that was drawn, while a GPU
        reads it; it must not use this session. Raises as sample() and prefill().
        """
        cap = u32(max_tokens, "max_tokens")
        p, rows, keep = self._sample_params(mask, bias, logprobs, cap)
        host: List[Held] = []
        if meanwhile is not None:
            if p is None:
                p = params(_abi.sharpi_sample_params, lib.sharpi_sample_params_init)
            callback = MeanwhileCallback(meanwhile)
            p.meanwhile = callback.function
            host.append(callback)
        tokens, n = (ctypes.c_int32 * cap)(), ctypes.c_uint32()
        address = p and ctypes.byref(p)

        def body(session: int) -> None:
            call(lib.sharpi_session_step, session, address, tokens, cap, ctypes.byref(n))

        self._compute(body, *host)
        del keep
        return _sampled(tokens[: n.value], rows, logprobs)

    def verify(
        self,
        tokens: Tokens,
        *,
        mask: Optional[Words] = None,
        bias: Optional[Bias] = None,
    ) -> int:
        """Reads tokens[0], and the drafts behind it as far as the sampler draws the same; how many were read.

        At most 1 + the session's n_draft tokens. mask: one row of words for each draft, row i for the draw
        after tokens[i]. Raises InvalidArgument (token, too many), KVFull, Cancelled.
        """
        block, n = int_array(tokens, "i", "tokens")
        p, keep = self._verify_params(n, mask, bias)
        read, address = ctypes.c_uint32(), p and ctypes.byref(p)

        def body(session: int) -> None:
            call(lib.sharpi_session_verify, session, block, n, address, ctypes.byref(read))

        self._compute(body)
        del keep
        return read.value

    def _verify_params(self, n: int, mask: Optional[Words], bias: Optional[Bias]) -> Tuple[Any, Any]:
        """Of a read of n tokens: (struct or None, what it points to)."""
        p, _, keep = self._sample_params(mask, bias, 0, 1)
        if mask is not None:
            if n < 2 or p.mask_words % (n - 1) != 0:
                raise ValueError("mask is not one row of words for each draft")
            p.mask_words //= n - 1
        return p, keep

    @property
    def drafts(self) -> DraftStats:
        """What drafts have brought since the session was created."""
        out = out_struct(_abi.sharpi_draft_stats)
        with self._handle as session:
            call(lib.sharpi_session_drafts, session, ctypes.byref(out))
        return DraftStats.of(out)

    @property
    def draft_places(self) -> List[Tuple[int, int]]:
        """(drafted, accepted) by place behind the first token of a pass."""
        drafted, accepted = (ctypes.c_uint64 * 32)(), (ctypes.c_uint64 * 32)()
        n = ctypes.c_uint32()
        with self._handle as session:
            call(lib.sharpi_session_draft_places, session, drafted, accepted, 32, ctypes.byref(n))
        return list(zip(drafted[: n.value], accepted[: n.value]))

    def set_adapters(self, adapters: "Iterable[Use]") -> None:
        """Chooses the adapters of what is read from now on: each an `Adapter`, or one with a scale. What was
        read stays as it is: truncate(0) and read it again for other adapters. Raises InvalidArgument."""
        from .adapter import choose

        with self._handle as session:
            choose(session, adapters)

    def set_sampler(self, *, bias: Optional[Bias] = None, **options: "Unpack[SamplerOptions]") -> None:
        """Sets the sampler and restarts its random sequence; what is not given is the default.
        Raises InvalidArgument."""
        p = params(_abi.sharpi_sampler_params, lib.sharpi_sampler_params_init)
        (own,) = split_options(options, _abi.sharpi_sampler_params)
        fill(p, own, [])
        if bias:
            tokens, values, p.n_bias = _bias_arrays(bias)
            p.bias_tokens, p.bias_values = ctypes.addressof(tokens), ctypes.addressof(values)
        with self._handle as session:
            call(lib.sharpi_session_set_sampler, session, ctypes.byref(p))

    def generate(
        self,
        prompt: Union[str, Tokens, None] = None,
        *,
        max_tokens: Optional[int] = None,
        stop: Union[str, Sequence[str]] = (),
        special: bool = False,
        grammar: Optional["Grammar"] = None,
        bias: Optional[Bias] = None,
        logprobs: int = 0,
        progress: Optional[Progress] = None,
    ) -> "Generation":
        """An iterator over the text that follows, piece by piece; see `Generation`.

        prompt: read first: text (BOS as the file asks where the session is empty) or tokens; None goes
        on from the present logits. max_tokens: at most; None = until the model ends. stop: strings that
        end the text and are not in it. special: control tokens as text. grammar: what may be drawn.
        """
        from .generate import Generation

        return Generation(self, prompt, max_tokens, stop, special, grammar, bias, logprobs, progress)

    # Reading back.

    def logits(self, row: int = 0, out: Optional[Buffer] = None) -> memoryview:
        """Logits of the last call that read tokens, as 32-bit floats; row 0 is the last token's.

        out: a writable buffer for them, such as a numpy array of float32; else there is a new one.
        Raises BadState (nothing read yet, or discarded), InvalidArgument (row), BufferTooSmall.
        """
        n_vocab = self.model.info.n_vocab
        view = memoryview(array.array("f", bytes(4 * n_vocab)) if out is None else out)
        if view.format != "f" or view.readonly or not view.c_contiguous:
            raise TypeError("out is a contiguous writable buffer of 32-bit floats")
        cap = view.nbytes // 4
        block, n = (ctypes.c_float * cap).from_buffer(view), ctypes.c_uint32()
        with self._handle as session:
            call(lib.sharpi_session_logits, session, u32(row, "row"), block, cap, ctypes.byref(n))
        return view

    def logits_array(self, row: int = 0) -> "numpy.typing.NDArray[numpy.float32]":
        """The same as a numpy array, which needs numpy; without another copy."""
        import numpy

        array_of: "numpy.typing.NDArray[numpy.float32]" = numpy.frombuffer(self.logits(row), numpy.float32)
        return array_of

    def tokens(self) -> List[int]:
        """The token ids that the session has read, in order; compaction leaves them whole."""
        with self._handle as session:
            return read_numbers(lib.sharpi_session_tokens, session, cap=1024)

    @property
    def info(self) -> SessionSummary:
        """Lengths, bytes, times. Also in callbacks of a call on this session."""
        out = out_struct(_abi.sharpi_session_summary)
        with self._handle as session:
            call(lib.sharpi_session_info, session, ctypes.byref(out))
        return SessionSummary.of(out)

    def layer(self, layer: int) -> LayerInfo:
        """What a layer stores now. Raises InvalidArgument (layer)."""
        with self._handle as session:
            return layer_of(lib.sharpi_session_layer, session, layer)

    def memory(self) -> List[MemoryRow]:
        """What the session holds, measured at the allocator."""
        with self._handle as session:
            rows = read_rows(lib.sharpi_session_memory, session, _abi.sharpi_memory_row)
        return [MemoryRow.of(row) for row in rows]

    def reachable(self) -> List[int]:
        """Lengths that truncate() can reach, as sharpi_session_reachable() lists them."""
        with self._handle as session:
            return read_numbers(lib.sharpi_session_reachable, session, kind=ctypes.c_uint32)

    def kept(self, layer: int, kv_head: int = 0) -> List[int]:
        """Positions of the live rows of a layer and KV head, ascending. Raises Unsupported."""
        with self._handle as session:
            return read_numbers(lib.sharpi_session_kept, session, u32(layer, "layer"),
                                u32(kv_head, "kv_head"), kind=ctypes.c_uint32, cap=1024)

    # Changing what is held.

    def truncate(self, n_tokens: int) -> None:
        """Forgets every token from position n_tokens on; logits are gone. Raises BadState (the text has
        the nearest reachable lengths), InvalidArgument (longer than the session)."""
        with self._handle as session:
            call(lib.sharpi_session_truncate, session, u32(n_tokens, "n_tokens"))

    def checkpoint(self, *, pin: bool = False) -> None:
        """Keeps the recurrent state at the present length. Raises BadState, Unsupported."""
        with self._handle as session:
            call(lib.sharpi_session_checkpoint, session, int(pin))

    def reserve(self, n_slots: int) -> None:
        """Commits memory for that many rows a layer. Raises OutOfMemory, DoesNotFit."""
        with self._handle as session:
            call(lib.sharpi_session_reserve, session, u32(n_slots, "n_slots"))

    def fork(self) -> "Session":
        """A second session with the same content and settings. Raises OutOfMemory, DoesNotFit."""
        twin = Session.__new__(Session)
        twin._own(self.model, self._handle, lib.sharpi_session_fork, [])
        return twin

    def compact(
        self, *, progress: Optional[Progress] = None, **options: "Unpack[CompactOptions]"
    ) -> CompactReport:
        """Keeps the rows that matter and gives the rest of the memory back; the length stays.

        budget: rows a layer keeps, or "auto"; required but with policy "keep" and its `keep`. The options
        are the fields of sharpi_compact_params. On failure nothing has changed.
        Raises InvalidArgument, BadState (no captured queries: `capture_window` of the session),
        Unsupported, OutOfMemory, Cancelled.
        """
        p, keep = params(_abi.sharpi_compact_params, lib.sharpi_compact_params_init), list[object]()
        (own,) = split_options(options, _abi.sharpi_compact_params)
        fill(p, own, keep)
        told = ProgressCallback(progress)
        if progress is not None:
            p.progress = told.function
        report = out_struct(_abi.sharpi_compact_report)

        def body(session: int) -> None:
            call(lib.sharpi_session_compact, session, ctypes.byref(p), ctypes.byref(report))

        self._compute(body, told)
        return CompactReport.of(report)

    def recall(
        self, *, progress: Optional[Progress] = None, **options: "Unpack[RecallOptions]"
    ) -> RecallReport:
        """Brings rows back from the session's archive (`archive_rows` of the session) that a question
        wants; as many of its own go there. Count of rows and length stay.

        budget: rows of a KV head that may come back; required. probe: the question's tokens; without
        it the captured queries ask. The options are the fields of sharpi_recall_params. On failure
        nothing has changed. Raises InvalidArgument, BadState, Unsupported, OutOfMemory, Cancelled.
        """
        p, keep = params(_abi.sharpi_recall_params, lib.sharpi_recall_params_init), list[object]()
        (own,) = split_options(options, _abi.sharpi_recall_params)
        fill(p, own, keep)
        told = ProgressCallback(progress)
        if progress is not None:
            p.progress = told.function
        report = out_struct(_abi.sharpi_recall_report)

        def body(session: int) -> None:
            call(lib.sharpi_session_recall, session, ctypes.byref(p), ctypes.byref(report))

        self._compute(body, told)
        return RecallReport.of(report)

    # Saving.

    def save(self) -> bytes:
        """The session as a blob: tokens, rows, logits, sampler and all."""
        pieces = bytearray()
        self.save_to(pieces.extend)
        return bytes(pieces)

    def save_to(self, to: Union[BinaryIO, Callable[[bytes], object]]) -> int:
        """The same in pieces, to a binary file or a function; returns the bytes of the whole."""
        write = to if callable(to) else to.write
        callback, length = WriteCallback(write), ctypes.c_uint64()
        with self._handle as session:
            try:
                call(lib.sharpi_session_save_to, session, callback.function, None, ctypes.byref(length))
            except Error:
                callback.reraise()
                raise
        return length.value

    def restore(self, blob: Buffer) -> None:
        """Replaces content and sampler by saved ones. What is refused leaves the session as it was.
        Raises BadFormat, Mismatch, KVFull, OutOfMemory."""
        data = blob if isinstance(blob, bytes) else bytes(blob)
        with self._handle as session:
            call(lib.sharpi_session_restore, session, data, len(data))

    def restore_from(self, source: Union[BinaryIO, Callable[[int, int], bytes]]) -> None:
        """The same from a binary file that can seek, from where it stands, or from a function of offset
        and size. It is read twice, checked, then applied; by a new session once."""
        callback = ReadCallback(source if callable(source) else _reader(source))
        with self._handle as session:
            try:
                call(lib.sharpi_session_restore_from, session, callback.function, None)
            except Error:
                callback.reraise()
                raise

    # Stopping.

    def cancel(self) -> None:
        """Stops the call that computes, or the next one: it raises Cancelled. Any thread, any time."""
        with self._handle as session:
            lib.sharpi_session_cancel(session)

    def resume(self) -> None:
        """Takes back a cancel that no call has answered yet. Any thread, any time."""
        with self._handle as session:
            lib.sharpi_session_resume(session)


def _sampled(tokens: Sequence[int], rows: Any, n: int) -> List[Sampled]:
    if rows is None:
        return [Sampled(token) for token in tokens]
    return [
        Sampled(token, tuple((row.token, row.logprob) for row in rows[i * n : (i + 1) * n]))
        for i, token in enumerate(tokens)
    ]


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    start = file.tell()

    def read(offset: int, size: int) -> bytes:
        file.seek(start + offset, os.SEEK_SET)
        return file.read(size)

    return read
