# SPDX-License-Identifier: GPL-3.0-or-later
"""A folder under attack: controllers killed between any two system calls, a full disk, no hard links, many at once."""

from __future__ import annotations

import concurrent.futures
import errno
import json
import os
import pathlib
import subprocess
import sys

import pytest

from forkless import StoreError, jobs
from forkless.jobs import Key

KEY = Key("h", "j")
SOURCE = str(pathlib.Path(jobs.__file__).parents[2])

# Saves in one folder after the other, each time in a child, which is killed at its n-th call that changes something on the disk.
KILLED_AT = """
import itertools, os, signal, sys
from forkless import jobs
base, existing = sys.argv[1], sys.argv[2] == "True"

def counting(name, at, calls=itertools.count(1)):
    real = getattr(os, name)
    def call(*args, **more):
        if next(calls) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    setattr(os, name, call)

for at in itertools.count(1):
    store = f"file:{base}/{at}/state"
    if existing:
        jobs.JobRegistry(jobs.open_store(store)).save(jobs.Key("h", "j"), "j1.1")
    child = os.fork()
    if not child:
        book = jobs.JobRegistry(jobs.open_store(store))
        for name in ("mkdir", "open", "write", "fsync", "link", "rename", "unlink", "close"):
            counting(name, at)
        book.save(jobs.Key("h", "j"), "j2.2", metadata={"new": True})
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    if code != -signal.SIGKILL:
        sys.exit(code)
"""


def python(code, *arguments, **more):
    environ = os.environ | {"PYTHONPATH": SOURCE}
    more.setdefault("check", False)
    return subprocess.run([sys.executable, "-c", code, *arguments], env=environ, capture_output=True, text=True, **more)  # noqa: PLW1510


def book_in(folder):
    return jobs.JobRegistry(jobs.open_store(f"file:{folder}/state"))


@pytest.mark.spawns
@pytest.mark.parametrize("existing", [False, True])
def test_a_controller_killed_at_any_call_leaves_the_old_record_or_the_new_one(tmp_path, existing):
    done = python(KILLED_AT, str(tmp_path), str(existing))
    assert done.returncode == 0, done.stderr
    rounds = len(done.stdout.splitlines())
    seen = set()
    for at in range(1, rounds + 1):
        folder = tmp_path / str(at)
        registry = book_in(folder)
        record = registry.find(KEY)
        seen.add(record.ansible_job_id if record else None)
        assert record is None or record.ansible_job_id in ("j1.1", "j2.2")
        if record is not None and record.ansible_job_id == "j2.2":
            assert record.metadata == {"new": True}
            assert json.loads((folder / "state/h/j.json").read_text())["ansible_job_id"] == "j2.2"
        # And whoever comes next can write.
        registry.save(KEY, "j3.3")
        assert registry.find(KEY).ansible_job_id == "j3.3"
    assert rounds > 15
    assert seen == {"j1.1" if existing else None, "j2.2"}


FULL = """
import resource, sys
from forkless import StoreError, jobs
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    jobs.JobRegistry(jobs.open_store("file:" + sys.argv[1])).save(jobs.Key("h", "j"), "j2.2", metadata={"x": "y" * 1000})
except StoreError as error:
    print(error)
"""


