# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a worker is reached when it must stop.

A process could be killed. A thread can be sent an exception, but sees it only when it next runs a line of Python;
so what it is blocked in must be ended too: its child processes, its sleeps, its channels. Each of these is kept
here while the worker is in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Reach", "WorkerStopped", "wait_for_ended_groups"]

GRACE = 5.0


class WorkerStopped(BaseException):
    """Sent into a worker that is told to end. Not an Exception: no plugin's `except Exception` may swallow it."""


class Reach:
    """What one worker is in, and the way to get it out."""

    def __init__(self) -> None:
        # Guards the fields and nothing else.
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._thread: int | None = None
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closers: list[Callable[[], None]] = []
        self._sent: type[BaseException] | None = None
        self._over = False
        self._shielded = 0
        self.own_session = True
        """Whether its children have no terminal: since 2.21 a task may ask for the one that the program has."""

    def begin(self) -> None:
        """The calling thread is the worker from here on. One that was told to end before it began ends here."""
        with self._lock:
            self._thread = threading.get_ident()
            early = self._sent
        if early is not None:
            raise early

    def end(self) -> None:
        """From here on nothing is sent any more: the thread may already be at another task."""
        with self._lock:
            self._thread = None
            self._over = True
            if self._sent is not None:
                _take_back()
            children = list(self._children)
            self._children.clear()
            self._closers.clear()
        for child in children:
            # A worker that was a process took its children with it only when it was killed; one that ended left them.
            # A child that nobody waited for is reaped, not ended, and nobody reads its pipes any more.
            child.poll()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def interrupt(self, error: type[BaseException]) -> bool:
        """Get the worker out of whatever it is in, with this error. False if it has already left."""
        with self._lock:
            if self._over:
                return False
            self._sent = error
            if self._thread is not None and not self._shielded:
                _send(self._thread, error)
            children = list(self._children)
            closers = list(self._closers)
            self._wake.notify_all()
        end_groups(children)
        for close in closers:
            with contextlib.suppress(Exception):  # a channel that is gone already is closed
                close()
        return True

    def withdraw(self) -> None:
        """Take back an error that was sent and has not arrived. Called by the worker itself."""
        with self._lock:
            if self._sent is not None and self._thread is not None:
                _take_back()
                self._sent = None

    def sleep(self, seconds: float) -> None:
        """time.sleep, but one that ends when the worker is interrupted."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self._sent is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                # In slices: the error that was sent is seen between two of them even if the wake-up got lost.
                self._wake.wait(min(left, 5.0))
            raise self._sent

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """
        While in here nothing is raised in the worker; what was sent meanwhile is raised at the end.

        For the moment between starting a child and knowing of it: an error in between would leave a child that nobody ends.
        """
        with self._lock:
            if self._sent is not None:
                raise self._sent
            self._shielded += 1
        try:
            yield
        finally:
            with self._lock:
                self._shielded -= 1
                late = self._sent
        if late is not None:
            raise late

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            # Those that ended need no ending; without this a long loop of commands would keep every one of them.
            self._children = {known for known in self._children if known.returncode is None}
            self._children.add(child)
            late = self._sent is not None
        if late:
            end_groups([child])

    @contextlib.contextmanager
    def closing(self, close: Callable[[], None]) -> Iterator[None]:
        """While in here the worker is in something that `close` ends."""
        with self._lock:
            self._closers.append(close)
            late = self._sent is not None
        if late:
            close()
        try:
            yield
        finally:
            with self._lock:
                if close in self._closers:
                    self._closers.remove(close)


def end_groups(children: list[subprocess.Popen[bytes]]) -> None:
    """End children with their whole process groups, which are their own: `_views.Popen` saw to that."""
    alive = [child for child in children if child.returncode is None and _kill(child, signal.SIGTERM)]
    if alive:
        ended = threading.Event()
        _ending.add(ended)
        threading.Thread(target=_insist, args=(alive, ended), name="forkless-end", daemon=True).start()


# One for each end that is being made. Not the threads: one that is about to start cannot be waited for.
_ending: set[threading.Event] = set()


def _insist(children: list[subprocess.Popen[bytes]], ended: threading.Event) -> None:
    try:
        _see_to_the_end(children)
    finally:
        _ending.discard(ended)
        ended.set()


def _see_to_the_end(children: list[subprocess.Popen[bytes]]) -> None:
    """SIGKILL for what is left of a group after a moment, also when its leader is gone."""
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline and any(child.returncode is None for child in children):
        time.sleep(0.02)
    for child in children:
        _kill(child, signal.SIGKILL)
        # The worker that would have waited for it may be gone: no zombie is left.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE)


def wait_for_ended_groups() -> None:
    """For who is about to end the process: what is being ended now has been ended."""
    for ended in tuple(_ending):
        ended.wait(GRACE)


def _kill(child: subprocess.Popen[bytes], number: signal.Signals) -> bool:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _send(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class _Nothing(BaseException):
    """Takes the place of an error that must not arrive."""


def _take_back() -> None:
    """
    An error that was sent to this thread and has not arrived does not arrive any more.

    Not by sending NULL, which is what the C API has for it: up to Python 3.12 that leaves a flag up for ever, by which every call and every
    round of a loop in the whole process takes the interpreter's slow way, and a profiler never gets out of its first function.
    Only an error that arrives takes the flag down; so one is sent that is caught here.
    """
    try:
        _send(threading.get_ident(), _Nothing)
        while True:
            pass
    except _Nothing:
        pass
