# SPDX-License-Identifier: MIT
"""What is particular to the server on Windows; tools/windows_check.sh runs it under Wine."""
import shutil
import subprocess

from serving import ANSWER, FIXTURES, ROOT, Server


def test_a_mapped_model_cannot_be_removed_by_another_process(tmp_path):
    model = tmp_path / "модель.gguf"
    shutil.copy(FIXTURES / "tiny-qwen3-q8_0.gguf", model)
    remove = [str(ROOT / "tools" / "windows" / "wine.sh"), "cmd", "/c", "del", model.name]
    with Server(model, "--map") as server:
        subprocess.run(remove, cwd=tmp_path, timeout=60, capture_output=True)
        assert model.exists()
        assert server.chat(max_tokens=32)["choices"][0]["message"]["content"] == ANSWER
    subprocess.run(remove, cwd=tmp_path, timeout=60, capture_output=True)
    assert not model.exists()  # it was the server that held it
