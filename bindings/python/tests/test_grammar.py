# SPDX-License-Identifier: MIT
import json
import threading

import pytest

import sharpi

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"]}
TOOLS = [{"type": "function", "function": {"name": "look", "strict": True, "parameters": {
    "type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}]


@pytest.fixture(scope="module")
def text(path):
    with sharpi.TextModel(path) as made:
        yield made


def fits(grammar, text):
    with grammar.matcher() as matcher:
        try:
            matcher.accept_text(text)
        except sharpi.Mismatch:
            return False
        return matcher.may_end


def test_schemas_expressions_and_rules(text):
    grammar = sharpi.CompiledGrammar(text, schema=SCHEMA)
    assert fits(grammar, '{"name": "Ada", "age": 36}') and not fits(grammar, '{"name": "Ada"}')
    assert not fits(grammar, '{"name": "Ada", "age": 36, "more": 1}')
    assert fits(sharpi.CompiledGrammar(text, schema=json.dumps(SCHEMA)), '{"name":"é","age":0}')
    assert fits(sharpi.CompiledGrammar(text, regex="[a-z]+[0-9]"), "abc1")
    assert fits(sharpi.CompiledGrammar(text, gbnf='root ::= "(" root? ")"'), "(())")
    for wrong in ({"schema": {"not": {"type": "null"}}}, {"schema": {"minLenght": 1}}):
        with pytest.raises(sharpi.Unsupported, match="schema.(not|minLenght)"):
            sharpi.CompiledGrammar(text, **wrong)
    with pytest.raises(sharpi.InvalidArgument, match="the rule b"):
        sharpi.CompiledGrammar(text, gbnf="a ::= b")
    with pytest.raises(TypeError):
        sharpi.CompiledGrammar(text, regex="a", gbnf="b")


def test_what_is_not_enforced_is_listed(text):
    grammar = sharpi.CompiledGrammar(text, schema={"type": "integer", "not": {"const": 3}}, lenient=True)
    assert len(grammar.notes) == 1 and grammar.notes[0].startswith("schema.not ")
    assert fits(grammar, "3")


def test_whole_texts_are_checked():
    rules = {"items": {"not": {"type": "null"}}}
    assert sharpi.check_schema(rules, "[1]") is None
    assert sharpi.check_schema(rules, b"[1, null]") == "$[1] is what it must not be (not)"
    assert sharpi.check_schema(False, "1") == "$ may not be there (false)"
    with pytest.raises(sharpi.InvalidArgument, match="the text is not JSON"):
        sharpi.check_schema(rules, "[1")
    with pytest.raises(sharpi.Unsupported):
        sharpi.check_schema({"$ref": "other.json"}, "1")


def test_calls_of_tools(text):
    call = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
    free = sharpi.CompiledGrammar(text, tools=TOOLS)
    assert fits(free, "Nothing to see.") and fits(free, "I look. " + call)
    assert not fits(free, call.replace('"at"', '"up"'))
    must = sharpi.CompiledGrammar(text, tools=TOOLS, tool="look", must_call=True, single_call=True)
    assert fits(must, call) and not fits(must, "Nothing.") and not fits(must, call + "\n" + call)


def test_masks_and_matchers(text):
    grammar = sharpi.CompiledGrammar(text, schema={"type": "boolean"})
    first = grammar.matcher()
    grammar.close()
    n = text.info.n_vocab
    mask = first.mask()
    assert mask.nbytes == (n + 31) // 32 * 4 and mask.format == "I"
    allowed = {text.token_bytes(t) for t in range(n) if mask[t // 32] >> t % 32 & 1}
    assert allowed and all(b"true".startswith(b) or b"false".startswith(b) for b in allowed)
    first.accept_text("tr")
    second = first.clone()
    assert first.forced() == b"ue" and not first.may_end
    first.accept_text("ue")
    assert first.complete and not second.complete
    first.accept(text.info.eos)
    assert not any(first.mask())
    with pytest.raises(sharpi.Mismatch):
        second.accept(text.info.eos)
    with pytest.raises(sharpi.InvalidArgument):
        second.accept(n)
    second.close()
    with pytest.raises(sharpi.Closed):
        second.mask()


def test_answers_keep_to_a_grammar(model):
    grammar = sharpi.CompiledGrammar(model, schema=SCHEMA)
    with sharpi.Session(model) as session:
        session.prefill(model.tokenize("def f"))
        session.set_sampler(temperature=1.0, seed=3)
        text = session.generate(None, max_tokens=200, grammar=grammar.matcher()).text()
    answer = json.loads(text)
    assert list(answer) == ["name", "age"] and 0 <= answer["age"] <= 150 and len(answer["name"]) <= 8


def test_threads_share_a_grammar(text):
    grammar = sharpi.CompiledGrammar(text, schema=SCHEMA)
    wrong = []

    def follow():
        for _ in range(20):
            matcher = grammar.matcher()
            for byte in '{"name": "Ada", "age": 36}':
                matcher.mask()
                matcher.accept_text(byte)
            if not matcher.complete:
                wrong.append(1)

    threads = [threading.Thread(target=follow) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
