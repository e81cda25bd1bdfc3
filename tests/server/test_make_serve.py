# SPDX-License-Identifier: MIT
"""`make serve` as somebody types it: it builds, starts, says where, answers, and ends by Ctrl-C."""
import os
import re
import signal
import socket
import subprocess

import pytest
from serving import ANSWER, QUESTION, ROOT, Server, find_server


def build_folder():
    """The folder of `make` that the server under test is from, or None."""
    folder = find_server().resolve().parents[2]
    cache = folder / "CMakeCache.txt"
    home = f"CMAKE_HOME_DIRECTORY:INTERNAL={ROOT}\n"
    return folder if cache.exists() and home in cache.read_text() else None


class MadeServer(Server):
    """The process group of `make serve`."""

    def __init__(self, folder, options):
        # As it is configured, so that nothing is built anew.
        flags = re.findall(r"^(?:SHARPI_(?:WERROR|CUDA|BENCH|SANITIZE)|CMAKE_BUILD_TYPE|CMAKE_CUDA_ARCHITECTURES):\w+=.+$", (folder / "CMakeCache.txt").read_text(), re.M)
        command = ["make", "--no-print-directory", "serve", f"BUILD={folder}", f"SERVE={options}", "CMAKE_FLAGS=" + " ".join(f"'-D{flag}'" for flag in flags)]
        try:
            self.run(command, 200, cwd=ROOT, start_new_session=True, env={**os.environ, "MAKEFLAGS": ""})
        except AssertionError:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise

    def stop(self, seconds=30):
        """Ctrl-C in a terminal: the group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(seconds)


def test_make_serve():
    folder = build_folder()
    if folder is None:
        pytest.skip(f"{find_server()} is not from a build folder of {ROOT}")
    made = MadeServer(folder, f"--port 0 --model {ROOT / 'tests/fixtures/tiny-qwen35-q8_0.gguf'}")
    try:
        assert made.lines[-1] == f"listening on {made.url}", made.lines
        assert made.json("GET", "/health") == {"status": "ok"}
        assert b"<title>sharpi</title>" in made.request("GET", "/")[2]
        assert made.chat(QUESTION)["choices"][0]["message"]["content"] == ANSWER
    finally:
        made.stop()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", made.port)):
        pass
    with pytest.raises(ProcessLookupError):
        os.killpg(made.process.pid, 0)


def test_without_a_fetched_model_make_serve_takes_the_one_in_the_tree(tmp_path):
    """The recipe itself, with a server that says what it was asked for."""
    asked, cmake = tmp_path / "build" / "examples" / "server" / "server", tmp_path / "cmake"
    asked.parent.mkdir(parents=True)
    asked.write_text('#!/bin/sh\necho "asked: $@"\n')
    cmake.write_text('#!/bin/sh\necho "cmake version 3.25.1"\n')
    asked.chmod(0o755), cmake.chmod(0o755)
    done = subprocess.run(["make", "--no-print-directory", "serve", f"BUILD={tmp_path / 'build'}", f"CMAKE={cmake}", "SERVE=--port 9000"],
                          cwd=ROOT, capture_output=True, text=True, env={**os.environ, "MAKEFLAGS": "", "SHARPI_MODELS": str(tmp_path)}, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "asked: --model tests/fixtures/tiny-qwen35-q8_0.gguf --port 9000" in done.stdout.splitlines(), done.stdout
