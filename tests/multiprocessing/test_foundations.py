# SPDX-License-Identifier: GPL-3.0-or-later
"""What stands in for the two extensions and the tracker, and what one garbage collector for everybody could break."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref

import pytest

from forkless.multiprocessing import managers, shared_memory, synchronize
from forkless.multiprocessing.synchronize import RECURSIVE_MUTEX, SEMAPHORE, SemLock

WAIT = 30


def test_a_semaphore_counts_down_to_zero_and_up_to_its_most():
    lock = SemLock(SEMAPHORE, 2, 3, "/a", True)
    assert lock.acquire() and lock.acquire(False)
    assert not lock.acquire(False)
    assert not lock.acquire(True, 0.01)
    assert not lock.acquire(True, -5)
    assert lock._is_zero()
    for _ in range(3):
        lock.release()
    with pytest.raises(ValueError, match="semaphore or lock released too many times"):
        lock.release()
    assert lock._get_value() == 3


def test_a_recursive_one_belongs_to_its_thread():
    lock = SemLock(RECURSIVE_MUTEX, 1, 1, "/b", True)
    with lock, lock:
        assert lock._count() == 2
        refused = []
        thread = threading.Thread(target=lambda: refused.append(lock.acquire(False)))
        thread.start()
        thread.join()
        assert refused == [False]
    with pytest.raises(AssertionError, match="attempt to release recursive lock not owned by thread"):
        lock.release()


@pytest.mark.parametrize("most", [1, 2])
def test_never_more_inside_than_there_is_room_for(most):
    lock = SemLock(SEMAPHORE, most, most, "/c", True)
    inside, seen, many = [], [], 12

    def work():
        for _ in range(200):
            with lock:
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == many * 200
    assert max(seen) <= most
    assert lock._get_value() == most


def test_who_is_interrupted_while_waiting_takes_nothing_along():
    lock = SemLock(SEMAPHORE, 0, 5, "/d", True)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        lock.acquire(True, WAIT)
    lock.release()
    assert lock.acquire(True, WAIT)
    assert not lock._core._turns


def test_every_one_that_waits_gets_one_of_those_put_back():
    lock = SemLock(SEMAPHORE, 0, 100, "/e", True)
    got = []
    threads = [threading.Thread(target=lambda: got.append(lock.acquire(True, WAIT))) for _ in range(30)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        lock.release()
    for thread in threads:
        thread.join()
    assert got == [True] * 30


def test_a_name_is_taken_until_it_is_unlinked_or_forgotten():
    lock = SemLock(SEMAPHORE, 1, 1, "/taken", False)
    with pytest.raises(FileExistsError):
        SemLock(SEMAPHORE, 1, 1, "/taken", False)
    synchronize.sem_unlink("/taken")
    with pytest.raises(FileNotFoundError):
        synchronize.sem_unlink("/taken")
    again = SemLock._rebuild(lock.handle, lock.kind, lock.maxvalue, None)
    lock.acquire()
    assert not again.acquire(False)
    handle = lock.handle
    del lock, again
    with pytest.raises(FileNotFoundError):
        SemLock._rebuild(handle, SEMAPHORE, 1, None)


def test_shared_memory_by_name_without_dev_shm():
    fd = shared_memory.shm_open("/block", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.ftruncate(fd, 10)
    with pytest.raises(FileExistsError):
        shared_memory.shm_open("/block", os.O_CREAT | os.O_EXCL | os.O_RDWR)
    other = shared_memory.shm_open("/block", os.O_RDWR)
    os.pwrite(other, b"hello", 0)
    assert os.pread(fd, 5, 0) == b"hello"
    assert not os.path.exists("/dev/shm/block")
    shared_memory.shm_unlink("/block")
    for call in (lambda: shared_memory.shm_unlink("/block"), lambda: shared_memory.shm_open("/block", os.O_RDWR)):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(ValueError, match="embedded null"):
        shared_memory.shm_open("/a\0b", os.O_RDWR)
    os.close(fd)
    os.close(other)


@pytest.mark.spawns
def test_shared_memory_that_nobody_unlinked_is_named_and_cleared_at_the_end(python):
    done = python("""
import forkless.multiprocessing, warnings
forkless.multiprocessing.install()
warnings.simplefilter("always")
from multiprocessing.shared_memory import SharedMemory
block = SharedMemory(create=True, size=10)
print(block.name)
block.close()
""")
    name = done.stdout.strip()
    assert f"1 leaked shared_memory objects to clean up at shutdown: {{'/{name}'}}" in done.stderr
    assert not os.path.exists(f"/dev/shm/{name}")


def test_a_proxy_that_dies_on_the_servers_own_thread_does_not_wait_for_itself(ctx, monkeypatch):
    accept, collected = managers._ClosableListener.accept, threading.Event()

    def accept_and_collect(self):
        visitor = accept(self)
        gc.collect(0)  # only what is new: collecting what other tests have left takes seconds
        collected.set()
        return visitor

    with ctx.Manager() as manager:
        monkeypatch.setattr(managers._ClosableListener, "accept", accept_and_collect)
        gc.disable()
        try:
            for _ in range(2):
                cycle = [manager.list()]
                cycle.append(cycle)
            del cycle
            assert manager.dict([("still", "there")])["still"] == "there"
        finally:
            gc.enable()
        assert collected.wait(WAIT)


class Marker:
    seen = weakref.WeakSet()

    def __init__(self):
        self.seen.add(self)

    def __reduce__(self):
        return (Marker, ())


def test_the_server_lets_go_of_what_it_was_sent(ctx):
    with ctx.Manager() as manager:
        shared = manager.list()
        shared.append(Marker())
        shared.pop()
        deadline = time.monotonic() + WAIT
        while Marker.seen and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert not Marker.seen


def test_each_child_finalizes_its_own_and_nothing_else(ctx):
    from multiprocessing import util

    ran = []
    mine = util.Finalize(None, ran.append, args=("the program's",), exitpriority=5)
    conn, other = ctx.Pipe(duplex=False)
    child = ctx.Process(target=finalize_at_the_end, args=(other,))
    child.start()
    child.join()
    assert [conn.recv() for _ in range(3)] == ["run", "high", "low"]
    assert ran == []
    assert mine.still_active()
    mine.cancel()
    conn.close()
    other.close()


def finalize_at_the_end(conn):
    from multiprocessing import util

    util.Finalize(None, conn.send, args=("low",), exitpriority=1)
    util.Finalize(None, conn.send, args=("high",), exitpriority=9)
    conn.send("run")


def test_a_child_inherits_the_default_start_method_and_cannot_change_its_parents(ctx):
    before = multiprocessing.get_start_method(allow_none=True)
    conn, other = ctx.Pipe(duplex=False)
    child = ctx.Process(target=change_default, args=(other,))
    child.start()
    assert conn.recv() == (ctx.get_start_method(), "spawn")
    child.join()
    assert multiprocessing.get_start_method(allow_none=True) == before
    conn.close()
    other.close()


def change_default(conn):
    first = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    conn.send((first, multiprocessing.get_start_method()))
