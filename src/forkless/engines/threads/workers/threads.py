# SPDX-License-Identifier: GPL-3.0-or-later
"""The threads that workers run on: started on demand, reused, and ended with the run."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from forkless.core.thread_stack import OwnThread, start_with_deep_stack
from forkless.engines.threads.workers import thread_locals
from forkless.modules import has_own_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forkless.engines.threads.context import RunContext

__all__ = ["own_folder", "worker_threads"]

# Seconds that an idle thread is given to end. It ends at once; its thread-local values may be slow to go.
_END_OF_IDLE = 5.0


class _Member:
    """A thread of the pool, and where it takes its work from."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.thread: threading.Thread


class _FolderAndUmask:
    """The calling thread's working directory and umask, which must be its own (`has_own_folder`)."""

    def __init__(self) -> None:
        try:
            self._folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            self._folder = -1  # the working directory was removed, so it cannot be restored
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def restore(self) -> None:
        """Give them to the calling thread, which may be another one than that of the beginning."""
        os.umask(self._umask)
        self.enter_folder()

    def enter_folder(self) -> None:
        if self._folder >= 0:
            with contextlib.suppress(OSError):
                os.fchdir(self._folder)

    def close(self) -> None:
        folder, self._folder = self._folder, -1
        if folder >= 0:
            os.close(folder)


class _Fresh:
    """What a thread of a pool is like before its first task. Made on such a thread."""

    def __init__(self, has_folder: bool) -> None:
        self._thread = thread_locals.FreshThread()
        self._place = _FolderAndUmask() if has_folder else None

    def restore(self, name: str, has_folder: bool) -> None:
        """Make the calling thread, whose task has ended, like that again. Its folder, too: no thread that waits may be in one that could be removed."""
        if has_folder and self._place is not None:
            self._place.restore()
        self._thread.restore(name)

    def close(self) -> None:
        if self._place is not None:
            self._place.close()


