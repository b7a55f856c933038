# SPDX-License-Identifier: GPL-3.0-or-later
"""terminate() is honest: it stops what can be stopped, and names what cannot."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

import forkless.multiprocessing as fm
from forkless.multiprocessing.stopping import Stopper, ThreadInterrupted, ThreadStopped

WAIT = 120


def eventually(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def spin(queue):
    try:
        queue.put("spinning")
        while True:
            pass
    finally:
        queue.put("unwound")


def take(lock, queue):
    queue.put("waiting")
    lock.acquire()


def block(read_end, queue):
    queue.put("blocked")
    read_end.recv_bytes()


@pytest.mark.parametrize(("how", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)])
def test_a_child_that_runs_is_stopped_and_unwinds(ctx, how, number):
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=spin, args=(queue,))
    child.start()
    assert queue.get() == "spinning"
    getattr(child, how)()
    child.join(WAIT)
    assert child.exitcode == -number
    assert queue.get() == "unwound"
    assert not child.is_alive()
    assert fm.abandoned() == []
    queue.close()


def test_a_child_that_waits_for_a_lock_is_stopped_and_the_lock_still_works(ctx):
    lock, queue = ctx.Lock(), ctx.SimpleQueue()
    lock.acquire()
    child = ctx.Process(target=take, args=(lock, queue))
    child.start()
    assert queue.get() == "waiting"
    child.terminate()
    child.join(WAIT)
    assert child.exitcode == -signal.SIGTERM
    assert fm.abandoned() == []
    lock.release()
    assert lock.acquire(timeout=WAIT)
    lock.release()
    queue.close()


def join_one_of_its_own(event, queue):
    child = multiprocessing.get_context().Process(target=event.wait, daemon=True)
    child.start()
    queue.put("joining")
    child.join()


def test_a_child_that_waits_for_a_child_of_its_own_is_stopped(ctx):
    event, queue = ctx.Event(), ctx.SimpleQueue()
    child = ctx.Process(target=join_one_of_its_own, args=(event, queue), name="Laius")
    child.start()
    assert queue.get() == "joining"
    child.terminate()
    child.join(WAIT)
    assert child.exitcode == -signal.SIGTERM
    eventually(lambda: not fm.abandoned())  # it was not left behind, or not for long: nobody sets the event
    queue.close()


PROFILED = """
import cProfile, threading
import forkless.multiprocessing as fm

begun = threading.Event()

def work():
    begun.set()
    while True:
        pass

fm.install()
child = fm.ThreadContext().Process(target=work)
child.start()
begun.wait()
child.terminate()
child.join()
for thread in threading.enumerate():
    if thread is not threading.current_thread():
        thread.join()
