# SPDX-License-Identifier: MIT
"""Embedders: vectors of texts, and scores of documents for a query."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._callbacks import Progress, ProgressCallback
from ._handles import Closing
from ._interrupt import run
from ._library import call, lib, out_struct, params
from ._values import Tokens, c_string, enum_of, int_array, owned, read_rows, u32, utf8
from .errors import Error
from .types import EmbedderSummary, MemoryRow, Pooling

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from .model import Model

#: A text, or its token ids with the special tokens that belong around it.
Text = Union[str, Tokens]
Vector = List[float]


def _embedder_params(n_ctx: Optional[int], n_parallel: int) -> Any:
    p = params(_abi.sharpi_embedder_params, lib.sharpi_embedder_params_init)
    if n_ctx is not None:
        p.n_ctx = u32(n_ctx, "n_ctx")
    p.n_parallel = u32(n_parallel, "n_parallel")
    return p


def price_embedder(model: "Model", n_ctx: Optional[int], n_parallel: int) -> List[MemoryRow]:
    p = _embedder_params(n_ctx, n_parallel)

    def price(handle: int, *out: object) -> int:
        status: int = lib.sharpi_embedder_price(handle, ctypes.byref(p), *out)
        return status

    with model._handle as handle:
        rows = read_rows(price, handle, _abi.sharpi_memory_row)
    return [MemoryRow.of(row) for row in rows]


class Embedder(Closing):
    """Reads texts; `model.embedder()` makes one.

    One call at a time: a second one, from another thread, raises Busy. cancel() and resume() may be called by
    any thread at any time; Ctrl-C stops a call between two passes.

    Raises InvalidArgument, DoesNotFit, OutOfMemory, Unsupported (the head is on a GPU).
    """

    model: "Model"
    _no_copy = "model.embedder() makes another one"

    def __init__(self, model: "Model", *, n_ctx: Optional[int] = None, n_parallel: int = 1) -> None:
        self.model = model
        p = _embedder_params(n_ctx, n_parallel)
        self._handle = owned(model._handle, lib.sharpi_embedder_create, [ctypes.byref(p)],
                             lib.sharpi_embedder_destroy, "embedder", model._handle,
                             cancel=lib.sharpi_embedder_cancel)

    @property
    def info(self) -> EmbedderSummary:
        out = out_struct(_abi.sharpi_embedder_summary)
        with self._handle as embedder:
            call(lib.sharpi_embedder_info, embedder, ctypes.byref(out))
        return EmbedderSummary.of(out)

    def cancel(self) -> None:
        """Stops the call that computes, or the next one: it raises Cancelled."""
        with self._handle as embedder:
            lib.sharpi_embedder_cancel(embedder)

    def resume(self) -> None:
        """Takes back a cancel() that no call has answered yet."""
        with self._handle as embedder:
            lib.sharpi_embedder_resume(embedder)

    def embed(
        self,
        texts: Sequence[Text],
        *,
        pooling: Union[Pooling, str] = Pooling.AUTO,
        n_dims: int = 0,
        normalize: bool = True,
        progress: Optional[Progress] = None,
    ) -> List[Vector]:
        """A vector of each text. pooling: "auto" is the file's; of "none" see rows(). n_dims: the first so many
        elements, 0 = all. progress(phase, done, total) is told of tokens.

        Raises InvalidArgument (an empty text, one that is too long, an id outside the vocabulary, n_dims),
        Unsupported (the file says no pooling, and none is named), Cancelled.
        """
        block, lengths = self._floats(texts, pooling, n_dims, normalize, progress)
        width = len(block) // max(len(lengths), 1)
        return [list(block[i * width : (i + 1) * width]) for i in range(len(lengths))]

    def embed_numpy(
        self,
        texts: Sequence[Text],
        *,
        pooling: Union[Pooling, str] = Pooling.AUTO,
        n_dims: int = 0,
        normalize: bool = True,
        progress: Optional[Progress] = None,
    ) -> "numpy.typing.NDArray[numpy.float32]":
        """embed() as an array of shape (texts, elements). Needs numpy."""
        import numpy

        block, lengths = self._floats(texts, pooling, n_dims, normalize, progress)
        return numpy.frombuffer(block, dtype=numpy.float32).reshape(len(lengths), -1).copy()

    def rows(
        self, texts: Sequence[Text], *, n_dims: int = 0, progress: Optional[Progress] = None
    ) -> List[List[Vector]]:
        """The hidden row of every token of each text, as they are. Raises as embed()."""
        block, lengths = self._floats(texts, Pooling.NONE, n_dims, False, progress)
        width = len(block) // max(sum(lengths), 1)
        out, at = [], 0
        for n in lengths:
            out.append([list(block[i * width : (i + 1) * width]) for i in range(at, at + n)])
            at += n
        return out

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: Optional[str] = None,
        normalize: bool = True,
        progress: Optional[Progress] = None,
    ) -> List[float]:
        """How well each document answers the query, 0 to 1, or without normalize as the head gives it.

        instruction: the task, for models whose prompt has a place for one. Raises as embed(), and Unsupported
        (the model gives no scores, or no form of its pairs is known).
        """
        pairs = [self._pair(query, document, instruction) for document in documents]
        rows, keep = _texts([ids for ids, _ in pairs])
        for row, (_, n_first) in zip(rows, pairs):
            row.n_first = n_first
        p = params(_abi.sharpi_rerank_params, lib.sharpi_rerank_params_init)
        p.normalize = int(normalize)
        out = (ctypes.c_float * len(pairs))()

        def body(embedder: int) -> None:
            call(lib.sharpi_rerank, embedder, rows, ctypes.sizeof(_abi.sharpi_text_tokens), len(pairs),
                 ctypes.byref(p), out)

        self._compute(body, p, progress)
        del keep
        return list(out)

    def _pair(self, query: str, document: str, instruction: Optional[str]) -> Tuple[List[int], int]:
        q, d = utf8(query), utf8(document)
        task = None if instruction is None else c_string(instruction, "instruction")
        cap, n, first = len(q) + len(d) + 256, ctypes.c_uint32(), ctypes.c_uint32()
        out = (ctypes.c_int32 * cap)()
        with self.model._handle as model:
            call(lib.sharpi_rank_tokenize, model, q, len(q), d, len(d), task, out, cap, ctypes.byref(n),
                 ctypes.byref(first))
        return list(out[: n.value]), first.value

    def _ids(self, text: Text) -> Tokens:
        return self.model.tokenize(text) if isinstance(text, str) else text

    def _floats(
        self,
        texts: Sequence[Text],
        pooling: Union[Pooling, str],
        n_dims: int,
        normalize: bool,
        progress: Optional[Progress],
    ) -> Tuple[Any, List[int]]:
        """(floats of all texts, tokens of each)."""
        if isinstance(texts, (str, bytes)):
            raise TypeError("texts is a sequence of texts")
        rows, keep = _texts([self._ids(text) for text in texts])
        p = params(_abi.sharpi_embed_params, lib.sharpi_embed_params_init)
        p.pooling, p.n_dims, p.normalize = enum_of(Pooling, pooling), u32(n_dims, "n_dims"), int(normalize)
        lengths = [int(row.n_tokens) for row in rows]
        info = self.info
        most = sum(lengths) * info.n_row if p.pooling == Pooling.NONE else len(lengths) * info.n_embd
        block, n = (ctypes.c_float * most)(), ctypes.c_uint64()

        def body(embedder: int) -> None:
            call(lib.sharpi_embed, embedder, rows, ctypes.sizeof(_abi.sharpi_text_tokens), len(lengths),
                 ctypes.byref(p), block, most, ctypes.byref(n))

        self._compute(body, p, progress)
        del keep
        return (ctypes.c_float * n.value).from_buffer(block), lengths

    def _compute(self, body: Callable[[int], None], p: Any, progress: Optional[Progress]) -> None:
        told = ProgressCallback(progress)
        p.progress = told.function
        handle = self._handle

        def inner() -> None:
            with handle as embedder:
                body(embedder)

        try:
            run(inner, self.cancel, self.resume)
        except Error:
            told.reraise()
            raise
        told.reraise()


def _texts(ids: Sequence[Tokens]) -> Tuple[Any, List[Any]]:
    """(array of sharpi_text_tokens, what it points to)."""
    rows, keep = (_abi.sharpi_text_tokens * len(ids))(), []
    for row, tokens in zip(rows, ids):
        block, n = int_array(tokens, "i", "tokens")
        keep.append(block)
        row.tokens, row.n_tokens = ctypes.addressof(block), n
    return rows, keep
