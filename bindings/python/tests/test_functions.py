# SPDX-License-Identifier: MIT
"""Plain functions as tools, and conversations of programs with an event loop."""

import asyncio
import dataclasses
import enum
import json
from typing import Annotated, Any, Dict, List, Literal, Optional, Tuple

import pytest

import sharpi
from sharpi.functions import Function, Toolbox

pydantic = pytest.importorskip("pydantic")


class Unit(enum.Enum):
    CELSIUS = "C"
    KELVIN = "K"


class Place(pydantic.BaseModel):
    name: str
    floor: int = 0


@dataclasses.dataclass
class Box:
    width: float
    label: str = "none"


def measure(
    place: Place, unit: Unit, boxes: List[Box], kind: Literal["air", "water"] = "air",
    note: Optional[str] = None, pair: Tuple[int, str] = (1, "x"), more: Dict[str, Any] = {},
    depth: Annotated[float, "in metres"] = 0.0,
):
    """Measures a temperature.

    Args:
        place: where
        kind (str): of what

    Returns:
        degrees
    """
    assert isinstance(place, Place) and isinstance(unit, Unit) and isinstance(boxes[0], Box)
    return {"degrees": 21.5, "where": place.name, "boxes": boxes[0].width}


def test_a_signature_becomes_a_schema():
    tool = Function(measure).tool
    assert tool["type"] == "function" and tool["function"]["name"] == "measure"
    assert tool["function"]["description"].startswith("Measures a temperature.")
    schema = tool["function"]["parameters"]
    assert schema["required"] == ["place", "unit", "boxes"] and schema["additionalProperties"] is False
    of = schema["properties"]
    assert of["place"]["properties"]["name"]["type"] == "string" and of["place"]["description"] == "where"
    assert of["unit"] == {"enum": ["C", "K"]} and of["kind"] == {"enum": ["air", "water"], "description": "of what"}
    assert of["boxes"]["items"] == {"type": "object", "properties": {"width": {"type": "number"}, "label": {"type": "string"}},
                                    "required": ["width"], "additionalProperties": False}
    assert of["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert of["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}] and of["pair"]["maxItems"] == 2
    assert of["more"] == {"type": "object", "additionalProperties": True}
    assert of["depth"] == {"type": "number", "description": "in metres"}
    json.dumps(tool)


def test_what_has_no_schema_is_refused_by_name():
    def strange(x: complex):
        pass

    def anything(*args: int):
        pass

    with pytest.raises(TypeError, match="strange.x"):
        Function(strange).tool
    with pytest.raises(TypeError, match="args"):
        Function(anything)


def call_of(name, arguments, id="call_1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_call_makes_the_classes_that_the_signature_names():
    box = Toolbox([measure])
    call = call_of("measure", '{"place": {"name": "cellar"}, "unit": "C", "boxes": [{"width": 2}]}')
    assert box.knows([call]) and not box.knows([call, call_of("other", {})]) and not box.knows([])
    message = box.message(call, box.begin(call))
    assert message == {"role": "tool", "name": "measure", "tool_call_id": "call_1",
                       "content": '{"degrees": 21.5, "where": "cellar", "boxes": 2}'}
    for wrong in ('{"place": 1}', "[]", "{", '{"nothing": 1}', {"place": {"name": "x"}, "unit": "F", "boxes": []}):
        assert list(box.begin(call_of("measure", wrong))) == ["error"]


class Script:
    """A generation that says what it is told to, one character after the other."""

    finish_reason = "end"

    def __init__(self, text):
        self._left = iter(text)

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._left)


CALL = '<tool_call>\n{"name": "look", "arguments": {"what": "sky"}}\n</tool_call>'


@pytest.fixture
def scripted(context, path, monkeypatch):
    """A chat whose model calls look("sky") first, and then says so. Its context has room for many calls, which
    stand in the prompt as text where a template leaves them out."""
    texts = []
    model = sharpi.Model(path, context=context, kv="f32", n_ctx=4096)
    monkeypatch.setattr(sharpi.Session, "generate", lambda self, *_, **__: Script(texts.pop(0)))

    def make(function, *said):
        texts[:] = said
        return sharpi.Chat(model, tools=[function])

    return make


def test_a_conversation_calls_functions(scripted):
    seen = []

    def look(what: str) -> str:
        """Looks at something."""
        seen.append(what)
        return "blue"

    with scripted(look, CALL, "It is blue.") as chat:
        assert chat.ask("What colour is the sky?") == "It is blue."
        assert seen == ["sky"]
        assert [m["role"] for m in chat.messages] == ["user", "assistant", "tool", "assistant"]
        assert chat.messages[2]["content"] == "blue" and chat.messages[2]["name"] == "look"
        assert chat.last_reply.content == "It is blue."


def test_calls_without_end_end(scripted):
    with scripted(lambda: None) as chat:
        pass

    def look(what: str) -> str:
        raise RuntimeError("dark")

    with scripted(look, *[CALL] * 20) as chat:
        chat.ask("What colour is the sky?")
        results = [m for m in chat.messages if m["role"] == "tool"]
        assert len(results) == 10 and results[0]["content"] == '{"error": "RuntimeError: dark"}'
        assert chat.last_reply.tool_calls, "the caller may go on"


def test_coroutines_are_awaited(scripted):
    async def look(what: str) -> str:
        await asyncio.sleep(0)
        return "blue"

    with scripted(look, CALL, "It is blue.") as chat:
        assert asyncio.run(chat.ask_async("What colour is the sky?")) == "It is blue."
    with scripted(look, CALL, "It is blue.") as chat:
        with pytest.raises(TypeError, match="ask_async"):
            chat.ask("What colour is the sky?")


def test_the_loop_goes_on_while_an_answer_is_written(model):
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    async def both():
        ticking = asyncio.ensure_future(tick())
        with sharpi.Chat(model, temperature=0, max_tokens=16) as chat:
            whole = await chat.ask_async("What is the code of snow?")
            assert len(ticks) > 1
            again = [piece async for piece in chat.regenerate()]
            assert "".join(again) == whole == chat.messages[-1]["content"]
        ticking.cancel()

    asyncio.run(both())


def test_a_cancelled_task_stops_the_answer_and_leaves_the_session(model):
    async def talk():
        with sharpi.Chat(model, temperature=0) as chat:
            chat.session.set_sampler(temperature=0, bias={t: -float("inf") for t in range(model.info.n_vocab) if model.is_end(t)})
            begun = asyncio.Event()

            async def ask():
                async for _ in chat.send("Count."):
                    begun.set()

            task = asyncio.ensure_future(ask())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert chat.messages[-1]["role"] == "assistant" and chat.messages[-1]["content"]
            chat.max_tokens = 4
            assert await chat.ask_async("And now?")

    asyncio.run(talk())
