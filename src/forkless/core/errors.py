# SPDX-License-Identifier: GPL-3.0-or-later
"""
Every exception class that forkless raises, as one hierarchy.

    ForklessError
    ├── SpecError            (ValueError)     the caller's request is invalid; nothing was started
    ├── UnsupportedError     (RuntimeError)   this platform or version lacks a named feature
    │   ├── SeamError                         this ansible-core is not supported; names the seams that moved
    │   └── GreenThreadsError                 gevent or eventlet has replaced the threads of this process
    ├── RunError                              a run did not end well; has .result
    │   ├── RunFailed
    │   ├── RunCancelled
    │   ├── RunTimeout       (TimeoutError)
    │   └── EngineBusyError
    ├── WorkerError
    │   ├── StuckWorkerError                  names host, task, seconds, and the worker's stack
    │   └── SpawnError       (OSError)
    └── JobError
        ├── JobLostError                      no record of the job exists
        ├── JobChangedError                   the record changed after it was read
        └── StoreError
            ├── ConflictError                 another controller wrote the record first
            └── UnknownStoreError (LookupError)

Constructor arguments stay in `args` and `__str__` builds the message from them, so every error survives pickling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forkless.core.versions import KNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forkless.core.result import Result

__all__ = [
    "ConflictError",
    "EngineBusyError",
    "ForklessError",
    "GreenThreadsError",
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
    """Base class of every exception that forkless raises."""


class SpecError(ForklessError, ValueError):
    """The request is invalid. Nothing was started."""


class UnsupportedError(ForklessError, RuntimeError):
    """This platform, Python or ansible-core lacks what the request needs."""


class SeamError(UnsupportedError):
    """The installed ansible-core is of an unknown minor; with `known=True`, of a known minor, but names that are replaced are missing or changed."""

    def __init__(self, version: str, moved: Sequence[str] = (), known: bool = False) -> None:  # args travel by position
        super().__init__(version, tuple(moved), known)
        self.version = version
        self.moved = tuple(moved)
        self.known = known

    def __str__(self) -> str:
        after = "{}.{}".format(KNOWN[-1].split(".")[0], int(KNOWN[-1].split(".")[1]) + 1)
        moved = (
            "".join(f"\n  - {line}" for line in self.moved)
            or " nothing that forkless replaces, but this version was never tested."
        )
        if self.known:
            return (
                f"ansible-core {self.version} is a known version, but the installed copy differs from its tested releases: names that forkless "
                f"replaces are missing or have changed:{moved}\nInstall it anew (pip install --force-reinstall "
                f"ansible-core=={self.version}), or a tested release (forkless doctor), or set FORKLESS_ALLOW_UNKNOWN=1 to go on anyway."
            )
        return (
            f"ansible-core {self.version} is not a version that forkless knows. What moved:{moved}\n"
            f"Install a known one (pip install 'ansible-core>={KNOWN[0]},<{after}'), or set FORKLESS_ALLOW_UNKNOWN=1 to go on anyway."
        )


class GreenThreadsError(UnsupportedError):
    """gevent or eventlet has replaced the stdlib's threads: with green threads one blocked task blocks the whole process."""

    def __init__(self, library: str, replaced: Sequence[str] = ()) -> None:
        super().__init__(library, tuple(replaced))
        self.library = library
        self.replaced = tuple(replaced)

    def __str__(self) -> str:
        return (
            f"{self.library} has replaced {', '.join(self.replaced)} in this process (monkey patching), and forkless needs real threads. "
            "Start the run in a process that is not patched: with 'forkless run' or 'forkless playbook', from a task queue, "
            "or in a server with real threads (gunicorn --worker-class gthread)."
        )


class RunError(ForklessError):
    """A run did not succeed. `.result` holds its events and output as far as they exist, or None."""

    def __init__(self, sentence: str, result: Result | None = None) -> None:
        super().__init__(sentence, result)
        self.sentence = sentence
        self.result = result

    def __str__(self) -> str:
        return self.sentence


class RunFailed(RunError):
    """The run ended, but hosts failed or were unreachable, or Ansible could not read the playbook."""


class RunCancelled(RunError):
    """The run was cancelled, and has stopped."""


class RunTimeout(RunError, TimeoutError):
    """The run exceeded `timeout` or `idle_timeout` and was stopped."""


class EngineBusyError(RunError):
    """The engine or the run limit is occupied by another run, and the caller asked not to wait."""


class WorkerError(ForklessError):
    """Base class of errors about one worker."""


class StuckWorkerError(WorkerError):
    """A worker makes no progress, or did not end after it was interrupted."""

    def __init__(self, host: str, task: str, seconds: float, stack: str = "") -> None:
        super().__init__(host, task, seconds, stack)
        self.host = host
        self.task = task
        self.seconds = seconds
        self.stack = stack

    def __str__(self) -> str:
        where = f" The stack of the worker's thread:\n{self.stack.rstrip()}" if self.stack else ""
        return f"the worker for task '{self.task}' on host '{self.host}' has not ended {self.seconds:.0f} s after it began.{where}"


class SpawnError(WorkerError, OSError):
    """A program could not be started."""

    def __init__(self, program: str, why: str) -> None:
        super().__init__(program, why)
        self.program = program
        self.why = why

    def __str__(self) -> str:
        return f"could not start {self.program}: {self.why}"


class JobError(ForklessError):
    """Base class of errors about an async job, which outlives the play that started it."""


class JobLostError(JobError):
    """No record of the job exists, so it can be neither polled nor stopped."""


class JobChangedError(JobError):
    """Another process changed the record after it was read; the operation was not carried out."""


class StoreError(JobError):
    """A store could not be read or written. A missing record is never reported with this error."""


class ConflictError(StoreError):
    """Another controller wrote the record first."""


class UnknownStoreError(StoreError, LookupError):
    """No store is registered for the URL's scheme."""
