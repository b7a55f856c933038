# SPDX-License-Identifier: GPL-3.0-or-later
"""
Faults, for real: workers and launchers killed or stopped at every statement, PostgreSQL away, a network that swallows everything.

`make test` runs a slice, `make faults` all. No verdict depends on how long something takes: a fault is caused when the database or a log says
that the moment has come, and what is judged is what each attempt did, not when.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.queue import database as databases
from forkless.queue import schema
from forkless.queue.embedded import EmbeddedServer
from queue_faults import Proxy, held
from queue_support import Database, in_make_faults, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns

MANY = bool(os.environ.get("FORKLESS_ROUNDS"))
ENDED = ("successful", "failed", "canceled", "lost")


def rarely(*values):
    """Values of a parameter that only `make faults` tries."""
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=in_make_faults) for value in values]


def acting(acts, gate=None, times=1):
    """Tasks that write a line `ATTEMPT NUMBER` each; with a gate, the last of them waits until that file is there."""
    begin = "- set_fact: me={{ 999999999 | random }}"
    act = f"- name: act\n  raw: echo {{{{ me }}}} {{{{ item }}}} >> {acts}\n  loop: '{{{{ range({times}) | list }}}}'"
    wait = [f"- name: wait\n  raw: while [ ! -e {gate} ]; do sleep 0.1; done"] if gate else []
    return [begin, act, *wait, f"- name: last\n  raw: echo {{{{ me }}}} last >> {acts}"]


def attempts(acts):
    """What was done, by attempt, in the order of their first acts; fails if two acted at once, or one did something twice."""
    done = [tuple(line.split()) for line in lines(acts)]
    assert len(done) == len(set(done)), done
    groups = [(me, [what for _, what in group]) for me, group in itertools.groupby(done, key=lambda act: act[0])]
    assert len({me for me, _ in groups}) == len(groups), f"attempts acted at the same time: {done}"
    return [what for _, what in groups]


def check_stream(database, number):
    """Every event once, in order, and each attempt's own numbers without a gap."""
    events = database.stream(number)
    assert [event.counter for event in events] == list(range(1, len(events) + 1))
    for attempt in {
        row[0] for row in database.all("SELECT attempt FROM forkless.event_batch WHERE run_id = %s", number)
    }:
        parts = database.all(
            "SELECT first, last FROM forkless.event_batch WHERE run_id = %s AND attempt = %s ORDER BY last",
            number,
            attempt,
        )
        assert [first for first, _ in parts] == [1, *(last + 1 for _, last in parts[:-1])]
    return events


# -- workers, at every statement ----------------------------------------------------------------------------------

STEPS = ["procrastinate_fetch_job_v2", "claim", "append_events", "finish", "procrastinate_finish_job_v1"]
FAULTS = (signal.SIGKILL, signal.SIGSTOP)
OFTEN = [
    ("procrastinate_fetch_job_v2", True, signal.SIGSTOP),
    ("claim", True, signal.SIGSTOP),
    ("finish", False, signal.SIGKILL),
]


@pytest.mark.parametrize(
    ("step", "happens", "fault"),
    [
        *OFTEN,
        *rarely(*(case for case in itertools.product(STEPS, (True, False), FAULTS) if case not in OFTEN)),
    ],
)
def test_a_worker_that_stops_at_any_statement_costs_at_most_its_attempt(
    url, database, workers, project, tmp_path, step, happens, fault
):
    """`happens`: the statement is carried out, and the worker never heard of it; otherwise it never reached the database."""
    acts = tmp_path / "acts"
    playbook(project, tasks=acting(acts))
    number = launch(url, project, retries=1)
    with held(url, step) as hold:
        victim = workers.start(lost_after=4, name="victim")
        hold.wait_for_caller()
        os.kill(victim.pid, fault)
        hold.release() if happens else hold.drop_statement()
    workers.start(lost_after=4, name="heir")
    final = wait_until(
        lambda: (found := database.status(number)) in ENDED and found, f"the end of the run, stopped at {step}"
    )
    assert final == "successful"
    before = lines(acts)
    if fault == signal.SIGSTOP:
        os.kill(victim.pid, signal.SIGCONT)
        victim.send_signal(signal.SIGTERM)  # it finishes what it may and leaves
        assert victim.wait(timeout=240) is not None
    assert lines(acts) == before
    assert attempts(acts)[-1] == ["0", "last"]
    attempt = database.one("SELECT attempt FROM forkless.run WHERE id = %s", number)
    assert len(attempts(acts)) <= attempt
    check_stream(database, number)
    # Neither a job nor a lock is left behind.
    assert database.wait_for(launch(url, project), *ENDED) == "successful"
    assert database.one("SELECT count(*) FROM forkless.run WHERE holds_lock") == 0


