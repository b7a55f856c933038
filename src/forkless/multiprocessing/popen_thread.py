# SPDX-License-Identifier: GPL-3.0-or-later
"""The Popen of each start method: where the stdlib's would start a process, these start a thread."""

from __future__ import annotations

import _thread
import signal
import threading
from multiprocessing import process as stdlib_process
from typing import TYPE_CHECKING, Any, ClassVar

from forkless.multiprocessing import _bootstrap, _handover
from forkless.multiprocessing._abandoned import Stop, Stopper
from forkless.multiprocessing._life import Life, here
from forkless.multiprocessing._stdlib import context, util

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ForkPopen", "ForkserverPopen", "Popen", "SpawnPopen"]

Process = Any


class Popen:
    """The parent's handle on a child, with the members that BaseProcess expects of it."""

    method: ClassVar[str] = "thread"
    # BaseProcess.start() reads this to keep it. A descriptor is opened only when one is asked for: _by_thread.sentinel_of.
    sentinel = None

    def __init__(self, process: Process) -> None:
        util._flush_std_streams()
        self.life = Life.child_of(here())
        self.life.context = context._default_context.get_context()
        self.pid = self.life.pid
        self._stopper = Stopper(self.life)
        self._launch(process)

    def poll(self) -> int | None:
        return self.life.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        return self.life.wait(timeout)

    def terminate(self) -> None:
        self._stopper.stop(signal.SIGTERM)

    def kill(self) -> None:
        self._stopper.stop(getattr(signal, "SIGKILL", 9))

    def close(self) -> None:
        self.life.close_sentinel()

    @property
    def returncode(self) -> int | None:
        return self.life.returncode

    def _launch(self, process: Process) -> None:
        self.life.process = _handover.by_reference(process)
        self._start_thread(process.name, None)

    def _start_thread(self, name: str, receive: Callable[[], Process] | None) -> None:
        child = _Child(self.life, self._stopper, name, receive)
        # Not threading.Thread: the interpreter must not wait for a thread that cannot be stopped, yet the threads that
        # the child starts must not be daemons because of it.
        self._stopper.thread_started(_thread.start_new_thread(child, ()), name)


class ForkPopen(Popen):
    method = "fork"


class SpawnPopen(Popen):
    method = "spawn"
    DupFd = _handover.Duplicate

    def _launch(self, process: Process) -> None:
        # Whoever pickles a lock or a shared block pickles its name only. The parent may let go of the thing itself as
        # soon as start() returns, so it is held until the child has its own.
        held = [dict(vars(process))]
        try:
            parcel = _handover.by_copy(process, self)
            self._start_thread(process.name, lambda: self._receive(parcel, held))
        except BaseException:  # whatever a __reduce__ raises, or Ctrl-C: there is no child to take its descriptors
            _handover.Duplicate.drop_unclaimed(self.life)
            raise

    def _receive(self, parcel: memoryview, held: list[Any]) -> Process:
        # Proxies built while this is set do not count themselves in; they do it in _bootstrap, as this child's own.
        newborn = self.life.process
        newborn._inheriting = True
        try:
            return _handover.unpack(parcel)
        finally:
            del newborn._inheriting
            held.clear()

    def duplicate_for_child(self, fd: int) -> int:
        return _handover.Duplicate.of(fd, self.life)


class ForkserverPopen(SpawnPopen):
    method = "forkserver"


class _Newborn(stdlib_process.BaseProcess):
    """current_process() of a child that has not received its process object yet."""

    def __init__(self, life: Life, name: str) -> None:
        self._identity = ()
        self._name = name
        self._parent_pid = life.parent.pid
        self._popen = None
        self._closed = False
        self._config = dict(life.parent.process._config)


class _ThreadOfChild(threading._DummyThread):
    """
    What threading.current_thread() is inside a child: its main thread.

    A dummy is how threading itself knows a thread that it did not start. Unlike a plain one it is no daemon, and so
    neither are the threads that the child starts.
    """

    def __init__(self, life: Life, name: str) -> None:
        super().__init__()
        self._name = name
        self._daemonic = False
        self._forkless_life = life


class _Child:
    """Everything that happens on the thread, from its first statement to its last."""

    def __init__(self, life: Life, stopper: Stopper, name: str, receive: Callable[[], Process] | None) -> None:
        self._life = life
        self._stopper = stopper
        self._name = name
        self._receive = receive

    def __call__(self) -> None:
        thread = None
        code = 1
        try:
            if not self._stopper.signal:
                thread = _ThreadOfChild(self._life, self._name)
                code = self._live()
        except Stop:
            pass
        finally:
            # Not a word may be lost from here on. A Stop that arrives at the last moment, which is any call, is let go by.
            while not self._stopper.gone:
                try:
                    self._stopper.thread_gone()
                except Stop:
                    continue
            try:
                _handover.Duplicate.drop_unclaimed(self._life)
                if thread is not None:
                    thread._delete()  # type: ignore[attr-defined]
            finally:
                # Last of all: whoever waits for it wakes up once, when there is nothing left to do that would keep the
                # interpreter from them.
                self._life.end(-self._stopper.signal or code)

    def _live(self) -> int:
        life = self._life
        life.parent_process = _bootstrap.ParentProcess(life.parent)
        if self._receive is not None:
            life.process = _Newborn(life, self._name)
            try:
                life.process = self._receive()
            except Exception:  # noqa: BLE001  (whatever a pickle may raise; it ends the child, not the program)
                _bootstrap.report(self._name)
                return 1
            finally:
                del self._receive
        code: int = life.process._bootstrap(parent_sentinel=None)
        _bootstrap.empty_pockets(life.process)
        return code & 0xFF
