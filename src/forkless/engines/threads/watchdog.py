# SPDX-License-Identifier: GPL-3.0-or-later
"""Names workers that run one task for too long, and those that did not end when they were told to."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Self

from forkless.core.errors import StuckWorkerError
from forkless.core.thread_stack import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext

__all__ = ["Watchdog", "stuck"]


def stuck(run_context: RunContext) -> StuckWorkerError | None:
    """The first abandoned worker whose thread is still alive, if any."""
    for worker in run_context.abandoned:
        if worker.thread is not None and worker.thread.is_alive() and (stack := worker.stack()):
            host, task = worker.describe()
            return StuckWorkerError(host, task, time.monotonic() - worker.since, stack)
    return None


class Watchdog:
    """Reports each worker that has run one task for `after` seconds, once."""

    def __init__(self, run_context: RunContext, after: float, tell: Callable[[StuckWorkerError], None]) -> None:
        self._run_context, self._after, self._tell = run_context, after, tell
        self._end = threading.Event()
        self._seen: set[int] = set()
        self._thread = OwnThread(target=self._watch, name=f"forkless-watchdog-{run_context.ident[:8]}", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):  # no more threads are allowed; the run does not need this one
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(min(1.0, self._after / 4)):
            for worker in list(self._run_context.workers):
                seconds = time.monotonic() - worker.since
                if seconds >= self._after and worker.pid not in self._seen:
                    self._seen.add(worker.pid)
                    host, task = worker.describe()
                    self._tell(StuckWorkerError(host, task, seconds, worker.stack()))
