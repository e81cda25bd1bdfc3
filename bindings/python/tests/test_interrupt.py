# SPDX-License-Identifier: MIT
"""Ctrl-C, and whatever a signal handler raises, stops the call that computes."""

import subprocess
import sys
import textwrap
import threading

import pytest

import sharpi


def in_a_child(code, *arguments):
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(code), *arguments],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# Reads thousands of tokens in one chunk, which takes seconds; the signal comes when it computes, which
# the processor time of the process says.
COMMON = """
    import os, signal, sys, threading, time, sharpi
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background
    context = sharpi.Context(n_threads=2)
    model = sharpi.Model(sys.argv[1], context=context, n_ctx=8192, n_chunk=8192, kv="f32")
    session = model.session()
    session.set_sampler(temperature=0)
    session.prefill([1, 2, 3])

    def when_busy(action):
        def wait():
            start = time.process_time()
            while time.process_time() < start + 0.1:
                time.sleep(0.005)
            action()
        threading.Thread(target=wait, daemon=True).start()

    ctrl_c = lambda: os.kill(os.getpid(), signal.SIGINT)
"""


def test_ctrl_c_stops_a_prefill_within_its_chunk(path):
    assert in_a_child(COMMON + """
    when_busy(ctrl_c)
    try:
        session.prefill([1] * 8000)
        print("read all")
    except KeyboardInterrupt:
        print("stopped at", session.info.n_tokens)
    session.prefill([4, 5])  # and it goes on
    print(session.tokens())
    """, path) == "stopped at 3\n[1, 2, 3, 4, 5]\n"


def test_any_exception_of_any_signal_handler_does(path):
    assert in_a_child(COMMON + """
    class Late(Exception):
        pass

    def handler(number, frame):
        raise Late("too late")

    signal.signal(signal.SIGUSR1, handler)
    when_busy(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    try:
        session.prefill([1] * 8000)
    except Late as error:
        print(error, session.info.n_tokens)
    """, path) == "too late 3\n"


def test_a_handler_that_raises_nothing_stops_nothing_and_may_use_the_library(path):
    assert in_a_child(COMMON + """
    other = model.session(n_ctx=64)

    def handler(number, frame):
        try:
            session.step()
        except sharpi.Busy:
            print("busy")
        other.prefill([1, 2])  # waits its turn, because max_concurrent is 1

    signal.signal(signal.SIGUSR1, handler)
    when_busy(lambda: os.kill(os.getpid(), signal.SIGUSR1))
    session.prefill([1] * 4000)
    print(session.info.n_tokens, other.info.n_tokens)
    """, path) == "busy\n4003 2\n"


def test_ctrl_c_comes_out_of_a_generation(path):
    assert in_a_child(COMMON + """
    pieces = []
    generation = session.generate()
    try:
        for piece in generation:
            pieces.append(piece)
            if len(pieces) == 5:
                ctrl_c()
    except KeyboardInterrupt:
        print("stopped", len(pieces))
    assert len(session.generate(max_tokens=3).tokens) == 0
    assert session.generate(max_tokens=3).text()
    """, path) == "stopped 5\n"


def test_ctrl_c_stops_a_compaction(path):
    assert in_a_child(COMMON + """
    def broken(*_):
        ctrl_c()
        time.sleep(0.05)

    session.close()
    small = sharpi.Model(sys.argv[1], context=context, n_ctx=2048, capture_window=256, n_sessions=2)
    with small.session() as one:
        one.prefill([i % 2000 for i in range(2000)])
        try:
            one.compact(budget=64, progress=broken)
        except KeyboardInterrupt:
            print("stopped", one.info.is_compacted)
        one.compact(budget=64)
        print(one.info.n_slots_max)
    """, path) == "stopped False\n64\n"


