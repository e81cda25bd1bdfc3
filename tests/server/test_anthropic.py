# SPDX-License-Identifier: MIT
"""The server as the `anthropic` package sees it."""
import anthropic
import pytest
from serving import ANSWER, QUESTION, Server

ASK = [{"role": "user", "content": QUESTION}]
WEATHER = {"name": "weather", "description": "Weather of a city.", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"enum": ["Bern", "Oslo"]}}}}
CALL = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 300}
AS_TRAINED = {"type": "adaptive"}  # the fixtures know no mark of thoughts
GREEDY = {"messages": ASK, "max_tokens": 40, "thinking": AS_TRAINED, "extra_body": {"temperature": 0}}


def client_of(server, **how):
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=60, **{"api_key": "none", **how})


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def ask(client, model, **more):
    return client.messages.create(**{"model": model, **GREEDY, **more})


def test_models_are_listed(client, model):
    found = client.models.retrieve(model)
    assert found.id == found.display_name == model and found.type == "model" and found.created_at.year >= 2025


def test_a_question_is_answered_and_counted(client, model):
    answer = ask(client, model, system="Answer shortly.")
    assert answer.type == "message" and answer.role == "assistant" and answer.stop_reason == "end_turn"
    assert [block.type for block in answer.content] == ["text"] and answer.content[0].text
    counted = client.messages.count_tokens(model=model, messages=ASK, system="Answer shortly.", thinking=AS_TRAINED)
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
    assert ask(client, model).content[0].text == ANSWER


def test_a_stream_gives_the_same_message(client, model):
    for more in ({}, CALL, {"max_tokens": 3}, {"stop_sequences": ["ember"]}, {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}):
        whole = ask(client, model, **more)
        with client.messages.stream(**{"model": model, **GREEDY, **more}) as stream:
            text = "".join(stream.text_stream)
            streamed = stream.get_final_message()
        assert text == "".join(block.text for block in whole.content if block.type == "text")
        assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
        assert streamed.usage.output_tokens == whole.usage.output_tokens
        left = [[block.model_dump(exclude={"id", "parsed_output"}) for block in message.content] for message in (whole, streamed)]
        assert left[0] == left[1]


def test_stop_reasons(client, model):
    assert ask(client, model, max_tokens=2).stop_reason == "max_tokens"
    stopped = ask(client, model, stop_sequences=["never", "of ember"])
    assert (stopped.stop_reason, stopped.stop_sequence, stopped.content[0].text) == ("stop_sequence", "of ember", "The code")


def test_a_tool_is_called_and_its_result_read(client, model):
    answer = ask(client, model, **CALL)
    assert answer.stop_reason == "tool_use"
    call = answer.content[-1]
    assert call.name == "weather" and call.input["city"] in ("Bern", "Oslo")
    more = [*ASK, {"role": "assistant", "content": answer.content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}]
    after = ask(client, model, messages=more, tools=[WEATHER])
    assert after.usage.input_tokens + after.usage.cache_read_input_tokens > answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_errors_are_of_the_types_that_clients_know(client, model):
    with pytest.raises(anthropic.NotFoundError):
        ask(client, "other")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    with pytest.raises(anthropic.BadRequestError, match="\"image\" is not supported"):
        ask(client, model, messages=[{"role": "user", "content": [image]}])
    with pytest.raises(anthropic.BadRequestError, match="context"):
        ask(client, model, messages=[{"role": "user", "content": "x y " * 20000}])


def test_a_key_is_said_either_way():
    with Server("tiny-qwen3-q8_0.gguf", "--api-key", "secret") as server:
        for how in ({"api_key": "secret"}, {"api_key": None, "auth_token": "secret"}):
            assert client_of(server, **how).models.list().data
        with pytest.raises(anthropic.AuthenticationError):
            client_of(server, api_key="wrong").models.list()
