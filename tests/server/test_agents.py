# SPDX-License-Identifier: MIT
"""A loop as agents have it: a model calls tools again and again, and each call is asked for twice, as a
stream and whole. What both say and what the tool receives is one text, and fits the tool's schema."""
import json
import os
import pathlib

import openai
import pytest
from serving import TAGGED_CALLS, Server, with_template

jsonschema = pytest.importorskip("jsonschema", reason="skipped: jsonschema is not installed")

AT_LENGTH = bool(os.environ.get("SHARPI_AGENTS"))  # tools/ci/agents.sh: all of it, which takes minutes
CALLS = 50 if AT_LENGTH else 12
SMOLLM2 = pathlib.Path.home() / ".cache" / "sharpi" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def tool(name, description, required, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "strict": True, "parameters": {
        "type": "object", "properties": properties, "required": required, "additionalProperties": False}}}


TOOLS = [
    tool("write_file", "Writes a text file.", ["path", "text"], path={"type": "string", "pattern": "^[a-z]{1,8}\\.txt$"},
         text={"type": "string", "maxLength": 24}),
    tool("move", "Moves to a place on the map.", ["x", "y"], x={"type": "integer", "minimum": -90, "maximum": 90},
         y={"type": "integer", "minimum": -90, "maximum": 90}, fast={"type": "boolean"}),
    tool("weather", "Weather of cities.", ["cities"], unit={"enum": ["C", "F", None]},
         cities={"type": "array", "minItems": 1, "maxItems": 3, "items": {"enum": ["Bern", "Oslo", "Zürich", "a \"b\" \\ </tool_call>"]}}),
    tool("note", "Notes a value under a key.", ["entry"], entry={
        "type": "object", "properties": {"key": {"type": "string", "maxLength": 8}, "value": {"anyOf": [{"type": "null"}, {"type": "integer"}, {"type": "string", "maxLength": 8}]}},
        "required": ["key", "value"], "additionalProperties": False}),
]
SCHEMAS = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}


def run_tool(name, arguments, received):
    """What a host does with a call: the text is what it gets."""
    received.append((name, arguments))
    value = json.loads(arguments)
    jsonschema.validate(value, SCHEMAS[name])
    return f"done: {len(arguments)}"


def streamed(client, **request):
    """(content, name, arguments, reason) of a stream, put together as clients do."""
    content, name, arguments, reason = "", "", "", None
    for chunk in client.chat.completions.create(stream=True, **request):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    return content, name, arguments, reason


# What a call begins with, as its model's template shows calls.
HERMES, TAGS = '<tool_call>\n{"name": "', "<tool_call>\n<function="


def raw_text(answer):
    return "".join(entry.token for entry in answer.logprobs.content)


@pytest.mark.parametrize("model, begin", [("tiny-qwen3-q8_0.gguf", HERMES), ("tiny-qwen35-q8_0.gguf", TAGS), (SMOLLM2, HERMES)],
                         ids=["fixture", "qwen35", "SmolLM2"])
def test_a_loop_of_calls_is_one_text_on_all_ways(model, begin, tmp_path):
    if isinstance(model, pathlib.Path) and not model.exists():
        pytest.skip("skipped: SmolLM2 is not here; tools/models/fetch.sh smollm2-135m fetches it")
    if isinstance(model, pathlib.Path) and not AT_LENGTH:
        pytest.skip("skipped: it takes minutes; tools/ci/agents.sh runs it")
    if begin == TAGS:
        model = with_template(model, TAGGED_CALLS, tmp_path)
    received, said, names = [], [], set()
    with Server(model, "--context", "8192", "--deterministic") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)
        name = client.models.list().data[0].id
        messages = [{"role": "system", "content": "You act by calling tools."}, {"role": "user", "content": "Go on a journey and write about it."}]
        for turn in range(CALLS):
            request = {"model": name, "messages": messages, "tools": TOOLS, "parallel_tool_calls": False, "temperature": 1.0, "seed": turn, "max_tokens": 400, "logprobs": True,
                       "tool_choice": "required" if turn % 3 else {"type": "function", "function": {"name": TOOLS[turn // 3 % len(TOOLS)]["function"]["name"]}}}
            answer = client.chat.completions.create(**request).choices[0]
            (call,) = answer.message.tool_calls
            whole = (answer.message.content or "", call.function.name, call.function.arguments, answer.finish_reason)
            assert streamed(client, **request) == whole, turn
            assert whole[0] == "" and whole[3] == "tool_calls"
            assert raw_text(answer).startswith(begin + call.function.name), raw_text(answer)
            result = run_tool(call.function.name, call.function.arguments, received)
            said.append(whole[1:3])
            names.add(whole[1])
            messages += [answer.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": result}]
        assert received == said and len(said) == CALLS and names == set(SCHEMAS)
        # The history of calls is in the prompt as it was made: what comes next reads all of it.
        assert server.sessions()[0]["n_tokens"] > 20 * CALLS