def test_two_workers_of_the_same_name_are_two(url, database, workers, project, tmp_path):
    gate = tmp_path / "gate"
    numbers = []
    for place in range(2):
        playbook(project, tasks=acting(tmp_path / f"acts{place}", gate))
        numbers.append(launch(url, project, lock=None))
    pair = [workers.start(lost_after=600, name="same") for _ in range(2)]
    pids = (
        "SELECT w.pid, r.id FROM forkless.run r JOIN forkless.worker w ON w.id = r.worker_id WHERE r.status = 'running'"
    )
    owners = dict(wait_until(lambda: len(found := database.all(pids)) == 2 and found, "both to be taken"))
    pair[0].kill()
    lost, kept = owners[pair[0].pid], owners[pair[1].pid]
    database.expire(lost)
    assert database.wait_for(lost, *ENDED) == "lost"  # found by the other, which goes on with its own
    gate.touch()
    assert database.wait_for(kept, *ENDED) == "successful"
    assert attempts(tmp_path / f"acts{numbers.index(kept)}") == [["0", "last"]]


# -- launchers, at every statement --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "happens"),
    [
        ("launch", True),
        ("launch", False),
        *rarely(*itertools.product(["worker_key", "keep_bundle", "put_bundle"], (True, False))),
    ],
)
def test_a_launcher_that_is_killed_has_launched_all_or_nothing(
    url, database, workers, project, tmp_path, step, happens
):
    workers.make_key(url)
    (project / "hosts.ini").write_text("h1\nh2\nh3\n[all:vars]\nansible_connection=local\n")
    playbook(project, tasks=[f"- raw: echo {{{{ inventory_hostname }}}} >> {tmp_path / 'acts'}"])
    with held(url, step) as hold:
        launcher = subprocess.Popen(
            [sys.executable, "-m", "forkless", "launch", "site.yml", "-i", "hosts.ini", "-e", "a=1", "--slices", "3"],
            cwd=project, env=dict(os.environ) | {"FORKLESS_DATABASE": url},
        )  # fmt: skip
        try:
            hold.wait_for_caller()
        finally:
            launcher.kill()
            launcher.wait()
        hold.release() if happens else hold.drop_statement()
        # The statement of a killed client goes on in the database; a launch takes a lock that shows when it is over.
        there = 1 if step == "launch" and happens else 0
        wait_until(
            lambda: database.one("SELECT count(*) FROM forkless.run WHERE parent_id IS NULL") == there, "the outcome"
        )
    assert database.one("SELECT count(*) FROM forkless.run WHERE parent_id IS NOT NULL") == 3 * there
    assert database.one("SELECT count(*) FROM forkless.procrastinate_jobs") == 3 * there
    if not MANY:
        return
    number = launch(url, project, spec={"extra_vars": {"a": 1}}, slices=3)
    workers.start()
    assert database.wait_for(number, *ENDED) == "successful"
    assert sorted(lines(tmp_path / "acts")) == sorted(["h1", "h2", "h3"] * (there + 1))


# -- the database -------------------------------------------------------------------------------------------------


def control(server, *arguments):
    server._call("pg_ctl", *arguments, "-D", server._data, "-w")


