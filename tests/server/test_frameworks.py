# SPDX-License-Identifier: MIT
"""The server under frameworks that others wrote: each where its package is, skipped by its name where it is not."""
import json
import os
from typing import Literal

import pytest
from serving import ANSWER, QUESTION

pydantic = pytest.importorskip("pydantic", reason="skipped: pydantic is not installed")


class City(pydantic.BaseModel):
    name: Literal["Bern", "Oslo"]
    mild: bool
    rain: int | None


def package(name):
    return pytest.importorskip(name, reason=f"skipped: {name} is not installed")


@pytest.fixture(scope="module")
def model(server):
    return server.json("GET", "/v1/models")["data"][0]["id"]


def test_langchain(server, model):
    made = package("langchain_openai").ChatOpenAI(base_url=server.url + "/v1", api_key="none", model=model, temperature=0, max_tokens=300, max_retries=0)
    assert made.invoke(QUESTION).content == ANSWER
    assert "".join(piece.content for piece in made.stream(QUESTION)) == ANSWER
    for method in ("json_schema", "function_calling"):
        assert isinstance(made.with_structured_output(City, method=method).invoke(QUESTION), City)

    def weather(city: Literal["Bern", "Oslo"]) -> str:
        """Weather of a city."""
        return "rain in " + city

    bound = made.bind_tools([weather], tool_choice="any", parallel_tool_calls=False)
    answer = bound.invoke(QUESTION)
    (call,) = answer.tool_calls
    assert call["name"] == "weather" and call["args"]["city"] in ("Bern", "Oslo")
    told = {"role": "tool", "tool_call_id": call["id"], "content": weather(**call["args"])}
    after = made.bind_tools([weather]).invoke([("user", QUESTION), answer, told])
    assert after.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]
    one, two = made.batch([QUESTION, QUESTION])
    assert one.content == two.content == ANSWER


def test_litellm(server, model):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the net for prices
    litellm = package("litellm")
    ask = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "api_key": "none"}
    own = {"model": "openai/" + model, "api_base": server.url + "/v1", **ask}
    assert litellm.completion(**own).choices[0].message.content == ANSWER
    pieces = list(litellm.completion(stream=True, **own))
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == ANSWER
    formed = litellm.completion(response_format=City, max_tokens=200, **own)
    assert City.model_validate_json(formed.choices[0].message.content)
    other = litellm.completion(model="anthropic/" + model, api_base=server.url, max_tokens=40, thinking={"type": "adaptive"}, allowed_openai_params=["thinking"], **ask)
    assert other.choices[0].message.content == ANSWER and other.usage.completion_tokens > 5


def test_instructor(server, model):
    instructor, openai = package("instructor"), package("openai")
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
        made = instructor.from_openai(client, mode=mode)
        city = made.chat.completions.create(model=model, response_model=City, max_retries=0, temperature=0, max_tokens=300,
                                            messages=[{"role": "user", "content": QUESTION}])
        assert isinstance(city, City), mode


def test_openai_parses(server, model):
    client = package("openai").OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    ask = [{"role": "user", "content": QUESTION}]
    parsed = client.chat.completions.parse(model=model, messages=ask, response_format=City, temperature=0, max_tokens=200).choices[0].message
    assert isinstance(parsed.parsed, City)
    again = client.chat.completions.create(model=model, messages=[*ask, parsed.model_dump(), *ask], temperature=0, max_tokens=4)
    assert again.usage.prompt_tokens > 40
    answer = client.responses.parse(model=model, input=QUESTION, text_format=City, temperature=0, max_output_tokens=200)
    assert isinstance(answer.output_parsed, City) and json.loads(answer.output_text)
