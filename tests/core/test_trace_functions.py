# SPDX-License-Identifier: GPL-3.0-or-later
"""Trace functions that two threads set at once: each of them has its own, as in a process of its own."""

from __future__ import annotations

import sys
import threading
import time
import types

import pytest

from forkless.core import trace_functions
from forkless.engines.threads.workers.thread_locals import FreshThread

SOON = 240


class AtTheEnd:
    def __init__(self, call):
        self._call = call

    def __del__(self):
        self._call()


def function(end=None):
    def made(*_):
        return None

    made.end = end
    return made


@pytest.fixture
def another(monkeypatch):
    """
    Another thread that is in the midst of setting a trace function, where the end of the one before is executed, until the calling
    thread waits for it. Called with `sys.settrace` or `sys.setprofile`.
    """
    inside, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(
        trace_functions, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: (go_on.set(), time.sleep(0.001)))
    )  # fmt: skip
    started = []

    def start(setter):
        def work():
            setter(function(AtTheEnd(lambda: (inside.set(), go_on.wait(SOON)))))
            setter(None)

        started.append(threading.Thread(target=work))
        started[0].start()
        assert inside.wait(SOON)

    yield start
    go_on.set()
    started[0].join(SOON)


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_a_function_is_set_while_another_thread_sets_one(another, name):
    setter, getter = getattr(sys, f"set{name}"), getattr(sys, f"get{name}")
    before, own, found = getter(), function(), []
    another(setter)
    # Coverage may have a function in this thread.
    try:
        getattr(trace_functions, f"set_{name}")(own)
        found.append(getter())
    finally:
        getattr(trace_functions, f"set_{name}")(before)
    assert found == [own]


@pytest.mark.parametrize("name", ["trace", "profile"])
def test_a_thread_is_as_new_again_while_another_one_sets_a_function(another, name):
    setter, getter, found = getattr(sys, f"set{name}"), getattr(sys, f"get{name}"), []

    def work():
        fresh = FreshThread()
        found.append(getter())
        setter(function())
        another(setter)
        fresh.restore(threading.current_thread().name)
        found.append(getter())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SOON)
    assert len(found) == 2
    assert found[0] is found[1]
