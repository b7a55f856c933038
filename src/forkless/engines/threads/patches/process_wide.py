# SPDX-License-Identifier: GPL-3.0-or-later
"""
Random numbers, the recursion limit and sys.argv, which Python has once for a process, as a plugin's code sees them.

A forked worker had its own: Python seeds the generator anew after a fork. Here a plugin that calls `random.seed` does so for its worker only, so that the
numbers that follow are the same in every run, and nobody else's become predictable. The recursion limit cannot be a thread's own: while a plugin
wants a higher one, all threads have it; a lower one than the program's is not set. A plugin that calls a command's `main()` writes its arguments into
sys.argv: the list is its worker's, and argparse and optparse read that one.
"""

from __future__ import annotations

import functools
import random
import sys
import threading
from typing import TYPE_CHECKING

from forkless.engines.threads import context
from forkless.engines.threads.patches.worker_view import WorkerView

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.workers.worker import Worker

__all__ = ["RandomView", "argv", "recursion_limit", "set_argv", "set_recursion_limit", "sys_of_parser"]

_ARGV, _GENERATOR, _LIMIT = "sys.argv", "random numbers", "recursion limit"
# The functions of the module that are methods of its generator.
_METHODS = frozenset(
    name
    for name in dir(random)
    if getattr(getattr(random, name), "__self__", None) is getattr(random, "_inst", None) and not name.startswith("_")
)


def _home() -> Worker | RunContext | None:
    return context.current_worker() or context.current()


class RandomView(WorkerView):
    """The module `random` of a plugin's code."""

    def __getattr__(self, name: str) -> object:
        if name not in _METHODS or name in self._own_attributes():
            return super().__getattr__(name)
        return _method(name)


@functools.cache
def _method(name: str) -> Callable[..., object]:
    """Not a method of one generator: a file that holds no state, and has imported it by name, is shared by all workers."""
    real: Callable[..., object] = getattr(random, name)

    @functools.wraps(real)
    def method(*args: object, **kwargs: object) -> object:
        home = _home()
        if home is None:
            return real(*args, **kwargs)
        generator = home.state.get(_GENERATOR) or home.state.setdefault(_GENERATOR, random.Random())  # noqa: S311  # what the module has
        found: Callable[..., object] = getattr(generator, name)
        return found(*args, **kwargs)

    return method


def argv() -> list[str]:
    """The `sys.argv` of a plugin: at first a copy of its run's, which has one of the program's."""
    worker, run = context.current_worker(), context.current()
    home = worker or run
    if home is None:
        return sys.argv
    if _ARGV not in home.state:
        home.state[_ARGV] = list(sys.argv if run is None else run.state.get(_ARGV, sys.argv))
    own: list[str] = home.state[_ARGV]
    return own


def set_argv(value: list[str]) -> None:
    home = _home()
    if home is None:
        sys.argv = value
    else:
        home.state[_ARGV] = value


class _ParserSys(WorkerView):
    @property
    def argv(self) -> list[str]:
        return argv()


def sys_of_parser(original: types.ModuleType, _site: str) -> object:
    """The `sys` of argparse and optparse, which parse sys.argv if they are given no arguments."""
    return _ParserSys(original)


_lock = threading.Lock()
_wanted: dict[int, int] = {}
_of_program = 0


def set_recursion_limit(limit: int) -> None:
    """`sys.setrecursionlimit` of a plugin: until its worker ends."""
    home = _home()
    if home is None or not isinstance(limit, int) or limit < 1:
        sys.setrecursionlimit(limit)  # which also raises the stdlib's errors
        return
    if _LIMIT not in home.state:
        home.at_end.append(functools.partial(_want, id(home), None))
    home.state[_LIMIT] = limit
    _want(id(home), limit)


def recursion_limit() -> int:
    home = _home()
    return sys.getrecursionlimit() if home is None else home.state.get(_LIMIT, sys.getrecursionlimit())


def _want(who: int, limit: int | None) -> None:
    global _of_program  # noqa: PLW0603  # one for the process, as the limit
    with _lock:
        if not _wanted:
            _of_program = sys.getrecursionlimit()
        if limit is None:
            _wanted.pop(who, None)
        else:
            _wanted[who] = limit
        sys.setrecursionlimit(max(_of_program, *_wanted.values(), 1))
