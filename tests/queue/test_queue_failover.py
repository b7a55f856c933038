# SPDX-License-Identifier: GPL-3.0-or-later
"""
The server behind the address is another one, or its clock jumps: what the old server confirmed last may be missing, and times may be wrong.

A real failover (a primary that is killed, a standby that is promoted) and a real clock that jumps run with `make faults`; `make test` has
what a worker and the database's functions make of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import glob
import http.client
import json
import logging
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.cli import main, queue_view
from forkless.queue import Queue, schema, sweep
from forkless.queue import database as databases
from forkless.queue import engine as queue_engine
from forkless.queue.embedded import EmbeddedServer
from forkless.queue.errors import DatabaseError
from forkless.queue.requests import LaunchOptions
from queue_support import Database, in_make_faults, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns
ENDED = ("successful", "failed", "canceled", "lost")


def acting(acts, gate, times=3):
    """Tasks that write a line each; the one before the last waits until the gate is there."""
    act = f"- name: act\n  raw: echo {{{{ item }}}} >> {acts}\n  loop: '{{{{ range({times}) | list }}}}'"
    wait = f"- name: wait\n  raw: while [ ! -e {gate} ]; do sleep 0.1; done"
    return [act, wait, f"- name: last\n  raw: echo last >> {acts}"]


def waits(database, number):
    """Whether the database knows that the run waits at the gate."""
    return "wait" in (database.one("SELECT place FROM forkless.run WHERE id = %s", number) or "")


def copied(database):
    """Whether the standby has all that the primary has written."""
    return database.one("SELECT coalesce(max(replay_lsn) >= pg_current_wal_lsn(), false) FROM pg_stat_replication")


def cut(database):
    """End every session of forkless, as a server does that is killed."""
    database.all(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'forkless'"
    )


def lose_events(database, number):
    """What a standby may lack: the events of the last moments."""
    database.all(
        "WITH gone AS (DELETE FROM forkless.event_batch WHERE run_id = %s) "
        "UPDATE forkless.run SET attempt_counter = 0, counter = 0 WHERE id = %s",
        number,
        number,
    )


def lose_claim(database, number):
    """What a standby may lack: the fetch and the claim of the last moments, and all events."""
    lose_events(database, number)
    database.all(
        "WITH job AS (UPDATE forkless.procrastinate_jobs j SET status = 'todo', worker_id = NULL FROM forkless.run r "
        "WHERE r.id = %s AND j.id = r.queue_job) UPDATE forkless.run SET status = 'waiting', attempt = attempt - 1, "
        "worker_id = NULL, worker_name = NULL, started = NULL WHERE id = %s",
        number,
        number,
    )


@pytest.mark.parametrize("lose", [lose_events, lose_claim])
def test_a_worker_says_again_what_a_failover_lost(url, database, workers, project, tmp_path, lose):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=acting(acts, gate))
    number = launch(url, project)
    workers.start(lost_after=600)
    wait_until(lambda: waits(database, number), "the wait")
    stored = database.one("SELECT counter FROM forkless.run WHERE id = %s", number)
    with psycopg.connect(url) as connection:  # nobody else sees a state in between
        connection.execute("LOCK TABLE forkless.run, forkless.procrastinate_jobs")
        inside = Database(url)
        inside.all = lambda query, *values: connection.execute(query, values)
        lose(inside, number)
        cut(database)
    assert stored > 3
    wait_until(
        lambda: database.one("SELECT counter FROM forkless.run WHERE id = %s", number) >= stored, "the events again"
    )
    gate.touch()
    assert database.wait_for(number, *ENDED) == "successful"
    assert lines(acts) == ["0", "1", "2", "last"]
    assert database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 1
    events = database.stream(number)
    assert [event.counter for event in events] == list(range(1, len(events) + 1))
    assert [event.event for event in events].count("playbook_on_start") == 1
    assert database.one("SELECT (progress ->> 'ok')::int FROM forkless.run WHERE id = %s", number) == 3


def test_an_attempt_whose_number_another_worker_has_is_refused(url, database, project):
    """A claim that a failover lost, and another worker made: both attempts have the same number."""
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    resume = "SELECT forkless.resume(%s, %s, %s, %s, %s, '{}', 60)"
    database.one("SELECT forkless.claim(%s, %s, 1, 'first', '{}', 60)", number, job)
    lose_claim(database, number)
    database.one("SELECT forkless.claim(%s, %s, 2, 'second', '{}', 60)", number, job)
    assert database.one(resume, number, 1, job, 1, "first") is None
    assert database.one(resume, number, 1, job, 2, "second") == 0
    # One that was given up, and begins again, is not the old one's: its job is another.
    database.all("UPDATE forkless.run SET retries = 5")
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'test')", number) == "waiting"
    assert database.one(resume, number, 2, job, 2, "second") is None
    assert database.one(resume, 4711, 1, job, 2, "second") is None  # its launch itself was lost


def test_a_worker_that_a_failover_has_forgotten_takes_runs(url, database, workers, project):
    playbook(project, tasks=["- debug:"])
    workers.start(name="one")
    wait_until(lambda: database.one("SELECT count(*) FROM forkless.procrastinate_workers"), "the worker")
    # Who has started it knows that it is not stuck.
    wait_until(lambda: "INFO one waits for runs\n" in workers.log(), "a sentence in the log")
    database.all("DELETE FROM forkless.procrastinate_workers")
    database.all("DELETE FROM forkless.worker")
    assert database.wait_for(launch(url, project), *ENDED) == "successful"


def away_every_other_time(monkeypatch, owner, name, first=1):
    """Let a method of a class fail as in an outage, from its call number `first` on, every other time."""
    original, calls = getattr(owner, name), []

    async def asked(*values):
        calls.append(name)
        if len(calls) >= first and (len(calls) - first) % 2 == 0:
            raise DatabaseError("away") from psycopg.OperationalError("session is read-only")
        return await original(*values)

    monkeypatch.setattr(owner, name, asked)
    return calls


def test_who_follows_a_run_to_its_end_gets_its_result_though_the_database_is_away_then(
    url, database, project, monkeypatch, capsys
):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 60)", number, job)
    database.one("SELECT forkless.finish(%s, 1, 'failed', 2, 'said by the run', '{}')", number)
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    monkeypatch.setattr(queue_view, "_PATIENCE", 0)
    # The first comes before anything is followed: a command that cannot begin says so.
    asked = away_every_other_time(monkeypatch, Queue, "record", first=2)
    assert main(["runs", "follow", str(number)]) == 2
    assert "said by the run" in capsys.readouterr().err
    assert len(asked) >= 6

    async def wait():
        async with forkless.queue.connect(url) as queue:
            return await (await queue.run(number)).wait()

    monkeypatch.undo()
    # The run, the follower's first question and its second are answered: the one after the end is not.
    asked = away_every_other_time(monkeypatch, Queue, "record", first=4)
    assert asyncio.run(wait()).rc == 2
    assert len(asked) == 5


def test_a_run_of_the_engine_is_cancelled_though_the_database_is_away_then(monkeypatch):
    class Run:
        async def cancel(self):
            self.cancelled = True

    async def cancel():
        asked, run = asyncio.Event(), Run()
        asked.set()
        await queue_engine._cancel_when(asked, run)
        return run.cancelled

    asked = away_every_other_time(monkeypatch, Run, "cancel")
    assert asyncio.run(cancel())
    assert len(asked) == 2


# -- a real failover ----------------------------------------------------------------------------------------------


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


class Pair:
    """A primary and a standby that follows it, both on a port of this machine."""

    def __init__(self, folder):
        self.ports = (free_port(), free_port())
        self._folder = folder
        self._is_killed = False
        self.primary = EmbeddedServer(os.path.join(folder, "one"))
        self.standby = EmbeddedServer(os.path.join(folder, "two"))

    @property
    def url(self):
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"postgresql://forkless@{places}/forkless?target_session_attrs=read-write"

    def open(self):
        self.primary.open()
        data = self.primary._data
        with open(os.path.join(data, "pg_hba.conf"), "a", encoding="utf-8") as rules:
            rules.write("host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n")
        self._settings(data, f"listen_addresses = '127.0.0.1'\nport = {self.ports[0]}\n")
        self.primary._call("pg_ctl", "restart", "-D", data, "-m", "fast", "-w")
        self.standby._programs = self.primary._programs
        os.makedirs(self.standby.folder, mode=0o711)
        for path in (self.standby._socket, self.standby._data):
            self.standby._private_folder(path)
        source = f"host=127.0.0.1 port={self.ports[0]} user=forkless"
        self.primary._call("pg_basebackup", "-D", self.standby._data, "-R", "-c", "fast", "-d", source)
        with psycopg.connect(f"{source} dbname=postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE forkless")
        self._settings(
            self.standby._data, f"port = {self.ports[1]}\nunix_socket_directories = '{self.standby._socket}'\n"
        )
        self.standby._start()

    @staticmethod
    def _settings(data, text):
        with open(os.path.join(data, "postgresql.conf"), "a", encoding="utf-8") as settings:
            settings.write(text)

    def replay(self, paused):
        """With `paused`, the standby stops to follow: what the primary confirms from now on is lost with it."""
        if paused:
            self.primary._call("pg_ctl", "stop", "-D", self.standby._data, "-m", "fast", "-w")
        else:
            self.standby._start()

    def kill_primary(self):
        """All its processes at once, as with a machine that is switched off."""
        first = int(pathlib.Path(self.primary._data, "postmaster.pid").read_text().split()[0])
        os.kill(first, signal.SIGSTOP)  # it starts no other meanwhile
        children = pathlib.Path(f"/proc/{first}/task/{first}/children").read_text().split()
        self._is_killed = True
        for pid in (*children, first):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def promote(self):
        self.primary._call("pg_ctl", "promote", "-D", self.standby._data, "-w")

    def fail_over(self):
        self.kill_primary()
        self.promote()

    def close(self):
        if self._is_killed:  # its shared memory is removed when it is started again
            # The file would keep it from that where nobody waits for orphans: the process that it names is there as a zombie.
            pathlib.Path(self.primary._data, "postmaster.pid").unlink()
            log = os.path.join(self.primary._data, "start.log")
            self.primary._call("pg_ctl", "start", "-D", self.primary._data, "-w", "-l", log, check=False)
        for server in (self.primary, self.standby):
            self.primary._call("pg_ctl", "stop", "-D", server._data, "-m", "immediate", "-w", check=False)


@pytest.fixture
def pair():
    folder = tempfile.mkdtemp(prefix="forkless-pair-")
    os.chmod(folder, 0o711)
    made = Pair(folder)
    try:
        made.open()
        schema.create(made.url)
        yield made
    finally:
        made.close()
        made.primary.close()
        shutil.rmtree(folder, ignore_errors=True)


@in_make_faults
@pytest.mark.parametrize("lossy", [False, True], ids=["all was copied", "the last moments are lost"])
def test_runs_readers_and_launchers_go_on_after_a_failover(pair, workers, project, tmp_path, lossy):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    database = Database(pair.url)
    playbook(project, tasks=acting(acts, gate))
    workers._url = pair.url
    first = launch(pair.url, project)
    behind = launch(pair.url, project)  # waits for the lock of the first
    if lossy:
        # The standby has both launches, and nothing of what follows: neither the worker, nor its claim, nor events.
        wait_until(lambda: copied(database), "the copy")
        pair.replay(paused=True)
    workers.start(lost_after=600)
    wait_until(lambda: waits(database, first), "the first acts")
    # Serve's page follows with the same reader; the command prints what it reads.
    follower = subprocess.Popen(
        [sys.executable, "-m", "forkless", "runs", "follow", str(first)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ) | {"FORKLESS_DATABASE": pair.url},
    )  # fmt: skip
    try:
        while "TASK [wait]" not in follower.stdout.readline():
            pass
        if lossy:
            lost = launch(pair.url, project, lock=None, priority=-5)
            pair.kill_primary()
            pair.replay(paused=False)
            pair.promote()
        else:
            wait_until(lambda: copied(database), "the copy")
            pair.fail_over()
        later = launch(pair.url, project, lock=None)  # the same address: it finds the new server
        if lossy:
            assert later > lost, "a number that was told before is given again"
            assert database.all("SELECT id FROM forkless.run ORDER BY id") == [(first,), (behind,), (later,)]
        gate.touch()
        for number in (first, behind, later):
            assert database.wait_for(number, *ENDED) == "successful"
            events = database.stream(number)
            assert [event.counter for event in events] == list(range(1, len(events) + 1))
        assert sorted(lines(acts)) == sorted(["0", "1", "2", "last"] * 3)
        assert database.all("SELECT DISTINCT attempt FROM forkless.run") == [(1,)]
        said = follower.communicate(timeout=240)[0]
        assert follower.returncode == 0, said
        assert said.count("TASK [last]") == 1
        assert "PLAY RECAP" in said
    finally:
        gate.touch()
        follower.kill()
        follower.wait()
        follower.stdout.close()


def counters_of(line):
    """The numbers of the events in a line of the page's event stream."""
    text = line.strip()
    return [one["n"] for one in json.loads(text[6:])["events"]] if text.startswith(b'data: {"events"') else []


