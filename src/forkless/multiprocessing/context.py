# SPDX-License-Identifier: GPL-3.0-or-later
"""The start method "thread", in the manner of the stdlib's own contexts."""

from __future__ import annotations

from multiprocessing import context, process
from typing import Any

__all__ = ["ThreadContext", "ThreadProcess"]


class ThreadProcess(process.BaseProcess):
    """A process that is a thread, and is given its parent's objects as they are."""

    _start_method = "thread"

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  (the stdlib's name)
        from forkless.multiprocessing._install import is_installed
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

    # A lock asks its context one thing: whether it is "fork", whose locks have no name in the file system. Ours need
    # none either, and a lock with a name would make the stdlib start a process to watch over it.

    def Lock(self) -> Any:  # noqa: N802
        from multiprocessing.synchronize import Lock

        return Lock(ctx=_nameless())

    def RLock(self) -> Any:  # noqa: N802
        from multiprocessing.synchronize import RLock

        return RLock(ctx=_nameless())

    def Semaphore(self, value: int = 1) -> Any:  # noqa: N802
        from multiprocessing.synchronize import Semaphore

        return Semaphore(value, ctx=_nameless())

    def BoundedSemaphore(self, value: int = 1) -> Any:  # noqa: N802
        from multiprocessing.synchronize import BoundedSemaphore

        return BoundedSemaphore(value, ctx=_nameless())


def _nameless() -> context.BaseContext:
    return context._concrete_contexts["fork"]  # type: ignore[attr-defined,no-any-return]
