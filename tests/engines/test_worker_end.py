# SPDX-License-Identifier: GPL-3.0-or-later
"""How a worker ends that is told to end."""

from __future__ import annotations

import threading
import types

import pytest

from forkless._stop import Stop
from forkless.engines import _scene, _threads
from forkless.engines._worker import Worker


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
def test_a_worker_that_has_answered_is_left_to_tidy_up(answered):
    scene = _scene.Scene(ident="ending", stop=Stop())
    with _scene.enter(scene):
        worker = Tidying(answered)
        worker.start()
        assert worker.at_work.wait(30)
        worker.terminate()  # what the run does with all its workers when the last result is in
        if answered:
            worker.may_go.set()
        worker.join(30)
        assert not worker.is_alive()
        assert worker.tidied is answered
        assert worker.exitcode == (0 if answered else -15)
        _threads.crew(scene).close(30)
