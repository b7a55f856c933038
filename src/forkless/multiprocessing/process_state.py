# SPDX-License-Identifier: GPL-3.0-or-later
"""
ProcessState: the state that an interpreter keeps once per process, kept once per child.

MAIN is the program's own. Every thread belongs to one ProcessState: a child's thread to that child's, any other thread
to that of the thread that started it. current_state() returns it.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import itertools
import os
import threading
import time
from multiprocessing import process as stdlib_process
from typing import TYPE_CHECKING, Any

from forkless.core import thread_exception

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAIN", "OwnedNumber", "OwnedNumbers", "ProcessState", "current_state", "inherit_state"]

# Higher than any system's process ids, so that os.kill(child.pid) can never hit an unrelated process.
_pids = itertools.count((1 << 30) + 1)


class ProcessState:
    """
    The state behind current_process(), active_children() and so on, from the child's start to its exit code.

    Any thread may call the methods; the other attributes are set by the child's own threads and its parent.
    """

    def __init__(self, pid: int, parent: ProcessState | None) -> None:
        self.pid = pid
        self.parent: Any = parent
        self.process: Any = None
        self.parent_process: object = None
        self.counter = itertools.count(1)
        self.children: set[object] = set()
        self.context: object = None
        # Descriptors duplicated for this child that no object owns yet.
        self.unclaimed_fds: set[int] = set()
        # Locks on which threads of this child wait; Stopper releases them to wake the threads.
        self.waits: set[_thread.LockType] = set()
        # Whether a finalizer, an after-fork hook or a thread was ever created in it: most children end without any.
        self.registered_finalizers = False
        self.started_threads = False
        # Whether run() has ended and the cleanup has begun.
        self.leaving = False
        self.returncode: int | None = None
        # One lock for each thread that waits for the end. An Event needs three more objects, and would take most of the
        # time between start() and join().
        self._waiters: list[_thread.LockType] = []
        self._sentinel: tuple[int, int] | None = None
        # Guards returncode, _waiters and _sentinel; never held while foreign code is called. Re-entrant, because the
        # garbage collector may close a child during any allocation made under this lock.
        self._lock = _thread.RLock()

    @classmethod
    def child_of(cls, parent: ProcessState) -> ProcessState:
        return cls(next(_pids), parent)

    def end(self, returncode: int) -> None:
        """Record the exit code and wake all waiters. Only the first call counts: an abandoned thread may end later."""
        with self._lock:
            if self.returncode is not None:
                return
            self.returncode = returncode
            if self._sentinel is not None:
                os.close(self._sentinel[1])
            for waiter in self._waiters:
                _wake(waiter)

    def wait(self, timeout: float | None) -> int | None:
        if self.returncode is not None or (timeout is not None and timeout <= 0):
            return self.returncode
        waiter = _thread.allocate_lock()
        waiter.acquire()
        deadline = None if timeout is None else time.monotonic() + timeout
        # Stopper releases this lock as well, so that a blocked thread reaches a bytecode at which ThreadStopped is
        # raised.
        waits = current_state().waits
        waits.add(waiter)
        with self._lock:
            self._waiters.append(waiter)
        try:
            while self.returncode is None:
                left = -1 if deadline is None else deadline - time.monotonic()
                if deadline is not None and left <= 0:
                    break
                waiter.acquire(True, min(left, _thread.TIMEOUT_MAX))
        finally:
            waits.discard(waiter)
            with self._lock:
                self._waiters.remove(waiter)
        return self.returncode

    def sentinel(self) -> int:
        """A descriptor that is readable once the child has ended. Opened by the first call: most are only joined."""
        with self._lock:
            if self._sentinel is None:
                self._sentinel = os.pipe()
                if self.returncode is not None:
                    os.close(self._sentinel[1])
            return self._sentinel[0]

    def close_sentinel(self) -> None:
        with self._lock:
            if self._sentinel is None:
                return
            reader, writer = self._sentinel
            self._sentinel = None
            os.close(reader)
            if self.returncode is None:
                os.close(writer)

    def __del__(self) -> None:
        self.close_sentinel()


def _wake(waiter: _thread.LockType) -> None:
    with contextlib.suppress(RuntimeError):  # the waiter is already awake
        waiter.release()


class _Main(ProcessState):
    """The program's own state. It uses the stdlib's objects, so that they are up to date after uninstall()."""

    def __init__(self) -> None:
        super().__init__(os.getpid(), None)
        self.look_around()

    def look_around(self) -> None:
        """Read the stdlib's current objects. In a really forked process the stdlib has replaced all of them."""
        self.pid = os.getpid()
        stdlib: dict[str, Any] = vars(stdlib_process)
        self.process = stdlib["_current_process"]
        self.parent_process = stdlib["_parent_process"]
        self.children = stdlib["_children"]
        self.counter = stdlib["_process_counter"]

    def __del__(self) -> None:
        """Do nothing: MAIN is deleted when the interpreter ends, and the system closes its descriptors."""


MAIN = _Main()


# The table behind threading.current_thread(), which would create an entry for an unknown thread.
_threads: dict[int, threading.Thread] = vars(threading)["_active"]


def current_state() -> ProcessState:
    """The ProcessState of the calling thread."""
    state: ProcessState = getattr(_threads.get(_thread.get_ident()), "_forkless_state", MAIN)
    return state


def inherit_state(start: Callable[..., object]) -> object:
    """
    Return a Thread.start that gives the new thread the ProcessState of the thread that starts it. A child is stopped before or after it, not
    within.
    """

    def start_in_this_state(self: threading.Thread) -> None:
        state = current_state()
        if state is not MAIN:
            state.started_threads = True
            self._forkless_state = state  # type: ignore[attr-defined]
        thread_exception.starting(functools.partial(start, self))

    return start_in_this_state


class OwnedNumber(int):
    """A number from one of multiprocessing.util's counters, with the pid of the ProcessState that took it."""

    owner: int

    @classmethod
    def of(cls, number: int, owner: int) -> OwnedNumber:
        ticket = cls(number)
        ticket.owner = owner
        return ticket

    @staticmethod
    def owner_of(number: int) -> int:
        return getattr(number, "owner", MAIN.pid)


class OwnedNumbers:
    """Replaces an itertools.count, so that the entries of one ProcessState can be found in the registries keyed by it."""

    def __init__(self, count: Any) -> None:
        self._count = count

    def __next__(self) -> OwnedNumber:
        state = current_state()
        state.registered_finalizers = True
        return OwnedNumber.of(next(self._count), state.pid)
