# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of one module in this process: its arguments, its output and its exit functions."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from forkless.core import thread_exception
from forkless.core.own_thread_locals import OwnThreadLocal
from forkless.core.run_context import SCOPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from forkless.core.run_context import Interruptible
    from forkless.modules.live_output import TimedOutput

__all__ = [
    "VIEWS",
    "EndedByThread",
    "Invocation",
    "SignalAction",
    "belonging",
    "current",
    "entered",
    "executor_submit",
    "thread_start",
]

# Replacements for modules that an Ansible module imports by name, such as `time` with an interruptible sleep. The
# engine fills this.
VIEWS: dict[str, Any] = {}
SignalAction: TypeAlias = "Callable[[int, FrameType | None], object] | int | None"


@dataclass
class Invocation:
    """Holds what a module in a process of its own would keep in globals. It belongs to the thread that runs the module."""

    name: str
    arguments: bytes = field(repr=False)
    profile: str = "legacy"
    programs: bool = True
    """Whether the module may start programs."""
    parsed: dict[str, object] = field(default_factory=dict, repr=False)
    warnings: object = None
    deprecations: object = None
    stdout: io.StringIO = field(default_factory=io.StringIO)
    stderr: io.StringIO = field(default_factory=io.StringIO)
    output: TimedOutput | None = None
    """Receives the output of the module's programs while they run; None if the run has no listener."""
    secrets: list[bytes] = field(default_factory=list, repr=False)
    """What is masked in that output."""
    running: int = 0
    """The number of calls of run_command that are under way. Only the output of their programs is passed on, not that of programs that the module starts itself."""
    at_exit: list[Callable[[], object]] = field(default_factory=list)
    pid: int = field(default_factory=os.getpid)
    """The program's process; another one in a child that the module has forked."""
    assigned: dict[tuple[str, str], object] = field(default_factory=dict, repr=False)
    """What the module has assigned to attributes of `sys`, `os` and `signal`, by module and name."""
    signals: dict[int, SignalAction] = field(default_factory=dict)
    interrupted_itself: bool = False
    """Whether the module has sent SIGINT to its own process; any other KeyboardInterrupt is the program's."""
    ended_with: int | None = None
    """The exit status with which a thread that the module has started has ended its process; None if none has."""
    _thread: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def begin(self) -> None:
        """Called on the module's thread before the module's code."""
        self._thread = threading.get_ident()

    def is_on_own_thread(self) -> bool:
        """Whether the calling thread is the module's, and not one that the module has started."""
        return self._thread in (None, threading.get_ident())

    def finish(self) -> None:
        """Called on the module's thread after the module's code: from now on no other thread ends it. May be called again."""
        with self._lock:
            self._thread = None
        if self.ended_with is not None:
            thread_exception.take_back()
            interrupt = _interrupt()
            if interrupt is not None and interrupt.sent is not None:  # it may have been the one that was taken back
                raise interrupt.sent

    def end(self, status: int) -> NoReturn:
        """
        End the module as a process that ends with this status (negative: by a signal). On a thread that the module has started both end: the
        thread here, the module's own when it next executes Python code.
        """
        with self._lock:
            if self._thread is not None and self._thread != threading.get_ident() and self.ended_with is None:
                self.ended_with = status
                interrupt = _interrupt()
                (thread_exception.send if interrupt is None else interrupt.raise_once)(self._thread, EndedByThread)
        raise SystemExit(status)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    def leave(self) -> None:
        """Call the exit functions, newest first, as atexit would. A function that raises does not prevent the others."""
        while self.at_exit:
            with contextlib.suppress(Exception):
                self.at_exit.pop()()


def _interrupt() -> Interruptible | None:
    scope = SCOPE.get()
    return None if scope is None else scope.interrupt


class EndedByThread(BaseException):
    """Raised on a module's thread when a thread that the module has started ends the module's process."""


class _CurrentInvocation(OwnThreadLocal):
    invocation: Invocation | None = None


_here = _CurrentInvocation()


def current() -> Invocation | None:
    """The invocation that runs on the calling thread, or None."""
    return _here.invocation


@contextlib.contextmanager
def belonging(invocation: Invocation | None) -> Iterator[None]:
    """For the length of the block the calling thread, which the module has started, belongs to this invocation; None: to none."""
    outer, _here.invocation = _here.invocation, invocation
    try:
        yield
    finally:
        _here.invocation = outer


def thread_start(original: Callable[..., object], _site: str) -> object:
    """Wrap `Thread.start`: a thread that a module starts is one of the module's process."""
    from concurrent.futures import thread as pools

    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        invocation = current()
        # A thread of an executor, which may be a library's, works for the invocation that submitted the item.
        if invocation is None or getattr(thread, "_target", None) is pools._worker:
            original(thread)
            return
        vars(thread)["run"] = functools.partial(_run, thread, invocation, thread.run)
        try:
            thread_exception.starting(functools.partial(original, thread))
        except BaseException:
            if thread.ident is None:  # it has not begun, and may be started again
                vars(thread).pop("run", None)
            raise

    return start


def _run(thread: threading.Thread, invocation: Invocation, run: Callable[[], object]) -> None:
    vars(thread).pop("run", None)
    # One that leaves ends a thread without a word; the program's threading.excepthook may not know that.
    with belonging(invocation), contextlib.suppress(SystemExit):
        run()


def executor_submit(original: Callable[..., object], _site: str) -> object:
    """Wrap `ThreadPoolExecutor.submit`: what a module submits is carried out in the module's process."""

    @functools.wraps(original)
    def submit(executor: object, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
        invocation, interpreters = current(), sys.modules.get("concurrent.futures.interpreter")
        if invocation is None or (
            interpreters is not None and isinstance(executor, interpreters.InterpreterPoolExecutor)
        ):
            return original(executor, function, *args, **kwargs)
        return original(executor, functools.partial(_call, invocation, function), *args, **kwargs)

    return submit


def _call(invocation: Invocation, function: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    with belonging(invocation):
        return function(*args, **kwargs)


@contextlib.contextmanager
def entered(invocation: Invocation) -> Iterator[None]:
    outer, _here.invocation = _here.invocation, invocation
    try:
        yield
    finally:
        _here.invocation = outer
        invocation.leave()
