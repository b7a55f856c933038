# SPDX-License-Identifier: GPL-3.0-or-later
"""
How a worker, or the run's thread, is interrupted when it must stop.

A process can be killed. A thread can be sent an exception, but it is raised only when the thread next runs Python code. So what
the thread is blocked in must be ended too: its child processes, sleeps and channels. Each is registered here while the thread
uses it, as are the threads that a plugin started.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, TypeAlias

from forkless.core import thread_exception
from forkless.core.process_tree import ProcessGroup, ProcessTree, children_of_thread, start_time, wait_for_end
from forkless.core.thread_stack import OwnThread
from forkless.engines.threads.workers.unblock import unblock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Interrupt", "WorkerStopped", "starting_child", "wait_for_children", "wait_for_ended_groups"]

GRACE = 5.0


class WorkerStopped(BaseException):
    """Raised in a worker that must end. Not an Exception, so that no plugin's `except Exception` swallows it."""


class Interrupt:
    """The threads of one worker, or of a run's thread, and what they are blocked in. `trigger` ends all of it, from any thread."""

    def __init__(self) -> None:
        # Guards the fields only. Re-entrant: in the command line, a signal handler may interrupt the thread that holds it,
        # and call trigger() on that thread.
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        self._thread: int | None = None
        self._members: dict[int, int] = {}  # threads that a plugin started, with the number of times each has joined
        self._deaf: set[int] = set()  # members that are sent no exception
        self._children: dict[subprocess.Popen[bytes], int] = {}  # each with the thread that started it
        # For each thread the kernel's number, and the children that it had before: only a library knows of those that it starts itself.
        self._numbers: dict[int, tuple[int, set[int]]] = {}
        self._closers: list[Callable[[], None]] = []
        self._sent: type[BaseException] | None = None
        self._alarm: object | None = None
        self._by_alarm = False
        self._over = False
        self._shielded: dict[int, int] = {}
        self._after_shield: dict[int, type[BaseException]] = {}
        self.own_session = True
        """Whether children start in a new session, without a terminal. Since 2.21 a task may ask for the program's terminal."""
        self.own_groups = True
        """Whether children lead process groups. Not in a command at a terminal, where they may prompt a person."""

    @property
    def sent(self) -> type[BaseException] | None:
        """The exception class that the threads were interrupted with, or None."""
        return self._sent

    def begin(self) -> None:
        """Make the calling thread the worker's thread. Raises the exception if the worker was interrupted before it began."""
        with self._lock:
            self._thread = threading.get_ident()
            self._number_thread()
            early = self._sent
        if early is not None:
            raise early

    def end(self) -> None:
        """Stop sending exceptions to the calling thread, which may run another task next."""
        with self._lock:
            me, self._thread = self._thread, None
            self._over = True
            if self._sent is not None:
                thread_exception.take_back()
            started = self._started_by_libraries([me]) if self._sent is not None and me is not None else []
            self._numbers.pop(me or 0, None)
            children = [child for child, starter in self._children.items() if starter == me or not self._members]
            for child in children:
                del self._children[child]
            self._closers.clear()
        # Started by a library after the interrupt, or at that very moment.
        end_groups(started)
        for child in children:
            # A forked worker that ended normally left its children running. They are not ended here either: the child is only
            # reaped if it has ended, and its pipes are closed because no thread reads them any more.
            child.poll()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()

    def _number_thread(self) -> None:
        """Note the children that the calling thread has already. Called with the lock held."""
        # Not on the main thread of a command: it has children that prompt a person, and others that are not a task's.
        if self.own_groups:
            number = threading.get_native_id()
            self._numbers[threading.get_ident()] = number, children_of_thread(number)

    def _started_by_libraries(self, idents: list[int]) -> list[_LibraryChild]:
        """The children that these threads have started for the worker, and that are not registered here. Called with the lock held."""
        registered = {child.pid for child in self._children}
        found: set[int] = set()
        for ident in idents:
            if self._shielded.get(ident):  # it is starting a child, which it registers
                continue
            number, before = self._numbers.get(ident, (0, set()))
            found |= children_of_thread(number) - before
        return [_LibraryChild(pid) for pid in found - registered]

    @property
    def over(self) -> bool:
        """Whether the worker's thread has ended its work."""
        return self._over

    @property
    def has_members(self) -> bool:
        """Whether threads that a plugin started are still running."""
        return bool(self._members)

    def member_threads(self) -> list[threading.Thread]:
        """The threads that a plugin started, or a library for it, and that still run."""
        with self._lock:
            idents = set(self._members)
        return [thread for thread in threading.enumerate() if thread.ident in idents]

    @contextlib.contextmanager
    def joined(self, *, service: bool = False) -> Iterator[None]:
        """
        Register the calling thread, which was started for this worker, for the length of the block: it is interrupted with the worker.

        A `service` thread is sent no exception, because a library may have started it for the whole program. It sees the interrupt when
        it next sleeps or starts a program on behalf of the worker.
        """
        ident = threading.get_ident()
        with self._lock:
            if self._sent is not None:
                raise self._sent
            self._members[ident] = self._members.get(ident, 0) + 1
            if ident not in self._numbers:
                self._number_thread()
            if service:
                self._deaf.add(ident)
        started: list[_LibraryChild] = []
        try:
            yield
        finally:
            with self._lock:
                self._members[ident] -= 1
                if not self._members[ident]:
                    del self._members[ident]
                    self._deaf.discard(ident)
                    if self._sent is not None:
                        thread_exception.take_back()
                        started = self._started_by_libraries([ident])
                    if ident != self._thread:
                        self._numbers.pop(ident, None)
            end_groups(started)

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """For the length of the block the calling thread, which may have joined as a service, is sent exceptions as others are."""
        ident = threading.get_ident()
        with self._lock:
            deaf = ident in self._deaf
            self._deaf.discard(ident)
        try:
            yield
        finally:
            with self._lock:
                if deaf:
                    self._deaf.add(ident)
                if self._sent is not None:
                    thread_exception.take_back()

    def release(self, error: type[BaseException]) -> bool:
        """End what the threads are blocked in: children, sleeps, channels. No exception is sent. False if the worker has already ended."""
        return self._interrupt(error, send=False)

    def trigger(self, error: type[BaseException], *, alarm: object | None = None) -> bool:
        """
        Raise `error` in the worker's threads and end what they are blocked in. False if the worker has already ended.

        With `alarm`, only if that alarm is still the current one.
        """
        return self._interrupt(error, send=True, alarm=alarm)

    def _interrupt(self, error: type[BaseException], *, send: bool, alarm: object | None = None) -> bool:
        with self._lock:
            if (self._over and not self._members) or (alarm is not None and alarm is not self._alarm):
                return False
            if alarm is not None and self._sent is not None and not self._by_alarm:
                return False  # the worker must stop: a plugin may catch the error of an alarm, and would go on
            self._sent, self._by_alarm = error, alarm is not None
            if send:
                threads = [*self._members.keys() - self._deaf, *([] if self._thread is None else [self._thread])]
                for ident in threads:
                    if not self._shielded.get(ident):
                        thread_exception.send(ident, error)
                for ident in threads:
                    spared = self._shielded.get(ident) or thread_exception.is_starting(ident)
                    if ident != threading.get_ident() and not spared:
                        unblock(ident)
            children: list[_Child] = [*self._children, *self._started_by_libraries(list(self._numbers))]
            closers = list(self._closers)
            self._wake.notify_all()
        end_groups(children)
        if closers:
            # On another thread: closing a channel to a host that does not read may block, and the caller must not wait for it.
            _in_thread(functools.partial(_close, closers), "forkless-close")
        return True

    def raise_once(self, thread: int, error: type[BaseException]) -> None:
        """Raise `error` in one thread of the worker, which is not interrupted by that and goes on. Any thread may call it."""
        with self._lock:
            if self._sent is not None:  # which is what the thread must raise
                return
            if self._shielded.get(thread):
                self._after_shield[thread] = error
            else:
                thread_exception.send(thread, error)
            self._wake.notify_all()

    def set_alarm(self) -> object:
        """Set a new alarm, which cancels the previous one and its error. Called on the worker's thread."""
        with self._lock:
            self.clear_alarm()
            self._alarm = object()
            return self._alarm

    def clear_alarm(self) -> None:
        """Cancel the alarm, and its error if that was sent but not raised yet. Called on the worker's thread."""
        with self._lock:
            self._alarm = None
            if self._by_alarm and self._sent is not None and self._thread is not None:
                thread_exception.take_back()
                self._sent, self._by_alarm = None, False

    def alarm_raised(self, alarm: object) -> None:
        """
        The error of this alarm is being raised on the calling thread. An alarm rings once: a plugin that has caught the error, and does
        not clear an alarm that has rung, must not be interrupted by it again. Ignored on any thread but the worker's.
        """
        with self._lock:
            if self._by_alarm and alarm is self._alarm and threading.get_ident() == self._thread:
                self._alarm, self._sent, self._by_alarm = None, None, False

    def _raise_sent(self) -> None:
        """Raise what was sent, if anything, here and not once more at the next instruction. Called with the lock held."""
        error = self._sent
        if error is None:
            return
        if self._by_alarm and threading.get_ident() == self._thread:
            thread_exception.take_back()
            self._alarm, self._sent, self._by_alarm = None, None, False
        raise error

    def sleep(self, seconds: float) -> None:
        """time.sleep that ends when the worker is interrupted. Called on any of the worker's threads."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self._sent is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                # At most 5 s at a time: a sent exception is raised between two waits even if the notification was lost.
                self._wake.wait(min(left, 5.0))
            self._raise_sent()

    @contextlib.contextmanager
    def shielded(self) -> Iterator[None]:
        """
        For the length of the block no exception is raised in the calling thread; one that was sent is raised at the end.

        Used between starting a child and registering it: an exception in between would leave a child running.
        """
        ident = threading.get_ident()
        with self._lock:
            self._raise_sent()
            self._shielded[ident] = self._shielded.get(ident, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._shielded[ident] -= 1
                if not self._shielded[ident]:
                    del self._shielded[ident]
        with self._lock:
            later = None if ident in self._shielded else self._after_shield.pop(ident, None)
            self._raise_sent()
        if later is not None:
            raise later

    def adopt(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            # Children that have ended are dropped; otherwise a long loop of commands would keep them all.
            self._children = {one: starter for one, starter in self._children.items() if one.returncode is None}
            self._children[child] = threading.get_ident()
            late = self._sent is not None
        if late:
            end_groups([child])

    @contextlib.contextmanager
    def closing(self, close: Callable[[], None]) -> Iterator[None]:
        """For the length of the block the worker may block in something that `close` ends. `close` may be called on another thread."""
        with self._lock:
            self._closers.append(close)
            late = self._sent is not None
        if late:
            close()
        try:
            yield
        finally:
            with self._lock:
                if close in self._closers:
                    self._closers.remove(close)


class _LibraryChild:
    """A child of this process of which only its number is known. It is in the program's process group, or in one of its own."""

    leads_group = False

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.born = start_time(
            pid
        )  # the library may reap it at any time, and the system give its id to another process
        self.returncode: int | None = None

    def wait(self, timeout: float) -> None:
        """Reap the child, unless the library does. It is a zombie until then."""
        if start_time(self.pid) == self.born and wait_for_end(self.pid, timeout):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


