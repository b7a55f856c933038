# SPDX-License-Identifier: GPL-3.0-or-later
"""
What a run at a terminal has that a run inside a program has not: the process's own streams, a parser with flags, a person who is asked.

An engine that can run at a terminal is given a `Terminal` and calls it; the terminal knows nothing about the engine but `RunControl`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from forkless.core.answers import Answers

if TYPE_CHECKING:
    import argparse
    import contextlib
    from collections.abc import Callable, Sequence

    from forkless.core.errors import StuckWorkerError

__all__ = ["BusyTask", "RunControl", "Terminal", "TerminalChoices", "TextStream"]


class TextStream(Protocol):
    """What Ansible needs of a stream to print to it."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class BusyTask:
    """A task that runs now."""

    host: str
    task: str
    seconds: float


class RunControl(Protocol):
    """What the owner of the process's signals asks an engine. Any thread and any signal handler may call it."""

    def busy(self) -> list[BusyTask]:
        """The tasks that run now, the one that has run longest first."""

    def wait_for_children(self) -> None:
        """Wait, for a few seconds at most, until the child processes that were told to end have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalChoices:
    """What the flags of the command line ask of the engine."""

    modules: str = "auto"
    answers: Answers = field(default_factory=lambda: Answers({}))
    stuck_after: float | None = None
    screen: TextStream | None = None
    """Takes Ansible's text; None for the process's own stdout and stderr."""
    stdout: TextStream | None = None
    """Takes what Ansible prints to stdout, while stderr stays the process's own."""
    as_text: bool = False
    """Whether Ansible's stdout is written to the run, which keeps it, and not to the process's stdout."""
    events: bool = False
    """Whether events are made. Events cost time for each task, and at a terminal they are usually not read."""
    live_output: bool = False
    """Whether there are events about what tasks print while they run. Needs `events`."""
    without_shown: Callable[[str, str, dict[str, object]], None] | None = None
    """
    Removes from a result (of a host and a task's uuid), before Ansible prints it, what the terminal has shown while the task ran.
    Needs `live_output`.
    """
    callbacks: Sequence[Callable[[], object]] = ()
    """Make further callback plugins, once ansible-core is imported."""
    limit: Callable[..., str] | None = None
    """
    Called with ansible-core's loader, inventory and variable manager once they are read: the limit that is used in place of --limit. To
    plays `ansible_limit` stays what --limit says.
    """


class Terminal(Protocol):
    """The owner of a process that exists for one run. `notice` and `typing` may be called on any thread, the other methods on the main thread."""

    def attach(self, control: RunControl) -> None:
        """The run begins."""

    def add_flags(self, parser: argparse.ArgumentParser) -> None:
        """Add flags to the parser of Ansible's command."""

    def begin(self, options: argparse.Namespace) -> TerminalChoices:
        """The command line was parsed. A ForklessError ends the command with exit code 2."""

    def typing(self) -> contextlib.AbstractContextManager[TextStream | None]:
        """Entered while a person is asked. Yields the stream that Ansible prints to meanwhile; None for the process's own."""

    def notice(self, error: StuckWorkerError) -> None:
        """A worker has run one task for longer than `stuck_after`."""

    def ended(self) -> None:
        """Ansible's command has ended; its threads are ended next. Nothing that is painted may stay on the terminal."""
