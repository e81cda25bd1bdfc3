# SPDX-License-Identifier: MIT
import pytest

import sharpi
from sharpi.errors import error_of


def test_each_status_has_a_class_and_its_name_is_the_headers():
    for status in sharpi.Status:
        name = sharpi.status_name(status)
        if status == sharpi.Status.OK:
            assert name == "SHARPI_OK"
            continue
        assert name == "SHARPI_E_" + status.name
        error = error_of(status, 7, "a sentence")
        assert type(error) is not sharpi.Error and error.status == status
        assert (error.text, error.native_code) == ("a sentence", 7)
    assert type(error_of(-99, 0, "new")) is sharpi.Error
    assert error_of(-99, 0, "new").status == -99


def test_a_missing_file(tmp_path):
    with pytest.raises(sharpi.NotFound) as caught:
        sharpi.Plan(tmp_path / "no-such-file.gguf")
    assert "no-such-file.gguf" in caught.value.text
    assert caught.value.native_code == 2  # ENOENT
    assert caught.value.status == sharpi.Status.NOT_FOUND
    with pytest.raises(sharpi.NotFound):
        sharpi.TextModel(str(tmp_path / "no-such-file.gguf"))


def test_a_file_that_is_no_model(tmp_path):
    file = tmp_path / "text.gguf"
    file.write_bytes(b"this is not GGUF" * 100)
    with pytest.raises(sharpi.BadFormat):
        sharpi.Model(file)


def test_paths_with_other_bytes_and_with_nul(tmp_path, path):
    odd = tmp_path / b"m\xff\xfe.gguf".decode("utf-8", "surrogateescape")
    odd.symlink_to(path)
    assert sharpi.Plan(odd).info.n_layers == 4
    with pytest.raises(sharpi.InvalidArgument, match="NUL"):
        sharpi.Plan("a\0b")


def test_a_full_session_says_what_is_full(model):
    with model.session(n_ctx=16) as session:
        session.prefill([1] * 16)
        with pytest.raises(sharpi.KVFull) as caught:
            session.decode(1)
        assert caught.value.reason == sharpi.KVFullReason.CONTEXT
        assert session.info.n_tokens == 16


def test_a_plan_that_does_not_fit_says_by_how_much(path, context):
    with pytest.raises(sharpi.DoesNotFit, match="bytes|MiB|KiB"):
        sharpi.Plan(path, context=context, n_ctx=1024, device=0, host_budget=1 << 16)


def test_numbers_are_not_cut_off(session, path):
    for tokens in ([1 << 31], [-(1 << 31) - 1], [1 << 70]):
        with pytest.raises(sharpi.InvalidArgument):
            session.prefill(tokens)
    with pytest.raises(sharpi.InvalidArgument):
        session.prefill([1.5])
    for text in ("text", b"text", bytearray(8), 5):
        with pytest.raises(sharpi.InvalidArgument, match="sequence of whole numbers"):
            session.prefill(text)
    with pytest.raises(sharpi.InvalidArgument, match="logit_rows"):
        session.prefill([1], logit_rows=1 << 32)
    with pytest.raises(sharpi.InvalidArgument, match="n_ctx"):
        sharpi.Plan(path, n_ctx=-1)
    with pytest.raises(sharpi.InvalidArgument, match="n_ctx"):
        sharpi.Plan(path, n_ctx=12.5)
    with pytest.raises(sharpi.InvalidArgument):
        session.prefill([])
    with pytest.raises(ValueError):
        session.decode(-1)


def test_options_are_known_by_name(path, session):
    with pytest.raises(TypeError, match="'n_ctxx'"):
        sharpi.Plan(path, n_ctxx=12)
    with pytest.raises(sharpi.InvalidArgument, match="q7.*bf16"):
        sharpi.Plan(path, kv="q7")
    with pytest.raises(TypeError):
        session.set_sampler(temperatur=1)
    with pytest.raises(TypeError, match="path or of a plan"):
        sharpi.Model()
    with pytest.raises(TypeError, match="options already"):
        sharpi.Model(plan=sharpi.Plan(path), n_ctx=12)
    with pytest.raises(TypeError, match="a message has no contents"):
        session.model.chat_format([{"role": "user", "contents": "x"}])


def test_one_of_allocator_is_refused():
    with pytest.raises(sharpi.InvalidArgument, match="together"):
        sharpi.Context(alloc=lambda size, alignment: 0)
