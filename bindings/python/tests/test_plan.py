# SPDX-License-Identifier: MIT
import ctypes
import gc
import sys
import time
import weakref

import pytest

import sharpi
from sharpi.context import _log_callback


def test_a_plan_says_what_will_be_taken(path, context):
    with sharpi.Plan(path, context=context, n_ctx=512, kv="q8_0") as plan:
        info = plan.info
        assert (info.n_ctx, info.n_layers) == (512, 4)
        assert info.k_dtype == info.v_dtype == sharpi.KVType.Q8_0
        rows = plan.rows()
        assert len(rows) == info.n_rows == len(list(plan))
        kv = sum(r.payload_bytes for r in rows if r.purpose == sharpi.RowPurpose.KV)
        assert kv == info.kv_payload_bytes > 0
        assert all(isinstance(r.per_session, bool) and r.label for r in rows)
        assert plan.json()["n_ctx"] == 512 if "n_ctx" in plan.json() else plan.json()
        assert plan.layer(3).mixer == sharpi.Mixer.ATTENTION
        assert plan.layer(3).experts_tier is None
        with pytest.raises(sharpi.InvalidArgument):
            plan.layer(4)
        assert plan.fallbacks() == []


def test_what_a_file_is_before_anything_is_loaded(path, context):
    plan = sharpi.Plan(path, context=context, n_ctx=64)
    assert plan.model().architecture == "qwen3"
    assert plan.meta("general.architecture") == "qwen3"
    keys = plan.meta_keys()
    assert "tokenizer.chat_template" in keys and len(keys) == len(set(keys))
    with pytest.raises(sharpi.NotFound):
        plan.meta("no.such.key")


def test_a_model_takes_what_its_plan_says(path, context):
    plan = sharpi.Plan(path, context=context, n_ctx=256, kv="bf16")
    model = sharpi.Model(plan=plan)
    assert model.plan is plan

    def sizes(rows):
        return sorted((r.purpose, r.kind, r.held_bytes, r.label) for r in rows)

    planned = plan.rows()
    assert sizes(model.memory()) == sizes(
        r for r in planned if not r.per_session and not r.transient)
    with model.session() as session:
        assert sizes(session.memory()) == sizes(r for r in planned if r.per_session)


