# SPDX-License-Identifier: GPL-3.0-or-later
"""Locks of a process's kind belong to a worker: all its files share them, no other worker's do, and they end with it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
import sys
import types

import pytest

from forkless.core.run_context import entered
from forkless.engines.threads.context import ThreadScope
from forkless.engines.threads.patches import file_locks
from forkless.engines.threads.workers.interrupt import Interrupt

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="locks of an open file, which keep threads out, are Linux's"
)

LOCKF = file_locks.lockf(fcntl.lockf, "")
CONTROL = file_locks.control(fcntl.fcntl, "")


class Process(ThreadScope):
    """What the locks use of a worker. Its calls are made on the test's thread, one after another."""

    run_context = types.SimpleNamespace(pid=os.getpid())

    def __init__(self, path):
        self.interrupt, self.state, self.at_end = Interrupt(), {}, []
        self.path, self.files = path, contextlib.ExitStack()

    def open(self):
        return self.files.enter_context(open(self.path, "a+"))

    def wants(self, file, kind=fcntl.LOCK_EX, length=0, start=0):
        """Whether it is given the lock."""
        with entered(self):
            try:
                LOCKF(file, kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB), length, start)
            except BlockingIOError:
                return False
            return True

    def fcntl(self, file, command, flock):
        with entered(self):
            return CONTROL(file, command, flock)

    def end(self):
        while self.at_end:
            self.at_end.pop()()


@pytest.fixture
def workers(tmp_path):
    two = [Process(tmp_path / "lock"), Process(tmp_path / "lock")]
    yield two
    for one in two:
        one.end()
        one.files.close()
    assert file_locks._lockers == {}


def flock(kind, start=0, length=0):
    return struct.pack("hhqqi", kind, os.SEEK_SET, start, length, 0)


def test_a_lock_ends_when_its_file_is_closed_also_for_the_worker_that_had_it(workers):
    one, other = workers
    first = one.open()
    assert one.wants(first)
    first.close()
    assert other.wants(other.open())  # by a descriptor of the same number
    assert not one.wants(one.open())


def test_a_lock_of_one_range_gives_no_other_range(workers):
    one, other = workers
    assert one.wants(one.open(), length=10)
    assert other.wants(other.open(), length=10, start=20)
    assert not other.wants(other.open(), length=10)
    assert one.wants(one.open(), length=10)


def test_a_worker_that_reads_is_in_the_way_of_one_that_writes_by_whichever_file(workers):
    one, other = workers
    assert one.wants(one.open(), fcntl.LOCK_SH)
    assert other.wants(other.open(), fcntl.LOCK_SH)
    assert not one.wants(one.open(), fcntl.LOCK_EX)


def test_a_lock_to_read_becomes_one_to_write_by_another_file_of_the_worker(workers):
    one, other = workers
    assert one.wants(one.open(), fcntl.LOCK_SH)
    assert one.wants(one.open(), fcntl.LOCK_EX)
    assert not other.wants(other.open(), fcntl.LOCK_SH)


def test_a_lock_is_given_back_by_any_file_of_the_worker(workers):
    one, other = workers
    assert one.wants(one.open())
    assert other.wants(other.open(), fcntl.LOCK_UN)  # not by another worker's
    assert not other.wants(other.open())
    assert one.wants(one.open(), fcntl.LOCK_UN)
    assert other.wants(other.open())


def test_a_lock_ends_with_the_worker_whoever_keeps_its_file_open(workers):
    one, other = workers
    assert one.wants(one.open())
    one.end()
    assert other.wants(other.open())


def test_who_asks_is_told_of_the_locks_of_other_workers_and_not_of_its_own(workers):
    one, other = workers
    assert one.fcntl(one.open(), fcntl.F_SETLK, flock(fcntl.F_WRLCK, 5, 10)) == flock(fcntl.F_WRLCK, 5, 10)
    asked = flock(fcntl.F_WRLCK, 0, 0)
    assert struct.unpack("hhqqi", one.fcntl(one.open(), fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK
    told = struct.unpack("hhqqi", other.fcntl(other.open(), fcntl.F_GETLK, asked))
    assert told == (fcntl.F_WRLCK, os.SEEK_SET, 5, 10, os.getpid())
    with pytest.raises(BlockingIOError):
        other.fcntl(other.open(), fcntl.F_SETLK, flock(fcntl.F_RDLCK, 14, 1))
    other.fcntl(other.open(), fcntl.F_SETLK, flock(fcntl.F_RDLCK, 15, 1))


class Flock(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_short),
        ("whence", ctypes.c_short),
        ("start", ctypes.c_longlong),
        ("length", ctypes.c_longlong),
        ("process", ctypes.c_int),
    )


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, Flock.from_buffer_copy])
def test_a_lock_may_be_wanted_with_bytes_or_with_any_buffer(workers, form):
    one, other = workers
    whole = flock(fcntl.F_WRLCK).ljust(ctypes.sizeof(Flock), b"\0")
    assert one.fcntl(one.open(), fcntl.F_SETLKW, form(whole)) == whole
    with pytest.raises(BlockingIOError):
        other.fcntl(other.open(), fcntl.F_SETLK, form(whole))
    assert len(other.fcntl(other.open(), fcntl.F_GETLK, form(whole))) == len(whole)


def test_what_is_no_lock_is_the_stdlibs(workers):
    one, _ = workers
    file = one.open()
    assert one.fcntl(file, fcntl.F_GETFD, 0) == fcntl.FD_CLOEXEC
    with pytest.raises(TypeError):
        one.fcntl(file, fcntl.F_SETLK, [1, 2])


@pytest.mark.spawns
def test_a_lock_of_another_process_is_told_with_the_number_of_that_process(workers):
    one, _ = workers
    file = one.open()
    holds = f"import fcntl, sys; f = open({str(one.path)!r}, 'a+'); fcntl.lockf(f, fcntl.LOCK_EX); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"1\n"
        told = struct.unpack("hhqqi", one.fcntl(file, fcntl.F_GETLK, flock(fcntl.F_WRLCK)))
        with pytest.raises(BlockingIOError):
            one.fcntl(file, fcntl.F_SETLK, flock(fcntl.F_WRLCK))
    assert (told[0], told[4]) == (fcntl.F_WRLCK, other.pid)