class _Fault:
    """A fault of the server that keeps a worker from writing, and how it ends."""

    def __init__(self, server, url):
        self.server, self.url = server, url

    def admin(self, *statements):
        address = self.server.url.replace("@/forkless?", "@/postgres?")
        with psycopg.connect(address, autocommit=True, options="-c default_transaction_read_only=off") as connection:
            for statement in statements:
                connection.execute(statement)


class Restarted(_Fault):
    sign = "run "

    def begin(self):
        control(self.server, "restart", "-m", "immediate")

    def end(self):
        pass


class Away(_Fault):
    sign = "cannot be used"

    def begin(self):
        control(self.server, "stop", "-m", "immediate")

    def end(self):
        self.server._start()


class AwayForAMinute(Away):
    """Longer than each statement, connection attempt and pause between two of them may take."""

    def begin(self):
        super().begin()
        self._until = time.monotonic() + 60

    def end(self):
        wait_until(lambda: time.monotonic() > self._until, "the end of the minute")
        super().end()


class ReadOnly(_Fault):
    sign = "read-only transaction"

    def begin(self):
        self.admin("ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")

    def end(self):
        self.admin("ALTER SYSTEM RESET default_transaction_read_only", "SELECT pg_reload_conf()")


class Exhausted(_Fault):
    sign = "too many clients"

    def begin(self):
        self.taken = []
        address = self.server.url.replace("@/forkless?", "@/postgres?")
        first = psycopg.connect(address, autocommit=True)
        self.taken.append(first)
        while True:
            try:
                self.taken.append(psycopg.connect(address))
            except psycopg.OperationalError as err:
                if "too many clients" not in str(err):
                    raise
                others = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'forkless'"
                name = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
                found = first.execute(others, (name,)).fetchall()
                if not found:
                    return
                for (pid,) in found:  # the worker must make a new one, and there is none
                    first.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def end(self):
        for one in self.taken:
            one.close()


@pytest.mark.parametrize("kind", [Restarted, *rarely(Away, AwayForAMinute, ReadOnly, Exhausted)])
def test_an_outage_shorter_than_the_lease_costs_no_run_and_no_event(
    server, url, database, workers, project, tmp_path, kind
):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=acting(acts, gate, times=3))
    number, behind = launch(url, project), launch(url, project)
    workers.start(lost_after=600)
    wait_until(lambda: len(lines(acts)) == 3, "the first acts")
    fault = kind(server, url)
    fault.begin()
    try:
        gate.touch()  # the play ends during the fault; its result is kept until it can be written
        wait_until(lambda: len(lines(acts)) == 4, "the last act")
        wait_until(lambda: fault.sign in workers.log(0), "what the worker says about the fault")
    finally:
        fault.end()
    for one in (number, behind):
        assert database.wait_for(one, *ENDED) == "successful"
        check_stream(database, one)
    assert attempts(acts) == [["0", "1", "2", "last"]] * 2
    assert database.all("SELECT DISTINCT attempt FROM forkless.run") == [(1,)]


OURS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forkless'"
LISTENING = f"SELECT pid {OURS} AND query LIKE 'LISTEN%%procrastinate%%'"


@pytest.mark.parametrize("kind", [ReadOnly, *rarely(Away, AwayForAMinute, Exhausted)])
def test_an_idle_worker_takes_runs_again_after_an_outage(server, url, database, workers, project, kind):
    """It is told of new runs again, and not only asks from time to time; and it looks for lost runs again."""
    playbook(project, tasks=["- debug:"])
    lost = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", lost)
    database.one("SELECT forkless.claim(%s, %s, 4711, 'gone', '{}', 600)", lost, job)
    workers.start()
    wait_until(lambda: database.all(LISTENING), "the worker")
    fault = kind(server, url)
    fault.begin()
    try:
        wait_until(lambda: "no run can be fetched" in workers.log(0), "what the worker says about the fault")
    finally:
        fault.end()
    assert database.wait_for(launch(url, project, lock=None), *ENDED) == "successful"
    # procrastinate's own listener ends without a word in an outage, and its worker goes on asking.
    wait_until(lambda: database.all(LISTENING), "a listener again")
    database.expire(lost)
    assert database.wait_for(lost, *ENDED) == "lost"


