# SPDX-License-Identifier: GPL-3.0-or-later
"""
Never two jobs at once, whatever one controller does between any two steps of another.

One controller is stopped before each single step that it takes in the store, a second one does all of its work there, and
the first goes on. What both do on the host is kept in a model of it: folders, fences, and jobs that run or are over.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import ClassVar

import pytest

from forkless import ConflictError, JobChangedError, jobs
from forkless.jobs import CLAIMED, Key
from forkless.jobs.stores.file import FileStore
from forkless.jobs.stores.store import RevisionLog
from jobs_controller import SOURCE

KEY = Key("web1", "rebuild")
NOW = 1_800_000_000.0


class Steps:
    """Calls `then` before the step of this number; counts the steps."""

    def __init__(self, at=0, then=None):
        self.taken, self._at, self._then = 0, at, then

    def __call__(self):
        self.taken += 1
        if self.taken == self._at:
            self._then()


def stepped(kind, *names):
    """The kind of store, with a step before each call of these methods."""

    def method(name):
        def call(self, *args, **more):
            self.step()
            return getattr(kind, name)(self, *args, **more)

        return call

    return type(f"Stepped{kind.__name__}", (kind,), {"step": Steps()} | {name: method(name) for name in names})


class Bucket(RevisionLog):
    """A log as a server keeps it, with nothing beside it: what S3 and ARA do."""

    everything: ClassVar = {}

    def __init__(self, folder):
        self._logs = self.everything.setdefault(str(folder), {})

    def revisions(self, host=""):
        return {stem: max(log) for stem, log in self._logs.items() if log}

    def _numbers(self, stem):
        return list(self._logs.get(stem, {}))

    def _get(self, stem, revision):
        return self._logs.get(stem, {}).get(revision)

    def _create(self, stem, revision, body):
        return self._logs.setdefault(stem, {}).setdefault(revision, body) is body

    def _erase(self, stem, revision):
        self._logs.get(stem, {}).pop(revision, None)


LOG = ("_numbers", "_get", "_create", "_erase", "revisions")
STORES = {
    "folder": stepped(FileStore, *LOG, "_view", "_show", "_hide", "_is_shown", "_was_taken"),
    "bucket": stepped(Bucket, *LOG),
}


def open_stepped(kind, folder, steps=None):
    store = STORES[kind](folder)
    store.step = steps or Steps()
    return store


class Host:
    """What the target holds: each slot may have a job, or a fence, which keeps one from being started."""

    def __init__(self):
        self.jobs, self.fences, self.over = {}, set(), set()
        self._numbers = itertools.count(1)

    @property
    def running(self):
        return [jid for jid in self.jobs.values() if jid not in self.over]

    def fence(self, token):
        if token not in self.jobs:
            self.fences.add(token)

    def start(self, token):
        if token in self.fences:
            return None
        self.jobs[token] = f"j{next(self._numbers)}.1"
        assert len(self.running) == 1, "a second job was started beside one that runs"
        return self.jobs[token]


def begin(book, host, claim):
    """What a controller does with a claim: fence, adopt or start, save."""
    book.store.step()
    for token in claim.claim["fences"]:
        host.fence(token)
    book.store.step()
    for token, jid in host.jobs.items():
        if jid not in claim.known_ids():
            book.adopt(claim, KEY, jid, jobs.slot_of("/b", KEY, token), {})
            return
    book.store.step()
    token = claim.claim["token"]
    if jid := host.start(token):
        book.store.step()
        book.save(KEY, jid, slot=jobs.slot_of("/b", KEY, token))


def start_once(book, host, lease=100):
    claim = book.claim(KEY, lease=lease, wait=0)
    if claim.state == CLAIMED:
        begin(book, host, claim)


def start_once_with_a_lease_that_is_over_at_once(book, host):
    start_once(book, host, lease=0)


def start_anew_if_it_is_over(book, host):
    found = book.find(KEY)
    book.store.step()
    replaced = found if found and found.ansible_job_id in host.over else None
    claim = book.claim(KEY, wait=0, instead_of=replaced)
    if claim.state == CLAIMED:
        begin(book, host, claim)


def forget_if_it_is_over(book, host):
    found = book.find(KEY)
    book.store.step()
    if found and found.ansible_job_id in host.over:
        book.forget(found)


def sweep_a_dead_claim(book, host):
    claim = book.newest(KEY)
    book.store.step()
    if claim and claim.state == CLAIMED and book.is_over(claim):
        for token in [*claim.claim["fences"], claim.claim["token"]]:
            host.fence(token)
            if token in host.jobs:
                book.adopt(claim, KEY, host.jobs[token], "", {})
                return
        book.forget(claim)


def adopt_what_is_found(book, host):
    if book.find(KEY) is None:
        newest = book.newest(KEY)
        book.store.step()
        for token, jid in host.jobs.items():
            if newest is None or jid not in newest.known_ids():
                book.adopt(newest, KEY, jid, jobs.slot_of("/b", KEY, token), {})
                return


def purge_a_day_later(book, host):
    jobs.JobRegistry(book.store, clock=lambda: NOW + 100_000).purge()


def start_anew_after_everything_was_forgotten_and_purged(book, host):
    forget_if_it_is_over(book, host)
    purge_a_day_later(book, host)
    start_once(book, host)


WORK = [
    start_once,
    start_once_with_a_lease_that_is_over_at_once,
    start_anew_if_it_is_over,
    forget_if_it_is_over,
    sweep_a_dead_claim,
    adopt_what_is_found,
    purge_a_day_later,
    start_anew_after_everything_was_forgotten_and_purged,
]


def nothing(book, host):
    pass


def a_job_runs(book, host):
    start_once(book, host)


def a_job_is_over(book, host):
    start_once(book, host)
    host.over.update(host.running)


def a_job_was_forgotten(book, host):
    a_job_is_over(book, host)
    forget_if_it_is_over(book, host)


def a_claim_is_dead(book, host):
    book.claim(KEY, lease=0)


def a_job_was_never_saved(book, host):
    host.start(book.claim(KEY, lease=0).claim["token"])


BEFORE = [nothing, a_job_runs, a_job_is_over, a_job_was_forgotten, a_claim_is_dead, a_job_was_never_saved]


def book_on(store):
    return jobs.JobRegistry(store, clock=lambda: NOW, pause=lambda seconds: None, steady=itertools.count().__next__)


def do(work, book, host):
    # Who is told that another one was first has done nothing wrong.
    with contextlib.suppress(ConflictError, JobChangedError):
        work(book, host)


@pytest.fixture
def stores_folder():
    """In memory where there is room: tens of thousands of renames take four times the system's CPU time on a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 2**30 else None
    with tempfile.TemporaryDirectory(prefix="fk-steps-", dir=memory) as folder:
        yield pathlib.Path(folder)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("second", WORK, ids=lambda work: work.__name__)
