# SPDX-License-Identifier: MIT
import pytest

import sharpi
from sharpi._callbacks import Paced


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
        chat.ask("The road went down to the river. " * 200)
    assert full.value.reason is sharpi.KVFullReason.CONTEXT


def test_a_full_context_ends_an_answer(model):
    """What was said stays, as where the longest answer allowed is reached."""
    with sharpi.Chat(model.session(n_ctx=96), temperature=0) as chat:
        never = {token: -float("inf") for token in range(model.info.n_vocab) if model.is_end(token)}
        chat.session.set_sampler(temperature=0, bias=never)
        answer = chat.ask("Count.")
        assert chat.last_reply.finish_reason == "length"
        assert answer and chat.messages[-1] == {"role": "assistant", "content": answer}
        tokens = chat.last_reply.generation.tokens
        assert chat.session.info.n_tokens == 96 and chat.session.tokens()[-1] == tokens[-2], "one token had no room to be read"
        n_messages = len(chat.messages)
        with pytest.raises(sharpi.KVFull):
            chat.ask("And now?")
        assert len(chat.messages) == n_messages, "what has no room is not said"
        chat.session.truncate(0)


def test_a_message_that_is_too_long_harms_no_conversation(chat):
    answer = chat.ask("What is the code of snow?")
    with pytest.raises(sharpi.KVFull):
        chat.ask("The road went down to the river. " * 400)
    assert [m["role"] for m in chat.messages] == ["system", "user", "assistant"]
    assert chat.regenerate().finish().content == answer
    chat.ask("And again?")


def test_progress_of_a_conversation_is_one_count(hybrid):
    """Though a hybrid's prompt is read in two parts, with a checkpoint between them."""
    told = []
    with sharpi.Chat(hybrid, "Be brief. " * 20, temperature=0, max_tokens=4) as chat:
        reply = chat.send("What is the code of snow?", progress=lambda phase, done, total: told.append((done, total))).finish()
        assert reply.n_read == told[-1][0]
    assert told == sorted(told) and {total for _, total in told} == {reply.n_read}


def test_progress_comes_ten_times_a_second_at_most():
    now, told = [0.0], []
    paced = Paced(lambda phase, done, total: told.append((now[0], done, total)), lambda: now[0])
    first = paced.part(ahead=100)
    for done in range(0, 301, 10):
        first(sharpi.Phase.PREFILL, done, 300)
        now[0] += 1 / 32
    assert told == [(done / 320, done, 400) for done in range(0, 301, 40)]
    told.clear()
    second = paced.part()
    for done in range(0, 101):
        second(sharpi.Phase.PREFILL, done, 100)  # at once
    assert [count for _, *count in told] == [[400, 400]]


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
