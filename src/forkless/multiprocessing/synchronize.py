# SPDX-License-Identifier: GPL-3.0-or-later
"""
Replaces the extension `_multiprocessing`: SemLock, for the threads of one process.

It has the names, errors and corner cases of the C type, but no name in the file system: nothing is opened, tracked or
unlinked, so it works where sem_open does not.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import itertools
import time
import types
import weakref
from typing import Any

from forkless.multiprocessing.process_state import current_state

__all__ = ["RECURSIVE_MUTEX", "SEMAPHORE", "SemLock", "as_extension", "sem_unlink"]

RECURSIVE_MUTEX = 0
SEMAPHORE = 1
_handles = itertools.count(1)


class _Semaphore:
    """
    The semaphore that all SemLocks rebuilt from one handle share. Any thread may use it.

    It is a counter and a queue of waiting threads. Each thread waits on a lock of its own (its turn), so that it can be
    woken alone: by put_back, or when its child is stopped. The semaphore is not handed over: a running thread may take
    it before the woken one does.
    """

    # The message store of the queue whose write lock this is. Copies of a queue share the semaphore, and by it the
    # store.
    store: object = None

    def __init__(self, value: int) -> None:
        self._value = value
        self._turns: collections.deque[_thread.LockType] = collections.deque()
        # Guards _value. Re-entrant, because a finalizer that runs during an allocation under it may release this
        # semaphore.
        self._mutex = _thread.RLock()

    def value(self) -> int:
        return self._value

    def try_to_take(self) -> bool:
        with self._mutex:
            if self._value > 0:
                self._value -= 1
                return True
            return False

    def put_back(self, maxvalue: int) -> None:
        with self._mutex:
            if self._value >= maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self._value += 1
        if self._turns:
            self._call_up()

    def take(self, seconds: float | None) -> bool:
        """Take the semaphore within `seconds`, or wait without limit if None. Returns whether it was taken."""
        if seconds is None:
            while not self._wait(-1):
                pass
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._wait(min(left, _thread.TIMEOUT_MAX)):
                return True
        return False

    def _wait(self, seconds: float) -> bool:
        turn = _thread.allocate_lock()
        turn.acquire()
        self._turns.append(turn)
        waits = current_state().waits
        waits.add(turn)
        try:
            # Try again after queueing: a put_back() before that did not see this thread in the queue and woke no one.
            if self.try_to_take():
                return True
            turn.acquire(True, seconds)
            return self.try_to_take()
        finally:
            waits.discard(turn)
            try:
                self._turns.remove(turn)
            except ValueError:
                # This thread was woken and may leave without the semaphore (stopped, or timed out): pass the wake-up
                # on.
                if self.value() > 0:
                    self._call_up()

    def _call_up(self) -> None:
        with contextlib.suppress(IndexError, RuntimeError):  # the last waiter has left, or is already awake
            self._turns.popleft().release()


class _Mutex(_Semaphore):
    """A semaphore whose maximum is one: a lock in place of the counter makes it faster."""

    def __init__(self, value: int) -> None:
        super().__init__(0)
        self._lock = _thread.allocate_lock()
        if not value:
            self._lock.acquire()

    def value(self) -> int:
        return 0 if self._lock.locked() else 1

    def try_to_take(self) -> bool:
        return self._lock.acquire(False)

    def put_back(self, maxvalue: int) -> None:  # noqa: ARG002  (always one)
        try:
            self._lock.release()
        except RuntimeError:
            raise ValueError("semaphore or lock released too many times") from None
        if self._turns:
            self._call_up()


_cores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_names: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()


class SemLock:
    """
    Replaces _multiprocessing.SemLock. Any thread may use it.

    A waiting thread can be stopped, unlike one in the C type's sem_wait.
    """

    SEM_VALUE_MAX = 2**31 - 1

    # Always None: there is nothing in the file system that a resource tracker would have to unlink.
    name: str | None = None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if kind not in (RECURSIVE_MUTEX, SEMAPHORE):
            raise ValueError("unrecognized kind")
        if not unlink and name in _names:
            raise FileExistsError(17, "File exists")
        core = _Mutex(value) if maxvalue == 1 else _Semaphore(value)
        self._make(next(_handles), core, kind, maxvalue)
        _cores[self.handle] = core
        if not unlink:
            _names[name] = core

    def _make(self, handle: int, core: _Semaphore, kind: int, maxvalue: int) -> None:
        self.handle = handle
        self.kind = kind
        self.maxvalue = maxvalue
        self._core = core
        self._held = 0
        self._holder = 0

    @classmethod
    def _rebuild(cls, handle: int, kind: int, maxvalue: int, name: str | None) -> SemLock:  # noqa: ARG003
        try:
            core = _cores[handle]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory") from None
        self = cls.__new__(cls)
        self._make(handle, core, kind, maxvalue)
        return self

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        me = _thread.get_ident()
        if self.kind == RECURSIVE_MUTEX and self._held and self._holder == me:
            self._held += 1
            return True
        if not self._core.try_to_take() and not (block and self._core.take(timeout)):
            return False
        self._held += 1
        self._holder = me
        return True

    def release(self) -> None:
        if self.kind == RECURSIVE_MUTEX:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        # Before put_back: afterwards another thread may hold the lock and change _held.
        self._held -= 1
        try:
            self._core.put_back(self.maxvalue)
        except ValueError:
            self._held += 1
            raise

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._holder == _thread.get_ident()

    def _get_value(self) -> int:
        return self._core.value()

    def _is_zero(self) -> bool:
        return self._core.value() == 0

    def _after_fork(self) -> None:
        self._held = 0


def sem_unlink(name: str) -> None:
    try:
        del _names[name]
    except KeyError:
        raise FileNotFoundError(2, "No such file or directory") from None


def as_extension() -> types.ModuleType:
    """A module for sys.modules["_multiprocessing"]."""
    module = types.ModuleType(
        "_multiprocessing", "SemLock for the threads of one process; stands in for the extension."
    )
    vars(module).update(SemLock=SemLock, sem_unlink=sem_unlink, flags={})
    return module
