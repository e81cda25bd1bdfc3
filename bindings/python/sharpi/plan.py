# SPDX-License-Identifier: MIT
"""Plans: placement and every byte, before anything is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Union

from . import _abi
from ._handles import Closing, Handle
from ._library import call, lib, out_struct, params
from ._values import c_string, fill, int_array, owned, path_bytes, read_bytes, read_rows, split_options, u32
from .context import Context, default_context
from .errors import InvalidArgument, NotFound
from .types import (DeviceOptions, KVType, LayerInfo, MemoryRow, ModelSummary, PlanDevice, PlanOptions,
                    PlanSummary)

if TYPE_CHECKING:
    from typing_extensions import Unpack


def layer_of(function: Any, pointer: int, layer: int) -> LayerInfo:
    out = out_struct(_abi.sharpi_layer_info)
    call(function, pointer, u32(layer, "layer"), ctypes.byref(out))
    return LayerInfo.of(out)


def meta_keys(function: Any, pointer: int) -> List[str]:
    keys: List[str] = []
    while True:
        try:
            keys.append(read_bytes(function, pointer, len(keys)).decode("utf-8", "replace"))
        except NotFound:
            return keys


def device_requests(context: Context, devices: "Sequence[Union[int, str, DeviceOptions]]") -> Any:
    """An array of sharpi_device_request."""
    block = (_abi.sharpi_device_request * len(devices))()
    size = ctypes.sizeof(_abi.sharpi_device_request)
    for request, one in zip(block, devices):
        lib.sharpi_device_request_init(ctypes.byref(request), size)
        wanted: Dict[str, Any] = dict(one) if isinstance(one, dict) else {"device": one}
        (own,) = split_options(wanted, _abi.sharpi_device_request)
        if isinstance(own.get("device"), str):
            own["device"] = context.find(str(own["device"]))
        if isinstance(own.get("budget"), str):
            raise InvalidArgument(f"the budget of a device is a number of bytes, not {own['budget']!r}")
        fill(request, own, [])
    return block


class Plan(Closing):
    """What a model will take, by rows: made from the file's header alone, it loads no weights.

    path: of a GGUF file. context: default, the process's own. kv: type of all KV rows ("f32", "bf16",
    "q8_0", "auto"), short for k_dtype and v_dtype. The other options are the fields of
    sharpi_plan_params and of its session template (`PlanOptions`); what is not given is the library's
    default. device: an index, or what `Context.find()` reads ("h200"). devices: a list of such, or of
    `DeviceOptions`, where layers may be on several.

    Raises NotFound, IOFailed, BadFormat (file), Unsupported, InvalidArgument, DoesNotFit (the text
    names the row that is short and what would fit), Busy (one plan a context at a time).
    """

    def __init__(
        self,
        path: Union[str, os.PathLike[str]],
        *,
        context: Optional[Context] = None,
        kv: Union[KVType, str, None] = None,
        **options: "Unpack[PlanOptions]",
    ) -> None:
        context = context or default_context()
        keep: List[object] = []
        ours, template = split_options(options, _abi.sharpi_plan_params, _abi.sharpi_session_params)
        if kv is not None:
            template = {"k_dtype": kv, "v_dtype": kv, **template}
        session = params(_abi.sharpi_session_params, lib.sharpi_session_params_init)
        fill(session, template, keep)
        plan = params(_abi.sharpi_plan_params, lib.sharpi_plan_params_init)
        listed = ours.pop("devices", None)
        adapters = [path_bytes(one) for one in ours.pop("adapters", None) or ()]  # type: ignore[attr-defined]
        if isinstance(ours.get("device"), str):
            ours["device"] = context.find(str(ours["device"]))
        group: Any = ours.pop("group", None)
        counts: Any = ours.pop("rank_layers", None)
        fill(plan, ours, keep)
        if counts is not None:
            layers = int_array(counts, "I", "rank_layers")[0]
            keep.append(layers)
            plan.rank_layers = ctypes.addressof(layers)
        if listed is not None:
            block = device_requests(context, listed)  # type: ignore[arg-type]
            plan.devices, plan.n_devices = ctypes.addressof(block), len(block)
        paths = (ctypes.c_char_p * len(adapters))(*adapters)
        plan.adapters, plan.n_adapters = ctypes.addressof(paths), len(adapters)
        plan.session = ctypes.addressof(session)
        with group._handle if group is not None else contextlib.nullcontext() as plan.group:
            self._handle = owned(context._handle, lib.sharpi_plan_create,
                                 [path_bytes(path), ctypes.byref(plan)], lib.sharpi_plan_destroy, "plan",
                                 group)

    @classmethod
    def _of_session(cls, model: Handle, params: Any) -> "Plan":
        plan = cls.__new__(cls)
        plan._handle = owned(model, lib.sharpi_plan_session, [params], lib.sharpi_plan_destroy, "plan")
        return plan

    @property
    def info(self) -> PlanSummary:
        """Effective settings and totals."""
        out = out_struct(_abi.sharpi_plan_summary)
        with self._handle as plan:
            call(lib.sharpi_plan_info, plan, ctypes.byref(out))
        return PlanSummary.of(out)

    def rows(self) -> List[MemoryRow]:
        """Every allocation, in bytes."""
        with self._handle as plan:
            rows = read_rows(lib.sharpi_plan_rows, plan, _abi.sharpi_memory_row)
        return [MemoryRow.of(row) for row in rows]

    def devices(self) -> List[PlanDevice]:
        """The devices that the plan may use, the host first, and what it has there."""
        with self._handle as plan:
            rows = read_rows(lib.sharpi_plan_devices, plan, _abi.sharpi_plan_device)
        return [PlanDevice.of(row) for row in rows]

    def layer(self, layer: int) -> LayerInfo:
        """Where a layer runs, and its KV types. Raises InvalidArgument (layer)."""
        with self._handle as plan:
            return layer_of(lib.sharpi_plan_layer, plan, layer)

    def fallbacks(self) -> List[str]:
        """What `auto` gave up to fit, a sentence each."""
        with self._handle as plan:
            texts = [read_bytes(lib.sharpi_plan_fallback, plan, i) for i in range(self.info.n_fallbacks)]
        return [text.decode("utf-8", "replace") for text in texts]

    def model(self) -> ModelSummary:
        """What the file is: architecture, sizes, tokenizer, chat format."""
        out = out_struct(_abi.sharpi_model_summary)
        with self._handle as plan:
            call(lib.sharpi_plan_model, plan, ctypes.byref(out))
        return ModelSummary.of(out)

    def meta(self, key: str) -> str:
        """A metadata value of the file as text. Raises NotFound."""
        with self._handle as plan:
            text = read_bytes(lib.sharpi_plan_meta, plan, c_string(key, "key"))
        return text.decode("utf-8", "replace")

    def meta_keys(self) -> List[str]:
        with self._handle as plan:
            return meta_keys(lib.sharpi_plan_meta_key, plan)

    def json(self) -> Dict[str, Any]:
        """The whole plan, as sharpi_plan_json() has it."""
        with self._handle as plan:
            text = read_bytes(lib.sharpi_plan_json, plan, cap=1 << 14)
        parsed: Dict[str, Any] = json.loads(text)
        return parsed

    def __iter__(self) -> Iterator[MemoryRow]:
        return iter(self.rows())
