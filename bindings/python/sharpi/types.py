# SPDX-License-Identifier: MIT
# Written by tools/make_python_abi.py from include/sharpi.h; a test compares the two. Do not edit.
"""Enumerations, records and options of sharpi.h."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Dict, Literal, Optional, Sequence, Type, TypedDict, Union

from . import _abi

if TYPE_CHECKING:
    from .group import Group


class _Number(IntEnum):
    """A number of the header. One that only a newer library knows has a name with that number."""

    @classmethod
    def _missing_(cls, value: object) -> Optional[_Number]:
        if not isinstance(value, int):
            return None
        unknown = int.__new__(cls, value)
        unknown._name_ = f"UNKNOWN_{value}"
        unknown._value_ = value
        return unknown


class Status(_Number):
    """What a call returns: 0, or why it failed."""

    OK = 0
    INVALID_ARGUMENT = -1
    """An argument is null, out of range or contradictory."""
    OUT_OF_MEMORY = -2
    """Host or device memory could not be had."""
    UNSUPPORTED = -3
    """Valid, but this build, model or device cannot do it."""
    NOT_FOUND = -4
    """No such file, device, key or checkpoint."""
    IO = -5
    """The operating system refused to read or map."""
    FORMAT = -6
    """The file or blob is malformed."""
    MISMATCH = -7
    """Well formed, but of another model, plan or version."""
    CANCELLED = -8
    """sharpi_session_cancel() or a progress callback."""
    KV_FULL = -9
    """The session is full; nothing changed. native_code is one of SHARPI_KV_FULL_*."""
    DOES_NOT_FIT = -10
    """A budget is too small; the text has the bytes."""
    BUFFER_TOO_SMALL = -11
    """The out-length says how much is needed."""
    STATE = -12
    """Not possible in the object's present state."""
    BUSY = -13
    """Another call is using the object."""
    DEVICE = -14
    """A device call failed; native_code says which."""
    DEVICE_LOST = -15
    """A sticky device fault, or a rank of a group is gone; only destroy is legal."""
    INTERNAL = -16
    """A bug of the library, caught."""


class KVType(_Number):
    """How KV rows are stored."""

    AUTO = 0
    """The architecture's default, narrowed only if needed."""
    F32 = 1
    """4 bytes an element."""
    BF16 = 2
    """2 bytes, round to nearest even."""
    Q8_0 = 3
    """34 bytes for 32 elements (ggml block_q8_0)."""
    Q4 = 4
    """18 bytes for 32 elements: rotated, sixteen levels; AUTO never takes it. Keys lose most by it:
    K in Q8_0 and V in Q4 is recommended, both in Q4 is a choice to be measured with the model.
    Heads whose size is no multiple of 16 are UNSUPPORTED when planned."""


class Tier(_Number):
    """Where blocks run."""

    CPU = 1
    CUDA = 2
    VULKAN = 3


class Phase(_Number):
    """What a progress callback tells of."""

    LOAD = 1
    """Bytes of weights made ready. Copies, each device's share and a draft model are loaded one
    after the other, and each is counted from 0."""
    PREFILL = 2
    """Tokens read."""
    COMPACT = 3
    """Layers scored."""
    EMBED = 4
    """Tokens of texts read."""


class LogLevel(_Number):
    """Of a line of the log."""

    ERROR = 1
    WARN = 2
    INFO = 3
    DEBUG = 4


class Isa(_Number):
    """Instruction set of the CPU tier's kernels."""

    AUTO = 0
    """The best the machine has."""
    SCALAR = 1
    AVX2 = 2
    AVX512 = 3
    """With VNNI, and for attention over prompts with BF16 where the machine has it."""
    AMX = 4
    """AVX-512 and bf16 tiles; asks Linux once for the process's permission to use tile
    registers."""
    NEON = 5
    """aarch64, with dot products where the machine has them: the same bits either way."""
    I8MM = 6
    """NEON with products of matrices in int8 and bf16."""


class Policy(_Number):
    """How compaction chooses the rows that it keeps."""

    AUTO = 0
    """The best one by our measurements: RETRIEVAL. In a session that captures replay scores: MIXED
    where a question is known, which is where sharpi_compact_params has a probe or a window, and in
    compactions by kv_budget and prompt_budget; else REPLAY."""
    GLOBAL = 1
    """One keep set for the model: softmax mass summed over layers, heads and queries; no
    pooling."""
    SNAPKV = 2
    """Per KV head, mean over window and group, average pooling (arXiv 2404.14469)."""
    DEFENSIVE = 3
    """Max over window and group with a mean floor (arXiv 2510.13334)."""
    VALUE = 4
    """SnapKV scores times the L1 norm of the value through the output projection, of which the
    first 128 outputs count (arXiv 2502.03805)."""
    SPAN = 5
    """A hit also marks the rows that follow it."""
    RETRIEVAL = 6
    """Span over the largest term instead of the mean; a hit of any layer or head counts in all of
    them, and a query counts half as much as one 32 later."""
    KEEP = 7
    """The host passes the rows."""
    REPLAY = 8
    """For questions that nobody knows yet: how much a position would be looked at if the text were
    read a second time, by the scores that sharpi_session_params.replay captures, added up over
    layers and heads. Asks no captured query and no probe. UNSUPPORTED in a session without the
    scores."""
    MIXED = 9
    """RETRIEVAL's rows first: 64, and half of what the budget leaves to scores beyond; REPLAY's for
    the rest."""


class Arithmetic(_Number):
    """Of activations."""

    FAST = 0
    """Activations of 8 or 16 bits where they pay."""
    EXACT = 1
    """f32 activations."""


class LoadMode(_Number):
    """How weights that run on the CPU come from the file."""

    COPY = 0
    """Read when the model is loaded, into memory that the plan lists and budgets count. The file is
    never mapped: whoever shortens or changes it meanwhile causes a status (MISMATCH, IO or FORMAT),
    and once the model is loaded nothing touches the file."""
    MAP = 1
    """Used in place in the mapped file: such models share its pages among processes, load at once
    when the system has the file in its cache, and may be larger than the memory. The host must keep
    the file as it is from load on, while a model or session lives: a file that is shortened ends
    the process (SIGBUS), one that is written to gives other results. Renaming or deleting it does
    no harm."""


class Split(_Number):
    """Which of the devices that a plan may use it uses."""

    FEWEST = 0
    """One device, if one holds everything that is to be on a GPU, with the context that is asked
    for: the first such one of the list. Otherwise layers go to several, each filled before the next
    one is used."""
    ALL = 1
    """Layers over all of them, to equal shares of what each may take."""
    TENSOR = 2
    """Every layer over all of them: UNSUPPORTED so far."""


class RowKind(_Number):
    """Which memory a row of a plan takes."""

    DEVICE = 1
    PINNED = 2
    ANONYMOUS = 3
    MAPPED = 4
    """Pages of the model file."""


