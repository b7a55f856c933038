# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs unmodified ansible-core inside any Python process, with workers as threads.

    import forkless

    result = forkless.run("site.yml", inventory="hosts.ini")
    result.raise_for_failures()

Importing this imports neither ansible nor ansible_runner, starts nothing and patches nothing.
"""

from __future__ import annotations

from forkless._aio import AsyncRun, open_run, run_async
from forkless._errors import (
    ConflictError,
    EngineBusyError,
    ForklessError,
    JobChangedError,
    JobError,
    JobLostError,
    RunCancelled,
    RunError,
    RunFailed,
    RunTimeout,
    SeamError,
    SpawnError,
    SpecError,
    StoreError,
    StuckWorkerError,
    UnknownStoreError,
    UnsupportedError,
    WorkerError,
)
from forkless._events import Event, Status
from forkless._limit import limit
from forkless._result import Result
from forkless._run import Run, run, start
from forkless._spec import RunSpec

__all__ = [
    "AsyncRun",
    "ConflictError",
    "EngineBusyError",
    "Event",
    "ForklessError",
    "JobChangedError",
    "JobError",
    "JobLostError",
    "Result",
    "Run",
    "RunCancelled",
    "RunError",
    "RunFailed",
    "RunSpec",
    "RunTimeout",
    "SeamError",
    "SpawnError",
    "SpecError",
    "Status",
    "StoreError",
    "StuckWorkerError",
    "UnknownStoreError",
    "UnsupportedError",
    "WorkerError",
    "limit",
    "open_run",
    "run",
    "run_async",
    "start",
]

__version__ = "0.1.0"
