# SPDX-License-Identifier: GPL-3.0-or-later
"""The start method "thread", built like the stdlib's contexts."""

from __future__ import annotations

from multiprocessing import context, process
from typing import Any

from forkless.multiprocessing.synchronize import RECURSIVE_MUTEX, SEMAPHORE, SemLock

__all__ = ["ThreadContext", "ThreadProcess"]


class ThreadProcess(process.BaseProcess):
    """A process that runs as a thread and gets its parent's objects by reference."""

    _start_method = "thread"

    @staticmethod
    def _Popen(process_obj: object) -> object:  # noqa: N802  (the stdlib's name)
        from forkless.multiprocessing.patches import is_installed
        from forkless.multiprocessing.popen_thread import Popen

        if not is_installed():
            raise RuntimeError(
                'the start method "thread" is not installed: call forkless.multiprocessing.install() first, '
                "or work inside `with forkless.multiprocessing.installed():`"
            )
        return Popen(process_obj)


class ThreadContext(context.BaseContext):
    _name = "thread"
    Process = ThreadProcess

    # The stdlib's locks would use the C SemLock while only "thread" is installed. These use ours: it has no name in the
    # file system, so the stdlib starts no resource tracker for it, and a child that waits for it can be stopped.

    def Lock(self) -> Any:  # noqa: N802
        return _lock("Lock", SEMAPHORE, 1, 1)

    def RLock(self) -> Any:  # noqa: N802
        return _lock("RLock", RECURSIVE_MUTEX, 1, 1)

    def Semaphore(self, value: int = 1) -> Any:  # noqa: N802
        return _lock("Semaphore", SEMAPHORE, value, SemLock.SEM_VALUE_MAX)

    def BoundedSemaphore(self, value: int = 1) -> Any:  # noqa: N802
        return _lock("BoundedSemaphore", SEMAPHORE, value, value)


def _lock(name: str, kind: int, value: int, maxvalue: int) -> object:
    """An instance of the stdlib's lock type `name` around our SemLock."""
    from multiprocessing import synchronize

    lock = object.__new__(getattr(synchronize, name))
    lock._semlock = SemLock(kind, value, maxvalue, "", unlink=True)
    lock._is_fork_ctx = False
    lock._make_methods()
    return lock