class RowPurpose(_Number):
    """What a row of a plan is for."""

    WEIGHTS = 1
    KV = 2
    RECURRENT = 3
    CHECKPOINTS = 4
    CAPTURE = 5
    """Ring buffer of captured queries."""
    COMPACTION = 6
    """Scratch reserved for compaction."""
    ACTIVATIONS = 7
    """Workspace of a call in flight."""
    LOGITS = 8
    STAGING = 9
    EXPERTS = 10
    GRAPHS = 11
    TABLES = 12
    """RoPE factors, pointer tables."""
    LIBRARY = 13
    """cuBLAS workspaces."""
    DRIVER = 14
    """Measured, not planned: what the driver took."""
    KV_CHUNK = 15
    """Chunk scratch of sliding-window layers."""
    ADAPTERS = 16
    """Weights of an adapter: taken when it is loaded."""


class Mixer(_Number):
    """What mixes the tokens of a layer."""

    ATTENTION = 1
    WINDOW = 2
    DELTA_NET = 3
    MAMBA2 = 4
    NONE = 5
    """The layer has an FFN only."""


class ChatKind(_Number):
    """Where a model's chat format comes from."""

    UNKNOWN = 0
    """No template; a format that is not known."""
    CHATML = 1
    """No template; the vocabulary is of ChatML, whose plain form is used."""
    GEMMA = 2
    """No template; the plain form of Gemma 4 is used."""
    OLMOE = 3
    """No template; the plain form of OLMoE is used."""
    TEMPLATE = 4
    """The file's own template."""
    GEMMA3 = 5
    """No template; the plain form of Gemma 2 and 3 is used."""


class Part(_Number):
    """Of a generated text."""

    CONTENT = 0
    REASONING = 1
    TOOL_CALL = 2
    HEADER = 3
    """The head of a message of gpt-oss, or the place between two: what follows is not known yet.
    With SHARPI_PARSE_PARTIAL only."""


class LayerBudget(_Number):
    """How a compaction's budget is shared among the layers."""

    EQUAL = 0
    PYRAMID = 1
    """More in low layers (arXiv 2406.02069)."""
    ENTROPY = 2
    """By the entropy of a layer's scores."""
    SHARED = 3
    """By scores, over all KV heads of all layers."""


class Pooling(_Number):
    """What becomes of the rows of a text, one for each token."""

    AUTO = 0
    """What the file says; refused where it says nothing, for a vector pooled otherwise than the
    model was trained for is only noise."""
    NONE = 1
    """All rows."""
    MEAN = 2
    """Their mean."""
    CLS = 3
    """The first one."""
    LAST = 4
    """The last one."""
    RANK = 5
    """A score instead of a vector, by sharpi_rerank(): what files of rerankers say. No call takes
    it."""


class Drafters(IntFlag):
    """Who drafts tokens in Session.step(); 0: only the host, by Session.verify()."""

    NGRAM = 1
    """Prompt lookup: the draft is what followed the last tokens where they occurred before in this
    session. As many drafts as pay, by how often they are accepted and how long passes take; none in
    steps with a mask."""
    MTP = 2
    """The file's block for multi-token prediction, which is run over all tokens that the session
    reads; asked after NGRAM. It is on the tier of the head, which serves both. Its weights, its KV
    rows (in the dtypes of that tier's last attention layer, or of the model's last one) and its
    scratch are rows of the plan. As many drafts as pay. sharpi_session_compact() leaves its rows
    alone, a bounded session keeps the last kv_budget of them; saved sessions do not have them, so
    after a restore it starts with none. They belong to no layer index. UNSUPPORTED when planned: a
    file without the block."""
    AUTO = 4
    """NGRAM, and MTP where the file has it and the budgets hold it, and MODEL where the plan has a
    draft_path and the budgets hold it; otherwise a fallback says why not."""
    MODEL = 8
    """A smaller model of the same vocabulary, the plan's draft_path, which has a session of its own
    inside and continues the text greedily; asked last. All of it is on the tier of the head, or,
    with a fallback that says so, on the CPU where it does not fit beside the head on a GPU. Its
    weights, KV rows (its architecture's own dtype; as many as the session stores of full attention,
    at most its own context) and scratch are rows of the plan. Before it drafts, it reads the tokens
    that it has not read yet. While drafts do not pay it reads nothing; it reads all tokens again
    after a restore, in a fork, and where its recurrent layers cannot go back to the place where the
    texts differ. When its rows are full it continues from the last half of them. Compaction leaves
    it alone; saved sessions do not have its rows."""


class KVFullReason(_Number):
    """The native code of a KVFull exception."""

    CONTEXT = 1
    """n_ctx is used up: truncate, or take a larger one, or a bounded session (kv_budget), which
    goes on."""
    SLOTS = 2
    """Committed slots are used up: compact to fewer rows, or sharpi_session_reserve()."""


class TokenAttributes(IntFlag):
    """What a token is; none: ordinary text."""

    CONTROL = 1
    """A marker: tokenised only with PARSE_SPECIAL."""
    END = 2
    """Ends a generation, as sharpi_token_is_end() says."""
    BYTE = 4
    """Stands for one byte."""
    USER_DEFINED = 8
    """Added to the vocabulary; always found in text."""
    UNKNOWN = 16
    """Stands for text that has no token."""
    NEVER = 32
    """Never drawn: unused, or on the file's suppress list."""


@dataclass(frozen=True)
class Device:
    """One compute device. Index 0 is always the host."""
    tier: Tier
    n_devices: int
    """In this context, host included."""
    n_cores: int
    """Threads of the context, or multiprocessors."""
    total_bytes: int
    free_bytes: int
    """At the time of the call."""
    bandwidth: float
    """Measured read bytes/s; 0 unless asked for."""
    name: str
    isa: str
    """"avx512", "sm_90", ..."""
    link_bandwidth: float
    """Measured bytes/s from pinned host memory to a GPU; 0 unless asked for."""
    held_bytes: int
    """GPU memory that this context has taken, all of it listed in plans."""
    other_bytes: int
    """GPU memory in use besides: what the driver took for itself (not planned), and other
    processes."""
    id: str
    """The same device in every process and after a restart: "cpu", or a GPU's UUID as its driver
    writes it, "GPU-1b0c4a5e-..."."""

    @classmethod
    def of(cls, s: _abi.sharpi_device) -> "Device":
        """From the struct that the library filled."""
        return cls(
            tier=Tier(s.tier),
            n_devices=s.n_devices,
            n_cores=s.n_cores,
            total_bytes=s.total_bytes,
            free_bytes=s.free_bytes,
            bandwidth=s.bandwidth,
            name=s.name.decode("utf-8", "replace"),
            isa=s.isa.decode("utf-8", "replace"),
            link_bandwidth=s.link_bandwidth,
            held_bytes=s.held_bytes,
            other_bytes=s.other_bytes,
            id=s.id.decode("utf-8", "replace"),
        )


