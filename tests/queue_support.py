# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of the queue use: a look at the tables, workers as real processes, playbooks that leave a trace."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psycopg
import pytest

import forkless
import forkless.queue
from forkless.queue import embedded, schema, secrets
from forkless.queue.embedded import EmbeddedServer
from forkless.queue.worker import WorkerOptions

# `make test` has a slice of what `make faults` runs.
in_make_faults = pytest.mark.skipif(not os.environ.get("FORKLESS_ROUNDS"), reason="make faults runs it: it takes long")
# Generous: the machine may be busy with other tests.
PATIENCE = 240.0


def wait_until(condition, what="it", seconds=PATIENCE):
    """The first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {seconds:.0f} s")
        time.sleep(0.05)
    return found


find_programs = embedded.find_programs
if os.environ.get("FORKLESS_TEST_POSTGRESQL") == "debian":  # `make faults` tries Debian's as well
    PROGRAMS = max(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: int(path.split("/")[-2]), default=None)
    assert PROGRAMS, "Debian's PostgreSQL is not installed: apt-get install postgresql"
    embedded.find_programs = lambda major="": PROGRAMS


@contextlib.contextmanager
def postgresql():
    """A PostgreSQL of its own with the schema, as the embedded one is."""
    # Not below pytest's folder: as root the server runs as another user, who cannot enter that.
    folder = tempfile.mkdtemp(prefix="forkless-tests-")
    os.chmod(folder, 0o711)
    try:
        with EmbeddedServer(os.path.join(folder, "pg")) as running:
            schema.prepare_embedded(running.url)
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Database:
    """A synchronous look at the tables."""

    def __init__(self, url):
        self.url = url

    def all(self, query, *values):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def one(self, query, *values):
        rows = self.all(query, *values)
        return rows[0] if len(rows[0]) > 1 else rows[0][0]

    def status(self, number):
        return self.one("SELECT status FROM forkless.run WHERE id = %s", number)

    def wait_for(self, number, *states):
        return wait_until(lambda: (found := self.status(number)) in states and found, f"run {number} {states}")

    def expire(self, number):
        """
        Let others give the run of a killed worker up after a second. The worker itself had a long lease, so that a busy machine did
        not take the run from it before it was killed.
        """
        self.all("UPDATE forkless.run SET lost_after = 1 WHERE id = %s", number)

    def stream(self, number):
        """All events of a run that has ended."""

        async def read():
            async with forkless.queue.connect(self.url) as queue:
                return [event async for event in queue.follow(number)]

        return asyncio.run(read())


class Workers:
    """Worker processes, as `forkless worker` starts them."""

    def __init__(self, url, folder):
        self._url, self._folder = url, folder
        self.started = []
        self._supervisors = []

    def start_supervised(self, *arguments):
        """`forkless worker`: a process that ends itself is replaced. Its number for `log()`."""
        number = len(self.started) + len(self._supervisors)
        env = dict(os.environ) | {
            "FORKLESS_DATABASE": self._url,
            "FORKLESS_WORKER_KEY": str(self._folder / "worker.key"),
        }
        with open(self._folder / f"worker{number}.log", "wb") as log:
            command = [sys.executable, "-m", "forkless", "worker", "--work-dir", str(self._folder / "work"), *arguments]
            self._supervisors.append(subprocess.Popen(command, stdout=log, stderr=log, env=env))
        return number

    def start(self, **options):
        number = len(self.started) + len(self._supervisors)
        told = WorkerOptions(
            folder=str(self._folder / f"work{number}"), key_path=str(self._folder / "worker.key"), **options
        )
        log = open(self._folder / f"worker{number}.log", "wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "forkless.queue.worker", told.as_json()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=dict(os.environ) | {"FORKLESS_WORKER_DATABASE": self._url},
            )
        self.started.append(process)
        return process

    def make_key(self, url):
        """The workers' key, as the first worker makes it."""
        private = secrets.create_key(str(self._folder / "worker.key"))
        Database(url).one("SELECT forkless.offer_worker_key(%s)", secrets.public_of(private))
        return True

    def log(self, number=0):
        return (self._folder / f"worker{number}.log").read_text()

    def close(self):
        for supervisor in self._supervisors:
            # The third signal kills the worker processes; equal signals that wait become one, so they are sent until it has ended.
            while supervisor.poll() is None:
                supervisor.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    supervisor.wait(0.5)
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGCONT)
                process.kill()
        for process in self.started:
            process.wait()
            process.stdin.close()


def playbook(folder, name="site.yml", *, tasks, hosts="all"):
    (folder / name).write_text(
        f"- hosts: {hosts}\n  gather_facts: false\n  tasks:\n"
        + "".join(f"    {line}\n" for task in tasks for line in task.splitlines())
    )


def acting(acts, times=200, pause=0.1):
    """A task that writes a line with the time every `pause` seconds: it shows whether a run acts, and whether two do at once."""
    return f"- name: act\n  raw: echo $(date +%s.%N) $PPID >> {acts}; sleep {pause}\n  loop: '{{{{ range({times}) | list }}}}'"


def launch(url, folder, name="site.yml", spec=None, **options):
    """Launch from a test; returns the run's number."""

    async def go():
        async with forkless.queue.connect(url) as queue:
            made = forkless.RunSpec(**{"playbook": name, "inventory": "hosts.ini", "cwd": folder} | (spec or {}))
            return (await queue.launch(made, **options)).number

    return asyncio.run(go())


def lines(path):
    return path.read_text().splitlines() if path.exists() else []
