# SPDX-License-Identifier: GPL-3.0-or-later
"""
Runs unmodified ansible-core inside any Python process, with workers as threads.

    import forkless

    result = forkless.run("site.yml", inventory="hosts.ini")
    result.raise_for_failures()

Importing forkless imports neither ansible nor ansible_runner, starts no thread or process, and patches nothing.
"""

from __future__ import annotations

from forkless.core.errors import (
    ConflictError,
    EngineBusyError,
    ForklessError,
    GreenThreadsError,
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
from forkless.core.events import Event, Status
from forkless.core.result import Result
from forkless.core.spec import RunSpec
from forkless.runs.async_run import AsyncRun, open_run, run_async
from forkless.runs.limits import limit
from forkless.runs.run import Run, run, start

__all__ = [
    "AsyncRun",
    "ConflictError",
    "EngineBusyError",
    "Event",
    "ForklessError",
    "GreenThreadsError",
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
