# SPDX-License-Identifier: GPL-3.0-or-later
"""Descriptors that a plugin has opened are closed when its worker is stopped, as those of a process are."""

from __future__ import annotations

import os
import pty
import sys
import time
import types

import pytest

import forkless
from forkless.core.run_context import entered
from forkless.engines.threads.context import ThreadScope
from forkless.engines.threads.patches import stdlib_views, worker_descriptors
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped

VIEW = stdlib_views.os_view


class StoppedWorker(ThreadScope):
    """What the view uses of a worker."""

    def __init__(self):
        self.run_context = type("Run", (), {"pid": os.getpid()})()
        self.interrupt, self.state, self.at_end = Interrupt(), {}, []

    def end(self):
        while self.at_end:
            self.at_end.pop()()


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("way", [VIEW.pipe, VIEW.openpty, worker_descriptors.PtyView(pty).openpty])
@pytest.mark.parametrize("stopped", [True, False])
def test_those_that_nobody_has_closed_or_taken_are_closed_if_the_worker_was_stopped(way, stopped):
    worker = StoppedWorker()
    with entered(worker):
        left, closed, taken = way(), way(), way()
        for fd in closed:
            VIEW.close(fd)
        files = [VIEW.fdopen(fd, "rb" if n == 0 else "wb", 0) for n, fd in enumerate(taken)]
        if stopped:
            worker.interrupt.release(WorkerStopped)
    worker.end()
    try:
        assert [is_open(fd) for fd in (*left, *taken)] == [not stopped] * 2 + [True] * 2
    finally:
        for file in files:
            file.close()
        for fd in left:
            if not stopped:
                os.close(fd)


def test_one_whose_number_is_another_files_by_now_stays_open():
    worker = StoppedWorker()
    with entered(worker):
        ends = VIEW.pipe()
        worker.interrupt.release(WorkerStopped)
    others = os.pipe()
    for other, fd in zip(others, ends, strict=True):
        os.dup2(other, fd)  # as if a library had closed it, and opened the other file
    worker.end()
    assert all(is_open(fd) for fd in ends)
    for fd in (*others, *ends):
        os.close(fd)


def test_a_plugin_of_ansible_core_opens_terminals_by_the_view():
    plugin = types.ModuleType("plugin")
    plugin.pty = pty
    remove = stdlib_views.install_views(plugin)
    try:
        assert isinstance(plugin.pty, worker_descriptors.PtyView)
    finally:
        remove()
    assert plugin.pty is pty


@pytest.mark.spawns
@pytest.mark.skipif(sys.platform != "linux", reason="the leak guard sees descriptors in /proc")
def test_a_cancelled_run_leaves_no_terminal_or_pipe_of_a_plugin_open(project, tmp_path):
    """The leak guard looks for them."""
    project.write(
        "lookup_plugins/opens.py",
        f"""
        import os, pty, time
        from ansible.plugins.lookup import LookupBase

        class LookupModule(LookupBase):
            def run(self, terms, variables=None, **kwargs):
                pty.openpty(), os.pipe()
                open({str(tmp_path / "opened")!r}, "w").close()
                time.sleep(600)
        """,
    )
    run = project.start("- debug: {msg: \"{{ lookup('opens') }}\"}\n", limit="h1")
    deadline = time.monotonic() + 240
    while not (tmp_path / "opened").exists():
        assert time.monotonic() < deadline, "the plugin was not called"
        time.sleep(0.01)
    run.cancel()
    assert run.wait(240).status is forkless.Status.CANCELED
