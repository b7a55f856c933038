# SPDX-License-Identifier: GPL-3.0-or-later
"""How a run is asked to stop: once for gently, twice for at once; by whom, and who wants to hear of it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forkless._events import Status

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stop"]


class Stop:
    """
    A request that can only grow: not asked, asked (`requested`), asked again (`urgent`).

    `why` is the status that the run ends in because of it: CANCELED or TIMEOUT. The first asker decides.
    """

    def __init__(self) -> None:
        # Guards the fields and nothing else. Never held while calling out.
        self._lock = threading.Lock()
        self._asked = threading.Event()
        self._urgent = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self.why = Status.CANCELED

    @property
    def requested(self) -> bool:
        return self._asked.is_set()

    @property
    def urgent(self) -> bool:
        return self._urgent.is_set()

    def request(self, why: Status = Status.CANCELED) -> None:
        """Ask. Safe from any thread; the second time it means at once."""
        with self._lock:
            if self._asked.is_set():
                self._urgent.set()
            else:
                self.why = why
                self._asked.set()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until asked; this is the sleep that a run uses, so that every sleep of it can be ended."""
        return self._asked.wait(timeout)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at each request, at once if there was one already. Returns what takes it off again."""
        with self._lock:
            self._listeners.append(listener)
            already = self._asked.is_set()
        if already:
            listener()

        def forget() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return forget
