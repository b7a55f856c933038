# SPDX-License-Identifier: GPL-3.0-or-later
"""An exception that is sent to a thread while it starts another one: it reaches the sender's target, and no wait is left without its end."""

from __future__ import annotations

import concurrent.futures
import ctypes
import sys
import threading
import time
import traceback

import pytest

from forkless.core import thread_exception
from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.patches import plugin_threads
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped
from forkless.multiprocessing import process_state

LONG = 240
# The name by which Thread.start calls the system.
START = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
REAL_START = threading.Thread.start


@pytest.fixture(params=["runs", "multiprocessing"])
def patched_start(request, monkeypatch):
    """Thread.start as it is while runs are active, or with our multiprocessing."""
    if request.param == "runs":
        seam = plugin_threads.thread_start(threading.Thread.start, "threading:Thread.start")
    else:
        seam = process_state.inherit_state(threading.Thread.start)
    monkeypatch.setattr(threading.Thread, "start", seam)


class Starter:
    """A worker's thread that starts another thread in one of the usual ways, with the time in between at the test's command."""

    def __init__(self, work, *, ready=lambda: None):
        self.interrupt = Interrupt()
        self.run_context = context.RunContext(ident="starting", stop=Stop())
        self.run_context.interrupt = self.interrupt
        self.raised = threading.Event()
        self.stopped = self.give_up = False
        self.raised_in = []
        self._work, self._ready = work, ready
        self.thread = threading.Thread(target=self._run, daemon=True, name="forkless-test-starter")
        self.thread.start()

    def _run(self):
        self._ready()
        with context.enter(self.run_context):
            try:
                self.interrupt.begin()
                self._work()
                # The exception is raised here at the latest. Nothing here asks whether one was sent.
                while not self.give_up:
                    time.sleep(0.01)
            except WorkerStopped as error:
                self.stopped = True
                self.raised_in = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
            finally:
                self.raised.set()
                self.interrupt.end()


def on_thread(done):
    threading.Thread(target=done.set, name="plugin's").start()


def on_executor(done):
    concurrent.futures.ThreadPoolExecutor(1).submit(done.set)


def on_our_thread(done):
    threading.Thread(target=done.set, name="forkless-channel").start()


class Window:
    """
    Holds the moment open in which the system has made a thread and not run it yet. Before Python 3.12 the new thread's state has its
    starter's ident then; another state that nothing runs on has it here.
    """

    def __init__(self, real):
        self._real = real
        self.starter = None
        self.is_open, self.may_close = threading.Event(), threading.Event()

    def start(self, *args, **kwargs):
        if threading.current_thread() is not self.starter:
            return self._real(*args, **kwargs)
        api, unborn = ctypes.pythonapi, None
        if sys.version_info < (3, 12):
            api.PyThreadState_New.restype = api.PyInterpreterState_Get.restype = ctypes.c_void_p
            unborn = ctypes.c_void_p(api.PyThreadState_New(ctypes.c_void_p(api.PyInterpreterState_Get())))
        try:
            self.is_open.set()
            assert self.may_close.wait(LONG)
        finally:
            if unborn is not None:
                api.PyThreadState_Clear(unborn)
                api.PyThreadState_Delete(unborn)
        return self._real(*args, **kwargs)


@pytest.mark.parametrize("way", [on_thread, on_executor, on_our_thread])
def test_it_hits_the_starter_and_not_the_thread_that_the_system_has_not_run_yet(way, patched_start, monkeypatch):
    window = Window(getattr(threading, START))
    monkeypatch.setattr(threading, START, window.start)
    may_begin, before, done = threading.Event(), set(threading.enumerate()), threading.Event()
    starter = Starter(lambda: way(done), ready=lambda: may_begin.wait(LONG))
    window.starter = starter.thread
    may_begin.set()
    assert window.is_open.wait(LONG)
    assert starter.interrupt.trigger(WorkerStopped)
    window.may_close.set()
    try:
        # Not a race: what was sent to the wrong thread is gone, and this one would sleep on.
        assert starter.raised.wait(30)
    finally:
        starter.give_up = True
    assert starter.stopped
    starter.thread.join(LONG)
    # The new thread has begun and ended: by itself, or because it belongs to a worker that is interrupted.
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG)
        assert not thread.is_alive()


def test_it_is_raised_when_the_new_thread_has_said_that_it_began(patched_start):
    """The thread says so under a lock that its starter waits with: an exception within that wait may leave it locked."""
    waiting, may_say, began = threading.Event(), threading.Event(), []

    class Said(threading.Event):
        def set(self):
            waiting.set()
            assert may_say.wait(LONG)
            super().set()

    thread = threading.Thread(target=lambda: None, name="plugin's")
    thread._started = Said()

    def start():
        try:
            thread.start()
        finally:
            began.append(thread._started.is_set())

    starter = Starter(start)
    assert waiting.wait(LONG)
    assert starter.interrupt.trigger(WorkerStopped)
    assert not starter.raised.wait(0.3)
    may_say.set()
    assert starter.raised.wait(LONG)
    assert starter.stopped
    assert began == [True]
    assert REAL_START.__code__ not in starter.raised_in
    thread.join(LONG)
    starter.thread.join(LONG)


def test_what_was_sent_before_is_raised_before_a_thread_is_started(patched_start):
    started = threading.Event()

    def interrupt_and_start():
        # Sent by the thread itself, which then does not execute anything that lets it be raised but the start.
        thread = threading.Thread(target=started.set, name="plugin's")
        thread_exception._set(threading.get_ident(), WorkerStopped), thread.start()  # noqa: B018

    starter = Starter(interrupt_and_start)
    assert starter.raised.wait(LONG)
    assert starter.stopped
    assert not started.is_set()
    starter.thread.join(LONG)


def test_taking_back_is_possible_while_a_thread_is_started():
    def start():
        thread_exception.send(threading.get_ident(), WorkerStopped)
        thread_exception.take_back()
        return "started"

    assert thread_exception.starting(start) == "started"
