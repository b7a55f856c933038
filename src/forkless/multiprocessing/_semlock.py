# SPDX-License-Identifier: GPL-3.0-or-later
"""
What POSIX needs of the extension `_multiprocessing`: SemLock, for the threads of one process.

Same names, same errors, same corner cases as the C type. It has no name in the file system: nothing has to be opened,
tracked or unlinked, so it works where sem_open does not.
"""

from __future__ import annotations

import _thread
import collections
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
    be woken without the others: when the number rises, or when its child is told to stop.
    """

    def __init__(self, value: int) -> None:
        self.value = value
        self._turns: collections.deque[_thread.LockType] = collections.deque()
        # Guards both. Re-entrant: a finalizer may release this very semaphore from inside an allocation made under it.
        self._mutex = _thread.RLock()

    def acquire(self, seconds: float | None) -> bool:
        """Take one. Wait that long for it, or for ever."""
        with self._mutex:
            if self.value > 0:
                self.value -= 1
                return True
        if seconds is None:
            while not self._wait(-1):
                pass
            return True
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._wait(left):
                return True
        return False

    def _wait(self, seconds: float) -> bool:
        """One turn in the queue. Nothing is handed over: who is awake already may be faster, and often is."""
        with self._mutex:
            if self.value > 0:
                self.value -= 1
                return True
            turn = _thread.allocate_lock()
            turn.acquire()
            self._turns.append(turn)
        waits = here().waits
        waits.add(turn)
        try:
            turn.acquire(True, min(seconds, _thread.TIMEOUT_MAX))
        except BaseException:
            self._step_out(turn, passing_on=True)
            raise
        finally:
            waits.discard(turn)
        return self._step_out(turn, passing_on=False)

    def _step_out(self, turn: _thread.LockType, *, passing_on: bool) -> bool:
        with self._mutex:
            try:
                self._turns.remove(turn)
            except ValueError:  # we were called up
                if passing_on and self._turns:
                    self._turns.popleft().release()
            if not passing_on and self.value > 0:
                self.value -= 1
                return True
            return False

    def release(self, maxvalue: int) -> None:
        with self._mutex:
            if self.value >= maxvalue:
                raise ValueError("semaphore or lock released too many times")
            self.value += 1
            if self._turns:
                self._turns.popleft().release()


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
        core = _Semaphore(value)
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
        if not self._core.acquire((timeout if timeout is None else max(0.0, timeout)) if block else 0.0):
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
            self._core.release(self.maxvalue)
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
        return self._core.value

    def _is_zero(self) -> bool:
        return self._core.value == 0

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
