# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every error that forkless raises, as one tree.

    ForklessError
    ├── SpecError            (ValueError)     the request makes no sense
    ├── UnsupportedError     (RuntimeError)   this platform or version cannot; names what is missing
    │   └── SeamError                         ansible-core is not one we know; names the seams that moved
    ├── RunError                              a run did not end well; has .result
    │   ├── RunFailed
    │   ├── RunCancelled
    │   ├── RunTimeout       (TimeoutError)
    │   └── EngineBusyError
    ├── WorkerError
    │   ├── StuckWorkerError                  names host, task, seconds, and where its stack stands
    │   └── SpawnError       (OSError)
    └── JobError
        ├── JobLostError                      nothing is remembered of it
        ├── JobChangedError                   its record is not the one that was looked at
        └── StoreError
            ├── ConflictError                 another controller was first
            └── UnknownStoreError (LookupError)

Fields travel in `args` and the sentence is built in `__str__`, so that every error survives pickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "ConflictError",
    "EngineBusyError",
    "ForklessError",
    "JobChangedError",
    "JobError",
    "JobLostError",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunTimeout",
    "SeamError",
    "SpawnError",
    "SpecError",
    "StoreError",
    "StuckWorkerError",
    "UnknownStoreError",
    "UnsupportedError",
    "WorkerError",
]


class ForklessError(Exception):
    """The root of the tree."""


class SpecError(ForklessError, ValueError):
    """The request makes no sense; nothing was started."""


class UnsupportedError(ForklessError, RuntimeError):
    """This platform or version cannot do what was asked."""


class SeamError(UnsupportedError):
    """The installed ansible-core is not one we know."""

    def __init__(self, version: str, moved: Sequence[str] = ()) -> None:
        super().__init__(version, tuple(moved))
        self.version = version
        self.moved = tuple(moved)

    def __str__(self) -> str:
        moved = "".join(f"\n  - {line}" for line in self.moved) or " nothing that we look at, but it was never tested."
        return (
            f"ansible-core {self.version} is not a version that forkless knows. What moved:{moved}\n"
            "Install a known one (pip install 'ansible-core>=2.18,<2.22'), or set FORKLESS_ALLOW_UNKNOWN=1 to go on anyway."
        )


class RunError(ForklessError):
    """A run did not end well; `.result` holds what there is of it."""

    def __init__(self, sentence: str, result: Any = None) -> None:
        super().__init__(sentence, result)
        self.sentence = sentence
        self.result = result

    def __str__(self) -> str:
        return self.sentence


class RunFailed(RunError):
    """The run ended, and hosts failed or were unreachable, or the play could not be read."""


class RunCancelled(RunError):
    """The run was asked to stop, and stopped."""


class RunTimeout(RunError, TimeoutError):
    """The run passed its time limit, or was silent for too long, and was stopped."""


class EngineBusyError(RunError):
    """Another run holds what this one needs, and it was asked not to wait."""


class WorkerError(ForklessError):
    """Something about one worker."""


class StuckWorkerError(WorkerError):
    """A worker makes no progress, or did not end when it was asked to."""

    def __init__(self, host: str, task: str, seconds: float, stack: str = "") -> None:
        super().__init__(host, task, seconds, stack)
        self.host = host
        self.task = task
        self.seconds = seconds
        self.stack = stack

    def __str__(self) -> str:
        where = f" It stands at:\n{self.stack.rstrip()}" if self.stack else ""
        return f"the worker for task '{self.task}' on host '{self.host}' has not moved for {self.seconds:.0f} s.{where}"


class SpawnError(WorkerError, OSError):
    """A program could not be started."""

    def __init__(self, program: str, why: str) -> None:
        super().__init__(program, why)
        self.program = program
        self.why = why

    def __str__(self) -> str:
        return f"could not start {self.program}: {self.why}"


class JobError(ForklessError):
    """Something about a job that outlives its play."""


class JobLostError(JobError):
    """There is no record of the job, so nothing can be done with it."""


class JobChangedError(JobError):
    """The record was changed by someone else after it was looked at; nothing was done."""


class StoreError(JobError):
    """A store could not be read or written. Never means 'not found'."""


class ConflictError(StoreError):
    """Another controller was first."""


class UnknownStoreError(StoreError, LookupError):
    """No store goes by that URL."""
