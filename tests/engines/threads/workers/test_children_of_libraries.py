# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that a library starts on a worker's thread end with the worker, whichever way they were started, and whenever."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time

import pytest

from forkless.core import process_tree
from forkless.engines.threads.workers.interrupt import (
    Interrupt,
    WorkerStopped,
    _LibraryChild,
    end_groups,
    wait_for_ended_groups,
)

pytestmark = [
    pytest.mark.spawns,
    pytest.mark.skipif(sys.platform != "linux", reason="which thread has started a process is what Linux tells"),
]

LONG = 240


KEPT = []  # a library keeps its objects


def by_subprocess():
    KEPT.append(subprocess.Popen(["sleep", "600"]))


def by_posix_spawn():
    os.posix_spawnp("sleep", ["sleep", "600"], os.environ)


def by_system():
    os.system("sleep 600; true")


def in_c():
    ctypes.CDLL(None).system(b"sleep 600; true")


def in_own_session():
    KEPT.append(subprocess.Popen(["sleep", "600"], start_new_session=True))


WAYS = [by_subprocess, by_posix_spawn, by_system, in_c, in_own_session]


class Library:
    """A worker's thread that calls `work`, then does nothing until it is interrupted."""

    def __init__(self, work, before=lambda: None):
        self.interrupt = Interrupt()
        self.begun, self.worked = threading.Event(), threading.Event()
        self._work, self._before = work, before
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        self._before()
        try:
            self.interrupt.begin()
            self.begun.set()
            self._work()
            self.worked.set()
            while True:
                time.sleep(0.01)
        except WorkerStopped:
            pass
        finally:
            self.interrupt.end()

    def started(self):
        return process_tree.children_of_thread(self.thread.native_id)


def wait_for(condition):
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def is_gone(pid):
    there = process_tree._one(pid)
    return there is None or there.ended


@pytest.fixture(autouse=True)
def no_child_is_left():
    """Also where a test fails."""
    before = everything()
    yield before
    for pid in everything() - before:
        process_tree.ProcessTree(pid).kill()
        os.waitpid(pid, 0)
    while KEPT:
        KEPT.pop().wait(LONG)


def everything():
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    return set().union(*(process_tree.children_of_thread(number) for number in threads))


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_when_the_worker_is_interrupted(way, no_child_is_left):
    library = Library(way)
    assert library.begun.wait(LONG)
    wait_for(library.started)
    tree = process_tree.ProcessTree(next(iter(library.started())))
    if way in (by_system, in_c):  # which return when the program has ended
        wait_for(lambda: len(tree._known | dict.fromkeys(tree.look())) == 2)  # the shell has started its program
    else:
        assert library.worked.wait(LONG)  # an exception inside of Popen would leave nobody who keeps the object
    assert library.interrupt.trigger(WorkerStopped)
    wait_for(lambda: not tree.alive())
    library.thread.join(LONG)
    assert not library.thread.is_alive()
    wait_for_ended_groups()
    wait_for(lambda: everything() <= no_child_is_left)


def test_one_that_has_the_number_of_a_child_which_was_reaped_is_left_alone():
    """The library reaps its children itself, at any time."""
    child = subprocess.Popen(["sleep", "600"])
    KEPT.append(child)
    noted = _LibraryChild(child.pid)
    noted.born = "1"  # as of a process that was started before
    end_groups([noted])
    wait_for_ended_groups()
    assert not is_gone(child.pid)
    assert child.poll() is None


def test_it_ends_if_it_was_started_after_the_interrupt():
    """The library's thread was in C, or swallowed the exception."""
    may_start, started = threading.Event(), []

    def swallow_and_start():
        try:
            while not may_start.is_set():
                time.sleep(0.01)
        except WorkerStopped:
            started.append(os.posix_spawnp("sleep", ["sleep", "600"], os.environ))
        raise WorkerStopped

    library = Library(swallow_and_start)
    assert library.begun.wait(LONG)
    assert library.interrupt.trigger(WorkerStopped)
    library.thread.join(LONG)
    wait_for_ended_groups()
    assert is_gone(started[0])


def test_it_ends_if_a_thread_of_the_library_has_started_it():
    interrupt, started, done = Interrupt(), [], threading.Event()

    def member():
        try:
            with interrupt.joined():
                started.append(os.posix_spawnp("sleep", ["sleep", "600"], os.environ))
                while True:
                    time.sleep(0.01)
        except WorkerStopped:
            done.set()

    thread = threading.Thread(target=member, daemon=True)
    thread.start()
    wait_for(lambda: started)
    assert interrupt.trigger(WorkerStopped)
    assert done.wait(LONG)
    thread.join(LONG)
    wait_for_ended_groups()
    assert is_gone(started[0])


def test_what_the_thread_had_started_before_and_what_is_the_whole_runs_stays():
    pids = {}

    def start(name):
        pids[name] = os.posix_spawnp("sleep", ["sleep", "600"], os.environ)

    def start_more():
        start("of the run")
        process_tree.OF_WHOLE_RUN.add(pids["of the run"])
        start("of the task")

    library = Library(start_more, before=lambda: start("of the task before"))
    try:
        wait_for(lambda: len(pids) == 3)
        assert library.interrupt.trigger(WorkerStopped)
        library.thread.join(LONG)
        wait_for_ended_groups()
        assert {name: is_gone(pid) for name, pid in pids.items()} == {
            "of the task before": False,
            "of the run": False,
            "of the task": True,
        }
    finally:
        process_tree.OF_WHOLE_RUN.discard(pids.get("of the run"))


def test_an_alarm_does_not_take_back_a_stop():
    """A plugin that catches its alarm's error would go on."""
    interrupt, stopped = Interrupt(), []
    begun, may_run = threading.Event(), threading.Event()

    def work():
        try:
            interrupt.begin()
            alarms.append(interrupt.set_alarm())
            with interrupt.shielded():  # nothing is raised before both have come
                begun.set()
                assert may_run.wait(LONG)
        except BaseException as error:
            stopped.append(type(error))
        finally:
            interrupt.end()

    alarms = []
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert begun.wait(LONG)
    assert interrupt.trigger(WorkerStopped)
    assert not interrupt.trigger(TimeoutError, alarm=alarms[0])
    may_run.set()
    thread.join(LONG)
    assert stopped == [WorkerStopped]
