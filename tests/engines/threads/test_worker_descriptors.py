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


@pytest.mark.parametrize(("way", "other_way"), [(VIEW.pipe, os.pipe), (VIEW.openpty, os.openpty)])
def test_one_whose_number_is_another_files_by_now_stays_open(way, other_way):
    worker = StoppedWorker()
    with entered(worker):
        ends = way()
        worker.interrupt.release(WorkerStopped)
    others = other_way()
    for other, fd in zip(others, ends, strict=True):
        os.dup2(other, fd)  # as if a library had closed it, and opened the other file
    worker.end()
    assert all(is_open(fd) for fd in ends)
    for fd in (*others, *ends):
        os.close(fd)


@pytest.mark.skipif(sys.platform != "linux", reason="only there terminals are told apart")
def test_a_terminal_is_told_from_an_earlier_one_of_the_same_name():
    first = os.openpty()
    name, made = os.ttyname(first[1]), os.fstat(first[1]).st_ctime_ns
    before = {worker_descriptors._identity(fd) for fd in first}
    deadline = time.monotonic() + 240
    while True:
        for fd in first:
            os.close(fd)
        assert time.monotonic() < deadline, "no other terminal got this name"
        first = os.openpty()
        # Other programs may have taken the name, and the clock of inodes has ticks.
        if os.ttyname(first[1]) == name and os.fstat(first[1]).st_ctime_ns != made:
            break
    after = {worker_descriptors._identity(fd) for fd in first}
    for fd in first:
        os.close(fd)
    assert None not in before | after
    assert not before & after


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