def test_a_worker_whose_connections_are_cut_listens_sweeps_and_fetches_again(url, database, workers, project):
    playbook(project, tasks=["- debug:"])
    lost, behind = launch(url, project), launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", lost)
    database.one("SELECT forkless.claim(%s, %s, 4711, 'gone', '{}', 600)", lost, job)
    workers.start(lost_after=600)
    before = wait_until(lambda: database.all(LISTENING), "the listener")
    seen = "SELECT max(seen) FROM forkless.worker"
    at = wait_until(lambda: database.one(seen), "the first tick")
    wait_until(lambda: database.one(seen) > at, "another tick")
    database.all(f"SELECT pg_terminate_backend(pid, 10000) {OURS}")
    wait_until(lambda: (now := database.all(LISTENING)) and now != before, "a listener again")
    database.expire(lost)
    assert database.wait_for(lost, *ENDED) == "lost"
    assert database.wait_for(behind, *ENDED) == "successful"


STUBBORN = """\
import os
from ansible.plugins.lookup import LookupBase

class LookupModule(LookupBase):
    def run(self, terms, variables=None, **options):
        os.close(os.open(terms[0], os.O_RDONLY))  # until somebody opens the other end: no interrupt reaches a thread in here
        return []
"""


@in_make_faults
@pytest.mark.parametrize("stops", [True, False])
def test_an_outage_longer_than_the_lease_stops_the_run_before_anybody_begins_it_again(
    server, url, database, workers, project, tmp_path, stops
):
    """If a thread of the run does not stop, or not in time on a busy machine, its process ends itself and is replaced."""
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    (project / "lookup_plugins").mkdir()
    (project / "lookup_plugins/stubborn.py").write_text(STUBBORN)
    os.mkfifo(f"{gate}.pipe")
    tasks = acting(acts, gate, times=3)
    if not stops:
        tasks[-2] = f"- debug: msg={{{{ lookup('stubborn', '{gate}.pipe') }}}}"
    playbook(project, tasks=tasks)
    number = launch(url, project, retries=1)
    log = workers.start_supervised("--lost-after", "4")
    wait_until(lambda: len(lines(acts)) == 3, "the first acts")
    away = Away(server, url)
    away.begin()
    try:
        wait_until(lambda: "no renewal was confirmed in time" in workers.log(log), "the end of the lease")
        if not stops:
            wait_until(lambda: "a worker process ended with 75; another" in workers.log(log), "the end of the process")
    finally:
        away.end()
    wait_until(lambda: database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 2, "a second attempt")
    gate.touch()
    pipe = os.open(f"{gate}.pipe", os.O_RDWR)  # whoever reads goes on
    try:
        assert database.wait_for(number, *ENDED) == "successful"
    finally:
        os.close(pipe)
    assert attempts(acts) == [["0", "1", "2"], ["0", "1", "2", "last"]]
    check_stream(database, number)


@in_make_faults
def test_a_full_disk_costs_no_run_and_no_event(workers, project, tmp_path):
    """The server's disk is full while a run writes events and ends."""
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    large = (
        "- raw: head -c 3000000 /dev/urandom | base64"  # more than the server has room for in files that it has already
    )
    playbook(project, tasks=[*acting(acts, gate), *[large] * 3])
    folder = tempfile.mkdtemp(prefix="forkless-disk-")
    assert os.geteuid() == 0, "this test mounts a disk, which only root may do"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m,mode=711", "none", folder], check=True)
    try:
        with EmbeddedServer(os.path.join(folder, "pg")) as server:
            schema.prepare_embedded(server.url)
            database = Database(server.url)
            number = launch(server.url, project)
            workers._url = server.url
            workers.start(lost_after=600)
            wait_until(lambda: lines(acts), "the first act")
            filler = os.path.join(folder, "filler")
            with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1 << 16)):
                    pass
            gate.touch()
            wait_until(lambda: f"run {number}: the database" in workers.log(0), "what the worker says about the fault")
            os.unlink(filler)
            if not server._runs():  # PostgreSQL ends if there is no room for its log
                server._start()
            assert database.wait_for(number, *ENDED) == "successful"
            assert attempts(acts) == [["0", "last"]]
            check_stream(database, number)
            workers.close()
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
        os.rmdir(folder)