@pytest.mark.spawns
def test_a_write_that_does_not_fit_leaves_the_old_record_intact(tmp_path):
    registry = book_in(tmp_path)
    registry.save(KEY, "j1.1", metadata={"old": True})
    before = {str(path): path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    said = python(FULL, f"{tmp_path}/state", check=True).stdout
    assert "could not be written: File too large" in said
    assert {str(path): path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == before
    assert registry.find(KEY).metadata == {"old": True}


def test_a_full_disk_leaves_the_old_record_intact_and_is_said_in_one_sentence(tmp_path, monkeypatch):
    registry = book_in(tmp_path)
    registry.save(KEY, "j1.1")

    def full(*ignored):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match=r"could not be written: No space left on device\.$"):
        registry.save(KEY, "j2.2")
    monkeypatch.undo()
    assert registry.find(KEY).ansible_job_id == "j1.1"
    assert not list((tmp_path / "state").rglob(".draft*"))


def test_a_full_disk_does_not_keep_anyone_from_reading(tmp_path, monkeypatch):
    registry = book_in(tmp_path)
    registry.save(KEY, "j1.1")
    (tmp_path / "state/h/.j.log/00000001.shown").unlink()  # as if its writer had died before it was shown

    def full(*ignored):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    assert registry.find(KEY).ansible_job_id == "j1.1"


@pytest.mark.spawns
def test_on_a_real_full_disk_nothing_is_lost(tmp_path):
    """A file system of 64 kB in a mount namespace of its own; only root may make one."""
    if os.geteuid() != 0:
        # Nothing is left out in silence: the two tests above say the same without a mount.
        pytest.xfail("a tmpfs can only be mounted by root")
    mounted = tmp_path / "small"
    mounted.mkdir()
    code = """
import os, sys
from forkless import StoreError, jobs
book = jobs.JobRegistry(jobs.open_store("file:" + sys.argv[1] + "/state"))
key = jobs.Key("h", "j")
book.save(key, "j1.1")
with open(sys.argv[1] + "/filler", "wb", buffering=0) as filler:  # so that nothing is left for close() to write
    try:
        while True:
            filler.write(b"x" * 4096)
    except OSError:
        pass
try:
    book.save(key, "j2.2")
    sys.exit("it fitted?")
except StoreError as error:
    print(error)
assert book.find(key).ansible_job_id == "j1.1"
os.unlink(sys.argv[1] + "/filler")
book.save(key, "j3.3")
assert book.find(key).ansible_job_id == "j3.3"
"""
    script = tmp_path / "full.py"
    script.write_text(code)
    shell = f'mount -t tmpfs -o size=64k none "{mounted}" && exec "{sys.executable}" "{script}" "{mounted}"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell],
        check=False,
        env=os.environ | {"PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout


def test_a_folder_that_may_not_be_read_is_an_error_and_not_an_empty_one(tmp_path, monkeypatch):
    registry = book_in(tmp_path)
    registry.save(KEY, "j1.1")

    def denied(*ignored):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(StoreError, match="could not be listed: Permission denied"):
        registry.find(KEY)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_without_hard_links_one_of_two_still_wins(tmp_path, monkeypatch, number):
    def no_links(*ignored):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    tokens = race(tmp_path, 10)
    assert len(tokens) == 1


def race(folder, many):
    def claim(_):
        try:
            return book_in(folder).claim(KEY, wait=0).claim["token"]
        except StoreError:
            return None

    with concurrent.futures.ThreadPoolExecutor(many) as pool:
        return [token for token in pool.map(claim, range(many)) if token]


def test_a_view_put_there_late_by_one_who_slept_does_not_hide_the_newer_record(tmp_path):
    registry = book_in(tmp_path)
    registry.save(KEY, "j1.1")
    path = tmp_path / "state/h/j.json"
    late = path.read_bytes()
    registry.save(KEY, "j2.2")
    path.write_bytes(late)
    assert registry.find(KEY).ansible_job_id == "j2.2"
    assert json.loads(path.read_text())["ansible_job_id"] == "j2.2"


RACER = """
import sys
from forkless import ConflictError, jobs
book = jobs.JobRegistry(jobs.open_store("file:" + sys.argv[1]))
sys.stdin.readline()
for round in range(10):
    try:
        book.claim(jobs.Key("h", f"race {round}"), wait=0)
        print(round)
    except ConflictError:
        pass
print("tried", flush=True)
sys.stdin.readline()
"""


@pytest.mark.spawns
def test_of_forty_racing_programs_exactly_one_wins_each_round(tmp_path):
    environ = os.environ | {"PYTHONPATH": SOURCE}
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, f"{tmp_path}/state"],
            env=environ,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )  # fmt: skip
        for _ in range(40)
    ]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = []
    for racer in racers:
        while (line := racer.stdout.readline().strip()) != "tried":
            wins.append(int(line))
    # Only now may they end: the claim of one who has ended may be taken over.
    for racer in racers:
        racer.communicate("over\n")
    assert sorted(wins) == list(range(10))