_Child: TypeAlias = "subprocess.Popen[bytes] | _LibraryChild"


def _close(closers: list[Callable[[], None]]) -> None:
    for close in closers:
        with contextlib.suppress(Exception):  # the channel may be closed already
            close()


def end_groups(children: Sequence[_Child]) -> None:
    """End children and their descendants: by process group where the child leads one (`WorkerPopen.leads_group`), else by tree."""
    alive = [child for child in children if child.returncode is None and _ask_group(child)]
    if alive:
        _in_thread(functools.partial(_see_to_the_end, alive), "forkless-end")


# One event for each child that is being started, with the thread that starts it.
_starting: dict[threading.Event, int] = {}


@contextlib.contextmanager
def starting_child() -> Iterator[None]:
    """For the length of the block the calling thread starts a child and registers it: until then only this thread can end it."""
    registered = threading.Event()
    _starting[registered] = threading.get_ident()
    try:
        yield
    finally:
        del _starting[registered]
        registered.set()


# One event for each ending in progress. Events instead of threads, because a thread that has not started cannot be joined.
_ending: set[threading.Event] = set()


def _in_thread(work: Callable[[], None], name: str) -> None:
    """Call `work`, which ends something, on a new thread; on the calling thread if the system allows no more threads."""
    ended = threading.Event()
    _ending.add(ended)

    def see_to_it() -> None:
        try:
            work()
        finally:
            _ending.discard(ended)
            ended.set()

    try:
        OwnThread(target=see_to_it, name=name, daemon=True).start()
    except RuntimeError:
        see_to_it()