CLOCK = """\
import os, time
_real = time.time
time.time = lambda: _real() + float(open({path!r}).read() or 0)
"""


def test_a_wall_clock_that_jumps_changes_nothing(url, database, workers, project, tmp_path, monkeypatch):
    acts, gate, clock = tmp_path / "acts", tmp_path / "gate", tmp_path / "clock"
    playbook(project, tasks=acting(acts, gate))
    clock.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(CLOCK.format(path=str(clock)))
    number = launch(url, project)
    workers.start(lost_after=4, name="honest")
    wait_until(lambda: lines(acts), "the first act")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    other = launch(url, project, lock=None)
    workers.start(lost_after=4, name="jumping")
    wait_until(lambda: len(lines(acts)) == 2, "the other's first act")
    renewals = "SELECT min(renewals) FROM forkless.run WHERE status = 'running'"
    for jump in ("31536000", "-31536000"):
        clock.write_text(jump)
        seen = database.one(renewals)
        wait_until(lambda seen=seen: (database.one(renewals) or 0) > seen + 3, "renewals after the jump")
    gate.touch()
    for one in (number, other):
        assert database.wait_for(one, *ENDED) == "successful"
    assert database.all("SELECT DISTINCT attempt FROM forkless.run") == [(1,)]


# -- the network --------------------------------------------------------------------------------------------------

BOTH = ("to the database", "to the worker")


@pytest.fixture
def proxy(server):
    made = Proxy(os.path.join(server._socket, ".s.PGSQL.5432"))
    yield made
    made.close()


@pytest.mark.parametrize("directions", [BOTH, *rarely((BOTH[:1],), (BOTH[1:],))])
def test_a_worker_that_is_cut_off_stops_and_another_takes_over(
    server, url, database, workers, project, tmp_path, proxy, directions
):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=acting(acts, gate, times=3))
    number = launch(url, project, retries=1)
    workers._url = url.partition("?")[0].replace("@/", f"@127.0.0.1:{proxy.port}/")
    workers.start(lost_after=8, name="cut off")  # a shorter lease may end on a busy machine before the network is cut
    wait_until(lambda: len(lines(acts)) == 3, "the first acts")
    proxy.cut = set(directions)
    wait_until(lambda: "no renewal was confirmed in time" in workers.log(0), "the end of the lease")
    workers._url = url
    workers.start(lost_after=4, name="heir")
    wait_until(lambda: database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 2, "a second attempt")
    proxy.restore()
    gate.touch()
    assert database.wait_for(number, *ENDED) == "successful"
    assert attempts(acts) == [["0", "1", "2"], ["0", "1", "2", "last"]]
    assert database.one("SELECT worker_name FROM forkless.run WHERE id = %s", number) == "heir"
    check_stream(database, number)
    # The one that was cut off takes runs again.
    workers.started[1].send_signal(signal.SIGTERM)
    workers.started[1].wait(timeout=240)
    second = launch(url, project)
    first = workers.started[0]
    wait_until(lambda: database.status(second) in ENDED or first.poll() is not None, "the second run")
    # If its run left a thread behind, it has ended; a service manager starts it again.
    if database.status(second) not in ENDED:
        workers.start(lost_after=8, name="again")
    assert database.wait_for(second, *ENDED) == "successful"


