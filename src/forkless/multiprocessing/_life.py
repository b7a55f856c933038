# SPDX-License-Identifier: GPL-3.0-or-later
"""
One life per process: what an interpreter keeps once, and we must keep once for every child.

The program itself is MAIN. Each child is a Life of its own, and every thread belongs to one: the thread a child was
started on, and whatever threads are started from there. here() says which.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import os
import threading
import time
from multiprocessing import process as stdlib_process
from typing import Any

__all__ = ["MAIN", "Life", "Ticket", "Tickets", "here", "inherit_life"]

# No system hands out process ids this high, so that os.kill(child.pid) can never hit a stranger.
_pids = itertools.count((1 << 30) + 1)


class Life:
    """What current_process(), active_children() and the rest look at, from birth to exit code."""

    def __init__(self, pid: int, parent: Life | None) -> None:
        self.pid = pid
        self.parent: Any = parent
        self.process: Any = None
        self.parent_process: Any = None
        self.counter = itertools.count(1)
        self.children: set[Any] = set()
        self.context: Any = None
        # Descriptors duplicated for this child that nothing has taken over yet.
        self.luggage: set[int] = set()
        # Locks that threads of this child wait for, and that can be released to wake them.
        self.waits: set[Any] = set()
        # Whether any finalizer, after-forker or thread was ever made in it: most lives end with none to look for.
        self.drew_tickets = False
        self.started_threads = False
        # Its work is done, and it is tidying up.
        self.leaving = False
        self.returncode: int | None = None
        # Each who waits for the end waits on a lock of their own, to be released by it. An Event does the same with
        # three objects more, and is what most of the time between a start and a join would go into.
        self._waiters: list[_thread.LockType] = []
        self._sentinel: tuple[int, int] | None = None
        # Guards returncode, _waiters and _sentinel, and nothing else. Never held while calling out. Re-entrant, because the
        # garbage collector may close a child from inside any allocation made under it.
        self._lock = _thread.RLock()

    @classmethod
    def child_of(cls, parent: Life) -> Life:
        return cls(next(_pids), parent)

    def end(self, returncode: int) -> None:
        """The first word is the last: a thread that goes on after it was declared dead cannot take it back."""
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
        # Whoever tells the waiting child to stop releases this too, so that it comes by a bytecode.
        waits = here().waits
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
        """A descriptor that becomes readable when this life ends. Opened when first asked for: most are only joined."""
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
    with contextlib.suppress(RuntimeError):  # it is awake already
        waiter.release()


class _Main(Life):
    """The program itself. Its belongings are the stdlib's own, so that stepping out again finds them where they were."""

    def __init__(self) -> None:
        super().__init__(os.getpid(), None)
        self.look_around()

    def look_around(self) -> None:
        """Take what the stdlib has now. A really forked child has replaced all of it since this module was imported."""
        self.pid = os.getpid()
        stdlib: dict[str, Any] = vars(stdlib_process)
        self.process = stdlib["_current_process"]
        self.parent_process = stdlib["_parent_process"]
        self.children = stdlib["_children"]
        self.counter = stdlib["_process_counter"]

    def __del__(self) -> None:
        """At the end of the interpreter there is nobody left to tell."""


MAIN = _Main()


# The table behind threading.current_thread(), which would make up an entry for a thread that has none.
_threads: dict[int, threading.Thread] = vars(threading)["_active"]


def here() -> Life:
    """The life that the calling thread belongs to."""
    life: Life = getattr(_threads.get(_thread.get_ident()), "_forkless_life", MAIN)
    return life


def inherit_life(start: Any) -> Any:
    """A Thread.start under which a new thread belongs to the life of the one that starts it."""

    def start_in_this_life(self: threading.Thread) -> None:
        life = here()
        if life is not MAIN:
            life.started_threads = True
            self._forkless_life = life  # type: ignore[attr-defined]
        start(self)

    return start_in_this_life


class Ticket(int):
    """A number from one of multiprocessing.util's counters that remembers who drew it."""

    owner: int

    @classmethod
    def of(cls, number: int, owner: int) -> Ticket:
        ticket = cls(number)
        ticket.owner = owner
        return ticket

    @staticmethod
    def owner_of(number: int) -> int:
        return getattr(number, "owner", MAIN.pid)


class Tickets:
    """In the place of an itertools.count: the registries keyed by it can be read for one life at a time."""

    def __init__(self, count: Any) -> None:
        self._count = count

    def __next__(self) -> Ticket:
        life = here()
        life.drew_tickets = True
        return Ticket.of(next(self._count), life.pid)
