# SPDX-License-Identifier: GPL-3.0-or-later
"""What lies around a queue: programs that hang, a line that is slow, settings of others, a clock without a name, files of a dead server."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import types

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.core.process_tree import wait_for_end
from forkless.queue import attempt, database, dispatcher, embedded, event_batches, programs, schedules, secrets
from forkless.queue import project as projects
from forkless.queue.attempt import Attempt, AttemptPlace
from forkless.queue.embedded import EmbeddedServer, major_of
from forkless.queue.errors import DatabaseError, QueueError, QueueRequestError
from queue_support import find_programs, launch, playbook, wait_until

pytestmark = pytest.mark.spawns


# A program that waits for ever, with a child that has its output; `there` is written when both run.
HANGS = "sleep 1000 & echo $! > {there}.new; mv {there}.new {there}; wait"


def program(folder, name, script):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def ended(there):
    return wait_for_end(int(there.read_text()), 240)


def test_a_program_that_is_stopped_leaves_no_process_behind(tmp_path):
    there = tmp_path / "there"
    with pytest.raises(programs.StoppedError):
        programs.call(["/bin/sh", "-c", HANGS.format(there=there)], seconds=240, stopping=there.exists)
    assert ended(there)


def test_a_program_that_takes_too_long_leaves_no_process_behind(tmp_path, monkeypatch):
    there = tmp_path / "there"
    # Its time is over as soon as it runs. The first look at the clock tells when it began, and may come after that.
    looks = itertools.count()
    monkeypatch.setattr(
        programs,
        "time",
        types.SimpleNamespace(monotonic=lambda: 1e9 if next(looks) and there.exists() else 0.0),
        raising=True,
    )
    with pytest.raises(programs.TooSlowError, match="/bin/sh did not end within 240 s"):
        programs.call(["/bin/sh", "-c", HANGS.format(there=there)], seconds=240)
    assert ended(there)


@pytest.mark.parametrize("what", ["git", "secret"])
def test_a_run_is_cancelled_while_its_worker_waits_for_a_program(
    url, database, workers, project, tmp_path, monkeypatch, what
):
    there = tmp_path / "there"
    playbook(project, tasks=["- debug:"])
    if what == "git":
        program(tmp_path, "git", HANGS.format(there=there))
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        options = {"git": "ssh://git@nowhere/x", "commit": "a" * 40}
    else:
        options = {"secrets": {"extra_vars.token": "cmd:" + HANGS.format(there=there)}}
    workers.start()
    number = launch(url, project, **options)
    wait_until(there.exists, "the program")
    database.one("SELECT forkless.cancel(%s, %s)", number, "me")
    assert database.wait_for(number, "canceled", "failed", "successful") == "canceled"
    assert ended(there)


def test_what_programs_print_need_not_be_text(tmp_path, monkeypatch):
    program(tmp_path, "git", r"printf 'fatal: Stra\337e \374ber alles\n' >&2; exit 128")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LC_ALL", "C")
    with pytest.raises(QueueError, match="git ls-remote failed: fatal: Stra\ufffde \ufffdber alles"):
        projects.resolve_commit("https://nowhere/x", "main")
    with pytest.raises(QueueError, match="not text in UTF-8"):
        secrets.resolve(r"cmd:printf '\377'")
    assert secrets.resolve(r"cmd:printf '\303\274\n'") == "ü"


# -- the embedded server --------------------------------------------------------------------------------------------


@pytest.fixture
def folder():
    # Not below pytest's folder: as root the server runs as another user, who cannot enter that.
    made = tempfile.mkdtemp(prefix="forkless-tests-")
    os.chmod(made, 0o711)
    yield os.path.join(made, "pg")
    shutil.rmtree(made, ignore_errors=True)


def die_as(server, pid):
    """Kill the server; the number in its files is then that of another process."""
    pid_file = os.path.join(server.folder, "data", "postmaster.pid")
    with open(pid_file) as file:
        number, _, rest = file.read().partition("\n")
    os.kill(int(number), signal.SIGKILL)
    assert wait_for_end(int(number), 240)

    def refused():
        try:
            psycopg.connect(server.url.replace("/forkless?", "/postgres?"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return True
        return False

    wait_until(refused, "the end of the server")
    with open(pid_file, "w") as file:
        file.write(f"{pid}\n{rest}")


def test_a_server_starts_over_what_a_dead_one_left_and_says_so_if_it_is_of_another_version(folder, caplog, monkeypatch):
    first = EmbeddedServer(folder)
    first.open()
    stranger = subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, cwd="/",
        user=first._account.user, group=first._account.group,
        extra_groups=[] if first._account.user is not None else None,
    )  # fmt: skip
    # A dead server whose parent never waits for it, as the first process of a container.
    zombie = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        # The machine was started again, and the number is that of another program of the same user.
        for pid, sentence in ((stranger.pid, "is not the embedded"), (zombie.pid, f"process {zombie.pid} is a zombie")):
            die_as(first, pid)
            second = EmbeddedServer(folder)
            assert not second._has_process()
            caplog.clear()
            second.open()
            assert sentence in caplog.text
            psycopg.connect(second.url.replace("/forkless?", "/postgres?")).close()
            assert second._has_process()
            assert second._written_pid() not in (pid, embedded._NO_PID)
            second.close()
        # Who stops a server waits for its end, and a zombie has none.
        die_as(first, zombie.pid)
        monkeypatch.setattr(embedded, "_PATIENCE", 5)
        first.close()
        assert first._written_pid() == embedded._NO_PID
    finally:
        stranger.stdin.close()
        stranger.wait()
        first.close()
        zombie.wait()
    with open(os.path.join(folder, "data", "PG_VERSION"), "w") as file:
        file.write("9\n")
    with pytest.raises(DatabaseError, match=r"was made by PostgreSQL 9, and \d+ is installed, which cannot read it"):
        EmbeddedServer(folder).open()


def test_programs_of_the_version_that_made_the_database_are_preferred(tmp_path, monkeypatch):
    program(tmp_path, "postgres", "echo 'postgres (PostgreSQL) 42.1 (Debian)'")
    assert major_of(str(tmp_path)) == "42"
    assert major_of(str(tmp_path / "nowhere")) == ""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_programs("42") == os.path.realpath(tmp_path)
    assert find_programs() != os.path.realpath(tmp_path)


# -- time zones ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (":Europe/Berlin", "Europe/Berlin"),
        ("", "UTC"),
        ("UTC+3", "Etc/GMT+3"),
        ("<+03>-3", "Etc/GMT-3"),
        ("EST5", "Etc/GMT+5"),
        ("UTC0", "UTC"),
    ],
)
def test_the_time_zone_of_the_machine_has_a_name(monkeypatch, given, name):
    monkeypatch.setenv("TZ", given)
    assert schedules.local_zone() == name


def test_a_time_zone_that_is_a_file_is_found_by_its_place_or_its_content(monkeypatch, tmp_path):
    zone, copy, link = tmp_path / "zoneinfo/Europe/Berlin", tmp_path / "localtime", tmp_path / "link"
    zone.parent.mkdir(parents=True)
    zone.touch()
    link.symlink_to(zone)
    copy.write_bytes(schedules._content_of("Asia/Kathmandu"))
    for given, name in ((f":{link}", "Europe/Berlin"), (str(copy), "Asia/Kathmandu")):
        monkeypatch.setenv("TZ", given)
        found = schedules.local_zone()
        assert schedules._content_of(found) == schedules._content_of(name)
    monkeypatch.delenv("TZ")
    monkeypatch.setattr(schedules, "_LOCAL_TIME", str(link))
    assert schedules.local_zone() == "Europe/Berlin"
    monkeypatch.setattr(schedules, "_LOCAL_TIME", str(tmp_path / "nowhere"))
    assert schedules.local_zone() == "UTC"


@pytest.mark.parametrize("given", ["CET-1CEST,M3.5.0,M10.5.0/3", "<+0530>-5:30", "Nowhere/City", "/nowhere"])
def test_a_time_zone_without_a_name_is_refused_and_never_taken_for_utc(monkeypatch, given):
    monkeypatch.setenv("TZ", given)
    with pytest.raises(QueueRequestError, match="Europe/Berlin"):
        schedules.local_zone()


# -- the line to the database ----------------------------------------------------------------------------------------


class SlowLine(Attempt):
    """An attempt whose statements take as long as their bytes need, by a clock of the test's own."""

    def __init__(self, monkeypatch, sizes, bytes_per_second):
        self.now, self.rate, self.accepted = 0.0, bytes_per_second, []
        monkeypatch.setattr(attempt, "clock", lambda: self.now)
        monkeypatch.setattr("forkless.queue.lease.clock", lambda: self.now)
        super().__init__(AttemptPlace("", "", ""), {"id": 1, "attempt": 1, "lost_after": 120}, 0.0)
        lines = [b"x" * size for size in sizes]
        self._run = types.SimpleNamespace(
            _events=types.SimpleNamespace(lines=lambda first, last: lines[first:last], part=lambda *_: [])
        )
        monkeypatch.setattr(event_batches, "pack", lambda lines: (b"".join(lines), sum(map(len, lines))))

    def _append(self, _connection, first, last, packed, size, limit):
        took = 0.1 + size / self.rate
        self.now += min(took, limit)
        if took > limit:
            raise psycopg.OperationalError("cut")
        if packed is not None:
            self.accepted.append((first, last))
        return "go on"

    def send_all(self):
        for _ in range(200):
            try:
                if not self._send_batch(None):
                    return
            except psycopg.OperationalError:
                pass
            assert not self.lease.expired(), "the lease was lost"
        pytest.fail("the events were not sent")

    def end(self):
        os.close(self._wake_in)
        os.close(self._wake_out)


