# SPDX-License-Identifier: GPL-3.0-or-later
"""
The run that the calling thread works for, as the layers below the engines see it. It is in one ContextVar, and nowhere else.

An engine enters a scope on each of its threads. A thread that a plugin starts gets the scope of the thread that started it. Code
outside of runs has none.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["SCOPE", "BareRun", "Interruptible", "RunScope", "entered", "is_active", "new_number", "while_active"]


class Interruptible(Protocol):
    """What ends a worker's waits when the worker must stop; an engine has one for each worker."""

    own_session: bool

    @property
    def sent(self) -> type[BaseException] | None: ...
    def raise_once(self, thread: int, error: type[BaseException]) -> None: ...
    def shielded(self) -> AbstractContextManager[None]: ...
    def closing(self, close: Callable[[], None]) -> AbstractContextManager[None]: ...


class RunScope(Protocol):
    """What lower layers ask about a run. All of it may be read on any thread of the run."""

    @property
    def run_ident(self) -> Hashable:
        """The name of the run, by which the connections and other objects that its tasks share are found."""

    @property
    def run_number(self) -> int:
        """Unique for each run of this process, as the name need not be; 0 if nobody knows when the run ends."""

    @property
    def module_mode(self) -> str:
        """
        How the run executes modules. "auto" and "warm": in a warm interpreter, or in this process if no program can be started.
        "in-process": in this process wherever that is possible. "cold": as stock Ansible does.
        """

    @property
    def interpreter_pool(self) -> object | None:
        """The run's InterpreterPool; without one no module runs warm."""

    @property
    def interrupt(self) -> Interruptible | None:
        """Interrupts the calling thread's worker, or the run's own thread; None if nothing does."""


@dataclass(frozen=True, slots=True)
class BareRun:
    """A run without an engine, for programs that use `forkless.ssh` by itself."""

    run_ident: Hashable
    module_mode: str = "auto"
    interpreter_pool: object | None = None
    interrupt: Interruptible | None = None
    run_number: int = 0


SCOPE: contextvars.ContextVar[RunScope | None] = contextvars.ContextVar("forkless.run", default=None)


@contextlib.contextmanager
def entered(scope: RunScope | None) -> Iterator[None]:
    """For the length of the block the calling thread works for `scope`; None for no run."""
    token = SCOPE.set(scope)
    try:
        yield
    finally:
        SCOPE.reset(token)


_numbers = itertools.count(1)
# Changed by one call of a set's method each, so by any thread without a lock.
_active: set[int] = set()


def new_number() -> int:
    """A number that no other run of this process has."""
    return next(_numbers)


@contextlib.contextmanager
def while_active(number: int) -> Iterator[None]:
    """The run of this number is active for the length of the block."""
    _active.add(number)
    try:
        yield
    finally:
        _active.discard(number)


def is_active(number: int) -> bool:
    """Whether the run of this number has not ended. Any thread may ask."""
    return number in _active
