# SPDX-License-Identifier: MIT
import json

import pytest

import sharpi

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def text(path):
    with sharpi.TextModel(path) as made:
        yield made


def test_text_goes_to_tokens_and_back(text):
    for sample in ("def f(x):\n    return x", "Grüße, 世界 🎈", "", "a\0b"):
        tokens = text.tokenize(sample)
        assert text.detokenize(tokens) == sample
        assert b"".join(map(text.token_bytes, tokens)) == sample.encode()
    other = b"\xff\xfe mixed \xc3"
    assert text.detokenize_bytes(text.tokenize(other)) == other
    with pytest.raises(sharpi.InvalidArgument):
        text.detokenize([text.info.n_vocab])


def test_control_tokens(text):
    end = text.info.eos
    spelling = text.token_bytes(end)
    assert text.token_id(spelling) == end and text.is_end(end)
    assert sharpi.TokenAttributes.END in text.token_attributes(end)
    assert sharpi.TokenAttributes.CONTROL in text.token_attributes(end)
    assert text.tokenize(spelling, parse_special=True) == [end]
    assert end not in text.tokenize(spelling)
    assert text.detokenize([end]) == "" and text.detokenize([end], special=True).encode() == spelling
    assert text.token_attributes(-1) == sharpi.TokenAttributes(0) and not text.is_end(1 << 20)
    with pytest.raises(sharpi.NotFound):
        text.token_id("text of several tokens")


def test_what_needs_weights_says_so(text):
    assert text.info.architecture == "qwen3"
    assert "general.architecture" in text.meta_keys() and text.meta("general.architecture") == "qwen3"


def test_whole_characters_come_out_of_a_stream(text):
    sample = "Grüße, 世界 🎈!"
    tokens = text.tokenize(sample)
    stream = text.text_stream()
    pieces = [stream.push(token) for token in tokens]
    assert "".join(pieces) + stream.finish() == sample
    assert "�" not in "".join(pieces)
    half = text.text_stream()
    assert half.push(*text.tokenize("é".encode()[:1])) == ""
    assert half.finish() == "�"


def test_stop_strings():
    stream = sharpi.StopStream(["END", "STOP"])
    assert stream.push("some E") == "some " and stream.push("N") == ""
    assert stream.push("x ST") == "ENx "
    assert stream.push("OP and more") == "" and stream.stopped == "STOP"
    assert stream.push("nothing") == "" and stream.finish() == ""
    held = sharpi.StopStream(["END"])
    assert held.push("EN") == "" and held.finish() == "EN" and held.stopped is None
    free = sharpi.StopStream([])
    assert free.push("text") == "text" and free.finish() == ""
    for refused in ("", "x" * 129):
        with pytest.raises(sharpi.InvalidArgument):
            sharpi.StopStream([refused])


def test_a_conversation_is_formatted_by_the_files_template(text):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]
    rendered = text.chat_format(messages)
    assert "Be brief." in rendered and "Hi <|im_end|>" in rendered
    assert rendered.startswith(text.chat_format(messages, prompt=False))
    assert len(rendered) > len(text.chat_format(messages, prompt=False))
    tokens = text.chat_tokenize(messages)
    assert text.detokenize(tokens, special=True) == rendered
    # What a message says is no control token.
    inner = text.chat_tokenize([{"role": "user", "content": "<|im_end|>"}])
    plain = text.chat_tokenize([{"role": "user", "content": "x"}])
    assert inner.count(text.token_id("<|im_end|>")) == plain.count(text.token_id("<|im_end|>"))


def test_messages_of_every_kind_reach_the_template(text):
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "sky"}}}
    messages = [
        {"role": "user", "content": "What colour?"},
        {"role": "assistant", "content": "", "reasoning": "I look.", "tool_calls": [call]},
        {"role": "tool", "content": "blue", "tool_call_id": "1", "name": "look"},
    ]
    as_text = [dict(m, tool_calls=json.dumps(m["tool_calls"])) if "tool_calls" in m else m
               for m in messages]
    one = text.chat_format(messages, tools=TOOLS, variables={"x": 1}, thinking=False, now=1)
    assert one == text.chat_format(as_text, tools=json.dumps(TOOLS), variables={"x": 1},
                                   thinking=False, now=1)
    assert "What colour?" in one and "blue" in one
    with pytest.raises(sharpi.InvalidArgument):
        text.chat_format(messages, tools="{not JSON")


def test_content_may_be_a_list_of_parts(text):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert text.chat_format([{"role": "user", "content": parts}]) == text.chat_format(
        [{"role": "user", "content": "one two"}])
    with pytest.raises(sharpi.Unsupported, match="image"):
        text.chat_format([{"role": "user", "content": [{"type": "image", "url": "x"}]}])


def test_generated_text_is_taken_apart():
    calls = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
    parts = sharpi.chat_parse("<think>Hm.</think>It is blue." + calls)
    assert (parts.reasoning, parts.content) == ("Hm.", "It is blue.")
    (call,) = parts.tool_calls
    assert call["function"]["name"] == "look"
    assert sharpi.chat_parse("still", prompt="<think>\n").reasoning == "still"
    partial = sharpi.chat_parse("<think>Hm.</thi", partial=True)
    assert (partial.reasoning, partial.open) == ("Hm.", sharpi.Part.REASONING)
    long = "x" * 100000
    assert sharpi.chat_parse(long).content == long
    written = "<tool_call>\n<function=f>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>"
    for kind, value in (("string", "3"), ("integer", 3)):
        tools = [{"name": "f", "parameters": {"properties": {"a": {"type": kind}}}}]
        (call,) = sharpi.chat_parse(written, tools=tools).tool_calls
        assert call["function"]["arguments"] == {"a": value}
    assert sharpi.chat_parse(written, calls=False).content == written
    assert sharpi.chat_parse("<think>a", reasoning=False).content == "<think>a"
    answer = '{"a": "<tool_call>{}"}'
    assert sharpi.chat_parse(answer, constrained=True).content == answer
    with pytest.raises(sharpi.errors.InvalidArgument):
        sharpi.chat_parse("x", tools="{}")
