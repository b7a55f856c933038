# SPDX-License-Identifier: GPL-3.0-or-later
"""Where threads are scarce, where there is no console, and how long several stuck threads are waited for together."""

from __future__ import annotations

import subprocess
import sys
import threading
import types

import pytest

import forkless
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.patches import strategy
from forkless.engines.threads.workers import interrupt, thread_locals, threads
from forkless.engines.threads.workers.worker import Worker
from forkless.runs import run

pytestmark = pytest.mark.spawns

SOON = 120
# What Thread.start calls: another name since Python 3.13.
STARTER = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"


@pytest.fixture
def no_thread_for(monkeypatch):
    """No thread can be started whose name contains one of these words, as at the limit of the system."""

    def set_up(*words, after=0):
        real, seen = getattr(threading, STARTER), []

        def start(function, *more, **named):
            thread = function.__self__
            if any(word in thread.name for word in words):
                seen.append(thread.name)
                if len(seen) > after:
                    raise RuntimeError("can't start new thread")
            return real(function, *more, **named)

        monkeypatch.setattr(threading, STARTER, start)
        return seen

    return set_up


def threads_end_after_each_task(monkeypatch):
    """As if each task left a thread-local value that cannot be removed, which is so from Python 3.13 on."""
    monkeypatch.setattr(thread_locals.ThreadLocals, "forget", lambda _values: False)


@pytest.fixture(params=["used again", "ended"])
def after_each_task(request, monkeypatch):
    """What becomes of a thread whose task has ended. From Python 3.13 on it ends if a library has left a value there."""
    if request.param == "ended":
        threads_end_after_each_task(monkeypatch)
    return request.param


@pytest.mark.matrix_ends
@pytest.mark.usefixtures("after_each_task")
def test_a_play_goes_on_with_the_workers_that_it_could_start(project, no_thread_for):
    refused = no_thread_for("forkless-scarce-0", "forkless-scarce-1", after=1)
    result = project.run("- debug: {msg: hi}\n- debug: {msg: ho}\n", forks=6, ident="scarce")
    assert result.rc == 0, result.stdout
    assert all(counts["ok"] == 2 for counts in result.hosts.values())
    assert len(result.hosts) == 6
    assert len(refused) > 1


@pytest.fixture
def room_for(monkeypatch):
    """The system allows so many threads of the pool `limited` at once; the answer is how many there were in all."""

    def set_up(most):
        real, alive, count = getattr(threading, STARTER), [], []

        def start(function, *more, **named):
            thread = function.__self__
            if thread.name.startswith("limited-"):
                alive[:] = [one for one in alive if one.is_alive()]
                if len(alive) >= most:
                    raise RuntimeError("can't start new thread")
                alive.append(thread)
                count.append(thread)
            return real(function, *more, **named)

        monkeypatch.setattr(threading, STARTER, start)
        return count

    return set_up


@pytest.mark.parametrize("most", [1, 2, 3])
def test_at_the_limit_of_threads_a_used_one_does_the_work_only_if_there_can_be_no_other(monkeypatch, room_for, most):
    threads_end_after_each_task(monkeypatch)
    started, woken, done = room_for(most), threading.Event(), []
    pool = threads.WorkerThreads("limited", woken.set)

    def work():
        done.append(threading.current_thread())
        woken.set()

    for _ in range(30):
        pool.submit(work)
    while len(done) < 30:
        assert woken.wait(SOON)
        woken.clear()
        pool.start_waiting()
    pool.close(SOON)
    assert not any(one.is_alive() for one in started)
    assert len({id(one) for one in done}) == len(started) == (1 if most == 1 else 30)


def test_a_used_thread_at_the_limit_makes_room_for_a_new_one_while_another_is_at_work(monkeypatch, room_for):
    threads_end_after_each_task(monkeypatch)
    started = room_for(2)
    pool = threads.WorkerThreads("limited")
    go_on, begun, done = threading.Event(), threading.Event(), []

    def blocks():
        begun.set()
        assert go_on.wait(SOON)

    pool.submit(blocks)
    assert begun.wait(SOON)
    for number in range(5):
        pool.submit(lambda: done.append(threading.current_thread()))
        while len(done) <= number:
            pool.start_waiting()
    go_on.set()
    pool.close(SOON)
    assert len({id(one) for one in done}) == 5
    assert len(started) == 6


@pytest.mark.parametrize("which", ["worker", "results"])
def test_a_play_that_can_start_no_worker_says_so_in_a_sentence(project, no_thread_for, which):
    no_thread_for("forkless-scarce-0" if which == "worker" else "results_thread_main")
    result = project.run("- debug: {msg: hi}\n", ident="scarce")
    assert result.status is forkless.Status.FAILED
    assert result.sentence.startswith("No thread could be started for a worker")
    assert "Traceback" not in result.stdout


