# SPDX-License-Identifier: GPL-3.0-or-later
"""The connections to devices that one run has open, found by the path that ansible-core knows each by."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import threading
import time
from typing import TYPE_CHECKING

from forkless.core.thread_stack import OwnThread
from forkless.engines.threads import context
from forkless.engines.threads.network.ansible_objects import module, play_data
from forkless.engines.threads.network.device_worker import DeviceWorker, Opening
from forkless.engines.threads.patches import working_directory
from forkless.engines.threads.workers.interrupt import WorkerStopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from forkless.engines.threads.context import RunContext
    from forkless.engines.threads.network.ansible_objects import PlaySettings

__all__ = ["DeviceConnections", "find", "made_for_run", "of_run"]

# Seconds that devices get at the end of a run to close their sessions, and again after they were interrupted.
GRACE = 3.0
GRACE_WHEN_STOPPED = 1.0
# Seconds between two looks at the alarms of the devices.
TICK = 0.2
ASYNCSSH_SWITCH = "network-asyncssh"
# Loggers of libraries that talk to devices. The helper process has no stderr; without a handler `logging` would write to the program's.
LOGGERS = ("paramiko", "ansible-pylibssh", "ncclient", "asyncssh")


class DeviceConnections:
    """
    The open connections of a run. Every method may be called by any thread of the run.

    Two runs never share a connection, even to one device: each has its own credentials, and its own `meta: reset_connection`.
    """

    def __init__(self, run_context: RunContext) -> None:
        self._run_context = run_context
        self._lock = threading.Lock()
        self._by_path: dict[str, DeviceWorker] = {}
        self._ending: set[DeviceWorker] = set()
        self._finished = threading.Event()
        self._clock: threading.Thread | None = None
        self._forget_stop: Callable[[], None] = lambda: None
        self._to_nowhere = logging.NullHandler()

    def listen(self) -> None:
        self._forget_stop = self._run_context.stop.listen(self._stop)
        for name in LOGGERS:
            logging.getLogger(name).addHandler(self._to_nowhere)

    def get(self, path: str | None) -> DeviceWorker | None:
        return self._by_path.get(path) if path else None

    def start(
        self, play_context: PlaySettings, options: object, task_uuid: str
    ) -> tuple[str, DeviceWorker, Opening | None]:
        """Find or open the connection for a task. The third value is None if it was open before."""
        path, name = self._path(play_context, options), str(play_context.remote_addr)
        while True:
            found = self._by_path.get(path)
            if found is not None:
                return path, found, None
            made = DeviceWorker(name, path, self._closing, asyncssh=ASYNCSSH_SWITCH not in self._run_context.off)
            with self._lock:
                if self._finished.is_set() or self._run_context.stop.requested:
                    raise WorkerStopped
                self._start_clock()
                device = self._by_path.setdefault(path, made)
                if device is made:
                    self._ending.add(made)
            if device is not made:
                return path, device, None
            try:
                made.start()
            except BaseException:
                self._closing(made)  # the next task tries again
                self._ending.discard(made)
                raise
            pickled, wanted = pickle.dumps(play_data(play_context)), pickle.dumps(options)
            pid, folder = f"{os.getpid()}-{self._run_context.ident}", working_directory.of_this_thread() or os.getcwd()
            request = made.ask(lambda: made.open(wanted, pickled, task_uuid, pid, folder))  # noqa: B023  # called before the loop goes on
            if request is not None:
                return path, made, request.answer if isinstance(request.answer, Opening) else None

    def close(self) -> None:
        """End all connections: asked first, interrupted after GRACE seconds, left behind after that. Called when the run ends."""
        self._forget_stop()
        stopped = self._run_context.stop.requested
        with self._lock:
            self._finished.set()
        for device in list(self._ending):
            device.give_up() if stopped else device.close()
        self._join(GRACE_WHEN_STOPPED if stopped else GRACE)
        for device in list(self._ending):
            device.give_up()
        self._join(GRACE_WHEN_STOPPED)
        for device in list(self._ending):
            device.abandon()
        if self._clock is not None:
            self._clock.join()
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self._to_nowhere)

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds  # one deadline for all devices
        for device in list(self._ending):
            device.join(max(0.0, deadline - time.monotonic()))
            if not device.is_alive():
                self._ending.discard(device)

    def _path(self, play_context: PlaySettings, options: object) -> str:
        """The name of the connection: address, port, user and plugin, as ansible-core has it, and the run."""
        # A plugin may have a port of its own, which the play context does not know: of two devices behind one address, one would answer for both.
        own = [options.get(one) for one in ("host", "port", "remote_user")] if isinstance(options, dict) else []
        parts = (play_context.remote_addr, play_context.port, play_context.remote_user, play_context.connection, *own)
        text = repr((self._run_context.ident, os.getpid(), *(None if one is None else str(one) for one in parts)))
        folder = os.path.expanduser(os.path.expandvars(module("ansible.constants").PERSISTENT_CONTROL_PATH_DIR))
        return os.path.join(folder, hashlib.sha256(text.encode()).hexdigest()[:16])

    def _closing(self, device: DeviceWorker) -> None:
        with self._lock:
            if self._by_path.get(device.socket_path) is device:
                del self._by_path[device.socket_path]

    def _stop(self) -> None:
        """The stop listener; may run in a signal handler, on a thread that holds the lock."""
        for device in list(self._ending):
            device.terminate()

    def _start_clock(self) -> None:
        if self._clock is None:
            name = f"forkless-network-clock-{self._run_context.ident[:8]}"
            clock = OwnThread(target=self._watch, name=name, daemon=True)
            clock.start()
            self._clock = clock

    def _watch(self) -> None:
        while not self._finished.wait(TICK):
            now = time.monotonic()
            for device in list(self._ending):
                if device.is_alive():
                    device.ring_if_overdue(now)
                elif device.thread is not None:
                    self._ending.discard(device)


_making = threading.Lock()


def of_run(run_context: RunContext) -> DeviceConnections | None:
    """The connections of a run; None if it has opened none."""
    found: DeviceConnections | None = run_context.state.get("device_connections")
    return found


def made_for_run(run_context: RunContext) -> DeviceConnections:
    """The connections of a run, which are closed when it ends."""
    with _making:
        found = of_run(run_context)
        if found is None:
            found = run_context.state["device_connections"] = DeviceConnections(run_context)
            run_context.at_end.append(found.close)
            found.listen()
        return found


def find(path: str | None) -> DeviceWorker | None:
    """The device of the calling thread's run that this path names."""
    run_context = context.current()
    connections = None if run_context is None else of_run(run_context)
    return None if connections is None else connections.get(path)
