# SPDX-License-Identifier: GPL-3.0-or-later
"""
What POSIX needs of the extension `_multiprocessing`: SemLock, for the threads of one process.

Same names, same errors, same corner cases as the C type. It has no name in the file system: nothing has to be opened,
tracked or unlinked, so it works where sem_open does not.
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

from forkless.multiprocessing._life import here

__all__ = ["RECURSIVE_MUTEX", "SEMAPHORE", "SemLock", "as_extension", "sem_unlink"]

RECURSIVE_MUTEX = 0
SEMAPHORE = 1
_handles = itertools.count(1)


class _Semaphore:
    """
    The semaphore itself. Every SemLock rebuilt from one handle shares it.

    A number, and a queue of those who wait for it to rise. Each waits on a lock of its own, its turn, so that one can
    be woken without the others: when the number rises, or when its child is told to stop. Nothing is handed over: who
    is awake already may be faster than the one whose turn it is, and often is.
    """

    # Of a queue's lock: the messages on their way. Whoever has this semaphore in common has them in common too.
    shelf: Any = None

    def __init__(self, value: int) -> None:
        self._value = value
        self._turns: collections.deque[_thread.LockType] = collections.deque()
        # Guards _value. Re-entrant: a finalizer may release this very semaphore from inside an allocation made under it.
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
        """Wait that long for it, or for ever."""
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
        waits = here().waits
        waits.add(turn)
        try:
            # Once more, now that we are in the queue: whoever put one back before that did not see us there.
            if self.try_to_take():
                return True
            turn.acquire(True, seconds)
            return self.try_to_take()
        finally:
            waits.discard(turn)
            try:
                self._turns.remove(turn)
            except ValueError:
                # We were called up. If there is still one to be had, so may be the next: we may have left without it.
                if self.value() > 0:
                    self._call_up()

    def _call_up(self) -> None:
        with contextlib.suppress(IndexError, RuntimeError):  # nobody is waiting; or that one is awake already
            self._turns.popleft().release()


class _Mutex(_Semaphore):
    """One that never rises above one: the number is a lock, which is as fast as it gets."""

    def __init__(self, value: int) -> None:
        super().__init__(0)
        self._lock = _thread.allocate_lock()
        if not value:
            self._lock.acquire()

    def value(self) -> int:
        return 0 if self._lock.locked() else 1

    def try_to_take(self) -> bool:
        return self._lock.acquire(False)

    def put_back(self, maxvalue: int) -> None:  # noqa: ARG002  (it is one)
        try:
            self._lock.release()
        except RuntimeError:
            raise ValueError("semaphore or lock released too many times") from None
        if self._turns:
            self._call_up()


_cores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_names: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class SemLock:
    SEM_VALUE_MAX = 2**31 - 1

    # Always None: there is nothing in the file system to unlink later, and so nothing for a tracker to remember.
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
        # Before it is let go: afterwards these belong to whoever took it.
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
    """A module to be found under the name `_multiprocessing`."""
    module = types.ModuleType(
        "_multiprocessing", "SemLock for the threads of one process; stands in for the extension."
    )
    vars(module).update(SemLock=SemLock, sem_unlink=sem_unlink, flags={})
    return module
