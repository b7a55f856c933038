# SPDX-License-Identifier: GPL-3.0-or-later
"""Engines: ways to carry out a RunSpec. The engines never import each other; each is imported by name, on demand."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forkless.core import platform
from forkless.core.errors import GreenThreadsError, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.core.events import Event
    from forkless.core.result import Outcome
    from forkless.core.spec import RunSpec
    from forkless.core.stop import Stop
    from forkless.core.terminal import Terminal

__all__ = ["NAMES", "Engine", "TerminalEngine", "choose", "load", "refuse_green_threads"]

NAMES = ("threads", "runner", "queue")
# The queue stands above the runs that its workers carry out; as an engine it is loaded by name like the others.
_PLACES = {"queue": "forkless.queue.engine"}


class Engine(Protocol):
    """The contract of an engine: one blocking method, called on the run's thread."""

    name: str

    def carry_out(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        wait: bool = True,
    ) -> Outcome:
        """
        Execute `spec` to its end and return the outcome.

        `deliver` takes each event in order and never blocks; `write` takes the text that the command would have printed. When
        `stop` is requested, the engine ends running tasks, waits until they have ended, and returns `stop.why` as the status.
        With `wait=False` a busy engine raises EngineBusyError instead of queueing. A failing playbook never raises; errors of
        forkless (SeamError, SpawnError, ...) do.
        """


@runtime_checkable
class TerminalEngine(Engine, Protocol):
    """An engine that can also carry out a run at the terminal of a process that exists for this run: the commands `playbook` and `adhoc`."""

    def carry_out_at_terminal(
        self,
        spec: RunSpec,
        *,
        ident: str,
        deliver: Callable[[Event], None],
        write: Callable[[str], None],
        stop: Stop,
        terminal: Terminal,
    ) -> Outcome:
        """
        As `carry_out`, but on the main thread and with the process's own streams, folder, environment and signals.

        Ansible's command runs on the calling thread, because prompts and signals need the main thread: a signal handler that raises
        KeyboardInterrupt there ends the command as it ends ansible-playbook. Events are delivered and text is written only as far as
        the terminal chooses it. An abandoned worker is named in the outcome's sentence, and raises nothing.
        """


def choose(name: str | None) -> str:
    """Validate the engine's name; the default is threads, which needs nothing but Python."""
    refuse_green_threads()
    if name is None:
        return "threads"
    if name not in NAMES:
        raise SpecError(f"there is no engine '{name}'; there are {' and '.join(NAMES)}")
    if name == "runner" and not platform.can_exec():
        from forkless.core.errors import UnsupportedError

        raise UnsupportedError(
            "the runner engine starts a child process, and this system does not allow that; use engine='threads'"
        )
    return name


def refuse_green_threads() -> None:
    """Raise GreenThreadsError under gevent or eventlet: both engines wait for threads, processes and pipes, and could wait forever."""
    found = platform.green_threads()
    if found is not None:
        raise GreenThreadsError(*found)


def load(name: str) -> Engine:
    engine: Engine = importlib.import_module(_PLACES.get(name, f"forkless.engines.{name}")).ENGINE
    return engine
