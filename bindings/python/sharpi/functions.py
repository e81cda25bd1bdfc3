# SPDX-License-Identifier: MIT
"""Plain Python functions as tools of a conversation: their signatures say what a model may call."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import inspect
import json
import re
import types
import typing
from typing import Any, Awaitable, Callable, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

#: A function, or a tool as JSON has it: {"type": "function", "function": {...}}.
Tool = Union[Callable[..., object], Mapping[str, Any]]

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_LISTS = (list, set, frozenset, tuple, collections.abc.Sequence, collections.abc.Iterable)
_OBJECTS = (dict, collections.abc.Mapping)
_UNIONS = (Union, getattr(types, "UnionType", Union))  # the latter since Python 3.10


def _is_model(kind: object) -> bool:
    """A class of pydantic's."""
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")


def _fields(kind: Any) -> Optional[Dict[str, bool]]:
    """Of a dataclass or TypedDict: its fields, and whether each must be there."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {f.name: f.default is missing and f.default_factory is missing for f in dataclasses.fields(kind)}
    if isinstance(kind, type) and hasattr(kind, "__total__"):
        required = getattr(kind, "__required_keys__", kind.__annotations__)
        return {name: name in required for name in kind.__annotations__}
    return None


def _object(fields: Mapping[str, Tuple[Any, bool]], where: str, defs: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: schema_of(kind, f"{where}.{name}", defs) for name, (kind, _) in fields.items()},
        "required": [name for name, (_, is_required) in fields.items() if is_required],
        "additionalProperties": False,
    }


def schema_of(kind: Any, where: str, defs: Dict[str, Any]) -> Dict[str, Any]:
    """The JSON Schema of an annotation. where: its name in a TypeError; defs: gets shared parts."""
    if kind is inspect.Parameter.empty or kind is Any:
        return {}
    if kind in _PLAIN or kind is None:
        return {"type": "null" if kind is None else _PLAIN[kind]}
    if _is_model(kind):
        schema: Dict[str, Any] = kind.model_json_schema()
        defs.update(schema.pop("$defs", {}))
        return schema
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    fields = _fields(kind)
    if fields is not None:
        hints = typing.get_type_hints(kind, include_extras=True)
        return _object({name: (hints[name], is_required) for name, is_required in fields.items()}, where, defs)
    return _generic(kind, where, defs)


def _generic(kind: Any, where: str, defs: Dict[str, Any]) -> Dict[str, Any]:
    origin, inner = typing.get_origin(kind) or kind, typing.get_args(kind)
    if hasattr(kind, "__metadata__"):  # Annotated
        schema = schema_of(kind.__origin__, where, defs)
        words = [word for word in kind.__metadata__ if isinstance(word, str)]
        return {**schema, "description": words[0]} if words else schema
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in _UNIONS:
        return {"anyOf": [schema_of(one, where, defs) for one in inner]}
    if origin in _LISTS:
        if origin is tuple and inner and inner[-1] is not ...:
            return {"type": "array", "prefixItems": [schema_of(one, where, defs) for one in inner],
                    "minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": schema_of(inner[0], where, defs)} if inner else {"type": "array"}
    if origin in _OBJECTS:
        values = schema_of(inner[1], where, defs) if inner else {}
        return {"type": "object", "additionalProperties": values or True}
    raise TypeError(f"{where}: {kind!r} has no JSON Schema")


def value_of(kind: Any, value: Any) -> Any:
    """A value of JSON as the annotation has it, as far as that is a class to be made."""
    if _is_model(kind):
        return kind.model_validate(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = typing.get_type_hints(kind)
        return kind(**{name: value_of(hints.get(name), one) for name, one in value.items()})  # type: ignore[operator]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, set, frozenset) and inner and isinstance(value, list):
        return origin(value_of(inner[0], one) for one in value)
    return value


def _told(text: str) -> Tuple[str, Dict[str, str]]:
    """A docstring: what it says, and of each parameter ("Args:" and lines of "name: text")."""
    head, _, rest = inspect.cleandoc(text).partition("\nArgs:\n")
    lines = re.findall(r"^\s+(\w+)(?: \([^)]*\))?: (.+)$", rest.split("\n\n")[0], re.MULTILINE)
    return head.strip(), dict(lines)


class Function:
    """A function that a model may call."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.name = function.__name__
        hints = typing.get_type_hints(function, include_extras=True)
        self._parameters = inspect.signature(function).parameters
        self._kinds = {name: hints.get(name, p.annotation) for name, p in self._parameters.items()}
        for name, p in self._parameters.items():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD, p.POSITIONAL_ONLY):
                raise TypeError(f"{self.name}: a model cannot give {name}")

    @property
    def tool(self) -> Dict[str, Any]:
        """As JSON has it."""
        defs: Dict[str, Any] = {}
        said, words = _told(self._function.__doc__ or "")
        fields = {name: (self._kinds[name], p.default is p.empty) for name, p in self._parameters.items()}
        schema = _object(fields, self.name, defs)
        for name, text in words.items():
            if name in schema["properties"]:
                schema["properties"][name].setdefault("description", text)
        if defs:
            schema["$defs"] = defs
        return {"type": "function", "function": {"name": self.name, "description": said, "parameters": schema}}

    def call(self, arguments: Union[str, Mapping[str, Any]]) -> Union[object, Awaitable[object]]:
        """With what a model said. Raises what the function raises, TypeError and ValueError."""
        given = json.loads(arguments) if isinstance(arguments, str) else dict(arguments)
        if not isinstance(given, dict):
            raise TypeError("the arguments are no object")
        unknown = sorted(set(given) - set(self._parameters))
        if unknown:
            raise TypeError(f"{self.name} has no parameter {', '.join(unknown)}")
        return self._function(**{name: value_of(self._kinds[name], value) for name, value in given.items()})


def said_of(result: object) -> str:
    """What a model reads of a result."""
    if isinstance(result, str):
        return result
    dump = getattr(result, "model_dump_json", None)
    if dump is not None:
        return str(dump())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = dataclasses.asdict(result)
    return json.dumps(result, ensure_ascii=False, default=str)


class Toolbox:
    """The tools of a conversation, functions among them."""

    def __init__(self, tools: Union[Sequence[Tool], str, None]) -> None:
        listed = [] if tools is None or isinstance(tools, str) else list(tools)
        self.functions = {one.name: one for one in (Function(tool) for tool in listed if callable(tool))}
        made: List[Mapping[str, Any]] = [Function(tool).tool if callable(tool) else tool for tool in listed]
        self.json: Union[List[Mapping[str, Any]], str, None] = tools if isinstance(tools, str) else made or None

    def knows(self, calls: Sequence[Mapping[str, Any]]) -> bool:
        """Every one of the calls is of a function."""
        return bool(calls) and all(call["function"]["name"] in self.functions for call in calls)

    def begin(self, call: Mapping[str, Any]) -> Union[object, Awaitable[object]]:
        """What the function gives; an exception of it is an answer, too."""
        said = call["function"]
        try:
            return self.functions[said["name"]].call(said.get("arguments") or {})
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    @staticmethod
    def message(call: Mapping[str, Any], result: object) -> Dict[str, Any]:
        message = {"role": "tool", "name": call["function"]["name"], "content": said_of(result)}
        if call.get("id"):
            message["tool_call_id"] = call["id"]
        return message
