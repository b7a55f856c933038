# SPDX-License-Identifier: GPL-3.0-or-later
"""Supervisor, worker processes and the embedded server: what stays when one of them is killed or forgotten."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from queue_support import launch, lines, playbook, wait_until

pytestmark = pytest.mark.spawns


@pytest.fixture
def alone(tmp_path):
    """The environment of a user with a home of their own and no FORKLESS_DATABASE."""
    # Not below pytest's folder: as root the server runs as another user, who cannot enter that.
    home = tempfile.mkdtemp(prefix="forkless-home-")
    os.chmod(home, 0o711)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("FORKLESS_", "XDG_"))}
    yield env | {"HOME": home, "XDG_STATE_HOME": f"{home}/state"}
    shutil.rmtree(home, ignore_errors=True)


def test_the_embedded_server_stays_for_a_worker_whose_supervisor_was_killed(alone, project, tmp_path):
    there, end = tmp_path / "there", tmp_path / "end"
    playbook(project, tasks=[f"- raw: echo x >> {there}; while [ ! -e {end} ]; do sleep 0.1; done"])

    def forkless(*argv):
        command = [sys.executable, "-m", "forkless", *argv]
        return subprocess.run(command, cwd=project, env=alone, capture_output=True, text=True, timeout=120, check=True)

    with open(tmp_path / "worker.log", "wb") as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "forkless", "worker"], env=alone, stdout=log, stderr=log, cwd=project
        )
    postmaster = os.path.join(alone["XDG_STATE_HOME"], "forkless", "postgres", "data", "postmaster.pid")
    try:
        forkless("launch", "site.yml", "-i", "hosts.ini")
        wait_until(lambda: lines(there), "the task's begin")
        with open(postmaster) as file:
            before = file.read()
        supervisor.kill()
        supervisor.wait()
        assert "running" in forkless("runs", "list").stdout
        with open(postmaster) as file:
            assert file.read() == before  # not stopped, and not begun again
    finally:
        end.touch()
        if supervisor.poll() is None:
            supervisor.send_signal(signal.SIGTERM)
            supervisor.wait()
    wait_until(lambda: "successful" in forkless("runs", "list").stdout, "the end of the run")
    wait_until(lambda: not os.path.exists(postmaster), "the end of the server that nobody uses")


def test_a_worker_that_was_forgotten_is_registered_again(url, database, workers, project):
    playbook(project, tasks=["- debug:"])
    workers.start(name="sleeper", labels=["site=fra"])
    about = "SELECT id, name, pid, labels FROM forkless.worker"
    (before,) = wait_until(lambda: database.all(about), "the worker")
    database.all("UPDATE forkless.worker SET seen = now() - interval '2 days'")
    # Another worker that starts forgets those that were not seen for a day.
    other = database.one("SELECT forkless.register_worker('other', 'h', 1, '{}', '{}')")
    database.all("DELETE FROM forkless.worker WHERE id IN (%s, %s)", other, before[0])
    assert wait_until(lambda: database.all(about), "the worker again") == [before]
    assert database.wait_for(launch(url, project, labels=["site=fra"]), "successful", "failed") == "successful"
