# SPDX-License-Identifier: MIT
"""The package where a GPU computes: skipped, with the library's own sentence, where there is none.

SHARPI_TEST_REQUIRE_GPU=1: the absence of a GPU is a failure. SHARPI_TEST_TIER=cpu rehearses: the same
tests with all blocks on the CPU, but for what only a GPU can refuse.
"""

import os

import pytest
from conftest import find, golden

import sharpi

NAMES = ["tiny-qwen3", "tiny-qwen35", "tiny-gemma4kv"]
KV = ["f32", "bf16", "q8_0", "q4"]
REHEARSAL = os.environ.get("SHARPI_TEST_TIER") == "cpu"
NO_GPU = ("libsharpi-cuda.so is not beside the library", "no NVIDIA driver is installed", "the NVIDIA driver sees no device")
# How far logits of the two tiers may be from each other. They round rows of a narrow type from sums of
# another order: twice the most that rounding to this type moved a logit of these models
# (tests/engine/recorded_codecs.h).
NEAR = {"f32": 2e-3, "bf16": 0.15, "q8_0": 0.23, "q4": 2.8}


@pytest.fixture(scope="module")
def tier(context):
    """Where the blocks are expected."""
    if REHEARSAL:
        return sharpi.Tier.CPU
    try:
        context.device(1)
    except sharpi.NotFound as error:
        assert any(reason in error.text for reason in NO_GPU), error.text
        assert os.environ.get("SHARPI_TEST_REQUIRE_GPU") != "1", error.text
        pytest.skip(error.text)
    return sharpi.Tier.CUDA


def load(context, name, kv="f32", **options):
    return sharpi.Model(find(name + "-q8_0.gguf"), context=context, kv=kv, arithmetic="exact", n_ctx=2048,
                        capture_window=32, n_sessions=3, n_checkpoints=2, **options)


def greedy(session, n):
    drawn = []
    for _ in range(n):  # step() would not read a token that ends a text
        drawn.append(session.sample().token)
        session.decode(drawn[-1])
    return drawn


def opened(model):
    session = model.session()
    session.set_sampler(temperature=0)
    return session


def test_the_build_and_the_device_are_named(context, tier):
    device = context.device(0 if REHEARSAL else 1, measure=True)
    assert device.tier == tier and device.total_bytes > 0 and device.bandwidth > 0
    if not REHEARSAL:
        assert "cuda" in sharpi.build_info().split("backends:")[1]
        assert sharpi.Tier.CUDA in [d.tier for d in sharpi.default_context().devices()]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_fits_is_on_the_gpu_without_being_asked_to(context, tier, name):
    with sharpi.Model(find(name + "-q8_0.gguf"), context=context, n_ctx=1024) as model:
        n = model.info.n_layers
        assert [model.plan.layer(i).tier for i in range(n)] == [tier] * n
        assert [model.plan.layer(i).ffn_tier for i in range(n)] == [tier] * n
        assert model.plan.fallbacks() == []
        letter = model.json()["placement"]["mixers"][0]
        assert model.json()["placement"]["mixers"] == letter * n
        assert model.json()["placement"]["ffn"] == letter * n
        text = tier.name.lower()
        assert {group["tier"] for group in model.plan.json()["layer_groups"]} == {text}
        assert [s["tier"] for s in model.json()["segments"] if s["n_mixers"]] == [text]
        with opened(model) as session:
            session.prefill([1, 2, 3])
            greedy(session, 4)
            assert {row.tier for row in session.memory()
                    if row.purpose == sharpi.RowPurpose.KV} == {tier}
        segments = [s for s in model.segments() if s.n_mixers]
        assert {s.tier for s in segments} == {tier}
        assert sum(s.n_calls for s in segments) >= 5


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_the_cpu_and_the_goldens(context, tier, name):
    with load(context, name) as there, load(context, name, device=0) as here:
        assert there.plan.layer(0).tier == tier and here.plan.layer(0).tier == sharpi.Tier.CPU
        for case in golden(name)["cases"]:
            with opened(there) as a, opened(here) as b:
                a.prefill(case["tokens"])
                b.prefill(case["tokens"])
                n = len(case["greedy"])
                assert greedy(a, n) == greedy(b, n) == case["greedy"]


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("name", NAMES)
def test_every_type_of_rows_runs(context, tier, name, kv):
    tokens = golden(name)["cases"][0]["tokens"]
    rows = []
    for device in (None, 0):
        with load(context, name, kv, device=device) as model, opened(model) as session:
            layers = [model.plan.layer(i) for i in range(model.info.n_layers)]
            stored = [layer for layer in layers if layer.mixer == sharpi.Mixer.ATTENTION]
            wanted = sharpi.KVType[kv.upper()]
            assert stored and {(layer.k_dtype, layer.v_dtype) for layer in stored} == {(wanted, wanted)}
            assert {layer.tier for layer in stored} == {tier if device is None else sharpi.Tier.CPU}
            session.prefill(tokens)
            rows.append(list(session.logits()))
            if device is None:
                found = 0
                for needle in golden(name)["needles"][:4]:
                    with opened(model) as asked:
                        asked.prefill(needle["prompt"])
                        found += greedy(asked, len(needle["answer"])) == needle["answer"]
                assert found >= 3
    assert max(abs(a - b) for a, b in zip(*rows)) <= NEAR[kv]


