#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what the Python package must know of sharpi.h: make_python_abi.py [--check] [header [package]].

_abi.py gets every constant, struct, callback and function for ctypes; types.py gets the enumerations,
the records that calls return and the options that they take, with the header's own words. --check
writes nothing and fails when the files in the tree are not what the header says.
"""

import argparse
import pathlib
import re
import sys
from typing import Dict, List, NamedTuple, Optional, Tuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = 100


class Field(NamedTuple):
    name: str
    type: str  # as in C, without const and blanks: "uint32_t", "char*"
    length: Optional[str]  # of an array of char
    doc: str


class Struct(NamedTuple):
    name: str
    fields: List[Field]
    doc: str


class Function(NamedTuple):
    name: str
    result: str
    arguments: List[Tuple[str, str]]  # type, name


class Constant(NamedTuple):
    name: str
    value: str
    doc: str


# How the header's number types are called in Python, with the prefix of their constants.
ENUMS = {
    "sharpi_status": ("Status", "SHARPI_E_", "IntEnum"),
    "sharpi_kv_dtype": ("KVType", "SHARPI_KV_", "IntEnum"),
    "sharpi_tier": ("Tier", "SHARPI_TIER_", "IntEnum"),
    "phase": ("Phase", "SHARPI_PHASE_", "IntEnum"),
    "sharpi_log_level": ("LogLevel", "SHARPI_LOG_", "IntEnum"),
    "sharpi_cpu_isa": ("Isa", "SHARPI_ISA_", "IntEnum"),
    "sharpi_policy": ("Policy", "SHARPI_POLICY_", "IntEnum"),
    "sharpi_arithmetic": ("Arithmetic", "SHARPI_ARITHMETIC_", "IntEnum"),
    "sharpi_load_mode": ("LoadMode", "SHARPI_LOAD_", "IntEnum"),
    "sharpi_split": ("Split", "SHARPI_SPLIT_", "IntEnum"),
    "sharpi_row_kind": ("RowKind", "SHARPI_ROW_", "IntEnum"),
    "sharpi_row_purpose": ("RowPurpose", "SHARPI_ROW_", "IntEnum"),
    "sharpi_mixer_kind": ("Mixer", "SHARPI_MIXER_", "IntEnum"),
    "sharpi_chat_kind": ("ChatKind", "SHARPI_CHAT_", "IntEnum"),
    "sharpi_part": ("Part", "SHARPI_PART_", "IntEnum"),
    "sharpi_layer_budget": ("LayerBudget", "SHARPI_LAYER_BUDGET_", "IntEnum"),
    "sharpi_pooling": ("Pooling", "SHARPI_POOLING_", "IntEnum"),
    "drafters": ("Drafters", "SHARPI_DRAFT_", "IntFlag"),
    "kv_full": ("KVFullReason", "SHARPI_KV_FULL_", "IntEnum"),
    "token": ("TokenAttributes", "SHARPI_TOKEN_", "IntFlag"),
}
ENUM_DOCS = {
    "Status": "What a call returns: 0, or why it failed.",
    "KVType": "How KV rows are stored.",
    "Tier": "Where blocks run.",
    "Phase": "What a progress callback tells of.",
    "LogLevel": "Of a line of the log.",
    "Isa": "Instruction set of the CPU tier's kernels.",
    "Policy": "How compaction chooses the rows that it keeps.",
    "Arithmetic": "Of activations.",
    "LoadMode": "How weights that run on the CPU come from the file.",
    "Split": "Which of the devices that a plan may use it uses.",
    "RowKind": "Which memory a row of a plan takes.",
    "RowPurpose": "What a row of a plan is for.",
    "Mixer": "What mixes the tokens of a layer.",
    "ChatKind": "Where a model's chat format comes from.",
    "Part": "Of a generated text.",
    "LayerBudget": "How a compaction's budget is shared among the layers.",
    "Pooling": "What becomes of the rows of a text, one for each token.",
    "Drafters": "Who drafts tokens in Session.step(); 0: only the host, by Session.verify().",
    "KVFullReason": "The native code of a KVFull exception.",
    "TokenAttributes": "What a token is; none: ordinary text.",
}
RECORDS = {
    "sharpi_device": "Device",
    "sharpi_plan_summary": "PlanSummary",
    "sharpi_memory_row": "MemoryRow",
    "sharpi_plan_device": "PlanDevice",
    "sharpi_layer_info": "LayerInfo",
    "sharpi_model_summary": "ModelSummary",
    "sharpi_segment_info": "SegmentInfo",
    "sharpi_draft_stats": "DraftStats",
    "sharpi_expert_stats": "ExpertStats",
    "sharpi_session_summary": "SessionSummary",
    "sharpi_compact_report": "CompactReport",
    "sharpi_recall_report": "RecallReport",
    "sharpi_adapter_summary": "AdapterSummary",
    "sharpi_embedder_summary": "EmbedderSummary",
    "sharpi_group_summary": "GroupSummary",
}
# Of the structs that the header leaves to their functions to explain.
RECORD_DOCS = {
    "SessionSummary": "What a session holds and has done.",
    "CompactReport": "What a compaction kept and gave back.",
    "RecallReport": "What a recall brought back.",
    "AdapterSummary": "What an adapter changes and holds.",
    "EmbedderSummary": "What an embedder reads, gives and holds.",
    "GroupSummary": "A group of processes, as this one sees it.",
}
OPTIONS = {
    "sharpi_session_params": "SessionOptions",
    "sharpi_device_request": "DeviceOptions",
    "sharpi_plan_params": "PlanOptions",
    "sharpi_sampler_params": "SamplerOptions",
    "sharpi_compact_params": "CompactOptions",
    "sharpi_recall_params": "RecallOptions",
}
# Numbers that are 0 or 1.
FLAGS = {
    "per_session", "transient", "narrowed", "is_hybrid", "has_window", "is_compacted", "has_embedding",
    "has_head", "is_encoder", "is_lost", "can_rank", "deterministic", "lookahead", "per_layer_budgets",
}
# Fields that Python passes in another way, or that a pointer beside them says.
NO_OPTION = {
    "struct_size", "reserved", "session", "progress", "user_data", "n_probe", "n_keep", "n_bias",
    "bias_tokens", "bias_values", "n_devices", "n_adapters",
}
SEQUENCES = {"probe", "keep", "rank_layers"}
PATH_LISTS = {"adapters"}
DEVICES = {"device", "devices"}  # an index, or what sharpi_device_find() reads; of a list with options, too
BUDGETS = {"budget", "prompt_budget"}  # these may be "auto"

C_NUMBERS = {
    "uint32_t": "c_uint32", "int32_t": "c_int32", "uint64_t": "c_uint64", "size_t": "c_size_t",
    "float": "c_float", "double": "c_double",
}


def fail(text: str) -> None:
    raise SystemExit("make_python_abi.py: " + text)


def plain(comment: str) -> str:
    """A comment's words on one line, without Doxygen's marks."""
    text = re.sub(r"^\s*\*+ ?", "", comment.strip(), flags=re.M)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"::(?=[A-Za-z])", "", text).replace("@brief ", "")


class Header:
    """The declarations of sharpi.h, in its order."""

    def __init__(self, text: str) -> None:
        self.docs: Dict[str, str] = {}
        self.constants: List[Constant] = []
        self.structs: List[Struct] = []
        self.callbacks: List[Function] = []
        self.functions: List[Function] = []
        self.numbers: Dict[str, str] = {}  # typedefs of numbers
        self.read_constants(text)
        text = re.sub(r"^#ifdef __cplusplus$.*?^#endif$", "", text, flags=re.M | re.S)
        marked = re.sub(r"/\*(.*?)\*/", self.keep, text, flags=re.S)
        marked = re.sub(r"^[ \t]*#.*?(?<!\\)$", "", marked, flags=re.M | re.S)
        self.read_statements(marked)

    def keep(self, match: "re.Match[str]") -> str:
        """Puts a mark where a comment was, so that what it is about can find it."""
        mark = f"@{len(self.docs)}@"
        self.docs[mark] = match.group(1)
        return mark

    def doc(self, text: str) -> str:
        marks = [m for m in re.findall(r"@\d+@", text)]
        return plain(self.docs[marks[-1]].lstrip("*<")) if marks else ""

    def read_constants(self, text: str) -> None:
        pattern = r"^#define (SHARPI_[A-Z0-9_]+)[ \t]+([-(0-9][^\s/]*)[ \t]*(?:/\*\*<(.*?)\*/)?"
        for name, value, doc in re.findall(pattern, text, flags=re.M | re.S):
            if name == "SHARPI_VERSION":
                continue
            number = value.strip("()").rstrip("u").rstrip("ul")
            self.constants.append(Constant(name, number, plain(doc)))

    def read_statements(self, text: str) -> None:
        for statement in re.split(r";(?![^{]*\})", text):
            bare = re.sub(r"@\d+@", " ", statement)
            bare = re.sub(r"\s+", " ", bare).strip()
            if bare.startswith("SHARPI_API"):
                self.functions.append(self.function(bare.replace("SHARPI_NOEXCEPT", "")))
            elif bare.startswith("typedef struct") and "{" in bare:
                self.structs.append(self.struct(statement))
            elif bare.startswith("typedef") and "(*" in bare:
                self.callbacks.append(self.callback(bare))
            elif re.fullmatch(r"typedef u?int32_t \w+", bare):
                _, number, name = bare.split()
                self.numbers[name] = number
            elif bare and not re.fullmatch(r"typedef struct (\w+) \1|\}", bare):
                fail(f"what is this? {bare[:200]}")

    def struct(self, statement: str) -> Struct:
        head, body = statement.split("{", 1)
        body, name = body.rsplit("}", 1)
        fields: List[Field] = []
        # A field's comment follows its semicolon: it is the first mark of the next piece.
        pieces = body.split(";")
        for piece, after in zip(pieces, pieces[1:]):
            comment = re.match(r"\s*(@\d+@)", after)
            doc = self.doc(comment.group(1)) if comment else ""
            bare = re.sub(r"\s+", " ", re.sub(r"@\d+@", " ", piece)).strip()
            match = re.fullmatch(r"((?:const )?\w+(?: \*(?:const \*)?| ))(.*)", bare)
            if not match:
                fail(f"{name.strip()}: what is this? {bare}")
            kind = match.group(1).replace("const", "").replace(" ", "")
            for one in match.group(2).split(","):
                array = re.fullmatch(r"\s*(\w+)(?:\[(\w+)\])?\s*", one)
                if not array or (array.group(2) and kind != "char"):
                    fail(f"{name.strip()}: what is this? {bare}")
                fields.append(Field(array.group(1), kind, array.group(2), doc))
        return Struct(name.strip(), fields, self.doc(head))

    @staticmethod
    def arguments(text: str) -> List[Tuple[str, str]]:
        if text.strip() in ("", "void"):
            return []
        pairs = []
        for one in text.split(","):
            kind, name = re.fullmatch(r"(.*?)(\w+)\s*", one.replace("const", "")).groups()
            pairs.append((kind.replace(" ", ""), name))
        return pairs

    def function(self, bare: str) -> Function:
        match = re.fullmatch(r"SHARPI_API (.*?)(sharpi_\w+)\((.*)\) *", bare)
        if not match:
            fail(f"what is this? {bare}")
        result, name, arguments = match.groups()
        result = result.replace("const", "").replace(" ", "")
        return Function(name, result, self.arguments(arguments))

    def callback(self, bare: str) -> Function:
        match = re.fullmatch(r"typedef (.*?)\(\*(\w+)\)\((.*)\)", bare)
        if not match:
            fail(f"what is this? {bare}")
        result, name, arguments = match.groups()
        return Function(name, result.replace(" ", ""), self.arguments(arguments))


def enum_of(field: Field) -> str:
    """The Python enumeration of a field, by its type in the header or by its name; "" for none."""
    return ENUMS.get(field.type, ENUMS.get(field.name, ("",)))[0]


class Writer:
    def __init__(self, header: Header) -> None:
        self.header = header
        self.callbacks = {c.name for c in header.callbacks}

    def c_type(self, kind: str) -> str:
        """The ctypes type of an argument, a result or a field; pointers to anything are c_void_p."""
        if kind == "void":
            return "None"
        if kind in self.callbacks:
            return kind
        kind = self.header.numbers.get(kind, kind)
        if kind in C_NUMBERS:
            return C_NUMBERS[kind]
        if kind.endswith("*"):
            return "c_void_p"
        fail(f"no ctypes type for {kind}")
        return ""

    def abi(self) -> str:
        header = self.header
        out = [BANNER, '"""sharpi.h for ctypes. The header is the manual."""\n',
               "from ctypes import (CFUNCTYPE, Structure, c_char, c_char_p, c_double, c_float, c_int32,",
               "                    c_size_t, c_uint32, c_uint64, c_void_p)\n"]
        out += [f"{c.name} = {c.value}" for c in header.constants]
        for callback in header.callbacks:
            kinds = [callback.result] + [kind for kind, _ in callback.arguments]
            out.append(f"\n{callback.name} = CFUNCTYPE({', '.join(map(self.c_type, kinds))})")
        for struct in header.structs:
            out.append(f"\n\nclass {struct.name}(Structure):\n    _fields_ = [")
            for field in struct.fields:
                kind = self.c_type(field.type) if field.length is None and field.type != "char*" else ""
                kind = kind or (f"c_char * {field.length}" if field.length else "c_char_p")
                out.append(f'        ("{field.name}", {kind}),')
            out.append("    ]")
        out.append("\n\nFUNCTIONS = {")
        for function in header.functions:
            kinds = [self.c_type(kind) for kind, _ in function.arguments]
            result = "c_char_p" if function.result == "char*" else self.c_type(function.result)
            arguments = ", ".join(kinds) + ("," if len(kinds) == 1 else "")
            out.append(f'    "{function.name}": ({result}, ({arguments})),')
        out.append("}\n")
        return "\n".join(out)

    # What types.py has of a struct's field: its Python type, and how it is made of the C value.
    def python_type(self, field: Field) -> Tuple[str, str]:
        if field.length:
            return "str", 's.{0}.decode("utf-8", "replace")'
        if field.name in FLAGS:
            return "bool", "bool(s.{0})"
        if enum_of(field):
            enum = enum_of(field)
            if field.name == "experts_tier":  # 0 = the layer has none
                return f"Optional[{enum}]", f"{enum}(s.{{0}}) if s.{{0}} else None"
            return enum, f"{enum}(s.{{0}})"
        if field.name == "experts_device":
            return "Optional[int]", "s.{0} if s.experts_tier else None"
        return ("float" if field.type in ("float", "double") else "int"), "s.{0}"

    def option_type(self, field: Field) -> str:
        if field.name in SEQUENCES:
            return "Optional[Sequence[int]]"
        if field.name in DEVICES:
            one = "Union[int, str, None]"
            return one if field.name == "device" else "Optional[Sequence[Union[int, str, DeviceOptions]]]"
        if field.type == "char*":
            return "Union[str, os.PathLike[str], None]"
        if field.name == "group":
            return 'Optional["Group"]'
        if field.name in PATH_LISTS:
            return "Optional[Sequence[Union[str, os.PathLike[str]]]]"
        if field.name in BUDGETS:
            return 'Union[int, Literal["auto"], None]'
        if enum_of(field):
            return f"Union[{enum_of(field)}, str, None]"
        return f"Optional[{self.python_type(field)[0]}]"

    def enum(self, kind: str) -> List[str]:
        name, prefix, base = ENUMS[kind]
        out = [f"\n\nclass {name}({'_Number' if base == 'IntEnum' else base}):", f'    """{ENUM_DOCS[name]}"""\n']
        for constant in self.members(kind, prefix):
            out.append(f"    {constant.name[len(prefix):]} = {constant.value}")
            out += wrapped(constant.doc)
        return out

    def members(self, kind: str, prefix: str) -> List[Constant]:
        found = [c for c in self.header.constants if c.name.startswith(prefix)]
        purposes = [c for c in found if c.name == "SHARPI_ROW_WEIGHTS"]
        if kind == "sharpi_status":
            found.insert(0, Constant("SHARPI_E_OK", "0", ""))
        elif kind == "sharpi_kv_dtype":
            found = [c for c in found if not c.name.startswith("SHARPI_KV_FULL_")]
        elif kind == "sharpi_row_kind":
            found = found[:found.index(purposes[0])]
        elif kind == "sharpi_row_purpose":
            found = found[found.index(purposes[0]):]
        elif kind == "sharpi_chat_kind":  # flags of calls share the prefix
            start = next(i for i, c in enumerate(found) if c.name == "SHARPI_CHAT_UNKNOWN")
            stop = next(i for i, c in enumerate(found) if c.name == "SHARPI_CHAT_NO_PROMPT")
            found = found[start:stop]
        if len({c.value for c in found}) != len(found):
            fail(f"{kind}: two constants have one value")
        return found

    def record(self, struct: Struct) -> List[str]:
        name = RECORDS[struct.name]
        out = ["\n\n@dataclass(frozen=True)", f"class {name}:"] + wrapped(struct.doc or RECORD_DOCS[name])
        fields = [f for f in struct.fields if f.name not in ("struct_size", "reserved")]
        for field in fields:
            out.append(f"    {field.name}: {self.python_type(field)[0]}")
            out += wrapped(field.doc)
        out.append(f'\n    @classmethod\n    def of(cls, s: _abi.{struct.name}) -> "{name}":')
        out.append('        """From the struct that the library filled."""\n        return cls(')
        for field in fields:
            out.append(f"            {field.name}={self.python_type(field)[1].format(field.name)},")
        return out + ["        )"]

    def options(self, struct: Struct) -> List[str]:
        name = OPTIONS[struct.name]
        base = "SessionOptions" if name == "PlanOptions" else "TypedDict"
        out = [f"\n\nclass {name}({base}, total=False):",
               f'    """Keyword arguments, as the fields of {struct.name}; None is the default."""\n']
        for field in struct.fields:
            if field.name not in NO_OPTION:
                bytes_only = struct.name == "sharpi_device_request" and field.name == "budget"
                kind = "Optional[int]" if bytes_only else self.option_type(field)
                out.append(f"    {field.name}: {kind}")
                out += wrapped(field.doc)
        return out

    def types(self) -> str:
        structs = {s.name: s for s in self.header.structs}
        out = [BANNER, TYPES_HEAD]
        for kind in ENUMS:
            out += self.enum(kind)
        for name in RECORDS:
            out += self.record(structs[name])
        for name in OPTIONS:
            out += self.options(structs[name])
        enums = {}
        for name in OPTIONS:
            enums.update({f.name: enum_of(f) for f in structs[name].fields if enum_of(f)})
        out.append("\n\n# Which of the options are enumerations.\nOPTION_ENUMS: Dict[str, Union[Type[_Number], Type[IntFlag]]] = {")
        out += [f'    "{field}": {enum},' for field, enum in enums.items()]
        return "\n".join(out + ["}\n"])


def wrapped(text: str, indent: str = "    ") -> List[str]:
    """A docstring of at most COLUMNS columns; nothing for no text."""
    if not text:
        return []
    words, lines = ('"""' + text.replace("\\", "\\\\") + '"""').split(), [""]
    for word in words:
        if lines[-1] and len(indent) + len(lines[-1]) + 1 + len(word) > COLUMNS:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return [indent + line for line in lines]


BANNER = """# SPDX-License-Identifier: MIT
# Written by tools/make_python_abi.py from include/sharpi.h; a test compares the two. Do not edit."""
TYPES_HEAD = '''"""Enumerations, records and options of sharpi.h."""

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
        return unknown'''


def main() -> int:
    parser = argparse.ArgumentParser(description="The Python declarations of sharpi.h.")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("header", nargs="?", type=pathlib.Path, default=ROOT / "include/sharpi.h")
    parser.add_argument("package", nargs="?", type=pathlib.Path,
                        default=ROOT / "bindings/python/sharpi")
    options = parser.parse_args()
    writer = Writer(Header(options.header.read_text(encoding="utf-8")))
    stale = 0
    for name, text in (("_abi.py", writer.abi()), ("types.py", writer.types())):
        file = options.package / name
        if not options.check:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            print(f"{file} is not what {options.header} says: run tools/make_python_abi.py")
            stale = 1
    if not stale:
        h = writer.header
        print(f"{len(h.structs)} structs, {len(h.functions)} functions, {len(h.callbacks)} callbacks, "
              f"{len(h.constants)} constants")
    return stale


if __name__ == "__main__":
    sys.exit(main())