@dataclass(frozen=True)
class PlanSummary:
    """The effective settings and totals of a plan."""
    n_ctx: int
    """Effective context of a session."""
    n_layers: int
    """Of the model."""
    n_gpu_layers: int
    """With their mixer on the GPU."""
    n_gpu_ffn: int
    n_expert_slots: int
    k_dtype: KVType
    """Effective, of the trunk (or of the CPU if it has all)."""
    v_dtype: KVType
    """Effective, of the trunk (or of the CPU if it has all)."""
    tail_k_dtype: KVType
    """Effective, of the tail."""
    tail_v_dtype: KVType
    """Effective, of the tail."""
    arithmetic: Arithmetic
    deterministic: bool
    n_chunk: int
    max_batch: int
    max_logit_rows: int
    max_concurrent: int
    n_sessions: int
    n_rows: int
    """Of sharpi_plan_rows()."""
    n_mtp_layers: int
    """In the file; loaded and priced only for SHARPI_DRAFT_MTP."""
    narrowed: bool
    """1 = `auto` chose a narrower KV dtype to fit."""
    capture_window: int
    n_checkpoints: int
    rewind: int
    kv_budget: int
    device_payload_bytes: int
    device_held_bytes: int
    host_payload_bytes: int
    """Anonymous and pinned rows."""
    host_held_bytes: int
    """Anonymous and pinned rows."""
    mapped_bytes: int
    """File pages used in place (MAP)."""
    kv_payload_bytes: int
    """KV rows of one session."""
    session_held_bytes: int
    """All of one session, on all devices."""
    fingerprint: int
    """Of the file; checked again at load."""
    device_peak_bytes: int
    """The most at any time: what is held, or weights and staging while the model is loaded."""
    host_peak_bytes: int
    """The most at any time: what is held, or weights and staging while the model is loaded."""
    expert_slot_bytes: int
    """Of one expert slot; 0 = there can be none."""
    device_rate: float
    """Used; 0 = not given, and not needed."""
    pcie_rate: float
    """Used; 0 = not given, and not needed."""
    host_rate: float
    """Used; 0 = not given, and not needed."""
    n_gpu_experts: int
    """Layers whose routed experts are all on the GPU."""
    n_fallbacks: int
    """Of sharpi_plan_fallback()."""
    stream_rows: int
    """As in the parameters; UNSET = nothing streams."""
    load_mode: LoadMode
    device_token_bytes: int
    """Weights that a decoded token reads; experts in slots count as the host's."""
    host_token_bytes: int
    """Weights that a decoded token reads; experts in slots count as the host's."""
    device_token_row_bytes: int
    """KV rows and recurrent state, at the end of the context."""
    host_token_row_bytes: int
    """KV rows and recurrent state, at the end of the context."""
    token_seconds: float
    """Seconds in which a token reads these bytes at the rates: its weights alone, and (full) with
    its rows. 0 = a rate is not known."""
    full_token_seconds: float
    """Seconds in which a token reads these bytes at the rates: its weights alone, and (full) with
    its rows. 0 = a rate is not known."""
    capture_bytes: int
    """What the capture_window takes of a session, on all devices: query ring, rows for as many
    queries of a probe, scratch of scoring, tables of compaction. Without a window, what one of 64
    would take."""
    n_devices: int
    """Of sharpi_plan_devices()."""
    split: Split
    """As in the parameters."""
    adapter_rank: int
    """Of adapters that may be loaded; 0 = none."""

    @classmethod
    def of(cls, s: _abi.sharpi_plan_summary) -> "PlanSummary":
        """From the struct that the library filled."""
        return cls(
            n_ctx=s.n_ctx,
            n_layers=s.n_layers,
            n_gpu_layers=s.n_gpu_layers,
            n_gpu_ffn=s.n_gpu_ffn,
            n_expert_slots=s.n_expert_slots,
            k_dtype=KVType(s.k_dtype),
            v_dtype=KVType(s.v_dtype),
            tail_k_dtype=KVType(s.tail_k_dtype),
            tail_v_dtype=KVType(s.tail_v_dtype),
            arithmetic=Arithmetic(s.arithmetic),
            deterministic=bool(s.deterministic),
            n_chunk=s.n_chunk,
            max_batch=s.max_batch,
            max_logit_rows=s.max_logit_rows,
            max_concurrent=s.max_concurrent,
            n_sessions=s.n_sessions,
            n_rows=s.n_rows,
            n_mtp_layers=s.n_mtp_layers,
            narrowed=bool(s.narrowed),
            capture_window=s.capture_window,
            n_checkpoints=s.n_checkpoints,
            rewind=s.rewind,
            kv_budget=s.kv_budget,
            device_payload_bytes=s.device_payload_bytes,
            device_held_bytes=s.device_held_bytes,
            host_payload_bytes=s.host_payload_bytes,
            host_held_bytes=s.host_held_bytes,
            mapped_bytes=s.mapped_bytes,
            kv_payload_bytes=s.kv_payload_bytes,
            session_held_bytes=s.session_held_bytes,
            fingerprint=s.fingerprint,
            device_peak_bytes=s.device_peak_bytes,
            host_peak_bytes=s.host_peak_bytes,
            expert_slot_bytes=s.expert_slot_bytes,
            device_rate=s.device_rate,
            pcie_rate=s.pcie_rate,
            host_rate=s.host_rate,
            n_gpu_experts=s.n_gpu_experts,
            n_fallbacks=s.n_fallbacks,
            stream_rows=s.stream_rows,
            load_mode=LoadMode(s.load_mode),
            device_token_bytes=s.device_token_bytes,
            host_token_bytes=s.host_token_bytes,
            device_token_row_bytes=s.device_token_row_bytes,
            host_token_row_bytes=s.host_token_row_bytes,
            token_seconds=s.token_seconds,
            full_token_seconds=s.full_token_seconds,
            capture_bytes=s.capture_bytes,
            n_devices=s.n_devices,
            split=Split(s.split),
            adapter_rank=s.adapter_rank,
        )


@dataclass(frozen=True)
class MemoryRow:
    """One line of a plan, or of what was really allocated."""
    tier: Tier
    device: int
    """Index as in sharpi_device_info()."""
    purpose: RowPurpose
    kind: RowKind
    first_layer: int
    """Layers it serves; n_layers 0 = the whole model."""
    n_layers: int
    """Layers it serves; n_layers 0 = the whole model."""
    per_session: bool
    """1 = once for every session of the template."""
    transient: bool
    """1 = only while the model is loaded: in no total, but in the peaks."""
    payload_bytes: int
    """What is used."""
    held_bytes: int
    """What is taken (payload plus rounding)."""
    shared_bytes: int
    """Of held_bytes: what other sessions hold too, forks of one another (sharpi_session_fork()); it
    is in the rows of each, but was taken once. 0 in plans."""
    label: str

    @classmethod
    def of(cls, s: _abi.sharpi_memory_row) -> "MemoryRow":
        """From the struct that the library filled."""
        return cls(
            tier=Tier(s.tier),
            device=s.device,
            purpose=RowPurpose(s.purpose),
            kind=RowKind(s.kind),
            first_layer=s.first_layer,
            n_layers=s.n_layers,
            per_session=bool(s.per_session),
            transient=bool(s.transient),
            payload_bytes=s.payload_bytes,
            held_bytes=s.held_bytes,
            shared_bytes=s.shared_bytes,
            label=s.label.decode("utf-8", "replace"),
        )


