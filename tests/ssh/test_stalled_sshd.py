# SPDX-License-Identifier: GPL-3.0-or-later
"""An sshd that stands still while a run is cancelled: the run ends in time, and the command with it, when the sshd goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import time

import pytest

import forkless
from forkless.ssh import connection as connection_module

pytestmark = [pytest.mark.spawns, pytest.mark.interrupts]

SOON = 120


def wait_for(condition, seconds=SOON):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def serving(target):
    """The processes of this sshd that serve its connections."""
    parents = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if not (entry / "cmdline").read_text().startswith("sshd"):
                    del parents[int(entry.name)]
            except OSError:  # it ended meanwhile
                continue
    found = {target.process.pid}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {target.process.pid}


MODES = {
    "warm": ("- command: {command}", "auto", ""),
    "cold": ("- command: {command}", "cold", ""),
    "pipelined": ("- command: {command}", "cold", "ansible_pipelining=true"),
    "raw": ("- raw: {command}", "auto", ""),
}


@pytest.fixture
def begun(tmp_path, sshds, spot):
    """Starts a run of a command that blocks on the first host. The run, and the command's process."""

    def start(mode):
        task, modules, more = MODES[mode]
        pidfile, folder = spot / "pid", tmp_path / "project"
        command = f"sh -c 'echo $$ > {pidfile}.new; mv {pidfile}.new {pidfile}; exec sleep 600'"
        folder.mkdir()
        (folder / "hosts.ini").write_text(sshds.inventory(connection="forkless.core.ssh", more=more))
        (folder / "play.yml").write_text(
            f"- hosts: targets[0]\n  gather_facts: false\n  tasks:\n    {task.format(command=command)}\n"
        )
        run = forkless.start(
            folder / "play.yml", inventory=folder / "hosts.ini", cwd=folder, engine="threads", modules=modules
        )
        wait_for(lambda: pidfile.exists() or run._result is not None)
        return run, pathlib.Path("/proc", pidfile.read_text().strip())

    return start


@pytest.mark.parametrize("mode", MODES)
def test_a_command_does_not_outlive_a_cancel_that_an_sshd_slept_through(begun, sshds, mode):
    run, process = begun(mode)
    asleep = serving(sshds.hosts[0])
    assert asleep
    try:
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        run.cancel()
        assert run.wait(SOON).status is forkless.Status.CANCELED  # a worker that is left behind raises
    finally:
        for pid in asleep:
            os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not process.exists())


@pytest.mark.parametrize("mode", ["warm", "cold"])
def test_a_command_is_hung_up_on_when_its_connection_is_cut(begun, sshds, mode):
    """As one that was started by the ssh program on a terminal, which is what stock does."""
    run, process = begun(mode)
    for pid in serving(sshds.hosts[0]):
        with contextlib.suppress(ProcessLookupError):  # the end of one ends others
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not process.exists())
    assert run.wait(SOON).status is forkless.Status.FAILED


class Channel:
    def __init__(self):
        self.said = []

    def kill(self):
        self.said.append("kill")

    def abort(self):
        self.said.append("close")


class Connection:
    """Of a host that was sent the command and has not answered yet."""

    def __init__(self):
        self.channel, self.sent = Channel(), asyncio.Event()

    def is_closed(self):
        return False

    async def create_session(self, make, _command, **_):
        session = make()
        session.connection_made(self.channel)
        self.sent.set()
        await asyncio.Event().wait()


def test_a_command_that_was_sent_and_not_confirmed_is_ended_when_its_task_is(options):
    async def main():
        host, connection = connection_module.HostConnection(options().settings()), Connection()

        async def connect(_attempts):
            return connection

        host.connection = connect
        running = asyncio.ensure_future(host.run("sleep 600"))
        await connection.sent.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return connection.channel.said

    assert asyncio.run(main()) == ["kill", "close"]


class Unanswered:
    """A connection with data that its host does not read: it is closed only when it is cut."""

    def __init__(self):
        self.said, self._cut = [], asyncio.Event()

    def close(self):
        self.said.append("close")

    def abort(self):
        self.said.append("abort")
        self._cut.set()

    async def wait_closed(self):
        await self._cut.wait()


def test_a_connection_whose_host_does_not_read_is_cut(options, monkeypatch):
    monkeypatch.setattr(connection_module, "CLOSING", 0.01)

    async def main():
        host, connection = connection_module.HostConnection(options().settings()), Unanswered()
        host._connection = connection
        await asyncio.wait_for(host.close(), SOON)
        return connection.said

    assert asyncio.run(main()) == ["close", "abort"]
