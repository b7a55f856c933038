# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to carry out a RunSpec. The two engines never import each other; both are found by name, when asked."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol

from forkless import _platform
from forkless._errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless._events import Event
    from forkless._result import Outcome
    from forkless._spec import RunSpec
    from forkless._stop import Stop

__all__ = ["NAMES", "Engine", "choose", "load"]

NAMES = ("threads", "runner")


class Engine(Protocol):
    """The contract at the wall: one method, blocking, called on a thread of the run's own."""

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
        Run `spec` to its end and say how it ended.

        `deliver` takes each event in order and never blocks; `write` takes the text that the command would have
        printed. When `stop` is requested the engine ends what runs, waits until it is quiet, and returns
        `stop.why` as the status. With `wait=False` a busy engine raises EngineBusyError in place of queueing.
        Nothing else is raised for what a playbook may do; errors of ours (SeamError, SpawnError, ...) are.
        """


def choose(name: str | None) -> str:
    """The engine asked for, or the one that fits this machine: threads, which needs nothing but Python."""
    if name is None:
        return "threads"
    if name not in NAMES:
        raise SpecError(f"there is no engine '{name}'; there are {' and '.join(NAMES)}")
    if name == "runner" and not _platform.can_exec():
        from forkless._errors import UnsupportedError

        raise UnsupportedError(
            "the runner engine starts a child process, and this system does not allow that; use engine='threads'"
        )
    return name


def load(name: str) -> Engine:
    engine: Engine = importlib.import_module(f"forkless.engines.{name}").ENGINE
    return engine