@dataclass(frozen=True)
class PlanDevice:
    """A device that a plan may use, and what it has there. The host is the first one."""
    device: int
    """Index as in sharpi_device_info()."""
    tier: Tier
    n_layers: int
    """Mixers, and dense FFNs or routers with shared experts."""
    n_ffn: int
    """Mixers, and dense FFNs or routers with shared experts."""
    n_experts: int
    """Layers whose routed experts are all here."""
    n_expert_slots: int
    has_embedding: bool
    """0 or 1. The MTP block is where the head is."""
    has_head: bool
    """0 or 1. The MTP block is where the head is."""
    budget: int
    """As asked for."""
    reserve: int
    """As asked for."""
    payload_bytes: int
    """Sums of the plan's memory rows that are there; of the host without pages of the file."""
    held_bytes: int
    """Sums of the plan's memory rows that are there; of the host without pages of the file."""
    peak_bytes: int
    """The most at any time."""
    token_bytes: int
    """Weights that a decoded token reads, and KV rows and recurrent state at the end of the
    context."""
    token_row_bytes: int
    """Weights that a decoded token reads, and KV rows and recurrent state at the end of the
    context."""
    rate: float
    """Used; 0 = not given, and not needed."""
    link_rate: float
    """Used; 0 = not given, and not needed."""
    name: str
    id: str
    """As in sharpi_device."""
    refusal: str
    """Why this plan cannot use the device, one sentence; empty = it can."""

    @classmethod
    def of(cls, s: _abi.sharpi_plan_device) -> "PlanDevice":
        """From the struct that the library filled."""
        return cls(
            device=s.device,
            tier=Tier(s.tier),
            n_layers=s.n_layers,
            n_ffn=s.n_ffn,
            n_experts=s.n_experts,
            n_expert_slots=s.n_expert_slots,
            has_embedding=bool(s.has_embedding),
            has_head=bool(s.has_head),
            budget=s.budget,
            reserve=s.reserve,
            payload_bytes=s.payload_bytes,
            held_bytes=s.held_bytes,
            peak_bytes=s.peak_bytes,
            token_bytes=s.token_bytes,
            token_row_bytes=s.token_row_bytes,
            rate=s.rate,
            link_rate=s.link_rate,
            name=s.name.decode("utf-8", "replace"),
            id=s.id.decode("utf-8", "replace"),
            refusal=s.refusal.decode("utf-8", "replace"),
        )


@dataclass(frozen=True)
class LayerInfo:
    """Where a layer runs and what it stores for a session. In a plan n_slots is 0."""
    mixer: Mixer
    tier: Tier
    """Of its mixer and its KV rows."""
    kv_source: int
    """Layer whose rows it reads; its own index if it owns."""
    k_dtype: KVType
    """Effective; AUTO when it stores no such rows: no KV, or keys that are the values too."""
    v_dtype: KVType
    """Effective; AUTO when it stores no such rows: no KV, or keys that are the values too."""
    n_slots: int
    """Live rows, of the fullest KV head."""
    capacity: int
    """Rows that have memory; of a sliding window the size of its ring buffer."""
    n_kv_heads: int
    head_dim: int
    ffn_tier: Tier
    """Of its dense FFN, or router and shared expert."""
    experts_tier: Optional[Tier]
    """Of its routed experts; 0 = it has none."""
    device: int
    """Devices of its mixer, FFN and experts; UNSET = it has none of that kind."""
    ffn_device: int
    """Devices of its mixer, FFN and experts; UNSET = it has none of that kind."""
    experts_device: Optional[int]
    """Devices of its mixer, FFN and experts; UNSET = it has none of that kind."""

    @classmethod
    def of(cls, s: _abi.sharpi_layer_info) -> "LayerInfo":
        """From the struct that the library filled."""
        return cls(
            mixer=Mixer(s.mixer),
            tier=Tier(s.tier),
            kv_source=s.kv_source,
            k_dtype=KVType(s.k_dtype),
            v_dtype=KVType(s.v_dtype),
            n_slots=s.n_slots,
            capacity=s.capacity,
            n_kv_heads=s.n_kv_heads,
            head_dim=s.head_dim,
            ffn_tier=Tier(s.ffn_tier),
            experts_tier=Tier(s.experts_tier) if s.experts_tier else None,
            device=s.device,
            ffn_device=s.ffn_device,
            experts_device=s.experts_device if s.experts_tier else None,
        )


@dataclass(frozen=True)
class ModelSummary:
    """What a model is."""
    n_layers: int
    n_embd: int
    n_vocab: int
    n_ctx_train: int
    n_mtp_layers: int
    """In the file, loaded or not."""
    chat: ChatKind
    bos: int
    """-1 = none."""
    eos: int
    """-1 = none."""
    is_hybrid: bool
    """Has recurrent layers."""
    has_window: bool
    """Has sliding-window layers."""
    n_experts: int
    n_parameters: int
    file_bytes: int
    content_id: int
    """Identifies the model in saved sessions."""
    architecture: str
    name: str
    stream_rows: int
    """Rows of a call from which weights stream to the GPU, as given or as measured; UNSET = never.
    In a plan 0 = will be measured."""
    is_encoder: bool
    """Reads whole texts and has no sessions: sharpi_embedder_create(). 0 for text alone."""
    tokenizer: str
    """"gpt2 qwen2": the file's tokenizer and its pre-tokenizer; empty = none that this library
    knows."""

    @classmethod
    def of(cls, s: _abi.sharpi_model_summary) -> "ModelSummary":
        """From the struct that the library filled."""
        return cls(
            n_layers=s.n_layers,
            n_embd=s.n_embd,
            n_vocab=s.n_vocab,
            n_ctx_train=s.n_ctx_train,
            n_mtp_layers=s.n_mtp_layers,
            chat=ChatKind(s.chat),
            bos=s.bos,
            eos=s.eos,
            is_hybrid=bool(s.is_hybrid),
            has_window=bool(s.has_window),
            n_experts=s.n_experts,
            n_parameters=s.n_parameters,
            file_bytes=s.file_bytes,
            content_id=s.content_id,
            architecture=s.architecture.decode("utf-8", "replace"),
            name=s.name.decode("utf-8", "replace"),
            stream_rows=s.stream_rows,
            is_encoder=bool(s.is_encoder),
            tokenizer=s.tokenizer.decode("utf-8", "replace"),
        )


@dataclass(frozen=True)
class SegmentInfo:
    """A run of blocks on one device, and what it has cost so far. Calls of fewer rows than
    stream_rows take the segments of list 0, the others those of list 1, where blocks placed on the
    CPU run on the GPU."""
    tier: Tier
    """That runs it."""
    list: int
    """0 or 1; a call takes one list from first to last."""
    first_layer: int
    """Layers it has blocks of."""
    n_layers: int
    """Layers it has blocks of."""
    has_embedding: bool
    """0 or 1."""
    has_head: bool
    """0 or 1."""
    n_mixers: int
    """Blocks."""
    n_ffn: int
    """Blocks."""
    n_experts: int
    """Layers whose routed experts it computes."""
    n_streamed: int
    """FFN and expert blocks whose weights are copied to the GPU for every call of this list."""
    n_calls: int
    """Times it ran."""
    n_rows: int
    """Rows of all calls."""
    streamed_bytes: int
    """Weights brought to the GPU's staging area, bytes of all calls; routed experts with a slot
    come from there, the others over the link."""
    seconds: float
    """From hand-over to hand-over, all calls."""
    device: int
    """That runs it: index as in sharpi_device_info()."""

    @classmethod
    def of(cls, s: _abi.sharpi_segment_info) -> "SegmentInfo":
        """From the struct that the library filled."""
        return cls(
            tier=Tier(s.tier),
            list=s.list,
            first_layer=s.first_layer,
            n_layers=s.n_layers,
            has_embedding=bool(s.has_embedding),
            has_head=bool(s.has_head),
            n_mixers=s.n_mixers,
            n_ffn=s.n_ffn,
            n_experts=s.n_experts,
            n_streamed=s.n_streamed,
            n_calls=s.n_calls,
            n_rows=s.n_rows,
            streamed_bytes=s.streamed_bytes,
            seconds=s.seconds,
            device=s.device,
        )


