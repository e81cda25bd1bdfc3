# SPDX-License-Identifier: MIT
"""The server as the `openai` package sees it, and its streams as the parser of `httpx-sse` does."""
import json

import httpx
import httpx_sse
import openai
import pytest
from serving import ANSWER, ENDLESS, QUESTION, Server

ASK = [{"role": "user", "content": QUESTION}]
CITY = {"type": "object", "additionalProperties": False, "required": ["city", "mild", "population"],
        "properties": {"city": {"enum": ["Bern", "Oslo"]}, "mild": {"type": "boolean"},
                       "population": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"enum": ["Bern", "Oslo"]}}}}}


def client_of(server, key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def test_models_are_listed(client, model):
    assert model
    assert client.models.retrieve(model).id == model


def test_a_question_is_answered_and_counted(client, model):
    answer = client.chat.completions.create(model=model, messages=ASK, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 20 and usage.completion_tokens > 5
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_prompt_that_is_there_already_is_not_read_again(client, model):
    messages = [{"role": "user", "content": "The code of maple is 31415. " + QUESTION}]
    first = client.chat.completions.create(model=model, messages=messages, temperature=0)
    again = client.chat.completions.create(model=model, messages=messages, temperature=0)
    assert again.choices[0].message.content == first.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens_details.cached_tokens
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens // 2


def test_a_stream_gives_the_same_text(client, model):
    stream = client.chat.completions.create(model=model, messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop" and set(reasons[:-1]) == {None}
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens > 5
    assert chunks[-1].sharpi_session is not None


def test_a_stream_that_is_given_up_ends_the_work(client, model, server):
    stream = client.chat.completions.create(model=model, messages=ASK, max_tokens=4000, logit_bias=ENDLESS, stream=True)
    for _, chunk in zip(range(10), stream):
        assert chunk.choices[0].finish_reason is None
    assert any(session["state"] != "idle" for session in server.sessions())
    stream.close()
    server.wait_idle()
    assert max(session["n_tokens"] for session in server.sessions()) < 4000


def test_length_stop_and_seed(client, model):
    short = client.chat.completions.create(model=model, messages=ASK, temperature=0, max_tokens=3)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 3
    stopped = client.chat.completions.create(model=model, messages=ASK, temperature=0, stop=["of ember", "never"])
    assert stopped.choices[0].message.content == "The code" and stopped.choices[0].finish_reason == "stop"
    texts = {seed: [client.chat.completions.create(model=model, messages=ASK, temperature=1.5, top_p=1, seed=seed, max_tokens=40,
                                                   logit_bias=ENDLESS).choices[0].message.content for _ in range(2)] for seed in (1, 2)}
    assert texts[1][0] == texts[1][1] and texts[2][0] == texts[2][1] and texts[1] != texts[2]


def test_logprobs_are_of_the_tokens_of_the_text(client, model):
    answer = client.chat.completions.create(model=model, messages=ASK, temperature=0, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in content).startswith(ANSWER)
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        descending = [top.logprob for top in entry.top_logprobs]
        assert descending == sorted(descending, reverse=True)


def test_json_schema_holds_whatever_the_temperature(client, model):
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    for seed in range(4):
        answer = client.chat.completions.create(model=model, messages=ASK, temperature=1.5, seed=seed, max_tokens=200, response_format=form)
        city = json.loads(answer.choices[0].message.content)
        assert set(city) == {"city", "mild", "population"}
        assert city["city"] in ("Bern", "Oslo") and isinstance(city["mild"], bool) and isinstance(city["population"], int)


def test_a_tool_is_called(client, model):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = client.chat.completions.create(model=model, messages=ASK, temperature=0, tools=[WEATHER], tool_choice=choice, parallel_tool_calls=False, max_tokens=300)
        assert answer.choices[0].finish_reason == "tool_calls"
        (call,) = answer.choices[0].message.tool_calls
        assert call.id and call.type == "function" and call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Bern", "Oslo")


def test_a_streamed_tool_call_can_be_put_together(client, model):
    stream = client.chat.completions.create(model=model, messages=ASK, temperature=0, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=300, stream=True)
    name, arguments, reason = "", "", None
    for chunk in stream:
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, reason) == ("weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Bern", "Oslo")


def test_the_answer_of_a_tool_is_read(client, model):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [*ASK, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    answer = client.chat.completions.create(model=model, messages=messages, temperature=0, tools=[WEATHER], max_tokens=20)
    assert answer.usage.prompt_tokens > 30


def test_completions(client, model):
    answer = client.completions.create(model=model, prompt="The code of olive is 88752.\nThe code of olive is", temperature=0, max_tokens=12)
    assert answer.object == "text_completion" and answer.choices[0].text.startswith(" 88752")
    chunks = list(client.completions.create(model=model, prompt="The code of olive is 88752.\nThe code of olive is", temperature=0, max_tokens=12, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text


def test_responses(client, model):
    answer = client.responses.create(model=model, input=QUESTION, temperature=0)
    assert answer.status == "completed" and answer.output_text == ANSWER
    items = [{"role": "user", "content": QUESTION}, *answer.output, {"role": "user", "content": QUESTION}]
    again = client.responses.create(model=model, input=items, temperature=0)
    assert again.output_text == ANSWER and again.usage.input_tokens > answer.usage.input_tokens


def test_long_lists_of_calls_are_read_once(server):
    """Each was once read again for each that follows: this was minutes. The template has no place for them, so they are
    text, and as such more than the context holds."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
    body = {"input": [{"role": "user", "content": QUESTION}, *[call] * 20000], "max_output_tokens": 1}
    status, _, data = server.request("POST", "/v1/responses", body)
    assert status == 400 and b"context_length_exceeded" in data, data[:300]


@pytest.mark.parametrize("arguments, status", [('{"a": 1}', 200), ("no JSON", 200), ('{"a":' * 40 + "1" + "}" * 40, 200),
                                               ('{"a":' * 500000 + "1" + "}" * 500000, 400), ('{"a":' + "[" * 3000000, 400)])
def test_arguments_nest_as_deep_as_requests(server, arguments, status):
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    chat = {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "tool_calls": calls}], "max_tokens": 1}
    flat = {"input": [{"role": "user", "content": QUESTION}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}],
            "max_output_tokens": 1}
    for path, body, param in (("/v1/chat/completions", chat, "messages[1].tool_calls[0].function.arguments"),
                              ("/v1/responses", flat, "input[1].arguments")):
        got, _, data = server.request("POST", path, body)
        assert got == status, data[:300]
        if status == 400:
            error = json.loads(data)["error"]
            assert error["param"] == param and "nested more than 100 levels deep" in error["message"]


def test_the_format_of_responses_holds_whatever_the_temperature(client, model):
    form = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": CITY}}
    for seed in range(4):
        how = {"model": model, "input": QUESTION, "temperature": 1.5, "max_output_tokens": 200, "text": form, "extra_body": {"seed": seed}}
        answer = client.responses.create(**how)
        city = json.loads(answer.output_text)
        assert answer.status == "completed" and answer.text.format.type == "json_schema" and answer.text.format.schema_ == CITY
        assert set(city) == {"city", "mild", "population"}
        assert city["city"] in ("Bern", "Oslo") and isinstance(city["mild"], bool) and isinstance(city["population"], int)
        with client.responses.stream(**how) as stream:
            assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == answer.output_text
    with pytest.raises(openai.BadRequestError, match="text.format.schema.not cannot be enforced while a text is written"):
        client.responses.create(model=model, input=QUESTION, text={"format": {**form["format"], "schema": {"type": "string", "not": {"const": "a"}}}})


def test_streamed_responses(client, model):
    events = list(client.responses.create(model=model, input=QUESTION, temperature=0, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert events[-1].response.output_text == ANSWER
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))


def test_errors_are_typed(client, model):
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[])
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=ASK, temperature=-1)
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 9000}])
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with pytest.raises(openai.BadRequestError, match="no pooling"):  # a chat model's file names none
        client.embeddings.create(model=model, input="text")


def test_a_wrong_key_is_refused():
    with Server("tiny-qwen3-q8_0.gguf", "--api-key", "right") as server:
        for key in ("wrong", "righ", "right2", "Right"):
            with pytest.raises(openai.AuthenticationError):
                client_of(server, key).models.list()
        client = client_of(server, "right")
        assert client.chat.completions.create(model=client.models.list().data[0].id, messages=ASK, temperature=0).choices[0].message.content == ANSWER
        assert not any("right" in line for line in server.lines), "the key is in the log"


def test_streams_are_server_sent_events(server):
    body = {"messages": ASK, "temperature": 0, "stream": True}
    with httpx.Client(timeout=60) as http, httpx_sse.connect_sse(http, "POST", server.url + "/v1/chat/completions", json=body) as source:
        assert source.response.headers["content-type"].startswith("text/event-stream")
        data = [event.data for event in source.iter_sse()]
    assert data[-1] == "[DONE]" and data.count("[DONE]") == 1
    chunks = [json.loads(text) for text in data[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == ANSWER


def ask(server, **fields):
    status, _, data = server.request("POST", "/v1/chat/completions", {"messages": ASK, "temperature": 0, "max_tokens": 300, **fields})
    assert status == 200, data[:300]
    return json.loads(data)


@pytest.mark.parametrize("value", [{"name": "Bob", "parameters": {"age": 3}}, {"a": "<think>secret</think>"}, {"a": "use </think> here"},
                                   {"a": '<tool_call>{"name":"f","arguments":{}}</tool_call>'}, {"a": "[TOOL_CALLS][]"}, "<think>x</think>y"])
def test_what_a_schema_constrains_is_returned_as_it_is(server, value):
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"const": value}}}
    for more in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        message = ask(server, response_format=form, **more)["choices"][0]["message"]
        assert json.loads(message["content"]) == value and "tool_calls" not in message and "reasoning_content" not in message, message


@pytest.mark.parametrize("text, stop, want", [("x \u65e5\u672c y", " \u65e5\u672c", '"x'), ("a> \U0001f4a1 b", "> \U0001f4a1", '"a'), ("no", "zz", '"no"')])
def test_a_stop_string_may_begin_inside_a_character_of_several_tokens(server, text, stop, want):
    form = {"type": "json_schema", "json_schema": {"name": "t", "schema": {"const": text}}}
    assert ask(server, response_format=form, stop=stop)["choices"][0]["message"]["content"] == want


def test_tools_that_the_template_has_no_place_for_are_in_the_prompt(server):
    tokens = [ask(server, max_tokens=1, **more)["usage"]["prompt_tokens"] for more in ({}, {"tools": [WEATHER]})]
    assert tokens[1] > tokens[0] + 20


def test_a_number_that_is_too_large_is_the_request_s_fault(server):
    body = b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
    status, _, data = server.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    assert status == 400, data[:300]
