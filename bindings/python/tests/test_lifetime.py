# SPDX-License-Identifier: MIT
"""Objects may be closed or forgotten in any order, by any thread; nothing of it crashes."""

import copy
import ctypes
import gc
import itertools
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest

import sharpi
from sharpi import _handles


def four(path):
    context = sharpi.Context(n_threads=1)
    plan = sharpi.Plan(path, context=context, n_ctx=64)
    model = sharpi.Model(plan=plan)
    return [context, plan, model, model.session()]


def in_a_child(code, *arguments):
    """Runs a program of its own; whatever crashes, crashes there."""
    # Later Pythons warn of every fork of a process that has threads.
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-W", "ignore::DeprecationWarning", "-c",
                           textwrap.dedent(code), *arguments],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_closing(path, order):
    made = four(path)
    session = made[3]
    for i in order:
        if not session.closed:
            session.prefill([1, 2])
        made[i].close()
        made[i].close()
    with pytest.raises(sharpi.Closed):
        session.prefill([1])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_any_order_of_forgetting(path, order):
    made = four(path)
    for i in order:
        made[i] = None
        gc.collect()
        if made[3] is not None:
            made[3].prefill([1, 2])


def test_use_after_close_is_an_exception(path):
    context, plan, model, session = made = four(path)
    twin = session.fork()
    for one in made:
        one.close()
        assert one.closed
    calls = [
        lambda: context.device(0), lambda: sharpi.Plan(path, context=context),
        lambda: plan.info, plan.rows, plan.json, lambda: sharpi.Model(plan=plan),
        lambda: model.info, model.session, lambda: model.tokenize("x"), model.segments,
        lambda: session.prefill([1]), lambda: session.decode(1), session.step, session.sample,
        session.save, lambda: session.restore(b"x" * 64), session.fork, session.tokens,
        lambda: session.info, session.cancel, session.resume, lambda: session.truncate(0),
        lambda: session.compact(budget=4), lambda: session.logits(), lambda: session.kept(0),
        lambda: next(session.generate("x")), lambda: sharpi.decode_batch([(session, 1)]),
        lambda: sharpi.verify_batch([(session, [1])]), lambda: sharpi.step_batch([session]),
        session.__enter__, context.__enter__,
    ]
    for call in calls:
        with pytest.raises(sharpi.Closed):
            call()
    with pytest.raises(sharpi.Closed) as caught:
        session.step()
    assert caught.value.status == sharpi.Status.STATE and "session is closed" in caught.value.text
    twin.prefill([1])


def test_a_with_statement_closes(path):
    with sharpi.Context(n_threads=1) as context, sharpi.Model(path, context=context, n_ctx=64) as model:
        with model.session() as session:
            session.prefill([1])
        assert session.closed and not model.closed
    assert model.closed and context.closed


class InACall:
    """A prefill in another thread that stands still in its first report of progress."""

    def __init__(self, session):
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.error = None
        self.session = session
        self.thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.session.prefill([1] * 48, progress=self._wait)
        except Exception as error:
            self.error = error

    def _wait(self, *_):
        self.inside.set()
        self.go_on.wait()

    def __enter__(self):
        self.thread.start()
        self.inside.wait()
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self.thread.join()


def test_closing_during_a_call_waits_for_its_end(path):
    *others, session = four(path)
    with InACall(session) as call:
        session.close()
        for one in others:
            one.close()
        assert session.closed
        with pytest.raises(sharpi.Closed):
            session.step()
    assert call.error is None


def test_a_second_call_is_busy(path):
    session = four(path)[3]
    with InACall(session) as call:
        for second in (session.step, session.tokens, session.fork, session.save, lambda: session.info,
                       lambda: session.prefill([1]), lambda: session.truncate(0), session.logits,
                       lambda: session.compact(budget=4)):
            with pytest.raises(sharpi.Busy):
                second()
        session.cancel()  # these two are for any thread
        session.resume()
    assert call.error is None and session.info.n_tokens == 48


def test_many_threads_never_crash(model):
    with model.session() as session:
        session.set_sampler(temperature=0)
        session.prefill([1, 2, 3])
        seen = []

        def work(n):
            for _ in range(30):
                try:
                    [session.step, lambda: session.info, session.tokens, session.fork][n % 4]()
                except (sharpi.Busy, sharpi.KVFull, sharpi.DoesNotFit):
                    pass
                except Exception as error:
                    seen.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == []


def test_garbage_of_a_callback_is_destroyed_after_it(path):
    made = [four(path)[3] for _ in range(3)]
    session = four(path)[3]

    def progress(*_):
        made.clear()
        gc.collect()

    gc.collect()
    _handles.settle()
    before = len(_handles._debts)
    session.prefill([1] * 8, progress=progress)
    _handles.settle()
    assert made == [] and len(_handles._debts) < before


def test_what_is_forgotten_goes_back_by_itself(path):
    """No further call of the package is needed for it."""
    def owed():  # a reference that is kept keeps its id
        return {id(debt.handle): debt.handle for debt in list(_handles._debts.values())}

    before = owed()  # the helper thread may still give back what other tests left
    made = four(path)
    own = {key: one for key, one in owed().items() if key not in before}
    assert len(own) == 4
    made.clear()
    gc.collect()
    for _ in range(1000):  # the helper thread's time
        if not own.keys() & owed().keys():
            return
        threading.Event().wait(0.01)
    raise AssertionError("objects are left")


