# SPDX-License-Identifier: MIT
import pytest

import sharpi


@pytest.fixture
def chat(model):
    with sharpi.Chat(model, "Be brief.", temperature=0, max_tokens=16) as made:
        yield made


def test_a_conversation_has_a_history(chat):
    answer = chat.ask("What is the code of snow?")
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    assert answer and chat.messages[-1]["content"] == answer
    reply = chat.send("And again?")
    pieces = list(reply)
    assert "".join(pieces) == reply.content == chat.messages[-1]["content"]
    assert reply.finish_reason in ("end", "length")
    assert len(chat.messages) == 5


def test_what_was_read_is_not_read_again(chat):
    first = chat.send("What is the code of snow?").finish()
    second = chat.send("And again?").finish()
    whole = chat.session.model.chat_tokenize(chat.messages[:-1])
    assert first.n_read > 0
    assert 0 < second.n_read < len(whole) - first.n_read // 2


def test_an_answer_can_be_made_again(chat):
    once = chat.ask("What is the code of snow?")
    assert chat.regenerate().finish().content == once
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]


def test_messages_may_be_edited(chat, model):
    chat.ask("What is the code of snow?")
    chat.messages[1]["content"] = "What is the code of iron?"
    edited = chat.regenerate().finish().content
    with sharpi.Chat(model, "Be brief.", temperature=0, max_tokens=16) as fresh:
        assert fresh.ask("What is the code of iron?") == edited


def test_an_answer_that_is_left_stays_in_the_history(chat):
    reply = chat.send("What is the code of snow?")
    first = next(reply)
    reply.stop()
    assert chat.messages[-1] == {"role": "assistant", "content": first.strip()}
    assert list(reply) == []
    interrupted = chat.send("Again?")
    next(interrupted)
    chat.session.cancel()
    with pytest.raises(sharpi.Cancelled):
        list(interrupted)
    assert chat.messages[-1]["role"] == "assistant"
    chat.ask("And now?")


def test_stop_strings_of_an_answer(chat):
    whole = chat.ask("What is the code of snow?")
    stop = whole.split()[1]
    reply = chat.regenerate(stop=stop).finish()
    assert reply.finish_reason == "stop" and reply.content == whole.split(stop)[0].strip()


def test_a_hybrid_goes_back_to_what_it_can_reach(hybrid):
    with hybrid.session() as session:
        tokens = hybrid.tokenize("def f(x): return x")
        assert sharpi.read_prompt(session, tokens) == len(tokens)
        assert sharpi.read_prompt(session, tokens) == 0
        session.checkpoint()
        assert sharpi.read_prompt(session, tokens + [5, 6]) == 2
        assert sharpi.read_prompt(session, tokens + [7, 8, 9]) == 3
        assert session.tokens() == tokens + [7, 8, 9]
        assert sharpi.read_prompt(session, tokens[:3]) == 3


def test_a_hybrids_last_answer_can_be_changed_without_reading_all(hybrid):
    with sharpi.Chat(hybrid, "Be brief. " * 20, temperature=0, max_tokens=4) as chat:
        first = chat.send("What is the code of snow?").finish()
        chat.messages[-1]["content"] = "Another answer."
        second = chat.send("And again?").finish()
        assert second.n_read < first.n_read // 2
        again = chat.regenerate().finish()
        assert again.n_read < 10


def test_a_compacted_chat_goes_on_through_its_whole_context(chat):
    chat.ask("The code of snow is 12345. " * 20)
    session = chat.session
    session.compact(budget=64, headroom=32)
    assert session.info.capacity < 128
    chat.ask("The road went down to the river. " * 20)
    assert 128 < session.info.n_slots_max <= session.info.capacity
    with pytest.raises(sharpi.KVFull) as full:
        chat.ask("The road went down to the river. " * 100)
    assert full.value.reason is sharpi.KVFullReason.CONTEXT


def test_an_answer_outgrows_what_a_compaction_left(chat):
    chat.ask("The code of snow is 12345. " * 20)
    session, question = chat.session, {"role": "user", "content": "What is the code of snow?"}
    n_new = len(session.model.chat_tokenize([*chat.messages, question])) - len(session.tokens())
    session.compact(budget=64, headroom=n_new + 1)
    before = session.info.capacity
    assert chat.ask(question["content"])
    assert session.info.capacity > before


def test_a_session_of_the_callers_stays_open(model):
    with model.session() as session:
        with sharpi.Chat(session, max_tokens=2) as chat:
            chat.ask("Hi")
        assert not session.closed
