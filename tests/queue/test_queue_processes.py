# SPDX-License-Identifier: GPL-3.0-or-later
"""Supervisor, worker processes and the embedded server: what stays when one of them is killed or forgotten."""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from forkless.queue import supervisor
from forkless.queue.supervisor import work_folder
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


def test_the_server_and_the_project_stay_for_a_worker_whose_supervisor_was_killed(alone, project, tmp_path):
    there, end = tmp_path / "there", tmp_path / "end"
    (project / "late.yml").write_text(f"- raw: echo late >> {there}\n")
    playbook(
        project,
        tasks=[
            f"- raw: echo x >> {there}; while [ ! -e {end} ]; do sleep 0.1; done",
            "- include_tasks: \"{{ 'late' }}.yml\"",
        ],
    )
    work = os.path.join(alone["XDG_STATE_HOME"], "forkless", "work")

    def forkless(*argv):
        command = [sys.executable, "-m", "forkless", *argv]
        return subprocess.run(command, cwd=project, env=alone, capture_output=True, text=True, timeout=120, check=True)

    with open(tmp_path / "worker.log", "wb") as log:
        started = subprocess.Popen(
            [sys.executable, "-m", "forkless", "worker"], env=alone, stdout=log, stderr=log, cwd=project
        )
    postmaster = os.path.join(alone["XDG_STATE_HOME"], "forkless", "postgres", "data", "postmaster.pid")
    try:
        forkless("launch", "site.yml", "-i", "hosts.ini")
        wait_until(lambda: lines(there), "the task's begin")
        with open(postmaster) as file:
            before = file.read()
        started.kill()
        started.wait()
        assert "running" in forkless("runs", "list").stdout
        with open(postmaster) as file:
            assert file.read() == before  # not stopped, and not begun again
        with work_folder(work):  # as another worker that is started now
            assert glob.glob(f"{work}/worker-*/0/*/project/late.yml")
    finally:
        end.touch()
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            started.wait()
    wait_until(lambda: "successful" in forkless("runs", "list").stdout, "the end of the run")
    wait_until(lambda: not os.path.exists(postmaster), "the end of the server that nobody uses")
    assert lines(there) == ["x", "late"]

    def nothing_left():
        with work_folder(work) as own:
            return os.listdir(work) == [os.path.basename(own)]

    wait_until(nothing_left, "the end of the folder that nobody uses")


def test_a_folder_of_projects_is_removed_when_its_last_process_has_ended(tmp_path):
    with work_folder(str(tmp_path)) as folder:
        # A worker process that lives longer than its supervisor.
        lock = supervisor._lock(folder)
        worker = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=(lock,))
        os.close(lock)
    with work_folder(str(tmp_path)) as other:
        assert sorted(os.listdir(tmp_path)) == sorted(map(os.path.basename, (folder, other)))
    worker.stdin.close()
    worker.wait()
    with work_folder(str(tmp_path)) as other:
        assert os.listdir(tmp_path) == [os.path.basename(other)]
    assert os.listdir(tmp_path) == []


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