@dataclass(frozen=True)
class DraftStats:
    """What drafts have brought since the session was created."""
    drafters: Drafters
    """SHARPI_DRAFT_NGRAM, _MTP, _MODEL: those that it has."""
    n_passes: int
    """That verified drafts."""
    n_drafted: int
    """Tokens."""
    n_accepted: int
    """Tokens."""
    draft_seconds: float
    """Finding drafts."""
    verify_seconds: float
    """Those passes and their draws."""

    @classmethod
    def of(cls, s: _abi.sharpi_draft_stats) -> "DraftStats":
        """From the struct that the library filled."""
        return cls(
            drafters=Drafters(s.drafters),
            n_passes=s.n_passes,
            n_drafted=s.n_drafted,
            n_accepted=s.n_accepted,
            draft_seconds=s.draft_seconds,
            verify_seconds=s.verify_seconds,
        )


@dataclass(frozen=True)
class ExpertStats:
    """Routed experts that are on the CPU while their layer's router is on the GPU, since loading.
    The GPU keeps copies of some in slots and computes those, the CPU the others at the same time.
    Which are kept follows their use (a segmented LRU with frequencies), but never changes during a
    call, and not at all in a `deterministic` model; otherwise results may differ in the last bits
    with what was kept."""
    n_slots: int
    """Of the plan."""
    n_resident: int
    """Slots that hold an expert now."""
    n_pinned: int
    """Of these, by sharpi_model_pin_experts()."""
    slot_bytes: int
    n_uses: int
    """Experts that rows were routed to."""
    n_hits: int
    """Of these, computed on the GPU."""
    n_promotions: int
    """Experts that came into a slot for their use, or left."""
    n_evictions: int
    """Experts that came into a slot for their use, or left."""
    promoted_bytes: int
    """Bytes of the experts that were copied to the GPU for that."""

    @classmethod
    def of(cls, s: _abi.sharpi_expert_stats) -> "ExpertStats":
        """From the struct that the library filled."""
        return cls(
            n_slots=s.n_slots,
            n_resident=s.n_resident,
            n_pinned=s.n_pinned,
            slot_bytes=s.slot_bytes,
            n_uses=s.n_uses,
            n_hits=s.n_hits,
            n_promotions=s.n_promotions,
            n_evictions=s.n_evictions,
            promoted_bytes=s.promoted_bytes,
        )


@dataclass(frozen=True)
class SessionSummary:
    """What a session holds and has done."""
    n_tokens: int
    """Logical length: the position of the next token. In a bounded session at its context the last
    half of it, or what is held if that is more, becomes the first: positions then count from there,
    rows from before move up to it, checkpoints are gone. n_prefill_tokens and n_decode_tokens count
    all."""
    n_ctx: int
    """Highest logical length."""
    capacity: int
    """Slots committed in full-attention layers; the most of any where layers have memory of their
    own."""
    n_slots_min: int
    """Live rows over full-attention layers and their KV heads."""
    n_slots_max: int
    """Live rows over full-attention layers and their KV heads."""
    is_compacted: bool
    """Rows have been evicted."""
    n_logit_rows: int
    """Readable now."""
    n_checkpoints: int
    """Taken."""
    k_dtype: KVType
    """Effective, of the trunk (or the CPU if it has all)."""
    v_dtype: KVType
    """Effective, of the trunk (or the CPU if it has all)."""
    tail_k_dtype: KVType
    tail_v_dtype: KVType
    kv_payload_bytes: int
    """All KV rows now."""
    kv_held_bytes: int
    """All KV rows now."""
    kv_shared_bytes: int
    """Of kv_held_bytes: what forks hold too."""
    seed: int
    """Of the sampler: as given, or as drawn."""
    n_prefill_tokens: int
    """Read by this session so far."""
    n_decode_tokens: int
    """Read by this session so far."""
    prefill_seconds: float
    decode_seconds: float
    paths: str
    """Kernel paths, such as "cpu avx512; q4_K: int8-dot / int8-panel": of one row / of the most.
    Cut off with "..."; sharpi_model_json() has them whole."""
    adapters_id: int
    """Of the adapters it has and their scales; 0 = none."""
    n_adapters: int
    """With a scale other than 0."""
    n_other_tokens: int
    """The first so many tokens were read with other adapters, or none:
    sharpi_session_set_adapters() came behind them."""

    @classmethod
    def of(cls, s: _abi.sharpi_session_summary) -> "SessionSummary":
        """From the struct that the library filled."""
        return cls(
            n_tokens=s.n_tokens,
            n_ctx=s.n_ctx,
            capacity=s.capacity,
            n_slots_min=s.n_slots_min,
            n_slots_max=s.n_slots_max,
            is_compacted=bool(s.is_compacted),
            n_logit_rows=s.n_logit_rows,
            n_checkpoints=s.n_checkpoints,
            k_dtype=KVType(s.k_dtype),
            v_dtype=KVType(s.v_dtype),
            tail_k_dtype=KVType(s.tail_k_dtype),
            tail_v_dtype=KVType(s.tail_v_dtype),
            kv_payload_bytes=s.kv_payload_bytes,
            kv_held_bytes=s.kv_held_bytes,
            kv_shared_bytes=s.kv_shared_bytes,
            seed=s.seed,
            n_prefill_tokens=s.n_prefill_tokens,
            n_decode_tokens=s.n_decode_tokens,
            prefill_seconds=s.prefill_seconds,
            decode_seconds=s.decode_seconds,
            paths=s.paths.decode("utf-8", "replace"),
            adapters_id=s.adapters_id,
            n_adapters=s.n_adapters,
            n_other_tokens=s.n_other_tokens,
        )


@dataclass(frozen=True)
class CompactReport:
    """What a compaction kept and gave back."""
    policy: Policy
    """The one that ran."""
    rows_before: int
    """Of the fullest compacted layer, and of its fullest KV head."""
    rows_after: int
    """Of the fullest compacted layer, and of its fullest KV head."""
    n_layers: int
    """Layers compacted."""
    capacity: int
    """Slots that stay committed."""
    payload_before: int
    """KV bytes of live rows."""
    payload_after: int
    """KV bytes of live rows."""
    held_before: int
    """KV bytes committed."""
    held_after: int
    """KV bytes committed."""
    score_ms: float
    move_ms: float
    kept_sinks: int
    """Of rows_after: the first and the last ones."""
    kept_recent: int
    """Of rows_after: the first and the last ones."""
    kept_scored: int
    """Of rows_after: what the policy chose. 0 = it chose nothing, whatever its name: the budget
    left no row to it."""
    kept_unranked: int
    """Of rows_after: rows that stayed without being scored: the host's rows (KEEP), or all of them,
    if the budget was large enough for all."""
    kept_replayed: int
    """Of kept_scored: chosen by replay scores."""

    @classmethod
    def of(cls, s: _abi.sharpi_compact_report) -> "CompactReport":
        """From the struct that the library filled."""
        return cls(
            policy=Policy(s.policy),
            rows_before=s.rows_before,
            rows_after=s.rows_after,
            n_layers=s.n_layers,
            capacity=s.capacity,
            payload_before=s.payload_before,
            payload_after=s.payload_after,
            held_before=s.held_before,
            held_after=s.held_after,
            score_ms=s.score_ms,
            move_ms=s.move_ms,
            kept_sinks=s.kept_sinks,
            kept_recent=s.kept_recent,
            kept_scored=s.kept_scored,
            kept_unranked=s.kept_unranked,
            kept_replayed=s.kept_replayed,
        )


