# SPDX-License-Identifier: MIT
"""What docs/python.md and the package's own page show, runs."""

import re

import pytest
from conftest import TREE

import sharpi
from sharpi import types


@pytest.mark.parametrize("page", ["docs/python.md", "bindings/python/README.md"])
def test_the_blocks_of_a_page_run_one_after_the_other(page, path, tmp_path, monkeypatch, capsys):
    (tmp_path / "model.gguf").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (TREE / page).read_text(encoding="utf-8"), re.M | re.S)
    assert blocks
    names = {}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "The code of snow is" in capsys.readouterr().out or page != "docs/python.md"


def test_the_page_names_every_class_of_error():
    text = (TREE / "docs" / "python.md").read_text(encoding="utf-8")
    for kind in [sharpi.Error, *sharpi.Error.__subclasses__(), sharpi.Closed]:
        assert f"`{kind.__name__}`" in text or f"sharpi.{kind.__name__}" in text, kind


def test_options_are_the_fields_of_the_headers_structs():
    for name, struct in (("SessionOptions", "session"), ("PlanOptions", "plan"),
                         ("SamplerOptions", "sampler"), ("CompactOptions", "compact")):
        fields = {f for f, _ in getattr(types._abi, f"sharpi_{struct}_params")._fields_}
        options = set(getattr(types, name).__annotations__)
        if name == "PlanOptions":
            options -= set(types.SessionOptions.__annotations__)
        left = fields - options
        assert options <= fields and left <= {
            "struct_size", "reserved", "session", "progress", "user_data", "n_probe", "n_keep", "n_bias", "n_devices",
            "n_adapters", "bias_tokens", "bias_values"}
