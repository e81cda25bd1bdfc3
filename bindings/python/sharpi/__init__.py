# SPDX-License-Identifier: MIT
"""GGUF language models on a GPU trunk and a CPU tail, with the KV cache as storage.

    import sharpi

    model = sharpi.Model("model.gguf", kv="q8_0", n_ctx=8192)
    with sharpi.Chat(model, "Answer briefly.", temperature=0) as chat:
        for piece in chat.send("What is a KV cache?"):
            print(piece, end="", flush=True)

This is libsharpi's C header as Python has such things: objects that close, iterators, exceptions,
callbacks. The header, sharpi.h, is the manual of what the words mean.
"""

from . import errors, types
from ._library import build_info, status_name, tier_name, version
from ._abi import SHARPI_ALL_FREE as ALL_FREE
from ._abi import SHARPI_UNSET as UNSET
from .adapter import Adapter
from .batch import decode_batch, step_batch, verify_batch
from .chat import Chat, Reply, read_prompt
from .context import Context, default_context
from .embed import Embedder
from .errors import (BadFormat, BadState, BufferTooSmall, Busy, Cancelled, Closed, DeviceError,
                     DeviceLost, DoesNotFit, Error, InternalError, InvalidArgument, IOFailed, KVFull,
                     Mismatch, NotFound, OutOfMemory, Unsupported)
from .generate import Generation, Grammar
from .grammar import CompiledGrammar, Matcher, check_schema
from .group import Group
from .model import Model
from .plan import Plan
from .session import Sampled, Session
from .text import ChatParts, StopStream, TextModel, TextStream, chat_parse
from .types import (AdapterSummary, Arithmetic, ChatKind, CompactReport, Device, Drafters, DraftStats, EmbedderSummary,
                    ExpertStats, GroupSummary, Isa,
                    KVFullReason, KVType, LayerBudget, LayerInfo, LoadMode, LogLevel, MemoryRow, Mixer,
                    ModelSummary, Part, Phase, PlanDevice, PlanSummary, Policy, Pooling, RecallReport, RowKind, RowPurpose,
                    SegmentInfo, SessionSummary, Split, Status, Tier, TokenAttributes)

__version__ = "1.0.0"

__all__ = [
    "ALL_FREE", "UNSET", "Adapter", "AdapterSummary", "Arithmetic", "BadFormat", "BadState", "BufferTooSmall", "Busy", "Cancelled",
    "Chat", "ChatKind", "ChatParts", "Closed", "CompactReport", "CompiledGrammar", "Context", "Device",
    "DeviceError", "DeviceLost", "DoesNotFit", "DraftStats", "Drafters", "Embedder", "EmbedderSummary",
    "Error", "ExpertStats",
    "Generation", "Grammar", "Group", "GroupSummary", "IOFailed", "InternalError", "InvalidArgument", "Isa", "KVFull",
    "KVFullReason", "KVType", "LayerBudget", "LayerInfo", "LoadMode", "LogLevel", "Matcher", "MemoryRow",
    "Mismatch", "Mixer", "Model", "ModelSummary", "NotFound", "OutOfMemory", "Part", "Phase", "Plan", "PlanDevice", "PlanSummary",
    "Policy", "Pooling", "RecallReport", "Reply", "RowKind", "RowPurpose", "Sampled", "SegmentInfo", "Session", "SessionSummary",
    "Split", "Status", "StopStream", "TextModel", "TextStream", "Tier", "TokenAttributes", "Unsupported",
    "build_info", "chat_parse", "check_schema", "decode_batch", "default_context", "errors", "read_prompt",
    "status_name", "step_batch", "tier_name", "types", "verify_batch", "version",
]