@pytest.mark.parametrize("sizes", [[20_000] * 200, [100] * 3000, [100, 1_800_000, 100], [3_600_000]])
def test_events_pass_a_slow_line_in_smaller_batches_and_the_lease_is_kept(monkeypatch, sizes):
    slow = SlowLine(monkeypatch, sizes, bytes_per_second=50_000)
    try:
        slow.send_all()
        # Each event once, in order.
        assert [one for first, last in slow.accepted for one in range(first, last + 1)] == list(
            range(1, len(sizes) + 1)
        )
        before = slow._most_bytes
        slow.rate = 1e9
        for _ in range(10):
            slow._stored = slow._seen = 0
            slow.send_all()
        assert slow._most_bytes == event_batches.MOST_BYTES >= before  # a line that is fast again gets full batches
    finally:
        slow.end()


def test_a_cancellation_that_comes_with_the_answer_leaves_no_connection_in_an_unknown_state(url):
    used = []

    async def use(pool, steps=None):
        async with pool.connection() as connection:
            used.append(connection)
            await connection.execute("SELECT 1")
            if steps is None:
                raise asyncio.CancelledError  # the answer is there, and so is the cancellation

    async def go():
        pool = database.ConnectionPool(url, most=1)
        with pytest.raises(asyncio.CancelledError):
            await use(pool)
        assert used[0].closed
        for steps in range(60):
            one = asyncio.ensure_future(use(pool, steps))
            for _ in range(steps):
                await asyncio.sleep(0)
            one.cancel()
            await asyncio.gather(one, return_exceptions=True)
        await use(pool, 1)
        await use(pool, 1)
        assert used[-1] is used[-2]  # one that was not cancelled is used again
        await pool.close()
        assert all(connection.closed for connection in used)

    asyncio.run(go())