@in_make_faults
def test_the_page_goes_on_after_a_failover(pair, workers, project, tmp_path):
    """A reader of the page's event stream keeps its connection, and gets the rest."""
    gate = tmp_path / "gate"
    playbook(project, tasks=acting(tmp_path / "acts", gate))
    database = Database(pair.url)
    workers._url = pair.url
    workers.start(lost_after=600)
    number = launch(pair.url, project)
    log = tmp_path / "page.log"
    with open(log, "wb") as out:
        page = subprocess.Popen(
            [sys.executable, "-m", "forkless", "serve", "--port", "0"],
            stdout=out, stderr=out, env=dict(os.environ) | {"FORKLESS_DATABASE": pair.url},
        )  # fmt: skip
    try:
        address = wait_until(lambda: re.search(r"127\.0\.0\.1:(\d+)/\?token=(\S+)", log.read_text()), "the address")

        def ask(path, body=None):
            headers = {"Authorization": f"Bearer {address[2]}", "Content-Type": "application/json"}
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=30)) as client:
                client.request("GET" if body is None else "POST", path, body and json.dumps(body), headers)
                answer = client.getresponse()
                return answer.status, answer.read()

        def status():
            with contextlib.suppress(OSError):
                code, body = ask(f"/api/runs/{number}")
                return json.loads(body)["status"] if code == 200 else code
            return None

        wait_until(lambda: status() == "running", "the page")
        wait_until(lambda: waits(database, number) and copied(database), "the copy")
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=240)) as reader:
            reader.request("GET", f"/api/runs/{number}/stream", headers={"Authorization": f"Bearer {address[2]}"})
            stream = reader.getresponse()
            counters, told = [], ""
            while not counters:
                counters += counters_of(stream.readline())
            pair.fail_over()
            wait_until(lambda: status() == "running", "the page, with the new server")
            gate.touch()
            while told != b"event: end":
                told = stream.readline().strip()
                counters += counters_of(told)
        wait_until(lambda: status() == "successful", "the end of the run on the page")
        assert counters == list(range(1, database.one("SELECT counter FROM forkless.run WHERE id = %s", number) + 1))
        # What is asked of the page reaches the new server as well.
        code, body = ask(f"/api/runs/{number}/relaunch", {"failed": False})
        assert code == 201, body
        assert database.wait_for(json.loads(body)["id"], *ENDED) == "successful"
        assert lines(tmp_path / "acts") == ["0", "1", "2", "last"] * 2
        assert database.all("SELECT DISTINCT attempt FROM forkless.run") == [(1,)]
    finally:
        page.terminate()
        page.wait(timeout=240)