class WorkerThreads:
    """
    A pool with as many threads as tasks were ever active at once.

    A thread whose task has ended waits for the next one. It ends instead if a plugin has left there what goes only with the thread, such as its
    priority, and from Python 3.13 on values in `threading.local` (see `thread_locals`): it is *marked*. The marked one that was used last stays until another one has been marked, and
    carries out a task if it is the only one that the system allows: a play at that limit goes on.

    If the system allows no more threads, a task waits for one: until a thread of the pool is idle, or if that one is marked until
    `start_waiting` is called, by the run's thread, which `wake` wakes. `submit` is called by the run's thread, and by workers that must not wait
    (`wait_for_thread` is false): the thread that they waited for could be their own.
    """

    def __init__(self, name: str, wake: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[_Member] = []
        """Those that are as new."""
        self._marked: list[_Member] = []
        """The idle one with values of its last task; at most one."""
        self._ending: list[threading.Thread] = []
        """Threads that are about to end, and hold a place that another one may need."""
        self._busy = 0
        self._alive = 0
        self._fresh: _Fresh | None = None
        """What the first member was like before its first task. Members that are used again become like that."""
        self._numbers = itertools.count()
        self._free: list[int] = []
        """Numbers of members that have ended."""
        self._members: dict[int, threading.Thread] = {}
        self._backlog: collections.deque[Callable[[], None]] = collections.deque()
        self._closed = False

    def submit(self, work: Callable[[], None], *, wait_for_thread: bool = True) -> None:
        if not self._give_to_waiting(work):
            self._start_or_put_off(work, self._backlog.append, wait_for_thread=wait_for_thread)

    def start_waiting(self) -> None:
        """Find threads for tasks that wait for one, as far as the system allows it."""
        while self._backlog:
            with self._lock:
                if not self._backlog or self._closed:
                    return
                work = self._backlog.popleft()
            if not self._start_or_put_off(work, self._backlog.appendleft):
                return

    def _start_or_put_off(
        self, work: Callable[[], None], put_off: Callable[[Callable[[], None]], None], *, wait_for_thread: bool = True
    ) -> bool:
        """Have a thread do the work; if none can be had now, `put_off` is called and the answer is false."""
        while True:
            try:
                self._start(work)
            except RuntimeError:
                with self._lock:
                    if self._waiting:  # one that became idle just now
                        self._busy += 1
                        self._waiting.pop().inbox.put(work)
                        return True
                    ending, self._ending = self._ending, []
                    if not ending:
                        if not self._marked:
                            if not self._busy or not wait_for_thread:
                                raise
                            put_off(work)
                            return False
                        member = self._marked.pop()
                        # If no other is left, the marked one does the work: the place that its end makes could be taken by somebody else.
                        if not self._busy:
                            self._busy += 1
                            member.inbox.put(work)
                            return True
                        ending = [self._end(member)]
                        self._ending = []
                for thread in ending:
                    thread.join(_END_OF_IDLE)
            else:
                return True

    def _give_to_waiting(self, work: Callable[[], None]) -> bool:
        with self._lock:
            if not self._waiting:
                return False
            self._busy += 1
            self._waiting.pop().inbox.put(work)
            return True

    def _end(self, member: _Member) -> threading.Thread:
        """Tell an idle member to end. Called with the lock held."""
        member.inbox.put(None)
        self._ending = [one for one in self._ending if one.is_alive()]
        self._ending.append(member.thread)
        return member.thread

    def _start(self, work: Callable[[], None]) -> None:
        """RuntimeError: the system allows no more threads."""
        member = _Member()
        member.inbox.put(work)
        with self._lock:
            number = self._free.pop() if self._free else next(self._numbers)
            # A daemon thread: a worker that cannot be stopped must not keep the interpreter from exiting.
            member.thread = OwnThread(
                target=self._serve, args=(member, number), name=f"{self._name}-{number}", daemon=True
            )
            self._members[number] = member.thread
            self._busy += 1
            self._alive += 1
        try:
            start_with_deep_stack(member.thread)
        except BaseException:
            with self._lock:
                self._busy -= 1
                self._free.append(number)
                del self._members[number]
                self._ended()
            raise

    def _serve(self, member: _Member, number: int) -> None:
        try:
            self._take_work(member, f"{self._name}-{number}")
        finally:
            with self._lock:
                self._free.append(number)
                self._ended()

    def _take_work(self, member: _Member, name: str) -> None:
        has_folder = has_own_folder()
        fresh = self._fresh if self._fresh is not None else self._remember(_Fresh(has_folder))
        values = thread_locals.ThreadLocals()
        while True:
            work = member.inbox.get()
            if work is None:
                return
            try:
                work()
                del work  # a bound method of the worker, which keeps its task and variables alive
                fresh.restore(name, has_folder)
                is_as_new = values.forget()
            except BaseException:
                with self._lock:
                    self._busy -= 1
                self._wake()  # a task may wait for this thread
                raise
            with self._lock:
                self._busy -= 1
                if self._closed:
                    return
                self._wait_for_work(member, is_as_new=is_as_new)

    def _remember(self, made: _Fresh) -> _Fresh:
        """What `_fresh` is from now on: `made`, or what another thread has put there meanwhile."""
        with self._lock:
            if self._fresh is None:
                self._fresh = made
                return made
            found = self._fresh
        made.close()
        return found

    def _ended(self) -> None:
        """A member has ended, or could not be started. Called with the lock held."""
        self._alive -= 1
        self._close_folder()

    def _close_folder(self) -> None:
        if self._closed and not self._alive and self._fresh is not None:
            self._fresh.close()

    def _wait_for_work(self, member: _Member, *, is_as_new: bool) -> None:
        """Give a member that has ended its task the next one, or let it wait for one. Called with the lock held."""
        if not is_as_new:
            while self._marked:
                self._end(self._marked.pop())
            self._marked.append(member)
            if self._backlog:
                self._wake()
        elif self._backlog:
            self._busy += 1
            member.inbox.put(self._backlog.popleft())
        else:
            self._waiting.append(member)

    def close(self, grace: float) -> None:
        """End all threads. Those that do not end within `grace` seconds are left running."""
        with self._lock:
            self._closed = True
            members = list(self._members.values())
            for idle in (self._waiting, self._marked):
                while idle:
                    self._end(idle.pop())
            self._close_folder()
        deadline = time.monotonic() + grace  # one deadline for all threads
        for member in members:
            with contextlib.suppress(RuntimeError):  # a worker is about to start it, and it ends by itself
                member.join(max(0.0, deadline - time.monotonic()))


def worker_threads(run_context: RunContext) -> WorkerThreads:
    found: WorkerThreads | None = run_context.state.get("worker_threads")
    if found is None:
        found = run_context.state["worker_threads"] = WorkerThreads(
            f"forkless-{run_context.ident[:8]}", run_context.woken.set
        )
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
    place = _FolderAndUmask()
    try:
        yield place.restore
    finally:
        place.close()