def _ask_group(child: _Child) -> bool:
    """Ask the group of a child to end; False if there is none. One that leads no group is asked later, on a thread: its tree is searched for."""
    tree = _tree(child)
    return not isinstance(tree, ProcessGroup) or tree.ask(signal.SIGTERM)


def _see_to_the_end(children: list[_Child]) -> None:
    """Send SIGKILL after 0.3 s to what is left of each group or tree, even if its leader has ended, and reap the children."""
    for child in children:
        tree = _tree(child)
        if isinstance(tree, ProcessTree):
            tree.ask_all(signal.SIGTERM)
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline and any(child.returncode is None for child in children):
        time.sleep(0.02)
    for child in children:
        _tree(child).kill()
    # One deadline for all children.
    deadline = time.monotonic() + GRACE
    for child in children:
        # The worker that would have reaped the child may have ended; no zombie may be left.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))


def wait_for_children() -> None:
    """
    Wait until no child is being started and all endings in progress are done, at most GRACE seconds each. Called on a signal that ends
    the process, after the interrupt: a child whose thread has not registered it yet would outlive the process.
    """
    deadline = time.monotonic() + GRACE
    for registered, starter in tuple(_starting.items()):
        if starter != threading.get_ident():  # a signal handler may have interrupted the start of a child
            registered.wait(max(0.0, deadline - time.monotonic()))
    wait_for_ended_groups()


def wait_for_ended_groups() -> None:
    """Wait until all endings in progress are done, at most GRACE seconds. Called before the process may exit."""
    deadline = time.monotonic() + GRACE
    for ended in tuple(_ending):
        ended.wait(max(0.0, deadline - time.monotonic()))


def _tree(child: _Child) -> ProcessTree | ProcessGroup:
    found: ProcessTree | ProcessGroup | None = getattr(child, "tree", None)
    if found is None:
        born = getattr(child, "born", None)
        leads = getattr(child, "leads_group", True)
        found = ProcessGroup(child.pid, born) if leads else ProcessTree(child.pid, born=born)
        vars(child)["tree"] = found
    return found
