# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads that workers run on: started on demand, reused, and ended with the run."""

from __future__ import annotations

import collections
import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from forkless.core.thread_stack import start_with_deep_stack
from forkless.modules import has_own_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.engines.threads.context import RunContext

__all__ = ["own_folder", "worker_threads"]


class WorkerThreads:
    """
    A pool with as many threads as tasks were ever active at once. A thread whose task has ended waits for the next one.

    If the system allows no more threads, a task waits for a thread of the pool. `submit` is called by the run's thread, and by workers that must
    not wait (`wait_for_thread` is false): the thread that they waited for could be their own.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._members: list[threading.Thread] = []
        self._backlog: collections.deque[Callable[[], None]] = collections.deque()
        self._closed = False

    def submit(self, work: Callable[[], None], *, wait_for_thread: bool = True) -> None:
        with self._lock:
            inbox = self._waiting.pop() if self._waiting else None
        if inbox is not None:
            inbox.put(work)
            return
        inbox = queue.SimpleQueue()
        inbox.put(work)
        # A daemon thread: a worker that cannot be stopped must not keep the interpreter from exiting.
        member = threading.Thread(
            target=self._serve, args=(inbox,), name=f"{self._name}-{len(self._members)}", daemon=True
        )
        try:
            start_with_deep_stack(member)
        except RuntimeError:
            with self._lock:
                if not self._members or not wait_for_thread:
                    raise
                # A thread may have become idle since the check above, and does not look at the backlog again.
                inbox = self._waiting.pop() if self._waiting else None
                if inbox is None:
                    self._backlog.append(work)
            if inbox is not None:
                inbox.put(work)
            return
        self._members.append(member)

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        with own_folder() as restore:
            while True:
                work = inbox.get()
                if work is None:
                    return
                work()
                restore()
                del work  # a bound method of the worker, which keeps its task and variables alive
                with self._lock:
                    if self._closed:
                        return
                    if self._backlog:
                        inbox.put(self._backlog.popleft())
                    else:
                        self._waiting.append(inbox)

    def close(self, grace: float) -> None:
        """End all threads. Those that do not end within `grace` seconds are left running."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for inbox in waiting:
            inbox.put(None)
        deadline = time.monotonic() + grace  # one deadline for all threads
        for member in self._members:
            member.join(max(0.0, deadline - time.monotonic()))


def worker_threads(run_context: RunContext) -> WorkerThreads:
    found: WorkerThreads | None = run_context.state.get("worker_threads")
    if found is None:
        found = run_context.state["worker_threads"] = WorkerThreads(f"forkless-{run_context.ident[:8]}")
    return found


@contextlib.contextmanager
def own_folder(cwd: str | None = None) -> Iterator[Callable[[], None]]:
    """
    For the length of the block the calling thread, and threads that it starts, have a private working directory and umask.

    Does nothing on the main thread, whose directory and umask belong to the program. Yields a function that restores both to
    their values at the start of the block, for a thread that is reused.
    """
    if not has_own_folder():
        yield lambda: None
        return
    if cwd is not None:
        os.chdir(cwd)
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        folder = -1  # the working directory was removed, so it cannot be restored
    umask = os.umask(0o077)
    os.umask(umask)

    def restore() -> None:
        os.umask(umask)
        if folder >= 0:
            with contextlib.suppress(OSError):
                os.fchdir(folder)

    try:
        yield restore
    finally:
        if folder >= 0:
            os.close(folder)
