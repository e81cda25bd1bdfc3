# SPDX-License-Identifier: MIT
"""Adapters of sessions."""

import pytest

import sharpi
from conftest import TREE, golden

FIXTURES = TREE / "tests" / "fixtures"
LORA = FIXTURES / "rand-llama3-lora.gguf"


@pytest.fixture(scope="module")
def model(context):
    return sharpi.Model(FIXTURES / "rand-llama3-q8_0.gguf", context=context, arithmetic="exact", kv="f32",
                        n_ctx=128, adapters=[LORA])


def greedy(session, tokens, n):
    session.set_sampler(temperature=0)
    session.prefill(tokens)
    out = []
    while len(out) < n:
        out += [sampled.token for sampled in session.step()]
    return out[:n]


def test_tokens_are_the_references(model):
    case = golden("rand-llama3-lora")["cases"][0]
    with model.adapter(LORA) as adapter:
        with model.session(adapters=[(adapter, 0.5)]) as session:
            assert greedy(session, case["tokens"], len(case["greedy"])) == case["greedy"]
            assert session.info.n_adapters == 1 and session.info.n_other_tokens == 0
            session.set_adapters([])
            assert session.info.n_adapters == 0 and session.info.n_other_tokens == session.info.n_tokens
        with model.session() as session:
            assert greedy(session, case["tokens"], len(case["greedy"])) != case["greedy"]


def test_sessions_keep_them_alive(model):
    case = golden("rand-llama3-lora")["cases"][0]
    adapter = model.adapter(LORA)
    session = model.session(adapters=[(adapter, 0.5)])
    adapter.close()
    assert greedy(session, case["tokens"], len(case["greedy"])) == case["greedy"]
    with pytest.raises(sharpi.Closed):
        session.set_adapters([adapter])
    with pytest.raises(sharpi.InvalidArgument):
        session.set_adapters(["a path"])


def test_facts_and_rows_are_the_plans(model):
    adapter = model.adapter(LORA)
    assert adapter.info.max_rank == 3 and adapter.info.alpha == 6
    (row,) = adapter.memory()
    (planned,) = [r for r in model.plan.rows() if r.purpose == sharpi.RowPurpose.ADAPTERS]
    assert row.held_bytes == planned.held_bytes == adapter.info.held_bytes
    assert model.plan.info.adapter_rank == 3


def test_other_bases_are_refused(context, path):
    with pytest.raises(sharpi.Mismatch):
        sharpi.Plan(path, context=context, adapters=[LORA])
    with pytest.raises(sharpi.Unsupported):
        sharpi.Model(FIXTURES / "rand-llama3-q8_0.gguf", context=context, n_ctx=128).adapter(LORA)
