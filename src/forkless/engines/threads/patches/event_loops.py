# SPDX-License-Identifier: GPL-3.0-or-later
"""
The asyncio event loop of a worker's thread.

A forked worker runs its task on the main thread of its process. There `asyncio.get_event_loop()` makes a loop, up to Python 3.13; on any
other thread it raises an error. The thread of a worker, and that of a run, make one as well, and close it when the worker or the run ends. A
thread that a plugin starts gets the error, as with stock.

asyncio takes longer to import than most plugins, so it is changed only after a plugin has imported it.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from forkless.engines.threads import context

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["close_of_this_thread", "undo", "watch"]


class _Loop(Protocol):
    def is_running(self) -> bool: ...
    def close(self) -> None: ...


class _Local(Protocol):
    """What asyncio's policy keeps for each thread."""

    _loop: _Loop | None
    _set_called: bool


class _Policy(Protocol):
    """asyncio's BaseDefaultEventLoopPolicy."""

    _local: _Local

    def new_event_loop(self) -> _Loop: ...
    def set_event_loop(self, loop: _Loop) -> None: ...


_EVENTS = "asyncio.events"
# Guards _undo: two workers may import asyncio at the same time.
_lock = threading.Lock()
_undo: list[Callable[[], None]] = []


def watch() -> None:
    """Called after each import by a plugin: change asyncio's policy, if it was imported. `undo` restores it."""
    events = sys.modules.get(_EVENTS)
    if events is None or _undo or sys.version_info >= (3, 14):
        return
    policy = getattr(events, "BaseDefaultEventLoopPolicy", None)
    if policy is None:  # another thread is importing it
        return
    with _lock:
        if _undo:
            return
        original = policy.get_event_loop

        @functools.wraps(original)
        def get_event_loop(self: _Policy) -> object:
            if self._local._loop is None and not self._local._set_called and _is_main_thread_of_stock():
                self.set_event_loop(self.new_event_loop())
                if context.current_worker() is None:
                    context.current().at_end.append(functools.partial(_close, self._local._loop))  # type: ignore[union-attr]
            return original(self)

        policy.get_event_loop = get_event_loop
        _undo.append(functools.partial(setattr, policy, "get_event_loop", original))


def undo() -> None:
    with _lock:
        while _undo:
            _undo.pop()()


def _is_main_thread_of_stock() -> bool:
    worker, run_context = context.current_worker(), context.current()
    if run_context is None or context.in_forked_child():
        return False
    return threading.current_thread() is (run_context.thread if worker is None else worker.thread)


def close_of_this_thread() -> None:
    """
    Close the thread's loop, and forget that a plugin has set one: the thread's next worker begins as a process does.

    Never raises: the policy and the loop may be a plugin's own, of any shape.
    """
    local = policy_values()
    with contextlib.suppress(Exception):
        _close(getattr(local, "_loop", None))
    with contextlib.suppress(TypeError):  # it has no attributes
        vars(local).clear()


def policy_values() -> object | None:
    """The `threading.local` in which asyncio's policy keeps the loop of each thread; None if asyncio was not imported, or has no policy yet."""
    policy: _Policy | None = getattr(sys.modules.get(_EVENTS), "_event_loop_policy", None)
    return getattr(policy, "_local", None)


def is_loop_left_running() -> bool:
    """Whether a loop that runs is set for the calling thread. Since Python 3.14 it is in the thread's state, where nothing else shows it."""
    events = sys.modules.get(_EVENTS)
    return events is not None and events._get_running_loop() is not None


def _close(loop: _Loop | None) -> None:
    if loop is not None and not loop.is_running():
        loop.close()
