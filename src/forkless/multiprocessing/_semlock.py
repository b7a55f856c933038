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
import types
import weakref
from typing import Any, Protocol

__all__ = ["SemLock", "as_extension", "sem_unlink"]

RECURSIVE_MUTEX = 0
_handles = itertools.count(1)


class _Core(Protocol):
    """The semaphore itself. Every SemLock rebuilt from one handle shares it."""

    def acquire(self, blocking: bool, timeout: float) -> bool: ...
    def release(self, maxvalue: int) -> None: ...
    def value(self) -> int: ...


class _Binary:
    """Zero or one: a lock is enough, and is as fast as it gets."""

    def __init__(self, value: int) -> None:
        self._lock = _thread.allocate_lock()
        if not value:
            self._lock.acquire()
        self.acquire = self._lock.acquire

    def release(self, maxvalue: int) -> None:  # noqa: ARG002  (it is one)
        try:
            self._lock.release()
        except RuntimeError:
            raise ValueError("semaphore or lock released too many times") from None

    def value(self) -> int:
        return 0 if self._lock.locked() else 1


class _Counting:
    """A number, and a queue of those who wait for it to rise. Each waits on a lock of its own, so none is woken in vain."""

    def __init__(self, value: int) -> None:
        self._value = value
        self._waiting: collections.deque[_thread.LockType] = collections.deque()
        # Re-entrant: a finalizer may release this very semaphore from inside an allocation made under it.
        self._mutex = _thread.RLock()

    def acquire(self, blocking: bool, timeout: float) -> bool:
        with self._mutex:
            if self._value > 0:
                self._value -= 1
                return True
            if not blocking or timeout == 0:
                return False
            turn = _thread.allocate_lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            came = turn.acquire(True, timeout)
        except BaseException:
            # Interrupted by a signal. If our turn came at that very moment, it is passed on.
            if not self._step_out(turn):
                self.release(SemLock.SEM_VALUE_MAX)
            raise
        return came or not self._step_out(turn)

    def _step_out(self, turn: _thread.LockType) -> bool:
        """Leave the queue of those who wait; false if it is too late, because the turn has been given."""
        with self._mutex:
            try:
                self._waiting.remove(turn)
            except ValueError:
                return False
            return True

    def release(self, maxvalue: int) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            elif self._value >= maxvalue:
                raise ValueError("semaphore or lock released too many times")
            else:
                self._value += 1

    def value(self) -> int:
        return self._value


_cores: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_names: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class SemLock:
    SEM_VALUE_MAX = 2**31 - 1

    # Always None: there is nothing in the file system to unlink later, and so nothing for a tracker to remember.
    name: str | None = None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if kind not in (0, 1):
            raise ValueError("unrecognized kind")
        if not unlink and name in _names:
            raise FileExistsError(17, "File exists")
        core = _Binary(value) if maxvalue == 1 else _Counting(value)
        self._make(next(_handles), core, kind, maxvalue)
        _cores[self.handle] = core
        if not unlink:
            _names[name] = core

    def _make(self, handle: int, core: _Core, kind: int, maxvalue: int) -> None:
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
        if not block:
            wait = 0.0
        elif timeout is None:
            wait = -1.0
        else:
            wait = max(0.0, timeout)
        # The lock of the interpreter has no "wait for zero seconds", only "do not wait".
        if not (self._core.acquire(True, wait) if wait else self._core.acquire(False, -1)):
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
    module = types.ModuleType("_multiprocessing", "SemLock for the threads of one process; stands in for the extension.")
    vars(module).update(SemLock=SemLock, sem_unlink=sem_unlink, flags={})
    return module
