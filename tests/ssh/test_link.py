# SPDX-License-Identifier: GPL-3.0-or-later
"""One connection, many channels: commands, files, loss and cancellation, against real sshds."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import os
import pathlib
import re
import socket
import threading
import time
import types

import pytest

import sshd_targets
from forkless import ssh
from forkless.ssh.command import Command

pytestmark = [pytest.mark.xdist_group("sshd"), pytest.mark.spawns]


def logins(target):
    return len(re.findall(r"Accepted \w+ for", target.log()))


def until(true, seconds=240):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_a_command_gives_its_status_and_both_streams(link):
    done = link().execute("echo out; echo err >&2; exit 3")
    assert (done.rc, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


def test_input_reaches_the_command_and_ends(link):
    assert link().execute("cat; echo .", input_=b"\x00\xff\n").stdout == b"\x00\xff\n.\n"


@pytest.mark.parametrize("become", [False, True])
def test_a_command_that_ended_before_it_was_told_of_its_start_is_not_executed_again(
    sshd, link, spot, monkeypatch, become
):
    """A busy controller reads "it runs", "it ended with 3" and "its channel is closed" in one go. There is input that nobody reads."""
    made = Command.connection_made

    def busy():
        until(lambda: (spot / "ran").exists() and (spot / "ran").read_text().endswith("\n"))
        shell = (spot / "ran").read_text().split()[0]
        until(lambda: not os.path.exists(f"/proc/{shell}"))
        time.sleep(0.3)  # until the host has sent the rest; if it needs longer, there is nothing to be seen

    def connection_made(command, channel):
        made(command, channel)
        asyncio.get_running_loop().call_soon(busy)

    one = link()
    one.execute("true")
    before = logins(sshd)
    monkeypatch.setattr(Command, "connection_made", connection_made)
    plugin = types.SimpleNamespace(
        name="sudo", success="granted", check_password_prompt=lambda line: line == b"Password: ",
        check_success=lambda line: False, check_missing_password=lambda line: False, check_incorrect_password=lambda line: False,
    )  # fmt: skip
    asks = {"become": plugin, "expects_prompt": True, "password": b"secret"} if become else {}
    done = one.execute(f"printf 'Password: '; echo $$ >> {spot}/ran; exit 3", input_=b"x" * 10, **asks)
    assert done.rc == 3
    assert len((spot / "ran").read_text().split()) == 1
    monkeypatch.undo()
    one.execute("true")
    assert logins(sshd) == before  # what others do over the connection goes on


@pytest.mark.parametrize("cut", ["by us", "by the network"])
def test_a_command_whose_start_was_not_confirmed_when_the_connection_was_cut_is_not_executed_again(
    link, spot, monkeypatch, caplog, cut
):
    made = Command.connection_made

    def busy(channel):
        until((spot / "ran").exists)
        connection = channel.get_connection()
        connection.abort() if cut == "by us" else connection._transport.abort()

    def connection_made(command, channel):
        made(command, channel)
        asyncio.get_running_loop().call_soon(busy, channel)

    one = link()
    one.execute("true")
    monkeypatch.setattr(Command, "connection_made", connection_made)
    with pytest.raises(ssh.ConnectionLostError, match="lost as the command began") as caught:
        one.execute(f"echo x >> {spot}/ran", attempts=3)
    assert caught.value.started
    monkeypatch.undo()
    assert one.execute(f"cat {spot}/ran").stdout == b"x\n"
    gc.collect()
    assert not [one.getMessage() for one in caplog.records if "never retrieved" in one.getMessage()]


def test_megabytes_go_both_ways_unharmed(link):
    blob = os.urandom(3_000_000)
    assert link().execute("cat", input_=blob).stdout == blob


def test_a_command_that_is_killed_says_by_what(link):
    done = link().execute("kill -KILL $$")
    assert done.rc == 137


def test_all_tasks_of_a_run_share_one_connection(sshd, options):
    before = logins(sshd)
    with ssh.kept("run-1"):
        for _ in range(3):
            one = ssh.Link(options().settings())
            one.execute("true")
            one.close()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            # A worker's thread is told its run by the engine; here by hand.
            def work(number):
                ssh.RUN.set("run-1")
                one = ssh.Link(options().settings())
                try:
                    return one.execute(f"echo {number}").stdout
                finally:
                    one.close()

            assert sorted(pool.map(work, range(24))) == sorted(b"%d\n" % n for n in range(24))
    assert logins(sshd) - before == 1


def test_two_runs_do_not_share_a_connection(sshd, options):
    before = logins(sshd)
    with ssh.kept("run-a"):
        ssh.Link(options().settings()).execute("true")
        with ssh.kept("run-b"):
            ssh.Link(options().settings()).execute("true")
    assert logins(sshd) - before == 2


def test_outside_a_run_the_connection_and_its_thread_end_with_the_last_link(options):
    one, two = ssh.Link(options().settings()), ssh.Link(options().settings())
    one.execute("true")
    two.execute("true")
    one.close()
    assert any(thread.name == "forkless-ssh" for thread in threading.enumerate())
    two.close()
    assert not any(thread.name == "forkless-ssh" for thread in threading.enumerate())


def test_a_host_that_allows_two_channels_gets_two_at_a_time(sshds, options, spot):
    own = "127.0.0.1" if not sshds.root else sshds.hosts[0].address
    target = sshd_targets.start_sshd(
        sshds.folder, "narrow", own, sshds.user, own_world=sshds.root, more="MaxSessions 2"
    )
    try:
        with ssh.kept("narrow"), concurrent.futures.ThreadPoolExecutor(6) as pool:

            def work(number):
                ssh.RUN.set("narrow")
                return ssh.Link(options(target).settings()).execute(f"sleep 0.2; echo {number}").stdout

            assert sorted(pool.map(work, range(6))) == [b"%d\n" % n for n in range(6)]
    finally:
        sshd_targets.stop(target)


def test_a_kept_connection_that_died_is_opened_again(sshd, options):
    with ssh.kept("run-2"):
        one = ssh.Link(options().settings())
        parent = int(one.execute("echo $PPID").stdout)
        os.kill(parent, 9)
        until(lambda: not pathlib.Path(f"/proc/{parent}").exists())
        assert one.execute("echo back").stdout == b"back\n"


def test_a_command_that_may_have_run_is_never_run_twice(link, spot):
    count = spot / "count"
    with pytest.raises(ssh.ConnectionLostError) as caught:
        link().execute(f"echo x >> {count}; chmod 666 {count}; kill -9 $PPID; sleep 5", attempts=3)
    assert caught.value.started
    assert count.read_text() == "x\n"


def test_reset_ends_the_connection_and_the_next_command_opens_another(sshd, options):
    before = logins(sshd)
    with ssh.kept("run-3"):
        one = ssh.Link(options().settings())
        one.execute("true")
        ssh.Link(options().settings()).reset()
        assert one.execute("echo again").stdout == b"again\n"
    assert logins(sshd) - before == 2


class Stop(BaseException):
    pass


def test_an_exception_sent_to_the_waiting_thread_stops_the_command_on_the_host(link, spot):
    pid_file = spot / "pid"
    seen = []

    def work():
        one = link()
        try:
            one.execute(f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600")
        except Stop:
            seen.append("stopped")

    thread = threading.Thread(target=work)
    thread.start()
    until(pid_file.exists)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
    thread.join(240)
    assert seen == ["stopped"]
    until(lambda: not pathlib.Path(f"/proc/{pid_file.read_text().strip()}").exists())


def test_the_end_of_a_run_ends_what_still_runs_on_its_connections(options):
    errors = []
    with ssh.kept("run-4"):
        started = threading.Event()

        def work():
            ssh.RUN.set("run-4")
            one = ssh.Link(options().settings())
            one.execute("true")
            started.set()
            try:
                one.execute("sleep 600")
            except ssh.SSHError as err:
                errors.append(err)
            one.close()

        thread = threading.Thread(target=work)
        thread.start()
        assert started.wait(240)
    thread.join(240)
    assert len(errors) == 1


@pytest.mark.parametrize("method", ["sftp", "scp", "piped", "smart"])
def test_files_go_there_and_come_back(link, spot, method):
    blob = os.urandom(700_000)
    source, back = spot / "source", spot / "back"
    source.write_bytes(blob)
    there = f"{spot}/there 'quoted' ü"
    one = link()
    one.put(str(source), there, method=method)
    one.fetch(there, str(back), method=method)
    assert back.read_bytes() == blob


def test_sftp_keeps_the_mode(link, spot):
    source = spot / "script"
    source.write_text("#!/bin/sh\n")
    source.chmod(0o750)
    link().put(str(source), f"{spot}/there", method="sftp")
    assert (spot / "there").stat().st_mode & 0o777 == 0o750


def test_without_sftp_files_go_through_a_pipe(sshds, options, spot):
    own = "127.0.0.1" if not sshds.root else sshds.hosts[0].address
    target = sshd_targets.start_sshd(
        sshds.folder, "nosftp", own, sshds.user, own_world=sshds.root, more="Subsystem sftp /bin/false"
    )
    try:
        with ssh.kept("nosftp"):
            one = ssh.Link(options(target).settings())
            (spot / "a").write_text("by pipe")
            for _ in range(2):  # the second time it knows
                one.put(str(spot / "a"), f"{spot}/b")
                one.fetch(f"{spot}/b", str(spot / "c"))
            assert (spot / "c").read_text() == "by pipe"
            with pytest.raises(ssh.SSHError, match="has no SFTP"):
                one.put(str(spot / "a"), f"{spot}/b", method="sftp")
    finally:
        sshd_targets.stop(target)


@pytest.mark.parametrize("method", ["sftp", "scp", "piped"])
def test_a_place_that_cannot_be_written_is_named(link, spot, method):
    (spot / "a").write_text("x")
    with pytest.raises(FileNotFoundError, match="/nowhere/at/all"):
        link().put(str(spot / "a"), "/nowhere/at/all", method=method)


def test_a_host_that_is_not_there_is_tried_again_as_often_as_asked_and_then_named(options):
    port = sshd_targets.free_port()
    one = ssh.Link(options(host="127.0.0.1", port=port).settings())
    with pytest.raises(ssh.SSHError, match=f"127.0.0.1:{port} cannot be reached"):
        one.connect(attempts=2)
    one.close()


def test_a_host_that_does_not_answer_is_given_up_in_time(options):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        one = ssh.Link(options(host="127.0.0.1", port=silent.getsockname()[1], timeout=1).settings())
        with pytest.raises(ssh.SSHError, match="within 1 s"):
            one.connect()
        one.close()


def test_a_host_that_falls_silent_is_noticed_by_keepalive(options):
    """The session's own sshd is stopped, not ended: the connection stays up and nobody answers on it."""
    one = ssh.Link(options(args="-o ServerAliveInterval=1 -o ServerAliveCountMax=2").settings())
    with pytest.raises(ssh.ConnectionLostError, match="was lost"):
        one.execute("kill -STOP $PPID; sleep 600")
    one.close()


