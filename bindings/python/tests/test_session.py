# SPDX-License-Identifier: MIT
import array
import io
import math

import pytest
from conftest import find

import sharpi

N = 12


def greedy(session, n=N):
    return [session.step()[0].token for _ in range(n)]


def test_steps_are_draws_and_reads(model, session, prompt):
    session.prefill(prompt)
    stepped = greedy(session)
    with model.session() as other:
        other.set_sampler(temperature=0)
        other.prefill(prompt)
        drawn = []
        for _ in range(N):
            drawn.append(other.sample().token)
            other.decode(drawn[-1])
        assert drawn == stepped
        assert other.tokens() == session.tokens() == prompt + stepped
        assert bytes(other.logits()) == bytes(session.logits())


def test_tokens_come_from_any_sequence(model, prompt):
    kinds = [prompt, tuple(prompt), array.array("i", prompt), memoryview(array.array("i", prompt)),
             (t for t in prompt), bytes(array.array("i", prompt))]
    for tokens in kinds[:-1]:
        with model.session() as session:
            assert session.prefill(tokens) == len(prompt)
            assert session.tokens() == prompt


def test_logits_without_and_with_numpy(session, prompt):
    session.prefill(prompt, logit_rows=3)
    n_vocab = session.model.info.n_vocab
    logits = session.logits()
    assert logits.format == "f" and len(logits) == n_vocab
    assert max(range(n_vocab), key=logits.__getitem__) == session.sample().token
    assert session.info.n_logit_rows == 3 and bytes(session.logits(2)) != bytes(logits)
    with pytest.raises(sharpi.InvalidArgument):
        session.logits(3)
    with pytest.raises(sharpi.BufferTooSmall):
        session.logits(out=array.array("f", [0.0]))
    with pytest.raises(TypeError):
        session.logits(out=bytes(4 * n_vocab))
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    view = session.logits_array()
    assert view.dtype == numpy.float32 and view.shape == (n_vocab,)
    assert int(view.argmax()) == session.sample().token
    mine = numpy.zeros(n_vocab, numpy.float32)
    session.logits(out=mine)
    assert (mine == view).all()
    with session.model.session() as other:
        assert other.prefill(numpy.array(prompt, dtype=numpy.int32)) == len(prompt)
        assert other.prefill(numpy.array(prompt[:5], dtype=numpy.int64)) == 5


