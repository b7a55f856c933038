# SPDX-License-Identifier: GPL-3.0-or-later
"""
Stops a child's thread, and reports it if it does not stop.

A thread cannot be killed. An exception can be set on it, which is raised at its next bytecode; a thread in a blocking
call does not reach one and cannot be stopped. Its child is then declared dead (exit code, sentinel, join), as after a
kill. The thread is abandoned and listed by abandoned().
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from forkless.core import thread_exception
from forkless.core.thread_stack import stack_as_text

if TYPE_CHECKING:
    from forkless.multiprocessing.process_state import ProcessState

__all__ = ["Abandoned", "Stopper", "ThreadInterrupted", "ThreadStopped", "abandoned"]

# Seconds before the exception is set. Pool.terminate() first tells idle workers to exit, and terminates them at once. A
# worker that is already exiting must not get an exception between two statements, where it could leave a lock held.
MOMENT = 0.02
# Seconds for a thread to unwind after the exception was set, `finally` clauses included, before its child is declared
# dead. A thread that executes bytecode needs a few milliseconds.
GRACE = 0.1

_log = logging.getLogger(__name__.rpartition(".")[0])


class ThreadStopped(SystemExit):
    """
    Raised in the thread of a terminated child. It is a SystemExit, so that no traceback is printed for it.

    A worker of a ProcessPoolExecutor catches every exception and sends it to the parent as the call's result. A
    terminated process sends nothing, so this exception is raised again when it is pickled.
    """

    def __reduce__(self) -> NoReturn:
        raise self


class ThreadInterrupted(KeyboardInterrupt):
    """
    Raised in the thread of an interrupted child, as SIGINT raises KeyboardInterrupt in a process. The child may catch
    it and continue.

    Each interrupt() raises a subclass with an event of its own. Creating the exception sets the event, which is the
    only evidence that the thread has reached a bytecode. A child that sends the exception sends a KeyboardInterrupt.
    """

    raised: threading.Event

    def __init__(self) -> None:
        super().__init__()
        self.raised.set()

    def __reduce__(self) -> tuple[type[KeyboardInterrupt], tuple[object, ...]]:
        return KeyboardInterrupt, self.args


@dataclass(frozen=True)
class Abandoned:
    """A thread that still runs after its child was declared dead."""

    name: str
    pid: int
    seconds: float
    stack: str

    def __str__(self) -> str:
        return f"{self.name} was told to stop {self.seconds:.1f} s ago and is still at\n{self.stack}"


class Stopper:
    """
    Stops the thread of one child. Any thread may call stop, interrupt and report.

    stop and interrupt return at once; only during interpreter shutdown stop waits for the thread, because it cannot
    start another.
    """

    def __init__(self, state: ProcessState) -> None:
        self._state = state
        self._name = ""
        self._ident = 0
        self._asked_at = 0.0
        # Guards `gone`. An exception must not be set on a thread that has ended: the system reuses thread idents, so it
        # could hit an unrelated thread.
        self._lock = threading.Lock()
        self.signal = 0
        self.interrupted = False
        self.gone = False

    def thread_started(self, ident: int, name: str) -> None:
        self._ident = ident
        self._name = name

    def thread_gone(self) -> None:
        """Called by the thread when its work is over: no exception is set on it afterwards, a pending one is cancelled."""
        with self._lock:
            if self in _left_behind:  # before `gone`: the call is repeated until that is set
                _left_behind.remove(self)
            self.gone = True
        if self.signal or self.interrupted:
            thread_exception.take_back()

    def stop(self, signal: int) -> None:
        if self._state.returncode is not None or self.signal:
            return
        self._asked_at = time.monotonic()
        self.signal = signal
        try:
            threading.Thread(target=self._see_to_it, name=f"stops {self._name}", daemon=True).start()
        except RuntimeError:
            # The interpreter is shutting down and starts no more threads.
            self._see_to_it(moment=0, grace=GRACE / 10)

    def interrupt(self) -> None:
        """
        Raise KeyboardInterrupt in the thread.

        A child whose thread does not reach a bytecode in time is declared dead, with the exit code of an uncaught
        exception.
        """
        if self._state.returncode is not None or self.signal:
            return
        self._asked_at = time.monotonic()
        self.interrupted = True
        threading.Thread(target=self._see_it_raised, name=f"interrupts {self._name}", daemon=True).start()

    def _see_it_raised(self) -> None:
        raised = threading.Event()
        kind = type("Interrupt", (ThreadInterrupted,), {"raised": raised, "__module__": __name__})
        if self._state.wait(MOMENT) is not None:
            return
        self._ask(kind)
        if not raised.wait(GRACE) and self._state.returncode is None:
            self._leave_behind(1)

    def _see_to_it(self, moment: float = MOMENT, grace: float = GRACE) -> None:
        if self._state.wait(moment) is not None:
            return
        if self._state.leaving and self._state.wait(grace) is not None:
            return
        self._ask(ThreadStopped)
        if self._state.wait(grace) is None:
            self._leave_behind(-self.signal)

    def _leave_behind(self, exitcode: int) -> None:
        """Declare the child dead, and log its thread as abandoned if it still runs."""
        try:
            with self._lock:
                late = not self.gone
                if late:
                    _left_behind.append(self)
            if late:
                _log.warning("%s", self.report())
        finally:
            # After logging: the program may exit as soon as the child has ended, and the warning would be lost.
            self._state.end(exitcode)

    def _ask(self, kind: type[BaseException]) -> None:
        with self._lock:
            if not self.gone:
                thread_exception.send(self._ident, kind)
        for turn in list(self._state.waits):
            with contextlib.suppress(RuntimeError):  # the waiter is already awake
                turn.release()

    def report(self) -> Abandoned:
        stack = stack_as_text(self._ident, last=3) or "(no frame)"
        return Abandoned(self._name, self._state.pid, time.monotonic() - self._asked_at, stack)


# Only threads that still run: a stopper holds its child's state, and through it the child's ends of pipes.
_left_behind: list[Stopper] = []


def abandoned() -> list[Abandoned]:
    """The abandoned threads that still run, oldest first. A thread that has ended is not listed any more."""
    return [stopper.report() for stopper in list(_left_behind) if not stopper.gone]
