# SPDX-License-Identifier: GPL-3.0-or-later
"""What a worker's thread is like after a task: while it waits, and when it carries out another one."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading

import pytest

from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.engines.threads.workers import thread_locals, threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no folder of its own")

SOON = 240


@pytest.fixture(params=["used again", "ended"])
def after_each_task(request, monkeypatch):
    """What becomes of a thread whose task has ended. From Python 3.13 on it ends if a library has left a value there."""
    if request.param == "ended":
        monkeypatch.setattr(thread_locals.ThreadLocals, "forget", lambda _values: False)
    return request.param


@pytest.fixture
def pool(after_each_task):
    made = threads.WorkerThreads("used")
    yield made
    made.close(SOON)


@pytest.fixture
def one_thread(monkeypatch):
    """The system allows one thread of the pool, and no second one."""
    real, started = threads.start_with_deep_stack, []

    def start(thread):
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threads, "start_with_deep_stack", start)
    return started


def carry_out(pool, work):
    """Have the pool do the work; returns what it returned, when the thread waits for the next."""
    found, ended = [], threading.Event()
    was = threads.WorkerThreads._wait_for_work

    def waits(self, member, **how):
        was(self, member, **how)
        if found:
            ended.set()

    threads.WorkerThreads._wait_for_work = waits
    try:
        pool.submit(lambda: found.append(work()))
        assert ended.wait(SOON)
    finally:
        threads.WorkerThreads._wait_for_work = was
    return found[0]


def state():
    umask = os.umask(0)
    os.umask(umask)
    thread = threading.current_thread()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    return os.getcwd(), umask, thread.name, hasattr(thread, "of_a_plugin"), mask, sys.gettrace()


def test_a_thread_that_waits_is_not_in_the_folder_of_its_last_task(pool, tmp_path):
    """It could not be unmounted, and a folder that was removed would stay on the disk."""

    def work():
        os.chdir(tmp_path)
        return threading.get_native_id()

    number = carry_out(pool, work)
    assert os.readlink(f"/proc/self/task/{number}/cwd") == os.getcwd()


def test_a_thread_that_must_carry_out_another_task_is_as_it_was_before_the_first(pool, one_thread, tmp_path):
    first = carry_out(pool, state)

    def change():
        os.chdir(tmp_path)
        os.umask(0o123)
        thread = threading.current_thread()
        thread.name, thread.of_a_plugin = "a plugin's", True
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        sys.settrace(lambda *_: None)

    carry_out(pool, change)
    assert carry_out(pool, state) == first
    assert len(one_thread) == 1


def test_the_folder_is_opened_once_for_all_threads_and_closed_when_the_last_one_has_ended(after_each_task, monkeypatch):
    opened, closed, real_open, real_close = [], [], os.open, os.close

    def open_file(path, *args, **kwargs):
        number = real_open(path, *args, **kwargs)
        if path == "." and threading.current_thread().name.startswith("used-"):
            opened.append(number)
        return number

    def close_file(number):
        if number in opened:
            closed.append(number)
        real_close(number)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "close", close_file)
    pool = threads.WorkerThreads("used")
    for _ in range(5):
        carry_out(pool, state)
    begun, go_on = threading.Event(), threading.Event()

    def block():
        begun.set()
        assert go_on.wait(SOON)

    pool.submit(block)
    assert begun.wait(SOON)
    pool.close(0.0)
    try:
        assert len(opened) == 1
        assert closed == [], "the one that is left behind still needs it"
    finally:
        go_on.set()
        pool.close(SOON)  # waits for all of them: the one before may be about to end as well
    assert closed == opened


@pytest.fixture
def natural_pool():
    made = threads.WorkerThreads("used")
    yield made
    made.close(SOON)


class Session(threading.local):
    def __init__(self):
        self.of = []


def test_a_thread_whose_task_left_nothing_is_used_for_the_next(natural_pool):
    def work():
        given_up = threading.local()
        given_up.value = 1
        repr([[]])
        return threading.current_thread()

    assert len({carry_out(natural_pool, work) for _ in range(5)}) == 1


def leave_in_state(of):
    get = ctypes.pythonapi.PyThreadState_GetDict
    get.restype = ctypes.c_void_p
    ctypes.cast(get(), ctypes.py_object).value[of] = "left"


LOCAL, SESSION = threading.local(), Session()


@pytest.mark.parametrize(
    "leave",
    [lambda: setattr(LOCAL, "value", "left"), lambda: SESSION.of, lambda: SESSION.of.append(1), lambda: vars(LOCAL)],
    ids=["a value", "a look at a value", "a change of a value", "a look at all values"],
)
def test_a_thread_is_not_used_again_with_what_a_library_has_left_there(natural_pool, leave):
    """Up to Python 3.12 the value is removed; from 3.13 on the thread is not used again."""

    def work():
        before = threading.current_thread(), getattr(LOCAL, "value", None)
        leave()
        return before

    kept = [carry_out(natural_pool, work) for _ in range(3)]
    assert {value for _, value in kept} == {None}
    assert len({thread for thread, _ in kept}) == (1 if thread_locals.CAN_BE_CLEARED else 3)
    assert carry_out(natural_pool, lambda: list(SESSION.of)) == []


@pytest.mark.skipif(
    thread_locals.CAN_BE_CLEARED, reason="up to Python 3.12 only the keys of threading.local are removed"
)
def test_a_thread_is_not_used_again_with_what_a_library_in_c_has_left_in_its_state(natural_pool):
    def work():
        leave_in_state("of a library")
        return threading.current_thread()

    assert len({carry_out(natural_pool, work) for _ in range(3)}) == 3


def test_values_of_forkless_do_not_end_a_thread_and_are_removed_between_two_tasks(natural_pool):
    class Own(OwnThreadLocal):
        value = "none"

    own = Own()

    def work():
        before = own.value
        own.value = "left"
        return threading.current_thread(), before

    kept = [carry_out(natural_pool, work) for _ in range(5)]
    assert {before for _, before in kept} == {"none"}
    assert len({thread for thread, _ in kept}) == 1


@pytest.fixture
def policy():
    """Asyncio has a policy, to which nothing else refers, and makes a new one after the test."""
    asyncio.events._event_loop_policy = None
    asyncio.events._get_event_loop_policy() if sys.version_info >= (3, 14) else asyncio.get_event_loop_policy()
    yield
    asyncio.events._event_loop_policy = None


@pytest.mark.skipif(thread_locals.CAN_BE_CLEARED, reason="up to Python 3.12 the values of threading.local are removed")
@pytest.mark.filterwarnings("ignore:.*set_event_loop_policy:DeprecationWarning")
def test_a_value_that_a_library_leaves_is_seen_though_a_plugin_drops_the_policy_of_asyncio(natural_pool, policy):
    """The policy's own value of the thread goes with it: the number of references would be what it was."""

    def work():
        before = getattr(LOCAL, "value", None)
        LOCAL.value = "left"
        asyncio.set_event_loop_policy(None)
        return before

    assert [carry_out(natural_pool, work) for _ in range(3)] == [None] * 3