@pytest.mark.parametrize("first", WORK, ids=lambda work: work.__name__)
def test_no_second_job_is_started_whatever_happens_between_two_steps(first, second, kind, stores_folder, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(Bucket, "everything", {})
    for before in BEFORE:
        at = 0
        while True:
            at += 1
            folder = stores_folder / before.__name__ / str(at)
            host = Host()
            before(book_on(open_stepped(kind, folder)), host)
            steps = Steps(at, lambda f=folder, h=host: do(second, book_on(open_stepped(kind, f)), h))
            do(first, book_on(open_stepped(kind, folder, steps)), host)
            # And the next one finds the job that runs, or starts one if none does: nothing is lost, and nothing is stuck.
            start_once(book_on_later(kind, folder), host)
            found = book_on_later(kind, folder).find(KEY)
            assert found is not None, (before, at)
            assert not host.running or found.ansible_job_id in host.running, (before, at)
            if steps.taken < at:
                break


def book_on_later(kind, folder):
    return jobs.JobRegistry(open_stepped(kind, folder), clock=lambda: NOW + 200, pause=lambda seconds: None)


# -- and many processes, as fast as they can

RACER = """
import os, sys
from forkless import jobs
book = jobs.JobRegistry(jobs.open_store("file:" + sys.argv[1]), pause=lambda seconds: None)
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    key = jobs.Key("h", f"job {number}")
    claim = book.claim(key)
    if claim.state == jobs.CLAIMED:
        print(number, flush=True)
        book.save(key, f"j{os.getpid()}.1", slot=jobs.slot_of("/b", key, claim.claim["token"]))
"""


@pytest.mark.spawns
def test_of_five_processes_that_wait_for_each_other_one_starts_each_job(tmp_path):
    names = 40
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(tmp_path), str(names)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)},
        )
        for _ in range(5)
    ]  # fmt: skip
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    wins = []
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        wins += map(int, racer.communicate(timeout=200)[0].split())
    assert [racer.returncode for racer in racers] == [0] * 5
    assert sorted(wins) == list(range(names))
