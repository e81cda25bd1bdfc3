# SPDX-License-Identifier: MIT
"""Answers of a class: those of pydantic are skipped, by name, where it is not installed."""

import dataclasses
import enum
import json
from typing import List, Optional

import pytest

import sharpi
from sharpi.response_format import AfterThoughts, ResponseFormat


class Kind(enum.Enum):
    PLANT = "plant"
    METAL = "metal"


@dataclasses.dataclass
class Found:
    kind: Kind
    codes: List[bool]


def asked(model, **options):
    with sharpi.Chat(model, temperature=1.0, seed=5, max_tokens=300) as chat:
        return chat.send("What is the code of maple?", **options).finish()


def test_an_answer_is_of_a_class_of_pydantic_s(model):
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    class Place(pydantic.BaseModel):
        floor: int = pydantic.Field(ge=0, le=9)
        name: str = pydantic.Field(pattern="^[a-z]{1,8}$")

    class Node(pydantic.BaseModel):
        place: Place
        next: Optional["Node"] = None

    reply = asked(model, response_format=Place)
    assert isinstance(reply.parsed, Place) and reply.parsed.model_dump() == json.loads(reply.content)
    wanted = ResponseFormat(Node)
    with wanted.compile(model).matcher() as matcher:
        matcher.accept_text('{"place": {"floor": 3, "name": "ab"}, "next": null}')
        assert matcher.complete
    node = wanted.value('{"place": {"floor": 3, "name": "ab"}, "next": {"place": {"floor": 1, "name": "c"}}}')
    assert isinstance(node.next.place, Place)
    with pytest.raises(ValueError):
        wanted.value('{"place": {"floor": 30, "name": "ab"}}')


def test_an_answer_is_of_a_dataclass_or_fits_a_schema(model):
    reply = asked(model, response_format=Found)
    assert isinstance(reply.parsed, Found) and isinstance(reply.parsed.kind, Kind)
    schema = {"type": "object", "properties": {"a": {"const": [1, "x"]}}, "required": ["a"]}
    reply = asked(model, response_format=schema)
    assert reply.parsed == {"a": [1, "x"]} and reply.finish_reason == "end"
    assert asked(model, response_format=List[bool]).parsed == json.loads(asked(model, response_format=List[bool]).content)
    assert asked(model).parsed is None


def test_ask_gives_the_text_and_the_last_reply_the_value(model):
    with sharpi.Chat(model, temperature=0, max_tokens=100) as chat:
        text = chat.ask("hi", response_format={"enum": ["yes", "no"]})
        assert chat.last_reply.parsed == json.loads(text) and chat.last_reply.parsed in ("yes", "no")
        compiled = chat._compiled
        chat.ask("hi", response_format={"enum": ["yes", "no"]})
        assert chat._compiled is compiled


def test_an_answer_that_was_cut_has_no_value(model):
    with sharpi.Chat(model, temperature=0, max_tokens=3) as chat:
        reply = chat.send("hi", response_format={"type": "string", "minLength": 400}).finish()
    assert reply.finish_reason == "length"
    with pytest.raises(ValueError):
        reply.parsed


def test_what_cannot_be_asked_for_is_refused(model):
    with sharpi.Chat(model) as chat:
        with pytest.raises(sharpi.Unsupported, match="schema.not cannot be enforced"):
            chat.send("hi", response_format={"type": "string", "not": {"const": "a"}})
        with pytest.raises(TypeError, match="response_format"):
            chat.send("hi", response_format=object)
        assert chat.messages == []
        with pytest.raises(TypeError, match="one of them at most"):
            chat.send("hi", response_format=bool, grammar=sharpi.CompiledGrammar(model, schema=True).matcher())


def test_thoughts_are_left_alone(model):
    grammar = AfterThoughts(model, ResponseFormat(bool).compile(model).matcher())
    grammar.begin("<think>\n")
    thought = model.tokenize("I think <b>.", add_special=False)
    for token in thought:
        assert all(word == 0xFFFFFFFF for word in grammar.mask())
        grammar.accept(token)
    for token in model.tokenize("</think>\n\n", add_special=False)[:-1]:
        grammar.accept(token)
    allowed = {t for t in range(model.info.n_vocab) if grammar.mask()[t // 32] >> t % 32 & 1}
    assert allowed and {model.token_bytes(t)[:1] for t in allowed} <= {b"t", b"f"}
