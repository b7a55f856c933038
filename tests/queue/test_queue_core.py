# SPDX-License-Identifier: GPL-3.0-or-later
"""The central promises: a run is carried out once, its events arrive whole, and a worker that was given up acts no more."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.core.events import Event
from forkless.queue import event_batches, lease, requests
from forkless.queue import project as projects
from forkless.queue.attempt import Attempt, AttemptPlace
from forkless.queue.supervisor import Supervisor
from forkless.queue.worker import WorkerOptions
from forkless.runs.run import Run
from queue_support import acting, in_make_faults, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns


def test_a_run_is_carried_out_and_its_events_come_back_in_order(url, database, workers, project):
    playbook(project, tasks=["- name: say\n  debug: msg=hello-from-afar", "- name: fact\n  set_fact: a=1"])
    number = launch(url, project)
    workers.start()
    database.wait_for(number, "successful")
    events = database.stream(number)
    assert [event.counter for event in events] == list(range(1, len(events) + 1))
    assert events[0].event == "playbook_on_start"
    assert events[-1].event == "playbook_on_stats"
    assert any("hello-from-afar" in event.stdout for event in events)
    assert database.all("SELECT host, ok, failed FROM forkless.host WHERE run_id = %s", number) == [("web1", 2, 0)]


def test_a_killed_worker_leaves_a_lost_run_that_says_where_it_was(url, database, workers, project, tmp_path):
    playbook(project, tasks=[acting(tmp_path / "acts", times=1000)])
    number, behind = launch(url, project), launch(url, project)
    victim = workers.start(lost_after=600)
    # The place names the task first, and the host when the task begins there.
    where = "SELECT place LIKE '%% on web1' FROM forkless.run WHERE id = %s"
    wait_until(lambda: database.one(where, number), "the task's begin on the host")
    victim.kill()
    database.expire(number)
    playbook(project, tasks=["- debug:"])  # the second run has its own copy of the project, with the first playbook
    workers.start(lost_after=4)
    assert database.wait_for(number, "lost", "successful", "failed") == "lost"
    sentence, attempt = database.one("SELECT sentence, attempt FROM forkless.run WHERE id = %s", number)
    assert "gave no sign of life" in sentence
    assert "task 'act' on web1" in sentence
    assert attempt == 1  # it was not begun again
    database.wait_for(behind, "running")  # the lock was handed on
    assert database.one("SELECT count(*) FROM forkless.run WHERE holds_lock") == 1


@in_make_faults
def test_a_lost_run_begins_again_only_if_it_was_launched_with_retries(url, database, workers, project, tmp_path):
    playbook(project, tasks=[acting(tmp_path / "acts", times=30)])
    number = launch(url, project, retries=1)
    victim = workers.start(lost_after=600)
    wait_until(lambda: len(lines(tmp_path / "acts")) > 2, "the first acts")
    victim.kill()
    database.expire(number)
    workers.start(lost_after=4)
    assert database.wait_for(number, "lost", "successful", "failed") == "successful"
    assert database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 2
    events = database.stream(number)
    assert [event.counter for event in events] == list(range(1, len(events) + 1))  # one stream over both attempts
    assert sum(event.event == "playbook_on_stats" for event in events) == 1


def test_a_worker_that_was_stopped_longer_than_its_lease_acts_no_more_and_is_refused(
    url, database, workers, project, tmp_path
):
    acts = tmp_path / "acts"
    playbook(project, tasks=[acting(acts, times=80)])
    number = launch(url, project, retries=1)
    zombie = workers.start(lost_after=4, name="zombie")
    wait_until(lambda: len(lines(acts)) > 2, "the first acts")
    os.killpg(zombie.pid, signal.SIGSTOP)
    os.kill(zombie.pid, signal.SIGSTOP)
    workers.start(lost_after=4, name="heir")
    wait_until(
        lambda: database.one("SELECT attempt FROM forkless.run WHERE id = %s", number) == 2, "the second attempt"
    )
    first = {line.split()[1] for line in lines(acts)}
    wait_until(lambda: {line.split()[1] for line in lines(acts)} - first, "the heir's first act")
    stored = database.one("SELECT count(*) FROM forkless.event_batch WHERE run_id = %s AND attempt = 1", number)
    before = len([line for line in lines(acts) if line.split()[1] in first])
    os.killpg(zombie.pid, signal.SIGCONT)
    os.kill(zombie.pid, signal.SIGCONT)
    wait_until(
        lambda: "was given up; stopping it" in workers.log(0) or "stopping it" in workers.log(0), "the zombie's insight"
    )
    database.wait_for(number, "successful")
    assert database.one("SELECT worker_name FROM forkless.run WHERE id = %s", number) == "heir"
    assert database.one("SELECT count(*) FROM forkless.event_batch WHERE run_id = %s AND attempt = 1", number) == stored
    # What the kernel had of the zombie's last command may still be written; it begins no other.
    assert len([line for line in lines(acts) if line.split()[1] in first]) - before <= 1


def test_the_lease_is_looked_at_before_each_task(project, tmp_path):
    """A worker that was stopped, and goes on, begins no task before its watch has seen what the time is."""
    playbook(project, tasks=[f"- raw: echo {number} >> {tmp_path / 'acts'}" for number in range(3)])
    run = Run(forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=project), "threads")
    run._stop.expired = (tmp_path / "acts").exists
    run._begin()
    assert run.wait().status == "canceled"
    assert lines(tmp_path / "acts") == ["0"]


class Unwatched(Attempt):
    """An attempt whose watch sees nothing: only the look before each task is left."""

    def _watch(self):
        self._over.wait()


def test_an_attempt_whose_lease_has_ended_begins_no_task_before_its_watch_has_seen_it(url, database, project, tmp_path):
    acts = tmp_path / "acts"
    playbook(project, tasks=[f"- raw: echo {number} >> {acts}" for number in range(3)])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    row = database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 600)", number, job)
    attempt = Unwatched(AttemptPlace(url, str(tmp_path / "work"), ""), row, lease.clock())
    attempt.lease.expired = acts.exists
    assert attempt.carry_out() == "given up"
    assert lines(acts) == ["0"]
    assert database.status(number) == "lost"
    assert "heard nothing from the database" in database.one("SELECT sentence FROM forkless.run WHERE id = %s", number)


@in_make_faults
def test_the_lease_counts_the_time_that_the_machine_sleeps():
    """In a namespace whose clocks differ as after an hour of sleep: CLOCK_MONOTONIC does not count it."""
    told = "import time; from forkless.queue.lease import clock; print(clock() - time.monotonic())"
    slept = ["unshare", "--time", "--fork", "--boottime", "3600", sys.executable, "-c", told]
    done = subprocess.run(slept, capture_output=True, text=True, timeout=120, check=False)
    if "unshare: " in done.stderr:
        pytest.skip(f"a namespace of clocks needs root on Linux 5.6: {done.stderr}")
    assert float(done.stdout) == pytest.approx(lease.clock() - time.monotonic() + 3600, abs=60), done.stderr


def test_a_batch_of_a_given_up_attempt_never_gets_in(url, database, project):
    """Three writers against take-overs: after `give_up` has returned, the old attempt stores nothing."""
    playbook(project, tasks=["- debug:"])
    number = launch(url, project, retries=100_000, lock=None)
    late = []

    def claim(connection):
        job = connection.execute("SELECT queue_job FROM forkless.run WHERE id = %s", (number,)).fetchone()[0]
        return connection.execute("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", (number, job)).fetchone()[0][
            "attempt"
        ]

    current = [0]
    over = threading.Event()

    def write():
        with psycopg.connect(url, autocommit=True) as connection:
            while not over.is_set():
                attempt = current[0]
                last = connection.execute(
                    "SELECT attempt_counter FROM forkless.run WHERE id = %s", (number,)
                ).fetchone()[0]
                try:
                    connection.execute(
                        "SELECT forkless.append_events(%s, %s, %s, %s, 'x', 1, NULL, NULL)",
                        (number, attempt, last + 1, last + 1),
                    )
                except psycopg.errors.DataException:
                    continue  # another writer was first

    with psycopg.connect(url, autocommit=True) as connection:
        current[0] = claim(connection)
        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(100):
                old = current[0]
                connection.execute("SELECT forkless.give_up(%s, %s, NULL, 'test')", (number, old))
                count = "SELECT count(*) FROM forkless.event_batch WHERE run_id = %s AND attempt = %s"
                stored = connection.execute(count, (number, old)).fetchone()[0]
                current[0] = claim(connection)
                connection.execute("SELECT pg_sleep(0.01)")
                late.append(connection.execute(count, (number, old)).fetchone()[0] - stored)
        finally:
            over.set()
            for writer in writers:
                writer.join()
    assert sum(late) == 0
    assert database.one("SELECT count(*) FROM forkless.event_batch WHERE run_id = %s", number) > 50  # they did write


def test_the_result_of_an_attempt_that_was_given_up_is_refused(url, database, project):
    playbook(project, tasks=["- debug:"])
    number, behind = launch(url, project, retries=1), launch(url, project)
    recap = json.dumps(
        {"web1": dict.fromkeys(("ok", "changed", "dark", "failures", "skipped", "rescued", "ignored"), 1)}
    )

    def claim():
        job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
        return database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)["attempt"]

    def finish(attempt, status, rc):
        return database.one("SELECT forkless.finish(%s, %s, %s, %s, '', %s::jsonb)", number, attempt, status, rc, recap)

    assert claim() == 1
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'test')", number) == "waiting"
    assert finish(1, "successful", 0) == "refused"
    assert claim() == 2
    # While the next attempt is under way, the old one neither ends the run nor gives it up.
    assert finish(1, "successful", 0) == "refused"
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'late')", number) == "refused"
    told = "SELECT status, attempt, holds_lock FROM forkless.run WHERE id = %s"
    assert database.one(told, number) == ("running", 2, True)
    assert database.one("SELECT count(*) FROM forkless.host") == 0
    assert finish(2, "failed", 2) == "ok"
    assert finish(2, "failed", 2) == "ok"  # the answer was lost
    assert [finish(2, "successful", 0), finish(1, "failed", 2)] == ["refused", "refused"]
    assert database.one(told, number) == ("failed", 2, False)
    assert database.one(told, behind) == ("waiting", 0, True)
    assert database.one("SELECT count(*) FROM forkless.host") == 1


def test_the_same_batch_twice_is_stored_once_and_a_gap_is_refused(url, database, project):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)
    append = "SELECT forkless.append_events(%s, 1, %s, %s, 'x', 1, NULL, NULL)"
    assert database.one(append, number, 1, 3) == "ok"
    assert database.one(append, number, 1, 3) == "ok"  # the answer was lost
    with pytest.raises(psycopg.errors.DataException):
        database.one(append, number, 5, 6)
    assert database.all("SELECT first, last, root_last FROM forkless.event_batch") == [(1, 3, 3)]


def test_a_claim_is_refused_unless_the_job_is_the_runs_current_one(url, database, project):
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    assert database.one("SELECT forkless.requeue(%s, %s)", number, job)  # its worker died between fetch and claim
    assert database.one("SELECT forkless.claim(%s, %s, 1, 'late', '{}', 5)", number, job) is None
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    assert database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)["attempt"] == 1
    assert database.one("SELECT forkless.claim(%s, %s, 2, 'other', '{}', 5)", number, job) is None
    # The same worker asks again because it got no answer: the same attempt.
    assert database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 5)", number, job)["attempt"] == 1


@in_make_faults
def test_many_runs_over_several_workers_each_run_once(url, database, workers, project, tmp_path):
    acts = tmp_path / "acts"
    playbook(project, tasks=[f"- raw: echo {{{{ number }}}} >> {acts}"])
    workers.start(name="a")
    workers.start(name="b")
    workers.make_key(url)
    numbers = [launch(url, project, spec={"extra_vars": {"number": k}}, lock=None) for k in range(12)]
    for number in numbers:
        assert database.wait_for(number, "successful", "failed", "lost") == "successful"
    assert sorted(map(int, lines(acts))) == list(range(12))
    assert database.one("SELECT count(*) FROM forkless.run WHERE attempt <> 1") == 0


def test_runs_on_the_same_inventory_wait_for_each_other_unless_told_otherwise(url, database, project):
    playbook(project, tasks=["- debug:"])
    first, second = launch(url, project), launch(url, project, priority=0)
    urgent = launch(url, project, priority=5)
    free = launch(url, project, lock=None)
    job = "SELECT queue_job IS NOT NULL FROM forkless.run WHERE id = %s"
    assert [database.one(job, number) for number in (first, second, urgent, free)] == [True, False, False, True]

    async def reasons():
        async with forkless.queue.connect(url) as queue:
            return [await queue.waits_for(number) for number in (first, second)]

    assert asyncio.run(reasons()) == [None, f'run {first} has the lock "inventory hosts.ini of project"']
    database.one("SELECT forkless.cancel(%s, 'me')", first)
    assert [database.one(job, number) for number in (second, urgent)] == [False, True]  # the higher priority is first
    database.one("SELECT forkless.cancel(%s, 'me')", urgent)
    assert database.one(job, second)


def test_runs_with_one_lock_name_wait_for_each_other_whatever_their_inventory_is(url, database, project):
    playbook(project, tasks=["- debug:"])
    other = {"inventory": "web1,"}
    first, second = launch(url, project, lock="deploy"), launch(url, project, spec=other, lock="deploy")
    apart = launch(url, project, lock="backup")
    job = "SELECT queue_job IS NOT NULL FROM forkless.run WHERE id = %s"
    assert [database.one(job, number) for number in (first, second, apart)] == [True, False, True]
    assert database.one("SELECT forkless.waits_for(%s)", second) == f'run {first} has the lock "deploy"'
    database.one("SELECT forkless.cancel(%s, 'me')", first)
    assert database.one(job, second)


def test_cancel_ends_a_waiting_run_at_once_and_a_running_one_within_seconds(url, database, workers, project, tmp_path):
    acts = tmp_path / "acts"
    playbook(project, tasks=[f"- raw: sleep 600 & echo $$ $! >> {acts}; wait"])
    number, waiting = launch(url, project), launch(url, project)

    async def cancel(which):
        async with forkless.queue.connect(url) as queue:
            return await queue.cancel(which, by="me")

    assert asyncio.run(cancel(waiting)) == "canceled"
    workers.start()
    wait_until(lambda: lines(acts), "the task's begin")
    asyncio.run(cancel(number))
    assert database.wait_for(number, "canceled", "failed") == "canceled"
    for pid in lines(acts)[0].split():  # the shell, and what it has started
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"), f"the end of {pid}")
    with pytest.raises(forkless.queue.UnknownRunError, match="there is no run 4711"):
        asyncio.run(cancel(4711))


def test_a_cancelled_run_whose_worker_is_gone_is_canceled_and_never_begins_again(url, database, project):
    """The worker is cut off and cannot hear of it: the run ends with its lease, and its retries are not used."""
    playbook(project, tasks=["- debug:"])
    number, behind = launch(url, project, retries=5), launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, 1, 'cut off', '{}', 60)", number, job)
    assert database.one("SELECT forkless.cancel(%s, 'me')", number) == "running"
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'its worker is gone')", number) == "canceled"
    assert database.one("SELECT rc, attempt FROM forkless.run WHERE id = %s", number) == (254, 1)
    assert database.one("SELECT holds_lock FROM forkless.run WHERE id = %s", behind)


def test_a_job_uses_nothing_of_procrastinate_that_blocks_or_begins_twice(url, database, project):
    """
    Its lock is blocked by a later job of the same lock (#1599), its queueing lock by a retry (#1543, #1446), and its periodic jobs and its own
    sweep stall (#1408): a job has a queue, a priority and the number of its run, whatever was asked for.
    """
    playbook(project, tasks=["- debug:"])
    database.one("SELECT forkless.register_worker('w', 'h', 1, '{db}', '{}')")
    later = launch(url, project, at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1), lock="later")
    given_up = launch(url, project, retries=1, lock="mine")
    lost_job = launch(url, project, lock=None, labels=["db"], priority=3)
    jobs = "SELECT queue_job FROM forkless.run WHERE id = %s"
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 60)", given_up, database.one(jobs, given_up))
    assert database.one("SELECT forkless.give_up(%s, 1, NULL, 'test')", given_up) == "waiting"
    assert database.one("SELECT forkless.requeue(%s, %s)", lost_job, database.one(jobs, lost_job))
    database.all("UPDATE forkless.run SET not_before = now() WHERE id = %s", later)
    database.one("SELECT forkless.dispatch_due()")
    queued = database.all("SELECT args, priority FROM forkless.procrastinate_jobs ORDER BY args ->> 'run'")
    assert queued == [({"run": later}, 0), ({"run": given_up}, 0), ({"run": lost_job}, 3)]
    used = (
        "SELECT count(*) FROM forkless.procrastinate_jobs WHERE lock IS NOT NULL OR queueing_lock IS NOT NULL "
        "OR scheduled_at IS NOT NULL OR task_name <> 'forkless.run'"
    )
    assert database.one(used) == 0
    assert database.one("SELECT count(*) FROM forkless.procrastinate_periodic_defers") == 0


def test_a_follower_gets_every_event_once_while_they_come(url, database, workers, project):
    playbook(project, tasks=["- raw: sleep 0.3\n  loop: '{{ range(5) | list }}'", "- debug: msg=end"])
    workers.start()

    async def follow():
        async with forkless.queue.connect(url) as queue:
            spec = forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=project)
            run = await queue.launch(spec)

            async def read():
                return [event.counter async for event in run.events()]

            both = await asyncio.gather(read(), read(), run.wait())
            return *both, await run.record()

    one, other, result, record = asyncio.run(follow())
    assert one == other == list(range(1, record.counter + 1))
    assert result.ok
    assert result.hosts["web1"]["ok"] == 2


def test_a_reader_whose_statement_is_cut_goes_on_with_the_next_event(url, database, project):
    """What a restart with `-m immediate` or a failover does to a statement that is under way."""
    playbook(project, tasks=["- debug:"])
    number = launch(url, project)
    job = database.one("SELECT queue_job FROM forkless.run WHERE id = %s", number)
    database.one("SELECT forkless.claim(%s, %s, 1, 'w', '{}', 600)", number, job)

    def append(at):
        event = Event(event="verbose", uuid=str(at), counter=at, stdout=f"line {at}")
        packed, size = event_batches.pack([json.dumps(event.as_dict()).encode() + b"\n"])
        stored = "SELECT forkless.append_events(%s, 1, %s, %s, %s, %s, NULL, NULL)"
        database.one(stored, number, at, at, packed, size)

    append(1)
    waiting = (
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'forkless' AND wait_event_type = 'Lock'"
    )

    def cut(read_on):
        with psycopg.connect(url) as connection:
            connection.execute("LOCK TABLE forkless.run, forkless.event_batch IN ACCESS EXCLUSIVE MODE")
            read_on()
            wait_until(lambda: database.all(waiting), "a statement that waits")
        append(2)
        database.one("SELECT forkless.finish(%s, 1, 'successful', 0, '', '{}')", number)

    async def read():
        loop, seen, reads_on = asyncio.get_running_loop(), [], asyncio.Event()
        async with forkless.queue.connect(url) as queue:
            async for event in queue.follow(number):
                seen.append(event.stdout)
                if len(seen) == 1:
                    cutting = asyncio.create_task(
                        asyncio.to_thread(cut, lambda: loop.call_soon_threadsafe(reads_on.set))
                    )
                    await reads_on.wait()  # then the reader asks again, and its statement waits for the lock
            await cutting
        return seen

    assert asyncio.run(asyncio.wait_for(read(), 240)) == ["line 1", "line 2"]


def test_secrets_are_in_no_table(url, database, workers, project, tmp_path):
    playbook(
        project, tasks=[f"- raw: test '{{{{ token }}}}' = tr0ub4dor && echo yes >> {tmp_path / 'acts'}\n  no_log: true"]
    )
    with pytest.raises(forkless.queue.QueueRequestError, match="this queue has none yet"):
        launch(url, project, spec={"extra_vars": {"token": "tr0ub4dor"}})
    assert database.one("SELECT count(*) FROM forkless.run") == 0
    workers.make_key(url)
    number = launch(url, project, spec={"extra_vars": {"token": "tr0ub4dor"}})
    workers.start()
    database.wait_for(number, "successful")
    assert lines(tmp_path / "acts") == ["yes"]
    again = asyncio.run(_relaunch(url, number))
    database.wait_for(again, "successful")  # the sealed value goes with it
    tables = [
        row[0]
        for row in database.all("SELECT table_name FROM information_schema.tables WHERE table_schema = 'forkless'")
    ]
    for table in tables:
        assert "tr0ub4dor" not in str(database.all(f"SELECT * FROM forkless.{table}"))
    assert all("tr0ub4dor" not in str(event) for event in database.stream(number))
    # A sealed value that is moved to another run cannot be opened.
    database.all("UPDATE forkless.run SET origin = gen_random_uuid() WHERE id = %s", number)
    moved = asyncio.run(_relaunch(url, number))
    assert database.wait_for(moved, "failed", "successful") == "failed"
    assert "cannot be opened" in database.one("SELECT sentence FROM forkless.run WHERE id = %s", moved)


async def _relaunch(url, number):
    async with forkless.queue.connect(url) as queue:
        return (await queue.relaunch(number)).number


def test_names_that_the_database_cannot_store_and_a_bad_webhook_stop_no_worker(url, database, workers, project):
    """A NUL in the name of a task; a receiver whose address no HTTP client takes."""
    playbook(project, tasks=['- name: "a\\0b"\n  debug:'])
    first = launch(url, project, webhook="http://127.0.0.1:abc/x")
    workers.start(lost_after=4)
    assert database.wait_for(first, "successful", "failed", "lost") == "successful"
    wait_until(lambda: database.one("SELECT max(tries) FROM forkless.webhook"), "the first try of the message")
    seen = database.one("SELECT max(seen) FROM forkless.worker")
    wait_until(lambda: database.one("SELECT max(seen) FROM forkless.worker") > seen, "another tick of the worker")
    assert database.wait_for(launch(url, project), "successful", "failed", "lost") == "successful"


def test_a_play_does_not_see_the_address_of_the_database_and_a_process_ends_after_its_runs(
    url, database, workers, project, monkeypatch
):
    monkeypatch.setenv("FORKLESS_DATABASE", url)
    playbook(
        project,
        tasks=[
            "- debug: msg=seen-{{ lookup('env', 'FORKLESS_DATABASE') }}{{ lookup('env', 'FORKLESS_WORKER_DATABASE') }}."
        ],
    )
    number = launch(url, project)
    worker = Supervisor(
        url, WorkerOptions(folder=str(project.parent / "work"), key_path=str(project.parent / "key"), runs=1), 1
    )
    ended = threading.Thread(target=worker.run)
    ended.start()
    try:
        database.wait_for(number, "successful")
        database.wait_for(again := launch(url, project), "successful")
    finally:
        worker.stop()
        ended.join()
    # One run for each process: what a run leaves behind in one is gone with it.
    process = "SELECT worker_id FROM forkless.run WHERE id = %s"
    assert database.one(process, number) != database.one(process, again)
    assert any("seen-." in event.stdout for event in database.stream(number))


def test_a_file_that_a_password_was_read_from_does_not_travel(url, database, project, monkeypatch):
    playbook(project, tasks=["- debug:"])
    (project / "vault.pass").write_text("hunter2")
    (project / "other.txt").write_text("travels")
    from forkless.cli import queue_launch
    from forkless.cli.commands import launch as command

    monkeypatch.chdir(project)
    asked = command.parser().parse_args(["site.yml", "-i", "hosts.ini", "--vault-password-file", "vault.pass"])
    prepared = requests.prepare(queue_launch.spec_of(asked), queue_launch.options_of(asked))
    target = project.parent / "unpacked"
    projects.unpack(prepared.bundle.content, prepared.bundle.sha256, str(target))
    assert (target / "other.txt").exists()
    assert not (target / "vault.pass").exists()