def test_ctrl_c_stops_loading(path):
    assert in_a_child(COMMON + """
    told = []

    def progress(phase, done, total):
        told.append(done)
        if len(told) == 1:
            ctrl_c()
            time.sleep(0.2)

    plan = sharpi.Plan(sys.argv[1], context=context, n_ctx=64, load_mode="copy")
    try:
        sharpi.Model(plan=plan, progress=progress)
        print("loaded")
    except KeyboardInterrupt:
        print("stopped")
    sharpi.Model(plan=plan)
    """, path) == "stopped\n"


def test_an_interrupt_loses_no_object_that_is_being_made(path):
    assert in_a_child(COMMON + """
    import gc
    made = []
    kept = sharpi._handles._debts

    class Late(Exception):
        pass

    def handler(number, frame):
        raise Late

    signal.signal(signal.SIGALRM, handler)
    session.close()
    sharpi.default_context()
    gc.collect()
    before = len(kept)
    small = {"context": context, "n_ctx": 64}
    late = 0
    for i in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002 * (i % 20 + 1))  # this call may see the alarm already
            plan = sharpi.Plan(sys.argv[1], **small)
            plan = None
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Late:
            late += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    plan = None
    for _ in range(1000):  # a helper lets its last job go in its own time
        gc.collect()
        if len(kept) == before:
            break
        time.sleep(0.01)
    print(late > 0, len(kept) == before)
    """, path) == "True True\n"


def test_interrupts_while_sessions_are_made_and_closed_lose_no_memory(path):
    """A session that is lost shows as the addresses that it has reserved."""
    assert in_a_child("""
    import gc, os, random, signal, sys, threading, sharpi
    model = sharpi.Model(sys.argv[1], context=sharpi.Context(n_threads=1), n_ctx=8192, kv="f32")
    armed = False

    class Late(Exception):
        pass

    def handler(number, frame):
        global armed
        if armed:
            armed = False
            raise Late

    def reserved():
        gc.collect()
        model.session().close()  # behind everything that waits
        return int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    signal.signal(signal.SIGALRM, handler)
    chance, late, before = random.Random(3), 0, 0
    with model.session() as session:
        size = session.info.kv_held_bytes
    for i in range(1000):
        if i == 100:  # everything that is made once is there
            before = reserved()
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, chance.random() * 3e-4 + 1e-6)
            session = model.session()
            fork = session.fork()
            fork.close()
            session.close()
            fork = session = None
        except Late:
            late += 1
        finally:
            armed = False
    fork = session = None
    print(late > 100, (reserved() - before) // size, threading.active_count())
    """, path) == "True 0 2\n"


def test_another_thread_cancels(model):
    with model.session() as session:
        session.set_sampler(temperature=0)
        session.prefill([1, 2])
        steps = []

        def meanwhile(token):
            steps.append(token)
            if len(steps) == 3:
                thread = threading.Thread(target=session.cancel)
                thread.start()
                thread.join()

        with pytest.raises(sharpi.Cancelled):
            for _ in range(10):
                session.step(meanwhile=meanwhile)
        assert 3 <= len(steps) <= 4
        session.step()  # answered: over


def test_a_cancel_sticks_until_it_is_answered_or_taken_back(model):
    with model.session() as session:
        session.cancel()
        with pytest.raises(sharpi.Cancelled):
            session.prefill([1, 2])
        session.prefill([1, 2])
        session.cancel()
        session.resume()
        session.decode(3)


def test_calls_of_other_threads_need_no_helper(model):
    """Only the main thread hands its calls over; what is raised comes to the thread that called."""
    names = []

    def work():
        with model.session() as session:
            session.prefill([1], progress=lambda *_: names.append(threading.current_thread().name))

    thread = threading.Thread(target=work, name="mine")
    thread.start()
    thread.join()
    assert set(names) == {"mine"}
    names.clear()
    with model.session() as session:
        session.prefill([1], progress=lambda *_: names.append(threading.current_thread().name))
    assert set(names) == {"sharpi"}