def test_copies_are_refused(path):
    context, plan, model, session = four(path)
    said = {context: "Context", plan: "Plan", model: "Model", session: "fork() makes a second session",
            sharpi.TextModel(path): "TextModel"}
    for one, text in said.items():
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled") as caught:
                way(one)
            assert text in str(caught.value)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(sharpi.Chat(session))
    session.prefill([1])


def test_the_process_may_end_with_everything_open(path):
    assert in_a_child("""
        import sys, sharpi
        context = sharpi.Context(n_threads=2, log=lambda *_: None)
        model = sharpi.Model(sys.argv[1], context=context, n_ctx=64)
        session = model.session()
        session.prefill([1, 2])
        kept = [session.generate("x"), session]
        kept.append(kept)
        print("done")
    """, path) == "done\n"


def test_the_process_may_end_during_a_call(path):
    assert in_a_child("""
        import sys, threading, sharpi
        model = sharpi.Model(sys.argv[1], n_ctx=4000, n_chunk=4000)
        session = model.session()
        computing = threading.Event()

        def read():
            try:
                while True:
                    session.prefill([1] * 1000, progress=lambda *_: computing.set())
                    session.truncate(0)
            except (sharpi.Cancelled, sharpi.Closed):
                pass

        threading.Thread(target=read, daemon=True).start()
        computing.wait()
        print("done")
    """, path) == "done\n"


def test_the_process_may_end_while_a_callback_of_a_call_sleeps(path):
    # It wakes while the interpreter goes, which `late` makes last, where nobody has waited for the call.
    assert in_a_child("""
        import sys, threading, time, sharpi

        class Late:
            def __del__(self, sleep=time.sleep):
                sleep(0.6)

        sys.late = Late()
        model = sharpi.Model(sys.argv[1], n_ctx=4000, n_chunk=4000)
        session = model.session()
        computing = threading.Event()

        def progress(*_):
            computing.set()
            time.sleep(0.2)

        def read():
            try:
                session.prefill([1] * 1000, progress=progress)
            except (sharpi.Cancelled, sharpi.Closed):
                pass

        threading.Thread(target=read, daemon=True).start()
        computing.wait()
        print("done")
    """, path) == "done\n"


def test_a_forked_child_has_nothing_from_before(path):
    assert in_a_child("""
        import gc, os, sys, sharpi
        model = sharpi.Model(sys.argv[1], n_ctx=64)
        session = model.session()
        session.set_sampler(temperature=0)
        session.prefill([1, 2])
        child = os.fork()
        if child == 0:
            try:
                session.step()
            except sharpi.Closed as error:
                assert "before the process was forked" in error.text
            else:
                os._exit(1)
            session.close()
            model = session = None
            gc.collect()
            own = sharpi.Model(sys.argv[1], n_ctx=64).session()  # contexts of its own work
            own.prefill([1, 2])
            own.step()
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        session.step()
        print("done")
    """, path) == "done\n"


def resident():
    """The memory of this process, without what the allocator of glibc keeps of memory that is free."""
    getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flat(cycle, n):
    """Memory after n cycles is what it was after the first tenth of them, but for 1 MiB.

    What leaks grows in every round of n. Other memory grows in one at most: what a thread needs that
    is the first to come to a place, or what earlier tests left for a later time.
    """
    for _ in range(n // 10):
        cycle()
    grown = [growth(cycle, n)]
    while grown[-1] >= 1 << 20:
        assert len(grown) < 3, f"{grown} bytes more after {n} cycles each"
        grown.append(growth(cycle, n))


def growth(cycle, n):
    """The bytes that n cycles leave behind, once the helper thread has given back what was forgotten."""
    gc.collect()
    before = resident()
    for _ in range(n):
        cycle()
    for _ in range(1000):
        gc.collect()
        _handles.settle()
        grown = resident() - before
        if grown < 1 << 20:
            break
        threading.Event().wait(0.01)
    return grown


def test_thousands_of_sessions_leave_no_memory(path):
    with sharpi.Context(n_threads=1) as context, sharpi.Model(
            path, context=context, n_ctx=16, n_sessions=2, capture_window=4, n_chunk=16) as model:

        def cycle():
            session = model.session()
            session.set_sampler(temperature=0)
            session.prefill([1, 2, 3], progress=lambda *_: None)
            session.step(logprobs=2, meanwhile=lambda token: None)
            try:
                session.truncate(99)
            except sharpi.InvalidArgument:
                pass
            session.fork().close()

        flat(cycle, 1000)


def test_thousands_of_calls_leave_no_memory(path):
    with sharpi.TextModel(path) as text:
        messages = [{"role": "user", "content": "x" * 100}]

        def cycle():
            text.detokenize(text.tokenize("def f(x): return x" * 10))
            text.chat_tokenize(messages)
            text.text_stream().push(5)
            sharpi.StopStream(["END"]).push("text")
            try:
                text.meta("no.such.key")
            except sharpi.NotFound:
                pass

        flat(cycle, 2000)


def test_hundreds_of_models_leave_no_memory(path):
    def cycle():
        context = sharpi.Context(n_threads=1, log=lambda *_: None)
        sharpi.Model(path, context=context, n_ctx=16, n_chunk=16).session()
        context.close()

    flat(cycle, 100)


def test_nothing_begins_behind_the_end_of_the_process():
    # What is registered first ends last: behind the library's own end.
    out = in_a_child("""
        import atexit
        def begin():
            try:
                sharpi.Context()
            except sharpi.Closed as e:
                print(e)
        atexit.register(begin)
        import sharpi
        sharpi.Context().close()
    """)
    assert out == "the process is ending (STATE)\n"