@dataclass(frozen=True)
class RecallReport:
    """What a recall brought back."""
    n_layers: int
    """Layers in which rows came back."""
    rows_in: int
    """Of the KV head to which most came back; as many went."""
    n_blocks: int
    """Blocks of 16 archived rows that were scored row by row, of the KV head that has most; 0 = the
    archive is empty."""
    archived: int
    """Rows in the archive of the KV head that has most."""
    total_rows: int
    """That came back, of all KV heads."""
    score_ms: float
    move_ms: float

    @classmethod
    def of(cls, s: _abi.sharpi_recall_report) -> "RecallReport":
        """From the struct that the library filled."""
        return cls(
            n_layers=s.n_layers,
            rows_in=s.rows_in,
            n_blocks=s.n_blocks,
            archived=s.archived,
            total_rows=s.total_rows,
            score_ms=s.score_ms,
            move_ms=s.move_ms,
        )


@dataclass(frozen=True)
class AdapterSummary:
    """What an adapter changes and holds."""
    n_weights: int
    """Weights of the model that it changes."""
    max_rank: int
    alpha: float
    n_parameters: int
    held_bytes: int
    content_id: int
    """Of its file."""
    name: str
    """general.name, or the file's."""

    @classmethod
    def of(cls, s: _abi.sharpi_adapter_summary) -> "AdapterSummary":
        """From the struct that the library filled."""
        return cls(
            n_weights=s.n_weights,
            max_rank=s.max_rank,
            alpha=s.alpha,
            n_parameters=s.n_parameters,
            held_bytes=s.held_bytes,
            content_id=s.content_id,
            name=s.name.decode("utf-8", "replace"),
        )


@dataclass(frozen=True)
class EmbedderSummary:
    """What an embedder reads, gives and holds."""
    n_ctx: int
    """Longest text in tokens."""
    n_parallel: int
    """Texts of one pass at most."""
    n_embd: int
    """Elements of a pooled vector."""
    n_row: int
    """Elements of a row with SHARPI_POOLING_NONE."""
    pooling: Pooling
    """What the file says; AUTO = it says nothing."""
    is_encoder: bool
    """Texts are read in one pass, without KV rows."""
    can_rank: bool
    """sharpi_rerank() has a score for its texts."""
    held_bytes: int
    n_tokens: int
    """Read so far, by calls that ended well."""
    seconds: float
    """What that took."""

    @classmethod
    def of(cls, s: _abi.sharpi_embedder_summary) -> "EmbedderSummary":
        """From the struct that the library filled."""
        return cls(
            n_ctx=s.n_ctx,
            n_parallel=s.n_parallel,
            n_embd=s.n_embd,
            n_row=s.n_row,
            pooling=Pooling(s.pooling),
            is_encoder=bool(s.is_encoder),
            can_rank=bool(s.can_rank),
            held_bytes=s.held_bytes,
            n_tokens=s.n_tokens,
            seconds=s.seconds,
        )


@dataclass(frozen=True)
class GroupSummary:
    """A group of processes, as this one sees it."""
    n_ranks: int
    rank: int
    is_lost: bool
    """1 = for good."""
    timeout_ms: int
    load_timeout_ms: int
    device_bytes: int
    """Of the communicator's device, held for messages."""
    transport: str
    """"NCCL 2.28.3", or "functions of the host"."""

    @classmethod
    def of(cls, s: _abi.sharpi_group_summary) -> "GroupSummary":
        """From the struct that the library filled."""
        return cls(
            n_ranks=s.n_ranks,
            rank=s.rank,
            is_lost=bool(s.is_lost),
            timeout_ms=s.timeout_ms,
            load_timeout_ms=s.load_timeout_ms,
            device_bytes=s.device_bytes,
            transport=s.transport.decode("utf-8", "replace"),
        )


