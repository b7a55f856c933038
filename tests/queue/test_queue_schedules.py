# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedules: every due time launches once, whoever looks; the clocks' changes, times that were missed, runs that overlap."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.queue import QueueRequestError, schedules
from queue_support import playbook, wait_until


def add(url, folder, name="nightly", cron="0 3 * * *", **more):
    async def go():
        async with forkless.queue.connect(url) as queue:
            spec = forkless.RunSpec(playbook="site.yml", inventory="hosts.ini", cwd=folder)
            return await queue.add_schedule(name, cron, spec, **more)

    return asyncio.run(go())


def tick(url):
    async def go():
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await schedules.fire_due(connection)

    asyncio.run(go())


def test_a_due_time_launches_once_however_many_workers_look(url, database, project):
    playbook(project, tasks=["- debug:"])
    add(url, project, if_running="queue")
    number = database.one("SELECT id FROM forkless.schedule")
    launched = []

    def fire():
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT forkless.fire_schedule(%s, %s, %s)", (number, due, due + dt.timedelta(days=1))
            ).fetchone()
            launched.append(row[0])

    for _ in range(5):
        due = database.one("UPDATE forkless.schedule SET due = now() - interval '1 s' RETURNING due")
        threads = [threading.Thread(target=fire) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([run for run in launched if run is not None]) == 5
    assert database.one("SELECT count(*) FROM forkless.run") == 5
    assert database.one("SELECT last_run FROM forkless.schedule") in launched


@pytest.mark.spawns
def test_a_worker_launches_what_is_due_and_carries_it_out(url, database, workers, project):
    playbook(project, tasks=["- debug:"])
    add(url, project)
    database.all("UPDATE forkless.schedule SET due = now() - interval '1 s'")
    workers.start()
    number = wait_until(lambda: database.all("SELECT id FROM forkless.run") or None, "the launch")[0][0]
    assert database.wait_for(number, "successful", "failed") == "successful"
    assert database.one("SELECT created_by FROM forkless.run WHERE id = %s", number) == "schedule nightly"
    assert database.one("SELECT due > now() FROM forkless.schedule")
    assert database.one("SELECT count(*) FROM forkless.run") == 1


def test_a_time_that_was_missed_and_a_run_that_goes_on_are_left_out_and_say_so(url, database, project):
    playbook(project, tasks=["- debug:"])
    add(url, project)
    fire = "SELECT forkless.fire_schedule(%s, %s, now() + interval '1 day')"
    number = database.one("SELECT id FROM forkless.schedule")
    due = database.one("UPDATE forkless.schedule SET due = now() - interval '11 minutes' RETURNING due")
    assert database.one(fire, number, due) is None
    assert "more than 10 minutes late" in database.one("SELECT note FROM forkless.schedule")
    due = database.one("UPDATE forkless.schedule SET due = now() RETURNING due")
    assert database.one(fire, number, due) is not None
    due = database.one("UPDATE forkless.schedule SET due = now() RETURNING due")
    assert database.one(fire, number, due) is None
    assert "had not ended" in database.one("SELECT note FROM forkless.schedule")
    assert database.one("SELECT count(*) FROM forkless.run") == 1


def test_half_past_two_happens_once_when_the_clocks_change():
    def times(start, many=3):
        after = dt.datetime.fromisoformat(start)
        found = []
        for _ in range(many):
            after = schedules.next_time("30 2 * * *", "Europe/Berlin", after)
            found.append(after.astimezone(dt.UTC).strftime("%d %H:%M"))
        return found

    assert times("2026-10-24T12:00+02:00") == [
        "25 00:30",
        "26 01:30",
        "27 01:30",
    ]  # once in the night that has it twice
    # In the night that has no half past two it is moved to three o'clock.
    assert times("2026-03-28T12:00+01:00") == ["29 01:00", "30 00:30", "31 00:30"]


def test_a_due_time_that_a_wrong_clock_has_set_is_set_back(url, database, project):
    """The database's clock was a year ahead and is right again: the schedule does not wait for a year."""
    playbook(project, tasks=["- debug:"])
    far = dt.datetime.now(dt.UTC) + dt.timedelta(hours=12)
    add(url, project, cron=f"{far.minute} {far.hour} * * *", time_zone="UTC")
    right = database.one("SELECT due FROM forkless.schedule")
    database.all("UPDATE forkless.schedule SET due = due + interval '1 year'")
    tick(url)
    tick(url)  # not moved again
    assert database.one("SELECT due FROM forkless.schedule") == right
    assert database.one("SELECT count(*) FROM forkless.run") == 0


def test_a_time_that_was_launched_and_a_schedule_that_fails_hold_up_no_other(url, database, project):
    """The database's clock went back by a second after a launch: the due time is set back to one that has its run."""
    playbook(project, tasks=["- debug:"])
    far = dt.datetime.now(dt.UTC) + dt.timedelta(hours=12)
    for name in ("broken", "nightly", "weekly"):
        add(url, project, name, f"{far.minute} {far.hour} * * *", time_zone="UTC", if_running="queue")
    database.all("UPDATE forkless.schedule SET request = '{}' WHERE name = 'broken'")
    due = database.one("UPDATE forkless.schedule SET due = now() - interval '1 s' WHERE name = 'nightly' RETURNING due")
    tick(url)
    first = database.one("SELECT last_run FROM forkless.schedule WHERE name = 'nightly'")
    assert first is not None
    database.all("UPDATE forkless.schedule SET due = %s", due)
    tick(url)
    runs = "SELECT s.name, count(r.id) FROM forkless.schedule s LEFT JOIN forkless.run r ON r.schedule_id = s.id GROUP BY 1"
    assert dict(database.all(runs)) == {"broken": 0, "nightly": 1, "weekly": 1}
    assert database.one("SELECT due > now() FROM forkless.schedule WHERE name = 'nightly'")
    assert database.one("SELECT last_run FROM forkless.schedule WHERE name = 'nightly'") == first


@pytest.mark.parametrize(
    ("name", "cron", "more", "sentence"),
    [
        ("n", "61 * * * *", {}, "is not a time of a schedule"),
        ("n", "0 0 31 2 *", {}, "'0 0 31 2 .' never happens: no month of it has that day"),
        ("n", "0 0 1 13 *", {}, "is not a time of a schedule"),
        ("n", "@daily", {}, "is not a time of a schedule"),
        ("n", "0 3 * * *", {"time_zone": "Mars/Olympus"}, "there is no time zone 'Mars/Olympus'"),
        ("a b", "0 3 * * *", {}, "is not a name for a schedule"),
        ("n", "0 3 * * *", {"if_running": "maybe"}, "is 'skip' or 'queue'"),
    ],
)
def test_a_schedule_that_never_fires_is_refused(url, database, project, name, cron, more, sentence):
    playbook(project, tasks=["- debug:"])
    with pytest.raises(QueueRequestError, match=sentence):
        add(url, project, name, cron, **more)
    assert database.one("SELECT count(*) FROM forkless.schedule") == 0


def test_pause_resume_and_remove(url, database, project):
    playbook(project, tasks=["- debug:"])
    add(url, project)
    with pytest.raises(QueueRequestError, match="there is a schedule 'nightly' already"):
        add(url, project)

    async def go():
        async with forkless.queue.connect(url) as queue:
            await queue.pause_schedule("nightly")
            paused = (await queue.schedules())[0]
            await queue.pause_schedule("nightly", paused=False)
            resumed = (await queue.schedules())[0]
            await queue.remove_schedule("nightly")
            with pytest.raises(QueueRequestError, match="there is no schedule"):
                await queue.remove_schedule("nightly")
            return paused, resumed

    paused, resumed = asyncio.run(go())
    assert (paused.enabled, paused.due) == (False, None)
    assert resumed.enabled
    assert resumed.due > dt.datetime.now(dt.UTC)
