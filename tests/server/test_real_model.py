# SPDX-License-Identifier: MIT
"""JSON schemas over models that nobody here trained (tools/models/fetch.sh), with vocabularies of 49 152 and 262 144
tokens: whatever they would rather say, what comes is JSON of the schema."""
import json
import os
import pathlib

import openai
import pytest
from serving import Server

SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags", "home"],
          "properties": {"name": {"type": "string", "maxLength": 24}, "age": {"type": "integer"},
                         "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["old", "new", "größer"]}},
                         "home": {"type": "object", "additionalProperties": False, "required": ["city", "warm"],
                                  "properties": {"city": {"enum": ["Bern", "Oslo"]}, "warm": {"type": "boolean"}}}}}
ASK = [{"role": "user", "content": "Describe an old man of Oslo."}]


def folder():
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(os.environ.get("SHARPI_MODELS") or pathlib.Path(cache) / "sharpi" / "models")


def expect_of_schema(text):
    person = json.loads(text)
    assert set(person) == {"name", "age", "tags", "home"}
    assert isinstance(person["name"], str) and len(person["name"]) <= 24
    assert isinstance(person["age"], int) and not isinstance(person["age"], bool)
    assert len(person["tags"]) <= 2 and set(person["tags"]) <= {"old", "new", "größer"}
    assert set(person["home"]) == {"city", "warm"}
    assert person["home"]["city"] in ("Bern", "Oslo") and isinstance(person["home"]["warm"], bool)


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"])
def test_json_schema_holds_on_a_real_model(name):
    path = folder() / name
    if not path.is_file():
        pytest.skip(f"{path} is not there (tools/models/fetch.sh gets it)")
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    # A text of the schema may be longer than max_tokens: digits have no end.
    ends = []
    with Server(path) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        model = client.models.list().data[0].id
        free = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=24)
        with pytest.raises(json.JSONDecodeError):
            json.loads(free.choices[0].message.content)
        for seed, temperature in ((1, 0), (2, 0.8), (3, 1.5), (4, 1.5)):
            answer = client.chat.completions.create(model=model, messages=ASK, temperature=temperature, seed=seed, max_tokens=200,
                                                    response_format=form)
            ends.append(answer.choices[0].finish_reason)
            if ends[-1] == "stop":
                expect_of_schema(answer.choices[0].message.content)
    assert set(ends) <= {"stop", "length"} and ends.count("stop") >= 3