def test_auto_says_what_it_gave_up(path, context):
    whole = sharpi.Plan(path, context=context, n_ctx=4096, kv="f32", device=0).info
    tight = sharpi.Plan(path, context=context, n_ctx=4096, device=0,
                        host_budget=whole.host_peak_bytes - whole.kv_payload_bytes // 4)
    assert tight.info.narrowed and tight.info.k_dtype != sharpi.KVType.F32
    (sentence,) = tight.fallbacks()
    assert "KV" in sentence


def test_loading_tells_progress_and_can_be_stopped(path, context):
    told = []
    sharpi.Model(path, context=context, n_ctx=64, load_mode="copy",
                 progress=lambda phase, done, total: told.append((phase, done, total)))
    assert told and all(phase == sharpi.Phase.LOAD for phase, _, _ in told)
    assert told[-1][1] == told[-1][2] > 0

    with pytest.raises(sharpi.Cancelled):
        sharpi.Model(path, context=context, n_ctx=64, load_mode="copy", progress=lambda *_: False)

    def broken(*_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        sharpi.Model(path, context=context, n_ctx=64, load_mode="copy", progress=broken)


def test_sessions_are_priced(model):
    with model.plan_session(n_ctx=128) as plan:
        assert plan.info.n_ctx == 128
        assert all(row.per_session for row in plan.rows())
    assert model.plan_session().info.n_ctx == 1024


def test_reports_of_a_model(model, session):
    session.prefill([1, 2, 3])
    segments = model.segments()
    assert segments[0].n_calls > 0 and segments[0].tier == model.plan.layer(0).tier
    assert "segments" in model.json()
    assert model.experts().n_slots == 0
    assert model.expert_uses(0) == []
    with pytest.raises(sharpi.Error) as caught:
        model.pin_experts([(0, 1)])
    assert type(caught.value) in (sharpi.InvalidArgument, sharpi.Unsupported)


def test_devices(context):
    devices = context.devices()
    assert devices[0].tier == sharpi.Tier.CPU and devices[0].n_devices == len(devices)
    assert devices[0].n_cores == 2 and devices[0].total_bytes > 0
    assert context.device(0, measure=True).bandwidth > 0
    with pytest.raises(sharpi.NotFound):
        context.device(len(devices))


def test_the_log_comes_line_by_line(monkeypatch):
    # Without a GPU the library has nothing to say: its line comes from here.
    lines, unraised = [], []
    text = "a line, größer".encode()
    line = _log_callback(lambda level, text: lines.append((level, text)))
    line(None, sharpi.LogLevel.INFO, ctypes.create_string_buffer(text), len(text))
    assert lines == [(sharpi.LogLevel.INFO, "a line, größer")]

    def broken(level, text):
        raise KeyError("mine")

    monkeypatch.setattr(sys, "unraisablehook", unraised.append)
    _log_callback(broken)(None, sharpi.LogLevel.INFO, text, len(text))
    assert isinstance(unraised[0].exc_value, KeyError)


def test_the_log_lives_as_long_as_what_was_made_from_its_context(path):
    class Log:
        def __call__(self, level, text):
            pass

    log = Log()
    alive = weakref.ref(log)
    context = sharpi.Context(log=log, log_level="debug")
    session = sharpi.Model(path, context=context, n_ctx=64).session()
    context.close()
    del log, context
    gc.collect()
    assert alive() is not None
    session.prefill([1])
    session.close()
    del session
    gc.collect()
    # The library gets the rest back from another thread, and may call until then.
    for _ in range(3000):
        if alive() is None:
            break
        time.sleep(0.01)
    assert alive() is None


def test_large_blocks_can_be_the_callers(path):
    blocks = {}

    def alloc(size, alignment):
        block = ctypes.create_string_buffer(size + alignment)
        address = -(-ctypes.addressof(block) // alignment) * alignment
        blocks[address] = (block, size)
        return address

    def free(address, size):
        assert blocks.pop(address)[1] == size

    with sharpi.Context(n_threads=1, alloc=alloc, free=free) as context:
        with sharpi.Model(path, context=context, n_ctx=64, device=0) as model, \
                model.session() as session:
            session.prefill([1, 2, 3])
            assert blocks
    assert not blocks

    with sharpi.Context(n_threads=1, alloc=lambda *_: 0, free=free) as context:
        with pytest.raises(MemoryError):
            sharpi.Model(path, context=context, n_ctx=64).session()


def test_the_environment_is_read_only_when_asked(path, monkeypatch):
    monkeypatch.setenv("SHARPI_KV_DTYPE", "q8_0")
    with sharpi.Context(read_env=True) as asked, sharpi.Context() as silent:
        assert sharpi.Plan(path, context=asked, n_ctx=64).info.k_dtype == sharpi.KVType.Q8_0
        assert sharpi.Plan(path, context=silent, n_ctx=64).info.k_dtype == sharpi.KVType.F32


def test_devices_have_names_and_limits_of_their_own(path, context):
    host = context.device(0)
    assert host.id == "cpu"
    assert (sharpi.tier_name(host.tier), sharpi.tier_name(0)) == ("cpu", "none")
    assert all(sharpi.tier_name(t) == t.name.lower() for t in sharpi.Tier)
    assert context.find("0") == context.find("cpu") == context.find("CPU") == 0
    with pytest.raises(sharpi.NotFound):
        context.find("no such device")
    plan = sharpi.Plan(path, context=context, n_ctx=64, devices=[{"device": "cpu", "budget": 1 << 30}])
    (only,) = plan.devices()
    assert (only.device, only.tier, only.n_layers, only.has_head) == (0, sharpi.Tier.CPU, 4, True)
    assert (only.budget, only.name, only.refusal) == (1 << 30, host.name, "")
    assert only.held_bytes == plan.info.host_held_bytes > 0
    assert plan.json()["devices"][0]["id"] == "cpu"
    assert (plan.layer(0).device, plan.layer(0).experts_device) == (0, None)
    with pytest.raises(sharpi.InvalidArgument):
        sharpi.Plan(path, context=context, device=0, devices=[0])
    with pytest.raises(sharpi.NotFound):
        sharpi.Plan(path, context=context, devices=["no such device"])
    with pytest.raises(sharpi.InvalidArgument):
        sharpi.Plan(path, context=context, devices=[{"device": 0, "budget": "auto"}])
    with pytest.raises(sharpi.Unsupported):
        sharpi.Plan(path, context=context, split="tensor")


def test_the_isa_can_be_chosen():
    with sharpi.Context(isa="scalar") as context:
        assert context.device(0).isa == "scalar"
