# SPDX-License-Identifier: MIT
"""Models: loaded weights, shared by any number of sessions."""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from . import _abi
from ._callbacks import Progress, ProgressCallback
from ._handles import Handle
from ._interrupt import run
from ._library import call, lib, out_struct
from ._values import create, int_array, read_bytes, read_numbers, read_rows, session_params, u32
from .context import Context
from .errors import Error
from .plan import Plan
from .text import TextModel
from .types import (ExpertStats, KVType, MemoryRow, PlanOptions, Pooling, SegmentInfo, SessionOptions)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .adapter import Adapter, Use
    from .embed import Embedder, Text
    from .session import Session


class Model(TextModel):
    """A loaded model: `Model("file.gguf", kv="q8_0", n_ctx=8192)`, or `Model(plan=plan)`.

    The options are those of a `Plan`. progress(phase, done, total) is told of bytes of weights made
    ready; it may return False to cancel. Ctrl-C stops loading. Any thread, several at once.

    Raises what Plan raises, and Mismatch (the file changed since it was planned), OutOfMemory,
    Cancelled, DeviceError.
    """

    plan: Plan
    """What the model was loaded by."""

    def __init__(
        self,
        path: Union[str, os.PathLike[str], None] = None,
        *,
        plan: Optional[Plan] = None,
        context: Optional[Context] = None,
        kv: Union[KVType, str, None] = None,
        progress: Optional[Progress] = None,
        **options: "Unpack[PlanOptions]",
    ) -> None:
        if (path is None) == (plan is None):
            raise TypeError("a model is made of a path or of a plan")
        if path is not None:
            plan = Plan(path, context=context, kv=kv, **options)
        elif options or kv is not None or context is not None:
            raise TypeError("the plan has the options already")
        assert plan is not None
        self.plan = plan
        told = ProgressCallback(progress)

        def load() -> Handle:
            with plan._handle as owner:
                pointer = create(lib.sharpi_model_load, owner, told.function, None)
            return Handle(pointer, lib.sharpi_model_destroy, "model", plan._handle)

        def stop() -> None:
            told.cancelled = True

        try:
            self._handle = run(load, stop, lambda: None)
        except Error:
            told.reraise()
            raise

    def adapter(self, path: Union[str, os.PathLike[str]]) -> "Adapter":
        """Loads an adapter (LoRA) for sessions of this model. Raises as `Adapter` says."""
        from .adapter import Adapter

        return Adapter(self, path)

    def session(
        self,
        *,
        kv: Union[KVType, str, None] = None,
        adapters: "Iterable[Use]" = (),
        **options: "Unpack[SessionOptions]",
    ) -> "Session":
        """A conversation: at most what the plan's template priced; without options, just that.

        adapters: those of what it reads, as `Session.set_adapters()` takes them.
        Raises DoesNotFit, OutOfMemory, InvalidArgument, Unsupported.
        """
        from .session import Session

        return Session(self, kv=kv, adapters=adapters, **options)

    def plan_session(
        self, *, kv: Union[KVType, str, None] = None, **options: "Unpack[SessionOptions]"
    ) -> Plan:
        """The price of one more session, by what is left of the plan's budgets and free now."""
        keep: List[object] = []
        p = session_params(options, kv, keep) if options or kv is not None else None
        return Plan._of_session(self._handle, p and ctypes.byref(p))

    def embedder(self, *, n_ctx: Optional[int] = None, n_parallel: int = 1) -> "Embedder":
        """What reads texts and gives their vectors: n_ctx tokens at most, the plan's if not said.

        n_parallel: sessions that read side by side, of models that are no encoders.
        Raises InvalidArgument, DoesNotFit, OutOfMemory, Unsupported.
        """
        from .embed import Embedder

        return Embedder(self, n_ctx=n_ctx, n_parallel=n_parallel)

    def price_embedder(self, *, n_ctx: Optional[int] = None, n_parallel: int = 1) -> List[MemoryRow]:
        """What embedder() would hold, and whether the budgets hold it. Raises as embedder()."""
        from .embed import price_embedder

        return price_embedder(self, n_ctx, n_parallel)

    def _own_embedder(self) -> "Embedder":
        """That of embed() and rerank(), which the first of them makes."""
        own = self.__dict__.get("_embedder")
        if own is None or own.closed:
            own = self._embedder = self.embedder()
        return own

    def embed(
        self,
        texts: "Sequence[Text]",
        *,
        pooling: Union[Pooling, str] = Pooling.AUTO,
        n_dims: int = 0,
        normalize: bool = True,
        progress: Optional[Progress] = None,
    ) -> List[List[float]]:
        """Embedder.embed() of an embedder that the model keeps."""
        return self._own_embedder().embed(texts, pooling=pooling, n_dims=n_dims, normalize=normalize,
                                          progress=progress)

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        instruction: Optional[str] = None,
        normalize: bool = True,
        progress: Optional[Progress] = None,
    ) -> List[float]:
        """Embedder.rerank() of an embedder that the model keeps."""
        return self._own_embedder().rerank(query, documents, instruction=instruction, normalize=normalize,
                                           progress=progress)

    def memory(self) -> List[MemoryRow]:
        """What the model holds, measured at the allocator."""
        with self._handle as model:
            rows = read_rows(lib.sharpi_model_memory, model, _abi.sharpi_memory_row)
        return [MemoryRow.of(row) for row in rows]

    def segments(self) -> List[SegmentInfo]:
        """Runs of blocks on one tier, with their times so far."""
        with self._handle as model:
            rows = read_rows(lib.sharpi_model_segments, model, _abi.sharpi_segment_info)
        return [SegmentInfo.of(row) for row in rows]

    def json(self) -> Dict[str, Any]:
        """Placement, kernel paths, what a step of one row does, experts, segments with times."""
        with self._handle as model:
            text = read_bytes(lib.sharpi_model_json, model, cap=1 << 14)
        parsed: Dict[str, Any] = json.loads(text)
        return parsed

    def experts(self) -> ExpertStats:
        """Of routed experts on the CPU beside a router on the GPU."""
        out = out_struct(_abi.sharpi_expert_stats)
        with self._handle as model:
            call(lib.sharpi_model_experts, model, ctypes.byref(out))
        return ExpertStats.of(out)

    def expert_uses(self, layer: int) -> List[int]:
        """Uses of each expert of a layer since loading; empty where the layer is not placed so."""
        with self._handle as model:
            return read_numbers(lib.sharpi_model_expert_uses, model, u32(layer, "layer"),
                                kind=ctypes.c_uint64)

    def pin_experts(self, experts: Iterable[Tuple[int, int]]) -> None:
        """Brings experts into slots of the GPU for good: pairs of layer and expert.

        Raises InvalidArgument, DoesNotFit (more than slots), Unsupported (no slots), DeviceError.
        """
        pairs = list(experts)
        layers, n = int_array([layer for layer, _ in pairs], "I", "layers")
        numbers, _ = int_array([expert for _, expert in pairs], "I", "experts")
        with self._handle as model:
            call(lib.sharpi_model_pin_experts, model, layers, numbers, n)