# -- the database's clock -----------------------------------------------------------------------------------------


def test_a_worker_seen_in_the_future_is_not_there(url, database, project):
    """It was seen before the clock was set back: a run would keep its lock for a worker that may be gone."""
    playbook(project, tasks=["- debug:"])
    database.one("SELECT forkless.register_worker('w', 'h', 1, ARRAY['site=fra'], '{}')")
    number = launch(url, project, labels=["site=fra"])
    assert database.one("SELECT queue_job IS NOT NULL FROM forkless.run WHERE id = %s", number)
    database.all("UPDATE forkless.worker SET seen = now() + interval '1 hour'")
    database.one("SELECT forkless.dispatch_due()")
    assert database.one("SELECT forkless.waits_for(%s)", number) == "no worker has the label site=fra"
    database.all("UPDATE forkless.worker SET seen = now()")
    database.one("SELECT forkless.dispatch_due()")
    assert database.one("SELECT queue_job IS NOT NULL AND holds_lock FROM forkless.run WHERE id = %s", number)


def test_a_message_does_not_wait_for_a_clock_that_was_set_back(url, database, project):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    put = (
        "INSERT INTO forkless.webhook (run_id, url, tries, next_try) VALUES (%s, 'http://x/', %s, now() + %s::interval)"
    )
    database.all(put, number, 0, "1 hour")
    assert database.one("SELECT forkless.take_webhook()")["tries"] == 1
    assert database.one("SELECT forkless.take_webhook()") is None  # in 15 s again
    database.all(put, number, 3, "50 seconds")
    assert database.one("SELECT forkless.take_webhook()") is None
    database.all("UPDATE forkless.webhook SET next_try = next_try + interval '1 hour'")
    assert {database.one("SELECT forkless.take_webhook()")["tries"] for _ in range(2)} == {2, 4}


