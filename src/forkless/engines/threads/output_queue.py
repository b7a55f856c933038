# SPDX-License-Identifier: GPL-3.0-or-later
"""What tasks print while they run, on its way to events: a queue that never makes a task wait for a slow reader."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import threading
from typing import TYPE_CHECKING

from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.modules import TaskOutput

__all__ = ["OutputQueue"]

MOST = 256  # outputs that wait; with more, the oldest are dropped


class OutputQueue:
    """
    Takes output from any thread, and delivers it on a thread of its own, or on the thread that delivers another event.

    `turn` is the lock that is held while events are delivered. A reader that blocks holds it, so `put` does not take it. Of the output
    of a task that is dropped the last line stays: it tells how many are missing, also if the task prints nothing more.
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
        # Guards _waiting, _dropped and _thread; held for moments only.
        self._lock = threading.Lock()
        self._waiting: collections.deque[tuple[str, TaskOutput]] = collections.deque()
        # By host, task and stream: the last line that was dropped, and how many were dropped before it.
        self._dropped: dict[tuple[str, str, str], tuple[TaskOutput, int]] = {}
        self._woken = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def put(self, host: str, output: TaskOutput) -> None:
        with self._lock:
            if self._over:
                return  # from a task that was abandoned
            self._waiting.append((host, output))
            if len(self._waiting) > MOST:
                self._drop(*self._waiting.popleft())
            if self._thread is None:
                self._thread = OwnThread(target=self._work, name=self._name, daemon=True)
                with contextlib.suppress(RuntimeError):  # the thread limit is reached: other events deliver
                    self._thread.start()
        self._woken.set()

    def _drop(self, host: str, output: TaskOutput) -> None:
        key = _key(host, output)
        count = output.text.count("\n")
        before = self._missing_before(key) + output.dropped + count
        last = dataclasses.replace(output, text=output.text.rpartition("\n")[2], line=output.line + count)
        self._dropped[key] = last, before

    def _missing_before(self, key: tuple[str, str, str]) -> int:
        known = self._dropped.pop(key, None)
        return 0 if known is None else known[1] + 1

    def deliver(self) -> None:
        """Deliver all that waits. The caller holds `turn`."""
        while True:
            with self._lock:
                if self._waiting:
                    host, output = self._waiting.popleft()
                    dropped = output.dropped + self._missing_before(_key(host, output))
                elif self._dropped:  # of tasks of which nothing else waits
                    key = next(iter(self._dropped))
                    host = key[0]
                    output, dropped = self._dropped.pop(key)
                else:
                    return
            with contextlib.suppress(
                Exception
            ):  # lines that cannot be told must not cost the event of the task's result
                self._deliver_one(host, output, dropped)

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


def _key(host: str, output: TaskOutput) -> tuple[str, str, str]:
    return host, str(output.task._uuid), output.stream
