# SPDX-License-Identifier: GPL-3.0-or-later
"""Orders and ends that meet: nothing runs that nobody waits for, nobody waits for what does not run."""

from __future__ import annotations

import threading
import time
import types

import pytest

from forkless.engines._reach import Reach, WorkerStopped
from forkless.modules import _far, _hearth
from forkless.modules._hearth import NOBODY, Hearth, NotStartedError


class Line:
    """What goes out, as (kind, number); `at` is called while an order is on its way."""

    def __init__(self, at=lambda _: None):
        self.frames, self._at, self.closed = [], at, False

    def send(self, data):
        frames = []
        while data:
            length, number, kind = _far.HEAD.unpack_from(data)
            frames.append((kind, number))
            data = data[_far.HEAD.size + length :]
        orders = any(kind == b"R" for kind, _ in frames)
        if orders:
            self._at("before")
        self.frames += frames
        if orders:
            self._at("after")

    def close(self):
        self.closed = True


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_order_is_taken_back_when_its_worker_is_stopped_as_it_is_given(moment):
    reach, hearth = Reach(), Hearth("there")
    stopping = []

    def at(now):
        if now == moment:
            thread = threading.Thread(target=reach.interrupt, args=(WorkerStopped,))
            thread.start()
            stopping.append(thread)
            while reach._sent is None:
                time.sleep(0.001)

    line = Line(at)
    hearth.warm(line)
    manifest = types.SimpleNamespace(digest="known")
    hearth._sent.add("known")
    seen = []

    def work():
        reach.begin()
        try:
            wrapped = types.SimpleNamespace(order={}, manifest=manifest)
            hearth.run(wrapped, cwd=None, environ={}, reach=reach)
        except WorkerStopped:
            seen.append("stopped")
        finally:
            reach.end()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join(30)
    stopping[0].join(30)
    assert seen == ["stopped"]
    assert not hearth.busy
    order, *rest = line.frames
    assert order[0] == b"R"
    assert (b"K", order[1]) in rest


def asking(hearth):
    """A thread that has given an errand and waits for its answer; and what came of it."""
    came = []

    def work():
        try:
            came.append(hearth.carry({"expand": "~"}, reach=NOBODY))
        except Exception as err:  # noqa: BLE001  # is looked at
            came.append(err)

    thread = threading.Thread(target=work)
    thread.start()
    while not hearth._line.frames and thread.is_alive():
        time.sleep(0.001)
    return thread, came


def test_one_that_has_something_to_do_is_not_sent_home_before_it_is_done():
    hearth, line = Hearth("there"), Line()
    hearth.warm(line)
    thread, came = asking(hearth)
    hearth.retire(and_wait=True)
    assert not line.closed
    assert [kind for kind, _ in line.frames] == [b"C"]
    hearth._hear(b"O", line.frames[0][1], b"/home")
    hearth._hear(b"X", line.frames[0][1], b"0")
    thread.join(30)
    assert came == [b"/home"]
    assert line.closed


def test_one_that_was_sent_home_takes_no_order(monkeypatch):
    monkeypatch.setattr(_hearth, "GRACE", 0.01)
    hearth, line = Hearth("there"), Line()
    hearth.warm(line)
    hearth.retire(and_wait=True)
    assert [kind for kind, _ in line.frames] == [b"L"]
    assert line.closed
    with pytest.raises(NotStartedError):
        hearth.carry({"expand": "~"}, reach=NOBODY)
    assert [kind for kind, _ in line.frames] == [b"L"]


def test_a_line_that_is_closed_is_one_that_is_gone():
    class Closed(Line):
        def send(self, _data):
            raise ValueError("I/O operation on closed file")

    hearth = Hearth("there")
    hearth.warm(Closed())
    with pytest.raises(NotStartedError):
        hearth.carry({"expand": "~"}, reach=NOBODY)
    with pytest.raises(NotStartedError):
        hearth.carry({"expand": "~"}, reach=NOBODY)


def test_who_stops_a_worker_does_not_wait_for_a_host_that_does_not_read(monkeypatch):
    monkeypatch.setattr(_hearth, "GRACE", 0.01)
    ended = threading.Event()

    class Full(Line):
        def send(self, _data):
            self.frames.append((b"?", 0))
            assert ended.wait(30)
            raise BrokenPipeError

        def end_now(self):
            ended.set()

    hearth = Hearth("there")
    hearth.warm(Full())
    thread, came = asking(hearth)
    hearth._give_up(1, hearth._calls[1])
    thread.join(30)
    assert [type(one) for one in came] == [NotStartedError]
