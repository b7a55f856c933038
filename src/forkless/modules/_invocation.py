# SPDX-License-Identifier: GPL-3.0-or-later
"""One call of one module: what it was given, what it said, and what must be undone when it is over."""

from __future__ import annotations

import contextlib
import io
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Invocation", "current", "entered"]


@dataclass
class Invocation:
    """Where a module that is a process has globals, one that is a call has this."""

    name: str
    arguments: bytes
    profile: str = "legacy"
    programs: bool = True
    """Whether it may start programs."""
    parsed: dict[str, Any] = field(default_factory=dict)
    warnings: Any = None
    deprecations: Any = None
    stdout: io.StringIO = field(default_factory=io.StringIO)
    stderr: io.StringIO = field(default_factory=io.StringIO)
    at_exit: list[Callable[[], Any]] = field(default_factory=list)

    def leave(self) -> None:
        """What atexit would do, newest first. One that fails does not keep the others from it."""
        while self.at_exit:
            with contextlib.suppress(Exception):
                self.at_exit.pop()()


class _Here(threading.local):
    invocation: Invocation | None = None


_here = _Here()


def current() -> Invocation | None:
    """The module that runs on this thread, if one does."""
    return _here.invocation


@contextlib.contextmanager
def entered(invocation: Invocation) -> Iterator[None]:
    outer, _here.invocation = _here.invocation, invocation
    try:
        yield
    finally:
        _here.invocation = outer
        invocation.leave()
