# SPDX-License-Identifier: GPL-3.0-or-later
"""
Replacements for the per-process globals of multiprocessing.process, .context and .util.

Each has the interface of the stdlib's object and forwards to the ProcessState of the calling thread.
"""

from __future__ import annotations

import os
import traceback
from multiprocessing import context
from typing import TYPE_CHECKING, Any

from forkless.multiprocessing.context import ThreadContext
from forkless.multiprocessing.process_state import MAIN, OwnedNumber, current_state
from forkless.multiprocessing.stdlib import util

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

__all__ = [
    "ChildCounter",
    "Children",
    "Contexts",
    "CurrentProcess",
    "DefaultContext",
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

    def __iter__(self) -> Iterator[object]:
        return iter(list(current_state().children))

    def __len__(self) -> int:
        return len(current_state().children)

    def __contains__(self, process: object) -> bool:
        return process in current_state().children

    def add(self, process: object) -> None:
        current_state().children.add(process)

    def discard(self, process: object) -> None:
        current_state().children.discard(process)


class ChildCounter:
    """multiprocessing.process._process_counter"""

    def __next__(self) -> int:
        return next(current_state().counter)


class CurrentProcess:
    """
    multiprocessing.process._current_process

    Forwards attributes only. `self is _current_process` is never true, so the methods that compare it are replaced as
    well.
    """

    def __getattr__(self, name: str) -> object:
        return getattr(current_state().process, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(current_state().process, name, value)


class Contexts(dict[str, object]):
    """
    multiprocessing.context._concrete_contexts, in which "thread" can be looked up but is not listed.

    Since 3.14 get_all_start_methods() lists the keys. Programs try all listed methods, and "thread" must be chosen
    explicitly.
    """

    def __init__(self, stock: dict[str, object]) -> None:
        super().__init__(stock)
        self._thread = ThreadContext()

    def __missing__(self, name: str) -> object:
        if name == "thread":
            return self._thread
        raise KeyError(name)


class DefaultContext(context.DefaultContext):
    """The default context, with a default start method for each child: set_start_method() affects the caller's only."""

    @property
    def _actual_context(self) -> object:
        state = current_state()
        return vars(self)["_actual_context"] if state is MAIN else state.context

    @_actual_context.setter
    def _actual_context(self, value: object) -> None:
        state = current_state()
        if state is MAIN:
            vars(self)["_actual_context"] = value
        else:
            state.context = value


def getpid() -> int:
    state = current_state()
    return os.getpid() if state is MAIN else state.pid


def is_alive(stock: Callable[..., object]) -> object:
    def is_alive(self: object) -> bool:
        if self is current_state().process:
            self._check_closed()
            return True
        return bool(stock(self))

    return is_alive


def ident_of(stock: property) -> property:
    def ident(self: object) -> object:
        """Return identifier (PID) of process or `None` if it has yet to start"""
        if self is current_state().process:
            self._check_closed()
            return getpid()
        return stock.__get__(self)

    return property(ident)


def sentinel_of(stock: property) -> property:
    def sentinel(self: Any) -> object:
        """Return a file descriptor suitable for waiting for process termination."""
        kept = stock.__get__(self)
        # popen_thread.Popen.sentinel is None: the descriptor is opened when this property is first read.
        return self._popen.state.sentinel() if kept is None else kept

    return property(sentinel)


def repr_of(stock: Callable[..., Any]) -> object:
    def __repr__(self: object) -> str:  # noqa: N807
        text: str = stock(self)
        if self is current_state().process:
            # The stdlib compares self with _current_process, which never matches, and so shows another status.
            before, _, after = text.rpartition(f" parent={self._parent_pid} ")
            _, space, daemon = after.rstrip(">").partition(" ")
            text = f"{before} parent={self._parent_pid} started{space}{daemon}>"
        return text

    return __repr__


def run_finalizers(minpriority: int | None = None) -> None:
    """multiprocessing.util._run_finalizers, for the finalizers that were created in the caller's process state."""
    registry: dict[Any, Any] = util._finalizer_registry
    me = current_state()
    mine = [key for key in list(registry) if OwnedNumber.owner_of(key[1]) == me.pid]
    due = [key for key in mine if key[0] is not None and (minpriority is None or key[0] >= minpriority)]
    for key in sorted(due, reverse=True):
        finalizer = registry.get(key)
        if finalizer is not None:
            util.sub_debug("calling %s", finalizer)
            try:
                finalizer()
            except Exception:  # noqa: BLE001  (a failing finalizer must not prevent the others)
                traceback.print_exc()
    if minpriority is None and me is MAIN:
        # Only at the end of the program: a child's objects may outlive the child, and still need their finalizers.
        for key in mine:
            registry.pop(key, None)


# A function that other modules have imported by name cannot be replaced, but its __code__ can. The functions below run
# with the globals of the stdlib's module, into which the names that start with _forkless are put first.


def _current_process() -> object:
    return _forkless_here().process  # type: ignore[name-defined]  # noqa: F821


def _parent_process() -> object:
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
