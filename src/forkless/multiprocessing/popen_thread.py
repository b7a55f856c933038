# SPDX-License-Identifier: GPL-3.0-or-later
"""The Popen of each start method. They start a thread where the stdlib's start a process."""

from __future__ import annotations

import _thread
import signal
import threading
from multiprocessing import process as stdlib_process
from typing import TYPE_CHECKING, Any, ClassVar

from forkless.core import thread_exception
from forkless.multiprocessing import bootstrap, transfer
from forkless.multiprocessing.process_state import ProcessState, current_state
from forkless.multiprocessing.stdlib import context, util
from forkless.multiprocessing.stopping import Stopper, ThreadInterrupted, ThreadStopped

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ForkPopen", "ForkserverPopen", "Popen", "SpawnPopen"]

Process = Any


class Popen:
    """The parent's handle of a child, with the members that BaseProcess expects. Any thread may call its methods."""

    method: ClassVar[str] = "thread"
    # BaseProcess.start() copies this attribute. The descriptor is opened when it is first read: see
    # process.sentinel_of.
    sentinel = None

    def __init__(self, process: Process) -> None:
        util._flush_std_streams()
        self.state = ProcessState.child_of(current_state())
        # None if no start method was chosen yet; get_context() would fix the parent's choice.
        self.state.context = context._default_context._actual_context
        self.pid = self.state.pid
        self._stopper = Stopper(self.state)
        self._launch(process)

    def poll(self) -> int | None:
        return self.state.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        return self.state.wait(timeout)

    def terminate(self) -> None:
        self._stopper.stop(signal.SIGTERM)

    def kill(self) -> None:
        self._stopper.stop(getattr(signal, "SIGKILL", 9))

    def interrupt(self) -> None:
        """Called by Process.interrupt(), since 3.14."""
        self._stopper.interrupt()

    def close(self) -> None:
        self.state.close_sentinel()

    @property
    def returncode(self) -> int | None:
        return self.state.returncode

    def _launch(self, process: Process) -> None:
        self.state.process = transfer.by_reference(process)
        self._start_thread(process.name, None)

    def _start_thread(self, name: str, receive: Callable[[], Process] | None) -> None:
        child = _ThreadChild(self.state, self._stopper, name, receive)
        # Not threading.Thread: at exit the interpreter must not join a thread that cannot be stopped. A daemon Thread
        # would avoid that, but the threads that the child starts would inherit the flag.
        self._stopper.thread_started(thread_exception.starting(child.start), name)


class ForkPopen(Popen):
    method = "fork"


class SpawnPopen(Popen):
    method = "spawn"
    DupFd = transfer.FdInPickle

    def _launch(self, process: Process) -> None:
        # The pickle of a lock or a shared block contains only its name. The parent may drop the object itself when
        # start() returns, so it is referenced here until the child has unpickled its own.
        held = [dict(vars(process))]
        try:
            pickled = transfer.by_copy(process, self)
            self._start_thread(process.name, lambda: self._receive(pickled, held))
        except BaseException:  # from a __reduce__, or KeyboardInterrupt: no child will claim the descriptors
            transfer.FdInPickle.drop_unclaimed(self.state)
            raise

    def _receive(self, pickled: memoryview, held: list[Any]) -> Process:
        # While this is set, an unpickled manager proxy does not call incref; its after-fork hook in _bootstrap does,
        # for this child.
        unreceived = self.state.process
        unreceived._inheriting = True
        try:
            return transfer.unpack(pickled)
        finally:
            del unreceived._inheriting
            held.clear()

    def duplicate_for_child(self, fd: int) -> int:
        return transfer.FdInPickle.of(fd, self.state)


class ForkserverPopen(SpawnPopen):
    method = "forkserver"


class _UnreceivedProcess(stdlib_process.BaseProcess):
    """What current_process() returns in a child that has not unpickled its process object yet."""

    def __init__(self, state: ProcessState, name: str) -> None:
        self._identity = ()
        self._name = name
        self._parent_pid = state.parent.pid
        self._popen = None
        self._closed = False
        self._config = dict(state.parent.process._config)


class _ThreadOfChild(threading._DummyThread):
    """
    What threading.current_thread() returns on a child's own thread.

    threading represents a thread that it did not start by a _DummyThread. Unlike that, this one is not a daemon, so
    that the threads started by the child are not daemons either. Its name is that of a process's main thread, because
    the repr of a lock shows it.
    """

    def __init__(self, state: ProcessState) -> None:
        super().__init__()
        self._name = "MainThread"
        self._daemonic = False
        self._forkless_state = state


class _ThreadChild:
    """
    The function that runs on a child's thread.

    It guarantees that the child's end is recorded exactly once, whenever an asynchronous ThreadStopped arrives.
    """

    def __init__(self, state: ProcessState, stopper: Stopper, name: str, receive: Callable[[], Process] | None) -> None:
        self._state = state
        self._stopper = stopper
        self._name = name
        self._receive = receive
        self._begun = _thread.allocate_lock()

    def start(self) -> int:
        """
        Start the thread and return its ident when it has begun: nobody can stop it before, and an error that is sent to the calling thread
        could hit it (see `thread_exception`).
        """
        self._begun.acquire()
        ident = _thread.start_new_thread(self, ())
        self._begun.acquire()
        return ident

    def __call__(self) -> None:
        thread = None
        code = 1
        try:
            self._begun.release()
            if not self._stopper.signal:
                thread = _ThreadOfChild(self._state)
                code = self._live()
        except (ThreadStopped, ThreadInterrupted):
            pass
        finally:
            # The steps below must all be taken. A ThreadStopped can still arrive at any bytecode until thread_gone()
            # has returned, so the call is repeated.
            while not self._stopper.gone:
                try:
                    self._stopper.thread_gone()
                except (ThreadStopped, ThreadInterrupted):
                    continue
            try:
                transfer.FdInPickle.drop_unclaimed(self._state)
                if self._state.process is not None:
                    bootstrap.drop_references(self._state.process)
                if thread is not None:
                    thread._delete()  # type: ignore[attr-defined]
            finally:
                # The last step: a thread that waits for the child wakes up when this thread no longer competes for the
                # GIL.
                self._state.end(-self._stopper.signal or code)

    def _live(self) -> int:
        state = self._state
        state.parent_process = bootstrap.ParentProcess(state.parent)
        if self._receive is not None:
            state.process = _UnreceivedProcess(state, self._name)
            try:
                state.process = self._receive()
            except Exception:  # noqa: BLE001  (unpickling may raise anything; it must end the child, not the program)
                bootstrap.report(self._name)
                return 1
            finally:
                del self._receive
        code: int = state.process._bootstrap(parent_sentinel=None)
        return code & 0xFF
