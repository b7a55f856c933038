# SPDX-License-Identifier: GPL-3.0-or-later
"""
The names of multiprocessing.process, .context and .util that hold one thing per process, made to look at here().

The stdlib keeps them as module globals. Each stand-in looks like what it stands for, and passes everything on to the
life of the thread that asks.
"""

from __future__ import annotations

import os
import traceback
from multiprocessing import context
from typing import TYPE_CHECKING, Any

from forkless.multiprocessing._life import MAIN, Ticket, here
from forkless.multiprocessing._stdlib import util

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

__all__ = [
    "Children",
    "Counter",
    "CurrentProcess",
    "DefaultContext",
    "View",
    "code_of",
    "getpid",
    "ident_of",
    "is_alive",
    "repr_of",
    "run_finalizers",
    "sentinel_of",
]


class Children:
    """multiprocessing.process._children"""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(here().children))

    def __len__(self) -> int:
        return len(here().children)

    def __contains__(self, process: object) -> bool:
        return process in here().children

    def add(self, process: Any) -> None:
        here().children.add(process)

    def discard(self, process: Any) -> None:
        here().children.discard(process)


class Counter:
    """multiprocessing.process._process_counter"""

    def __next__(self) -> int:
        return next(here().counter)


class CurrentProcess:
    """
    multiprocessing.process._current_process

    Good for its attributes. `self is _current_process` is never true of it; the three methods that ask are replaced.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(here().process, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(here().process, name, value)


class DefaultContext(context.DefaultContext):
    """A child's default start method is the one that it was started with, whatever its parent's is."""

    @property
    def _actual_context(self) -> Any:
        life = here()
        return vars(self)["_actual_context"] if life is MAIN else life.context

    @_actual_context.setter
    def _actual_context(self, value: Any) -> None:
        life = here()
        if life is MAIN:
            vars(self)["_actual_context"] = value
        else:
            life.context = value


class View:
    """A module as another module sees it, with some names of its own."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def getpid() -> int:
    life = here()
    return os.getpid() if life is MAIN else life.pid


def is_alive(stock: Any) -> Any:
    def is_alive(self: Any) -> bool:
        if self is here().process:
            self._check_closed()
            return True
        return bool(stock(self))

    return is_alive


def ident_of(stock: property) -> property:
    def ident(self: Any) -> Any:
        """Return identifier (PID) of process or `None` if it has yet to start"""
        if self is here().process:
            self._check_closed()
            return getpid()
        return stock.__get__(self)

    return property(ident)


def sentinel_of(stock: property) -> property:
    def sentinel(self: Any) -> Any:
        """Return a file descriptor suitable for waiting for process termination."""
        kept = stock.__get__(self)
        # Popen.sentinel is None in our own: the descriptor is opened when somebody asks for it.
        return self._popen.life.sentinel() if kept is None else kept

    return property(sentinel)


def repr_of(stock: Any) -> Any:
    def __repr__(self: Any) -> str:  # noqa: N807
        text: str = stock(self)
        if self is here().process:
            # The stdlib does not recognize itself by way of CurrentProcess.
            before, _, after = text.rpartition(f" parent={self._parent_pid} ")
            _, space, daemon = after.rstrip(">").partition(" ")
            text = f"{before} parent={self._parent_pid} started{space}{daemon}>"
        return text

    return __repr__


def run_finalizers(minpriority: int | None = None) -> None:
    """multiprocessing.util._run_finalizers, for those that were made in this life."""
    registry: dict[Any, Any] = util._finalizer_registry
    me = here()
    mine = [key for key in list(registry) if Ticket.owner_of(key[1]) == me.pid]
    due = [key for key in mine if key[0] is not None and (minpriority is None or key[0] >= minpriority)]
    for key in sorted(due, reverse=True):
        finalizer = registry.get(key)
        if finalizer is not None:
            util.sub_debug("calling %s", finalizer)
            try:
                finalizer()
            except Exception:  # noqa: BLE001  (one of them must not keep the rest)
                traceback.print_exc()
    if minpriority is None and me is MAIN:
        # The program ends. A child's objects live on in the program, and still need theirs.
        for key in mine:
            registry.pop(key, None)


# Functions that others have imported by name cannot be replaced, but they can be given another body. These bodies run
# with the globals of the stdlib's module, where the names that start with _forkless are put beforehand.


def _current_process() -> Any:
    return _forkless_here().process  # type: ignore[name-defined]  # noqa: F821


def _parent_process() -> Any:
    return _forkless_here().parent_process  # type: ignore[name-defined]  # noqa: F821


def _run_finalizers(minpriority: int | None = None) -> None:
    _forkless_run_finalizers(minpriority)  # type: ignore[name-defined]  # noqa: F821


_BODIES = {
    "current_process": _current_process.__code__,
    "parent_process": _parent_process.__code__,
    "_run_finalizers": _run_finalizers.__code__,
}


def code_of(name: str) -> CodeType:
    return _BODIES[name]