@pytest.mark.parametrize("which", ["-own", "forkless-clock"])
def test_a_run_that_can_start_no_thread_of_its_own_says_so(project, no_thread_for, which):
    no_thread_for(which)
    with pytest.raises(forkless.SpawnError, match="could not start .*: can't start new thread"):
        project.run("- debug: {msg: hi}\n", timeout=SOON)


def test_modules_run_cold_where_no_thread_can_listen_to_a_warm_interpreter(project, no_thread_for):
    refused = no_thread_for("forkless-interpreter")
    result = project.run("- command: echo hi\n", limit="h1")
    assert result.rc == 0, result.stdout
    assert refused


def test_children_are_ended_where_no_thread_can_see_to_it(no_thread_for):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    no_thread_for("forkless-end")
    interrupt.end_groups([child])
    assert child.wait(SOON) == -15


NO_CONSOLE = """
import sys
kept, sys.stdin, sys.stdout, sys.stderr = sys.stdout, None, None, None
import forkless
try:
    found = forkless.run({playbook!r}, inventory={inventory!r}, cwd={cwd!r}, engine="threads")
    kept.write(f"{{found.status}} {{found.stdout.count('hi')}}")
except BaseException as error:
    kept.write(repr(error))
"""


def test_a_program_without_a_console_can_run_a_playbook(project):
    spec = project.spec("- debug: {msg: hi}\n")
    text = NO_CONSOLE.format(**spec)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=SOON, check=False)
    assert done.stdout == "successful 6", done.stdout + done.stderr


class Clock:
    """A clock that goes on only while somebody waits."""

    def __init__(self, monkeypatch, module):
        self.now = 1000.0
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: self.now, sleep=self.wait))

    def wait(self, seconds=None):
        self.now += seconds


def test_threads_that_are_stuck_share_one_grace_time(monkeypatch):
    clock = Clock(monkeypatch, threads)
    worker_threads = threads.WorkerThreads("stuck")
    worker_threads._members = {number: types.SimpleNamespace(join=clock.wait) for number in range(3)}
    worker_threads.close(1.0)
    assert clock.now == 1001.0


def test_children_that_do_not_end_share_one_grace_time(monkeypatch):
    clock = Clock(monkeypatch, interrupt)
    monkeypatch.setattr(interrupt, "_tree", lambda _child: types.SimpleNamespace(kill=lambda: None))

    def wait(seconds):
        clock.wait(seconds)
        raise subprocess.TimeoutExpired("x", seconds)

    interrupt._see_to_the_end([types.SimpleNamespace(returncode=None, wait=wait) for _ in range(3)])
    assert clock.now < 1000.0 + interrupt.GRACE + 1.0


def test_workers_that_do_not_end_share_one_grace_time(monkeypatch):
    clock = Clock(monkeypatch, strategy)
    strategy._join([types.SimpleNamespace(join=clock.wait) for _ in range(3)], 1.0)
    assert clock.now == 1001.0


def test_endings_that_are_waited_for_share_one_grace_time(monkeypatch):
    clock = Clock(monkeypatch, interrupt)
    monkeypatch.setattr(interrupt, "_ending", [types.SimpleNamespace(wait=clock.wait) for _ in range(3)])
    interrupt.wait_for_ended_groups()
    assert clock.now == 1000.0 + interrupt.GRACE


def test_runs_that_do_not_end_with_the_program_share_one_grace_time(monkeypatch):
    clock = Clock(monkeypatch, run)
    thread = types.SimpleNamespace(join=clock.wait)
    run._end([types.SimpleNamespace(_result=None, cancel=lambda: None, _thread=thread) for _ in range(3)])
    assert clock.now == 1000.0 + run._PARTING


class Alarmed(Worker):
    def __init__(self):
        self._arm()
        self._host = types.SimpleNamespace(name="h1")


@pytest.fixture
def alarmed():
    with context.enter(context.RunContext(ident="alarm", stop=Stop())):
        worker = Alarmed()
        worker.interrupt.begin()
        yield worker
        worker.alarm(0)
        worker.interrupt.end()


def test_an_alarm_that_rings_while_it_is_cleared_does_not_arrive(alarmed):
    """Its action has been called, and before what it raises is sent to the worker, the worker has cleared the alarm."""
    rung = threading.Event()

    def action(_number, _frame):
        alarmed.interrupt.clear_alarm()
        rung.set()
        raise TimeoutError

    alarmed.on_alarm = action
    alarmed.alarm(0.001)
    assert rung.wait(SOON)
    alarmed._alarm_clock.join(SOON)
    assert alarmed.interrupt.sent is None


def test_clearing_an_alarm_does_not_take_back_a_stop(alarmed):
    with alarmed.interrupt._lock:
        alarmed.interrupt._sent = interrupt.WorkerStopped  # as interrupt() leaves it, before the exception has arrived
    alarmed.alarm(600)
    alarmed.alarm(0)
    assert alarmed.interrupt.sent is interrupt.WorkerStopped
