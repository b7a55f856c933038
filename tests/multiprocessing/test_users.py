# SPDX-License-Identifier: GPL-3.0-or-later
"""One program each, as a user would write it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import multiprocessing.pool
import operator
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.managers import BaseManager
from multiprocessing.pool import RemoteTraceback
from multiprocessing.shared_memory import ShareableList, SharedMemory

import pytest


def square(number):
    return number * number


def divide(numerator, denominator):
    return numerator / denominator


def whoami(_):
    return multiprocessing.current_process().pid


def count_words(counts, text):
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1


class Account:
    def __init__(self):
        self._balance = 0

    def deposit(self, amount):
        self._balance += amount

    def balance(self):
        return self._balance


class Bank(BaseManager):
    pass


Bank.register("Account", Account)


def deposit_often(account):
    for _ in range(10):
        account.deposit(1)


def fill(name, index):
    block = SharedMemory(name)
    block.buf[index] = index + 1
    block.close()


remembered = []


def remember(word):
    remembered.append(word)


def recall(_):
    return remembered[-1]


def test_a_process_pool_executor(ctx):
    with ProcessPoolExecutor(max_workers=3, mp_context=ctx) as pool:
        assert list(pool.map(square, range(20), chunksize=4)) == [n * n for n in range(20)]
        futures = {pool.submit(divide, 10, n): n for n in (1, 2, 0)}
        outcome = {futures[f]: f.exception() or f.result() for f in as_completed(futures)}
    assert outcome[1] == 10
    assert outcome[2] == 5
    assert isinstance(outcome[0], ZeroDivisionError)
    assert "in divide" in str(outcome[0].__cause__) or "divide" in str(outcome[0].__cause__)


def test_an_executor_whose_initializer_fails_is_broken_and_says_so(ctx, caplog):
    with ProcessPoolExecutor(1, mp_context=ctx, initializer=divide, initargs=(1, 0)) as pool:
        with pytest.raises(BrokenProcessPool):
            pool.submit(square, 2).result(60)
    assert "ZeroDivisionError: division by zero" in caplog.text
    caplog.clear()  # the record holds the worker's frames, and they its pipes


@pytest.mark.parametrize("method", ["spawn", "forkserver", "thread"])
def test_an_executor_that_replaces_its_workers(method):
    import forkless.multiprocessing as fm

    with fm.installed():
        ctx = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=ctx, max_tasks_per_child=2) as pool:
            pids = [pool.submit(whoami, None).result(60) for _ in range(6)]
    assert len(set(pids)) == 3


def test_a_pool(ctx):
    with ctx.Pool(3, initializer=remember, initargs=("sesame",), maxtasksperchild=5) as pool:
        assert pool.map(square, range(30)) == [n * n for n in range(30)]
        assert sorted(pool.imap_unordered(square, range(10), 3)) == [n * n for n in range(10)]
        # With a chunk size: the stdlib divides by the number of workers to find one, and for a moment all of them may have ended.
        assert pool.starmap(divide, [(1, 2), (9, 3)], 1) == [0.5, 3]
        assert set(pool.map(recall, range(10), 1)) == {"sesame"}
        late = pool.apply_async(divide, (1, 0))
        with pytest.raises(ZeroDivisionError) as caught:
            late.get(60)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        pool.close()
        pool.join()


class PicklingQueue:
    """A queue of one's own, as joblib has one: not a subclass of the stdlib's, but made in its image."""

    def __init__(self, ctx):
        self._reader, self._writer = ctx.Pipe(duplex=False)
        self._rlock, self._wlock = ctx.Lock(), ctx.Lock()
        self._make_methods()

    def __getstate__(self):
        multiprocessing.context.assert_spawning(self)
        return (self._reader, self._writer, self._rlock, self._wlock)

    def __setstate__(self, state):
        self._reader, self._writer, self._rlock, self._wlock = state
        self._make_methods()

    def _make_methods(self):
        def get():
            with self._rlock:
                return self._reader.recv()

        def put(thing):
            with self._wlock:
                self._writer.send(thing)

        self.get, self.put, self._send, self._recv = get, put, self._writer.send, self._reader.recv

    def empty(self):
        return not self._reader.poll()


class PicklingPool(multiprocessing.pool.Pool):
    def _setup_queues(self):
        self._inqueue, self._outqueue = PicklingQueue(self._ctx), PicklingQueue(self._ctx)
        self._quick_put, self._quick_get = self._inqueue._send, self._outqueue._recv


class Parallel:
    """What joblib users write, down to how it is done: delayed calls, through a pool with queues of its own."""

    def __init__(self, ctx, n_jobs):
        self._ctx, self._n_jobs = ctx, n_jobs

    def __call__(self, calls):
        with PicklingPool(self._n_jobs, context=self._ctx) as pool:
            pending = [pool.apply_async(function, args, kwargs) for function, args, kwargs in calls]
            return [job.get(60) for job in pending]


def delayed(function):
    return lambda *args, **kwargs: (function, args, kwargs)


def test_joblib_style(ctx):
    roots = Parallel(ctx, n_jobs=2)(delayed(operator.pow)(n, 2) for n in range(50))
    assert roots == [n**2 for n in range(50)]


def test_a_manager(ctx):
    texts = ["a rose is a rose", "is a rose"]
    with ctx.Manager() as manager:
        counts, lock = manager.dict(), manager.Lock()
        for text in texts:
            child = ctx.Process(target=count_words, args=(counts, text))
            child.start()
            child.join()
            assert child.exitcode == 0
        assert dict(counts) == {"a": 3, "rose": 3, "is": 2}
        with lock:
            inner = manager.list([manager.list([1])])
            inner[0].append(2)
        assert list(inner[0]) == [1, 2]
        queue = manager.Queue()
        queue.put(3)
        assert queue.get() == 3


def test_a_manager_of_ones_own_types(ctx):
    with Bank(ctx=ctx) as bank:
        account = bank.Account()
        children = [ctx.Process(target=deposit_often, args=(account,)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert account.balance() == 30
    assert bank._process.exitcode == 0


def test_shared_memory(ctx):
    block = SharedMemory(create=True, size=4)
    children = [ctx.Process(target=fill, args=(block.name, index)) for index in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert bytes(block.buf[:4]) == b"\1\2\3\4"
    block.close()
    block.unlink()
    words = ShareableList(["one", 2, 3.0])
    assert list(ShareableList(name=words.shm.name)) == ["one", 2, 3.0]
    words.shm.close()
    words.shm.unlink()


def test_os_getpid_stays_the_programs(ctx):
    with ctx.Pool(1) as pool:
        assert pool.apply(os.getpid) == os.getpid()