def test_styles_and_encodings_of_the_database_change_nothing(url, database, workers, project):
    playbook(project, tasks=["- name: Straße\n  debug: msg=für"])
    name = database.one("SELECT current_database()")
    for setting in ("DateStyle = 'German, DMY'", "IntervalStyle = 'sql_standard'", "client_encoding = 'LATIN1'"):
        database.all(f"ALTER DATABASE {name} SET {setting}")
    workers.start()

    async def go():
        async with forkless.queue.connect(url) as queue:
            spec = forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=project)
            await queue.add_schedule("nightly", "0 3 * * *", spec, time_zone="Europe/Berlin")
            run = await queue.launch(spec)
            result = await run.wait()
            return result, await run.record(), await queue.schedules(), await queue.workers()

    result, record, planned, present = asyncio.run(go())
    assert result.ok
    assert any("für" in event.stdout for event in result.events)
    assert isinstance(record.created, dt.datetime)
    assert isinstance(planned[0].due, dt.datetime)
    assert isinstance(present[0].seen, dt.datetime)

    async def ask():
        async with dispatcher.make_app(url, None).open_async() as app:
            return await app.connector.execute_query_one_async(
                "SELECT now() AS time, interval '-1 day 2 hours' AS span"
            )

    # A worker's connection for its jobs as well: procrastinate may read times at any moment.
    assert isinstance(asyncio.run(ask())["time"], dt.datetime)


@pytest.mark.parametrize(
    ("said", "outage"),
    [
        ('connection failed: FATAL:  password authentication failed for user "me"', False),
        ("connection failed: fe_sendauth: no password supplied", False),
        ('connection failed: FATAL:  database "runs" does not exist', False),
        ("connection failed: Connection refused", True),
        ("connection failed: FATAL:  the database system is starting up", True),
    ],
)
def test_nobody_waits_for_a_database_that_refuses_the_login(said, outage):
    asked = []

    async def ask():
        asked.append(said)
        if len(asked) == 3:
            return "back"
        raise DatabaseError(said) from psycopg.OperationalError(said)

    if outage:
        assert asyncio.run(database.ask_until_back(ask)) == "back"
    else:
        with pytest.raises(DatabaseError):
            asyncio.run(database.ask_until_back(ask))
        assert len(asked) == 1
