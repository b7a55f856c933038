# SPDX-License-Identifier: GPL-3.0-or-later
"""Which run and worker a thread belongs to is asked some 300 times for every task: each question is one call in Python."""

from __future__ import annotations

import sys

import pytest

from forkless.core.run_context import BareRun, entered
from forkless.core.stop import Stop
from forkless.engines.threads import context


class AWorker(context.ThreadScope):
    environ = None

    def __init__(self, run_context):
        self.run_context = run_context

    @property
    def worker(self):
        return self


def python_calls(function):
    names = []

    def profile(frame, event, _argument):
        if event == "call":
            names.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        found = function()
    finally:
        sys.setprofile(before)
    return found, names


def test_a_worker_and_its_run_are_found_by_one_call():
    run_context = context.RunContext(ident="a run", stop=Stop())
    worker = AWorker(run_context)
    with entered(worker):
        assert python_calls(context.current_worker) == (worker, ["current_worker"])
        assert python_calls(context.current) == (run_context, ["current"])
    with entered(run_context):
        assert python_calls(context.current_worker) == (None, ["current_worker"])
        assert python_calls(context.current) == (run_context, ["current"])


@pytest.mark.parametrize("scope", [None, BareRun("a run of forkless.ssh alone")])
def test_a_thread_of_no_run_of_this_engine_has_neither(scope):
    with entered(scope):
        assert (context.current(), context.current_worker()) == (None, None)
