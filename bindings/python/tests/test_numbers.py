# SPDX-License-Identifier: MIT
"""What another implementation computed from the same weights in f32."""

import math

import pytest
from conftest import find, golden, goldens

import sharpi


@pytest.mark.parametrize("name", goldens())
def test_greedy_tokens_and_logits_are_the_goldens(context, name):
    known = golden(name)
    with sharpi.Model(find(name + "-q8_0.gguf"), context=context, kv="f32", arithmetic="exact",
                      n_ctx=1024) as model:
        for case in known["cases"]:
            with model.session() as session:
                session.set_sampler(temperature=0)
                session.prefill(case["tokens"])
                logits = session.logits()
                for token, value in zip(case["top5"][-1], case["top5_logits"][-1]):
                    assert math.isclose(logits[token], value, abs_tol=0.02)
                drawn = []
                for _ in case["greedy"]:  # step() would not read a token that ends a text
                    drawn.append(session.sample().token)
                    session.decode(drawn[-1])
                assert drawn == case["greedy"]


def test_goldens_of_three_trained_models_are_at_hand():
    assert {"tiny-qwen3", "tiny-qwen35", "tiny-gemma4kv"} <= set(goldens())