class Doorman:
    """A port in front of a host that turns away the first `refused` who come, and lets the others through."""

    def __init__(self, target, refused):
        self.target, self.refused, self.came = target, refused, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.sockets = [self.listener]
        self.threads = [threading.Thread(target=self.stand)]
        self.threads[0].start()

    def stand(self):
        while True:
            caller, _ = self.listener.accept()
            if self.target is None:
                caller.close()
                return
            self.came += 1
            if self.came <= self.refused:
                caller.close()
                continue
            host = socket.create_connection((self.target.address, self.target.port))
            self.sockets += [caller, host]
            for source, sink in ((caller, host), (host, caller)):
                self.threads.append(threading.Thread(target=self.carry, args=(source, sink)))
                self.threads[-1].start()

    def carry(self, source, sink):
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def go_home(self):
        self.target = None
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join(240)
        for one in self.sockets:
            one.close()


def test_a_connection_that_is_refused_is_tried_again_and_the_command_runs_once(sshd, options, spot):
    door = Doorman(sshd, refused=1)
    try:
        one = ssh.Link(options(host="127.0.0.1", port=door.port, check_host_keys=False).settings())
        assert one.execute(f"echo x >> {spot}/count; cat {spot}/count", attempts=3).stdout == b"x\n"
        one.close()
        assert door.came == 2
    finally:
        door.go_home()


def test_without_retries_one_refusal_is_enough(sshd, options):
    door = Doorman(sshd, refused=1)
    try:
        one = ssh.Link(options(host="127.0.0.1", port=door.port, check_host_keys=False).settings())
        with pytest.raises(ssh.SSHError):
            one.connect()
        one.close()
        assert door.came == 1
    finally:
        door.go_home()


@pytest.mark.parametrize(
    ("name", "kind"), [("session_started", ssh.ConnectionLostError), ("anything_else", AttributeError)]
)
def test_a_channel_that_is_closed_as_its_command_begins_is_a_lost_one(link, monkeypatch, name, kind):
    """asyncssh stumbles over its own clean-up when a connection ends between the host's answer and the next line."""
    from asyncssh import SSHClientConnection

    one = link()
    one.execute("true")

    async def stumble(self, *args, **kwargs):
        raise AttributeError(name=name)

    monkeypatch.setattr(SSHClientConnection, "create_session", stumble)
    with pytest.raises(kind) as caught:
        one.execute("true")
    assert kind is AttributeError or caught.value.started
