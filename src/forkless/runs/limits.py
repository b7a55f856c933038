# SPDX-License-Identifier: GPL-3.0-or-later
"""The limit on concurrent runs in this program. Runs beyond it wait in a queue."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from forkless.core.errors import EngineBusyError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from forkless.core.stop import Stop

__all__ = ["RunLimit", "limit"]


class RunLimit:
    """A first-come-first-served limit, safe to use from any thread. `most` may change while runs wait."""

    def __init__(self) -> None:
        # Guards the fields below only; never held while other code runs.
        self._lock = threading.Lock()
        self.most: int | None = None
        self._inside = 0
        self._queue: deque[threading.Event] = deque()

    def set(self, most: int | None) -> None:
        with self._lock:
            self.most = most
            self._admit()

    def _admit(self) -> None:
        while self._queue and (self.most is None or self._inside < self.most):
            self._inside += 1
            self._queue.popleft().set()

    @contextlib.contextmanager
    def turn(self, stop: Stop, *, wait: bool) -> Iterator[bool]:
        """Yield True when the run is admitted, False if a stop was requested first. Blocks until one of the two happens."""
        turn = threading.Event()
        with self._lock:
            if not wait and self.most is not None and self._inside >= self.most:
                raise EngineBusyError(f"{self._inside} runs are under way, and {self.most} is the limit")
            self._queue.append(turn)
            self._admit()
        # A stop request sets the same event, so it wakes a waiting run.
        forget = stop.listen(turn.set)
        try:
            turn.wait()
            with self._lock:
                ours = turn not in self._queue
                if not ours:
                    self._queue.remove(turn)
            try:
                yield ours
            finally:
                with self._lock:
                    self._inside -= ours
                    self._admit()
        finally:
            forget()


RUN_LIMIT = RunLimit()


class limit:  # noqa: N801  # called like a function, or used as a context manager
    """
    Limit this program to `n` concurrent runs; runs started beyond that wait in a queue.

    >>> limit(8)  # from now on
    limit(8)
    >>> with limit(2):  # in this block; afterwards as before
    ...     pass
    >>> limit(None)  # as many as are started
    limit(None)
    """

    def __init__(self, n: int | None) -> None:
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise SpecError(f"limit must be a whole number above zero, or None for no limit, not {n!r}")
        self.n = n
        self._before = RUN_LIMIT.most
        RUN_LIMIT.set(n)

    def __repr__(self) -> str:
        return f"limit({self.n})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        RUN_LIMIT.set(self._before)