def test_nothing_is_deleted_by_a_clock_that_differs(url, database, project, monkeypatch, caplog):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    database.one("SELECT forkless.cancel(%s, 'test')", number)
    database.all("UPDATE forkless.run SET ended = now() - interval '2 days'")
    database.one("SELECT forkless.set_retention(1, 1)")

    def look(differs):
        async def once():
            async with await databases.connect_async(url) as connection:
                await sweep.Sweep(60).once(connection)

        with monkeypatch.context() as context:
            context.setattr(sweep.time, "time", lambda now=time.time: now() + differs)
            asyncio.run(once())
        return database.one("SELECT count(*) FROM forkless.run")

    with caplog.at_level(logging.WARNING, "forkless.worker"):
        assert [look(-86400), look(86400)] == [1, 1]
    assert caplog.text.count("differ by 86400 s; no old run is deleted") == 2
    assert look(0) == 0


FAKETIME = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")


class FakeClock:
    """The clock of a server: libfaketime in its process reads by how much it is wrong."""

    def __init__(self, folder, monkeypatch):
        assert FAKETIME, "libfaketime is not installed: apt-get install libfaketime"
        self._path = os.path.join(folder, "clock")
        self.jump(0)
        os.chmod(self._path, 0o644)
        monkeypatch.setenv("LD_PRELOAD", FAKETIME[0])
        monkeypatch.setenv("FAKETIME_TIMESTAMP_FILE", self._path)
        monkeypatch.setenv("FAKETIME_NO_CACHE", "1")
        # Only the date is wrong: waits and time limits of the server go on as they are.
        monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")

    def jump(self, seconds):
        fresh = f"{self._path}.new"
        with open(fresh, "w", encoding="utf-8") as file:
            file.write(f"{seconds:+d}\n")
        os.chmod(fresh, 0o644)
        os.replace(fresh, self._path)


