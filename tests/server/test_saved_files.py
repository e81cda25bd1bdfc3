# SPDX-License-Identifier: MIT
"""Conversations that are saved to files: nobody else reads them, they do not outlive the server for
long, and nothing that is put in their place holds or ends it."""
import os
import resource
import signal
import stat

import pytest
from serving import Server


def talk(server, n=3):
    for i in range(n):
        server.chat(f"secret text number {i} " + "word " * 120, max_tokens=4)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "a" / "saved"


def saver(folder, **how):
    return Server("tiny-qwen3-q8_0.gguf", "--slots", 1, "--sessions", 1, "--idle", "save", "--cache-dir", folder, "--context", 1024, **how)


def metric(server, name):
    text = server.request("GET", "/metrics")[2].decode()
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(name + " ")))


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_files_are_for_the_user_alone_and_go_with_the_server(folder):
    with saver(folder) as server:
        talk(server)
        files = list(folder.iterdir())
        assert files and mode(folder) == 0o700 and {mode(file) for file in files} == {0o600}
        with pytest.raises(AssertionError, match="is in use by another server"):
            saver(folder)
    assert list(folder.iterdir()) == []


def test_what_a_killed_server_left_is_removed_by_the_next_one(folder):
    server = saver(folder)
    talk(server)
    server.stop_by(signal.SIGKILL)
    assert list(folder.iterdir())
    with saver(folder):
        assert list(folder.iterdir()) == []


def put_fifo(path):
    os.mkfifo(path)


def put_link(path):
    path.symlink_to(path.with_name("elsewhere"))


def put_folder(path):
    path.mkdir()


@pytest.mark.parametrize("put", [put_fifo, put_link, put_folder])
def test_what_is_put_in_place_of_a_file_holds_nothing(folder, put):
    with saver(folder) as server:
        talk(server)
        for file in list(folder.iterdir()):
            content = file.read_bytes()
            file.unlink()
            put(file)
            file.with_name("elsewhere").write_bytes(content)
        for i in range(3):
            assert server.chat(f"secret text number {i} " + "word " * 120, max_tokens=4)["usage"]["completion_tokens"] > 0


def test_a_limit_of_files_ends_nothing(folder):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
    with saver(folder, preexec_fn=small_files) as server:
        talk(server)
        assert metric(server, "sharpi_sessions_unsaved_total") >= 2 and metric(server, "sharpi_sessions_saved_total") == 0
        assert list(folder.iterdir()) == []
