# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs that the queue calls (git, the commands of secrets): each has a time limit, can be stopped, and leaves no process behind."""

from __future__ import annotations

import contextlib
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkless.core.process_tree import ProcessTree
from forkless.queue.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ProgramEnd", "StoppedError", "TooSlowError", "call"]

# Seconds between two looks whether the program must be stopped.
_LOOK_EVERY = 0.1


class TooSlowError(QueueError):
    """The program did not end in time."""


class StoppedError(QueueError):
    """The program was ended because the run that needs it is to stop."""


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended. The bytes that it printed are not decoded: they need not be text."""

    code: int
    stdout: bytes
    stderr: bytes

    def last_line(self) -> str:
        """The last line of its error output that is not empty, for a sentence; "" if there is none."""
        lines = [line for line in self.stderr.decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1] if lines else ""


def call(
    command: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    stopping: Callable[[], object] | None = None,
) -> ProgramEnd:
    """
    Run a program to its end. Blocks. Raises TooSlowError after `seconds`, StoppedError once `stopping()` is true, and OSError if it cannot be
    started.

    In each of these cases its whole process tree is killed: git waits for ssh, and a shell for its pipeline. It has no terminal to ask at.
    """
    with subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        start_new_session=True,
    ) as process:
        try:
            return _wait(process, command[0], seconds, stopping)
        except BaseException:
            ProcessTree(process.pid).kill()
            # Not communicate(): a process that has left the tree may hold the other end of a pipe.
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            raise


def _wait(
    process: subprocess.Popen[bytes], name: str, seconds: float, stopping: Callable[[], object] | None
) -> ProgramEnd:
    deadline = time.monotonic() + seconds
    while True:
        if stopping is not None and stopping():
            raise StoppedError(f"{name} was stopped")
        left = deadline - time.monotonic()
        if left <= 0:
            raise TooSlowError(f"{name} did not end within {seconds:.0f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            # communicate() keeps what it has read when its time is over.
            stdout, stderr = process.communicate(timeout=min(left, _LOOK_EVERY))
            return ProgramEnd(process.returncode, stdout, stderr)
