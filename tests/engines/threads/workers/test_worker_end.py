# SPDX-License-Identifier: GPL-3.0-or-later
"""How a worker ends that is told to end."""

from __future__ import annotations

import sys
import threading
import types

import pytest

from forkless.core.stop import Stop
from forkless.engines.threads import context
from forkless.engines.threads.workers import threads
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped
from forkless.engines.threads.workers.worker import Worker


class Tidying(Worker):
    """Answers at once (or not), then takes its time to leave."""

    def __init__(self, answers):
        self._arm()
        self._host = types.SimpleNamespace(name="h1")
        self._answers = answers
        self.at_work = threading.Event()
        self.may_go = threading.Event()
        self.tidied = False

    def run(self):
        self.answered = self._answers
        self.at_work.set()
        while not self.may_go.wait(0.01):
            pass
        self.tidied = True


@pytest.mark.parametrize("answered", [True, False])
def test_a_worker_that_has_answered_is_left_to_tidy_up(answered, monkeypatch):
    monkeypatch.setitem(sys.modules, "ansible", types.ModuleType("ansible"))  # in a run there is one
    run_context = context.RunContext(ident="ending", stop=Stop())
    with context.enter(run_context):
        worker = Tidying(answered)
        worker.start()
        assert worker.at_work.wait(240)
        worker.terminate()  # what the run does with all its workers when the last result is in
        if answered:
            worker.may_go.set()
        worker.join(240)
        assert not worker.is_alive()
        assert worker.tidied is answered
        assert worker.exitcode == (0 if answered else -15)
        threads.worker_threads(run_context).close(30)


class Once(BaseException):
    pass


def test_what_is_raised_once_in_a_thread_comes_after_a_step_that_must_not_be_left_half_done():
    interrupt, steps = Interrupt(), []
    interrupt.begin()
    try:
        with pytest.raises(Once), interrupt.shielded():
            with interrupt.shielded():
                interrupt.raise_once(threading.get_ident(), Once)
            steps.append("done")
        assert steps == ["done"]
        interrupt.sleep(0)  # the worker goes on
        with interrupt.shielded():  # and it is not raised again
            steps.append("done")
    finally:
        interrupt.end()


def test_a_worker_that_must_stop_is_not_told_anything_else():
    interrupt = Interrupt()
    interrupt.begin()
    try:
        assert interrupt.release(WorkerStopped)
        interrupt.raise_once(threading.get_ident(), Once)
        with pytest.raises(WorkerStopped):
            interrupt.sleep(0)
    finally:
        interrupt.end()
