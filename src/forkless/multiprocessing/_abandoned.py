# SPDX-License-Identifier: GPL-3.0-or-later
"""
Asking a thread to stop, and saying so when it does not.

A process can be killed. A thread can only be asked: an exception is raised in it at its next bytecode. One that never
reaches a next bytecode, because it sits in a blocking call, cannot be stopped by anyone. Its child counts as dead all
the same (exit code, sentinel, join), as after a kill; the thread is left behind, and named by abandoned().
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkless.multiprocessing._life import Life

__all__ = ["Abandoned", "Stop", "Stopper", "abandoned"]

# A pool that is closed tells its idle workers to leave, and terminates them in the same breath. A worker that is on its
# way out is let go in peace: an exception that hits it between two statements could leave a lock taken.
MOMENT = 0.02
# How long a thread that was asked to stop may take to unwind, its `finally` clauses included, before its child is
# declared dead over its head. A thread that runs bytecode needs a few milliseconds.
GRACE = 0.1

_log = logging.getLogger(__name__.rpartition(".")[0])


class Stop(SystemExit):
    """Raised in a thread whose child was terminated. A SystemExit, so that no thread prints a traceback for it."""


@dataclass(frozen=True)
class Abandoned:
    """A thread that outlived its child: asked to stop, and still there."""

    name: str
    pid: int
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"{self.name} was told to stop {self.seconds:.1f} s ago and is still at\n{self.stack}"


class Stopper:
    """Stops the one thread of one life."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._name = ""
        self._ident = 0
        self._asked_at = 0.0
        # Guards gone. An exception must never be raised in a thread that has ended: the system reuses idents, and it
        # would hit whoever has that one now.
        self._lock = threading.Lock()
        self.signal = 0
        self.gone = False

    def thread_started(self, ident: int, name: str) -> None:
        self._ident = ident
        self._name = name

    def thread_gone(self) -> None:
        """Said by the thread when its work is over. No Stop is raised in it any more, and one on its way is taken back."""
        with self._lock:
            self.gone = True
        if self.signal:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), None)

    def stop(self, signal: int) -> None:
        if self._life.returncode is not None or self.signal:
            return
        self._asked_at = time.monotonic()
        self.signal = signal
        try:
            threading.Thread(target=self._see_to_it, name=f"stops {self._name}", daemon=True).start()
        except RuntimeError:
            # The interpreter is on its way out and starts no more threads.
            self._see_to_it(moment=0, grace=GRACE / 10)

    def _see_to_it(self, moment: float = MOMENT, grace: float = GRACE) -> None:
        if self._life.wait(moment) is not None:
            return
        if self._life.leaving and self._life.wait(grace) is not None:
            return
        self._ask()
        if self._life.wait(grace) is not None:
            return
        try:
            if not self.gone:
                _left_behind.append(self)
                _log.warning("%s", self.report())
        finally:
            # Afterwards: the program may only be waiting for this to exit, and would take the notice along.
            self._life.end(-self.signal)

    def _ask(self) -> None:
        with self._lock:
            if not self.gone:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), ctypes.py_object(Stop))
        for turn in list(self._life.waits):
            with contextlib.suppress(RuntimeError):  # it was awake already
                turn.release()

    def report(self) -> Abandoned:
        frame = sys._current_frames().get(self._ident)
        stack = "".join(traceback.format_stack(frame, limit=None)[-3:]) if frame else "(no frame)"
        return Abandoned(self._name, self._life.pid, time.monotonic() - self._asked_at, stack)


_left_behind: list[Stopper] = []


def abandoned() -> list[Abandoned]:
    """The threads that were told to stop and have not, oldest first. Those that have gone meanwhile are forgotten."""
    _left_behind[:] = [stopper for stopper in _left_behind if not stopper.gone]
    return [stopper.report() for stopper in _left_behind]