class OddLoop:
    def is_running(self):
        return False

    def close(self):
        raise RuntimeError("a plugin's own")


@pytest.mark.filterwarnings("ignore:.*set_event_loop_policy:DeprecationWarning")
@pytest.mark.parametrize("loop", [None, OddLoop()], ids=["without a loop", "a loop that cannot be closed"])
def test_a_policy_of_another_shape_hinders_no_later_task(natural_pool, policy, loop):
    class OddPolicy:
        def __init__(self):
            self._local = threading.local()

    def work():
        asyncio.events._event_loop_policy = OddPolicy()
        if loop is not None:
            asyncio.events._event_loop_policy._local._loop = loop
        return "done"

    assert [carry_out(natural_pool, work) for _ in range(3)] == ["done"] * 3


@pytest.mark.parametrize(
    ("leave", "look"),
    [
        (lambda: os.nice(3), lambda: os.getpriority(os.PRIO_PROCESS, 0)),
        (
            lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
            lambda: tuple(sorted(os.sched_getaffinity(0))),
        ),
        (lambda: sys.set_asyncgen_hooks(firstiter=print), lambda: sys.get_asyncgen_hooks().firstiter),
        (
            lambda: sys.set_coroutine_origin_tracking_depth(5),
            lambda: sys.get_coroutine_origin_tracking_depth(),
        ),
    ],
    ids=["priority", "cores", "hooks", "depth"],
)
def test_what_the_kernel_and_the_interpreter_keep_for_a_thread_is_not_seen_by_the_next_task(natural_pool, leave, look):
    def work():
        before = look()
        leave()
        return before

    assert {carry_out(natural_pool, work) for _ in range(3)} == {look()}
