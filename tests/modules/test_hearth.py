# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker that is stopped while it gives an order takes the order back, at whatever moment that is."""

from __future__ import annotations

import threading
import time
import types

import pytest

from forkless.engines._reach import Reach, WorkerStopped
from forkless.modules import _far
from forkless.modules._hearth import Hearth


class Line:
    """What goes out, as (kind, number); `at` is called while an order is on its way."""

    def __init__(self, at):
        self.frames, self._at = [], at

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
        pass


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
