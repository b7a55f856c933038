# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads that workers run on: started when needed, used again, gone with the run."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from typing import TYPE_CHECKING

from forkless.modules import has_own_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.engines._scene import Scene

__all__ = ["crew", "own_folder"]


class Crew:
    """As many threads as there were ever tasks at once. A thread that is done waits for the next task."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: list[queue.SimpleQueue[Callable[[], None] | None]] = []
        self._members: list[threading.Thread] = []
        self._closed = False

    def hand(self, work: Callable[[], None]) -> None:
        with self._lock:
            inbox = self._waiting.pop() if self._waiting else None
        if inbox is not None:
            inbox.put(work)
            return
        inbox = queue.SimpleQueue()
        inbox.put(work)
        # Daemonic: a worker that cannot be stopped must not keep the program from ending.
        member = threading.Thread(
            target=self._serve, args=(inbox,), name=f"{self._name}-{len(self._members)}", daemon=True
        )
        self._members.append(member)
        member.start()

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        with own_folder() as restore:
            while True:
                work = inbox.get()
                if work is None:
                    return
                work()
                restore()
                del work  # it holds the worker, and the worker its task and variables
                with self._lock:
                    if self._closed:
                        return
                    self._waiting.append(inbox)

    def close(self, grace: float) -> None:
        """Send everyone home; those who do not come within the grace time are left where they are."""
        with self._lock:
            self._closed = True
            waiting, self._waiting = self._waiting, []
        for inbox in waiting:
            inbox.put(None)
        for member in self._members:
            member.join(grace)


def crew(scene: Scene) -> Crew:
    found: Crew | None = scene.state.get("crew")
    if found is None:
        found = scene.state["crew"] = Crew(f"forkless-{scene.ident[:8]}")
    return found


@contextlib.contextmanager
def own_folder(cwd: str | None = None) -> Iterator[Callable[[], None]]:
    """
    While in here this thread, and those it starts, have a current folder and umask of their own.

    The main thread's are the program's and stay as they are: there this does nothing. Yields what puts both back
    to how they were at the beginning, for a thread that goes on to other work.
    """
    if not has_own_folder():
        yield lambda: None
        return
    if cwd is not None:
        os.chdir(cwd)
    try:
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        folder = -1  # the folder was removed under us; there is nothing to come back to
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
