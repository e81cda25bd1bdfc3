# SPDX-License-Identifier: MIT
"""Vectors of texts and scores of documents."""

import math

import pytest

import sharpi
from conftest import TREE, golden


def encoder(context, name, **options):
    return sharpi.Model(TREE / "tests" / "fixtures" / f"{name}.gguf", context=context, arithmetic="exact", **options)


@pytest.fixture(scope="module")
def bert(context):
    return encoder(context, "rand-bert")


def test_vectors_are_the_references(bert):
    cases = golden("rand-bert")["cases"]
    texts = [case["text"] for case in cases]
    for vector, case in zip(bert.embed(texts, normalize=False), cases):
        assert vector == pytest.approx(case["vector"], abs=1e-4)
    assert bert.embed([case["tokens"] for case in cases]) == bert.embed(texts)
    rows = bert.embedder().rows(texts)
    for own, case in zip(rows, cases):
        assert len(own) == len(case["tokens"])
        assert own[-1] == pytest.approx(case["last_row"], abs=1e-4)


def test_dimensions_and_numpy(bert):
    numpy = pytest.importorskip("numpy")
    with bert.embedder() as embedder:
        short = embedder.embed(["the cat"], n_dims=8)[0]
        assert len(short) == 8 and math.isclose(sum(x * x for x in short), 1, rel_tol=1e-5)
        array = embedder.embed_numpy(["the cat", "a"])
        assert array.shape == (2, 32) and array.dtype == numpy.float32
        assert embedder.info.is_encoder and embedder.info.pooling == sharpi.Pooling.MEAN
        assert sum(row.held_bytes for row in bert.price_embedder()) == embedder.info.held_bytes


def test_scores_are_the_references(context):
    model = encoder(context, "rand-bert-rank")
    pairs = golden("rand-bert-rank")["pairs"]
    raw = model.rerank(pairs[0]["query"], [pair["text"] for pair in pairs], normalize=False)
    assert raw == pytest.approx([pair["score"] for pair in pairs], abs=1e-4)
    with pytest.raises(sharpi.Unsupported):
        model.rerank("a", ["b"], instruction="judge")
    with pytest.raises(sharpi.Unsupported):
        model.embed(["a"])


def test_what_is_refused(bert, model):
    for wrong in ([[]], [[10**6]], [[5] * 500]):
        with pytest.raises(sharpi.InvalidArgument):
            bert.embed(wrong)
    with pytest.raises(TypeError):
        bert.embed("one text")
    with pytest.raises(sharpi.Unsupported):
        bert.session()
    with pytest.raises(sharpi.Unsupported, match="pooling_type"):
        model.embed(["hi"])
    assert len(model.embed(["hi", "hello there"], pooling="last")) == 2


def test_cancel_and_progress(bert):
    told = []
    with bert.embedder() as embedder:
        embedder.embed([[5] * 100] * 20, progress=lambda phase, done, total: told.append((phase, done, total)))
        assert told[-1] == (sharpi.Phase.EMBED, 2000, 2000)
        embedder.cancel()
        with pytest.raises(sharpi.Cancelled):
            embedder.embed([[5]])
        assert len(embedder.embed([[5]])) == 1
        with pytest.raises(ZeroDivisionError):
            embedder.embed([[5]], progress=lambda *_: 1 // 0)
