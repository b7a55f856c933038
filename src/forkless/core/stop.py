# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop: the request to end a run. The first request is graceful, the second is urgent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from forkless.core.events import Status

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Stop"]


class Stop:
    """
    A request that only escalates: none, `requested`, `urgent`. All methods may be called from any thread.

    `why` is the status that the run ends with because of the request: CANCELED or TIMEOUT. The first request sets it.
    """

    def __init__(self) -> None:
        # Guards the fields only; never held while a listener runs. Re-entrant: a signal handler may call request() on the
        # thread that holds it.
        self._lock = threading.RLock()
        self._asked = threading.Event()
        self._urgent = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self.why = Status.CANCELED
        # Asked before each task as well: the permission to act may end while all threads of the process are stopped (SIGSTOP, a
        # machine that sleeps), and then no other thread is there to request the stop in time. Set before the run begins.
        self.expired: Callable[[], bool] | None = None

    @property
    def requested(self) -> bool:
        return self._asked.is_set() or (self.expired is not None and self.expired())

    @property
    def urgent(self) -> bool:
        return self._urgent.is_set()

    def request(self, why: Status = Status.CANCELED) -> None:
        """Request a stop; the second call makes the request urgent. Listeners run on the calling thread."""
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
        """Block until a stop is requested or `timeout` seconds passed. Runs sleep with this call, so that a stop ends the sleep."""
        return self._asked.wait(timeout)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at each request, and immediately if one was made already. Returns a function that removes it."""
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
