# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker that is stopped while it starts a warm interpreter leaves no process, no pipe and no number behind."""

from __future__ import annotations

import os

import pytest

from forkless.core.process_tree import OF_WHOLE_RUN
from forkless.engines.threads.workers.interrupt import Interrupt, WorkerStopped
from forkless.modules.warm import channel, transports
from forkless.modules.warm.program import server_program

pytestmark = pytest.mark.spawns
PROGRAM = server_program(ask_groups=False)


@pytest.fixture
def started(monkeypatch):
    """The numbers of the processes that were started; `after` is called when one was."""
    found = []

    class Channel(channel.ProgramChannel):
        after = staticmethod(lambda: None)

        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            found.append(self._child.pid)
            assert self._child.pid in OF_WHOLE_RUN
            Channel.after()

    monkeypatch.setattr(channel, "ProgramChannel", Channel)
    return found, Channel


def local():
    transport = object.__new__(transports._LocalTransport)
    transport.command, transport.cwd, transport.environ, transport.shell = (
        "sleep 600",
        None,
        dict(os.environ),
        "/bin/sh",
    )
    transport.password, transport.become, transport.verdict = None, None, 240.0
    return transport


def by_ssh_program():
    transport = object.__new__(transports._SshProgramTransport)
    transport.name, transport.line, transport.environ = "h1", ["sleep", "600"], dict(os.environ)
    transport.password, transport.become, transport.verdict = None, None, 240.0
    return transport


@pytest.mark.parametrize("way", [local, by_ssh_program])
@pytest.mark.parametrize("when", ["as it starts", "while it is waited for"])
def test_a_worker_that_is_stopped_while_it_starts_one_leaves_nothing(started, monkeypatch, way, when):
    pids, kind = started
    interrupt = Interrupt()
    interrupt.begin()

    def stop(*_args):
        interrupt.release(WorkerStopped)

    def stop_and_raise(*args):
        stop(*args)
        raise WorkerStopped

    if when == "as it starts":
        kind.after = staticmethod(stop)
    else:
        monkeypatch.setattr(kind, "_converse", stop_and_raise)
    kept = []
    try:
        with pytest.raises(WorkerStopped) as raised:
            way().open(PROGRAM, interrupt)
        kept.append(raised)  # its traceback keeps the objects, which the collector would tidy up at some time
        with pytest.raises(ChildProcessError):
            os.waitpid(pids[0], os.WNOHANG)
        assert pids[0] not in OF_WHOLE_RUN
    finally:
        interrupt.end()