@in_make_faults
def test_a_database_clock_that_jumps_costs_no_run_and_launches_nothing_twice(workers, project, tmp_path, monkeypatch):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=acting(acts, gate))
    playbook(project, "quick.yml", tasks=[f"- raw: echo x >> {tmp_path / 'fired'}"])
    folder = tempfile.mkdtemp(prefix="forkless-clock-")
    os.chmod(folder, 0o711)
    server = EmbeddedServer(os.path.join(folder, "pg"))
    try:
        with monkeypatch.context() as environment:
            clock = FakeClock(folder, environment)
            server.open()
        schema.prepare_embedded(server.url)
        database = Database(server.url)

        def wrong():
            return database.one("SELECT extract(epoch FROM clock_timestamp())::float8") - time.time()

        clock.jump(7200)
        assert 7100 < wrong() < 7300, "the clock of the server is not faked"
        clock.jump(0)
        workers._url = server.url
        workers.start(lost_after=8, name="one", labels=["site=fra"])
        workers.start(lost_after=8, name="two", labels=["site=fra"])
        wait_until(lambda: database.one("SELECT count(*) FROM forkless.worker") == 2, "the workers")
        number = launch(server.url, project, labels=["site=fra"], retries=1)
        wait_until(lambda: waits(database, number), "the wait")

        async def schedule():
            async with forkless.queue.connect(server.url) as queue:
                spec = forkless.RunSpec(playbook="quick.yml", inventory="hosts.ini", cwd=project)
                await queue.add_schedule("often", "* * * * *", spec, LaunchOptions(lock=None))

        asyncio.run(schedule())
        renewals = "SELECT renewals FROM forkless.run WHERE id = %s"
        sweeps = "SELECT min(seen) FROM forkless.worker"
        launched = "SELECT count(*) FROM forkless.run WHERE schedule_id IS NOT NULL"
        for jump in (3600, 0, -3600, 0):
            clock.jump(jump)
            seen, before = database.one(renewals, number), database.one(launched)
            wait_until(lambda seen=seen: database.one(renewals, number) > seen + 4, "renewals after the jump")
            wait_until(lambda: database.one(f"SELECT ({sweeps}) BETWEEN now() - interval '9 s' AND now()"), "sweeps")
            # A due time at most a minute away: the schedule is not silent until the clock comes by again.
            wait_until(
                lambda: database.one(
                    "SELECT due BETWEEN now() - interval '60 s' AND now() + interval '61 s' FROM forkless.schedule"
                ),
                "the next time",
            )
            if jump == -3600:
                wait_until(lambda before=before: database.one(launched) > before, "a launch an hour back", seconds=150)
            other = launch(server.url, project, "quick.yml", labels=["site=fra"], lock=None)
            assert database.wait_for(other, *ENDED) == "successful"
        gate.touch()
        assert database.wait_for(number, *ENDED) == "successful"
        assert lines(acts) == ["0", "1", "2", "last"]
        assert database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 1
        twice = "SELECT count(*) - count(DISTINCT schedule_due) FROM forkless.run WHERE schedule_id IS NOT NULL"
        assert database.one(twice) == 0
        assert database.one("SELECT count(*) FROM forkless.run WHERE status IN ('lost', 'failed')") == 0
        workers.close()
    finally:
        server.close()
        shutil.rmtree(folder, ignore_errors=True)