class SessionOptions(TypedDict, total=False):
    """Keyword arguments, as the fields of sharpi_session_params; None is the default."""

    n_ctx: Optional[int]
    """Tokens; default UNSET = the largest context that fits the budgets: at least 512 tokens, or
    all that the model has, else DOES_NOT_FIT. Without a host_budget the host's memory has two
    limits more: sessions take no more of it than the weights do (or than 4096 tokens, if that is
    more), and everything but copies of weights takes at most half of what those copies leave free.
    Of a plan it also says which of two rotary embeddings a model with LongRoPE has: that for long
    contexts where it is more than the length that the file names, for all sessions of the plan."""
    k_dtype: Union[KVType, str, None]
    """Default AUTO (env SHARPI_KV_DTYPE): the architecture's own (bf16 with gated delta nets, else
    f32). A narrower one is taken only where n_ctx is given, and then if all blocks fit on the GPU
    with it and not without it, or if that context fits nowhere without it."""
    v_dtype: Union[KVType, str, None]
    """Default AUTO; the same environment variable."""
    tail_k_dtype: Union[KVType, str, None]
    """Of layers on the CPU; default AUTO = f32 beside attention layers on a GPU, else as
    k_dtype."""
    tail_v_dtype: Union[KVType, str, None]
    """The same of v_dtype."""
    rewind: Optional[int]
    """Tokens by which sessions with sliding-window layers can be truncated (their windows keep so
    many older rows); default 64."""
    n_checkpoints: Optional[int]
    """Recurrent checkpoints; default 0. Models without recurrent layers have none (read it
    back)."""
    kv_budget: Optional[int]
    """Bounded session: the most rows that a layer keeps, whatever compacts it; default 0 = off. The
    memory of its KV rows stays the same however long it gets. It goes on past n_ctx by a context
    shift if n_ctx is at least kv_budget and a chunk together and, in models with sliding windows,
    at least window, rewind, n_draft and a chunk together."""
    prompt_budget: Union[int, Literal["auto"], None]
    """Rows that a layer keeps at the end of every prompt (SnapKV); default UNSET (env
    SHARPI_SNAPKV_BUDGET, else off); 0 = off; or SHARPI_BUDGET_AUTO."""
    capture_window: Optional[int]
    """The last queries of the session, which score its rows in a compaction (the observation window
    of SnapKV); default UNSET (with a budget env SHARPI_SNAPKV_WINDOW, else 64; without one 0). A
    probe of no more tokens needs no memory besides."""
    recency: Optional[int]
    """Rows at the end that every compaction keeps; default UNSET (env SHARPI_SNAPKV_RECENCY, else
    64, but at most half of the budget). This field, sinks and policy are refused without kv_budget
    or prompt_budget: sharpi_session_compact() has parameters of its own."""
    sinks: Optional[int]
    """Rows at the beginning that every compaction keeps (attention sinks); default UNSET = 4, but
    at most half of what recency leaves of the budget."""
    policy: Union[Policy, str, None]
    """Which rows the compactions by kv_budget and prompt_budget keep; default AUTO."""
    lookahead: Optional[bool]
    """Bounded sessions without a probe: 1 (default) = before a prompt is read, its last tokens
    (capture_window of them, at most a chunk) are run, and their queries score the rows whenever
    room has to be made."""
    per_layer_budgets: Optional[bool]
    """1 = every layer has memory of its own, so a layer budget smaller than another's gives memory
    back; 0 = layers share address ranges, and memory stays for as many rows as the fullest layer
    has."""
    n_draft: Optional[int]
    """Speculative decoding: draft tokens that one pass verifies at most, 0 to 32; default 0. The
    plan prices what taking back rejected drafts needs."""
    probe: Optional[Sequence[int]]
    """n_probe token ids, copied."""
    drafters: Union[Drafters, str, None]
    """SHARPI_DRAFT_*, added up: who drafts in sharpi_session_step() and sharpi_step_batch();
    default 0 = nobody: only the host's own drafts are verified, by sharpi_session_verify(). Needs
    n_draft. NGRAM, MTP and MODEL are asked in this order until one has drafts to offer; AUTO takes
    what there is. A session has MTP and MODEL only if its plan priced them."""
    n_draft_vocab: Optional[int]
    """With MTP or AUTO: the block drafts only tokens with ids below this, a multiple of 16; default
    0 = all tokens. Values above the vocabulary's size mean all, too. A draft then reads that share
    of the head, which is most of what a draft reads of a large vocabulary. Vocabularies mostly
    begin with their frequent tokens, so few drafts get worse; what is drawn stays with the whole
    head. It saves no memory of the head. The block is the model's: in a session's own parameters 0
    = what the plan has, and another value than that is refused."""
    replay: Optional[int]
    """1 = capture replay scores, which policies REPLAY and MIXED choose by: default 0. Every row of
    full attention gets a number for each KV head when the pass that reads it is done: the most
    attention that a query of the same 256 tokens would pay to it if it came 1024 positions later.
    The numbers follow their rows: forks, saved and restored sessions have them, truncation drops
    them, compaction moves them, and a call that fails leaves none. Rows of passes of no more tokens
    than the capture_window, decoded tokens above all, get theirs together, before the window is
    full or the session is compacted. Needs a capture_window (default then 64) of at least 64;
    UNSUPPORTED where a CUDA device has too little shared memory a block for heads of 512 (the layer
    is named). A session with replay restores only blobs of such sessions (MISMATCH)."""
    replay_every: Optional[int]
    """With replay: only every so many-th query is asked, 1 to 16; default 1. 4 costs a quarter and
    finds less."""
    archive_rows: Optional[int]
    """Rows of each KV head of full attention that compactions put into an archive in host memory,
    in place of nothing, for sharpi_session_recall(); in blocks of 16, default 0 = no archive. Where
    a head has no room its rows of the lowest positions go. Forks copy the archive; saved sessions
    have none of it, and restoring or truncating to 0 empties it. A GPU has bounds of its layers'
    archived keys and a stage for rows on their way, which the plan prices. UNSUPPORTED where a
    head's elements are no whole blocks of the codec."""


class DeviceOptions(TypedDict, total=False):
    """Keyword arguments, as the fields of sharpi_device_request; None is the default."""

    device: Union[int, str, None]
    """Index as in sharpi_device_info(); default UNSET, which has to be changed."""
    n_layers: Optional[int]
    """Layers that this device has to hold, together with whatever else of those layers is on a GPU;
    -1 = as many as fit (default). Refused for the host, which has what no other device has."""
    budget: Optional[int]
    """Bytes of its memory that the model and all of its sessions may hold together; default
    SHARPI_ALL_FREE."""
    reserve: Optional[int]
    """Where the budget is all that is free: bytes of that which stay free; default
    SHARPI_RESERVE_AUTO."""
    rate: Optional[float]
    """Bytes/s of its memory and of the link between it and the host's; 0 = measured where they are
    needed (default). The host has no link."""
    link_rate: Optional[float]
    """Bytes/s of its memory and of the link between it and the host's; 0 = measured where they are
    needed (default). The host has no link."""