@in_make_faults
def test_a_cancel_that_its_worker_cannot_hear_ends_the_run_with_its_lease(
    server, url, database, workers, project, tmp_path, proxy
):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=acting(acts, gate, times=3))
    number = launch(url, project, retries=1)
    workers._url = url.partition("?")[0].replace("@/", f"@127.0.0.1:{proxy.port}/")
    cut_off = workers.start(lost_after=8, name="cut off")
    wait_until(lambda: len(lines(acts)) == 3, "the first acts")
    proxy.cut = set(BOTH)
    assert database.one("SELECT forkless.cancel(%s, 'me')", number) == "running"
    workers._url = url
    workers.start(lost_after=4, name="other")
    assert database.wait_for(number, *ENDED) == "canceled"
    wait_until(lambda: "no renewal was confirmed in time" in workers.log(0), "the end of the lease")
    proxy.restore()
    gate.touch()
    cut_off.send_signal(signal.SIGTERM)
    cut_off.wait(timeout=240)
    assert attempts(acts) == [["0", "1", "2"]]  # it acted no more, and nobody has begun the run again
    assert database.one("SELECT status, attempt FROM forkless.run WHERE id = %s", number) == ("canceled", 1)
    check_stream(database, number)
    assert database.wait_for(launch(url, project), *ENDED) == "successful"


def test_a_statement_whose_answer_never_comes_is_cut(url, proxy):
    with databases.connect(url.partition("?")[0].replace("@/", f"@127.0.0.1:{proxy.port}/")) as connection:
        proxy.cut = set(BOTH)  # packets are confirmed, so TCP itself never gives up
        with pytest.raises(psycopg.OperationalError), databases.limited(connection, 0.5):
            connection.execute("SELECT 1")


# -- all at once --------------------------------------------------------------------------------------------------


@pytest.mark.timeout(3600 if MANY else 300)
def test_many_runs_over_workers_that_are_killed_each_end_once(url, database, workers, project, tmp_path):
    """Every run ends in one state, none begins a second time, the target saw each at most once, and all its events are there."""
    acts = tmp_path / "acts"
    many, crew_size, kills = (1000, 20, 5) if MANY else (12, 3, 1)
    playbook(project, tasks=[f"- raw: echo {{{{ number }}}} >> {acts}"])
    workers.make_key(url)

    async def launch_all():
        async with forkless.queue.connect(url) as queue:
            for number in range(many):
                spec = forkless.RunSpec(
                    playbook="site.yml", inventory="hosts.ini", cwd=project, extra_vars={"number": number}
                )
                await queue.launch(spec, lock=None)

    asyncio.run(launch_all())
    crew = [workers.start(lost_after=10) for _ in range(crew_size)]
    dice = random.Random(7)
    over = "SELECT count(*) FROM forkless.run WHERE ended IS NOT NULL"
    for _ in range(kills):
        ended = database.one(over)
        wait_until(lambda ended=ended: database.one(over) > ended + 2, "progress", seconds=600)
        crew.pop(dice.randrange(len(crew))).kill()
        crew.append(workers.start(lost_after=10))
    wait_until(lambda: database.one(over) == many, "the end of all", seconds=3000 if MANY else 180)
    states = dict(database.all("SELECT status, count(*) FROM forkless.run GROUP BY status"))
    assert set(states) <= {"successful", "lost"}
    assert states.get("lost", 0) <= kills
    seen = [int(line) for line in lines(acts)]
    assert len(seen) == len(set(seen))
    assert len(seen) >= states["successful"]
    assert database.all("SELECT DISTINCT attempt FROM forkless.run") == [(1,)]
    gaps = (
        "SELECT count(*) FROM (SELECT first, lag(last, 1, 0::bigint) OVER (PARTITION BY run_id, attempt ORDER BY last) AS before "
        "FROM forkless.event_batch) AS batches WHERE first <> before + 1"
    )
    assert database.one(gaps) == 0
    short = (
        "SELECT count(*) FROM forkless.run r WHERE r.status = 'successful' AND r.counter <> "
        "(SELECT max(last) FROM forkless.event_batch b WHERE b.run_id = r.id)"
    )
    assert database.one(short) == 0
    assert database.one("SELECT count(*) FROM forkless.procrastinate_jobs WHERE status = 'todo'") == 0
