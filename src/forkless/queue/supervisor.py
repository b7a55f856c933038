# SPDX-License-Identifier: GPL-3.0-or-later
"""`forkless worker`: starts worker processes, replaces those that ended, and ends them when asked to."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from forkless.queue.embedded import folder_behind, state_folder
from forkless.queue.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from forkless.queue.worker import WorkerOptions

__all__ = ["Supervisor", "work_folder"]

log = logging.getLogger("forkless.worker")

# Seconds before a worker process that ended in an error is replaced; doubled up to the second number while that goes on.
_PAUSES = (1.0, 30.0)
# Finish, hand back, end. Two kinds for a worker that counts them: the kernel makes one of two equal signals that wait.
_STEPS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


@contextlib.contextmanager
def work_folder(parent: str | None = None) -> Iterator[str]:
    """
    A folder for unpacked projects, removed at the end. Folders that no living process uses are removed first.

    A folder is in use as long as the supervisor or one of its worker processes holds its lock: a worker finishes its run
    when the supervisor was killed.
    """
    above = parent or os.path.join(state_folder(), "work")
    try:
        os.makedirs(above, mode=0o700, exist_ok=True)
        turn = os.open(above, os.O_RDONLY)
    except OSError as err:
        raise QueueError(
            f"the folder {above} for projects cannot be made: {err.strerror}; name another with --work-dir"
        ) from None
    try:
        # One process at a time: a folder whose lock is about to be taken must not pass for one without an owner.
        fcntl.flock(turn, fcntl.LOCK_EX)
        _remove_unused(above)
        folder = tempfile.mkdtemp(prefix="worker-", dir=above)
        handle = _lock(folder)
    finally:
        os.close(turn)
    try:
        yield folder
    finally:
        os.close(handle)
        # A worker process that outlived its supervisor's attempt to end it keeps its folder.
        with contextlib.suppress(OSError):
            _remove_if_unused(folder)


def _lock(folder: str) -> int:
    """A descriptor whose lock says that `folder` is in use. The kernel releases it when the last process that has the descriptor ends."""
    handle = os.open(os.path.join(folder, "owner.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle


def _remove_unused(above: str) -> None:
    for name in os.listdir(above):
        with contextlib.suppress(OSError):  # no folder of a worker, or one that is in use
            _remove_if_unused(os.path.join(above, name))


def _remove_if_unused(folder: str) -> None:
    handle = os.open(os.path.join(folder, "owner.lock"), os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(handle)


class _WorkerSlot:
    """One place for a worker process, and the process in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.pause = _PAUSES[0]
        self.not_before = 0.0


class Supervisor:
    """Keeps `processes` worker processes running until it is stopped. `run()` blocks; `stop()` may be called from a signal handler."""

    def __init__(self, url: str, options: WorkerOptions, processes: int) -> None:
        # Each process keeps the embedded server running by itself: this one may be killed while they finish their runs.
        self._url, self._options = url, dataclasses.replace(options, embedded=options.embedded or folder_behind(url))
        self._slots = [_WorkerSlot(number) for number in range(processes)]
        self._stops = 0
        self._failed = False
        self._failures = 0

    def stop(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self._stops += 1  # an Event's lock could be held by the very thread that the signal interrupts

    def stop_at_least(self, times: int) -> None:
        """As if `stop()` had been called so often: 1 lets runs finish, 2 hands them back, 3 kills the processes."""
        self._stops = max(self._stops, times)

    @property
    def stops(self) -> int:
        return self._stops

    def samples(self) -> dict[str, float]:
        """What metrics say about these processes. Any thread may ask."""
        return {
            "forkless_worker_processes": sum(slot.process is not None for slot in self._slots),
            "forkless_worker_process_failures_total": self._failures,
        }

    def _start(self, slot: _WorkerSlot) -> None:
        folder = os.path.join(self._options.folder, str(slot.number))
        os.makedirs(self._options.folder, mode=0o700, exist_ok=True)
        # The worker gets the lock before it runs: it does not have to take one while this process may be killed.
        lock = _lock(self._options.folder)
        options = dataclasses.replace(
            self._options,
            folder=folder,
            folder_lock=lock,
            name=f"{self._options.name}-{slot.number + 1}" if self._options.name else "",
        )
        try:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "forkless.queue.worker", options.as_json()],
                stdin=subprocess.PIPE,
                # Ctrl-C at the terminal reaches the supervisor only, which asks the workers to finish.
                start_new_session=True,
                pass_fds=(lock,),
                # The worker takes its variable out of the environment; plays must not find the address under the other name.
                env={name: value for name, value in os.environ.items() if name != "FORKLESS_DATABASE"}
                | {"FORKLESS_WORKER_DATABASE": self._url},
            )
        finally:
            os.close(lock)

    def _look(self, slot: _WorkerSlot) -> None:
        process = slot.process
        if process is not None:
            code = process.poll()
            if code is None:
                return
            self._forget(slot)
            if code == 2:  # a sentence was printed; trying again would print it again
                self._failed = True
                self.stop()
            elif code:
                self._failures += 1
                log.warning("a worker process ended with %d; another takes its place", code)
                slot.not_before = time.monotonic() + slot.pause
                slot.pause = min(slot.pause * 2, _PAUSES[1])
            else:
                slot.pause = _PAUSES[0]
        if not self._stops and time.monotonic() >= slot.not_before:
            self._start(slot)

    @staticmethod
    def _forget(slot: _WorkerSlot) -> None:
        if slot.process is not None and slot.process.stdin is not None:
            with contextlib.suppress(OSError):
                slot.process.stdin.close()
        slot.process = None

    def run(self) -> int:
        sent = 0
        try:
            while True:
                for slot in self._slots:
                    self._look(slot)
                living = [slot.process for slot in self._slots if slot.process is not None]
                if self._stops and not living:
                    return 2 if self._failed else 0
                while sent < self._stops:
                    sent += 1
                    for process in living:
                        with contextlib.suppress(OSError):
                            process.send_signal(_STEPS[min(sent, len(_STEPS)) - 1])
                time.sleep(0.2)
        finally:
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.kill()
                    slot.process.wait()
                    self._forget(slot)