@pytest.mark.parametrize("kv", KV)
def test_compaction_keeps_rows_and_says_which(context, tier, kv):
    needle = golden("tiny-qwen35")["needles"][0]
    with load(context, "tiny-qwen35", kv) as model, opened(model) as session:
        session.prefill(needle["prompt"])
        report = session.compact(budget=256, recency=32, sinks=4)
        assert (report.rows_before, report.rows_after) == (len(needle["prompt"]), 256)
        assert report.payload_after < report.payload_before
        attention = [i for i in range(model.info.n_layers)
                     if model.plan.layer(i).mixer == sharpi.Mixer.ATTENTION]
        for layer in attention:
            kept = session.kept(layer)
            assert kept == sorted(kept) and kept[:4] == [0, 1, 2, 3] and len(kept) == 256
            assert session.layer(layer).tier == tier
        assert session.info.is_compacted and session.tokens() == needle["prompt"]
        assert greedy(session, len(needle["answer"])) == needle["answer"]


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("name", NAMES)
def test_saved_sessions_go_on_here_and_there(context, tier, name, kv):
    tokens = golden(name)["cases"][0]["tokens"]
    with load(context, name, kv) as there, load(context, name, kv, device=0) as here:
        assert there.plan.layer(0).tier == tier
        with opened(there) as session, opened(there) as again, opened(here) as moved:
            session.prefill(tokens)
            with session.fork() as twin:
                twin.set_sampler(temperature=0)
                blob = session.save()
                first = greedy(session, 12)
                assert greedy(twin, 12) == first
            again.restore(blob)
            assert again.tokens() == tokens and greedy(again, 12) == first
            moved.restore(blob)
            assert moved.tokens() == tokens
            if kv == "f32":
                assert greedy(moved, 12) == first == golden(name)["cases"][0]["greedy"][:12]
            else:
                greedy(moved, 12)


def test_errors_are_exceptions_with_their_status(context, tier):
    case = golden("tiny-qwen3")["cases"][0]
    tokens = case["tokens"]
    with load(context, "tiny-qwen3", n_chunk=32) as model, load(context, "tiny-qwen35") as other:
        assert model.plan.layer(0).tier == tier
        with model.session(n_ctx=16) as full:
            full.prefill([1] * 16)
            with pytest.raises(sharpi.KVFull) as caught:
                full.decode(1)
            assert caught.value.status == sharpi.Status.KV_FULL
            assert full.info.n_tokens == 16
        with opened(model) as session, other.session() as foreign:
            session.prefill(tokens)
            with pytest.raises(sharpi.Cancelled) as caught:
                session.prefill(tokens * 8, progress=lambda *_: False)
            assert caught.value.status == sharpi.Status.CANCELLED
            with pytest.raises(sharpi.Mismatch) as caught:
                foreign.restore(session.save())
            assert caught.value.status == sharpi.Status.MISMATCH
            with pytest.raises(sharpi.InvalidArgument) as caught:
                session.decode(1 << 20)
            assert caught.value.status == sharpi.Status.INVALID_ARGUMENT
            session.truncate(len(tokens) - 1)
            session.decode(tokens[-1])
            assert greedy(session, 12) == case["greedy"][:12]
    with pytest.raises(sharpi.Unsupported if REHEARSAL else sharpi.NotFound) as caught:
        sharpi.Plan(find("tiny-qwen3-q8_0.gguf"), context=context, n_ctx=512, device=99)
    assert caught.value.status == (sharpi.Status.UNSUPPORTED if REHEARSAL else sharpi.Status.NOT_FOUND)


def test_a_budget_of_the_gpu_is_kept_or_refused(context, tier):
    if REHEARSAL:
        pytest.skip("this test is about the memory of a GPU")
    path = find("tiny-qwen3-q8_0.gguf")
    whole = sharpi.Plan(path, context=context, n_ctx=512).info
    n = whole.n_layers
    with pytest.raises(sharpi.DoesNotFit, match="device_budget") as caught:
        sharpi.Plan(path, context=context, n_ctx=512, n_gpu_layers=n, n_gpu_ffn=n, n_chunk=whole.n_chunk,
                    device_budget=whole.device_held_bytes // 2)
    assert caught.value.status == sharpi.Status.DOES_NOT_FIT
    with pytest.raises(sharpi.InvalidArgument, match="device_budget is 1152921504606846976 bytes"):
        sharpi.Plan(path, context=context, n_ctx=512, device_budget=1 << 60)
