# SPDX-License-Identifier: MIT
"""The fixtures: small trained models that lie in libsharpi's tree, and more where SHARPI_FIXTURES says."""

import json
import os
import pathlib

import pytest

import sharpi

TREE = pathlib.Path(__file__).resolve().parents[3]
FOLDERS = [TREE / "tests" / "fixtures"]
if os.environ.get("SHARPI_FIXTURES"):
    FOLDERS.append(pathlib.Path(os.environ["SHARPI_FIXTURES"]))


def find(name):
    """Path of a file of the fixtures, or None."""
    return next((str(f / name) for f in FOLDERS if (f / name).exists()), None)


def goldens():
    names = {p.name.replace(".golden.json", "") for f in FOLDERS for p in f.glob("*.golden.json")}
    return sorted(n for n in names if find(n + "-q8_0.gguf"))


def golden(name):
    with open(find(name + ".golden.json"), encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="session")
def path():
    return find("tiny-qwen3-q8_0.gguf")


@pytest.fixture(scope="session")
def hybrid_path():
    return find("tiny-qwen35-q8_0.gguf")


@pytest.fixture(scope="session")
def context():
    with sharpi.Context(n_threads=2) as made:
        yield made


@pytest.fixture(scope="session")
def model(context, path):
    return sharpi.Model(path, context=context, kv="f32", n_ctx=1024, capture_window=32, n_sessions=4)


@pytest.fixture(scope="session")
def hybrid(context, hybrid_path):
    return sharpi.Model(hybrid_path, context=context, n_ctx=1024, n_checkpoints=2, n_sessions=2)


@pytest.fixture
def session(model):
    with model.session() as made:
        made.set_sampler(temperature=0)
        yield made


@pytest.fixture(scope="session")
def prompt():
    return golden("tiny-qwen3")["cases"][1]["tokens"]
