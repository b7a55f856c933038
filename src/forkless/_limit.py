# SPDX-License-Identifier: GPL-3.0-or-later
"""How many runs may be under way at once in this program; the rest wait their turn."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Self

from forkless._errors import EngineBusyError, SpecError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from forkless._stop import Stop

__all__ = ["Gate", "limit"]


class Gate:
    """First come, first served. `most` may change while runs wait."""

    def __init__(self) -> None:
        # Guards the fields below and nothing else; never held while calling out.
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
        """Yields True when it is our turn, False when we were asked to stop before it was."""
        turn = threading.Event()
        with self._lock:
            if not wait and self.most is not None and self._inside >= self.most:
                raise EngineBusyError(f"{self._inside} runs are under way, and {self.most} is the limit")
            self._queue.append(turn)
            self._admit()
        # Asked to stop, we are woken as if it were our turn.
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


GATE = Gate()


class limit:  # noqa: N801  # called like a function, and now and then entered like a block
    """
    Let at most `n` runs be under way at once in this program; those started beyond that wait their turn.

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
        self._before = GATE.most
        GATE.set(n)

    def __repr__(self) -> str:
        return f"limit({self.n})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        GATE.set(self._before)
