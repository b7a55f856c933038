# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of one module in this process: its arguments, its output and its exit functions."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from forkless.modules.live_output import TimedOutput

__all__ = ["VIEWS", "Invocation", "SignalAction", "current", "entered"]

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


class _CurrentInvocation(threading.local):
    invocation: Invocation | None = None


_here = _CurrentInvocation()


def current() -> Invocation | None:
    """The invocation that runs on the calling thread, or None."""
    return _here.invocation


@contextlib.contextmanager
def entered(invocation: Invocation) -> Iterator[None]:
    outer, _here.invocation = _here.invocation, invocation
    try:
        yield
    finally:
        _here.invocation = outer
        invocation.leave()