class PlanOptions(SessionOptions, total=False):
    """Keyword arguments, as the fields of sharpi_plan_params; None is the default."""

    n_gpu_layers: Optional[int]
    """-1 = as many as fit (default), 0 = CPU only."""
    n_gpu_ffn: Optional[int]
    """FFN blocks on the GPU, of the first layers (MoE: router and shared expert); -1 = as many as
    fit."""
    n_expert_slots: Optional[int]
    """Slots on the GPU for single routed experts of layers whose experts are on the CPU; -1 = as
    many as fit. Any other number puts the experts of all layers on the CPU, except those that
    n_gpu_experts pins to the GPU."""
    arithmetic: Union[Arithmetic, str, None]
    """Default FAST."""
    deterministic: Optional[bool]
    """1 = results independent of chunking, threads and batch mates, at a cost in speed. Default
    0."""
    n_chunk: Optional[int]
    """Tokens of one prefill chunk; default UNSET. Where blocks are on a GPU that is 2048, or 1024,
    if the longer chunk moves no block off the GPU, narrows no KV dtype, and costs at most an eighth
    of the context or of the expert slots. Otherwise, and for bounded sessions, it is 512, or fewer
    where n_ctx or memory is short. Where weights stream to the GPU each chunk sends them once: 2048
    reads prompts about three times as fast there."""
    max_batch: Optional[int]
    """Sessions of one decode_batch, verify_batch or step_batch; default 8."""
    max_logit_rows: Optional[int]
    """Logit rows one call can leave readable, at most n_chunk; default UNSET = 8, or n_chunk where
    that is less."""
    max_concurrent: Optional[int]
    """Calls that compute at once on the model; default 1."""
    n_sessions: Optional[int]
    """Sessions of the template to price; default 1."""
    device: Union[int, str, None]
    """The one device besides the host that the plan may use; 0 = none, UNSET (env SHARPI_DEVICE,
    else all of them)."""
    device_budget: Optional[int]
    """Bytes of memory that may be taken on each of them; default SHARPI_ALL_FREE; more than a
    device has is refused. It holds for the model and all of its sessions together: sessions beyond
    n_sessions get what is left."""
    host_budget: Optional[int]
    """The same for anonymous and pinned host memory."""
    device_rate: Optional[float]
    """Bytes/s of device memory, of the link to it, and of host memory; 0 = measured once per
    context, by the first plan that does not fit the GPU whole. They decide which blocks leave it
    first: those that cost a token the least time for every byte they free. That is routed experts,
    then FFN blocks, then whole layers, unless the link is very slow or the host hardly slower than
    the GPU. token_seconds follows from them, too. Equal rates, equal plans. From how many rows on
    weights stream is timed on the model (stream_rows)."""
    pcie_rate: Optional[float]
    """Bytes/s of device memory, of the link to it, and of host memory; 0 = measured once per
    context, by the first plan that does not fit the GPU whole. They decide which blocks leave it
    first: those that cost a token the least time for every byte they free. That is routed experts,
    then FFN blocks, then whole layers, unless the link is very slow or the host hardly slower than
    the GPU. token_seconds follows from them, too. Equal rates, equal plans. From how many rows on
    weights stream is timed on the model (stream_rows)."""
    host_rate: Optional[float]
    """Bytes/s of device memory, of the link to it, and of host memory; 0 = measured once per
    context, by the first plan that does not fit the GPU whole. They decide which blocks leave it
    first: those that cost a token the least time for every byte they free. That is routed experts,
    then FFN blocks, then whole layers, unless the link is very slow or the host hardly slower than
    the GPU. token_seconds follows from them, too. Equal rates, equal plans. From how many rows on
    weights stream is timed on the model (stream_rows)."""
    n_gpu_experts: Optional[int]
    """Layers whose routed experts are all on the GPU; -1 = all, or none where they do not fit."""
    gpu_ends: Optional[int]
    """Where the two ends of the model are, the token embedding and the head (output matrix): 1 =
    both on the GPU, 0 = both on the CPU, 2 = only the head on the GPU, which needs a model whose
    head is not its embedding table, -1 (default) = both on the GPU if everything fits there;
    otherwise the choice with the fastest token. An embedding table that is not the head's too
    leaves the GPU before any block does, since a token reads only one row of it."""
    stream_rows: Optional[int]
    """Calls of at least so many rows run the FFN blocks and routed experts of the CPU on the GPU:
    their weights are copied there for the call (they stream). 0 (default) = measured when the model
    is loaded, UNSET = never. With `deterministic` nothing streams."""
    load_mode: Union[LoadMode, str, None]
    """Default COPY."""
    draft_path: Union[str, os.PathLike[str], None]
    """GGUF file of the model that drafts, for drafters with MODEL, or AUTO; default null. Its
    tokens must be the model's, one by one, else MISMATCH. Opened by sharpi_plan_create() and, by
    the same name, by sharpi_model_load(); not used in between."""
    devices: Optional[Sequence[Union[int, str, DeviceOptions]]]
    """n_devices of one struct_size: the devices that the plan may use, in place of device,
    device_budget, device_rate and pcie_rate (which then keep their defaults) and, where device 0 is
    among them, host_budget and host_rate. UNSUPPORTED: a tier that cannot compute a model together
    with the others of the list. Default null."""
    split: Union[Split, str, None]
    """Default FEWEST."""
    adapters: Optional[Sequence[Union[str, os.PathLike[str]]]]
    """n_adapters paths of adapters (LoRA) that will be loaded beside the model: each is opened,
    checked against the model and priced, and sharpi_adapter_load() has its memory then. Each device
    has what it changes of its blocks. Default null."""
    adapter_rank: Optional[int]
    """The largest rank of adapters that calls have scratch for, 0 to 4096; default UNSET = the
    largest of `adapters`, 0 (no adapters) without any."""
    group: Optional["Group"]
    """The processes that have the model together: this one plans its own layers, on its own
    devices. All name the same file, n_ctx, n_chunk, deterministic and arithmetic. Kept alive.
    Default null."""
    rank_layers: Optional[Sequence[int]]
    """With a group: layers of each rank, n_ranks counts of 1 or more, the same on all ranks.
    Default null = equal shares of what a token reads."""


class SamplerOptions(TypedDict, total=False):
    """Keyword arguments, as the fields of sharpi_sampler_params; None is the default."""

    temperature: Optional[float]
    """0 = greedy, ties to the lowest id. Default 0.7."""
    top_k: Optional[int]
    """0 = off. Default 40."""
    top_p: Optional[float]
    """1 = off. Default 0.95."""
    min_p: Optional[float]
    """0 = off. Default 0.05."""
    repeat_penalty: Optional[float]
    """1 = off. Default 1.0."""
    repeat_last_n: Optional[int]
    """Tokens looked back at; default 256."""
    seed: Optional[int]
    """Equal seeds give equal draws. Default SHARPI_SEED_RANDOM: one that the session asks of the
    operating system; sharpi_session_info() has it."""


class CompactOptions(TypedDict, total=False):
    """Keyword arguments, as the fields of sharpi_compact_params; None is the default."""

    policy: Union[Policy, str, None]
    """Default AUTO."""
    budget: Union[int, Literal["auto"], None]
    """Rows a layer keeps (sharpi_layer_budget says what that means where layers differ); required
    (default UNSET is refused), or SHARPI_BUDGET_AUTO. Not with KEEP."""
    window: Optional[int]
    """Captured queries used; default UNSET = all. Not with a probe, not with KEEP."""
    recency: Optional[int]
    """Last rows always kept; default UNSET = 64, and 16 by REPLAY with layer_budget SHARED, at most
    half of the budget and what sinks leave. What is given is kept, or refused where the budget is
    smaller than it and sinks. Not with KEEP."""
    sinks: Optional[int]
    """First rows always kept, which many heads lean on; default UNSET = 4, at most half of what
    recency leaves. Not with KEEP."""
    headroom: Optional[int]
    """Free slots that stay committed; default 1024. Bounded sessions keep what they were priced
    for."""
    pool_kernel: Optional[int]
    """Rows averaged by SNAPKV, DEFENSIVE and VALUE: odd, default 13, the only one of other
    policies."""
    span: Optional[int]
    """Rows after a hit by SPAN, RETRIEVAL, REPLAY and MIXED; default UNSET = 12, and 4 by replay
    scores where layer_budget is not SHARED. Not with other policies."""
    layer_budget: Union[LayerBudget, str, None]
    """Default EQUAL, the only one of GLOBAL and KEEP."""
    probe: Optional[Sequence[int]]
    """A question, run transiently in free slots; nothing is committed. More tokens than the
    session's capture_window take memory for the time of the call, and so does a copy of recurrent
    state and sliding windows where there are more than a chunk."""
    keep: Optional[Sequence[int]]
    """Ascending slots kept in every layer and head."""


class RecallOptions(TypedDict, total=False):
    """Keyword arguments, as the fields of sharpi_recall_params; None is the default."""

    budget: Union[int, Literal["auto"], None]
    """Rows of each KV head that may come back, at least 1; required (default UNSET is refused)."""
    window: Optional[int]
    """Captured queries used; default UNSET = all. Not with a probe."""
    recency: Optional[int]
    """Last rows that stay in any case; default UNSET = 64, at most half of the session's rows."""
    sinks: Optional[int]
    """First rows that stay in any case; default UNSET = 4, at most half of what recency leaves."""
    probe: Optional[Sequence[int]]
    """The question, as in sharpi_compact_params."""


# Which of the options are enumerations.
OPTION_ENUMS: Dict[str, Union[Type[_Number], Type[IntFlag]]] = {
    "k_dtype": KVType,
    "v_dtype": KVType,
    "tail_k_dtype": KVType,
    "tail_v_dtype": KVType,
    "policy": Policy,
    "drafters": Drafters,
    "arithmetic": Arithmetic,
    "load_mode": LoadMode,
    "split": Split,
    "layer_budget": LayerBudget,
}
