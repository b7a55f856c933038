# SPDX-License-Identifier: GPL-3.0-or-later
"""Workers as an operator sees them: their deadline at the end, the order of runs, and a crash of one process."""

from __future__ import annotations

import os
import signal

import pytest

from queue_support import launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns

ENDED = ("successful", "failed", "canceled", "lost")


def waiting(acts, gate):
    return [f"- raw: echo {{{{ play_hosts | length }}}} >> {acts}; while [ ! -e {gate} ]; do sleep 0.1; done"]


def test_one_sigterm_hands_the_run_back_at_the_deadline(url, database, workers, project, tmp_path):
    playbook(project, tasks=waiting(tmp_path / "acts", tmp_path / "gate"))
    number, without = launch(url, project, retries=1, lock=None), launch(url, project, lock=None)
    pair = [workers.start(lost_after=600, shutdown_after=0.1) for _ in range(2)]
    wait_until(lambda: len(lines(tmp_path / "acts")) == 2, "both runs")
    for worker in pair:
        worker.send_signal(signal.SIGTERM)
    assert [worker.wait(timeout=240) for worker in pair] == [0, 0]
    # Not after a lease of ten minutes, and not while the task goes on: it was stopped.
    assert database.one("SELECT status, attempt FROM forkless.run WHERE id = %s", number) == ("waiting", 1)
    assert database.status(without) == "lost"
    assert "was shut down" in database.one("SELECT sentence FROM forkless.run WHERE id = %s", without)


def test_a_worker_takes_the_run_of_the_highest_priority_and_then_the_oldest(url, database, workers, project, tmp_path):
    acts = tmp_path / "acts"
    numbers = {}
    for name, priority in (("first", 0), ("low", -1), ("second", 0), ("high", 7)):
        playbook(project, f"{name}.yml", tasks=[f"- raw: echo {name} >> {acts}"])
        numbers[name] = launch(url, project, f"{name}.yml", priority=priority, lock=None)
    workers.start()
    for number in numbers.values():
        assert database.wait_for(number, *ENDED) == "successful"
    assert lines(acts) == ["high", "first", "second", "low"]


def test_a_crash_takes_one_run_and_the_process_is_replaced(url, database, workers, project, tmp_path):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=waiting(acts, gate))
    numbers = [launch(url, project, lock=None, retries=1) for _ in range(2)]
    log = workers.start_supervised("--processes", "2", "--lost-after", "600")
    wait_until(lambda: len(lines(acts)) == 2, "both runs")
    owners = "SELECT r.id, w.pid FROM forkless.run r JOIN forkless.worker w ON w.id = r.worker_id"
    pids = dict(database.all(owners))
    os.kill(pids[numbers[0]], signal.SIGKILL)
    wait_until(lambda: "a worker process ended with -9; another takes its place" in workers.log(log), "the supervisor")
    database.expire(numbers[0])
    wait_until(lambda: len(lines(acts)) == 3, "the second attempt")  # the other process still has its own run
    gate.touch()
    for number in numbers:
        assert database.wait_for(number, *ENDED) == "successful"
    assert database.all("SELECT attempt FROM forkless.run ORDER BY id") == [(2,), (1,)]
    assert len(lines(acts)) == 3
    assert dict(database.all(owners))[numbers[0]] not in pids.values()


def test_a_worker_process_carries_out_one_run_at_a_time(url, database, workers, project, tmp_path):
    acts, gate = tmp_path / "acts", tmp_path / "gate"
    playbook(project, tasks=waiting(acts, gate))
    numbers = [launch(url, project, lock=None) for _ in range(2)]
    workers.start(lost_after=600)
    wait_until(lambda: lines(acts), "the first run")
    numbers.append(launch(url, project, lock=None))  # the worker is told of it while it has a run
    for _ in range(3):
        seen = database.one("SELECT max(seen) FROM forkless.worker")
        wait_until(lambda seen=seen: database.one("SELECT max(seen) FROM forkless.worker") > seen, "a tick")
    states = "SELECT status, count(*) FROM forkless.run GROUP BY status ORDER BY status"
    assert database.all(states) == [("running", 1), ("waiting", 2)]
    assert len(lines(acts)) == 1
    gate.touch()
    for number in numbers:
        assert database.wait_for(number, *ENDED) == "successful"