print(child.exitcode, cProfile.Profile().runcall(sorted, [2, 1], key=lambda x: x))
"""


@pytest.mark.spawns
def test_a_child_that_was_stopped_leaves_no_flag_by_which_a_profiler_would_stand_still():
    """Up to Python 3.12 an error that is taken back by sending NULL slows every later call down, and stops a profiled one for ever."""
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=240, check=True)
    assert (done.stdout, done.stderr) == ("-15 [1, 2]\n", "")


def test_one_that_cannot_be_stopped_counts_as_dead_and_is_named(ctx, caplog):
    read_end, write_end = ctx.Pipe(duplex=False)
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=block, args=(read_end, queue), name="Sisyphus")
    child.start()
    assert queue.get() == "blocked"
    with caplog.at_level(logging.WARNING, "forkless.multiprocessing"):
        child.terminate()
        child.join(WAIT)
        eventually(fm.abandoned)
    assert child.exitcode == -signal.SIGTERM
    assert not child.is_alive()
    (left,) = fm.abandoned()
    assert (left.name, left.pid) == ("Sisyphus", child.pid)
    assert "recv_bytes" in left.stack
    assert "Sisyphus was told to stop" in caplog.text
    assert threading.main_thread().is_alive()
    # Once what it waited for comes, it goes, and cannot take back that it was dead.
    write_end.send_bytes(b"roll")
    eventually(lambda: not fm.abandoned())
    assert child.exitcode == -signal.SIGTERM
    for end in (read_end, write_end, queue):
        end.close()


def test_one_that_ends_late_leaves_no_end_of_a_pipe_open(ctx):
    """A stopped child that was declared dead lets go of its arguments when its thread ends, though nobody asks abandoned()."""
    read_end, write_end = ctx.Pipe(duplex=False)
    back, forth = ctx.Pipe(duplex=False)
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=block_with, args=(read_end, queue, forth))
    child.start()
    assert queue.get() == "blocked"
    child.terminate()
    child.join(WAIT)
    assert child.exitcode == -signal.SIGTERM
    forth.close()
    write_end.send_bytes(b"go")
    assert back.poll(WAIT), "the end of the pipe that the child had is still open"
    with pytest.raises(EOFError):
        back.recv()
    for end in (read_end, write_end, queue, back):
        end.close()


def block_with(read_end, queue, forth):
    assert forth.writable
    block(read_end, queue)


def test_a_child_stopped_before_its_first_statement_never_runs(ctx):
    ran = ctx.Value("i", 0)
    children = [ctx.Process(target=mark, args=(ran,)) for _ in range(20)]
    for child in children:
        child.start()
        child.terminate()
    for child in children:
        child.join(WAIT)
    assert {child.exitcode for child in children} <= {0, -signal.SIGTERM}
    assert fm.abandoned() == []


def mark(value):
    value.value = 1


def test_a_pool_that_is_left_takes_its_workers_along(ctx):
    before = threading.active_count()
    for _ in range(3):
        with ctx.Pool(4) as pool:
            assert pool.map(abs, range(-10, 0)) == list(range(10, 0, -1))
    eventually(lambda: threading.active_count() == before)
    assert fm.abandoned() == []


def test_stopping_a_child_that_has_ended_hits_nobody(ctx):
    child = ctx.Process(target=abs, args=(1,))
    child.start()
    child.join()
    child.terminate()
    child.kill()
    assert child.exitcode == 0


def test_a_stop_that_arrives_at_the_very_last_moment_keeps_nobody_from_seeing_the_end(ctx, monkeypatch):
    said = []
    stock = Stopper.thread_gone

    def interrupted_once(stopper):
        said.append(stopper)
        if len(said) == 1:
            stopper.signal = signal.SIGTERM
            raise ThreadStopped
        stock(stopper)

    monkeypatch.setattr(Stopper, "thread_gone", interrupted_once)
    before = threading.enumerate()
    child = ctx.Process(target=abs, args=(1,))
    child.start()
    child.join(WAIT)
    assert child.exitcode == -signal.SIGTERM
    assert child._popen._stopper.gone
    assert threading.enumerate() == before


def test_a_thread_that_is_about_to_start_is_waited_for(monkeypatch):
    from forkless.multiprocessing import bootstrap

    state = object()
    late = threading.Thread(target=lambda: None)
    late._forkless_state = state
    looks = []

    def enumerate_():
        looks.append(late.ident)
        if len(looks) == 2:
            late.start()
        return [late] if late.ident is None or late.is_alive() else []

    monkeypatch.setattr(bootstrap.threading, "enumerate", enumerate_)
    bootstrap._join_threads(state)
    assert looks[0] is None
    assert late.ident is not None
    assert not late.is_alive()


def interrupt(child):
    """Process.interrupt(), which processes have since 3.14."""
    getattr(child, "interrupt", child._popen.interrupt)()


def spin_until_interrupted(queue):
    queue.put("spinning")
    try:
        while True:
            pass
    except KeyboardInterrupt:
        queue.put("caught")


@pytest.mark.matrix
def test_a_child_may_catch_an_interrupt_and_go_on(ctx):
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=spin_until_interrupted, args=(queue,))
    child.start()
    assert queue.get() == "spinning"
    interrupt(child)
    assert queue.get() == "caught"
    child.join(WAIT)
    assert child.exitcode == 0
    queue.close()


@pytest.mark.matrix
def test_a_child_that_does_not_catch_an_interrupt_ends_with_status_1(ctx, capfd):
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=spin, args=(queue,), name="Tantalus")
    child.start()
    assert queue.get() == "spinning"
    interrupt(child)
    child.join(WAIT)
    assert child.exitcode == 1
    assert queue.get() == "unwound"
    assert "Process Tantalus:" in capfd.readouterr().err
    queue.close()


@pytest.mark.matrix
def test_an_interrupted_child_that_is_blocked_counts_as_dead_and_is_named(ctx, capfd):
    read_end, write_end = ctx.Pipe(duplex=False)
    queue = ctx.SimpleQueue()
    child = ctx.Process(target=block, args=(read_end, queue), name="Tantalus")
    child.start()
    assert queue.get() == "blocked"
    interrupt(child)
    child.join(WAIT)
    assert child.exitcode == 1
    assert [left.name for left in fm.abandoned()] == ["Tantalus"]
    write_end.send_bytes(b"water")
    eventually(lambda: not fm.abandoned())
    for end in (read_end, write_end, queue):
        end.close()


called = threading.Event()


def spin_for_executor():
    called.set()
    while True:
        pass


def test_no_future_gets_the_exception_that_stopped_its_worker(ctx):
    """The executor's worker catches every exception and sends it; a process that is terminated sends nothing."""
    called.clear()
    with ProcessPoolExecutor(1, mp_context=ctx) as pool:
        future = pool.submit(spin_for_executor)
        assert called.wait(WAIT)
        next(iter(pool._processes.values())).terminate()
        assert isinstance(future.exception(WAIT), BrokenProcessPool)
    eventually(lambda: not fm.abandoned())


def test_an_interrupt_that_a_child_sends_is_a_keyboard_interrupt():
    kind = type("Interrupt", (ThreadInterrupted,), {"raised": threading.Event()})
    assert type(pickle.loads(pickle.dumps(kind()))) is KeyboardInterrupt
