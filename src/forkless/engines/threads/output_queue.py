# SPDX-License-Identifier: GPL-3.0-or-later
"""What tasks print while they run, on its way to events: a queue that never makes a task wait for a slow reader."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules import TaskOutput

__all__ = ["OutputQueue"]

MOST = 256  # outputs that wait; with more, the oldest are dropped


class OutputQueue:
    """
    Takes output from any thread, and delivers it on a thread of its own, or on the thread that delivers another event.

    `turn` is the lock that is held while events are delivered. A reader that blocks holds it, so `put` does not take it.
    """

    def __init__(
        self,
        ident: str,
        deliver_one: Callable[[str, TaskOutput, int], None],
        turn: contextlib.AbstractContextManager[bool],
    ) -> None:
        self._name = f"forkless-output-{ident[:8]}"
        self._deliver_one = deliver_one
        self._turn = turn
        # Guards _waiting, _lost and _thread; held for moments only.
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[str, TaskOutput]] = collections.deque()
        self._lost: dict[tuple[str, str, str], int] = {}
        self._woken = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def put(self, host: str, output: TaskOutput) -> None:
        with self._lock:
            if self._over:
                return  # from a task that was abandoned
            self._waiting.append((host, output))
            if len(self._waiting) > MOST:
                where, old = self._waiting.popleft()
                key = (where, str(old.task._uuid), old.stream)
                self._lost[key] = self._lost.get(key, 0) + old.dropped + old.text.count("\n") + 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                with contextlib.suppress(RuntimeError):  # the thread limit is reached: other events deliver
                    self._thread.start()
        self._woken.set()

    def deliver(self) -> None:
        """Deliver all that waits. The caller holds `turn`."""
        while True:
            with self._lock:
                if not self._waiting:
                    return
                host, output = self._waiting.popleft()
                lost = self._lost.pop((host, str(output.task._uuid), output.stream), 0)
            with contextlib.suppress(
                Exception
            ):  # lines that cannot be told must not cost the event of the task's result
                self._deliver_one(host, output, output.dropped + lost)

    def _work(self) -> None:
        while not self._over:
            self._woken.wait()
            self._woken.clear()
            with self._turn:
                self.deliver()

    def close(self) -> None:
        """No task runs any more: deliver what is left, and end the thread."""
        with self._turn:
            self.deliver()
        with self._lock:
            self._over = True
            thread = self._thread
        self._woken.set()
        if thread is not None and thread.ident is not None:
            thread.join()
