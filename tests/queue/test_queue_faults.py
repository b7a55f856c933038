# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults, for real: PostgreSQL restarted at once, a network that swallows everything, workers killed at random. `make faults` runs more of each."""

from __future__ import annotations

import os
import random

import pytest

from queue_support import acting, launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns

MANY = os.environ.get("FORKLESS_ROUNDS")


@pytest.mark.skipif(not MANY, reason="make faults")
def test_a_restart_of_postgresql_costs_no_run_and_no_event(server, url, database, workers, project, tmp_path):
    acts = tmp_path / "acts"
    playbook(project, tasks=[acting(acts, times=60)])
    number = launch(url, project)
    workers.start(lost_after=60)
    wait_until(lambda: len(lines(acts)) > 5, "the first acts")
    server._call("pg_ctl", "restart", "-D", server._data, "-m", "immediate", "-w")
    assert database.wait_for(number, "successful", "lost", "failed") == "successful"
    assert len(lines(acts)) == 60
    events = database.stream(number)
    assert [event.counter for event in events] == list(range(1, len(events) + 1))


@pytest.mark.skipif(not MANY, reason="make faults")
def test_many_runs_over_workers_that_are_killed_each_end_once(url, database, workers, project, tmp_path):
    """Every run ends in one state, none begins a second time, and the target saw each at most once."""
    acts = tmp_path / "acts"
    rounds = int(MANY) * 5
    workers.make_key(url)
    playbook(project, tasks=[f"- raw: echo {{{{ number }}}} >> {acts}; sleep 0.2"])
    numbers = [launch(url, project, spec={"extra_vars": {"number": k}}, lock=None) for k in range(rounds)]
    crew = [workers.start(lost_after=6) for _ in range(4)]
    dice = random.Random(7)
    for _ in range(3):
        ended = database.one("SELECT count(*) FROM forkless.run WHERE ended IS NOT NULL")
        wait_until(
            lambda: database.one("SELECT count(*) FROM forkless.run WHERE ended IS NOT NULL") > ended + 3, "progress"
        )
        victim = crew.pop(dice.randrange(len(crew)))
        victim.kill()
        crew.append(workers.start(lost_after=6))
    for number in numbers:
        database.wait_for(number, "successful", "lost")
    seen = [int(line) for line in lines(acts)]
    assert len(seen) == len(set(seen))
    assert database.one("SELECT count(*) FROM forkless.run WHERE attempt > 1") == 0
    assert database.one("SELECT count(*) FROM forkless.run WHERE status = 'lost'") <= 3
    assert database.one("SELECT count(*) FROM forkless.procrastinate_jobs WHERE status = 'todo'") == 0