def test_masks_bias_and_logprobs(session, prompt):
    session.prefill(prompt)
    best = session.sample(logprobs=3)
    assert len(best.logprobs) == 3 and best.logprobs[0] == best.logprobs[1]
    total = sum(math.exp(v) for v in session.logits())
    assert math.isclose(best.logprobs[0][1], session.logits()[best.token] - math.log(total), abs_tol=1e-3)
    words = array.array("I", bytes(4 * -(-session.model.info.n_vocab // 32)))
    words[5 // 32] |= 1 << 5 % 32
    assert session.sample(mask=words).token == 5
    assert session.sample(mask=bytes_of(words)).token == 5
    assert session.sample(mask=list(words)).token == 5
    assert session.sample(bias={best.token: -math.inf}).token != best.token
    assert session.sample(bias={7: 1e9}).token == 7
    with pytest.raises(sharpi.BadState):
        session.sample(mask=[0])
    session.set_sampler(temperature=0, bias={9: 1e9})
    assert session.sample().token == 9
    (step,) = session.step(mask=words, logprobs=2)
    assert step.token == 5 and step.logprobs[0][0] == 5 and len(step.logprobs) == 2
    assert session.tokens()[-1] == 5


def bytes_of(words):
    return memoryview(words).toreadonly()


def test_equal_seeds_draw_equal_texts(model, prompt):
    texts = []
    for seed in (1, 1, 2):
        with model.session() as session:
            session.set_sampler(temperature=2.0, seed=seed, top_k=0, top_p=1.0, min_p=0.0)
            session.prefill(prompt)
            texts.append(greedy(session, 24))
    assert texts[0] == texts[1] != texts[2]


def test_the_host_works_meanwhile(session, prompt):
    session.prefill(prompt)
    seen = []
    (one,) = session.step(meanwhile=seen.append)
    assert seen == [one.token]

    def broken(token):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        session.step(meanwhile=broken)
    assert session.info.n_tokens == len(prompt) + 2  # the step itself was made


def test_generation_is_an_iterator(model, prompt):
    with model.session() as session:
        session.set_sampler(temperature=0)
        session.prefill(prompt)
        expected = greedy(session, 20)
    with model.session() as session:
        session.set_sampler(temperature=0)
        generation = session.generate(prompt, max_tokens=20, logprobs=2)
        pieces = list(generation)
        assert generation.tokens == expected and generation.finish_reason == "length"
        assert "".join(pieces) == model.detokenize(expected)
        assert all(len(one.logprobs) == 2 for one in generation.sampled)
        assert list(generation) == []
    text = "".join(pieces)
    with model.session() as session:
        session.set_sampler(temperature=0)
        stop = text[6:9]
        generation = session.generate(prompt, max_tokens=20, stop=stop)
        assert generation.text() == text[:text.index(stop)]
        assert generation.finish_reason == "stop" and generation.stop_string == stop
    with model.session() as session:  # left early, and gone on with
        session.set_sampler(temperature=0)
        first = next(session.generate(prompt))
        rest = session.generate(max_tokens=19).text()
        assert text.startswith(first + rest)
    with model.session() as session:
        session.set_sampler(temperature=0, bias={model.info.eos: 1e9})
        generation = session.generate("def f(x):")
        assert generation.text() == "" and generation.finish_reason == "end"
        assert generation.tokens == [model.info.eos]


def test_a_grammar_is_asked_before_and_told_after_each_draw(session):
    n_words = -(-session.model.info.n_vocab // 32)
    wanted = session.model.tokenize("abc", add_special=False) + [session.model.info.eos]

    class Exactly:
        def __init__(self):
            self.accepted = []

        def mask(self):
            words = array.array("I", bytes(4 * n_words))
            token = wanted[len(self.accepted)]
            words[token // 32] |= 1 << token % 32
            return words

        def accept(self, token):
            self.accepted.append(token)

    grammar = Exactly()
    generation = session.generate("def f(x):", grammar=grammar)
    assert generation.text() == "abc" and generation.finish_reason == "end"
    assert grammar.accepted == wanted == generation.tokens


def test_a_batch_reads_what_single_sessions_read(path, context, prompt):
    with sharpi.Model(path, context=context, n_ctx=512, n_sessions=3, deterministic=True,
                      max_batch=2) as model:
        a, b, alone = (model.session() for _ in range(3))
        a.prefill(prompt)
        b.prefill(prompt[:50])
        alone.prefill(prompt[:50])
        sharpi.decode_batch([(a, 3), (b, 4)])
        alone.decode(4)
        assert bytes(b.logits()) == bytes(alone.logits())
        with pytest.raises(sharpi.InvalidArgument):
            sharpi.decode_batch([(a, 3), (a, 4)])
        with pytest.raises(sharpi.InvalidArgument):
            sharpi.decode_batch([(a, 1), (b, 1), (alone, 1)])
        b.cancel()
        with pytest.raises(sharpi.Cancelled) as caught:
            sharpi.decode_batch([(a, 3), (b, 4)])
        assert caught.value.native_code == 1
        assert a.info.n_tokens == len(prompt) + 1


def test_a_fork_goes_its_own_way(session, prompt):
    session.prefill(prompt)
    with session.fork() as twin:
        first = greedy(twin)
        assert session.info.n_tokens == len(prompt)
        assert greedy(session) == first
        session.close()
        greedy(twin, 2)


def test_saved_sessions_go_on(model, session, prompt, tmp_path):
    session.prefill(prompt)
    blob = session.save()
    pieces = []
    assert session.save_to(pieces.append) == len(blob) and b"".join(pieces) == blob
    file = tmp_path / "session"
    with open(file, "wb") as out:
        out.write(b"head")
        assert session.save_to(out) == len(blob)
    first = greedy(session)
    with model.session() as other:
        other.restore(blob)
        assert greedy(other) == first
        with open(file, "rb") as source:
            source.read(4)
            other.restore_from(source)
        assert greedy(other) == first
        other.restore_from(lambda offset, size: blob[offset:offset + size])
        assert greedy(other) == first
        other.restore(bytearray(blob))
        assert greedy(other) == first


def test_what_cannot_be_restored_changes_nothing(model, hybrid, session, prompt):
    session.prefill(prompt)
    blob = session.save()
    before = session.tokens()
    with pytest.raises(sharpi.BadFormat):
        session.restore(blob[:-8])
    damaged = bytearray(blob)
    damaged[len(blob) // 2] ^= 1
    with pytest.raises(sharpi.BadFormat):
        session.restore(damaged)
    with hybrid.session() as other, pytest.raises(sharpi.Mismatch):
        other.restore(blob)
    assert session.tokens() == before

    def broken(*_):
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        session.save_to(broken)
    with pytest.raises(OSError, match="no space"):
        session.restore_from(broken)
    with pytest.raises(EOFError):
        session.restore_from(io.BytesIO(blob[:100]))
    assert session.tokens() == before


def test_truncate_and_reachable(session, prompt):
    session.prefill(prompt)
    assert session.reachable() == [0, len(prompt)]
    session.truncate(10)
    assert session.tokens() == prompt[:10]
    with pytest.raises(sharpi.BadState):
        session.logits()
    with pytest.raises(sharpi.InvalidArgument):
        session.truncate(11)


def test_checkpoints_of_a_hybrid(hybrid, prompt):
    with hybrid.session() as session:
        session.prefill(prompt[:64], checkpoint=True)
        session.prefill(prompt[64:80])
        session.checkpoint(pin=True)
        session.prefill(prompt[80:])
        assert session.info.n_checkpoints == 2
        assert session.reachable() == [64, 80, len(prompt)]
        with pytest.raises(sharpi.BadState):
            session.truncate(70)
        session.truncate(64)
        assert session.info.n_tokens == 64
        assert hybrid.info.is_hybrid


def test_compaction_keeps_rows_and_says_which(session, prompt):
    session.prefill(prompt)
    told = []
    report = session.compact(budget=64, recency=16, sinks=4, policy="snapkv",
                             progress=lambda phase, done, total: told.append(phase))
    assert (report.rows_before, report.rows_after) == (len(prompt), 64)
    assert report.policy == sharpi.Policy.SNAPKV
    assert report.payload_after < report.payload_before
    assert set(told) == {sharpi.Phase.COMPACT}
    kept = session.kept(0, 0)
    assert len(kept) == 64 and kept == sorted(kept)
    assert kept[:4] == [0, 1, 2, 3] and kept[-16:] == list(range(len(prompt) - 16, len(prompt)))
    assert session.info.is_compacted and session.info.n_tokens == len(prompt)
    assert session.layer(0).n_slots == 64
    assert session.tokens() == prompt
    greedy(session, 3)


def test_compaction_by_rows_probes_and_refusals(model, session, prompt):
    session.prefill(prompt)
    with pytest.raises(sharpi.InvalidArgument):
        session.compact()
    with pytest.raises(sharpi.Cancelled):
        session.compact(budget=64, progress=lambda *_: False)
    assert not session.info.is_compacted
    with session.fork() as probed:
        assert probed.compact(budget=32, probe=prompt[:8]).rows_after == 32
    rows = [0, 1, 5, len(prompt) - 1]
    session.compact(policy="keep", keep=rows, headroom=0)
    assert session.kept(2) == rows
    with model.session(capture_window=0) as blind:
        blind.prefill(prompt)
        with pytest.raises(sharpi.BadState):
            blind.compact(budget=16)


def test_reserve_and_bounded_sessions(path, context, prompt):
    with sharpi.Model(path, context=context, n_ctx=512, kv_budget=64, capture_window=16,
                      n_chunk=64) as model:
        with model.session() as session:
            session.prefill(prompt)
            assert session.info.n_slots_max <= 64 + 64
    with sharpi.Model(path, context=context, n_ctx=512, capture_window=16) as model:
        with model.session() as session:
            session.prefill(prompt)
            session.compact(budget=16, headroom=0)
            session.reserve(256)
            assert session.info.capacity >= 256


def test_progress_of_a_prefill(path, context, prompt):
    with sharpi.Model(path, context=context, n_ctx=512, n_chunk=32) as model, model.session() as session:
        told = []

        def progress(phase, done, total):
            told.append((phase, done, total, session.info.n_tokens))

        session.prefill(prompt, progress=progress)
        assert [done for _, done, _, _ in told][-1] == len(prompt) and len(told) > 3
        assert all(phase == sharpi.Phase.PREFILL and total == len(prompt) for phase, _, total, _ in told)
        session.truncate(0)
        with pytest.raises(sharpi.Cancelled):
            session.prefill(prompt, progress=lambda phase, done, total: done < 64)
        assert session.info.n_tokens == 64
        session.truncate(0)
        with pytest.raises(sharpi.Cancelled):
            session.prefill(prompt, n_chunk=16, progress=lambda phase, done, total: done < 48)
        assert session.info.n_tokens == 48
        with pytest.raises(sharpi.InvalidArgument, match="n_chunk"):
            session.prefill(prompt, n_chunk=33)

        def broken(*_):
            raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            session.prefill(prompt, progress=broken)
        session.prefill(prompt[:4])


@pytest.mark.parametrize("asked, who", [
    ("ngram", sharpi.Drafters.NGRAM),
    (sharpi.Drafters.MTP, sharpi.Drafters.MTP),
    (3, sharpi.Drafters.NGRAM | sharpi.Drafters.MTP),
    ("ngram, mtp", sharpi.Drafters.NGRAM | sharpi.Drafters.MTP),
    ("auto", sharpi.Drafters.NGRAM | sharpi.Drafters.MTP),
    ("model", sharpi.Drafters.MODEL),
    ("ngram,model", sharpi.Drafters.NGRAM | sharpi.Drafters.MODEL),
])
def test_every_drafter_leaves_the_tokens_of_plain_steps(context, hybrid_path, prompt, asked, who):
    def steps(n=48, **options):
        model = sharpi.Model(hybrid_path, context=context, n_ctx=512, n_chunk=64, deterministic=True, **options)
        ends = {t: -math.inf for t in range(model.info.n_vocab) if model.is_end(t)}
        with model, model.session() as session:
            session.set_sampler(temperature=0)
            session.prefill(prompt + prompt)
            out = []
            while len(out) < n:
                out += [one.token for one in session.step(bias=ends)]
            assert session.tokens() == prompt + prompt + out
            return out[:n], session.drafts

    want, none = steps()
    assert none.drafters == 0 and none.n_drafted == 0
    # It drafts for itself: a smaller model of its vocabulary is not in the tree.
    got, stats = steps(n_draft=4, drafters=asked, draft_path=hybrid_path if who & sharpi.Drafters.MODEL else None)
    assert got == want
    assert stats.drafters == who and isinstance(stats.drafters, sharpi.Drafters)
    assert 0 <= stats.n_accepted <= stats.n_drafted and stats.n_drafted > 0
    if who == sharpi.Drafters.MTP:
        got, stats = steps(n_draft=4, drafters=asked, n_draft_vocab=512)
        assert got == want and stats.n_drafted > 0


def test_drafters_that_cannot_be_had_are_refused_with_the_plans_sentence(context, path, hybrid_path):
    block = "drafters has MTP, but the file has no block for multi-token prediction"
    with pytest.raises(sharpi.Unsupported, match=block):
        sharpi.Plan(path, context=context, n_ctx=256, n_draft=4, drafters="mtp")
    with sharpi.Plan(path, context=context, n_ctx=256, n_draft=4, drafters="auto") as plan:
        assert plan.fallbacks() == ["the MTP drafter is left out: " + block]
    with pytest.raises(sharpi.InvalidArgument, match="drafters has MODEL, but draft_path is null"):
        sharpi.Plan(path, context=context, n_ctx=256, n_draft=4, drafters="model")
    with pytest.raises(sharpi.Mismatch, match="the draft model has another vocabulary"):
        sharpi.Plan(path, context=context, n_ctx=256, n_draft=4, drafters="model",
                    draft_path=find("tiny-gemma4kv-q8_0.gguf"))
    with pytest.raises(sharpi.InvalidArgument, match="drafters is 2 but n_draft is 0"):
        sharpi.Plan(hybrid_path, context=context, n_ctx=256, drafters="mtp")
    with pytest.raises(sharpi.InvalidArgument, match="n_draft_vocab is 512, but drafters is 1"):
        sharpi.Plan(hybrid_path, context=context, n_ctx=256, n_draft=4, drafters="ngram", n_draft_vocab=512)
    for wrong in ("best", "ngram,best", ","):
        with pytest.raises(sharpi.InvalidArgument, match="is none of ngram, mtp, auto"):
            sharpi.Plan(path, context=context, n_ctx=256, n_draft=4, drafters=wrong)
    model = sharpi.Model(hybrid_path, context=context, n_ctx=256, n_draft=4, drafters="ngram", n_sessions=1)
    with model, pytest.raises(sharpi.DoesNotFit, match="drafters has MTP, but the plan priced sessions without it"):
        model.session(n_draft=4, drafters="mtp")


def test_rows_of_four_bits(context, path, prompt):
    """The types of K and V are chosen apart; what is refused has the library's sentence."""
    model = sharpi.Model(path, context=context, n_ctx=256, k_dtype="q8_0", v_dtype=sharpi.KVType.Q4)
    assert (model.plan.info.k_dtype, model.plan.info.v_dtype) == (sharpi.KVType.Q8_0, sharpi.KVType.Q4)
    with model, model.session() as session:
        session.set_sampler(temperature=0)
        session.prefill(prompt)
        assert len(greedy(session)) == N
        assert (session.layer(0).k_dtype, session.layer(0).v_dtype) == (sharpi.KVType.Q8_0, sharpi.KVType.Q4)
        held = session.info.kv_payload_bytes
    with sharpi.Model(path, context=context, n_ctx=256, kv="q4") as narrow, narrow.session() as session:
        session.prefill(prompt + [1] * (N))
        assert 0 < session.info.kv_payload_bytes < held


def test_drafts_leave_what_steps_leave(context, path, prompt):
    model = sharpi.Model(path, context=context, n_ctx=256, n_draft=4, n_sessions=2, deterministic=True)
    with model.session() as plain, model.session() as session:
        for one in (plain, session):
            one.set_sampler(temperature=0)
            one.prefill(prompt)
        want = greedy(plain)
        wrong = (want[3] + 1) % 256
        assert session.verify([*want[:3], wrong]) == 3
        assert session.verify(want[3:8]) == 5
        words = (model.info.n_vocab + 31) // 32
        masks = array.array("I", [0xFFFFFFFF] * (2 * words))
        masks[words + want[10] // 32] &= ~(1 << want[10] % 32) & 0xFFFFFFFF
        assert session.verify(want[8:11], mask=masks) == 2
        assert session.verify(want[10:]) == len(want) - 10
        assert session.tokens() == plain.tokens()
        assert bytes(session.logits()) == bytes(plain.logits())
        stats = session.drafts
        assert (stats.n_passes, stats.n_drafted, stats.n_accepted) == (4, 10, 8)
        assert [d for d, _ in session.draft_places] == [4, 3, 2, 1]
        with pytest.raises(sharpi.InvalidArgument, match="n_draft 4"):
            session.verify([1] * 6)
        with pytest.raises(ValueError):
            session.verify([1, 2], mask=masks[: 2 * words - 1] if words % 2 else b"")


def test_a_batch_steps_as_single_sessions_do(context, path, prompt):
    with sharpi.Model(path, context=context, n_ctx=256, n_draft=4, drafters=sharpi.Drafters.NGRAM,
                      n_sessions=3, deterministic=True, max_batch=2, max_logit_rows=10) as model:
        plain, a, b = (model.session() for _ in range(3))
        for one in (plain, a, b):
            one.set_sampler(temperature=0)
            one.prefill(prompt)
        want = [plain.step(max_tokens=1)[0].token for _ in range(N)]
        got = [[], []]
        while min(len(got[0]), len(got[1])) < 6:
            for tokens, new in zip(got, sharpi.step_batch([a, b], logprobs=1, max_tokens=5)):
                assert all(s.logprobs[0][0] == s.token for s in new)
                tokens += [s.token for s in new]
        assert got[0][:6] == got[1][:6] == want[:6]
        words = (model.info.n_vocab + 31) // 32
        only = array.array("I", [0] * words)
        only[1] = 1 << 7  # token 39
        masked = sharpi.step_batch([a, b], masks=[only, None])
        assert [s.token for s in masked[0]] == [39]
        with pytest.raises(sharpi.InvalidArgument):
            sharpi.step_batch([a, a])
        with pytest.raises(ValueError, match="one entry for each session"):
            sharpi.step_batch([a], masks=[])
        before = a.info.n_tokens
        b.cancel()
        with pytest.raises(sharpi.Cancelled) as caught:
            sharpi.step_batch([a, b])
        assert caught.value.native_code == 1
        assert a.info.n_tokens == before


def test_a_batch_verifies_what_single_sessions_verify(context, path, prompt):
    with sharpi.Model(path, context=context, n_ctx=256, n_draft=4, n_sessions=3, deterministic=True,
                      max_batch=2, max_logit_rows=8) as model:
        plain, a, b = (model.session() for _ in range(3))
        for one in (plain, a, b):
            one.set_sampler(temperature=0)
            one.prefill(prompt)
        want = greedy(plain)
        wrong = (want[2] + 1) % 256
        assert sharpi.verify_batch([(a, want[:4]), (b, [*want[:2], wrong])]) == [4, 2]
        words = (model.info.n_vocab + 31) // 32
        mask = array.array("I", [0xFFFFFFFF] * words)
        mask[want[5] // 32] &= ~(1 << want[5] % 32) & 0xFFFFFFFF
        assert sharpi.verify_batch([(a, want[4:6]), (b, want[2:5])], masks=[mask, None]) == [1, 3]
        assert a.tokens() == b.tokens() == plain.tokens()[: len(prompt) + 5]
        assert bytes(a.logits()) == bytes(b.logits())
        with pytest.raises(sharpi.InvalidArgument):
            sharpi.verify_batch([(a, [1]), (a, [2])])
        with pytest.raises(sharpi.InvalidArgument, match="n_draft 4"):
            sharpi.verify_batch([(a, [1] * 6)])
        with pytest.raises(ValueError, match="one entry for each session"):
            sharpi.verify_batch([(a, [1])], masks=[])
        b.cancel()
        with pytest.raises(sharpi.Cancelled) as caught:
            sharpi.verify_batch([(a, [1]), (b, [2])])
        assert caught.value.native_code == 1
        assert a.info.n_tokens == b.info.n_tokens == len(prompt) + 5
